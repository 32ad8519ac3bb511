"""A history of tests/history_model.py as a streamer puts it into a bucket: real binlogs, entries.

Nothing here reads a bucket: what was put, and what was taken out again, is remembered.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.workers import Outcome, Workers
from tests.binlog_writer import XID, BinlogWriter, statement
from tests.documents import BEAT, FLOOR, LINEAGE, like
from tests.history_model import HEAD, Branch, File, Model, Real
from tests.snapshots import LAYOUT, Bucket

SECOND_US = 1_000_000
VERSIONS = {"mysql": "9.7.4", "mariadb": "11.4.2-MariaDB-log"}


@dataclass
class Kept:
    """A binlog: of which branch and file, where its transactions lie, and what is left of it.

    `size`: so many of its first bytes are there; 0: it is gone. `damaged`: numbers of transactions
    in it that the source itself sent damaged; of those that are `hidden`, the GTID is not there.
    """

    branch: int
    file: File
    bounds: Sequence[tuple[int, int]]
    size: int
    whole: int
    damaged: set[int] = field(default_factory=set)
    hidden: set[int] = field(default_factory=set)
    described: bool = True

    def real_there(self, at: int) -> bool:
        """Whether its transaction number `at` can be read, and told from all others."""
        return self.bounds[at][1] <= self.size and at not in self.damaged and not self.hidden


class LivedBucket:
    """What was put, in `bucket`: `kept` has each binlog, by branch.

    `floors`: the first number of a branch that was not given up. `now` is later than all.
    """

    def __init__(self, model: Model, *, alive: bool = True) -> None:
        self.model = model
        self.now = _time(model.clock_us) + timedelta(minutes=1)
        self.bucket = Bucket(now=lambda: self.now)
        self.bucket.objects.clear()
        self.lineages: list[Lineage] = []
        self.kept: list[list[Kept]] = []
        for number, branch in enumerate(model.branches):
            self._put_branch(number, branch)
        self._beat(alive=alive)

    # What is put

    def _put_branch(self, number: int, branch: Branch) -> None:
        given, first = branch.lineage, branch.files[0]
        begun = _time(first.first_us).replace(microsecond=0)
        lineage = like(
            LINEAGE,
            id=f"{begun:%Y%m%dT%H%M%SZ}-{given.server_uuid[:8]}-{number:04x}",
            server_uuid=given.server_uuid,
            flavour=given.flavour,
            server_version=VERSIONS[given.flavour],
            first_binlog=first.name,
            first_binlog_time=begun,
            gtid_set=str(first.before),
            parent=self._parent(given.parent),
        )
        self.lineages.append(lineage)
        self.bucket.lineage = lineage
        self.bucket.put(LAYOUT.lineage(lineage.id), lineage.to_json())
        self.kept.append([self._put_file(number, file) for file in branch.files])

    def _parent(self, parent: Parent | None) -> Parent | None:
        """The same, with the offset that the real binlog has."""
        if parent is None:
            return None
        above = next(n for n, one in enumerate(self.model.branches)
                     if one.lineage.id == parent.lineage)  # fmt: skip
        kept = next(one for one in self.kept[above] if one.file.name == parent.binlog)
        offset = kept.bounds[0][0] if kept.bounds else kept.whole
        if parent.offset > HEAD:
            ends = [HEAD]
            for real in kept.file.reals:
                ends.append(ends[-1] + real.size)
            offset = kept.bounds[ends.index(parent.offset) - 1][1] if parent.offset in ends else 0
        offset = offset or kept.whole
        return replace(parent, lineage=self.lineages[above].id, offset=offset)

    def _put_file(
        self, branch: int, file: File, damaged: Sequence[int] = (), *, hides: bool = False
    ) -> Kept:
        made = written(file)
        bounds = [(one.begin, one.end) for one in made.transactions]
        kept = Kept(branch, file, bounds, len(made.data), len(made.data), {*damaged})
        kept.hidden = {*damaged} if hides else set()
        self.bucket.lineage = self.lineages[branch]
        data, accept = bytearray(made.data), list[int]()
        for at in damaged:
            begin = next(end for end in made.ends if end > bounds[at][0])  # its BEGIN event
            begin = bounds[at][0] if hides else begin  # or that with its GTID
            data[begin + 20] ^= 1
            accept.append(begin)
        if file.ended:
            self.bucket.archived_at = _time(
                max([file.first_us, *(r.commit_us for r in file.reals)])
            )
            self.bucket.archived_at += timedelta(seconds=1)
            self.bucket.archive(data, file.name, accept=accept)
        else:
            middle = bounds[len(bounds) // 2][1] if bounds else len(data)
            ends = sorted({0, middle, len(data)})
            self.bucket.chunks(data, *ends, name=file.name)
        return kept

    def _beat(self, *, alive: bool) -> None:
        last, lineage = self.kept[-1][-1], self.lineages[-1]
        here = Position(
            binlog=last.file.name,
            offset=last.whole,
            gtid_set=str(last.file.gtids_at_end()),
        )
        self.bucket.beat(
            replace(
                BEAT,
                generation=len(self.lineages),
                since=self.now - timedelta(seconds=30),
                at=self.now - timedelta(seconds=1),
                state="streaming" if alive else "stopped",
                lineage=lineage.id,
                server_uuid=lineage.server_uuid,
                durable=here,
                server=here,
                covered_until=_time(self.model.clock_us),
                status=None,
            )
        )

    # What happens to it

    def lose(self, kept: Kept) -> None:
        """Somebody deletes a binlog, with its entry."""
        lineage = self.lineages[kept.branch].id
        gone = (LAYOUT.binlog(lineage, kept.file.name), LAYOUT.entry(lineage, kept.file.name))
        chunks = LAYOUT.chunks(lineage, kept.file.name)
        self.bucket.delete([k for k in self.bucket.objects if k in gone or k.startswith(chunks)])
        kept.size = 0

    def forget_entry(self, kept: Kept) -> None:
        kept.described = False
        self.bucket.delete([LAYOUT.entry(self.lineages[kept.branch].id, kept.file.name)])

    def cut_short(self, kept: Kept) -> None:
        """The last chunk of a binlog that is not archived is lost."""
        chunks = LAYOUT.chunks(self.lineages[kept.branch].id, kept.file.name)
        keys = sorted(key for key in self.bucket.objects if key.startswith(chunks))
        self.bucket.delete(keys[-1:])
        middle = kept.bounds[len(kept.bounds) // 2][1] if kept.bounds else kept.whole
        kept.size = middle if len(keys) > 1 else 0

    def damage(self, kept: Kept, at: int, *, hides: bool = False) -> None:
        """The source had sent one transaction damaged; the streamer was told to take it so.

        `hides`: its GTID cannot be read.
        """
        self.kept[kept.branch] = [
            self._put_file(kept.branch, one.file, [at], hides=hides) if one is kept else one
            for one in self.kept[kept.branch]
        ]

    def raise_floor(self, kept: Kept, *, deletes: bool) -> None:
        """`prune` gives up what comes before this binlog, and may have deleted it."""
        lineage = self.lineages[kept.branch]
        floor = replace(FLOOR, lineage=lineage.id, binlog=kept.file.name,
                        gtid_set=str(kept.file.before), raised_at=self.now)  # fmt: skip
        self.bucket.put(LAYOUT.floor(lineage.id, kept.file.name.number), floor.to_json())
        for one in self.kept[kept.branch] if deletes else ():
            if one.file.name < kept.file.name and one.file.ended:
                self.lose(one)


def written(file: File) -> BinlogWriter:
    """The binlog as its server writes it."""
    version, stamp = VERSIONS["mariadb" if file.is_mariadb else "mysql"], _stamp(file.first_us)
    made = BinlogWriter(
        server_version=version, timestamp=stamp, created=stamp if file.started else 0
    )
    if isinstance(file.before, MariadbGtidList):
        made.gtid_list(file.before)
    elif isinstance(file.before, GtidSet):
        made.previous_gtids(file.before)
    for real in file.reals:
        made.timestamp = _stamp(real.commit_us)
        _commit(made, real)
    if file.ended and not file.crashed:
        made.rotate(str(file.name.next()))
    return made


def _commit(made: BinlogWriter, real: Real) -> None:
    row = statement(f"INSERT {real.number} {'x' * (real.size % 97)}")
    events = [statement("BEGIN"), row, XID]
    if made.is_mariadb and real.gtid is not None:
        domain, made.server_id, number = map(int, real.gtid.split("-"))
        made.mariadb_transaction(events, gtid=(domain, number))
        return
    uuid, _, number = (real.gtid or "").rpartition(":")
    gtid = (uuid, "", int(number)) if real.gtid is not None else None
    made.transaction(events, gtid=gtid, commit_us=real.commit_us)


def _time(us: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=us)


def _stamp(us: int) -> int:
    return us // SECOND_US


class Alone(Workers):
    """Everything is done at once, by the one who asks: a machine that is busy takes no longer."""

    def batch(self, tasks: Mapping[Any, Callable[[], object]]) -> Iterator[Outcome]:
        for token, work in tasks.items():
            try:
                yield Outcome(token, value=work())
            except Exception as error:  # noqa: BLE001 - the caller raises it
                yield Outcome(token, error=error)
