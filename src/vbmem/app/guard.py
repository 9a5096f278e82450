"""What stands around the page's server: whom it answers, and what browsers may do with the answers."""

import re
import socket
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from hashlib import sha256
from ipaddress import ip_address
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Server = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

ANY_ADDRESS = ("0.0.0.0", "::")
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(:\d+)?")
INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)
# Gradio compiles its templates in the browser and sets styles on elements, hence the two that are unsafe by name.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'{scripts}; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self'; "
    "worker-src 'self' blob:; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)


class Guard:
    """Answers only requests under a name of this server, and adds the headers that keep browsers strict.

    A web page elsewhere can give its own name this computer's address (DNS rebinding), and its visitors' browsers then
    take the page here for a part of it; but they send its name along.

    Args:
        server: what answers the requests (ASGI).
        host: where it listens, a name or an address.
    """

    def __init__(self, server: Server, host: str) -> None:
        self.server = server
        self.names = {"localhost", host.lower()}
        self.every_address = host in ANY_ADDRESS
        if self.every_address:
            self.names |= {name := socket.gethostname().lower(), f"{name}.local"}
        else:
            self.names |= {str(found[4][0]) for found in socket.getaddrinfo(host, None)}

    def knows(self, host: str) -> bool:
        """Whether a Host header, with or without a port, names this server."""
        found = HOST.fullmatch(host.lower())
        if found is None:
            return False
        name = found[1].strip("[]").removesuffix(".")
        try:
            address = ip_address(name)
        except ValueError:
            return name in self.names
        return address.is_loopback or self.every_address or str(address) in self.names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.server(scope, receive, send)
            return
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if scope["type"] != "http" or len(hosts) != 1 or not self.knows(hosts[0]):
            await _refuse(scope, send)
        else:
            # The scripts in the page itself are told to the browser, so it must not be compressed yet.
            if scope["path"] == "/":
                plain = [pair for pair in scope["headers"] if pair[0] != b"accept-encoding"]
                scope = {**scope, "headers": plain}
            await self.server(scope, receive, _Answer(send).send)


async def _refuse(scope: Scope, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    text = b"this server does not go by that name; open the address that vbmem printed when it was started\n"
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(text))]
    answer = _Answer(send)
    await answer.send({"type": "http.response.start", "status": 421, "headers": headers})
    await answer.send({"type": "http.response.body", "body": text})


class _Answer:
    """One answer on its way out. A page is held back until it is whole, to tell its scripts from any added later."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if _is_page(message["headers"]):
                self._start = message
            else:
                await self._send(_with_headers(message, b""))
        elif self._start is None:
            await self._send(message)
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send(_with_headers(self._start, self._body))
                await self._send({"type": "http.response.body", "body": self._body})


def _is_page(headers: Headers) -> bool:
    found = dict(headers)
    return found.get(b"content-type", b"").startswith(b"text/html") and b"content-encoding" not in found


def _with_headers(start: Message, page: bytes) -> Message:
    hashes = (b64encode(sha256(script).digest()).decode() for script in INLINE_SCRIPT.findall(page))
    policy = POLICY.format(scripts="".join(f" 'sha256-{value}'" for value in hashes))
    added = {
        b"content-security-policy": policy.encode(),
        b"x-content-type-options": b"nosniff",
        b"x-frame-options": b"DENY",
    }
    kept = [(name, value) for name, value in start["headers"] if name.lower() not in added]
    return {**start, "headers": [*kept, *added.items()]}
