"""What stops the page from being served is one sentence, before anything is started."""

import socket
import sys
from pathlib import Path

import pytest

from vbmem.app import launch


def test_without_gradio_the_command_that_installs_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(ValueError, match=r"pip install 'vbmem\[app\]'"):
        launch("digits-mixture", None, "127.0.0.1", 7860)


def test_a_taken_port_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=rf"cannot listen on 127.0.0.1, port {port}.*choose another host or port"):
            launch("digits-mixture", None, "127.0.0.1", port)


def test_impossible_addresses_and_models_are_refused(tmp_path: Path) -> None:
    for model, host, port in (
        ("digits-mixture", "127.0.0.1", 0),
        ("digits-mixture", "127.0.0.1", 70000),
        ("digits-mixture", "192.0.2.1", 7860),
        (str(tmp_path), "127.0.0.1", 7860),
        ("cifar10-vae", "127.0.0.1", 7860),
    ):
        with pytest.raises(ValueError, match=r"port must be|choose another host|there is no model|no memory to write"):
            launch(model, None, host, port)
