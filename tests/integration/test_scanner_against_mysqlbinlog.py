"""The scanner says of real binlogs what the server's own mysqlbinlog says of them.

Each kind of binlog is written by a real server, streamed by the stock client, and scanned; the
stock client's text of the same file is the witness. Then once more with the transaction lengths
taken out of the GTID events, so that the table of `binlog.transactions` must find the same ends.
"""

import struct
import subprocess
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
from pymysql import OperationalError
from pymysql.constants import CLIENT

from binlog2s3.binlog.events import HEADER
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType, Scanner, Transaction
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.load import Load
from lab.mysql import MariadbServer, MysqlServer
from tests.witness import Witness

SCHEMA = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.item (id INT AUTO_INCREMENT PRIMARY KEY, value LONGBLOB) ENGINE=InnoDB",
    "CREATE TABLE shop.note (value INT) ENGINE=MyISAM",
)
PIECE = 1 << 20
VIOLATES_GTID_CONSISTENCY = 1785


# ---- servers


Server = MysqlServer | MariadbServer


@pytest.fixture(scope="module")
def with_gtids(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL with GTIDs for the whole module."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        yield server


@pytest.fixture(scope="module")
def without_gtids(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL whose transactions are anonymous."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, gtid=False) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def any_mariadb(mariadb_binaries: ServerBinaries) -> Iterator[MariadbServer]:
    """A MariaDB for the whole module."""
    with temporary_directory() as directory, MariadbServer(mariadb_binaries, directory) as server:
        yield server


def streamed(server: Server, name: str, directory: Path, start: int | None = None) -> Path:
    """One binlog as the stock client writes it."""
    directory.mkdir(exist_ok=True)
    argv = [
        str(server.binaries.binlog),
        "--no-defaults",
        f"--socket={server.socket}",
        "--user=root",
        "--read-from-remote-server",
        "--raw",
        f"--result-file={directory}/",
        *([] if start is None else [f"--start-position={start}"]),
        name,
    ]
    subprocess.run(argv, check=True, timeout=300, capture_output=True)
    return directory / name


def written(server: Server, work: Callable[[Server], object], directory: Path) -> list[Path]:
    """The closed binlogs that `work` has written, in order."""
    server.query("DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS lab_load", *SCHEMA)
    server.query("FLUSH BINARY LOGS")
    before = len(server.binlogs())
    work(server)
    server.query("FLUSH BINARY LOGS")
    names = [name for name, _ in server.binlogs()][before - 1 : -1]
    return [streamed(server, name, directory) for name in names]


def field_at(event: bytearray, at: int, wanted: int) -> int:
    """Where the field with this id begins in the body of a GTID_TAGGED event."""

    def number(at: int) -> tuple[int, int]:
        extra = 0
        while extra < 8 and event[at] >> extra & 1:
            extra += 1
        size = 9 if extra == 8 else extra + 1
        value = int.from_bytes(event[at + (extra == 8) : at + size], "little")
        return (value if extra == 8 else value >> size), at + size

    for _ in range(3):  # version, size, last field that must be understood
        _, at = number(at)
    while True:
        begin = at
        field, at = number(at)
        if field == wanted:
            return begin
        for _ in range(16 if field == 1 else 1):
            value, at = number(at)
        if field == 3:
            at += value


def without_lengths(data: bytes) -> bytes:
    """The same binlog as a server before 8.0.2 would write it: no transaction lengths."""
    blind = bytearray(data)
    at, trailer = 4, 0
    while at < len(blind):
        _, event_type, _, size, _, _ = HEADER.unpack_from(blind, at)
        if event_type == EventType.FORMAT_DESCRIPTION:
            trailer = 4 * blind[at + size - 5]
        elif event_type in (EventType.GTID, EventType.ANONYMOUS_GTID):
            has_original = blind[at + 19 + 48] & 0x80
            blind[at + 19 + 49 + (7 if has_original else 0)] = 0
        elif event_type == EventType.GTID_TAGGED:
            blind[field_at(blind, at + 19, 8)] = 63 << 1  # a field that nobody knows
        if trailer:
            blind[at + size - 4 : at + size] = struct.pack(
                "<I", zlib.crc32(blind[at : at + size - 4])
            )
        at += size
    return bytes(blind)


# ---- comparing


def scanned(data: bytes, start: int = 0, piece: int = PIECE) -> tuple[Scanner, list[Transaction]]:
    """A scanner that has taken all of `data` in pieces, and what it found."""
    scanner = Scanner(start)
    found: list[Transaction] = []
    view = memoryview(data)
    for at in range(0, len(data), piece):
        found += scanner.feed(view[at : at + piece])
    return scanner, found


def compare(server: Server, files: Sequence[Path]) -> str:
    """Each of these consecutive binlogs, with its witness; returns the witnesses' whole text."""
    texts = []
    known: Gtids | None = None
    for file in files:
        data = file.read_bytes()
        witness = Witness.of(server.binaries.binlog, file)
        is_mysql = server.binaries.flavour == "mysql"
        expected = witness.mysql_transactions() if is_mysql else witness.mariadb_transactions()
        scanner, found = scanned(data)
        assert found == expected
        assert scanner.event_end == scanner.transaction_end == len(data) == witness.bounds[-1]
        assert scanner.events == len(witness.headers)
        assert scanner.transactions == len(expected)
        assert scanner.anonymous == sum(t.gtid is None for t in expected)
        assert scanner.flavour == server.binaries.flavour
        assert scanner.format is not None
        assert f"server v {scanner.format.server_version} " in witness.text
        gtids = ",".join(t.gtid for t in expected if t.gtid)
        if is_mysql:
            assert scanner.gtids == GtidSet.parse(gtids)
            blind, same = scanned(without_lengths(data))
            assert same == expected
            assert blind.transaction_end == len(data)
        else:
            assert scanner.gtids == MariadbGtidList.parse(gtids)
        assert scanner.ended
        if scanner.rotate is not None:
            assert scanner.rotate.next_binlog == BinlogName.parse(file.name).next()
        compare_every_event(data, witness)
        compare_starts(server, file.name, data, expected, file.parent)
        if known is not None:
            assert scanner.previous_gtids == known
        known = scanner.gtids_at_end
        assert known is not None
        texts.append(witness.text)
    return "".join(texts)


def compare_every_event(data: bytes, witness: Witness) -> None:
    """Fed event by event, the scanner stands where the witness's events end."""
    scanner = Scanner()
    scanner.feed(data[:4])
    good = (4, 0)
    for count, (begin, end) in enumerate(pairwise(witness.bounds), start=1):
        scanner.feed(memoryview(data)[begin : end - 1])
        assert (scanner.event_end, scanner.events) == good
        scanner.feed(memoryview(data)[end - 1 : end])
        if witness.headers[count - 1][0]:
            good = (end, count)
        assert (scanner.event_end, scanner.events) == good


def compare_starts(
    server: Server, name: str, data: bytes, expected: list[Transaction], directory: Path
) -> None:
    """From the begin, the middle and the end of a transaction, the rest is the same."""
    if not expected:
        return
    middle = expected[len(expected) // 2]
    size = HEADER.unpack_from(data, middle.begin)[3]
    for start in (middle.begin, middle.begin + size, middle.end, len(data)):
        file = streamed(server, name, directory / "from", start)
        scanner, found = scanned(file.read_bytes(), start)
        assert found == [t for t in expected if t.begin >= start]
        assert scanner.event_end == len(data)
        assert file.read_bytes()[scanner.skipped :] == data[start:]
        assert scanner.transaction_end in ((len(data),) if start < len(data) else (0,))


# ---- the kinds


def sql(*statements: str) -> Callable[[Server], object]:
    """Statements on one connection; with GTIDs a server refuses what mixes engines."""

    def work(server: Server) -> None:
        with server.connect(database="shop") as connection, connection.cursor() as cursor:
            for statement in statements:
                try:
                    cursor.execute(statement)
                except OperationalError as error:
                    if error.args[0] != VIOLATES_GTID_CONSISTENCY:
                        raise

    return work


def load_data(statement_format: str) -> Callable[[Server], object]:
    """LOAD DATA of some blocks."""

    def work(server: Server) -> None:
        file = server.directory / "items.csv"
        file.write_text("".join(f"{line:0>200}\n" for line in range(2000)))
        sql(
            f"SET SESSION binlog_format={statement_format}",
            f"LOAD DATA INFILE '{file}' INTO TABLE item (value)",
            f"LOAD DATA INFILE '{file}' INTO TABLE note (value)",
        )(server)

    return work


def multi_statement(server: Server) -> None:
    """Several statements in one packet, and in one procedure."""
    with (
        server.connect(database="shop", client_flag=CLIENT.MULTI_STATEMENTS) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(
            "INSERT INTO item (value) VALUES ('a'); UPDATE item SET value = 'b'; BEGIN;"
            "INSERT INTO item (value) VALUES ('c'); DELETE FROM item LIMIT 1; COMMIT"
        )
        while cursor.nextset():
            pass
        cursor.execute("CREATE PROCEDURE twice() BEGIN INSERT INTO item (value) VALUES (1);"
                       "INSERT INTO item (value) VALUES (2); END")  # fmt: skip
        cursor.execute("CALL twice()")
        cursor.execute("DROP PROCEDURE twice")


def tagged(server: Server) -> None:
    """Tags by name, by number, out of order, beside plain GTIDs."""
    uuid = server.query("SELECT @@server_uuid")[0][0]
    insert = "INSERT INTO item (value) VALUES ('t')"
    names = ["AUTOMATIC:blue", f"{uuid}:red:900", f"{uuid}:red:7", "AUTOMATIC:blue", "AUTOMATIC",
             f"{uuid.replace('0', 'f')}:{'long_' * 6}:9000000000000000000",
             f"{uuid}:5000000", "AUTOMATIC"]  # fmt: skip
    statements = [f"SET gtid_next = '{name}'; {insert}".split("; ") for name in names]
    sql(*(part for pair in statements for part in pair), "SET gtid_next='AUTOMATIC'",
        "CREATE TABLE tagged (i INT)", "DROP TABLE tagged")(server)  # fmt: skip


def checksum_changes(server: Server) -> None:
    """The server rotates at each change; each binlog has its own algorithm."""
    insert = "INSERT INTO shop.item (value) VALUES ('c')"
    for algorithm in ("NONE", "CRC32", "NONE"):
        server.query(f"SET GLOBAL binlog_checksum = {algorithm}", insert, insert)
    server.query("SET GLOBAL binlog_checksum = CRC32")


def writers(server: Server) -> None:
    """Four writers at once, with rotations."""
    with Load(server, threads=4, transactions_each=60, flush_seconds=0.3) as load:
        load.join()


ROW = "SET SESSION binlog_format=ROW"
STATEMENT = "SET SESSION binlog_format=STATEMENT"
MIXED = "SET SESSION binlog_format=MIXED"
CHANGES = (
    "INSERT INTO item (value) VALUES ('a'), ('b'), (NULL)",
    "UPDATE item SET value = CONCAT(value, 'c')",
    "BEGIN",
    "INSERT INTO item (value) VALUES ('d')",
    "DELETE FROM item WHERE value = 'd'",
    "COMMIT",
    "INSERT INTO note VALUES (1)",
    "BEGIN",
    "INSERT INTO item (value) VALUES ('e')",
    "INSERT INTO note VALUES (2)",
    "ROLLBACK",
)
SAVEPOINTS = (
    "BEGIN",
    "INSERT INTO item (value) VALUES ('a')",
    "SAVEPOINT `begin`",
    "INSERT INTO item (value) VALUES ('b')",
    "INSERT INTO note VALUES (3)",
    "rollback /* ; commit */ work to savepoint `begin`",
    "SAVEPOINT commit_it",
    "INSERT INTO item (value) VALUES ('c')",
    "ROLLBACK TO commit_it",
    "RELEASE SAVEPOINT `begin`",
    "INSERT INTO item (value) VALUES ('d')",
    "COMMIT",
)
DDL = (
    "CREATE TABLE `commit` (i INT PRIMARY KEY)",
    "ALTER TABLE `commit` ADD COLUMN j INT",
    "CREATE TABLE copy SELECT * FROM item",
    "CREATE VIEW seen AS SELECT 1 AS one",
    "CREATE TRIGGER trig BEFORE INSERT ON `commit` FOR EACH ROW SET NEW.j = 1",
    "INSERT INTO `commit` VALUES (1, 2)",
    "RENAME TABLE copy TO copied",
    "TRUNCATE copied",
    "CREATE USER someone@localhost",
    "GRANT SELECT ON shop.* TO someone@localhost",
    "DROP USER someone@localhost",
    "DROP TABLE `commit`, copied",
    "DROP VIEW seen",
    "ANALYZE TABLE item",
    "FLUSH TABLES",
)
XA = (
    "XA START 'one', 'b', 7", "INSERT INTO item (value) VALUES ('x')", "XA END 'one', 'b', 7",
    "XA PREPARE 'one', 'b', 7", "XA COMMIT 'one', 'b', 7",
    "XA START 'two'", "INSERT INTO item (value) VALUES ('y')", "XA END 'two'",
    "XA PREPARE 'two'", "XA ROLLBACK 'two'",
    "XA START 'three'", "INSERT INTO item (value) VALUES ('z')", "XA END 'three'",
    "XA COMMIT 'three' ONE PHASE",
    "XA START 'four'", "INSERT INTO item (value) VALUES ('z')", "XA END 'four'",
    "XA ROLLBACK 'four'",
    "XA START 'five'", "INSERT INTO note VALUES (5)", "XA END 'five'", "XA ROLLBACK 'five'",
)  # fmt: skip
TEMPORARY = (
    "CREATE TEMPORARY TABLE tmp (i INT)",
    "INSERT INTO tmp VALUES (1)",
    "INSERT INTO item (value) SELECT i FROM tmp",
    "DROP TEMPORARY TABLE tmp",
)
LEFT_OPEN = ("CREATE TEMPORARY TABLE left_open (i INT)", "INSERT INTO left_open VALUES (1)")
ROW_SIZES = (
    *(f"INSERT INTO item (value) VALUES ({i})" for i in range(10)),
    "INSERT INTO item (value) VALUES (REPEAT('x', 16 * 1024 * 1024))",
    "INSERT INTO item (value) VALUES ('y')",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What to write, and what the witness must have seen so that the kind is really there."""

    work: Callable[[Server], object]
    seen: tuple[str, ...]
    seen_without_gtids: tuple[str, ...] = ()  # what a server with GTIDs refuses


KINDS = {
    "row": Kind(sql(ROW, *CHANGES), ("Write_rows", "Update_rows", "Delete_rows", "Xid", "COMMIT")),
    "statement": Kind(sql(STATEMENT, *CHANGES), ("Intvar", "DELETE FROM item"), ("\nROLLBACK\n",)),
    "mixed": Kind(
        sql(MIXED, *CHANGES, "INSERT INTO item (value) VALUES (UUID())"),
        ("DELETE FROM item", "Write_rows"),
    ),
    "ddl": Kind(sql(ROW, *DDL), ("TRIGGER trig", "copied", "DROP USER")),
    "savepoints in rows": Kind(sql(ROW, *SAVEPOINTS), ("SAVEPOINT",)),
    "savepoints in statements": Kind(
        sql(STATEMENT, *SAVEPOINTS), ("SAVEPOINT",), ("ROLLBACK TO `begin`",)
    ),
    "xa in rows": Kind(
        sql(ROW, *XA), ("XA START", "XA END", "XA COMMIT", "XA ROLLBACK", "PREPARE")
    ),
    "xa in statements": Kind(
        sql(STATEMENT, *XA), ("XA START", "XA END", "XA COMMIT", "XA ROLLBACK", "ONE PHASE")
    ),
    "load data in rows": Kind(load_data("ROW"), ("Write_rows",)),
    "load data in statements": Kind(
        load_data("STATEMENT"), ("Begin_load_query", "Append_block", "Execute_load_query")
    ),
    "several statements in one packet": Kind(multi_statement, ("CREATE DEFINER",)),
    "temporary tables": Kind(
        sql(STATEMENT, *TEMPORARY, *LEFT_OPEN), ("CREATE TEMPORARY TABLE", "DROP")
    ),
    "changing checksums": Kind(checksum_changes, ("Write_rows",)),
    "compressed": Kind(
        sql(ROW, "SET SESSION binlog_transaction_compression=ON", *CHANGES, *ROW_SIZES, *XA, *DDL),
        ("Transaction_Payload", "compression_type=ZSTD"),
    ),
    "row sizes": Kind(sql(ROW, *ROW_SIZES), ("Write_rows",)),
    "writers": Kind(writers, ("Write_rows", "lab_load")),
}


def compare_kind(server: Server, kind: Kind, directory: Path) -> None:
    text = compare(server, written(server, kind.work, directory))
    assert [words for words in kind.seen if words not in text] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_with_gtids(with_gtids: MysqlServer, kind: str, disk_tmp_path: Path) -> None:
    """Offsets, sizes, GTIDs, commit times and counts are the stock client's."""
    compare_kind(with_gtids, KINDS[kind], disk_tmp_path)


ANONYMOUS = ("row", "statement", "ddl", "savepoints in statements", "xa in rows", "compressed")
"""Kinds that are written otherwise without GTIDs, or whose ends the table must find."""


@pytest.mark.parametrize("kind", ANONYMOUS)
def test_every_kind_without_gtids(
    without_gtids: MysqlServer, kind: str, disk_tmp_path: Path
) -> None:
    """The same for anonymous transactions."""
    seen = (*KINDS[kind].seen, *KINDS[kind].seen_without_gtids, "ANONYMOUS")
    compare_kind(without_gtids, replace(KINDS[kind], seen=seen), disk_tmp_path)


def test_tagged_gtids(with_gtids: MysqlServer, disk_tmp_path: Path) -> None:
    """Both forms of GTID event in one binlog, and the previous GTIDs in their tagged form."""
    files = written(with_gtids, tagged, disk_tmp_path)
    text = compare(with_gtids, files)
    compare(with_gtids, written(with_gtids, tagged_again, disk_tmp_path))
    assert ":blue:" in text
    assert ":red:900" in text
    executed = GtidSet.parse(with_gtids.query("SELECT @@global.gtid_executed")[0][0])
    scanner, _ = scanned(files[-1].read_bytes())
    assert scanner.gtids <= executed
    assert any(tag for _, tag, _ in executed.runs())


def tagged_again(server: Server) -> None:
    """One more, behind a binlog with tags."""
    sql("SET gtid_next = 'AUTOMATIC:blue'", "INSERT INTO item (value) VALUES ('t')")(server)


def test_the_server_prints_gtid_sets_as_we_do(with_gtids: MysqlServer, disk_tmp_path: Path) -> None:
    """The set of all binlogs together, as text, is the server's gtid_executed, tags included."""
    written(with_gtids, tagged_again, disk_tmp_path)
    found = GtidSet()
    for name, _ in with_gtids.binlogs()[:-1]:
        scanner, _ = scanned(streamed(with_gtids, name, disk_tmp_path).read_bytes())
        assert isinstance(scanner.gtids, GtidSet)
        found |= scanner.gtids
    executed = with_gtids.query("SELECT @@global.gtid_executed")[0][0]
    assert str(found) == executed.replace("\n", "")
    half = GtidSet.parse(",".join(executed.split(",")[:1]))
    rows = with_gtids.query(
        f"SELECT GTID_SUBTRACT('{executed}', '{half}'), GTID_SUBSET('{half}', '{executed}')"
    )
    assert str(found - half) == rows[0][0].replace("\n", "")
    assert (half <= found) == bool(rows[0][1])


def test_a_stopped_and_a_crashed_server(
    mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """A clean shutdown ends in a stop event, a crash in nothing: whole, but not ended."""
    with MysqlServer(mysql_binaries, disk_tmp_path / "server") as server:
        server.query(*SCHEMA, "INSERT INTO shop.item (value) VALUES ('a')")
        (first, _), *_ = server.binlogs()
        server.restart()
        server.query("INSERT INTO shop.item (value) VALUES ('b')")
        server.kill()
        server.start()
        scanner, _ = scanned(streamed(server, first, disk_tmp_path / "files").read_bytes())
        assert scanner.stopped
        assert scanner.rotate is None
        second = str(BinlogName.parse(first).next())
        scanner, found = scanned(streamed(server, second, disk_tmp_path / "files").read_bytes())
        assert not scanner.ended
        assert scanner.transaction_end == scanner.position
        assert len(found) == 1


MARIADB_KINDS = {
    "row": Kind(
        sql(ROW, *CHANGES, "SET SESSION gtid_domain_id=3", *CHANGES),
        ("Write_rows", "Annotate_rows", "GTID 3-"),
    ),
    "statement": Kind(sql(STATEMENT, *CHANGES), ("Intvar", "DELETE FROM item")),
    "mixed": Kind(
        sql(MIXED, *CHANGES, "INSERT INTO item (value) VALUES (UUID())"), ("Write_rows",)
    ),
    "ddl": Kind(
        sql(ROW, *DDL, "CREATE SEQUENCE seq", "SELECT NEXT VALUE FOR seq", "DROP SEQUENCE seq"),
        ("CREATE SEQUENCE", " ddl"),
    ),
    "savepoints in rows": Kind(sql(ROW, *SAVEPOINTS), ("SAVEPOINT",)),
    "savepoints in statements": Kind(sql(STATEMENT, *SAVEPOINTS), ("SAVEPOINT",)),
    "xa": Kind(sql(ROW, *XA), ("XA PREPARE", "XA COMMIT", "XA ROLLBACK")),
    "load data": Kind(load_data("STATEMENT"), ("Begin_load_query", "Execute_load_query")),
    "temporary tables": Kind(sql(STATEMENT, *TEMPORARY, *LEFT_OPEN), ("TEMPORARY TABLE",)),
    "several statements in one packet": Kind(multi_statement, ("CREATE DEFINER",)),
    "changing checksums": Kind(checksum_changes, ("INSERT INTO",)),
    "compressed": Kind(
        sql(
            "SET GLOBAL log_bin_compress=ON",
            ROW,
            f"INSERT INTO item (value) VALUES ('{'x' * 1000}')",
            STATEMENT,
            f"INSERT INTO item (value) VALUES ('{'x' * 1000}')",
            f"INSERT INTO note SELECT LENGTH('{'x' * 1000}')",
            f"CREATE TABLE c (i INT) COMMENT '{'x' * 1000}'",
            "DROP TABLE c",
            "SET GLOBAL log_bin_compress=OFF",
        ),
        ("Query_compressed", "Write_compressed_rows"),
    ),
    "row sizes": Kind(sql(ROW, *ROW_SIZES), ("Write_rows",)),
    "writers": Kind(writers, ("lab_load",)),
}


@pytest.mark.parametrize("kind", MARIADB_KINDS)
def test_every_kind_of_mariadb(any_mariadb: MariadbServer, kind: str, disk_tmp_path: Path) -> None:
    """Offsets, sizes, GTIDs, times and counts are those of MariaDB's own client."""
    compare_kind(any_mariadb, MARIADB_KINDS[kind], disk_tmp_path)
