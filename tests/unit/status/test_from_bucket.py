"""What the bucket alone says of a stream, and never more than it proves."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.status import Thresholds
from binlog2s3.errors import ArchiveError, ConfigError, ObjectMissingError, StoreError
from binlog2s3.output import Plain
from binlog2s3.status.document import document
from binlog2s3.status.expected import Expected, read_expected
from binlog2s3.status.from_bucket import look, look_all
from binlog2s3.status.model import (
    ChildStatus,
    DrillStatus,
    Lag,
    Purge,
    Rates,
    SilentKind,
    SourceStatus,
    SpoolStatus,
    Status,
    Trouble,
    UploadStatus,
    drill_of,
    latest_of,
)
from binlog2s3.status.nagios import verdict_of_all
from binlog2s3.status.severity import judged
from binlog2s3.status.text import cells_of, print_table
from binlog2s3.status.writer_state import Silent
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.workers import Workers
from tests.documents import BEAT, DRILL, ENTRY, ID, LINEAGE, TIME, UUID, like, parent_of, turn_of
from tests.memory_store import MemoryStore

SOURCE = "orders"
LAYOUT = Layout("pre", SOURCE)
TARGET = "s3://bucket/pre"
CHILD = "20260103T000000Z-3e11fa47-b2c3"
NAMES = [f"mysql-bin.{number:06}" for number in range(10)]
NOW = datetime(2026, 1, 2, 4, 5, 36, tzinfo=UTC)
BEAT_AT = NOW - timedelta(seconds=20)
COVERED = BEAT_AT - timedelta(seconds=2)
LAST = replace(
    BEAT,
    at=BEAT_AT,
    covered_until=COVERED,
    durable=Position(binlog=BinlogName.parse(NAMES[2]), offset=500, gtid_set=f"{UUID}:1-5"),
    server=Position(binlog=BinlogName.parse(NAMES[2]), offset=900, gtid_set=f"{UUID}:1-8"),
)
SAID = Status(
    source=SOURCE,
    target=TARGET,
    seen_from="daemon",
    at=BEAT_AT,
    state="streaming",
    server=SourceStatus(
        uuid=UUID,
        position=replace(LAST.server, gtid_set="") if LAST.server else None,
        silent_seconds=1.0,
        read_only=True,
        asked_at=COVERED,
    ),
    durable=LAST.durable,
    covered_until=COVERED,
    lag=Lag(bytes=400, transactions=3, seconds=1.5),
    spool=SpoolStatus(directory="/spool", bytes=7),
    uploads=UploadStatus(binlogs=1),
    child=ChildStatus(pid=1),
    rates=Rates(window_seconds=15, read_bytes=1, durable_bytes=1, transactions=1),
    purge=Purge(expire_seconds=86400.0, newest_safe=NAMES[1], to=NAMES[2]),
)


def saying(said: Status = SAID, beat: Heartbeat = LAST, **changed: Any) -> Heartbeat:
    """A heartbeat with a status in it, as a daemon puts it."""
    found = json.loads(json.dumps(document(replace(said, **changed))))
    return replace(beat, state=changed.get("state", said.state), status=found)


class Bucket:
    """A bucket to be filled by hand; `at` is when what comes next is put, by the store's clock."""

    def __init__(self, *lineages: Lineage, source: str = SOURCE) -> None:
        self.at = BEAT_AT
        self.store = MemoryStore(now=lambda: self.at)
        self.layout = Layout("pre", source)
        for lineage in lineages:
            self.describe(lineage)

    def describe(self, lineage: Lineage) -> None:
        ours = replace(lineage, source=self.layout.source)
        self.store.put(self.layout.lineage(lineage.id), ours.to_json())

    def archive(self, *numbers: int, id_: str = ID, size: int = 1000, **more: Any) -> None:
        for number in numbers:
            name = BinlogName.parse(NAMES[number])
            first = TIME + timedelta(hours=number)
            entry = replace(ENTRY, name=name, size=size, **{"format_event_time": first, **more})
            self.store.put(self.layout.binlog(id_, name), bytes(size))
            self.store.put(self.layout.entry(id_, name), entry.to_json())

    def chunk(self, number: int, *ranges: tuple[int, int], id_: str = ID) -> None:
        self.chunk_of(BinlogName.parse(NAMES[number]), *ranges, id_=id_)

    def chunk_of(self, name: BinlogName, *ranges: tuple[int, int], id_: str = ID) -> None:
        for begin, end in ranges:
            key = self.layout.chunk(id_, name, Chunk(begin, end, 1))
            self.store.put(key, bytes(end - begin))

    def beat(self, beat: Heartbeat = LAST, *, at: datetime = BEAT_AT) -> None:
        self.at = at
        ours = replace(beat, source=self.layout.source)
        self.store.put(self.layout.writer(beat.generation, beat.token), ours.to_json())
        if beat.lineage is not None:
            self.store.put(self.layout.turn(beat.generation), turn_of(beat).to_json())

    def look(self, now: datetime = NOW) -> Status:
        return look(self.store, "pre", self.layout.source, TARGET, now=now)

    def look_all(
        self, *expect: str, ignore: tuple[str, ...] = (), now: datetime = NOW
    ) -> list[Status]:
        expected = Expected(expect, ignore)
        return look_all(self.store, "pre", TARGET, Workers(4), now=now, expect=expected)

    def gaps(self, now: datetime = NOW) -> list[tuple[str, str, str]]:
        history = self.look(now).history
        assert history is not None
        return [(gap.lineage, gap.join, gap.text) for gap in history.gaps]

    def earliest(self) -> datetime | None:
        history = self.look().history
        assert history is not None
        assert history.complete
        return history.earliest


def streamed(beat: Heartbeat = LAST, *lineages: Lineage) -> Bucket:
    """Two archived binlogs, and 500 bytes of the third; its writer was seen 20 s ago."""
    bucket = Bucket(*(lineages or (LINEAGE,)))
    bucket.archive(1)
    bucket.chunk(2, (0, 500))
    bucket.beat(beat)
    return bucket


def codes(status: Status) -> list[tuple[str, str]]:
    return [(trouble.code, trouble.level) for trouble in status.troubles]


def child(
    parent: str = ID, *, join: str = "exact", number: int = 3, missing: str = "", **changed: Any
) -> Lineage:
    where = {"binlog": NAMES[number], "offset": 700, "join": join, "missing": missing}
    born = TIME + timedelta(days=1)
    return like(
        LINEAGE, id=CHILD, first_binlog_time=born, parent=parent_of(parent, **{**where, **changed})
    )


LOOKED = replace(SAID.lag, seconds=21.5, at_least=True)  # 20 seconds behind the heartbeat


# Whether the writer lives


