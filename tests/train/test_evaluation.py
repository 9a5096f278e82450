"""Evaluation is one pass over all episodes: their mean, and its standard error."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from tiny import CPU, DATA, MODELS, squares, tiny_run
from train.runs import TRAINED, trained
from vbmem.data import EpisodeSource
from vbmem.models import load_model, save_model
from vbmem.train import Evaluation, evaluate, make_model, make_source

each_model = pytest.mark.parametrize("model", TRAINED.values(), ids=TRAINED.keys())


def made(model, seed=0):
    """An evaluation of an untrained model with statistics of batch norm that are not the initial ones."""
    network = make_model(tiny_run(model, seed=seed), squares(), CPU)
    source = make_source(DATA, squares(), "train", seed=7, device=CPU)
    network.train()
    with torch.no_grad():
        network(next(source.epoch(0)))
    return Evaluation(network, source)


def seeded(evaluation, epoch=0, seed=0):
    torch.manual_seed(seed)
    return evaluation(epoch)


@each_model
def test_the_mean_and_its_standard_error_are_over_episodes(model):
    evaluation = made(model)
    result = seeded(evaluation, epoch=3)
    evaluation.model.eval()
    torch.manual_seed(0)
    with torch.no_grad():
        reports = [evaluation.model(frames).per_frame() for frames in evaluation.source.epoch(3)]
    assert result.keys() == {*reports[0], "standard_error", "episodes"}
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

    def noted(source, indices):
        shown.append(indices)
        return original(source, indices)

    monkeypatch.setattr(EpisodeSource, "frames", noted)
    evaluation = Evaluation(evaluation.model, evaluation.source)
    evaluation(0)
    assert torch.cat(shown).flatten().sort().values.tolist() == list(range(72))


def test_the_epoch_chooses_the_episodes():
    evaluation = made(MODELS["vae"])
    assert seeded(evaluation, epoch=0) != seeded(evaluation, epoch=1)


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
