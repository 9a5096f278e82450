"""What training asks of every model: gradients everywhere, binary frames, bfloat16 networks, compiled parts."""

from typing import Any

import pytest
import torch
from torch import nn

from models.zoo import B, every_model, frames, make
from tiny import MEMORY_MODELS, MODELS, OWN_MODELS
from vbmem.models import Regulariser

WITH_MEMORY = [*MEMORY_MODELS, *OWN_MODELS]
# Of which also the gradient is traced: between them they have every part there is. Tracing takes long, so `make trust`
# does it, but for one; of the other models with a memory it traces the losses.
TRACED_BACKWARDS = ("mixture", "sees recall")
LATER = [name for name in WITH_MEMORY if name != "sees recall"]
CANCELLED = ("residual.0.bias", "residual.3.bias")  # batch norm would cancel these biases


def objective(model, pictures, seed=0):
    torch.manual_seed(seed)
    evidence = model(pictures)
    extra = 0 if evidence.extra_objective is None else evidence.extra_objective
    return (evidence.elbo + extra).mean() / evidence.episode_length


@every_model
@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli"])
def test_every_parameter_receives_a_finite_gradient(name, likelihood):
    changes = {"learned_scales": True} if name in WITH_MEMORY else {}
    model = make(name, likelihood, **changes).train()
    objective(model, frames(binary=likelihood == "bernoulli")).backward()
    for label, weights in model.named_parameters():
        normed = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
        if normed and label.endswith(CANCELLED):
            assert weights.grad is None, label
        else:
            assert weights.grad.isfinite().all(), label
            assert weights.grad.abs().max() > 1e-10, label


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_gradients_stay_finite_under_the_regulariser(name):
    model = make(name).train()
    model.regulariser = Regulariser()
    objective(model, frames()).backward()
    assert all(weights.grad.isfinite().all() for weights in model.parameters() if weights.grad is not None)


@every_model
def test_the_gradient_is_that_of_finite_differences(name):
    """Along one random direction through all parameters; the draws, and where a write starts, are held fixed."""
    model, pictures = make(name), frames()
    if name in WITH_MEMORY:
        content, _ = model.infer(pictures).cut(model.content_size)
        start = model.memory.write(content.mean)[0].detach()
        model.write = lambda memory, codes: memory.write(codes, model.iterations, start, expand=False)
    objective(model, pictures).backward()
    torch.manual_seed(1)
    direction = [torch.randn_like(weights) for weights in model.parameters()]
    pairs = zip(model.parameters(), direction, strict=True)
    slope = sum((weights.grad * way).sum() for weights, way in pairs if weights.grad is not None)
    values, step = [], 1e-7
    with torch.no_grad():
        for side in (step, -2 * step):
            for weights, way in zip(model.parameters(), direction, strict=True):
                weights += side * way
            values.append(objective(model, pictures))
    torch.testing.assert_close(slope, (values[0] - values[1]) / (2 * step), rtol=1e-4, atol=1e-4)


@every_model
def test_a_few_steps_of_training_raise_the_bound(name):
    torch.manual_seed(0)
    model, pictures = make(name).float().train(), frames().float()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    bounds = []
    for step in range(12):
        optimizer.zero_grad()
        value = objective(model, pictures, seed=step)
        (-value).backward()
        optimizer.step()
        bounds.append(value.item())
    assert sum(bounds[-3:]) > sum(bounds[:3])


@every_model
def test_binary_colour_frames_go_through(name):
    model = make(name, "bernoulli", channels=3)
    evidence = model(frames(channels=3, binary=True))
    assert evidence.elbo.shape == (B,)
    assert (evidence.log_likelihood < 0).all()  # probabilities, not densities


@every_model
def test_a_single_frame_is_an_episode(name):
    assert make(name)(frames(3, 1)).elbo.isfinite().all()


@every_model
def test_networks_in_bfloat16_leave_the_bound_in_float32(name):
    model, pictures = make(name).float(), frames().float()
    exact = objective(model, pictures)
    model.network_dtype = torch.bfloat16
    torch.manual_seed(0)
    evidence = model(pictures)
    assert {value.dtype for value in evidence.per_frame().values()} == {torch.float32}
    torch.testing.assert_close(objective(model, pictures), exact, rtol=0.1, atol=5.0)
    evidence.elbo.sum().backward()
    assert all(weights.grad.isfinite().all() for weights in model.parameters() if weights.grad is not None)


# Dynamo itself looks at the .grad of tensors that have none.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LATER)) for name in (MODELS | OWN_MODELS)]
)
def test_compiled_parts_give_the_losses_and_gradients_of_eager_ones(name, monkeypatch):
    # A second iteration is compiled anew, for codes that have a history by then: once is enough.
    changes: dict[str, Any] = {"iterations": 2 if name in TRACED_BACKWARDS else 1} if name in WITH_MEMORY else {}
    eager, compiled = (make(name, **changes).float().train() for _ in range(2))
    calls = []

    def compile_plainly(function, **options):
        calls.append(options)
        backend = "aot_eager" if name in TRACED_BACKWARDS else "eager"
        return torch_compile(function, backend=backend, fullgraph=options["fullgraph"], dynamic=options["dynamic"])

    torch_compile = torch.compile
    monkeypatch.setattr(torch, "compile", compile_plainly)
    torch.compiler.reset()
    compiled.compile_parts()
    assert len(calls) >= 2
    assert all(options["fullgraph"] for options in calls)
    pictures = frames().float()
    for seed in range(2):
        losses = [objective(model, pictures, seed) for model in (eager, compiled)]
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-4)
        for loss in losses:
            loss.backward()
    grads, compiled_grads = (
        {label: weights.grad for label, weights in model.named_parameters() if weights.grad is not None}
        for model in (eager, compiled)
    )
    assert compiled_grads.keys() == grads.keys()
    flat = [torch.cat([grad.flatten() for grad in each.values()]) for each in (grads, compiled_grads)]
    assert torch.nn.functional.cosine_similarity(flat[0], flat[1], dim=0) > 1 - 1e-5
    assert set(compiled.state_dict()) == set(eager.state_dict())


@every_model
def test_weights_travel_by_state_dict(name):
    saved, loaded, pictures = make(name), make(name), frames()
    with torch.no_grad():
        for weights in saved.parameters():
            weights.mul_(1.1)
    loaded.load_state_dict(saved.state_dict())
    assert torch.equal(objective(loaded, pictures), objective(saved, pictures))
