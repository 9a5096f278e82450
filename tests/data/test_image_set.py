import io
import os
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiny import noise
from vbmem.data import ImageSet, image_set
from vbmem.errors import DataError


@given(count=st.integers(10, 2000))
def test_train_and_valid_cut_the_training_part_at_nine_tenths(count):
    images = np.zeros((count, 1, 1, 1), np.uint8)
    whole: Any = ImageSet("some", images, np.arange(count))
    (x_train, y_train), (x_valid, y_valid) = whole.split("train"), whole.split("valid")
    assert len(x_valid) == count // 10
    assert len(x_train) == len(y_train) == count - count // 10
    assert np.array_equal(np.concatenate([y_train, y_valid]), np.arange(count))


@pytest.mark.parametrize(("count", "train"), [(50_000, 45_000), (162_770, 146_493)])
def test_split_sizes_are_the_papers(count, train):
    images = np.zeros((count, 1, 1, 1), np.uint8)
    assert len(ImageSet("some", images).split("train")[0]) == train


def labels_of_parts(labels: np.ndarray) -> tuple[list[int], list[int]]:
    whole: Any = ImageSet("some", np.zeros((len(labels), 1, 1, 1), np.uint8), labels)
    return whole.split("train")[1].tolist(), whole.split("valid")[1].tolist()


@given(labels=st.integers(15, 100), each=st.integers(1, 20))
def test_labels_in_order_are_in_one_part_only(labels, each):
    train, valid = labels_of_parts(np.repeat(np.arange(labels), each))
    assert train + valid == sorted(train + valid)
    assert set(train) | set(valid) == set(range(labels))
    assert not set(train) & set(valid)
    assert 0.05 < len(valid) / (labels * each) < 0.15


def test_of_omniglots_964_characters_868_are_for_training():
    train, valid = labels_of_parts(np.repeat(np.arange(964), 20))
    assert (len(set(train)), len(set(valid))) == (868, 96)


@pytest.mark.parametrize(
    "labels",
    [np.arange(200) % 7, np.repeat([0, 1], 100), np.repeat([0, 1], [199, 1]), np.zeros(200, int)],
    ids=["mixed", "two", "a small last one", "one"],
)
def test_the_cut_stays_where_labels_are_in_no_order_or_too_large(labels):
    train, valid = labels_of_parts(labels)
    assert train == labels[:180].tolist()
    assert valid == labels[180:].tolist()


def test_official_validation_part_is_kept_but_not_used():
    whole = ImageSet("faces", noise(20), x_valid=noise(5, seed=1))
    assert np.array_equal(whole.split("valid")[0], whole.x_train[18:])


def test_episodes_by_label_take_the_official_validation_part_where_there_is_one():
    people = np.random.default_rng(0).permutation(
        np.arange(10).repeat(2)
    )  # in no order: a cut would part their pictures
    whole: Any = ImageSet("faces", noise(20), people, x_valid=noise(6, seed=1), y_valid=np.arange(3).repeat(2) + 10)
    parts = {part: whole.split(part, "by-label")[1].tolist() for part in ("train", "valid")}
    assert parts == {"train": people.tolist(), "valid": [10, 10, 11, 11, 12, 12]}
    without: Any = ImageSet("faces", noise(20), people)
    assert without.split("valid", "by-label")[1].tolist() == people[18:].tolist()


def test_test_part_is_the_official_one():
    whole: Any = ImageSet("some", noise(2), None, noise(3, seed=1), np.arange(3))
    images, labels = whole.split("test")
    assert np.array_equal(images, whole.x_test)
    assert np.array_equal(labels, [0, 1, 2])


def test_missing_parts_are_explained():
    few: Any = ImageSet("few", noise(9))
    assert len(few.split("train")[0]) == 9
    with pytest.raises(DataError, match="few has no test images"):
        few.split("test")
    with pytest.raises(DataError, match="at least 10 are needed"):
        few.split("valid")
    with pytest.raises(DataError, match="no part 'dev'"):
        few.split("dev")


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((3, 8, 8, 3), np.float32),
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((3, 3, 8, 8), np.uint8),
        np.zeros((0, 8, 8, 3), np.uint8),
    ],
    ids=["floats", "no channel axis", "channels first", "empty"],
)
def test_images_of_a_wrong_shape_or_type_are_refused(images):
    with pytest.raises(DataError, match=r"x_train is .* expected a non-empty uint8 array"):
        ImageSet("bad", images)


@pytest.mark.parametrize("labels", [np.arange(4), np.zeros(3), np.zeros((3, 1), int)])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(DataError, match=r"y_train is .* each of the 3 images"):
        ImageSet("bad", noise(3), labels)


