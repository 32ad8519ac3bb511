"""Where a goal is, to the microsecond and to the byte: at its edges."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from binlog2s3.archive.facts import Facts
from binlog2s3.binlog.gtid import Flavour, GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.backup import start_of_gtids
from binlog2s3.recover.model import Plan, Request, Start
from binlog2s3.recover.plan import make
from tests.documents import BEAT, FLOOR, LINEAGE, NAME
from tests.history_model import HEAD, File, Model, Real, lived
from tests.property.test_plan import applied
from tests.snapshots import Bucket
from tests.unit.recover.test_plan import Case, holds
from tests.unit.serve.test_dump import OTHER_ID, put_back

FIRST, SECOND = BinlogName("mysql-bin", 1), BinlogName("mysql-bin", 2)


def planned(model: Model, goal: Goal, start: Start, **more: object) -> Plan:
    return make(Request(goal=goal, start=start, **more), model)  # type: ignore[arg-type]


def refused(model: Model, goal: Goal, start: Start, **more: object) -> str:
    with pytest.raises(RecoveryError) as caught:
        planned(model, goal, start, **more)
    return str(caught.value)


def having(*reals: Real) -> Start:
    """A target with these, and nothing else."""
    return start_of_gtids(",".join(real.gtid or "" for real in reals), "mysql")


def committed(model: Model, count: int, wait_us: int = 10) -> None:
    for _ in range(count):
        model.commit(100, wait_us)


PAST = "already past then"
EDGES = ("", "|")
CASES: list[Case] = [
    # what was committed at just that time is applied, and what came a microsecond later is not
    *((f"1 {edge} 2 {edge} 1 vouched:0", "0", f"time {at}+{us}", {}, at + count)
      for edge in EDGES for at in range(3) for us, count in ((-1, 0), (0, 1), (9, 1), (10, 2))),
    # a target that has just what is later is past the time; one that ends before it is not
    *((f"2 {edge} 2", start, "time 1", {}, said) for edge, start, said in (
        ("", "2", 0), ("|", "2", 0), ("", "1+200", 0), ("|", "2+0", 0),
        ("", "3", PAST), ("|", "3", PAST), ("", "1+300", PAST), ("|", "2+100", PAST))),
    # a GTID is found in any binlog: the first, the last, one between, behind what has none
    *((steps, "0", f"{kind} {number}", {}, number + more)
      for steps in ("7", "7 | 7", "7 | 7 | 7") for number in range(steps.count("7") * 7)
      for kind, more in (("to", 1), ("before", 0))),
    *(("anonymous 9 named 9", "1+0", f"to {number}", {}, number + 1) for number in (9, 13, 17)),
    # a place of the lineage that is named is that one, though the one before has such a place, too
    ("3 reset 3 vouched:0", "1+100/1", "now+0", {}, 2),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "start", "goal", "options", "expected"), CASES)
def test_a_goal(
    steps: str, start: str, goal: str, options: dict[str, Any], expected: object
) -> None:
    """It is reached to the microsecond and to the byte."""
    holds(steps, start, goal, options, expected)


@pytest.mark.parametrize("rotates", [False, True])
def test_a_clock_that_came_back_to_just_that_time(rotates: bool) -> None:
    """Makes it ambiguous, as an earlier one does; a microsecond later it does not."""
    model = lived("2")
    later, goal = model.truth[1], ToTime(model.truth[0].commit_us, "then")
    if rotates:
        model.rotate()
    model.clock_us = goal.at_us
    model.commit(100, 0)
    assert "ambiguous" in refused(model, goal, having())
    assert later.gtid is not None
    assert later.gtid in refused(model, goal, having())
    model.open.reals[-1] = replace(model.open.reals[-1], commit_us=goal.at_us + 1)
    assert planned(model, goal, having()).transactions == 1


def test_a_clock_that_came_back_far_behind_the_stop() -> None:
    """Is seen behind binlogs and transactions that are later, too."""
    model = lived("2")
    goal = ToTime(model.truth[0].commit_us, "then")
    for _ in range(2):
        model.rotate()
        committed(model, 1)
    model.rotate()
    committed(model, 1)
    model.clock_us = goal.at_us - 1
    model.commit(100, 0)
    committed(model, 1, 1000)
    assert "ambiguous" in refused(model, goal, having())


def test_a_time_is_that_of_the_server_that_committed() -> None:
    """Not the later one at which a replica committed what it repeats."""
    model = lived("4 fail_over:0,3")
    committed(model, 1, 1000)
    for has in range(3):
        goal = ToTime(model.truth[2].commit_us, "then")
        assert planned(model, goal, having(*model.truth[:has])).transactions == 3 - has


@pytest.mark.parametrize("empty", [0, 1, 2])
def test_a_target_past_the_time_by_an_earlier_binlog(empty: int) -> None:
    """It begins behind the later transaction, maybe with binlogs between that have none."""
    model = lived("2", gtids=False)
    for _ in range(empty + 1):
        model.rotate()
    model.clock_us -= 100
    committed(model, 1)
    model.covered_us = model.truth[1].commit_us + 1000
    start = Start(position=FilePosition(BinlogName("mysql-bin", 2 + empty), 4))
    late, just = model.truth[1].commit_us - 1, model.truth[1].commit_us
    assert "already past then" in refused(model, ToTime(late, "then"), start)
    assert planned(model, ToTime(just, "then"), start).transactions == 1


def test_the_second_in_which_a_pruned_archive_begins() -> None:
    """What was before it may be of that second: only its last microsecond is surely later."""
    model = lived("1 gap:1")
    model.clock_us += 5_000_000
    model.open.first_us = model.clock_us
    committed(model, 1, 2_000_000)
    model.branches = model.branches[1:]
    lineage = model.branches[0].lineage
    model.branches[0].lineage = replace(lineage, parent=None)
    begun = model.open.first_us
    start = start_of_gtids(str(model.open.before), "mysql")
    for at_us, says in [(begun - 1, "before"), (begun + 999_998, "before")]:
        assert says in refused(model, ToTime(at_us, "then"), start)
    assert planned(model, ToTime(begun + 999_999, "then"), start).transactions == 0


def test_the_first_microsecond_of_an_archive() -> None:
    """Can be reached where nothing was executed before it."""
    model = lived("1")
    begun = model.open.first_us
    assert planned(model, ToTime(begun, "then"), having()).transactions == 0
    assert "before the archive" in refused(model, ToTime(begun - 1, "then"), having())


def test_a_floor_says_nothing_of_binlogs_that_are_still_there() -> None:
    """Somebody is about to prune: until then the archive begins where it began."""
    model = lived("1 | 1")
    lineage = model.branch.lineage
    model.branch.lineage = replace(lineage, floor=replace(FLOOR, binlog=SECOND))
    goal = ToTime(model.branch.files[0].first_us, "then")
    assert planned(model, goal, having()).transactions == 0
    del model.branch.files[0]
    first = having(model.truth[0])
    said = refused(model, ToTime(goal.at_us, "then"), first)
    assert f"the binlogs before {SECOND} of {lineage.id} were pruned" in said


def test_a_gtid_from_before_the_archive_is_no_goal() -> None:
    """And is said to be that, not to be unknown."""
    model = lived("2 gap:1 1")
    first = model.truth[0].gtid
    assert first is not None
    model.branches = model.branches[1:]
    model.branches[0].lineage = replace(model.branches[0].lineage, parent=None)
    start = start_of_gtids(str(model.open.before), "mysql")
    assert "before the archive begins" in refused(model, ToGtid(first), start)
    unknown = "11111111-0000-0000-0000-000000000000:1"
    assert "not in the archive" in refused(model, ToGtid(unknown), start)


class Unreadable(Model):
    """A history in which the places between transactions of one lineage cannot be read."""

    unread = ""

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        if lineage == self.unread:
            raise ArchiveError("damaged")
        return super().is_boundary(lineage, name, offset)


def test_a_place_that_cannot_be_read_may_be_one() -> None:
    """Of two histories the unreadable one is not left out, so one has to be chosen."""
    model = lived("3 reset 3", Unreadable)
    model.unread = model.branches[0].lineage.id
    start = Start(position=FilePosition(FIRST, HEAD + 100))
    goal = ToTime(model.truth[2].commit_us, "then")
    assert "several histories" in refused(model, goal, start)


@pytest.mark.parametrize("has_gtids", [False, True])
def test_a_gtid_that_two_servers_have_is_that_of_the_one_where_the_recovery_begins(
    has_gtids: bool,
) -> None:
    """What only the server before has is before that place; what the target has is, too."""
    model = lived("4 fail_over:0,3 1")
    have = having(model.truth[0]).gtids if has_gtids else None
    second = model.branches[1].lineage.id
    start = Start(gtids=have, position=FilePosition(FIRST, HEAD), lineage=second)
    for number, real in enumerate(model.truth):
        assert real.gtid is not None
        if number == 0:
            assert "lies before" in refused(model, ToGtid(real.gtid), start)
            continue
        plan = planned(model, ToGtid(real.gtid), start)
        assert (plan.transactions, plan.stop.lineage) == (number, second)
        assert planned(model, BeforeGtid(real.gtid), start).transactions == number - 1
    there = having(*model.truth[:4])
    plan = planned(model, ToGtid(model.truth[3].gtid or ""), there)
    assert (plan.pieces, plan.stop.lineage) == ((), model.branches[0].lineage.id)


def test_what_history_left_does_not_make_a_target_late() -> None:
    """Times of transactions that were lost in a fail-over are nobody's."""
    model = lived("3")
    committed(model, 1, 1000)
    model.fail_over(1, 0)
    model.clock_us -= 500
    committed(model, 1)
    start = having(*model.truth[:3])
    goal = ToTime(model.clock_us, "then")
    model.covered_us = goal.at_us
    assert planned(model, goal, start).transactions == 1
    assert planned(model, ToTime(model.truth[2].commit_us, "then"), start).transactions == 0


