"""Which bytes of a transaction reach mysqlbinlog, and what is read from its text."""

import struct
import zlib
from collections import deque
from collections.abc import Sequence

import pytest

from binlog2s3.binlog.events import HEADER, EventType, decode_format
from binlog2s3.binlog.rows import LINE_MOST, VALUE_MOST, Line, PrintedEvent, RowsBinlog, rows_of
from binlog2s3.binlog.tables import column_names
from tests.binlog_writer import BEGIN, XID, BinlogWriter, packed, statement
from tests.unit.binlog.test_content import bytes_of, compressed, payload, rows, table_map

Event = tuple[int, bytes]
WRITE, UPDATE, DELETE = EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS
FORGED = "### DELETE FROM `t`.`1`\n###   @1=1"
CHANGES: Sequence[Event] = (
    BEGIN,
    (EventType.ROWS_QUERY, b"\x50/*\n" + FORGED.encode() + b"\n*/ INSERT"),
    table_map(7, "a"),
    table_map(8, "b"),
    rows(WRITE, 7, 2, flags=0),
    rows(UPDATE, 8, 1, value=bytes(300_000)),
    statement(FORGED),
    table_map(7, "c"),
    rows(DELETE, 7, 3),
    XID,
)


def taken(
    events: Sequence[Event], *, cut: int = 1 << 40, tables: Sequence[str] = (), **writer: bool | str
) -> tuple[bytes, list[PrintedEvent], RowsBinlog]:
    """What is written, what is announced, and the reader at the end."""
    _, data = bytes_of([*events], **writer)  # type: ignore[arg-type]
    log = BinlogWriter(
        server_version=str(writer.get("version", "9.7.4")),
        checksum=bool(writer.get("checksum", True)),
        in_use=True,
    )
    head = bytes(log.data[4:])
    out, announced = bytearray(), list[PrintedEvent]()
    reader = RowsBinlog(
        decode_format(head, offset=0),
        head,
        wants=lambda _, table: not tables or table in tables,
        on_event=announced.append,
        write=out.extend,
    )
    for at in range(0, len(data), cut):
        reader.feed(data[at : at + cut])
    return bytes(out), announced, reader


def split(data: bytes) -> list[Event]:
    """The events of a binlog without checksums, but for the format event."""
    assert data[:4] == b"\xfebin"
    at, found = 4, []
    while at < len(data):
        _, kind, _, size, _, flags = HEADER.unpack_from(data, at)
        assert size >= HEADER.size
        assert not flags
        event = data[at : at + size]
        if kind == EventType.FORMAT_DESCRIPTION:
            form = decode_format(event, offset=at)
            assert form.checksum == "none"
            assert struct.unpack("<I", event[-4:])[0] == zlib.crc32(event[:-4])
        else:
            found.append((kind, event[HEADER.size :]))
        at += size
    return found


@pytest.mark.parametrize("cut", [1, 1000, 1 << 40])
@pytest.mark.parametrize("how", ["plain", "no checksums", "compressed", "not compressed"])
def test_only_rows_reach_mysqlbinlog(how: str, cut: int) -> None:
    """No statement, no name; each with its table map, and as the end of a statement."""
    events = CHANGES if "compressed" not in how else [compressed([*CHANGES]), XID]
    if cut == 1:
        events = [e for e in CHANGES if len(e[1]) < 1000]
    data, announced, reader = taken(events, cut=cut, checksum=how != "no checksums")
    kinds = [(WRITE, 7, "a", 2), (UPDATE, 8, "b", 1), (DELETE, 7, "c", 3)]
    kinds = [one for one in kinds if cut > 1 or one[0] != UPDATE]
    found = split(data)
    assert reader.is_whole
    assert not reader.left_out
    assert [(e.number, e.table) for e in announced] == [
        (number, f"shop.{table}") for number, (_, _, table, _) in enumerate(kinds, 1)
    ]
    assert all(event.is_full and event.columns == () for event in announced)
    for number, (kind, table_id, _, count) in enumerate(kinds, 1):
        (map_kind, table), (rows_kind, body) = found[2 * number - 2 : 2 * number]
        name = b"%d" % number
        assert map_kind == EventType.TABLE_MAP
        assert table == table_map(table_id, name.decode(), db="t")[1]
        value = bytes(300_000) if kind == UPDATE else b"abc"
        assert (rows_kind, body) == rows(kind, table_id, count, value=value)
    assert len(found) == 2 * len(kinds)


def test_what_mariadb_compressed_stays_compressed() -> None:
    """mariadb-binlog decompresses it; what is decided from the head is the same."""
    kind, body = rows(EventType.WRITE_ROWS_COMPRESSED, 7, 3, flags=0)
    head, data = body[:12], body[12:]
    body = head + b"\x81" + bytes([len(data)]) + zlib.compress(data)
    version = "11.4.2-MariaDB-log"
    written, announced, reader = taken(
        [BEGIN, table_map(7, "a"), (kind, body), XID], version=version
    )
    assert reader.is_whole
    assert [event.table for event in announced] == ["shop.a"]
    assert split(written)[1] == (kind, body[:6] + b"\1" + body[7:])


def test_what_cannot_be_printed_is_counted() -> None:
    """Rows of an unknown table, of MySQL 5.1, fragments; and only of the wanted tables."""
    events = [
        BEGIN,
        rows(WRITE, 9, 1),
        table_map(7, "a"),
        table_map(8, "b"),
        rows(WRITE, 8, 1, flags=0),
        (EventType.PARTIAL_ROW_DATA, bytes(20)),
        (EventType.WRITE_ROWS_V0, rows(WRITE, 7, 1)[1]),
        XID,
    ]
    data, announced, reader = taken(events, tables=["shop.a"])
    assert split(data) == announced == []
    assert sorted(reader.left_out.values()) == [1, 1, 1]


