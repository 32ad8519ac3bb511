"""Relay logs for a real target's own applier: all arrives, nothing twice, nothing is left."""

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pymysql
import pytest

from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover import relay, relay_channel, relay_mysql
from binlog2s3.recover.model import Checked, Place, Progress, Stream
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
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
from tests.integration.relay_pair import (
    LARGE_BYTES,
    Pair,
    Process,
    kill_again_and_again,
    write_large,
)
from tests.integration.small_disk import mount, mount_small
from tests.own_files import own
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def servers(mysql_binaries: ServerBinaries) -> Iterator[Pair]:
    """Two of MySQL."""
    with two(MysqlServer, mysql_binaries) as both:
        yield Pair(*both)


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """Both as new, and in the end nothing of ours is left."""
    if servers.target._process is None:  # a test has failed that killed it
        servers.target.start()
    servers.clear()
    yield servers
    try:
        assert servers.left() == []
    finally:
        servers.target.query("STOP REPLICA")
        servers.settle()


@pytest.fixture
def restarted(pair: Pair) -> Iterator[Callable[..., None]]:
    """Starts the target again with more options; without them at the end."""

    def again(*options: str) -> None:
        pair.target.restart([*RELAXED, *options])

    yield again
    pair.target.restart(RELAXED)


@pytest.fixture
def without_gtids(pair: Pair) -> Iterator[Pair]:
    """Both with gtid_mode OFF, the target also behind a crash."""
    gtids_off(pair.source)
    pair.target.restart([*RELAXED, "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"])
    for server in (pair.source, pair.target):
        server.query("RESET BINARY LOGS AND GTIDS")
    yield pair
    gtids_on(pair.source)
    pair.target.restart(RELAXED)


# Everything arrives


@pytest.mark.parametrize(("cut", "batch_bytes"), [(333, 2000), (1 << 20, 1 << 20)])
def test_everything_arrives(pair: Pair, disk_tmp_path: Path, cut: int, batch_bytes: int) -> None:
    """All kinds of statements and rows, in one batch or several; temporary tables go through all.

    How far it is comes from the server, and never goes back.
    """
    write_all_kinds(pair.source, disk_tmp_path)
    files = pair.files(cut=cut)
    told: list[Progress] = []
    made: list[relay.Way] = []
    assert pair.obstacle() is None
    pair.apply(files, told.append, made=made, batch_bytes=batch_bytes)
    same(pair)
    assert made[0].touched
    last = told[-1]
    assert (last.size, last.transactions) == (files.size, files.count)
    assert (last.of_size, last.of_transactions) == (files.size, files.count)
    assert [at.transactions for at in told] == sorted(at.transactions for at in told)
    assert [at.size for at in told] == sorted(at.size for at in told)


def test_everything_arrives_without_gtids(without_gtids: Pair, disk_tmp_path: Path) -> None:
    """Anonymous transactions; the place that is noted at the end is the stream's end."""
    pair = without_gtids
    write_some(pair.source)
    files, noted = pair.files(cut=500), list[Place]()
    assert pair.obstacle() is None
    pair.apply(files, batch_bytes=3000, on_place=noted.append)
    assert content(pair.target) == content(pair.source)
    piece, last = files.transactions[-1]
    assert noted[-1] == Place(lineage="own", binlog=piece.binlog, offset=last.end)
    first = files.pieces[0]
    assert noted[0] == Place(lineage="own", binlog=first.binlog, offset=first.begin)
    del disk_tmp_path


def write_some(server: MysqlServer, rounds: int = 20) -> None:
    """Tables that come and go, and rows in between, over several binlogs."""
    statements = ["CREATE DATABASE shop", "USE shop", "CREATE TABLE n (i INT PRIMARY KEY)"]
    for number in range(rounds):
        statements += [
            f"CREATE TABLE x_{number} (i INT)",
            f"CREATE TABLE y_{number} (i INT)",
            f"INSERT INTO n VALUES ({number})",
            f"INSERT INTO x_{number} SELECT i FROM n",
            "UPDATE n SET i = i + 1000 ORDER BY i DESC",
            "UPDATE n SET i = i - 1000 ORDER BY i",
            f"DROP TABLE x_{number}, y_{number}" if number % 3 else "FLUSH BINARY LOGS",
        ]
    server.query(*statements)


