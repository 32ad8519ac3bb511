"""The lab's containers: nothing outlives who made them, and nothing of them is found elsewhere."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab import images
from lab.containers import Engine, compose, tools
from lab.disk import temporary_directory
from tests.conftest import _had
from tests.waiting import wait_until

pytestmark = pytest.mark.deploy

ROOT = Path(__file__).parents[2]
MAKER = """
import sys, time
from pathlib import Path
from lab import images
from lab.containers import Engine
with Engine(Path(sys.argv[1])) as engine:
    images.make(engine, [images.PYTHON])
    engine.podman("run", "--detach", "--name=left", "--volume=kept:/v", images.PYTHON,
                  "sleep", "98765")
    print("up", flush=True)
    time.sleep(600)
"""


def sleepers() -> list[int]:
    """The processes of the container that was left, as the machine sees them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = path.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if argv[:2] == [b"sleep", b"98765"]:
            found.append(int(path.parent.name))
    return found


def mounts() -> set[str]:
    """Where the machine has something mounted."""
    return {line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()}


def test_a_kill_9_leaves_nothing() -> None:
    """Its containers end with it; the next engine has neither them nor their volumes."""
    _had(tools)
    _had(compose)
    places = [Path("/run/containers"), Path("/run/netns"), Path("/etc/containers")]
    before = mounts(), [place.exists() for place in places]
    with temporary_directory() as directory:
        argv = [sys.executable, "-c", MAKER, str(directory / "first")]
        with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as maker:
            assert maker.stdout is not None
            if maker.stdout.readline() != "up\n":
                _had(lambda: Engine(directory / "why").up())
                pytest.fail("the engine did not come up")
            assert sleepers()
            assert (mounts(), [place.exists() for place in places]) == before
            os.kill(maker.pid, signal.SIGKILL)
        wait_until(lambda: not sleepers(), what="the container has ended")
        with Engine(directory / "second") as engine:
            assert engine.has_image(images.PYTHON)
            assert engine.podman("ps", "--all", "--quiet") == ""
            assert engine.podman("volume", "ls", "--quiet") == ""
        assert (mounts(), [place.exists() for place in places]) == before
