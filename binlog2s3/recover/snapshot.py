"""What a recovery asks about the bucket, answered from a real one.

Place in the flow: `plan` asks, through `model.History`; beneath are `archive.catalog`, which finds
the objects, and `archive.blocks`, which reads them. Only reads, and of each binlog no more than was
asked for.

Law: what was told once stays so. Of a binlog that still grows, that is its first so many bytes, as
they were when it was first asked for, whatever comes behind them and wherever they move meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from binlog2s3.archive.blocks import Blocks, Found, layout_problems
from binlog2s3.archive.catalog import Catalog, Contents
from binlog2s3.archive.documents import Entry, Heartbeat, Lineage
from binlog2s3.archive.known import Known
from binlog2s3.archive.listing import current_of
from binlog2s3.archive.parts import BLOCK_SIZE, Digest, Grid
from binlog2s3.archive.reader import Range, Readable
from binlog2s3.binlog.content import Content, ContentReader
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.gtid import Flavour, Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError
from binlog2s3.formatting import us_of
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

Advance = Callable[[int, int], None]
"""Called as entries come in: how many are here, of how many."""

MOST_CONTENT = 256 << 20
"""Of a transaction that is larger, so many bytes are looked at to say what it does."""

_MOST_TRIES = 3
_ANY_GRID = Grid(5 << 20)  # nobody asks for the parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The bucket at the first look: the last writer's document, then the lineages."""

    writer: Heartbeat | None
    lineages: tuple[Lineage, ...]
    current: str | ArchiveError


