"""The closed rule, and the decision branch by branch."""

from dataclasses import replace

import pytest

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes
from binlog2s3.archive.parts import MAX_PARTS, Grid, Part
from binlog2s3.store.contract import PartInfo
from binlog2s3.stream.decide import Limits, Observed, decide
from binlog2s3.stream.job import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    CreateUpload,
    DeleteChunks,
    Flush,
    Look,
    Merge,
    PutChunk,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    TakeUp,
    Verify,
)
from binlog2s3.stream.remote import Held

LIMITS = Limits(grid=Grid(10), full_chunk=10)
UNKNOWN = Held(asked=False)


def part(number: int, end: int | None = None) -> Part:
    """A part of 10 bytes; up to `end` if that is less."""
    begin = 10 * (number - 1)
    return Part(number=number, begin=begin, end=end or begin + 10, full=end in (None, begin + 10))


def chunk(begin: int, end: int) -> Chunk:
    return Chunk(begin, end, 0)


def chunks(*bounds: tuple[int, int]) -> Chunks:
    return Chunks(frozenset(chunk(begin, end) for begin, end in bounds))


def has(*bounds: tuple[int, int]) -> Held:
    """These chunks are in the store, and hold our bytes."""
    return Held(chunks=chunks(*bounds))


def told(
    size: int, held: Held, *, closed: bool = False, due: bool = False, chunked: bool = True
) -> Observed:
    return Observed(size=size, closed=closed, held=held, due=due, chunked=chunked)


def info(number: int) -> PartInfo:
    return PartInfo(number=number, size=10, etag="x", crc64=None)


def uploaded(*numbers: int) -> Held:
    """Our upload has these parts."""
    return Held(upload_id="u", parts={number: info(number) for number in numbers})


UPLOAD = uploaded()
ONE_AND_TWO = uploaded(1, 2)
VERIFIED = Held(object_there=True, verified=True)


@pytest.mark.parametrize(
    ("size", "closed", "held", "actions"),
    [
        # nobody has asked the store yet: only when there is something to be done with the answer
        (0, False, UNKNOWN, ()),
        (9, False, UNKNOWN, ()),
        (10, False, UNKNOWN, (Look(),)),
        (9, True, UNKNOWN, (Look(),)),
        # archived, step by step
        (25, True, Held(object_there=True), (Verify(),)),
        (25, True, Held(object_there=True, upload_id="u"), (Verify(),)),
        (25, True, Held(object_there=True, entry_there=True), (Verify(),)),
        (25, True, VERIFIED, (PutEntry(),)),
        (25, True, replace(VERIFIED, entry_there=True), (Clear(),)),
        (25, True, replace(VERIFIED, entry_there=True, cleared=True), (Release(),)),
        # another writer was first, but ours still grows: wait until it can be compared
        (25, False, Held(object_there=True), ()),
        # below one part: one object, once it is closed
        (9, True, Held(), (PutWhole(),)),
        (9, False, Held(), ()),
        (9, True, UPLOAD, (PutPart(part(1, 9)),)),
        # from one part on: an upload
        (10, False, Held(), (CreateUpload(),)),
        (10, True, Held(), (CreateUpload(),)),
        # full parts while it grows, the short last one when it is closed
        (25, False, UPLOAD, (PutPart(part(1)), PutPart(part(2)))),
        (25, True, UPLOAD, (PutPart(part(1)), PutPart(part(2)), PutPart(part(3, 25)))),
        (25, False, uploaded(1), (PutPart(part(2)),)),
        (25, False, uploaded(2), (PutPart(part(1)),)),
        (25, False, ONE_AND_TWO, ()),
        (25, True, ONE_AND_TWO, (PutPart(part(3, 25)),)),
        (25, True, uploaded(1, 2, 3), (Complete(),)),
        (20, True, ONE_AND_TWO, (Complete(),)),
        (20, False, ONE_AND_TWO, ()),
    ],
)
def test_what_to_do_next_without_chunks(
    *, size: int, closed: bool, held: Held, actions: tuple[Action, ...]
) -> None:
    """With a flush interval of 0: parts as they fill, and no time is one for a flush."""
    for due in (False, True):
        observed = told(size, held, closed=closed, due=due, chunked=False)
        assert decide(observed, LIMITS) == actions


@pytest.mark.parametrize("short", [0, 1])
def test_with_all_parts_that_there_can_be_it_is_completed(short: int) -> None:
    """After the last of 10,000 parts there is none."""
    size = LIMITS.grid.begin(MAX_PARTS + 1) - short
    held = uploaded(*range(1, MAX_PARTS + 1))
    assert decide(told(size, held, closed=True, chunked=False), LIMITS) == (Complete(),)
    assert decide(told(size, held, chunked=False), LIMITS) == ()


