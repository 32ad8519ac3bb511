"""The output of `find`: each transaction, and the command that recovers to just before it.

Texts come from the bucket, so they are cleaned: they cannot break lines or control a terminal.
Nothing is kept: a document with a million transactions is written as they come. The progress bar is
removed before anything else is printed.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, TextIO

from binlog2s3.binlog.content import AlterName, Change
from binlog2s3.binlog.rows import Row, Value
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import count_text, cut, iso_text, moment_text, size_text
from binlog2s3.inspect.find.match import Hit, Match, PhaseLink, SearchQuery, SearchStats
from binlog2s3.inspect.find.rows import RowPrinter, ShownRows
from binlog2s3.output import Plain, say

FORMAT = 1
_ENCODER = json.JSONEncoder()
_MOST_TEXT = 300
_COMMANDS = 5
"""How many commands are shown; the others differ in one word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchContext:
    """Where a search looks, and how another command gets there.

    `given` are options of the command line. `tip`: the current lineage; `several`: there are
    others.
    """

    source: str
    archive: str
    given: tuple[str, ...] = ()
    tip: str = ""
    several: bool = False


def pitr_words(hit: Hit, context: SearchContext, query: SearchQuery) -> list[str]:
    """The command that recovers a server to just before a hit, without the target options."""
    gtid = hit.transaction.gtid
    words = ["binlog2s3", "pitr", *context.given]
    lineage = query.lineage
    if query.everywhere and hit.lineage != context.tip:
        lineage = hit.lineage
    by_place = not _names_one(gtid)
    if by_place and context.several:
        lineage = hit.lineage  # other lineages may have a binlog of this name
    if lineage is not None:
        words += ["--lineage", lineage]
    if gtid is not None and not by_place:
        return [*words, "--before-gtid", gtid]
    return [*words, "--to-position", f"{hit.binlog}:{hit.transaction.begin}"]


def _names_one(gtid: str | None) -> bool:
    """Whether a GTID names one transaction. A MariaDB's may have been used twice."""
    return gtid is not None and ":" in gtid


def pitr_text(hit: Hit, context: SearchContext, query: SearchQuery) -> str:
    """The command as text for a shell."""
    return shlex.join(pitr_words(hit, context, query))


def query_text(query: SearchQuery) -> str:
    """The query in words."""
    wanted, words = query.wanted, []
    words.append(" or ".join(kind for kind in _KINDS if kind in wanted.kinds) or "transactions")
    if wanted.tables is not None:
        words.append(f"of {', '.join(wanted.tables.names)}")
    if wanted.min_rows:
        words.append(f"with at least {count_text(wanted.min_rows, 'row')}")
    if query.gtids:
        words.append(f"with the GTIDs {cut(', '.join(query.gtids), _MOST_TEXT)}")
    if query.at is not None:
        words.append(f"at {query.at[0]}:{query.at[1]}")
    if query.since_us is not None:
        words.append(f"from {iso_text(query.since_us)}")
    if query.until_us is not None:
        words.append(f"until {iso_text(query.until_us)}")
    return " ".join(words) if words != ["transactions"] else "all transactions"


_KINDS = ("insert", "update", "delete", "ddl", "drop")


# For people


