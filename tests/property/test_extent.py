"""What `status`, `verify`, `backup list` and `prune` call recoverable is what `pitr` accepts.

The oracle walks what was committed, and what of it was taken out of the bucket again: it imports
nothing that reads a bucket.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cached_property
from io import StringIO
from itertools import takewhile

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Parent
from binlog2s3.binlog.gtid import Flavour, GtidSet
from binlog2s3.config.goal import Goal, Latest, ToGtid, ToTime
from binlog2s3.config.outside import Outside
from binlog2s3.config.prune import PruneConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.config.verify import VerifyConfig
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import us_of
from binlog2s3.inspect.verify.command import Verifier
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.model import BinlogPosition, Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import reaches_of_backup
from binlog2s3.retain.leftovers import Bucket as PruneBucket
from binlog2s3.retain.prune import Prune
from binlog2s3.retain.window import proofs_of
from binlog2s3.status.from_bucket import look
from tests.documents import BACKUP
from tests.history_model import File, Model, Real, having
from tests.lived_bucket import SECOND_US, Alone, Kept, LivedBucket
from tests.snapshots import LAYOUT

HISTORIES = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
S3 = S3Config(bucket="acme", prefix="pre", concurrency=4)

Event = tuple[str, int, int]
COMMIT = st.tuples(st.just("commit"), st.integers(60, 500), st.integers(1, 3))
ROTATE = st.just(("rotate", 0, 0))
EVENTS = st.lists(
    st.one_of(
        COMMIT,
        COMMIT,
        COMMIT,
        ROTATE,
        ROTATE,
        st.tuples(st.just("fail_over"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("put_back"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("gap"), st.integers(1, 2), st.just(0)),
        st.just(("leave_out", 0, 0)),
        st.just(("reset", 0, 0)),
    ),
    min_size=2,
    max_size=24,
)
LOSSES = st.lists(
    st.tuples(
        st.sampled_from(["lose", "entry", "short", "damage", "hide", "floor", "floor only"]),
        st.integers(0, 40),
    ),
    max_size=2,
)


MARIADB = st.lists(
    st.one_of(
        COMMIT,
        COMMIT,
        ROTATE,
        st.tuples(st.just("back"), st.integers(1, 12), st.integers(1, 2)),
        st.tuples(st.just("gap"), st.integers(1, 2), st.just(0)),
        st.just(("leave_out", 0, 0)),
    ),
    min_size=2,
    max_size=24,
)
"""Its numbers may go back; no GTID is used twice."""


class Lived(Model):
    """It also remembers each state that a server has ever had: the GTIDs, and of what.

    `purged`: what was committed in the gap before a branch. `before`: by binlog, what its server
    had executed before it.
    """

    def __init__(self, flavour: Flavour) -> None:
        self.states: dict[tuple[int, ...], str] = {}
        self.purged: dict[int, Sequence[int]] = {}
        self.before: dict[int, frozenset[int]] = {}
        super().__init__(flavour=flavour)
        self._remember()

    def live(self, events: Sequence[Event]) -> None:
        for name, one, other in events:
            match name:
                case "commit":
                    self.commit(one, other * SECOND_US)
                case "back":
                    self._go_back(f"0-{other}-{one}")
                case "fail_over":
                    self.fail_over(one, other)
                case "put_back":
                    self.put_back(one)
                case "gap":
                    self.gap(one)
                    self.purged[len(self.branches) - 1] = numbers(self.truth[-one:])
                case _:
                    getattr(self, name)()
            self.clock_us += SECOND_US
            self._remember()

    def _go_back(self, gtid: str) -> None:
        """The server writes this GTID, whatever came before, unless it was used."""
        if gtid not in {real.gtid for real in self.truth}:
            self.commit(100, SECOND_US, gtid=gtid)

    def _remember(self) -> None:
        own = {real.number for real in self.open.reals}
        executed = frozenset(number for number in numbers(self.truth) if number not in own)
        self.before.setdefault(id(self.open), executed)
        for upto in range(len(self.truth) + 1):
            state = self.truth[:upto]
            self.states.setdefault((*numbers(state),), self.gtids(state))

    def gtids(self, state: Sequence[Real]) -> str:
        """What a server says that has these: of MariaDB, its gtid_slave_pos."""
        if self.flavour == "mysql":
            return str(having(state))
        return str(state[-1].gtid) if state else ""


def numbers(reals: Sequence[Real]) -> list[int]:
    return [real.number for real in reals]


@dataclass(frozen=True)
class Step:
    """What comes next in a history: a transaction, or (`number` 0) a hole after `at` of them.

    Or a binlog begins, `kept`, of which any byte is there.
    """

    number: int
    is_there: bool
    at: int = 0
    unlogged: bool = False
    kept: Kept | None = None


class Oracle:
    """What can be brought from where to where, by a walk of what was put and was not taken out.

    `first`: the branch with which the walk begins, if the history has older ones.
    """

    def __init__(self, put: LivedBucket, model: Lived, first: int = 0) -> None:
        self._first = first
        self._put = put
        self._model = model
        self.truth = model.truth
        self._shown: set[int] = set()
        self.repeats = False
        self.steps = [*self._steps()]
        self._there = {step.number: step.is_there for step in self.steps if step.number}

    def reaches(self, state: int, goal: int, *, told: bool = False) -> bool:
        """Whether who has the first `state` transactions can be brought to the first `goal`.

        `told`: it is known which history the state is of, and on which side of a hole.
        """
        wanted = numbers(self.truth[state:goal])
        if (self.is_ambiguous(state) and not told) or not all(
            self._there.get(one) for one in wanted
        ):
            return False
        holes = [step for step in self.steps if not (step.number or step.is_there)]
        return not any(self._bars(hole, state, goal, told=told) for hole in holes)

    def is_ambiguous(self, state: int) -> bool:
        """Whether a server has had the same GTIDs, of other transactions; the bucket shows them."""
        had, gtids = {*numbers(self.truth[:state])}, self._model.gtids(self.truth[:state])
        if self._model.flavour == "mariadb":
            return False  # none was used twice
        return any(
            GtidSet.parse(gtids) <= GtidSet.parse(other) and {*those} - had & self._visible
            for those, other in self._model.states.items()
            if not had <= {*those}
        )

    @cached_property
    def _visible(self) -> set[int]:
        """What any binlog in the bucket has, or says that its server had before it."""
        there = [kept for branch in self._put.kept for kept in branch if kept.size]
        inside = {
            real.number
            for kept in there
            for real, (_, end) in zip(kept.file.reals, kept.bounds, strict=True)
            if end <= kept.size
        }
        return inside.union(*(self._model.before[id(kept.file)] for kept in there))

    def end(self, state: int, *, told: bool = False) -> int:
        goals = range(state + 1, len(self.truth) + 1)
        return max((one for one in goals if self.reaches(state, one, told=told)), default=state)

    def _bars(self, hole: Step, state: int, goal: int, *, told: bool) -> bool:
        if told or not hole.unlogged:
            return state < hole.at < goal
        return state <= hole.at < goal  # no GTID tells whether a state is behind it

    def is_in_doubt(self, state: int) -> bool:
        """Whether only GTIDs that are in no binlog tell that a state is behind something.

        That is rows left out of the binlogs, or a transaction whose GTID was damaged.
        """
        hidden = {kept.file.reals[at].number for kept in self.files for at in kept.hidden}
        holes = [step.at for step in self.steps if step.unlogged and step.at < state]
        holes += [at for at, one in enumerate(self.truth[:state], 1) if one.number in hidden]
        return any(not self._shown & {*numbers(self.truth[at:state])} for at in holes)

    def _steps(self) -> Iterator[Step]:
        begun, seen = False, set[int]()
        for branch, cut in self.parts():
            parent = self._put.lineages[branch].parent
            first = self._put.kept[branch][0].file
            if parent is not None and parent.unlogged:
                yield Step(0, is_there=False, at=self.count(first, 0), unlogged=True)
            if begun and branch in self._model.purged:
                seen |= {*self._model.purged[branch]}
                yield Step(0, is_there=False, at=self.count(first, 0))
            for kept in self._put.kept[branch]:
                count = len(kept.bounds)
                whole = kept.whole
                if cut is not None and kept.file.name == cut.binlog:
                    count = sum(end <= cut.offset for _, end in kept.bounds)
                    whole = cut.offset
                begun = begun or kept.size > 0
                if not begun or (cut is not None and kept.file.name > cut.binlog):
                    continue
                yield Step(0, is_there=kept.size > 0, kept=kept)
                for at, real in enumerate(kept.file.reals[:count]):
                    self.repeats |= real.number in seen
                    if real.number not in seen:
                        seen.add(real.number)
                        is_shown = kept.bounds[at][1] <= kept.size and at not in kept.hidden
                        self._shown |= {real.number} if is_shown else set()
                        yield Step(real.number, is_there=kept.real_there(at))
                if kept.size < whole:
                    yield Step(0, kept=kept, is_there=False, at=self.count(kept.file, count))

    @cached_property
    def files(self) -> Sequence[Kept]:
        """The binlogs of the history of which any byte is there."""
        return [step.kept for step in self.steps if step.kept is not None and step.is_there]

    def is_whole_from(self, kept: Kept) -> bool:
        """Whether nothing is missing from the beginning of a binlog up to the last byte."""
        begin = next(at for at, one in enumerate(self.steps) if one.kept is kept)
        last = self._put.kept[-1][-1]
        inside = takewhile(lambda step: step.number or step.kept is not last, self.steps[begin:])
        is_begun = any(kept.size for kept in self._put.kept[-1])
        return is_begun and all(step.is_there for step in inside)

    def parts(self) -> Sequence[tuple[int, Parent | None]]:
        branch, cut = len(self._put.lineages) - 1, None
        parts: list[tuple[int, Parent | None]] = []
        while True:
            parts.insert(0, (branch, cut))
            cut = self._put.lineages[branch].parent
            if cut is None or cut.join == "unknown" or branch == self._first:
                return parts
            branch = next(n for n, o in enumerate(self._put.lineages) if o.id == cut.lineage)

    def count(self, file: File, upto: int) -> int:
        """How many of the history's transactions a server has behind the first ones of a file."""
        had = self._model.before[id(file)] | {real.number for real in file.reals[:upto]}
        return sum(real.number in had for real in self.truth)


