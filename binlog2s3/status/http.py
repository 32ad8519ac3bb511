"""Answers what the streamer's status is, over HTTP on the spool's socket and on TCP; and asks.

Place in the flow: the daemon's monitors come here; `current` gives it the Status. `status` and
`health` ask by the socket, `<spool>/status.sock`, which only the streamer's own user can open.

    GET /health    200, or 503 where something is critical, with a small JSON document
    GET /live      200, or 503 where only a new start would help: the loop hangs
    GET /metrics   for Prometheus, see `metrics`
    GET /status    all of it as JSON, see `document`

Law: whoever asks can neither hold up the stream nor hold anything here for long: so many
connections at once, each with one short request and a deadline, and none is kept. A Status that is
old is critical in each of the answers: what it says was true once.
"""

import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from binlog2s3.errors import ConfigError, SpoolError
from binlog2s3.log import Log
from binlog2s3.status.document import document, from_document
from binlog2s3.status.model import SilentKind, Status, Trouble

_log = Log("endpoint")

SOCKET = "status.sock"
_SOCKET_DOOR = "http-socket"
STALE_SECONDS = 15.0
CONNECTIONS = 64
_REQUEST_SECONDS = 3.0  # for the request, and again for the answer
_MOST_HEAD = 8192
_BACKLOG = 64
_HANGS = ("stuck", "stale")
_MOST_UNREAD = 64 << 10
_MOST_ANSWER = 64 << 20
_LONGEST_ADDRESS = 107  # sun_path of unix(7) less its end
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.[01]\r?")
_INDEX = """binlog2s3 stream

/health    200, or 503 where something is critical
/live      200, or 503 where it hangs
/metrics   for Prometheus
/status    all of it, as JSON
"""


@dataclass(frozen=True, slots=True)
class _Answer:
    code: HTTPStatus
    kind: str
    body: bytes


def _text(code: HTTPStatus, text: str) -> _Answer:
    return _Answer(code, _TEXT, f"{_line(text)}\n".encode("utf-8", "replace"))


def _json(code: HTTPStatus, found: object) -> _Answer:
    return _Answer(code, _JSON, f"{json.dumps(found, indent=1)}\n".encode())


