"""Real replicas and mysqlbinlog follow the bucket through `binlog2s3 serve`."""

import contextlib
import ipaddress
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
from cryptography import x509

from lab.s3 import MinioServer
from tests import command
from tests.integration.certificates import Authority
from tests.waiting import wait_until
from tests.world.servers import replica_status
from tests.world.serving import PASSWORD, Scene, Served, scene_of


@pytest.fixture(params=["mysql", "mariadb"])
def scene(
    request: pytest.FixtureRequest, minio: MinioServer, disk_tmp_path: Path
) -> Iterator[Scene]:
    binaries = request.getfixturevalue(f"{request.param}_binaries")
    with scene_of(binaries, minio, minio.make_bucket(), disk_tmp_path) as found:
        yield found


@pytest.mark.gate
def test_a_replica_follows_by_gtids(scene: Scene) -> None:
    """What is archived, what is open, over a rotation, and after both have been killed."""
    scene.write(20)
    scene.source.query("FLUSH BINARY LOGS")
    scene.write(20)
    scene.replicate()
    scene.wait_until_equal()
    scene.source.query("FLUSH BINARY LOGS")
    scene.write(20)
    scene.wait_until_equal()
    (client,) = [one for one in scene.serve.status()["clients"] if one["kind"] == "replica"]
    assert (client["user"], client["server_id"]) == ("replica", 2)
    code, text = scene.serve.get("/metrics")
    assert code == 200
    assert 'binlog2s3_serve_clients{source="test",user="replica"} 1.0' in text
    scene.survives_kills()


