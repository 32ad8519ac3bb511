"""A stream, cut into relay logs for a MariaDB: nothing lost, and every end is where it is said."""

import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Checked, Piece, Stream
from binlog2s3.recover.relay_cut import Ends, cut, find, head_for
from tests.binlog_writer import BEGIN, ROWS, TABLE_MAP, XID, BinlogWriter, statement

TARGET = 99
FORMAT = 4
CREATED = slice(4 + 19 + 52, 4 + 19 + 56)


def binlog(count: int = 14, *, server_id: int = 1, in_use: bool = True) -> BinlogWriter:
    """One of MariaDB's, of two domains, with all that stands around transactions."""
    writer = BinlogWriter(server_version="10.11.6-MariaDB", server_id=server_id, in_use=in_use)
    writer.gtid_list(MariadbGtidList({}))
    for number in range(1, count + 1):
        events = [TABLE_MAP, *[ROWS] * (number % 4), XID]
        writer.mariadb_transaction(events, gtid=(number % 2, number))
        if number % 5 == 0:
            ddl = [statement("CREATE TABLE a (i INT)")]
            writer.mariadb_transaction(ddl, gtid=(7, number), standalone=True)
    writer.rotate()
    return writer


def piece_of(
    writer: BinlogWriter,
    *,
    begin: int = 0,
    left_out: Sequence[tuple[int, int]] = (),
    lineage: str = "L",
    name: str = "mysql-bin.000003",
) -> Piece:
    kept = [
        one
        for one in writer.transactions
        if one.begin >= begin and not any(low <= one.begin < high for low, high in left_out)
    ]
    return Piece(
        lineage=lineage,
        binlog=BinlogName.parse(name),
        begin=begin,
        end=len(writer.data),
        left_out=tuple(left_out),
        transactions=len(kept),
        gtids=gtid.parse(",".join(one.gtid for one in kept if one.gtid), "mariadb"),
    )


def head_of(writer: BinlogWriter) -> bytes:
    return bytes(writer.data[: writer.ends[1]])


def checked(writer: BinlogWriter, piece: Piece, sizes: Iterator[int]) -> Iterator[Checked]:
    """As `extract` gives it: some bytes, and what ends in them."""
    yield Checked(data=head_of(writer))
    at = max(piece.begin, len(head_of(writer)))
    for low, high in [*piece.left_out, (piece.end, piece.end)]:
        while at < low:
            upto = min(low, at + next(sizes))
            done = tuple(one for one in writer.transactions if at < one.end <= upto)
            yield Checked(data=bytes(writer.data[at:upto]), done=done)
            at = upto
        at = high


@dataclass
class Log:
    """One that came out."""

    piece: Piece
    data: bytes
    head: int
    ends: Ends


def logs(stream: Stream, server_id: int = TARGET) -> list[Log]:
    """All of them, whole."""
    found: list[Log] = []
    data, head = b"", 0
    for part in cut(stream, server_id=server_id):
        assert bool(part.head) == (not data)
        head = head or len(part.head)
        data += part.head + bytes(part.data)
        if part.ends is not None:
            found.append(Log(part.piece, data, head, part.ends))
            data, head = b"", 0
    assert not data
    return found


def test_every_byte_once_and_whole_transactions() -> None:
    """However the stream comes and whatever it leaves out: ends, GTIDs and places are right."""
    for seed in range(200):
        chance = random.Random(seed)
        writer = binlog()
        mine = writer.transactions
        out = [(one.begin, one.end) for one in mine[1:] if chance.random() < 0.2]
        begin = chance.choice([0, 0, 4, mine[0].begin])
        piece = piece_of(writer, begin=begin, left_out=out)
        most = chance.choice([10, 90, 400, 5000])
        sizes = iter(lambda chance=chance, most=most: chance.randint(1, most), None)
        found = logs(iter([(piece, checked(writer, piece, sizes))]))
        head = len(head_of(writer))
        at, expected = max(begin, head), b""
        for low, high in [*out, (piece.end, piece.end)]:
            expected += bytes(writer.data[at:low])
            at = high
        assert b"".join(one.data[one.head :] for one in found) == expected, seed
        kept = [one for one in mine if (one.begin, one.end) not in out]
        together = [
            (name, end, at)
            for one in found
            for name, end, at in zip(
                one.ends.gtids, one.ends.in_binlog, one.ends.commit_us, strict=True
            )
        ]
        assert together == [(one.gtid, one.end, one.commit_us) for one in kept], seed
        for one in found:
            _check_log(one)


