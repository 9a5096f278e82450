"""The image sets known by name. A new one is a file beside this and an entry here."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vbmem.data.image_set import ImageSet
from vbmem.data.known import celeba, cifar10, digits, mnist, omniglot


@dataclass(frozen=True)
class KnownSet:
    """How a set is made from its official files, and what its .npz may be called in the data directory."""

    load: Callable[[Path, bool], ImageSet]  # (data directory, progress bars)
    stored_as: tuple[str, ...]  # the first name is the one we write


KNOWN_SETS: dict[str, KnownSet] = {
    "cifar10": KnownSet(cifar10.load, ("cifar10.npz",)),
    "celeba": KnownSet(celeba.load, ("celeba.npz", "celeba32.npz")),
    "mnist": KnownSet(mnist.load_mnist, ("mnist.npz",)),
    "fashion-mnist": KnownSet(mnist.load_fashion_mnist, ("fashion-mnist.npz",)),
    "omniglot": KnownSet(omniglot.load, ("omniglot.npz", "omniglot28.npz")),
    "digits": KnownSet(digits.load, ()),  # scikit-learn carries it: nothing to keep
}
