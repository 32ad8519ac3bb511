"""Relay logs out of a piece's bytes: which events go in, how they begin, where a batch ends."""

import os
import random
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest

from binlog2s3.binlog import gtid
from binlog2s3.binlog.events import HEADER, EventType
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import Checked, Piece, Place, Stream
from binlog2s3.recover.relay_batch import Batch, Batches
from binlog2s3.recover.relay_files import RelayFiles
from binlog2s3.recover.relay_log import Events, Head, Ident
from tests.binlog_writer import BEGIN, ROWS, TABLE_MAP, XID, BinlogWriter

NAME = BinlogName.parse("mysql-bin.000003")
UUID_1 = str(UUID(int=1))


def binlog(count: int = 12, *, checksum: bool = True) -> BinlogWriter:
    """One with all that may stand around transactions."""
    writer = BinlogWriter(checksum=checksum, in_use=True)
    writer.previous_gtids(gtid.GtidSet({}))
    for number in range(1, count + 1):
        writer.transaction(
            [BEGIN, TABLE_MAP, *[ROWS] * (number % 4), XID], gtid=(UUID_1, "", number)
        )
    writer.rotate()
    return writer


def piece_of(
    writer: BinlogWriter, left_out: Sequence[tuple[int, int]] = (), begin: int = 4
) -> Piece:
    """All of it, but for some ranges."""
    kept = [
        one
        for one in writer.transactions
        if one.begin >= begin and not any(low <= one.begin < high for low, high in left_out)
    ]
    return Piece(
        lineage="L",
        binlog=NAME,
        begin=begin,
        end=len(writer.data),
        left_out=tuple(left_out),
        transactions=len(kept),
        gtids=gtid.parse(",".join(str(one.gtid) for one in kept), "mysql"),
    )


def kept_bytes(writer: BinlogWriter, piece: Piece, head: int) -> bytes:
    """What the piece is, behind the head."""
    bounds = [max(piece.begin, head), *(at for pair in piece.left_out for at in pair), piece.end]
    return b"".join(
        bytes(writer.data[low:high]) for low, high in zip(bounds[::2], bounds[1::2], strict=True)
    )


def cut(data: bytes, chance: random.Random) -> Iterator[memoryview]:
    """Pieces of any length, none too."""
    at = 0
    while at < len(data):
        size = chance.choice([0, 1, 5, 18, 19, 20, 40, 200, 1000])
        yield memoryview(data)[at : at + size]
        at += size


def wanted(writer: BinlogWriter) -> bytes:
    """The transactions' bytes."""
    return b"".join(bytes(writer.data[one.begin : one.end]) for one in writer.transactions)


# Which events go in


@pytest.mark.parametrize("seed", range(20))
def test_what_goes_in_does_not_depend_on_the_cuts(seed: int) -> None:
    """All events but those about the binlog itself, as they are."""
    writer = binlog()
    piece, head = piece_of(writer), writer.ends[1]
    events = Events(piece, head)
    out = b"".join(
        bytes(part)
        for data in cut(kept_bytes(writer, piece, head), random.Random(seed))
        for part in events.feed(data)
    )
    assert out == wanted(writer)
    assert events.offset == len(writer.data)
    assert events.server_ids == {7}


def test_every_event_says_which_server_wrote_it() -> None:
    """One event of another server in the middle of a transaction is seen."""
    writer = BinlogWriter()
    writer.transaction([BEGIN, TABLE_MAP], gtid=(UUID_1, "", 1))
    writer.server_id = 9
    writer.event(*ROWS)
    writer.server_id = 7
    writer.event(*XID)
    writer.server_id = 11
    writer.rotate()
    piece, head = piece_of(writer), writer.ends[1]
    events = Events(piece, head)
    list(events.feed(memoryview(kept_bytes(writer, piece, head))))
    assert events.server_ids == {7, 9}


