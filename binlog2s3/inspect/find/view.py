"""The output of `find`: each transaction, and the commands that take it back.

Texts come from the bucket, so they are cleaned: they cannot break lines or control a terminal.
Nothing is kept: a document with a million transactions is written as they come. The progress bar is
removed before anything else is printed.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Annotated, Any, TextIO

from binlog2s3.archive.codec import (
    AsText,
    CommitTimes,
    Printed,
    PrintedDocument,
    TextOrNull,
    When,
    as_printed,
    of,
    printed,
)
from binlog2s3.binlog.content import AlterName
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.rows import Row, Value
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import count_text, cut, iso_text, moment_text, size_text
from binlog2s3.inspect.find.match import Hit, PhaseLink, SearchQuery, SearchStats
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.output import Plain, say

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


def before_words(command: str, hit: Hit, context: SearchContext, query: SearchQuery) -> list[str]:
    """`pitr` or `restore` to just before a hit, without the options of the target."""
    gtid = hit.transaction.gtid
    words = ["binlog2s3", command, *context.given]
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


def undo_words(hit: Hit, context: SearchContext, query: SearchQuery) -> list[str]:
    """`undo` of a hit, without the options of the target; empty if it certainly refuses.

    That is what has no rows, or other things than rows, or is not in the live server's history.
    A GTID that was used twice is refused by `undo` itself.
    """
    content, gtid = hit.content, hit.transaction.gtid
    is_past = query.lineage is not None or (query.everywhere and hit.lineage != context.tip)
    if is_past or content.two_phase is not None or not content.changes:
        return []
    if any(change.rows is None for change in content.changes):
        return []
    words = ["binlog2s3", "undo", *context.given]
    if gtid is not None:
        return [*words, "--gtid", gtid]
    return [*words, "--at", f"{hit.binlog}:{hit.transaction.begin}"]


def _names_one(gtid: str | None) -> bool:
    """Whether a GTID names one transaction. A MariaDB's may have been used twice."""
    return gtid is not None and ":" in gtid


def query_text(query: SearchQuery) -> str:
    wanted, words = query.wanted, []
    words.append(" or ".join(kind for kind in _KINDS if kind in wanted.kinds) or "transactions")
    if wanted.tables is not None:
        words.append(f"of {', '.join(wanted.tables.names)}")
    if wanted.min_rows:
        words.append(f"with at least {count_text(wanted.min_rows, 'row')}")
    if query.gtids:
        words.append(f"with the GTIDs {cut(', '.join(query.gtids), _MOST_TEXT)}")
    if query.at is not None:
        words.append(f"at {query.at}")
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
        transaction = hit.transaction
        self._newest_us = max(self._newest_us, transaction.commit_us)
        when = (iso_text if transaction.commit_exact else moment_text)(transaction.commit_us)
        where = f"{hit.binlog}:{transaction.begin}"
        if self.query.everywhere:
            where += f"  {hit.lineage}"
        head = f"{when}  {transaction.gtid or 'no GTID'}  {where}"
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
        page.line("")
        undos = [undo_words(hit, self.context, self.query) for hit in self._first]
        if any(undos):
            page.line("on the live server, take it back (add the --target-... options):")
            for words in filter(None, undos):
                page.line(f"  {shlex.join(words)}")
        gtids = [hit.transaction.gtid for hit in self._first if hit.transaction.gtid is not None]
        is_mariadb = not all(map(_names_one, gtids))
        why = ", by its place, as a MariaDB's GTID may have been used twice" if is_mariadb else ""
        add = "(add --mysqld and --data-dir; `pitr` does it with one that you restored):"
        begin = "otherwise, " if any(undos) else ""
        page.line(f"{begin}restore a server to just before it{why} {add}")
        for hit in self._first:
            page.line(f"  {shlex.join(before_words('restore', hit, self.context, self.query))}")
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
    if link.other is not None:
        transaction = link.other.transaction
        place = transaction.gtid or f"{link.other.known.name}:{transaction.begin}"
        other = f"{place} at {iso_text(transaction.commit_us)}"
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
    return xa is not None and xa.phase == "commit" and (link is None or link.other is None)


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
        transaction = hit.transaction
        if transaction.gtid is None:
            raise ArchiveError(
                f"the transaction at {hit.binlog}:{transaction.begin} has no GTID",
                hint=f"--to-position {hit.binlog}:{transaction.begin} of `pitr` is just before it",
            )
        if why := _why_uncertain(hit):
            raise ArchiveError(
                f"{transaction.gtid}: {why}",
                hint="look at it with the same command without --print, and pass it by hand",
            )
        print(transaction.gtid, file=self.out)
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
        query, wanted = self.query, self.query.wanted
        sought = {
            "query": query,
            "tables": wanted.tables.names if wanted.tables else (),
            "types": [kind for kind in _KINDS if kind in wanted.kinds],
            "min_rows": wanted.min_rows or None,
            "limit": query.limit or None,
            "lineage": "all" if query.everywhere else query.lineage or self.context.tip,
        }
        head = printed(PrintedHead, {"context": self.context, "sought": sought})
        self.out.write(f'{head[:-2]},\n "transactions": [')

    def hit(self, hit: Hit) -> None:
        """Write one transaction."""
        text = _ENCODER.encode(as_printed(PrintedHit, self._found(hit)))
        self.out.write(f",\n  {text[:-1]}" if self.found else f"\n  {text[:-1]}")
        if self.printer is not None:
            self._write_rows(hit, self.printer)
        self.out.write("}")
        self.found += 1

    def _found(self, hit: Hit) -> dict[str, Any]:
        """What `PrintedHit` is printed of."""
        link, matched = hit.link, hit.match.matched
        is_alter = link is not None and link.two_phase.is_alter
        return {
            "hit": hit,
            "xa": None if is_alter else link,
            "alter": link if is_alter else None,
            "changes": [
                {"change": change, "matched": change in matched} for change in hit.content.changes
            ],
            "pitr": shlex.join(before_words("pitr", hit, self.context, self.query)),
            "undo": shlex.join(undo_words(hit, self.context, self.query)),
        }

    def _write_rows(self, hit: Hit, printer: RowPrinter) -> None:
        shown = printer.begin(hit)
        self.out.write(', "rows": [')
        with closing(printer.rows(hit, shown)) as rows:
            for number, row in enumerate(rows):
                text = _ENCODER.encode(as_printed(PrintedRow, row))
                self.out.write(f",\n   {text}" if number else f"\n   {text}")
        self.out.write(f"], {_ENCODER.encode(as_printed(PrintedRowsTail, shown))[1:-1]}")
        self.problems += shown.problems

    def end(self, stats: SearchStats, warnings: Sequence[str]) -> None:
        """Write the fields after the transactions."""
        told = {"found": self.found, "stats": stats, "warnings": warnings}
        rest = printed(PrintedTail, told)
        self.out.write(f"{chr(10) + ' ' if self.found else ''}],\n{rest[2:]}\n")


