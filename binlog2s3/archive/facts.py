"""One binlog in the bucket, as it is seen (`Binlog`) and as it was read (`Facts`). Values only."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from binlog2s3.archive.documents import Entry, EntryRow, Lineage
from binlog2s3.archive.parts import BLOCK_SIZE, Block
from binlog2s3.binlog.events import has_gtid_events, version_of
from binlog2s3.binlog.executed import AddedGtids
from binlog2s3.binlog.gtid import Flavour, Gtids, joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.binlog.transactions import Transaction
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import cut, us_of

_MOST_SHOWN = 500
_LEFT_OUT = "what the source leaves out of its binlogs cannot be in this history"
State = Literal["archived", "open", "unfinished", "undescribed"]
BinlogId: TypeAlias = tuple[str, BinlogName]
"""Which binlog of a source: the id of its lineage, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlog:
    """One binlog as the bucket shows it, without reading it: `size` bytes can be read.

    `state`: archived; undescribed if it is archived and has no entry that can be used; open or
    unfinished if it is in chunks, and may grow or not. `hole`: where chunks after a hole begin.
    `entry` is without its blocks and formats, which take most of the memory.
    """

    lineage: Lineage
    name: BinlogName
    size: int
    state: State
    entry: EntryRow | None = None
    hole: int | None = None

    @property
    def ended(self) -> bool:
        """Whether the server has finished it, and all of it is here."""
        return self.state in ("archived", "undescribed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of one binlog in the bucket: from its entry, or by reading all of it.

    `size` bytes of it can be read; up to `transaction_end` they are whole transactions. `ended`:
    the server has finished it, and all of it is here. Commit times are in microseconds, UTC; not
    `commit_exact`: at least one is in whole seconds. `reached_us`: the greatest commit time that is
    credible: all later ones were received before them. All was received by `received_us`, None if
    that is unknown. `gtids_before` is None if the binlog does not have it. `damaged` are byte
    ranges, including those after `size` that should be there and cannot be read. `server_id` is
    that of the server that wrote the binlog; replicated transactions have others. `server_version`
    is that server's; "" if the entry does not say it. `formats`: the offsets of its format events.
    `gtids_go_back`, `started`, `leaves_out` and `time_zone`: see `documents.Entry`. `rotated`:
    whether it ends with a rotate event, `crashed`: whether it has ended with neither that nor a
    stop event.
    """

    lineage: Lineage
    name: BinlogName
    size: int
    state: Literal["archived", "open"]
    ended: bool
    first_us: int
    transaction_end: int
    least_commit_us: int | None
    greatest_commit_us: int | None
    reached_us: int | None
    received_us: int | None
    commit_exact: bool
    gtids_before: Gtids | None
    gtids_added: Gtids
    transactions: int
    anonymous: int
    blocks: tuple[Block, ...]
    damaged: tuple[tuple[int, int], ...] = ()
    server_id: int | None = None
    server_version: str = ""
    formats: tuple[int, ...] = ()
    gtids_go_back: bool | None = None
    started: bool | None = None
    rotated: bool = False
    crashed: bool = False
    leaves_out: tuple[str, ...] | None = None
    time_zone: SystemZone | None = None

    def is_credible(self, transaction: Transaction) -> bool:
        """Whether one of its transactions may have been committed when it says so."""
        return self.reached_us is not None and transaction.commit_us <= self.reached_us

    def boundary(self, offset: int) -> int:
        """The last known offset, up to this one, at which no transaction is open.

        0 within the first block, which has to be read as a whole anyway.
        """
        for block in reversed(self.blocks[: offset // BLOCK_SIZE + 1]):
            if block.first_offset is not None and block.first_offset <= offset:
                return block.first_offset if block.first_offset >= BLOCK_SIZE else 0
        return 0

    def format_at(self, offset: int) -> int:
        """The offset of the format event that is valid at this offset."""
        return self.formats[max(bisect_right(self.formats, offset) - 1, 0)]

    @property
    def gtids_after(self) -> Gtids | None:
        """The GTIDs executed at its end."""
        return joined(self.gtids_before, self.gtids_added)


def added_gtids(known: Facts) -> AddedGtids:
    """What is known of a binlog of MariaDB, to find a GTID."""
    count, back = known.transactions - known.anonymous, known.gtids_go_back
    return AddedGtids.of(known.gtids_before, known.gtids_added, count, back=back)


def facts_of(entry: EntryRow, lineage: Lineage) -> Facts:
    """What is known of an archived binlog from its entry. ArchiveError if its GTIDs are wrong."""
    flavour = lineage.flavour
    return Facts(
        lineage=lineage,
        name=entry.name,
        size=entry.size,
        state="archived",
        ended=True,
        first_us=us_of(entry.first_time),
        transaction_end=entry.size,
        least_commit_us=entry.least_commit_us,
        greatest_commit_us=entry.greatest_commit_us,
        reached_us=entry.reached_us,
        received_us=us_of(entry.archived_at),
        commit_exact=entry.commit_exact,
        gtids_before=_gtids_before(entry, flavour),
        gtids_added=_gtids(entry, entry.gtid_set_added, flavour),
        transactions=entry.transactions,
        anonymous=entry.anonymous_transactions,
        blocks=entry.blocks if isinstance(entry, Entry) else (),
        damaged=tuple((int(damage["begin"]), int(damage["end"])) for damage in entry.damaged),
        server_id=entry.server_id,
        server_version=_version(entry),
        formats=tuple(int(form["offset"]) for form in entry.formats),
        gtids_go_back=entry.gtids_go_back,
        started=entry.started,
        rotated=entry.end == "rotate",
        crashed=entry.end == "crash",
        leaves_out=entry.leaves_out,
        time_zone=entry.time_zone,
    )


def scanned(
    scanner: Scanner,
    *,
    lineage: Lineage,
    name: BinlogName,
    size: int,
    state: Literal["archived", "open"],
    received_us: int | None = None,
    blocks: tuple[Block, ...] = (),
    damaged: tuple[tuple[int, int], ...] = (),
) -> Facts:
    """What is known of a binlog by its bytes, of which the scanner has had at least its format."""
    form = scanner.formats[0]
    return Facts(
        lineage=lineage,
        name=name,
        size=size,
        state=state,
        ended=state == "archived" or (scanner.ended and scanner.event_end == size),
        first_us=form.timestamp * 1_000_000,
        transaction_end=scanner.transaction_end,
        least_commit_us=scanner.least_commit_us,
        greatest_commit_us=scanner.greatest_commit_us,
        reached_us=scanner.reached_us,
        received_us=received_us,
        commit_exact=scanner.commit_exact,
        gtids_before=scanner.previous_gtids,
        gtids_added=scanner.gtids,
        transactions=scanner.transactions,
        anonymous=scanner.anonymous,
        blocks=blocks,
        damaged=damaged,
        server_id=form.server_id,
        server_version=form.server_version,
        formats=tuple(form.offset for form in scanner.formats),
        gtids_go_back=scanner.gtids_go_back if scanner.flavour == "mariadb" else None,
        started=form.created > 0,
        rotated=scanner.rotate is not None,
        crashed=state == "archived" and not scanner.ended,
    )


@dataclass(slots=True)
class LeftOut:
    """What a source said of several binlogs that its binlogs do not have; `add` these in order."""

    _said: dict[str, tuple[BinlogName, BinlogName]] = field(default_factory=dict)

    def add(self, known: Facts) -> None:
        for text in known.leaves_out or ():
            first, _ = self._said.get(text, (known.name, known.name))
            self._said[text] = (first, known.name)

    def texts(self, now: Iterable[str] = ()) -> list[str]:
        """As messages say it. `now`: what the source said last."""
        found = [
            f"{_LEFT_OUT}: {cut(text, _MOST_SHOWN)} "
            f"({first if first == last else f'{first} to {last}'})"
            for text, (first, last) in self._said.items()
        ]
        more = (cut(text, _MOST_SHOWN) for text in now if text not in self._said)
        return found + [f"{_LEFT_OUT}: {text}" for text in more]


def _gtids_before(entry: EntryRow, flavour: Flavour) -> Gtids | None:
    """An empty text means an empty set only if the server version has GTIDs at all."""
    if not entry.gtid_set_before and not has_gtid_events(version_of(_version(entry)), flavour):
        return None
    return _gtids(entry, entry.gtid_set_before, flavour)


def _version(entry: EntryRow) -> str:
    return str(entry.formats[0]["server_version"]) if entry.formats else ""


def _gtids(entry: EntryRow, text: str, flavour: Flavour) -> Gtids:
    try:
        return parse(text, flavour)
    except ValueError as error:
        raise ArchiveError(
            f"the entry of {entry.name}: {error}", hint="was it changed by hand?"
        ) from error
