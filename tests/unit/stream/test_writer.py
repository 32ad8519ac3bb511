"""The writer's claim, its heartbeat, and whose turn it is."""

import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Standby, Turn
from binlog2s3.errors import ArchiveError, PreconditionError, StoreError, SupersededError
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.stream.remote import Plants
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.waiting import Stop
from binlog2s3.stream.writer import Vacancy, Writer, new_token
from tests.documents import BEAT, ID
from tests.memory_store import MemoryStore
from tests.waiting import wait_until

LAYOUT = Layout("p", "orders")
OTHER = "20270102T030405Z-b4308ccf-a1b2"


def put(store: MemoryStore, beat: Heartbeat) -> ObjectInfo:
    """As its writer would; as the store lists it."""
    store.put(LAYOUT.writer(*beat.rank), beat.to_json())
    return Catalog(store, LAYOUT).writers()[beat.rank]


def writer(store: MemoryStore, spool: Spool) -> Writer:
    """One that has nothing to tell."""
    plants = Plants(Catalog(store, LAYOUT))
    return Writer(
        catalog=Catalog(store, LAYOUT),
        spool=spool,
        interval_seconds=30.0,
        progress=lambda beat: replace(beat, state="idle", server_uuid=BEAT.server_uuid),
        uploads=SimpleNamespace(hand_in=lambda _: None, plants=plants),  # type: ignore[arg-type]
        stop=Stop(),
    )


def test_the_last_to_claim_is_the_writer(spool: Spool) -> None:
    """The older one sees it at its heartbeat; the newer one deletes the older one's object."""
    store = MemoryStore()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    one.beat()
    two.claim(Catalog(store, LAYOUT))
    with pytest.raises(
        SupersededError, match=f"on {two.me.host} .*number 2, this one is number 1"
    ) as e:
        one.beat()
    assert "--take-over" in e.value.hint
    two.beat()
    assert list(store.objects) == [LAYOUT.writer(*two._me.rank)]


def test_strange_uploads_are_named_by_the_first_heartbeat(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    """Once. A store that lists no uploads keeps no heartbeat back."""
    store = MemoryStore()
    strange = f"{LAYOUT.archive}theirs"
    store.create_upload(strange)
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    one.beat()
    one.beat()
    named = [record.fields.get("key") for record in caplog.records]  # type: ignore[attr-defined]
    assert named.count(strange) == 1
    two = writer(store, spool)
    two.claim(Catalog(store, LAYOUT))
    store.fail_next("uploads_below", "before", StoreError("no"))
    two.beat()
    assert store.head(LAYOUT.writer(*two._me.rank)) is not None


class SlowStore(MemoryStore):
    """A put takes until `arrives`, but for those of a claim."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.arrives = threading.Event(), threading.Event()
        self.arrives.set()

    def put(self, key: str, body: Any, **more: Any) -> ObjectInfo:
        self.asked.set()
        assert self.arrives.wait(60)
        return super().put(key, body, **more)


def test_a_late_heartbeat_does_not_hide_that_it_stopped(spool: Spool) -> None:
    """It was rendered before, and the store performs it after: "stopped" waits for it."""
    store = SlowStore()
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    one.beat()
    store.asked.clear()
    store.arrives.clear()
    beating = threading.Thread(target=one.beat)
    beating.start()
    assert store.asked.wait(60)
    ending = threading.Thread(target=one.finish, args=(store,))
    ending.start()
    store.arrives.set()
    for thread in (beating, ending):
        thread.join(60)
    (beat,) = (json.loads(store.get(key)) for key in store.objects)
    assert beat["state"] == "stopped"
    one.beat()
    (beat,) = (json.loads(store.get(key)) for key in store.objects)
    assert beat["state"] == "stopped"


def test_objects_of_dead_processes_that_stay_do_not_stop_the_heart(spool: Spool) -> None:
    """Their deletion is denied: the writer's own object is renewed all the same."""
    store = MemoryStore()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    two.claim(Catalog(store, LAYOUT))
    store.fail_next("delete", "before", StoreError("denied"))
    two.beat()
    assert two.beaten_at is not None
    assert len(store.objects) == 2


def test_a_claim_is_recorded_in_the_spool_before_it_is_put(spool: Spool) -> None:
    """Killed in between, or after: the next start on this spool knows its own."""
    store = MemoryStore()
    one = writer(store, spool)
    store.fail_next("put", "after", StoreError("lost", transient=True))
    with pytest.raises(StoreError):
        one.claim(Catalog(store, LAYOUT))
    (rank,) = Catalog(store, LAYOUT).writers()
    assert spool.last_claim() == rank
    one.claim(Catalog(store, LAYOUT), Vacancy(why="nobody writes"))
    assert max(Catalog(store, LAYOUT).writers()) == spool.last_claim()


def test_a_full_disk_does_not_keep_a_writer_from_its_claim(spool: Spool) -> None:
    """Its spool may hold what the bucket needs; without the record a restart waits, that is all."""
    (spool.directory / "claim.json").mkdir()
    store = MemoryStore()
    writer(store, spool).claim(Catalog(store, LAYOUT))
    assert len(Catalog(store, LAYOUT).writers()) == 1


@pytest.mark.parametrize("how", ["another", "renewed", "none", "deleted", "same"])
def test_a_claim_needs_its_vacancy(spool: Spool, how: str) -> None:
    """Between the end of the wait and the claim minutes may pass: who works by then is let be."""
    store = MemoryStore()
    info = put(store, BEAT)
    vacancy = Vacancy(why="silent", rank=BEAT.rank, info=info)
    if how == "another":
        put(store, replace(BEAT, generation=BEAT.generation + 1))
    elif how == "renewed":
        put(store, replace(BEAT, at=BEAT.at + timedelta(seconds=1)))
    elif how == "none":
        vacancy = Vacancy(why="nobody writes")
    elif how == "deleted":
        store.delete([LAYOUT.writer(*BEAT.rank)])
    one, before = writer(store, spool), set(store.objects)
    if how in ("same", "deleted"):
        one.claim(Catalog(store, LAYOUT), vacancy)
        assert max(Catalog(store, LAYOUT).writers()) == one.me.rank
        return
    with pytest.raises(SupersededError):
        one.claim(Catalog(store, LAYOUT), vacancy)
    assert set(store.objects) == before
    assert spool.last_claim() is None
    one.claim(Catalog(store, LAYOUT))  # --take-over


@pytest.mark.parametrize("is_old", [False, True])
def test_a_claim_behind_a_new_look_asks_nothing_again(spool: Spool, *, is_old: bool) -> None:
    """What the writer before said is known, too; behind an older look, the writers are listed."""
    store = MemoryStore()
    said = replace(BEAT, lineage=ID)
    info = put(store, said)
    vacancy = Vacancy(
        why="it was ours", is_calm=True, rank=said.rank, writers={said.rank: info}, beat=said,
        looked_at=-math.inf if is_old else math.inf,
    )  # fmt: skip
    store.calls.clear()
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT), vacancy)
    assert dict(store.calls) == {"put": 1} | ({"list": 1} if is_old else {})
    assert one.me.generation == said.generation + 1
    assert one.before(ID) == said
    with pytest.raises(SupersededError) if is_old else nullcontext():
        writer(store, spool).claim(Catalog(store, LAYOUT), vacancy)


