"""Rows that a REPLACE has put in the place of others, of a MySQL that cascades itself (9.6 on).

Such a server logs what its foreign keys delete and change, and a server that applies its events
finds nothing left to do. But for a REPLACE it cascades nothing (seen on 9.7.4), and one that
applies the DELETE of it does: rows that refer to the replaced one, which the source has kept, are
deleted or set to NULL, with the same GTIDs.
"""

import re
from collections.abc import Collection

from binlog2s3.binlog.events import QUERIES, EventType
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import decode_map, table_id, table_name
from binlog2s3.binlog.walk import UNDECODABLE, wanted_types
from binlog2s3.errors import SourceError
from binlog2s3.formatting import some
from binlog2s3.recover.extract import Watcher
from binlog2s3.server.connection import Server
from binlog2s3.server.foreign_keys import ForeignKey, foreign_keys

_STATEMENT_END, _SQL_FOREIGN_KEY = 1, 16
"""Flags of a rows event."""
_FLAGS_AT = 6
_DELETES = frozenset({EventType.DELETE_ROWS_V1, EventType.DELETE_ROWS})
_WRITES = frozenset({EventType.WRITE_ROWS_V1, EventType.WRITE_ROWS})
_UPDATES = (EventType.UPDATE_ROWS_V1, EventType.UPDATE_ROWS, EventType.PARTIAL_UPDATE_ROWS)
_MOST = 1000
_WHY = (
    "MySQL 9.6 and later may keep the rows that refer to a replaced one, and a server that applies "
    "the binlog deletes or changes them"
)
_MAKES = re.compile(rb"\bREFERENCES\b", re.IGNORECASE)
_MOVES = re.compile(
    rb"\bRENAME\b(?!\s+(?:COLUMN|INDEX|KEY)\b)|\bDROP\b.*\b(?:FOREIGN|CONSTRAINT)\b",
    re.IGNORECASE | re.DOTALL,
)
"""What statements say that make foreign keys, and that rename tables or drop foreign keys."""


def referring(server: Server) -> list[ForeignKey] | None:
    """The foreign keys by which deleted rows change others; None if the server does not tell."""
    try:
        return [key for key in foreign_keys(server) if key.on_delete]
    except SourceError:
        return None


class Replaced(Watcher):
    """The tables of which rows were replaced in a stream of events.

    `tables`: pairs of database and table, at most 1000.
    """

    wanted = wanted_types(EventType.TABLE_MAP, *_DELETES, *_WRITES, *_UPDATES, *QUERIES)

    def __init__(self) -> None:
        self.tables = set[tuple[str, str]]()
        self._is_all = True
        self._makes_keys = self._moves = False
        self._maps = dict[int, bytes]()
        self._deleted = set[int]()

    def doubt(self, *asked: Collection[ForeignKey] | None) -> str:
        """Why the rows may not be the source's after this was applied; "" if nothing says so.

        `asked`: what `referring` said before the apply and after it. A key that comes and goes
        meanwhile is in neither, and one that is dropped may have had another name of its table.
        """
        if not self._is_all:
            return (
                "which tables had rows replaced (REPLACE, LOAD DATA ... REPLACE) is not known for "
                f"all events, and foreign keys may refer to them: {_WHY}"
            )
        keys = [key for some_keys in asked for key in some_keys or ()]
        tables = sorted(self.tables)
        if None in asked:
            refer = "which foreign keys refer to it is not known (GRANT PROCESS ON *.* shows them)"
        elif self._moves and (keys or self._makes_keys):
            refer = (
                "tables were renamed or foreign keys dropped meanwhile, so ones with ON DELETE "
                "CASCADE or SET NULL may have referred to it"
            )
        else:
            tables = [table for table in tables if any(key.may_refer_to(*table) for key in keys)]
            refer = "foreign keys with ON DELETE CASCADE or SET NULL refer to it"
        if not tables:
            return ""
        names = some([table_name(*table) for table in tables])
        return (
            f"rows of {names} were replaced (REPLACE, LOAD DATA ... REPLACE), and {refer}: {_WHY}"
        )

    def lose(self) -> None:
        self._is_all = False

    def see(self, event_type: int, head: bytes, size: int, _: Flavour, __: int, /) -> None:
        if event_type == EventType.TABLE_MAP:
            self._maps[table_id(head)] = head
            return
        if event_type in QUERIES:
            is_cut = size > len(head)
            self._makes_keys |= is_cut or _MAKES.search(head) is not None
            self._moves |= is_cut or _MOVES.search(head) is not None
            return
        number, flags = table_id(head), head[_FLAGS_AT]
        if event_type in _DELETES and flags & _SQL_FOREIGN_KEY:
            self._deleted.add(number)
        elif event_type in _WRITES and number in self._deleted:
            self._replace(number)
        if flags & _STATEMENT_END:
            self._deleted.clear()
            self._maps.clear()

    def _replace(self, number: int) -> None:
        raw = self._maps.get(number)
        try:
            body = decode_map(raw, "mysql")[0] if raw is not None else None
        except UNDECODABLE:
            body = None
        if body is None:
            self.lose()
            return
        self.tables.add((body.database, body.table))
        if len(self.tables) > _MOST:
            self.tables.remove((body.database, body.table))
            self.lose()
