"""Histories that end and begin anew: servers that are copied, put back, reset, replicated.

Law: what the servers wrote is kept aside before it is destroyed, and every byte of the bucket is
held against it: an archived binlog is a whole file of the history that its lineage tells of, what
lies in chunks is the beginning of one.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import Store
from tests import command
from tests.integration.bucket import ARCHIVED, Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE, wait_until

FLAG = 21
PREFIX = "mysql-bin."
Eras = Mapping[str, str]
"""Which history each lineage must tell, by the lineage's id."""


def masked(body: bytes) -> bytes:
    """Without the in-use flag, which is the server's own business."""
    return body[:FLAG] + bytes([body[FLAG] & 0xFE]) + body[FLAG + 1 :] if len(body) > FLAG else body


def on_disk(server: MysqlServer) -> dict[str, bytes]:
    """The server's binlogs as they lie there."""
    return {
        path.name: masked(path.read_bytes())
        for path in sorted(server.datadir.glob(f"{PREFIX}*"))
        if path.suffix[1:].isdigit()
    }


def create_table(server: MysqlServer) -> None:
    server.query("CREATE DATABASE shop", "CREATE TABLE shop.t (v VARCHAR(100))")


def write(server: MysqlServer, text: str, count: int = 3) -> None:
    """That many transactions."""
    server.query(*[f"INSERT INTO shop.t VALUES ('{text} {n}')" for n in range(count)])


def flush(server: MysqlServer) -> None:
    """The next binlog.

    MariaDB notes in it about a second later, by itself, that it needs no earlier one to recover.
    """
    server.query("FLUSH BINARY LOGS")
    name = server.binlogs()[-1][0]

    def is_noted() -> bool:
        events = server.query(f"SHOW BINLOG EVENTS IN '{name}'")
        return [row[5] for row in events if row[2] == "Binlog_checkpoint"][-1:] == [name]

    if server.binaries.flavour == "mariadb":
        wait_until(is_noted, what=f"the checkpoint in {name}")


def reset(server: MysqlServer, *more: str) -> None:
    """All binary logs begin anew; `more` runs on the same connection."""
    maria = server.binaries.flavour == "mariadb"
    server.query("RESET MASTER" if maria else "RESET BINARY LOGS AND GTIDS", *more)


def executed(server: MysqlServer) -> str:
    """Its GTID set, "" without GTIDs."""
    if server.binaries.flavour == "mariadb":
        return str(server.query("SELECT @@gtid_binlog_pos")[0][0])
    return str(server.query("SELECT @@gtid_executed")[0][0]).replace("\n", "")


def uuid_of(server: MysqlServer) -> str:
    """As the product knows it."""
    if server.binaries.flavour == "mariadb":
        return f"{int(server.query('SELECT @@server_id')[0][0]):08x}-00000000"
    return str(server.query("SELECT @@server_uuid")[0][0])


class CopiedServer(MysqlServer):
    """A server that begins with a copy of another one's data, and so with its accounts.

    It has a uuid of its own unless `same_uuid`.
    """

    def __init__(
        self,
        original: MysqlServer,
        image: Path,
        directory: Path,
        *,
        server_id: int = 2,
        same_uuid: bool = False,
        gtid: bool = True,
    ) -> None:
        super().__init__(original.binaries, directory, server_id=server_id, gtid=gtid)
        self._image = image
        self._same_uuid = same_uuid
        self.password = original.password

    def _template(self) -> Path:
        return self._image

    def _prepare(self) -> None:
        super()._prepare()
        if not self._same_uuid:
            (self.datadir / "auto.cnf").unlink(missing_ok=True)

    def _create_users(self) -> None:
        """They came with the data."""


def image_of(server: MysqlServer, place: Path) -> Path:
    """A copy of its data, as a backup or a snapshot; the server must stand still."""
    shutil.copytree(server.datadir, place / "data", ignore=shutil.ignore_patterns("*.pid"))
    return place


