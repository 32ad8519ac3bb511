"""What the board makes of a stream's parts; all of them are stand-ins that are told what to say."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import SourceError, StoreError, SupersededError
from binlog2s3.server.connection import ServerBinlog, ServerPosition
from binlog2s3.status.model import BackupsStatus, Lag, Purge, Status, Totals, UploadStatus
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.stream.daemon import Loop
from binlog2s3.stream.job import Failing
from binlog2s3.stream.reporter import Reporter, vanished
from binlog2s3.stream.source_watch import SourceState
from binlog2s3.stream.spool import Room
from binlog2s3.stream.telling import Board
from binlog2s3.stream.uploader import Counts, Uploading
from binlog2s3.stream.waiting import Stop
from tests.documents import BACKUP, BEAT, FLOOR, LINEAGE, TIME, UUID, like
from tests.memory_store import MemoryStore
from tests.process import AtOnce, config
from tests.snapshots import LAYOUT
from tests.streamer import InlineWorkers
from tests.unit.stream.builders import name
from tests.waiting import wait_until

OTHER_UUID = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


class Counted(AtOnce):
    """Uploads whose lineages have counted this."""

    counted: Callable[[], Uploading]

    def count(self) -> Uploading:
        return self.counted()


def stock(*, unsaved_bytes: int = 0, closed_binlogs: int = 0, **known: Any) -> Uploading:
    """What is counted of one binlog."""
    uploads = UploadStatus(
        binlogs=1, unsaved_bytes=unsaved_bytes, closed_binlogs=closed_binlogs, requests_in_flight=2
    )
    return Uploading(uploads=uploads, **known)


class Parts:
    """A stream: durable up to b.000003:500 where the source stands, by a clock of its own.

    `source_clock` is how far the source's clock is ahead of ours.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.source_clock = timedelta(0)
        self.uploading = stock()
        self.counts = Counts()
        self.stop = Stop()
        self.archived = {name(1), name(2)}
        self.coverage: Any = SimpleNamespace(
            durable=Position(
                binlog=BinlogName.parse("b.000003"), offset=500, gtid_set=f"{UUID}:1-9"
            ),
            following=name(3),
            lineage=replace(LINEAGE, first_binlog=name(1)),
            grows=True,
            has=lambda binlog: binlog in self.archived,
        )
        self.covered: datetime | None = None
        self.watch: Any = SimpleNamespace(
            source_state=SourceState(), streams=lambda uuid: uuid == UUID
        )
        self.runs: Any = SimpleNamespace(
            reached=lambda: FilePosition(name(3), 500),
            pressure=SimpleNamespace(
                paused=False, room=Room(used=7, free=100, max_bytes=None, min_free=5)
            ),
            run=SimpleNamespace(child=SimpleNamespace(pid=77)),
            is_running=True,
            is_reading=True,
            read_at=self.now,
            read_totals=(0, 0),
            restarts=0,
            last_error=None,
        )
        self.tracking: Any = SimpleNamespace(
            coverage=self.coverage,
            newest=self.coverage,
            covered_until=lambda _: self.covered,
            server_uuid=UUID,
            is_behind=False,
        )
        self.writer: Any = SimpleNamespace(
            me=BEAT,
            beaten_at=self.now,
            furthest_covered=lambda _, until: until,
            standbys=(),
        )
        made = config(Path("/s"), 1000)
        self.uploads = Counted(
            catalog=Catalog(MemoryStore(), LAYOUT),
            bodies=None,
            config=made,
            spool=None,
            workers=InlineWorkers(4),
            stop=self.stop,
            clock=lambda: self.now,
        )
        self.uploads.counted = lambda: self.uploading
        self.uploads.counts = self.counts
        self.reporter = Reporter(
            made,
            watch=self.watch,
            runs=self.runs,
            tracking=self.tracking,
            uploads=self.uploads,
            writer=self.writer,
            stop=self.stop,
            clock=lambda: self.now,
        )
        self.answer()

    def failed(self, error: StoreError, now: float) -> None:
        """A request of this thread has failed, and is repeated."""
        self.counts.failed(error)
        self.counts.retried.failed(now)

    def answer(self, number: int = 3, offset: int = 500, gtids: str = f"{UUID}:1-9") -> None:
        """The source tells its position."""
        asked_at = datetime.now(UTC) + self.source_clock
        self.watch.source_state = SourceState(
            position=ServerPosition(
                asked_at=asked_at,
                settled_at=asked_at,
                uuid=UUID,
                place=FilePosition(name(number), offset),
                gtid_set=gtids,
                read_only=False,
            ),
            listed=tuple(ServerBinlog(name=name(n), size=1000, encrypted=False) for n in (1, 2, 3)),
            heard_at=self.now,
            position_at=self.now,
            expire_seconds=3600.0,
        )

    def go(self, seconds: float, *, looping: bool = True, answering: bool = True) -> None:
        """Time passes."""
        for _ in range(int(seconds)):
            self.now += 1
            if looping:
                self.uploads.step(0)
            if answering:
                here = self.watch.source_state.position
                self.answer(here.place.binlog.number, here.place.offset, here.gtid_set)
            self.writer.beaten_at = self.now
            self.reporter.measured()

    @property
    def status(self) -> Status:
        return self.reporter.status()

    @property
    def told(self) -> tuple[str, list[tuple[str, str]]]:
        """The state, and the codes of what is wrong."""
        return self.status.state, self.codes

    def look(self) -> None:
        """Look at an archive that has what it should have."""
        store, lineage = MemoryStore(), self.coverage.lineage
        store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
        for number in (1, 2):
            store.put(LAYOUT.binlog(lineage.id, name(number)), b"x")
        self.reporter.look_at_history(Catalog(store, LAYOUT))

    @property
    def codes(self) -> list[tuple[str, str]]:
        return [(trouble.code, trouble.level) for trouble in self.status.troubles]


