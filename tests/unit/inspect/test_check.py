"""What a preflight judges, tries and leaves, without servers."""

import errno
import fcntl
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.stream import Config, MysqlConfig, S3Config, SpoolLimits, StreamConfig
from binlog2s3.errors import StoreError, UploadMissingError
from binlog2s3.inspect.check.bucket import (
    BucketCheck,
    permission,
    retention_row,
    rule_rows,
    versioning_rows,
    wanted_rule,
)
from binlog2s3.inspect.check.probes import ARCHIVE_NAMES, NAMES, ArchiveProbes, LiveProbes
from binlog2s3.inspect.check.report import (
    Row,
    RowPrinter,
    clock_row,
    exit_code,
    fail,
    ok,
    skipped,
    warn,
)
from binlog2s3.inspect.check.settings import (
    ServerSettings,
    limits_of,
    limits_row,
    settings_rows,
    version_row,
)
from binlog2s3.inspect.check.source import SourceAccount, key_rows, login_rows
from binlog2s3.inspect.check.spool import owner_row, spool_rows, unusable_hint
from binlog2s3.server.version import ServerVersion
from binlog2s3.store.errors import Failure, translate
from binlog2s3.stream.spool import RunFacts, holder
from tests.login import ROOT
from tests.memory_store import MemoryStore

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
LAYOUT = Layout("pre", "test")
WELL = {
    "log_bin": "ON",
    "server_id": "1",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_checksum": "CRC32",
    "sync_binlog": "1",
    "innodb_flush_log_at_trx_commit": "1",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "log_replica_updates": "ON",
    "max_binlog_size": "1073741824",
}


def seen(flavour: Flavour = "mysql", **variables: str) -> ServerSettings:
    return ServerSettings(
        release=ServerVersion("9.7.4" if flavour == "mysql" else "10.11.2-MariaDB"),
        variables={**WELL, **variables},
        our_id=4_000_000_000,
        expire_seconds=7 * 86400.0,
    )


def forever(version: str) -> ServerSettings:
    """A server of this version whose binlogs never expire."""
    release = ServerVersion(version)
    return replace(seen(release.flavour), release=release, expire_seconds=None)


def results(rows: Iterable[Row]) -> dict[str, str]:
    """What is not well, by name."""
    return {row.name: row.result for row in rows if row.result != "ok"}


# Rows


def test_the_first_part_that_fails_gives_the_exit_code() -> None:
    """0 where nothing fails; warnings and what was not looked at do not count."""
    rows = [ok("server", "a", ""), warn("settings", "b", "", "x"), skipped("clock", "c", "")]
    assert exit_code(rows) == 0
    assert exit_code([*rows, fail("spool", "d", "", ""), fail("store", "e", "", "")]) == 5
    assert exit_code([fail("configuration", "d", "", ""), *rows]) == 3


def test_what_is_not_well_comes_first_and_each_cause_once() -> None:
    """A line for each thing to do, with all that suffers from it; what is well is counted."""
    out = io.StringIO()
    shown = RowPrinter(out, as_json=False)
    for row in (
        ok("server", "version", "9"),
        warn("settings", "sync_binlog", "100", "SET GLOBAL sync_binlog = 1"),
        fail("store", "put", "no \x1b[31mput\nOK", "allow s3:PutObject"),
        fail("store", "upload", "no upload", "allow s3:PutObject"),
        skipped("store", "abort", "no upload"),
        fail("configuration", "options", "a is missing", "see -h"),
        fail("configuration", "options", "b is missing", "see -h"),
    ):
        shown.show(row)
    assert out.getvalue() == ""
    shown.finish()
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines == [
        "FAIL store put no \\x1b[31mput\\nOK; also: upload",
        "hint: allow s3:PutObject",
        "FAIL configuration options a is missing",
        "hint: see -h",
        "FAIL configuration options b is missing",
        "WARN settings sync_binlog 100",
        "hint: SET GLOBAL sync_binlog = 1",
        "",
        "4 FAIL, 1 WARN, 1 OK, 1 not checked: exit code 6 (--all shows each row)",
    ]


@pytest.mark.parametrize(
    ("seconds", "result", "found"),
    [
        (0, "ok", "same as this host's"),
        (4, "ok", "at least 4.0 s ahead of this host's"),
        (-4, "ok", "at least 3.0 s behind this host's"),
        (7, "warn", "at least 7.0 s ahead of this host's"),
        (-7, "warn", "at least 6.0 s behind this host's"),
    ],
)
def test_clocks(seconds: int, result: str, found: str) -> None:
    """More than 5 seconds are a warning; how long the answer took, or a clock's grain, is none."""
    later = NOW + timedelta(seconds=3)
    theirs = (later if seconds > 0 else NOW) + timedelta(seconds=seconds)
    row = clock_row("store", NOW, theirs, later, grain_seconds=1.0)
    assert (row.result, row.found) == (result, found)


# Settings


@pytest.mark.parametrize(
    ("flavour", "version", "result"),
    [
        ("mysql", "9.7.4", "ok"),
        ("mysql", "26.7.0", "ok"),
        ("mariadb", "12.3.1-MariaDB-log", "ok"),
        ("mysql", "8.0.36-0ubuntu0.22.04.1", "ok"),
        ("mysql", "5.7.44-log", "warn"),
        ("mysql", "5.6.14", "warn"),
        ("mysql", "5.5.62", "fail"),
        ("mariadb", "10.11.18-MariaDB-0+deb12u1-log", "ok"),
        ("mariadb", "5.5.5-10.6.12-MariaDB", "ok"),
        ("mariadb", "10.4.1-MariaDB", "warn"),
        ("mariadb", "5.5.64-MariaDB", "fail"),
    ],
)
def test_versions(flavour: Flavour, version: str, result: str) -> None:
    """Which can be streamed from."""
    row = version_row(ServerVersion(version))
    title = {"mysql": "MySQL", "mariadb": "MariaDB"}[flavour]
    assert (row.result, row.found) == (result, f"{title} {version}")


EXPIRY, UPDATES = "binlog_expire_logs_seconds", "log_replica_updates"


