"""Garbage in place of a document: `verify` names it, and no command ends in a traceback."""

from collections.abc import Mapping

import pytest

from tests.damage import LAYOUT, OLD, name
from tests.documents import UUID
from tests.golden.buckets import damaged_by
from tests.golden.outputs import called

GARBAGE: Mapping[str, tuple[str, str]] = {
    "an entry": (LAYOUT.entry(OLD, name(2)), "entry-unreadable"),
    "a lineage.json": (LAYOUT.lineage(OLD), "lineage-unreadable"),
    "a writer's object": (LAYOUT.writer(1, "9c2d41aa"), "writer-unreadable"),
}
WHERE = ("--s3-url=s3://acme/pre", "--source=test")


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_never_ends_in_a_traceback(what: str) -> None:
    """The other commands show what they can, or say what is wrong."""
    key, kind = GARBAGE[what]
    golden = damaged_by()
    golden.client.store.put(key, b"\xff{")
    for deep in ((), ("--deep",)):
        done = called(golden, ["verify", *WHERE, *deep])
        assert (done.code, done.err) == (7, "")
        assert f"DEFECT {kind}: {key}" in done.out
        assert "to do: " in done.out.split(f"DEFECT {kind}: {key}")[1]
    plan = (f"--from-gtid-set={UUID}:1-4", "--latest", "--dry-run", "--output-dir=/dev/null/o")
    for command, more in (
        ("list", ()),
        ("status", ("--from=bucket",)),
        ("find", ()),
        ("pitr", plan),
    ):
        done = called(golden, [command, *WHERE, *more])
        assert done.code in (0, 7, 8)
        assert (done.code == 0) == ("error: " not in done.err)
