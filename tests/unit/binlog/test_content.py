import random
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.content import (
    CHANGES_MOST,
    STATEMENTS_MOST,
    TEXT_MOST,
    AlterName,
    Change,
    Content,
    ContentReader,
    TwoPhase,
    Xid,
    keeps_tables,
)
from binlog2s3.binlog.scanner import EventType, FormatEvent, Scanner
from binlog2s3.binlog.statements import NO_BACKSLASH_ESCAPES, Statement
from tests.binlog_writer import (
    BEGIN,
    COMMIT,
    NOW,
    UUID_A,
    XA_PREPARE,
    XID,
    BinlogWriter,
    packed,
    query_body,
    statement,
)

Event = tuple[int, bytes]

MIB = 1 << 20


def status_of(sql_mode: int, *, charset: int = 255) -> bytes:
    """The status variables of a QUERY event that say how its text is written."""
    return b"\0\0\0\0\0\1" + struct.pack("<QBHHH", sql_mode, 4, charset, 8, 8)


GTID = (UUID_A, "", 5)
STATEMENT_END = 1
LATIN1 = status_of(0, charset=8)


def table_map(number: int, table: str, *, db: str = "shop") -> Event:
    """Of a table with an INT and a LONGBLOB."""
    body = number.to_bytes(6, "little") + b"\1\0"
    for name in (db.encode(), table.encode()):
        body += packed(len(name)) + name + b"\0"
    return EventType.TABLE_MAP, body + b"\2\3\xfc" + b"\1\4" + b"\3"


def rows(
    event_type: int, number: int, count: int, *, value: bytes = b"abc", flags: int = STATEMENT_END
) -> Event:
    """A rows event of such a table."""
    body = number.to_bytes(6, "little") + struct.pack("<HH", flags, 2) + b"\2\3"
    if event_type == EventType.UPDATE_ROWS:
        body += b"\3"
    row = b"\xfc\1\0\0\0" + len(value).to_bytes(4, "little") + value
    return event_type, body + row * count * (2 if event_type == EventType.UPDATE_ROWS else 1)


def inside(events: list[Event]) -> bytes:
    """Events as they lie in a compressed transaction: without checksums."""
    return b"".join(
        struct.pack("<IBIIIH", NOW, kind, 7, 19 + len(body), 0, 0) + body for kind, body in events
    )


def payload(data: bytes, *, compression: int | None = 0) -> Event:
    """A TRANSACTION_PAYLOAD of what was compressed."""
    fields = packed(1) + packed(len(packed(len(data)))) + packed(len(data))
    if compression is not None:
        made = packed(compression)
        fields += packed(2) + packed(len(made)) + made
    return EventType.TRANSACTION_PAYLOAD, fields + b"\0" + data


def compressed(events: list[Event]) -> Event:
    return payload(zstandard.ZstdCompressor().compress(inside(events)))


def bytes_of(
    events: list[Event], *, checksum: bool = True, version: str = "9.7.4"
) -> tuple[FormatEvent, bytes]:
    """A format event, and a transaction as it lies in such a binlog."""
    writer = BinlogWriter(server_version=version, checksum=checksum)
    if writer.is_mariadb:
        writer.mariadb_transaction(events, gtid=(0, 5))
    else:
        writer.transaction(events, gtid=GTID)
    scanner = Scanner()
    scanner.feed(bytes(writer.data))
    assert scanner.format is not None
    begin = writer.transactions[0].begin
    return scanner.format, bytes(writer.data[begin:])


def read(events: list[Event], *, cut: int = 1 << 40, **writer: bool | str) -> Content:
    """What a transaction of these events does."""
    format_event, data = bytes_of(events, **writer)  # type: ignore[arg-type]
    reader = ContentReader(format_event)
    for at in range(0, len(data), cut):
        reader.feed(data[at : at + cut])
    return reader.content()


def changes(content: Content) -> list[tuple[str, str, int | None]]:
    return [(change.kind, change.table, change.rows) for change in content.changes]


