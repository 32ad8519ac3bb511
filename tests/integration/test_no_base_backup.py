"""Base backups that are none: dumps by the real programs that do not have the whole server.

None is registered unless its operator accepts that, and then it counts nowhere: nothing is kept for
it, nothing is given up for it, and nothing chooses it.
"""

import gzip
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.apply_pair import RELAXED
from tests.integration.bucket import Bucket
from tests.integration.recovery_command import Recovery, read_only
from tests.integration.recovery_truth import dump_of, load
from tests.integration.recovery_world import wait_durable
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

REASON = "only for the test"


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """A source that is streamed, two databases in it, and where its dumps go."""

    source: MysqlServer
    stream: StreamProcess
    minio: MinioServer
    bucket: str
    folder: Path

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        where = ["--source=test", f"--s3-url=s3://{self.bucket}/pre", "--region=us-east-1"]
        where += [f"--endpoint-url={self.minio.endpoint_url}", "--addressing-style=path"]
        return command.run(*words, *where, **self.minio.env())

    def document(self, *words: str) -> dict[str, Any]:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def commit(self, *statements: str) -> None:
        """Bring these into the bucket."""
        self.source.query(*statements)
        wait_durable(self.stream, Bucket(self.minio, self.bucket), self.source)

    def dump(self, name: str, *options: str) -> Path:
        """What the server's own program writes with these options."""
        path = self.folder / name
        maria = self.source.binaries.flavour == "mariadb"
        program = self.source.binaries.client.with_name("mariadb-dump" if maria else "mysqldump")
        chosen = ["--master-data=2", "--gtid"] if maria else ["--source-data=2"]
        argv = [program, "--no-defaults", "--user=root", f"--socket={self.source.socket}"]
        with path.open("wb") as out:
            subprocess.run(
                [*argv, *chosen, "--single-transaction", *options],
                stdout=out,
                check=True,
                timeout=300,
            )
        return path


@pytest.fixture(params=["mysql", "mariadb"])
def binaries(request: pytest.FixtureRequest) -> ServerBinaries:
    found: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    return found


@pytest.fixture
def streamed(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Streamed]:
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    with ExitStack() as stack:
        source = stack.enter_context(kind(binaries, disk_tmp_path / "source", options=RELAXED))
        stream = stack.enter_context(StreamProcess(disk_tmp_path / "stream", source, minio, bucket))
        found = Streamed(
            source=source, stream=stream, minio=minio, bucket=bucket, folder=disk_tmp_path
        )
        source.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE=InnoDB",
            "INSERT INTO shop.t VALUES (1), (2)",
            "CREATE DATABASE crm",
            "CREATE TABLE crm.t (id INT) ENGINE=InnoDB",
        )
        there = Bucket(minio, bucket)
        wait_until(
            lambda: [key for key in there.keys("pre") if "writers" in key], what="a heartbeat"
        )
        wait_durable(stream, there, source)
        yield found


