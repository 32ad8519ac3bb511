"""Writers of a source under chaos: they outlive its crashes, and write as much as they are told."""

import random
import threading
from typing import Literal, Self

import pymysql

from lab.mysql import MysqlServer

Mode = Literal["off", "trickle", "bulk"]
ROW_BYTES = (8_000, 120_000, 240_000)
SCHEMA = (
    "CREATE DATABASE IF NOT EXISTS chaos",
    "CREATE TABLE IF NOT EXISTS chaos.mark (id BIGINT AUTO_INCREMENT PRIMARY KEY, v BLOB)",
    "CREATE TABLE IF NOT EXISTS chaos.bulk (id BIGINT, v LONGBLOB) ENGINE=BLACKHOLE",
)


class Writes:
    """Small transactions on InnoDB, and in `bulk` large ones, whose rows the server forgets.

    `with` runs the threads. In `bulk` they write as fast as they can until they have written so
    many bytes, then they trickle; `hold` waits until none writes.
    """

    def __init__(self, server: MysqlServer, seed: str, *, threads: int = 2) -> None:
        self._server = server
        self._over = threading.Event()
        self._mode: Mode = "off"
        self._left_bytes = 0
        self._working = [threading.Lock() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._run, args=(lock, random.Random(f"{seed}/{number}")))
            for number, lock in enumerate(self._working)
        ]
        self.committed = 0

    def __enter__(self) -> Self:
        self._server.query(*SCHEMA)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def bulk(self, size: int) -> None:
        """Write so many bytes of large transactions, then trickle."""
        self._left_bytes = size
        self._mode = "bulk"

    def trickle(self) -> None:
        """Small transactions, ten a second and thread, from the next one on."""
        self._mode = "trickle"

    def hold(self) -> None:
        """Write no more; returns when nobody does."""
        self._mode = "off"
        for lock in self._working:
            lock.acquire()
            lock.release()

    def _run(self, lock: threading.Lock, chance: random.Random) -> None:
        while not self._over.is_set():
            try:
                with self._server.connect(connect_timeout=5, read_timeout=30) as connection:
                    self._write(connection, lock, chance)
            except pymysql.Error:  # the server is killed and stopped under it
                self._over.wait(0.1)

    def _write(
        self,
        connection: "pymysql.connections.Connection[pymysql.cursors.Cursor]",
        lock: threading.Lock,
        chance: random.Random,
    ) -> None:
        while not self._over.is_set():
            with lock, connection.cursor() as cursor:
                if self._mode == "bulk" and self._left_bytes <= 0:
                    self._mode = "trickle"
                mode = self._mode
                if mode != "off":
                    self._transaction(cursor, chance, bulk=mode == "bulk")
            self._over.wait({"off": 0.05, "trickle": 0.1, "bulk": 0.0}[mode])

    def _transaction(
        self, cursor: "pymysql.cursors.Cursor", chance: random.Random, *, bulk: bool
    ) -> None:
        cursor.execute("BEGIN")
        small = chance.randbytes(chance.randint(1, 3000))
        cursor.execute("INSERT INTO chaos.mark (v) VALUES (%s)", (small,))
        if bulk:
            for _ in range(chance.randint(1, 4)):
                word, size = chance.randbytes(8).hex(), chance.choice(ROW_BYTES)
                cursor.execute(
                    "INSERT INTO chaos.bulk VALUES (1, REPEAT(%s, %s))", (word, size // 16)
                )
                self._left_bytes -= size
        cursor.execute("COMMIT")
        self.committed += 1
