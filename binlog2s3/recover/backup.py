"""Where a base backup ends: finds, opens and decompresses the backup's files.

`backup_format` and `dump_header` interpret what the files say.

Law: a file that may be large is never held as a whole. For its position the first `LIMIT` bytes of
each file count, decompressed, and the last `TAIL` of an uncompressed dump; no more is ever in
memory, whatever a file claims to be. Compression is recognized by content, never by name. A file
that cannot be read, or does not say where the backup ends, is a `RecoveryError` that names it.
"""

import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal, cast

from binlog2s3.archive.backups import Backup
from binlog2s3.binlog.compression import unzstd
from binlog2s3.binlog.gtid import Flavour, parse
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.backup_format import (
    SINGLE_DATABASE,
    SOME_TABLES,
    BackupPoint,
    Tool,
    looks_like_binlog_info,
    looks_like_mydumper,
    parse_mydumper,
    parse_shell,
    parse_xtrabackup,
    refusal,
)
from binlog2s3.recover.dump_content import DumpContent, DumpReader
from binlog2s3.recover.dump_header import parse_dump
from binlog2s3.recover.model import Base, Start
from binlog2s3.workers import Advance, unseen

__all__ = ["LIMIT", "TAIL", "BackupPoint", "Tool", "read_backup"]

LIMIT = 8 << 20
"""The bytes at a file's beginning, decompressed, that must say where the backup ends."""
TAIL = 1 << 20
"""The bytes at the end of a dump: MariaDB's GTIDs, and the line that says it is complete."""
PIECE = 1 << 16
_NO_END = "nothing in it says that it is complete: make it without --compact and --skip-comments"
BLOCK = 1 << 20
"""The bytes of a dump that are read at once, to see what it contains."""

