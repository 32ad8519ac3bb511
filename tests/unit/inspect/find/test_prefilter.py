"""The quick pass lets nothing through that is looked for, however the bytes are cut."""

import random
import zlib

import pytest

from binlog2s3.binlog.content import LOOKED_MOST, ContentReader
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.scanner import EventType, Scanner, Transaction
from binlog2s3.inspect.find.match import Criteria, Matcher, Tables, WantedGtids
from binlog2s3.inspect.find.prefilter import FilterRules, Prefilter, ranges_to_read, rules_for
from tests.binlog_writer import (
    BEGIN,
    COMMIT,
    UUID_A,
    UUID_B,
    XA_PREPARE,
    XID,
    BinlogWriter,
    query_body,
    statement,
)
from tests.unit.binlog.test_content import compressed, rows, table_map

Event = tuple[int, bytes]
KINDS = {
    "insert": EventType.WRITE_ROWS,
    "update": EventType.UPDATE_ROWS,
    "delete": EventType.DELETE_ROWS,
}
V1 = {
    "insert": EventType.WRITE_ROWS_V1,
    "update": EventType.UPDATE_ROWS_V1,
    "delete": EventType.DELETE_ROWS_V1,
}
STATEMENTS = (
    "DROP TABLE `orders`",
    "UPDATE orders SET a = 1",
    "INSERT INTO stock VALUES ('orders')",
    "DELETE FROM stock",
    "INSERT INTO x VALUES (1)",
    "CREATE DATABASE other",
    "ALTER TABLE stock RENAME TO orders",
    "SELECT f()",
    "INSERT INTO orders VALUES (1) ON DUPLICATE KEY UPDATE a = 1",
    "replace orders VALUES (1)",
    "DELETE FROM orders FOR PORTION OF p FROM '1' TO '2'",
    "GRANT ALL ON shop.orders TO me",
    'INSERT INTO "a""b" VALUES (1)',
    "INSERT INTO `c``d` VALUES (1)",
)
WANTED = [
    Criteria(tables=Tables((("shop", "orders"),))),
    Criteria(tables=Tables((("shop", "orders"),)), kinds=frozenset({"delete"})),
    Criteria(tables=Tables((("shop", "orders"),)), kinds=frozenset({"ddl"})),
    Criteria(tables=Tables((("shop", "orders"), ("shop", "stock"))), kinds=frozenset({"insert"})),
    Criteria(tables=Tables((("other", "*"),))),
    Criteria(kinds=frozenset({"ddl"})),
    Criteria(kinds=frozenset({"update", "delete"})),
    Criteria(kinds=frozenset({"update"})),
    Criteria(tables=Tables((("shop", "orders"),)), kinds=frozenset({"drop"})),
    Criteria(min_rows=3),
    Criteria(tables=Tables((("Shop", "Orders"),))),
    Criteria(tables=Tables((("shop", "orders"),)), min_rows=2),
    Criteria(tables=Tables((("shop", 'a"b'),))),
    Criteria(tables=Tables((("shop", "c`d"),))),
]


def row_events(dice: random.Random, *, v1: bool) -> list[Event]:
    """Some statements' rows."""
    found = []
    for number in range(dice.choice([1, 1, 2, 3])):
        db = dice.choice(["shop", "shop", "shop", "other"])
        table = dice.choice(["orders", "orders2", "stock", "x"])
        kind = dice.choice(list(KINDS))
        size = dice.choice([0, 3, 30, 3000])
        found.append(table_map(number + 7, table, db=db))
        event_type, body = rows(
            KINDS[kind], number + 7, dice.choice([1, 2, 5]), value=b"orders" + b"x" * size
        )
        if v1:
            event_type, body = V1[kind], body[:8] + body[10:]
        found.append((event_type, body))
    return found


