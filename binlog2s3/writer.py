"""The writer's own object in the bucket: its claim, its heartbeat, and who goes on.

Place in the flow: claimed by the daemon as the last step before its first other write, then renewed
by a thread of its own, so that a slow upload does not look like a dead writer.

Law: the last to start is the writer. Who sees a greater (generation, token) stops. No lease and no
clocks: correctness does not depend on it, it only ends the waste of two writers.
"""

import os
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

from binlog2s3 import __version__
from binlog2s3.catalog import Catalog, Heartbeat, Layout, Position
from binlog2s3.errors import Binlog2s3Error, StoreError, SupersededError
from binlog2s3.log import Log
from binlog2s3.store import ObjectInfo, Store

_log = Log("writer")


State = Literal["streaming", "idle", "catching up", "source unreachable", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a heartbeat says of the stream, taken at one moment."""

    state: State
    lineage: str | None
    durable: Position | None
    server: Position | None
    covered_until: datetime | None


class Writer:
    """One process as a writer of a source. `failed` is called from its thread, once."""

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        server_uuid: str,
        interval_seconds: float,
        progress: Callable[[], Progress],
        failed: Callable[[BaseException], None],
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._layout = layout
        self._progress = progress
        self._failed = failed
        self._stop = stop
        self._carried: datetime | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        now = datetime.now(UTC)
        self._me = Heartbeat(
            generation=0,
            token=secrets.token_hex(4),
            source=layout.source,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            since=now,
            at=now,
            interval_seconds=interval_seconds,
            state="streaming",
            lineage=None,
            server_uuid=server_uuid,
            durable=None,
            server=None,
            covered_until=None,
        )

    def claim(self, store: Store) -> None:
        """Become the writer: put an object of a generation greater than any seen.

        What earlier writers proved (covered until) is carried over. Raises StoreError if `store`
        refuses.
        """
        catalog = Catalog(store, self._layout)
        others = catalog.writers()
        for beat in catalog.heartbeats(sorted(others)):
            if beat.covered_until and (not self._carried or beat.covered_until > self._carried):
                self._carried = beat.covered_until
        generation = max((generation for generation, _ in others), default=0) + 1
        self._me = replace(self._me, generation=generation)
        self._put(store)
        _log.info("writer", generation=generation, token=self._me.token, host=self._me.host)

    def start(self) -> None:
        """Begin the heartbeat."""
        self._thread.start()

    def look(self, store: Store) -> dict[tuple[int, str], ObjectInfo]:
        """The writers that there are. Raises SupersededError if one is greater than we."""
        others = Catalog(store, self._layout).writers()
        greater = [rank for rank in others if rank > self._me.rank]
        if greater:
            raise self._superseded(max(greater))
        return others

    def beat(self) -> None:
        """Look for a greater writer, renew our object, delete those of older writers."""
        others = self.look(self._store)
        self._put(self._store)
        older = [rank for rank in others if rank < self._me.rank]
        if older:
            self._store.delete([self._layout.writer(*rank) for rank in older])

    def finish(self, store: Store) -> None:
        """Say that this writer has stopped; a store that does not answer is not waited for."""
        try:
            self._put(store, state="stopped")
        except Binlog2s3Error as error:
            _log.warning("last heartbeat not written", error=error)

    def _put(self, store: Store, state: State | None = None) -> None:
        now = self._progress()
        covered = now.covered_until
        if self._carried and (covered is None or covered < self._carried):
            covered = self._carried
        self._me = replace(
            self._me,
            at=datetime.now(UTC),
            state=state or now.state,
            lineage=now.lineage,
            durable=now.durable,
            server=now.server,
            covered_until=covered,
        )
        store.put(self._layout.writer(*self._me.rank), self._me.to_json())

    def _superseded(self, rank: tuple[int, str]) -> SupersededError:
        where = ""
        for beat in Catalog(self._store, self._layout).heartbeats([rank]):
            where = f" on {beat.host} (process {beat.pid}, since {beat.since:%Y-%m-%d %H:%M:%SZ})"
        return SupersededError(
            f"another writer of {self._layout.source} has taken over{where}: "
            f"generation {rank[0]}, ours is {self._me.generation}",
            hint="one streamer for each --source: stop the one that is not meant to run",
        )

    def _run(self) -> None:
        while not self._stop.wait(self._me.interval_seconds):
            try:
                self.beat()
            except StoreError as error:
                if self._stop.is_set():
                    return
                _log.warning("heartbeat not written", error=error, hint=error.hint)
            except BaseException as error:  # noqa: BLE001 - the daemon ends the process with it
                self._failed(error)
                return
