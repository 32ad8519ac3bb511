"""Where a history goes on: one lineage, the next one, or nobody knows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from binlog2s3.archive.documents import Parent
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.continuation import (
    Begin,
    Contradicts,
    Course,
    GoOn,
    KnownEnd,
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
from tests.unit.stream.builders import name, rows

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


def gtids(text: str) -> Gtids:
    return parse(text, "mysql")


def known_end(**facts: Any) -> KnownEnd:
    """100 bytes of b.000004 are known and no more may come: it begins after 7, ends with 9."""
    known = KnownEnd(
        lineage=LINEAGE,
        last=name(4),
        size=100,
        closed=True,
        gtids=gtids(f"{UUID_A}:1-9"),
        gtids_before=gtids(f"{UUID_A}:1-7"),
        rotates_to=name(5),
    )
    return replace(known, **facts)


def says(answers: Mapping[int, str | None]) -> Before:
    """A server that is asked for the GTIDs before these binlogs, and no others."""
    return lambda binlog: answers[binlog.number]


def unasked(binlog: BinlogName) -> str | None:
    raise AssertionError(f"the server was asked about {binlog}")


GTIDS_5 = says({5: f"{UUID_A}:1-9"})


def after(number: int, *sets: str) -> Before:
    """A server whose binlog of this number begins after these GTIDs."""
    return says({number: ",".join(sets)})


def gap_of(found: Course | None) -> tuple[BinlogName, str, str]:
    """Where the next lineage begins, how it is joined to ours, what is missing."""
    assert isinstance(found, Begin)
    assert found.parent is not None
    assert found.parent.lineage == LINEAGE.id
    return found.begin, found.parent.join, found.parent.missing


def mariadb(text: str) -> Gtids:
    return parse(text, "mariadb")


def mariadb_known_end(**facts: Any) -> KnownEnd:
    """MariaDB's GTIDs are the last of each domain and server."""
    known = KnownEnd(
        lineage=MARIADB,
        last=name(4),
        size=100,
        closed=True,
        gtids=mariadb("0-7-9,1-8-3"),
        gtids_before=mariadb("0-7-6,1-8-3"),
        rotates_to=name(5),
    )
    return replace(known, **facts)


OPEN = {"closed": False}
NO_GTIDS = {"gtids": None}
EMPTY = {"last": None, "size": 0}
AGAIN, NEXT = (name(4), True), (name(5), False)
NO_5 = Contradicts(why="it has no b.000005")
OTHER_NAME = (ServerBinlog(name=BinlogName("c", 9), size=100, encrypted=False),)
A9, A12, A8 = (f"{UUID_A}:1-{last}" for last in (9, 12, 8))

Expected = Course | str | tuple[BinlogName, bool]
"""The pair: it goes on with this binlog, and whether a part of that is known already."""

