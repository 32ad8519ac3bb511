"""What a plan refuses, and what it says then. That it reaches its goal: tests/property."""

from dataclasses import replace

import pytest

from binlog2s3.archive.history import line_of
from binlog2s3.archive.known import Known
from binlog2s3.binlog.gtid import GtidSet, either
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import time_text
from binlog2s3.recover.backup import start_of_gtids
from binlog2s3.recover.model import (
    Base,
    BeforeGtid,
    Goal,
    Latest,
    Plan,
    Request,
    Start,
    ToGtid,
    ToPosition,
    ToTime,
)
from binlog2s3.recover.plan import make
from binlog2s3.recover.route import why_gap
from tests.history_model import HEAD, File, Model, Real
from tests.property.test_plan import applied

FIRST = BinlogName("mysql-bin", 1)
Have = list[Real]


def committed(model: Model, count: int) -> None:
    for _ in range(count):
        model.commit(100, 10)


def having(reals: Have) -> GtidSet:
    return GtidSet.parse(",".join(str(real.gtid) for real in reals))


def planned(model: Model, goal: Goal, have: Have | None = None, **more: object) -> Plan:
    start = more.pop("start", None) or Start(gtids=having(have or []))
    assert isinstance(start, Start)
    return make(Request(goal=goal, start=start, **more), model)  # type: ignore[arg-type]


def refused(model: Model, goal: Goal, have: Have | None = None, **more: object) -> RecoveryError:
    with pytest.raises(RecoveryError) as caught:
        planned(model, goal, have, **more)
    assert caught.value.hint
    return caught.value


def gtid(real: Real) -> str:
    assert real.gtid is not None
    return real.gtid


def test_a_gap_is_not_crossed_unless_it_is_allowed() -> None:
    """The error names what is missing; --allow-gap goes on and says it as a warning."""
    model = Model()
    committed(model, 3)
    model.gap(2)
    committed(model, 3)
    error = refused(model, Latest(), model.truth[:1])
    assert "had purged" in str(error)
    assert gtid(model.truth[3])[:36] + ":4-5" in str(error)
    assert f" to {time_text(model.clock_us)}, and, from a base backup before" in error.hint
    plan = planned(model, Latest(), model.truth[:1], allow_gap=True)
    assert plan.transactions == 5
    assert any("had purged" in warning for warning in plan.warnings)


@pytest.mark.parametrize(("backup", "goal", "count"), [(1, 2, 2), (5, 7, 3), (6, 7, 2)])
def test_both_sides_of_a_gap_can_be_reached(backup: int, goal: int, count: int) -> None:
    """From before it to before it, and from behind it to behind it."""
    model = Model()
    committed(model, 3)
    model.gap(2)
    committed(model, 3)
    plan = planned(model, ToGtid(gtid(model.truth[goal])), model.truth[:backup])
    assert plan.transactions == count


def test_an_unknown_join_is_never_crossed() -> None:
    """--allow-gap does not help, and the reason is said."""
    model = Model()
    committed(model, 3)
    old = model.truth[:]
    model.reset()
    committed(model, 5)
    for allowed in (False, True):
        error = refused(model, ToGtid(gtid(model.truth[4])), old[:1], allow_gap=allowed)
        assert "two different histories" in str(error)
    goal = ToGtid(gtid(model.truth[4]))
    assert planned(model, goal).transactions == 5


def test_the_history_before_a_reset_can_be_chosen() -> None:
    """--lineage brings it back, whatever came later."""
    model = Model()
    committed(model, 3)
    old = model.truth[:]
    model.reset()
    committed(model, 1)
    plan = planned(model, Latest(), lineage=model.branches[0].lineage.id)
    assert plan.adds == having(old)
    assert plan.others == (model.branches[1].lineage.id,)


def test_a_name_that_two_histories_have_must_be_chosen() -> None:
    """A place of a backup could be of either one."""
    model = Model()
    committed(model, 3)
    model.reset()
    committed(model, 3)
    start = Start(place=(FIRST, HEAD + 100))
    error = refused(model, Latest(), start=start)
    assert "several histories" in str(error)
    plan = planned(model, Latest(), start=start, lineage=model.branches[1].lineage.id)
    assert plan.transactions == 2


def test_a_place_on_a_dead_branch_is_refused() -> None:
    """The backup was taken behind the place that history left."""
    model = Model()
    committed(model, 5)
    model.fail_over(2, 1)
    committed(model, 2)
    error = refused(model, Latest(), start=Start(place=(FIRST, HEAD + 400)))
    assert "history left before" in str(error)
    plan = planned(model, Latest(), start=Start(place=(FIRST, HEAD + 200)))
    assert plan.transactions == 3


def test_a_target_of_a_dead_branch_is_told_which() -> None:
    """It has what was lost in the fail-over."""
    model = Model()
    committed(model, 5)
    everything = model.truth[:]
    model.fail_over(2, 1)
    committed(model, 2)
    error = refused(model, Latest(), everything)
    assert "dead branch" in str(error)
    assert model.branches[0].lineage.id in str(error)
    assert "allow" not in error.hint
    refused(model, Latest(), everything, allow_extra_gtids=True)


def test_a_gtid_of_a_dead_branch_is_no_goal() -> None:
    """The lineage that has it is named."""
    model = Model()
    committed(model, 5)
    model.fail_over(2, 1)
    committed(model, 2)
    error = refused(model, ToGtid(gtid(model.lost[0])))
    assert "dead branch" in str(error)
    plan = planned(model, ToGtid(gtid(model.lost[0])), lineage=model.branches[0].lineage.id)
    assert plan.transactions == 4