@pytest.mark.parametrize(
    ("variables", "known", "expected"),
    [
        ({}, {}, {}),
        ({"log_bin": "OFF"}, {}, {"log_bin": "fail"}),
        ({"binlog_error_action": "IGNORE_ERROR"}, {}, {"binlog_error_action": "fail"}),
        ({"binlog_error_action": "ABORT_SERVER"}, {}, {}),
        ({"ndb_log_bin": "OFF"}, {}, {"engines": "fail"}),
        ({"ndb_log_bin": "ON"}, {}, {}),
        ({"server_id": "0"}, {}, {"server_id": "fail"}),
        ({"server_id": "4000000000"}, {}, {}),
        ({"binlog_format": "STATEMENT"}, {}, {"binlog_format": "warn"}),
        ({"binlog_format": "MIXED"}, {}, {"binlog_format": "warn"}),
        ({"binlog_row_image": "NOBLOB"}, {}, {"binlog_row_image": "warn"}),
        ({"binlog_row_metadata": "MINIMAL"}, {}, {}),
        ({"binlog_checksum": "NONE"}, {}, {"binlog_checksum": "warn"}),
        ({"sync_binlog": "0"}, {}, {"sync_binlog": "warn"}),
        ({"innodb_flush_log_at_trx_commit": "2"}, {}, {"innodb_flush_log_at_trx_commit": "warn"}),
        ({"gtid_mode": "ON_PERMISSIVE"}, {}, {"gtid_mode": "warn"}),
        ({"enforce_gtid_consistency": "OFF"}, {}, {"enforce_gtid_consistency": "warn"}),
        ({"binlog_encryption": "ON"}, {}, {}),
        # a replica that does not log what it applies, and one that may not be asked
        ({UPDATES: "OFF"}, {}, {}),
        ({UPDATES: "OFF"}, {"replicates": True}, {UPDATES: "fail"}),
        ({UPDATES: "OFF"}, {"replicates": None}, {UPDATES: "warn"}),
        ({}, {"replicates": True}, {}),
        # what expires: a day at least, and not never
        ({}, {"expire_seconds": 86400.0}, {}),
        ({}, {"expire_seconds": 86399.0}, {EXPIRY: "warn"}),
        ({}, {"expire_seconds": 0.0}, {EXPIRY: "warn"}),
        ({}, {"expire_seconds": None}, {EXPIRY: "warn"}),
        # what is left out
        ({}, {"filters": "binlog_do_db=shop"}, {"binlog filters": "warn"}),
        ({}, {"filters": None}, {"binlog filters": "skipped"}),
        ({}, {"replica_filters": "replicate_do_db=shop"}, {"replication filters": "warn"}),
        # another replica has our id
        ({}, {"replicas": frozenset({7, 4_000_000_000})}, {"server_id": "fail"}),
        ({}, {"replicas": frozenset({7, 4_000_000_000}), "our_id": 8}, {}),
        # a read-only MySQL is no reader of Aurora
        ({"aurora_server_id": "orders-1", "innodb_read_only": "OFF"}, {}, {}),
        ({"innodb_read_only": "ON"}, {}, {}),
    ],
)
def test_settings(
    variables: dict[str, str], known: dict[str, Any], expected: dict[str, str]
) -> None:
    """Each is judged by itself; of a server as it should be nothing is said but OK."""
    assert results(settings_rows(replace(seen(**variables), **known))) == expected


def mariadb(**variables: str) -> ServerSettings:
    return seen("mariadb", **variables)


def node(**variables: str) -> ServerSettings:
    """Of a Galera cluster, with the cluster's domain 7."""
    return replace(mariadb(wsrep_gtid_domain_id="7", **variables), in_galera=True)


OWN_DOMAIN = "a gtid_domain_id of its own"


