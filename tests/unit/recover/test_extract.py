"""The bytes of a plan's pieces: exactly those, proved before they are handed on, or an error."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

import pytest

from binlog2s3.archive.ahead import MOST_AHEAD, MOST_THREADS, Ahead
from binlog2s3.archive.catalog import Catalog
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.recover.extract import stream_of
from binlog2s3.recover.model import Checked, OpenStream, PlanPiece
from tests.binlog_writer import BEGIN, ROWS, UUID_B, XID, BinlogWriter, statement
from tests.documents import ID, LINEAGE, NAME, like
from tests.snapshots import (
    BLOCK,
    KEY,
    LAYOUT,
    MARIADB,
    Bucket,
    Leaky,
    expected,
    piece_of,
    taken,
    written,
)
from tests.unit.recover.test_snapshot import BINLOGS, mariadb, without_gtids
from tests.waiting import wait_until

SMALL = written()
LARGE = written(26, 700_000)
"""Four blocks and some; transactions lie across every edge."""


def read_by(extract: OpenStream, pieces: Sequence[PlanPiece], into: list[Checked]) -> None:
    for _, checked in extract(pieces):
        into.extend(checked)


def extracted(bucket: Bucket, *pieces: PlanPiece) -> list[bytes]:
    found = []
    for piece, checked in stream_of(bucket.snapshot(), pieces):
        data, done = taken(list(checked))
        assert len(done) == piece.transactions
        found.append(data)
    return found


def refused(bucket: Bucket, piece: PlanPiece, match: str) -> bytes:
    """The error, and what was handed on before it."""
    given: list[Checked] = []
    with pytest.raises((ArchiveError, RecoveryError), match=match) as caught:
        read_by(partial(stream_of, bucket.snapshot()), [piece], given)
    assert caught.value.hint
    return b"".join(one.data for one in given)


def test_every_cut_of_an_archived_binlog() -> None:
    """From each transaction to each: magic, format event, those bytes, those transactions."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    extract = partial(stream_of, bucket.snapshot())
    pieces = [piece_of(SMALL.transactions, a, b) for a, b in combinations(range(13), 2)]
    for piece, checked in extract(pieces):
        data, done = taken(list(checked))
        assert data == expected(SMALL.data, piece)
        inside = [t for t in SMALL.transactions if piece.begin <= t.begin < piece.end]
        assert done == inside


@pytest.mark.parametrize("state", ["archived", "open"])
def test_cuts_around_the_edges_of_blocks(state: str) -> None:
    """Also where a transaction, an event, or a header lies across one."""
    bucket = Bucket()
    if state == "archived":
        bucket.archive(LARGE.data)
    else:
        bucket.chunks(LARGE.data, 0, 1000, 3 << 20, 8 << 20, (8 << 20) + 5, len(LARGE.data))
    cuts = [(0, 26), (0, 1), (3, 9), (5, 6), (6, 7), (5, 18), (17, 26), (25, 26), (12, 24)]
    pieces = [piece_of(LARGE.transactions, a, b) for a, b in cuts]
    assert extracted(bucket, *pieces) == [expected(LARGE.data, piece) for piece in pieces]


def test_a_header_across_the_edge_of_a_block() -> None:
    """At each of its bytes."""
    filler = BLOCK - len(written(1, 10, rotate=False).data)
    for off in (-25, -19, -18, -10, -1, 0, 1):
        binlog = written(1, filler - 150 + off, rotate=False)
        slack = BLOCK - len(binlog.data)
        assert 0 < slack < 400
        for number in range(4):
            binlog.transaction([BEGIN, XID], gtid=(UUID_B, "", number + 1))
        bucket = Bucket()
        bucket.archive(binlog.data)
        cuts = list(combinations(range(6), 2))[::2]
        pieces = [piece_of(binlog.transactions, a, b) for a, b in cuts]
        assert extracted(bucket, *pieces) == [expected(binlog.data, piece) for piece in pieces]


