"""mysqlbinlog's text into a real target: everything arrives, and no half of anything."""

import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from binlog2s3.errors import RecoveryError
from binlog2s3.recover.client import find_client
from binlog2s3.recover.model import Progress
from binlog2s3.recover.pipe import Pipe, decode
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import find
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.integration import apply_pair
from tests.integration.apply_pair import (
    HOLD,
    RELAXED,
    content,
    gtids,
    gtids_off,
    gtids_on,
    held_up,
    leave_temporary_table,
    same,
    stand_in_the_way,
    two,
    write_all_kinds,
    write_rows,
)
from tests.own_files import Own, own
from tests.waiting import PATIENCE, wait_until


@dataclass(frozen=True, slots=True)
class Pair(apply_pair.Pair):
    """Two servers: what one has written is brought to the other, through the pipe."""

    def apply(
        self,
        files: Own,
        told: Callable[[Progress], None] = lambda _: None,
        login: Login | None = None,
        asked: Login | None = None,
        **options: Any,
    ) -> None:
        """Bring them to the target."""
        login = login or self.login()
        binaries = self.target.binaries
        made = options.pop("made", [])
        with Server(lambda: asked or login) as server:
            pipe = Pipe(
                server,
                login,
                find_client(binaries.flavour, binaries.client),
                find(binaries.flavour, options.pop("binlog", binaries.binlog)),
                size=files.size,
                transactions=files.count,
                **options,
            )
            made.append(pipe)
            pipe.apply(files.stream(), told)


@pytest.fixture(scope="module")
def mysql_pair(mysql_binaries: ServerBinaries) -> Iterator[Pair]:
    """Two of MySQL."""
    with two(MysqlServer, mysql_binaries) as both:
        yield Pair(*both)


@pytest.fixture(scope="module")
def mariadb_pair(mariadb_binaries: ServerBinaries) -> Iterator[Pair]:
    """Two of MariaDB."""
    strict = [*RELAXED, "--gtid-strict-mode=ON"]
    # CREATE TABLE ... SELECT comes as two transactions, the second without a GTID
    loose = [*RELAXED, "--gtid-strict-mode=OFF"]
    with two(MariadbServer, mariadb_binaries, strict, target_options=loose) as both:
        yield Pair(*both)