def cut_off(path: Path, place: Path, *, zipped: bool = False) -> Path:
    """The first two thirds of a dump, as a full disk or a lost connection leave it."""
    data = path.read_bytes()
    data = data[: len(data) * 2 // 3]
    place.write_bytes(gzip.compress(data) if zipped else data)
    return place


@pytest.mark.gate("mysql")
def test_each_dump_that_is_none_is_refused(streamed: Streamed) -> None:
    """By backup add, verify and prune, with what is wrong; nothing of it is registered."""
    whole = streamed.dump("whole.sql", "--all-databases")
    folder = streamed.folder
    none = {
        "it is cut off": [
            cut_off(whole, folder / "cut.sql"),
            cut_off(whole, folder / "cut.sql.gz", zipped=True),
            cut_off(
                streamed.dump("plain.sql", "--all-databases", "--skip-comments"),
                folder / "cut-plain.sql",
            ),
        ],
        "no rows (--no-data)": [streamed.dump("schema.sql", "--all-databases", "--no-data")],
        "not the definitions": [streamed.dump("rows.sql", "--all-databases", "--no-create-info")],
        "rows of a condition": [streamed.dump("some.sql", "--all-databases", "--where=1=1")],
        "of a single database, 'shop'": [
            streamed.dump("shop.sql", "shop"),
            streamed.dump("database.sql", "--databases", "shop"),
            streamed.dump("bare.sql", "--databases", "shop", "--skip-comments"),
            streamed.dump("table.sql", "shop", "t"),
        ],
    }
    for text, paths in none.items():
        for path in paths:
            added = streamed.run("backup", "add", f"--from-backup={path}")
            assert added.returncode == 8, (path, added.stdout)
            assert "is no base backup of the whole server: " in added.stderr
            assert text in added.stderr, (path, added.stderr)
        asked = streamed.run("verify", f"--from-backup={paths[0]}")
        assert asked.returncode == 7, (paths[0], asked.stdout)
        assert "NO: " in asked.stdout
        assert text in " ".join(asked.stdout.split()), asked.stdout
    for path in (folder / "cut.sql.gz", folder / "shop.sql"):
        kept = streamed.run("prune", f"--keep-from-backup={path}", "--dry-run")
        assert kept.returncode == 8, (path, kept.stdout)
        assert "is no base backup of the whole server: " in kept.stderr
    assert streamed.document("backup", "list")["backups"] == []
    for name, options in {
        "whole.sql": ["--all-databases"],
        "plain.sql": ["--all-databases", "--skip-comments"],
        "two.sql": ["--databases", "shop", "crm"],
    }.items():
        path = streamed.dump(name, *options)
        (one,) = streamed.document("backup", "add", f"--from-backup={path}")["backups"]
        assert one["defects"] == []
        assert one["checked"] is (name != "two.sql"), name
        assert streamed.run("verify", f"--from-backup={path}").returncode == 0


def test_an_accepted_one_counts_nowhere(streamed: Streamed) -> None:
    """It displaces no good one, keeps nothing, and neither status nor pitr knows it."""
    good = streamed.dump("good.sql", "--all-databases")
    streamed.document("backup", "add", f"--from-backup={good}", "--label=good")
    for number in range(3, 6):
        streamed.commit(f"INSERT INTO shop.t VALUES ({number})", "FLUSH BINARY LOGS")
    cut = cut_off(streamed.dump("whole.sql", "--all-databases"), streamed.folder / "cut.sql")
    added = streamed.document(
        "backup", "add", f"--from-backup={cut}", f"--accept={REASON}", "--label=cut"
    )
    (one,) = added["backups"]
    assert one["accepted"] == REASON
    assert "it is cut off" in one["defects"][0]
    streamed.commit("INSERT INTO shop.t VALUES (9)", "FLUSH BINARY LOGS")
    there = Bucket(streamed.minio, streamed.bucket)
    wait_until(lambda: len(there.archived()) >= 4, what="binlogs are archived")
    listed = streamed.run("backup", "list").stdout
    assert "nowhere: it is cut off" in listed
    assert REASON in listed
    assert "Z, the newest " in listed
    for options in (["--keep=0s"], ["--keep-binlogs-for=0s", "--allow-empty"]):
        plan = streamed.document("prune", *options, "--grace=0s", "--dry-run")
        assert [name.split()[1] for name in plan["ignored"]] == [one["id"]]
        assert not [name for name in (*plan["kept"], *plan["lost"]) if one["id"] in name]
    plan = streamed.document("prune", "--keep=0s", "--grace=0s", "--yes")
    assert [name.endswith("(good)") for name in plan["kept"]] == [True]
    status = streamed.document("status", "--from=bucket")
    assert status["backups"]["count"] == 1
    assert status["backups"]["window_known"] is True
    assert status["backups"]["window_from"] is not None
    chosen = streamed.run("pitr", "--latest")
    assert "(good)" in chosen.stdout, chosen.stderr
    named = streamed.run("pitr", "--latest", "--dry-run", f"--from-backup-id={one['id']}")
    assert f"Accepted: {REASON}" in named.stdout.replace("\n", " "), named.stdout


@pytest.mark.gate("mysql")
def test_the_prune_of_a_good_backup_waits_for_one_that_was_checked(streamed: Streamed) -> None:
    """A snapshot that nobody has looked into does not displace a dump that was read."""
    good = streamed.dump("good.sql", "--all-databases")
    streamed.document("backup", "add", f"--from-backup={good}", "--label=good")
    streamed.commit("INSERT INTO shop.t VALUES (3)", "FLUSH BINARY LOGS")
    maria = streamed.source.binaries.flavour == "mariadb"
    asked = "SHOW MASTER STATUS" if maria else "SHOW BINARY LOG STATUS"
    ((name, position, *_),) = streamed.source.query(asked)
    streamed.document(
        "backup", "add", f"--binlog={name}", f"--position={position}", "--label=snapshot"
    )
    streamed.commit("INSERT INTO shop.t VALUES (4)", "FLUSH BINARY LOGS")
    wait_until(
        lambda: len(Bucket(streamed.minio, streamed.bucket).archived()) >= 2, what="two binlogs"
    )
    plan = streamed.document("prune", "--keep=0s", "--grace=0s", "--yes")
    assert plan["given_up"] == []
    assert len(plan["kept"]) == 2
    said = streamed.run("prune", "--keep=0s", "--grace=0s", "--dry-run").stdout
    assert "before a drill has proved that one" in said.replace("\n", " ")


def test_a_recovery_of_half_a_dump_is_refused(
    streamed: Streamed, binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """The half that was loaded is all that the dump has; --accept-backup goes on and says so."""
    whole = streamed.dump("whole.sql", "--all-databases")
    text = whole.read_bytes()
    half = streamed.folder / "half.sql"
    half.write_bytes(text[: text.rindex(b"-- Dump completed")])
    streamed.commit("INSERT INTO shop.t VALUES (3)")
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    recovery = Recovery(streamed.minio, streamed.bucket, read_only(streamed.minio))
    options = (*RELAXED, "--event-scheduler=OFF")
    with kind(binaries, disk_tmp_path / "target", server_id=2, options=options) as target:
        load(target, half, "--init-command=SET sql_log_bin = 0")
        zipped = streamed.folder / "half.sql.gz"
        zipped.write_bytes(gzip.compress(half.read_bytes()))
        for path in (half, zipped):
            said = recovery.refused(target, f"--from-backup={path}", "--latest")
            assert "is no base backup of the whole server: it is cut off" in said
        assert [*target.query("SELECT COUNT(*) FROM shop.t")] == [(2,)]
        done = recovery.to(target, f"--from-backup={half}", "--latest", "--accept-backup")
        assert done["result"]["base_backup"]["checked"] == "no"
        assert [*target.query("SELECT COUNT(*) FROM shop.t")] == [(3,)]


def test_the_dump_of_the_pages_is_checked(streamed: Streamed) -> None:
    """Registered without a defect or a doubt."""
    path = streamed.folder / "pages.sql"
    dump_of(streamed.source, path)
    (one,) = streamed.document("backup", "add", f"--from-backup={path}")["backups"]
    assert (one["checked"], one["defects"], one["accepted"]) == (True, [], "")


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_physical_backup_whose_positions_differ(
    streamed: Streamed, mariadb_backup: Path, disk_tmp_path: Path
) -> None:
    """By what lies in between: transactions of InnoDB would be missing, the rest is in no data.

    mariabackup's --no-lock, and a directory whose position file was exchanged for a later one, as
    --no-lock under load leaves it. Its own option is in xtrabackup_info, so that goes first.
    """
    source = streamed.source
    source.query("CREATE TABLE shop.m (id INT) ENGINE=MyISAM")

    def made(name: str, *options: str) -> Path:
        path = disk_tmp_path / name
        argv = [mariadb_backup / "mariabackup", "--no-defaults", f"--target-dir={path}"]
        where = [f"--socket={source.socket}", "--user=root", f"--datadir={source.datadir}"]
        for step in (["--backup", *where, *options], ["--prepare"]):
            subprocess.run([*argv, *step], check=True, capture_output=True)
        return path

    def says(path: Path) -> str:
        done = streamed.run("backup", "add", f"--from-backup={path}")
        assert (done.returncode == 8) == ("no base backup" in done.stderr), done.stderr
        return done.stderr if done.returncode else ""

    streamed.commit("INSERT INTO shop.t VALUES (3)")
    assert says(made("innodb")) == ""
    streamed.commit("INSERT INTO shop.m VALUES (1)", "CREATE TABLE shop.later (id INT)")
    assert says(made("others")) == ""
    streamed.commit("FLUSH BINARY LOGS")
    assert says(made("rotated")) == ""
    assert "made with --no-lock" in says(made("no-lock", "--no-lock"))
    good = made("good")
    streamed.commit("INSERT INTO shop.t VALUES (4)", "INSERT INTO shop.t VALUES (5)")
    later = made("later")
    for name in ("xtrabackup_binlog_info", "xtrabackup_info"):
        (good / name).write_bytes((later / name).read_bytes())
    told = says(good)
    assert "2 transactions in between would be missing" in told
    assert streamed.run("verify", f"--from-backup={good}").returncode == 7
    earlier = made("earlier")
    pos = earlier / "xtrabackup_binlog_pos_innodb"
    pos.write_text(pos.read_text().replace("\t", "\t9"))
    assert "behind its position" in says(earlier)
