"""How far everything is in the bucket: the unbroken archive and the source's clock."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from binlog2s3.grid import (Grid)
from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Position
from binlog2s3.coverage import Coverage
from binlog2s3.server import ServerPosition
from binlog2s3.tailer import Track
from tests.binlog_writer import UUID_A, BinlogWriter

START = datetime(2026, 1, 1, tzinfo=UTC)


def name(number: int) -> BinlogName:
    return BinlogName.parse(f"mysql-bin.{number:06d}")


def track(number: int) -> Track:
    made = Track(name(number), Path(), Grid(1 << 20))
    writer = BinlogWriter()
    writer.rotate()
    made.feed(memoryview(writer.data))
    return made


def seen(number: int, seconds: int) -> ServerPosition:
    return ServerPosition(
        asked_at=START + timedelta(seconds=seconds),
        uuid=UUID_A,
        binlog=name(number),
        offset=4,
        gtid_set="",
    )


def test_durable_is_the_end_of_the_unbroken_archive() -> None:
    """A binlog archived out of order counts only when all before it are there."""
    coverage = Coverage(None, name(1))
    coverage.archived(track(2))
    assert coverage.durable is None
    coverage.archived(track(1))
    assert coverage.durable is not None
    assert coverage.durable.binlog == "mysql-bin.000002"


def test_the_clock_is_claimed_only_once_its_position_is_durable() -> None:
    """A position in a binlog that is not archived proves nothing yet; the latest one counts."""
    coverage = Coverage(None, name(1))
    coverage.seen(seen(1, 10))
    coverage.seen(seen(1, 12))
    coverage.seen(seen(2, 14))
    assert coverage.until is None
    coverage.archived(track(1))
    assert coverage.until == START + timedelta(seconds=12)
    coverage.archived(track(2))
    assert coverage.until == START + timedelta(seconds=14)


def test_a_start_carries_on_from_the_archive() -> None:
    """What was durable before the start is durable at once."""
    before = Position(binlog="mysql-bin.000004", offset=100, gtid_set="")
    coverage = Coverage(before, name(5))
    assert coverage.durable == before
    coverage.archived(track(5))
    assert coverage.durable is not None
    assert coverage.durable.binlog == "mysql-bin.000005"
