"""Changes of rows turned round: exactly what was, or a refusal."""

import base64
import io
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.events import EventType, decode_format
from binlog2s3.binlog.tables import decode_map, decode_rows, renamed_map
from binlog2s3.binlog.undo import (
    Changes,
    EventMaker,
    Step,
    TransactionReader,
    binlog_statement,
    split_rows,
    steps,
    with_checksums,
)
from binlog2s3.errors import RecoveryError
from tests.binlog_writer import BEGIN, COMMIT, XA_PREPARE, XID, BinlogWriter, packed, statement
from tests.unit.binlog.test_content import (
    STATEMENT_END,
    bytes_of,
    compressed,
    payload,
    rows,
    table_map,
)

Event = tuple[int, bytes]
WRITE, UPDATE, DELETE = EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS
NO_CHECKS = STATEMENT_END | 0x02 | 0x04 | 0x80


def taken(
    *transactions: Sequence[Event],
    cut: int = 1 << 40,
    wants: Callable[[str], bool] = lambda _: True,
    **writer: bool | str,
) -> Changes:
    """The changes of transactions, one after the other."""
    changes = Changes(io.BytesIO())
    for events in transactions:
        form, data = bytes_of([*events], **writer)  # type: ignore[arg-type]
        reader = TransactionReader(changes, form, wants=wants, what="uuid:5")
        for at in range(0, len(data), cut):
            reader.feed(data[at : at + cut])
        reader.end()
    return changes


def image(number: int, value: bytes = b"x") -> bytes:
    """A row of the tables of `table_map`: an INT and a LONGBLOB."""
    return b"\xfc" + struct.pack("<II", number, len(value)) + value


def event(kind: int, number: int, images: Sequence[bytes], flags: int = NO_CHECKS) -> Event:
    body = number.to_bytes(6, "little") + struct.pack("<HH", flags, 2) + b"\2\3"
    return kind, body + (b"\3" if kind == UPDATE else b"") + b"".join(images)


Rows = Counter[tuple[str, bytes]]


def executed(tables: Rows, step: Step) -> None:
    """Execute the events of a step as a server does; a row that is not there is an error."""
    raw = EventMaker(flavour="mysql", timestamp=9).undoing(step)
    (size,) = struct.unpack_from("<I", raw, 9)
    table_map_, rows_event = raw[:size], raw[size:]
    for one in (table_map_, rows_event):
        assert struct.unpack("<I", one[-4:])[0] == zlib.crc32(one[:-4])
        assert struct.unpack_from("<I", one, 9)[0] == len(one)
    _, table = decode_map(table_map_[19:-4], "mysql")
    head = decode_rows(rows_event[4], rows_event[19:-4])
    assert head.table_id == int.from_bytes(table_map_[19:25], "little")
    assert rows_event[25:27] == b"\1\0", "a check is switched off"
    data = rows_event[19 + head.rows_at : -4]
    for row in split_rows(table.image(head.present[0]), data, len(head.present)):
        if head.kind != "insert":
            assert tables[table.name, row[0]] > 0, "it is not there"
            tables[table.name, row[0]] -= 1
        if head.kind != "delete":
            tables[table.name, row[-1]] += 1


CHANGE = st.tuples(
    st.sampled_from("iiuud"), st.integers(0, 3), st.integers(0, 3), st.sampled_from("ab")
)


@given(
    before=st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=6),
    transactions=st.lists(st.lists(CHANGE, min_size=1, max_size=12), min_size=1, max_size=3),
    most_rows=st.integers(1, 5),
    cut=st.sampled_from([1, 7, 100, 1 << 40]),
)
def test_what_is_undone_is_exactly_as_it_was(
    before: list[tuple[int, str]],
    transactions: list[list[tuple[str, int, int, str]]],
    most_rows: int,
    cut: int,
) -> None:
    """Of any transactions on tables without a key: equal rows, rows changed again and again."""
    model: Rows = Counter((f"shop.{table}", image(number)) for number, table in before)
    start = +model
    made: list[list[Event]] = []
    for changes in transactions:
        events: list[Event] = [BEGIN]
        for kind, number, other, table in changes:
            name = f"shop.{table}"
            old, new = image(number), image(other, b"yy")
            if kind == "i":
                model[name, new] += 1
                change = event(WRITE, 7, [new])
            elif not model[name, old]:
                continue
            elif kind == "u":
                model[name, old] -= 1
                model[name, new] += 1
                change = event(UPDATE, 7, [old, new])
            else:
                model[name, old] -= 1
                change = event(DELETE, 7, [old])
            events += [table_map(7, table), change]
        made.append([*events, XID])
    changed = +model
    for step in steps(taken(*made, cut=cut), most_rows=most_rows):
        assert step.count <= most_rows
        executed(model, step)
    assert +model == start
    assert changed == start or any(len(events) > 2 for events in made)


