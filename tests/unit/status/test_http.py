"""The endpoint: three renderings of one Status for whoever asks, and nobody holds anything up."""

import http.client
import io
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal

import pytest

from binlog2s3.errors import ConfigError, SpoolError
from binlog2s3.status import ask as client
from binlog2s3.status import http as endpoint
from binlog2s3.status.ask import SOCKET, Unanswered
from binlog2s3.status.http import CONNECTIONS, STALE_SECONDS, Listener, applications
from binlog2s3.status.model import Lag, Status, Trouble, document
from binlog2s3.status.page import ReportPage
from tests.waiting import wait_until

Serve = Callable[..., Listener]
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
WELL = Status(
    source="orders",
    target="s3://acme/prod",
    seen_from="daemon",
    at=AT,
    state="streaming",
    lag=Lag(bytes=12, transactions=1, seconds=0.5),
)
ask = partial(client.ask, timeout_seconds=60.0)
ask_health = partial(client.ask_health, timeout_seconds=60.0)
PAUSED = Trouble(code="paused", level="critical", text="the spool\nhas no \x1b[31mroom")
HEARTBEAT = Trouble(code="heartbeat", level="warning", text="late")


def said(found: Status | Unanswered) -> tuple[str, str]:
    """Why there is no answer."""
    assert isinstance(found, Unanswered)
    return found.kind, str(found)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes listeners that are closed afterwards; their clock stands at AT unless told else."""
    with ExitStack() as made:

        def make(
            current: Callable[[], Status] = lambda: WELL,
            clock: Callable[[], datetime] = lambda: AT,
            request_seconds: float = 600.0,
        ) -> Listener:
            listener = Listener(
                applications(current, page=ReportPage(()), clock=clock),
                request_seconds=request_seconds,
            )
            made.callback(listener.close)
            return listener

        yield make


def request(
    port: int, path: str, method: str = "GET", body: bytes | None = None, host: str = "127.0.0.1"
) -> tuple[int, dict[str, str], bytes]:
    """Code, headers and body of an answer."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    try:
        connection.request(method, path, body=body)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def is_well(port: int) -> bool:
    """Whether /health is 200; not if we are so slow that we are let go ourselves."""
    try:
        return request(port, "/health")[0] == 200
    except (ConnectionError, http.client.HTTPException):
        return False


def raw(port: int, sent: bytes, *, end: bool = False) -> bytes:
    """All that comes back for these bytes; `end`: nothing more will be sent."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        if end:
            client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(4096), b""))


def test_health_is_a_short_document(serve: Serve) -> None:
    """State, since when it is so, the lag, and the troubles' own words."""
    port = serve(lambda: replace(WELL, troubles=(HEARTBEAT,))).listen_tcp("127.0.0.1", 0)
    code, headers, body = request(port, "/health")
    assert (code, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body) == {
        "healthy": True,
        "severity": "warning",
        "state": "streaming",
        "source": "orders",
        "at": "2026-01-02T03:04:05.000000Z",
        "lag_seconds": 0.5,
        "troubles": [{"code": "heartbeat", "level": "warning", "text": "late", "hint": ""}],
    }


@pytest.mark.parametrize(
    ("code", "level", "health", "live"),
    [
        ("stuck", "critical", 503, 503),
        ("stuck", "warning", 200, 200),
        ("source", "critical", 503, 200),  # others are away, which no restart mends
    ],
)
def test_what_is_critical_is_503(
    serve: Serve,
    code: str,
    level: Literal["critical", "warning"],
    health: int,
    live: int,
) -> None:
    """/health for all that is critical, the worst first; /live where it hangs."""
    trouble = replace(PAUSED, code=code, level=level, text="for 40 s")
    port = serve(lambda: replace(WELL, troubles=(HEARTBEAT, trouble))).listen_tcp("127.0.0.1", 0)
    found, _, body = request(port, "/health")
    assert found == health
    if health == 503:
        assert [one["code"] for one in json.loads(body)["troubles"]] == [code, "heartbeat"]
    found, _, body = request(port, "/live")
    assert found == live
    assert body == (b"for 40 s\n" if live == 503 else b"the main loop is running\n")