COURSES: list[tuple[KnownEnd, tuple[ServerBinlog, ...], Before, Expected]] = [
    # the last binlog is listed: it is read again, so that its own bytes prove the history
    *((known, there, unasked, AGAIN)
      for known in (known_end(), known_end(**OPEN), known_end(**OPEN, **NO_GTIDS))
      for there in (rows(3, 4), rows(4, 5, 6), rows(4))),
    # an open one may have grown, and a whole one may not
    (known_end(**OPEN), rows(4, 5, size=101), unasked, AGAIN),
    (known_end(), rows(4, 5, size=101), unasked,
     Contradicts(why="its b.000004 has 101 bytes, 100 are known")),
    # a server that has less was rolled back, or reset: the bytes must tell
    *((known_end(closed=closed), rows(4, 5, size=99), unasked,
       Contradicts(why="its b.000004 has 99 bytes, 100 are known")) for closed in (True, False)),
    # behind a whole binlog comes the next one, or nothing newer
    (known_end(), rows(4, 6), unasked, NO_5),
    (known_end(**OPEN), rows(4, 6), unasked, AGAIN),
    # it is purged, and the next one follows: by its previous GTIDs; without any, by its name
    (known_end(), rows(5, 6), GTIDS_5, NEXT),
    (known_end(**OPEN), rows(5, 6), GTIDS_5, NEXT),  # a lost STOP event is no gap
    (known_end(rotates_to=None), rows(5, 6), GTIDS_5, NEXT),  # it ended with a crash or a STOP
    (known_end(**NO_GTIDS), rows(5, 6), GTIDS_5, NEXT),  # by the rotation's word alone
    (known_end(**NO_GTIDS, rotates_to=None), rows(5, 6), GTIDS_5, NEXT),
    # the next binlog begins elsewhere: it is not the one that follows, whatever its name is
    (known_end(), rows(5), after(5, A8), "begins after .*:1-8, what is known ends with .*:1-9"),
    (known_end(), rows(5), after(5, f"{UUID_A}:1-10"),
     "begins after .*:1-10, what is known ends .*:1-9"),
    (known_end(), rows(5), after(5, f"{UUID_B}:1-9"), "begins after"),
    (known_end(), rows(5), after(5), "begins after no GTIDs"),
    (known_end(gtids=gtids("")), rows(5), after(5, f"{UUID_A}:1"), "what is known ends with none"),
    (known_end(**OPEN), rows(5), after(5, A8), "begins after .*:1-8"),
    (known_end(), rows(8, 9), after(8, A8), ""),
    # a server whose binlogs are all older was reset, or restored from a backup
    (known_end(), rows(1, 2, 3), unasked, NO_5),
    (known_end(), rows(1), unasked, NO_5),
    # under another prefix only GTIDs can tell what it follows
    (known_end(**NO_GTIDS), OTHER_NAME, unasked, NO_5),
    (known_end(gtids=gtids("")), OTHER_NAME, unasked, NO_5),
    (known_end(), OTHER_NAME, says({9: None}), NO_5),
    (known_end(), OTHER_NAME, after(9, A8), NO_5),  # it was reset as well
    # of a lineage nothing is known: it begins with its first binlog, or another in its stead
    (KnownEnd(lineage=LINEAGE), rows(2, 3), unasked, (name(2), False)),
    (KnownEnd(lineage=LINEAGE), rows(1), unasked, Begin(begin=name(1), parent=None)),
    (KnownEnd(lineage=replace(LINEAGE, parent=parent_of(LINEAGE.id))), rows(1), unasked,
     Begin(begin=name(1), parent=parent_of(LINEAGE.id))),
    # MariaDB: by the list that its next binlog begins with
    (mariadb_known_end(), rows(5), after(5, "0-7-9,1-8-3"), NEXT),
    (mariadb_known_end(), rows(5), after(5, "0-7-10,1-8-3"), ""),
    (mariadb_known_end(), rows(8), after(8, "0-7-2,1-8-3"), ""),
]  # fmt: skip
"""What is known, what the server lists and says; the course, or why it contradicts."""


@pytest.mark.parametrize(("known", "there", "before", "course"), COURSES)
def test_where_one_server_goes_on(
    known: KnownEnd, there: tuple[ServerBinlog, ...], before: Before, course: Expected
) -> None:
    """In the binlog that is known, in the next one, or nobody knows."""
    found = same_server(known, there, before)
    if isinstance(course, tuple):
        assert isinstance(found, GoOn)
        assert (found.known_end, found.begin, found.again) == (known, *course)
        return
    if isinstance(course, str):
        assert isinstance(found, Contradicts)
        assert re.search(course, found.why)
    else:
        assert found == course


