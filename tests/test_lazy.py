"""Packages that import their names when they are first used."""

import subprocess
import sys

import pytest

import vbmem
import vbmem.models


@pytest.mark.parametrize("package", ["vbmem", "vbmem.data", "vbmem.models", "vbmem.train", "vbmem.pretrained"])
def test_every_name_of_a_package_is_there(package):
    module = __import__(package, fromlist=["x"])
    assert module.__all__ == dir(module)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_modules_are_attributes_too_and_nothing_else_is():
    assert vbmem.memory.MixtureMemory is vbmem.MixtureMemory
    name = "elephant"
    with pytest.raises(AttributeError, match=r"module 'vbmem\.models' has no attribute 'elephant'"):
        getattr(vbmem.models, name)


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, vbmem, vbmem.paper.presets; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "numpy", "sklearn", "rich", "tyro"} & set(loaded)