WRITE, UPDATE, DELETE = EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS
MIXED: list[Event] = [
    BEGIN,
    (EventType.ROWS_QUERY, b"\x09insert into a select 1"),
    table_map(7, "a"),
    rows(WRITE, 7, 3),
    table_map(8, "a"),
    table_map(9, "b"),
    rows(UPDATE, 8, 2, flags=0),
    rows(UPDATE, 9, 1, value=bytes(150_000)),
    table_map(7, "b"),
    rows(DELETE, 7, 300),
    table_map(7, "a"),
    rows(WRITE, 7, 4),
    statement("INSERT INTO c VALUES (1)"),
    XID,
]
MIXED_CHANGES = [
    ("insert", "shop.a", 7),
    ("update", "shop.a", 2),
    ("update", "shop.b", 1),
    ("delete", "shop.b", 300),
    ("insert", "t.c", None),
]
MIXED_STATEMENTS = ("insert into a select 1", "INSERT INTO c VALUES (1)")


@pytest.mark.parametrize("cut", [1, 18, 999, 70_000, 1 << 30])
@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("checksum", [False, True])
def test_a_transaction_of_everything(checksum: bool, is_compressed: bool, cut: int) -> None:
    """Tables and kinds once each, in order, with sums; however its bytes are cut."""
    events = [compressed(MIXED)] if is_compressed else MIXED
    content = read(events, checksum=checksum, cut=cut)
    assert changes(content) == MIXED_CHANGES
    assert content.statements == MIXED_STATEMENTS
    assert content.compressed is is_compressed


@given(st.lists(st.integers(1, 500_000), max_size=20))
def test_any_cut_makes_no_difference(cuts: list[int]) -> None:
    """Pieces of any sizes."""
    format_event, data = bytes_of(MIXED)
    reader = ContentReader(format_event)
    at = 0
    for cut in cuts:
        reader.feed(memoryview(data)[at : at + cut])
        at += cut
    reader.feed(bytearray(data[at:]))
    assert changes(reader.content()) == MIXED_CHANGES
    assert reader.content().statements == MIXED_STATEMENTS


def test_a_transaction_that_is_not_compressed_in_its_payload() -> None:
    """Compression 255, as the format allows; without a field it is zstd."""
    content = read([payload(inside(MIXED), compression=255)])
    assert (changes(content), content.compressed) == (MIXED_CHANGES, False)
    data = zstandard.ZstdCompressor().compress(inside(MIXED))
    content = read([payload(data, compression=None)])
    assert (changes(content), content.compressed) == (MIXED_CHANGES, True)


def squeezed(data: bytes) -> bytes:
    """As MariaDB compresses rows and texts."""
    return b"\x84" + len(data).to_bytes(4, "big") + zlib.compress(data)


def test_what_mariadb_compresses() -> None:
    """Rows and statements each by themselves; and its annotations."""
    number, present = (7).to_bytes(6, "little") + b"\1\0", b"\2\3"
    row = b"\xfc\1\0\0\0" + (200_000).to_bytes(4, "little")
    value = random.Random(7).randbytes(200_000)  # does not become small
    body = query_body("")[:-1] + b"\0" + squeezed(b"UPDATE a SET x = 1 WHERE y = 2")
    events: list[Event] = [
        (EventType.ANNOTATE_ROWS, b"insert into a select 1"),
        table_map(7, "a"),
        (EventType.WRITE_ROWS_COMPRESSED_V1, number + present + squeezed((row + value) * 3)),
        table_map(7, "a"),
        (EventType.UPDATE_ROWS_COMPRESSED_V1, number + b"\2\3\3" + squeezed((row + value) * 4)),
        (EventType.QUERY_COMPRESSED, body),
        XID,
    ]
    for cut in (1000, 1 << 30):
        content = read(events, version="10.11.18-MariaDB", cut=cut)
        assert changes(content) == [
            ("insert", "shop.a", 3),
            ("update", "shop.a", 2),
            ("update", "t.a", None),
        ]
        assert content.statements == ("insert into a select 1", "UPDATE a SET x = 1 WHERE y = 2")
        assert content.compressed

    assert read(events[:3], version="10.11.18-MariaDB").compressed
    assert read(events[-2:], version="10.11.18-MariaDB").compressed


