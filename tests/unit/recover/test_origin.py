"""Of which of two histories a base backup is, and that nobody guesses."""

from dataclasses import replace

import pytest

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.goal import Latest, ToPosition, ToTime
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Base, Plan, Request, Start
from binlog2s3.recover.origin import lineages_of, refuse_other_position
from binlog2s3.recover.plan import make
from binlog2s3.server.omissions import came_in
from tests.history_model import HEAD, Model, having, lived

FIRST = BinlogName("mysql-bin", 1)
TWO = "two different histories"


def after_a_reset(old: int = 4, new: int = 6, *, size: int = 100, flavour: str = "mysql") -> Model:
    """So many transactions of 100 bytes, and so many of this size that have their GTIDs again."""
    model = Model(flavour="mariadb" if flavour == "mariadb" else "mysql")
    for _ in range(old):
        model.commit(100, 10)
    model.reset()
    for _ in range(new):
        model.commit(size, 10)
    return model


def ids(model: Model) -> list[str]:
    return [branch.lineage.id for branch in model.branches]


def backup(count: int, model: Model, branch: int, *, behind: int | None = None) -> Base:
    """A dump of a branch that has so many of its transactions; its place may lie elsewhere."""
    file = model.branches[branch].files[0]
    gtids = having(file.reals[:count])
    sizes = [real.size for real in file.reals]
    return Base(gtids=gtids, position=FilePosition(file.name, HEAD + sum(sizes[: behind or count])))


def plan_of(model: Model, base: Base | None, have: GtidSet | None = None, **more: object) -> Plan:
    named = more.pop("from_lineage", None)
    gtids = have if have is not None or base is None else base.gtids
    start = Start(gtids=gtids, base=base, lineage=str(named) if named else None)
    goal = more.pop("goal", Latest())
    return make(Request(goal=goal, start=start, **more), model)  # type: ignore[arg-type]


def refused(model: Model, base: Base | None, have: GtidSet | None = None, **more: object) -> str:
    """Message and hint."""
    with pytest.raises(RecoveryError) as caught:
        plan_of(model, base, have, **more)
    return f"{caught.value}\n{caught.value.hint}"


def test_file_position_and_gtids_together_tell() -> None:
    """The backup from behind the RESET works, the one before it by the lineage that is named."""
    model = after_a_reset(size=70)
    old, new = ids(model)
    assert plan_of(model, backup(2, model, 1)).transactions == 4
    assert plan_of(model, backup(2, model, 1), lineage=new).transactions == 4
    before = backup(2, model, 0)
    said = refused(model, before)
    assert f"is of {old}, which is no part of the history that ends in {new}" in said
    assert f"--lineage {old} " in said
    plan = plan_of(model, before, lineage=old)
    assert (plan.transactions, plan.lineage) == (2, old)
    for chosen in ({}, {"lineage": old}, {"lineage": new}):
        refused(model, before, from_lineage=new, **chosen)
    refused(model, before, lineage=new)


def test_it_tells_as_well_when_the_target_went_on() -> None:
    """The same command again, behind a run that was cut off."""
    model = after_a_reset(size=70)
    old, _ = ids(model)
    have = having(model.branches[0].files[0].reals[:3])
    assert plan_of(model, backup(2, model, 1), have).transactions == 3
    assert plan_of(model, backup(2, model, 0), have, lineage=old).transactions == 1


def test_what_is_equal_in_both_is_not_guessed() -> None:
    """Both have these GTIDs at this place: only the options tell."""
    model = after_a_reset()
    old, new = ids(model)
    base = backup(2, model, 0)
    said = refused(model, base)
    assert TWO in said
    assert f"--from-lineage {new} (" in said
    assert f"--lineage {old} --from-lineage {old} (" in said
    assert plan_of(model, base, from_lineage=new).transactions == 4
    assert plan_of(model, base, lineage=old, from_lineage=old).transactions == 2
    assert f"--lineage {old} " in refused(model, base, from_lineage=old)
    plan = plan_of(model, base, lineage=old)
    assert plan.transactions == 2
    assert any("because of --lineage" in warning for warning in plan.warnings)


