"""`Tracking`: the history of a binlog, what becomes of what is left, until when all is in."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Join, Lineage, Parent
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.writers import Position, Unlogged
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import Flavour, GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import (
    AbortedError,
    ElsewhereError,
    ForkError,
    LeftOutError,
    PreconditionError,
)
from binlog2s3.server.connection import ServerBinlog, ServerPosition
from binlog2s3.store.s3 import ObjectInfo
from binlog2s3.stream.continuation import KnownEnd
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.job import Look
from binlog2s3.stream.spool import SpoolRun
from binlog2s3.stream.tail import Track, TrackState
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.waiting import Stop
from tests.binlog_writer import NOW, UUID_A, UUID_B, BinlogWriter, statement
from tests.documents import like, parent_of
from tests.memory_store import MemoryStore
from tests.process import AtOnce, config
from tests.streamer import InlineWorkers
from tests.unit.stream.builders import RUN, name, spool_in

LAYOUT = Layout("p", "orders")
START = datetime(2026, 1, 1, tzinfo=UTC)
PARENT = parent_of("20250101T000000Z-3e11fa47-0000", binlog="b.000009", join="unknown")


def binlog(
    number: int = 1, *, end: bool = False, timestamp: int = NOW, started: bool = False,
    more: int = 0,
) -> bytes:  # fmt: skip
    """Number n has transaction n, and `more`; `started`: a start of the server began it."""
    writer = BinlogWriter(timestamp=timestamp, created=timestamp if started else 0)
    writer.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{number - 1}" if number > 1 else ""))
    for later in range(number, number + 1 + more):
        writer.transaction([statement("insert")], gtid=(UUID_A, "", later))
    if end:
        writer.rotate(str(name(number + 1)))
    return bytes(writer.data)


class Bench:
    """`Tracking` over a store in memory, with workers that work when they are told to."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore(min_part_bytes=1)
        self.spool = spool_in(directory)
        self.looks = 0
        self.told: list[datetime] = []
        self.turns: list[tuple[str, int]] = []
        self.now = 100.0
        self.wants_list = False
        self.workers = InlineWorkers(4)
        self.uploads = AtOnce(
            catalog=Catalog(self.store, LAYOUT),
            bodies=self.store,
            config=config(directory, 1000),
            spool=self.spool,
            workers=self.workers,
            stop=Stop(),
            clock=lambda: self.now,
        )
        self.witnessed: dict[str, Unlogged] = {}
        self.said: dict[str, Any] = dict.fromkeys(("time_zone", "server", "durable", "leaves_out"))
        self.writer: Any = SimpleNamespace(
            look=self._look,
            take_turn=self._take_turn,
            told_time=self.told.append,
            before=self._before,
        )
        self.tracking = Tracking(
            catalog=Catalog(self.store, LAYOUT),
            spool=self.spool,
            writer=self.writer,
            uploads=self.uploads,
        )

    def _look(self) -> None:
        self.looks += 1

    def _before(self, lineage: str) -> Any:
        """What the writer before said."""
        return SimpleNamespace(unlogged=self.witnessed.get(lineage), **self.said)

    def _take_turn(self, lineage: str, describe: Callable[[], bool] | None = None) -> bool:
        described = describe is not None and describe()
        self.turns.append((lineage, len(self.store.objects)))
        return described

    def run(self, **facts: Any) -> SpoolRun:
        return self.spool.begin(replace(RUN, **facts))

    def track(self, run: SpoolRun, number: int, data: bytes) -> Track:
        """A binlog that a run brought."""
        path = run.directory / str(name(number))
        path.write_bytes(data)
        track = Track(name(number), path, Grid(1000))
        track.feed(memoryview(data))
        return track

    def admit(self, number: int = 1, data: bytes | None = None, **facts: Any) -> Track:
        """A binlog of a run of its own is taken in."""
        track = self.track(self.run(**facts), number, binlog(number) if data is None else data)
        self.tracking.admit(track)
        self.wants_list |= self.tracking.judge({})
        return track

    def follow(
        self,
        listed: tuple[ServerBinlog, ...],
        leaves_out: tuple[str, ...] | None = None,
        time_zone: SystemZone | None = None,
        started_at: datetime | None = None,
    ) -> None:
        """A run begins, before which the server has said this."""
        run: Any = SimpleNamespace(
            facts=SimpleNamespace(uuid=self.tracking.server_uuid),
            listed=listed,
            leaves_out=leaves_out,
            time_zone=time_zone,
            started_at=started_at,
            gtids_outside="",
        )
        self.tracking.follow(run)

    def perform(self, lineage: str = "", number: int = 0) -> None:
        """All requests are made, or those of a lineage, or of a binlog, alone."""
        waiting = []
        while self.workers.tasks:
            job = getattr(self.workers.tasks[0][0], "job", None)
            is_wanted = job is None or (
                lineage in ("", job.lineage) and number in (0, job.track.name.number)
            )
            if is_wanted:
                self.workers.perform()
            else:
                waiting.append(self.workers.tasks.pop(0))
        self.workers.tasks = waiting

    def settle(self, lineage: str = "", number: int = 0) -> None:
        """All that can be done now is done; of a lineage, or of a binlog, alone if one is named."""
        for _ in range(30):
            self.now += 2
            self.uploads.step(0)
            self.perform(lineage, number)
            self.uploads.step(0)
            self.wants_list |= self.tracking.judge({})

    def covered_until(self) -> datetime | None:
        return self.tracking.covered_until(self.tracking.newest)

    def lineages(self) -> list[Lineage]:
        return Catalog(self.store, LAYOUT).lineages()

    def readable(self, lineage: Lineage) -> dict[str, str]:
        """The state of its binlogs."""
        found = Catalog(self.store, LAYOUT).contents(lineage)
        return {str(name): "open" if name in found.open else "archived" for name in found.sizes}

    @property
    def lineage(self) -> Lineage:
        assert self.tracking.lineage is not None
        return self.tracking.lineage

    @property
    def coverage(self) -> Coverage:
        assert self.tracking.coverage is not None
        return self.tracking.coverage

    @property
    def end(self) -> KnownEnd:
        assert self.tracking.end is not None
        return self.tracking.end


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """Nothing is known yet."""
    made = Bench(tmp_path / "spool")
    with closing(made.spool):
        yield made