class Vague(Model):
    """Its cache says of each binlog that it may have a commit up to any time."""

    def not_later(self, lineage: str, at_us: int, begin: BinlogName) -> Iterator[BinlogName]:
        del at_us
        yield from (name for name in self.names(lineage) if name >= begin)


def test_a_clock_that_came_back_behind_binlogs_that_need_not_be_read() -> None:
    """They have no transaction, or only later ones: those that follow are looked at."""
    model = lived("2", Vague)
    goal = ToTime(model.truth[0].commit_us, "then")
    for _ in range(2):
        model.rotate()
    committed(model, 1)
    model.rotate()
    assert planned(model, goal, having()).transactions == 1
    model.clock_us = goal.at_us - 1
    model.commit(100, 0)
    assert "ambiguous" in refused(model, goal, having())


def test_a_clock_that_came_back_behind_a_fail_over() -> None:
    """Is seen if the stop is behind one, and if it is before one, whatever history left there."""
    model = lived("2 | fail_over:0,0 2")
    for number in (0, 2):
        goal = ToTime(model.truth[number].commit_us, "then")
        again = deepcopy(model)
        left = again.branches[0].files[-1]
        left.ended = True
        lost = Real(99, f"{again.branches[0].lineage.server_uuid}:3", goal.at_us, 100)
        again.branches[0].files.append(File(left.name.next(), left.before, 0, [lost]))
        assert planned(again, goal, having()).transactions == number + 1
        again.rotate()
        again.clock_us = goal.at_us - 1
        again.commit(100, 0)
        assert "ambiguous" in refused(again, goal, having())


