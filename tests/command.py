"""binlog2s3 as users start it: a process of its own, which knows nothing of our settings."""

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict

from binlog2s3.config.timing import DEFAULT, Timing


def argv(*arguments: str, timing: Timing = DEFAULT) -> list[str]:
    """The words that start it, with other times of its own where they are given."""
    timed = ["tests.timed", json.dumps(asdict(timing))]
    program = ["binlog2s3"] if timing == DEFAULT else timed
    return [sys.executable, "-m", *program, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Ours, without settings of binlog2s3 and AWS, with these."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
    return given | more


def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """To its end, with `more` in its environment; it never shows a traceback."""
    done = subprocess.run(
        argv(*arguments),
        capture_output=True,
        check=False,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=180,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def error(done: "subprocess.CompletedProcess[str]") -> tuple[int, str, str]:
    """Exit code, message and hint of one that ended with one error."""
    found = re.search(r"^error: (.*)\nhint: (.*)\n\Z", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return done.returncode, found[1], found[2]
