"""Deletes what is left of a binlog's upload once the archive has the binlog.

Place in the flow: each uploader has one; the requests run in the workers.

Law: chunks are deleted only if their bytes are in an archived object; a failure is logged and
nothing waits for it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import StoreError
from binlog2s3.log import Log
from binlog2s3.store.s3 import Store
from binlog2s3.stream.remote import abort_uploads, sweep
from binlog2s3.workers import Outcome, Workers

_log = Log("uploader")


@dataclass(frozen=True, slots=True)
class SweepToken:
    """Which leftovers a request deletes."""

    owner: "Leftovers"
    name: BinlogName


class Leftovers:
    """The leftovers of one lineage's archived binlogs: chunks and unfinished uploads."""

    def __init__(self, store: Store, layout: Layout, lineage: str, workers: Workers) -> None:
        self._store = store
        self._layout = layout
        self._lineage = lineage
        self._workers = workers
        self._archived: list[BinlogName] = []  # since the last audit
        self._archived_before: list[BinlogName] = []  # since the audit before that one

    def sweep(self, name: BinlogName) -> None:
        """Delete what is left of this binlog's upload."""
        self._submit(name, lambda: sweep(self._store, self._layout, self._lineage, name))

    def note_archived(self, name: BinlogName) -> None:
        """Note that this binlog was archived now."""
        self._archived.append(name)

    def audit(self) -> None:
        """Abort the uploads of binlogs that were archived before the last audit, once for each.

        The store may perform a request long after it was made, so uploads can appear late.
        """
        for name in self._archived_before:
            self._submit(name, self._aborting(name))
        self._archived_before, self._archived = self._archived, []

    def _aborting(self, name: BinlogName) -> Callable[[], None]:
        key = self._layout.binlog(self._lineage, name)
        return lambda: abort_uploads(self._store, key)

    def _submit(self, name: BinlogName, request: Callable[[], None]) -> None:
        self._workers.submit(SweepToken(self, name), request)

    def take(self, outcome: Outcome) -> None:
        """Take the outcome of a request. Raises what is not the store's error."""
        if isinstance(outcome.error, StoreError):
            assert isinstance(outcome.token, SweepToken)  # noqa: S101 - these alone are submitted
            _log.warning("leftovers not taken away", binlog=outcome.token.name, error=outcome.error)
        elif outcome.error is not None:
            raise outcome.error
