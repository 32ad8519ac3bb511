import contextlib
import mmap
import struct
import zlib
from collections.abc import Callable

import pytest

from binlog2s3.binlog.events import HEADER
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, EventType, Rotate, Scanner
from binlog2s3.errors import DamageError
from tests.binlog_writer import (
    BEGIN,
    COMMIT,
    INTVAR,
    NOW,
    NOW_US,
    ROLLBACK,
    ROWS,
    TABLE_MAP,
    UUID_A,
    UUID_B,
    XA_PREPARE,
    XID,
    BinlogWriter,
    query_body,
    statement,
)

MARIADB_ROWS = [(EventType.ANNOTATE_ROWS, b"insert"), TABLE_MAP, ROWS, ROWS, XID]
ROW_CHANGE = [BEGIN, TABLE_MAP, ROWS, XID]


def scan(data: bytes | bytearray, start: int = 0) -> Scanner:
    """A scanner that has taken these bytes."""
    scanner = Scanner(start)
    scanner.feed(data)
    return scanner


def damage_of(data: bytes | bytearray, start: int = 0) -> DamageError:
    """The damage in these bytes."""
    with pytest.raises(DamageError) as caught:
        Scanner(start).feed(data)
    return caught.value


def assert_found_at_once(log: BinlogWriter) -> None:
    """Each transaction is complete with its own last byte, whatever follows."""
    for transaction in log.transactions:
        scanner = scan(log.data[: transaction.end])
        assert scanner.completed[-1:] == [transaction]
        assert scanner.transaction_end == transaction.end


def small_binlog() -> BinlogWriter:
    """One binlog with a row change and a DDL statement."""
    log = BinlogWriter()
    log.previous_gtids(GtidSet.parse(f"{UUID_A}:1-4"))
    log.transaction(ROW_CHANGE, gtid=(UUID_A, "", 5))
    log.transaction([statement("create table x(i int)")], gtid=(UUID_A, "blue", 1))
    return log


# ---- names


def test_a_name_is_its_prefix_and_its_number() -> None:
    """A parsed name prints as it was."""
    name = BinlogName.parse("mysql-bin.000041")
    assert (name.prefix, name.number, name.width) == ("mysql-bin", 41, 6)
    assert str(name) == "mysql-bin.000041"
    assert str(BinlogName.parse("a.b.0007")) == "a.b.0007"


def test_names_order_by_number_where_text_would_not() -> None:
    """999999 comes before 1000000, and next() crosses it as the server does."""
    last = BinlogName.parse("binlog.999999")
    assert str(last.next()) == "binlog.1000000"
    assert last < last.next()
    assert BinlogName.parse("b.000002") > BinlogName.parse("a.000009")
    assert BinlogName.parse("binlog.1000000") == last.next()


@pytest.mark.parametrize(
    "text",
    ["", "binlog", "binlog.", ".000001", "a/b.000001", "../x.000001", "a\n.000001", "a.000001\n",
     "a\x00.000001", "a.00000x", "a.\u0661", "a\x7f.1", "a.-1"],
)  # fmt: skip
def test_a_name_that_no_server_makes_is_refused(text: str) -> None:
    """Slashes, control characters and missing numbers never become a path or key."""
    with pytest.raises(ValueError, match="not the name of a binlog"):
        BinlogName.parse(text)


# ---- facts


def test_a_whole_binlog_gives_all_its_facts() -> None:
    """Every fact is what the writer wrote."""
    log = small_binlog()
    log.rotate("mysql-bin.000002")
    scanner = Scanner()
    transactions = scanner.feed(bytes(log.data))

    assert transactions == log.transactions == scanner.completed
    assert scanner.position == scanner.event_end == scanner.transaction_end == len(log.data)
    assert scanner.events == len(log.ends) - 1
    assert (scanner.transactions, scanner.anonymous) == (2, 0)
    assert scanner.previous_gtids == GtidSet.parse(f"{UUID_A}:1-4")
    assert scanner.gtids == GtidSet.parse(f"{UUID_A}:5:blue:1")
    assert scanner.gtids_at_end == GtidSet.parse(f"{UUID_A}:1-5:blue:1")
    assert scanner.rotate == Rotate(BinlogName("mysql-bin", 2), 4)
    assert scanner.ended
    assert not scanner.stopped
    assert scanner.transaction_end == len(log.data)
    assert scanner.flavour == "mysql"
    assert scanner.format is not None
    assert scanner.formats == [scanner.format]
    assert (scanner.format.offset, scanner.format.size) == (4, log.ends[1] - 4)
    assert (scanner.format.server_version, scanner.format.checksum) == ("9.7.4", "crc32")
    assert (scanner.format.timestamp, scanner.format.server_id) == (NOW, 7)
    stopped = scan(STOPPED)
    assert (stopped.stopped, stopped.ended, stopped.rotate) == (True, True, None)
    at_first = scan(log.data, start=4)  # there mysqlbinlog makes nothing up
    assert (at_first.completed, at_first.skipped) == (log.transactions, 4)


