"""Networks that are told what a view is, as `views` episodes make them: a picture shifted with its edges repeated,
maybe a mirror image, in other light.

The encoder takes all that back and embeds the plain picture, and maybe its middle by itself; the decoder paints a plain
picture and does it again. What is done are four numbers, `pose`: shift across, shift down, mirror image, light. The
encoder puts them last in an embedding, and the decoder takes the last four of a code, which a memory keeps out of what
it writes.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from vbmem.models.base import EpisodicModel
from vbmem.models.settings import MemoryConfig, StatisticianConfig, VAEConfig
from vbmem.models.statistician import NeuralStatistician
from vbmem.nets import CodeHead, CodePosterior, FrameFormat
from vbmem.nets.pixels import STD_FLOOR, GaussianPixels
from vbmem.nets.registry import Networks, build_networks, register

PLAIN = "batch-swish-up-first-linear"  # what looks at plain pictures and paints them
POSED = f"{PLAIN}-posed"
MIDDLE = f"{POSED}-middle"  # the same, with numbers of their own for the middle of a picture
POSE_SIZE = 4
REACH = 8  # shifts are of up to this part of a side
UNIT = math.sqrt(3)  # the number of the largest shift: uniform ones then have variance 1
DECIDED = 8.0  # how fast a picture turns into its mirror image, as the number of it goes from below 0 to above
SURE = 1e-3  # the variance of a pose in an untrained model, about
BRIGHTNESS = 0.45  # the mean of a plain picture
LIGHT = 0.45  # standard deviation of the log of pictures' mean
BRIGHTEST = 2.5  # of a plain picture, whose light may then darken it


@register(POSED)
def posed(frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """The plain pair, told of views, for colour pictures."""
    plain = build_networks(PLAIN, frame, filters, embedding_size - POSE_SIZE, code_size - POSE_SIZE)
    return Networks(PosedEncoder(plain.encoder), PosedDecoder(plain.decoder), plain.activation)


@register(MIDDLE)
def posed_with_middle(frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """The same, with a plain encoder of the middle beside that of the whole picture."""
    size = share(embedding_size)
    pair = posed(frame, filters, embedding_size - size, code_size)
    small = replace(frame, size=frame.size - 2 * (frame.size // REACH))
    pair.encoder.middle = build_networks(PLAIN, small, filters, size, code_size).encoder
    return pair


def share(size: int) -> int:
    """Of so many numbers, those that say what is in the middle of a plain picture, by its share of the pixels."""
    return round(size * (1 - 2 / REACH) ** 2)


class PosedEncoder(nn.Module):
    """e(x) = (middle of the plain picture, plain picture, pose), or without the first. All views show the middle, and
    say the same of it; the rest is out of some of them, where they have nothing but repeated edges."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain
        self.middle: nn.Module | None = None

    def forward(self, frames: Tensor) -> Tensor:
        """Frames [N, 3, H, W] in [0, 1] -> embeddings [N, embedding_size]."""
        with torch.autocast(frames.device.type, enabled=False):
            pose = pose_of(frames)
            across, down, mirror, light = pose.unbind(-1)
            plain = moved(frames, -across, -down)
            plain = plain.where(_of_pictures(mirror < 0), plain.flip(-1)) / _of_pictures(factor_of(light))
        embeddings = [self.plain(plain), pose]
        if self.middle is not None:
            edge = frames.shape[-1] // REACH
            embeddings.insert(0, self.middle(plain[..., edge:-edge, edge:-edge]))
        return torch.cat(embeddings, dim=-1)


class PosedDecoder(nn.Module):
    """p(x | z) of the plain picture that the first numbers of a code say, as its last four say it is seen."""

    def __init__(self, plain: nn.Module) -> None:
        super().__init__()
        self.plain = plain

    def forward(self, codes: Tensor) -> GaussianPixels:
        """Codes [N, C] -> distribution over frames [N, 3, H, W]."""
        codes, pose = codes.tensor_split((-POSE_SIZE,), dim=-1)
        pixels = self.plain(codes)
        with torch.autocast(codes.device.type, enabled=False):
            across, down, mirror, light = pose.to(pixels.mean).unbind(-1)
            factor = _of_pictures(factor_of(light))
            mean, std = (moved(x, across, down, mirror) for x in (pixels.mean, pixels.std))
            mean, std = (BRIGHTEST * factor * mean).clamp(max=1), STD_FLOOR + factor * (std - STD_FLOOR)
        return replace(pixels, mean=mean, std=std)


def pose_of(frames: Tensor) -> Tensor:
    """Of frames [N, 3, H, W]: shifts as their repeated edges tell them, a mirror image where the left is darker than
    the right, and light by the mean. The last two look at what all views of a picture show: [N, 4]."""
    across, down = (_shift_along(frames, axis) for axis in (-1, -2))
    edge = frames.shape[-1] // REACH
    middle = moved(frames, -across, -down)[..., edge:-edge, edge:-edge].mean(1)
    left, right = (half.mean((-1, -2)) for half in middle.tensor_split(2, dim=-1))
    mirror = torch.where(left < right, 1.0, -1.0)
    light = (middle.mean((-1, -2)).clamp_min(1e-2) / BRIGHTNESS).log() / LIGHT
    return torch.stack([across, down, mirror, light], -1)


