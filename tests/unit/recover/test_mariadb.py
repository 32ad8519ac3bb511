"""Plans for MariaDB in small histories: from every place to every place. More: tests/property."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from binlog2s3.binlog.content import AlterName, Content, TwoPhase
from binlog2s3.binlog.events import Phase
from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToPosition
from binlog2s3.errors import GoalError, RecoveryError
from binlog2s3.recover.model import Base, Plan, Request, Start
from binlog2s3.recover.plan import make
from tests.history_model import HEAD, Model, Real
from tests.property.test_plan import applied, numbers

Step = str | int
LIVES: dict[str, Sequence[Step]] = {
    "one domain": [*range(1, 10), "rotate", 10, 11, "rotate", "rotate", 12],
    "two domains": ["0-1-1", "1-1-1", "0-1-2", "rotate", "1-1-2", "1-1-3", "rotate", "0-1-3"],
    "a domain in between": [*range(1, 5), *(f"1-1-{n}" for n in range(1, 5)), *range(5, 9)],
    "numbers that go back": [*range(1, 11), "rotate", "0-2-6", 11, 12, "rotate", "0-2-4", 13],
    "a fail-over": [1, 2, "rotate", 3, 4, "fail over 3", "0-2-5", "rotate", "0-2-6"],
    "a fail-over that lost some": [1, 2, 3, 4, "lose 1", "fail over 3", "0-2-5", "rotate", "0-2-6"],
    "a primary without any": ["fail over 0", "0-2-1", "rotate", "0-2-2"],
    "a clean fail-over": [1, 2, 3, "fail over 0", "0-2-4", "0-2-5"],
    "two fail-overs": [1, 2, 3, "fail over 2", "0-2-4", "fail over 3", "0-3-5", "rotate", "0-3-6"],
    "a server that was put back": [1, 2, 3, 4, "put back 1", "0-1-9", "rotate", "0-1-10"],
}


def lived(steps: Sequence[Step]) -> Model:
    """Transactions of 100 bytes; a number is one of domain 0 and server 1."""
    model, lost = Model(flavour="mariadb"), 0
    for step in steps:
        match str(step).split():
            case ["rotate"]:
                model.rotate()
            case ["lose", count]:
                lost = int(count)
            case ["fail", "over", back]:
                model.fail_over(lost, int(back))
            case ["put", "back", lost]:
                model.put_back(int(lost))
            case [gtid]:
                model.commit(100, 10, gtid=gtid if "-" in gtid else f"0-1-{gtid}")
    return model


def state_of(reals: Sequence[Real]) -> MariadbGtidList:
    """As gtid_slave_pos has it: the last GTID of each domain."""
    last = {str(real.gtid).split("-")[0]: str(real.gtid) for real in reals}
    return MariadbGtidList.parse(",".join(last.values()))


def planned(model: Model, reals: Sequence[Real], goal: Goal | None = None, **more: object) -> Plan:
    start = Start(gtids=state_of(reals))
    return make(Request(goal=goal or Latest(), start=start, **more), model)  # type: ignore[arg-type]


@pytest.mark.parametrize("life", LIVES)
def test_every_place_is_reached_from_every_place(life: str) -> None:
    """What lies between them, each transaction once, in order; and past it nothing."""
    model = lived(LIVES[life])
    truth = model.truth
    for has in range(len(truth) + 1):
        assert applied(planned(model, truth[:has]), model) == truth[has:]
        for at in {0, has - 2, has - 1, has, len(truth) - 1} & set(range(len(truth))):
            for goal, upto in (
                (ToGtid(str(truth[at].gtid)), at + 1),
                (BeforeGtid(str(truth[at].gtid)), at),
            ):
                if upto < has:
                    with pytest.raises(RecoveryError, match="already past"):
                        planned(model, truth[:has], goal)
                else:
                    assert applied(planned(model, truth[:has], goal), model) == truth[has:upto]


@pytest.mark.parametrize("life", LIVES)
def test_a_base_backup_that_names_its_place_too(life: str) -> None:
    """Is continued from there, and one whose GTIDs are of another place is refused."""
    model = lived(LIVES[life])
    file = model.branches[0].files[0]
    for has, (_, end, real) in enumerate(file.places(), 1):
        if real not in model.truth:
            continue
        gtids = state_of(model.truth[:has])
        base = Base(gtids=gtids, position=FilePosition(file.name, end), said_by="tuesday")
        start = Start(gtids=gtids, base=base, lineage=model.branches[0].lineage.id)
        plan = make(Request(goal=Latest(), start=start), model)
        assert applied(plan, model) == model.truth[has:]
        wrong = state_of(model.truth[: has - 1])
        base = Base(gtids=wrong, position=FilePosition(file.name, end), said_by="tuesday")
        start = Start(gtids=wrong, base=base, lineage=model.branches[0].lineage.id)
        with pytest.raises(RecoveryError, match="tuesday contradicts itself"):
            make(Request(goal=Latest(), start=start), model)


class WithoutLists(Model):
    """A history whose binlogs do not say what they begin with."""

    def gtid_list(self, lineage: str, name: BinlogName) -> Gtids | None:
        del lineage, name


def test_a_place_of_which_the_gtids_are_unknown_proves_nothing() -> None:
    """The GTIDs alone tell, if they are named alone."""
    model = WithoutLists(flavour="mariadb")
    for _ in range(3):
        model.commit(100, 10)
    gtids = state_of(model.truth[:1])
    assert planned(model, model.truth[:1]).transactions == 2
    base = Base(gtids=gtids, position=FilePosition(model.open.name, HEAD + 100), said_by="tuesday")
    with pytest.raises(RecoveryError, match="tuesday contradicts itself"):
        make(Request(goal=Latest(), start=Start(gtids=gtids, base=base)), model)


def test_a_gtid_that_was_used_twice_is_no_goal_and_no_start() -> None:
    """Both places are named."""
    model = lived([1, 2, "rotate", 2, 3])
    where = f"mysql-bin.000001:{HEAD + 100} and mysql-bin.000002:{HEAD}"
    with pytest.raises(RecoveryError, match="is at 2 places") as caught:
        planned(model, [], ToGtid("0-1-2"))
    assert where.replace(" and", ",") in str(caught.value)
    with pytest.raises(RecoveryError, match="is at 2 places") as caught:
        planned(model, model.truth[:2])
    assert f"mysql-bin.000001:{HEAD + 200} and mysql-bin.000002:{HEAD + 100}" in str(caught.value)


def test_a_gtid_that_was_used_twice_does_not_tell_what_to_leave_out() -> None:
    """Both would be left out, also the one that is not meant; a goal between them tells."""
    model = lived([1, 2, "rotate", 2, 3])
    truth = model.truth
    with pytest.raises(RecoveryError, match="0-1-2 would leave out several transactions"):
        planned(model, truth[:1], skip=("0-1-2",))
    between = ToPosition(FilePosition(BinlogName.parse("mysql-bin.000002"), HEAD))
    assert planned(model, truth[:1], between, skip=("0-1-2",)).pieces == ()
    base = Base(
        gtids=state_of(truth[:2]), position=FilePosition(model.branch.files[0].name, HEAD + 200)
    )
    behind = Start(gtids=state_of(truth[:2]), base=base)
    plan = make(Request(goal=Latest(), start=behind, skip=("0-1-2",)), model)
    assert applied(plan, model) == truth[3:]


class WithAlters(Model):
    """A history in which some transactions are phases of an ALTER."""

    alters: Mapping[str, Phase] = {"0-1-2": "prepare", "0-1-4": "commit"}

    def content(self, *found: object) -> Content:
        one = found[-1]
        assert isinstance(one, Transaction)
        phase = self.alters.get(str(one.gtid))
        return Content(two_phase=TwoPhase(phase, AlterName(0, 2)) if phase is not None else None)


@pytest.mark.parametrize("phase", ["commit", "rollback"])
def test_an_alter_in_two_phases_is_left_out_as_a_whole(phase: Phase) -> None:
    """Its end alone would carry it out, and a replica with its beginning alone waits."""
    model = WithAlters(flavour="mariadb")
    model.alters = {"0-1-2": "prepare", "0-1-4": phase}
    for _ in range(5):
        model.commit(100, 10)
    truth = model.truth
    with pytest.raises(RecoveryError, match="0-1-2 is only the beginning of an ALTER"):
        planned(model, truth[:1], skip=("0-1-2",))
    with pytest.raises(RecoveryError, match="0-1-4 is only the end of an ALTER") as caught:
        planned(model, truth[:1], skip=("0-1-4",))
    assert "name its beginning, too: 0-1-2" in str(caught.value.hint)
    plan = planned(model, truth[:1], skip=("0-1-2,0-1-4",))
    assert applied(plan, model) == [truth[2], truth[4]]
    plan = planned(model, truth[:3], skip=("0-1-4",))  # its beginning is not applied here
    assert applied(plan, model) == truth[4:]


@pytest.mark.parametrize(
    ("goal", "why"),
    [
        ("0-1-9", "0-1-9 is not in the archive"),
        ("3-1-1", "3-1-1 is not in the archive"),
        ("0-1-1,0-2-2", "has 2 GTIDs, and a goal is one transaction"),
        ("0-1-1,1-1-1", "has 2 GTIDs, and a goal is one transaction"),
    ],
)
def test_what_is_not_one_gtid_of_the_history_is_no_goal(goal: str, why: str) -> None:
    """A greater number is not reached by the numbers before it; a list is said to be one."""
    model = lived(LIVES["one domain"][:6])
    with pytest.raises(GoalError, match=why) as caught:
        planned(model, [], ToGtid(goal))
    if "is not in" in why:
        assert str(caught.value.hint).endswith(", GTIDs 0-1-6"), caught.value.hint


def test_both_sides_of_a_gap_are_continued_from() -> None:
    """A state from just behind it, though no transaction there tells; none from inside of it."""
    model = lived([1, 2, 3])
    model.gap(2)
    for _ in range(2):
        model.commit(100, 10)
    truth = model.truth
    assert applied(planned(model, truth[:5]), model) == truth[5:]
    assert applied(planned(model, truth[:1], ToGtid("0-1-3")), model) == truth[1:3]
    for has in (1, 3):
        with pytest.raises(RecoveryError, match="history is broken"):
            planned(model, truth[:has])
        assert applied(planned(model, truth[:has], allow_gap=True), model) == [
            *truth[has:3],
            *truth[5:],
        ]


def test_both_sides_of_a_binlog_that_is_missing_are_continued_from() -> None:
    """The list of the next one says what was executed before it."""
    model = lived([1, 2, "rotate", 3, 4, "rotate", 5, 6])
    del model.branch.files[1]
    truth = model.truth
    assert applied(planned(model, truth[:4]), model) == truth[4:]
    assert applied(planned(model, truth[:5]), model) == truth[5:]
    assert applied(planned(model, truth[:1], ToGtid("0-1-2")), model) == truth[1:2]
    with pytest.raises(RecoveryError, match="are missing"):
        planned(model, truth[:1])


def test_a_binlog_that_begins_after_more_than_the_one_before_ends_with() -> None:
    """A replica that does not log what it replicates: its state tells where it goes on."""
    model = lived([1, 2, 3, "rotate", 6, 7])
    model.open.before = MariadbGtidList.parse("0-1-5")
    start = Start(gtids=MariadbGtidList.parse("0-1-5"))
    plan = make(Request(goal=Latest(), start=start), model)
    assert applied(plan, model) == model.truth[3:]
    for has in (1, 3):
        with pytest.raises(RecoveryError, match="history is broken"):
            planned(model, model.truth[:has])
    assert planned(model, model.truth[:1], ToGtid("0-1-3")).transactions == 2


@pytest.mark.parametrize("life", ["a fail-over", "a server that was put back"])
def test_a_history_whose_first_lineage_is_gone(life: str) -> None:
    """What the second one has in common with it is then there alone."""
    model = lived(LIVES[life])
    model.branches[0].files.clear()
    before = len(model.truth) - sum(len(file.reals) for file in model.branches[1].files)
    for has in range(before, len(model.truth)):
        plan = planned(model, model.truth[:has])
        assert numbers(applied(plan, model)) == numbers(model.truth[has:])


def test_what_a_fail_over_repeats_of_a_binlog_that_is_missing() -> None:
    """Is applied from there, if going on behind the gap is allowed."""
    model = lived([1, 2, "rotate", 3, 4, "fail over 3", "0-2-5"])
    del model.branches[0].files[1]
    with pytest.raises(RecoveryError, match="does not reach up to"):
        planned(model, model.truth[:1])
    plan = planned(model, model.truth[:1], allow_gap=True)
    assert numbers(applied(plan, model)) == numbers(model.truth[1:])


def test_a_domain_that_lags_is_a_hole() -> None:
    """It is named GTID by GTID, filled first if that is allowed, and left out if it is skipped."""
    steps = ["0-1-1", "1-1-1", "1-1-2", "rotate", "1-1-3", "0-1-2", "1-1-4", "rotate", "0-1-3"]
    model = lived(steps)
    start = Start(gtids=MariadbGtidList.parse("0-1-2,1-1-1"))
    holes = ("1-1-2", "1-1-3")
    with pytest.raises(RecoveryError, match="has a hole: it has 0-1-2, and is missing 1-1-2,1-1-3"):
        make(Request(goal=Latest(), start=start), model)
    for some in (holes[:1], holes[1:]):
        with pytest.raises(RecoveryError, match="has a hole"):
            make(Request(goal=Latest(), start=start, holes=some), model)
    plan = make(Request(goal=Latest(), start=start, holes=holes), model)
    assert [real.gtid for real in applied(plan, model)] == [*holes, "1-1-4", "0-1-3"]
    assert plan.holes == "1-1-2,1-1-3"
    plan = make(Request(goal=Latest(), start=start, skip=holes), model)
    assert [real.gtid for real in applied(plan, model)] == ["1-1-4", "0-1-3"]
    assert plan.skipped_singly == holes
    mixed = Request(goal=Latest(), start=start, holes=holes[:1], skip=holes[1:])
    assert make(mixed, model).holes == "1-1-2"


def test_holes_of_a_binlog_of_which_the_target_has_nothing() -> None:
    """Those that are skipped are none, wherever they are in it."""
    domain = [f"1-1-{n}" for n in range(1, 6)]
    model = lived(["0-1-1", "rotate", *domain, "rotate", "0-1-2"])
    start = Start(gtids=MariadbGtidList.parse("0-1-2"))
    for skip in ([], domain[1:2], [domain[1], domain[3]], [domain[0], domain[4]]):
        holes = [one for one in domain if one not in skip]
        request = Request(goal=Latest(), start=start, skip=tuple(skip))
        with pytest.raises(RecoveryError, match=f"is missing {','.join(holes)}, which"):
            make(request, model)
        plan = make(replace(request, holes=tuple(holes)), model)
        assert [real.gtid for real in applied(plan, model)] == holes


@pytest.mark.parametrize("state", ["0-2-5", "0-3-7", "0-1-400"])
def test_a_state_that_is_nowhere_is_refused(state: str) -> None:
    """A number between those that are there proves nothing, and nothing tells where it goes on."""
    model = lived(LIVES["numbers that go back"])
    request = Request(goal=Latest(), start=Start(gtids=MariadbGtidList.parse(state)))
    with pytest.raises(RecoveryError, match="not in the archive"):
        make(request, model)
    with pytest.raises(RecoveryError, match="nothing tells where it continues"):
        make(replace(request, allow_extra_gtids=True), model)
    assert make(Request(goal=Latest(), start=Start()), model).transactions == len(model.truth)


def test_a_place_in_what_a_new_primary_repeats() -> None:
    """The backup is of the new primary: what its binlog has behind the place is applied."""
    model = lived(LIVES["a fail-over"])
    second = model.branches[1]
    for count, (begin, _, real) in enumerate(second.files[0].places()):
        start = Start(position=FilePosition(second.files[0].name, begin), lineage=second.lineage.id)
        plan = make(Request(goal=Latest(), start=start), model)
        assert numbers(applied(plan, model))[0] == real.number
        assert plan.transactions == 3 + 2 - count


def test_a_hole_that_was_filled_is_no_error() -> None:
    """One that is named and is in the target; one that is not in the history is."""
    model = lived(["0-1-1", "1-1-1", "0-1-2", "1-1-2"])
    plan = planned(model, model.truth, holes=("1-1-1",))
    assert plan.pieces == ()
    assert any("1-1-1 already" in warning for warning in plan.warnings)
    for other in ("1-1-9", "3-1-1"):
        with pytest.raises(RecoveryError, match=f"{other} is no hole"):
            planned(model, model.truth, holes=(other,))
    with pytest.raises(RecoveryError, match="1-1-2 is no hole"):
        planned(model, model.truth[:3], holes=("1-1-2",))