class World:
    """A bucket with a history, and what each command says of it."""

    def __init__(
        self,
        events: Sequence[Event],
        losses: Sequence[tuple[str, int]],
        flavour: Flavour = "mysql",
    ) -> None:
        self.model = Lived(flavour)
        self.model.live(events)
        self.put = LivedBucket(self.model)
        self.losses = [self._lose(*loss) for loss in losses]
        self.oracle = Oracle(self.put, self.model)
        self.truth = self.model.truth
        self.count = len(self.truth)
        self.store = self.put.bucket
        self.current = self.put.lineages[-1].id

    def _lose(self, what: str, at: int) -> str:
        everything = [kept for branch in self.put.kept for kept in branch]
        archived = [kept for kept in everything if kept.file.ended and kept.size]
        still_open = [kept for kept in everything if not kept.file.ended and kept.size]
        if what == "short" and still_open:
            self.put.cut_short(still_open[at % len(still_open)])
        elif what != "short" and archived:
            kept = archived[at % len(archived)]
            match what:
                case "lose":
                    self.put.lose(kept)
                case "entry":
                    self.put.forget_entry(kept)
                case "damage" | "hide" if kept.file.reals:
                    self.put.damage(kept, at % len(kept.file.reals), hides=what == "hide")
                case "floor" | "floor only":
                    self.put.raise_floor(kept, deletes=what == "floor")
        return what

    @cached_property
    def snapshot(self) -> Snapshot:
        return self.look()

    def look(self) -> Snapshot:
        return Snapshot(Catalog(self.store, LAYOUT), Alone(1))

    def backup(self, state: int) -> Backup:
        """A base backup with the first `state` transactions."""
        return replace(
            BACKUP,
            id=f"202601{1 + state // 24 % 28:02}T{state % 24:02}0000Z-1f2e3d4c",
            label=f"state {state}",
            gtid_set=self.model.gtids(self.truth[:state]),
            flavour=self.model.flavour,
            binlog=None,
            position=None,
            lineage=None,
            server_uuid="",
            taken_at=self.put.now,
        )

    def start(self, state: int) -> Start:
        return start_of_registered(self.backup(state), self.model.flavour)

    def planned(self, request: Request, snapshot: Snapshot | None = None) -> str:
        """Why `pitr --dry-run` refuses; "" if it accepts."""
        try:
            make(request, snapshot or self.snapshot)
        except Binlog2s3Error as error:
            return str(error)
        return ""

    def pitr(self, state: int, goal: Goal, snapshot: Snapshot | None = None) -> str:
        """The same for a backup of this state."""
        request = Request(goal=goal, start=self.start(state), lineage=self.current, is_chosen=False)
        return self.planned(request, snapshot)

    @cached_property
    def states(self) -> Sequence[int]:
        """How many transactions a base backup may have.

        Where numbers of MariaDB go back and something was purged or left out, `pitr` may refuse a
        state for which others could stand, too: then those that it takes.
        """
        found = [one for one in range(self.count + 1) if not self.oracle.is_in_doubt(one)]
        files = [kept.file for branch in self.put.kept for kept in branch]
        is_broken = self.model.purged or any(step.unlogged for step in self.oracle.steps)
        if not is_broken or not any(one.is_mariadb and one.goes_back() for one in files):
            return found
        ends = {state: self.oracle.end(state) for state in found}
        return [one for one, end in ends.items() if one == end or not self.pitr(one, self.to(end))]

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each state with goals: the last that it reaches, the one behind that, and the last."""
        for state in self.states:
            end = self.oracle.end(state)
            for goal in sorted({state + 1, end, end + 1, self.count}):
                if state < goal <= self.count:
                    yield state, goal

    def is_brought_to_now(self, state: int) -> bool:
        """Whether `pitr` takes a backup to the newest transaction."""
        request = Request(goal=Latest(), start=self.start(state), lineage=self.current,
                          is_chosen=False)  # fmt: skip
        return not self.planned(request)

    def time_behind(self, goal: int) -> int:
        """When the first transaction was committed that does not belong to a goal."""
        return self.truth[goal].commit_us if goal < len(self.truth) else self.model.clock_us + 1

    def to(self, goal: int) -> ToGtid:
        return ToGtid(str(self.truth[goal - 1].gtid))

    def count_at(self, place: BinlogPosition) -> int:
        """How many transactions of the history who has all up to this place has executed."""
        branch = next(n for n, one in enumerate(self.put.lineages) if one.id == place.lineage)
        kept = next(k for k in self.put.kept[branch] if k.file.name == place.binlog)
        return self.oracle.count(kept.file, sum(end <= place.offset for _, end in kept.bounds))

    def register(self, states: Iterable[int]) -> None:
        """Base backups of these states are registered."""
        for key in [key for key in self.store.objects if key.startswith(LAYOUT.backups)]:
            self.store.delete([key])
        for state in states:
            backup = self.backup(state)
            self.store.put(LAYOUT.backup(backup.id), backup.to_json())


WORLDS = st.one_of(
    st.builds(World, EVENTS, LOSSES),
    st.builds(World, EVENTS, LOSSES),
    st.builds(World, MARIADB, LOSSES, st.just("mariadb")),
)


def differs_pitr(world: World) -> Iterator[str]:
    """From each state to the end of each transaction."""
    for state, goal in world.pairs():
        why, can = world.pitr(state, world.to(goal)), world.oracle.reaches(state, goal)
        if (not why) is not can:
            yield f"pitr {'refuses' if can else 'accepts'} {state} to {goal}: {why}"


def differs_backups(world: World) -> Iterator[str]:
    """How far `backup list` says that each state gets, and from when to when."""
    for state in world.states:
        reach = reaches_of_backup(world.backup(state), world.snapshot)[0]
        is_ours = reach.lineage == world.current
        end = world.count_at(reach.end) if is_ours and reach.end is not None else state
        if end != world.oracle.end(state):
            yield f"{state} reaches {world.oracle.end(state)}, not {end}: {reach}"
        if not is_ours or reach.end is None or reach.from_us is None or reach.to_us is None:
            continue
        if world.model.flavour == "mariadb":
            continue  # its times are in seconds
        # of the last moment nobody knows what else was committed in it, unless the writer says so
        last = reach.to_us if reach.is_complete and world.snapshot.covered_us else reach.to_us - 1
        behind = reach.to_us + 1 if reach.is_complete else world.time_behind(end)
        can = reach.from_us <= last
        for at_us, is_it in ((reach.from_us - 1, False), (reach.from_us, can), (last, can),
                             (behind, False)):  # fmt: skip
            why = world.pitr(state, ToTime(at_us, "then"))
            if (not why) is not is_it:
                yield f"{state} to the time {at_us}: {is_it}, pitr: {why}: {reach}"


def differs_status(world: World) -> Iterator[str]:
    """From when on `status` says that nothing is missing, and where its recovery window begins."""
    world.register(world.states)
    status = look(world.store, "pre", "orders", "t", now=world.put.now)
    earliest, oracle = status.history.earliest, world.oracle
    good = [kept for kept in oracle.files if oracle.is_whole_from(kept)]
    says = [
        oracle.count(kept.file, 0)
        for kept in oracle.files
        if earliest is not None and kept.file.first_us // SECOND_US == int(earliest.timestamp())
    ]
    sees_all = not any(kept.damaged for kept in oracle.files)  # it reads no entries
    described = [
        kept
        for kept in good
        if kept.file.ended and kept.described and kept.branch == good[0].branch
    ]
    if sees_all and earliest is None and described:
        yield f"status says nothing, it is {good[0].file.name}"
    if sees_all and says and not {*says} & {oracle.count(kept.file, 0) for kept in good[:1]}:
        yield f"status says {says}, it is {[oracle.count(kept.file, 0) for kept in good]}"
    window = proofs_of(Catalog(world.store, LAYOUT), world.look()).backups
    whole = [state for state in world.states if world.is_brought_to_now(state)]
    reaches = [reaches_of_backup(world.backup(state), world.snapshot)[0] for state in whole]
    begins = min((one.from_us for one in reaches if one.from_us is not None), default=None)
    shows = us_of(window.window_from) if window.window_from is not None else None
    if not window.window_known or shows != begins:
        yield f"the window begins {shows} ({window.window_why}), not {begins}, by {whole}"


def differs_verify(world: World) -> Iterator[str]:
    """Every pair of a state and a goal is within one of its intervals, or cannot be recovered."""
    config = VerifyConfig(s3=S3, source="orders", deep=True)
    outside = Outside(now=lambda: world.put.now, sleep=lambda _: None, monotonic=lambda: 0.0)
    (report,) = Verifier(config, world.store, outside).run().sources
    if any(one.gtids_before is None for one in report.history):
        return  # of a binlog that has no entry it does not say what came before
    found = []
    for one in report.history:
        end = BinlogPosition(lineage=one.last_lineage, binlog=one.last, offset=one.last_offset)
        begin = BinlogPosition(lineage=one.lineage, binlog=one.first, offset=0)
        first = next(n for n, at in enumerate(world.put.lineages) if at.id == one.lineage)
        alone = Oracle(world.put, world.model, first)
        found.append((world.count_at(begin), world.count_at(end), alone))
    # of a damaged binlog it says nothing, nor of what only a later server's copies have
    whole = not (world.oracle.repeats or any(kept.damaged for kept in world.oracle.files))
    for state, goal in world.pairs():
        within = [alone for begin, end, alone in found if begin <= state and goal <= end]
        can = world.oracle.reaches(state, goal, told=True)
        if within and not any(alone.reaches(state, goal, told=True) for alone in within):
            yield f"verify claims {state} to {goal}: {found}"
        if whole and can and not within:
            yield f"verify denies {state} to {goal}: {found}"


def differs_prune(world: World) -> Iterator[str]:
    """After it, each kept backup reaches what it did; each moment of the window is reached."""
    since = world.truth[world.count // 2].commit_us if world.count else world.model.clock_us
    keep = world.put.now.timestamp() - since / SECOND_US
    config = PruneConfig(s3=S3, source="orders", keep=keep, grace=0, allow_empty=True, yes=True)
    states = world.states[::2]
    world.register(states)
    before = {state: world.oracle.end(state) for state in states}
    prune = Prune(config, PruneBucket(Catalog(world.store, LAYOUT), lambda: world.put.now))
    choice = prune.choice(world.look())
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        prune.run()
    snapshot, kept = world.look(), {one.name for one in choice.kept}
    reached = set[int]()
    for state in states:
        goals = range(state + 1, before[state] + 1)
        can = [goal for goal in goals if not world.pitr(state, world.to(goal), snapshot)]
        reached |= {*can}
        if world.backup(state).name in kept and can != [*goals]:
            yield f"kept {state} reaches {can} of {goals}"
        if world.backup(state).name not in kept and can:
            yield f"lost {state} reaches {can}"
    for state in states:
        for goal in range(state + 1, before[state] + 1):
            if world.truth[goal - 1].commit_us >= since and goal not in reached:
                yield f"nothing reaches {goal} any more"


GOES_BACK: Sequence[Event] = [
    ("back", 2, 1),
    ("leave_out", 0, 0),
    ("back", 1, 1),
    ("leave_out", 0, 0),
]


@HISTORIES
@given(world=WORLDS)
@example(world=World(GOES_BACK, [], "mariadb"))
@pytest.mark.parametrize(
    "differs", [differs_pitr, differs_backups, differs_status, differs_verify, differs_prune]
)
def test_everybody_says_what_a_naive_walk_finds(
    differs: Callable[[World], Iterator[str]], world: World
) -> None:
    """Whatever has happened to the source and to its bucket."""
    assert [*differs(world)] == []
