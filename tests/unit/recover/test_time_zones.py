"""What depends on the system time zone in a plan, and what is said and refused because of it."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.binlog.zone import SystemZone, differs, fixed_tz, sampled_days
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import OpenStream, PlanPiece
from binlog2s3.recover.time_zones import TimeZones, events_warning, tz_of
from binlog2s3.server.connection import Server
from lab import pitr_examples
from tests.binlog_writer import BinlogWriter, query_body
from tests.snapshots import checked_of
from tests.unit.recover.fake_server import fake

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
NAME = BinlogName.parse("mysql-bin.000001")
LINEAGE = "20260102T030405Z-3e11fa47-a1b2"
STATUS = b"\0\0\0\0\0" + b"\1\0\0\0\0\0\0\0\0" + b"\6\3std" + b"\4" + bytes(6)
"""What comes before the time zone: flags, sql_mode, catalog, charset."""
ALTER = "ALTER TABLE t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'"


def in_zone(name: str) -> bytes:
    return STATUS + b"\5" + bytes([len(name)]) + name.encode()


def zone(name: str, year: int = 2026, said: str = "SYSTEM") -> SystemZone:
    """As a server with this TZ tells it."""
    days = (datetime(day.year, day.month, day.day, tzinfo=UTC) for day in sampled_days(year))
    offsets = (day.astimezone(ZoneInfo(name)).utcoffset() for day in days)
    return SystemZone.of(
        said, year, [int(one.total_seconds()) for one in offsets if one is not None]
    )


TOKYO, LONDON, BERLIN = zone("Asia/Tokyo"), zone("Europe/London"), zone("Europe/Berlin")
ZERO = zone("Etc/UTC")
Statement = tuple[str, str | None]
"""A text, and the session's time zone if executing it has used that."""


class Binlog:
    """A plan of one binlog, a transaction for each list of statements, sent in parts of a size."""

    def __init__(
        self,
        *transactions: Sequence[Statement],
        size: int = 1 << 20,
        left_out: Sequence[int] = (),
        more: tuple[int, bytes] | None = None,
    ) -> None:
        made = BinlogWriter()
        made.previous_gtids(GtidSet({}))
        for number, statements in enumerate(transactions, 1):
            events = [
                (int(EventType.QUERY), query_body(text, status=in_zone(name) if name else STATUS))
                for text, name in statements
            ]
            made.transaction(events, gtid=(UUID, "", number))
        if more is not None:
            made.transaction([more], gtid=(UUID, "", len(transactions) + 1))
        self.made, self._size = made, size
        gone = tuple((made.transactions[n].begin, made.transactions[n].end) for n in left_out)
        self.piece = PlanPiece(
            lineage=LINEAGE,
            binlog=NAME,
            begin=0,
            end=len(made.data),
            left_out=gone,
            transactions=len(transactions) - len(gone),
            gtids=GtidSet({}),
        )
        self.plan = replace(pitr_examples.PLAN, pieces=(self.piece,))
        self.opened = 0

    def stream(self, pieces: Sequence[PlanPiece]) -> Any:
        self.opened += 1
        for piece in pieces:
            yield piece, checked_of(self.made, piece, self._size)

    def transactions(
        self, _lineage: str, _name: BinlogName, begin: int, end: int | None
    ) -> Iterator[Transaction]:
        return (
            one
            for one in self.made.transactions
            if begin <= one.begin < (len(self.made.data) if end is None else end)
        )

    def zones(
        self,
        source: SystemZone | None = TOKYO,
        target: SystemZone | None = ZERO,
        *,
        accepted: bool = False,
        most: int | None = None,
    ) -> TimeZones:
        found = TimeZones(self.plan, lambda *_: source, lambda _year: target, accepted=accepted)
        limit = {} if most is None else {"most": most}
        found.look(cast("OpenStream", self.stream), self.transactions, **limit)
        return found

    def sent(self, zones: TimeZones) -> Iterator[bytes]:
        """What a target gets, until it ends or raises."""
        for _, data in zones.watched(cast("OpenStream", self.stream))([self.piece]):
            for checked in data:
                yield checked.data