@pytest.mark.parametrize("batch_bytes", [1 << 20, 1 << 30])
def test_large_transactions(pair: Pair, batch_bytes: int) -> None:
    """One that is greater than a batch goes whole; the directory has two batches at most."""
    write_large(pair.source)
    sizes = [0]

    def look(_progress: Progress) -> None:
        sizes.append(pair.left_size())

    pair.apply(pair.files(cut=1 << 18), look, batch_bytes=batch_bytes)
    same(pair)
    if batch_bytes < LARGE_BYTES:
        assert 0 < max(sizes) < 2 * (batch_bytes + LARGE_BYTES)


def test_it_ends_exactly_where_it_shall(pair: Pair) -> None:
    """At whatever transaction the plan ends, that one is the last, and no other was passed over."""
    seed = random.randrange(1 << 32)
    write_some(pair.source, 8)
    uuid = str(pair.files().transactions[0][1].gtid).partition(":")[0]
    for upto, files in pair.parts(random.Random(seed)):
        pair.apply(files)
        assert gtids(pair.target) == f"{uuid}:1" + (f"-{upto}" if upto > 1 else ""), f"seed {seed}"


def test_temporary_tables_end_with_the_server_that_had_them(pair: Pair) -> None:
    """Behind a crash of the source, its thread 7 is another one."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        "SET SESSION binlog_format = 'STATEMENT'",
        "SET SESSION pseudo_thread_id = 7",
        "CREATE TEMPORARY TABLE shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (1)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
        "SET sql_log_bin = 0",
    )
    pair.source.kill()
    pair.source.start()
    pair.source.query(
        "SET SESSION binlog_format = 'STATEMENT'",
        "SET SESSION pseudo_thread_id = 7",
        "CREATE TEMPORARY TABLE shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (2)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
    )
    pair.apply(pair.files(), batch_bytes=1)
    assert content(pair.target) == content(pair.source)


@pytest.mark.parametrize(
    "form",
    ["STATEMENT", "ROW", "MIXED"],
)
def test_a_temporary_table_that_is_left(pair: Pair, form: str) -> None:
    """The target drops it at the end, and logs nothing of its own for that."""
    files, there = leave_temporary_table(pair)
    before = pair.target.query("SELECT @@global.binlog_format")[0][0]
    pair.target.query(f"SET GLOBAL binlog_format = '{form}'")
    try:
        pair.apply(files)
    finally:
        pair.target.query(f"SET GLOBAL binlog_format = '{before}'")
    assert gtids(pair.target) == there


# Killed, and again


def write_counting(server: MysqlServer, rounds: int = 150, *, xa: bool = True) -> None:
    """What shows if anything is executed twice, or not, or in another order; HOLD is in it.

    `xa`: also XA transactions.
    """
    statements = [
        "CREATE DATABASE shop",
        "USE shop",
        "CREATE TABLE n (i INT PRIMARY KEY, v BIGINT)",
    ]
    statements += [f"INSERT INTO n VALUES ({number}, {number})" for number in range(4)]
    for number in range(rounds):
        statements += [
            f"UPDATE n SET v = v + {number} WHERE i = {number % 4}",
            f"UPDATE n SET v = v * 3 % 1000003 WHERE i = {(number + 1) % 4}",
        ]
        if number % 10 == 3:
            statements += [f"CREATE TABLE t{number} AS SELECT * FROM n", "FLUSH BINARY LOGS"]
        if number == 10:
            statements += HOLD
        if xa and number % 10 == 6:
            statements += [
                f"XA START 'x{number}'",
                f"INSERT INTO n VALUES ({1000 + number}, 0)",
                f"XA END 'x{number}'",
                f"XA PREPARE 'x{number}'",
                "UPDATE n SET v = v + 1 WHERE i = 2" if number % 20 == 6 else "DO 0",
                f"XA COMMIT 'x{number}'",
            ]
    server.query(*(one for one in statements if one != "DO 0"))


@pytest.mark.parametrize("what", ["us", "the server", "both"])
@pytest.mark.parametrize("keeps_gtids", [True, False])
def test_killed_anywhere_and_again(
    request: pytest.FixtureRequest, disk_tmp_path: Path, what: str, keeps_gtids: bool
) -> None:
    """Killed at random moments, it goes on where it was: nothing twice, nothing left out.

    MySQL keeps the place of an XA PREPARE in a transaction of its own: where only the place tells,
    and the server is killed in between, it may have one and not the other (docs/recovery.md).
    """
    pair: Pair = request.getfixturevalue("pair" if keeps_gtids else "without_gtids")
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    write_counting(pair.source, xa=keeps_gtids or what == "us")
    note, by_place = disk_tmp_path / "note", not keeps_gtids

    def begin() -> Process:
        batch = chance.choice([1000, 5000, 20_000, 1 << 20])
        return Process(pair, note, batch_bytes=batch, by_place=by_place)

    rounds = int(os.environ.get("ROUNDS", "2"))
    kills, said = kill_again_and_again(chance, begin, pair.target, what, rounds)
    assert "Traceback" not in said, f"seed {seed}: {said}"
    assert Process(pair, note, by_place=by_place).end() == "", f"seed {seed}"
    assert kills, f"seed {seed}"
    assert content(pair.target) == content(pair.source), f"seed {seed}"
    assert gtids(pair.target) == gtids(pair.source), f"seed {seed}"
    assert pair.left() == []


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_it_is_ended(pair: Pair, disk_tmp_path: Path, how: str) -> None:
    """Ctrl-C: the applier is stopped, the channel and the files are gone."""
    write_counting(pair.source)
    with held_up(pair.target) as stands:
        run = Process(pair, disk_tmp_path / "note", batch_bytes=2000)
        wait_until(stands, what="it is held up")
        run.process.send_signal(signal.Signals[how])
    assert "Traceback" not in run.end()
    assert run.process.returncode == 130
    assert pair.left() == []
    assert "-" in gtids(pair.target)
    assert gtids(pair.target) != gtids(pair.source)
    pair.apply(pair.files())
    same(pair)


def test_the_target_starts_again_by_itself(pair: Pair, disk_tmp_path: Path) -> None:
    """An applier that the server starts again, alone, comes to the end of its files, no further."""
    write_counting(pair.source, 60)
    files = pair.files()
    end = files.transactions[90][1]
    names = pair.names
    piece = files.transactions[90][0]
    part = own(pair.source.datadir, names[: names.index(str(piece.binlog)) + 1], end=end.end)

    class EndedError(Exception):
        pass

    def kill(_progress: Progress) -> None:
        pair.target.kill()
        raise EndedError

    with pytest.raises(EndedError):
        pair.apply(part, kill)
    assert [one for one in pair.left_files() if ".binlog2s3-" not in one]
    pair.target.start()
    uuid = str(end.gtid).partition(":")[0]
    wait_until(lambda: gtids(pair.target) == f"{uuid}:1-91", what="it has gone on to the end")
    pair.settle()
    assert pair.left() == []
    pair.apply(files)
    same(pair)
    del disk_tmp_path


@pytest.mark.parametrize("keeps_gtids", [True, False])
def test_relay_log_recovery_removes_the_files(
    request: pytest.FixtureRequest, restarted: Callable[..., None], keeps_gtids: bool
) -> None:
    """A server that throws relay logs away when it starts keeps the place."""
    pair: Pair = request.getfixturevalue("pair" if keeps_gtids else "without_gtids")
    modes = () if keeps_gtids else ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")
    restarted("--relay-log-recovery=ON", *modes)
    write_counting(pair.source, 60)
    names = pair.names

    class EndedError(Exception):
        pass

    def kill(progress: Progress) -> None:
        if progress.transactions > 20:
            pair.target.kill()
            raise EndedError

    with pytest.raises(EndedError):
        pair.apply(pair.files(cut=100), kill, batch_bytes=3000)
    pair.target.start()
    left = pair.settle()
    assert left is not None
    files = pair.files()
    if not keeps_gtids:
        assert left.place is not None
        at = left.place
        names = names[names.index(str(at.binlog)) :]
        files = own(pair.source.datadir, names, begin=at.offset)
        assert 0 < files.count < pair.files().count
    pair.apply(files)
    assert content(pair.target) == content(pair.source)


# What stands against it


def _set(name: str, value: str, otherwise: str) -> tuple[str, str]:
    return f"SET GLOBAL {name} = {value}", f"SET GLOBAL {name} = {otherwise}"


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (_set("replica_exec_mode", "IDEMPOTENT", "STRICT"), "replica_exec_mode is IDEMPOTENT"),
        (_set("replica_checkpoint_period", "60000", "300"), "only each 60000 ms how far it is"),
        (_set("init_replica", "'DO 1'", "''"), "a statement of its own"),
    ],
)
def test_settings_that_stand_against_it(pair: Pair, statements: tuple[str, str], said: str) -> None:
    """What would change what is applied, or hide how far it is, is named; nothing is changed."""
    pair.target.query(statements[0])
    try:
        assert said in str(pair.obstacle())
    finally:
        pair.target.query(statements[1])
    assert pair.left() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replica-skip-errors=1062"], "it passes over errors"),
        (["--replicate-ignore-db=shop"], "it filters what is applied (Replicate_Ignore_DB shop)"),
        (["--replicate-wild-do-table=s%.%"], "it filters what"),
        (["--replicate-rewrite-db=a->b"], "it filters what"),
        (["--log-replica-updates=OFF"], "would lack in its binlog"),
    ],
)
def test_options_that_stand_against_it(
    pair: Pair, restarted: Callable[..., None], options: list[str], said: str
) -> None:
    """The same of what a server can only be started with."""
    restarted(*options)
    assert said in str(pair.obstacle())
    assert pair.left() == []
    if options == ["--log-replica-updates=OFF"]:
        assert pair.obstacle(binlog_off=True) is None


def test_the_targets_binlog_is_not_wanted(pair: Pair) -> None:
    """The applier cannot be told so."""
    assert "goes into its binlog" in str(pair.obstacle(binlog_off=True))


def test_without_the_targets_binlog(pair: Pair, restarted: Callable[..., None]) -> None:
    """With log_replica_updates OFF it can: all arrives, and nothing of it is in its binlog."""
    write_some(pair.source)
    restarted("--log-replica-updates=OFF")
    before = pair.target.query("SHOW BINARY LOG STATUS")[0][1]
    pair.apply(pair.files())
    assert content(pair.target) == content(pair.source)
    assert gtids(pair.target) == gtids(pair.source)
    assert pair.target.query("SHOW BINARY LOG STATUS")[0][1] == before


def test_gtids_into_a_target_without_them(without_gtids: Pair) -> None:
    """It is said before, and refused before anything is touched."""
    pair = without_gtids
    assert "gtid_mode is OFF there" in str(pair.obstacle(with_gtids=True))
    gtids_on(pair.source)
    try:
        pair.source.query("CREATE DATABASE shop")
    finally:
        gtids_off(pair.source)
    made: list[relay.Way] = []
    with pytest.raises(RecoveryError, match="gtid_mode is OFF"):
        pair.apply(pair.files(), made=made)
    assert not made[0].touched
    assert pair.target.query("SHOW DATABASES LIKE 'shop'") == []
    assert pair.left() == []


def test_a_server_id_of_its_own(pair: Pair) -> None:
    """The applier would pass over its own server's events without a word: nothing is touched."""
    assert "its server_id, 2, is that of a server" in str(pair.obstacle(server_ids={1, 2}))
    write_some(pair.source)
    pair.target.query("SET GLOBAL server_id = 1")
    try:
        with pytest.raises(RecoveryError, match="server_id 1, which is the target's own") as caught:
            pair.apply(pair.files())
    finally:
        pair.target.query("SET GLOBAL server_id = 2")
    assert "SET GLOBAL server_id" in caught.value.hint
    assert gtids(pair.target) == ""
    assert pair.left() == []


