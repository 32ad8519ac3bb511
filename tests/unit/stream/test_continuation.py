"""Where a history goes on: one lineage, the next one, or nobody knows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from binlog2s3.archive.documents import Parent
from binlog2s3.binlog.gtid import Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.continuation import (
    Begin,
    Contradicts,
    Course,
    GoOn,
    Tip,
    acceptable,
    left_out,
    parent,
    same_server,
    successor,
    unservable,
)
from tests import documents
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import like, parent_of

IMAGE = "00000000-0000-0000-0000-0000000000aa"
LINEAGE = replace(
    documents.LINEAGE,
    first_binlog=BinlogName("b", 2),
    first_binlog_time=datetime(2026, 1, 2, tzinfo=UTC),
)
MARIADB = like(
    LINEAGE, server_uuid="00000007-0000-0000-0000-000000000000", flavour="mariadb", gtid_set="0-7-5"
)
Before = Callable[[BinlogName], str | None]


def name(number: int) -> BinlogName:
    return BinlogName("b", number)


def rows(*numbers: int, size: int = 100) -> tuple[ServerBinlog, ...]:
    """What a server lists."""
    return tuple(ServerBinlog(name=name(n), size=size, encrypted=False) for n in numbers)


def gtids(text: str) -> Gtids:
    return parse(text, "mysql")


def tip(**facts: Any) -> Tip:
    """100 bytes of b.000004 are known and no more may come: it begins after 7, ends with 9."""
    known = Tip(
        lineage=LINEAGE,
        last=name(4),
        size=100,
        closed=True,
        gtids=gtids(f"{UUID_A}:1-9"),
        gtids_before=gtids(f"{UUID_A}:1-7"),
        rotates_to="b.000005",
    )
    return replace(known, **facts)


def says(answers: Mapping[int, str | None]) -> Before:
    """A server that is asked for the GTIDs before these binlogs, and no others."""
    return lambda binlog: answers[binlog.number]


def unasked(binlog: BinlogName) -> str | None:
    raise AssertionError(f"the server was asked about {binlog}")


GTIDS_5 = says({5: f"{UUID_A}:1-9"})


@pytest.mark.parametrize("facts", [{}, {"closed": False}, {"closed": False, "gtids": None}])
def test_the_last_binlog_is_listed(facts: Mapping[str, Any]) -> None:
    """It is read again, so that its own bytes prove the history."""
    for there in (rows(3, 4), rows(4, 5, 6), rows(4)):
        found = same_server(tip(**facts), there, unasked)
        assert found == GoOn(begin=name(4), again=True)


def test_an_open_binlog_may_have_grown_and_a_whole_one_may_not() -> None:
    """What is known whole has just the size that the server lists."""
    grown = rows(4, 5, size=101)
    assert same_server(tip(closed=False), grown, unasked) == GoOn(begin=name(4), again=True)
    found = same_server(tip(), grown, unasked)
    assert found == Contradicts(why="its b.000004 has 101 bytes, 100 are known")


@pytest.mark.parametrize("closed", [True, False])
def test_a_server_that_has_less_than_is_known(closed: bool) -> None:
    """It was rolled back, or reset: the bytes must tell."""
    found = same_server(tip(closed=closed), rows(4, 5, size=99), unasked)
    assert found == Contradicts(why="its b.000004 has 99 bytes, 100 are known")


def test_a_server_that_leaves_a_number_out() -> None:
    """Behind a whole binlog comes the next one, or nothing newer."""
    found = same_server(tip(), rows(4, 6), unasked)
    assert found == Contradicts(why="it has no b.000005")
    assert same_server(tip(closed=False), rows(4, 6), unasked) == GoOn(begin=name(4), again=True)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"closed": False},  # a lost STOP event is no gap
        {"rotates_to": None},  # it ended with a crash or a STOP
        {"gtids": None},  # by the rotation's word alone
        {"gtids": None, "rotates_to": None},
    ],
)
def test_the_last_binlog_is_purged_and_the_next_one_follows(facts: Mapping[str, Any]) -> None:
    """By its previous GTIDs, which are those at our end; where there are none, by its name."""
    found = same_server(tip(**facts), rows(5, 6), GTIDS_5)
    assert found == GoOn(begin=name(5), again=False)


@pytest.mark.parametrize(
    ("facts", "before", "why"),
    [
        ({}, f"{UUID_A}:1-8", "begins after .*:1-8, what is known ends with .*:1-9"),
        ({}, f"{UUID_A}:1-10", "begins after .*:1-10, what is known ends with .*:1-9"),
        ({}, f"{UUID_B}:1-9", "begins after"),
        ({}, "", "begins after no GTIDs"),
        ({"gtids": gtids("")}, f"{UUID_A}:1", "what is known ends with none"),
        ({"closed": False}, f"{UUID_A}:1-8", "begins after .*:1-8"),
    ],
)
def test_the_next_binlog_begins_elsewhere(facts: Mapping[str, Any], before: str, why: str) -> None:
    """It is not the one that follows, whatever its name is."""
    found = same_server(tip(**facts), rows(5), says({5: before}))
    assert isinstance(found, Contradicts)
    assert re.search(why, found.why)


def gap_of(found: Course | None) -> tuple[BinlogName, str, str]:
    """Where the next lineage begins, how it is joined to ours, what is missing."""
    assert isinstance(found, Begin)
    assert found.parent is not None
    assert found.parent.lineage == LINEAGE.id
    return found.begin, found.parent.join, found.parent.missing


def test_the_rest_of_an_open_binlog_was_purged() -> None:
    """The GTIDs that are lost are named, and the parent is what there is."""
    known = tip(closed=False, rotates_to=None)
    found = same_server(known, rows(5, 6), says({5: f"{UUID_A}:1-12,{UUID_B}:1"}))
    assert gap_of(found) == (name(5), "gap", f"{UUID_A}:10-12,{UUID_B}:1")
    assert isinstance(found, Begin)
    assert found.parent == Parent(
        lineage=LINEAGE.id,
        binlog="b.000004",
        offset=100,
        gtid_set=f"{UUID_A}:1-9",
        join="gap",
        missing=f"{UUID_A}:10-12,{UUID_B}:1",
    )


@pytest.mark.parametrize(
    ("facts", "oldest", "missing"),
    [
        ({"closed": False}, 5, "b.000004 from 100 on"),
        ({"closed": False}, 6, "b.000004 from 100 on, b.000005"),
        ({"closed": False}, 9, "b.000004 from 100 on, b.000005 to b.000008"),
        ({"closed": True}, 6, "b.000005"),
        ({"closed": True}, 8, "b.000005 to b.000007"),
        ({"last": None, "size": 0}, 3, "b.000002"),
        ({"last": None, "size": 0}, 5, "b.000002 to b.000004"),
    ],
)
def test_without_gtids_a_gap_is_told_by_names(
    facts: Mapping[str, Any], oldest: int, missing: str
) -> None:
    """Whatever the server keeps none of, or what is known has anonymous transactions."""
    known = tip(gtids=None, **facts)
    for answer in (None, f"{UUID_A}:1-50"):
        found = same_server(known, rows(oldest, oldest + 1), says({oldest: answer}))
        assert gap_of(found) == (name(oldest), "gap", missing)
    found = same_server(tip(**facts), rows(oldest), says({oldest: None}))
    if oldest > tip(**facts).following.number or not tip(**facts).closed:
        assert gap_of(found) == (name(oldest), "gap", missing)


def test_binlogs_were_purged_that_were_never_read() -> None:
    """Their transactions are named by the difference; where there are none, nothing is missing."""
    found = same_server(tip(), rows(8, 9), says({8: f"{UUID_A}:1-20"}))
    assert gap_of(found) == (name(8), "gap", f"{UUID_A}:10-20")
    found = same_server(tip(), rows(8, 9), says({8: f"{UUID_A}:1-9"}))
    assert gap_of(found) == (name(8), "exact", "")
    found = same_server(tip(), rows(8, 9), says({8: f"{UUID_A}:1-8"}))
    assert isinstance(found, Contradicts)


def test_a_server_without_a_gtid_so_far_proves_nothing() -> None:
    """Two empty sets are equal and say nothing: the gap is told by names."""
    found = same_server(tip(gtids=gtids("")), rows(8), says({8: ""}))
    assert gap_of(found) == (name(8), "gap", "b.000005 to b.000007")


@pytest.mark.parametrize("there", [rows(1, 2, 3), rows(1)])
def test_a_server_whose_binlogs_are_all_older(there: tuple[ServerBinlog, ...]) -> None:
    """It was reset, or restored from a backup."""
    found = same_server(tip(), there, unasked)
    assert found == Contradicts(why="it has no b.000005")


def test_a_server_whose_binlogs_have_other_names() -> None:
    """A higher number under another prefix is no gap: only GTIDs can tell what it follows."""
    first = BinlogName("c", 9)
    other = (ServerBinlog(name=first, size=100, encrypted=False),)
    no = Contradicts(why="it has no b.000005")
    assert same_server(tip(gtids=None), other, unasked) == no
    assert same_server(tip(gtids=gtids("")), other, unasked) == no
    assert same_server(tip(), other, says({9: None})) == no
    assert same_server(tip(), other, says({9: f"{UUID_A}:1-8"})) == no  # it was reset as well
    found = same_server(tip(), other, says({9: f"{UUID_A}:1-9"}))
    assert isinstance(found, Begin)
    assert gap_of(found) == (first, "exact", "")
    assert gap_of(same_server(tip(), other, says({9: f"{UUID_A}:1-12"}))) == (
        first, "gap", f"{UUID_A}:10-12",
    )  # fmt: skip


def test_a_lineage_of_which_nothing_is_known() -> None:
    """It begins with its first binlog; if that is no more, another begins in its stead."""
    nothing = Tip(lineage=LINEAGE)
    assert same_server(nothing, rows(2, 3), unasked) == GoOn(begin=name(2), again=False)
    found = same_server(nothing, rows(1), unasked)
    assert found == Begin(begin=name(1), parent=None)
    child = replace(LINEAGE, parent=parent_of(LINEAGE.id))
    found = same_server(Tip(lineage=child), rows(1), unasked)
    assert found == Begin(begin=name(1), parent=child.parent)


# MariaDB's GTIDs are the last of each domain and server


def mariadb(text: str) -> Gtids:
    return parse(text, "mariadb")


def mariadb_tip(**facts: Any) -> Tip:
    known = Tip(
        lineage=MARIADB,
        last=name(4),
        size=100,
        closed=True,
        gtids=mariadb("0-7-9,1-8-3"),
        gtids_before=mariadb("0-7-6,1-8-3"),
        rotates_to="b.000005",
    )
    return replace(known, **facts)


def test_mariadb_goes_on() -> None:
    """By the list that its next binlog begins with."""
    found = same_server(mariadb_tip(), rows(5), says({5: "0-7-9,1-8-3"}))
    assert found == GoOn(begin=name(5), again=False)
    found = same_server(mariadb_tip(), rows(5), says({5: "0-7-10,1-8-3"}))
    assert isinstance(found, Contradicts)
    found = same_server(mariadb_tip(), rows(8), says({8: "0-7-2,1-8-3"}))
    assert isinstance(found, Contradicts)


def test_what_mariadb_lacks() -> None:
    """Between two lists, since they name only the last of each."""
    found = same_server(mariadb_tip(), rows(8), says({8: "0-7-20,1-8-3"}))
    assert gap_of(found) == (name(8), "gap", "after 0-7-9,1-8-3 up to 0-7-20,1-8-3")
    nothing = mariadb_tip(gtids=mariadb(""))
    found = same_server(nothing, rows(8), says({8: "0-7-20"}))
    assert gap_of(found) == (name(8), "gap", "after nothing up to 0-7-20")


# The source cannot give the rest


def test_the_rest_cannot_be_given() -> None:
    """It goes on with the next binlog, behind a gap; where there is none yet, not at all."""
    known = tip(closed=False, rotates_to=None)
    assert unservable(known, rows(3, 4), unasked) is None
    assert unservable(Tip(lineage=LINEAGE), rows(3, 4), unasked) is None
    found = unservable(known, rows(3, 4, 5, 6), says({5: f"{UUID_A}:1-12"}))
    assert gap_of(found) == (name(5), "gap", f"{UUID_A}:10-12")
    found = unservable(known, rows(4, 5), GTIDS_5)
    assert gap_of(found) == (name(5), "exact", "")
    found = unservable(replace(known, gtids=None), rows(4, 5), GTIDS_5)
    assert gap_of(found) == (name(5), "gap", "b.000004 from 100 on")


# Another server


@pytest.mark.parametrize(
    ("executed", "expected"),
    [
        (f"{UUID_A}:1-9,{UUID_B}:1-3", True),  # it has everything
        (f"{UUID_A}:1-8,{UUID_B}:1-3", True),  # it lacks some of the last binlog's
        (f"{UUID_A}:1-7,{UUID_B}:1-3", True),
        (f"{UUID_A}:1-6,{UUID_B}:1-3", False),  # it lacks an older one's
        (f"{UUID_B}:1-3", False),
        ("", False),
        (None, False),
    ],
)
def test_who_may_take_over(executed: str | None, *, expected: bool) -> None:
    """Only who has all that came before the last binlog; without GTIDs nobody can tell."""
    had = None if executed is None else gtids(executed)
    assert acceptable(tip(), had) is expected


def test_of_what_has_no_gtids_nobody_is_the_successor() -> None:
    """Anonymous transactions prove nothing."""
    had = gtids(f"{UUID_A}:1-9")
    assert not acceptable(tip(gtids=None), had)
    assert not acceptable(tip(gtids_before=None), had)
    assert not acceptable(tip(), mariadb("0-7-9"))


def test_two_clones_of_one_image_do_not_succeed_each_other() -> None:
    """Both have the image's transactions; neither has any that the other has made itself."""
    cloned = tip(gtids=gtids(f"{IMAGE}:1-100,{UUID_A}:1-4"), gtids_before=gtids(f"{IMAGE}:1-100"))
    assert not acceptable(cloned, gtids(f"{IMAGE}:1-100,{UUID_B}:1-9"))
    assert not acceptable(cloned, gtids(f"{IMAGE}:1-100"))
    assert acceptable(cloned, gtids(f"{IMAGE}:1-100,{UUID_A}:1,{UUID_B}:1-9"))
    fresh = tip(gtids=gtids(f"{IMAGE}:1-100"), gtids_before=gtids(f"{IMAGE}:1-100"))
    assert not acceptable(fresh, gtids(f"{IMAGE}:1-100,{UUID_B}:1-9"))


