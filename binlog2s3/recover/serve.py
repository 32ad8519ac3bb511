"""A replication source for a recovery's pieces: a replica gets what the plan says and no more.

Place in the flow: `replicate` starts one and tells the target to replicate from it. `protocol`
knows the packets, `feed` the events.

Law: between two transactions the source waits while it is `AHEAD_MOST` bytes or more ahead of what
the target has executed, because the target's disk may have no space for more. A replica that cannot
be served is told why. A client's input can end its own connection and nothing else.
"""

import secrets
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Self

from binlog2s3.binlog.executed import executed
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError, StoreError
from binlog2s3.log import Log
from binlog2s3.recover.feed import GTID_EVENTS, Feed, NotServedError, heartbeat_event
from binlog2s3.recover.listen import bound
from binlog2s3.recover.model import Checked, PlanPiece, Stream
from binlog2s3.recover.protocol import (
    NONCE_SIZE,
    Account,
    Buffer,
    Conversation,
    DumpByGtid,
    DumpByPosition,
    Ended,
    LoggedIn,
    ProtocolError,
    TlsWanted,
)
from binlog2s3.recover.queries import Identity

AHEAD_MOST = 128 << 20
"""The most bytes of binlog that are sent and not executed; one transaction may exceed it."""

_LOGIN_SECONDS = 10.0
_IDLE_SECONDS = 60.0  # between two commands
_FIRST_MOST = 1 << 16
_SEND_SECONDS = 60.0
_CONNECTIONS_MOST = 8
_BATCH = 1 << 18
_HEARTBEAT_SECONDS = (0.5, 30.0)
_TYPE = 4  # offset of the type in an event's header
_log = Log("serve")

Dump = DumpByGtid | DumpByPosition
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


