"""The recording proxy: changes nothing unasked, remembers everything, spoils what it is told to."""

import http.client
import socket
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from lab.fault import Answer, Delay, Drop, DropAnswer, Record, Request, Rewrite, in_flight, on
from lab.proxy import RecordingProxy
from tests.waiting import wait_until

LARGE = 12 * 1024 * 1024


class _Store(BaseHTTPRequestHandler):
    """Answers with what it was asked: the target, the Host and the body's size and ends."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        if self.path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", str(LARGE))
            self.end_headers()
            for _ in range(LARGE // 65536):
                self.wfile.write(b"x" * 65536)
        elif self.path == "/chunked":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n")
        else:
            body = b"" if self.path == "/empty" else f"you asked {self.path}".encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Secret", "kept")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

    def do_PUT(self) -> None:
        self.server.seen.append((self.command, self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        size = 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while (length := int(self.rfile.readline(), 16)) > 0:
                size += len(self.rfile.read(length))
                self.rfile.readline()
            while self.rfile.readline() != b"\r\n":
                pass
        else:
            left = int(self.headers["Content-Length"])
            while left:
                got = len(self.rfile.read1(min(left, 65536)))
                left -= got
                size += got
        body = str(size).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    seen: list[tuple[str, str, str]]


@pytest.fixture
def store() -> Iterator[_Listener]:
    """A store that tells what it saw."""
    server = _Listener(("127.0.0.1", 0), _Store)
    server.seen = []
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def proxy(store: _Listener) -> Iterator[RecordingProxy]:
    """A proxy before that store, without rules."""
    with RecordingProxy(f"http://127.0.0.1:{store.server_port}") as running:
        yield running


@contextmanager
def _connected(proxy: RecordingProxy) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=60)
    try:
        yield connection
    finally:
        connection.close()


def _ask(
    connection: http.client.HTTPConnection, method: str, target: str, body: Any = None, **head: str
) -> tuple[int, bytes]:
    connection.request(method, target, body=body, headers=head)
    answer = connection.getresponse()
    return answer.status, answer.read()


def _request(**given: Any) -> Request:
    return Request(**{"method": "GET", "path": "/", "query": "", "headers": {}, **given})


def test_passes_through_unchanged_and_keeps_the_connection(
    proxy: RecordingProxy, store: _Listener
) -> None:
    """Target and Host reach the store as sent; several requests go over one connection."""
    with _connected(proxy) as connection:
        assert _ask(connection, "GET", "/a%2Fb?x=1&y") == (200, b"you asked /a%2Fb?x=1&y")
        first = connection.sock
        assert _ask(connection, "HEAD", "/a") == (200, b"")
        assert _ask(connection, "GET", "/empty") == (200, b"")
        assert _ask(connection, "GET", "/chunked") == (200, b"hello world")
        assert _ask(connection, "PUT", "/b", b"12345", Host="bucket.example") == (200, b"5")
        assert connection.sock is first
    host = urlsplit(proxy.url).netloc
    assert store.seen[0] == ("GET", "/a%2Fb?x=1&y", host)
    assert store.seen[-1] == ("PUT", "/b", "bucket.example")


def test_a_client_that_has_its_answer_finds_its_record(proxy: RecordingProxy) -> None:
    """Method, path, query, bytes, status and times are there as soon as the answer is."""
    with _connected(proxy) as connection:
        for number in range(50):
            _ask(connection, "PUT", f"/key?partNumber={number}", b"x" * number)
            assert len(proxy.records) == number + 1
    last = proxy.records[-1]
    assert (last.request.method, last.request.path) == ("PUT", "/key")
    assert (last.request.query, last.request_bytes, last.status) == ("partNumber=49", 49, 200)
    assert last.begin < last.end
    assert len(proxy.matching(method="PUT", query="partNumber=1")) == 11
    proxy.clear()
    assert proxy.records == []


def test_bodies_stream_both_ways_without_being_held(proxy: RecordingProxy) -> None:
    """12 MiB up and down cost far less than 12 MiB of memory."""

    def pieces() -> Iterator[bytes]:
        for _ in range(LARGE // 65536):
            yield b"x" * 65536

    with _connected(proxy) as connection:
        tracemalloc.start()
        try:
            up = {"Content-Length": str(LARGE)}
            assert _ask(connection, "PUT", "/up", pieces(), **up) == (200, str(LARGE).encode())
            connection.request("GET", "/large")
            answer = connection.getresponse()
            size = sum(len(piece) for piece in iter(lambda: answer.read(65536), b""))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert size == LARGE
    assert peak < 4 * 1024 * 1024


def test_a_chunked_request_body_with_trailers_passes(proxy: RecordingProxy) -> None:
    """What a client sends without a known length reaches the store, trailers included."""
    netloc = urlsplit(proxy.url)
    with socket.create_connection((netloc.hostname, netloc.port), timeout=60) as raw:
        raw.sendall(
            b"PUT /t HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
            b"Trailer: x-sum\r\nConnection: close\r\n\r\n"
            b"3\r\nabc\r\n4\r\ndefg\r\n0\r\nx-sum: 1\r\n\r\n"
        )
        received = b"".join(iter(lambda: raw.recv(4096), b""))
    assert received.endswith(b"\r\n\r\n7")


def test_answers_in_the_stores_place(proxy: RecordingProxy, store: _Listener) -> None:
    """A faked answer reaches the client, the store sees nothing, the connection lives on."""
    html = Answer(503, {"Content-Type": "text/html"}, b"<html>slow down</html>")
    proxy.rules.append(on(html, method="PUT", path="^/key$", times=1))
    with _connected(proxy) as connection:
        assert _ask(connection, "PUT", "/key", b"body") == (503, b"<html>slow down</html>")
        assert store.seen == []
        assert _ask(connection, "PUT", "/key", b"body") == (200, b"4")
    assert [record.status for record in proxy.records] == [503, 200]


def test_drops_before_the_store_sees_it(proxy: RecordingProxy, store: _Listener) -> None:
    """The client's connection closes without a word and the store was never asked."""
    proxy.rules.append(on(Drop(), times=1))
    with _connected(proxy) as connection, pytest.raises(ConnectionError):
        _ask(connection, "GET", "/gone")
    assert store.seen == []
    assert [record.status for record in proxy.records] == [None]


