"""How far everything is in the bucket: the unbroken archive and the source's clock."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from binlog2s3.archive.parts import Grid
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.server.connection import ServerPosition
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.tail import Track
from tests.binlog_writer import UUID_A, BinlogWriter
from tests.streamer import HISTORY

START = datetime(2026, 1, 1, tzinfo=UTC)


def name(number: int) -> BinlogName:
    return BinlogName.parse(f"mysql-bin.{number:06d}")


def track(number: int) -> Track:
    made = Track(name(number), Path(), Grid(1 << 20))
    writer = BinlogWriter()
    writer.rotate()
    made.feed(memoryview(writer.data))
    return made


def seen(number: int, seconds: int, offset: int = 4) -> ServerPosition:
    return ServerPosition(
        asked_at=START + timedelta(seconds=seconds),
        settled_at=START + timedelta(seconds=seconds),
        uuid=UUID_A,
        place=FilePosition(name(number), offset),
        gtid_set="",
        read_only=False,
    )


def at(number: int, offset: int, gtid_set: str) -> Position:
    return Position(binlog=name(number), offset=offset, gtid_set=gtid_set)


def test_the_clock_is_claimed_only_once_its_position_is_durable() -> None:
    """A position in a binlog that is not archived proves nothing yet; the latest one counts."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.seen(seen(1, 10), is_read=True)
    coverage.seen(seen(1, 12), is_read=True)
    coverage.seen(seen(2, 14), is_read=True)
    assert coverage.until is None
    coverage.archived(track(1))
    assert coverage.until == START + timedelta(seconds=12)
    coverage.archived(track(2))
    assert coverage.until == START + timedelta(seconds=14)


def test_a_source_before_what_is_durable_proves_nothing() -> None:
    """After a RESET the same names come again: what was committed since then is not here."""
    coverage = Coverage(HISTORY, at(3, 500, ""), name(4))
    coverage.seen(seen(1, 10, 4000), is_read=True)
    coverage.seen(seen(3, 12, 499), is_read=True)
    assert coverage.until is None
    coverage.seen(seen(3, 14, 500), is_read=True)
    assert coverage.until == START + timedelta(seconds=14)


def test_a_clock_that_is_set_back_takes_back_what_was_claimed() -> None:
    """What is committed then has earlier times; what waits to be claimed by the old clock too."""
    coverage = Coverage(HISTORY, at(3, 500, ""), name(4))
    coverage.seen(seen(3, 3600, 500), is_read=True)
    assert coverage.until == START + timedelta(seconds=3600)
    coverage.seen(seen(4, 3610, 50), is_read=True)
    coverage.seen(seen(4, 7, 60), is_read=True)
    assert coverage.until is None
    coverage.reached(at(4, 55, ""))
    assert coverage.until is None
    coverage.reached(at(4, 60, ""))
    assert coverage.until == START + timedelta(seconds=7)


def test_what_lies_behind_an_open_binlog_waits_for_it() -> None:
    """Until all of it can be read, by chunks or archived."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.reached(at(2, 50, ""))
    coverage.archived(track(3))
    assert coverage.durable is None
    coverage.reached(at(1, 300, ""))
    assert coverage.durable == at(1, 300, "")
    coverage.reached(at(1, 300, ""), whole=True)
    assert coverage.durable == at(2, 50, "")
    coverage.reached(at(2, 60, ""), whole=True)
    assert coverage.durable is not None
    assert coverage.durable.binlog == name(3)
    assert not coverage.has(name(1)), "durable is not archived"


def test_the_clock_is_claimed_up_to_the_offset() -> None:
    """Of an open binlog: not a byte early."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.seen(seen(1, 10, 200), is_read=True)
    coverage.seen(seen(1, 12, 201), is_read=True)
    coverage.reached(at(1, 199, ""))
    assert coverage.until is None
    coverage.reached(at(1, 200, ""))
    assert coverage.until == START + timedelta(seconds=10)
    coverage.reached(at(1, 201, ""))
    assert coverage.until == START + timedelta(seconds=12)
    coverage.seen(seen(1, 14, 201), is_read=True)
    assert coverage.until == START + timedelta(seconds=14)


