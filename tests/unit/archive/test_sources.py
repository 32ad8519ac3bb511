"""Which sources a bucket has."""

from binlog2s3.archive.sources import all_sources, sources
from tests.memory_store import MemoryStore


def test_the_sources_of_a_bucket() -> None:
    """Each once, whether it has an archive yet or not; what is no source's name is foreign."""
    store = MemoryStore()
    strange = ("archive/../", "archive/a b/", "archive/file", f"archive/{'l' * 65}/")
    for key in ("archive/orders/x", "archive/B-_/x", "archive/b.c/x", "archived/other/x",
                "live/orders/x", "live/users/x", "live/a file",
                *(f"{one}x" if one.endswith("/") else one for one in strange)):  # fmt: skip
        store.put(f"p/{key}", b"")
    store.put("q/archive/other/x", b"")
    names, foreign = sources(store, "p")
    assert (sorted(names), sorted(foreign)) == (
        ["B-_", "b.c", "orders"],
        sorted(f"p/{one}" for one in strange),
    )
    names, foreign = all_sources(store, "p")
    assert sorted(names) == ["B-_", "b.c", "orders", "users"]
    assert sorted(foreign) == sorted([*(f"p/{one}" for one in strange), "p/live/a file"])
