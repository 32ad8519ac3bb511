"""Writes a recovery as files for mysqlbinlog, instead of applying it.

Law: nothing is overwritten, and no link is followed: every file is made in a directory that was
made here, through that directory's descriptor. A file gets its name only when all of it is on the
disk. The manifest is the last one, so a directory without it is incomplete. What was written is
counted and compared with the plan; a difference is an error.
"""

import errno
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from binlog2s3.archive.codec import LINEAGE_ID
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.durable import sync_directory
from binlog2s3.errors import RecoveryError
from binlog2s3.formatting import iso_text, moment_text
from binlog2s3.output import clean
from binlog2s3.recover.extract import contradicts
from binlog2s3.recover.manifest import MANIFEST, Manifest, WrittenFile
from binlog2s3.recover.model import Checked, OnProgress, Plan, PlanPiece, ProgressReport, Stream
from binlog2s3.recover.view import About, Result, committed_empty, goal_text, stop_text

README = "README.txt"
SKIPPED = "skipped.sql"
PARTIAL = ".partial"

_TOOLS: Mapping[Flavour, tuple[str, str]] = {
    "mysql": ("mysqlbinlog", "mysql"),
    "mariadb": ("mariadb-binlog", "mariadb"),
}
_HALF_WAY: Mapping[str, tuple[str, ...]] = {
    "mysqlbinlog": (
        "If it stops half-way: with gtid_mode=ON fix the cause and run it again; what was applied",
        "is skipped. Without GTIDs restore the base backup and begin again.",
        "On a server without gtid_mode=ON add --skip-gtids to mysqlbinlog.",
    ),
    "mariadb-binlog": (
        "If it stops half-way: restore the base backup, fix the cause and begin again. A second",
        "run on the same server would apply again what was applied already.",
    ),
}
_RISK = (
    "DANGER: do not pipe mysqlbinlog into a client if there is another way.",
    "mysqlbinlog prints statements as text, and the client splits that text into statements again.",
    "They do not agree on where each string and comment ends. So anybody who may create a table on",
    "the source can write one statement whose second half the client executes as another one, with",
    "the rights of the user who runs it. Nothing in these files was checked for that.",
    "",
    "Instead, let a server replicate; no text is made then:",
    "    binlog2s3 pitr --target-socket ...   applies the same goal to a server, from the bucket",
    "    binlog2s3 serve --dir DIRECTORY ...  sends these files to a replica, without the bucket",
)


def to_directory(
    plan: Plan,
    about: About,
    stream: Stream,
    directory: Path,
    *,
    before: Gtids | None,
    on_progress: OnProgress = lambda _: None,
) -> Result:
    """Write a file for each piece, README.txt, and at last the manifest; the result.

    `before`: the GTIDs executed before the first piece, None if that is unknown. The directory must
    be empty, or not exist. Raises RecoveryError if it is not empty, if it cannot be written, or if
    the stream is not what the plan says.
    """
    began = time.monotonic()
    planned = (WrittenFile.of(piece, 0, 0) for piece in plan.pieces)
    manifest = _manifest(plan, about, before, planned)
    manifest.check_size()
    prepare(directory)
    done = _Written(plan=plan, on_progress=on_progress)
    files: list[str] = []
    written: list[WrittenFile] = []
    with ExitStack() as stack:
        top = stack.enter_context(_Folder(directory))
        inner: dict[str, _Folder] = {}
        for piece, checked in stream:
            name = f"{piece.lineage}/{piece.binlog}"
            if piece.lineage not in inner:
                inner[piece.lineage] = stack.enter_context(top.new(_lineage_of(piece)))
            parts = done.parts(piece, checked)
            size, crc64 = inner[piece.lineage].write(_binlog_of(piece), parts)
            written.append(WrittenFile.of(piece, size, crc64))
            files.append(name)
        if tuple(file.piece(plan.flavour) for file in written) != plan.pieces:
            raise RecoveryError("the binlogs that were written are not those of the plan")
        if (skipped := committed_empty(plan, about)) is not None:
            top.write(SKIPPED, _empty_transactions(skipped))
            files.append(SKIPPED)
        top.write(README, [_readme(plan, about, files, directory).encode()])
        top.write(MANIFEST, [replace(manifest, files=tuple(written)).written()])
    return Result(
        how="output-dir",
        where=str(directory),
        transactions=done.transactions,
        size=done.size,
        seconds=time.monotonic() - began,
        proved="the transactions and GTIDs that were written are those of the plan",
        files=tuple(files),
    )