ROWS: Sequence[Statement] = (("BEGIN", "SYSTEM"), ("COMMIT", "SYSTEM"))
PLAIN: Sequence[Statement] = (("CREATE TABLE t (a INT)", None),)
ELSEWHERE: Sequence[Statement] = ((ALTER, "+03:00"),)
DEPENDS: Sequence[Statement] = ((ALTER, "SYSTEM"),)


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_the_first_statement_that_depends_on_the_zone_is_named(size: int) -> None:
    """By GTID, with its text, how the zones differ, and what to set; wherever the bytes are cut."""
    binlog = Binlog(ROWS, PLAIN, ELSEWHERE, DEPENDS, DEPENDS, size=size)
    found = binlog.zones()
    assert found.refusal is not None
    text, hint = str(found.refusal), found.refusal.hint
    assert text.startswith(f"{UUID}:4 ({ALTER}) depends on the system time zone")
    assert "UTC+09:00 and UTC+00:00 on 2026-01-01" in text
    assert "TZ='<+0900>-09:00'" in hint
    assert f"--before-gtid {UUID}:4" in hint
    assert "--accept-time-zone" in hint


SYSTEM, CONVERT = "SYSTEM", "INSERT INTO t SELECT CONVERT_TZ(d,"


@pytest.mark.parametrize(
    ("statement", "zone", "depends"),
    [
        # every one with the zone SYSTEM, whatever its kind
        ("CREATE EVENT e ON SCHEDULE AT '2030-01-01 00:00:00' DO DELETE FROM t", SYSTEM, True),
        ("ALTER EVENT e ON SCHEDULE AT '2031-01-01 00:00:00'", SYSTEM, True),
        ("INSERT INTO t VALUES (1, '2026-06-01 12:00:00')", SYSTEM, True),
        ("CREATE TABLE p (ts TIMESTAMP) PARTITION BY RANGE (UNIX_TIMESTAMP(ts)) (x)", SYSTEM, True),
        # no server marks CONVERT_TZ with SYSTEM, and MariaDB 11.8 not each FROM_UNIXTIME
        (f"{CONVERT} 'SYSTEM', '+00:00') FROM s", None, True),
        ("INSERT INTO t VALUES (convert_tz(now(), '+00:00', \"system\"))", "+00:00", True),
        (f"{CONVERT} 'UTC', '+09:00') FROM `system`", None, False),
        ("CREATE TABLE t AS SELECT FROM_UNIXTIME(1780000000) AS d", None, True),
        ("INSERT INTO t VALUES (FROM_UNIXTIME(1780000000))", "+05:00", False),
        ("INSERT INTO t VALUES ('FROM_UNIXTIME(1780000000)')", None, False),
        # what only a MariaDB executes is a comment of a MySQL, in which no string begins
        (f"/*M!999999 it's */ {CONVERT} 'SYSTEM', '+00:00') FROM s", None, True),
        ("INSERT INTO t VALUES ('CONVERT_TZ', 'SYSTEM')", None, False),
    ],
)
def test_statements_that_depend_on_it(statement: str, zone: str | None, *, depends: bool) -> None:
    """By the zone that the session had, or by what they call."""
    refusal = Binlog([(statement, zone)]).zones().refusal
    assert (refusal is not None) is depends
    assert refusal is None or statement[:40] in str(refusal)


def test_rows_and_other_zones_pass() -> None:
    """BEGIN and COMMIT have the zone of the rows that were made; other zones are no SYSTEM."""
    found = Binlog(ROWS, PLAIN, ELSEWHERE).zones()
    assert found.refusal is None
    (said,) = found.warnings()
    assert said.endswith("nothing in the plan depends on that")


def test_equal_zones_cost_nothing() -> None:
    """Nothing is read a second time, and nothing said."""
    binlog = Binlog(DEPENDS)
    found = binlog.zones(BERLIN, zone("Europe/Madrid"))
    assert (found.refusal, [*found.warnings()], binlog.opened) == (None, [], 0)
    assert found.watched(cast("OpenStream", binlog.stream)) == binlog.stream


def test_what_is_left_out_does_not_count() -> None:
    """A transaction that --skip-gtid leaves out is not applied; positions after it stay right."""
    assert Binlog(PLAIN, DEPENDS, PLAIN, left_out=[1]).zones().refusal is None
    refusal = Binlog(PLAIN, DEPENDS, PLAIN, DEPENDS, left_out=[1]).zones().refusal
    assert refusal is not None
    assert str(refusal).startswith(f"{UUID}:4 ")