def test_a_server_id_of_its_own_further_on(pair: Pair) -> None:
    """One that comes in the middle, too: what was before it is applied as far as it was begun."""
    pair.source.query("CREATE DATABASE shop", "CREATE TABLE shop.a (i INT)", "FLUSH BINARY LOGS")
    pair.source.query("SET GLOBAL server_id = 2")
    try:
        pair.source.query("INSERT INTO shop.a VALUES (1)")
    finally:
        pair.source.query("SET GLOBAL server_id = 1")
    with pytest.raises(RecoveryError, match=r"in mysql-bin\.000002 have the server_id 2"):
        pair.apply(pair.files(), batch_bytes=1)
    assert pair.left() == []
    if pair.target.query("SHOW DATABASES LIKE 'shop'"):
        assert "3" not in gtids(pair.target).rpartition(":")[2]


def test_it_passes_over_events_in_the_middle(pair: Pair) -> None:
    """Where the target gets such a server_id meanwhile, it is seen that it does not go on."""
    write_counting(pair.source)

    def change(_progress: Progress) -> None:
        pair.target.query("SET GLOBAL server_id = 1")

    try:
        with pytest.raises(RecoveryError, match=r"passed over|lacks|is the target's own"):
            pair.apply(pair.files(cut=200), change, batch_bytes=8000)
    finally:
        pair.target.query("SET GLOBAL server_id = 2")
    assert pair.left() == []


