"""Notifies the service manager: ready, a status line, stopping, and the watchdog.

The main loop feeds the watchdog, the board's thread sends the status. The protocol is sd_notify(3):
one datagram per message, to the socket in NOTIFY_SOCKET.

Law: nothing waits for the service manager. A message that its socket does not take at once is sent
at the next opportunity. The variables are removed from the environment, so that no child process
inherits them.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, MutableMapping
from concurrent.futures import wait
from contextlib import closing, suppress
from typing import TypeVar

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import duration_text, one_line, size_text
from binlog2s3.log import Log
from binlog2s3.status.model import Status
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.waiting import Stop
from binlog2s3.workers import asked

_log = Log("systemd")
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_FEEDS = 6.0  # per watchdog interval; systemd recommends at least two
_STATUS_SECONDS = 0.9
_MOST_TEXT = 300
_POLL_SECONDS = 0.05
_READY_SECONDS = 10.0  # after this time the service manager no longer waits for the start
_STILL_SECONDS = 120.0  # longer than any request or query of a start may take
_LEAVE_SECONDS = 7.0
T = TypeVar("T")


class Notifier:
    """The connection to the service manager; without an address nothing is sent. Thread-safe.

    `watchdog_seconds`: the service manager kills this process after so long without a message;
    None: it has no watchdog.
    """

    def __init__(
        self,
        address: str = "",
        watchdog_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._shown = ("", -_STATUS_SECONDS)
        self._fed_at: float | None = None
        self._failed = False

    def ready(self) -> None:
        """Send that the configuration is valid and the loops run; once."""
        self._tell("READY=1")

    def stopping(self) -> None:
        """Send that the process is stopping; once."""
        self._tell("STOPPING=1\nSTATUS=stopping")

    def show(self, status: Status) -> None:
        """Send the status line if it has changed, at most about once a second.

        Nothing is sent after `stopping`.
        """
        if not self._address:
            return
        text, now = line(status), self._clock()
        with self._lock:
            said, at = self._shown
            ending = any(message.startswith("STOPPING") for message in self._told)
            if text == said or now - at < _STATUS_SECONDS or ending:
                return
            if self._send(f"STATUS={text}"):
                self._shown = (text, now)

    def feed(self) -> None:
        """Feed the watchdog, a few times per interval. Called each time the loop has run."""
        seconds, now = self.watchdog_seconds, self._clock()
        if seconds is None:
            return
        with self._lock:
            due = self._fed_at is None or now - self._fed_at >= seconds / _FEEDS
            if due and self._send("WATCHDOG=1"):
                self._fed_at = now

    def _tell(self, message: str) -> None:
        with self._lock:
            if message not in self._told and self._send(message):
                self._told.add(message)

    def _send(self, message: str) -> bool:
        """Whether the message was taken; True if there is no service manager."""
        if not self._address:
            return True
        try:
            with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as out:
                out.setblocking(False)
                out.sendto(message.encode("utf-8", "replace"), self._address)
        except BlockingIOError:
            return False  # its queue is full: sent again later
        except OSError as error:
            if not self._failed:
                self._failed = True
                _log.warning("the service manager cannot be notified", error=error)
            return False
        return True


class Alive:
    """Tells the service manager that the loop runs, as long as the watch's thread runs, too."""

    def __init__(self, notifier: Notifier, watch: Watch) -> None:
        self._notifier = notifier
        self._watch = watch

    def tell(self) -> None:
        """The loop has run, or waits for an answer of the store."""
        self._notifier.ready()
        if time.monotonic() - self._watch.round_at < self._watch.patience_seconds:
            self._notifier.feed()


def of_environment(environment: MutableMapping[str, str], pid: int | None = None) -> Notifier:
    """The service manager in these variables, which are removed from `environment`.

    A watchdog of another process is ignored. Only Unix sockets are supported.
    """
    address, usec, of_pid = (environment.pop(name, "") for name in _VARIABLES)
    if not address.startswith(("/", "@")):
        if address:
            _log.warning("the service manager cannot be notified", error=f"NOTIFY_SOCKET={address}")
        return Notifier()
    ours = not of_pid or of_pid == str(os.getpid() if pid is None else pid)
    seconds = int(usec) / 1e6 if ours and usec.isdecimal() and int(usec) else None
    return Notifier(address, seconds)


def attend(
    step: Callable[[], T],
    stop: Stop,
    notifier: Notifier,
    waits: Callable[[], bool],
    *,
    leave_seconds: float = _LEAVE_SECONDS,
    still_seconds: float = _STILL_SECONDS,
) -> T | None:
    """Run a step that may take minutes or wait for hours; its result, or it raises its error.

    The step has its own thread, because a host name lookup cannot be interrupted. The watchdog is
    fed as long as that thread does anything: its CPU time shows it. READY is sent when the step
    `waits` or takes long. Returns None if `stop` is set and the step does not end within
    `leave_seconds`, and if a signal made it fail.
    """
    clocks: list[int] = []

    def begin() -> T:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        return step()

    begun = used_at = time.monotonic()
    used, stopped_at = 0.0, None
    try:
        answer = asked(begin, "start")
        while not wait([answer], _POLL_SECONDS).done:
            now = time.monotonic()
            if stop.event.is_set():
                notifier.stopping()
                stopped_at = stopped_at or now
                if now - stopped_at > leave_seconds:
                    _log.warning("the startup hangs", for_seconds=round(now - stopped_at, 1))
                    return None
            with suppress(OSError):  # the thread has ended
                if clocks and (spent := time.clock_gettime(clocks[0])) > used:
                    used, used_at = spent, now
            if now - used_at < still_seconds:
                notifier.feed()
            if waits() or now - begun > _READY_SECONDS:
                notifier.ready()
        if stop.event.is_set():
            notifier.stopping()
        return answer.result()
    except Binlog2s3Error:
        if stop.signal:
            return None
        raise


def line(status: Status) -> str:
    """A status in a few words, which `systemctl status` shows beside the unit."""
    texts = {trouble.code: trouble.text for trouble in status.troubles}
    server = "MariaDB" if status.server.flavour == "mariadb" else "MySQL"
    waits = [who for who, code in (("the store", "store"), (server, "source")) if code in texts]
    why = "; ".join(texts[code] for code in ("store", "source") if code in texts)
    if status.state in ("store unreachable", "source unreachable") and waits:
        text = f"waiting for {' and '.join(waits)}: {why}"
    elif status.state in ("streaming", "catching up", "idle"):
        text = _streaming(status)
    else:
        text = texts.get(_CODES.get(status.state, status.state), "") or status.state
    text = one_line(text)
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 3]}..."


_CODES = {"stopped": "stopping"}


def _streaming(status: Status) -> str:
    durable, lag = status.durable, status.lag
    where = f" {durable.binlog}" if durable is not None else ""
    if lag.seconds is None:
        how = "durable position unknown"
    elif lag.seconds == 0:
        how = "all durable"
    else:
        how = f"durable {duration_text(lag.seconds)} ago"
    behind = ""
    if status.state == "catching up" and lag.bytes:
        behind = f", {size_text(lag.bytes)} behind"
    return f"{status.state}{where}, {how}{behind}"
