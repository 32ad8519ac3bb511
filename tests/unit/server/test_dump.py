"""The beginning of a binlog, as a server sends it to mysqlbinlog."""

import struct
from typing import Any

import pymysql
import pytest

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.replication.events import rotate_event
from binlog2s3.server.dump import MOST_BYTES, beginning
from tests.binlog_writer import BinlogWriter, statement

NAME = BinlogName("mysql-bin", 1)
BINLOG = BinlogWriter()
BINLOG.transaction([statement("insert")])
BINLOG.transaction([statement("insert")])
DATA = bytes(BINLOG.data)
ENDS = [end for end in BINLOG.ends if end > 4]
EVENTS = [DATA[begin:end] for begin, end in zip([4, *ENDS], ENDS, strict=False)]
MADE_UP = rotate_event(str(NAME), 4, server_id=7, checksum=False)
END = b"\xfe\0\0\2\0"
PURGED = b"\xff" + struct.pack("<H", 1236) + b"#HY000Could not find first log file name"


class Sending:
    """A connection on which a server sends these packets; it counts what is read of them."""

    def __init__(self, *packets: bytes) -> None:
        heads = (len(one).to_bytes(3, "little") + bytes([at]) for at, one in enumerate(packets, 1))
        self._left = b"".join(head + one for head, one in zip(heads, packets, strict=True))
        self.asked: list[tuple[int, bytes]] = []
        self.read = 0

    def _execute_command(self, command: int, body: bytes) -> None:
        self.asked.append((command, body))

    def _read_bytes(self, count: int) -> bytes:
        assert self.asked
        assert len(self._left) >= count, "it would wait for ever"
        found, self._left = self._left[:count], self._left[count:]
        self.read += count
        return found


def sending(*events: bytes, last: bytes = END) -> Any:
    return Sending(*(b"\0" + event for event in (MADE_UP, *events)), last)


@pytest.mark.parametrize("most", [4, 5, 23, 100, ENDS[0], ENDS[0] + 1, len(DATA), len(DATA) + 1])
def test_the_first_bytes(most: int) -> None:
    """Those of the binlog, without the event that the server makes up before them."""
    assert beginning(sending(*EVENTS), NAME, most, "mysql") == DATA[:most]


def test_no_more_is_read_than_is_needed() -> None:
    """An event may have a gigabyte."""
    large = bytes(1 << 22)
    connection = sending(*EVENTS, large)
    found = beginning(connection, NAME, 1 << 30, "mysql")
    assert found == (DATA + large)[:MOST_BYTES]
    assert connection.read < 3 * MOST_BYTES


@pytest.mark.parametrize(("flavour", "flags"), [("mysql", 1), ("mariadb", 3)])
def test_it_asks_as_mysqlbinlog_does(flavour: Flavour, flags: int) -> None:
    """For what there is now, with id 0, for which no replica loses its connection."""
    connection = sending(*EVENTS)
    assert beginning(connection, NAME, 100, flavour) == DATA[:100]
    body = struct.pack("<IHI", 4, flags, 0) + b"mysql-bin.000001"
    assert connection.asked == [(0x12, body)]


@pytest.mark.parametrize("events", [[], EVENTS[:2]], ids=["at-once", "later"])
def test_what_the_server_refuses(events: list[bytes]) -> None:
    """It is its error, and not a short binlog."""
    with pytest.raises(pymysql.MySQLError, match="Could not find first log"):
        beginning(sending(*events, last=PURGED), NAME, len(DATA), "mysql")


def test_an_answer_without_events() -> None:
    """A server has sent none: its binlog is not called another one for that."""
    with pytest.raises(pymysql.MySQLError, match="the end, before any event"):
        beginning(sending(), NAME, 5, "mysql")
