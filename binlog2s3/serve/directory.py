"""A directory of binlogs that is served: what `pitr --output-dir` wrote, or a server's own files.

Law: what `pitr` wrote is served only if its manifest is there and every file is as that says, and
in the manifest's order. A server's own files must follow each other by name and by GTIDs. The
directory is complete: no more binlogs are expected, and a client that has all of them waits.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from binlog2s3.archive.documents import Lineage, SourceServer
from binlog2s3.archive.facts import BinlogId, Facts, scanned
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.events import HEADER, EventType, FormatEvent
from binlog2s3.binlog.executed import AddedGtids, NoStateEndError, state_end
from binlog2s3.binlog.gtid import Flavour, Gathering, Gtids, GtidSet, MariadbGtidList, beyond
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.binlog.walk import EventSplitter, wanted_types
from binlog2s3.errors import DamageError, RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.log import Log
from binlog2s3.recover.manifest import AGAIN, MANIFEST, Manifest
from binlog2s3.recover.model import PlanPiece
from binlog2s3.replication.events import gtid_of
from binlog2s3.replication.feed import MysqlHad, NotServedError
from binlog2s3.serve.files import SealedFile
from binlog2s3.serve.model import (
    Beginning,
    NotThereError,
    ServedBinlog,
    View,
    beginning,
    view_of,
)

_HEAD_MOST = 4 << 20  # a format event, and the GTIDs before the binlog
_GTID_MOST = 1 << 10  # of a GTID event: so much of one is read
_STRIDE = 1 << 62  # no single transaction is asked for
_log = Log("serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One file, which begins with the format event `form`. `before`: the GTIDs executed before it.

    `piece`: what it has, if `pitr` wrote it. `keeps_gtids`: whether its transactions have GTIDs;
    None if that is not known.
    """

    lineage: str
    name: BinlogName
    file: SealedFile
    form: FormatEvent
    before: Gtids | None
    keeps_gtids: bool | None
    piece: PlanPiece | None = None


def recovered(directory: Path, stop: threading.Event) -> "Directory":
    """What `pitr --output-dir` wrote; reads and checks all of it.

    Raises RecoveryError if it is not complete or not as it was written, and when `stop` is set.
    """
    manifest = _manifest(directory)
    if not manifest.files:
        raise RecoveryError(
            f"there is no binlog in {directory}: there was nothing to recover",
            hint="the base backup has all of it",
        )
    files = [SealedFile(directory, written.name) for written in manifest.files]
    for file, written in zip(files, manifest.files, strict=True):
        if file.size != written.size:
            raise RecoveryError(
                f"{file.path} has {file.size} bytes, {MANIFEST} says {written.size}", hint=AGAIN
            )
    _log.info("checking the files", files=len(files), bytes=sum(file.size for file in files))

    def check_stop(_: int) -> None:
        if stop.is_set():
            raise RecoveryError(f"stopped before all of {directory} was checked")

    for file, written in zip(files, manifest.files, strict=True):
        if file.crc64(check_stop) != written.crc64nvme:
            raise RecoveryError(
                f"{file.path} is not what was written: its checksum differs from {MANIFEST}",
                hint=AGAIN,
            )
    parts = [
        _Part(
            lineage=piece.lineage,
            name=piece.binlog,
            file=file,
            form=_scanned(file).formats[0],
            before=before,
            keeps_gtids=bool(piece.gtids),
            piece=piece,
        )
        for file, (piece, before) in zip(files, manifest.pieces(), strict=True)
    ]
    if any(part.form.flavour != manifest.flavour for part in parts):
        raise RecoveryError(f"{directory} has binlogs that are not {manifest.flavour}'s")
    return Directory(directory, parts, stop)


def of_server(directory: Path, stop: threading.Event) -> "Directory":
    """A server's own binlogs, all of them in this directory. Raises RecoveryError."""
    parts = []
    for file, name in _binlogs(directory):
        head = _scanned(file)
        before, keeps = head.previous_gtids, None
        if head.transactions or head.previous_gtids:
            keeps = not head.anonymous
        part = _Part(
            lineage="files",
            name=name,
            file=file,
            form=head.formats[0],
            before=before,
            keeps_gtids=keeps,
        )
        parts.append(part)
    if not parts:
        raise RecoveryError(
            f"there is no binlog in {directory}",
            hint="pass a directory that has a server's binlogs; --dir serves what "
            "`binlog2s3 pitr --output-dir` wrote",
        )
    if len({part.form.flavour for part in parts}) > 1:
        raise RecoveryError(f"{directory} has binlogs of MySQL and of MariaDB")
    return Directory(directory, parts, stop)


