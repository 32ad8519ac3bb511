"""The engine of restores, on a bucket that changes meanwhile."""

from dataclasses import replace
from pathlib import Path

from binlog2s3.archive.catalog import Catalog
from binlog2s3.config.goal import Latest
from binlog2s3.config.restore import Restoring
from binlog2s3.config.stream import S3Config
from binlog2s3.recover.events import Event
from binlog2s3.recover.model import Request
from binlog2s3.recover.reach import plan_for
from binlog2s3.restore.engine import Choice, Engine
from binlog2s3.restore.workspace import Workspace
from tests.documents import BACKUP
from tests.golden.buckets import UUID_A, fork
from tests.snapshots import LAYOUT, Bucket


def test_the_status_of_events_after_a_fail_over_in_the_middle(tmp_path: Path) -> None:
    """The place that was reached is in the new primary's lineage, which the choice did not know."""
    bucket = Bucket()
    bucket.restore(fork().client.store.contents())
    snapshot = bucket.snapshot()
    old, new = snapshot.lineages
    backup = replace(BACKUP, gtid_set=f"{UUID_A}:1-4", binlog=None, position=None, lineage=None)
    before, after = (
        plan_for(backup, Request(goal=Latest(), lineage=one.id), snapshot) for one in (old, new)
    )
    assert (before.stop.lineage, after.stop.lineage) == (old.id, new.id)
    engine = Engine(
        Restoring(
            s3=S3Config(bucket="b", prefix="pre"),
            source="orders",
            goal=Latest(),
            mysqld=tmp_path / "mysqld",
        ),
        Catalog(bucket, LAYOUT),
        Workspace(tmp_path, "restore.json"),
        backup.id,
        Choice(backup=backup, plan=before, version="9.7.4", tz=None, is_position_sure=True),
    )
    event = Event("shop", "nightly", "root@%", "enabled")
    assert engine.statuses((event,), after).of(event) == "enabled"
