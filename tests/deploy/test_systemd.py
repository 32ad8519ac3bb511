"""The unit as it is shipped, under a real systemd, with a real MySQL unit beside it.

The wheel is built and installed into an environment of its own, as a user would; MinIO stands
outside. Every closed binlog in the bucket is compared with the server's file.
"""

import hashlib
import json
import re
import secrets
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pip
import pymysql
import pytest

from lab.cache import kept
from lab.child import free_port
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from lab.systemd import Machine
from tests.integration.asking import Monitor
from tests.integration.bucket import Bucket
from tests.integration.certificates import Authority
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
PAGE = "".join((ROOT / f"docs/guides/{name}.md").read_text() for name in ("systemd", "credentials"))
UNIT = "binlog2s3@orders.service"
SPOOL = "binlog2s3/orders"
PASSWORD, ADMIN, ROTATED = "Not-For-The-Journal-1", "Nor-This-One-2", "The-Next-One-3"
MOST_EXPOSED, MOST_EXPOSED_DRILL = 2.0, 3.0
pytestmark = pytest.mark.deploy

MYSQL = """
[Unit]
Description=MySQL

[Service]
Type=notify
DynamicUser=yes
StateDirectory=mysql
RuntimeDirectory=mysqld
ExecStart={server} --no-defaults --datadir=/var/lib/mysql/data --bind-address=127.0.0.1 \
    --port={port} --socket=/run/mysqld/mysqld.sock --mysqlx=OFF --server-id=1 \
    --log-bin=mysql-bin --gtid-mode=ON --enforce-gtid-consistency=ON --pid-file=/run/mysqld/pid \
    --max-binlog-size=16M --secure-file-priv=NULL --init-file=/etc/lab.sql
TimeoutStartSec=120
"""
ACCOUNTS = f"""SET sql_log_bin = 0;
CREATE USER IF NOT EXISTS repl@'%' IDENTIFIED BY '{PASSWORD}';
GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO repl@'%';
CREATE USER IF NOT EXISTS admin@'%' IDENTIFIED BY '{ADMIN}';
GRANT ALL ON *.* TO admin@'%' WITH GRANT OPTION;
"""
CONFIG = """[stream]
source = "orders"
heartbeat_interval = "2s"

[mysql]
host = "127.0.0.1"
port = {port}
user = "repl"
password_file = "/etc/binlog2s3/orders.password"
mysqlbinlog = "{mysqlbinlog}"

[spool]
dir = "/var/lib/binlog2s3/orders"
min_free_bytes = "64 MiB"

[s3]
url = "s3://{bucket}/prod"
endpoint_url = "{endpoint}"
addressing_style = "path"
region = "us-east-1"
"""
# Shorter than shipped, so that a test sees it, and long enough for a busy machine.
DROP_IN = "[Service]\nWatchdogSec=30s\nRestartSec=1\n"


@pytest.fixture(scope="session")
def wheels() -> Iterator[Path]:
    """The project's wheel, and those of all that it needs, which are kept for the next time."""
    build = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"]
    text = (ROOT / "pyproject.toml").read_text()
    needs = tomllib.loads(text)["project"]["dependencies"]
    key = hashlib.sha256(f"{sys.version}{needs}".encode()).hexdigest()[:12]

    def make(into: Path) -> str:
        subprocess.run([*build, "--wheel-dir", str(into), *needs], check=True, timeout=600)
        return key

    with temporary_directory() as directory:
        for wheel in kept(f"wheels-{key}", make).glob("*.whl"):
            shutil.copy(wheel, directory)
        argv = [*build, "--no-deps", "--wheel-dir", str(directory), str(ROOT)]
        subprocess.run(argv, check=True, timeout=600)
        yield directory


