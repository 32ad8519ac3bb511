"""Rounds of chaos from a seed: `python -m tests.chaos.run --rounds 200 --seed 1`, or `make chaos`.

Each round writes a binlog of at least 64 MB, lets one or two faults strike, waits for quiet, and
compares. The faults follow from the seed; at which byte they strike is the machine's matter.
Ends with a table, and with 1 where anything differs.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, fields
from pathlib import Path

from lab.disk import temporary_directory
from lab.fault import Action
from tests.chaos.fault import Fault, Kind, Phase, ReliefWatch, Trap, plan
from tests.chaos.world import LIMIT, World

MB = 1_000_000
ROUNDS_A_WORLD = 15
LEAST_CHUNKS = 3
QUIET_SECONDS = 120


@dataclass(slots=True)
class Totals:
    """What happened in all rounds so far."""

    rounds: int = 0
    struck: Counter[tuple[Phase, Kind]] = field(default_factory=Counter)
    with_chunks: int = 0
    missed: int = 0
    restarts: int = 0
    binlogs: int = 0
    binlog_bytes: int = 0
    sent_bytes: int = 0
    compared_bytes: int = 0
    looks: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, other: "Totals") -> None:
        """Count these as well."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    @property
    def faults(self) -> int:
        return sum(self.struck.values())

    def by_phase(self, phase: Phase) -> int:
        return sum(count for (there, _), count in self.struck.items() if there is phase)

    def by_kind(self, kind: Kind) -> int:
        return sum(count for (_, there), count in self.struck.items() if there is kind)

    @property
    def ratio(self) -> float:
        """Bytes sent over bytes of binlog, in rounds without a wiped spool."""
        return self.sent_bytes / self.compared_bytes if self.compared_bytes else 0.0


class Round:
    """One round in a world."""

    def __init__(self, world: World, faults: list[Fault], totals: Totals, number: int) -> None:
        self.world = world
        self.faults = faults
        self.totals = totals
        self.target = world.chance.randint(64 * MB, 80 * MB)
        self.number = number

    def run(self) -> None:
        """Write, be struck, come to rest, compare."""
        world = self.world
        sent, compared = world.audit.sent_bytes, world.audit.binlog_bytes
        world.wiped = False
        first = self.faults[0]
        options = self._options(first)
        if options != world.options and world.streams:
            world.stop()
        world.options = options
        if not world.alive:
            world.start()
        self._storm(first)
        for fault in self.faults[1:]:
            world.pause.wait(world.chance.uniform(0, 2))
            self._strike(fault)
            world.follow(fault.kind)
        self._to_rest()
        world.audit.compare()
        for what in self._left():
            world.differs(what)
        if not world.wiped:
            self.totals.sent_bytes += world.audit.sent_bytes - sent
            self.totals.compared_bytes += world.audit.binlog_bytes - compared
        self.totals.binlog_bytes += world.audit.binlog_bytes - compared
        self.totals.rounds += 1
        found = [f"round {self.number}: {what}" for what in world.audit.take()]
        self.totals.differences += found
        if not found:
            world.audit.forget()

    def _options(self, fault: Fault) -> dict[str, str | int | float | Path | None]:
        limited = fault.phase is Phase.RELIEF or fault.kind is Kind.DISK
        interval = 0 if fault.phase is Phase.PART else 1
        return {"flush-interval": interval, "spool-max-bytes": LIMIT if limited else None}

    def _strike(self, fault: Fault) -> Action | None:
        """Count a fault and let its first part happen."""
        world = self.world
        self.totals.struck[fault.phase, fault.kind] += 1
        self.totals.with_chunks += world.full_chunks() >= LEAST_CHUNKS
        return world.strike(fault.kind)

    def _storm(self, fault: Fault) -> None:
        world = self.world
        world.writes.bulk(self.target)
        if fault.phase is Phase.RELIEF:
            spools = [world.directory / world.active / "spool"]
            with ReliefWatch(spools, lambda: self._strike(fault)) as watch:
                self._until(lambda: watch.sprung.is_set() or world.size() >= self.target, 60)
                self._until(watch.sprung.is_set, 15)
            self._end_storm(fault, sprung=watch.sprung.is_set())
            return
        trap = Trap(fault, lambda _: self._strike(fault))
        world.proxy.rules.insert(0, trap)
        try:
            if fault.phase in (Phase.CLAIM, Phase.START):
                self._until(lambda: world.size() >= 24 * MB, 60)
                self._until(lambda: world.full_chunks() >= LEAST_CHUNKS, 20)
                world.stream.kill()
                trap.arm()
                world.ensure()
            elif fault.phase is Phase.FLUSH:
                self._until(lambda: world.size() >= 24 * MB, 60)
                world.writes.trickle()
                self._until(lambda: world.full_chunks() >= LEAST_CHUNKS, 10)
                trap.arm()
                self._until(trap.sprung.is_set, 20)
            else:
                trap.arm()
            self._until(lambda: trap.sprung.is_set() or world.size() >= self.target, 60)
            if not trap.sprung.is_set():
                world.writes.hold()
                world.server.query("FLUSH BINARY LOGS")
                world.writes.trickle()
                self._until(trap.sprung.is_set, 30)
        finally:
            world.proxy.rules.remove(trap)
        self._end_storm(fault, sprung=trap.sprung.is_set())

    def _end_storm(self, fault: Fault, *, sprung: bool) -> None:
        world = self.world
        if sprung:
            world.follow(fault.kind)
        else:
            self.totals.missed += 1
        if self._until(lambda: world.size() < self.target, 1):
            world.writes.bulk(self.target - world.size())
        self._until(lambda: world.size() >= self.target, 60)
        world.writes.trickle()

    def _to_rest(self) -> None:
        world = self.world
        world.calm()
        world.writes.hold()
        world.ensure()
        world.server.query("FLUSH BINARY LOGS")
        deadline = time.monotonic() + QUIET_SECONDS
        chunked = world.options["flush-interval"] != 0
        while why := world.audit.settled(chunked=chunked):
            world.ensure()
            if time.monotonic() > deadline:
                tail = world.stream.stderr()[-2500:]
                world.differs(f"not at rest after {QUIET_SECONDS} s: {why}\n{tail}")
                return
            world.pause.wait(0.2)

    def _left(self) -> list[str]:
        """What is left over and does not go."""
        left: list[str] = []

        def none() -> bool:
            left[:] = self.world.leftovers()
            return not left

        self._until(none, 60)
        return left

    def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition, but not for ever; a server that is down has none."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return True
            except Exception:  # noqa: BLE001 - the server may be down or stand still just now
                if self.world.stopped:
                    return False
            self.world.pause.wait(0.03)
        return False


