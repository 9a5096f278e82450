"""The networks of `benchmarks/posed.py` know what a view is: they find out how a picture is seen, and undo it."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import posed
from vbmem.data.augmentation import relit, shifted_and_flipped
from vbmem.models.base import CodedModel
from vbmem.models.settings import ModelConfig
from vbmem.nets import FrameFormat
from vbmem.nets.registry import build_networks

SIDE, VIEWS = 32, 64
EDGE = SIDE // posed.REACH
PIXEL = posed.UNIT / EDGE  # the number of a shift by one


@pytest.fixture
def picture() -> Tensor:
    """A picture [1, 3, 32, 32] without white, darker on the left."""
    noise = torch.rand(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return 0.1 + 0.2 * noise + 0.3 * torch.linspace(0, 1, SIDE)


def shifted(picture: Tensor, across: int, down: int) -> Tensor:
    columns, rows = ((torch.arange(SIDE) - by).clamp(0, SIDE - 1) for by in (across, down))
    return picture[..., rows, :][..., columns]


@pytest.mark.parametrize(("across", "down"), [(0, 0), (2, -3), (-EDGE, EDGE)])
def test_a_shift_is_found_and_made(picture: Tensor, across: int, down: int) -> None:
    seen = shifted(picture, across, down)
    found = posed.pose_of(seen)[:, :2]
    torch.testing.assert_close(found, PIXEL * torch.tensor([[across, down]]))
    torch.testing.assert_close(posed.moved(picture, *found.T), seen)


def test_a_mirror_image_is_made_first(picture: Tensor) -> None:
    numbers, certain = torch.tensor([2 * PIXEL]), torch.tensor([99.0])
    mirrored = posed.moved(picture, numbers, numbers, mirror=certain)
    torch.testing.assert_close(mirrored, posed.moved(picture.flip(-1), numbers, numbers))
    torch.testing.assert_close(posed.moved(picture, numbers, numbers, -certain), posed.moved(picture, numbers, numbers))


@pytest.fixture
def views(picture: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return relit(shifted_and_flipped(picture.expand(VIEWS, -1, -1, -1), generator), generator)


def test_all_views_of_a_picture_are_embedded_alike(views: Tensor) -> None:
    encoder = build_networks(posed.POSED, FrameFormat(SIDE, 3), 4, 20, 20).encoder
    encoder.plain = torch.nn.Identity()
    plain = []
    encoder.plain.register_forward_hook(lambda _, given, __: plain.append(given[0]))
    with pytest.raises(RuntimeError, match="dimensions"):  # what it gives is no embedding
        encoder(views)
    middle = plain[0][..., EDGE:-EDGE, EDGE:-EDGE]  # the rest is out of some views
    torch.testing.assert_close(middle, middle[:1].expand_as(middle))


@pytest.mark.parametrize("style", [posed.POSED, posed.MIDDLE])
@pytest.mark.parametrize(
    "config",
    [
        posed.ViewsVAE(code_size=20, filters=4),
        posed.ViewsMemory(code_size=20, filters=4, own_size=8, rows=0, clusters=4),
    ],
    ids=["vae", "memory"],
)
def test_codes_of_an_untrained_model_end_with_the_pose(config: ModelConfig, style: str, views: Tensor) -> None:
    model = replace(config, style=style).build(FrameFormat(SIDE, 3))
    assert isinstance(model, CodedModel)
    found = model.infer(views.unsqueeze(0))
    pose = found.mean[0, :, -posed.POSE_SIZE :]
    torch.testing.assert_close(pose, posed.pose_of(views), atol=0.02, rtol=0)
    if style == posed.MIDDLE:
        assert found.var[..., -posed.POSE_SIZE :].median() < 0.01


def test_numbers_of_the_middle_are_the_same_for_all_views(views: Tensor) -> None:
    model = posed.ViewsVAE(code_size=20, filters=4, style=posed.MIDDLE).build(FrameFormat(SIDE, 3)).eval()
    assert isinstance(model, CodedModel)
    model.network_dtype = torch.float32
    first = model.infer(views.unsqueeze(0)).mean[0, :, : posed.share(20)]
    torch.testing.assert_close(first, first[:1].expand_as(first), atol=1e-3, rtol=1e-3)
