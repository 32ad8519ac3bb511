"""Reads the beginning of a binlog over a connection that is there, as mysqlbinlog reads it.

Only so it is sure that the bytes are of the server that answers on this connection.
Source: MySQL's "Client/Server Protocol", page COM_BINLOG_DUMP.
"""

import struct
from typing import Any

import pymysql
from pymysql.constants import COMMAND
from pymysql.err import raise_mysql_exception

from binlog2s3.binlog.events import MAGIC, EventType
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName

MOST_BYTES = 64 << 10
"""So many bytes are read at most: the first events, and as a rule some transactions."""

_ENDS, _WITH_ANNOTATIONS = 0x01, 0x02
_FIRST_POSITION, _OF_NO_REPLICA = 4, 0
_EVENT_TYPE = 4
_ERROR, _END, _END_SIZE = 0xFF, 0xFE, 9
_FLAGS: dict[Flavour, int] = {"mysql": _ENDS, "mariadb": _ENDS | _WITH_ANNOTATIONS}
SETTINGS: dict[Flavour, tuple[str, ...]] = {
    "mysql": ("SET @master_binlog_checksum = 'NONE', @source_binlog_checksum = 'NONE'",),
    "mariadb": ("SET @master_binlog_checksum = 'NONE'", "SET @mariadb_slave_capability = 4"),
}
"""What mysqlbinlog says of itself before: it takes events with the checksums that they have."""


def beginning(connection: Any, name: BinlogName, most: int, flavour: Flavour) -> bytes:
    """The first bytes of a binlog, `most` (at most MOST_BYTES) or as many as the server has.

    After the binlog's end there may be bytes of the next one. The connection is of no use
    afterwards. `SETTINGS` must have been sent. Raises what pymysql raises, also if nothing comes.
    """
    most = min(most, MOST_BYTES)
    body = struct.pack("<IHI", _FIRST_POSITION, _FLAGS[flavour], _OF_NO_REPLICA)
    connection._execute_command(  # noqa: SLF001 - pymysql has no method for it
        COMMAND.COM_BINLOG_DUMP, body + str(name).encode()
    )
    taken = bytearray()
    while len(taken) < most - len(MAGIC):
        # by hand: pymysql would read all of an event, which may have a gigabyte
        size = int.from_bytes(connection._read_bytes(4)[:3], "little")  # noqa: SLF001
        packet = connection._read_bytes(min(size, 1 + MOST_BYTES))  # noqa: SLF001
        if not packet:
            raise pymysql.OperationalError(2027, "Malformed packet: an empty one, among events")
        if packet[0] == _ERROR:
            raise_mysql_exception(packet)
        if packet[0] == _END and size < _END_SIZE:
            break
        event = packet[1:]
        is_first = event[_EVENT_TYPE : _EVENT_TYPE + 1] == bytes([EventType.FORMAT_DESCRIPTION])
        if taken or is_first:  # a made-up rotate event comes before
            taken += event
    if not taken and most > len(MAGIC):
        raise pymysql.OperationalError(2027, "Malformed packet: the end, before any event")
    return (MAGIC + taken)[:most]
