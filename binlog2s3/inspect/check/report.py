"""What `check` found: rows of OK, WARN and FAIL, the exit code, and how they are shown.

What was not checked is neither good nor bad: it has a result of its own. Texts of a server or a
bucket cannot break lines or control a terminal. What is meant for copying is not wrapped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, TextIO

from binlog2s3.archive.codec import Printed, PrintedDocument, of, printed
from binlog2s3.errors import Binlog2s3Error, ConfigError, SourceError, SpoolError, StoreError
from binlog2s3.output import page_on

Result = Literal["ok", "warn", "fail", "skipped"]
Part = Literal[
    "configuration",
    "server",
    "settings",
    "privileges",
    "mysqlbinlog",
    "clock",
    "store",
    "bucket",
    "spool",
    "streamer",
    "start",
]
EXIT_CODES: Mapping[Part, int] = {
    "configuration": ConfigError.exit_code,
    "server": SourceError.exit_code,
    "settings": SourceError.exit_code,
    "privileges": SourceError.exit_code,
    "mysqlbinlog": SourceError.exit_code,
    "clock": StoreError.exit_code,
    "store": StoreError.exit_code,
    "bucket": StoreError.exit_code,
    "spool": SpoolError.exit_code,
    "streamer": StoreError.exit_code,
    "start": SourceError.exit_code,
}
"""The parts, in order, with the exit code if one fails."""
NOT_CHECKED = "not checked"
CLOCK_SECONDS = 5.0
"""Clocks may differ by this much."""
_SEEN_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result of one check. `paste` is for copying: it follows the hint, and is not wrapped."""

    part: Part
    name: str
    result: Result
    found: str
    hint: str = ""
    paste: str = ""

    @property
    def advice(self) -> str:
        """The hint, and what is for copying."""
        return f"{self.hint}\n{self.paste}" if self.paste else self.hint


def ok(part: Part, name: str, found: str, hint: str = "") -> Row:
    """As it should be; a hint is advice."""
    return Row(part=part, name=name, result="ok", found=found, hint=hint)


def warn(part: Part, name: str, found: str, hint: str, paste: str = "") -> Row:
    """It works, but the operator should know about it or fix it."""
    return Row(part=part, name=name, result="warn", found=found, hint=hint, paste=paste)


def fail(part: Part, name: str, found: str, hint: str) -> Row:
    """A streamer would not work, or not keep its promises."""
    return Row(part=part, name=name, result="fail", found=found, hint=hint)


def failed(part: Part, name: str, error: Binlog2s3Error) -> Row:
    """The check ended in an error."""
    return fail(part, name, str(error), error.hint)


def skipped(part: Part, name: str, why: str) -> Row:
    """Not checked, because something before it failed."""
    return Row(part=part, name=name, result="skipped", found=f"{NOT_CHECKED}: {why}")


def tried(part: Part, name: str, act: Callable[[], Row | str]) -> Row:
    """The row of an action: its own row, or OK with what it found; an error is a failure."""
    try:
        found = act()
    except Binlog2s3Error as error:
        return failed(part, name, error)
    return found if isinstance(found, Row) else ok(part, name, found)


def clock_row(
    name: str, before: datetime, theirs: datetime, after: datetime, *, grain_seconds: float = 0.0
) -> Row:
    """The least difference between a clock and ours: it was read between two times of ours.

    The clock may be up to `grain_seconds` later than it shows.
    """
    ahead = (theirs - after).total_seconds()
    behind = (before - theirs).total_seconds() - grain_seconds
    apart = max(ahead, behind, 0.0)
    if apart < _SEEN_SECONDS:
        return ok("clock", name, "same as this host's")
    word = "ahead of" if ahead > behind else "behind"
    found = f"at least {apart:.1f} s {word} this host's"
    if apart <= CLOCK_SECONDS:
        return ok("clock", name, found)
    return warn(
        "clock",
        name,
        found,
        "correct the wrong clock (`timedatectl` shows whether NTP runs): commit times are the "
        "server's, dead streamers are detected by the store's, and S3 refuses a difference of "
        "15 minutes",
    )


