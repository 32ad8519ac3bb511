"""Logging: a fixed message and fields, as text on a terminal and JSON lines elsewhere.

Law: one line per event, on standard error. Fields have values, never secrets. The message of an
event does not depend on the values, and each has an id for programs, which stays when the words
change. An error is logged with its hint. What recurs during an outage is logged once a minute, with
a count; at level debug, each time. docs/reference/events.md lists every event.
"""

import json
import logging
import math
import os
import re
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import TextIO

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import duration_text
from binlog2s3.journal import is_journal, priority

_RECURS_SECONDS = 60.0
"""How often a warning that recurs is logged."""
_OVER_SECONDS = 15.0
"""After so long without it an outage is over: the next one is logged at once."""
_MOST_KEYS = 1000
_PATIENCE_SECONDS = 5.0
"""How long a line waits for a reader of the log."""
_AGAIN_SECONDS = 0.01
"""After how long a write is tried again that a terminal with room did not take."""
_ECS = "8.11.0"
"""The version of the Elastic Common Schema whose fields are used."""
EVENT_IDS = {
    "another server with the same server_id and gtid_domain_id: "
    "it has the archive's transactions": "another_node_has_taken_over",
    "cannot be compared": "end_not_compared",
    "cannot be read to find the last common transaction": "archived_binlog_skipped",
    "deleted: it does not hold what its name says": "damaged_chunk_deleted",
    "ended": "process_ended",
    "left in the spool: an archived one is there": "left_in_spool_archived_one_is_there",
    "left in the spool: nothing proves its history": "left_in_spool_unproved_history",
    "left in the spool: the bucket has other bytes": "left_in_spool_bucket_has_other_bytes",
    "an archived binlog without an entry is not whole": "archived_without_entry_torn",
    "an internal error; all is looked at again": "internal_error",
    "left alone: not of this archive's format": "unknown_object_left_alone",
    "left in the spool, to be fetched again": "leftover_is_damaged",
    "not all is in the bucket": "ended_before_all_was_uploaded",
    "not looked for what somebody put there before": "earlier_versions_not_looked_for",
    "paused: the spool has no room": "spool_full",
    "resumed: the spool has room": "spool_has_room",
    "somebody wrote under this key before the streamer did": "key_was_taken",
    "the archive begins after a binlog that cannot be read": "archive_begins_after_damage",
    "the source cannot continue; uploading what the spool has": "source_cannot_continue",
    "the source writes no binlog: a gap will be recorded": "source_without_binlog_gap",
    "the source's binlog is damaged: archived as it is": "damaged_source_binlog_archived",
    "the store knows no conditions, writing without": "store_without_conditions",
}
"""The ids of messages whose words make no good id, or had other words when the id was made."""


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


_log = Log("log")


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


def event_id(message: str) -> str:
    """The id of an event, which stays when its message gets other words.

    >>> event_id("binlog archived"), event_id("the server's name leads to another address")
    ('binlog_archived', 'servers_name_leads_to_another_address')
    """
    words = re.sub(r"[^a-z0-9_]+", "_", message.lower().replace("'", "")).strip("_")
    return EVENT_IDS.get(message) or re.sub(r"^(the|an?)_", "", words)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record)
        shown = json.dumps(line, default=str, ensure_ascii=False)
        # escape what a terminal would obey, and what is not UTF-8
        return shown if shown.isprintable() else json.dumps(line, default=str)

    def _line(self, record: logging.LogRecord) -> dict[str, object]:
        line: dict[str, object] = {
            "time": _utc(record),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("binlog2s3."),
            "event": event_id(record.getMessage()),
            "message": record.getMessage(),
        }
        return line | {key: value for key, value in _fields(record).items() if key not in line}


class _Ecs(_Json):
    """Elastic Common Schema: our own fields are below `binlog2s3`, where no other can be meant."""

    def _line(self, record: logging.LogRecord) -> dict[str, object]:
        fields = _fields(record)
        line: dict[str, object] = {
            "@timestamp": _utc(record),
            "log.level": record.levelname.lower(),
            "message": record.getMessage(),
            "ecs.version": _ECS,
            "service.name": "binlog2s3",
            "event.dataset": "binlog2s3.log",
            "event.action": event_id(record.getMessage()),
            "log.logger": record.name,
            "process.pid": record.process,
        }
        if "error" in fields:
            line["error.message"] = str(fields["error"])
        own = {key: value for key, value in fields.items() if key != "error"}
        return line | ({"binlog2s3": own} if own else {})