def test_two_that_claim_behind_the_same_look_do_not_both_take_the_turn(spool: Spool) -> None:
    """The later one is greater. The other one looks once more before its turn."""
    store = MemoryStore()
    vacancy = Vacancy(why="there is no writer", is_calm=True, looked_at=math.inf)
    one, two = writer(store, spool), writer(store, spool)
    one._me, two._me = replace(one._me, token="1" * 16), replace(two._me, token="2" * 16)
    one.claim(Catalog(store, LAYOUT), vacancy)
    two.claim(Catalog(store, LAYOUT), vacancy)
    assert one.me.generation == two.me.generation == 1
    with pytest.raises(SupersededError):
        one.take_turn(ID)
    two.take_turn(OTHER)
    assert turns(store) == [OTHER]


def test_what_was_read_of_a_writer_counts_only_of_the_same_object(spool: Spool) -> None:
    """It was renewed since: it is read again."""
    store = MemoryStore()
    old = replace(BEAT, lineage=ID)
    vacancy = Vacancy(why="no source", rank=old.rank, writers={old.rank: put(store, old)}, beat=old)
    new = replace(old, at=old.at + timedelta(seconds=1))
    put(store, new)
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT), vacancy)
    assert one.before(ID) == new


def test_who_has_no_source_may_renew_its_object(spool: Spool) -> None:
    """Such a writer is alive, and is taken over from all the same."""
    store = MemoryStore()
    put(store, BEAT)
    vacancy = Vacancy(why="no source", rank=BEAT.rank)
    put(store, replace(BEAT, at=BEAT.at + timedelta(seconds=1)))
    writer(store, spool).claim(Catalog(store, LAYOUT), vacancy)


