"""Takes binlogs in: finds which history they are of, and judges which are closed.

Place in the flow: between the tailer, whose tracks it is given, and the uploader, which it opens
when the lineage is known.

Law: no byte is uploaded before it is known which lineage it belongs to, and that lineage is
described in the bucket.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Catalog, Lineage
from binlog2s3.errors import ArchiveError
from binlog2s3.log import Log
from binlog2s3.spool import Spool
from binlog2s3.start import Plan, describe
from binlog2s3.store import Store
from binlog2s3.tailer import Track
from binlog2s3.uploader import Uploader
from binlog2s3.watch import Watch
from binlog2s3.writer import Writer

_log = Log("intake")


class Intake:
    """Follows binlogs until they are closed. `lineage` and `uploader` are None until known."""

    def __init__(
        self,
        plan: Plan,
        *,
        store: Store,
        spool: Spool,
        writer: Writer,
        watch: Watch,
        open_uploader: Callable[[Lineage], Uploader],
    ) -> None:
        self._plan = plan
        self._store = store
        self._spool = spool
        self._writer = writer
        self._watch = watch
        self._open_uploader = open_uploader
        self._waiting: list[Track] = []  # until it is known which history they are of
        self._open: list[Track] = []  # not closed yet
        self._unsure: set[BinlogName] = set()
        self.lineage = plan.lineage
        self.uploader = open_uploader(plan.lineage) if plan.lineage else None

    def admit(self, track: Track) -> None:
        """Follow a binlog; it goes to the uploader when it is known which history it is of."""
        self._open.append(track)
        self._waiting.append(track)

    def judge(self) -> None:
        """Hand on what is known by now, and see which binlogs are closed."""
        while self._waiting and self._waiting[0].begun:
            track = self._waiting.pop(0)
            if self.uploader is None or self.lineage is None:
                self.lineage = self._found_lineage(track)
                self.uploader = self._open_uploader(self.lineage)
            _check_first(track, self.lineage)
            self.uploader.add(track)
        candidates = [t for t in self._open if t.closed or t.scanner.ended or t.next_in_run]
        listed = self._watch.listed() if candidates else {}
        for track in candidates:
            if track.judge(listed):
                self._open.remove(track)
                continue
            self._watch.list_again()
            if track.name not in self._unsure:
                self._unsure.add(track.name)
                _log.info("waiting to know that it is closed", binlog=track.name, size=track.size)

    def _found_lineage(self, track: Track) -> Lineage:
        """The source is new to the bucket: describe the history that begins with this binlog."""
        facts = self._plan.facts
        lineage = describe(facts, self._plan.layout.source, track)
        self._writer.look(self._store)
        lineage = self._decided_already(lineage) or self._put(lineage)
        for run in self._spool.runs():
            if run.facts.lineage is None and run.facts.server_uuid == facts.uuid:
                self._spool.note(replace(run, facts=replace(run.facts, lineage=lineage.id)))
        return lineage

    def _decided_already(self, lineage: Lineage) -> Lineage | None:
        """The same lineage, if another writer has described it since we looked."""
        for other in Catalog(self._store, self._plan.layout).lineages():
            begins = (other.server_uuid, other.first_binlog, other.first_binlog_time)
            if begins == (lineage.server_uuid, lineage.first_binlog, lineage.first_binlog_time):
                return other
        return None

    def _put(self, lineage: Lineage) -> Lineage:
        self._store.put(self._plan.layout.lineage(lineage.id), lineage.to_json())
        _log.info("new lineage", lineage=lineage.id, first_binlog=lineage.first_binlog)
        return lineage


def _check_first(track: Track, lineage: Lineage) -> None:
    """A lineage's first binlog, met again before it was archived, must still be the same."""
    if track.name != lineage.first_binlog:
        return
    begun = datetime.fromtimestamp(track.scanner.formats[0].timestamp, UTC)
    if begun != lineage.first_binlog_time:
        raise ArchiveError(
            f"the server's {track.name} was begun at {begun:%Y-%m-%d %H:%M:%SZ}, the one of "
            f"lineage {lineage.id} at {lineage.first_binlog_time:%Y-%m-%d %H:%M:%SZ}",
            hint="was the server reset or restored? stream it under a new --source",
        )
