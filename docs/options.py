"""Every option of every command, as the command line has them, for its reference."""

from __future__ import annotations

import argparse
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import tyro

from vbmem.commands import find_commands
from vbmem.commands.train import TrainOptions
from vbmem.paper.presets import get_preset

PRESET = "cifar10-mixture"  # whose settings are shown as the defaults of training
DEFAULT = re.compile(r"\.?\s*\((?:required|default: (?P<value>.*))\)$")
REPEATED = re.compile(r"\{?\[(\S+) \[.* \.\.\.\]\]\}?")


def reference() -> str:
    """A section for every command: what it does, what it takes."""
    sections = [section(name, command) for name, command in find_commands().items()]
    return "\n\n".join(part for parts in sections for part in parts)


def section(name: str, command: Callable[..., None]) -> Iterator[str]:
    training = name == "train"
    parser = parser_of(TrainOptions if training else command, training)
    actions = [action for action in parser._actions if action.dest != "help"]
    words = [taken(action) for action in actions if not action.option_strings]
    yield f"### {name}"
    yield f"`{' '.join(['vbmem', name, *(['PRESET'] if training else words)])}`"
    yield one_line(parser.description)
    if training:
        yield f"Defaults of settings are those of `{PRESET}`; every preset has its own."
    yield "\n".join(map(described, actions))


def parser_of(command: Callable[..., Any], training: bool) -> argparse.ArgumentParser:
    """What tyro makes of a command; of training, with the settings of one preset."""
    default = {"default": TrainOptions(PRESET, get_preset(PRESET))} if training else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # tyro has no other way
        return tyro.extras.get_parser(command, **default)


def described(action: argparse.Action) -> str:
    """One entry of a list: names, what it takes, what it does, its default."""
    text, names = one_line(action.help), action.option_strings
    default = (found := DEFAULT.search(text)) and found["value"]
    about = DEFAULT.sub("", text).removesuffix(".")
    if len(names) == 2 and "no-" in names[1]:  # a switch: what changes it
        names = names[1:] if default == "True" else names[:1]
        about = f"{about}; this switches it off" if default == "True" else about
    shown = " ".join(filter(None, [", ".join(names), taken(action)]))
    if text.endswith("(required)") and names:
        about = f"{about}; required"
    elif default not in (None, "", "None", "True", "False"):
        about = f"{about}; default `{default}`"
    return f"- `{shown}`: {about[:1].lower()}{about[1:]}."


def taken(action: argparse.Action) -> str:
    """What stands for the value: INT, PATH, {this,that}; MODEL, if it has no name."""
    word = str(action.metavar or "").replace("{None}|", "").replace("{None,", "{")
    if word == "STR" and not action.option_strings:
        word = action.dest.upper()
    return REPEATED.sub(r"\1 ..", word)


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
