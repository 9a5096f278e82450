"""The image sets known by name. A new one is a file beside this and an entry here."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from vbmem.data.download import Archive
from vbmem.data.image_set import ImageSet
from vbmem.data.known import celeba, cifar10, digits, mnist, omniglot


@dataclass(frozen=True)
class KnownSet:
    """How a set is made from its official files, and what its .npz may be called in the data directory."""

    load: Callable[[Path, bool], ImageSet]  # (data directory, progress bars)
    stored_as: tuple[str, ...]  # the first name is the one we write
    official: tuple[str, ...] = ()  # the files below the data directory that it is made from
    subsets: dict[str, Callable[[ImageSet], ImageSet]] = field(default_factory=dict)  # parts of it with a name

    def stored_in(self, directory: Path) -> Path | None:
        """The set's .npz in this directory, if there is one."""
        return next((path for file in self.stored_as if (path := directory / file).is_file()), None)

    def is_in(self, directory: Path) -> bool:
        """Whether the directory holds the set, as .npz or as its official files, so that nothing is downloaded."""
        complete = bool(self.official) and all((directory / file).is_file() for file in self.official)
        return complete or self.stored_in(directory) is not None


def _files(*archives: Archive) -> tuple[str, ...]:
    return tuple(archive.file for archive in archives)


KNOWN_SETS: dict[str, KnownSet] = {
    "cifar10": KnownSet(cifar10.load, ("cifar10.npz",), _files(cifar10.ARCHIVE)),
    "celeba": KnownSet(
        celeba.load,
        ("celeba.npz", "celeba32.npz"),
        (celeba.FACES, celeba.PARTITION),
        {"five-each": celeba.five_each},
    ),
    "mnist": KnownSet(mnist.load_mnist, ("mnist.npz",), _files(*mnist.MNIST)),
    "fashion-mnist": KnownSet(mnist.load_fashion_mnist, ("fashion-mnist.npz",), _files(*mnist.FASHION_MNIST)),
    "omniglot": KnownSet(
        omniglot.load, ("omniglot.npz", "omniglot28.npz"), _files(omniglot.BACKGROUND, omniglot.EVALUATION)
    ),
    "digits": KnownSet(digits.load, ()),  # scikit-learn carries it: nothing to keep
}
