"""What people see of a Status: page, table, lines and screen; and what may be asked for."""

import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.binlog.names import BinlogName
from binlog2s3.cli.monitor import ForMonitors
from binlog2s3.cli.status_watch import (
    Course,
    LookSchedule,
    Observation,
    line_of_course,
    print_screen,
    watch,
)
from binlog2s3.errors import ArchiveError, StoreError
from binlog2s3.formatting import duration_text, short_text, size_text
from binlog2s3.output import Coloured, Picture, Plain
from binlog2s3.status.model import Gap, HistoryStatus, Lag, Purge, Rates, Status, Trouble
from binlog2s3.status.text import line_of, line_of_all, print_status, print_table
from lab.status_examples import CATCHING_UP, DEAD, IDLE, NOW, STREAMING, TARGET

NOTHING = Status(
    source="orders-primary", target=TARGET, seen_from="bucket", at=NOW, state="unknown"
)
CRITICAL = Trouble(code="store", level="critical", text="access denied", hint="allow s3:PutObject")
WARNING = Trouble(code="starting", level="warning", text="not streaming yet, for 3 s")
SPOOL = IDLE.spool
assert SPOOL is not None
Show = Callable[[Plain], None]


def plain(show: Show) -> str:
    out = StringIO()
    show(Plain(out))
    return out.getvalue()


def terminal(show: Show, width: int = 100) -> str:
    out = StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system="standard", _environ={}
    )
    show(Coloured(console))
    return out.getvalue()


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def page(status: Status, why: str = "") -> Show:
    return lambda page: print_status(status, page, now=NOW, why=why)


def table(*statuses: Status) -> Show:
    return lambda page: print_table(statuses, page, target=TARGET, now=NOW)


def shown(status: Status, name: str) -> list[str]:
    """The lines of a field."""
    lines = plain(page(status)).splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith(f"{name} "))
    found = [lines[first][13:]]
    for line in lines[first + 1 :]:
        if not line.startswith(" " * 13):
            break
        found.append(line[13:])
    return found


# One


@pytest.mark.parametrize(
    ("offset", "behind", "is_said"),
    [(900, 0, False), (900, 80, True), (901, 0, True), (899, 1, False)],
)
def test_a_source_that_is_behind_what_was_read(offset: int, behind: int, *, is_said: bool) -> None:
    """Its position is older than the rest, and its lag counts up to what came since."""
    assert STREAMING.server.position is not None
    at = replace(STREAMING.server.position, binlog=BinlogName("b", 1), offset=900)
    status = replace(
        STREAMING,
        durable=replace(at, offset=offset),
        server=replace(STREAMING.server, position=at),
        lag=Lag(bytes=behind, transactions=None, seconds=0.5),
    )
    assert ("counts, too" in shown(status, "source")[0]) is is_said


def test_what_is_not_known_is_unknown_and_never_0() -> None:
    """A status without anything has no number at all."""
    text = plain(page(NOTHING))
    head, *rest = text.splitlines()
    assert head == ("orders-primary  unknown  how much is in the bucket is unknown")
    assert not re.search(r"\d", " ".join(rest).replace(TARGET, ""))
    for name in ("lag", "durable", "source", "spool", "uploads", "mysqlbinlog", "store", "rates",
                 "since start", "history", "writer"):  # fmt: skip
        assert shown(NOTHING, name)[0] == "unknown"
    assert "unknown" in shown(NOTHING, "purge")[0]
    assert "unknown" in shown(NOTHING, "seen from")[0]
    cells = plain(table(NOTHING)).splitlines()[3].split()
    assert cells == ["orders-primary", *["unknown"] * 7]
    assert not re.search(r"[=,]0", line_of(NOTHING, NOW))
    assert line_of(NOTHING, NOW).count("unknown") == 7


@pytest.mark.parametrize(
    ("lag", "text"),
    [
        (Lag(), "unknown"),
        (Lag(bytes=0, transactions=0, seconds=0.0), "none: 0 s, 0 B, 0 transactions"),
        (Lag(bytes=0, seconds=0.0), "at most 0 s, 0 B, transactions unknown"),
        (Lag(transactions=1), "seconds unknown, bytes unknown, 1 transaction"),
        (Lag(seconds=0.01), "at most 0.1 s, bytes unknown, transactions unknown"),
    ],
)
def test_a_lag_that_is_half_known_is_not_none(lag: Lag, text: str) -> None:
    """Each part stands for itself, and only all zeros are called none."""
    assert shown(replace(IDLE, lag=lag), "lag") == [text]


