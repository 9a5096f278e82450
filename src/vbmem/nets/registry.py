"""Networks by name, so that settings and a saved model can say which they have: encoder-decoder pairs, and those of
crisp decoders."""

from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from torch import nn

from vbmem.errors import ModelError
from vbmem.nets.pixels import FrameFormat

Make = TypeVar("Make", bound=Callable[..., Any])


class Registry(Generic[Make]):
    """What makes networks, by name; `kind` is what messages call them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.known: dict[str, Make] = {}

    def register(self, name: str) -> Callable[[Make], Make]:
        """Decorates what makes the networks of this name.

        Raises:
            ValueError: where another function has the name. The same one, defined again as in a notebook, replaces
                itself.
        """

        def decorate(make: Make) -> Make:
            holder = self.known.get(name, make)
            if (holder.__module__, holder.__qualname__) != (make.__module__, make.__qualname__):
                raise ValueError(f"{self.kind} {name!r} are already made by {holder.__module__}; choose another name")
            self.known[name] = make
            return make

        return decorate

    def find(self, name: str) -> Make:
        """What is registered under a name.

        Raises:
            ModelError: where nobody registered it.
        """
        if name not in self.known:
            raise ModelError(
                f"there are no {self.kind} {name!r}; known are {', '.join(self.known)}: import the module that "
                "registers others, or choose one of these"
            )
        return self.known[name]


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
_pairs = Registry[MakeNetworks]("networks")
_registered = _pairs.known
_shortcuts = Registry[Callable[..., nn.Module]]("networks of a crisp decoder")


def register(name: str) -> Callable[[MakeNetworks], MakeNetworks]:
    """Decorates a function `(frame, filters, embedding_size, code_size) -> Networks`: models can then be built, saved
    and loaded with the pair under this name, wherever the function's module is imported first.

    Raises:
        ValueError: where another function has the name. The same one, defined again as in a notebook, replaces itself.
    """
    return _pairs.register(name)


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
    return _pairs.find(name)(frame, filters, embedding_size, code_size)


MakeShortcuts = TypeVar("MakeShortcuts", bound=Callable[..., nn.Module])


def register_shortcuts(name: str) -> Callable[[MakeShortcuts], MakeShortcuts]:
    """Decorates a class or function `(frame, code_size, *, width, blocks, attention, sees_mean)` that makes the network
    of a crisp decoder, called with points, times, lengths, codes and, where it sees them, mean pictures; see `UNet`.

    Raises:
        ValueError: where another has the name.
    """
    return _shortcuts.register(name)  # type: ignore[return-value]


def build_shortcuts(name: str, frame: FrameFormat, code_size: int, **sizes: Any) -> nn.Module:
    """The network of a crisp decoder registered under a name, untrained.

    Args:
        name: as it was registered.
        frame: what frames look like.
        code_size: size C of the codes.
        sizes: `width`, `blocks`, `attention` and `sees_mean`; see `UNet`.

    Raises:
        ModelError: where nobody registered the name.
    """
    return _shortcuts.find(name)(frame, code_size, **sizes)