@pytest.mark.parametrize("begin", ["0", "4", "head", "first"])
@pytest.mark.parametrize("end", ["last", "size"])
def test_a_whole_binlog(begin: str, end: str) -> None:
    """However its begin and end are said, the format event comes once, and nothing is lost."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    ends = SMALL.ends
    begins = {"0": 0, "4": 4, "head": ends[1], "first": ends[2]}
    piece = replace(
        piece_of(SMALL.transactions, 0, 12),
        begin=begins[begin],
        end=SMALL.transactions[-1].end if end == "last" else len(SMALL.data),
    )
    middle = SMALL.data[max(piece.begin, ends[1]) : piece.end]
    assert extracted(bucket, piece) == [bytes(SMALL.data[: ends[1]] + middle)]


def test_a_binlog_without_transactions() -> None:
    """Its events go along, if a plan wants them; a piece of nothing is no piece."""
    binlog = written(0)
    bucket = Bucket()
    bucket.archive(binlog.data)
    whole = PlanPiece(
        lineage=ID, binlog=NAME, begin=0, end=len(binlog.data), transactions=0, gtids=GtidSet()
    )
    assert extracted(bucket, whole) == [bytes(binlog.data)]
    for nothing in (replace(whole, end=0), replace(whole, begin=len(binlog.data))):
        assert refused(bucket, nothing, "is not as planned") == b""


@pytest.mark.parametrize(
    "without", [(0,), (11,), (4,), (0, 1), (10, 11), (0, 5, 6, 11), tuple(range(1, 12))]
)
def test_what_is_left_out(without: tuple[int, ...]) -> None:
    """At the begin, at the end, between, over several blocks: none of its bytes."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    piece = piece_of(SMALL.transactions, 0, 12, without=without)
    assert extracted(bucket, piece) == [expected(SMALL.data, piece)]
    bucket.archive(LARGE.data)
    piece = piece_of(LARGE.transactions, 1, 25, without=range(3, 22))
    assert extracted(bucket, piece) == [expected(LARGE.data, piece)]


def test_many_binlogs_and_lineages_in_one_stream() -> None:
    """Each with its own format event and transactions, in the order of the plan."""
    other = like(Bucket().lineage, id=ID[:-1] + "0")
    bucket = Bucket()
    bucket.put(LAYOUT.lineage(other.id), other.to_json())
    pieces, wanted = [], []
    for number in range(30):
        bucket.lineage = other if number >= 20 else like(other, id=ID)
        name = BinlogName.parse(f"mysql-bin.{number + 1:06}")
        binlog = written(3, 100 + number, first=1 + 3 * number, checksum=number % 2 == 0)
        bucket.archive(binlog.data, name)
        piece = piece_of(binlog.transactions, 0, 3, name=name, lineage=bucket.lineage.id)
        pieces.append(piece)
        wanted.append(expected(binlog.data, piece))
    assert extracted(bucket, *pieces) == wanted
    assert bucket.calls["open"] == 30  # one request a binlog


def test_only_the_blocks_of_a_piece_are_fetched() -> None:
    """And the head of the binlog."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    (in_third,) = [t for t in LARGE.transactions if t.begin < 9 << 20 < t.end]
    number = LARGE.transactions.index(in_third)
    piece = piece_of(LARGE.transactions, number, number + 1)
    extracted(bucket, piece)
    assert sorted((one.begin, one.end) for one in bucket.asked) == [
        (0, 8192),
        (2 * BLOCK, 3 * BLOCK),
    ]


OF_EACH = BINLOGS | {
    "checksums": without_gtids("9.7.4", checksum=True),
    "deferred, no checksums": mariadb(deferred=True, checksum=False),
}


@pytest.mark.parametrize("which", OF_EACH)
def test_each_flavour(which: str) -> None:
    """With GTIDs and without, and where events inside transactions leave out their position."""
    is_mariadb = which == "mariadb" or "deferred" in which
    binlog, bucket = OF_EACH[which], Bucket(MARIADB if is_mariadb else LINEAGE)
    bucket.archive(binlog.data)
    count = len(binlog.transactions)
    cuts = list(combinations(range(count + 1), 2))[::5]
    pieces = [piece_of(binlog.transactions, a, b) for a, b in cuts]
    pieces += [piece_of(binlog.transactions, 1, count, without=(3, 4, 7))]
    assert extracted(bucket, *pieces) == [expected(binlog.data, piece) for piece in pieces]


def test_several_format_events() -> None:
    """The last one at or before a piece's begin stands at its head; those within go along."""
    binlog = written(7, 700_000, rotate=False)
    second = len(binlog.data)
    binlog._trailer = 0
    binlog._format("9.7.5", algorithm=0, in_use=False)
    for number in range(7):
        binlog.transaction([BEGIN, statement("x" * 700_000), XID], gtid=(UUID_B, "", number + 1))
    bucket = Bucket()
    bucket.archive(binlog.data)
    snapshot = bucket.snapshot()
    assert snapshot.known(ID, NAME).formats == (4, second)
    size = binlog.ends[binlog.ends.index(second) + 1] - second
    cuts = list(combinations(range(15), 2))[::4]
    pieces = [piece_of(binlog.transactions, a, b) for a, b in cuts]
    heads = [second if a >= 7 else 4 for a, _ in cuts]
    wanted = [expected(binlog.data, p, head) for p, head in zip(pieces, heads, strict=True)]
    assert extracted(bucket, *pieces) == wanted
    at_format = replace(pieces[0], begin=second, end=binlog.transactions[7].end)
    at_format = replace(at_format, transactions=1, gtids=GtidSet.parse(f"{UUID_B}:1"))
    head = binlog.data[:4] + binlog.data[second : second + size]
    body = binlog.data[binlog.transactions[7].begin : binlog.transactions[7].end]
    assert extracted(bucket, at_format) == [bytes(head + body)]