class World:
    """A machine with MySQL and binlog2s3, and the store beside it."""

    def __init__(self, machine: Machine, minio: MinioServer, binaries: ServerBinaries) -> None:
        self.machine = machine
        self.minio = minio
        self.port = free_port()
        self.bucket = Bucket(minio, minio.make_bucket())
        self._binaries = binaries
        self.server = binaries.server
        self._stop = Event()
        self.written = 0

    def install(self, data: Path, python: str) -> None:
        """As root would: the wheel into an environment, the unit, and three files."""
        machine = self.machine
        shutil.copytree(data, machine.state / "mysql/data")
        machine.put("/etc/systemd/system/mysql.service", MYSQL.format(
            server=self._binaries.server, port=self.port))  # fmt: skip
        machine.put("/etc/lab.sql", ACCOUNTS)
        unit = (ROOT / "systemd/binlog2s3@.service").read_text()
        machine.put("/etc/systemd/system/binlog2s3@.service", unit)
        machine.put(f"/etc/systemd/system/{UNIT}.d/short.conf", DROP_IN)
        machine.put("/etc/binlog2s3/orders.password", PASSWORD, 0o600)
        keys = f"aws_access_key_id={self.minio.access_key}\n"
        keys += f"aws_secret_access_key={self.minio.secret_key}\n"
        machine.put("/etc/binlog2s3/orders.aws", f"[default]\n{keys}", 0o600)
        machine.put("/etc/binlog2s3/orders.toml", CONFIG.format(
            port=self.port, mysqlbinlog=self._binaries.binlog,
            bucket=self.bucket.name, endpoint=self.minio.endpoint_url))  # fmt: skip
        machine.boot()
        machine.run(python, "-m", "venv", "--without-pip", "/opt/binlog2s3")
        install = ["env", "PYTHONPATH=/mnt/site", "/opt/binlog2s3/bin/python", "-m", "pip"]
        install += ["--quiet", "install", "--ignore-installed", "--no-index", "--find-links"]
        machine.run(*install, "/mnt/wheels", "binlog2s3")
        machine.run("ln", "-s", "/opt/binlog2s3/bin/binlog2s3", "/usr/local/bin/binlog2s3")

    def connect(self) -> "pymysql.Connection[Any]":
        """As the server's administrator."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="admin", password=ADMIN, autocommit=True
        )

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; the rows of the last."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def write(self, rows: int = 20) -> None:
        """Some rows, and a binlog that is closed behind them."""
        table = "CREATE TABLE IF NOT EXISTS shop.t (n INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)"
        self.query("CREATE DATABASE IF NOT EXISTS shop", table)
        for _ in range(rows):
            self.query("INSERT INTO shop.t (v) VALUES (RANDOM_BYTES(1000))")
        self.query("FLUSH BINARY LOGS")

    def load(self) -> Thread:
        """Write until `rest` is called."""
        self._stop.clear()

        def work() -> None:
            with closing(self.connect()) as connection, connection.cursor() as cursor:
                while not self._stop.is_set():
                    cursor.execute("INSERT INTO shop.t (v) VALUES (REPEAT(RANDOM_BYTES(1024), 64))")
                    self.written += 1

        thread = Thread(target=work, name="load")
        thread.start()
        return thread

    def rest(self, thread: Thread) -> None:
        """No more load."""
        self._stop.set()
        thread.join(60)

    def has_all(self) -> bool:
        """Whether every closed binlog is archived; then all bytes must be the server's."""
        closed = [row[0] for row in self.query("SHOW BINARY LOGS")][:-1]
        return self.bucket.archived() == closed

    def compare(self) -> int:
        """Every closed binlog against the server's file; how many there are."""
        wait_until(self.has_all, 120, "all binlogs in the archive")
        archived, there = self.bucket.archived(), self.bucket.binlogs()
        for name in archived:
            assert (self.machine.state / "mysql/data" / name).read_bytes() == there[name], name
        return len(archived)

    def show(self, name: str) -> str:
        """A property of the streamer's unit."""
        return self.machine.show(UNIT, name)

    @property
    def pid(self) -> int:
        """Its main process, by the machine's own number; 0 where there is none."""
        return int(self.show("MainPID"))

    def child(self) -> int:
        """Its mysqlbinlog; 0 where there is none."""
        found = self.machine.run("pgrep", "-P", str(self.pid), check=False).stdout.split()
        return int(found[0]) if found else 0

    def streams(self) -> bool:
        """Whether the unit runs, and says that it streams."""
        told = self.show("StatusText").startswith(("streaming", "idle", "catching up"))
        return self.show("ActiveState") == "active" and told

    def journal(self) -> list[dict[str, Any]]:
        """All that was ever logged about the unit."""
        said = self.machine.run("journalctl", "-u", UNIT, "-o", "json", "--no-pager").stdout
        return [json.loads(line) for line in said.splitlines()]

    def said(self) -> list[str]:
        """What the streamer itself has said, line by line."""
        return [
            str(line["MESSAGE"])
            for line in self.journal()
            if line.get("_SYSTEMD_UNIT") == UNIT and line.get("_TRANSPORT") == "stdout"
        ]

    def events(self) -> list[dict[str, Any]]:
        """What it has logged: each is one line of JSON."""
        return [json.loads(line) for line in self.said() if line.startswith("{")]

    def exposure(self, unit: str) -> float:
        """How exposed systemd finds the unit as it runs."""
        said = self.machine.run("systemd-analyze", "security", "--no-pager", unit).stdout
        found = re.search(r"exposure level for \S+: ([\d.]+)", said)
        assert found, said
        return float(found[1])


