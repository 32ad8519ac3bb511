"""How far a source's history reaches in the bucket: from where, to where, what is missing. Pure.

Law: a time is reachable only if the bucket has every binlog from there to what is durable, and
every join on the way is exact. What a living writer has not reached yet is not missing.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from binlog2s3.archive.catalog import Contents
from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.history import (
    MissingBinlogs,
    cut_is_missing,
    extent,
    line_binlogs,
    line_of,
    missing_binlogs,
    origin_of,
)
from binlog2s3.archive.writers import Heartbeat, Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.status.model import Gap


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The lineages of a source with their contents, by id, and the last writer's object.

    `current` is the current lineage. `writing`: its writer is alive. `passed`: of a long lineage,
    the binlog at which its contents continue after the first ones; those between were not listed,
    and count as present.
    """

    lineages: Mapping[str, Lineage]
    contents: Mapping[str, Contents]
    current: str | None
    beat: Heartbeat | None
    writing: bool
    passed: Mapping[str, BinlogName] = field(default_factory=dict)

    @property
    def here(self) -> Contents | None:
        """What the current lineage has; None if it cannot be read."""
        return self.contents.get(self.current or "")

    def durable(self) -> Position | None:
        """What the writer said is durable, or more if binlogs and chunks continue from there."""
        contents, claimed = self.here, self.beat.durable if self.beat is not None else None
        if contents is None:
            return claimed
        if self.beat is None or self.beat.lineage != self.current:
            claimed = None
        if claimed is None and not contents.names:
            return None
        passed = self.passed.get(self.current or "")
        first = next((name for name in contents.names if passed is None or name >= passed), None)
        if claimed is None and first is None:
            return None
        start = (
            claimed.file_position
            if claimed is not None
            else FilePosition(first or contents.names[0], 0)
        )
        name, end = start.binlog, start
        for _ in range(len(contents.names)):
            if size := contents.size(name):
                end = max(end, FilePosition(name, size))
            if name not in contents.binlogs:
                break  # only its writer knows whether this is the complete binlog
            name = name.next()
        if end == start:
            return claimed
        return Position(binlog=end.binlog, offset=end.offset, gtid_set="")

    def gaps(self) -> list[Gap]:
        """What is missing within lineages, and between a lineage and its parent."""
        return [gap for id_ in self.lineages for _, gap in self._breaks(id_) if gap is not None]

    def begin(self) -> tuple[Lineage, Sequence[BinlogName]] | None:
        """Where the oldest binlog is from which nothing is missing up to `durable`.

        Its lineage, with the binlogs from there on; None if nothing can be recovered up to there.
        """
        durable = self.durable()
        if durable is None or self.current not in self.lineages:
            return None
        line, upto = line_of([*self.lineages.values()], self.current or ""), durable.binlog

        def names(id_: str) -> Sequence[BinlogName]:
            listed = self.contents[id_].names
            return [name for name in listed if name <= upto] if id_ == self.current else listed

        binlogs = [*line_binlogs(line, names, self._is_next)]
        if not binlogs or binlogs[-1].line_part < len(line.parts) - 1:
            return None
        before = {(id_, name) for id_ in self.lineages for name, _ in self._breaks(id_)}

        def broken(number: int) -> str:
            earlier, other = binlogs[number - 1 : number + 1]
            line_part = line.parts[earlier.line_part]
            if earlier.line_part != other.line_part:
                size = self.contents[line_part.lineage.id].size(earlier.name)
                return cut_is_missing(line_part, earlier.name, size)
            return "something is missing" if (line_part.lineage.id, other.name) in before else ""

        *_, last = extent(binlogs, broken)
        line_part = binlogs[last.first].line_part
        inside = (one for one in binlogs[last.first :] if one.line_part == line_part)
        return line.parts[line_part].lineage, [one.name for one in inside]

    def _is_next(self, id_: str, before: BinlogName, after: BinlogName) -> bool:
        """Whether nothing is missing between two binlogs; what was not listed counts as present."""
        passed = self.passed.get(id_)
        return after == before.next() or (passed is not None and before < passed <= after)

    def _breaks(self, id_: str) -> Iterator[tuple[BinlogName | None, Gap | None]]:
        """The binlogs of a lineage before which something is missing; and the gap, if it is one.

        A missing beginning is no gap if nothing older exists: then it was deleted in order.
        """
        lineage, contents = self.lineages[id_], self.contents[id_]
        writer = self.beat if self.writing else None
        origin = self._origin(lineage)
        has_older = origin is not None and self._has_older(origin)
        if origin is not None and has_older and not self._joins(origin):
            yield None, _gap(id_, f"continues from {origin.point}, which is missing")
        for missing in self._missing(lineage, contents.names, writer):
            behind = next(name for name in contents.names if name > missing.last)
            was_deleted = missing.first == lineage.begin and not has_older
            is_gap = not (was_deleted or missing.under_way)
            yield behind, _gap(id_, _missing_text(missing)) if is_gap else None
        for name, chunks in sorted(contents.open.items()):
            beyond = [chunk.begin for chunk in chunks if chunk.begin > chunks.end]
            if beyond:
                text = f"bytes {chunks.end} to {min(beyond)} of {name} are missing"
                end = FilePosition(name, chunks.end)
                under_way = (
                    writer is not None
                    and writer.lineage == id_
                    and (writer.durable is None or end >= writer.durable.file_position)
                )
                yield name.next(), None if under_way else _gap(id_, text)

    def _missing(
        self, lineage: Lineage, names: Sequence[BinlogName], writer: Heartbeat | None
    ) -> Iterator[MissingBinlogs]:
        """What is missing of what was listed."""
        passed = self.passed.get(lineage.id)
        for missing in missing_binlogs(lineage, names, writer):
            behind = next((name for name in names if name > missing.last), None)
            if passed is None or behind is None or not missing.first < passed <= behind:
                yield missing
            elif passed < behind:
                yield replace(missing, first=passed)

    def _origin(self, lineage: Lineage) -> Parent | None:
        """Where the bytes before a lineage are; None if exact joins lead to none in the bucket."""
        origin, _ = origin_of(lineage, self.lineages)
        if origin is None or origin.join != "exact" or origin.lineage not in self.lineages:
            return None
        return origin

    def _has_older(self, origin: Parent) -> bool:
        """Whether the bucket has any binlog up to there."""
        names, lineage = self.contents[origin.lineage].names, self.lineages[origin.lineage]
        if origin.binlog is None or lineage.is_below_floor(origin.binlog):
            return False
        return any(name <= origin.binlog for name in names)

    def _joins(self, origin: Parent) -> bool:
        """Whether the bucket has all bytes of the binlog that ends there."""
        before = self.contents[origin.lineage]
        if origin.binlog is None:
            return False
        cut = origin.binlog
        return cut in before.names and before.size(cut) >= origin.offset


def short_of(lineage: str, contents: Contents, beat: Heartbeat | None) -> Position | None:
    """What the writer of this lineage said is durable, if it is missing; else None."""
    if beat is None or beat.durable is None or beat.lineage != lineage:
        return None
    name, offset = beat.durable.file_position
    return beat.durable if contents.size(name) < offset else None


def _gap(lineage: str, text: str) -> Gap:
    return Gap(lineage=lineage, join="missing", text=text)


def _missing_text(missing: MissingBinlogs) -> str:
    if missing.count == 1:
        return f"{missing.first} is missing"
    return f"{missing.first} to {missing.last} ({missing.count} binlogs) are missing"
