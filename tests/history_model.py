"""A history told twice: as a list of what was really committed, and as what the bucket has of it.

The list is the truth that plans are held against; the bucket side answers as a `Snapshot`.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, TypeVar

from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.documents import Lineage, Parent, SourceServer
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.parts import Block
from binlog2s3.binlog.content import Content
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList, empty, gathered, joined
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.recover.snapshot import Search
from tests.documents import parent_of

Result = TypeVar("Result")
M = TypeVar("M", bound="Model")
HEAD = 150
BLOCK = 400
ROTATE = 40


@dataclass(frozen=True)
class Real:
    """Something that was committed: `number` tells it from all others, whatever its GTID."""

    number: int
    gtid: str | None
    commit_us: int
    size: int


@dataclass
class File:
    """A binlog: what was executed before it, and what is in it."""

    name: BinlogName
    before: Gtids
    first_us: int
    reals: list[Real] = field(default_factory=list)
    ended: bool = False
    shared: int = 0
    """So many of its first transactions are also in a lineage before."""
    damaged: tuple[tuple[int, int], ...] = ()
    received_us: int | None = None
    started: bool = False
    crashed: bool = False
    leaves_out: tuple[str, ...] | None = None

    def places(self) -> list[tuple[int, int, Real]]:
        """Begin and end of each transaction."""
        found, at = [], HEAD
        for real in self.reals:
            found.append((at, at + real.size, real))
            at += real.size
        return found

    @property
    def transaction_end(self) -> int:
        return HEAD + sum(real.size for real in self.reals)

    @property
    def size(self) -> int:
        return self.transaction_end + (ROTATE if self.ended else 0)

    def gtids(self) -> Gtids:
        return _set(self.reals, "mariadb" if self.is_mariadb else "mysql")

    @property
    def is_mariadb(self) -> bool:
        return isinstance(self.before, MariadbGtidList)

    def goes_back(self) -> bool:
        """Whether a number of a domain and server is not greater than the one before it."""
        last: dict[str, int] = {}
        for text in str(self.before).split(",") if self.before else ():
            series, _, number = text.rpartition("-")
            last[series] = int(number)
        for real in self.reals:
            series, _, number = str(real.gtid).rpartition("-")
            if int(number) <= last.get(series, -1):
                return True
            last[series] = int(number)
        return False

    def gtids_at_end(self) -> Gtids:
        return _then(self.before, self.gtids())


@dataclass
class Branch:
    """A lineage, with its files."""

    lineage: Lineage
    files: list[File]


class Model:
    """Commits, rotations, fail-overs, servers put back; `truth` is the history that was kept.

    It has a method for each thing that can happen to a server.
    """

    def __init__(self, *, gtids: bool = True, flavour: Flavour = "mysql") -> None:
        self.with_gtids = gtids
        self.flavour: Flavour = flavour
        self.clock_us = 1_000_000_000_000_000
        self.branches: list[Branch] = []
        self.truth: list[Real] = []
        self.lost: list[Real] = []
        self.dead: list[Gtids] = []
        self.covered_us: int | None = None
        self.left_out: tuple[str, ...] = ()
        self.exact = True
        self.lost_text = ""
        self.unreadable: Collection[BinlogName] = ()
        self._numbers = 0
        self._servers = 0
        self._uuid = ""
        self._gno = 0
        self._new_server()
        self._begin_lineage(File(self._name(1), empty(self.flavour), self.clock_us), parent=None)

    # What happens

    def commit(self, size: int, wait_us: int, domain: int = 0, gtid: str | None = None) -> None:
        self.clock_us += wait_us
        self._gno += 1
        self._numbers += 1
        gtid = gtid or (self._next_gtid(domain) if self.with_gtids else None)
        real = Real(self._numbers, gtid, self.clock_us, size)
        self.open.reals.append(real)
        self.truth.append(real)

    def rotate(self) -> None:
        old = self.open
        old.ended = True
        self.branch.files.append(File(old.name.next(), old.gtids_at_end(), self.clock_us))

    def fail_over(self, lost: int, back: int) -> None:
        """To a replica without the last `lost` of the open binlog; its own begins `back` before.

        Its own commit times of what it replicated are a little later.
        """
        cut_file, old = self.open, self.branch
        lost = min(lost, len(cut_file.reals) - cut_file.shared)
        kept = cut_file.reals[: len(cut_file.reals) - lost]
        gone = cut_file.reals[len(kept) :]
        self._lose(gone)
        offset = HEAD + sum(real.size for real in kept)
        at_cut = self._after(cut_file.before, kept)
        parent = _parent(old, cut_file, offset, at_cut, "exact")
        repeated = self.truth[max(0, len(self.truth) - back) :]
        before = _set(self.truth[: len(self.truth) - len(repeated)], self.flavour)
        self._new_server()
        self.clock_us += 1
        file = File(self._name(1 + back % 3), before, self.clock_us)
        file.reals = [replace(real, commit_us=real.commit_us + 5) for real in repeated]
        file.shared = len(repeated)
        self._begin_lineage(file, parent=parent)

    def put_back(self, lost: int) -> None:
        """The same server without its last transactions, whose GTIDs it then uses again."""
        cut_file, old = self.open, self.branch
        lost = min(lost, len(cut_file.reals) - cut_file.shared)
        kept = cut_file.reals[: len(cut_file.reals) - lost]
        gone = cut_file.reals[len(kept) :]
        self._lose(gone)
        self._gno -= len(gone)  # all are its own
        offset = HEAD + sum(real.size for real in kept)
        parent = _parent(old, cut_file, offset, self._after(cut_file.before, kept), "exact")
        file = File(cut_file.name, cut_file.before, cut_file.first_us, list(kept))
        file.shared = len(kept)
        self._begin_lineage(file, parent=parent)

    def _lose(self, gone: Sequence[Real]) -> None:
        """The last ones of the truth are not, any more; `dead` are what a server had then."""
        first = len(self.truth) - len(gone)
        self.dead += [_set(self.truth[: first + n], self.flavour) for n in range(1, len(gone) + 1)]
        self.lost += gone
        del self.truth[first:]

    def gap(self, count: int) -> None:
        """The source purges what it has committed meanwhile before anybody has read it."""
        old_file, old = self.open, self.branch
        at_end = old_file.gtids_at_end()
        parent = _parent(old, old_file, old_file.transaction_end, at_end, "gap")
        for _ in range(count):
            self.commit(100, 1)
        missing = old_file.reals[len(old_file.reals) - count :]
        del old_file.reals[len(old_file.reals) - count :]
        parent = replace(parent, missing=str(_set(missing, self.flavour)))
        file = File(
            BinlogName("mysql-bin", old_file.name.number + 2),
            self._after(at_end, missing),
            self.clock_us,
        )
        self._begin_lineage(file, parent=parent)

    def leave_out(self) -> None:
        """The source goes on without a binlog for a while: rows that no GTID counts are nowhere."""
        old_file, old = self.open, self.branch
        old_file.ended = True
        at_end = old_file.gtids_at_end()
        parent = _parent(old, old_file, old_file.size, at_end, "gap")
        self.clock_us += 1
        file = File(old_file.name.next(), at_end, self.clock_us, started=True)
        self._begin_lineage(file, parent=replace(parent, unlogged=True))

    def reset(self) -> None:
        """RESET BINARY LOGS AND GTIDS: the same names and GTIDs again, nothing proves a join."""
        old_file, old = self.open, self.branch
        at_end = old_file.gtids_at_end()
        parent = _parent(old, old_file, old_file.transaction_end, at_end, "unknown")
        self.lost += self.truth
        self.truth = []
        self._gno = 0
        self.clock_us += 1
        self._begin_lineage(File(self._name(1), empty(self.flavour), self.clock_us), parent=parent)

    # The bucket

    @property
    def branch(self) -> Branch:
        return self.branches[-1]

    @property
    def open(self) -> File:
        return self.branch.files[-1]

    @property
    def lineages(self) -> Sequence[Lineage]:
        return [branch.lineage for branch in self.branches]

    @property
    def current(self) -> str:
        return self.branch.lineage.id

    def names(self, lineage: str) -> Sequence[BinlogName]:
        return [file.name for file in self._files(lineage)]

    def lost_end(self, lineage: str) -> str:
        return self.lost_text if lineage == self.current else ""

    def load(self, lineage: str, names: Sequence[BinlogName], *, is_brief: bool = False) -> None:
        pass

    def gtid_list(self, lineage: str, name: BinlogName) -> Gtids | None:
        return self.file(lineage, name).before

    def known(self, lineage: str, name: BinlogName) -> Facts:
        if name in self.unreadable:
            raise ArchiveError(f"the entry of {name} is not JSON")
        file = self.file(lineage, name)
        places = file.places()
        blocks = []
        for offset in range(0, file.size, BLOCK):
            first = next(((b, r) for b, _, r in places if offset <= b < offset + BLOCK), None)
            blocks.append(
                Block(
                    offset=offset,
                    size=min(BLOCK, file.size - offset),
                    crc64=Crc64(0),
                    first_offset=first[0] if first else None,
                    first_commit_us=first[1].commit_us if first else None,
                    first_gtid=first[1].gtid if first else None,
                )
            )
        times = [real.commit_us for real in file.reals]
        return Facts(
            lineage=next(one for one in self.lineages if one.id == lineage),
            name=name,
            size=file.size,
            state="archived" if file.ended else "open",
            ended=file.ended,
            first_us=file.first_us,
            transaction_end=file.transaction_end if not file.ended else file.size,
            least_commit_us=min(times, default=None),
            greatest_commit_us=max(times, default=None),
            reached_us=max(
                (us for us in times if file.received_us is None or us <= file.received_us),
                default=None,
            ),
            received_us=file.received_us,
            commit_exact=self.exact,
            gtids_before=file.before,
            gtids_added=file.gtids(),
            transactions=len(file.reals),
            anonymous=sum(real.gtid is None for real in file.reals),
            blocks=tuple(blocks),
            damaged=file.damaged,
            gtids_go_back=file.goes_back() if file.is_mariadb else None,
            started=file.started,
            rotated=file.ended and not file.crashed,
            crashed=file.ended and file.crashed,
            leaves_out=file.leaves_out,
        )

    doubts = 0

    def brief(self, lineage: str, name: BinlogName) -> Facts:
        return replace(self.known(lineage, name), blocks=())

    def first_later(self, lineage: str, at_us: int, begin: BinlogName) -> BinlogName | None:
        later = (
            file.name
            for file in self._files(lineage)
            if file.name >= begin and any(real.commit_us > at_us for real in file.reals)
        )
        return next(later, None)

    def not_later(self, lineage: str, at_us: int, begin: BinlogName) -> Iterator[BinlogName]:
        for file in self._files(lineage):
            if file.name >= begin and any(real.commit_us <= at_us for real in file.reals):
                yield file.name

    def unbroken_to(self, lineage: str, name: BinlogName) -> BinlogName:
        files = [file for file in self._files(lineage) if file.name >= name]
        for one, other in pairwise(files):
            if joined(one.before, one.gtids()) != other.before or one.name.next() != other.name:
                return one.name
        return files[-1].name

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        for at, stop, real in self.file(lineage, name).places():
            if at >= begin and (end is None or at < end):
                yield Transaction(
                    begin=at,
                    end=stop,
                    gtid=real.gtid,
                    commit_us=real.commit_us,
                    commit_exact=self.exact,
                    original_commit_us=None,
                )

    def searched(
        self, lineage: str, name: BinlogName, begin: int, end: int, search: Search[Result]
    ) -> Result:
        return search(one for one in self.transactions(lineage, name, begin, end) if one.end <= end)

    def content(self, *_: object) -> Content:
        return Content()

    def is_engine_commit(self, *_: object) -> bool:
        return True

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        file = self.file(lineage, name)
        return offset in {4, HEAD, file.size, *(stop for _, stop, _ in file.places())}

    def file(self, lineage: str, name: BinlogName) -> File:
        return next(file for file in self._files(lineage) if file.name == name)

    def _files(self, lineage: str) -> list[File]:
        return next(one.files for one in self.branches if one.lineage.id == lineage)

    def _new_server(self) -> None:
        self._servers += 1
        self._uuid = f"{self._servers:08d}-0000-0000-0000-000000000000"
        self._gno = 0

    def _next_gtid(self, domain: int) -> str:
        """MySQL numbers by server; MariaDB by domain, whoever is the primary."""
        if self.flavour == "mysql":
            return f"{self._uuid}:{self._gno}"
        gtids = [real.gtid.split("-") for real in self.truth if real.gtid]
        numbers = [int(number) for one, _, number in gtids if int(one) == domain]
        return f"{domain}-{self._servers}-{max(numbers, default=0) + 1}"

    def _after(self, before: Gtids, reals: Sequence[Real]) -> Gtids:
        return _then(before, _set(reals, self.flavour))

    def _name(self, number: int) -> BinlogName:
        return BinlogName("mysql-bin", number)

    def _begin_lineage(self, file: File, parent: Parent | None) -> None:
        number = len(self.branches)
        lineage = Lineage(
            lineage=f"20260102T0304{number:02d}Z-{self._uuid[:8]}-{number:04x}",
            source="orders",
            server=SourceServer(uuid=self._uuid, flavour=self.flavour, version="9.7.0"),
            first_binlog=file.name,
            first_binlog_time=datetime(2026, 1, 2, tzinfo=UTC),
            gtid_set=str(file.before),
            parent=parent,
        )
        self.branches.append(Branch(lineage, [file]))


def lived(steps: str, kind: type[M] = Model, **given: Any) -> M:  # type: ignore[assignment]
    """A history of these steps, such as "3 | 2 gap:2 1".

    A number: so many transactions of 100 bytes, `anonymous` or `named`. `|`: a new binlog. Else a
    method and its numbers.
    """
    found = kind(**given)
    for step in steps.split():
        name, _, numbers = step.partition(":")
        if step.isdigit():
            for _ in range(int(step)):
                found.commit(100, 10)
        elif step == "|":
            found.rotate()
        elif step in ("anonymous", "named"):
            found.with_gtids = step == "named"
        else:
            getattr(found, name)(*(int(number) for number in numbers.split(",") if number))
    return found


def having(reals: Sequence[Real]) -> GtidSet:
    """The GTIDs of these, of MySQL."""
    return GtidSet.parse(",".join(str(real.gtid) for real in reals))


def _set(reals: Sequence[Real], flavour: Flavour) -> Gtids:
    return gathered([real.gtid for real in reals if real.gtid], flavour)


def _then(before: Gtids, added: Gtids) -> Gtids:
    after = joined(before, added)
    assert after is not None
    return after


def _parent(branch: Branch, file: File, offset: int, gtids: Gtids, join: str) -> Parent:
    return parent_of(
        branch.lineage.id, binlog=str(file.name), offset=offset, gtid_set=str(gtids), join=join
    )