def assert_page(machine: Machine) -> None:
    """The page at / is made under the unit's restrictions, by a process that gives way."""
    local, seen, done = Monitor(machine.state / SPOOL / "status.sock"), set[str](), Event()

    def look() -> None:
        while not done.is_set():
            lines = machine.run("ps", "-eo", "ni=,args=").stdout.splitlines()
            seen.update(line.split()[0] for line in lines if " report --html" in line)

    def page() -> bytes | None:
        code, body = local.get("/")
        assert code == HTTPStatus.OK or b"being made" in body, body
        return body if code == HTTPStatus.OK else None

    watching = Thread(target=look)
    watching.start()
    try:
        assert wait_until(page, what="the page at /").startswith(b"<!doctype html>")
    finally:
        done.set()
        watching.join()
    assert "19" in seen, seen


def restarted(world: World, before: int, act: Callable[[], object]) -> None:
    """Do it, and wait until another process streams."""
    count = int(world.show("NRestarts"))
    act()
    wait_until(lambda: world.pid not in {0, before}, 120, "another process")
    wait_until(world.streams, 120, "it streams")
    assert int(world.show("NRestarts")) == count + 1


@pytest.fixture
def world(
    make_machine: Callable[..., Machine],
    mysql_binaries: ServerBinaries,
    minio_binary: Path,
    wheels: Path,
    tmp_path: Path,
) -> Iterator[World]:
    """Installed and booted; nothing of it is started."""
    data = MysqlServer(mysql_binaries, tmp_path)._template() / "data"
    binds = {"/mnt/wheels": wheels}
    prefix = mysql_binaries.server.parent.parent
    if not prefix.is_relative_to("/usr"):
        binds["/opt/mysql"] = prefix
        inner = {
            name: Path("/opt/mysql") / getattr(mysql_binaries, name).relative_to(prefix)
            for name in ("server", "client", "binlog")
        }
        mysql_binaries = type(mysql_binaries)(
            **{
                name: inner.get(name, getattr(mysql_binaries, name))
                for name in mysql_binaries.__slots__
            }
        )
    binds["/mnt/site"] = Path(pip.__file__).parents[1]
    machine = make_machine(binds=binds)
    minor = f"python3.{sys.version_info.minor}"
    python = next(
        (str(path) for path in (Path("/usr/bin", minor), Path("/usr/local/bin", minor))
         if path.exists()), "")  # fmt: skip
    if not python:
        pytest.skip(f"there is no {minor} outside of homes, which the unit does not see")
    with temporary_directory() as directory, MinioServer(minio_binary, directory) as minio:
        made = World(machine, minio, mysql_binaries)
        made.install(data, python)
        yield made
        for unit in ("mysql.service", UNIT):  # shown where a test fails
            said = machine.run("journalctl", "-u", unit, "-o", "cat", "-n", "60", check=False)
            sys.stdout.write(said.stdout)


WITHOUT_STORE_SECONDS = 180
"""Longer than systemd's own time-out of a start."""