@pytest.mark.parametrize(
    ("changed", "red", "text"),
    [
        ({"spool": replace(SPOOL, max_bytes=None, paused=True)}, "NO ROOM",
         "NO ROOM, nothing is read: 1.2 MiB, no limit; 93.0 GiB free"),
        ({"purge": Purge(expire_seconds=60.0, seconds=0.0)}, "the source may delete",
         "the source may delete what is not durable at any time"),
        ({"troubles": (WARNING, CRITICAL)}, "access denied",
         "critical   access denied [store]\n             hint: allow s3:PutObject\n  warning "),
    ],
)  # fmt: skip
def test_what_is_dangerous_stands_out(changed: dict[str, Any], red: str, text: str) -> None:
    """In red on a terminal, the worst first; a pipe has no colours."""
    status = replace(IDLE, **changed)
    assert text in plain(page(status))
    assert f"\x1b[1;31m{red}" in terminal(page(status))
    assert "\x1b" not in plain(page(status)) + plain(table(status))


def test_huge_gtid_sets_are_cut_and_say_how_long_they_are() -> None:
    """A page is no place for a megabyte."""
    gtids = ",\n".join(f"{number:08x}-71ca-11e1-9e33-c80aa9429562:1-5" for number in range(9999))
    durable = replace(IDLE.durable, gtid_set=gtids)  # type: ignore[type-var]
    text = plain(page(replace(IDLE, durable=durable)))
    assert len(text) < 3000
    assert f"... ({len(gtids)} characters)" in text


EVIL = "\x1b[2J\x1b]0;x\x07\n\r\u202e\x9b31m|[red]x[/red]"