class Survey:
    """Looks at a source's part of a bucket. Opens nothing until it is asked.

    Implements `model.History`; its `blocks` are for `extract`. To be asked by one thread.
    ArchiveError from any question that the bucket contradicts itself on. `unreadable` are lineages
    that are left out, because of what describes them; `problems`: what a binlog lacks at its end,
    and what does not say which lineage is current.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        workers: Workers,
        *,
        advance: Advance = lambda _, __: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._workers = workers
        self._advance = advance
        self._first_look: _Seen | None = None
        self._contents: dict[str, Contents] = {}
        self._entries: dict[tuple[str, BinlogName], Entry | None] = {}
        self._found: dict[tuple[str, BinlogName], Found] = {}
        self.unreadable: list[ArchiveError] = []
        self.problems: list[ArchiveError] = []
        self._lost: dict[str, str] = {}
        self._gone: set[BinlogName] = set()
        self.blocks = Blocks(self.find, threads=workers.count)

    # What there is

    @property
    def lineages(self) -> Sequence[Lineage]:
        """All of the source's, oldest first."""
        return self._seen().lineages

    @property
    def current(self) -> str:
        """The id of the one that is written, or was the last; "" where there is none.

        Raises ArchiveError where what says so cannot be read: nothing else depends on it.
        """
        current = self._seen().current
        if isinstance(current, ArchiveError):
            raise current
        return current

    @property
    def covered_us(self) -> int | None:
        """All that was committed until then in the current lineage is in the bucket.

        None too where its last binlog cannot be read to its end, or is damaged there: nobody can
        tell when what lies in it was committed.
        """
        writer, lineage = self._seen().writer, self.current
        if writer is None or writer.covered_until is None or writer.lineage != lineage:
            return None
        if self.lost_end(lineage):
            return None
        for name in self.names(lineage)[-1:]:
            try:
                known = self.known(lineage, name)
            except ArchiveError:  # raised again where somebody wants to go there
                return None
            if any(end > known.transaction_end for _, end in known.damaged):
                return None
        return us_of(writer.covered_until)

    def names(self, lineage: str) -> Sequence[BinlogName]:
        """The binlogs of a lineage of which an event can be read, in their order.

        Also the one that its writer has said is durable, if it came since the first look.
        """
        contents = self._look(lineage)
        archived = set(contents.archived.binlogs)
        begun = {name for name, chunks in contents.open.items() if chunks.end > len(MAGIC)}
        found = archived | begun
        durable = self._durable(lineage)
        if durable and durable[1] > len(MAGIC) and durable[0] not in found:
            if self._is_there(contents, durable[0]):
                found = found | {durable[0]}
            else:
                self._lost[lineage] = f"{durable[0]}, of which {durable[1]} bytes were durable"
        return sorted(found)

    def lost_end(self, lineage: str) -> str:
        """The binlog at its end of which nothing can be read any more; "" where nothing is lost."""
        self.names(lineage)
        return self._lost.get(lineage, "")

    def _is_there(self, contents: Contents, name: BinlogName) -> bool:
        try:
            self._catalog.binlog(contents.archived.lineage, name)
        except ArchiveError as error:
            if name not in self._gone:
                self._gone.add(name)
                self.problems.append(error)
            return False
        return True

    def size(self, lineage: str, name: BinlogName) -> int:
        """How many bytes of a binlog there were at the first look; nothing is read for that."""
        contents = self._look(lineage)
        if name in contents.archived.binlogs:
            return contents.archived.binlogs[name].size
        return contents.open[name].end if name in contents.open else 0

    def load(self, lineage: str, names: Sequence[BinlogName]) -> None:
        """Say that these will be asked for: their entries are read, several at a time."""
        archived = self._look(lineage).archived
        wanted = [
            name
            for name in names
            if name in archived.entries
            and name in archived.binlogs
            and (lineage, name) not in self._entries
        ]
        for name in wanted:
            size = archived.binlogs[name].size
            self._workers.submit(name, partial(self._entry, archived.lineage, name, size))
        done = 0
        failed: BaseException | None = None
        while done < len(wanted):
            outcome = self._workers.take(1.0)
            if outcome is None:
                continue
            done += 1
            self._advance(done, len(wanted))
            if not isinstance(outcome.error, ArchiveError):  # that is raised by who asks for it
                failed = failed or outcome.error
        if failed is not None:
            raise failed

    def known(self, lineage: str, name: BinlogName) -> Known:
        """What is known of a binlog: from its entry, or by reading all of it, once."""
        return self.find(lineage, name).known

    def find(self, lineage: str, name: BinlogName) -> Found:
        """The same, and how to read it."""
        key = (lineage, name)
        if key not in self._found:
            self._found[key] = self._find(self._look(lineage), name)
        return self._found[key]

    # What is in it

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """The whole transactions that begin at or behind `begin` and before `end`, in order."""
        found = self.find(lineage, name)
        limit = found.known.transaction_end
        until = limit if end is None else min(end, limit)
        start = _first_boundary(found, begin)
        if start is None or start >= until:
            return
        scanner = self.blocks.scanner(found, start)
        damaged = {high: low for low, high in found.known.damaged}
        with closing(self.blocks.read(found, start, limit, soon=until)) as views:
            for view in views:
                for one in _scan(scanner, view, found):
                    # what comes behind a GTID event that is damaged looks as if it had none
                    while one.gtid is None and one.begin in damaged:
                        one = replace(one, begin=damaged[one.begin])  # noqa: PLW2901
                    if begin <= one.begin < until:
                        yield one
                if scanner.transaction_end >= until:
                    return

    def content(self, lineage: str, name: BinlogName, transaction: Transaction) -> Content:
        """What a transaction does. Of one that is very large, without the number of rows."""
        found = self.find(lineage, name)
        head = self.blocks.head(found, transaction.begin)
        reader = ContentReader(decode_format(head, offset=0))
        end = min(transaction.end, transaction.begin + MOST_CONTENT)
        with closing(self.blocks.read(found, transaction.begin, end)) as views:
            for view in views:
                reader.feed(view)
        content = reader.content()
        if end < transaction.end:
            changes = tuple(replace(change, rows=None) for change in content.changes)
            content = replace(content, changes=changes)
        return content

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether events end there and no transaction is open; also at the binlog's very end."""
        found = self.find(lineage, name)
        known = found.known
        if offset in {0, len(MAGIC), known.transaction_end}:
            return True
        if not 0 < offset < known.transaction_end:
            return False
        start = found.boundary(offset)
        scanner = self.blocks.scanner(found, start)
        with closing(self.blocks.read(found, start, offset)) as views:
            for view in views:
                _scan(scanner, view, found)
        return scanner.event_end == offset == scanner.transaction_end

    # Looking

    def _seen(self) -> _Seen:
        if self._first_look is None:
            writer = self._writer()
            turn, unknown = None, None
            try:
                turn = self._catalog.turn()
            except ArchiveError as error:
                unknown = error
                self.problems.append(error)
            lineages = tuple(self._catalog.lineages(self.unreadable))
            current = unknown or current_of(lineages, turn)
            self._first_look = _Seen(writer=writer, lineages=lineages, current=current)
        return self._first_look

    def _writer(self) -> Heartbeat | None:
        """The greatest writer's document. One that has just been deleted has a successor."""
        for _ in range(_MOST_TRIES):
            ranks = self._catalog.writers()
            if not ranks:
                return None
            if beats := self._catalog.heartbeats([max(ranks)]):
                return beats[0]
        return None

    def _durable(self, lineage: str) -> tuple[BinlogName, int] | None:
        """Up to where the last writer has said that all is in the bucket, if it writes this one."""
        writer = self._seen().writer
        if writer is None or writer.lineage != lineage or writer.durable is None:
            return None
        return writer.durable.place if writer.durable.offset else None

    def _by_id(self, lineage: str) -> Lineage:
        for one in self.lineages:
            if one.id == lineage:
                return one
        raise ArchiveError(
            f"there is no lineage {lineage}", hint="`binlog2s3 list` shows those that there are"
        )

    def _look(self, lineage: str) -> Contents:
        if lineage not in self._contents:
            self._contents[lineage] = self._catalog.contents(self._by_id(lineage))
        return self._contents[lineage]

    def _entry(self, lineage: Lineage, name: BinlogName, size: int) -> Entry | None:
        """A binlog's entry; None where it has none (any more). Called by any thread."""
        key = (lineage.id, name)
        if key in self._entries:
            return self._entries[key]
        entry: Entry | None = None
        try:
            entry = self._catalog.entry(lineage, name)
        except ObjectMissingError:
            pass
        else:
            if entry.size != size:
                raise ArchiveError(
                    f"{lineage.id}: {name} has {size} bytes, its entry says {entry.size}",
                    hint="one of them was changed; an older version may be right, where the bucket "
                    "is versioned",
                )
        self._entries[key] = entry
        return entry

    # Knowing

    def _find(self, contents: Contents, name: BinlogName) -> Found:
        archived, lineage = contents.archived, contents.archived.lineage
        if name in archived.binlogs and name in archived.entries:
            info = archived.binlogs[name]
            readable = Readable(
                name=str(name),
                state="archived",
                ranges=(Range(info.key, 0, info.size),),
                store=self._store,
                again=partial(self._catalog.binlog, lineage, name),
            )
        else:
            readable = self._catalog.binlog(lineage, name)
        entry = None
        if readable.state == "archived":  # perhaps only since the first look
            entry = self._entry(lineage, name, readable.size)
        if entry is None:
            return self._by_reading(lineage, name, readable)
        found = _found_from(entry, lineage, readable)
        if entry.end == "crash":
            # the server may have died in the middle of writing a transaction
            end = self._last_transaction_end(found)
            found = replace(found, known=replace(found.known, transaction_end=end))
        return found

    def _last_transaction_end(self, found: Found) -> int:
        size = found.known.size
        start = found.boundary(size)
        scanner = self.blocks.scanner(found, start)
        with closing(self.blocks.read(found, start, size)) as views:
            for view in views:
                _scan(scanner, view, found)
        return scanner.transaction_end

    def _read_open(
        self, readable: Readable, size: int
    ) -> tuple["_Pass", int, tuple[tuple[int, int], ...]]:
        """One pass over a binlog, how far it came, and what should be behind that.

        What lies before a chunk that is gone or rotten is as good as ever.
        """
        wanted = size
        for _ in range(_MOST_TRIES):
            reading = _Pass(readable, size)
            try:
                reading.run()
            except ArchiveError as error:
                upto = (
                    readable.size if size > readable.size else _begin_of(readable, reading.reached)
                )
                if readable.state == "archived" or not upto or upto >= size:
                    raise
                self.problems.append(error)
                size = upto
            else:
                return reading, size, ((size, wanted),) if size < wanted else ()
        raise self.problems[-1]

    def _by_reading(self, lineage: Lineage, name: BinlogName, readable: Readable) -> Found:
        """What can be known of a binlog without an entry: all of its bytes are read."""
        durable = self._durable(lineage.id)
        size = readable.size
        if durable is not None and durable[0] == name and readable.state == "open":
            size = max(size, durable[1])
        reading, size, lost = self._read_open(readable, size)
        scanner = reading.scanner
        if not scanner.formats:
            raise ArchiveError(
                f"{name} of {lineage.id}: the {size} bytes that can be read of it do not begin as "
                f"a binlog does{f': {scanner.damage}' if scanner.damage else ''}",
                hint="it has only just begun, or was damaged; `binlog2s3 list` shows what is there",
            )
        form = scanner.formats[0]
        known = Known(
            name=name,
            size=size,
            state=readable.state,
            ended=readable.state == "archived" or (scanner.ended and scanner.event_end == size),
            first_us=form.timestamp * 1_000_000,
            transaction_end=scanner.transaction_end,
            least_commit_us=scanner.least_commit_us,
            greatest_commit_us=scanner.greatest_commit_us,
            commit_exact=reading.commit_exact,
            gtids_before=scanner.previous_gtids,
            gtids_added=scanner.gtids,
            transactions=scanner.transactions,
            anonymous=scanner.anonymous,
            blocks=reading.digest.blocks(),
            damaged=(*reading.damaged, *lost),
            server_id=form.server_id,
        )
        formats = tuple(form.offset for form in scanner.formats)
        return Found(lineage=lineage, known=known, formats=formats, readable=readable)


