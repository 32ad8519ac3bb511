"""A plan brings a target exactly to where it was asked to, whatever history the bucket has."""

from collections.abc import Iterable, Sequence
from itertools import product

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import Flavour, GtidSet, gathered
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import Plan, Request, Start
from binlog2s3.recover.plan import make
from tests.history_model import Model, Real

PLANS = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
COMMIT = st.tuples(st.just("commit"), st.integers(60, 500), st.integers(0, 3))
ROTATE = st.tuples(st.just("rotate"), st.just(0), st.just(0))
FAIL_OVER = st.tuples(st.just("fail over"), st.integers(0, 3), st.integers(0, 8))
PUT_BACK = st.tuples(st.just("put back"), st.integers(0, 3), st.just(0))
EVENTS = st.lists(
    st.one_of(COMMIT, COMMIT, COMMIT, COMMIT, ROTATE, FAIL_OVER, PUT_BACK), min_size=1, max_size=40
)
PLAIN = st.lists(st.one_of(COMMIT, COMMIT, COMMIT, ROTATE), min_size=1, max_size=40)


def lived(
    events: Sequence[tuple[str, int, int]], *, gtids: bool = True, flavour: Flavour = "mysql"
) -> Model:
    model = Model(gtids=gtids, flavour=flavour)
    for kind, one, other in events:
        match kind:
            case "commit":
                model.commit(one, other)
            case "rotate":
                model.rotate()
            case "fail over":
                model.fail_over(one, other)
            case "put back":
                model.put_back(one)
    return model


def histories(
    events: st.SearchStrategy[list[tuple[str, int, int]]],
    *,
    gtids: bool = True,
    flavour: Flavour = "mysql",
) -> st.SearchStrategy[Model]:
    """What these events lead to."""
    return events.map(lambda those: lived(those, gtids=gtids, flavour=flavour))


def applied(plan: Plan, model: Model) -> list[Real]:
    """What its pieces bring, in order."""
    found = []
    for piece in plan.pieces:
        inside = [
            real
            for begin, end, real in model.file(piece.lineage, piece.binlog).places()
            if piece.begin <= begin
            and end <= piece.end
            and not any(a <= begin and end <= b for a, b in piece.left_out)
        ]
        assert len(inside) == piece.transactions
        found += inside
    return found


def numbers(reals: Sequence[Real]) -> list[int]:
    return [real.number for real in reals]


def having(reals: Sequence[Real]) -> GtidSet:
    found = gathered([real.gtid for real in reals if real.gtid], "mysql")
    assert isinstance(found, GtidSet)
    return found


def rows(reals: Iterable[Real]) -> dict[int, int]:
    """What a few rows hold after these writes, one after the other: the last one counts."""
    found = {}
    for real in reals:
        found[real.number % 3] = real.number
    return found


def late(had: Sequence[Real], upto: Sequence[Real]) -> list[Real]:
    """Those that a server lacks and that come before one that it has."""
    last = max((at for at, real in enumerate(upto) if real in had), default=-1)
    return [real for real in upto[: max(last, 0)] if real not in had]


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_a_gtid_is_reached_exactly(model: Model, data: st.DataObject) -> None:
    """From any backup to any later transaction: those between, each once, in order."""
    assume(model.truth)
    goal_at = data.draw(st.integers(0, len(model.truth) - 1))
    backup_at = data.draw(st.integers(0, goal_at + 1))
    target = model.truth[goal_at]
    assert target.gtid is not None
    have = having(model.truth[:backup_at])
    goal: Goal = ToGtid(target.gtid)
    before = data.draw(st.booleans())
    if before and backup_at <= goal_at:
        goal = BeforeGtid(target.gtid)
    request = Request(goal=goal, start=Start(gtids=have))
    if have in model.dead:  # a backup of another history says the same of itself
        with pytest.raises(RecoveryError, match="two different histories"):
            make(request, model)
        return
    plan = make(request, model)
    upto = goal_at if isinstance(goal, BeforeGtid) else goal_at + 1
    assert numbers(applied(plan, model)) == numbers(model.truth[backup_at:upto])
    assert plan.adds == having(model.truth[backup_at:upto])
    assert [shown.transaction.gtid for shown in plan.kept][-1:] == [
        real.gtid for real in model.truth[:upto][-1:]
    ]


