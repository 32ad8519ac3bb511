"""Where parts lie, and the checksums of what passed: of the whole, of parts, blocks, ranges."""

import random
from itertools import pairwise

import pytest

from binlog2s3.archive.parts import BLOCK_SIZE, MAX_PARTS, Digest, Grid, Mark, Part
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.scanner import Transaction

MIB = 1 << 20
GRID = Grid(10)


@pytest.mark.parametrize(
    ("number", "length"),
    [
        (1, 5),
        (1000, 5),
        (1001, 10),
        (2000, 10),
        (2001, 20),
        (9000, 1280),
        (9001, 2560),
        (10_000, 2560),
    ],
)
def test_parts_double_every_thousand(number: int, length: int) -> None:
    """Part n is part_size for the first 1,000, twice that for the next, and so on."""
    assert Grid(5 * MIB).length(number) == length * MIB


def test_no_part_is_larger_than_a_store_takes() -> None:
    """5 GiB is the end of the doubling; a part size above it would be the operator's own word."""
    assert Grid(64 * MIB).length(MAX_PARTS) == 5 << 30
    assert Grid(5 << 30).length(MAX_PARTS) == 5 << 30


def test_ten_thousand_parts_hold_about_five_tebibytes() -> None:
    """What S3 can hold in an object, at the default part size."""
    whole = sum(Grid(5 * MIB).length(number) for number in range(1, MAX_PARTS + 1))
    assert 0.97 * (5 << 40) < whole < 5 << 40


@pytest.mark.parametrize("number", [-1, 0, MAX_PARTS + 1])
def test_there_are_parts_1_to_10000(number: int) -> None:
    """Anything else is a defect of the caller."""
    with pytest.raises(ValueError, match="is not one of 1 to 10000"):
        Grid(5).length(number)


def test_a_binlog_of_more_than_all_parts_is_refused() -> None:
    """It is never cut short."""
    whole = sum(Grid(1).length(number) for number in range(1, MAX_PARTS + 1))
    assert sum(1 for _ in Grid(1).parts(whole)) == MAX_PARTS
    with pytest.raises(ValueError, match="part 10001"):
        list(Grid(1).parts(whole + 1))


@pytest.mark.parametrize(
    "size", [0, 1, 9, 10, 11, 20, 9_999, 10_000, 10_001, 10_019, 10_020, 30_001]
)
def test_parts_cover_the_bytes_without_overlap(size: int) -> None:
    """In order, from 0 to the size; all full but perhaps the last one."""
    parts = list(GRID.parts(size))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])][: len(parts)]
    assert (parts[-1].end if parts else 0) == size
    for part in parts:
        assert part.full == (part.end - part.begin == GRID.length(part.number))
    assert all(part.full for part in parts[:-1])


@pytest.mark.parametrize("part_size", [1, 700_001, 3 * MIB, 64 * MIB])
@pytest.mark.parametrize("size", [0, 1, 1500, BLOCK_SIZE, 2 * BLOCK_SIZE + 77])
def test_digests_are_those_of_the_bytes_however_they_are_cut(part_size: int, size: int) -> None:
    """Of the whole, of every part and of every block, as if each were computed by itself."""
    if part_size == 1 and size > 1500:
        part_size = 2048
    chance = random.Random(part_size * 31 + size)
    data = chance.randbytes(size)
    digest = Digest(Grid(part_size))
    cuts = sorted({0, size, *(chance.randrange(size + 1) for _ in range(20))})
    for begin, end in pairwise(cuts):
        digest.feed(memoryview(data)[begin:end])

    assert (digest.size, digest.crc64) == (size, crc64nvme(data))
    for part in Grid(part_size).parts(size):
        assert digest.part_crc64(part) == crc64nvme(data[part.begin : part.end])
    blocks = digest.blocks()
    assert [block.offset for block in blocks] == list(range(0, size, BLOCK_SIZE))
    for block in blocks:
        assert block.crc64 == crc64nvme(data[block.offset : block.offset + block.size])
    assert sum(block.size for block in blocks) == size


def test_a_part_that_has_not_passed_whole_has_no_digest() -> None:
    """Neither one whose rest is to come, nor one that has grown since."""
    digest = Digest(GRID)
    digest.feed(memoryview(bytes(15)))
    with pytest.raises(ValueError, match="not all bytes of part 2"):
        digest.part_crc64(Part(number=2, begin=10, end=20))
    with pytest.raises(ValueError, match="not all bytes of part 2"):
        digest.part_crc64(Part(number=2, begin=10, end=14, full=False))
    with pytest.raises(ValueError, match="not all bytes of part 3"):
        digest.part_crc64(Part(number=3, begin=20, end=30))


def transaction(begin: int, gtid: str | None = None) -> Transaction:
    """A transaction that begins there."""
    return Transaction(
        begin=begin,
        end=begin + 1,
        gtid=gtid,
        commit_us=begin + 7,
        commit_exact=True,
        original_commit_us=None,
    )


def test_a_block_knows_the_first_transaction_that_begins_in_it() -> None:
    """Not a later one, and none where one that began before goes on."""
    digest = Digest(Grid(5 * MIB))
    digest.feed(memoryview(bytes(2 * BLOCK_SIZE + 1)))
    for begin, gtid in ((200, "a:1"), (300, "a:2"), (2 * BLOCK_SIZE, None)):
        digest.note(transaction(begin, gtid))
    first, second, third = digest.blocks()
    assert (first.first_offset, first.first_commit_us, first.first_gtid) == (200, 207, "a:1")
    assert (second.first_offset, second.first_commit_us, second.first_gtid) == (None, None, None)
    assert (third.first_offset, third.first_gtid) == (2 * BLOCK_SIZE, None)
    assert third.first_commit_us == 2 * BLOCK_SIZE + 7


