"""Few-shot evaluation: episodes and trials of one character each, bounds, rules of classification, and the whole."""

import io
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor

from tiny import MEMORY_MODELS, MODELS, noise, seeded, tiny_model, tiny_network
from vbmem.data import EpisodeSource, ImageSet
from vbmem.data.settings import DataConfig
from vbmem.errors import DataError, ModelError
from vbmem.memory.written import WrittenMemory
from vbmem.models.base import normal_kl
from vbmem.models.memory_model import MemoryModel
from vbmem.nets import CodePosterior
from vbmem.paper import few_shot as module
from vbmem.paper.few_shot import PUBLISHED, few_shot, sheet
from vbmem.paper.few_shot.bounds import character_bounds, mean_and_error
from vbmem.paper.few_shot.characters import Characters
from vbmem.paper.few_shot.classification import (
    accuracies,
    highest_predictive,
    least_divergence,
    memory_of_means,
    nearest_mean,
    nearest_picture,
    rules_of,
)
from vbmem.paper.figures import SCALE
from vbmem.pretrained import Baseline, Model
from vbmem.sheets import GAP, TITLE

LABELS, DRAWINGS, SIDE = 21, 20, 8
NUMBERS = np.random.default_rng(0).permutation(np.repeat(np.arange(100, 100 + LABELS), DRAWINGS))
UNEVEN = np.repeat(np.arange(6), [3, 7, 5, 1, 8, 6])
each_memory = pytest.mark.parametrize("kind", MEMORY_MODELS)
each_model = pytest.mark.parametrize("kind", MODELS)


def clusters_of_codes(spread: float, size: int = 6) -> tuple[Tensor, Characters]:
    """Codes [N, C] around a centre for every label of `NUMBERS`, and their characters."""
    centres = torch.randn(LABELS, size, generator=seeded(1))
    codes = centres[torch.from_numpy(NUMBERS - 100)] + spread * torch.randn(len(NUMBERS), size, generator=seeded(2))
    return codes, Characters.of(NUMBERS)


def pictures(count: int = len(NUMBERS)) -> np.ndarray:
    return noise(count, SIDE, channels=1)


# --- Episodes and trials --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 5, 20])
def test_every_picture_is_in_one_episode_of_its_own_character(size):
    episodes, owners = Characters.of(NUMBERS).episodes(size, seeded())
    assert episodes.flatten().sort().values.tolist() == list(range(len(NUMBERS)))
    assert (torch.from_numpy(NUMBERS)[episodes] - 100 == owners.unsqueeze(-1)).all()


def test_what_fills_no_episode_is_left_out_with_characters_of_too_few_drawings():
    episodes, owners = Characters.of(UNEVEN).episodes(3, seeded())
    labels = UNEVEN[episodes]
    assert (labels == labels[:, :1]).all()
    assert labels[:, 0].tolist() == [0, 1, 1, 2, 4, 4, 5, 5]
    assert owners.tolist() == [0, 1, 1, 2, 3, 3, 4, 4]
    assert len(episodes.unique()) == episodes.numel()