def put_back(server: MysqlServer, image: Path) -> None:
    """Replace the data of a server that is down."""
    shutil.rmtree(server.datadir)
    shutil.copytree(image / "data", server.datadir)


def follow(replica: MysqlServer, source: MysqlServer, *, until: bool = True) -> None:
    """Let one server replicate from another one; wait `until` it has all."""
    how = "SOURCE_AUTO_POSITION=1" if executed(source) else "SOURCE_LOG_FILE='mysql-bin.000001'"
    replica.query(
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_SSL=1, "
        f"SOURCE_PORT={source.port}, SOURCE_USER='{source.repl_user}', "
        f"SOURCE_PASSWORD='{source.password}', {how}",
        "START REPLICA",
    )
    if until:
        caught_up(replica, source)


def caught_up(replica: MysqlServer, source: MysqlServer) -> None:
    """Wait until a replica has all that its source has."""
    rows = count(source)
    wait_until(lambda: count(replica) == rows, what=f"{rows} rows on the replica")


def count(server: MysqlServer) -> int:
    found = server.query("SELECT 1 FROM information_schema.tables WHERE table_schema = 'shop'")
    return int(server.query("SELECT COUNT(*) FROM shop.t")[0][0]) if found else -1


def by_two_doors(directory: Path, binaries: ServerBinaries, port: int) -> Path:
    """A mysqlbinlog that goes to a port of its own, whatever port the questions go to."""
    directory.mkdir(parents=True, exist_ok=True)
    program = directory / "mysqlbinlog-by-another-door"
    real = binaries.binlog
    program.write_text(f'#!/bin/sh\nfirst=$1\nshift\nexec "{real}" "$first" --port={port} "$@"\n')
    program.chmod(0o755)
    return program


class Reader(Bucket):
    """With one client for all questions: to make one takes longer than to ask."""

    def __init__(self, store: Store, bucket: str) -> None:
        super().__init__(store, bucket)
        self.client = store.client()

    def keys(self, prefix: str = "") -> list[str]:
        return [row["Key"] for row in self.rows(prefix)]

    def rows(self, prefix: str = "") -> list[Any]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=prefix
        )
        return [row for page in pages for row in page.get("Contents", [])]

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()


