"""Answers requests for the streamer's status over HTTP, on the spool's Unix socket and on TCP.

    GET /health    200, or 503 if something is critical, with a small JSON document
    GET /live      200, or 503 if only a restart would help: the main loop hangs
    GET /metrics   for Prometheus, see `metrics`
    GET /status    everything as JSON, see `document`

Law: a client can neither delay the stream nor hold resources here for long. The number of
connections is limited. A connection has one short request, one answer, and a deadline for each. A
Status that is old is critical in every answer, because what it says may no longer be true.

It does not use http.server or wsgiref. They have a timeout for each recv() but none for the whole
request, so a client that sends one byte a second holds a thread for hours. They read headers of up
to 6 MiB, answer HTTP/0.9, do not limit their threads, and close without reading a body that was
sent, so that the reset can undo the answer. To override all of that takes more code than to read
the one request line that is needed. prometheus_client's WSGI app also negotiates format and
compression: the answer of /metrics would depend on the client.
"""

import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from binlog2s3.errors import ConfigError, SpoolError
from binlog2s3.formatting import duration_text, one_line
from binlog2s3.log import Log
from binlog2s3.status.ask import SOCKET, address_in, limit_to
from binlog2s3.status.document import document
from binlog2s3.status.model import Status, Trouble
from binlog2s3.status.timings import Timings

_log = Log("endpoint")

_SOCKET_THREAD = "http-socket"
STALE_SECONDS = 15.0
CONNECTIONS = 64
_REQUEST_SECONDS = 3.0  # for reading the request, and again for sending the answer
_MOST_HEAD = 8192
_BACKLOG = 64
_HANGS = ("stuck", "stale")
PATHS = ("/health", "/live", "/metrics", "/status")
_MOST_UNREAD = 64 << 10
_JSON, _TEXT = "application/json", "text/plain; charset=utf-8"
_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.[01]\r?")
_INDEX = """binlog2s3 stream

/health    200, or 503 if something is critical
/live      200, or 503 if the streamer hangs
/metrics   for Prometheus
/status    everything, as JSON
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, of this content type."""

    code: HTTPStatus
    kind: str
    body: bytes


def text(code: HTTPStatus, said: str) -> Answer:
    return Answer(code, _TEXT, f"{one_line(said)}\n".encode("utf-8", "replace"))


def json_answer(code: HTTPStatus, found: object) -> Answer:
    return Answer(code, _JSON, f"{json.dumps(found, indent=1)}\n".encode())


# The server