@pytest.mark.parametrize("rotates", [False, True])
def test_a_target_with_a_hole_may_be_of_a_dead_branch(rotates: bool) -> None:
    """It lacks something of this history, and has something that was lost with a primary."""
    model = Model()
    committed(model, 2)
    if rotates:
        model.rotate()
    committed(model, 3)
    model.fail_over(2, 1)
    committed(model, 2)
    for has in (1, 2):
        error = refused(model, Latest(), [*model.truth[:has], model.lost[0]], any_holes=True)
        assert "dead branch" in str(error)
    assert planned(model, Latest(), model.truth[:2]).transactions == 3


class Believing(Model):
    """Its cache says that all binlogs of a lineage follow each other."""

    def unbroken_to(self, lineage: str, name: BinlogName) -> BinlogName:
        del name
        return self.names(lineage)[-1]


@pytest.mark.parametrize("kind", [Model, Believing])
def test_gtids_that_are_missing_in_the_archive_are_not_known(kind: type[Model]) -> None:
    """A target that has some of what a later binlog says came before it may be of anywhere."""
    for is_gap in (False, True):
        model = kind()
        committed(model, 3)
        if is_gap:
            model.gap(2)
        else:
            model.rotate()
            committed(model, 2)
            model.rotate()
            del model.branch.files[1]
        for _ in range(3):
            committed(model, 1)
            model.rotate()
        have = [*model.truth[:2], model.truth[4]]
        error = refused(model, Latest(), have, allow_gap=True, any_holes=True)
        assert "not in the archive" in str(error)
        plan = planned(model, Latest(), model.truth[:2], allow_gap=True)
        assert plan.transactions == 4


def test_gtids_that_the_archive_does_not_know_are_refused() -> None:
    """Unless it is allowed, and then it is a warning."""
    model = Model()
    committed(model, 3)
    stranger = GtidSet.parse("99999999-0000-0000-0000-000000000000:1-5")
    start = Start(gtids=having(model.truth[:1]) | stranger)
    assert "not in the archive" in str(refused(model, Latest(), start=start))
    plan = planned(model, Latest(), start=start, allow_extra_gtids=True)
    assert plan.transactions == 2
    assert any("not in the archive" in warning for warning in plan.warnings)


def test_what_came_before_the_archive_must_be_there() -> None:
    """A target that lacks it is refused, and the GTIDs are named."""
    model = Model()
    committed(model, 3)
    model.rotate()
    committed(model, 3)
    del model.branch.files[0]
    error = refused(model, Latest(), model.truth[:2])
    assert f"{gtid(model.truth[2])}" in str(error)
    assert planned(model, Latest(), model.truth[:3]).transactions == 3


def test_a_binlog_that_is_not_there_breaks_history() -> None:
    """Before and behind it can be reached, across it nothing."""
    model = Model()
    for _ in range(3):
        committed(model, 2)
        model.rotate()
    del model.branch.files[1]
    assert "are missing" in str(refused(model, Latest(), model.truth[:1]))
    assert planned(model, ToGtid(gtid(model.truth[1])), model.truth[:1]).transactions == 1
    assert planned(model, Latest(), model.truth[:4]).transactions == 2


def test_entries_that_contradict_each_other_break_history() -> None:
    """A binlog that begins with other GTIDs than the one before ends with."""
    model = Model()
    committed(model, 3)
    model.rotate()
    committed(model, 2)
    model.open.before |= GtidSet.parse("99999999-0000-0000-0000-000000000000:1")
    error = refused(model, Latest(), model.truth[:1], allow_extra_gtids=True)
    assert "begins after" in str(error)


@pytest.mark.parametrize("damage", [(250, 260), (200, 300), (200, 201), (299, 300)])
def test_damage_is_not_crossed_unless_it_is_allowed(damage: tuple[int, int]) -> None:
    """Then the transactions that have it are left out, and no others."""
    model = Model()
    committed(model, 5)
    model.open.damaged = ((HEAD + damage[0], HEAD + damage[1]),)
    error = refused(model, Latest())
    assert "damaged" in str(error)
    assert planned(model, ToGtid(gtid(model.truth[1]))).transactions == 2
    assert planned(model, Latest(), model.truth[:3]).transactions == 2
    plan = planned(model, Latest(), allow_gap=True)
    assert plan.transactions == 4
    assert plan.pieces[0].left_out == ((HEAD + 200, HEAD + 300),)


def test_a_time_beyond_what_is_vouched_for_is_refused() -> None:
    """Nothing later was committed, and the writer does not say that there was nothing."""
    model = Model()
    committed(model, 3)
    late = model.clock_us + 100
    assert "not reached" in str(refused(model, ToTime(late, "then")))
    model.covered_us = late - 1
    refused(model, ToTime(late, "then"))
    model.covered_us = late
    assert planned(model, ToTime(late, "then")).transactions == 3