def test_gtids_that_are_not_those_of_the_place_prove_nothing() -> None:
    """A dump of a replica, or of a server that wrote on: its place is not one of this server's."""
    model = after_a_reset(size=70)
    old, new = ids(model)
    base = backup(2, model, 1, behind=3)
    for chosen in ({}, {"lineage": old}, {"lineage": new}):
        assert TWO in refused(model, base, **chosen)
    assert plan_of(model, base, from_lineage=new).transactions == 4


def test_what_came_with_a_dump_is_at_no_place() -> None:
    """A server that was restored has GTIDs that none of its binlogs has: no contradiction."""
    other = "5d8d3c9e-0000-0000-0000-00000000000a"
    model = after_a_reset(size=70)
    _, new = ids(model)
    branch, plain = model.branches[1], backup(2, model, 1)
    branch.lineage = replace(branch.lineage, gtids_outside=f"{other}:1-9")
    assert isinstance(plain.gtids, GtidSet)
    for theirs in ("1-9", "1-5"):
        base = replace(plain, gtids=plain.gtids | GtidSet.parse(f"{other}:{theirs}"))
        assert lineages_of(base, model) == {new}
        refuse_other_position(base, model)
    base = replace(plain, gtids=plain.gtids | GtidSet.parse(f"{other}:1-10"))
    branch.files[0].leaves_out = (came_in(GtidSet.parse(f"{other}:10")),)
    assert lineages_of(base, model) == {new}
    branch.files[0].leaves_out, model.left_out = None, (came_in(GtidSet.parse(f"{other}:10")),)
    assert lineages_of(base, model) == {new}  # it is open: the writer has said it
    model.left_out = ()
    assert not lineages_of(base, model)
    with pytest.raises(RecoveryError, match=f"it claims also {other}:10$"):
        refuse_other_position(base, model)


def test_what_the_target_alone_tells_is_not_settled_by_the_history_that_is_followed() -> None:
    """It may have been brought along the other one before; what is said of its backup counts."""
    model = after_a_reset(size=70)
    old, new = ids(model)
    have = having(model.branches[0].files[0].reals[:2])
    for chosen in (old, new):
        assert TWO in refused(model, None, have, lineage=chosen)
        assert plan_of(model, None, have, lineage=chosen, from_lineage=chosen).pieces
        assert plan_of(model, Base(gtids=have), lineage=chosen).pieces


def test_the_beginning_of_a_binlog_proves_nothing() -> None:
    """A dump that was made behind FLUSH BINARY LOGS has what came before a binlog, in either."""
    model = lived("1 1 1 1")
    old = model.truth[:2]
    model.reset()
    for _ in range(2):
        model.commit(70, 10)
    model.rotate()
    for _ in range(3):
        model.commit(70, 10)
    assert TWO in refused(model, None, having(old))


def test_a_lineage_that_is_still_written_may_have_more_of_them() -> None:
    """A dump of what is not in the bucket yet is not taken for one of the old history."""
    model = after_a_reset(old=5, new=3, size=70)
    old, new = ids(model)
    have = having(model.branches[0].files[0].reals[:4])
    assert TWO in refused(model, None, have, lineage=old)
    said = refused(model, None, have)
    assert "dead branch" in said
    assert "does not have all of its GTIDs yet" in said
    assert TWO in refused(
        model, Base(gtids=have, position=FilePosition(FIRST, HEAD + 280)), lineage=old
    )
    assert plan_of(model, backup(4, model, 0), lineage=old).transactions == 1
    assert f"no part of the history that ends in {old}" in refused(
        model, None, have, lineage=old, from_lineage=new
    )


