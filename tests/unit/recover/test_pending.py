"""What a goal cuts in two is named: with the plan, and by the target."""

import struct
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest

from binlog2s3.binlog.content import AlterName, TwoPhase, Xid
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import SourceError
from binlog2s3.recover.extract import stream_of, walked
from binlog2s3.recover.model import Plan, Shown
from binlog2s3.recover.pending import LOOKED_BACK, Pending, PreparedBefore, pending_at, piece_before
from binlog2s3.recover.target import prepared
from lab import pitr_examples
from tests.binlog_writer import BEGIN, NOW_US, UUID_A, XID, BinlogWriter, statement
from tests.documents import ID, LINEAGE
from tests.snapshots import MARIADB, Bucket
from tests.unit.binlog.test_content import rows, table_map
from tests.unit.inspect.find.test_scan import name
from tests.unit.recover.fake_server import FakeServer, fake

ROW = [table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1)]


def prepare(who: str) -> list[tuple[int, bytes]]:
    """A transaction that prepares the one of this name."""
    end = (EventType.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + who.encode())
    return [statement(f"XA START X'{who.encode().hex()}',X'',1"), *ROW, end]


def ends(word: str, who: str) -> list[tuple[int, bytes]]:
    return [statement(f"XA {word} X'{who.encode().hex()}',X'',1")]


def history(*transactions: Sequence[tuple[int, bytes]], padding: int = 0) -> tuple[Bucket, Any]:
    """A binlog of these transactions, with so many bytes of a row behind the first one."""
    bucket = Bucket(replace(LINEAGE, gtid_set="", parent=None, first_binlog=name(1)))
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(""))
    wide = [table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1, value=b"x" * padding)]
    both = [*transactions[:1], *([[BEGIN, *wide, XID]] if padding else []), *transactions[1:]]
    for number, events in enumerate(both, start=1):
        made.transaction(list(events), gtid=(UUID_A, "", number), commit_us=NOW_US)
    made.rotate("mysql-bin.000002")
    bucket.archive(made.data, name=name(1))
    return bucket, made


def plan_of(
    made: Any, end: int, *, lineage: str = ID, left_out: Sequence[Transaction] = ()
) -> Plan:
    """All up to the end of the transaction with this number, without these."""
    piece = replace(
        pitr_examples.PLAN.pieces[0],
        lineage=lineage,
        binlog=name(1),
        begin=4,
        end=made.transactions[end - 1].end,
        left_out=tuple((one.begin, one.end) for one in left_out),
    )
    return replace(pitr_examples.PLAN, pieces=(piece,))


def found(bucket: Bucket, plan: Plan, **more: int) -> list[Shown]:
    snapshot = bucket.snapshot()
    return list(pending_at(plan, snapshot, **more).shown)


def found_behind(bucket: Bucket, plan: Plan, *, most: int = LOOKED_BACK) -> Pending:
    """Also with what was prepared before the plan."""
    snapshot = bucket.snapshot()
    return pending_at(plan, snapshot, before=piece_before(plan, most=most), most=most)


def behind(plan: Plan, made: Any, number: int, *, left_out: Sequence[int] = ()) -> Plan:
    """The plan from behind the transaction with this number, without these others."""
    (piece,) = plan.pieces
    piece = replace(
        piece,
        begin=made.transactions[number - 1].end,
        left_out=tuple(
            (one.begin, one.end) for one in (made.transactions[other - 1] for other in left_out)
        ),
    )
    gone = {number, *left_out}
    numbers = [one for one in range(number, len(made.transactions) + 1) if one not in gone]
    gtids = GtidSet.parse(f"{UUID_A}:" + ":".join(map(str, numbers))) if numbers else GtidSet()
    return replace(plan, pieces=(replace(piece, transactions=len(numbers), gtids=gtids),))


def names(shown: Sequence[Shown]) -> list[str]:
    return [str(one.content.two_phase.name) for one in shown if one.content.two_phase is not None]


A, B = "X'61',X'',1", "X'62',X'',1"


@pytest.mark.parametrize(("end", "expected"), [(1, [A]), (2, [A, B]), (3, [B]), (4, []), (5, [A])])
def test_xa_transactions_that_a_goal_cuts(end: int, expected: list[str]) -> None:
    """Those that were prepared, and neither committed nor rolled back by then; by their names."""
    bucket, made = history(
        prepare("a"), prepare("b"), ends("COMMIT", "a"), ends("ROLLBACK", "b"), prepare("a")
    )
    shown = found(bucket, plan_of(made, end))
    assert names(shown) == expected
    assert [one.transaction for one in shown][:1] == [
        made.transactions[{1: 0, 2: 0, 3: 1, 5: 4}[end]] for _ in expected[:1]
    ]


