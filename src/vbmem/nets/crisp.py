"""From codes to crisp pictures: p(x | z) as a flow, a second decoder beside the one that scores."""

from typing import Self

import torch
from torch import Tensor, nn

from vbmem.nets.flow import FlowErrors, flow_errors, follow
from vbmem.nets.pixels import FrameFormat
from vbmem.nets.precision import at_least_float32
from vbmem.nets.registry import build_shortcuts

MEAN_NOISE = 0.2  # that is added to a mean picture, on the scale from -1 to 1: about as much as such pictures err


class CrispDecoder(nn.Module):
    """Paints codes: one draw of x ~ p(x | z) for every code and its noise.

    A mean over all pictures that a code may stand for is blurred; a draw is not. It has no density one could read off,
    so scores and bounds have nothing to do with it.

    Args:
        frame: what frames look like.
        code_size: size C of the codes.
        style: the network, by the name it is registered under.
        width: how wide it is.
        blocks: residual blocks at each size of its features, on either way.
        attention: whether the places of its smallest features attend to each other.
        sees_mean: whether the flow begins at the mean picture of each code, by the other decoder, with a little noise,
            and the network sees it beside the code; otherwise it begins at noise alone. The way to a picture is then
            short, and much is right before anything is learned (Ohayon, Michaeli and Elad 2024).
    """

    network_dtype: torch.dtype = torch.float32
    """May be bfloat16: the network then runs under autocast, everything else in float32."""

    def __init__(
        self,
        frame: FrameFormat,
        code_size: int,
        *,
        style: str = "unet",
        width: int = 64,
        blocks: int = 2,
        attention: bool = True,
        sees_mean: bool = False,
    ) -> None:
        super().__init__()
        self.frame, self.code_size, self.sees_mean = frame, code_size, sees_mean
        sizes = {"width": width, "blocks": blocks, "attention": attention, "sees_mean": sees_mean}
        self.settings = {"style": style, **sizes}  # with which it is built again
        self.shortcuts = build_shortcuts(style, frame, code_size, **sizes)

    def errors(
        self, frames: Tensor, codes: Tensor, means: Tensor | None = None, *, taught: int | None = None
    ) -> FlowErrors:
        """What training lowers; see `flow_errors`.

        Args:
            frames: [N, channels, H, W] in [0, 1].
            codes: of each, [N, C].
            means: mean pictures of the codes, for a decoder that sees them.
            taught: how many, the first ones, are asked for shortcuts; by default a quarter of all.
        """
        data, conditions = 2 * frames - 1, self._conditions(codes, means)
        return flow_errors(self._directions, data, _begin(torch.randn_like(data), means), *conditions, taught=taught)

    @torch.no_grad()
    def paint(self, codes: Tensor, steps: int, noise: Tensor, means: Tensor | None = None) -> Tensor:
        """One picture of each code, in [0, 1]: [N, channels, H, W]. It follows from the code and its noise alone.

        Args:
            codes: [N, C].
            steps: through the flow: 1, 2, 4 and so on; more take longer.
            noise: N(0, I), [N, channels, H, W]; see `noise`.
            means: mean pictures of the codes, for a decoder that sees them.
        """
        if steps < 1:
            raise ValueError(f"a picture is painted in at least 1 step, got {steps}")
        conditions = self._conditions(codes, means)
        painted = follow(self._directions, _begin(noise, means), steps, *conditions)
        return ((painted + 1) / 2).clamp(0, 1)

    def noise(self, count: int, generator: torch.Generator | None = None) -> Tensor:
        """What so many pictures are painted from; without a generator, the same at every call."""
        device = next(self.parameters()).device
        if generator is None:
            generator = torch.Generator(device).manual_seed(0)
        shape = (count, self.frame.channels, self.frame.size, self.frame.size)
        return torch.randn(shape, generator=generator, device=generator.device).to(device)

    def place_on(self, device: torch.device, network_dtype: torch.dtype = torch.float32) -> Self:
        """Move to a device, as it is trained and used there: channels last, on CUDA in the given precision."""
        self.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        if device.type == "cuda":
            self.network_dtype = network_dtype
        return self

    def _conditions(self, codes: Tensor, means: Tensor | None) -> tuple[Tensor, ...]:
        if (means is not None) != self.sees_mean:
            raise ValueError(
                "this crisp decoder sees mean pictures; give those of the codes"
                if self.sees_mean
                else "this crisp decoder sees no mean pictures; leave them out"
            )
        return (codes,) if means is None else (codes, means)

    def _directions(self, points: Tensor, *others: Tensor) -> Tensor:
        """What the network says, in float32: [N, channels, H, W]."""
        laid_out = points.contiguous(memory_format=torch.channels_last)
        with torch.autocast(points.device.type, self.network_dtype, enabled=self.network_dtype != torch.float32):
            return at_least_float32(self.shortcuts(laid_out, *others))


def _begin(noise: Tensor, means: Tensor | None) -> Tensor:
    """Where the flow begins, from N(0, I) and maybe mean pictures in [0, 1], all [N, channels, H, W]."""
    return noise if means is None else 2 * means - 1 + MEAN_NOISE * noise
