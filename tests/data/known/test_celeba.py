import hashlib
import io
import zipfile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vbmem.data import ImageSet, load_images
from vbmem.data.known import celeba
from vbmem.errors import DataError


def face(shade, size=(178, 218)):
    """A JPEG that is `shade` inside the central 108 x 108 pixels and black outside."""
    image = Image.new("RGB", size)
    left, top = size[0] // 2 - 54, size[1] // 2 - 54
    image.paste((shade, shade, shade), (left, top, left + 108, top + 108))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=100)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    shades = {f"{i:06}.jpg": 40 * i for i in range(1, 6)}
    with zipfile.ZipFile(tmp_path / celeba.FACES, "w") as archive:
        archive.writestr("../outside.jpg", b"x")
        for name, shade in reversed(shades.items()):
            archive.writestr(f"img_align_celeba/{name}", face(shade))
    parts = zip(shades, [0, 0, 1, 2, 2], strict=True)
    (tmp_path / celeba.PARTITION).write_text("".join(f"{name} {part}\n" for name, part in parts))
    return tmp_path


def add_identities(folder, count=5):
    (folder / celeba.IDENTITIES).write_text("".join(f"{i:06}.jpg {100 + i}\n" for i in range(1, count + 1)))


def test_the_official_files_become_a_set_of_central_crops(folder):
    images = load_images("celeba", data_dir=folder, progress=False)
    for part, shades in [("x_train", [40, 80]), ("x_valid", [120]), ("x_test", [160, 200])]:
        pictures = getattr(images, part).astype(int)
        assert pictures.shape == (len(shades), 32, 32, 3)
        inside = pictures[:, 1:-1, 1:-1] - np.array(shades)[:, None, None, None]
        assert np.abs(inside).max() <= 3
    assert images.y_train is None
    assert (folder / "celeba.npz").is_file()


def test_identities_are_labels(folder):
    add_identities(folder)
    images: Any = load_images("celeba", data_dir=folder, progress=False)
    assert images.y_train.tolist() == [101, 102]
    assert images.y_valid.tolist() == [103]
    assert images.y_test.tolist() == [104, 105]


def test_absent_files_say_what_to_put_where(tmp_path):
    with pytest.raises(DataError) as caught:
        load_images("celeba", data_dir=tmp_path)
    for part in (celeba.FACES, celeba.PARTITION, celeba.IDENTITIES, str(tmp_path), "VBMEM_DATA"):
        assert part in str(caught.value)


def test_a_truncated_zip_is_named(folder):
    path = folder / celeba.FACES
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=r"img_align_celeba\.zip is damaged .* delete it"):
        load_images("celeba", data_dir=folder, progress=False)


@pytest.mark.parametrize("text", ["", "000001.jpg\n", "000001.jpg zero\n", "000001.jpg 0\n"])
def test_a_wrong_partition_file_is_named(folder, text):
    (folder / celeba.PARTITION).write_text(text)
    with pytest.raises(DataError, match=r"list_eval_partition\.txt is damaged"):
        load_images("celeba", data_dir=folder, progress=False)


def test_a_face_missing_from_the_zip_is_named(folder):
    with (folder / celeba.PARTITION).open("a") as file:
        file.write("000006.jpg 2\n")
    with pytest.raises(DataError, match=r"img_align_celeba\.zip .* lacks 000006\.jpg"):
        load_images("celeba", data_dir=folder, progress=False)


def test_a_face_without_identity_is_named(folder):
    add_identities(folder, count=4)
    with pytest.raises(DataError, match=r"identity_CelebA\.txt .*000005\.jpg"):
        load_images("celeba", data_dir=folder, progress=False)


def test_a_picture_too_small_to_crop_is_named(folder):
    with zipfile.ZipFile(folder / celeba.FACES, "a") as archive:
        archive.writestr("img_align_celeba/000006.jpg", face(9, size=(64, 64)))
    with (folder / celeba.PARTITION).open("a") as file:
        file.write("000006.jpg 2\n")
    with pytest.raises(DataError, match=r"000006\.jpg is 64 x 64; expected .* 178 x 218"):
        load_images("celeba", data_dir=folder, progress=False)


FACES = 202_599
FILE_NUMBERS = "62fb5c9d7da194a9ec5c75e9d25f48e44aab163ee08ec01dee2f33f7662b0c3d"  # sha256 of the 46,715, as int32
OFFICIAL = {"train": range(1, 162_771), "valid": range(162_771, 182_638), "test": range(182_638, FACES + 1)}


def numbered(labels=True):
    """All of CelebA with its file number in the place of every face: one pixel, whose three bytes it fills."""
    arrays: dict[str, Any] = {}
    for part, numbers in OFFICIAL.items():
        number = np.array(numbers)
        arrays[f"x_{part}"] = np.stack([number >> 16, number >> 8 & 255, number & 255], -1).astype(np.uint8)[
            :, None, None
        ]
        arrays[f"y_{part}"] = number + 1_000_000 if labels else None
    return ImageSet("celeba", **arrays)


def file_numbers(pictures):
    return pictures[:, 0, 0].astype(int) @ [1 << 16, 1 << 8, 1]


def test_five_of_each_person_are_picked_by_file_number_in_order(tmp_path):
    numbered().save(tmp_path / "celeba.npz")
    images: Any = load_images("celeba", data_dir=tmp_path, subset="five-each")
    numbers = {part: file_numbers(getattr(images, f"x_{part}")) for part in OFFICIAL}
    assert {part: len(found) for part, found in numbers.items()} == {"train": 37_540, "valid": 4_535, "test": 4_640}
    for part, found in numbers.items():
        assert (np.diff(found) > 0).all()
        assert found[0] in OFFICIAL[part]
        assert found[-1] in OFFICIAL[part]
        assert np.array_equal(getattr(images, f"y_{part}"), found + 1_000_000)
    assert numbers["train"][:10].tolist() == [1, 4, 17, 19, 21, 34, 36, 38, 53, 54]
    assert numbers["test"][-1] == FACES
    every = np.concatenate([*numbers.values()]).astype("<i4")
    assert hashlib.sha256(every.tobytes()).hexdigest() == FILE_NUMBERS


def test_faces_without_labels_are_picked_too():
    assert celeba.five_each(numbered(labels=False)).y_train is None


def test_five_of_each_person_stay_as_they_are():
    picked = celeba.five_each(numbered())
    assert celeba.five_each(picked) is picked


def test_a_file_that_is_neither_all_faces_nor_five_each_is_refused(tmp_path):
    np.savez(tmp_path / "celeba32.npz", x_train=np.zeros((30, 4, 4, 3), np.uint8))
    with pytest.raises(DataError, match=r"162,770 \+ 19,867 \+ 19,962, and this file has 30 \+ 0 \+ 0; give the whole"):
        load_images("celeba", data_dir=tmp_path, subset="five-each")