def test_a_writer_that_lives_is_what_it_says() -> None:
    """State, lag and all else are its own, when its object is as old as two intervals allow."""
    bucket = streamed(saying(state="idle"))
    for age in (0, 20, 75):
        status = bucket.look(BEAT_AT + timedelta(seconds=age))
        assert (status.state, status.troubles, status.seen_from) == ("idle", (), "bucket")
        # what was committed since the heartbeat may not be durable, for all that can be known
        assert status.lag == replace(SAID.lag, seconds=1.5 + age, at_least=age > 0)
        assert status.server.silent_seconds is None
        assert (status.durable, status.covered_until) == (LAST.durable, COVERED)
        assert (status.spool, status.uploads, status.child) == (
            SAID.spool,
            SAID.uploads,
            SAID.child,
        )
        assert status.server.position == LAST.server
        assert status.server.flavour == "mysql"
        assert status.server.read_only is True
    assert status.writer is not None
    assert (status.writer.host, status.writer.heartbeat_at) == ("db1", BEAT_AT)
    assert (status.writer.generation, status.lineage) == (LAST.generation, ID)
    assert (status.source, status.target) == (SOURCE, TARGET)
    assert status.at == BEAT_AT + timedelta(seconds=75)
    assert status.purge.seconds == 86400.0 - 76.5
    assert status.purge.newest_safe == NAMES[1]
    assert status.latest == COVERED


def test_what_the_writer_says_is_wrong_is_kept() -> None:
    """A stuck stream is neither idle nor dead."""
    trouble = Trouble(code="stalled", level="critical", text="nothing has come", hint="why?")
    status = streamed(saying(state="stalled", troubles=(trouble,))).look()
    assert (status.state, status.troubles, judged(status).healthy) == ("stalled", (trouble,), False)


@pytest.mark.parametrize("seconds", [76, 100_000])
def test_a_writer_that_no_longer_renews_its_object_is_dead(seconds: int) -> None:
    """From two intervals and 15 s on; its lag grows, and nothing is left that ran then."""
    bucket = streamed(saying(state="idle", lag=Lag(bytes=0, transactions=0, seconds=0.0)))
    now = BEAT_AT + timedelta(seconds=seconds)
    status = bucket.look(now)
    assert (status.state, codes(status)) == ("dead", [("dead", "critical")])
    assert "idle" in status.troubles[0].text
    assert "db1" in status.troubles[0].text
    assert status.lag == Lag(bytes=None, transactions=None, seconds=seconds + 2)
    assert (status.child, status.rates, status.uploads) == (None, None, None)
    assert (status.server.silent_seconds, status.server.read_only) == (None, None)
    assert status.spool == SAID.spool
    assert (status.durable, status.covered_until) == (LAST.durable, COVERED)
    assert status.purge.seconds == max(0, 86400 - seconds - 2)


def test_the_interval_is_the_writers_own() -> None:
    """One that beats every second is dead sooner; one that no option allows is not believed."""
    for interval, limit in ((1.0, 17), (3600.0, 7215), (0.0, 75), (1e300, 75)):
        bucket = streamed(saying(beat=replace(LAST, interval_seconds=interval)))
        states = [
            bucket.look(BEAT_AT + timedelta(seconds=limit + more)).state for more in (0, 0.001)
        ]
        assert states == ["streaming", "dead"]


def test_a_writer_that_stopped_is_not_dead() -> None:
    """Nobody streams, however long ago that was; its lag grows likewise."""
    bucket = streamed(replace(saying(), state="stopped"))
    for seconds in (1, 100_000):
        status = bucket.look(BEAT_AT + timedelta(seconds=seconds))
        assert (status.state, codes(status)) == ("stopped", [("stopped", "critical")])
        assert status.lag == Lag(seconds=seconds + 2)
        assert status.child is None


def test_a_dead_writer_that_never_covered_anything_has_no_lag() -> None:
    """None, not 0."""
    bucket = streamed(replace(LAST, covered_until=None))
    status = bucket.look(NOW + timedelta(days=1))
    assert (status.state, status.lag) == ("dead", Lag())


def test_a_clock_behind_the_stores_hides_no_age() -> None:
    """The store's clock is taken where ours is behind; far behind, that is said."""
    bucket = streamed(replace(saying(), state="stopped"))
    status = bucket.look(BEAT_AT - timedelta(seconds=3600))
    assert codes(status) == [("stopped", "critical"), ("clock", "warning")]
    assert status.lag.seconds == 2
    assert codes(bucket.look(BEAT_AT - timedelta(seconds=10))) == [("stopped", "critical")]


def test_without_a_writer_the_state_is_unknown() -> None:
    """What lies there is told all the same, and it is not well."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, 2)
    status = bucket.look()
    assert (status.state, judged(status).healthy) == ("unknown", False)
    assert codes(status) == [("unknown", "critical")]
    assert LAYOUT.writers in status.troubles[0].text
    assert status.durable == Position(binlog=BinlogName.parse(NAMES[2]), offset=1000, gtid_set="")
    assert (status.lag, status.covered_until, status.writer) == (Lag(), None, None)
    assert status.latest == datetime.fromtimestamp(1_795_253_309, UTC) + timedelta(microseconds=2)


def test_a_commit_time_that_is_later_than_its_receipt_is_not_the_latest() -> None:
    """Neither of an entry, nor of what a writer before 0.3 said of itself."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, greatest_commit_us=1 << 52)
    honest = datetime.fromtimestamp(1_795_253_309, UTC) + timedelta(microseconds=2)
    assert bucket.look().latest == honest
    said_at, lie = TIME, TIME + timedelta(days=4000)
    assert latest_of([None, lie], said_at) == said_at
    assert latest_of([None, TIME - timedelta(days=1)], said_at) == TIME - timedelta(days=1)
    assert latest_of([None], said_at) is None


def test_without_commits_the_last_binlogs_begin_is_what_is_proved() -> None:
    """All that was committed before it lies before it."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1)
    bucket.archive(2, greatest_commit_us=None, least_commit_us=None, reached_us=None)
    assert bucket.look().latest == TIME + timedelta(hours=2)
    bucket.store.put(LAYOUT.entry(ID, BinlogName.parse(NAMES[2])), b"{}")
    assert bucket.look().latest is None


@pytest.mark.parametrize(
    "data",
    [
        b"no JSON",
        b"[]",
        json.dumps({**json.loads(LAST.to_json()), "format": 2}).encode(),
        json.dumps({**json.loads(LAST.to_json()), "durable": {"binlog": "x"}}).encode(),
        json.dumps({**json.loads(LAST.to_json()), "lineage": ["x"]}).encode(),
    ],
)
def test_a_writers_object_that_cannot_be_read_is_named(data: bytes) -> None:
    """The state is unknown; an older writer's object does not stand in for it."""
    bucket = streamed(saying())
    key = LAYOUT.writer(8, "ffffffff")
    bucket.store.put(key, data)
    status = bucket.look()
    assert (status.state, judged(status).healthy, status.covered_until) == ("unknown", False, None)
    assert codes(status) == [("unreadable", "critical")]
    assert key in status.troubles[0].text
    assert status.durable == Position(binlog=BinlogName.parse(NAMES[2]), offset=500, gtid_set="")


