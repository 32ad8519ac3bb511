"""What the service manager is told, over a real socket."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import StoreError
from binlog2s3.status.model import Lag, SourceStatus, State, Status, Trouble
from binlog2s3.stream import telling as notify
from binlog2s3.stream.telling import Alive, Notifier, attend, of_environment, status_line
from binlog2s3.stream.waiting import Stop
from tests.ear import Ear
from tests.waiting import wait_until

AT = Status(
    source="orders",
    target="s3://b/p",
    seen_from="daemon",
    at=datetime(2026, 1, 2, tzinfo=UTC),
    state="streaming",
    durable=Position(binlog=BinlogName.parse("mysql-bin.000012"), offset=1000, gtid_set=""),
    lag=Lag(bytes=3 << 20, seconds=1.23),
)


class Clock:
    """Goes as it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["path", "abstract"])
def ear(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ear]:
    """Both kinds of names."""
    with Ear(tmp_path / "notify" if request.param == "path" else None) as listening:
        yield listening


def is_ready(notifier: Notifier) -> bool:
    """Whether READY was said, or nobody listens."""
    return "READY=1" in notifier._told or not notifier._address


def has_heard(ear: Ear, *messages: str) -> None:
    """Wait for all of these, and see that nothing else was said."""
    wait_until(lambda: len(ear.messages) >= len(messages), what=f"{messages}")
    assert ear.messages == list(messages)


def test_ready_and_stopping_are_said_once(ear: Ear) -> None:
    """Each in a datagram of its own, however often the program comes by."""
    notifier = Notifier(ear.address)
    assert not is_ready(notifier)
    for _ in range(3):
        notifier.ready()
    for _ in range(3):
        notifier.stopping()
    has_heard(ear, "READY=1", "STOPPING=1\nSTATUS=stopping")
    assert is_ready(notifier)


def test_the_status_is_said_when_it_changes(ear: Ear) -> None:
    """Not again while it is the same, not twice a second, and no more once the end has begun."""
    clock = Clock()
    notifier = Notifier(ear.address, clock=clock)
    idle = replace(AT, state="idle", lag=Lag(bytes=0, seconds=0.0))
    notifier.show(AT)
    notifier.show(idle)  # too soon
    clock.now += 1
    notifier.show(AT)  # the same
    notifier.show(idle)
    notifier.stopping()
    clock.now += 1
    notifier.show(AT)
    has_heard(
        ear,
        "STATUS=streaming mysql-bin.000012, durable 1.2 s ago",
        "STATUS=idle mysql-bin.000012, all durable",
        "STOPPING=1\nSTATUS=stopping",
    )


def test_the_watchdog_is_fed_some_times_in_its_interval(ear: Ear) -> None:
    """However fast the loop goes round; and never where nobody watches."""
    clock = Clock()
    notifier = Notifier(ear.address, 6.0, clock)
    for _ in range(60):
        notifier.feed()
        clock.now += 0.1
    unwatched = Notifier(ear.address, None, clock)
    unwatched.feed()
    unwatched.ready()
    wait_until(lambda: ear.messages[-1:] == ["READY=1"], what="the last message")
    fed = ear.messages.count("WATCHDOG=1")
    assert len(ear.messages) == fed + 1
    assert 5 <= fed <= 7


def test_a_full_queue_is_not_waited_for(tmp_path: Path) -> None:
    """A service manager that stands still holds nobody up; what it did not take is said again."""
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as deaf:
        deaf.bind(str(tmp_path / "deaf"))
        deaf.settimeout(60)
        clock = Clock()
        notifier = Notifier(str(tmp_path / "deaf"), 1.0, clock)
        for _ in range(5000):
            notifier.feed()
            clock.now += 1
        notifier.ready()
        assert not is_ready(notifier)
        while deaf.recv(100) == b"WATCHDOG=1":
            notifier.ready()
        assert is_ready(notifier)


def test_nobody_listens(tmp_path: Path) -> None:
    """No variable, a socket that is gone, an address that we do not know: the program goes on."""
    for environment in ({}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1234"}):
        notifier = of_environment(dict(environment))
        notifier.ready()
        notifier.show(AT)
        notifier.feed()
        assert is_ready(notifier)
    gone = Notifier(str(tmp_path / "gone"), 1.0)
    for _ in range(3):
        gone.ready()
        gone.feed()
    assert not is_ready(gone)


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        ("3000000", "", 3.0),
        ("3000000", "77", 3.0),
        ("3000000", "78", None),
        ("0", "77", None),
        ("", "", None),
        ("x", "77", None),
    ],
)
def test_the_variables_are_ours_alone(usec: str, pid: str, seconds: float | None) -> None:
    """They are taken out: no child speaks in our name; and another one's watchdog is not ours."""
    environment = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": usec, "WATCHDOG_PID": pid, "A": "b"}
    assert of_environment(environment, pid=77).watchdog_seconds == seconds
    assert environment == {"A": "b"}


