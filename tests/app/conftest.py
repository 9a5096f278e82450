"""The page, served by a process of its own."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Server:
    address: str
    folder: Path
    """Its temporary files."""
    errors: Path
    """What it wrote to standard error."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder, errors = tmp_path_factory.mktemp("server"), tmp_path_factory.mktemp("log") / "errors.txt"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vbmem", "app", "--port", str(port)]
    environment = os.environ | {"TMPDIR": str(folder)}
    with errors.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("the page is at"), errors.read_text()
        yield Server(f"http://127.0.0.1:{port}", folder, errors)
    finally:
        process.terminate()
        process.communicate(timeout=20)
