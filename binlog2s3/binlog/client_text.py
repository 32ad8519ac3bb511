"""Finds text in events that the `mysql` client may read in another way than the server did. Pure.

`pitr --output-dir` writes binlogs that people apply with `mysqlbinlog | mysql`, and names the
unsafe ones in its README.

Law: a statement is safe only if client and server certainly agree on where its strings and comments
end. They disagree about `--` before a control character (a comment only for the server), about
`/*!99999 ... */` (code for the client, skipped by the server), about the client's own commands, and
about charsets in which the second byte of a character may be a quote or a backslash. The client
could execute the text after such a place as another statement, with the rights of its account.
"""

import re
from collections.abc import Callable

from binlog2s3.binlog.compression import Sink, mariadb_size, mariadb_text
from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    QUERIES,
    Buffer,
    EventType,
    FormatEvent,
    query_layout,
    status_settings,
)
from binlog2s3.binlog.statements import ANSI_QUOTES, CHARSETS, NO_BACKSLASH_ESCAPES
from binlog2s3.binlog.walk import HEAD_MOST, EventWalk, payload_sink, wanted_types

# None of these contains quotes, backslashes or control characters, with one exception: a comment to
# the end of the line may have quotes, because the client ignores it, too. A comment of several
# lines contains nothing that begins or ends anything for either side.
_PLAIN = rb"[^'\"`\\#/\-\x00-\x08\x0b\x0c\x0e-\x1f\x7f]++|-(?!-)|/(?!\*)"
_COMMENT = (
    rb"(?:\#|--(?=[ \t\n]|\r\n|\Z))[^\\\n\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*+(?:\n|\Z)"
    rb"|/\*(?!!\*)(?:[^'\"`\\\#*/\-\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|-(?!-)|/(?!\*)|\*(?!/))*+\*/"
)
_NAME = rb"`(?:[^`\\]++|``)*+`"
_ESCAPED = rb"'(?:[^'\\]++|''|\\.)*+'|\"(?:[^\"\\]++|\"\"|\\.)*+\""
_ESCAPED_ANSI = rb"'(?:[^'\\]++|''|\\.)*+'|\"(?:[^\"\\]++|\"\")*+\""
_LITERAL = rb"'(?:[^']++|'')*+'|\"(?:[^\"]++|\"\")*+\""


def _whole(strings: bytes) -> "re.Pattern[bytes]":
    return re.compile(rb"(?:" + b"|".join((_PLAIN, strings, _NAME, _COMMENT)) + rb")*+", re.DOTALL)


_MODES = {
    0: _whole(_ESCAPED),
    ANSI_QUOTES: _whole(_ESCAPED_ANSI),
    NO_BACKSLASH_ESCAPES: _whole(_LITERAL),
    NO_BACKSLASH_ESCAPES | ANSI_QUOTES: _whole(_LITERAL),
}
_CLIENT_COMMAND = re.compile(rb"^\s*delimiter\b", re.IGNORECASE | re.MULTILINE)
_NAME_BYTES = re.compile(rb"[^`\\\x00-\x1f\x7f]*+")


def is_plain_name(name: bytes) -> bool:
    """Whether the name of a database or variable is still a name in the output of mysqlbinlog."""
    return _NAME_BYTES.fullmatch(name) is not None


def unclear(statement: bytes, status: bytes) -> str:
    """Why client and server may read a statement in different ways; "" if they do not.

    `status` are the status variables of its QUERY event.
    """
    sql_mode, charset = status_settings(status)
    if statement.isascii():
        charset = 8
    if charset not in CHARSETS:
        return f"its charset ({charset if charset is not None else 'not told'})"
    if sql_mode is None:
        if b"\\" in statement:
            return "a backslash, and no sql_mode"
        sql_mode = 0
    if _CLIENT_COMMAND.search(statement):
        return "a line that is a command of the client"
    match = _MODES[sql_mode & (NO_BACKSLASH_ESCAPES | ANSI_QUOTES)].match(statement)
    at = match.end() if match else 0
    if at == len(statement):
        return ""
    return f"a string, a comment or a control character at byte {at}"


