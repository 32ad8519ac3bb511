"""What the bucket alone says of a stream, and never more than it proves."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.drills import UnreadDrill
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Position, Standby, WriterState
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ConfigError, ObjectMissingError, StoreError
from binlog2s3.status.ask import Unanswered
from binlog2s3.status.from_bucket import Expected, look, look_all, read_expected
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
    document,
    drill_of,
    latest_of,
)
from binlog2s3.status.text import cells_of
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


def place(number: int, offset: int) -> Position:
    return Position(binlog=BinlogName.parse(NAMES[number]), offset=offset, gtid_set="")


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


@pytest.mark.parametrize(
    ("state", "seconds", "found"),
    [("idle", 76, "dead"), ("idle", 100_000, "dead"),
     ("stopped", 1, "stopped"), ("stopped", 100_000, "stopped")],
)  # fmt: skip
def test_a_writer_that_no_longer_renews_its_object_is_dead(
    state: WriterState, seconds: int, found: str
) -> None:
    """From two intervals and 15 s on, unless it stopped; nothing is left that ran then."""
    lag = Lag(bytes=0, transactions=0, seconds=0.0)
    status = streamed(replace(saying(state="idle", lag=lag), state=state)).look(
        BEAT_AT + timedelta(seconds=seconds)
    )
    assert (status.state, codes(status)) == (found, [(found, "critical")])
    assert "db1" in status.troubles[0].text
    assert status.lag == Lag(seconds=seconds + 2)
    assert (status.child, status.rates, status.uploads) == (None, None, None)
    assert (status.server.silent_seconds, status.server.read_only) == (None, None)
    assert status.spool == SAID.spool
    assert (status.durable, status.covered_until) == (LAST.durable, COVERED)
    assert status.purge.seconds == max(0, 86400 - seconds - 2)
    assert status.purge.statement is None, "the source may be another one, with the same names"


def test_the_interval_is_the_writers_own() -> None:
    """One that beats every second is dead sooner; one that no option allows is not believed."""
    for interval, limit in ((1.0, 17), (3600.0, 7215), (0.0, 75), (1e300, 75)):
        bucket = streamed(saying(beat=replace(LAST, interval_seconds=interval)))
        states = [
            bucket.look(BEAT_AT + timedelta(seconds=limit + more)).state for more in (0, 0.001)
        ]
        assert states == ["streaming", "dead"]


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
    assert (status.state, status.healthy) == ("unknown", False)
    assert codes(status) == [("unknown", "critical")]
    assert LAYOUT.writers in status.troubles[0].text
    assert status.durable == place(2, 1000)
    assert (status.lag, status.covered_until, status.writer) == (Lag(), None, None)


HONEST = datetime.fromtimestamp(1_795_253_309, UTC) + timedelta(microseconds=2)
NO_COMMITS = dict.fromkeys(("greatest_commit_us", "least_commit_us", "reached_us"))


@pytest.mark.parametrize(
    ("last", "latest"),
    [
        ({}, HONEST),
        ({"greatest_commit_us": 1 << 52}, HONEST),  # later than its receipt: it is none
        (NO_COMMITS, TIME + timedelta(hours=2)),  # all before it was committed before it began
        (None, None),
    ],
)
def test_the_latest_moment_is_what_the_last_entry_proves(
    last: Mapping[str, Any] | None, latest: datetime | None
) -> None:
    """Where no writer says it: a commit, or the begin of the last binlog."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1)
    bucket.archive(2, **(last or {}))
    if last is None:
        bucket.store.put(LAYOUT.entry(ID, BinlogName.parse(NAMES[2])), b"{}")
    assert bucket.look().latest == latest


def test_a_commit_time_that_is_later_than_its_receipt_is_not_the_latest() -> None:
    """As a writer before 0.3 said it of itself."""
    said_at, day = TIME, timedelta(days=1)
    assert latest_of([None, TIME + day], said_at) == said_at
    assert latest_of([None, TIME - day], said_at) == TIME - day
    assert latest_of([None], said_at) is None


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
    assert (status.state, status.healthy, status.covered_until) == ("unknown", False, None)
    assert codes(status) == [("unreadable", "critical")]
    assert key in status.troubles[0].text
    assert status.durable == place(2, 500)


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