def test_loses_the_reply_after_the_store_has_acted(proxy: RecordingProxy, store: _Listener) -> None:
    """The store has done it; the client is told nothing."""
    proxy.rules.append(on(DropAnswer(), method="PUT", times=1))
    with _connected(proxy) as connection, pytest.raises(ConnectionError):
        _ask(connection, "PUT", "/lost", b"abc")
    assert [seen[:2] for seen in store.seen] == [("PUT", "/lost")]
    assert [(record.request_bytes, record.status) for record in proxy.records] == [(3, None)]


def test_rewrites_the_head_of_the_answer(proxy: RecordingProxy) -> None:
    """Headers vanish or change; the body stays."""
    proxy.rules.append(on(Rewrite(strip=("x-secret",), headers={"X-New": "1"}, status=299)))
    with _connected(proxy) as connection:
        connection.request("GET", "/a")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (299, b"you asked /a")
    assert answer.getheader("X-Secret") is None
    assert answer.getheader("X-New") == "1"


def test_delays_overlap_and_end_with_the_proxy(store: _Listener) -> None:
    """Slow requests run side by side, and a proxy that ends does not wait for them."""
    arrived: list[Request] = []
    statuses: list[object] = []

    def rule(request: Request) -> Delay:
        arrived.append(request)
        return Delay(3600, Drop())

    def ask() -> None:
        with _connected(proxy) as connection:
            try:
                statuses.append(_ask(connection, "GET", "/slow"))
            except OSError as error:
                statuses.append(type(error))

    clients = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
    proxy = RecordingProxy(f"http://127.0.0.1:{store.server_port}", [rule])
    proxy.__enter__()
    ending = threading.Thread(target=proxy.__exit__, args=(None, None, None), daemon=True)
    for client in clients:
        client.start()
    try:
        wait_until(lambda: len(arrived) == 4, what="all four have arrived")
    finally:
        ending.start()
    ending.join(60)
    assert not ending.is_alive()
    wait_until(lambda: len(statuses) == 4, what="all four have ended")
    assert in_flight(proxy.records) == 4


def test_an_unreachable_store_closes_the_connection() -> None:
    """Where nothing listens the client sees a closed connection, as behind a real balancer."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with RecordingProxy(dead) as proxy, _connected(proxy) as connection:
            with pytest.raises(ConnectionError):
                _ask(connection, "GET", "/")
            assert proxy.records[0].status is None


def test_in_flight_counts_the_most_at_one_moment() -> None:
    """Touching ends do not count as overlap."""
    spans = [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0), (5.0, 6.0)]
    records = [
        Record(request=_request(), begin=begin, end=end, request_bytes=0, status=200)
        for begin, end in spans
    ]
    assert in_flight(records) == 2
    assert in_flight([]) == 0


def test_a_rule_is_spent_after_its_times() -> None:
    """`times` counts hits only."""
    rule = on(Drop(), method="^PUT$", query="partNumber=2", times=1)
    assert rule(_request(method="GET", query="partNumber=2")) is None
    assert rule(_request(method="PUT", query="partNumber=2")) == Drop()
    assert rule(_request(method="PUT", query="partNumber=2")) is None


def test_a_small_request_has_left_its_client_when_the_rules_are_asked(store: _Listener) -> None:
    """Whoever freezes a client that a rule holds has its whole request, "100 Continue" or not."""
    asked = threading.Event()

    def rule(_: Request) -> None:
        asked.set()

    upstream = f"http://127.0.0.1:{store.server_address[1]}"
    with RecordingProxy(upstream, [rule]) as proxy:
        port = urlsplit(proxy.url).port
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(
                b"PUT /x HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
            )
            assert client.recv(100).startswith(b"HTTP/1.1 100")
            assert not asked.wait(0.3)
            client.sendall(b"hello")
            assert asked.wait(60)
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
