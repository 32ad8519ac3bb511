"""A directory of binlogs, as `pitr --output-dir` writes it: what `serve --dir` sends.

Files are only read, and only regular files with a binlog's name; links are not followed. The
directory is complete: no more binlogs are expected.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.fields import LINEAGE_ID
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.events import CHECKSUM_SIZE, HEADER, EventType
from binlog2s3.binlog.executed import Gathering, executed
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.place import AddedGtids, NoPlaceError, StatePlaces, domain_of, places_of
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.binlog.walk import EventSplitter, wanted_types
from binlog2s3.errors import DamageError, RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.replication.events import gtid_of
from binlog2s3.replication.feed import MysqlHad, NotServedError
from binlog2s3.serve.model import (
    Beginning,
    Facts,
    NotThereError,
    ServedBinlog,
    View,
    beginning,
    view_of,
)

_HEAD_MOST = 4 << 20  # a format event, and the GTIDs before the binlog
_README = "README.txt"
_GTID_MOST = 1 << 10  # of a GTID event: so much of one is read


class Directory:
    """Implements `model.ServedHistory` for files. Raises RecoveryError if there are none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._paths: dict[tuple[str, BinlogName], Path] = {}
        self._heads: dict[tuple[str, BinlogName], Scanner] = {}
        binlogs = []
        for folder, path, name in _binlogs(directory):
            head = self._scanned(path)
            found = head.formats[0]
            lineage = Lineage(
                id=folder,
                source=directory.name,
                server_uuid="",
                flavour=found.flavour,
                server_version=found.server_version,
                first_binlog=name,
                first_binlog_time=datetime.fromtimestamp(found.timestamp, UTC),
                gtid_set="",
            )
            one = ServedBinlog(lineage=lineage, name=name, before=head.previous_gtids)
            self._paths[one.place], self._heads[one.place] = path, head
            binlogs.append(one)
        if not binlogs:
            raise RecoveryError(
                f"there is no binlog in {directory}",
                hint="pass a directory that `binlog2s3 pitr --output-dir` wrote",
            )
        flavours = {one.lineage.flavour for one in binlogs}
        if len(flavours) > 1:
            raise RecoveryError(f"{directory} has binlogs of MySQL and of MariaDB")
        if any(path.name.endswith(".partial") for path in directory.rglob("*.partial")):
            raise RecoveryError(
                f"{directory} is not complete: a file in it was not written to its end",
                hint="write the directory again with `binlog2s3 pitr --output-dir`",
            )
        self._view = view_of(1, tuple(binlogs), 0)
        self._reading = threading.Lock()
        self._walked: _FileLine | None = None

    @property
    def flavour(self) -> Flavour:
        """See `ServedHistory`."""
        return self._view.binlogs[-1].lineage.flavour

    @property
    def server_version(self) -> str:
        """See `ServedHistory`."""
        return self._view.binlogs[-1].lineage.server_version

    @property
    def name(self) -> str:
        """The directory's path."""
        return str(self._directory)

    @property
    def keeps_gtids(self) -> bool | None:
        """Whether its transactions have GTIDs; None if its first bytes do not show it."""
        last = self._heads[self._view.binlogs[-1].place]
        if last.transactions:
            return not last.anonymous
        return bool(last.previous_gtids) or None

    def newest_place(self) -> tuple[tuple[str, int], str]:
        """Always unknown: no client waits for more."""
        return ("", 0), ""

    def view(self) -> View:
        """All binlogs of the directory."""
        return self._view

    def wait(self, version: int, seconds: float) -> View:
        """The view; it never changes."""
        del version, seconds
        return self._view

    def look(self, seconds: float) -> bool:
        """True at once: there is no store to ask."""
        del seconds
        return True

    def first_for(self, have: Gtids) -> Beginning:
        """The last file that begins with GTIDs which the replica has."""
        binlogs = self._view.binlogs
        if isinstance(have, MariadbGtidList):
            return self._begin_at_place(have)
        found = None
        for number, one in enumerate(binlogs):
            if one.before is None and found is None:
                found = number  # it starts in the middle of its binlog, where the base backup ends
            elif isinstance(one.before, GtidSet) and one.before <= have:
                found = number
        if found is None:
            raise self._purged(have)
        return Beginning(binlog=binlogs[found], offset=0, had=MysqlHad(have))

    def _purged(self, have: Gtids) -> NotServedError:
        missing = executed(self._view.binlogs[0].before or have).beyond(have)
        return NotServedError(
            "the replica is missing GTIDs that were executed before these binlogs begin: "
            f"{gtids_text(missing)}"
        )

    def _begin_at_place(self, have: MariadbGtidList) -> Beginning:
        """Where a MariaDB replica begins: behind the place of its GTIDs."""
        try:
            places = places_of(self._line(), have, is_sure=True)
            if places.start is None:
                raise self._purged(have)
            return beginning(self._view.binlogs, self._before_all(places))
        except (NoPlaceError, NotThereError) as error:
            raise NotServedError(str(error)) from error

    def _before_all(self, places: StatePlaces) -> StatePlaces:
        """Take GTIDs that are not there as those of the base backup, if they can only be that.

        A first file that starts in the middle of its binlog does not say what comes before it. Then
        a lower number than all of the domain's is behind nothing of these files.
        """
        if self._view.binlogs[0].before is not None:
            return places
        least = self._line().least
        unknown = tuple(
            gtid
            for gtid in places.unknown
            if int(gtid.rpartition("-")[2]) >= least.get(domain_of(gtid), 0)
        )
        return replace(places, unknown=unknown)

    def _line(self) -> "_FileLine":
        """What the files' GTIDs are; reads all of them, once."""
        with self._reading:
            if self._walked is None:
                self._walked = _FileLine(self._view.binlogs, self._gtids_of)
            return self._walked

    def elsewhere(self, name: BinlogName, offset: int, *, is_here: bool) -> Sequence[str]:
        """None: a directory has only one history."""
        del name, offset, is_here
        return ()

    def facts(self, binlog: ServedBinlog) -> Facts:
        """The file's size; the GTIDs in it are not known."""
        return Facts(end=self._size(binlog), previous=binlog.before)

    def boundary(self, binlog: ServedBinlog, offset: int) -> int:
        """Always 0: an offset in the file may differ from that in the server's binlog."""
        del binlog, offset
        return 0

    def head(self, binlog: ServedBinlog, offset: int) -> bytes:
        """The file's format event."""
        del offset
        form = self._heads[binlog.place].formats[0]
        return bytes(self._read(binlog, form.offset, form.offset + form.size))

    def block(self, binlog: ServedBinlog, number: int, upto: int) -> memoryview:
        """The bytes of a block. Raises ArchiveError if the file cannot be read."""
        return memoryview(self._read(binlog, number * BLOCK_SIZE, upto))

    def newest(self, binlog: ServedBinlog, begin: int, end: int) -> list[bytes] | None:
        """Always None: nothing is kept in memory."""
        del binlog, begin, end
        return None

    def _gtids_of(self, binlog: ServedBinlog) -> Iterator[str]:
        """The GTIDs of a MariaDB's transactions in a file, in order."""
        trailer = CHECKSUM_SIZE if self._heads[binlog.place].formats[0].checksum == "crc32" else 0
        splitter = EventSplitter(most=_GTID_MOST, wanted=wanted_types(EventType.MARIADB_GTID))
        size = self._size(binlog)
        for begin in range(len(MAGIC), size, BLOCK_SIZE):
            data = self._read(binlog, begin, min(begin + BLOCK_SIZE, size))
            try:
                for part in splitter.feed(data):
                    if part.size:
                        _, kind, server_id, *_ = HEADER.unpack_from(part.data)
                        yield gtid_of(kind, server_id, part.data, trailer)
            except ValueError as error:
                raise RecoveryError(f"{self._paths[binlog.place]}: {error}") from error

    def _scanned(self, path: Path) -> Scanner:
        scanner = Scanner()
        data = _bytes(path, 0, _HEAD_MOST)
        try:
            scanner.feed(data)
        except DamageError as error:
            if not scanner.formats:
                raise RecoveryError(f"{path} is no binlog: {error}") from error
            # after a part that was left out, positions in events do not match the file's offsets
        if not scanner.formats:
            raise RecoveryError(f"{path} is no binlog: it does not begin with {MAGIC!r}")
        return scanner

    def _size(self, binlog: ServedBinlog) -> int:
        return self._paths[binlog.place].stat().st_size

    def _read(self, binlog: ServedBinlog, begin: int, end: int) -> bytes:
        return _bytes(self._paths[binlog.place], begin, end)