def test_what_cannot_be_read_is_in_nobodys_way() -> None:
    """A recovery that needs a binlog whose entry is damaged is refused, and no other one.

    Needed are those from the one with the backup's last transaction to the one with the goal, one
    more at either end, which shows that nothing is missing there, and the one with the newest
    commit, which says up to when a recovery can go.
    """
    model = lived([("commit", 60, 1), ("commit", 60, 1), ("rotate", 0, 0)] * 5)
    files, count = model.branch.files, len(model.truth)
    holders = [number for number, file in enumerate(files) for _ in file.reals]
    refused = set[tuple[int, int, int]]()
    for backup_at, goal_at, at in product(range(count), range(count), range(len(files))):
        if backup_at > goal_at:
            continue
        model.unreadable = [files[at].name]
        goal = ToGtid(model.truth[goal_at].gtid or "")
        request = Request(goal=goal, start=Start(gtids=having(model.truth[:backup_at])))
        try:
            plan = make(request, model)
        except ArchiveError:
            first = holders[backup_at - 1] if backup_at else 0
            assert first - 1 <= at <= holders[goal_at] + 1 or at >= holders[-1]
            refused.add((backup_at, goal_at, at))
        else:
            assert numbers(applied(plan, model)) == numbers(model.truth[backup_at : goal_at + 1])
            assert at not in holders[backup_at : goal_at + 1]
    assert refused


@PLANS
@given(model=histories(PLAIN), data=st.data())
def test_a_time_is_reached_exactly(model: Model, data: st.DataObject) -> None:
    """All that was committed until then, and nothing that came later; refused if it is past."""
    assume(model.truth)
    model.covered_us = model.clock_us
    at_us = data.draw(st.integers(model.branches[0].files[0].first_us, model.clock_us))
    upto = sum(real.commit_us <= at_us for real in model.truth)
    backup_at = data.draw(st.integers(0, len(model.truth)))
    request = Request(
        goal=ToTime(at_us, "then"), start=Start(gtids=having(model.truth[:backup_at]))
    )
    if backup_at > upto:
        with pytest.raises(RecoveryError, match="already past"):
            make(request, model)
    else:
        plan = make(request, model)
        assert numbers(applied(plan, model)) == numbers(model.truth[backup_at:upto])


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_a_time_is_reached_over_fail_overs(model: Model, data: st.DataObject) -> None:
    """Each transaction counts where it was committed first; what is near a cut may be refused."""
    assume(model.truth)
    model.covered_us = model.clock_us
    at_us = data.draw(st.integers(model.branches[0].files[0].first_us, model.clock_us))
    backup_at = data.draw(st.integers(0, len(model.truth)))
    have = having(model.truth[:backup_at])
    upto = sum(real.commit_us <= at_us for real in model.truth)
    plan = tried(Request(goal=ToTime(at_us, "then"), start=Start(gtids=have)), model)
    if backup_at == 0:
        assert plan is not None
    if plan is not None:
        assert numbers(applied(plan, model)) == numbers(model.truth[backup_at:upto])


