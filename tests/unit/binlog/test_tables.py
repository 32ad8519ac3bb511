import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.tables import RowsEvent, Table, decode_rows, decode_table_map
from tests.binlog_writer import packed


def table_map(columns: list[tuple[int, bytes]], *, db: str = "shop", table: str = "a") -> bytes:
    """The body of a TABLE_MAP event; columns are a type and its metadata."""
    body = struct.pack("<IHH", 7, 0, 1)
    for name in (db, table):
        body += packed(len(name.encode())) + name.encode() + b"\0"
    body += packed(len(columns)) + bytes(kind for kind, _ in columns)
    metadata = b"".join(meta for _, meta in columns)
    return body + packed(len(metadata)) + metadata + bytes((len(columns) + 7) // 8) + b"\1\2\0\x40"


def rows_body(
    event_type: int, width: int, present: list[bytes], rows: bytes, *, extra: bytes = b""
) -> bytes:
    body = struct.pack("<IHH", 7, 0, 1)
    if event_type in (30, 31, 32, 39, 169, 170, 171):
        body += struct.pack("<H", 2 + len(extra)) + extra
    return body + packed(width) + b"".join(present) + rows


def counted(table: Table, event_type: int, body: bytes, cut: int = 1 << 20) -> int | None:
    """The number of rows, their bytes fed in pieces."""
    event = decode_rows(event_type, body)
    counter = event.counter(table)
    if counter is None:
        return None
    for at in range(event.rows_at, len(body), cut):
        counter.feed(body[at : at + cut])
    return counter.rows


# type, metadata, a value as it lies in a row
VALUES = {
    "tinyint": (1, b"", bytes(1)),
    "smallint": (2, b"", bytes(2)),
    "int": (3, b"", bytes(4)),
    "float": (4, b"\4", bytes(4)),
    "double": (5, b"\x08", bytes(8)),
    "null": (6, b"", b""),
    "old timestamp": (7, b"", bytes(4)),
    "bigint": (8, b"", bytes(8)),
    "mediumint": (9, b"", bytes(3)),
    "date": (10, b"", bytes(3)),
    "old time": (11, b"", bytes(3)),
    "old datetime": (12, b"", bytes(8)),
    "year": (13, b"", bytes(1)),
    "newdate": (14, b"", bytes(3)),
    "varchar(255)": (15, struct.pack("<H", 255), b"\x03abc"),
    "varchar(256)": (15, struct.pack("<H", 256), b"\x03\0abc"),
    "bit(1)": (16, b"\1\0", bytes(1)),
    "bit(8)": (16, b"\0\1", bytes(1)),
    "bit(9)": (16, b"\1\1", bytes(2)),
    "bit(64)": (16, b"\0\x08", bytes(8)),
    "timestamp(0)": (17, b"\0", bytes(4)),
    "timestamp(1)": (17, b"\1", bytes(5)),
    "timestamp(6)": (17, b"\6", bytes(7)),
    "datetime(0)": (18, b"\0", bytes(5)),
    "datetime(3)": (18, b"\3", bytes(7)),
    "time(0)": (19, b"\0", bytes(3)),
    "time(5)": (19, b"\5", bytes(6)),
    "blob compressed": (140, b"\2", b"\x03\0abc"),
    "varchar compressed": (141, struct.pack("<H", 300), b"\x03\0abc"),
    "vector": (242, b"\4", b"\x08\0\0\0" + bytes(8)),
    "json": (245, b"\4", b"\x03\0\0\0abc"),
    "decimal(1,0)": (246, b"\1\0", bytes(1)),
    "decimal(10,3)": (246, b"\x0a\x03", bytes(4 + 2)),
    "decimal(65,30)": (246, bytes([65, 30]), bytes(12 + 4 + 12 + 2)),
    "decimal(9,9)": (246, b"\x09\x09", bytes(4)),
    "tinyblob": (252, b"\1", b"\x03abc"),
    "blob": (252, b"\2", b"\x03\0abc"),
    "mediumblob": (252, b"\3", b"\x03\0\0abc"),
    "longblob": (252, b"\4", b"\x03\0\0\0abc"),
    "enum": (254, b"\xf7\1", bytes(1)),
    "enum of many": (254, b"\xf7\2", bytes(2)),
    "set": (254, b"\xf8\x08", bytes(8)),
    "char(10)": (254, b"\xfe\x0a", b"\x03abc"),
    "char(64) of 4": (254, b"\xee\x00", b"\x03\0abc"),
    "char(255) of 4": (254, b"\xce\xfc", b"\x03\0abc"),
    "geometry": (255, b"\4", b"\x03\0\0\0abc"),
}
UNKNOWN = {
    "decimal before 5.0": (0, b""),
    "typed array": (243, b"\x0f"),
    "bool": (244, b""),
    "var_string": (253, b"\xff\0"),
    "of a server to come": (200, b""),
    "float of 7": (4, b"\7"),
    "time(7)": (19, b"\7"),
    "blob of 5": (252, b"\5"),
    "bit(77)": (16, b"\7\x09"),
    "decimal(3,4)": (246, b"\3\4"),
    "decimal(66,0)": (246, b"\x42\0"),
    "string of what": (254, b"\x01\x01"),
    "set of none": (254, b"\xf8\0"),
    "int with metadata": (3, b"\0"),
}
INT = (3, b"")


@pytest.mark.parametrize("name", VALUES)
def test_rows_with_a_value_of_each_type(name: str) -> None:
    """Between two others, NULL or not, in any cut: the rows are counted, no more, no fewer."""
    kind, meta, value = VALUES[name]
    table = decode_table_map(table_map([INT, (kind, meta), INT]), "mysql")
    full, null = b"\xf8" + b"\1\0\0\0" + value + b"\2\0\0\0", b"\xfa" + b"\1\0\0\0" + b"\2\0\0\0"
    rows = full + null + full + full + null
    body = rows_body(30, 3, [b"\xff"], rows)
    for cut in (1, 2, 7, 100):
        assert counted(table, 30, body, cut) == 5
    for broken in (rows[:-1], rows + b"\xf8", rows + b"\xf8\0\0\0"):
        assert counted(table, 30, rows_body(30, 3, [b"\xff"], broken)) is None


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_table_with_an_unknown_type_is_not_counted(name: str) -> None:
    """But it has its name, and its neighbours do not matter."""
    table = decode_table_map(table_map([INT, UNKNOWN[name], INT]), "mysql")
    assert table == Table(name="shop.a", columns=None)
    assert counted(table, 30, rows_body(30, 3, [b"\xff"], bytes(9))) is None


@pytest.mark.parametrize("name", ["old timestamp", "old time", "old datetime"])
def test_times_that_are_ambiguous_in_mariadb_are_not_counted(name: str) -> None:
    """There they may have fractions that the table map does not tell of."""
    kind, meta, _ = VALUES[name]
    assert decode_table_map(table_map([INT, (kind, meta)]), "mariadb").columns is None
    assert decode_table_map(table_map([INT, (kind, meta)]), "mysql").columns is not None


def test_names_of_tables() -> None:
    """Whatever they are; a table map that ends too early has only its name, or is none."""
    body = table_map([INT], db="größe", table="a.b `c`")
    assert decode_table_map(body, "mysql").name == "größe.`a.b ``c```"
    named = len(body) - 8
    for cut in range(len(body) - 5):
        if cut < named:
            with pytest.raises((ValueError, IndexError)):
                decode_table_map(body[:cut], "mysql")
        else:
            assert decode_table_map(body[:cut], "mysql").columns in (None, ((4, 0),))


def test_tables_of_very_many_columns() -> None:
    """The counts take more than one byte."""
    columns = [VALUES["varchar(256)"][:2], INT] * 2000
    table = decode_table_map(table_map(columns), "mysql")
    row = bytes(500) + (b"\x03\0abc" + bytes(4)) * 2000
    body = rows_body(30, 4000, [b"\xff" * 500], row * 3)
    assert counted(table, 30, body) == 3
    assert counted(table, 30, body, 999) == 3
    assert counted(table, 30, body + b"\xff" * 499) is None


EVENTS = {
    "insert": (EventType.WRITE_ROWS_V1, EventType.WRITE_ROWS, 166, 169),
    "update": (EventType.UPDATE_ROWS_V1, EventType.UPDATE_ROWS, 167, 170),
    "delete": (EventType.DELETE_ROWS_V1, EventType.DELETE_ROWS, 168, 171),
}


@pytest.mark.parametrize("extra", [b"", b"\0\5abcde", bytes(60_000)])
@pytest.mark.parametrize("kind", EVENTS)
def test_each_version_of_a_rows_event(kind: str, extra: bytes) -> None:
    """With and without extra information; an update has two images a row."""
    table = decode_table_map(table_map([INT, VALUES["blob"][:2]]), "mysql")
    for event_type in EVENTS[kind]:
        row = b"\xfc\1\0\0\0\x03\0abc"
        before, after = b"\xfe\1\0\0\0", b"\xfe\0\0"
        present, rows = [b"\xff"], row * 3
        if kind == "update":  # of the first image the number, of the second the blob
            present, rows = [b"\xfd", b"\xfe"], (before + after) * 3
        body = rows_body(event_type, 2, present, rows, extra=extra)
        event = decode_rows(event_type, body)
        assert (event.kind, event.table_id, event.statement_end) == (kind, 7, True)
        assert event.compressed == (event_type >= 166)
        for cut in (1, 3, 1000):
            assert counted(table, event_type, body, cut) == 3
            if kind == "update":
                assert counted(table, event_type, body + before, cut) is None


@pytest.mark.parametrize("json_columns", [1, 3, 9])
def test_updates_that_have_differences_of_json(json_columns: int) -> None:
    """A bitmap tells which ones, of the table's JSON columns, are differences."""
    columns = [INT] + [VALUES["json"][:2]] * json_columns
    table = decode_table_map(table_map(columns), "mysql")
    size = (len(columns) + 7) // 8
    before_present, after_present = b"\1" + bytes(size - 1), b"\2" + bytes(size - 1)
    before = b"\xfe\1\0\0\0"
    bitmap = b"\1" + bytes((json_columns + 7) // 8 - 1)
    partial = b"\1" + bitmap + b"\xfe" + b"\x03\0\0\0abc"
    whole = b"\0" + b"\xfe" + b"\x03\0\0\0abc"
    null = b"\0" + b"\xff"
    rows = before + partial + before + whole + before + null + before + partial
    body = rows_body(39, len(columns), [before_present, after_present], rows)
    for cut in (1, 2, 5, 1000):
        assert counted(table, 39, body, cut) == 4
    newer = before + b"\2" + bitmap * 2 + b"\xff"
    present = [before_present, after_present]
    assert counted(table, 39, rows_body(39, len(columns), present, newer)) is None


def test_rows_that_have_no_bytes_are_not_counted() -> None:
    """A minimal image may have no columns at all: there is nothing to count by."""
    table = decode_table_map(table_map([INT]), "mysql")
    assert counted(table, 30, rows_body(30, 1, [b"\0"], b"")) is None
    assert counted(table, 31, rows_body(31, 1, [b"\0", b"\0"], b"")) is None
    one_image = rows_body(31, 1, [b"\1", b"\0"], b"\0\1\0\0\0" * 3)
    for cut in (1, 2, 5, 100):
        assert counted(table, 31, one_image, cut) == 3


def test_what_does_not_fit_its_table_is_not_counted() -> None:
    """Another number of columns; an event that ends in its head; rows of before 5.1."""
    table = decode_table_map(table_map([INT, INT]), "mysql")
    row = b"\xfc" + bytes(8)
    assert counted(table, 30, rows_body(30, 2, [b"\3"], row)) == 1
    assert counted(table, 30, rows_body(30, 3, [b"\3"], row)) is None
    assert counted(table, 20, rows_body(20, 2, [b"\3"], row)) is None
    head = rows_body(31, 2, [b"\3", b"\3"], b"")
    for size in range(8, len(head)):
        assert counted(table, 31, head[:size]) is None
        assert not decode_rows(31, head[:size]).is_empty(size)
    assert decode_rows(31, head).is_empty(len(head))
    with pytest.raises(ValueError, match="too short"):
        decode_rows(31, head[:7])


@given(st.data())
def test_any_table_and_any_rows(data: st.DataObject) -> None:
    """Columns, those that are present, NULLs and cuts in any combination."""
    names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=20))
    columns = [VALUES[name] for name in names]
    table = decode_table_map(table_map([(kind, meta) for kind, meta, _ in columns]), "mysql")
    dice = random.Random(data.draw(st.integers()))
    count = data.draw(st.integers(0, 20))
    kind = data.draw(st.sampled_from([30, 31, 32]))
    masks = [dice.getrandbits(len(names)) | 1 for _ in range(1 + (kind == 31))]
    rows = b""
    for _ in range(count):
        for mask in masks:
            chosen = [value for at, (_, _, value) in enumerate(columns) if mask >> at & 1]
            nulls = dice.getrandbits(len(chosen)) & dice.getrandbits(len(chosen))
            rows += nulls.to_bytes((len(chosen) + 7) // 8, "little")
            rows += b"".join(value for at, value in enumerate(chosen) if not nulls >> at & 1)
    present = [mask.to_bytes((len(names) + 7) // 8, "little") for mask in masks]
    body = rows_body(kind, len(names), present, rows)
    assert counted(table, kind, body, data.draw(st.integers(1, 300))) == count


@given(st.binary(max_size=300), st.sampled_from([20, 23, 24, 30, 31, 39, 166, 170]))
def test_junk_is_refused_with_an_error_of_ours(junk: bytes, event_type: int) -> None:
    """Or is not counted; nothing else happens."""
    table = decode_table_map(table_map([INT, VALUES["json"][:2], VALUES["enum"][:2]]), "mysql")
    for body in (junk, rows_body(event_type, 3, [b"\7", b"\7"], junk)):
        try:
            event = decode_rows(event_type, body)
        except ValueError:
            continue
        assert isinstance(event, RowsEvent)
        counted(table, event_type, body, 7)
    with suppress(ValueError, IndexError):
        decode_table_map(table_map([])[:8] + junk, "mysql")
