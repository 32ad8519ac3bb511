"""A fail-over by DNS: the server's name leads to another address, and the old server lives on.

A name service cannot be led by a test, /etc/hosts can: the streamer gets one of its own, in a mount
namespace, and both it and mysqlbinlog read it at each connection.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.stream_process import StreamProcess
from tests.integration.test_lineages import wait_for_refusals
from tests.waiting import wait_until
from tests.world.archive import Archive
from tests.world.servers import executed, flush, follow, uuid_of
from tests.world.writes import caught_up, create_table, write

pytestmark = [pytest.mark.mysql, pytest.mark.minio]

NAME = "db1.binlog2s3.test"
OWN_HOSTS = 'mount --bind "$0" /etc/hosts && exec "$@"'


class Name:
    """Where NAME leads, for the programs whose words begin with `words`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.words = ["unshare", "--mount", "sh", "-c", OWN_HOSTS, str(path)]

    def lead(self, address: str) -> None:
        """From the next look-up on it leads there; in place, because the file itself is mounted."""
        self._path.write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")


@pytest.fixture
def name(disk_tmp_path: Path) -> Name:
    made = Name(disk_tmp_path / "hosts")
    made.lead("127.0.0.1")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount namespace with its own /etc/hosts needs root, and unshare")
    done = subprocess.run([*made.words, "getent", "hosts", NAME], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no mount namespace here: {done.stderr.decode().strip()}")
    return made


@pytest.fixture
def archive(minio: MinioServer, bucket: str) -> Archive:
    return Archive(minio, bucket)


def is_watched(archive: Archive) -> bool:
    """Whether the streamer has a connection, beside mysqlbinlog's, on which it asks."""
    documents = [json.loads(archive.bucket.get(key)) for key in archive.writers()]
    return any(one["server"] for one in documents)


@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
def test_the_old_primary_lives_on(
    mysql_binaries: ServerBinaries,
    archive: Archive,
    name: Name,
    disk_tmp_path: Path,
    gtid: bool,
) -> None:
    """It keeps its connections; the streamer leaves it all the same, and no byte is lost.

    With GTIDs it goes on at the new primary. Without, nothing proves that it is one: it is refused,
    until the name leads back.
    """
    old = MysqlServer(mysql_binaries, disk_tmp_path / "old", gtid=gtid)
    with old:
        new = MysqlServer(
            mysql_binaries,
            disk_tmp_path / "new",
            gtid=gtid,
            server_id=2,
            options=["--bind-address=127.0.0.2"],
            ports=lambda: old.port,
        )
        new.password = old.password
        stream = StreamProcess(
            disk_tmp_path / "stream",
            old,
            archive.bucket.store,
            archive.bucket.name,
            options={"mysql-host": NAME},
            arguments=["--mysql-accept-unverified-server"],  # each has an authority of its own
        )
        stream.argv[:0] = name.words
        with new, stream:
            create_table(old)
            write(old, "before")
            flush(old)
            write(old, "before, too")
            first = archive.arrived(stream, old)
            follow(new, old)
            gtids = executed(old)
            caught_up(new, old)
            new.query("STOP REPLICA", "RESET REPLICA ALL")
            old.query("SET GLOBAL super_read_only = ON")
            archive.keep("first", old)
            wait_until(lambda: is_watched(archive), what="the streamer knows the position")
            write(new, "promoted")
            name.lead("127.0.0.2")
            stream.wait_for_event("mysqlbinlog ended")
            if gtid:
                second = archive.works(stream, new, "second")
                parent = archive.lineages()[second]["parent"]
                assert parent["lineage"] == first
                assert (parent["join"], parent["gtid_set"]) == ("exact", gtids)
                assert stream.terminate() == 0
                archive.holds({first: "first", second: "second"})
            else:
                wait_for_refusals(stream, uuid_of(new))
                name.lead("127.0.0.1")
                old.query("SET GLOBAL super_read_only = OFF")
                assert archive.works(stream, old, "first") == first
                assert list(archive.lineages()) == [first]
                assert stream.terminate() == 0
                archive.holds({first: "first"})
