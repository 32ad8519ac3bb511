"""The fast loop of the scanner: whole transactions of MySQL 8, few operations for each event. Pure.

Law: `leap` takes a transaction as a whole or leaves it to the scanner's slower loops. It makes the
same checks of every event and counts the same facts, but makes no object for an event or a
transaction.
"""

import struct
import zlib

from binlog2s3.binlog.events import (
    COMMIT_MASK,
    HAS_ORIGINAL,
    HEADER_SIZE,
    LATER_LENGTH,
    USUAL_GTID,
    USUAL_LENGTH,
)
from binlog2s3.binlog.transactions import KINDS, Boundaries, Kind

LINK = struct.Struct("<4xB4xII")
"""Of an event's header: type, size, end_log_pos."""
CRC_RESIDUE = 0x2144DF1C
"""The CRC32 of any bytes followed by their own CRC32, little-endian."""
POSITION_MASK = (1 << 32) - 1

_GTID, _ANONYMOUS = int(Kind.GTID), int(Kind.ANONYMOUS_GTID)


def places(size: int, at: int, offset: int) -> tuple[int, int, int]:
    """How to turn an index of `size` bytes of data into an offset, where `at` is at `offset`.

    Returns what to add for the offset in the binlog, what to add for the end_log_pos there, and up
    to which index that is right: end_log_pos wraps at 4 GiB.
    """
    base = offset - at
    wrapped = base - (offset & ~POSITION_MASK)
    return base, wrapped, min(size, POSITION_MASK - wrapped)


def leap(  # one loop without calls: this is what makes it fast
    data: bytes | memoryview, at: int, offset: int, trailer: int, boundaries: Boundaries
) -> tuple[int, int]:
    """Take the transactions that lie whole in `data` from `at` on, which is at `offset`.

    Returns where it stopped and how many events it took. It stops before a transaction that is to
    be collected, that does not end in `data`, or that has anything unusual or bad in it.
    `trailer` is the size of each event's checksum.
    """
    unpack, crc32, kinds, usual = LINK.unpack_from, zlib.crc32, KINDS, USUAL_GTID.unpack_from
    base, wrapped, limit = places(len(data), at, offset)
    least = HEADER_SIZE + trailer
    least_gtid, least_later = least + USUAL_GTID.size, least + LATER_LENGTH.size
    last_begin = min(boundaries.wanted - base - 1, limit - least_gtid)
    events = transactions = anonymous = 0
    uuid, first, number = b"", 0, 0  # GTIDs from `first` to before `number` are to be counted
    least_us, greatest_us, commit_us = 1 << 64, 0, 0
    while at <= last_begin:
        begin = at
        event_type, size, end_log_pos = unpack(data, at)
        stop, kind = at + size, kinds[event_type]
        if (
            not _GTID <= kind <= _ANONYMOUS
            or size < least_gtid
            or stop > limit
            or end_log_pos != wrapped + stop
            or (trailer and crc32(data[at:stop]) != CRC_RESIDUE)
        ):
            break
        source, gno, packed, length = usual(data, at + HEADER_SIZE)
        mark = packed >> 56
        if packed & HAS_ORIGINAL:
            if size < least_later:
                break
            mark, length = LATER_LENGTH.unpack_from(data, at + HEADER_SIZE)
        until = at + length
        if mark != USUAL_LENGTH or not packed & COMMIT_MASK or not stop < until <= limit:
            break
        at, count, last_header = stop, 1, until - least
        while at <= last_header:
            event_type, size, end_log_pos = unpack(data, at)
            stop = at + size
            if (
                size < least
                or stop > until
                or kinds[event_type] >= _GTID
                or end_log_pos != wrapped + stop
                or (trailer and crc32(data[at:stop]) != CRC_RESIDUE)
            ):
                break
            at = stop
            count += 1
        if at != until:
            at = begin
            break
        commit_us = packed & COMMIT_MASK
        if commit_us < least_us:  # noqa: PLR1730 - min() costs more
            least_us = commit_us
        if commit_us > greatest_us:  # noqa: PLR1730
            greatest_us = commit_us
        if kind == _ANONYMOUS:
            anonymous += 1
        elif gno == number and source == uuid:
            number += 1
        else:
            if first < number:
                boundaries.add_run(uuid, first, number - 1)
            uuid, first, number = source, gno, gno + 1
        transactions += 1
        events += count
    if transactions:
        if first < number:
            boundaries.add_run(uuid, first, number - 1)
        times = (commit_us, least_us, greatest_us)
        boundaries.add_whole(transactions, anonymous, base + at, times)
    return at, events
