"""The manifest of a directory that `pitr --output-dir` wrote: which binlogs, in which order. Pure.

docs/reference/pitr.md describes it. It is written last, so a directory without it is incomplete.

Law: it is data that somebody may have changed. What it names are ids of lineages and names of
binlogs, never paths; what is not as its format says is an error.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar, Self

from binlog2s3.archive.codec import (
    Count,
    Crc64,
    Document,
    GtidText,
    LineageId,
    Moment,
    SourceName,
    Text,
)
from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import Flavour, Gtids, empty, joined
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import moment_of, us_of
from binlog2s3.recover.model import PlanPiece

MANIFEST = "manifest.json"
AGAIN = "write the directory again with `binlog2s3 pitr --output-dir`, into another one"
"""The hint for a directory that is not as its manifest says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """One binlog in the directory: its head and the bytes of a piece of the plan.

    The piece has `bytes` bytes, the file has `size`.
    """

    lineage: LineageId
    binlog: BinlogName
    begin: Count
    end: Count
    left_out: tuple[tuple[Count, Count], ...]
    bytes: Count
    transactions: Count
    gtids: GtidText | None
    greatest_commit: Moment | None
    size: Count
    crc64nvme: Crc64

    def __post_init__(self) -> None:
        bounds = [self.begin, *(at for pair in self.left_out for at in pair), self.end]
        # the head of a piece that begins later in its binlog is shorter than what comes before
        if any(low > high for low, high in pairwise(bounds)) or self.size > self.end:
            raise ValueError("its offsets contradict each other")

    @classmethod
    def of(cls, piece: PlanPiece, size: int, crc64: int) -> Self:
        """The file of this piece, which has so many bytes with this CRC64NVME."""
        us = piece.greatest_commit_us
        return cls(
            lineage=piece.lineage,
            binlog=piece.binlog,
            begin=piece.begin,
            end=piece.end,
            left_out=piece.left_out,
            bytes=piece.size,
            transactions=piece.transactions,
            gtids=str(piece.gtids) or None,
            greatest_commit=None if us is None else moment_of(us),
            size=size,
            crc64nvme=Crc64(crc64),
        )

    def piece(self, flavour: Flavour) -> PlanPiece:
        """The piece of the plan. Raises ValueError if its GTIDs are none of this flavour."""
        commit = self.greatest_commit
        return PlanPiece(
            lineage=self.lineage,
            binlog=self.binlog,
            begin=self.begin,
            end=self.end,
            left_out=self.left_out,
            transactions=self.transactions,
            gtids=_gtids(self.gtids, flavour) or empty(flavour),
            greatest_commit_us=None if commit is None else us_of(commit),
        )

    @property
    def name(self) -> str:
        """Where it is in the directory: `LINEAGE/BINLOG`."""
        return f"{self.lineage}/{self.binlog}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Document):
    """What is in the directory: `files` in the order of the plan.

    `lineage`: the last one of the history. `gtids_before`: those executed before the first file,
    None if the history does not tell. `gtids_added`: those in the files. `gtids_skipped`: those
    that were left out on request.
    """

    source: SourceName
    flavour: Flavour
    server_version: Text
    lineage: LineageId
    written_at: Moment
    gtids_before: GtidText | None
    gtids_added: GtidText | None
    gtids_skipped: str | None
    files: tuple[WrittenFile, ...]

    MOST: ClassVar[int] = 16 << 20

    def __post_init__(self) -> None:
        names = [file.name for file in self.files]
        if len(set(names)) < len(names):
            raise ValueError("a binlog is there twice")

    def pieces(self) -> Iterator[tuple[PlanPiece, Gtids | None]]:
        """The piece of each file, and the GTIDs executed before it, None where that is unknown."""
        before = _gtids(self.gtids_before, self.flavour)
        for file in self.files:
            piece = file.piece(self.flavour)
            yield piece, before
            before = joined(before, piece.gtids)

    def written(self) -> bytes:
        """The document. Raises RecoveryError if it is larger than may be read again."""
        data = self.to_json()
        if len(data) > self.MOST:
            raise RecoveryError(
                f"the manifest of {len(self.files)} binlogs has {len(data)} bytes, more than "
                f"{self.MOST}",
                hint="recover in several steps, each to a later goal",
            )
        return data

    def check_size(self) -> None:
        """Raise RecoveryError if the manifest will be too large, whatever the files' sizes are."""
        most = tuple(replace(file, size=file.end) for file in self.files)
        replace(self, files=most).written()

    @property
    def key_end(self) -> tuple[str, ...]:
        return (MANIFEST,)

    @classmethod
    def read(cls, data: bytes, path: str) -> Self:
        """Read it. Raises RecoveryError, which names the path, if it is none."""
        try:
            manifest = cls.from_json(data, path)
        except ArchiveError as error:
            raise RecoveryError(str(error), hint=AGAIN) from error
        try:
            _gtids(manifest.gtids_added, manifest.flavour)
            for _ in manifest.pieces():
                pass
        except ValueError as error:
            raise RecoveryError(f"{path}: {error!s:.200}", hint=AGAIN) from error
        return manifest


def _gtids(text: str | None, flavour: Flavour) -> Gtids | None:
    return None if text is None else gtid.parse(text, flavour)