@pytest.mark.parametrize("seed", range(10))
def test_offsets_pass_over_what_is_left_out(seed: int) -> None:
    """`upto` counts the bytes up to an offset, wherever the bytes so far were cut."""
    writer = binlog()
    all_of_it = writer.transactions
    gaps = [(all_of_it[2].begin, all_of_it[3].end), (all_of_it[7].begin, all_of_it[7].end)]
    piece, head = piece_of(writer, gaps), writer.ends[1]
    data = memoryview(kept_bytes(writer, piece, head))
    chance = random.Random(seed)
    events = Events(piece, head)
    begin = chance.randrange(len(data))
    list(events.feed(data[:begin]))
    for number, one in enumerate(all_of_it):
        if number in (2, 3, 7) or one.end < events.offset:
            continue
        joined = kept_bytes(writer, piece_of(writer, gaps), head)
        before = joined.index(bytes(writer.data[one.begin : one.end])) + one.end - one.begin
        assert len(events.upto(one.end, data[begin:])) == before - begin
    list(events.feed(data[begin:]))
    assert events.offset == piece.end


# The head


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("new_sessions", [True, False])
def test_the_head(checksum: bool, new_sessions: bool) -> None:
    """A format event without a position, no GTIDs before, a rotate event that names the place.

    Its server_id is not the source's; `created` says whether sessions are new; checksums are right.
    """
    writer = binlog(1, checksum=checksum)
    head = Head.of(bytes(writer.data[: writer.ends[1]]))
    ident = Ident(3, "L", 4711, NAME)
    data = head.render(ident, server_id=99, new_sessions=new_sessions)
    assert data[:4] == MAGIC
    at, types = 4, []
    while at < len(data):
        _, event_type, server_id, size, position, flags = HEADER.unpack_from(data, at)
        event = data[at : at + size]
        types.append(EventType(event_type))
        assert (server_id, position) == (99, 0)
        assert not flags & 1
        if checksum or event_type == EventType.FORMAT_DESCRIPTION:
            assert zlib.crc32(event) == 0x2144DF1C
        if event_type == EventType.FORMAT_DESCRIPTION:
            assert bool(struct.unpack_from("<I", event, 71)[0]) is new_sessions
        if event_type == EventType.ROTATE:
            body = event[19 : -4 if checksum else None]
            assert struct.unpack_from("<Q", body)[0] == 4711
            assert Ident.parse(body[8:].decode()) == ident
        at += size
    assert types == [EventType.FORMAT_DESCRIPTION, EventType.PREVIOUS_GTIDS, EventType.ROTATE]
    scanner = Scanner(4711)
    scanner.feed(data[: 4 + writer.ends[1] - 4])
    assert scanner.formats[0].checksum == ("crc32" if checksum else "none")


# Places


@pytest.mark.parametrize(
    ("begin", "position", "offset"),
    [
        (4, 4, 4),
        (4, 2_000_000_000, 2_000_000_000),
        (4_294_967_000, 4_294_967_200, 4_294_967_200),
        (4_294_967_000, 104, 4_294_967_400),
        (4_294_967_396, 100, 4_294_967_396),
        (3 * 2**32 + 100, 50, 4 * 2**32 + 50),
    ],
)
def test_positions_wrap_at_four_gigabytes(begin: int, position: int, offset: int) -> None:
    """A file begins at a known offset: what the server counts in 32 bits lies behind it."""
    ident = Ident(1, "20260102T030405Z-3e11fa47-a1b2", begin, NAME)
    assert ident.place(position) == Place(lineage=ident.lineage, binlog=NAME, offset=offset)
    assert Ident.parse(str(ident)) == ident


def test_names_grow_as_text() -> None:
    """The applier compares them so, to find what its workers have left out."""
    names = [
        str(Ident(1, "z", 2_000_000_000, NAME)),
        str(Ident(2, "z", 10, NAME)),
        str(Ident(99, "b", 4, NAME)),
        str(Ident(100, "a", 4, NAME)),
        str(Ident(12_345_678, "a", 4, NAME)),
    ]
    assert names == sorted(names)


@pytest.mark.parametrize("text", ["", "mysql-bin.000001", "1.2.x.y", "1.L.4.", "1.L.4.nothing"])
def test_other_names_are_none_of_ours(text: str) -> None:
    """Such as a real rotate event would bring."""
    assert Ident.parse(text) is None


# Batches


