"""Statements that a server has logged in UTF-8, though their event names the session's charset.

Servers write some statements anew before they log them: CREATE USER and GRANT, the names of views,
CREATE TABLE ... SELECT and ... LIKE, the comments of routines. The new text is UTF-8. In a session
with another charset (latin1, cp1251, gbk), who applies the event takes each letter that is not
ASCII for two or three others: names, values of an ENUM, defaults and comments are not the source's
(seen on MySQL 9.7.4 and MariaDB 10.11, also of their own replicas).
"""

import re

from binlog2s3.binlog.compression import mariadb_text
from binlog2s3.binlog.content import STATEMENT_MOST, statement_in
from binlog2s3.binlog.events import (
    EventType,
    query_layout,
    status_settings,
)
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import UTF8, writing_of
from binlog2s3.recover.extract import StatementWatcher

_BINARY = 63
_AS_WRITTEN = UTF8 | {_BINARY, None}
_LETTER = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")


class Recoded(StatementWatcher):
    """The statements that define something with such letters, in a stream of events.

    A session that sends UTF-8 in another charset by itself is not told from it: its names are the
    source's.
    """

    @property
    def doubt(self) -> str:
        """Why names and definitions may not be the source's after this was applied, or ""."""
        if not self.number:
            return ""
        return (
            f"the source logged this statement{self.and_more} in UTF-8, though the session "
            "had another character set, so its letters that are not ASCII (names, ENUM values, "
            f"defaults, comments) may be others here: {self.first}"
        )

    def see(self, event_type: int, head: bytes, _: int, flavour: Flavour, /) -> None:
        """See `Watcher`."""
        status_at, db_at, text_at = query_layout(event_type, head, 0)
        status, raw = head[status_at:db_at], head[text_at:]
        if status_settings(status)[1] in _AS_WRITTEN:
            return
        if event_type == EventType.QUERY_COMPRESSED:
            raw = mariadb_text(raw, STATEMENT_MOST)
        if _LETTER.search(raw) is None:
            return
        statement = statement_in(event_type, head, flavour)
        if statement is not None and statement.kind == "ddl":
            writing = writing_of(status, mysql=flavour == "mysql")
            self.note(raw.decode(errors="replace"), writing)
