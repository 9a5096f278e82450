"""Several visitors at once, and programs that send what no page would."""

import asyncio
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zipfile import ZipFile

import pytest
from PIL import Image

from app.conftest import Server
from vbmem.app.visitors import Turns, in_thread
from visitor import Visitor


@pytest.fixture
def arrive(server: Server) -> Iterator[Callable[[], Visitor]]:
    """Someone opens the page; whatever they do there, no traceback is printed."""
    visitors = []

    def open_page() -> Visitor:
        visitors.append(visitor := Visitor(server.address))
        assert visitor.open().succeeded
        return visitor

    yield open_page
    for visitor in visitors:
        visitor.close()
    assert "Traceback" not in server.errors.read_text()


def test_a_visitor_waits_for_their_own_but_not_for_what_others_do() -> None:
    done: list[str] = []

    async def visit() -> None:
        turns, free = Turns(waiting=3), asyncio.Event()

        async def act(visitor: str, what: str, until: asyncio.Event | None = None) -> None:
            async with turns.of(visitor):
                if until is not None:
                    await until.wait()
                done.append(what)

        mine = [asyncio.create_task(act("me", what, free)) for what in ("long", "mine 0", "mine 1")]
        await asyncio.sleep(0.05)
        with pytest.raises(ValueError, match="3 things are under way on this page; wait"):
            await act("me", "too much")
        await asyncio.wait_for(act("you", "yours"), 5)
        assert done == ["yours"]
        free.set()
        await asyncio.gather(*mine)
        await act("me", "again")

    asyncio.run(visit())
    assert done == ["yours", "long", "mine 0", "mine 1", "again"]


def test_what_fails_gives_the_turn_to_the_next() -> None:
    async def visit() -> None:
        turns = Turns(waiting=1)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with turns.of("me"):
                    await in_thread(lambda: 1 // 0)
        async with turns.of("me"):
            pass

    asyncio.run(visit())


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="as glibc does it")
def test_the_system_gets_back_what_work_has_freed() -> None:
    def work() -> list[bytearray]:
        held = [(bytearray(b"x") * 100_000, bytearray(b"x") * 1000) for _ in range(1000)]
        return [small for _, small in held]  # these lie between the large ones, of which nothing stays

    def megabytes() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    before = megabytes()
    kept = asyncio.run(in_thread(work))
    assert megabytes() - before < 50 < 0.1 * len(kept)


def test_a_large_zip_of_one_visitor_does_not_hold_up_the_upload_of_another(
    arrive: Callable[[], Visitor], tmp_path: Path
) -> None:
    Image.new("L", (7000, 7000)).save(large := tmp_path / "large.png", compress_level=1)
    Image.new("L", (9, 9)).save(small := tmp_path / "small.png")
    with ZipFile(tmp_path / "large.zip", "w") as archive:
        for number in range(3):
            archive.write(large, f"{number}.png")
    first, second = arrive(), arrive()
    with ThreadPoolExecutor() as pool:
        working = pool.submit(first.act, "files", "upload", first.upload(tmp_path / "large.zip"))
        answer = second.act("files", "upload", second.upload(small))
        assert not working.done()
        assert "1 picture<" in str(answer.output)
        assert "3 pictures" in str(working.result().output)


def test_visitors_with_the_same_file_do_not_delete_it_for_each_other(
    arrive: Callable[[], Visitor], server: Server, tmp_path: Path
) -> None:
    Image.new("RGB", (9, 9)).save(same := tmp_path / "same.png")
    visitors = [arrive(), arrive()]
    kept = [visitor.upload(same) for visitor in visitors]
    assert kept[0] != kept[1]
    for visitor, files in zip(visitors, kept, strict=True):
        answer = visitor.act("files", "upload", files)
        assert answer.said == ()
        assert "1 picture<" in str(answer.output)
    assert list(server.folder.rglob("same.png*")) == []


NONSENSE: list[tuple[str, str, tuple[object, ...]]] = [
    ("count", "input", ("samples", 1_000_000, 4)),
    ("count", "input", ("samples", -1, 4)),
    ("count", "input", ("samples", "many", 4)),
    ("count", "input", ("samples", None, 4)),
    ("count", "input", ("samples", [1], 4)),
    ("count", "input", ("samples", 3, 1000)),
    ("count", "input", ("something", 3, 4)),
    ("count", "input", ()),
    ("generated-size", "input", ("samples", 3, 4, 10_000)),
    ("noise", "input", (5, 0.2, 0, 1e9)),
    ("noise", "input", ({}, 0.2, 0, 0)),
    ("resize", "click", (10_000,)),
    ("curve", "click", ()),
    ("draw", "click", ("elsewhere", 3)),
    ("draw", "click", ("digits", "three")),
    ("draw", "click", ("digits", 1e300)),
    ("model", "input", ({"a": 1},)),
    ("files", "upload", (None,)),
    ("files", "upload", ([{"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}],)),
    ("files", "upload", ([{"path": "http://192.0.2.1/a.png", "meta": {"_type": "gradio.FileData"}}],)),
    ("load", "upload", (None,)),
    ("episode", "click", (2, 0.2, 0, 0)),
    ("clusters", "click", ("samples", 3, 4)),
    ("pad", "input", ()),
    ("codes-clusters", "input", (1000,)),
    ("codes-file", "upload", (None, 5)),
    ("codes-file", "upload", ({"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}, 5)),
]


def test_values_that_no_page_sends_are_a_sentence(arrive: Callable[[], Visitor]) -> None:
    visitor = arrive()
    for element, event, values in NONSENSE:
        answer = visitor.act(element, event, *values)
        assert answer.said or answer.output.get("error"), (element, values)
    for index in (-5, 97, 10**9):
        assert visitor.act("curve", "click", data={"index": index}).said
    assert visitor.act("pad", "input", data={"drawings": [[0] * 9] * 4}).said
    assert visitor.act("count", "input", "samples", 3, 4).said == ()


def test_the_real_server_has_its_guard(arrive: Callable[[], Visitor]) -> None:
    http = arrive().http
    asking = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answers = [http.get("/"), http.get("/config"), http.get("/nowhere"), http.options("/config", headers=asking)]
    answers += [
        http.post("/gradio_api/queue/join", json={}),
        refused := http.get("/", headers={"Host": "evil.example"}),
    ]
    assert refused.status_code == 421
    assert "window.gradio_config" in answers[0].text
    for answer in answers:
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