def mysql(seed: int, *, version: str = "9.7.4", checksum: bool = True) -> BinlogWriter:
    """Transactions of all kinds."""
    dice = random.Random(seed)
    binlog = BinlogWriter(server_version=version, checksum=checksum)
    for number in range(60):
        chosen = dice.randrange(10)
        if chosen < 6:
            events = [BEGIN, *row_events(dice, v1=False), dice.choice([XID, COMMIT, XA_PREPARE])]
        elif chosen < 8:
            events = [statement(dice.choice(STATEMENTS))]
        elif chosen == 8:
            events = [BEGIN, *[statement(dice.choice(STATEMENTS)) for _ in range(2)], XID]
        else:
            inside = row_events(dice, v1=False)
            inside += [statement(dice.choice(STATEMENTS))] if dice.random() < 0.3 else []
            events = [compressed([BEGIN, *inside, XID])]
        events = [(t, body.replace(b"\1t\0", b"\4shop\0")) for t, body in events]
        uuid = dice.choice([UUID_A, UUID_A, UUID_B])
        if version.startswith("5.6"):
            binlog.plain_transaction(events)
        else:
            binlog.transaction(events, gtid=(uuid, "", number + 1))
            if chosen < 6:
                only_rows(binlog, checksum=checksum)
    binlog.rotate()
    return binlog


def only_rows(binlog: BinlogWriter, *, checksum: bool) -> None:
    """Say in the last transaction's GTID event that there are no statements, as servers do."""
    data, begin = binlog.data, binlog.transactions[-1].begin
    end = begin + int.from_bytes(data[begin + 9 : begin + 13], "little") - 4
    data[begin + 19] &= ~1
    if checksum:
        data[end : end + 4] = zlib.crc32(data[begin:end]).to_bytes(4, "little")


def mariadb(seed: int) -> BinlogWriter:
    dice = random.Random(seed)
    binlog = BinlogWriter(server_version="11.4.2-MariaDB-log")
    binlog.gtid_list(MariadbGtidList.parse("0-7-3"))
    for number in range(60):
        gtid = (number % 2, number + 4)
        if dice.random() < 0.7:
            events = [*row_events(dice, v1=True), XID]
            binlog.mariadb_transaction(events, gtid=gtid, deferred=bool(seed % 2))
        else:
            text = dice.choice(STATEMENTS)
            binlog.mariadb_transaction(
                [(EventType.QUERY, query_body(text, db="shop"))], gtid=gtid, standalone=True
            )
    binlog.rotate()
    return binlog


BINLOGS = {
    "mysql": mysql,
    "no checksums": lambda seed: mysql(seed, checksum=False),
    "no gtids": lambda seed: mysql(seed, version="5.6.14-log", checksum=False),
    "mariadb": mariadb,
}


def sifted(
    rules: FilterRules, data: bytes, begin: int, trailer: int, cuts: random.Random
) -> Prefilter:
    """Fed in pieces of any size."""
    prefilter = Prefilter(rules, begin, trailer)
    at = begin
    while at < len(data):
        size = cuts.choice([1, 5, 18, 40, 300, 5000, 1 << 20])
        prefilter.feed(data[at : at + size])
        at += size
    return prefilter


@pytest.mark.parametrize("which", BINLOGS)
@pytest.mark.parametrize("seed", range(4))
def test_nothing_falls_through(which: str, seed: int) -> None:
    """What a close look at every transaction finds lies in the regions that are left."""
    binlog = BINLOGS[which](seed)
    data = bytes(binlog.data)
    scanner = Scanner()
    transactions = scanner.feed(data)
    form, begin = scanner.format, transactions[0].begin
    assert form is not None
    trailer = 4 if form.checksum == "crc32" else 0
    passed = 0
    for wanted in WANTED:
        rules = rules_for(wanted)
        whole = Prefilter(rules, begin, trailer)
        whole.feed(data[begin:])
        assert whole.is_whole
        left = ranges_to_read(whole.starts, whole.found, begin, len(data))
        cut = sifted(rules, data, begin, trailer, random.Random(seed))
        assert cut.starts == whole.starts
        assert cut.is_whole
        more = ranges_to_read(cut.starts, cut.found, begin, len(data))
        for one in transactions:
            matcher = Matcher(wanted)
            reader = ContentReader(form, looked_most=LOOKED_MOST, on_statement=matcher.take)
            reader.feed(data[one.begin : one.end])
            if matcher.match(reader.content()).found:
                assert any(within(one, offsets) for offsets in left), (wanted, one)
                assert any(within(one, region) for region in more), (wanted, one)
            else:
                passed += not any(within(one, offsets) for offsets in left)
    assert passed > 0 or which == "no gtids"  # there all is one region