@pytest.mark.parametrize(
    ("server", "name", "result", "found", "hint"),
    [
        (seen(aurora_server_id="orders-2", innodb_read_only="ON"), "log_bin", "fail", "",
         "writer endpoint"),
        (replace(seen(), is_closed=True), "log_bin", "fail", "ON, but it writes no binlog",
         "restart the server at once"),
        (mariadb(binlog_storage_engine="innodb"), "log_bin", "fail",
         "ON, but its binlog is in innodb (binlog_storage_engine), not in files: not supported",
         "remove binlog_storage_engine"),
        (replace(seen(server_id="0"), release=ServerVersion("8.0.36")), "server_id", "fail", "",
         "SET PERSIST server_id = N"),
        (replace(seen(server_id="0"), release=ServerVersion("5.7.44-log")), "server_id", "fail", "",
         "SET GLOBAL server_id = N"),
        (mariadb(server_id="0"), "server_id", "fail", "", "SET GLOBAL server_id = N"),
        (replace(seen(), replicas=None), "server_id", "ok", "", "replica"),
        (node(gtid_domain_id="0"), "gtid_domain_id", "warn",
         "0, as on every node where nobody set it", OWN_DOMAIN),
        (node(gtid_domain_id="7"), "gtid_domain_id", "warn",
         "7, which is also the cluster's (wsrep_gtid_domain_id)", OWN_DOMAIN),
        (node(gtid_domain_id="11"), "gtid_domain_id", "ok",
         "11; the cluster's is 7", OWN_DOMAIN),
        (mariadb(gtid_domain_id="0"), "gtid_domain_id", "ok", "0", ""),
        (mariadb(), "sql_log_bin", "ok", "no server shows it", ""),
        (mariadb(), "binlog_error_action", "ok", "", "watch for it"),
        (forever("5.7.22-log"), "expire_logs_days", "warn",
         "never expire", "expire_logs_days = 7,"),
        (forever("8.0.31"), EXPIRY, "warn", "never expire", "binlog_expire_logs_seconds = 604800,"),
        (forever("10.5.1-MariaDB"), "expire_logs_days",
         "warn", "never expire", "expire_logs_days = 7,"),
        (forever("10.11.18-MariaDB"), EXPIRY, "warn",
         "never expire", "binlog_expire_logs_seconds = 604800,"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_setting(
    server: ServerSettings, name: str, result: str, found: str, hint: str
) -> None:
    """Its row, by the name and with the statement that this server's version knows."""
    (row,) = (row for row in settings_rows(server) if row.name == name)
    assert row.result == result
    assert found in row.found
    assert hint in row.hint
    assert server.writes == (row.name != "log_bin" or "aurora_server_id" in server.variables)


def test_a_node_of_galera_that_does_not_log_what_it_applies() -> None:
    """It is a replica of each other node, by the name that MariaDB has for the switch."""
    galera = node(log_slave_updates="OFF", gtid_domain_id="11")
    del galera.variables[UPDATES]  # type: ignore[attr-defined]
    assert results(settings_rows(galera)) == {"log_slave_updates": "fail"}


def test_accounts_as_grant_wants_them() -> None:
    """Quoted, with whatever is in them."""

    def account(name: str, version: str = "8.4.0") -> SourceAccount:
        return SourceAccount(release=ServerVersion(version), name=name)

    assert account("repl@%").quoted == "'repl'@'%'"
    assert account("o'neill@x@10.%").quoted == "'o''neill@x'@'10.%'"
    assert account("a@b").client == "REPLICATION CLIENT"
    assert account("a@b", "10.11.2-MariaDB").client == "BINLOG MONITOR"
    assert account("a@b", "10.4.2-MariaDB").client == "REPLICATION CLIENT"


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        ({}, "ok"),
        ({"MAX_USER_CONNECTIONS": 2}, "fail"),
        ({"MAX_USER_CONNECTIONS": 3}, "warn"),
        ({"MAX_USER_CONNECTIONS": 6}, "ok"),
        ({"MAX_CONNECTIONS_PER_HOUR": 2}, "fail"),
        ({"MAX_CONNECTIONS_PER_HOUR": 50}, "warn"),
        ({"MAX_CONNECTIONS_PER_HOUR": 5000}, "ok"),
        ({"MAX_QUERIES_PER_HOUR": 1000}, "fail"),
        ({"MAX_QUERIES_PER_HOUR": 8000}, "warn"),
        ({"MAX_QUERIES_PER_HOUR": 100_000}, "ok"),
        (None, "skipped"),
    ],
)
def test_limits_of_the_account(limits: dict[str, int] | None, result: str) -> None:
    """Too few for a stream fail, with the statement that lifts them; scarce ones are a warning."""
    row = limits_row(limits, "'r'@'%'")
    assert row.result == result
    if result in ("fail", "warn"):
        assert limits is not None
        assert f"ALTER USER 'r'@'%' WITH {next(iter(limits))} 0;" in row.hint


def test_limits_in_what_a_server_answers() -> None:
    """Zero is none; what is quoted is no limit."""
    said = (
        "CREATE USER 'MAX_USER_CONNECTIONS 1'@'%' IDENTIFIED BY PASSWORD "
        "'a''MAX_QUERIES_PER_HOUR 2' REQUIRE NONE "
        "WITH MAX_QUERIES_PER_HOUR 0 MAX_UPDATES_PER_HOUR 7 "
        "MAX_CONNECTIONS_PER_HOUR 100 MAX_USER_CONNECTIONS 2 PASSWORD EXPIRE DEFAULT "
        "COMMENT 'MAX_CONNECTIONS_PER_HOUR 1'"
    )
    assert limits_of(said) == {"MAX_CONNECTIONS_PER_HOUR": 100, "MAX_USER_CONNECTIONS": 2}


# Rules


def rule(prefix: str, **more: Any) -> dict[str, Any]:
    return {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": prefix}, **more}


TAG = {"Key": "a", "Value": "b"}
EXPIRES = {"Expiration": {"Days": 30}}


def judged(*rules: Mapping[str, Any]) -> list[str]:
    return [row.result for row in rule_rows(rules, archive=LAYOUT.archive, live=LAYOUT.live)]


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (rule("pre/live/", **EXPIRES), "fail"),
        (rule("pre/live/test/x", **EXPIRES), "fail"),
        (rule("", **EXPIRES), "fail"),
        ({"Status": "Enabled", "Prefix": "pre/", **EXPIRES}, "fail"),
        ({"Status": "Enabled", **EXPIRES}, "fail"),
        (rule("pre/archive/", **EXPIRES), "warn"),
        (rule("pre/archive/test/2026", Expiration={"Date": NOW}), "warn"),
        (rule("pre/live/other/", **EXPIRES), "ok"),
        (rule("pre/live/testing/", **EXPIRES), "ok"),
        (rule("x/", **EXPIRES), "ok"),
        ({**rule("pre/live/", **EXPIRES), "Status": "Disabled"}, "ok"),
        ({"Status": "Enabled", "Filter": {"Tag": TAG}, **EXPIRES}, "ok"),
        (rule("", Filter={"And": {"Prefix": "pre/", "Tags": [TAG]}}, **EXPIRES), "ok"),
        (rule("", Filter={"And": {"Prefix": "pre/", "ObjectSizeGreaterThan": 1}}, **EXPIRES),
         "fail"),
        (rule("pre/live/", Expiration={"ExpiredObjectDeleteMarker": True}), "ok"),
        (rule("pre/", Transitions=[{"Days": 1, "StorageClass": "DEEP_ARCHIVE"}]), "warn"),
        (rule("pre/", Transitions=[{"Days": 1, "StorageClass": "GLACIER_IR"}]), "ok"),
    ],
)  # fmt: skip
def test_a_lifecycle_rule(one: dict[str, Any], expected: str) -> None:
    """What deletes chunks fails, what deletes or hides the archive warns, the rest is well."""
    assert judged(one) == [expected]


KEEPS_ONE = {"NoncurrentDays": 1, "NewerNoncurrentVersions": 1}


def versioning(status: str, *rules: Mapping[str, Any]) -> list[Row]:
    return list(
        versioning_rows(status, rules, bucket="b", whole_live="pre/live/", live=LAYOUT.live)
    )


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ([], "warn"),
        ([wanted_rule("pre/live/")], "ok"),
        ([rule("", NoncurrentVersionExpiration={"NoncurrentDays": 7})], "ok"),
        ([rule("pre/live/test/a", NoncurrentVersionExpiration={"NoncurrentDays": 1})], "warn"),
        ([rule("pre/archive/", NoncurrentVersionExpiration={"NoncurrentDays": 1})], "warn"),
        ([rule("pre/live/", NoncurrentVersionExpiration=KEEPS_ONE)], "warn"),
        ([{**wanted_rule("pre/live/"), "Status": "Disabled"}], "warn"),
        *(
            ([{**wanted_rule("pre/live/"), "Filter": chosen}], "warn")
            for chosen in (
                {"ObjectSizeGreaterThan": 1000},
                {"ObjectSizeLessThan": 1 << 40},
                {"Tag": TAG},
                {"And": {"Prefix": "pre/live/", "ObjectSizeGreaterThan": 0}},
                {"And": {"Prefix": "pre/live/", "ObjectSizeLessThan": 1 << 40}},
                {"And": {"Prefix": "pre/", "Tags": [TAG]}},
            )
        ),
        ([{**wanted_rule("pre/live/"), "Filter": {"And": {"Prefix": "pre/live/"}}}], "ok"),
    ],
)
def test_versioning_needs_a_rule(rules: list[dict[str, Any]], expected: str) -> None:
    """One that ends old versions of all in live/; a warning brings the rules to paste."""
    assert [row.result for row in versioning("")] == ["ok"]
    rows = versioning("Enabled", *rules)
    assert [row.result for row in rows] == ["ok", expected]
    if expected == "warn":
        pasted = json.loads(rows[1].paste)["Rules"]
        assert pasted == [*rules, wanted_rule("pre/live/")]
        assert versioning("Enabled", *pasted)[1].result == "ok"