@pytest.mark.parametrize("at", [100, 200_000])
def test_rows_that_cannot_be_decompressed_spoil_only_their_own_number(at: int) -> None:
    """Wherever in them that shows: what comes behind is read."""
    row = b"\xfc\1\0\0\0" + (500_000).to_bytes(4, "little") + random.Random(7).randbytes(500_000)
    body = bytearray((7).to_bytes(6, "little") + b"\1\0\2\3" + squeezed(row))
    body[at : at + 70_000] = bytes(70_000)  # no block of what is not compressible is longer
    bad = (EventType.WRITE_ROWS_COMPRESSED_V1, bytes(body))
    events = [table_map(7, "a"), bad, table_map(7, "b"), rows(EventType.WRITE_ROWS, 7, 2), XID]
    for cut in (1000, 1 << 30):
        content = read(events, version="10.11.18-MariaDB", cut=cut)
        assert changes(content) == [("insert", "shop.a", None), ("insert", "shop.b", 2)]


def test_ddl_is_one_change_for_each_table() -> None:
    """With its text as it is, and without rows."""
    text = "DROP TABLE a,\n  o.b /* generated by server */"
    content = read([statement(text)])
    assert content == Content(
        changes=(Change(kind="ddl", table="t.a"), Change(kind="ddl", table="o.b")),
        statements=(text,),
    )


def test_how_a_text_is_written_is_in_its_event() -> None:
    """The sql_mode, and the charset: where strings end depends on them."""
    text = "ALTER TABLE a COMMENT 'C:\\', RENAME TO b, COMMENT ''"
    for status, names in (
        (status_of(NO_BACKSLASH_ESCAPES), {"a", "b"}),
        (status_of(0), {"a"}),
        (b"", {"a"}),
    ):
        format_event, data = bytes_of([(EventType.QUERY, query_body(text, status=status))])
        heard: list[Statement] = []
        ContentReader(format_event, on_statement=heard.append).feed(data)
        assert {"a", "b"} & {*heard[0].clear.names()} == names
        assert heard[0].clear.cut == (not status)
    sjis = (
        query_body("", status=status_of(0, charset=13))[:-1] + b"\0" + b"UPDATE a SET x = '\x95\\'"
    )
    format_event, data = bytes_of([(EventType.QUERY, sjis)])
    heard = []
    ContentReader(format_event, on_statement=heard.append).feed(data)
    assert heard[0].clear.text == "UPDATE a SET x = '"
    assert heard[0].tables == ("t.a",)


def test_load_data_is_an_insert() -> None:
    """Its event has more in front of the text than others."""
    plain = query_body("LOAD DATA INFILE 'x' INTO TABLE a")
    body = plain[:13] + bytes(13) + plain[13:]
    content = read([BEGIN, (EventType.EXECUTE_LOAD_QUERY, body), XID])
    assert changes(content) == [("insert", "t.a", None)]
    assert content.statements == ("LOAD DATA INFILE 'x' INTO TABLE a",)


def test_what_frames_a_transaction_is_no_change() -> None:
    """BEGIN, COMMIT, savepoints, XA."""
    names = ("SAVEPOINT a", "XA START X'61',X'',1", "XA END X'61',X'',1")
    assert read([BEGIN, *map(statement, names), XID]) == Content()
    assert read([BEGIN, COMMIT]) == Content()


