"""Evaluation is one pass over all episodes: their mean, and its standard error."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tiny import CPU, DATA, MODELS, squares, tiny_run, tiny_trainer
from train.runs import TRAINED, trained
from vbmem.data import EpisodeSource
from vbmem.errors import DataError
from vbmem.models import FrameFormat, load_model, save_model
from vbmem.train import Evaluation, best_refinement, evaluate, make_model, make_source
from vbmem.train.evaluation import bits_per_dimension, change_memory, with_episode_length

each_model = pytest.mark.parametrize("model", TRAINED.values(), ids=TRAINED.keys())


def made(model, seed=0):
    """An evaluation of an untrained model with statistics of batch norm that are not the initial ones."""
    network = make_model(tiny_run(model, seed=seed), squares(), CPU)
    source = make_source(DATA, squares(), "train", seed=7, device=CPU)
    network.train()
    with torch.no_grad():
        network(next(source.epoch(0)))
    return Evaluation(network, source)


def seeded(evaluation, seed=0):
    torch.manual_seed(seed)
    return evaluation()


@each_model
def test_the_mean_and_its_standard_error_are_over_episodes(model):
    evaluation = made(model)
    result = seeded(evaluation)
    evaluation.model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        reports = [evaluation.model(frames).per_frame() for frames in evaluation.source.epoch(0)]
    assert result.keys() == {*reports[0], "standard_error", "episodes", "bits_per_dimension"}
    for name in reports[0]:
        values = np.concatenate([report[name].double().numpy() for report in reports])
        assert result[name] == pytest.approx(values.mean(), rel=1e-12)
    bounds = np.concatenate([report["elbo_per_frame"].double().numpy() for report in reports])
    assert result["standard_error"] == pytest.approx(bounds.std(ddof=1) / math.sqrt(len(bounds)), rel=1e-12)
    assert result["episodes"] == len(bounds) == 18


def test_one_pass_shows_every_picture_once(monkeypatch):
    evaluation = made(MODELS["vae"])
    shown = []
    original = EpisodeSource.frames

    def noted(source, indices, generator):
        shown.append(indices)
        return original(source, indices, generator)

    monkeypatch.setattr(EpisodeSource, "frames", noted)
    evaluation = Evaluation(evaluation.model, evaluation.source)
    evaluation()
    assert torch.cat(shown).flatten().sort().values.tolist() == list(range(72))


def test_every_evaluation_is_of_the_same_episodes(monkeypatch):
    evaluation, asked = made(MODELS["vae"]), []
    original = EpisodeSource.epoch_indices

    def noted(source, epoch):
        asked.append(epoch)
        return original(source, epoch)

    monkeypatch.setattr(EpisodeSource, "epoch_indices", noted)
    assert seeded(evaluation) == seeded(evaluation)
    assert asked == [0, 0]


@each_model
def test_the_seed_decides_the_outcome(model):
    evaluation = made(model)
    assert seeded(evaluation) == seeded(evaluation)
    assert seeded(evaluation) != seeded(evaluation, seed=1)


@each_model
def test_evaluation_leaves_the_model_as_it_was(model):
    evaluation = made(model)
    before = {name: tensor.clone() for name, tensor in evaluation.model.state_dict().items()}
    evaluation()
    assert all(torch.equal(tensor, before[name]) for name, tensor in evaluation.model.state_dict().items())
    assert all(parameter.grad is None for parameter in evaluation.model.parameters())
    assert torch.is_grad_enabled()


def test_evaluation_makes_no_gradients():
    evaluation = made(MODELS["mixture"])
    wanted = []
    evaluation.model.register_forward_hook(lambda *args: wanted.append(args[-1].elbo.requires_grad))
    evaluation()
    assert wanted == [False] * 9


@each_model
def test_evaluation_is_in_evaluation_mode(model):
    evaluation = made(model)
    evaluation.model.train()
    modes = []
    evaluation.model.register_forward_hook(lambda network, *_: modes.append({m.training for m in network.modules()}))
    evaluation()
    assert modes == [{False}] * 9


def test_batch_norm_uses_its_running_statistics():
    evaluation = made(MODELS["vae"])
    before = seeded(evaluation)["elbo_per_frame"]
    for name, buffer in evaluation.model.named_buffers():
        if name.endswith("running_mean"):
            buffer += 1
    assert abs(seeded(evaluation)["elbo_per_frame"] - before) > 0.1


def test_one_episode_has_no_standard_error():
    source = make_source(replace(DATA, batch_size=1, episode_length=8), squares(), "valid", seed=0, device=CPU)
    result = Evaluation(made(MODELS["vae"]).model, source)()
    assert result["episodes"] == 1
    assert math.isfinite(result["elbo_per_frame"])
    assert math.isnan(result["standard_error"])


def test_one_bad_episode_shows():
    """A bound that is not a number is not hidden by the mean of the others."""
    evaluation = made(MODELS["vae"])
    original = evaluation.model.forward

    def forward(frames):
        evidence = original(frames)
        evidence.log_likelihood[0] = math.nan
        return evidence

    evaluation.model.forward = forward
    assert math.isnan(evaluation()["elbo_per_frame"])


def test_a_model_that_sees_binary_frames_is_evaluated_on_binary_frames(tmp_path):
    """Saved and loaded, a model of grey pictures with a Bernoulli likelihood knows that its frames are rounded."""
    seen = []
    trained(tiny_run(data=replace(DATA, binary=True), epochs=1), tmp_path / "run")
    save_model(load_model(tmp_path / "run"), tmp_path / "saved")
    for name in ("run", "saved"):
        saved = load_model(tmp_path / name)
        assert saved.data is not None
        saved.network.register_forward_hook(lambda _, inputs, evidence: seen.append(inputs[0]))
        evaluate(saved.network, saved.data, squares(), "valid", saved.seed)
    assert seen
    assert all(((frames == 0) | (frames == 1)).all() for frames in seen)


def test_the_papers_best_bound_on_cifar10_is_6_31_bits_per_dimension():
    frame = FrameFormat(32, 3)
    assert bits_per_dimension(3593.7, frame) == pytest.approx(6.312, abs=1e-3)
    assert bits_per_dimension(0.0, frame) == 8  # the uniform density


def test_bits_per_dimension_follow_from_the_mean_bound():
    result = made(MODELS["vae"])()
    assert result["bits_per_dimension"] == 8 - result["elbo_per_frame"] / (64 * math.log(2))


@pytest.mark.parametrize("change", [{"binary": True}, {"episodes": "views"}])
def test_frames_that_are_no_dequantised_pixels_have_no_bits_per_dimension(change):
    data = replace(DATA, **change)
    network = make_model(tiny_run(data=data), squares(), CPU)
    assert "bits_per_dimension" not in evaluate(network, data, squares(), "valid", 0)


def test_only_training_is_augmented(tmp_path):
    """A validation, and an evaluation of any part, see the pictures as they are, and the same bits at every pass."""
    data = replace(DATA, binary=True, binarise="random", augment=("rotations", "affine"))
    made = tiny_trainer(tiny_run(data=data), tmp_path)
    assert len(made.source.images) == 4 * 72
    assert not torch.equal(*(made.source.frames(torch.arange(72)) for _ in range(2)))
    assert len(made.validate.source.images) == 8
    assert torch.equal(*(made.validate.source.frames(torch.arange(8)) for _ in range(2)))
    plain, augmented = (
        evaluate(made.model, which, squares(), "train", 0) for which in (replace(data, augment=()), data)
    )
    assert plain == augmented


@pytest.mark.parametrize(
    ("length", "batch_size"), [(640, 1), (1280, 1), (128, 6), (32, 26), (10_000, 1)], ids=lambda value: str(value)
)
def test_another_length_leaves_out_no_whole_episode_and_takes_no_larger_batches(length, batch_size):
    """Of the 10,000 test pictures of CIFAR-10, by a model trained on 16 x 64 frames."""
    data = with_episode_length(replace(DATA, batch_size=16, episode_length=64), length, 10_000)
    assert (data.episode_length, data.batch_size) == (length, batch_size)
    assert length * batch_size <= max(16 * 64, length)
    assert 10_000 // (length * batch_size) * batch_size == 10_000 // length


@pytest.mark.parametrize(("length", "reason"), [(0, "at least 1"), (-3, "at least 1"), (9, "needs as many pictures")])
def test_an_episode_of_no_frames_or_of_more_than_there_are_is_refused(length, reason):
    with pytest.raises(DataError, match=reason):
        with_episode_length(DATA, length, 8)


def test_episodes_of_repeats_may_be_longer_than_the_set():
    assert with_episode_length(replace(DATA, episodes="repeats"), 100, 8).episode_length == 100


def test_a_memory_of_other_sizes_has_the_same_prior_and_networks():
    network: Any = make_model(tiny_run(MODELS["mixture"]), squares(), CPU)
    before, weights = network.memory, {name: tensor.clone() for name, tensor in network.state_dict().items()}
    change_memory(network, clusters=7, rows=1, iterations=3)
    memory = network.scaled_memory()
    assert (memory.clusters, memory.rows, network.iterations) == (7, 1, 3)
    assert (memory.noise_var, memory.row_var, memory.loc_var) == (before.noise_var, before.row_var, before.loc_var)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())
    result = evaluate(network, DATA, squares(), "valid", 0)
    assert math.isfinite(result["elbo_per_frame"])


@pytest.mark.parametrize(
    ("model", "change", "reason"),
    [
        ("vae", {"clusters": 3, "start": "data"}, "clusters and start cannot be changed: a VAE has no memory"),
        ("dkm", {"rows": 3}, "rows cannot be changed: a DKM has no memory"),
        ("gaussian", {"clusters": 3}, "cannot change 'clusters'; it has rows"),
        ("mixture", {"clusters": 0}, "clusters must be a whole number of at least 1, got 0"),
        ("mixture", {"iterations": 0}, "iterations must be a whole number of at least 1, got 0"),
        ("mixture", {"start": "middle"}, "start must be one of prior, random, .* got 'middle'"),
    ],
)
def test_a_change_that_a_model_cannot_have_is_refused(model, change, reason):
    network = make_model(tiny_run(MODELS[model]), squares(), CPU)
    with pytest.raises(ValueError, match=reason):
        change_memory(network, **change)


def test_a_model_that_writes_in_one_pass_has_no_iterations_to_change():
    network = make_model(tiny_run(replace(MODELS["mixture"], objective="online")), squares(), CPU)
    with pytest.raises(ValueError, match="online writes in one pass"):
        change_memory(network, iterations=3)


# --- Refinement -------------------------------------------------------------------------------------------------------


def network_of(model):
    return make_model(tiny_run(model), squares(), CPU)


def test_a_refined_evaluation_is_another_bound_and_leaves_the_model_as_it_was():
    network = network_of(MODELS["mixture"])
    plain, refined, again = (evaluate(network, DATA, squares(), "valid", 0, share) for share in (0.0, 0.5, 0.0))
    assert plain == again != refined
    assert refined.keys() == plain.keys()
    assert network.refinement == 0


def test_the_best_share_is_that_of_the_validation_pictures(monkeypatch):
    network, seen = network_of(MODELS["vae"]), []

    def given(network, data, images, part, seed, refine, trained_on):
        seen.append((part, seed, refine))
        return {"elbo_per_frame": -((refine - 0.42) ** 2)}

    monkeypatch.setattr("vbmem.train.evaluation.evaluate", given)
    assert best_refinement(network, DATA, squares(), 3) == 0.4
    assert seen == [("valid", 3, tenths / 10) for tenths in range(10)]


@pytest.mark.parametrize(
    ("model", "share", "said"),
    [
        ("dkm", 0.3, r"a DKM cannot be refined: it has no q\(z\) whose mean could move"),
        ("vae", -0.1, "refine must lie between 0 and 1, got -0.1"),
        ("vae", 1.5, "refine must lie between 0 and 1, got 1.5"),
    ],
)
def test_what_cannot_be_refined_is_refused(model, share, said):
    with pytest.raises(ValueError, match=said):
        evaluate(network_of(MODELS[model]), DATA, squares(), "test", 0, share)


def test_the_parts_are_those_that_the_model_was_trained_with_whatever_episodes_it_is_shown():
    plain = squares()
    images = replace(
        plain, y_train=np.arange(len(plain.x_train)) % 5, x_valid=plain.x_train[:40], y_valid=np.zeros(40, int)
    )
    by_label = replace(DATA, episodes="by-label")
    sources = [
        make_source(data, images, "valid", 0, CPU, trained_on=trained_on)
        for data, trained_on in [(by_label, None), (DATA, by_label), (DATA, None)]
    ]
    assert [len(source.images) for source in sources] == [40, 40, len(plain.x_train) // 10]


def test_all_models_are_evaluated_on_the_same_views():
    seen: dict[str, list[torch.Tensor]] = {}
    data = replace(DATA, episodes="views", sources_per_episode=2)
    for name in ("vae", "mixture"):
        network = make_model(replace(tiny_run(MODELS[name]), data=data), squares(), CPU)
        network.register_forward_pre_hook(lambda _, inputs, name=name: seen.setdefault(name, []).append(inputs[0]))
        evaluate(network, data, squares(), "train", seed=0)
    assert len(seen["vae"]) > 1
    assert all(torch.equal(one, other) for one, other in zip(seen["vae"], seen["mixture"], strict=True))
