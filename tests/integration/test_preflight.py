"""`check` against real servers and stores: what it finds, what it says to do, what it leaves."""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.fault import Gate
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import REGION, MinioServer, Store, VersitygwServer
from tests import command
from tests.integration.stream_process import StreamProcess
from tests.timed import PATIENT_END
from tests.waiting import wait_until

Rows = dict[tuple[str, str], dict[str, str]]


@dataclass(slots=True)
class Check:
    """`check` with the options of a streamer that works; `options` and `environment` differ."""

    server: MysqlServer
    store: Store
    bucket: str
    directory: Path
    options: dict[str, str | None] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def words(self, *arguments: str) -> list[str]:
        chosen: dict[str, str | None] = {
            "source": "test",
            "mysql-host": "127.0.0.1",
            "mysql-port": str(self.server.port),
            "mysql-user": self.server.repl_user,
            "mysql-password-file": str(self.server.password_file),
            "mysqlbinlog": str(self.server.binaries.binlog),
            "spool": str(self.directory / "spool"),
            "s3-url": f"s3://{self.bucket}/pre",
            "endpoint-url": self.store.endpoint_url,
            "addressing-style": "path",
            "region": REGION,
            **self.options,
        }
        words = [f"--{name}={value}" for name, value in chosen.items() if value is not None]
        return ["check", *words, *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return command.run(*self.words(*arguments), **self.variables())

    def variables(self) -> dict[str, str]:
        return {**self.store.env(), **self.environment}

    def rows(self, code: int = 0) -> Rows:
        """The rows of --json; its exit code is the process's."""
        done = self.run("--json")
        document = json.loads(done.stdout)
        assert document["exit_code"] == done.returncode == code, done.stdout
        ill = [row for row in document["parts"] if row["result"] in ("warn", "fail")]
        assert all(row["hint"] for row in ill), ill
        return {(row["part"], row["name"]): row for row in document["parts"]}


def not_well(rows: Rows) -> dict[tuple[str, str], str]:
    """The rows that warn or fail."""
    return {key: row["result"] for key, row in rows.items() if row["result"] in ("warn", "fail")}


def left(store: Store, bucket: str) -> list[str]:
    """Everything in a bucket: objects, versions, uploads."""
    with closing(store.client()) as client:
        found = [o["Key"] for o in client.list_objects_v2(Bucket=bucket).get("Contents", ())]
        found += [u["Key"] for u in client.list_multipart_uploads(Bucket=bucket).get("Uploads", ())]
        return found


def versions(store: Store, bucket: str) -> list[str]:
    with closing(store.client()) as client:
        page = client.list_object_versions(Bucket=bucket)
        both = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        return [one["Key"] for one in both]


@pytest.fixture(scope="module")
def source(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL as it should be, for all tests that change it back."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, server_id=5) as server,
    ):
        yield server


@pytest.fixture
def check(source: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path) -> Check:
    return Check(source, minio, bucket, disk_tmp_path)


def user(server: MysqlServer, name: str, *grants: str) -> str:
    """A user with these privileges and an empty password."""
    server.query(
        "SET sql_log_bin = 0",
        f"CREATE USER IF NOT EXISTS '{name}'@'127.0.0.1'",
        *(f"GRANT {grant} ON *.* TO '{name}'@'127.0.0.1'" for grant in grants),
    )
    return name


# A streamer that would work


@pytest.mark.gate
def test_everything_is_well(check: Check) -> None:
    """Every row is OK, in the parts' order; nothing is left in the bucket or on the disk."""
    rows = check.rows()
    assert not_well(rows) == {}
    assert {row["result"] for row in rows.values()} == {"ok"}
    assert list(dict.fromkeys(part for part, _ in rows)) == [
        "configuration",
        "server",
        "settings",
        "privileges",
        "mysqlbinlog",
        "clock",
        "store",
        "bucket",
        "spool",
        "streamer",
        "start",
    ]
    assert "TLSv1" in rows["server", "TLS"]["found"]
    assert left(check.store, check.bucket) == []
    assert not (check.directory / "spool").exists()


def test_mariadb_is_looked_at_likewise(
    mariadb: MariadbServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Its own settings; its defaults deserve warnings, and are no failure.

    The same of PROCESS, which only MariaDB needs; the statement of its hint makes it well.
    """
    check = Check(mariadb, minio, bucket, disk_tmp_path)
    rows = check.rows()
    settings = {
        ("settings", "binlog_format"): "warn",
        ("settings", "sync_binlog"): "warn",
        ("settings", "binlog_expire_logs_seconds"): "warn",
    }
    assert not_well(rows) == {**settings, ("privileges", "PROCESS"): "warn"}
    mariadb.query("SET sql_log_bin = 0", rows["privileges", "PROCESS"]["hint"])
    rows = check.rows()
    assert not_well(rows) == settings
    assert {("settings", "gtid_domain_id"), ("settings", "gtid_strict_mode")} <= rows.keys()
    assert rows["privileges", "BINLOG MONITOR"]["result"] == "ok"
    mariadb.query("SET GLOBAL gtid_strict_mode = OFF", "SET GLOBAL binlog_format = STATEMENT")
    rows = check.rows()
    assert rows["settings", "gtid_strict_mode"]["result"] == "warn"
    assert rows["settings", "binlog_format"]["found"] == "STATEMENT"


def test_a_mariadb_replica_that_does_not_log_what_it_applies(
    mariadb: MariadbServer,
    mariadb_binaries: ServerBinaries,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """Also where the user may not ask: while it applies it fails, stopped it is a warning."""
    with (
        temporary_directory() as directory,
        MariadbServer(mariadb_binaries, directory, server_id=77) as replica,
    ):
        replica.query(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={mariadb.port},"
            f" MASTER_USER='{mariadb.repl_user}', MASTER_PASSWORD='{mariadb.password}',"
            " MASTER_USE_GTID=slave_pos",
            "START SLAVE",
        )
        mariadb.query("CREATE DATABASE shop")
        wait_until(lambda: replica.query("SHOW DATABASES LIKE 'shop'"), what="it has applied")
        check = Check(replica, minio, bucket, disk_tmp_path)
        assert check.rows(4)["settings", "log_slave_updates"]["result"] == "fail"
        replica.query("STOP SLAVE")
        assert check.rows()["settings", "log_slave_updates"]["result"] == "warn"


# The server


def test_a_server_without_binlog_gtids_or_server_id(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """log_bin OFF and server_id 0 fail; without GTIDs it is said what pitr cannot do."""
    options = ["--skip-log-bin", "--server-id=0"]
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, gtid=False, options=options) as server,
    ):
        check = Check(server, minio, bucket, disk_tmp_path)
        rows = check.rows(4)
        assert rows["settings", "log_bin"]["result"] == "fail"
        assert rows["settings", "server_id"]["result"] == "fail"
        for key in (
            ("privileges", "REPLICATION CLIENT"),
            ("privileges", "REPLICATION SLAVE"),
            ("mysqlbinlog", "connection"),
        ):
            assert rows[key]["found"] == "not checked: the server writes no binlog"
        assert rows["settings", "gtid_mode"]["result"] == "warn"
        assert "pitr" in rows["settings", "gtid_mode"]["hint"]
        assert rows["settings", "enforce_gtid_consistency"]["result"] == "warn"
        server.restart(["--skip-log-replica-updates", "--binlog-ignore-db=scratch"])
        rows = check.rows()
        assert "scratch" in rows["settings", "binlog filters"]["found"]
        assert rows["settings", "log_replica_updates"]["result"] == "ok"
        server.query("CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1")
        rows = check.rows(4)
        assert rows["settings", "log_replica_updates"]["result"] == "fail"


def test_a_server_that_is_mended_by_its_hint(check: Check) -> None:
    """server_id 0 and offline_mode fail, once; the statement of the hint makes it well."""
    check.server.query("SET GLOBAL server_id = 0")
    try:
        rows = check.rows(4)
        assert not_well(rows) == {("settings", "server_id"): "fail"}
        assert rows["mysqlbinlog", "connection"]["result"] == "skipped"
        statement, found, _ = rows["settings", "server_id"]["hint"].partition(" there, where N ")
        assert found
        check.server.query(statement.replace("N", "5"), "SET GLOBAL offline_mode = ON")
        rows = check.rows(4)
        assert not_well(rows) == {("server", "reachable"): "fail"}
        said, _, statement = rows["server", "reachable"]["hint"].rpartition(": ")
        assert "offline mode" in said
        check.server.query(statement)
        assert not_well(check.rows()) == {}
    finally:
        check.server.query(
            "SET GLOBAL offline_mode = OFF",
            "SET GLOBAL server_id = 5",
            "RESET PERSIST IF EXISTS server_id",
        )


def test_an_account_that_does_not_get_in(check: Check) -> None:
    """The server is not reachable for it; what to do about it is said."""
    check.options |= {"mysql-password-file": None, "mysql-ssl-mode": "DISABLED"}
    for name, how, hint in (
        ("expired", "PASSWORD EXPIRE", "change the account's password"),
        ("locked", "ACCOUNT LOCK", "ACCOUNT UNLOCK"),
        ("encrypted", "REQUIRE SSL", "REQUIRE SSL"),
    ):
        check.server.query("SET sql_log_bin = 0", f"CREATE USER {name} {how}")
        check.options["mysql-user"] = name
        rows = check.rows(4)
        assert not_well(rows) == {("server", "reachable"): "fail"}
        assert hint in rows["server", "reachable"]["hint"]


def test_a_replica_with_the_streamers_id(check: Check, mysql_binaries: ServerBinaries) -> None:
    """They would end each other: it fails; with another id it is well."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, server_id=77) as replica,
    ):
        replica.query(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_SSL=1,"
            f" SOURCE_PORT={check.server.port}, SOURCE_USER='{check.server.repl_user}',"
            f" SOURCE_PASSWORD='{check.server.password}', SOURCE_AUTO_POSITION=1",
            "START REPLICA IO_THREAD",
        )
        wait_until(lambda: check.server.query("SHOW REPLICAS"), what="a replica")
        check.options["mysql-server-id"] = "77"
        rows = check.rows(4)
        assert not_well(rows) == {("settings", "server_id"): "fail"}
        assert "--mysql-server-id" in rows["settings", "server_id"]["hint"]
        check.options["mysql-server-id"] = "78"
        assert not_well(check.rows()) == {}


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_the_servers_own_id(
    request: pytest.FixtureRequest,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
    flavour: str,
) -> None:
    """A streamer works with it, so check says OK."""
    server: MysqlServer = request.getfixturevalue(flavour)
    own = int(server.query("SELECT @@server_id")[0][0])
    check = Check(server, minio, bucket, disk_tmp_path, {"mysql-server-id": str(own)})
    row = check.rows()["settings", "server_id"]
    assert (row["result"], bool(row["hint"])) == ("ok", True)
    options = {"mysql-server-id": own}
    with StreamProcess(disk_tmp_path, server, minio, bucket, options=options) as stream:
        stream.wait_for_event("new lineage")
        first = server.binlogs()[-1][0]
        server.query("CREATE DATABASE d", "FLUSH BINARY LOGS")
        stream.wait_for_event("binlog archived", binlog=first)
        assert stream.terminate() == 0


LIMITS = [("mysql", "MAX_USER_CONNECTIONS 2"), ("mariadb", "MAX_CONNECTIONS_PER_HOUR 1000")]


@pytest.mark.parametrize(("flavour", "limit"), LIMITS)
def test_an_account_with_limits(
    request: pytest.FixtureRequest,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
    flavour: str,
    limit: str,
) -> None:
    """Fewer than a stream needs fail, and the statement of the hint makes it well."""
    either: MysqlServer = request.getfixturevalue(flavour)
    name = "limited"
    either.query(
        "SET sql_log_bin = 0",
        f"DROP USER IF EXISTS '{name}'@'127.0.0.1'",
        f"CREATE USER '{name}'@'127.0.0.1' WITH {limit}",
        f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{name}'@'127.0.0.1'",
    )
    check = Check(either, minio, bucket, disk_tmp_path)
    check.options |= {"mysql-user": name, "mysql-password-file": None}
    scarce = "PER_HOUR 1000" in limit
    row = check.rows(0 if scarce else 4)["privileges", "account limits"]
    assert (row["result"], limit in row["found"]) == ("warn" if scarce else "fail", True)
    statement = f"ALTER USER {row['hint'].partition('ALTER USER ')[2]}"
    either.query("SET sql_log_bin = 0", statement)
    assert check.rows()["privileges", "account limits"]["found"] == "none"


def test_privileges_of_a_role(check: Check) -> None:
    """A role that is not active gives nothing, and is named; a default one is enough."""
    user(check.server, "with_role")
    check.server.query(
        "SET sql_log_bin = 0",
        "CREATE ROLE streaming",
        "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO streaming",
        "GRANT streaming TO with_role@127.0.0.1",
    )
    check.options |= {"mysql-user": "with_role", "mysql-password-file": None}
    rows = check.rows(4)
    hint = rows["privileges", "REPLICATION SLAVE"]["hint"]
    assert "streaming" in hint
    statement = hint.partition(": ")[2] if " has it: " not in hint else hint.split(" has it: ")[1]
    check.server.query("SET sql_log_bin = 0", statement)
    assert not_well(check.rows()) == {}


# The bucket


def test_versitygw(source: MysqlServer, versitygw: VersitygwServer, disk_tmp_path: Path) -> None:
    """The second opinion: everything that it has is well."""
    check = Check(source, versitygw, versitygw.make_bucket(), disk_tmp_path)
    assert not_well(check.rows()) == {}
    assert left(versitygw, check.bucket) == []


@pytest.mark.parametrize(
    ("method", "path", "number"),
    [
        ("PUT", r"check-\w+/object", signal.SIGINT),
        ("POST", r"archive/test/check-\w+/upload", signal.SIGTERM),
    ],
)
def test_a_signal_in_the_middle_leaves_nothing(
    check: Check, minio: MinioServer, method: str, path: str, number: signal.Signals
) -> None:
    """While an object is on its way, or an upload: it ends after that, and takes it away.

    Else the store would do what was asked for once nobody is there to take it away.
    """
    gate = Gate(method=method, path=path)
    with RecordingProxy(minio.endpoint_url) as proxy:
        proxy.rules.append(gate)
        check.options["endpoint-url"] = proxy.url
        process = subprocess.Popen(
            command.argv(*check.words()),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command.environment(**check.variables()),
            start_new_session=True,
        )
        try:
            assert gate.held.wait(60), "the request came"
            process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # one that does not wait for the answer ends here
            gate.open()
            out, err = process.communicate(timeout=60)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert process.returncode == 128 + number, (out, err)
    assert b"Traceback" not in err
    assert b"nothing fails" not in out
    assert left(minio, check.bucket) == []


# What its start refuses


@pytest.mark.gate
def test_a_source_that_a_start_refuses(
    check: Check, minio: MinioServer, mysql_binaries: ServerBinaries
) -> None:
    """Of another server than the bucket's it says what `stream` says, with the same exit code.

    Of the same server after a reset, it says that the histories differ. It writes nothing.
    """
    directory = check.directory / "first"
    check.server.query("CREATE DATABASE IF NOT EXISTS refused", "DROP DATABASE refused")
    with StreamProcess(directory, check.server, minio, check.bucket) as stream:
        stream.wait_for_event("streaming")
        check.server.query("FLUSH BINARY LOGS")
        stream.wait_for_event("binlog archived")
        assert stream.terminate() == 0
    before = left(minio, check.bucket)
    with MysqlServer(mysql_binaries, check.directory / "another", server_id=6) as another:
        check.server, first = another, check.server
        rows = check.rows(4)
        assert not_well(rows) == {("start", "history"): "fail"}
        streaming = command.run("stream", *check.words()[1:], **check.variables())
        assert streaming.returncode == 4, streaming.stderr
        assert rows["start", "history"]["found"] in streaming.stderr
        uuid = str(another.query("SELECT @@server_uuid")[0][0])
        assert f"--accept-new-server {uuid}" in rows["start", "history"]["hint"]
        check.options["accept-new-server"] = uuid
        assert not_well(check.rows()) == {("start", "history"): "warn"}
    del check.options["accept-new-server"]
    check.server = first
    first.query("RESET BINARY LOGS AND GTIDS")
    rows = check.rows()
    assert not_well(rows) == {("start", "history"): "warn"}
    assert "contradicts the archive" in rows["start", "history"]["found"]
    assert left(minio, check.bucket) == before


# A streamer beside it


def test_beside_a_running_streamer(check: Check, minio: MinioServer) -> None:
    """It is said where it runs, the spool's lock is no failure, and it streams on undisturbed.

    Another spool is that of a second streamer, which stands by: that is well, and it is said.
    """
    options = {"heartbeat-interval": 60}  # nobody takes it for dead so soon
    directory = check.directory / "beside"
    with StreamProcess(
        directory, check.server, minio, check.bucket, options=options, timing=PATIENT_END
    ) as stream:
        stream.wait_for_event("streaming")
        stream.wait_for_event("this process is the writer")
        check.options["spool"] = str(stream.spool)
        rows = check.rows()
        assert not_well(rows) == {}
        assert f"process {stream.pid}" in rows["streamer", "heartbeat"]["found"]
        assert f"process {stream.pid}" in rows["spool", "lock"]["found"]
        assert rows["streamer", "heartbeat"]["hint"] == ""
        check.options["spool"] = str(check.directory / "other")
        rows = check.rows()
        assert not_well(rows) == {}
        assert f"process {stream.pid}" in rows["streamer", "heartbeat"]["found"]
        assert "another streamer started here stands by" in rows["streamer", "heartbeat"]["hint"]
        assert stream.terminate() == 0
        assert stream.events("mysqlbinlog ended") == []
    rows = check.rows()
    assert "is stopped" in rows["streamer", "heartbeat"]["found"]
    assert "it goes on with" in rows["start", "history"]["found"]
    keys: Sequence[str] = left(minio, check.bucket)
    assert not [key for key in keys if "check-" in key]
