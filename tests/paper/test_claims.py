"""The paper's choices changed one at a time, and the models that come of it."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from tiny import CPU, squares, tiny_network, tiny_run
from vbmem.paper import claims
from vbmem.paper.claims import BASES, STARTS, VARIANTS, measure, summarise


def made_up_run(name, seed, bound):
    return {"name": name, "seed": seed, "test": {"elbo_per_frame": bound}, "stopped_early": False}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_its_base_with_one_thing_changed(name):
    variant = VARIANTS[name]
    run = BASES[variant.base]
    changed = variant.change(run)
    model, before = vars(changed.model), vars(run.model)
    settings = {field for field in vars(run) if field != "model" and vars(changed)[field] != vars(run)[field]}
    different = {field for field in before if model[field] != before[field]} | settings
    assert len(different) == (0 if name in BASES else 1)


def test_differences_are_those_to_the_base_seed_by_seed():
    bounds = {("relu", 0): 90.0, ("mixture", 0): 100.0, ("mixture", 1): 120.0, ("relu", 1): 116.0}
    bounds["dkm-mean-memory", 0] = 7.0
    summary = summarise([made_up_run(*run, bound) for run, bound in bounds.items()])
    assert list(summary) == ["mixture", "relu", "dkm-mean-memory"]
    assert summary["relu"]["bound"] == {"mean": 103.0, "std": pytest.approx(18.385, abs=1e-3), "seeds": 2}
    assert summary["relu"]["difference"] == {"mean": -7.0, "std": pytest.approx(4.243, abs=1e-3), "seeds": 2}
    assert summary["mixture"]["difference"]["mean"] == 0
    assert summary["dkm-mean-memory"]["bound"] == {"mean": 7.0, "std": None, "seeds": 1}
    assert summary["dkm-mean-memory"]["difference"] is None


def test_a_run_that_broke_down_is_counted_and_has_no_bound():
    summary = summarise([{"name": "paper", "seed": seed, "broke_down": "in epoch 3"} for seed in range(3)])
    assert (summary["paper"]["bound"], summary["paper"]["broke_down"]) == (None, 3)


def test_a_memory_is_also_tested_from_every_start():
    network = tiny_network("mixture", channels=1, objective="generalisation")
    config = tiny_run(network.config)
    found = measure(network, config, replace(squares(), x_test=squares(40, 1).x_train))
    assert list(found["starts"]) == list(STARTS)
    assert len({bound["elbo_per_frame"] for bound in found["starts"].values()}) == len(STARTS)
    assert found["whole_episode"]["elbo_per_frame"] == found["starts"]["kmeans++"]["elbo_per_frame"]  # its own start


def test_a_dkm_is_also_tested_with_a_memory_that_is_drawn():
    images = replace(squares(), x_test=squares(40, 1).x_train)
    unbiased = measure(tiny_network("dkm", channels=1), tiny_run(tiny_network("dkm").config), images)
    biased = measure(tiny_network("dkm", channels=1, mean_memory=True), tiny_run(tiny_network("dkm").config), images)
    assert biased == unbiased


def test_every_variant_is_trained_and_samples_are_measured_where_they_matter(tmp_path, monkeypatch):
    asked, console = {}, Console(record=True, width=120)

    def train_all(runs, *rest):
        asked.update(runs)
        return [made_up_run(name, seed, 10.0 * seed) for name, seed in runs]

    monkeypatch.setattr(claims, "train_all", train_all)
    monkeypatch.setattr(claims, "metrics", lambda directory, **_: {"samples": directory, "source": "squares"})
    claims.claims(tmp_path, ["mixture", "relu", "not-regularised"], [0, 1], 7, None, CPU, console)
    assert [config.seed for config in asked.values()] == [0, 0, 0, 1, 1, 1]
    assert all([stage.epochs for stage in config.stages] == [7] for config in asked.values())
    assert asked["relu", 1].model.style == "group-relu-up-last"
    assert asked["not-regularised", 0].regularise is False
    saved = json.loads((tmp_path / "claims.json").read_text())
    assert {run["name"] for run in saved["runs"] if "samples" in run} == {"mixture", "not-regularised"}
    assert "relu" in console.export_text()


def test_an_unknown_variant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no variant sigmoid; choose among mixture, random-start"):
        claims.claims(tmp_path, ["sigmoid"], [0], 1, None, torch.device("cpu"), Console(quiet=True))
