"""The web page, from the command line."""

from __future__ import annotations

from pathlib import Path


def app(
    model: str = "cifar10-mixture", data_dir: Path | None = None, host: str = "127.0.0.1", port: int = 7860
) -> None:
    """Play with a memory in the browser.

    Args:
        model: the one chosen at the start: one that comes with vbmem, a model directory, or a run.
        data_dir: where cifar10.npz lies, to draw episodes of its test pictures.
        host: address to listen on; 0.0.0.0 lets other machines in.
        port: of the page.
    """
    from vbmem.app import launch

    launch(model, data_dir, host, port)
