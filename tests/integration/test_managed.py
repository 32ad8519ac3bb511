"""A server that only fetches: the SQL of docs/guides/managed.md brings it to the plan's stop.

RDS' procedures are not here. What they do, CHANGE REPLICATION SOURCE TO and START REPLICA UNTIL, is
the page's, too.
"""

import json
import re
from pathlib import Path

from lab.get import ServerBinaries
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import replica_status
from tests.world.serving import PASSWORD, scene_of

PAGE = Path(__file__).resolve().parents[2] / "docs/guides/managed.md"


def statements(port: int, gtid: str) -> list[str]:
    """Those of the page, with this port, this GTID, and without TLS."""
    (block,) = re.findall(r"```sql\n(CHANGE .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    for placeholder, value in (
        ("192.0.2.7", "127.0.0.1"),
        ("3307", str(port)),
        ("'PASSWORD'", "'" + PASSWORD.replace("'", "''") + "'"),
        ("SOURCE_SSL=1", "SOURCE_SSL=0"),
        ("UUID:48212", gtid),
    ):
        assert block.count(placeholder) == 1, placeholder
        block = block.replace(placeholder, value)
    return [one.strip() for one in block.split(";") if one.strip()]


def test_it_stops_at_the_goal(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """The server has all up to the GTID of a dry run, and nothing after it."""
    bucket = minio.make_bucket()
    with scene_of(mysql_binaries, minio, bucket, disk_tmp_path) as scene:
        scene.write(10)
        ((until,),) = scene.source.query("SELECT @@global.gtid_executed")
        uuid, _, numbers = str(until).rpartition(":")
        goal = f"{uuid}:{numbers.rpartition('-')[2]}"
        scene.write(10)
        wait_durable(scene.stream, Bucket(minio, bucket), scene.source)
        recovery = Recovery(minio, bucket, read_only(minio))
        words = ("--dry-run", "--json", "--stop-target-threads")  # its events are on, as by default
        done = recovery.run(scene.target, *words, f"--to-gtid={goal}")
        assert done.status == 0, done.stderr
        last = json.loads(done.stdout)["plan"]["kept"][-1]["gtid"]
        assert last == goal
        scene.target.query(*statements(scene.serve.port, last))
        wait_until(
            lambda: replica_status(scene.target)["Replica_SQL_Running"] == "No", what="it stops"
        )
        assert replica_status(scene.target)["Last_SQL_Error"] == ""
        assert scene.target.query("SELECT @@global.gtid_executed") == [(until,)]
        assert scene.count(scene.target) == 10