def test_an_idle_stream_is_well_for_ever() -> None:
    """Nothing comes, nothing is sent, and that is as it should be: lag 0 in all three units."""
    parts = Parts()
    assert parts.status.purge.statement is None, "nobody has seen yet what the archive still has"
    parts.go(3600)
    parts.look()
    status = parts.status
    assert (status.state, status.troubles, status.healthy) == ("idle", (), True)
    assert status.lag == Lag(bytes=0, transactions=0, seconds=0.0)
    assert status.purge.seconds == 3600
    assert status.purge.statement == "PURGE BINARY LOGS TO 'b.000003'"
    assert status.uploads is not None
    assert status.uploads.requests_in_flight == 2
    assert status.child is not None
    assert status.child.pid == 77


def test_a_source_that_writes_on_unread_is_a_stall() -> None:
    """The lag rises with the clock, whatever the source's own clock says."""
    parts = Parts()
    parts.source_clock = timedelta(hours=-3)
    parts.go(2)
    parts.covered = parts.watch.source_state.position.asked_at
    parts.answer(offset=900, gtids=f"{UUID}:1-12")
    parts.go(10)
    assert parts.told == ("streaming", [("stalled", "warning")])
    parts.go(25)
    assert parts.told == ("stalled", [("stalled", "critical")])
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (400, 3)
    position = parts.watch.source_state.position
    position = replace(position, asked_at=parts.covered + timedelta(seconds=35))
    parts.watch.source_state = replace(parts.watch.source_state, position=position)
    assert parts.status.lag.seconds == pytest.approx(35, abs=1)
    parts.runs.read_at = parts.now
    assert parts.codes == []


def test_a_silent_source_is_not_called_idle() -> None:
    """Its last position was durable; since then nobody knows, so the lag rises from there."""
    parts = Parts()
    parts.go(1)
    parts.covered = parts.watch.source_state.position.asked_at
    parts.go(20, answering=False)
    assert (parts.status.state, parts.status.healthy) == ("idle", True)
    assert parts.status.lag.seconds == pytest.approx(20, abs=1)
    parts.go(15, answering=False)
    assert parts.told == ("source unreachable", [("source", "critical")])
    assert parts.status.lag.seconds == pytest.approx(35, abs=1)
    parts.watch.source_state = replace(
        parts.watch.source_state, error=SourceError("denied", hint="look")
    )
    assert parts.status.troubles[0].text.startswith("denied (for 3")
    assert parts.status.troubles[0].hint == "look"


