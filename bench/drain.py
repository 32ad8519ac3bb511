"""A replication client that takes all events and drops them, so that only the sender is measured.

It returns when the source has sent the end.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import Any
from uuid import UUID

from pymysql.connections import Connection
from pymysql.constants import COMMAND

from lab.child import ServerFailedError
from lab.get import Flavour

_READ = 1 << 20
_SECONDS = 300.0
_ENDS = 0x01  # BINLOG_DUMP_NON_BLOCK
_EOF = 0xFE
_EOF_SIZE = 9


@dataclass(frozen=True, slots=True)
class Drained:
    """When it connected, when the last byte came, and how many in all. Monotonic seconds."""

    begin: float
    end: float
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where to log in."""

    port: int
    user: str
    password: str
    flavour: Flavour


def drain(door: Door, *, after: str, server_id: int) -> Drained:
    """Take everything that comes after the GTID `after`: `UUID:1`, or MariaDB's `0-1-1`.

    Raises ServerFailedError if the source ends with an error.
    """
    asked = ["SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'"]
    if door.flavour == "mariadb":
        asked += ["SET @mariadb_slave_capability = 4", f"SET @slave_connect_state = '{after}'"]
    begin = monotonic()
    with closing(
        _Replica(
            host="127.0.0.1",
            port=door.port,
            user=door.user,
            password=door.password,
            ssl_disabled=True,
        )
    ) as replica:
        for query in asked:
            replica.query(query)
        taken = replica.dump(*_dump(door.flavour, after, server_id), server_id=server_id)
        taken.settimeout(_SECONDS)
        size = _taken(taken)
        return Drained(begin, monotonic(), size)


class _Replica(Connection):
    """Sends commands for which PyMySQL has no method."""

    _execute_command: Callable[[int, bytes], None]
    _read_packet: Callable[..., Any]
    _sock: socket.socket

    def dump(self, command: int, body: bytes, *, server_id: int) -> socket.socket:
        """Register as a replica and ask for events; the socket on which they come."""
        register = struct.pack("<IBBBHII", server_id, 0, 0, 0, 0, 0, 0)
        self._execute_command(COMMAND.COM_REGISTER_SLAVE, register)
        self._read_packet()
        self._execute_command(command, body)
        return self._sock


def drain_all(door: Door, *, after: str, clients: int) -> list[Drained]:
    """The same for several clients at once."""
    with ThreadPoolExecutor(clients) as pool:
        started = [
            pool.submit(drain, door, after=after, server_id=9000 + number)
            for number in range(clients)
        ]
        return [one.result() for one in started]


def speed(drained: Sequence[Drained]) -> float:
    """Bytes a second of all of them together."""
    seconds = max(one.end for one in drained) - min(one.begin for one in drained)
    return sum(one.size for one in drained) / seconds


def _dump(flavour: Flavour, after: str, server_id: int) -> tuple[int, bytes]:
    """The command and its body."""
    if flavour == "mariadb":
        return COMMAND.COM_BINLOG_DUMP, struct.pack("<IHI", 4, _ENDS, server_id)
    uuid, _, last = after.partition(":")
    gtids = struct.pack("<Q16sQQQ", 1, UUID(uuid).bytes, 1, 1, int(last) + 1)
    head = struct.pack("<HIIQI", _ENDS, server_id, 0, 4, len(gtids))
    return COMMAND.COM_BINLOG_DUMP_GTID, head + gtids


def _taken(taken: socket.socket) -> int:
    """Read to the end of the stream, which the source's last packet says is in order; its bytes."""
    room = bytearray(_READ)
    size, last = 0, b""
    while count := taken.recv_into(room):
        size += count
        last = (last + bytes(room[max(0, count - 64) : count]))[-64:]
    if last[-_EOF_SIZE:][:3] != b"\x05\0\0" or last[-_EOF_SIZE:][4] != _EOF:
        raise ServerFailedError(f"the source has ended the stream with {last!r}")
    return size