def within(one: Transaction, offsets: range) -> bool:
    return offsets.start <= one.begin and one.end <= offsets.stop


def test_gtids_are_found_by_their_events() -> None:
    """All transactions but these are passed over; what is cut is left for a closer look."""
    data = bytes(mysql(1).data)
    scanner = Scanner()
    transactions = scanner.feed(data)
    chosen = [transactions[5], transactions[33]]
    named = WantedGtids(tuple(one.gtid for one in chosen if one.gtid), "mysql")
    prefilter = Prefilter(rules_for(Criteria(), named.in_event), transactions[0].begin, 4)
    prefilter.feed(data[transactions[0].begin :])
    left = ranges_to_read(prefilter.starts, prefilter.found, transactions[0].begin, len(data))
    assert left == [range(one.begin, one.end) for one in chosen]


@pytest.mark.parametrize("kind", ["rows", "statement", "compressed"])
def test_a_block_may_end_anywhere(kind: str) -> None:
    """Within a name, a statement or a header: the transaction is found, and its neighbours not."""
    binlog = BinlogWriter()
    meant = {
        "rows": [BEGIN, table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1), XID],
        "statement": [(EventType.QUERY, query_body("DROP TABLE orders", db="shop"))],
        "compressed": [
            compressed([BEGIN, table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1), XID])
        ],
    }
    other = [BEGIN, table_map(7, "stock"), rows(EventType.WRITE_ROWS, 7, 1), XID]
    for number, events in enumerate((other, other, meant[kind], other, other), 1):
        binlog.transaction(events, gtid=(UUID_A, "", number))
        if events is not meant["statement"] and events is not meant["compressed"]:
            only_rows(binlog, checksum=True)
    data, transactions = bytes(binlog.data), binlog.transactions
    begin, one = transactions[0].begin, transactions[2]
    rules = rules_for(WANTED[0])
    for cut in range(one.begin - 10, one.end + 10):
        prefilter = Prefilter(rules, begin, 4)
        prefilter.feed(data[begin:cut])
        prefilter.feed(data[cut:])
        assert prefilter.is_whole
        left = ranges_to_read(prefilter.starts, prefilter.found, begin, len(data))
        assert any(within(one, offsets) for offsets in left), cut
        assert sum(within(each, offsets) for each in transactions for offsets in left) <= 2


def test_neighbours_are_one_range() -> None:
    """One for all that touch; everything, where something comes before the first start."""
    starts = [10, 20, 30, 40]
    assert ranges_to_read(starts, [], 10, 50) == []
    assert ranges_to_read(starts, [12, 15, 25, 49], 10, 50) == [range(10, 30), range(40, 50)]
    assert ranges_to_read(starts, [4, 25], 2, 50) == [range(2, 50)]
    assert ranges_to_read([], [4], 2, 50) == [range(2, 50)]


def test_bytes_that_are_no_events_are_noticed() -> None:
    """Then all of them are to be looked at."""
    prefilter = Prefilter(rules_for(WANTED[0]), 100, 4)
    prefilter.feed(bytes(64))
    assert prefilter.lost
    assert not prefilter.is_whole
