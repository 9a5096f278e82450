import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest

from tiny import noise
from vbmem.data import ImageSet, load_images
from vbmem.data.known import KNOWN_SETS, KnownSet
from vbmem.errors import DataError


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    """Neither the user's data nor the user's environment may touch a test."""
    cache = tmp_path / "cache"
    monkeypatch.delenv("VBMEM_DATA", raising=False)
    monkeypatch.setattr(pooch, "os_cache", lambda name: cache)
    return cache


@pytest.mark.parametrize(("shape", "expected"), [((5, 8, 8), (5, 8, 8, 1)), ((5, 8, 8, 3), (5, 8, 8, 3))])
def test_an_array_is_an_image_set(shape, expected):
    images = load_images(np.zeros(shape, np.uint8))
    assert images.x_train.shape == expected
    assert images.y_train is None


def test_an_array_of_floats_is_refused():
    with pytest.raises(DataError, match="array: x_train is float64"):
        load_images(np.zeros((5, 8, 8)))


def test_an_npz_path_is_an_image_set(tmp_path):
    ImageSet("mine", noise(3)).save(tmp_path / "mine.npz")
    assert load_images(tmp_path / "mine.npz").name == "mine"
    assert load_images(str(tmp_path / "mine.npz")).name == "mine"


@pytest.mark.parametrize(
    ("name", "file"),
    [("cifar10", "cifar10.npz"), ("celeba", "celeba32.npz"), ("omniglot", "omniglot28.npz"), ("mnist", "mnist.npz")],
)
def test_a_known_set_is_found_in_the_data_directory(name, file, tmp_path, no_network):
    np.savez(tmp_path / file, x_train=noise(3))
    assert load_images(name, data_dir=tmp_path).name == name


def test_data_dir_wins_over_the_environment_and_that_over_the_cache(tmp_path, empty_cache, monkeypatch):
    for count, folder in [(1, "given"), (2, "environment"), (3, "cache")]:
        ImageSet("mnist", noise(count)).save(tmp_path / folder / "mnist.npz")
    assert len(load_images("mnist").x_train) == 3
    monkeypatch.setenv("VBMEM_DATA", str(tmp_path / "environment"))
    assert len(load_images("mnist").x_train) == 2
    assert len(load_images("mnist", data_dir=tmp_path / "given").x_train) == 1


@pytest.mark.parametrize("name", [name for name in KNOWN_SETS if name not in ("digits", "celeba")])
def test_without_a_network_every_known_set_says_what_to_fetch(name, tmp_path, no_network):
    with pytest.raises(DataError, match=r"cannot download http.* put it at .*VBMEM_DATA"):
        load_images(name, data_dir=tmp_path, progress=False)


def test_a_decoded_set_is_kept_for_the_next_time(tmp_path, monkeypatch):
    def load(data_dir, progress):
        calls.append(data_dir)
        return ImageSet("tiny", noise(3))

    calls: list[Path] = []
    monkeypatch.setitem(KNOWN_SETS, "tiny", KnownSet(load, ("tiny.npz",)))
    first, second = (load_images("tiny", data_dir=tmp_path) for _ in range(2))
    assert calls == [tmp_path]
    assert np.array_equal(first.x_train, second.x_train)


@pytest.mark.parametrize(
    ("typed", "meant"), [("cifar", "cifar10"), ("CIFAR10", "cifar10"), ("fashion_mnist", "fashion-mnist")]
)
def test_an_unknown_name_lists_the_known_and_the_nearest(typed, meant):
    with pytest.raises(DataError) as caught:
        load_images(typed)
    assert f"did you mean '{meant}'?" in str(caught.value)
    assert all(name in str(caught.value) for name in KNOWN_SETS)


def test_a_path_that_does_not_exist_is_named():
    with pytest.raises(DataError, match=r"'/nowhere/at-all' is neither"):
        load_images("/nowhere/at-all")


def test_a_known_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_images("digits").name == "digits"
    with pytest.raises(DataError, match="holds no pictures"):
        load_images("./digits")


@pytest.mark.parametrize("channels", [1, 3])
def test_size_resizes_every_part(tmp_path, channels):
    grey = np.full((3, 10, 10, channels), 77, np.uint8)
    ImageSet("some", grey, x_test=grey[:2]).save(tmp_path / "some.npz")
    images: Any = load_images(tmp_path / "some.npz", size=4)
    assert images.x_train.shape == (3, 4, 4, channels)
    assert images.x_test.shape == (2, 4, 4, channels)
    assert images.x_valid is None
    assert (images.x_train == 77).all()


def test_a_size_below_one_is_refused():
    with pytest.raises(DataError, match="size is 0"):
        load_images("digits", size=0)


@pytest.mark.parametrize(
    ("source", "subset", "advice"),
    [
        ("digits", "five-each", "digits has no subset 'five-each'; choose none"),
        ("celeba", "ten-each", "celeba has no subset 'ten-each'; choose five-each or none"),
        ("./celeba", "five-each", "./celeba has no subset"),
        (np.zeros((2, 4, 4), np.uint8), "five-each", "an array has no subset"),
    ],
    ids=["digits", "celeba", "folder", "array"],
)
def test_a_subset_that_a_set_does_not_have_is_refused(source, subset, advice):
    with pytest.raises(DataError, match=advice):
        load_images(source, subset=subset)


def test_importing_the_package_loads_no_heavy_library():
    program = "import sys, vbmem; before = {*sys.modules}; import vbmem.data; print(*({*sys.modules} - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    packages = {module.split(".")[0] for module in done.stdout.split()}
    assert packages.isdisjoint({"sklearn", "PIL", "pooch", "requests", "rich"})