def test_what_is_vouched_for_counts_in_its_own_history_alone() -> None:
    """A writer says nothing of a history that was left."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    model.covered_us = model.clock_us + 1000
    goal = ToTime(model.clock_us + 500, "then")
    planned(model, goal)
    refused(model, goal, lineage=model.branches[0].lineage.id)


@pytest.mark.parametrize("behind", ["same binlog", "next binlog"])
def test_a_clock_that_was_set_back_is_told(behind: str) -> None:
    """A transaction behind the stop that is not later: both are named."""
    model = Model()
    committed(model, 3)
    goal = ToTime(model.clock_us + 5, "then")
    committed(model, 1)
    if behind == "next binlog":
        model.rotate()
    model.clock_us -= 100
    committed(model, 1)
    error = refused(model, goal)
    assert gtid(model.truth[3]) in str(error)
    assert gtid(model.truth[4]) in str(error)
    assert planned(model, BeforeGtid(gtid(model.truth[3]))).transactions == 3


def test_a_time_before_the_archive_is_refused() -> None:
    """Though there would be nothing to apply."""
    model = Model()
    committed(model, 3)
    assert "before the archive" in str(refused(model, ToTime(1, "then")))


def test_a_position_inside_a_transaction_is_refused() -> None:
    """As the start, and as the goal."""
    model = Model()
    committed(model, 3)
    inside = (FIRST, HEAD + 50)
    assert "not between two" in str(refused(model, ToPosition(*inside)))
    assert "not between two" in str(refused(model, Latest(), start=Start(place=inside)))
    beyond = ToPosition(FIRST, 5000)
    assert "no byte at 5000" in str(refused(model, beyond))
    assert "not in this history" in str(refused(model, ToPosition(BinlogName("mysql-bin", 77), 4)))


def test_a_position_before_the_start_is_refused() -> None:
    """The target is past it, with GTIDs and without."""
    model = Model()
    committed(model, 3)
    goal = ToPosition(FIRST, HEAD + 100)
    start = Start(place=(FIRST, HEAD + 200))
    assert "lies before" in str(refused(model, goal, start=start))
    both = Start(place=(FIRST, HEAD + 200), gtids=GtidSet())
    assert "lies before" in str(refused(model, goal, start=both))
    assert "already past" in str(refused(model, goal, model.truth[:2]))


def test_a_place_that_is_later_than_the_target_is_refused() -> None:
    """Its GTIDs say what it has of that history; if they say nothing, the place is believed."""
    model = Model()
    committed(model, 6)
    place = (FIRST, HEAD + 300)
    reals = model.truth
    for have in (reals[:1], reals[1:3], [*reals[:2], reals[4]]):
        error = refused(model, Latest(), start=Start(place=place, gtids=having(have)))
        assert "is not at mysql-bin.000001:" in str(error)
        allowed = Start(place=place, gtids=having(have))
        plan = planned(model, Latest(), start=allowed, allow_gap=True, any_holes=True)
        assert plan.transactions == 3 - len([one for one in have if one in reals[3:]])
        assert any("LEFT OUT" in warning for warning in plan.warnings)
    for have, count in (([], 3), (reals[:3], 3), (reals[:4], 2), (reals[3:5], 1)):
        plan = planned(model, Latest(), start=Start(place=place, gtids=having(have)))
        assert plan.transactions == count


def test_gtids_do_not_tell_of_transactions_without_them() -> None:
    """A start by GTIDs is refused, one by place is right."""
    model = Model(gtids=False)
    committed(model, 3)
    assert "without a GTID" in str(refused(model, Latest()))
    start = Start(place=(FIRST, HEAD + 100), gtids=GtidSet())
    assert planned(model, Latest(), start=start).transactions == 2


def test_no_transaction_without_a_gtid_is_forgotten_before_the_last_binlog() -> None:
    """No binlog has GTIDs, so each could be the one to start with."""
    model = Model(gtids=False)
    committed(model, 3)
    model.rotate()
    refused(model, Latest())


@pytest.mark.parametrize("rotations", [0, 1, 2, 3])
def test_transactions_without_gtids_between_others_are_not_forgotten(rotations: int) -> None:
    """As after gtid_mode was not ON for a while: each change of it begins a binlog.

    A backup from before them and one from behind them have the same GTIDs.
    """
    model = Model()
    committed(model, 3)
    model.with_gtids = False
    committed(model, 2)
    model.with_gtids = True
    for _ in range(rotations):
        model.rotate()
    committed(model, 2)
    assert "without a GTID" in str(refused(model, Latest(), model.truth[:3]))
    start = Start(place=(FIRST, HEAD + 500), gtids=GtidSet())
    assert planned(model, Latest(), start=start).transactions == 2
    have = [one for one in model.truth if one.gtid is not None]
    if rotations:
        assert planned(model, Latest(), have[:4]).transactions == 1
    model.rotate()
    committed(model, 1)
    assert planned(model, Latest(), have).transactions == 1


def test_what_a_source_got_without_its_binlogs_must_be_in_the_target() -> None:
    """It was set up with a dump of another server: an older backup of that one lacks the rest."""
    other = "5d8d3c9e-0000-0000-0000-00000000000a"
    model = Model()
    committed(model, 3)
    lineage = replace(model.branch.lineage, gtids_outside=f"{other}:1-100")
    model.branch.lineage = lineage
    for have in ("", f"{other}:1-50"):
        start = Start(gtids=GtidSet.parse(have))
        with pytest.raises(RecoveryError, match="which no binlog of the source ever had"):
            planned(model, Latest(), start=start, allow_extra_gtids=True)
        plan = planned(model, Latest(), start=start, allow_extra_gtids=True, allow_gap=True)
        assert any("no binlog of the source ever had" in one for one in plan.warnings)
    start = Start(gtids=GtidSet.parse(f"{other}:1-100"))
    assert planned(model, Latest(), start=start).transactions == 3


def test_gtids_of_a_clone_are_of_two_histories_if_an_older_lineage_has_them() -> None:
    """The source was cloned over: its binlogs begin anew, nothing proves that its rows are those.

    A backup with later ones is of the clone; which one an earlier one is of, is for its operator to
    say.
    """
    model = Model()
    committed(model, 4)
    before = [*model.truth]
    old = model.branch.lineage.id
    model.reset()
    uuid = gtid(before[0])[:36]
    model.branch.lineage = replace(model.branch.lineage, gtids_outside=f"{uuid}:1-4")
    for number in (5, 6):
        model.commit(100, 10, gtid=f"{uuid}:{number}")
    assert "two different histories" in str(refused(model, Latest(), before))
    for lineage, count in ((model.current, 2), (old, None)):
        start = Start(gtids=having(before), lineage=lineage, base=Base())
        if count is None:
            assert "no part of the history" in str(refused(model, Latest(), start=start))
        else:
            assert planned(model, Latest(), start=start).transactions == count
    assert planned(model, Latest(), [*before, model.truth[0]]).transactions == 1


def test_damage_in_what_the_target_has_is_nothing_that_is_newer() -> None:
    """Up to the last byte of the last transaction."""
    model = Model()
    committed(model, 3)
    model.open.damaged = ((HEAD + 250, HEAD + 300),)
    assert planned(model, Latest(), model.truth).pieces == ()


def test_a_binlog_with_and_without_gtids_lies_before_the_start() -> None:
    """The next one says which GTIDs came before it, and the target has them."""
    model = Model(gtids=False)
    committed(model, 2)
    model.with_gtids = True
    committed(model, 2)
    model.rotate()
    committed(model, 3)
    assert planned(model, Latest(), model.truth[2:5]).transactions == 2


def test_nothing_without_a_gtid_is_passed_over() -> None:
    """A binlog begins with such transactions, and the target has some of those behind them."""
    model = Model(gtids=False)
    committed(model, 6)
    model.with_gtids = True
    committed(model, 6)
    start = Start(place=(FIRST, HEAD + 100), gtids=having(model.truth[6:10]))
    plan = planned(model, Latest(), start=start, any_holes=True)
    assert plan.transactions == 5 + 2
    assert plan.pieces[0].begin == HEAD + 100


@pytest.mark.parametrize("empty", [0, 1, 3])
@pytest.mark.parametrize("before", [0, 3])
def test_no_binlog_without_gtids_is_passed_over_behind_empty_ones(empty: int, before: int) -> None:
    """GTIDs turned off and on again: each step begins a binlog, and the last of these are empty.

    A target that has all GTIDs from before that may lack what has none.
    """
    model = Model(gtids=before > 0)
    committed(model, before)
    model.with_gtids = False
    model.rotate()
    committed(model, 4)
    model.with_gtids = True
    for _ in range(empty + 1):
        model.rotate()
    error = refused(model, Latest(), model.truth[:before])
    assert "mysql-bin.000002 has transactions without a GTID" in str(error)
    committed(model, 3)
    assert "without a GTID" in str(refused(model, Latest(), model.truth[:before]))
    later = [*model.truth[:before], model.truth[before + 4]]  # it has what comes behind them
    assert planned(model, Latest(), later).transactions == 2
    behind = (BinlogName("mysql-bin", 3), 4)
    start = Start(place=behind, gtids=having(model.truth[:before]))
    assert applied(planned(model, Latest(), start=start), model) == model.truth[before + 4 :]


def test_nothing_without_a_gtid_is_passed_over_behind_the_last_gtid() -> None:
    """Of one binlog: the target has all of its GTIDs, and what comes behind them may be missing."""
    model = Model()
    committed(model, 3)
    model.with_gtids = False
    committed(model, 2)
    model.with_gtids = True
    model.rotate()
    committed(model, 2)
    assert "without a GTID" in str(refused(model, Latest(), model.truth[:3]))


def test_a_history_that_does_not_say_which_gtids_came_before_it() -> None:
    """A place tells where to begin, and an empty set says nothing."""
    model = Model(gtids=False)
    committed(model, 3)
    model.open.before = None  # type: ignore[assignment]  # as a server before MySQL 5.6
    start = Start(place=(FIRST, HEAD + 100), gtids=GtidSet())
    assert planned(model, Latest(), start=start).transactions == 2
    assert "does not say which GTIDs" in str(refused(model, Latest()))


class Overstated(Model):
    """The entries of its binlogs name GTIDs that no transaction has."""

    def known(self, lineage: str, name: BinlogName) -> Known:
        known = super().known(lineage, name)
        more = GtidSet.parse(f"{self.branch.lineage.server_uuid}:77")
        return replace(known, gtids_added=either(known.gtids_added, more))


def test_gtids_that_nothing_brings_would_be_missing() -> None:
    """An entry that says more than its binlog has: no plan that promises it is made."""
    model = Overstated()
    committed(model, 3)
    uuid = model.branch.lineage.server_uuid
    for more in ({}, {"skip": (gtid(model.truth[2]),)}):
        error = refused(model, Latest(), model.truth[:1], **more)
        assert str(error) == f"the target would be missing {uuid}:77"
    start = Start(gtids=having(model.truth[:1]), place=(FIRST, HEAD + 100))
    for given in ({"start": start}, {"have": model.truth[:1], "allow_gap": True}):
        assert planned(model, Latest(), **given).transactions == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("skipped", [[1], [1, 2], [0, 1], [3, 4], [0, 2, 4], [0, 1, 3, 4]])
def test_what_is_skipped_is_left_out(skipped: list[int]) -> None:
    """One by one, and several in a row; and nothing else is."""
    model = Model()
    committed(model, 5)
    skip = tuple(gtid(model.truth[number]) for number in skipped)
    plan = planned(model, Latest(), skip=skip)
    rest = [real for number, real in enumerate(model.truth) if number not in skipped]
    assert applied(plan, model) == rest
    assert plan.reach.gtids == having(model.truth)


def test_what_is_skipped_is_not_shown_as_kept() -> None:
    """And what two servers have is shown once."""
    model = Model()
    committed(model, 4)
    skip = (gtid(model.truth[2]),)
    plan = planned(model, Latest(), skip=skip)
    assert [one.transaction.gtid for one in plan.kept] == [
        gtid(model.truth[number]) for number in (0, 1, 3)
    ]
    model.fail_over(0, 2)
    committed(model, 1)
    plan = planned(model, Latest())
    assert [one.transaction.gtid for one in plan.kept] == [gtid(one) for one in model.truth[2:]]


def test_what_is_skipped_must_be_there_to_skip() -> None:
    """In the target already, unknown, or behind the stop: each is refused."""
    model = Model()
    committed(model, 4)
    first, third = gtid(model.truth[0]), gtid(model.truth[2])
    goal = ToGtid(gtid(model.truth[1]))
    assert "already" in str(refused(model, Latest(), model.truth[:1], skip=(first,)))
    assert "not among" in str(refused(model, goal, skip=(third,)))
    unknown = "99999999-0000-0000-0000-000000000000:1"
    assert "not among" in str(refused(model, Latest(), skip=(unknown,)))


def test_what_is_done_is_no_error() -> None:
    """The same goal again, from where the target is now: nothing is left to apply."""
    model = Model()
    committed(model, 4)
    for goal in (ToGtid(gtid(model.truth[1])), BeforeGtid(gtid(model.truth[2]))):
        plan = planned(model, goal, model.truth[:2])
        assert plan.pieces == ()


def test_the_transactions_around_the_stop_are_shown() -> None:
    """Three before, three behind, over the borders of binlogs, in order."""
    model = Model()
    for _ in range(4):
        committed(model, 2)
        model.rotate()
    plan = planned(model, ToGtid(gtid(model.truth[3])))
    assert [one.transaction.gtid for one in plan.kept] == [r.gtid for r in model.truth[1:4]]
    assert [one.transaction.gtid for one in plan.left_out] == [r.gtid for r in model.truth[4:7]]


def test_a_lineage_that_is_not_there_is_named() -> None:
    """With those that are."""
    model = Model()
    committed(model, 1)
    error = refused(model, Latest(), lineage="20990101T000000Z-00000000-0000")
    assert "no lineage" in str(error)
    assert model.current in error.hint


def test_a_file_for_no_one_begins_at_the_beginning() -> None:
    """Without a target all is taken, and what came before is a warning."""
    model = Model()
    committed(model, 2)
    model.rotate()
    committed(model, 2)
    assert planned(model, Latest(), start=Start()).transactions == 4
    del model.branch.files[0]
    plan = planned(model, Latest(), start=Start())
    assert plan.transactions == 2
    assert any("must have these" in warning for warning in plan.warnings)


def test_the_newest_is_not_what_comes_before_damage() -> None:
    """--latest is refused where the end cannot be read; places before it can be reached."""
    model = Model()
    committed(model, 3)
    model.open.damaged = ((HEAD + 300, HEAD + 900),)
    error = refused(model, Latest())
    assert f"--to-position mysql-bin.000001:{HEAD + 300}" in error.hint
    assert planned(model, ToPosition(FIRST, HEAD + 300)).transactions == 3
    plan = planned(model, Latest(), allow_gap=True)
    assert plan.transactions == 3
    assert any("newest" in warning for warning in plan.warnings)


def test_the_lineage_of_a_backup_can_be_named() -> None:
    """Both servers have a binlog of that name, and both are on the way."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 3)
    first, second = (branch.lineage.id for branch in model.branches)
    place = (FIRST, HEAD + 100)
    assert "several histories" in str(refused(model, Latest(), start=Start(place=place)))
    for lineage, count in ((first, 5), (second, 2)):
        plan = planned(model, Latest(), start=Start(place=place, lineage=lineage))
        assert plan.transactions == count
    refused(model, Latest(), start=Start(place=(FIRST, HEAD + 100), lineage="nobody's"))


