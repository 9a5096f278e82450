"""Someone at the page who is a program: it presses the buttons over HTTP, as the page in a browser does."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx


@dataclass(frozen=True)
class Answer:
    """What came of an event."""

    succeeded: bool
    output: dict[str, Any]
    said: tuple[str, ...]
    """Messages that the page would show."""


class Visitor:
    """Opens the page at an address; everything on it goes by the names that its elements have in HTML."""

    def __init__(self, address: str, timeout: float = 120) -> None:
        self.http = httpx.Client(base_url=address, timeout=timeout, trust_env=False)
        self.name = secrets.token_hex(8)
        self.config = self.http.get("/config").raise_for_status().json()
        self._ids = {part["props"].get("elem_id"): part["id"] for part in self.config["components"]}

    def open(self) -> Answer:
        """What happens when the page is loaded."""
        return self._happens(next(d for d in self.config["dependencies"] if any(t[1] == "load" for t in d["targets"])))

    def act(self, element: str, event: str, *values: Any, data: Any = None) -> Answer:
        """An event of an element.

        Args:
            element: its id in HTML.
            event: click, change, upload or select.
            values: of the inputs that are not the visitor's session.
            data: what the event itself says.
        """
        target = [self._ids[element], event]
        return self._happens(next(d for d in self.config["dependencies"] if target in d["targets"]), *values, data=data)

    def upload(self, *paths: Path) -> list[dict[str, Any]]:
        """Files as the inputs of an event, once they are on the server."""
        files = [("files", (path.name, path.read_bytes())) for path in paths]
        kept = self.http.post("/gradio_api/upload", files=files).raise_for_status().json()
        meta = {"_type": "gradio.FileData"}
        return [{"path": at, "orig_name": path.name, "meta": meta} for at, path in zip(kept, paths, strict=True)]

    def close(self) -> None:
        self.http.close()

    def _happens(self, dependency: dict[str, Any], *values: Any, data: Any = None) -> Answer:
        session = [None] if dependency["inputs"] else []  # the server has it
        body = {"data": [*session, *values], "fn_index": dependency["id"], "session_hash": self.name}
        body |= {"event_data": data, "trigger_id": dependency["targets"][0][0]}
        event = self.http.post("/gradio_api/queue/join", json=body).raise_for_status().json()["event_id"]
        said: list[str] = []
        with self.http.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.name}) as stream:
            for line in stream.iter_lines():
                message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("msg") == "log":
                    said.append(message["log"])
                if message.get("msg") == "process_completed" and message["event_id"] == event:
                    return Answer(message["success"], message["output"], tuple(said))
        raise httpx.RemoteProtocolError("the server closed the stream before the event was over")