def test_a_transaction_that_takes_long(pair: Pair) -> None:
    """The applier has read all, and one of its workers is still at work: it is waited for."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (i INT)",
        "SET SESSION binlog_format = 'STATEMENT'",
        "INSERT INTO shop.a SELECT SLEEP(13)",
    )
    pair.apply(pair.files())
    same(pair)


def test_a_channel_of_somebody_else(pair: Pair) -> None:
    """It stays as it is, and is named."""
    pair.target.query("CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'theirs' FOR CHANNEL 'pitr'")
    try:
        assert "a channel 'pitr' that is not of this program" in str(pair.obstacle())
        assert pair.settle() is None
        pair.source.query("CREATE DATABASE shop")
        with pytest.raises(RecoveryError, match="has a channel 'pitr' already"):
            pair.apply(pair.files())
        rows = pair.target.query("SHOW REPLICA STATUS")
        assert [row[1] for row in rows] == ["theirs"]
    finally:
        pair.target.query("RESET REPLICA ALL FOR CHANNEL 'pitr'")


def test_a_directory_that_is_not_the_servers(pair: Pair, disk_tmp_path: Path) -> None:
    """Only what appears there when the server writes counts; what lies there already stays."""
    theirs = disk_tmp_path / "vm-relay-bin-pitr.000001"
    theirs.write_text("somebody's")
    assert "does not appear" in str(pair.obstacle(directory=disk_tmp_path))
    assert theirs.read_text() == "somebody's"
    assert "is no directory" in str(pair.obstacle(directory=disk_tmp_path / "nowhere"))
    pair.source.query("CREATE DATABASE shop")
    made: list[relay.Way] = []
    with pytest.raises(RecoveryError, match="is not the relay log directory of the target"):
        pair.apply(pair.files(), directory=disk_tmp_path, made=made)
    assert not made[0].touched
    assert [path.name for path in disk_tmp_path.iterdir()] == [theirs.name]
    assert pair.left() == []


LEFT = {
    "an empty index": ("", ()),
    "an index with a file": ("./{stem}.000001\n", (1,)),
    "an index without its file": ("./{stem}.000001\n", ()),
    "an index without its files": ("./{stem}.000001\n./{stem}.000002\n", ()),
    "an index without its first file": ("./{stem}.000001\n./{stem}.000002\n", (2,)),
    "a file without an index": (None, (1,)),
}


@pytest.mark.gate("an index with a file")
@pytest.mark.parametrize("what", LEFT)
def test_a_crash_left_a_channel_half_made(pair: Pair, what: str) -> None:
    """Server and recovery were killed as it was made: the next run can have it, and tidies up."""
    stem = "vm-relay-bin-pitr"
    index, numbers = LEFT[what]
    if index is not None:
        (pair.target.datadir / f"{stem}.index").write_text(index.format(stem=stem))
    for number in numbers:
        (pair.target.datadir / f"{stem}.{number:06d}").touch()
    pair.source.query("CREATE DATABASE shop")
    assert pair.obstacle() is None
    pair.apply(pair.files())
    same(pair)


def test_a_directory_named_from_the_data_directory(
    pair: Pair, restarted: Callable[..., None]
) -> None:
    """--relay-log=logs/relay, as the server has it: below its own directory, not below ours."""
    (pair.target.datadir / "logs").mkdir(exist_ok=True)
    restarted("--relay-log=logs/relay", "--relay-log-index=logs/relay.index")
    write_some(pair.source)
    assert pair.obstacle() is None
    pair.apply(pair.files())
    same(pair)


def test_the_directory_by_another_name(pair: Pair, disk_tmp_path: Path) -> None:
    """As it is seen from here, as into a container: the server's own names stay in its index."""
    write_some(pair.source)
    here = disk_tmp_path / "here"
    here.symlink_to(pair.target.datadir)
    assert pair.obstacle(directory=here) is None
    pair.apply(pair.files(), directory=here)
    same(pair)


