"""What all checks of a source need: its objects, listed once, and the report of its defects.

Law: the order is writers, `live/`, `archive/`, so that a binlog that is being archived is never
missed. Objects that are not part of the format are reported as foreign.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from binlog2s3.archive.backups import Backup, lost_objects, registered
from binlog2s3.archive.catalog import Catalog, Contents
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Turn
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.verify.report import Defect, Kind, RecordedGap, SourceReport
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.store.contract import ObjectInfo, Store

_LOOKS = 3


@dataclass(slots=True)
class SourceInventory:
    """The objects of a source. `writer` and `turn` are the last ones, None if there are none."""

    layout: Layout
    writer: Heartbeat | None = None
    turn: Turn | None = None
    by_lineage: dict[str, Contents] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    """The size of each object of a stored base backup, by key."""
    backups: list[Backup] = field(default_factory=list)
    """The stored base backups whose objects are there, of the right sizes."""
    defects: list[Defect] = field(default_factory=list)

    def objects(self, lineage: str) -> Contents:
        return self.by_lineage.setdefault(lineage, Contents())


def take_inventory(store: Store, layout: Layout) -> SourceInventory:
    """List everything."""
    inventory = SourceInventory(layout)
    catalog, listed = Catalog(store, layout), Catalog(store, layout)
    if (writer := catalog.last_writer()) is not None:
        inventory.writer = writer.beat
        if writer.error is not None:
            key, text = writer.info.key, str(writer.error)
            inventory.defects.append(Defect(kind="writer-unreadable", key=key, text=text))
    try:
        inventory.turn = catalog.turn()
    except ArchiveError as error:
        key = layout.turns
        inventory.defects.append(Defect(kind="turn-unreadable", key=key, text=str(error)))
    unreadable: list[ArchiveError] = []
    backups = list[Backup]()

    def infos() -> Iterator[ObjectInfo]:
        yield from store.list(layout.live)
        backups.extend(registered(catalog, unreadable))  # before their objects: these come first
        for info in store.list(layout.archive):
            if layout.is_of("stored", info.key):
                inventory.stored[info.key] = info.size
            yield info

    inventory.by_lineage = listed.look(infos())
    others = {key: why for key, why in listed.foreign.items() if key not in catalog.foreign}
    inventory.defects += _foreign(others.items())
    if inventory.turn is not None:
        inventory.objects(inventory.turn.lineage)  # its lineage must be there
    for backup in backups:
        _check_stored(store, inventory, backup)
    inventory.defects += [
        Defect(kind="backup-unreadable", key=layout.backups, text=str(error))
        for error in unreadable
    ]
    inventory.defects += _foreign(sorted(catalog.foreign.items()))
    return inventory


def _foreign(keys: Iterable[tuple[str, str]]) -> Iterator[Defect]:
    for key, why in keys:
        text = why or "it is not part of this archive's format"
        yield Defect(kind="foreign", key=key, text=text)


def _check_stored(store: Store, inventory: SourceInventory, backup: Backup) -> None:
    """Report objects of a stored backup that are missing, or have another size."""
    if backup.stored is None:
        return
    lost = [*lost_objects(inventory.layout, backup.id, backup.stored, inventory.stored)]
    if not lost:
        inventory.backups.append(backup)
    for key, why in lost:
        inventory.defects += damaged(store, inventory.layout, backup, key, why)


def damaged(store: Store, layout: Layout, backup: Backup, key: str, why: str) -> Iterator[Defect]:
    """The defect of a stored backup; none if it was removed meanwhile: its document goes first."""
    if store.head(layout.backup(backup.id)) is not None:
        text = f"{why}: {backup.name} cannot be restored"
        yield Defect(kind="backup-damaged", key=key, text=text)


def foreign_names(objects: Contents, first: BinlogName) -> Iterable[BinlogName]:
    """Binlog names that the lineage's server cannot have given."""
    for name in objects.all_names:
        width = max(first.width, len(str(name.number)))
        if (name.prefix, name.width) != (first.prefix, width):
            yield name


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What all parts of `verify` need of one source. `pause` waits before something is read again.

    `alive`: the last writer renews its object. `clock`: the time, not before what the store's dates
    show. Defects go into `report`.
    """

    store: Store
    layout: Layout
    catalog: Catalog
    snapshot: Snapshot
    inventory: SourceInventory
    report: SourceReport
    threads: int
    deep: bool
    alive: bool
    clock: Callable[[], datetime]
    pause: Callable[[], object]

    def defect(
        self, kind: Kind, key: str, text: str, lineage: str = "", name: BinlogName | None = None
    ) -> None:
        """Report a defect of an object, or of what is below a prefix."""
        found = Defect(kind=kind, lineage=lineage, binlog=name, key=key, text=text)
        self.report.defects.append(found)


_OF_LINEAGE = ("lineage-", "parent-")
_OF_ENTRY = ("entry-", "gtids")
_OF_CHUNKS = ("chunk-",)


@dataclass(frozen=True, slots=True)
class LineageContext:
    """One lineage, its objects, and where its defects are reported."""

    source: SourceContext
    lineage: Lineage

    @property
    def objects(self) -> Contents:
        """Its objects as listed."""
        return self.source.inventory.objects(self.lineage.id)

    @property
    def writer(self) -> Heartbeat | None:
        """The last writer of the source, if it writes this lineage."""
        writer = self.source.inventory.writer
        return writer if writer is not None and writer.lineage == self.lineage.id else None

    def object_key(self, name: BinlogName) -> str:
        """The key of an archived binlog."""
        return self.source.layout.binlog(self.lineage.id, name)

    def entry_key(self, name: BinlogName) -> str:
        return self.source.layout.entry(self.lineage.id, name)

    def chunks_key(self, name: BinlogName) -> str:
        """The prefix of its chunks."""
        return self.source.layout.chunks(self.lineage.id, name)

    def defect(self, kind: Kind, text: str, name: BinlogName | None = None, key: str = "") -> None:
        """Report a defect. Without `key`, its kind tells which object is meant."""
        self.source.defect(kind, key or self._key(kind, name), text, self.lineage.id, name)

    def _key(self, kind: Kind, name: BinlogName | None) -> str:
        if name is None or kind.startswith(_OF_LINEAGE):
            return self.source.layout.lineage(self.lineage.id)
        if kind.startswith(_OF_ENTRY):
            return self.entry_key(name)
        return self.chunks_key(name) if kind.startswith(_OF_CHUNKS) else self.object_key(name)

    def recorded(self, kind: Literal["gap", "damaged"], text: str) -> None:
        """Report what the source itself left out or sent damaged, as the archive shows."""
        self.source.report.gaps.append(RecordedGap(kind=kind, lineage=self.lineage.id, text=text))

    def note(self, text: str) -> None:
        """Add a note to the report."""
        self.source.report.notes.append(f"{self.lineage.id}: {text}")