@pytest.mark.parametrize("seconds", [STALE_SECONDS + 1, -STALE_SECONDS - 1, STALE_SECONDS])
def test_an_old_status_is_critical_everywhere(serve: Serve, seconds: int, tmp_path: Path) -> None:
    """/health, /metrics and /status cannot disagree; also when the clock was set back."""
    now = AT + timedelta(seconds=seconds)
    listener = serve(clock=lambda: now)
    port = listener.listen_tcp("127.0.0.1", 0)
    listener.listen_socket(tmp_path)
    is_well = seconds == STALE_SECONDS
    code, _, body = request(port, "/health")
    assert code == (200 if is_well else 503)
    if not is_well:
        assert "the status is 16 s old" in json.loads(body)["troubles"][0]["text"]
    healthy = f'binlog2s3_healthy{{source="orders"}} {float(is_well)}'
    assert healthy.encode() in request(port, "/metrics")[2]
    assert request(port, "/live")[0] == code
    found = ask(tmp_path)
    assert isinstance(found, Status)
    assert found.healthy is ask_health(tmp_path)[0] is is_well


def test_metrics_are_for_prometheus(serve: Serve) -> None:
    """In its text format, with those of the process, whatever else a client asks for."""
    port = serve().listen_tcp("127.0.0.1", 0)
    assert request(port, "/metrics")[0] == 200
    wishes = (
        b"GET /metrics?name[]=x HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n"
        b"Accept: application/openmetrics-text;version=1.0.0\r\n\r\n"
    )
    head, _, body = raw(port, wishes).partition(b"\r\n\r\n")
    assert b"\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8" in head
    assert b'\nbinlog2s3_lag_bytes{source="orders"} 12.0\n' in body
    assert b"\nprocess_resident_memory_bytes " in body