def test_a_place_in_what_two_lineages_have() -> None:
    """A server that was put back has the bytes of before: up to the cut it is one place."""
    for gtids in (False, True):
        model = Model(gtids=gtids)
        committed(model, 4)
        model.put_back(1)
        committed(model, 2)
        model.rotate()
        committed(model, 2)
        for count in range(6):
            start = Start(position=FilePosition(FIRST, HEAD + 100 * count))
            plan = make(Request(goal=Latest(), start=start, lineage=model.current), model)
            assert applied(plan, model) == model.truth[count:]
            goal = ToPosition(FilePosition(FIRST, HEAD + 400))
            if count < 4:
                plan = make(Request(goal=goal, start=start, lineage=model.current), model)
                kept = [HEAD + 100, HEAD + 200, HEAD + 300]
                assert [one.transaction.begin for one in plan.kept] == kept
        model.branches[0].files.clear()
        plan = make(Request(goal=Latest(), start=Start()), model)
        assert applied(plan, model) == model.truth
        plan = make(
            Request(goal=Latest(), start=Start(position=FilePosition(FIRST, HEAD + 100))), model
        )
        assert applied(plan, model) == model.truth[1:]


@pytest.mark.parametrize("back", [1, 3, 4])
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_backup_is_not_applied_again_after_a_fail_over(flavour: Flavour, back: int) -> None:
    """The binlogs of the new primary have it, too, and the base backup has it."""
    model = lived("4", flavour=flavour)
    model.fail_over(0, back)
    committed(model, 2)
    first = model.branches[0].lineage.id
    for gtids in (None, GtidSet()) if flavour == "mysql" else (None,):
        for count in range(5):
            start = Start(
                gtids=gtids, position=FilePosition(FIRST, HEAD + 100 * count), lineage=first
            )
            plan = make(Request(goal=Latest(), start=start), model)
            assert applied(plan, model) == model.truth[count:]