def _manifest(directory: Path) -> Manifest:
    """The manifest of a directory; RecoveryError if there is none that is right."""
    try:
        names = {path.name for path in directory.iterdir()}
    except OSError as error:
        raise _unreadable(directory, error) from error
    if MANIFEST not in names:
        raise RecoveryError(
            f"{directory} is not complete: it has no {MANIFEST}, which `binlog2s3 pitr "
            "--output-dir` writes last",
            hint=f"{AGAIN}; --binlog-dir serves a server's own binlogs",
        )
    file = SealedFile(directory, MANIFEST)
    return Manifest.read(file.read(0, Manifest.MOST + 1), str(file.path))


class Directory:
    """Implements `model.ServedHistory` for files. `stop` ends what waits."""

    error = None

    def __init__(self, directory: Path, parts: Sequence[_Part], stop: threading.Event) -> None:
        self._directory = directory
        self._stop = stop
        self._parts: dict[BinlogId, _Part] = {}
        self._known: dict[BinlogId, Facts] = {}
        binlogs = []
        for part in parts:
            found = part.form
            lineage = Lineage(
                lineage=part.lineage,
                source=directory.name,
                server=SourceServer(uuid="", flavour=found.flavour, version=found.server_version),
                first_binlog=part.name,
                first_binlog_time=datetime.fromtimestamp(found.timestamp, UTC),
                gtid_set="",
                parent=None,
            )
            end = None if part.piece is None else part.piece.end
            binlog = ServedBinlog(lineage=lineage, name=part.name, end=end, before=part.before)
            self._parts[binlog.binlog_id] = part
            binlogs.append(binlog)
        self._view = view_of(1, tuple(binlogs), 0)
        self._reading = threading.Lock()
        self._walked: _FileLine | None = None

    @property
    def flavour(self) -> Flavour:
        return self._view.binlogs[-1].lineage.flavour

    @property
    def server_version(self) -> str:
        return self._view.binlogs[-1].lineage.server_version

    @property
    def name(self) -> str:
        """The directory's path."""
        return str(self._directory)

    @property
    def keeps_gtids(self) -> bool | None:
        """Whether its transactions have GTIDs; None if only some have, or if that is not known."""
        keep = {part.keeps_gtids for part in self._parts.values()} - {None}
        return keep.pop() if len(keep) == 1 else None

    def newest_position(self) -> tuple[tuple[str, int], str]:
        """Always unknown: no client waits for more."""
        return ("", 0), ""

    def view(self) -> View:
        """All binlogs of the directory."""
        return self._view

    def wait(self, version: int, seconds: float) -> View:
        """The view, which never changes, after so many seconds."""
        del version
        self._stop.wait(seconds)
        return self._view

    def look(self, seconds: float) -> bool:
        """True at once: there is no store to ask."""
        del seconds
        return True

    def first_for(self, have: Gtids) -> Beginning:
        """The last file before which nothing was executed that the replica does not have."""
        if isinstance(have, MariadbGtidList):
            return self._begin_at_state_end(have)
        if any(part.keeps_gtids is False for part in self._parts.values()):
            raise NotServedError("not all transactions have GTIDs: ask by file and position")
        binlogs = self._view.binlogs
        if binlogs[0].before is None:
            raise NotServedError(
                f"nothing tells which GTIDs were executed before {binlogs[0].name}: ask by file "
                "and position"
            )
        found = None
        for number, binlog in enumerate(binlogs):
            if not isinstance(binlog.before, GtidSet) or not binlog.before <= have:
                break
            found = number
        if found is None:
            raise self._purged(have)
        return Beginning(binlog=binlogs[found], offset=0, had=MysqlHad(have))

    def _purged(self, have: Gtids) -> NotServedError:
        missing = beyond(self._view.binlogs[0].before or have, have)
        return NotServedError(
            "the replica is missing GTIDs that were executed before these binlogs begin: "
            f"{gtids_text(missing)}"
        )

    def _begin_at_state_end(self, have: MariadbGtidList) -> Beginning:
        """Where a MariaDB replica begins: behind its GTIDs."""
        try:
            end = state_end(self._line(), have, is_sure=True)
            if end.start is None:
                raise self._purged(have)
            return beginning(self._view.binlogs, end)
        except (NoStateEndError, NotThereError) as error:
            raise NotServedError(str(error)) from error

    def _line(self) -> "_FileLine":
        """What the files' GTIDs are; reads all of them, once."""
        with self._reading:
            if self._walked is None:
                self._walked = _FileLine(self._view.binlogs, self._gtids_of)
            return self._walked

    def check_begin(self, binlog: ServedBinlog, offset: int, *, is_replica: bool) -> None:
        """See that a replica has what comes before the first file.

        At the beginning of a later one it may be, even if that begins later in its binlog.
        """
        part = self._part(binlog)
        if part.piece is None or not is_replica or binlog is not self._view.binlogs[0]:
            return
        if part.piece.begin > max(offset, part.form.offset + part.form.size):
            raise NotServedError(
                f"{binlog.name} is here from byte {part.piece.begin} on: a replica that has what "
                "comes before asks for that position"
            )

    def elsewhere(self, name: BinlogName, offset: int, *, is_here: bool) -> Sequence[str]:
        """None: a directory has only one history."""
        del name, offset, is_here
        return ()

    def known(self, binlog: ServedBinlog) -> Facts:
        """Up to where the file can be sent. A server's own file is read for it, once."""
        with self._reading:
            known = self._known.get(binlog.binlog_id)
            if known is None:
                part, is_last = self._part(binlog), binlog is self._view.binlogs[-1]
                known = self._known[binlog.binlog_id] = _known_of(binlog, part, is_last=is_last)
            return known

    def boundary(self, binlog: ServedBinlog, offset: int) -> int:
        """Always 0: an offset in the file may differ from that in the server's binlog."""
        del binlog, offset
        return 0

    def head(self, binlog: ServedBinlog, offset: int) -> bytes:
        """The file's format event."""
        del offset
        part = self._part(binlog)
        return part.file.read(part.form.offset, part.form.offset + part.form.size)

    def block(self, binlog: ServedBinlog, number: int, upto: int) -> memoryview:
        """The bytes of a block. Raises RecoveryError if the file cannot be read."""
        return memoryview(self._part(binlog).file.read(number * BLOCK_SIZE, upto))

    def newest(self, binlog: ServedBinlog, begin: int, end: int) -> list[bytes] | None:
        """Always None: nothing is kept in memory."""
        del binlog, begin, end
        return None

    def _part(self, binlog: ServedBinlog) -> _Part:
        return self._parts[binlog.binlog_id]

    def _gtids_of(self, binlog: ServedBinlog) -> Iterator[str]:
        """The GTIDs of a MariaDB's transactions in a file, in order."""
        part = self._part(binlog)
        splitter = EventSplitter(most=_GTID_MOST, wanted=wanted_types(EventType.MARIADB_GTID))
        begin = len(MAGIC)
        for block in part.file.blocks():
            try:
                for event in splitter.feed(memoryview(block)[begin:]):
                    if event.size:
                        _, kind, server_id, *_ = HEADER.unpack_from(event.data)
                        yield gtid_of(kind, server_id, event.data, part.form.trailer)
            except ValueError as error:
                raise RecoveryError(f"{part.file.path}: {error}") from error
            begin = 0