def test_an_obstacle_is_looked_for_beside_what_was_left(pair: Pair) -> None:
    """Where a run that was cut off has left its channel, that is in reach, and stays."""
    ident = "00000003.own.200.mysql-bin.000001"
    pair.target.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'binlog2s3.invalid', SOURCE_LOG_FILE = "
        f"'{ident}', SOURCE_LOG_POS = 300 FOR CHANNEL 'pitr'"
    )
    assert pair.obstacle() is None
    assert "the channel" in pair.left()
    assert pair.settle() == relay.LeftOver(running=False, place=None)


def test_privileges(pair: Pair) -> None:
    """The one that lacks is named; with those that the hint names all arrives."""
    write_some(pair.source, 4)
    needed = ["REPLICATION_SLAVE_ADMIN", "RELOAD", "REPLICATION CLIENT", "SESSION_VARIABLES_ADMIN"]
    pair.target.query(
        "SET sql_log_bin = 0",
        "CREATE USER theirs@localhost IDENTIFIED BY ''",
        f"GRANT {', '.join(needed)} ON *.* TO theirs@localhost",
    )
    login = pair.login(user="theirs")
    assert "lacks SELECT ON performance_schema" in str(pair.obstacle(login))
    pair.target.query(
        "SET sql_log_bin = 0",
        "GRANT SELECT ON performance_schema.replication_applier_status_by_worker "
        "TO theirs@localhost",
    )
    for privilege in needed:
        pair.target.query("SET sql_log_bin = 0", f"REVOKE {privilege} ON *.* FROM theirs@localhost")
        assert f"its account lacks {privilege}" in str(pair.obstacle(login))
        pair.target.query("SET sql_log_bin = 0", f"GRANT {privilege} ON *.* TO theirs@localhost")
    assert pair.obstacle(login) is None
    pair.apply(pair.files(), login=login)
    pair.target.query("SET sql_log_bin = 0", "DROP USER theirs@localhost")
    same(pair)


