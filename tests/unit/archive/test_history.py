"""Which lineages a recovery follows, and where it leaves each."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from binlog2s3.archive.documents import Lineage, LineageFloor, Parent, SourceServer
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import (
    Interval,
    break_between,
    extent,
    follows,
    gtids_break,
    line_binlogs,
    line_of,
    missing_binlogs,
)
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from tests.documents import like, parent_of
from tests.history_model import Model

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def lineage(number: int, parent: Parent | None = None, uuid: str = UUID) -> Lineage:
    return Lineage(
        lineage=f"2026010{number}T030405Z-3e11fa47-{number:04x}",
        source="orders",
        server=SourceServer(uuid=uuid, flavour="mysql", version="9.7.0"),
        first_binlog=BinlogName("mysql-bin", 3),
        first_binlog_time=datetime(2026, 1, number, tzinfo=UTC),
        gtid_set="",
        parent=parent,
    )


def left(one: Lineage, offset: int = 500, join: str = "exact", **more: Any) -> Parent:
    fields = {"binlog": "mysql-bin.000003", "offset": offset, "join": join}
    return parent_of(one.id, **{**fields, **more})


def test_a_line_is_cut_at_each_parent() -> None:
    """Of the parent what lies up to the cut, of the last one all."""
    first = lineage(1)
    second = lineage(2, left(first), OTHER)
    line = line_of([first, second], second.id)
    assert [line_part.lineage for line_part in line.parts] == [first, second]
    assert line.parts[0].end_of(BinlogName("mysql-bin", 3), 900) == 500
    assert line.parts[0].end_of(BinlogName("mysql-bin", 2), 900) == 900
    assert not line.parts[0].holds(BinlogName("mysql-bin", 4))
    assert line.parts[0].holds(BinlogName("mysql-bin", 3))
    assert not line.parts[1].holds(BinlogName("mysql-bin", 2))
    assert line.parts[1].holds(BinlogName("mysql-bin", 3))
    assert [line_part.missing for line_part in line.parts] == ["", ""]
    assert line.parts[1].end_of(BinlogName("mysql-bin", 4), 900) == 900
    assert not line.barrier


def test_the_same_servers_same_binlog_shares_its_bytes() -> None:
    """A server that was put back has them twice; another server's binlog of that name has not."""
    first = lineage(1)
    back, elsewhere = lineage(2, left(first)), lineage(3, left(first), OTHER)
    assert line_of([first, back], back.id).parts[1].begin == 500
    assert line_of([first, elsewhere], elsewhere.id).parts[1].begin == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"join": "unknown"}, "nothing proves"),
        ({"lineage": "20990101T000000Z-00000000-0000"}, "not in the bucket"),
    ],
)
def test_what_cannot_be_proved_is_not_crossed(change: dict[str, Any], why: str) -> None:
    """History begins behind it, and it is said why."""
    first = lineage(1)
    second = lineage(2, replace(left(first), **change))
    line = line_of([first, second], second.id)
    assert [line_part.lineage for line_part in line.parts] == [second]
    assert why in line.barrier


def test_a_gap_is_named_and_part_of_the_line() -> None:
    """Both sides belong to one history; what lies between is said."""
    first = lineage(1)
    second = lineage(2, left(first, join="gap", missing=f"{UUID}:4-5"))
    line = line_of([first, second], second.id)
    assert [line_part.missing for line_part in line.parts] == ["", f"{UUID}:4-5"]


def test_a_parent_without_a_byte_is_passed_over() -> None:
    """Its own parent counts; what is missing on the way adds up."""
    first = lineage(1)
    empty = lineage(2, left(first, join="gap", missing=f"{UUID}:4"))
    third = lineage(3, left(empty, binlog=None, offset=0))
    line = line_of([first, empty, third], third.id)
    assert [line_part.lineage for line_part in line.parts] == [first, third]
    assert line.parts[1].missing == f"{UUID}:4"
    doubtful = replace(empty, parent=left(first, join="unknown"))
    assert line_of([first, doubtful, third], third.id).barrier


def test_parents_that_lead_in_a_circle_end() -> None:
    """Somebody wrote into the bucket; nothing hangs."""
    first, second = lineage(1), lineage(2)
    one = replace(first, parent=left(second))
    other = replace(second, parent=left(first))
    assert "back to it" in line_of([one, other], one.id).barrier
    lone = replace(first, parent=left(first))
    assert line_of([lone], lone.id).barrier
    empty = replace(first, parent=left(second, binlog=None))
    round_ = replace(second, parent=left(first, binlog=None))
    assert line_of([empty, round_], empty.id).barrier