# What is not as it was


@pytest.mark.parametrize("block", [0, 1, 2, 4])
def test_a_flipped_byte_is_never_handed_on(block: int) -> None:
    """The error names object, range and both sums; all that was given before it is right."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    piece = piece_of(LARGE.transactions, 0, 26)
    sum_of = bucket.snapshot().known(ID, NAME).blocks[block].crc64
    wrong = bytearray(LARGE.data)
    wrong[block * BLOCK + 300_000] ^= 1
    bucket.put(KEY, bytes(wrong))
    said = f"{KEY}.* bytes {block * BLOCK} to .* are damaged, read twice.*{sum_of:016x}"
    given = refused(bucket, piece, said)
    before = len(expected(LARGE.data, replace(piece, end=max(block * BLOCK, piece.begin))))
    assert given == (expected(LARGE.data, piece)[:before] if block else b"")


@pytest.mark.parametrize("where", ["head", "block"])
def test_a_read_that_was_rotten_once(where: str) -> None:
    """Is made again, and nobody notices."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    rotten: list[str] = []

    def rot(_: str, begin: int, data: bytes) -> bytes:
        if not rotten and (begin == 0) == (where == "head"):
            rotten.append("once")
            return data[:50] + bytes([data[50] ^ 1]) + data[51:]
        return data

    bucket.rot = rot
    piece = piece_of(LARGE.transactions, 8, 14)
    assert extracted(bucket, piece) == [expected(LARGE.data, piece)]
    assert rotten


def test_an_event_whose_own_checksum_is_wrong() -> None:
    """Its end is not handed on even if the block is as it was; nobody has noted such damage."""
    wrong = bytearray(SMALL.data)
    fifth = SMALL.transactions[5]
    wrong[fifth.begin + 120] ^= 1
    bucket = Bucket()
    bucket.archive(SMALL.data)
    entry = bucket.get(LAYOUT.entry(ID, NAME))
    right, bad = Scanner(), bucket.snapshot().known(ID, NAME).blocks[0].crc64
    right.feed(SMALL.data)
    bucket.archive(wrong, accept=[offset for offset in SMALL.ends if offset > fifth.begin][:1])
    changed = bucket.snapshot().known(ID, NAME).blocks[0].crc64
    entry = entry.replace(f"{bad:016x}".encode(), f"{changed:016x}".encode())
    bucket.put(LAYOUT.entry(ID, NAME), entry)
    given = refused(bucket, piece_of(SMALL.transactions, 0, 12), "wrong CRC32")
    assert given == bytes(SMALL.data[: SMALL.ends[1]])


