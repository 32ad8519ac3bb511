"""A bucket whose hosts are lost, and what recoveries from it must give.

    world = build(folder, mysql, minio_program, seed=7)

A source with concurrent writers, a dump of it in the middle, a replica that takes over and has not
got its last transactions, a table that is dropped there by mistake, a last binlog that stays open.
Then all are gone.
"""

import fcntl
import json
import os
import random
import re
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest

from lab.cache import remove
from lab.disk import on_disk, temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from lab.tcp import Switch
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.happened import Happened, apply_all, apply_until, history_of
from tests.world.servers import (
    RELAXED,
    State,
    dump_of,
    executed,
    fetch_all,
    follow,
    forget,
    has,
    of_image,
    replica_status,
    restored,
    state_of,
)
from tests.world.writes import SCHEMA, Writers

BUCKET = "recovery"
TIGHT_US = 1_000
TIGHTEST = 20
"""So many pairs of commits are tight, also on a machine that takes longer for each."""
LOST_BYTES = 10_000
"""More than the transactions that the replica lacked have."""


# where to go


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place to recover to: the first `applied` transactions of the history, but for `skipped`."""

    kind: str
    arguments: tuple[str, ...]
    applied: int
    skipped: tuple[str, ...] = ()
    tight: bool = False
    is_open: bool = False

    @property
    def key(self) -> str:
        """Of its state."""
        return key_of(self.applied, *self.skipped)


def key_of(applied: int, *skipped: str) -> str:
    """Of a state, in a document."""
    return " ".join([str(applied), *skipped])


@dataclass(slots=True, kw_only=True)
class World:
    """A bucket whose hosts are lost, and what is known of them."""

    seed: int
    folder: Path
    history: list[Happened]
    base: int
    base_gtids: str
    targets: list[Target]
    states: dict[str, State]
    lost: list[str]
    lineages: list[str]
    password: str
    bucket: str = BUCKET

    @property
    def dump(self) -> Path:
        return self.folder / "dump.sql"

    @property
    def image(self) -> Path:
        return self.folder / "image"

    @property
    def first_alone(self) -> int:
        """Of the first transaction behind the dump that can be left out."""
        numbers = range(self.base, len(self.history))
        return next(n for n in numbers if self.history[n].tables == ("skippable",))

    def state(self, target: Target) -> State:
        """What a target server must hold then."""
        return self.states[target.key]

    def restored(self, binaries: ServerBinaries, directory: Path, server_id: int) -> MysqlServer:
        """A server that begins with the dump, not started."""
        return of_image(binaries, directory, self.image, server_id, self.password)

    @contextmanager
    def store(self, minio: Path) -> Iterator[MinioServer]:
        """One that has a copy of the bucket; it is gone afterwards."""
        with temporary_directory() as directory:
            server = MinioServer(minio, directory)
            shutil.copytree(self.folder / "store", server.data)
            with server:
                yield server

    def count(self, server: MysqlServer) -> int:
        """How many of the history's first transactions a server has, which has no others."""
        return len_of(executed(server)) - len_of(self.base_gtids) + self.base

    def save(self) -> None:
        text = {**asdict(self), "folder": ""}
        (self.folder / "world.json").write_text(json.dumps(text))

    @classmethod
    def load(cls, folder: Path) -> "World":
        text = json.loads((folder / "world.json").read_text())
        text["history"] = [
            Happened(**{**one, "tables": tuple(one["tables"])}) for one in text["history"]
        ]
        text["targets"] = [
            Target(
                **{
                    **one,
                    "arguments": tuple(one["arguments"]),
                    "skipped": tuple(one["skipped"]),
                }
            )
            for one in text["targets"]
        ]
        return cls(**{**text, "folder": folder})