def test_nothing_is_known_before_the_first_byte() -> None:
    """A new scanner stands at 0; event_end is 4 as soon as the magic has come, not before."""
    scanner = Scanner()
    assert (scanner.position, scanner.event_end, scanner.transaction_end) == (0, 0, 0)
    assert (scanner.format, scanner.flavour, scanner.previous_gtids) == (None, None, None)
    assert (scanner.gtids_at_end, scanner.least_commit_us) == (None, None)
    assert scanner.feed(b"") == []
    scanner.feed(MAGIC[:3])
    assert (scanner.position, scanner.event_end) == (3, 0)
    scanner.feed(MAGIC[3:])
    assert (scanner.position, scanner.event_end, scanner.transaction_end) == (4, 4, 4)


def test_the_in_use_flag_does_not_spoil_the_checksum() -> None:
    """The server computes the CRC of its format event without the flag."""
    log = BinlogWriter(in_use=True)
    scanner = scan(log.data)
    assert scanner.event_end == len(log.data)


def test_commit_times_are_exact_to_the_microsecond_where_the_event_has_them() -> None:
    """Least and greatest follow the immediate commit time, the original one is kept beside it."""
    log = BinlogWriter()
    for gno, shift in enumerate((5, -7, 3), start=1):
        log.transaction(
            ROW_CHANGE, gtid=(UUID_A, "", gno), commit_us=NOW_US + shift, original_us=NOW_US - 99
        )
    scanner = scan(log.data)
    assert scanner.completed == log.transactions
    assert scanner.completed[0].original_commit_us == NOW_US - 99
    assert (scanner.least_commit_us, scanner.greatest_commit_us) == (NOW_US - 7, NOW_US + 5)
    assert scanner.commit_exact
    log.plain_transaction(ROW_CHANGE)
    assert not scan(log.data).commit_exact


def test_without_commit_times_the_last_event_tells_the_second() -> None:
    """MySQL 5.7: whole seconds, and the transaction says that they are not exact."""
    log = BinlogWriter(server_version="5.7.44-log")
    log.transaction(ROW_CHANGE, gtid=(UUID_A, "", 1), commit_us=0, with_length=False)
    scanner = scan(log.data)
    assert scanner.completed == log.transactions
    assert scanner.completed[0].commit_us == NOW_US
    assert not scanner.completed[0].commit_exact
    assert not scanner.commit_exact


def test_an_open_transaction_holds_transaction_end_at_its_begin() -> None:
    """event_end goes on inside a transaction, transaction_end does not."""
    log = small_binlog()
    first = log.transactions[0]
    scanner = Scanner()
    scanner.feed(log.data[: first.end - 5])
    assert scanner.transaction_end == first.begin
    assert first.begin < scanner.event_end < first.end
    assert scanner.gtids == GtidSet()
    scanner.feed(log.data[first.end - 5 : first.end])
    assert scanner.transaction_end == first.end


# ---- what ends a transaction

ENDS = {
    "row change": ROW_CHANGE,
    "myisam": [BEGIN, TABLE_MAP, ROWS, COMMIT],
    "mixed, rolled back": [BEGIN, TABLE_MAP, ROWS, ROLLBACK],
    "ddl": [statement("create table commit(i int)")],
    "ddl that looks like it": [statement("COMMIT ALTER")],
    "statement": [BEGIN, INTVAR, statement("insert into a values (rand())"), XID],
    "load data": [
        BEGIN,
        (EventType.BEGIN_LOAD_QUERY, bytes(40)),
        (EventType.APPEND_BLOCK, bytes(40)),
        (EventType.EXECUTE_LOAD_QUERY, bytes(60)),
        XID,
    ],
    "savepoints": [
        BEGIN,
        statement("SAVEPOINT `a`"),
        statement("insert into a values (1)"),
        statement("ROLLBACK TO `a`"),
        statement("rollback to savepoint a"),
        statement("ROLLBACK /**/ TO a"),
        statement("rollback work to a"),
        COMMIT,
    ],
    "xa, first phase": [
        statement("XA START X'7831',X'',1"),
        TABLE_MAP,
        ROWS,
        statement("XA END X'7831',X'',1"),
        XA_PREPARE,
    ],
    "xa, second phase": [statement("XA COMMIT X'7831',X'',1")],
    "xa, second phase, back": [statement("XA ROLLBACK X'7831',X'',1")],
    "xa, rolled back before it was prepared": [
        statement("XA START X'7831',X'',1"),
        statement("insert into myisam values (1)"),
        statement("XA END X'7831',X'',1"),
        statement("XA ROLLBACK X'7831',X'',1"),
    ],
    "compressed": [(EventType.TRANSACTION_PAYLOAD, bytes(99))],
    "incident": [(EventType.INCIDENT, b"\1\0\0")],
    "begin and nothing": [BEGIN, COMMIT],
    "many words": [BEGIN, statement("/* COMMIT */ insert"), statement(" "), COMMIT],
}


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("with_length", [True, False])
@pytest.mark.parametrize("kind", ENDS)
def test_every_kind_of_transaction_ends_where_the_server_ended_it(
    kind: str, *, with_length: bool, checksum: bool
) -> None:
    """With the length that 8.0 gives, and by the events alone, as before."""
    log = BinlogWriter(checksum=checksum)
    for gno in (1, 2):
        log.transaction(ENDS[kind], gtid=(UUID_A, "", gno), with_length=with_length)
        log.transaction(ENDS[kind], with_length=with_length)
    assert_found_at_once(log)
    scanner = scan(log.data)
    assert scanner.completed == log.transactions
    assert scanner.anonymous == 2
    assert scanner.gtids == GtidSet.parse(f"{UUID_A}:1-2")
    assert scanner.transaction_end == len(log.data)