def test_default_retention() -> None:
    """It works: a delete hides a chunk, whose version stays; that costs, so it is a warning."""
    assert retention_row("").result == "ok"
    row = retention_row("COMPLIANCE 30 days")
    assert (row.result, "COMPLIANCE 30 days" in row.found) == ("warn", True)


# What is tried in the bucket


class Settings:
    """A bucket's settings, as a test wants them."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "clock": NOW,
            "versioning": "",
            "lifecycle": (),
            "default_retention": "",
            "versions": [],
            **answers,
        }
        self.deleted: list[tuple[str, str]] = []

    def _answer(self, name: str) -> Any:
        answer = self.answers[name]
        if isinstance(answer, StoreError):
            raise answer
        return answer

    def clock(self, prefix: str) -> datetime | None:
        assert prefix
        found: datetime | None = self._answer("clock")
        return found

    def versioning(self) -> str:
        return str(self._answer("versioning"))

    def lifecycle(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self._answer("lifecycle")
        return found

    def default_retention(self) -> str:
        return str(self._answer("default_retention"))

    def versions(self, prefix: str) -> list[tuple[str, str]]:
        assert LAYOUT.is_of("probe", f"{prefix}x") or prefix.startswith(f"{LAYOUT.writers}000000-")
        found: list[tuple[str, str]] = self._answer("versions")
        return found

    def delete_versions(self, versions: Iterable[tuple[str, str]]) -> None:
        self.deleted += versions


def config(spool: Path = Path("spool"), **s3: Any) -> Config:
    return Config(
        mysql=MysqlConfig(connect_timeout=1.0),
        s3=S3Config(bucket="b", prefix="pre", **{"concurrency": 1, **s3}),
        stream=StreamConfig(source="test"),
        spool=spool,
    )


def denied(operation: str) -> StoreError:
    failure = Failure(
        code="AccessDenied", operation=operation, bucket="b", endpoint="e", status=403
    )
    return translate(failure)


def test_a_denial_says_what_to_allow_where() -> None:
    """Actions on objects for the keys, those on the bucket for the bucket; other hints stay."""

    def wanted(operation: str) -> str:
        return permission(denied(operation).hint, "b", "pre/live/test/").partition(" for ")[0]

    keys = "arn:aws:s3:::b/pre/live/test/*"
    assert wanted("delete_objects") == f"allow s3:DeleteObject on {keys}"
    assert wanted("list_parts") == f"allow s3:ListMultipartUploadParts on {keys}"
    assert wanted("upload_part_copy") == f"allow s3:GetObject on {keys} and s3:PutObject on {keys}"
    assert wanted("list_objects_v2") == "allow s3:ListBucket on arn:aws:s3:::b"
    both = f"allow s3:GetObject on {keys} and s3:ListBucket on arn:aws:s3:::b"
    assert wanted("head_object") == both
    for operation in ("list_multipart_uploads", "get_bucket_lifecycle_configuration"):
        assert wanted(operation).endswith(" on arn:aws:s3:::b")
    assert permission("look at the network", "b", "k") == "look at the network"


def everything(
    store: MemoryStore, settings: Settings | None = None, **s3: Any
) -> tuple[dict[str, Row], Row | None]:
    """The rows by name, and what became of cleaning up; the rows come in their order."""
    probes = LiveProbes(config(**s3), store, settings or Settings())
    rows = list(probes.rows())
    assert [row.name for row in rows] == list(NAMES)
    return {row.name: row for row in rows}, probes.clean()


@pytest.mark.parametrize(
    ("lacks", "expected"),
    [
        ({}, {}),
        ({"lists_uploads": False}, {"list uploads": "warn"}),
        ({"copies_into_crc64_uploads": False}, {}),
        ({"crc64": False}, {"CRC64NVME": "warn"}),
        ({"copies_parts": False}, {"copy a part": "warn"}),
    ],
)
def test_what_a_store_lacks(lacks: dict[str, bool], expected: dict[str, str]) -> None:
    """A warning each, and nothing is left there."""
    store = MemoryStore(**lacks)  # type: ignore[arg-type]
    rows, cleaned = everything(store)
    assert cleaned is not None
    assert cleaned.result == "ok"
    assert results(rows.values()) == expected
    assert (store.objects, store.uploads) == ({}, {})


class Careless(MemoryStore):
    """It looks neither at checksums nor at conditions, and copies nothing where it is to copy."""

    def put(self, key: str, body: Any, **more: Any) -> Any:
        return super().put(key, body, **{**more, "crc64": None, "if_absent": False})

    def copy_part(self, key: str, upload_id: str, number: int, *_: Any, **__: Any) -> Any:
        return self.upload_part(key, upload_id, number, b"")


def test_a_store_that_does_not_look() -> None:
    """What it takes though it should not is a warning, and is taken away as well."""
    store = Careless()
    rows, _ = everything(store)
    assert results(rows.values()) == {
        "put if absent": "warn",
        "CRC64NVME": "warn",
        "copy a part": "warn",
    }
    assert "other bytes" in rows["copy a part"].found
    assert (store.objects, store.uploads) == ({}, {})


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "operation",
    ["put", "get", "head", "create_upload", "copy_part", "list_parts", "complete_upload",
     "list_uploads", "abort_upload", "delete"],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_an_error_anywhere_leaves_nothing(operation: str, when: str, number: int) -> None:
    """Whichever call fails, once, before it was done or after: all is gone, or said to be left."""
    store, calls = MemoryStore(), [0]

    def on_call(name: str) -> Any:
        if name != operation:
            return None
        calls[0] += 1
        return (when, denied("put_object")) if calls[0] == number + 1 else None

    store.on_call = on_call
    _, cleaned = everything(store)
    if cleaned is not None and cleaned.result == "fail":
        assert operation in ("delete", "abort_upload")  # the cleaning up itself
    else:
        assert (store.objects, store.uploads) == ({}, {})


def test_what_cannot_be_deleted_is_not_put() -> None:
    """Where deleting is denied; and where each new object is kept, all else is tried."""
    store = MemoryStore()
    store.on_call = lambda name: ("before", denied("delete_objects")) if name == "delete" else None
    rows, cleaned = everything(store)
    assert rows["delete"].result == "fail"
    assert "s3:DeleteObject on arn:aws:s3:::b/pre/live/test/* " in rows["delete"].hint
    assert "s3:PutObject and more are not tried" in rows["delete"].hint
    assert "docs/policies/streamer.json" in rows["delete"].hint
    uploads = {"abort an upload", "begin an upload", "list uploads", "upload a part", "list parts"}
    assert {name for name, row in rows.items() if row.result == "ok"} == uploads
    assert (store.calls["put"], store.calls["complete_upload"]) == (0, 0)
    assert (store.objects, store.uploads) == ({}, {})
    store = MemoryStore()
    rows, cleaned = everything(store, Settings(default_retention="GOVERNANCE 1 days"))
    skipped_rows = {"put", "put if absent", "head", "get a range", "CRC64NVME", "copy a part",
                    "complete an upload", "complete if absent"}  # fmt: skip
    assert results(rows.values()) == dict.fromkeys(skipped_rows, "skipped")
    assert cleaned is not None
    assert cleaned.result == "ok"
    assert (store.calls["put"], store.calls["complete_upload"]) == (0, 0)
    assert (store.objects, store.uploads) == ({}, {})


def denies(*operations: str) -> MemoryStore:
    """A store that denies these, always."""
    store = MemoryStore()
    error = denied("put_object")
    store.on_call = lambda name: ("before", error) if name in operations else None
    return store


def test_an_upload_that_cannot_be_aborted_is_completed() -> None:
    """And deleted then. Where that is denied, too, none is begun: it would stay."""
    store = denies("abort_upload")
    rows, _ = everything(store)
    assert results(rows.values()) == {"abort an upload": "fail", "complete if absent": "skipped"}
    assert (store.objects, store.uploads) == ({}, {})
    store = denies("abort_upload", "delete")
    rows, _ = everything(store)
    assert rows["begin an upload"].result == "skipped"
    assert store.calls["create_upload"] == 0


_DENIED = {
    "put": {"put if absent", "head", "get a range", "CRC64NVME", "copy a part"},
    "get": set[str](),
    "head": set[str](),
    "create_upload": {"list uploads", "upload a part", "list parts", "complete an upload",
                      "copy a part", "complete if absent"},
    "upload_part": {"complete an upload", "complete if absent"},
    "copy_part": set[str](),
    "list_parts": set[str](),
    "list_uploads": set[str](),
    "complete_upload": {"complete if absent"},
    "abort_upload": {"complete if absent"},
}  # fmt: skip
"""What cannot be tried without each operation."""


@pytest.mark.parametrize("operation", _DENIED)
def test_one_denial_hides_nothing_else(operation: str) -> None:
    """Only what cannot do without it is not checked; nothing is left."""
    store = denies(operation)
    rows, _ = everything(store)
    assert "fail" in results(rows.values()).values()
    skipped_rows = {name for name, row in rows.items() if row.result == "skipped"}
    assert skipped_rows == _DENIED[operation]
    store.on_call = lambda _: None
    assert store.objects == {}


class WithoutSums(MemoryStore):
    """It refuses the checksum of a part: `upload_part` says so by an upload that is gone."""

    refused = False

    def upload_part(self, key: str, upload_id: str, *rest: Any, **more: Any) -> Any:
        if not self.refused:
            self.refused = True
            super().abort_upload(key, upload_id)
            raise UploadMissingError("the store refused a part with CRC64NVME")
        return super().upload_part(key, upload_id, *rest, **more)


def test_a_store_that_refuses_a_parts_checksum() -> None:
    """The streamer gets along with it: it is a warning, and all else is tried."""
    store = WithoutSums()
    rows, _ = everything(store)
    assert results(rows.values()) == {"upload a part": "warn"}
    assert (store.objects, store.uploads) == ({}, {})


def test_a_part_of_the_configured_size_is_sent() -> None:
    """A proxy that limits bodies is found now, not when the first binlog is closed."""
    store = MemoryStore()
    rows, _ = everything(store, part_size=12 << 20)
    assert rows["upload a part"].found == "12.0 MiB, as --part-size says"
    assert results(rows.values()) == {}
    too_large = Failure(
        code="413", operation="upload_part", bucket="b", endpoint="http://e", status=413
    )
    store = MemoryStore()
    store.on_call = lambda name: ("before", translate(too_large)) if name == "upload_part" else None
    rows, _ = everything(store)
    assert rows["upload a part"].result == "fail"
    assert "client_max_body_size" in rows["upload a part"].hint
    assert (store.objects, store.uploads) == ({}, {})


def test_old_versions_are_deleted_too() -> None:
    """Of a versioned bucket; one that is not is not asked."""
    settings = Settings(versioning="Enabled", versions=[("k", "v")])
    everything(MemoryStore(), settings)
    assert settings.deleted == [("k", "v"), ("k", "v")]  # below live/, and of the writer
    settings = Settings(versions=[("k", "v")])
    everything(MemoryStore(), settings)
    assert settings.deleted == []


@pytest.mark.parametrize(
    ("answers", "result", "found"),
    [
        ({}, "warn", "no rule deletes them"),
        ({"lifecycle": [wanted_rule("pre/live/")]}, "ok", "rule 'binlog2s3-live' deletes old"),
        ({"lifecycle": denied("get_bucket_lifecycle_configuration")}, "warn", "could not be read"),
        ({"versioning": denied("get_bucket_versioning")}, "ok", "is denied"),
    ],
)
def test_old_versions_that_stay(answers: dict[str, Any], result: str, found: str) -> None:
    """Well where a rule ends them; else a warning that says what to do."""
    no = denied("list_object_versions")
    settings = Settings(**{"versioning": "Enabled", "versions": no, **answers})
    _, cleaned = everything(MemoryStore(), settings)
    assert cleaned is not None
    assert (cleaned.result, bool(cleaned.hint)) == (result, result == "warn")
    assert found in cleaned.found


def test_what_an_earlier_check_left_is_swept_away_once_it_is_old() -> None:
    """Objects and uploads, an hour later; nothing else below live/ is touched."""
    times = [datetime.now(UTC) - timedelta(hours=2)]
    store = MemoryStore(now=lambda: times[0])
    old = LAYOUT.probes("00000001")
    others = [LAYOUT.writer(1, "0" * 8), f"{LAYOUT.live}check-mine/object"]
    for key in (f"{old}object", *others):
        store.put(key, b"x")
    store.create_upload(f"{old}upload")
    times[0] = datetime.now(UTC)
    new = f"{LAYOUT.probes('00000002')}object"
    store.put(new, b"x")
    everything(store)
    assert sorted(store.objects) == sorted([new, *others])
    assert store.uploads == {}


# What is tried in the archive


def refusal(store: MemoryStore) -> str:
    """What it calls a wrong checksum, as a check has seen it."""
    probes = LiveProbes(config(), store, Settings())
    list(probes.rows())
    probes.clean()
    return probes.refusal


def archive(store: MemoryStore, refused: str = "") -> tuple[dict[str, Row], list[Row]]:
    """The rows by name, and what became of cleaning up."""
    probes = ArchiveProbes(config(), store, refused)
    rows = list(probes.rows())
    rows += [row] if (row := probes.clean()) else []
    tried_rows = rows[: len(ARCHIVE_NAMES)]
    assert [row.name for row in tried_rows] == list(ARCHIVE_NAMES)
    return {row.name: row for row in tried_rows}, rows[len(ARCHIVE_NAMES) :]


def test_an_archive_where_all_is_allowed() -> None:
    """Nothing is put, nothing deleted, and no upload is left; no reader knows its key."""
    store = MemoryStore()
    keys: set[str] = set()
    store.on_act = lambda name, about, _: keys.update(about) if name == "create_upload" else None
    rows, (cleaned,) = archive(store)
    assert results([*rows.values(), cleaned]) == dict.fromkeys(PUT, "skipped")
    assert (store.objects, store.uploads) == ({}, {})
    assert not {"put", "delete", "complete_upload", "copy_part"} & store.calls.keys()
    (key,) = keys
    assert key.startswith(LAYOUT.archive)
    assert LAYOUT.parsed(key) is None


PUT = ARCHIVE_NAMES[3:]
KINDS = ("/lineage.json", "/turns/", "/binlogs/", "/entries/", "/writers/")


def test_each_kind_of_object_is_tried_without_being_made() -> None:
    """By bytes that the store refuses; never where it was not seen to refuse them, or keeps all."""
    store = MemoryStore()
    told = refusal(store)
    assert told
    keys: list[str] = []
    store.on_act = lambda name, about, _: keys.extend(about) if name == "put" else None
    rows, _ = archive(store, told)
    assert ({rows[name].result for name in PUT}, store.objects) == ({"ok"}, {})
    assert len(keys) == len(KINDS)
    assert all(kind in key for kind, key in zip(KINDS, keys, strict=True))
    store.on_call = lambda name: ("before", denied("put_object")) if name == "put" else None
    row = archive(store, told)[0]["put an entry"]
    assert row.result == "fail"
    assert "s3:PutObject on arn:aws:s3:::b/pre/archive/test/* " in row.hint
    for careless in (Careless(), MemoryStore(crc64=False)):
        assert refusal(careless) == ""
        before = careless.calls["put"]
        assert archive(careless)[0]["put an entry"].result == "skipped"
        assert careless.calls["put"] == before
    locked = LiveProbes(config(), MemoryStore(), Settings(default_retention="GOVERNANCE 1 days"))
    list(locked.rows())
    assert locked.refusal == ""
    row = archive(Careless(), told)[0]["put an entry"]  # it refused, and does so no more
    assert (row.result, "s3 rm s3://b/pre/archive/" in row.hint) == ("fail", True)


def test_a_writer_that_may_not_be_deleted() -> None:
    """Each writer's object is deleted by the next writer: to be denied that fails."""
    store = MemoryStore()
    asked: list[Sequence[str]] = []

    def refuse(name: str, about: Sequence[str], _: Any) -> None:
        if name == "delete":
            asked.append(about)
            if any(key.startswith(LAYOUT.writers) for key in about):
                raise denied("delete_objects")

    store.on_act = refuse
    rows, _ = everything(store)
    assert results(rows.values()) == {"delete a writer": "fail"}
    assert asked
    assert (store.objects, store.uploads) == ({}, {})


