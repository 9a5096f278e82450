"""Encoder-decoder pairs by name, so that settings and a saved model can say which they have."""

from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from vbmem.errors import ModelError
from vbmem.nets.pixels import FrameFormat


class Networks(NamedTuple):
    """An encoder and a decoder that belong together.

    Attributes:
        encoder: frames [N, channels, H, W] in [0, 1] -> embeddings [N, E].
        decoder: codes [N, C] -> `Pixels`, a distribution over frames.
        activation: makes the nonlinearity of the small heads between them.
    """

    encoder: nn.Module
    decoder: nn.Module
    activation: Callable[[], nn.Module] = nn.ReLU


MakeNetworks = Callable[[FrameFormat, int, int, int], Networks]
_registered: dict[str, MakeNetworks] = {}


def register(name: str) -> Callable[[MakeNetworks], MakeNetworks]:
    """Decorates a function `(frame, filters, embedding_size, code_size) -> Networks`: models can then be built, saved
    and loaded with the pair under this name, wherever the function's module is imported first.

    Raises:
        ValueError: where another function has the name. The same one, defined again as in a notebook, replaces itself.
    """

    def decorate(make: MakeNetworks) -> MakeNetworks:
        holder = _registered.get(name, make)
        if (holder.__module__, holder.__qualname__) != (make.__module__, make.__qualname__):
            raise ValueError(f"networks {name!r} are already made by {holder.__module__}; choose another name")
        _registered[name] = make
        return make

    return decorate


def build_networks(name: str, frame: FrameFormat, filters: int, embedding_size: int, code_size: int) -> Networks:
    """The pair registered under a name, untrained.

    Args:
        name: as it was registered.
        frame: what frames look like.
        filters: how wide the networks are; the channels of every convolution, where they have them.
        embedding_size: size E of the encoder's output.
        code_size: size C of the decoder's input.

    Raises:
        ModelError: where nobody registered the name.
    """
    if name not in _registered:
        raise ModelError(
            f"there are no networks {name!r}; known are {', '.join(_registered)}: import the module that registers "
            "others, or choose one of these"
        )
    return _registered[name](frame, filters, embedding_size, code_size)
