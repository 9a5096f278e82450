"""How clicks and files reach Python, and how what went wrong reaches the page."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import gradio as gr

from vbmem.app.markup import escape
from vbmem.app.session import Session
from vbmem.app.uploads import Upload, read_uploads

P = ParamSpec("P")

EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
LIVE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}
MESSAGE_SECONDS = 20  # that a message stays

# For HTML with `markup.button`s in it.
CLICKED = """element.addEventListener('click', event => {
  const button = event.target.closest('[data-index]');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});"""


def shows_errors(handler: Callable[Concatenate[Session, P], Any]) -> Callable[Concatenate[Session | None, P], Any]:
    """The handler, but where it fails the page stays as it is and shows the error's message for a while."""

    @functools.wraps(handler)
    def guarded(session: Session | None, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            if session is None:  # the server was started again, or has forgotten a page that nobody used
                raise ValueError("this page is not ready, or no longer known here; reload it")
            return handler(session, *args, **kwargs)
        except (ValueError, OSError, ArithmeticError) as error:
            gr.Warning(escape(str(error)), duration=MESSAGE_SECONDS)
            return gr.skip()

    return guarded


def drop_zone(label: str, elem_id: str) -> gr.File:
    types = ["image", ".zip"]
    return gr.File(
        label=label, file_count="multiple", file_types=types, height=72, elem_id=elem_id, elem_classes="drop"
    )


def on_upload(zone: gr.File, handler: Callable[..., Any], session: gr.State, outputs: Any) -> Any:
    """Hand what is dropped to the handler and empty the zone again; returns the event, for more to follow it."""
    return zone.upload(handler, [session, zone], outputs, **EVENT).then(lambda: None, None, zone, **LIVE)


def uploaded_pictures(paths: list[str], session: Session) -> Upload:
    """The pictures of uploaded files, which are then gone from the disk."""
    try:
        upload = read_uploads([Path(path) for path in paths], session.model.frame)
    finally:
        discard(paths)
    if upload.left_out:
        gr.Info(f"files in the zip that are not pictures were left out: {upload.left_out}")
    return upload


def discard(paths: list[str]) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)
