"""What people and programs see of a recovery: the plan, its result, how far it is."""

import json
import os
import pty
import select
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.binlog.content import Change, Content
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.points import parse_time
from binlog2s3.errors import RecoveryError
from binlog2s3.output import Coloured, Plain, confirm, page_on
from binlog2s3.recover.document import document
from binlog2s3.recover.model import (
    Plan,
    ProgressReport,
)
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
from lab.pitr_examples import ABOUT, LINEAGE, PLAN, RESULT, UUID

OTHER = "20260102T120000Z-9d11fa47-0001"


def plain(plan: Plan, about: About = ABOUT) -> str:
    out = StringIO()
    print_plan(plan, about, page_on(out))
    return out.getvalue()


def terminal(show: Callable[[Coloured], None], width: int = 80) -> list[str]:
    out = StringIO()
    show(Coloured(Console(file=out, width=width, color_system=None, _environ={})))
    return out.getvalue().splitlines()


# The plan


def test_a_plan_says_where_nothing_would_stop_a_second_run() -> None:
    """A target without GTIDs cannot tell what it has; where nothing is applied, no word of it."""
    warning = "the same command would apply all of it a second time"
    assert warning in plain(PLAN, replace(ABOUT, once=True))
    assert warning not in plain(PLAN)
    mariadb = plain(replace(PLAN, flavour="mariadb"), replace(ABOUT, once=True))
    assert warning not in mariadb, "its gtid_slave_pos tells"
    assert "by it the same command is refused a second time" in mariadb
    assert warning not in plain(replace(PLAN, pieces=()), replace(ABOUT, once=True))


def test_a_plan_says_what_is_applied_and_how_long_it_may_take() -> None:
    """Each binlog with bytes, transactions and last commit; the sum; an estimate, called one."""
    lines = plain(PLAN).splitlines()
    assert "apply      2 binlogs, 31.2 MiB, 33,011 transactions" in lines
    (estimate,) = (line for line in lines if "roughly" in line)
    assert "17 s (at 2000 transactions or 50 MB a second, the slower one" in estimate
    assert any("the target replicates it from this process" in line for line in lines)
    (row,) = (line.split() for line in lines if line.startswith("  mysql-bin.000042  "))
    assert row[:6] == ["mysql-bin.000042", "1234370", "2004", "-", "197", "1234567"]
    assert row[6:] == ["2026-01-02", "11:58:21Z"]
    assert not [line for line in lines if "lineage  " in line and "bytes" in line]


@pytest.mark.parametrize(("transactions", "size"), [(4000, 1), (1, 100_000_000)])
def test_the_slower_one_counts(transactions: int, size: int) -> None:
    """Many small transactions, or few great ones."""
    piece = replace(PLAN.pieces[0], begin=0, end=size, transactions=transactions)
    assert estimate_seconds(replace(PLAN, pieces=(piece,))) == 2.0


def test_a_plan_says_where_it_comes_from() -> None:
    """The history that was chosen, others beside it, what the target has, what can be reached."""
    text = plain(replace(PLAN, others=(OTHER,), warnings=("the clock stepped",)))
    assert "s3://acme-binlogs/prod, mysql 9.7.0\n" in text
    assert f"lineage {LINEAGE}\n" in text
    assert f"not on it: {OTHER}\n" in text
    assert f"has {UUID}:1-15201\n" in text
    assert f"adds {UUID}:15202-48212\n" in text
    assert "from       mysql-bin.000041:73400102 (what the target has executed)\n" in text
    assert "2025-12-30T09:33:30.000000Z to 2026-01-02T12:03:27.000000Z\n" in text
    assert "mysql-bin.000001:4 to mysql-bin.000042:1240311\n" in text
    assert "\nwarning: the clock stepped\n" in text
    unknown = replace(PLAN, reach=replace(PLAN.reach, latest_us=None), before=None, adds=None)
    assert "2025-12-30T09:33:30.000000Z to unknown\n" in plain(unknown)
    assert "\n           has " not in plain(unknown)


def test_very_many_binlogs_are_shown_by_the_first_and_the_last() -> None:
    """And how many lie between them; none twice, none lost."""
    for count in (24, 25, 3000):
        pieces = tuple(
            replace(PLAN.pieces[0], binlog=BinlogName("b", number), begin=0, end=10, transactions=2)
            for number in range(count)
        )
        lines = plain(replace(PLAN, pieces=pieces)).splitlines()
        rows = [line for line in lines if line.startswith("  b.")]
        assert len(rows) == 24
        assert rows[0].startswith("  b.000000 ")
        assert rows[-1].startswith(f"  b.{count - 1:06d} ")
        more = [line for line in lines if line.startswith("  ... ")]
        left = count - 24
        binlogs = f"{left:,} binlog{'s' if left > 1 else ''}"
        expected = [f"  ... {binlogs} more, {left * 10} bytes, {left * 2:,} transactions"]
        assert more == (expected if left else [])