def stream_of(writers: Sequence[BinlogWriter], step: int, pieces: Sequence[Piece] = ()) -> Stream:
    """As `extract` hands it out."""
    for writer, piece in zip(writers, pieces or map(piece_of, writers), strict=True):
        yield piece, checked(writer, piece, step)


def checked(writer: BinlogWriter, piece: Piece, step: int) -> Iterator[Checked]:
    """Bytes, and which transactions end in them."""
    head = writer.ends[1]
    yield Checked(data=bytes(writer.data[:head]))
    events = Events(piece, head)
    data, left = memoryview(kept_bytes(writer, piece, head)), list(writer.transactions)
    left = [t for t in left if not any(low <= t.begin < high for low, high in piece.left_out)]
    for at in range(0, len(data), step):
        part = data[at : at + step]
        list(events.feed(part))
        done = [t for t in left if t.end <= events.offset]
        left = left[len(done) :]
        yield Checked(data=bytes(part), done=tuple(done))


def batches_in(directory: Path, stream: Stream, size: int, server_id: int = 2) -> list[Batch]:
    """All of them."""
    return list(made(directory, size, server_id).run(stream))


def made(directory: Path, size: int, server_id: int = 2) -> Batches:
    files = RelayFiles(path=directory, stem="r-pitr", index_name="r-pitr.index", seen_as="/there")
    return Batches(files, size=size, server_id=server_id, tick=lambda: None)


def body(path: Path) -> bytes:
    """A file without its head."""
    data = path.read_bytes()
    at = 4
    for _ in range(3):
        at += HEADER.unpack_from(data, at)[3]
    return data[at:]


@pytest.mark.parametrize("size", [1, 300, 1000, 1 << 20])
@pytest.mark.parametrize("step", [1, 37, 256, 1 << 20])
def test_batches_hold_whole_transactions(tmp_path: Path, size: int, step: int) -> None:
    """Joined they are all of them; each is as large as it may be, no larger than one more."""
    writers = [binlog(5), binlog(8, checksum=False), binlog(1)]
    found = batches_in(tmp_path, stream_of(writers, step), size)
    all_ends = [one.end for writer in writers for one in writer.transactions]
    assert [end for batch in found for one in batch.files for end in one.ends] == all_ends
    joined = b"".join(body(one.path) for batch in found for one in batch.files)
    assert joined == b"".join(map(wanted, writers))
    numbers = [one.ident.number for batch in found for one in batch.files]
    assert numbers == list(range(1, len(numbers) + 1))
    if size == 1:
        assert len(found) == len(all_ends)
    if size == 1 << 20:
        assert [len(batch.files) for batch in found] == [3]
    assert str(found[-1].gtids).startswith(UUID_1)


def test_how_far_it_is(tmp_path: Path) -> None:
    """A place in a file is so many bytes and transactions of the whole stream."""
    writers = [binlog(5), binlog(8)]
    (batch,) = batches_in(tmp_path, stream_of(writers, 100), 1 << 20)
    first, second = batch.files
    ones = writers[0].transactions
    assert first.upto(ones[0].begin) == (writers[0].ends[1] - 4, 0, None)
    assert first.upto(ones[1].end)[:2] == (ones[1].end - 4, 2)
    assert first.upto(ones[2].end - 1)[:2] == (ones[1].end - 4, 2)
    size = len(writers[0].data) - 4
    assert second.upto(writers[1].transactions[0].end)[:2] == (
        size + writers[1].transactions[0].end - 4,
        6,
    )
    assert first.around(ones[1].begin + 1) == (ones[1].begin, ones[1].end)
    assert first.around(ones[1].end) == (ones[1].begin, ones[1].end)
    assert first.around(ones[-1].end + 1) is None
    assert batch.file(2) is second
    assert batch.file(3) is None