@pytest.mark.parametrize("kind", ["row change", "myisam", "ddl", "statement", "savepoints"])
def test_a_server_without_gtid_events_begins_with_begin(kind: str) -> None:
    """Before 5.6: BEGIN, or the statement itself, opens an anonymous transaction."""
    log = BinlogWriter(server_version="5.5.62-log", checksum=False)
    for _ in range(3):
        log.plain_transaction(ENDS[kind])
    log.plain_transaction([INTVAR, INTVAR, statement("insert into myisam values (1)")])
    log.plain_transaction(
        [(EventType.BEGIN_LOAD_QUERY, bytes(9)), (EventType.EXECUTE_LOAD_QUERY, bytes(60))]
    )
    assert_found_at_once(log)
    scanner = scan(log.data)
    assert scanner.completed == log.transactions
    assert scan(log.data, start=4).completed == log.transactions  # nothing is open before byte 4
    assert (scanner.anonymous, scanner.transactions) == (5, 5)
    assert scanner.format is not None
    assert not scanner.format.gtid_events


def test_a_gtid_event_ends_what_nothing_else_ended() -> None:
    """A transaction without any of the known ends lasts until the next one begins."""
    log = BinlogWriter()
    log.transaction([BEGIN, TABLE_MAP, ROWS], gtid=(UUID_A, "", 1), with_length=False)
    log.transaction(ROW_CHANGE, gtid=(UUID_A, "", 2))
    assert scan(log.data).completed == log.transactions


@pytest.mark.parametrize("error", [-3, 3, 200, 10_000])
def test_a_length_that_is_no_event_end_yields_to_the_events(error: int) -> None:
    """A wrong transaction length moves no boundary."""
    log = BinlogWriter(checksum=False)
    log.transaction(ROW_CHANGE, gtid=(UUID_A, "", 1))
    log.transaction(ROW_CHANGE, gtid=(UUID_A, "", 2))
    first = log.transactions[0]
    at = first.begin + 19 + 42 + 7
    length = first.end - first.begin
    assert log.data[at] == length < 251 - 3
    if length + error < 251:
        log.data[at] = length + error
        assert scan(log.data).completed == log.transactions
    else:
        longer = bytearray(log.data[: at + 1]) + struct.pack("<H", length + error)
        longer[at] = 252
        longer += log.data[at + 1 :]
        _shift(longer, first.begin, 2)
        assert [t.gtid for t in scan(longer).completed] == [t.gtid for t in log.transactions]


def test_a_wrong_length_among_statements_lasts_until_the_commit() -> None:
    """Behind a length that proved wrong no statement is taken for the whole transaction."""
    log = BinlogWriter(checksum=False)
    events = [BEGIN, statement("insert"), statement("insert"), XID]
    log.transaction(events, gtid=(UUID_A, "", 1))
    at = log.transactions[0].begin + 19 + 42 + 7
    log.data[at] -= 60
    assert scan(log.data).completed == log.transactions


def _shift(data: bytearray, at: int, by: int) -> None:
    """Make the event at `at` longer, and move the ends of all events behind."""
    size = struct.unpack_from("<I", data, at + 9)[0]
    struct.pack_into("<I", data, at + 9, size + by)
    while at < len(data):
        size, end = struct.unpack_from("<II", data, at + 9)
        struct.pack_into("<I", data, at + 13, end + by)
        at += size