class HttpListener:
    """Answers requests; `answer` makes the answer for one of the `paths`, in any thread.

    It listens nowhere until `listen_tcp` or `listen_socket` is called. `option` names the address
    in errors.
    """

    def __init__(
        self,
        answer: Callable[[str], Answer],
        *,
        index: str,
        option: str,
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        self._make = answer
        self._index = index
        self._option = option
        self._request_seconds = request_seconds
        self._lock = threading.Lock()
        self._doors: list[_Door] = []
        self._path: Path | None = None
        self._inode: tuple[int, int] | None = None

    def listen_tcp(self, host: str, port: int) -> int:
        """Answer on every address of the host; returns the port, which the kernel chooses for 0.

        Raises ConfigError if the host is unknown or not this one, or if the port is in use or not
        permitted.
        """
        where = f"{self._option} {f'[{host}]' if ':' in host else host}:{port}"
        try:
            found = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = _bound(list(dict.fromkeys((family, at) for family, *_, at in found)))
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a host name"
            raise ConfigError(
                [f"{where}: {(why or str(error)).lower()}"],
                hint="use an address of this host and a free port, for example 127.0.0.1:9275; "
                "each process needs its own port",
            ) from error
        for one in listening:
            self._open(one, "http-tcp")
        taken: int = listening[0].getsockname()[1]
        _log.info("listening", host=host, port=taken)
        return taken

    def listen_socket(self, directory: Path) -> None:
        """Answer on the directory's status.sock; replaces one that a dead streamer left behind.

        Raises SpoolError if another process answers there, or if the socket cannot be made.
        """
        path = directory / SOCKET
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_in(directory) as address:
                _clear(path, address)
                listening.bind(address)
                Path(address).chmod(0o600)  # nobody can connect before listen()
                listening.listen(_BACKLOG)
                found = Path(address).lstat()
        except OSError as error:
            listening.close()
            raise SpoolError(
                f"{path}: {(error.strerror or str(error)).lower()}",
                hint="the spool must be on a file system that supports Unix sockets",
            ) from error
        except SpoolError:
            listening.close()
            raise
        self._path, self._inode = path, (found.st_dev, found.st_ino)
        self._open(listening, _SOCKET_THREAD)

    def keep(self) -> None:
        """Make the socket again if somebody deleted it and its directory exists."""
        with self._lock, suppress(OSError, SpoolError):
            path = self._path
            if path is None:
                return
            with address_in(path.parent) as address:
                there = os.path.lexists(address)
            if not there:
                before = self._doors.copy()
                self.listen_socket(path.parent)
                for door in before:
                    if door.name == _SOCKET_THREAD:
                        self._doors.remove(door)
                        door.close()

    def close(self) -> None:
        """Stop listening. Does not wait for answers that are being sent."""
        with self._lock:  # from now on `keep` makes no socket
            path, self._path = self._path, None
        if path is not None:
            with suppress(OSError), address_in(path.parent) as address:
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
        """Read a request and send the answer. Raises OSError if the client is gone or too slow."""
        try:
            head = _head(connection, time.monotonic() + self._request_seconds)
        except TimeoutError:
            _log.debug("no request", why="the client did not send it in time")
            return
        if not head:
            return
        line, newline, _ = head.partition(b"\n")
        request = _REQUEST.fullmatch(line) if newline else None
        if request is None:
            method, path = "", ""
            answer = text(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.0 or HTTP/1.1 request")
        else:
            method = request[1].decode("ascii")
            path = _path(request[2])
            answer = self._answer(method, path)
        if len(head) > _MOST_HEAD:
            answer = text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long")
        _log.debug("answered", method=method, path=path, code=answer.code.value)
        deadline = time.monotonic() + self._request_seconds
        limit_to(deadline, connection)
        connection.sendall(_head_of(answer) + (b"" if method == "HEAD" else answer.body))
        _drain(connection, deadline)

    def _answer(self, method: str, path: str) -> Answer:
        if path not in ("/", *PATHS):
            return text(HTTPStatus.NOT_FOUND, "the paths are /health, /live, /metrics and /status")
        if method not in ("GET", "HEAD"):
            return text(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed")
        if path == "/":
            return Answer(HTTPStatus.OK, _TEXT, self._index.encode())
        try:
            return self._make(path)
        except Exception as error:  # noqa: BLE001 - the client gets 503, whatever it is
            _log.warning("status could not be made", error=f"{type(error).__name__}: {error}")
            why = f"the status could not be made: {type(error).__name__}: {error}"
            return text(HTTPStatus.SERVICE_UNAVAILABLE, why)


class Listener(HttpListener):
    """Answers requests with the Status that `current` returns, which any thread may call.

    `own`: what the process knows of itself, for /metrics.
    """

    def __init__(
        self,
        current: Callable[[], Status],
        *,
        own: Timings | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        super().__init__(
            self._render_status,
            index=_INDEX,
            option="--metrics-listen",
            request_seconds=request_seconds,
        )
        self._current = current
        self._own = own or Timings()
        self._clock = clock

    def _render_status(self, path: str) -> Answer:
        return self._render(path, self._status())

    def _status(self) -> Status:
        status = self._current()
        age = abs((self._clock() - status.at).total_seconds())
        if age <= STALE_SECONDS:
            return status
        stale = Trouble(
            code="stale",
            level="critical",
            text=f"the status is {duration_text(age)} old",
            hint="the streamer hangs, or the clock of its host was changed: see its log",
        )
        return replace(status, troubles=(stale, *status.troubles))

    def _render(self, path: str, status: Status) -> Answer:
        if path == "/metrics":
            # prometheus_client takes longer to load than most of the process, and few are scraped
            from binlog2s3.status import metrics  # noqa: PLC0415

            body = metrics.render(status, self._own)
            return Answer(HTTPStatus.OK, metrics.CONTENT_TYPE, body)
        hangs = [one for one in status.troubles if one.code in _HANGS and one.level == "critical"]
        if path == "/live" and hangs:
            return text(HTTPStatus.SERVICE_UNAVAILABLE, hangs[0].text)
        if path == "/live":
            return text(HTTPStatus.OK, "the main loop is running")
        found = document(status)
        if path == "/status":
            return json_answer(HTTPStatus.OK, found)
        short = {name: found[name] for name in ("healthy", "severity", "state", "source", "at")}
        short |= {"lag_seconds": status.lag.seconds, "troubles": found["troubles"]}
        code = HTTPStatus.OK if found["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
        return json_answer(code, short)


class _Door:
    """A listening socket, the thread that accepts connections, and a thread per connection."""

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
        """Begin to accept connections."""
        self._thread.start()

    def close(self) -> None:
        """Accept no more; the kernel refuses the connections that wait."""
        self._ended.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._thread.join(timeout=2.0)
        self._listening.close()

    def _take(self) -> None:
        """Accept. While all slots are taken, new connections wait in the kernel's queue."""
        while not self._ended.is_set():
            if not self._slots.acquire(timeout=1.0):
                continue
            connection = None
            try:
                connection, _ = self._listening.accept()
                threading.Thread(
                    target=self._attend, args=(connection,), name=self.name, daemon=True
                ).start()
            except (OSError, RuntimeError) as error:  # out of file descriptors or threads
                self._slots.release()
                if connection is not None:
                    connection.close()
                if not self._ended.is_set():
                    _log.debug("connection not accepted", error=error)
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
    """The request line and headers, as far as they came; more than _MOST_HEAD bytes: too long."""
    taken = b""
    while len(taken) <= _MOST_HEAD and b"\n\r\n" not in taken and b"\n\n" not in taken:
        limit_to(deadline, connection)
        more = connection.recv(4096)
        if not more:
            break
        taken += more
    return taken


def _path(target: bytes) -> str:
    """The path of a request's target, which may be a whole URL; "" if it cannot be parsed."""
    try:
        return urlsplit(target.decode("ascii")).path
    except ValueError:
        return ""


def _head_of(answer: Answer) -> bytes:
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


def _drain(connection: socket.socket, deadline: float) -> None:
    """Read what the client still sends: close() with unread bytes resets, and undoes the answer."""
    connection.shutdown(socket.SHUT_WR)
    unread = 0
    with suppress(OSError):
        while unread < _MOST_UNREAD:
            limit_to(deadline, connection)
            more = connection.recv(4096)
            if not more:
                return
            unread += len(more)


def _bound(found: list[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    """A listening socket on each address, except for families that this host does not have.

    Raises OSError if there is none, or if an address cannot be used for another reason.
    """
    made: list[socket.socket] = []
    unavailable: OSError | None = None
    try:
        for family, at in found:
            host, port, *rest = at
            if port == 0 and made:
                port = made[0].getsockname()[1]
            try:
                whole: Any = (host, port, *rest)  # an IPv6 address has two more numbers
                made.append(socket.create_server(whole, family=family, backlog=_BACKLOG))
            except OSError as error:
                if error.errno not in (EAFNOSUPPORT, EADDRNOTAVAIL):
                    raise
                unavailable = error
        if not made:
            raise unavailable or OSError("no address")
    except OSError:
        for one in made:
            one.close()
        raise
    return made


def _clear(path: Path, address: str) -> None:
    """Delete a stale socket. Raises SpoolError if a process listens on it or it is no socket."""
    try:
        mode = Path(address).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SpoolError(f"{path} exists and is not a socket", hint="move it away")
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
        hint="each streamer needs its own spool: --spool",
    )