def test_parts_of_different_picture_sizes_are_refused():
    with pytest.raises(DataError, match="bring them to one size"):
        ImageSet("bad", noise(3), None, noise(3, size=9))


def test_labels_without_images_are_refused():
    with pytest.raises(DataError, match="x_test is missing"):
        ImageSet("bad", noise(3), y_test=np.arange(3))


def test_a_saved_set_comes_back(tmp_path):
    saved = ImageSet("mine", noise(3), np.arange(3), x_valid=noise(2))
    saved.save(tmp_path / "new" / "file.npz")
    loaded = ImageSet.from_npz(tmp_path / "new" / "file.npz")
    assert loaded.name == "mine"
    assert loaded.x_test is None
    for part in ("x_train", "y_train", "x_valid"):
        assert np.array_equal(getattr(loaded, part), getattr(saved, part))
    assert os.listdir(tmp_path / "new") == ["file.npz"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "set.npz"
    ImageSet("old", noise(3)).save(path)

    def full_disk(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    with pytest.raises(DataError, match="No space left"):
        ImageSet("new", noise(3)).save(path)
    assert ImageSet.from_npz(path).name == "old"
    assert os.listdir(tmp_path) == ["set.npz"]


def test_saving_below_a_file_is_a_data_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot write"):
        ImageSet("some", noise(3)).save(tmp_path / "file" / "set.npz")


def test_a_foreign_npz_is_called_after_its_file_and_may_lack_the_channel_axis(tmp_path):
    np.savez(tmp_path / "keras.npz", x_train=np.zeros((3, 8, 8), np.uint8), y_train=np.arange(3), extra=1)
    loaded = ImageSet.from_npz(tmp_path / "keras.npz")
    assert loaded.name == "keras"
    assert loaded.x_train.shape == (3, 8, 8, 1)


@pytest.mark.parametrize("kept", [0, 3, 0.5, 0.99])
def test_a_truncated_npz_is_a_data_error_that_names_it(tmp_path, kept):
    path = tmp_path / "set.npz"
    ImageSet("some", noise(20)).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: kept if isinstance(kept, int) else int(kept * len(whole))])
    with pytest.raises(DataError, match=r"set\.npz is damaged .* delete it"):
        ImageSet.from_npz(path)


def test_a_flipped_byte_in_the_pixels_is_noticed(tmp_path):
    path = tmp_path / "set.npz"
    ImageSet("some", noise(20)).save(path)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="damaged"):
        ImageSet.from_npz(path)


def test_files_that_are_no_image_sets_are_refused(tmp_path):
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    np.savez(tmp_path / "floats.npz", x_train=np.zeros((3, 8, 8)))
    (tmp_path / "text.npz").write_text("not a zip file")
    with pytest.raises(DataError, match=r"array\.npy is not a file of images"):
        ImageSet.from_npz(tmp_path / "array.npy")
    with pytest.raises(DataError, match=r"other\.npz is not a file of images"):
        ImageSet.from_npz(tmp_path / "other.npz")
    with pytest.raises(DataError, match=r"floats\.npz does not hold .* float64"):
        ImageSet.from_npz(tmp_path / "floats.npz")
    with pytest.raises(DataError, match=r"text\.npz is damaged"):
        ImageSet.from_npz(tmp_path / "text.npz")
    with pytest.raises(DataError, match=r"no file .*absent\.npz"):
        ImageSet.from_npz(tmp_path / "absent.npz")


def test_pickled_objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "objects.npz", x_train=np.array([{"an": "object"}]))
    with pytest.raises(DataError, match="damaged or not the expected file"):
        ImageSet.from_npz(tmp_path / "objects.npz")


def test_a_small_npz_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    """A black megapixel, of which numpy's header and the zip's directory say that it is ten thousand of them."""
    path, bomb = tmp_path / "bomb.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(
        bomb, {"descr": "|u1", "fortran_order": False, "shape": (10_000, 1000, 1000, 1)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x_train.npy", bomb.getvalue() + bytes(10**6))
        archive.getinfo("x_train.npy").file_size = 10**10
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match=r"bomb\.npz would grow from 0\.00\d+ MB to 10000 MB when it is unpacked"):
        ImageSet.from_npz(path)


def test_an_npz_may_be_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(image_set, "HARMLESS", 1000)
    pictures = np.repeat(noise(8), 5, axis=0)
    np.savez_compressed(tmp_path / "small.npz", x_train=pictures)
    assert (ImageSet.from_npz(tmp_path / "small.npz").x_train == pictures).all()
