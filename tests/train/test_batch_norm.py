"""Before a validation, batch norm's statistics are measured anew for the weights as they are, and only for it."""

import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from tiny import MODELS, tiny_run, tiny_trainer
from train.runs import BATCHES, GivenBounds, log_lines
from vbmem.errors import NumericalError
from vbmem.models import load_model
from vbmem.train.batch_norm import FreshStatistics
from vbmem.train.checkpoint import load_checkpoint

NORMED = ["vae", "statistician", "dkm", "gaussian"]


def moved(model, run_dir):
    """A trainer whose weights have moved away from what its running statistics tell, and the batches of an epoch."""
    made = tiny_trainer(tiny_run(model), run_dir)
    for indices in made.source.epoch_indices(0):
        made.step(indices)
    return made, made.source.epoch_indices(1)


def batch_norms(model):
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.BatchNorm2d)}


def statistics(model):
    """Those of batch norm, by name, copied."""
    named = model.state_dict().items()
    return {name: tensor.clone() for name, tensor in named if name.endswith(("running_mean", "running_var"))}


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


@torch.no_grad()
def expected_statistics(made, batches):
    """The means over the batches of the mean and unbiased variance of what batch norm was shown last in each."""
    shown, layers = {}, batch_norms(made.model)

    def look(norm, inputs):
        shown[norm] = inputs[0].double().transpose(0, 1).flatten(1)

    handles = [norm.register_forward_pre_hook(look) for norm in layers.values()]
    made.model.train()
    sums: dict[str, Any] = {}
    for indices in batches:
        made.model(made.source.frames(indices))
        for name, norm in layers.items():
            features = shown[norm]
            centre = features.mean(1)
            spread = (features - centre[:, None]).square().sum(1) / (features.shape[1] - 1)
            for key, value in ((f"{name}.running_mean", centre), (f"{name}.running_var", spread)):
                sums[key] = sums.get(key, 0) + value
    for handle in handles:
        handle.remove()
    return {key: (value / len(batches)).float() for key, value in sums.items()}


@pytest.mark.parametrize("count", [1, 3, BATCHES])
@pytest.mark.parametrize("name", NORMED)
def test_within_are_the_mean_statistics_of_the_first_eight_batches(name, count, tmp_path):
    made, batches = moved(MODELS[name], tmp_path)
    with made.fresh_statistics(made.source.epoch_indices(2)):
        pass  # leaves no trace in the next
    torch.manual_seed(0)
    with made.fresh_statistics(batches[:count]):
        within = statistics(made.model)
    torch.manual_seed(0)
    expected = expected_statistics(made, batches[: min(count, 8)])
    torch.testing.assert_close(within, expected, rtol=1e-5, atol=1e-5)


def test_they_are_measured_on_pictures_damaged_as_in_training(tmp_path, monkeypatch):
    made, batches = moved(MODELS["vae"], tmp_path)
    made.model.damage = 1.0
    embed = Mock(wraps=made.model.embed)
    monkeypatch.setattr(made.model, "embed", embed)
    with made.fresh_statistics(batches[:2]):
        pass
    for call, indices in zip(embed.call_args_list, batches[:2], strict=True):
        assert (call.args[0] != made.source.frames(indices)).flatten(2).any(-1).all()


@pytest.mark.parametrize("name", NORMED)
def test_afterwards_all_is_as_before(name, tmp_path):
    made, batches = moved(MODELS[name], tmp_path)
    before, weights = statistics(made.model), [p.detach().clone() for p in made.step.parameters]
    with made.fresh_statistics(batches):
        assert not any(torch.equal(tensor, before[key]) for key, tensor in statistics(made.model).items())
        assert {norm.momentum for norm in batch_norms(made.model).values()} == {0.01}
    assert equal(statistics(made.model), before)
    assert {norm.momentum for norm in batch_norms(made.model).values()} == {0.01}
    assert all(torch.equal(p, q) for p, q in zip(made.step.parameters, weights, strict=True))


def test_after_an_exception_within_all_is_as_before(tmp_path):
    made, batches = moved(MODELS["vae"], tmp_path)
    before = statistics(made.model)

    def fail():
        assert not equal(statistics(made.model), before)
        raise NumericalError("within")

    with pytest.raises(NumericalError, match="within"), made.fresh_statistics(batches):
        fail()
    assert equal(statistics(made.model), before)


