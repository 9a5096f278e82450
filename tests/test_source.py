"""What the source must not do, since it would let strangers in: every module is walked."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py"), *(ROOT / "docs").glob("*.py")])

FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "__import__",
    "os.system",
    "os.popen",
    "os.fork",
    "os.tempnam",
    "tempfile.mktemp",
    "tempfile.gettempdir",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "pandas.read_pickle",
    "pd.read_pickle",
    "multiprocessing.Process",  # which forks, as do these
    "multiprocessing.Pool",
}
FORBIDDEN_METHODS = {"extractall": "an archive says where its files go"}
FORBIDDEN_OPTIONS = {("shell", True), ("allow_pickle", True), ("weights_only", False), ("trust_remote_code", True)}
ALLOWED = {
    # The official archive is a pickle; its reader takes arrays, numbers and text alone (tests/data/known).
    ("src/vbmem/data/known/cifar10.py", "imports pickle"),
    # Says who holds a lock; no file is called after it.
    ("src/vbmem/train/lock.py", "calls os.getpid, with which a name can be guessed"),
}


def offences(tree: ast.AST) -> Iterator[str]:
    """What a module does that it must not."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (f"imports {name.name}" for name in names if name.name in FORBIDDEN_MODULES)
            case ast.ImportFrom(module=str(module)) if module in FORBIDDEN_MODULES:
                yield f"imports {module}"
            case ast.Constant(value=str(text)) if text.startswith(("/tmp", "/var/tmp", "/dev/shm")):
                yield f"names {text}, where others may write"
            case ast.Call():
                yield from _calls(node)


def _calls(node: ast.Call) -> Iterator[str]:
    called = ast.unparse(node.func)
    options = {option.arg: ast.unparse(option.value) for option in node.keywords}
    values = [ast.unparse(argument) for argument in node.args]
    if called in FORBIDDEN_CALLS:
        yield f"calls {called}"
    if called == "torch.load" and options.get("weights_only") != "True":
        yield "calls torch.load without weights_only"
    if called == "os.getpid":
        yield "calls os.getpid, with which a name can be guessed"
    if called.endswith("get_context") and values != ["'spawn'"]:
        yield "starts processes otherwise than by spawn"
    if called.endswith("ProcessPoolExecutor") and not any("spawn" in text for text in [*values, *options.values()]):
        yield "starts processes otherwise than by spawn"
    if isinstance(node.func, ast.Attribute) and (reason := FORBIDDEN_METHODS.get(node.func.attr)):
        yield f"calls {node.func.attr}: {reason}"
    for name, value in FORBIDDEN_OPTIONS:
        if options.get(name) == str(value):
            yield f"says {name}={value}"


def test_no_module_does_what_it_must_not():
    found = {
        (str(path.relative_to(ROOT)), offence) for path in SOURCE for offence in offences(ast.parse(path.read_text()))
    }
    assert found - ALLOWED == set()
    assert ALLOWED - found == set()  # what is no longer there need not be allowed
    assert len(SOURCE) > 140


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "exec(text)",
        "yaml.load(text)",
        "subprocess.run(command, shell=True)",
        "tempfile.mktemp()",
        "path.with_name(f'{name}.{os.getpid()}')",
        "open('/tmp/vbmem', 'w')",
        "np.load(path, allow_pickle=True)",
        "archive.extractall(path)",
        "os.fork()",
        "multiprocessing.get_context('fork')",
        "ProcessPoolExecutor(4)",
    ],
)
def test_each_of_these_would_be_noticed(line):
    assert list(offences(ast.parse(line)))


@pytest.mark.parametrize(
    "line",
    ["torch.load(path, weights_only=True)", "model.eval()", "re.compile(text)", "json.load(file)", "np.load(path)"],
)
def test_what_is_harmless_is_let_be(line):
    assert not list(offences(ast.parse(line)))


WRITES = ("write_text", "write_bytes", "mkstemp", "NamedTemporaryFile")


def test_the_package_writes_files_in_one_place_only():
    """`vbmem.files`; a log, to which lines are added, cannot be replaced by a whole new file."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            modes = {value for child in node.args if isinstance(child, ast.Constant) and (value := child.value)}
            opens = called.split(".")[-1] == "open" and modes & {"w", "wb", "x", "xb", "a", "ab", "r+", "w+"}
            if called.split(".")[-1] in WRITES or opens:
                found.add((str(path.relative_to(ROOT / "src" / "vbmem")), called.split(".")[-1], *modes))
    assert found == {("files.py", "open", "xb"), ("train/log.py", "open", "a"), ("paper/training.py", "open", "a")}
