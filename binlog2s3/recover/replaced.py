"""Rows that a REPLACE has put in the place of others, of a MySQL that cascades itself (9.6 on).

Such a server logs what its foreign keys delete and change, and a server that applies its events
finds nothing left to do. But for a REPLACE it cascades nothing (seen on 9.7.4), and one that
applies the DELETE of it does: rows that refer to the replaced one, which the source has kept, are
deleted or set to NULL, with the same GTIDs.
"""

from collections.abc import Collection, Iterator

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.events import CHECKSUM_SIZE, EventType, decode_format
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.binlog.tables import decode_map, table_id, table_name
from binlog2s3.binlog.walk import UNDECODABLE, EventWalk, payload_sink, wanted_types
from binlog2s3.formatting import some
from binlog2s3.recover.extract import through
from binlog2s3.recover.model import Checked, OpenStream
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.connection import Server

_SINCE = (9, 6)
_STATEMENT_END, _SQL_FOREIGN_KEY = 1, 16
"""Flags of a rows event."""
_FLAGS_AT = 6
_DELETES = frozenset({EventType.DELETE_ROWS_V1, EventType.DELETE_ROWS})
_WRITES = frozenset({EventType.WRITE_ROWS_V1, EventType.WRITE_ROWS})
_UPDATES = (EventType.UPDATE_ROWS_V1, EventType.UPDATE_ROWS, EventType.PARTIAL_UPDATE_ROWS)
_WANTED = wanted_types(
    EventType.TABLE_MAP, *_DELETES, *_WRITES, *_UPDATES, EventType.TRANSACTION_PAYLOAD
)
_MOST = 1000
_PARENTS = (
    "SELECT DISTINCT unique_constraint_schema AS db, referenced_table_name AS name "
    "FROM information_schema.referential_constraints WHERE delete_rule IN ('CASCADE', 'SET NULL')"
)


def cascades_itself(facts: TargetFacts) -> bool:
    """Whether a target may have been written to by such a server: it is of no older version."""
    return facts.flavour == "mysql" and facts.release.series >= _SINCE


def parents(server: Server) -> set[str]:
    """The tables whose deleted rows change others, in the form of `table_name`."""
    return {table_name(str(row["db"]), str(row["name"])) for row in server.rows(_PARENTS)}


def doubt_of(replaced: Collection[str], referred: Collection[str]) -> str:
    """Why the rows may not be the source's after these tables had rows replaced; "" if not."""
    found = sorted(set(replaced) & set(referred))
    if not found:
        return ""
    return (
        f"rows of {some(found)} were replaced (REPLACE, LOAD DATA ... REPLACE), and foreign keys "
        "with ON DELETE CASCADE or SET NULL refer to it: MySQL 9.6 and later may keep the rows "
        "that refer to a replaced one, and a server that applies the binlog deletes or changes them"
    )


class Replaced:
    """The tables of which rows were replaced in a stream of events: `tables`, at most 1000."""

    def __init__(self) -> None:
        self.tables = set[str]()
        self._maps = dict[int, bytes]()
        self._deleted = set[int]()

    def watched(self, open_stream: OpenStream) -> OpenStream:
        """The same stream."""
        return through(open_stream, lambda _, data: self._seen(data))

    def _seen(self, data: Iterator[Checked]) -> Iterator[Checked]:
        walk: EventWalk | None = None
        for checked in data:
            if walk is None:  # magic and format event
                form = decode_format(checked.data[len(MAGIC) :], offset=len(MAGIC))
                trailer = CHECKSUM_SIZE if form.checksum == "crc32" else 0
                walk = EventWalk(trailer, self._begin, wanted=_WANTED)
            else:
                walk.feed(checked.data)
            yield checked

    def _begin(self, event_type: int, head: bytes, _: int) -> Sink | None:
        if event_type == EventType.TABLE_MAP:
            self._maps[table_id(head)] = head
            return None
        if event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, self._begin, lambda _whole: None, wanted=_WANTED)
        number, flags = table_id(head), head[_FLAGS_AT]
        if event_type in _DELETES and flags & _SQL_FOREIGN_KEY:
            self._deleted.add(number)
        elif event_type in _WRITES and number in self._deleted:
            self._replace(number)
        if flags & _STATEMENT_END:
            self._deleted.clear()
            self._maps.clear()
        return None

    def _replace(self, number: int) -> None:
        raw = self._maps.get(number)
        if raw is None or len(self.tables) >= _MOST:
            return
        try:
            self.tables.add(decode_map(raw, "mysql")[1].name)
        except UNDECODABLE:
            return
