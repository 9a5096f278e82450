"""A critic tells frames apart, and by their codes where it is told them."""

import pytest
import torch

from vbmem.nets import Critic, FrameFormat


@pytest.mark.parametrize("frame", [FrameFormat(28, 1, "bernoulli"), FrameFormat(32, 3), FrameFormat(8, 3)], ids=str)
def test_frames_of_every_format_are_judged(frame):
    critic = Critic(frame, 5, width=8)
    frames, codes = torch.rand(4, frame.channels, frame.size, frame.size), torch.randn(4, 5)
    scores = critic(frames, codes)
    assert scores.shape == (4,)
    scores.sum().backward()
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in critic.parameters())


def test_a_code_of_zeros_asks_for_the_looks_alone():
    critic = Critic(FrameFormat(8, 1), 3, width=8)
    frames, codes = torch.rand(2, 1, 8, 8), torch.randn(2, 3)
    looks, both, against = (critic(frames, code) for code in (torch.zeros(2, 3), codes, -codes))
    assert not torch.allclose(looks, both)
    torch.testing.assert_close((both + against) / 2, looks)  # what is said of a code is linear in it


def test_it_learns_which_frames_belong_to_which_codes():
    """Bright frames have the code 1, dark ones -1: neither frames nor codes say alone which pairs are wrong."""
    torch.manual_seed(0)
    critic = Critic(FrameFormat(8, 1), 1, width=8)
    optimizer = torch.optim.Adam(critic.parameters(), 1e-2)

    def margin() -> torch.Tensor:
        codes = torch.randint(2, (64, 1)).float() * 2 - 1
        frames = 0.5 + 0.3 * codes[..., None, None] + 0.1 * torch.rand(64, 1, 8, 8)
        return critic(frames, codes) - critic(frames, -codes)

    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.softplus(-margin()).mean().backward()
        optimizer.step()
    assert float((margin() > 0).float().mean()) > 0.95
