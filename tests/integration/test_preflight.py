"""`check` against real servers and stores: what it finds, what it says to do, what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.inspect.check.bucket import wanted_rule
from lab.disk import temporary_directory
from lab.fault import Answer, Gate, Rewrite, on
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer, faketime
from lab.proxy import RecordingProxy
from lab.s3 import REGION, MinioServer, NanioServer, Store, VersitygwServer, environment_for
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

    def argv(self, *arguments: str) -> list[str]:
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
        return [sys.executable, "-m", "binlog2s3", "check", *words, *arguments]

    def variables(self) -> dict[str, str]:
        given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
        return {**given, **self.store.env(), **self.environment}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            self.argv(*arguments),
            capture_output=True,
            check=False,
            env=self.variables(),
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=180,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

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


def denying(minio: MinioServer, *actions: str, resource: str = "*") -> dict[str, str]:
    """Credentials that may do everything but this."""
    arn = ["arn:aws:s3:::*"]
    statement = [
        {"Effect": "Allow", "Action": ["s3:*"], "Resource": arn},
        {"Effect": "Deny", "Action": list(actions), "Resource": [f"arn:aws:s3:::{resource}"]},
    ]
    return environment_for(**minio.restricted({"Statement": statement}))


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


def test_the_table_is_for_people(check: Check) -> None:
    """One line a row with its hint below, a summary at the end."""
    check.server.query("SET GLOBAL server_id = 0")
    try:
        done = check.run()
    finally:
        check.server.query("SET GLOBAL server_id = 5")
    assert (done.returncode, done.stderr) == (4, "")
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if re.match(r"  FAIL +settings +server_id ", line))
    assert "hint: SET PERSIST server_id = N there" in lines[at + 1]
    assert re.fullmatch(
        r"1 FAIL, 0 WARN, \d+ OK, 1 not checked: exit code 4 \(--all .*\)", lines[-1]
    )
    assert at == 0
    assert not any(re.match(r"  (OK|-) ", line) for line in lines)
    every = check.run("--all").stdout.splitlines()
    assert sum(bool(re.match(r"  OK ", line)) for line in every) > 20


# The server


SETTINGS = {
    "binlog_format": "MIXED",
    "binlog_row_image": "MINIMAL",
    "binlog_checksum": "NONE",
    "sync_binlog": "100",
    "innodb_flush_log_at_trx_commit": "2",
    "binlog_expire_logs_seconds": "3600",
}


def test_settings_that_deserve_a_warning(check: Check) -> None:
    """Each by its own name, with what it is set to and what to do; none of them fails."""
    before = {name: check.server.query(f"SELECT @@GLOBAL.{name}")[0][0] for name in SETTINGS}
    try:
        for name, value in SETTINGS.items():
            check.server.query(f"SET GLOBAL {name} = {value}")
        rows = check.rows()
    finally:
        for name, value in before.items():
            check.server.query(f"SET GLOBAL {name} = {value}")
    assert not_well(rows) == {("settings", name): "warn" for name in SETTINGS}
    for name in SETTINGS.keys() - {"binlog_expire_logs_seconds"}:
        assert rows["settings", name]["found"] == SETTINGS[name]
        assert f"SET GLOBAL {name} = " in rows["settings", name]["hint"]
    assert rows["settings", "binlog_expire_logs_seconds"]["found"] == "binlogs expire after 60 min"


def test_a_server_that_keeps_binlogs_for_ever(check: Check) -> None:
    """A warning: its disk fills up."""
    check.server.query("SET GLOBAL binlog_expire_logs_auto_purge = OFF")
    try:
        rows = check.rows()
    finally:
        check.server.query("SET GLOBAL binlog_expire_logs_auto_purge = ON")
    assert not_well(rows) == {("settings", "binlog_expire_logs_seconds"): "warn"}
    assert "never expire" in rows["settings", "binlog_expire_logs_seconds"]["found"]


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


def test_a_server_that_lost_its_id(check: Check) -> None:
    """server_id 0 fails, once; the statement of its hint, with a number, makes it well."""
    check.server.query("SET GLOBAL server_id = 0")
    try:
        rows = check.rows(4)
        assert not_well(rows) == {("settings", "server_id"): "fail"}
        assert rows["mysqlbinlog", "connection"]["result"] == "skipped"
        statement, found, _ = rows["settings", "server_id"]["hint"].partition(" there, where N ")
        assert found
        check.server.query(statement.replace("N", "5"))
        assert not_well(check.rows()) == {}
    finally:
        check.server.query("SET GLOBAL server_id = 5", "RESET PERSIST IF EXISTS server_id")


def test_a_server_that_is_offline(check: Check) -> None:
    """offline_mode lets only administrators in; the hint ends with the statement to run."""
    check.server.query("SET GLOBAL offline_mode = ON")
    try:
        rows = check.rows(4)
        assert not_well(rows) == {("server", "reachable"): "fail"}
        said, _, statement = rows["server", "reachable"]["hint"].rpartition(": ")
        assert "offline mode" in said
        check.server.query(statement)
        assert not_well(check.rows()) == {}
    finally:
        check.server.query("SET GLOBAL offline_mode = OFF")


ACCOUNTS = {
    "expired": ("PASSWORD EXPIRE", "change the account's password"),
    "locked": ("ACCOUNT LOCK", "ACCOUNT UNLOCK"),
    "encrypted": ("REQUIRE SSL", "REQUIRE SSL"),
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_an_account_that_does_not_get_in(check: Check, name: str) -> None:
    """The server is not reachable for it; what to do about it is said."""
    how, hint = ACCOUNTS[name]
    check.server.query("SET sql_log_bin = 0", f"CREATE USER {name} {how}")
    check.options |= {"mysql-user": name, "mysql-password-file": None, "mysql-ssl-mode": "DISABLED"}
    rows = check.rows(4)
    assert not_well(rows) == {("server", "reachable"): "fail"}
    assert hint in rows["server", "reachable"]["hint"]


def test_without_a_temporary_directory(check: Check) -> None:
    """A streamer needs none: a warning that mysqlbinlog could not be tried, and all other rows."""
    none = "import tempfile, runpy; tempfile.tempdir = '/nowhere'; "
    argv = check.argv("--json")
    argv[1:3] = ["-c", f"{none}runpy.run_module('binlog2s3', run_name='__main__', alter_sys=True)"]
    done = subprocess.run(
        argv, capture_output=True, check=False, env=check.variables(), text=True, timeout=180
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = {(row["part"], row["name"]): row for row in json.loads(done.stdout)["parts"]}
    assert not_well(rows) == {("mysqlbinlog", "connection"): "warn"}
    assert "TMPDIR" in rows["mysqlbinlog", "connection"]["hint"]
    assert rows["privileges", "REPLICATION SLAVE"]["result"] == "ok"


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


PRIVILEGES = {
    "no_client": (["REPLICATION SLAVE"], {"REPLICATION CLIENT"}),
    "no_slave": (["REPLICATION CLIENT"], {"REPLICATION SLAVE"}),
    "nothing": ([], {"REPLICATION CLIENT", "REPLICATION SLAVE"}),
}


@pytest.mark.parametrize("name", PRIVILEGES)
def test_a_privilege_that_is_missing(check: Check, name: str) -> None:
    """Exactly that one, with the statement that grants it: run as it stands, the row is well."""
    grants, missing = PRIVILEGES[name]
    user(check.server, name, *grants)
    check.options |= {"mysql-user": name, "mysql-password-file": None}
    rows = check.rows(4)
    lacking = {
        n for (part, n), row in rows.items() if part == "privileges" if row["result"] != "ok"
    }
    assert lacking == missing
    connects = rows["mysqlbinlog", "connection"]["result"]
    assert connects == {"no_client": "ok", "no_slave": "fail", "nothing": "skipped"}[name]
    for one in missing:
        statement = rows["privileges", one]["hint"]
        assert statement == f"GRANT {one} ON *.* TO '{name}'@'127.0.0.1';"
        check.server.query("SET sql_log_bin = 0", statement)
    assert not_well(check.rows()) == {}


@pytest.mark.parametrize("name", PRIVILEGES)
def test_a_privilege_that_is_missing_on_mariadb(
    mariadb: MariadbServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, name: str
) -> None:
    """There it is called BINLOG MONITOR, and a dump alone shows REPLICATION SLAVE."""
    grants, missing = PRIVILEGES[name]
    user(mariadb, name, *grants)
    check = Check(mariadb, minio, bucket, disk_tmp_path)
    check.options |= {"mysql-user": name, "mysql-password-file": None}
    rows = check.rows(4)
    assert rows["mysqlbinlog", "connection"]["result"] != "ok"
    lacking = [
        key for key, row in rows.items() if key[0] == "privileges" if row["result"] == "fail"
    ]
    named = {"REPLICATION CLIENT": "BINLOG MONITOR"}
    assert {name for _, name in lacking} == {named.get(one, one) for one in missing}
    mariadb.query(*(rows[key]["hint"] for key in lacking))
    rows = check.rows()
    assert rows["privileges", "REPLICATION SLAVE"]["result"] == "ok"
    assert rows["mysqlbinlog", "connection"]["result"] == "ok"


LIMITS = ("MAX_USER_CONNECTIONS 2", "MAX_CONNECTIONS_PER_HOUR 1000", "MAX_QUERIES_PER_HOUR 500")


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize("limit", LIMITS)
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


def test_a_server_that_is_down_keeps_nothing_else_from_being_looked_at(check: Check) -> None:
    """Exit 4; what needs the server is not looked at, the bucket and the spool are."""
    check.options["mysql-port"] = "1"
    rows = check.rows(4)
    assert not_well(rows) == {("server", "reachable"): "fail"}
    for part in ("settings", "privileges", "mysqlbinlog"):
        assert {row["result"] for (p, _), row in rows.items() if p == part} == {"skipped"}
    assert rows["store", "complete if absent"]["result"] == "ok"
    assert rows["spool", "directory"]["result"] == "ok"


def test_a_mysqlbinlog_of_the_other_flavour(check: Check, mariadb_binaries: ServerBinaries) -> None:
    """It fails, and says which is wanted; the privileges are known all the same."""
    check.options["mysqlbinlog"] = str(mariadb_binaries.binlog)
    rows = check.rows(4)
    assert not_well(rows) == {("mysqlbinlog", "program"): "fail"}
    found = rows["mysqlbinlog", "program"]["found"]
    assert "is of MariaDB, but the server is MySQL" in found
    assert "MySQL" in rows["mysqlbinlog", "program"]["hint"]
    assert rows["mysqlbinlog", "connection"]["result"] == "skipped"
    assert rows["privileges", "REPLICATION SLAVE"]["result"] == "ok"


def test_a_server_whose_clock_is_wrong(
    mysql_binaries: ServerBinaries,
    faketime_library: Path,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """A warning that says by how much, and in which direction."""
    with (
        temporary_directory() as directory,
        MysqlServer(
            mysql_binaries, directory, environment=faketime(faketime_library, "-600s")
        ) as server,
    ):
        rows = Check(server, minio, bucket, disk_tmp_path).rows()
        assert not_well(rows) == {("clock", "server"): "warn"}
        found = re.search(r"at least ([0-9.]+) s behind", rows["clock", "server"]["found"])
        assert found
        assert 500 < float(found[1]) < 601  # less by the time that the answer took


# The bucket


DENIED = {
    "s3:ListBucket": "list live/",
    "s3:PutObject": "put",
    "s3:GetObject": "get a range",
    "s3:DeleteObject": "delete",
    "s3:AbortMultipartUpload": "abort an upload",
    "s3:ListMultipartUploadParts": "list parts",
    "s3:ListBucketMultipartUploads": "list uploads",
}


@pytest.mark.parametrize("action", DENIED)
def test_an_action_that_is_denied(check: Check, minio: MinioServer, action: str) -> None:
    """Its row fails with the action's name, exit 6; nothing is left in the bucket."""
    check.environment |= denying(minio, action)
    rows = check.rows(6)
    row = rows["store", DENIED[action]]
    assert row["result"] == "fail"
    assert action in row["hint"]
    assert rows["store", "reachable"]["result"] == "ok"
    assert left(minio, check.bucket) == []


