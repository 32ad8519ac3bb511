"""Asks a streamer how it is, as its monitors do: over HTTP, by its socket, by the command.

Law: it does not use the product's own client. A streamer that does not answer is not well.
"""

import http.client
import json
import os
import re
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from time import monotonic
from typing import Any, Self

import pymysql

from lab.child import free_port
from lab.mysql import MysqlServer
from tests.beside import Beside
from tests.command import run_in
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

Document = dict[str, Any]
WELL = {"streaming", "idle", "catching up"}
DISTRESS_SECONDS = 90  # what is promised: by then a monitor has been told
PATIENCE_SECONDS = 60


@dataclass(frozen=True)
class Health:
    """One answer of /health; `code` is 0 where there was none."""

    at: float
    code: int
    document: Document


class _Local(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        """As HTTPConnection's, to the socket, however long its path is."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(PATIENCE_SECONDS)
        directory = os.open(self._path.parent, os.O_PATH)
        try:
            self.sock.connect(f"/proc/self/fd/{directory}/{self._path.name}")
        finally:
            os.close(directory)


class Monitor:
    """Asks on 127.0.0.1 at a port, `options` for a StreamProcess say which; or on a socket."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.port = 0 if path else free_port()

    @property
    def options(self) -> dict[str, str]:
        """What makes a streamer answer there."""
        return {"metrics-listen": f"127.0.0.1:{self.port}"}

    def get(self, path: str) -> tuple[int, bytes]:
        """The code and the body; raises OSError or HTTPException where there is no answer."""
        connection = (
            _Local(self._path)
            if self._path
            else http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_SECONDS)
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def status(self) -> Document:
        """The document of /status."""
        code, body = self.get("/status")
        assert code == http.HTTPStatus.OK, body
        found = json.loads(body)
        assert isinstance(found, dict)
        return found

    def health(self) -> Health:
        """What /health says now."""
        at = monotonic()
        try:
            code, body = self.get("/health")
            return Health(at, code, json.loads(body))
        except (OSError, http.client.HTTPException):
            return Health(at, 0, {})

    def is_well(self) -> bool:
        """Whether it says that all is well, in both."""
        return self.health().code == http.HTTPStatus.OK and self.status()["state"] in WELL

    def wait_for(
        self, holds: Callable[[Document], object], timeout: float = 60, what: str = "the status"
    ) -> Document:
        """The first status of which this holds; one that does not listen yet is waited for.

        Where none comes, the error has a note with the last status.
        """
        last: Document = {}

        def found() -> Document | None:
            nonlocal last
            if not self.health().code:
                return None
            last = self.status()
            return last if holds(last) else None

        try:
            document = wait_until(found, timeout, what, interval=0.2)
        except AssertionError as error:
            error.add_note(json.dumps(last))
            raise
        assert document is not None
        return document

    def wait_for_lag(self, holds: Callable[[float], bool], timeout: float = 60) -> Document:
        """The first status with a lag, in seconds, of which this holds."""

        def known(document: Document) -> bool:
            seconds = document["lag"]["seconds"]
            return seconds is not None and holds(seconds)

        return self.wait_for(known, timeout, "the lag in seconds")

    def wait_until_well(self, timeout: float = 60) -> Document:
        """The status at which it reads, has made something durable, and says that it is well."""

        def well(document: Document) -> bool:
            reads = document["covered_until"] and document["child"]["pid"]
            return bool(document["healthy"] and document["state"] in WELL and reads)

        found = self.wait_for(well, timeout, "well, and reading")
        assert self.health().code == http.HTTPStatus.OK
        return found

    def wait_until_distress(self) -> Document:
        """The status once /health has turned to 503; its state's name is none of the well."""
        wait_until(self._in_distress, DISTRESS_SECONDS, "/health 503", interval=0.5)
        return self.wait_for(lambda document: not document["healthy"])

    def _in_distress(self) -> bool:
        health = self.health()
        if health.code != http.HTTPStatus.SERVICE_UNAVAILABLE:
            return False
        assert health.document["state"] not in WELL, f"503, and yet {health.document}"
        return True


class Watching(Beside):
    """Asks /health again and again in a `with` block: `seen` is what was answered, in order."""

    def __init__(self, monitor: Monitor, interval: float = 0.5) -> None:
        super().__init__()
        self._monitor = monitor
        self._interval = interval
        self.seen: list[Health] = []

    def run(self) -> None:
        while not self.over.wait(self._interval):
            self.seen.append(self._monitor.health())

    def since(self, holds: Callable[[Health], bool]) -> list[Health]:
        """What was answered from the first one on of which this holds."""
        seen = list(self.seen)
        first = next((n for n, one in enumerate(seen) if holds(one)), len(seen))
        return seen[first:]

    def never_ill(self) -> int:
        """See that behind the first 200 there was nothing else; how many answers there were.

        A state that is none of the well ones is explained by a warning.
        """
        found = self.since(lambda one: one.code == http.HTTPStatus.OK)
        assert found, "it never said that it was well"
        ill = [one for one in found if one.code != http.HTTPStatus.OK]
        assert not ill, f"{len(ill)} of {len(found)} answers, the first {ill[0]}"
        unwell = [one.document for one in found if one.document["state"] not in WELL]
        strange = [document for document in unwell if not document["troubles"]]
        assert not strange, f"{len(strange)} of {len(found)} answers, the first {strange[0]}"
        return len(found)


class Commits(Beside):
    """Commits a marked row every `pause` seconds, and outlives the server's ends.

    Each fiftieth is `large` times as large. `done`: of each one its number and the server's clock
    behind the commit.
    """

    def __init__(
        self, server: MysqlServer, *, pause: float = 0.2, size: int = 200, large: int = 1
    ) -> None:
        super().__init__()
        self._server = server
        self._pause = pause
        self._size = size
        self._large = large
        self._number = 0
        self._returned: list[tuple[int, float]] = []
        self.done: list[tuple[int, datetime]] = []

    def __enter__(self) -> Self:
        prepare(self._server)
        return super().__enter__()

    def before(self, moment: float) -> set[int]:
        """The numbers of those whose commit had returned then, by `monotonic`."""
        return {number for number, at in list(self._returned) if at <= moment}

    def run(self) -> None:
        while not self.over.wait(self._pause):
            try:
                with self._server.connect(connect_timeout=5, read_timeout=60) as connection:
                    self._write(connection)
            except (pymysql.Error, OSError):
                continue

    def _write(self, connection: "pymysql.connections.Connection[Any]") -> None:
        with connection.cursor() as cursor:
            while not self.over.wait(self._pause):
                self._number += 1
                size = self._size * (1 if self._number % 50 else self._large)
                text = f"<mark {self._number}>" + "x" * size
                cursor.execute("INSERT INTO marks.t (v) VALUES (%s)", (text,))
                self._returned.append((self._number, monotonic()))
                cursor.execute("SELECT UTC_TIMESTAMP(6)")
                ((moment,),) = cursor.fetchall()
                self.done.append((self._number, moment))


def marks_in(binlogs: Mapping[str, bytes]) -> set[int]:
    """The numbers of those that are in them."""
    return {int(m) for data in binlogs.values() for m in re.findall(rb"<mark (\d+)>", data)}


def prepare(server: MysqlServer) -> None:
    """The table for the rows."""
    server.query(
        "CREATE DATABASE IF NOT EXISTS marks",
        "CREATE TABLE IF NOT EXISTS marks.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGTEXT)",
    )


def commit(server: MysqlServer, count: int) -> None:
    """So many transactions, each of one row."""
    with server.connect() as connection, connection.cursor() as cursor:
        for number in range(count):
            cursor.execute("INSERT INTO marks.t (v) VALUES (%s)", (f"row {number}",))


def command(
    stream: StreamProcess, *arguments: str, timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """`binlog2s3 ...` with this streamer's source, spool and store."""
    wanted = ("--source", "--spool", "--s3-url", "--endpoint-url", "--addressing-style", "--region")
    given = [
        word
        for name, value in zip(stream.argv, stream.argv[1:], strict=False)
        if name in wanted
        for word in (name, value)
    ]
    return run_in(stream.environment, *arguments, *given, timeout=timeout)


def told(stream: StreamProcess) -> Document:
    """What `binlog2s3 status --json` says."""
    done = command(stream, "status", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found
