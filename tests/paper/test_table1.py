"""Table 1: its paper's numbers, its summary, and runs that are made once."""

import json
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from tiny import MODELS
from vbmem.commands.trained_models import evaluate
from vbmem.data import load_images
from vbmem.models import save_model
from vbmem.paper import table1
from vbmem.pretrained import load_network
from vbmem.train import DataConfig, RunConfig, Stage

ROWS = ["vae", "statistician", "dkm", "gaussian", "categorical"]


def made_up_run(dataset, model, seed, bound=None):
    return {
        "dataset": dataset,
        "model": model,
        "seed": seed,
        "test": {"elbo_per_frame": 1000.0 + 10 * seed if bound is None else bound, "kl_codes": 1.0},
        "valid": 999.0,
        "epochs": 7 + seed,
        "seconds": 60.0 * (1 + seed),
    }


@pytest.fixture
def rows_run(monkeypatch):
    """Rows are made up instead of trained; which, in order."""
    made = []

    def run_row(row, run_dir, data_dir, device, console):
        made.append((*row, run_dir))
        return made_up_run(*row)

    monkeypatch.setattr(table1, "run_row", run_row)
    return made


def make_table(out, datasets=("cifar10",), models=("vae", "dkm"), seeds=(0,)):
    console = Console(record=True, width=120)
    table1.table1(out, list(datasets), list(models), list(seeds), None, torch.device("cpu"), console)
    return console.export_text()


def test_the_papers_numbers_are_those_of_the_paper():
    cifar10, celeba = table1.PAPER["cifar10"], table1.PAPER["celeba"]
    assert set(table1.PAPER) == {"cifar10", "celeba"}
    assert cifar10 == dict(zip(ROWS, (3508.5, 2178.5, 2198.3, 3451.7, 3593.7), strict=True))
    assert celeba == dict(zip(ROWS, (4174.8, 3242.3, 2868.0, 4155.3, 4422.5), strict=True))


class TestSummary:
    def test_a_row_has_mean_and_spread_over_seeds_beside_the_papers_number(self):
        bounds = [3500.0, 3510.0, 3523.0]
        summary = table1.summarise([made_up_run("cifar10", "vae", seed, bound) for seed, bound in enumerate(bounds)])
        assert summary == {
            "cifar10": [
                {
                    "model": "vae",
                    "paper": 3508.5,
                    "mean": pytest.approx(3511.0),
                    "std": pytest.approx(statistics.stdev(bounds)),
                    "seeds": bounds,
                    "seconds": pytest.approx(120.0),
                    "epochs": [7, 8, 9],
                }
            ]
        }

    def test_one_seed_has_no_spread(self):
        assert table1.summarise([made_up_run("celeba", "statistician", 0)])["celeba"][0]["std"] == 0.0

    def test_rows_come_in_the_papers_order_and_only_those_that_ran(self):
        runs = [made_up_run(dataset, model, 0) for dataset in ("celeba", "cifar10") for model in reversed(ROWS)]
        summary = table1.summarise([run for run in runs if (run["dataset"], run["model"]) != ("celeba", "dkm")])
        assert list(summary) == ["cifar10", "celeba"]
        assert [row["model"] for row in summary["cifar10"]] == ROWS
        assert [row["model"] for row in summary["celeba"]] == ["vae", "statistician", "gaussian", "categorical"]

    def test_without_runs_it_is_empty(self):
        assert table1.summarise([]) == {}

    def test_the_rendered_table_has_every_row(self):
        runs = [made_up_run(dataset, model, seed) for dataset in table1.PAPER for model in ROWS for seed in (0, 1)]
        table = table1.render(table1.summarise(runs))
        assert table.row_count == 10
        console = Console(record=True, width=120)
        console.print(table)
        text = console.export_text()
        for claims in table1.PAPER.values():
            for model, paper in claims.items():
                assert f"{paper:.1f}" in text
                assert model in text
        assert text.count("1005.0") == 10