def test_standbys_are_shown_and_dead_ones_deleted(spool: Spool) -> None:
    """By the store's clock; a standby's word about time counts for nothing."""
    clock = [BEAT.at]
    store = MemoryStore(now=lambda: clock[0])
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    for token, seconds in (("aaaaaaaa", 1.0), ("bbbbbbbb", 30.0)):
        standby = Standby(
            token=token, source="orders", host="db2", pid=7, version="1", since=BEAT.since,
            at=BEAT.at, interval_seconds=seconds, unsaved_bytes=0,
        )  # fmt: skip
        store.put(LAYOUT.standby(token), standby.to_json())
    store.put(LAYOUT.standby("cccccccc"), b"{}")
    one.beat()
    assert [status.heartbeat_interval_seconds for status in one.standbys or ()] == [1.0, 30.0]
    clock[0] += timedelta(seconds=10)
    one.beat()
    assert len(Catalog(store, LAYOUT).standbys()) == 2
    clock[0] += timedelta(seconds=1)
    one.beat()
    assert [standby.token for standby, _ in Catalog(store, LAYOUT).standbys()] == ["bbbbbbbb"]
    assert LAYOUT.standby("cccccccc") in store.objects, "what cannot be read is left alone"


@pytest.mark.parametrize("seconds", [0.001, 1.0, 86_400.0, 86_400.0 * 365 * 20])
def test_of_one_generation_the_later_process_is_greater(seconds: float) -> None:
    """By the time of the start; two starts of one millisecond still have ranks of their own."""
    moments = [BEAT.since + n * timedelta(seconds=seconds) for n in range(20)]
    keys = [LAYOUT.writer(2, new_token(moment)) for moment in moments]
    store = MemoryStore()
    for key in reversed(keys):
        store.put(key, BEAT.to_json())
    found = Catalog(store, LAYOUT).writers()
    assert [LAYOUT.writer(*rank) for rank in sorted(found)] == keys
    assert len({new_token(BEAT.since) for _ in range(50)}) > 40


def test_a_claim_that_was_lost_and_arrives_late_ends_nobody(spool: Spool) -> None:
    """Its process was killed before the store heard it; the next one has the same generation."""
    store, late = MemoryStore(), MemoryStore()
    dead = writer(store, spool)
    dead.claim(Catalog(late, LAYOUT))
    wait_until(lambda: datetime.now(UTC) - dead.me.since > timedelta(milliseconds=2), what="2 ms")
    after = writer(store, spool)
    after.claim(Catalog(store, LAYOUT))
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
    one.claim(Catalog(store, LAYOUT))
    for lineage in (ID, OTHER, ID):
        one.take_turn(lineage)
        found = Catalog(store, LAYOUT).turn()
        assert found is not None
        assert (found.lineage, found.token) == (lineage, one.me.token)
    assert turns(store) == [ID, OTHER, ID]


