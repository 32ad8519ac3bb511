"""Streamers against a source that writes and rotates and a store that fails, late or by halves.

All between mysqlbinlog's file and the store is the real thing: tailer, uploader, place, job, spool,
coverage, and where a run or a start goes on. Two streamers with part sizes of their own work side
by side; either may die, be frozen, lose its spool or its mysqlbinlog, want room; requests
may be performed long after they were made, by the dead too.
"""

import random
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from binlog2s3.archive.chunks import Chunk
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import FloorError, StoreError
from binlog2s3.stream.job import DeleteChunks
from tests.memory_store import MemoryStore, When
from tests.promises import Place, Promises, Span, chunk_at, missing
from tests.sampling import examples
from tests.streamer import FIRST, LAYOUT, LINEAGE, Source, Streamer

CHANGES = ("put", "delete", "create_upload", "upload_part", "copy_part", "complete_upload",
           "abort_upload")  # fmt: skip
LIVE = f"{LAYOUT.live}{LINEAGE}/"
MOST_BINLOGS = 5
ENDS = ("rotate", "rotate", "stop", "crash")
WRITERS = st.integers(0, 1)


@dataclass(frozen=True, slots=True)
class Spell:
    """How one of the two is at work for some rounds of its loop, while the other stands still.

    `trouble` and `mixing` are chances at each request: that it fails; that somebody else's is
    performed first. At each round, `writes` is the chance of a commit, `beats` of a listing's
    beginning or end.
    """

    writer: int
    rounds: int
    most: int
    writes: float
    beats: float
    trouble: float
    mixing: float


SPELLS = st.builds(
    Spell,
    writer=WRITERS,
    rounds=st.integers(0, 40),
    most=st.sampled_from([100, 300, 1000]),
    writes=st.sampled_from([0.0, 0.3, 0.3]),
    beats=st.sampled_from([0.0, 0.2]),
    trouble=st.sampled_from([0.0, 0.0, 0.02, 0.3]),
    mixing=st.sampled_from([0.0, 0.3]),
)


