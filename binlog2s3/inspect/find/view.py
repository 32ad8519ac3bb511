"""What people and programs see of a search: each transaction, and how to go back to before it.

Place in the flow: `find` prints with it, onto a page of `output`, hit by hit as they are found.

Law: what is shown comes from the bucket, so it can neither break lines nor command a terminal.
Nothing is held: a document with a million transactions is written as they come.
"""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TextIO

from binlog2s3.binlog.content import Change
from binlog2s3.formatting import count_text, cut, size_text, time_text
from binlog2s3.inspect.find.match import Verdict
from binlog2s3.inspect.find.model import Hit, Sought, Tally, Tie
from binlog2s3.output import Plain

FORMAT = 1
_ENCODER = json.JSONEncoder()
_MOST_CHANGES = 8
_MOST_TEXT = 300
_MOST_STATEMENTS = 3
_COMMANDS = 5
"""So many commands are shown; the others differ in one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is to be said with a search: where it looks, and how another command gets there.

    `given` are words of the command line. `tip`: the lineage that the last writer wrote; `several`:
    there are others.
    """

    source: str
    archive: str
    given: tuple[str, ...] = ()
    tip: str = ""
    several: bool = False


def pitr_words(hit: Hit, about: About, sought: Sought) -> list[str]:
    """The command that brings a restored server to just before it, without the target."""
    gtid = hit.transaction.gtid
    words = ["binlog2s3", "pitr", *about.given]
    lineage = sought.lineage
    if sought.everywhere and hit.lineage != about.tip:
        lineage = hit.lineage
    if gtid is None and about.several:
        lineage = hit.lineage  # other lineages may have a binlog of this name
    if lineage is not None:
        words += ["--lineage", lineage]
    if gtid is not None:
        return [*words, "--before-gtid", gtid]
    return [*words, "--to-position", f"{hit.binlog}:{hit.transaction.begin}"]


def pitr_text(hit: Hit, about: About, sought: Sought) -> str:
    """The same, for a shell."""
    return shlex.join(pitr_words(hit, about, sought))


def sought_text(sought: Sought) -> str:
    """What is looked for, in words."""
    wanted, words = sought.wanted, []
    if wanted.kinds:
        words.append(" or ".join(kind for kind in _KINDS if kind in wanted.kinds))
    if wanted.tables is not None:
        words.append(f"of {', '.join(wanted.tables.names)}")
    if wanted.min_rows:
        words.append(f"with at least {count_text(wanted.min_rows, 'row')}")
    if sought.gtids:
        words.append(f"with the GTIDs {cut(', '.join(sought.gtids), _MOST_TEXT)}")
    if sought.since_us is not None:
        words.append(f"from {time_text(sought.since_us)}")
    if sought.until_us is not None:
        words.append(f"until {time_text(sought.until_us)}")
    return " ".join(words) or "all transactions"


_KINDS = ("insert", "update", "delete", "ddl", "drop")


# For people


