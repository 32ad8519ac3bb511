"""The GTID of a COMMIT, which a MySQL tells at the end of its answer."""

import pytest

from binlog2s3.server.connection import own_gtid
from tests.binlog_writer import UUID_A, packed

GTID = f"{UUID_A}:7".encode()
OWN = b"\0" + packed(len(GTID)) + GTID
SCHEMA = b"\1" + packed(5) + packed(4) + b"shop"


def told(*changes: bytes, info: bytes = b"") -> bytes:
    state = b"".join(changes)
    return packed(len(info)) + info + packed(len(state)) + state


@pytest.mark.parametrize(
    ("message", "gtid"),
    [
        (told(b"\3" + packed(len(OWN)) + OWN), GTID.decode()),
        (told(SCHEMA, b"\3" + packed(len(OWN)) + OWN, info=b"Rows: 1"), GTID.decode()),
        (told(SCHEMA), ""),
        (told(), ""),
        (b"", ""),
        (told(b"\3" + packed(len(OWN)) + OWN)[:3], ""),
        (b"\xff\xff", ""),
    ],
)
def test_the_own_gtid_is_read(message: bytes, gtid: str) -> None:
    """Whatever else changed in the session, and nothing of what is cut."""
    assert own_gtid(message) == gtid