def silent(kind: SilentKind, host: str = "db1", spool: str = "/spool") -> Unanswered:
    return Unanswered("nobody on /spool/status.sock", kind, spool=Path(spool), host=host)


def told(bucket: Bucket, silence: Unanswered, now: datetime = NOW) -> Status:
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
    ("silence", "level"),
    [
        (silent("hangs"), "critical"),
        (silent("expected"), "warning"),
        (silent("refused", host="db2"), "warning"),
        (silent("hangs", host="db2"), "warning"),
        (silent("expected", host="db2"), "warning"),
        (silent("refused", spool="/other"), "warning"),
        (silent("absent"), ""),
        (silent("unclear"), ""),
    ],
)
def test_a_streamer_that_does_not_answer_is_at_least_a_warning(
    silence: Unanswered, level: str
) -> None:
    """A hanging one is critical; where another one writes, the stream itself may be well.

    Any machine may read the bucket; a socket that may not be asked proves nothing.
    """
    bucket = streamed(saying())
    status = told(bucket, silence)
    if not level:
        assert status == bucket.look()
        return
    assert (status.state, codes(status)) == ("streaming", [("unanswered", level)])
    assert "came 20 s ago" in status.troubles[0].text


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

    def list_names(self, prefix: str) -> Iterator[str]:
        self.lists += 1
        return super().list_names(prefix)


MANY = 12_000


LAST_OF_MANY = Position(binlog=BinlogName("mysql-bin", MANY + 1), offset=500, gtid_set="")


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


# What a heartbeat says, and what is made of it

STUCK = Trouble(code="stalled", level="critical", text="nothing has come", hint="why?")
FATAL: Mapping[str, Any] = {"code": "x", "level": "fatal", "text": "t", "hint": ""}
NAN = float("nan")
"""It would make comparisons false for ever."""
OLDER = replace(SAID.server, position=place(2, 500))
NOTHING = Lag(bytes=0, transactions=0, seconds=0.5)
FAR = replace(LAST, server=place(4, 5))
BARE = replace(LAST, durable=place(2, 500))
BOUND = Lag(bytes=400, transactions=3, seconds=22.0, at_least=True)
SAYINGS: Mapping[str, tuple[Heartbeat, Mapping[str, Any]]] = {
    "what the writer says is wrong is kept: it is neither idle nor dead": (
        saying(state="stalled", troubles=(STUCK,)), {"state": "stalled", "troubles": (STUCK,)}),
    "a state that a newer version made is not guessed at": (
        replace(saying(), state="dreaming"),
        {"state": "unknown", "codes": [("unreadable", "critical")], "covered_until": COVERED}),
    "a newer version's word for worse is not taken for well": (
        replace(LAST, status={**document(SAID), "troubles": [FATAL]}),
        {"codes": [("x", "critical")]}),
    "the heartbeat's thread may outlive what makes the status": (
        saying(at=BEAT_AT - timedelta(seconds=16)), {"codes": [("stuck", "critical")]}),
    "which is made each second": (saying(at=BEAT_AT - timedelta(seconds=14)), {"codes": []}),
    "what the writer saw since is not hidden by its status": (
        saying(server=OLDER, lag=NOTHING),
        {"lag": Lag(bytes=400, transactions=3, seconds=20.5, at_least=True)}),
    "also if nobody can count it": (
        saying(beat=FAR, server=OLDER, lag=NOTHING), {"lag": Lag(seconds=20.5)}),
    "without a status the fields are bounds": (
        LAST, {"state": "streaming", "codes": [], "lag": BOUND, "spool": None, "purge": Purge()}),
    "without a time and a place nothing is": (
        replace(LAST, covered_until=None, server=None), {"lag": Lag()}),
    "all that the server ever executed would be far too many": (
        BARE, {"lag": replace(BOUND, transactions=None)}),
    "a status of a newer format is none": (
        replace(LAST, status={**document(SAID), "format": 2}), {"spool": None, "lag": BOUND}),
    "so is nothing": (replace(LAST, status={}), {"spool": None, "lag": BOUND}),
    "or none at all": (replace(LAST, status=None), {"spool": None, "lag": BOUND}),
    "and nonsense": (
        replace(LAST, status={**document(SAID), "lag": {"bytes": "x"}}),
        {"spool": None, "lag": BOUND}),
    "numbers that are none are not taken": (
        saying(lag=Lag(seconds=NAN), purge=Purge(expire_seconds=NAN)),
        {"purge": Purge(), "lag": Lag()}),
    **{
        f"an older writer's state is a trouble: {state}": (
            replace(LAST, state=state), {"state": state, "codes": [(code, "critical")]})
        for state, code in (("paused", "paused"), ("source unreachable", "source"),
                            ("store unreachable", "store"), ("stalled", "stalled"))
    },
}  # fmt: skip
"""A heartbeat, and what the status says 20 seconds later."""


