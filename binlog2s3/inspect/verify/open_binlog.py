"""Checks a binlog in chunks: whether they join, agree, and reach what its writer reported.

Place in the flow: `walk` calls it for a binlog that is not archived.

Law: chunks come and go meanwhile. What seems missing is listed again, and looked up in the archive,
before it is called missing. What the writer never reported as durable is not missing.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from binlog2s3.archive.blocks import Ahead
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunks, join
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.known import Known
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.checksum import crc64_hex, crc64_of_blocks
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ObjectMissingError
from binlog2s3.formatting import count_text
from binlog2s3.inspect.verify.report import Defect, Kind, RecordedGap
from binlog2s3.store.contract import Store

_LOOKS = 3


@dataclass(slots=True)
class ChunkCheck:
    """The result. `size` bytes can be read; `archived`: the binlog is in the archive by now."""

    size: int = 0
    archived: bool = False
    defects: list[Defect] = field(default_factory=list)
    gaps: list[RecordedGap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_chunks(
    store: Store,
    layout: Layout,
    lineage: Lineage,
    name: BinlogName,
    *,
    writer: Heartbeat | None,
    pause: Callable[[], object],
    is_last: bool,
    cut: bool,
) -> ChunkCheck:
    """List a binlog's chunks. `cut`: a later lineage limits how much of it counts."""
    catalog = Catalog(store, layout)
    wanted = _durable(writer, name)
    for number in range(_LOOKS):
        if number:
            pause()
        chunks = catalog.chunks(lineage, name)
        if store.head(layout.binlog(lineage.id, name)) is not None:
            return ChunkCheck(archived=True)
        reach = max((chunk.end for chunk in chunks), default=0)
        if reach <= chunks.end and wanted <= chunks.end:
            break
    checked = ChunkCheck(size=chunks.end)
    _check_pairs(checked, layout, lineage, name, chunks)
    prefix = layout.chunks(lineage.id, name)

    def wrong(kind: Kind, text: str) -> None:
        checked.defects.append(
            Defect(kind=kind, lineage=lineage.id, binlog=name, key=prefix, text=text)
        )

    if reach > chunks.end:
        behind = min(chunk.begin for chunk in chunks if chunk.begin > chunks.end)
        text = f"bytes {chunks.end} to {behind} of {name} are missing, but later chunks are there"
        if writer is not None and wanted <= chunks.end and is_last:
            checked.notes.append(f"{text}; its writer has not reported them as durable")
        elif not cut:
            wrong("chunk-hole", text)
    elif wanted > chunks.end:
        wrong("durable-missing", f"{chunks.end} bytes of {name} are there, {wanted} were durable")
    return checked


def _durable(writer: Heartbeat | None, name: BinlogName) -> int:
    """The offset up to which the writer has reported this binlog as durable."""
    if writer is None or writer.durable is None or writer.durable.binlog != str(name):
        return 0
    return writer.durable.offset


def check_stored(
    store: Store, layout: Layout, lineage: Lineage, name: BinlogName, threads: int
) -> ChunkCheck:
    """Compare the store's checksums of the chunks that a recovery reads; reads no bytes."""
    checked = ChunkCheck()
    pieces = join(Catalog(store, layout).chunks(lineage, name))
    keys = [layout.chunk(lineage.id, name, piece.chunk) for piece in pieces]
    unproved = 0
    tasks = (partial(store.head, key) for key in keys)
    with closing(Ahead(tasks, threads=threads)) as ahead:
        for piece, key, info in zip(pieces, keys, ahead, strict=True):
            if info is None:
                continue  # replaced by a longer chunk, or archived
            unproved += info.crc64 is None
            if info.crc64 not in (None, piece.chunk.crc64):
                text = (
                    f"its CRC64NVME in the store is {crc64_hex(info.crc64)}, in its name "
                    f"{crc64_hex(piece.chunk.crc64)}"
                )
                checked.defects.append(
                    Defect(kind="chunk-bytes", lineage=lineage.id, binlog=name, key=key, text=text)
                )
    if unproved:
        checked.notes.append(
            f"{count_text(unproved, 'chunk')} of {name}: the store has no CRC64NVME of them, so "
            "their bytes were not compared; --deep reads them"
        )
    return checked


def check_all_bytes(  # noqa: PLR0917
    store: Store,
    layout: Layout,
    lineage: Lineage,
    name: BinlogName,
    known: Known,
    looked: ChunkCheck,
) -> ChunkCheck:
    """The defects of a pass over the chunks, and of chunks that the pass did not need.

    What `check_chunks` has reported is not reported again.
    """
    checked = ChunkCheck(size=known.size)
    prefix = layout.chunks(lineage.id, name)
    for begin, end in known.damaged:
        text = f"bytes {begin} to {end} of {name}"
        if begin >= looked.size and looked.defects:
            continue
        if end > known.size:
            text += " differ from what was uploaded"
            checked.defects.append(
                Defect(kind="chunk-bytes", lineage=lineage.id, binlog=name, key=prefix, text=text)
            )
        else:
            checked.gaps.append(
                RecordedGap(
                    kind="damaged", lineage=lineage.id, text=f"{text} were damaged on the source"
                )
            )
    chunks = Catalog(store, layout).chunks(lineage, name)
    read = {piece.chunk for piece in join(chunks)}
    for chunk in sorted(set(chunks) - read):
        key = layout.chunk(lineage.id, name, chunk)
        try:
            crc64 = crc64_of_blocks(store.open(key, 0, chunk.size))
        except ObjectMissingError:
            continue  # replaced by a longer chunk
        if crc64 != chunk.crc64:
            text = f"its bytes have the CRC64NVME {crc64_hex(crc64)}; longer chunks replace it"
            checked.defects.append(
                Defect(kind="chunk-bytes", lineage=lineage.id, binlog=name, key=key, text=text)
            )
    return checked


def _check_pairs(
    checked: ChunkCheck, layout: Layout, lineage: Lineage, name: BinlogName, chunks: Chunks
) -> None:
    """Two chunks of one range must not have different checksums."""
    for one, other in pairwise(sorted(chunks)):
        if (one.begin, one.end) == (other.begin, other.end):
            text = f"{one} and {other} have the same range but different bytes"
            key = layout.chunk(lineage.id, name, other)
            checked.defects.append(
                Defect(kind="chunk-disagrees", lineage=lineage.id, binlog=name, key=key, text=text)
            )
