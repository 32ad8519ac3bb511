"""What of a target is a hole, and what is none. That the order is kept: tests/property."""

from collections.abc import Iterator

import pytest

from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import Latest
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Base, Own, Plan, Request, Start
from binlog2s3.recover.origin import executed_with
from binlog2s3.recover.plan import make
from binlog2s3.recover.reach import reach_of
from tests.history_model import HEAD, Model, Real, having, lived

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class Noted(Model):
    """It knows which binlogs were read."""

    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        self.read.add(str(name))
        return super().transactions(lineage, name, begin, end)


def planned(model: Model, have: list[Real], **more: object) -> Plan:
    request = Request(goal=Latest(), start=Start(gtids=having(have)), **more)  # type: ignore[arg-type]
    return make(request, model)


def test_a_hole_of_whole_binlogs_is_named_from_their_entries() -> None:
    """Binlogs that the target has nothing of are not read for it."""
    model = lived("2 | 3 | 3 | 2", Noted)
    have = [*model.truth[:2], *model.truth[8:]]
    with pytest.raises(RecoveryError, match="has a hole") as caught:
        planned(model, have)
    assert str(having(model.truth[2:8])) in str(caught.value)
    assert not {"mysql-bin.000002", "mysql-bin.000003"} & model.read


def test_what_an_interrupted_fill_has_done_is_no_error() -> None:
    """The same --allow-holes again, when one of two is filled, or both."""
    model = lived("2 | 3")
    names = tuple(str(real.gtid) for real in model.truth[1:3])
    have = [model.truth[0], model.truth[2], model.truth[3]]
    plan = planned(model, have, holes=names)
    assert plan.holes == names[0]
    assert any(names[1] in warning for warning in plan.warnings)
    assert planned(model, model.truth, holes=names).pieces == ()


def test_a_damaged_transaction_that_was_left_out_is_no_hole() -> None:
    """--allow-gap left it out, and leaves it out again: nothing comes too late."""
    model = lived("4")
    model.open.damaged = ((HEAD + 110, HEAD + 120),)
    have = [model.truth[0], model.truth[2]]
    plan = planned(model, have, allow_gap=True)
    assert plan.adds == having(model.truth[3:])


def test_a_hole_before_a_fail_over_is_filled_once() -> None:
    """Both servers have the transaction in their binlogs."""
    model = lived("4 fail_over:0,3 1")
    hole = model.truth[2]
    have = [real for real in model.truth if real is not hole]
    with pytest.raises(RecoveryError, match="has a hole"):
        planned(model, have)
    plan = planned(model, have, holes=(str(hole.gtid),))
    assert (plan.transactions, plan.adds) == (1, having([hole]))


def test_all_holes_of_a_binlog_are_named() -> None:
    """Not only those before the first transaction that the target has."""
    model = lived("5")
    have = [model.truth[1], model.truth[3]]
    missing = f"it has {model.truth[1].gtid}, and is missing "
    with pytest.raises(RecoveryError, match="has a hole") as caught:
        planned(model, have)
    assert f"{missing}{having([model.truth[0], model.truth[2]])}, which" in str(caught.value)
    first, second = str(model.truth[0].gtid), str(model.truth[2].gtid)
    with pytest.raises(RecoveryError, match=f"is missing {second}, which"):
        planned(model, have, holes=(first,))
    assert planned(model, have, holes=(first, second)).transactions == 3


def test_a_hole_behind_what_two_servers_have_is_found() -> None:
    """The new primary has it behind transactions that it repeats."""
    model = lived("4 fail_over:0,3 3")
    for later in (4, 5):
        have = [*model.truth[:3], model.truth[later]]
        with pytest.raises(RecoveryError, match="has a hole") as caught:
            planned(model, have)
        assert f"is missing {having(model.truth[3:later])}, which" in str(caught.value)


def test_a_hole_behind_a_place_is_found() -> None:
    """The first transaction of the next binlog is there, and those between are not."""
    model = lived("4 | 3")
    have = [model.truth[0], model.truth[4]]
    start = Start(gtids=having(have), position=FilePosition(BinlogName("mysql-bin", 1), HEAD + 100))
    with pytest.raises(RecoveryError, match="has a hole") as caught:
        make(Request(goal=Latest(), start=start), model)
    assert f"is missing {having(model.truth[1:4])}, which" in str(caught.value)


