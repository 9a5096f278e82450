"""Example pictures: drawn by a seed, fitted to any model, and never downloaded."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tiny import noise
from vbmem.data import ImageSet, examples
from vbmem.data.known import KNOWN_SETS
from vbmem.errors import DataError
from vbmem.nets import FrameFormat

COLOUR = FrameFormat(32, 3)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """What looks like CIFAR-10, with 40 test pictures."""
    pictures = noise(50, 32)
    ImageSet("cifar10", pictures[:10], x_test=pictures[10:]).save(tmp_path / "cifar10.npz")
    return tmp_path


@pytest.mark.parametrize(("size", "channels"), [(8, 1), (32, 3)])
def test_examples_fit_any_model(size: int, channels: int, data_dir: Path) -> None:
    frame = FrameFormat(size, channels)
    for source in examples.sources(data_dir):
        frames = examples.draw(source, 5, frame, 3, data_dir)
        assert frames.dtype == torch.uint8
        assert frames.shape == (5, channels, size, size)
        assert torch.equal(frames, examples.draw(source, 5, frame, 3, data_dir))
        assert not torch.equal(frames, examples.draw(source, 5, frame, 4, data_dir))


@pytest.mark.parametrize("channels", [1, 3])
def test_familiar_and_unfamiliar_sources_differ_and_need_no_data(channels: int) -> None:
    named = {examples.FAMILIAR[channels], examples.UNFAMILIAR[channels]}
    assert len(named) == 2
    assert named <= set(examples.sources(None))


def test_cifar10_is_offered_only_where_it_is_kept(tmp_path: Path) -> None:
    assert "CIFAR-10" not in examples.sources(None)
    with pytest.raises(DataError, match=r"holds no cifar10.npz"):
        examples.sources(tmp_path)
    (tmp_path / "cifar10.npz").touch()
    assert "CIFAR-10" in examples.sources(tmp_path)


@pytest.mark.usefixtures("no_network")
def test_nothing_is_downloaded_for_an_example(tmp_path: Path) -> None:
    message = r"holds no cifar10\.npz or cifar-10-python\.tar\.gz; name the directory that holds CIFAR-10"
    for draw in (
        lambda: examples.draw("CIFAR-10", 3, COLOUR, 0, tmp_path),
        lambda: examples.draw_episode(3, COLOUR, tmp_path, 0),
        lambda: examples.draw_sets([3], COLOUR, tmp_path, 0),
    ):
        with pytest.raises(DataError, match=message):
            draw()


def test_an_episode_is_of_both_photographs_and_the_seed_decides_it() -> None:
    first, again, other = (examples.draw_episode(9, FrameFormat(16, 3), None, seed) for seed in (0, 0, 1))
    assert first.shape == (9, 3, 16, 16)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    crops = np.stack([examples.photograph_crops(name, 5, 16) for name in examples.PHOTOGRAPHS.values()])
    drawn = {x.numpy().tobytes() for x in first.movedim(1, -1).contiguous()}
    assert [len(drawn & {x.tobytes() for x in part}) for part in crops] in ([4, 5], [5, 4])


def test_no_picture_is_in_two_sets(data_dir: Path) -> None:
    sets = examples.draw_sets([20, 12, 8], COLOUR, data_dir, seed=0)
    assert [len(pictures) for pictures in sets] == [20, 12, 8]
    assert len(torch.cat(sets).flatten(1).unique(dim=0)) == 40
    with pytest.raises(DataError, match=r"41 test pictures are needed, CIFAR-10 in .* has 40"):
        examples.draw_sets([20, 12, 9], COLOUR, data_dir, seed=0)


def test_a_known_set_is_there_as_npz_or_with_all_its_official_files(tmp_path: Path) -> None:
    for name, known in KNOWN_SETS.items():
        assert not known.is_in(tmp_path)
        for files in [(file,) for file in known.stored_as] + [known.official] * bool(known.official):
            folder = tmp_path / name / files[0].replace("/", "-")
            for number, file in enumerate(files):
                assert not known.is_in(folder), (name, number)
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                (folder / file).touch()
            assert known.is_in(folder)


def test_characters_are_drawn_in_ink_by_five_people_each() -> None:
    drawings = examples.characters()
    assert drawings.dtype == torch.uint8
    assert drawings.shape == (8, 5, 1, 28, 28)
    assert len(drawings.flatten(0, 1).flatten(1).unique(dim=0)) == 40
    assert (drawings.amax((-3, -2, -1)) == 255).all()
    assert float((drawings > 127).double().mean()) < 0.3
    assert "Copyright (c) 2015 Brenden Lake" in examples.CHARACTERS.with_suffix(".LICENSE").read_text()