def time_text(at_us: int, chance: random.Random) -> str:
    """As people write it, in one zone or another."""
    zone = timezone(timedelta(hours=chance.choice([0, 0, 2, -7])))
    at = datetime.fromtimestamp(0, zone) + timedelta(microseconds=at_us)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Chooser:
    """Draws targets by a seed; `history` is in the order in which a recovery brings it."""

    def __init__(
        self, history: Sequence[Happened], base: int, open_from: int, chance: random.Random
    ) -> None:
        self._history = history
        self._base = base
        self._open_from = open_from
        self._chance = chance
        self.drop = next(n for n, one in enumerate(history) if one.drops)

    def fifty(self, lineages: Mapping[str, str]) -> list[Target]:
        """The 50; at least 10 are in the open binlog, at least 5 between commits close together."""
        drawn = [
            *(self._time(tight=True, in_open=n < 3) for n in range(8)),
            *(self._time(tight=False, in_open=n < 2) for n in range(7)),
            *(self._after(in_open=n < 4) for n in range(13)),
            *(self._before(in_open=n < 2) for n in range(9)),
            *(self._position(lineages, in_open=n < 4) for n in range(9)),
            self._target("before-drop", self.drop, before_gtid=self._history[self.drop].gtid),
            self._target("latest", len(self._history), latest=None),
            *self._skips(),
        ]
        assert len(drawn) == 50
        assert sum(one.is_open for one in drawn) >= 10
        assert sum(one.tight for one in drawn) >= 5
        return sorted(drawn, key=lambda one: one.applied)

    def _target(self, kind: str, applied: int, **arguments: str | None) -> Target:
        """With options by name; the value None is a flag."""
        words = [
            f"--{name.replace('_', '-')}" + ("" if value is None else f"={value}")
            for name, value in arguments.items()
        ]
        return Target(
            kind=kind,
            arguments=tuple(words),
            applied=applied,
            is_open=applied > self._open_from,
        )

    def _applied(self, *, in_open: bool) -> int:
        return self._chance.randint(self._least(in_open=in_open) + 1, len(self._history) - 1)

    def _least(self, *, in_open: bool) -> int:
        return self._open_from if in_open else self._base

    def _time(self, *, tight: bool, in_open: bool) -> Target:
        """A moment between two commits, or just that of a commit."""
        times = [one.commit_us for one in self._history[self._least(in_open=in_open) :]]
        gaps = sorted(behind - before for before, behind in pairwise(times) if behind > before)
        most = max(TIGHT_US, *gaps[:TIGHTEST])
        for _ in range(100_000):
            applied = self._applied(in_open=in_open)
            before, behind = self._history[applied - 1 : applied + 1]
            apart = behind.commit_us - before.commit_us
            if apart >= 1 and (not tight or apart <= most):
                first, last = before.commit_us, behind.commit_us - 1
                at = self._chance.choice([first, last, self._chance.randint(first, last)])
                text = time_text(at, self._chance)
                return replace(self._target("time", applied, to_time=text), tight=tight)
        raise AssertionError("no two commits are as far apart as is wanted")

    def _after(self, *, in_open: bool) -> Target:
        applied = self._applied(in_open=in_open)
        return self._target("to-gtid", applied, to_gtid=self._history[applied - 1].gtid)

    def _before(self, *, in_open: bool) -> Target:
        applied = self._applied(in_open=in_open)
        return self._target("before-gtid", applied, before_gtid=self._history[applied].gtid)

    def _position(self, lineages: Mapping[str, str], *, in_open: bool) -> Target:
        """The end of a transaction, in the binlog of the host that it comes from.

        Both hosts' binlogs have the same names. What lies in the first one's is meant with its
        lineage named; in the second one's only what is beyond the end of the first one's.
        """
        sizes: dict[str, int] = {}
        for one in self._history:
            if one.host == "a":
                sizes[one.binlog] = one.end
        for _ in range(100_000):
            applied = self._applied(in_open=in_open)
            last = self._history[applied - 1]
            if last.host == "a" or last.end > sizes.get(last.binlog, 0) + LOST_BYTES:
                place = f"{last.binlog}:{last.end}"
                lineage = lineages[last.host]
                return self._target("position", applied, to_position=place, lineage=lineage)
        raise AssertionError("all places are in both hosts' binlogs")

    def _skips(self) -> list[Target]:
        """Without one transaction that nothing behind it depends on; further on without two."""
        end = len(self._history)
        middle = self._base + (end - self._base) // 2
        first = self._alone(self._base, middle - 20)
        second = self._alone(middle, end - 20)
        made = []
        for most, skipped in ((middle, (first,)), (end - 1, (first, second))):
            applied = next(n for n in range(most, 0, -1) if not is_tagged(self._history[n].gtid))
            last = self._history[applied - 1].gtid
            one = self._target("skip", applied, to_gtid=last)
            words = (f"--skip-gtid={gtid}" for gtid in skipped)
            made.append(replace(one, skipped=skipped, arguments=(*one.arguments, *words)))
        return made

    def _alone(self, begin: int, end: int) -> str:
        alone = [one.gtid for one in self._history[begin:end] if one.tables == ("skippable",)]
        return self._chance.choice(alone)


