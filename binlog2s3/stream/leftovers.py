"""Deletes what is left of a binlog's upload once the archive has the binlog.

Law: chunks are deleted only if their bytes are in an archived object; a failure is logged and
nothing waits for it.
"""

from collections.abc import Callable
from functools import partial

from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import StoreError
from binlog2s3.log import Log
from binlog2s3.store.s3 import Store
from binlog2s3.stream.remote import abort_uploads, sweep
from binlog2s3.stream.upload_counts import Counts
from binlog2s3.workers import Workers

_log = Log("uploader")


class Leftovers:
    """The leftovers of one lineage's archived binlogs: chunks and unfinished uploads."""

    def __init__(
        self, store: Store, layout: Layout, lineage: str, workers: Workers, totals: Counts
    ) -> None:
        self._store = store
        self._layout = layout
        self._lineage = lineage
        self._workers = workers
        self._totals = totals
        self._archived: list[BinlogName] = []  # since the last audit
        self._archived_before: list[BinlogName] = []  # since the audit before that one

    def sweep(self, name: BinlogName) -> None:
        """Delete what is left of this binlog's upload."""
        self._submit(name, partial(sweep, self._store, self._layout, self._lineage, name))

    def note_archived(self, name: BinlogName) -> None:
        """Note that this binlog was archived now."""
        self._archived.append(name)

    def audit(self) -> None:
        """Abort the uploads of binlogs that were archived before the last audit, once for each.

        The store may perform a request long after it was made, so uploads can appear late.
        """
        for name in self._archived_before:
            key = self._layout.binlog(self._lineage, name)
            self._submit(name, partial(abort_uploads, self._store, key))
        self._archived_before, self._archived = self._archived, []

    def failed(self, name: BinlogName, error: StoreError) -> None:
        """Note that something was not deleted: the next audit tries it again."""
        self._totals.clean_up_error = str(error)
        _log.recurring("leftovers not deleted", binlog=name, error=error, hint=error.hint)

    def _submit(self, name: BinlogName, request: Callable[[], None]) -> None:
        def tidy() -> None:
            try:
                request()
            except StoreError as error:
                self.failed(name, error)
            else:
                self._totals.clean_up_error = ""

        self._workers.submit(name, tidy)
