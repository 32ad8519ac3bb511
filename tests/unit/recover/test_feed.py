"""What a replication source sends of a recovery's pieces, and how far ahead it may be."""

import struct
import threading
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import Checked, PlanPiece, Stream
from binlog2s3.recover.plan_source import PlanSource, SentMark, Window, binlogs
from binlog2s3.replication.events import WHOLE_MOST
from binlog2s3.replication.feed import Feed
from binlog2s3.replication.login import Account
from binlog2s3.replication.protocol import DumpByPosition
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.send import Sender
from binlog2s3.replication.source import Client
from tests.binlog_writer import ROWS, BinlogWriter
from tests.documents import NAME
from tests.got import Got
from tests.sampling import examples
from tests.snapshots import checked_of, piece_of, written
from tests.waiting import wait_until

SECOND = BinlogName.parse("mysql-bin.000003")
SIZE_AT, KIND_AT = 9, 4
FORMAT, ROTATE = EventType.FORMAT_DESCRIPTION, EventType.ROTATE


def stream(*pieces: tuple[PlanPiece, BinlogWriter], cut: int = 1000) -> Stream:
    """As `Extract.stream`: the head, then the bytes, cut anywhere."""
    for piece, binlog in pieces:
        yield piece, checked_of(binlog, piece, cut)


def feed(**changes: object) -> Feed:
    return Feed(**({"server_id": 42, "checksum": True} | changes))  # type: ignore[arg-type]


def sending(to: Feed, pieces: Stream, window: Window | None = None, got: Got | None = None) -> Got:
    """What a client has got after all of it."""
    got, window = got or Got(), window or Window()
    sender = Sender(
        cast("Client", got), by_position("", 4), to, ended=lambda _: False,
        has_room=window.has_room,
    )  # fmt: skip
    sender.send(binlogs(pieces, window))
    return got


def sent(to: Feed, pieces: Stream) -> list[bytes]:
    """The events, whole."""
    found = [bytes(event) for event in sending(to, pieces).events]
    for event in found:
        assert len(event) == int.from_bytes(event[SIZE_AT : SIZE_AT + 4], "little")
        assert zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")
    return found


def kinds(found: Sequence[bytes]) -> list[int]:
    return [event[KIND_AT] for event in found]


def place(event: bytes) -> tuple[int, str]:
    """What a rotate event says."""
    return struct.unpack_from("<Q", event, 19)[0], event[27:-4].decode()


def created(event: bytes) -> int:
    return int.from_bytes(event[19 + 52 : 19 + 56], "little")


@pytest.mark.parametrize("cut", [1, 7, 19, 1000, 1 << 20])
def test_every_piece_begins_with_a_rotate_and_a_format_event(cut: int) -> None:
    """However the bytes are cut; the events themselves are those of the binlog."""
    binlog = written(12)
    piece = piece_of(binlog.transactions, 3, 9)
    found = sent(feed(), stream((piece, binlog), cut=cut))
    assert kinds(found[:2]) == [ROTATE, FORMAT]
    assert place(found[0]) == (piece.begin, piece.served_name)
    assert found[0][:4] == bytes(4), "an artificial event has no time"
    assert found[1][13:17] == bytes(4), "it does not lie at this place"
    assert b"".join(found[2:]) == bytes(binlog.data[piece.begin : piece.end])


def test_the_next_binlog_goes_on_where_the_server_did() -> None:
    """Temporary tables are kept within a lineage, and dropped where another server begins."""
    one, two = written(3), written(3, first=4)
    struct.pack_into("<I", one.data, 4 + 19 + 52, 77)
    first = piece_of(one.transactions, 0, 3)
    for lineage, was_started in ((first.lineage, 0), ("another", 1)):
        second = piece_of(two.transactions, 0, 3, name=SECOND, lineage=lineage)
        struct.pack_into("<I", two.data, 4 + 19 + 52, was_started * 99)
        found = sent(feed(), stream((first, one), (second, two)))
        formats = [event for event in found if event[KIND_AT] == FORMAT]
        assert [created(event) for event in formats] == [77, was_started * 99]
        rotates = [place(event) for event in found if event[KIND_AT] == ROTATE]
        assert rotates == [(first.begin, first.served_name), (second.begin, second.served_name)]