TEXT_LOOKED_MOST = 16 << 20
"""`NotForClients` reads statements of up to so many bytes."""
_TABLE_FIXED = 8  # table id and flags, in a TABLE_MAP event
_WANTED_OF_TEXT = wanted_types(
    EventType.QUERY,
    EventType.QUERY_COMPRESSED,
    EventType.EXECUTE_LOAD_QUERY,
    EventType.TABLE_MAP,
    EventType.USER_VAR,
    EventType.TRANSACTION_PAYLOAD,
)


class NotForClients:
    """Reads events, and looks for text that the client may read in another way than the server.

    Besides statements these are the names of tables: mysqlbinlog prints them unchanged in comments,
    so the client would read the text after a line break in a name as a statement.
    """

    def __init__(self, format_event: FormatEvent) -> None:
        """`format_event`: the format event of the binlog."""
        trailer = CHECKSUM_SIZE if format_event.checksum == "crc32" else 0
        self._events = EventWalk(trailer, self._begin, wanted=_WANTED_OF_TEXT)
        self._broken: list[str] = []

    @property
    def found(self) -> list[str]:
        """Descriptions of what was found until now, including what could not be read."""
        if self._events.lost and not self._broken:
            self._broken.append("an event that cannot be read")
        return self._broken

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, cut anywhere. Compressed transactions are read, too."""
        self._events.feed(data)

    def _begin(self, event_type: int, head: bytes) -> Sink | None:
        if event_type == EventType.TABLE_MAP:
            database, rest = _counted(head[_TABLE_FIXED:])
            table, _ = _counted(rest[1:])
            name = b".".join([database, table])
            if b"\n" in name or b"\r" in name:
                self._broken.append(f"the table {name.decode(errors='replace')!r}")
        elif event_type in QUERIES:
            return _Whole(head, lambda whole: self._look(event_type, whole))
        elif event_type == EventType.USER_VAR:
            size = int.from_bytes(head[:4], "little")
            if not is_plain_name(head[4 : 4 + size]) or size + 4 > len(head):
                self._broken.append("the name of a user variable")
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, self._begin, self._take_end, wanted=_WANTED_OF_TEXT)
        return None

    def _take_end(self, whole: bool) -> None:
        if not whole:
            self._broken.append("a compressed transaction that cannot be read")

    def _look(self, event_type: int, body: bytes | None) -> None:
        """Check a statement; `body` is None if it is too long."""
        if body is None:
            self._broken.append(f"a statement of more than {TEXT_LOOKED_MOST} bytes")
            return
        status_at, db_at, text_at = query_layout(event_type, body, 0)
        status, db, text = body[status_at:db_at], body[db_at : text_at - 1], body[text_at:]
        if event_type == EventType.QUERY_COMPRESSED:
            size = mariadb_size(text)
            text = mariadb_text(text, TEXT_LOOKED_MOST + 1)
            if len(text) < min(size, TEXT_LOOKED_MOST + 1):
                self._broken.append("a compressed statement that cannot be read")
        if len(text) > TEXT_LOOKED_MOST:
            self._look(event_type, None)
        elif not is_plain_name(db):
            self._broken.append("the name of a database")
        elif why := unclear(text, status):
            shown = text[:80].decode(errors="replace")
            self._broken.append(f"the statement {shown!r} ({why})")


class _Whole:
    """Collects an event's body up to a limit, and passes it to `done`; None if it is longer."""

    def __init__(self, head: bytes, done: Callable[[bytes | None], None]) -> None:
        self._data = bytearray(head)
        self._done = done

    def feed(self, data: bytes) -> None:
        if len(self._data) <= TEXT_LOOKED_MOST + HEAD_MOST:
            self._data += data

    def close(self, *, whole: bool) -> None:
        is_held = whole and len(self._data) <= TEXT_LOOKED_MOST + HEAD_MOST
        self._done(bytes(self._data) if is_held else None)


def _counted(data: bytes) -> tuple[bytes, bytes]:
    """A text that begins with a byte for its length, and the bytes after it."""
    return data[1 : 1 + data[0]], data[1 + data[0] :]