def test_a_place_counts_on_the_server_that_wrote_it() -> None:
    """A backup without GTIDs: its server chooses the lineage, and another server is refused."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 3)
    place = (FIRST, HEAD + 100)
    for branch, count in zip(model.branches, (5, 2), strict=True):
        start = Start(place=place, server=branch.lineage.server_uuid.upper())
        plan = planned(model, Latest(), start=start)
        assert (plan.transactions, plan.warnings) == (count, ())
    stranger = "99999999-0000-0000-0000-000000000000"
    for at in (place, (BinlogName("mysql-bin", 77), 4)):
        error = refused(model, Latest(), start=Start(place=at, server=stranger))
        assert f"is of server {stranger}" in str(error)
        assert all(branch.lineage.server_uuid in str(error) for branch in model.branches)
    second = model.branches[1].lineage
    error = refused(model, Latest(), start=Start(place=place, server=stranger, lineage=second.id))
    assert f"of the archive is of {second.server_uuid}: " in str(error)


def test_a_place_of_a_backup_that_names_no_server() -> None:
    """It is taken for one of the server that wrote the binlog, and that is said."""
    model = Model(gtids=False)
    committed(model, 3)
    plan = planned(model, Latest(), start=Start(place=(FIRST, HEAD + 100), server=""))
    assert plan.transactions == 2
    (warning,) = plan.warnings
    assert model.branch.lineage.server_uuid in warning
    assert planned(model, Latest(), start=Start(place=(FIRST, HEAD + 100))).warnings == ()


def test_what_an_earlier_run_skipped_is_no_error() -> None:
    """The same command again, with all applied, and of two skipped ones perhaps only one done."""
    model = Model()
    committed(model, 5)
    skip = tuple(gtid(one) for one in model.truth[1:3])
    plan = planned(model, Latest(), model.truth, skip=skip)
    assert plan.pieces == ()
    assert any("an earlier run committed it empty" in warning for warning in plan.warnings)
    half = [*model.truth[:2], *model.truth[3:]]
    plan = planned(model, Latest(), half, skip=skip)
    assert plan.pieces == ()
    assert plan.skipped == having(model.truth[2:3])
    assert "do not name it again" in refused(model, Latest(), model.truth[:2], skip=skip).hint


def test_a_position_is_of_the_lineage_that_was_chosen() -> None:
    """Both servers have a binlog of that name; without a choice it is refused."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 3)
    first, second = (branch.lineage.id for branch in model.branches)
    goal = ToPosition(FIRST, HEAD + 200)
    assert "several histories" in str(refused(model, goal))
    assert planned(model, goal, lineage=second).transactions == 5
    assert planned(model, goal, lineage=first).transactions == 2


