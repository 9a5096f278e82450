"""The formulas of the documentation can be read wherever it is: also on a telephone, and without fonts of one's own."""

import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fontTools.ttLib import TTFont
from markdown import Markdown
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1] / "docs"
TEXTS = [page.read_text() for page in sorted(DOCS.rglob("*.md")) if DOCS / "results" not in page.parents]
FONT = DOCS / "fonts" / "stix-two-math.woff2"
TELEPHONES = (400, 360)  # pixels across
MARGIN = 47  # of a page of the site
ITALIC = {"h": "\u210e"} | {chr(ord("a") + i): chr(0x1D44E + i) for i in range(26) if i != 7}


@pytest.fixture(scope="module")
def formulas() -> str:
    """All of them, as HTML."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(DOCS), *sys.path])
        pages = [Markdown(extensions=["fenced_code", "mathml"]).convert(text) for text in TEXTS if "$" in text]
    parts = re.compile(r'<p>(?:(?!</p>).)*<math.*?</p>|<div class="formula">.*?</div>', re.DOTALL)
    return "".join(part for page in pages for part in parts.findall(page))


def test_formulas_fit_a_telephone(formulas: str, tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium found: install Debian's chromium to look at pages in a browser")
    style = (DOCS / "stylesheets" / "extra.css").read_text().replace("../fonts", (DOCS / "fonts").as_uri())
    page = tmp_path / "formulas.html"
    page.write_text(
        f"<!doctype html><meta charset=utf-8><style>{style} body {{ margin: 0; font: 16px/1.6 sans-serif }}</style>"
        f"<main class=md-typeset style='margin-right: {MARGIN}px'>{formulas}</main>"
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--headless", "--no-sandbox"])
        for width in TELEPHONES:
            tab = browser.new_page(viewport={"width": width, "height": 800})
            tab.goto(page.as_uri())
            assert tab.evaluate("document.fonts.ready.then(() => document.fonts.check('16px Formulas'))")
            wide = "[...document.querySelectorAll('math')].filter(e => e.getBoundingClientRect().right > %d)"
            assert tab.evaluate(wide % (width - MARGIN + 1) + ".map(e => e.textContent)") == []
        browser.close()


def test_the_font_of_formulas_has_all_their_letters(formulas: str) -> None:
    found = TTFont(FONT)
    assert "MATH" in found
    letters = set()
    for formula in re.findall(r"<math.*?</math>", formulas, re.DOTALL):
        for element in ElementTree.fromstring(formula).iter():
            text = (element.text or "").strip()
            letters |= set(ITALIC.get(text, text) if element.tag.endswith("}mi") else text)
    assert letters - set(map(chr, found.getBestCmap())) == set()
