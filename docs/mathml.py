"""A Markdown extension: `$..$` and `$$..$$` become MathML when the site is built.

So a page needs no script. Use what all browsers draw: no bold or script letters. They
do not break a formula by themselves: where one may be broken, say `\\allowbreak`.
"""

from __future__ import annotations

import itertools
import re
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

BLOCK = re.compile(r"^\$\$\n(.+?)\n\$\$[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = r"(?<![\\$])\$(?=\S)([^$\n]+?)(?<=\S)\$(?![$\d])"
BREAK = r"\allowbreak"
MATH = "{http://www.w3.org/1998/Math/MathML}"
ROWS = ("}mrow", "}mtd")
ALIGN = {"left": "start", "right": "end"}


class Display(Preprocessor):
    """Formulas on lines of their own, between two lines of `$$`, in pieces."""

    def run(self, lines: list[str]) -> list[str]:
        return BLOCK.sub(self._store, "\n".join(lines)).split("\n")

    def _store(self, match: re.Match[str]) -> str:
        pieces = [mathml(piece, "block") for piece in match[1].split(BREAK)]
        stored = self.md.htmlStash.store(
            f'<div class="formula">{"".join(pieces)}</div>'
        )
        return f"\n{stored}\n"


class Inline(InlineProcessor):
    """Formulas within a line."""

    def handleMatch(self, match: re.Match[str], data: str) -> tuple[Any, int, int]:
        return (
            self.md.htmlStash.store(mathml(match[1], "inline")),
            match.start(0),
            match.end(0),
        )


class MathML(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # After fences (25), so that code keeps its dollars.
        md.preprocessors.register(Display(md), "mathml-display", 24)
        # After backticks (190), before escapes.
        md.inlinePatterns.register(Inline(INLINE, md), "mathml-inline", 185)


def mathml(tex: str, display: str) -> str:
    """One formula. Columns are aligned by style: browsers do not heed `columnalign`."""
    root = ElementTree.fromstring(convert(tex, display=display))
    for element in root.iter():
        if side := element.attrib.pop("columnalign", None):
            element.set("style", f"text-align: {ALIGN.get(side, 'center')}")
        if element.text == "~":  # of sim: no letter, but a relation, and spaced as one
            element.tag, element.text = f"{MATH}mo", "\u223c"
        if element.tag.endswith("}mo") and len(element.text or "") > 1:
            element.tag = f"{MATH}mi"  # det, as ln is
    for row in root.iter():
        if row.tag.endswith(ROWS):
            _space_functions(row)
    ElementTree.register_namespace("", MATH[1:-1])
    return ElementTree.tostring(root, encoding="unicode")


def _space_functions(row: ElementTree.Element) -> None:
    """2 ln p, not 2lnp: thin spaces around a name of several letters, but ln(p)."""
    for place, (before, after) in reversed(
        list(enumerate(itertools.pairwise(list(row)), 1))
    ):
        call = _is_name(before) and after.text != "("
        if call or (_is_name(after) and not before.tag.endswith(("}mo", "}mspace"))):
            row.insert(place, ElementTree.Element(f"{MATH}mspace", width="0.17em"))


def _is_name(element: ElementTree.Element) -> bool:
    return element.tag.endswith("}mi") and len(element.text or "") > 1


def makeExtension(**settings: Any) -> MathML:
    return MathML(**settings)
