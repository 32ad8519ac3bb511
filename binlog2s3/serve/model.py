"""What is served: binlogs one after the other, the last of which may still grow. Values only."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Protocol, Self

from binlog2s3.archive.codec import LINEAGE_ID
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.facts import BinlogId, Facts
from binlog2s3.binlog.executed import Gtid, StateEnd
from binlog2s3.binlog.gtid import Flavour, Gtids, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.replication.feed import Had, MariadbHad, NotServedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBinlog:
    """The part of one binlog that belongs to the history that is served.

    `begin`: where that part begins; the binlog before has the same bytes up to there. `end`: where
    it ends, None if that is the binlog's own end, which is not known here. `is_open`: the binlog
    may grow. `broken`: why the binlog before does not lead up to it, "" if nothing says so.
    `before`: the GTIDs that were executed before this binlog, if they are known without reading it.
    `joined`: for the first binlog of a lineage, the GTIDs that were executed where the lineage
    before ends. `unlogged`: the source had left rows out of its binlogs just before that.
    """

    lineage: Lineage
    name: BinlogName
    begin: int = 0
    end: int | None = None
    is_open: bool = False
    broken: str = ""
    before: Gtids | None = None
    joined: Gtids | None = None
    unlogged: bool = False

    @property
    def binlog_id(self) -> BinlogId:
        return self.lineage.id, self.name

    @property
    def full_name(self) -> str:
        """Its name with its lineage, which no other binlog has."""
        return f"{self.lineage.id}.{self.name}"


@dataclass(frozen=True, slots=True)
class AskedName:
    """The name by which a client asks for a binlog; `lineage` is None if it is the name alone."""

    binlog: BinlogName
    lineage: str | None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name that `View.served_name` may have told. ValueError if it is none."""
        lineage, _, name = text.partition(".")
        if LINEAGE_ID.fullmatch(lineage):
            return cls(BinlogName.parse(name), lineage)
        return cls(BinlogName.parse(text), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All binlogs of a history, as they were at one moment; there may be none.

    The last binlog has whole transactions up to `whole`. `problem`: why no more can come, "" if
    more may come. `numbers` has the number of each binlog by its id; `plain` says
    which names are those of one binlog only. `elsewhere`: names of binlogs that are not, or not as
    a whole, part of this history.
    """

    version: int
    binlogs: tuple[ServedBinlog, ...]
    whole: int
    problem: str
    numbers: Mapping[BinlogId, int]
    plain: Mapping[BinlogName, bool]
    elsewhere: AbstractSet[BinlogName] = frozenset()

    def served_name(self, binlog: ServedBinlog, *, resumes: bool = True) -> str:
        """Its name at clients: the binlog's own, if no other lineage has the same.

        `resumes`: the client connects again and asks by that name. If not, lineages do not count
        that are not part of this history.
        """
        is_plain = self.plain.get(binlog.name, True)
        if is_plain and not (resumes and binlog.name in self.elsewhere):
            return str(binlog.name)
        return binlog.full_name

    def named(self, asked: AskedName) -> Iterator[int]:
        """The numbers of the binlogs that a client can mean by this name.

        The first binlog of a lineage may begin with bytes of the lineage before; then it has all
        of both, and only it is meant by the name alone.
        """
        for number, binlog in enumerate(self.binlogs):
            if binlog.name != asked.binlog or asked.lineage not in (None, binlog.lineage.id):
                continue
            later = self.binlogs[number + 1 : number + 2]
            if asked.lineage or not any(two.begin and two.name == binlog.name for two in later):
                yield number


def view_of(
    version: int,
    binlogs: tuple[ServedBinlog, ...],
    whole: int,
    problem: str = "",
    elsewhere: AbstractSet[BinlogName] = frozenset(),
) -> View:
    plain: dict[BinlogName, bool] = {}
    for binlog in binlogs:
        plain[binlog.name] = binlog.name not in plain
    return View(
        version=version,
        binlogs=binlogs,
        whole=whole,
        problem=problem,
        numbers={binlog.binlog_id: number for number, binlog in enumerate(binlogs)},
        plain=plain,
        elsewhere=elsewhere,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a replica begins by its GTIDs: `offset` in `binlog`; `had` leaves out what it has.

    `due`: GTIDs of MariaDB by the binlog that must have them; if it turns out that it has not, the
    replica cannot be served.
    """

    binlog: ServedBinlog
    offset: int
    had: Had
    due: Mapping[BinlogId, tuple[Gtid, ...]] = field(default_factory=dict)


class NotThereError(NotServedError):
    """A GTID of a replica is not in the archive, perhaps not yet."""


def beginning(binlogs: Sequence[ServedBinlog], end: StateEnd) -> Beginning:
    """Where a MariaDB replica begins. It does not lack anything that comes before these binlogs.

    `end`: where its state ends among them. Raises NotThereError if a GTID is not there.
    """
    if end.unknown:
        raise NotThereError(
            f"the replica requested to start from GTID {', '.join(end.unknown)}, which is not "
            "in this archive: nothing tells what comes after it"
        )
    start = end.start or 0
    due: dict[BinlogId, tuple[Gtid, ...]] = {}
    for gtid in end.newest.gtids():
        number, offset = end.upto.get(gtid[0], (0, 0))
        if offset and number >= start:
            due[binlogs[number].binlog_id] = (*due.get(binlogs[number].binlog_id, ()), gtid)
    first = binlogs[start]
    if start and first.joined is not None and not first.begin:
        # it has all of the lineage before, of which this binlog may repeat something
        repeated = first.joined.gtids() if isinstance(first.joined, MariadbGtidList) else ()
        due[first.binlog_id] = (*due.get(first.binlog_id, ()), *repeated)
    awaited = (gtid for gtids in due.values() for gtid in gtids)
    return Beginning(binlog=first, offset=0, had=MariadbHad(awaited), due=due)


class ServedHistory(Protocol):
    """A history that is served. Any thread may call its methods."""

    @property
    def flavour(self) -> Flavour:
        """The flavour of the servers that wrote it."""

    @property
    def server_version(self) -> str:
        """The version of the newest server that wrote it."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def keeps_gtids(self) -> bool | None:
        """Whether its transactions have GTIDs; None if that is not known, or only some have."""

    @property
    def error(self) -> Binlog2s3Error | None:
        """Why what it is read from cannot be asked at the moment."""

    def newest_position(self) -> tuple[tuple[str, int], str]:
        """Name and end of the newest binlog, and the GTIDs executed there; "" if unknown."""

    def view(self) -> View:
        """The binlogs that there are now."""

    def wait(self, version: int, seconds: float) -> View:
        """Wait until the view has another version, or for `seconds`; the view."""

    def look(self, seconds: float) -> bool:
        """Have the store asked once for more; whether it answered within `seconds`."""

    def first_for(self, have: Gtids) -> Beginning:
        """Where a replica with these GTIDs begins: it has executed everything before it.

        Raises NotServedError.
        """

    def elsewhere(self, name: BinlogName, offset: int, *, is_here: bool) -> Sequence[str]:
        """The lineages in which a client may be that is at this offset of a binlog of this name.

        Without this history. `is_here`: it has the place, too; then the operator may have said
        that it is the one which is meant. Raises ArchiveError, StoreError.
        """

    def check_begin(self, binlog: ServedBinlog, offset: int, *, is_replica: bool) -> None:
        """Check that a client which begins there has what is not here before it.

        Raises NotServedError.
        """

    def known(self, binlog: ServedBinlog) -> Facts:
        """What is known of a binlog that is not open. Raises ArchiveError, StoreError."""

    def boundary(self, binlog: ServedBinlog, offset: int) -> int:
        """The nearest known beginning of an event at or before this offset; 0 if none is known.

        Raises ArchiveError, StoreError.
        """

    def head(self, binlog: ServedBinlog, offset: int) -> bytes:
        """The format event that applies at this offset. Raises ArchiveError, StoreError."""

    def block(self, binlog: ServedBinlog, number: int, upto: int) -> memoryview:
        """The checked bytes of a block, up to the offset `upto`.

        Blocks have `archive.parts.BLOCK_SIZE` bytes. Raises ArchiveError, StoreError.
        """

    def newest(self, binlog: ServedBinlog, begin: int, end: int) -> list[bytes] | None:
        """Bytes [begin, end), if they are still in memory; else None."""
