"""What a plan refuses, and what it says then. That it reaches its goal: tests/property."""

from dataclasses import replace
from typing import Any

import pytest

from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import line_of, why_gap
from binlog2s3.binlog.gtid import GtidSet, either
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import iso_text
from binlog2s3.recover.backup import start_of_gtids
from binlog2s3.recover.model import Base, Plan, Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.server.omissions import came_in
from tests.history_model import HEAD, File, Model, Real, having, lived
from tests.property.test_plan import applied

FIRST = BinlogName("mysql-bin", 1)
FOREIGN = "5d8d3c9e-0000-0000-0000-00000000000a"
Have = list[Real]


def committed(model: Model, count: int) -> None:
    for _ in range(count):
        model.commit(100, 10)


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


# Cases


class Life(Model):
    """Steps more, for what was lost, and what a writer vouches for."""

    def without(self, number: int) -> None:
        """A binlog of the last lineage is not there."""
        del self.branch.files[number]

    def purged(self, number: int) -> None:
        """A binlog of the lineage before it is not there."""
        del self.branches[-2].files[number]

    def damaged(self, begin: int, end: int) -> None:
        self.open.damaged = ((HEAD + begin, HEAD + end),)

    def vouched(self, us: int) -> None:
        """Nothing was committed up to so long after the last commit."""
        self.covered_us = self.clock_us + us


def place_of(text: str) -> FilePosition:
    """`2+100`: so many bytes behind the head of the second binlog."""
    number, offset = text.split("+")
    return FilePosition(BinlogName("mysql-bin", int(number)), HEAD + int(offset))


def start_of(model: Model, text: str) -> Start:
    """What a target has.

    `2`: the first two transactions. `0,2,x0`: those with these numbers, and the first of those that
    were lost in a fail-over. `1+100`: a place, of any history; `1+100/0`: of the first lineage;
    `1+100 none`: and no GTIDs. "": nothing is known of it.
    """
    if "+" in text:
        place, _, gtids = text.partition(" ")
        place, _, lineage = place.partition("/")
        return Start(
            position=place_of(place),
            gtids=GtidSet() if gtids else None,
            lineage=model.branches[int(lineage)].lineage.id if lineage else None,
        )
    if not text:
        return Start()
    numbers = text.split(",") if "," in text else [str(n) for n in range(int(text))]
    reals = [model.lost[int(n[1:])] if n[0] == "x" else model.truth[int(n)] for n in numbers if n]
    return Start(gtids=having(reals))


def goal_of(model: Model, text: str) -> Goal:
    """`latest`, `to 2`, `to x0`, `before 2`, `at 1+100`, `now+5`; `time 2+-1`: before a commit."""
    kind, _, what = text.partition(" ")
    if kind in ("to", "before"):
        real = model.lost[int(what[1:])] if what[0] == "x" else model.truth[int(what)]
        return ToGtid(gtid(real)) if kind == "to" else BeforeGtid(gtid(real))
    if kind == "at":
        return ToPosition(place_of(what))
    if kind == "time":
        number, _, us = what.partition("+")
        return ToTime(model.truth[int(number)].commit_us + int(us or 0), "then")
    if kind.startswith("now+"):
        return ToTime(model.clock_us + int(kind[4:]), "then")
    return Latest() if kind == "latest" else ToTime(1, "the epoch")


def holds(steps: str, start: str, goal: str, options: dict[str, Any], expected: object) -> None:
    """The plan has so many transactions, or those with these numbers; or it is refused so."""
    model = lived(steps, Life)
    given = dict(options)
    if "lineage" in given:
        given["lineage"] = model.branches[given["lineage"]].lineage.id
    if "skip" in given:
        given["skip"] = tuple(
            one if isinstance(one, str) else gtid(model.truth[one]) for one in given["skip"]
        )
    begin, end = start_of(model, start), goal_of(model, goal)
    if isinstance(expected, str):
        error = refused(model, end, start=begin, **given)
        said = expected.format(*(one.gtid for one in model.truth))
        assert said in f"{error} {error.hint}"
        return
    plan = planned(model, end, start=begin, **given)
    if isinstance(expected, list):
        assert applied(plan, model) == [model.truth[number] for number in expected]
    else:
        assert plan.transactions == expected