@pytest.mark.parametrize("at", [0, 40, 130])
def test_damage_that_is_known(at: int) -> None:
    """Passes where it is left out, with all behind it; else nothing of the piece is handed on."""
    wrong = bytearray(SMALL.data)
    fifth = SMALL.transactions[5]
    begins = [end for end in SMALL.ends if fifth.begin <= end < fifth.end]
    damaged = max(begin for begin in begins if begin <= fifth.begin + at)
    wrong[fifth.begin + at + 25] ^= 1
    bucket = Bucket()
    bucket.archive(wrong, accept=[damaged])
    (place,) = bucket.snapshot().known(ID, NAME).damaged
    assert place[0] == damaged
    without = piece_of(SMALL.transactions, 0, 12, without=[5])
    assert extracted(bucket, without) == [expected(SMALL.data, without)]
    assert refused(bucket, piece_of(SMALL.transactions, 0, 12), f"damaged from {damaged}") == b""
    fine = piece_of(SMALL.transactions, 6, 12)
    assert extracted(bucket, fine) == [expected(SMALL.data, fine)]


def contradictions() -> Iterator[tuple[str, PlanPiece]]:
    right = piece_of(LARGE.transactions, 2, 20, without=(5,))
    gtids = right.gtids
    assert isinstance(gtids, GtidSet)
    yield "begin", replace(right, begin=right.begin + 1)
    yield "begin", replace(right, begin=LARGE.ends[LARGE.ends.index(right.begin) + 1])
    yield "end", replace(right, end=right.end - 1)
    yield "end", replace(right, end=LARGE.ends[LARGE.ends.index(right.end) - 1])
    yield "left out", replace(right, left_out=((right.left_out[0][0] + 1, right.left_out[0][1]),))
    yield "left out", replace(right, left_out=((right.left_out[0][0], right.left_out[0][1] + 9),))
    yield "count", replace(right, transactions=right.transactions - 1)
    yield "count", replace(right, transactions=right.transactions + 1)
    yield "gtids", replace(right, gtids=GtidSet())
    yield "gtids", replace(right, gtids=gtids | GtidSet.parse(f"{UUID_B}:1"))
    for number in (9, 19):  # one in the middle, and the last one
        lacking = gtids - GtidSet.parse(str(LARGE.transactions[number].gtid))
        yield (
            f"the plan does not have {LARGE.transactions[number].gtid}",
            replace(right, gtids=lacking),
        )
    yield "order", replace(right, left_out=((right.end, right.end + 9),))
    yield "order", replace(right, begin=right.end, end=right.begin, left_out=())
    yield "size", replace(right, end=len(LARGE.data) + 1)


@pytest.mark.parametrize(("what", "piece"), list(contradictions()))
def test_a_plan_that_is_wrong(what: str, piece: PlanPiece) -> None:
    """Begin, end, number, GTIDs: refused before the last bytes of the piece are handed on."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    given = refused(bucket, piece, f"{NAME} of {ID}, bytes {piece.begin} to {piece.end}, is not")
    assert len(given) < 4 * BLOCK, what
    assert LARGE.data[LARGE.transactions[19].begin :][:50] not in given


def test_a_mariadb_plan_that_is_wrong() -> None:
    """The last GTID of each domain and server is what the plan says."""
    binlog = BinlogWriter(server_version="11.4.2-MariaDB-log")
    for number in range(3):
        binlog.mariadb_transaction([ROWS, XID], gtid=(0, number + 1))
    bucket = Bucket(MARIADB)
    bucket.archive(binlog.data)
    piece = replace(piece_of(binlog.transactions, 0, 3), gtids=MariadbGtidList.parse("0-7-2"))
    assert refused(bucket, piece, "0-7-3") == bytes(binlog.data[: binlog.ends[1]])


# What moves meanwhile


WHOLE = piece_of(LARGE.transactions, 0, 26)
CHUNKS = (0, *range(1 << 20, 17 << 20, 1 << 20), len(LARGE.data))


def test_an_open_binlog_that_is_archived_under_the_reader() -> None:
    """After the first block: the rest comes from the object, of the same bytes, no more of them."""
    bucket = Bucket()
    size = LARGE.transactions[20].end + 40
    keys = bucket.chunks(LARGE.data, 0, 5 << 20, 10 << 20, size)
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    assert (known.state, known.size) == ("open", size)
    assert known.transaction_end == LARGE.transactions[20].end
    bucket.archive(LARGE.data)
    bucket.delete(keys)
    piece, given = piece_of(LARGE.transactions, 0, 21), list[Checked]()
    read_by(partial(stream_of, snapshot), [piece], given)
    assert taken(given)[0] == expected(LARGE.data, piece)
    assert {one.key for one in bucket.asked} == {*keys, KEY}


def test_of_many_binlogs_it_is_looked_up_again_where_the_bytes_are() -> None:
    """What was noted of the first one is forgotten after thousands of others."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    elsewhere = Catalog(bucket, LAYOUT).binlog(LINEAGE, NAME)
    for number in range(1, 5000):
        snapshot.blocks.note(LINEAGE, BinlogName("other", number), elsewhere)
    assert len(snapshot.blocks._readables) < 5000
    asked = len(bucket.asked)
    assert bytes(snapshot.blocks.block(known, 0)) == bytes(SMALL.data)
    assert len(bucket.asked) == asked + 1


