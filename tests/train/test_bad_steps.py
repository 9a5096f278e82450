"""A step whose loss or gradient is not finite changes no weight, is counted, and is forgiven unless too many follow."""

import dataclasses
import math

import pytest
import torch

from tiny import MODELS, tiny_run, tiny_trainer
from train.runs import BATCHES, log_lines, trained
from vbmem.errors import TrainingError
from vbmem.train import loop


def spoil(made, how, steps):
    """Make the steps of these numbers bad; counted from the next one, in training only, where there are gradients."""
    original, calls = made.model.forward, 0
    what, value = how

    def forward(frames, copies=1):
        nonlocal calls
        if not (made.model.training and torch.is_grad_enabled()):
            return original(frames, copies)
        calls += 1
        bad = calls - 1 in steps
        evidence = original(frames * value if bad and what == "frames" else frames, copies)
        if bad and what == "loss":
            evidence = dataclasses.replace(evidence, log_likelihood=evidence.log_likelihood + value)
        if bad and what == "gradient":
            evidence.log_likelihood.register_hook(lambda gradient: gradient * value)
        return evidence

    made.model.forward = forward


WAYS = {f"{what} {value}": (what, value) for what in ("frames", "loss", "gradient") for value in (math.nan, math.inf)}
each_way = pytest.mark.parametrize("how", WAYS.values(), ids=WAYS.keys())


def snapshot(made):
    """All that a step may change, but for the running statistics of batch norm."""
    state = {f"parameter {i}": p.detach().clone() for i, p in enumerate(made.step.parameters)}
    state |= {f"average {i}": average.clone() for i, average in enumerate(made.step.averages)}
    for i, parameter in enumerate(made.step.parameters):
        state |= {f"{key} {i}": value.clone() for key, value in made.step.optimizer.state[parameter].items()}
    return state


def changed(before, after):
    assert before.keys() == after.keys()
    return {key.split()[0] for key in before if not torch.equal(before[key], after[key])}


@each_way
def test_a_bad_step_changes_neither_weights_nor_optimiser(how, tmp_path):
    made = tiny_trainer(tiny_run(), tmp_path)
    batches = made.source.epoch_indices(0)
    spoil(made, how, {1})
    made.step(batches[0])
    before = snapshot(made)
    made.step(batches[1])
    assert changed(before, snapshot(made)) == set()
    assert (made.step.counted, made.step.skipped, made.step.streak) == (1, 1, 1)
    made.step(batches[2])
    assert changed(before, snapshot(made)) == {"parameter", "exp_avg", "exp_avg_sq", "step"}
    assert all(parameter.isfinite().all() for parameter in made.step.parameters)
    assert (made.step.counted, made.step.skipped, made.step.streak) == (2, 1, 0)


def test_a_bad_step_leaves_scales_with_a_rate_of_their_own_and_goes_on_with_the_warm_up(tmp_path):
    model = dataclasses.replace(MODELS["mixture"], learned_scales=True)
    made = tiny_trainer(tiny_run(model, warm_up=4), tmp_path)
    batches = made.source.epoch_indices(0)
    spoil(made, ("loss", math.nan), {1})
    made.step(batches[0])
    before = snapshot(made)
    made.step(batches[1])
    assert changed(before, snapshot(made)) == set()
    assert int(made.step.steps) == 2


@pytest.mark.parametrize("model", ["vae", "gaussian"], ids=["a bad loss", "no loss at all"])
def test_averages_move_towards_the_weights_in_a_bad_step_too(model, tmp_path):
    made = tiny_trainer(tiny_run(MODELS[model], averaging=0.75), tmp_path)
    batches = made.source.epoch_indices(0)
    spoil(made, ("frames", math.nan), {1})
    made.step(batches[0])
    before = snapshot(made)
    decay = 2 / 11  # of the second step: that of the settings is for later
    expected = [
        decay * a + (1 - decay) * p.detach() for a, p in zip(made.step.averages, made.step.parameters, strict=True)
    ]
    made.step(batches[1])
    assert made.step.skipped == 1
    assert changed(before, snapshot(made)) == {"average"}
    torch.testing.assert_close(made.step.averages, expected)


@pytest.mark.parametrize("model", ["statistician", "dkm", "gaussian", "mixture"])
def test_a_step_with_codes_that_are_not_finite_is_bad_too(model, tmp_path):
    """Whatever lies between encoder and decoder, and on the CPU as on CUDA, where nothing looks at the codes."""
    made = tiny_trainer(tiny_run(MODELS[model]), tmp_path)
    batches = made.source.epoch_indices(0)
    spoil(made, ("frames", math.nan), {1})
    made.step(batches[0])
    before = snapshot(made)
    made.step(batches[1])
    assert changed(before, snapshot(made)) == set()
    assert made.step.skipped == 1


def test_the_very_first_step_may_be_bad(tmp_path):
    made, untouched = tiny_trainer(tiny_run(), tmp_path / "one"), tiny_trainer(tiny_run(), tmp_path / "other")
    batches = made.source.epoch_indices(0)
    spoil(made, ("gradient", math.nan), {0})
    made.step(batches[0])
    assert all(torch.equal(p, q) for p, q in zip(made.step.parameters, untouched.step.parameters, strict=True))
    for each in (made, untouched):
        torch.manual_seed(0)
        each.step(batches[1])
    assert all(torch.equal(p, q) for p, q in zip(made.step.parameters, untouched.step.parameters, strict=True))


