"""`verify --against-source`: compares what the server still has with the bucket.

Law: the server keeps writing. It is asked before the bucket is listed again, so what is missing in
the bucket is lag, not a defect, unless the bucket should have it already.
"""

from collections.abc import Sequence

from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.history import current_of
from binlog2s3.binlog.gtid import parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError, SourceError
from binlog2s3.inspect.verify.context import SourceContext, SourceInventory, take_inventory
from binlog2s3.inspect.verify.report import ComparedBinlogs
from binlog2s3.server.connection import Server, ServerBinlog

MOST_ASKED = 500
"""The first events of this many of the newest common binlogs are compared too."""


class SourceComparison:
    """Compares; what it finds goes into the report."""

    def __init__(
        self, context: SourceContext, lineages: Sequence[Lineage], server: Server, address: str
    ) -> None:
        self._context = context
        self._lineages = lineages
        self._server = server
        self._address = address
        self._newest: BinlogName | None = None

    def compare(self) -> ComparedBinlogs:
        """Ask the server, then list the bucket again."""
        facts, listed = self._server.facts(), self._server.binlogs()
        self._newest = listed[-1].name if listed else None
        inventory = take_inventory(self._context.store, self._context.layout)
        uuid = facts.uuid.lower()
        ours = [lineage for lineage in self._lineages if lineage.server_uuid.lower() == uuid]
        current = current_of(self._lineages, inventory.turn)
        if not ours:
            text = (
                f"the server at {self._address} is {facts.uuid} ({facts.flavour} {facts.version}), "
                f"the archive has {', '.join(sorted({o.server_uuid for o in self._lineages}))}"
            )
            self._context.defect("source-is-another", self._context.layout.archive, text)
            return self._compared(facts.uuid, listed, [], [], [])
        if all(lineage.id != current for lineage in ours):
            self._context.report.notes.append(
                f"the server {facts.uuid} is not the one that was streamed last; it is compared "
                f"with {ours[-1].id}"
            )
        agree: list[tuple[Lineage, ServerBinlog]] = []
        lagging: list[tuple[ServerBinlog, int]] = []
        unknown: list[ServerBinlog] = []
        for row in listed:
            lineage = self._lineage_of(row.name, ours, inventory)
            if lineage is None:
                unknown.append(row)
            else:
                self._row(row, lineage, inventory, agree, lagging)
        for lineage, row in agree[-MOST_ASKED:]:
            self._first_events(lineage, row)
        return self._compared(facts.uuid, listed, [row for _, row in agree], lagging, unknown)

    def _lineage_of(
        self, name: BinlogName, ours: Sequence[Lineage], inventory: SourceInventory
    ) -> Lineage | None:
        """The newest lineage of this server that has, or should have, a binlog of this name."""
        for lineage in reversed(ours):
            if (
                name in inventory.objects(lineage.id).binlogs
                or name in inventory.objects(lineage.id).chunks
            ):
                return lineage
        last = ours[-1]
        return last if name >= last.first_binlog else None

    def _row(
        self,
        row: ServerBinlog,
        lineage: Lineage,
        inventory: SourceInventory,
        agree: list[tuple[Lineage, ServerBinlog]],
        lagging: list[tuple[ServerBinlog, int]],
    ) -> None:
        objects, key = (
            inventory.objects(lineage.id),
            self._context.layout.binlog(lineage.id, row.name),
        )
        info = objects.binlogs.get(row.name)
        if info is not None:
            # an open binlog may have grown and been archived meanwhile
            if info.size == row.size or (row.name == self._newest and info.size > row.size):
                agree.append((lineage, row))
            else:
                text = f"it has {info.size} bytes, the source's {row.name} has {row.size}"
                self._context.defect("source-differs", key, text, lineage.id, row.name)
            return
        size = objects.chunks_of(row.name).end
        if size > row.size and row.name != self._newest and not self._is_left(lineage, row.name):
            key = self._context.layout.chunks(lineage.id, row.name)
            text = f"{size} bytes are there, the source's {row.name} has {row.size}"
            self._context.defect("source-differs", key, text, lineage.id, row.name)
        elif size >= row.size:
            agree.append((lineage, row))
        elif _is_past(lineage, inventory, row.name):
            text = f"{size} of the source's {row.size} bytes are there, but later binlogs are there"
            self._context.defect("source-has-it", key, text, lineage.id, row.name)
        else:
            lagging.append((row, row.size - size))

    def _is_left(self, lineage: Lineage, name: BinlogName) -> bool:
        """Whether another lineage continues from here or before: what follows is a dead branch."""
        for other in self._lineages:
            origin = other.parent
            if origin is None or origin.lineage != lineage.id:
                continue
            if origin.binlog is None or origin.binlog <= name:
                return True
        return False

    def _first_events(self, lineage: Lineage, row: ServerBinlog) -> None:
        """Compare the first events with the entry."""
        try:
            entry = self._context.catalog.entry(lineage, row.name)
        except (ObjectMissingError, ArchiveError):
            return  # the walk reports it
        try:
            said = self._server.previous_gtids(row.name)
            server_id = self._server.server_id_in(row.name)
        except SourceError as error:
            if not error.answered:
                raise
            self._context.report.notes.append(f"the source no longer has {row.name}: {error}")
            return
        self._compare_entry(lineage, entry, said, server_id)

    def _compare_entry(
        self, lineage: Lineage, entry: Entry, said: str | None, server_id: int
    ) -> None:
        key = self._context.layout.entry(lineage.id, entry.name)
        if server_id != entry.server_id:
            text = f"server_id is {entry.server_id}, the source's {entry.name} has {server_id}"
            self._context.defect("source-differs", key, text, lineage.id, entry.name)
        try:
            before = parse(entry.gtid_set_before, lineage.flavour)
        except ValueError:
            return
        if said is not None and parse(said, lineage.flavour) != before:
            text = f"it begins after {before or 'no GTIDs'}, the source's {entry.name} after {said}"
            self._context.defect("source-differs", key, text, lineage.id, entry.name)

    def _compared(
        self,
        uuid: str,
        listed: Sequence[ServerBinlog],
        agree: Sequence[ServerBinlog],
        lagging: Sequence[tuple[ServerBinlog, int]],
        unknown: Sequence[ServerBinlog],
    ) -> ComparedBinlogs:
        return ComparedBinlogs(
            address=self._address,
            server_uuid=uuid,
            listed=len(listed),
            compared=len(agree),
            first=str(listed[0].name) if listed else "",
            last=str(listed[-1].name) if listed else "",
            lag=sum(size for _, size in lagging),
            lagging=tuple(str(row.name) for row, _ in lagging),
            not_archived=tuple(str(row.name) for row in unknown),
        )


def _is_past(lineage: Lineage, inventory: SourceInventory, name: BinlogName) -> bool:
    """Whether the bucket should have all of it, by its writer's heartbeat or by later binlogs."""
    writer = inventory.writer
    if writer is not None and writer.lineage == lineage.id:
        return writer.durable is not None and name < writer.durable.binlog
    return name < max(inventory.objects(lineage.id).all_names, default=name)