GAPS: list[tuple[KnownEnd, tuple[ServerBinlog, ...], Before, tuple[BinlogName, str, str]]] = [
    # the rest of an open binlog was purged
    (known_end(**OPEN, rotates_to=None), rows(5, 6), after(5, A12, f"{UUID_B}:1"),
     (name(5), "gap", f"{UUID_A}:10-12,{UUID_B}:1")),
    # binlogs were purged that were never read; where they had nothing, nothing is missing
    (known_end(), rows(8, 9), after(8, f"{UUID_A}:1-20"), (name(8), "gap", f"{UUID_A}:10-20")),
    (known_end(), rows(8, 9), after(8, A9), (name(8), "exact", "")),
    # two empty sets are equal and say nothing
    (known_end(gtids=gtids("")), rows(8), after(8), (name(8), "gap", "b.000005 to b.000007")),
    # a server whose binlogs have other names
    (known_end(), OTHER_NAME, after(9, A9), (OTHER_NAME[0].name, "exact", "")),
    (known_end(), OTHER_NAME, after(9, A12), (OTHER_NAME[0].name, "gap", f"{UUID_A}:10-12")),
    # MariaDB's lists name only the last of each
    (mariadb_known_end(), rows(8), after(8, "0-7-20,1-8-3"),
     (name(8), "gap", "after 0-7-9,1-8-3 up to 0-7-20,1-8-3")),
    (mariadb_known_end(gtids=mariadb("")), rows(8), after(8, "0-7-20"),
     (name(8), "gap", "after nothing up to 0-7-20")),
    # without GTIDs a gap is told by names, whatever the server keeps
    *((known_end(**NO_GTIDS, **facts), rows(oldest, oldest + 1), says({oldest: answer}),
       (name(oldest), "gap", missing))
      for facts, oldest, missing in (
          (OPEN, 5, "b.000004 from 100 on"),
          (OPEN, 6, "b.000004 from 100 on, b.000005"),
          (OPEN, 9, "b.000004 from 100 on, b.000005 to b.000008"),
          ({}, 6, "b.000005"),
          ({}, 8, "b.000005 to b.000007"),
          (EMPTY, 3, "b.000002"),
          (EMPTY, 5, "b.000002 to b.000004"))
      for answer in (None, f"{UUID_A}:1-50")),
    (known_end(**OPEN), rows(6), says({6: None}),
     (name(6), "gap", "b.000004 from 100 on, b.000005")),
    (known_end(), rows(8), says({8: None}), (name(8), "gap", "b.000005 to b.000007")),
]  # fmt: skip


@pytest.mark.parametrize(("known", "there", "before", "gap"), GAPS)
def test_what_is_purged_is_a_gap(
    known: KnownEnd,
    there: tuple[ServerBinlog, ...],
    before: Before,
    gap: tuple[BinlogName, str, str],
) -> None:
    """A lineage begins with the oldest binlog that follows; what is lost is named."""
    assert gap_of(same_server(known, there, before)) == gap


def test_the_parent_of_a_gap_is_what_there_is() -> None:
    """The place and the GTIDs that are known."""
    found = same_server(known_end(**OPEN, rotates_to=None), rows(5, 6), after(5, A12))
    assert isinstance(found, Begin)
    assert found.parent == Parent(
        lineage=LINEAGE.id,
        binlog=name(4),
        offset=100,
        gtid_set=A9,
        join="gap",
        missing=f"{UUID_A}:10-12",
    )


# The source cannot give the rest


def test_the_rest_cannot_be_given() -> None:
    """It goes on with the next binlog, behind a gap; where there is none yet, not at all."""
    known = known_end(closed=False, rotates_to=None)
    assert unservable(known, rows(3, 4), unasked) is None
    assert unservable(KnownEnd(lineage=LINEAGE), rows(3, 4), unasked) is None
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
    assert acceptable(known_end(), had) is expected


def test_of_what_has_no_gtids_nobody_is_the_successor() -> None:
    """Anonymous transactions prove nothing."""
    had = gtids(f"{UUID_A}:1-9")
    assert not acceptable(known_end(gtids=None), had)
    assert not acceptable(known_end(gtids_before=None), had)
    assert not acceptable(known_end(), mariadb("0-7-9"))