def _line(text: str) -> str:
    """On one line, and with nothing in it that could command a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


# The server


class Listener:
    """Answers with what `current` gives, from any thread; listens nowhere before it is told to."""

    def __init__(
        self,
        current: Callable[[], Status],
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        from binlog2s3.status import metrics  # noqa: PLC0415 - who only asks does not wait for its import

        self._current = current
        self._clock = clock
        self._request_seconds = request_seconds
        self._metrics = metrics
        self._lock = threading.Lock()
        self._doors: list[_Door] = []
        self._path: Path | None = None
        self._inode: tuple[int, int] | None = None

    def listen_tcp(self, host: str, port: int) -> int:
        """Answer on each address that the host has; returns the port, which 0 leaves open.

        Raises ConfigError if it cannot be done: no such host, not ours, in use, not permitted.
        """
        where = f"--metrics-listen {f'[{host}]' if ':' in host else host}:{port}"
        try:
            found = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = _bound(list(dict.fromkeys((family, at) for family, *_, at in found)))
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "no host's name"
            raise ConfigError(
                [f"{where}: {(why or str(error)).lower()}"],
                hint="an address of this host and a port that nobody else has, "
                "e.g. 127.0.0.1:9275; each streamer wants a port of its own",
            ) from error
        for one in listening:
            self._open(one, "http-tcp")
        taken: int = listening[0].getsockname()[1]
        _log.info("listening", host=host, port=taken)
        return taken

    def listen_socket(self, directory: Path) -> None:
        """Answer on the directory's status.sock; one that a dead streamer has left is replaced.

        Raises SpoolError if another process answers there, or its file system has no sockets.
        """
        path = directory / SOCKET
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _reached(directory) as address:
                _clear(path, address)
                listening.bind(address)
                Path(address).chmod(0o600)  # nobody can connect before listen()
                listening.listen(_BACKLOG)
                found = Path(address).lstat()
        except OSError as error:
            listening.close()
            raise SpoolError(
                f"{path}: {(error.strerror or str(error)).lower()}",
                hint="the spool's file system must have Unix sockets",
            ) from error
        except SpoolError:
            listening.close()
            raise
        self._path, self._inode = path, (found.st_dev, found.st_ino)
        self._open(listening, _SOCKET_DOOR)

    def keep(self) -> None:
        """Put the socket back where somebody has deleted it, if its directory is there again."""
        with self._lock, suppress(OSError, SpoolError):
            path = self._path
            if path is None:
                return
            with _reached(path.parent) as address:
                there = os.path.lexists(address)
            if not there:
                before = self._doors.copy()
                self.listen_socket(path.parent)
                for door in before:
                    if door.name == _SOCKET_DOOR:
                        self._doors.remove(door)
                        door.close()

    def close(self) -> None:
        """Listen no more. What is being answered is not waited for."""
        with self._lock:  # what is kept is not put back any more
            path, self._path = self._path, None
        if path is not None:
            with suppress(OSError), _reached(path.parent) as address:
                found = Path(address).lstat()
                if (found.st_dev, found.st_ino) == self._inode:
                    Path(address).unlink()
        for door in self._doors:
            door.close()
        self._doors.clear()

    def _open(self, listening: socket.socket, name: str) -> None:
        door = _Door(listening, self._serve, name)
        self._doors.append(door)
        door.start()

    def _serve(self, connection: socket.socket) -> None:
        """One request, one answer. Raises OSError where the other side is gone or too slow."""
        try:
            head = _head(connection, time.monotonic() + self._request_seconds)
        except TimeoutError:
            _log.debug("no request", why="it took too long")
            return
        if not head:
            return
        line, newline, _ = head.partition(b"\n")
        request = _REQUEST.fullmatch(line) if newline else None
        if request is None:
            method, path = "", ""
            answer = _text(HTTPStatus.BAD_REQUEST, "no request of HTTP/1.0 or 1.1")
        else:
            method = request[1].decode("ascii")
            path = _path(request[2])
            answer = self._answer(method, path)
        if len(head) > _MOST_HEAD:
            answer = _text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")
        _log.debug("answered", method=method, path=path, code=answer.code.value)
        deadline = time.monotonic() + self._request_seconds
        _limit(connection, deadline)
        connection.sendall(_head_of(answer) + (b"" if method == "HEAD" else answer.body))
        _take_leave(connection, deadline)

    def _answer(self, method: str, path: str) -> _Answer:
        if path not in ("/", "/health", "/live", "/metrics", "/status"):
            return _text(HTTPStatus.NOT_FOUND, "there are /health, /live, /metrics and /status")
        if method not in ("GET", "HEAD"):
            return _text(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD are answered")
        if path == "/":
            return _Answer(HTTPStatus.OK, _TEXT, _INDEX.encode())
        try:
            return self._told(path, self._status())
        except Exception as error:  # noqa: BLE001 - whatever it is, who asks is told, and not well
            _log.warning("no status to show", error=f"{type(error).__name__}: {error}")
            why = f"there is no status to show: {type(error).__name__}: {error}"
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, why)

    def _status(self) -> Status:
        status = self._current()
        age = abs((self._clock() - status.at).total_seconds())
        if age <= STALE_SECONDS:
            return status
        stale = Trouble(
            code="stale",
            level="critical",
            text=f"the status is {age:.0f} s old",
            hint="the streamer hangs, or the clock of its host was set: see its log",
        )
        return replace(status, troubles=(stale, *status.troubles))

    def _told(self, path: str, status: Status) -> _Answer:
        if path == "/metrics":
            body = self._metrics.render(status, process=True)
            return _Answer(HTTPStatus.OK, self._metrics.CONTENT_TYPE, body)
        hangs = [one for one in status.troubles if one.code in _HANGS and one.level == "critical"]
        if path == "/live" and hangs:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, hangs[0].text)
        if path == "/live":
            return _text(HTTPStatus.OK, "it goes round")
        found = document(status)
        if path == "/status":
            return _json(HTTPStatus.OK, found)
        short = {name: found[name] for name in ("healthy", "severity", "state", "source", "at")}
        short |= {"lag_seconds": status.lag.seconds, "troubles": found["troubles"]}
        code = HTTPStatus.OK if found["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
        return _json(code, short)


class _Door:
    """A listening socket with the thread that takes its connections, and a thread for each."""

    def __init__(
        self, listening: socket.socket, serve: Callable[[socket.socket], None], name: str
    ) -> None:
        self._listening = listening
        self._serve = serve
        self.name = name
        self._slots = threading.Semaphore(CONNECTIONS)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._take, name=name, daemon=True)

    def start(self) -> None:
        """Take connections."""
        self._thread.start()

    def close(self) -> None:
        """Take no more; those that wait are refused."""
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(timeout=2.0)
        self._listening.close()

    def _take(self) -> None:
        """Whoever comes when all slots are taken waits in the kernel's queue."""
        while not self._ended.is_set():
            if not self._slots.acquire(timeout=1.0):
                continue
            connection = None
            try:
                connection, _ = self._listening.accept()
                threading.Thread(
                    target=self._attend, args=(connection,), name=self.name, daemon=True
                ).start()
            except (OSError, RuntimeError) as error:  # no descriptor or no thread is to be had
                self._slots.release()
                if connection is not None:
                    connection.close()
                if not self._ended.is_set():
                    _log.debug("no connection", error=error)
                self._ended.wait(0.1)

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection:
                self._serve(connection)
        except OSError as error:
            _log.debug("no answer", error=error)
        finally:
            self._slots.release()


