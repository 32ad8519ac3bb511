"""How far a binlog has come, by commit times that its receipt does not disprove."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from binlog2s3.archive.documents import Entry
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.transactions import CLAIM_SLACK_US
from binlog2s3.formatting import us_of
from tests.binlog_writer import NOW, BinlogWriter, statement
from tests.documents import ENTRY

NAME = BinlogName.parse("mysql-bin.000002")
SECOND = 1_000_000
NOW_US = NOW * SECOND


def written(flavour: str, claims: Sequence[int]) -> bytes:
    """Transactions that say these seconds, counted from NOW."""
    maria = flavour == "mariadb"
    writer = BinlogWriter(server_version="10.11.6-MariaDB" if maria else "9.7.4")
    for number, off in enumerate(claims, 1):
        if maria:
            writer.timestamp = NOW + off
            insert = [statement("INSERT")]
            writer.mariadb_transaction(insert, gtid=(0, number), standalone=True)
        else:
            gtid = ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "", number)
            writer.transaction([statement("X")], gtid=gtid, commit_us=NOW_US + off * SECOND)
    return bytes(writer.data)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("slices", [1, 7])
@pytest.mark.parametrize(
    ("claims", "reached"),
    [
        ([0, 1, 2], 2),
        ([0, 1, 59], 59),  # clocks differ
        ([0, 61], 0),
        ([4000, 4001], None),
        ([0, 4000, 3], 3),
        ([0, -4000], 0),
    ],
)
def test_what_is_later_than_its_receipt_is_not_reached(
    flavour: str, slices: int, claims: list[int], reached: int | None
) -> None:
    """By more than a minute. It still bounds what is said, for a search."""
    data = written(flavour, claims)
    reading = BinlogReading(NAME)
    step = -(-len(data) // slices)
    for at in range(0, len(data), step):
        reading.feed(memoryview(data)[at : at + step], NOW_US)
    entry = reading.entry(datetime.fromtimestamp(NOW, UTC))
    expected = None if reached is None else NOW_US + reached * SECOND
    assert entry.reached_us == expected
    assert entry.greatest_commit_us == NOW_US + max(claims) * SECOND
    reading.commits.passed(len(data))
    assert reading.commits.newest_us == expected


def test_a_later_receipt_does_not_make_an_earlier_time_credible() -> None:
    """Each transaction counts with the time when it was received itself."""
    first, both = written("mariadb", [3000]), written("mariadb", [3000, 10])
    reading = BinlogReading(NAME)
    reading.feed(memoryview(first), NOW_US)
    reading.feed(memoryview(both)[len(first) :], NOW_US + 5000 * SECOND)
    assert reading.entry(datetime.now(UTC)).reached_us == NOW_US + 10 * SECOND


@pytest.mark.parametrize(("late_us", "reached"), [(CLAIM_SLACK_US, True), (1 << 50, False)])
def test_an_entry_of_0_2_0_was_received_when_it_was_made(late_us: int, *, reached: bool) -> None:
    """It has no such field."""
    entry = replace(ENTRY, greatest_commit_us=us_of(ENTRY.archived_at) + late_us)
    document = json.loads(entry.to_json())
    del document["reached_us"]
    found = Entry.from_json(
        json.dumps(document).encode(), f"archive/orders/{ENTRY.name}/entries/{ENTRY.name}.json"
    )
    assert found.reached_us == (entry.greatest_commit_us if reached else None)
    assert found.archived_at - ENTRY.archived_at == timedelta()
