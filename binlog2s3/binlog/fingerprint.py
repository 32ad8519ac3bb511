"""What all servers that have executed a transaction write of it: a digest of MariaDB's. No I/O.

The nodes of a Galera cluster, and a replica that logs what it applies, write the same changes, with
the same times and server ids, but other offsets, table ids, flags, XIDs and group commits. Rows and
statements count, with their tables; what frames or explains them does not.

Law: two transactions with one digest do the same. The other way round it need not be so: a server
with other settings may write the same change in another form.
"""

import hashlib
from struct import Struct

from binlog2s3.binlog.events import (
    HEADER,
    HEADER_SIZE,
    QUERIES,
    Buffer,
    EventType,
    decode_mariadb_alter,
    query_layout,
)
from binlog2s3.binlog.tables import ROWS_EVENTS
from binlog2s3.binlog.walk import HEAD_MOST, EventSplitter, wanted_types

_TABLE_ID_SIZE = 6
_POST_HEADER = 8
"""Table id and flags."""
_STATEMENT_END = 0x01
_WANTED = wanted_types(
    EventType.MARIADB_GTID,
    EventType.TABLE_MAP,
    *ROWS_EVENTS,
    *QUERIES,
    EventType.PARTIAL_ROW_DATA,
    EventType.INTVAR,
    EventType.RAND,
    EventType.USER_VAR,
    EventType.BEGIN_LOAD_QUERY,
    EventType.APPEND_BLOCK,
    EventType.XA_PREPARE,
    EventType.INCIDENT,
)
_FRAMES = (b"BEGIN", b"COMMIT")
"""A group that ends in ROLLBACK is another one."""
_KEY = Struct("<BII")
"""Type, time, server id."""


class Fingerprint:
    """The digest of one transaction, from its bytes, cut anywhere."""

    def __init__(self, trailer: int) -> None:
        """`trailer`: the size of each event's checksum."""
        self._trailer = trailer
        least = HEADER_SIZE + trailer
        self._events = EventSplitter(most=least + HEAD_MOST, least=least, wanted=_WANTED)
        self._left = 0  # bytes of a large event that are still to come, without its checksum
        self._digest = hashlib.sha256()
        self._maps = 0
        self._tables: dict[bytes, int] = {}

    def feed(self, data: Buffer) -> None:
        """Take the next bytes. Raises ValueError if they are no events."""
        for piece, size in self._events.feed(data):
            if size:
                self._take(bytes(piece), size)
            else:
                self._digest.update(piece[: self._left])
                self._left = max(0, self._left - len(piece))

    def take(self) -> bytes:
        """The digest of what was fed since the last call."""
        found = self._digest.digest()
        self._digest = hashlib.sha256()
        self._maps = 0
        self._tables.clear()
        return found

    def _table(self, body: bytes, *, new: bool = False) -> bytes:
        """Which of the transaction's tables an event is of, instead of the server's number."""
        table = body[:_TABLE_ID_SIZE]
        if new:  # a number may be another table's, later in the same transaction
            self._maps += 1
            self._tables[table] = self._maps
        return self._tables.get(table, 0).to_bytes(8, "little")

    def _take(self, data: bytes, size: int) -> None:
        timestamp, event_type, server_id, _, _, _ = HEADER.unpack_from(data)
        end = size - self._trailer
        body = data[HEADER_SIZE:end]
        self._left = end - HEADER_SIZE - len(body)
        if event_type in QUERIES:
            _, database, text = query_layout(event_type, body, 0)
            if body[text:] in _FRAMES:
                return
            body = body[database:]  # settings of the session may have other forms
        elif event_type == EventType.MARIADB_GTID:
            alter = decode_mariadb_alter(body, 0, len(body))
            if alter is None:
                return
            body = b"%b %d %d" % (alter[0].encode(), *alter[1:])
        elif event_type == EventType.TABLE_MAP:
            body = self._table(body, new=True) + body[_TABLE_ID_SIZE:]
        elif event_type in ROWS_EVENTS:  # other flags are those of the session that wrote it
            flags = bytes([body[_TABLE_ID_SIZE] & _STATEMENT_END])
            body = self._table(body) + flags + body[_POST_HEADER:]
        self._digest.update(_KEY.pack(event_type, timestamp, server_id))
        self._digest.update(len(body).to_bytes(8, "little"))
        self._digest.update(body)