def test_the_newest_is_not_what_comes_before_a_binlog_that_is_lost() -> None:
    """Nothing can be read of the last one, not even its beginning."""
    model = Model()
    committed(model, 3)
    model.lost_text = "mysql-bin.000002, of which 500 bytes were durable"
    error = refused(model, Latest())
    assert "mysql-bin.000002" in str(error)
    assert f"--to-position mysql-bin.000001:{HEAD + 300}" in error.hint
    assert planned(model, ToPosition(FIRST, HEAD + 300)).transactions == 3
    assert planned(model, Latest(), allow_gap=True).transactions == 3


def test_a_break_says_how_far_it_goes() -> None:
    """The end of the binlog before it, and that what lies behind needs another backup."""
    model = Model()
    for _ in range(3):
        committed(model, 2)
        model.rotate()
    before = model.branch.files[0]
    del model.branch.files[1]
    error = refused(model, Latest(), model.truth[:1])
    assert f"--to-position {before.name}:{before.size}" in error.hint
    assert planned(model, ToPosition(before.name, before.size), model.truth[:1]).transactions == 1


class FailedBack(Model):
    """The first lineage is written again."""

    @property
    def current(self) -> str:
        return self.branches[0].lineage.id


def test_newer_transactions_of_another_lineage() -> None:
    """They are left out of --latest only when the operator has chosen; elsewhere it is said."""
    model = FailedBack()
    committed(model, 3)
    there = model.truth[2]
    model.fail_over(0, 0)
    committed(model, 2)
    first, second = (branch.lineage.id for branch in model.branches)
    error = refused(model, Latest())
    assert f"lineage {second}, which is left out, has transactions up to" in str(error)
    assert error.hint == f"choose: --lineage {first}, or --lineage {second}"
    assert planned(model, Latest(), lineage=second).transactions == 5
    for plan in (planned(model, Latest(), lineage=first), planned(model, ToGtid(gtid(there)))):
        assert plan.transactions == 3
        assert any(second in warning for warning in plan.warnings)
    file = model.branches[0].files[0]
    model.clock_us += 1
    file.reals.append(Real(99, f"{model.branches[0].lineage.server_uuid}:4", model.clock_us, 100))
    plan = planned(model, Latest())
    assert (plan.transactions, plan.warnings) == (4, ())


