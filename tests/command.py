"""binlog2s3 as users call it: a process of its own, which knows nothing of our settings."""

import atexit
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache

from binlog2s3.config.outside import DEFAULT, Timing
from tests.forked import Server

Done = subprocess.CompletedProcess[str]
SECONDS = 180


def argv(*arguments: str, timing: Timing = DEFAULT) -> list[str]:
    """The words that start it, with other times of its own where they are given."""
    timed = ["tests.timed", json.dumps(asdict(timing))]
    program = ["binlog2s3"] if timing == DEFAULT else timed
    return [sys.executable, "-m", *program, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Ours, without settings of binlog2s3 and AWS, with these."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
    return given | more


def run(*arguments: str, **more: str) -> Done:
    """To its end, with `more` in its environment; it never shows a traceback."""
    return run_in(environment(**more), *arguments)


def run_in(given: Mapping[str, str], *arguments: str, timeout: float = SECONDS) -> Done:
    """To its end, in just this environment: a fork (tests/forked.py) where that is the same."""
    if not _server().serves(given):
        return start_in(given, *arguments, timeout=timeout)
    return _checked(_server().run(arguments, given, timeout))


def start(*arguments: str, **more: str) -> Done:
    """As `run`, but always started by the words that users start it with."""
    return start_in(environment(**more), *arguments)


def start_in(given: Mapping[str, str], *arguments: str, timeout: float = SECONDS) -> Done:
    """As `run_in`, but always started."""
    return _checked(
        subprocess.run(
            argv(*arguments),
            capture_output=True,
            check=False,
            env=given,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
        )
    )


@cache
def _server() -> Server:
    made = Server()
    atexit.register(made.close)
    return made


def _checked(done: "subprocess.CompletedProcess[bytes]") -> Done:
    """As text."""
    out, err = (io.TextIOWrapper(io.BytesIO(one)).read() for one in (done.stdout, done.stderr))
    assert "Traceback" not in err, err
    return subprocess.CompletedProcess(done.args, done.returncode, out, err)


def error(done: Done) -> tuple[int, str, str]:
    """Exit code, message and hint of one that ended with one error."""
    found = re.search(r"^error: (.*)\nhint: (.*)\n\Z", done.stderr, re.MULTILINE)
    assert found, done.stderr
    return done.returncode, found[1], found[2]
