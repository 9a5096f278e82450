"""Many runs: each in a directory of its own, trained and tested once."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from tiny import CPU, MODELS
from vbmem.commands.trained_models import evaluate
from vbmem.data import load_images
from vbmem.errors import TrainingError
from vbmem.models import save_model
from vbmem.paper import training
from vbmem.paper.training import Run, on_test, train_all, train_one
from vbmem.pretrained import load_network
from vbmem.train import DataConfig, RunConfig, Stage, Trainer

CONFIG = RunConfig(DataConfig("digits", batch_size=2, episode_length=8), MODELS["vae"], (Stage(1),))


@pytest.fixture
def trained(monkeypatch):
    """Runs are made up instead of trained; which, in order."""
    made = []

    def made_up(run, config, run_dir, console, **rest):
        made.append((run, config, run_dir))
        return {**run._asdict(), "test": {"elbo_per_frame": 1.0}}

    monkeypatch.setattr(training, "train_one", made_up)
    return made


def runs_of(*names, seeds=(0,)):
    return {Run(name, seed): replace(CONFIG, seed=seed) for seed in seeds for name in names}


def train(runs, out, **options):
    return train_all(runs, out, None, CPU, Console(quiet=True), **options)


class TestAll:
    def test_every_run_has_its_settings_and_a_directory_of_its_own(self, tmp_path, trained):
        runs = runs_of("a", "b", seeds=[0, 1])
        results = train(runs, tmp_path)
        assert {run: config for run, config, _ in trained} == runs
        assert len({run_dir for _, _, run_dir in trained}) == 4
        assert all(run_dir.is_relative_to(tmp_path / "runs") for _, _, run_dir in trained)
        assert results == json.loads((tmp_path / "runs.json").read_text())

    def test_what_is_finished_is_not_trained_again_and_what_is_new_is_added(self, tmp_path, trained):
        train(runs_of("a"), tmp_path)
        results = train(runs_of("a", "b", seeds=[0, 1]), tmp_path)
        assert [tuple(run) for run, _, _ in trained] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
        assert [(result["name"], result["seed"]) for result in results] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]

    def test_what_is_finished_with_other_settings_is_not_taken_for_the_same(self, tmp_path):
        train({Run("a", 0): CONFIG}, tmp_path)
        assert len(train({Run("a", 0): CONFIG}, tmp_path)) == 1
        with pytest.raises(ValueError, match=r"a-0 was trained with other settings: stages.0.epochs 1, not 2; give"):
            train({Run("a", 0): replace(CONFIG, stages=(Stage(2),))}, tmp_path)

    def test_a_run_without_a_finite_bound_has_broken_down(self, tmp_path, monkeypatch):
        run = Trainer.run
        monkeypatch.setattr(Trainer, "run", lambda self: math.nan * run(self))
        (result,) = train({Run("a", 0): CONFIG}, tmp_path)
        assert result["broke_down"] == "no epoch had a finite validation bound"
        assert "test" not in result

    def test_a_crash_loses_only_the_run_it_was_in(self, tmp_path, trained, monkeypatch):
        working = training.train_one

        def breaks_down(run, *rest, **options):
            if run.name == "c":
                raise RuntimeError("out of memory")
            return working(run, *rest, **options)

        monkeypatch.setattr(training, "train_one", breaks_down)
        with pytest.raises(RuntimeError, match="out of memory"):
            train(runs_of("a", "b", "c"), tmp_path)
        monkeypatch.setattr(training, "train_one", working)
        train(runs_of("a", "b", "c"), tmp_path)
        assert [run.name for run, _, _ in trained] == ["a", "b", "c"]

    def test_none_at_a_time_is_refused(self, tmp_path, trained):
        with pytest.raises(ValueError, match="jobs must be at least 1, got 0"):
            train(runs_of("a"), tmp_path, jobs=0)


def small(images: Any) -> Any:
    return replace(images, x_train=images.x_train[:160], y_train=images.y_train[:160])


def test_a_run_is_trained_with_its_seed_and_tested_once(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_images", lambda name, *_, **__: small(load_images(name)))
    run, config = Run("vae", 3), replace(CONFIG, stages=(Stage(2),), seed=3)
    where = (tmp_path / "run", Console(quiet=True), None, CPU)
    measures = (on_test, lambda network, config, images: {"code": config.model.code_size})
    result = train_one(run, config, *where, measures=measures)
    assert (result["name"], result["seed"], result["epochs"], result["stopped_early"]) == ("vae", 3, 2, False)
    assert result["code"] == config.model.code_size
    assert len(result["curve"]) == 2
    assert result["valid"] == pytest.approx(max(result["curve"]), abs=0.1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["seed"] == 3
    assert json.dumps(result)
    again = train_one(run, config, *where)  # a finished run: nothing left to train, the same weights
    assert (again["epochs"], again["test"]) == (2, result["test"])


def test_while_settings_are_chosen_nobody_looks_at_test_pictures(tmp_path, monkeypatch):
    def without_test(name, *_, **__):
        return replace(small(load_images(name)), x_test=None, y_test=None)

    monkeypatch.setattr(training, "load_images", without_test)
    (result,) = train(runs_of("vae"), tmp_path, measures=())
    assert "test" not in result
    assert result["valid"] == pytest.approx(result["curve"][0], abs=0.1)


def test_a_run_that_stopped_early_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "load_images", lambda name, *_, **__: small(load_images(name)))
    config = replace(CONFIG, stages=(Stage(30, 0.05),), patience=1)  # at such a rate it soon gets worse
    result = train_one(Run("vae", 0), config, tmp_path / "run", Console(quiet=True), None, CPU)
    assert result["stopped_early"]
    assert result["epochs"] == len(result["curve"]) < 30


def test_a_run_that_breaks_down_tells_how(tmp_path, monkeypatch):
    def breaks_down(trainer):
        raise TrainingError("20 steps in a row")

    monkeypatch.setattr(Trainer, "run", breaks_down)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").touch()
    result = train_one(Run("vae", 0), CONFIG, tmp_path / "run", Console(quiet=True), None, CPU)
    assert result["broke_down"] == "20 steps in a row"
    assert "test" not in result


@pytest.mark.parametrize("binary", [False, True], ids=["gaussian", "bernoulli"])
def test_the_command_evaluates_a_run_and_its_export_to_the_very_same_number(binary, tmp_path, capsys):
    config = replace(CONFIG, data=replace(CONFIG.data, binary=binary), seed=3)
    result = train_one(Run("vae", 3), config, tmp_path / "run", Console(quiet=True), None, CPU)
    torch.rand(5)  # whatever was drawn in between
    save_model(load_network(tmp_path / "run"), tmp_path / "exported")
    for name in ("run", "exported"):
        capsys.readouterr()
        evaluate(str(tmp_path / name), device="cpu")
        printed = json.loads(capsys.readouterr().out)
        assert {key: printed[key] for key in result["test"]} == result["test"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["table1", "--seeds", "0"],
        ["table1", "--models"],
        ["claims", "--seeds", "0"],
        ["episodes-table", "--seeds", "0"],
        ["figure2", "--rows", "--out", "x"],
        ["figure2", "--seeds", "0", "--out", "x"],
        ["figure3", "--models"],
        ["metrics", "cifar10-mixture", "--episodes", "0"],
        ["few-shot", "digits-mixture", "--trials", "0"],
        ["metrics", "cifar10-mixture", "--frames", "1000000000"],
    ],
    ids=" ".join,
)
def test_nothing_to_do_and_far_too_much_is_an_error(arguments, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())