def test_newer_transactions_before_empty_binlogs_of_another_lineage() -> None:
    """A server that is restarted again and again leaves binlogs without a transaction."""
    model = FailedBack()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 2)
    for _ in range(3):
        model.rotate()
    first, second = (branch.lineage.id for branch in model.branches)
    error = refused(model, Latest())
    assert f"lineage {second}, which is left out, has transactions up to" in str(error)
    assert error.hint == f"choose: --lineage {first}, or --lineage {second}"


@pytest.mark.parametrize("rotates", [False, True])
def test_newer_transactions_of_a_dead_branch(rotates: bool) -> None:
    """The server that history left was written once more, and that was brought into the bucket."""
    model = Model()
    committed(model, 3)
    old = model.branches[0]
    model.fail_over(1, 0)
    committed(model, 2)
    first, second = (branch.lineage.id for branch in model.branches)
    assert planned(model, Latest()).warnings == ()
    file = old.files[0]
    if rotates:
        file.ended = True
        file = File(file.name.next(), file.gtids_at_end(), model.clock_us)
        old.files.append(file)
    model.clock_us += 1
    file.reals.append(Real(99, f"{old.lineage.server_uuid}:4", model.clock_us, 100))
    error = refused(model, Latest())
    assert f"lineage {first}, which is left out from {FIRST}:{HEAD + 200} on, has" in str(error)
    assert error.hint == f"choose: --lineage {second}, or --lineage {first}"
    assert planned(model, Latest(), lineage=first).transactions == 4
    plan = planned(model, Latest(), lineage=second)
    assert plan.transactions == 4
    assert any(first in warning for warning in plan.warnings)


