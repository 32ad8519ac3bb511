"""What `status` says of drills: the last proof, a failure, and a proof that is too old."""

from dataclasses import replace
from datetime import timedelta

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.retain.window import proofs_of, with_proofs
from binlog2s3.status.model import document, drill_of, from_document
from binlog2s3.status.text import fields_of
from lab.status_examples import IDLE
from tests.documents import DRILL
from tests.memory_store import MemoryStore

FAILED = replace(DRILL, outcome="failed", step="restore", error="status 3", proven_until=None)


@pytest.mark.parametrize(
    ("age", "most", "text"),
    [
        (3600, 7200.0, ""),
        (7201, 7200.0, "old, more than 2 h"),
        (7201, None, ""),
        (None, 7200.0, "no recovery was ever proved"),
    ],
)
def test_a_proof_can_be_too_old(age: int | None, most: float | None, text: str) -> None:
    """Only if --drill-max-age says how old it may be."""
    store, layout = MemoryStore(), Layout("", "orders")
    status = replace(IDLE, source="orders", at=DRILL.finished_at)
    if age is not None:
        store.put(layout.drill(DRILL.id), DRILL.to_json())
        status = replace(status, at=DRILL.finished_at + timedelta(seconds=age))
    proofs = proofs_of(Catalog(store, layout), None)
    found = with_proofs(status, proofs, max_age=None, drill_max_age=most)
    texts = [one.text for one in found.all_troubles]
    assert len(texts) == bool(text)
    assert all(text in one for one in texts)


def test_a_failure_is_forgotten_when_a_later_drill_has_proved() -> None:
    """Although the streamer that answers has not looked since."""
    store, layout = MemoryStore(), Layout("", "orders")
    old = replace(IDLE, source="orders", drill=drill_of(FAILED, None, None)).all_troubles
    said = replace(IDLE, source="orders", drill=drill_of(FAILED, None, None), troubles=old)
    assert [(one.code, one.level) for one in old] == [("drill", "warning")]
    assert from_document(document(said)).all_troubles == old
    store.put(layout.drill(DRILL.id), DRILL.to_json())
    found = with_proofs(said, proofs_of(Catalog(store, layout), None), max_age=None)
    assert found.all_troubles == ()
    later = replace(FAILED, id="20270102T031244Z-5a6b7c8d")
    store.put(layout.drill(later.id), later.to_json())
    found = with_proofs(said, proofs_of(Catalog(store, layout), None), max_age=None)
    assert [one.text for one in found.all_troubles] == [one.text for one in old]


def test_a_doubt_stands_beside_the_proof() -> None:
    """As pitr has said it; a result of an older version has none."""
    doubted = replace(DRILL, doubts=("the rows may be others",))
    for result, shown in ((doubted, ["but for a doubt: the rows may be others"]), (DRILL, [])):
        status = replace(IDLE, source="orders", drill=drill_of(result, result, None))
        assert from_document(document(status)).drill == status.drill
        assert [text for _, text, _ in fields_of(status) if "doubt" in text] == shown