GAP, HOLES = {"allow_gap": True}, {"any_holes": True}
DAMAGE = ("250,260", "200,300", "200,201", "299,300")
DEAD = "5 fail_over:2,1 2"
FAIL_OVER = "3 fail_over:0,0 3"
SEVERAL = "several histories"
Case = tuple[str, str, str, dict[str, Any], object]
CASES: list[Case] = [
    # both sides of a gap
    ("3 gap:2 3", "1", "to 2", {}, 2),
    ("3 gap:2 3", "5", "to 7", {}, 3),
    ("3 gap:2 3", "6", "to 7", {}, 2),
    # after a RESET the history before it can be chosen; a place could be of either one
    ("3 reset 1", "0", "latest", {"lineage": 0}, 3),
    ("3 reset 3", "1+100", "latest", {}, SEVERAL),
    ("3 reset 3", "1+100", "latest", {"lineage": 1}, 2),
    # a place that was taken behind the one that history left, or before it
    (DEAD, "1+400", "latest", {}, "history left before"),
    (DEAD, "1+200", "latest", {}, 3),
    # a GTID of a dead branch is no goal; the lineage that has it is named
    (DEAD, "0", "to x0", {}, "dead branch"),
    (DEAD, "0", "to x0", {"lineage": 0}, 4),
    # a target with a hole may be of a dead branch
    *((f"2 {edge} 3 fail_over:2,1 2", have, "latest", HOLES, "dead branch")
      for edge in ("", "|") for have in ("0,x0", "0,1,x0")),
    *((f"2 {edge} 3 fail_over:2,1 2", "2", "latest", {}, 3) for edge in ("", "|")),
    # what came before the archive must be there, and is named
    ("3 | 3 without:0", "2", "latest", {}, "{2}"),
    ("3 | 3 without:0", "3", "latest", {}, 3),
    ("2 | 2", "", "latest", {}, 4),
    ("2 | 2 without:0", "", "latest", {}, 2),
    # the first binlog of a lineage is missing, though it joins exactly
    ("3 fail_over:0,0 2 | 2 without:0", "2", "latest", {}, "is missing"),
    # that in which history left is missing, and the cut does not say which GTIDs came before it
    ("anonymous 2 named | fail_over:0,0 2 purged:1", "0", "latest", {}, "does not reach up to"),
    ("anonymous 2 named | fail_over:0,0 2", "0", "latest", {}, "without a GTID"),
    # nothing comes before the cut: who has all that the gap took continues behind it
    ("gap:2 3", "2", "latest", {}, 3),
    # damage is crossed only if that is allowed: without the transaction that has it, and no other
    *((f"5 damaged:{at}", *rest) for at in DAMAGE for rest in (
        ("0", "latest", {}, "damaged"), ("0", "to 1", {}, 2), ("3", "latest", {}, 2),
        ("0", "latest", GAP, [0, 1, 3, 4]))),
    ("3 damaged:250,300", "3", "latest", {}, 0),  # in what the target has
    # the newest is not what comes before damage
    ("3 damaged:300,900", "0", "latest", {}, f"--to-position mysql-bin.000001:{HEAD + 300}"),
    ("3 damaged:300,900", "0", "at 1+300", {}, 3),
    ("3 damaged:300,900", "0", "latest", GAP, 3),
    # a time is reached by a later commit, or if the writer of this history vouches for it
    ("3", "0", "now+100", {}, "not reached"),
    ("3 vouched:99", "0", "now+100", {}, "not reached"),
    ("3 vouched:100", "0", "now+100", {}, 3),
    ("3 fail_over:0,0 vouched:1000", "0", "now+500", {}, 3),
    ("3 fail_over:0,0 vouched:1000", "0", "now+500", {"lineage": 0}, "not reached"),
    ("3", "0", "epoch", {}, "before the archive"),
    # a target that is past a position
    ("3", "1+200", "at 1+100", {}, "lies before"),
    ("3", "1+200 none", "at 1+100", {}, "lies before"),
    ("3", "2", "at 1+100", {}, "already past"),
    # GTIDs do not tell of transactions without them, in the last binlog and before it
    ("anonymous 3", "0", "latest", {}, "without a GTID"),
    ("anonymous 3", "1+100 none", "latest", {}, 2),
    ("anonymous 3 |", "0", "latest", {}, "without a GTID"),
    ("3 anonymous 2 named | 2", "3", "latest", {}, "without a GTID"),
    ("anonymous 2 named 2 | 3", "2,3,4", "latest", {}, 2),  # the next one says what came before it
    # what is skipped is left out, and nothing else is; it must be there to skip
    *(("5", "0", "latest", {"skip": skip}, [n for n in range(5) if n not in skip])
      for skip in ([1], [1, 2], [0, 1], [3, 4], [0, 2, 4], [0, 1, 3, 4])),
    ("4", "1", "latest", {"skip": [0]}, "already"),
    ("4", "0", "to 1", {"skip": [2]}, "not among"),
    ("4", "0", "latest", {"skip": ["99999999-0000-0000-0000-000000000000:1"]}, "not among"),
    # what is done is no error
    ("4", "2", "to 1", {}, 0),
    ("4", "2", "before 2", {}, 0),
    # both servers have a binlog of that name, and both are on the way
    (FAIL_OVER, "1+100", "latest", {}, SEVERAL),
    (FAIL_OVER, "1+100/0", "latest", {}, 5),
    (FAIL_OVER, "1+100/1", "latest", {}, 2),
    (FAIL_OVER, "0", "at 1+200", {}, SEVERAL),
    (FAIL_OVER, "0", "at 1+200", {"lineage": 1}, 5),
    (FAIL_OVER, "0", "at 1+200", {"lineage": 0}, 2),
    # rows without GTIDs that are in no binlog, though the GTIDs on both sides are the same
    ("4 leave_out 3", "2", "latest", {}, "rows without GTIDs"),
    ("4 leave_out 3", "2", "latest", GAP, 5),
    ("4 leave_out | 3", "4", "latest", {}, "do not tell"),
]  # fmt: skip


