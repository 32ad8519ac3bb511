"""What is known of complete binlogs, and their blocks: no byte is passed on before its check."""

import threading
from collections import OrderedDict
from dataclasses import replace

from binlog2s3.archive.blocks import Blocks, Found
from binlog2s3.archive.catalog import Catalog
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.recover import one_binlog
from binlog2s3.serve.model import ServedBinlog

_KEPT = 64


class Binlogs:
    """Keeps what is known of the binlogs that clients asked for last. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, BinlogName], Found] = OrderedDict()
        self.blocks = Blocks(_not_looked_up, keep=0)

    def find(self, binlog: ServedBinlog, *, read_here: bool) -> Found | None:
        """What is known of a binlog. One without an entry is read once.

        `read_here`: `Tail` has read it; then None is returned if it has no entry.
        """
        with self._lock:
            if (found := self._found.get(binlog.place)) is not None:
                self._found.move_to_end(binlog.place)
                return found
        found = self.by_entry(binlog)
        if found is None:
            if read_here:
                return None
            readable = self._catalog.binlog(binlog.lineage, binlog.name)
            size = binlog.end or readable.size
            found = one_binlog.found_by_reading(binlog.lineage, binlog.name, readable, size, [])
        with self._lock:
            self._found[binlog.place] = found
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)
        return found

    def by_entry(self, binlog: ServedBinlog) -> Found | None:
        """An archived binlog as its entry describes it; None as long as it has none."""
        readable = self._catalog.binlog(binlog.lineage, binlog.name)
        if readable.state != "archived":
            return None
        try:
            entry = self._catalog.entry(binlog.lineage, binlog.name)
        except ObjectMissingError:
            return None
        entry.check_size(binlog.lineage.id, readable.size)
        found = one_binlog.found_from(entry, binlog.lineage, readable)
        if entry.end == "crash":
            end = one_binlog.last_transaction_end(self.blocks, found)
            found = replace(found, known=replace(found.known, transaction_end=end))
        return found


def _not_looked_up(lineage: str, name: BinlogName) -> Found:
    raise ArchiveError(f"{name} of {lineage} was not looked up")
