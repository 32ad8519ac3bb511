"""When a standby takes the writer's place, and what it does until then."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import SourceError, StoreError, SupersededError
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.standby import StandbyLoop
from binlog2s3.stream.writer import Vacancy
from tests.binlog_writer import BinlogWriter
from tests.documents import BEAT, ID, LINEAGE, UUID
from tests.memory_store import MemoryStore
from tests.unit.stream.builders import RUN

LAYOUT = Layout("p", "orders")
WRITES = replace(BEAT, state="streaming", server_uuid=UUID, lineage=ID)


class Time(threading.Event):
    """A clock that moves when it is waited for; `then` is called at each wait, with its number."""

    def __init__(self, then: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.now = 0.0
        self.waits = 0
        self._then = then

    def __call__(self) -> float:
        """Seconds since it was made."""
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass at once."""
        assert timeout is not None
        assert timeout > 0
        self.now += timeout
        self.waits += 1
        assert self.waits < 1000
        self._then(self.waits)
        return self.is_set()


def put(store: MemoryStore, beat: Heartbeat) -> None:
    """As its writer would."""
    store.put(LAYOUT.writer(*beat.rank), beat.to_json())


def later(beat: Heartbeat, seconds: float) -> Heartbeat:
    """Its next heartbeat, after so long."""
    return replace(beat, at=beat.at + timedelta(seconds=seconds))


def bystander(store: MemoryStore, time: Time, spool: Spool, **other: Any) -> StandbyLoop:
    """One that reaches the writer's source."""
    chosen: dict[str, Any] = {
        "interval_seconds": 30.0,
        "exits": False,
        "reach": lambda: UUID,
        "refuses": lambda _: False,
        **other,
    }
    return StandbyLoop(catalog=Catalog(store, LAYOUT), spool=spool, stop=time, clock=time, **chosen)


def wait(store: MemoryStore, time: Time, spool: Spool, **other: Any) -> Vacancy:
    """Stand by in this time; only the standby's own object is ever written, and it goes."""
    before = {key: item.data for key, item in store.objects.items()}
    puts: list[str] = []
    store.on_acted = lambda operation, keys: puts.extend(keys if operation == "put" else ())
    vacancy = bystander(store, time, spool, **other).wait()
    ours = [key for key in puts if LAYOUT.is_of("standby", key)]
    assert len(set(ours)) <= 1
    assert {key for key in store.objects if LAYOUT.is_of("standby", key)} == set()
    assert before.keys() <= store.objects.keys() | {LAYOUT.writer(*WRITES.rank)}
    return vacancy


# Who is not waited for


@pytest.mark.parametrize("who", ["nobody", "stopped", "own"])
def test_nobody_is_waited_for(spool: Spool, who: str) -> None:
    """No writer, one that has stopped, and the own one that was killed: not even an object."""
    store, time = MemoryStore(), Time()
    if who != "nobody":
        put(store, replace(WRITES, state="stopped" if who == "stopped" else "streaming"))
    if who == "own":
        spool.note_claim(WRITES.rank)
    calls = store.calls["put"]
    vacancy = wait(store, time, spool)
    assert time.waits == 0
    assert store.calls["put"] == calls
    assert vacancy.rank == (None if who == "nobody" else WRITES.rank)
    assert vacancy.is_calm == (who != "stopped"), "that one may have written beside the look"
    assert vacancy.writers.keys() == (set() if who == "nobody" else {WRITES.rank})
    assert vacancy.looked_at == time.now
    assert [*vacancy.read(vacancy.writers)] == [*vacancy.writers]


def test_the_own_claim_does_not_excuse_a_greater_writer(spool: Spool) -> None:
    """Somebody has taken over since: that one is waited for."""
    store, time = MemoryStore(), Time()
    put(store, WRITES)
    spool.note_claim((WRITES.generation - 1, WRITES.token))
    vacancy = wait(store, time, spool)
    assert "silent" in vacancy.why
    assert not vacancy.is_calm
    assert time.now >= 90


# Silence


@pytest.mark.parametrize("interval", [1.0, 2.0, 30.0, 600.0])
def test_three_heartbeats_of_silence_are_waited_for(spool: Spool, interval: float) -> None:
    """And not much more; five seconds at least."""
    store, time = MemoryStore(), Time()
    put(store, replace(WRITES, interval_seconds=interval))
    vacancy = wait(store, time, spool)
    least = max(3 * interval, 5)
    assert least <= time.now <= least + min(10, least / 9) + 0.01
    assert (vacancy.rank, vacancy.info) == (
        WRITES.rank,
        Catalog(store, LAYOUT).writers()[WRITES.rank],
    )


