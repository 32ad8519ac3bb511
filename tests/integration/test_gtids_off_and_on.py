"""Servers of MySQL whose transactions have no GTIDs, for a while: the same GTIDs, other rows.

gtid_mode is turned off and on again in steps, and each step begins a binlog. So binlogs without a
transaction lie around those without GTIDs, and all of them begin after the same GTIDs.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.site import TABLE, Site, rows
from tests.waiting import wait_until
from tests.world.commands import their_server
from tests.world.servers import EVERYTHING, RELAXED, dump_of, load

OFF = ("ON_PERMISSIVE", "OFF_PERMISSIVE")
ON = ("ON_PERMISSIVE", "ON")


class Switched(Site):
    """A source that has GTIDs at first."""

    def mode(self, server: MysqlServer, steps: tuple[str, ...]) -> None:
        server.query(*[f"SET GLOBAL gtid_mode = {one}" for one in steps])

    def dump(self, name: str, *options: str) -> Path:
        dump_of(self.source, self.folder / name, *options, of=EVERYTHING[:2])
        return self.folder / name


@pytest.fixture
def site(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Switched]:
    with MysqlServer(mysql_binaries, disk_tmp_path / "source", options=RELAXED) as source:
        source.query(*TABLE)
        yield Switched(source=source, minio=minio, bucket=bucket, folder=disk_tmp_path)


@pytest.fixture
def target(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    place = disk_tmp_path / "target"
    with MysqlServer(mysql_binaries, place, server_id=2, options=RELAXED) as server:
        yield server


def test_what_was_committed_while_gtids_were_off_is_not_passed_over(
    site: Switched, target: MysqlServer
) -> None:
    """A backup from before has the GTIDs that the first binlog after that begins with.

    It is refused by `pitr` and drill, by its GTIDs and as the target; what it needs is not pruned.
    """
    with site.stream() as stream:
        site.insert(1, 5)
        dump = site.dump("on.sql", "--set-gtid-purged=ON")
        site.mode(site.source, OFF)
        site.insert(11, 15)
        site.wait_durable(stream)
        site.mode(site.source, ON)
        site.insert(21, 25)
        site.wait_durable(stream)
        gtids = str(site.source.query("SELECT @@gtid_executed")[0][0])
    assert re.fullmatch(r"[0-9a-f-]{36}:1-12", gtids), gtids  # none for five rows
    load(target, dump)
    for words in ([f"--from-backup={dump}"], []):
        refused = site.pitr(target, *words, "--latest")
        assert refused.returncode == 8, refused.stdout
        assert "has transactions without a GTID" in refused.stderr
    assert rows(target) == [1, 2, 3, 4, 5]
    added = site.run("backup add", f"--from-backup={dump}")
    assert added.returncode == 8
    assert "has transactions without a GTID" in added.stderr
    with temporary_directory() as work:
        words = (f"--work-dir={work}", "--restore-command=true", *their_server())
        drilled = site.run("drill", *words)
    assert drilled.returncode != 0


def test_a_server_that_does_not_send_what_has_no_gtid_is_said_not_to_be_read(
    site: Switched,
) -> None:
    """With GTIDs on again it refuses each run at that place: no run that just began hides that."""
    site.insert(1, 5)
    site.mode(site.source, OFF)
    site.insert(11, 15)
    site.mode(site.source, ON)
    with site.stream() as stream:

        def told() -> dict[str, Any] | None:
            shown = site.run("status", f"--spool={stream.spool}", "--json").stdout or "{}"
            troubles = json.loads(shown).get("troubles", ())
            found = [one for one in troubles if one["code"] == "source"]
            return found[0] if found and found[0]["level"] == "critical" else None

        trouble = wait_until(told, what="that nothing is read is critical")
        assert trouble is not None
        assert "anonymous transaction" in trouble["text"]
        assert any("ON_PERMISSIVE" in line.get("hint", "") for line in stream.log())
        site.mode(site.source, ON[:1])
        site.wait_durable(stream)


@pytest.mark.parametrize("is_seen", [True, False], ids=["off before", "off meanwhile"])
def test_purged_transactions_without_gtids_are_a_gap(
    site: Switched, target: MysqlServer, *, is_seen: bool
) -> None:
    """The binlogs before and after have the same GTIDs, and rows are missing between them."""
    with site.stream() as stream:
        site.insert(1, 5)
        if is_seen:
            site.mode(site.source, OFF)
        site.wait_durable(stream)
        dump = site.dump("b.sql", "--set-gtid-purged=OFF")
        assert stream.terminate() == 0
    if not is_seen:
        site.mode(site.source, OFF)
    site.insert(11, 15)
    site.source.query("FLUSH BINARY LOGS")
    site.source.query(f"PURGE BINARY LOGS TO '{site.source.binlogs()[-1][0]}'")
    with site.stream() as stream:
        site.insert(21, 25)
        site.wait_durable(stream)
    assert site.joins() == [None, "gap"]
    site.mode(target, OFF)
    load(target, dump)
    refused = site.pitr(target, f"--from-backup={dump}", "--latest")
    assert refused.returncode == 8, refused.stdout
    assert "history is broken" in refused.stderr
    done = site.pitr(target, f"--from-backup={dump}", "--latest", "--allow-gap")
    assert done.returncode == 0, done.stderr
    assert rows(target) == [1, 2, 3, 4, 5, 21, 22, 23, 24, 25]
