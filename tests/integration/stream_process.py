"""The real `binlog2s3 stream` as a child process, for tests.

    with StreamProcess(directory, mysql, minio, bucket) as stream:
        stream.wait_for_event("binlog archived")
        assert stream.terminate() == 0

Law: it sees no AWS or BINLOG2S3 settings but those given here; it is ended by its own pid when the
`with` block ends, and by the kernel when the test process dies.
"""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from binlog2s3.config.outside import DEFAULT, Timing
from lab.fault import Rule
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from tests import command
from tests.waiting import PATIENCE, wait_until

Line = dict[str, Any]
Value = str | int | float | Path | None


class StreamProcess:
    """One streamer. `directory` gets its stderr and, unless another is named, its spool.

    `options` overrides options by name, without the dashes, and leaves out those that are None;
    `arguments` are added as they are; `environment` overrides variables, None takes one away. Its
    own times are those of `timing` (tests/timed.py).
    """

    def __init__(
        self,
        directory: Path,
        server: MysqlServer,
        store: Store,
        bucket: str,
        *,
        options: Mapping[str, Value] | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str | None] | None = None,
        timing: Timing = DEFAULT,
    ) -> None:
        self.directory = directory
        self.spool = directory / "spool"
        self._stderr = directory / "stream.stderr"
        chosen: dict[str, Value] = {
            "source": "test",
            "mysql-host": "127.0.0.1",
            "mysql-port": server.port,
            "mysql-user": server.repl_user,
            "mysql-password-file": server.password_file,
            "mysqlbinlog": server.binaries.binlog,
            "spool": self.spool,
            "s3-url": f"s3://{bucket}/pre",
            "endpoint-url": store.endpoint_url,
            "addressing-style": "path",
            "region": "us-east-1",
            "heartbeat-interval": 1,
            "log-level": "debug",  # a test counts what recurs, which is thinned otherwise
            **(options or {}),
        }
        pairs = [(f"--{name}", str(value)) for name, value in chosen.items() if value is not None]
        self.argv = command.argv("stream", timing=timing)
        self.argv += [word for pair in pairs for word in pair]
        self.argv += arguments
        merged = {**command.environment(**store.env()), **(environment or {})}
        self.environment = {name: value for name, value in merged.items() if value is not None}
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: list[Line] = []
        self._read = 0

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        setpriv = shutil.which("setpriv")
        leash = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
        with self._stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [*leash, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=self.environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The streamer's process."""
        assert self._process is not None, "not started"
        return self._process

    @property
    def pid(self) -> int:
        """The streamer's own process id."""
        return self.process.pid

    def stderr(self) -> str:
        """What it has said so far."""
        return self._stderr.read_text(errors="replace") if self._stderr.exists() else ""

    def log(self) -> list[Line]:
        """Its log lines so far; lines that are no JSON, as those of a traceback, are left out."""
        with suppress(FileNotFoundError), self._stderr.open("rb") as file:
            file.seek(self._read)  # it grows: what has been read once is known
            whole = file.read().rpartition(b"\n")[0]
            self._read += len(whole)
            lines = whole.decode(errors="replace").splitlines()
            self._lines += [json.loads(line) for line in lines if line.startswith("{")]
        return [*self._lines]

    def events(self, name: str) -> list[Line]:
        """Its log lines so far with this message."""
        return [line for line in self.log() if line["message"] == name]

    def wait_for_event(self, name: str, timeout: float = PATIENCE, **fields: object) -> Line:
        """The first log line with this message and these fields; fails if it ends without one."""

        def found() -> Line | None:
            ended = self.process.poll()  # asked first: what it said before is read below
            for line in self.events(name):
                if all(line.get(key) == value for key, value in fields.items()):
                    return line
            if ended is not None:
                raise AssertionError(f"ended with {ended} without {name!r}:\n{self.stderr()}")
            return None

        line = wait_until(found, timeout, f"event {name!r} {fields or ''}")
        assert line is not None
        return line

    def wait(self, timeout: float = PATIENCE) -> int:
        """Wait for its own end; the exit code, negative for a signal."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {timeout} s:\n{self.stderr()}") from None

    def terminate(self, timeout: float = 3 * PATIENCE) -> int:
        """SIGTERM, as a service manager does it; the exit code."""
        self.process.terminate()
        code = self.wait(timeout)
        if code:
            sys.stdout.write(self.stderr())  # shown where the test fails
        return code

    def kill(self) -> None:
        """`kill -9`: nothing is put in order."""
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait(PATIENCE)


def run_to_end(
    directory: Path,
    server: MysqlServer,
    store: Store,
    bucket: str,
    *,
    timeout: float = PATIENCE,
    options: Mapping[str, Value] | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str | None] | None = None,
) -> tuple[int, list[Line], str]:
    """Run a streamer that is meant to end by itself: its exit code, log lines and stderr."""
    with StreamProcess(
        directory,
        server,
        store,
        bucket,
        options=options,
        arguments=arguments,
        environment=environment,
    ) as stream:
        status = stream.wait(timeout)
        return status, stream.log(), stream.stderr()


@contextmanager
def proxied(
    directory: Path,
    server: MysqlServer,
    store: Store,
    bucket: str,
    rules: Sequence[Rule] = (),
    *,
    options: Mapping[str, Value] | None = None,
) -> Iterator[tuple[StreamProcess, RecordingProxy]]:
    """A streamer that reaches the store through a proxy, and the proxy, where `rules` apply."""
    with RecordingProxy(store.endpoint_url, rules) as proxy:
        via = {"endpoint-url": proxy.url, **(options or {})}
        with StreamProcess(directory, server, store, bucket, options=via) as stream:
            yield stream, proxy