def _scanned(file: SealedFile) -> Scanner:
    """The first bytes of a file, read. RecoveryError if it is no binlog."""
    scanner = Scanner(stride=_STRIDE)
    try:
        scanner.feed(file.read(0, _HEAD_MOST))
    except DamageError as error:
        if not scanner.formats:
            raise RecoveryError(f"{file.path} is no binlog: {error}") from error
        # after a part that was left out, positions in events do not match the file's offsets
    if not scanner.formats:
        raise RecoveryError(f"{file.path} is no binlog: it does not begin with {MAGIC!r}")
    return scanner


def _known_of(binlog: ServedBinlog, part: _Part, *, is_last: bool) -> Facts:
    """What is sent of a file: of what `pitr` wrote, which was checked, all. RecoveryError."""
    size = part.file.size
    scanner = _scanned(part.file) if part.piece is not None else _whole_file(part, is_last=is_last)
    known = scanned(scanner, lineage=binlog.lineage, name=part.name, size=size, state="archived")
    if part.piece is None:
        return known
    # its first bytes show neither its end nor what was left out
    return replace(known, transaction_end=size, gtids_before=None, rotated=False)


def _whole_file(part: _Part, *, is_last: bool) -> Scanner:
    """Read a server's own file: whole transactions only. RecoveryError if it is damaged.

    The last one may end within a transaction. So may every one of MariaDB's, after a crash, and
    GTIDs tell whether that lost anything; MySQL shortens such a binlog when it starts again.
    """
    scanner = Scanner(stride=_STRIDE)
    for block in part.file.blocks():
        try:
            scanner.feed(block)
        except DamageError as error:
            raise RecoveryError(f"{part.file.path} is damaged: {error}") from error
    whole = scanner.transaction_end
    if scanner.flavour == "mysql" and not is_last and whole < part.file.size:
        raise RecoveryError(
            f"{part.file.path} is not complete: its transactions end at {whole}, and another "
            "binlog follows",
            hint="copy it again",
        )
    return scanner


