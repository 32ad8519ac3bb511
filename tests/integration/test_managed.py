"""A server that only fetches: the commands of --print-commands bring it to the goal.

RDS' procedures are not here. What they do, CHANGE REPLICATION SOURCE TO and START REPLICA UNTIL,
does a real MySQL with the words that are printed.
"""

import re
from pathlib import Path

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.recovery_command import Recovery, read_only
from tests.integration.recovery_world import wait_durable
from tests.integration.served import PASSWORD, scene_of
from tests.waiting import wait_until


def test_it_stops_at_the_goal(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """The target has all up to the printed GTID, and nothing after it; pitr changed nothing."""
    bucket = minio.make_bucket()
    with scene_of(MysqlServer, mysql_binaries, minio, bucket, disk_tmp_path) as scene:
        scene.write(10)
        ((until,),) = scene.source.query("SELECT @@global.gtid_executed")
        uuid, _, numbers = str(until).rpartition(":")
        goal = f"{uuid}:{numbers.rpartition('-')[2]}"
        scene.write(10)
        wait_durable(scene.stream, Bucket(minio, bucket), scene.source)
        recovery = Recovery(minio, bucket, read_only(minio))
        before = scene.target.query("SHOW GLOBAL VARIABLES")
        done = recovery.run(scene.target, "--print-commands", f"--to-gtid={goal}")
        assert done.status == 0, done.stderr
        changed = dict(scene.target.query("SHOW GLOBAL VARIABLES")).items() ^ dict(before).items()
        assert {key for key, _ in changed} <= {"timestamp"}
        assert not scene.target.query("SHOW REPLICA STATUS")
        assert "--listen 0.0.0.0:3307" in done.stdout
        found = re.search(r"rds_start_replication_until_gtid\('(\S+)'\)", done.stdout)
        assert found is not None, done.stdout
        assert found[1] == goal
        password = PASSWORD.replace("'", "''")
        scene.target.query(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_SSL=0, "
            f"SOURCE_PORT={scene.serve.port}, SOURCE_AUTO_POSITION=1, SOURCE_USER='replica', "
            f"SOURCE_PASSWORD='{password}'",
            f"START REPLICA UNTIL SQL_AFTER_GTIDS = '{found[1]}'",
        )
        wait_until(lambda: scene.replica()["Replica_SQL_Running"] == "No", what="it stops")
        assert scene.replica()["Last_SQL_Error"] == ""
        assert scene.target.query("SELECT @@global.gtid_executed") == [(until,)]
        assert scene.count(scene.target) == 10