def test_another_server_is_not_silent_from_the_first() -> None:
    """What was seen of the one before is forgotten by the watch, not when it was seen."""
    parts = Parts()
    parts.go(500)
    parts.watch.source_state = SourceState(listed=parts.watch.source_state.listed)
    assert parts.status.healthy
    parts.go(31, answering=False)
    assert parts.codes == [("source", "critical")]


def test_the_oldest_commit_in_the_spool_bounds_the_lag() -> None:
    """By the source's clock, to the moment at which it was committed there."""
    parts = Parts()
    parts.source_clock = timedelta(hours=5)
    parts.go(1)
    there = parts.watch.source_state.position.asked_at
    oldest = int((there - timedelta(seconds=4)).timestamp() * 1e6)
    parts.uploading = stock(unsaved_bytes=5, oldest_commit_us=oldest)
    parts.go(2, answering=False)
    for parts.covered in (there - timedelta(seconds=9), None):
        assert parts.status.lag.seconds == pytest.approx(6, abs=0.5)


def test_nothing_durable_for_long_is_the_stores_trouble() -> None:
    """While something waits and is due; each byte that arrives starts the time anew."""
    parts = Parts()
    parts.go(600)
    parts.uploading = stock(unsaved_bytes=5)
    parts.go(50)
    assert parts.status.healthy
    parts.counts.acts += 1
    parts.go(55)
    assert (parts.status.healthy, parts.status.state) == (True, "store unreachable")
    parts.go(10)
    assert parts.codes == [("store", "critical")]
    parts.uploading = stock()
    parts.go(2)
    assert parts.codes == []
    parts.uploading = stock(unsaved_bytes=5)
    parts.uploads.pace.flush_interval = 150.0
    parts.go(205)
    assert parts.status.healthy
    parts.go(10)
    assert parts.codes == [("store", "critical")]


def test_a_request_that_fails_again_and_again() -> None:
    """From its first failure on until it succeeds, whatever else does; others go on failing.

    Also on an idle source, which brings nothing into the bucket.
    """
    parts = Parts()
    other = threading.Thread(target=parts.failed, args=(StoreError("500"), parts.now + 20))
    parts.failed(StoreError("503", hint="wait"), parts.now)
    other.start()
    other.join()
    parts.go(4)
    assert parts.codes == []
    parts.go(4)
    assert parts.told == ("store unreachable", [("store", "warning")])
    parts.go(25)
    parts.counts.acts += 1
    parts.go(1)
    assert parts.told == ("idle", [("store", "critical")])
    assert parts.counts.retried.over(succeeded=True, now=parts.now) is not None
    assert parts.counts.retried.failing_since == parts.now - 14
    assert parts.codes == [("store", "warning")]
    parts.go(1)
    parts.failed(StoreError("503 again"), parts.now)
    retried = parts.counts.retried
    assert retried.over(succeeded=False, now=parts.now) is None
    assert retried.over(succeeded=True, now=parts.now + 2) == (2, True), "it was given up"
    assert retried.over(succeeded=True, now=parts.now) is None
    parts.go(31)
    assert parts.codes == [("store", "critical")]
    assert parts.status.store is not None
    assert (parts.status.store.errors, parts.status.store.last_error) == (3, "503 again")


def test_an_upload_that_fails_again_and_again() -> None:
    """It is counted with the other requests."""
    parts = Parts()
    parts.uploading = stock(failing=Failing(parts.now, error="denied"))
    parts.counts.failures = 5
    parts.go(31)
    assert parts.codes == [("store", "critical")]
    assert parts.status.store is not None
    assert parts.status.store.errors == 5
    assert "denied" in parts.status.troubles[0].text


def test_a_pause_that_makes_room_is_well() -> None:
    """A catch-up through a small spool pauses all the time; it is ill when nothing leaves."""
    parts = Parts()
    parts.runs.pressure.paused = True
    parts.answer(offset=900)
    for _ in range(20):
        parts.counts.acts += 1
        parts.go(10)
        assert (parts.status.state, parts.status.healthy) == ("paused", True)
    parts.go(61)
    assert ("paused", "critical") in parts.codes
    assert ("stalled", "critical") not in parts.codes
    parts.runs.pressure.paused = False
    parts.runs.read_at = parts.now
    parts.go(1)
    assert parts.status.healthy