def _check_log(log: Log) -> None:
    """It is a binlog by itself, and what it says of its transactions is so."""
    assert log.data.startswith(MAGIC)
    by_end = zip(log.ends.begins, log.ends.in_binlog, log.ends.in_log, strict=True)
    for number, (begin, end, in_log) in enumerate(by_end):
        size = end - begin
        part = log.data[in_log - size : in_log]
        assert part[4] == 162  # a GTID event begins it
        assert log.ends.before(in_log - 1) == number
        assert log.ends.before(in_log) == number + 1


def test_the_place_of_a_gtid_is_found() -> None:
    """Only of the very one: 1-1-1 is not found in 1-1-11 nor in 11-1-1."""
    ends = Ends()
    writer = binlog()
    for name, one in zip(("1-1-11", "11-1-1", "0-1-1", "0-1-1"), writer.transactions, strict=False):
        ends.add(name, one, 0)
    found = [find(ends.packed(), name) for name in ("1-1-1", "1-1-11", "11-1-1", "0-1-1", "1-1")]
    second, third = writer.transactions[2].end, writer.transactions[3].end
    assert found == [
        [],
        [writer.transactions[0].end],
        [writer.transactions[1].end],
        [second, third],
        [],
    ]


def test_the_head_of_a_relay_log() -> None:
    """Closed, its checksum right; the source was started just then only where it was."""
    head = bytearray(head_of(binlog()))
    for created in (0, 77):
        head[CREATED] = created.to_bytes(4, "little")
        for is_start in (False, True):
            made = head_for(bytes(head), is_start=is_start)
            assert (int.from_bytes(made[CREATED], "little") != 0) == is_start
            event = made[len(MAGIC) :]
            assert zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")
            scanner = Scanner()
            scanner.feed(made)
            assert not scanner.formats[0].in_use


@pytest.mark.parametrize(
    ("second", "created", "starts"),
    [
        ({"name": "mysql-bin.000004"}, 0, False),
        ({"name": "mysql-bin.000004"}, 77, True),
        ({}, 77, False),
        ({"lineage": "M"}, 0, True),
    ],
)
def test_temporary_tables_live_as_long_as_their_server(
    second: dict[str, str], created: int, starts: bool
) -> None:
    """Only where its server was started since, or is another one, does the applier forget them."""
    writer = binlog()
    writer.data[CREATED] = created.to_bytes(4, "little")
    pieces = [piece_of(writer), piece_of(writer, **second)]
    sizes = iter(lambda: 300, None)
    found = logs((piece, checked(writer, piece, sizes)) for piece in pieces)
    marked = [
        (one.piece is pieces[1], int.from_bytes(one.data[CREATED], "little") != 0) for one in found
    ]
    first_of_second = marked.index(next(one for one in marked if one[0]))
    assert [is_start for _, is_start in marked] == [
        number == first_of_second and starts for number in range(len(marked))
    ]


def test_what_the_applier_would_pass_over() -> None:
    """Events of the target's own server id, in the format event or in a transaction; no GTID."""
    sizes = iter(lambda: 300, None)
    own = binlog(server_id=TARGET)
    with pytest.raises(RecoveryError, match=r"^mysql-bin\.000003 comes from"):
        logs(iter([(piece_of(own), checked(own, piece_of(own), sizes))]))
    mixed = binlog()
    mixed.server_id = TARGET
    mixed.mariadb_transaction([TABLE_MAP, ROWS, XID], gtid=(0, 500))
    with pytest.raises(RecoveryError, match="0-99-500 at mysql-bin") as caught:
        logs(iter([(piece_of(mixed), checked(mixed, piece_of(mixed), sizes))]))
    assert "SET GLOBAL server_id" in caught.value.hint
    without = binlog()
    without.plain_transaction([BEGIN, TABLE_MAP, ROWS, XID])
    with pytest.raises(RecoveryError, match="has no GTID"):
        logs(iter([(piece_of(without), checked(without, piece_of(without), sizes))]))
