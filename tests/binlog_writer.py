"""Writes binlogs as servers do, event by event, and remembers what it wrote.

The bytes follow the server's own layouts (checked against real servers in the integration tests);
the expected transactions are kept from the writer's own knowledge, not read back.
"""

import struct
import zlib
from collections.abc import Callable
from uuid import UUID

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.scanner import MAGIC, EventType, Transaction

UUID_A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
UUID_B = "b4308ccf-e58d-11f1-9e92-02fc00000001"
NOW = 1_795_253_309
NOW_US = NOW * 1_000_000


def varint(value: int) -> bytes:
    """A number as the server's serialization library writes it: at least size, up to 9 bytes."""
    extra = 0
    while extra < 8 and value >> 7 * (extra + 1):
        extra += 1
    if extra == 8:
        return b"\xff" + value.to_bytes(8, "little")
    return (value << (extra + 1) | (1 << extra) - 1).to_bytes(extra + 1, "little")


def signed(value: int) -> int:
    """A signed number as the serialization library folds it."""
    return value << 1 ^ value >> 63


def packed(value: int) -> bytes:
    """A length-encoded integer of the client/server protocol."""
    if value < 251:
        return bytes([value])
    for mark, size in ((252, 2), (253, 3), (254, 8)):
        if value < 1 << 8 * size:
            return bytes([mark]) + value.to_bytes(size, "little")
    raise ValueError(value)


def query_body(
    text: str, *, db: str = "t", status: bytes = b"\0\0\0\0\0", encoding: str = "utf-8"
) -> bytes:
    """The body of a QUERY event."""
    fixed = struct.pack("<IIBHH", 8, 0, len(db), 0, len(status))
    return fixed + status + db.encode() + b"\0" + text.encode(encoding)


def gtid_body(uuid: str, gno: int, *, commit_us: int, original_us: int, length: int) -> bytes:
    """The body of a GTID event: of 5.7 without `commit_us`, of 8.0.1 without `length`."""
    body = struct.pack("<B16sqBqq", 1, UUID(uuid).bytes, gno, 2, 4, 5)
    if not commit_us:
        return body  # 5.7
    if original_us == commit_us:
        body += commit_us.to_bytes(7, "little")
    else:
        body += (commit_us | 1 << 55).to_bytes(7, "little") + original_us.to_bytes(7, "little")
    return body + (packed(length) + struct.pack("<I", 90704) if length else b"")


def tagged_body(
    uuid: str, tag: str, gno: int, *, commit_us: int, original_us: int, length: int
) -> bytes:
    """The body of a GTID_TAGGED event, with a field that nobody knows yet."""
    fields = varint(0) + varint(1)
    fields += varint(1) + b"".join(varint(byte) for byte in UUID(uuid).bytes)
    fields += varint(2) + varint(signed(gno))
    fields += varint(3) + varint(len(tag)) + tag.encode()
    fields += varint(4) + varint(signed(4)) + varint(5) + varint(signed(5))
    fields += varint(6) + varint(commit_us)
    if original_us != commit_us:
        fields += varint(7) + varint(original_us)
    fields += varint(8) + varint(length) + varint(9) + varint(90704)
    fields += varint(12) + varint(7)  # of a server to come
    return varint(1) + varint(len(fields)) + varint(12) + fields


def previous_gtids_body(gtids: GtidSet) -> bytes:
    """The body of a PREVIOUS_GTIDS event, in the tagged form where there are tags."""
    runs = list(gtids.runs())
    tagged = any(tag for _, tag, _ in runs)
    body = struct.pack("<Q", len(runs) << 8 | 1 << 56 if tagged else len(runs))
    for uuid, tag, intervals in runs:
        body += UUID(uuid).bytes + (varint(len(tag)) + tag.encode() if tagged else b"")
        body += struct.pack("<Q", len(intervals))
        body += b"".join(struct.pack("<qq", first, last + 1) for first, last in intervals)
    return body