def test_what_comes_before_the_archive_is_not_applied_behind_a_fail_over() -> None:
    """What begins with the archive is said to need it, and gets nothing of it."""
    model = lived("2 | 2 fail_over:0,3 1")
    del model.branches[0].files[0]
    plan = make(Request(goal=Latest(), start=Start()), model)
    assert applied(plan, model) == model.truth[2:]
    assert any("must have these" in warning for warning in plan.warnings)


def test_a_goal_in_the_binlog_of_the_place_where_a_recovery_begins() -> None:
    """What the target has executed of this binlog comes before the goal, and is nothing past it."""
    model = lived("4")
    for has in (1, 2):
        reals = model.truth[:has]
        start = replace(having(*reals), position=FilePosition(FIRST, HEAD + 100 * has))
        for count in range(has, 4):
            goal = ToGtid(model.truth[count - 1].gtid or "")
            assert planned(model, goal, start).transactions == count - has
        past = replace(
            having(*reals, model.truth[3]), position=FilePosition(FIRST, HEAD + 100 * has)
        )
        assert "already past" in refused(model, ToGtid(model.truth[2].gtid or ""), past)


def test_a_place_that_a_dead_branch_may_have_had() -> None:
    """The source died with bytes that the bucket does not have: a backup may be of those.

    `serve` refuses a replica at that place by the same rule.
    """
    bucket = Bucket(replace(LINEAGE, first_binlog=NAME, gtid_set=""))
    _, ours, cut = put_back(bucket, open_dead=True, lost=2)
    beat = replace(BEAT, generation=9, lineage=OTHER_ID, durable=None, covered_until=None)
    bucket.beat(beat)
    ends = [one.end for one in ours.transactions]
    for offset, histories in ((cut, 1), (ends[3], 2), (ends[4], 2), (ends[5], 2)):
        start = Start(position=FilePosition(NAME, offset))
        if histories == 1:
            assert make(Request(goal=Latest(), start=start), bucket.snapshot()).transactions == 4
            continue
        with pytest.raises(RecoveryError, match="several histories") as caught:
            make(Request(goal=Latest(), start=start), bucket.snapshot())
        assert f"--from-lineage {OTHER_ID}" in caught.value.hint
        chosen = Request(goal=Latest(), start=replace(start, lineage=OTHER_ID))
        plan = make(chosen, bucket.snapshot())
        assert plan.lineage == OTHER_ID
        assert plan.transactions == sum(one.begin >= offset for one in ours.transactions)


class Damaged(Model):
    """Its last binlog cannot be read."""

    def known(self, lineage: str, name: BinlogName) -> Facts:
        if name == self.names(lineage)[-1]:
            raise ArchiveError("the entry is damaged", hint="verify says more")
        return super().known(lineage, name)


def test_damage_elsewhere_does_not_take_the_place_of_a_refusal() -> None:
    """What is asked for is refused with its reason; that the reach is unknown is in the hint."""
    model = lived("1 | 1 | 1 |", Damaged)
    start = Start(position=FilePosition(FIRST, HEAD))
    with pytest.raises(RecoveryError, match=r"000077 is not in the archive") as caught:
        planned(model, ToPosition(FilePosition(BinlogName("mysql-bin", 77), 4)), start)
    assert caught.value.hint == "what is within reach is unknown: the entry is damaged"


def test_what_lies_before_a_gap_is_within_reach_of_a_backup_from_there() -> None:
    """The hint of a refusal says so, if there is a gap."""
    for steps, is_there in (("1 | 1", False), ("2 gap:1 1", True)):
        model = lived(steps)
        where = "this history" if is_there else "the archive"
        with pytest.raises(RecoveryError, match=f"000077 is not in {where}") as caught:
            planned(
                model,
                ToPosition(FilePosition(BinlogName("mysql-bin", 77), 4)),
                Start(position=FilePosition(FIRST, HEAD)),
            )
        assert ("before the last gap" in caught.value.hint) is is_there, caught.value.hint
        assert "GTIDs" not in caught.value.hint  # a place was asked for
