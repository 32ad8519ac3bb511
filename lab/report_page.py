"""The page of docs/guides/report.md: what `report` writes of a bucket with a bit of everything.

    python -m lab.report_page FILE

The pictures in docs/images/ are a browser's of it: 1000 pixels wide, and 390, dark.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.config.outside import Outside
from binlog2s3.config.report import ReportConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.report.command import run
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import BACKUP, DRILL
from tests.golden.buckets import DAY, Golden, Source, golden, name
from tests.snapshots import LAYOUT

_BEGIN = datetime(2026, 10, 6, 3, 4, 5, tzinfo=UTC)


def example() -> Golden:
    """A month: a gap, base backups each week, drills, a fail-over."""
    source = Source(step=timedelta(hours=4), begin=_BEGIN)
    source.closes(8)
    end = source.ends()
    source.gno += 5
    source.at += 2 * DAY
    source.continues(11, join="gap", missing=f"{UUID_A}:28-32", **end)
    source.closes(6)
    _week(source, "first-sunday", 4)
    source.closes(9)
    _week(source, "second-sunday", 4)
    old = source.grows()
    source.gno -= 1
    at_cut, number = source.executed, source.number
    source.before, source.gno = at_cut, 0
    source.continues(
        1,
        uuid=UUID_B,
        binlog=str(name(number)),
        offset=old.transactions[-2].end,
        gtid_set=at_cut,
    )
    source.closes(6)
    _week(source, "third-sunday", 18)
    source.grows()
    source.beats(behind=900)
    return golden(source)


def _week(source: Source, label: str, binlogs: int) -> None:
    """A base backup is registered now; a drill has proved it so many binlogs later."""
    backup = replace(
        BACKUP,
        id=f"{source.at:%Y%m%dT%H%M%SZ}-1f2e3d4c",
        label=label,
        location=f"s3://acme-backups/{label}",
        gtid_set=source.executed,
        binlog=None,
        position=None,
        lineage=None,
        taken_at=source.at,
        registered_at=source.at,
        checked=True,
    )
    source.put(LAYOUT.backup(backup.id), backup.to_json())
    source.closes(binlogs)
    _drill(source, backup)


def _drill(source: Source, backup: Backup) -> None:
    drill = replace(
        DRILL,
        id=f"{source.at:%Y%m%dT%H%M%SZ}-1f2e3d4c",
        backup=backup.id,
        label=backup.label,
        restored="its GTIDs",
        started_at=source.at - timedelta(minutes=41),
        proven_until=source.at - timedelta(minutes=42),
        finished_at=source.at,
    )
    source.put(LAYOUT.drill(drill.id), drill.to_json())


def main(file: Path) -> None:
    """Write the page."""
    found = example()
    outside = Outside(now=lambda: found.now, session=found.client.session)
    s3 = S3Config(bucket="acme", prefix="pre")
    run(ReportConfig(s3=s3, source=found.source, html=file, backup_max_age=7 * 86400.0), outside)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