@pytest.mark.parametrize(
    ("counted", "state"),
    [
        (stock(unsaved_bytes=5), "streaming"),
        (stock(closed_binlogs=1), "streaming"),
        (stock(unsaved_bytes=5000), "catching up"),
        (stock(), "idle"),
    ],
)
def test_what_was_read_and_is_not_there_is_not_idleness(counted: Uploading, state: str) -> None:
    """Nor is a closed binlog that waits for the archive; much of it is a catch-up."""
    parts = Parts()
    parts.uploading = counted
    parts.go(2)
    assert parts.status.state == state


def test_a_mysqlbinlog_that_does_not_run_is_told() -> None:
    """Not at once: between two runs there is none. In a pause none is wanted."""
    parts = Parts()
    parts.go(3)
    parts.runs.run, parts.runs.is_running = None, False
    parts.runs.last_error = (TIME, "not found")
    parts.go(4)
    assert parts.codes == []
    parts.go(10)
    assert parts.told == ("source unreachable", [("source", "warning")])
    assert "not found" in parts.status.troubles[0].text
    parts.go(20)
    assert parts.codes == [("source", "critical")]
    parts.runs.pressure.paused = True
    parts.go(1)
    assert parts.codes == [("paused", "warning")]


def test_a_loop_that_hangs_is_told_by_another_thread() -> None:
    """What it counted last stays shown."""
    parts = Parts()
    parts.go(2)
    parts.go(31, looping=False)
    assert parts.told == ("stalled", [("stuck", "critical")])
    assert parts.status.spool is not None
    assert parts.status.spool.bytes == 7


@pytest.mark.parametrize(("seconds", "level"), [(64, ""), (70, "warning"), (81, "critical")])
def test_a_late_heartbeat_is_told(seconds: int, level: str) -> None:
    """Two intervals and a little may pass; before the first one nothing is late."""
    parts = Parts()
    parts.go(1)
    parts.writer.beaten_at, parts.now = parts.now, parts.now + seconds
    parts.uploads.step(0)
    parts.answer()
    assert parts.codes == ([("heartbeat", level)] if level else [])
    parts.writer.beaten_at = None
    assert parts.status.healthy
    assert parts.status.writer is not None
    assert parts.status.writer.heartbeat_at is None


def test_the_end_and_another_writer() -> None:
    """The end turns /health at once; a stream that ends only to stand by is well."""
    parts = Parts()
    parts.stop.event.set()
    assert parts.told == ("stopped", [("stopping", "critical")])
    parts.stop.fail(SupersededError("another one"))
    assert parts.told == ("standby", [])


def test_a_spool_that_was_never_measured_is_not_shown() -> None:
    """Not as one that takes nothing."""
    parts = Parts()
    assert parts.status.spool is not None
    parts.runs.pressure.room = None
    assert parts.status.spool is None


def test_before_the_source_and_the_lineage_are_known() -> None:
    """None, not 0."""
    parts = Parts()
    parts.watch.source_state = SourceState()
    parts.tracking.coverage = parts.tracking.newest = None
    parts.runs.reached = lambda: None
    status = parts.status
    assert status.lag == Lag()
    assert (status.durable, status.lineage, status.purge.seconds) == (None, None, None)
    assert (status.server.position, status.totals) == (None, None)


def test_nothing_is_durable_yet() -> None:
    """The lag is counted from the first binlog that is streamed."""
    parts = Parts()
    parts.coverage.durable, parts.coverage.following = None, name(1)
    parts.archived.clear()
    parts.coverage.lineage = replace(LINEAGE, gtid_set=f"{UUID}:1-5")
    status = parts.status
    assert (status.lag.bytes, status.lag.transactions) == (2500, 4)
    assert status.purge.statement is None


