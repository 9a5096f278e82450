"""The page in a real browser, headless Chromium, as a visitor meets it. With VBMEM_SCREENSHOTS set to a directory, the
states it goes through are photographed there."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, ViewportSize, expect, sync_playwright

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
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=400, height=850)
LOOKS: list[tuple[str, tuple[int, int], Literal["light", "dark"]]] = [
    ("dark", (1280, 900), "dark"),
    ("narrow", (400, 850), "light"),
    ("narrow-dark", (400, 850), "dark"),
    ("", (1280, 900), "light"),
]
TABS = ("Write", "Generate", "Recall", "Novelty", "Resize", "Keep", "Characters", "Codes")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium found: install Debian's chromium to test the page in a browser")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield launched
        launched.close()


@contextmanager
def visitors(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    """None of whom may meet an error in the console or send anything elsewhere."""
    context = browser.new_context(viewport=WIDE, accept_downloads=True)
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
def context(browser: Browser, server: Server) -> Iterator[BrowserContext]:
    with visitors(browser, server) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext, server: Server) -> Page:
    return visit(context, server)


@pytest.fixture(scope="module")
def one_visit(browser: Browser, server: Server) -> Iterator[Page]:
    with visitors(browser, server) as context:
        yield visit(context, server)


@pytest.fixture
def shared_page(one_visit: Page) -> Iterator[Page]:
    """Of one visit, which takes seconds, for all tests that do not mind what others did in other tabs."""
    yield one_visit
    one_visit.set_viewport_size(WIDE)
    one_visit.emulate_media(color_scheme="light")


def visit(context: BrowserContext, server: Server) -> Page:
    page = context.new_page()
    page.goto(server.address)
    shows(page.locator("#memory"), "116 kB")
    return page


def look_often(page: Page, seen: Callable[[], bool]) -> None:
    """Until it is seen or a while has passed. `expect`, which comes after, looks but once a second."""
    for _ in range(50):
        if seen():
            break
        page.wait_for_timeout(100)


def shows(where: Locator, text: str) -> None:
    look_often(where.page, lambda: where.filter(has_text=text).count() > 0)
    expect(where).to_contain_text(text, timeout=PATIENCE)


def counts(where: Locator, number: int) -> None:
    look_often(where.page, lambda: where.count() == number)
    expect(where).to_have_count(number, timeout=PATIENCE)


def appears(where: Locator) -> None:
    look_often(where.page, where.is_visible)
    expect(where).to_be_visible(timeout=PATIENCE)


def says(page: Page, text: str) -> None:
    """A message appears, which is then closed."""
    toast = page.get_by_test_id("toast-body").filter(has_text=text)
    appears(toast.first)
    page.get_by_test_id("toast-close").first.click()
    counts(page.get_by_test_id("toast-body"), 0)


def go(page: Page, tab: str) -> None:
    page.get_by_role("tab", name=tab, exact=True).click()


def upload(page: Page, where: str, *files: Path) -> None:
    page.locator(f"{where} input[type=file]").set_input_files(files)


def slide(page: Page, slider: str, value: str) -> None:
    page.locator(f"{slider} input[type=number]").fill(value)
    page.locator(f"{slider} input[type=number]").press("Enter")


def is_chosen(button: Locator) -> None:
    look_often(button.page, lambda: button.get_attribute("class") == "chosen")
    expect(button).to_have_class("chosen", timeout=PATIENCE)


def changes(where: Locator, act: Callable[[], object]) -> None:
    """The picture is another after the act."""
    before = where.get_attribute("src")
    assert before is not None
    act()
    look_often(where.page, lambda: where.get_attribute("src") != before)
    expect(where).not_to_have_attribute("src", before, timeout=PATIENCE)


def photograph(page: Page, name: str) -> None:
    """As it is, and in a folder beside that in dark colours and as a telephone shows it."""
    if folder := os.environ.get("VBMEM_SCREENSHOTS"):
        for look, (width, height), colours in LOOKS:
            page.set_viewport_size({"width": width, "height": height})
            page.emulate_media(color_scheme=colours)
            page.mouse.move(width - 1, height - 1)
            page.wait_for_function("!document.querySelector('.pending, .generating')")
            page.wait_for_function(
                "[...document.querySelectorAll('.toast-body')].every(t => getComputedStyle(t).opacity == 1)"
            )
            page.wait_for_timeout(200)
            (path := Path(folder) / look / f"{name}.png").parent.mkdir(exist_ok=True)
            page.screenshot(path=path)
            Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)
        page.set_viewport_size(WIDE)
        page.emulate_media(color_scheme="light")


def is_narrow_enough(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= page.evaluate("window.innerWidth")


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
    counts(page.locator("#generated .pair"), 24)
    counts(page.locator("#generated img"), 48)
    counts(page.locator("#clusters button"), 11)
    first = page.locator("#generated img").first
    changes(first, page.locator("#generate").click)
    photograph(page, "generate")
    slide(page, "#count", "3")
    counts(page.locator("#generated .pair"), 3)
    changes(first, page.locator("#clusters button").nth(5).click)
    is_chosen(page.locator("#clusters button").nth(5))
    changes(first, page.get_by_label("means", exact=True).click)
    changes(first, lambda: slide(page, "#reads", "0"))
    slide(page, "#generated-size", "4")
    counts(page.locator("#clusters button"), 5)
    slide(page, "#generated-size", "10")
    counts(page.locator("#clusters button"), 11)
    with page.expect_download() as sheet:
        page.locator("#save-sheet").click()
    assert sheet.value.suggested_filename == "generated.png"
    sheet.value.save_as(tmp_path / "generated.png")
    with Image.open(tmp_path / "generated.png") as saved_sheet:
        assert saved_sheet.width > 3 * 32

    go(page, "Recall")
    counts(page.locator("#recalled .large figure"), 5)
    for text in (
        "as it was",
        "damaged",
        "without memory",
        "with memory",
        "nearest to that",
        "being recalled",
        "step 2",
    ):
        shows(page.locator("#recalled"), text)
    last = page.locator("#recalled img").last
    changes(last, page.get_by_label("recall picture 11", exact=True).click)
    errors = [float(text) for text in re.findall(r"error ([\d.]+)", page.locator("#recalled").inner_text())]
    assert errors[2] < errors[1] < errors[0]
    photograph(page, "recall")
    changes(last, lambda: slide(page, "#hidden", "0.4"))
    shows(page.locator("#recalled"), "not hidden stay as they are")
    slide(page, "#blur", "2")
    changes(last, lambda: slide(page, "#noise", "0.5"))
    slide(page, "#steps", "3")
    shows(page.locator("#recalled"), "step 3")

    go(page, "Novelty")
    counts(page.locator("#ranked figure"), 24)
    shows(page.locator("#ranked figure").first, "flower")
    figures = page.locator("#ranked figure b").all_inner_texts()
    nats = [float(text.split()[0].replace(",", "")) for text in figures]
    assert nats == sorted(nats)
    shows(page.locator("#ranked"), "in memories that were written without them")
    photograph(page, "novelty")

    go(page, "Resize")
    shows(page.locator("#curve"), "10 clusters")
    counts(page.locator("#curve svg"), 2)
    photograph(page, "resize")
    slide(page, "#size", "3")
    page.locator("#resize").click()
    shows(page.locator("#curve .hint").first, "Now: 3 clusters")
    nearest = page.get_by_role("button", name=re.compile("Take .* clusters: the nearest samples"))
    best = int(re.findall(r"\d+", nearest.inner_text())[0])
    nearest.click()
    shows(page.locator("#curve .hint").first, f"Now: {best} clusters")
    go(page, "Write")
    counts(page.locator("#memory tbody tr"), best)

    go(page, "Keep")
    shows(page.locator("#keep"), "64 pictures in")
    shows(page.locator("#keep"), "written by cifar10-mixture")
    shows(page.locator("#keep"), "192 kB")
    with page.expect_download() as download:
        page.locator("#save").click()
    assert download.value.suggested_filename == "pictures.memory"
    download.value.save_as(saved := tmp_path / "mine.memory")
    assert WrittenMemory.load(saved).empty.clusters == best
    photograph(page, "keep")

    page.locator("#number input").fill("20")
    page.locator("#draw").click()
    shows(page.locator("#memory .card").first, "20")
    go(page, "Keep")
    upload(page, "#load", saved)
    shows(page.locator("#episode"), "A memory of 64 pictures, which are not here")
    counts(page.locator("#episode img"), 24)
    counts(page.locator("#memory tbody tr"), best)
    photograph(page, "loaded")
    go(page, "Resize")
    shows(page.locator("#curve"), "are not here")
    expect(page.locator("#size input[type=number]")).to_be_disabled()


def test_letters_are_drawn_with_the_mouse_and_with_the_keyboard(shared_page: Page, tmp_path: Path) -> None:
    go(shared_page, "Characters")
    shows(shared_page.locator("#more"), "Draw a letter")
    box = shared_page.locator("#pad canvas").first.bounding_box()
    assert box is not None
    shared_page.mouse.move(box["x"] + 40, box["y"] + 30)
    shared_page.mouse.down()
    shared_page.mouse.move(box["x"] + 40, box["y"] + 110, steps=4)
    shared_page.mouse.move(box["x"] + 100, box["y"] + 110, steps=4)
    shared_page.mouse.up()
    shows(shared_page.locator("#more"), "20 more, from a memory of 1 drawing:")
    counts(shared_page.locator("#more img"), 20)

    shared_page.locator("#pad canvas").nth(1).focus()
    for key in ("Space", *["ArrowDown"] * 9, *["ArrowRight"] * 6, "Space"):
        shared_page.keyboard.press(key)
    shows(shared_page.locator("#more"), "a memory of 2 drawings")
    shared_page.keyboard.press("Delete")
    shows(shared_page.locator("#more"), "a memory of 1 drawing:")
    shared_page.get_by_role("button", name="Take an example").press("Enter")
    shows(shared_page.locator("#more"), "a memory of 4 drawings")
    photograph(shared_page, "characters")
    with shared_page.expect_download() as sheet:
        shared_page.locator("#save-characters").click()
    assert sheet.value.suggested_filename == "characters.png"
    shared_page.get_by_role("button", name="Clear").last.click()
    shows(shared_page.locator("#more"), "Nothing is drawn yet")


def test_codes_of_ones_own(shared_page: Page, server: Server, tmp_path: Path) -> None:
    go(shared_page, "Codes")
    shows(shared_page.locator("#codes"), "359 codes of 64 numbers in 10 clusters")
    photograph(shared_page, "codes")
    random = np.random.default_rng(0)
    codes = random.normal(size=(60, 5)) + 9 * (np.arange(60) % 2)[:, None]
    np.save(tmp_path / "mine.npy", np.concatenate([codes, [[50, -50, 50, -50, 50]]]))
    np.savetxt(tmp_path / "mine.csv", codes, delimiter=",")
    upload(shared_page, "#codes-file", tmp_path / "mine.npy")
    shows(shared_page.locator("#codes"), "mine.npy: 61 codes of 5 numbers in 10 clusters")
    slide(shared_page, "#codes-clusters", "2")
    shows(shared_page.locator("#codes"), "5 numbers in 2 clusters")
    counts(shared_page.locator("#codes circle"), 61)
    shows(shared_page.locator("#codes tbody tr").first, "61")
    shows(shared_page.locator("#codes tbody tr").first, "new")
    with shared_page.expect_download() as download:
        shared_page.locator("#save-assignments").click()
    assert download.value.suggested_filename == "assignments.csv"
    download.value.save_as(saved := tmp_path / "assignments.csv")
    assert len(saved.read_text().splitlines()) == 62
    upload(shared_page, "#codes-file", tmp_path / "mine.csv")
    shows(shared_page.locator("#codes"), "mine.csv: 60 codes of 5 numbers")
    (text := tmp_path / "letter.csv").write_text("dear sir or madam")
    upload(shared_page, "#codes-file", text)
    says(shared_page, "letter.csv holds 0 rows")
    shows(shared_page.locator("#codes"), "mine.csv: 60 codes")
    left = [path for path in server.folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert left == []


def test_no_click_is_lost(page: Page) -> None:
    """Everything is done in the order of the clicks, however soon one follows the other."""
    page.locator("#number input").fill("30")
    go(page, "Resize")
    shows(page.locator("#curve"), "10 clusters")
    slide(page, "#size", "3")
    page.locator("#draw").click()
    page.wait_for_timeout(150)
    page.locator("#resize").dispatch_event("click")  # even where the page has gone to what was drawn by now
    shows(page.locator("#episode"), "30 pictures")
    shows(page.locator("#memory .card").first, "30")
    counts(page.locator("#memory tbody tr"), 3)

    page.locator("#number input").fill("5")
    page.locator("#draw").click()
    page.locator("#number input").fill("7")
    page.locator("#draw").click()
    shows(page.locator("#episode"), "7 pictures")
    shows(page.locator("#memory .card").first, "7")


def test_all_of_it_can_be_done_with_the_keyboard(page: Page) -> None:
    page.get_by_role("tab", name="Write").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    slider = page.locator("#count input[type=range]")
    appears(slider)  # what is hidden takes no focus, and the key would go to the tabs
    slider.focus()
    expect(slider).to_be_focused()
    page.keyboard.press("Home")
    counts(page.locator("#generated .pair"), 1)
    page.keyboard.press("ArrowRight")
    counts(page.locator("#generated .pair"), 2)
    third = page.locator("#clusters button").nth(3)
    third.focus()
    page.keyboard.press("Space")
    is_chosen(third)
    expect(third).to_be_focused()
    changes(page.locator("#generated img").first, lambda: page.locator("#generate").press("Enter"))
    page.locator("#episode button").nth(2).focus()
    page.keyboard.press("Enter")
    shows(page.locator("#recalled"), "with memory")


def test_a_telephone_reaches_every_tab_and_shows_results_without_scrolling(shared_page: Page) -> None:
    shared_page.set_viewport_size(NARROW)
    results = ("#memory", "#generated img", "#recalled img", "#ranked img", "#curve svg", "#keep", "#pad", "#codes")
    for tab, result in zip(TABS, results, strict=True):
        go(shared_page, tab)
        appears(shared_page.locator(result).first)
        box = shared_page.locator(result).first.bounding_box()
        assert box is not None
        assert box["y"] < 0.9 * NARROW["height"], tab
        is_narrow_enough(shared_page)


def test_plots_follow_the_colours_of_the_system(shared_page: Page) -> None:
    go(shared_page, "Codes")
    appears(shared_page.locator("#codes svg"))
    go(shared_page, "Resize")
    text = shared_page.locator("#curve svg text").first
    appears(text)
    fills = []
    looks: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for look in looks:
        shared_page.emulate_media(color_scheme=look)
        shared_page.wait_for_function("look => document.body.classList.contains('dark') == (look == 'dark')", arg=look)
        shade = text.evaluate("element => getComputedStyle(element).fill")
        point = shared_page.locator("#codes circle").first.evaluate("element => getComputedStyle(element).fill")
        fills.append([sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (shade, point)])
    assert all(light < dark for light, dark in zip(*fills, strict=True))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_there_is_no_serious_fault_in_accessibility(
    context: BrowserContext, server: Server, colours: Literal["light", "dark"], size: ViewportSize
) -> None:
    """As axe-core finds them; VBMEM_AXE is the path of its axe.min.js, from `npm pack axe-core`."""
    if not (script := os.environ.get("VBMEM_AXE")):
        pytest.skip("VBMEM_AXE does not name axe.min.js")
    page = context.new_page()
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=colours)
    page.goto(server.address)
    shows(page.locator("#memory"), "116 kB")
    page.evaluate(Path(script).read_text())
    results = ("#generated img", "#recalled img", "#ranked img", "#curve svg", "#save", "#pad", "#codes svg")
    ready = dict(zip(TABS[1:], results, strict=True))
    found = {}
    for tab in TABS:
        go(page, tab)
        if tab in ready:
            appears(page.locator(ready[tab]).first)
        page.wait_for_function("!document.querySelector('.pending, .generating')")
        page.wait_for_timeout(300)  # until it has faded in
        for fault in page.evaluate("axe.run().then(found => found.violations)"):
            if fault["impact"] in ("serious", "critical"):
                found[tab, fault["id"]] = [node["html"][:200] for node in fault["nodes"][:3]]
    assert found == {}


def test_pictures_of_ones_own(page: Page, server: Server, tmp_path: Path) -> None:
    (folder := tmp_path / "more").mkdir()
    files = [picture(tmp_path / f"{number}.png", number) for number in range(3)]
    picture(folder / "3.png", 3)
    (folder / "notes.txt").write_text("no picture")
    shutil.make_archive(str(folder), "zip", folder)
    upload(page, "#files", *files, tmp_path / "more.zip")
    says(page, "not pictures were left out: 1")
    shows(page.locator("#episode"), "4 pictures")
    shows(page.locator("#memory .card").first, "4")
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
    shows(page.locator("#memory .card").first, "1")
    go(page, "Resize")
    shows(page.locator("#curve"), "there is only the bound")
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
    shows(page.locator("#memory"), "5 kB")
    expect(page.locator("#source input")).to_have_value("digits")
    go(page, "Keep")
    upload(page, "#load", other)
    shows(page.locator("#memory .card").first, "3")


@pytest.mark.long
def test_two_visitors_have_nothing_in_common(page: Page, context: BrowserContext, server: Server) -> None:
    second = visit(context, server)
    page.locator("#number input").fill("5")
    page.locator("#draw").click()
    shows(page.locator("#episode"), "5 pictures")
    shows(page.locator("#memory .card").first, "5")

    counts(second.locator("#episode img"), 64)
    go(second, "Resize")
    slide(second, "#size", "2")
    second.locator("#resize").click()
    shows(second.locator("#curve"), "2 clusters")
    page.reload()
    shows(page.locator("#memory"), "116 kB")
    second.close()
    go(page, "Keep")
    shows(page.locator("#keep"), "64 pictures in 116 kB")


def test_the_page_names_no_other_machine_and_no_way_around_it(shared_page: Page, server: Server) -> None:
    named = shared_page.eval_on_selector_all(
        "link[href], script[src], img[src]", "all => all.map(one => one.href || one.src)"
    )
    assert all(address.startswith((server.address, "data:")) for address in named)
    counts(shared_page.locator("footer"), 0)
    config = shared_page.evaluate("fetch('/config').then(answer => answer.json())")
    assert not config["analytics_enabled"]
    assert not config.get("run_history")
    information = shared_page.evaluate("fetch('/gradio_api/info').then(answer => answer.text())")
    assert re.search(r'"/\w+"', information) is None
