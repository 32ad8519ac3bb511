"""Answers requests for the streamer's status over HTTP, on the spool's Unix socket and on TCP.

    GET /          the page of `report`, see `page`
    GET /health    200, or 503 if something is critical, with a small JSON document
    GET /live      200, or 503 if only a restart would help: the main loop hangs
    GET /metrics   for Prometheus, see `metrics`
    GET /status    everything as JSON, see `document`

Law: a client can neither delay the stream nor hold resources here for long. The number of
connections is limited. A connection has one short request, one answer, and a deadline for each. A
Status that is old is critical in every answer, because what it says may no longer be true.

The answers are WSGI applications: wsgiref sends them, that of /metrics is prometheus_client's. The
connections and the one request on each are read here. http.server and wsgiref.simple_server have a
timeout for each recv() but none for the whole request, so a client that sends one byte a second
holds a thread for hours; they read headers of up to 6 MiB, answer HTTP/0.9, do not limit their
threads, and close without reading a body that was sent, so that the reset can undo the answer.
An application gets no header and no query of the request, so that the format and the compression
of /metrics do not depend on the client.
"""

import io
import json
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from errno import EADDRNOTAVAIL, EAFNOSUPPORT
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from wsgiref.handlers import SimpleHandler
from wsgiref.headers import Headers
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import make_wsgi_app

from binlog2s3.errors import ConfigError, SpoolError
from binlog2s3.formatting import duration_text, one_line
from binlog2s3.log import Log
from binlog2s3.status.ask import SOCKET, address_in, limit_to
from binlog2s3.status.metrics import Timings, registry_of
from binlog2s3.status.model import Status, Trouble, document

_log = Log("endpoint")

_SOCKET_THREAD = "http-socket"
STALE_SECONDS = 15.0
CONNECTIONS = 64
_REQUEST_SECONDS = 3.0  # for reading the request, and again for sending the answer
_MOST_HEAD = 8192
_BACKLOG = 64
_HANGS = ("stuck", "stale")
_MOST_UNREAD = 64 << 10
_REQUEST = re.compile(rb"([A-Z]{1,16}) (\S+) HTTP/1\.[01]\r?")


# Applications


def send_line(
    start: StartResponse, code: HTTPStatus, text: str, *more: tuple[str, str]
) -> list[bytes]:
    """Answer with what somebody said, as one line; `more` are headers."""
    plain = ("Content-Type", "text/plain; charset=utf-8")
    start(f"{code.value} {code.phrase}", [plain, *more])
    return [f"{one_line(text)}\n".encode("utf-8", "replace")]


def send_json(start: StartResponse, code: HTTPStatus, answer: object) -> list[bytes]:
    """Answer with a document."""
    start(f"{code.value} {code.phrase}", [("Content-Type", "application/json")])
    return [f"{json.dumps(answer, indent=1)}\n".encode()]