def _begin_of(readable: Readable, offset: int) -> int:
    """Where the chunk begins from which this byte was to be read."""
    for place in readable.ranges:
        if place.begin <= offset < place.end:
            return place.chunk.begin if place.chunk is not None else place.begin
    return readable.size


class _Pass:
    """One pass over a binlog's first `size` bytes.

    An event that its source itself has damaged was put as it is: one that is, alone among others
    that are whole, is noted and passed over. From any other damage on, nothing is told of the rest
    but its checksums.
    """

    def __init__(self, readable: Readable, size: int) -> None:
        self._readable = readable
        self._size = size
        self._accepted = -1
        self.scanner = Scanner()
        self.digest = Digest(_ANY_GRID)
        self.commit_exact = True
        self.damaged: list[tuple[int, int]] = []
        self.reached = 0

    def run(self) -> None:
        begin = 0
        while True:
            try:
                for block in self._readable.blocks(begin, self._size):
                    self.reached = max(self.reached, begin + len(block))
                    self._take(begin, block)
                    begin += len(block)
            except DamageError as damage:
                if self._passes_over(damage):
                    begin = damage.offset
                    continue
                self.damaged = [one for one in self.scanner.damaged if one[1] <= damage.offset] + [
                    (damage.offset, self._size)
                ]
                for block in self._readable.blocks(self.digest.size, self._size):
                    self.digest.feed(memoryview(block))
            else:
                self.damaged = list(self.scanner.damaged)
            return

    def _take(self, begin: int, block: bytes) -> None:
        self.digest.feed(memoryview(block)[max(0, self.digest.size - begin) :])
        try:
            self.scanner.feed(block)
        finally:
            for transaction in self.scanner.completed:
                self.digest.note(transaction)
                self.commit_exact = self.commit_exact and transaction.commit_exact

    def _passes_over(self, damage: DamageError) -> bool:
        """Whether the event that is damaged may be taken as it is, and what follows be read.

        Not where the one before it was taken so: then its header led astray.
        """
        scanner = self.scanner
        behind = scanner.damaged[-1][1] if scanner.damaged else -1
        if damage.offset in (behind, self._accepted) or not scanner.rewind():
            return False
        self._accepted = damage.offset
        scanner.accept(damage.offset)
        return True


