"""Makes a golden bucket: `python -m tests.golden.make tests/golden/0.2.0`, once for each release.

A real MySQL is streamed, dumped, reset and pruned, until the bucket has an object of every kind
that docs/format.md describes. What is written is never changed again: the archive of all objects
(`bucket.tar.xz`), a dump of each history, and what a reader must find (`truth.json`).
"""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from binlog2s3 import __version__
from lab import get
from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.servers import state_of

SOURCE, RETIRED = "test", "gone"
FIRST = 997
"""The first binlog's number, so that the first page, which ends with 999, is due soon."""


def main(into: Path) -> None:
    """Make the files in a directory that is not there yet."""
    into.mkdir(parents=True)
    with (
        temporary_directory("binlog2s3-golden-") as folder,
        MinioServer(get.minio(), folder / "minio") as store,
        MysqlServer(get.mysql(), folder / "mysql") as server,
    ):
        server.query(f"RESET BINARY LOGS AND GTIDS TO {FIRST}")
        maker = Maker(into, folder, store, server)
        truth = maker.run()
        objects = maker.objects()
    truth["objects"] = {key: hashlib.sha256(data).hexdigest() for key, data in objects.items()}
    write_archive(into / "bucket.tar.xz", objects)
    text = json.dumps(truth, indent=1, sort_keys=True)
    (into / "truth.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{into}: {len(objects)} objects\n")


