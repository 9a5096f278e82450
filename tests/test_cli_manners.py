"""Manners of the command line: help, errors, exit codes, colours, data for programs, completion, missing extras."""

import ast
import json
import os
import pty
import re
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vbmem.commands import command, command_groups, find_commands
from vbmem.data.examples import photograph_crops
from vbmem.errors import UncheckedFileWarning
from vbmem.paper.presets import PRESETS
from vbmem.pretrained import shipped

COLOUR = re.compile(r"\x1b\[[\d;]*[34]\d")
PIPED = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE")}


def python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=PIPED | (env or {}))


# --- Help -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", find_commands())
def test_every_command_explains_itself(command, run):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert f"usage: vbmem {command}" in out
    assert str(find_commands()[command].__doc__).split("\n")[0] in " ".join(out.split())
    assert unexplained(out) == []


def unexplained(help: str) -> list[str]:
    """Options of which a help text says nothing but the default."""
    lines = re.sub("[│|]", "", help)  # without the frame
    return re.findall(r"^ {1,2}(-{0,2}\w\S*(?: \S+)*)\s{2,}\((?:default|required)", lines, re.MULTILINE)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_shows_its_options(preset, run):
    code, out, err = run("train", preset, "--help")
    assert (code, err) == (0, "")
    assert "--data.dataset" in out
    assert unexplained(out) == []


def test_a_command_is_one_decorated_function(run, monkeypatch):
    monkeypatch.setitem(command_groups()["See"], "hello", None)  # taken away again after the test

    @command("See")
    def hello(name: str = "world") -> None:
        """Greet somebody."""
        print(f"hello {name}")

    assert "Greet somebody." in run("--help")[1]
    assert run("hello", "--name", "you") == (0, "hello you\n", "")


# --- Errors and exit codes ------------------------------------------------------------------------------------------


NO_MEMORY = "vbmem: there is not enough memory for this; ask for less at a time, or close other programs\n"


