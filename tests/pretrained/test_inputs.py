"""Whatever people have as pictures gives the same codes; whatever is no picture is refused in one sentence."""

import numpy as np
import pytest
import torch
from PIL import Image

from tiny import as_bytes, seeded, tiny_model, waves
from vbmem.pretrained.inputs import as_frames, to_unit

MODEL = tiny_model()
BYTES = as_bytes(waves(5, 8))  # [5, 8, 8, 3]
FIRST = np.ascontiguousarray(BYTES.transpose(0, 3, 1, 2))


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


KINDS = {
    "tensor": lambda folder: torch.from_numpy(FIRST),
    "array": lambda folder: FIRST,
    "read-only array": lambda folder: read_only(FIRST),
    "array that was mirrored twice": lambda folder: np.ascontiguousarray(FIRST[:, :, ::-1])[:, :, ::-1],
    "view of channels last": lambda folder: torch.from_numpy(BYTES).permute(0, 3, 1, 2),
    "folder": lambda folder: folder,
    "folder by name": lambda folder: str(folder),
    "paths": lambda folder: sorted(folder.iterdir()),
    "names in a tuple": lambda folder: tuple(str(path) for path in sorted(folder.iterdir())),
    "PIL images": lambda folder: [Image.fromarray(pixels) for pixels in BYTES],
    "files and PIL images": lambda folder: [folder / "0.png", *map(Image.fromarray, BYTES[1:])],
    "the bytes as floats": lambda folder: (torch.from_numpy(FIRST).float() + 0.5) / 256,
    "the bytes as float64": lambda folder: (FIRST + 0.5) / 256,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_input_gives_the_same_codes(kind, folder):
    expected = MODEL.network.infer((torch.from_numpy(FIRST).unsqueeze(0) + 0.5) / 256)
    q = MODEL.encode(KINDS[kind](folder))
    torch.testing.assert_close(q.mean, expected.mean[0])
    torch.testing.assert_close(q.var, expected.var[0])


@pytest.mark.parametrize("single", ["tensor", "array", "file", "name", "PIL image"])
def test_a_single_picture_is_an_episode_of_one(single, folder):
    picture = {
        "tensor": torch.from_numpy(FIRST[2]),
        "array": FIRST[2],
        "file": folder / "2.png",
        "name": str(folder / "2.png"),
        "PIL image": Image.fromarray(BYTES[2]),
    }[single]
    torch.testing.assert_close(MODEL.encode(picture).mean, MODEL.encode(FIRST[2:3]).mean)
    assert MODEL.write(picture).frames == 1


def test_floats_are_taken_as_they_are():
    frames = waves(3, 8)
    expected = MODEL.network.infer(frames.unsqueeze(0)).mean[0]
    assert torch.equal(MODEL.encode(frames).mean, expected)
    torch.testing.assert_close(MODEL.encode(frames.half()).mean, expected, rtol=0.01, atol=0.01)


def test_larger_pictures_are_cropped_and_shrunk(tmp_path):
    picture = Image.new("RGB", (60, 20), "blue")
    picture.paste((255, 0, 0), (20, 0, 40, 20))
    picture.save(tmp_path / "wide.png")
    red = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 8, 8)
    assert torch.equal(as_frames(tmp_path / "wide.png", MODEL.frame)[0], red)


def test_a_model_of_binary_frames_sees_them_rounded_as_in_training():
    model = tiny_model("mixture", "bernoulli", 1)
    frames = waves(4, 8, 1)
    assert not torch.equal(frames, frames.round())
    assert torch.equal(to_unit(frames, model.frame), frames.round())
    assert torch.equal(model.encode(frames).mean, model.encode(frames.round()).mean)
    memory, scores = model.write(frames), []
    for pictures in (frames, frames.round()):
        scores.append(model.bound(memory, pictures, generator=seeded()))
    assert torch.equal(*scores)
    edge = torch.tensor([127, 128], dtype=torch.uint8)
    assert to_unit(edge, model.frame).tolist() == (edge / 255).round().tolist() == [0, 1]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_pictures_of_every_mode_are_read(mode, tmp_path):
    white = Image.new("RGB", (10, 10), "white").convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        white = Image.fromarray(np.full((10, 10), 65535, np.uint16))
    white.save(tmp_path / ("a.jpg" if mode == "CMYK" else "a.png"))
    torch.testing.assert_close(MODEL.encode(tmp_path).mean, MODEL.encode(torch.full((1, 3, 8, 8), 255.5 / 256)).mean)