class PrintedSought(Printed):
    tables: tuple[str, ...]
    types: tuple[str, ...]
    from_: When | None = of("query.since_us")
    to: When | None = of("query.until_us")
    gtids: tuple[str, ...] = of("query.gtids")
    min_rows: int | None
    order: str = of("query.order")
    limit: int | None
    lineage: str


class PrintedHead(PrintedDocument):
    """The fields of the search before the transactions."""

    source: str = of("context.source")
    archive: str = of("context.archive")
    sought: PrintedSought


class PrintedLooked(Printed):
    lineages: tuple[str, ...]
    binlogs: int
    left_out: int
    unreadable: int
    bytes: int = of("size")
    of_bytes: int = of("of_size")
    covered_until: When | None = of("covered_us")
    last_report: TextOrNull = of("streamer")


class PrintedTail(Printed):
    """The fields of the search after the transactions."""

    found: int
    more: bool = of("stats.ended_early")
    looked_through: PrintedLooked = of("stats")
    warnings: tuple[str, ...]


class PrintedXa(Printed):
    phase: str = of("two_phase.phase")
    state: str
    xid: AsText | None = of("two_phase.name")
    binlog: BinlogName | None = of("other.known.name")
    begin: int | None = of("other.transaction.begin")
    gtid: str | None = of("other.transaction.gtid")
    committed: When | None = of("other.transaction.commit_us")


class PrintedAlter(Printed):
    phase: str = of("two_phase.phase")
    state: str
    binlog: BinlogName | None = of("other.known.name")
    begin: int | None = of("other.transaction.begin")
    gtid: str | None = of("other.transaction.gtid")
    committed: When | None = of("other.transaction.commit_us")


class PrintedChange(Printed):
    kind: str = of("change.kind")
    table: TextOrNull = of("change.table")
    rows: int | None = of("change.rows")
    matched: bool


class PrintedHit(Printed):
    """A transaction that was found."""

    lineage: str = of("hit.lineage")
    binlog: BinlogName = of("hit.binlog")
    begin: int = of("hit.transaction.begin")
    end: int = of("hit.transaction.end")
    gtid: str | None = of("hit.transaction.gtid")
    committed: When = of("hit.transaction.commit_us")
    commit_time: CommitTimes = of("hit.transaction.commit_exact")
    original_commit: When | None = of("hit.transaction.original_commit_us")
    certain: bool = of("hit.match.certain")
    xa: PrintedXa | None
    alter: PrintedAlter | None
    compressed: bool = of("hit.content.compressed")
    changes: tuple[PrintedChange, ...]
    statements: tuple[str, ...] = of("hit.content.statements")
    pitr: str
    undo: TextOrNull


def _values(values: Sequence[Value]) -> dict[str, str | None]:
    return {value.column: None if value.text == "NULL" else value.text for value in values}


def _before(row: Row) -> dict[str, str | None] | None:
    return None if row.event.kind == "insert" else _values(row.before)


def _after(row: Row) -> dict[str, str | None] | None:
    return None if row.event.kind == "delete" else _values(row.after)


def _cut(row: Row) -> list[str]:
    return sorted({value.column for value in (*row.before, *row.after) if value.of_size})


class PrintedRow(Printed):
    """A row of a transaction, before and after."""

    kind: str = of("event.kind")
    table: str = of("event.table")
    before: Annotated[dict[str, Any], _before] | None = of("")
    after: Annotated[dict[str, Any], _after] | None = of("")
    cut: Annotated[tuple[str, ...], _cut] = of("")


class PrintedRowsTail(Printed):
    """The fields of a transaction after its rows."""

    rows_total: int | None = of("total")
    rows_more: bool = of("more")
    rows_notes: tuple[str, ...] = of("notes")
    rows_problems: tuple[str, ...] = of("problems")


_LEAST_SECONDS = 1.0


def words_of(stats: SearchStats, found: int, seconds: float) -> str:
    """The progress in words: bytes, hits, and the rate."""
    words = f"{size_text(stats.size)} of {size_text(stats.of_size)}, {found} found"
    if seconds >= _LEAST_SECONDS:
        words += f", {size_text(stats.size / seconds)}/s"
    return words
