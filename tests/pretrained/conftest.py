import pytest
from PIL import Image

import vbmem
from tiny import as_bytes, waves
from vbmem.data.examples import photograph_crops


@pytest.fixture(scope="session", params=["cifar10-mixture", "cifar10-tree"])
def shipped_model(request):
    return vbmem.load(request.param)


@pytest.fixture(scope="session")
def mixture():
    return vbmem.load("cifar10-mixture")


@pytest.fixture(scope="session")
def china():
    """Crops of a photograph, uint8 [64, 32, 32, 3]."""
    return photograph_crops("china", 64, 32)


@pytest.fixture
def folder(tmp_path):
    """Five pictures of 8 x 8 as files, in the order of their names."""
    path = tmp_path / "pictures"
    path.mkdir()
    for index, pixels in enumerate(as_bytes(waves(5, 8))):
        Image.fromarray(pixels).save(path / f"{index}.png")
    return path
