"""`binlog2s3 stream`: how its process begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


LOADED = """
import sys
from binlog2s3.cli.main import main
try:
    main(["stream", "--source", "orders"])
except SystemExit:
    print(sorted({"binlog2s3.cli.commands"} & sys.modules.keys()))
"""


@pytest.mark.parametrize("variable", ["BINLOG2S3_MYSQL_HOST", "BINLOG2S3_LISTEN"])
def test_a_start_does_without_the_other_commands(variable: str) -> None:
    """Unless a variable has to be compared with their options."""
    environment = {name: text for name, text in os.environ.items() if "BINLOG2S3_" not in name}
    done = subprocess.run(
        [sys.executable, "-c", LOADED], env={**environment, variable: "db1"},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    needed = ["binlog2s3.cli.commands"] if variable == "BINLOG2S3_LISTEN" else []
    assert done.stdout == f"{needed}\n", done.stderr


METRICS = """
from binlog2s3.cli.main import main
try:
    main(["stream", "--source", "orders"])
except SystemExit:
    from binlog2s3.status.metrics import Timings
    Timings().requested("PUT", "200", 0.1)
    print("counted")
"""


@pytest.mark.parametrize("name", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_metrics_are_not_kept_in_files(name: str, tmp_path: Path) -> None:
    """Not even where the environment says so, for another program: it may be missing."""
    done = subprocess.run(
        [sys.executable, "-c", METRICS],
        env={**os.environ, name: str(tmp_path / "missing")},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == "counted\n", done.stderr