def test_mariadb_groups_end_at_their_statement_or_their_commit() -> None:
    """The standalone flag tells which; the list keeps the last number of each server."""
    log = BinlogWriter(server_version="10.11.18-MariaDB-log")
    log.gtid_list(MariadbGtidList.parse("0-7-4,0-8-3,2-9-1"))
    log.event(EventType.BINLOG_CHECKPOINT, struct.pack("<I", 16) + b"mysql-bin.000001")
    log.mariadb_transaction([statement("create table a(i int)")], gtid=(0, 5), standalone=True)
    log.mariadb_transaction(
        [(EventType.ANNOTATE_ROWS, b"insert"), TABLE_MAP, ROWS, XID], gtid=(0, 6)
    )
    log.mariadb_transaction(
        [INTVAR, (EventType.QUERY_COMPRESSED, query_body("xxxxxxxxxxxxxx"))],
        gtid=(1, 1),
        standalone=True,
    )
    log.mariadb_transaction([statement("rollback to x"), COMMIT], gtid=(0, 7))
    log.mariadb_transaction([TABLE_MAP, ROWS, XA_PREPARE], gtid=(0, 8))
    log.mariadb_transaction([statement("XA COMMIT X'78',X'',1")], gtid=(0, 9), standalone=True)
    assert_found_at_once(log)
    scanner = scan(log.data)
    assert scanner.completed == log.transactions
    assert [t.gtid for t in scanner.completed[:3]] == ["0-7-5", "0-7-6", "1-7-1"]
    assert scanner.flavour == "mariadb"
    assert scanner.previous_gtids == MariadbGtidList.parse("0-7-4,0-8-3,2-9-1")
    assert scanner.gtids == MariadbGtidList.parse("0-7-9,1-7-1")
    assert scanner.gtids_at_end == MariadbGtidList.parse("0-7-9,0-8-3,1-7-1,2-9-1")


def test_fragments_of_a_rows_event_are_events_like_others() -> None:
    """MariaDB 12.3 writes them where a rows event is too large; none of them says where it ends."""
    log = BinlogWriter(server_version="12.3.1-MariaDB")
    head = struct.pack("<II", 2, 1) + struct.pack("<BQ", 1, 2000)
    parts = [head + bytes(1000), struct.pack("<IIB", 2, 2, 0) + bytes(1000)]
    fragments = [(int(EventType.PARTIAL_ROW_DATA), part) for part in parts]
    log.mariadb_transaction([TABLE_MAP, *fragments, XID], gtid=(0, 1), deferred=True)
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 2), deferred=True)
    scanner = Scanner()
    assert scanner.feed(bytes(log.data)) == log.transactions
    assert scanner.event_end == len(log.data)


def test_an_incident_of_mariadb_is_what_it_stands_for_without_a_gtid() -> None:
    """It has no GTID event before it; left out, what the server lost would be so in silence."""
    log = BinlogWriter(server_version="10.11.18-MariaDB-log")
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 1))
    begin = len(log.data)
    log.event(EventType.INCIDENT, b"\1\0\0")
    scanner = scan(log.data)
    assert [(one.begin, one.end, one.gtid) for one in scanner.completed[1:]] == [
        (begin, len(log.data), None)
    ]
    assert (scanner.transactions, scanner.anonymous) == (2, 1)
    assert scanner.transaction_end == len(log.data)


def test_mariadb_events_without_positions_count_when_the_last_one_confirms_them() -> None:
    """From 11.4 only the first and last event of a transaction say where they end."""
    log = BinlogWriter(server_version="11.8.6-MariaDB-log")
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 1), deferred=True)
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 2), deferred=True)
    second = log.transactions[1]
    scanner = Scanner()
    scanner.feed(log.data[: second.end - 1])
    gtid_end = next(end for end in log.ends if end > second.begin)
    assert (scanner.event_end, scanner.events) == (gtid_end, log.ends.index(gtid_end))
    assert (scanner.position, scanner.transaction_end) == (second.end - 1, second.begin)
    assert scanner.feed(log.data[second.end - 1 :]) == [second]
    assert (scanner.event_end, scanner.events) == (second.end, len(log.ends) - 1)


@pytest.mark.parametrize("piece", [10, 100_000])
def test_a_hole_among_events_without_positions_is_damage(piece: int) -> None:
    """What cannot be trusted begins behind the last event that had its position."""
    log = BinlogWriter(server_version="11.8.6-MariaDB-log", checksum=False)
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 1), deferred=True)
    gtid_end, first_end, second_end = log.ends[2:5]
    torn = log.data[:first_end] + log.data[second_end:]
    scanner = Scanner()
    for at in range(0, len(torn), piece):
        with contextlib.suppress(DamageError):
            scanner.feed(torn[at : at + piece])
    assert scanner.damage is not None
    assert "broken chain" in str(scanner.damage)
    assert scanner.damage.offset == scanner.event_end == scanner.position == gtid_end
    assert scanner.events == 2