def test_chunks_that_were_replaced_between_two_blocks() -> None:
    """Each time the reader looks again and finds the bytes where they lie now."""
    bucket, given = Leaky(), list[Checked]()
    keys = bucket.chunks(LARGE.data, *CHUNKS)
    snapshot = bucket.snapshot()
    snapshot.known(ID, NAME)

    def replace_by(begin: int, end: int, *gone: str) -> None:
        bucket.chunk(LARGE.data, begin, end)
        bucket.delete(gone)

    bucket.lose[keys[1]] = lambda: replace_by(0, 3 << 20, *keys[:3])
    bucket.lose[keys[7]] = lambda: replace_by(5 << 20, 9 << 20, *keys[5:9])
    bucket.lose[keys[15]] = lambda: replace_by(0, 16 << 20, *keys[:16])
    # one at a time: one that is replaced early is never asked for
    read_by(partial(stream_of, snapshot, concurrency=1), [WHOLE], given)
    assert taken(given)[0] == expected(LARGE.data, WHOLE)
    assert bucket.lose == {}


def test_a_hole_that_is_there_for_a_moment() -> None:
    """A chunk is gone, and what covers it shows only after some looks: nothing is read past it."""
    bucket, given = Leaky(), list[Checked]()
    keys = bucket.chunks(LARGE.data, *CHUNKS)
    snapshot = bucket.snapshot()
    snapshot.known(ID, NAME)
    listed = bucket.calls["list"]

    def cover(operation: str) -> None:
        if operation == "list" and bucket.calls["list"] >= listed + 5:
            bucket.on_call = lambda _: None
            bucket.chunk(LARGE.data, 0, 8 << 20)

    bucket.lose[keys[5]] = lambda: bucket.delete([keys[5]])
    bucket.on_call = cover
    read_by(partial(stream_of, snapshot), [WHOLE], given)
    assert taken(given)[0] == expected(LARGE.data, WHOLE)
    assert bucket.calls["list"] > listed + 5


@pytest.mark.parametrize("state", ["archived", "open", "shorter"])
def test_what_is_gone_is_an_error(state: str) -> None:
    """After a bounded number of looks; what was handed on before is right."""
    bucket, given = Bucket(), list[Checked]()
    keys = bucket.chunks(LARGE.data, 0, 5 << 20, len(LARGE.data))
    if state != "open":
        bucket.archive(LARGE.data)
        bucket.delete(keys)
        keys = [KEY]
    snapshot = bucket.snapshot()
    snapshot.known(ID, NAME)
    if state == "shorter":
        bucket.put(KEY, bytes(LARGE.data[: 9 << 20]))
    else:
        bucket.before_open = lambda _, begin: begin and bucket.delete(keys[-1:])
    said = r"missing now|no byte of|ends at|bytes, its entry says"
    with pytest.raises((ArchiveError, StoreError), match=said):
        read_by(partial(stream_of, snapshot, concurrency=1), [WHOLE], given)
    data = taken(given)[0]
    assert data == expected(LARGE.data, WHOLE)[: len(data)]
    assert bucket.calls["list"] < 60


# Fetching ahead