class BinlogWriter:
    """A binlog under construction: `data` are its bytes, `ends` the ends of its events.

    `placed` are those of them that the event's own header names: all but MariaDB's `deferred`.
    """

    def __init__(
        self,
        *,
        server_version: str = "9.7.4",
        checksum: bool = True,
        server_id: int = 7,
        timestamp: int = NOW,
        in_use: bool = False,
        created: int = 0,
    ) -> None:
        self.data = bytearray(MAGIC)
        self.ends = [len(MAGIC)]
        self.placed = [len(MAGIC)]
        self.transactions: list[Transaction] = []
        self.server_id = server_id
        self.timestamp = timestamp
        self.is_mariadb = "MariaDB" in server_version
        self.has_checksum_support = not server_version.startswith("5.5.6")
        self._trailer = 4 if checksum else 0
        self._created = created
        self._format(server_version, algorithm=int(checksum), in_use=in_use)

    def _format(self, server_version: str, *, algorithm: int, in_use: bool) -> None:
        types = 171 if self.is_mariadb else 41 if self.has_checksum_support else 27
        fixed = struct.pack("<H50sIB", 4, server_version.encode(), self._created, 19)
        body = fixed + bytes([7] * types)
        size = 19 + len(body)
        if not self.has_checksum_support:
            self._append(self._header(EventType.FORMAT_DESCRIPTION, size, 0) + body)
            return
        body += bytes([algorithm])
        event = self._header(EventType.FORMAT_DESCRIPTION, size + 5, 0) + body
        event += struct.pack("<I", zlib.crc32(event))
        if in_use:
            event = event[:17] + b"\1" + event[18:]
        self._append(event)

    def _header(self, event_type: int, size: int, flags: int, *, deferred: bool = False) -> bytes:
        end = 0 if deferred else (len(self.data) + size) % 2**32
        return struct.pack("<IBIIIH", self.timestamp, event_type, self.server_id, size, end, flags)

    def _append(self, event: bytes, *, deferred: bool = False) -> None:
        self.data += event
        self.ends.append(len(self.data))
        if not deferred:
            self.placed.append(len(self.data))

    def size_of(self, body: bytes) -> int:
        """How long an event with this body is."""
        return 19 + len(body) + self._trailer

    def event(
        self, event_type: int, body: bytes = b"", *, flags: int = 0, deferred: bool = False
    ) -> None:
        """Write one event of any type; a `deferred` one does not say where it ends."""
        event = self._header(event_type, self.size_of(body), flags, deferred=deferred) + body
        if self._trailer:
            event += struct.pack("<I", zlib.crc32(event))
        self._append(event, deferred=deferred)

    def query(self, text: str) -> None:
        self.event(EventType.QUERY, query_body(text))

    def previous_gtids(self, gtids: GtidSet) -> None:
        self.event(EventType.PREVIOUS_GTIDS, previous_gtids_body(gtids))

    def gtid_list(self, gtids: MariadbGtidList) -> None:
        newest_last = sorted(gtids.gtids(), key=lambda one: (one[0], one == gtids.newest(one[0])))
        body = b"".join(struct.pack("<IIQ", *gtid) for gtid in newest_last)
        self.event(EventType.GTID_LIST, struct.pack("<I", len(body) // 16) + body)

    def rotate(self, name: str = "mysql-bin.000002") -> None:
        self.event(EventType.ROTATE, struct.pack("<Q", 4) + name.encode())

    def stop(self) -> None:
        self.event(EventType.STOP)

    def transaction(
        self,
        events: list[tuple[int, bytes]],
        *,
        gtid: tuple[str, str, int] | None = None,
        commit_us: int = NOW_US,
        original_us: int | None = None,
        with_length: bool = True,
    ) -> None:
        """A MySQL transaction: its GTID event, then `events`; before 8.0 without `commit_us`."""
        begin = len(self.data)
        uuid, tag, gno = gtid or (str(UUID(int=0)), "", 0)
        original = commit_us if original_us is None else original_us
        rest = sum(self.size_of(body) for _, body in events)

        def body(length: int) -> bytes:
            if tag:
                return tagged_body(
                    uuid, tag, gno, commit_us=commit_us, original_us=original, length=length
                )
            return gtid_body(uuid, gno, commit_us=commit_us, original_us=original, length=length)

        plain = EventType.GTID if gtid else EventType.ANONYMOUS_GTID
        event_type = EventType.GTID_TAGGED if tag else plain
        self.event(event_type, self._with_own_size(body, rest) if with_length else body(0))
        for other_type, other_body in events:
            self.event(other_type, other_body)
        self.transactions.append(
            Transaction(
                begin=begin,
                end=len(self.data),
                gtid=":".join(map(str, filter(None, gtid))) if gtid else None,
                commit_us=commit_us or self.timestamp * 1_000_000,
                commit_exact=bool(commit_us),
                original_commit_us=original or None,
            )
        )

    def _with_own_size(self, body: Callable[[int], bytes], rest: int) -> bytes:
        """The body of a GTID event whose length counts the event itself."""
        length = rest + 50
        while True:
            made = body(length)
            if self.size_of(made) + rest == length:
                return made
            length = self.size_of(made) + rest

    def mariadb_transaction(
        self,
        events: list[tuple[int, bytes]],
        *,
        gtid: tuple[int, int],
        standalone: bool = False,
        deferred: bool = False,
        extra: bytes = b"",
    ) -> None:
        """A MariaDB transaction: its GTID event (`gtid`: domain and number), then `events`.

        `extra`: the GTID event's extra flags, and what follows them.
        With `deferred` only its first and last event say where they end, as from 11.4 on.
        """
        begin = len(self.data)
        domain, seq = gtid
        body = struct.pack("<QIB", seq, domain, int(standalone)) + extra
        self.event(EventType.MARIADB_GTID, body.ljust(19, b"\0"))
        for event_type, body in events[:-1]:
            self.event(event_type, body, deferred=deferred)
        self.event(*events[-1])
        self._without_times(begin, f"{domain}-{self.server_id}-{seq}")

    def plain_transaction(self, events: list[tuple[int, bytes]]) -> None:
        """A transaction of a server that has no GTID events."""
        begin = len(self.data)
        for event_type, body in events:
            self.event(event_type, body)
        self._without_times(begin, None)

    def _without_times(self, begin: int, gtid: str | None) -> None:
        self.transactions.append(
            Transaction(
                begin=begin,
                end=len(self.data),
                gtid=gtid,
                commit_us=self.timestamp * 1_000_000,
                commit_exact=False,
                original_commit_us=None,
            )
        )

    def from_position(self, start: int) -> bytes:
        """What mysqlbinlog --start-position writes: the format event made up, then the rest.

        Of a binlog without checksums it has the CRC of the real one, as servers send it.
        """
        size = self.ends[1] - self.ends[0]
        fake = bytearray(self.data[4 : 4 + size])
        fake[13:17] = bytes(4)
        fake[17] &= 0xFE
        if self._trailer:
            fake[-4:] = struct.pack("<I", zlib.crc32(fake[:-4]))
        return MAGIC + bytes(fake) + bytes(self.data[start:])


BEGIN = (EventType.QUERY, query_body("BEGIN"))
COMMIT = (EventType.QUERY, query_body("COMMIT"))
ROLLBACK = (EventType.QUERY, query_body("ROLLBACK"))
XID = (EventType.XID, struct.pack("<Q", 77))
XA_PREPARE = (EventType.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"x")
TABLE_MAP = (EventType.TABLE_MAP, b"\x5d" + bytes(30))
ROWS = (EventType.WRITE_ROWS, b"\x5d" + bytes(20))
INTVAR = (EventType.INTVAR, b"\2" + struct.pack("<Q", 9))


def statement(text: str) -> tuple[int, bytes]:
    """A QUERY event for a list of events."""
    return EventType.QUERY, query_body(text)
