"""A source that is streamed into a bucket: what most tests begin with."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess, Value
from tests.waiting import PATIENCE, wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only, where
from tests.world.servers import RELAXED, is_mariadb


@dataclass(kw_only=True)
class Streamed:
    """A source, its streamer, and the bucket; `folder` is for whatever a test makes."""

    source: MysqlServer
    stream: StreamProcess
    minio: MinioServer
    bucket: str
    folder: Path
    stack: ExitStack

    @property
    def is_mariadb(self) -> bool:
        return is_mariadb(self.source)

    @property
    def binaries(self) -> ServerBinaries:
        return self.source.binaries

    @property
    def there(self) -> Bucket:
        return Bucket(self.minio, self.bucket)

    @property
    def recovery(self) -> Recovery:
        """`pitr`, with credentials that may only read."""
        return Recovery(self.minio, self.bucket, read_only(self.minio))

    @property
    def where(self) -> list[str]:
        """The options that name this source's archive."""
        return ["--source=test", *where(self.minio, self.bucket)]

    def run(self, *words: str, rights: Mapping[str, str] | None = None) -> Any:
        """A command on the archive, with all rights or these."""
        done = command.run(*words, *self.where, **(rights or self.minio.env()))
        assert isinstance(done, subprocess.CompletedProcess)
        return done

    def document(self, *words: str) -> dict[str, Any]:
        """Of --json, of one that ends well."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def wait(self, timeout: float = PATIENCE) -> None:
        """Until the bucket has all of it."""
        wait_durable(self.stream, self.there, self.source, timeout)

    def wait_archived(self, count: int) -> None:
        wait_until(lambda: len(self.there.archived()) >= count, what=f"{count} archived binlogs")

    def commit(self, *statements: str) -> None:
        """Bring these into the bucket."""
        self.source.query(*statements)
        self.wait()

    def another(self, *options: str, server_id: int = 7) -> MysqlServer:
        """Another server of its kind, whose events do not run."""
        made = server_of(
            self.binaries,
            self.folder / f"server-{server_id}",
            server_id=server_id,
            options=[*RELAXED, "--event-scheduler=OFF", *options],
        )
        return self.stack.enter_context(made)


S = TypeVar("S", bound=Streamed)


@contextmanager
def streamed(
    binaries: ServerBinaries,
    minio: MinioServer,
    bucket: str,
    folder: Path,
    *statements: str,
    options: Sequence[str] = RELAXED,
    stream: Mapping[str, Value] | None = None,
    kind: type[S] = Streamed,  # type: ignore[assignment]
    **server: Any,
) -> Iterator[S]:
    """A source that has executed these, and goes on to be streamed."""
    with ExitStack() as stack:
        source = stack.enter_context(
            server_of(binaries, folder / "source", options=options, **server)
        )
        process = StreamProcess(folder / "stream", source, minio, bucket, options=stream)
        stack.enter_context(process)
        if statements:
            source.query(*statements)
        yield kind(
            source=source, stream=process, minio=minio, bucket=bucket, folder=folder, stack=stack
        )
