import struct

import pytest

from binlog2s3.binlog.events import (
    Phase,
    decode_format,
    decode_gtid,
    decode_gtid_list,
    decode_mariadb_alter,
    decode_mariadb_gtid,
    decode_previous_gtids,
    decode_query,
    decode_rotate,
    decode_tagged_gtid,
    length_encoded,
)
from binlog2s3.binlog.gtid import GNO_MAX, GtidSet, MariadbGtidList
from tests.binlog_writer import (
    NOW_US,
    UUID_A,
    UUID_B,
    BinlogWriter,
    gtid_body,
    previous_gtids_body,
    query_body,
    tagged_body,
)

LENGTHS = [1, 250, 251, 65535, 65536, 2**24 - 1, 2**24, 2**32 + 5, 2**63]
JUNK = b"\xff" * 64


@pytest.mark.parametrize("original_us", [NOW_US, NOW_US - 77])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_size_of_transaction_length_is_read(length: int, original_us: int) -> None:
    """One, three, four and nine bytes; behind one commit time or two."""
    times = {"commit_us": NOW_US, "original_us": original_us, "length": length}
    body = gtid_body(UUID_A, 9, **times)
    expected = ((UUID_A, "", 9), NOW_US, original_us, length)
    assert decode_gtid(b"x" + body + JUNK, 1, 1 + len(body)) == expected
    body = tagged_body(UUID_B, "blue", 9, **times)
    expected = ((UUID_B, "blue", 9), NOW_US, original_us, length)
    assert decode_tagged_gtid(b"x" + body + JUNK, 1, 1 + len(body)) == expected


@pytest.mark.parametrize("gno", [1, 63, 64, 2**31, 2**55, 2**62, GNO_MAX])
def test_every_transaction_number_is_read(gno: int) -> None:
    """Also those that take nine bytes in the tagged form."""
    times = {"commit_us": NOW_US, "original_us": NOW_US, "length": 5}
    for tag, make, decode in (("", gtid_body, decode_gtid), ("t", tagged_body, decode_tagged_gtid)):
        body = make(UUID_A, *([tag] if tag else []), gno, **times)  # type: ignore[arg-type]
        assert decode(body, 0, len(body))[0][2] == gno


def test_a_body_that_ends_too_early_is_refused_and_not_read_beyond() -> None:
    """Whatever lies behind the event's end is another event's."""
    times = {"commit_us": NOW_US, "original_us": NOW_US, "length": 5}
    gtids = GtidSet.parse(f"{UUID_A}:1-5:9:blue:7")
    plain = GtidSet.parse(f"{UUID_A}:1-5:9")
    gtid_list = struct.pack("<IIIQIIQ", 2, 0, 1, 5, 1, 1, 5)
    for body, decode, cuts in (
        (gtid_body(UUID_A, 5, **times), decode_gtid, range(25)),
        (tagged_body(UUID_A, "blue", 5, **times), decode_tagged_gtid, range(5, 24)),
        (previous_gtids_body(gtids), decode_previous_gtids, None),
        (previous_gtids_body(plain), decode_previous_gtids, None),
        (gtid_list, decode_gtid_list, None),
        (struct.pack("<QIB", 5, 0, 0), decode_mariadb_gtid, None),
        (query_body("COMMIT"), decode_query, range(20)),
    ):
        decode(body + JUNK, 0, len(body))  # type: ignore[operator]
        for cut in cuts or range(len(body)):
            with pytest.raises((ValueError, IndexError, struct.error)):
                decode(body + JUNK, 0, cut)  # type: ignore[operator]


