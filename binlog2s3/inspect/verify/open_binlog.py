"""Checks a binlog in chunks: whether they join, agree, and reach what its writer reported.

Place in the flow: `walk` calls it for a binlog that is not archived.

Law: chunks come and go meanwhile. What seems missing is listed again, and looked up in the archive,
before it is called missing. What the writer never reported as durable is not missing.
"""

from contextlib import closing
from functools import partial
from itertools import pairwise

from binlog2s3.archive.blocks import Ahead
from binlog2s3.archive.chunks import Chunks, join
from binlog2s3.archive.known import Known
from binlog2s3.binlog.checksum import crc64_hex, crc64_of_blocks
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ObjectMissingError
from binlog2s3.formatting import count_text
from binlog2s3.inspect.verify.context import LineageContext

_LOOKS = 3


class OpenBinlog:
    """One of them. `size` bytes can be read; `archived`: it is in the archive by now."""

    def __init__(self, context: LineageContext, name: BinlogName) -> None:
        self._context = context
        self._name = name
        self.size = 0
        self.archived = False
        self._has_defects = False

    def check(self, *, is_last: bool, is_cut: bool) -> None:
        """Look at the names of its chunks. `is_cut`: only its beginning counts, for its children.

        `is_last`: it is the last one of its lineage.
        """
        chunks, wanted = self._look()
        if self.archived:
            return
        self.size = chunks.end
        before = len(self._context.source.report.defects)
        self._check_pairs(chunks)
        reach, name = _reach(chunks), self._name
        if reach > chunks.end:
            behind = min(chunk.begin for chunk in chunks if chunk.begin > chunks.end)
            text = (
                f"bytes {chunks.end} to {behind} of {name} are missing, but later chunks are there"
            )
            if self._context.writer is not None and wanted <= chunks.end and is_last:
                self._context.note(f"{text}; its writer has not reported them as durable")
            elif not is_cut:
                self._context.defect("chunk-hole", text, name)
        elif wanted > chunks.end:
            text = f"{chunks.end} bytes of {name} are there, {wanted} were durable"
            self._context.defect("durable-missing", text, name, self._context.chunks_key(name))
        self._has_defects = len(self._context.source.report.defects) > before

    def _look(self) -> tuple[Chunks, int]:
        """Its chunks, and up to where the writer has reported them as durable."""
        source, lineage = self._context.source, self._context.lineage
        wanted, chunks = self._durable(), Chunks()
        for number in range(_LOOKS):
            if number:
                source.pause()
            chunks = source.catalog.chunks(lineage, self._name)
            self.archived = source.store.head(self._context.object_key(self._name)) is not None
            if self.archived or max(_reach(chunks), wanted) <= chunks.end:
                break
        return chunks, wanted

    def _durable(self) -> int:
        writer = self._context.writer
        if writer is None or writer.durable is None or writer.durable.binlog != str(self._name):
            return 0
        return writer.durable.offset

    def _check_pairs(self, chunks: Chunks) -> None:
        """Two chunks of one range must not have different checksums."""
        for one, other in pairwise(sorted(chunks)):
            if (one.begin, one.end) == (other.begin, other.end):
                text = f"{one} and {other} have the same range but different bytes"
                key = self._context.source.layout.chunk(self._context.lineage.id, self._name, other)
                self._context.defect("chunk-disagrees", text, self._name, key)

    def check_stored(self) -> bool:
        """Compare the store's checksums of the chunks that a recovery reads; reads no bytes.

        Returns whether all are right, as far as the store has them.
        """
        source, unproved, is_right = self._context.source, 0, True
        id_ = self._context.lineage.id
        pieces = join(source.catalog.chunks(self._context.lineage, self._name))
        keys = [source.layout.chunk(id_, self._name, piece.chunk) for piece in pieces]
        tasks = (partial(source.store.head, key) for key in keys)
        with closing(Ahead(tasks, threads=source.threads)) as ahead:
            for piece, key, info in zip(pieces, keys, ahead, strict=True):
                if info is None:
                    continue  # replaced by a longer chunk, or archived
                unproved += info.crc64 is None
                if info.crc64 not in (None, piece.chunk.crc64):
                    text = (
                        f"its CRC64NVME in the store is {crc64_hex(info.crc64)}, in its name "
                        f"{crc64_hex(piece.chunk.crc64)}"
                    )
                    self._context.defect("chunk-bytes", text, self._name, key)
                    is_right = False
        if unproved:
            self._context.note(
                f"{count_text(unproved, 'chunk')} of {self._name}: the store has no CRC64NVME of "
                "them, so their bytes were not compared; --deep reads them"
            )
        return is_right

    def check_bytes(self, known: Known) -> None:
        """Report what a pass over its bytes has shown, and compare the chunks not needed for it.

        What `check` has reported is not reported again.
        """
        for begin, end in known.damaged:
            text = f"bytes {begin} to {end} of {self._name}"
            if begin >= self.size and self._has_defects:
                continue
            if end > known.size:
                text += " differ from what was uploaded"
                self._context.defect("chunk-bytes", text, self._name)
            else:
                self._context.damaged(f"{text} were damaged on the source")
        source, lineage = self._context.source, self._context.lineage
        chunks = source.catalog.chunks(lineage, self._name)
        read = {piece.chunk for piece in join(chunks)}
        for chunk in sorted(set(chunks) - read):
            key = source.layout.chunk(lineage.id, self._name, chunk)
            try:
                crc64 = crc64_of_blocks(source.store.open(key, 0, chunk.size))
            except ObjectMissingError:
                continue  # replaced by a longer chunk
            if crc64 != chunk.crc64:
                text = f"its bytes have the CRC64NVME {crc64_hex(crc64)}; longer chunks replace it"
                self._context.defect("chunk-bytes", text, self._name, key)


def _reach(chunks: Chunks) -> int:
    """Where the last chunk ends, behind a hole or not."""
    return max((chunk.end for chunk in chunks), default=0)
