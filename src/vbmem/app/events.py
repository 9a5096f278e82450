"""How clicks and files reach Python, and how what went wrong reaches the page."""

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import gradio as gr
from gradio.state_holder import SessionState
from gradio_client.utils import is_file_obj, is_http_url_like, traverse

from vbmem.app.markup import escape
from vbmem.app.session import Session, Visit
from vbmem.app.uploads import Upload, read_uploads
from vbmem.app.visitors import TooMuchUnderWay, in_thread, turns

# Whatever is done while the last of it is under way happens afterwards; of several such, the last. All wait in one
# line: of several, gradio picks one by chance, and pictures that were asked for first would come last.
EVENT: dict[str, Any] = {
    "api_visibility": "private",
    "show_progress": "minimal",
    "trigger_mode": "always_last",
    "concurrency_id": "page",
}
LIVE: dict[str, Any] = EVENT | {"show_progress": "hidden"}
# What comes with data of its own, which gradio forgets of events that wait in the browser: a file, a button's number.
EACH: dict[str, Any] = EVENT | {"trigger_mode": "multiple"}
MESSAGE_SECONDS = 20  # that a message stays

# For HTML with the template's buttons in it. When it is drawn anew, the button that was in focus is so again.
CLICKED = """let last;
element.addEventListener('click', event => {
  const button = event.target.closest('[data-index]');
  if (button) trigger('click', {index: Number(button.dataset.index)});
});
element.addEventListener('focusin', event => last = event.target.dataset.index);
watch('value', () => {
  if (document.activeElement === document.body && last !== undefined)
    element.querySelector(`[data-index="${last}"]`)?.focus({preventScroll: true});
});"""


class Page(gr.Blocks):
    """Blocks that do what a visitor asks for in that order; that tell whoever sends a value no component allows what is
    wrong, and leave the terminal out of it; and that keep nothing of what they have shown."""

    async def process_api(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        # The turn is taken here, before inputs are read in threads, after which an earlier event may be behind a later.
        try:
            async with turns.of(kwargs.get("session_hash") or ""):
                return await super().process_api(*args, **kwargs)
        except TooMuchUnderWay as error:
            raise gr.Error(escape(error), MESSAGE_SECONDS, print_exception=False) from error

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *args: Any, **kwargs: Any) -> list[Any]:
        try:
            traverse(inputs, _require_own_file, is_file_obj)
            return await super().preprocess_data(block_fn, inputs, *args, **kwargs)
        except Exception as error:  # what fails here is what was sent: a number too large, a text, a foreign file
            reason = error.message if isinstance(error, gr.Error) else "it is not what the page sends"
            message = f"a value was refused ({reason}); reload the page"
            raise gr.Error(escape(message), MESSAGE_SECONDS, print_exception=False) from error

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: SessionState | None) -> list[Any]:
        outputs = await super().postprocess_data(block_fn, predictions, state)
        if state is not None:
            # What every component shows, for gradio's deep links, which this page has none of: megabytes a visitor.
            state.config_values.clear()
        return outputs


def _require_own_file(file: dict[str, Any]) -> dict[str, Any]:
    if is_http_url_like(file["path"]):  # gradio would fetch it
        raise gr.Error("files are not fetched from elsewhere")
    return file


Handler: TypeAlias = Callable[..., Any]
"""Called with the visit, which it may change, and the values of the inputs; returns those of the outputs."""


def shows_errors(handler: Handler) -> Callable[..., Any]:
    """The handler, called in a thread; where it fails, the page stays as it is and shows the error's message for a
    while."""

    @functools.wraps(handler)
    async def guarded(visit: Visit | None, /, *args: Any, **kwargs: Any) -> Any:
        try:
            if visit is None:  # the server was started again, or has forgotten a page that nobody used
                raise ValueError("this page is not ready, or no longer known here; reload it")
            return await in_thread(functools.partial(handler, visit, *args, **kwargs))
        except (ValueError, OSError, ArithmeticError) as error:
            gr.Warning(escape(error), duration=MESSAGE_SECONDS)
            return gr.skip()

    return guarded


def seen(view: Callable[..., Any]) -> Handler:
    """A handler that shows something of the session and changes nothing."""

    @functools.wraps(view)
    def handler(visit: Visit, /, *args: Any, **kwargs: Any) -> Any:
        return view(visit.session, *args, **kwargs)

    return handler


def when(triggers: Any, handler: Handler, inputs: Any, outputs: Any, options: dict[str, Any] = EVENT) -> Any:
    """Have the handler called, and its errors shown; returns the event, for more to follow it."""
    return gr.on(triggers, shows_errors(handler), inputs, outputs, **options)


def drop_zone(label: str, elem_id: str, **options: Any) -> gr.File:
    """Where files are dropped: pictures and zips of them, unless the options of `gr.File` say otherwise."""
    accepted = {"file_count": "multiple", "file_types": ["image", ".zip"]} | options
    return gr.File(label=label, height=72, elem_id=elem_id, elem_classes="drop", **accepted)


def on_upload(zone: gr.File, handler: Callable[..., Any], inputs: list[Any], outputs: Any) -> Any:
    """Hand what is dropped to the handler, delete it from the disk and empty the zone again; returns the event, for
    more to follow it.

    Args:
        zone: where it is dropped.
        handler: called with the visit, the files and the values of the other inputs.
        inputs: the visit, and others.
        outputs: what the handler returns.
    """

    def handle(visit: Visit, files: list[Path], *values: Any) -> Any:
        if not files:
            raise ValueError("no file was given; drop one onto the page")
        return handler(visit, files, *values)

    async def take(visit: Visit | None, dropped: str | list[str] | None, *values: Any) -> Any:
        files = [Path(file) for file in ([dropped] if isinstance(dropped, str) else dropped or [])]
        try:
            return await shows_errors(handle)(visit, files, *values)
        finally:
            for file in files:
                with suppress(OSError):  # what only a program names: a file that is gone, a folder with others
                    file.unlink()
                    file.parent.rmdir()

    visit, *others = inputs
    return zone.upload(take, [visit, zone, *others], outputs, **EACH).then(lambda: None, None, zone, **LIVE)


def sent(event: gr.EventData, name: str) -> Any:
    """What came with an event."""
    try:
        return getattr(event, name)
    except (AttributeError, TypeError) as error:  # from a program that is not the page
        raise ValueError(f"the event came without its {name}; reload the page") from error


def clicked(event: gr.EventData) -> int:
    """The number of the button that was clicked."""
    index = sent(event, "index")
    if not isinstance(index, int):
        raise ValueError("the click names no button; reload the page")
    return index


def uploaded_pictures(files: list[Path], session: Session) -> Upload:
    upload = read_uploads(files, session.model.frame)
    if upload.left_out:
        gr.Info(f"files in the zip that are not pictures were left out: {upload.left_out}")
    return upload
