"""A command that prints the password: one line, within its time, and never in an error."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.config.stream import MysqlConfig
from binlog2s3.errors import SourceError
from binlog2s3.server.login import resolve
from binlog2s3.server.password_command import password_of
from tests.waiting import wait_until

SECRET = "Hidden-Word"


def python(script: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-c", script, *arguments])


def refused(command: str, seconds: float = 60) -> SourceError:
    with pytest.raises(SourceError) as caught:
        password_of(command, timeout_seconds=seconds)
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    return caught.value


@pytest.mark.parametrize(
    "printed", ['it\'s "€"', f"{SECRET}\n", f"{SECRET}\r\n", " x ", "a" * 2000]
)
def test_what_it_prints(printed: str) -> None:
    """Everything but the end of its line."""
    found = password_of(
        python("import sys; print(sys.argv[1], end='')", printed), timeout_seconds=60
    )
    assert found == printed.rstrip("\r\n")


def test_no_shell_reads_it(tmp_path: Path) -> None:
    """What a shell would expand or run is an argument."""
    script = "import sys; print('|'.join(sys.argv[1:]))"
    words = f"{python(script)} $HOME '*' ; touch {tmp_path}/x"
    assert password_of(words, timeout_seconds=60) == f"$HOME|*|;|touch|{tmp_path}/x"
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("script", "says", "transient"),
    [
        (
            f"import sys; print('{SECRET}'); sys.exit(f'{SECRET} is wrong')",
            "exited with status 1",
            True,
        ),
        ("pass", "printed nothing", True),
        ("print()", "printed nothing", True),
        (f"print('{SECRET}\\nsecond')", "more than one line", False),
        (f"print('{SECRET}\\0')", "more than one line", False),
        ("import sys; sys.stdout.buffer.write(b'\\xff')", "no UTF-8", False),
        ("import sys; sys.stdout.write('x' * (1 << 20))", "more than 64 KiB", False),
        ("while True: print('x' * 100)", "more than 64 KiB", False),
        ("import os; os.kill(os.getpid(), 9)", "exited with status -9", True),
    ],
)
def test_what_is_no_password(script: str, says: str, *, transient: bool) -> None:
    """Its output is not repeated; what may pass by itself is tried again."""
    error = refused(python(script))
    assert says in str(error)
    assert error.transient is transient
    assert "by hand" in error.hint


@pytest.mark.parametrize("command", ["/nowhere/token", "/", "no-such-program-here x"])
def test_a_command_that_cannot_be_run(command: str) -> None:
    """Waiting does not help."""
    error = refused(command)
    assert "cannot be run" in str(error)
    assert not error.transient


def test_its_time_is_limited(tmp_path: Path) -> None:
    """It and what it started are killed, also where it has ended and left that with its output."""
    note = tmp_path / "pid"
    child = f"import os, signal; open({str(note)!r}, 'w').write(str(os.getpid())); signal.pause()"
    starts = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}])"
    error = refused(python(starts), 3)
    assert "within 3 s" in str(error)
    assert error.transient

    def is_gone() -> bool:
        try:
            return (
                Path(f"/proc/{note.read_text()}/stat").read_text().rpartition(")")[2].split()[0]
                == "Z"
            )
        except FileNotFoundError:
            return True

    wait_until(is_gone, what="what it started is killed")


def test_each_login_asks_again(tmp_path: Path) -> None:
    """A token that has expired is never used twice; its name has the target's prefix there."""
    tokens = tmp_path / "tokens"
    tokens.write_text("one\ntwo\n")
    script = (
        "import sys, pathlib; p = pathlib.Path(sys.argv[1]); first, *rest = p.read_text().split(); "
        "p.write_text(' '.join(rest)); print(first)"
    )
    config = MysqlConfig(user="repl", password_command=python(script, str(tokens)))
    assert [resolve(config).password, resolve(config).password] == ["one", "two"]
    broken = replace(config, prefix="target", host="db1", password_command="/nowhere/x")
    with pytest.raises(SourceError) as caught:
        resolve(broken)
    assert "--target-password-command" in caught.value.hint
