"""Logging: a fixed event name and fields, as text on a terminal and JSON lines elsewhere.

Law: one line per event, on standard error. Fields have values, never secrets. The name of an event
does not depend on the values, so that a log can be searched and counted by name. An error is logged
with its hint. What recurs during an outage is logged once a minute, with a count; at level debug,
each time. docs/reference/events.md lists every event.
"""

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import TextIO

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import duration_text

_RECURS_SECONDS = 60.0
"""How often a warning that recurs is logged."""
_OVER_SECONDS = 15.0
"""After so long without it an outage is over: the next one is logged at once."""
_MOST_KEYS = 1000


class Log:
    """Writes events of one part of the program: `log.info("binlog archived", size=1234)`."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"binlog2s3.{part}")

    def debug(self, event: str, /, **fields: object) -> None:
        """Details for developers."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        """What happened, once for each unit of work."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """A problem that needs no action at once, but that an operator should know of."""
        self._write(logging.WARNING, event, fields)

    def recurring(self, event: str, /, **fields: object) -> None:
        """A warning that comes with each attempt while something is away: see `Thinning`."""
        self._write(logging.WARNING, event, fields, recurs=True)

    def over(self, event: str, /, *ended: str, **fields: object) -> None:
        """The end of an outage: logged if a recurring warning `ended` was, since the last time."""
        self._write(logging.INFO, event, fields, ends=ended)

    def error(self, event: str, error: BaseException | None = None, /, **fields: object) -> None:
        """A failure that stops something; `error` says why."""
        self._write(logging.ERROR, event, fields | ({"error": error} if error else {}))

    def _write(
        self,
        level: int,
        event: str,
        fields: dict[str, object],
        *,
        recurs: bool = False,
        ends: tuple[str, ...] = (),
    ) -> None:
        error, hint = fields.get("error"), fields.pop("hint", "")
        if isinstance(error, Binlog2s3Error):
            hint = hint or error.hint
        if hint:
            fields["hint"] = hint
        self._logger.log(level, event, extra={"fields": fields, "recurs": recurs, "ends": ends})


class Thinning(logging.Filter):
    """Lets a recurring warning pass at once, then once a minute, with how many were left out.

    Warnings of one event with errors of one kind are one. Whoever saw one sees its end, too, and
    nobody sees the end of one that was left out. `clock` gives seconds; `each`: none is left out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, each: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._each = each
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, ...], tuple[float, float, int]] = {}
        self._shown: set[str] = set()  # events whose end was not logged yet

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log it; adds `left_out` to its fields where some were not."""
        if ends := getattr(record, "ends", ()):
            with self._lock:
                was_shown = not self._shown.isdisjoint(ends)
                self._shown.difference_update(ends)
            return was_shown
        if not getattr(record, "recurs", False):
            return True
        fields, now = _fields(record), self._clock()
        kind = type(fields["error"]).__name__ if "error" in fields else str(fields.get("line", ""))
        key = (record.name, str(record.msg), kind)
        with self._lock:
            if len(self._seen) >= _MOST_KEYS:
                self._seen.clear()
            logged, last, left_out = self._seen.get(key, (-math.inf, -math.inf, 0))
            if not self._each and now - logged < _RECURS_SECONDS and now - last < _OVER_SECONDS:
                self._seen[key] = (logged, now, left_out + 1)
                return False
            self._seen[key] = (now, now, 0)
            self._shown.add(str(record.msg))
        if left_out:
            fields["left_out"] = left_out
        return True


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("binlog2s3."),
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in _fields(record).items() if key not in line}
        shown = json.dumps(line, default=str, ensure_ascii=False)
        # escape what a terminal would obey, and what is not UTF-8
        return shown if shown.isprintable() else json.dumps(line, default=str)


class _Text(logging.Formatter):
    _COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "DEBUG": "\x1b[2m"}  # noqa: RUF012

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = "  ".join(starmap(_field_text, _fields(record).items()))
        line = f"{time} {record.levelname:<7} {record.getMessage()}{'  ' if fields else ''}{fields}"
        colour = self._COLOURS.get(record.levelname, "") if self._colours else ""
        return f"{colour}{line}\x1b[0m" if colour else line


def _field_text(name: str, value: object) -> str:
    """A field of a line for people: seconds have their unit beside the number."""
    if name.endswith("_seconds") and isinstance(value, int | float):
        name, value = name.removesuffix("_seconds"), duration_text(value, up=True)
    return f"{name}={_text(value)}"


def _text(value: object) -> str:
    """A value on one line; quoted if its end would not be clear."""
    text = str(value)
    if not text.isprintable():
        return json.dumps(text)  # foreign text must not break lines or control a terminal
    return json.dumps(text, ensure_ascii=False) if not text or set(text) & set(' "=') else text


def configure(style: str, level: str, stream: TextIO | None = None) -> None:
    """Send the program's log to `stream`, by default standard error.

    `style` is text, json, or auto: text on a terminal. Another call replaces the settings.
    """
    stream = stream or sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if style == "text" or (style == "auto" and terminal):
        handler.setFormatter(_Text(terminal))
    else:
        handler.setFormatter(_Json())
    handler.addFilter(Thinning(each=level == "debug"))
    root = logging.getLogger("binlog2s3")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
