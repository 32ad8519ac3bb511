"""File systems of a few megabytes, which fill up; only root may mount them."""

import os
import subprocess
from pathlib import Path

import pytest


def mount(*words: str | Path) -> "subprocess.CompletedProcess[bytes]":
    """As the command."""
    return subprocess.run(["mount", *words], capture_output=True, check=False)


def mount_small(place: Path, size: int) -> None:
    """Make the directory, and mount one of so many bytes there.

    Where that may not be, the test is skipped on a laptop and fails where CI is set.
    """
    place.mkdir()
    done = mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", place)
    if done.returncode and not os.environ.get("CI"):
        pytest.skip(f"cannot mount: {done.stderr.decode()}")
    assert done.returncode == 0, done.stderr
