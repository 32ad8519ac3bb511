"""A restore for programs: what `restore --json` prints, before it and after it.

Fields are only added. Sizes are in bytes, times ISO 8601 in UTC.
"""

from binlog2s3.archive.codec import AsText, Printed, When, of
from binlog2s3.recover.document import PrintedPlan


class PrintedChoice(Printed):
    """What --dry-run prints."""

    source: str
    data_dir: AsText
    backup: str = of("backup.id")
    label: str = of("backup.label")
    tool: str = of("backup.tool")
    backup_bytes: int | None = of("backup.stored.size")
    needed_bytes: int | None
    free_bytes: int | None
    last_drill_seconds: float | None
    continues: str | None = of("left.stage")
    plan: PrintedPlan


class PrintedRestore(Printed):
    """What is printed once it is restored."""

    source: str
    goal: str
    data_dir: AsText
    backup: str = of("reached.backup")
    label: str = of("reached.label")
    restored: str = of("reached.restored")
    server_version: str = of("reached.server_version")
    flavour: str = of("reached.flavour")
    lineage: str = of("reached.lineage")
    binlog: str = of("reached.binlog")
    position: int = of("reached.position")
    transactions: int = of("reached.transactions")
    is_proved: bool = of("reached.is_proved")
    proof: tuple[str, ...] = of("reached.proof")
    doubts: tuple[str, ...] = of("reached.doubts")
    events: tuple[str, ...] = of("reached.events")
    prepared: tuple[str, ...] = of("reached.prepared")
    without_history: tuple[str, ...] = of("reached.without_history")
    only_tables: tuple[str, ...] | None
    started_at: When
    finished_at: When
    socket: AsText | None
