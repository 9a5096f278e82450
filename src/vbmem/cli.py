"""The command line: what there is, and how errors reach people. The commands themselves are in `commands`."""

import os
import sys
import warnings
from contextlib import redirect_stdout, suppress
from io import StringIO, TextIOWrapper
from typing import Any

import vbmem
from vbmem.commands import command_groups, find_commands
from vbmem.errors import UncheckedFileWarning, VbmemError

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
    if sys.stdout is None:
        complain("standard output is closed; send it somewhere, for example to /dev/null")
        sys.exit(2)
    show_any_name()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            run([argument for argument in arguments if argument != "--debug"])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read the output, `head` for example, has seen enough
        discard_output()
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        mendable = isinstance(error, (VbmemError, ValueError, OSError, ArithmeticError, ImportError))
        if is_out_of_memory(error):
            mendable = True
            complain("there is not enough memory for this; ask for less at a time, or close other programs")
        else:
            complain(str(error) if mendable else f"{error!r}; add --debug to see where, and please report it")
        try:
            sys.stdout.flush()
        except OSError:  # on a full disk, for example; Python would try again and complain at its end
            discard_output()
        sys.exit(2 if mendable else 1)


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch on the CPU or torch on a GPU could not have the memory it asked for."""
    told = "can't allocate memory" in str(error) or "out of memory" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and told)


def show_any_name() -> None:
    """Let the names of files be printed that are not UTF-8, or not in the alphabet of this terminal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Let what is still to be printed vanish."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
) -> None:
    """One of ours is a sentence; of others one also wants to know where they come from."""
    ours = issubclass(category, UncheckedFileWarning)
    complain(str(message) if ours else warnings.formatwarning(message, category, filename, lineno).strip())


def complain(sentence: str) -> None:
    """Say on standard error what went wrong."""
    from rich.console import Console

    if sys.stderr is None:
        return
    Console(stderr=True).print(f"vbmem: {sentence}", style="red", soft_wrap=True, markup=False, highlight=False)


def run(arguments: list[str]) -> None:
    """Do what the arguments ask for. What a case needs is imported there, so that the others are quick."""
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
        case ["train", preset, *options] if not preset.startswith("-"):
            from vbmem.commands.train import train_preset

            train_preset(preset, options)
        case [name, *options]:
            call(name, options)


def call(name: str, options: list[str]) -> None:
    """Run one command."""
    from difflib import get_close_matches

    import tyro

    commands = find_commands()
    if name not in commands:
        near = get_close_matches(name, commands)
        advice = f"did you mean {' or '.join(near)}? " if near else ""
        raise ValueError(f"there is no command {name!r}; {advice}`vbmem --help` lists all")
    tyro.cli(commands[name], prog=f"vbmem {name}", args=options)


def complete(shell: str) -> None:
    """Print what a shell needs to complete our commands."""
    import tyro

    with redirect_stdout(StringIO()) as script, suppress(SystemExit):
        tyro.extras.subcommand_cli_from_dict(find_commands(), prog="vbmem", args=["--tyro-print-completion", shell])
    # The words of a description's second line would be offered as options.
    lines = script.getvalue().splitlines()
    print(*(line.replace(r"\n", " ") if line.startswith("COMPLETION_SPEC") else line for line in lines), sep="\n")
    if shell == "bash":
        print(FILES_IN_BASH)


def show_commands() -> None:
    """All commands on one screen, by what people want to do."""
    from rich.markup import escape
    from rich.table import Table

    from vbmem.commands.output import console

    console.print("vbmem COMMAND [options]. Also: --version, --debug, --completion bash|zsh|fish", markup=False)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for group, commands in command_groups().items():
        table.add_row(f"[bold]{group}")
        for name, command in commands.items():
            table.add_row(f"  {name}", escape((command.__doc__ or "").split("\n")[0]))
    console.print(table)
