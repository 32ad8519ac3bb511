"""The recording proxy: a fault strikes where a test says, before or after the store has acted."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from lab.fault import Answer, Drop, DropAnswer, Request, Rewrite, on
from lab.proxy import RecordingProxy


class _Store(BaseHTTPRequestHandler):
    """Answers with the size of the body."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_PUT(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        body = str(len(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Secret", "kept")
        self.end_headers()
        self.wfile.write(body)


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    seen: list[str]


@pytest.fixture
def store() -> Iterator[_Listener]:
    """A store that tells what it was asked."""
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


def _put(
    connection: http.client.HTTPConnection, target: str, body: bytes
) -> tuple[int, str | None, bytes]:
    connection.request("PUT", target, body=body)
    answer = connection.getresponse()
    return answer.status, answer.getheader("X-Secret"), answer.read()


def test_a_client_that_has_its_answer_finds_its_record(
    proxy: RecordingProxy, store: _Listener
) -> None:
    """Nothing is changed unasked; what was asked and answered is there as soon as the answer is."""
    with _connected(proxy) as connection:
        for number in range(50):
            answer = _put(connection, f"/a%2Fb?partNumber={number}", b"x" * number)
            assert answer == (200, "kept", str(number).encode())
            assert len(proxy.records) == number + 1
    assert store.seen[-1] == "/a%2Fb?partNumber=49"
    last = proxy.records[-1]
    assert (last.request.query, last.request_bytes, last.status) == ("partNumber=49", 49, 200)
    assert len(proxy.matching(method="PUT", query="partNumber=1")) == 11


@pytest.mark.parametrize(
    ("action", "answer", "acted"),
    [
        (Answer(503, {}, b"slow down"), (503, None, b"slow down"), 0),
        (Drop(), None, 0),
        (DropAnswer(), None, 1),
        (Rewrite(strip=("x-secret",), status=299), (299, None, b"4"), 1),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_fault_strikes_on_its_side_of_the_store(
    proxy: RecordingProxy, store: _Listener, action: Any, answer: object, acted: int
) -> None:
    """An answer that is lost or changed was the store's; what never reached it was not done."""
    proxy.rules.append(on(action, method="PUT", path="^/key$", times=1))
    with _connected(proxy) as connection:
        if answer is None:
            with pytest.raises(ConnectionError):
                _put(connection, "/key", b"body")
        else:
            assert _put(connection, "/key", b"body") == answer
    assert len(store.seen) == acted
    assert [record.status for record in proxy.records] == [answer and answer[0]]  # type: ignore[index]
    with _connected(proxy) as connection:
        assert _put(connection, "/key", b"body") == (200, "kept", b"4"), "spent"


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