@dataclass(slots=True)
class Printed:
    """Text for people."""

    page: Plain
    about: About
    sought: Sought
    found: int = 0
    _first: list[Hit] = field(default_factory=list)
    _newest_us: int = 0

    def begin(self) -> None:
        """What is looked for, and where."""
        about, sought = self.about, self.sought
        self.page.line(f"{about.source}  {sought_text(sought)}, {sought.order} first", "bold")
        self.page.line("")

    def hit(self, hit: Hit) -> None:
        """One transaction."""
        self.found += 1
        if len(self._first) < _COMMANDS:
            self._first.append(hit)
        one = hit.transaction
        self._newest_us = max(self._newest_us, one.commit_us)
        when = _moment(one.commit_us) if one.commit_exact else f"{_moment(one.commit_us)[:19]}Z"
        where = f"{hit.binlog}:{one.begin}"
        if self.sought.everywhere:
            where += f"  {hit.lineage}"
        head = f"{when}  {one.gtid or 'no GTID'}  {where}"
        self.page.line(head, "green" if hit.verdict.certain else "yellow")
        if why := _why_uncertain(hit):
            self.page.field("", why, 4, "yellow")
        if hit.tie is not None and hit.tie.is_settled:
            self.page.field("", _tie_text(hit.tie), 4)
        for line in _content_lines(hit):
            self.page.field("", line, 4)

    def end(self, tally: Tally, warnings: Sequence[str]) -> None:
        """What was looked through, and what to do next."""
        page = self.page
        if self.found:
            page.line("")
        for warning in warnings:
            page.line(f"warning: {warning}", "yellow")
        page.line(_looked_text(self.found, tally, self.sought), "bold")
        if tally.close:
            page.line(f"tables with names like that: {', '.join(tally.close)}", "yellow")
        if text := self._covered_text(tally):
            page.line(text)
        if tally.ended_early:
            page.line(
                f"there may be more: it ended at --limit {self.sought.limit} (0: show all)",
                "yellow",
            )
        if not self._first:
            return
        page.line("")
        page.line("to bring a restored server to just before it, with its --target-... options:")
        for hit in self._first:
            page.line(f"  {pitr_text(hit, self.about, self.sought)}")
        if self.found > len(self._first):
            page.line(
                "and in the same way before any other one: --before-gtid GTID, or where it has "
                "none --to-position BINLOG:POSITION"
            )

    def _covered_text(self, tally: Tally) -> str:
        """Where what is looked for may not be in the bucket yet: up to when all is there.

        The writer says so now and then, and sends on meanwhile; one transaction that is later does
        not prove that all before it are there, by a clock that may have stepped.
        """
        covered, until_us = tally.covered_us, self.sought.until_us
        if covered is None or (until_us is not None and until_us <= covered):
            return ""
        if covered < self._newest_us:
            return "more that was committed since may not be in the bucket yet"
        return f"the bucket has what was committed until {time_text(covered)}"


def _why_uncertain(hit: Hit) -> str:
    """What there is to say before what a transaction does, "" where that is certain."""
    if hit.verdict.certain:
        return ""
    if hit.tie is not None and not hit.tie.is_settled:
        return _tie_text(hit.tie)
    if hit.content.undone:
        return "perhaps: some of it, or all, was rolled back"
    return "perhaps: what it does cannot be told for sure"


def _tie_text(tie: Tie) -> str:
    """One phase of an XA transaction, and the other."""
    other, phase = "", tie.xa.phase
    if tie.transaction is not None:
        place = tie.transaction.gtid or f"{tie.binlog}:{tie.transaction.begin}"
        other = f"{place} at {_moment(tie.transaction.commit_us)}"
    if phase == "prepare":
        if not other:
            return "prepared: neither its XA COMMIT nor its XA ROLLBACK is in sight"
        return f"prepared, and {tie.state} by {other}"
    verb = "commits" if phase == "commit" else "rolls back"
    return f"{verb} what {other} prepared" if other else f"{verb} what was prepared out of sight"


def _content_lines(hit: Hit) -> list[str]:
    """What a transaction does, on few lines; what was looked for comes first."""
    content, matched = hit.content, hit.verdict.matched
    changes = [*matched, *(one for one in content.changes if one not in matched)]
    lines = []
    if changes:
        parts = [_change_text(change) for change in changes[:_MOST_CHANGES]]
        parts += [f"and {len(changes) - len(parts)} more"] if len(changes) > len(parts) else []
        lines.append(", ".join(parts) + (" (compressed)" if content.compressed else ""))
    elif not (content.statements or content.lost or _stands_for_unknown(hit)):
        lines.append("no changes")
    lines += [
        cut(" ".join(one.split()), _MOST_TEXT) for one in content.statements[:_MOST_STATEMENTS]
    ]
    if len(content.statements) > _MOST_STATEMENTS:
        more = len(content.statements) - _MOST_STATEMENTS
        lines.append(f"and {count_text(more, 'statement')} more")
    return lines


def _stands_for_unknown(hit: Hit) -> bool:
    """Whether it is an XA COMMIT of something that nobody has found."""
    xa, tie = hit.content.xa, hit.tie
    return xa is not None and xa.phase == "commit" and (tie is None or tie.transaction is None)


def _change_text(change: Change) -> str:
    kind = "" if change.kind == "other" else change.kind
    rows = "" if change.rows is None else f"({count_text(change.rows, 'row')})"
    return " ".join(filter(None, (kind, change.table, rows))) or "other"