def test_what_came_with_a_dump_is_no_lag() -> None:
    """A server that was restored has executed it, and no binlog of it has it."""
    parts, other = Parts(), UUID.replace("3e11", "3e12")
    parts.coverage.lineage = replace(parts.coverage.lineage, gtids_outside=f"{other}:1-222")
    parts.answer(offset=900, gtids=f"{UUID}:1-12,{other}:1-222")
    assert other != UUID
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (400, 3)


def test_a_source_without_gtids_has_no_transaction_left() -> None:
    """Its bytes are all there."""
    parts = Parts()
    parts.coverage.durable = replace(parts.coverage.durable, gtid_set="")
    parts.answer(gtids="")
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (0, 0)


def test_a_position_of_another_server_says_nothing_of_the_lag() -> None:
    """The lineage of a server that is back is known a moment before the watch asks that one."""
    parts = Parts()
    assert parts.status.lag.seconds == 0
    position = parts.watch.source_state.position
    stranger = replace(position, uuid=OTHER_UUID)
    parts.watch.source_state = replace(parts.watch.source_state, position=stranger)
    assert parts.status.lag == Lag()


def test_binlogs_of_another_server_are_not_to_be_deleted() -> None:
    """At a fail-back a status may have the list of B and the lineage of A, whose names it has."""
    parts = Parts()
    parts.look()
    state = parts.watch.source_state
    assert parts.status.purge.to == "b.000003"
    other = like(LINEAGE, id="20260102T030405Z-3e11fa47-ffff")
    parts.coverage.lineage, before = other, parts.coverage.lineage
    assert parts.status.purge.to is None, "the archive of that one was not seen"
    parts.coverage.lineage = before
    for position in (replace(state.position, uuid=OTHER_UUID), None):
        parts.watch.source_state = replace(state, position=position)
        assert parts.status.purge == Purge()


def test_nothing_is_to_be_deleted_that_the_source_lists_before_the_archive() -> None:
    """Of another name (`log_bin` was changed, `log_bin_index` was not): PURGE goes by the list."""
    parts = Parts()
    parts.look()
    state = parts.watch.source_state
    assert parts.status.purge.to == "b.000003"
    for before in ("a.000009", "z.000009"):
        row = ServerBinlog(name=BinlogName.parse(before), size=1000, encrypted=False)
        parts.watch.source_state = replace(state, listed=(row, *state.listed))
        assert parts.status.purge.statement is None


def test_what_an_older_history_still_has_to_bring_is_lag() -> None:
    """However far the new one has come."""
    parts = Parts()
    parts.tracking.is_behind = True
    parts.covered = parts.watch.source_state.position.asked_at - timedelta(seconds=50)
    assert parts.status.lag.seconds == pytest.approx(50, abs=1)


def test_a_source_that_stands_before_what_is_durable_is_not_idle() -> None:
    """After a RESET: what it has committed since is in no history that is known."""
    parts = Parts()
    parts.look()
    parts.answer(number=1, offset=4000)
    parts.covered = parts.watch.source_state.position.asked_at - timedelta(seconds=50)
    for behind in (1, 2):
        parts.watch.source_state = replace(parts.watch.source_state, behind=behind)
        assert parts.status.lag.seconds == pytest.approx(50, abs=1)
        assert parts.status.purge.statement is None, "these binlogs only have the names"
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (None, None)


def test_nothing_is_to_be_deleted_of_a_source_that_is_not_read() -> None:
    """After a RESET it may have overtaken what was read, while the old history is brought in."""
    parts = Parts()
    parts.look()
    assert parts.status.purge.statement == "PURGE BINARY LOGS TO 'b.000003'"
    parts.runs.is_reading = False
    parts.answer(number=3, offset=90_000)
    assert parts.status.purge.statement is None, "these binlogs may only have the names"
    assert parts.status.purge.expire_seconds == 3600.0