def test_sessions_are_new_only_behind_a_start(tmp_path: Path) -> None:
    """A file that goes on in a binlog, or in the next one, keeps temporary tables."""
    writers = [binlog(3), binlog(3)]
    started = binlog(3)
    struct.pack_into("<I", started.data, 4 + 71, 1_700_000_000)
    names = [NAME, NAME.next(), NAME.next().next()]
    pieces = [
        Piece(
            lineage="L",
            binlog=name,
            begin=4,
            end=len(writer.data),
            transactions=3,
            gtids=piece_of(writer).gtids,
        )
        for name, writer in zip(names, [*writers, started], strict=True)
    ]
    found = batches_in(tmp_path, stream_of([*writers, started], 50, pieces), 1)
    new = [
        bool(struct.unpack_from("<I", one.path.read_bytes(), 4 + 71)[0])
        for batch in found
        for one in batch.files
    ]
    assert new == [True, False, False, False, False, False, True, False, False]


@pytest.mark.parametrize("at", [0, 3, 7, 11])
def test_what_is_whole_before_damage_is_a_batch(tmp_path: Path, at: int) -> None:
    """The last batch ends with the last whole transaction, and nothing of the next is in it."""
    writer = binlog()
    one = writer.transactions[at]

    def broken() -> Stream:
        def torn() -> Iterator[Checked]:
            size = 0
            for part in checked(writer, piece_of(writer), 10):
                if size > one.begin + 30:
                    raise ArchiveError("torn")
                size += len(part.data)
                yield part

        yield piece_of(writer), torn()

    batches = made(tmp_path, 1 << 20)
    found = list(batches.run(broken()))
    assert isinstance(batches.broken, ArchiveError)
    joined = b"".join(body(log.path) for batch in found for log in batch.files)
    assert joined == bytes(writer.data[writer.transactions[0].begin : one.begin])
    assert len(list(tmp_path.iterdir())) == (1 if at else 0)


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_the_targets_own_server_id_is_refused(tmp_path: Path, size: int) -> None:
    """Before the bytes of that event are in any batch."""
    writer = binlog(4)
    other = BinlogWriter(server_id=2)
    other.transaction([BEGIN, ROWS, XID], gtid=(UUID_1, "", 9))
    batches = made(tmp_path, size)
    found = []
    with pytest.raises(RecoveryError, match="server_id 2, which is the target's own") as caught:
        found.extend(batches.run(stream_of([writer, other], 64)))
    assert "SET GLOBAL server_id" in caught.value.hint


def test_no_files_for_binlogs_without_transactions(tmp_path: Path) -> None:
    """Nothing is written for them."""
    writers = [binlog(0), binlog(2), binlog(0)]
    (batch,) = batches_in(tmp_path, stream_of(writers, 30), 1 << 20)
    assert len(batch.files) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    """The directory, and that space is to be freed."""
    files = RelayFiles(path=tmp_path, stem="r-pitr", index_name="i", seen_as="/there")
    error = files.failed(OSError(28, os.strerror(28)))
    assert f"{tmp_path}, is full" in str(error)
    assert "free some space" in error.hint


def test_files_are_moved_in_behind_those_that_are_there(tmp_path: Path) -> None:
    """By number, not by name as text; the index names them as the server does."""
    files = RelayFiles(path=tmp_path, stem="r-pitr", index_name="i", seen_as="/there")
    for number in (9, 10, 999_999, 1_000_000):
        (tmp_path / f"r-pitr.{number:06d}").touch()
    (tmp_path / "r-pitr.other").touch()
    (tmp_path / "i").write_text("/there/r-pitr.1000000\n")
    beside = [files.begin(number) for number in (1, 2)]
    for one in beside:
        one.write(b"x")
        one.done()
    assert files.numbered()[-1].name == "r-pitr.1000000"
    files.move_in([one.path for one in beside])
    assert (tmp_path / "i").read_text().splitlines() == [
        "/there/r-pitr.1000000",
        "/there/r-pitr.1000001",
        "/there/r-pitr.1000002",
    ]
    assert [path.name for path in files.numbered()][-2:] == ["r-pitr.1000001", "r-pitr.1000002"]
    files.begin(3).done()
    assert list(tmp_path.glob("*binlog2s3*"))
    files.remove(numbered=False)
    assert len(files.numbered()) == 6
    assert not list(tmp_path.glob("*binlog2s3*"))


def test_transactions_are_as_a_scanner_has_them() -> None:
    """The writer of these tests and the scanner agree."""
    writer = binlog()
    found: list[Transaction] = Scanner().feed(bytes(writer.data))
    assert found == writer.transactions
