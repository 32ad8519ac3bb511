"""`status` and `health` as a user meets them: real processes, beside a streamer that was made up.

The bucket is moto's; the streamer is a listener on a spool's socket that tells a fixed Status.
"""

import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from binlog2s3.cli.status import StatusSource
from binlog2s3.config.given import Given
from binlog2s3.config.status import STATUS
from binlog2s3.errors import ConfigError
from binlog2s3.status.ask import SOCKET
from binlog2s3.status.http import Listener, applications
from binlog2s3.status.model import BackupsStatus, Status, Trouble
from binlog2s3.status.page import ReportPage
from lab.s3 import REGION, MotoServer
from lab.status_examples import IDLE
from tests import command
from tests.command import argv, environment
from tests.functional.open_archive import OpenArchive
from tests.waiting import wait_until

CRITICAL = Trouble(code="store", level="critical", text="access denied", hint="allow it")
WARNING = Trouble(code="starting", level="warning", text="not streaming yet")


def run(
    *arguments: str, moto: MotoServer | None = None, **more: str
) -> "subprocess.CompletedProcess[str]":
    return command.run(*arguments, **(moto.env() if moto else {}), **more)


class Streamer:
    """Tells `status`, of this very moment, on the socket of a spool."""

    def __init__(self, spool: Path, status: Status) -> None:
        self.status = status
        self._listener = Listener(
            applications(lambda: replace(self.status, at=datetime.now(UTC)), page=ReportPage(()))
        )
        self._listener.listen_socket(spool)

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    directory = tmp_path / "spool"
    directory.mkdir()
    return directory


@pytest.fixture
def streamer(spool: Path) -> Iterator[Streamer]:
    with closing(Streamer(spool, IDLE)) as found:
        yield found


@pytest.fixture
def bucket(moto: MotoServer) -> OpenArchive:
    """Its streamer has said something now, and that for an hour."""
    now = datetime.now(UTC)
    hourly = {"state": "idle", "interval_seconds": 3600.0, "status": None}
    return OpenArchive(moto, ["DROP TABLE t"], at=now, covered_until=now, server=None, **hourly)


# The streamer


def test_another_streamer_than_was_asked_for(spool: Path, streamer: Streamer) -> None:
    """Of another source, or into another bucket: exit 3 with both names; --check is UNKNOWN."""
    for options, names in (
        (("--source", "stock"), ("orders-primary", "stock")),
        (("--s3-url", "s3://other"), (streamer.status.target, "s3://other")),
    ):
        done = run("status", "--spool", str(spool), *options)
        assert (done.returncode, done.stdout) == (3, "")
        assert all(name in done.stderr.splitlines()[0] for name in names)
        done = run("status", "--spool", str(spool), *options, "--check")
        assert (done.returncode, done.stderr) == (3, "")
        assert done.stdout.startswith("BINLOG2S3 UNKNOWN - ")


@pytest.mark.usefixtures("streamer")
def test_a_spool_that_was_not_named_is_passed_over(spool: Path) -> None:
    """If its streamer is another one: the bucket is asked, and this is why."""
    values = {"source": "stock", "s3-url": "s3://bucket", "spool": spool}
    config, _ = STATUS.build(Given(values))
    assert config is not None
    with StatusSource(replace(config, spool_given=False)) as looks:
        assert str(looks._ask()) == f"{spool} is the spool of source orders-primary, not stock"
    with StatusSource(config) as looks, pytest.raises(ConfigError, match="not stock"):
        looks.look()


def test_a_bucket_that_does_not_answer_is_not_called_empty(spool: Path, streamer: Streamer) -> None:
    """The streamer's own look at the base backups is old: the reason is shown instead."""
    streamer.status = replace(streamer.status, backups=BackupsStatus())
    bucket = ("--s3-url", streamer.status.target, "--endpoint-url", "http://127.0.0.1:1")
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    done = command.run(
        "status", "--spool", str(spool), "--source", "orders-primary", *bucket, **keys
    )
    assert done.returncode == 0, done.stderr
    assert "none known: cannot reach the store at http://127.0.0.1:1" in done.stdout


