"""What a transaction does, as the server's own mysqlbinlog tells it: tables, kinds, rows.

Each kind of transaction is written by a real server; `mysqlbinlog --verbose` prints every row of
it, and these are counted.
"""

import random
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from binlog2s3.binlog.content import Content, ContentReader
from binlog2s3.binlog.scanner import Scanner
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer

Server = MysqlServer | MariadbServer
Rows = dict[tuple[str, str], int]

COMMON = {
    "b1": "BIT(1)",
    "b8": "BIT(8)",
    "b9": "BIT(9)",
    "b64": "BIT(64)",
    "ti": "TINYINT",
    "bo": "BOOL",
    "si": "SMALLINT UNSIGNED",
    "mi": "MEDIUMINT",
    "i": "INT",
    "bi": "BIGINT UNSIGNED",
    "f": "FLOAT",
    "d": "DOUBLE",
    "n1": "DECIMAL(1,0)",
    "n2": "DECIMAL(10,3)",
    "n3": "DECIMAL(65,30)",
    "n4": "DECIMAL(18,9)",
    "n5": "DECIMAL(7,7)",
    "y": "YEAR",
    "da": "DATE",
    **{f"t{n}": f"TIME({n})" for n in range(7)},
    **{f"dt{n}": f"DATETIME({n})" for n in range(7)},
    **{f"ts{n}": f"TIMESTAMP({n}) NULL" for n in range(7)},
    "c1": "CHAR(1)",
    "c63": "CHAR(63) CHARACTER SET utf8mb4",
    "c64": "CHAR(64) CHARACTER SET utf8mb4",
    "c255": "CHAR(255) CHARACTER SET utf8mb4",
    "bn": "BINARY(255)",
    "v63": "VARCHAR(63) CHARACTER SET utf8mb4",
    "v64": "VARCHAR(64) CHARACTER SET utf8mb4",
    "vb": "VARBINARY(3000)",
    "e1": "ENUM('a','b')",
    "e2": "ENUM({})".format(",".join(f"'e{n}'" for n in range(300))),
    "s1": "SET('a','b','c')",
    "s8": "SET({})".format(",".join(f"'s{n}'" for n in range(64))),
    "tb": "TINYBLOB",
    "bl": "BLOB",
    "mt": "MEDIUMTEXT CHARACTER SET utf8mb4",
    "lb": "LONGBLOB",
    "j": "JSON",
    "gs": "INT GENERATED ALWAYS AS (i DIV 2) STORED",
    "gv": "VARCHAR(300) GENERATED ALWAYS AS (CONCAT('x', ti)) VIRTUAL",
}
PLACES = {"g": "GEOMETRY", "p": "POINT"}
MYSQL = {**COMMON, "ve": "VECTOR(5)"}
MARIADB = {
    **COMMON,
    **PLACES,
    "i6": "INET6",
    "i4": "INET4",
    "uu": "UUID",
    "bc": "BLOB COMPRESSED",
    "vc": "VARCHAR(100) COMPRESSED",
    "vd": "VARCHAR(3000) COMPRESSED",
}


def value(column: str, kind: str, dice: random.Random) -> str:  # one a type
    """An expression for a value of a column, often NULL."""
    if dice.random() < 0.25:
        return "NULL"
    many = dice.choice([0, 1, 3, 60, 250, 255])
    match re.match(r"\w+", kind).group():  # type: ignore[union-attr]
        case "BIT" | "TINYINT" | "BOOL" | "SMALLINT" | "MEDIUMINT" | "INT" | "BIGINT":
            return str(dice.choice([0, 1]))
        case "FLOAT" | "DOUBLE":
            return str(dice.random() * 1000)
        case "DECIMAL":
            return "0.1234567" if column == "n5" else str(dice.choice([0, 7, -9]))
        case "YEAR":
            return "2031"
        case "DATE":
            return "'2031-02-03'"
        case "TIME":
            return f"'{dice.choice(['-', ''])}12:13:14.123456'"
        case "DATETIME" | "TIMESTAMP":
            return "'2031-02-03 12:13:14.987654'"
        case "CHAR" | "VARCHAR" | "BINARY" | "VARBINARY" | "TINYBLOB":
            width = int(re.findall(r"\((\d+)\)", kind)[0]) if "(" in kind else 255
            width = min(width, many * 12 if width > 1000 else many)
            text = "ä" if "utf8mb4" in kind else "x"
            return f"REPEAT('{text}', {width})"
        case "BLOB" | "MEDIUMTEXT" | "LONGBLOB":
            most = {"B": 60_000, "M": 70_000, "L": 300_000}[kind[0]]
            return f"REPEAT('y', {min(most, dice.choice([0, 10, 300, 400_000]))})"
        case "ENUM":
            return str(dice.randrange(1, 3))
        case "SET":
            return str(dice.randrange(1, 8))
        case "JSON":
            return f"""'{{"a": "{"z" * many}", "b": [1, 2, {{"c": 3}}]}}'"""
        case "GEOMETRY" | "POINT":
            return "ST_GeomFromText('POINT(1 2)')"
        case "VECTOR":
            return "TO_VECTOR('[1,2,3,4,5]')"
        case "INET6":
            return "'2001:db8::7'"
        case "INET4":
            return "'192.0.2.7'"
        case "UUID":
            return "'123e4567-e89b-12d3-a456-426655440000'"
    raise AssertionError(kind)