def test_what_is_rolled_back_is_told() -> None:
    """All of it, or a part."""
    for end in ("ROLLBACK", "ROLLBACK TO a", "rollback to savepoint `a`"):
        assert read([BEGIN, statement(end), XID]) == Content(undone=True)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_the_phases_of_xa_are_told(is_compressed: bool) -> None:
    """By name; a commit in one phase, or behind its own start, is none."""
    begun = statement("XA START X'61',X'',1")
    name = Xid(1, b"x", b"")

    def told(*events: Event) -> Content:
        return read([compressed(list(events))] if is_compressed else list(events))

    assert told(begun, XA_PREPARE).two_phase == TwoPhase("prepare", name)
    assert told(begun, (EventType.XA_PREPARE, b"\1" + XA_PREPARE[1][1:])).two_phase is None
    in_one = begun, (EventType.XA_PREPARE, b"\1" + XA_PREPARE[1][1:])
    assert told(begun, XA_PREPARE, *in_one).two_phase == TwoPhase("prepare", name)
    two = (EventType.XA_PREPARE, b"\0" + struct.pack("<III", 7, 2, 1) + b"abc")
    assert told(begun, two).two_phase == TwoPhase("prepare", Xid(7, b"ab", b"c"))
    assert told(statement("XA COMMIT X'6162',X'63',7")).two_phase == TwoPhase(
        "commit", Xid(7, b"ab", b"c")
    )
    assert told(statement("xa rollback X'78',X'',1")).two_phase == TwoPhase("rollback", name)
    assert told(statement("XA COMMIT 'x'")).two_phase == TwoPhase("commit", None)
    assert told(statement("XA COMMIT X'616',X'63',7")).two_phase == TwoPhase("commit", None)
    assert told(statement("XA COMMIT X'61',X'6',7")).two_phase == TwoPhase("commit", None)
    assert told(begun, statement("XA COMMIT X'61',X'',1")) == replace(
        Content(), compressed=is_compressed
    )
    assert told(begun, statement("XA ROLLBACK X'61',X'',1")).undone
    short = (EventType.XA_PREPARE, b"\0" + struct.pack("<III", 7, 20, 1) + b"abc")
    assert told(begun, short).lost


def test_other_statements_and_incidents_are_told_as_such() -> None:
    """A GRANT defines who may do what; the event that says that something was lost."""
    content = read([statement("GRANT ALL ON a.* TO b")])
    assert changes(content) == [("ddl", "", None)]
    assert content.statements == ("GRANT ALL ON a.* TO b",)
    assert changes(read([statement("ANALYZE TABLE a")])) == [("other", "", None)]
    assert changes(read([(EventType.INCIDENT, b"\1\0\0")])) == [("other", "", None)]


def test_passwords_of_accounts_are_not_told() -> None:
    """Of DDL and account statements; the data of others is what it is."""
    account = "CREATE USER a IDENTIFIED WITH 'sha' AS '$A$005$hash'"
    data = "INSERT INTO a SET password = 'x'"
    assert read([statement(account)]).statements == (
        "CREATE USER a IDENTIFIED WITH '...' AS '...'",
    )
    assert read([BEGIN, statement(data), XID]).statements == (data,)


def test_texts_are_cut_and_decoded_whatever_they_are() -> None:
    """Long ones, many, such as are not UTF-8, and one that is cut within a character."""
    content = read([statement(f"UPDATE a SET x = {n}, y = '{'ä' * 9000}'") for n in range(150)])
    assert len(content.statements) == STATEMENTS_MOST
    assert {len(text) for text in content.statements} == {TEXT_MOST}
    for number, text in enumerate(content.statements):
        assert text.startswith(f"UPDATE a SET x = {number}, y = 'ää")
    assert changes(content) == [("update", "t.a", None)]
    latin = (
        query_body("", status=LATIN1)[:-1] + b"\0" + "CREATE TABLE größe (x INT)".encode("latin-1")
    )
    content = read([(EventType.QUERY, latin)])
    assert changes(content) == [("ddl", "t.größe", None)]
    broken = query_body("")[:-1] + b"\0" + b"DROP TABLE \xff\xfe"
    assert len(read([(EventType.QUERY, broken)]).statements) == 1


