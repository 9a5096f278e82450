"""A griffe extension: fields of a dataclass are described as its parameters.

What a field is for stands below it, as a docstring, or behind it, as a comment. A class
whose docstring has `Args:` is left as it is; one that adds no fields takes its base's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import griffe

COMMENT = re.compile(r"\s\s#\s+(?!type:)(.+)$")
ARGUMENTS = re.compile(r"^Args:\n(?:(?:[ ].*)?\n?)+", re.MULTILINE)


class Fields(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: object) -> None:
        found = list(classes_within(pkg))
        for cls in found:
            describe(cls)
        for field in (field for cls in found for field in fields_of(cls)):
            field.docstring = None  # said once is enough
            if str(field.value) == "field()":
                field.value = None


def classes_within(module: griffe.Module) -> Iterator[griffe.Class]:
    yield from (cls for cls in module.classes.values() if not cls.is_alias)
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from classes_within(inner)


def fields_of(cls: griffe.Class) -> Iterator[griffe.Attribute]:
    if any("dataclass" in str(decorator.value) for decorator in cls.decorators):
        for field in cls.attributes.values():
            if "instance-attribute" in field.labels and "property" not in field.labels:
                yield field


def describe(cls: griffe.Class) -> None:
    """Add `Args:` to the docstring, of its own fields and those it inherits."""
    if cls.docstring is None or arguments(cls):
        return
    lines = [described(field) for base in cls.mro()[::-1] for field in fields_of(base)]
    lines += [described(field) for field in fields_of(cls)]
    if known := dict(filter(None, lines)):
        cls.docstring.value += "\n\nArgs:\n" + "\n".join(known.values())
    elif found := next(filter(None, map(arguments, cls.mro())), None):
        cls.docstring.value += f"\n\n{found}"


def arguments(cls: griffe.Class) -> str | None:
    found = cls.docstring and ARGUMENTS.search(cls.docstring.value)
    return found[0] if found else None


def described(field: griffe.Attribute) -> tuple[str, str] | None:
    """Its name, and a line of `Args:`."""
    if field.docstring:
        text = " ".join(field.docstring.value.split())
    elif found := COMMENT.search(field.lines[-1] if field.lines else ""):
        text = found[1]
    else:
        return None
    return field.name, f"    {field.name}: {text}"
