"""What is in the bucket: whether all has arrived, and whether each byte is of the right history.

Law: what the servers wrote is kept aside before it is destroyed, and every byte of the bucket is
held against it: an archived binlog is a whole file of the history that its lineage tells of, what
lies in chunks is the beginning of one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from lab.mysql import MysqlServer
from lab.s3 import Store
from tests.integration.bucket import ARCHIVED, Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import list_of
from tests.world.servers import flush, masked, on_disk, position_of, uuid_of
from tests.world.writes import write

Eras = Mapping[str, str]
"""Which history each lineage must tell, by the lineage's id."""


def wait_durable(
    stream: StreamProcess, bucket: Bucket, server: MysqlServer, timeout: float = PATIENCE
) -> None:
    """Until the bucket has all that the server has written, and the writer's object says so."""
    uuid = uuid_of(server)

    def durable() -> bool:
        assert stream.process.poll() is None, stream.stderr()
        said = bucket.heartbeat()
        place = said["durable"] or {}
        # asked each time: MariaDB writes a checkpoint of its own a little later
        there = (place.get("binlog"), place.get("offset")) == position_of(server)
        return there and bool(said["server_uuid"] == uuid)

    wait_until(durable, timeout, f"all of {uuid} is durable", interval=0.2)


class Archive:
    """The bucket, read by hand."""

    def __init__(self, store: Store, bucket: str) -> None:
        self.bucket = Bucket(store, bucket)
        self.kept: dict[str, dict[str, bytes]] = {}
        self._first: dict[str, tuple[str, object]] = {}

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
        (source,) = list_of(self.bucket)["sources"]
        shown = {one["lineage"]: one for one in source["lineages"]}
        assert shown.keys() == lineages.keys()
        for id_, one in shown.items():
            assert one["parent"] == lineages[id_]["parent"]
            assert one["missing"] == [], one
            sizes = {row["name"]: row["size"] for row in one["binlogs"]}
            assert sizes == {name: len(body) for name, body in self.binlogs(id_).items()}
            if id_ in begins:
                assert min(sizes) == begins[id_]