def after(lineage: Lineage, number: int) -> KnownEnd:
    """Where a lineage ends in the bucket: with all of this binlog."""
    return KnownEnd(lineage=lineage, last=name(number), size=100, closed=True)


def begin(bench: Bench, parent: Parent | None = None) -> Track:
    """The first lineage begins."""
    bench.tracking.begin(UUID_A, "mysql", parent)
    return bench.admit()


def test_nothing_is_uploaded_before_its_lineage_is_described(bench: Bench) -> None:
    """Half a beginning says nothing; then lineage.json goes first, and the run notes it."""
    bench.tracking.begin(UUID_A, "mysql", None)
    run, data = bench.run(), binlog()
    track = bench.track(run, 1, data[:130])
    bench.tracking.admit(track)
    bench.tracking.judge({})
    assert (bench.tracking.lineage, bench.uploads.jobs) == (None, [])
    assert bench.tracking.server_uuid == UUID_A
    assert not bench.tracking.done
    assert bench.store.objects == {}
    (run.directory / "b.000001").write_bytes(data)
    track.feed(memoryview(data)[130:])
    bench.tracking.judge({})
    (lineage,) = bench.lineages()
    assert lineage == bench.lineage
    assert (lineage.server_uuid, lineage.first_binlog, lineage.gtid_set) == (UUID_A, name(1), "")
    assert lineage.first_binlog_time == datetime.fromtimestamp(NOW, UTC)
    assert [found.facts.lineage for found in bench.spool.runs()] == [lineage.id]
    assert bench.looks == 1
    bench.settle()
    assert bench.tracking.done
    assert bench.readable(lineage) == {"b.000001": "open"}


def test_what_is_still_on_its_way_is_not_durable(bench: Bench) -> None:
    """Another server took over and wrote nothing; then the first one is back."""
    begin(bench)
    lineage, known_end = bench.lineage, bench.end
    assert known_end.size > 0
    bench.tracking.begin(UUID_B, "mysql", None)
    bench.tracking.resume(known_end)
    assert bench.coverage.durable is None
    bench.settle()
    assert bench.readable(lineage) == {"b.000001": "open"}
    bench.tracking.begin(UUID_B, "mysql", None)
    bench.tracking.resume(known_end)
    assert bench.coverage.durable == known_end.position


def test_what_comes_after_bytes_that_are_on_their_way_is_not_durable(bench: Bench) -> None:
    """The same, and the first one goes on with its next binlog, which arrives sooner."""
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.admit(1, binlog(1, end=True))
    known_end = bench.end
    assert known_end.closed
    bench.tracking.begin(UUID_B, "mysql", None)
    bench.tracking.resume(known_end)
    following = bench.admit(2)
    bench.settle(number=2)
    assert bench.readable(bench.lineage) == {"b.000002": "open"}
    assert bench.coverage.durable is None
    bench.settle()
    assert bench.readable(bench.lineage) == {"b.000001": "archived", "b.000002": "open"}
    assert bench.coverage.durable == Position.of(following.end, following.gtids_after())