def test_a_bucket_whose_lock_may_not_be_asked() -> None:
    """With versions it may keep what is put: nothing is; without versions it has no lock."""
    no = denied("get_object_lock_configuration")
    for versioned, puts in (("Enabled", False), ("", True)):
        store = MemoryStore()
        everything(store, Settings(versioning=versioned, default_retention=no))
        assert (store.calls["put"] > 0) is puts


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("operation", ["create_upload", "list_parts", "list_uploads"])
def test_an_error_in_the_archive_leaves_nothing(operation: str, when: str) -> None:
    """An upload whose answer was lost is found, and aborted."""
    store = MemoryStore()
    lost = StoreError("no answer", hint="look", transient=True)
    store.fail_next(operation, when, lost)  # type: ignore[arg-type]
    rows, (cleaned,) = archive(store)
    failing = {"create_upload": "write archive/", "list_parts": "list parts in archive/"}
    expected = [failing[operation]] if operation in failing else []
    assert [name for name, row in rows.items() if row.result == "fail"] == expected
    assert cleaned.result == "ok"
    assert store.uploads == {}


def test_an_upload_that_was_begun_twice_is_aborted_twice() -> None:
    """The store did what a first attempt asked for, and its answer was lost; a second came."""

    class Twice(MemoryStore):
        def create_upload(self, key: str, *, crc64: bool = True) -> str:
            super().create_upload(key, crc64=crc64)
            return super().create_upload(key, crc64=crc64)

    store = Twice()
    archive(store)
    assert store.uploads == {}