def fail_with(error: BaseException):
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("mend it"), 2, "vbmem: mend it\n"),
        (ImportError("it needs gradio"), 2, "vbmem: it needs gradio\n"),
        (FileNotFoundError(2, "No such file", "a.png"), 2, "vbmem: [Errno 2] No such file: 'a.png'\n"),
        (KeyError("x"), 1, "vbmem: KeyError('x'); add --debug to see where, and please report it\n"),
        (RuntimeError("[red]"), 1, "vbmem: RuntimeError('[red]'); add --debug to see where, and please report it\n"),
        (MemoryError(), 2, NO_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."), 2, NO_MEMORY),
        (RuntimeError("CUDA out of memory. Tried to allocate 9 GiB."), 2, NO_MEMORY),
        (KeyboardInterrupt(), 130, ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_is_one_sentence_and_an_exit_code(run, monkeypatch, error, code, told):
    monkeypatch.setitem(command_groups()["See"], "doctor", fail_with(error))
    assert run("doctor") == (code, "", told)
    if told:
        with pytest.raises(type(error)):
            run("doctor", "--debug")


@pytest.mark.parametrize(
    "arguments", [["elephant"], ["write"], ["write", "a", "-o", "b", "--elephant"], ["train", "-x"]]
)
def test_what_is_not_understood_fails(run, arguments):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err


@pytest.mark.parametrize(("typed", "meant"), [("wirte", "write"), ("figur3", "figure3"), ("model", "models")])
def test_a_mistyped_command_gets_its_nearest(run, typed, meant):
    code, out, err = run(typed, "--seed", "1")
    assert (code, out) == (2, "")
    assert err.startswith(f"vbmem: there is no command {typed!r}; did you mean {meant}")
    assert len(err.splitlines()) == 1


def test_a_command_unlike_any_is_sent_to_the_help(run):
    assert run("elephant") == (2, "", "vbmem: there is no command 'elephant'; `vbmem --help` lists all\n")


def test_a_mistyped_option_gets_its_nearest(run):
    code, out, err = run("write", "a", "-o", "b", "--clustres", "3")
    assert (code, out) == (2, "")
    assert "--clusters" in err


def test_a_closed_pipe_is_no_error_to_report_even_for_short_answers():
    command = f"{sys.executable} -m vbmem --version | sleep 0"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120)
    assert result.stderr == ""


def shell(command: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["bash", "-c", command], capture_output=True, timeout=120, env=PIPED)


def test_a_closed_standard_output_is_told_before_the_work():
    result = shell(f"{sys.executable} -m vbmem presets >&-")
    assert result.returncode == 2
    assert result.stderr.decode() == "vbmem: standard output is closed; send it somewhere, for example to /dev/null\n"
    assert shell(f"{sys.executable} -m vbmem presets >&- 2>&-").returncode == 2


def test_a_full_standard_output_is_one_sentence():
    result = shell(f"{sys.executable} -m vbmem --version > /dev/full")
    assert (result.returncode, result.stderr) == (2, b"vbmem: [Errno 28] No space left on device\n")


def test_names_that_are_not_utf_8_can_be_told(tmp_path):
    result = shell(f"{sys.executable} -m vbmem $'ab\\xff'")
    assert result.returncode == 2
    assert result.stderr.startswith(rb"vbmem: there is no command 'ab\udcff'")


def test_a_warning_of_ours_is_one_sentence(run, monkeypatch):
    def command() -> None:
        warnings.warn("it carries no checksum", UncheckedFileWarning, stacklevel=1)

    monkeypatch.setitem(command_groups()["See"], "doctor", command)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run("doctor") == (0, "", "vbmem: it carries no checksum\n")


# --- Start-up -------------------------------------------------------------------------------------------------------

HEAVY = ["torch", "sklearn", "gradio", "matplotlib", "numpy", "PIL"]
# Each command line in a copy of a process that has loaded what all of them need.
LOADED = f"""
import os, sys
import rich.markup, rich.table, tyro
from vbmem import cli
from vbmem.commands import find_commands

find_commands()

def loads(line):
    if copy := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])
    sys.argv = ["vbmem", *line.split()]
    try:
        cli.main()
    finally:
        heavy = [name for name in {HEAVY} if name in sys.modules]
        os.write(2, f"{{line}} loaded {{heavy}}".encode() if heavy else b"")
        os._exit(bool(heavy))

sys.exit(any([loads(line) for line in sys.argv[1:]]))
"""


def test_help_and_argument_errors_load_nothing_heavy():
    lines = [
        "--help",
        "--version",
        *(f"--completion {shell}" for shell in ("bash", "zsh", "fish")),
        *(f"{command} --help" for command in find_commands()),
        "train digits-mixture --help",
        "presets",
        "elephant",
        "--elephant",
        "write",
        "write a -o b --elephant",
        "train",
        "train no-such-preset",
        "train digits-mixture --no-such-option",
    ]
    result = python("-c", LOADED, *lines)
    assert result.returncode == 0, result.stderr


def test_the_version_takes_under_four_tenths_of_a_second():
    before = os.times()
    python("-m", "vbmem", "--version")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 0.4


LAZY = ["vbmem", "vbmem.data", "vbmem.pretrained", "vbmem.models", "vbmem.train"]
OFFERED = f"""
import sys
from importlib import import_module

for name in {LAZY}:
    print(*dir(import_module(name)))
    assert "torch" not in sys.modules, name
for name in {LAZY}:
    exec(f"from {{name}} import *", offered := {{}})
    assert set(import_module(name).__all__) <= set(offered), name
"""


def test_packages_offer_what_their_stubs_list_and_load_torch_only_for_it():
    result = python("-c", OFFERED)
    assert result.returncode == 0, result.stderr
    for package, listed in zip(LAZY, result.stdout.splitlines(), strict=True):
        stub = Path(str(import_module(package).__file__)).with_suffix(".pyi")
        names: Any = ast.parse(stub.read_text()).body[-1]
        assert listed.split() == sorted(ast.literal_eval(names.value)), package


# --- Colours --------------------------------------------------------------------------------------------------------


def test_a_pipe_gets_no_colours(run):
    for arguments in (["--help"], ["write", "--help"], ["write"], ["presets"], ["evaluate", "nowhere"]):
        _, out, err = run(*arguments)
        assert out + err
        assert "\x1b" not in out + err
    result = python("-m", "vbmem", "presets")
    assert "digits-mixture" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_a_terminal_gets_colours_unless_it_wants_none(env, coloured):
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "vbmem", "elephant"]
    with subprocess.Popen(arguments, stderr=theirs, env=PIPED | {"TERM": "xterm-256color"} | env) as process:
        process.wait(120)
    os.close(theirs)
    told = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "there is no command 'elephant'" in told
    assert bool(COLOUR.search(told)) == coloured


