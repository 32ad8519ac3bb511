"""Statements that a server has logged in UTF-8, though their event names the session's charset.

Servers write some statements anew before they log them: CREATE USER and GRANT, the names of views,
CREATE TABLE ... SELECT and ... LIKE, the comments of routines. The new text is UTF-8. In a session
with another charset (latin1, cp1251, gbk), who applies the event takes each letter that is not
ASCII for two or three others: names, values of an ENUM, defaults and comments are not the source's
(seen on MySQL 9.7.4 and MariaDB 10.11, also of their own replicas).
"""

import re

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.content import StatementText
from binlog2s3.binlog.events import status_settings
from binlog2s3.binlog.statements import UTF8, Writing
from binlog2s3.recover.extract import TextWatcher

_BINARY = 63
_AS_WRITTEN = UTF8 | {_BINARY, None}
_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
_LETTER_MOST = 4


class Recoded(TextWatcher):
    """The statements that define something with such letters, in a stream of events.

    A session that sends UTF-8 in another charset by itself is not told from it: its names are the
    source's.
    """

    may = _LETTER

    @property
    def why(self) -> str:
        return (
            f"the source logged this statement{self.and_more} in UTF-8, though the session "
            "had another character set, so its letters that are not ASCII (names, ENUM values, "
            f"defaults, comments) may be others here: {self.first}"
        )

    def look(self, begun: StatementText, writing: Writing, /) -> Sink | None:
        if status_settings(begun.status)[1] in _AS_WRITTEN:
            return None
        statement = begun.parsed(writing)
        if statement is not None:
            is_definition = statement.kind == "ddl"
        else:  # it changes nothing, or its first word comes later
            is_definition = not writing.clear(begun.text, cut=begun.cut).keywords()
        return _Letters(self, begun, writing) if is_definition else None


class _Letters:
    """Looks for such letters in a definition."""

    def __init__(self, watcher: Recoded, begun: StatementText, writing: Writing) -> None:
        self._watcher, self._begun, self._writing = watcher, begun, writing
        self._last = b""
        self._is_found = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        data = self._last + data
        self._is_found = self._is_found or _LETTER.search(data) is not None
        self._last = data[-_LETTER_MOST:]

    def close(self, *, whole: bool) -> None:
        """No more bytes follow."""
        if self._is_found:
            self._watcher.note(self._begun, self._writing)
        elif not whole:
            self._watcher.lose()