@pytest.mark.parametrize("size", [4, 8, 20])
def test_characters_that_are_mixed_share_every_episode_evenly_and_meet_no_others(size):
    episodes, groups = Characters.of(NUMBERS).episodes(size, seeded(), mixed=4)
    assert episodes.shape == (20 * 20 // size, size)  # the 21st character is left over
    assert len(episodes.unique()) == episodes.numel()
    labels = np.sort(NUMBERS[episodes] - 100).reshape(len(episodes), 4, -1)
    assert (labels == labels[..., :1]).all()
    met = {(int(group), *characters) for group, characters in zip(groups, labels[..., 0].tolist(), strict=True)}
    assert met == {(group, group, group + 5, group + 10, group + 15) for group in range(5)}


def test_a_group_has_as_many_episodes_as_the_character_with_the_fewest_drawings():
    episodes, groups = Characters.of(UNEVEN).episodes(4, seeded(), mixed=2)
    assert np.sort(UNEVEN[episodes]).tolist() == [[0, 0, 2, 2]] + 3 * [[1, 1, 4, 4]]
    assert groups.tolist() == [0, 1, 1, 1]


def test_a_trial_shows_different_characters_and_no_drawing_twice():
    trials = Characters.of(UNEVEN).trials(way=3, shots=4, count=200, generator=seeded())
    assert trials.shape == (200, 3, 5)
    labels = UNEVEN[trials]
    assert (labels == labels[..., :1]).all()
    assert set(labels.flatten()) == {1, 2, 4, 5}  # those with five drawings
    assert all(len(set(classes)) == 3 for classes in labels[..., 0].tolist())
    assert all(len(trial.unique()) == 15 for trial in trials)
    assert set(trials.flatten().tolist()) == set(np.flatnonzero(np.isin(UNEVEN, [1, 2, 4, 5])))


def test_too_few_drawings_or_characters_are_refused():
    with pytest.raises(DataError, match="9 pictures of one label are needed, and no label has more than 8"):
        Characters.of(UNEVEN).episodes(9, seeded())
    with pytest.raises(DataError, match="4 labels with 6 pictures each are needed at a time, and there are 3"):
        Characters.of(UNEVEN).episodes(24, seeded(), mixed=4)
    with pytest.raises(DataError, match=r"5 labels with 5 pictures each are needed .* there are 4"):
        Characters.of(UNEVEN).trials(5, 4, 1, seeded())


# --- Bounds ---------------------------------------------------------------------------------------------------------


def source_of(images: np.ndarray, **settings: Any) -> EpisodeSource:
    return EpisodeSource(images, DataConfig("noise", batch_size=1, episode_length=1, **settings))


@each_model
def test_a_characters_bound_is_the_mean_over_its_episodes_with_every_divergence_charged(kind, monkeypatch):
    network, source = tiny_network(kind, "bernoulli", 1, SIDE, spread=0.03), source_of(pictures(30), binary=True)
    seen = []
    network.register_forward_hook(lambda *args: seen.append(args[-1]))
    monkeypatch.setattr("vbmem.paper.few_shot.bounds.FRAMES_ON_CPU", 7)  # several batches
    reports = character_bounds(network, source, Characters.of(UNEVEN), 3, seed=0)
    assert len(seen) == 4
    elbo = torch.cat([evidence.log_likelihood - sum(evidence.divergences.values()) for evidence in seen]).double() / 3
    _, owners = Characters.of(UNEVEN).episodes(3, seeded())
    expected = [elbo[owners == owner].mean() for owner in range(5)]
    torch.testing.assert_close(reports["elbo_per_frame"], torch.stack(expected))
    charged = sum(value for name, value in reports.items() if name in seen[0].divergences)
    torch.testing.assert_close(reports["elbo_per_frame"], reports["log_likelihood"] - charged, rtol=1e-5, atol=1e-5)


@each_model
def test_the_bound_of_characters_mixed_is_that_of_their_group(kind):
    network, source = tiny_network(kind, "bernoulli", 1, SIDE, spread=0.03), source_of(pictures(), binary=True)
    seen = []
    network.register_forward_hook(lambda *args: seen.append(args[-1].per_frame()["elbo_per_frame"]))
    reports = character_bounds(network, source, Characters.of(NUMBERS), 20, seed=0, mixed=4)
    torch.testing.assert_close(reports["elbo_per_frame"], torch.cat(seen).view(5, 4).double().mean(-1))


def test_a_memory_gets_as_many_clusters_as_characters_are_mixed():
    network, source = tiny_network("mixture", "bernoulli", 1, SIDE, spread=0.03), source_of(pictures(), binary=True)
    assert isinstance(network, MemoryModel)
    network.memory = network.memory.resize(clusters=1)
    resized = character_bounds(network, source, Characters.of(NUMBERS), 20, seed=0, mixed=4)
    assert network.memory.layout[0] == 1
    network.memory = network.memory.resize(clusters=4)
    given = character_bounds(network, source, Characters.of(NUMBERS), 20, seed=0, mixed=4)
    torch.testing.assert_close(resized, given)


def test_all_models_see_the_same_frames():
    seen: list[list[Tensor]] = [[], []]
    for frames, kind in zip(seen, ("vae", "mixture"), strict=True):
        network = tiny_network(kind, channels=1, size=SIDE)
        network.register_forward_hook(lambda _, inputs, __, kept=frames: kept.append(inputs[0]))
        character_bounds(network, source_of(pictures(30)), Characters.of(UNEVEN), 2, seed=3)  # dequantised
    assert torch.equal(torch.cat(seen[0]), torch.cat(seen[1]))


def test_the_seed_decides_the_bounds():
    network, source, characters = tiny_network("mixture", channels=1), source_of(pictures(30)), Characters.of(UNEVEN)
    first, again, other = (character_bounds(network, source, characters, 2, seed) for seed in (0, 0, 1))
    assert torch.equal(first["elbo_per_frame"], again["elbo_per_frame"])
    assert not torch.equal(first["elbo_per_frame"], other["elbo_per_frame"])


def test_the_standard_error_is_the_spread_over_the_root_of_the_number():
    assert mean_and_error(torch.tensor([1.0, 3.0, 8.0])) == pytest.approx(
        {"mean": 4, "standard_error": 13**0.5 / 3**0.5}
    )


# --- Classification -------------------------------------------------------------------------------------------------


def rules(codes: Tensor, kind: str) -> dict[str, Any]:
    memory = tiny_network(kind, code_size=codes.shape[-1]).memory.with_prior(noise_var=1e-3)
    return {
        "predictive": highest_predictive(memory, codes),
        "picture": nearest_picture(codes),
        "mean": nearest_mean(codes),
        "context": least_divergence(lambda x: CodePosterior(x.mean(-2), torch.ones_like(x[..., 0, :])), codes),
    }


@each_memory
@pytest.mark.parametrize("shots", [1, 3])
def test_well_separated_codes_are_all_told_apart(kind, shots):
    codes, characters = clusters_of_codes(spread=0.001)
    trials = characters.trials(20, shots, 5, seeded())
    for rule in rules(codes, kind).values():
        assert (accuracies(rule, trials) == 1).all()


@each_memory
def test_shuffled_labels_leave_nothing_but_chance(kind):
    codes, characters = clusters_of_codes(spread=0.001)
    shuffled = codes[torch.randperm(len(codes), generator=seeded())]
    trials = characters.trials(5, 2, 200, seeded())
    for rule in rules(shuffled, kind).values():
        assert accuracies(rule, trials).mean() == pytest.approx(0.2, abs=0.06)


def test_the_accuracy_of_a_trial_is_the_share_of_its_queries_given_to_their_class():
    trials = Characters.of(NUMBERS).trials(4, 1, 120, seeded())  # more than are classified at a time
    first_class = accuracies(lambda shots, queries: -torch.arange(4.0)[None, :, None].expand(len(shots), 4, 4), trials)
    own_class = accuracies(lambda shots, queries: torch.eye(4).expand(len(shots), 4, 4), trials)
    assert first_class.tolist() == [0.25] * 120
    assert own_class.tolist() == [1.0] * 120


@pytest.mark.parametrize("kind", ["gaussian", "categorical", "shifted", "mixture"])
def test_the_predictive_density_is_that_of_a_memory_written_by_itself(kind):
    codes, characters = clusters_of_codes(spread=0.5)
    memory = tiny_network(kind, code_size=6).scaled_memory()
    for trial in characters.trials(1, 4, 5, seeded()):
        torch.manual_seed(0)  # where the rows start
        found = highest_predictive(memory, codes, 5, "ward")(trial[None, :, :-1], trial[None, :, -1])
        torch.manual_seed(0)
        alone = WrittenMemory.write(memory, codes[trial[0, :-1]], 5, start="ward")
        torch.testing.assert_close(found[0, 0], alone.log_predictive(codes[trial[:, -1]]), rtol=1e-4, atol=1e-4)


def test_means_have_the_noise_that_the_variance_of_codes_leaves():
    memory = tiny_network("shifted", code_size=3).memory.with_prior(noise_var=0.5)
    variances = torch.tensor([[0.1, 0.3, 0.9], [0.3, 0.1, 0.7]])
    torch.testing.assert_close(memory_of_means(memory, variances).noise_var, torch.tensor([0.3, 0.3, 0.005]))
    codes, characters = clusters_of_codes(spread=0.05, size=3)
    noisy = memory.with_prior(noise_var=1.0)  # of codes whose q(z) has most of that for its variance
    trials = characters.trials(20, 1, 20, seeded())
    plain, fitting = (
        accuracies(highest_predictive(memory, codes), trials).mean()
        for memory in (noisy, memory_of_means(noisy, torch.full_like(codes, 1 - 0.05**2)))
    )
    assert fitting > plain + 0.1


def test_contexts_are_compared_by_their_divergence():
    network = tiny_network("statistician")
    embeddings = torch.randn(len(NUMBERS), 8, generator=seeded())
    trials = Characters.of(NUMBERS).trials(4, 3, 1, seeded())
    found = least_divergence(network.infer_context, embeddings)(trials[..., :-1], trials[..., -1])[0]
    classes = network.infer_context(embeddings[trials[0, :, :-1]])
    for number, query in enumerate(trials[0, :, -1]):
        single = network.infer_context(embeddings[query][None, None])
        divergence = normal_kl(classes, single).double()
        torch.testing.assert_close(
            found[:, number] - found[0, number], divergence[0] - divergence, rtol=1e-4, atol=1e-4
        )


def test_neighbours_are_the_nearest_picture_and_the_nearest_mean():
    codes = torch.tensor([[0.0], [10.0], [4.0], [4.5], [9.0], [4.9]])
    shots, queries = torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[4, 5]])
    assert nearest_picture(codes)(shots, queries)[0].tolist() == pytest.approx(np.array([[-1, -4.9], [-4.5, -0.4]]))
    assert nearest_mean(codes)(shots, queries)[0].tolist() == pytest.approx(np.array([[-4, -0.1], [-4.75, -0.65]]))


