"""The writing clients: rows at a rate, each with a number and a time; a process of its own.

Law: open loop. The n-th transaction is due at begin + n / rate, whatever became of those before; a
client that is late sends at once. A commit's moment is taken when the server has answered it.
"""

import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic, time

import pymysql

from bench.readback import mark

FILLERS = 900_000_000_000
"""Numbers from here on are of the fillers."""
FILLER_BYTES = 6_000_000
TABLE = (
    "CREATE DATABASE bench",
    "CREATE TABLE bench.t (id BIGINT PRIMARY KEY, m CHAR(32), v LONGTEXT)",
)
_INSERT = "INSERT INTO bench.t VALUES (%s, %s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`rate` in transactions a second, 0 for as many as go, None for none at all.

    `row_bytes` is the row's text. Spread evenly over the time: `fillers`, single transactions that
    are larger than a part, and `rotations`.
    """

    rate: float | None
    row_bytes: int
    seconds: float
    connections: int
    fillers: int = 0
    rotations: int = 0


@dataclass(slots=True)
class Done:
    """What was committed: (number, moment) each. `begin` and `end` of the whole."""

    begin: float
    end: float = 0.0
    commits: list[tuple[int, float]] = field(default_factory=list)


def drive(socket: Path, plan: Plan, answers: Connection) -> None:
    """The process: sends what was done, or the error that ended it."""
    load = _Load(socket, plan)
    try:
        answers.send(load.run())
    except pymysql.Error as error:
        answers.send(f"the load failed: {error}")


class _Load:
    def __init__(self, socket: Path, plan: Plan) -> None:
        self._socket = socket
        self._plan = plan
        self._done = Done(monotonic())
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        self._errors: list[pymysql.Error] = []
        self._parent = os.getppid()
        self._text = secrets.token_hex(max(FILLER_BYTES, plan.row_bytes) // 2 + 1)

    def run(self) -> Done:
        """Run until the time is up."""
        connections = 0 if self._plan.rate is None else self._plan.connections
        jobs: list[Callable[[], None]] = [self._write] * connections
        threads = [threading.Thread(target=self._guarded, args=(j,)) for j in (*jobs, self._beside)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        self._done.end = monotonic()
        self._done.commits.sort(key=lambda commit: commit[1])
        return self._done

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except pymysql.Error as error:
            self._errors.append(error)
            self._stop.set()

    def _turn(self) -> tuple[int, float] | None:
        """The next number and when it is due; None when the time is up."""
        with self._lock:
            number = self._next
            self._next += 1
        rate = self._plan.rate
        due = self._done.begin + number / rate if rate else 0.0
        end = self._done.begin + self._plan.seconds
        over = max(due, monotonic()) >= end or os.getppid() != self._parent
        return None if over else (number, due)

    def _write(self) -> None:
        with self._connect() as connection, connection.cursor() as cursor:
            while (turn := self._turn()) is not None:
                number, due = turn
                if self._stop.wait(max(0.0, due - monotonic())):
                    return
                self._commit(cursor, number, self._plan.row_bytes)

    def _beside(self) -> None:
        """Fillers and rotations."""
        plan = self._plan
        moments = [((i + 0.5) / plan.fillers, FILLERS + i) for i in range(plan.fillers)]
        moments += [((i + 1) / (plan.rotations + 1), -1) for i in range(plan.rotations)]
        with self._connect() as connection, connection.cursor() as cursor:
            for share, number in [*sorted(moments), (1.0, None)]:
                due = self._done.begin + share * plan.seconds
                if self._stop.wait(max(0.0, due - monotonic())) or number is None:
                    return
                if number < 0:
                    cursor.execute("FLUSH BINARY LOGS")
                else:
                    self._commit(cursor, number, FILLER_BYTES)

    def _commit(self, cursor: pymysql.cursors.Cursor, number: int, size: int) -> None:
        text = mark(number, time())
        cursor.execute(_INSERT, (number, text, self._text[: max(0, size - len(text))]))
        at = monotonic()
        with self._lock:
            self._done.commits.append((number, at))

    def _connect(self) -> "pymysql.connections.Connection[pymysql.cursors.Cursor]":
        return pymysql.connect(
            user="root", unix_socket=str(self._socket), autocommit=True, charset="utf8mb4"
        )