@pytest.mark.parametrize(
    ("version", "inside", "event_type", "size"),
    [
        ("9.7.4", True, EventType.WRITE_ROWS, 60),
        ("11.8.6-MariaDB", False, EventType.WRITE_ROWS, 60),
        ("11.8.6-MariaDB", True, EventType.ROTATE, 60),
        ("11.8.6-MariaDB", True, EventType.MARIADB_GTID, 60),
        ("11.8.6-MariaDB", True, 99, 60),
        ("11.8.6-MariaDB", True, EventType.WRITE_ROWS, 2**31),
    ],
)
def test_a_position_may_lack_only_inside_a_transaction_of_mariadb(
    version: str, event_type: int, size: int, *, inside: bool
) -> None:
    """Elsewhere 0 is a broken chain, and so is an event that no server would send."""
    log = BinlogWriter(server_version=version, checksum=False)
    if inside and log.is_mariadb:
        log.event(EventType.MARIADB_GTID, struct.pack("<QIB6x", 1, 0, 0))
    elif inside:
        log.query("BEGIN")
    offset = len(log.data)
    scanner = scan(log.data)
    header = struct.pack("<IBIIIH", NOW, event_type, 7, size, 0, 0)
    with pytest.raises(DamageError, match="broken chain") as caught:
        scanner.feed(header + bytes(41))
    assert caught.value.offset == offset


def test_a_start_inside_a_transaction_without_positions_is_no_made_up_event() -> None:
    """Only format and encryption events are made up in front of a start position."""
    log = BinlogWriter(server_version="11.8.6-MariaDB-log")
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 1), deferred=True)
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 2), deferred=True)
    start = log.ends[3]
    scanner = Scanner(start)
    assert scanner.feed(log.from_position(start)) == log.transactions[1:]
    assert (scanner.skipped, scanner.event_end) == (log.ends[1], len(log.data))


def test_the_made_up_encryption_event_is_skipped() -> None:
    """MariaDB's encrypted binlogs have two made-up events in front of a start position."""
    log = BinlogWriter(server_version="11.8.6-MariaDB-log")
    log.event(EventType.START_ENCRYPTION, bytes(17))
    log.mariadb_transaction(MARIADB_ROWS, gtid=(0, 1))
    second = bytearray(log.data[log.ends[1] : log.ends[2]])
    second[13:17] = bytes(4)
    second[-4:] = struct.pack("<I", zlib.crc32(second[:-4]))
    begin = log.transactions[0].begin
    fed = log.from_position(begin)
    fed = fed[: log.ends[1]] + second + fed[log.ends[1] :]
    scanner = scan(fed, start=begin)
    assert scanner.completed == log.transactions
    assert (scanner.skipped, scanner.events) == (log.ends[2], 6)


def test_mariadb_that_hides_behind_a_mysql_version_is_still_mariadb() -> None:
    """Its list of event types is longer than any MySQL's."""
    log = BinlogWriter(server_version="10.11.18-MariaDB-log")
    log.data = log.data.replace(b"10.11.18-MariaDB-log", b"5.7.99-log\0\0\0\0\0\0\0\0\0\0")
    log.data[-4:] = struct.pack("<I", zlib.crc32(log.data[4:-4]))
    assert scan(log.data).flavour == "mariadb"


# ---- positions past 4 GiB, start in the middle


def test_positions_wrap_at_four_gibibytes() -> None:
    """end_log_pos has 32 bits; offsets here go on."""
    log = small_binlog()
    begin = log.transactions[-1].begin
    whole = bytearray(log.from_position(begin))
    shift = 2**32 - begin - 30
    at = log.ends[1]
    while at < len(whole):
        size, end = struct.unpack_from("<II", whole, at + 9)
        struct.pack_into("<I", whole, at + 13, (end + shift) % 2**32)
        whole[at + size - 4 : at + size] = struct.pack("<I", zlib.crc32(whole[at : at + size - 4]))
        at += size
    scanner = scan(whole, start=begin + shift)
    assert scanner.event_end == len(log.data) + shift > 2**32
    assert scanner.completed[0].begin == begin + shift


def test_a_start_position_makes_the_format_event_a_stand_in() -> None:
    """The made-up event is decoded and skipped; every offset is the server's."""
    log = small_binlog()
    second = log.transactions[1]
    scanner = Scanner(second.begin)
    assert scanner.event_end == scanner.position == second.begin
    assert scanner.transaction_end == 0
    fed = log.from_position(second.begin)
    scanner.feed(fed[: log.ends[1] - 7])  # made-up bytes do not move it
    assert scanner.position == second.begin
    assert scanner.feed(fed[log.ends[1] - 7 :]) == [second]
    assert scanner.skipped == log.ends[1]
    assert scanner.event_end == scanner.position == len(log.data)
    assert scanner.events == 2
    assert scanner.format is not None
    assert (scanner.format.offset, scanner.format.checksum) == (0, "crc32")
    assert scanner.previous_gtids is None


def test_a_start_inside_a_transaction_reports_only_whole_ones() -> None:
    """What began before the start is not a transaction of this scan, but its end is seen."""
    log = small_binlog()
    first, second = log.transactions
    for start in [end for end in log.ends if first.begin < end < first.end]:
        scanner = Scanner(start)
        fed = log.from_position(start)
        inside = log.ends[1] + first.end - start
        scanner.feed(fed[: inside - 1])
        assert scanner.transaction_end == 0
        scanner.feed(fed[inside - 1 : inside])
        assert scanner.transaction_end == first.end
        assert scanner.completed == []
        assert scanner.feed(fed[inside:]) == [second]