def test_the_flags_of_a_gtid_list_are_not_its_count() -> None:
    """The count has 28 bits."""
    gtids = MariadbGtidList({(domain, 7): 3 for domain in range(9)})
    body = struct.pack("<I", 9 | 1 << 28) + b"".join(
        struct.pack("<IIQ", *gtid) for gtid in gtids.gtids()
    )
    assert decode_gtid_list(body, 0, len(body)) == gtids


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("BEGIN", "begin"),
        ("COMMIT", "end"),
        ("commit ", "end"),
        ("ROLLBACK", "end"),
        ("COMMIT          ", "end"),
        ("COMMIT           and chain", "statement"),
        ("COMMIT ALTER", "statement"),
        ("ROLLBACK TO `a`", "statement"),
        ("rollback/**/to a", "statement"),
        ("", "statement"),
        ("XA START X'31',X'',1", "begin"),
        ("xa begin 'a'", "begin"),
        ("XA END X'31',X'',1", "statement"),
        ("XA COMMIT X'31',X'',1", "xa end"),
        ("XA ROLLBACK X'31',X'',1", "xa end"),
        ("XA ", "statement"),
        ("XAVIER", "statement"),
    ],
)
@pytest.mark.parametrize("status_size", [0, 5, 255, 256, 1000])
def test_a_query_is_told_by_its_words(text: str, meaning: str, status_size: int) -> None:
    """Behind status variables of any size and the name of the database."""
    body = query_body(text, db="shop", status=b"\1" * status_size)
    assert decode_query(body + b"COMMIT", 0, len(body)) == meaning


def test_a_rotate_event_names_the_next_binlog() -> None:
    """The name ends where the checksum begins."""
    body = struct.pack("<Q", 4) + b"mysql-bin.000009"
    rotate = decode_rotate(body + JUNK, 0, len(body))
    assert (str(rotate.next_binlog), rotate.position) == ("mysql-bin.000009", 4)


@pytest.mark.parametrize(
    "name",
    ["", "x", "../x.000001", "/x.000001", "-x.000001", "a\n.000001", "\x1b[2J.1", "x" * 300 + ".1"],
)
def test_a_rotate_event_to_what_is_no_name_cannot_be_read(name: str) -> None:
    """What it names becomes part of an entry, of paths and of messages."""
    body = struct.pack("<Q", 4) + name.encode()
    with pytest.raises(ValueError, match="not the name of a binlog"):
        decode_rotate(body, 0, len(body))


@pytest.mark.parametrize("tag", ["'; DROP TABLE t; --", "a b", "\n", "1", "x" * 33])
def test_a_tag_that_no_server_makes_cannot_be_read(tag: str) -> None:
    """It becomes part of the statements that commit a GTID empty."""
    body = tagged_body(UUID_B, tag, 9, commit_us=NOW_US, original_us=NOW_US, length=200)
    with pytest.raises(ValueError, match="not a tag"):
        decode_tagged_gtid(body, 0, len(body))
    many = previous_gtids_body(GtidSet({(UUID_A, tag): [(1, 5)]}))
    with pytest.raises(ValueError, match="not a tag"):
        decode_previous_gtids(many, 0, len(many))


@pytest.mark.parametrize(("first", "last"), [(5, 5), (5, 4), (0, 3), (-1, 3)])
def test_an_interval_of_previous_gtids_that_is_none_cannot_be_read(first: int, last: int) -> None:
    """It would be no transaction, or one that no server makes."""
    body = previous_gtids_body(GtidSet({(UUID_A, ""): [(1, 5)]}))
    whole = decode_previous_gtids(body, 0, len(body))
    assert str(whole).endswith(":1-5")
    wrong = body[:-16] + first.to_bytes(8, "little", signed=True) + last.to_bytes(8, "little")
    with pytest.raises(ValueError, match="interval"):
        decode_previous_gtids(wrong, 0, len(wrong))


def test_a_tagged_event_of_a_server_of_today_ends_with_a_known_field() -> None:
    """It is read up to its end; a byte less is too short."""
    times = {"commit_us": NOW_US, "original_us": NOW_US - 3, "length": 5}
    body = tagged_body(UUID_A, "blue", 5, **times)[:-2]  # without the field of a server to come
    start = decode_tagged_gtid(body + JUNK, 0, len(body))
    assert start == ((UUID_A, "blue", 5), NOW_US, NOW_US - 3, 5)
    with pytest.raises(ValueError, match="too short"):
        decode_tagged_gtid(body + JUNK, 0, len(body) - 1)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\xfa", 250),
        (b"\xfc\x01\x02", 0x201),
        (b"\xfd\x01\x02\x03", 0x30201),
        (b"\xfe" + bytes(7) + b"\x01", 1 << 56),
    ],
)
def test_a_number_with_its_length_is_read_to_its_end(data: bytes, value: int) -> None:
    """A byte less is none; what follows is not read."""
    assert length_encoded(data, 0) == (value, len(data))
    assert length_encoded(data + JUNK, 0) == (value, len(data))
    with pytest.raises((ValueError, IndexError)):
        length_encoded(data[:-1], 0)