@pytest.mark.parametrize(
    ("observed", "actions"),
    [
        # the first byte is worth a look
        (told(0, UNKNOWN), ()),
        (told(1, UNKNOWN), (Look(),)),
        # a flush: due, and something new
        (told(7, Held()), ()),
        (told(0, Held(), due=True), ()),
        (told(7, has((0, 7)), due=True), ()),
        (told(7, Held(), due=True), (Flush(0, 7),)),
        # a full part is put as a chunk, and the flush waits until what precedes it is there
        (told(25, Held()), (PutChunk(part(1)), PutChunk(part(2)))),
        (told(25, Held(), due=True), (PutChunk(part(1)), PutChunk(part(2)))),
        (told(25, has((10, 20)), due=True), (PutChunk(part(1)),)),
        (told(25, has((0, 10)), due=True), (PutChunk(part(2)),)),
        (told(25, has((0, 10), (10, 20)), due=True), (Flush(20, 25),)),
        # a chunk of another part size, long enough, is as good
        (told(25, has((0, 15)), due=True), (PutChunk(part(2)),)),
        (told(25, has((0, 22)), due=True), (Flush(20, 25),)),
        # shorter ones are not, and go when it has come
        (told(10, has((0, 6), (6, 10))), (PutChunk(part(1)),)),
        (told(10, has((0, 6), (0, 10))), (DeleteChunks(frozenset({chunk(0, 6)})),)),
        # a backlog that is closed gets parts, not full chunks; and none while it is open
        (told(25, Held(), closed=True, due=True), (CreateUpload(copying=False),)),
        (told(25, has((0, 10), (10, 20))), ()),
        # what is not yet durable of a closed one is, before its parts are
        (
            told(25, has((0, 10), (10, 20)), closed=True, due=True),
            (Flush(20, 25), CreateUpload(copying=True)),
        ),
        # unless one request archives it
        (told(9, has((0, 5)), closed=True, due=True), (PutWhole(),)),
        # superfluous chunks of a closed one go with the others
        (told(9, has((0, 5), (0, 7)), closed=True), (PutWhole(),)),
    ],
)
def test_what_to_do_next_with_chunks(*, observed: Observed, actions: tuple[Action, ...]) -> None:
    """Durable first, archived when it is closed."""
    assert decide(observed, LIMITS) == actions


@pytest.mark.parametrize(
    ("flushes", "flush"),
    [
        # goes on where the last flush ended, or covers more of them
        (Flushes.start(20).flushed(24), Flush(24, 27)),
        # a counter of another part, one that is further than the chunks, one of a doubt
        (Flushes.start(10).flushed(14), Flush(20, 27)),
        (Flushes.start(0), Flush(20, 27)),
        (Flushes.start(20).flushed(25), Flush(20, 27)),
    ],
)
def test_where_a_flush_begins(flushes: Flushes, flush: Flush) -> None:
    """Where the counter says, if that leaves no hole; else with the part."""
    held = has((0, 10), (10, 20), (20, 24))
    observed = replace(told(27, held, due=True), flushes=flushes)
    assert decide(observed, LIMITS) == (flush,)


def test_sixteen_flushes_become_one_chunk() -> None:
    """Beside the next flush, which does not wait for that; not where a full chunk will do."""
    limits = replace(LIMITS, grid=Grid(100), full_chunk=100)
    flushes = Flushes.start(0)
    for end in range(1, 17):
        flushes = flushes.flushed(end)
    held = has(*((end - 1, end) for end in range(1, 17)))
    observed = replace(told(17, held, due=True), flushes=flushes)
    assert decide(observed, limits) == (Flush(16, 17), Merge(0, 16))
    lost = has(*((end - 1, end) for end in range(1, 16)))
    assert decide(replace(observed, held=lost), limits) == (Flush(0, 17),)
    full = replace(observed, size=100)
    assert decide(full, limits) == (PutChunk(limits.grid.at(0)),)
    assert Merge(0, 16) not in decide(replace(observed, closed=True), limits)


@pytest.mark.parametrize(
    ("size", "late", "actions"),
    [
        # the full chunk is on its way and has the bytes that are due
        (22, False, (PutChunk(part(2)),)),
        # it takes its time: the few bytes up to its end are put
        (22, True, (Flush(14, 20), PutChunk(part(2)))),
        # as many as a part: sending them twice would only take longer
        (24, True, (PutChunk(part(2)),)),
    ],
)
def test_a_full_chunk_that_takes_its_time(
    *, size: int, late: bool, actions: tuple[Action, ...]
) -> None:
    """A flush waits for it once, and no longer."""
    observed = replace(told(size, has((0, 10), (10, 14)), due=True), late=late)
    assert decide(observed, LIMITS) == actions


def test_nothing_of_a_part_is_put_beside_its_full_chunk() -> None:
    """Where nothing of it is durable yet, a flush would have all of its bytes."""
    observed = replace(told(12, Held(), due=True), late=True)
    assert decide(observed, LIMITS) == (PutChunk(part(1)),)