def test_who_may_take_over_from_mariadb() -> None:
    """Per domain, and only who has something that the server itself has written."""
    assert acceptable(mariadb_tip(), mariadb("0-7-9,0-9-12,1-8-3"))
    assert acceptable(mariadb_tip(), mariadb("0-7-6,1-8-3"))
    assert not acceptable(mariadb_tip(), mariadb("0-7-5,1-8-3"))
    assert not acceptable(mariadb_tip(), mariadb("0-9-12,1-8-3"))
    cloned = mariadb_tip(gtids=mariadb("0-3-50,0-7-60"), gtids_before=mariadb("0-3-50"))
    assert not acceptable(cloned, mariadb("0-3-50,0-9-70"))


def never(executed: Gtids) -> Mapping[str, Any] | None:
    raise AssertionError(f"a cut was asked for: {executed}")


def test_a_successor_that_has_everything() -> None:
    """Its lineage begins with its newest binlog before which there was nothing else."""
    asked = says({3: f"{UUID_A}:1-9,{UUID_B}:1", 2: f"{UUID_A}:1-8", 1: ""})
    had = gtids(f"{UUID_A}:1-9,{UUID_B}:1-2")
    found = successor(tip(), had, rows(1, 2, 3), asked, cut=never)
    assert (found.begin, found.parent) == (name(2), parent(tip(), "exact"))


