"""Two transactions have one digest only if they do the same."""

import struct

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.fingerprint import Fingerprint
from tests.binlog_writer import XID, BinlogWriter, statement
from tests.unit.binlog.test_content import rows, table_map

Events = list[tuple[int, bytes]]
WRITE = EventType.WRITE_ROWS_V1
TO_A, TO_B = (
    [table_map(30, "a"), table_map(31, "b"), rows(WRITE, number, 1), XID] for number in (30, 31)
)
TWICE, ONCE = (
    [table_map(30, "a"), rows(WRITE, 30, 1), table_map(30, "b"), *more, rows(WRITE, 30, 1), XID]
    for more in ([table_map(30, "a")], [])
)
INSERT = statement("INSERT INTO t VALUES (1)")


def digest(events: Events, *, extra: bytes = b"") -> bytes:
    """Of a transaction of MariaDB, fed in small pieces."""
    made = BinlogWriter(server_version="10.11.8-MariaDB")
    begin = len(made.data)
    made.mariadb_transaction(events, gtid=(7, 9), extra=extra)
    reader = Fingerprint(4)
    for at in range(begin, len(made.data), 40):
        reader.feed(bytes(made.data[at : at + 40]))
    return reader.take()


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (TO_A, [table_map(7, "a"), table_map(9, "b"), rows(WRITE, 7, 1), XID], True),
        (TO_A, TO_B, False),  # the same tables, and the rows are the other one's
        (ONCE, TWICE, False),  # a number that is given to another table meanwhile
        ([INSERT, XID], [INSERT, statement("COMMIT")], True),
        ([INSERT, XID], [INSERT, statement("ROLLBACK")], False),
        ([INSERT, XID], [statement("INSERT INTO t VALUES (2)"), XID], False),
    ],
)
def test_what_differs_has_another_digest(one: Events, other: Events, is_same: bool) -> None:
    """Numbers of tables are the server's own; which table has the rows is not."""
    assert (digest(one) == digest(other)) is is_same


def test_the_phases_of_an_alter_differ() -> None:
    """COMMIT and ROLLBACK have the same statement."""
    alter = [statement("ALTER TABLE t ADD c INT")]
    phases = [b"", b"\x02", b"\x04" + struct.pack("<Q", 8), b"\x08" + struct.pack("<Q", 8)]
    assert len({digest(alter, extra=extra) for extra in phases}) == 4