def test_other_values_can_be_accepted() -> None:
    """Then nothing is looked at, and the plan says so."""
    binlog = Binlog(DEPENDS)
    found = binlog.zones(accepted=True)
    assert (found.refusal, binlog.opened) == (None, 0)
    (said,) = found.warnings()
    assert "gets other values (--accept-time-zone)" in said
    assert found.watched(cast("OpenStream", binlog.stream)) == binlog.stream


def test_an_unknown_zone_is_a_warning_where_something_depends_on_it() -> None:
    """Archives of older versions do not have it; a plan of rows says nothing at all."""
    found = Binlog(ROWS, DEPENDS, DEPENDS).zones(source=None)
    assert found.refusal is None
    (said,) = found.warnings()
    assert said.startswith(f"{UUID}:2 ({ALTER}) depends on the system time zone, and the archive")
    assert not found.is_news
    assert [*Binlog(ROWS, PLAIN).zones(source=None).warnings()] == []
    (said,) = Binlog(DEPENDS).zones(target=None).warnings()
    assert said.endswith(
        "the source's is UTC+09:00: the server that applies it needs the same, "
        "TZ='<+0900>-09:00' in the environment of its mysqld"
    )


@pytest.mark.parametrize("size", [1 << 20, 7])
def test_a_large_plan_is_looked_at_while_it_is_sent(size: int) -> None:
    """All before that transaction is sent, and none of it."""
    binlog = Binlog(ROWS, PLAIN, DEPENDS, PLAIN, size=size)
    found = binlog.zones(most=10)
    assert found.refusal is None
    (said,) = found.warnings()
    assert "the apply stops before the first transaction" in said
    sent, begin = bytearray(), binlog.made.transactions[2].begin

    def send() -> None:
        for data in binlog.sent(found):
            sent.extend(data)

    with pytest.raises(RecoveryError, match="depends on the system time zone") as raised:
        send()
    assert f"run the same command with the goal --before-gtid {UUID}:3" in raised.value.hint
    assert bytes(sent[:begin]) == bytes(binlog.made.data[:begin])
    assert size == 7 or len(sent) == begin
    assert ALTER.encode() not in sent


def test_a_transaction_whose_end_was_not_read_is_named_by_its_place() -> None:
    """Its first statement depends on the zone, and the others have not come yet."""
    binlog = Binlog(PLAIN, [("BEGIN", None), DEPENDS[0], ("COMMIT", None)], size=7)
    with pytest.raises(RecoveryError, match="the transaction at mysql-bin") as raised:
        b"".join(binlog.sent(binlog.zones(most=10)))
    place = f"mysql-bin.000001:{binlog.made.transactions[1].begin}"
    assert f"with the goal --to-position {place}, so that" in raised.value.hint
    assert str(binlog.zones().refusal).startswith(f"{UUID}:2 ")


def test_an_unknown_zone_of_a_large_plan_is_told_afterwards() -> None:
    """All is sent."""
    binlog = Binlog(ROWS, DEPENDS, PLAIN)
    found = binlog.zones(source=None, most=10)
    assert [*found.warnings()] == []
    assert b"".join(binlog.sent(found)) == bytes(binlog.made.data)
    assert found.is_news
    assert found.unknown_text().startswith(f"{UUID}:2 ")


def compressed() -> bytes:
    """MariaDB's QUERY_COMPRESSED: the status comes before what is compressed."""
    raw = ALTER.encode()
    head = query_body("", status=in_zone("SYSTEM"))
    return head + bytes([0x80 | 1, len(raw)]) + zlib.compress(raw)


@pytest.mark.parametrize(
    ("kind", "body", "shown"),
    [
        (EventType.QUERY, b"\0" * 5, "an event that cannot be read"),
        (EventType.QUERY_COMPRESSED, compressed(), ALTER),
    ],
)
def test_what_cannot_be_read_counts_as_dependent(kind: int, body: bytes, shown: str) -> None:
    """An event with a body that no statement has; one that is compressed is read."""
    refusal = Binlog(PLAIN, more=(kind, body)).zones().refusal
    assert refusal is not None
    assert shown in str(refusal)