def _shift_along(frames: Tensor, axis: int) -> Tensor:
    """How many lines at the beginning repeat their neighbour, less those at the end, in units of `UNIT`: [N]."""
    most = frames.shape[axis] // REACH
    same = (frames.diff(dim=axis) == 0).transpose(axis, -1).flatten(1, -2).all(1)  # [N, side - 1]
    before, after = (lines[:, :most].cumprod(-1).sum(-1) for lines in (same, same.flip(-1)))
    return UNIT / most * (before - after).to(frames)


def factor_of(light: Tensor) -> Tensor:
    """By how much it multiplies pixels."""
    return (LIGHT * light).exp()


def moved(pictures: Tensor, across: Tensor, down: Tensor, mirror: Tensor | None = None) -> Tensor:
    """Pictures [N, .., H, W], mixed with their mirror images as `mirror` [N] says, then shifted by numbers [N]."""
    columns, rows = (_shift(*of) for of in ((across, pictures.shape[-1]), (down, pictures.shape[-2])))
    if mirror is not None:
        columns = torch.lerp(columns, columns.flip(-1), (DECIDED * mirror).sigmoid()[:, None, None])
    return rows.unsqueeze(1) @ pictures @ columns.mT.unsqueeze(1)


def _shift(numbers: Tensor, side: int) -> Tensor:
    """P[i, j] = max(0, 1 - |clamp(i - s) - j|): each place takes what lies s before it, edges repeated; [N, S, S]."""
    places = torch.arange(side, device=numbers.device, dtype=numbers.dtype)
    pixels = numbers * (side // REACH / UNIT)
    source = (places - pixels.unsqueeze(-1)).clamp(0, side - 1)
    return (1 - (source.unsqueeze(-1) - places).abs()).clamp_min(0)


def _of_pictures(numbers: Tensor) -> Tensor:
    """[N] -> [N, 1, 1, 1]."""
    return numbers[:, None, None, None]


class ViewsVAE(VAEConfig):
    kind: ClassVar[str] = "views-vae"

    def build(self, frame: FrameFormat) -> EpisodicModel:
        return made_ready(super().build(frame))


class ViewsStatistician(StatisticianConfig):
    kind: ClassVar[str] = "views-statistician"

    def build(self, frame: FrameFormat) -> EpisodicModel:
        return made_ready(super().build(frame))


class ViewsMemory(MemoryConfig):
    kind: ClassVar[str] = "views-memory"

    def build(self, frame: FrameFormat) -> EpisodicModel:
        return made_ready(super().build(frame))


def made_ready(model: EpisodicModel) -> EpisodicModel:
    """Networks in bfloat16 also on a CPU, which takes two thirds of the time there; a head that knows of poses."""
    model.network_dtype = torch.bfloat16
    name = "code_head" if isinstance(model, NeuralStatistician) else "head"
    head = model.get_submodule(name)
    assert isinstance(head, CodeHead)
    if model.config.style == POSED:
        pass_pose(head, model.config.code_size)
    elif model.config.style == MIDDLE:
        model.register_module(name, MiddleHead(head, model))
    return model


@torch.no_grad()
def pass_pose(head: CodeHead, code_size: int) -> None:
    """Let the head of q(z | x) begin with the pose of an embedding as the mean of a code's last numbers: with swish,
    act(p) - act(-p) = p. Else it takes a thousand steps to find out."""
    first, last = (head.layers[place].get_parameter("weight") for place in (0, -1))
    pose = torch.eye(POSE_SIZE)
    first[: 2 * POSE_SIZE] = 0
    first[: 2 * POSE_SIZE, 2 * code_size - POSE_SIZE : 2 * code_size] = torch.cat([pose, -pose])
    last[code_size - POSE_SIZE : code_size] = 0
    last[code_size - POSE_SIZE : code_size, : 2 * POSE_SIZE] = torch.cat([pose, -pose], dim=1)


class MiddleHead(nn.Module):
    """q(z | x), of the first numbers of a code by the middle of the picture alone, of the last ones with the pose as
    their mean, and sure of it from the beginning.

    Args:
        head: what the model has by itself; it sees an embedding of twice the code's size, and maybe more.
        model: whose head it will be.
    """

    def __init__(self, head: CodeHead, model: EpisodicModel) -> None:
        super().__init__()
        code_size = model.config.code_size
        inputs = head.layers[0].get_parameter("weight").shape[1]
        self.pose = slice(2 * code_size - POSE_SIZE, 2 * code_size)
        self.seen, first = share(2 * code_size), share(code_size)
        self.middle = CodeHead(self.seen, first, model.head_activation)
        self.rest = CodeHead(inputs, code_size - first, model.head_activation)

    def forward(self, embeddings: Tensor) -> CodePosterior:
        """Embeddings [.., inputs] -> posterior of codes [.., C]."""
        rest, pose = self.rest(embeddings).cut(-POSE_SIZE)
        pose = CodePosterior(embeddings[..., self.pose].to(pose.mean), SURE * pose.var)
        return self.middle(embeddings[..., : self.seen]).joined(rest).joined(pose)