def _head(connection: socket.socket, deadline: float) -> bytes:
    """Request line and headers, or what came of them; longer than _MOST_HEAD: there was more."""
    taken = b""
    while len(taken) <= _MOST_HEAD and b"\n\r\n" not in taken and b"\n\n" not in taken:
        _limit(connection, deadline)
        more = connection.recv(4096)
        if not more:
            break
        taken += more
    return taken


def _path(target: bytes) -> str:
    """The path of a request's target, which may be a whole URL; what is none is empty."""
    try:
        return urlsplit(target.decode("ascii")).path
    except ValueError:
        return ""


def _head_of(answer: _Answer) -> bytes:
    lines = [
        f"HTTP/1.1 {answer.code.value} {answer.code.phrase}",
        f"Content-Type: {answer.kind}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "Connection: close",
    ]
    if answer.code == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii")


def _take_leave(connection: socket.socket, deadline: float) -> None:
    """End, having read what else was sent: to close on unread bytes would take the answer back."""
    connection.shutdown(socket.SHUT_WR)
    unread = 0
    with suppress(OSError):
        while unread < _MOST_UNREAD:
            _limit(connection, deadline)
            more = connection.recv(4096)
            if not more:
                return
            unread += len(more)


def _limit(connection: socket.socket, deadline: float) -> None:
    """Let the next call last until the deadline. Raises TimeoutError if that is over."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _bound(found: list[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    """A listening socket on each address; one of a family that this host lacks is passed over."""
    made: list[socket.socket] = []
    lacking: OSError | None = None
    try:
        for family, at in found:
            host, port, *rest = at
            if port == 0 and made:
                port = made[0].getsockname()[1]
            try:
                whole: Any = (host, port, *rest)  # that of IPv6 has two numbers more
                made.append(socket.create_server(whole, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in (EAFNOSUPPORT, EADDRNOTAVAIL):
                    raise
                lacking = error
        if not made:
            raise lacking or OSError("no address")
    except OSError:
        for one in made:
            one.close()
        raise
    return made


# The socket's place


@contextmanager
def _reached(directory: Path) -> Iterator[str]:
    """An address of the directory's socket that a kernel takes, however long its path is."""
    plain = os.fspath(directory / SOCKET)
    if len(os.fsencode(plain)) <= _LONGEST_ADDRESS:
        yield plain
        return
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)