@pytest.mark.parametrize("interval", ["Infinity", "1e300", "-1", "0"])
def test_the_wait_is_bounded_whatever_the_object_says(spool: Spool, interval: str) -> None:
    """The interval of a spoiled document is none to wait for."""
    store, time = MemoryStore(), Time()
    text = WRITES.to_json().replace(
        b'"interval_seconds": 30.0', f'"interval_seconds": {interval}'.encode()
    )
    assert interval.encode() in text
    store.put(LAYOUT.writer(*WRITES.rank), text)
    wait(store, time, spool)
    assert 89 <= time.now <= 101


def test_an_object_that_cannot_be_read_is_watched_all_the_same(spool: Spool) -> None:
    """A newer version's, or damaged: whether it is renewed can be seen."""
    store = MemoryStore()
    store.put(LAYOUT.writer(*WRITES.rank), b"{}")
    time = Time(lambda n: store.put(LAYOUT.writer(*WRITES.rank), b"{} " * n) if n < 40 else None)
    assert "silent" in wait(store, time, spool).why
    assert time.waits > 40


def test_a_writer_that_works_is_never_replaced(spool: Spool) -> None:
    """For as long as its object is renewed, be it late; then three heartbeats are waited for."""
    store = MemoryStore()
    put(store, WRITES)
    beats = 100

    def beat(wait: int) -> None:
        if wait % 8 == 0 and wait <= 8 * beats:
            put(store, later(WRITES, wait))

    time = Time(beat)
    wait(store, time, spool)
    assert time.waits > 8 * beats


def test_what_is_long_dead_by_the_stores_clock_is_not_waited_for(spool: Spool) -> None:
    """The standby's own object is new, the writer's is old: both times are the store's."""
    clock = [WRITES.at]
    store, time = MemoryStore(now=lambda: clock[0]), Time()
    put(store, WRITES)
    clock[0] += timedelta(seconds=93)
    assert "silent for 91 s" in wait(store, time, spool).why
    assert time.waits == 0


def test_the_stores_clock_does_not_count_against_a_writer_that_was_seen_to_work(
    spool: Spool,
) -> None:
    """It steps ahead by an hour: the writer's next heartbeat still comes in time."""
    clock = [WRITES.at]
    store = MemoryStore(now=lambda: clock[0])
    put(store, WRITES)

    def beat(wait: int) -> None:
        if wait == 2:
            put(store, later(WRITES, 20))
        if wait == 3:
            clock[0] += timedelta(hours=1)
        if wait == 5:
            put(store, later(WRITES, 50))

    time = Time(beat)
    wait(store, time, spool)
    assert time.now >= 50 + 90


def test_a_store_that_does_not_answer_proves_nothing(spool: Spool) -> None:
    """The standby is cut off for an hour: it looks again before it concludes anything."""
    store = MemoryStore()
    put(store, WRITES)
    failing = [False]
    lost = StoreError("no route", transient=True)
    store.on_call = lambda _: ("before", lost) if failing[0] else None

    def go(wait: int) -> None:
        failing[0] = False
        put(store, later(WRITES, wait))
        failing[0] = 3 < wait < 400
        if wait == 500:
            time.set()

    time = Time(go)
    one = bystander(store, time, spool)
    with pytest.raises(SupersededError, match="stopped"):
        one.wait()
    assert one.store_error is None


def test_before_it_stands_by_the_stores_errors_are_those_of_a_start(spool: Spool) -> None:
    """A bucket that may not be read: somebody looks on."""
    store = MemoryStore()
    store.fail_next("list", "before", StoreError("denied"))
    with pytest.raises(StoreError, match="denied"):
        bystander(store, Time(), spool).wait()


# A writer that has no source


@pytest.mark.parametrize("reach", [UUID, "another", ""])
def test_a_writer_without_a_source_is_replaced_by_one_that_has_it(spool: Spool, reach: str) -> None:
    """After three heartbeats; it must be the same server."""
    store = MemoryStore()
    cut_off = replace(WRITES, state="source unreachable")
    put(store, WRITES)

    def beat(wait: int) -> None:
        if wait % 3 == 0:
            put(store, later(cut_off if wait > 6 else WRITES, wait))
        if wait == 300:
            time.set()

    def ask() -> str:
        if not reach:
            raise SourceError("no route", transient=True)
        return reach

    time = Time(beat)
    one = bystander(store, time, spool, reach=ask)
    if reach != UUID:
        with pytest.raises(SupersededError):
            one.wait()
        return
    vacancy = one.wait()
    assert "source" in vacancy.why
    assert (vacancy.rank, vacancy.info) == (WRITES.rank, None)
    assert 90 + 90 <= time.now <= 90 + 110