def known(before: str | None, added: str = "", **more: Any) -> Facts:
    """A binlog with these GTIDs before it and in it; not ended."""
    model = Model()
    any_one = model.known(model.current, model.open.name)
    gtids: Gtids | None = GtidSet.parse(before) if before is not None else None
    return replace(any_one, gtids_before=gtids, gtids_added=GtidSet.parse(added), **more)


ENDED = known("", f"{UUID}:1-3", ended=True)


@pytest.mark.parametrize(
    ("one", "other", "kind"),
    [
        (known("", f"{UUID}:1-3"), known(f"{UUID}:1-3"), None),
        (known("", f"{UUID}:1-3"), known(f"{UUID}:1-4"), "gtids"),
        (known("", f"{UUID}:1-3"), known(f"{UUID}:1-2"), "gtids"),
        (known("", f"{UUID}:1-3"), known(None), "unfinished"),
        (known(None, f"{UUID}:1-3"), known(f"{UUID}:1-3"), "unfinished"),
        (known(f"{UUID}:1"), known(f"{UUID}:1"), None),
        (known("", ""), known(""), "unfinished"),
        (known("", f"{UUID}:1-3", anonymous=1), known(f"{UUID}:1-3"), "unfinished"),
        (known("", f"{UUID}:1-3"), known(f"{UUID}:1-3", anonymous=1), "unfinished"),
        (ENDED, known(f"{UUID}:1-3", anonymous=1), None),
        (ENDED, known(f"{UUID}:1-4"), "gtids"),
        (ENDED, known(None), None),
        (known("", "", ended=True), known(None), None),
        (replace(ENDED, anonymous=1), known(f"{UUID}:1-3"), None),
        (replace(ENDED, damaged=((200, 300),)), known(f"{UUID}:1-4"), "gtids"),
        (replace(ENDED, rotated=True), known(f"{UUID}:1-3", started=True), "unlogged"),
    ],
)
def test_whether_a_binlog_follows_the_one_before(
    one: Facts, other: Facts, kind: str | None
) -> None:
    """If that has ended, or has only GTIDs and this one begins after exactly them.

    Not if its GTIDs contradict that, or if rows were left out in between.
    """
    found = break_between(one, other)
    assert (found.kind if found is not None else None) == kind


@pytest.mark.parametrize(
    ("origin", "cut", "is_there"),
    [
        # by GTIDs, where both have them: the cut has all that the lineage took from its parent
        ({"gtid_set": f"{UUID}:1-5"}, {"gtid_set": f"{UUID}:1-5"}, True),
        ({"gtid_set": f"{UUID}:1-5"}, {"gtid_set": f"{UUID}:1-6"}, True),
        ({"gtid_set": f"{UUID}:1-5"}, {"gtid_set": f"{UUID}:1-4"}, False),
        ({"gtid_set": f"{UUID}:1-5"}, {"gtid_set": f"{OTHER}:1-9"}, False),
        # else by the bytes that both have
        ({"gtid_set": ""}, {"gtid_set": f"{UUID}:1-4", "offset": 500}, True),
        ({"gtid_set": f"{UUID}:1-5"}, {"gtid_set": "", "offset": 500}, True),
        ({"gtid_set": ""}, {"gtid_set": "", "offset": 499}, False),
        ({"gtid_set": ""}, {"gtid_set": "", "offset": 501}, True),
        ({"gtid_set": ""}, {"gtid_set": "", "offset": 4, "binlog": "mysql-bin.000004"}, True),
    ],
)
def test_a_lineage_that_was_left_before_its_own_beginning(
    origin: dict[str, Any], cut: dict[str, Any], is_there: bool
) -> None:
    """Is followed no further back: what comes before it was left, too."""
    first = lineage(1)
    second = lineage(2, left(first, **origin))
    third = lineage(3, left(second, **cut), OTHER)
    line = line_of([first, second, third], third.id)
    assert [line_part.lineage for line_part in line.parts] == [first, second, third][
        0 if is_there else 1 :
    ]
    assert bool(line.barrier) is not is_there


def test_gtids_that_cannot_be_read_end_the_line() -> None:
    """Nobody knows what was executed where history left."""
    first = lineage(1)
    second = lineage(2, left(first, gtid_set="no GTIDs"))
    line = line_of([first, second], second.id)
    assert [line_part.lineage for line_part in line.parts] == [second]
    assert line.barrier
    for text in ("", f"{UUID}:1-5"):
        second = lineage(2, left(first, gtid_set=text))
        assert len(line_of([first, second], second.id).parts) == 2


