"""Pages: the entries of 1,000 consecutive binlog numbers in one document, without blocks. Pure.

A plan or a listing reads one page instead of 1,000 entries.

Law: a page is a cache. It is a function of the entries in its range and of the page before it, so
two writers make the same bytes. It proves nothing about the bucket: a reader checks the entry, and
the object, of each binlog that it uses.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar, Self

from binlog2s3.archive.codec import (
    FORMAT,
    Count,
    Document,
    LineageId,
    Microseconds,
    SourceName,
    as_fields,
)
from binlog2s3.archive.documents import EntryRow, Lineage, prepare_row
from binlog2s3.archive.facts import facts_of
from binlog2s3.archive.history import follows
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError

SPAN = 1000
"""Numbers in a page."""
_MOST_STEPS = 64
_MOST_DIGITS = 18  # of a binlog's number


def first_of(number: int, span: int = SPAN) -> int:
    """The first number of the page that a binlog number belongs to."""
    return number - number % span


def page_name(first: int, span: int = SPAN) -> str:
    """The name of the page that begins with this number: `0000001000-0000001999.json`."""
    return f"{first:010d}-{first + span - 1:010d}.json"


def first_in(name: str, span: int = SPAN) -> int | None:
    """The first number of the page that has this name; None if no page has such a name."""
    text = name.partition("-")[0]
    if len(text) > _MOST_DIGITS or not (text.isascii() and text.isdecimal()):
        return None
    first = int(text)
    return first if first == first_of(first, span) and page_name(first, span) == name else None


def name_at(lineage: Lineage, number: int) -> BinlogName:
    """The binlog of a lineage that has this number."""
    first = lineage.first_binlog
    return BinlogName(first.prefix, number, max(first.width, len(str(number))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Commit times in [from_us, to_us) that occur again after a later time, in log order.

    Either the server's clock was set back, or commits were not logged in the order of their times.
    Only the binlogs `first` to `last` have such a time and come after a binlog with a later one.
    """

    from_us: Microseconds
    to_us: Microseconds
    first: Count
    last: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A summary of a lineage from its first binlog up to some binlog.

    - `greatest_commit_us`: the greatest commit time.
    - `unbroken_from`: from this number on, there is every entry, and each begins with exactly the
      GTIDs at the end of the one before.
    - `steps`: disjoint, sorted by time. There are at most 64: more are merged, so a step may cover
      more times and binlogs than necessary, never fewer.
    """

    greatest_commit_us: Microseconds | None
    unbroken_from: Count
    steps: tuple[Step, ...]

    def then(
        self, entry: EntryRow | None, before: EntryRow | None, number: int, lineage: Lineage
    ) -> Self:
        """The summary with the next number, whose entry is `entry`; `before` is the one before."""
        if entry is None:
            return replace(self, unbroken_from=number + 1)
        unbroken = self.unbroken_from
        if unbroken < number and not (before and _follows(before, entry, lineage)):
            unbroken = number
        greatest, steps = self.greatest_commit_us, self.steps
        least = entry.least_commit_us
        if least is not None and greatest is not None and least < greatest:
            step = Step(from_us=least, to_us=greatest, first=number, last=number)
            steps = _merged([*steps, step])
        if entry.greatest_commit_us is not None:
            greatest = max(entry.greatest_commit_us, greatest or 0)
        return replace(self, greatest_commit_us=greatest, unbroken_from=unbroken, steps=steps)

    def step_at(self, at_us: int) -> Step | None:
        """The step that contains this time."""
        found = bisect_right(self.steps, at_us, key=lambda step: step.from_us) - 1
        return self.steps[found] if found >= 0 and at_us < self.steps[found].to_us else None


def at_start(lineage: Lineage) -> Running:
    """The summary before the first binlog, or before the floor."""
    return Running(greatest_commit_us=None, unbroken_from=lineage.begin.number, steps=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Document):
    """The entries of the numbers `first` to `last`, in order, without their blocks.

    `before` and `after`: the summary of the lineage without the page, and with it.
    """

    source: SourceName
    lineage: LineageId
    first: Count
    last: Count
    before: Running
    after: Running
    entries: tuple[EntryRow, ...]

    MOST: ClassVar[int] = 16 << 20
    """Bytes of the document. A larger one is not written; readers read the entries instead."""

    def __post_init__(self) -> None:
        _check(self)

    def entry(self, number: int) -> EntryRow | None:
        """The entry of this number; None if the page has none."""
        at = bisect_right(self.entries, number, key=lambda entry: entry.name.number) - 1
        found = self.entries[at] if at >= 0 else None
        return found if found is not None and found.name.number == number else None

    @property
    def numbers(self) -> Sequence[int]:
        """The numbers that have an entry in this page."""
        return [entry.name.number for entry in self.entries]

    @property
    def key_end(self) -> tuple[str, ...]:
        name = page_name(self.first, self.last + 1 - self.first)
        return ("archive", self.source, self.lineage, "pages", name)

    @classmethod
    def prepare(cls, document: dict[str, Any]) -> str:
        rows = document.get("entries")
        for row in rows if isinstance(rows, list) else ():
            prepare_row(row)
        return ""

    def to_json(self) -> bytes:
        """The document pages/<first>-<last>.json, with one line for each entry."""
        head = {"format": FORMAT, **as_fields(self)}
        rows = ",\n".join(map(_dense, head.pop("entries")))
        return f'{_dense(head)[:-1]},"entries":[\n{rows}\n]}}\n'.encode()


def build(
    lineage: Lineage,
    first: int,
    entries: Mapping[int, EntryRow],
    before: Page | None,
    *,
    end: int | None = None,
) -> Page:
    """The page that begins with this number and ends before `end`.

    `entries`: those in the bucket, by number. `before` is the page before it, None for the
    lineage's first page.
    """
    end = first + SPAN if end is None else end
    begin = max(first, lineage.begin.number)
    running = before.after if before is not None else at_start(lineage)
    last = before.entry(first - 1) if before is not None else None
    after = running
    for number in range(begin, end):
        entry = entries.get(number)
        after = after.then(entry, last, number, lineage)
        last = entry
    found = (entries[number] for number in range(begin, end) if number in entries)
    return Page(
        source=lineage.source,
        lineage=lineage.id,
        first=first,
        last=end - 1,
        before=running,
        after=after,
        entries=tuple(entry.row for entry in found),
    )


def _check(page: Page) -> None:
    """Raise ValueError if the page contradicts itself."""
    if page.last < page.first:
        raise ValueError(f"it ends with {page.last}, before {page.first}")
    names = [entry.name for entry in page.entries]
    if any(
        name.prefix != other.prefix or name.number >= other.number
        for name, other in pairwise(names)
    ):
        raise ValueError("its entries are not in order")
    if names and not page.first <= names[0].number <= names[-1].number <= page.last:
        raise ValueError(f"{names[0]} to {names[-1]} are not all in its range")
    begin = max(page.after.unbroken_from, page.first)
    count = sum(name.number >= begin for name in names)
    if count != max(page.last + 1 - begin, 0) or page.after.unbroken_from > page.last + 1:
        raise ValueError(f"its entries are not unbroken from {page.after.unbroken_from} on")
    times = [page.before.greatest_commit_us, *(entry.greatest_commit_us for entry in page.entries)]
    if page.after.greatest_commit_us != max((us for us in times if us is not None), default=None):
        raise ValueError(f"{page.after.greatest_commit_us} is not the greatest commit time")


def _follows(before: EntryRow, entry: EntryRow, lineage: Lineage) -> bool:
    try:
        return follows(facts_of(before, lineage), facts_of(entry, lineage))
    except ArchiveError:
        return False


def _merged(steps: Iterable[Step]) -> tuple[Step, ...]:
    """The steps, disjoint and sorted. If there are too many, the nearest ones are merged."""
    found: list[Step] = []
    for step in sorted(steps, key=lambda step: (step.from_us, step.to_us)):
        if found and step.from_us <= found[-1].to_us:
            found[-1] = _both(found[-1], step)
        else:
            found.append(step)
    while len(found) > _MOST_STEPS:
        gaps = [other.from_us - step.to_us for step, other in pairwise(found)]
        at = gaps.index(min(gaps))
        found[at : at + 2] = [_both(found[at], found[at + 1])]
    return tuple(found)


def _both(step: Step, other: Step) -> Step:
    return Step(
        from_us=min(step.from_us, other.from_us),
        to_us=max(step.to_us, other.to_us),
        first=min(step.first, other.first),
        last=max(step.last, other.last),
    )


def _dense(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)
