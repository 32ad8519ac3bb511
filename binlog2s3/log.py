"""Logging: a fixed event name and fields, as text on a terminal and JSON lines elsewhere.

Law: one line per event, on standard error; fields hold values, never secrets. The event name does
not change with the values, so that a log can be searched and counted by it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from binlog2s3.errors import Binlog2s3Error

LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Writes events of one part of the program: `log.info("binlog archived", size=1234)`."""

    def __init__(self, part: str) -> None:
        self._logger = logging.getLogger(f"binlog2s3.{part}")

    def debug(self, event: str, **fields: object) -> None:
        """For someone who follows the code."""
        self._logger.debug(event, extra={"fields": fields})

    def info(self, event: str, **fields: object) -> None:
        """What happened, once per unit of work."""
        self._logger.info(event, extra={"fields": fields})

    def warning(self, event: str, **fields: object) -> None:
        """What goes on by itself but wants a look."""
        self._logger.warning(event, extra={"fields": fields})

    def error(self, event: str, error: BaseException | None = None, **fields: object) -> None:
        """What stops something; a hint of the error is written with it."""
        if error is not None:
            fields["error"] = str(error)
        if isinstance(error, Binlog2s3Error) and error.hint:
            fields["hint"] = error.hint
        self._logger.error(event, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "part": record.name.removeprefix("binlog2s3."),
            "event": record.getMessage(),
            **_fields(record),
        }
        return json.dumps(line, default=str, ensure_ascii=False)


class _Text(logging.Formatter):
    _COLOURS = {"WARNING": "\x1b[33m", "ERROR": "\x1b[31m", "DEBUG": "\x1b[2m"}  # noqa: RUF012

    def __init__(self, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = "  ".join(f"{key}={_text(value)}" for key, value in _fields(record).items())
        line = f"{time} {record.levelname:<7} {record.getMessage()}{'  ' if fields else ''}{fields}"
        colour = self._COLOURS.get(record.levelname, "") if self._colours else ""
        return f"{colour}{line}\x1b[0m" if colour else line


def _text(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text else text


def configure(style: str, level: str, stream: TextIO = sys.stderr) -> None:
    """Send the program's log to `stream`: style text, json, or auto (text on a terminal)."""
    terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    if style == "text" or (style == "auto" and terminal):
        handler.setFormatter(_Text(terminal))
    else:
        handler.setFormatter(_Json())
    root = logging.getLogger("binlog2s3")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