def test_secrets_are_not_shown() -> None:
    """A statement is text of users."""
    text = "CREATE USER x IDENTIFIED BY 'geheim' PASSWORD EXPIRE INTERVAL 1 DAY"
    refusal = Binlog([(text, "SYSTEM")]).zones().refusal
    assert refusal is not None
    assert "geheim" not in str(refusal)


def test_events_that_a_base_backup_brought() -> None:
    """They keep the word SYSTEM, and so another moment; equal zones say nothing."""
    rows = [{"db": "shop", "name": "nightly"}]
    server = cast("Server", fake({"information_schema.events": rows}))
    (said,) = events_warning(server, "UTC+09:00 and UTC+00:00 on 2026-01-01")
    assert "1 event of the target" in said
    assert "shop.nightly" in said
    assert [*events_warning(server, "")] == []


# zones


def test_zones_that_change_on_other_days_differ() -> None:
    """Athens and Cairo are both UTC+2 in January, UTC+3 in July."""
    athens, cairo = zone("Europe/Athens"), zone("Africa/Cairo")
    assert differs(athens, cairo) == "UTC+03:00 and UTC+02:00 on 2026-04-01"
    assert differs(BERLIN, zone("Europe/Paris")) == ""


def test_a_zone_is_shown_by_its_changes() -> None:
    """Offsets, and from when on."""
    assert str(TOKYO) == "UTC+09:00"
    assert str(LONDON) == "UTC+00:00, from 2026-04-01 on UTC+01:00, from 2026-11-01 on UTC+00:00"
    assert LONDON.sampled[6:8] == (3600, 3600)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([], "do not begin"),
        ([(date(2026, 2, 1), 0)], "do not begin"),
        ([(date(1066, 1, 1), 0)], "do not begin"),
        ([(date(2026, 1, 1), 0), (date(2026, 3, 2), 0)], "1st and 15th"),
        ([(date(2026, 1, 1), 0), (date(2027, 1, 1), 0)], "1st and 15th"),
        ([(date(2026, 1, 1), 0), (date(2026, 4, 1), 0), (date(2026, 2, 1), 0)], "1st and 15th"),
        ([(date(2026, 1, 1), 100_000)], "is none"),
    ],
)
def test_what_is_no_zone(changes: list[tuple[date, int]], why: str) -> None:
    """Also from a document that somebody has changed."""
    with pytest.raises(ValueError, match=why):
        SystemZone(name="SYSTEM", offsets=dict(changes))


@pytest.mark.parametrize(
    ("offset", "text"),
    [(32400, "<+0900>-09:00"), (-18000, "<-0500>05:00"), (20700, "<+0545>-05:45"),
     (0, "<+0000>00:00")],
)  # fmt: skip
def test_a_zone_that_never_changes_as_a_server_takes_it(offset: int, text: str) -> None:
    """POSIX: what is added to local time to get UTC."""
    assert fixed_tz(offset) == text
    assert tz_of([SystemZone.of("SYSTEM", 2026, [offset] * 24)]) == text


def test_a_name_is_found_for_a_zone_with_daylight_saving() -> None:
    """One of this machine's own database that has its offsets; never the text of a document."""
    found = tz_of([BERLIN])
    assert found is not None
    assert differs(zone(found), BERLIN) == ""
    assert tz_of([BERLIN, zone("Europe/Berlin", 2025)]) is not None
    assert tz_of([zone("Europe/Berlin", said="Europe/Berlin")]) == "Europe/Berlin"
    assert tz_of([zone("Asia/Tokyo", said="Asia/Tokyo")]) == "Asia/Tokyo"
    assert tz_of([zone("Asia/Tokyo", said="Europe/Berlin")]) not in (None, "Europe/Berlin")
    evil = SystemZone.of("/tmp/evil;rm", 2026, [3600] * 24)
    assert tz_of([evil]) == "<+0100>-01:00"
    assert tz_of([SystemZone.of("SYSTEM", 2026, [*range(0, 24 * 60, 60)])]) is None
    assert tz_of([TOKYO, BERLIN]) is None  # the source was moved: no server is in both
