"""What a target's applier said: the transaction that it is about, and hints."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.applier_error import (
    ApplierFailure,
    advised,
    failed_transaction,
    of_mariadb,
    of_mysql,
)
from binlog2s3.recover.model import BinlogPosition, PlanPiece

AGAIN = "run the same command again"
PLACE = BinlogPosition(lineage="a", binlog=BinlogName.parse("b.000007"), offset=123)


def hint(code: int, *, gtid: str | None = "a:7", reached: BinlogPosition | None = PLACE) -> str:
    return advised(code, reached=reached, gtid=gtid, again=AGAIN)


@pytest.mark.parametrize("code", [1062, 1032, 1146])
def test_what_can_be_left_out_is_named(code: int) -> None:
    """Only a transaction that has a GTID can be skipped."""
    assert "--start-position=123 b.000007 " in hint(code)
    assert hint(code).endswith(
        f"; fix the target, or leave the transaction out (--skip-gtid a:7); {AGAIN}"
    )
    assert hint(code, gtid=None, reached=None) == f"fix the target; {AGAIN}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1153, "max_allowed_packet"),
        (1666, "SET GLOBAL binlog_format = ROW"),
        (1950, "gtid_strict_mode = OFF"),
    ],
)
def test_what_is_fixed_at_the_target(code: int, words: str) -> None:
    """It says what, and how to go on; nothing is to be left out for that."""
    text = hint(code)
    assert words in text
    assert text.endswith(AGAIN)
    assert "--skip-gtid" not in text


def test_what_needs_the_base_backup_again() -> None:
    """No second run from there can fix it."""
    text = hint(1397)
    assert "XA RECOVER" in text
    assert AGAIN not in text
    assert "estore" in text


def test_what_the_source_lost_is_not_left_out() -> None:
    """That would only hide that it is missing."""
    text = hint(1590)
    assert "estore a base backup" in text
    assert AGAIN not in text
    assert "--skip-gtid" not in text


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ROWS = (
    "Could not execute Write_rows event on table shop.a; Duplicate entry '21' for key "
    "'a.PRIMARY', Error_code: 1062; handler error HA_ERR_FOUND_DUPP_KEY"
)
EVENT = "; the event's master log a.b.000007, end_log_pos 250"
COORDINATOR = (
    "Coordinator stopped because there were error(s) in the worker(s). "
    "The most recent failure being: "
)
WORKER = f"Worker 1 failed executing transaction '{UUID}:23' at source log a.b.000007, end_log_pos "


@pytest.mark.parametrize(
    ("said", "gtid", "text"),
    [
        (f"{WORKER}250; {ROWS}{EVENT.replace('master', 'source')}", f"{UUID}:23", ROWS),
        (f"{WORKER.replace(':23', ':tag:23')}250; {ROWS}{EVENT}", f"{UUID}:tag:23", ROWS),
        (f"{WORKER.replace(f'{UUID}:23', 'ANONYMOUS')}250; {ROWS}{EVENT}", None, ROWS),
        (f"{WORKER.replace(f'{UUID}:23', 'x --yes')}250; {ROWS}{EVENT}", None, ROWS),
        (
            f"{COORDINATOR}{WORKER}250. See error log for more details.",
            f"{UUID}:23",
            "See error log for more details.",
        ),
    ],
)
def test_mysql_names_the_transaction(said: str, gtid: str | None, text: str) -> None:
    """By its GTID and its place, each once."""
    found = of_mysql(1062, said)
    assert (found.code, found.gtid, found.text) == (1062, gtid, text)
    assert found.position == replace(PLACE, offset=250)


def test_what_users_write_names_nothing() -> None:
    """A value or a statement that reads like a server's message is no such message."""
    query = f"Error 'x' on query. Default database: 'd'. Query: 'SELECT \"{WORKER}9{EVENT}\"'"
    for found in (of_mysql(1062, query), of_mariadb(1062, query)):
        assert (found.gtid, found.position) == (None, None)
    forged = ROWS.replace("21", f"{WORKER}9; {EVENT.replace('250', '9')}")
    found = of_mariadb(1062, f"{forged}{EVENT}")
    assert (found.gtid, found.position) == (None, replace(PLACE, offset=250))