def _clear(path: Path, address: str) -> None:
    """Make room for a new socket. Raises SpoolError if what is there is used, or no socket."""
    try:
        mode = Path(address).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SpoolError(f"{path} is there and is no socket", hint="move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            Path(address).unlink()
            return
        except (TimeoutError, BlockingIOError):
            pass
    raise SpoolError(
        f"another streamer answers on {path}",
        hint="each streamer needs a spool of its own: --spool",
    )


# The client


class Unanswered(Exception):  # noqa: N818 - what it says is all there is to say
    """Why there is no answer.

    `kind`: `absent` (there is no socket), `refused` (no process listens on it), `hangs` (none came
    in time), `unclear` (we may not ask, or what answers is not understood).
    """

    def __init__(self, text: str, kind: SilentKind) -> None:
        super().__init__(text)
        self.kind = kind


def ask(directory: Path, *, timeout_seconds: float = 5.0) -> Status | Unanswered:
    """The Status of the streamer whose spool that is; or why there is none."""
    path = directory / SOCKET
    try:
        code, body = _get(path, "/status", timeout_seconds)
        if code != HTTPStatus.OK:
            return Unanswered(_said(body) or f"{path} answers {code}", "unclear")
        found = json.loads(body)
        if not isinstance(found, dict):
            return Unanswered(f"what answers on {path} is no streamer", "unclear")
        return from_document(found)
    except Unanswered as error:
        return error
    except (ValueError, RecursionError) as error:
        text = _line(f"what answers on {path} is no streamer of this version: {error}")
        return Unanswered(text, "unclear")


def ask_health(directory: Path, *, timeout_seconds: float = 5.0) -> tuple[bool, str]:
    """Whether the streamer whose spool that is says that it is well; and its state, or why not."""
    path = directory / SOCKET
    try:
        code, body = _get(path, "/health", timeout_seconds)
        found = json.loads(body)
        said = f"{found['source']}: {found['state']}"
        troubles = [(trouble["level"], trouble["text"]) for trouble in found["troubles"]]
        grave = [text for level, text in troubles if level == "critical"]
        told = grave or [text for _, text in troubles]
    except Unanswered as error:
        return False, str(error)
    except (ValueError, KeyError, TypeError, RecursionError):
        said = _said(body) if code != HTTPStatus.OK else ""
        return False, said or f"what answers on {path} is no streamer"
    return code == HTTPStatus.OK, _line("; ".join([said, *map(str, told)]))


def _said(body: bytes) -> str:
    return _line(body[:1000].decode("utf-8", "replace"))


def _get(path: Path, target: str, timeout_seconds: float) -> tuple[int, bytes]:
    """The code and the body of the answer. Raises Unanswered."""
    try:
        with (
            _reached(path.parent) as address,
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client,
        ):
            deadline = time.monotonic() + timeout_seconds
            _connect(client, address, deadline)
            _limit(client, deadline)
            client.sendall(f"GET {target} HTTP/1.0\r\n\r\n".encode("ascii"))
            taken = bytearray()
            while len(taken) <= _MOST_ANSWER:
                _limit(client, deadline)
                more = client.recv(1 << 16)
                if not more:
                    break
                taken += more
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
    head, _, body = bytes(taken).partition(b"\r\n\r\n")
    line = re.match(rb"HTTP/1\.[01] ([0-9]{3}) ", head)
    size = re.search(rb"\r\nContent-Length: ([0-9]{1,12})", head)
    if line is None or size is None:
        raise Unanswered(f"what answers on {path} is no streamer", "unclear")
    if len(body) != int(size[1]):
        raise Unanswered(f"the answer on {path} is cut short", "unclear")
    return int(line[1]), body


def _connect(client: socket.socket, address: str, deadline: float) -> None:
    """Connect; a queue that is full, of a process that does not take any, is waited for."""
    while True:
        _limit(client, deadline)
        try:
            client.connect(address)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return
