"""What most tests of the stream begin with."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from binlog2s3.stream.spool import Spool
from tests.memory_store import MemoryStore
from tests.streamer import World
from tests.unit.stream.builders import spool_in


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A spool that nobody has used."""
    with closing(spool_in(tmp_path / "new" / "spool")) as made:
        yield made


@pytest.fixture
def store() -> MemoryStore:
    """An empty bucket."""
    return MemoryStore()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A world whose streamers end with the test."""
    with closing(World(tmp_path)) as made:
        yield made
