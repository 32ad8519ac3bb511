"""The replication source of a recovery: a replica gets what the plan says and no more, once.

Law: only whole transactions of the plan are sent, and the events that tell a replica where it is
(`replication.feed`). Memory is bounded by one part of the stream and one event of up to 64 KiB.

Between two transactions the source waits while it is `AHEAD_MOST` bytes or more ahead of what the
target has executed, because the target's disk may have no space for more.
"""

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.recover.model import Checked, OpenStream, PlanPiece, Stream
from binlog2s3.replication.endpoint import LOOPBACK, Endpoint
from binlog2s3.replication.feed import Feed, NotServedError
from binlog2s3.replication.login import Account
from binlog2s3.replication.protocol import Dump, DumpByGtid
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.send import Sender, SentBinlog
from binlog2s3.replication.source import Client, Source

AHEAD_MOST = 128 << 20
"""The most bytes of binlog that are sent and not executed; one transaction may exceed it."""

_MARKS = 100  # of a part, about


@dataclass(frozen=True, slots=True, kw_only=True)
class SentMark:
    """A position, as the replica names it, and how much of the pieces comes before it."""

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

    def mark(self, mark: SentMark) -> None:
        """What is sent from now on comes after this position, or ends there."""
        with self._changed:
            self._marks.append(mark)

    def reached(self, name: str, position: int) -> SentMark | None:
        """The target has executed all before this position: the last mark that it has passed.

        None if it has passed none yet.
        """
        with self._changed:
            last = max(
                (
                    n
                    for n, mark in enumerate(self._marks)
                    if mark.name == name and mark.position <= position
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

    def has_room(self, sent: int, wait_seconds: float) -> bool:
        """Whether the source may send more; waits up to `wait_seconds` for it. True after `end`."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._ended or sent - self.size() < self._most, wait_seconds
            )

    def size(self) -> int:
        """Bytes of the pieces that the target has executed, as last asked."""
        return 0 if self._reached is None else self._reached.size


class PlanSource(Source):
    """A source for one dump of one replica: all the pieces, whatever it says it has. See `Source`.

    Another dump ends that one, and is refused. So is a position that is not where the pieces begin.
    `not_of`: the replica's own server_id, whose events it would skip.
    """

    def __init__(
        self,
        identity: Identity,
        account: Account,
        pieces: Sequence[PlanPiece],
        open_stream: OpenStream,
        *,
        not_of: int | None = None,
        at: Endpoint = LOOPBACK,
        window: Window | None = None,
    ) -> None:
        self._who = identity
        self._pieces = pieces
        self._open_stream = open_stream
        self._not_of = not_of
        self.window = window or Window()
        self.has_client = threading.Event()
        """A client has logged in and asked for events."""
        self.has_sent_all = threading.Event()
        super().__init__(
            lambda: identity,
            [account],
            self._answer_dump,
            one_of=lambda _dump: "the target",
            at=at,
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
        feed = Feed(server_id=self._who.server_id, checksum=dump.checksum, not_of=self._not_of)
        room = self.window.has_room
        sender = Sender(client, dump, feed, ended=self.ended.wait, has_room=room)
        with closing(self._open_stream(self._pieces)) as stream:
            sender.send(binlogs(stream, self.window))
        self.has_sent_all.set()
        sender.wait(self.ended.wait)

    def _refusal(self, dump: Dump) -> str:
        """Why this cannot be served; "" if it can."""
        if self.has_client.is_set():
            return "this source serves one dump only: run the same command again"
        if isinstance(dump, DumpByGtid):
            return "" if self._who.flavour == "mysql" else "this source is a MariaDB"
        if dump.state is not None or not self._pieces:
            return ""
        first = self._pieces[0]
        begin = (first.served_name, max(first.begin, len(MAGIC)))
        if (dump.name, dump.position) != begin:
            return f"{dump.name[:100]}:{dump.position} is not served"
        return ""


def binlogs(stream: Stream, window: Window) -> Iterator[SentBinlog]:
    """The pieces of a plan as a source of binlogs.

    The window gets a mark for each end of a piece, and for each part in which transactions end.
    """
    size = transactions = 0
    for piece, data in stream:
        head = next(data).data
        is_whole = piece.begin < len(head)  # the piece has the binlog's own first bytes
        yield SentBinlog(
            name=piece.served_name,
            begin=0 if is_whole else piece.begin,
            head=head[len(MAGIC) :],
            blocks=_marked(
                piece, data, window, size=size, head=len(head) if is_whole else 0,
                transactions=transactions,
            ),
            end=piece.end,
        )  # fmt: skip
        size += piece.size
        transactions += piece.transactions


def _marked(
    piece: PlanPiece,
    data: Iterator[Checked],
    window: Window,
    *,
    size: int,
    head: int,
    transactions: int,
) -> Iterator[bytes]:
    """The bytes of a piece behind its head; marks before each part, where its transactions end.

    `size` bytes and `transactions` come before the piece, and `head` bytes of it before these. The
    first transaction is marked because the source may wait there, until it has been executed;
    others because a target may need long for the thousands that a part can have. The size of a mark
    is that of what comes before its transaction; the last one's is all of the part.
    """

    def mark(position: int, size: int, transactions: int) -> None:
        window.mark(
            SentMark(
                name=piece.served_name,
                position=position,
                size=size,
                transactions=transactions,
                commit_us=commit_us,
            )
        )

    most, of_all = size + piece.size, transactions + piece.transactions
    size += head
    commit_us = None
    for checked in data:
        done = size
        size += len(checked.data)
        last = len(checked.done) - 1
        step = max(1, len(checked.done) // _MARKS)
        for number, transaction in enumerate(checked.done):
            commit_us = transaction.commit_us
            if number % step == 0 or number == last:
                reached = min(size if number == last else done, size, most)
                mark(transaction.end, reached, transactions + number + 1)
            done += transaction.end - transaction.begin
        transactions += len(checked.done)
        yield checked.data
    mark(piece.end, most, of_all)