@dataclass(slots=True)
class TextOutput:
    """Text for people."""

    page: Plain
    context: SearchContext
    query: SearchQuery
    printer: RowPrinter | None = None
    found: int = 0
    problems: list[str] = field(default_factory=list)
    _first: list[Hit] = field(default_factory=list)
    _newest_us: int = 0

    def begin(self) -> None:
        """Print what is searched for."""
        context, query = self.context, self.query
        self.page.line(f"{context.source}  {query_text(query)}, {query.order} first", "bold")
        self.page.line("")

    def hit(self, hit: Hit) -> None:
        """Print one transaction."""
        self.found += 1
        if len(self._first) < _COMMANDS:
            self._first.append(hit)
        one = hit.transaction
        self._newest_us = max(self._newest_us, one.commit_us)
        when = (iso_text if one.commit_exact else moment_text)(one.commit_us)
        where = f"{hit.binlog}:{one.begin}"
        if self.query.everywhere:
            where += f"  {hit.lineage}"
        head = f"{when}  {one.gtid or 'no GTID'}  {where}"
        self.page.line(head, "green" if hit.match.certain else "yellow")
        if why := _why_uncertain(hit):
            self.page.line(why, "yellow", indent=4)
        if (
            hit.link is not None
            and not why
            and (hit.link.is_settled or hit.link.two_phase.is_alter)
        ):
            self.page.line(_link_text(hit.link), indent=4)
        for line in _content_lines(hit):
            self.page.line(line, indent=4)
        if self.printer is not None:
            self._show_rows(hit, self.printer)

    def _show_rows(self, hit: Hit, printer: RowPrinter) -> None:
        shown = printer.begin(hit)
        size = size_text(hit.transaction.end - hit.transaction.begin)
        total = "" if shown.total is None else f", {count_text(shown.total, 'row')}"
        tables = printer.wanted.tables
        of = f" of {', '.join(tables.names)}" if tables is not None else ""
        self.page.line(f"{size}{total}{of}", indent=4)
        with closing(printer.rows(hit, shown)) as rows:
            for row in rows:
                for text, style in row_lines(row):
                    self.page.line(text, style)
        if shown.more:
            text = f"there are more rows: it stopped after {shown.count:,}"
            self.page.line(f"{text} (`binlog2s3 rows --limit 0` shows all)", "yellow", indent=4)
        for note in shown.notes:
            self.page.line(note, indent=4)
        for problem in shown.problems:
            self.page.line(problem, "yellow", indent=4)
        self.problems += shown.problems

    def end(self, stats: SearchStats, warnings: Sequence[str]) -> None:
        """Print what was searched, and what to do next."""
        page = self.page
        if self.found:
            page.line("")
        for warning in warnings:
            page.line(f"warning: {warning}", "yellow")
        page.line(_looked_text(self.found, stats, self.query), "bold")
        if text := self._covered_text(stats):
            page.line(text)
        if stats.streamer:
            page.line(stats.streamer, "yellow" if stats.is_silent else "")
        if stats.ended_early:
            page.line(
                f"there may be more: it stopped at --limit {self.query.limit} (0: show all)",
                "yellow",
            )
        if not self._first:
            if not self.found:
                self._explain_nothing(stats)
            return
        gtids = [one.transaction.gtid for one in self._first if one.transaction.gtid is not None]
        is_mariadb = not all(map(_names_one, gtids))
        page.line("")
        why = ", by its place, as a MariaDB's GTID may have been used twice" if is_mariadb else ""
        add = "(add the --target-... options):"
        page.line(f"to recover a restored server to just before it{why} {add}")
        for hit in self._first:
            page.line(f"  {pitr_text(hit, self.context, self.query)}")
        if self.found > len(self._first):
            gtid = "" if is_mariadb else "--before-gtid GTID, or without a GTID "
            page.line(f"likewise for any other one: {gtid}--to-position BINLOG:POSITION")

    def _explain_nothing(self, stats: SearchStats) -> None:
        """Say what it means that no transaction of these tables was found."""
        wanted = self.query.wanted
        if wanted.tables is None:
            return
        names = " or ".join(wanted.tables.names)
        if wanted.kinds or wanted.min_rows or self.query.gtids:
            text = f"there may be other changes of {names}: the same command without "
            text += "--type, --min-rows and --gtid shows them"
        elif not stats.binlogs:
            return
        else:
            text = f"nothing that was searched names {names}: is it written as the source does, "
            text += "DATABASE.TABLE, with its capital letters? "
            text += "--table 'DATABASE.*' shows what a database has"
        self.page.line(text, "yellow")

    def _covered_text(self, stats: SearchStats) -> str:
        """Up to when everything is in the bucket, if what is searched for may not be there yet.

        The writer reports this time now and then and keeps streaming. A single later transaction
        does not prove that all before it are there, because the clock may have stepped.
        """
        covered, until_us = stats.covered_us, self.query.until_us
        if covered is None or (until_us is not None and until_us <= covered):
            return ""
        if covered < self._newest_us:
            return "later commits may not be in the bucket yet"
        return f"the bucket has everything committed until {iso_text(covered)}"