@pytest.mark.parametrize("is_left", [False, True])
def test_a_history_goes_on_behind_a_binlog_that_has_no_end(bench: Bench, *, is_left: bool) -> None:
    """It is all there once the next one is read, also after another server was tried meanwhile."""
    begin(bench)
    known_end = bench.end
    if is_left:
        bench.tracking.begin(UUID_B, "mysql", None)
        bench.settle()
        bench.tracking.resume(known_end)
    else:
        assert bench.tracking.last is not None
        bench.tracking.abandon(bench.tracking.last)
        bench.settle()
    coverage = bench.coverage
    assert (coverage.durable, coverage.following) == (known_end.position, name(1))
    following = bench.admit(2)
    bench.settle()
    assert coverage.durable == Position.of(following.end, following.gtids_after())
    assert coverage.following == name(2)
    assert coverage.has(name(1))


def test_an_answer_that_was_lost_is_no_second_lineage(bench: Bench) -> None:
    """What lies there and says the same is ours; what says anything else is not replaced."""
    begin(bench)
    ours, key = bench.lineage, LAYOUT.lineage(bench.lineage.id)
    assert not bench.tracking._put(ours)
    other = like(ours, server_uuid=UUID_B)
    with pytest.raises(PreconditionError):
        bench.tracking._put(other)
    assert bench.store.get(key) == ours.to_json()


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"server_uuid": UUID_B},
        {"first_binlog": name(2)},
        {"first_binlog_time": START},
        {"parent": PARENT},
    ],
)
def test_two_that_see_the_same_beginning_write_one_history(
    bench: Bench, change: Mapping[str, Any]
) -> None:
    """What another writer has decided is taken; of another server, binlog, time or parent not."""
    begin(bench)
    decided = like(bench.lineage, id="20200101T000000Z-3e11fa47-0000", **change)
    bench.store.delete(list(bench.store.objects))
    bench.store.put(LAYOUT.lineage(decided.id), decided.to_json())
    begin(bench)
    assert (bench.lineage.id == decided.id) is (not change)
    assert len(bench.lineages()) == (2 if change else 1)


@pytest.mark.parametrize("refuses", [True, False])
def test_where_nobody_else_can_have_written_nothing_is_looked_for(
    bench: Bench, *, refuses: bool
) -> None:
    """Of each binlog once: one that is read again is looked for, as is all behind it."""

    def looked_at() -> set[str]:
        bench.now += 2
        bench.uploads.step(0)
        return {str(job.track.name) for job in bench.uploads.jobs if Look() in job.flying}

    bench.store.refuses_replacing = refuses
    begin(bench)
    bench.admit(2)
    assert looked_at() == (set() if refuses else {"b.000001", "b.000002"})
    bench.settle()
    bench.admit(2)
    bench.admit(3)
    assert looked_at() == {"b.000002", "b.000003"}
    bench.settle()
    assert bench.readable(bench.lineage)["b.000003"] == "open"
    bench.tracking.resume(after(bench.lineage, 3))
    bench.admit(4)
    assert looked_at() == {"b.000004"}


@pytest.mark.parametrize("theirs", ["document", "answer"])
def test_a_lineage_that_is_not_surely_ours_is_looked_at(bench: Bench, theirs: str) -> None:
    """Another writer has described the same one, or an answer is lost: somebody may write there."""
    bench.store.refuses_replacing = True
    begin(bench)
    decided = bench.lineage
    bench.store.delete(list(bench.store.objects))
    if theirs == "document":
        bench.store.put(LAYOUT.lineage(decided.id), decided.to_json())
    else:
        put = bench.store.put

        def lost(key: str, body: bytes, **how: Any) -> ObjectInfo:
            put(key, body)
            return put(key, body, **how)

        bench.store.put = lost  # type: ignore[method-assign,assignment]
    begin(bench)
    bench.now += 2
    bench.uploads.step(0)
    (job,) = (job for job in bench.uploads.jobs if not job.is_past)
    assert job.flying == {Look()}


def test_a_turn_comes_before_the_first_byte(bench: Bench) -> None:
    """Of a new lineage, and of one that is written again; not of what is left of an ended one."""
    begin(bench)
    lineage = bench.lineage
    assert bench.turns == [(lineage.id, 1)]  # only lineage.json is there
    bench.settle()
    bench.admit(2)
    assert len(bench.turns) == 1
    bench.tracking.resume(after(lineage, 1), lacks="")
    bench.admit(2)
    assert len(bench.turns) == 1
    bench.tracking.resume(after(lineage, 1))
    assert len(bench.turns) == 1
    bench.admit(2)
    assert [id_ for id_, _ in bench.turns] == [lineage.id] * 2


def test_a_lineage_of_the_spool_is_described_with_its_first_binlog(bench: Bench) -> None:
    """The writer before us had no time to; it is put once."""
    begin(bench)
    lineage = bench.lineage
    del bench.store.objects[LAYOUT.lineage(lineage.id)]
    bench.tracking.resume(KnownEnd(lineage=lineage), lacks="document")
    assert bench.lineages() == []
    bench.admit(1, binlog(1, end=True))
    assert bench.lineages() == [lineage]
    del bench.store.objects[LAYOUT.lineage(lineage.id)]
    bench.admit(2)
    assert bench.lineages() == []