@each_model
def test_every_kind_of_model_has_its_rules(kind):
    own = {"vae": set(), "dkm": set(), "statistician": {"context divergence"}}.get(
        kind, {"predictive density", "predictive density of means"}
    )
    found = rules_of(tiny_network(kind, "bernoulli", 1, SIDE, spread=0.03), source_of(pictures(), binary=True), seed=0)
    assert found.keys() == own | {"nearest picture", "nearest mean"}
    trials = Characters.of(NUMBERS).trials(5, 2, 3, seeded())
    assert all(accuracies(rule, trials).shape == (3,) for rule in found.values())


# --- The whole ------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "characters.npz"
    ImageSet("characters", 255 - pictures(10), x_test=pictures(), y_test=NUMBERS).save(path)
    return DataConfig(str(path), binary=True, episodes="by-label")


@pytest.fixture(autouse=True)
def _tiny_models(monkeypatch, request):
    """Models are called by their kind, and a word after it."""

    def load(name: str, device: object = "cpu") -> Model | Baseline:
        kind, data = name.split()[0], request.getfixturevalue("data")
        if kind in MEMORY_MODELS:
            return replace(tiny_model(kind, "bernoulli", 1, SIDE, called=name), data=data)
        return Baseline(tiny_network(kind, "bernoulli", 1, SIDE, spread=0.03), name, data)

    monkeypatch.setattr(module, "load_any", load)