def test_status_variables_of_any_size_stand_in_front_of_a_text() -> None:
    """Up to 64 KiB of them."""
    for size in (0, 5, 65_535):
        events: list[Event] = [(EventType.QUERY, query_body("DROP TABLE a", status=bytes(size)))]
        assert changes(read(events, cut=1000)) == [("ddl", "t.a", None)]


def test_more_tables_than_anybody_looks_at_are_one() -> None:
    """Memory has a limit; the sums stay right."""
    events: list[Event] = [BEGIN]
    for number in range(CHANGES_MOST + 50):
        events += [table_map(7, f"a{number}"), rows(WRITE, 7, 2)]
    format_event, data = bytes_of([*events, XID])
    reader = ContentReader(format_event)
    reader.feed(data)
    content = reader.content()
    assert len(reader._seen) <= 1000
    assert len(content.changes) == CHANGES_MOST + 1
    assert content.changes[-1] == Change(kind="insert", table="", rows=100)


def test_a_table_map_counts_for_its_statement_only() -> None:
    """Its number may be another table's afterwards; rows of no table are told without."""
    content = read([BEGIN, table_map(7, "a"), rows(WRITE, 7, 1), rows(WRITE, 7, 1), XID])
    assert changes(content) == [("insert", "shop.a", 1), ("insert", "", None)]


def test_the_event_that_only_ends_a_statement_is_nothing() -> None:
    """It has a table number that no table has, and no rows."""
    for number in (0xFFFFFF, 0xFFFFFFFF):
        assert read([BEGIN, rows(WRITE, number, 0), XID]) == Content()


def without_size(data: bytes) -> bytes:
    """The event in the middle says that it has no bytes."""
    at = data.index(b"insert into a select 1") - 20
    return data[: at + 9] + bytes(4) + data[at + 13 :]


def test_what_cannot_be_read_on_has_no_numbers() -> None:
    """An event without a size, a payload that is none or ends early, an end within an event."""
    format_event, data = bytes_of(MIXED)
    good = inside(MIXED)
    squeezed = zstandard.ZstdCompressor().compress(good)
    begun = zstandard.ZstdCompressor().compressobj()
    few = inside([event for event in MIXED if len(event[1]) < 10_000])
    not_ended = begun.compress(few) + begun.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    cases: list[bytes] = [
        bytes_of([payload(not_ended)])[1],
        without_size(data),
        data[:-1],
        bytes_of([payload(squeezed[:-9])])[1],
        bytes_of([payload(squeezed[:3000] + b"\xff" * 200 + squeezed[3200:])])[1],
        bytes_of([payload(zstandard.ZstdCompressor().compress(good[:-1]))])[1],
        bytes_of([payload(good)])[1],
        bytes_of([payload(good, compression=7)])[1],
        bytes_of([compressed([compressed(MIXED)])])[1],
        bytes_of([(EventType.QUERY, b"\1\2\3")])[1],
        bytes_of([table_map(7, "a"), rows(WRITE, 7, 1), (EventType.TABLE_MAP, b"\1")])[1],
    ]
    for case in cases:
        for cut in (1000, 1 << 30):
            reader = ContentReader(format_event)
            for at in range(0, len(case), cut):
                reader.feed(case[at : at + cut])
            assert all(change.rows is None for change in reader.content().changes)
    assert changes(read([compressed(MIXED)])) == MIXED_CHANGES


def test_rows_that_do_not_end_with_their_event_spoil_only_their_own_number() -> None:
    """The other tables' are right."""
    kind, body = rows(DELETE, 7, 2)
    a, b = table_map(7, "a"), table_map(7, "b")
    content = read([BEGIN, a, rows(DELETE, 7, 2), b, (kind, body[:-1]), b, (kind, body), XID])
    assert changes(content) == [("delete", "shop.a", 2), ("delete", "shop.b", None)]


Break = Callable[[bytearray, random.Random], bytearray]


def flip(data: bytearray, dice: random.Random) -> bytearray:
    for _ in range(dice.choice([1, 3, 50])):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return data


