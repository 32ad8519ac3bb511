"""`binlog2s3 stream`: how its process begins."""

import subprocess
import sys

PROCESS = """
import gc
from binlog2s3.cli.main import main
try:
    main(["stream", "--source", "orders"])
except SystemExit as ended:
    print(ended.code, gc.isenabled(), gc.get_freeze_count() > 10_000, gc.get_stats()[2])
"""


def test_modules_are_not_looked_through_for_garbage() -> None:
    """Not while they are loaded, and not later; what is made later is."""
    done = subprocess.run(
        [sys.executable, "-c", PROCESS], check=False, capture_output=True, text=True, timeout=60
    )
    code, enabled, frozen, full = done.stdout.split(maxsplit=3)
    assert (code, enabled, frozen) == ("3", "True", "True")
    assert "'collections': 0" in full