@pytest.mark.parametrize(
    "bad",
    [payload(b"not zstd"), (EventType.TABLE_MAP, b"\1"), (EventType.TRANSACTION_PAYLOAD, b"\2")],
)
def test_what_cannot_be_decoded_is_told(bad: Event) -> None:
    """It raises nothing, and the rest is printed."""
    data, _, reader = taken([BEGIN, bad, table_map(7, "a"), rows(WRITE, 7, 1), XID])
    assert not reader.is_whole
    assert len(split(data)) == 2


def test_a_partial_image_is_told() -> None:
    """With a column that is missing, or a JSON value that may be a difference."""
    kind, body = rows(WRITE, 7, 1)
    missing = body[:11] + b"\2" + b"\xfe" + body[12 + 5 :]
    _, announced, _ = taken([table_map(7, "a"), (kind, missing), XID])
    assert [event.is_full for event in announced] == [False]
    partial = (EventType.PARTIAL_UPDATE_ROWS, rows(UPDATE, 7, 1)[1])
    _, announced, _ = taken([table_map(7, "a"), partial, XID])
    assert [event.is_full for event in announced] == [False]


def named(*names: str, before: bytes = b"\1\1\x80") -> bytes:
    """A table map with binlog_row_metadata = FULL."""
    texts = b"".join(packed(len(n.encode())) + n.encode() for n in names)
    return table_map(7, "a")[1] + before + b"\4" + packed(len(texts)) + texts


def test_names_of_columns() -> None:
    """Those of all columns, or none."""
    assert column_names(named("id", "Wert `ä`\n")) == ("id", "Wert `ä`\n")
    assert column_names(table_map(7, "a")[1]) == ()
    for wrong in (named("id"), named("id", "a", "b"), named("id", "id"), named("id", "b")[:-1]):
        assert column_names(wrong) == ()
    _, announced, _ = taken([(EventType.TABLE_MAP, named("id", "b")), rows(WRITE, 7, 1), XID])
    assert announced[0].columns == ("id", "b")


# The text


def event(number: int, *columns: str, kind: str = "update") -> PrintedEvent:
    return PrintedEvent(
        number=number,
        kind=kind,
        table="shop.a",
        columns=columns,
        images=(1, 2),
        is_full=True,  # type: ignore[arg-type]
    )


def lines_of(*texts: bytes) -> list[Line]:
    return [Line(text + b"\n", b"", len(text) + 1) for text in texts]


TYPE = b" /* VARSTRING(9) meta=9 nullable=1 is_null=0 */"


def test_rows_before_and_after() -> None:
    """With the names of columns, or their numbers; lines of anything else are nothing."""
    text = lines_of(
        b"# at 4",
        b"###   @1=0",
        b"### UPDATE `t`.`2`",
        b"### WHERE",
        b"###   @1=1 /* INT meta=0 nullable=0 is_null=0 */",
        b"### SET",
        b"###   @1=-1 (4294967295) /* INT meta=0 nullable=0 is_null=0 */",
        b"###   @3=NULL /* INT meta=0 nullable=1 is_null=1 */",
        b"### Extra row info for partitioning: partition: 1",
        b"### DELETE FROM `t`.`2`",
        b"### WHERE",
        b"###   @2='a' /* INT */'" + TYPE,
        b"### INSERT INTO `t`.`3`",
        b"### SET",
        b"###   @1='\x1b[31m \xff \xc3\xa4'" + TYPE,
        b"COMMIT/*!*/;",
    )
    events = deque([event(1), event(2, "id", "b"), event(3)])
    found = [*rows_of(text, events)]
    values = [[(v.column, v.text, v.of_size) for v in (*r.before, *r.after)] for r in found]
    assert [row.event.number for row in found] == [2, 2, 3]
    assert values == [
        [("id", "1", 0), ("id", "-1 (4294967295)", 0), ("@3", "NULL", 0)],
        [("b", "'a' /* INT */'", 0)],
        [("@1", "'\x1b[31m \\xff ä'", 0)],
    ]
    assert [len(row.before) for row in found] == [1, 1, 0]
    assert found[1].before[0].type == TYPE.decode()[4:-3]
    assert [one.number for one in events] == [3]


def test_long_values_are_cut() -> None:
    """With the size of the whole; the type stays, also where the line was cut before."""
    size = 10 * LINE_MOST
    short = b"'" + b"x" * VALUE_MOST + b"'"
    long = b"###   @1='" + b"x" * size + b"'" + TYPE + b"\n"
    text = [
        *lines_of(b"### INSERT INTO `t`.`1`", b"### SET", b"###   @2=" + short + TYPE),
        Line(long[:LINE_MOST], long[-LINE_MOST:], len(long)),
    ]
    (row,) = rows_of(text, deque([event(1)]))
    assert [v.of_size for v in row.after] == [VALUE_MOST + 2, size + 2]
    assert {v.text for v in row.after} == {"'" + "x" * (VALUE_MOST - 1)}
    assert {v.type for v in row.after} == {TYPE.decode()[4:-3]}


def test_an_event_that_was_not_given_is_refused() -> None:
    """Nothing is taken for another table's row."""
    with pytest.raises(ValueError, match="no rows event 7"):
        [*rows_of(lines_of(b"### INSERT INTO `t`.`7`"), deque([event(1), event(8)]))]
