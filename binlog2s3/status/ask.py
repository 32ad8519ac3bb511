"""Asks the streamer of a spool for its status or its health, over the spool's Unix socket.

Only the streamer's own user can open `<spool>/status.sock`. An answer has one deadline as a whole,
and a limit of its size. What answers and is not a streamer of this version is never taken for one.
"""

import json
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from binlog2s3.archive.writers import Heartbeat
from binlog2s3.formatting import one_line
from binlog2s3.status.model import SilentKind, Status, from_document

SOCKET = "status.sock"
_MOST_ANSWER = 64 << 20
_LONGEST_ADDRESS = 107  # sun_path in unix(7), without its terminating null byte


@contextmanager
def address_in(directory: Path) -> Iterator[str]:
    """The address of the directory's socket. It is short enough for bind() and connect().

    Raises OSError if the path is too long and the directory cannot be opened.
    """
    plain = os.fspath(directory / SOCKET)
    if len(os.fsencode(plain)) <= _LONGEST_ADDRESS:
        yield plain
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def limit_to(deadline: float, connection: socket.socket) -> None:
    """Let the next call on a socket last until the deadline. Raises TimeoutError if it is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


class Unanswered(Exception):  # noqa: N818 - `ask` also returns it as a value
    """Why there is no answer; from a streamer, which `spool` on which `host` was asked.

    `kind`: `absent` (there is no socket), `expected` (nor is there, but the user named the spool),
    `refused` (no process listens on it), `hangs` (no answer came in time), `unclear` (permission
    denied, or the answer is not understood).
    """

    def __init__(
        self, text: str, kind: SilentKind, *, spool: Path | None = None, host: str = ""
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self._spool = spool
        self._host = host

    @property
    def matters(self) -> bool:
        """Whether a streamer should have answered. The other kinds prove nothing."""
        return self.kind in ("refused", "hangs", "expected")

    def concerns(self, beat: Heartbeat, reported: Status | None) -> bool:
        """Whether the streamer of this spool wrote this heartbeat, which says this."""
        if self._spool is None or reported is None or reported.spool is None:
            return False
        is_its = reported.spool.directory == str(self._spool.absolute())
        return beat.host == self._host and is_its


def ask(directory: Path, *, timeout_seconds: float = 5.0) -> Status | Unanswered:
    """The Status of the streamer that uses this spool, or why there is none."""
    path = directory / SOCKET
    try:
        code, body = _get(path, "/status", timeout_seconds)
        if code != HTTPStatus.OK:
            return Unanswered(_said(body) or f"{path} answers {code}", "unclear")
        answer = json.loads(body)
        if not isinstance(answer, dict):
            return Unanswered(f"what answers on {path} is not a streamer", "unclear")
        return from_document(answer)
    except Unanswered as error:
        return error
    except (ValueError, RecursionError) as error:
        text = one_line(f"what answers on {path} is not a streamer of this version: {error}")
        return Unanswered(text, "unclear")


def ask_health(directory: Path, *, timeout_seconds: float = 5.0) -> tuple[bool, str]:
    """Whether the streamer that uses this spool is healthy, and one line: its state, or why not."""
    path = directory / SOCKET
    try:
        code, body = _get(path, "/health", timeout_seconds)
        answer = json.loads(body)
        said = f"{answer['source']}: {answer['state']}"
        troubles = [(trouble["level"], trouble["text"]) for trouble in answer["troubles"]]
        grave = [text for level, text in troubles if level == "critical"]
        texts = grave or [text for _, text in troubles]
    except Unanswered as error:
        return False, str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        said = _said(body) if code != HTTPStatus.OK else ""
        return False, said or f"what answers on {path} is not a streamer"
    return code == HTTPStatus.OK, one_line("; ".join([said, *map(str, texts)]))


def _said(body: bytes) -> str:
    return one_line(body[:1000].decode("utf-8", "replace"))


def _get(path: Path, target: str, timeout_seconds: float) -> tuple[int, bytes]:
    """The status code and the body of the answer. Raises Unanswered."""
    try:
        with (
            address_in(path.parent) as address,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            deadline = time.monotonic() + timeout_seconds
            _connect(client, address, deadline)
            taken = exchange(client, f"GET {target} HTTP/1.0\r\n\r\n", deadline)
    except TimeoutError:
        raise Unanswered(f"no answer within {timeout_seconds:g} s on {path}", "hangs") from None
    except PermissionError:
        raise Unanswered(f"permission denied: {path}", "unclear") from None
    except (FileNotFoundError, NotADirectoryError):
        raise Unanswered(f"no streamer answers on {path}", "absent") from None
    except ConnectionError:
        raise Unanswered(f"no streamer answers on {path}", "refused") from None
    except OSError as error:
        text = f"{path}: {(error.strerror or str(error)).lower()}"
        raise Unanswered(text, "unclear") from None
    return parsed(taken, str(path), "a streamer")


def exchange(client: socket.socket, request: str, deadline: float, *, begins: bytes = b"") -> bytes:
    """Send an HTTP/1.0 request; returns all that comes back, up to a limit. Raises OSError.

    It stops at once if the answer does not begin with these bytes.
    """
    limit_to(deadline, client)
    client.sendall(request.encode("ascii"))
    taken = bytearray()
    while len(taken) <= _MOST_ANSWER:
        limit_to(deadline, client)
        more = client.recv(1 << 16)
        if not more:
            break
        taken += more
        if not taken.startswith(begins[: len(taken)]):
            break
    return bytes(taken)


def parsed(answer: bytes, where: str, what: str) -> tuple[int, bytes]:
    """The status code and the body of what came from `where`. Raises Unanswered.

    `what` should have answered.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    line = re.match(rb"HTTP/1\.[01] ([0-9]{3}) ", head)
    size = re.search(rb"\r\nContent-Length: ([0-9]{1,12})", head)
    if len(answer) > _MOST_ANSWER:
        text = f"the answer on {where} is too long: more than {_MOST_ANSWER >> 20} MiB"
        raise Unanswered(text, "unclear")
    if line is None or size is None:
        raise Unanswered(f"what answers on {where} is not {what}", "unclear")
    if len(body) != int(size[1]):
        raise Unanswered(f"the answer on {where} is incomplete", "unclear")
    return int(line[1]), body


def _connect(client: socket.socket, address: str, deadline: float) -> None:
    """Connect. Waits while the queue of a process that accepts nothing is full."""
    while True:
        limit_to(deadline, client)
        try:
            client.connect(address)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