def test_what_may_not_be_aborted_is_not_begun_in_the_archive() -> None:
    """It would stay; where it is found out too late, the upload is named."""
    store = MemoryStore()
    no = ("before", denied("abort_multipart_upload"))
    store.on_call = lambda name: no if name == "abort_upload" else None  # type: ignore[assignment, return-value]
    rows, left = archive(store)
    assert rows["abort in archive/"].result == "fail"
    assert (
        "s3:AbortMultipartUpload on arn:aws:s3:::b/pre/archive/" in rows["abort in archive/"].hint
    )
    assert (store.calls["create_upload"], left) == (0, [])
    store = MemoryStore()
    store.on_call = lambda name: no if name == "abort_upload" and store.uploads else None  # type: ignore[assignment, return-value]
    rows, left = archive(store)
    ((upload_id, upload),) = store.uploads.items()
    assert [row.result for row in left] == ["fail"]
    assert f"--key {upload.info.key} --upload-id {upload_id}" in left[0].hint


def test_an_upload_of_which_nothing_is_known_is_named() -> None:
    """Neither its answer came nor can it be listed: it fails, and says where to look."""
    store = MemoryStore()
    lost = StoreError("no answer", hint="look", transient=True)
    store.fail_next("create_upload", "after", lost)
    store.fail_next("list_uploads", "before", lost)
    _, (cleaned,) = archive(store)
    assert cleaned.result == "fail"
    ((_, upload),) = store.uploads.items()
    assert upload.info.key in cleaned.found