def settable(columns: dict[str, str]) -> dict[str, str]:
    return {name: kind for name, kind in columns.items() if "GENERATED" not in kind}


def create_every(columns: dict[str, str]) -> str:
    listed = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
    return f"CREATE TABLE shop.every (id INT PRIMARY KEY, {listed})"


def work_on_every(columns: dict[str, str], seed: int) -> list[str]:
    """Transactions that write rows of all types."""
    dice = random.Random(seed)
    chosen = settable(columns)

    def row(number: int) -> str:
        made = ", ".join(value(name, kind, dice) for name, kind in chosen.items())
        return f"({number}, {made})"

    names = ", ".join(f"`{name}`" for name in chosen)
    statements = []
    for size in (1, 7, 40):
        first = seed * 1000 + size * 10
        rows = ", ".join(row(number) for number in range(first, first + size))
        statements.append(f"INSERT INTO shop.every (id, {names}) VALUES {rows}")
    for _ in range(6):
        some = dice.sample(sorted(chosen), dice.choice([1, 2, 9]))
        sets = ", ".join(f"`{name}` = {value(name, chosen[name], dice)}" for name in some)
        statements.append(f"UPDATE shop.every SET {sets} WHERE id % 3 = {dice.randrange(3)}")
    statements.append("UPDATE shop.every SET j = JSON_SET(j, '$.b[0]', 77) WHERE j IS NOT NULL")
    statements.append("UPDATE shop.every SET j = JSON_REMOVE(j, '$.a'), i = 1, bl = 'n'")
    statements.append("DELETE FROM shop.every WHERE id % 4 = 1")
    return statements


def binlog_of(server: Server, statements: Sequence[str]) -> Path:
    """A copy of the closed binlog that these statements, on one connection, have written."""
    server.query("FLUSH BINARY LOGS")
    server.query(*statements)
    name = server.binlogs()[-1][0]
    server.query("FLUSH BINARY LOGS")
    return server.datadir / name


def printed(server: Server, file: Path) -> list[str]:
    """What mysqlbinlog prints of each transaction, from its GTID on."""
    done = subprocess.run(
        [
            str(server.binaries.binlog),
            "--no-defaults",
            "--base64-output=decode-rows",
            "--verbose",
            str(file),
        ],
        env={"TZ": "UTC", "TMPDIR": str(server.directory / "tmp")},
        capture_output=True,
        check=True,
        timeout=300,
    )
    text = done.stdout.decode(errors="replace")
    mark = (
        r"^SET @@SESSION.GTID_NEXT= '(?!AUTO)" if "GTID_NEXT" in text else r"SET @@session.gtid_seq"
    )
    return re.split(mark, text, flags=re.MULTILINE)[1:]


def rows_printed(text: str) -> Rows:
    """By kind and table, the rows that mysqlbinlog shows."""
    found = re.findall(r"^### (INSERT|UPDATE|DELETE)\b[^`\n]*`(.*?)`\.`(.*?)`$", text, re.MULTILINE)
    return dict(Counter((kind.lower(), f"{db}.{table}") for kind, db, table in found))


def contents(file: Path, cut: int = 1 << 20) -> list[Content]:
    """Of each transaction, fed in pieces of this size."""
    data = file.read_bytes()
    scanner = Scanner()
    found = []
    transactions = scanner.feed(data)
    assert scanner.format is not None
    for transaction in transactions:
        reader = ContentReader(scanner.format)
        for at in range(transaction.begin, transaction.end, cut):
            reader.feed(data[at : min(at + cut, transaction.end)])
        found.append(reader.content())
    return found


