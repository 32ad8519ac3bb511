"""What the board makes of a stream's parts; all of them are stand-ins that are told what to say."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.timing import DEFAULT
from binlog2s3.config.values import SpoolLimits
from binlog2s3.errors import SourceError, SpoolError, StoreError, SupersededError
from binlog2s3.server.connection import ServerBinlog, ServerPosition
from binlog2s3.status.model import BackupsStatus, Status, Totals, UploadStatus
from binlog2s3.status.severity import judged
from binlog2s3.stream.board import Board
from binlog2s3.stream.reporter import Pulse, Reporter, look_at_history
from binlog2s3.stream.shutdown import Stop
from binlog2s3.stream.source_watch import Sight
from binlog2s3.stream.spool import Room
from binlog2s3.stream.upload_counts import Counts, Failing
from binlog2s3.stream.uploads import Stock
from tests.documents import BACKUP, BEAT, LINEAGE, TIME, UUID, like
from tests.memory_store import MemoryStore
from tests.process import AtOnce
from tests.streamer import InlineWorkers
from tests.surveyed import LAYOUT
from tests.waiting import wait_until


def name(number: int) -> BinlogName:
    return BinlogName("b", number)


class Counted(AtOnce):
    """Uploads whose lineages have counted this."""

    counted: Callable[[], Stock]

    def count(self) -> Stock:
        return self.counted()


def stock(*, unsaved_bytes: int = 0, closed_binlogs: int = 0, **known: Any) -> Stock:
    """What is counted of one binlog."""
    uploads = UploadStatus(
        binlogs=1, unsaved_bytes=unsaved_bytes, closed_binlogs=closed_binlogs, requests_in_flight=2
    )
    return Stock(**{"uploads": uploads, "flush_interval": 1.0, **known})


class Parts:
    """A stream: durable up to b.000003:500 where the source stands, by a clock of its own.

    `source_clock` is how far the source's clock is ahead of ours.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.source_clock = timedelta(0)
        self.stock = stock()
        self.counts = Counts()
        self.pulse = Pulse()
        self.stop = Stop()
        self.disk: Room | SpoolError = Room(used=7, free=100, max_bytes=None, min_free=5)
        self.archived = {name(1), name(2)}
        self.coverage: Any = SimpleNamespace(
            durable=Position(
                binlog=BinlogName.parse("b.000003"), offset=500, gtid_set=f"{UUID}:1-9"
            ),
            following=name(3),
            contradictions=0,
            has=lambda binlog: binlog in self.archived,
        )
        self.covered: datetime | None = None
        self.watch: Any = SimpleNamespace(sight=Sight())
        self.supervisor: Any = SimpleNamespace(
            reached=lambda: (name(3), 500),
            pressure=SimpleNamespace(paused=False),
            run=SimpleNamespace(child=SimpleNamespace(pid=77)),
            is_running=True,
            read_at=self.now,
            read_totals=(0, 0),
            restarts=0,
            last_error=None,
        )
        self.intake: Any = SimpleNamespace(
            coverage=self.coverage,
            covered_until=lambda: self.covered,
            lineage=replace(LINEAGE, first_binlog=name(1)),
            left=None,
            server_uuid=UUID,
            is_behind=False,
        )
        self.writer: Any = SimpleNamespace(
            me=BEAT,
            beaten_at=self.now,
            furthest_covered=lambda _, until: until,
            standbys=(),
        )
        config: Any = SimpleNamespace(
            stream=SimpleNamespace(
                source="s",
                heartbeat_interval=30.0,
                flush_interval=1.0,
                exit_on_other_writer=False,
            ),
            s3=SimpleNamespace(part_size=1000),
            spool=Path("/s"),
            target="s3://b/p",
            timing=DEFAULT,
            spool_limits=SpoolLimits(),
        )
        self.uploads = Counted(
            config,
            store=None,
            layout=None,
            spool=SimpleNamespace(room=self._room),
            workers=InlineWorkers(4),
            stop=self.stop,
            clock=lambda: self.now,
        )
        self.uploads.counted = lambda: self.stock
        self.uploads.counts = self.counts
        self.reporter = Reporter(
            config,
            watch=self.watch,
            supervisor=self.supervisor,
            intake=self.intake,
            uploads=self.uploads,
            writer=self.writer,
            pulse=self.pulse,
            stop=self.stop,
            clock=lambda: self.now,
        )
        self.answer()

    def _room(self, _: object) -> Room:
        if isinstance(self.disk, SpoolError):
            raise self.disk
        return self.disk

    def answer(self, number: int = 3, offset: int = 500, gtids: str = f"{UUID}:1-9") -> None:
        """The source tells its position."""
        asked_at = datetime.now(UTC) + self.source_clock
        self.watch.sight = Sight(
            position=ServerPosition(
                asked_at=asked_at,
                settled_at=asked_at,
                uuid=UUID,
                binlog=name(number),
                offset=offset,
                gtid_set=gtids,
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
                here = self.watch.sight.position
                self.answer(here.binlog.number, here.offset, here.gtid_set)
            self.writer.beaten_at = self.now
            self.reporter.vitals()

    @property
    def status(self) -> Status:
        return self.reporter.status()

    @property
    def codes(self) -> list[tuple[str, str]]:
        return [(trouble.code, trouble.level) for trouble in self.status.troubles]


def test_an_idle_stream_is_well_for_ever() -> None:
    """Nothing comes, nothing is sent, and that is as it should be: lag 0 in all three units."""
    parts = Parts()
    parts.go(3600)
    status = parts.status
    assert (status.state, status.troubles, judged(status).healthy) == ("idle", (), True)
    assert (status.lag.bytes, status.lag.transactions, status.lag.seconds) == (0, 0, 0.0)
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
    parts.covered = parts.watch.sight.position.asked_at
    parts.answer(offset=900, gtids=f"{UUID}:1-12")
    parts.go(10)
    assert (parts.status.state, parts.codes) == ("streaming", [("stalled", "warning")])
    parts.go(25)
    assert (parts.status.state, parts.codes) == ("stalled", [("stalled", "critical")])
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (400, 3)
    parts.watch.sight = replace(
        parts.watch.sight,
        position=replace(
            parts.watch.sight.position, asked_at=parts.covered + timedelta(seconds=35)
        ),
    )
    assert parts.status.lag.seconds == pytest.approx(35, abs=1)
    parts.supervisor.read_at = parts.now
    assert parts.codes == []


def test_a_silent_source_is_not_called_idle() -> None:
    """Its last position was durable; since then nobody knows, so the lag rises from there."""
    parts = Parts()
    parts.go(1)
    parts.covered = parts.watch.sight.position.asked_at
    parts.go(20, answering=False)
    assert (parts.status.state, judged(parts.status).healthy) == ("idle", True)
    assert parts.status.lag.seconds == pytest.approx(20, abs=1)
    parts.go(15, answering=False)
    assert (parts.status.state, parts.codes) == ("source unreachable", [("source", "critical")])
    assert parts.status.lag.seconds == pytest.approx(35, abs=1)
    parts.watch.sight = replace(parts.watch.sight, error=SourceError("denied", hint="look"))
    assert parts.status.troubles[0].text.startswith("denied (for 3")
    assert parts.status.troubles[0].hint == "look"


def test_another_server_is_not_silent_from_the_first() -> None:
    """What was seen of the one before is forgotten by the watch, not when it was seen."""
    parts = Parts()
    parts.go(500)
    parts.watch.sight = Sight(listed=parts.watch.sight.listed)
    assert judged(parts.status).healthy
    parts.go(31, answering=False)
    assert parts.codes == [("source", "critical")]


def test_the_oldest_commit_in_the_spool_bounds_the_lag() -> None:
    """By the source's clock, to the moment at which it was committed there."""
    parts = Parts()
    parts.source_clock = timedelta(hours=5)
    parts.go(1)
    there = parts.watch.sight.position.asked_at
    parts.covered = there - timedelta(seconds=9)
    oldest = int((there - timedelta(seconds=4)).timestamp() * 1e6)
    parts.stock = stock(unsaved_bytes=5, oldest_commit_us=oldest)
    parts.go(2, answering=False)
    assert parts.status.lag.seconds == pytest.approx(6, abs=0.5)
    parts.covered = None
    assert parts.status.lag.seconds == pytest.approx(6, abs=0.5)


def test_nothing_durable_for_long_is_the_stores_trouble() -> None:
    """While something waits; each byte that arrives starts the time anew."""
    parts = Parts()
    parts.go(600)
    parts.stock = stock(unsaved_bytes=5)
    parts.go(50)
    assert judged(parts.status).healthy
    parts.counts.acts += 1
    parts.go(55)
    assert (judged(parts.status).healthy, parts.status.state) == (True, "store unreachable")
    parts.go(10)
    assert parts.codes == [("store", "critical")]
    parts.stock = stock()
    parts.go(2)
    assert parts.codes == []


def test_a_request_that_fails_again_and_again() -> None:
    """From its first failure on until it succeeds, whatever else does."""
    parts = Parts()
    parts.pulse.failed(StoreError("503", hint="wait"), parts.now)
    parts.go(4)
    assert parts.codes == []
    parts.go(4)
    parts.pulse.failed(StoreError("503 again", hint="wait"), parts.now)
    assert (parts.status.state, parts.codes) == ("store unreachable", [("store", "warning")])
    parts.go(25)
    assert parts.codes == [("store", "critical")]
    assert parts.status.store is not None
    assert (parts.status.store.errors, parts.status.store.last_error) == (2, "503 again")
    parts.counts.acts += 1
    parts.go(1)
    assert (parts.status.state, parts.codes) == ("idle", [("store", "critical")])
    parts.pulse.over(succeeded=True, now=parts.now)
    assert parts.codes == []
    parts.stock = stock(failing=Failing(parts.now, error="denied"))
    parts.counts.failures = 5
    parts.go(31)
    assert parts.codes == [("store", "critical")]
    assert parts.status.store is not None
    assert parts.status.store.errors == 7
    assert "denied" in parts.status.troubles[0].text


def test_a_request_that_failed_for_a_while_is_over_when_it_succeeds() -> None:
    """Also on an idle source, which brings nothing into the bucket; others go on failing."""
    parts = Parts()
    other = threading.Thread(target=parts.pulse.failed, args=(StoreError("500"), parts.now + 20))
    parts.pulse.failed(StoreError("503"), parts.now)
    other.start()
    other.join()
    parts.go(31)
    assert parts.codes == [("store", "critical")]
    assert parts.pulse.over(succeeded=True, now=parts.now) is not None
    assert parts.pulse.failing_since == parts.now - 11
    parts.go(1)
    assert parts.codes == [("store", "warning")]
    parts.pulse.failed(StoreError("503"), parts.now)
    assert parts.pulse.over(succeeded=False, now=parts.now) is None
    assert parts.pulse.over(succeeded=True, now=parts.now) is None
    parts.go(31)
    assert parts.codes == [("store", "critical")]


def test_a_pause_that_makes_room_is_well() -> None:
    """A catch-up through a small spool pauses all the time; it is ill when nothing leaves."""
    parts = Parts()
    parts.supervisor.pressure.paused = True
    parts.answer(offset=900)
    for _ in range(20):
        parts.counts.acts += 1
        parts.go(10)
        assert (parts.status.state, judged(parts.status).healthy) == ("paused", True)
    parts.go(61)
    assert ("paused", "critical") in parts.codes
    assert ("stalled", "critical") not in parts.codes
    parts.supervisor.pressure.paused = False
    parts.supervisor.read_at = parts.now
    parts.go(1)
    assert judged(parts.status).healthy


def test_what_was_read_and_is_not_there_is_not_idleness() -> None:
    """Nor is a closed binlog that waits for the archive; much of it is a catch-up."""
    parts = Parts()
    for counted, state in (
        (stock(unsaved_bytes=5), "streaming"),
        (stock(closed_binlogs=1), "streaming"),
        (stock(unsaved_bytes=5000), "catching up"),
        (stock(), "idle"),
    ):
        parts.stock = counted
        parts.go(2)
        assert parts.status.state == state


def test_what_is_not_due_yet_is_not_late() -> None:
    """With a flush every few minutes nothing has to come in between."""
    parts = Parts()
    parts.stock = stock(unsaved_bytes=5, flush_interval=150.0)
    parts.go(205)
    assert judged(parts.status).healthy
    parts.go(10)
    assert parts.codes == [("store", "critical")]


def test_a_mysqlbinlog_that_does_not_run_is_told() -> None:
    """Not at once: between two runs there is none. In a pause none is wanted."""
    parts = Parts()
    parts.go(3)
    parts.supervisor.run, parts.supervisor.is_running = None, False
    parts.supervisor.last_error = (TIME, "not found")
    parts.go(4)
    assert parts.codes == []
    parts.go(10)
    assert (parts.status.state, parts.codes) == ("source unreachable", [("source", "warning")])
    assert "not found" in parts.status.troubles[0].text
    parts.go(20)
    assert parts.codes == [("source", "critical")]
    parts.supervisor.pressure.paused = True
    parts.go(1)
    assert parts.codes == [("paused", "warning")]


def test_a_loop_that_hangs_is_told_by_another_thread() -> None:
    """What it counted last stays shown."""
    parts = Parts()
    parts.go(2)
    parts.go(31, looping=False)
    assert (parts.status.state, parts.codes) == ("stalled", [("stuck", "critical")])
    assert parts.status.spool is not None
    assert parts.status.spool.bytes == 7


def test_a_late_heartbeat_is_told() -> None:
    """Two intervals and a little may pass."""
    parts = Parts()
    parts.go(1)
    beaten = parts.now
    for seconds, codes in ((64, []), (70, [("heartbeat", "warning")]), (81, "critical")):
        parts.now = beaten + seconds
        parts.writer.beaten_at = beaten
        parts.uploads.step(0)
        parts.answer()
        found = parts.codes
        assert found == codes or (codes == "critical" and found == [("heartbeat", "critical")])
    parts.writer.beaten_at = None
    assert judged(parts.status).healthy
    assert parts.status.writer is not None
    assert parts.status.writer.heartbeat_at is None


def test_the_end_and_another_writer() -> None:
    """The end turns /health at once; a stream that ends only to stand by is well."""
    parts = Parts()
    parts.stop.event.set()
    assert (parts.status.state, parts.codes) == ("stopped", [("stopping", "critical")])
    parts.stop.fail(SupersededError("another one"))
    assert (parts.status.state, parts.codes) == ("standby", [])


def test_a_spool_that_cannot_be_looked_at_is_shown_as_it_was() -> None:
    """And before it could ever be, not at all."""
    parts = Parts()
    parts.disk = SpoolError("gone")
    parts.go(2)
    assert parts.status.spool is None
    parts.disk = Room(used=9, free=1, max_bytes=20, min_free=5)
    parts.go(2)
    parts.disk = SpoolError("gone")
    parts.go(2)
    assert parts.status.spool is not None
    assert parts.status.spool.bytes == 9


def test_before_the_source_and_the_lineage_are_known() -> None:
    """None, not 0."""
    parts = Parts()
    parts.watch.sight = Sight()
    parts.intake.coverage = parts.intake.lineage = None
    parts.supervisor.reached = lambda: None
    status = parts.status
    assert (status.lag.bytes, status.lag.transactions, status.lag.seconds) == (None, None, None)
    assert (status.durable, status.lineage, status.purge.seconds) == (None, None, None)
    assert status.server.position is None
    assert status.totals is None


def test_nothing_is_durable_yet() -> None:
    """The lag is counted from the first binlog that is streamed."""
    parts = Parts()
    parts.coverage.durable, parts.coverage.following = None, name(1)
    parts.archived.clear()
    parts.intake.lineage = replace(LINEAGE, gtid_set=f"{UUID}:1-5")
    status = parts.status
    assert (status.lag.bytes, status.lag.transactions) == (2500, 4)
    assert status.purge.statement is None


def test_what_was_read_since_the_source_was_asked_is_not_0_transactions() -> None:
    """The bytes are counted, their transactions are not; a source without GTIDs has none left."""
    parts = Parts()
    parts.supervisor.reached = lambda: (name(3), 900)
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (400, None)
    parts.supervisor.reached = lambda: (name(3), 500)
    parts.coverage.durable = replace(parts.coverage.durable, gtid_set="")
    parts.answer(gtids="")
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (0, 0)


def test_what_an_older_history_still_has_to_bring_is_lag() -> None:
    """However far the new one has come."""
    parts = Parts()
    parts.intake.is_behind = True
    parts.covered = parts.watch.sight.position.asked_at - timedelta(seconds=50)
    assert parts.status.lag.seconds == pytest.approx(50, abs=1)


def test_a_source_that_stands_before_what_is_durable_is_not_idle() -> None:
    """After a RESET: what it has committed since is in no history that is known."""
    parts = Parts()
    parts.answer(number=1, offset=4000)
    parts.covered = parts.watch.sight.position.asked_at - timedelta(seconds=50)
    parts.coverage.contradictions = 1
    assert parts.status.lag.seconds == pytest.approx(50, abs=1)
    parts.coverage.contradictions = 2
    assert (parts.status.lag.bytes, parts.status.lag.transactions) == (None, None)


def test_the_latest_moment_is_a_commit_or_a_proof() -> None:
    """Whichever is later; the last commit is remembered when its binlog has left."""
    parts = Parts()
    parts.covered = TIME
    newest = int((TIME + timedelta(seconds=5)).timestamp() * 1e6)
    parts.stock = stock(newest_commit_us=newest)
    parts.go(2)
    parts.stock = stock()
    parts.go(2)
    assert parts.status.latest == TIME + timedelta(seconds=5)
    parts.covered = TIME + timedelta(seconds=9)
    assert parts.status.latest == parts.covered


def test_the_latest_moment_is_never_in_the_future() -> None:
    """A source whose clock is ahead proves nothing of what is still to come."""
    parts = Parts()
    parts.covered = datetime.now(UTC) + timedelta(hours=2)
    assert parts.status.latest is not None
    assert parts.status.latest <= datetime.now(UTC)


# The board

PLAIN = Status(source="s", target="t", seen_from="daemon", at=TIME, state="streaming")


def test_a_board_looks_again_and_again() -> None:
    """Each Status is told; one that cannot be made ends nothing."""
    looks: list[int] = []

    def look() -> Status:
        looks.append(1)
        if len(looks) == 2:
            raise RuntimeError("defect")
        return replace(PLAIN, at=TIME + timedelta(seconds=len(looks)))

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


def test_lineages_are_looked_at_when_there_is_another_one() -> None:
    """A bucket that does not answer is asked again, later, and stops nothing."""
    parts = Parts()
    asked: list[int] = []

    def lineages(_: object) -> list[Any]:
        asked.append(1)
        if len(asked) == 1:
            raise StoreError("no answer")
        return [parts.intake.lineage]

    ended = threading.Event()
    store = MemoryStore()
    store.put(LAYOUT.backup(BACKUP.id), BACKUP.to_json())
    catalog: Any = SimpleNamespace(lineages=lineages, store=store, layout=LAYOUT)
    thread = threading.Thread(
        target=look_at_history, args=(parts.reporter, catalog, parts.intake, ended)
    )
    thread.start()
    try:
        wait_until(lambda: asked, what="it is asked")
        assert parts.status.history is None
        parts.intake.lineage = like(LINEAGE, id="20260102T030405Z-3e11fa47-ffff")
        wait_until(lambda: parts.status.backups, what="and again")
    finally:
        ended.set()
        thread.join(60)
    assert parts.status.history is not None
    assert parts.status.history.earliest == LINEAGE.first_binlog_time
    assert parts.status.backups == BackupsStatus(count=1, newest_at=BACKUP.taken_at)
