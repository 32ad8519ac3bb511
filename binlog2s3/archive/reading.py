"""Reads one binlog from its first byte: checks its events and computes checksums. Pure.

Law: every entry of a binlog is made here, by the streamer and by `verify --repair`.
"""

from datetime import UTC, datetime

from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.documents import Entry, EntryEnd
from binlog2s3.archive.parts import BLOCK_SIZE, Digest, Grid
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.binlog.transactions import Commits
from binlog2s3.binlog.zone import SystemZone

ANY_GRID = Grid(5 << 20)


class BinlogReading:
    """One binlog as its bytes arrive. The first `size` bytes are checked.

    `grid` says of which parts the digest keeps checksums; readers that upload nothing need none.
    `leaves_out` is for the entry: see there. `time_zone`: the source's, if it was asked.
    `gtids_outside`: for a lineage that begins with it: see there.
    """

    def __init__(self, name: BinlogName, grid: Grid = ANY_GRID) -> None:
        self.name = name
        self.scanner = Scanner(stride=BLOCK_SIZE)
        self.digest = Digest(grid)
        self.commits = Commits()
        self.time_zone: SystemZone | None = None
        self.leaves_out: tuple[str, ...] | None = None
        self.gtids_outside = ""

    @property
    def size(self) -> int:
        """Where the last event ends that is complete and correct."""
        return self.scanner.event_end

    @property
    def end(self) -> FilePosition:
        """Where the last of these events ends."""
        return FilePosition(self.name, self.size)

    @property
    def begun(self) -> bool:
        """Whether the first events have been read, which say which history the binlog is of."""
        scanner = self.scanner
        return scanner.previous_gtids is not None or scanner.events > 1

    @property
    def created_at(self) -> datetime:
        """When the server created this binlog, in whole seconds. Call it once it has `begun`."""
        return datetime.fromtimestamp(self.scanner.formats[0].timestamp, UTC)

    @property
    def started(self) -> bool:
        """Whether a start of the server began it, not a rotation. Call it once it has `begun`."""
        return self.scanner.formats[0].created > 0

    @property
    def next_binlog(self) -> BinlogName | None:
        """The binlog that the rotate event at the end names; None without one."""
        rotate = self.scanner.rotate
        return rotate.next_binlog if rotate is not None else None

    def gtids_before(self) -> Gtids | None:
        """The GTID set at the beginning of this binlog; None if the server keeps none."""
        return self.scanner.previous_gtids

    def gtids_after(self) -> Gtids | None:
        """The GTID set at `size`; None if it cannot be known."""
        return None if self.scanner.anonymous else self.scanner.gtids_at_end

    def feed(self, data: memoryview, received_us: int | None = None) -> None:
        """Take the next bytes. Raises DamageError; the bytes before the damage stay checked.

        `received_us`: when they had been received, at the latest; microseconds, UTC. Without it
        every commit time is credible.
        """
        if received_us is not None:
            self.scanner.received(received_us)
        try:
            self.scanner.feed(data)
        finally:
            rest = self._mark(data)
            firsts = self.scanner.completed
            for transaction in firsts:
                self.digest.note(transaction)
            if firsts:
                end, _ = self.scanner.last_transaction
                first_us = firsts[0].commit_us
                if received_us is not None:
                    first_us = min(first_us, received_us)
                self.commits.note(first_us, self.scanner.reached_us, end)
        self.digest.feed(rest)

    def _mark(self, data: memoryview) -> memoryview:
        """Digest up to the last event end, where a chunk can end; return the rest."""
        checked = max(0, self.size - self.digest.size)
        if checked:
            self.digest.feed(data[:checked])
            self.digest.set_mark()
        return data[checked:]

    def rewind(self) -> bool:
        """Forget everything after `size`, also damage. The next bytes begin there.

        Returns False and changes nothing if that is impossible: see `Scanner.rewind`.
        """
        if not self.scanner.rewind():
            return False
        self.digest.rewind()
        return True

    def entry(self, archived_at: datetime) -> Entry:
        """The entry of this binlog, which has been read to its end."""
        scanner, form, end = self.scanner, self.scanner.formats[0], self.entry_end()
        return Entry(
            name=self.name,
            size=end.size,
            crc64nvme=end.crc64nvme,
            format_event_time=self.created_at,
            server_id=form.server_id,
            least_commit_us=scanner.least_commit_us,
            greatest_commit_us=scanner.greatest_commit_us,
            reached_us=scanner.reached_us,
            commit_times="exact" if scanner.commit_exact else "seconds",
            gtid_set_before=end.gtid_set_before,
            gtid_set_added=end.gtid_set_added,
            transactions=scanner.transactions,
            anonymous_transactions=end.anonymous_transactions,
            events=scanner.events,
            formats=tuple(
                {"offset": f.offset, "server_version": f.server_version, "checksum": f.checksum}
                for f in scanner.formats
            ),
            blocks=self.digest.blocks(),
            end="rotate" if scanner.rotate else "stop" if scanner.stopped else "crash",
            next_binlog=end.next_binlog,
            archived_at=archived_at,
            damaged=tuple({"begin": first, "end": after} for first, after in scanner.damaged),
            gtids_go_back=scanner.gtids_go_back if scanner.flavour == "mariadb" else None,
            started=self.started,
            leaves_out=self.leaves_out,
            time_zone=self.time_zone,
        )

    def entry_end(self) -> EntryEnd:
        """The part of the entry that says how this binlog ends."""
        before = self.gtids_before()
        return EntryEnd(
            name=self.name,
            size=self.size,
            crc64nvme=Crc64(self.digest.crc64),
            gtid_set_before=str(before) if before is not None else "",
            gtid_set_added=str(self.scanner.gtids),
            anonymous_transactions=self.scanner.anonymous,
            next_binlog=self.next_binlog,
        )
