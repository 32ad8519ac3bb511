"""Which sources a bucket has."""

import pytest

from binlog2s3.archive.sources import all_sources, sources
from tests.memory_store import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    """With one source that has an archive, one that has only begun, and what is neither."""
    store = MemoryStore()
    for key in (
        "p/archive/orders/x",
        "p/live/orders/x",
        "p/live/users/x",
        "p/archive/No Source/x",
        "p/live/a file",
        "q/archive/other/x",
    ):
        store.put(key, b"")
    return store


def test_the_sources_of_a_bucket(store: MemoryStore) -> None:
    """Each once, whether it has an archive yet or not; nothing else is one."""
    assert sources(store, "p") == (["orders"], ["p/archive/No Source/"])
    names, foreign = all_sources(store, "p")
    assert names == ["orders", "users"]
    assert foreign == ["p/archive/No Source/", "p/live/a file"]
