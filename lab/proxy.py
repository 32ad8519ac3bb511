"""A reverse proxy before an S3 endpoint that remembers every request and can spoil the answers.

    with RecordingProxy(store.endpoint_url) as proxy:
        proxy.rules.append(on(Answer(503, body=b"slow down"), method="PUT", times=2))
        ... a client with endpoint_url=proxy.url ...
        assert in_flight(proxy.records) >= 4

Law: without rules nothing is changed, the Host header included, so signatures hold; bodies stream
through in pieces, so large parts cost no memory.
"""

import contextlib
import http.client
import re
import socket
import socketserver
import sys
import threading
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any, Self
from urllib.parse import urlsplit

from lab.fault import Action, Answer, Delay, Drop, DropAnswer, Record, Request, Rewrite, Rule

PIECE_BYTES = 64 * 1024
UPSTREAM_TIMEOUT_SECONDS = 120

# They speak about one connection, not about the message; the proxy has two connections.
HOP_BY_HOP = {"connection", "keep-alive", "proxy-connection", "te", "upgrade", "expect"}


class RecordingProxy:
    """The proxy itself; `with` starts and ends it. `rules` may be changed at any time.

    The first rule that returns an action wins. A body of up to `ahead_bytes` has wholly left its
    client when the rules are asked, so that what is held reaches the store though the client dies.
    """

    def __init__(
        self, upstream_url: str, rules: Iterable[Rule] = (), *, ahead_bytes: int = PIECE_BYTES
    ) -> None:
        upstream = urlsplit(upstream_url)
        self.ahead_bytes = ahead_bytes
        self.upstream = (upstream.hostname or "127.0.0.1", upstream.port or 80)
        self.rules: list[Rule] = list(rules)
        self.stopping = threading.Event()
        self._records: list[Record] = []
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._server: _Listener | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._server = _Listener(self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="proxy"
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._thread.join()
        with self._lock:
            for open_socket in self._sockets:
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
        self._server.server_close()  # joins the connections' threads

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        if self._server is None:
            raise RuntimeError("the proxy has not been started")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def records(self) -> list[Record]:
        """Every request that has ended so far, in the order of their ends."""
        with self._lock:
            return list(self._records)

    def matching(self, *, method: str = "", path: str = "", query: str = "") -> list[Record]:
        """The records whose method, path and query match (regular expressions, anywhere)."""
        return [
            record
            for record in self.records
            if re.search(method, record.request.method)
            and re.search(path, record.request.path)
            and re.search(query, record.request.query)
        ]

    def clear(self) -> None:
        """Forget the records; the rules stay."""
        with self._lock:
            self._records.clear()

    def action_for(self, request: Request) -> Action | None:
        """What the rules say about a request."""
        for rule in list(self.rules):
            action = rule(request)
            if action is not None:
                return action
        return None

    def keep(self, record: Record) -> None:
        """Remember a request that ended."""
        with self._lock:
            self._records.append(record)

    @contextlib.contextmanager
    def open_socket(self, opened: socket.socket) -> Iterator[None]:
        """While in this block the proxy's end shuts the socket down, so that no thread hangs."""
        with self._lock:
            self._sockets.add(opened)
        try:
            yield
        finally:
            with self._lock:
                self._sockets.discard(opened)


class _Listener(ThreadingHTTPServer):
    """Accepts connections; each gets a thread that ends when its socket is shut down."""

    daemon_threads = False
    request_queue_size = 128

    def __init__(self, proxy: RecordingProxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Connection)

    def server_bind(self) -> None:
        """Bind without asking the resolver for our name, which may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client or store that hangs up is part of the play; anything else is printed."""
        if not isinstance(sys.exc_info()[1], OSError | http.client.HTTPException):
            super().handle_error(request, client_address)


class _Connection(BaseHTTPRequestHandler):
    """One client connection: its requests one after the other, each to a store connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def handle(self) -> None:
        """Serve until either side closes."""
        with self.server.proxy.open_socket(self.connection):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Quiet: the records say it all."""

    def _serve(self) -> None:
        exchange = _Exchange(self, self.server.proxy)
        try:
            exchange.run()
        except (OSError, http.client.HTTPException):
            self.close_connection = True
        finally:
            exchange.remember(None)

    # the names that http.server looks for
    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = _serve  # noqa: N815


class _Exchange:
    """One request and its answer."""

    def __init__(self, client: _Connection, proxy: RecordingProxy) -> None:
        target = urlsplit(client.path)
        self.client = client
        self.proxy = proxy
        self.begin = monotonic()
        self.request_bytes = 0
        self.remembered = False
        self.ahead: list[bytes] = []
        self.request = Request(
            method=client.command,
            path=target.path,
            query=target.query,
            headers={name.lower(): value for name, value in client.headers.items()},
        )

    def remember(self, status: int | None) -> None:
        """Record the request, once, and before the client has its whole answer.

        So who holds an answer finds its record.
        """
        if not self.remembered:
            self.remembered = True
            self.proxy.keep(
                Record(
                    request=self.request,
                    begin=self.begin,
                    end=monotonic(),
                    request_bytes=self.request_bytes,
                    status=status,
                )
            )

    def run(self) -> None:
        """Do what the rules say; a small request has wholly left its client when they are asked.

        (A client that waits for "100 Continue" sends its body a moment after the head.)
        """
        if self._is_small():
            self.ahead = list(self._incoming())
        action = self.proxy.action_for(self.request)
        while isinstance(action, Delay):
            self.proxy.stopping.wait(action.seconds)
            action = action.then
        if isinstance(action, Drop):
            self.client.close_connection = True
        elif isinstance(action, Answer):
            for _ in self._body():
                pass
            length = ("Content-Length", str(len(action.body)))
            self._answer(action.status, [*action.headers.items(), length], iter([action.body]))
        else:
            self._forward(action)

    def _is_small(self) -> bool:
        """Its body, if it has one, is taken from the client before the rules are asked."""
        headers = self.request.headers
        size = headers.get("x-amz-decoded-content-length", headers.get("content-length", ""))
        return size.isdigit() and int(size) <= self.proxy.ahead_bytes

    def _body(self) -> Iterator[bytes]:
        """The request's body in pieces, as it stands on the wire, once."""
        return iter(self.ahead) if self._is_small() else self._incoming()

    def _incoming(self) -> Iterator[bytes]:
        if "chunked" in self.request.headers.get("transfer-encoding", "").lower():
            yield from self._chunked_body()
            return
        left = int(self.request.headers.get("content-length", "0"))
        while left > 0:
            piece = self._read(min(left, PIECE_BYTES))
            left -= len(piece)
            yield piece

    def _chunked_body(self) -> Iterator[bytes]:
        while True:
            line = self._read_line()
            yield line
            left = int(line.split(b";")[0], 16)
            if left == 0:
                break
            left += 2  # the line end behind the data
            while left > 0:
                piece = self._read(min(left, PIECE_BYTES))
                left -= len(piece)
                yield piece
        while line != b"\r\n":  # trailers, up to the empty line
            line = self._read_line()
            yield line

    def _read(self, size: int) -> bytes:
        piece = self.client.rfile.read1(size)
        if not piece:
            raise ConnectionResetError("the client went away")
        self.request_bytes += len(piece)
        return bytes(piece)

    def _read_line(self) -> bytes:
        line = self.client.rfile.readline(PIECE_BYTES)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("the client went away")
        self.request_bytes += len(line)
        return line

    def _forward(self, action: DropAnswer | Rewrite | None) -> None:
        """Ask the store and hand its answer on."""
        host, port = self.proxy.upstream
        store = http.client.HTTPConnection(host, port, timeout=UPSTREAM_TIMEOUT_SECONDS)
        try:
            store.connect()
            with self.proxy.open_socket(store.sock):
                self._send_to(store)
                answer = store.getresponse()
                if isinstance(action, DropAnswer):
                    answer.read()
                    action.done()
                    self.client.close_connection = True
                else:
                    self._relay(answer, action or Rewrite())
                answer.close()
        finally:
            store.close()

    def _send_to(self, store: http.client.HTTPConnection) -> None:
        """The request as it came; a store that answers early closes on us, and is listened to."""
        store.putrequest(
            self.request.method, self.client.path, skip_host=True, skip_accept_encoding=True
        )
        for name, value in self.client.headers.items():
            if name.lower() not in HOP_BY_HOP:
                store.putheader(name, value)
        store.endheaders()
        listening = True
        for piece in self._body():
            if listening:
                try:
                    store.send(piece)
                except OSError:
                    listening = False

    def _relay(self, answer: http.client.HTTPResponse, change: Rewrite) -> None:
        """The store's answer, its head changed as asked."""
        gone = {name.lower() for name in (*change.strip, *change.headers)}
        head = [
            (name, value)
            for name, value in answer.getheaders()
            if name.lower() not in HOP_BY_HOP | gone | {"transfer-encoding"}
        ]
        pieces = iter(lambda: answer.read(PIECE_BYTES), b"")
        status = answer.status if change.status is None else change.status
        self._answer(status, [*head, *change.headers.items()], pieces)

    def _answer(self, status: int, head: list[tuple[str, str]], pieces: Iterator[bytes]) -> None:
        """Send an answer; the record is there before the last piece."""
        bodiless = self.request.method == "HEAD" or status in {204, 304}
        sized = any(name.lower() == "content-length" for name, _ in head)
        self.client.send_response_only(status)
        for name, value in head:
            self.client.send_header(name, value)
        if not sized and not bodiless:
            self.client.send_header("Transfer-Encoding", "chunked")
        following = None if bodiless else next(pieces, None)
        if not following:
            self.remember(status)
        self.client.end_headers()
        while following:
            piece, following = following, next(pieces, None)
            if following is None:
                self.remember(status)
            self.client.wfile.write(piece if sized else b"%x\r\n%b\r\n" % (len(piece), piece))
        if not sized and not bodiless:
            self.client.wfile.write(b"0\r\n\r\n")