@pytest.fixture(params=["mysql", "mariadb"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """Each flavour in turn, both servers as new."""
    found: Pair = request.getfixturevalue(f"{request.param}_pair")
    found.clear()
    return found


@pytest.fixture
def mysql2(mysql_pair: Pair) -> Pair:
    """Two of MySQL, as new."""
    mysql_pair.clear()
    return mysql_pair


@pytest.mark.gate(r"mysql-a\rb-False")
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", ["a\nDELETE FROM inj.victim;#x", "a\rb"])
def test_a_line_break_in_a_table_name(pair: Pair, name: str, compressed: bool) -> None:
    """It would be executed as a statement: such a table's rows are never made text of."""
    switch = []  # MariaDB compresses no table's name
    if compressed and pair.is_mysql:
        switch = ["SET SESSION binlog_transaction_compression = ON"]
    pair.source.query(
        "SET SESSION binlog_format = ROW",
        "CREATE DATABASE inj",
        "CREATE TABLE inj.victim (a INT)",
        "INSERT INTO inj.victim VALUES (1), (2), (3)",
        f"CREATE TABLE inj.`{name}` (a INT)",
        *switch,
        f"INSERT INTO inj.`{name}` VALUES (1)",
    )
    files, binaries = pair.files(), pair.target.binaries
    with pytest.raises(RecoveryError, match="executed as a statement of its own") as raised:
        pair.apply(files)
    assert "--apply relay-log" in (raised.value.hint or "")
    binlog = find(binaries.flavour, binaries.binlog)
    with pytest.raises(RecoveryError, match="executed as a statement of its own"):
        decode(files.stream(), [].append, binlog, size=files.size, transactions=files.count)


MYSQL_ATTACK = (
    "CREATE TABLE inj.note (id INT) --\x01'\n"
    "-- ' /*!*/; DELETE FROM inj.victim /*!*/; SELECT '\n"
    "-- '"
)
MARIADB_ATTACK = (
    "INSERT INTO inj.victim VALUES (9) --\x01'\n"
    "-- ' /*!*/; DELETE FROM inj.victim /*!*/; SELECT '\n"
    "-- '"
)
UNENDED = "CREATE TABLE inj.note (id INT) --\x01'"


def injected(pair: Pair, statement: str) -> None:
    """What somebody wrote who may do little on the source; MariaDB logs it as it came."""
    mixed = [] if pair.is_mysql else ["SET SESSION binlog_format = MIXED"]
    pair.source.query(
        "CREATE DATABASE inj",
        "CREATE TABLE inj.victim (a INT)",
        "INSERT INTO inj.victim VALUES (1), (2), (3)",
        *mixed,
        statement,
    )


@pytest.mark.parametrize("statement", [MYSQL_ATTACK, MARIADB_ATTACK, UNENDED])
def test_statements_that_a_client_takes_for_others(pair: Pair, statement: str) -> None:
    """They are held up, for the client and for --stdout, before anything of them was executed."""
    if pair.is_mysql and statement == MARIADB_ATTACK:
        pair.source.query("SET GLOBAL binlog_format = STATEMENT")
    injected(pair, statement)
    files, binaries = pair.files(), pair.target.binaries
    with pytest.raises(RecoveryError, match="executed as a statement of its own") as raised:
        pair.apply(files)
    assert "\x01" not in str(raised.value)
    here = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'inj'"
    tables = pair.target.query(here)
    assert tables in ([], [("victim",)])
    if tables:
        assert pair.target.query("SELECT COUNT(*) FROM inj.victim")[0][0] in (0, 3)
    binlog = find(binaries.flavour, binaries.binlog)
    with pytest.raises(RecoveryError, match="executed as a statement of its own"):
        decode(files.stream(), [].append, binlog, size=files.size, transactions=files.count)


def test_the_wait_at_the_end_has_a_limit(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes a statement for one that goes on waits for more, for ever."""
    monkeypatch.setattr("binlog2s3.binlog.content.unclear", lambda *_: "")
    injected(pair, UNENDED)
    with pytest.raises(RecoveryError, match="does nothing since"):
        pair.apply(pair.files(), silent_seconds=2.0)


@pytest.mark.parametrize("cut", [333, 1 << 20])
def test_everything_arrives(pair: Pair, disk_tmp_path: Path, cut: int) -> None:
    """Tables, routines with their comments, accounts, GTIDs: the target is what the source is."""
    write_all_kinds(pair.source, disk_tmp_path)
    files = pair.files(cut=cut)
    told: list[Progress] = []
    made: list[Pipe] = []
    pair.apply(files, told.append, made=made)
    same(pair)
    assert made[0].touched
    last = told[-1]
    assert (last.size, last.transactions) == (files.size, files.count)
    assert (last.of_size, last.of_transactions) == (files.size, files.count)
    assert [at.transactions for at in told] == sorted(at.transactions for at in told)


# No half of a statement


class Process(apply_pair.Process):
    """An apply in a process of its own."""

    def __init__(self, pair: Pair, names: Sequence[str], **changes: Any) -> None:
        binaries = pair.target.binaries
        told = {
            "flavour": binaries.flavour,
            "socket": str(pair.target.socket),
            "directory": str(pair.source.datadir),
            "names": list(names),
            "binlog": str(binaries.binlog),
            "client": str(binaries.client),
        }
        self.pair = pair
        temporary = {"TMPDIR": str(pair.target.directory / "tmp")}
        super().__init__("tests.apply_process", told | changes, temporary)

    def end(self, by: signal.Signals | None = None, timeout: float = 600) -> str:
        """Wait for its end, and for its session's; what it said on standard error."""
        said = super().end(by, timeout)
        self.wait_without_session()
        return said

    def sessions(self) -> int:
        """How many sessions the target has besides the one that asks."""
        rows = self.pair.target.query("SHOW PROCESSLIST")
        return sum(row[1] == "root" and row[4] != "Daemon" for row in rows) - 1

    def wait_without_session(self) -> None:
        wait_until(lambda: self.sessions() == 0, what="the session has ended")


HALF = """\
DELIMITER /*!*/;
CREATE DATABASE torn/*!*/;
use torn/*!*/;
CREATE TABLE a (i INT)/*!*/;
CREATE TABLE b (i INT)/*!*/;
CREATE TABLE ready (i INT)/*!*/;
DROP TABLE a"""


def _torn_tool(directory: Path, then: str) -> Path:
    """A mysqlbinlog that breaks off in the middle of a statement, and then does something."""
    path = directory / "mysqlbinlog"
    (directory / "half.sql").write_text(HALF)
    path.write_text(f"#!/bin/sh\ncat {directory}/half.sql\n{then}\n")
    path.chmod(0o755)
    return path


def _tables(server: MysqlServer, schema: str = "torn") -> list[str]:
    return [
        str(row[0])
        for row in server.query(
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = '{schema}' ORDER BY table_name"
        )
    ]


@pytest.mark.parametrize(
    ("flavour", "how"),
    [("mysql", "SIGKILL"), ("mysql", "SIGTERM"), ("mysql", "SIGINT"), ("mariadb", "SIGKILL")],
)
def test_we_are_ended_in_the_middle_of_a_statement(
    request: pytest.FixtureRequest, disk_tmp_path: Path, flavour: str, how: str
) -> None:
    """However this process ends, the half of DROP TABLE a, b that was handed on is not executed."""
    pair: Pair = request.getfixturevalue(f"{flavour}_pair")
    pair.clear()
    tool = _torn_tool(disk_tmp_path, "exec sleep 1000")
    pair.source.query("CREATE DATABASE any_of_it")
    run = Process(pair, ["mysql-bin.000001"], binlog=str(tool))
    wait_until(lambda: "ready" in _tables(pair.target), what="the text was handed on")
    run.end(signal.Signals[how])
    assert _tables(pair.target) == ["a", "b", "ready"]


SLOWLY = """\
import random, sys, time
def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()
say("DELIMITER /*!*/;\\nCREATE DATABASE IF NOT EXISTS torn/*!*/;\\nuse torn/*!*/;\\n")
say("DROP TABLE IF EXISTS a/*!*/;\\nDROP TABLE IF EXISTS b/*!*/;\\n")
while True:
    say("CREATE TABLE a (i INT)/*!*/;\\nCREATE TABLE b (i INT)/*!*/;\\nDROP TABLE a")
    time.sleep(random.random() * 0.1)
    say(", b/*!*/;\\n")
"""


@pytest.mark.soak
def test_killed_two_hundred_times_in_the_middle_of_a_statement(
    mysql2: Pair, disk_tmp_path: Path
) -> None:
    """Half of the time the client holds DROP TABLE a, and never executes it."""
    (disk_tmp_path / "slowly.py").write_text(SLOWLY)
    tool = disk_tmp_path / "mysqlbinlog"
    tool.write_text(f"#!/bin/sh\nexec {sys.executable} -S {disk_tmp_path}/slowly.py\n")
    tool.chmod(0o755)
    mysql2.source.query("CREATE DATABASE any_of_it")
    both = 0
    for _ in range(int(os.environ.get("ROUNDS", "200"))):
        mysql2.target.query("DROP DATABASE IF EXISTS torn")
        run = Process(mysql2, ["mysql-bin.000001"], binlog=str(tool))
        wait_until(lambda: _tables(mysql2.target), what="it has begun", interval=0.01)
        Event().wait(random.random() * 0.1)  # any moment will do
        run.end(signal.SIGKILL)
        found = _tables(mysql2.target)
        both += found == ["a", "b"]
        assert found != ["b"]
    assert both


@pytest.mark.parametrize(
    ("then", "said"),
    [
        ("exit 0", "ended in the middle of its text|before it had read"),
        ("exit 1", "mysqlbinlog failed: exit status 1|before it had read"),
        ("cat > /dev/null; echo 'ERROR: bad event' >&2; exit 1", "failed: ERROR: bad event"),
        ("cat > /dev/null; echo 'WARNING: the range ends oddly' >&2", "failed: WARNING: the range"),
        ("cat > /dev/null; kill -9 $$", "killed by signal 9"),
    ],
)
def test_mysqlbinlog_ends_in_the_middle_of_a_statement(
    mysql2: Pair, disk_tmp_path: Path, then: str, said: str
) -> None:
    """It is an error, whatever its exit status, and what it began is not executed."""
    tool = _torn_tool(disk_tmp_path, then)
    mysql2.source.query("CREATE DATABASE any_of_it")
    run = Process(mysql2, ["mysql-bin.000001"], binlog=str(tool))
    assert re.search(said, run.end())
    assert run.process.returncode == 8
    assert _tables(mysql2.target) in ([], ["a"], ["a", "b"], ["a", "b", "ready"])


def _write_pairs(server: MysqlServer, rounds: int) -> None:
    """Tables that come one after the other and go together, rows in between; HOLD is in it."""
    statements = ["CREATE DATABASE torn", "USE torn", "CREATE TABLE n (i INT PRIMARY KEY)"]
    for number in range(rounds):
        statements += [
            f"CREATE TABLE x_{number} (i INT)",
            f"CREATE TABLE y_{number} (i INT)",
            f"INSERT INTO n VALUES ({number})",
            f"INSERT INTO x_{number} SELECT i FROM n",
            f"DROP TABLE x_{number}, y_{number}" if number % 3 else "FLUSH BINARY LOGS",
            *(HOLD if number == rounds // 3 else ()),
        ]
    server.query(*statements)


def test_killed_anywhere_and_again(mysql2: Pair) -> None:
    """Where HOLD is, and at random moments, it is killed: it goes on where it was.

    And no pair of tables was torn.
    """
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    _write_pairs(mysql2.source, 40)
    names = mysql2.names

    def begin() -> Process:
        return Process(mysql2, names, cut=chance.choice([100, 1000, 1 << 16]))

    def see_it_end(run: Process) -> None:
        run.end(signal.SIGKILL)
        tables = set(_tables(mysql2.target))
        torn = [t for t in tables if t.startswith("y_") and f"x_{t[2:]}" not in tables]
        assert torn == [], f"seed {seed}"

    with held_up(mysql2.target) as stands:
        run = begin()
        wait_until(stands, what="it is held up")
        assert run.process.poll() is None, f"seed {seed}"
        run.process.kill()
    see_it_end(run)
    for _ in range(int(os.environ.get("ROUNDS", "4"))):
        run = begin()
        run.wait_for(chance.randrange(1, 3))
        Event().wait(chance.random() * 0.2)  # any moment will do
        see_it_end(run)
    assert Process(mysql2, names).end() == ""
    same(mysql2)


# What fails is named


def _refused(pair: Pair, files: Own, **options: Any) -> RecoveryError:
    with pytest.raises(RecoveryError) as caught:
        pair.apply(files, **options)
    return caught.value


@pytest.mark.parametrize("cut", [50, 1 << 20])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_statement_that_fails_is_named(pair: Pair, compressed: bool, cut: int) -> None:
    """Binlog, position and GTID of the transaction, the server's own words; no more is applied."""
    if compressed and pair.is_mysql:
        pair.source.query("SET GLOBAL binlog_transaction_compression = ON")
    write_rows(pair.source)
    if pair.is_mysql:
        pair.source.query("SET GLOBAL binlog_transaction_compression = OFF")
    files = pair.files(cut=cut)
    stand_in_the_way(pair.target)
    skip = [one.gtid for _, one in files.transactions[:2] if one.gtid]
    out = [one.gtid for _, one in files.transactions[14:16] if one.gtid]
    names = pair.names
    files = own(pair.source.datadir, names, skip=[*skip, *out], cut=cut)
    wrong = files.transactions[-8][1]
    error = _refused(pair, files)
    assert f"transaction {wrong.gtid} at mysql-bin.000002:{wrong.begin}" in str(error)
    assert "Duplicate entry '21' for key" in str(error)
    assert "(1062)" in str(error)
    assert f"--start-position={wrong.begin} --stop-position={wrong.end}" in error.hint
    assert f"--skip-gtid {wrong.gtid}" in error.hint
    left = [n for n in range(20) if n not in (12, 13)]
    got = [row[0] for row in pair.target.query("SELECT id FROM shop.a ORDER BY id")]
    assert got == [*left, 21]
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 21")
    if pair.is_mysql:
        pair.apply(files)
        assert pair.target.query("SELECT COUNT(*) FROM shop.a") == [(28,)]


@pytest.fixture
def without_gtids(mysql2: Pair) -> Iterator[Pair]:
    """Two of MySQL with gtid_mode OFF."""
    for server in (mysql2.source, mysql2.target):
        gtids_off(server)
        server.query("RESET BINARY LOGS AND GTIDS")
    yield mysql2
    for server in (mysql2.source, mysql2.target):
        gtids_on(server)


def test_a_statement_that_fails_without_gtids(without_gtids: Pair) -> None:
    """It is the position that names it, and the hint says how to go on."""
    pair = without_gtids
    write_rows(pair.source)
    stand_in_the_way(pair.target)
    begin = pair.files().transactions[2][1].begin
    names = pair.names
    files = own(pair.source.datadir, names, begin=begin, cut=200)
    wrong = files.transactions[-8][1]
    error = _refused(pair, files, skip_gtids=True)
    assert f"the transaction at mysql-bin.000002:{wrong.begin}" in str(error)
    assert "Duplicate entry '21'" in str(error)
    assert "--from-binlog" in error.hint
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 21")
    pair.apply(own(pair.source.datadir, names[1:], begin=wrong.begin), skip_gtids=True)
    assert content(pair.target) == content(pair.source)


def test_gtids_into_a_target_without_them(mysql2: Pair) -> None:
    """skip_gtids: what has GTIDs goes to a server that keeps none."""
    write_rows(mysql2.source)
    gtids_off(mysql2.target)
    try:
        mysql2.apply(mysql2.files(), skip_gtids=True)
        assert content(mysql2.target) == content(mysql2.source)
        assert gtids(mysql2.target) == ""
    finally:
        gtids_on(mysql2.target)


def test_nothing_reaches_the_targets_binlog(pair: Pair) -> None:
    """binlog_off: the target does not log it; MySQL logs empty transactions with their GTIDs."""
    write_rows(pair.source)
    pair.apply(pair.files(), binlog_off=True)
    assert content(pair.target) == content(pair.source)
    logged = {str(row[2]) for row in pair.target.query("SHOW BINLOG EVENTS")}
    if pair.is_mysql:
        assert gtids(pair.target) == gtids(pair.source)
        assert logged == {"Format_desc", "Previous_gtids", "Gtid", "Query"}
        told = {str(row[5]) for row in pair.target.query("SHOW BINLOG EVENTS") if row[2] == "Query"}
        assert told == {"BEGIN", "COMMIT"}
    else:
        assert logged == {"Format_desc", "Gtid_list", "Binlog_checkpoint"}


# Large transactions


def _account(pair: Pair, grants: str) -> Login:
    pair.target.query(
        "SET sql_log_bin = 0",
        "CREATE USER theirs@localhost IDENTIFIED BY 'a#\"b'",
        f"GRANT {grants} ON *.* TO theirs@localhost",
        "GRANT ALL ON shop.* TO theirs@localhost",
    )
    return pair.login(user="theirs", password='a#"b')


LEAST = {
    "mysql": "SESSION_VARIABLES_ADMIN, REPLICATION_APPLIER",
    "mariadb": "BINLOG REPLAY, BINLOG ADMIN",
}


def test_a_row_greater_than_the_targets_packets(pair: Pair) -> None:
    """20 MB in one row: the limit is raised for our session alone, where the account may do so.

    Else it stops before that transaction, and says why.
    """
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, b LONGBLOB)",
        "INSERT INTO shop.a VALUES (1, 'small')",
        "SET SESSION binlog_format = ROW",
        *(("SET SESSION binlog_transaction_compression = ON",) if pair.is_mysql else ()),
        "BEGIN",
        "INSERT INTO shop.a VALUES (2, 'of the same transaction')",
        f"INSERT INTO shop.a VALUES (3, REPEAT('0123456789', {2 << 20}))",
        "COMMIT",
        "INSERT INTO shop.a VALUES (4, 'small')",
    )
    files = pair.files()
    large = files.transactions[-2][1]
    packet = 1 << 20
    pair.target.query(f"SET GLOBAL max_allowed_packet = {packet}")
    login = _account(pair, LEAST[pair.target.binaries.flavour])
    error = _refused(pair, files, login=login)
    assert str(error).startswith(
        f"stopped before transaction {large.gtid} at mysql-bin.000001:{large.begin}"
    )
    assert f"{packet} bytes, the session's max_allowed_packet" in str(error)
    assert pair.target.query("SELECT id FROM shop.a") == [(1,)]
    pair.target.query("SET sql_log_bin = 0", "DROP USER theirs@localhost")
    if not pair.is_mysql:
        files = own(pair.source.datadir, ["mysql-bin.000001"], begin=large.begin)
    pair.apply(files)
    same(pair)
    assert pair.target.query("SELECT @@global.max_allowed_packet") == [(packet,)]


# The session


def test_the_least_privileges(pair: Pair, disk_tmp_path: Path) -> None:
    """What the documents say is enough for rows and for the tables that they are in."""
    write_rows(pair.source)
    pair.apply(pair.files(), login=_account(pair, LEAST[pair.target.binaries.flavour]))
    pair.target.query("SET sql_log_bin = 0", "DROP USER theirs@localhost")
    same(pair)
    del disk_tmp_path


def test_a_privilege_that_is_missing(pair: Pair) -> None:
    """It is named, and what to grant."""
    write_rows(pair.source)
    error = _refused(pair, pair.files(), login=_account(pair, "PROCESS"))
    assert "(1227)" in str(error)
    assert "GRANT" in error.hint


def test_the_password_is_nowhere_to_be_seen(pair: Pair) -> None:
    """Not in an argument or the environment of any process of ours."""
    write_rows(pair.source)
    login = _account(pair, LEAST[pair.target.binaries.flavour])
    secret, seen = login.password.encode(), []

    def look(_progress: Progress) -> None:
        ours = {os.getpid()}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if int((path / "stat").read_text().split()[3]) not in ours:
                    continue
                told = (path / "cmdline").read_bytes()
                seen.append(told)
                assert secret not in told + (path / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue

    pair.apply(pair.files(), look, login=login)
    assert any(b"--defaults-file=/dev/fd/" in one for one in seen)


def test_a_client_that_is_let_in_nowhere(pair: Pair) -> None:
    """A refused login names the client's own words."""
    pair.source.query("CREATE DATABASE shop")
    wrong = pair.login(user="theirs_not", password="wrong")
    made: list[Pipe] = []
    error = _refused(pair, pair.files(), login=wrong, asked=pair.login(), made=made)
    assert not made[0].touched
    assert re.search(r"no session at the target.*Access denied.*1045", str(error))
    assert pair.target.query("SHOW DATABASES LIKE 'shop'") == []


def test_another_server_than_was_asked(mysql2: Pair) -> None:
    """Where an address leads here and then there, nothing is applied."""
    mysql2.source.query("CREATE DATABASE shop")
    there = mysql2.login(socket=str(mysql2.source.socket))
    error = _refused(mysql2, mysql2.files(), asked=there)
    assert re.search(r"leads to one server .* and then to another", str(error))
    assert mysql2.target.query("SHOW DATABASES LIKE 'shop'") == []


@pytest.mark.parametrize("restart", [True, False])
def test_temporary_tables_end_with_the_server_that_had_them(pair: Pair, restart: bool) -> None:
    """Behind a crash of the source, its thread 7 is another one; without, it goes on."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        "SET SESSION binlog_format = 'STATEMENT'",
        "SET SESSION pseudo_thread_id = 7",
        "CREATE TEMPORARY TABLE shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (1)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
        "FLUSH BINARY LOGS",
        *(() if restart else ("INSERT INTO shop.a SELECT i + 10 FROM shop.tmp",)),
        "SET sql_log_bin = 0",
    )
    if restart:
        pair.source.kill()
        pair.source.start()
    pair.source.query(
        "SET SESSION binlog_format = 'STATEMENT'",
        f"SET SESSION pseudo_thread_id = {7 if restart else 8}",
        "CREATE TEMPORARY TABLE IF NOT EXISTS shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (2)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
    )
    pair.apply(pair.files())
    assert content(pair.target) == content(pair.source)


def test_a_temporary_table_that_is_left(pair: Pair) -> None:
    """At the end of the session the target drops it, and logs nothing of its own for that."""
    files, there = leave_temporary_table(pair)
    before = pair.target.query("SELECT @@global.binlog_format")[0][0]
    pair.target.query("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        pair.apply(files)
        pair.target.query("CREATE DATABASE afterwards", "DROP DATABASE afterwards")
        wait_until(
            lambda: "tmp" not in str(pair.target.query("SHOW PROCESSLIST")), what="it has ended"
        )
        logged = str([row[5] for row in pair.target.query("SHOW BINLOG EVENTS")])
    finally:
        pair.target.query(f"SET GLOBAL binlog_format = '{before}'")
    assert there
    assert "DROP" not in logged.partition("afterwards")[0]
    assert "tmp" not in logged.partition("afterwards")[2]


def test_the_target_goes_down(mysql2: Pair) -> None:
    """It is said that the session was lost, and the same again finishes the work."""
    _write_pairs(mysql2.source, 15)
    files = mysql2.files(cut=100)

    def kill_ours() -> None:
        wait_until(stands, what="it is held up")
        for row in mysql2.target.query("SHOW PROCESSLIST"):
            if "metadata lock" in str(row[6]):
                mysql2.target.query(f"KILL {row[0]}")

    with ThreadPoolExecutor(1) as pool, held_up(mysql2.target) as stands:
        killed = pool.submit(kill_ours)
        with pytest.raises(RecoveryError, match=r"session at the target.*was lost") as caught:
            mysql2.apply(files)
        killed.result(PATIENCE)
    assert caught.value.transient
    mysql2.apply(files)
    same(mysql2)


# As text


def test_as_text(pair: Pair, disk_tmp_path: Path) -> None:
    """What `decode` writes brings another server to the same state."""
    write_all_kinds(pair.source, disk_tmp_path)
    files, binaries = pair.files(), pair.target.binaries
    parts: list[bytes] = []
    told: list[Progress] = []
    left = decode(
        files.stream(),
        parts.append,
        find(binaries.flavour, binaries.binlog),
        size=files.size,
        transactions=files.count,
        on_progress=told.append,
    )
    assert left is not None  # the file of LOAD DATA
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    assert told[-1].transactions == files.count
    options = ["--local-infile=1"]
    if pair.is_mysql:
        options = [f"--load-data-local-dir={left}"]
    done = subprocess.run(
        [binaries.client, "--no-defaults", "-uroot", f"--socket={pair.target.socket}",
         "--binary-mode", "--comments", *options],
        input=b"".join(parts), capture_output=True, check=False,
    )  # fmt: skip
    shutil.rmtree(left)
    assert done.stderr == b""
    same(pair)


def test_text_that_is_cut_off_ends_with_a_statement(mysql2: Pair, disk_tmp_path: Path) -> None:
    """Where mysqlbinlog breaks off, its last half statement was not written."""
    mysql2.source.query("CREATE DATABASE any_of_it")
    tool = find("mysql", mysql2.source.binaries.binlog)
    torn = type(tool)(
        path=str(_torn_tool(disk_tmp_path, "cat > /dev/null; exit 1")),
        flavour="mysql",
        version="",
        connection_server_id=True,
    )
    files, parts = mysql2.files(), []
    with pytest.raises(RecoveryError):
        decode(files.stream(), parts.append, torn, size=files.size, transactions=1)
    assert b"".join(parts) == HALF.rpartition("DROP")[0].encode()