def test_a_successor_that_lost_some() -> None:
    """The parent is cut at the last transaction that both have, which the archive's bytes tell."""
    cut = parent(tip(), "exact", binlog=name(4), offset=80, gtids=gtids(f"{UUID_A}:1-8"))
    had = gtids(f"{UUID_A}:1-8,{UUID_B}:1-2")
    asked = says({3: f"{UUID_A}:1-8,{UUID_B}:1", 2: f"{UUID_A}:1-8", 1: ""})
    found = successor(tip(), had, rows(1, 2, 3), asked, cut=lambda _: cut)
    assert (found.begin, found.parent) == (name(2), cut)
    assert cut.binlog == "b.000004"
    assert cut.offset == 80
    assert cut.gtid_set == f"{UUID_A}:1-8"


@pytest.mark.parametrize("executed", ["0-7-9,0-9-12,1-8-3", "0-7-7,1-8-3", "0-7-20,1-8-3"])
def test_a_successor_of_which_numbers_do_not_tell_what_it_has(executed: str) -> None:
    """Numbers that go back are smaller than those before them: nothing proves the join."""
    tip = mariadb_tip(goes_back=True)
    cut = parent(tip, "exact", binlog=name(4), offset=80, gtids=mariadb("0-7-7,1-8-3"))
    asked = says({1: "", 2: "0-7-6,1-8-3"})
    found = successor(tip, mariadb(executed), rows(1, 2), asked, cut=lambda _: cut)
    assert (found.begin, found.parent) == (name(1), parent(tip, "unknown"))
    found = successor(mariadb_tip(), mariadb(executed), rows(1, 2), asked, cut=lambda _: cut)
    assert found.parent is not None
    assert found.parent.join == "exact"


