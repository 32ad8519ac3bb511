"""What decides between versions of an object below `archive/` that differ: see `store.versions`.

Law: a document counts for what it says, and for when it was written. A binlog counts if its entry
describes it. An entry is written after the entry of the binlog before it, and each entry after its
lineage.json; below the first binlog that is kept, nothing is known of that order.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.codec import FORMAT, Document
from binlog2s3.archive.documents import Entry, EntryEnd, Lineage, LineageFloor
from binlog2s3.archive.drills import DrillResult
from binlog2s3.archive.layout import Layout, ParsedKey
from binlog2s3.archive.pages import Page, name_at
from binlog2s3.archive.writers import Retired, Turn
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.contract import Store
from binlog2s3.store.versions import Rule

_KINDS: Mapping[str, type[Document]] = {
    "turn": Turn,
    "backup": Backup,
    "drill": DrillResult,
    "retired": Retired,
    "lineage": Lineage,
    "floor": LineageFloor,
    "page": Page,
    "entry": Entry,
}
_ONCE = datetime(1970, 1, 1, tzinfo=UTC)


class Evidence:
    """What format 1 says of the keys below `archive`, which ends with "archive/"."""

    def __init__(self, store: Store, archive: str) -> None:
        self._store = store
        self._prefix = archive.removesuffix("archive/").removesuffix("/")

    def rule(self, key: str) -> Rule:
        parsed = self._parsed(key)
        if parsed is None:
            return "foreign"
        match parsed.kind:
            case "binlog" | "stored":
                return "binlog"
            case "page":
                return "cache"
            case "retired":
                return "rewritten"
        return "document"

    def most(self, key: str) -> int:
        parsed = self._parsed(key)
        return _KINDS[parsed.kind].MOST if parsed is not None and parsed.kind in _KINDS else 0

    def meaning(self, key: str, data: bytes) -> object | None:
        parsed = self._parsed(key)
        if parsed is None or parsed.kind not in _KINDS:
            return None
        try:
            found = _KINDS[parsed.kind].from_json(data, key)
        except ArchiveError:
            return data if _is_of_later(data) else None
        # these are written again after somebody deleted them
        if isinstance(found, Entry):
            return replace(found, archived_at=_ONCE, reached_us=None)
        if isinstance(found, LineageFloor):
            return replace(found, raised_at=_ONCE)
        return found

    def describes(self, key: str, data: bytes) -> Mapping[str, tuple[int, int]]:
        parsed = self._parsed(key)
        try:
            if parsed is not None and parsed.kind == "backup":
                return self._stored(key, Backup.from_json(data, key))
            if parsed is not None and parsed.kind == "entry" and parsed.binlog is not None:
                end, layout = EntryEnd.from_json(data, key), self._layout(key)
                return {layout.binlog(parsed.lineage, parsed.binlog): (end.size, end.crc64nvme)}
        except ArchiveError:
            pass
        return {}

    def described_by(self, key: str) -> str | None:
        parsed = self._parsed(key)
        if parsed is not None and parsed.kind == "stored":
            return self._layout(key).backup(parsed.id)
        if parsed is None or parsed.kind != "binlog" or parsed.binlog is None:
            return None
        return self._layout(key).entry(parsed.lineage, parsed.binlog)

    def _stored(self, key: str, backup: Backup) -> Mapping[str, tuple[int, int]]:
        """The objects of a stored backup, with size and CRC64NVME."""
        layout, stored = self._layout(key), backup.stored
        return {
            layout.stored(backup.id, number): (stored_object.size, stored_object.crc64)
            for number, stored_object in enumerate(stored.objects if stored is not None else (), 1)
        }

    def before(self, key: str) -> str | None:
        parsed = self._parsed(key)
        if parsed is None or parsed.kind != "entry" or parsed.binlog is None:
            return None
        layout, name = self._layout(key), parsed.binlog
        try:
            catalog = Catalog(self._store, layout)
            lineage = catalog.with_floor(read(self._store, layout.lineage(parsed.lineage), Lineage))
        except (ObjectMissingError, ArchiveError):
            return None
        if name == lineage.first_binlog:
            return layout.lineage(lineage.id)
        if name.number <= lineage.begin.number:
            return None
        before = name_at(lineage, name.number - 1)
        if self._chunks(layout, lineage.id, before):  # it was never closed: nothing wrote an entry
            return None
        return layout.entry(lineage.id, before)

    def is_growing(self, key: str) -> bool:
        parsed = self._parsed(key)
        if parsed is None or parsed.binlog is None:
            return False
        return self._chunks(self._layout(key), parsed.lineage, parsed.binlog)

    def _chunks(self, layout: Layout, lineage: str, name: BinlogName) -> bool:
        """Whether there are chunks of a binlog."""
        infos = self._store.list(layout.chunks(lineage, name))
        return any(layout.is_of("chunk", info.key) for info in infos)

    def _layout(self, key: str) -> Layout:
        """The keys of the source whose key this is."""
        source = key.removeprefix(Layout(self._prefix, "").sources).partition("/")[0]
        return Layout(self._prefix, source)

    def _parsed(self, key: str) -> ParsedKey | None:
        return self._layout(key).parsed(key)


def _is_of_later(data: bytes) -> bool:
    """Whether a document may be one that only a later version of the program can read."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    coded = {found.get(name, "none") for name in ("encoding", "encryption")
             if isinstance(found.get(name, "none"), str)}  # fmt: skip
    return coded != {"none"} or found.get("format", FORMAT) != FORMAT
