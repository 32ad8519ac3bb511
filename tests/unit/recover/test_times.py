"""`--to-time` where commit times cannot all be right: what is refused, shown, and passed over."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import ToTime
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Plan, Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.recover.reach import reach_of
from tests.history_model import Model, having
from tests.history_model import lived as history_of

SECOND = 1_000_000
HOUR = 3600 * SECOND
YEARS = 12 * 365 * 24 * HOUR


def lived(claims: Sequence[int], *, exact: bool = False, per_binlog: int = 100) -> Model:
    """A transaction a second; it says a time this many seconds after its commit."""
    model = Model()
    model.exact = exact
    for number, off in enumerate(claims):
        if number and number % per_binlog == 0:
            model.rotate()
        model.commit(100, SECOND)
        claim(model, model.clock_us + off * SECOND)
    model.covered_us = model.clock_us
    return model


def claim(model: Model, us: int) -> None:
    """The last transaction says that it was committed then."""
    real = replace(model.truth[-1], commit_us=us)
    model.truth[-1] = model.open.reals[-1] = real


def received(model: Model, after_us: int = 0) -> None:
    """All binlogs were received so long after the end."""
    for file in model.branch.files:
        file.received_us = model.clock_us + after_us


def planned(model: Model, at_us: int, *, accepts: bool = False) -> Plan:
    goal = ToTime(at_us, "then", accepts)
    return make(Request(goal=goal, start=Start()), model)


def refused(model: Model, at_us: int) -> RecoveryError:
    with pytest.raises(RecoveryError) as caught:
        planned(model, at_us)
    return caught.value


def gtid(model: Model, number: int) -> str:
    return model.truth[number].gtid or ""


YEAR_2038 = YEARS // SECOND


def test_a_goal_is_not_reached_because_one_row_says_so() -> None:
    """Nothing else came as late as the goal. What says so is named."""
    model = lived([0, YEAR_2038, 0, 0])
    received(model)
    error = refused(model, model.clock_us + HOUR)
    assert "not reached" in str(error)
    assert str(model.open.name) in str(error)
    just_after = refused(model, model.clock_us + SECOND)
    assert "not reached" in str(just_after)
    assert gtid(model, 1) in str(just_after)


@pytest.mark.parametrize("after", [[0], [0, 0, 0, 0, 0, 0]])
def test_a_time_later_than_the_receipt_is_refused_before_the_goal(after: list[int]) -> None:
    """However few follow; --accept-times takes it as it is, and shows what it leaves out."""
    model = lived([0, YEAR_2038, *after])
    received(model)
    error = refused(model, model.clock_us)
    assert "ambiguous" in str(error)
    assert gtid(model, 1) in str(error)
    assert "--accept-times" in error.hint
    plan = planned(model, model.clock_us, accepts=True)
    assert plan.transactions == 1
    assert [shown.transaction.gtid for shown in plan.disorder] == [
        gtid(model, number) for number in range(2, min(5, len(model.truth)))
    ]


def test_a_lie_of_long_ago_is_in_nobodys_way() -> None:
    """Its binlog was received before the goal: it was committed before, whatever it says."""
    model = lived([0, YEAR_2038, 0])
    received(model)
    model.clock_us += HOUR
    model.rotate()
    model.commit(100, SECOND)
    at_us = model.clock_us
    model.commit(100, SECOND)
    model.covered_us = model.clock_us
    plan = planned(model, at_us)
    assert plan.transactions == 4
    assert any("counts as committed" in warning for warning in plan.warnings)


def test_a_target_is_not_past_a_goal_because_of_a_lie() -> None:
    """What it has says 2038, and was received before the goal."""
    model = lived([0, YEAR_2038])
    received(model)
    model.rotate()
    model.commit(100, HOUR)
    model.commit(100, SECOND)
    have = model.branch.files[0].gtids()
    goal = ToTime(model.clock_us - 1, "then")
    assert make(Request(goal=goal, start=Start(gtids=have)), model).transactions == 1


@pytest.mark.parametrize(
    ("claims", "accepted"),
    [
        ([0] * 8, True),
        ([0, 0, 0, 0, -3, -4, -5, -9, -10, -9, -8, -7], True),  # many at once, seconds late
        ([0, 0, 0, 0, -7200, 0, 0], True),  # one that took two hours
        ([0, 0, 0, 0, -7200, -600, -5000, 0], True),  # three at once
        ([0, 0, 0, 0, -7200, 0, -600, 0, -500, 0, -700, 0, -800], True),  # each with others between
        ([0, 0, 0, 0, -7200, -600, -5000, -7000], False),  # nothing shows that the hour is right
        ([0, 0, 0, 0] + [-3600] * 8, False),  # the clock was set back by an hour
        ([0, 0, 0, 0] + [-3600, 0] * 21, False),  # so many do not run at once
        ([0, 0, 0, 5, 0, 0, 0, 0, 0, 0], True),  # a clock that was corrected by seconds
        ([0, 0, 0, 1800, 0, 0, 0, 0], False),  # SET timestamp, half an hour ahead
    ],
)
def test_what_a_duration_explains(claims: list[int], *, accepted: bool) -> None:
    """What started before and took long is left out and shown; the rest is refused."""
    model = lived(claims)
    at_us = model.truth[2].commit_us
    if not accepted:
        error = refused(model, at_us)
        assert "ambiguous" in str(error)
        assert "--accept-times" in error.hint
    plan = planned(model, at_us, accepts=not accepted)
    assert plan.transactions == 3
    late = [one.gtid for one in model.truth[3:] if one.commit_us <= at_us]
    shown = [one.transaction.gtid for one in plan.disorder]
    assert shown == late[:3]
    assert bool(late) == any("not in order" in warning for warning in plan.warnings)


def test_exact_times_are_of_the_commit() -> None:
    """No duration explains that one is earlier than one before it, not even by a microsecond."""
    model = lived([0, 0, 0, 0, -2, 0], exact=True)
    assert "ambiguous" in str(refused(model, model.truth[2].commit_us))
    assert planned(model, model.truth[2].commit_us, accepts=True).transactions == 3


class Upgraded(Model):
    """Exact times from its second binlog on."""

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        for one in super().transactions(lineage, name, begin, end):
            yield replace(one, commit_exact=name.number > 1)


def test_an_exact_time_behind_whole_seconds_is_explained() -> None:
    """Only two exact times contradict each other."""
    model = Upgraded()
    for _ in range(4):
        model.commit(100, SECOND)
    model.rotate()
    at_us = model.truth[2].commit_us
    model.clock_us = at_us - SECOND
    model.commit(100, 0)
    plan = planned(model, at_us)
    assert plan.transactions == 3
    assert [one.transaction.gtid for one in plan.disorder] == [gtid(model, 4)]


def test_a_session_that_sets_old_times_is_no_obstacle_to_an_earlier_goal() -> None:
    """An old binlog piped into the server today: a binlog of today shows the server's clock."""
    model = lived([0] * 4)
    at_us = model.truth[1].commit_us
    model.clock_us += HOUR
    model.rotate()
    for _ in range(30):
        model.commit(100, SECOND)
        claim(model, model.truth[0].commit_us)
    plan = planned(model, at_us)
    assert plan.transactions == 2
    assert len(plan.disorder) == 3


