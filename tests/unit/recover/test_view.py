"""What people see of a recovery: what tests/golden has no case of, progress, evil text."""

import json
import os
import pty
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.archive.codec import printed
from binlog2s3.binlog.content import Change, Content
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.config.points import parse_time
from binlog2s3.output import Coloured, confirm, page_on
from binlog2s3.recover.document import PrintedRecovery, whole
from binlog2s3.recover.model import Plan, ProgressReport
from binlog2s3.recover.progress import Throughput, showing, words_of
from binlog2s3.recover.view import (
    About,
    Result,
    content_lines,
    estimate_seconds,
    print_plan,
    print_result,
    question_text,
    stop_text,
)
from lab.pitr_examples import ABOUT, PLAN, RESULT, UUID

OTHER = "20260102T120000Z-9d11fa47-0001"


def plain(plan: Plan, about: About = ABOUT) -> str:
    out = StringIO()
    print_plan(plan, about, page_on(out))
    return out.getvalue()


def terminal(show: Callable[[Coloured], None], width: int = 80) -> list[str]:
    out = StringIO()
    show(Coloured(Console(file=out, width=width, color_system=None, _environ={})))
    return out.getvalue().splitlines()


def test_a_plan_says_where_nothing_would_stop_a_second_run() -> None:
    """A target without GTIDs cannot tell what it has; where nothing is applied, no word of it."""
    warning = "the same command would apply all of it a second time"
    assert warning in plain(PLAN, replace(ABOUT, once=True))
    assert warning not in plain(PLAN)
    mariadb = plain(replace(PLAN, flavour="mariadb"), replace(ABOUT, once=True))
    assert warning not in mariadb, "its gtid_slave_pos tells"
    assert "by it the same command is refused a second time" in mariadb
    assert warning not in plain(replace(PLAN, pieces=()), replace(ABOUT, once=True))


def test_what_is_not_known_is_not_made_up() -> None:
    """A stop without GTIDs is an offset; lineages beside the history are named."""
    anonymous = tuple(
        replace(one, transaction=replace(one.transaction, gtid=None))
        for one in (PLAN.kept[0], PLAN.left_out[0])
    )
    plan = replace(PLAN, kept=anonymous[:1], left_out=anonymous[1:], others=(OTHER,))
    assert stop_text(plan) == "mysql-bin.000042:1234567"
    text = plain(replace(plan, reach=replace(PLAN.reach, latest_us=None), before=None, adds=None))
    assert "  no GTID  " in text
    assert f"not on it: {OTHER}\n" in text
    assert "2025-12-30T09:33:30.000000Z to unknown\n" in text
    assert "\n           has " not in text


@pytest.mark.parametrize(("transactions", "size"), [(4000, 1), (1, 100_000_000)])
def test_the_slower_one_counts(transactions: int, size: int) -> None:
    """Many small transactions, or few great ones."""
    piece = replace(PLAN.pieces[0], begin=0, end=size, transactions=transactions)
    assert estimate_seconds(replace(PLAN, pieces=(piece,))) == 2.0


def test_what_a_transaction_does_is_cut_where_it_is_long() -> None:
    """Tables, kinds and rows; of very many the first; statements on one line."""
    changes = tuple(Change(kind="insert", table=f"d.t{n}", rows=n) for n in range(12))
    (line,) = content_lines(Content(changes=changes, compressed=True))
    assert line.startswith("insert d.t0 (0 rows), insert d.t1 (1 row), ")
    assert line.endswith("insert d.t7 (7 rows) and 4 more (compressed)")
    long = Content(statements=("CREATE TABLE t (\n  a int\n)", "x" * 999, "y", "z"))
    lines = ["CREATE TABLE t ( a int )", "x" * 300 + "...", "y", "and 1 statement more"]
    assert list(content_lines(long)) == lines
    assert list(content_lines(Content())) == ["(unknown content)"]


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


EVIL = "\x1b]0;owned\x07\x1b[2J\r\nwarning: forged"