def applications(
    current: Callable[[], Status],
    *,
    page: WSGIApplication,
    own: Timings | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Mapping[str, WSGIApplication]:
    """Those of a streamer; `current` returns its Status, and any thread may call it.

    `page` answers /. `own`: what the process knows of itself, for /metrics.
    """

    def fresh() -> Status:
        status = current()
        age = abs((clock() - status.at).total_seconds())
        if age <= STALE_SECONDS:
            return status
        stale = Trouble(
            code="stale",
            level="critical",
            text=f"the status is {duration_text(age)} old",
            hint="the streamer hangs, or the clock of its host was changed: see its log",
        )
        return replace(status, troubles=(stale, *status.troubles))

    def health(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        status = fresh()
        answer = document(status)
        short = {name: answer[name] for name in ("healthy", "severity", "state", "source", "at")}
        short |= {"lag_seconds": status.lag.seconds, "troubles": answer["troubles"]}
        code = HTTPStatus.OK if answer["healthy"] else HTTPStatus.SERVICE_UNAVAILABLE
        return send_json(start, code, short)

    def live(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        for trouble in fresh().troubles:
            if trouble.code in _HANGS and trouble.level == "critical":
                return send_line(start, HTTPStatus.SERVICE_UNAVAILABLE, trouble.text)
        return send_line(start, HTTPStatus.OK, "the main loop is running")

    def whole(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return send_json(start, HTTPStatus.OK, document(fresh()))

    return {
        "/": page,
        "/health": health,
        "/live": live,
        "/metrics": make_wsgi_app(registry_of(fresh, own or Timings())),
        "/status": whole,
    }


# The server


class Listener:
    """Answers requests with the application of their path, in a thread each.

    It listens nowhere until `listen_tcp` or `listen_socket` is called. `option` names the address
    in errors.
    """

    def __init__(
        self,
        answers: Mapping[str, WSGIApplication],
        *,
        option: str = "--metrics-listen",
        request_seconds: float = _REQUEST_SECONDS,
    ) -> None:
        self._answers = answers
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
            addresses = socket.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            listening = _bound(list(dict.fromkeys((family, at) for family, *_, at in addresses)))
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not a host name"
            raise ConfigError(
                [f"{where}: {(why or str(error)).lower()}"],
                hint="use an address of this host and a free port, for example 127.0.0.1:9275; "
                "each process needs its own port",
            ) from error
        for bound in listening:
            self._open(bound, "http-tcp")
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
                before = Path(address).lstat()
        except OSError as error:
            listening.close()
            raise SpoolError(
                f"{path}: {(error.strerror or str(error)).lower()}",
                hint="the spool must be on a file system that supports Unix sockets",
            ) from error
        except SpoolError:
            listening.close()
            raise
        self._path, self._inode = path, (before.st_dev, before.st_ino)
        self._open(listening, _SOCKET_THREAD)

    def keep(self) -> None:
        """Make the socket again if somebody deleted it and its directory exists."""
        with self._lock, suppress(OSError, SpoolError):
            path = self._path
            if path is None:
                return
            with address_in(path.parent) as address:
                exists = os.path.lexists(address)
            if not exists:
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
                now = Path(address).lstat()
                if (now.st_dev, now.st_ino) == self._inode:
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
        method, path = (request[1].decode("ascii"), _path(request[2])) if request else ("", "")
        code, answer = _Answer(self._application(method, path, len(head))).send()
        _log.debug("answered", method=method, path=path, code=code)
        if method == "HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        deadline = time.monotonic() + self._request_seconds
        limit_to(deadline, connection)
        connection.sendall(answer)
        _drain(connection, deadline)

    def _application(self, method: str, path: str, size: int) -> WSGIApplication:
        """What answers a request of this size; both texts are "" if it was not understood."""
        refused = _refused(method, path in self._answers, size)

        def answer(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            if refused:
                return send_line(start, *refused)
            try:
                return self._answers[path](environ, start)
            except Exception as error:  # noqa: BLE001 - the client gets 503, whatever it is
                why = f"{type(error).__name__}: {error}"
                _log.warning("status could not be made", error=why)
                text = f"the status could not be made: {why}"
                return send_line(start, HTTPStatus.SERVICE_UNAVAILABLE, text)

        return answer


class _Answer(SimpleHandler):
    """The answer of an application, as bytes."""

    headers: Headers
    status: str
    http_version = "1.1"
    os_environ: dict[str, str] = {}  # noqa: RUF012 - a header of the request is not in ours

    def __init__(self, application: WSGIApplication) -> None:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "SERVER_PROTOCOL": "HTTP/1.1"}
        self._sent = io.BytesIO()
        self._application = application
        super().__init__(io.BytesIO(), self._sent, io.StringIO(), environ)

    def send(self) -> tuple[int, bytes]:
        """The code, and the whole answer."""
        self.run(self._application)
        sent = self._sent.getvalue()
        return int(sent[9:12]), sent

    def cleanup_headers(self) -> None:
        """Add what each answer has."""
        super().cleanup_headers()
        self.headers["Cache-Control"] = "no-store"
        self.headers["Connection"] = "close"
        if self.status.startswith("405"):
            self.headers["Allow"] = "GET, HEAD"


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


def _refused(method: str, is_path: bool, size: int) -> tuple[HTTPStatus, str] | None:
    """Why a request is not answered; None if it is. `method` is "" if it is not understood."""
    if size > _MOST_HEAD:
        return HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long"
    if not method:
        return HTTPStatus.BAD_REQUEST, "this is not an HTTP/1.0 or HTTP/1.1 request"
    if not is_path:
        return HTTPStatus.NOT_FOUND, "the paths are /, /health, /live, /metrics and /status"
    if method not in ("GET", "HEAD"):
        return HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed"
    return None


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


def _bound(addresses: list[tuple[socket.AddressFamily, Any]]) -> list[socket.socket]:
    """A listening socket on each address, except for families that this host does not have.

    Raises OSError if there is none, or if an address cannot be used for another reason.
    """
    made: list[socket.socket] = []
    unavailable: OSError | None = None
    try:
        for family, at in addresses:
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
        for bound in made:
            bound.close()
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
