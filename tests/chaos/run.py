"""Rounds of chaos from a seed: `python -m tests.chaos.run --rounds 200 --seed 1`, or `make chaos`.

Each round writes a binlog of at least 64 MB, lets one or two faults strike, waits for quiet, and
compares. The faults follow from the seed; at which byte they strike is the machine's matter.
Ends with a table, and with 1 where anything differs.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.table import Table

from lab.disk import temporary_directory
from lab.fault import Action
from tests.chaos.fault import Fault, Kind, Phase, PunchWatch, Trap, plan
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
    starts: int = 0
    binlogs: int = 0
    binlog_bytes: int = 0
    sent_bytes: int = 0
    compared_bytes: int = 0
    looks: int = 0
    differences: list[str] = field(default_factory=list)

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
        self.sprung = Event()
        self._pause = Event()
        self._struck_at = 0.0

    def run(self) -> None:
        """Write, be struck, come to rest, compare."""
        world = self.world
        before = len(world.audit.differences)
        sent, compared = world.audit.sent_bytes, world.audit.binlog_bytes
        world.wiped = world.spoilt = False
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
        for what in world.leftovers():
            world.differs(what)
        if not world.wiped:
            self.totals.sent_bytes += world.audit.sent_bytes - sent
            self.totals.compared_bytes += world.audit.binlog_bytes - compared
        self.totals.binlog_bytes += world.audit.binlog_bytes - compared
        self.totals.rounds += 1
        self.totals.differences += [
            f"round {self.number}: {what}" for what in world.audit.differences[before:]
        ]
        world.audit.forget()

    def _options(self, fault: Fault) -> dict[str, str | int | float | Path | None]:
        limited = fault.phase is Phase.PUNCH or fault.kind is Kind.DISK
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
        if fault.phase is Phase.PUNCH:
            spools = [world.directory / world.active / "spool"]
            with PunchWatch(spools, lambda: self._strike(fault)) as watch:
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
            self._pause.wait(0.03)
        return False


def run(rounds: int, seed: int, *, say: Callable[[str], None], first: int = 0) -> Totals:
    """All rounds; `say` gets a line for each."""
    faults = plan(rounds, random.Random(seed))
    totals = Totals()
    begin = first
    while begin < rounds:
        end = min(rounds, begin + ROUNDS_A_WORLD)
        with (
            temporary_directory("binlog2s3-chaos-") as directory,
            World(directory, f"{seed}/{begin}") as world,
        ):
            for number in range(begin, end):
                started = time.monotonic()
                before = len(totals.differences)
                Round(world, faults[number], totals, number).run()
                what = ", ".join(f"{fault.kind} at {fault.phase}" for fault in faults[number])
                word = "ok" if len(totals.differences) == before else "DIFFERS"
                say(f"{number:4} {time.monotonic() - started:5.1f} s  {word}  {what}")
                for line in totals.differences[before:]:
                    say(f"     {line}")
                if len(totals.differences) > before:
                    keep = Path(f"chaos-{seed}-{number}.log")
                    with keep.open("w") as file:
                        for slot, stream in world.streams.items():
                            file.write(f"== {slot}\n{stream.stderr()}\n")
            world.stop()
            totals.binlogs += world.audit.binlogs
            totals.restarts += world.restarts
            totals.starts += world.starts
            totals.looks += world.audit.looks
        begin = end
    return totals


def table(totals: Totals, seed: int) -> Table:
    """The faults by kind and by phase, and what it all came to."""
    phases = [phase for phase in Phase if totals.by_phase(phase)]
    found = Table(title=f"{totals.rounds} rounds of chaos, seed {seed}")
    found.add_column("fault")
    for phase in phases:
        found.add_column(phase, justify="right")
    found.add_column("all", justify="right")
    for kind in Kind:
        counts = [totals.struck[phase, kind] for phase in phases]
        found.add_row(kind, *(str(count or "") for count in counts), str(sum(counts)))
    found.add_section()
    found.add_row("all", *(str(totals.by_phase(phase)) for phase in phases), str(totals.faults))
    return found


def summary(totals: Totals) -> str:
    """The figures below the table."""
    return (
        f"{totals.rounds} rounds, {totals.faults} faults ({totals.with_chunks} with at least "
        f"{LEAST_CHUNKS} full chunks there, {totals.missed} rounds whose moment did not come), "
        f"{totals.starts} starts, {totals.binlogs} binlogs, {totals.binlog_bytes / MB:,.0f} MB, "
        f"{totals.looks} looks at what was promised, bytes sent / bytes of binlog "
        f"{totals.ratio:.2f}, {len(totals.differences)} differences"
    )


def main() -> int:
    """From the command line."""
    parser = argparse.ArgumentParser(description="rounds of chaos from a seed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="begin with this round of the plan")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    given = parser.parse_args()
    console = Console(width=200 if not sys.stdout.isatty() else None)
    console.print(f"seed {given.seed}")
    totals = run(
        given.rounds,
        given.seed,
        say=lambda line: console.print(line, markup=False, highlight=False),
        first=given.first,
    )
    console.print(table(totals, given.seed))
    console.print(summary(totals))
    for line in totals.differences:
        console.print(line, markup=False)
    return 1 if totals.differences else 0


if __name__ == "__main__":
    sys.exit(main())