def test_a_dead_branch_does_not_make_the_history_newer() -> None:
    """The successor has nothing yet: what it left behind counts as what is left out."""
    model = Model()
    committed(model, 3)
    model.fail_over(1, 0)
    first, second = (branch.lineage.id for branch in model.branches)
    error = refused(model, Latest())
    assert f"lineage {first}, which is left out from {FIRST}:{HEAD + 200} on, has" in str(error)
    assert planned(model, Latest(), lineage=second).transactions == 2


def test_what_the_source_forgot_is_told() -> None:
    """A crash may have lost the end of its binlog alone: the rows of that are in its tables."""
    model = Model()
    committed(model, 3)
    model.put_back(2)
    committed(model, 2)
    first, second = (branch.lineage.id for branch in model.branches)
    (said,) = planned(model, Latest()).warnings
    assert f"without the transactions that lineage {first} has from {FIRST}:{HEAD + 100} on" in said
    assert "(sync_binlog not 1)" in said
    beyond = Start(gtids=having(model.truth[:2]), lineage=second)
    assert planned(model, Latest(), start=beyond).warnings == ()
    assert planned(model, ToGtid(gtid(model.truth[0]))).warnings == ()


def test_nothing_is_said_of_a_cut_behind_which_nothing_is() -> None:
    """The source lost no transaction: its streamer began a lineage all the same."""
    model = Model()
    committed(model, 3)
    model.put_back(0)
    committed(model, 2)
    assert planned(model, Latest()).warnings == ()


def test_the_hint_for_a_target_from_before_a_reset_is_enough() -> None:
    """Its GTIDs alone are of both: the hint says which lineage it is of, too."""
    model = Model()
    committed(model, 5)
    old = model.truth[:]
    model.reset()
    committed(model, 2)
    first = model.branches[0].lineage.id
    error = refused(model, Latest(), old[:4])
    assert error.hint.startswith(f"--lineage {first} --from-lineage {first} continues that")
    start = Start(gtids=having(old[:4]), lineage=first)
    assert planned(model, Latest(), lineage=first, start=start).transactions == 1
    refused(model, Latest(), old[:4], lineage=first)


class Unsure(Model):
    """Nobody knows which lineage is current."""

    @property
    def current(self) -> str:
        raise ArchiveError("turns/00000001.json is not JSON", hint="see verify")

    def lost_end(self, lineage: str) -> str:
        return self.lost_text if lineage else ""


def test_a_lineage_is_followed_though_nobody_knows_which_is_current() -> None:
    """--lineage settles it; no time is vouched for then."""
    model = Unsure()
    committed(model, 3)
    model.covered_us = model.clock_us + 5
    with pytest.raises(ArchiveError):
        planned(model, Latest())
    only = model.branch.lineage.id
    assert planned(model, Latest(), lineage=only).transactions == 3
    error = refused(model, ToTime(model.clock_us + 1, "then"), lineage=only)
    assert "is not reached" in str(error)


def test_who_has_what_the_archive_does_not() -> None:
    """What --from-gtid-set or the backup says is not blamed on the target."""
    model = Model()
    committed(model, 6)
    every = having(model.truth)
    uuid = gtid(model.truth[0])[:36]
    first = GtidSet.parse(gtid(model.truth[0]))
    for said, text in (
        (f"{uuid}:1-99", f"--from-gtid-set has GTIDs that are not in the archive: {uuid}:7-99"),
        (f"{uuid}:1-4", "--from-gtid-set is already past "),
    ):
        error = refused(model, ToGtid(gtid(model.truth[2])), start=start_of_gtids(said, "mysql"))
        assert str(error).startswith(text)
    assert "pass exactly the GTIDs that the base backup contains" in str(
        refused(model, Latest(), start=start_of_gtids(f"{uuid}:1-99", "mysql")).hint
    )
    beyond = every | GtidSet.parse(f"{uuid}:7-9")
    mine = refused(model, Latest(), start=Start(gtids=beyond, base=Base(gtids=first)))
    assert str(mine).startswith("the target has GTIDs that are not in the archive: ")
    assert "event_scheduler=OFF" in str(mine.hint)
    backup = refused(model, Latest(), start=Start(gtids=beyond, base=Base(gtids=beyond)))
    assert str(backup).startswith("the base backup has GTIDs that are not in the archive: ")


# Rows that are in no binlog


def left_out_after(count: int) -> Model:
    """So many transactions, rows without GTIDs that are nowhere, three more transactions."""
    model = Model()
    committed(model, count)
    model.leave_out()
    committed(model, 3)
    return model


def test_rows_that_are_in_no_binlog_are_not_crossed_in_silence() -> None:
    """Although the GTIDs on both sides are the same, and none is missing."""
    model = left_out_after(4)
    error = refused(model, Latest(), model.truth[:2])
    assert "without a binlog" in str(error)
    assert "rows without GTIDs" in str(error)
    plan = planned(model, Latest(), model.truth[:2], allow_gap=True)
    assert plan.transactions == 5
    assert any("without a binlog" in warning for warning in plan.warnings)