def _scan(scanner: Scanner, view: memoryview, found: Found) -> list[Transaction]:
    """What the scanner finds; damage that is not known is the archive's contradiction."""
    try:
        return scanner.feed(view)
    except DamageError as error:
        raise ArchiveError(
            f"{found.known.name} of {found.lineage.id}: {error}; no such damage is known",
            hint="`mysqlbinlog --verify-binlog-checksum` over the object shows more",
        ) from error


def _first_boundary(found: Found, offset: int) -> int | None:
    """From where on to look for the transactions that begin at or behind an offset.

    That is in the block of this offset if one begins in it before, else where the next one begins;
    None if there is none.
    """
    number = offset // BLOCK_SIZE
    if number == 0:
        return 0
    firsts = [b.first_offset for b in found.known.blocks[number:] if b.first_offset is not None]
    return firsts[0] if firsts else None


def _found_from(entry: Entry, lineage: Lineage, readable: Readable) -> Found:
    """As an entry describes it. Raises ArchiveError where that cannot be."""
    try:
        _check(entry, lineage.flavour)
        return Found(
            lineage=lineage,
            known=_known_from(entry, lineage.flavour),
            formats=tuple(int(form["offset"]) for form in entry.formats),
            readable=readable,
        )
    except (LookupError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"the entry of {entry.name} in lineage {lineage.id} is damaged: {error}",
            hint="`binlog2s3 verify` says more; once it is deleted, `verify --repair` makes it "
            "again from the binlog",
        ) from error