class Streaming(RuleBasedStateMachine):
    """What was ever reported durable is what the machine remembers, and looks for."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp())
        self.source = Source()
        self.now = 100.0
        self.streamers: list[Streamer | None] = [None, None]
        self.pressed = [False, False]
        self.zombies: list[Callable[[], object]] = []
        self.files: dict[Path, BinlogName] = {}
        self.taken: list[tuple[BinlogName, Chunk]] = []
        self.trouble = self.mixing = 0.0
        self.late_only = False
        self.nested = False

    @initialize(
        parts=st.tuples(st.integers(100, 900), st.integers(100, 900)),
        workers=st.integers(1, 4),
        crc64=st.booleans(),
        lists_uploads=st.sampled_from([True, True, False]),
        copies=st.sampled_from([True, True, False]),
        copies_into_crc64=st.booleans(),
        second=st.booleans(),
        seed=st.integers(0, 1 << 32),
    )
    def begin(
        self,
        *,
        parts: tuple[int, int],
        workers: int,
        crc64: bool,
        lists_uploads: bool,
        copies: bool,
        copies_into_crc64: bool,
        second: bool,
        seed: int,
    ) -> None:
        """A store of some make, and two configurations."""
        self.parts = parts
        self.worker_count = workers
        self.lists_uploads = lists_uploads
        self.chance = random.Random(seed)
        self.store = MemoryStore(
            min_part_bytes=1,
            crc64=crc64,
            lists_uploads=lists_uploads,
            copies_parts=copies,
            copies_into_crc64_uploads=copies_into_crc64,
        )
        self.store.on_call = self.on_call
        self.promises = Promises(self.store, self.source)
        self.start(0, flush_interval=1.0)
        if second:
            self.start(1, flush_interval=1.0)

    def on_call(self, operation: str) -> tuple[When, StoreError] | None:
        """Between any two requests others may act; each may fail, or be performed later."""
        if self.late_only:
            return ("later", self.a_fault()) if operation in CHANGES else None
        if not self.nested and self.chance.random() < self.mixing:
            self.nested = True
            self.somebody_acts()
            self.nested = False
        if self.chance.random() < self.trouble:
            return self.chance.choice(("before", "after", "later")), self.a_fault()
        return None

    def a_fault(self) -> StoreError:
        return StoreError("fault", transient=self.chance.random() < 0.8)

    def somebody_acts(self) -> None:
        """One request of anybody, alive or dead."""
        choices: list[Callable[[], object]] = []
        for streamer in self.streamers:
            if streamer is not None and (count := len(streamer.workers.tasks)):
                number = self.chance.randrange(count)
                choices.append(lambda s=streamer, n=number: s.workers.perform(n))  # type: ignore[misc]
        if self.store.late:
            number = self.chance.randrange(len(self.store.late))
            choices.append(lambda: self.store.perform_late(number))
        if self.zombies:
            choices.append(self.zombie_acts)
        if choices:
            self.chance.choice(choices)()

    def zombie_acts(self) -> None:
        """A request of a process that was frozen and is forgotten; nobody hears the answer."""
        work = self.zombies.pop(self.chance.randrange(len(self.zombies)))
        try:
            work()
        except Exception as error:  # noqa: BLE001 - its own affair
            event(f"zombie: {type(error).__name__}")

    # what the source does

    @rule(lengths=st.lists(st.integers(1, 300), min_size=2, max_size=8), spell=SPELLS)
    def write(self, lengths: list[int], spell: Spell) -> None:
        """Transactions are committed."""
        for length in lengths:
            self.source.write(length)
        self.stream(spell)

    @precondition(lambda self: len(self.source.binlogs) < MOST_BINLOGS)
    @rule(end=st.sampled_from(ENDS), spell=SPELLS)
    def rotate(self, end: str, spell: Spell) -> None:
        """The next binlog is begun."""
        self.source.rotate(end)
        self.stream(spell)

    # what processes do

    @precondition(lambda self: None in self.streamers)
    @rule(flush_interval=st.sampled_from([1.0, 1.0, 1.0, 0.0]), spell=SPELLS)
    def start_again(self, flush_interval: float, spell: Spell) -> None:
        """A process knows what lies in the bucket, and nothing else."""
        self.start(self.streamers.index(None), flush_interval)
        self.stream(spell)

    def start(self, writer: int, flush_interval: float) -> None:
        """It takes what the spool has, and mysqlbinlog goes on where that, or the bucket, ends."""
        self.trouble = self.mixing = 0.0
        self.streamers[writer] = Streamer(
            store=self.store,
            source=self.source,
            directory=self.place / f"spool-{writer}",
            clock=lambda: self.now,
            part=self.parts[writer],
            full_chunk=100,
            flush_interval=flush_interval,
            workers=self.worker_count,
        )

    @rule(
        writer=WRITERS,
        fate=st.sampled_from(["lost", "done", "late", "thaws"]),
        wipe=st.sampled_from([False, False, True]),
    )
    def die(self, writer: int, fate: str, *, wipe: bool) -> None:
        """The process is killed, with what is in flight; perhaps its disk is lost as well."""
        streamer = self.streamers[writer]
        if streamer is None:
            return
        self.streamers[writer] = None
        for _, work in streamer.workers.tasks:
            if fate == "thaws":
                self.zombies.append(work)
            elif fate != "lost":
                self.late_only = fate == "late"
                self.zombies.append(work)
                self.zombie_acts()
                self.late_only = False
        streamer.close()
        if wipe:
            shutil.rmtree(streamer.directory)
            gone = [path for path in self.files if path.is_relative_to(streamer.directory)]
            for path in gone:
                del self.files[path]

    @rule(writer=WRITERS, most=st.sampled_from([0, 10, 100, 1000]), spell=SPELLS)
    def mysqlbinlog_dies(self, writer: int, most: int, spell: Spell) -> None:
        """Perhaps in the middle of an event; another one goes on from the overlap."""
        if (streamer := self.streamers[writer]) is not None:
            if most:
                self.fetch_into(streamer, most)
            streamer.restart_mysqlbinlog()
            event("mysqlbinlog has died")
        self.stream(spell)

    @rule(writer=WRITERS, spell=SPELLS, more=SPELLS)
    def press(self, writer: int, spell: Spell, more: Spell) -> None:
        """The spool needs room for a while."""
        self.pressed[writer] = True
        self.stream(spell)
        self.pressed[writer] = False
        if (streamer := self.streamers[writer]) is not None:
            streamer.press(pressed=False)
        self.stream(more)

    def fetch(self, writer: int, most: int) -> None:
        """mysqlbinlog writes, up to anywhere."""
        if (streamer := self.streamers[writer]) is not None:
            self.fetch_into(streamer, most)

    def fetch_into(self, streamer: Streamer, most: int = 1 << 30) -> bool:
        more = streamer.fetch(most)
        if more and streamer.fetching not in streamer.brought_again:
            self.files[streamer.fetching] = BinlogName.parse(streamer.fetching.name)
        return more

    def files_are_kept(self) -> None:
        """A file leaves the spool if it is archived, or if the bucket has what a floor says."""
        for path, name in list(self.files.items()):
            if path.exists() or LAYOUT.entry(LINEAGE, name) in self.store.objects:
                continue
            owners = [s for s in self.streamers if s and path.is_relative_to(s.directory)]
            (floor,) = {owner.tracks[name].floor for owner in owners}
            taken = [(chunk.begin, chunk.end) for other, chunk in self.taken if other == name]
            assert floor
            assert missing([*self.there(name), *taken], 0, floor) is None
            event("a floor")
            del self.files[path]

    def pump(self, writer: int, slices: int) -> None:
        """The loop reads."""
        if (streamer := self.streamers[writer]) is not None:
            streamer.pump(slices)

    def step(self, writer: int) -> None:
        """The loop decides."""
        if (streamer := self.streamers[writer]) is not None:
            if self.pressed[writer]:
                streamer.press(pressed=True)
                self.files_are_kept()
            streamer.uploader.start()

    def perform(self, spell: Spell) -> None:
        """One request is made."""
        streamer = self.streamers[spell.writer]
        if streamer is not None and streamer.workers.tasks:
            self.trouble, self.mixing = spell.trouble, spell.mixing
            streamer.workers.perform(self.chance.randrange(len(streamer.workers.tasks)))
            self.trouble = self.mixing = 0.0
            self.look()

    def deliver(self, writer: int) -> None:
        """One answer comes."""
        if (streamer := self.streamers[writer]) is not None:
            try:
                streamer.deliver()
            except FloorError:  # bytes that the bucket had were taken: the next start does without
                event("a floor was too high")
                self.die(writer, "lost", wipe=False)

    def begin_listing(self, writer: int) -> None:
        """The heartbeat lists: a first page of what there is."""
        if (streamer := self.streamers[writer]) is not None:
            keys = sorted(key for key in self.store.objects if key.startswith(LAYOUT.live))
            streamer.begin_listing(self.chance.choice(keys) if keys else "~")

    def end_listing(self, writer: int) -> None:
        """And the rest of it, later."""
        if (streamer := self.streamers[writer]) is not None:
            streamer.end_listing()

    @rule(spell=SPELLS)
    def stream(self, spell: Spell) -> None:
        """Streamers are at work between all that befalls them."""
        for _ in range(spell.rounds):
            if self.chance.random() < spell.writes:
                self.source.write(self.chance.randint(1, 300))
                if len(self.source.binlogs) < MOST_BINLOGS and self.chance.random() < 0.05:
                    self.source.rotate(self.chance.choice(ENDS))
            if self.chance.random() < spell.beats:
                self.chance.choice((self.begin_listing, self.end_listing))(spell.writer)
            for what in self.chance.sample(range(6), 6):
                match what:
                    case 0:
                        self.fetch(spell.writer, self.chance.randint(1, spell.most))
                    case 1:
                        self.pump(spell.writer, 2)
                    case 2:
                        self.step(spell.writer)
                    case 3:
                        self.perform(spell)
                    case 4:
                        self.deliver(spell.writer)
                    case _:
                        self.now += self.chance.choice((0.1, 0.6))

    # what the store does by itself, and others to it

    @precondition(lambda self: self.store.late or self.zombies)
    @rule(spell=SPELLS)
    def late(self, spell: Spell) -> None:
        """A request of long ago is performed."""
        self.act_late()
        self.now += 600.0
        self.stream(spell)

    def act_late(self) -> None:
        if self.zombies and (not self.store.late or self.chance.random() < 0.5):
            self.zombie_acts()
        else:
            self.store.perform_late(self.chance.randrange(len(self.store.late)))

    @rule(number=st.integers(0, 30), spell=SPELLS)
    def lose_upload(self, number: int, spell: Spell) -> None:
        """Some stores throw unfinished uploads away after a day."""
        if uploads := sorted(self.store.uploads):
            del self.store.uploads[uploads[number % len(uploads)]]
        self.stream(spell)

    @rule(number=st.integers(0, 30), spell=SPELLS)
    def lose_chunk(self, number: int, spell: Spell) -> None:
        """Somebody deletes a chunk."""
        if keys := sorted(key for key in self.store.objects if key.startswith(LIVE)):
            key = keys[number % len(keys)]
            del self.store.objects[key]
            self.taken.append(parse(key))
            event("a chunk was taken")
        self.stream(spell)

    # what must hold

    @invariant()
    def look(self) -> None:
        """After whatever happened."""
        if not hasattr(self, "store"):
            return
        self.promises.objects_are_right()
        for one in self.streamers:
            if one is not None:
                self.promises.remember(one.uploader, one.coverage, one.born)
        self.forgive()
        for place in self.promises.promised:
            self.still_there(place)
        self.files_are_kept()

    def forgive(self) -> None:
        """What others took is not asked for until nobody can believe any more that it is there."""
        self.taken = [
            (name, chunk)
            for name, chunk in self.taken
            if f"{LAYOUT.chunks(LINEAGE, name)}{chunk}" not in self.store.objects
            and LAYOUT.binlog(LINEAGE, name) not in self.store.objects
            and (
                any(streamer and streamer.knows(name, chunk) for streamer in self.streamers)
                or self.deletions_wait()
                or missing(self.promises.there(Place(LINEAGE, name)), chunk.begin, chunk.end)
                is not None
            )
        ]

    def deletions_wait(self) -> bool:
        """Whether somebody may still act on what he believed."""
        tasks = [token for s in self.streamers if s for token, _ in s.workers.tasks]
        return (
            any(isinstance(getattr(token, "action", None), DeleteChunks) for token in tasks)
            or bool(self.zombies)
            or any(operation == "delete" for operation, _ in self.store.late)
        )

    def there(self, name: BinlogName) -> list[Span]:
        """The ranges of a binlog that lie in objects."""
        return self.promises.there(Place(LINEAGE, name))

    def still_there(self, place: Place) -> None:
        """What was promised once is in the bucket, but for what others took."""
        taken = [(chunk.begin, chunk.end) for name, chunk in self.taken if name == place.name]
        self.promises.still_there(place, taken)

    # left alone

    def teardown(self) -> None:
        """Faults stop, all that is late is done, one streamer lives: it brings everything home.

        And again after one more chunk has vanished.
        """
        try:
            if hasattr(self, "store"):
                self.left_alone()
        finally:
            for streamer in self.streamers:
                if streamer is not None:
                    streamer.close()
            shutil.rmtree(self.place)

    def left_alone(self) -> None:
        self.die(1, "done", wipe=False)
        while self.store.late or self.zombies:
            self.act_late()
        if self.streamers[0] is None:
            self.start(0, flush_interval=1.0)
        streamer = self.settle()
        self.all_is_home(streamer)
        ours = sorted(key for key in self.store.objects if key.startswith(LIVE))
        if ours and streamer.chunked:
            key = self.chance.choice(ours)
            del self.store.objects[key]
            self.taken.append(parse(key))
            self.all_is_home(self.settle())

    def settle(self) -> Streamer:
        """Rounds of the first one's loop until nothing is left to do, and a few audits more."""
        quiet = 0
        for number in range(600):
            streamer = self.streamers[0]
            assert streamer is not None
            more = self.fetch_into(streamer)
            try:
                streamer.work(self.chance)
            except FloorError:
                event("a floor was too high, left alone")
                self.die(0, "lost", wipe=False)
                self.start(0, flush_interval=1.0)
                continue
            self.now += 0.7
            if number % 5 == 4:
                streamer.begin_listing()
                streamer.end_listing()
            self.look()
            quiet = quiet + 1 if streamer.uploader.done and not more else 0
            if quiet > 15:
                return streamer
        raise AssertionError("it does not come to rest")

    def all_is_home(self, streamer: Streamer) -> None:
        """Archived what is closed, durable what is open, nothing left over."""
        last = self.source.open
        for name in self.source.binlogs:
            if name < last:
                self.promises.is_home(Place(LINEAGE, name))
                assert not streamer.files(name)
        for place in self.promises.left_uploads():
            looked_after = self.lists_uploads and place.name >= (streamer.before or FIRST)
            assert place.name == last or not looked_after, place
        if streamer.chunked:
            assert not self.taken
            durable = streamer.coverage.durable
            assert durable is not None
            assert (durable.binlog, durable.offset) == (last, self.source.size(last))
            self.promises.is_durable(Place(LINEAGE, last), streamer.grid)
        self.promises.are_few(Place(LINEAGE, last), streamer.grid)
        event(f"binlogs archived: {len(self.source.binlogs) - 1}")


def parse(key: str) -> tuple[BinlogName, Chunk]:
    """The binlog and the chunk of a key below live/."""
    found = chunk_at(key)
    assert found is not None
    return found[0].name, found[1]


TestStreaming = Streaming.TestCase
TestStreaming.settings = settings(
    max_examples=examples(80, gate=40),
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