@pytest.mark.parametrize(("steps", "start", "goal", "options", "expected"), CASES)
def test_a_plan(
    steps: str, start: str, goal: str, options: dict[str, Any], expected: object
) -> None:
    """It has the transactions that lie between, or is refused with its reason."""
    holds(steps, start, goal, options, expected)


@pytest.mark.parametrize(
    ("steps", "start", "options", "warning"),
    [
        ("3 gap:2 3", "1", GAP, "had purged"),
        ("2 | 2 without:0", "", {}, "must have these"),
        ("3 damaged:300,900", "0", GAP, "newest"),
        ("4 leave_out 3", "2", GAP, "without a binlog"),
        ("4 leave_out 3", "4", GAP, "do not tell"),
    ],
)
def test_what_is_crossed_is_said(
    steps: str, start: str, options: dict[str, Any], warning: str
) -> None:
    """As a warning of the plan."""
    model = lived(steps, Life)
    plan = planned(model, Latest(), start=start_of(model, start), **options)
    assert any(warning in one for one in plan.warnings)


# More than a case


def test_a_gap_is_not_crossed_unless_it_is_allowed() -> None:
    """The error names what is missing; --allow-gap goes on and says it as a warning."""
    model = lived("3 gap:2 3")
    error = refused(model, Latest(), model.truth[:1])
    assert "had purged" in str(error)
    assert gtid(model.truth[3])[:36] + ":4-5" in str(error)
    assert f" to {iso_text(model.clock_us)}, and, from a base backup before" in error.hint
    plan = planned(model, Latest(), model.truth[:1], allow_gap=True)
    assert plan.transactions == 5
    assert any("had purged" in warning for warning in plan.warnings)