def test_a_writer_that_finds_its_source_again_goes_on(spool: Spool) -> None:
    """Short breaks do not add up."""
    store = MemoryStore()
    put(store, WRITES)

    def beat(wait: int) -> None:
        state = "source unreachable" if wait // 8 % 2 else "streaming"
        put(store, replace(later(WRITES, wait), state=state))
        if wait == 200:
            time.set()

    time = Time(beat)
    with pytest.raises(SupersededError):
        bystander(store, time, spool).wait()


# The other ways


def test_it_exits_where_that_is_asked_for(spool: Spool) -> None:
    """As soon as the writer is seen to work; one that is dead is taken over from."""
    store = MemoryStore()
    put(store, WRITES)
    assert "silent" in wait(store, Time(), spool, exits=True).why
    time = Time(lambda n: put(store, later(WRITES, n)) if n == 2 else None)
    with pytest.raises(SupersededError, match=r"works on db1 \(process 4711") as caught:
        wait(store, time, spool, exits=True)
    assert caught.value.exit_code == 9
    assert "--exit-on-other-writer" in caught.value.hint
    assert time.waits == 2
    assert not [key for key in store.objects if LAYOUT.is_of("standby", key)]


def test_a_source_that_refuses_ends_a_first_start(spool: Spool) -> None:
    """A standby that could never write is none; nothing was written."""
    store = MemoryStore()
    put(store, WRITES)
    denied = SourceError("access denied")

    def ask() -> str:
        raise denied

    with pytest.raises(SourceError, match="denied"):
        bystander(store, Time(), spool, reach=ask, refuses=lambda _: True).wait()
    assert list(store.objects) == [LAYOUT.writer(*WRITES.rank)]


def test_a_stop_ends_the_wait(spool: Spool) -> None:
    """At once, and the object goes."""
    store = MemoryStore()
    put(store, WRITES)
    there: list[str] = []
    time = Time(lambda _: there.extend(filter(partial(LAYOUT.is_of, "standby"), store.objects)))
    time.set()
    with pytest.raises(SupersededError):
        wait(store, time, spool)
    assert time.waits == len(there) == 1
    assert list(store.objects) == [LAYOUT.writer(*WRITES.rank)]


# What its spool holds


def filled(spool: Spool, lineage: str | None, name: str, size: int, position: int = 4) -> Path:
    """A run that left one binlog of so many bytes."""
    run = spool.begin(replace(RUN, binlog=name, position=position, lineage=lineage))
    path = run.directory / name
    path.write_bytes(b"\xfebin" + b"x" * (size - 4))
    return path


@pytest.mark.parametrize(
    ("lineage", "name", "size", "unsaved"),
    [
        (ID, "b.000001", 5000, 0),
        (ID, "b.000002", 500, 0),
        (ID, "b.000002", 700, 200),
        (ID, "b.000003", 300, 300),
        (None, "b.000002", 700, 200),
        ("probe", "b.000002", 700, 0),  # a run that was not proved
        ("20250102T030405Z-3e11fa47-a1b2", "b.000001", 300, 300),
    ],
)
def test_it_tells_how_much_the_bucket_may_not_have(
    spool: Spool, lineage: str | None, name: str, size: int, unsaved: int
) -> None:
    """Against what the writer says is durable; nothing of the spool is touched."""
    store = MemoryStore()
    store.put(LAYOUT.lineage(ID), replace(LINEAGE, source="orders").to_json())
    durable = Position(binlog=BinlogName.parse("b.000002"), offset=500, gtid_set="")
    put(store, replace(WRITES, durable=durable))
    path = filled(spool, lineage, name, size)
    data = path.read_bytes()
    seen: list[int] = []
    time = Time(lambda _: seen.append(one.me.unsaved_bytes))
    one = bystander(store, time, spool)
    one.wait()
    assert set(seen) == {unsaved}
    assert path.read_bytes() == data
    assert one.may_be_last_copy is False


def test_where_a_file_of_the_spool_ends_in_its_binlog(spool: Spool) -> None:
    """A run that began in the middle has made-up events in front."""
    writer = BinlogWriter()
    for number in range(3):
        writer.query(f"CREATE DATABASE d{number}")
    whole = bytes(writer.data)
    run = spool.begin(replace(RUN, position=writer.ends[2], lineage=ID))
    name = BinlogName.parse("b.000001")
    (run.directory / "b.000001").write_bytes(writer.from_position(writer.ends[2]))
    there = run.file_of(name)
    assert there is not None
    assert (there.begin, there.end) == (writer.ends[2], len(whole))