def test_two_clones_of_one_image_do_not_succeed_each_other() -> None:
    """Both have the image's transactions; neither has any that the other has made itself."""
    cloned = known_end(
        gtids=gtids(f"{IMAGE}:1-100,{UUID_A}:1-4"), gtids_before=gtids(f"{IMAGE}:1-100")
    )
    assert not acceptable(cloned, gtids(f"{IMAGE}:1-100,{UUID_B}:1-9"))
    assert not acceptable(cloned, gtids(f"{IMAGE}:1-100"))
    assert acceptable(cloned, gtids(f"{IMAGE}:1-100,{UUID_A}:1,{UUID_B}:1-9"))
    fresh = known_end(gtids=gtids(f"{IMAGE}:1-100"), gtids_before=gtids(f"{IMAGE}:1-100"))
    assert not acceptable(fresh, gtids(f"{IMAGE}:1-100,{UUID_B}:1-9"))


def test_who_may_take_over_from_mariadb() -> None:
    """Per domain, and only who has something that the server itself has written."""
    assert acceptable(mariadb_known_end(), mariadb("0-7-9,0-9-12,1-8-3"))
    assert acceptable(mariadb_known_end(), mariadb("0-7-6,1-8-3"))
    assert not acceptable(mariadb_known_end(), mariadb("0-7-5,1-8-3"))
    assert not acceptable(mariadb_known_end(), mariadb("0-9-12,1-8-3"))
    cloned = mariadb_known_end(gtids=mariadb("0-3-50,0-7-60"), gtids_before=mariadb("0-3-50"))
    assert not acceptable(cloned, mariadb("0-3-50,0-9-70"))


def never(executed: Gtids) -> Mapping[str, Any] | None:
    raise AssertionError(f"a cut was asked for: {executed}")


def test_a_successor_that_has_everything() -> None:
    """Its lineage begins with its newest binlog before which there was nothing else."""
    asked = says({3: f"{UUID_A}:1-9,{UUID_B}:1", 2: f"{UUID_A}:1-8", 1: ""})
    had = gtids(f"{UUID_A}:1-9,{UUID_B}:1-2")
    found = successor(known_end(), had, rows(1, 2, 3), asked, cut=never)
    assert (found.begin, found.parent) == (name(2), parent(known_end(), "exact"))


def test_a_successor_that_lost_some() -> None:
    """The parent is cut at the last transaction that both have, which the archive's bytes tell."""
    at = Position(binlog=name(4), offset=80, gtid_set=f"{UUID_A}:1-8")
    cut = parent(known_end(), "exact", at=at)
    had = gtids(f"{UUID_A}:1-8,{UUID_B}:1-2")
    asked = says({3: f"{UUID_A}:1-8,{UUID_B}:1", 2: f"{UUID_A}:1-8", 1: ""})
    found = successor(known_end(), had, rows(1, 2, 3), asked, cut=lambda _: cut)
    assert (found.begin, found.parent) == (name(2), cut)
    assert cut.binlog == name(4)
    assert cut.offset == 80
    assert cut.gtid_set == f"{UUID_A}:1-8"


@pytest.mark.parametrize("executed", ["0-7-9,0-9-12,1-8-3", "0-7-7,1-8-3", "0-7-20,1-8-3"])
def test_a_successor_of_which_numbers_do_not_tell_what_it_has(executed: str) -> None:
    """Numbers that go back are smaller than those before them: nothing proves the join."""
    known_end = mariadb_known_end(goes_back=True)
    at = Position(binlog=name(4), offset=80, gtid_set="0-7-7,1-8-3")
    cut = parent(known_end, "exact", at=at)
    asked = says({1: "", 2: "0-7-6,1-8-3"})
    found = successor(known_end, mariadb(executed), rows(1, 2), asked, cut=lambda _: cut)
    assert (found.begin, found.parent) == (name(1), parent(known_end, "unknown"))
    found = successor(mariadb_known_end(), mariadb(executed), rows(1, 2), asked, cut=lambda _: cut)
    assert found.parent is not None
    assert found.parent.join == "exact"


