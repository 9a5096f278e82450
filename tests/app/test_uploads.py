"""What people drop onto the page: pictures and zips within limits, and a sentence for everything else."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from vbmem.app import uploads
from vbmem.app.uploads import read_uploads
from vbmem.errors import DataError
from vbmem.models import FrameFormat

FRAME = FrameFormat(8, 3, "gaussian")


def png(colour: tuple[int, int, int] = (200, 10, 10), size: tuple[int, int] = (12, 9)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def huge_png(side: int) -> bytes:
    """A small file that claims side x side pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def make_zip(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def make_file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_files_and_zips_become_frames_in_their_order(tmp_path: Path) -> None:
    single = make_file(tmp_path / "a.png", png((255, 0, 0)))
    packed = make_zip(tmp_path / "b.ZIP", {"x/2.png": png((0, 255, 0)), "1.jpg": png((0, 0, 255))})
    upload = read_uploads([single, packed], FRAME)
    assert upload.names == ("a.png", "2.png", "1.jpg")
    assert upload.frames.dtype == torch.uint8
    assert upload.frames[:, :, 4, 4].tolist() == [[255, 0, 0], [0, 255, 0], [0, 0, 255]]
    assert upload.left_out == 0


def test_grey_models_get_grey_frames(tmp_path: Path) -> None:
    upload = read_uploads([make_file(tmp_path / "a.png", png())], FrameFormat(8, 1, "gaussian"))
    assert list(upload.frames.shape) == [1, 1, 8, 8]


def test_what_is_not_a_picture_in_a_zip_is_counted_and_left_out(tmp_path: Path) -> None:
    files = {
        "a.png": png(),
        "notes.txt": b"hello",
        "__MACOSX/._a.png": b"resource fork",
        "__MACOSX/b.png": b"resource fork",
        ".hidden.png": b"no",
        "inner.zip": b"PK",
        "folder/": b"",
    }
    upload = read_uploads([make_zip(tmp_path / "z.zip", files)], FRAME)
    assert upload.names == ("a.png",)
    assert upload.left_out == 5


def test_names_that_climb_out_of_the_zip_are_only_names(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    packed = make_zip(
        folder / "z.zip", {"../../evil.png": png(), "/etc/absolute.png": png(), "a/../b/below.png": png()}
    )
    upload = read_uploads([packed], FRAME)
    assert upload.names == ("absolute.png",)
    assert upload.left_out == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [packed]


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tiff", "a.svg", "a.eps"])
def test_a_text_under_a_pictures_name_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{name} cannot be read as a picture"):
        read_uploads([make_file(tmp_path / name, b"%!PS this is text")], FRAME)


def test_a_cut_off_picture_is_refused_by_its_own_name(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    packed = make_zip(tmp_path / "z.zip", {"good.png": png(), "cut.png": buffer.getvalue()[:3000]})
    with pytest.raises(DataError, match=r"^cut.png cannot be read"):
        read_uploads([packed], FRAME)


def test_a_zip_without_pictures_says_so(tmp_path: Path) -> None:
    for files in ({}, {"notes.txt": b"hello"}):
        with pytest.raises(DataError, match="no pictures were given"):
            read_uploads([make_zip(tmp_path / "z.zip", files)], FRAME)


def test_a_damaged_zip_says_so(tmp_path: Path) -> None:
    intact = make_zip(tmp_path / "z.zip", {"a.png": png(size=(200, 200))}).read_bytes()
    broken = intact[:60] + bytes(20) + intact[80:]
    for content in (b"no zip at all", b"", intact[: len(intact) // 2], broken):
        with pytest.raises(DataError, match=r"is damaged or not a zip|cannot be read"):
            read_uploads([make_file(tmp_path / "bad.zip", content)], FRAME)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = make_zip(tmp_path / "bomb.zip", {f"{n}.png": bytes(60 * 2**20) for n in range(2)})
    assert packed.stat().st_size < 2**20
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *args: pytest.fail("it was unpacked"))
    with pytest.raises(DataError, match="would unpack to 120 MB"):
        read_uploads([packed], FRAME)


def test_a_zip_that_lies_about_its_sizes_is_not_unpacked_beyond_them(tmp_path: Path) -> None:
    packed = make_zip(tmp_path / "liar.zip", {"a.png": bytes(60 * 2**20)}).read_bytes()
    lie = packed.replace(struct.pack("<I", 60 * 2**20), struct.pack("<I", 100))
    assert lie != packed
    with pytest.raises(DataError, match=r"damaged or not a zip|cannot be read"):
        read_uploads([make_file(tmp_path / "liar.zip", lie)], FRAME)


def test_all_pictures_of_a_zip_together_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_UNPACKED", 3 * len(png()) - 1)
    with pytest.raises(DataError, match="the limits are"):
        read_uploads([make_zip(tmp_path / "z.zip", {f"{n}.png": png() for n in range(3)})], FRAME)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(tmp_path: Path, method: int) -> None:
    with pytest.raises(DataError, match="pack the pictures as a plain zip"):
        read_uploads([make_zip(tmp_path / "z.zip", {"a.png": png()}, method)], FRAME)


def test_an_encrypted_zip_is_refused(tmp_path: Path) -> None:
    content = bytearray(make_zip(tmp_path / "z.zip", {"a.png": png()}).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(DataError, match="encrypted"):
        read_uploads([make_file(tmp_path / "locked.zip", bytes(content))], FRAME)


def test_more_pictures_than_the_limit_are_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PICTURES", 3)
    three, four = ({f"{n}.png": png() for n in range(count)} for count in (3, 4))
    assert len(read_uploads([make_zip(tmp_path / "three.zip", three)], FRAME).names) == 3
    single = make_file(tmp_path / "a.png", png())
    for paths in ([make_zip(tmp_path / "four.zip", four)], [tmp_path / "three.zip", single], [single] * 4):
        with pytest.raises(DataError, match="more than 3 pictures"):
            read_uploads(paths, FRAME)


@pytest.mark.parametrize("side", [8_000, 100_000])
def test_a_small_file_of_huge_pixels_is_refused(tmp_path: Path, side: int) -> None:
    bomb = make_file(tmp_path / "bomb.png", huge_png(side))
    with pytest.raises(DataError, match=r"bomb.png has .* pixels"):
        read_uploads([bomb], FRAME)
    with pytest.raises(DataError, match=r"bomb.png has .* pixels"):
        read_uploads([make_zip(tmp_path / "z.zip", {"bomb.png": huge_png(side)})], FRAME)


def test_all_pixels_together_have_a_limit_that_is_checked_before_any_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda *args: pytest.fail("it was decoded"))
    packed = make_zip(tmp_path / "z.zip", {f"{n}.png": huge_png(7_000) for n in range(25)})
    singles = [make_file(tmp_path / f"{n}.png", huge_png(7_000)) for n in range(6)]
    small = make_zip(tmp_path / "small.zip", {f"{n}.png": huge_png(7_000) for n in range(6)})
    for paths in ([packed], [*singles, *singles], [*singles, small]):
        with pytest.raises(DataError, match="more than 500 million pixels in all"):
            read_uploads(paths, FRAME)


def test_as_many_pixels_as_the_limit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_PIXELS_IN_ALL", 3 * 12 * 9)
    packed = make_zip(tmp_path / "z.zip", {f"{n}.png": png() for n in range(2)})
    single = make_file(tmp_path / "a.png", png())
    assert len(read_uploads([packed, single], FRAME).names) == 3
    with pytest.raises(DataError, match="pixels in all"):
        read_uploads([packed, single, single], FRAME)


def test_a_file_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_FILE", 10)
    with pytest.raises(DataError, match=r"a.png is larger than"):
        read_uploads([make_file(tmp_path / "a.png", png())], FRAME)


def test_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"gone.png"):
        read_uploads([tmp_path / "gone.png"], FRAME)
