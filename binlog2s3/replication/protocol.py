"""MySQL's client/server protocol of a replication source: what a client may say, and when. Pure.

`source` owns the socket. It passes what it receives to a `Conversation`, sends what that has to
send, and streams events when the client asks for a dump.

Law: before login, only the login is answered. Memory is bounded by the size of one packet. The only
error raised is `ProtocolError`, whatever the client sends.

Source: MySQL's "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server), pages Command Phase
and Replication Protocol; MariaDB's "Replication Protocol" (knowledge base).
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from binlog2s3.binlog.events import decode_previous_gtids
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.replication.login import Account, ClientLogin, Ended, LoggedIn, TlsWanted
from binlog2s3.replication.packets import Buffer, PacketError, Packets
from binlog2s3.replication.queries import AUTOCOMMIT, OK, Identity, Queries, error

_LOGIN_MOST = 1 << 12
GTIDS_MOST = 1 << 20
"""The most bytes of a client's GTID set, as it sends it: 65,536 intervals."""
_COMMAND_MOST = GTIDS_MOST + (1 << 12)  # with the name of a binlog; text is far smaller
_MALFORMED = 1835  # ER_MALFORMED_PACKET

_QUIT, _QUERY, _PING, _DUMP, _REGISTER, _DUMP_GTID = 0x01, 0x03, 0x0E, 0x12, 0x15, 0x1E
_NON_BLOCK, _HEARTBEAT_V2_WANTED = 0x01, 0x02


class ProtocolError(Binlog2s3Error):
    """The client sent something that the protocol does not allow here; the connection must end.

    `code` is the server error number that was sent to it, 0 if none was.
    """

    exit_code = 8

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByGtid:
    """COM_BINLOG_DUMP_GTID: everything that is not in `gtids`, from the binlog `name` on.

    `name` is "" if the source is to find the binlog. The rest is as in `DumpByPosition`.
    """

    server_id: int
    uuid: str
    name: str
    gtids: GtidSet
    heartbeat: float
    heartbeat_v2: bool
    ends: bool = False
    registered: bool = False
    checksum: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByPosition:
    """COM_BINLOG_DUMP: from `position` in `name`, or for MariaDB everything after `state`.

    `state` is None if the client names a position. `name` is as the client sent it, not a path.
    `heartbeat` in seconds, 0: none. `ends`: the client wants only what there is now.
    `registered`: it is a replica that has registered, and not a program that only reads. `uuid` is
    the replica's, "" if it has not set it. `checksum`: it expects one in the events before the
    first format event.
    """

    server_id: int
    uuid: str
    name: str
    position: int
    state: MariadbGtidList | None
    heartbeat: float
    heartbeat_v2: bool
    ends: bool = False
    registered: bool = False
    checksum: bool = True


Dump: TypeAlias = DumpByGtid | DumpByPosition
Event: TypeAlias = TlsWanted | LoggedIn | Dump | Ended


class _State(Enum):
    LOGIN = "logs in"
    TLS = "begins TLS"
    COMMANDS = "sends commands"
    DUMPING = "gets events"
    ENDED = "has ended"