def test_status_is_the_whole_document(serve: Serve) -> None:
    """A query behind the path, or the whole URL as a proxy sends it, make no difference."""
    port = serve().listen_tcp("127.0.0.1", 0)
    for target in ("/status", "/status?pretty", f"http://127.0.0.1:{port}/status"):
        code, headers, body = request(port, target)
        assert (code, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == document(WELL)


def test_each_request_gets_the_status_of_its_moment(serve: Serve) -> None:
    """Nothing is kept between two."""
    lags = iter([1, 2, 3])
    listener = serve(lambda: replace(WELL, lag=Lag(bytes=next(lags))))
    port = listener.listen_tcp("127.0.0.1", 0)
    found = [json.loads(request(port, "/status")[2])["lag"]["bytes"] for _ in range(3)]
    assert found == [1, 2, 3]


@pytest.mark.parametrize("path", ["/", "/health", "/live", "/metrics", "/status", "/nothing"])
def test_head_is_get_without_its_body(serve: Serve, path: str) -> None:
    """The same code, type and length, and not a byte behind the headers."""
    port = serve().listen_tcp("127.0.0.1", 0)
    code, headers, body = request(port, path)
    assert int(headers["Content-Length"]) == len(body) > 0
    head, _, rest = raw(port, f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).partition(
        b"\r\n\r\n"
    )
    assert rest == b""
    assert head.split()[1] == str(code).encode()
    assert f"Content-Type: {headers['Content-Type']}".encode() in head
    assert b"Content-Length: " in head


@pytest.mark.parametrize("path", ["/nothing", "/health/", "/metrics/x", "*", "http://[/health"])
def test_other_paths_are_not_found(serve: Serve, path: str) -> None:
    """404, with what there is."""
    port = serve().listen_tcp("127.0.0.1", 0)
    head, _, body = raw(port, f"GET {path} HTTP/1.1\r\n\r\n".encode()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert body == b"the paths are /, /health, /live, /metrics and /status\n"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_not_allowed(serve: Serve, method: str) -> None:
    """405 that arrives, though a body was sent that nobody reads."""
    port = serve().listen_tcp("127.0.0.1", 0)
    code, headers, _ = request(port, "/status", method, b"x" * 50_000)
    assert (code, headers["Allow"]) == (405, "GET, HEAD")


def test_a_body_that_comes_late_is_taken(serve: Serve) -> None:
    """Nobody reads it, and the connection is not reset for that: a reset may undo the answer."""
    port = serve().listen_tcp("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"POST /status HTTP/1.1\r\nContent-Length: 20000\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
        for _ in range(2):
            client.sendall(b"x" * 10_000)
            assert client.recv(1) == b""
    assert answer.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    ("sent", "end"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", False),  # a TLS client's hello
        (b"\r\n\r\n", False),
        (b"GET /health\r\n\r\n", False),
        (b"GET /health HTTP/2.0\r\n\r\n", False),
        (b"GET  /health HTTP/1.1\r\n\r\n", False),
        (b"get /health HTTP/1.1\r\n\r\n", False),
        (b"GET /hea lth HTTP/1.1\r\n\r\n", False),
        (b"\xff\xfe\x00\n\n", False),
        (b"GET /hea", True),  # and no more comes
    ],
)
def test_garbage_is_a_bad_request(serve: Serve, sent: bytes, *, end: bool) -> None:
    """400, and the next one is answered."""
    port = serve().listen_tcp("127.0.0.1", 0)
    assert raw(port, sent, end=end).startswith(b"HTTP/1.1 400 ")
    assert request(port, "/health")[0] == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X-Header: x\r\n" * 100_000 + b"\r\n",
    ],
    ids=["line", "headers"],
)
def test_a_request_that_does_not_end_is_cut(serve: Serve, sent: bytes) -> None:
    """431 after some kilobytes; what comes behind is not kept."""
    port = serve().listen_tcp("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        answer = b""
        try:
            client.sendall(sent)
            answer = client.recv(4096)
        except ConnectionError:
            pass  # it was closed while we still sent
    assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert raw(port, sent[:9000]).startswith(b"HTTP/1.1 431 ")
    assert request(port, "/health")[0] == 200


def test_a_status_that_cannot_be_made_is_an_answer(
    serve: Serve, log: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """503 with one line, a warning in the log, no traceback; and the listener goes on."""

    def fail() -> Status:
        raise KeyError("no\nstatus")

    port = serve(fail).listen_tcp("127.0.0.1", 0)
    for path in ("/health", "/metrics", "/status"):
        code, headers, body = request(port, path)
        assert (code, headers["Content-Type"]) == (503, "text/plain; charset=utf-8")
        assert body == b"the status could not be made: KeyError: 'no\\nstatus'\n"
    assert request(port, "/nothing")[0] == 404
    assert [line["message"] for line in lines(log) if line["level"] == "warning"] == [
        "status could not be made"
    ] * 3
    assert capfd.readouterr() == ("", "")


def lines(log: io.StringIO) -> list[dict[str, str]]:
    return [json.loads(line) for line in log.getvalue().splitlines()]


def test_a_silent_client_is_let_go(serve: Serve, log: io.StringIO) -> None:
    """After the deadline, and dripping bytes does not move it."""
    port = serve(request_seconds=0.5).listen_tcp("127.0.0.1", 0)
    with (
        socket.create_connection(("127.0.0.1", port), timeout=60) as silent,
        socket.create_connection(("127.0.0.1", port), timeout=60) as dripping,
    ):

        def drip() -> bool:
            try:
                dripping.sendall(b"x")
            except ConnectionError:
                return True
            return False

        assert silent.recv(1) == b""
        wait_until(drip, what="the one that drips to be let go", interval=0.1)
    assert [line["message"] for line in lines(log)].count("no request") == 2
    assert wait_until(lambda: is_well(port), what="an answer")


def test_a_client_that_does_not_read_is_let_go(serve: Serve, log: io.StringIO) -> None:
    """An answer larger than what the kernel takes has its deadline, too."""
    huge = replace(WELL, troubles=(replace(HEARTBEAT, text="x" * 20_000_000),))
    port = serve(lambda: huge, request_seconds=0.5).listen_tcp("127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        wait_until(lambda: '"no answer"' in log.getvalue(), what="it to be let go")


def test_silent_clients_hold_up_nobody_for_good(serve: Serve) -> None:
    """Twice as many as are served at once: the next one is answered when their time is over."""
    port = serve(request_seconds=0.5).listen_tcp("127.0.0.1", 0)
    with ExitStack() as held:
        for _ in range(2 * CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        assert wait_until(lambda: is_well(port), what="an answer")


def test_no_more_than_the_limit_are_served_at_once(serve: Serve) -> None:
    """So many statuses are asked for, and the next waits until one of them is there."""
    gate, lock, running, most = threading.Event(), threading.Lock(), 0, 0

    def current() -> Status:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        gate.wait(600)
        with lock:
            running -= 1
        return WELL

    port = serve(current).listen_tcp("127.0.0.1", 0)
    codes: list[int] = []
    askers = [
        threading.Thread(target=lambda: codes.append(request(port, "/health")[0]))
        for _ in range(CONNECTIONS + 8)
    ]
    for asker in askers:
        asker.start()
    wait_until(lambda: running == CONNECTIONS, what="all slots to be taken")
    gate.set()
    for asker in askers:
        asker.join(60)
    assert codes == [200] * len(askers)
    assert most == CONNECTIONS


def test_the_socket_is_open_to_its_owner_alone(serve: Serve, tmp_path: Path) -> None:
    """0600, whatever the umask; the Status comes back as it was."""
    mask = os.umask(0)
    try:
        serve().listen_socket(tmp_path)
    finally:
        os.umask(mask)
    mode = (tmp_path / SOCKET).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    assert ask(tmp_path) == WELL


@pytest.mark.parametrize(
    ("troubles", "healthy", "text"),
    [
        ((), True, ""),
        ((HEARTBEAT,), True, "; late"),  # not well, yet healthy
        ((PAUSED, HEARTBEAT), False, "; the spool has no [31mroom"),  # commands no terminal
    ],
)
def test_what_is_wrong_is_told_on_one_line(
    serve: Serve,
    tmp_path: Path,
    troubles: tuple[Trouble, ...],
    healthy: bool,
    text: str,
) -> None:
    """A state that is no good one does not stand there without a reason."""
    serve(lambda: replace(WELL, troubles=troubles)).listen_socket(tmp_path)
    assert ask_health(tmp_path) == (healthy, f"orders: streaming{text}")


@pytest.mark.parametrize("length", [106, 107, 108, 109, 300])
def test_a_spool_with_a_long_path(serve: Serve, tmp_path: Path, length: int) -> None:
    """As long as an address of a socket can be, and longer; also for the one after it."""
    room = length - len(os.fspath(tmp_path)) - len(SOCKET) - 2
    if room < 1:
        pytest.skip(f"{tmp_path} is too long for this test")
    directory = tmp_path / ("d" * room if length < 200 else f"{'d' * 100}/{'e' * (room - 101)}")
    directory.mkdir(parents=True)
    assert len(os.fspath(directory / SOCKET)) == length
    for _ in range(2):
        listener = serve()
        listener.listen_socket(directory)
        assert ask(directory) == WELL
        assert ask_health(directory)[0]
        listener.close()
        assert not (directory / SOCKET).exists()
        assert said(ask(directory)) == ("absent", f"no streamer answers on {directory / SOCKET}")


def test_the_socket_of_a_dead_streamer_is_replaced(serve: Serve, tmp_path: Path) -> None:
    """Before that, nobody answers there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(os.fspath(tmp_path / SOCKET))
        dead.listen(1)
    assert said(ask(tmp_path)) == ("refused", f"no streamer answers on {tmp_path / SOCKET}")
    assert ask_health(tmp_path) == (False, f"no streamer answers on {tmp_path / SOCKET}")
    serve().listen_socket(tmp_path)
    assert ask(tmp_path) == WELL


def test_a_socket_that_was_deleted_comes_again(serve: Serve, tmp_path: Path) -> None:
    """With what else was in the spool; while its directory is gone, nothing fails."""
    directory = tmp_path / "spool"
    directory.mkdir()
    listener = serve()
    listener.keep()
    listener.listen_socket(directory)
    first = (directory / SOCKET).lstat().st_ino
    listener.keep()
    assert (directory / SOCKET).lstat().st_ino == first
    (directory / SOCKET).unlink()
    directory.rmdir()
    listener.keep()
    assert said(ask(directory)) == ("absent", f"no streamer answers on {directory / SOCKET}")
    directory.mkdir()
    listener.keep()
    assert ask(directory) == WELL
    assert len(listener._doors) == 1
    listener.close()
    assert not (directory / SOCKET).exists()


def test_two_streamers_on_one_socket(serve: Serve, tmp_path: Path) -> None:
    """The second is refused, and its end takes nothing from the first."""
    serve().listen_socket(tmp_path)
    second = serve(lambda: replace(WELL, source="other"))
    with pytest.raises(SpoolError, match="another streamer answers on"):
        second.listen_socket(tmp_path)
    second.close()
    assert ask(tmp_path) == WELL


def test_the_end_leaves_the_socket_of_a_later_streamer(serve: Serve, tmp_path: Path) -> None:
    """If somebody removed the file and another streamer made its own."""
    first = serve()
    first.listen_socket(tmp_path)
    (tmp_path / SOCKET).unlink()
    serve(lambda: replace(WELL, source="later")).listen_socket(tmp_path)
    first.close()
    found = ask(tmp_path)
    assert isinstance(found, Status)
    assert found.source == "later"


def test_what_is_no_socket_stays(serve: Serve, tmp_path: Path) -> None:
    """A file under that name is somebody's."""
    (tmp_path / SOCKET).write_text("mine")
    with pytest.raises(SpoolError, match="exists and is not a socket"):
        serve().listen_socket(tmp_path)
    assert (tmp_path / SOCKET).read_text() == "mine"
    with pytest.raises(SpoolError, match="no such file or directory"):
        serve().listen_socket(tmp_path / "nowhere")


def test_a_socket_of_somebody_else(serve: Serve, tmp_path: Path) -> None:
    """It says that it is not permitted; also where the spool itself is shut."""
    serve().listen_socket(tmp_path)
    me = os.geteuid()
    for shut in (tmp_path / SOCKET, tmp_path):
        shut.chmod(0)
        if me == 0:
            os.seteuid(65534)  # root may do everything
        try:
            found = ask(tmp_path)
        finally:
            os.seteuid(me)
            tmp_path.chmod(0o700)
        assert said(found) == ("unclear", f"permission denied: {tmp_path / SOCKET}")


@pytest.fixture
def answer(tmp_path: Path) -> Iterator[Callable[[bytes], None]]:
    """Answers whoever connects to the socket with these bytes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(os.fspath(tmp_path / SOCKET))
        listening.listen(1)
        threads: list[threading.Thread] = []

        def once(sent: bytes) -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(sent)

        def start(sent: bytes) -> None:
            threads.append(threading.Thread(target=once, args=(sent,), daemon=True))
            threads[-1].start()

        yield start
        for thread in threads:
            thread.join(60)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (b"", "is not a streamer"),
        (b"SSH-2.0-OpenSSH\r\n", "is not a streamer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", "is incomplete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "is not a streamer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "is not a streamer of this version"),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"format":9}', "is not a streamer"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
            "is not a streamer of this version",
        ),
        (b"HTTP/1.1 503 x\r\nContent-Length: 4\r\n\r\nbusy", "busy"),
    ],
)
def test_what_is_no_streamer(
    answer: Callable[[bytes], None], tmp_path: Path, sent: bytes, why: str
) -> None:
    """Named as such, by both questions."""
    answer(sent)
    kind, text = said(ask(tmp_path))
    assert kind == "unclear"
    assert why in text
    answer(sent)
    healthy, text = ask_health(tmp_path)
    assert not healthy
    assert why.removesuffix(" of this version") in text


def test_a_socket_that_is_silent(tmp_path: Path) -> None:
    """A process that was stopped takes connections until its queue is full, and none after."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening, ExitStack() as held:
        listening.bind(os.fspath(tmp_path / SOCKET))
        listening.listen(0)
        why = f"no answer within 0.2 s on {tmp_path / SOCKET}"
        assert said(ask(tmp_path, timeout_seconds=0.2)) == ("hangs", why)
        for _ in range(4):
            client = held.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            client.setblocking(False)
            client.connect_ex(os.fspath(tmp_path / SOCKET))
        assert said(ask(tmp_path, timeout_seconds=0.2)) == ("hangs", why)
        assert ask_health(tmp_path, timeout_seconds=0.2) == (False, why)


def test_a_socket_that_drips(tmp_path: Path) -> None:
    """The time is for the whole answer, not for each piece of it."""
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection, suppress(ConnectionError):
            for _ in range(2000):
                connection.sendall(b"x")
                if ended.wait(0.1):
                    break

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(os.fspath(tmp_path / SOCKET))
        listening.listen(1)
        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        found = ask(tmp_path, timeout_seconds=0.5)
        ended.set()
        dripping.join(60)
    assert said(found) == ("hangs", f"no answer within 0.5 s on {tmp_path / SOCKET}")


def test_many_ask_at_once(serve: Serve, tmp_path: Path) -> None:
    """By the socket and by TCP, each gets a whole answer."""
    gtids = replace(WELL, target="s3://" + "x" * 300_000)
    listener = serve(lambda: gtids)
    port = listener.listen_tcp("127.0.0.1", 0)
    listener.listen_socket(tmp_path)
    found: list[object] = []

    def look() -> None:
        for _ in range(5):
            found.append(ask(tmp_path))
            found.append(json.loads(request(port, "/status")[2]))

    askers = [threading.Thread(target=look) for _ in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(60)
    assert len(found) == 120
    assert all(one in (gtids, document(gtids)) for one in found)


def test_after_the_end_nobody_answers(serve: Serve, tmp_path: Path) -> None:
    """The port is free, the socket's file gone, its threads ended; a second end is none."""
    listener = serve()
    port = listener.listen_tcp("127.0.0.1", 0)
    listener.listen_socket(tmp_path)
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        request(port, "/health")
    assert not (tmp_path / SOCKET).exists()
    wait_until(
        lambda: not [one for one in threading.enumerate() if one.name.startswith("http-")],
        what="the threads to end",
    )
    serve().listen_tcp("127.0.0.1", port)
    listener.close()


def test_a_port_that_is_taken(serve: Serve) -> None:
    """It names the option and the port."""
    port = serve().listen_tcp("127.0.0.1", 0)
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}: .*in use"):
        serve().listen_tcp("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "x" * 300, ".", "a..b"])
def test_a_host_that_is_none_of_ours(serve: Serve, host: str) -> None:
    """An error of the configuration, whatever the resolver says."""
    with pytest.raises(ConfigError, match="--metrics-listen"):
        serve().listen_tcp(host, 9275)


@pytest.mark.parametrize("host", ["::1", "::", ""])
def test_ipv6(serve: Serve, host: str) -> None:
    """Its own loopback address, all of them, and all of both families."""
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    port = serve().listen_tcp(host, 0)
    assert request(port, "/health", host="::1")[0] == 200


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("host", ["", "0.0.0.0", "localhost"])
def test_all_addresses_of_a_host(serve: Serve, host: str) -> None:
    """On a machine without IPv6, too, where `localhost` may have an address that it lacks."""
    port = serve().listen_tcp(host, 0)
    assert request(port, "/health")[0] == 200


def test_an_address_that_the_host_lacks_is_passed_over() -> None:
    """As long as another one of the name can be had; none at all is an error."""
    lacking = (socket.AF_INET, ("192.0.2.1", 0))
    for listening in endpoint._bound([lacking, (socket.AF_INET, ("127.0.0.1", 0))]):
        listening.close()
    with pytest.raises(OSError, match=r"(?i)cannot assign"):
        endpoint._bound([lacking])


def test_the_log_tells_who_asked_what(serve: Serve, log: io.StringIO) -> None:
    """At debug level alone, a request's path as a field."""
    port = serve().listen_tcp("127.0.0.1", 0)
    request(port, "/metrics")
    raw(port, b"GET /\x1b[31m HTTP/1.1\r\n\r\n")
    found = lines(log)
    assert [line["message"] for line in found] == ["listening", "answered", "answered"]
    assert (found[0]["level"], found[1]["level"]) == ("info", "debug")
    assert (found[1]["method"], found[1]["path"], found[1]["code"]) == ("GET", "/metrics", 200)


def test_who_only_asks_does_not_load_what_answers() -> None:
    """A container's health check runs each few seconds."""
    code = "import sys, binlog2s3.status.ask; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"
