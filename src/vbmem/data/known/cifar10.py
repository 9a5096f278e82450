"""CIFAR-10: 50,000 + 10,000 colour pictures of 32 x 32, ten classes (Krizhevsky, 2009)."""

import pickle
import tarfile
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from vbmem.data.download import Archive, fetch
from vbmem.data.image_set import Images, ImageSet, Labels
from vbmem.files import reading

ARCHIVE = Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    file="cifar-10-python.tar.gz",
)
TRAIN = [f"cifar-10-batches-py/data_batch_{i}" for i in range(1, 6)]
TEST = "cifar-10-batches-py/test_batch"


def load(data_dir: Path, progress: bool) -> ImageSet:
    return decode(fetch(ARCHIVE, data_dir, progress))


def decode(archive: Path) -> ImageSet:
    """Read the official python archive as a stream; nothing is extracted to disk."""
    batches: dict[str, tuple[Images, Labels]] = {}
    with reading(archive):
        with tarfile.open(archive, "r|gz") as tar:
            for member in tar:
                wanted = member.isfile() and member.name in (*TRAIN, TEST)
                if wanted and (file := tar.extractfile(member)):
                    batches[member.name] = _batch(file)
        if missing := {*TRAIN, TEST} - batches.keys():
            raise ValueError(f"it lacks {min(missing)}")
    images, labels = map(np.concatenate, zip(*(batches[name] for name in TRAIN), strict=True))
    return ImageSet("cifar10", images, labels, *batches[TEST])


def _batch(file: IO[bytes]) -> tuple[Images, Labels]:
    contents = _ArrayUnpickler(file, encoding="bytes").load()
    planes = contents[b"data"].reshape(-1, 3, 32, 32)
    return planes.transpose(0, 2, 3, 1), np.array(contents[b"labels"], np.int64)


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles containers, numbers, text and numpy arrays only: a pickle may otherwise run any code."""

    _allowed: ClassVar = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        # Python 2 and numpy 1 call the module numpy.core, numpy 2 numpy._core.
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no image batch needs")
        return self._allowed[module, name]