def test_a_backup_with_a_hole_can_be_registered() -> None:
    """It reaches the newest place, and what `pitr` needs for that is said."""
    model = lived("3 | 2")
    reach = reach_of(Start(gtids=having([model.truth[0], model.truth[2]])), model)
    assert reach.is_complete
    assert f"`pitr` needs --allow-holes {model.truth[1].gtid}" in reach.hint


@pytest.mark.parametrize(
    ("have", "base", "found"),
    [
        ("", f"{UUID}:1-9", f"{UUID}:1-9"),
        (f"{UUID}:10-12", f"{UUID}:1-9", f"{UUID}:1-12"),
        (f"{UUID}:1-12", f"{UUID}:1-9", f"{UUID}:1-12"),
        (f"{OTHER}:1", f"{UUID}:1-9", f"{UUID}:1-9,{OTHER}:1"),
    ],
)
def test_the_backup_says_what_a_target_without_any_of_it_has(
    have: str, base: str, found: str
) -> None:
    """It has all of the backup's GTIDs, or none of them: then they are added."""
    said = Base(gtids=GtidSet.parse(base))
    assert executed_with(GtidSet.parse(have), said, "RESET") == GtidSet.parse(found)


def test_a_backup_that_the_target_has_a_part_of_was_not_restored() -> None:
    """What is missing and what is there besides is said, and how to tell the server the rest."""
    said = Base(gtids=GtidSet.parse(f"{UUID}:1-9"), said_by="tuesday")
    with pytest.raises(RecoveryError) as caught:
        executed_with(GtidSet.parse(f"{UUID}:1-4:11"), said, "RESET MASTER")
    assert f"tuesday has {UUID}:5-9, the target has only {UUID}:1-4 of it" in str(caught.value)
    assert f"and has {UUID}:11 besides" in str(caught.value)
    assert "RESET MASTER; SET GLOBAL gtid_purged" in caught.value.hint


def test_a_target_with_nothing_of_a_backup_that_sets_its_gtids_was_not_restored_from_it() -> None:
    """A dump that sets none may have been loaded, and what it has is added then."""
    said = Base(gtids=GtidSet.parse(f"{UUID}:1-9"), said_by="tuesday", sets_gtids=True)
    for have in ("", f"{OTHER}:1"):
        with pytest.raises(RecoveryError, match="tuesday sets its GTIDs"):
            executed_with(GtidSet.parse(have), said, "RESET")
    with pytest.raises(RecoveryError, match=f"tuesday has {UUID}:5-9, the target has only"):
        executed_with(GtidSet.parse(f"{UUID}:1-4"), said, "RESET")
    for everything in (f"{UUID}:1-9", f"{UUID}:1-12,{OTHER}:1"):
        have = GtidSet.parse(everything)
        assert executed_with(have, said, "RESET") == have


@pytest.mark.parametrize("said", [GtidSet.parse(f"{UUID}:1-9"), MariadbGtidList.parse("0-1-9")])
def test_one_of_both_is_enough(said: Gtids) -> None:
    """What the target has if the backup does not say, and the other way round."""
    assert executed_with(said, Base(), "RESET") == said
    assert executed_with(None, Base(gtids=said), "RESET") == said
    assert executed_with(None, Base(), "RESET") is None


def test_mariadbs_gtids_are_joined_and_those_of_another_flavour_are_not() -> None:
    """The plan refuses a target of another flavour than the history."""
    ours, theirs = MariadbGtidList.parse("0-1-4,1-1-2"), MariadbGtidList.parse("0-1-3,2-1-1")
    both = MariadbGtidList.parse("0-1-4,1-1-2,2-1-1")
    assert executed_with(ours, Base(gtids=theirs), "RESET") == both
    other = GtidSet.parse(f"{UUID}:1-9")
    for one, base in ((ours, other), (other, ours)):
        assert executed_with(one, Base(gtids=base, sets_gtids=True), "RESET") == one


def test_a_load_that_was_logged_is_told() -> None:
    """Only GTIDs of the target's own are in addition, and the base backup is named."""
    model = lived("2")
    base, own = Base(gtids=having(model.truth[:1])), Own(UUID, "RESET MASTER")
    hints = []
    for strange in (UUID, OTHER):
        have = having(model.truth[:1]) | GtidSet.parse(f"{strange}:1-5")
        request = Request(goal=Latest(), start=Start(gtids=have, base=base, own=own))
        with pytest.raises(RecoveryError, match="not in the archive") as caught:
            make(request, model)
        hints.append("run RESET MASTER there" in caught.value.hint)
    assert hints == [True, False]