def test_a_binlog_that_was_created_just_when_the_stop_was_committed() -> None:
    """Shows that the clock had come so far; one of a microsecond before does not."""
    model = lived([0] * 30)
    at_us, found = model.truth[24].commit_us, model.truth[25]
    model.rotate()
    for _ in range(5):
        model.commit(100, SECOND)
        claim(model, model.truth[0].commit_us)
    model.open.first_us = found.commit_us
    assert planned(model, at_us).transactions == 25
    model.open.first_us -= 1
    assert "ambiguous" in str(refused(model, at_us))


def test_what_can_be_reached_is_not_what_one_row_says() -> None:
    """Neither the window of a plan, nor that of a backup."""
    model = lived([0, 0, YEAR_2038])
    received(model)
    model.covered_us = None
    honest = model.truth[1].commit_us
    reach = reach_of(Start(), model)
    assert reach.to_us == honest
    assert planned(model, honest - 1).reach.latest_us == honest


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_small_disorder_is_cut_where_it_should_be(data: st.DataObject) -> None:
    """Sessions with statements of any length: nothing that was committed by then is left out."""
    done: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(1, 4), label="sessions")):
        now = 1_000_000_001
        for _ in range(data.draw(st.integers(1, 8))):
            start = now + data.draw(st.integers(0, 600))
            now = start + data.draw(st.sampled_from([0, 0, 0, 1, 5, 30, 600, 7200]))
            done.append((now, start))
    model = Model()
    model.exact = False
    for end, start in sorted(done):
        model.clock_us = end * SECOND - 1
        if data.draw(st.integers(0, 5)) == 0:
            model.rotate()
        model.commit(100, 1)
        claim(model, start * SECOND)
    model.covered_us = model.clock_us + 1
    received(model)
    if data.draw(st.booleans(), label="received late"):
        received(model, HOUR)
    at_us = data.draw(st.integers(1_000_000_000, model.clock_us // SECOND)) * SECOND
    claims = [real.commit_us for real in model.truth]
    expected = next((n for n, us in enumerate(claims) if us > at_us), len(claims))
    plan = planned(model, at_us)
    assert plan.transactions == expected
    ends = [end * SECOND for end, _ in sorted(done)]
    assert all(end > at_us for end in ends[expected:])
    behind = [n for n in range(expected, len(claims)) if claims[n] <= at_us]
    assert [one.transaction.gtid for one in plan.disorder] == [gtid(model, n) for n in behind[:3]]


@pytest.mark.parametrize(
    "steps",
    [
        "3 fail_over:0,3 | 1",
        "3 fail_over:0,3 | | 2",
        "2 | 1 put_back:0 | 1",
        "2 | 1 fail_over:1,0 1 | 1",
    ],
)
def test_a_goal_before_what_a_fail_over_repeats_is_refused(steps: str) -> None:
    """The binlog before the place where it begins has only that: the one before tells the time."""
    model = history_of(steps)
    start = Start(gtids=having(model.truth[:3]))
    for number in range(2):
        with pytest.raises(RecoveryError, match="already past then"):
            make(Request(goal=ToTime(model.truth[number].commit_us, "then"), start=start), model)
    plan = make(Request(goal=ToTime(model.truth[2].commit_us, "then"), start=start), model)
    assert not plan.pieces


def test_without_gtids_what_a_binlog_shares_with_the_one_before_tells_no_time_either() -> None:
    """The binlog of a server that was put back has the bytes of the one before, and no more."""
    model = history_of("2 | 1 put_back:0 | 1", gtids=False)
    start = Start(position=FilePosition(model.open.name, 4), lineage=model.current)
    with pytest.raises(RecoveryError, match="already past then"):
        make(Request(goal=ToTime(model.truth[0].commit_us, "then"), start=start), model)
    plan = make(Request(goal=ToTime(model.truth[2].commit_us, "then"), start=start), model)
    assert not plan.pieces


def test_a_target_that_is_past_a_goal_is_told_the_first_transaction_after_it() -> None:
    """Neither one before it, nor the one just at it."""
    model = history_of("3 | 1")
    start = Start(gtids=having(model.truth[:3]))
    with pytest.raises(RecoveryError, match="already past then") as caught:
        make(Request(goal=ToTime(model.truth[1].commit_us, "then"), start=start), model)
    assert f"it has {model.truth[2].gtid} of" in str(caught.value)