def ten_of(targets: Sequence[Target]) -> list[Target]:
    """Ten of them, without skips: one of each kind, and some between close commits."""
    whole = [one for one in targets if not one.skipped]
    kinds = {one.kind: one for one in whole}
    others = sorted((one for one in whole if one not in kinds.values()), key=lambda o: not o.tight)
    return sorted([*kinds.values(), *others][:10], key=lambda one: one.applied)


# a world


def build(
    folder: Path,
    binaries: ServerBinaries,
    minio: Path,
    *,
    seed: int,
    small: bool = False,
) -> World:
    """Make one: all hosts are gone in the end, and what they held at each target is known.

    `small`: fewer writes, and ten targets instead of fifty.
    """
    each = 90 if small else 180
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(seed)
    with ExitStack() as stack:
        store = stack.enter_context(MinioServer(minio, folder / "minio"))
        store.make_bucket(BUCKET)
        source = stack.enter_context(
            MysqlServer(binaries, folder / "a", server_id=1, options=RELAXED)
        )
        replica = MysqlServer(binaries, folder / "b", server_id=2, options=RELAXED)
        replica.password = source.password
        stack.enter_context(replica)
        source.query(*SCHEMA)
        follow(replica, source)
        replica.query(*["FLUSH BINARY LOGS"] * 4)  # its numbers are others than the source's
        door = stack.enter_context(Switch(source.port))
        options = {"mysql-port": door.port}
        stream = stack.enter_context(
            StreamProcess(folder / "stream", source, store, BUCKET, options=options)
        )
        bucket = Bucket(store, BUCKET)
        _write_on_source(source, folder, seed, each)
        _wait_for(replica, source)
        replica.query("STOP REPLICA")
        before = executed(source)
        source.query(*[f"INSERT INTO shop.skippable VALUES (-1, {n})" for n in range(9)])
        lost = _each_of(source, before)
        wait_durable(stream, bucket, source)
        source.kill()
        forget(replica)
        door.turn(replica.port)
        _write_on_replica(replica, seed, each)
        wait_durable(stream, bucket, replica)
        stream.kill()
        lineages = _lineages(bucket)
        open_binlog = replica.binlogs()[-1][0]
        with MysqlServer(binaries, folder / "r", server_id=3, options=RELAXED) as fresh:
            restored(fresh, folder / "dump.sql", folder / "image")
        witness = of_image(binaries, folder / "w", folder / "image", 4, source.password)
        stack.enter_context(witness)
        fetch_all(witness, replica)
        replica.kill()
        of_replica = history_of(replica, "b")
        history = joined(history_of(source, "a"), of_replica, lost)
        base_gtids = executed(witness)
        base = _count_in(history, witness, base_gtids)
        opened = next(
            n for n, one in enumerate(history) if (one.host, one.binlog) == ("b", open_binlog)
        )
        targets = Chooser(history, base, opened, chance).fifty(lineages)
        targets = ten_of(targets) if small else targets
        states = _states(witness, history, of_replica, base, targets)
        other = of_image(binaries, folder / "w2", folder / "image", 5, source.password)
        if skipping := [one for one in targets if one.skipped]:
            states |= _states_without(other, witness, history, skipping)
        store.kill()
        shutil.move(store.data, folder / "store")
    made = World(
        seed=seed,
        folder=folder,
        history=history,
        base=base,
        base_gtids=base_gtids,
        targets=targets,
        states=states,
        lost=lost,
        lineages=[lineages["a"], lineages["b"]],
        password=source.password,
    )
    made.save()
    return made