# What fails is named


@pytest.mark.parametrize("batch_bytes", [500, 1 << 20])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_transaction_that_fails_is_named(pair: Pair, compressed: bool, batch_bytes: int) -> None:
    """Binlog, position and GTID, the server's own words; all before it is applied, no more."""
    if compressed:
        pair.source.query("SET GLOBAL binlog_transaction_compression = ON")
    write_rows(pair.source)
    pair.source.query("SET GLOBAL binlog_transaction_compression = OFF")
    stand_in_the_way(pair.target)
    skip = [str(one.gtid) for _, one in pair.files().transactions[:2]]
    names = pair.names
    files = own(pair.source.datadir, names, skip=skip)
    wrong = files.transactions[-8][1]
    with pytest.raises(RecoveryError) as caught:
        pair.apply(files, batch_bytes=batch_bytes)
    said, hint = str(caught.value), caught.value.hint
    assert f"refused transaction {wrong.gtid} at mysql-bin.000002:{wrong.begin}" in said
    assert "Duplicate entry '21' for key" in said
    assert "1062" in said
    assert said.endswith("all before it was applied")
    assert f"--start-position={wrong.begin} --stop-position={wrong.end}" in hint
    assert f"--skip-gtid {wrong.gtid}" in hint
    assert "binlog2s3.invalid" not in said
    got = [row[0] for row in pair.target.query("SELECT id FROM shop.a ORDER BY id")]
    assert got == [*range(20), 21]
    assert pair.left() == []
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 21")
    pair.apply(files)
    assert pair.target.query("SELECT COUNT(*) FROM shop.a") == [(30,)]


