"""What `restore --json` prints is as it always was, field by field and byte by byte."""

import json
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.archive.codec import as_fields, hints_of, printed
from binlog2s3.formatting import iso_text
from binlog2s3.restore.document import PrintedChoice, PrintedRestore
from binlog2s3.restore.engine import Reached

BEGAN, ENDED = (
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    datetime(2026, 1, 2, 4, 4, 5, 6, tzinfo=UTC),
)
REACHED = Reached(
    backup="20260102T030405Z-aabbccdd",
    label="n\u00e4chtlich",
    restored="its GTIDs",
    server_version="9.7.4",
    flavour="mysql",
    lineage="20260102T030405Z-3e11fa47-0001",
    binlog="mysql-bin.000042",
    position=1234,
    transactions=7,
    is_proved=True,
    proof=("one", "two"),
    prepared=("'x'",),
    without_history=("shop.v",),
)


def test_a_restore_is_printed_as_before() -> None:
    """Every field of what was reached, in its order."""
    for socket, tables in ((None, ()), (Path("/data/mysqld.sock"), ("shop.orders",))):
        said = {
            "source": "orders",
            "goal": "to the end",
            "data_dir": "/data",
            **as_fields(REACHED),
            "only_tables": list(tables) or None,
            "started_at": iso_text(BEGAN),
            "finished_at": iso_text(ENDED),
            "socket": str(socket) if socket is not None else None,
        }
        of = {
            "source": "orders",
            "goal": "to the end",
            "data_dir": Path("/data"),
            "reached": REACHED,
            "only_tables": tables or None,
            "started_at": BEGAN,
            "finished_at": ENDED,
            "socket": socket,
        }
        assert printed(PrintedRestore, of) == json.dumps(said, indent=1)


def test_what_a_dry_run_prints_has_its_fields_in_this_order() -> None:
    """Programs read them."""
    assert list(hints_of(PrintedChoice)) == [
        "source", "data_dir", "backup", "label", "tool", "backup_bytes", "needed_bytes",
        "free_bytes", "last_drill_seconds", "continues", "plan",
    ]  # fmt: skip
