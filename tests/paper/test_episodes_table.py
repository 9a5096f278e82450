"""The study of when a memory pays: its cells, its summary, its figure."""

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from tiny import CPU
from vbmem.nets import FrameFormat
from vbmem.paper import episodes_table as study
from vbmem.paper.episodes_table import (
    KINDS,
    MEMORIES,
    MODELS,
    WITHOUT,
    draw,
    episodes_table,
    on_test_episodes,
    run_of,
    summarise,
)
from vbmem.train.settings import RunConfig


def made_up_run(name, seed, bound):
    return {"name": name, "seed": seed, "test": {"elbo_per_frame": bound, "kl_codes": 1.0 * seed}}


@pytest.mark.parametrize("kind", KINDS)
def test_all_models_of_a_kind_are_trained_on_the_same_episodes_for_as_long(kind):
    runs = [run_of(kind, model, 3) for model in KINDS[kind].models]
    data = [replace(run.data, sources_per_episode=4) for run in runs]
    assert set(data) == {KINDS[kind].data}
    assert len({(run.stages, run.warm_up, run.patience, run.seed) for run in runs}) == 1
    assert len({run.model for run in runs}) == len(runs) >= len(MODELS) - 1
    assert len({(run.model.code_size, run.model.filters, run.model.style) for run in runs}) == 1


@pytest.mark.parametrize("kind", ["views", "repeats"])
def test_where_pictures_come_again_a_model_without_a_memory_learns_from_as_many_as_it_can(kind):
    for model in MODELS:
        sources = run_of(kind, model, 0).data.sources_per_episode
        assert sources == 64 if model in WITHOUT else 4 < sources <= 64


def test_all_are_tested_on_the_episodes_of_their_kind_whatever_they_were_trained_on(monkeypatch):
    network: Any = object()
    images: Any = object()
    monkeypatch.setattr(study, "evaluate", lambda network, *rest: rest)
    for model in ("vae", "mixture"):
        asked = on_test_episodes(network, run_of("repeats", model, 3), images)
        assert asked == {"test": (KINDS["repeats"].data, images, "test", 3)}


def own_size_of(kind, model):
    built: Any = replace(run_of(kind, model, 0).model, filters=4).build(FrameFormat(8, 1, "bernoulli"))
    assert built.content_size + built.config.own_size == built.config.code_size
    assert bool(built.prior_scales) == bool(built.config.own_size)
    return built.config.own_size


@pytest.mark.parametrize("model", MEMORIES)
def test_memory_models_write_the_whole_code_of_a_picture_but_for_the_one_that_contains_the_vae(model):
    assert own_size_of("views", model) == (100 if model == "part" else 0)


@pytest.mark.parametrize("model", [model for model in KINDS["character"].models if model in MEMORIES])
def test_most_of_the_code_of_a_character_is_the_frames_own(model):
    assert own_size_of("character", model) == 128


def test_where_every_memory_writes_a_part_of_the_code_there_is_no_further_one_that_does():
    assert set(MODELS) - set(KINDS["character"].models) == {"part"}
    assert KINDS["person"].models == MODELS


def test_leads_are_those_over_the_vae_seed_by_seed():
    bounds = {("views-vae", 0): 10.0, ("views-vae", 1): 20.0, ("views-mixture", 0): 13.0, ("views-mixture", 1): 27.0}
    summary = summarise([made_up_run(*run, bound) for run, bound in bounds.items()])
    assert list(summary) == ["views"]
    row = summary["views"]["mixture"]
    assert row["lead"] == {"mean": 5.0, "std": pytest.approx(2.828, abs=1e-3)}
    assert row["elbo_per_frame"]["mean"] == 20.0
    assert (row["kl_codes"]["mean"], row["seeds"]) == (0.5, 2)


def test_without_a_vae_there_is_no_lead():
    summary = summarise([made_up_run("label-shifted", 0, 1.0)])
    assert summary["label"]["shifted"]["lead"] is None
    assert draw(summary).axes


def test_a_figure_has_a_panel_for_every_kind_and_a_bar_for_every_other_model():
    bounds = {(f"{kind}-{model}", 0): 1.0 for kind in ("views", "label") for model in MODELS}
    figure = draw(summarise([made_up_run(*run, bound) for run, bound in bounds.items()]))
    assert [len(panel.patches) for panel in figure.axes] == [len(MODELS) - 1] * 2


def test_characters_have_a_scale_of_their_own_in_a_figure_and_pictures_share_one():
    bounds = {"shuffled": 100.0, "views": 200.0, "character": 3.0}
    runs = [
        made_up_run(f"{kind}-{model}", 0, lead * (model != "vae")) for kind, lead in bounds.items() for model in MODELS
    ]
    pictures, more_pictures, characters = draw(summarise(runs)).axes
    assert pictures.get_ylim() == more_pictures.get_ylim()
    assert pictures.get_ylim()[1] > 200
    assert 3 < characters.get_ylim()[1] < 10


def test_numbers_and_figure_are_left_and_shown(tmp_path, monkeypatch):
    asked: dict[Any, RunConfig] = {}

    def train_all(runs, *rest):
        asked.update(runs)
        return [made_up_run(run.name, run.seed, 5.0 * run.seed) for run in runs]

    monkeypatch.setattr(study, "train_all", train_all)
    console = Console(record=True, width=120)
    episodes_table(tmp_path, ["views", "shuffled"], ["vae", "tree"], [0, 1], None, CPU, console)
    assert len(asked) == 8
    assert set(json.loads((tmp_path / "episodes.json").read_text())) == {"views", "shuffled"}
    assert (tmp_path / "episodes.png").stat().st_size > 1000
    assert "nothing" in console.export_text()


@pytest.mark.parametrize(("kinds", "models", "what"), [(["tunes"], ["vae"], "kind"), (["views"], ["gan"], "model")])
def test_what_there_is_not_is_refused(kinds, models, what, tmp_path):
    with pytest.raises(ValueError, match=f"there is no {what}.*; choose among"):
        episodes_table(tmp_path, kinds, models, [0], None, CPU, Console(quiet=True))
