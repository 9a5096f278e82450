"""The page in a real browser, headless Chromium, as a visitor meets it. With VBMEM_SCREENSHOTS set to a directory, the
states it goes through are photographed there."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect, sync_playwright

from app.conftest import Server
from vbmem import WrittenMemory, load

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 30_000  # milliseconds, for a machine with other things to do


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium found: install Debian's chromium to test the page in a browser")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """Visitors, none of whom may meet an error in the console or send anything elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    outside: list[str] = []
    errors: list[str] = []
    inside = (server.address, server.address.replace("http", "ws"), "data:", "blob:")
    context.on("request", lambda request: None if request.url.startswith(inside) else outside.append(request.url))
    context.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context
    context.close()
    assert outside == []
    assert errors == []
    assert "Traceback" not in server.errors.read_text()


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Page:
    return visit(context, server)


def visit(context: BrowserContext, server: Server) -> Page:
    page = context.new_page()
    page.goto(server.address)
    shows(page.locator("#memory"), "114 kB")
    return page


def shows(where: Locator, text: str) -> None:
    expect(where).to_contain_text(text, timeout=PATIENCE)


def counts(where: Locator, number: int) -> None:
    expect(where).to_have_count(number, timeout=PATIENCE)


def says(page: Page, text: str) -> None:
    """A message appears, which is then closed."""
    toast = page.get_by_test_id("toast-body").filter(has_text=text)
    expect(toast.first).to_be_visible(timeout=PATIENCE)
    page.get_by_test_id("toast-close").first.click()
    counts(page.get_by_test_id("toast-body"), 0)


def go(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=True).click()


def upload(page: Page, where: str, *files: Path) -> None:
    page.locator(f"{where} input[type=file]").set_input_files(files)


def slide(page: Page, slider: str, value: str) -> None:
    page.locator(f"{slider} input[type=number]").fill(value)
    page.locator(f"{slider} input[type=number]").press("Enter")


def changes(where: Locator, act: Callable[[], object]) -> None:
    """The picture is another after the act."""
    before = where.get_attribute("src")
    assert before is not None
    act()
    expect(where).not_to_have_attribute("src", before, timeout=PATIENCE)


def photograph(page: Page, name: str) -> None:
    if folder := os.environ.get("VBMEM_SCREENSHOTS"):
        page.mouse.move(1279, 899)
        page.wait_for_function("!document.querySelector('.pending, .generating')")
        page.wait_for_function(
            "[...document.querySelectorAll('.toast-body')].every(t => getComputedStyle(t).opacity == 1)"
        )
        path = Path(folder) / f"{name}.png"
        page.screenshot(path=path)
        Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


def picture(path: Path, seed: int = 0) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize((60, 45), Image.Resampling.BICUBIC).save(path)
    return path


def test_the_first_visit_shows_something_in_every_tab(page: Page, tmp_path: Path) -> None:
    counts(page.locator("#episode img"), 64)
    for text in ("64", "ms", "to encode", "to write", "pictures held"):
        shows(page.locator("#memory"), text)
    counts(page.locator("#memory tbody tr"), 10)
    photograph(page, "write")

    go(page, "Generate")
    counts(page.locator("#generated img"), 32)
    counts(page.locator("#clusters button"), 11)
    first = page.locator("#generated img").first
    changes(first, page.locator("#generate").click)
    changes(first, page.locator("#clusters button").nth(5).click)
    expect(page.locator("#clusters button").nth(5)).to_have_class("chosen", timeout=PATIENCE)
    photograph(page, "generate")
    changes(first, page.get_by_label("smooth means").click)
    slide(page, "#count", "3")
    counts(page.locator("#generated img"), 3)
    page.get_by_label("all clusters").click()
    expect(page.locator("#clusters button").first).to_have_class("chosen", timeout=PATIENCE)

    go(page, "Recall")
    counts(page.locator("#recalled figure"), 8)
    shows(page.locator("#recalled"), "step 5")
    last = page.locator("#recalled img").last
    changes(last, page.get_by_label("recall picture 11", exact=True).click)
    changes(last, lambda: slide(page, "#hidden", "0.4"))
    photograph(page, "recall")
    slide(page, "#blur", "2")
    changes(last, lambda: slide(page, "#noise", "0.5"))
    slide(page, "#steps", "2")
    counts(page.locator("#recalled figure"), 5)

    go(page, "Novelty")
    counts(page.locator("#ranked figure"), 24)
    shows(page.locator("#ranked figure").first, "flower")
    nats = [float(text.split()[0].replace(",", "")) for text in page.locator("#ranked b").all_inner_texts()]
    assert nats == sorted(nats)
    photograph(page, "novelty")

    go(page, "Resize")
    shows(page.locator("#curve"), "10 clusters")
    slide(page, "#size", "6")
    page.locator("#resize").click()
    shows(page.locator("#curve"), "6 clusters, 69 kB")
    photograph(page, "resize")
    go(page, "Write")
    counts(page.locator("#memory tbody tr"), 6)

    go(page, "Keep")
    shows(page.locator("#keep"), "64 pictures in 69 kB, written by cifar10-mixture")
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "pictures.memory"
    download.value.save_as(saved := tmp_path / "mine.memory")
    assert WrittenMemory.load(saved).empty.clusters == 6
    photograph(page, "keep")

    page.locator("#draw").click()
    shows(page.locator("#memory"), "Nothing is written yet")
    go(page, "Keep")
    shows(page.locator("#keep"), "Nothing is written yet")
    upload(page, "#load", saved)
    shows(page.locator("#memory"), "69 kB")
    counts(page.locator("#memory tbody tr"), 6)
    go(page, "Resize")
    shows(page.locator("#curve"), "are not here")