def test_after_an_exception_in_the_measuring_all_is_as_before(tmp_path):
    made, batches = moved(MODELS["vae"], tmp_path)
    for number, norm in enumerate(batch_norms(made.model).values()):
        norm.momentum = 0.1 * number
    before, original, calls = statistics(made.model), made.model.forward, []

    def forward(frames, copies=1):
        calls.append({norm.momentum for norm in batch_norms(made.model).values()})
        if len(calls) == 3:
            assert not equal(statistics(made.model), before)
            raise NumericalError("measuring")
        return original(frames, copies)

    made.model.forward = forward
    with pytest.raises(NumericalError, match="measuring"), made.fresh_statistics(batches):
        pytest.fail("nothing was measured")
    assert calls == [{1.0}] * 3
    assert equal(statistics(made.model), before)
    momenta = [norm.momentum for norm in batch_norms(made.model).values()]
    assert momenta == [0.1 * number for number in range(len(momenta))]


@pytest.mark.parametrize("model", [MODELS["mixture"], *(replace(MODELS[name], style="improved") for name in NORMED)])
def test_a_model_without_batch_norm_is_left_alone(model, tmp_path):
    made, batches = moved(model, tmp_path)
    made.model.eval()
    before = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
    random = torch.get_rng_state()
    made.model.forward = lambda *_: pytest.fail("there is nothing to measure")
    with made.fresh_statistics(batches):
        assert equal(made.model.state_dict(), before)
        assert not made.model.training
    assert equal(made.model.state_dict(), before)
    assert torch.equal(torch.get_rng_state(), random)


def test_buffers_other_than_those_of_batch_norm_are_left_alone(tmp_path):
    """The mean of eight times the same would be rounded."""
    made, batches = moved(MODELS["dkm"], tmp_path)
    before = made.model.row_mean.clone()
    with made.fresh_statistics(batches):
        assert torch.equal(made.model.row_mean, before)


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_weights_that_moved_fast_are_validated_and_kept_with_statistics_of_their_own(averaging, tmp_path):
    """Measured anew, with the draws there were, they are the same; those of the last weights are others."""
    made = tiny_trainer(tiny_run(epochs=1, averaging=averaging), tmp_path)
    given, fresh, random = GivenBounds(made, [1.0]), made.fresh_statistics, []

    def noted(batches):
        random.append(torch.get_rng_state())
        return fresh(batches)

    made.fresh_statistics = noted
    made.run()
    model = load_model(tmp_path).network
    best = statistics(model)
    assert equal(best, {key: given.weights[0][key] for key in best})
    torch.set_rng_state(random[0])
    with FreshStatistics(model, made.source)(made.source.epoch_indices(0)):
        torch.testing.assert_close(statistics(model), best, rtol=1e-5, atol=1e-5)
    last = load_checkpoint(tmp_path / "last.safetensors")[0]["model"]
    assert equal(statistics(made.model), {key: last[key] for key in best})
    assert not any(torch.allclose(best[key], last[key], rtol=0.05) for key in best)


@pytest.mark.parametrize("name", NORMED)
def test_a_validation_without_finite_statistics_is_not_better_and_ends_nothing(name, tmp_path):
    """Some models notice, the others tell NaN; the training does not see these statistics."""
    made = tiny_trainer(tiny_run(MODELS[name], epochs=3), tmp_path)
    original = made.model.forward

    def forward(frames, copies=1):
        measuring = not torch.is_grad_enabled() and any(norm.training for norm in batch_norms(made.model).values())
        return original(frames * math.nan if measuring and made.progress.epoch == 2 else frames, copies)

    made.model.forward = forward
    assert math.isfinite(made.run())
    lines = log_lines(tmp_path)
    assert [line["valid"]["elbo_per_frame"] is not None for line in lines] == [True, False, True]
    assert [line["skipped_steps"] for line in lines] == [0, 0, 0]
    assert all(tensor.isfinite().all() for tensor in made.model.state_dict().values())


@pytest.mark.parametrize("averaging", [0.0, 0.9])
def test_a_run_can_be_validated_and_kept_with_the_accumulated_statistics(averaging, tmp_path):
    made = tiny_trainer(tiny_run(epochs=2, batch_norm="accumulated", averaging=averaging), tmp_path)
    made.fresh_statistics = lambda _: pytest.fail("nothing is to be measured afresh")
    made.run()
    kept, last = statistics(load_model(tmp_path).network), statistics(made.model)
    assert made.progress.best_epoch == 2  # so that those kept are those at the end
    assert equal(kept, last)