@pytest.mark.parametrize("wide", [20, 80, 200, 0])
def test_nothing_from_the_bucket_commands_a_terminal(wide: int) -> None:
    """Neither statements, tables, versions nor warnings; and none begins a line of its own."""
    content = Content(changes=(Change(kind="ddl", table=EVIL, rows=None),), statements=(EVIL,))
    shown = (replace(PLAN.kept[0], content=content),)
    evil = {"server_version": EVIL, "warnings": (EVIL,), "others": (EVIL,)}
    plan = replace(PLAN, kept=shown, left_out=shown, **evil)
    about = replace(ABOUT, target=EVIL, start=EVIL, source=EVIL, archive=EVIL)
    result = replace(RESULT, where=EVIL, disabled_events=(EVIL,))
    out = Terminal()
    confirm(question_text(plan, about), "applied", hint="", answers=Terminal("yes\n"), out=out)
    lines = [*out.getvalue().splitlines(), *plain(plan, about).splitlines()]
    if wide:
        lines = terminal(lambda page: print_plan(plan, about, page), wide)
        lines += terminal(lambda page: print_result(result, page), wide)
    assert all(line.isprintable() for line in lines)
    assert "warning: forged" not in lines


@given(st.text(), st.text(), st.integers(-(2**63), 2**63))
def test_a_page_can_always_be_printed(table: str, statement: str, us: int) -> None:
    """Whatever stands in the binlog, and whenever it was committed."""
    content = Content(changes=(Change(kind="ddl", table=table),), statements=(statement,))
    one = replace(
        PLAN.kept[0], content=content, transaction=replace(PLAN.kept[0].transaction, commit_us=us)
    )
    plan = replace(PLAN, kept=(one,), reach=replace(PLAN.reach, earliest_us=us, latest_us=us))
    assert plain(plan).count("\n") == len(plain(plan).splitlines())
    found = json.loads(printed(PrintedRecovery, whole(plan, ABOUT, RESULT)))
    assert found["result"]["gtids"] == f"{UUID}:1-48212"


def printed_of(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(PrintedRecovery, whole(PLAN, ABOUT, result)))
    return found["result"]  # type: ignore[no-any-return]


def test_results_in_words() -> None:
    """What was applied or written where, what was proved, and what the target has now."""

    def shown(result: Result) -> list[str]:
        out = StringIO()
        print_result(result, page_on(out))
        return out.getvalue().splitlines()

    unchecked = "; the base backup was not checked"
    gtids = f"from {UUID}:1-15201 to {UUID}:1-48212 (33,011 transactions)"
    assert shown(RESULT) == [
        "applied to /run/restore.sock: 33,011 transactions, 31.2 MiB in 11 s",
        f"the target's GTIDs: {UUID}:1-48212",
        f"proved: {gtids}, no more and no less{unchecked}",
    ]
    anonymous = replace(RESULT, gtids=None, proved="", stands_at=PLAN.stop)
    (stands,) = shown(anonymous)[1:]
    place = f"{PLAN.stop.lineage} --from-binlog mysql-bin.000042 --from-position 1234567"
    assert stands.endswith(f"now; to continue from there: --from-lineage {place}")
    doubted = replace(anonymous, doubts=("of one reason", "of another"))
    last = ["not proved: of one reason", f"not proved: of another{unchecked}"]
    assert shown(doubted)[2:] == last, "all of them are told"
    assert printed_of(doubted)["doubts"] == ["of one reason", "of another"]
    untold = replace(anonymous, untold="it keeps no GTIDs")
    assert shown(untold)[2:] == [f"not proved: it keeps no GTIDs{unchecked}"]
    assert printed_of(untold)["doubts"] == [], "a drill into a MariaDB has no doubt by itself"
    assert len(shown(replace(doubted, untold="it keeps no GTIDs"))[2:]) == 3
    mariadb = shown(replace(anonymous, gtid_slave_pos=MariadbGtidList.parse("0-7-6")))
    assert mariadb[1].startswith("gtid_slave_pos 0-7-6 in the target shows that it is at mysql-bin")
    assert shown(Result(how="nothing")) == ["nothing to do: the target has all of it"]
    written = Result(how="output-dir", where="/d", transactions=1, size=5)
    assert shown(written) == ["written to /d: 1 transaction, 5 B"]
    event = "ALTER DEFINER=`a`@`b` EVENT `c`.`d\n` ENABLE;"
    said = shown(replace(RESULT, committed_empty=f"{UUID}:5", disabled_events=(event,)))
    assert said[1:4] == [
        f"committed empty: {UUID}:5",
        "replication disabled these events; enable those that the source had enabled:",
        "  ALTER DEFINER=`a`@`b` EVENT `c`.`d\\n` ENABLE;",
    ]


