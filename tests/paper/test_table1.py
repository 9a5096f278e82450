"""Table 1: its paper's numbers, its rows and its summary."""

import json
import math
import statistics
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from scipy import stats

from vbmem.paper import table1
from vbmem.paper.presets import get_preset

ROWS = ["vae", "statistician", "dkm", "gaussian", "categorical"]


def made_up_run(name, seed, bound=None):
    return {
        "name": name,
        "seed": seed,
        "test": {"elbo_per_frame": 1000.0 + 10 * seed if bound is None else bound, "kl_codes": 1.0},
        "valid": 999.0,
        "epochs": 7 + seed,
        "seconds": 60.0 * (1 + seed),
    }


@pytest.fixture
def trained(monkeypatch):
    """Rows are made up instead of trained; those asked for, in order."""
    asked = {}

    def train_all(runs, out, data_dir, device, console, jobs):
        asked.update(runs)
        return [made_up_run(*run) for run in asked]

    monkeypatch.setattr(table1, "train_all", train_all)
    return asked


def make_table(out, datasets=("cifar10",), models=("vae", "dkm"), seeds=(0,), as_in_paper=False):
    console, device = Console(record=True, width=120), torch.device("cpu")
    table1.table1(out, list(datasets), list(models), list(seeds), None, device, console, as_in_paper=as_in_paper)
    return console.export_text()


def test_the_papers_numbers_are_those_of_the_paper():
    cifar10, celeba = table1.PAPER["cifar10"], table1.PAPER["celeba"]
    assert set(table1.PAPER) == {"cifar10", "celeba"}
    assert cifar10 == dict(zip(ROWS, (3508.5, 2178.5, 2198.3, 3451.7, 3593.7), strict=True))
    assert celeba == dict(zip(ROWS, (4174.8, 3242.3, 2868.0, 4155.3, 4422.5), strict=True))


class TestSummary:
    def test_a_row_has_mean_and_spread_over_seeds_beside_the_papers_number(self):
        bounds = [3500.0, 3510.0, 3523.0]
        summary = table1.summarise([made_up_run("cifar10-vae", seed, bound) for seed, bound in enumerate(bounds)])
        measured = {
            "mean": pytest.approx(3511.0),
            "std": pytest.approx(statistics.stdev(bounds)),
            "seeds": bounds,
            "seconds": pytest.approx(120.0),
            "epochs": [7, 8, 9],
        }
        assert summary == {"cifar10": [{"model": "vae", "paper": 3508.5, "as_in_paper": None, "ours": measured}]}

    def test_the_papers_settings_and_ours_are_told_apart(self):
        summary = table1.summarise([made_up_run("paper-celeba-dkm", 0, 1.0), made_up_run("celeba-dkm", 0, 2.0)])
        (row,) = summary["celeba"]
        assert (row["as_in_paper"]["mean"], row["ours"]["mean"]) == (1.0, 2.0)

    def test_one_seed_has_no_spread(self, tmp_path, trained):
        assert table1.summarise([made_up_run("celeba-statistician", 0)])["celeba"][0]["ours"]["std"] is None
        assert "1000.0 (1)" in make_table(tmp_path)

    def test_rows_come_in_the_papers_order_and_only_those_that_ran(self):
        runs = [made_up_run(f"{dataset}-{model}", 0) for dataset in ("celeba", "cifar10") for model in reversed(ROWS)]
        summary = table1.summarise([run for run in runs if run["name"] != "celeba-dkm"])
        assert list(summary) == ["cifar10", "celeba"]
        assert [row["model"] for row in summary["cifar10"]] == ROWS
        assert [row["model"] for row in summary["celeba"]] == ["vae", "statistician", "gaussian", "categorical"]

    def test_without_runs_it_is_empty(self):
        assert table1.summarise([]) == {}

    def test_the_rendered_table_has_every_row(self):
        names = [f"{dataset}-{model}" for dataset in table1.PAPER for model in ROWS]
        table = table1.render(table1.summarise([made_up_run(name, seed) for name in names for seed in (0, 1)]))
        assert table.row_count == 10
        console = Console(record=True, width=120)
        console.print(table)
        text = console.export_text()
        for claims in table1.PAPER.values():
            for model, paper in claims.items():
                assert f"{paper:.1f}" in text
                assert model in text
        assert text.count("1005.0 ± 7.1 (2), 7.53 bits") == 10
        assert "3593.7, 6.31 bits" in text