def test_old_uploads_of_killed_checks_are_swept_from_the_archive() -> None:
    """An hour later; no other upload there is touched, however old."""
    times = [datetime.now(UTC) - timedelta(hours=2)]
    store = MemoryStore(now=lambda: times[0])
    store.create_upload(f"{LAYOUT.archive}check-00000001/upload")
    others = [
        f"{LAYOUT.archive}check-mine/upload",
        f"{LAYOUT.archive}check-00000001/binlogs/upload",
        f"{LAYOUT.archive}20260102T030405Z-3e11fa47-a1b2/binlogs/mysql-bin.000001",
    ]
    for key in others:
        store.create_upload(key)
    times[0] = datetime.now(UTC)
    others.append(f"{LAYOUT.archive}check-00000002/upload")
    store.create_upload(others[-1])
    archive(store)
    assert sorted(upload.info.key for upload in store.uploads.values()) == sorted(others)


def reading(store: MemoryStore) -> Row:
    check = BucketCheck(config(), store, Settings())
    return next(row for row in check.reading_rows() if row.name == "read archive/")


def test_reading_the_archive() -> None:
    """A key that is absent is asked for, as the streamer does: to be denied that fails."""
    store = MemoryStore()
    assert reading(store).result == "ok"
    store.put(f"{LAYOUT.archive}x", b"x")
    assert (reading(store).result, reading(store).found) == ("ok", f"{LAYOUT.archive}x")
    no = [None, ("before", denied("get_object"))]  # what is there, then what is not
    store.on_call = lambda name: no.pop(0) if name == "get" else None  # type: ignore[return-value]
    row = reading(store)
    assert row.result == "fail"
    assert row.hint.startswith("allow s3:GetObject on arn:aws:s3:::b/pre/archive/test/* ")
    assert "s3:ListBucket without a condition on s3:prefix" in row.hint


def test_readers_pass_over_what_a_check_puts() -> None:
    """Neither the streamer's audit nor `status` nor a start names it; anything else they do."""
    store = MemoryStore()
    catalog = Catalog(store, LAYOUT)
    probe, strange = f"{LAYOUT.probes('0123abcd')}object", f"{LAYOUT.live}check-x/object"
    for key in (probe, strange):
        store.put(key, b"x")
        store.create_upload(key)
    assert catalog.live() == ({}, [strange])
    assert catalog.live_lineages() == set()
    assert catalog.foreign.keys() == {f"{LAYOUT.live}check-x/"}
    assert catalog.strange_uploads() == [strange]
    probed = LAYOUT.parsed(probe)
    assert probed is not None
    assert probed.kind == "probe"


def test_a_bucket_that_says_no_is_reached() -> None:
    """A denied listing is a failure of its own; what does not answer keeps the rest away."""
    store = MemoryStore()
    store.on_call = lambda name: (
        ("before", denied("list_objects_v2")) if name == "check_access" else None
    )
    check = BucketCheck(config(), store, Settings(clock=denied("list_objects_v2")))
    rows = {row.name: row for row in check.reading_rows()}
    assert (rows["reachable"].result, rows["list live/"].result) == ("ok", "fail")
    assert rows["read archive/"].result == "skipped"
    gone = StoreError("cannot reach the store", hint="look", transient=True)
    check = BucketCheck(config(), store, Settings(clock=gone))
    assert results(check.reading_rows()) == {
        "reachable": "fail",
        "list live/": "skipped",
        "list archive/": "skipped",
        "read archive/": "skipped",
    }
    assert {row.result for row in check.setting_rows()} == {"skipped"}
    assert check.clock_row().result == "skipped"


def test_settings_of_a_bucket_that_may_not_be_asked() -> None:
    """A warning each; a store that does not have them is well."""
    no = denied("get_bucket_versioning")
    settings = Settings(versioning=no, lifecycle=no, default_retention=no)
    check = BucketCheck(config(), MemoryStore(), settings)
    assert results(check.setting_rows()) == dict.fromkeys(
        ("Object Lock", "lifecycle rules", "versioning"), "warn"
    )
    lacking = translate(
        Failure(code="NotImplemented", operation="x", bucket="b", endpoint="e", status=501)
    )
    settings = Settings(versioning=lacking, lifecycle=lacking, default_retention=lacking)
    check = BucketCheck(config(), MemoryStore(), settings)
    assert results(check.setting_rows()) == {}


def test_rules_that_may_not_be_asked_of_a_versioned_bucket() -> None:
    """It is versioned, that much is known; whether old versions end is not."""
    no = denied("get_bucket_lifecycle_configuration")
    check = BucketCheck(config(), MemoryStore(), Settings(versioning="Enabled", lifecycle=no))
    rows = {row.name: row for row in check.setting_rows()}
    assert (rows["versioning"].result, rows["versioning"].found) == ("ok", "Enabled")
    assert rows["old versions"].result == "warn"
    wanted = "allow s3:GetLifecycleConfiguration on arn:aws:s3:::b "
    assert rows["old versions"].hint.startswith(wanted)


# The spool


def spool(directory: Path, **limits: int) -> dict[str, Row]:
    whole = replace(config(directory), spool_limits=SpoolLimits(**limits))
    return {row.name: row for row in spool_rows(whole)}


RUN = "run-20260102T030405000000Z-a1b2"


def noted(source: str, target: str) -> str:
    """The run.json of a streamer."""
    facts = RunFacts(
        source=source, target=target, server_uuid="u", binlog="mysql-bin.000001", position=4
    )
    return json.dumps({"format": 1, **asdict(facts)})


def test_a_spool_that_is_not_there(disk_tmp_path: Path) -> None:
    """It can be made; that is found out, and undone."""
    rows = spool(disk_tmp_path / "a" / "b", min_free_bytes=0)
    assert results(rows.values()) == {}
    assert list(disk_tmp_path.iterdir()) == []


def test_a_spool_that_cannot_be(tmp_path: Path) -> None:
    """Something else is in its place: it fails, and the rest is not looked at."""
    (tmp_path / "file").write_text("x")
    rows = spool(tmp_path / "file" / "spool")
    assert rows["directory"].result == "fail"
    assert "not a directory" in rows["directory"].found
    assert "a file has this name" in rows["directory"].hint
    assert {row.result for name, row in rows.items() if name != "directory"} == {"skipped"}


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EACCES, "install -d -m 700 -o "),
        (errno.ENOSPC, "free space there, but never delete run-*"),
        (errno.EROFS, "ReadWritePaths="),
        (errno.EIO, "--spool"),
    ],
)
def test_why_a_spool_cannot_be(number: int, hint: str) -> None:
    """Each reason has a remedy of its own."""
    assert hint in unusable_hint(OSError(number, os.strerror(number)), Path("/spool"))