def test_archived_up_to_the_first_without_an_entry() -> None:
    """Only of this name's numbers; a later one that is there does not count yet."""
    coverage = Coverage(HISTORY, None, name(2))
    coverage.archived(track(3))
    assert [coverage.has(name(number)) for number in (1, 2, 3)] == [True, False, False]
    coverage.archived(track(2))
    assert [coverage.has(name(number)) for number in (1, 2, 3, 4)] == [True, True, True, False]
    assert not coverage.has(BinlogName.parse("other.000001"))


def test_a_claim_is_no_later_than_what_is_settled() -> None:
    """A statement that still runs may be stamped before the position was asked; none goes back."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.reached(at(1, 100, ""))
    coverage.seen(replace(seen(1, 10, 100), settled_at=START + timedelta(seconds=8)), is_read=True)
    assert coverage.until == START + timedelta(seconds=8)
    coverage.seen(replace(seen(1, 12, 100), settled_at=START + timedelta(seconds=7)), is_read=True)
    assert coverage.until == START + timedelta(seconds=8)
    coverage.seen(
        replace(seen(1, 5, 100), settled_at=START + timedelta(seconds=3)), is_read=True
    )  # set back
    assert coverage.until == START + timedelta(seconds=3)


def test_what_was_given_up_is_all_there_once_the_lineage_goes_on_behind_it() -> None:
    """Until then the source may write more of it: then that is claimed once it has arrived."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.added(name(1))
    coverage.given_up(ended := track(1))
    coverage.seen(seen(1, 10, ended.size), is_read=True)
    coverage.seen(seen(1, 12, ended.size + 1), is_read=True)
    assert (coverage.until, coverage.following) == (START + timedelta(seconds=10), name(1))
    assert not coverage.has(name(1))
    coverage.added(name(2))
    assert (coverage.until, coverage.following) == (START + timedelta(seconds=12), name(2))
    assert coverage.has(name(1))
    coverage.reached(at(2, 50, ""))
    coverage.added(name(1))  # against all expectation: it is read again after all
    assert coverage.durable == Position.of(ended.end, ended.gtids_after())
    assert not coverage.has(name(1))
    coverage.seen(seen(1, 14, ended.size + 1), is_read=True)
    assert coverage.until == START + timedelta(seconds=12)


def test_what_was_given_up_and_is_read_again_is_open() -> None:
    """The next one alone does not end it."""
    coverage = Coverage(HISTORY, None, name(1))
    coverage.given_up(track(1))
    coverage.added(name(1))
    coverage.added(name(2))
    assert coverage.following == name(1)
    assert not coverage.has(name(1))
    coverage.archived(track(1))
    assert coverage.following == name(2)
    assert coverage.has(name(1))


def test_a_source_that_is_not_read_proves_nothing() -> None:
    """After a RESET it may stand where it was read to. A clock that goes back counts."""
    coverage = Coverage(HISTORY, at(3, 500, ""), name(4))
    coverage.seen(seen(3, 10, 500), is_read=True)
    coverage.seen(seen(3, 20, 500), is_read=False)
    assert coverage.until == START + timedelta(seconds=10)
    coverage.seen(seen(3, 5, 500), is_read=False)
    assert coverage.until is None


def test_what_comes_before_the_lineage_is_not_in_it() -> None:
    """It began there (`--start-at now`), or another server wrote before; the source may list it."""
    lineage = replace(HISTORY, first_binlog=name(3))
    coverage = Coverage(lineage, None, name(5))
    other = BinlogName.parse("log.000004")
    assert [coverage.has(name(number)) for number in range(2, 6)] == [False, True, True, False]
    assert not coverage.has(other)
