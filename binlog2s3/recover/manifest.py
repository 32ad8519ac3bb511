"""The manifest of a directory that `pitr --output-dir` wrote: which binlogs, in which order. Pure.

docs/reference/pitr.md describes it. It is written last, so a directory without it is incomplete.

Law: it is data that somebody may have changed. What it names are ids of lineages and names of
binlogs, never paths; what is not as its format says is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import Any, ClassVar, Self, get_args

from binlog2s3.archive.fields import (
    FORMAT,
    count,
    each,
    gtids,
    lineage_name,
    mapping,
    moment,
    or_none,
    parse,
    printable,
    reading,
    render,
    source_name,
    text,
)
from binlog2s3.binlog import gtid
from binlog2s3.binlog.checksum import crc64_from_hex, crc64_hex
from binlog2s3.binlog.gtid import Flavour, Gtids, empty, joined
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import iso_text, us_of
from binlog2s3.recover.document import piece_document
from binlog2s3.recover.model import PlanPiece

MANIFEST = "manifest.json"
AGAIN = "write the directory again with `binlog2s3 pitr --output-dir`, into another one"
"""The hint for a directory that is not as its manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One binlog in the directory: its head and the bytes of `piece`.

    `size` bytes with the CRC64NVME `crc64`.
    """

    piece: PlanPiece
    size: int
    crc64: int

    @property
    def name(self) -> str:
        """Where it is in the directory: `LINEAGE/BINLOG`."""
        return f"{self.piece.lineage}/{self.piece.binlog}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in the directory: `files` in the order of the plan.

    `lineage`: the last one of the history. `before`: the GTIDs executed before the first file, None
    if the history does not tell. `added`: those in the files. `skipped`: those that were left out
    on request, as text.
    """

    source: str
    flavour: Flavour
    server_version: str
    lineage: str
    written_at: datetime
    before: Gtids | None
    added: Gtids | None
    skipped: str
    files: tuple[WrittenFile, ...]

    MOST: ClassVar[int] = 16 << 20
    """Bytes of the document."""

    def befores(self) -> Iterator[Gtids | None]:
        """The GTIDs executed before each file, None where that is unknown."""
        before = self.before
        for one in self.files:
            yield before
            before = joined(before, one.piece.gtids)

    def to_json(self) -> bytes:
        """The document. Raises RecoveryError if it is larger than may be read again."""
        found = render(
            {
                "format": FORMAT,
                "source": self.source,
                "flavour": self.flavour,
                "server_version": self.server_version,
                "lineage": self.lineage,
                "written_at": iso_text(self.written_at),
                "gtids_before": None if self.before is None else str(self.before),
                "gtids_added": None if self.added is None else str(self.added),
                "gtids_skipped": self.skipped or None,
                "files": [
                    {
                        **piece_document(one.piece),
                        "size": one.size,
                        "crc64nvme": crc64_hex(one.crc64),
                    }
                    for one in self.files
                ],
            }
        )
        if len(found) > self.MOST:
            raise RecoveryError(
                f"the manifest of {len(self.files)} binlogs has {len(found)} bytes, more than "
                f"{self.MOST}",
                hint="recover in several steps, each to a later goal",
            )
        return found

    def check_size(self) -> None:
        """Raise RecoveryError if the manifest will be too large, whatever the files' sizes are."""
        most = tuple(replace(one, size=one.piece.end) for one in self.files)
        replace(self, files=most).to_json()

    @classmethod
    def from_json(cls, data: bytes, path: str) -> Self:
        """Read it. Raises RecoveryError, which names the path, if it is none."""
        try:
            document = parse(data, path, cls.MOST)
            with reading(path):
                return cls._of(document)
        except ArchiveError as error:
            raise RecoveryError(str(error), hint=AGAIN) from error

    @classmethod
    def _of(cls, document: dict[str, Any]) -> Self:
        flavour = document["flavour"]
        if flavour not in get_args(Flavour):
            raise ValueError(f"{flavour!r:.40} is not a flavour")
        found = cls(
            source=source_name(document["source"]),
            flavour=flavour,
            server_version=text(document["server_version"]),
            lineage=lineage_name(document["lineage"]),
            written_at=moment(document["written_at"]),
            before=_gtids(document["gtids_before"], flavour),
            added=_gtids(document["gtids_added"], flavour),
            skipped=or_none(printable, document["gtids_skipped"]) or "",
            files=each(lambda one: _file(mapping(one), flavour), document["files"]),
        )
        names = [one.name for one in found.files]
        if len(set(names)) < len(names):
            raise ValueError("a binlog is there twice")
        return found


def _gtids(value: Any, flavour: Flavour) -> Gtids | None:
    found = or_none(gtids, value)
    return None if found is None else gtid.parse(found, flavour)


def _file(document: Any, flavour: Flavour) -> WrittenFile:
    commit = or_none(moment, document["greatest_commit"])
    piece = PlanPiece(
        lineage=lineage_name(document["lineage"]),
        binlog=BinlogName.parse(document["binlog"]),
        begin=count(document["begin"]),
        end=count(document["end"]),
        left_out=each(_range, document["left_out"]),
        transactions=count(document["transactions"]),
        gtids=_gtids(document["gtids"], flavour) or empty(flavour),
        greatest_commit_us=None if commit is None else us_of(commit),
    )
    bounds = [piece.begin, *(at for pair in piece.left_out for at in pair), piece.end]
    size = count(document["size"])
    # the head of a piece that begins later in its binlog is shorter than what comes before
    if any(low > high for low, high in pairwise(bounds)) or size > piece.end:
        raise ValueError("its offsets contradict each other")
    return WrittenFile(piece=piece, size=size, crc64=crc64_from_hex(document["crc64nvme"]))


def _range(value: Any) -> tuple[int, int]:
    begin, end = each(count, value)
    return begin, end