def test_a_stop_without_gtids_is_an_offset() -> None:
    """Nothing is made up."""
    none = [
        replace(one, transaction=replace(one.transaction, gtid=None))
        for one in (PLAN.kept[0], PLAN.left_out[0])
    ]
    plan = replace(PLAN, kept=(none[0],), left_out=(none[1],))
    assert stop_text(plan) == "mysql-bin.000042:1234567"
    assert "  no GTID  " in plain(plan)


def test_what_a_transaction_does_is_cut_where_it_is_long() -> None:
    """Tables, kinds and rows; of very many the first; statements on one line."""
    changes = tuple(Change(kind="insert", table=f"d.t{n}", rows=n) for n in range(12))
    (line,) = content_lines(Content(changes=changes, compressed=True))
    assert line.startswith("insert d.t0 (0 rows), insert d.t1 (1 row), ")
    assert line.endswith("insert d.t7 (7 rows), and 4 more (compressed)")
    long = Content(statements=("CREATE TABLE t (\n  a int\n)", "x" * 999, "y", "z"))
    assert list(content_lines(long)) == [
        "CREATE TABLE t ( a int )",
        "x" * 300 + "...",
        "and 2 statements more",
    ]
    assert list(content_lines(Content())) == ["(unknown content)"]
    other = Content(changes=(Change(kind="other", table=""), Change(kind="update", table="")))
    assert list(content_lines(other)) == ["other, update"]


EVIL = "\x1b]0;owned\x07\x1b[2J\r\nwarning: forged"


@pytest.mark.parametrize("wide", [20, 80, 200, 0])
def test_nothing_from_the_bucket_commands_a_terminal(wide: int) -> None:
    """Neither statements, tables, versions nor warnings; and none begins a line of its own."""
    content = Content(
        changes=(Change(kind="ddl", table=EVIL, rows=None),), statements=(EVIL,), compressed=False
    )
    shown = replace(PLAN.kept[0], content=content)
    plan = replace(
        PLAN,
        server_version=EVIL,
        kept=(shown,),
        left_out=(shown,),
        warnings=(EVIL,),
        others=(EVIL,),
    )
    about = replace(ABOUT, target=EVIL, start=EVIL, source=EVIL, archive=EVIL)
    if wide:
        lines = terminal(lambda page: print_plan(plan, about, page), wide)
        lines += terminal(lambda page: print_result(replace(RESULT, where=EVIL), page), wide)
    else:
        lines = plain(plan, about).splitlines()
    assert lines
    assert all(line.isprintable() for line in lines)
    assert "warning: forged" not in lines


@pytest.mark.parametrize("width", [30, 60, 80, 120, 200])
def test_a_terminal_of_any_width_shows_all_of_it(width: int) -> None:
    """Nothing is cut, no line is longer than the terminal."""
    lines = terminal(lambda page: print_plan(PLAN, ABOUT, page), width)
    if width >= 80:
        assert max(map(len, lines)) <= width
    joined = "".join("".join(lines).split())
    for one in (*PLAN.kept, *PLAN.left_out):
        assert str(one.transaction.gtid) in joined
        assert f"{one.transaction.begin}-{one.transaction.end}" in joined


@given(st.text(), st.text(), st.integers(-(2**63), 2**63))
def test_a_page_can_always_be_printed(table: str, statement: str, us: int) -> None:
    """Whatever stands in the binlog, and whenever it was committed."""
    content = Content(changes=(Change(kind="ddl", table=table),), statements=(statement,))
    one = replace(
        PLAN.kept[0], content=content, transaction=replace(PLAN.kept[0].transaction, commit_us=us)
    )
    plan = replace(PLAN, kept=(one,), reach=replace(PLAN.reach, earliest_us=us, latest_us=us))
    assert plain(plan).count("\n") == len(plain(plan).splitlines())
    assert json.loads(json.dumps(document(plan, ABOUT)))


# The result, and the question