_VERBS = {"insert": "INSERT INTO", "update": "UPDATE", "delete": "DELETE FROM"}


def row_lines(row: Row) -> Iterator[tuple[str, str]]:
    """A row in the form of mysqlbinlog, with names: lines and their styles."""
    kind = row.event.kind
    yield f"### {_VERBS[kind]} {row.event.table}", "bold"
    if kind != "insert":
        yield "### WHERE", ""
        yield from ((_value_text(value), "red") for value in row.before)
    if kind != "delete":
        yield "### SET", ""
        yield from ((_value_text(value), "green") for value in row.after)


def _value_text(value: Value) -> str:
    cut_off = f"... (cut, of {value.of_size:,} bytes)" if value.of_size else ""
    kind = f" /* {value.type} */" if value.type else ""
    return f"###   {value.column}={value.text}{cut_off}{kind}"


def _why_uncertain(hit: Hit) -> str:
    """Why a match is not certain; "" if it is."""
    if hit.match.certain:
        return ""
    if hit.link is not None and (not hit.link.is_settled or hit.link.two_phase.is_alter):
        return _link_text(hit.link)
    if hit.content.undone:
        return "not certain: all or part of it was rolled back"
    return "not certain: what it does is not fully known"


def _link_text(link: PhaseLink) -> str:
    """One phase of what has two in words, and the other phase."""
    other, phase = "", link.two_phase.phase
    if link.transaction is not None:
        place = link.transaction.gtid or f"{link.binlog}:{link.transaction.begin}"
        other = f"{place} at {iso_text(link.transaction.commit_us)}"
    if isinstance(link.two_phase.name, AlterName):
        return _alter_text(link, link.two_phase.name, other)
    if phase == "prepare":
        if not other:
            return "prepared: neither its XA COMMIT nor its XA ROLLBACK was found"
        return f"prepared, and {link.state} by {other}"
    verb = "commits" if phase == "commit" else "rolls back"
    return (
        f"{verb} what {other} prepared"
        if other
        else f"{verb} a transaction whose XA PREPARE was not found"
    )


def _alter_text(link: PhaseLink, name: AlterName, other: str) -> str:
    """One phase of an ALTER in words; `other` is the other phase, if it was found."""
    phase = link.two_phase.phase
    if phase == "prepare":
        if not other:
            return "begins an ALTER whose COMMIT or ROLLBACK was not found; it changes nothing yet"
        return f"begins an ALTER, {link.state} by {other}; it changes nothing yet"
    began = other or f"the GTID {name.domain}-...-{name.number}"
    if phase == "commit":
        return f"commits the ALTER that {began} began"
    return f"rolls back the ALTER that {began} began; it changes nothing"


def _content_lines(hit: Hit) -> list[str]:
    """What a transaction does, on a few lines; the matching changes come first."""
    is_unknown = hit.content.lost or _stands_for_unknown(hit)
    return hit.content.lines(hit.match.matched) or ([] if is_unknown else ["no changes"])


def _stands_for_unknown(hit: Hit) -> bool:
    """Whether it is an XA COMMIT whose prepared transaction was not found."""
    xa, link = hit.content.two_phase, hit.link
    return xa is not None and xa.phase == "commit" and (link is None or link.transaction is None)