@pytest.mark.parametrize("of", [of_mysql, of_mariadb])
def test_the_hash_of_a_password_is_not_repeated(of: Callable[[int, str], ApplierFailure]) -> None:
    """The message of a server repeats the statement; what it says about passwords stays."""
    said = "Error 'Plugin 'mysql_native_password' is not loaded' on query. Default database: ''. "
    account = "Query: 'CREATE USER 'u'@'%' IDENTIFIED"
    secret = f"{account} WITH 'mysql_native_password' AS '*0123456789ABCDEF' REQUIRE NONE'"
    assert of(1524, f"{said}{secret}{EVENT}").text == f"{said}{account} ..."
    weak = "Error 'Your password does not satisfy the current policy' on query. Query: 'GRANT x'"
    assert of(1819, weak).text == weak


def test_the_place_of_mariadb() -> None:
    """The end of the event, which is not repeated in the text."""
    found = of_mariadb(1062, f"{ROWS}{EVENT}")
    assert (found.gtid, found.text) == (None, ROWS)
    assert found.position == replace(PLACE, offset=250)


def piece(number: int, begin: int = 100, left_out: tuple[tuple[int, int], ...] = ()) -> PlanPiece:
    return PlanPiece(
        lineage="a",
        binlog=BinlogName.parse(f"b.{number:06}"),
        begin=begin,
        end=400,
        left_out=left_out,
        transactions=3,
        gtids=MariadbGtidList(),
    )


def transactions(
    lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
) -> Iterator[Transaction]:
    """Three of 100 bytes in each binlog, from 100 on."""
    assert lineage == "a"
    for at in (100, 200, 300):
        if begin <= at < (end or 400):
            yield Transaction(
                begin=at,
                end=at + 100,
                gtid=f"0-{name.number}-{at}",
                commit_us=0,
                commit_exact=False,
                original_commit_us=None,
            )


def named(
    text: str, at: BinlogPosition, pieces: tuple[PlanPiece, ...], *, one_by_one: bool = True
) -> str | None:
    failure = of_mariadb(1062, text)
    found = failed_transaction(failure, pieces, at, transactions, one_by_one=one_by_one)
    return found.gtid if found is not None else None


@pytest.mark.parametrize("one_by_one", [True, False])
def test_an_event_within_the_next_transaction(one_by_one: bool) -> None:
    """However many workers there are, that is the one that failed; any other event is not."""
    pieces = (piece(6), piece(7), piece(8))
    at = replace(PLACE, offset=200)
    assert named(ROWS + EVENT, at, pieces, one_by_one=one_by_one) == "0-7-200"
    for offset in (200, 301, 250 + (1 << 32)):
        elsewhere = EVENT.replace("250", str(offset))
        assert named(ROWS + elsewhere, at, pieces, one_by_one=one_by_one) is None
    other = EVENT.replace("000007", "000008")
    assert named(ROWS + other, at, pieces, one_by_one=one_by_one) is None


def test_a_statement() -> None:
    """Its message has no place: with one worker it is of the next transaction, else unknown."""
    said, at = (
        "Error 'x' on query. Default database: 'd'. Query: 'CREATE ...'",
        replace(PLACE, offset=200),
    )
    assert named(said, at, (piece(7),)) == "0-7-200"
    assert named(said, at, (piece(7),), one_by_one=False) is None
    assert named("Relay log read failure: it is corrupted", at, (piece(7),)) is None


def test_the_next_transaction_of_the_plan() -> None:
    """Across binlogs, behind what is left out; a place elsewhere has none."""
    said = "Error executing row event: 'x'"
    end = replace(PLACE, offset=400)
    assert named(said, end, (piece(7), piece(8, left_out=((100, 300),)))) == "0-8-300"
    assert named(said, replace(PLACE, offset=4), (piece(7, begin=200),)) == "0-7-200"
    assert named(said, end, (piece(7),)) is None
    assert named(said, replace(PLACE, lineage="z"), (piece(7),)) is None