def shorten(data: bytearray, dice: random.Random) -> bytearray:
    begin = dice.randrange(len(data))
    return data[:begin] + data[begin + dice.randrange(1, 400) :]


@pytest.mark.parametrize("damage", [flip, shorten])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_no_bytes_make_it_fail(damage: Break, is_compressed: bool) -> None:
    """It is a look, and a recovery goes on without it."""
    small = [event for event in MIXED if len(event[1]) < 10_000]
    format_event, data = bytes_of([compressed(small)] if is_compressed else small)
    for seed in range(1500):
        dice = random.Random(seed)
        reader = ContentReader(format_event)
        broken = damage(bytearray(data), dice)
        cut = dice.choice([50, 100_000])
        for at in range(0, len(broken), cut):
            reader.feed(broken[at : at + cut])
        assert isinstance(reader.content(), Content)


@pytest.mark.parametrize("is_compressed", [False, True])
def test_memory_does_not_grow_with_the_transaction(is_compressed: bool) -> None:
    """Events of 40 MiB, one row each, and a transaction of several such."""
    large = rows(WRITE, 7, 1, value=bytes(40 * MIB))
    events = [BEGIN, table_map(7, "a"), large, table_map(7, "a"), large, XID]
    format_event, data = bytes_of([compressed(events)] if is_compressed else events)
    reader = ContentReader(format_event)
    tracemalloc.start()
    try:
        for at in range(0, len(data), MIB):
            reader.feed(data[at : at + MIB])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert changes(reader.content()) == [("insert", "shop.a", 2)]
    assert most < 8 * MIB


def fragment(number: int, of: int, data: bytes = b"x") -> Event:
    """One of MariaDB's fragments of a rows event."""
    flags = struct.pack("<BQ", 1, of * len(data)) if number == 1 else b"\0"
    return EventType.PARTIAL_ROW_DATA, struct.pack("<II", of, number) + flags + data


def test_rows_in_several_events() -> None:
    """MariaDB 12.3 splits a rows event that is too large; its tables are known, no more."""
    maps = [table_map(7, "orders"), table_map(8, "stock")]
    content = read([BEGIN, *maps, fragment(1, 2), fragment(2, 2), XID], version=MARIADB_12)
    assert sorted(changes(content)) == [
        ("other", "shop.orders", None),
        ("other", "shop.stock", None),
    ]
    assert not content.lost
    alone = read([BEGIN, fragment(2, 2), XID], version=MARIADB_12)
    assert changes(alone) == [("other", "", None)]


MARIADB_12 = "12.3.1-MariaDB-log"
ALTER = statement("ALTER TABLE a ADD c INT")


def told_of(flags: int, extra: bytes) -> TwoPhase | None:
    """The phase that a GTID event with number 9 of domain 3 announces."""
    body = (struct.pack("<QIB", 9, 3, flags) + extra).ljust(19, b"\0")
    content = read([(EventType.MARIADB_GTID, body), ALTER], version=MARIADB_12)
    assert [one.kind for one in content.changes] == ["ddl"]
    return content.two_phase


def test_the_phases_of_an_alter_are_told() -> None:
    """By the extra flags of the GTID event, wherever they are in it."""
    number = struct.pack("<Q", 5)
    started, ended = AlterName(3, 9), AlterName(3, 5)
    for flags, before in ((1, b""), (3, bytes(8))):
        assert told_of(flags, before + b"\2") == TwoPhase("prepare", started)
        assert told_of(flags, before + b"\4" + number) == TwoPhase("commit", ended)
        assert told_of(flags, before + b"\x08" + number) == TwoPhase("rollback", ended)
        assert told_of(flags, before + b"\5\7" + number) == TwoPhase("commit", ended)  # two engines
        for other in (b"", b"\0", b"\1\2", b"\x10" + bytes(4)):
            assert told_of(flags, before + other) is None


