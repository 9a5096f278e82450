"""The README, the results and the documentation hold what they say.

Python blocks of a page of the documentation are one script: they run in order and share their names. Those of other
files stand alone. A `text` block right after a Python block is what that block prints, to the letter. Commands of `sh`
blocks, and of indented ones outside the site, are put through the parser of the command line, but not run.
"""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlparse

import griffe
import pytest
import tyro
from markdown.extensions.toc import slugify

from pages import Step, run_page
from vbmem.commands import find_commands

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SITE = sorted(page for page in DOCS.rglob("*.md") if DOCS / "results" not in page.parents)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "results").rglob("*.md")), *SITE]
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WIDEST = 88  # columns of code that fit a page of the site


class Block(NamedTuple):
    language: str
    line: int  # of the fence
    text: str


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(found[1], text.count("\n", 0, found.start()) + 1, found[2]) for found in FENCE.finditer(text)]


every_page = pytest.mark.parametrize("page", PAGES, ids=name)
every_script = pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.language == "python" for block in blocks(page))], ids=name
)


@every_script
def test_a_page_runs_and_prints_what_it_says(page: Path, tmp_path: Path, processes: ForkServerContext) -> None:
    script = []
    found = blocks(page)
    for block, after in zip(found, [*found[1:], None], strict=True):
        if block.language == "python":
            ends = block.line + block.text.count("\n") + 1
            printed = after.text if after and after.language == "text" and after.line <= ends + 2 else None
            script.append(Step(block.line, block.text, printed))
    (folder := tmp_path / "work").mkdir()
    errors = tmp_path / "errors.txt"
    process = processes.Process(target=run_page, args=(script, page not in SITE, folder, errors))
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
    assert process.exitcode == 0, errors.read_text()


def test_there_is_something_to_run() -> None:
    assert sum(block.language == "python" for page in PAGES for block in blocks(page)) > 40


@pytest.mark.parametrize("page", SITE, ids=name)
def test_code_fits_the_page(page: Path) -> None:
    wide = [line for block in blocks(page) if block.language == "python" for line in block.text.split("\n")]
    assert [line for line in wide if len(line) > WIDEST] == []


def commands(page: Path) -> Iterator[str]:
    """Lines of shell blocks, and of indented ones outside the site, without their comments."""
    lines = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    if page not in SITE:
        lines += [line.strip() for line in page.read_text().splitlines() if line.startswith("    ")]
    return (line.split(" #")[0].strip() for line in lines if re.match(r"(vbmem|python|make) ", line))


def parse(arguments: list[str]) -> None:
    """What the command line makes of its arguments, short of running the command; exits where it would refuse them."""
    idle: dict[str, Callable[..., None]] = {
        known: functools.wraps(command)(lambda **_: None) for known, command in find_commands().items()
    }
    tyro.extras.subcommand_cli_from_dict(idle, args=arguments)


@every_page
def test_commands_can_be_given(page: Path) -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in commands(page):
        match shlex.split(line):
            case ["vbmem", *arguments]:
                parse(arguments)
            case ["python", script, *_]:
                assert (ROOT / script).is_file(), line
            case ["make", target, *_]:
                assert target in targets, line


def test_a_command_that_cannot_be_given_is_noticed() -> None:
    for line in ("write", "write holiday -o x --nonsense 3", "paint", "train digits-mixture --model.memory 3"):
        with pytest.raises(SystemExit):
            parse(line.split())


@every_page
def test_commands_named_in_the_text_exist(page: Path) -> None:
    named = set(re.findall(r"`vbmem ([a-z][a-z0-9-]*)", FENCE.sub("", page.read_text())))
    assert named <= set(find_commands())


def test_the_reference_names_every_command() -> None:
    listed = re.findall(r"`vbmem ([a-z][a-z0-9-]*)", (DOCS / "api" / "commands.md").read_text())
    assert set(listed) - {"COMMAND"} == set(find_commands())


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    return re.findall(r"\]\(<?([^)>\s]+)>?\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def linked_file(page: Path, path: str) -> Path:
    """The file a link means; docs/results is a copy of results that only a build makes."""
    target = (page.parent / path).resolve()
    copied = DOCS / "results"
    return ROOT / "results" / target.relative_to(copied) if copied in [target, *target.parents] else target


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("http:", "https:", "mailto:")):
            assert urlparse(link).netloc or link.startswith("mailto:"), link
            continue
        path, _, anchor = link.partition("#")
        target = linked_file(page, path) if path else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_everything_in_the_gallery_has_a_picture_a_snippet_and_a_sentence() -> None:
    things = re.split(r"^### ", (DOCS / "gallery.md").read_text(), flags=re.MULTILINE)[1:]
    assert len(things) > 15
    for thing in things:
        assert re.search(r"\n!\[.+\]\(.+\)\n\n[A-Z][^`]+", thing), thing
        assert "```python\n" in thing


@pytest.mark.parametrize("page", SITE, ids=name)
def test_a_page_shows_no_picture_of_a_person(page: Path) -> None:
    assert not [link for link in links(page) if "celeba" in link.lower()]


def test_the_navigation_holds_every_page() -> None:
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]

    def leaves(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        return [leaf for part in inner for leaf in leaves(part)]  # type: ignore[attr-defined]

    listed = [page for page in leaves(project["nav"]) if not page.startswith("results/")]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in SITE)


def test_numbers_are_those_of_the_results() -> None:
    command = [sys.executable, str(DOCS / "prepare.py"), "--check"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr


def test_the_reference_describes_every_parameter_of_every_constructor() -> None:
    extensions = griffe.load_extensions(str(DOCS / "fields.py"), "dataclasses")
    loader = griffe.GriffeLoader(search_paths=[ROOT / "src"], extensions=extensions, docstring_parser="google")
    loader.load("vbmem")
    loader.resolve_aliases(external=False)
    missing = []
    for page in (DOCS / "api").glob("*.md"):
        for named in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE):
            found = loader.modules_collection[named]
            texts = [found, *(found.members[name] for name in ("__init__",) if name in found.members)]
            sections = [part for text in texts if text.docstring for part in text.docstring.parsed]
            told = {entry.name for part in sections if part.kind.value == "parameters" for entry in part.value}
            if found.is_class:
                missing += [f"{named}({p.name})" for p in found.parameters if p.name not in {"self", *told}]
    assert missing == [], missing