def test_a_transaction_that_fails_without_gtids(without_gtids: Pair) -> None:
    """It is the position that names it, and what is noted is where the next run begins."""
    pair = without_gtids
    write_rows(pair.source)
    stand_in_the_way(pair.target)
    begin = pair.files().transactions[2][1].begin
    names = pair.names
    files = own(pair.source.datadir, names, begin=begin)
    wrong = files.transactions[-8][1]
    noted: list[Place] = []
    with pytest.raises(RecoveryError) as caught:
        pair.apply(files, on_place=noted.append)
    assert f"refused a transaction at mysql-bin.000002:{wrong.begin}" in str(caught.value)
    assert str(caught.value).endswith("all before it was applied")
    assert noted[-1].offset == wrong.begin
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 21")
    pair.apply(own(pair.source.datadir, names[1:], begin=noted[-1].offset))
    assert content(pair.target) == content(pair.source)


def test_the_target_goes_down(pair: Pair) -> None:
    """It is said so, and the same again finishes the work."""
    write_counting(pair.source)
    files = pair.files(cut=100)

    def kill(progress: Progress) -> None:
        if progress.transactions > 10:
            pair.target.kill()

    with pytest.raises(RecoveryError, match="went away") as caught:
        pair.apply(files, kill, batch_bytes=3000)
    assert caught.value.transient
    pair.target.start()
    assert pair.settle() is not None
    pair.apply(files)
    same(pair)


def test_somebody_stops_the_applier(pair: Pair) -> None:
    """It is said so; nothing of ours is left."""
    write_counting(pair.source)
    pair.target.query("SET GLOBAL rpl_stop_replica_timeout = 2")  # the least
    with ExitStack() as stack:
        stands = stack.enter_context(held_up(pair.target))

        def stop(_progress: Progress) -> None:
            if stands():
                with pytest.raises(pymysql.OperationalError, match="got the stop signal"):
                    pair.target.query("STOP REPLICA SQL_THREAD FOR CHANNEL 'pitr'")
                stack.close()  # now it goes on, as far as this transaction

        try:
            with pytest.raises(RecoveryError, match="was stopped by somebody else"):
                pair.apply(pair.files(cut=100), stop)
        finally:
            pair.target.query("SET GLOBAL rpl_stop_replica_timeout = DEFAULT")
    assert pair.left() == []
    pair.apply(pair.files())
    same(pair)


@pytest.mark.parametrize("keeps_gtids", [True, False])
def test_what_comes_before_damage_is_applied(
    request: pytest.FixtureRequest, keeps_gtids: bool
) -> None:
    """Where the bucket breaks off within a transaction, all that is whole before it is applied."""
    pair: Pair = request.getfixturevalue("pair" if keeps_gtids else "without_gtids")
    write_rows(pair.source)
    files, noted = pair.files(cut=50), list[Place]()
    end = files.transactions[17][1].end

    def broken() -> Stream:
        for piece, data in files.stream():
            yield piece, _upto(data, end + 60, str(piece.binlog) == "mysql-bin.000002")

    with pytest.raises(ArchiveError, match="torn"):
        pair.apply(files, stream=broken(), batch_bytes=900, on_place=noted.append)
    got = [row[0] for row in pair.target.query("SELECT id FROM shop.a ORDER BY id")]
    assert got == list(range(16))
    assert noted[-1].offset == end or keeps_gtids
    assert pair.left() == []


def _upto(data: Iterator[Checked], end: int, is_torn: bool) -> Iterator[Checked]:
    size = 0
    for checked in data:
        if is_torn and size > end:
            raise ArchiveError("torn")
        size += len(checked.data)
        yield checked


# The target's own ways


