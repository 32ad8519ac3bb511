"""`exchange`: one form of answer is taken, over a connection that stays usable; no other one."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.store.http import UnansweredError, exchange, request

GOOD = b'HTTP/1.1 200 OK\r\nETag: "x"\r\ncontent-LENGTH:  4 \r\nX-Empty:\r\n\r\ndata'
ASKED = request("GET", "/b/k", {"Host": "store"})


@contextmanager
def peer(*pieces: bytes) -> Iterator[socket.socket]:
    """A connection whose other side sends these pieces, one write each, then nothing more."""
    ours, theirs = socket.socketpair()

    def speak() -> None:
        for piece in pieces:
            theirs.sendall(piece)
        theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=speak)
    thread.start()
    with theirs, ours:
        yield ours
        thread.join()


def test_an_answer() -> None:
    """Status, headers by their names in lower case, body."""
    with peer(GOOD) as connection:
        found = exchange(connection, ASKED)
    assert (found.status_code, found.content, found.last) == (200, b"data", False)
    assert found.headers == {"etag": '"x"', "content-length": "4", "x-empty": ""}


@given(st.lists(st.integers(1, len(GOOD) - 1), max_size=6).map(sorted))
def test_however_it_is_cut(cuts: list[int]) -> None:
    """Pieces of any size give the same answer."""
    pieces = [GOOD[a:b] for a, b in zip([0, *cuts], [*cuts, len(GOOD)], strict=True)]
    with peer(*pieces) as connection:
        assert exchange(connection, ASKED).content == b"data"


def test_a_connection_is_used_again() -> None:
    """The answer to a second request follows the first one's, byte for byte."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for _ in range(3):
            theirs.sendall(GOOD)
            assert exchange(ours, ASKED).content == b"data"
            assert theirs.recv(1000) == b"GET /b/k HTTP/1.1\r\nHost: store\r\n\r\n"


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", 200), ("HEAD", 404), ("GET", 204), ("GET", 304)]
)
def test_answers_without_a_body(method: str, status: int) -> None:
    """Their length is that of a body which is not sent."""
    answer = f"HTTP/1.1 {status} Some Words\r\nContent-Length: 4\r\n\r\n".encode()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        found = exchange(ours, request(method, "/b/k", {"Host": "store"}))
    assert (found.status_code, found.content) == (status, b"")


@pytest.mark.parametrize("word", ["close", "Close", "te, close"])
def test_the_last_answer_of_a_connection(word: str) -> None:
    """It says so, and the connection is not for another request."""
    answer = GOOD.replace(b"X-Empty:", f"Connection: {word}".encode())
    with peer(answer) as connection:
        assert exchange(connection, ASKED).last


@pytest.mark.parametrize(
    "answer",
    [
        GOOD.replace(b"1.1", b"1.0"),
        GOOD.replace(b"200", b"20"),
        GOOD.replace(b"HTTP", b"HTTPS"),
        b"<html>hello</html>\r\n\r\n",
        GOOD.replace(b"content-LENGTH:  4", b"X: y"),
        GOOD.replace(b"  4 ", b"-4"),
        GOOD.replace(b"  4 ", b"4, 4"),
        GOOD.replace(b"  4 ", b""),
        GOOD.replace(b"X-Empty:", b"Content-Length: 4"),
        GOOD.replace(b"X-Empty:", b"Transfer-Encoding: chunked"),
        GOOD.replace(b"X-Empty:", b"Content-Encoding: gzip"),
        GOOD.replace(b"X-Empty:", b" folded: 1"),
        GOOD.replace(b"X-Empty:", b"no colon"),
        GOOD.replace(b"X-Empty:", b"a b: c"),
        GOOD.replace(b"X-Empty:", b"a: \0"),
        GOOD.replace(b"X-Empty:", b"a: b\nc: d"),
        GOOD + b"more",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 30_000,
    ],
    ids=lambda answer: repr(answer[:60]) + str(len(answer)),
)
def test_another_form_is_refused(answer: bytes) -> None:
    """However near it comes: what it means is not for this module to guess."""
    with peer(answer) as connection, pytest.raises(ValueError, match=r"."):
        exchange(connection, ASKED)


@pytest.mark.parametrize("sent", [0, 5, len(GOOD) - 5, len(GOOD) - 1])
def test_an_end_too_soon(sent: int) -> None:
    """It is the connection's error, never a shorter body; no byte at all is one of its own."""
    with peer(GOOD[:sent]) as connection, pytest.raises(ConnectionError) as raised:
        exchange(connection, ASKED)
    assert isinstance(raised.value, UnansweredError) == (sent == 0)


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/k k", {}),
        ("/k\r\nX: y", {}),
        ("", {}),
        ("http://elsewhere/k", {}),
        ("/k", {"X": "y\r\nZ: z"}),
        ("/k", {"X\n": "y"}),
        ("/k", {"X": "\0"}),
    ],
)
def test_what_would_be_another_request(target: str, headers: dict[str, str]) -> None:
    """Nothing is sent for a key or a header that holds a line's end, or a blank in the path."""
    with pytest.raises(ValueError, match="not a request"):
        request("GET", target, headers)
