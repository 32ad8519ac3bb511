"""What goes wrong in a round of chaos, and at which moment of a binlog's way into the bucket.

A `Trap` is a rule of `lab.proxy`: it waits for a moment among a streamer's requests and springs
once. What it then does to the processes is the caller's matter.
"""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import parse_qs

from lab.fault import Action, Request
from tests.beside import Beside
from tests.integration.bucket import CHUNK

PART = 5 << 20


class Phase(StrEnum):
    """Where on a binlog's way a fault strikes."""

    FLUSH = "flush"
    FULL_CHUNK = "full chunk"
    PART = "part"
    COPY = "copy"
    COMPLETE = "complete"
    COMPLETED = "between complete and entry"
    ENTERED = "between entry and delete"
    RELIEF = "file deleted"
    CLAIM = "claim"
    START = "start"
    ANY = "any moment"


class Kind(StrEnum):
    """What goes wrong."""

    KILL = "kill -9 of the streamer"
    KILL_AFTER = "kill -9 of the streamer, the store has acted"
    KILL_LATE = "kill -9 of the streamer, the store acts after the restart"
    WIPE = "kill -9 of the streamer, spool wiped"
    KILL_CHILD = "kill -9 of mysqlbinlog"
    KILL_SERVER = "kill -9 of mysqld"
    STOP = "SIGSTOP of the streamer"
    STOP_CHILD = "SIGSTOP of mysqlbinlog"
    STOP_SERVER = "SIGSTOP of mysqld"
    CUT_STORE = "connections to S3 cut"
    SWALLOW_STORE = "a network to S3 that swallows all"
    CUT_SERVER = "connections to MySQL cut"
    LATENCY = "latency before S3"
    ERRORS = "5xx of the store"
    LOST = "answers of the store lost"
    DISK = "disk limit reached"
    UPLOADS = "uploads vanish"
    SECOND = "second streamer"
    FROZEN = "second streamer while the first is stopped"
    RESET = "RESET of the server"
    ROTATIONS = "burst of rotations"


REQUEST_ONLY = frozenset({Kind.KILL_AFTER, Kind.KILL_LATE, Kind.LOST, Kind.ERRORS, Kind.FROZEN})
"""Those that need a request to be done to."""

ONLY_AT = {
    Kind.UPLOADS: frozenset({Phase.PART, Phase.COPY, Phase.COMPLETE}),
    Kind.DISK: frozenset({Phase.FULL_CHUNK, Phase.RELIEF}),
}


def fits(phase: Phase, kind: Kind) -> bool:
    """Whether this can happen there."""
    if phase in (Phase.RELIEF, Phase.ANY) and kind in REQUEST_ONLY:
        return False
    return phase in ONLY_AT.get(kind, frozenset(Phase))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a round; `skip` so many moments of that phase pass before."""

    phase: Phase
    kind: Kind
    skip: int = 0


MOST_SKIPPED = {Phase.FLUSH: 3, Phase.PART: 12, Phase.COPY: 11, Phase.START: 12}
LEAST_SKIPPED = {Phase.FULL_CHUNK: 3, Phase.PART: 3}


def plan(rounds: int, chance: random.Random) -> list[list[Fault]]:
    """The faults of each round: each phase and each kind about equally often, some in pairs."""
    phases = [phase for phase in Phase if phase is not Phase.ANY]
    found: list[list[Fault]] = []
    turn: list[Phase] = []
    used = dict.fromkeys(Kind, 0)
    for _ in range(rounds):
        if not turn:
            turn = chance.sample(phases, len(phases))
        phase = turn.pop()
        faults = [_one(phase, used, chance)]
        if chance.random() < 0.3:
            faults.append(_one(Phase.ANY, used, chance))
        found.append(faults)
    return found


def _one(phase: Phase, used: dict[Kind, int], chance: random.Random) -> Fault:
    kinds = [kind for kind in Kind if fits(phase, kind)]
    least = min(used[kind] for kind in kinds)
    kind = chance.choice([kind for kind in kinds if used[kind] == least])
    used[kind] += 1
    low = LEAST_SKIPPED.get(phase, 0)
    return Fault(
        phase, kind, chance.randint(low, max(low, MOST_SKIPPED.get(phase, 8 if low else 0)))
    )


def moment(request: Request) -> frozenset[Phase]:
    """The phases that a request, about to reach the store, is a moment of."""
    found = {Phase.START}
    query = parse_qs(request.query, keep_blank_values=True)
    chunk = CHUNK.search(request.path)
    match request.method:
        case "PUT" if chunk:
            full = int(chunk["end"]) - int(chunk["begin"]) == PART
            found.add(Phase.FULL_CHUNK if full else Phase.FLUSH)
        case "PUT" if "partNumber" in query:
            copied = "x-amz-copy-source" in request.headers
            found.add(Phase.COPY if copied else Phase.PART)
        case "PUT" if "/entries/" in request.path:
            found.add(Phase.COMPLETED)
        case "PUT" if "/writers/" in request.path:
            found.add(Phase.CLAIM)
        case "POST" if "uploadId" in query:
            found.add(Phase.COMPLETE)
        case "POST" if "delete" in query:
            found.add(Phase.ENTERED)
    return frozenset(found)


class Trap:
    """A rule that springs once: when `skip` moments of its phase have passed.

    A claim is the first request for a writer's object of its own; a deletion counts when it is the
    first behind an entry. `sprung` says that it is over.
    """

    def __init__(self, fault: Fault, spring: Callable[[Request], Action | None]) -> None:
        self.fault = fault
        self._spring = spring
        self._left = fault.skip
        self._lock = threading.Lock()
        self._armed = False
        self._writers: set[str] = set()
        self._entered = False
        self.sprung = threading.Event()

    def arm(self) -> None:
        """From now on moments count."""
        with self._lock:
            self._armed = True

    def __call__(self, request: Request) -> Action | None:
        """See `lab.fault.Rule`."""
        with self._lock:
            is_one = self._is_one(request)
            if not self._armed or self.sprung.is_set() or not is_one:
                return None
            if self._left > 0:
                self._left -= 1
                return None
            self._armed = False
        try:
            return self._spring(request)
        finally:
            self.sprung.set()

    def _is_one(self, request: Request) -> bool:
        phases = moment(request)
        if Phase.COMPLETED in phases:
            self._entered = True
        if Phase.CLAIM in phases:
            known = request.path in self._writers
            self._writers.add(request.path)
            return self.fault.phase is Phase.START or (
                self.fault.phase is Phase.CLAIM and not known
            )
        if Phase.ENTERED in phases and self.fault.phase is Phase.ENTERED:
            first, self._entered = self._entered, False
            return first
        return self.fault.phase in phases


class ReliefWatch(Beside):
    """Springs when a binlog's file leaves a spool: room is made."""

    def __init__(self, spools: list[Path], spring: Callable[[], None]) -> None:
        super().__init__()
        self._spools = spools
        self._spring = spring
        self.sprung = threading.Event()

    def run(self) -> None:
        seen = self._look()
        while not self.over.wait(0.002):
            there = self._look()
            if seen - there:
                try:
                    self._spring()
                finally:
                    self.sprung.set()
                return
            seen = there

    def _look(self) -> set[Path]:
        return {path for spool in self._spools for path in spool.glob("run-*/*.0*")}