def waits(state: State, server: SourceStatus = AT.server, **texts: str) -> Status:
    """A status with a warning of each of these codes."""
    troubles = [Trouble(code=code, level="warning", text=text) for code, text in texts.items()]
    return replace(AT, state=state, server=server, troubles=tuple(troubles))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (AT, "streaming mysql-bin.000012, durable 1.2 s ago"),
        (replace(AT, lag=Lag()), "streaming mysql-bin.000012, durable position unknown"),
        (replace(AT, durable=None, lag=Lag(seconds=0.0)), "streaming, all durable"),
        (
            replace(AT, state="catching up"),
            "catching up mysql-bin.000012, durable 1.2 s ago, 3.0 MiB behind",
        ),
        (waits("store unreachable", store="refused"), "waiting for the store: refused"),
        (
            waits("source unreachable", SourceStatus(flavour="mariadb"), source="down"),
            "waiting for MariaDB: down",
        ),
        (
            waits("store unreachable", source="down", store="away"),
            "waiting for the store and MySQL: away; down",
        ),
        (waits("paused", paused="the spool has no room"), "the spool has no room"),
        (replace(AT, state="starting"), "starting"),
    ],
)
def test_a_status_in_a_few_words(status: Status, text: str) -> None:
    """What `systemctl status` shows: what it does, or what it waits for."""
    assert status_line(status) == text


def test_a_status_is_one_line(ear: Ear) -> None:
    """What a server says cannot add messages of its own."""
    evil = Trouble(code="source", level="critical", text="no\nMAINPID=1\r\x1b[31mWATCHDOG=1" * 50)
    Notifier(ear.address).show(replace(AT, state="source unreachable", troubles=(evil,)))
    wait_until(lambda: ear.messages, what="the status")
    (said,) = ear.messages
    assert len(said.splitlines()) == 1
    assert len(said) < 400
    assert said.startswith("STATUS=waiting for MySQL: no MAINPID=1")


# A step that takes long


def busy(until: threading.Event) -> str:
    """Does something, as reading a large spool does, until it is told to end."""
    while not until.wait(0.001):
        sum(range(1000))
    return "done"


def test_a_step_feeds_while_it_does_something(ear: Ear) -> None:
    """And what it gives is given; a short one is not said to be ready: what comes says so."""
    notifier, end = Notifier(ear.address, 0.06), threading.Event()

    begun = time.monotonic()

    def waits() -> bool:
        if ear.lines("WATCHDOG").count("1") >= 3 or time.monotonic() - begun > 60:
            end.set()
        return False

    found = attend(lambda: busy(end), Stop(), notifier, waits)
    assert found == "done"
    assert ear.lines("WATCHDOG").count("1") >= 3
    assert not is_ready(notifier) or time.monotonic() - begun > notify._READY_SECONDS


def test_a_step_that_waits_is_ready(ear: Ear) -> None:
    """A store that is away at boot is no failed start; what it then raises is raised."""
    notifier, end = Notifier(ear.address), threading.Event()

    def wait() -> None:
        assert end.wait(60)
        raise StoreError("denied")

    def waits() -> bool:
        if is_ready(notifier):
            end.set()
        return True

    with pytest.raises(StoreError, match="denied"):
        attend(wait, Stop(), notifier, waits)


def test_a_step_that_hangs_is_not_fed(ear: Ear) -> None:
    """It takes no processor time any more: the watchdog may end it."""
    notifier, end = Notifier(ear.address, 0.06), threading.Event()
    still = threading.Event()
    counted: list[int] = []

    def silent() -> bool:
        counted.append(len(ear.messages))
        return len(counted) > 20 and len(set(counted[-20:])) == 1

    def watch() -> None:
        try:
            wait_until(lambda: len(ear.messages) > 0, what="the first one")
            wait_until(silent, what="silence")
            still.set()
        finally:
            end.set()

    watching = threading.Thread(target=watch)
    watching.start()
    attend(end.wait, Stop(), notifier, lambda: False, still_seconds=0.5)
    watching.join()
    assert still.is_set()


def test_a_step_that_cannot_be_interrupted_is_left(ear: Ear) -> None:
    """After a signal it has its time, and no more: the process must end within 10 s."""
    stop, end = Stop(), threading.Event()
    stop.event.set()
    notifier = Notifier(ear.address)
    assert attend(lambda: end.wait(200), stop, notifier, lambda: False, leave_seconds=0.2) is None
    assert not end.is_set()
    has_heard(ear, "STOPPING=1\nSTATUS=stopping")
    end.set()


def test_a_step_that_ends_after_a_signal(ear: Ear) -> None:
    """What it has done is told to whoever attends, and what it raises."""
    stop = Stop()
    stop.event.set()
    assert attend(lambda: "found", stop, Notifier(ear.address), lambda: False) == "found"

    def fail() -> None:
        raise StoreError("stopped")

    with pytest.raises(StoreError, match="stopped"):
        attend(fail, stop, Notifier(), lambda: False)
    stop.signal = signal.SIGTERM  # which made it fail: the process has not
    assert attend(fail, stop, Notifier(), lambda: False) is None


@pytest.mark.parametrize(("late", "fed"), [(500.0, True), (1100.0, False)])
def test_the_loop_is_fed_as_long_as_the_watch_goes_round(ear: Ear, late: float, fed: bool) -> None:
    """Both threads must: a watch that hangs would leave a stream that nobody holds to account."""
    watch: Any = SimpleNamespace(round_at=time.monotonic() - late, patience_seconds=1000.0)
    Alive(Notifier(ear.address, 6.0), watch).tell()
    has_heard(ear, "READY=1", *(["WATCHDOG=1"] if fed else []))


def test_nothing_is_left_in_our_own_environment() -> None:
    """As the daemon calls it: on the process's own variables."""
    os.environ["NOTIFY_SOCKET"] = "/run/nobody"
    of_environment(os.environ)
    assert "NOTIFY_SOCKET" not in os.environ