def _write_on_source(source: MysqlServer, folder: Path, seed: int, each: int) -> None:
    """With a dump in the middle of it."""
    Writers(source, seed=seed, each=each // 4, first=0, rotations=1).run()
    during = Writers(source, seed=seed, each=each // 3, first=100, ddl=False, xa=False)
    during.start()
    dump_of(source, folder / "dump.sql", "--set-gtid-purged=ON")
    during.join()
    Writers(source, seed=seed, each=each, first=200, rotations=3).run()


def _write_on_replica(replica: MysqlServer, seed: int, each: int) -> None:
    """A table is dropped by mistake, and work goes on; the last binlog stays open."""
    chosen = {"seed": seed, "precious": False}
    Writers(replica, each=each // 2, first=300, rotations=2, **chosen).run()
    replica.query("DROP TABLE `shop`.`precious`")
    Writers(replica, each=each // 4, first=400, rotations=1, **chosen).run()
    Writers(replica, each=each // 2, first=500, rotations=0, **chosen).run()


def _wait_for(replica: MysqlServer, source: MysqlServer) -> None:
    """Until it has all that its source has."""
    wanted = executed(source)

    def has_all() -> bool:
        status = replica_status(replica)
        assert not status["Last_SQL_Error"], status["Last_SQL_Error"]
        return has(replica, wanted)

    wait_until(has_all, 120, "the replica has all")


def _each_of(server: MysqlServer, before: str) -> list[str]:
    """The GTIDs that came since, one by one."""
    ((new,),) = server.query(f"SELECT GTID_SUBTRACT(@@gtid_executed, '{before}')")
    uuid, _, numbers = str(new).rpartition(":")
    first, _, last = numbers.partition("-")
    return [f"{uuid}:{n}" for n in range(int(first), int(last or first) + 1)]


def len_of(gtids: str) -> int:
    """How many transactions a MySQL GTID set has."""
    ranges = re.findall(r":(\d+)(?:-(\d+))?(?=[:,\s]|$)", gtids)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


def _lineages(bucket: Bucket) -> dict[str, str]:
    """The ids of the source's and the replica's, by host."""
    keys = [key for key in list(bucket.keys()) if key.endswith("/lineage.json")]
    found = sorted((json.loads(bucket.get(key)) for key in keys), key=lambda one: one["lineage"])
    first = next(one for one in found if one["parent"] is None)
    (second,) = [one for one in found if one is not first]
    assert second["parent"]["join"] == "exact", second
    return {"a": str(first["lineage"]), "b": str(second["lineage"])}


def joined(
    source: Sequence[Happened], replica: Sequence[Happened], lost: Sequence[str]
) -> list[Happened]:
    """What a recovery brings: the source's transactions up to the fail-over, then the replica's."""
    ours = {one.gtid for one in source}
    common = [one.gtid for one in replica if one.gtid in ours]
    kept = [one for one in source if one.gtid not in lost]
    assert [one.gtid for one in kept][-len(common) :] == common, "the replica has another order"
    assert [one.gtid for one in source[len(kept) :]] == list(lost)
    history = kept + [one for one in replica if one.gtid not in ours]
    times = [one.commit_us for one in history]
    assert times == sorted(times), "the clock went back: run it again"
    return history


def _count_in(history: Sequence[Happened], server: MysqlServer, gtids: str) -> int:
    """How many of the first transactions are in the set; none behind them is."""

    def subset(inner: Sequence[Happened], outer: str) -> bool:
        text = ",".join(one.gtid for one in inner)
        return bool(server.query(f"SELECT GTID_SUBSET('{text}', {outer})")[0][0])

    whole = f"'{gtids}'"
    count = bisect_left(history, True, key=lambda one: not subset([one], whole))
    behind = ",".join(one.gtid for one in history[count:])
    assert subset(history[:count], whole), "the dump lies in the middle"
    assert subset(history[count:], f"GTID_SUBTRACT('{behind}', {whole})"), "the same"
    return count


def _states(
    witness: MysqlServer,
    history: Sequence[Happened],
    replica: Sequence[Happened],
    base: int,
    targets: Sequence[Target],
) -> dict[str, State]:
    """What the witness holds at each; it goes from one to the next and stops by itself."""
    ends = {one.gtid: (one.binlog, one.end) for one in replica}
    states = {}
    for applied in sorted({base, *(one.applied for one in targets)}):
        if applied == len(history):
            apply_all(witness, ",".join(one.gtid for one in history))
        elif applied > base:
            apply_until(witness, _until(history, applied, ends))
            around = [one.gtid for one in history[applied - 1 : applied + 1]]
            there = [has(witness, gtid) for gtid in around]
            assert there == [True, False], f"the witness is not between {around}: {there}"
        states[key_of(applied)] = state_of(witness)
    return states


def _until(history: Sequence[Happened], applied: int, ends: Mapping[str, tuple[str, int]]) -> str:
    """Where to stop; of GTIDs with tags MySQL 9.7 takes no notice when it is to stop at one."""
    behind = history[applied].gtid
    if not is_tagged(behind):
        return f"SQL_BEFORE_GTIDS = '{behind}'"
    name, end = ends[history[applied - 1].gtid]
    return f"SOURCE_LOG_FILE = '{name}', SOURCE_LOG_POS = {end}"


def is_tagged(gtid: str) -> bool:
    return gtid.count(":") > 1


def _states_without(
    other: MysqlServer,
    witness: MysqlServer,
    history: Sequence[Happened],
    targets: Sequence[Target],
) -> dict[str, State]:
    """What a replica holds that has some transactions' GTIDs, and not what they did."""
    states = {}
    left_out: list[str] = []
    with other:
        fetch_all(other, witness)
        for target in targets:
            for gtid in target.skipped:
                if gtid not in left_out:
                    apply_until(other, f"SQL_BEFORE_GTIDS = '{gtid}'")
                    commit_empty(other, gtid)
                    left_out.append(gtid)
            assert tuple(left_out) == target.skipped
            apply_until(other, _until(history, target.applied, {}))
            states[target.key] = state_of(other)
    return states


def commit_empty(server: MysqlServer, gtid: str) -> None:
    server.query(f"SET gtid_next = '{gtid}'", "BEGIN", "COMMIT", "SET gtid_next = AUTOMATIC")


@contextmanager
def shared(
    factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Iterator[Path]:
    """A folder that one process makes for all that run tests here; the last one deletes it."""
    base = factory.getbasetemp()
    if not on_disk(base):
        with temporary_directory() as directory:
            make(directory / name)
            yield directory / name
        return
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    mine = place.with_name(f"{name}.{os.getpid()}.user")
    mine.touch()
    try:
        with _alone(place):
            if not (place / "world.json").is_file():
                remove(place)
                make(place)
        yield place
    finally:
        with _alone(place):
            mine.unlink()
            if not list(place.parent.glob(f"{name}.*.user")):
                remove(place)


@contextmanager
def _alone(place: Path) -> Iterator[None]:
    with place.with_name(f"{place.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