SHELL = "@.json"
SHELL_DONE = "@.done.json"
METADATA = "metadata"
PREFIXES = ("xtrabackup_", "mariadb_backup_")
COMPRESSED = (".zst", ".gz")
UNREAD = (".qp", ".lz4", ".xbcrypt", ".zst.xbcrypt", ".lz4.xbcrypt", ".qp.xbcrypt")

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE = b"\x2a\x4d\x18"  # after one byte of 0x50 to 0x5f; pzstd begins its files so
_FOREIGN = {
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ\x00": "compressed with xz",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"qpress10": "compressed with qpress",
    b"PK\x03\x04": "a zip archive",
    b"XBSTCK01": "an xbstream: unpack it; the file with the position is one of its last",
    b"\xfebin": "a binlog",
    b"<?xml": "XML",
    b"\xff\xfe": "UTF-16, as PowerShell writes it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _FileText:
    """How a file begins, and how it ends if that can be read without reading everything."""

    begin: str
    whole: bool
    tail: str | None = None


def start_of_backup(
    path: Path, point: BackupPoint, flavour: Flavour
) -> tuple[Start, str, tuple[str, ...]]:
    """Where a recovery from the base backup at `path` starts, the backup in words, its warnings.

    Raises RecoveryError if it is of a server of the other flavour.
    """
    server = f" of server {point.server_uuid}" if point.server_uuid else ""
    start = start_at(point, flavour, str(path))
    if start.base is not None:
        base = replace(start.base, sets_gtids=point.sets_gtids, innodb=point.innodb)
        start = replace(start, base=base)
    return (
        start,
        f"the {point.tool} backup {path}{server}",
        tuple(f"{path}: {warning}" for warning in point.warnings),
    )


def start_of_gtids(text: str, flavour: Flavour) -> Start:
    """Where a recovery starts from a base backup that has these GTIDs.

    Raises RecoveryError if they are not GTIDs of the history's flavour.
    """
    try:
        gtids = parse(text, flavour)
    except ValueError as error:
        raise RecoveryError(
            f"the history is {flavour}'s and needs GTIDs of {flavour}: {error}",
            hint="is --source the right one?",
        ) from None
    return Start(gtids=gtids, base=Base(gtids=gtids, said_by="--from-gtid-set"))


def start_of_registered(backup: Backup, flavour: Flavour) -> Start:
    """Where a recovery from a registered backup starts. Raises RecoveryError as the others do."""
    start = start_at(backup, flavour, backup.name)
    base = replace(start.base, said_by=backup.name) if start.base is not None else None
    return replace(start, lineage=backup.lineage, base=base)


def start_at(point: BackupPoint | Backup, flavour: Flavour, name: str) -> Start:
    """Where a recovery starts from the backup of this name. Raises RecoveryError.

    GTIDs name transactions on every server; a position only on the server that was dumped.
    """
    if point.flavour not in (None, flavour):
        raise RecoveryError(
            f"the backup is of a {point.flavour} server, the history is {flavour}'s",
            hint="is --source the right one?",
        )
    position = point.ends_at
    if point.gtid_set is not None:
        gtids = start_of_gtids(point.gtid_set, flavour).gtids
        return Start(gtids=gtids, base=Base(gtids=gtids, position=position))
    if position is None:
        raise RecoveryError(
            f"{name} has neither GTIDs nor a position",
            hint="say where the backup ends: --from-gtid-set, or, for pitr, --from-binlog and "
            "--from-position",
        )
    server = (point.server_uuid or "") if flavour == "mysql" else ""  # MariaDB has no server_uuid
    return Start(position=position, server=server, base=Base(position=position))


def read_backup(path: Path) -> BackupPoint:
    """Where the base backup at `path` ends; its directory, or the file in it that says so.

    Raises RecoveryError with a hint what to pass instead.
    """
    if stat.S_ISDIR(_mode(path)):
        return _read_directory(path)
    if _is_binlog_info(path.name):
        return _xtrabackup(path.parent, path)
    return _shell(path) if path.name == SHELL else _read_file(path)


def examined(path: Path, advance: Advance = unseen) -> tuple[BackupPoint, DumpContent | None]:
    """Where the base backup at `path` ends, and all that is wrong with it; what a dump in SQL has.

    All of a dump is read, in blocks; of other backups, what `read_backup` reads. `advance` gets the
    bytes of the file that were read, and all. Raises RecoveryError.
    """
    point = read_backup(path)
    if point.tool not in ("mysqldump", "mariadb-dump"):
        return point, None
    reader = DumpReader()
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for block in _blocks(path, file):
                reader.feed(block.replace(b"\r\n", b"\n"))
                advance(file.tell(), size)
    except OSError as error:
        raise _unreadable(path, error) from None
    content = reader.end()
    return _with_content(point, content), content


def _with_content(point: BackupPoint, content: DumpContent) -> BackupPoint:
    """The point with what a dump has, and with what is wrong with that."""
    defects, warnings = tuple(dict.fromkeys((*point.defects, *content.defects))), point.warnings
    if content.ends is None:
        warnings += ("it has no comments that could say whether it is complete",)
    warnings += content.doubts
    is_doubtful = point.is_doubtful or bool(content.doubts)
    is_sure = content.ends is True and content.is_whole and not is_doubtful
    return replace(point, defects=defects, warnings=warnings, checked=is_sure and not defects)


class StreamedDump:
    """A dump that goes by, plain: `feed` each block, then `end`. It is read as `examined` reads.

    One that does not say that it is complete is not taken: whoever makes it can have it say so.
    """

    def __init__(self) -> None:
        self._reader = DumpReader()
        self._begin = bytearray()
        self._tail = bytearray()

    def feed(self, block: bytes) -> None:
        """Read on."""
        self._reader.feed(block.replace(b"\r\n", b"\n"))
        if len(self._begin) <= LIMIT:
            self._begin += block[: LIMIT + 1 - len(self._begin)]
        self._tail += block
        del self._tail[:-TAIL]

    def end(self, name: str) -> BackupPoint:
        """Where it ends, and what is wrong with it. Raises RecoveryError if it does not say."""
        whole = len(self._begin) <= LIMIT
        begin, tail = _decoded(bytes(self._begin[:LIMIT])), _decoded(bytes(self._tail))
        point, content = parse_dump(name, begin, tail, whole=whole), self._reader.end()
        if content.ends is None:
            point = replace(point, defects=(*point.defects, _NO_END))
        return _with_content(point, content)


def refuse_defects(
    path: Path, defects: Sequence[str], hint: str, *, only_tables: bool = False
) -> None:
    """Raise RecoveryError if a base backup has these defects.

    `only_tables`: it need not have others than those that are recovered.
    """
    if only_tables:
        defects = [
            defect for defect in defects if not defect.startswith((SINGLE_DATABASE, SOME_TABLES))
        ]
    if defects:
        what = "; ".join(defects)
        raise RecoveryError(f"{path} is no base backup of the whole server: {what}", hint=hint)


def _blocks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """A whole file, decompressed, in blocks; of one that was cut off, what is there."""
    magic = file.read(16)
    file.seek(0)
    kind = _compression(magic)
    if kind is None:
        while block := file.read(BLOCK):
            yield block
        return
    gathered = bytearray()
    try:
        for piece in (_gunzip if kind == "gzip" else unzstd)(file):
            gathered += piece
            if len(gathered) >= BLOCK:
                yield bytes(gathered)
                gathered.clear()
    except (zlib.error, ValueError) as error:
        raise refusal(str(path), f"it cannot be decompressed: {str(error).lower()}") from None
    yield bytes(gathered)


def _compression(magic: bytes) -> Literal["gzip", "zstd"] | None:
    """How a file is compressed, by its first bytes."""
    if magic.startswith(_GZIP):
        return "gzip"
    is_zstd = magic.startswith(_ZSTD) or magic[1:4] == _ZSTD_SKIPPABLE
    return "zstd" if is_zstd else None


def _read_file(path: Path) -> BackupPoint:
    """A file of any name, by its content."""
    text = _read(path)
    if text.begin.lstrip()[:1] == "{":
        return parse_shell(str(path), text.begin, _done(path))
    if looks_like_mydumper(text.begin):
        return parse_mydumper(str(path), text.begin, whole=text.whole)
    if looks_like_binlog_info(text.begin):
        return parse_xtrabackup(str(path), text.begin)
    return parse_dump(str(path), text.begin, text.tail, whole=text.whole)


def _read_directory(directory: Path) -> BackupPoint:
    """A directory, by the file in it that only one tool makes."""
    shell, metadata = directory / SHELL, directory / METADATA
    infos = [found for prefix in PREFIXES if (found := _find(directory, f"{prefix}binlog_info"))]
    kinds = {
        "MySQL Shell": _there(shell),
        "mydumper": _there(metadata),
        "xtrabackup": bool(infos),
    }
    several = [kind for kind, there in kinds.items() if there]
    if len(several) > 1:
        raise refusal(str(directory), f"it holds backups by {' and '.join(several)}: name the file")
    if kinds["MySQL Shell"]:
        return _shell(shell)
    if kinds["mydumper"]:
        text = _read(metadata)
        return parse_mydumper(str(metadata), text.begin, whole=text.whole)
    if infos:
        points = [_xtrabackup(directory, info) for info in infos]
        if len({(point.ends_at, point.gtid_set) for point in points}) > 1:
            names = " and ".join(info.name for info in infos)
            raise refusal(str(directory), f"it contradicts itself: {names} differ")
        return points[-1]
    raise refusal(str(directory), _why_unknown(directory))


def _why_unknown(directory: Path) -> str:
    """What a directory is that has no file that says where the backup ends."""
    if _there(directory / f"{METADATA}.partial"):
        return "the dump by mydumper did not finish: there is only metadata.partial"
    for prefix in PREFIXES:
        for ending in UNREAD:
            name = f"{prefix}binlog_info{ending}"
            if _there(directory / name):
                return f"{name} cannot be read as it is: decompress or decrypt the backup first"
        if any(_find(directory, f"{prefix}{name}") for name in ("info", "checkpoints")):
            return (
                f"a backup without {prefix}binlog_info: the server had no binary log, or a part of "
                "the backup is missing"
            )
    return "not a known kind of backup: there is no xtrabackup_binlog_info, metadata or @.json"


def _shell(path: Path) -> BackupPoint:
    return parse_shell(str(path), _whole(path), _done(path))


def _done(path: Path) -> str | None:
    """The text of the file beside `@.json` that ends a dump; None if there is none."""
    done = path.parent / SHELL_DONE
    return _whole(done) if _there(done) else None


def _is_binlog_info(name: str) -> bool:
    names = [f"{prefix}binlog_info" for prefix in PREFIXES]
    return any(name in (known, *(known + ending for ending in COMPRESSED)) for known in names)


def _xtrabackup(directory: Path, binlog_info: Path) -> BackupPoint:
    """A backup by xtrabackup or mariabackup, with the files beside its position."""
    prefix = next(prefix for prefix in PREFIXES if binlog_info.name.startswith(prefix))
    names = (f"{prefix}info", f"{prefix}checkpoints", "backup-my.cnf")
    info, checkpoints, my_cnf = (_text_of(directory, name) for name in names)
    return parse_xtrabackup(
        str(binlog_info),
        _whole(binlog_info),
        info=info,
        my_cnf=my_cnf,
        checkpoints=checkpoints,
        innodb_pos=_text_of(directory, f"{prefix}binlog_pos_innodb"),
        of_replica=_find(directory, f"{prefix}slave_info") is not None,
        mariadb_names=prefix != PREFIXES[0],
    )


def _text_of(directory: Path, name: str) -> str:
    """The text of the file of this name, "" if there is none."""
    path = _find(directory, name)
    return _whole(path) if path else ""


def _find(directory: Path, name: str) -> Path | None:
    """The file of this name, plain or compressed; a plain one comes first."""
    names = [name, *(name + ending for ending in COMPRESSED)]
    return next((directory / name for name in names if _there(directory / name)), None)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> RecoveryError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return refusal(str(path), f"it cannot be read: {reason.lower()}")


def _whole(path: Path) -> str:
    """The text of a small file; raises if it is large."""
    text = _read(path)
    if not text.whole:
        raise refusal(str(path), f"it is larger than {LIMIT} bytes, which such a file never is")
    return text.begin


class _Beginning:
    """The first bytes of a file, so that a decompressor does not read on without output."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._left = limit

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        return data


def _read(path: Path) -> _FileText:
    """A file's beginning, decompressed, and its end if it is not compressed."""
    if not stat.S_ISREG(_mode(path)):
        raise refusal(str(path), "neither a file nor a directory")
    try:
        with path.open("rb") as file:
            magic = file.read(16)
            file.seek(0)
            for begin, what in _FOREIGN.items():
                if magic.startswith(begin):
                    raise refusal(
                        str(path), f"it is {what}; only plain files, gzip and zstd can be read"
                    )
            if (kind := _compression(magic)) is not None:
                data = _decompressed(path, file, gzipped=kind == "gzip")
                return _FileText(begin=_decoded(data[:LIMIT]), whole=_ended(file, data))
            data = file.read(LIMIT)
            whole = _ended(file, data)
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - TAIL))
            return _FileText(begin=_decoded(data), whole=whole, tail=_decoded(file.read(TAIL)))
    except OSError as error:
        raise _unreadable(path, error) from None


