"""The page's server: on this computer only unless another host is given, and without any call to other servers."""

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from vbmem.app.guard import Guard
from vbmem.app.shared import open_model
from vbmem.app.uploads import MAX_FILE
from vbmem.models.directory import build_model
from vbmem.models.memory_model import MemoryModel
from vbmem.pretrained.directory import find, shipped

LOCAL = ("127.0.0.1", "localhost", "::1")
SESSIONS = 200  # visitors whose pictures are held in memory
EVENTS = 1000  # that are taken up at once; most of them wait for their visitor's turn


def launch(model: str, data_dir: Path | None, host: str, port: int) -> None:
    """Serve the page until Ctrl-C.

    Args:
        model: the one it starts with: a name, a model directory, or a run.
        data_dir: where CIFAR-10 is kept, for examples from it.
    """
    if find_spec("gradio") is None:
        raise ValueError("the web page needs gradio, which is not installed; run: pip install 'vbmem[app]'")
    open_model(model)
    _check_free(host, port)
    with TemporaryDirectory(prefix="vbmem-app-") as folder:
        # Gradio reads these when it is imported.
        os.environ |= {
            "GRADIO_ANALYTICS_ENABLED": "False",
            "GRADIO_ANALYTICS_MAX_EVENTS": "1",  # it computes statistics of all these events after every event
            "GRADIO_RUN_HISTORY": "False",
            "GRADIO_TEMP_DIR": folder,
        }
        import gradio as gr

        from vbmem.app.page import build
        from vbmem.app.visitors import separate_uploads, share_arenas

        separate_uploads()
        share_arenas()

        @asynccontextmanager
        async def guarded(app: Any) -> AsyncIterator[None]:
            """Around all of gradio's own middleware, from before the first connection."""
            app.middleware_stack = Guard(app.middleware_stack, host)
            yield

        models = [name for name in shipped() if isinstance(build_model(find(name)).network, MemoryModel)]
        page = build(model, models if model in models else [model, *models], data_dir, typed_models=host in LOCAL)
        page.queue(api_open=False, default_concurrency_limit=None)  # `visitors` says whose turn it is
        page.launch(
            server_name=host,
            server_port=port,
            quiet=True,
            prevent_thread_lock=True,
            max_threads=EVENTS,
            app_kwargs={"lifespan": guarded},
            max_file_size=MAX_FILE,
            state_session_capacity=SESSIONS,
            footer_links=[],
            share=False,
            ssr_mode=False,
            theme=gr.themes.Base(
                primary_hue="teal", neutral_hue="slate", spacing_size="sm", font="system-ui", font_mono="monospace"
            ).set(
                button_primary_background_fill="*primary_700",
                button_primary_background_fill_dark="*primary_700",
                button_primary_background_fill_hover="*primary_800",
                button_primary_background_fill_hover_dark="*primary_800",
                body_text_color_subdued="*neutral_600",
                body_text_color_subdued_dark="*neutral_300",
                block_info_text_color="*neutral_600",
                block_info_text_color_dark="*neutral_300",
            ),
            css_paths=Path(__file__).with_name("style.css"),
        )
        print(f"the page is at {page.local_url}; Ctrl-C ends it", flush=True)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the folder goes, too
        try:
            page.block_thread()
        finally:
            page.close(verbose=False)


def _check_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise ValueError(f"port must be a number from 1 to 65535, got {port}")
    try:
        address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(*address[:2]) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address[4])
    except OSError as error:
        raise ValueError(f"cannot listen on {host}, port {port} ({error}); choose another host or port") from error
