"""`status --serve-url`: what is asked, what is believed, and what is printed."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.archive.codec import converted
from binlog2s3.config.given import Given
from binlog2s3.config.status import STATUS
from binlog2s3.errors import ArchiveError
from binlog2s3.output import Coloured, Plain
from binlog2s3.serve.ask import ask_serve, print_clients, show_clients
from binlog2s3.serve.status import ClientStatus, ServeStatus, applications
from binlog2s3.status.ask import Unanswered
from binlog2s3.status.http import Listener

REPLICA = ClientStatus(
    number=1,
    user="replica",
    host="10.0.0.7",
    kind="replica",
    server_id=42,
    uuid="3e11fa47-71ca-11e1-9e33-c80aa9429562",
    state="sending",
    binlog="b.000007",
    position=1234,
    behind_bytes=5 << 20,
    sent_bytes=3 << 30,
    since=1767355200.5,
)
TOOL = replace(
    REPLICA, number=2, user="cdc", kind="client", server_id=0, state="connected", binlog=""
)
STATUS_OF = ServeStatus(
    source="orders-primary",
    flavour="mysql",
    server_version="8.4.3",
    first="b.000001",
    last="b.000007",
    whole=28401,
    problem="",
    error="",
    clients=(REPLICA, TOOL),
    refused={"password": 3},
    sent_bytes=3 << 30,
    fetched_bytes=1 << 30,
)
DOCUMENT = {"healthy": True, **asdict(STATUS_OF)}
Serving = Callable[[Callable[[socket.socket], object]], str]


@pytest.fixture
def serving() -> Iterator[Serving]:
    """A URL at which this function answers one connection."""
    threads: list[threading.Thread] = []
    doors: list[socket.socket] = []

    def listen(act: Callable[[socket.socket], object]) -> str:
        door = socket.create_server(("127.0.0.1", 0))
        doors.append(door)

        def serve() -> None:
            with suppress(OSError):
                connection, _ = door.accept()
                with connection:
                    act(connection)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return f"http://127.0.0.1:{door.getsockname()[1]}"

    yield listen
    for door in doors:
        door.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def replying(head: bytes, body: bytes) -> Callable[[socket.socket], object]:
    """Answers a request with this."""

    def act(connection: socket.socket) -> None:
        connection.recv(4096)
        length = f"\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + length + body)

    return act


def greeting(data: bytes) -> Callable[[socket.socket], object]:
    """Speaks first, and then waits for more than it gets."""

    def act(connection: socket.socket) -> None:
        connection.sendall(data)
        while connection.recv(4096):
            pass

    return act


def ill(document: object) -> Callable[[socket.socket], object]:
    return replying(b"HTTP/1.1 200 OK", json.dumps(document).encode())


def printed(status: ServeStatus) -> list[str]:
    out = StringIO()
    print_clients(status, Plain(out))
    return out.getvalue().splitlines()


@pytest.mark.parametrize("path", ["", "/", "/status", "/status/"])
def test_what_serve_answers_is_understood(path: str) -> None:
    """By the listener of `serve` itself; the URL may name its root or /status."""
    listener = Listener(applications(lambda: STATUS_OF, None), option="--x")
    port = listener.listen_tcp("127.0.0.1", 0)
    try:
        document, status = ask_serve(f"http://localhost:{port}{path}")
    finally:
        listener.close()
    assert status == STATUS_OF
    assert document == json.loads(json.dumps(DOCUMENT))


def test_the_path_and_the_host_are_sent(serving: Serving) -> None:
    """A proxy may have `serve` below a path."""
    heard: list[bytes] = []

    def act(connection: socket.socket) -> None:
        heard.append(connection.recv(4096))
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

    url = serving(act)
    with pytest.raises(Unanswered, match="answers 404"):
        ask_serve(f"{url}/serve/orders/")
    host = url.removeprefix("http://")
    assert heard == [f"GET /serve/orders/status HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()]


def test_the_table() -> None:
    """A row for each client; of one that has asked for nothing, no place."""
    assert printed(STATUS_OF) == [
        "orders-primary  mysql 8.4.3  b.000001 to b.000007:28401",
        "refused connections: 3 (password)",
        "",
        "  kind     user     host      server id  state      position        behind     sent",
        "  replica  replica  10.0.0.7         42  sending    b.000007:1234  5.0 MiB  3.0 GiB",
        "  client   cdc      10.0.0.7          -  connected  -                    -  3.0 GiB",
    ]


def test_no_clients_and_what_is_wrong() -> None:
    """Both are said; an empty archive has no binlogs to name."""
    empty = replace(
        STATUS_OF,
        clients=(),
        refused={},
        first="",
        last="",
        whole=0,
        problem="a binlog is missing",
        error="the store does not answer",
    )
    assert printed(empty) == [
        "orders-primary  mysql 8.4.3  nothing yet",
        "critical: a binlog is missing",
        "critical: the store does not answer",
        "",
        "no clients",
    ]


def test_a_narrow_terminal() -> None:
    """Every client keeps all that is known of it, in two lines."""
    out = StringIO()
    print_clients(STATUS_OF, Coloured(Console(file=out, width=60, _environ={})))
    text = " ".join(out.getvalue().split())
    assert "b.000007:1234" in text
    assert "3.0 GiB" in text


def test_json_is_the_document(serving: Serving) -> None:
    """As it came, with what this version does not know."""
    out = StringIO()
    newer = DOCUMENT | {"newer": [1]}
    show_clients(serving(ill(newer)), out, as_json=True)
    assert json.loads(out.getvalue()) == json.loads(json.dumps(newer))


WRONG: list[tuple[Callable[[socket.socket], object], str]] = [
    (replying(b"HTTP/1.1 200 OK\r\nContent-Type: text/html", b"<html>hi</html>"), "is not `binlog"),
    (replying(b"HTTP/1.1 301 Moved", b"<html>"), "answers 301"),
    (replying(b"HTTP/1.1 503 Busy", b"the status could not\nbe made"), "503: the status could not"),
    (greeting(b"J\0\0\0\n8.4.3\0"), "is not `binlog2s3 serve`"),
    (replying(b"", b"{}"), "is not `binlog2s3"),
    (lambda connection: connection.recv(4096), "is not `binlog2s3 serve`"),
    (ill([]), "Expected `object`, got `array`"),
    (ill({"source": "orders", "state": "streaming"}), "missing required field"),
    (ill(DOCUMENT | {"clients": [[]]}), "got `array` - at `$.clients[0]`"),
    (ill(DOCUMENT | {"clients": [{}]}), "missing required field `number`"),
    (ill(DOCUMENT | {"refused": {"password": "x"}}), "got `str` - at `$.refused"),
    (ill(DOCUMENT | {"whole": True}), "got `bool` - at `$.whole`"),
    (replying(b"HTTP/1.1 200 OK", b"[" * 100_000), "is not `binlog2s3 serve` of this version"),
    (replying(b"HTTP/1.1 200 OK", b'{"clients": [], "whole": ' + b"9" * 5000 + b"}"), "version"),
]


@pytest.mark.parametrize(("act", "why"), WRONG, ids=[why for _, why in WRONG])
def test_what_is_no_serve(
    serving: Serving, act: Callable[[socket.socket], object], why: str
) -> None:
    """Named as such, with the URL, on one line, and with what to look at."""
    url = serving(act)
    with pytest.raises(ArchiveError) as caught:
        show_clients(url, StringIO(), as_json=True)
    text = str(caught.value)
    assert url in text
    assert why in text
    assert len(text) < 500
    assert "\n" not in text
    assert "--status-listen" in caught.value.hint
    assert caught.value.exit_code == 7


def test_an_answer_without_end_is_cut_off(serving: Serving) -> None:
    """At 64 MiB, whatever it says its length is."""

    def act(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n")
        with suppress(OSError):
            while True:
                connection.sendall(b" " * (1 << 20))

    with pytest.raises(Unanswered, match="too long: more than 64 MiB"):
        ask_serve(serving(act), timeout_seconds=60)


def test_one_that_is_silent_or_drips(serving: Serving) -> None:
    """The time is for the whole answer."""
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not ended.wait(0.05):
                connection.sendall(b"x")

    for act in (lambda _: ended.wait(30), drip):
        with pytest.raises(ArchiveError, match=r"no answer within 0\.3 s from http") as caught:
            show_clients(serving(act), StringIO(), as_json=False, timeout_seconds=0.3)
        assert caught.value.transient
    ended.set()


def test_nobody_listens() -> None:
    """The reason is the system's."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    with pytest.raises(ArchiveError, match="connection refused") as caught:
        show_clients(f"http://127.0.0.1:{port}", StringIO(), as_json=False)
    assert caught.value.transient
    with pytest.raises(ArchiveError, match="name") as caught:
        show_clients("http://no-such-host.invalid:1", StringIO(), as_json=False)
    assert not caught.value.transient


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(name=st.sampled_from([*DOCUMENT, *asdict(REPLICA)]), value=JSON)
@example(name="host", value="a\x1b[31m\nb")
def test_any_value_is_shown_or_refused(name: str, value: object) -> None:
    """No other error than the one for a stranger, and nothing that a terminal obeys."""
    document: dict[str, Any] = json.loads(json.dumps(DOCUMENT))
    place = document if name in document else document["clients"][0]
    place[name] = value
    try:
        status = converted(json.loads(json.dumps(document)), ServeStatus)
    except ValueError:
        return
    assert all(line.isprintable() for line in printed(status))


@pytest.mark.parametrize(
    ("more", "places", "problem"),
    [
        ({"serve-url": "https://x:1"}, {}, "speaks http://"),
        ({"watch": True}, {}, "--serve-url and --watch contradict"),
        ({"check": True}, {}, "--serve-url and --check contradict"),
        ({"source": "orders"}, {}, "--serve-url and --source contradict"),
        ({"source": "orders"}, {"source": "x.toml: source"}, ""),
    ],
)
def test_what_may_be_asked_for(more: dict[str, Any], places: dict[str, str], problem: str) -> None:
    """One look at one `serve`; what stands in the streamer's file does not matter."""
    config, problems = STATUS.build(Given({"serve-url": "http://x:1", **more}, places))
    if problem:
        assert [problem in one for one in problems] == [True], problems
    else:
        assert problems == []
        assert config is not None
        assert config.serve_url == "http://x:1"