def _ended(file: BinaryIO, data: bytes) -> bool:
    """Whether these data are the whole file."""
    return len(data) <= LIMIT and not file.read(1)


def _decompressed(path: Path, file: BinaryIO, *, gzipped: bool) -> bytes:
    """The first bytes of a compressed file, one more than `LIMIT` if there are more.

    From a file that was cut off, what came before; the end of the text is missing then.
    """
    source = cast("BinaryIO", _Beginning(file, 2 * LIMIT))
    data = bytearray()
    try:
        for piece in (_gunzip if gzipped else unzstd)(source):
            data += piece
            if len(data) > LIMIT:
                break
    except (OSError, zlib.error, ValueError) as error:
        raise refusal(str(path), f"it cannot be decompressed: {str(error).lower()}") from None
    return bytes(data)


def _gunzip(source: BinaryIO) -> Iterator[bytes]:
    """The content of all members; `gzip` would return nothing of a file that was cut off."""
    member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    while piece := source.read(PIECE):
        out = b""
        while piece or len(out) == PIECE:
            out = member.decompress(piece, PIECE)
            yield out
            piece = member.unconsumed_tail
            if member.eof:
                piece = member.unused_data.lstrip(b"\0")
                member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _decoded(data: bytes) -> str:
    """Any bytes as text: what is not UTF-8 becomes something that no name or number has."""
    text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    return text.replace("\r\n", "\n")
