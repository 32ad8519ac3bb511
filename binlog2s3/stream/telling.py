"""Tells others how the stream is: all outputs, the service manager, an external monitor.

A `Board` keeps the current `Status` and hands it on. The service manager (sd_notify(3): one
datagram per message, to the socket in NOTIFY_SOCKET) gets READY, a status line and STOPPING, and
the main loop feeds its watchdog. A `DeadMan` sends GET requests to the URL of a monitor
(healthchecks.io, Dead Man's Snitch, an Uptime Kuma push monitor), which raises an alarm when no
request comes.

Law: nothing waits for any of them. A message that the service manager's socket does not take at
once is sent at the next opportunity; its variables are removed from the environment, so that no
child process inherits them. A monitor is told only that something became durable or that the source
is idle. Its URL may be a secret: only its host is shown.
"""

import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, MutableMapping
from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import replace
from http.client import HTTPException
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from binlog2s3 import __version__
from binlog2s3.errors import Binlog2s3Error, ConfigError
from binlog2s3.formatting import duration_text, one_line, size_text
from binlog2s3.log import Log
from binlog2s3.status.model import Rates, Status, Totals
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.waiting import Periodic, Stop
from binlog2s3.workers import asked

_log = Log("telling")
_LOOK_SECONDS, _UNASKED_LOOK_SECONDS = 1.0, 2.0
_RATE_SECONDS = 15.0
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
_FEEDS = 6.0  # per watchdog interval; systemd recommends at least two
_STATUS_SECONDS = 0.9
_MOST_TEXT = 300
_POLL_SECONDS = 0.05
_READY_SECONDS = 10.0  # after this time the service manager no longer waits for the start
_STILL_SECONDS = 120.0  # longer than any request or query of a start may take
_LEAVE_SECONDS = 7.0
_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 4096
T = TypeVar("T")


class Board:
    """The latest Status, which a thread of its own makes by calling `look`, at each second or two.

    So a main loop that hangs does not stop it.
    """

    def __init__(
        self, look: Callable[[], Status], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._listeners: list[Callable[[Status], object]] = []
        self._samples: deque[tuple[float, Totals]] = deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._current = look()
        self._asked = True

    def start(self) -> None:
        Periodic("board", self._step, self._ended).start(_LOOK_SECONDS)

    def close(self) -> None:
        self._ended.set()

    def tell(self, listener: Callable[[Status], object]) -> None:
        """Call this with each Status, in the board's thread."""
        self._listeners.append(listener)

    def watch(self, look: Callable[[], Status]) -> None:
        """Call another `look` from now on."""
        with self._lock:
            self._look = look
            self._samples.clear()
        self.refresh()

    def current(self) -> Status:
        """The latest Status; about two seconds old at most, unless something hangs."""
        self._asked = True
        return self._current

    def refresh(self) -> None:
        """Make a Status now."""
        with self._lock:
            status = self._look()
            self._current = replace(status, rates=self._rates(status.totals))

    def _rates(self, totals: Totals | None) -> Rates | None:
        if totals is None:
            return None
        now, samples = self._clock(), self._samples
        samples.append((now, totals))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_SECONDS:
            samples.popleft()
        then, before = samples[0]
        window = now - then
        if window <= 0:
            return None

        def rate(name: str) -> float:
            gained: int = getattr(totals, name) - getattr(before, name)
            return round(max(0, gained) / window, 3)

        return Rates(
            window_seconds=round(window, 3),
            read_bytes=rate("read_bytes"),
            durable_bytes=rate("durable_bytes"),
            transactions=rate("transactions"),
        )

    def _step(self) -> float:
        try:
            self.refresh()
            for listener in self._listeners:
                listener(self._current)
        except Exception as error:  # noqa: BLE001 - the stream continues; /health shows the age
            _log.error("no status could be made", error)
        asked, self._asked = self._asked, False
        return _LOOK_SECONDS if asked else _UNASKED_LOOK_SECONDS


# The service manager


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
        text, now = status_line(status), self._clock()
        with self._lock:
            shown, at = self._shown
            ending = any(message.startswith("STOPPING") for message in self._told)
            if text == shown or now - at < _STATUS_SECONDS or ending:
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


def status_line(status: Status) -> str:
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


# An external monitor


def read_url(path: Path) -> str:
    """The URL in a file. Raises ConfigError, which does not contain the URL."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES + 1).decode("ascii").strip()
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and "@" not in parts.netloc
    except OSError as error:
        raise ConfigError(
            [f"--heartbeat-url-file: {path}: {(error.strerror or '').lower()}"]
        ) from None
    except ValueError:
        usable = False
    if not usable or len(text) > _MOST_BYTES or not text.isprintable() or " " in text:
        raise ConfigError(
            [f"--heartbeat-url-file: {path} does not hold a URL of the form https://host/path"],
            hint="the file must contain the URL and nothing else",
        )
    return text


class DeadMan:
    """Requests the URL in a file, at most every `interval_seconds`, when a Status shows progress.

    Silence is the alarm: nothing is sent just because the process lives.

    The file is read before each request, so that it can be changed. Requests have their own thread.
    """

    def __init__(
        self,
        path: Path,
        interval_seconds: float,
        get: Callable[[str], None] | None = None,
    ) -> None:
        read_url(path)
        self._path = path
        self._interval = interval_seconds
        self._get = get or fetch
        self._durable_bytes = 0
        self._asked_for = 0
        self._wanted = False
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        Periodic("deadman", self._step, self._ended).start()

    def close(self) -> None:
        self._ended.set()

    def tell(self, status: Status) -> None:
        """Take a Status. If it shows progress, or that everything is durable, a request is sent."""
        self._durable_bytes = status.totals.durable_bytes if status.totals else 0
        self._asked_for = min(self._asked_for, self._durable_bytes)  # 0 after standing by
        self._wanted = status.lag.seconds == 0 or self._durable_bytes > self._asked_for

    def _step(self) -> float:
        if not self._wanted:
            return min(_LOOK_SECONDS, self._interval)
        self._wanted = False
        durable = self._durable_bytes
        if self._ask():
            self._asked_for = durable
        return self._interval

    def _ask(self) -> bool:
        host = ""
        try:
            url = read_url(self._path)
            host = urlsplit(url).hostname or ""
            self._get(url)
        except (ConfigError, OSError, HTTPException, ValueError) as error:
            if not self._failing:
                _log.warning("the heartbeat URL does not answer", host=host, error=_why(error))
            self._failing = True
            return False
        if self._failing:
            _log.info("the heartbeat URL answers again", host=host)
        self._failing = False
        return True


def fetch(url: str) -> None:
    """Send one GET. Raises OSError (URLError, HTTPError), HTTPException or ValueError."""
    request = urllib.request.Request(  # noqa: S310 - `read_url` checked its scheme
        url, headers={"User-Agent": f"binlog2s3/{__version__}"}
    )
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as answer:  # noqa: S310
        answer.read(_MOST_BYTES)


def _why(error: BaseException) -> str:
    """The error as a text, without the URL."""
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, urllib.error.HTTPError):
        return f"it answers {error.code}"
    reason = getattr(error, "reason", None)
    if isinstance(reason, OSError):
        return (reason.strerror or type(reason).__name__).lower()
    return type(error if reason is None else reason).__name__