class Maker:
    """Does to a server and its streamers what gives every kind of object."""

    def __init__(self, into: Path, folder: Path, store: MinioServer, server: MysqlServer) -> None:
        self._into, self._folder, self._store, self._server = into, folder, store, server
        self.bucket = Bucket(store, store.make_bucket())

    def run(self) -> dict[str, object]:
        """All of it; what a reader must find afterwards."""
        server = self._server
        server.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, what VARCHAR(80))",
            "CREATE DATABASE farm",  # a dump of one database alone is no base backup
            "CREATE TABLE farm.trees (id INT PRIMARY KEY)",
            "INSERT INTO farm.trees VALUES (1)",
        )
        with self._stream("first", SOURCE) as stream:
            self._wait(lambda: bool(self.bucket.chunks()), "the first chunk")
            for number in range(3):
                self._sell(10 * number, 10)
                server.query("FLUSH BINARY LOGS")
            dump = self._dump("before.sql")
            self._sell(100, 10)
            server.query("FLUSH BINARY LOGS")
            self._sell(200, 5)
            server.query("DROP TABLE IF EXISTS shop.never", "FLUSH BINARY LOGS")
            self._wait(lambda: bool(self._has("/pages/")), "a page")
            self._wait_archived()
            before = self._state()
            where = "--location=s3://backups/before.sql"
            self._call("backup", "add", f"--from-backup={dump}", where, "--label=golden")
            self._drill(dump)
            self._call("prune", f"--keep-from-backup={dump}", "--yes")
            server.query("RESET BINARY LOGS AND GTIDS")
            self._sell(300, 10)
            self._wait(lambda: len(self._has("/lineage.json")) == 2, "the second lineage")
            self._dump("after.sql")
            self._sell(400, 10)
            stored = self._store_backup()
            server.query("FLUSH BINARY LOGS")
            self._sell(500, 7)
            with self._stream("second", SOURCE) as standby:
                self._wait(lambda: bool(self._has("/standbys/")), "a standby's object")
                standby.kill()
            self._wait_durable()
            after = self._state()
            stream.kill()
        self._retire()
        uuid = str(server.query("SELECT @@server_uuid")[0][0])
        return {
            "version": __version__,
            "server_uuid": uuid,
            "before": before,
            "after": after,
            "binlogs": server.binlogs(),
            "list": json.loads(self._call("list", "--json")),
            "stored": stored,
        }

    def _state(self) -> dict[str, Any]:
        """What a server must have that is restored; accounts are not in the dumps."""
        return {name: part for name, part in state_of(self._server).items() if name != "accounts"}

    def objects(self) -> dict[str, bytes]:
        """What the bucket has, by key."""
        return {key: self.bucket.get(key) for key in self.bucket.keys("pre/")}

    def _stream(self, name: str, source: str) -> StreamProcess:
        options = {"source": source, "part-size": "5M"}
        folder = self._folder / name
        return StreamProcess(folder, self._server, self._store, self.bucket.name, options=options)

    def _retire(self) -> None:
        with self._stream("gone", RETIRED) as stream:
            self._wait(lambda: bool(self._of(RETIRED, "/binlogs/")), "a binlog of the other source")
            assert stream.terminate() == 0
        self._call("prune", "--retire", "--yes", source=RETIRED)

    def _store_backup(self) -> str:
        """A base backup whose stream is in the bucket; its id."""
        password = self._folder / "no-password"
        password.touch(0o600)
        done = self._call(
            "backup",
            "run",
            "--tool=mysqldump",
            f"--program={self._server.binaries.client.with_name('mysqldump')}",
            f"--mysql-socket={self._server.socket}",
            "--mysql-user=root",
            f"--mysql-password-file={password}",
            "--label=stored",
            "--json",
        )
        (backup,) = json.loads(done)["backups"]
        return str(backup["id"])

    def _drill(self, dump: Path) -> None:
        """A recovery of the registered backup, for real: its result is an object, too."""
        script = self._folder / "restore.sh"
        client = self._server.binaries.client
        script.write_text(f'exec {client} --no-defaults -uroot --socket="$1" < {dump.resolve()}\n')
        work = self._folder / "drill"
        work.mkdir()
        self._call(
            "drill",
            f"--restore-command=sh {script} {{socket}}",
            "--restore-into=server",
            f"--mysqld={self._server.binaries.server}",
            f"--work-dir={work}",
            *(["--mysqld-option=--user=root"] if os.geteuid() == 0 else []),
        )

    def _call(self, *arguments: str, source: str = SOURCE) -> str:
        done = command.run(
            *arguments,
            f"--source={source}",
            f"--s3-url=s3://{self.bucket.name}/pre",
            f"--endpoint-url={self._store.endpoint_url}",
            "--region=us-east-1",
            "--addressing-style=path",
            **self._store.env(),
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _sell(self, first: int, count: int) -> None:
        """One transaction for each row."""
        rows = [
            f"INSERT INTO shop.orders VALUES ({n}, '{n} apples')"
            for n in range(first, first + count)
        ]
        self._server.query(*rows)

    def _dump(self, name: str) -> Path:
        path = self._into / name
        program = self._server.binaries.client.with_name("mysqldump")
        words = ["--databases", "shop", "farm", "--single-transaction", "--source-data=2"]
        words += ["--set-gtid-purged=ON"]
        with path.open("wb") as out:
            subprocess.run(
                [program, "--no-defaults", "-uroot", f"--socket={self._server.socket}", *words],
                stdout=out,
                check=True,
                timeout=300,
            )
        return path

    def _has(self, part: str) -> list[str]:
        return self._of(SOURCE, part)

    def _of(self, source: str, part: str) -> list[str]:
        return [key for key in self.bucket.keys("pre/") if part in key and f"/{source}/" in key]

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_until(condition, what=what)

    def _wait_archived(self) -> None:
        closed = [name for name, _size in self._server.binlogs()[:-1]]
        wait_until(lambda: set(closed) <= set(self.bucket.archived()), what="all that is closed")

    def _wait_durable(self) -> None:
        name, size = self._server.binlogs()[-1]
        wait_until(
            lambda: any(c.end == size for c in self.bucket.chunks(name)), what="the open binlog"
        )


def write_archive(path: Path, objects: dict[str, bytes]) -> None:
    """One file with all objects under their keys."""
    with tarfile.open(path, "w:xz") as file:
        for key, data in sorted(objects.items()):
            info = tarfile.TarInfo(key)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))


def read_archive(path: Path) -> dict[str, bytes]:
    """The objects of such a file by their keys."""
    objects = {}
    with tarfile.open(path, "r:xz") as file:
        for member in file:
            data = file.extractfile(member)
            assert data is not None
            with closing(data):
                objects[member.name] = data.read()
    return objects


if __name__ == "__main__":
    main(Path(sys.argv[1]))
