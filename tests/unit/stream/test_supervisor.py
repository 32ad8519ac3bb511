"""Errors of uploads mean the same whatever the loop does at the moment; the whole loop runs."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import FilePosition
from binlog2s3.errors import ElsewhereError, ForkError, SourceError, TakenError
from binlog2s3.stream.compare import Common
from binlog2s3.stream.continuation import Tip
from binlog2s3.stream.live_run import RunState
from binlog2s3.stream.spool import RunFacts, Spool
from tests.binlog_writer import UUID_A
from tests.memory_store import MemoryStore
from tests.process import Clock, Process, Shown, config
from tests.streamer import FIRST, HISTORY, LAYOUT, LINEAGE, Source

SECOND = FIRST.next()


def written() -> Source:
    """Two binlogs, the second one open."""
    source = Source()
    for _ in range(4):
        source.write(60)
    source.rotate()
    for _ in range(9):
        source.write(60)
    return source


def all_equal(tip: Tip) -> Common:
    """The source has all bytes of the bucket."""
    return Common(place=tip.end, gtids=tip.gtids, whole=True, transactions=1)


def life(process: Process) -> Iterator[None]:
    """All is read; mysqlbinlog ends twice meanwhile, and the spool is full once."""
    shown = process.shown
    for number in range(1, 10):
        process.child.fetch()
        if number in (3, 7):
            process.child.status = 1
        if number == 5:
            process.supervisor.pressure.paused = True
            process.child.status = 1
        yield
        process.clock.now += 1.1
        if number > 1:
            shown.show(SECOND, 1)
    for _ in range(40):
        while process.child.fetch():
            pass
        process.look()
        process.clock.now += 1.1
        yield


def begun(tmp_path: Path, store: MemoryStore, source: Source, *, spooled: bool = False) -> Process:
    """A process; `spooled`: an earlier one has left both binlogs in the spool."""
    shown = Shown(source, Clock())
    shown.show(FIRST)
    shown.show(SECOND, 1)
    if spooled:
        facts = RunFacts(
            source=LAYOUT.source,
            target=config(tmp_path, 400).target,
            server_uuid=UUID_A,
            binlog=str(FIRST),
            position=4,
            lineage=LINEAGE,
        )
        with closing(Spool(tmp_path)) as spool:
            run = spool.begin(facts)
            for name in (FIRST, SECOND):
                (run.directory / str(name)).write_bytes(shown.data(name))
    process = Process(
        store=store, shown=shown, directory=tmp_path, part=400, token="77777777", life=life
    )
    process.pilot.compared = all_equal  # type: ignore[method-assign]
    return process


def reading(process: Process) -> bool:
    run = process.supervisor.run
    return run is not None and run.state is RunState.READING and process.child.status is None


def ending(process: Process) -> bool:
    """mysqlbinlog has ended by itself, and what it wrote is read."""
    return process.supervisor.run is not None and process.child.is_stopped


def between(process: Process) -> bool:
    return process.supervisor.run is None and process.supervisor.restarts > 0


def full(process: Process) -> bool:
    return process.supervisor.run is None and process.supervisor.pressure.paused


@pytest.mark.parametrize("phase", [reading, ending, between, full])
@pytest.mark.parametrize("kind", [ForkError, ElsewhereError, TakenError])
def test_what_an_upload_shows_is_compared_whenever_it_comes(
    tmp_path: Path, phase: Callable[[Process], bool], kind: type[ForkError]
) -> None:
    """It never ends the process, and is never passed over."""
    store, source = MemoryStore(min_part_bytes=1), written()
    process = begun(tmp_path, store, source)
    raised: list[str] = []

    def before() -> None:
        if process.clock.now > 103 and not raised and phase(process):
            raised.append("two histories under one name")
            raise kind(raised[0])

    process.uploads.before = before  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert raised
    assert process.pilot.doubts == raised
    catalog = Catalog(store, LAYOUT)
    (lineage,) = catalog.lineages()
    for name in (FIRST, SECOND):
        read = b"".join(catalog.binlog(lineage, name).blocks())
        assert read == process.shown.data(name)


def test_a_spool_that_parts_from_the_bucket(tmp_path: Path) -> None:
    """Another writer has put other bytes: the history goes on in a lineage beside that one.

    Nothing is spliced: what follows in the spool is not archived behind the other's bytes.
    """
    store, source = MemoryStore(min_part_bytes=1), written()
    store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())
    common = source.binlogs[FIRST].transactions[1].end
    other = source.data(FIRST)[:common] + b"of another history"
    chunk = LAYOUT.chunk(LINEAGE, FIRST, Chunk(0, len(other), crc64nvme(other)))
    store.put(chunk, other)
    before = sorted(store.objects)
    process = begun(tmp_path, store, source, spooled=True)
    gtids = GtidSet.parse(source.gtids_at(FIRST, common))

    def compared(_: Tip) -> Common:
        return Common(place=FilePosition(FIRST, common), gtids=gtids, whole=False, transactions=2)

    process.pilot.compared = compared  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert len(process.pilot.doubts) == 1
    catalog = Catalog(store, LAYOUT)
    (new,) = (lineage for lineage in catalog.lineages() if lineage.id != LINEAGE)
    assert new.parent is not None
    assert (new.parent.lineage, new.parent.binlog, new.parent.offset, new.parent.join) == (
        LINEAGE, FIRST, common, "exact",
    )  # fmt: skip
    for name in (FIRST, SECOND):
        assert b"".join(catalog.binlog(new, name).blocks()) == process.shown.data(name)
    assert LAYOUT.entry(new.id, FIRST) in store.objects
    assert sorted(key for key in store.objects if LINEAGE in key) == before
    assert store.get(chunk) == other


def test_a_mysqlbinlog_that_cannot_be_started_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is tried again and again, perhaps for hours, and no binlog is archived meanwhile."""
    store, source = MemoryStore(min_part_bytes=1), written()
    process = begun(tmp_path, store, source)
    seen: list[int] = []

    def refuse() -> None:
        seen.append(len(list(tmp_path.glob("run-*"))))
        if len(seen) < 6:
            raise SourceError("cannot start mysqlbinlog", transient=True)

    process.supervisor.refuse = refuse  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert seen[:6] == [1] * 6  # the directory of this attempt alone
