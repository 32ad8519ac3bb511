"""Verifies one source, from its keys to what can be recovered of it.

Place in the flow: `command` makes one for each source.

Law: lineages are checked before their binlogs, and those before parents: each step uses only what
the steps before it found correct.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from binlog2s3.archive.ancestry import Line, line_of
from binlog2s3.archive.blocks import Ahead
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.listing import current_of
from binlog2s3.binlog.executed import gathered
from binlog2s3.binlog.gtid import Gtids, joined
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.verify import VerifyConfig
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    MisplacedError,
    ObjectMissingError,
    StoreError,
)
from binlog2s3.formatting import moment_text
from binlog2s3.inspect.verify.answer import answer
from binlog2s3.inspect.verify.chain import BinlogFacts, along, gap_of, own_problems, parent_problems
from binlog2s3.inspect.verify.deep import DeepResult, read_all
from binlog2s3.inspect.verify.inventory import foreign_names, take_inventory
from binlog2s3.inspect.verify.repair import make_entry
from binlog2s3.inspect.verify.report import (
    NO_WRITER,
    Defect,
    Kind,
    LineageReport,
    Repaired,
    SourceReport,
)
from binlog2s3.inspect.verify.walk import AHEAD, LineageWalk, SourceContext, Walked
from binlog2s3.recover.snapshot import Survey
from binlog2s3.status.writer_state import LifeSign, life_sign
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True)
class Environment:
    """How to wait, how to show progress, and the clock. `reading` gets the number of all bytes."""

    pause: Callable[[], object]
    steps: Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
    reading: Callable[[int], AbstractContextManager[Callable[[int, int], None]]]
    now: Callable[[], datetime]


class SourceVerifier:
    """A source; `report` is the result. `refused`: why an entry could not be written."""

    def __init__(
        self,
        config: VerifyConfig,
        store: Store,
        workers: Workers,
        name: str,
        environment: Environment,
    ) -> None:
        self._config = config
        self._store = store
        self._environment = environment
        self._done = 0
        self._advance: Callable[[], object] = lambda: None
        self.report = SourceReport(name=name)
        self.refused: StoreError | None = None
        self.known_lineages: list[Lineage] = []
        layout = Layout(config.s3.prefix, name)
        catalog = Catalog(store, layout)
        inventory = take_inventory(store, layout)
        self._sign = life_sign(store, catalog, layout, environment.now())
        self.context = SourceContext(
            store=store,
            layout=layout,
            catalog=catalog,
            survey=Survey(store, catalog, workers),
            inventory=inventory,
            threads=workers.count,
            deep=config.deep,
            alive=self._sign.alive,
            clock=lambda: max(environment.now(), self._sign.clock),
            pause=environment.pause,
            advance=lambda: self._advance(),  # noqa: PLW0108 - it is another one later
        )

    @property
    def is_empty(self) -> bool:
        """Whether the source has no objects."""
        inventory = self.context.inventory
        return not (inventory.by_lineage or inventory.defects or inventory.writer)

    def run(self) -> SourceReport:
        """Check all of it."""
        report, inventory = self.report, self.context.inventory
        report.defects += inventory.defects
        self._say_writer(self._sign)
        self.known_lineages = [*self._lineages()]
        line = self._line()
        mine = self._chosen(line)
        selected = {lineage.id: self._selected(lineage) for lineage in mine}
        bad = self._read(mine, selected)
        walked = self._walk(mine, selected, bad)
        self._check_parents(mine, walked)
        self._check_durable(walked)
        if line is not None:
            cuts = {(id_, name): f for id_, w in walked.items() for name, f in w.cuts.items()}
            intervals = {id_: found.intervals for id_, found in walked.items()}
            report.history = along(line, intervals, cuts)
            report.legs = tuple(leg.lineage.id for leg in line.legs)
        if self._config.repair:
            self._repair(mine, walked)
        if self._config.asks:
            report.answer = answer(
                self.context.survey,
                backup=self._config.from_backup,
                gtid_set=self._config.from_gtid_set,
                from_lineage=self._config.from_lineage,
                lineage=self._config.lineage,
                defects=report.defects,
            )
        return report

    # Lineages

    def _say_writer(self, sign: LifeSign) -> None:
        beat = sign.beat
        if beat is not None:
            self.report.writer = f"{sign.state} on {beat.host}, heartbeat of {moment_text(beat.at)}"
        elif not sign.exists and self.context.inventory.by_lineage:
            self.report.notes.append(NO_WRITER.format(self.context.layout.writers))

    def _lineages(self) -> Iterator[Lineage]:
        """The lineages that can be read, oldest first."""
        for id_, objects in sorted(self.context.inventory.by_lineage.items()):
            key = self.context.layout.lineage(id_)
            try:
                lineage = read(self._store, key, Lineage)
            except ObjectMissingError:
                what = f"but {len(objects.binlogs)} binlogs and {len(objects.chunks)} open ones are"
                if (turn := self.context.inventory.turn) is not None and turn.lineage == id_:
                    what += "; the last turn names it as the current lineage"
                self._add_defect("lineage-missing", id_, key, f"it is not there, {what}")
                continue
            except ArchiveError as error:
                lies = isinstance(error, MisplacedError)
                self._add_defect(
                    "lineage-lies" if lies else "lineage-unreadable", id_, key, str(error)
                )
                continue
            for problem in own_problems(lineage):
                self._add_defect("lineage-lies", id_, key, problem)
            yield lineage

    def _line(self) -> Line | None:
        """The history that ends in the lineage asked for, or in the current one."""
        lineages = [one for one in self.known_lineages if _has_origin(one)]
        ids = [one.id for one in lineages]
        tip = self._config.lineage or current_of(lineages, self.context.inventory.turn)
        self.report.tip = tip
        return line_of(lineages, tip) if tip in ids else None

    def _chosen(self, line: Line | None) -> list[Lineage]:
        if self._config.lineage is None:
            return self.known_lineages
        legs = {leg.lineage.id for leg in line.legs} if line is not None else set()
        wanted = legs | {self._config.lineage}
        return [one for one in self.known_lineages if one.id in wanted]

    # Binlogs

    def _selected(self, lineage: Lineage) -> list[BinlogName]:
        """The names to check; those that the server cannot have given are foreign."""
        objects, layout = self.context.inventory.objects(lineage.id), self.context.layout
        strange = set(foreign_names(objects, lineage.first_binlog))
        for name in sorted(strange):
            for there, key in (
                (objects.binlogs, layout.binlog(lineage.id, name)),
                (objects.entries, layout.entry(lineage.id, name)),
                (objects.chunks, layout.chunks(lineage.id, name)),
            ):
                if name in there:
                    text = (
                        f"it does not belong to a lineage that begins with {lineage.first_binlog}"
                    )
                    self._add_defect("foreign", lineage.id, key, text)
        names = [name for name in objects.names if name not in strange]
        early = [name for name in names if name < lineage.first_binlog]
        if early:
            text = f"first_binlog is {lineage.first_binlog}, but {early[0]} is there"
            self._add_defect("lineage-lies", lineage.id, layout.lineage(lineage.id), text)
        if self._config.last is not None:
            return names[-self._config.last :]
        if self._config.since is not None:
            return names[self._first_since(lineage, names, self._config.since.at_us) :]
        return names

    def _first_since(self, lineage: Lineage, names: Sequence[BinlogName], since_us: int) -> int:
        """The index of the last binlog that begins at or before this time."""
        tasks = (partial(self._entry, lineage, name) for name in reversed(names))
        with closing(Ahead(tasks, threads=self.context.threads, most=AHEAD)) as ahead:
            for back, entry in enumerate(ahead):
                if entry is not None and entry.first_time.timestamp() * _MICRO <= since_us:
                    return len(names) - 1 - back
        return 0

    def _entry(self, lineage: Lineage, name: BinlogName) -> Entry | None:
        try:
            return self.context.catalog.entry(lineage, name)
        except (ObjectMissingError, ArchiveError):
            return None

    def _read(
        self, lineages: Sequence[Lineage], selected: dict[str, list[BinlogName]]
    ) -> dict[str, set[BinlogName]]:
        """With --deep, read all bytes; returns the bad binlogs of each lineage."""
        bad: dict[str, set[BinlogName]] = {}
        if not self._config.deep:
            return bad
        sizes = {
            one.id: {
                name: there[name].size
                for there in (self.context.inventory.objects(one.id).binlogs,)
                for name in selected[one.id]
                if name in there
            }
            for one in lineages
        }
        total = sum(size for each in sizes.values() for size in each.values())
        with self._environment.reading(total) as advance:
            for lineage in lineages:
                found: DeepResult = read_all(
                    self._store, self.context.layout, lineage, sizes[lineage.id], advance
                )
                self.report.defects += found.defects
                self.report.read_bytes += found.read
                bad[lineage.id] = found.bad
        return bad

    def _walk(
        self,
        lineages: Sequence[Lineage],
        selected: dict[str, list[BinlogName]],
        bad: dict[str, set[BinlogName]],
    ) -> dict[str, Walked]:
        walked: dict[str, Walked] = {}
        total = sum(len(names) for names in selected.values())
        narrowed = self._config.last is not None or self._config.since is not None
        with self._environment.steps("binlogs") as advance:

            def step() -> None:
                self._done += 1
                advance(self._done, total)

            self._advance = step
            for lineage in lineages:
                walk = LineageWalk(
                    self.context,
                    lineage,
                    selected[lineage.id],
                    bad=bad.get(lineage.id, ()),
                    from_start=not narrowed,
                    wanted=self._cuts(lineage.id),
                    current=lineage.id == self.report.tip,
                )
                found = walked[lineage.id] = walk.run()
                self._note(lineage, found)
        return walked

    def _cuts(self, lineage: str) -> set[str]:
        """The binlogs of a lineage from which others continue."""
        origins = [one.origin for one in self.known_lineages if _has_origin(one)]
        return {o.binlog for o in origins if o is not None and o.lineage == lineage and o.binlog}

    def _note(self, lineage: Lineage, found: Walked) -> None:
        report, objects = self.report, self.context.inventory.objects(lineage.id)
        report.defects += found.defects
        gap = gap_of(lineage)
        report.gaps += [gap, *found.gaps] if gap is not None else found.gaps
        report.notes += [f"{lineage.id}: {note}" for note in found.notes]
        report.read_bytes += found.read
        current = current_of(
            [one for one in self.known_lineages if _has_origin(one)], self.context.inventory.turn
        )
        report.lineages.append(
            LineageReport(
                lineage=lineage,
                current=lineage.id == current,
                binlogs=len(objects.names),
                open=len(objects.chunks.keys() - objects.binlogs.keys()),
                looked_at=found.looked_at,
                size=found.size,
                transactions=found.transactions,
                intervals=found.intervals,
            )
        )

    # How lineages join

    def _check_parents(self, lineages: Sequence[Lineage], walked: dict[str, Walked]) -> None:
        facts = {(id_, name): f for id_, w in walked.items() for name, f in w.cuts.items()}
        by_id = {one.id: one for one in self.known_lineages}
        for lineage in by_id.values():  # those excluded by --last, --since
            for name in self._cuts(lineage.id):
                there = self.context.inventory.objects(lineage.id).binlogs.get(
                    BinlogName.parse(name)
                )
                if there is not None:
                    known = BinlogFacts(name=BinlogName.parse(name), size=there.size, whole=True)
                    facts.setdefault((lineage.id, name), known)
        for lineage in lineages:
            key = self.context.layout.lineage(lineage.id)
            at = self._gtids_at if self._config.deep else None
            for wrong in parent_problems(lineage, by_id, facts, at):
                kind: Kind = "parent-missing" if wrong.missing else "parent-lies"
                self._add_defect(kind, lineage.id, key, wrong.text)

    def _gtids_at(self, lineage: str, name: BinlogName, offset: int) -> Gtids | str | None:
        """The GTIDs executed at an offset, by the bytes before it.

        A text: why the offset is wrong; None: not known.
        """
        survey = self.context.survey
        if any((one.lineage, one.binlog) == (lineage, name) for one in self.report.defects):
            return None  # it has a defect, which was reported
        try:
            found = survey.find(lineage, name)
            start = found.boundary(offset)
            scanner = survey.blocks.scanner(found, start)
            with closing(survey.blocks.read(found, start, offset)) as views:
                for view in views:
                    scanner.feed(view)
            if scanner.event_end != offset:
                return f"no event ends there, the last one before it ends at {scanner.event_end}"
            those = survey.transactions(lineage, name, 0, offset)
            added = gathered(
                (one.gtid for one in those if one.gtid and one.end <= offset), found.lineage.flavour
            )
        except (ArchiveError, DamageError):
            return None
        return joined(found.known.gtids_before, added)

    def _check_durable(self, walked: dict[str, Walked]) -> None:
        """Check that what the last writer reported as durable is there, listed or not."""
        writer, context = self.context.inventory.writer, self.context
        if writer is None or writer.lineage is None or writer.durable is None:
            return
        name, offset = writer.durable.place
        lineage = next((o for o in self.known_lineages if o.id == writer.lineage), None)
        if lineage is None:
            if writer.lineage not in context.inventory.by_lineage:
                key = context.layout.lineage(writer.lineage)
                text = f"the last writer wrote lineage {writer.lineage}, which is missing"
                self._add_defect("durable-missing", writer.lineage, key, text)
            return
        if lineage.id not in walked or not offset:
            return
        objects = context.inventory.objects(lineage.id)
        if name in objects.binlogs and objects.binlogs[name].size < offset:
            size, key = objects.binlogs[name].size, context.layout.binlog(lineage.id, name)
            text = f"{size} bytes of {name} are there, {offset} were durable"
            self._add_defect("durable-missing", lineage.id, key, text, name)
        if name not in objects.names:
            there = context.store.head(context.layout.binlog(lineage.id, name))
            if there is None and not context.catalog.chunks(lineage, name):
                key = context.layout.chunks(lineage.id, name)
                text = f"{name} is missing, {offset} bytes were durable"
                self._add_defect("durable-missing", lineage.id, key, text, name)

    # Repairing

    def _repair(self, lineages: Sequence[Lineage], walked: dict[str, Walked]) -> None:
        for lineage in lineages:
            for name in walked[lineage.id].without_entry:
                try:
                    done = make_entry(self._store, self.context.layout, lineage, name)
                except StoreError as error:
                    self.refused = error
                    key = self.context.layout.entry(lineage.id, name)
                    why = f"the entry cannot be written: {error}"
                    done = Repaired(lineage=lineage.id, binlog=name, key=key, why=why)
                self.report.repaired.append(done)
                if not done.why:
                    self._mark_repaired(done.key)
                if self.refused is not None:
                    return

    def _mark_repaired(self, key: str) -> None:
        self.report.defects = [
            Defect(
                kind=one.kind,
                lineage=one.lineage,
                binlog=one.binlog,
                key=one.key,
                text=one.text,
                repaired=True,
            )
            if one.kind == "entry-missing" and one.key == key
            else one
            for one in self.report.defects
        ]

    def _add_defect(
        self, kind: Kind, lineage: str, key: str, text: str, name: BinlogName | None = None
    ) -> None:
        self.report.defects.append(
            Defect(kind=kind, lineage=lineage, binlog=name, key=key, text=text)
        )


def _has_origin(lineage: Lineage) -> bool:
    """Whether its parent can be read."""
    try:
        return lineage.origin is None or bool(lineage.origin.lineage)
    except ArchiveError:
        return False
