"""Memory files that are not what they should be, and yet match their checksum."""

from pathlib import Path

from vbmem.files import read_tensors, write_tensors


def rewrite(path: Path, drop: str | None = None, **metadata: str) -> None:
    """The same file with some metadata changed or a tensor left out."""
    tensors, old = read_tensors(path, "cpu")
    write_tensors(path, {name: tensor for name, tensor in tensors.items() if name != drop}, old | metadata)