class _FileLine:
    """The files as a `executed.GtidLine`.

    A transaction's number in its file stands for its end: behind a part that was left out, the
    positions in events are not offsets of the file.
    """

    def __init__(
        self, binlogs: Sequence[ServedBinlog], gtids_of: Callable[[ServedBinlog], Iterator[str]]
    ) -> None:
        self._binlogs = binlogs
        self._gtids_of = gtids_of
        self._added = [self._summed(binlog) for binlog in binlogs]

    def _summed(self, binlog: ServedBinlog) -> AddedGtids:
        found, count = Gathering("mariadb"), 0
        for gtid in self._gtids_of(binlog):
            found.add(gtid)
            count += 1
        return AddedGtids.of(binlog.before, found.build(), count)

    def added_gtids(self) -> Sequence[AddedGtids]:
        return self._added

    def leads_up(self, number: int) -> bool:
        return number > 0

    def gtid_list(self, number: int) -> MariadbGtidList | None:
        return self._added[number].before

    def gtid_transactions(
        self, number: int, gtids: Collection[str], near: str = ""
    ) -> Iterator[Transaction]:
        del gtids, near
        for at, gtid in enumerate(self._gtids_of(self._binlogs[number]), 1):
            yield Transaction(
                begin=at - 1,
                end=at,
                gtid=gtid,
                commit_us=0,
                commit_exact=False,
                original_commit_us=None,
            )

    def position_text(self, number: int, offset: int) -> str:
        return f"transaction {offset} of {self._binlogs[number].name}"


def _binlogs(directory: Path) -> Iterator[tuple[SealedFile, BinlogName]]:
    """A server's own binlogs, in their order. RecoveryError unless each follows the one before."""
    by_prefix: dict[str, list[BinlogName]] = {}
    try:
        for path in directory.iterdir():
            try:
                name = BinlogName.parse(path.name)
            except ValueError:
                continue
            by_prefix.setdefault(name.prefix, []).append(name)
    except OSError as error:
        raise _unreadable(directory, error) from error
    found: list[list[tuple[SealedFile, BinlogName]]] = []
    for names in by_prefix.values():
        files = [(SealedFile(directory, str(name)), name) for name in sorted(names)]
        if any(file.read(0, len(MAGIC)) == MAGIC for file, _ in files):  # other logs have numbers
            found.append(files)
    if len(found) > 1:
        prefixes = " and ".join(sorted(files[0][1].prefix for files in found))
        raise RecoveryError(
            f"{directory} has the binlogs {prefixes}: nothing tells which are served",
            hint="pass a directory that has the binlogs of one server, and no relay logs",
        )
    for files in found:
        for (_, name), (_, following) in pairwise(files):
            if following.number != name.number + 1:
                raise RecoveryError(
                    f"{directory} has {name} and {following}, and not what is between them",
                    hint="pass a directory that has all binlogs from the first one on",
                )
        yield from files


def _unreadable(directory: Path, error: OSError) -> RecoveryError:
    return RecoveryError(f"{directory} cannot be read: {os.strerror(error.errno or 0).lower()}")
