"""A Galera cluster of two nodes whose ids nobody has set: the streamer goes on at the other one.

Both nodes begin with the same data, so what brings a new node's data (a script of MariaDB) has
nothing to copy.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from lab.child import free_port
from lab.get import ServerBinaries
from lab.mysql import MariadbServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.site import FIRST, Site
from tests.integration.stream_process import StreamProcess
from tests.integration.test_undo import K, Place
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import RELAXED

DOMAIN = 7
SCRIPT = """#!/bin/sh
state={state}
while [ $# -gt 0 ]; do
    case $1 in --role) role=$2; shift ;; --gtid) gtid=$2; shift ;; esac
    shift
done
case $role in
    *joiner*)
        rm -f "$state"
        echo "ready 127.0.0.1:1/x"
        for i in $(seq 300); do [ -s "$state" ] && break; sleep 0.1; done
        cat "$state" ;;
    *)
        echo "$gtid" | tr -d "'" > "$state"
        cat "$state" | sed 's/^/done /' ;;
esac
"""


class Node(MariadbServer):
    """One node; its data are a copy of `base`, if that is given."""

    base: Path | None = None

    def _copy_template(self) -> None:
        if self.base is None:
            super()._copy_template()
        else:
            shutil.copytree(self.base, self.datadir)

    def _create_users(self) -> None:
        if self.base is None:
            super()._create_users()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    first: Node
    second: Node

    def write(self, begin: int, count: int) -> None:
        """Rows at both nodes in turn."""
        for number in range(begin, begin + count):
            node = self.second if number % 2 else self.first
            node.query(f"INSERT INTO shop.items VALUES ({number})")
        for node in (self.first, self.second):
            wait_until(lambda node=node: self.has(node, begin + count), what="all rows")  # type: ignore[misc]

    @staticmethod
    def has(node: Node, count: int) -> bool:
        return node.query("SELECT COUNT(*) FROM shop.items") == [(count,)]

    def lose_first(self) -> None:
        """Kill -9; the second one goes on alone."""
        self.first.kill()

        def is_alone() -> bool:
            try:
                self.second.query("SET GLOBAL wsrep_provider_options = 'pc.bootstrap=1'")
            except pymysql.MySQLError:
                return False
            return state(self.second, "wsrep_ready") == "ON"

        wait_until(is_alone, 60, what="the other node goes on")


def state(node: Node, name: str) -> str:
    return str(node.query(f"SHOW STATUS LIKE '{name}'")[0][1])


def options_of(number: int, ports: list[list[int]], galera: Path, *, new: bool) -> tuple[str, ...]:
    own, others = ports[number], "" if new else f"127.0.0.1:{ports[0][0]}"
    provider = (
        f"gmcast.listen_addr=tcp://127.0.0.1:{own[0]};ist.recv_addr=127.0.0.1:{own[1]};"
        f"gcache.size=32M;pc.weight={number + 1}"
    )
    return (
        *RELAXED,
        f"--wsrep-provider={galera}",
        "--wsrep-on=ON",
        "--wsrep-cluster-name=shop",
        f"--wsrep-cluster-address=gcomm://{others}",
        "--wsrep-node-address=127.0.0.1",
        f"--wsrep-node-name=n{number}",
        "--wsrep-sst-method=rsync",
        f"--wsrep-provider-options={provider}",
        "--wsrep-gtid-mode=ON",
        f"--wsrep-gtid-domain-id={DOMAIN}",
        "--innodb-autoinc-lock-mode=2",
        "--binlog-format=ROW",
        "--log-slave-updates=ON",
    )


@pytest.fixture
def cluster(
    mariadb_binaries: ServerBinaries, galera: Path, disk_tmp_path: Path
) -> Iterator[Cluster]:
    """Both nodes, in step."""
    scripts = disk_tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "wsrep_sst_rsync").write_text(SCRIPT.format(state=scripts / "state"))
    (scripts / "wsrep_sst_rsync").chmod(0o755)
    environment = {"PATH": f"{scripts}:{os.environ['PATH']}"}
    ports = [[free_port(), free_port()] for _ in range(2)]
    with ExitStack() as stack:
        first = Node(
            mariadb_binaries,
            disk_tmp_path / "n0",
            environment=environment,
            options=["--skip-log-bin", "--loose-wsrep-on=OFF"],
        )
        stack.enter_context(first)
        first.query("GRANT PROCESS ON *.* TO repl@'%'")
        new = options_of(0, ports, galera, new=True)
        first.restart(new)
        first.stop()
        base = disk_tmp_path / "base"
        shutil.copytree(first.datadir, base)
        for name in ("mysql-bin.*", "galera.cache", "gvwstate.dat"):
            for path in base.glob(name):
                path.unlink()
        first.start()
        second = Node(
            mariadb_binaries,
            disk_tmp_path / "n1",
            environment=environment,
            options=options_of(1, ports, galera, new=False),
        )
        second.base = base
        second.password = first.password
        stack.enter_context(second)
        both = "wsrep_cluster_size", "wsrep_local_state_comment"
        wait_until(
            lambda: [state(second, name) for name in both] == ["2", "Synced"], 60, what="a cluster"
        )
        yield Cluster(first=first, second=second)


def test_the_other_node_with_the_same_ids(
    cluster: Cluster, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Equal transactions prove that it continues the history: no gap, and a recovery crosses it.

    `check` says that each node should have a domain of its own.
    """
    first, second = cluster.first, cluster.second
    there = Bucket(minio, bucket)
    with StreamProcess(disk_tmp_path / "stream", first, minio, bucket) as stream:
        stream.wait_for_event("streaming")
        first.query("CREATE DATABASE shop", "CREATE TABLE shop.items (id INT PRIMARY KEY)")
        cluster.write(0, 7)
        second.query("FLUSH BINARY LOGS")
        cluster.write(7, 13)
        second.query("FLUSH BINARY LOGS")
        cluster.write(20, 10)
        wait_durable(stream, there, first)
        stream.kill()
    cluster.lose_first()
    second.query(*(f"INSERT INTO shop.items VALUES ({n})" for n in range(100, 110)))
    with StreamProcess(disk_tmp_path / "stream", second, minio, bucket) as stream:
        wait_durable(stream, there, second)
        assert stream.terminate() == 0
    site = Site(source=second, minio=minio, bucket=bucket, folder=disk_tmp_path)
    assert site.joins() == [None, "exact"]
    login = [f"--mysql-host=127.0.0.1 --mysql-port={second.port} --mysql-user={second.repl_user}"]
    login = [*login[0].split(), f"--mysql-password-file={second.password_file}"]
    login += [f"--mysqlbinlog={second.binaries.binlog}", f"--spool={disk_tmp_path / 'check'}"]
    checked = site.run("check", *login, "--json")
    rows = {row["name"]: row for row in json.loads(checked.stdout)["parts"]}
    assert rows["gtid_domain_id"]["result"] == "warn"
    want = second.query("SELECT id FROM shop.items ORDER BY id")
    second.stop()
    with MariadbServer(second.binaries, disk_tmp_path / "target", server_id=9) as target:
        recovery = Recovery(minio, bucket, read_only(minio))
        recovery.to(target, *FIRST, "--latest")
        assert target.query("SELECT id FROM shop.items ORDER BY id") == want
        assert len(want) == 40