def test_pictures_of_ones_own(page: Page, server: Server, tmp_path: Path) -> None:
    (folder := tmp_path / "more").mkdir()
    files = [picture(tmp_path / f"{number}.png", number) for number in range(3)]
    picture(folder / "3.png", 3)
    (folder / "notes.txt").write_text("no picture")
    shutil.make_archive(str(folder), "zip", folder)
    upload(page, "#files", *files, tmp_path / "more.zip")
    says(page, "not pictures were left out: 1")
    shows(page.locator("#episode"), "4 pictures")
    for tab, panel in (
        ("Generate", "#generated"),
        ("Recall", "#recalled"),
        ("Novelty", "#ranked"),
        ("Resize", "#curve"),
    ):
        go(page, tab)
        shows(page.locator(panel), "Nothing is written yet")
    page.locator("#write").click()
    shows(page.locator("#memory"), "to write")

    go(page, "Novelty")
    counts(page.locator("#ranked figure"), 24)
    shutil.make_archive(str(tmp_path / "odd"), "zip", tmp_path, picture(tmp_path / "<i>${1+1}{{2}}.png", 9).name)
    upload(page, "#others", tmp_path / "odd.zip", files[0])
    counts(page.locator("#ranked figure"), 2)
    shows(page.locator("#ranked"), "<i>${1+1}{{2}}.png")
    go(page, "Recall")
    changes(page.locator("#recalled img").first, lambda: upload(page, "#other", picture(tmp_path / "b.png", 10)))

    upload(page, "#files", files[1])
    shows(page.locator("#episode"), "1 picture.")
    page.locator("#write").click()
    shows(page.locator("#memory"), "to write")
    left = [path for path in server.folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == []


def test_what_goes_wrong_is_said_on_the_page(page: Page, tmp_path: Path) -> None:
    (text := tmp_path / "letter.png").write_text("dear sir or madam")
    upload(page, "#files", text)
    expect(page.get_by_test_id("toast-body")).to_be_visible()
    photograph(page, "error")
    says(page, "letter.png cannot be read as a picture")
    (broken := tmp_path / "broken.zip").write_bytes(b"PK")
    upload(page, "#files", broken)
    says(page, "broken.zip is damaged or not a zip")
    page.locator("#number input").fill("5000")
    page.locator("#draw").click()
    says(page, "choose from 1 to 1000")
    counts(page.locator("#episode img"), 64)

    go(page, "Novelty")
    upload(page, "#others", text)
    says(page, "letter.png cannot be read as a picture")
    go(page, "Keep")
    upload(page, "#load", text)
    says(page, "letter.png is damaged or not a memory file")
    model = load("digits-mixture")
    model.write(np.zeros((3, 1, 8, 8), np.uint8)).save(other := tmp_path / "other.memory")
    upload(page, "#load", other)
    says(page, "written by the model 'digits-mixture'")

    field = page.locator("#model input")
    field.fill("/no/such/model")
    field.press("Enter")
    says(page, "there is no model '/no/such/model'")
    expect(field).to_have_value("cifar10-mixture", timeout=PATIENCE)
    field.fill("digits-mixture")
    field.press("Enter")
    shows(page.locator("#memory"), "Nothing is written yet")
    expect(page.locator("#source input")).to_have_value("digits")
    page.locator("#write").click()
    shows(page.locator("#memory"), "4 kB")
    go(page, "Keep")
    upload(page, "#load", other)
    shows(page.locator("#memory .card").first, "3")


def test_two_visitors_have_nothing_in_common(page: Page, context: BrowserContext, server: Server) -> None:
    second = visit(context, server)
    page.locator("#number input").fill("5")
    page.locator("#draw").click()
    shows(page.locator("#episode"), "5 pictures")
    page.locator("#write").click()
    shows(page.locator("#memory .card").first, "5")

    counts(second.locator("#episode img"), 64)
    go(second, "Resize")
    slide(second, "#size", "2")
    second.locator("#resize").click()
    shows(second.locator("#curve"), "2 clusters")
    page.reload()
    shows(page.locator("#memory"), "114 kB")
    second.close()
    go(page, "Keep")
    shows(page.locator("#keep"), "64 pictures in 114 kB")


def test_the_page_names_no_other_machine_and_no_way_around_it(page: Page, server: Server) -> None:
    named = page.eval_on_selector_all("link[href], script[src], img[src]", "all => all.map(one => one.href || one.src)")
    assert all(address.startswith((server.address, "data:")) for address in named)
    counts(page.locator("footer"), 0)
    config = page.evaluate("fetch('/config').then(answer => answer.json())")
    assert not config["analytics_enabled"]
    assert not config.get("run_history")
    information = page.evaluate("fetch('/gradio_api/info').then(answer => answer.text())")
    assert re.search(r'"/\w+"', information) is None
