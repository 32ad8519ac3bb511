"""The replication source of a recovery: a replica gets what the plan says and no more.

Between two transactions the source waits while it is `AHEAD_MOST` bytes or more ahead of what the
target has executed, because the target's disk may have no space for more.
"""

import ssl
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from binlog2s3.recover.feed import parts
from binlog2s3.recover.model import Checked, PlanPiece, Stream
from binlog2s3.replication.events import GTID_EVENTS, heartbeat_event
from binlog2s3.replication.feed import Feed, NotServedError, had
from binlog2s3.replication.login import Account
from binlog2s3.replication.protocol import Dump, DumpByGtid
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.source import Client, Source

AHEAD_MOST = 128 << 20
"""The most bytes of binlog that are sent and not executed; one transaction may exceed it."""

_HEARTBEAT_SECONDS = (0.5, 30.0)
_TYPE = 4  # offset of the type in an event's header

OpenStream = Callable[
    [Sequence[PlanPiece]], Generator[tuple[PlanPiece, Iterator[Checked]], None, None]
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMark:
    """A place, as the replica names it, and how much of the pieces comes before it."""

    name: str
    position: int
    size: int
    transactions: int
    commit_us: int | None


class Window:
    """How far the source is, and how far ahead of the target it may get. Thread-safe."""

    def __init__(self, most: int = AHEAD_MOST) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._marks: deque[SentMark] = deque()
        self._reached: SentMark | None = None
        self._ended = False

    def begin(self) -> None:
        """A dump begins: forget the places of an older one."""
        with self._changed:
            self._marks.clear()

    def mark(self, mark: SentMark) -> None:
        """What is sent from now on comes after this place, or ends there."""
        with self._changed:
            self._marks.append(mark)

    def reached(self, name: str, position: int) -> SentMark | None:
        """The target has executed everything before this place: the last mark that it has passed.

        None if it has passed none yet.
        """
        with self._changed:
            last = max(
                (
                    n
                    for n, one in enumerate(self._marks)
                    if one.name == name and one.position <= position
                ),
                default=-1,
            )
            for _ in range(last + 1):
                self._reached = self._marks.popleft()
            if last >= 0:
                self._changed.notify_all()
            return self._reached

    def end(self) -> None:
        """End all waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def has_room(self, sent: int, *, wait_seconds: float) -> bool:
        """Whether the source may send more; waits up to `wait_seconds` for it. True after `end`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._ended or sent - self.size() < self._most, wait_seconds
            )

    def size(self) -> int:
        """Bytes of the pieces that the target has executed, as last asked."""
        return 0 if self._reached is None else self._reached.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What is served: pieces in their order, their names at the replica, and how to read them.

    No two pieces have the same name. `once`: there is one dump, of all the pieces, whatever the
    replica says it has; a second dump is refused. `not_of`: the replica's own server_id, whose
    events it would skip.
    """

    pieces: Sequence[PlanPiece]
    name_of: Callable[[PlanPiece], str]
    open: OpenStream
    once: bool = False
    not_of: int | None = None


class PlanSource(Source):
    """A source of pieces, for one replica: a new dump ends the one before. See `Source`."""

    def __init__(
        self,
        identity: Identity,
        account: Account,
        served: Served,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        window: Window | None = None,
        tls: ssl.SSLContext | None = None,
        needs_tls: bool = False,
    ) -> None:
        self._who = identity
        self._served = served
        self.window = window or Window()
        self.has_client = threading.Event()
        """A client has logged in and asked for events."""
        self.has_sent_all = threading.Event()
        super().__init__(
            lambda: identity,
            [account],
            self._answer_dump,
            one_of=lambda _dump: "the target",
            host=host,
            port=port,
            tls=tls,
            needs_tls=needs_tls,
        )

    def close(self) -> None:
        """Stop listening, and end all connections. May be called again."""
        self.window.end()
        super().close()

    def _answer_dump(self, client: Client, dump: Dump) -> None:
        why = self._refusal(dump)
        if why:
            raise NotServedError(why)
        self.has_client.set()
        self._dump(client, dump)

    def _refusal(self, dump: Dump) -> str:
        """Why this cannot be served; "" if it can."""
        if self._served.once and self.has_client.is_set():
            return "this source serves one dump only: run the same command again"
        if isinstance(dump, DumpByGtid):
            return "" if self._who.flavour == "mysql" else "this source is a MariaDB"
        if dump.state is not None:
            return ""
        if self._first(dump) is None and self._served.pieces:
            return f"{dump.name[:100]}:{dump.position} is not served"
        return ""

    def _first(self, dump: Dump) -> int | None:
        """The number of the first piece to send."""
        if isinstance(dump, DumpByGtid) or dump.state is not None:
            return 0
        for number, piece in enumerate(self._served.pieces):
            is_named = self._served.name_of(piece) == dump.name
            if is_named and piece.begin <= dump.position <= piece.end:
                return number
        return None

    def _dump(self, client: Client, dump: Dump) -> None:
        first = self._first(dump) or 0
        pieces = self._served.pieces[first:]
        gtids = dump.gtids if isinstance(dump, DumpByGtid) else dump.state
        feed = Feed(
            server_id=self._who.server_id,
            checksum=dump.checksum,
            has=None if gtids is None or self._served.once else had(gtids),
            at=self._at(dump),
            not_of=self._served.not_of,
        )
        feed.sent = sum(piece.size for piece in self._served.pieces[:first])
        self.window.begin()
        least, most = _HEARTBEAT_SECONDS
        beat = min(max(dump.heartbeat, least), most)

        def heartbeat() -> None:
            if dump.heartbeat and feed.name:
                client.send_event(heartbeat_event(
                    feed.name, feed.position, server_id=self._who.server_id,
                    checksum=feed.checksum, version_2=dump.heartbeat_v2,
                ))  # fmt: skip
                client.flush()

        stream = self._served.open(pieces)
        with closing(stream):
            marked = self._marked(stream, feed.sent, first)
            for part in parts(feed, marked, self._served.name_of):
                begins = part.size and part.data[_TYPE] in GTID_EVENTS
                if begins and not self.window.has_room(feed.sent, wait_seconds=0):
                    client.flush()
                    while not self.window.has_room(feed.sent, wait_seconds=beat):
                        heartbeat()
                client.send_event(part.data, part.size)
        client.flush()
        self.has_sent_all.set()
        while not self.ended.wait(beat):
            heartbeat()

    def _at(self, dump: Dump) -> tuple[str, int] | None:
        """The place that the dump names, if it is to begin there."""
        if isinstance(dump, DumpByGtid) or dump.state is not None or self._served.once:
            return None
        return dump.name, dump.position

    def _marked(self, stream: Stream, size: int, first: int) -> Stream:
        """The same stream, with a mark for each part in which transactions end and for each end."""
        transactions = sum(piece.transactions for piece in self._served.pieces[:first])
        for piece, data in stream:
            counted = Marked(self.window, self._served.name_of(piece), size, transactions)
            yield piece, counted.through(piece, data)
            size += piece.size
            transactions += piece.transactions


class Marked:
    """Makes the marks of one piece; `size` bytes and `transactions` come before it."""

    def __init__(self, window: Window, name: str, size: int, transactions: int) -> None:
        self._window = window
        self._name = name
        self._size = size
        self._transactions = transactions

    def through(self, piece: PlanPiece, data: Iterator[Checked]) -> Iterator[Checked]:
        """The same data; marks before each part, where its first and its last transaction end.

        The first is marked because the source may wait there, until it has been executed. Its size
        is that of the parts before: most of its own part comes after it.
        """
        size, most = self._size, self._size + piece.size
        transactions, commit_us = self._transactions, None
        is_head = True
        for checked in data:
            before = size
            if not (is_head and piece.begin >= len(checked.data)):
                size += len(checked.data)
            is_head = False
            for number in sorted({0, len(checked.done) - 1}) if checked.done else ():
                one = checked.done[number]
                commit_us = one.commit_us
                count, is_last = transactions + number + 1, number == len(checked.done) - 1
                self._mark(one.end, min(size if is_last else before, most), count, commit_us)
            transactions += len(checked.done)
            yield checked
        self._mark(piece.end, most, self._transactions + piece.transactions, commit_us)

    def _mark(self, position: int, size: int, transactions: int, commit_us: int | None) -> None:
        self._window.mark(
            SentMark(
                name=self._name,
                position=position,
                size=size,
                transactions=transactions,
                commit_us=commit_us,
            )
        )
