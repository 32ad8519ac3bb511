"""What a goal cuts in two is named: with the plan, and by the target."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from binlog2s3.binlog.content import AlterName, TwoPhase, Xid
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import SourceError
from binlog2s3.recover.model import Plan, Shown
from binlog2s3.recover.pending import LOOKED_BACK, lost_preparation, pending_at, with_before
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
    return list(pending_at(plan, snapshot.phases, snapshot.content, **more)[0])


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
        shown = found(bucket, with_before(plan))
        assert names(shown) == [A, B]
        assert lost_preparation(shown, (A, B)) == ""
        assert lost_preparation(shown, None) == ""
        assert f"had prepared XA {A}, and the target" in lost_preparation(shown, (B,))


def test_so_many_bytes_before_the_goal_are_looked_at() -> None:
    """Over blocks. That there may be older ones is told, if there are any at all."""
    bucket, made = history(prepare("a"), prepare("b"), padding=9 << 20)
    assert names(found(bucket, plan_of(made, 3))) == [A, B]
    assert names(found(bucket, plan_of(made, 3), most=1 << 20)) == [B]
    snapshot = bucket.snapshot()

    def is_all(end: int, most: int) -> bool:
        return pending_at(plan_of(made, end), snapshot.phases, snapshot.content, most=most)[1]

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