def test_encrypted_relay_logs(
    pair: Pair, mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """A target that encrypts its relay logs reads ours, which are not."""
    write_some(pair.source, 6)
    with MysqlServer(
        mysql_binaries, disk_tmp_path / "encrypted", server_id=3, encrypted=True, options=RELAXED
    ) as there:
        other = Pair(pair.source, there)
        assert other.obstacle() is None
        other.apply(other.files(), batch_bytes=3000)
        same(other)
        assert other.left() == []


@pytest.mark.parametrize(
    "settings",
    [
        {"relay_log_purge": "OFF"},
        {"replica_preserve_commit_order": "OFF"},
        {"replica_preserve_commit_order": "OFF", "replica_parallel_workers": "0"},
        {"replica_parallel_workers": "1"},
        {"relay_log_purge": "OFF", "replica_parallel_workers": "8"},
        {"replica_checkpoint_period": "1000"},
    ],
)
def test_settings_that_do_not_matter(pair: Pair, settings: dict[str, str]) -> None:
    """All arrives, the settings are afterwards as they were, and the disk is not filled."""
    write_counting(pair.source)
    before = {n: pair.target.query(f"SELECT @@global.{n}")[0][0] for n in settings}
    pair.target.query(*(f"SET GLOBAL {name} = {value}" for name, value in settings.items()))
    found = {n: pair.target.query(f"SELECT @@global.{n}")[0][0] for n in settings}
    most = [0]

    def look(_progress: Progress) -> None:
        most.append(pair.left_size())

    files = pair.files(cut=200)
    try:
        assert pair.obstacle() is None
        pair.apply(files, look, batch_bytes=files.size // 10)
        assert {n: pair.target.query(f"SELECT @@global.{n}")[0][0] for n in settings} == found
    finally:
        pair.target.query(*(f"SET GLOBAL {name} = {value}" for name, value in before.items()))
    same(pair)
    assert 0 < max(most) < files.size // 2


@pytest.fixture
def small_disk(disk_tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = disk_tmp_path / "small"
    mount_small(place, 2 << 20)
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_the_targets_own_disk_is_full(
    pair: Pair,
    small_disk: Path,
    restarted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for room without a word: that is said; with room, the next run goes on."""
    monkeypatch.setattr(relay_mysql, "_FULL_SECONDS", 2.0)
    monkeypatch.setattr(relay_channel, "_STOP_SECONDS", 2.0)
    restarted(f"--log-bin={small_disk}/bin", "--rpl-stop-replica-timeout=2")
    pair.source.query("CREATE DATABASE shop", "CREATE TABLE shop.a (b LONGBLOB)")
    pair.source.query(*("INSERT INTO shop.a VALUES (REPEAT('x', 100000))" for _ in range(30)))
    with pytest.raises(RecoveryError, match=f"the disk of {small_disk} is full") as caught:
        pair.apply(pair.files())
    assert "free some space" in caught.value.hint
    assert mount("-o", "remount,size=16m", small_disk).returncode == 0
    monkeypatch.setattr(relay_channel, "_STOP_SECONDS", 600.0)  # it looks for room once a minute
    pair.settle()
    pair.apply(pair.files())
    same(pair)


@pytest.mark.parametrize("begun", [False, True])
def test_the_relay_logs_disk_is_full(
    pair: Pair,
    small_disk: Path,
    restarted: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    begun: bool,
) -> None:
    """It is said so, nothing is left, and with smaller batches all arrives.

    Relay logs may lie elsewhere than the data. What the server removes meanwhile is no room for
    the next batch: somebody else takes it each time that is looked.
    """
    monkeypatch.setattr(relay_mysql, "_EVERY_SECONDS", 0.001)
    restarted(f"--relay-log={small_disk}/relay", f"--relay-log-index={small_disk}/relay.index")
    pair.source.query("CREATE DATABASE shop", "CREATE TABLE shop.a (b LONGBLOB)")
    pair.source.query(*("INSERT INTO shop.a VALUES (REPEAT('x', 100000))" for _ in range(30)))
    files = pair.files(cut=1 << 14)
    assert pair.obstacle() is None
    made: list[relay.Way] = []
    filler = small_disk / "filler"

    def fill(progress: Progress) -> None:
        there = os.statvfs(small_disk)
        too_much = there.f_bavail * there.f_frsize - 90_000
        if progress.transactions and too_much > 0:
            with filler.open("ab") as file:
                file.write(bytes(too_much))

    with pytest.raises(RecoveryError, match=f"{small_disk}, is full") as caught:
        pair.apply(
            files,
            fill if begun else lambda _: None,
            made=made,
            batch_bytes=200_000 << 4 * (not begun),
        )
    filler.unlink(missing_ok=True)
    assert "free some space" in caught.value.hint
    assert made[0].touched is begun
    assert list(small_disk.iterdir()) == []
    assert (gtids(pair.target) != "") is begun
    pair.apply(files, batch_bytes=200_000)
    same(pair)
    assert list(small_disk.iterdir()) == []
