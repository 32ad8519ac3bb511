"""The events that a replication source makes itself: rotates, heartbeats, format events. Pure.

Source: MySQL's "Replication Protocol" (dev.mysql.com/doc/dev/mysql-server), page "Binlog Event".
"""

import struct
import zlib

from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    IN_USE_FLAG,
    EventType,
    decode_format,
    decode_gtid,
    decode_mariadb_gtid,
    decode_tagged_gtid,
)
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.replication.queries import lenenc

GTID_EVENTS = frozenset(
    {EventType.GTID, EventType.GTID_TAGGED, EventType.MARIADB_GTID, EventType.ANONYMOUS_GTID}
)
WHOLE_MOST = 1 << 16
"""Events up to this size are sent whole, larger ones in parts as they arrive."""

_FLAGS = HEADER_SIZE - 2
_POSITION = slice(13, 17)
_CREATED = slice(HEADER_SIZE + 52, HEADER_SIZE + 56)


def format_event(event: bytes, *, is_start: bool, in_place: bool) -> bytes:
    """A format event as a source sends it.

    `is_start`: the server was started there, so the replica drops its temporary tables. `in_place`:
    it is sent at its own position; one that is sent before a later position has none.
    """
    changed = bytearray(event)
    wrote = decode_format(event, offset=len(MAGIC))
    changed[_FLAGS] &= ~IN_USE_FLAG & 0xFF
    if not is_start:
        changed[_CREATED] = bytes(4)
    if not in_place:
        changed[_POSITION] = bytes(4)
    if wrote.has_checksum:
        crc32 = zlib.crc32(changed[:-CHECKSUM_SIZE])
        changed[-CHECKSUM_SIZE:] = crc32.to_bytes(CHECKSUM_SIZE, "little")
    return bytes(changed)


def gtid_of(kind: int, server_id: int, event: bytes | memoryview, trailer: int) -> str:
    """The GTID of an event of `GTID_EVENTS` that has one; `trailer`: the size of its checksum."""
    end = len(event) - trailer
    if kind == EventType.MARIADB_GTID:
        number, domain, _ = decode_mariadb_gtid(event, HEADER_SIZE, end)
        return f"{domain}-{server_id}-{number}"
    decode = decode_gtid if kind == EventType.GTID else decode_tagged_gtid
    (uuid, tag, number), *_ = decode(event, HEADER_SIZE, end)
    return f"{uuid}:{tag}:{number}" if tag else f"{uuid}:{number}"


def artificial_event(
    event_type: int, body: bytes, *, server_id: int, position: int, flags: int, checksum: bool
) -> bytes:
    """An event that is in no binlog: time 0, the position modulo 2**32."""
    size = 19 + len(body) + (4 if checksum else 0)
    head = struct.pack("<IBIIIH", 0, event_type, server_id, size, position & 0xFFFFFFFF, flags)
    event = head + body
    return event + struct.pack("<I", zlib.crc32(event)) if checksum else event


def rotate_event(name: str, position: int, *, server_id: int, checksum: bool) -> bytes:
    """Says that what follows is at `position` of `name`; sent first, and after what is left out.

    `checksum`: as the format event before it says, or for the first event as the client was told.
    """
    return artificial_event(
        EventType.ROTATE,
        struct.pack("<Q", position) + name.encode(),
        server_id=server_id,
        position=0,
        flags=0x20,  # LOG_EVENT_ARTIFICIAL_F
        checksum=checksum,
    )


def heartbeat_event(
    name: str, position: int, *, server_id: int, checksum: bool, version_2: bool = False
) -> bytes:
    """Says that there is nothing new after `position` of `name`, the client's current place.

    Version 2, if the client asked for it, can hold positions from 4 GiB on.
    """
    raw, event_type = name.encode(), int(EventType.HEARTBEAT)
    if version_2 and position >= 1 << 32:
        event_type = int(EventType.HEARTBEAT_V2)
        place = b"\xfe" + struct.pack("<Q", position)
        raw = b"\x01" + lenenc(raw) + b"\x02" + lenenc(place) + b"\0"
    return artificial_event(
        event_type, raw, server_id=server_id, position=position, flags=0, checksum=checksum
    )