def test_nobody_answers_and_no_bucket_is_named(spool: Path) -> None:
    """Exit 7, with what to do; all sources are in a bucket alone."""
    done = run("status", "--all")
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "error: --s3-url is missing")
    for options in ((), ("--from", "daemon"), ("--from", "daemon", "--s3-url", "s3://bucket")):
        done = run("status", "--spool", str(spool), *options)
        assert (done.returncode, done.stdout) == (7, "")
        assert done.stderr.startswith(f"error: no streamer answers on {spool / SOCKET}\nhint: ")


# The bucket


def test_the_file_of_the_streamer_is_enough(
    bucket: OpenArchive, spool: Path, tmp_path: Path
) -> None:
    """It names source, spool and bucket; what it says of the server does not matter."""
    path = tmp_path / "orders.toml"
    path.write_text(
        f'[stream]\nsource = "orders"\n[mysql]\nuser = "u"\npassword_file = "/no/pw"\n'
        f'[spool]\ndir = "{spool}"\n[s3]\nurl = "{bucket.url}"\nregion = "{REGION}"\n'
        f'endpoint_url = "{bucket.moto.endpoint_url}"\naddressing_style = "path"\n'
    )
    done = run("status", "--config", str(path), moto=bucket.moto)
    assert done.returncode == 0
    assert re.match(r"orders  idle( \(.* ago\))?  ", done.stdout)
    done = run("status", "--config", str(path), "--all", moto=bucket.moto)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 source: 1 well" in done.stdout
    status = replace(IDLE, source="orders", target=bucket.url)
    with closing(Streamer(spool, status)):
        done = run("status", "--config", str(path))
        assert "\nseen from    the streamer itself; " in done.stdout
        done = run("health", "--config", str(path))
        assert done.returncode == 0


# For monitors


