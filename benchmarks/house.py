"""How large the house is, and how far it is from the door: code lines, imports between packages, start-up, hops.

    python benchmarks/house.py [--source DIR] [--tests DIR] [--out FILE.json]

Code lines are lines with code on them: no blank lines, comments or docstrings. An import counts once for every pair of
modules. CPU seconds are the least of five runs of `vbmem --version`. Hops are the files of vbmem that the longest chain
of calls goes through, for `load`, `write` and `generate` with a shipped model. For another version, give the `src` and
`tests` of its checkout.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import resource
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

from report import emit

LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
USE = """
import inspect, sys, torch, vbmem

def hops(action):
    deepest = 0
    def note(frame, event, argument):
        nonlocal deepest
        if event == "call" and "/vbmem/" in frame.f_code.co_filename:
            files = []
            while frame is not None:
                file = frame.f_code.co_filename
                if "/vbmem/" in file and files[-1:] != [file]:
                    files.append(file)
                frame = frame.f_back
            deepest = max(deepest, len(files))
    sys.setprofile(note)
    try:
        return action(), deepest
    finally:
        sys.setprofile(None)

vbmem.load("digits-mixture")  # imports done
model, load = hops(lambda: vbmem.load("digits-mixture"))
memory, write = hops(lambda: model.write(torch.rand(8, 1, 8, 8)))
_, generate = hops(lambda: model.generate(memory, 4))
print(load, write, generate)
"""


def code_lines(path: Path) -> int:
    """Lines that hold a token which is neither layout nor part of a docstring."""
    source = path.read_text()
    strings = [
        statement
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ]
    documentation = {line for s in strings for line in range(s.lineno, (s.end_lineno or s.lineno) + 1)}
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in LAYOUT]
    return len({line for t in tokens for line in range(t.start[0], t.end[0] + 1)} - documentation)


def imports(path: Path) -> set[str]:
    """Modules of vbmem that a file names in an import."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {n.module for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("vbmem.")}


def in_process(source: Path, *arguments: str) -> tuple[str, float]:
    """What Python prints, and the CPU seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = os.environ | {"PYTHONPATH": str(source.resolve())}
    result = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path("src"))
    parser.add_argument("--tests", type=Path, default=Path("tests"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    package = arguments.source / "vbmem"
    files = sorted(package.rglob("*.py"))
    lines = Counter[str]()
    for path in files:
        lines[path.relative_to(package).parts[0]] += code_lines(path)
    hops = map(int, in_process(arguments.source, "-c", USE)[0].split())
    result = {
        "code lines of src": sum(lines.values()),
        "code lines of tests": sum(map(code_lines, arguments.tests.rglob("*.py"))),
        "by package": dict(lines.most_common()),
        "modules": len(files),
        "imports between modules": sum(len(imports(path)) for path in files),
        "CPU seconds of vbmem --version": min(
            round(in_process(arguments.source, "-m", "vbmem", "--version")[1], 3) for _ in range(5)
        ),
        "hops": dict(zip(("load", "write", "generate"), hops, strict=True)),
    }
    emit(result, arguments.out)


if __name__ == "__main__":
    main()