def _utc(record: logging.LogRecord) -> str:
    """When it was logged, as RFC 3339 in UTC."""
    at = datetime.fromtimestamp(record.created, UTC).replace(tzinfo=None)
    return f"{at.isoformat(timespec='milliseconds')}Z"


class _Text(logging.Formatter):
    _COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "DEBUG": "\x1b[2m"}  # noqa: RUF012

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        time = (
            datetime.fromtimestamp(record.created, UTC)
            .astimezone()
            .isoformat(timespec="milliseconds")
        )
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


class _Prioritized(logging.Formatter):
    """Each line with its priority before it, for the journal."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        return f"{priority(record.levelname.lower())}{self._lines.format(record)}"


class _Patient(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, and lets nobody wait for long for one that nobody reads.

    A pipe or a terminal whose reader stands still (a log driver, the journal, a hung ssh) is soon
    full, and would hold every thread that logs: no byte was uploaded any more, and no signal was
    heard. After `_PATIENCE_SECONDS` lines are dropped until it is read again, and then counted.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._dropped = 0
        self._is_read = True  # the last line was written
        self._is_torn = False  # the last line was written in part
        self._poll = select.poll()
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):  # no file
            self._descriptor = None
            return
        own = _own_terminal(self._descriptor)
        if own is not None:
            weakref.finalize(self, os.close, own).atexit = False
            self._descriptor = own
        self._poll.register(self._descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or drop it."""
        if self._descriptor is None:
            super().emit(record)
            return
        try:
            if self._dropped and self._poll.poll(0):
                dropped, self._dropped = self._dropped, 0
                _log.warning("log lines were dropped", lines=dropped)
                if self._dropped:  # that one, too
                    self._dropped = dropped
            line = f"{self.format(record)}{self.terminator}"
            self._send(line.encode(self.stream.encoding or "utf-8", "backslashreplace"))
        except Exception:  # noqa: BLE001 - as every handler does
            self.handleError(record)

    def _send(self, line: bytes) -> None:
        data = b"\n" + line if self._is_torn else line
        for at in range(0, len(data), select.PIPE_BUF):
            piece = data[at : at + select.PIPE_BUF]
            sent = self._sent(piece)
            if sent < len(piece):
                self._dropped += 1
                self._is_read = False
                self._is_torn |= at + sent > 0
                return
        self._is_read, self._is_torn = True, False

    def _sent(self, piece: bytes) -> int:
        """Write at most `PIPE_BUF` bytes; how many were. Waits if the last line was written.

        A pipe that can be written to takes them all. A terminal takes fewer; and none if a line's
        end does not fit, or while another process writes to it.
        """
        assert self._descriptor is not None  # noqa: S101 - `emit` has seen it
        sent, until = 0, time.monotonic() + (_PATIENCE_SECONDS if self._is_read else 0)
        while sent < len(piece) and self._poll.poll(max(0.0, until - time.monotonic()) * 1000):
            try:
                sent += os.write(self._descriptor, piece[sent:])
            except BlockingIOError:
                if time.monotonic() >= until:
                    break
                time.sleep(_AGAIN_SECONDS)
        return sent


def _own_terminal(descriptor: int) -> int | None:
    """A terminal opened anew, so that writing to it never blocks; None if it is none, or cannot be.

    A write of a line waits until a terminal has room for all of it, even if `poll` sees room. Its
    descriptor is left as it is: other processes have it, too.
    """
    try:
        terminal = os.ttyname(descriptor)
        return os.open(terminal, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None


def configure(style: str, level: str, stream: TextIO | None = None) -> None:
    """Send the program's log to `stream`, by default standard error.

    `style` is text, json, ecs, or auto: text on a terminal, else json. Another call replaces the
    settings.
    """
    stream = stream or sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    terminal = stream.isatty()
    handler = _Patient(stream)
    lines: logging.Formatter
    if style == "text" or (style == "auto" and terminal):
        lines = _Text(terminal)
    else:
        lines = _Ecs() if style == "ecs" else _Json()
    handler.setFormatter(_Prioritized(lines) if is_journal(stream) else lines)
    handler.addFilter(Thinning(each=level == "debug"))
    root = logging.getLogger("binlog2s3")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