def _looked_text(found: int, stats: SearchStats, query: SearchQuery) -> str:
    what = count_text(found, "transaction")
    looked = f"{count_text(stats.binlogs, 'binlog')} searched"
    if stats.left_out:
        looked += f", {stats.left_out} skipped, as their times or GTIDs exclude a match"
    if stats.unreadable:
        looked += f", {stats.unreadable} NOT READABLE"
    if query.everywhere:
        looked += f", in {count_text(len(stats.lineages), 'lineage')}"
    return f"{what} found; {looked}; {size_text(stats.size)} of {size_text(stats.of_size)}"


# For programs


@dataclass(slots=True)
class GtidOutput:
    """The GTIDs alone, a line each. What a script must not take unseen is an error."""

    out: TextIO
    query: SearchQuery
    found: int = 0

    def begin(self) -> None:
        """Nothing comes before them."""

    def hit(self, hit: Hit) -> None:
        """Print one transaction. Raises ArchiveError if it has no GTID, or is not certain."""
        one = hit.transaction
        if one.gtid is None:
            raise ArchiveError(
                f"the transaction at {hit.binlog}:{one.begin} has no GTID",
                hint=f"--to-position {hit.binlog}:{one.begin} of `pitr` is just before it",
            )
        if why := _why_uncertain(hit):
            raise ArchiveError(
                f"{one.gtid}: {why}",
                hint="look at it with the same command without --print, and pass it by hand",
            )
        print(one.gtid, file=self.out)
        self.found += 1

    def end(self, stats: SearchStats, warnings: Sequence[str]) -> None:
        """Raise ArchiveError if there is none, which would be an empty word of a script.

        Also if it was to be the newest one, and what is newer could not all be searched.
        """
        if stats.is_silent:
            say("warning", stats.streamer)
        if warnings and stats.ended_early and self.query.order == "newest":
            raise ArchiveError(
                "what is newer could not all be searched: the newest one may be another",
                hint="see the warnings; look at it with the same command without --print",
            )
        if not self.found:
            raise ArchiveError(
                "no such transaction was found", hint="see the same command without --print"
            )


@dataclass(slots=True)
class JsonOutput:
    """One JSON document, written as the hits come."""

    out: TextIO
    context: SearchContext
    query: SearchQuery
    printer: RowPrinter | None = None
    found: int = 0
    problems: list[str] = field(default_factory=list)

    def begin(self) -> None:
        """Write the fields before the transactions."""
        head = head_document(self.context, self.query)
        self.out.write(json.dumps(head, indent=1)[:-2] + ',\n "transactions": [')

    def hit(self, hit: Hit) -> None:
        """Write one transaction."""
        text = _ENCODER.encode(hit_document(hit, self.context, self.query))
        self.out.write(f",\n  {text[:-1]}" if self.found else f"\n  {text[:-1]}")
        if self.printer is not None:
            self._write_rows(hit, self.printer)
        self.out.write("}")
        self.found += 1

    def _write_rows(self, hit: Hit, printer: RowPrinter) -> None:
        shown = printer.begin(hit)
        self.out.write(', "rows": [')
        with closing(printer.rows(hit, shown)) as rows:
            for number, row in enumerate(rows):
                text = _ENCODER.encode(row_document(row))
                self.out.write(f",\n   {text}" if number else f"\n   {text}")
        self.out.write(f"], {_ENCODER.encode(_rows_document(shown))[1:-1]}")
        self.problems += shown.problems

    def end(self, stats: SearchStats, warnings: Sequence[str]) -> None:
        """Write the fields after the transactions."""
        rest = json.dumps(tail_document(self.found, stats, warnings), indent=1)
        self.out.write(f"{chr(10) + ' ' if self.found else ''}],\n{rest[2:]}\n")