@pytest.mark.parametrize("why", SAYINGS)
def test_what_a_heartbeat_says(why: str) -> None:
    """Its own words, as far as they can be read; the rest is a bound out of its fields."""
    beat, expected = SAYINGS[why]
    status = streamed(beat).look()
    for key, value in expected.items():
        assert (codes(status) if key == "codes" else getattr(status, key)) == value
    assert status.healthy is all(one.level != "critical" for one in status.troubles)


def test_a_lag_over_several_binlogs_is_the_writers() -> None:
    """Their sizes are the source's; as long as it is of the same place it is a bound."""
    far = place(4, 5)
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


# What is durable


def test_chunks_and_binlogs_may_reach_further_than_the_heartbeat_said() -> None:
    """They come each second, it each half minute; the lag shrinks with them, never to none."""
    bucket = streamed(saying())
    bucket.chunk(2, (500, 800))
    status = bucket.look()
    assert status.durable == place(2, 800)
    assert status.lag == Lag(bytes=100, seconds=21.5, at_least=True)
    bucket.chunk(2, (800, 900))
    assert bucket.look().lag == Lag(seconds=21.5)
    assert bucket.look(BEAT_AT).lag == Lag(bytes=0, transactions=0, seconds=1.5)
    bucket.archive(2)
    assert bucket.look().durable == place(2, 1000)
    bucket.archive(3)
    bucket.chunk(4, (0, 20))
    assert bucket.look().durable == place(4, 20)


def test_what_comes_behind_an_open_binlog_or_a_hole_is_not_reached() -> None:
    """Nobody can see that an open binlog is whole; binlogs are archived side by side."""
    bucket = chunked(streamed(saying()), 2, (600, 700))
    bucket.archive(3, 4)
    assert bucket.look().durable == LAST.durable


def test_what_is_lost_is_not_called_durable() -> None:
    """Chunks that somebody deleted are critical, once they lack at every look."""
    bucket = streamed(saying(), LINEAGE)
    bucket.store.delete([key for key in bucket.store.objects if "0000500-" in key])
    bucket.chunk(2, (0, 300))
    status = bucket.look()
    assert status.durable == place(2, 300)
    assert (status.covered_until, status.latest, status.lag.seconds) == (None, None, None)
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
    assert status.durable == place(2, 500)
    assert status.lineage == ID


def test_where_nothing_is_there_nothing_is_durable() -> None:
    """A lineage that was described only; chunks of a history that was left are none of its own."""
    bucket = Bucket(LINEAGE, child())
    bucket.chunk(2, (0, 800), id_=CHILD)
    bucket.beat(replace(LAST, durable=None))
    status = bucket.look()
    assert (status.durable, status.lag.bytes) == (None, None)
    assert bucket.earliest() is None


# History


