"""Training learns, tells what it learns, and keeps the best of it."""

import math
from dataclasses import replace

import pytest
import torch

from tiny import CPU, DATA, MODELS, squares, tiny_run, tiny_trainer
from train.runs import TRAINED, GivenBounds, log_lines, trained
from vbmem.errors import ModelError
from vbmem.models import FrameFormat, load_model
from vbmem.models.directory import read_weights
from vbmem.train import Evaluation, Stage, make_model, make_source, read_run
from vbmem.train.checkpoint import load_checkpoint


@pytest.mark.parametrize("model", TRAINED.values(), ids=TRAINED.keys())
def test_training_raises_the_bound(model, tmp_path):
    made = trained(tiny_run(model, epochs=6), tmp_path)
    lines = log_lines(tmp_path)
    assert lines[-1]["train"]["elbo_per_frame"] > lines[0]["train"]["elbo_per_frame"] + 10
    assert made.progress.best == max(line["valid"]["elbo_per_frame"] for line in lines)
    assert made.progress.best > lines[0]["valid"]["elbo_per_frame"]


def test_a_run_returns_its_best_validation_bound(tmp_path):
    made = tiny_trainer(tiny_run(), tmp_path)
    GivenBounds(made, [1.0, 4.0, 3.0, 2.0])
    assert made.run() == 4.0


def test_the_log_has_a_line_an_epoch(tmp_path):
    made = trained(tiny_run(MODELS["mixture"], epochs=3), tmp_path)
    lines = log_lines(tmp_path)
    assert [(line["event"], line["epoch"], line["stage"]) for line in lines] == [("epoch", n, 0) for n in (1, 2, 3)]
    for line in lines:
        assert line["skipped_steps"] == 0
        for part in ("train", "valid"):
            terms = line[part]
            divergences = sum(value for name, value in terms.items() if name.startswith("kl_"))
            assert terms["elbo_per_frame"] == pytest.approx(terms["log_likelihood"] - divergences, rel=1e-5, abs=1e-4)
            assert {"memory_share", "memory_kl", "kl_codes"} < terms.keys()
        assert line["valid"].keys() - line["train"].keys() == {"standard_error", "episodes", "bits_per_dimension"}
        assert line["valid"]["episodes"] == 2
    seconds = [line["seconds"] for line in lines]
    assert 0 < seconds[0] < seconds[1] < seconds[2] == made.progress.seconds


def test_the_screen_has_a_line_an_epoch_and_marks_the_better_ones(tmp_path):
    made = tiny_trainer(tiny_run(epochs=3), tmp_path)
    GivenBounds(made, [-7.0, -3.25, -4.0])
    made.run()
    lines = [line for line in made.console.file.getvalue().splitlines() if "valid" in line]
    assert [line.split()[:2] for line in lines] == [["epoch", "1"], ["epoch", "2"], ["epoch", "3"]]
    assert "valid     -3.25 +- 0.00 nats a frame" in lines[1]
    assert [line.endswith("*") for line in lines] == [True, True, False]


def test_the_best_weights_give_the_bound_they_were_kept_for(tmp_path):
    made = tiny_trainer(tiny_run(epochs=5), tmp_path)
    states = []

    def recorded():
        states.append(torch.get_rng_state())
        return Evaluation(made.model, made.validate_source)()

    made.validate_source = made.validate.source
    made.validate = recorded
    bound = made.run()
    model = load_model(tmp_path).network
    best = made.progress.best_epoch - 1
    torch.set_rng_state(states[best])
    again = Evaluation(model, make_source(DATA, squares(), "valid", seed=1, device=CPU))()
    assert again["elbo_per_frame"] == bound
    assert again == log_lines(tmp_path)[best]["valid"]


