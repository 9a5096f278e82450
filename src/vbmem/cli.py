"""The command line: what there is, and how errors reach people. The commands themselves are in `commands`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import tyro
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import vbmem
from vbmem.commands import memories, paper, training
from vbmem.commands.app import app
from vbmem.commands.doctor import doctor
from vbmem.errors import TrainingError

console = Console()


def demo(out: Path = Path("demo"), images: Path | None = None, train: bool = False) -> None:
    """A page of pictures written, generated and recalled.

    Args:
        out: directory for index.html and its pictures.
        images: a folder of your own pictures; otherwise crops of a photograph that scikit-learn carries.
        train: afterwards train a small model on digits from scratch, half a minute on a CPU.
    """
    from vbmem.demo import demo, train_digits

    demo(out, console, images)
    if train:
        train_digits(out, console)


GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "See": {"demo": demo, "app": app, "models": memories.models, "doctor": doctor},
    "Your pictures": {
        "write": memories.write,
        "generate": memories.generate,
        "read": memories.read,
        "score": memories.score,
    },
    "Train": {
        "train": training.any_preset,  # for help and completion; to run, the preset decides on the options
        "presets": training.presets,
        "evaluate": training.evaluate,
        "export": memories.export,
    },
    "The paper": {
        "table1": paper.table1,
        "figure2": paper.figure2,
        "figure3": paper.figure3,
        "figure4": paper.figure4,
        "figure5": paper.figure5,
        "figure6": paper.figure6,
        "metrics": paper.metrics,
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}

# tyro completes options and their choices; where it has nothing to offer, bash shall offer files.
FILES_IN_BASH = """
_vbmem() { _tyro_vbmem; [[ -n "${COMPREPLY[*]}" ]] || COMPREPLY=(); }
complete -o default -F _vbmem vbmem"""


def main() -> None:
    """Entry point: an error is one sentence on standard error; --debug shows where it comes from.

    Exit codes: 2 for what the user can mend, 1 for what we should, 130 for Ctrl-C.
    """
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        run([argument for argument in arguments if argument != "--debug"])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output, `head` for example, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        mendable = isinstance(error, (ValueError, OSError, ArithmeticError, ImportError, TrainingError))
        told = str(error) if mendable else f"{error!r}; add --debug to see where, and please report it"
        Console(stderr=True).print(f"vbmem: {told}", style="red", soft_wrap=True, markup=False, highlight=False)
        sys.exit(2 if mendable else 1)


def run(arguments: list[str]) -> None:
    match arguments:
        case [] | ["-h" | "--help"]:
            show_commands()
            sys.exit(0 if arguments else 2)
        case ["--version"]:
            print(f"vbmem {vbmem.__version__}")
        case ["--completion", "bash" | "zsh" | "fish" as shell]:
            complete(shell)
        case ["--completion", *_]:
            raise ValueError("--completion needs a shell: bash, zsh or fish")
        case ["train", *rest]:
            training.train(rest)
        case _:
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="vbmem", args=arguments)


def complete(shell: str) -> None:
    """Print what a shell needs to complete our commands."""
    with suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="vbmem", args=["--tyro-print-completion", shell])
    if shell == "bash":
        print(FILES_IN_BASH)


def show_commands() -> None:
    """All commands on one screen, by what people want to do."""
    console.print("vbmem COMMAND [options]. Also: --version, --debug, --completion bash|zsh|fish", markup=False)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for group, commands in GROUPS.items():
        table.add_row(f"[bold]{group}")
        for name, command in commands.items():
            table.add_row(f"  {name}", escape((command.__doc__ or "").split("\n")[0]))
    console.print(table)