@pytest.mark.parametrize("first", [251, 255])
def test_what_is_no_number_with_its_length(first: int) -> None:
    """NULL, and what nobody writes."""
    with pytest.raises(ValueError, match=str(first)):
        length_encoded(bytes([first]) + JUNK, 0)


def test_the_gtid_event_of_an_old_server_has_no_more_than_the_gtid() -> None:
    """MySQL 5.6 writes 25 bytes."""
    body = gtid_body(UUID_A, 5, commit_us=NOW_US, original_us=NOW_US, length=5)[:25]
    start = decode_gtid(body + JUNK, 0, len(body))
    assert start[0] == (UUID_A, "", 5)
    assert start[1:] == (0, 0, 0)


def format_event(*changes: tuple[int, bytes], version: str = "9.7.4") -> bytes:
    """The format event of a server, with other bytes at some places."""
    log = BinlogWriter(server_version=version)
    data = bytearray(log.data[4 : log.ends[1]])
    for at, new in changes:
        data[at : at + len(new)] = new
    return bytes(data)


@pytest.mark.parametrize("change", [(19, b"\3\0"), (19, b"\5\0"), (75, b"\x14"), (-5, b"\2")])
def test_a_format_event_of_another_format_cannot_be_read(change: tuple[int, bytes]) -> None:
    """Another version, another header, or a checksum that nobody knows."""
    at, new = change
    whole = format_event()
    assert decode_format(whole, offset=4).checksum == "crc32"
    with pytest.raises(ValueError, match=r"binlog version|checksum algorithm"):
        decode_format(format_event((at if at > 0 else len(whole) + at, new)), offset=4)


@pytest.mark.parametrize("version", ["1.7.4", "0.0.0", "x"])
def test_a_damaged_version_does_not_turn_checksums_off(version: str) -> None:
    """The number of event types tells of them, too."""
    found = decode_format(format_event((21, version.encode().ljust(6, b"\0"))), offset=4)
    assert found.server_version == version
    assert (found.has_checksum, found.checksum) == (True, "crc32")


def test_a_mariadb_that_shows_another_version() -> None:
    """Is told by its event types."""
    whole = format_event(version="10.11.4-MariaDB")
    hidden = bytearray(whole)
    hidden[21:71] = b"5.7.40".ljust(50, b"\0")
    assert decode_format(bytes(hidden), offset=4).flavour == "mariadb"
    assert decode_format(format_event(version="9.7.4"), offset=4).flavour == "mysql"


@pytest.mark.parametrize("more", [b"", JUNK])
@pytest.mark.parametrize(
    ("flags", "before", "extra", "expected"),
    [
        (1, b"", b"", None),  # nothing, as before 10.8
        (1, b"", b"\0" * 6, None),  # room for a commit id
        (1, b"", b"\x02" + b"\0" * 5, ("prepare", 5, 77)),
        (1, b"", b"\x04" + struct.pack("<Q", 70), ("commit", 5, 70)),
        (1, b"", b"\x08" + struct.pack("<Q", 70), ("rollback", 5, 70)),
        (3, b"c" * 8, b"\x02", ("prepare", 5, 77)),  # behind a commit id
        (3, b"c" * 8, b"\x05\x01" + struct.pack("<Q", 70), ("commit", 5, 70)),  # and its engines
        (1, b"", b"\x14" + struct.pack("<QI", 70, 9), ("commit", 5, 70)),  # and a thread
        (1, b"", b"\x04" + b"\x46", None),  # cut off
        (0x41, b"", b"\x02" * 20, None),  # of an XA transaction
    ],
)
def test_the_phases_of_an_alter(
    flags: int, before: bytes, extra: bytes, expected: tuple[Phase, int, int] | None, more: bytes
) -> None:
    """As a MariaDB from 10.8 on writes them; what lies behind the event is another one's."""
    body = struct.pack("<QIB", 77, 5, flags) + before + extra
    assert decode_mariadb_alter(b"x" + body + more, 1, 1 + len(body)) == expected
