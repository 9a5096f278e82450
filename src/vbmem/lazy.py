"""Packages whose names are imported when they are first used, so that help and settings need no torch.

What `lazy_loader.attach_stub` does, in the few lines we need of it: the machines we train on have no lazy_loader.
"""

import ast
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def attach_stub(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the `from .module import name` lines of its stub.

    Args:
        package: its `__name__`.
        file: its `__file__`, beside which lies `__init__.pyi`.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    module_of = {alias.name: f".{node.module}" for node in imports for alias in node.names}

    def get_attribute(name: str) -> Any:
        if name in module_of:
            return getattr(import_module(module_of[name], package), name)
        if find_spec(f"{package}.{name}"):
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get_attribute, lambda: sorted(module_of), sorted(module_of)