def test_the_best_weights_are_kept_and_the_last_ones_too(tmp_path):
    """The best as they were validated; the last with batch norm's running statistics, as training goes on from."""
    made = tiny_trainer(tiny_run(), tmp_path)
    given, fresh, trained_weights = GivenBounds(made, [1.0, 3.0, 2.0, 2.5]), made.fresh_statistics, []

    def recorded(batches):
        trained_weights.append({name: tensor.clone() for name, tensor in made.model.state_dict().items()})
        return fresh(batches)

    made.fresh_statistics = recorded
    made.run()
    groups, progress = load_checkpoint(tmp_path / "last.safetensors")
    best, last = read_weights(tmp_path), groups["model"]
    for name, weights, expected in (("best", best, given.weights[1]), ("last", last, trained_weights[3])):
        assert weights.keys() == expected.keys()
        different = [key for key in weights if not torch.equal(weights[key], expected[key])]
        assert all(key.endswith("num_batches_tracked") for key in different), name
    assert (progress.best, progress.best_epoch, progress.epoch) == (3.0, 2, 4)
    assert load_model(tmp_path).card["validation bound, nats a frame"] == "3.0"


@pytest.mark.parametrize("name", TRAINED)
def test_a_run_is_loaded_with_its_settings_and_best_weights(name, tmp_path):
    config = tiny_run(MODELS[name], epochs=1)
    made = tiny_trainer(config, tmp_path)
    given = GivenBounds(made, [1.0])
    made.run()
    saved = load_model(tmp_path)
    model = saved.network
    assert read_run(tmp_path) == config
    assert (saved.data, saved.seed, model.config) == (config.data, config.seed, config.model)
    assert not model.training
    assert all(torch.equal(tensor, given.weights[0][key]) for key, tensor in model.state_dict().items())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), made.step.parameters, strict=True))


def test_there_is_nothing_to_load_before_the_first_epoch(tmp_path):
    tiny_trainer(tiny_run(), tmp_path)
    with pytest.raises(ModelError, match=r"model\.safetensors is missing; .*train at least an epoch"):
        load_model(tmp_path)
    with pytest.raises(ModelError, match=r"elsewhere holds no model or run: it has no config\.json"):
        load_model(tmp_path / "elsewhere")


def test_a_run_leaves_four_files(tmp_path):
    trained(tiny_run(epochs=1), tmp_path)
    files = {path.name for path in tmp_path.iterdir() if path.is_file()}
    assert files == {"config.json", "log.jsonl", "last.safetensors", "model.safetensors"}


def test_a_run_without_a_finite_validation_bound_has_no_best_weights(tmp_path):
    made = tiny_trainer(tiny_run(epochs=2), tmp_path)
    GivenBounds(made, [math.nan, math.nan])
    assert math.isnan(made.run())
    assert made.progress.best is None
    assert not (tmp_path / "model.safetensors").exists()


def test_the_same_seed_gives_the_same_weights_and_another_one_others(tmp_path):
    weights = []
    for number, seed in enumerate([3, 3, 4]):
        made = trained(tiny_run(epochs=1, seed=seed), tmp_path / str(number))
        weights.append(torch.cat([parameter.flatten() for parameter in made.step.parameters]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])


def test_every_copy_of_an_episode_counts(tmp_path):
    """Twice the copies: the same frames, twice the samples, gradients that differ by noise only."""
    model = replace(MODELS["vae"], filters=4)  # fewer, and samples differ less
    once, twice = (tiny_trainer(tiny_run(model, copies=copies), tmp_path / str(copies)) for copies in (1, 2))
    shapes = []
    twice.model.register_forward_hook(lambda _, inputs, evidence: shapes.append((inputs[1], evidence.elbo.shape)))
    indices = twice.source.epoch_indices(0)[0]
    twice.step(indices)
    assert shapes == [(2, (4,))]
    once.step(indices)
    assert once.step.means().keys() == twice.step.means().keys()
    assert twice.step.means()["elbo_per_frame"] == pytest.approx(once.step.means()["elbo_per_frame"], rel=0.2)


def test_frames_take_the_format_of_the_pictures():
    images = squares()
    source = make_source(DATA, images, "train", seed=0, device=CPU)
    model = make_model(tiny_run(), images, CPU)
    assert source.frames(source.epoch_indices(0)[0]).shape == (2, 4, 1, 8, 8)
    reference = tiny_run().model.build(FrameFormat(8, 1))
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: v.shape for k, v in reference.state_dict().items()
    }


def test_pictures_must_be_square():
    images = squares()
    oblong = type(images)("oblong", images.x_train[:, :, :7])
    with pytest.raises(ValueError, match="must be square, got 8 x 7"):
        make_model(tiny_run(stages=(Stage(1),)), oblong, CPU)
