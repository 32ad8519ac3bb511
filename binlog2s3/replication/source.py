"""A replication source's sockets: who connects, logs in and asks for events.

Law: a client's input can end its own connection and nothing else. A client that is refused gets an
error that says why. Connections, idle time, attempts to log in, GTID sets and bandwidth are
limited. Who has not logged in can take no place from who has.
"""

import secrets
import select
import socket
import ssl
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.log import Log
from binlog2s3.replication.endpoint import LOOPBACK, Endpoint
from binlog2s3.replication.feed import NotServedError
from binlog2s3.replication.login import (
    NONCE_SIZE,
    Account,
    Ended,
    LoggedIn,
    TlsWanted,
    too_many_connections,
)
from binlog2s3.replication.packets import PACKET_MOST, Buffer
from binlog2s3.replication.protocol import GTIDS_MOST, Conversation, Dump, ProtocolError
from binlog2s3.replication.queries import Identity

_IDLE_SECONDS = 60.0  # between two commands
_FIRST_MOST = 1 << 16
_SEND_SECONDS = 60.0
_DRAIN_SECONDS = 2.0
_BATCH = 1 << 18
_KEEPALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
_FAILED_SECONDS = (0.5, 8.0)  # the wait after a wrong password; doubled with each one
_FAILED_FORGOTTEN = 300.0
_FAILED_MOST = 1024
_FRAMES = 4  # of a traceback
_log = Log("serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """The limits of one source. `connections`: of all users; `per_user`: of each user.

    `logging_in`: connections that have not logged in, which do not count as `connections`. One more
    ends the oldest of the address that has most of them. `gtids`: bytes of the GTID sets that one
    user's connections have sent. `bandwidth`: bytes per second to all connections of one user
    together. `login_seconds`: for all of a login, TLS included. None: no limit.
    """

    connections: int = 8
    per_user: int | None = None
    logging_in: int = 32
    gtids: int = 4 * GTIDS_MOST
    bandwidth: int | None = None
    login_seconds: float = 10.0


class Source:
    """Listens, and serves clients. A context manager; it listens as soon as it is made.

    `identity` is called for each connection. `answer` sends one dump to a client, in the client's
    own thread, until `ended`. The client gets the error that it raises; an error that is not a
    `NotServedError` is also `failure`. `one_of`: among one user's dumps for which it returns the
    same value, only the newest is served, because its client has reconnected. Raises RecoveryError
    if it cannot listen there.
    """

    def __init__(
        self,
        identity: Callable[[], Identity],
        accounts: Sequence[Account],
        answer: Callable[["Client", Dump], None],
        *,
        one_of: Callable[[Dump], Hashable | None] = lambda _dump: None,
        at: Endpoint = LOOPBACK,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._identity = identity
        self._accounts = tuple(accounts)
        self._answer = answer
        self._one_of = one_of
        self._tls = at.tls
        self._needs_tls = at.needs_tls
        self._limits = limits or ConnectionLimits()
        self.failure: Binlog2s3Error | None = None
        self.defect: Binlog2s3Error | None = None
        """An error of this program itself, which has ended a client; then it is `failure`, too."""
        self.ended = threading.Event()
        self.refused = Counter[str]()
        """Connections that were refused, by reason: "password", "connections", "protocol"."""
        self._lock = threading.Lock()
        self._open: set[Client] = set()
        self._dumping: dict[tuple[str, Hashable], Client] = {}
        self._paces: dict[str, _Pace] = {}
        self._failures = _Failures()
        self._number = 0
        self._listener = at.bound()
        self._listener.settimeout(0.5)
        self._thread = threading.Thread(target=self._accept, name="serve", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port, *_ = self._listener.getsockname()
        return str(host), int(port)

    @property
    def clients(self) -> list["Client"]:
        """The clients that have logged in, the oldest first."""
        with self._lock:
            found = [one for one in self._open if one.user]
        return sorted(found, key=lambda one: one.number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end all connections. May be called again."""
        self.ended.set()
        self._listener.close()
        with self._lock:
            clients = list(self._open)
        for client in clients:
            client.end()
        self._thread.join(2.0)

    # connections

    def _accept(self) -> None:
        """Take connections until the end; what one of them raises ends none of the others."""
        while not self.ended.is_set():
            try:
                connection, address = self._listener.accept()
            except TimeoutError:
                continue
            except (OSError, MemoryError):
                if not self.ended.wait(0.2):  # for example, no free file descriptors
                    continue
                return
            try:
                self._take(connection, str(address[0]))
            except Exception as error:  # noqa: BLE001 - it must not end the others
                if not isinstance(error, OSError | RuntimeError | MemoryError):
                    self.failure = self.defect = defect_of(error)
                self._turn_away(connection, str(address[0]), why=str(error))

    def _take(self, connection: socket.socket, host: str) -> None:
        """Serve a connection in a thread of its own, or turn it away. Raises OSError, RuntimeError.

        RuntimeError: the system starts no more threads.
        """
        with self._lock:
            new = [one for one in self._open if not one.user]
            is_full = len(self._open) - len(new) >= self._limits.connections
            # those that were told to end have a moment to do so
            is_full |= len(new) >= 2 * self._limits.logging_in
            if not is_full:
                self._number += 1
                client = Client(connection, host, self._number)
                self._open.add(client)
        if is_full:
            self._turn_away(connection, host, why="too many connections")
            return
        waiting = [one for one in new if not one.ended.is_set()]
        if len(waiting) >= self._limits.logging_in:
            self._end_oldest(waiting)
        try:
            threading.Thread(
                target=self._serve, args=(client,), name=f"serve-{client.number}", daemon=True
            ).start()
        except RuntimeError:
            with self._lock:
                self._open.discard(client)
            raise

    def _end_oldest(self, waiting: Sequence["Client"]) -> None:
        """End the oldest login of the address that has most of them."""
        counts = Counter(one.host for one in waiting)
        oldest = min(waiting, key=lambda one: (-counts[one.host], one.number))
        self.refused["connections"] += 1
        _log.debug("too many logins", host=oldest.host, number=oldest.number)
        oldest.end()

    def _turn_away(self, connection: socket.socket, host: str, *, why: str) -> None:
        """Tell a client that there are too many connections, and close its own."""
        self.refused["connections"] += 1
        _log.recurring("a connection was turned away", host=host, why=why)
        with suppress(OSError):
            connection.settimeout(0)
            connection.sendall(too_many_connections())
        connection.close()

    def _conversation(self, client: "Client") -> Conversation:
        nonce = bytes(33 + secrets.randbelow(94) for _ in range(NONCE_SIZE))
        return Conversation(
            self._identity(),
            self._accounts,
            nonce=nonce,
            connection_id=client.number,
            admit=partial(self._admit, client),
            has_room=partial(self._has_room, client),
            has_tls=self._tls is not None,
            needs_tls=self._needs_tls,
        )

    def _admit(self, client: "Client", user: str) -> str:
        """Why this user, whose password was right, may not log in now; "" if it is logged in."""
        most = self._limits.per_user
        with self._lock:
            users = [one.user for one in self._open if one.user]
            if len(users) >= self._limits.connections:
                why = "too many connections"
            elif most is not None and users.count(user) >= most:
                why = f"user {user[:64]!r} has {most} connections already, the most it may have"
            else:
                client.user = user
                return ""
        self.refused["connections"] += 1
        return why

    def _has_room(self, client: "Client", size: int) -> bool:
        """Whether a client may send a GTID set of this many bytes."""
        with self._lock:
            others = sum(one.gtids for one in self._open if one.user == client.user)
            if others and others + size > self._limits.gtids:
                return False
            client.gtids += size
            return True

    def _serve(self, client: "Client") -> None:
        """Serve one client until it leaves."""
        try:
            self._talk(client)
        except ProtocolError as error:
            self.refused["protocol"] += 1
            _log.debug("a client has left", number=client.number, why=str(error))
            if client.user:
                client.drain()
        except (OSError, EOFError) as error:
            _log.debug("a client has left", number=client.number, why=str(error))
        except MemoryError:  # what it asked for may have been too much, or others had it
            _log.recurring("a client was lost", number=client.number, why="no memory is left")
        except Exception as error:  # noqa: BLE001 - the command must learn of it
            self.failure = self.defect = defect_of(error)
            _log.error("an internal error has ended a client", self.defect, number=client.number)
        finally:
            with self._lock:
                self._open.discard(client)
                for key in [key for key, one in self._dumping.items() if one is client]:
                    del self._dumping[key]
            client.close()

    def _talk(self, client: "Client") -> None:
        client.conversation = self._conversation(client)
        client.send([client.conversation.greeting()])
        until = time.monotonic() + self._limits.login_seconds
        while True:
            for event in client.receive(until, before_refusal=self._slow_down):
                if isinstance(event, TlsWanted):
                    assert self._tls is not None  # noqa: S101 - the conversation offers it only then
                    client.wrap(self._tls, until)
                elif isinstance(event, LoggedIn):
                    client.pace = self._pace_of(event.user)
                elif isinstance(event, Ended):
                    return
                else:
                    self._begin(client, event)
                    return
            if client.user:
                until = time.monotonic() + _IDLE_SECONDS

    def _slow_down(self, client: "Client") -> None:
        """Wait before a wrong password is answered, longer after each one from an address."""
        self.refused["password"] += 1
        seconds = self._failures.note(client.host, time.monotonic())
        user = client.conversation.user[:64]
        _log.warning("a login was refused", user=user, host=client.host, waits_seconds=seconds)
        client.ended.wait(seconds)

    def _pace_of(self, user: str) -> "_Pace | None":
        rate = self._limits.bandwidth
        if rate is None:
            return None
        with self._lock:
            return self._paces.setdefault(user, _Pace(rate, self.ended))

    # dumps

    def _begin(self, client: "Client", dump: Dump) -> None:
        one_of = self._one_of(dump)
        if one_of is not None:
            key = (client.user, one_of)  # what a user says must not end another one's connection
            with self._lock:
                before, self._dumping[key] = self._dumping.get(key), client
            if before is not None:
                before.end()
        client.dump = dump
        try:
            self._answer(client, dump)
        except NotServedError as error:
            _log.warning("a dump was refused", number=client.number, error=error)
            client.refuse(str(error), code=error.code)
        except Binlog2s3Error as error:
            _log.warning("a dump was refused", number=client.number, error=error)
            self.failure = error
            client.refuse(str(error))


class Client:
    """A connection and its conversation. Only its own thread may call it, except for `end`."""

    conversation: Conversation

    def __init__(self, connection: socket.socket, host: str, number: int) -> None:
        self._socket = connection
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if (option := getattr(socket, name, None)) is not None:
                self._socket.setsockopt(socket.IPPROTO_TCP, option, value)
        self.host = host
        self.number = number
        self.user = ""
        """The user that has logged in; "" before that."""
        self.gtids = 0
        """Bytes of the GTID sets that it has sent."""
        self.ended = threading.Event()
        """It was told to end, or closed."""
        self.dump: Dump | None = None
        self.pace: _Pace | None = None
        self.since = time.time()
        self.sent = 0
        """Bytes of events."""
        self._batch = bytearray()
        self._is_new = True

    def wrap(self, tls: ssl.SSLContext, until: float) -> None:
        """Begin TLS. Raises OSError, also at `until` (on the monotonic clock)."""
        # known to `end` before the handshake, which may take as long as the client likes
        self._socket = tls.wrap_socket(
            self._socket, server_side=True, do_handshake_on_connect=False
        )
        if self.ended.is_set():
            raise EOFError("it was told to end")
        self._socket.settimeout(max(0.01, until - time.monotonic()))
        self._socket.do_handshake()
        self.conversation.secured()

    def end(self) -> None:
        """End the connection, from any thread."""
        self.ended.set()
        with suppress(OSError, ValueError):
            # not that of TLS, which takes away what its own thread may be using
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self.ended.set()
        with suppress(OSError):
            self._socket.close()

    def drain(self) -> None:
        """Drop what it still sends, for a moment: it would lose the error that it was sent."""
        with suppress(OSError, ValueError):
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
            until = time.monotonic() + _DRAIN_SECONDS
            while (left := until - time.monotonic()) > 0:
                self._socket.settimeout(left)
                if not self._socket.recv(1 << 16):
                    return

    def has_left(self) -> bool:
        """Whether a client that gets events has closed the connection, or sent something."""
        with suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN | select.POLLHUP | select.POLLERR)
            return bool(poll.poll(0))
        return True

    def receive(
        self, until: float, *, before_refusal: Callable[["Client"], None] = lambda _client: None
    ) -> list[TlsWanted | LoggedIn | Dump | Ended]:
        """Take what the client sends next, and send the answers; the events that follow from it.

        `before_refusal` is called before the answer that the password is wrong. Raises OSError
        at `until` (on the monotonic clock), EOFError if the client has left.
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
            events = self.conversation.receive(data, now=int(time.time()))
            if any(isinstance(one, Ended) and one.is_denied for one in events):
                before_refusal(self)
        finally:
            self.send([self.conversation.to_send()])
        return events

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
        if size == len(data) and size < PACKET_MOST:  # nearly all events
            self._batch += self.conversation.event_head(size)
            self._batch += data
        else:
            for part in self.conversation.event_packets(data, size=size):
                self._batch += part
        if len(self._batch) >= _BATCH:
            self.flush()

    def send_events(self, data: memoryview, sizes: Sequence[int]) -> None:
        """Send whole events of these sizes, up to 64 KiB each, that follow each other in `data`."""
        framed = self.conversation.whole_events(data, sizes)
        self._batch = bytearray().join((self._batch, *framed))
        if len(self._batch) >= _BATCH:
            self.flush()

    def flush(self) -> None:
        """Send what is buffered."""
        if self._batch:
            if self.pace is not None:
                self.pace.wait(len(self._batch))
            self.send([self._batch])
            self.sent += len(self._batch)
            self._batch = bytearray()

    def finish(self) -> None:
        """End a dump that is complete: the client asked only for what there is now."""
        self.flush()
        self.conversation.finish_dump()
        self.send([self.conversation.to_send()])

    def refuse(self, why: str, *, code: int = 1236) -> None:
        """End the dump with an error that the client shows."""
        with suppress(OSError):
            self.flush()
            self.conversation.refuse_dump(why, code=code)
            self.send([self.conversation.to_send()])


def defect_of(error: Exception) -> Binlog2s3Error:
    """What an operator is told of an error that nobody expected, with where it came from."""
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    where = ", ".join(f"{Path(one.filename).name}:{one.lineno}" for one in reversed(frames))
    at = f" (at {where})" if where else ""
    return Binlog2s3Error(
        f"internal error: {type(error).__name__}: {error}{at}",
        hint="this is a defect: report it with this line, and restart",
    )


class _Pace:
    """Limits the bytes per second of one user's connections. Thread-safe."""

    def __init__(self, rate: int, ended: threading.Event) -> None:
        self._rate = rate
        self._ended = ended
        self._lock = threading.Lock()
        self._free = 0.0

    def wait(self, size: int) -> None:
        """Wait until this many bytes may be sent."""
        with self._lock:
            now = time.monotonic()
            begin = max(now, self._free)
            self._free = begin + size / self._rate
        if begin > now:
            self._ended.wait(begin - now)


class _Failures:
    """Counts wrong passwords by address, of the newest addresses. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}

    def note(self, host: str, now: float) -> float:
        """Count a wrong password; the seconds to wait before the answer."""
        least, most = _FAILED_SECONDS
        with self._lock:
            count, at = self._seen.pop(host, (0, now))
            count = count + 1 if now - at < _FAILED_FORGOTTEN else 1
            while len(self._seen) >= _FAILED_MOST:
                del self._seen[next(iter(self._seen))]
            self._seen[host] = (count, now)
        return float(min(most, least * 2 ** min(count - 1, 10)))
