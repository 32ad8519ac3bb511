"""The writer's claim, and how a start gives way to the one that took over."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog, Layout
from binlog2s3.archive.documents import Heartbeat, Turn
from binlog2s3.errors import ArchiveError, PreconditionError, SupersededError
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.stream.spool import Spool, Superseder
from binlog2s3.stream.writer import Progress, Writer, _new_token, give_way
from tests.documents import BEAT, ID
from tests.memory_store import MemoryStore
from tests.waiting import wait_until

LAYOUT = Layout("p", "orders")
OTHER = "20270102T030405Z-b4308ccf-a1b2"
NOTED = Superseder(
    source="orders", target="s3://b/p", generation=BEAT.generation, token=BEAT.token, host="db1"
)


class Time(threading.Event):
    """A clock that moves when it is waited for; `then` is called at each wait, with its number."""

    def __init__(self, then: Callable[[int], object] = lambda _: None) -> None:
        super().__init__()
        self.now = 0.0
        self.waits = 0
        self._then = then

    def clock(self) -> float:
        """Seconds since it was made."""
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        """Let the time pass at once."""
        assert timeout is not None
        assert timeout > 0
        self.now += timeout
        self.waits += 1
        assert self.waits < 10_000
        self._then(self.waits)
        return self.is_set()


def put(store: MemoryStore, beat: Heartbeat) -> None:
    """As its writer would."""
    store.put(LAYOUT.writer(*beat.rank), beat.to_json())


def watch(store: MemoryStore, time: Time, noted: Superseder = NOTED) -> None:
    """Give way in this time."""
    give_way(store, LAYOUT, noted, stop=time, clock=time.clock)


def test_nobody_is_waited_for_whose_object_is_gone() -> None:
    """Older writers do not count; nothing is put."""
    store, time = MemoryStore(), Time()
    put(store, replace(BEAT, generation=BEAT.generation - 1))
    put(store, replace(BEAT, token="00000000"))
    before = set(store.objects)
    watch(store, time)
    assert time.waits == 0
    assert set(store.objects) == before


def test_nobody_is_waited_for_who_has_stopped() -> None:
    """It says so itself."""
    store, time = MemoryStore(), Time()
    put(store, replace(BEAT, state="stopped"))
    watch(store, time)
    assert time.waits == 0


@pytest.mark.parametrize("interval", [0.001, 1.0, 30.0, 600.0])
def test_two_heartbeats_are_waited_for(interval: float) -> None:
    """Of a writer that died: two of its intervals and a little, not much more."""
    store, time = MemoryStore(), Time()
    put(store, replace(BEAT, interval_seconds=interval))
    watch(store, time)
    least = 2 * max(interval, 1.0) + 5
    assert least <= time.now <= least + 5


@pytest.mark.parametrize("interval", ["NaN", "Infinity", "-Infinity", "1e300", "-1", "0"])
def test_the_wait_is_bounded_whatever_the_object_says(interval: str) -> None:
    """The interval of a spoiled document is none to wait for."""
    store, time = MemoryStore(), Time()
    text = BEAT.to_json().replace(
        b'"interval_seconds": 30.0', f'"interval_seconds": {interval}'.encode()
    )
    assert interval.encode() in text
    store.put(LAYOUT.writer(*BEAT.rank), text)
    watch(store, time)
    assert 7 <= time.now <= 2 * 3600 + 10


def test_an_object_that_cannot_be_read_is_watched_all_the_same() -> None:
    """A newer version's, or damaged: whether it is renewed can be seen."""
    store, time = MemoryStore(), Time()
    store.put(LAYOUT.writer(*BEAT.rank), b"{}")
    watch(store, time)
    assert 65 <= time.now <= 70
    time = Time(lambda wait: store.put(LAYOUT.writer(*BEAT.rank), b"{} " * wait))
    with pytest.raises(SupersededError):
        watch(store, time)


def test_a_writer_at_work_ends_the_start() -> None:
    """As soon as its object is renewed: exit 9, its host, and the way out."""
    store = MemoryStore()
    put(store, BEAT)
    late = 8  # within two intervals of 30 s
    time = Time(
        lambda wait: (
            put(store, replace(BEAT, at=BEAT.at + timedelta(seconds=1))) if wait == late else None
        )
    )
    with pytest.raises(
        SupersededError, match=r"orders .* still works on db1 \(process 4711"
    ) as caught:
        watch(store, time)
    assert caught.value.exit_code == 9
    assert "--take-over" in caught.value.hint
    assert time.waits == late