def test_phases_are_told_without_the_rows() -> None:
    """For those who need only them."""
    begun = statement("XA START X'61',X'',1")
    events = [begun, table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 3), XA_PREPARE]
    form, data = bytes_of(events)
    reader = ContentReader(form, only_phases=True)
    reader.feed(data)
    assert reader.two_phase == TwoPhase("prepare", Xid(1, b"x", b""))
    assert reader.content().changes == ()


@pytest.mark.parametrize(
    "text",
    [
        "GRANT SELECT ON shop.* TO 'undo'@'%'",
        "\n revoke ALL ON shop.t FROM u",
        "CREATE USER IF NOT EXISTS shop@localhost",
        "CREATE OR REPLACE ROLE t",
        "ALTER USER t ACCOUNT LOCK",
        "DROP\tUSER t",
        "RENAME USER t TO u",
        "SET PASSWORD FOR t = 'x'",
        "ALTER DATABASE shop CHARACTER SET latin1",
        "alter schema `shop` DEFAULT COLLATE = utf8mb4_bin",
        "ALTER DATABASE COLLATE utf8mb4_bin",
        "CREATE DATABASE IF NOT EXISTS shop",
        "CREATE TABLE  if not exists t (id INT)",
        "CREATE ALGORITHM=UNDEFINED DEFINER=`a b`@`%` SQL SECURITY DEFINER VIEW `v` AS SELECT 1",
        "CREATE OR REPLACE VIEW v AS SELECT * FROM t",
        "CREATE DEFINER=`root`@`localhost` TRIGGER r BEFORE UPDATE ON t FOR EACH ROW SET @a = 1",
        "CREATE DEFINER='root'@localhost PROCEDURE p() ALTER TABLE t ADD b INT",
        "CREATE DEFINER = CURRENT_USER FUNCTION f() RETURNS INT RETURN 1",
        "ALTER EVENT t DISABLE",
        "DROP VIEW IF EXISTS shop.v",
        "CREATE TEMPORARY TABLE t (id INT)",
        "DROP TEMPORARY TABLE IF EXISTS `t` /* generated by server */",
        "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `t`",
    ],
)
def test_definitions_that_change_no_table_that_was_there(text: str) -> None:
    """They may name one, or be beside others of their kind; not beside anything else."""
    ddl = Change(kind="ddl", table="")
    assert keeps_tables(Content(changes=(ddl,), statements=(text,)))
    assert keeps_tables(Content(changes=(ddl,), statements=(text,) * (STATEMENTS_MOST - 1)))
    others = [
        Content(changes=(ddl,), statements=(text,) * STATEMENTS_MOST),  # there may be more
        Content(changes=(ddl,), statements=(text, "ALTER TABLE t ADD b INT")),
        Content(changes=(ddl, Change(kind="update", table="shop.t")), statements=(text,)),
        Content(changes=(ddl,), statements=(text,), lost=True),
        Content(changes=(ddl,)),
    ]
    assert not any(map(keeps_tables, others))


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t ADD user INT",
        "CREATE TABLE user (id INT)",
        "DROP TABLE role",
        "GRANTED",
        "RENAME TABLE user TO t",
        "/* GRANT */ ALTER TABLE t ADD b INT",
        "CREATE USERS",
        "CREATE TABLE t (id INT)",
        "CREATE OR REPLACE TABLE t (id INT)",
        "CREATE TABLE view (id INT)",
        "DROP TABLE trigger",
        "DROP TABLE temporary",
        "DROP /*!40005 TEMPORARYS */ TABLE t",
        "DROP DATABASE IF EXISTS shop",
        "CREATE DATABASE shop",
        "ALTER TABLE t COMMENT 'CREATE VIEW v'",
        "ALTER DATABASE `#mysql50#a-b` UPGRADE DATA DIRECTORY NAME",
        "CREATE DEFINER=`VIEW` TABLE t (id INT)",
    ],
)
def test_other_definitions_may_change_one(text: str) -> None:
    """Whatever they name."""
    assert not keeps_tables(Content(changes=(Change(kind="ddl", table=""),), statements=(text,)))