def test_a_backup_that_ends_exactly_there_is_refused() -> None:
    """Its GTIDs do not tell whether it has those rows; also if nothing came after them."""
    for model in (left_out_after(4), left_out_after(4)):
        have = model.truth[:4]
        error = refused(model, Latest(), have)
        assert "GTIDs do not tell whether it has those rows" in str(error)
        assert f"--from-lineage {model.current}" in error.hint
        del model.open.reals[:]
    plan = planned(left_out_after(4), Latest(), left_out_after(4).truth[:4], allow_gap=True)
    assert any("do not tell" in warning for warning in plan.warnings)


def test_a_rotation_behind_it_hides_nothing() -> None:
    """The state continues with a later binlog, and the rows are missing nevertheless."""
    model = Model()
    committed(model, 4)
    model.leave_out()
    model.rotate()
    committed(model, 3)
    assert "do not tell" in str(refused(model, Latest(), model.truth[:4]))


def test_a_backup_from_behind_it_is_known_by_a_gtid_a_place_or_a_lineage() -> None:
    """Each of them says that it was made after the source wrote a binlog again."""
    model = left_out_after(4)
    assert planned(model, Latest(), model.truth[:5]).transactions == 2
    have = having(model.truth[:4])
    named = Start(gtids=have, lineage=model.current)
    assert planned(model, Latest(), start=named).transactions == 3
    for name, refuses in ((model.open.name, False), (FIRST, True)):
        offset = HEAD if name != FIRST else HEAD + 400
        base = Base(gtids=have, place=(name, offset), said_by="the base backup")
        start = Start(gtids=have, base=base)
        if refuses:
            assert "do not tell" in str(refused(model, Latest(), start=start))
        else:
            assert planned(model, Latest(), start=start).transactions == 3


def test_an_archive_of_an_older_version_has_them_within_a_lineage() -> None:
    """The binlogs themselves show it: a rotation, and a start of the server."""
    model = Model()
    committed(model, 4)
    model.rotate()
    model.open.started = True
    committed(model, 3)
    assert "without a binlog" in str(refused(model, Latest(), model.truth[:2]))
    assert "do not tell" in str(refused(model, Latest(), model.truth[:4]))
    model.branch.files[0].crashed = True
    assert planned(model, Latest(), model.truth[:2]).transactions == 5


class OldPages(Model):
    """Pages that do not say yet whether a binlog was begun by a start of the server."""

    def brief(self, lineage: str, name: BinlogName) -> Known:
        return replace(super().brief(lineage, name), started=None)


def test_a_page_of_an_older_version_hides_no_start() -> None:
    """The entry is read: it was made from the binlog."""
    model = OldPages()
    committed(model, 4)
    model.rotate()
    model.open.started = True
    committed(model, 3)
    assert "without a binlog" in str(refused(model, Latest(), model.truth[:2]))


def test_a_join_without_a_gap_has_no_reason_for_one() -> None:
    """Nor has the first lineage."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 2)
    model.gap(2)
    line = line_of(model.lineages, model.current)
    reasons = [why_gap(line, number) for number in range(3)]
    assert reasons[:2] == ["", ""]
    assert reasons[2].startswith("the source had purged what comes before")


def test_the_first_binlog_of_a_lineage_that_is_missing() -> None:
    """A break, though the lineage itself joins exactly."""
    model = Model()
    committed(model, 3)
    model.fail_over(0, 0)
    committed(model, 2)
    model.rotate()
    committed(model, 2)
    second = model.branch
    first = second.files.pop(0).name
    said = str(refused(model, Latest(), model.truth[:2]))
    assert f"{first} of {second.lineage.id} is missing" in said


def test_a_plan_says_what_the_source_leaves_out() -> None:
    """What entries say of their binlogs, and the writer of now; each once."""
    model = Model()
    committed(model, 2)
    model.open.leaves_out = ("binlog_ignore_db=tmp",)
    model.rotate()
    model.open.leaves_out = ("binlog_ignore_db=tmp",)
    committed(model, 2)
    model.left_out = ("binlog_ignore_db=tmp", "ndb_log_bin=OFF")
    said = [one for one in planned(model, Latest()).warnings if "leaves out" in one]
    assert [one.rpartition("history: ")[2] for one in said] == [
        "binlog_ignore_db=tmp (mysql-bin.000001 to mysql-bin.000002)",
        "ndb_log_bin=OFF",
    ]


@pytest.mark.parametrize(
    ("ignores", "crashed", "goes_on", "is_told"),
    [
        (True, True, True, True),
        (True, False, True, False),
        (False, True, True, False),
        (True, True, False, False),  # nothing behind it is applied
    ],
)
def test_a_crash_of_a_source_that_ignores_errors_may_be_none(
    *, ignores: bool, crashed: bool, goes_on: bool, is_told: bool
) -> None:
    """MySQL's binlogs do not tell the two apart; the plan names the place."""
    model = Model()
    committed(model, 2)
    model.open.leaves_out = ("binlog_error_action=IGNORE_ERROR",) if ignores else ()
    model.open.crashed = crashed
    model.rotate()
    committed(model, 2)
    goal = Latest() if goes_on else ToGtid(gtid(model.truth[1]))
    said = "mysql-bin.000001 ends as after a crash of the source"
    assert any(one.startswith(said) for one in planned(model, goal).warnings) is is_told