def tried(request: Request, model: Model) -> Plan | None:
    try:
        return make(request, model)
    except RecoveryError:
        return None


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_everything_is_reached(model: Model, data: st.DataObject) -> None:
    """From any backup to the newest byte; what was lost in a fail-over never comes back."""
    backup_at = data.draw(st.integers(0, len(model.truth)))
    have = having(model.truth[:backup_at])
    assume(have not in model.dead)
    request = Request(goal=Latest(), start=Start(gtids=have), lineage=model.current)
    plan = make(request, model)
    assert numbers(applied(plan, model)) == numbers(model.truth[backup_at:])
    assert not plan.left_out


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_a_target_of_a_dead_branch_is_refused(model: Model, data: st.DataObject) -> None:
    """Who has a transaction that history left behind is told so, and nothing is planned."""
    assume(model.lost)
    lost = data.draw(st.sampled_from(model.lost))
    have = having([*model.truth, lost])
    assume(not having([lost]) <= having(model.truth))
    with pytest.raises(RecoveryError):
        make(Request(goal=Latest(), start=Start(gtids=have)), model)


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_a_target_past_the_goal_is_refused(model: Model, data: st.DataObject) -> None:
    """It is told that it is past, and nothing is planned."""
    assume(len(model.truth) > 1)
    goal_at = data.draw(st.integers(0, len(model.truth) - 2))
    backup_at = data.draw(st.integers(goal_at + 2, len(model.truth)))
    gtid = model.truth[goal_at].gtid
    assert gtid is not None
    have = having(model.truth[:backup_at])
    with pytest.raises(RecoveryError, match=r"already past|two different histories"):
        make(Request(goal=ToGtid(gtid), start=Start(gtids=have)), model)


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_what_is_skipped_is_all_that_lacks(model: Model, data: st.DataObject) -> None:
    """The others come in order, and the plan names the skipped ones."""
    backup_at = data.draw(st.integers(0, len(model.truth)))
    rest = model.truth[backup_at:]
    assume(rest and having(model.truth[:backup_at]) not in model.dead)
    skipped = data.draw(st.lists(st.sampled_from(rest), min_size=1, max_size=4, unique=True))
    request = Request(
        goal=Latest(),
        start=Start(gtids=having(model.truth[:backup_at])),
        skip=tuple(str(real.gtid) for real in skipped),
        lineage=model.current,
    )
    plan = make(request, model)
    assert numbers(applied(plan, model)) == numbers([r for r in rest if r not in skipped])
    assert plan.skipped == having(skipped)


@PLANS
@given(model=histories(EVENTS), data=st.data())
def test_any_part_of_the_history_is_brought_to_the_values_of_the_source(
    model: Model, data: st.DataObject
) -> None:
    """Whatever a server has of it, in whatever parts: it is refused, or its rows are the source's.

    A server that has a beginning is never refused for a hole.
    """
    assume(model.truth)
    goal_at = data.draw(st.integers(0, len(model.truth) - 1))
    truth, goal = model.truth[: goal_at + 1], model.truth[goal_at]
    had = data.draw(st.lists(st.sampled_from(truth), unique=True).map(lambda some: [*some]))
    had.sort(key=truth.index)
    start, wanted = Start(gtids=having(had)), ToGtid(str(goal.gtid))
    plan = tried(Request(goal=wanted, start=start, lineage=model.current), model)
    if plan is not None:
        assert not late(had, truth)
        assert rows([*had, *applied(plan, model)]) == rows(truth)
    elif not late(had, truth):
        allowed = Request(goal=wanted, start=start, lineage=model.current, any_holes=True)
        assert tried(allowed, model) is None  # it is not refused for a hole


@PLANS
@given(model=histories(PLAIN), data=st.data())
def test_holes_are_named_filled_first_or_left_out(model: Model, data: st.DataObject) -> None:
    """Exactly those that come before something that the server has; fewer or more are refused."""
    assume(model.truth)
    truth = model.truth
    had = [real for real in truth if data.draw(st.booleans())]
    holes = late(had, truth)
    assume(holes)
    start = Start(gtids=having(had))
    with pytest.raises(RecoveryError, match="a hole") as caught:
        make(Request(goal=Latest(), start=start), model)
    assert str(having(holes)) in str(caught.value)
    names = tuple(str(real.gtid) for real in holes)
    plan = make(Request(goal=Latest(), start=start, holes=names), model)
    missing = [real for real in truth if real not in had]
    assert numbers(applied(plan, model)) == numbers(missing)
    assert missing[: len(holes)] == holes
    assert plan.holes == str(having(holes))
    left = make(Request(goal=Latest(), start=start, skip=names), model)
    assert numbers(applied(left, model)) == numbers(missing[len(holes) :])
    mixed = Request(goal=Latest(), start=start, skip=names[:1], holes=names[1:])
    assert numbers(applied(make(mixed, model), model)) == numbers(missing[1:])
    with pytest.raises(RecoveryError, match="a hole"):
        make(Request(goal=Latest(), start=start, holes=names[1:]), model)
    if more := missing[len(holes) :]:
        with pytest.raises(RecoveryError, match="no hole of the target"):
            make(Request(goal=Latest(), start=start, holes=(*names, str(more[0].gtid))), model)


