"""How far each binlog can be read by somebody who has only the bucket, and since when.

Law: names and sizes from listings alone decide, chunks before the archive, as docs/format.md says
for readers; `restorable_at` is pure. Moments are monotonic seconds, which all processes of one
host share.
"""

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from time import monotonic
from typing import TYPE_CHECKING, Self

from binlog2s3.archive.chunks import Chunk, join
from binlog2s3.binlog.names import BinlogName
from lab.s3 import MinioServer, client_for

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

POLL_SECONDS = 0.05
WHOLE = 1 << 62
"""The reach of a binlog whose object does not say the binlog's size: it is compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Where the reader reads, past everything that counts or slows requests."""

    endpoint_url: str
    access_key: str
    secret_key: str
    bucket: str
    prefix: str
    source: str

    @classmethod
    def made_in(cls, store: MinioServer, *, source: str = "bench") -> Self:
        """A new bucket of this store."""
        return cls(
            endpoint_url=store.endpoint_url,
            access_key=store.access_key,
            secret_key=store.secret_key,
            bucket=store.make_bucket(),
            prefix="pre",
            source=source,
        )

    def client(self) -> "S3Client":
        """A client of its own for each process; close it."""
        return client_for(self.endpoint_url, self.access_key, self.secret_key)

    @property
    def live(self) -> str:
        """Prefix of the chunks."""
        return f"{self.prefix}/live/{self.source}/"

    @property
    def archive(self) -> str:
        """Prefix of the closed binlogs."""
        return f"{self.prefix}/archive/{self.source}/"


@dataclass(frozen=True, slots=True)
class Sample:
    """From this moment on, the first `reach` bytes of a binlog were in the listing."""

    at: float
    name: str
    reach: int


def chunks_and_binlogs(
    client: "S3Client", where: Bucket
) -> tuple[dict[str, dict[Chunk, str]], dict[str, tuple[str, int]]]:
    """By binlog: its chunks with their keys, and the archived object's key and size."""
    chunks: dict[str, dict[Chunk, str]] = defaultdict(dict)
    for key, size in _listed(client, where.bucket, where.live):
        *_, name, last = key.split("/")
        try:
            chunk = Chunk.parse(last)
        except ValueError:
            continue  # a writer's object
        if chunk.size == size:
            chunks[name][chunk] = key
    binlogs: dict[str, tuple[str, int]] = {}
    for key, size in _listed(client, where.bucket, where.archive):
        *_, folder, name = key.split("/")
        if folder == "binlogs":
            binlogs[name] = (key, size)
        elif folder.startswith("binlog_"):  # wal-g's: the name and how it is compressed
            binlogs[".".join(name.split(".")[:2])] = (key, WHOLE)
    return chunks, binlogs


def look(client: "S3Client", where: Bucket) -> dict[str, int]:
    """How far each binlog can be read now."""
    chunks, binlogs = chunks_and_binlogs(client, where)
    reach = {}
    for name, found in chunks.items():
        pieces = join(found)
        reach[name] = pieces[-1].end if pieces else 0
    return reach | {name: size for name, (_key, size) in binlogs.items()}


def covers(reach: Mapping[str, int], binlogs: Iterable[tuple[str, int]]) -> bool:
    """Whether these binlogs (name, size) can be read up to these sizes."""
    return all(reach.get(name, 0) >= size for name, size in binlogs)


def watch(where: Bucket, stop: Event, answers: Connection) -> None:
    """The reader's process: None when it has looked once, the samples when it is told to stop."""
    parent = os.getppid()
    client = where.client()
    best: dict[str, int] = {}
    samples: list[Sample] = []
    look(client, where)
    answers.send(None)
    while True:
        found = look(client, where)
        now = monotonic()
        for name, reach in found.items():
            if reach > best.get(name, 0):
                best[name] = reach
                samples.append(Sample(now, name, reach))
        if stop.wait(POLL_SECONDS) or os.getppid() != parent:
            break
    client.close()
    answers.send((monotonic(), samples))


class History:
    """What the reader saw, in the order of the binlogs; `sizes` are those of the whole binlogs."""

    def __init__(self, samples: Iterable[Sample], sizes: Mapping[str, int]) -> None:
        self._steps: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self._steps[sample.name].append(sample)
        self._before: dict[str, float | None] = {}
        whole: float | None = 0.0
        for name in sorted(sizes, key=BinlogName.parse):
            self._before[name] = whole
            reached = self._reached(name, sizes[name])
            whole = None if whole is None or reached is None else max(whole, reached)

    def restorable_at(self, name: str, end: int) -> float | None:
        """When all up to this byte could be read, earlier binlogs included; None: never."""
        before, reached = self._before.get(name), self._reached(name, end)
        return None if before is None or reached is None else max(before, reached)

    def reach_at(self, moment: float) -> dict[str, int]:
        """How far each binlog could be read at a moment."""
        return {
            name: max((step.reach for step in steps if step.at <= moment), default=0)
            for name, steps in self._steps.items()
        }

    def _reached(self, name: str, end: int) -> float | None:
        steps = self._steps.get(name, [])
        at = bisect_left(steps, end, key=lambda step: step.reach)
        return steps[at].at if at < len(steps) else None


def _listed(client: "S3Client", bucket: str, prefix: str) -> Iterable[tuple[str, int]]:
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
        for item in page.get("Contents", []):
            yield item["Key"], item["Size"]