def test_results_in_words() -> None:
    """What was applied or written where, what was proved, and what the target has now."""

    def shown(result: Result) -> list[str]:
        out = StringIO()
        print_result(result, page_on(out))
        return out.getvalue().splitlines()

    assert shown(RESULT) == [
        "applied to /run/restore.sock: 33,011 transactions, 31.2 MiB in 11 s",
        f"the target's GTIDs: {UUID}:1-48212",
        (
            f"proved: from {UUID}:1-15201 to {UUID}:1-48212 (33,011 transactions), no more and no "
            "less; the base backup was not checked"
        ),
    ]
    anonymous = replace(RESULT, gtids=None, proved="", stands_at=PLAN.stop)
    assert shown(anonymous)[1:] == [
        (
            "nothing in the target shows that it is at mysql-bin.000042:1234567 now; "
            f"to continue from there: --from-lineage {PLAN.stop.lineage} "
            "--from-binlog mysql-bin.000042 --from-position 1234567"
        ),
        (
            "not proved: the target keeps no GTIDs that tell what was applied; the base backup was "
            "not checked"
        ),
    ]
    mariadb = shown(replace(anonymous, gtid_slave_pos=MariadbGtidList.parse("0-7-6")))
    assert mariadb[1].startswith("gtid_slave_pos 0-7-6 in the target shows that it is at mysql-bin")
    assert "tells only the last transaction of each domain; the base backup" in mariadb[2]
    assert shown(Result(how="nothing")) == ["nothing to do: the target has all of it"]
    assert shown(Result(how="output-dir", where="/d", transactions=1, size=5)) == [
        "written to /d: 1 transaction, 5 B"
    ]
    event = "ALTER DEFINER=`a`@`b` EVENT `c`.`d\n` ENABLE;"
    said = shown(replace(RESULT, committed_empty=f"{UUID}:5", disabled_events=(event,)))
    assert said[1] == f"committed empty: {UUID}:5"
    assert said[2:4] == [
        "replication disabled these events; enable those that the source had enabled:",
        "  ALTER DEFINER=`a`@`b` EVENT `c`.`d\\n` ENABLE;",
    ]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("yes", True), (" YES ", True), ("y", True), ("no", False), ("\n\n", False), ("\x04", False)],
)
def test_only_yes_is_yes(answer: str, expected: bool) -> None:
    """On a terminal; an end of file is no. The question names the target, and obeys nobody."""
    asked = "apply 33,011 transactions to db9\\x1b[2J? [yes/no] "
    leader, follower = pty.openpty()
    with (
        os.fdopen(leader, "r+b", buffering=0) as screen,
        os.fdopen(follower, "r+b", buffering=0) as f,
    ):
        screen.write(f"{answer}\n".encode())
        with (
            open(f.fileno(), closefd=False, encoding="utf-8") as answers,
            open(f.fileno(), "w", closefd=False, encoding="utf-8") as out,
        ):
            question = question_text(PLAN, replace(ABOUT, target="db9\x1b[2J"))
            with nullcontext() if expected else pytest.raises(RecoveryError, match="was not yes"):
                confirm(question, "applied", hint="", answers=answers, out=out)
        drawn = ""  # A terminal gives out what was written piece by piece.
        while asked not in drawn and select.select([screen], [], [], 30)[0]:
            drawn += screen.read(1 << 16).decode()
    assert asked in drawn


def test_without_a_terminal_nobody_is_asked() -> None:
    """The answer is neither yes nor no, and nothing is printed."""
    out = StringIO()
    with pytest.raises(RecoveryError, match="not applied: there is no terminal"):
        confirm("?", "applied", hint="", answers=StringIO("yes\n"), out=out)
    assert out.getvalue() == ""


# For programs


def test_the_document_is_whole() -> None:
    """Every field of a plan is in it, sets as text, times in UTC with microseconds."""
    whole = json.loads(json.dumps(document(PLAN, ABOUT, RESULT)))
    assert (list(whole), whole["format"]) == (["format", "plan", "result"], 1)
    plan = whole["plan"]
    assert plan["goal"] == {"to": "before-gtid", "gtid": f"{UUID}:48213"}
    assert plan["stop"] == {"lineage": LINEAGE, "binlog": "mysql-bin.000042", "offset": 1234567}
    assert plan["pieces"][1] == {
        "lineage": LINEAGE,
        "binlog": "mysql-bin.000042",
        "begin": 197,
        "end": 1234567,
        "left_out": [],
        "bytes": 1234370,
        "transactions": 2004,
        "gtids": f"{UUID}:46209-48212",
        "greatest_commit": "2026-01-02T11:58:21.675691Z",
    }
    assert plan["gtids_before"] == f"{UUID}:1-15201"
    assert plan["reachable"]["latest"] == "2026-01-02T12:03:27.000000Z"
    assert plan["left_out"][0]["changes"] == [{"kind": "ddl", "table": "shop.orders", "rows": None}]
    assert plan["left_out"][0]["committed"] == "2026-01-02T11:58:21.733902Z"
    named = {"pieces", "kept", "left_out", "warnings", "stop", "goal", "flavour", "lineage"}
    assert named < set(plan)
    assert whole["result"]["gtids"] == f"{UUID}:1-48212"
    assert set(whole["result"]) == {
        "bytes" if one.name == "size" else one.name for one in fields(Result)
    }
    assert document(PLAN, ABOUT)["result"] is None


