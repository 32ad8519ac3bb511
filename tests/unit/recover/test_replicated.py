"""What a MariaDB has replicated (gtid_slave_pos) must lie just before what a run applies."""

from collections.abc import Iterator

import pytest

from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import Latest
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import Base, Own, Plan, Request, Start
from binlog2s3.recover.plan import make
from tests.history_model import HEAD, Model

FIRST, SECOND = BinlogName("mysql-bin", 1), BinlogName("mysql-bin", 2)


class HalfRead(Model):
    """A history whose first binlog has been damaged since."""

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        if name == FIRST:
            raise ArchiveError("damaged")
        return super().transactions(lineage, name, begin, end)


def lived(model: Model, *gtids: str) -> Model:
    """Three transactions of 100 bytes in the first binlog, all others in the second."""
    for number, gtid in enumerate(gtids):
        if number == 3:
            model.rotate()
        model.commit(100, 10, gtid=gtid)
    return model


def two_binlogs() -> Model:
    return lived(Model(flavour="mariadb"), *(f"0-1-{n}" for n in range(1, 7)))


def planned(
    model: Model,
    replicated: str | None,
    base: Base | None = None,
    have: str = "",
    place: FilePosition | None = None,
) -> Plan:
    """By what the target has executed: what the base backup has, if nothing else is said."""
    gtids: Gtids | None = MariadbGtidList.parse(have) if have else base and base.gtids
    state = MariadbGtidList.parse(replicated) if replicated is not None else None
    own = Own("", "RESET MASTER", replicated=state)
    return make(
        Request(goal=Latest(), start=Start(gtids=gtids, position=place, base=base, own=own)), model
    )


def refused(*given: object, **more: object) -> str:
    with pytest.raises(RecoveryError) as caught:
        planned(*given, **more)  # type: ignore[arg-type]
    return str(caught.value)


def backup(gtids: str, *, sets: bool = False) -> Base:
    return Base(gtids=MariadbGtidList.parse(gtids), said_by="tuesday.sql", sets_gtids=sets)


@pytest.mark.parametrize("sets", [False, True])
@pytest.mark.parametrize("have", ["0-1-2", "0-1-3", "0-1-4"])
def test_a_target_that_has_replicated_more_is_refused(have: str, sets: bool) -> None:
    """An earlier run has applied it: with the base backup's GTIDs it would be applied again."""
    model, base = two_binlogs(), backup(have, sets=sets)
    plan = planned(model, have, base)
    assert (plan.transactions, plan.warnings) == (6 - int(have[-1]), ())
    for later in range(int(have[-1]) + 1, 7):
        assert "a second time" in refused(model, f"0-1-{later}", base)


def test_a_target_that_has_replicated_less_is_told() -> None:
    """It may be a copy of a former replica; a dump that sets gtid_slave_pos was not loaded."""
    model = two_binlogs()
    for have, earlier in [("0-1-2", "0-1-1"), ("0-1-5", "0-1-2"), ("0-1-3", "0-1-2")]:
        (warning,) = planned(model, earlier, backup(have)).warnings
        assert earlier in warning
        assert "LEFT OUT" in warning
        said = refused(model, earlier, backup(have, sets=True))
        assert f"loading tuesday.sql sets gtid_slave_pos to {have}, but it is at {earlier}" in said


def test_a_target_that_has_replicated_nothing() -> None:
    """Was not restored from a dump that sets what it has, and from any other it may have been."""
    model = two_binlogs()
    assert "gtid_slave_pos is empty" in refused(model, "", backup("0-1-2", sets=True))
    for base in (backup("0-1-2"), backup("", sets=True), Base(sets_gtids=True), None):
        have = "" if base is not None and base.gtids is not None else "0-1-2"
        assert planned(model, "", base, have).warnings == ()
    assert planned(model, None, backup("0-1-2", sets=True)).warnings == ()


def test_a_place_says_what_comes_before_the_start() -> None:
    """Not the GTIDs: a transaction that ends just there is before it, and the next one is not."""
    model = two_binlogs()
    for name, offset, count in ((FIRST, 200, 2), (SECOND, 0, 3), (SECOND, 100, 4)):
        place = FilePosition(name, HEAD + offset)
        assert planned(model, f"0-1-{count}", None, place=place).transactions == 6 - count
        assert planned(model, f"0-1-{count - 1}", None, place=place).transactions == 6 - count
        assert "a second time" in refused(model, f"0-1-{count + 1}", None, place=place)
        both = {"have": f"0-1-{count + 1}", "place": place}
        assert "a second time" in refused(model, f"0-1-{count + 1}", None, **both)


def test_what_is_not_in_the_history_says_nothing() -> None:
    """The target may have followed another server before."""
    model = two_binlogs()
    for sets in (False, True):
        plan = planned(model, "7-1-9", backup("0-1-2", sets=sets))
        assert (plan.transactions, plan.warnings) == (4, ())


def test_a_gtid_that_was_used_twice_may_be_the_earlier_one() -> None:
    """The place of the base backup has told where it is."""
    model = lived(Model(flavour="mariadb"), "0-1-1", "0-1-2", "0-1-3", "0-1-2", "0-1-4")
    base = Base(gtids=MariadbGtidList.parse("0-1-2"), position=FilePosition(FIRST, HEAD + 200))
    plan = planned(model, "0-1-2", base)
    assert (plan.transactions, plan.warnings) == (3, ())


def test_each_domain_is_looked_at() -> None:
    """One that is as it should be, or cannot be looked at, does not speak for the next one."""
    gtids = ["0-1-1", "0-1-2", "0-1-3", "1-1-1", "1-1-2", "1-1-3", "1-1-4"]
    place = FilePosition(SECOND, HEAD + 100)
    for kind in (Model, HalfRead):
        model = lived(kind(flavour="mariadb"), *gtids)
        warnings = planned(model, "0-1-3,1-1-1", place=place).warnings
        assert [w.split(":")[0] for w in warnings] == (
            ["it is unknown where the target's 0-1-3 is"] if kind is HalfRead else []
        )
        assert "1-1-2" in refused(model, "0-1-3,1-1-2", place=place)
