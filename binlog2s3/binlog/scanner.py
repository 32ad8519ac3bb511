"""The scanner: checks every event of a binlog and collects the binlog's facts. No I/O.

Law: no byte leaves the spool before the scanner has checked its event. An event is good if its size
fits, `end_log_pos == (offset + size) mod 2**32`, and its CRC32 is right (if it has one). The
scanner counts offsets itself, because end_log_pos wraps at 4 GiB. At the first event that is not
good the scanner raises `DamageError`, and from then on at every call. Its facts remain those of the
last good event, and do not depend on how the bytes are cut into pieces. The scanner keeps no event
as a whole in memory, except those that it decodes.

MariaDB from 11.4 writes end_log_pos 0 in all events of a transaction except the first and the last
(unless binlog_legacy_event_pos is on). If one of these is missing, only the last event shows it. So
they do not count until the last event has come: `event_end` stays before them.

Three loops check events, from fast to thorough: `fast.leap` takes whole transactions, `_walk` takes
events that are whole in the data, and `_step` takes any event, or a part of one. A faster loop
stops before anything that it cannot take. Only `_step` says what is wrong with an event. The table
in `transactions` says where transactions begin and end. `walk` splits bytes that were checked; the
scanner does not use it, because it must compute the CRC32 of an event as its bytes arrive.
"""

import struct
import zlib

from binlog2s3.binlog.events import (
    HEADER,
    HEADER_SIZE,
    IN_USE_FLAG,
    MADE_UP,
    MADE_UP_BYTES,
    MAGIC,
    QUERY_PREFIX,
    EventType,
    FormatEvent,
    Rotate,
    decode_format,
    decode_gtid_list,
    decode_previous_gtids,
    decode_rotate,
    made_up_size,
)
from binlog2s3.binlog.fast import CRC_RESIDUE, LINK, POSITION_MASK, leap, places
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.transactions import (
    CLAIM_SLACK_US,
    DEFERRABLE,
    KINDS,
    Boundaries,
    Kind,
    Transaction,
)
from binlog2s3.errors import DamageError

__all__ = [
    "MADE_UP_BYTES",
    "MAGIC",
    "BinlogName",
    "EventType",
    "FormatEvent",
    "Rotate",
    "Scanner",
    "Transaction",
    "made_up_size",
]

MOST_ACCEPTED = 256
"""At most so many damaged events of one binlog may be accepted."""
DECODED_MOST = 64 << 20
"""The largest event that is decoded, in bytes: four million intervals of GTIDs."""
_WHOLE = 1 << 32
_KEEP = [0] * 256
"""How many bytes of an event `_step` keeps, by type: all bytes of those that it decodes."""
for _type, _kind in enumerate(KINDS):
    if _kind == Kind.QUERY:
        _KEEP[_type] = QUERY_PREFIX
    elif _kind >= Kind.GTID:
        _KEEP[_type] = _WHOLE

_TYPE_OFFSET, _FLAGS_OFFSET = 4, 17
_SMALL_MOST = 2048
"""Up to this size a slice of bytes costs less than a slice of a view."""
_DEFERRED_SIZE_MAX = (1 << 30) + (1 << 16)
"""The greatest max_allowed_packet and some headers: no replica accepts a larger event."""
_GTID, _BETWEEN = int(Kind.GTID), int(Kind.BETWEEN)
_UNDECODABLE = (ValueError, IndexError, struct.error)


