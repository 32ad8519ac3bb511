"""A dead man's switch: sends GET requests to a URL as long as commits become durable.

The URL is that of an external monitor (healthchecks.io, Dead Man's Snitch, an Uptime Kuma push
monitor), which raises an alarm when no request comes.

Law: silence is the alarm. It sends a request only if something became durable or the source is
idle, never just because the process lives. The URL may be a secret: only its host is shown.
"""

import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from binlog2s3 import __version__
from binlog2s3.errors import ConfigError
from binlog2s3.log import Log
from binlog2s3.status.model import Status
from binlog2s3.stream.waiting import Periodic

_log = Log("ping")
_TIMEOUT_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_MOST_BYTES = 4096


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
        self._get = get or ask
        self._durable_bytes = 0
        self._asked_for = 0
        self._wanted = False
        self._ended = threading.Event()
        self._failing = False

    def start(self) -> None:
        Periodic("deadman", self._step, self._ended).start()

    def close(self) -> None:
        """Stop sending requests."""
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


def ask(url: str) -> None:
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