def test_one_that_is_left_out_is_not_pending() -> None:
    """It does not reach the target."""
    bucket, made = history(prepare("a"), prepare("b"))
    left_out = [made.transactions[0]]
    assert names(found(bucket, plan_of(made, 2, left_out=left_out))) == [B]


def lost(watcher: PreparedBefore, pending: Sequence[Shown], there: Collection[str] | None) -> str:
    """What it doubts, in one text."""
    return "; ".join(watcher.doubts(pending, there))


def test_one_that_was_prepared_while_a_dump_was_made() -> None:
    """Its GTID is in the dump, its rows are not: a target that has it not prepared lacks them."""
    bucket, made = history(prepare("a"), ends("COMMIT", "b"), prepare("b"))
    whole = plan_of(made, 3)
    (piece,) = whole.pieces
    for since, pieces in ((1, 1), (3, 0)):
        begin = made.transactions[since - 1].end
        plan = replace(whole, pieces=(replace(piece, begin=begin),) * pieces)
        if not pieces:
            stop = replace(whole.stop, lineage=ID, binlog=name(1), offset=begin)
            plan = replace(plan, stop=stop)
        pending = found_behind(bucket, plan)
        assert names(pending.shown) == [A, B]
        assert [str(one) for one in pending.before] == ([A, B] if not pieces else [A])
        prepared_before = PreparedBefore(pending.before)
        assert lost(prepared_before, pending.shown, (A, B)) == ""
        assert f"had prepared XA {A}, and the target" in lost(prepared_before, pending.shown, (B,))


@pytest.mark.parametrize("there", [(), None])
def test_what_cannot_be_read_before_a_plan(there: tuple[str, ...] | None) -> None:
    """What was prepared there may be missing in the target, whatever it tells."""
    assert "a block is damaged" in lost(PreparedBefore(unread="a block is damaged"), (), there)
    assert lost(PreparedBefore(), (), there) == ""


def test_a_target_that_does_not_tell_what_is_prepared() -> None:
    """Only what was prepared before the plan may be lost: the rest it got from the plan."""
    bucket, made = history(prepare("a"), prepare("b"))
    whole = plan_of(made, 2)
    pending = found_behind(bucket, behind(whole, made, 1))
    assert names(pending.shown) == [A, B]
    doubt = lost(PreparedBefore(pending.before), pending.shown, None)
    assert f"had prepared XA {A} before" in doubt
    assert "XA_RECOVER_ADMIN" in doubt
    pending = found_behind(bucket, whole)
    assert names(pending.shown) == [A, B]
    assert lost(PreparedBefore(pending.before), pending.shown, None) == ""


MIB = 1 << 20


@pytest.mark.parametrize("there", [None, ()])
def test_a_long_plan_does_not_hide_what_was_prepared_before(there: tuple[str, ...] | None) -> None:
    """What comes before the plan has as many bytes as the plan; what ends in it is seen to pass."""
    bucket, made = history(prepare("a"), ends("COMMIT", "c"), prepare("b"), padding=2 * MIB)
    plan = behind(plan_of(made, 4), made, 1)
    pending = found_behind(bucket, plan, most=MIB)
    assert names(pending.shown) == [B], "whether a ends in the plan is not known before"
    assert not pending.is_all
    assert [str(one) for one in pending.before] == [A]
    prepared_before = PreparedBefore(pending.before)
    passed(bucket, plan, prepared_before)
    assert A in lost(prepared_before, pending.shown, there)


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
def test_what_ends_in_a_long_plan(how: str) -> None:
    """The target has its rows, or needs none: where it was lost, its XA COMMIT stops the apply."""
    bucket, made = history(prepare("a"), ends(how, "a"), [BEGIN, *wide(2 * MIB), XID], padding=0)
    plan = behind(plan_of(made, 3), made, 1)
    pending = found_behind(bucket, plan, most=MIB)
    assert [str(one) for one in pending.before] == [A], "it is before what is looked at"
    prepared_before = PreparedBefore(pending.before)
    passed(bucket, plan, prepared_before)
    assert lost(prepared_before, pending.shown, None) == ""
    # without its end it stays prepared
    left_out = behind(plan_of(made, 3), made, 1, left_out=[2])
    pending = found_behind(bucket, left_out, most=MIB)
    prepared_before = PreparedBefore(pending.before)
    passed(bucket, left_out, prepared_before)
    assert A in lost(prepared_before, pending.shown, None)