def _check(entry: Entry, flavour: Flavour) -> None:
    for problem in layout_problems(entry):
        raise ValueError(problem)
    for block in entry.blocks:
        if block.first_gtid is not None:
            parse(block.first_gtid, flavour)
            if flavour == "mysql" and not block.first_gtid.rpartition(":")[2].isdecimal():
                raise ValueError(f"{block.first_gtid!r} is no GTID")


def _known_from(entry: Entry, flavour: Flavour) -> Known:
    return Known(
        name=entry.name,
        size=entry.size,
        state="archived",
        ended=True,
        first_us=us_of(entry.first_time),
        transaction_end=entry.size,
        least_commit_us=entry.least_commit_us,
        greatest_commit_us=entry.greatest_commit_us,
        commit_exact=entry.commit_exact,
        gtids_before=_gtids_before(entry, flavour),
        gtids_added=_gtids(entry, entry.gtid_set_added, flavour),
        transactions=entry.transactions,
        anonymous=entry.anonymous_transactions,
        blocks=entry.blocks,
        damaged=tuple((int(one["begin"]), int(one["end"])) for one in entry.damaged),
        server_id=entry.server_id,
    )


def _gtids_before(entry: Entry, flavour: Flavour) -> Gtids | None:
    """An entry does not tell an empty set from none at all: servers that know GTIDs have one."""
    if not entry.gtid_set_before:
        version = str(entry.formats[0]["server_version"]) if entry.formats else ""
        major, _, rest = version.partition(".")
        minor = rest.partition(".")[0]
        if not (major.isdecimal() and minor.isdecimal()):
            return None
        if (int(major), int(minor)) < ((5, 6) if flavour == "mysql" else (10, 0)):
            return None
    return _gtids(entry, entry.gtid_set_before, flavour)


def _gtids(entry: Entry, text: str, flavour: Flavour) -> Gtids:
    try:
        return parse(text, flavour)
    except ValueError as error:
        raise ArchiveError(
            f"the entry of {entry.name}: {error}", hint="was it changed by hand?"
        ) from error