def test_what_is_left_out_is_followed_by_the_true_position() -> None:
    """A rotate event and a format event, once, before the next event that is sent."""
    binlog = written(12)
    struct.pack_into("<I", binlog.data, 4 + 19 + 52, 77)
    piece = piece_of(binlog.transactions, 0, 9, without=[3, 4])
    found = sent(feed(), stream((piece, binlog)))
    again = [number for number, kind in enumerate(kinds(found)) if kind == ROTATE][1]
    assert place(found[again]) == (binlog.transactions[5].begin, piece.served_name)
    assert found[again + 1][KIND_AT] == FORMAT
    assert created(found[again + 1]) == 0
    assert kinds(found).count(ROTATE) == 2
    others = [event for event in found if event[KIND_AT] not in (ROTATE, FORMAT)]
    data, one = binlog.data, binlog.transactions
    kept = bytes(data[piece.begin : one[3].begin] + data[one[5].begin : piece.end])
    assert b"".join(others) == kept


def test_positions_go_on_past_4_gib() -> None:
    """Headers have 32 bits; what is left out is told with all of them."""
    binlog = written(6)
    piece = piece_of(binlog.transactions, 0, 6, without=[2])
    to = feed()
    more = 5 << 32
    moved = PlanPiece(
        lineage=piece.lineage, binlog=piece.binlog, begin=piece.begin + more, end=piece.end + more,
        transactions=5, gtids=piece.gtids,
    )  # fmt: skip
    ((_, data),) = stream((piece, binlog))
    found = sent(to, iter([(moved, data)]))
    rotates = [place(event)[0] for event in found if event[KIND_AT] == ROTATE]
    assert rotates == [moved.begin, binlog.transactions[3].begin + more]
    assert to.position == moved.end


def test_events_that_are_not_for_replicas_stay() -> None:
    """The binlog's own rotate, stop and previous GTIDs: their successors may not be served."""
    binlog = written(2, rotate=True)
    size = len(binlog.data) - binlog.ends[1]
    piece = PlanPiece(
        lineage="own", binlog=NAME, begin=binlog.ends[1], end=len(binlog.data), transactions=2,
        gtids=GtidSet(),
    )  # fmt: skip
    to = feed()
    found = sent(to, stream((piece, binlog)))
    assert EventType.PREVIOUS_GTIDS not in kinds(found)
    assert [place(e) for e in found if e[KIND_AT] == ROTATE] == [
        (piece.begin, piece.served_name),
        (binlog.transactions[0].begin, piece.served_name),
        (piece.end, piece.served_name),
    ]
    assert (to.sent, to.position) == (size, piece.end)


def test_events_of_the_replicas_own_server_id_are_refused() -> None:
    """It would pass over them without a word."""
    binlog = written(3)
    at = binlog.transactions[0].begin + 5
    own = int.from_bytes(binlog.data[at : at + 4], "little")
    piece = piece_of(binlog.transactions, 0, 3)
    with pytest.raises(RecoveryError, match=f"server_id {own}, which is the target's own"):
        sent(feed(not_of=own), stream((piece, binlog)))
    assert sent(feed(not_of=own + 1), stream((piece, binlog)))


def test_without_checksums() -> None:
    """The first rotate event is made as the replica was answered, later ones as the binlog is."""
    binlog = written(6, checksum=False)
    piece = piece_of(binlog.transactions, 0, 6, without=[2])
    rotates = sending(feed(), stream((piece, binlog))).of(ROTATE)
    assert zlib.crc32(rotates[0][:-4]) == int.from_bytes(rotates[0][-4:], "little")
    assert rotates[1][27:].decode() == piece.served_name


