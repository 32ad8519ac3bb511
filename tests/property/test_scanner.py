"""The scanner against generated binlogs: however they are cut, flipped, torn or entered."""

import contextlib
import itertools
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.scanner import EventType, Scanner, Transaction
from binlog2s3.errors import DamageError
from tests.binlog_writer import (
    BEGIN,
    COMMIT,
    INTVAR,
    NOW_US,
    ROLLBACK,
    ROWS,
    TABLE_MAP,
    UUID_A,
    UUID_B,
    XA_PREPARE,
    XID,
    BinlogWriter,
    statement,
)
from tests.sampling import examples

Event = tuple[int, bytes]

blobs = st.integers(0, 300).map(bytes)
inner: st.SearchStrategy[list[Event]] = st.lists(
    st.one_of(
        blobs.map(lambda blob: (int(EventType.WRITE_ROWS), blob)),
        st.sampled_from([TABLE_MAP, ROWS, INTVAR]),
        st.sampled_from(
            ["SAVEPOINT `a`", "rollback to a", "insert into a values (1)", "COMMIT to memory"]
        ).map(statement),
    ),
    max_size=4,
)
groups = st.builds(
    lambda first, rest, last: [first, *rest, last],
    st.sampled_from([BEGIN, statement("XA START X'31',X'',1")]),
    inner,
    st.sampled_from([XID, COMMIT, ROLLBACK, XA_PREPARE]),
)
single = st.sampled_from(
    [
        [statement("create table a(i int)")],
        [statement("XA COMMIT X'31',X'',1")],
        [(EventType.TRANSACTION_PAYLOAD, bytes(77))],
    ]
)
tags = st.sampled_from(["", "", "", "blue", "_x"])


@st.composite
def mysql_binlogs(draw: Callable[..., Any], *, checksum: bool | None = None) -> BinlogWriter:
    """A binlog of a MySQL from 5.7 to 9, with everything such a binlog can hold."""
    version = draw(st.sampled_from(["5.7.44-log", "8.0.36", "9.7.4"]))
    log = BinlogWriter(
        server_version=version,
        checksum=draw(st.booleans()) if checksum is None else checksum,
        in_use=draw(st.booleans()),
    )
    previous = draw(st.sampled_from(["", f"{UUID_A}:1-9", f"{UUID_A}:1-2:blue:4:7,{UUID_B}:1"]))
    log.previous_gtids(GtidSet.parse(previous))
    modern = version != "5.7.44-log"
    for gno in range(100, 100 + draw(st.integers(0, 5))):
        shift = draw(st.integers(-50, 50))
        tag = draw(tags) if modern else ""
        log.transaction(
            draw(st.one_of(groups, single)),
            gtid=draw(st.sampled_from([None, (UUID_A, tag, gno), (UUID_B, tag, gno)])),
            commit_us=NOW_US + shift if modern else 0,
            original_us=None if draw(st.booleans()) or not modern else NOW_US - 1000,
            with_length=modern and (tag != "" or draw(st.booleans())),
        )
    end_by(log, draw)
    return log


@st.composite
def mariadb_binlogs(draw: Callable[..., Any], *, checksum: bool | None = None) -> BinlogWriter:
    """A binlog of MariaDB, with and without positions inside transactions."""
    deferred = draw(st.booleans())
    log = BinlogWriter(
        server_version="11.8.6-MariaDB-log" if deferred else "10.11.18-MariaDB-log",
        checksum=draw(st.booleans()) if checksum is None else checksum,
        in_use=draw(st.booleans()),
    )
    log.gtid_list(MariadbGtidList.parse(draw(st.sampled_from(["", "0-7-4,0-8-3,1-1-9"]))))
    for seq in range(100, 100 + draw(st.integers(0, 5))):
        gtid = (draw(st.integers(0, 1)), seq)
        if draw(st.booleans()):
            events = [(EventType.ANNOTATE_ROWS, b"x"), *draw(inner), draw(st.sampled_from([XID]))]
            log.mariadb_transaction(events, gtid=gtid, deferred=deferred)
            log.event(EventType.BINLOG_CHECKPOINT, struct.pack("<I", 1) + b"x")
        else:
            events = [INTVAR, statement("create table a(i int)")]
            log.mariadb_transaction(events, gtid=gtid, standalone=True, deferred=deferred)
    end_by(log, draw)
    return log


@st.composite
def plain_binlogs(draw: Callable[..., Any], *, checksum: bool | None = None) -> BinlogWriter:
    """A binlog of a server before GTIDs and checksums."""
    del checksum
    log = BinlogWriter(server_version="5.5.62-log", checksum=False)
    for _ in range(draw(st.integers(0, 5))):
        log.plain_transaction(
            [BEGIN, *draw(inner), draw(st.sampled_from([XID, COMMIT]))]
            if draw(st.booleans())
            else [INTVAR, statement("insert into myisam values (1)")]
        )
    end_by(log, draw)
    return log