def test_an_unknown_join_is_never_crossed() -> None:
    """--allow-gap does not help, and the reason is said."""
    model = lived("3")
    old = model.truth[:]
    model.reset()
    committed(model, 5)
    for allowed in (False, True):
        error = refused(model, ToGtid(gtid(model.truth[4])), old[:1], allow_gap=allowed)
        assert "two different histories" in str(error)
    goal = ToGtid(gtid(model.truth[4]))
    assert planned(model, goal).transactions == 5
    plan = planned(model, Latest(), lineage=model.branches[0].lineage.id)
    assert (plan.adds, plan.others) == (having(old), (model.branches[1].lineage.id,))


def test_a_target_of_a_dead_branch_is_told_which() -> None:
    """It has what was lost in the fail-over."""
    model = lived("5")
    everything = model.truth[:]
    model.fail_over(2, 1)
    committed(model, 2)
    error = refused(model, Latest(), everything)
    assert "dead branch" in str(error)
    assert model.branches[0].lineage.id in str(error)
    assert "allow" not in error.hint
    refused(model, Latest(), everything, allow_extra_gtids=True)


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
    model = lived("3")
    stranger = GtidSet.parse("99999999-0000-0000-0000-000000000000:1-5")
    start = Start(gtids=having(model.truth[:1]) | stranger)
    assert "not in the archive" in str(refused(model, Latest(), start=start))
    plan = planned(model, Latest(), start=start, allow_extra_gtids=True)
    assert plan.transactions == 2
    assert any("not in the archive" in warning for warning in plan.warnings)


def test_a_binlog_that_is_not_there_breaks_history() -> None:
    """Before and behind it can be reached, across it nothing; it is said how far."""
    model = lived("2 | 2 | 2 |")
    before = model.branch.files[0]
    del model.branch.files[1]
    error = refused(model, Latest(), model.truth[:1])
    assert "are missing" in str(error)
    assert f"--to-position {before.name}:{before.size}" in error.hint
    assert (
        planned(
            model, ToPosition(FilePosition(before.name, before.size)), model.truth[:1]
        ).transactions
        == 1
    )
    assert planned(model, ToGtid(gtid(model.truth[1])), model.truth[:1]).transactions == 1
    assert planned(model, Latest(), model.truth[:4]).transactions == 2


def test_what_the_source_says_now_counts_for_its_open_binlog() -> None:
    """Not for an older one whose entry does not say, nor for one whose entry says otherwise."""
    model = lived("2 | 2")
    (branch,) = model.branches
    model.left_out = (came_in(GtidSet.parse(f"{FOREIGN}:10")),)
    inside = ToPosition(FilePosition(FIRST, HEAD + 100))
    behind = ToPosition(FilePosition(FIRST.next(), HEAD + 100))
    assert planned(model, inside).lacks == ""
    assert planned(model, behind).lacks == f"{FOREIGN}:10"
    branch.files[-1].leaves_out = ()
    assert planned(model, behind).lacks == ""
    assert planned(model, Latest()).lacks == f"{FOREIGN}:10"


def test_entries_that_contradict_each_other_break_history() -> None:
    """A binlog that begins with other GTIDs than the one before ends with."""
    model = lived("3 | 2")
    model.open.before |= GtidSet.parse("99999999-0000-0000-0000-000000000000:1")
    error = refused(model, Latest(), model.truth[:1], allow_extra_gtids=True)
    assert "begins after" in str(error)


@pytest.mark.parametrize("behind", ["same binlog", "next binlog"])
def test_a_clock_that_was_set_back_is_told(behind: str) -> None:
    """A transaction behind the stop that is not later: both are named."""
    model = lived("3")
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


