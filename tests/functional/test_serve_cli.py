"""`binlog2s3 serve` of a directory, as users start it: what it refuses, and how it ends."""

import json
import os
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from binlog2s3.recover.manifest import MANIFEST, Manifest, WrittenFile
from lab.child import free_port
from lab.pitr_examples import LINEAGE, PLAN
from tests import command
from tests.waiting import PATIENCE

HUGE = 1 << 36


def words(place: Path, *what: str) -> tuple[str, ...]:
    password = place / "password"
    password.write_text("x")
    listen = f"--listen=127.0.0.1:{free_port()}"
    return ("serve", listen, "--user=u", f"--password-file={password}", *what)


def test_one_thing_is_served(tmp_path: Path) -> None:
    """Exit 3: a bucket, what pitr wrote, or a server's own binlogs; and what is there."""
    for what, said in (
        ((f"--dir={tmp_path}", f"--binlog-dir={tmp_path}"), "serve one directory"),
        ((f"--binlog-dir={tmp_path}", "--source=a"), "serve a bucket or a directory"),
        ((f"--dir={tmp_path}", "--lineage=a"), "serve a bucket or a directory"),
        (("--binlog-dir=/no/such",), "/no/such: no such file or directory"),
        ((), "--source is missing (or --dir, --binlog-dir)"),
    ):
        done = command.start(*words(tmp_path, *what))
        assert done.returncode == 3
        assert said in done.stderr


@pytest.mark.parametrize("option", ["dir", "binlog-dir"])
def test_a_directory_that_is_not_served(tmp_path: Path, option: str) -> None:
    """Exit 8, with what it is and what to do."""
    (tmp_path / "d").mkdir()
    done = command.start(*words(tmp_path, f"--{option}={tmp_path / 'd'}"))
    ended = json.loads(done.stderr)
    assert done.returncode == 8
    assert str(tmp_path / "d") in ended["error"]
    assert "--output-dir" in ended["hint"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_while_files_are_checked(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """It ends at once, and as it would later."""
    place = tmp_path / "d"
    piece = replace(PLAN.pieces[0], begin=4, end=HUGE)
    file = WrittenFile.of(piece, HUGE, 0)
    manifest = Manifest(
        source="orders", flavour="mysql", server_version="9.7.0", lineage=LINEAGE,
        written_at=datetime.now(UTC), gtids_before=None, gtids_added=None,
        gtids_skipped=None, files=(file,),
    )  # fmt: skip
    (place / LINEAGE).mkdir(parents=True)
    (place / MANIFEST).write_bytes(manifest.to_json())
    (place / file.name).touch()
    os.truncate(place / file.name, HUGE)  # it takes no space
    argv = command.argv(*words(tmp_path, f"--dir={place}"))
    with subprocess.Popen(
        argv, env=command.environment(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            assert "checking the files" in process.stderr.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE) == code
            assert process.stderr.read() == ""
        finally:
            process.kill()