def _looked_text(found: int, tally: Tally, sought: Sought) -> str:
    what = count_text(found, "transaction")
    looked = f"{count_text(tally.binlogs, 'binlog')} looked through"
    if tally.left_out:
        looked += f", {tally.left_out} left out for what their entries say"
    if sought.everywhere:
        looked += f", in {count_text(len(tally.lineages), 'lineage')}"
    return f"{what} found; {looked}; {size_text(tally.size)} of {size_text(tally.of_size)}"


# For programs


@dataclass(slots=True)
class Document:
    """One JSON document, written as it comes."""

    out: TextIO
    about: About
    sought: Sought
    found: int = 0

    def begin(self) -> None:
        """What is looked for, and where."""
        head = head_document(self.about, self.sought)
        self.out.write(json.dumps(head, indent=1)[:-2] + ',\n "transactions": [')

    def hit(self, hit: Hit) -> None:
        """One transaction."""
        text = _ENCODER.encode(hit_document(hit, self.about, self.sought))
        self.out.write(f",\n  {text}" if self.found else f"\n  {text}")
        self.found += 1

    def end(self, tally: Tally, warnings: Sequence[str]) -> None:
        """What was looked through."""
        rest = json.dumps(tail_document(self.found, tally, warnings), indent=1)
        self.out.write(f"{chr(10) + ' ' if self.found else ''}],\n{rest[2:]}\n")


def head_document(about: About, sought: Sought) -> dict[str, Any]:
    """The fields before the transactions."""
    wanted = sought.wanted
    return {
        "format": FORMAT,
        "source": about.source,
        "archive": about.archive,
        "sought": {
            "tables": list(wanted.tables.names) if wanted.tables else [],
            "types": [kind for kind in _KINDS if kind in wanted.kinds],
            "from": _time(sought.since_us),
            "to": _time(sought.until_us),
            "gtids": list(sought.gtids),
            "min_rows": wanted.min_rows or None,
            "order": sought.order,
            "limit": sought.limit or None,
            "lineage": "all" if sought.everywhere else sought.lineage or about.tip,
        },
    }


def tail_document(found: int, tally: Tally, warnings: Sequence[str]) -> dict[str, Any]:
    """The fields behind them."""
    return {
        "found": found,
        "more": tally.ended_early,
        "looked_through": {
            "lineages": list(tally.lineages),
            "binlogs": tally.binlogs,
            "left_out": tally.left_out,
            "bytes": tally.size,
            "of_bytes": tally.of_size,
            "covered_until": _time(tally.covered_us),
        },
        "close_tables": list(tally.close),
        "warnings": list(warnings),
    }


def hit_document(hit: Hit, about: About, sought: Sought) -> dict[str, Any]:
    """A transaction for programs."""
    one, content = hit.transaction, hit.content
    committed = _moment(one.commit_us)
    original = one.original_commit_us
    return {
        "lineage": hit.lineage,
        "binlog": str(hit.binlog),
        "begin": one.begin,
        "end": one.end,
        "gtid": one.gtid,
        "committed": committed,
        "commit_time": "exact" if one.commit_exact else "seconds",
        "original_commit": committed if original == one.commit_us else _time(original),
        "certain": hit.verdict.certain,
        "xa": _tie(hit.tie),
        "compressed": content.compressed,
        "changes": [_change(change, hit.verdict) for change in content.changes],
        "statements": list(content.statements),
        "pitr": pitr_text(hit, about, sought),
    }


def _tie(tie: Tie | None) -> dict[str, Any] | None:
    if tie is None:
        return None
    other = tie.transaction
    return {
        "phase": tie.xa.phase,
        "state": tie.state,
        "xid": str(tie.xa.xid) if tie.xa.xid is not None else None,
        "binlog": str(tie.binlog) if tie.binlog is not None else None,
        "begin": other.begin if other is not None else None,
        "gtid": other.gtid if other is not None else None,
        "committed": _moment(other.commit_us) if other is not None else None,
    }


def _change(change: Change, verdict: Verdict) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "table": change.table or None,
        "rows": change.rows,
        "matched": change in verdict.matched,
    }


def _time(us: int | None) -> str | None:
    return None if us is None else _moment(us)


@lru_cache(maxsize=256)
def _second(seconds: int) -> str:
    return time_text(seconds * 1_000_000)[:-8]


def _moment(us: int) -> str:
    """As `time_text`, quickly where many are of one second."""
    return f"{_second(us // 1_000_000)}.{us % 1_000_000:06d}Z"