def evaluated(*models: str, **options: Any) -> tuple[dict[str, Any], str]:
    """The result, and what is shown."""
    console = Console(record=True, file=io.StringIO(), width=200)
    settings: dict[str, Any] = {"trials": 4, "sizes": (2, 5), "tasks": ((20, 1), (5, 2)), "data_dir": None} | options
    return few_shot(models, console=console, **settings), console.export_text()


def test_models_are_measured_on_bounds_and_classification_beside_the_published_numbers():
    result, shown = evaluated("shifted", "statistician", "dkm")
    assert json.dumps(result, allow_nan=False)
    assert result["data"] == {"dataset": "characters", "split": "test", "pictures": 420, "labels": 21}
    assert list(result["models"]) == ["shifted", "statistician", "dkm"]
    for model in result["models"].values():
        assert list(model["bound"]) == ["2", "5"]
        for task in model["classification"].values():
            assert list(task) == ["20-way 1-shot", "5-way 2-shot"]
            assert all(0 <= cell["mean"] <= 100 for cell in task.values())
    bound = result["models"]["shifted"]["bound"]["5"]["elbo_per_frame"]
    assert f"{bound['mean']:.1f} ± {bound['standard_error']:.1f}" in shown
    for text in ("predictive density", "context divergence", "-96.3", "Prototypical Networks", "shifted less dkm"):
        assert text in shown


def test_four_characters_are_mixed_where_the_size_allows_it():
    result, shown = evaluated("mixture", "statistician", sizes=(2, 8))
    for model in result["models"].values():
        assert list(model["bound"]) == ["2", "8", "8 of 4 characters"]
    bounds, (difference,) = result["models"]["mixture"]["bound"], result["differences"]
    for found in (bounds["8 of 4 characters"]["elbo_per_frame"], difference["8 of 4 characters"]):
        assert f"{found['mean']:.1f} ± {found['standard_error']:.1f}" in shown


def test_differences_are_paired_with_the_first_model():
    result, _ = evaluated("mixture", "mixture again", "vae")
    same, other = result["differences"]
    assert (same["first"], same["other"], other["other"]) == ("mixture", "mixture again", "vae")
    assert same["2"] == same["5"] == {"mean": 0, "standard_error": 0}
    first, vae = (result["models"][name]["bound"]["5"]["elbo_per_frame"] for name in ("mixture", "vae"))
    assert other["5"]["mean"] == pytest.approx(first["mean"] - vae["mean"])
    assert other["5"]["standard_error"] > 0


def test_frames_can_be_made_binary_in_another_way_than_in_training():
    rounded, random = (evaluated("vae", binarise=way)[0] for way in ("rounded", "random"))
    assert rounded["settings"]["binarise"] == "rounded"
    bounds = [found["models"]["vae"]["bound"]["5"]["elbo_per_frame"]["mean"] for found in (rounded, random)]
    assert bounds[0] != bounds[1]
    assert bounds[0] == evaluated("vae")[0]["models"]["vae"]["bound"]["5"]["elbo_per_frame"]["mean"]


