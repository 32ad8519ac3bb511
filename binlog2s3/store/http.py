"""A request without a body, and its answer, over a connection that stays open: HTTP/1.1, strictly.

Place: under `quick`, which asks for small objects by the thousand; the standard library's
client takes most of its time for headers that nobody reads. Law: an answer is taken only in the
one form that S3 stores give it, with a Content-Length; all else is a ValueError, after which the
connection is of no use. RFC 9112.
"""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

_MOST_HEAD = 1 << 16
_RECEIVE = 1 << 16
_STATUS = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9])(?: [^\r\n]*)?")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n\0]*?)[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,15}")
_WITHOUT_BODY = (204, 304)


class UnansweredError(ConnectionError):
    """The connection ended before a byte of the answer: it may have been closed while idle."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (their names in lower case) and the whole body.

    `last`: the other side closes the connection behind it.
    """

    status_code: int
    headers: Mapping[str, str]
    content: bytes
    last: bool


def request(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    """Its bytes. Raises ValueError for what would not be one request with these headers."""
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
    plain = all(line.isprintable() for line in lines)
    if not plain or not target.startswith("/") or " " in target:
        raise ValueError(f"not a request: {lines[0]!r}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def exchange(connection: socket.socket, asked: bytes) -> Answer:
    """Send a request and read its answer.

    Raises ValueError for an answer in another form, OSError for the connection: UnansweredError
    or ConnectionError for an end too soon, TimeoutError.
    """
    data = bytearray()
    try:
        connection.sendall(asked)
        _more(connection, data)
    except ConnectionError as error:
        raise UnansweredError(str(error)) from error
    while (end := data.find(b"\r\n\r\n")) < 0:
        if len(data) > _MOST_HEAD:
            raise ValueError("the head of the answer has no end")
        _more(connection, data)
    head, body = bytes(data[:end]), data[end + 4 :]
    status, headers = _head(head)
    size = _size(headers)
    if asked.startswith(b"HEAD ") or status in _WITHOUT_BODY:
        size = 0
    while len(body) < size:
        _more(connection, body)
    if len(body) > size:
        raise ValueError(f"{len(body) - size} bytes behind the answer")
    last = "close" in headers.get("connection", "").lower()
    return Answer(status, headers, bytes(body), last)


def _more(connection: socket.socket, data: bytearray) -> None:
    found = connection.recv(_RECEIVE)
    if not found:
        raise ConnectionResetError("the connection was closed before the answer's end")
    data += found


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *lines = head.split(b"\r\n")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise ValueError(f"not an answer in HTTP/1.1: {first[:100]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line.decode("latin-1"))
        if found is None:
            raise ValueError(f"not a header: {line[:100]!r}")
        name, value = found.group(1).lower(), found.group(2)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return int(status.group(1)), headers


def _size(headers: Mapping[str, str]) -> int:
    """Of the body. Two lengths, or none, are no form that S3 stores give."""
    if "transfer-encoding" in headers or "content-encoding" in headers:
        raise ValueError("the body is encoded")
    length = headers.get("content-length", "")
    if not _LENGTH.fullmatch(length):
        raise ValueError(f"not a length: {length!r}")
    return int(length)
