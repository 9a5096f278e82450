"""Whom the page's server answers, and the headers of its answers."""

import asyncio
import socket
from base64 import b64encode
from hashlib import sha256
from typing import Any

import pytest

from vbmem.app.guard import Guard, Message, Receive, Scope, Send

PAGE = b"<html><script>let a = 1;</script><script type='module' src='a.js'></script></html>"


def guard(host: str, kind: bytes = b"text/html; charset=utf-8") -> Guard:
    """Around a server that answers with a page, in two parts."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", kind), (b"x-frame-options", b"ALLOWALL")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": PAGE[:20], "more_body": True})
        await send({"type": "http.response.body", "body": PAGE[20:]})

    return Guard(answer, host)


def ask(guarded: Guard, *hosts: str, **scope: Any) -> tuple[int, dict[bytes, bytes], bytes]:
    """The status, headers and body of an answer."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {}

    headers = [(b"host", host.encode()) for host in hosts]
    asyncio.run(guarded({"type": "http", "path": "/", "headers": headers} | scope, receive, send))
    assert len(dict(sent[0]["headers"])) == len(sent[0]["headers"])
    return sent[0]["status"], dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize(
    ("host", "known", "foreign"),
    [
        (
            "127.0.0.1",
            ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "localhost.", "[::1]:80", "127.0.0.1"],
            [
                "evil.example:7860",
                "192.0.2.1:7860",
                "localhost.evil.example",
                "",
                ":80",
                "[evil]:1",
                "127.0.0.1.nip.io",
            ],
        ),
        ("localhost", ["127.0.0.1:1", "localhost:1", "[::1]:1"], ["evil.example", "10.0.0.1", "evil@localhost"]),
        ("0.0.0.0", ["192.0.2.1:7860", "[2001:db8::1]:7860", "localhost", socket.gethostname()], ["evil.example"]),
    ],
)
def test_only_names_of_the_server_are_answered(host: str, known: list[str], foreign: list[str]) -> None:
    guarded = guard(host)
    for name in known:
        assert ask(guarded, name)[0] == 200, name
    for name in foreign:
        status, headers, body = ask(guarded, name)
        assert status == 421, name
        assert b"does not go by that name; open the address" in body
        assert headers[b"x-content-type-options"] == b"nosniff"


def test_a_server_with_a_name_goes_by_it_and_by_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.7", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: found)
    guarded = guard("Pictures.example")
    for name in ("pictures.example:7860", "192.0.2.7:7860", "localhost"):
        assert guarded.knows(name)
    assert not guarded.knows("other.example")
    assert not guarded.knows("192.0.2.8")


def test_no_host_and_two_hosts_are_refused() -> None:
    assert ask(guard("127.0.0.1"))[0] == 421
    assert ask(guard("127.0.0.1"), "localhost", "evil.example")[0] == 421


@pytest.mark.parametrize("kind", [b"text/html", b"application/json"])
def test_every_answer_keeps_browsers_strict(kind: bytes) -> None:
    status, headers, body = ask(guard("127.0.0.1", kind), "localhost")
    assert (status, body) == (200, PAGE)
    assert headers[b"x-frame-options"] == b"DENY"
    assert headers[b"x-content-type-options"] == b"nosniff"
    policy = headers[b"content-security-policy"].decode()
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy


def test_of_scripts_inside_a_page_only_those_it_came_with_may_run() -> None:
    policy = ask(guard("127.0.0.1"), "localhost")[1][b"content-security-policy"].decode()
    scripts = next(part for part in policy.split("; ") if part.startswith("script-src")).split()[1:]
    assert scripts == ["'self'", "'unsafe-eval'", f"'sha256-{b64encode(sha256(b'let a = 1;').digest()).decode()}'"]
    assert "sha256" not in ask(guard("127.0.0.1", b"text/plain"), "localhost")[1][b"content-security-policy"].decode()