def test_a_state_that_a_newer_version_made_is_unknown() -> None:
    """It is not guessed at."""
    status = streamed(replace(saying(), state="dreaming")).look()
    assert (status.state, codes(status)) == ("unknown", [("unreadable", "critical")])
    assert "dreaming" in status.troubles[0].text
    assert status.covered_until == COVERED


def test_the_greatest_writer_counts() -> None:
    """Another one's object, whenever it was put, says nothing."""
    bucket = streamed(saying())
    bucket.beat(replace(saying(state="idle"), generation=6), at=NOW)
    assert bucket.look().state == "streaming"


def test_a_writers_object_that_vanishes_is_looked_for_again() -> None:
    """Its successor deletes it between the listing and the reading."""
    bucket = streamed(saying(state="idle"))
    older, newer = LAYOUT.writer(LAST.generation, LAST.token), replace(LAST, generation=8)

    def vanish(operation: str, keys: Any, _: Any) -> None:
        if operation == "get" and keys == (older,):
            bucket.store.objects.pop(older, None)
            bucket.store.on_act = lambda *_: None
            bucket.beat(newer)

    bucket.store.on_act = vanish
    status = bucket.look()
    assert status.writer is not None
    assert (status.state, status.writer.generation) == ("streaming", 8)


# A streamer of this host that does not answer


def silent(kind: SilentKind, host: str = "db1", spool: str = "/spool") -> Silent:
    return Silent(host=host, spool=Path(spool), why="nobody on /spool/status.sock", kind=kind)


def told(bucket: Bucket, silence: Silent, now: datetime = NOW) -> Status:
    return look(bucket.store, "pre", SOURCE, TARGET, now=now, silent=silence)


def test_a_writer_whose_own_socket_refuses_is_dead_at_once() -> None:
    """Nothing that it said of the source, or of its own work, is shown as of now."""
    bucket = streamed(saying(state="idle", lag=Lag(bytes=0, transactions=0, seconds=0.0)))
    status = told(bucket, silent("refused"), BEAT_AT + timedelta(seconds=3))
    assert (status.state, codes(status)) == ("dead", [("dead", "critical")])
    assert f"(process {LAST.pid}) died" in status.troubles[0].text
    assert "its last heartbeat came 3 s ago" in status.troubles[0].text
    assert status.lag == Lag(seconds=5.0)
    assert (status.uploads, status.child, status.rates) == (None, None, None)


@pytest.mark.parametrize(
    ("silence", "state", "level"),
    [
        (silent("hangs"), "streaming", "critical"),
        (silent("expected"), "streaming", "warning"),
        (silent("refused", host="db2"), "streaming", "warning"),
        (silent("hangs", host="db2"), "streaming", "warning"),
        (silent("expected", host="db2"), "streaming", "warning"),
        (silent("refused", spool="/other"), "streaming", "warning"),
    ],
)
def test_a_streamer_that_does_not_answer_is_at_least_a_warning(
    silence: Silent, state: str, level: str
) -> None:
    """A hanging one is critical; where another one writes, the stream itself may be well."""
    status = told(streamed(saying()), silence)
    assert (status.state, codes(status)) == (state, [("unanswered", level)])
    assert "came 20 s ago" in status.troubles[0].text


@pytest.mark.parametrize("kind", ["absent", "unclear"])
def test_where_no_streamer_is_expected_nothing_is_missed(kind: SilentKind) -> None:
    """Any machine may read the bucket; a socket that may not be asked proves nothing."""
    bucket = streamed(saying())
    assert told(bucket, silent(kind)) == bucket.look()


def test_a_writer_that_is_dead_or_stopped_is_not_told_twice() -> None:
    """Its own trouble says it."""
    bucket = streamed(saying())
    late = BEAT_AT + timedelta(hours=1)
    assert codes(told(bucket, silent("refused"), late)) == [("dead", "critical")]
    stopped = streamed(replace(saying(), state="stopped"))
    assert codes(told(stopped, silent("refused"))) == [("stopped", "critical")]


# A long lineage


class Paging(MemoryStore):
    """Counts the requests that listings are: one for each 1,000 keys."""

    lists = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self.lists += 1
        for at, info in enumerate(super().list(prefix, start_after=start_after)):
            self.lists += at > 0 and at % 1000 == 0
            yield info

    def list_names(self, prefix: str, *, delimiter: str = "/") -> Iterator[str]:
        self.lists += 1
        return super().list_names(prefix, delimiter=delimiter)


MANY = 12_000


LAST_OF_MANY = Position(binlog=f"mysql-bin.{MANY + 1:06}", offset=500, gtid_set="")


def numbered(number: int) -> BinlogName:
    return BinlogName("mysql-bin", number)


def long(first: int = 0) -> Bucket:
    """A lineage of which the binlogs from the first to MANY are archived, and the next is open."""
    bucket = Bucket(LINEAGE)
    bucket.store = Paging(now=lambda: bucket.at)
    bucket.describe(LINEAGE)
    for number in range(first, MANY + 1):
        bucket.store.put(LAYOUT.binlog(ID, numbered(number)), b"x")
    for number in (first, first + 1):
        entry = replace(
            ENTRY, name=numbered(number), format_event_time=TIME + timedelta(hours=number)
        )
        bucket.store.put(LAYOUT.entry(ID, numbered(number)), entry.to_json())
    chunk = Chunk(0, 500, 1)
    bucket.store.put(LAYOUT.chunk(ID, numbered(MANY + 1), chunk), bytes(500))
    bucket.beat(replace(saying(durable=LAST_OF_MANY), durable=LAST_OF_MANY))
    return bucket


def listed(bucket: Bucket) -> int:
    assert isinstance(bucket.store, Paging)
    found, bucket.store.lists = bucket.store.lists, 0
    return found


@pytest.mark.parametrize("first", [LINEAGE.first_binlog.number, 2500])
def test_a_long_lineage_costs_six_listings(first: int) -> None:
    """However many binlogs it has; also where its beginning was deleted in order."""
    bucket = long(first)
    listed(bucket)
    status = bucket.look()
    assert listed(bucket) <= 6
    assert (status.troubles, status.durable) == ((), LAST_OF_MANY)
    history = status.history
    assert history is not None
    assert (history.gaps, history.complete) == ((), False)
    began = LINEAGE.first_binlog_time if first < 2500 else TIME + timedelta(hours=first)
    assert history.earliest == began