# How far it is


def at(size: int, transactions: int, commit_us: int | None = None) -> ProgressReport:
    return ProgressReport(
        size=size,
        of_size=1 << 20,
        transactions=transactions,
        of_transactions=1000,
        commit_us=commit_us,
    )


def test_progress_has_bytes_transactions_time_rate_and_the_rest() -> None:
    """The rest is by what is slower."""
    now = [0.0]
    pace = Throughput(lambda: now[0])
    pace.take(at(0, 0))
    assert words_of(at(0, 0), pace) == ["0 B of 1.0 MiB", "0 of 1,000 transactions"]
    now[0] = 5.0
    pace.take(at(256 << 10, 40))
    now[0] = 10.0
    pace.take(at(512 << 10, 100, parse_time("2026-01-02T03:04:05.9Z")))
    assert words_of(at(512 << 10, 100, parse_time("2026-01-02T03:04:05.9Z")), pace) == [
        "512 KiB of 1.0 MiB",
        "100 of 1,000 transactions",
        "at 2026-01-02T03:04:05Z",
        "51.2 KiB/s, 10 transactions/s",
        "90 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "sizes", "counts"),
    [
        ((0, 2, 4), (0, 0, 100), (0, 0, 1)),  # 25,000 transactions at one in four seconds
        ((0, 9), (0, 9000), (0, 90)),
        ((0, 1, 60), (0, 1000, 1000), (0, 1, 1)),  # it waits
        ((0, 6, 12), (0, 10, 500_000), (0, 1, 500)),  # it has just begun
        ((0, 6, 12), (0, 500_000, 500_010), (0, 500, 501)),  # it is in a large transaction
        ((0, 30), (0, 500_000), (0, 500)),
    ],
)
def test_no_rest_is_guessed(
    seconds: Sequence[int], sizes: Sequence[int], counts: Sequence[int]
) -> None:
    """From a few seconds, or while the speed changes, nothing can be said about the rest."""
    now = [0.0]
    pace = Throughput(lambda: now[0])
    words: list[str] = []
    for second, size, count in zip(seconds, sizes, counts, strict=True):
        now[0] = float(second)
        pace.take(at(size, count))
        words = words_of(at(size, count), pace)
    assert not any("left" in word for word in words)
    assert any("/s" in word for word in words)


def test_the_rest_of_what_is_steady_is_estimated() -> None:
    """Bytes go on steadily within a large transaction, which is one however long it takes."""
    now = [0.0]
    pace = Throughput(lambda: now[0])
    for second in range(21):
        now[0] = float(second)
        pace.take(at(second << 10, 1 if second < 15 else 2))
    assert words_of(at(20 << 10, 2), pace)[-1] == "17 min left"


def test_the_rate_is_that_of_the_last_seconds() -> None:
    """A quick beginning is forgotten, and so is the memory for it."""
    now = [0.0]
    pace = Throughput(lambda: now[0])
    for second in range(1000):
        now[0] = float(second)
        pace.take(at(1000 + second, 900))
    assert pace.rates() == (1.0, 0.0)
    assert len(pace.seen) < 50


def test_into_a_pipe_progress_is_a_line_now_and_then() -> None:
    """Each ten seconds, however often it is told."""
    now = [0.0]
    out = StringIO()
    with showing(out, clock=lambda: now[0]) as show:
        for tenth in range(310):
            now[0] = tenth / 10
            show(at(tenth, tenth))
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("progress: 100 B of 1.0 MiB, 100 of 1,000 transactions, 10 B/s")


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


def test_a_page_for_a_terminal_without_unicode() -> None:
    """What it cannot show is escaped."""

    class Ascii(StringIO):
        encoding = "ascii"

    out = Ascii()
    print_plan(replace(PLAN, warnings=("ü",)), ABOUT, Plain(out))
    assert "warning: \\xfc\n" in out.getvalue()