def prepare(directory: Path) -> None:
    """Make the directory; RecoveryError if it is not empty, or cannot be written."""
    with _errors(directory):
        _make(directory)
        names = {path.name for path in directory.iterdir()}
    if not names:
        return
    if MANIFEST not in names and all(map(_is_ours, names)):
        raise RecoveryError(
            f"{directory} is not empty: it has what a run of pitr --output-dir left that did not "
            f"end (there is no {MANIFEST})",
            hint="remove it, or pass a directory that is empty or does not exist; nothing is "
            "overwritten",
        )
    first = MANIFEST if MANIFEST in names else min(names)
    raise RecoveryError(
        f"{directory} is not empty: {clean(first)} is in it",
        hint="pass a directory that is empty or does not exist; nothing is overwritten",
    )


def _is_ours(name: str) -> bool:
    """Whether a run of ours makes a file or directory of this name."""
    made = (README, SKIPPED, MANIFEST)
    return LINEAGE_ID.fullmatch(name) is not None or name.removesuffix(PARTIAL) in made


def _manifest(
    plan: Plan, about: About, before: Gtids | None, files: Iterable[WrittenFile]
) -> Manifest:
    """What is in a directory with these files."""
    return Manifest(
        source=about.source,
        flavour=plan.flavour,
        server_version=plan.server_version,
        lineage=plan.lineage,
        written_at=datetime.now(UTC),
        gtids_before=_text(_newest(before)),
        gtids_added=_text(plan.adds),
        gtids_skipped=plan.skipped_text or None,
        files=tuple(files),
    )


def _text(gtids: Gtids | None) -> str | None:
    return None if gtids is None else str(gtids)


def _newest(gtids: Gtids | None) -> Gtids | None:
    """A state as a replica has it: of MariaDB, the last GTID of each domain, if it is known."""
    if not isinstance(gtids, MariadbGtidList):
        return gtids
    newest = {domain: gtids.newest(domain) for domain in gtids.domains()}
    kept = (gtid for gtid in gtids.gtids() if newest[gtid[0]] in (None, gtid))
    return MariadbGtidList({(domain, server): number for domain, server, number in kept})


def _lineage_of(piece: PlanPiece) -> str:
    """The name of a piece's directory."""
    if not LINEAGE_ID.fullmatch(piece.lineage):
        raise _no_name(piece.lineage)
    return piece.lineage


def _binlog_of(piece: PlanPiece) -> str:
    """The name of a piece's file."""
    try:
        return str(BinlogName.parse(str(piece.binlog)))
    except ValueError:
        raise _no_name(str(piece.binlog)) from None


def _no_name(text: str) -> RecoveryError:
    return RecoveryError(
        f"the plan has the invalid name {text!r:.100}",
        hint="was the bucket changed by hand? `binlog2s3 verify` names what is wrong",
    )


# What passes


@dataclass(slots=True, kw_only=True)
class _Written:
    """What was written so far: `transactions`, and `size` bytes of binlog without the heads."""

    plan: Plan
    on_progress: OnProgress
    transactions: int = 0
    size: int = 0

    def parts(self, piece: PlanPiece, checked: Iterator[Checked]) -> Iterator[bytes]:
        """The bytes of a piece. Raises RecoveryError at its end if they are not all of it.

        Which transactions they are is known to be right: `extract` has compared them.
        """
        end = (self.transactions + piece.transactions, self.size + piece.size)
        commit_us = None
        for number, part in enumerate(checked):
            yield part.data
            self.transactions += len(part.done)
            if number:  # the first one is the head: magic and format event
                self.size += len(part.data)
            if part.done:
                commit_us = part.done[-1].commit_us
            self.on_progress(
                ProgressReport(
                    size=self.size,
                    of_size=self.plan.size,
                    transactions=self.transactions,
                    of_transactions=self.plan.transactions,
                    commit_us=commit_us,
                )
            )
        if (self.transactions, self.size) != end:
            raise contradicts(piece, "more of it came, or less")


# Files


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        first = "free some space, then " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise RecoveryError(
            f"cannot write {path}: {(error.strerror or str(error)).lower()}",
            hint=f"{first}pass a directory that is empty or does not exist",
        ) from error