def test_the_last_row_of_the_last_event_comes_first() -> None:
    """Statements, events and rows are undone in reverse; one step takes many events of a kind."""
    changes = taken(
        [
            BEGIN,
            table_map(7, "a"),
            event(WRITE, 7, [image(1), image(2)], 0),
            event(WRITE, 7, [image(3)]),
            table_map(8, "b"),
            event(UPDATE, 8, [image(1), image(5), image(2), image(6)]),
            XID,
        ]
    )
    assert [(s.table.name, s.kind, s.before, s.after) for s in steps(changes)] == [
        ("shop.b", "update", (image(2), image(1)), (image(6), image(5))),
        ("shop.a", "insert", (), (image(3), image(2), image(1))),
    ]
    assert changes.rows == {("shop.a", "insert"): 3, ("shop.b", "update"): 2}


def test_a_row_that_was_changed_twice_is_undone_by_two_steps() -> None:
    """The first change has left what is not there any more: it cannot be compared at once."""
    twice = [event(UPDATE, 7, [image(1), image(2), image(2), image(9)])]
    found = list(steps(taken([BEGIN, table_map(7, "a"), *twice, XID])))
    assert [(s.before, s.after) for s in found] == [
        ((image(2),), (image(9),)),
        ((image(1),), (image(2),)),
    ]


def test_a_part_of_a_step_has_those_rows_before_and_after() -> None:
    """So that rows in conflict can be left out among many."""
    events = [event(UPDATE, 7, [image(n) for n in range(10)])]
    (step,) = steps(taken([BEGIN, table_map(7, "a"), *events, XID]))
    one, other = step.part({3, 0}), step.part({1, 2, 4})
    assert (one.count, other.count) == (2, 3)
    assert one.before == (step.before[0], step.before[3])
    assert other.after == (step.after[1], step.after[2], step.after[4])


def test_only_wanted_tables_are_undone() -> None:
    """A table that is left out may have what cannot be undone in an event, but no statement."""
    partial = (EventType.PARTIAL_UPDATE_ROWS, rows(UPDATE, 8, 1)[1])
    changes = taken(
        [BEGIN, table_map(7, "a"), rows(WRITE, 7, 2), table_map(8, "b"), partial, XID],
        wants=lambda name: name == "shop.a",
    )
    assert changes.rows == {("shop.a", "insert"): 2}
    assert [table.name for table in changes.tables] == ["shop.a"]


@pytest.mark.parametrize("cut", [1, 1000, 1 << 40])
def test_compressed_transactions_and_events_are_undone(cut: int) -> None:
    """The events that are executed are plain ones. A large row may come in pieces."""
    big = image(1, bytes(300_000))
    inner: list[Event] = [BEGIN, table_map(7, "a"), event(DELETE, 7, [big]), XID]
    plain = [step.before for step in steps(taken(inner))]
    assert [step.before for step in steps(taken([compressed(inner)], cut=cut))] == plain == [(big,)]
    head = (7).to_bytes(6, "little") + struct.pack("<H", NO_CHECKS) + b"\2\3"
    zipped = b"\x84" + len(big).to_bytes(4, "big") + zlib.compress(big)
    mariadb: list[Event] = [
        table_map(7, "a"),
        (EventType.DELETE_ROWS_COMPRESSED_V1, head + zipped),
        XID,
    ]
    changes = taken(mariadb, cut=cut, version="10.11.6-MariaDB-log")
    (step,) = steps(changes)
    assert step.before == (big,)
    made = EventMaker(flavour="mariadb", timestamp=9).undoing(step)
    assert made[struct.unpack_from("<I", made, 9)[0] + 4] == EventType.WRITE_ROWS_V1


