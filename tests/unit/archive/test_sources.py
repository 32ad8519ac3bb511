"""Which sources a bucket has."""

from binlog2s3.archive.sources import all_sources, nothing_of, sources
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


def test_where_to_look() -> None:
    """For a name that is not there, ten others; a streamer that has only begun is waited for."""
    store = MemoryStore()
    store.put("p/live/orders/writers/1", b"")
    asked = {name: nothing_of(store, "p", name, "s3://b/p").hint for name in ("orders", "oders")}
    assert asked == {
        "orders": "its streamer has begun, and the bucket has no binlog of it yet: try again soon",
        "oders": "the sources there are: orders",
    }
    for number in range(11):
        store.put(f"p/{'archive' if number % 2 else 'live'}/db{number:02}/x", b"")
    names = ", ".join(f"db{number:02}" for number in range(10))
    hint = nothing_of(store, "p", "x", "s3://b/p").hint
    assert hint == f"the sources there are: {names} and 2 more"
