"""Statements that make other rows where they are executed again.

An `ALTER TABLE ... ADD id INT AUTO_INCREMENT` numbers the rows in the order in which the server has
them. Without a primary key that is the order in which they were inserted, and a server that applies
the binlog inserts them in the order of the commits: the same numbers are of other rows then, and
later changes of one row are applied to another (seen on MySQL 9.7.4 and MariaDB 10.11, also of
their own replicas). A statement in statement format may call what has another value elsewhere, as
UUID(); so may the DEFAULT of a column that a MariaDB adds.
"""

import re
from collections.abc import Sequence

from binlog2s3.binlog.compression import mariadb_text
from binlog2s3.binlog.content import STATEMENT_MOST
from binlog2s3.binlog.events import EventType, query_layout
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import StatementHead, writing_of
from binlog2s3.recover.extract import StatementWatcher

# https://dev.mysql.com/doc/refman/9.7/en/replication-rbr-safe-unsafe.html; the server logs rows for
# them with binlog_format = MIXED
_CALLS = frozenset(
    {
        *("CURRENT_USER", "FOUND_ROWS", "GET_LOCK", "IS_FREE_LOCK", "IS_USED_LOCK", "LOAD_FILE"),
        *("RANDOM_BYTES", "RELEASE_LOCK", "ROW_COUNT", "SESSION_USER", "SLEEP", "SYSDATE"),
        *("SYSTEM_USER", "SYS_GUID", "USER", "UUID", "UUID_SHORT", "UUID_V4", "UUID_V7", "VERSION"),
    }
)
_SEEDED = frozenset({"RAND"})
"""Has the same value if it is called by a statement that changes rows: its seeds are logged."""
_LIMIT, _ORDER = "LIMIT", "ORDER"
_MAY = re.compile(
    rb"\b(?:AUTO_INCREMENT|SERIAL|" + "|".join((*_CALLS, *_SEEDED, _LIMIT)).encode() + rb")\b",
    re.IGNORECASE,
)
_CHANGES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH"})
_OTHER_ACTIONS = frozenset({"ALTER", "CHANGE", "DROP", "MODIFY", "RENAME"})
_BEFORE_NAME = frozenset({"ADD", "COLUMN", "EXISTS", "(", ","})
_BEFORE_TABLE = frozenset(
    {*(".", "INTO", "TABLE", "EXISTS", "INSERT", "REPLACE"), *("DELAYED", "IGNORE", "LOW_PRIORITY")}
)
"""After these, `user (` is a table with its columns."""


class Unrepeatable(StatementWatcher):
    """Such statements in a stream of events, as far as their own text shows it.

    Which tables have a primary key is not known: those count, too.
    """

    @property
    def doubt(self) -> str:
        """Why rows may not be the source's after this was applied, or ""."""
        if not self.number:
            return ""
        return (
            f"the binlog does not tell what this statement{self.and_more} made of the rows "
            "(numbers in the order of the rows in the server, or values that another server does "
            f"not have), and they may be others here: {self.first}"
        )

    def see(self, event_type: int, head: bytes, _: int, flavour: Flavour, /) -> None:
        """See `Watcher`."""
        status_at, db_at, text_at = query_layout(event_type, head, 0)
        raw = head[text_at:]
        if event_type == EventType.QUERY_COMPRESSED:
            raw = mariadb_text(raw, STATEMENT_MOST)
        if _MAY.search(raw) is None:
            return
        writing = writing_of(head[status_at:db_at], mysql=flavour == "mysql")
        text = raw.decode(errors="replace")
        if _is_unrepeatable(_words(writing.clear(text, cut=False))):
            self.note(text, writing)


def _words(head: StatementHead) -> list[str]:
    """The words of a statement in capitals, and its marks; what is quoted is a space."""
    tokens = [(match.lastgroup, match[0]) for match in head.tokens.finditer(head.text)]
    tokens = [(kind, text) for kind, text in tokens if kind != "space"]
    return [text.upper() if kind in ("word", "mark") else " " for kind, text in tokens]


def _is_unrepeatable(words: Sequence[str]) -> bool:
    first = words[0] if words else ""
    if first == "ALTER" and "TABLE" in words[:4]:
        added = _added(words)
        return _numbers_rows(added) or _calls(added, _CALLS | _SEEDED)
    if first == "CREATE" and not ("TABLE" in words[:5] and "SELECT" in words):
        return False
    if first != "CREATE" and first not in _CHANGES:
        return False
    is_any_row = _LIMIT in words and _ORDER not in words
    return is_any_row or _calls(words, _CALLS)


def _added(words: Sequence[str]) -> list[str]:
    """The columns and keys that an ALTER TABLE adds, without its other actions."""
    found, is_added = list[str](), False
    for word in words:
        is_added = word == "ADD" or (is_added and word not in _OTHER_ACTIONS)
        if is_added:
            found.append(word)
    return found


def _numbers_rows(added: Sequence[str]) -> bool:
    """Whether a column has AUTO_INCREMENT, or its type does; as an option it has a number."""
    for at, word in enumerate(added):
        behind = (added[at + 1 :] or ["."])[0]
        if word == "AUTO_INCREMENT" and not (behind == "=" or behind[0].isdigit()):
            return True
        if word == "SERIAL" and added[at - 1] not in _BEFORE_NAME:
            return True
    return False


def _calls(words: Sequence[str], names: frozenset[str]) -> bool:
    """Whether one of these functions is called; CURRENT_USER needs no parentheses."""
    return any(
        word in names
        and (word == "CURRENT_USER" or words[at + 1 :][:1] == ["("])
        and words[at - 1] not in _BEFORE_TABLE
        for at, word in enumerate(words)
    )
