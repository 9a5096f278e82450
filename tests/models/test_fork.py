"""The gradient through a write is kept within the length of the direct one."""

import pytest
import torch

from models.zoo import frames, make
from tiny import MEMORY_MODELS
from vbmem.models.memory_model import GentleFork


def gradient(direct, through):
    """What codes receive when their two uses send these gradients back."""
    codes = torch.zeros_like(direct, requires_grad=True)
    used, written = GentleFork.apply(codes)
    ((used * direct).sum() + (written * through).sum()).backward()
    return codes.grad


def test_a_shorter_gradient_passes_as_it_is():
    torch.manual_seed(0)
    direct, through = torch.randn(3, 5, 4), 0.1 * torch.randn(3, 5, 4)
    torch.testing.assert_close(gradient(direct, through), direct + through)


def test_a_longer_one_keeps_its_direction_and_takes_the_length_of_the_direct_one():
    torch.manual_seed(0)
    direct, through = torch.randn(3, 5, 4), 1e6 * torch.randn(3, 5, 4)
    added = gradient(direct, through) - direct
    for episode in range(3):
        torch.testing.assert_close(added[episode].norm(), direct[episode].norm())
        torch.testing.assert_close(
            added[episode] / added[episode].norm(), through[episode] / through[episode].norm(), rtol=1e-4, atol=1e-5
        )


def test_episodes_are_judged_one_by_one():
    direct, through = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    through[1] *= 1e9
    torch.testing.assert_close(gradient(direct, through), torch.full((2, 3, 4), 2.0))


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_broken_gradient_is_left_out(broken):
    direct, through = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    through[0, 1, 2] = broken
    expected = torch.ones(2, 3, 4)
    expected[1] += 1
    torch.testing.assert_close(gradient(direct, through), expected)


def test_where_nothing_is_sent_back_nothing_is_added():
    assert (gradient(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)) == 0).all()


@pytest.mark.parametrize("name", MEMORY_MODELS)
def test_training_and_evaluation_see_the_same_codes(name):
    """The fork changes gradients only; batch norm, which differs between the two, is kept in evaluation."""
    model, pictures = make(name).eval(), frames()
    torch.manual_seed(3)
    evaluated = model(pictures).elbo
    model.training = True
    torch.manual_seed(3)
    torch.testing.assert_close(model(pictures).elbo, evaluated, rtol=0, atol=0)
