"""Memory files that are not what they should be."""

from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file


def rewrite(path: Path, drop: str | None = None, **metadata: str) -> None:
    """The same file with some metadata changed or a tensor left out."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in list(file.keys()) if name != drop}
        metadata = file.metadata() | metadata
    save_file(tensors, path, metadata)