@pytest.mark.parametrize(
    ("size", "closed", "compared"),
    [(4, False, [(0, 4)]), (3, False, []), (9, False, [(0, 4), (2, 9)]),
     (3, True, [(0, 4), (2, 9), (0, 12)])],
)  # fmt: skip
@pytest.mark.parametrize("chunked", [True, False])
def test_chunks_that_were_found_are_compared_first(
    *, size: int, closed: bool, compared: list[tuple[int, int]], chunked: bool
) -> None:
    """As soon as their bytes have passed, or it is known that they never will; alone."""
    held = Held(listed=chunks((0, 4), (2, 9), (0, 12)))
    actions = decide(told(size, held, closed=closed, due=True, chunked=chunked), LIMITS)
    assert actions == ((Compare(chunks(*compared).all),) if compared else ())


def test_chunks_that_were_not_compared_are_not_put_again_nor_deleted() -> None:
    """They may be ours, and then they are durable; what they cover may not go yet."""
    held = Held(chunks=chunks((0, 4)), listed=chunks((0, 30)))
    assert decide(told(15, held, due=True), LIMITS) == ()
    held = replace(held, chunks=chunks((0, 3), (0, 4)))
    superfluous = DeleteChunks(frozenset({chunk(0, 3)}))
    assert decide(told(15, held, due=True), LIMITS) == (superfluous,)


def test_parts_are_copied_where_a_chunk_has_exactly_their_bytes() -> None:
    """A range that does not line up, and the short last part, are sent."""
    held = Held(upload_id="u", chunks=chunks((0, 10), (8, 22), (20, 30), (30, 35)))
    parts = (
        CopyPart(part(1), chunk(0, 10)),
        PutPart(part(2)),
        CopyPart(part(3), chunk(20, 30)),
        PutPart(part(4, 35)),
    )
    for chunked in (True, False):
        assert decide(told(35, held, closed=True, chunked=chunked), LIMITS) == parts


def test_a_closed_binlog_that_has_chunks_goes_on_with_them() -> None:
    """So that a part is durable when it is there, and not only when the upload is completed."""
    held = has((0, 10))
    coming = (PutChunk(part(2)), PutChunk(part(3)))
    found = decide(told(35, held, closed=True), LIMITS)
    assert found == (*coming, CreateUpload(copying=True))
    held = replace(held, upload_id="u")
    rest = (CopyPart(part(1), chunk(0, 10)), PutPart(part(4, 35)))
    assert decide(told(35, held, closed=True), LIMITS) == (*coming, *rest)
    held = replace(held, parts=uploaded(1, 2, 4).parts)
    assert decide(told(35, held, closed=True), LIMITS) == (coming[1],)
    assert decide(told(35, held, closed=True, chunked=False), LIMITS) == (PutPart(part(3)),)
    uncopied = replace(told(35, held, closed=True), copies=False)
    assert decide(uncopied, LIMITS) == (PutPart(part(3)),)


def test_copies_where_the_store_makes_none() -> None:
    """The bytes are sent."""
    whole = has((0, 10), (10, 20))
    uncopied = replace(told(20, replace(whole, upload_id="u"), closed=True), copies=False)
    assert decide(uncopied, LIMITS) == (PutPart(part(1)), PutPart(part(2)))
    assert decide(replace(uncopied, held=whole), LIMITS) == (CreateUpload(copying=False),)


def test_a_part_that_was_there_already_is_compared_before_it_is_sent() -> None:
    """It counts if it has our bytes; else it is sent, or copied, as if it were not there."""
    held = replace(has((0, 10)), upload_id="u", offered={1: info(1), 3: info(3)})
    actions = decide(told(25, held, closed=True, chunked=False), LIMITS)
    assert actions == (TakeUp(part(1), info(1)), PutPart(part(2)), TakeUp(part(3, 25), info(3)))
    ours, others = actions[0].learned(held, True), actions[0].learned(held, False)
    assert (ours.parts, ours.offered) == ({1: info(1)}, {3: info(3)})
    assert (others.parts, others.offered) == ({}, {3: info(3)})
    copied = CopyPart(part(1), chunk(0, 10))
    assert decide(told(25, others, closed=True, chunked=False), LIMITS)[0] == copied


def test_chunks_left_from_before_become_parts_without_a_flush_interval() -> None:
    """While the binlog grows, as any part; what is superfluous goes, nothing is put."""
    held = has((0, 10), (10, 14), (10, 15))
    superfluous = DeleteChunks(frozenset({chunk(10, 14)}))
    found = decide(told(25, held, due=True, chunked=False), LIMITS)
    assert found == (superfluous, CreateUpload(copying=True))
    found = decide(told(25, replace(held, upload_id="u"), due=True, chunked=False), LIMITS)
    assert found == (superfluous, CopyPart(part(1), chunk(0, 10)), PutPart(part(2)))