def failed_over(*more: int, **parent: Any) -> Bucket:
    """Lineage one with three binlogs, left at 700 in the third; lineage two is written."""
    bucket = Bucket(LINEAGE, child(**parent))
    bucket.archive(1, 2, *more)
    bucket.chunk(3, (0, 700))
    bucket.archive(1, id_=CHILD)
    bucket.chunk(2, (0, 500), id_=CHILD)
    bucket.beat(replace(LAST, lineage=CHILD))
    return bucket


def of(
    *archived: int, durable: tuple[int, int], chunks: Mapping[int, Sequence[tuple[int, int]]]
) -> Bucket:
    """One lineage: archived binlogs, chunks of open ones, and how far its writer says it came."""
    bucket = Bucket(LINEAGE)
    bucket.archive(*archived)
    for number, ranges in chunks.items():
        bucket.chunk(number, *ranges)
    number, offset = durable
    bucket.beat(
        replace(
            LAST,
            durable=place(number, offset),
        )
    )
    return bucket


def without(bucket: Bucket, *parts: str) -> Bucket:
    """All that has any of these in its key is deleted."""
    keys = [key for key in bucket.store.objects if any(part in key for part in parts)]
    assert keys
    bucket.store.delete(keys)
    return bucket


def undescribed(bucket: Bucket, number: int, *, damaged: bool = False) -> Bucket:
    """The entry of this binlog is gone, or damaged."""
    key = LAYOUT.entry(ID, BinlogName.parse(NAMES[number]))
    bucket.store.put(key, b"{}") if damaged else bucket.store.delete([key])
    return bucket


def chunked(bucket: Bucket, number: int, *ranges: tuple[int, int]) -> Bucket:
    bucket.chunk(number, *ranges)
    return bucket


THIRD = "20260104T000000Z-3e11fa47-c3d4"
PARENTS = (f"/{ID}/mysql", f"/{ID}/binlogs", f"/{ID}/entries")
CHILDS = (f"/{CHILD}/mysql", f"/{CHILD}/binlogs")
BORN = TIME + timedelta(days=1)


def through_a_lineage_without_a_byte() -> Bucket:
    """The written lineage's parent has nothing; that one's parent has all."""
    last = like(child(parent=CHILD, binlog=None, offset=0), id=THIRD)
    bucket = Bucket(LINEAGE, child(), last)
    bucket.archive(1, 2)
    bucket.chunk(3, (0, 700))
    bucket.archive(1, id_=THIRD)
    here = place(1, 9)
    bucket.beat(replace(LAST, lineage=THIRD, durable=here))
    return bucket


def hours(count: int) -> datetime:
    """When the binlog of this number began."""
    return TIME + timedelta(hours=count)