def test_a_successor_that_has_purged_what_would_be_needed() -> None:
    """Its oldest binlog begins behind the cut: a gap that names what lies between."""
    asked = says({6: f"{UUID_A}:1-9,{UUID_B}:1-4", 5: f"{UUID_A}:1-9,{UUID_B}:1-3"})
    had = gtids(f"{UUID_A}:1-9,{UUID_B}:1-5")
    found = successor(tip(), had, rows(5, 6), asked, cut=never)
    assert gap_of(found) == (name(5), "gap", f"{UUID_B}:1-3")


@pytest.mark.parametrize("executed", [None, gtids(""), gtids(f"{UUID_B}:1-3")])
def test_a_successor_that_shares_nothing(executed: Gtids | None) -> None:
    """It was let in by hand: its join is unknown, from its oldest binlog on."""
    found = successor(tip(), executed, rows(5, 6), unasked, cut=lambda _: None)
    assert gap_of(found) == (name(5), "unknown", "")
    empty = replace(parent(tip(), "exact"), gtid_set="")
    found = successor(tip(gtids=None), executed, rows(5, 6), unasked, cut=lambda _: empty)
    assert gap_of(found) == (name(5), "unknown", "")


def test_a_successor_that_keeps_no_gtids_in_its_binlogs() -> None:
    """Where its history joins is not known then."""
    had = gtids(f"{UUID_A}:1-9")
    found = successor(tip(), had, rows(5, 6), says({5: None, 6: None}), cut=never)
    assert gap_of(found) == (name(5), "unknown", "")