def test_the_end_of_a_long_lineage_is_looked_at() -> None:
    """Chunks and binlogs that came after the heartbeat; a binlog that is missing before it."""
    bucket = long()
    bucket.store.put(LAYOUT.binlog(ID, numbered(MANY + 1)), bytes(900))
    bucket.chunk_of(numbered(MANY + 2), (0, 70))
    reached = bucket.look().durable
    assert reached == Position(binlog=numbered(MANY + 2), offset=70, gtid_set="")
    bucket.store.delete([LAYOUT.binlog(ID, numbered(MANY))])
    assert [text for *_, text in bucket.gaps()] == [f"{numbered(MANY)} is missing"]


def test_the_beginning_of_a_long_lineage_is_looked_at() -> None:
    """A binlog that is missing among its first thousand; one in the middle is for verify."""
    bucket = long()
    bucket.store.delete([LAYOUT.binlog(ID, numbered(700))])
    assert [text for *_, text in bucket.gaps()] == [f"{numbered(700)} is missing"]
    whole = long()
    whole.store.delete([LAYOUT.binlog(ID, numbered(MANY // 2))])
    assert whole.gaps() == []


def test_without_a_heartbeat_the_end_is_found_all_the_same() -> None:
    """By pages, or by listing on."""
    bucket = long()
    (key,) = [key for key in bucket.store.objects if key.startswith(LAYOUT.writers)]
    bucket.store.delete([key])
    assert bucket.look().durable == LAST_OF_MANY


# An older writer's object


def test_an_object_without_a_status_tells_what_its_fields_do() -> None:
    """Lags are bounds out of what it says; the rest is not known."""
    status = streamed(LAST).look()
    assert (status.state, status.troubles) == ("streaming", ())
    assert status.lag == Lag(bytes=400, transactions=3, seconds=22.0, at_least=True)
    assert (status.spool, status.child, status.purge) == (None, None, Purge())
    assert streamed(replace(LAST, covered_until=None, server=None)).look().lag == Lag()


def test_a_status_that_cannot_be_read_is_none() -> None:
    """Of a newer format, or nonsense: the object's own fields stay."""
    newer = {**document(SAID), "format": 2}
    for said in (newer, {}, {"format": 1}, {**document(SAID), "lag": {"bytes": "x"}}):
        status = streamed(replace(LAST, status=said)).look()
        assert (status.state, status.spool) == ("streaming", None)
        assert status.lag == Lag(bytes=400, transactions=3, seconds=22.0, at_least=True)


def test_numbers_that_are_none_are_not_taken() -> None:
    """NaN in its lag or expiry would make comparisons false for ever."""
    nan = float("nan")
    beat = saying(lag=Lag(seconds=nan), purge=Purge(expire_seconds=nan))
    status = streamed(beat).look()
    assert (status.lag.seconds, status.purge) == (None, Purge())


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("paused", "paused"),
        ("source unreachable", "source"),
        ("store unreachable", "store"),
        ("stalled", "stalled"),
    ],
)
def test_an_older_writers_state_is_a_trouble(state: str, code: str) -> None:
    """Since when is not known, so it is critical."""
    status = streamed(replace(LAST, state=state)).look()
    assert (status.state, codes(status)) == (state, [(code, "critical")])


def test_a_start_is_critical_only_when_it_lasts() -> None:
    """A minute is given."""
    for seconds, level in ((59, "warning"), (61, "critical")):
        beat = replace(LAST, state="starting", since=BEAT_AT - timedelta(seconds=seconds))
        assert codes(streamed(beat).look()) == [("starting", level)]


def test_a_status_that_lags_behind_its_heartbeat_is_stuck() -> None:
    """The heartbeat's thread may outlive what makes the status."""
    status = streamed(saying(at=BEAT_AT - timedelta(seconds=16))).look()
    assert codes(status) == [("stuck", "critical")]
    assert streamed(saying(at=BEAT_AT - timedelta(seconds=14))).look().troubles == ()


def test_a_level_that_is_not_known_is_critical() -> None:
    """A newer version's word for worse is not taken for well."""
    trouble: Mapping[str, Any] = {"code": "x", "level": "fatal", "text": "t", "hint": ""}
    found = {**document(SAID), "troubles": [trouble]}
    status = streamed(replace(LAST, status=found)).look()
    assert (codes(status), judged(status).healthy) == ([("x", "critical")], False)


def test_positions_that_are_newer_than_the_status_count() -> None:
    """The status is made each second; what the writer saw since is not hidden by it."""
    older = replace(
        SAID.server, position=Position(binlog=BinlogName.parse(NAMES[2]), offset=500, gtid_set="")
    )
    nothing = Lag(bytes=0, transactions=0, seconds=0.5)
    status = streamed(saying(server=older, lag=nothing)).look()
    assert status.lag == Lag(bytes=400, transactions=3, seconds=20.5, at_least=True)
    far = replace(LAST, server=Position(binlog=BinlogName.parse(NAMES[4]), offset=5, gtid_set=""))
    status = streamed(saying(beat=far, server=older, lag=nothing)).look()
    assert status.lag == Lag(bytes=None, transactions=None, seconds=20.5)


def test_bytes_behind_without_a_transaction_are_not_0_transactions() -> None:
    """The heartbeat has more bytes than what is durable, and the same GTIDs: nobody counted."""
    durable = LAST.durable
    assert durable is not None
    ahead = Position(binlog=BinlogName.parse(NAMES[2]), offset=900, gtid_set=durable.gtid_set)
    status = streamed(replace(LAST, server=ahead)).look(BEAT_AT)
    assert (status.lag.bytes, status.lag.transactions) == (400, None)


def test_a_lag_over_several_binlogs_is_the_writers() -> None:
    """Their sizes are the source's; as long as it is of the same place it is a bound."""
    far = Position(binlog=BinlogName.parse(NAMES[4]), offset=5, gtid_set="")
    at = replace(SAID.server, position=far)
    bucket = streamed(saying(beat=replace(LAST, server=far), server=at))
    assert bucket.look().lag == LOOKED
    bucket.chunk(2, (500, 800))
    assert bucket.look().lag == Lag(bytes=100, seconds=21.5, at_least=True)
    bucket.archive(2)
    bucket.archive(3)
    assert bucket.look().lag == Lag(bytes=5, seconds=21.5, at_least=True)
    bucket.chunk(4, (0, 5))
    assert bucket.look().lag == Lag(seconds=21.5)  # all that was counted then has come


def test_without_gtids_of_its_own_no_transactions_are_counted() -> None:
    """All that the server ever executed would be far too many."""
    bare = replace(LAST, durable=replace(LAST.durable, gtid_set="") if LAST.durable else None)
    assert streamed(bare).look().lag.transactions is None


# What is durable


def test_chunks_and_binlogs_may_reach_further_than_the_heartbeat_said() -> None:
    """They come each second, it each half minute; the lag shrinks with them, never to none."""
    bucket = streamed(saying())
    bucket.chunk(2, (500, 800))
    status = bucket.look()
    assert status.durable == Position(binlog=BinlogName.parse(NAMES[2]), offset=800, gtid_set="")
    assert status.lag == Lag(bytes=100, seconds=21.5, at_least=True)
    bucket.chunk(2, (800, 900))
    assert bucket.look().lag == Lag(seconds=21.5)
    assert bucket.look(BEAT_AT).lag == Lag(bytes=0, transactions=0, seconds=1.5)
    bucket.archive(2)
    assert bucket.look().durable == Position(
        binlog=BinlogName.parse(NAMES[2]), offset=1000, gtid_set=""
    )
    bucket.archive(3)
    bucket.chunk(4, (0, 20))
    assert bucket.look().durable == Position(
        binlog=BinlogName.parse(NAMES[4]), offset=20, gtid_set=""
    )


def test_what_comes_behind_an_open_binlog_or_a_hole_is_not_reached() -> None:
    """Nobody can see that an open binlog is whole; binlogs are archived side by side."""
    bucket = streamed(saying())
    bucket.chunk(2, (600, 700))
    bucket.archive(3, 4)
    assert bucket.look().durable == LAST.durable


def test_chunks_of_another_lineage_do_not_count() -> None:
    """A history that was left goes no further."""
    bucket = streamed(saying(), LINEAGE, child())
    bucket.chunk(2, (500, 800), id_=CHILD)
    assert bucket.look().durable == LAST.durable


def test_it_is_never_less_than_the_heartbeat_said_but_what_is_lost_is() -> None:
    """Chunks that somebody deleted are critical, once they lack at every look."""
    bucket = streamed(saying(), LINEAGE)
    bucket.store.delete([key for key in bucket.store.objects if "0000500-" in key])
    bucket.chunk(2, (0, 300))
    status = bucket.look()
    assert status.durable == LAST.durable
    assert codes(status) == [("lost", "critical")]
    assert f"bytes 300 to 500 of {NAMES[2]}" in status.troubles[0].text


def test_what_a_listing_missed_is_listed_again() -> None:
    """What is put between two pages is no loss."""
    bucket = streamed(saying())
    key = next(key for key in bucket.store.objects if "/mysql-bin.000002/" in key)
    away = bucket.store.objects.pop(key)

    def come(operation: str, keys: Any) -> None:
        if operation == "list" and keys == (LAYOUT.binlogs(ID),):
            bucket.store.objects[key] = away

    bucket.store.on_acted = come
    assert bucket.look().troubles == ()


def test_before_the_heartbeat_names_a_lineage_the_bucket_tells() -> None:
    """A writer that starts has not found its place; what was archived is durable all the same."""
    bucket = streamed(replace(LAST, state="starting", lineage=None, durable=None, server=None))
    status = bucket.look()
    assert status.durable == Position(binlog=BinlogName.parse(NAMES[2]), offset=500, gtid_set="")
    assert status.lineage == ID


def test_a_place_in_no_lineage_is_none() -> None:
    """It could be anybody's: neither durable nor lost."""
    far = Position(binlog=BinlogName.parse(NAMES[4]), offset=9, gtid_set="")
    status = streamed(replace(LAST, lineage=None, durable=far)).look()
    assert status.durable == Position(binlog=BinlogName.parse(NAMES[2]), offset=500, gtid_set="")
    assert status.troubles == ()


def test_where_nothing_is_there_nothing_is_durable() -> None:
    """A lineage that was described only."""
    bucket = Bucket(LINEAGE)
    bucket.beat(replace(LAST, durable=None))
    status = bucket.look()
    assert (status.durable, status.lag.bytes) == (None, None)
    assert bucket.earliest() is None


# History


def test_one_whole_lineage_reaches_back_to_its_beginning() -> None:
    """Without gaps."""
    bucket = streamed()
    assert (bucket.earliest(), bucket.gaps()) == (TIME, [])
    history = bucket.look().history
    assert history is not None
    assert history.lineages == 1


def failed_over(**parent: Any) -> Bucket:
    """Lineage one with three binlogs, left at 700 in the third; lineage two is written."""
    there = replace(LAST, lineage=CHILD)
    bucket = Bucket(LINEAGE, child(**parent))
    bucket.archive(1, 2)
    bucket.chunk(3, (0, 700))
    bucket.archive(1, id_=CHILD)
    bucket.chunk(2, (0, 500), id_=CHILD)
    bucket.beat(there)
    return bucket


def test_an_exact_join_is_crossed() -> None:
    """Its history began with the parent's; what lies behind the cut does not matter."""
    bucket = failed_over()
    bucket.archive(5)
    assert bucket.earliest() == TIME
    assert bucket.gaps() == [(ID, "missing", f"{NAMES[4]} is missing")]


@pytest.mark.parametrize("join", ["gap", "unknown"])
def test_another_join_is_a_gap(join: str) -> None:
    """History begins behind it."""
    bucket = failed_over(join=join, missing=f"{UUID}:9")
    assert bucket.earliest() == TIME + timedelta(days=1)
    ((lineage, kind, text),) = bucket.gaps()
    assert (lineage, kind) == (CHILD, join)
    assert f"{UUID}:9" in text
    history = bucket.look().history
    assert history is not None
    assert history.gaps[0].at == TIME + timedelta(days=1)


def test_a_parent_that_ends_before_the_join_is_a_gap() -> None:
    """The bytes up to there must be there."""
    bucket = failed_over(offset=701)
    assert bucket.earliest() == TIME + timedelta(days=1)
    ((lineage, kind, text),) = bucket.gaps()
    assert (lineage, kind) == (CHILD, "missing")
    assert f"{NAMES[3]}:701" in text
    for offset in (0, 700):
        bucket = failed_over(binlog=NAMES[4], offset=offset)
        assert [kind for _, kind, _ in bucket.gaps()] == ["missing"]


def test_a_parent_that_was_deleted_whole_is_no_gap() -> None:
    """Its lineage.json alone may be left, or nothing."""
    bucket = failed_over()
    bucket.store.delete([key for key in bucket.store.objects if f"/{ID}/mysql" in key])
    bucket.store.delete([key for key in bucket.store.objects if f"/{ID}/binlogs" in key])
    bucket.store.delete([key for key in bucket.store.objects if f"/{ID}/entries" in key])
    assert (bucket.earliest(), bucket.gaps()) == (TIME + timedelta(days=1), [])
    bucket.store.delete([LAYOUT.lineage(ID)])
    assert (bucket.earliest(), bucket.gaps()) == (TIME + timedelta(days=1), [])


def test_a_parent_without_a_byte_is_passed_through() -> None:
    """Its own parent's end is where the bytes are; circles end."""
    third = "20260104T000000Z-3e11fa47-c3d4"
    between = child()
    last = replace(child(parent=CHILD, binlog=None, offset=0), id=third)
    bucket = Bucket(LINEAGE, between, last)
    bucket.archive(1, 2)
    bucket.chunk(3, (0, 700))
    bucket.archive(1, id_=third)
    bucket.beat(
        replace(
            LAST,
            lineage=third,
            durable=Position(binlog=BinlogName.parse(NAMES[1]), offset=9, gtid_set=""),
        )
    )
    assert (bucket.earliest(), bucket.gaps()) == (TIME, [])
    bucket.describe(replace(LINEAGE, parent=child(parent=third, binlog=None).parent))
    bucket.describe(replace(between, parent=child(parent=third, binlog=None).parent))
    assert bucket.gaps() == []


def test_a_binlog_that_lacks_in_the_middle_is_a_gap() -> None:
    """History begins with the binlog behind it, whose entry has its time."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, 4, 5)
    bucket.chunk(6, (0, 10))
    bucket.beat(
        replace(LAST, durable=Position(binlog=BinlogName.parse(NAMES[6]), offset=10, gtid_set=""))
    )
    text = f"{NAMES[2]} to {NAMES[3]} (2 binlogs) are missing"
    assert bucket.gaps() == [(ID, "missing", text)]
    assert bucket.earliest() == TIME + timedelta(hours=4)


def test_the_last_of_several_gaps_bounds_the_history() -> None:
    """What lies between them is out of reach."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, 3, 5)
    bucket.beat(
        replace(LAST, durable=Position(binlog=BinlogName.parse(NAMES[5]), offset=1000, gtid_set=""))
    )
    assert len(bucket.gaps()) == 2
    assert bucket.earliest() == TIME + timedelta(hours=5)


def test_what_is_lost_is_no_way_back() -> None:
    """Neither what lies behind it, nor the parent before it, is its history."""
    bucket = failed_over()
    bucket.store.delete([key for key in bucket.store.objects if f"/{CHILD}/mysql" in key])
    bucket.store.delete([key for key in bucket.store.objects if f"/{CHILD}/binlogs" in key])
    assert (bucket.earliest(), codes(bucket.look())) == (None, [("lost", "critical")])
    bucket.archive(4, id_=CHILD)
    assert bucket.earliest() is None


def test_a_hole_in_a_history_that_was_left_is_a_gap() -> None:
    """Nobody brings what is missing there, and nothing of it is needed."""
    bucket = failed_over()
    bucket.chunk(3, (800, 900))
    assert bucket.gaps() == [(ID, "missing", f"bytes 700 to 800 of {NAMES[3]} are missing")]
    assert bucket.earliest() == TIME


def test_what_a_living_writer_has_not_come_to_is_under_way() -> None:
    """Binlogs are archived side by side; when it is dead, that is a gap."""
    bucket = streamed()
    bucket.chunk(2, (600, 700))
    bucket.archive(4)
    assert (bucket.gaps(), bucket.earliest()) == ([], TIME)
    assert bucket.gaps(NOW + timedelta(hours=1)) == [
        (ID, "missing", f"{NAMES[3]} is missing"),
        (ID, "missing", f"bytes 500 to 600 of {NAMES[2]} are missing"),
    ]


def test_a_hole_in_what_was_durable_is_a_gap() -> None:
    """Also while its writer lives."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1)
    bucket.chunk(2, (0, 100), (200, 500))
    bucket.beat()
    assert bucket.gaps() == [(ID, "missing", f"bytes 100 to 200 of {NAMES[2]} are missing")]
    assert codes(bucket.look()) == [("lost", "critical")]


def test_a_hole_within_a_history_is_not_crossed() -> None:
    """One can go back to the binlog behind it."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, 3)
    bucket.chunk(2, (0, 100), (200, 500))
    bucket.beat(
        replace(LAST, durable=Position(binlog=BinlogName.parse(NAMES[3]), offset=1000, gtid_set=""))
    )
    assert bucket.earliest() == TIME + timedelta(hours=3)


def test_a_beginning_that_was_deleted_is_no_gap() -> None:
    """History begins with the first binlog that is there and described."""
    bucket = Bucket(LINEAGE)
    bucket.archive(3, 4)
    bucket.beat(
        replace(LAST, durable=Position(binlog=BinlogName.parse(NAMES[4]), offset=1000, gtid_set=""))
    )
    assert (bucket.gaps(), bucket.earliest()) == ([], TIME + timedelta(hours=3))
    bucket.store.delete([LAYOUT.entry(ID, BinlogName.parse(NAMES[3]))])
    assert bucket.earliest() == TIME + timedelta(hours=4)
    bucket.store.put(LAYOUT.entry(ID, BinlogName.parse(NAMES[4])), b"{}")
    assert bucket.earliest() is None


def test_a_beginning_that_lacks_behind_an_older_history_is_a_gap() -> None:
    """Nobody deletes from the middle in order."""
    bucket = failed_over()
    name = BinlogName.parse(NAMES[1])
    bucket.store.delete([LAYOUT.binlog(CHILD, name), LAYOUT.entry(CHILD, name)])
    assert bucket.gaps() == [(CHILD, "missing", f"{NAMES[1]} is missing")]
    assert bucket.earliest() is None  # of an open binlog nobody knows when it began


def test_a_parents_beginning_may_be_deleted() -> None:
    """The join is still crossed."""
    bucket = failed_over()
    bucket.store.delete([LAYOUT.binlog(ID, BinlogName.parse(NAMES[1]))])
    assert (bucket.gaps(), bucket.earliest()) == ([], TIME + timedelta(hours=2))


# What cannot be read


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}', b'{"format": 1}'])
def test_a_lineage_that_cannot_be_read_is_named(data: bytes) -> None:
    """A warning, but critical where it is the one that is written."""
    bucket = streamed(saying(), LINEAGE, child())
    bucket.store.put(LAYOUT.lineage(CHILD), data)
    status = bucket.look()
    assert (status.state, codes(status)) == ("streaming", [("unreadable", "warning")])
    assert LAYOUT.lineage(CHILD) in status.troubles[0].text
    bucket.store.put(LAYOUT.lineage(ID), data)
    for found in (bucket.look(), *bucket.look_all()):
        assert codes(found) == [("unreadable", "critical"), ("unreadable", "warning")]
        assert (found.lineage, found.durable) == (ID, LAST.durable)


def test_a_parent_that_is_none_is_named() -> None:
    """It hides nothing else."""
    bucket = streamed(saying(), LINEAGE, child(join="perhaps"))
    status = bucket.look()
    assert codes(status) == [("unreadable", "warning")]
    assert CHILD in status.troubles[0].text
    assert status.history is not None
    assert (status.history.lineages, status.history.earliest) == (1, TIME)


def test_a_lineage_without_its_document_is_named() -> None:
    """Where binlogs of it are, and where chunks of it are; once."""
    bucket = streamed(saying())
    bucket.archive(1, id_=CHILD)
    bucket.chunk(2, (0, 9), id_=CHILD)
    status = bucket.look()
    assert codes(status) == [("unreadable", "warning")]
    assert LAYOUT.lineage(CHILD) in status.troubles[0].text
    bucket.store.delete([LAYOUT.lineage(ID)])
    found = bucket.look()
    assert codes(found) == [("unreadable", "critical"), ("unreadable", "warning")]
    assert (found.durable, found.lag) == (LAST.durable, LOOKED)


def test_of_many_troubles_a_few_are_shown() -> None:
    """And how many more there are."""
    bucket = streamed(saying())
    for number in range(9):
        bucket.store.put(LAYOUT.lineage(f"20250102T030405Z-3e11fa47-000{number}"), b"{")
    troubles = bucket.look().troubles
    assert len(troubles) == 6
    assert "4 more" in troubles[-1].text


def test_a_source_with_foreign_objects_alone_is_unknown() -> None:
    """They are named."""
    bucket = Bucket()
    bucket.store.put(f"{LAYOUT.archive}README", b"hello")
    status = bucket.look()
    assert (status.state, codes(status)) == (
        "unknown",
        [("unknown", "critical"), ("unreadable", "warning")],
    )
    assert f"{LAYOUT.archive}README" in status.troubles[1].text


def test_where_nothing_is_the_sources_that_are_there_are_named() -> None:
    """A misspelt source is no dead one."""
    bucket = streamed()
    bucket.store.put("pre/live/other/writers/x", b"")
    with pytest.raises(ArchiveError, match="nothing of source order below") as raised:
        look(bucket.store, "pre", "order", TARGET, now=NOW)
    assert raised.value.hint == "the sources there are: orders, other"
    with pytest.raises(ArchiveError) as raised:
        look(MemoryStore(), "pre", "order", TARGET, now=NOW)
    assert "--s3-url" in raised.value.hint

    def deny(_: str, keys: Any, __: Any) -> None:
        if keys == ("pre/archive/",):
            raise StoreError("access denied")

    bucket.store.on_act = deny
    with pytest.raises(ArchiveError) as raised:
        look(bucket.store, "pre", "order", TARGET, now=NOW)
    assert "--s3-url" in raised.value.hint


def test_looking_changes_nothing() -> None:
    """It lists and gets."""
    bucket = failed_over()
    bucket.store.calls.clear()
    bucket.look()
    bucket.look_all("missing")
    assert {call for call, count in bucket.store.calls.items() if count} == {
        "list",
        "list_names",
        "get",
    }


# Many sources


def fleet(count: int) -> Bucket:
    """So many sources, each with a living writer."""
    bucket = Bucket()
    for number in range(count):
        bucket.layout = Layout("pre", f"source-{number:03}")
        bucket.describe(LINEAGE)
        bucket.archive(1, 2)
        bucket.chunk(2, (0, 500))
        bucket.beat(saying())
    return bucket


def test_all_sources_are_found() -> None:
    """Those with an archive, those with a writer only, and those that should be there."""
    bucket = fleet(2)
    young = replace(LAST, source="young", generation=1, token="00000000")
    bucket.store.put("pre/live/young/writers/000001-00000000.json", young.to_json())
    bucket.store.put("pre/live/no source/x", b"")
    bucket.store.put("pre/archive/a file", b"")
    bucket.at = NOW
    found = bucket.look_all("source-001", "absent")
    assert [(status.source, status.state) for status in found] == [
        ("absent", "unknown"),
        ("young", "streaming"),
        ("source-000", "streaming"),
        ("source-001", "streaming"),
    ]
    assert codes(found[0]) == [("missing", "critical")]
    assert codes(found[1]) == [("unreadable", "critical")]  # its lineage is not described
    for status in found[2:]:
        assert (status.troubles, status.lag, status.durable) == ((), LOOKED, LAST.durable)
        assert status.history is not None
        assert (status.history.lineages, status.history.complete) == (1, False)


def test_an_ignored_source_is_listed_and_not_looked_at() -> None:
    """No alarm comes of it, whatever state it is in; others are alarmed for as before."""
    bucket = fleet(3)
    for number in (1, 2):
        bucket.layout = Layout("pre", f"source-{number:03}")
        bucket.beat(replace(saying(), state="stopped"))
    bucket.store.calls.clear()
    found = bucket.look_all(ignore=("source-002", "absent"))
    assert bucket.store.calls["get"] == 3 * 2
    assert [(one.source, one.ignored) for one in found] == [
        ("source-001", False),
        ("source-000", False),
        ("source-002", True),
    ]
    assert [judged(one).severity for one in found] == ["critical", "ok", "ok"]
    assert document(found[-1])["ignored"] is True
    line = verdict_of_all(found, Thresholds()).line
    assert line.startswith("BINLOG2S3 CRITICAL - 1 of 3 sources critical: source-001; 1 ignored; ")
    assert " ok=1;;;0;3 " in line
    well = verdict_of_all(bucket.look_all(ignore=("source-001", "source-002")), Thresholds())
    assert (well.code, "1 source well; 2 ignored |" in well.line) == (0, True)
    page = StringIO()
    print_table(found, Plain(page), target=TARGET, now=NOW)
    assert "3 sources: 1 critical, 1 well, 1 ignored" in page.getvalue()
    assert re.search(r"source-002 +ignored +unknown", page.getvalue())


def test_few_requests_are_made_for_each_source() -> None:
    """Listing writers, turns, lineages and floors; one object of each; however many binlogs."""
    bucket = fleet(20)
    bucket.store.calls.clear()
    assert len(bucket.look_all()) == 20
    assert bucket.store.calls == {"list": 60, "list_names": 2 + 20, "get": 3 * 20}


def test_the_last_proof_of_each_source_is_shown() -> None:
    """As the living writer says, without a request; of others from the results in the bucket."""
    bucket = fleet(4)
    told = DrillStatus(proven_at=NOW - timedelta(hours=5), last_at=NOW)
    failed = replace(
        DRILL, id="20260102T035000Z-5a6b7c8d", outcome="failed", step="restore", error="status 3"
    )
    for number, beat, at, results in (
        (0, saying(drill=told), BEAT_AT, (DRILL,)),
        (1, saying(), BEAT_AT, (DRILL,)),
        (2, saying(drill=told), BEAT_AT - timedelta(hours=1), (DRILL, failed)),
    ):
        bucket.layout = Layout("pre", f"source-{number:03}")
        bucket.beat(beat, at=at)
        for one in results:
            ours = replace(one, source=bucket.layout.source)
            bucket.store.put(bucket.layout.drill(one.id), ours.to_json())
    bucket.at = NOW
    bucket.store.calls.clear()
    found = sorted(bucket.look_all(), key=lambda status: status.source)
    # two listings and three results more; the standbys beside a dead writer are listed as ever
    assert bucket.store.calls == {"list": 4 * 3 + 2 + 1, "list_names": 2 + 4, "get": 4 * 3 + 3}
    proved = drill_of(DRILL, DRILL)
    assert [one.drill for one in found] == [told, proved, drill_of(failed, DRILL), None]
    assert [cells_of(one)[-1] for one in found] == ["5 h", "20 min", "20 min", "-"]
    assert document(found[1])["drill"]["proven_at"] == "2026-01-02T03:45:05.000000Z"
    assert [code for code, _ in codes(found[2])] == ["dead"]
    assert [one.code for one in judged(found[2]).troubles] == ["dead", "drill"]


def test_results_of_drills_that_cannot_be_read_hide_nothing_else() -> None:
    """The source is shown as it is, with what its writer last said of drills."""
    bucket = fleet(1)
    bucket.store.put(bucket.layout.drill(DRILL.id), DRILL.to_json())

    def deny(_: str, keys: Any, __: Any) -> None:
        if keys and "/drills/" in keys[0]:
            raise StoreError("access denied")

    bucket.store.on_act = deny
    (status,) = bucket.look_all()
    assert (status.state, status.troubles, status.drill) == ("streaming", (), None)


def test_gaps_are_seen_from_the_lineages() -> None:
    """Joins are told; binlogs are not looked for."""
    bucket = failed_over(join="gap", missing="x")
    (status,) = bucket.look_all()
    assert status.history is not None
    assert [(gap.lineage, gap.join) for gap in status.history.gaps] == [(CHILD, "gap")]


def test_the_worst_comes_first() -> None:
    """Critical ones by lag, then what is not known, then warnings, then the others by name."""
    bucket = fleet(6)
    warning = Trouble(code="store", level="warning", text="x")

    def change(number: int, beat: Heartbeat, at: datetime = BEAT_AT) -> None:
        bucket.layout = Layout("pre", f"source-{number:03}")
        bucket.beat(beat, at=at)

    change(5, saying(), BEAT_AT - timedelta(hours=1))
    long_ago = replace(saying(), covered_until=COVERED - timedelta(hours=2))
    change(4, long_ago, BEAT_AT - timedelta(hours=1))
    change(3, saying(troubles=(warning,)))
    change(2, replace(saying(), state="dreaming", status=None, covered_until=None))
    order = [status.source for status in bucket.look_all()]
    assert order == [f"source-00{number}" for number in (4, 5, 2, 3, 0, 1)]


def test_a_source_that_is_denied_hides_no_other() -> None:
    """It is unknown, with the store's own words."""
    bucket = fleet(3)

    def deny(_: str, keys: Any, __: Any) -> None:
        if keys and keys[0].startswith("pre/live/source-001/"):
            raise StoreError("access denied", hint="allow it")

    bucket.store.on_act = deny
    found = bucket.look_all()
    assert [status.source for status in found] == ["source-001", "source-000", "source-002"]
    assert found[0].state == "unknown"
    (trouble,) = found[0].troubles
    assert (trouble.code, trouble.level, trouble.text) == ("store", "critical", "access denied")
    assert trouble.hint == "allow it"


@pytest.mark.parametrize("call", [0, 1])
def test_a_bucket_that_cannot_be_listed_is_an_error(call: int) -> None:
    """Neither are all sources missing then."""
    bucket = fleet(1)
    calls = iter(range(9))
    error = StoreError("access denied")

    def deny(operation: str, _: Any, __: Any) -> None:
        if operation == "list_names" and next(calls) == call:
            raise error

    bucket.store.on_act = deny
    with pytest.raises(StoreError, match="access denied"):
        bucket.look_all("source-000")


def test_a_defect_is_not_swallowed() -> None:
    """What is neither of the store nor of the archive comes out."""
    bucket = fleet(2)

    def break_(operation: str, _: Any, __: Any) -> None:
        if operation == "get":
            raise ZeroDivisionError

    bucket.store.on_act = break_
    with pytest.raises(ZeroDivisionError):
        bucket.look_all()


def test_an_empty_bucket_has_what_is_expected_missing() -> None:
    """Nothing is there to hide that."""
    assert Bucket().look_all() == []
    assert [status.source for status in Bucket().look_all("b", "a")] == ["a", "b"]


# The file of expected sources


def test_expected_sources_are_read(tmp_path: Path) -> None:
    """One a line, comments and empty lines beside them, each once and in their order."""
    path = tmp_path / "expected"
    path.write_text("# ours\n\norders \r\n  stock# new\nB-1.x\norders\n#\n   # x")
    assert read_expected(path) == Expected(("orders", "stock", "B-1.x"))
    path.write_text("")
    assert read_expected(path) == Expected()
    path.write_text("orders\nignore old # since May\n ignore\tolder\nignore\nignore old\n")
    assert read_expected(path) == Expected(("orders", "ignore"), ("old", "older"))


def test_wrong_names_are_all_told_with_their_lines(tmp_path: Path) -> None:
    """File and line, and what is wrong."""
    path = tmp_path / "expected"
    path.write_text("orders\na b\n\n..\n" + "x" * 65)
    with pytest.raises(ConfigError) as raised:
        read_expected(path)
    assert [problem.split(": ")[0] for problem in raised.value.problems] == [
        f"{path}:{number}" for number in (2, 4, 5)
    ]
    assert "a b" in raised.value.problems[0]
    path.write_text("orders\nignore orders\nignore ..\nignore a b\n")
    with pytest.raises(ConfigError) as raised:
        read_expected(path)
    assert [problem.split(": ")[0] for problem in raised.value.problems] == [
        f"{path}:{number}" for number in (2, 3, 4)
    ]


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    """Not there, a directory, other bytes than text, or much too large."""
    path = tmp_path / "expected"
    for found in (path, tmp_path):
        with pytest.raises(ConfigError, match=str(found)):
            read_expected(found)
    for data, what in ((b"\xff", "UTF-8"), (b"#" * (1 << 21), "more than")):
        path.write_bytes(data)
        with pytest.raises(ConfigError, match=what) as raised:
            read_expected(path)
        assert str(path) in str(raised.value)


def test_a_missing_object_is_no_missing_source() -> None:
    """An object that vanishes each time leaves the state unknown, not an error."""
    bucket = fleet(1)

    def vanish(operation: str, keys: Any, _: Any) -> None:
        if operation == "get" and "/writers/" in keys[0]:
            raise ObjectMissingError("gone")

    bucket.store.on_act = vanish
    (status,) = bucket.look_all()
    assert (status.state, codes(status)) == ("unknown", [("unknown", "critical")])
