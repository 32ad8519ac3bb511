"""MariaDB: two servers in a domain, numbers that go back. Every place is continued from exactly.

The expectation is a naive replay of what was committed. It shares no code with the package.
"""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.goal import Latest, ToGtid
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Base, Plan, Request, Start
from binlog2s3.recover.plan import make
from tests.history_model import Model, Real
from tests.property.test_plan import PLANS, applied

COMMIT = st.tuples(st.integers(0, 1), st.sampled_from([1, 1, 2]), st.integers(1, 12))
ROTATE, FAIL_OVER = (9, 0, 0), (8, 0, 0)
LIVES = st.lists(
    st.one_of(
        COMMIT,
        COMMIT,
        COMMIT,
        st.just(ROTATE),
        st.tuples(st.just(8), st.integers(0, 4), st.just(0)),
    ),
    min_size=1,
    max_size=24,
)
AUDIT = [*((0, 1, n) for n in range(1, 11)), ROTATE, (0, 2, 6), (0, 1, 11), (0, 1, 12)]
"""The case that applied 46 transactions instead of two, with small numbers."""


def lived(events: Sequence[tuple[int, int, int]]) -> Model:
    """What these lead to. With fail-overs no GTID is used twice: their joins go by GTIDs."""
    model = Model(flavour="mariadb")
    is_joined = any(one[0] == 8 for one in events)
    for domain, server, number in events:
        if domain == 9:
            model.rotate()
        elif domain == 8:
            model.fail_over(0, server)
            model.rotate()
        elif not (is_joined and f"{domain}-{server}-{number}" in {r.gtid for r in model.truth}):
            model.commit(100, 1, gtid=f"{domain}-{server}-{number}")
    return model


def state_of(reals: Sequence[Real]) -> str:
    """As gtid_slave_pos has it: the last GTID of each domain."""
    last = {str(real.gtid).split("-")[0]: str(real.gtid) for real in reals}
    return ",".join(last.values())


def value_of(reals: Sequence[Real], begin: int = 0) -> int:
    """A value that tells apart every sequence of transactions, also repeated ones."""
    for real in reals:
        begin = begin * 31 + real.number
    return begin


def planned(model: Model, state: str, place: tuple[BinlogName, int] | None = None) -> Plan:
    gtids = MariadbGtidList.parse(state)
    base = Base(gtids=gtids, position=FilePosition(*place) if place is not None else None)
    return make(Request(goal=Latest(), start=Start(gtids=gtids, base=base)), model)


@PLANS
@given(events=LIVES)
@example(events=AUDIT)
def test_every_place_is_continued_from(events: list[tuple[int, int, int]]) -> None:
    """From every place: the value of the source, or a refusal if a GTID was used twice."""
    model = lived(events)
    used = Counter(str(real.gtid) for real in model.truth)
    for upto in range(len(model.truth) + 1):
        state = state_of(model.truth[:upto])
        if any(used[gtid] > 1 for gtid in state.split(",") if gtid):
            with pytest.raises(RecoveryError, match=r"places of this history"):
                planned(model, state)
            continue
        plan = planned(model, state)
        base = value_of(model.truth[:upto])
        assert value_of(applied(plan, model), base) == value_of(model.truth)


@PLANS
@given(events=LIVES.map(lambda events: [one for one in events if one[0] != 8]))
@example(events=[*AUDIT, (0, 2, 6), (0, 1, 3)])
def test_file_and_position_decide(events: list[tuple[int, int, int]]) -> None:
    """A backup that names both is continued from everywhere, also if its GTID was used twice."""
    model = lived(events)
    places = [
        (file.name, end)
        for branch in model.branches
        for file in branch.files
        for _, end, _ in file.places()
    ]
    for upto, place in enumerate(places, 1):
        plan = planned(model, state_of(model.truth[:upto]), place)
        base = value_of(model.truth[:upto])
        assert value_of(applied(plan, model), base) == value_of(model.truth)


@PLANS
@given(events=LIVES)
@example(events=AUDIT)
def test_every_gtid_is_reached(events: list[tuple[int, int, int]]) -> None:
    """As a goal: up to exactly this transaction, or a refusal if its GTID was used twice."""
    model = lived(events)
    used = Counter(str(real.gtid) for real in model.truth)
    for upto, real in enumerate(model.truth, 1):
        request = Request(goal=ToGtid(str(real.gtid)), start=Start(gtids=MariadbGtidList()))
        if used[str(real.gtid)] > 1:
            with pytest.raises(RecoveryError, match="places of this history"):
                make(request, model)
        else:
            assert value_of(applied(make(request, model), model)) == value_of(model.truth[:upto])


def test_all_servers_of_a_domain_may_be_named() -> None:
    """As gtid_binlog_state has it: the one that comes later in the history is the place."""
    model = lived(AUDIT)
    plan = planned(model, "0-1-10,0-2-6")
    assert [real.gtid for real in applied(plan, model)] == ["0-1-11", "0-1-12"]
    assert str(plan.before) == "0-2-6"


def test_a_contradiction_names_both() -> None:
    """The GTID is of another place than the file and position of the same backup."""
    model = lived(AUDIT)
    file = model.open
    with pytest.raises(RecoveryError, match="contradicts itself") as caught:
        planned(model, "0-1-4", (file.name, file.places()[0][1]))
    assert "0-1-4" in str(caught.value)
    assert "0-2-6" in str(caught.value)


def test_a_position_of_another_server_does_not_count() -> None:
    """No transaction of the archive ends there: the GTID decides."""
    model = lived(AUDIT)
    plan = planned(model, "0-2-6", (model.open.name, model.open.places()[0][1] + 7))
    assert [real.gtid for real in applied(plan, model)] == ["0-1-11", "0-1-12"]


@pytest.mark.parametrize(("state", "count"), [("0-2-6", 2), ("0-1-10", None)])
def test_a_place_at_the_beginning_of_the_archive(state: str, count: int | None) -> None:
    """What was pruned is told by the first binlog's own list, which knows the newest GTID."""
    model = lived([*AUDIT[:12], ROTATE, *AUDIT[12:]])
    del model.branch.files[:2]
    if count is None:
        with pytest.raises(RecoveryError, match=r"before the archive begins"):
            planned(model, state)
    else:
        assert planned(model, state).transactions == count