def test_a_still_newer_writer_counts_as_the_other_one() -> None:
    """The one that was noted has been overtaken itself meanwhile."""
    store = MemoryStore()
    put(store, BEAT)
    newer = replace(BEAT, generation=BEAT.generation + 1, host="db3")
    with pytest.raises(SupersededError, match="on db3"):
        watch(store, Time(lambda _: put(store, newer)))


@pytest.mark.parametrize("how", ["stopped", "deleted"])
def test_one_that_ends_while_it_is_watched_is_gone(how: str) -> None:
    """Its last word is no heartbeat."""
    store = MemoryStore()
    put(store, BEAT)

    def end(wait: int) -> None:
        if wait == 3:
            if how == "stopped":
                put(store, replace(BEAT, state="stopped"))
            else:
                store.delete([LAYOUT.writer(*BEAT.rank)])

    time = Time(end)
    watch(store, time)
    assert time.waits == 3


def test_a_stop_ends_the_watch() -> None:
    """Nothing was found out, so nothing goes on."""
    store = MemoryStore()
    put(store, BEAT)
    time = Time()
    time.set()
    with pytest.raises(SupersededError):
        watch(store, time)
    assert time.waits == 1


def test_who_is_unknown_may_be_anybody() -> None:
    """A note that could not be read: any writer that works is left to work."""
    store = MemoryStore()
    first = replace(BEAT, generation=1)
    put(store, first)
    moves = Time(lambda _: put(store, replace(first, at=first.at + timedelta(seconds=1))))
    with pytest.raises(SupersededError):
        watch(store, moves, Superseder())
    watch(MemoryStore(), Time(), Superseder())


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """The spool of the writers here."""
    spool = Spool(tmp_path)
    yield spool
    spool.close()


def writer(store: MemoryStore, spool: Spool) -> Writer:
    """One that has nothing to tell."""
    return Writer(
        store=store,
        layout=LAYOUT,
        spool=spool,
        target="s3://b/p",
        interval_seconds=30.0,
        progress=lambda: Progress(
            state="idle",
            lineage=None,
            server_uuid=BEAT.server_uuid,
            durable=None,
            server=None,
            covered_until=None,
        ),
        audit=lambda *_: None,
        failed=pytest.fail,
        stop=threading.Event(),
    )


def test_the_last_to_claim_is_the_writer(spool: Spool) -> None:
    """The older one sees it at its heartbeat, and its spool has a note before it ends."""
    store = MemoryStore()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(store)
    one.beat()
    two.claim(store)
    assert spool.superseded_by() is None
    with pytest.raises(SupersededError) as caught:
        one.beat()
    assert "--take-over" in caught.value.hint
    noted = spool.superseded_by()
    assert noted is not None
    assert noted.rank == two._me.rank
    assert (noted.source, noted.target, noted.host) == ("orders", "s3://b/p", two._me.host)
    two.beat()
    assert list(store.objects) == [LAYOUT.writer(*two._me.rank)]


def test_a_spool_that_takes_no_note_does_not_keep_a_writer_alive(spool: Spool) -> None:
    """The disk is full, say: it ends with the same error."""
    (spool.directory / "superseded.json").mkdir()
    store = MemoryStore()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(store)
    two.claim(store)
    with pytest.raises(SupersededError):
        one.beat()


@pytest.mark.parametrize("seconds", [0.001, 1.0, 86_400.0, 86_400.0 * 365 * 20])
def test_of_one_generation_the_later_process_is_greater(seconds: float) -> None:
    """By the time of the start; two starts of one millisecond still have ranks of their own."""
    moments = [BEAT.since + n * timedelta(seconds=seconds) for n in range(20)]
    keys = [LAYOUT.writer(2, _new_token(moment)) for moment in moments]
    store = MemoryStore()
    for key in reversed(keys):
        store.put(key, BEAT.to_json())
    found = Catalog(store, LAYOUT).writers()
    assert [LAYOUT.writer(*rank) for rank in sorted(found)] == keys
    assert len({_new_token(BEAT.since) for _ in range(50)}) > 40