def test_where_a_part_begins() -> None:
    """Behind all parts before it, also the last one that there can be."""
    begin = 0
    for number in range(1, MAX_PARTS + 1):
        assert GRID.begin(number) == begin
        begin += GRID.length(number)
    assert GRID.begin(MAX_PARTS + 1) == begin


@pytest.mark.parametrize("offset", [0, 1, 9, 10, 9_999, 10_000, 10_019, 10_020, 29_999, 30_001])
def test_the_part_of_a_byte(offset: int) -> None:
    """Whole, also across the places where parts double."""
    (found,) = [part for part in GRID.parts(60_000) if part.begin <= offset < part.end]
    assert GRID.at(offset) == found


@pytest.mark.parametrize("begin", [0, 9, 10, 10_005, 29_999])
def test_parts_from_an_offset_on(begin: int) -> None:
    """From the one on in which it lies; the same parts as from the beginning."""
    parts = list(GRID.parts(30_005))
    assert list(GRID.parts(30_005, begin)) == [part for part in parts if part.end > begin]


def test_parts_from_the_end_on() -> None:
    """What begins at the size, or behind it, has no bytes yet."""
    assert list(GRID.parts(20, 20)) == []
    assert list(GRID.parts(0)) == []
    assert list(GRID.parts(25, 25)) == [Part(number=3, begin=20, end=25, full=False)]


def test_marks_tell_the_checksum_of_any_range_between_them() -> None:
    """Within a part, whatever was fed behind them; from its beginning by a mark made there."""
    data = random.Random(3).randbytes(100)
    digest = Digest(Grid(60))
    marks = {}
    for end in (10, 25, 60, 61, 90):
        digest.feed(memoryview(data)[digest.size : end])
        digest.set_mark()
        marks[end] = digest.mark
        assert digest.mark.offset == end
    for begin, end in ((10, 25), (61, 90), (60, 61), (60, 90)):
        assert marks[end].crc64_since(marks[begin]) == crc64nvme(data[begin:end])
    for begin, end in ((0, 10), (0, 25), (60, 61), (60, 90)):
        assert marks[end].crc64_since(Mark(begin)) == crc64nvme(data[begin:end])
    digest.feed(memoryview(data)[90:])
    assert digest.mark == marks[90]


@pytest.mark.parametrize("seed", range(20))
def test_a_rewound_digest_goes_on_from_its_mark(seed: int) -> None:
    """What was fed behind it is forgotten, parts and blocks that had ended as well."""
    chance = random.Random(seed)
    data, noise = chance.randbytes(2 * BLOCK_SIZE + 999), bytes(3 * BLOCK_SIZE)
    grid = Grid(chance.choice([77_777, 3 * MIB]))
    digest = Digest(grid)
    at = 0
    for end in sorted(chance.randrange(len(data)) for _ in range(6)):
        digest.feed(memoryview(data)[at:end])
        digest.set_mark()
        at = end
        digest.feed(memoryview(noise)[: chance.choice([0, 1, 500, BLOCK_SIZE, len(noise)])])
        digest.rewind()
        assert (digest.size, digest.mark.offset) == (end, end)
    digest.feed(memoryview(data)[at:])
    assert digest.crc64 == crc64nvme(data)
    for part in grid.parts(len(data)):
        assert digest.part_crc64(part) == crc64nvme(data[part.begin : part.end])
    for block in digest.blocks():
        assert block.crc64 == crc64nvme(data[block.offset : block.offset + block.size])


def test_a_digest_without_a_mark_is_rewound_to_its_begin() -> None:
    """Nothing was checked yet."""
    digest = Digest(GRID)
    digest.feed(memoryview(bytes(15)))
    digest.rewind()
    digest.feed(memoryview(b"x" * 10))
    assert digest.part_crc64(Part(number=1, begin=0, end=10)) == crc64nvme(b"x" * 10)


def test_marks_are_a_few_of_the_last_ones() -> None:
    """Of the last MiB, some way apart; always some to go back to; each with its checksum."""
    data = random.Random(7).randbytes(3 * MIB)
    digest = Digest(Grid(MIB))
    for end in range(1000, len(data), 1000):
        digest.feed(memoryview(data)[digest.size : end])
        digest.set_mark()
        marks = digest.marks
        assert marks[-1].offset == end
        assert len(marks) <= 20
        assert marks[0].offset >= end - MIB - 1 or len(marks) <= 3
        assert [mark.offset for mark in marks] == sorted({mark.offset for mark in marks})
    for mark in digest.marks:
        assert mark.crc64 == crc64nvme(data[: mark.offset])
    assert digest.marks[0].offset <= digest.size - MIB // 2
    digest = Digest(Grid(MIB))
    for end in (MIB, 2 * MIB, 3 * MIB):  # far apart: the last ones are kept whatever they are
        digest.feed(memoryview(data)[digest.size : end])
        digest.set_mark()
    assert [mark.offset for mark in digest.marks] == [MIB, 2 * MIB, 3 * MIB]