def test_a_backup_that_two_branches_go_on_from_does_not_tell_of_what_came_since() -> None:
    """The server was put back, and the target was brought along what it had before."""
    model = lived("1 1 1 1 1")
    dead = model.truth[:]
    model.put_back(2)
    for _ in range(4):
        model.commit(70, 10)
    first, second = ids(model)
    common, lost = backup(2, model, 0), having(dead[:4])
    assert plan_of(model, common).transactions == 5
    said = refused(model, common, lost, lineage=second)
    assert TWO in said
    assert "restore the base backup again" in said
    assert "a dead branch" in refused(model, backup(4, model, 0))
    assert plan_of(model, backup(4, model, 0), lineage=first).transactions == 1
    assert plan_of(model, backup(4, model, 1)).transactions == 3
    assert plan_of(model, None, lost, from_lineage=second).transactions == 3
    assert plan_of(model, None, lost, lineage=first, from_lineage=first).transactions == 1
    assert "a dead branch" in refused(model, None, lost, from_lineage=first)


def test_mariadbs_last_numbers_tell_with_their_place() -> None:
    """A dump has of each domain only the last GTID."""
    model = after_a_reset(size=70, flavour="mariadb")
    old, _ = ids(model)
    have = MariadbGtidList.parse("0-1-2")
    late, early = (
        Base(gtids=have, position=FilePosition(FIRST, HEAD + 2 * size)) for size in (70, 100)
    )
    request = Request(goal=Latest(), start=Start(gtids=have, base=late))
    assert make(request, model).transactions == 4
    with pytest.raises(RecoveryError, match=f"is of {old}"):
        make(Request(goal=Latest(), start=Start(gtids=have, base=early)), model)
    request = Request(goal=Latest(), start=Start(gtids=have, base=early), lineage=old)
    assert make(request, model).transactions == 2


def test_a_place_is_only_where_a_transaction_ends() -> None:
    """Of two histories that have these bytes it is the one where nothing is cut in two."""
    model = after_a_reset(size=70)
    old, new = ids(model)
    place = FilePosition(FIRST, HEAD + 2 * 70)
    plan = make(Request(goal=Latest(), start=Start(position=place)), model)
    assert (plan.transactions, plan.lineage) == (4, new)
    with pytest.raises(RecoveryError, match="not part of this history") as caught:
        make(Request(goal=Latest(), start=Start(position=FilePosition(FIRST, HEAD + 200))), model)
    assert f"--lineage {old} " in caught.value.hint


def test_a_place_that_is_in_both_names_the_options() -> None:
    """For the backup, and for the goal."""
    model = after_a_reset()
    old, new = ids(model)
    place = FilePosition(FIRST, HEAD + 200)
    with pytest.raises(RecoveryError, match="several histories") as caught:
        make(Request(goal=Latest(), start=Start(position=place)), model)
    assert f"--from-lineage {new}, or --lineage {old} --from-lineage {old};" in caught.value.hint
    with pytest.raises(RecoveryError, match="several histories") as caught:
        make(Request(goal=ToPosition(place), start=Start()), model)
    assert f"--lineage {new}, or --lineage {old};" in caught.value.hint
    with pytest.raises(RecoveryError, match=f"is of {old}"):
        make(Request(goal=Latest(), start=Start(position=place, lineage=old)), model)


def test_a_lineage_that_is_not_there() -> None:
    """Those that are there are named."""
    model = after_a_reset()
    said = refused(model, None, GtidSet(), from_lineage="nobody's")
    assert "there is no lineage nobody's" in said
    assert all(one in said for one in ids(model))


def test_a_time_before_this_history_names_the_lineage_that_has_it() -> None:
    """Behind a RESET that is the one before; before all there is none."""
    model = after_a_reset()
    old, _ = ids(model)
    begins = model.branches[1].files[0].first_us
    said = refused(model, None, GtidSet(), goal=ToTime(begins - 5, "then"))
    assert f"lineage {old} has it" in said
    assert f"--lineage {old} " in said
    at = model.branches[0].files[0].reals[1].commit_us
    plan = plan_of(model, None, GtidSet(), goal=ToTime(at, "then"), lineage=old)
    assert plan.transactions == 2
    said = refused(model, None, GtidSet(), goal=ToTime(1, "long ago"))
    assert "before the archive begins" in said
