"""The writer's own object in the bucket: its claim, its heartbeat, and who goes on.

Place in the flow: claimed by the daemon as the last step before its first other write, then renewed
by a thread of its own, so that a slow upload does not look like a dead writer.

Law: the last to start is the writer. Who sees a greater (generation, token) stops. No lease and no
clocks: correctness does not depend on it, it only ends the waste of two writers. Of two claims of
one generation the later process has the greater token: a claim that a killed process left on its
way to the store, and that arrives when the next one has claimed, ends nobody. A spool whose
streamer was stopped so has a note of it, so that a service manager that starts it again does not
end the other one: such a start gives way to the other as long as that one works.
"""

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from binlog2s3 import __version__
from binlog2s3.archive.catalog import GENERATION_MOST, Catalog, Layout, read
from binlog2s3.archive.documents import Heartbeat, Position, Turn, WriterState
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    PreconditionError,
    SpoolError,
    StoreError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.store.s3 import ObjectInfo, Store
from binlog2s3.stream.remote import where_absent
from binlog2s3.stream.spool import Spool, Superseder

_log = Log("writer")
_ANSWER_SECONDS = 5.0  # what a heartbeat may be late: the store's answer, another try
_INTERVALS = (1.0, 3600.0)  # least and greatest heartbeat interval, as the option's bounds
_PAUSES = (0.25, 5.0)
_AUDIT_EVERY = 10
_MOST_TURNS = 10
_AGAIN_SECONDS = 5.0  # after a heartbeat that could not be put
_FIRST_BEAT_SECONDS = 3.0  # by then it is known what the bucket has
_HINT = (
    "one streamer for each --source: stop the one that is not meant to run, "
    "or start this one with --take-over"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a heartbeat says of the stream, taken at one moment."""

    state: WriterState
    lineage: str | None
    server_uuid: str
    durable: Position | None
    server: Position | None
    covered_until: datetime | None
    status: Mapping[str, Any] | None = None


class Writer:
    """One process as a writer of a source. `failed` is called from its thread, once."""

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        spool: Spool,
        target: str,
        interval_seconds: float,
        progress: Callable[[], Progress],
        audit: Callable[[list[str], float], None],
        failed: Callable[[BaseException], None],
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._layout = layout
        self._audit = audit
        self._beats = 0
        self._carried_durable: tuple[str, Position] | None = None
        self._spool = spool
        self._target = target
        self._noting = threading.Lock()
        self._progress = progress
        self._failed = failed
        self._stop = stop
        self._carried: dict[str, datetime] = {}
        self.beaten_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        now = datetime.now(UTC)
        self._me = Heartbeat(
            generation=0,
            token=_new_token(now),
            source=layout.source,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            since=now,
            at=now,
            interval_seconds=interval_seconds,
            state="streaming",
            lineage=None,
            server_uuid="",
            durable=None,
            server=None,
            covered_until=None,
        )

    def claim(self, store: Store) -> None:
        """Become the writer: put an object of a generation greater than any seen.

        What earlier writers proved (covered until, durable) is carried over. Raises StoreError if
        `store` refuses, ArchiveError if no generation is greater than one that was seen.
        """
        catalog = Catalog(store, self._layout)
        others = catalog.writers()
        for beat in catalog.heartbeats(sorted(others)):
            if beat.lineage and beat.covered_until:
                before = self._carried.get(beat.lineage, beat.covered_until)
                self._carried[beat.lineage] = max(before, beat.covered_until)
            if beat.lineage and beat.durable:
                self._carried_durable = (beat.lineage, beat.durable)
        generation = max((generation for generation, _ in others), default=0) + 1
        if generation > GENERATION_MOST:
            raise ArchiveError(
                f"no writer can have a generation greater than {GENERATION_MOST}, which "
                f"{self._layout.writer(*max(others))} has",
                hint="no streamer has put that object: delete it",
            )
        self._me = replace(self._me, generation=generation)
        self._put(store)
        _log.info("writer", generation=generation, token=self._me.token, host=self._me.host)

    def start(self) -> None:
        """Begin the heartbeat."""
        self._thread.start()

    def look(self, store: Store) -> dict[tuple[int, str], ObjectInfo]:
        """The writers that there are. Raises SupersededError if one is greater than we."""
        others = Catalog(store, self._layout).writers()
        self._give_way_to_greater(others)
        return others

    def _give_way_to_greater(self, others: Iterable[tuple[int, str]]) -> None:
        greater = [rank for rank in others if rank > self._me.rank]
        if greater:
            raise self._superseded(max(greater))

    def take_turn(self, store: Store, lineage: str) -> None:
        """Say, for ever, that this lineage is written from here on: before its first byte.

        A turn of a writer before us that arrives late finds its number taken. Raises
        SupersededError if somebody is greater than we, StoreError if `store` refuses, ArchiveError
        if no number is greater than one that was seen.
        """
        catalog = Catalog(store, self._layout)
        for _ in range(_MOST_TURNS):
            last = catalog.turn()
            self.look(store)
            number = last.number + 1 if last is not None else 1
            if number > GENERATION_MOST:
                raise ArchiveError(
                    f"no turn can have a number greater than {GENERATION_MOST}, which "
                    f"{self._layout.turn(GENERATION_MOST)} has",
                    hint="no streamer has put that object: delete it",
                )
            turn = Turn(
                number=number,
                lineage=lineage,
                generation=self._me.generation,
                token=self._me.token,
            )
            key = self._layout.turn(number)
            try:
                where_absent(partial(_put_turn, store, key, turn.to_json()))
            except PreconditionError:
                if read(store, key, Turn) != turn:  # else ours, where an answer was lost
                    continue
            _log.info("turn", number=number, lineage=lineage)
            return
        raise StoreError(
            f"others take the turn of {self._layout.source} again and again",
            hint=_HINT,
            transient=True,
        )

    def beat(self) -> None:
        """Look for a greater writer, renew our object, delete those of older writers.

        Every tenth time, and the first, the same listing shows all chunks, for the audit.
        """
        asked_at = time.monotonic()
        if self._beats % _AUDIT_EVERY == 0:
            others, keys = Catalog(self._store, self._layout).live()
            self._give_way_to_greater(others)
            self._audit(keys, asked_at)
        else:
            others = self.look(self._store)
        self._beats += 1
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

    def _put(self, store: Store, state: WriterState | None = None) -> None:
        now = self._progress()
        self._me = replace(
            self._me,
            at=datetime.now(UTC),
            state=state or now.state,
            lineage=now.lineage,
            server_uuid=now.server_uuid,
            durable=self._furthest(now),
            server=now.server,
            covered_until=self.furthest_covered(now.lineage, now.covered_until),
            status=now.status,
        )
        store.put(self._layout.writer(*self._me.rank), self._me.to_json())
        self.beaten_at = time.monotonic()

    @property
    def me(self) -> Heartbeat:
        """What was last put, or is to be."""
        return self._me

    def furthest_covered(self, lineage: str | None, until: datetime | None) -> datetime | None:
        """Up to when all is covered; until we know it, what the writers before us proved of it."""
        return until if until is not None else self._carried.get(lineage or "")

    def told_time(self, moment: datetime) -> None:
        """The source's clock. What was proved by a later one is of no use any more."""
        for lineage, until in [*self._carried.items()]:
            if until > moment:
                _log.warning("the source's clock was set back", covered_until=until, now=moment)
                del self._carried[lineage]

    def _furthest(self, now: Progress) -> Position | None:
        """What is durable; not less than the writer before us said of the same lineage."""
        if self._carried_durable is None or self._carried_durable[0] != now.lineage:
            return now.durable
        carried = self._carried_durable[1]
        if now.durable is None or now.durable.place < carried.place:
            return carried
        return now.durable

    def _superseded(self, rank: tuple[int, str]) -> SupersededError:
        """The error to end with; the spool has a note of it before anybody sees it."""
        beat = next(iter(Catalog(self._store, self._layout).heartbeats([rank])), None)
        by = Superseder(
            source=self._layout.source,
            target=self._target,
            generation=rank[0],
            token=rank[1],
            host=beat.host if beat else "",
        )
        try:
            with self._noting:  # the heartbeat's thread and the loop may see it at once
                self._spool.note_superseded(by)
        except SpoolError as error:
            _log.warning("who took over could not be noted", error=error)
        return SupersededError(
            f"another writer of {self._layout.source} has taken over{_where(beat)}: "
            f"generation {rank[0]}, ours is {self._me.generation}",
            hint=_HINT,
        )

    def _run(self) -> None:
        wait = min(_FIRST_BEAT_SECONDS, self._me.interval_seconds)
        while not self._stop.wait(wait):
            wait = self._me.interval_seconds
            try:
                self.beat()
            except StoreError as error:
                if self._stop.is_set():
                    return
                wait = min(wait, _AGAIN_SECONDS)
                _log.warning("heartbeat not written", error=error, hint=error.hint)
            except BaseException as error:  # noqa: BLE001 - the daemon ends the process with it
                self._failed(error)
                return


def _put_turn(store: Store, key: str, document: bytes, if_absent: bool) -> None:
    store.put(key, document, if_absent=if_absent)


def _new_token(now: datetime) -> str:
    """16 hex digits: the milliseconds since 1970, which make later ones greater, and chance."""
    return f"{int(now.timestamp() * 1000):011x}{secrets.randbits(20):05x}"


def give_way(
    store: Store,
    layout: Layout,
    noted: Superseder,
    *,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Return when the writer that took over from this spool's streamer no longer works.

    It does not if it says that it has stopped, if no writer's object as great as the noted one is
    there, or if the greatest does not change within two of its heartbeat intervals. Raises
    SupersededError if it changes, and also if `stop` is set before anything was found out. Puts
    nothing into the bucket.
    """
    catalog = Catalog(store, layout)
    seen: tuple[tuple[int, str], ObjectInfo] | None = None
    deadline, pause = math.inf, _PAUSES[0]
    beat: Heartbeat | None = None
    while clock() < deadline:
        found = max((item for item in catalog.writers().items() if item[0] >= noted.rank),
                    key=lambda item: item[0], default=None)  # fmt: skip
        if found is None:
            _log.info("the other writer is gone", host=noted.host, why="its object was deleted")
            return
        if found != seen:
            beat = next(iter(catalog.heartbeats([found[0]])), None)
            if beat is not None and beat.state == "stopped":
                _log.info("the other writer is gone", host=beat.host, why="it has stopped")
                return
            if seen is not None:
                raise _at_work(layout, found[0], beat)
            seconds = _patience(beat)
            deadline, pause = clock() + seconds, min(max(seconds / 10, _PAUSES[0]), _PAUSES[1])
            host = beat.host if beat else noted.host
            _log.info("watching the other writer", host=host, seconds=round(seconds, 1))
            seen = found
        if stop.wait(pause):
            raise _at_work(layout, found[0], beat)
    _log.info(
        "the other writer is gone",
        host=beat.host if beat else noted.host,
        why="it renews its object no more",
    )


def _at_work(layout: Layout, rank: tuple[int, str], beat: Heartbeat | None) -> SupersededError:
    return SupersededError(
        f"another writer of {layout.source} has taken over and still works{_where(beat)}: "
        f"generation {rank[0]}",
        hint=_HINT,
    )


def _patience(beat: Heartbeat | None) -> float:
    """How long a writer at work may leave its object as it is; bounded, whatever it says."""
    least, most = _INTERVALS
    interval = beat.interval_seconds if beat else most / 120  # unreadable: the option's default
    return 2 * min(max(interval, least), most) + _ANSWER_SECONDS


def _where(beat: Heartbeat | None) -> str:
    if beat is None:
        return ""
    return f" on {beat.host} (process {beat.pid}, since {beat.since:%Y-%m-%d %H:%M:%SZ})"
