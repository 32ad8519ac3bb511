"""Priorities of lines that go to systemd's journal, so that `journalctl -p warning` works.

systemd tells a service by JOURNAL_STREAM (systemd.exec(5)) that a stream of it is the journal; a
line there may begin with its priority, `<4>` (sd-daemon(3)), which the journal takes off.
"""

import os
from collections.abc import Mapping
from typing import TextIO

_PRIORITIES = {"error": 3, "warning": 4, "hint": 5, "info": 6, "debug": 7}
"""Those of syslog(3); a hint is a notice."""


def is_journal(stream: TextIO, environment: Mapping[str, str] | None = None) -> bool:
    """Whether this stream is the one that JOURNAL_STREAM names, by device and inode.

    A child inherits the variable even if its stream was sent elsewhere.
    """
    told = (os.environ if environment is None else environment).get("JOURNAL_STREAM", "")
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file, or a closed one
        return False
    return told == f"{found.st_dev}:{found.st_ino}"


def priority(level: str) -> str:
    """The beginning of a line of this level.

    >>> priority("warning")
    '<4>'
    """
    return f"<{_PRIORITIES[level]}>"