# --- What is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (torch.zeros(2, 8, 8, 3), r"expected frames of shape \[T, 3, 8, 8\], got \[2, 8, 8, 3\]; channels come before"),
        (torch.zeros(8, 8, 3), r"got \[8, 8, 3\]; channels come before"),
        (torch.zeros(2, 3, 9, 8), r"got \[2, 3, 9, 8\]; give files or PIL images to have them resized"),
        (torch.zeros(2, 1, 8, 8), r"got \[2, 1, 8, 8\]"),
        (torch.zeros(5, 8, 8), r"got \[5, 8, 8\]"),
        (torch.zeros(()), r"got \[\]"),
        (torch.zeros(1, 2, 3, 8, 8), r"got \[1, 2, 3, 8, 8\]"),
        (torch.zeros(0, 3, 8, 8), "no frames were given"),
        (torch.full((1, 3, 8, 8), 255.0), r"must lie in \[0, 1\], got 255 to 255; divide bytes by 255"),
        (torch.full((1, 3, 8, 8), -0.1), r"must lie in \[0, 1\], got -0.1 to -0.1; map \[-1, 1\] by"),
        (torch.full((1, 3, 8, 8), torch.nan), r"frames hold NaN"),
        (torch.full((1, 3, 8, 8), torch.inf), r"must lie in \[0, 1\]"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), "uint8 or floating-point.*got torch.int64"),
        (np.zeros((1, 3, 8, 8), bool), "uint8 or floating-point.*got torch.bool"),
        (np.zeros((1, 3, 8, 8), np.uint16), "uint8 or floating-point.*got torch.uint16"),
        (np.zeros((1, 3, 8, 8), complex), "uint8 or floating-point.*got an array of complex128"),
        (np.array([None]), "uint8 or floating-point.*got an array of object"),
        ([], "no pictures were given"),
        ([np.zeros((3, 8, 8))], r"files or PIL images, got ndarray; arrays are given as one, \[T, channels, H, W\]"),
        ([torch.zeros(3, 8, 8)], "files or PIL images, got Tensor"),
        (None, "files or PIL images, got NoneType"),
        (iter([]), "files or PIL images, got list_iterator"),
        ("no/such/folder", "there is no picture no/such/folder; check the path"),
    ],
)
def test_what_is_no_picture_is_refused_in_one_sentence(frames, message):
    with pytest.raises(ValueError, match=message):
        MODEL.encode(frames)


def test_an_empty_folder_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no picture")
    with pytest.raises(ValueError, match=f"the folder {tmp_path} holds no pictures"):
        MODEL.write(tmp_path)


def test_a_text_file_named_png_is_named(folder):
    (folder / "3.png").write_text("I am no picture")
    with pytest.raises(ValueError, match=r"3\.png cannot be read as a picture .*remove it or replace it"):
        MODEL.write(folder)


def test_a_picture_of_a_hundred_million_pixels_is_refused(tmp_path):
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    assert (tmp_path / "huge.png").stat().st_size < 100_000
    with pytest.raises(ValueError, match=r"huge\.png has more than \d+ pixels; shrink it"):
        MODEL.write(tmp_path)


def test_reading_a_folder_is_silent_where_there_is_no_terminal(folder, capfd):
    MODEL.write(folder)
    assert capfd.readouterr() == ("", "")


def test_pixels_may_lie_beyond_black_and_white_by_rounding():
    white = torch.ones(1, 3, 8, 8)
    assert torch.equal(MODEL.encode(white + 3e-7).mean, MODEL.encode(white).mean)
