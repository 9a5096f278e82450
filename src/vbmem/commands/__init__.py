"""The commands of `vbmem`. A new one is a function with `@command(group)` in any module of this package.

A command's help is its docstring, its options are its parameters. The modules are imported whenever somebody asks what
commands there are, so they import nothing heavy; what a command runs is imported in its body.
"""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Literal, TypeVar, get_args

Command = TypeVar("Command", bound=Callable[..., None])
Group = Literal["See", "Your data", "Train", "The paper"]

_groups: dict[Group, dict[str, Callable[..., None]]] = {group: {} for group in get_args(Group)}


def command(group: Group) -> Callable[[Command], Command]:
    """Make a function a command of its own name, few_shot as few-shot, listed under `group`."""

    def register(function: Command) -> Command:
        _groups[group][function.__name__.replace("_", "-")] = function
        return function

    return register


@cache
def command_groups() -> dict[Group, dict[str, Callable[..., None]]]:
    """All commands by name, grouped by what people want to do."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return _groups


def find_commands() -> dict[str, Callable[..., None]]:
    """All commands by name."""
    return {name: function for group in command_groups().values() for name, function in group.items()}