def test_a_position_inside_a_transaction_is_refused() -> None:
    """As the start, and as the goal."""
    model = lived("3")
    inside = FilePosition(FIRST, HEAD + 50)
    assert "not between two" in str(refused(model, ToPosition(inside)))
    assert "not between two" in str(refused(model, Latest(), start=Start(position=inside)))
    beyond = ToPosition(FilePosition(FIRST, 5000))
    assert "no byte at 5000" in str(refused(model, beyond))
    assert "not in the archive" in str(
        refused(model, ToPosition(FilePosition(BinlogName("mysql-bin", 77), 4)))
    )


def test_a_place_that_is_later_than_the_target_is_refused() -> None:
    """Its GTIDs say what it has of that history; if they say nothing, the place is believed."""
    model = lived("6")
    place = FilePosition(FIRST, HEAD + 300)
    reals = model.truth
    for have in (reals[:1], reals[1:3], [*reals[:2], reals[4]]):
        error = refused(model, Latest(), start=Start(position=place, gtids=having(have)))
        assert "is not at mysql-bin.000001:" in str(error)
        allowed = Start(position=place, gtids=having(have))
        plan = planned(model, Latest(), start=allowed, allow_gap=True, any_holes=True)
        assert plan.transactions == 3 - len([one for one in have if one in reals[3:]])
        assert any("LEFT OUT" in warning for warning in plan.warnings)
    for have, count in (([], 3), (reals[:3], 3), (reals[:4], 2), (reals[3:5], 1)):
        plan = planned(model, Latest(), start=Start(position=place, gtids=having(have)))
        assert plan.transactions == count


@pytest.mark.parametrize("rotations", [0, 1, 2, 3])
def test_transactions_without_gtids_between_others_are_not_forgotten(rotations: int) -> None:
    """As after gtid_mode was not ON for a while: each change of it begins a binlog.

    A backup from before them and one from behind them have the same GTIDs.
    """
    model = lived("3 anonymous 2 named")
    for _ in range(rotations):
        model.rotate()
    committed(model, 2)
    assert "without a GTID" in str(refused(model, Latest(), model.truth[:3]))
    start = Start(position=FilePosition(FIRST, HEAD + 500), gtids=GtidSet())
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
    model = lived("3")
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
    model = lived("4")
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


def test_nothing_without_a_gtid_is_passed_over() -> None:
    """A binlog begins with such transactions, and the target has some of those behind them."""
    model = lived("anonymous 6 named 6")
    start = Start(position=FilePosition(FIRST, HEAD + 100), gtids=having(model.truth[6:10]))
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
    behind = FilePosition(BinlogName("mysql-bin", 3), 4)
    start = Start(position=behind, gtids=having(model.truth[:before]))
    assert applied(planned(model, Latest(), start=start), model) == model.truth[before + 4 :]


def test_a_history_that_does_not_say_which_gtids_came_before_it() -> None:
    """A place tells where to begin, and an empty set says nothing."""
    model = lived("3", gtids=False)
    model.open.before = None  # type: ignore[assignment]  # as a server before MySQL 5.6
    start = Start(position=FilePosition(FIRST, HEAD + 100), gtids=GtidSet())
    assert planned(model, Latest(), start=start).transactions == 2
    assert "does not say which GTIDs" in str(refused(model, Latest()))


class Overstated(Model):
    """The entries of its binlogs name GTIDs that no transaction has."""

    def known(self, lineage: str, name: BinlogName) -> Facts:
        known = super().known(lineage, name)
        more = GtidSet.parse(f"{self.branch.lineage.server_uuid}:77")
        return replace(known, gtids_added=either(known.gtids_added, more))


def test_gtids_that_nothing_brings_would_be_missing() -> None:
    """An entry that says more than its binlog has: no plan that promises it is made."""
    model = lived("3", Overstated)
    uuid = model.branch.lineage.server_uuid
    for more in ({}, {"skip": (gtid(model.truth[2]),)}):
        error = refused(model, Latest(), model.truth[:1], **more)
        assert str(error) == f"the target would be missing {uuid}:77"
    start = Start(gtids=having(model.truth[:1]), position=FilePosition(FIRST, HEAD + 100))
    for given in ({"start": start}, {"have": model.truth[:1], "allow_gap": True}):
        assert planned(model, Latest(), **given).transactions == 2  # type: ignore[arg-type]