def test_a_source_that_is_not_read_is_not_idle() -> None:
    """After a RESET it may stand exactly where it was read to, with other commits before that."""
    parts = Parts()
    position = parts.watch.source_state.position
    assert parts.status.lag.seconds == 0
    parts.covered = position.asked_at - timedelta(seconds=50)
    assert parts.status.lag.bytes == 0
    parts.runs.is_reading = False
    assert parts.status.lag.seconds == pytest.approx(50, abs=1)
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (None, None)
    told: list[object] = []
    loop: Any = SimpleNamespace(
        _config=config(Path("/s"), 1000),
        _reached=lambda: None,
        _runs=parts.runs,
        _watch=SimpleNamespace(look=lambda _: position),
        _tracking=SimpleNamespace(seen=lambda one, *, is_read: told.append((one, is_read))),
    )
    Loop._look(loop)
    assert told == [(position, False)]


@pytest.mark.parametrize("read", [None, (1, 600), (3, 400), (3, 600)])
def test_a_source_is_known_as_far_as_it_was_read_or_is_durable(
    read: tuple[int, int] | None,
) -> None:
    """Between two runs, and while a binlog is read again, too: a source before that was reset."""
    parts = Parts()
    place = FilePosition(name(read[0]), read[1]) if read is not None else None
    for run, last in ((place, None), (None, place)):
        ended = SimpleNamespace(end=last) if last is not None else None
        loop: Any = SimpleNamespace(
            _runs=SimpleNamespace(reached=lambda run=run: run),
            _tracking=SimpleNamespace(last=ended, coverage=parts.coverage),
        )
        durable = FilePosition(name(3), 500)
        assert Loop._reached(loop) == max(place or durable, durable)
        loop._tracking.coverage = None
        assert Loop._reached(loop) == place


def test_the_latest_moment_is_a_commit_or_a_proof() -> None:
    """Whichever is later, and none in the future."""
    parts = Parts()
    parts.covered = TIME
    parts.uploading = stock(newest_commit_us=int((TIME + timedelta(seconds=5)).timestamp() * 1e6))
    parts.go(2)
    assert parts.status.latest == TIME + timedelta(seconds=5)
    parts.covered = TIME + timedelta(seconds=9)
    assert parts.status.latest == parts.covered
    parts.covered = datetime.now(UTC) + timedelta(hours=2)  # the source's clock is ahead
    assert parts.status.latest is not None
    assert parts.status.latest <= datetime.now(UTC)


# The board

PLAIN = Status(source="s", target="t", seen_from="daemon", at=TIME, state="streaming")


def test_a_board_looks_again_and_again() -> None:
    """Each Status is told; one that cannot be made ends nothing."""
    looks = itertools.count(1)

    def look() -> Status:
        if (number := next(looks)) == 2:
            raise RuntimeError("defect")
        return replace(PLAIN, at=TIME + timedelta(seconds=number))

    told: list[Status] = []
    board = Board(look)
    board.tell(told.append)
    board.start()
    try:
        wait_until(lambda: len(told) >= 2, what="two looks behind the defect")
        assert board.current().at > TIME
        board.watch(lambda: replace(PLAIN, source="other"))
        assert board.current().source == "other"
    finally:
        board.close()
    assert told[0].source == "s"


def test_a_heartbeat_is_of_one_moment() -> None:
    """It says what its status says, though the board last looked before."""
    parts = Parts()
    board = Board(parts.reporter.status)
    loop: Any = SimpleNamespace(_board=board, _tracking=parts.tracking)
    vars(parts.tracking).update(time_zone=None, unlogged=None, leaves_out=())
    parts.failed(StoreError("503"), parts.now)
    parts.covered = TIME
    parts.go(31)
    beat = Loop._progress(loop, BEAT)
    assert beat.status is not None
    assert beat.state == beat.status["state"] == "store unreachable"
    assert [one["code"] for one in beat.status["troubles"]] == ["store"]
    assert (beat.lineage, beat.server_uuid) == (parts.coverage.lineage.id, UUID)
    assert (beat.durable, beat.covered_until) == (parts.coverage.durable, TIME)
    assert beat.server == board.current().server.position == beat.durable
    parts.coverage.grows = False  # another history may begin before what is durable of it
    assert Loop._progress(loop, BEAT).durable is None