def test_models_trained_on_other_bits_are_compared_only_if_told_on_which(monkeypatch, data):
    rounded = Baseline(tiny_network("vae", "bernoulli", 1, SIDE), "vae", data)
    random = replace(rounded, data=replace(data, binarise="random"))
    monkeypatch.setattr(module, "load_any", lambda name, device: {"first": rounded, "other": random}[name])
    with pytest.raises(ModelError, match=r"first \(rounded\) and other \(random\) were trained on pixels made binary"):
        evaluated("first", "other")
    result, _ = evaluated("first", "other", binarise="random")
    assert result["differences"][0]["5"] == {"mean": 0, "standard_error": 0}


def test_models_of_grey_and_of_binary_pixels_are_not_compared(monkeypatch, data):
    binary = Baseline(tiny_network("vae", "bernoulli", 1, SIDE), "vae", data)
    grey = Baseline(tiny_network("vae", channels=1, size=SIDE), "vae", replace(data, binary=False))
    monkeypatch.setattr(module, "load_any", lambda name, device: {"first": binary, "other": grey}[name])
    with pytest.raises(ModelError, match=r"first \(rounded\) and other \(grey\) were trained on pixels made binary"):
        evaluated("first", "other")


def test_one_model_has_no_differences():
    result, shown = evaluated("vae")
    assert result["differences"] == []
    assert "difference" not in shown


def test_the_published_numbers_are_those_of_the_papers():
    assert PUBLISHED["bound"]["Neural Statistician"] == {"5": -96.3, "20": -94.4}
    assert PUBLISHED["bound"]["SCHA-VAE, best variant"] == {"5": -88.4, "20": -86.0}
    assert PUBLISHED["classification"]["Neural Statistician"]["20-way 1-shot"] == 93.2
    assert PUBLISHED["classification"]["Matching Networks"]["20-way 5-shot"] == 98.5
    assert PUBLISHED["classification"]["Prototypical Networks"]["20-way 1-shot"] == 96.0


@pytest.mark.parametrize("kind", ["mixture", "statistician"])
def test_the_picture_shows_characters_above_and_what_the_model_draws_below(kind, tmp_path):
    path = tmp_path / "new" / "sheet.png"
    evaluated(kind, picture=path)
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("L"))
    rows, columns = sheet.SHOTS + sheet.DRAWN, sheet.CHARACTERS
    assert pixels.shape[0] == rows * (SIDE + 1) * SCALE + 2 * SCALE + 2 * TITLE + GAP
    assert pixels.shape[1] >= columns * (SIDE + 1) * SCALE + SCALE
    first = pixels[TITLE + SCALE :: SCALE, SCALE::SCALE][:SIDE, :SIDE]
    assert (np.abs(pictures()[..., 0].astype(int) - first).max((1, 2)) == 0).sum() == 1


def test_models_of_other_pictures_or_of_none_are_refused(monkeypatch, data):
    loaded = Baseline(tiny_network("vae", "bernoulli", 1, SIDE), "vae", data)
    others = {"none": replace(loaded, data=None), "other": replace(loaded, data=replace(data, dataset="mnist"))}
    monkeypatch.setattr(module, "load_any", lambda name, device: others.get(name, loaded))
    with pytest.raises(ModelError, match="none does not say what it was trained on"):
        evaluated("none")
    with pytest.raises(ModelError, match="vae and other were trained on different pictures"):
        evaluated("vae", "other")
    with pytest.raises(ModelError, match="no model was given"):
        evaluated()


def test_pictures_without_labels_are_refused(data):
    ImageSet("plain", pictures(10), x_test=pictures()).save(data.dataset)
    with pytest.raises(DataError, match="plain have no labels"):
        evaluated("vae")


def test_the_command_leaves_numbers_and_a_picture(run, tmp_path):
    out, picture = tmp_path / "few.json", tmp_path / "few.png"
    code, shown, err = run("few-shot", "shifted", "vae", "--trials", "2", "--out", str(out), "--picture", str(picture))
    assert (code, err) == (0, "")
    assert "shifted" in shown
    assert picture.exists()
    result = json.loads(out.read_text())
    assert list(result["models"]["vae"]["bound"]) == ["2", "5", "10", "20", "20 of 4 characters"]
    assert result["settings"] == {"trials": 2, "seed": 0, "binarise": "as in training"}