class TestRuns:
    def test_every_row_is_run_in_a_directory_of_its_own(self, tmp_path, rows_run):
        make_table(tmp_path, ["cifar10", "celeba"], ["vae", "dkm"], [0, 1])
        expected = {(d, m, s) for d in ("cifar10", "celeba") for m in ("vae", "dkm") for s in (0, 1)}
        assert {row[:3] for row in rows_run} == expected
        assert len(rows_run) == len({row[3] for row in rows_run}) == 8
        assert all(row[3].is_relative_to(tmp_path / "runs") for row in rows_run)

    def test_the_summary_is_left_as_json_and_shown(self, tmp_path, rows_run):
        text = make_table(tmp_path / "new", models=["vae", "categorical"], seeds=[0, 1, 2])
        summary = json.loads((tmp_path / "new" / "table1.json").read_text())
        assert [row["model"] for row in summary["cifar10"]] == ["vae", "categorical"]
        for row in summary["cifar10"]:
            assert {"model", "paper", "mean", "std", "seeds"} <= set(row)
            assert row["seeds"] == [1000.0, 1010.0, 1020.0]
            assert (row["mean"], row["std"]) == (1010.0, 10.0)
        assert "3593.7" in text
        assert "1010.0" in text

    def test_finished_rows_are_not_run_again(self, tmp_path, rows_run):
        make_table(tmp_path)
        first = (tmp_path / "table1.json").read_text()
        make_table(tmp_path)
        assert len(rows_run) == 2
        assert (tmp_path / "table1.json").read_text() == first

    def test_new_rows_are_added_to_the_finished_ones(self, tmp_path, rows_run):
        make_table(tmp_path, models=["vae"], seeds=[0])
        make_table(tmp_path, models=["vae", "statistician"], seeds=[0, 1])
        assert [row[:3] for row in rows_run] == [
            ("cifar10", "vae", 0),
            ("cifar10", "statistician", 0),
            ("cifar10", "vae", 1),
            ("cifar10", "statistician", 1),
        ]
        summary = json.loads((tmp_path / "table1.json").read_text())
        assert [len(row["seeds"]) for row in summary["cifar10"]] == [2, 2]

    def test_a_crash_loses_only_the_row_it_was_in(self, tmp_path, rows_run, monkeypatch):
        working = table1.run_row

        def breaks_down(row, *rest, **where):
            if row.model == "dkm":
                raise RuntimeError("out of memory")
            return working(row, *rest, **where)

        monkeypatch.setattr(table1, "run_row", breaks_down)
        with pytest.raises(RuntimeError, match="out of memory"):
            make_table(tmp_path, models=["vae", "statistician", "dkm"])
        monkeypatch.setattr(table1, "run_row", working)
        make_table(tmp_path, models=["vae", "statistician", "dkm"])
        assert [row[1] for row in rows_run] == ["vae", "statistician", "dkm"]

    def test_an_unknown_model_is_refused_before_anything_runs(self, tmp_path, rows_run):
        with pytest.raises(ValueError, match="no row mixture, transformer") as error:
            make_table(tmp_path / "new", models=["vae", "transformer", "mixture"])
        assert all(model in str(error.value) for model in ROWS)
        assert not rows_run
        assert not (tmp_path / "new").exists()


def test_a_row_is_trained_with_its_seed_and_tested_once(tmp_path, monkeypatch):
    """A small model on digits stands in for the preset."""
    asked = []
    images: Any = load_images("digits")
    small = replace(images, x_train=images.x_train[:160], y_train=images.y_train[:160])
    config = RunConfig(DataConfig("digits", batch_size=2, episode_length=8), MODELS["vae"], (Stage(2),))

    def get_preset(name):
        asked.append(name)
        return config

    monkeypatch.setattr(table1, "get_preset", get_preset)
    monkeypatch.setattr(table1, "load_images", lambda name, data_dir: small)
    row = table1.Row("cifar10", "vae", 3)
    where = (tmp_path / "run", None, torch.device("cpu"), Console(quiet=True))
    run = table1.run_row(row, *where)
    assert asked == ["cifar10-vae"]
    assert (run["dataset"], run["model"], run["seed"], run["epochs"]) == ("cifar10", "vae", 3, 2)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 3
    assert run["test"]["elbo_per_frame"] == pytest.approx(run["valid"], rel=1.0)
    assert json.dumps(run)
    again = table1.run_row(row, *where)  # a finished run: nothing left to train, the same weights
    assert again["epochs"] == 2
    assert again["test"] == run["test"]


@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "bernoulli"])
def test_the_command_evaluates_a_row_and_its_export_to_the_very_same_number(binary, tmp_path, monkeypatch, capsys):
    data = DataConfig("digits", binary=binary, batch_size=2, episode_length=8)
    config = RunConfig(data, MODELS["vae"], (Stage(1),))
    monkeypatch.setattr(table1, "get_preset", lambda name: config)
    monkeypatch.setattr(table1, "load_images", lambda name, data_dir: load_images("digits", data_dir))
    where = (tmp_path / "run", None, torch.device("cpu"), Console(quiet=True))
    row = table1.run_row(table1.Row("cifar10", "vae", 3), *where)
    torch.rand(5)  # whatever was drawn in between
    save_model(load_network(tmp_path / "run"), tmp_path / "exported")
    for name in ("run", "exported"):
        capsys.readouterr()
        evaluate(str(tmp_path / name), device="cpu")
        printed = json.loads(capsys.readouterr().out)
        assert {key: printed[key] for key in row["test"]} == row["test"]