def test_a_first_binlog_that_was_begun_at_another_time_is_refused(bench: Bench) -> None:
    """Names and GTIDs are the same after a reset; nothing of it is uploaded."""
    begin(bench)
    bench.tracking.resume(KnownEnd(lineage=bench.lineage))
    with pytest.raises(ForkError, match=r"the server's b\.000001 was created at"):
        bench.admit(1, binlog(1, timestamp=NOW + 60))
    track = bench.tracking.last
    assert track is not None
    bench.tracking.forget(track)
    bench.tracking.judge({})
    assert track not in [job.track for job in bench.uploads.jobs]


def test_a_binlog_that_cannot_be_finished_stays_as_chunks(bench: Bench) -> None:
    """The lineage goes on with the next one; nothing waits for it any more."""
    first = begin(bench)
    bench.tracking.abandon(first)
    following = bench.admit(2)
    bench.settle()
    assert bench.tracking.done
    assert bench.readable(bench.lineage) == {"b.000001": "open", "b.000002": "open"}
    durable = bench.coverage.durable
    assert durable is not None
    assert (durable.binlog, durable.offset) == (name(2), following.size)
    assert not any(name(1) in run.files() for run in bench.spool.runs())


def test_a_binlog_that_has_not_begun_and_cannot_be_finished_holds_up_nothing(bench: Bench) -> None:
    """The source gives no more of it: nothing waits for it, and the next one does not either."""
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.admit(1, binlog(1, end=True))
    torn = bench.admit(2, binlog(2)[:130])
    bench.settle()
    assert not bench.tracking.done
    bench.tracking.abandon(torn)
    assert bench.tracking.done
    assert bench.end.last == name(1)
    bench.admit(3)
    bench.settle()
    assert bench.readable(bench.lineage) == {"b.000001": "archived", "b.000003": "open"}


def test_a_binlog_that_is_forgotten_leaves_no_trace(bench: Bench) -> None:
    """It is of another history, or read anew: neither uploaded nor waited for."""
    begin(bench)
    forgotten = bench.admit(2)
    bench.tracking.forget(forgotten)
    assert bench.tracking.last is None
    bench.settle()
    assert bench.tracking.done
    assert bench.readable(bench.lineage) == {"b.000001": "open"}
    again = bench.admit(2)
    assert bench.tracking.last is again
    bench.settle()
    assert bench.readable(bench.lineage) == {"b.000001": "open", "b.000002": "open"}


def test_the_history_ends_with_what_still_waits(bench: Bench) -> None:
    """The binlog after it is read again: a run goes on behind it, and brings it no second time."""
    first = begin(bench)
    first.state = TrackState.PASSED  # it has no end: what follows waits for its proof
    second, third = bench.admit(2), bench.admit(3)
    bench.tracking.forget(third)
    assert bench.tracking.last is second
    assert bench.end.end == (name(2), second.size)
    bench.tracking.forget(second)
    assert bench.tracking.last is first


@pytest.mark.parametrize("contradicts", [False, True])
def test_a_history_that_ends_is_brought_in_as_far_as_it_goes(
    bench: Bench, *, contradicts: bool
) -> None:
    """Its last binlog stays as chunks, and is uploaded until then and no longer.

    What of it contradicts the bucket holds up nothing, and stays in the spool: the only copy.
    """
    begin(bench)
    before, strange = bench.lineage, b"x" * 30
    chunk = LAYOUT.chunk(before.id, name(1), Chunk(0, 30, crc64nvme(strange)))
    if contradicts:
        bench.store.put(chunk, strange)
    bench.tracking.begin(UUID_B, "mysql", PARENT)
    assert bench.tracking.server_uuid == UUID_B
    bench.admit(5, server_uuid=UUID_B)
    assert bench.lineage.parent == PARENT
    assert [job.is_past for job in bench.uploads.jobs] == [True, False]
    assert not bench.tracking.done
    bench.settle()
    assert bench.tracking.done
    assert [job.is_past for job in bench.uploads.jobs] == [False]
    assert bench.readable(before) == {"b.000001": "open"}
    assert bench.readable(bench.lineage) == {"b.000005": "open"}
    assert any(name(1) in run.files() for run in bench.spool.runs()) is contradicts


def test_a_history_that_ends_before_it_was_known_leaves_nothing(bench: Bench) -> None:
    """What waited for its beginning is not taken for the next one's."""
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.admit(1, binlog()[:130])
    bench.tracking.begin(UUID_B, "mysql", None)
    bench.admit(5)
    assert bench.lineage.first_binlog == name(5)
    bench.settle()
    assert bench.readable(bench.lineage) == {"b.000005": "open"}