@settings(max_examples=examples(300), deadline=None)
@given(
    sizes=st.lists(st.sampled_from([20, 1000, WHOLE_MOST, WHOLE_MOST + 1, 200_000]), min_size=1),
    cuts=st.lists(st.floats(0, 1), max_size=30),
)
def test_events_come_whole_in_any_cut(sizes: list[int], cuts: list[float]) -> None:
    """No byte is lost, also of events that are too large to be kept."""
    binlog = written(0, rotate=False)
    begin = len(binlog.data)
    for size in sizes:
        at = len(binlog.data)
        binlog.data += struct.pack("<IBIIIH", 1, 2, 3, size, at + size, 0)
        binlog.data += bytes([size % 251]) * (size - 19)
    data = bytes(binlog.data[begin:])
    places = [0, *sorted(round(cut * len(data)) for cut in cuts), len(data)]
    parts = [Checked(data=data[low:high]) for low, high in pairwise(places)]
    parts.insert(0, Checked(data=head_of(binlog)))
    got = sending(feed(), iter([(whole(binlog, begin), iter(parts))]))
    assert [len(event) for event in got.events[2:]] == sizes
    same = b"".join(got.events[2:]) == bytes(binlog.data[begin:])
    assert same  # the difference of so many bytes would take minutes to show


def head_of(binlog: BinlogWriter) -> bytes:
    return bytes(binlog.data[: binlog.ends[1]])


def whole(binlog: BinlogWriter, begin: int) -> PlanPiece:
    return PlanPiece(
        lineage="l", binlog=NAME, begin=begin, end=len(binlog.data), transactions=0, gtids=GtidSet()
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        *((data, "event") for data in (b"x", bytes(18), bytes(19), MAGIC + bytes(30))),
        *((struct.pack("<IBIIIH", 1, int(ROWS[0]), 3, size, 0, 0) + bytes(size - 20),
           "within an event") for size in (100, 1 << 20)),
    ],
)  # fmt: skip
def test_bytes_that_are_no_events(data: bytes, why: str) -> None:
    """Or end within one, a small or a large one: an error, not a loop."""
    binlog = written(1)
    parts = [Checked(data=head_of(binlog)), Checked(data=data)]
    with pytest.raises(ArchiveError, match=why):
        sending(feed(), iter([(whole(binlog, 999), iter(parts))]))


def test_no_transaction_begins_without_room() -> None:
    """One that has begun is sent to its end; then the source waits, and says that it is there."""
    binlog = written(5, 200_000)
    piece = piece_of(binlog.transactions, 0, 5)
    size = binlog.transactions[0].end - binlog.transactions[0].begin
    window, got = Window(2 * size + 1), Got()
    thread = threading.Thread(
        target=sending, args=(feed(), stream((piece, binlog)), window, got), daemon=True
    )
    thread.start()
    for number in (3, 4):
        wait_until(lambda: got.of(EventType.HEARTBEAT), what="it waits")
        assert len(got.of(EventType.GTID)) == number
        assert place_of(got.of(EventType.HEARTBEAT)[-1]) == binlog.transactions[number - 1].end
        got.events = [one for one in got.events if one[KIND_AT] != EventType.HEARTBEAT]
        window.reached(piece.served_name, binlog.transactions[number - 3].end)
    thread.join(60)
    assert len(got.of(EventType.GTID)) == 5