def test_a_start_at_begin_is_whole_where_there_are_no_gtid_events() -> None:
    """Only there nothing can lie before BEGIN."""
    old = BinlogWriter(server_version="5.5.62-log", checksum=False)
    old.plain_transaction(ROW_CHANGE)
    begin = old.transactions[0].begin
    assert scan(old.from_position(begin), start=begin).completed == old.transactions
    new = small_binlog()
    begin = next(end for end in new.ends if end > new.transactions[0].begin)
    assert scan(new.from_position(begin), start=begin).completed == new.transactions[1:]


@pytest.mark.parametrize("event_type", [EventType.BINLOG_CHECKPOINT, EventType.PREVIOUS_GTIDS])
def test_a_start_at_an_event_between_transactions_is_outside(event_type: int) -> None:
    """Such events say that no transaction is open, even before they have ended."""
    log = BinlogWriter(server_version="11.8.6-MariaDB-log")
    log.event(event_type, bytes(16))
    start = log.ends[-1]
    log.event(event_type, bytes(16))
    scanner = Scanner(start)
    assert scanner.transaction_end == 0
    scanner.feed(log.from_position(start))
    assert scanner.transaction_end == len(log.data)


def test_a_start_at_the_wrong_place_is_damage() -> None:
    """The first event must begin at the start position, byte for byte."""
    log = small_binlog()
    begin = log.transactions[0].begin
    assert damage_of(log.from_position(begin), start=begin + 1).offset == begin + 1
    assert damage_of(bytes(log.data), start=begin).offset == begin


@pytest.mark.parametrize("start", [-1, 1, 3])
def test_no_event_begins_inside_the_magic(start: int) -> None:
    """Such a start is a mistake of the caller."""
    with pytest.raises(ValueError, match="no event begins"):
        Scanner(start)


# ---- damage


def test_damage_names_the_first_bad_event_and_stays() -> None:
    """Facts are those of the last good event, and every later feed raises the same."""
    log = small_binlog()
    first, second = log.transactions
    bad = bytearray(log.data)
    bad[second.begin + 30] ^= 1
    scanner = Scanner()
    with pytest.raises(DamageError, match="wrong CRC32") as caught:
        scanner.feed(bad)
    assert caught.value.offset == second.begin
    assert str(scanner.damage) == str(caught.value)
    assert scanner.completed == [first]
    for more in (b"", bytes(log.data[second.begin :])):
        with pytest.raises(DamageError, match="wrong CRC32") as again:
            scanner.feed(more)
        assert (str(again.value), again.value.offset) == (str(caught.value), second.begin)
    assert scanner.position == scanner.event_end == scanner.transaction_end == second.begin
    assert (scanner.transactions, scanner.gtids) == (1, GtidSet.parse(f"{UUID_A}:5"))


def test_damage_lets_go_of_the_bytes() -> None:
    """A map of a file can be closed although it was damaged and the scanner lives on."""
    log = small_binlog()
    log.data[-1] ^= 1
    with mmap.mmap(-1, len(log.data)) as mapped:
        mapped[:] = bytes(log.data)
        scanner = Scanner()
        with contextlib.suppress(DamageError):
            scanner.feed(memoryview(mapped))
    assert scanner.damage is not None


def test_a_hole_is_damage_even_without_checksums() -> None:
    """A whole event that is missing breaks the chain at once."""
    log = BinlogWriter(checksum=False)
    for gno in range(1, 5):
        log.transaction(ROW_CHANGE, gtid=(UUID_B, "", gno))
    hole = log.transactions[1]
    error = damage_of(log.data[: hole.begin] + log.data[hole.end :])
    assert error.offset == hole.begin
    assert "broken chain" in str(error)


def whole(end: Callable[[BinlogWriter], object] | None = None) -> bytes:
    log = small_binlog()
    if end is not None:
        end(log)
    return bytes(log.data)


def followed(kind: int, size: int, end: int | None = None, *, checksum: bool = True) -> bytes:
    """A binlog, and the beginning of an event that says this size, and where it ends."""
    data = bytes(BinlogWriter(checksum=checksum).data)
    end = (len(data) + size) % 2**32 if end is None else end
    return data + HEADER.pack(NOW, kind, 7, size, end, 0) + bytes(40)


ALONE = len(BinlogWriter().data)
ROTATED, STOPPED = whole(BinlogWriter.rotate), whole(BinlogWriter.stop)
HELD = (EventType.PREVIOUS_GTIDS, EventType.GTID, EventType.ROTATE, EventType.FORMAT_DESCRIPTION)