def test_a_replica_follows_by_position(scene: Scene) -> None:
    """It stops and asks again at the place that it has reached; the source restarts meanwhile."""
    scene.write(20)
    if scene.pair.is_mysql:
        scene.target.query("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    scene.replicate((scene.pair.names[0], 4))
    scene.wait_until_equal()
    stop, start = (
        ("STOP REPLICA IO_THREAD", "START REPLICA IO_THREAD")
        if scene.pair.is_mysql
        else ("STOP SLAVE IO_THREAD", "START SLAVE IO_THREAD")
    )
    for _ in range(3):
        scene.target.query(stop)
        scene.write(10)
        scene.target.query(start)
        scene.wait_until_equal()
    scene.source.restart()  # its binlog ends with a STOP event
    scene.write(10)
    scene.wait_until_equal()


def test_the_source_crashes(scene: Scene) -> None:
    """Its binlog ends in the middle, and the next one goes on: the replica, too."""
    scene.write(10)
    scene.replicate()
    scene.wait_until_equal()
    for _ in range(2):
        began = threading.Event()

        def write(began: threading.Event = began) -> None:
            with contextlib.suppress(pymysql.err.Error):
                for _ in range(10_000):
                    scene.write(1, size=1500)
                    began.set()

        writer = threading.Thread(target=write)
        writer.start()
        assert began.wait(60)
        time.sleep(0.5)
        scene.source.kill()
        writer.join()
        scene.source.start()
        scene.write(10)
        scene.wait_until_equal()
    scene.compare_gtids()


def fetch(scene: Scene, into: Path, *more: str) -> "subprocess.Popen[bytes]":
    """mysqlbinlog --raw of all that is served, from the first binlog on."""
    tls = "--ssl-mode=DISABLED" if scene.pair.is_mysql else "--skip-ssl"
    into.mkdir()
    return subprocess.Popen(
        [
            str(scene.source.binaries.binlog), "--no-defaults", "--read-from-remote-server",
            "--host=127.0.0.1", f"--port={scene.serve.port}", "--user=replica",
            f"--password={PASSWORD}", tls, "--raw", f"--result-file={into}/", *more,
            scene.pair.names[0],
        ],
        stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.gate("mysql")
def test_mysqlbinlog_gets_the_archives_bytes(scene: Scene) -> None:
    """At once and for ever; STOP events and rotates included."""
    scene.write(20)
    scene.source.restart()
    scene.write(20)
    scene.source.query("FLUSH BINARY LOGS")
    scene.write(5)
    names = scene.pair.names
    closed = {name: (scene.source.datadir / name).read_bytes() for name in names[:-1]}
    for name in names[:-1]:
        scene.stream.wait_for_event("binlog archived", binlog=name)
    once = fetch(scene, scene.place / "once", "--to-last-log")
    _, said = once.communicate(timeout=120)
    assert once.returncode == 0, said
    for name, data in closed.items():
        assert (scene.place / "once" / name).read_bytes() == data
    server = "--stop-never-slave-server-id=99"
    server = "--connection-server-id=99" if scene.pair.is_mysql else server
    ever = fetch(scene, scene.place / "ever", "--stop-never", server)
    try:
        scene.source.query("FLUSH BINARY LOGS")
        closed[names[-1]] = (scene.source.datadir / names[-1]).read_bytes()
        scene.write(5)
        for name, data in closed.items():
            path = scene.place / "ever" / name
            wait_until(lambda p=path, d=data: p.exists() and p.read_bytes() == d, what=name)
    finally:
        ever.kill()
        ever.communicate()


@pytest.mark.gate
@pytest.mark.parametrize("scene", ["mysql"], indirect=True)
def test_a_store_that_is_silent_ends_no_replica(scene: Scene) -> None:
    """It gets heartbeats, and goes on when the store answers again."""
    scene.write(10)
    scene.replicate()
    scene.wait_until_equal()
    before = scene.serve.status()["clients"]
    subprocess.run(["kill", "-STOP", str(scene.minio.pid)], check=True)
    try:
        wait_until(lambda: scene.serve.get("/health")[0] == 503, 120, what="it says so")
        found = replica_status(scene.target)
        assert (found["Replica_IO_Running"], found["Last_IO_Error"]) == ("Yes", "")
    finally:
        subprocess.run(["kill", "-CONT", str(scene.minio.pid)], check=True)
    scene.write(10)
    scene.wait_until_equal()
    assert [one["number"] for one in scene.serve.status()["clients"]] == [
        one["number"] for one in before
    ]


@pytest.mark.gate("mysql")
def test_a_directory_is_served(scene: Scene) -> None:
    """What a server has on its disk; by GTIDs, and as mysqlbinlog gets it."""
    scene.write(20)
    scene.source.query("FLUSH BINARY LOGS")
    scene.write(20)
    scene.serve.end()
    directory = scene.place / "files"
    directory.mkdir()
    names = scene.pair.names
    for name in names:
        data = bytearray((scene.source.datadir / name).read_bytes())
        data[21] &= 0xFE  # in use
        (directory / name).write_bytes(data)
    served = Served(scene.place / "dir", ["--binlog-dir", str(directory)], command.environment())
    scene.serve = served
    served.start()
    scene.replicate()
    scene.wait_until_equal()
    into = scene.place / "once"
    once = fetch(scene, into, "--to-last-log")
    _, said = once.communicate(timeout=120)
    assert once.returncode == 0, said
    for name in names:
        assert (into / name).read_bytes() == (directory / name).read_bytes()
    assert served.end() == 0


@pytest.mark.gate("mysql")
def test_a_replica_by_tls(scene: Scene) -> None:
    """It checks the certificate; without TLS nobody is let in from outside of this machine."""
    authority = Authority(scene.place, "ca")
    keys = authority.sign("here", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    scene.write(10)
    scene.serve.end()
    scene.serve.start("--tls-cert", str(keys.cert), "--tls-key", str(keys.key))
    scene.replicate(tls=authority.ca)
    scene.wait_until_equal()
    done = command.run(
        *["serve", *scene.serve._what, "--listen", "0.0.0.0:3307", "--user", "u"],
        *["--password-file", str(keys.key)],
    )
    assert done.returncode == 3
    assert "needs --tls-cert and --tls-key" in done.stderr


# Everything at once