class Conversation:
    """One client. Begin with `greeting`; then `receive` what comes and send what `to_send` has.

    The arguments are those of `ClientLogin`. `has_room`: whether a GTID set of so many bytes may be
    taken now; it is asked before the set is decoded, once.
    """

    def __init__(
        self,
        identity: Identity,
        accounts: Sequence[Account],
        *,
        nonce: bytes,
        connection_id: int,
        admit: Callable[[str], str] = lambda _user: "",
        has_room: Callable[[int], bool] = lambda _size: True,
        has_tls: bool = False,
        needs_tls: bool = False,
    ) -> None:
        self._identity = identity
        self._id = connection_id
        self._has_room = has_room
        self._packets = Packets()
        self._login = ClientLogin(
            self._packets,
            identity,
            accounts,
            nonce=nonce,
            admit=admit,
            has_tls=has_tls,
            needs_tls=needs_tls,
        )
        self._state = _State.LOGIN
        self._queries = Queries(identity)
        self._registered = False

    @property
    def user(self) -> str:
        """The name with which the client logs in; "" before that."""
        return self._login.user

    # in and out

    def greeting(self) -> bytes:
        """The first packet."""
        self._login.greet(self._id)
        return self.to_send()

    def to_send(self) -> bytes:
        """What has to be sent now; each byte is returned once."""
        return self._packets.to_send()

    def receive(self, data: bytes, *, now: int) -> list[Event]:
        """Take bytes, cut anywhere; `now` is the Unix time, which a query may ask for.

        Raises ProtocolError; send what `to_send` has before the connection is closed.
        """
        events: list[Event] = []
        self._packets.feed(data)
        while self._state not in (_State.ENDED, _State.TLS):
            try:
                payload = self._packet()
                if payload is None:
                    break
                event = self._take(payload, now)
            except PacketError as wrong:
                raise self._malformed(str(wrong), code=wrong.code) from wrong
            except (IndexError, ValueError, struct.error, UnicodeError) as wrong:
                raise self._malformed(str(wrong)) from wrong
            if event is not None:
                events.append(event)
        if self._state is _State.TLS and self._packets.has_bytes:
            raise self._malformed("bytes before TLS has begun")
        if self._state is _State.ENDED:
            self._packets.drop()
        return events

    def secured(self) -> None:
        """TLS has begun; the login follows. Raises ValueError if the client did not ask for it."""
        if self._state is not _State.TLS:
            raise ValueError("the client has not asked for TLS")
        self._state = _State.LOGIN
        self._login.secured()

    def event_head(self, size: int) -> bytes:
        """See `Packets`."""
        return self._packets.event_head(size)

    def whole_events(self, data: memoryview, sizes: Sequence[int]) -> list[Buffer]:
        """See `Packets`."""
        return self._packets.whole_events(data, sizes)

    def event_packets(self, data: Buffer, *, size: int) -> Iterator[Buffer]:
        """See `Packets`."""
        return self._packets.event_packets(data, size=size)

    def finish_dump(self) -> None:
        """End a dump that is complete (an EOF packet)."""
        self._packets.send(b"\xfe\0\0" + struct.pack("<H", AUTOCOMMIT))
        self._state = _State.ENDED

    def refuse_dump(self, text: str, *, code: int = 1236) -> None:
        """End a dump with an error. Replicas show it; on 1236 they stop."""
        self._packets.send(error(code, text))
        self._state = _State.ENDED

    def _packet(self) -> bytes | None:
        """The next packet. A client that gets events counts its own packets as it likes."""
        return self._packets.take(
            _LOGIN_MOST if self._state is _State.LOGIN else _COMMAND_MOST,
            restarts=self._state is _State.COMMANDS,
            is_counted=self._state is not _State.DUMPING,
        )

    def _malformed(self, what: str, *, code: int = _MALFORMED) -> ProtocolError:
        """The error to raise. A client that has not logged in is told nothing."""
        if self._state in (_State.COMMANDS, _State.DUMPING):
            self._packets.send(error(code, f"malformed packet: {what}"))
        else:
            code = 0
        self._state = _State.ENDED
        self._packets.drop()
        return ProtocolError(f"malformed packet: {what}", code=code)

    def _take(self, payload: bytes, now: int) -> Event | None:
        if self._state is not _State.LOGIN:
            return self._take_command(payload, now)
        event = self._login.take(payload)
        if isinstance(event, LoggedIn):
            self._state = _State.COMMANDS
        elif isinstance(event, TlsWanted):
            self._state = _State.TLS
        elif isinstance(event, Ended):
            self._state = _State.ENDED
        return event

    def _end(self, why: str = "") -> Ended:
        self._state = _State.ENDED
        return Ended(why)

    # commands

    def _take_command(self, payload: bytes, now: int) -> Event | None:
        command = payload[0]
        if command == _QUIT:
            return self._end()
        if self._state is _State.DUMPING:
            raise ValueError("a command in the middle of a dump")
        if command == _PING:
            self._packets.send(OK)
        elif command == _QUERY:
            for one in self._queries.answer(payload[1:], now):
                self._packets.send(one)
        elif command == _REGISTER:
            struct.unpack_from("<I", payload, 1)  # a server id, or it is malformed
            self._registered = True
            self._packets.send(OK)
        elif command == _DUMP:
            return self._begin(len(self._queries.gtid_position or ""), payload, self._dump)
        elif command == _DUMP_GTID:
            return self._begin(len(payload), payload, self._dump_gtid)
        else:
            self._packets.send(
                error(1047, f"unknown command {command}: this is an archive's replication source")
            )
        return None

    def _begin(self, gtids: int, payload: bytes, decode: Callable[[bytes], Dump]) -> Event:
        """Begin a dump; `gtids`: bytes of its GTIDs, which are decoded only if there is room."""
        if self._identity.checksum and not self._queries.takes_checksums:
            self._packets.send(error(1236, "the replica cannot handle events with checksums"))
            return self._end("a replica without checksums")
        if not self._has_room(gtids):
            text = "this user's connections have the most bytes of GTID sets that they may have"
            self._packets.send(error(1226, text))
            return self._end(text)
        event = decode(payload)
        self._state = _State.DUMPING
        return event

    def _dump(self, payload: bytes) -> DumpByPosition:
        position, flags, server_id = struct.unpack_from("<IHI", payload, 1)
        given = self._queries.gtid_position
        return DumpByPosition(
            server_id=server_id,
            uuid=self._queries.uuid,
            name=_text(payload[11:]),
            position=position,
            state=None if given is None else MariadbGtidList.parse(given),
            heartbeat=self._queries.heartbeat_seconds,
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
            ends=bool(flags & _NON_BLOCK),
            registered=self._registered,
            checksum=self._queries.wants_checksum,
        )

    def _dump_gtid(self, payload: bytes) -> DumpByGtid:
        flags, server_id, name_size = struct.unpack_from("<HII", payload, 1)
        at = 11 + name_size + 8
        (size,) = struct.unpack_from("<I", payload, at)
        if size > GTIDS_MOST:
            raise PacketError(f"a GTID set of {size} bytes, of at most {GTIDS_MOST}", 1153)
        data = payload[at + 4 :]
        if len(data) < size:
            raise ValueError("GTID set cut short")
        return DumpByGtid(
            server_id=server_id,
            uuid=self._queries.uuid,
            name=_text(payload[11 : 11 + name_size]),
            gtids=decode_previous_gtids(data, 0, size) if size else GtidSet(),
            heartbeat=self._queries.heartbeat_seconds,
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
            ends=bool(flags & _NON_BLOCK),
            registered=self._registered,
            checksum=self._queries.wants_checksum,
        )


def _text(data: bytes) -> str:
    """A binlog's name, up to the zero bytes that some clients send after it."""
    return data.partition(b"\0")[0].decode("utf-8", "replace")