class Archive:
    """The bucket, read by hand; to be closed."""

    def __init__(self, store: Store, bucket: str) -> None:
        self.bucket = Reader(store, bucket)
        self.kept: dict[str, dict[str, bytes]] = {}
        self._first: dict[str, tuple[str, object]] = {}

    def close(self) -> None:
        self.bucket.client.close()

    def writers(self) -> list[str]:
        """The writers' objects."""
        return self.bucket.keys("pre/live/test/writers/")

    def keep(self, era: str, server: MysqlServer) -> None:
        """Copy the server's files aside: so far the history `era` goes."""
        files = self.kept.setdefault(era, {})
        for name, body in on_disk(server).items():
            assert body.startswith(files.get(name, b"")), f"{name} is of two histories"
            files[name] = body

    def remember(self) -> None:
        """What is archived now must stay as it is."""
        self._first = {**self._archived(), **self._first}

    def _archived(self) -> dict[str, tuple[str, object]]:
        rows = self.bucket.rows("pre/archive/")
        return {row["Key"]: (row["ETag"], row["LastModified"]) for row in rows}

    def lineages(self) -> dict[str, dict[str, Any]]:
        """The documents lineage.json by id, oldest first."""
        keys = self.bucket.keys("pre/archive/")
        found = [json.loads(self.bucket.get(key)) for key in keys if key.endswith("/lineage.json")]
        return {one["lineage"]: one for one in found}

    def archived(self, lineage: str) -> dict[str, bytes]:
        """Its archived binlogs."""
        keys = self.bucket.keys("pre/archive/")
        matches = [m for key in keys if (m := ARCHIVED.search(key))]
        return {m["name"]: self.bucket.get(m.string) for m in matches if m["lineage"] == lineage}

    def described(self, lineage: str) -> list[str]:
        """The names of its binlogs that have an entry."""
        place = f"/{lineage}/entries/"
        keys = self.bucket.keys("pre/archive/")
        return [Path(key).stem for key in keys if place in key]

    def in_chunks(self, lineage: str) -> dict[str, bytes]:
        """What lies in chunks of its binlogs; listed again where one is deleted meanwhile."""
        for _ in range(50):
            try:
                return self._in_chunks(lineage)
            except ClientError as error:
                if error.response["Error"]["Code"] != "NoSuchKey":
                    raise
        raise AssertionError("chunks come and go")

    def _in_chunks(self, lineage: str) -> dict[str, bytes]:
        chunks = [chunk for chunk in self.bucket.chunks() if f"/{lineage}/" in chunk.key]
        return {
            name: self.bucket._join([chunk for chunk in chunks if chunk.binlog == name])
            for name in {chunk.binlog for chunk in chunks}
        }

    def binlogs(self, lineage: str) -> dict[str, bytes]:
        """All that can be read of it."""
        return {**self.in_chunks(lineage), **self.archived(lineage)}

    def arrived(self, stream: StreamProcess, server: MysqlServer, timeout: float = PATIENCE) -> str:
        """Wait until all that the server has written is in the bucket; in which lineage."""
        name, size = server.binlogs()[-1]
        body = on_disk(server)[name][:size]

        def found() -> str | None:
            if (ended := stream.process.poll()) is not None:
                raise AssertionError(f"ended with {ended}:\n{stream.stderr()}")
            for lineage in reversed(self.lineages()):
                if masked(self.binlogs(lineage).get(name, b""))[:size] == body:
                    return lineage
            return None

        try:
            lineage = wait_until(found, timeout, f"{name} up to {size} in the bucket", interval=0.1)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{stream.stderr()}") from None
        assert lineage is not None
        return lineage

    def works(self, stream: StreamProcess, server: MysqlServer, era: str) -> str:
        """What is written now arrives, also over a rotation; in which lineage."""
        write(server, "still")
        flush(server)
        write(server, "works")
        lineage = self.arrived(stream, server)
        closed = server.binlogs()[-2][0]
        wait_until(lambda: closed in self.described(lineage), what=f"the entry of {closed}")
        self.keep(era, server)
        return lineage

    def holds(self, eras: Eras, *, begins: Mapping[str, str] | None = None) -> None:
        """Every byte is of the right history, nothing archived was touched, `list` shows all."""
        lineages = self.lineages()
        assert list(lineages) == sorted(eras), lineages
        for id_, era in eras.items():
            for name, body in self.archived(id_).items():
                assert masked(body) == self.kept[era][name], (id_, era, name)
            for name, body in self.in_chunks(id_).items():
                assert body, (id_, name)
                assert self.kept[era][name].startswith(masked(body)), (id_, era, name)
        now = self._archived()
        assert {key: now.get(key) for key in self._first} == self._first
        self._listed(lineages, begins or {})

    def _listed(self, lineages: Mapping[str, Any], begins: Mapping[str, str]) -> None:
        (source,) = listing(self.bucket)["sources"]
        shown = {one["lineage"]: one for one in source["lineages"]}
        assert shown.keys() == lineages.keys()
        for id_, one in shown.items():
            assert one["parent"] == lineages[id_]["parent"]
            assert one["missing"] == [], one
            sizes = {row["name"]: row["size"] for row in one["binlogs"]}
            assert sizes == {name: len(body) for name, body in self.binlogs(id_).items()}
            if id_ in begins:
                assert min(sizes) == begins[id_]


def listing(bucket: Bucket) -> dict[str, Any]:
    """What `binlog2s3 list --json` says."""
    done = command.run(
        *("list", "--json", "--s3-url", f"s3://{bucket.name}/pre", "--addressing-style", "path"),
        *("--endpoint-url", bucket.store.endpoint_url, "--region", "us-east-1"),
        **bucket.store.env(),
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document