def test_what_is_skipped_is_not_shown_as_kept() -> None:
    """And what two servers have is shown once."""
    model = lived("4")
    skip = (gtid(model.truth[2]),)
    plan = planned(model, Latest(), skip=skip)
    assert plan.reach.gtids == having(model.truth)
    assert [one.transaction.gtid for one in plan.kept] == [
        gtid(model.truth[number]) for number in (0, 1, 3)
    ]
    model.fail_over(0, 2)
    committed(model, 1)
    plan = planned(model, Latest())
    assert [one.transaction.gtid for one in plan.kept] == [gtid(one) for one in model.truth[2:]]


def test_the_transactions_around_the_stop_are_shown() -> None:
    """Three before, three behind, over the borders of binlogs, in order."""
    model = lived("2 | 2 | 2 | 2 |")
    plan = planned(model, ToGtid(gtid(model.truth[3])))
    assert [one.transaction.gtid for one in plan.kept] == [r.gtid for r in model.truth[1:4]]
    assert [one.transaction.gtid for one in plan.left_out] == [r.gtid for r in model.truth[4:7]]


def test_a_lineage_that_is_not_there_is_named() -> None:
    """With those that are."""
    model = lived("1")
    error = refused(model, Latest(), lineage="20990101T000000Z-00000000-0000")
    assert "no lineage" in str(error)
    assert model.current in error.hint


def test_a_place_counts_on_the_server_that_wrote_it() -> None:
    """A backup without GTIDs: its server chooses the lineage, and another server is refused."""
    model = lived("3 fail_over:0,0 3")
    place = FilePosition(FIRST, HEAD + 100)
    for branch, count in zip(model.branches, (5, 2), strict=True):
        start = Start(position=place, server=branch.lineage.server_uuid.upper())
        plan = planned(model, Latest(), start=start)
        assert (plan.transactions, plan.warnings) == (count, ())
    stranger = "99999999-0000-0000-0000-000000000000"
    for at in (place, FilePosition(BinlogName("mysql-bin", 77), 4)):
        error = refused(model, Latest(), start=Start(position=at, server=stranger))
        assert f"is of server {stranger}" in str(error)
        assert all(branch.lineage.server_uuid in str(error) for branch in model.branches)
    second = model.branches[1].lineage
    error = refused(
        model, Latest(), start=Start(position=place, server=stranger, lineage=second.id)
    )
    assert f"of the archive is of {second.server_uuid}: " in str(error)


def test_a_place_of_a_backup_that_names_no_server() -> None:
    """It is taken for one of the server that wrote the binlog, and that is said."""
    model = lived("3", gtids=False)
    plan = planned(
        model, Latest(), start=Start(position=FilePosition(FIRST, HEAD + 100), server="")
    )
    assert plan.transactions == 2
    (warning,) = plan.warnings
    assert model.branch.lineage.server_uuid in warning
    assert (
        planned(model, Latest(), start=Start(position=FilePosition(FIRST, HEAD + 100))).warnings
        == ()
    )


def test_what_an_earlier_run_skipped_is_no_error() -> None:
    """The same command again, with all applied, and of two skipped ones perhaps only one done."""
    model = lived("5")
    skip = tuple(gtid(one) for one in model.truth[1:3])
    plan = planned(model, Latest(), model.truth, skip=skip)
    assert plan.pieces == ()
    assert any("an earlier run committed it empty" in warning for warning in plan.warnings)
    half = [*model.truth[:2], *model.truth[3:]]
    plan = planned(model, Latest(), half, skip=skip)
    assert plan.pieces == ()
    assert plan.skipped == having(model.truth[2:3])
    assert "do not name it again" in refused(model, Latest(), model.truth[:2], skip=skip).hint