def test_rates_are_of_what_was_gained() -> None:
    """Over the time between the oldest sample that is kept and now; never below 0."""
    now, totals = 0.0, Totals()
    board = Board(lambda: replace(PLAIN, totals=totals), clock=lambda: now)
    assert board.current().rates is None
    for now in range(1, 31):
        totals = Totals(read_bytes=1000 * now, durable_bytes=-now, transactions=now * (now > 15))
        board.refresh()
    rates = board.current().rates
    assert rates is not None
    assert 14 <= rates.window_seconds <= 16
    assert (rates.read_bytes, rates.durable_bytes) == (1000, 0)
    assert rates.transactions == pytest.approx(30 / rates.window_seconds, rel=0.2)
    board.watch(lambda: PLAIN)
    assert board.current().rates is None


@pytest.mark.parametrize("error", [StoreError("no answer"), KeyError("a defect of ours")])
def test_lineages_are_looked_at_when_there_is_another_one(error: Exception) -> None:
    """A bucket that does not answer is asked again, later, and stops nothing; nor does a defect."""
    parts = Parts()
    asked: list[int] = []

    def lineages(_: object) -> list[Any]:
        asked.append(1)
        if len(asked) == 1:
            raise error
        return [parts.coverage.lineage]

    store = MemoryStore()
    store.put(LAYOUT.backup(BACKUP.id), BACKUP.to_json())
    catalog: Any = Catalog(store, LAYOUT)
    catalog.lineages = lineages
    parts.reporter.look_at_history(catalog)
    parts.reporter.look_at_history(catalog)
    assert (parts.status.history, len(asked)) == (None, 1)
    parts.coverage.lineage = like(LINEAGE, id="20260102T030405Z-3e11fa47-ffff")
    parts.reporter.look_at_history(catalog)
    assert len(asked) == 2
    assert parts.status.history is not None
    assert parts.status.history.earliest == LINEAGE.first_binlog_time
    assert parts.status.backups == BackupsStatus(count=1, newest_at=BACKUP.taken_at)
    parts.go(599)
    parts.reporter.look_at_history(catalog)
    assert len(asked) == 2
    parts.go(1)
    parts.reporter.look_at_history(catalog)
    assert len(asked) == 3


def test_no_purge_is_advised_of_what_vanished_from_the_archive() -> None:
    """Somebody deleted a binlog, or all; what was pruned, or was left as chunks, is not missing."""
    parts, store = Parts(), MemoryStore()
    lineage = parts.coverage.lineage
    catalog = Catalog(store, LAYOUT)

    def look() -> str | None:
        parts.go(600)
        parts.reporter.look_at_history(catalog)
        return parts.status.purge.newest_safe

    store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    for number in (1, 2):
        store.put(LAYOUT.binlog(lineage.id, name(number)), b"x")
    assert look() == "b.000002"
    store.delete([LAYOUT.binlog(lineage.id, name(1))])
    assert look() is None
    chunk = LAYOUT.chunk(lineage.id, name(1), Chunk(0, 1, 1))
    store.put(chunk, b"x")
    assert look() == "b.000002"
    store.delete([chunk])
    assert look() is None
    floor = replace(FLOOR, lineage=lineage.id, binlog=name(2))
    store.put(LAYOUT.floor(lineage.id, name(2).number), floor.to_json())
    assert look() == "b.000002"
    store.delete([LAYOUT.lineage(lineage.id)])
    assert look() is None


def test_what_a_store_does_not_list_yet_has_not_vanished() -> None:
    """Each that is missing in a listing is asked for."""

    class Late(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            return iter(())

        def list_names(self, prefix: str, *, delimiter: str = "/") -> Iterator[str]:
            return iter(())

    parts, store = Parts(), Late()
    lineage = parts.coverage.lineage
    store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    for number in (1, 2):
        store.put(LAYOUT.binlog(lineage.id, name(number)), b"x")
    for lineages in ([], [lineage]):
        archived = [name(1), name(2)]
        assert vanished(Catalog(store, LAYOUT), lineages, lineage.id, archived) == ""
    store.delete([LAYOUT.binlog(lineage.id, name(2))])
    key = vanished(Catalog(store, LAYOUT), [lineage], lineage.id, archived)
    assert key == LAYOUT.binlog(lineage.id, name(2))
