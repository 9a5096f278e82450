"""A crisp decoder paints codes, the same picture from the same noise."""

from typing import Any

import pytest
import torch
from torch import nn

from vbmem.errors import ModelError
from vbmem.nets import CrispDecoder, FrameFormat, UNet, register_shortcuts
from vbmem.nets.crisp import MEAN_NOISE
from vbmem.nets.registry import _shortcuts
from vbmem.nets.unet import feature_sides

TINY: dict[str, Any] = {"width": 8, "blocks": 1}


def moved(decoder: CrispDecoder) -> CrispDecoder:
    """Away from the weights it starts with, at which it paints nothing."""
    with torch.no_grad():
        for weights in decoder.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    return decoder


@pytest.mark.parametrize("sees_mean", [False, True], ids=["code", "code-and-mean"])
@pytest.mark.parametrize("frame", [FrameFormat(28, 1, "bernoulli"), FrameFormat(32, 3), FrameFormat(8, 3)], ids=str)
def test_frames_of_every_format_are_painted_and_learned(frame, sees_mean):
    decoder = moved(CrispDecoder(frame, 5, **TINY, sees_mean=sees_mean))
    codes, frames = torch.randn(4, 5), torch.rand(4, frame.channels, frame.size, frame.size)
    means = torch.rand_like(frames) if sees_mean else None
    painted = decoder.paint(codes, 2, decoder.noise(4), means)
    assert painted.shape == frames.shape
    assert painted.min() >= 0
    assert painted.max() <= 1
    assert not painted.requires_grad
    decoder.errors(frames, codes, means).objective.backward()
    assert all(weights.grad is not None and weights.grad.isfinite().all() for weights in decoder.parameters())


def test_features_are_halved_until_they_are_small():
    assert [feature_sides(size) for size in (8, 28, 32, 45, 64)] == [
        [8],
        [28, 14, 7],
        [32, 16, 8],
        [45, 23, 12, 6],
        [64, 32, 16, 8],
    ]
    decoder = CrispDecoder(FrameFormat(45, 1), 3, **TINY)
    assert decoder.paint(torch.randn(1, 3), 1, decoder.noise(1)).shape == (1, 1, 45, 45)


def test_in_half_precision_the_default_one_takes_less_than_twelve_megabytes():
    parameters = sum(weights.numel() for weights in CrispDecoder(FrameFormat(32, 3), 200).parameters())
    assert 5.2e6 < parameters < 5.6e6
    assert 2 * parameters < 12e6


def test_at_first_it_leaves_the_noise_as_it_is():
    decoder = CrispDecoder(FrameFormat(8, 1), 3, **TINY)
    noise = decoder.noise(2)
    torch.testing.assert_close(decoder.paint(torch.randn(2, 3), 4, noise), ((noise + 1) / 2).clamp(0, 1))


def test_one_that_sees_mean_pictures_begins_near_them():
    decoder = CrispDecoder(FrameFormat(8, 1), 3, **TINY, sees_mean=True)
    means = 0.3 + 0.4 * torch.rand(200, 1, 8, 8)
    begun = decoder.paint(torch.randn(200, 3), 4, decoder.noise(200), means)
    assert (begun - means).mean().abs() < 0.01
    assert (begun - means).std() == pytest.approx(MEAN_NOISE / 2, rel=0.05)  # of a scale half as long


def test_one_that_sees_mean_pictures_learns_the_way_from_there():
    decoder = CrispDecoder(FrameFormat(8, 1), 3, **TINY, sees_mean=True)  # which knows of no way yet
    frames, codes = torch.rand(400, 1, 8, 8), torch.randn(400, 3)
    errors = decoder.errors(frames, codes, means=frames, taught=0).velocity
    assert errors.mean().item() == pytest.approx(MEAN_NOISE**2, rel=0.05)


def test_a_picture_follows_from_its_code_and_its_noise():
    decoder = moved(CrispDecoder(FrameFormat(8, 1), 3, **TINY))
    codes = torch.randn(3, 3)
    noise = decoder.noise(3)
    assert torch.equal(noise, decoder.noise(3))
    assert not torch.equal(noise, decoder.noise(3, torch.Generator().manual_seed(1)))
    painted = decoder.paint(codes, 4, noise)
    torch.testing.assert_close(decoder.paint(codes[1:2], 4, noise[1:2]), painted[1:2])
    assert not torch.allclose(decoder.paint(codes + 1, 4, noise), painted)
    assert not torch.allclose(decoder.paint(codes, 4, -noise), painted)


def test_every_part_of_a_code_step_and_mean_matters():
    network = UNet(FrameFormat(8, 1), 3, width=8, blocks=1, attention=True, sees_mean=True)
    with torch.no_grad():
        for weights in network.parameters():
            weights.add_(0.1 * torch.randn_like(weights))
    given = [torch.randn(1, 1, 8, 8), torch.rand(1), torch.rand(1), torch.randn(1, 3), torch.rand(1, 1, 8, 8)]
    said = network(*given)
    for number, tensor in enumerate(given):
        changed = [*given[:number], tensor / 2, *given[number + 1 :]]
        assert not torch.allclose(network(*changed), said)


def test_what_it_cannot_do_is_said_in_a_sentence():
    frame = FrameFormat(8, 1)
    decoder = CrispDecoder(frame, 3, **TINY)
    with pytest.raises(ValueError, match="at least 1 step, got 0"):
        decoder.paint(torch.randn(2, 3), 0, decoder.noise(2))
    with pytest.raises(ValueError, match="sees no mean pictures; leave them out"):
        decoder.paint(torch.randn(2, 3), 1, decoder.noise(2), torch.rand(2, 1, 8, 8))
    with pytest.raises(ValueError, match="sees mean pictures; give those of the codes"):
        CrispDecoder(frame, 3, **TINY, sees_mean=True).errors(torch.rand(2, 1, 8, 8), torch.randn(2, 3))
    for width in (0, 6):
        with pytest.raises(ValueError, match=f"width must be a positive multiple of 4, got {width}"):
            CrispDecoder(frame, 3, width=width)
    with pytest.raises(ValueError, match="blocks must be at least 1, got 0"):
        CrispDecoder(frame, 3, blocks=0)
    with pytest.raises(ModelError, match="no networks of a crisp decoder 'mine'; known are unet"):
        CrispDecoder(frame, 3, style="mine")


def test_a_network_of_ones_own_is_found_by_its_name(monkeypatch):
    monkeypatch.setattr(_shortcuts, "known", dict(_shortcuts.known))

    @register_shortcuts("still")
    class Still(nn.Module):
        def __init__(self, frame, code_size, **sizes):
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, points, times, lengths, codes):
            return 0 * points

    assert isinstance(CrispDecoder(FrameFormat(8, 1), 3, style="still").shortcuts, Still)
    with pytest.raises(ValueError, match="'unet' are already made by"):
        register_shortcuts("unet")(Still)


def test_its_loss_compiles_without_graph_breaks():
    decoder = moved(CrispDecoder(FrameFormat(8, 1), 3, **TINY))
    frames, codes = torch.rand(4, 1, 8, 8), torch.randn(4, 3)
    torch.manual_seed(1)
    expected = decoder.errors(frames, codes).velocity
    decoder.shortcuts.compile(fullgraph=True, dynamic=False, backend="eager")
    torch.manual_seed(1)
    torch.testing.assert_close(decoder.errors(frames, codes).velocity, expected)