class Scanner:
    """Reads a binlog as its bytes arrive, checks every event, and finds every transaction.

    `Scanner()` reads a binlog from its first byte. `Scanner(start=N)` reads the output of
    `mysqlbinlog --start-position=N`: the magic, made-up events (end_log_pos 0), and the binlog from
    N on, where an event must begin. It checks the made-up events but does not count them. Offsets
    are those of the server's binlog. Raises ValueError if no event can begin at `start`.

    `stride` says which transactions `feed` returns: the first that it completes, and the first that
    begins in each range of `stride` bytes. With 1 it returns all. A large stride makes the scanner
    about twice as fast, and changes no fact.

    Its facts are about whole, checked events only:

    - `event_end`: the end of the last good event. Without `start` it is 0 before the magic and 4
      after it; otherwise it begins with `start`.
    - `events`: the number of events. `format`: the last format event. `formats`: all format events,
      including the made-up one.
    - `previous_gtids`: the GTIDs before this binlog, as it says; None if it has not said so yet.
    - `rotate`: the rotate event, or None. `stopped`: whether the last event is a stop event.
    - `skipped`: the number of leading bytes that do not belong to the binlog (0 without `start`).
    - `damaged`: the ranges of the events that were accepted with a wrong checksum.
    - `damage`: the error that every further `feed` raises, or None.
    """

    def __init__(self, start: int = 0, *, stride: int = 1) -> None:
        if start != 0 and start < len(MAGIC):
            raise ValueError(f"no event begins at {start}: a binlog's first is at {len(MAGIC)}")
        self.event_end = start
        self.events = 0
        self._offset = start  # where the next event begins; event_end but for deferred positions
        self._walked = 0  # events up to there
        self.formats: list[FormatEvent] = []
        self.previous_gtids: Gtids | None = None
        self.rotate: Rotate | None = None
        self.stopped = False
        self.skipped = 0
        self.damage: DamageError | None = None
        self.damaged: list[tuple[int, int]] = []
        self._accepted: set[int] = set()
        self._can_rewind = True
        self._start = start
        self._stride = stride
        self._has_magic = False
        self._is_leading = start > 0  # made-up events may still come
        self._trailer = 0  # size of each event's checksum
        self._boundaries = Boundaries(in_the_middle=start > len(MAGIC), stride=stride)
        # of the event (or magic) that has begun but not ended:
        self._head = bytearray()  # as much of its beginning as is needed
        self._seen = 0  # how many bytes of it have come
        self._size = 0  # 0 until its header has come
        self._crc = 0
        self._is_placed = False  # its end_log_pos is there and right
        self._has_small = False  # the events of the last `feed` were small

    def feed(self, data: bytes | bytearray | memoryview) -> list[Transaction]:
        """Take the next bytes; return transactions that they complete (see `stride`), in order.

        Raises DamageError with the offset of the first bad event, and again at every later call.
        If events before it have no position, the offset is that of the first of them.
        """
        completed = self._boundaries.collect()
        if self.damage is not None:
            raise DamageError(str(self.damage), offset=self.damage.offset)
        with memoryview(data) as view:
            at, size, walked = 0, len(view), self._walked
            ordinary = bytes(view) if self._has_small else view
            try:
                while at < size:
                    if not self._seen and self._is_ordinary:
                        at = self._leap(ordinary, at)
                        then, at = at, self._walk(ordinary, at)
                        if at > then:
                            continue
                    at = self._step(view, at)
            except DamageError as damage:
                # a copy that was never raised, so that its traceback does not keep `data` alive
                self.damage = DamageError(str(damage), offset=damage.offset)
                self._can_rewind = self._offset == self.event_end
                self._forget()
                self._offset, self._walked = self.event_end, self.events
                raise
            self._has_small = size < _SMALL_MOST * (self._walked - walked)
        return completed

    def accept(self, offset: int) -> None:
        """Accept the event at this offset even if its checksum or end position is wrong.

        The source itself has it like this. Its body is not decoded.
        """
        self._accepted.add(offset)

    def rewind(self) -> bool:
        """Forget everything after `event_end`, also the damage. The next bytes begin there.

        Returns False and forgets nothing if that is impossible: before the first event, and if
        events without a position were counted.
        """
        if not self._can_rewind or self._offset != self.event_end or not self.events:
            return False
        self.damage = None
        self._forget()
        return True

    def _leap(self, data: bytes | memoryview, at: int) -> int:
        """The fastest loop: whole transactions of MySQL 8 that are not to be returned."""
        if self._may_leap and self._boundaries.is_outside:
            begin = at
            at, events = leap(data, at, self._offset, self._trailer, self._boundaries)
            if events:
                self.event_end = self._offset = self._offset + at - begin
                self.events = self._walked = self._walked + events
        return at

    def _walk(self, data: bytes | memoryview, at: int) -> int:
        """The second loop: take ordinary events that are whole in `data`, from `at` on.

        Returns where it stopped: at the end, or before an event that is not whole, of a rare type,
        or bad.
        """
        unpack, crc32, kinds = LINK.unpack_from, zlib.crc32, KINDS
        boundaries, trailer, may_defer = self._boundaries, self._trailer, self._may_defer
        may_leap = self._may_leap
        least, last_header = HEADER_SIZE + trailer, len(data) - HEADER_SIZE
        base, wrapped, limit = places(len(data), at, self._offset)
        until = boundaries.until - base if boundaries.until else -1
        good, walked, events = self.event_end, self._walked, self.events
        try:
            while at <= last_header:
                event_type, size, end_log_pos = unpack(data, at)
                stop, kind = at + size, kinds[event_type]
                if (
                    size < least
                    or stop > limit
                    or kind >= _BETWEEN
                    or (trailer and crc32(data[at:stop]) != CRC_RESIDUE)
                ):
                    break
                if end_log_pos != wrapped + stop and not (
                    may_defer and self._is_deferred(event_type, size, end_log_pos)
                ):
                    break
                if kind < _GTID and stop <= until:
                    if stop == until:
                        boundaries.close(base + stop)
                        until = -1
                        if may_leap:
                            last_header = -1  # the next ones may leap
                elif kind:
                    boundaries.event(kind, data, at, stop - trailer, base + at, base + stop)
                    until = boundaries.until - base if boundaries.until else -1
                at = stop
                walked += 1
                if may_defer and end_log_pos:
                    good, events = base + at, walked
        except _UNDECODABLE:
            pass  # `_step` says what is wrong
        finally:
            self._offset, self._walked = base + at, walked
            if not may_defer:
                good, events = base + at, walked
            self.event_end, self.events = good, events
        return at

    def _step(self, view: memoryview, at: int) -> int:
        """The third loop: take one event from `at` on, or as much of it as there is.

        Returns where that ends. Raises DamageError if the event is bad, as soon as that is known.
        """
        if self.ended:
            raise self._damaged("bytes after the binlog's last event")
        if not self._size:
            wanted = HEADER_SIZE if self._has_magic else len(MAGIC)
            piece = view[at : at + wanted - self._seen]
            self._head += piece
            self._seen += len(piece)
            at += len(piece)
            if not self._has_magic:
                self._take_magic()
                return at
            if self._seen < wanted:
                return at
            self._take_header()
        piece = view[at : at + self._size - self._seen]
        kept = _KEEP[self._head[_TYPE_OFFSET]] - len(self._head)
        if kept > 0:
            self._head += piece[:kept]
        self._crc = zlib.crc32(piece, self._crc)
        self._seen += len(piece)
        if self._seen == self._size:
            self._take_event()
            self._forget()
        return at + len(piece)

    def _take_magic(self) -> None:
        if not MAGIC.startswith(self._head):
            raise self._damaged(f"a binlog begins with {MAGIC!r}, not {bytes(self._head)!r}")
        if self._seen == len(MAGIC):
            self._has_magic = True
            if self._start:
                self.skipped = len(MAGIC)
            else:
                self.event_end = self._offset = len(MAGIC)
            self._forget()

    def _take_header(self) -> None:
        """Check the header of the event at `_offset`."""
        _, event_type, _, size, end_log_pos, _ = HEADER.unpack_from(self._head)
        end = self._offset + size & POSITION_MASK
        if self._is_leading:
            self._is_leading = end_log_pos == 0 and event_type in MADE_UP
        if event_type != EventType.FORMAT_DESCRIPTION and not self.formats:
            raise self._damaged(f"no format event but type {event_type} comes first")
        if size < HEADER_SIZE + self._trailer:
            raise self._damaged(f"an event of {size} bytes (type {event_type}) is too small")
        if _KEEP[event_type] == _WHOLE and size > DECODED_MOST:
            raise self._damaged(f"an event of {size} bytes (type {event_type}) is too large")
        self._is_placed = end_log_pos == end or self._offset in self._accepted
        if not (
            self._is_placed
            or self._is_leading
            or (self._may_defer and self._is_deferred(event_type, size, end_log_pos))
        ):
            raise self._damaged(
                f"broken chain: the event (type {event_type}, {size} bytes) says that it ends at "
                f"{end_log_pos}, by its place it ends at {end}",
            )
        self._size = size
        self._crc = zlib.crc32(self._head)

    def _take_event(self) -> None:
        """The event at `_offset` is whole: check its CRC, decode it, count it."""
        head, begin, end = self._head, self._offset, self._offset + self._size
        event_type = head[_TYPE_OFFSET]
        try:
            if begin in self._accepted and self.formats:
                self.damaged.append((begin, end))
                event_type = EventType.UNKNOWN
            elif event_type == EventType.FORMAT_DESCRIPTION:
                self._take_format()
            elif self._trailer and self._crc != CRC_RESIDUE:
                raise self._damaged(
                    f"wrong CRC32 (type {event_type}, {self._size} bytes, sum {self._crc:08x})"
                )
            if self._is_leading:
                self.skipped += self._size
                return
            stop = self._size - self._trailer
            self._take_fact(event_type, HEADER_SIZE, stop)
            kind, boundaries = KINDS[event_type], self._boundaries
            if kind < _GTID and end <= boundaries.until:
                if end == boundaries.until:
                    boundaries.close(end)
            elif kind:
                boundaries.event(kind, head, 0, stop, begin, end)
        except _UNDECODABLE as error:
            raise self._damaged(f"undecodable event (type {event_type}): {error}") from error
        self._offset = end
        self._walked += 1
        if self._is_placed:
            self.event_end, self.events = end, self._walked

    def _take_format(self) -> None:
        """Decode a format event. Its CRC is computed with the in-use flag cleared.

        The made-up format event of a binlog without checksums cannot be checked: servers leave the
        CRC of the real one in it.
        """
        offset = 0 if self._is_leading else self._offset
        decoded = decode_format(self._head, offset=offset)
        if decoded.has_checksum and not (self._is_leading and decoded.checksum == "none"):
            cleared = bytearray(self._head)
            cleared[_FLAGS_OFFSET] &= ~IN_USE_FLAG
            if zlib.crc32(cleared) != CRC_RESIDUE:
                raise self._damaged(f"wrong CRC32 (format event, {self._size} bytes)")
        self.formats.append(decoded)
        self._trailer = decoded.trailer
        self._boundaries.gtid_events = decoded.gtid_events

    def _take_fact(self, event_type: int, at: int, end: int) -> None:
        """Remember the facts in events between transactions."""
        if event_type == EventType.ROTATE:
            self.rotate = decode_rotate(self._head, at, end)
        elif event_type == EventType.STOP:
            self.stopped = True
        elif event_type == EventType.PREVIOUS_GTIDS:
            self.previous_gtids = decode_previous_gtids(self._head, at, end)
        elif event_type == EventType.GTID_LIST:
            found = decode_gtid_list(self._head, at, end)
            self.previous_gtids = found
            self._boundaries.least = {(d, s): number for d, s, number in found.gtids()}

    @property
    def _is_ordinary(self) -> bool:
        """Whether the next event may be an ordinary one: after the format event, before the end."""
        return bool(self.formats) and not self._is_leading and not self.ended

    @property
    def _may_leap(self) -> bool:
        """Whether `leap` may be used: it returns no transactions, and knows only MySQL."""
        return self._stride > 1 and self.flavour == "mysql"

    @property
    def _may_defer(self) -> bool:
        """Whether events of this server may have no position."""
        return self.flavour == "mariadb"

    def _is_deferred(self, event_type: int, size: int, end_log_pos: int) -> bool:
        """Whether an event has no position, and is one that needs none: inside a transaction."""
        return (
            end_log_pos == 0
            and bool(DEFERRABLE[event_type])
            and size <= _DEFERRED_SIZE_MAX
            and not self._boundaries.is_outside
        )

    def _forget(self) -> None:
        """Forget the event that has begun."""
        self._head = bytearray()
        self._seen = self._size = self._crc = 0

    def _damaged(self, message: str) -> DamageError:
        return DamageError(f"{message} at {self._offset}", offset=self.event_end)

    @property
    def position(self) -> int:
        """The offset after the last byte that was taken, which may be inside an event."""
        return self._offset + (0 if self._is_leading else self._seen)

    @property
    def format(self) -> FormatEvent | None:
        """The format event that applies to the next event; None before the first."""
        return self.formats[-1] if self.formats else None

    @property
    def flavour(self) -> Flavour | None:
        """The flavour of the server that wrote the binlog; None before the format event."""
        return self.formats[-1].flavour if self.formats else None

    @property
    def ended(self) -> bool:
        """Whether the last event is a rotate or stop event: the server has finished the binlog."""
        return self.stopped or self.rotate is not None

    @property
    def completed(self) -> list[Transaction]:
        """The transactions that the last `feed` returned, or would have if it had not raised."""
        return self._boundaries.completed

    @property
    def transactions(self) -> int:
        """The number of whole transactions: those whose first event was seen, too."""
        return self._boundaries.transactions

    @property
    def anonymous(self) -> int:
        """The number of these that have no GTID."""
        return self._boundaries.anonymous

    @property
    def least_commit_us(self) -> int | None:
        """The least commit time of these; None without any."""
        return self._boundaries.least_us if self.transactions else None

    @property
    def greatest_commit_us(self) -> int | None:
        """The greatest commit time of these; None without any."""
        return self._boundaries.greatest_us if self.transactions else None

    @property
    def reached_us(self) -> int | None:
        """The greatest of these that is credible, see `received`; None if none is."""
        return self._boundaries.reached_us if self._boundaries.reached_us >= 0 else None

    def received(self, at_us: int) -> None:
        """Say when the bytes that follow were received: then not every commit time is credible."""
        self._boundaries.limit_us = at_us + CLAIM_SLACK_US

    @property
    def commit_exact(self) -> bool:
        """Whether all their commit times are exact. If not, some are in whole seconds."""
        return self._boundaries.commit_exact

    @property
    def last_transaction(self) -> tuple[int, int]:
        """End and commit time of the last of them; (0, 0) without any."""
        return self._boundaries.last_end, self._boundaries.last_commit_us

    @property
    def transaction_end(self) -> int:
        """The last offset at which no transaction is open; 0 if not known yet (after `start`)."""
        if self._boundaries.is_outside:
            return self.event_end
        return 0 if self._boundaries.is_unknown else self._boundaries.begin

    @property
    def gtids(self) -> Gtids:
        """The GTIDs of these transactions. MariaDB: the last one of each domain and server."""
        if self.flavour == "mariadb":
            return self._boundaries.mariadb_gtids()
        return self._boundaries.mysql_gtids()

    @property
    def gtids_go_back(self) -> bool:
        """Whether a number of a MariaDB's domain and server was not greater than the one before."""
        return self._boundaries.goes_back

    @property
    def gtids_at_end(self) -> Gtids | None:
        """The previous GTIDs and `gtids` together: the next binlog's previous GTIDs.

        None if the previous ones are not known.
        """
        match self.previous_gtids, self.gtids:
            case GtidSet() as previous, GtidSet() as added:
                return previous | added
            case MariadbGtidList() as last, MariadbGtidList() as later:
                return last.then(later)
            case _:
                return None
