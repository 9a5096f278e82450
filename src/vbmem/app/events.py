"""How clicks and files reach Python, and how what went wrong reaches the page."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from vbmem.app.markup import escape
from vbmem.app.session import Session
from vbmem.app.uploads import Upload, read_uploads

EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}
LIVE: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden", "trigger_mode": "always_last"}
MESSAGE_SECONDS = 20  # that a message stays

# For HTML with the template's buttons in it.
CLICKED = """element.addEventListener('click', event => {
  const button = event.target.closest('[data-index]');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});"""


def shows_errors(handler: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, but where it fails the page stays as it is and shows the error's message for a while."""

    @functools.wraps(handler)
    def guarded(session: Session | None, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if session is None:  # the server was started again, or has forgotten a page that nobody used
                raise ValueError("this page is not ready, or no longer known here; reload it")
            return handler(session, *args, **kwargs)
        except (ValueError, OSError, ArithmeticError) as error:
            gr.Warning(escape(error), duration=MESSAGE_SECONDS)
            return gr.skip()

    return guarded


def when(triggers: Any, handler: Callable[..., Any], inputs: Any, outputs: Any, options: dict[str, Any] = EVENT) -> Any:
    """Have the handler called, and its errors shown; returns the event, for more to follow it."""
    return gr.on(triggers, shows_errors(handler), inputs, outputs, **options)


def drop_zone(label: str, elem_id: str, **options: Any) -> gr.File:
    """Where files are dropped: pictures and zips of them, unless the options of `gr.File` say otherwise."""
    accepted = {"file_count": "multiple", "file_types": ["image", ".zip"]} | options
    return gr.File(label=label, height=72, elem_id=elem_id, elem_classes="drop", **accepted)


def on_upload(zone: gr.File, handler: Callable[[Session, list[Path]], Any], session: gr.State, outputs: Any) -> Any:
    """Hand what is dropped to the handler, delete it from the disk and empty the zone again; returns the event, for
    more to follow it."""

    def take(session: Session | None, dropped: str | list[str]) -> Any:
        files = [Path(file) for file in ([dropped] if isinstance(dropped, str) else dropped)]
        try:
            return shows_errors(handler)(session, files)
        finally:
            for file in files:
                file.unlink(missing_ok=True)

    return zone.upload(take, [session, zone], outputs, **EVENT).then(lambda: None, None, zone, **LIVE)


def uploaded_pictures(files: list[Path], session: Session) -> Upload:
    upload = read_uploads(files, session.model.frame)
    if upload.left_out:
        gr.Info(f"files in the zip that are not pictures were left out: {upload.left_out}")
    return upload