@pytest.mark.parametrize(
    ("data", "offset", "words"),
    [
        *((data, 0, "") for data in (b"\xfebiN", b"\xfdbin", b"x", b"\xfeb\0")),
        (MAGIC + whole()[ALONE:], 4, "format event"),
        (whole() + whole(), len(whole()), ""),
        (ROTATED + MAGIC, len(ROTATED), "after the binlog's last event"),
        (STOPPED + MAGIC, len(STOPPED), "after the binlog's last event"),
        (ROTATED + b"\xfe", len(ROTATED), "after the binlog's last event"),
        *((followed(EventType.XID, size), ALONE, "too small") for size in (0, 18, 22)),
        *((followed(EventType.XID, size, checksum=False), ALONE, "too small") for size in (0, 18)),
        (followed(EventType.WRITE_ROWS, 2**31, 5), ALONE, "broken chain"),
        *((followed(kind, 3 << 30), ALONE, "too large") for kind in HELD),
    ],
)
def test_what_no_server_writes_is_damage_at_once(data: bytes, offset: int, words: str) -> None:
    """Named by its place as soon as it shows: in pieces as well, and no size is waited for."""
    error = damage_of(data)
    assert (error.offset, words in str(error)) == (offset, True)
    scanner = Scanner()
    with pytest.raises(DamageError) as caught:
        list(map(scanner.feed, (data[at : at + 1] for at in range(len(data)))))
    assert (caught.value.offset, words in str(caught.value)) == (offset, True)


def test_an_event_that_cannot_be_decoded_is_damage_and_changes_nothing() -> None:
    """A GTID event of three bytes, a query that ends before its text: both with a right CRC."""
    for event_type in (
        EventType.GTID, EventType.GTID_TAGGED, EventType.QUERY, EventType.PREVIOUS_GTIDS
    ):  # fmt: skip
        log = small_binlog()
        good = scan(log.data)
        offset = len(log.data)
        log.event(event_type, b"\3\xff\xff")
        scanner = Scanner()
        with pytest.raises(DamageError) as caught:
            scanner.feed(log.data)
        assert caught.value.offset == scanner.event_end == offset
        assert (scanner.gtids, scanner.transactions) == (good.gtids, good.transactions)
        assert scanner.previous_gtids == good.previous_gtids


def test_a_big_event_is_never_held() -> None:
    """Of an event that comes in pieces only its beginning stays in memory."""
    log = BinlogWriter()
    log.transaction(
        [BEGIN, statement("x" * 1_000_000), (EventType.WRITE_ROWS, bytes(3_000_000)), COMMIT],
        with_length=False,
    )
    scanner = Scanner()
    held = 0
    for at in range(0, len(log.data), 10_000):
        scanner.feed(memoryview(log.data)[at : at + 10_000])
        held = max(held, len(scanner._head))
    assert held < 70_000
    assert scanner.transactions == 1


@pytest.mark.parametrize("stride", [1, 1 << 40])
def test_a_transaction_that_the_next_one_ends(stride: int) -> None:
    """It has neither a length nor a last event of its own, and counts as one all the same."""
    log = BinlogWriter()
    rows = (EventType.WRITE_ROWS, bytes(20))
    for number in (1, 2):
        log.transaction([BEGIN, TABLE_MAP, rows], gtid=(UUID_A, "", number), with_length=False)
    log.transaction([BEGIN, TABLE_MAP, rows, XID], gtid=(UUID_A, "", 3))
    scanner = Scanner(stride=stride)
    found = scanner.feed(bytes(log.data))
    wanted = log.transactions if stride == 1 else log.transactions[:1]
    assert [(one.begin, one.end) for one in found] == [(one.begin, one.end) for one in wanted]
    assert str(scanner.gtids) == f"{UUID_A}:1-3"
    assert (scanner.transactions, scanner.transaction_end) == (3, len(log.data))


def test_a_transaction_that_begins_just_where_a_block_does_is_its_first() -> None:
    """A reader that begins at that block would miss it otherwise."""
    log = BinlogWriter()
    for number in (1, 2, 3):
        log.transaction([BEGIN, TABLE_MAP, XID], gtid=(UUID_A, "", number))
    first, second, _ = log.transactions
    found = Scanner(stride=second.begin).feed(bytes(log.data))
    assert [one.begin for one in found] == [first.begin, second.begin]
    found = Scanner(stride=second.begin + 1).feed(bytes(log.data))
    assert [one.begin for one in found][:1] == [first.begin]
    assert second.begin not in [one.begin for one in found]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("made_up", [True, False])
def test_every_flipped_bit_of_a_format_event_is_seen(checksum: bool, made_up: bool) -> None:
    """It says whether the others have checksums, so it is always checked by its own.

    But for the one that a server makes up from a binlog without checksums: it has the CRC of the
    real one.
    """
    log = BinlogWriter(checksum=checksum)
    log.transaction([BEGIN, TABLE_MAP, XID], gtid=(UUID_A, "", 1))
    begin = log.transactions[0].begin
    whole = log.from_position(begin) if made_up else bytes(log.data)
    size_field = range(13, 17)  # a greater one waits for more bytes
    for at in range(4, log.ends[1]):
        for bit in (0x02, 0x10):
            data = bytearray(whole)
            data[at] ^= bit
            scanner = Scanner(start=begin if made_up else 0)
            if at in size_field:
                continue
            if made_up and not checksum:
                with contextlib.suppress(DamageError):
                    scanner.feed(bytes(data))
                continue
            with pytest.raises(DamageError):
                scanner.feed(bytes(data))


