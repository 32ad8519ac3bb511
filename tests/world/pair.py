"""Two servers: what one has written the other replicates from us, and both are then the same."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.recover import target
from binlog2s3.recover.channel import left_over, settle
from binlog2s3.recover.listen import Listen
from binlog2s3.recover.model import BinlogPosition, PlanPiece, ProgressReport
from binlog2s3.recover.plan_source import Window
from binlog2s3.recover.preflight import obstacles
from binlog2s3.recover.replicate import Replication, Work
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from lab.child import ServerFailedError, tail
from lab.mysql import MysqlServer
from tests.login import ROOT
from tests.own_files import Own, own, planned
from tests.waiting import wait_until
from tests.world.servers import clear, content, executed, is_mariadb
from tests.world.writes import held_up

NOTHING = planned(
    Own(
        pieces=(
            PlanPiece(
                lineage="own",
                binlog=BinlogName.parse("b.000001"),
                begin=4,
                end=4,
                transactions=0,
                gtids=GtidSet(),
            ),
        ),
        transactions=(),
        directory=Path("/none"),
        cut=1,
    )
)


@dataclass
class Noted:
    """Keeps the places that an apply notes; `half_way`: where the target has crashed."""

    places: list[BinlogPosition] = field(default_factory=list)
    half_way: str | None = None

    def reach(self, place: BinlogPosition) -> None:
        self.places.append(place)

    def follow_gtids(self) -> None:
        """A test knows what it asked for."""

    def keep(self, before: Mapping[str, object]) -> None:
        """Nobody restores them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers: what one has written the other replicates from us."""

    source: MysqlServer
    target: MysqlServer

    @property
    def is_mysql(self) -> bool:
        return not is_mariadb(self.source)

    def login(self, **changes: Any) -> Login:
        there = {"port": self.target.port, "socket": str(self.target.socket)}
        return replace(ROOT, **(there | changes))

    @property
    def names(self) -> list[str]:
        """The source's binlogs."""
        return [name for name, _ in self.source.binlogs()]

    def files(self, **options: Any) -> Own:
        """All that the source has written."""
        return own(self.source.datadir, self.names, **options)

    def parts(self, chance: random.Random) -> Iterator[tuple[int, Own]]:
        """The same in parts, each with the number of transactions that have come with its end.

        They end at random transactions; the environment's PLACES says how many.
        """
        names, every = self.names, self.files().transactions
        count = int(os.environ.get("PLACES", "6"))
        places = sorted(chance.sample(range(1, len(every)), count))
        for before, upto in pairwise([0, *places]):
            (piece, first), (last_piece, last) = every[before], every[upto - 1]
            begin, end = (names.index(str(one.binlog)) for one in (piece, last_piece))
            of = names[begin : end + 1]
            yield upto, own(self.source.datadir, of, begin=first.begin, end=last.end)

    def clear(self) -> None:
        """Both as new."""
        for server in (self.source, self.target):
            clear(server)

    @property
    def version(self) -> str:
        return str(self.source.query("SELECT VERSION()")[0][0])

    def obstacle(self, login: Login | None = None, **changes: Any) -> str | None:
        """Why it cannot be had; the first reason."""
        login = login or self.login()
        asked: dict[str, Any] = {"server_ids": {1}, "plan": NOTHING} | changes
        with Server(lambda: login) as server:
            found = obstacles(target.ask(server), asked.pop("plan"), **asked)
            return next((f"{one}: {one.hint}" for one in found), None)

    def apply(
        self,
        files: Own,
        told: Callable[[ProgressReport], None] = lambda _: None,
        *,
        login: Login | None = None,
        notes: "Noted | None" = None,
        listen: Listen = Listen(),  # noqa: B008 - frozen
        workers: int | None = None,
        window: Window | None = None,
        begins_behind: MariadbGtidList | None = None,
        **options: Any,
    ) -> None:
        """Bring them to the target; nothing of ours is there afterwards."""
        login = login or self.login()
        opened = options.pop("opened", files.opened)
        options.setdefault("transactions", files.those_of)
        with Server(lambda: login) as server:
            if not self.is_mysql:
                text = self.target.query("SELECT @@global.gtid_slave_pos")[0][0]
                if begins_behind is None:
                    begins_behind = MariadbGtidList.parse(str(text))
            plan = replace(planned(files, self.version), begins_behind=begins_behind)
            work = Work(plan=plan, open_stream=opened, **options)
            Replication(
                target.ask(server),
                work,
                notes or Noted(),
                listen=listen,
                workers=workers,
                window=window,
            ).apply(told)

    def settle(self) -> tuple[bool, BinlogPosition | None]:
        """As the next run begins: what was left is removed; whether it was there, and its place."""
        login = self.login()
        with Server(lambda: login) as server:
            asked = target.ask(server)
            left, place = left_over(asked), None
            if left is not None:
                left.stop()
                place = None if asked.facts.keeps_gtids else left.reached(())
            settle(asked)
            return left is not None, place

    def left(self) -> list[str]:
        """What there is of ours: files, notes, the channel."""
        show = "SHOW REPLICA STATUS" if self.is_mysql else "SHOW ALL SLAVES STATUS"
        rows = self.target.query(show)
        files = sorted(path.name for path in self.target.datadir.glob("*binlog2s3*"))
        return files + ["the channel" for row in rows if "binlog2s3" in row]