@pytest.mark.parametrize("row_bytes", [2_000, 60_000])
@pytest.mark.parametrize("cut", [777, 1 << 20])
def test_small_transactions_that_are_sent_together_need_room_too(row_bytes: int, cut: int) -> None:
    """It is asked for often, however the transactions lie in what is sent at once."""
    binlog = written(3 * (1 << 20) // row_bytes, row_bytes)
    piece = piece_of(binlog.transactions, 0, len(binlog.transactions))
    asked: list[int] = []

    class Asked(Window):
        def has_room(self, sent: int, wait_seconds: float) -> bool:
            asked.append(sent)
            return True

    got = sending(feed(), stream((piece, binlog), cut=cut), Asked())
    assert len(got.of(EventType.GTID)) == len(binlog.transactions)
    assert {at + piece.begin for at in asked} <= {one.begin for one in binlog.transactions}
    assert max(b - a for a, b in pairwise([*asked, piece.size])) < 1 << 19


def place_of(heartbeat: bytes) -> int:
    return int.from_bytes(heartbeat[13:17], "little")


def test_what_is_sent_at_once_is_what_is_sent_one_by_one() -> None:
    """Also without what is not for a replica, and however the bytes are cut."""
    binlog = written(40, 2_000)
    pieces = [piece_of(binlog.transactions, 0, 40, without=without) for without in ([], [3, 30])]
    for piece in pieces:
        slow = sending(feed(), stream((piece, binlog), cut=10))
        fast = sending(feed(), stream((piece, binlog), cut=1 << 20))
        assert slow.events == fast.events
        assert fast.many > 100
        assert not slow.many


# the source


def by_position(name: str, position: int) -> DumpByPosition:
    return DumpByPosition(
        server_id=7, uuid="", name=name, position=position, state=None, heartbeat=1.0,
        heartbeat_v2=False,
    )  # fmt: skip


@pytest.mark.parametrize("begin", [0, 4, 197])
def test_one_dump_from_where_the_pieces_begin(begin: int) -> None:
    """No other place, and no second dump: the replica would have something twice, or not at all."""
    piece = PlanPiece(
        lineage="own", binlog=NAME, begin=begin, end=999, transactions=1, gtids=GtidSet()
    )
    identity = Identity(version="9.7.0", flavour="mysql", server_id=42, server_uuid="u")
    first = by_position(piece.served_name, max(begin, 4))
    with PlanSource(identity, Account("u", "p"), (piece,), lambda _: iter(())) as source:
        for wrong in (
            by_position(piece.served_name, 300),
            by_position(piece.served_name, 999),
            by_position("b", 4),
        ):
            assert "is not served" in source._refusal(wrong)
        assert source._refusal(first) == ""
        source.has_client.set()
        assert "one dump only" in source._refusal(first)


# the window


def mark(name: str, position: int, size: int) -> SentMark:
    return SentMark(name=name, position=position, size=size, transactions=0, commit_us=None)


def test_there_is_room_as_the_target_executes() -> None:
    """Marks are places that the target may name; others tell nothing."""
    window = Window(100)
    window.mark(mark("b.1", 50, 50))
    window.mark(mark("b.1", 90, 90))
    window.mark(mark("b.2", 20, 120))
    assert window.has_room(99, 0)
    assert not window.has_room(100, 0)
    window.reached("b.9", 1 << 40)
    window.reached("b.1", 49)
    assert window.size() == 0
    window.reached("b.1", 60)
    assert (window.size(), window.has_room(149, 0)) == (50, True)
    window.reached("b.2", 20)
    assert window.size() == 120
    window.reached("b.1", 90)
    assert window.size() == 120, "it does not go back"


def test_bytes_and_transactions_that_are_executed_agree() -> None:
    """After the first transaction of a part, the rest of that part is not executed yet."""
    done = tuple(
        Transaction(
            begin=at,
            end=at + 100,
            gtid=None,
            commit_us=at,
            commit_exact=True,
            original_commit_us=None,
        )
        for at in range(1000, 3000, 100)
    )
    parts = [Checked(data=bytes(1000), done=done[:10]), Checked(data=bytes(1000), done=done[10:])]
    piece = PlanPiece(
        lineage="l", binlog=SECOND, begin=1000, end=3000, transactions=20, gtids=GtidSet()
    )
    window = Window()
    pieces = iter([(piece, iter([Checked(data=bytes(200)), *parts]))])
    (sent_binlog,) = binlogs(pieces, window)
    assert sum(len(data) for data in sent_binlog.blocks) == 2000
    seen = []
    for position in (1100, 1550, 1999, 2000, 2100, 3000):
        found = window.reached(piece.served_name, position)
        assert found is not None
        seen.append((found.size, found.transactions))
    assert seen == [(0, 1), (400, 5), (800, 9), (1000, 10), (1000, 11), (2000, 20)]


def test_who_waits_is_woken() -> None:
    """By what the target executes, and by the end."""
    for wake in (lambda w: w.reached("b.1", 50), lambda w: w.end()):
        window = Window(10)
        window.mark(mark("b.1", 50, 50))
        answers: list[bool] = []
        thread = threading.Thread(target=lambda w=window, a=answers: a.append(w.has_room(55, 600)))
        thread.start()
        wake(window)
        wait_until(lambda a=answers: a == [True])
        thread.join()