PLAIN: dict[str, Any] = {"chunks": {}, "durable": (4, 1000)}
HISTORIES: Mapping[str, tuple[Callable[[], Bucket], Sequence[tuple[str, str, str]], Any]] = {
    "a whole lineage reaches back to its beginning": (streamed, [], TIME),
    "an exact join is crossed, what lies behind it does not matter": (
        lambda: failed_over(5), [(ID, "missing", f"{NAMES[4]} is")], TIME),
    "history begins behind a gap": (
        lambda: failed_over(join="gap", missing=f"{UUID}:9"), [(CHILD, "gap", f"{UUID}:9")], BORN),
    "history begins behind an unknown join": (
        lambda: failed_over(join="unknown"), [(CHILD, "unknown", "")], BORN),
    "the bytes up to the join must be there": (
        lambda: failed_over(offset=701), [(CHILD, "missing", f"{NAMES[3]}:701")], BORN),
    "the binlog of the join must be there": (
        lambda: failed_over(binlog=NAMES[4]), [(CHILD, "missing", "")], BORN),
    "also if nothing of it is needed": (
        lambda: failed_over(binlog=NAMES[4], offset=0), [(CHILD, "missing", "")], BORN),
    "a parent that was deleted but for lineage.json is no gap": (
        lambda: without(failed_over(), *PARENTS), [], BORN),
    "a parent that was deleted whole is no gap": (
        lambda: without(failed_over(), *PARENTS, LAYOUT.lineage(ID)), [], BORN),
    "a parent without a byte is passed": (through_a_lineage_without_a_byte, [], TIME),
    "history begins behind binlogs that lack": (
        lambda: of(1, 4, 5, chunks={6: [(0, 10)]}, durable=(6, 10)),
        [(ID, "missing", f"{NAMES[2]} to {NAMES[3]} (2 binlogs) are")], hours(4)),
    "the last of several gaps bounds the history": (
        lambda: of(1, 3, 5, chunks={}, durable=(5, 1000)),
        [(ID, "missing", NAMES[2]), (ID, "missing", NAMES[4])], hours(5)),
    "a hole behind the end of a history that was left is needed by nobody": (
        lambda: chunked(failed_over(), 3, (800, 900)),
        [(ID, "missing", f"bytes 700 to 800 of {NAMES[3]} are")], TIME),
    "a hole within a history is not crossed": (
        lambda: of(1, 3, chunks={2: [(0, 100), (200, 500)]}, durable=(3, 1000)),
        [(ID, "missing", f"bytes 100 to 200 of {NAMES[2]} are")], hours(3)),
    "a beginning that was deleted is no gap": (lambda: of(3, 4, **PLAIN), [], hours(3)),
    "history begins with the first binlog that is described": (
        lambda: undescribed(of(3, 4, **PLAIN), 3), [], hours(4)),
    "of a damaged entry nobody knows when its binlog began": (
        lambda: undescribed(undescribed(of(3, 4, **PLAIN), 3), 4, damaged=True), [], None),
    "nobody deletes a beginning behind an older history": (
        lambda: without(failed_over(), f"/{CHILD}/binlogs", f"/{CHILD}/entries"),
        [(CHILD, "missing", f"{NAMES[1]} is")], None),
    "a parent's beginning may be deleted": (
        lambda: without(failed_over(), LAYOUT.binlog(ID, BinlogName.parse(NAMES[1]))),
        [], hours(2)),
}  # fmt: skip
"""What is told of a bucket: its gaps, and how far back one can go."""


@pytest.mark.parametrize("why", HISTORIES)
def test_gaps_and_how_far_back_the_history_reaches(why: str) -> None:
    """Up to what is written now, over exact joins alone, and without a hole."""
    made, gaps, earliest = HISTORIES[why]
    bucket = made()
    found = sorted(bucket.gaps())
    assert [one[:2] for one in found] == [one[:2] for one in gaps]
    assert all(words in text for (*_, text), (*_, words) in zip(found, gaps, strict=True))
    assert bucket.earliest() == earliest


def test_a_gap_of_a_join_has_the_time_of_its_lineage() -> None:
    """When its first binlog began."""
    history = failed_over(join="gap").look().history
    assert history is not None
    assert (history.lineages, history.gaps[0].at) == (2, BORN)


def test_what_is_lost_is_no_way_back() -> None:
    """Neither what lies behind it, nor the parent before it, is its history."""
    bucket = without(failed_over(), *CHILDS)
    assert (bucket.earliest(), codes(bucket.look())) == (None, [("lost", "critical")])
    bucket.archive(4, id_=CHILD)
    assert bucket.earliest() is None


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


def test_no_purge_is_advised_while_the_archive_lacks_a_binlog() -> None:
    """Somebody deleted what the streamer had archived; the source may be the last to have it."""
    bucket = Bucket(LINEAGE)
    bucket.archive(1, 2, 3)
    bucket.chunk(4, (0, 500))
    position = Position(binlog=BinlogName.parse(NAMES[4]), offset=500, gtid_set="")
    purge = replace(SAID.purge, newest_safe=NAMES[3], to=NAMES[4])
    bucket.beat(saying(beat=replace(LAST, durable=position), purge=purge))
    assert bucket.look().purge.newest_safe == NAMES[3]
    bucket.store.delete([bucket.layout.binlog(ID, BinlogName.parse(NAMES[2]))])
    status = bucket.look()
    assert [gap.text for gap in status.history.gaps] == [f"{NAMES[2]} is missing"]
    assert (status.purge.statement, status.purge.newest_safe) == (None, None)
    assert status.purge.expire_seconds == 86400.0