def test_what_ends_in_a_plan_that_is_looked_at() -> None:
    """Nothing is in doubt, and nothing has to be seen to pass."""
    bucket, made = history(prepare("a"), ends("COMMIT", "a"), prepare("b"), ends("COMMIT", "b"))
    pending = found_behind(bucket, behind(plan_of(made, 4), made, 1))
    assert pending == Pending(shown=(), is_all=True, before=())
    left_out = behind(plan_of(made, 4), made, 1, left_out=[2])
    assert [str(one) for one in found_behind(bucket, left_out).before] == [A]


def test_one_that_is_prepared_anew() -> None:
    """The first one of that name has ended in the plan."""
    bucket, made = history(
        prepare("a"), ends("COMMIT", "a"), [BEGIN, *wide(2 * MIB), XID], prepare("a")
    )
    pending = found_behind(bucket, behind(plan_of(made, 4), made, 1), most=MIB)
    assert names(pending.shown) == [A]
    assert pending.before == ()


def test_more_than_are_shown_are_known_by_name() -> None:
    """Each of those that were prepared before."""
    many = "abcdefghijklmnopqrstuvwxy"
    bucket, made = history(*(prepare(one) for one in many))
    plan = replace(plan_of(made, 25), pieces=())
    end = made.transactions[24].end
    plan = replace(plan, stop=replace(plan.stop, lineage=ID, binlog=name(1), offset=end))
    pending = found_behind(bucket, plan)
    assert (len(pending.shown), len(pending.before)) == (20, 25)
    assert not pending.is_all


def wide(size: int) -> list[tuple[int, bytes]]:
    return [table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1, value=b"x" * size)]


def passed(bucket: Bucket, plan: Plan, seen_by: PreparedBefore) -> None:
    """All bytes of the plan pass, as they do when it is applied."""
    opened = partial(stream_of, bucket.snapshot())
    for _, data in walked(opened, [seen_by])(plan.pieces):
        for _ in data:
            pass


def test_so_many_bytes_before_the_goal_are_looked_at() -> None:
    """Over blocks. That there may be older ones is told, if there are any at all."""
    bucket, made = history(prepare("a"), prepare("b"), padding=9 << 20)
    assert names(found(bucket, plan_of(made, 3))) == [A, B]
    assert names(found(bucket, plan_of(made, 3), most=1 << 20)) == [B]
    snapshot = bucket.snapshot()

    def is_all(end: int, most: int) -> bool:
        return pending_at(plan_of(made, end), snapshot, most=most).is_all

    assert is_all(3, LOOKED_BACK)
    assert not is_all(3, 1 << 20)
    assert is_all(2, 1 << 20), "nothing in the bytes that were looked at has two phases"


def test_an_alter_that_has_only_begun() -> None:
    """MariaDB's in two phases."""
    bucket = Bucket(replace(MARIADB, gtid_set="", parent=None, first_binlog=name(1)))
    made = BinlogWriter(server_version="10.11.8-MariaDB")
    made.gtid_list(MariadbGtidList({}))
    for number, extra in ((5, b"\2"), (6, b""), (7, b"\4" + struct.pack("<Q", 5))):
        alter = [statement("ALTER TABLE a ADD b INT")]
        made.mariadb_transaction(alter, gtid=(0, number), standalone=True, extra=extra)
    made.rotate("mysql-bin.000002")
    bucket.archive(made.data, name=name(1))
    for end, expected in ((1, 1), (2, 1), (3, 0)):
        shown = found(bucket, plan_of(made, end, lineage=MARIADB.id))
        assert [one.content.two_phase for one in shown] == [
            TwoPhase("prepare", AlterName(0, 5))
        ] * expected


@pytest.mark.parametrize("data", ["0x6162", "ab", b"ab"])
def test_the_target_names_what_is_prepared(data: object) -> None:
    """In hexadecimal: names may have any bytes. MySQL is asked for it in that form."""
    row = {"formatID": 7, "gtrid_length": 1, "bqual_length": 1, "data": data}
    server = FakeServer({"XA RECOVER": [row]})
    assert prepared(cast("Any", server), "mysql") == (str(Xid(7, b"a", b"b")),)
    assert prepared(cast("Any", server), "mariadb") == ("X'61',X'62',7",)
    assert server.asked == ["XA RECOVER CONVERT XID", "XA RECOVER"]
    assert prepared(fake({}), "mysql") == ()


def test_a_target_that_does_not_tell() -> None:
    """MySQL 8 wants a privilege for it."""
    refusing = fake({"XA RECOVER": SourceError("XAER_RMERR", answered=True)})
    assert prepared(refusing, "mysql") is None
