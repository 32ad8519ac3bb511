"""The golden buckets of all versions, put into a store as they were when they were made."""

import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.s3 import Store
from tests import command
from tests.golden.make import SOURCE, read_archive

FOLDER = Path(__file__).parent
VERSIONS = sorted(path.name for path in FOLDER.iterdir() if (path / "truth.json").is_file())


@dataclass(frozen=True, slots=True)
class Golden:
    """One golden bucket in a store."""

    folder: Path
    truth: dict[str, Any]
    objects: dict[str, bytes]
    store: Store
    bucket: str

    @property
    def archive(self) -> list[str]:
        """The options that name it for each command."""
        return [
            f"--s3-url=s3://{self.bucket}/pre",
            f"--endpoint-url={self.store.endpoint_url}",
            "--region=us-east-1",
            "--addressing-style=path",
        ]

    @property
    def lineages(self) -> list[str]:
        """Of the source, the oldest first: before the RESET and after it."""
        (source,) = self.truth["list"]["sources"]
        return [lineage["lineage"] for lineage in source["lineages"]]

    def call(self, *arguments: str, code: int = 0) -> str:
        """What a command prints that ends with this exit code."""
        words = [*arguments, *self.archive, f"--source={SOURCE}"]
        done = command.run(*words, **self.store.env())
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


def put(version: str, store: Store, bucket: str) -> Golden:
    """Put all objects of a version's golden bucket into an empty bucket."""
    folder = FOLDER / version
    objects = read_archive(folder / "bucket.tar.xz")
    with closing(store.client()) as client:
        for key, data in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=data)
    truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    return Golden(folder=folder, truth=truth, objects=objects, store=store, bucket=bucket)
