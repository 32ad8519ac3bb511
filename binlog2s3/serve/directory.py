"""A directory of binlogs, as `pitr --output-dir` writes it: what `serve --dir` sends.

Files are only read, and only regular files with a binlog's name; links are not followed. The
directory is complete: no more binlogs are expected.
"""

import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.fields import LINEAGE_ID
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.executed import executed
from binlog2s3.binlog.gtid import Flavour, Gtids
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner
from binlog2s3.errors import DamageError, RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.replication.feed import NotServedError
from binlog2s3.serve.model import Facts, ServedBinlog, View, view_of

_HEAD_MOST = 4 << 20  # a format event, and the GTIDs before the binlog
_README = "README.txt"


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

    def first_for(self, have: Gtids) -> tuple[ServedBinlog, int]:
        """The last file that begins with GTIDs which the replica has."""
        has = executed(have)
        found = None
        for number, one in enumerate(self._view.binlogs):
            if one.before is None and found is None:
                found = number  # it starts in the middle of its binlog, where the base backup ends
            elif one.before is not None and has.covers(one.before):
                found = number
        if found is None:
            missing = executed(self._view.binlogs[0].before or have).beyond(have)
            raise NotServedError(
                "the replica is missing GTIDs that were executed before these binlogs begin: "
                f"{gtids_text(missing)}"
            )
        return self._view.binlogs[found], 0

    def check_place(self, binlog: ServedBinlog, offset: int, *, is_replica: bool) -> None:
        """A directory has only one history."""

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