@each_way
def test_sums_leave_bad_steps_out(how, tmp_path):
    made = tiny_trainer(tiny_run(), tmp_path)
    batches = made.source.epoch_indices(0)
    spoil(made, how, {1, 2})
    reports = []
    for indices in batches[:4]:
        made.step.reset()
        made.step(indices)
        reports.append(made.step.means())
    again = tiny_trainer(tiny_run(), tmp_path / "again")
    spoil(again, how, {1, 2})
    for indices in batches[:4]:
        again.step(indices)
    assert (again.step.counted, again.step.skipped) == (2, 2)
    for name, mean in again.step.means().items():
        assert mean == pytest.approx((reports[0][name] + reports[3][name]) / 2, rel=1e-5)


@each_way
def test_a_run_survives_bad_steps_and_logs_how_many(how, tmp_path):
    made = tiny_trainer(tiny_run(epochs=3), tmp_path)
    spoil(made, how, {2, 5, BATCHES})
    made.run()
    lines = log_lines(tmp_path)
    assert [line["skipped_steps"] for line in lines] == [2, 1, 0]
    assert all(math.isfinite(value) for line in lines for value in line["train"].values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_bad_forward_pass_does_not_spoil_validation(value, tmp_path):
    """Statistics of batch norm that are not finite once would stay so for good."""
    made = tiny_trainer(tiny_run(epochs=1), tmp_path)
    spoil(made, ("frames", value), {2})
    made.run()
    assert all(tensor.isfinite().all() for tensor in made.model.state_dict().values())
    assert math.isfinite(log_lines(tmp_path)[0]["valid"]["elbo_per_frame"])


def test_twenty_bad_steps_in_a_row_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LOOK_EVERY", 0.0)
    made = tiny_trainer(tiny_run(epochs=10), tmp_path)
    spoil(made, ("loss", math.nan), range(4, 1000))
    with pytest.raises(TrainingError, match=r"20 steps in a row .*non-finite.* \(epoch 3, batch 6\).*learning rate"):
        made.run()
    assert len(log_lines(tmp_path)) == 2
    assert trained(tiny_run(epochs=10), tmp_path, resume=True).progress.epoch == 10


def test_nineteen_bad_steps_in_a_row_are_forgiven(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LOOK_EVERY", 0.0)
    made = tiny_trainer(tiny_run(epochs=5), tmp_path)
    spoil(made, ("loss", math.nan), {*range(19), *range(20, 39)})
    made.run()
    assert [line["skipped_steps"] for line in log_lines(tmp_path)] == [9, 9, 8, 9, 3]


def test_bad_steps_in_a_row_are_counted_across_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    made = tiny_trainer(tiny_run(epochs=10), tmp_path)
    spoil(made, ("loss", math.nan), range(1000))
    made.validate = lambda: {"elbo_per_frame": 0.0, "standard_error": 0.0}
    with pytest.raises(TrainingError, match="epoch 3"):
        made.run()
    resumed = tiny_trainer(tiny_run(epochs=10), tmp_path, resume=True)
    assert resumed.step.streak == 2 * BATCHES


def test_an_epoch_without_a_good_step_has_no_bound(tmp_path):
    made = tiny_trainer(tiny_run(epochs=2), tmp_path)
    spoil(made, ("loss", math.nan), range(BATCHES))
    made.run()
    first, second = log_lines(tmp_path)
    assert first["skipped_steps"] == BATCHES
    bound = first["train"].get("elbo_per_frame")
    assert bound is None or math.isnan(bound), "no step was counted, yet there is a mean of them"
    assert math.isfinite(second["train"]["elbo_per_frame"])


@pytest.mark.parametrize("model", ["vae", "dkm", "mixture"])
def test_a_run_may_begin_with_an_epoch_without_a_good_step(model, tmp_path):
    made = tiny_trainer(tiny_run(MODELS[model], epochs=2), tmp_path)
    spoil(made, ("frames", math.nan), range(BATCHES))
    made.run()
    first, second = log_lines(tmp_path)
    assert (first["skipped_steps"], second["skipped_steps"]) == (BATCHES, 0)
    assert math.isfinite(second["train"]["elbo_per_frame"])


@pytest.mark.parametrize("model", ["vae", "dkm", "mixture"])
def test_a_validation_that_fails_is_not_better_and_ends_nothing(model, tmp_path):
    """Codes that are not finite in the second of three validations: on the CPU as on CUDA the bound is NaN."""
    made = tiny_trainer(tiny_run(MODELS[model], epochs=3), tmp_path)
    forward, validate = made.model.forward, made.validate

    def validate_with_broken_frames():
        factor = math.nan if made.progress.epoch == 2 else 1
        made.model.forward = lambda frames, copies=1: forward(frames * factor, copies)
        try:
            return validate()
        finally:
            made.model.forward = forward

    made.validate = validate_with_broken_frames
    assert math.isfinite(made.run())
    assert made.progress.best_epoch in (1, 3)
    assert log_lines(tmp_path)[1]["valid"]["elbo_per_frame"] is None