@pytest.mark.parametrize(
    ("directory", "owner", "user", "result"),
    [
        ("/var/lib/binlog2s3", 501, 501, "ok"),
        ("/var/lib/binlog2s3", 0, 501, "ok"),
        ("/var/lib/binlog2s3", 502, 501, "warn"),
        ("/var/lib/binlog2s3", 501, 0, "warn"),
        ("/var/lib/private/binlog2s3/orders", 61234, 0, "ok"),
        ("/var/lib/private/binlog2s3/orders", 61234, 501, "warn"),
    ],
)
def test_whose_spool_it_is(directory: str, owner: int, user: int, result: str) -> None:
    """Another user's is a warning, but for root with that of a unit, whose user nobody can be.

    A streamer takes root's.
    """
    assert owner_row(Path(directory), owner, user).result == result


def test_a_spool_in_use(disk_tmp_path: Path) -> None:
    """A streamer holds its lock: well, and said; nothing of it is touched."""
    lock = disk_tmp_path / "lock"
    lock.write_text(f"{os.getpid()}\n")
    assert holder(disk_tmp_path) is None
    with lock.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert holder(disk_tmp_path) == os.getpid()
        rows = spool(disk_tmp_path, min_free_bytes=0)
    assert rows["lock"].result == "ok"
    assert str(os.getpid()) in rows["lock"].found
    assert [path.name for path in disk_tmp_path.iterdir()] == ["lock"]


def test_a_spool_of_another_source(disk_tmp_path: Path) -> None:
    """A start would refuse it: it fails; one of ours is well; a damaged note fails."""
    note = disk_tmp_path / RUN / "run.json"
    note.parent.mkdir()
    for text, result in (
        (noted("test", "s3://b/pre"), "ok"),
        (noted("other", "s3://b/pre"), "fail"),
        (noted("test", "s3://b/else"), "fail"),
        ("{", "fail"),
        ("[]", "fail"),
    ):
        note.write_text(text)
        row = spool(disk_tmp_path, min_free_bytes=0)["contents"]
        assert (row.result, bool(row.hint)) == (result, result == "fail")


def test_room_for_the_spool(disk_tmp_path: Path) -> None:
    """Too little free fails, as a start would; a limit that the disk does not allow warns."""
    assert spool(disk_tmp_path, min_free_bytes=1 << 60)["free space"].result == "fail"
    assert spool(disk_tmp_path, min_free_bytes=0, max_bytes=1 << 60)["free space"].result == "warn"
    run = disk_tmp_path / RUN
    run.mkdir()
    (run / "mysql-bin.000001").write_bytes(b"x" * (1 << 20))
    row = spool(disk_tmp_path, min_free_bytes=0, max_bytes=1 << 10)["free space"]
    assert row.result == "fail"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
def test_a_spool_in_memory() -> None:
    """A warning: a reboot loses it."""
    row = spool(Path("/dev/shm/binlog2s3-no-spool"), min_free_bytes=0)["file system"]
    assert (row.result, "tmpfs" in row.found) == ("warn", True)


# The login


def login(tmp_path: Path, mode: int, **options: Any) -> Row:
    """The row of a login with these options; of a text, a file with it and this mode is made."""
    given: dict[str, Any] = {"user": "repl"} | options
    for name, text in options.items():
        if not name.endswith("_file"):
            continue
        path = tmp_path / name
        path.write_text(text)
        path.chmod(mode)
        given[name] = path
    whole = config()
    (row,) = login_rows(replace(whole, mysql=replace(whole.mysql, **given)))
    return row


@pytest.mark.parametrize(
    ("given_", "result", "word"),
    [
        ({"socket": Path("/s")}, "ok", ""),
        ({"host": "127.0.0.1"}, "ok", "--mysql-socket"),
        ({"host": "db1", "ssl_ca": Path("/ca.pem")}, "ok", ""),
        ({"host": "db1", "accept_unverified_server": True}, "warn", "--mysql-ssl-ca"),
        ({"host": "db1"}, "fail", "--mysql-accept-unverified-server"),
    ],
)
def test_which_server_gets_the_password(
    tmp_path: Path, given_: dict[str, Any], result: str, word: str
) -> None:
    """What an upgrade would refuse fails, and what was accepted is a warning: with the options."""
    row = login(tmp_path, 0o600, password_file="secret-1\n", **given_)
    assert row.result == result
    assert (word in row.hint) if word else not row.hint


KEY = "-----BEGIN PUBLIC KEY-----\nMIIB\nIjAN\n-----END PUBLIC KEY-----\n"


@pytest.mark.parametrize(
    ("status", "result"),
    [
        ({"Caching_sha2_password_rsa_public_key": KEY.strip()}, "ok"),
        ({"Rsa_public_key": KEY.replace("\n", "\r\n")}, "ok"),
        ({"Caching_sha2_password_rsa_public_key": KEY.replace("MIIB", "MIIC")}, "fail"),
        ({"Caching_sha2_password_rsa_public_key": ""}, "warn"),
        ({}, "warn"),
    ],
)
def test_a_key_that_is_not_the_servers(status: dict[str, str], result: str) -> None:
    """The server has cached the password: the account gets in today, and not after its restart."""
    (row,) = key_rows(replace(ROOT, ssl_mode="DISABLED", public_key=KEY), status)
    assert row.result == result
    assert not [*key_rows(ROOT, status)]


def test_the_login(tmp_path: Path) -> None:
    """Read as the streamer reads it; the password is in no row; others should not read it."""
    row = login(tmp_path, 0o600, password_file="secret-1\n")
    assert (row.result, "secret-1" in row.found) == ("ok", False)
    for blank in (" ", "\t"):
        row = login(tmp_path, 0o600, password_file=f"secret-1{blank}\n")
        assert (row.result, "ends in whitespace" in row.found) == ("warn", True)
        assert "secret-1" not in row.found + row.hint
    row = login(tmp_path, 0o644, password_file="secret-1\n")
    assert (row.result, "chmod 600" in row.hint) == ("warn", True)
    row = login(tmp_path, 0o600, defaults_file="[client]\npassword=secret-1\n")
    assert (row.result, "secret-1" in row.found + row.hint) == ("ok", False)
    row = login(tmp_path, 0o600, defaults_file="[client]\nnonsense ! =\n")
    assert row.result == "fail"