def rows_of(content: Content) -> dict[tuple[str, str], int | None]:
    return {
        (change.kind, change.table): change.rows
        for change in content.changes
        if change.kind != "ddl"
    }


def told(content: Content) -> list[tuple[str, str, int | None]]:
    return [(change.kind, change.table, change.rows) for change in content.changes]


def assert_rows_agree(server: Server, file: Path) -> list[Content]:
    """Rows are what mysqlbinlog shows, however the bytes are cut; returns the contents."""
    expected = [rows_printed(text) for text in printed(server, file)]
    found = contents(file)
    assert [rows_of(content) for content in found] == expected
    for cut in (1000, 70_001):
        assert contents(file, cut) == found
    return found


@pytest.fixture(scope="module")
def mysql_server(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL for the whole module, with a table of every type."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        server.query("CREATE DATABASE shop", create_every(MYSQL))
        yield server


@pytest.fixture(scope="module")
def mariadb_server(mariadb_binaries: ServerBinaries) -> Iterator[MariadbServer]:
    """A MariaDB for the whole module, with a table of every type."""
    options = ["--binlog-format=ROW"]
    with (
        temporary_directory() as directory,
        MariadbServer(mariadb_binaries, directory, options=options) as server,
    ):
        server.query("CREATE DATABASE shop", create_every(MARIADB))
        yield server


def test_rows_with_places_in_mysql(mysql_server: MysqlServer) -> None:
    """mysqlbinlog cannot print GEOMETRY and stops there; the server's own counts are right."""
    columns = {**MYSQL, **PLACES}
    mysql_server.query("DROP TABLE shop.every", create_every(columns), "FLUSH BINARY LOGS")
    name = mysql_server.binlogs()[-1][0]
    with mysql_server.connect() as connection, connection.cursor() as cursor:
        counts = [cursor.execute(statement) for statement in work_on_every(columns, 99)]
    mysql_server.query("DROP TABLE shop.every", create_every(MYSQL), "FLUSH BINARY LOGS")
    found = contents(mysql_server.datadir / name)[:-2]
    assert [[change.rows for change in content.changes] for content in found] == [
        [count] for count in counts if count
    ]


def test_rows_with_columns_that_nobody_sees(mysql_server: MysqlServer) -> None:
    """Those of indexes over expressions and arrays, a key that the server made, invisible ones."""
    made = (
        "DROP TABLE IF EXISTS shop.hidden",
        "SET sql_generate_invisible_primary_key = ON",
        (
            "CREATE TABLE shop.hidden (a INT, j JSON, b INT INVISIBLE DEFAULT 7, KEY ((a + 1)),"
            " KEY ((CAST(j->'$.x' AS UNSIGNED ARRAY))), KEY ((UPPER(CONCAT(a, b)))))"
        ),
    )
    mysql_server.query(*made)
    write = "INSERT INTO shop.hidden (a, j) VALUES (1, '{\"x\": [1, 2]}'), (2, NULL), (NULL, '7')"
    more = ["UPDATE shop.hidden SET a = 5", "DELETE FROM shop.hidden WHERE j IS NULL"]
    for image in ("FULL", "MINIMAL"):
        file = binlog_of(mysql_server, [f"SET binlog_row_image = '{image}'", write, *more])
        found = assert_rows_agree(mysql_server, file)
        assert told(found[0]) == [("insert", "shop.hidden", 3)]


MYSQL_SETTINGS = (
    ("FULL", "", "OFF"),
    ("FULL", "PARTIAL_JSON", "ON"),
    ("MINIMAL", "PARTIAL_JSON", "OFF"),
    ("NOBLOB", "", "ON"),
)


@pytest.mark.parametrize(("image", "partial", "compressed"), MYSQL_SETTINGS)
def test_rows_of_every_type_in_mysql(
    mysql_server: MysqlServer, image: str, partial: str, compressed: str
) -> None:
    """Whole and minimal images, differences of JSON, compressed or not."""
    seed = 1 + MYSQL_SETTINGS.index((image, partial, compressed))
    settings = [
        "DELETE FROM shop.every",
        f"SET binlog_row_image = '{image}', binlog_row_value_options = '{partial}'",
        f"SET binlog_transaction_compression = {compressed}",
    ]
    file = binlog_of(mysql_server, [*settings, *work_on_every(MYSQL, seed)])
    found = assert_rows_agree(mysql_server, file)
    assert any(content.compressed for content in found) == (compressed == "ON")
    assert sum(len(content.changes) for content in found) > 8


@pytest.mark.parametrize(("image", "compressed"), [("FULL", "ON"), ("MINIMAL", "OFF")])
def test_rows_of_every_type_in_mariadb(
    mariadb_server: MariadbServer, image: str, compressed: str
) -> None:
    """Whole and minimal images, compressed or not."""
    seed = 1 + 2 * (image == "FULL") + (compressed == "ON")
    mariadb_server.query(f"SET GLOBAL log_bin_compress = {compressed}")
    settings = ["DELETE FROM shop.every", f"SET binlog_row_image = '{image}'"]
    file = binlog_of(mariadb_server, [*settings, *work_on_every(MARIADB, seed)])
    found = assert_rows_agree(mariadb_server, file)
    assert any(content.compressed for content in found) == (compressed == "ON")
    assert any(any("shop.every" in text for text in content.statements) for content in found)


def test_times_of_unknown_size_are_not_counted(mariadb_server: MariadbServer) -> None:
    """MariaDB's older format has fractions that the binlog does not tell of: no wrong number."""
    make = "CREATE OR REPLACE TABLE shop.old (id INT PRIMARY KEY, t TIME(6), d DATETIME(3))"
    write = "INSERT INTO shop.old VALUES (1, '12:13:14.5', '2031-02-03'), (2, NULL, NULL)"
    mariadb_server.query("SET GLOBAL mysql56_temporal_format = OFF", make)
    file = binlog_of(mariadb_server, [write])
    mariadb_server.query("SET GLOBAL mysql56_temporal_format = ON", make)
    again = binlog_of(mariadb_server, [write])
    assert [told(content) for content in contents(file)] == [[("insert", "shop.old", None)]]
    assert [told(content) for content in contents(again)] == [[("insert", "shop.old", 2)]]


# ---- statements


TABLES = (
    "CREATE TABLE shop.one (id INT PRIMARY KEY, v VARCHAR(300))",
    "CREATE TABLE shop.two (id INT PRIMARY KEY, v VARCHAR(300))",
)
GONE = ("DROP TABLE IF EXISTS shop.one, shop.two",)
CHANGES = (
    "INSERT INTO shop.one VALUES (1, 'a'), (2, 'b')",
    "REPLACE INTO shop.two VALUES (1, 'a'), (3, 'c')",
    "UPDATE shop.one SET v = 'x' WHERE id = 1",
    "UPDATE shop.one JOIN shop.two USING (id) SET one.v = 'y', two.v = 'z'",
    "DELETE one, two FROM shop.one JOIN shop.two USING (id)",
    "DELETE FROM shop.two",
)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("compressed", ["OFF", "ON"])
def test_rows_and_their_statements(
    request: pytest.FixtureRequest, flavour: str, compressed: str
) -> None:
    """One transaction with many tables; the statements that the server noted down; LOAD DATA."""
    server: Server = request.getfixturevalue(f"{flavour}_server")
    source = server.directory / "more.txt"
    source.write_text("".join(f"{number}\ttext\n" for number in range(100, 400)))
    load = f"LOAD DATA INFILE '{source}' INTO TABLE shop.one"
    if flavour == "mysql":
        chosen = [f"SET binlog_transaction_compression = {compressed}"]
        chosen.append("SET binlog_rows_query_log_events = ON")
    else:
        chosen = [f"SET GLOBAL log_bin_compress = {compressed}"]
        chosen.append("SET GLOBAL log_bin_compress_min_len = 10")
    server.query(*GONE, *TABLES)
    many = [
        "USE shop",
        "START TRANSACTION",
        *CHANGES,
        "SAVEPOINT a",
        load,
        "ROLLBACK TO a",
        load,
        "COMMIT",
    ]
    file = binlog_of(server, [*chosen, *many])
    found = assert_rows_agree(server, file)
    assert len(found) == 1
    assert {change.rows for change in found[0].changes if change.table == "shop.one"} >= {302}
    assert [text for text in found[0].statements if text in CHANGES] == list(CHANGES)
    assert found[0].compressed == (compressed == "ON")