def test_a_successor_that_has_purged_what_would_be_needed() -> None:
    """Its oldest binlog begins behind the cut: a gap that names what lies between."""
    asked = says({6: f"{UUID_A}:1-9,{UUID_B}:1-4", 5: f"{UUID_A}:1-9,{UUID_B}:1-3"})
    had = gtids(f"{UUID_A}:1-9,{UUID_B}:1-5")
    found = successor(known_end(), had, rows(5, 6), asked, cut=never)
    assert gap_of(found) == (name(5), "gap", f"{UUID_B}:1-3")


@pytest.mark.parametrize("executed", [None, gtids(""), gtids(f"{UUID_B}:1-3")])
def test_a_successor_that_shares_nothing(executed: Gtids | None) -> None:
    """It was let in by hand: its join is unknown, from its oldest binlog on."""
    found = successor(known_end(), executed, rows(5, 6), unasked, cut=lambda _: None)
    assert gap_of(found) == (name(5), "unknown", "")
    empty = replace(parent(known_end(), "exact"), gtid_set="")
    found = successor(known_end(gtids=None), executed, rows(5, 6), unasked, cut=lambda _: empty)
    assert gap_of(found) == (name(5), "unknown", "")


def test_a_successor_that_keeps_no_gtids_in_its_binlogs() -> None:
    """Where its history joins is not known then."""
    had = gtids(f"{UUID_A}:1-9")
    found = successor(known_end(), had, rows(5, 6), says({5: None, 6: None}), cut=never)
    assert gap_of(found) == (name(5), "unknown", "")


def test_a_mariadb_successor() -> None:
    """As MySQL's, by the lists that its binlogs begin with."""
    had = mariadb("0-7-9,0-9-12,1-8-3")
    asked = says({3: "0-7-9,0-9-11,1-8-3", 2: "0-7-8,1-8-3", 1: ""})
    found = successor(mariadb_known_end(), had, rows(1, 2, 3), asked, cut=never)
    assert (found.begin, found.parent) == (name(2), parent(mariadb_known_end(), "exact"))
    found = successor(mariadb_known_end(), had, rows(3), says({3: "0-7-9,0-9-11,1-8-3"}), cut=never)
    assert gap_of(found)[1:] == ("gap", "after 0-7-9,1-8-3 up to 0-7-9,0-9-11,1-8-3")


def test_a_lineage_begins_behind_rows_that_are_nowhere() -> None:
    """The GTIDs on both sides are the same: nothing names what is missing."""
    found = left_out(known_end(), rows(4, 5), GTIDS_5)
    assert found is not None
    assert found.begin == name(5)
    assert found.parent == parent_of(
        LINEAGE.id,
        binlog=name(4),
        offset=100,
        gtid_set=f"{UUID_A}:1-9",
        join="gap",
        unlogged=True,
    )


def test_a_lineage_behind_a_server_that_ended_itself_joins_exactly() -> None:
    """If GTIDs show it: without any, and if some are in no binlog, there is a gap all the same."""
    found = left_out(known_end(), rows(4, 5), GTIDS_5, aborted=True)
    assert found is not None
    assert (found.begin, found.parent) == (name(5), parent(known_end(), "exact"))
    for before in (says({5: f"{UUID_A}:1-11"}), says({5: None})):
        apart = left_out(known_end(), rows(4, 5), before, aborted=True)
        assert apart is not None
        assert apart.parent is not None
        assert (apart.parent.join, apart.parent.unlogged) == ("gap", True)


def test_gtids_that_are_nowhere_are_named() -> None:
    """As of a replica that applied them without a binlog."""
    found = left_out(known_end(), rows(4, 5), says({5: f"{UUID_A}:1-11"}))
    assert found is not None
    assert found.parent is not None
    assert (found.parent.missing, found.parent.unlogged) == (f"{UUID_A}:10-11", True)


@pytest.mark.parametrize(
    ("known", "listed"), [(known_end(closed=False), rows(4, 5)), (known_end(), rows(4, 6))]
)
def test_only_the_next_binlog_of_a_closed_one_begins_such_a_lineage(
    known: KnownEnd, listed: tuple[ServerBinlog, ...]
) -> None:
    """Anything else is looked into as ever."""
    assert left_out(known, listed, unasked) is None