def run(
    rounds: int, seed: int, *, say: Callable[[str], None], first: int = 0, jobs: int = 1
) -> Totals:
    """All rounds, in worlds of their own, `jobs` worlds at a time; `say` gets a line for each."""
    faults = plan(rounds, random.Random(seed))
    begins = range(first, rounds, ROUNDS_A_WORLD)
    worlds = [(begin, faults[begin : begin + ROUNDS_A_WORLD], seed) for begin in begins]
    totals = Totals()
    if jobs == 1:
        for world in worlds:
            totals.add(_in_a_world(*world, say=say))
        return totals
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for done in as_completed([pool.submit(_in_a_world, *world) for world in worlds]):
            totals.add(done.result())
    return totals


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


def _in_a_world(
    begin: int, faults: list[list[Fault]], seed: int, *, say: Callable[[str], None] = _print
) -> Totals:
    """The rounds from `begin` on; what stops them is a difference, too."""
    totals = Totals()
    with (
        temporary_directory("binlog2s3-chaos-") as directory,
        World(directory, f"{seed}/{begin}") as world,
    ):
        for number, each in enumerate(faults, begin):
            started = time.monotonic()
            before = len(totals.differences)
            try:
                Round(world, each, totals, number).run()
            except Exception:  # noqa: BLE001 - whatever it is, it is no success
                totals.differences.append(f"round {number}: {traceback.format_exc()}")
            what = ", ".join(f"{fault.kind} at {fault.phase}" for fault in each)
            differs = len(totals.differences) > before
            word = "DIFFERS" if differs else "ok"
            say(f"{number:4} {time.monotonic() - started:5.1f} s  {word}  {what}")
            if differs:
                for line in totals.differences[before:]:
                    say(f"     {line}")
                _keep_logs(world, f"chaos-{seed}-{number}")
                break  # what is wrong stays wrong in this world
        world.stop()
        totals.differences += [f"world {begin}, at its end: {what}" for what in world.audit.take()]
        totals.binlogs += world.audit.binlogs
        totals.restarts += world.starts - 1
        totals.looks += world.audit.looks
    return totals


def _keep_logs(world: World, name: str) -> None:
    folder = Path(tempfile.gettempdir()) / name
    folder.mkdir(exist_ok=True)
    for slot, stream in world.streams.items():
        (folder / f"{slot}.log").write_text(stream.stderr())
    (folder / "server.log").write_bytes(world.server.log.read_bytes())


def markdown(totals: Totals, seed: int) -> str:
    """The faults by kind and by phase, and what it all came to."""
    phases = [phase for phase in Phase if totals.by_phase(phase)]
    lines = [
        f"Seed {seed}: {summary(totals)}.",
        "",
        f"| fault | {' | '.join(phases)} | all |",
        f"|---|{'--:|' * (len(phases) + 1)}",
    ]
    for kind in Kind:
        counts = [str(totals.struck[phase, kind] or "") for phase in phases]
        lines.append(f"| {kind} | {' | '.join(counts)} | {totals.by_kind(kind)} |")
    sums = [str(totals.by_phase(phase)) for phase in phases]
    lines.append(f"| all | {' | '.join(sums)} | {totals.faults} |")
    return "\n".join([*lines, ""])


def summary(totals: Totals) -> str:
    """The figures below the table."""
    return (
        f"{totals.rounds} rounds, {totals.faults} faults ({totals.with_chunks} with at least "
        f"{LEAST_CHUNKS} full chunks there, {totals.missed} rounds whose moment did not come), "
        f"{totals.restarts} restarts of a streamer, {totals.binlogs} binlogs, "
        f"{totals.binlog_bytes / MB:,.0f} MB, "
        f"{totals.looks} looks at what was promised, bytes sent / bytes of binlog "
        f"{totals.ratio:.2f}, {len(totals.differences)} differences"
    )


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description="rounds of chaos from a seed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="begin with this round of the plan")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--jobs", type=int, default=1, help="so many worlds at a time")
    given = parser.parse_args()
    if given.jobs < 1 or not 0 <= given.first < given.rounds:
        parser.error("--rounds and --jobs must be at least 1, --first less than --rounds")
    _print(f"seed {given.seed}")
    totals = run(given.rounds, given.seed, say=_print, first=given.first, jobs=given.jobs)
    _print(markdown(totals, given.seed))
    for line in totals.differences:
        _print(line)
    return 1 if totals.differences else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted")
