"""All keys of a source, listed once, each in its place; what is foreign is named.

Place in the flow: `verify` takes stock first, everything else starts from that.

Law: writers first, then `live/`, then `archive/`: in this order a binlog that is being archived is
never missed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from binlog2s3.archive.catalog import Catalog, Layout, read
from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.documents import Heartbeat, Turn
from binlog2s3.archive.fields import LINEAGE_ID
from binlog2s3.archive.pages import first_in
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.inspect.verify.report import Defect
from binlog2s3.store.contract import ObjectInfo, Store

_LOOKS = 3


@dataclass(frozen=True, slots=True)
class Lying:
    """An object as the listing has it."""

    size: int
    at: datetime


@dataclass(slots=True)
class Shelf:
    """What one lineage has."""

    described: bool = False
    binlogs: dict[BinlogName, Lying] = field(default_factory=dict)
    entries: dict[BinlogName, Lying] = field(default_factory=dict)
    chunks: dict[BinlogName, list[Chunk]] = field(default_factory=dict)
    pages: set[int] = field(default_factory=set)

    @property
    def names(self) -> list[BinlogName]:
        """All binlogs of which there is anything, in their order."""
        return sorted(self.binlogs.keys() | self.entries.keys() | self.chunks.keys())

    def open(self, name: BinlogName) -> Chunks:
        """The chunks of a binlog."""
        return Chunks(frozenset(self.chunks.get(name, ())))


@dataclass(slots=True)
class Stock:
    """A source's part of a bucket. `writer` and `turn` are the last, None where there is none."""

    layout: Layout
    writer: Heartbeat | None = None
    turn: Turn | None = None
    shelves: dict[str, Shelf] = field(default_factory=dict)
    defects: list[Defect] = field(default_factory=list)

    def shelf(self, lineage: str) -> Shelf:
        """What a lineage has."""
        return self.shelves.setdefault(lineage, Shelf())

    def foreign(self, key: str, why: str = "it is of no kind that this archive has") -> None:
        """Name an object that is none of ours."""
        self.defects.append(Defect(kind="foreign", key=key, text=why))


def take_stock(store: Store, layout: Layout) -> Stock:
    """List it all."""
    stock = Stock(layout)
    catalog = Catalog(store, layout)
    _take_writer(store, catalog, stock)
    try:
        stock.turn = catalog.turn()
    except ArchiveError as error:
        key = layout.turns
        stock.defects.append(Defect(kind="turn-unreadable", key=key, text=str(error)))
    if stock.turn is not None:
        stock.shelf(stock.turn.lineage)  # it should be there, if nothing else is
    for info in store.list(layout.live):
        _place_live(stock, info)
    for info in store.list(layout.archive):
        if not info.key.startswith(layout.turns):  # `Catalog.turn` has looked at them
            _place_archived(stock, info)
    for key in sorted(catalog.foreign):
        stock.foreign(key)
    return stock


def _take_writer(store: Store, catalog: Catalog, stock: Stock) -> None:
    for _ in range(_LOOKS):
        ranks = catalog.writers()
        if not ranks:
            return
        key = stock.layout.writer(*max(ranks))
        try:
            stock.writer = read(store, key, Heartbeat)
        except ObjectMissingError:
            continue
        except ArchiveError as error:
            stock.defects.append(Defect(kind="writer-unreadable", key=key, text=str(error)))
        return


def _place_live(stock: Stock, info: ObjectInfo) -> None:
    layout = stock.layout
    if info.key.startswith(layout.writers):
        return  # `Catalog.writers` has looked at them
    if layout.is_probe(info.key):
        return
    lineage, _, rest = info.key.removeprefix(layout.live).partition("/")
    text, _, last = rest.partition("/")
    name = _name(text)
    try:
        chunk = Chunk.parse(last)
    except ValueError:
        stock.foreign(info.key)
        return
    if name is None or not LINEAGE_ID.fullmatch(lineage):
        stock.foreign(info.key)
    elif chunk.size != info.size:
        why = f"it has {info.size} bytes, a chunk of that name has {chunk.size}"
        stock.foreign(info.key, why)
    else:
        stock.shelf(lineage).chunks.setdefault(name, []).append(chunk)


def _place_archived(stock: Stock, info: ObjectInfo) -> None:
    lineage, _, rest = info.key.removeprefix(stock.layout.archive).partition("/")
    if not LINEAGE_ID.fullmatch(lineage):
        stock.foreign(info.key)
        return
    shelf, lying = stock.shelf(lineage), Lying(info.size, info.last_modified)
    folder, _, text = rest.partition("/")
    binlog = _name(text) if folder == "binlogs" else None
    entry = _name(text.removesuffix(".json")) if folder == "entries" else None
    if rest == "lineage.json":
        shelf.described = True
    elif binlog is not None:
        shelf.binlogs[binlog] = lying
    elif entry is not None and text.endswith(".json"):
        shelf.entries[entry] = lying
    elif folder == "pages" and (first := first_in(text)) is not None:
        shelf.pages.add(first)
    else:
        stock.foreign(info.key)


def _name(text: str) -> BinlogName | None:
    try:
        name = BinlogName.parse(text)
    except ValueError:
        return None
    return name if str(name) == text else None


def strangers(shelf: Shelf, first: BinlogName) -> Iterable[BinlogName]:
    """Names on a lineage's shelf that its server cannot have given."""
    for name in shelf.names:
        width = max(first.width, len(str(name.number)))
        if (name.prefix, name.width) != (first.prefix, width):
            yield name
