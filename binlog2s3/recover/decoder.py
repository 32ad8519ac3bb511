"""Binlog bytes in, SQL text out: one mysqlbinlog reads a piece of a recovery on standard input.

Place in the flow: `pipe` gives the text to the target's client, or to standard output.

Law: text counts as whole only when its mysqlbinlog has read all its input, ended with status 0, has
nothing to say on standard error, and has printed its last lines. Everything else raises, and what
was printed so far may end in the middle of a statement.
"""

import fcntl
import os
import re
import select
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from binlog2s3.errors import RecoveryError
from binlog2s3.server.children import spawn
from binlog2s3.server.mysqlbinlog import Tool

DELIMITER = b"/*!*/;\n"
"""What ends a statement that comes from the binlog."""

_TEXT_BYTES = 1 << 18
_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031
_LAST_LINES = b"# End of log file"
_HARMLESS = re.compile(r"deprecated", re.IGNORECASE)
_UNREADABLE = (
    "this mysqlbinlog does not understand the binlog: name one of the archived server's version or "
    "a newer one with --mysqlbinlog; the bytes themselves were checked"
)


class Decoder:
    """One run of mysqlbinlog over one piece. Use as a context manager: it ends with the block.

    `skip_gtids`: the transactions get new GTIDs, or none, on the server that takes the text.
    `binlog_off`: that server does not log them. `load_directory` takes the files of LOAD DATA.
    """

    def __init__(
        self,
        tool: Tool,
        *,
        load_directory: Path,
        skip_gtids: bool = False,
        binlog_off: bool = False,
    ) -> None:
        arguments = [tool.path, "--no-defaults", f"--local-load={load_directory}"]
        if binlog_off:
            arguments.append("--disable-log-bin")
        if skip_gtids and tool.flavour == "mysql":
            arguments.append("--skip-gtids")
        try:
            self._process = spawn(
                [*arguments, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                own_session=True,
            )
        except OSError as error:
            raise RecoveryError(f"cannot start {tool.path}: {error}") from error
        self._input, self._output = _pipes(self._process)
        self.lines: deque[str] = deque(maxlen=50)
        assert self._process.stderr is not None  # noqa: S101 - PIPE was asked for
        self._drain = threading.Thread(
            target=self._read_stderr,
            args=(self._process.stderr,),
            name="decoder-stderr",
            daemon=True,
        )
        self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """End it at once, and all that it started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # where it has not got its session yet
            self._process.wait()
        self._drain.join(2.0)
        for pipe in (self._input, self._output):
            with suppress(OSError):  # what was not flushed is not wanted any more
                pipe.close()

    def text(self, data: Iterator[bytes]) -> Iterator[bytes]:
        """The text, as it comes, of a binlog whose bytes come piece by piece.

        Holds one piece of either at most. Raises RecoveryError where mysqlbinlog fails.
        """
        out, tail = self._output.fileno(), b""
        poll = select.poll()
        poll.register(out, select.POLLIN)
        poll.register(self._input.fileno(), select.POLLOUT)
        for piece in data:
            left = memoryview(piece)
            while left:
                ready = dict(poll.poll())
                if out in ready and (text := _read(out)):
                    tail = (tail + text)[-200:]
                    yield text
                elif out in ready:
                    self._finish(tail)
                    raise RecoveryError("mysqlbinlog ended before it had read its input")
                if self._input.fileno() in ready:
                    left = left[self._write(left) :]
        self._input.close()
        os.set_blocking(out, True)
        while text := _read(out):
            tail = (tail + text)[-200:]
            yield text
        self._finish(tail)

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._input.fileno(), data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            self._finish(b"")
            raise RecoveryError("mysqlbinlog ended before it had read its input") from None

    def _finish(self, tail: bytes) -> None:
        """It has closed its output: see that all is well."""
        status = self._process.wait()
        self._drain.join(5.0)
        said = [line for line in self.lines if not _HARMLESS.search(line)]
        if status < 0:
            raise RecoveryError(
                f"mysqlbinlog was killed by signal {-status}",
                hint="somebody's kill, or the kernel short of memory (its log tells)",
            )
        if status or said:
            text = "; ".join(said[:3]) or f"exit status {status}, without a word"
            raise RecoveryError(f"mysqlbinlog failed: {text}", hint=_hint(text))
        if _LAST_LINES not in tail:
            raise RecoveryError("mysqlbinlog ended in the middle of its text", hint=_UNREADABLE)

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                if line := raw.decode("utf-8", "replace").strip():
                    self.lines.append(line)


def _hint(text: str) -> str:
    if re.search(r"No space left|disk full|Errcode: 28|OS errno 28", text, re.IGNORECASE):
        return "the directory for temporary files is full: set TMPDIR to another one"
    if re.search(r"unknown (variable|option)", text):
        return "this mysqlbinlog lacks an option: name a newer one with --mysqlbinlog"
    return _UNREADABLE


def _read(descriptor: int) -> bytes:
    return os.read(descriptor, _TEXT_BYTES)


def _pipes(process: "subprocess.Popen[bytes]") -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None  # noqa: S101 - PIPE was asked for
    assert process.stdout is not None  # noqa: S101 - PIPE was asked for
    for pipe in (process.stdin, process.stdout):
        os.set_blocking(pipe.fileno(), False)
        enlarge(pipe.fileno())
    return process.stdin, process.stdout


def enlarge(descriptor: int) -> None:
    """Give a pipe a larger buffer, where the kernel lets us."""
    with suppress(OSError):
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