def at(size: int, transactions: int, commit_us: int | None = None) -> ProgressReport:
    return ProgressReport(
        size=size,
        of_size=1 << 20,
        transactions=transactions,
        of_transactions=1000,
        commit_us=commit_us,
    )


def told(*reports: tuple[int, int, int]) -> list[str]:
    """What is said after the last of these seconds, bytes and transactions."""
    now = [0.0]
    pace = Throughput(lambda: now[0])
    for second, size, count in reports:
        now[0] = float(second)
        pace.take(at(size, count))
    assert len(pace.seen) < 50
    return words_of(at(*reports[-1][1:], parse_time("2026-01-02T03:04:05.9Z")), pace)


def test_progress_has_bytes_transactions_time_rate_and_the_rest() -> None:
    """The rest is by what is slower; the rate is that of the last seconds."""
    words = ["512 KiB of 1.0 MiB", "100 of 1,000 transactions", "at 2026-01-02T03:04:05Z"]
    steady = [(0, 0, 0), (5, 256 << 10, 40), (10, 512 << 10, 100)]
    assert told(*steady) == [*words, "51.2 KiB/s, 10 transactions/s", "90 s left"]
    one_large = [(second, second << 10, 1 if second < 15 else 2) for second in range(21)]
    assert told(*one_large)[-1] == "17 min left"
    assert "1 B/s, 0 transactions/s" in told(*((n, 1000 + n, 900) for n in range(1000)))


@pytest.mark.parametrize(
    "reports",
    [
        [(0, 0, 0), (2, 0, 0), (4, 100, 1)],  # 25,000 transactions at one in four seconds
        [(0, 0, 0), (9, 9000, 90)],
        [(0, 0, 0), (1, 1000, 1), (60, 1000, 1)],  # it waits
        [(0, 0, 0), (6, 10, 1), (12, 500_000, 500)],  # it has just begun
        [(0, 0, 0), (6, 500_000, 500), (12, 500_010, 501)],  # it is in a large transaction
        [(0, 0, 0), (30, 500_000, 500)],
    ],
)
def test_no_rest_is_guessed(reports: Sequence[tuple[int, int, int]]) -> None:
    """From a few seconds, or while the speed changes, nothing can be said about the rest."""
    words = told(*reports)
    assert not any("left" in word for word in words)
    assert any("/s" in word for word in words)


def test_into_a_pipe_progress_is_a_line_now_and_then() -> None:
    """Each ten seconds, however often it is told."""
    now, out = [0.0], StringIO()
    with showing(out, clock=lambda: now[0]) as show:
        for tenth in range(310):
            now[0] = tenth / 10
            show(at(tenth, tenth))
    first, _, _ = out.getvalue().splitlines()
    assert first.startswith("progress: 100 B of 1.0 MiB, 100 of 1,000 transactions, 10 B/s")


def test_on_a_terminal_progress_is_a_bar() -> None:
    """It is drawn there, and gone at the end."""
    leader, follower = pty.openpty()
    drawn = b""
    with os.fdopen(leader, "rb", buffering=0) as screen:
        with os.fdopen(follower, "w") as out, showing(out) as show:
            show(at(512 << 10, 500))
        with suppress(OSError):  # what Linux says where the other end is closed
            while part := screen.read(1 << 16):
                drawn += part
    assert b"50%" in drawn
    assert b"500 of 1,000 transactions" in drawn
