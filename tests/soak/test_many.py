"""Ten thousand binlogs: `list` and `verify` of a year, in little memory; `make soak`.

MANY is how many; MANY_STRICT=1 holds the times against what is promised for an idle machine.
"""

import json
import os
import sys

import pytest

from lab import many
from lab.s3 import MinioServer

COUNT = int(os.environ.get("MANY", "10000"))
STRICT = bool(os.environ.get("MANY_STRICT"))
MOST_MEMORY = 150 << 20

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def filled(minio: MinioServer) -> str:
    """A bucket with that many binlogs."""
    bucket = minio.make_bucket()
    many.fill(minio, bucket, COUNT)
    return bucket


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("list", "--json"), 10),
        (("verify", "--json"), 60),
        (("verify", "--deep", "--json"), None),
        (("verify", "--json", "--source=test", f"--from-gtid-set={many.UUID}:1-3"), None),
    ],
    ids=["list", "verify", "deep", "backup"],
)
def test_many_binlogs(
    words: tuple[str, ...], seconds: float | None, minio: MinioServer, filled: str
) -> None:
    """All of them are there, nothing is wrong, and memory stays below 150 MiB."""
    argv, environment = many.command(minio, filled, *words)
    found = many.measured(argv, environment, 3600)
    sys.stdout.write(
        f"{' '.join(words)}: {COUNT} binlogs, {found.seconds:.1f} s ({found.cpu_seconds:.1f} s of "
        f"CPU), {found.rss / (1 << 20):.0f} MiB\n"
    )
    assert found.status == 0, found.stderr
    (source,) = json.loads(found.stdout)["sources"]
    (lineage,) = source["lineages"]
    there = lineage["binlogs"]
    assert (len(there) if isinstance(there, list) else there) == COUNT + 1
    if words[0] == "verify":
        assert source["defects"] == []
        assert [one["binlogs"] for one in source["recoverable"]] == [COUNT + 1]
    assert found.rss < MOST_MEMORY
    if STRICT and seconds is not None:
        assert found.seconds <= seconds