MINIMAL = (UPDATE, (7).to_bytes(6, "little") + struct.pack("<HH", 1, 2) + b"\2\1\2"
           + b"\xfe\1\0\0\0" + b"\xfe\1\0\0\0x")  # fmt: skip


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([BEGIN, statement("DELETE FROM a"), XID], "statement.*DELETE FROM a"),
        ([statement("TRUNCATE a")], "statement.*TRUNCATE"),
        ([BEGIN, statement("ROLLBACK TO `a`"), XID], "statement"),
        ([BEGIN, table_map(7, "a"), rows(WRITE, 7, 1), COMMIT], "not transactional"),
        ([BEGIN, table_map(7, "a"), rows(WRITE, 7, 1), XA_PREPARE], "type 38"),
        ([BEGIN, table_map(7, "a"), MINIMAL, XID], "different columns"),
        ([BEGIN, rows(WRITE, 7, 1), XID], "no table map"),
        ([BEGIN, table_map(7, "a"), (EventType.PARTIAL_UPDATE_ROWS, rows(UPDATE, 7, 1)[1]), XID],
         "PARTIAL_JSON"),
        ([BEGIN, table_map(7, "a"), (WRITE, rows(WRITE, 7, 1)[1] + b"\xfc"), XID], "rows"),
        ([BEGIN, table_map(7, "a"), (EventType.WRITE_ROWS_V0, rows(WRITE, 7, 1)[1]), XID], "5.1"),
        ([BEGIN, (172, bytes(30)), XID], "type 172"),
        ([BEGIN, (77, b"new"), XID], "type 77"),
        ([payload(b"\0\1")], "decoded"),
        ([BEGIN, (EventType.TABLE_MAP, b"\7\0\0\0\0\0\1\0\4"), rows(WRITE, 7, 1), XID],
         "decoded"),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_refused(events: list[Event], why: str) -> None:
    """With the reason, before anything is done."""
    with pytest.raises(RecoveryError, match=why) as error:
        taken(events)
    assert "uuid:5 cannot be undone" in str(error.value)


def test_a_savepoint_changes_nothing() -> None:
    """Frameworks set one for each request."""
    events = [BEGIN, statement("SAVEPOINT `a`"), table_map(7, "a"), rows(WRITE, 7, 1), XID]
    assert taken(events).rows == {("shop.a", "insert"): 1}


def test_a_transaction_that_is_cut_is_refused() -> None:
    """Half of a transaction is never undone."""
    form, data = bytes_of([BEGIN, table_map(7, "a"), rows(WRITE, 7, 1), XID])
    for size in range(len(data)):
        reader = TransactionReader(Changes(io.BytesIO()), form, wants=lambda _: True, what="uuid:5")
        reader.feed(data[:size])
        with pytest.raises(RecoveryError):
            reader.end()


def test_a_table_map_is_renamed_and_nothing_else() -> None:
    """Rows reach a scratch table of the same definition; the names are data, whatever they are."""
    _, raw = table_map(7, "a")
    for names in (("x", "y"), ("`;", "é" * 60)):
        body, table = decode_map(renamed_map(raw, *names), "mysql")
        assert (body.database, body.table) == names
        assert table.columns == decode_map(raw, "mysql")[1].columns


def test_a_format_event_says_that_events_have_checksums() -> None:
    """Also that of a binlog without them, which is executed first."""
    log = BinlogWriter(server_version="9.7.4", checksum=False, in_use=True)
    head = bytes(log.data[4:])
    form = decode_format(with_checksums(head, decode_format(head, offset=0)), offset=0)
    assert form.checksum == "crc32"


def test_statements_have_nothing_but_base64() -> None:
    """No text of a tenant becomes SQL."""
    text = binlog_statement(b"'; DROP", b"x")
    first, *lines, last = text.split("\n")
    assert (first, last) == ("BINLOG '", "'")
    assert [base64.b64decode(line, validate=True) for line in lines] == [b"'; DROP", b"x"]


def test_packed_counts_are_kept() -> None:
    """A table may have more than 250 columns."""
    many = 300
    body = (7).to_bytes(6, "little") + b"\1\0\4shop\0\1w\0" + packed(many) + b"\3" * many + b"\0"
    head = (7).to_bytes(6, "little") + struct.pack("<HH", 1, 2) + packed(many) + b"\xff" * 38
    row = bytes(38) + b"\1\0\0\0" * many
    wide = [(EventType.TABLE_MAP, body + b"\xff" * 38), (WRITE, head + row)]
    model: Rows = Counter({("shop.w", row): 1})
    for step in steps(taken([BEGIN, *wide, XID])):
        executed(model, step)
    assert +model == Counter()


@pytest.mark.parametrize("kind", [WRITE, UPDATE, DELETE])
def test_no_step_has_changes_of_two_transactions(kind: int) -> None:
    """One between them may have changed the row that both changed: it would be in a step twice."""
    images = [image(1), image(2)] if kind == UPDATE else [image(1)]
    change = [BEGIN, table_map(7, "a"), event(kind, 7, images), XID]
    assert [step.count for step in steps(taken(change, change))] == [1, 1]
