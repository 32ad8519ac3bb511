"""Write load on a throwaway server: several writers, small and large transactions, rotations.

    with Load(server, threads=4, flush_seconds=2) as load:
        ...
    print(load.transactions, load.row_bytes)

Each writer's sequence of transactions follows from the seed; how far it comes depends on the
server. It is bounded in time, and a writer that fails makes the `with` block fail.
"""

import random
import threading
from dataclasses import dataclass
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pymysql

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

    from lab.mysql import MysqlServer

SCHEMA = (
    "CREATE DATABASE IF NOT EXISTS lab_load",
    """
    CREATE TABLE IF NOT EXISTS lab_load.record (
        writer INT, sequence BIGINT, part INT, payload LONGBLOB,
        PRIMARY KEY (writer, sequence, part)
    ) ENGINE=InnoDB
    """,
)
INSERT = "INSERT INTO lab_load.record VALUES (%s, %s, %s, %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the transactions look like; chances are between 0 and 1, sizes in bytes."""

    row_bytes: tuple[int, int] = (1, 500)
    many_rows_chance: float = 0.1
    many_rows: tuple[int, int] = (2, 50)
    large_chance: float = 0.0
    large_bytes: tuple[int, int] = (100_000, 2_000_000)
    update_chance: float = 0.1
    delete_chance: float = 0.03


class Load:
    """The writers and the rotation; `with` starts them, and stops and joins them at the end.

    `flush_seconds` is the time between two FLUSH BINARY LOGS: None for never, 0 for a tight loop.
    It ends by itself after `seconds`, or when each writer has done `transactions_each`. With
    `reconnects` a writer outlives the server's crashes; `acknowledged` says what was committed.
    """

    def __init__(
        self,
        server: "MysqlServer",
        *,
        threads: int = 4,
        seed: int = 0,
        seconds: float = 120,
        transactions_each: int | None = None,
        flush_seconds: float | None = None,
        pause_seconds: float = 0,
        shape: Shape | None = None,
        reconnects: bool = False,
    ) -> None:
        self.server = server
        self.shape = shape or Shape()
        self.flushes = 0
        self.acknowledged = [0] * threads
        self._bytes = [0] * threads
        self._seed = seed
        self._seconds = seconds
        self._each = transactions_each
        self._flush_seconds = flush_seconds
        self._pause_seconds = pause_seconds
        self._reconnects = reconnects
        self._deadline = 0.0
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._writers = [
            threading.Thread(target=self._guarded, args=(number,), name=f"load-{number}")
            for number in range(threads)
        ]
        self._rotation = threading.Thread(target=self._guarded, args=(None,), name="load-flush")

    def __enter__(self) -> Self:
        self.server.query(*SCHEMA)
        self._deadline = monotonic() + self._seconds
        for thread in (*self._writers, self._rotation):
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()
        if error is None:
            self._raise_failure()

    @property
    def transactions(self) -> int:
        """Transactions that the server has acknowledged, over all writers."""
        return sum(self.acknowledged)

    @property
    def row_bytes(self) -> int:
        """Bytes of row data in them."""
        return sum(self._bytes)

    def stop(self) -> None:
        """Stop writing now and wait for the threads; raises what a writer died of."""
        self._stop()
        self._raise_failure()

    def join(self) -> None:
        """Wait until the writers have done their share; raises what one died of."""
        for thread in self._writers:
            thread.join()
        self.stop()

    def _stop(self) -> None:
        self._stopping.set()
        for thread in (*self._writers, self._rotation):
            if thread.ident is not None:
                thread.join()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise RuntimeError("the write load failed") from failure

    def _over(self) -> bool:
        return self._stopping.is_set() or monotonic() > self._deadline

    def _guarded(self, number: int | None) -> None:
        """A thread's life: connect, work; again after a lost connection if that is wanted."""
        while not self._over():
            try:
                with self.server.connect(connect_timeout=60, read_timeout=60) as connection:
                    if number is None:
                        self._rotate(connection)
                    else:
                        self._write(connection, number)
            except BaseException as error:  # noqa: BLE001 - kept, and raised in stop()
                if not (self._reconnects and isinstance(error, pymysql.Error)):
                    self._failure = self._failure or error
                    self._stopping.set()
                self._stopping.wait(0.1)
            else:
                return

    def _rotate(self, connection: "Connection[Cursor]") -> None:
        if self._flush_seconds is None:
            return
        with connection.cursor() as cursor:
            while not self._over() and not self._stopping.wait(self._flush_seconds):
                cursor.execute("FLUSH BINARY LOGS")
                self.flushes += 1

    def _write(self, connection: "Connection[Cursor]", number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT COALESCE(MAX(sequence), 0) FROM lab_load.record WHERE writer = %s",
                (number,),
            )
            ((done,),) = cursor.fetchall()
            sequence = max(int(done), self.acknowledged[number])
            while not self._over() and (self._each is None or sequence < self._each):
                sequence += 1
                # each transaction has a generator of its own, so a lost one changes no other
                self._transaction(
                    cursor, number, sequence, random.Random(f"{self._seed}/{number}/{sequence}")
                )
                self.acknowledged[number] = sequence
                if self._pause_seconds:
                    self._stopping.wait(self._pause_seconds)

    def _transaction(
        self, cursor: "Cursor", number: int, sequence: int, chance: random.Random
    ) -> None:
        """One transaction; it always inserts row (number, sequence, 0)."""
        shape = self.shape
        count = chance.randint(*shape.many_rows) if chance.random() < shape.many_rows_chance else 1
        sizes = [chance.randint(*shape.row_bytes) for _ in range(count)]
        if chance.random() < shape.large_chance:
            sizes[0] = chance.randint(*shape.large_bytes)
        earlier = chance.randint(1, sequence)
        updates = chance.random() < shape.update_chance
        deletes = chance.random() < shape.delete_chance
        cursor.execute("BEGIN")
        for part, size in enumerate(sizes):
            cursor.execute(INSERT, (number, sequence, part, chance.randbytes(size)))
        if updates:
            cursor.execute(
                "UPDATE lab_load.record SET payload = %s WHERE writer = %s AND sequence = %s"
                " AND part = 0",
                (chance.randbytes(shape.row_bytes[1]), number, earlier),
            )
        if deletes:
            cursor.execute(
                "DELETE FROM lab_load.record WHERE writer = %s AND sequence = %s AND part > 0",
                (number, earlier),
            )
        cursor.execute("COMMIT")
        self._bytes[number] += sum(sizes)