@pytest.mark.parametrize(
    "arguments",
    [
        ("--lag-warning", "soon"),
        ("--lag-warning",),
        ("extra",),
        ("--nonsense",),
        ("--all",),
        ("--json",),
        ("--config", "/no/x.toml"),
        ("--spool", "/no/such/spool", "--from", "daemon"),
        ("--all", "--s3-url", "s3://bucket", "--expect", "/no/expected|file"),
        ("--all", "--s3-url", "s3://bucket", "--endpoint-url", "http://127.0.0.1:9"),
    ],
)
def test_every_error_of_a_check_is_unknown(arguments: tuple[str, ...]) -> None:
    """Exit 3 with one line: 1 and 2 would be a warning and critical. A variable asks as well."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "r"}
    for given, variables in (
        (("--check", *arguments), {}),
        (arguments, {"BINLOG2S3_CHECK": "1"}),
    ):
        done = run("status", *given, **keys, **variables)
        assert (done.returncode, done.stderr) == (3, "")
        (line,) = done.stdout.splitlines()
        assert line.startswith("BINLOG2S3 UNKNOWN - ")
        assert "|" not in line


def test_health(spool: Path) -> None:
    """One line, and exit 0 or 1: well, not well, nobody there, nonsense."""
    ask = ("health", "--spool", str(spool))

    def answer(*arguments: str) -> tuple[int, str]:
        done = run(*arguments)
        assert done.stderr == ""
        (line,) = done.stdout.splitlines()
        return done.returncode, line

    assert answer(*ask) == (1, f"unhealthy: no streamer answers on {spool / SOCKET}")
    with closing(Streamer(spool, IDLE)) as streamer:
        assert answer(*ask) == (0, "healthy: orders-primary: idle")
        streamer.status = replace(IDLE, troubles=(WARNING,))
        assert answer(*ask)[0] == 0
        streamer.status = replace(IDLE, state="store unreachable", troubles=(CRITICAL,))
        code, line = answer(*ask)
        assert (code, line.split(":")[0]) == (1, "unhealthy")
        assert "access denied" in line
    for wrong in (("--config", "/no/x.toml"), ("--nonsense",), ("--spool",), ("--spool", "")):
        code, line = answer("health", *wrong)
        assert (code, line.split(":")[0]) == (1, "unhealthy")


# Watching, into a pipe


@contextmanager
def watching(
    *arguments: str, moto: MotoServer | None = None, interval: str = "0.2"
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        argv("status", "--watch", "--interval", interval, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(**(moto.env() if moto else {})),
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509 - nohup
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def line_like(process: "subprocess.Popen[str]", pattern: str) -> str:
    """The first line that has this; a hundred others may come before it."""
    assert process.stdout is not None
    for _ in range(100):
        line = process.stdout.readline()
        assert line, "it has ended"
        if re.search(pattern, line):
            return line
    raise AssertionError(f"no line has {pattern}, the last one is {line}")


@pytest.mark.usefixtures("streamer")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_end_it(spool: Path, number: signal.Signals) -> None:
    """With exit code 0, and no word on standard error."""
    with watching("--spool", str(spool)) as process:
        line_like(process, "idle")
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


@pytest.mark.usefixtures("streamer")
def test_a_reader_that_goes_away_ends_it(spool: Path) -> None:
    """`--watch | head -1` leaves nothing behind, and is no defect."""
    with watching("--spool", str(spool)) as process:
        line_like(process, "idle")
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(60) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stdout = None


def test_the_bucket_takes_over_where_the_streamer_goes(bucket: OpenArchive, spool: Path) -> None:
    """The same stream is shown from there, and this is said."""
    status = replace(IDLE, source="orders", target=bucket.url)
    options = (*bucket.where(), "--spool", str(spool))
    with watching(*options, moto=bucket.moto) as process:
        line_like(process, " orders idle .*from=bucket$")
        with closing(Streamer(spool, status)):
            line_like(process, " orders idle .*spool=1.2MiB$")
        line_like(process, " orders idle .*from=bucket$")


@contextmanager
def silent_socket(spool: Path) -> Iterator[threading.Event]:
    """A streamer that takes connections and says nothing; the event tells of the first one."""
    called = threading.Event()
    held: list[socket.socket] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(spool / SOCKET))
        listening.listen()

        def take() -> None:
            try:
                while True:
                    held.append(listening.accept()[0])
                    called.set()
            except OSError:  # closed
                return

        thread = threading.Thread(target=take)
        thread.start()
        try:
            yield called
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(60)
            for one in held:
                one.close()


def test_nobody_waits_for_an_answer_to_leave(spool: Path) -> None:
    """SIGTERM ends it in the middle of a look that hangs."""
    with silent_socket(spool) as called, watching("--spool", str(spool)) as process:
        assert called.wait(60)
        process.terminate()
        _, said = process.communicate(timeout=60)
        assert (process.returncode, said) == (0, "")


def test_a_streamer_that_hangs_is_asked_in_the_bucket(bucket: OpenArchive, spool: Path) -> None:
    """After five seconds, and the page says that it was silent."""
    with silent_socket(spool):
        done = bucket.run("status", "--spool", str(spool))
    assert done.returncode == 0
    assert f"not from the streamer itself: no answer within 5 s on {spool / SOCKET}" in done.stdout


# Watching, on a terminal


class Terminal:
    """A process on a terminal of its own; `text` is what it has been sent so far."""

    def __init__(self, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(theirs)
        self.text = ""
        self._theirs = theirs
        self.process = subprocess.Popen(
            argv("status", "--watch", "--interval", "0.2", *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment(), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
            preexec_fn=self._become_foreground,  # noqa: PLW1509 - nothing else has its terminal
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @staticmethod
    def _become_foreground() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _read(self) -> None:
        try:
            while block := os.read(self._ours, 65536):
                self.text += block.decode(errors="replace")
        except OSError:  # EIO: nobody has the other end any more
            return

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, pattern: str) -> None:
        try:
            wait_until(lambda: re.search(pattern, self.text), what=f"{pattern} on the terminal")
        except AssertionError as error:
            ended = self.process.poll()
            raise AssertionError(f"{error}; exit code {ended}: {self.text[-2000:]!r}") from error

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def settings(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(60)
        os.close(self._theirs)
        self._reader.join(60)
        os.close(self._ours)


ENDS: dict[str, Callable[[Terminal], None]] = {
    "q": lambda terminal: terminal.press(b"q"),
    "ctrl-c": lambda terminal: terminal.press(b"\x03"),
    "sigterm": lambda terminal: terminal.process.terminate(),
}


@pytest.mark.usefixtures("streamer")
@pytest.mark.parametrize("end", ENDS)
def test_a_terminal_is_left_as_it_was(spool: Path, end: str) -> None:
    """The screen is another one, without a cursor, and afterwards all is back; exit 0."""
    with closing(Terminal("--spool", str(spool))) as terminal:
        terminal.wait_for(r"orders-primary  idle")
        terminal.wait_for("q or Ctrl-C ends")
        assert terminal.settings() != terminal.before
        ENDS[end](terminal)
        assert terminal.process.wait(60) == 0
        terminal.wait_for(r"\x1b\[\?25h")
        assert terminal.settings() == terminal.before
        for on, off in ((r"\x1b[?1049h", r"\x1b[?1049l"), (r"\x1b[?25l", r"\x1b[?25h")):
            one, other = on.replace(r"\x1b", "\x1b"), off.replace(r"\x1b", "\x1b")
            assert terminal.text.rfind(other) > terminal.text.rfind(one) >= 0
        assert "Traceback" not in terminal.text


def test_a_terminal_shows_what_changes(spool: Path, streamer: Streamer) -> None:
    """New troubles in red, that nobody answers any more, and that somebody does again."""
    with closing(Terminal("--spool", str(spool))) as terminal:
        terminal.wait_for("orders-primary  idle")
        streamer.status = replace(IDLE, state="store unreachable", troubles=(CRITICAL,))
        terminal.wait_for(r"\x1b\[1;31maccess denied")
        streamer.close()
        terminal.wait_for("no answer for")
        terminal.text = ""
        with closing(Streamer(spool, IDLE)):
            terminal.wait_for("orders-primary  idle")


@pytest.mark.usefixtures("streamer")
def test_a_window_that_becomes_small(spool: Path) -> None:
    """It is drawn anew for it, with how much it lacks."""
    with closing(Terminal("--spool", str(spool))) as terminal:
        terminal.wait_for("q or Ctrl-C ends")
        terminal.resize(5, 40)
        terminal.process.send_signal(signal.SIGWINCH)
        terminal.wait_for(r"\.\.\. \d+ more lines")


@pytest.mark.usefixtures("streamer")
def test_a_dumb_terminal_gets_lines(spool: Path) -> None:
    """Where no cursor can be moved it is as into a pipe."""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as reader:  # noqa: PTH123 - a descriptor
        process = subprocess.Popen(
            argv("status", "--watch", "--count=2", "--interval=0.1", "--spool", str(spool)),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env={**environment(), "TERM": "dumb"},
        )
        os.close(theirs)
        found = b""
        try:
            while block := reader.read(4096):
                found += block
        except OSError:  # EIO: the other end is closed
            pass
    assert process.wait(60) == 0
    assert len(found.splitlines()) == 2
    assert b"\x1b" not in found


def test_an_old_status_of_a_frozen_streamer(spool: Path) -> None:
    """One that hangs may still answer with what it knew: how old that is, is said."""
    old = replace(IDLE, at=datetime.now(UTC) - timedelta(minutes=10))
    listener = Listener(applications(lambda: old, page=ReportPage(())))
    listener.listen_socket(spool)
    with closing(listener):
        done = run("status", "--spool", str(spool))
        assert "the streamer itself, 10 min ago;" in done.stdout
        assert "critical" in done.stdout
        assert run("health", "--spool", str(spool)).returncode == 1
