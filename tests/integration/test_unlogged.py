"""Sources that go on without a binlog: their rows are nowhere, and nothing crosses that in silence.

The rotation of a real server fails, because its binlogs' directory is away for a moment; or it is
started without log_bin for a while.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.site import FIRST, TABLE, Site, rows
from tests.integration.small_disk import mount
from tests.waiting import wait_until
from tests.world.commands import their_server
from tests.world.servers import RELAXED


class Unlogged(Site):
    """A source whose binlogs have a directory of their own."""

    @property
    def maria(self) -> bool:
        return self.source.binaries.flavour == "mariadb"

    def rotation_fails(self) -> None:
        """From now on the server writes no binlog, and answers as if nothing had happened."""
        logs, away = self.folder / "logs", self.folder / "away"
        logs.rename(away)
        with suppress(pymysql.MySQLError):
            self.source.query("FLUSH BINARY LOGS")
        away.rename(logs)
        assert self.status() == []
        assert self.source.query("SELECT @@log_bin") == [(1,)]

    def status(self) -> list[tuple[Any, ...]]:
        new = "SHOW MASTER STATUS" if self.maria else "SHOW BINARY LOG STATUS"
        return list(self.source.query(new))

    def register(self) -> None:
        """An empty base backup, of the beginning."""
        words = ["--binlog=mysql-bin.000001", "--position=4", "--label=empty"]
        done = self.run("backup add", *words)
        assert done.returncode == 0, done.stderr

    def streamed(self) -> None:
        """A streamer brings what there is into the bucket, and ends."""
        with self.stream() as stream:
            self.wait_durable(stream)
            assert stream.terminate() == 0

    def drill(self) -> "subprocess.CompletedProcess[str]":
        """A drill of the registered base backup."""
        words = [f"--mysqld={self.source.binaries.server}", "--nice=0", *their_server()]
        words += ["--restore-command=true", "--restore-into=server"]
        with temporary_directory() as work:  # its path is short: a socket is in it
            return self.run("drill", f"--work-dir={work}", *words)


@pytest.fixture
def binaries(flavour: str, request: pytest.FixtureRequest) -> ServerBinaries:
    found: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    return found


@pytest.fixture
def site(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Unlogged]:
    logs = disk_tmp_path / "logs"
    logs.mkdir()
    options = [*RELAXED, f"--log-bin={logs}/mysql-bin"]
    if binaries.flavour == "mysql":
        options.append("--binlog-error-action=IGNORE_ERROR")
    with server_of(binaries, disk_tmp_path / "source", options=options) as source:
        source.query(*TABLE)
        yield Unlogged(source=source, minio=minio, bucket=bucket, folder=disk_tmp_path)


@pytest.fixture
def target(binaries: ServerBinaries, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    place = disk_tmp_path / "target"
    with server_of(binaries, place, server_id=2, options=RELAXED) as server:
        yield server


def has_gap(site: Unlogged) -> None:
    """The history is broken where the source left rows 11 to 20 out, and says why."""
    parents = [one["parent"] for one in site.lineages()]
    assert [parent and (parent["join"], parent["unlogged"]) for parent in parents] == [
        None,
        ("gap", True),
    ]
    assert len(rows(site.source)) == 30


def no_reader_crosses_it(site: Unlogged, target: MysqlServer) -> None:
    """What every reader says of such a bucket."""
    assert "without a binlog" in site.run("list").stdout
    assert "without a binlog" in site.run("verify").stdout
    assert "up to now, no gap" not in site.run("backup list").stdout
    drilled = site.drill()
    assert drilled.returncode == 8
    assert "without a binlog" in drilled.stdout + drilled.stderr
    found = site.run("find", "--limit=0")
    assert "without a binlog" in found.stdout + found.stderr, found
    refused = site.pitr(target, *FIRST, "--latest")
    assert refused.returncode == 8
    assert "without a binlog" in refused.stderr
    assert "--allow-gap" in refused.stderr
    done = site.pitr(target, *FIRST, "--latest", "--allow-gap")
    assert done.returncode == 0, done.stderr
    assert "without a binlog" in done.stdout + done.stderr
    assert len(rows(target)) == 20


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_source_that_turned_its_binlog_off_is_seen_and_leaves_a_gap(
    site: Unlogged, target: MysqlServer
) -> None:
    """While it lasts the state says so, with the right hint; afterwards no reader crosses it."""
    with site.stream() as stream:
        site.insert(1, 10)
        site.wait_durable(stream)
        site.register()
        site.rotation_fails()
        site.insert(11, 20)

        def seen() -> dict[str, Any] | None:
            shown = json.loads(site.run("status", "--json").stdout)
            # a heartbeat has the state of now, and troubles of a moment before
            codes = [one["code"] for one in shown["troubles"]]
            return shown if shown["state"] == "unlogged" and "unlogged" in codes else None

        status = wait_until(seen, what="the bucket's status says so")
        assert status is not None
        assert status["severity"] == "critical"
        [trouble] = [one for one in status["troubles"] if one["code"] == "unlogged"]
        assert "writes no binlog" in trouble["text"]
        assert "restart" in trouble["hint"]
        warned = site.pitr(target, *FIRST, "--latest", "--dry-run")
        assert "no binlog" in warned.stdout + warned.stderr
        site.source.restart()
        site.insert(21, 30)
        site.wait_durable(stream)
        assert stream.terminate() == 0
    has_gap(site)
    if not site.maria:  # for readers it is the same gap
        no_reader_crosses_it(site, target)


@pytest.mark.parametrize("flavour", ["mariadb"])
def test_what_was_left_out_while_nobody_streamed_shows_in_the_binlogs(site: Unlogged) -> None:
    """A ROTATE, and the next binlog was made by a start of the server."""
    site.insert(1, 10)
    site.streamed()
    site.rotation_fails()
    site.insert(11, 20)
    site.source.restart()
    site.insert(21, 30)
    site.streamed()
    has_gap(site)


@pytest.mark.parametrize("flavour", ["mysql"])
def test_a_writer_that_was_killed_leaves_what_it_saw(site: Unlogged) -> None:
    """The next one has it from the bucket: of MySQL, the binlogs alone do not show it."""
    with site.stream() as stream:
        site.insert(1, 10)
        site.wait_durable(stream)
        site.rotation_fails()
        site.insert(11, 20)
        beats = Bucket(site.minio, site.bucket)

        def noted() -> bool:
            keys = beats.keys("pre/live/test/writers/")
            return any(json.loads(beats.get(key)).get("unlogged") for key in keys)

        wait_until(noted, what="the heartbeat says so")
        stream.kill()
    site.source.restart()
    site.insert(21, 30)
    site.streamed()
    has_gap(site)


@pytest.mark.parametrize("flavour", ["mariadb"])
def test_a_source_that_ran_without_log_bin_leaves_a_gap(site: Unlogged) -> None:
    """A server that was started without log_bin for a while, between two orderly stops."""
    with site.stream() as stream:
        site.insert(1, 10)
        site.wait_durable(stream)
        options = site.source.options
        site.source.options = (*options, "--skip-log-bin")
        site.source.restart()
        site.insert(11, 20)
        wait_until(
            lambda: json.loads(site.run("status", "--json").stdout)["state"] == "unlogged",
            what="the bucket's status says so",
        )
        site.source.options = options
        site.source.restart()
        site.insert(21, 30)
        site.wait_durable(stream)
        assert stream.terminate() == 0
    has_gap(site)


@pytest.mark.parametrize("flavour", ["mysql"])
def test_a_streamer_that_starts_meanwhile_sees_it_too(site: Unlogged) -> None:
    """It waits, and begins a lineage with a gap; a backup that ends exactly there is refused."""
    site.insert(1, 10)
    site.streamed()
    there = str(site.source.query("SELECT @@gtid_executed")[0][0])
    site.rotation_fails()
    site.insert(11, 20)
    with site.stream() as stream:
        wait_until(lambda: "writes no binlog" in stream.stderr(), what="it says so")
        site.source.restart()
        site.insert(21, 30)
        site.wait_durable(stream)
        assert stream.terminate() == 0
    has_gap(site)
    refused = site.run("pitr", f"--from-gtid-set={there}", "--latest", "--dry-run")
    assert refused.returncode == 8, refused
    assert "GTIDs do not tell whether it has those rows" in refused.stderr


def test_a_mysql_that_ends_itself_in_a_rotation_leaves_no_gap(
    mysql_binaries: ServerBinaries,
    minio: MinioServer,
    bucket: str,
    disk: Callable[[int], Path],
    disk_tmp_path: Path,
) -> None:
    """Its disk takes no new file; it is started with room again, and a recovery crosses that."""
    logs = disk(64 << 20)
    options = [*RELAXED, f"--log-bin={logs}/mysql-bin"]
    with (
        server_of(mysql_binaries, disk_tmp_path / "source", options=options) as source,
        server_of(mysql_binaries, disk_tmp_path / "target", server_id=2, options=RELAXED) as target,
    ):
        source.query(*TABLE)
        site = Unlogged(source=source, minio=minio, bucket=bucket, folder=disk_tmp_path)
        with site.stream() as stream:
            site.insert(1, 10)
            site.wait_durable(stream)
            of_files = f"remount,nr_inodes={len([*logs.iterdir()]) + 2}"  # one more than it has
            assert mount("-o", of_files, logs).returncode == 0
            with pytest.raises(pymysql.MySQLError):  # its index takes that one
                source.query("FLUSH BINARY LOGS")
            source.kill()
            assert mount("-o", "remount,nr_inodes=1000", logs).returncode == 0
            source.start()
            site.insert(11, 20)
            site.wait_durable(stream)
            assert stream.terminate() == 0
        assert site.joins() == [None, "exact"]
        assert "without a binlog" not in site.run("list").stdout
        done = site.pitr(target, *FIRST, "--latest")
        assert done.returncode == 0, done.stderr
        assert rows(target) == rows(source) == [*range(1, 21)]