def test_a_mariadb_successor() -> None:
    """As MySQL's, by the lists that its binlogs begin with."""
    had = mariadb("0-7-9,0-9-12,1-8-3")
    asked = says({3: "0-7-9,0-9-11,1-8-3", 2: "0-7-8,1-8-3", 1: ""})
    found = successor(mariadb_tip(), had, rows(1, 2, 3), asked, cut=never)
    assert (found.begin, found.parent) == (name(2), parent(mariadb_tip(), "exact"))
    found = successor(mariadb_tip(), had, rows(3), says({3: "0-7-9,0-9-11,1-8-3"}), cut=never)
    assert gap_of(found)[1:] == ("gap", "after 0-7-9,1-8-3 up to 0-7-9,0-9-11,1-8-3")


def test_a_lineage_begins_behind_rows_that_are_nowhere() -> None:
    """The GTIDs on both sides are the same: nothing names what is missing."""
    found = left_out(tip(), rows(4, 5), GTIDS_5)
    assert found is not None
    assert found.begin == name(5)
    assert found.parent == parent_of(
        LINEAGE.id,
        binlog="b.000004",
        offset=100,
        gtid_set=f"{UUID_A}:1-9",
        join="gap",
        unlogged=True,
    )


def test_gtids_that_are_nowhere_are_named() -> None:
    """As of a replica that applied them without a binlog."""
    found = left_out(tip(), rows(4, 5), says({5: f"{UUID_A}:1-11"}))
    assert found is not None
    assert found.parent is not None
    assert (found.parent.missing, found.parent.unlogged) == (f"{UUID_A}:10-11", True)


@pytest.mark.parametrize(
    ("known", "listed"), [(tip(closed=False), rows(4, 5)), (tip(), rows(4, 6))]
)
def test_only_the_next_binlog_of_a_closed_one_begins_such_a_lineage(
    known: Tip, listed: tuple[ServerBinlog, ...]
) -> None:
    """Anything else is looked into as ever."""
    assert left_out(known, listed, unasked) is None