class _FileLine:
    """The files as a `place.GtidLine`.

    A transaction's number in its file stands for its end: behind a part that was left out, the
    positions in events are not offsets of the file.
    """

    def __init__(
        self, binlogs: Sequence[ServedBinlog], gtids_of: Callable[[ServedBinlog], Iterator[str]]
    ) -> None:
        self._binlogs = binlogs
        self._gtids_of = gtids_of
        self.least: dict[int, int] = {}
        """The least number of each domain."""
        self._added = [self._summed(one) for one in binlogs]

    def _summed(self, binlog: ServedBinlog) -> AddedGtids:
        found, count = Gathering("mariadb"), 0
        for gtid in self._gtids_of(binlog):
            found.add(gtid)
            count += 1
            domain, number = domain_of(gtid), int(gtid.rpartition("-")[2])
            self.least[domain] = min(number, self.least.get(domain, number))
        before, added = binlog.before, found.build()
        return AddedGtids(
            before=before if isinstance(before, MariadbGtidList) else None,
            added=added if isinstance(added, MariadbGtidList) else None,
            count=count,
        )

    def added_gtids(self) -> Sequence[AddedGtids]:
        """See `GtidLine`."""
        return self._added

    def leads_up(self, number: int) -> bool:
        """See `GtidLine`."""
        return number > 0

    def gtid_list(self, number: int) -> MariadbGtidList | None:
        """See `GtidLine`."""
        return self._added[number].before

    def gtid_transactions(self, number: int, near: str = "") -> Iterator[Transaction]:
        """See `GtidLine`."""
        del near
        for at, gtid in enumerate(self._gtids_of(self._binlogs[number]), 1):
            yield Transaction(
                begin=at - 1,
                end=at,
                gtid=gtid,
                commit_us=0,
                commit_exact=False,
                original_commit_us=None,
            )

    def spot_text(self, number: int, offset: int) -> str:
        """See `GtidLine`."""
        return f"transaction {offset} of {self._binlogs[number].name}"


def _bytes(path: Path, begin: int, end: int) -> bytes:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            return os.pread(number, end - begin, begin)
        finally:
            os.close(number)
    except OSError as error:
        raise RecoveryError(f"{path} cannot be read: {os.strerror(error.errno or 0)}") from error


def _binlogs(directory: Path) -> Iterator[tuple[str, Path, BinlogName]]:
    """Folder, path and name of each binlog, in the order of the history."""
    try:
        folders = [directory, *sorted(p for p in directory.iterdir() if p.is_dir())]
        for folder in folders:
            is_top = folder == directory
            if not is_top and not LINEAGE_ID.fullmatch(folder.name):
                continue
            found = []
            for path in folder.iterdir():
                if not stat.S_ISREG(path.lstat().st_mode):
                    continue
                try:
                    found.append((BinlogName.parse(path.name), path))
                except ValueError:
                    continue
            for name, path in sorted(found):
                yield "files" if is_top else folder.name, path, name
    except OSError as error:
        raise RecoveryError(
            f"{directory} cannot be read: {os.strerror(error.errno or 0)}"
        ) from error
