"""The archive's arithmetic and its decision, case by case."""

import random
from itertools import pairwise, product

import pytest

from binlog2s3.archive import (
    Action,
    Complete,
    CreateUpload,
    Held,
    Look,
    Observed,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    Verify,
    decide,
    is_closed,
)
from binlog2s3.binlog import Transaction
from binlog2s3.checksum import crc64nvme
from binlog2s3.grid import BLOCK_SIZE, MAX_PARTS, Digest, Grid, Part

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
    with pytest.raises(ValueError, match="part 2 has not passed whole"):
        digest.part_crc64(Part(number=2, begin=10, end=20))
    with pytest.raises(ValueError, match="part 2 has not passed whole"):
        digest.part_crc64(Part(number=2, begin=10, end=14, full=False))
    with pytest.raises(ValueError, match="part 3 has not passed whole"):
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


@pytest.mark.parametrize(
    ("ended", "next_in_run", "goes_on", "newer", "size_on_server"),
    list(product([False, True], [False, True], [False, True], [False, True], [None, 99, 100, 101])),
)
def test_what_closes_a_binlog(
    *, ended: bool, next_in_run: bool, goes_on: bool, newer: bool, size_on_server: int | None
) -> None:
    """Its own end; or the same run's next file with our GTIDs; or a newer one and the size."""
    closed = is_closed(
        ended=ended,
        size=100,
        next_in_run=next_in_run,
        history_goes_on=goes_on,
        newer_on_server=newer,
        size_on_server=size_on_server,
    )
    assert closed == any([ended, next_in_run and goes_on, newer and size_on_server == 100])


def part(number: int, end: int | None = None) -> PutPart:
    """The action for a part of GRID."""
    begin = 10 * (number - 1)
    return PutPart(
        Part(number=number, begin=begin, end=end or begin + 10, full=end in (None, begin + 10))
    )


NOTHING = Held()
UPLOAD = Held(upload_id="u")


@pytest.mark.parametrize(
    ("size", "closed", "held", "actions"),
    [
        # nobody has asked the store yet: only when there is something to be done with the answer
        (0, False, None, ()),
        (9, False, None, ()),
        (10, False, None, (Look(),)),
        (9, True, None, (Look(),)),
        # archived, step by step
        (25, True, Held(object_there=True), (Verify(),)),
        (25, True, Held(object_there=True, upload_id="u"), (Verify(),)),
        (25, True, Held(object_there=True, entry_there=True), (Verify(),)),
        (25, True, Held(object_there=True, verified=True), (PutEntry(),)),
        (25, True, Held(object_there=True, verified=True, entry_there=True), (Release(),)),
        # another writer was first, but ours still grows: wait until it can be compared
        (25, False, Held(object_there=True), ()),
        # below one part: one object, once it is closed
        (9, True, NOTHING, (PutWhole(),)),
        # from one part on: an upload
        (10, False, NOTHING, (CreateUpload(),)),
        (10, True, NOTHING, (CreateUpload(),)),
        # full parts while it grows, the short last one when it is closed
        (25, False, UPLOAD, (part(1), part(2))),
        (25, True, UPLOAD, (part(1), part(2), part(3, 25))),
        (25, False, Held(upload_id="u", parts=frozenset({1})), (part(2),)),
        (25, False, Held(upload_id="u", parts=frozenset({2})), (part(1),)),
        (25, False, Held(upload_id="u", parts=frozenset({1, 2})), ()),
        (25, True, Held(upload_id="u", parts=frozenset({1, 2})), (part(3, 25),)),
        (25, True, Held(upload_id="u", parts=frozenset({1, 2, 3})), (Complete(),)),
        (20, True, Held(upload_id="u", parts=frozenset({1, 2})), (Complete(),)),
        (20, False, Held(upload_id="u", parts=frozenset({1, 2})), ()),
    ],
)
def test_what_to_do_next(
    *, size: int, closed: bool, held: Held | None, actions: tuple[Action, ...]
) -> None:
    """Every branch of the decision, with parts of 10 bytes."""
    assert decide(Observed(size=size, closed=closed, held=held), GRID) == actions


def test_a_small_binlog_that_grows_does_not_begin_to_be_put_whole() -> None:
    """PutWhole is for closed ones alone: the object would be cut short for ever."""
    assert decide(Observed(size=9, closed=False, held=NOTHING), GRID) == ()