class Process:
    """A replication in a process of its own (tests/replicate_process.py), to be killed."""

    def __init__(self, pair: Pair, note: Path, **changes: Any) -> None:
        told = {
            "socket": str(pair.target.socket),
            "directory": str(pair.source.datadir),
            "names": pair.names,
            "note": str(note),
            "version": pair.version,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.replicate_process", json.dumps(told | changes)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, lines: int) -> None:
        """Until it has told so often how far it is, or has ended."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self.process.stdout.readline()

    def end(self, by: signal.Signals | None = None, timeout: float = 600) -> str:
        """Wait for its end; what it said on standard error."""
        if by is not None:
            self.process.send_signal(by)
        return self.process.communicate(timeout=timeout)[1]


def same(pair: Pair, *, with_gtids: bool = True) -> None:
    """The target is what the source is; events arrive disabled."""
    found, expected = content(pair.target), content(pair.source)
    assert [row[:3] for row in found.pop("events")] == [row[:3] for row in expected.pop("events")]
    assert found == expected
    state = "gtid_binlog_state"
    if with_gtids:
        assert executed(pair.target, state) == executed(pair.source, state)


def start_again(server: MysqlServer) -> None:
    """Start a server that was killed; a MariaDB that refuses to as the reference says."""
    try:
        server.start()
    except ServerFailedError:
        if "Failed to initialize multi master structures" not in tail(server.log):
            raise
        for path in server.datadir.glob("*binlog2s3*"):
            path.unlink()
        note = server.datadir / "multi-master.info"
        names = [line for line in note.read_text().splitlines() if line != "binlog2s3"]
        note.write_text("".join(f"{name}\n" for name in names))
        server.start()


def kill_again_and_again(
    chance: random.Random,
    begin: Callable[[], Process],
    server: MysqlServer,
    what: str,
    rounds: int,
) -> tuple[int, str]:
    """Where HOLD is, and then so often at any moment: "us", "the server" or "both".

    Returns how often we were not done yet, and what we said on standard error.
    """
    kills, said = 0, ""

    def kill(run: Process) -> None:
        nonlocal kills
        kills += run.process.poll() is None
        if what != "us":
            server.kill()
        if what != "the server":
            run.process.kill()

    def see_it_end(run: Process) -> None:
        nonlocal said
        said += run.end()
        if what != "us":
            start_again(server)

    with held_up(server) as stands:
        run = begin()
        wait_until(lambda: stands() or run.process.poll() is not None, what="it is held up")
        kill(run)
    see_it_end(run)
    for _ in range(rounds):
        run = begin()
        run.wait_for(chance.randrange(0, 4))
        Event().wait(chance.random() * 0.4)  # any moment will do
        kill(run)
        see_it_end(run)
    return kills, said