class Slow(Bucket):
    """Holds every read until it is let go; knows how many are held at most."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.held = 0
        self.most = 0

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        with self.lock:
            self.held += 1
            self.most = max(self.most, self.held)
        assert self.gate.wait(600)
        with self.lock:
            self.held -= 1
        yield from super().open(key, begin, end)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_so_many_at_a_time(concurrency: int) -> None:
    """Over the edges of small binlogs; never more than is allowed, and not more than it holds."""
    bucket = Slow()
    pieces = []
    for number in range(40):
        name = BinlogName.parse(f"mysql-bin.{number + 1:06}")
        binlog = written(2, first=1 + 2 * number)
        bucket.archive(binlog.data, name)
        pieces.append(piece_of(binlog.transactions, 0, 2, name=name))
    extract = partial(stream_of, bucket.snapshot(), concurrency=concurrency)
    allowed = min(concurrency, MOST_THREADS)
    stream = extract(pieces)
    _, checked = next(stream)
    first: list[Checked] = []
    reader = threading.Thread(target=lambda: first.extend(checked), daemon=True)
    reader.start()
    wait_until(lambda: bucket.held == allowed, what="all threads at work")
    bucket.gate.set()
    reader.join(60)
    assert first
    limit = min(allowed + 2, MOST_AHEAD) + 1
    wait_until(lambda: len(bucket.asked) >= limit - 1, what="as many as may be held")
    assert len(bucket.asked) <= limit
    assert bucket.most <= allowed
    rest = [taken(list(checked))[0] for _, checked in stream]
    assert len(rest) == 39
    assert len(bucket.asked) == 40


def test_closing_it_early_ends_the_threads() -> None:
    """Whatever they are doing; nobody waits for them."""
    bucket = Slow()
    bucket.archive(LARGE.data)
    snapshot = bucket.snapshot()
    snapshot.known(ID, NAME)
    before = {one for one in threading.enumerate() if one.name.startswith("ahead-")}

    def ours() -> list[threading.Thread]:
        now = [one for one in threading.enumerate() if one.name.startswith("ahead-")]
        return [one for one in now if one not in before]

    stream = stream_of(snapshot, [piece_of(LARGE.transactions, 0, 26)])
    _, checked = next(stream)
    reader = threading.Thread(target=lambda: next(checked, None), daemon=True)
    reader.start()
    wait_until(lambda: bucket.held >= 5, what="threads at work")
    assert all(one.daemon for one in ours())
    bucket.gate.set()
    reader.join(60)
    bucket.gate.clear()
    stream.close()
    bucket.gate.set()
    wait_until(lambda: not ours(), what="the threads' end")


def test_a_piece_that_is_not_read_to_its_end() -> None:
    """Is not passed over in silence."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    pieces = [piece_of(SMALL.transactions, 0, 3), piece_of(SMALL.transactions, 3, 6)]
    stream = stream_of(bucket.snapshot(), pieces)
    _, checked = next(stream)
    next(checked)
    with pytest.raises(RecoveryError, match="not read to its end"):
        next(stream)


def test_a_plan_that_is_wrong_in_its_last_piece_is_refused_before_the_first() -> None:
    """As far as that can be told without reading."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    right = piece_of(SMALL.transactions, 0, 3)
    given: list[Checked] = []
    with pytest.raises(RecoveryError):
        read_by(partial(stream_of, bucket.snapshot()), [right, replace(right, end=1 << 40)], given)
    assert given == []


def results(tasks: Sequence[int], *, first: int, most: int) -> tuple[list[int], list[int]]:
    begun: list[int] = []
    seen: list[int] = []

    def task(number: int) -> int:
        begun.append(number)
        return number

    ahead = Ahead((lambda n=n: task(n) for n in tasks), threads=2, most=most, first=first)
    lead = []
    for found in ahead:
        seen.append(found)
        lead.append(len(seen) + most)
        assert len(begun) <= min(len(seen) * 2 + first, lead[-1])
    return seen, begun


def test_results_come_in_order_and_more_of_them_ahead_with_time() -> None:
    """One that is soon given up has fetched little that it does not need."""
    seen, begun = results(range(50), first=1, most=4)
    assert seen == list(range(50))
    assert sorted(begun) == seen


def test_threads_that_do_not_start() -> None:
    """Without any it is as if the store did not answer; with one, it only takes longer."""
    tasks = [lambda n=n: n for n in range(9)]
    before = threading.stack_size(1 << 46)  # more than there is
    try:
        with pytest.raises(StoreError, match="can't start new thread") as caught:
            list(Ahead(tasks, threads=2))
    finally:
        threading.stack_size(before)
    assert caught.value.transient
    ahead = Ahead(tasks, threads=2, first=1)
    found = [next(ahead), next(ahead)]  # the first needs no thread
    before = threading.stack_size(1 << 46)
    try:
        found += ahead
    finally:
        threading.stack_size(before)
    assert found == list(range(9))