def test_the_unit(world: World) -> None:
    """It streams; what kills, freezes or stops it does no harm; it comes up before all it needs."""
    machine = world.machine
    machine.run("systemctl", "start", "mysql.service")
    machine.run("systemctl", "enable", "--now", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    assert world.compare() >= 1
    assert world.exposure(UNIT) <= MOST_EXPOSED
    assert world.show("Type") == "notify"
    assert_page(machine)

    thread = world.load()
    try:
        first = world.pid
        restarted(world, first, lambda: machine.run("kill", "-9", str(first)))

        child = world.child()
        assert child
        machine.run("kill", "-9", str(child))
        wait_until(lambda: world.child() not in {0, child}, what="another mysqlbinlog")

        second = world.pid
        restarted(world, second, lambda: machine.run("kill", "-STOP", str(second)))
        said = "\n".join(str(line["MESSAGE"]) for line in world.journal())
        assert "Watchdog timeout" in said

        wait_until(world.streams, what="it streams")
        machine.run("systemctl", "stop", UNIT)
        assert world.show("Result") == "success"
        assert world.show("ExecMainStatus") == "0"
        machine.run("systemctl", "start", UNIT)
        wait_until(world.streams, what="it streams")
    finally:
        world.rest(thread)
    world.query("FLUSH BINARY LOGS")
    assert world.compare() >= 2

    # the machine comes up again, and neither the server nor the store is there
    spooled = {path.name for path in (machine.state / SPOOL).rglob("mysql-bin.*")}
    assert spooled, "the open binlog is in the spool"
    machine.power_off()
    world.minio.kill()
    machine.boot()
    begin = machine.run("date", "+%s").stdout
    wait_until(lambda: world.show("ActiveState") == "active", what="it is active")
    status = "waiting for the store"
    wait_until(lambda: world.show("StatusText").startswith(status), what=status)
    assert {path.name for path in (machine.state / SPOOL).rglob("mysql-bin.*")} == spooled
    until = int(begin) + WITHOUT_STORE_SECONDS
    wait_until(
        lambda: int(machine.run("date", "+%s").stdout) >= until,
        WITHOUT_STORE_SECONDS + 60,
        "time",
        interval=1,
    )
    assert (world.show("ActiveState"), world.show("NRestarts")) == ("active", "0")
    world.minio.start()
    machine.run("systemctl", "start", "mysql.service")
    wait_until(world.streams, what="it streams")
    world.write()
    world.compare()
    assert world.show("NRestarts") == "0"

    # what was said, in all of its lives
    assert not [line for line in world.said() if not line.startswith("{")], "lines of JSON alone"
    events = world.events()
    assert {event["event"] for event in events} >= {"streaming", "waiting_for_the_store"}
    warned = world.machine.run(
        "journalctl", "-u", UNIT, "-p", "warning", "-o", "cat", "--no-pager", "_TRANSPORT=stdout"
    ).stdout.splitlines()
    levels = [json.loads(line)["level"] for line in warned]
    assert levels == [one["level"] for one in events if one["level"] in ("warning", "error")]
    assert "warning" in levels
    everything = json.dumps(world.journal())
    for secret in (PASSWORD, ADMIN, world.minio.secret_key, world.minio.access_key):
        assert secret not in everything


def commands(name: str) -> list[str]:
    """A block of the guides, line by line, for the instance that is installed here."""
    found = re.search(rf"<!-- commands: {name} -->\n\n```sh\n(.*?)\n```", PAGE, re.DOTALL)
    assert found, name
    return found[1].replace("orders-primary", "orders").split("\n")


def test_commands_by_hand(world: World) -> None:
    """As documented, by root: before the first start, beside the service, with a new password."""
    machine = world.machine
    export, check, status, listing, verify = commands("by hand")

    def by_hand(line: str) -> str:
        return machine.run("sh", "-ec", f"{export}; {line}").stdout

    machine.run("systemctl", "start", "mysql.service")
    assert "nothing fails" in by_hand(check)
    assert "it can be made" in by_hand(f"{check} --all")
    assert not (machine.root / "var/lib/binlog2s3").exists(), "as it was found it is left"
    nothing = machine.run("sh", "-ec", f"{export}; {status}", check=False)
    assert nothing.returncode == 7, nothing.stdout + nothing.stderr
    machine.run("systemctl", "enable", "--now", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    world.compare()

    said = by_hand(f"{check} --all")
    assert "a streamer runs here" in said
    assert "which systemd made for the unit" in said
    assert "the streamer itself" in by_hand(status)
    assert "mysql-bin.000001" in by_hand(listing)
    assert "no defects" in by_hand(verify)

    world.query(f"ALTER USER repl@'%' IDENTIFIED BY '{ROTATED}'")
    machine.put("/root/password", ROTATED)
    for line in commands("rotated"):
        machine.run("sh", "-ec", f"cd /root; {line}")
    wait_until(world.streams, what="it streams")
    assert world.show("NRestarts") == "0"
    assert "a streamer runs here" in by_hand(f"{check} --all")
    world.write()
    world.compare()


def test_without_keys_in_a_file(world: World) -> None:
    """An instance role has no file: the unit starts, and boto3 looks further."""
    machine = world.machine
    machine.run("rm", "/etc/binlog2s3/orders.aws")
    machine.run("systemctl", "start", "mysql.service")
    machine.put(f"/etc/systemd/system/{UNIT}.d/role.conf", "[Service]\n"
                f"Environment=AWS_ACCESS_KEY_ID={world.minio.access_key}\n"
                f"Environment=AWS_SECRET_ACCESS_KEY={world.minio.secret_key}\n")  # fmt: skip
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    world.compare()

    # without the password it does not, and says what is missing
    machine.run("systemctl", "stop", UNIT)
    machine.run("rm", "/etc/binlog2s3/orders.password")
    assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0
    machine.run("systemctl", "stop", UNIT)
    assert "credentials" in json.dumps(world.journal()).lower()


def test_what_only_an_editor_mends(world: World) -> None:
    """A wrong configuration (3) is not started again; a wrong password is, for as long as it is."""
    machine = world.machine
    good = (machine.root / "etc/binlog2s3/orders.toml").read_text()
    machine.put("/etc/binlog2s3/orders.toml", good + "\n[spoool]\n")
    assert machine.run("systemctl", "start", UNIT, check=False).returncode != 0
    wait_until(lambda: world.show("ActiveState") == "failed", what="failed for good")
    assert world.show("ExecMainStatus") == "3"
    assert world.show("NRestarts") == "0"
    assert any("spoool" in line for line in world.said())

    machine.put("/etc/binlog2s3/orders.toml", good)
    machine.put("/etc/binlog2s3/orders.password", secrets.token_hex(8), 0o600)
    machine.run("systemctl", "start", "mysql.service")
    machine.run("systemctl", "start", "--no-block", UNIT)
    wait_until(lambda: int(world.show("NRestarts")) >= 2, what="started again")
    ended = [event for event in world.events() if event["event"] == "process_ended"]
    assert "Access denied" in ended[-1]["error"]
    machine.put("/etc/binlog2s3/orders.password", PASSWORD, 0o600)
    wait_until(world.streams, what="it streams")


SERVE = "binlog2s3-serve@orders.service"
SERVE_VARIABLES = """BINLOG2S3_LISTEN=127.0.0.1:{port}
BINLOG2S3_USER="replica audit"
BINLOG2S3_PASSWORD_FILE="serve_replica.password serve_audit.password"
BINLOG2S3_TLS_CERT=serve_cert.pem
BINLOG2S3_TLS_KEY=serve_key.pem
BINLOG2S3_STATUS_LISTEN=127.0.0.1:{status_port}
"""


def test_the_unit_of_serve(world: World, tmp_path: Path) -> None:
    """Both accounts log in with TLS; it writes nowhere, is restarted, and shows its clients."""
    machine = world.machine
    machine.run("systemctl", "start", "mysql.service", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    world.compare()
    machine.run("systemctl", "stop", UNIT)

    port, status_port = free_port(), free_port()
    unit = (ROOT / "systemd/binlog2s3-serve@.service").read_text()
    machine.put("/etc/systemd/system/binlog2s3-serve@.service", unit)
    machine.put(f"/etc/systemd/system/{SERVE}.d/short.conf", "[Service]\nRestartSec=1\n")
    variables = SERVE_VARIABLES.format(port=port, status_port=status_port)
    machine.put("/etc/binlog2s3/orders.serve", variables)
    pair = Authority(tmp_path, "ca").sign("archive")
    for name, text in {
        "replica.password": f"{PASSWORD}\n",
        "audit.password": ROTATED,
        "cert.pem": pair.cert.read_text(),
        "key.pem": pair.key.read_text(),
    }.items():
        machine.put(f"/etc/binlog2s3/orders.serve.d/{name}", text, 0o600)
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "enable", "--now", SERVE)

    def logs_in(user: str, password: str) -> bool:
        """Whether it lets the user in; False while it does not listen."""
        tls = {"ca": str(tmp_path / "ca.pem"), "check_hostname": False}
        login: dict[str, Any] = {"host": "127.0.0.1", "port": port, "ssl": tls}
        try:
            pymysql.connect(user=user, password=password, **login).close()
        except pymysql.err.NotSupportedError:  # what it does not know is asked after the login
            return True
        except pymysql.err.OperationalError as error:
            if error.args[0] != 2003:
                raise
            return False
        return True

    try:
        wait_until(lambda: logs_in("replica", PASSWORD), 60, "it serves")
        assert logs_in("audit", ROTATED)
        with pytest.raises(pymysql.err.OperationalError, match="denied"):
            logs_in("audit", PASSWORD)
        url = f"http://127.0.0.1:{status_port}"
        said = machine.run("binlog2s3", "status", f"--serve-url={url}").stdout
        assert "orders  mysql" in said
        assert "1 (password)" in said

        pid = machine.show(SERVE, "MainPID")
        for place in ("/", "/tmp", "/var/tmp", "/var/lib", "/etc/binlog2s3", "/run", "/dev/shm"):
            touch = ["nsenter", "-t", pid, "-m", "touch", f"{place}/written"]
            assert machine.run(*touch, check=False).returncode != 0, place
        assert world.exposure(SERVE) <= MOST_EXPOSED

        machine.run("kill", "-9", pid)
        wait_until(lambda: machine.show(SERVE, "MainPID") not in {"0", pid}, what="restarted")
        wait_until(lambda: logs_in("replica", PASSWORD), 60, "it serves again")
        machine.run("systemctl", "stop", SERVE)
        assert machine.show(SERVE, "Result") == "success"
        journal = machine.run("journalctl", "-u", SERVE, "-o", "cat", "--no-pager").stdout
        assert PASSWORD not in journal
        assert ROTATED not in journal
    finally:
        sys.stdout.write(machine.run("journalctl", "-u", SERVE, "-n", "40", check=False).stdout)


DRILL = "binlog2s3-drill@orders"
DRILL_VARIABLES = """BINLOG2S3_MYSQLD={server}
BINLOG2S3_RESTORE_COMMAND="{restore}"
BINLOG2S3_MYSQLD_OPTION="--innodb-buffer-pool-size=64M --tmpdir=/tmp"
"""


def test_the_timer_of_drill(world: World) -> None:
    """The timer proves a cold copy under the unit's limits; what a killed drill left goes."""
    machine = world.machine
    machine.run("systemctl", "start", "mysql.service", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    machine.run("systemctl", "stop", "mysql.service")
    machine.run("cp", "-a", "/var/lib/mysql/data", "/srv/copy")
    machine.run("chmod", "-R", "a+rX", "/srv/copy")
    newest = max((machine.state / "mysql/data").glob("mysql-bin.0*"))
    machine.run("systemctl", "start", "mysql.service")
    world.write()
    world.compare()
    keys = ("env", "AWS_SHARED_CREDENTIALS_FILE=/etc/binlog2s3/orders.aws")
    add = ("binlog2s3", "backup", "add", "--config=/etc/binlog2s3/orders.toml")
    where = (f"--binlog={newest.name}", f"--position={newest.stat().st_size}")
    machine.run(*keys, *add, *where, "--location=/srv/copy")

    for suffix in ("service", "timer"):
        text = (ROOT / f"systemd/binlog2s3-drill@.{suffix}").read_text()
        machine.put(f"/etc/systemd/system/binlog2s3-drill@.{suffix}", text)
    soon = "[Timer]\nOnCalendar=\nOnCalendar=*:*:0/2\nRandomizedDelaySec=0\nAccuracySec=1s\n"
    machine.put(f"/etc/systemd/system/{DRILL}.timer.d/soon.conf", soon)
    copies = "cp -a {location}/. {datadir}"

    def restores(command: str) -> None:
        text = DRILL_VARIABLES.format(server=world.server, restore=command)
        machine.put("/etc/binlog2s3/orders.drill", text)

    def results() -> list[dict[str, Any]]:
        there = world.bucket
        return [json.loads(there.get(key)) for key in there.keys("prod/archive/orders/drills/")]

    try:
        restores(copies)
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", f"{DRILL}.timer")
        wait_until(results, 300, "the result of a drill")
        machine.run("systemctl", "disable", "--now", f"{DRILL}.timer")
        wait_until(lambda: machine.show(DRILL, "ActiveState") == "inactive", 300, "it ended")
        assert {one["outcome"] for one in results()} == {"proved"}
        assert results()[-1]["transactions"] >= 20
        state = machine.state / "binlog2s3-drill/orders"
        assert [path.name for path in state.iterdir()] == ["lock"]
        assert world.exposure(f"{DRILL}.service") <= MOST_EXPOSED_DRILL

        done = len(results())
        restores("sleep 600")
        machine.run("systemctl", "start", "--no-block", f"{DRILL}.service")

        def markers() -> str:
            return "".join(path.read_text() for path in state.glob("drill-*/drill.json"))

        wait_until(lambda: '"restore"' in markers(), 60, "it restores")
        machine.run("systemctl", "kill", "--signal=KILL", f"{DRILL}.service")
        wait_until(lambda: machine.show(DRILL, "ActiveState") == "failed", 60, "it is killed")
        assert any(state.glob("drill-*"))
        restores(copies)
        machine.run("systemctl", "start", f"{DRILL}.service")
        killed, proved = results()[done:]
        assert killed["error"].startswith("it was killed during the step 'restore'")
        assert proved["outcome"] == "proved"
        assert not any(state.glob("drill-*"))  # the logs of the killed one stay, in failed-...
        journal = machine.run("journalctl", "-u", DRILL, "-o", "cat", "--no-pager").stdout
        assert world.minio.secret_key not in journal
    finally:
        sys.stdout.write(machine.run("journalctl", "-u", DRILL, "-n", "60", check=False).stdout)


BACKUP = "binlog2s3-backup@orders"
BACKUP_VARIABLES = """BINLOG2S3_TOOL=mysqldump
BINLOG2S3_PROGRAM={program}
BINLOG2S3_MYSQL_USER=admin
"""


def test_the_timer_of_backup(world: World) -> None:
    """The timer stores and registers a base backup under the unit's limits; no secret is logged."""
    machine = world.machine
    machine.run("systemctl", "start", "mysql.service", UNIT)
    wait_until(world.streams, what="it streams")
    world.write()
    for suffix in ("service", "timer"):
        text = (ROOT / f"systemd/binlog2s3-backup@.{suffix}").read_text()
        machine.put(f"/etc/systemd/system/binlog2s3-backup@.{suffix}", text)
    soon = "[Timer]\nOnCalendar=\nOnCalendar=*:*:0/2\nRandomizedDelaySec=0\nAccuracySec=1s\n"
    machine.put(f"/etc/systemd/system/{BACKUP}.timer.d/soon.conf", soon)
    program = world._binaries.client.with_name("mysqldump")
    machine.put("/etc/binlog2s3/orders.backup", BACKUP_VARIABLES.format(program=program))
    machine.put("/etc/binlog2s3/orders.backup.password", ADMIN, 0o600)
    keys = (machine.root / "etc/binlog2s3/orders.aws").read_text()
    machine.put("/etc/binlog2s3/orders.backup.aws", keys, 0o600)

    def registered() -> list[str]:
        return list(world.bucket.keys("prod/archive/orders/backups/"))

    try:
        machine.run("systemctl", "daemon-reload")
        machine.run("systemctl", "enable", "--now", f"{BACKUP}.timer")
        wait_until(registered, 300, "a registered base backup")
        machine.run("systemctl", "disable", "--now", f"{BACKUP}.timer")
        wait_until(lambda: machine.show(BACKUP, "ActiveState") == "inactive", 300, "it ended")
        found = json.loads(world.bucket.get(registered()[0]))
        assert found["checked"]
        assert found["stored"]["size"] > 0
        analyzed = machine.run("systemd-analyze", "security", "--no-pager", f"{BACKUP}.service")
        exposure = re.search(r"exposure level for \S+: ([\d.]+)", analyzed.stdout)
        assert exposure, analyzed.stdout
        assert float(exposure[1]) <= MOST_EXPOSED
        journal = machine.run("journalctl", "-u", BACKUP, "-o", "cat", "--no-pager").stdout
        assert ADMIN not in journal
        assert world.minio.secret_key not in journal
    finally:
        sys.stdout.write(machine.run("journalctl", "-u", BACKUP, "-n", "60", check=False).stdout)
