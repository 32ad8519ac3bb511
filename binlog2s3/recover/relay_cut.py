"""Cuts a stream into relay logs for a MariaDB, each of which begins as a binlog does. No I/O.

Place in the flow: `relay_mariadb` writes what comes out into the server's relay log directory.

Law: joined, the logs have every byte of the stream once, in its order; none ends inside of a
transaction; and of each it is known where in the history every one of its transactions ends.
"""

import re
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from binlog2s3.binlog.events import CHECKSUM_SIZE, HEADER_SIZE, IN_USE_FLAG, decode_format
from binlog2s3.binlog.scanner import MAGIC, Transaction
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Checked, Piece, Stream
from binlog2s3.recover.trace import Offsets

_FLAGS = HEADER_SIZE - 2
_CREATED = slice(HEADER_SIZE + 52, HEADER_SIZE + 56)
_OWN_ID = "SET GLOBAL server_id at the target to one that is not in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The transactions of one relay log.

    Where each ends there, where it begins and ends in its binlog, when it was committed, its GTID.
    """

    in_log: "array[int]" = field(default_factory=lambda: array("Q"))
    begins: "array[int]" = field(default_factory=lambda: array("Q"))
    in_binlog: "array[int]" = field(default_factory=lambda: array("Q"))
    commit_us: "array[int]" = field(default_factory=lambda: array("q"))
    gtids: list[str] = field(default_factory=list)

    def add(self, gtid: str, one: Transaction, in_log: int) -> None:
        """One more."""
        self.in_log.append(in_log)
        self.begins.append(one.begin)
        self.in_binlog.append(one.end)
        self.commit_us.append(one.commit_us)
        self.gtids.append(gtid)

    def before(self, offset: int) -> int:
        """How many of them end at this offset of the log or before it."""
        return bisect_right(self.in_log, offset)

    def packed(self) -> bytes:
        """Which ends where in its binlog, for `find`."""
        lines = (f"{gtid} {end}" for gtid, end in zip(self.gtids, self.in_binlog, strict=True))
        return zlib.compress("\n".join(["", *lines, ""]).encode(), 1)


def find(packed: bytes, gtid: str) -> list[int]:
    """Where in its binlog this one ends; more than once where it was given more than once."""
    text = zlib.decompress(packed)
    return [int(end) for end in re.findall(f"\n{re.escape(gtid)} (\\d+)(?=\n)".encode(), text)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What goes into a relay log next; it may be empty.

    The first part of a log has its `head`, the magic and the format event; the last one its `ends`.
    """

    piece: Piece
    data: memoryview
    head: bytes = b""
    ends: Ends | None = None


def cut(stream: Stream, *, server_id: int) -> Iterator[Part]:
    """The stream as relay logs, for the server of this id.

    Raises RecoveryError where something comes from a server with the same id: the applier would
    pass it over without a word; and where a transaction has no GTID.
    """
    before: Piece | None = None
    for piece, data in stream:
        checked = iter(data)
        head = next(checked).data
        wrote = decode_format(head[len(MAGIC) :], offset=len(MAGIC))
        if wrote.server_id == server_id:
            raise RecoveryError(
                f"{piece.binlog} comes from a server with the target's own server_id, {server_id}: "
                "its applier would leave it out",
                hint=_OWN_ID,
            )
        is_start = before is not None and _is_another_start(before, piece, head)
        yield from _Cutter(piece, head, is_start=is_start, server_id=server_id).parts(checked)
        before = piece


class _Cutter:
    """One piece. A log is closed behind the last transaction of each part that has one."""

    def __init__(self, piece: Piece, head: bytes, *, is_start: bool, server_id: int) -> None:
        self._piece = piece
        self._server_id = server_id
        self._offsets = Offsets(piece, len(head))
        self._before = max(len(head) - piece.begin, 0)  # of the piece's bytes, in its head
        self._head = head_for(head, is_start=is_start)
        self._next_head = head_for(head, is_start=False)
        self._is_open = False
        self._given = 0  # bytes of the piece, behind the head, that went into logs
        self._began = 0  # how many of those before this log
        self._ends = Ends()

    def parts(self, data: Iterator[Checked]) -> Iterator[Part]:
        for checked in data:
            view = memoryview(checked.data)
            for one in checked.done:
                self._note(one)
            # one whose end only the event behind it shows may end in what was given already
            size = self._last() - self._given
            if checked.done and size >= 0:
                yield self._part(view[:size], closes=True)
                view = view[size:]
            if view:
                yield self._part(view)
        if self._is_open:
            yield self._part(memoryview(b""), closes=True)

    def _part(self, data: memoryview, *, closes: bool = False) -> Part:
        head = b"" if self._is_open else self._head
        self._head, self._is_open = self._next_head, not closes
        self._given += len(data)
        part = Part(piece=self._piece, head=head, data=data, ends=self._ends if closes else None)
        if closes:
            self._ends, self._began = Ends(), self._given
        return part

    def _last(self) -> int:
        """How many of the bytes behind the head lie before the end of the last transaction."""
        return self._behind_head(self._ends.in_binlog[-1]) if self._ends.in_binlog else 0

    def _behind_head(self, offset: int) -> int:
        return self._offsets.given(offset) - self._before

    def _note(self, one: Transaction) -> None:
        if one.gtid is None:
            raise RecoveryError(
                f"the transaction at {self._piece.binlog}:{one.begin} has no GTID: the applier "
                "would not note that it has it",
                hint="--apply pipe takes such",
            )
        if int(one.gtid.split("-")[1]) == self._server_id:
            raise RecoveryError(
                f"{one.gtid} at {self._piece.binlog}:{one.begin} comes from a server with the "
                f"target's own server_id, {self._server_id}: its applier would leave it out",
                hint=_OWN_ID,
            )
        in_log = len(self._next_head) + self._behind_head(one.end) - self._began
        self._ends.add(one.gtid, one, in_log)


def head_for(head: bytes, *, is_start: bool) -> bytes:
    """The magic and the format event for a relay log.

    `is_start`: the applier forgets the temporary tables of the server that was before. Otherwise it
    must not believe that the source was started just then: it would drop them.
    """
    event = bytearray(head[len(MAGIC) :])
    wrote = decode_format(event, offset=len(MAGIC))
    event[_FLAGS] &= ~IN_USE_FLAG & 0xFF
    created = int.from_bytes(event[_CREATED], "little") or wrote.timestamp
    event[_CREATED] = (created if is_start else 0).to_bytes(4, "little")
    if wrote.has_checksum:
        checksum = zlib.crc32(event[:-CHECKSUM_SIZE])
        event[-CHECKSUM_SIZE:] = checksum.to_bytes(CHECKSUM_SIZE, "little")
    return MAGIC + bytes(event)


def _is_another_start(before: Piece, piece: Piece, head: bytes) -> bool:
    """Whether the sessions of the server that wrote this were all new, see `pipe`."""
    created = int.from_bytes(head[len(MAGIC) :][_CREATED], "little")
    return piece.lineage != before.lineage or (piece.binlog != before.binlog and created != 0)