def test_the_newest_is_not_what_comes_before_a_binlog_that_is_lost() -> None:
    """Nothing can be read of the last one, not even its beginning."""
    model = lived("3")
    model.lost_text = "mysql-bin.000002, of which 500 bytes were durable"
    error = refused(model, Latest())
    assert "mysql-bin.000002" in str(error)
    assert f"--to-position mysql-bin.000001:{HEAD + 300}" in error.hint
    assert planned(model, ToPosition(FilePosition(FIRST, HEAD + 300))).transactions == 3
    assert planned(model, Latest(), allow_gap=True).transactions == 3


class FailedBack(Model):
    """The first lineage is written again."""

    @property
    def current(self) -> str:
        return self.branches[0].lineage.id


@pytest.mark.parametrize("empty", [0, 3])
def test_newer_transactions_of_another_lineage(empty: int) -> None:
    """They are left out of --latest only when the operator has chosen; elsewhere it is said.

    Binlogs without a transaction may follow: of a server that is restarted again and again.
    """
    model = lived("3", FailedBack)
    there = model.truth[2]
    model.fail_over(0, 0)
    committed(model, 2)
    for _ in range(empty):
        model.rotate()
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


@pytest.mark.parametrize("rotates", [False, True])
def test_newer_transactions_of_a_dead_branch(rotates: bool) -> None:
    """The server that history left was written once more, and that was brought into the bucket."""
    model = lived("3")
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
    model = lived("3 fail_over:1,0")
    first, second = (branch.lineage.id for branch in model.branches)
    error = refused(model, Latest())
    assert f"lineage {first}, which is left out from {FIRST}:{HEAD + 200} on, has" in str(error)
    assert planned(model, Latest(), lineage=second).transactions == 2


def test_what_the_source_forgot_is_told() -> None:
    """A crash may have lost the end of its binlog alone: the rows of that are in its tables."""
    model = lived("3 put_back:2 2")
    first, second = (branch.lineage.id for branch in model.branches)
    (said,) = planned(model, Latest()).warnings
    assert f"without the transactions that lineage {first} has from {FIRST}:{HEAD + 100} on" in said
    assert "(sync_binlog not 1)" in said
    beyond = Start(gtids=having(model.truth[:2]), lineage=second)
    assert planned(model, Latest(), start=beyond).warnings == ()
    assert planned(model, ToGtid(gtid(model.truth[0]))).warnings == ()
    assert planned(lived("3 put_back:0 2"), Latest()).warnings == ()  # it lost no transaction


def test_the_hint_for_a_target_from_before_a_reset_is_enough() -> None:
    """Its GTIDs alone are of both: the hint says which lineage it is of, too."""
    model = lived("5")
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
    model = lived("3", Unsure)
    model.covered_us = model.clock_us + 5
    with pytest.raises(ArchiveError):
        planned(model, Latest())
    only = model.branch.lineage.id
    assert planned(model, Latest(), lineage=only).transactions == 3
    error = refused(model, ToTime(model.clock_us + 1, "then"), lineage=only)
    assert "is not reached" in str(error)


def test_who_has_what_the_archive_does_not() -> None:
    """What --from-gtid-set or the backup says is not blamed on the target."""
    model = lived("6")
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


def test_a_gap_may_be_a_server_that_only_aborted() -> None:
    """Its binlogs look the same; the hint says where that shows. Of another gap it says nothing."""
    error = refused(left_out_after(4), Latest(), left_out_after(4).truth[:2])
    assert "without a binlog" in str(error)
    assert "--allow-gap leaves out what is missing: nothing, if" in error.hint
    other = lived("2 gap:2 1")
    hint = refused(other, Latest(), other.truth[:2]).hint
    assert "--allow-gap leaves out what is missing" in hint
    assert "error log" not in hint