def test_a_made_up_format_event_of_a_binlog_without_checksums() -> None:
    """Is taken though its CRC is another event's."""
    log = BinlogWriter(checksum=False)
    log.transaction([BEGIN, TABLE_MAP, XID], gtid=(UUID_A, "", 1))
    begin = log.transactions[0].begin
    assert Scanner(start=begin).feed(log.from_position(begin)) == log.transactions


def test_a_group_of_mariadb_that_the_next_one_ends() -> None:
    """It counts as one, up to where the next one begins."""
    log = BinlogWriter(server_version="10.11.4-MariaDB")
    for number in (1, 2, 3):
        events = [TABLE_MAP, XID] if number == 3 else [TABLE_MAP]
        log.mariadb_transaction(events, gtid=(0, number))
    scanner = Scanner()
    found = scanner.feed(bytes(log.data))
    assert [(one.begin, one.end) for one in found] == [(t.begin, t.end) for t in log.transactions]
    assert (scanner.transactions, str(scanner.gtids)) == (3, "0-7-3")


@pytest.mark.parametrize("last", ["no event of its own", "a GTID event before its end"])
def test_bytes_one_at_a_time_are_the_same_transactions(last: str) -> None:
    """By their lengths: the loop for pieces of an event decides as the one for whole ones."""
    log = BinlogWriter(checksum=False)
    rows = (EventType.WRITE_ROWS, bytes(300))  # so that a length has two bytes
    for number in (1, 2, 3):
        log.transaction([BEGIN, TABLE_MAP, rows], gtid=(UUID_A, "", number))
    data = bytearray(log.data)
    if last == "a GTID event before its end":
        inside = [end for end in log.ends if log.transactions[1].begin <= end]
        begin = log.transactions[0].begin
        size = log.transactions[1].begin - begin
        data[begin + 19 + 49 + 1 : begin + 19 + 49 + 3] = (inside[1] - begin).to_bytes(
            2, "little"
        )  # the first one's length reaches over the second one's GTID event
        assert data[begin + 68] == 252
        assert size < inside[1] - begin
    whole, pieces = Scanner(), Scanner()
    found = whole.feed(bytes(data))
    assert [
        one for at in range(len(data)) for one in pieces.feed(bytes(data[at : at + 1]))
    ] == found
    assert str(pieces.gtids) == str(whole.gtids)
    assert len(found) == 3


@pytest.mark.parametrize("cut", ["in the middle of an event", "by damage"])
def test_a_scanner_goes_back_to_its_last_good_event(cut: str) -> None:
    """And takes from there what comes, as if nothing had been."""
    log = BinlogWriter()
    for number in (1, 2):
        log.transaction([BEGIN, TABLE_MAP, ROWS, XID], gtid=(UUID_A, "", number))
    data = bytes(log.data)
    good = log.transactions[1].begin
    scanner = Scanner()
    assert not scanner.rewind(), "before the first event"
    if cut == "by damage":
        wrong = bytearray(data)
        wrong[good + 30] ^= 1
        with pytest.raises(DamageError):
            scanner.feed(bytes(wrong))
        first = scanner.completed
    else:
        first = scanner.feed(data[: good + 30])
    assert scanner.event_end == good
    assert scanner.rewind()
    assert scanner.position == good
    assert [*first, *scanner.feed(data[good:])] == log.transactions
    assert scanner.event_end == len(data)


def test_a_scanner_does_not_go_back_over_events_without_positions() -> None:
    """Nobody knows where they begin once their transaction is damaged."""
    log = BinlogWriter(server_version="11.4.2-MariaDB")
    log.mariadb_transaction([TABLE_MAP, ROWS, XID], gtid=(0, 1), deferred=True)
    wrong = bytearray(log.data)
    wrong[-6] ^= 1
    scanner = Scanner()
    with pytest.raises(DamageError):
        scanner.feed(bytes(wrong))
    assert not scanner.rewind()


@pytest.mark.parametrize(
    ("numbers", "goes_back"), [((5, 6, 9), False), ((5, 6, 6), True), ((5, 9, 6), True)]
)
def test_numbers_of_a_mariadb_that_go_back(numbers: tuple[int, ...], goes_back: bool) -> None:
    """A number that comes again goes back, too: it is another transaction."""
    log = BinlogWriter(server_version="10.11.8-MariaDB")
    log.gtid_list(MariadbGtidList({}))
    for number in numbers:
        log.mariadb_transaction(
            [statement("create table a(i int)")], gtid=(0, number), standalone=True
        )
    scanner = Scanner()
    scanner.feed(bytes(log.data))
    assert scanner.gtids_go_back is goes_back