def seen(number: int, seconds: int) -> ServerPosition:
    return ServerPosition(
        asked_at=START + timedelta(seconds=seconds),
        settled_at=START + timedelta(seconds=seconds),
        uuid=UUID_A,
        place=FilePosition(name(number), 4),
        gtid_set="",
        read_only=False,
    )


def test_until_when_all_is_in(bench: Bench) -> None:
    """Of each history what was seen of it alone; not before all of the one before it is in."""
    assert bench.covered_until() is None
    begin(bench)
    bench.tracking.seen(seen(1, 10), is_read=True)
    bench.tracking.seen(
        replace(seen(1, 99), uuid=UUID_B), is_read=True
    )  # a stranger's says nothing of ours
    assert bench.covered_until() is None
    bench.settle()
    assert bench.covered_until() == START + timedelta(seconds=10)
    bench.admit(2)
    bench.tracking.begin(UUID_B, "mysql", PARENT)
    assert bench.covered_until() == START + timedelta(seconds=10)  # the one that was left
    bench.admit(5, server_uuid=UUID_B)
    bench.coverage.seen(seen(5, 20), is_read=True)
    bench.settle(bench.lineage.id)  # the new history is in, the old one is not
    assert bench.coverage.until == START + timedelta(seconds=20)
    assert bench.covered_until() is None  # what was claimed of another one says nothing
    bench.settle()
    assert bench.covered_until() == START + timedelta(seconds=20)


def test_a_history_that_is_left_waits_for_the_one_before_it(bench: Bench) -> None:
    """Three servers one after the other: all of the second's is in, of the first's nothing."""
    begin(bench)
    bench.tracking.begin(UUID_B, "mysql", PARENT)
    bench.admit(5, server_uuid=UUID_B)
    bench.coverage.seen(seen(5, 20), is_read=True)
    bench.settle(bench.lineage.id)
    assert bench.coverage.until == START + timedelta(seconds=20)
    bench.tracking.begin(UUID_A, "mysql", PARENT)
    assert bench.covered_until() is None
    bench.settle()
    assert bench.covered_until() == START + timedelta(seconds=20)


def test_what_a_binlog_has_gained_is_not_in_while_it_is_read_again(bench: Bench) -> None:
    """It was brought in, and compared; the source has written more of it since."""
    first = begin(bench)
    bench.tracking.abandon(first)
    bench.settle()
    assert bench.tracking.done
    coverage = bench.coverage
    durable = coverage.durable
    assert durable is not None
    longer = binlog(1, more=1)
    at = replace(seen(1, 10), place=FilePosition(name(1), len(longer)))
    bench.tracking.seen(at, is_read=True)
    assert bench.covered_until() is None
    assert not coverage.has(name(1))
    bench.tracking.forget(first)
    bench.admit(1, longer)
    bench.tracking.seen(at, is_read=True)
    assert bench.covered_until() is None
    assert coverage.durable == durable
    assert not coverage.has(name(1))
    bench.settle()
    assert bench.covered_until() == START + timedelta(seconds=10)
    assert coverage.durable.offset == len(longer)
    bench.admit(2)
    assert not coverage.has(name(1)), "the source may yet finish it"


def test_the_list_is_wanted_where_only_the_server_can_tell(bench: Bench) -> None:
    """Whether a binlog that ended without a word is closed."""
    bench.tracking.begin(UUID_A, "mysql", None)
    track = bench.admit(1)
    track.state = TrackState.PASSED
    assert bench.tracking.judge({})
    assert not track.closed


def rows(*sizes: int) -> tuple[ServerBinlog, ...]:
    """What the server lists, from the first binlog on."""
    found = enumerate(sizes, start=1)
    return tuple(ServerBinlog(name=name(n), size=size, encrypted=False) for n, size in found)


def behind_a_crash(bench: Bench, *sizes: int) -> Track:
    """A binlog without an end, the next one has begun; the run began when this was listed."""
    if sizes:
        bench.follow(rows(*sizes))
    bench.tracking.begin(UUID_A, "mysql", None)
    track = bench.admit(1)
    track.state = TrackState.FOLLOWED
    return track


def test_a_crashed_binlog_is_closed_by_a_run_that_began_behind_it(bench: Bench) -> None:
    """The server was past it, at this size, and then the run brought its last bytes."""
    size = len(binlog(1))
    track = behind_a_crash(bench, size, 300)
    bench.tracking.judge({row.name: row for row in rows(size, 500)}, streaming=True)
    assert track.closed