def exit_code(rows: Iterable[Row]) -> int:
    """0 if nothing fails, otherwise the exit code of the first part that does."""
    return next((EXIT_CODES[row.part] for row in rows if row.result == "fail"), 0)


class PrintedRow(Printed):
    part: str
    name: str
    result: str
    found: str
    hint: str = of("advice")


class PrintedRows(PrintedDocument):
    exit_code: int = of("exit_code")
    parts: tuple[PrintedRow, ...] = of("rows")


def summary(rows: Sequence[Row]) -> str:
    """All rows in one line."""
    counts = {result: sum(row.result == result for row in rows) for result in RESULTS}
    parts = [f"{counts['fail']} FAIL", f"{counts['warn']} WARN", f"{counts['ok']} OK"]
    if counts["skipped"]:
        parts.append(f"{counts['skipped']} {NOT_CHECKED}")
    code = exit_code(rows)
    return f"{', '.join(parts)}: {f'exit code {code}' if code else 'nothing fails'}"


RESULTS: Sequence[Result] = ("ok", "warn", "fail", "skipped")


_WORDS: Mapping[Result, str] = {"ok": "OK", "warn": "WARN", "fail": "FAIL", "skipped": "-"}
_STYLES: Mapping[Result, str] = {
    "ok": "green",
    "warn": "yellow",
    "fail": "bold red",
    "skipped": "dim",
}
_RESULT_WIDTH = max(map(len, _WORDS.values()))
_PART_WIDTH = max(map(len, EXIT_CODES))
_NAME_WIDTH = len("innodb_flush_log_at_trx_commit")
_LEAST_WIDTH = 24


def causes(rows: Iterable[Row]) -> list[Row]:
    """What fails, and then what is warned of: one row for each cause, with the names of all.

    Rows of one part have the same cause if the same has to be done about them.
    """
    found: list[Row] = []
    for result in ("fail", "warn"):
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            if row.result != result:
                continue
            what = (row.hint, row.paste) if row.hint else (row.found,)
            group = groups.setdefault((row.part, *what), [])
            if group and row.name in {other.name for other in group}:
                group = groups.setdefault((row.part, row.found), [])
            group.append(row)
        for first, *others in groups.values():
            also = f"; also: {', '.join(other.name for other in others)}" if others else ""
            found.append(replace(first, found=f"{first.found}{also}"))
    return found


class RowPrinter:
    """Keeps rows. Shows them as they come, or (not `all_rows`) at the end what is not well."""

    def __init__(self, out: TextIO, *, as_json: bool, all_rows: bool = False) -> None:
        self.rows: list[Row] = []
        self._out = out
        self._as_json = as_json
        self._all_rows = all_rows
        self._page = page_on(out)

    def show(self, row: Row) -> None:
        self.rows.append(row)
        if self._all_rows and not self._as_json:
            self._print(row)

    def _print(self, row: Row, before: Row | None = None) -> None:
        fixed = (_RESULT_WIDTH, _PART_WIDTH, _NAME_WIDTH)
        room = (self._page.width or 0) - sum(fixed) - 2 * (len(fixed) + 1)
        widths = (*fixed, max(room, _LEAST_WIDTH) if self._page.width else 0)
        self._page.row(
            (_WORDS[row.result], row.part, row.name, row.found),
            widths,
            (_STYLES[row.result], "dim", "", "dim" if row.result == "skipped" else ""),
        )
        if row.hint and (before is None or row.hint != before.hint):
            self._page.row(("", "", "", f"hint: {row.hint}"), widths, ("", "", "", "dim"))
        for line in row.paste.splitlines():
            self._page.line(line)
        self._out.flush()

    def finish(self) -> None:
        """Show the summary, or the JSON document."""
        if self._as_json:
            found = {"exit_code": exit_code(self.rows), "rows": self.rows}
            print(printed(PrintedRows, found), file=self._out)
            return
        shown = [] if self._all_rows else causes(self.rows)
        for before, row in zip([None, *shown], shown, strict=False):
            self._print(row, before)
        if shown or self._all_rows:
            self._page.line("")
        more = "" if self._all_rows else " (--all shows each row)"
        self._page.line(f"{summary(self.rows)}{more}")