# --- Data for programs ----------------------------------------------------------------------------------------------


def test_models_and_presets_are_also_json(run):
    models, presets = (json.loads(run(command, "--json")[1]) for command in ("models", "presets"))
    assert [row["model"] for row in models] == shipped()
    assert models[0]["parameters"] == 1323798
    assert [row["preset"] for row in presets] == list(PRESETS)
    assert presets[0]["episodes"] == "16 x 64"


# --- Completion -----------------------------------------------------------------------------------------------------


# The words typed after `vbmem` to the function that is registered for it.
COMPLETE = """
source "$1"; shift
[[ $(complete -p vbmem) == "complete -o default -F _vbmem vbmem" ]] || exit 1
COMP_WORDS=(vbmem "$@"); COMP_CWORD=$#
_vbmem
printf "%s\\n" "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "vbmem.bash"
    path.write_text(python("-m", "vbmem", "--completion", "bash").stdout)
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wr", {"write"}),
        ("fig", {"figure2", "figure3", "figure4", "figure5", "figure6"}),
        ("write --mod", {"--model"}),
        ("evaluate cifar10-vae --split ", {"train", "valid", "test"}),
        ("train digits-", {"digits-vae", "digits-categorical", "digits-mixture"}),
        ("train digits-vae --model.", {"--model.code-size", "--model.filters", "--model.precision", "--model.style"}),
        ("train digits-mixture --model.f", {"--model.factorised", "--model.filters"}),  # with a long description
        ("train digits-vae --data.episodes vi", {"views"}),
        ("write holi", set()),  # bash then offers files
    ],
)
def test_bash_completes_commands_presets_options_and_choices(script, typed, offered):
    words = typed.split(" ")
    result = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", script, *words], capture_output=True, text=True, timeout=60
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert set(result.stdout.split()) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell, run):
    code, out, _ = run("--completion", shell)
    assert code == 0
    assert "digits-mixture" in out


def test_completion_names_the_shells(run):
    assert run("--completion", "tcsh")[::2] == (2, "vbmem: --completion needs a shell: bash, zsh or fish\n")


# --- Without the extras ---------------------------------------------------------------------------------------------

EXTRAS = ["gradio", "huggingface_hub", "zensical", "mkdocstrings", "nbclient", "IPython", "hypothesis", "pytest"]
# Each command line, and after it on standard error its exit code.
WITHOUT_EXTRAS = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *args: None if name.partition(".")[0] in {EXTRAS} else find(name, *args)
from vbmem.cli import main

for command in sys.argv[1:]:
    sys.argv = ["vbmem", *command.split()]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    print(code, file=sys.stderr)
"""


def test_the_core_needs_no_extra_and_a_missing_one_is_told_in_one_sentence(tmp_path):
    """One process for all, since it takes long to load what they need."""
    picture, memory, sheet = (tmp_path / name for name in ("a.png", "a.memory", "new.png"))
    Image.fromarray(photograph_crops("china", 1, 32)[0]).save(picture)
    needs = {
        "doctor": None,
        f"write {picture} -o {memory}": None,
        f"generate {memory} -n 1 -o {sheet}": None,
        f"score {memory} {picture}": None,
        "app": "app",
        "write . -o x --model hf://me/tiny": "hub",
    }
    result = python("-W", "error", "-c", WITHOUT_EXTRAS, *needs)
    assert result.returncode == 0, result.stderr
    lines = iter(result.stderr.splitlines())
    for extra in needs.values():
        if extra is not None:
            assert f"pip install 'vbmem[{extra}]'" in next(lines)
        assert next(lines) == ("0" if extra is None else "2")
    assert next(lines, None) is None
    assert sheet.exists()