def test_what_follows_an_unproved_end_is_not_uploaded(bench: Bench) -> None:
    """Without a ROTATE or STOP it may be another history that follows: first that one is proved."""
    size = len(binlog(1))
    behind_a_crash(bench, size, 300)
    bench.tracking.admit(bench.track(bench.run(), 2, binlog(2)))
    listed = {row.name: row for row in rows(size, 500)}
    for said, taken in (({}, [name(1)]), (listed, [name(1), name(2)])):
        bench.tracking.judge(said, streaming=True)
        assert [job.track.name for job in bench.uploads.jobs] == taken


@pytest.mark.parametrize("sizes", [(), (0,), (1, 300)], ids=["unasked", "newest", "other-size"])
def test_equal_size_and_gtids_prove_nothing_by_themselves(
    bench: Bench, sizes: tuple[int, ...]
) -> None:
    """Behind a RESET the dump thread goes on into the new history: the bytes must tell."""
    size = len(binlog(1))
    track = behind_a_crash(bench, *sizes)
    with pytest.raises(ElsewhereError, match="has no end"):
        bench.tracking.judge({row.name: row for row in rows(size, 500)}, streaming=True)
    assert not track.closed


@pytest.mark.parametrize("now", [rows(1, 500), rows(1, 500)[1:]], ids=["other-size", "gone"])
def test_the_server_went_on_behind_another_end(bench: Bench, now: tuple[ServerBinlog, ...]) -> None:
    """What it lists is not what was read; where it lists it no more, GTIDs have to go on."""
    track = behind_a_crash(bench, len(binlog(1)), 300)
    track.state = TrackState.PASSED
    with pytest.raises(ElsewhereError, match="its own"):
        bench.tracking.judge({row.name: row for row in now}, streaming=True)
    assert not track.closed


def test_what_is_read_has_the_sources_time_zone(bench: Bench) -> None:
    """Its binlogs, the open one of an earlier process too, and the lineage that begins."""
    zone = SystemZone.of("SYSTEM", 2026, [3600] * 24)
    bench.tracking.begin(UUID_A, "mysql", None)
    first = bench.track(bench.run(), 1, binlog(1))
    bench.tracking.admit(first)
    assert first.time_zone is None
    bench.follow(rows(1), None, zone)
    bench.tracking.judge({})
    assert first.time_zone == zone
    assert bench.tracking.lineage is not None
    assert bench.tracking.lineage.time_zone == zone
    assert bench.admit(2).time_zone == zone


def test_an_open_binlog_has_all_that_the_source_said_of_it(bench: Bench) -> None:
    """Another setting after a restart takes nothing back, told to this writer or to the one before.

    The next binlog has what was said last.
    """
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.follow(rows(1), ("a=1",))
    first = bench.admit(1)
    bench.follow(rows(1), ("b=2",))
    assert first.leaves_out == ("a=1", "b=2")
    assert bench.admit(2).leaves_out == ("b=2",)
    lineage = bench.lineage
    bench.said["leaves_out"] = ("a=1",)
    bench.tracking.resume(after(lineage, 2))
    bench.follow(rows(1), ())
    assert bench.admit(3).leaves_out == ("a=1",)
    assert bench.admit(4).leaves_out == ()


TOKYO, UTC_ZONE = (SystemZone.of("SYSTEM", 2026, [offset] * 24) for offset in (32400, 0))


def resumed(bench: Bench, zone: SystemZone | None, newest: int) -> None:
    """A writer has ended, and the next one begins: the server was in this zone then."""
    lineage = bench.lineage
    durable = Position(binlog=name(newest), offset=4, gtid_set="")
    bench.said |= {"time_zone": zone, "server": None, "durable": durable}
    bench.tracking.unlogged, bench.tracking._witnessed = None, ""
    bench.tracking.resume(KnownEnd(lineage=lineage, last=name(newest), size=4))


@pytest.mark.parametrize("same", [True, False])
def test_a_binlog_from_before_a_start_of_the_server_has_the_zone_of_then(
    bench: Bench, *, same: bool
) -> None:
    """If it was asked then; what was written in between has none, unless it is the same zone."""
    begin(bench)
    now = TOKYO if same else UTC_ZONE
    started = datetime.fromtimestamp(NOW + 100, UTC)
    resumed(bench, TOKYO, 2)
    bench.follow(rows(1, 2, 3, 4), None, now, started)
    second = bench.admit(2, binlog(2, end=True))
    third = bench.admit(3, binlog(3, end=True, timestamp=NOW + 100))
    fourth = bench.admit(4, binlog(4, end=True, timestamp=NOW + 100, started=True))
    assert (second.time_zone, fourth.time_zone) == (TOKYO, now)
    assert third.time_zone == (TOKYO if same else None)


