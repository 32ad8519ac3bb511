"""The command as a user meets it: a real process, its exit code and what it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from binlog2s3 import __version__
from tests.command import Done
from tests.command import start as run

LEAST = ("--source=orders", "--s3-url=s3://bucket/p", "--mysql-user=repl")


def errors(done: Done) -> list[str]:
    """What it prints as `error:`; and that it prints nothing else but one hint."""
    *lines, last = done.stderr.splitlines()
    assert last.startswith("hint: ")
    assert all(line.startswith("error: ") for line in lines), done.stderr
    return [line.removeprefix("error: ") for line in lines]


def test_the_commands_fit_their_lines() -> None:
    """In 80 columns no summary of a command is cut off."""
    done = run("-h", COLUMNS="80")
    commands = done.stdout.split("Commands:\n")[1].split("\n\n")[0].splitlines()
    assert len(commands) >= 10
    assert [line for line in commands if not line.endswith(".") or line.endswith("...")] == []


@pytest.mark.parametrize("command", [("-h",), ("stream", "-h"), ("stream", "--help")])
def test_help(command: tuple[str, ...]) -> None:
    """Group and command have -h and --help, with examples that can be copied and exit codes."""
    done = run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Examples:\n" in done.stdout
    assert "\n    binlog2s3 stream --source orders-primary" in done.stdout
    assert "\n    --" not in done.stdout.split("Examples:")[1]
    assert "Exit codes:\n" in done.stdout
    assert "\\b" not in done.stdout


def test_version() -> None:
    """--version prints it, whatever an image may have set BINLOG2S3_VERSION to."""
    for option in ("-V", "--version"):
        done = run(option, BINLOG2S3_VERSION="1.2.3")
        assert (done.returncode, done.stdout) == (0, f"binlog2s3, version {__version__}\n")
    assert run("stream", BINLOG2S3_VERSION="1.2.3").returncode == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("strem",), "Did you mean stream?"),
        (("recover",), "Did you mean pitr?"),
        (("backup",), "Choose from: add, run, list, get, remove"),
        (("zzz",), "No such command 'zzz'."),
        (("stream", "--sorce=x"), "--source"),
        (("stream", "--zzz"), "No such option"),
        (("--sorce",), "No such option"),
        (("stream", "--source"), "requires an argument"),
        (("stream", "--take-over=true"), "does not take a value"),
        (("stream", "orders"), "unexpected extra argument"),
    ],
)
def test_usage(arguments: tuple[str, ...], words: str) -> None:
    """An unknown command or option is exit 2, with what may have been meant."""
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_command_the_help_is_shown() -> None:
    """As -h shows it, but that is a usage error."""
    done = run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == run("-h").stdout


@pytest.mark.parametrize("words", [["-h"], ["health", "--spool=/dev/null/spool"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nobody_reads_the_output(words: list[str], unbuffered: str) -> None:
    """It ends quietly, as `cat` does: not with the 1 of a defect."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "binlog2s3", *words],
            stdout=closed,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_bytes_that_are_no_text() -> None:
    """Arguments need not be UTF-8, and do not reach the terminal as they are."""
    names = (b"source", b"mysql-host", b"s3-url", b"start-binlog", b"concurrency")
    for value in (b"\xff\xfe", b"\x1b[31m"):
        done = run("stream", "--mysql-user=u", *(b"--" + name + b"=" + value for name in names))
        assert done.returncode == 3
        assert len(errors(done)) == len(names)
        assert "\x1b" not in done.stderr


def test_what_ends_the_stream_is_logged_and_gives_its_exit_code(tmp_path: Path) -> None:
    """A server that refuses: exit 4, one JSON line with message and hint."""
    done = run(
        "stream",
        *LEAST,
        f"--spool={tmp_path}",
        "--mysql-host=127.0.0.1",
        "--mysql-port=1",
        "--region=eu-central-1",
    )
    assert done.returncode == 4
    line = json.loads(done.stderr.splitlines()[-1])
    assert (line["event"], line["level"], line["exit_code"]) == ("process_ended", "error", 4)
    assert "127.0.0.1:1" in line["error"]
    assert line["hint"]


def test_the_log_follows_its_options(tmp_path: Path) -> None:
    """--log-format text writes no JSON; a spool that cannot be made is exit 5."""
    (tmp_path / "file").touch()
    done = run("stream", *LEAST, f"--spool={tmp_path / 'file'}", "--log-format=text")
    assert done.returncode == 5
    assert " ERROR   ended  " in done.stderr