def test_what_is_missing_around_a_floor() -> None:
    """Below the floor it was pruned; what comes behind it is told all the same."""
    first = lineage(1)
    floor = LineageFloor(
        source=first.source,
        lineage=first.id,
        binlog=BinlogName("mysql-bin", 6),
        gtid_set="",
        raised_at=datetime(2026, 1, 9, tzinfo=UTC),
    )

    def missing(floored: Lineage, *numbers: int) -> list[tuple[int, int]]:
        names = [BinlogName("mysql-bin", number) for number in numbers]
        found = missing_binlogs(floored, names, None)
        return [(one.first.number, one.last.number) for one in found]

    floored = replace(first, floor=floor)
    assert missing(floored, 3, 6, 9) == [(7, 8)]
    assert missing(floored, 3, 5, 9) == [(6, 8)]
    assert missing(floored, 3, 7, 9) == [(6, 6), (8, 8)]
    assert missing(floored, 7, 9) == [(6, 6), (8, 8)]
    assert missing(first, 3, 6, 9) == [(4, 5), (7, 8)]
    assert missing(first, 4, 6) == [(3, 3), (5, 5)]
    assert missing(first, 3, 4, 5) == []


@pytest.mark.parametrize(
    ("before", "added", "begins", "is_next"),
    [
        ("0-1-5", "0-1-9", "0-1-9", True),
        ("0-1-5", "0-1-9", "0-1-8", False),
        ("0-1-5", "", "0-1-5", True),
        ("", "", None, True),
        (None, "0-1-9", None, True),
        ("0-1-9", "0-1-5", "0-1-5", False),  # numbers went back
    ],
)
def test_the_next_binlog_by_its_gtids(
    before: str | None, added: str, begins: str | None, is_next: bool
) -> None:
    """It has the next number, and begins after just what was executed at the end of this one."""
    of = MariadbGtidList.parse
    one = replace(
        known(None, ended=True),
        gtids_before=of(before) if before is not None else None,
        gtids_added=of(added),
    )
    other = replace(one, name=one.name.next(), gtids_before=of(begins) if begins else None)
    assert follows(one, other) is is_next
    assert not follows(one, replace(other, name=other.name.next()))
    assert not follows(one, replace(other, name=one.name))


@pytest.mark.parametrize(
    ("flavour", "binlog", "crosses"),
    [("mariadb", 4, True), ("mariadb", 3, False), ("mysql", 4, False)],
)
def test_numbers_that_go_back_end_no_line(flavour: Any, binlog: int, crosses: bool) -> None:
    """MariaDB's may, behind the binlog that repeats something of the parent."""
    then, later = ("0-1-50", "0-1-20") if flavour == "mariadb" else (f"{UUID}:1-50", f"{UUID}:1-20")
    first = like(lineage(1), flavour=flavour)
    second = like(lineage(2, left(first, gtid_set=then)), flavour=flavour)
    cut = left(second, gtid_set=later, binlog=f"mysql-bin.{binlog:06}")
    third = like(lineage(3, cut), flavour=flavour)
    line = line_of([first, second, third], third.id)
    assert (len(line.parts), bool(line.barrier)) == ((3, False) if crosses else (2, True))


def test_a_gap_of_which_nothing_is_named() -> None:
    """It is unknown what is missing, unless rows without GTIDs are."""
    first = lineage(1)
    gap = left(first, join="gap", missing="")
    for origin, missing in ((gap, "unknown"), (replace(gap, unlogged=True), "rows without GTIDs")):
        second = lineage(2, origin)
        assert line_of([first, second], second.id).parts[1].missing == missing


def test_the_first_of_a_line_follows_nothing() -> None:
    """Whatever was purged before it: no interval begins with a break."""
    first = lineage(1)
    line = line_of([first], first.id)
    later = [BinlogName("mysql-bin", number) for number in (5, 6, 8)]
    found = list(line_binlogs(line, lambda _: later))
    assert [bool(one.broken) for one in found] == [False, False, True]
    assert list(extent(found)) == [Interval(0, 1, found[2].broken), Interval(2, 2, "")]


def test_nothing_has_no_interval() -> None:
    assert not list(extent([]))


def test_gtids_of_two_flavours_are_told_without_their_difference() -> None:
    """There is none. Within one flavour what is missing is named."""
    mysql = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5")
    mariadb = MariadbGtidList.parse("0-1-5")
    one, other = BinlogName("b", 1), BinlogName("b", 2)
    for end, begin in ((mysql, mariadb), (mariadb, mysql)):
        why = gtids_break(one, end, other, begin)
        assert why == f"b.000002 begins after {begin}, b.000001 ends with {end}"
    fewer = GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-4")
    assert gtids_break(one, fewer, other, mysql).endswith("9562:5 is in no binlog")
    assert gtids_break(one, mysql, other, fewer).endswith("is executed, but missing there")