def test_a_start_of_the_server_between_two_runs(bench: Bench) -> None:
    """What one run was told counts for the binlog that the server wrote then."""
    begin(bench)
    first, second = (datetime.fromtimestamp(NOW + more, UTC) for more in (0, 100))
    bench.follow(rows(1, 2), None, TOKYO, first)
    bench.follow(rows(1, 2, 3), None, UTC_ZONE, second)
    assert bench.admit(2, binlog(2, end=True)).time_zone == TOKYO
    last = binlog(3, timestamp=NOW + 100, started=True)
    assert bench.admit(3, last).time_zone == UTC_ZONE


def test_what_another_server_said_is_forgotten(bench: Bench) -> None:
    """Its binlogs have the same names."""
    begin(bench)
    bench.follow(rows(1, 2), None, TOKYO, datetime.fromtimestamp(NOW, UTC))
    bench.tracking.begin(UUID_B, "mysql", None)
    bench.follow(rows(1, 2), None, UTC_ZONE, datetime.fromtimestamp(NOW + 100, UTC))
    assert bench.admit(2, binlog(2)).time_zone == UTC_ZONE


# Rows that are in no binlog


def at(number: int) -> ServerPosition:
    """The server writes this binlog."""
    return ServerPosition(
        asked_at=START,
        settled_at=START,
        uuid=UUID_A,
        place=FilePosition(name(number), 9),
        gtid_set="",
        read_only=False,
    )


def stops_before(bench: Bench, number: int) -> bool:
    """Whether the lineage ends before this binlog, and nothing of it is uploaded."""
    there = bench.lineage
    with pytest.raises(LeftOutError, match=f"before b.00000{number}: .* without a binlog"):
        bench.tracking.judge({}, streaming=True)
    bench.settle()
    return f"b.00000{number}" not in bench.readable(there)


def test_a_start_of_the_server_behind_a_rotation_is_not_taken_in(bench: Bench) -> None:
    """The rotation has failed: what the server committed until that start is in no binlog."""
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.admit(1, binlog(1, end=True))
    bench.admit(2, binlog(2, started=True))
    assert stops_before(bench, 2)


def test_a_rotation_and_a_start_behind_a_stop_are_taken_in(bench: Bench) -> None:
    """As ever: a rotation, then an orderly restart."""
    stopped = BinlogWriter()
    stopped.previous_gtids(GtidSet.parse(f"{UUID_A}:1"))
    stopped.transaction([statement("insert")], gtid=(UUID_A, "", 2))
    stopped.stop()
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.admit(1, binlog(1, end=True))
    bench.admit(2, bytes(stopped.data))
    bench.admit(3, binlog(3, started=True))
    bench.tracking.judge({}, streaming=True)
    bench.settle()
    assert sorted(bench.readable(bench.lineage)) == ["b.000001", "b.000002", "b.000003"]


IGNORES = ("binlog_error_action=IGNORE_ERROR",)


@pytest.mark.parametrize(
    ("flavour", "before", "now", "seen", "aborted"),
    [
        ("mysql", (), (), False, True),
        ("mysql", ("binlog_do_db=shop",), ("binlog_do_db=shop",), False, True),
        ("mysql", IGNORES, (), False, False),
        ("mysql", (), IGNORES, False, False),
        ("mysql", None, (), False, False),
        ("mysql", (), None, False, False),
        ("mysql", (), (), True, False),
        ("mariadb", (), (), False, False),
    ],
)
def test_a_mysql_that_ends_itself_in_a_rotation_leaves_nothing_out(
    bench: Bench,
    flavour: Flavour,
    before: tuple[str, ...] | None,
    now: tuple[str, ...] | None,
    *,
    seen: bool,
    aborted: bool,
) -> None:
    """What it said before and says afterwards tells, unless it was seen without a binlog."""
    bench.tracking.begin(UUID_A, flavour, None)
    bench.follow(rows(1), before)
    bench.admit(1, binlog(1, end=True))
    if seen:
        bench.tracking.saw_no_binlog(UUID_A, name(1))
        bench.tracking.seen(at(2), is_read=True)
    bench.follow(rows(1, 2), now)
    bench.admit(2, binlog(2, started=True))
    with pytest.raises(AbortedError if aborted else LeftOutError):
        bench.tracking.judge({}, streaming=True)


def test_what_nobody_watched_may_have_been_left_out(bench: Bench) -> None:
    """A writer that starts anew knows what the source said, and not what it was in between."""
    bench.tracking.begin(UUID_A, "mysql", None)
    bench.follow(rows(1), ())
    bench.admit(1, binlog(1, end=True))
    bench.settle()
    bench.said["leaves_out"] = ()
    bench.tracking.resume(replace(after(bench.lineage, 1), rotates_to=name(2)))
    bench.follow(rows(1, 2), ())
    bench.admit(2, binlog(2, started=True))
    assert stops_before(bench, 2)


