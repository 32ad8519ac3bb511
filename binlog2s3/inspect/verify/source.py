"""Verifies one source, from its keys to what can be recovered of it.

Lineages are checked before their binlogs, and those before parents: each step uses only what the
steps before it found correct.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count

from binlog2s3.archive.ahead import Ahead
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.facts import Binlog, Facts
from binlog2s3.archive.history import Line, current_of, line_of
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Gtids, gathered, joined
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.outside import Outside
from binlog2s3.config.verify import VerifyConfig
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    MisplacedError,
    ObjectMissingError,
    StoreError,
)
from binlog2s3.formatting import moment_text
from binlog2s3.inspect.verify.chain import along, gap_of, own_problems, parent_problems
from binlog2s3.inspect.verify.context import (
    LineageContext,
    SourceContext,
    foreign_names,
    take_inventory,
)
from binlog2s3.inspect.verify.deep import make_entry, read_all, read_backup
from binlog2s3.inspect.verify.report import (
    NO_WRITER,
    Kind,
    Repaired,
    SourceReport,
)
from binlog2s3.inspect.verify.walk import AHEAD, LineageWalk
from binlog2s3.progress import progress_of
from binlog2s3.recover.model import ProgressReport
from binlog2s3.recover.progress import showing
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.status.writer_state import LifeSign, life_sign
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

_MICRO = 1_000_000
_PAUSE_SECONDS = 1.0


@contextmanager
def _reading(size: int) -> Iterator[Callable[[int, int], None]]:
    """A progress display: call it with each number of bytes and transactions, of `size` bytes."""
    done = transactions = 0
    with showing(sys.stderr) as show:

        def advance(more: int, with_transactions: int) -> None:
            nonlocal done, transactions
            done += more
            transactions += with_transactions
            show(
                ProgressReport(
                    size=done,
                    of_size=size,
                    transactions=transactions,
                    of_transactions=0,
                    commit_us=None,
                )
            )

        yield advance


class SourceVerifier:
    """A source; `report` is the result. `refused`: why an entry could not be written."""

    def __init__(
        self,
        config: VerifyConfig,
        store: Store,
        workers: Workers,
        name: str,
        outside: Outside,
    ) -> None:
        self._config = config
        self._store = store
        self._current = ""
        self.report = SourceReport(name=name)
        self.refused: StoreError | None = None
        self.known_lineages: list[Lineage] = []
        layout = Layout(config.s3.prefix, name)
        catalog = Catalog(store, layout)
        inventory = take_inventory(store, layout)
        self._sign = life_sign(catalog, outside.now())
        self.context = SourceContext(
            store=store,
            layout=layout,
            catalog=catalog,
            snapshot=Snapshot(catalog, workers),
            inventory=inventory,
            report=self.report,
            threads=workers.count,
            deep=config.deep,
            alive=self._sign.alive,
            clock=lambda: max(outside.now(), self._sign.clock),
            pause=partial(outside.sleep, _PAUSE_SECONDS),
        )

    @property
    def is_empty(self) -> bool:
        """Whether the source has no objects."""
        inventory = self.context.inventory
        return not (inventory.by_lineage or inventory.defects or inventory.writer)

    def run(self) -> SourceReport:
        report, inventory = self.report, self.context.inventory
        report.defects += inventory.defects
        self._say_writer(self._sign)
        self.known_lineages = [*self._lineages()]
        line = self._line()
        mine = self._chosen(line)
        selected = {lineage.id: self._selected(lineage) for lineage in mine}
        bad = self._read(mine, selected)
        walked = self._walk(mine, selected, bad)
        cuts = {(id_, name): f for id_, walk in walked.items() for name, f in walk.cuts.items()}
        self._check_parents(mine, cuts)
        self._check_durable(walked)
        if line is not None:
            intervals = {id_: walk.result.intervals for id_, walk in walked.items()}
            report.history = along(line, intervals, cuts)
            report.line = tuple(part.lineage.id for part in line.parts)
        if self._config.repair:
            self._repair(walked)
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
                lineage = self.context.catalog.with_floor(read(self._store, key, Lineage))
            except ObjectMissingError:
                what = f"but {len(objects.binlogs)} binlogs and {len(objects.chunks)} open ones are"
                if (turn := self.context.inventory.turn) is not None and turn.lineage == id_:
                    what += "; the last turn names it as the current lineage"
                self.context.defect("lineage-missing", key, f"it is not there, {what}", id_)
                continue
            except ArchiveError as error:
                lies = isinstance(error, MisplacedError)
                kind: Kind = "lineage-lies" if lies else "lineage-unreadable"
                self.context.defect(kind, key, str(error), id_)
                continue
            for problem in own_problems(lineage):
                self.context.defect("lineage-lies", key, problem, id_)
            yield lineage

    def _line(self) -> Line | None:
        """The history that ends in the lineage asked for, or in the current one."""
        lineages = self.known_lineages
        self._current = current_of(lineages, self.context.inventory.turn)
        self.report.tip = tip = self._config.lineage or self._current
        return line_of(lineages, tip) if any(part.id == tip for part in lineages) else None

    def _chosen(self, line: Line | None) -> list[Lineage]:
        if self._config.lineage is None:
            return self.known_lineages
        line_parts = (
            {line_part.lineage.id for line_part in line.parts} if line is not None else set()
        )
        wanted = line_parts | {self._config.lineage}
        return [lineage for lineage in self.known_lineages if lineage.id in wanted]

    # Binlogs

    def _selected(self, lineage: Lineage) -> list[BinlogName]:
        """The names to check; those that the server cannot have given are foreign."""
        context = LineageContext(self.context, lineage)
        objects = context.objects
        strange = set(foreign_names(objects, lineage.first_binlog))
        text = f"it does not belong to a lineage that begins with {lineage.first_binlog}"
        for name in sorted(strange):
            for listed, key in (
                (objects.binlogs, context.object_key(name)),
                (objects.entries, context.entry_key(name)),
                (objects.chunks, context.chunks_key(name)),
            ):
                if name in listed:
                    self.context.defect("foreign", key, text, lineage.id)
        names = [name for name in objects.all_names if name not in strange]
        if names and names[0] < lineage.first_binlog:
            text = f"first_binlog is {lineage.first_binlog}, but {names[0]} is there"
            context.defect("lineage-lies", text)
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
        if not self._config.deep:
            return {}
        sizes: dict[str, dict[BinlogName, int]] = {}
        for lineage in lineages:
            infos = self.context.inventory.objects(lineage.id).binlogs
            sizes[lineage.id] = {
                name: infos[name].size for name in selected[lineage.id] if name in infos
            }
        narrowed = self._config.last is not None or self._config.since is not None
        backups = self.context.inventory.backups if not narrowed else []
        total = sum(size for each in sizes.values() for size in each.values())
        total += sum(backup.stored.stored_size for backup in backups if backup.stored is not None)
        with _reading(total) as advance:
            bad = {
                lineage.id: read_all(
                    LineageContext(self.context, lineage), sizes[lineage.id], advance
                )
                for lineage in lineages
            }
            for backup in backups:
                read_backup(self.context, backup, advance)
        return bad

    def _walk(
        self,
        lineages: Sequence[Lineage],
        selected: dict[str, list[BinlogName]],
        bad: dict[str, set[BinlogName]],
    ) -> dict[str, LineageWalk]:
        walked: dict[str, LineageWalk] = {}
        total, done = sum(map(len, selected.values())), count(1)
        narrowed = self._config.last is not None or self._config.since is not None
        with progress_of("binlogs") as advance:
            for lineage in lineages:
                gap = gap_of(lineage)
                self.report.gaps += [gap] if gap is not None else []
                walk = walked[lineage.id] = LineageWalk(
                    LineageContext(self.context, lineage),
                    selected[lineage.id],
                    bad=bad.get(lineage.id, ()),
                    from_start=not narrowed,
                    wanted=self._cuts(lineage.id),
                    current=lineage.id == self._current,
                    is_tip=lineage.id == self.report.tip,
                )
                walk.run(lambda: advance(next(done), total))
                self.report.lineages.append(walk.result)
        return walked

    def _cuts(self, lineage: str) -> set[str]:
        """The binlogs of a lineage from which others continue."""
        parents = [lineage.parent for lineage in self.known_lineages]
        return {
            str(p.binlog) for p in parents if p is not None and p.lineage == lineage and p.binlog
        }

    # How lineages join

    def _check_parents(
        self, lineages: Sequence[Lineage], cuts: Mapping[tuple[str, str], Binlog | Facts]
    ) -> None:
        facts = dict(cuts)
        by_id = {lineage.id: lineage for lineage in self.known_lineages}
        for id_, lineage in by_id.items():  # those excluded by --last, --since
            objects = self.context.inventory.objects(id_)
            for name in map(BinlogName.parse, self._cuts(id_)):
                if name in objects.binlogs:
                    size = objects.binlogs[name].size
                    known = Binlog(lineage=lineage, name=name, size=size, state="undescribed")
                    facts.setdefault((id_, str(name)), known)
        for lineage in lineages:
            at = self._gtids_at if self._config.deep else None
            for kind, text in parent_problems(lineage, by_id, facts, at):
                LineageContext(self.context, lineage).defect(kind, text)

    def _gtids_at(self, lineage: str, name: BinlogName, offset: int) -> Gtids | str | None:
        """The GTIDs executed at an offset, by the bytes before it.

        A text: why the offset is wrong; None: not known.
        """
        snapshot = self.context.snapshot
        if any(
            (defect.lineage, defect.binlog) == (lineage, name) for defect in self.report.defects
        ):
            return None  # it has a defect, which was reported
        try:
            known = snapshot.known(lineage, name)
            start = known.boundary(offset)
            scanner = snapshot.blocks.scanner(known, start)
            with closing(snapshot.blocks.read(known, start, offset)) as views:
                for view in views:
                    scanner.feed(view)
            if scanner.event_end != offset:
                return f"no event ends there, the last one before it ends at {scanner.event_end}"
            transactions = snapshot.transactions(lineage, name, 0, offset)
            added = gathered(
                (
                    transaction.gtid
                    for transaction in transactions
                    if transaction.gtid and transaction.end <= offset
                ),
                known.lineage.flavour,
            )
        except (ArchiveError, DamageError):
            return None
        return joined(known.gtids_before, added)

    def _check_durable(self, walked: dict[str, LineageWalk]) -> None:
        """Check that what the last writer reported as durable is there, listed or not."""
        writer, context = self.context.inventory.writer, self.context
        if writer is None or writer.lineage is None or writer.durable is None:
            return
        name, offset = writer.durable.file_position
        lineage = next((o for o in self.known_lineages if o.id == writer.lineage), None)
        if lineage is None:
            if writer.lineage not in context.inventory.by_lineage:
                key = context.layout.lineage(writer.lineage)
                text = f"the last writer wrote lineage {writer.lineage}, which is missing"
                self.context.defect("durable-missing", key, text, writer.lineage)
            return
        if lineage.id not in walked or not offset:
            return
        written = LineageContext(context, lineage)
        objects = written.objects
        if name in objects.binlogs and objects.binlogs[name].size < offset:
            text = f"{objects.binlogs[name].size} bytes of {name} are there, {offset} were durable"
            written.defect("durable-missing", text, name)
        if name not in objects.all_names:
            info = context.store.head(written.object_key(name))
            if info is None and not context.catalog.chunks(lineage, name):
                text = f"{name} is missing, {offset} bytes were durable"
                written.defect("durable-missing", text, name, written.chunks_key(name))

    # Repairing

    def _repair(self, walked: dict[str, LineageWalk]) -> None:
        for walk in walked.values():
            context = LineageContext(self.context, walk.result.lineage)
            for name in walk.without_entry:
                try:
                    done = make_entry(context, name)
                except StoreError as error:
                    self.refused = error
                    why = f"the entry cannot be written: {error}"
                    key = context.entry_key(name)
                    done = Repaired(lineage=context.lineage.id, binlog=name, key=key, why=why)
                self.report.repaired.append(done)
                if not done.why:
                    self._mark_repaired(done.key)
                if self.refused is not None:
                    return

    def _mark_repaired(self, key: str) -> None:
        self.report.defects = [
            replace(defect, repaired=True)
            if (defect.kind, defect.key) == ("entry-missing", key)
            else defect
            for defect in self.report.defects
        ]