def test_what_may_not_be_deleted_is_not_put(check: Check, minio: MinioServer) -> None:
    """The only row that fails says which action on which keys; there is nothing to clean up."""
    check.environment |= denying(minio, "s3:DeleteObject", resource=f"{check.bucket}/pre/live/*")
    rows = check.rows(6)
    assert not_well(rows) == {("store", "delete"): "fail"}
    wanted = f"allow s3:DeleteObject on arn:aws:s3:::{check.bucket}/pre/live/test/* for"
    assert rows["store", "delete"]["hint"].startswith(wanted)
    assert rows["store", "write archive/"]["result"] == "ok"
    assert left(minio, check.bucket) == []


DENIED_IN_ARCHIVE = {
    "s3:GetObject": "read archive/",
    "s3:AbortMultipartUpload": "abort in archive/",
    "s3:PutObject": "write archive/",
    "s3:ListMultipartUploadParts": "list parts in archive/",
}


@pytest.mark.parametrize("action", DENIED_IN_ARCHIVE)
def test_an_action_that_is_denied_in_the_archive(
    check: Check, minio: MinioServer, action: str
) -> None:
    """Though it is allowed below live/: its row alone fails, and nothing is left, ever."""
    with closing(minio.client()) as client:
        client.put_bucket_versioning(
            Bucket=check.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    lifecycle(minio, check.bucket, wanted_rule("pre/live/"))
    check.environment |= denying(minio, action, resource=f"{check.bucket}/pre/archive/*")
    rows = check.rows(6)
    kinds = ("lineage", "turn", "binlog")
    puts = [*(f"put a {kind}" for kind in kinds), "put an entry"]
    also = {("store", name): "fail" for name in puts if action == "s3:PutObject"}
    assert not_well(rows) == {("store", DENIED_IN_ARCHIVE[action]): "fail", **also}
    wanted = f"allow {action} on arn:aws:s3:::{check.bucket}/pre/archive/test/* for"
    assert rows["store", DENIED_IN_ARCHIVE[action]]["hint"].startswith(wanted)
    assert left(minio, check.bucket) == []
    assert versions(minio, check.bucket) == []


@pytest.mark.parametrize(
    ("action", "keys", "name"),
    [
        ("s3:PutObject", "archive/test/*/lineage.json", "put a lineage"),
        ("s3:PutObject", "archive/test/turns/*", "put a turn"),
        ("s3:PutObject", "archive/test/*/binlogs/*", "put a binlog"),
        ("s3:PutObject", "archive/test/*/entries/*", "put an entry"),
        ("s3:PutObject", "live/test/writers/*", "put a writer"),
        ("s3:GetObject", "archive/test/turns/*", "read archive/"),
        ("s3:GetObject", "archive/test/*/entries/*", "read archive/"),
        ("s3:DeleteObject", "live/test/writers/*", "delete a writer"),
    ],
)
def test_a_policy_that_leaves_out_a_kind_of_object(
    check: Check, minio: MinioServer, action: str, keys: str, name: str
) -> None:
    """Its row alone fails; nothing is left."""
    check.environment |= denying(minio, action, resource=f"{check.bucket}/pre/{keys}")
    rows = check.rows(6)
    assert not_well(rows) == {("store", name): "fail"}
    assert f"allow {action} on " in rows["store", name]["hint"]
    assert left(minio, check.bucket) == []


def test_an_upload_that_cannot_be_aborted_is_named(check: Check, minio: MinioServer) -> None:
    """The store refuses the abort after all: it fails, and the hint is the command that does it."""
    denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    answer = Answer(403, headers={"x-amz-request-id": "1"}, body=denied)
    with RecordingProxy(minio.endpoint_url) as proxy:
        seen: list[str] = []

        def rule(request: Any) -> Any:
            if request.method != "DELETE" or "/archive/" not in request.path:
                return None
            seen.append(request.path)
            return answer if len(seen) > 1 else None

        proxy.rules.append(rule)
        check.options["endpoint-url"] = proxy.url
        rows = check.rows(6)
    assert not_well(rows) == {("store", "clean-up archive/"): "fail"}
    with closing(minio.client()) as client:
        (upload,) = client.list_multipart_uploads(Bucket=check.bucket)["Uploads"]
    assert upload["Key"].startswith("pre/archive/test/check-")
    assert upload["UploadId"] in rows["store", "clean-up archive/"]["found"]
    words = rows["store", "clean-up archive/"]["hint"].partition(";")[0].split()
    assert words == [
        "aws", "--endpoint-url", proxy.url, "s3api", "abort-multipart-upload",
        "--bucket", check.bucket, "--key", upload["Key"], "--upload-id", upload["UploadId"],
    ]  # fmt: skip


SETTINGS_DENIED = {
    "s3:GetBucketVersioning": "versioning",
    "s3:GetLifecycleConfiguration": "lifecycle rules",
    "s3:GetBucketObjectLockConfiguration": "Object Lock",
}


@pytest.mark.parametrize("action", SETTINGS_DENIED)
def test_a_setting_that_may_not_be_asked(check: Check, minio: MinioServer, action: str) -> None:
    """A warning: it could not be looked at; the streamer itself does not need it."""
    check.environment |= denying(minio, action)
    rows = check.rows()
    assert not_well(rows) == {("bucket", SETTINGS_DENIED[action]): "warn"}
    assert "could not be read" in rows["bucket", SETTINGS_DENIED[action]]["found"]
    assert action in rows["bucket", SETTINGS_DENIED[action]]["hint"]
    assert left(minio, check.bucket) == []


def test_a_policy_for_the_sources_own_prefixes_is_enough(check: Check, minio: MinioServer) -> None:
    """Nothing is asked outside of live/<source>/ and archive/<source>/, but by listing.

    Nor is anything deleted below archive/.
    """
    statement = [
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload",
                       "s3:ListMultipartUploadParts", "s3:DeleteObject"],
            "Resource": [f"arn:aws:s3:::{check.bucket}/pre/live/test/*"],
        },
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:GetObject", "s3:AbortMultipartUpload",
                       "s3:ListMultipartUploadParts"],
            "Resource": [f"arn:aws:s3:::{check.bucket}/pre/archive/test/*"],
        },
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketMultipartUploads", "s3:GetBucketVersioning",
                       "s3:GetLifecycleConfiguration", "s3:GetBucketObjectLockConfiguration"],
            "Resource": [f"arn:aws:s3:::{check.bucket}"],
        },
    ]  # fmt: skip
    check.environment |= environment_for(**minio.restricted({"Statement": statement}))
    assert not_well(check.rows()) == {}


