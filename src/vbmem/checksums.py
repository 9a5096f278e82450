"""A checksum inside the very file it covers, in the JSON that the file is or begins with.

It is the SHA-256 of every byte of the file, with zeros in the place of the checksum itself. So there is no byte that
could change unnoticed, whether of a number, a name, a shape or a setting.
"""

import hashlib
import re

NAME = "checksum"
BLANK = {NAME: 64 * "0"}
"""The entry of a file's JSON, before its checksum is known."""
_PLACE = re.compile(rb'"checksum": ?"([0-9a-f]{64})"')


def with_checksum(content: bytes) -> bytes:
    """A file's content with its checksum in the place of `BLANK`, which its JSON must hold."""
    start, end = _place(content)
    return content[:start] + _checksum(content, start, end).encode() + content[end:]


def check_checksum(content: bytes) -> None:
    """Compare a file's content with the checksum it carries.

    Raises:
        ValueError: where it carries none, or another one than it should.
    """
    start, end = _place(content)
    if content[start:end].decode() != _checksum(content, start, end):
        raise ValueError("it does not match its checksum")


def _place(content: bytes) -> tuple[int, int]:
    """Where the checksum stands: in JSON, quotation marks inside a text have a backslash before them."""
    found = _PLACE.search(content)
    if found is None:
        raise ValueError("it has lost its checksum")
    return found.span(1)


def _checksum(content: bytes, start: int, end: int) -> str:
    view = memoryview(content)
    digest = hashlib.sha256(view[:start])
    digest.update(BLANK[NAME].encode())
    digest.update(view[end:])
    return digest.hexdigest()