def spoilt(value: Any) -> Any:
    """The value with something evil in every text that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: spoilt(getattr(value, one.name))
            for one in fields(value)
            if one.name not in ("seen_from", "level")
        }
        return replace(value, **changed)
    if isinstance(value, tuple):
        return tuple(map(spoilt, value))
    return f"{value}{EVIL}" if isinstance(value, str) and value else value


def test_no_text_breaks_lines_or_commands_a_terminal() -> None:
    """Whatever source, store and bucket say: escapes are shown, not sent, and markup is text."""
    status = replace(spoilt(replace(CATCHING_UP, troubles=(CRITICAL,))), source="orders\x1b[2J")
    course = Course()
    course.take(Observation(statuses=(status,), why=EVIL), at=0.0)
    course.take(StoreError(EVIL, hint=EVIL), at=1.0)
    shows: list[Show] = [
        page(status, EVIL),
        table(status),
        lambda page: page.line(line_of(status, NOW)),
        lambda page: page.line(line_of_all([status], NOW)),
        lambda page: page.line(line_of_course(course, now=NOW, at=1.0)),
        lambda page: print_screen(course, page, now=NOW, at=1.0),
    ]
    for show in shows:
        count = len(plain(show).splitlines())
        assert plain(show).replace("\n", "").isprintable()
        assert count == plain(show).count("\n")
        coloured = terminal(show, 5000)
        assert uncoloured(coloured).replace("\n", "").isprintable()
        assert "[red]x[/red]" in coloured or "worst=" in coloured
    assert len(plain(page(status, EVIL)).splitlines()) == len(
        plain(page(replace(CATCHING_UP, troubles=(CRITICAL,)), "why")).splitlines()
    )


EVERYTHING = replace(
    CATCHING_UP,
    source="a-source-with-a-name-of-sixty-four-characters-as-long-as-allowed",
    state="source unreachable",
    troubles=(CRITICAL, replace(WARNING, text="x" * 150)),
    server=replace(CATCHING_UP.server, error="lost connection to the server, and more", uuid="u"),
)


@pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 100])
def test_narrow_terminals_fold_and_cut_nothing(width: int) -> None:
    """No line is longer than the terminal; every character of the plain page is there."""
    for status in (EVERYTHING, NOTHING, DEAD):
        text = uncoloured(terminal(page(status, "nobody answers"), width))
        assert max(map(len, text.splitlines())) <= width
        if width >= 60:  # beside their names, and what goes on stands below its beginning
            _, *fields = text.split("\n\n", 1)[1].splitlines()
            assert {line[12] for line in fields} == {" "}
        whole = plain(page(status, "nobody answers"))
        assert Counter("".join(text.split())) == Counter("".join(whole.split()))


@pytest.mark.parametrize("width", [20, 60, 100, 200])
def test_a_narrow_table_folds_and_cuts_nothing(width: int) -> None:
    """As the page; where columns have no room each source has its lines."""
    text = uncoloured(terminal(table(EVERYTHING, DEAD, IDLE, NOTHING), width))
    assert max(map(len, text.splitlines())) <= width
    whole = plain(table(EVERYTHING, DEAD, IDLE, NOTHING))
    lacking = Counter("".join(whole.split())) - Counter("".join(text.split()))
    assert lacking <= Counter("TTTT")  # of times that are broken
    if width >= 100:
        headings = text.splitlines()[2].split()
        assert headings[:3] == ["source", "state", "covered"]
        assert not [line for line in text.splitlines() if "heartbeat 11 s" in line]


# Many


# Amounts


@pytest.mark.parametrize("text_of", [duration_text, short_text])
@given(seconds=st.floats(0, 1e9))
def test_durations_are_rounded_to_the_safe_side(
    text_of: Callable[..., str], seconds: float
) -> None:
    """A lag never reads as less than it is, what is left never as more."""
    units = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

    def read(text: str) -> float:
        words = text.split()
        return sum(float(n) * units[unit] for n, unit in zip(words[::2], words[1::2], strict=True))

    assert read(text_of(seconds, up=True)) >= seconds - 0.01
    assert read(text_of(seconds)) <= seconds + 0.01


@pytest.mark.parametrize("amount", [float("nan"), float("inf")])
def test_what_is_beyond_all_measure_is_shown_somehow(amount: float) -> None:
    """A document of JSON may have it; no number is unknown."""
    assert duration_text(amount) == duration_text(amount, up=True) == "unknown"
    rates = Rates(window_seconds=amount, read_bytes=amount, durable_bytes=0, transactions=amount)
    until = datetime.fromisoformat("0001-01-01T00:00:00+14:00")
    status = replace(IDLE, lag=Lag(seconds=amount), rates=rates, covered_until=until)
    assert " lag=unknown read=" in line_of(status, NOW)
    assert "unknown" in plain(page(status))
    assert plain(table(status))
    assert size_text(10**400).endswith("EiB")


# Lines


def test_a_line_has_words_that_a_script_can_cut() -> None:
    """Time, source, state without blanks, then name=value."""
    status = replace(CATCHING_UP, troubles=(WARNING, CRITICAL))
    assert line_of(status, NOW).split(" ") == [
        "2026-01-02T12:03:30Z",
        "stock",
        "catching-up",
        "lag=2460s",
        "read=5.1MiB/s",
        "durable=mysql-bin.000042:88123456",
        "parts=1",
        "spool=1.2MiB",
        "troubles=critical:store,warning:starting,warning:gap",
        "from=bucket",
    ]
    assert line_of_all([DEAD, CATCHING_UP, IDLE], NOW).split(" ") == [
        "2026-01-02T12:03:30Z",
        "sources=3",
        "critical=1",
        "unknown=0",
        "warning=1",
        "lag=11040s",
        "worst=billing-eu,stock",
    ]
    assert "lag=unknown" in line_of_all([NOTHING], NOW)


# Watching


def seen(status: Status) -> Observation:
    return Observation(statuses=(status,), target=TARGET)


def looked(*rates: float) -> Course:
    """A course of looks, 20 s apart, each with so many bytes read a second, and half of it durable.

    The streamer itself tells its rates.
    """
    course = Course()
    for number, rate in enumerate(rates):
        told = Rates(window_seconds=60.0, read_bytes=rate, durable_bytes=rate / 2, transactions=1.0)
        course.take(seen(replace(STREAMING, rates=told)), at=20.0 * number)
    return course


def bars(course: Course) -> list[str]:
    """Those of the last look, read and durable, and what is beside them."""
    text = plain(lambda page: print_screen(course, page, now=NOW, at=1.0))
    found = [line for line in text.splitlines() if line.startswith(("read ", "durable "))]
    return [line.partition("B/s")[2].strip() for line in found]


def test_bars_compare_with_the_best_of_the_last_minute() -> None:
    """The best one is as long as a bar can be; without any bytes there is none."""
    assert bars(looked(1000.0, 200.0)) == ["━" * 6, "━" * 3]
    assert bars(looked(1000.0, 0.0)) == ["", ""]
    course = looked(1000.0, 200.0, 200.0, 200.0, 200.0)
    course.take(StoreError("gone"), at=81.0)
    assert bars(course) == ["━" * 30, "━" * 15]
    out = Latin()
    print_screen(course, Plain(out), now=NOW, at=5.0)
    Plain(out).line("größe")
    assert out.getvalue().isascii()
    assert "-" * 30 in out.getvalue()


class Latin(StringIO):
    """A pipe of the C locale."""

    encoding = "ascii"  # type: ignore[assignment]


def test_that_nobody_answers_is_said_beside_what_was_last_known() -> None:
    """With the error and since when; an answer makes it go."""
    course = Course()
    course.take(seen(STREAMING), at=2.0)
    course.take(StoreError("access denied", hint="allow s3:GetObject"), at=10.0)
    text = plain(lambda page: print_screen(course, page, now=NOW, at=12.0))
    assert text.startswith("no answer for 10 s: access denied\nhint: allow s3:GetObject\n\n")
    assert "orders-primary  streaming" in text
    assert line_of_course(course, now=NOW, at=12.0) == (
        "2026-01-02T12:03:30Z no answer for 10 s: access denied"
    )
    waiting = Course(0.0, 5.0)
    assert plain(lambda page: print_screen(waiting, page, now=NOW, at=4.0)) == "looking ...\n"
    assert "no answer for 6 s" in plain(lambda page: print_screen(waiting, page, now=NOW, at=6.0))
    course.take(seen(IDLE), at=13.0)
    assert "no answer" not in plain(lambda page: print_screen(course, page, now=NOW, at=14.0))


@pytest.mark.parametrize("height", [1, 2, 5, 24])
def test_a_small_window_says_how_much_it_lacks(height: int) -> None:
    """As many lines as it has, and no scrolling."""
    out = StringIO()
    console = Console(file=out, width=40, height=height, color_system=None, _environ={})
    picture = Picture(console)
    course = Course()
    course.take(Observation(statuses=(DEAD, CATCHING_UP, IDLE), target=TARGET, many=True), at=0.0)
    print_screen(course, picture, now=NOW, at=0.0)
    console.print(picture.shown("q ends"))
    lines = out.getvalue().splitlines()
    assert len(lines) <= height
    assert lines[-1] == "q ends" or lines[-1].startswith("... ")


class Looking:
    """Looks that bring these one after the other, and the last again and again."""

    def __init__(self, *found: Observation | BaseException) -> None:
        self.found = list(found)
        self.threads: set[str] = set()

    def __call__(self) -> Observation:
        self.threads.add(threading.current_thread().name)
        found = self.found.pop(0) if len(self.found) > 1 else self.found[0]
        if isinstance(found, BaseException):
            raise found
        return found


def watched(look: Looking, count: int) -> list[str]:
    out = StringIO()
    watch(look, LookSchedule(interval_seconds=0.01, count=count), out)
    return [line.split(" ", 1)[1] for line in out.getvalue().splitlines()]


def test_a_line_a_look() -> None:
    """As many as were asked for; errors are lines as well, and it goes on."""
    look = Looking(seen(IDLE), StoreError("no route"), ArchiveError("gone"), seen(STREAMING))
    first, second, third, last = watched(look, 4)
    assert first.startswith("orders-primary idle ")
    assert re.fullmatch(r"no answer for \S+ s: no route", second)
    assert re.fullmatch(r"no answer for \S+ s: gone", third)
    assert last.startswith("orders-primary streaming ")
    assert look.threads == {"look"}


def test_what_cannot_pass_ends_the_first_look() -> None:
    """A bucket that is not there; but a network that is not there yet is waited for."""
    with pytest.raises(StoreError, match="no such bucket"):
        watched(Looking(StoreError("no such bucket")), 3)
    lines = watched(Looking(StoreError("no route", transient=True), seen(IDLE)), 2)
    assert [line.split()[0] for line in lines] == ["no", "orders-primary"]


def test_a_defect_is_not_swallowed() -> None:
    """What is no error of ours ends it, whenever it comes."""
    with pytest.raises(ZeroDivisionError):
        watched(Looking(seen(IDLE), ZeroDivisionError()), 3)


# What is asked for


def test_a_defect_is_unknown_to_a_monitor(capsys: pytest.CaptureFixture[str]) -> None:
    """One line and its code, not a traceback and a warning's; others see it as it is."""
    for monitored in (True, False):

        @click.command(cls=ForMonitors, when=lambda _, m=monitored: m, begin="UNKNOWN - ", code=3)
        def broken() -> None:
            raise ZeroDivisionError("a|b\n")

        if monitored:
            assert broken.main([], standalone_mode=False) == 3
            assert capsys.readouterr() == ("UNKNOWN - defect: ZeroDivisionError: a/b\\n\n", "")
        else:
            with pytest.raises(ZeroDivisionError):
                broken.main([], standalone_mode=False)


def test_every_level_and_join_has_its_words() -> None:
    """Of many gaps only the newest, and that there are more; no interval ends before it begins."""
    gaps = tuple(
        Gap(lineage=f"L{number}", join=join, text=f"what {number}")
        for number, join in enumerate(("gap", "unknown", "missing", "gap", "unknown"))
    )
    status = replace(IDLE, history=HistoryStatus(lineages=6, gaps=gaps, complete=True))
    assert shown(status, "history") == [
        "6 lineages, 5 gaps",
        "reachable without a gap from unknown to 2026-01-02T12:03:27Z",
        "GAP (missing) at L2: what 2",
        "GAP (gap) at L3: what 3",
        "and 2 more before: `binlog2s3 list`",
        f"lineage {IDLE.lineage}",
    ]
    assert IDLE.latest is not None
    begun = IDLE.latest + timedelta(seconds=2)
    status = replace(IDLE, history=HistoryStatus(lineages=2, complete=True, earliest=begun))
    (_, reach, *_) = shown(status, "history")
    assert reach == "nothing is reachable yet after the gap, 2026-01-02T12:03:29Z"