class Source:
    """Listens, and serves. A context manager; it listens as soon as it is made.

    `tls`: clients may use it, and must if `needs_tls`. Raises RecoveryError if the address cannot
    be used.
    """

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
        self._identity = identity
        self._account = account
        self._served = served
        self._tls = tls
        self._needs_tls = needs_tls
        self.window = window or Window()
        self.failure: Binlog2s3Error | None = None
        self.has_client = threading.Event()
        """A client has logged in and asked for events."""
        self.has_sent_all = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._dumping: socket.socket | None = None
        self._number = 0
        self._listener = bound(host, port)
        self._listener.settimeout(0.5)
        self._thread = threading.Thread(target=self._accept, name="serve", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port, *_ = self._listener.getsockname()
        return str(host), int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end all connections. May be called again."""
        self._ended.set()
        self.window.end()
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(2.0)

    # connections

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                if not self._ended.wait(0.2):  # for example, no free file descriptors
                    continue
                return
            with self._lock:
                is_full = len(self._open) >= _CONNECTIONS_MOST
                if not is_full:
                    self._open.add(connection)
                    self._number += 1
                    number = self._number
            if is_full:
                connection.close()
                continue
            threading.Thread(
                target=self._serve, args=(connection, number), name=f"serve-{number}", daemon=True
            ).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        """Serve one client until it leaves."""
        try:
            self._talk(_Client(connection, self, number))
        except (OSError, EOFError, ProtocolError) as error:
            _log.debug("a client has left", number=number, why=str(error))
        except Exception as error:  # noqa: BLE001 - `replicate` waits for the target and has to know
            self.failure = RecoveryError(f"the source failed: {type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._open.discard(connection)
                if self._dumping is connection:
                    self._dumping = None
            connection.close()

    def conversation(self, number: int) -> Conversation:
        """The conversation with a new client."""
        nonce = bytes(33 + secrets.randbelow(94) for _ in range(NONCE_SIZE))
        return Conversation(
            self._identity,
            self._account,
            nonce=nonce,
            connection_id=number,
            has_tls=self._tls is not None,
            needs_tls=self._needs_tls,
        )

    def _talk(self, client: "_Client") -> None:
        client.send([client.conversation.greeting()])
        until, is_in = time.monotonic() + _LOGIN_SECONDS, False
        while True:
            for event in client.receive(until):
                if isinstance(event, TlsWanted):
                    assert self._tls is not None  # noqa: S101 - the conversation offers it only then
                    client.wrap(self._tls)
                elif isinstance(event, LoggedIn):
                    is_in = True
                elif isinstance(event, Ended):
                    return
                else:
                    self._begin(client, event)
                    return
            if is_in:
                until = time.monotonic() + _IDLE_SECONDS

    # dumps

    def _begin(self, client: "_Client", dump: Dump) -> None:
        """One dump at a time: a new one ends the one before, whose replica may have left."""
        with self._lock:
            before, self._dumping = self._dumping, client.raw
        if before is not None:
            with suppress(OSError):
                before.shutdown(socket.SHUT_RDWR)
        why = self._refusal(dump)
        if why:
            client.refuse(why)
            return
        self.has_client.set()
        try:
            self._dump(client, dump)
        except NotServedError as error:
            client.refuse(str(error))
        except (ArchiveError, RecoveryError, StoreError) as error:
            self.failure = error
            client.refuse(str(error))

    def _refusal(self, dump: Dump) -> str:
        """Why this cannot be served; "" if it can."""
        if self._served.once and self.has_client.is_set():
            return "this source serves one dump only: run the same command again"
        if isinstance(dump, DumpByGtid):
            return "" if self._identity.flavour == "mysql" else "this source is a MariaDB"
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

    def _dump(self, client: "_Client", dump: Dump) -> None:
        first = self._first(dump) or 0
        pieces = self._served.pieces[first:]
        gtids = dump.gtids if isinstance(dump, DumpByGtid) else dump.state
        feed = Feed(
            server_id=self._identity.server_id,
            checksum=self._identity.checksum,
            name_of=self._served.name_of,
            has=None if gtids is None or self._served.once else executed(gtids),
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
                    feed.name, feed.position, server_id=self._identity.server_id,
                    checksum=feed.checksum, version_2=dump.heartbeat_v2,
                ))  # fmt: skip
                client.flush()

        stream = self._served.open(pieces)
        with closing(stream):
            for part in feed.parts(self._marked(stream, feed.sent, first)):
                begins = part.size and part.data[_TYPE] in GTID_EVENTS
                if begins and not self.window.has_room(feed.sent, wait_seconds=0):
                    client.flush()
                    while not self.window.has_room(feed.sent, wait_seconds=beat):
                        heartbeat()
                client.send_event(part.data, part.size)
        client.flush()
        self.has_sent_all.set()
        while not self._ended.wait(beat):
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


class _Client:
    """A socket and its conversation."""

    def __init__(self, connection: socket.socket, source: Source, number: int) -> None:
        self.raw = connection
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.conversation = source.conversation(number)
        self._batch = bytearray()
        self._is_new = True

    def wrap(self, tls: ssl.SSLContext) -> None:
        """Begin TLS. Raises OSError."""
        self._socket = tls.wrap_socket(self._socket, server_side=True)
        self.conversation.secured()

    def receive(self, until: float) -> list[TlsWanted | LoggedIn | Dump | Ended]:
        """What the client sends next; what can be answered at once is answered.

        Raises OSError at `until` (on the monotonic clock), EOFError if the client has left.
        """
        if self._is_new:  # TLS may begin right after the first packet, in the same segment
            self._is_new = False
            data = self._read(4, until)
            data += self._read(min(int.from_bytes(data[:3], "little"), _FIRST_MOST), until)
        else:
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            data = self._socket.recv(1 << 16)
        if not data:
            raise EOFError("closed by the client")
        try:
            return self.conversation.receive(data, now=int(time.time()))
        finally:
            self.send([self.conversation.to_send()])

    def _read(self, size: int, until: float) -> bytes:
        data = b""
        while len(data) < size:
            self._socket.settimeout(max(0.01, until - time.monotonic()))
            more = self._socket.recv(size - len(data))
            if not more:
                raise EOFError("closed by the client")
            data += more
        return data

    def send(self, parts: Sequence[Buffer]) -> None:
        """Send all of it. Raises OSError."""
        self._socket.settimeout(_SEND_SECONDS)
        for part in parts:
            if part:
                self._socket.sendall(part)

    def send_event(self, data: Buffer, size: int | None = None) -> None:
        """Send an event, or a part of one (`walk.EventPart`) if `size` is given."""
        size = len(data) if size is None else size
        for part in self.conversation.event_packets(data, size=size):
            self._batch += part
        if len(self._batch) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered."""
        if self._batch:
            self.send([self._batch])
            self._batch = bytearray()

    def refuse(self, why: str) -> None:
        """End the dump with an error that the replica shows."""
        with suppress(OSError):
            self.flush()
            self.conversation.refuse_dump(why)
            self.send([self.conversation.to_send()])