def test_no_purge_is_advised_of_a_lineage_without_its_document() -> None:
    """Nobody could read what it has, or nothing of it is there any more."""
    bucket = streamed(saying())
    assert bucket.look().purge.newest_safe == NAMES[1]
    bucket.store.delete([LAYOUT.lineage(ID)])
    assert bucket.look().purge.newest_safe is None


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
    """Where binlogs of it are, and where chunks of it are; once.

    What its writer says is in the bucket, no recovery would find.
    """
    bucket = streamed(saying())
    bucket.archive(1, id_=CHILD)
    bucket.chunk(2, (0, 9), id_=CHILD)
    status = bucket.look()
    assert codes(status) == [("unreadable", "warning")]
    assert LAYOUT.lineage(CHILD) in status.troubles[0].text
    bucket.store.delete([LAYOUT.lineage(ID)])
    found = bucket.look()
    assert codes(found) == [("unreadable", "critical"), ("unreadable", "warning")]
    assert (found.durable, found.lag) == (LAST.durable, Lag())
    assert (found.covered_until, found.latest) == (None, None)


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


def test_a_standby_is_not_foreign() -> None:
    """Beside what is, and although nobody writes."""
    bucket, token = Bucket(), "0a1b2c3d4e5f6071"
    standby = Standby(token=token, source=SOURCE, host="db2", pid=7, version="1", since=BEAT_AT,
                      at=BEAT_AT, interval_seconds=30.0, unsaved_bytes=0)  # fmt: skip
    bucket.store.put(LAYOUT.standby(token), standby.to_json())
    bucket.store.put(f"{LAYOUT.live}notes/x", b"hello")
    status = bucket.look()
    assert [one.host for one in status.standbys or ()] == ["db2"]
    texts = [one.text for one in status.troubles if one.code == "unreadable"]
    assert texts == [f"not of this archive's format: {LAYOUT.live}notes/x"]


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
    assert [(one.source, one.ignored, one.severity) for one in found] == [
        ("source-001", False, "critical"),
        ("source-000", False, "ok"),
        ("source-002", True, "ok"),
    ]


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
    proved = drill_of(DRILL, DRILL, None)
    assert [one.drill for one in found] == [told, proved, drill_of(failed, DRILL, None), None]
    assert [cells_of(one)[-1] for one in found] == ["5 h", "20 min", "20 min", "-"]
    assert document(found[1])["drill"]["proven_at"] == "2026-01-02T03:45:05.000000Z"
    assert [code for code, _ in codes(found[2])] == ["dead"]
    assert [one.code for one in found[2].all_troubles] == ["dead", "drill"]


def test_a_later_result_that_cannot_be_read_is_told() -> None:
    """It may have failed: the proof before it is not all that is known."""
    bucket = fleet(1)
    proof = replace(DRILL, source=bucket.layout.source)
    bucket.store.put(bucket.layout.drill(proof.id), proof.to_json())
    broken = bucket.layout.drill("20991231T235959Z-5a6b7c8d")
    bucket.store.put(broken, b"{}")
    (found,) = bucket.look_all()
    assert found.drill == drill_of(proof, proof, UnreadDrill(broken, NOW))
    (told,) = (one for one in found.all_troubles if one.code == "drill")
    assert f"{broken} cannot be read" in told.text


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


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("orders\na b\n\n..\n" + "x" * 65, (2, 4, 5)),
        ("orders\nignore orders\nignore ..\nignore a b\n", (2, 3, 4)),
    ],
)
def test_wrong_names_are_all_told_with_their_lines(
    tmp_path: Path, text: str, lines: tuple[int, ...]
) -> None:
    """File and line, and what is wrong."""
    path = tmp_path / "expected"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_expected(path)
    told = [problem.split(": ")[0] for problem in raised.value.problems]
    assert told == [f"{path}:{number}" for number in lines]
    assert any("a b" in problem for problem in raised.value.problems)


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