def _make(directory: Path) -> None:
    """Make a directory that survives a crash; a new one is for this user only."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    for path in missing:
        sync_directory(path.parent)


class _Folder:
    """A directory that is written through its descriptor, even if its path changes later."""

    def __init__(self, path: Path, parent: int | None = None) -> None:
        """Open it; by its last name only if the parent's descriptor is given."""
        self._path = path
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        with _errors(path):
            if parent is None:
                self._descriptor = os.open(path, flags)
            else:
                self._descriptor = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def new(self, name: str) -> "_Folder":
        """A new directory in it; RecoveryError if the name exists."""
        with _errors(self._path / name):
            os.mkdir(name, mode=0o700, dir_fd=self._descriptor)
            os.fsync(self._descriptor)
        return _Folder(self._path / name, self._descriptor)

    def write(self, name: str, parts: Iterable[bytes]) -> tuple[int, int]:
        """Write a file that gets its name when all of it is on the disk; its size and CRC64NVME.

        Errors of the file are RecoveryErrors; what `parts` raises is raised unchanged.
        """
        size, crc64 = 0, 0
        folder, partial, path = self._descriptor, name + PARTIAL, self._path / (name + PARTIAL)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _errors(path):
            descriptor = os.open(partial, flags, 0o600, dir_fd=folder)
        try:
            try:
                for part in parts:
                    with _errors(path):
                        _put(descriptor, part)
                    size, crc64 = size + len(part), crc64nvme(part, crc64)
                with _errors(path):
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with _errors(self._path / name):
                self._must_lack(name)
                os.rename(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
                os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial, dir_fd=folder)
            raise
        return size, crc64

    def _must_lack(self, name: str) -> None:
        """Raise if the name exists: a rename would replace the file."""
        with suppress(FileNotFoundError):
            os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _put(descriptor: int, data: bytes) -> None:
    """Write all of it: a single write may be short."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _empty_transactions(gtids: GtidSet) -> Iterator[bytes]:
    """SQL that commits these GTIDs empty."""
    for gtid in gtids.each():
        yield f"SET GTID_NEXT = '{gtid}'; BEGIN; COMMIT;\n".encode()
    yield b"SET GTID_NEXT = 'AUTOMATIC';\n"


def _readme(plan: Plan, about: About, files: list[str], directory: Path) -> str:
    tool, client = _TOOLS[plan.flavour]
    binlogs = [name for name in files if name != SKIPPED]
    lines = [
        f"Binlogs of {about.source}, for a point-in-time recovery",
        "",
        f"written      {moment_text(datetime.now(UTC))} by binlog2s3, from {about.archive}",
        f"server       {plan.flavour} {plan.server_version}",
        f"lineage      {plan.lineage}",
        f"from         {_from_text(plan, about)}",
        f"goal         {goal_text(plan.goal)}",
        f"to           {stop_text(plan)}",
        f"transactions {plan.transactions} in {plan.size} bytes",
    ]
    if plan.before is not None:
        lines.append(f"needs        {plan.before or 'no GTIDs'}")
    if plan.adds:
        lines.append(f"GTIDs        {plan.adds}")
    if plan.skipped:
        lines.append(f"skipped      {plan.skipped_text}")
    last = max((piece.greatest_commit_us or 0 for piece in plan.pieces), default=0)
    if last:
        lines.append(f"last commit  {iso_text(last)}")
    lines += [f"warning      {warning}" for warning in plan.warnings]
    lines = [*map(clean, lines), "", *_how_to(directory, tool, client, binlogs)]
    if SKIPPED in files:
        lines += [
            "",
            "Then commit the skipped transactions empty, so that no replica fetches them again:",
            "",
            f"    {client} < {SKIPPED}",
        ]
    elif plan.skipped:
        lines += ["", "The GTIDs of the skipped transactions stay unused."]
    return "\n".join(lines) + "\n"


def _from_text(plan: Plan, about: About) -> str:
    if not plan.pieces:
        return "nothing to apply"
    first = plan.pieces[0]
    return f"{first.binlog}:{first.begin}" + (f" ({about.start})" if about.start else "")


def _how_to(directory: Path, tool: str, client: str, binlogs: list[str]) -> list[str]:
    if not binlogs:
        return ["There is nothing to apply: the base backup has all of it."]
    return [
        *_RISK,
        "",
        "Only if you trust everybody who could write on the source, apply them as text.",
        "If the base backup is a dump that was loaded since the server was started, put its",
        "accounts in force first, or statements on them fail or are lost:",
        f"{client} -e 'FLUSH LOCAL PRIVILEGES'",
        "",
        "To apply them, all in one run and in this order, with bash:",
        "",
        f"    cd {shlex.quote(str(directory.absolute()))}",
        "    set -o pipefail",
        f"    TZ=UTC {tool} --no-defaults \\",
        *(f"        {shlex.quote(name)} \\" for name in binlogs),
        f"    | {client} --binary-mode --max-allowed-packet=1G",
        "",
        "Each file begins with the server's own head (magic, format event), followed by exactly",
        "the transactions to apply; do not pass offsets. LOAD DATA in statement format needs",
        "--local-infile=1, which lets the text read files of this machine.",
        "",
        *_HALF_WAY[tool],
    ]