class LateTurns(MemoryStore):
    """It does not list the turns that were taken since it was made."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """As ever, without them."""
        listed = super().list(prefix, start_after=start_after)
        return iter([info for info in listed if prefix != LAYOUT.turns])


def test_a_turn_that_is_not_listed_yet_is_passed(spool: Spool) -> None:
    """The writer before took some just before it ended, and this one takes two."""
    store = LateTurns()
    dead = writer(store, spool)
    dead.claim(Catalog(store, LAYOUT))
    for _ in range(3):
        dead.take_turn(ID)
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    one.take_turn(ID)
    one.take_turn(OTHER)
    assert turns(store) == [ID, ID, ID, ID, OTHER]


def test_a_turn_of_another_lineage_that_is_not_listed_yet_ends_it(spool: Spool) -> None:
    """What was read of the bucket may lack that lineage: nothing is put, and the hint says why."""
    store = LateTurns()
    dead = writer(store, spool)
    dead.claim(Catalog(store, LAYOUT))
    dead.take_turn(OTHER)
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    with pytest.raises(StoreError, match=r"turns/0*1\.json was taken by another") as caught:
        one.take_turn(ID)
    assert "listings are late" in str(caught.value.hint)
    assert turns(store) == [OTHER]


class Between(MemoryStore):
    """Something else happens just before, or just behind, what is put below turns/.

    It may ignore conditions.
    """

    def __init__(
        self,
        before: Callable[[], object],
        after: Callable[[], object] = lambda: None,
        *,
        answers: bool = True,
        conditions: bool = True,
    ) -> None:
        super().__init__()
        self._before, self._after = before, after
        self._answers = answers
        self._conditions = conditions

    def put(self, key: str, *args: Any, **options: Any) -> ObjectInfo:
        """As ever; a lost answer is tried again, as the client does."""
        if key.startswith(LAYOUT.turns):
            before, self._before = self._before, lambda: None
            before()
            if not self._answers:
                super().put(key, *args, **options)
        if not self._conditions:
            options.pop("if_absent", None)
        info = super().put(key, *args, **options)
        if key.startswith(LAYOUT.turns):
            after, self._after = self._after, lambda: None
            after()
        return info


@pytest.mark.parametrize("conditions", [True, False])
def test_a_turn_that_arrives_late_counts_less(spool: Spool, *, conditions: bool) -> None:
    """A writer before us died on the way to another lineage: ours is the last, and stays so.

    A store that ignores If-None-Match lets a late request replace ours: it is read back.
    """
    dead = MemoryStore()
    writer(dead, spool).take_turn(OTHER)
    late = dead.get(LAYOUT.turn(1))

    def arrive() -> None:
        MemoryStore.put(store, LAYOUT.turn(1), late)

    store = Between(arrive) if conditions else Between(lambda: None, arrive, conditions=False)
    writer(store, spool).take_turn(ID)
    assert turns(store) == [OTHER, ID]
    if conditions:
        with pytest.raises(PreconditionError):
            store.put(LAYOUT.turn(2), late, if_absent=True)


def test_a_turn_whose_answer_is_lost_is_ours(spool: Spool) -> None:
    """It is there when it is put again: no second one."""
    store = Between(lambda: None, answers=False)
    writer(store, spool).take_turn(ID)
    assert turns(store) == [ID]


def test_who_has_been_superseded_takes_no_turn(spool: Spool) -> None:
    """Though it was frozen before the request: the number is taken, and it looks again."""
    store = Between(lambda: (two.claim(Catalog(store, LAYOUT)), two.take_turn(OTHER)))
    one, two = writer(store, spool), writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    with pytest.raises(SupersededError):
        one.take_turn(ID)
    assert turns(store) == [OTHER]


def test_no_turn_follows_that_of_a_successor_who_came_while_it_was_read(spool: Spool) -> None:
    """The writers are looked at behind the turn: who took it had claimed before."""

    class Slow(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            if prefix == LAYOUT.turns and not turns(self):
                two.claim(Catalog(self, LAYOUT))
                first = Turn(number=1, lineage=OTHER, generation=2, token="0" * 16)
                self.put(LAYOUT.turn(1), first.to_json())
            return super().list(prefix, start_after=start_after)

    store = Slow()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    with pytest.raises(SupersededError):
        one.take_turn(ID)
    assert turns(store) == [OTHER]


def test_a_turn_is_read_beside_the_writers(spool: Spool) -> None:
    """Neither waits for the other; behind a turn of a greater rank they are looked at again.

    That rank alone refuses nobody: its writer's object may have been deleted.
    """

    class Together(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            if prefix in missing:
                meeting.wait(30)
                missing.discard(prefix)
            asked.append(prefix)
            return super().list(prefix, start_after=start_after)

    missing, asked = set[str](), list[str]()
    meeting = threading.Barrier(2)
    store = Together()
    one = writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    store.put(LAYOUT.turn(1), Turn(number=1, lineage=OTHER, generation=9, token="0" * 16).to_json())
    missing |= {LAYOUT.writers, LAYOUT.turns}
    asked.clear()
    one.take_turn(ID)
    assert turns(store) == [OTHER, ID]
    assert missing == set()
    assert sorted(asked[:2]) == sorted([LAYOUT.writers, LAYOUT.turns])
    assert asked[2:] == [LAYOUT.writers]


def test_a_lineage_is_described_beside_what_its_turn_waits_for(spool: Spool) -> None:
    """The turn comes after it, and not at all for one who is superseded meanwhile."""

    class Together(MemoryStore):
        def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
            if meets:
                meeting.wait(30)
            return super().list(prefix, start_after=start_after)

    def describe() -> bool:
        meeting.wait(30)
        meets.clear()
        assert turns(store) == []
        return True

    store, meeting, meets = Together(), threading.Barrier(3), set[bool]()
    one, two = writer(store, spool), writer(store, spool)
    one.claim(Catalog(store, LAYOUT))
    meets.add(True)
    assert one.take_turn(ID, describe)
    assert turns(store) == [ID]
    assert store.refuses_replacing
    assert not one.take_turn(ID)
    two.claim(Catalog(store, LAYOUT))
    with pytest.raises(SupersededError):
        one.take_turn(OTHER, lambda: True)
    assert turns(store) == [ID, ID]


@pytest.mark.parametrize("what", ["generation", "turn"])
def test_no_writer_takes_a_number_that_no_key_can_have(spool: Spool, what: str) -> None:
    """Nobody would see it: it is an error that names the object in the way."""
    store, most = MemoryStore(), 10**18 - 1
    if what == "generation":
        put(store, replace(BEAT, generation=most))
    else:
        last = Turn(number=most, lineage=OTHER, generation=1, token="0" * 16)
        store.put(LAYOUT.turn(most), last.to_json())
    before, one = list(store.objects), writer(store, spool)
    with pytest.raises(ArchiveError, match=str(most)) as caught:
        one.claim(Catalog(store, LAYOUT)) if what == "generation" else one.take_turn(ID)
    assert "delete it" in caught.value.hint
    assert list(store.objects) == before