def end_by(log: BinlogWriter, draw: Callable[..., Any]) -> None:
    """A rotate event, a stop event, or nothing yet."""
    end = draw(st.sampled_from([None, BinlogWriter.rotate, BinlogWriter.stop]))
    if end is not None:
        end(log)


binlogs = st.one_of(mysql_binlogs(), mariadb_binlogs(), plain_binlogs())
with_gtids = st.one_of(mysql_binlogs(), mariadb_binlogs())
checksummed = st.one_of(mysql_binlogs(checksum=True), mariadb_binlogs(checksum=True))

NO_FACTS = {"received", "feed", "accept", "rewind", "completed", "damage"}
FACTS = [name for name in vars(Scanner) if name[0] != "_" and name not in NO_FACTS]
FACTS += [name for name in vars(Scanner()) if name[0] != "_" and name not in NO_FACTS]


STRIDE = 1500
"""Of the transactions that begin within so many bytes the second scanner returns the first."""


def facts(scanner: Scanner) -> dict[str, object]:
    """Everything that a scanner can be asked."""
    return {name: getattr(scanner, name) for name in FACTS}


class Pair(Scanner):
    """A scanner that returns every transaction, beside one that skips most: they always agree."""

    def __init__(self, start: int = 0) -> None:
        super().__init__(start)
        self._skipping = Scanner(start, stride=STRIDE)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Transaction]:
        """Feed both; compare damage, facts and transactions."""
        damage = [damage_of(one, data) for one in (super().feed, self._skipping.feed)]
        assert damage[0] == damage[1]
        assert facts(self) == facts(self._skipping)
        wanted, firsts = 0, []
        for transaction in self.completed:
            if transaction.begin >= wanted:
                firsts.append(transaction)
                wanted = (transaction.begin // STRIDE + 1) * STRIDE
        assert self._skipping.completed == firsts
        if damage[0] is not None:
            raise DamageError(damage[0][0], offset=damage[0][1])
        return self.completed

    def accept(self, offset: int) -> None:
        """Both do."""
        super().accept(offset)
        self._skipping.accept(offset)

    def rewind(self) -> bool:
        """Both do, or none."""
        rewound = super().rewind()
        assert self._skipping.rewind() == rewound
        return rewound


def damage_of(
    feed_one: Callable[[bytes | bytearray | memoryview], object],
    data: bytes | bytearray | memoryview,
) -> tuple[str, int] | None:
    """What a scanner says of the next bytes if they are damaged."""
    try:
        feed_one(data)
    except DamageError as error:
        return str(error), error.offset
    return None


def feed(scanner: Scanner, data: bytes | bytearray, cuts: list[int]) -> list[Transaction]:
    """Feed `data` cut at `cuts`; what it completed, also if it is damaged."""
    found: list[Transaction] = []
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        try:
            scanner.feed(memoryview(data)[begin:end])
        except DamageError:
            return found + scanner.completed
        found += scanner.completed
    return found


ZEROS = bytes(1 << 20)
cuts = st.lists(st.integers(0, 100_000), max_size=12)


@given(binlogs)
@settings(deadline=None)
def test_every_transaction_is_found_as_it_was_written(log: BinlogWriter) -> None:
    """Bounds, GTIDs and commit times are the writer's; so are the counts."""
    scanner = Pair()
    assert scanner.feed(log.data) == log.transactions
    assert scanner.event_end == scanner.transaction_end == len(log.data)
    assert scanner.events == len(log.ends) - 1
    assert scanner.transactions == len(log.transactions)
    gtids = [t.gtid for t in log.transactions if t.gtid is not None]
    assert scanner.anonymous == len(log.transactions) - len(gtids)
    if scanner.flavour == "mysql":
        assert scanner.gtids == GtidSet.parse(",".join(gtids))
    else:
        assert scanner.gtids == MariadbGtidList.parse(",".join(gtids))
    times = [t.commit_us for t in log.transactions]
    assert scanner.least_commit_us == min(times, default=None)
    assert scanner.greatest_commit_us == max(times, default=None)


@given(binlogs, cuts)
@settings(deadline=None)
def test_pieces_say_what_the_whole_says(log: BinlogWriter, cuts: list[int]) -> None:
    """Wherever the bytes are cut, facts and transactions are the same."""
    whole, pieces = Pair(), Pair()
    transactions = whole.feed(bytes(log.data))
    assert feed(pieces, log.data, cuts) == transactions
    assert facts(pieces) == facts(whole)


@given(binlogs)
@settings(max_examples=15, deadline=None)
def test_single_bytes_say_what_the_whole_says(log: BinlogWriter) -> None:
    """The smallest pieces there are; and transactions come with their last byte, not later."""
    whole, pieces = Pair(), Pair()
    whole.feed(bytes(log.data))
    found = {}
    for at in range(len(log.data)):
        for transaction in pieces.feed(log.data[at : at + 1]):
            found[at + 1] = transaction
    assert found == {t.end: t for t in log.transactions}
    assert facts(pieces) == facts(whole)


@given(checksummed, st.data(), cuts)
@settings(max_examples=examples(400), deadline=None)
def test_a_flipped_bit_is_seen(log: BinlogWriter, data: st.DataObject, cuts: list[int]) -> None:
    """Any changed byte of a checksummed binlog is damage in its event, but for the in-use flag."""
    at = data.draw(st.integers(0, len(log.data) - 1))
    mask = data.draw(st.integers(1, 255))
    flipped = bytearray(log.data)
    flipped[at] ^= mask
    whole, scanner = Pair(), Pair()
    good = whole.feed(log.data)
    found = feed(scanner, flipped, cuts)
    if at == 4 + 17 and mask == 1:
        assert scanner.damage is None
        assert found == good
        return
    begin = max([end for end in log.placed if end <= at], default=0)
    assert scanner.event_end == begin
    assert found == [t for t in good if t.end <= begin]
    if scanner.damage is None:  # a size that grew, no position to prove it wrong: none passes
        assert log.placed != log.ends
        assert scanner.position == len(log.data)
    else:
        assert scanner.damage.offset == scanner.position == begin


@given(checksummed)
@settings(max_examples=10, deadline=None)
def test_every_flipped_byte_is_seen(log: BinlogWriter) -> None:
    """The same for every single byte of a binlog."""
    for at in range(len(log.data)):
        flipped = bytearray(log.data)
        flipped[at] ^= 0xFF
        scanner = Pair()
        # zeros behind it, for a size that grew where no position proves it wrong
        pieces = itertools.chain([flipped], itertools.repeat(ZEROS, 17))
        while scanner.damage is None:
            with contextlib.suppress(DamageError):
                scanner.feed(next(pieces))
        assert scanner.event_end <= at


@given(binlogs, st.integers(0, 100_000), cuts)
@settings(deadline=None)
def test_a_torn_binlog_ends_at_an_event(log: BinlogWriter, cut: int, cuts: list[int]) -> None:
    """Cut anywhere, event_end is the last real event end, and it is no damage."""
    torn = log.data[: cut % (len(log.data) + 1)]
    scanner = Pair()
    found = feed(scanner, torn, cuts)
    assert scanner.damage is None
    assert scanner.position == len(torn)
    assert scanner.event_end == max([end for end in log.placed if end <= len(torn)], default=0)
    assert found == [t for t in log.transactions if t.end <= len(torn)]
    open_at = [t.begin for t in log.transactions if t.begin < scanner.event_end < t.end]
    assert scanner.transaction_end == (open_at or [scanner.event_end])[0]


@given(binlogs, st.data(), cuts)
@settings(deadline=None)
def test_a_start_at_any_event_says_what_the_suffix_says(
    log: BinlogWriter, data: st.DataObject, cuts: list[int]
) -> None:
    """What mysqlbinlog writes from a start position gives the same transactions and ends."""
    start = data.draw(st.sampled_from(log.ends[1:]))
    whole, part = Pair(), Pair(start)
    whole.feed(log.data)
    found = feed(part, log.from_position(start), cuts)
    expected = [t for t in log.transactions if t.begin >= start]
    if whole.format is not None and whole.format.gtid_events:
        assert found == expected
    else:  # a start inside BEGIN looks like a start before a statement
        assert found == expected[len(expected) - len(found) :]
    assert part.damage is None
    assert part.skipped == log.ends[1]
    assert part.position == part.event_end == len(log.data)
    assert part.events == sum(end > start for end in log.ends)
    if start < len(log.data):
        assert (part.rotate, part.stopped) == (whole.rotate, whole.stopped)
    assert part.transaction_end in (0, whole.transaction_end)
    if found or part.ended:
        assert part.transaction_end == whole.transaction_end
    assert part.format is not None
    assert whole.format is not None
    assert part.format == replace(whole.format, offset=0)


@given(with_gtids, st.data())
@settings(deadline=None)
def test_an_event_that_is_missing_is_seen(log: BinlogWriter, data: st.DataObject) -> None:
    """A hole after a full disk: the bytes behind it are damage, with or without checksums."""
    bounds = sorted(data.draw(st.sets(st.sampled_from(log.ends), min_size=2, max_size=2)))
    torn = log.data[: bounds[0]] + log.data[bounds[1] :]
    scanner = Pair()
    feed(scanner, torn, [])
    if bounds[1] == len(log.data):
        assert scanner.damage is None
    else:
        assert scanner.damage is not None
        assert scanner.damage.offset == max(end for end in log.placed if end <= bounds[0])


@given(st.binary(max_size=200), cuts)
@settings(deadline=None)
def test_any_bytes_at_all_are_damage_or_a_beginning(data: bytes, cuts: list[int]) -> None:
    """Noise behind a format event raises nothing but DamageError."""
    log = BinlogWriter(checksum=False)
    scanner = Pair()
    feed(scanner, log.data + data, cuts)
    assert scanner.event_end >= len(log.data)


@given(
    st.sampled_from(
        [t for t in EventType if t not in (EventType.FORMAT_DESCRIPTION, EventType.ROTATE)]
    ),
    st.binary(max_size=120),
)
@settings(max_examples=examples(500), deadline=None)
def test_any_body_is_decoded_or_damage(event_type: EventType, body: bytes) -> None:
    """A well-formed event with any body: a fact, or DamageError at its begin with no change."""
    log = BinlogWriter()
    log.transaction([BEGIN, XID], gtid=(UUID_A, "", 1))
    before = Pair()
    before.feed(log.data)
    log.event(event_type, body)
    scanner = Pair()
    feed(scanner, log.data, [])
    if scanner.damage is None:
        assert scanner.event_end == len(log.data)
    else:
        assert scanner.damage.offset == before.event_end
        assert facts(scanner) == facts(before)


@given(binlogs, st.data(), cuts)
@settings(max_examples=examples(300), deadline=None)
def test_a_rewound_scanner_goes_on_as_if_nothing_had_been(
    log: BinlogWriter, data: st.DataObject, cuts: list[int]
) -> None:
    """Behind a torn tail, or damage: the bytes come again from the last good event on."""
    whole, scanner = Pair(), Pair()
    whole.feed(log.data)
    torn = bytearray(log.data[: data.draw(st.integers(0, len(log.data)))])
    if torn and data.draw(st.booleans()):
        torn[data.draw(st.integers(0, len(torn) - 1))] ^= data.draw(st.integers(1, 255))
    found = feed(scanner, torn, cuts)
    before, at = facts(scanner), scanner.event_end
    if scanner.damage is None and torn != log.data[: len(torn)]:
        return  # no checksum showed it, or not yet
    if not scanner.rewind():
        assert facts(scanner) == before
        counted_without_position = log.placed != log.ends
        assert counted_without_position or not scanner.events
        return
    assert scanner.damage is None
    assert scanner.position == scanner.event_end == at
    found += feed(scanner, log.data[at:], [cut + at for cut in cuts])
    assert found == log.transactions
    assert facts(scanner) == facts(whole)


@given(checksummed, st.data(), cuts)
@settings(max_examples=examples(300), deadline=None)
def test_an_event_with_a_wrong_checksum_is_taken_where_that_was_asked_for(
    log: BinlogWriter, data: st.DataObject, cuts: list[int]
) -> None:
    """Its range is noted, nothing of it but its size is believed, and the facts behind it go on."""
    number = data.draw(st.integers(1, len(log.ends) - 1))
    begin, end = log.ends[number - 1], log.ends[number]
    flipped = bytearray(log.data)
    place = data.draw(
        st.one_of(st.integers(0, 8), st.integers(13, end - begin - 1))
    )  # not its size
    flipped[begin + place] ^= data.draw(st.integers(1, 255))
    scanner = Pair()
    found = feed(scanner, flipped, cuts)
    assert scanner.damage is not None
    if not scanner.rewind():
        return
    at = scanner.event_end
    if at != begin:
        return  # it has no position of its own: damage begins before it
    scanner.accept(at)
    found += feed(scanner, flipped[at:], [])
    if number == 1:  # nothing can be read without a format event
        assert scanner.event_end == at
        return
    if scanner.damage is not None:  # a group's first event is not believed: then what has no
        assert log.placed != log.ends  # position inside it cannot be told from noise
        return
    assert scanner.damaged == [(begin, end)]
    assert scanner.event_end == len(log.data)
    whole = Pair()
    whole.feed(log.data)
    assert scanner.events == whole.events
    inside = [t for t in log.transactions if t.begin <= begin < t.end]
    hit = inside[0].end if inside else end
    assert [t for t in found if t.end <= begin] == [t for t in log.transactions if t.end <= begin]
    assert [t for t in found if t.begin >= hit] == [t for t in log.transactions if t.begin >= hit]
    if end < len(log.data):
        assert (scanner.rotate, scanner.stopped) == (whole.rotate, whole.stopped)
    else:
        assert not scanner.ended