def test_a_claim_that_was_lost_and_arrives_late_ends_nobody(spool: Spool) -> None:
    """Its process was killed before the store heard it; the next one has the same generation."""
    store, late = MemoryStore(), MemoryStore()
    dead = writer(store, spool)
    dead.claim(late)
    wait_until(lambda: datetime.now(UTC) - dead.me.since > timedelta(milliseconds=2), what="2 ms")
    after = writer(store, spool)
    after.claim(store)
    assert after.me.generation == dead.me.generation
    store.put(LAYOUT.writer(*dead.me.rank), late.get(LAYOUT.writer(*dead.me.rank)))
    after.beat()
    assert list(store.objects) == [LAYOUT.writer(*after.me.rank)]


# Whose turn it is


def turns(store: MemoryStore) -> list[str]:
    """The lineages of all turns, in their order."""
    keys = sorted(key for key in store.objects if key.startswith(LAYOUT.turns))
    return [Turn.from_json(store.get(key), key).lineage for key in keys]


def test_each_turn_has_the_next_number(spool: Spool) -> None:
    """Also into a lineage that had one: the last is the one that is written."""
    store = MemoryStore()
    one = writer(store, spool)
    one.claim(store)
    for lineage in (ID, OTHER, ID):
        one.take_turn(store, lineage)
        found = Catalog(store, LAYOUT).turn()
        assert found is not None
        assert (found.lineage, found.token) == (lineage, one.me.token)
    assert turns(store) == [ID, OTHER, ID]


class Between(MemoryStore):
    """Something else happens just before, or just behind, what is put below turns/."""

    def __init__(self, before: Callable[[], object], *, answers: bool = True) -> None:
        super().__init__()
        self._before = before
        self._answers = answers

    def put(self, key: str, *args: Any, **options: Any) -> ObjectInfo:
        """As ever; a lost answer is tried again, as the client does."""
        if key.startswith(LAYOUT.turns):
            before, self._before = self._before, lambda: None
            before()
            if not self._answers:
                super().put(key, *args, **options)
        return super().put(key, *args, **options)


def test_a_turn_that_arrives_late_counts_less(spool: Spool) -> None:
    """A writer before us died on the way to another lineage: ours is the last, and stays so."""
    dead = MemoryStore()
    writer(dead, spool).take_turn(dead, OTHER)
    late = dead.get(LAYOUT.turn(1))
    store = Between(lambda: MemoryStore.put(store, LAYOUT.turn(1), late))
    one = writer(store, spool)
    one.take_turn(store, ID)
    assert turns(store) == [OTHER, ID]
    with pytest.raises(PreconditionError):
        store.put(LAYOUT.turn(2), late, if_absent=True)


def test_a_turn_whose_answer_is_lost_is_ours(spool: Spool) -> None:
    """It is there when it is put again: no second one."""
    store = Between(lambda: None, answers=False)
    writer(store, spool).take_turn(store, ID)
    assert turns(store) == [ID]


def test_who_has_been_superseded_takes_no_turn(spool: Spool) -> None:
    """Though it was frozen before the request: the number is taken, and it looks again."""
    store = Between(lambda: (two.claim(store), two.take_turn(store, OTHER)))
    one, two = writer(store, spool), writer(store, spool)
    one.claim(store)
    with pytest.raises(SupersededError):
        one.take_turn(store, ID)
    assert turns(store) == [OTHER]


def test_no_writer_takes_a_generation_that_no_key_can_have(spool: Spool) -> None:
    """The others would not see it: it is an error that names the object in the way."""
    store = MemoryStore()
    last = replace(BEAT, generation=10**18 - 1)
    put(store, last)
    with pytest.raises(ArchiveError, match=str(10**18 - 1)) as caught:
        writer(store, spool).claim(store)
    assert "delete it" in caught.value.hint
    assert list(store.objects) == [LAYOUT.writer(*last.rank)]


def test_no_writer_takes_a_turn_that_no_key_can_have(spool: Spool) -> None:
    """Nobody would see it: it is an error that names the object in the way."""
    store = MemoryStore()
    last = Turn(number=10**18 - 1, lineage=OTHER, generation=1, token="0" * 16)
    store.put(LAYOUT.turn(last.number), last.to_json())
    with pytest.raises(ArchiveError, match=str(10**18 - 1)) as caught:
        writer(store, spool).take_turn(store, ID)
    assert "delete it" in caught.value.hint
    assert list(store.objects) == [LAYOUT.turn(last.number)]