def test_the_archive_says_how_the_binlog_before_ended(bench: Bench) -> None:
    """A streamer that starts anew does not read that binlog again."""
    begin(bench)
    bench.settle()
    bench.tracking.resume(replace(after(bench.lineage, 1), rotates_to=name(2)))
    bench.admit(2, binlog(2, started=True))
    assert stops_before(bench, 2)


def test_the_archive_says_it_too_if_the_next_binlog_is_read_twice(bench: Bench) -> None:
    """The first run died after a few bytes, and the source was asked where to go on."""
    begin(bench)
    bench.settle()
    bench.tracking.resume(replace(after(bench.lineage, 1), rotates_to=name(2)))
    data = binlog(2, started=True)
    torn = bench.track(bench.run(), 2, data[:130])
    bench.tracking.admit(torn)
    bench.tracking.judge({})
    known = bench.tracking.end
    bench.tracking.forget(torn)
    bench.tracking.known = known
    bench.admit(2, data)
    assert stops_before(bench, 2)


@pytest.mark.parametrize("newest", [None, 1])
def test_what_was_seen_counts_where_the_binlogs_show_nothing(
    bench: Bench, newest: int | None
) -> None:
    """A MySQL that turned its binlog off leaves it as after a crash."""
    bench.tracking.begin(UUID_A, "mysql", None)
    first = bench.admit(1, binlog(1))
    bench.tracking.saw_no_binlog(UUID_B, None)
    assert bench.tracking.unlogged is None, "that is another server"
    bench.tracking.saw_no_binlog(UUID_A, name(newest) if newest else None)
    first.state = TrackState.CLOSED
    bench.tracking.seen(at(2), is_read=True)
    assert bench.tracking.unlogged is not None
    assert (bench.tracking.unlogged.first, bench.tracking.unlogged.last) == (name(2), name(2))
    bench.admit(2, binlog(2, started=True))
    assert stops_before(bench, 2)


def test_what_was_seen_concerns_no_start_before_and_none_after(bench: Bench) -> None:
    """Binlogs that were there already, and those after the one that it wrote again, are as ever."""
    seen = Unlogged(
        since=START, first=BinlogName.parse("b.000003"), last=BinlogName.parse("b.000003")
    )
    begin(bench)
    bench.settle()
    bench.uploads.coverage = None
    lineage = bench.lineages()[0]
    bench.witnessed[lineage.id] = seen
    bench.tracking.unlogged = None
    bench.tracking._witnessed = ""
    bench.tracking.resume(after(lineage, 1))
    assert bench.tracking.unlogged == seen, "the last writer's object has it"
    bench.admit(2, binlog(2, started=True)).state = TrackState.CLOSED
    bench.tracking.judge({}, streaming=True)
    bench.admit(3, binlog(3, started=True))
    assert stops_before(bench, 3)


def test_a_server_that_still_writes_the_same_binlog_had_one_all_the_time(bench: Bench) -> None:
    """Then nothing was left out."""
    begin(bench)
    bench.tracking.saw_no_binlog(UUID_A, name(1))
    bench.tracking.seen(at(1), is_read=True)
    assert bench.tracking.unlogged is None


@pytest.mark.parametrize("join", ["exact", "gap", "unknown"])
@pytest.mark.parametrize("again", [True, False])
def test_a_server_that_wrote_no_binlog_and_then_others_of_another_name(
    bench: Bench, join: Join, *, again: bool
) -> None:
    """Its GTIDs go on where they were, and rows are missing all the same."""
    begin(bench)
    lineage = bench.lineage
    bench.tracking.saw_no_binlog(UUID_A, name(1))
    if again:  # by another process, from the last writer's object
        assert bench.tracking.unlogged is not None
        bench.witnessed[lineage.id] = bench.tracking.unlogged
        resumed(bench, None, 1)
    other = BinlogName("moved", 1)
    bench.tracking.seen(replace(at(1), place=FilePosition(other, 9)), is_read=True)
    bench.tracking.begin(UUID_A, "mysql", parent_of(lineage.id, join=join))
    track = bench.track(bench.run(), 1, binlog(2, started=True))
    track.name = other
    bench.tracking.admit(track)
    bench.tracking.judge({}, streaming=True)
    found = bench.lineage.parent
    assert found is not None
    assert (found.join, found.unlogged) == ("gap" if join == "exact" else join, True)
    assert bench.tracking.unlogged is None, "the next start is as ever"


def test_the_lineage_after_it_has_seen_it_no_more(bench: Bench) -> None:
    """Its next restart is as ever."""
    begin(bench)
    bench.tracking.saw_no_binlog(UUID_A, name(1))
    bench.tracking.seen(at(2), is_read=True)
    parent = parent_of(bench.lineage.id, join="gap", unlogged=True)
    bench.tracking.begin(UUID_A, "mysql", parent)
    bench.admit(2, binlog(2, started=True))
    assert bench.lineage.parent == parent
    assert bench.tracking.unlogged is None