def lifecycle(store: Store, bucket: str, *rules: Mapping[str, Any]) -> None:
    with closing(store.client()) as client:
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={"Rules": list(rules)},  # type: ignore[typeddict-item]
        )


def expiring(prefix: str) -> dict[str, Any]:
    return {
        "ID": "old",
        "Status": "Enabled",
        "Filter": {"Prefix": prefix},
        "Expiration": {"Days": 30},
    }


def test_a_versioned_bucket_wants_one_rule(check: Check, minio: MinioServer) -> None:
    """What is to be pasted makes it well, with the rules that there are; no version is left."""
    with closing(minio.client()) as client:
        client.put_bucket_versioning(
            Bucket=check.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    lifecycle(minio, check.bucket, expiring("elsewhere/"))
    rows = check.rows()
    assert not_well(rows) == {("bucket", "old versions"): "warn"}
    assert versions(minio, check.bucket) == []
    text, _, pasted = rows["bucket", "old versions"]["hint"].partition("\n")
    assert "put-bucket-lifecycle-configuration" in text
    rules = json.loads(pasted)["Rules"]
    assert [rule["ID"] for rule in rules] == ["old", "binlog2s3-live"]
    assert rules[1]["Filter"] == {"Prefix": "pre/live/"}
    lifecycle(minio, check.bucket, *rules)
    rows = check.rows()
    assert not_well(rows) == {}
    assert "binlog2s3-live" in rows["bucket", "old versions"]["found"]


def test_old_versions_that_may_not_be_deleted_are_said(check: Check, minio: MinioServer) -> None:
    """A streamer need not have that right: a warning, unless a rule ends them as the streamer's."""
    with closing(minio.client()) as client:
        client.put_bucket_versioning(
            Bucket=check.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    check.environment |= denying(minio, "s3:DeleteObjectVersion")
    rows = check.rows()
    assert not_well(rows) == {("store", "clean-up"): "warn", ("bucket", "old versions"): "warn"}
    assert "no rule deletes them" in rows["store", "clean-up"]["found"]
    assert "s3:DeleteObjectVersion" in rows["store", "clean-up"]["hint"]
    lifecycle(minio, check.bucket, wanted_rule("pre/live/"))
    rows = check.rows()
    assert not_well(rows) == {}
    assert "rule 'binlog2s3-live' deletes old versions" in rows["store", "clean-up"]["found"]
    assert left(minio, check.bucket) == []
    assert {key.split("/")[1] for key in versions(minio, check.bucket)} == {"live"}


def test_with_default_retention_nothing_is_put(check: Check, minio: MinioServer) -> None:
    """A stream works there, so it is a warning; what would be put to see more would stay."""
    bucket = check.bucket = minio.make_bucket(ObjectLockEnabledForBucket=True)
    assert not_well(check.rows()) == {("bucket", "old versions"): "warn"}
    with closing(minio.client()) as client:
        client.put_object_lock_configuration(
            Bucket=bucket,
            ObjectLockConfiguration={
                "ObjectLockEnabled": "Enabled",
                "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}},
            },
        )
    rows = check.rows()
    assert rows["bucket", "Object Lock"]["result"] == "warn"
    assert rows["store", "delete a writer"]["result"] == "ok"
    assert rows["store", "write archive/"]["result"] == "ok"
    assert "GOVERNANCE 1 days" in rows["bucket", "Object Lock"]["found"]
    assert rows["store", "put"]["result"] == "skipped"
    assert versions(minio, bucket) == []
    with StreamProcess(check.directory, check.server, minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        first = check.server.binlogs()[-1][0]
        check.server.query("FLUSH BINARY LOGS")
        stream.wait_for_event("binlog archived", binlog=first)
        assert stream.terminate() == 0


@pytest.mark.parametrize(
    ("prefix", "result"),
    [
        ("pre/live/", "fail"),
        ("pre/archive/", "warn"),
        ("pre/live/other/", "ok"),
    ],
)
def test_a_rule_that_deletes(check: Check, minio: MinioServer, prefix: str, result: str) -> None:
    """Of live/ it fails, of the archive it warns, elsewhere it is nobody's business here."""
    lifecycle(minio, check.bucket, expiring(prefix))
    rows = check.rows(6 if result == "fail" else 0)
    assert rows["bucket", "lifecycle rules"]["result"] == result


def test_a_store_without_conditions(
    source: MysqlServer, nanio: NanioServer, disk_tmp_path: Path
) -> None:
    """What it lacks is said, and is no failure; nothing is left."""
    check = Check(source, nanio, nanio.make_bucket(), disk_tmp_path)
    rows = check.rows()
    assert not_well(rows) == {
        ("store", "put if absent"): "warn",
        ("store", "CRC64NVME"): "warn",
        ("store", "copy a part"): "warn",
        ("store", "complete if absent"): "warn",
    }
    assert left(nanio, check.bucket) == []


def test_versitygw(source: MysqlServer, versitygw: VersitygwServer, disk_tmp_path: Path) -> None:
    """The second opinion: everything that it has is well."""
    check = Check(source, versitygw, versitygw.make_bucket(), disk_tmp_path)
    assert not_well(check.rows()) == {}
    assert left(versitygw, check.bucket) == []


def test_encryption_that_a_store_does_not_confirm(
    source: MysqlServer, versitygw: VersitygwServer, disk_tmp_path: Path
) -> None:
    """It fails as the streamer would; what lies there in clear is taken away."""
    check = Check(source, versitygw, versitygw.make_bucket(), disk_tmp_path)
    check.options["sse"] = "AES256"
    assert not_well(check.rows(6)) == {
        ("store", "put"): "fail",
        ("store", "upload a part"): "fail",
    }
    assert left(versitygw, check.bucket) == []


def test_a_storage_class_that_the_store_does_not_have(check: Check) -> None:
    """It fails before a binlog is to be archived in it."""
    check.options["storage-class"] = "GLACIER_IR"
    assert not_well(check.rows(6)) == {
        ("store", "begin an upload"): "fail",
        ("store", "write archive/"): "fail",
    }
    assert left(check.store, check.bucket) == []


def test_a_bucket_that_is_not_there(check: Check) -> None:
    """Exit 6, with what to do; the server is looked at all the same."""
    check.bucket = "no-such-bucket"
    rows = check.rows(6)
    assert not_well(rows) == {("store", "reachable"): "fail"}
    assert rows["privileges", "REPLICATION SLAVE"]["result"] == "ok"
    assert rows["bucket", "versioning"]["result"] == "skipped"


def test_a_store_whose_clock_is_wrong(check: Check, minio: MinioServer) -> None:
    """Seen by the Date of its answers."""
    with RecordingProxy(minio.endpoint_url) as proxy:
        wrong = on(
            Rewrite(strip=("date",), headers={"Date": "Mon, 05 Jan 2026 10:00:00 GMT"}),
            method="GET",
            query="list-type=2",
        )
        proxy.rules.append(wrong)
        check.options["endpoint-url"] = proxy.url
        rows = check.rows()
    assert rows["clock", "store"]["result"] == "warn"


@pytest.mark.parametrize(
    ("method", "path", "number"),
    [
        ("PUT", r"check-\w+/object", signal.SIGINT),
        ("POST", r"check-\w+/upload", signal.SIGTERM),
        ("PUT", r"check-\w+/upload", signal.SIGINT),
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
            check.argv(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=check.variables(),
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


def test_an_error_in_the_middle_leaves_nothing(check: Check, minio: MinioServer) -> None:
    """A store that fails from some request on, but deletes: what was put is taken away."""
    with RecordingProxy(minio.endpoint_url) as proxy:
        proxy.rules.append(on(Answer(500, body=b"broken"), method="PUT", path=r"/(upload|copy)$"))
        check.options["endpoint-url"] = proxy.url
        rows = check.rows(6)
    for name in ("upload a part", "copy a part"):
        assert rows["store", name]["result"] == "fail"
    assert rows["store", "clean-up"]["result"] == "ok"
    assert left(minio, check.bucket) == []


def test_what_cannot_be_taken_away_is_named(check: Check, minio: MinioServer) -> None:
    """The store refuses to delete after all: it fails, and says where to look."""
    with RecordingProxy(minio.endpoint_url) as proxy:
        denied = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
        answer = Answer(403, headers={"x-amz-request-id": "1"}, body=denied)
        allowed = [1]

        def rule(request: Any) -> Any:
            if request.method == "POST" and "delete" in request.query:
                allowed[0] -= 1
                return answer if allowed[0] < 0 else None
            is_single = request.method == "DELETE" and "uploadId" not in request.query
            return answer if is_single and allowed[0] < 0 else None

        proxy.rules.append(rule)
        check.options["endpoint-url"] = proxy.url
        rows = check.rows(6)
    row = rows["store", "clean-up"]
    assert row["result"] == "fail"
    kept = left(minio, check.bucket)
    assert kept
    assert all(key.startswith("pre/live/test/check-") for key in kept)
    assert kept[0].rpartition("/")[0] in row["hint"]


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
    keys: Sequence[str] = left(minio, check.bucket)
    assert not [key for key in keys if "check-" in key]