def test_a_backup_from_behind_it_is_known_by_a_gtid_a_place_or_a_lineage() -> None:
    """Each of them says that it was made after the source wrote a binlog again."""
    model = left_out_after(4)
    assert planned(model, Latest(), model.truth[:5]).transactions == 2
    have = having(model.truth[:4])
    named = Start(gtids=have, lineage=model.current)
    assert planned(model, Latest(), start=named).transactions == 3
    for name, refuses in ((model.open.name, False), (FIRST, True)):
        offset = HEAD if name != FIRST else HEAD + 400
        base = Base(gtids=have, position=FilePosition(name, offset), said_by="the base backup")
        start = Start(gtids=have, base=base)
        if refuses:
            assert "do not tell" in str(refused(model, Latest(), start=start))
        else:
            assert planned(model, Latest(), start=start).transactions == 3


class OldPages(Model):
    """Pages that do not say yet whether a binlog was begun by a start of the server."""

    def brief(self, lineage: str, name: BinlogName) -> Facts:
        return replace(super().brief(lineage, name), started=None)


@pytest.mark.parametrize("empty", [0, 3])
@pytest.mark.parametrize("kind", [Model, OldPages])
def test_an_archive_of_an_older_version_has_them_within_a_lineage(
    kind: type[Model], empty: int
) -> None:
    """The binlogs themselves show it: a rotation, and a start of the server; empty ones follow."""
    model = lived("4 |", kind)
    model.open.started = True
    for _ in range(empty):
        model.rotate()
    committed(model, 3)
    assert "without a binlog" in str(refused(model, Latest(), model.truth[:2]))
    assert "do not tell" in str(refused(model, Latest(), model.truth[:4]))
    model.branch.files[0].crashed = True
    assert planned(model, Latest(), model.truth[:2]).transactions == 5


def test_a_join_without_a_gap_has_no_reason_for_one() -> None:
    """Nor has the first lineage."""
    model = lived("3 fail_over:0,0 2 gap:2")
    line = line_of(model.lineages, model.current)
    reasons = [why_gap(line, number) for number in range(3)]
    assert reasons[:2] == ["", ""]
    assert reasons[2].startswith("the source had purged what comes before")


def test_a_plan_says_what_the_source_leaves_out() -> None:
    """What entries say of their binlogs, and the writer of now; each once."""
    model = lived("2")
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


def test_what_came_in_without_a_binlog_must_be_in_the_base_backup() -> None:
    """It is in none of the pieces: a target without it has not what the source had."""
    other = "5d8d3c9e-0000-0000-0000-00000000000a"
    model = lived("2")
    model.rotate()
    model.open.leaves_out = (came_in(GtidSet.parse(f"{other}:1-7")),)
    committed(model, 2)
    for theirs, lacks in (("", "1-7"), ("1-5", "6-7"), ("1-7", "")):
        have = having(model.truth[:2])
        have |= GtidSet.parse(f"{other}:{theirs}" if theirs else "")
        plan = planned(model, Latest(), start=Start(gtids=have))
        assert (plan.transactions, plan.lacks) == (2, f"{other}:{lacks}" if lacks else "")
    said, model.open.leaves_out = model.open.leaves_out, None  # it is open, and has no entry yet
    model.left_out = said
    last = planned(model, ToGtid(gtid(model.truth[3])), start=Start(gtids=GtidSet()))
    assert last.lacks == f"{other}:1-7"
    model.branch.files[0].leaves_out = ()
    early = planned(model, ToGtid(gtid(model.truth[1])), start=Start(gtids=GtidSet()))
    assert (early.transactions, early.lacks) == (2, "")


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
    model = lived("2")
    model.open.leaves_out = ("binlog_error_action=IGNORE_ERROR",) if ignores else ()
    model.open.crashed = crashed
    model.rotate()
    committed(model, 2)
    goal = Latest() if goes_on else ToGtid(gtid(model.truth[1]))
    said = "mysql-bin.000001 ends as after a crash of the source"
    assert any(one.startswith(said) for one in planned(model, goal).warnings) is is_told