class TestLead:
    def leads(self, memory, vae, prefix=""):
        rows = {f"{prefix}cifar10-categorical": memory, f"{prefix}cifar10-vae": vae}
        return table1.leads(
            table1.summarise([made_up_run(name, seed, x) for name, row in rows.items() for seed, x in enumerate(row)])
        )

    def test_it_is_the_difference_of_the_means_with_welchs_p(self):
        memory, vae = [3905.0, 3755.0, 3969.0], [3719.0, 3727.0, 3782.0]
        lead = self.leads(memory, vae)["cifar10"]["ours"]
        variances = [statistics.variance(row) / 3 for row in (memory, vae)]
        t = (statistics.mean(memory) - statistics.mean(vae)) / math.sqrt(sum(variances))
        degrees = sum(variances) ** 2 / sum(v**2 / 2 for v in variances)  # Welch and Satterthwaite
        assert lead["nats"] == pytest.approx(statistics.mean(memory) - statistics.mean(vae))
        assert lead["p"] == pytest.approx(2 * stats.t.sf(abs(t), degrees))

    def test_each_way_of_training_has_its_own(self):
        assert list(self.leads([3.0, 4.0], [1.0, 2.5], "paper-")["cifar10"]) == ["as_in_paper"]

    def test_one_seed_says_nothing(self):
        assert self.leads([3.0], [1.0, 2.0]) == {}

    def test_it_is_shown_below_the_table(self, tmp_path, trained):
        text = make_table(tmp_path, models=["vae", "categorical"], seeds=[0, 1, 2])
        assert "cifar10, ours: categorical less VAE +0.0 nats (p = 1), Welch's t-test over seeds" in text


class TestRows:
    def test_every_row_is_its_preset_with_its_seed(self, tmp_path, trained):
        make_table(tmp_path, ["cifar10", "celeba"], ["vae", "dkm"], [0, 1])
        assert set(trained) == {(f"{d}-{m}", s) for d in ("cifar10", "celeba") for m in ("vae", "dkm") for s in (0, 1)}
        for run, config in trained.items():
            assert config == replace(get_preset(run.name), seed=run.seed)

    def test_as_in_the_paper_it_is_the_papers_preset(self, tmp_path, trained):
        make_table(tmp_path, as_in_paper=True)
        assert set(trained) == {("paper-cifar10-vae", 0), ("paper-cifar10-dkm", 0)}
        assert all(config.batch_norm == "accumulated" for config in trained.values())

    def test_the_summary_is_left_as_json_and_shown(self, tmp_path, trained):
        text = make_table(tmp_path / "new", models=["vae", "categorical"], seeds=[0, 1, 2])
        summary = json.loads((tmp_path / "new" / "table1.json").read_text())
        assert [row["model"] for row in summary["cifar10"]] == ["vae", "categorical"]
        for row in summary["cifar10"]:
            assert (row["ours"]["mean"], row["ours"]["std"]) == (1010.0, 10.0)
        assert "3593.7" in text
        assert "1010.0" in text

    def test_an_unknown_model_is_refused_before_anything_runs(self, tmp_path, trained):
        with pytest.raises(ValueError, match="no row mixture, transformer") as error:
            make_table(tmp_path / "new", models=["vae", "transformer", "mixture"])
        assert all(model in str(error.value) for model in ROWS)
        assert not trained
        assert not (tmp_path / "new").exists()