def test_a_node_is_no_target(
    cluster: Cluster, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """What is applied would reach the other node, or with wsrep_on = OFF make it differ."""
    first, second = cluster.first, cluster.second
    with StreamProcess(disk_tmp_path / "stream", first, minio, bucket) as stream:
        first.query("CREATE DATABASE shop", "CREATE TABLE shop.items (id INT PRIMARY KEY)")
        wait_durable(stream, Bucket(minio, bucket), first)
        assert stream.terminate() == 0
    recovery = Recovery(minio, bucket, read_only(minio))
    for setting in ("ON", "OFF"):
        second.query(f"SET GLOBAL wsrep_on = {setting}")
        said = recovery.refused(second, *FIRST, "--latest", "--allow-source")
        assert "in a Galera cluster" in said
    second.query("SET GLOBAL wsrep_on = ON")


def test_an_undo_is_refused_on_a_node(cluster: Cluster) -> None:
    """With the reason, also with wsrep_on = OFF; nothing changes on either node."""
    places = [Place(server=node, columns={}) for node in (cluster.first, cluster.second)]
    cluster.first.query("CREATE DATABASE shop", "USE shop", *K)
    gtid = places[0].transaction("DELETE FROM k WHERE id < 3")
    wait_until(
        lambda: all(place.last_gtid() == gtid for place in places), what="both have executed it"
    )
    before = [(place.state("k"), place.server.binlogs()) for place in places]
    for setting, why in (("ON", "scratch tables"), ("OFF", "would not get the undo")):
        for place in places:
            place.server.query(f"SET GLOBAL wsrep_on = {setting}")
            place.refused(f"--gtid={gtid}", why=why)
            place.refused(f"--gtid={gtid}", "--dry-run", why=why)
            place.server.query("SET GLOBAL wsrep_on = ON")
    assert [(place.state("k"), place.server.binlogs()) for place in places] == before