def head_document(context: SearchContext, query: SearchQuery) -> dict[str, Any]:
    """The fields before the transactions."""
    wanted = query.wanted
    return {
        "format": FORMAT,
        "source": context.source,
        "archive": context.archive,
        "sought": {
            "tables": list(wanted.tables.names) if wanted.tables else [],
            "types": [kind for kind in _KINDS if kind in wanted.kinds],
            "from": _time(query.since_us),
            "to": _time(query.until_us),
            "gtids": list(query.gtids),
            "min_rows": wanted.min_rows or None,
            "order": query.order,
            "limit": query.limit or None,
            "lineage": "all" if query.everywhere else query.lineage or context.tip,
        },
    }


def tail_document(found: int, stats: SearchStats, warnings: Sequence[str]) -> dict[str, Any]:
    """The fields after the transactions."""
    return {
        "found": found,
        "more": stats.ended_early,
        "looked_through": {
            "lineages": list(stats.lineages),
            "binlogs": stats.binlogs,
            "left_out": stats.left_out,
            "unreadable": stats.unreadable,
            "bytes": stats.size,
            "of_bytes": stats.of_size,
            "covered_until": _time(stats.covered_us),
            "last_report": stats.streamer or None,
        },
        "warnings": list(warnings),
    }


def hit_document(hit: Hit, context: SearchContext, query: SearchQuery) -> dict[str, Any]:
    """A transaction as JSON."""
    one, content = hit.transaction, hit.content
    committed = iso_text(one.commit_us)
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
        "certain": hit.match.certain,
        **_links(hit.link),
        "compressed": content.compressed,
        "changes": [_change(change, hit.match) for change in content.changes],
        "statements": list(content.statements),
        "pitr": pitr_text(hit, context, query),
    }


def row_document(row: Row) -> dict[str, Any]:
    """A row as JSON."""
    kind, values = row.event.kind, (*row.before, *row.after)
    return {
        "kind": kind,
        "table": row.event.table,
        "before": None if kind == "insert" else _values(row.before),
        "after": None if kind == "delete" else _values(row.after),
        "cut": sorted({value.column for value in values if value.of_size}),
    }


def _values(values: Sequence[Value]) -> dict[str, str | None]:
    return {one.column: None if one.text == "NULL" else one.text for one in values}


def _rows_document(shown: ShownRows) -> dict[str, Any]:
    """The fields after the rows of a transaction."""
    return {
        "rows_total": shown.total,
        "rows_more": shown.more,
        "rows_notes": shown.notes,
        "rows_problems": shown.problems,
    }


def _links(link: PhaseLink | None) -> dict[str, Any]:
    """The fields `xa` and `alter`."""
    if link is None:
        return {"xa": None, "alter": None}
    found = {"phase": link.two_phase.phase, "state": link.state}
    if link.two_phase.is_alter:
        return {"xa": None, "alter": {**found, **_other(link)}}
    xid = str(link.two_phase.name) if link.two_phase.name is not None else None
    return {"xa": {**found, "xid": xid, **_other(link)}, "alter": None}


def _other(link: PhaseLink) -> dict[str, Any]:
    """The fields of the other phase."""
    other = link.transaction
    return {
        "binlog": str(link.binlog) if link.binlog is not None else None,
        "begin": other.begin if other is not None else None,
        "gtid": other.gtid if other is not None else None,
        "committed": iso_text(other.commit_us) if other is not None else None,
    }


def _change(change: Change, match: Match) -> dict[str, Any]:
    return {
        "kind": change.kind,
        "table": change.table or None,
        "rows": change.rows,
        "matched": change in match.matched,
    }


def _time(us: int | None) -> str | None:
    return None if us is None else iso_text(us)


_LEAST_SECONDS = 1.0


def words_of(stats: SearchStats, found: int, seconds: float) -> str:
    """The progress in words: bytes, hits, and the rate."""
    words = f"{size_text(stats.size)} of {size_text(stats.of_size)}, {found} found"
    if seconds >= _LEAST_SECONDS:
        words += f", {size_text(stats.size / seconds)}/s"
    return words