DOMAINS = st.lists(
    st.one_of(
        st.tuples(st.just(0), st.just(0)), st.tuples(st.integers(60, 200), st.integers(0, 2))
    ),
    min_size=1,
    max_size=30,
)


@PLANS
@given(events=DOMAINS, data=st.data())
def test_mariadbs_domains_stand_at_one_place(
    events: list[tuple[int, int]], data: st.DataObject
) -> None:
    """One that is behind the others is a hole, which is named GTID by GTID."""
    model = Model(flavour="mariadb")
    for size, domain in events:
        if size:
            model.commit(size, 1, domain)
        else:
            model.rotate()
    assume(model.truth)
    had, last = list[Real](), list[str]()
    for domain in range(3):
        those = [real for real in model.truth if str(real.gtid).startswith(f"{domain}-")]
        those = those[: data.draw(st.integers(0, len(those)))]
        had += those
        last += [str(real.gtid) for real in those[-1:]]
    start = Start(gtids=gathered(last, "mariadb"))
    missing = [real for real in model.truth if real not in had]
    holes = late(had, model.truth)
    names = tuple(str(real.gtid) for real in holes)
    plan = make(Request(goal=Latest(), start=start, holes=names), model)
    assert numbers(applied(plan, model)) == numbers(missing)
    if holes:
        with pytest.raises(RecoveryError, match="a hole") as caught:
            make(Request(goal=Latest(), start=start), model)
        assert all(name in str(caught.value) for name in names)


@PLANS
@given(model=histories(PLAIN, gtids=False), data=st.data())
def test_positions_alone_are_enough(model: Model, data: st.DataObject) -> None:
    """Without GTIDs: from a place to a place, all between, each once."""
    ends = [
        (file.name, end, real.number)
        for file in model.branch.files
        for _, end, real in file.places()
    ]
    assume(ends)
    first = data.draw(st.integers(0, len(ends) - 1))
    last = data.draw(st.integers(first, len(ends) - 1))
    request = Request(
        goal=ToPosition(FilePosition(*ends[last][:2])),
        start=Start(position=FilePosition(*ends[first][:2])),
    )
    plan = make(request, model)
    assert numbers(applied(plan, model)) == [number for *_, number in ends[first + 1 : last + 1]]


@PLANS
@given(model=histories(EVENTS), gtids=st.sampled_from([None, GtidSet()]), data=st.data())
def test_a_place_is_continued_from_over_fail_overs(
    model: Model, gtids: GtidSet | None, data: st.DataObject
) -> None:
    """What comes before it is not applied, though the servers that followed have it, too."""
    places: dict[int, tuple[str, BinlogName, int]] = {}
    for branch in model.branches:
        for file in branch.files:
            for _, end, real in file.places():
                places.setdefault(real.number, (branch.lineage.id, file.name, end))
    assume(model.truth)
    at = data.draw(st.integers(0, len(model.truth) - 1))
    lineage, name, end = places[model.truth[at].number]
    start = Start(gtids=gtids, position=FilePosition(name, end), lineage=lineage)
    plan = make(Request(goal=Latest(), start=start, lineage=model.current), model)
    assert numbers(applied(plan, model)) == numbers(model.truth[at + 1 :])


@PLANS
@given(model=histories(EVENTS, flavour="mariadb"), data=st.data())
def test_mariadbs_position_is_enough(model: Model, data: st.DataObject) -> None:
    """From the last GTID of any backup to any later one: those between, each once, in order."""
    assume(model.truth)
    goal_at = data.draw(st.integers(0, len(model.truth) - 1))
    backup_at = data.draw(st.integers(0, goal_at + 1))
    goal = ToGtid(str(model.truth[goal_at].gtid))
    last = [str(real.gtid) for real in model.truth[:backup_at][-1:]]
    start = Start(gtids=gathered(last, "mariadb"))
    plan = tried(Request(goal=goal, start=start), model)
    if plan is None:  # numbers that a server that was put back has used again
        assert last[0] in {real.gtid for real in model.lost}
    else:
        assert numbers(applied(plan, model)) == numbers(model.truth[backup_at : goal_at + 1])
    if any(real.gtid in last for real in model.lost):
        assert plan is None
