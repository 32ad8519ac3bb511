"""A source that is streamed into a bucket, a `serve` that follows it, and a replica of that."""

import contextlib
import json
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pymysql

from lab.child import free_port
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import where
from tests.world.pair import Pair
from tests.world.servers import (
    content,
    executed,
    in_its_words,
    replica_status,
    replicate_from,
    two,
)

PASSWORD = "it's a secret"
TABLE = (
    "CREATE DATABASE IF NOT EXISTS d",
    "CREATE TABLE IF NOT EXISTS d.t (id INT AUTO_INCREMENT PRIMARY KEY, x VARCHAR(2000))",
)


class Served:
    """One `binlog2s3 serve` as a child process, which may be killed and started again."""

    def __init__(self, directory: Path, what: Sequence[str], environment: dict[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._password = directory / "password"
        self._password.write_text(f"{PASSWORD}\n")
        self._log = directory / "serve.stderr"
        self._what = list(what)
        self._environment = environment
        self.port, self.status_port = free_port(), free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start it, and wait until it listens."""
        words = [
            "serve", *self._what, "--listen", f"127.0.0.1:{self.port}", "--user", "replica",
            "--password-file", str(self._password), "--status-listen",
            f"127.0.0.1:{self.status_port}", "--log-level", "debug", *more,
        ]  # fmt: skip
        with self._log.open("ab") as stderr:
            self.process = subprocess.Popen(
                command.argv(*words), env=self._environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            )  # fmt: skip

        def listens() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return True
            return False

        wait_until(listens, what="serve listens")

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        if number != signal.SIGKILL:
            assert "Traceback" not in self.log()
        return code

    def kill(self) -> None:
        """End it, if it has not ended."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(PATIENCE)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def status(self) -> Any:
        """What it says of itself."""
        url = f"http://127.0.0.1:{self.status_port}/status"
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            return json.load(answer)

    def get(self, path: str) -> tuple[int, str]:
        """Code and text of an answer."""
        url = f"http://127.0.0.1:{self.status_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()


class Scene:
    """A source that is streamed into a bucket, a `serve`, and a replica."""

    def __init__(self, pair: Pair, minio: MinioServer, bucket: str, place: Path) -> None:
        self.pair = pair
        self.minio = minio
        self.bucket = bucket
        self.place = place
        self.ends = contextlib.ExitStack()
        self.streams = 0
        self.stream = self.streamed()
        self.source.query(*TABLE)
        self.stream.wait_for_event("new lineage")
        words = ["--source=test", *where(minio, bucket)]
        self.serve = Served(place / "serve", words, command.environment(**minio.env()))
        self.ends.callback(self.serve.kill)

    def streamed(self, **options: Any) -> StreamProcess:
        """A streamer on the same spool."""
        self.streams += 1
        found = StreamProcess(
            self.place / f"stream-{self.streams}", self.pair.source, self.minio, self.bucket,
            options={"spool": self.place / "spool", "spool-min-free-bytes": 0, **options},
        )  # fmt: skip
        self.ends.enter_context(found)
        found.wait_for_event("streaming")
        return found

    @property
    def source(self) -> MysqlServer:
        return self.pair.source

    @property
    def target(self) -> MysqlServer:
        return self.pair.target

    def write(self, count: int, size: int = 100) -> None:
        """So many transactions."""
        with contextlib.closing(self.source.connect()) as connection:
            cursor = connection.cursor()
            for _ in range(count):
                cursor.execute("INSERT INTO d.t (x) VALUES (REPEAT('x', %s))", (size,))

    def replicate(self, at: tuple[str, int] | None = None, *, tls: Path | None = None) -> None:
        """The target becomes a replica of what is served; `tls`: who signed its certificate."""
        more = ["SOURCE_CONNECT_RETRY=1", "SOURCE_HEARTBEAT_PERIOD=1"]
        more += ["SOURCE_RETRY_COUNT=1000"] if self.pair.is_mysql else []
        more += (
            ["SOURCE_SSL=1", f"SOURCE_SSL_CA='{tls}'", "SOURCE_SSL_VERIFY_SERVER_CERT=1"]
            if tls
            else ["SOURCE_SSL=0"]
        )
        replicate_from(self.target, self.serve.port, "replica", PASSWORD, at, *more)
        self.target.query(in_its_words(self.target, "START REPLICA"))

    def count(self, server: MysqlServer) -> int:
        with contextlib.suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
            return int(server.query("SELECT COUNT(*) FROM d.t")[0][0])
        return -1

    def wait_until_equal(self, *, errors: bool = False) -> None:
        """Until the replica has all that the source has."""

        def is_equal() -> bool:
            found = replica_status(self.target)
            failed = f"{found.get('Last_IO_Error')}{found.get('Last_SQL_Error')}"
            assert errors or not failed or "econnect" in failed, failed
            return self.count(self.source) == self.count(self.target)

        wait_until(is_equal, what="the replica has all")
        assert content(self.target) == content(self.source)

    def survives_kills(self) -> None:
        """SIGKILL of streamer and `serve`; both start again, and the replica has all."""
        self.serve.end(signal.SIGKILL)
        self.stream.kill()
        self.write(20)
        self.streamed()
        self.serve.start()
        self.write(20)
        self.wait_until_equal()
        self.compare_gtids()
        assert self.serve.end() == 0

    def compare_gtids(self) -> None:
        """The replica has executed what the source has."""
        wanted = executed(self.source)
        wait_until(lambda: executed(self.target, "gtid_slave_pos") == wanted, what="GTIDs")


@contextlib.contextmanager
def scene_of(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, place: Path
) -> Iterator[Scene]:
    with two(binaries) as (source, target):
        source.query(*TABLE)
        scene = Scene(Pair(source, target), minio, bucket, place)
        with scene.ends:
            scene.serve.start()
            yield scene
