"""MariaDB with numbers that go back in a domain: gtid_strict_mode is OFF by default."""

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import executed, load
from tests.world.serving import PASSWORD, Scene, Served, scene_of

MARIADB_GTID = 162


class Story:
    """100 updates as server 1; one as server 9 with a lower number, in another binlog; two more."""

    def __init__(self, scene: Scene, place: Path, lower: int) -> None:
        self.scene = scene
        self.source = scene.source
        for server in (scene.source, scene.target):
            server.query("SET GLOBAL gtid_strict_mode = OFF")
        self.source.query(
            "CREATE TABLE d.c (id INT PRIMARY KEY, n INT)", "INSERT INTO d.c VALUES (1, 0)"
        )
        begun = int(str(self.source.query("SELECT @@global.gtid_binlog_pos")[0][0]).split("-")[2])
        self.first = [f"0-1-{begun + number}" for number in range(1, 101)]
        self._add(*["UPDATE d.c SET n = n + 1"] * 100)
        self.source.query("FLUSH BINARY LOGS")
        self._add(
            "SET SESSION server_id = 9",
            f"SET SESSION gtid_seq_no = {lower}",
            "UPDATE d.c SET n = n + 1000",
        )
        self.lower = f"0-9-{lower}"
        self.dump = place / "base.sql"
        self._dump(self.dump)
        self._add("UPDATE d.c SET n = n + 1", "UPDATE d.c SET n = n + 1001")
        self.last = [f"0-1-{begun + 101}", f"0-1-{begun + 102}"]
        self.bucket = Bucket(scene.minio, scene.bucket)
        wait_durable(scene.stream, self.bucket, self.source)

    def _add(self, *statements: str) -> None:
        with contextlib.closing(self.source.connect()) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement)

    def _dump(self, into: Path) -> None:
        program = self.source.binaries.client.with_name("mariadb-dump")
        with into.open("wb") as file:
            subprocess.run(
                [
                    str(program), "--no-defaults", f"--socket={self.source.socket}", "--user=root",
                    "--single-transaction", "--master-data=2", "--gtid", "--databases", "d",
                ],
                stdout=file,
                check=True,
            )  # fmt: skip

    def value(self, server: MariadbServer) -> int:
        return int(server.query("SELECT n FROM d.c")[0][0])

    def restore(self) -> None:
        """The base backup into the target."""
        load(self.scene.target, self.dump)

    def recovery(self) -> Recovery:
        return Recovery(self.scene.minio, self.scene.bucket, read_only(self.scene.minio))


@pytest.fixture
def story(
    mariadb_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> Iterator[Story]:
    with scene_of(mariadb_binaries, minio, minio.make_bucket(), disk_tmp_path) as scene:
        yield Story(scene, disk_tmp_path, 60)


def dumped(port: int, state: str) -> list[str]:
    """The GTIDs that a raw replica with this state is sent."""
    connection = pymysql.connect(
        host="127.0.0.1", port=port, user="replica", password=PASSWORD, read_timeout=60
    )
    with contextlib.closing(connection):
        cursor = connection.cursor()
        cursor.execute("SET @mariadb_slave_capability = 4")
        cursor.execute("SET @master_binlog_checksum = 'CRC32'")
        cursor.execute(f"SET @slave_connect_state = '{state}'")
        connection._execute_command(0x12, struct.pack("<IHI", 4, 1, 77))  # until there is no more
        found = []
        while True:
            packet = connection._read_packet().get_all_data()
            if packet[:1] == b"\xfe":
                return found
            _, kind, server_id = struct.unpack_from("<IBI", packet, 1)
            if kind == MARIADB_GTID:
                number, domain = struct.unpack_from("<QI", packet, 20)
                found.append(f"{domain}-{server_id}-{number}")


def test_a_recovery_begins_behind_its_backup(story: Story) -> None:
    """Two transactions, not all with a number above the backup's; the value is the source's.

    By its GTID alone, too: it is at one place; what comes after that is applied, whatever its
    number. A run that has ended is not repeated, which would apply all of it twice: gtid_slave_pos
    says that it was done. Where that is before the backup that is named, as an older one has set
    it, it is said.
    """
    target, recovery = story.scene.target, story.recovery()
    backup = (f"--from-backup={story.dump}", "--accept-backup")
    for start in (backup, (f"--from-gtid-set={story.lower}",)):
        story.restore()
        document = recovery.to(target, *start, "--latest")
        assert document["result"]["transactions"] == 2
        assert story.value(target) == story.value(story.source) == 2102
        assert executed(target, "gtid_slave_pos") == story.last[-1]
        as_new(target)
    story.restore()
    recovery.to(target, *backup, f"--to-gtid={story.last[0]}")
    said = recovery.refused(target, *backup, "--latest")
    assert f"has replicated {story.last[0]}" in said
    assert "--from-gtid-set" in said
    recovery.to(target, f"--from-gtid-set={story.last[0]}", "--latest")
    assert story.value(target) == story.value(story.source)
    assert "has replicated" in recovery.refused(target, *backup, "--latest")
    as_new(target)
    story.restore()
    target.query(f"SET GLOBAL gtid_slave_pos = '{story.first[49]}'")
    done = recovery.run(target, f"--from-backup={story.dump}", "--latest", "--dry-run")
    assert done.status == 0, done.stderr
    said = " ".join((done.stdout + done.stderr).split())
    assert f"gtid_slave_pos has {story.first[49]}" in said


def as_new(target: MysqlServer) -> None:
    """Nothing was restored into it."""
    target.query("SET GLOBAL gtid_slave_pos = ''", "DROP DATABASE d")


def test_what_is_served_goes_by_places(story: Story, disk_tmp_path: Path) -> None:
    """A replica before the lower number gets it, and one behind it gets what follows.

    Also of files that `pitr --output-dir` wrote. A backup whose GTID is at another place than the
    file and position beside it contradicts itself. And a GTID that was used again, as by a binlog
    that was applied with a client, is at two places: error 1236.
    """
    recovery = story.recovery()
    everything = [*story.first, story.lower, *story.last]
    there = disk_tmp_path / "exported"
    done = recovery.run(None, f"--output-dir={there}", "--latest", "--yes")
    assert done.status == 0, done.stderr
    served = Served(disk_tmp_path / "dir-serve", ["--dir", str(there)], command.environment())
    served.start()
    try:
        for serve in (story.scene.serve, served):
            for at in (50, 99, 100, 101):
                assert dumped(serve.port, everything[at]) == everything[at + 1 :]
    finally:
        served.kill()
    other = disk_tmp_path / "other.sql"
    other.write_text(story.dump.read_text().replace(story.lower, story.first[49]))
    said = recovery.refused(None, f"--from-backup={other}", "--latest", "--dry-run")
    assert "contradicts itself" in said
    assert story.first[49] in said
    assert story.lower in said
    number = story.first[9].rpartition("-")[2]
    story._add(f"SET SESSION gtid_seq_no = {number}", "UPDATE d.c SET n = n + 5")
    story._add("UPDATE d.c SET n = n + 7")
    wait_durable(story.scene.stream, story.bucket, story.source)
    with pytest.raises(pymysql.err.MySQLError, match="2 places") as caught:
        dumped(story.scene.serve.port, story.first[9])
    assert caught.value.args[0] == 1236
    said = recovery.refused(None, f"--from-gtid-set={story.first[9]}", "--latest", "--dry-run")
    assert "at 2 places" in said
