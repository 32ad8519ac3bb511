"""The history of a source in the bucket, as it grows: what `serve` sends.

`recover.snapshot` and `route` find what is archived; from there on this module follows the open
binlog, in one thread for all clients.

Law: clients see only what was read and checked here, or is archived with an entry. The bucket is
asked often only while a client waits. If the store does not answer, the view stays as it is.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar, cast

from binlog2s3.archive.blocks import event_at
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import UNLOGGED, Lineage
from binlog2s3.archive.facts import BinlogId, Facts, added_gtids, scanned
from binlog2s3.archive.history import gtids_break, missing_binlogs
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reader import Readable
from binlog2s3.binlog.executed import (
    AddedGtids,
    ExecutedPart,
    MysqlPart,
    NoStateEndError,
    WithGtids,
    domain_of,
    gtid_text,
    repeated_upto,
    state_end,
)
from binlog2s3.binlog.gtid import (
    Flavour,
    Gtids,
    GtidSet,
    MariadbGtidList,
    beyond,
    either,
    parse,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    NoBinlogError,
    RecoveryError,
    StoreError,
)
from binlog2s3.formatting import gtids_text
from binlog2s3.log import Log
from binlog2s3.recover import one_binlog
from binlog2s3.recover.branches import Branches
from binlog2s3.recover.origin import outside, unnamed_before
from binlog2s3.recover.route import Route
from binlog2s3.recover.snapshot import Search, Snapshot
from binlog2s3.replication.feed import MysqlHad, NotServedError
from binlog2s3.replication.source import defect_of
from binlog2s3.serve.binlogs import Binlogs, BusyError, ReadWhole, UnreadError
from binlog2s3.serve.line import archived, check_gtids, first_open
from binlog2s3.serve.model import Beginning, ServedBinlog, View, beginning, view_of
from binlog2s3.serve.tail import Recent, Tail
from binlog2s3.server.omissions import gtids_that_came_in
from binlog2s3.workers import Workers

Result = TypeVar("Result")
_STUCK_LOOKS = 3
_HEAD_MOST = 1 << 16
_HEAD_SECONDS = 30.0
_IDLE_SECONDS = 30.0  # between two looks while nobody waits
_AGAIN_SECONDS = 60.0
_log = Log("serve")


class ArchiveHistory:
    """Implements `model.ServedHistory` for a bucket. Call `start` first, and `close` at the end.

    `lineage`: serve the history that ends in this one; None: in the current one. `error`: why the
    bucket cannot be asked at the moment.
    """

    LOOK_SECONDS = 10.0
    """How often the bucket is asked whether another lineage has become the current one."""

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        *,
        lineage: str | None,
        poll_seconds: float,
    ) -> None:
        self._catalog = catalog
        self._workers = workers
        self._wanted = lineage
        self._poll_seconds = poll_seconds
        self._changed = threading.Condition()
        self._asking = threading.Lock()  # the snapshot is for one thread; never held for long
        self._read_whole = ReadWhole()
        self._waiting = 0
        self._ended = threading.Event()
        self._recent = Recent()
        self._binlogs = Binlogs(catalog)
        self._closed: dict[BinlogId, Tail] = {}
        self._added: Gtids | None = None  # in the binlogs that were followed and are complete
        self._elsewhere: frozenset[BinlogName] = frozenset()
        self._elsewhere_of: tuple[str, ...] = ()
        self._tip: Lineage | None = None
        self._route: Route | None = None
        self._snapshot: Snapshot | None = None
        self._view = view_of(0, (), 0)
        self._tail: Tail | None = None
        self._looked = self._looked_all = 0.0
        self._stuck = 0
        self._looks = self._looks_wanted = 0
        self._is_looking = False
        self.error: Binlog2s3Error | None = None
        self._defect: Binlog2s3Error | None = None
        self._thread = threading.Thread(target=self._follow, name="follow", daemon=True)

    def start(self) -> None:
        """Look at the bucket once, then start the thread that follows it.

        Raises StoreError, ArchiveError, RecoveryError.
        """
        self._look()
        self._thread.start()

    def close(self) -> None:
        """Stop following, and end all waits."""
        self._ended.set()
        with self._changed:
            self._changed.notify_all()

    # What is asked

    @property
    def _lineage(self) -> Lineage:
        assert self._tip is not None  # noqa: S101 - `start` has set it
        return self._tip

    @property
    def flavour(self) -> Flavour:
        return self._lineage.flavour

    @property
    def server_version(self) -> str:
        return self._lineage.server_version

    @property
    def name(self) -> str:
        """The source's name."""
        return self._lineage.source

    @property
    def keeps_gtids(self) -> bool | None:
        """Whether its newest transactions have GTIDs; None if there are no transactions."""
        tails = [self._tail, *reversed(self._closed.values())]
        for scanner in [tail.scanner for tail in tails if tail is not None]:
            if scanner.transactions:
                return not scanner.anonymous
            if scanner.previous_gtids:
                return True
        with suppress(Binlog2s3Error):  # then nothing tells it
            return self._asked(self._archived_keeps_gtids)
        return None

    def _archived_keeps_gtids(self) -> bool | None:
        route = self._route
        if route is None or not len(route):
            return None
        known = route.brief(len(route) - 1)
        return not known.anonymous if known.transactions else bool(known.gtids_before) or None

    def newest_position(self) -> tuple[tuple[str, int], str]:
        """Name and end of the newest binlog, and the GTIDs executed there; "" if unknown."""
        view, tail = self._view, self._tail
        if tail is None or not view.binlogs:
            return ("", 0), ""
        gtids = tail.scanner.gtids_at_end
        return (view.served_name(tail.binlog), max(view.whole, len(MAGIC))), str(gtids or "")

    def view(self) -> View:
        return self._view

    def wait(self, version: int, seconds: float) -> View:
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: self._view.version != version or self._ended.is_set(), seconds
                )
            finally:
                self._waiting -= 1
            return self._view

    def look(self, seconds: float) -> bool:
        with self._changed:
            wanted = self._looks + (2 if self._is_looking else 1)
            self._looks_wanted = max(self._looks_wanted, wanted)
            self._waiting += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: self._looks >= wanted, seconds)
            finally:
                self._waiting -= 1

    def first_for(self, have: Gtids) -> Beginning:
        self._wait_for_head()
        return self._asked(lambda: self._first_for(have))

    def _first_for(self, have: Gtids) -> Beginning:
        if isinstance(have, MariadbGtidList):
            return self._begin_at_state_end(have)
        begins = self._begin_after(have)
        if begins is None:
            raise self._purged(self._view, have)
        number = self._view.numbers[begins.binlog.binlog_id]
        self._check_unlogged(number, MysqlPart(have))
        self._check_unnamed(number, MysqlPart(have))
        self._check_outside(number, have)
        self._check_histories(have, number)
        return begins

    def _asked(self, question: Callable[[], Result], *, shared: bool = True) -> Result:
        """The answer to a question to a `Snapshot`, which is for one thread at a time.

        What has to be read for it, which may take minutes, is read while others may ask. `shared`:
        other threads have that snapshot, too.
        """
        with self._read_whole.question():
            while True:
                try:
                    with self._asking if shared else nullcontext():
                        return question()
                except UnreadError as unread:
                    unread.read()

    def _begin_after(self, have: GtidSet) -> Beginning | None:
        """Where a MySQL replica begins."""
        view, route, tail = self._view, self._route, self._tail
        number: int | None = None
        archived = len(route) if route is not None else 0
        if route is not None and archived:
            number = route.executed(have).start
        if number is None or number == archived - 1:
            for later in range(archived, len(view.binlogs)):
                before = view.binlogs[later].before
                if not isinstance(before, GtidSet) or not before <= have:
                    break
                number = later
        if number is None:
            return None
        offset = 0
        if tail is not None and view.binlogs[number].binlog_id == tail.binlog.binlog_id:
            marks = (m.offset for m in tail.marks if m.gtids is not None and m.gtids <= have)
            offset = max(marks, default=0)
        # it may lack what the lineage before has, too
        binlog = replace(view.binlogs[number], begin=0)
        return Beginning(binlog=binlog, offset=offset, had=MysqlHad(have))

    def _begin_at_state_end(self, have: MariadbGtidList) -> Beginning:
        """Where a MariaDB replica begins: behind its GTIDs."""
        view, tail = self._view, self._tail
        try:
            end = state_end(_ViewLine(self), have, is_sure=True)
        except NoStateEndError as error:
            raise NotServedError(str(error)) from error
        if end.start is None:
            raise self._purged(view, have)
        self._check_unlogged(end.start, end.part)
        self._check_histories(have, end.start, end.extra)
        begins = beginning(view.binlogs, end)
        if tail is None or begins.binlog.binlog_id != tail.binlog.binlog_id:
            return begins
        # what comes before a mark may be left out if it is before the ends of all domains
        awaited = {gtid[0]: gtid for gtid in begins.due.get(tail.binlog.binlog_id, ())}
        added = added_by(tail.scanner)
        if added.goes_back or added.added is None or not added.added.domains() <= awaited.keys():
            return begins
        marks = [
            mark.offset
            for mark in tail.marks
            if isinstance(mark.gtids, MariadbGtidList)
            and all((mark.gtids.number(d, s) or 0) < n for d, s, n in awaited.values())
        ]
        return replace(begins, offset=max(marks, default=0))

    def _check_unlogged(self, number: int, part: ExecutedPart) -> None:
        """See that a replica is not exactly where the source left rows out of its binlogs.

        Its GTIDs do not tell whether it has those rows. Raises NotServedError.
        """
        binlogs, route = self._view.binlogs, self._route
        for at in range(number, -1, -1):
            if part.touches(at, self._added_by(at)):
                return
            is_within = route is not None and at < len(route) and route.is_unlogged_before(at)
            if binlogs[at].unlogged or is_within:
                name = self._view.served_name(binlogs[at])
                raise NotServedError(
                    f"before {name}: {UNLOGGED}, and GTIDs do not tell whether the replica has it: "
                    "build it again from a later base backup; if it was, let it begin by file and "
                    f"position, at {name}:4"
                )

    def _check_outside(self, number: int, have: GtidSet) -> None:
        """See that a replica has what a source got without its binlogs. Raises NotServedError.

        That is before its lineages began, and as was said of the binlogs from `number` on.
        """
        view, route = self._view, self._route
        apart = parse(self._lineage.gtids_outside, self.flavour)
        if route is not None and len(route):
            apart = either(apart, outside(route, 0))
        apart = either(apart, gtids_that_came_in(self._left_out(number)))
        if not beyond(apart, have):
            return
        known: Gtids = have
        for one in range(len(view.binlogs)):
            known = either(known, self._added_by(one))
        if missing := beyond(apart, known):
            raise NotServedError(
                f"the replica is missing {gtids_text(missing)}, which no binlog of the source ever "
                "had: build it again from a base backup that has them"
            )

    def _left_out(self, number: int) -> Iterator[str]:
        """What the source said that its binlogs from this one on do not have."""
        route, writer = self._route, self._catalog.last_writer()
        for at in range(number, len(route) if route is not None else 0):
            yield from (route.brief(at).leaves_out or ()) if route is not None else ()
        beat = writer.beat if writer is not None else None
        if beat is not None and beat.lineage == self._lineage.id:
            yield from beat.leaves_out or ()

    def _check_unnamed(self, number: int, part: MysqlPart) -> None:
        """See that a replica does not miss transactions without a GTID before its first binlog.

        Its GTIDs do not tell whether it has them. Raises NotServedError.
        """
        binlogs, route = self._view.binlogs, self._route
        archived = len(route) if route is not None else 0
        unnamed: int | None = None
        for at in range(number, archived - 1, -1):  # only read here, and not archived yet
            tail = self._read_here(binlogs[at])
            if at < number and tail is not None and tail.scanner.anonymous:
                unnamed = at
                break
            if part.touches(at, self._added_by(at)):
                return
        if unnamed is None and route is not None and archived:
            unnamed = unnamed_before(route, part, number)
        if unnamed is not None:
            raise NotServedError(
                f"{self._view.served_name(binlogs[unnamed])} has transactions without a GTID, and "
                "GTIDs do not tell whether the replica has them: let it begin by file and position "
                "(SOURCE_AUTO_POSITION = 0), or build it again from a later base backup"
            )

    def _added_by(self, number: int) -> Gtids:
        """The GTIDs that a binlog of the view adds."""
        binlog, route = self._view.binlogs[number], self._route
        if route is not None and number < len(route):
            return route.brief(number).gtids_added
        tail = self._read_here(binlog)
        return tail.scanner.gtids if tail is not None else self.known(binlog).gtids_added

    def elsewhere(self, name: BinlogName, offset: int, *, is_here: bool) -> Sequence[str]:

        def question() -> Sequence[str]:
            if self._route is None or (is_here and self._wanted is not None):
                return ()
            return Branches(self._route).with_position(name, offset, is_here=is_here)

        return self._asked(question)

    def check_begin(self, binlog: ServedBinlog, offset: int, *, is_replica: bool) -> None:
        """Nothing: the archive has whole binlogs."""

    def known(self, binlog: ServedBinlog) -> Facts:
        known = self._find(binlog)
        if known is not None:
            return known
        tail = self._closed.get(binlog.binlog_id)
        if tail is None or not tail.scanner.formats:
            raise ArchiveError(f"{binlog.name} of {binlog.lineage.id} has no entry yet")
        return scanned(
            tail.scanner, lineage=binlog.lineage, name=binlog.name, size=tail.read, state="archived"
        )

    def boundary(self, binlog: ServedBinlog, offset: int) -> int:
        tail = self._read_here(binlog)
        if tail is not None:
            return max((m.offset for m in tail.marks if m.offset <= offset), default=0)
        found = self._find(binlog)
        return found.boundary(offset) if found is not None else 0

    def head(self, binlog: ServedBinlog, offset: int) -> bytes:
        tail = self._read_here(binlog)
        found = self._find(binlog) if tail is None else None
        if found is not None:
            return self._binlogs.blocks.head(found, offset)
        at = len(MAGIC)
        if tail is not None:
            at = max((f.offset for f in tail.scanner.formats if f.offset <= offset), default=at)
        proof = self._open_or_found(binlog)
        if isinstance(proof, Facts):
            return self._binlogs.blocks.head(proof, offset)
        data = proof.proved(at, min(at + _HEAD_MOST, proof.size))
        if data is None:
            raise _moving(binlog)
        return event_at(data, 0)

    def block(self, binlog: ServedBinlog, number: int, upto: int) -> memoryview:
        begin = number * BLOCK_SIZE
        found = None if binlog.is_open else self._find(binlog)
        proof = found or self._open_or_found(binlog)
        if isinstance(proof, Facts):
            return self._binlogs.blocks.block(proof, number)[: upto - begin]
        data = proof.proved(begin, upto)
        if data is None:
            raise _moving(binlog)
        return memoryview(data)

    def _open_or_found(self, binlog: ServedBinlog) -> Readable | Facts:
        """Where its bytes are, with what proves them: chunks, the entry, or our own reading.

        Raises a transient StoreError as long as there is none of them.
        """
        readable = self._catalog.binlog(binlog.lineage, binlog.name)
        if readable.state == "open":
            return readable
        found = self._binlogs.by_entry(binlog)
        tail = self._read_here(binlog)
        if found is None and tail is not None and readable.size == tail.read == tail.reading.size:
            entry = tail.reading.entry(datetime.now(UTC))
            self._binlogs.blocks.note(binlog.lineage, binlog.name, readable)
            found = one_binlog.described(entry, binlog.lineage)
        if found is None:
            raise _moving(binlog)
        return found

    def newest(self, binlog: ServedBinlog, begin: int, end: int) -> list[bytes] | None:
        return self._recent.find(binlog, begin, end)

    def _wait_for_head(self) -> None:
        """Wait until the newest binlog says which GTIDs came before it, but not for too long."""
        until = time.monotonic() + _HEAD_SECONDS
        while self._tail is not None:
            view = self._view  # which is what a client asks: the tail knows them a moment earlier
            if view.binlogs[-1].before is not None or view.problem or view.whole > _HEAD_MOST:
                return
            if time.monotonic() > until:
                return
            self.wait(view.version, 0.5)

    # Looking

    def _read_here(self, binlog: ServedBinlog) -> Tail | None:
        """The tail that has read this binlog, if there is one."""
        tail = self._tail
        if tail is not None and tail.binlog.binlog_id == binlog.binlog_id:
            return tail
        return self._closed.get(binlog.binlog_id)

    def _find(self, binlog: ServedBinlog) -> Facts | None:
        """What is known of a binlog that is complete; None if only the tail knows it."""
        return self._binlogs.find(binlog, read_here=self._read_here(binlog) is not None)

    def _purged(self, view: View, have: Gtids) -> NotServedError:
        first = view.binlogs[0] if view.binlogs else None
        before = first.before if first is not None else None
        if before is None and first is not None and not first.is_open:
            before = self.known(first).gtids_before
        if before is None:
            return NotServedError("this archive does not say which GTIDs came before it")
        missing = gtids_text(beyond(before, have))
        pruned = self._route.pruned if self._route is not None else ""
        return NotServedError(
            "the replica is missing GTIDs that were executed before the archive begins: "
            f"{missing}; {f'{pruned}; ' if pruned else ''}restore a backup that has them"
        )

    def _check_histories(self, have: Gtids, number: int, extra: str | None = None) -> None:
        """Check that the GTIDs are of this history. Raises NotServedError.

        `extra`: those that it does not have, if that is known.
        """
        snapshot, route, tail = self._snapshot, self._route, self._tail
        if snapshot is None or route is None or len(snapshot.lineages) < 2:
            return
        first = min(number, len(route) - 1)
        everything = route.gtids_from(first) if first >= 0 else None
        if first < 0 and tail is not None:
            everything = tail.binlog.before
        if everything is None:
            return
        for added in (self._added, tail.scanner.gtids if tail is not None else None):
            everything = either(everything, added) if added else everything
        begins_in = route.lineage(first) if first >= 0 else self._lineage.id
        check_gtids(route, have, everything, begins_in=begins_in, lineage=self._wanted, extra=extra)

    def _look(self) -> None:
        """Find all archived binlogs, and the first one after them."""
        self._read_whole.forget_errors()
        snapshot = Snapshot(
            self._catalog,
            self._workers,
            read=self._read_whole.found,
            search=self._read_whole.search,
        )
        snapshot.refuse_nothing(self._catalog.layout.prefix or "the bucket")
        tip = self._wanted or snapshot.current
        known = {lineage.id: lineage for lineage in snapshot.lineages}
        if tip not in known:
            raise RecoveryError(f"there is no lineage {tip}", hint=f"there are: {', '.join(known)}")
        snapshot.leave_open(tip)
        route, binlogs, following, problem = self._asked(
            lambda: self._line(snapshot, tip), shared=False
        )
        elsewhere = self._elsewhere
        if self._elsewhere_of != (tip, *known):  # the names need a listing for each lineage
            branches = Branches(route)
            elsewhere = self._asked(lambda: frozenset(branches.names()), shared=False)
        with self._asking:
            self._snapshot, self._route, self._tip = snapshot, route, known[tip]
            self._elsewhere, self._elsewhere_of = elsewhere, (tip, *known)
            self._closed = {}
            self._added = None
            before, self._tail = self._tail, None
            if following is not None:
                is_same = before is not None and before.binlog.binlog_id == following.binlog_id
                is_usable = is_same and before is not None and before.scanner.damage is None
                self._tail = before if is_usable else Tail(following)
                binlogs = [*binlogs, self._tail.binlog]  # type: ignore[union-attr]
            self._show(tuple(binlogs), problem=problem)
        self._looked = self._looked_all = time.monotonic()
        self._stuck = 0

    def _line(
        self, snapshot: Snapshot, tip: str
    ) -> tuple[Route, list[ServedBinlog], ServedBinlog | None, str]:
        """What is archived, the first binlog after it, and why nothing can come after it."""
        route = Route(snapshot, tip)
        binlogs = archived(route)
        try:
            return route, binlogs, first_open(self._catalog, route, binlogs), ""
        except ArchiveError as error:
            return route, binlogs, None, str(error)

    # Following

    def _follow(self) -> None:
        while not self._ended.is_set():
            with self._changed:
                if not self._is_behind():
                    self._changed.wait_for(
                        lambda: self._waiting or self._ended.is_set(), _IDLE_SECONDS
                    )
            looks = self._looks
            if not self._ended.is_set():
                self._step()
            with self._changed:
                self._changed.wait_for(
                    lambda: looks < self._looks < self._looks_wanted or self._ended.is_set(),  # noqa: B023
                    self._poll_seconds,
                )

    def _is_behind(self) -> bool:
        """Whether there are bytes of the open binlog that were not read yet."""
        tail = self._tail
        return tail is not None and (tail.readable is None or tail.read < tail.readable.size)

    def _step(self) -> None:
        """Look once for more bytes and binlogs, and note what fails."""
        self._is_looking = True
        try:
            if self._defect is not None:  # what is known may be half made
                self._look()
                self._defect = None
            if time.monotonic() - self._looked >= self.LOOK_SECONDS:
                self._look_for_lineage()
            while self._read_on() and not self._ended.is_set():
                pass
            self.error = None
            with self._changed:
                self._looks += 1
                self._changed.notify_all()
        except StoreError as error:
            if self.error is None:
                _log.warning("the store does not answer", error=error)
            self.error = error
        except Binlog2s3Error as error:
            self._stuck += 1
            if self._stuck >= _STUCK_LOOKS:
                self._show(self._view.binlogs, problem=str(error), only_last=True)
        except Exception as error:  # noqa: BLE001 - clients and operators must learn of it
            self.error = self._defect = defect_of(error)
            _log.error("an internal error; all is looked at again", self._defect)
        finally:
            self._is_looking = False

    def _look_for_lineage(self) -> None:
        """Look at everything again if another lineage is current or a gap may have been filled."""
        waited = time.monotonic() - self._looked_all
        self._looked = time.monotonic()
        turn = self._catalog.turn() if self._wanted is None else None
        is_other = turn is not None and turn.lineage != self._lineage.id
        is_stuck = (self._view.problem and waited > _AGAIN_SECONDS) or self._tail is None
        if is_other or is_stuck:
            with suppress(BusyError):  # clients that follow do not wait for another one's question
                self._look()

    def _read_on(self) -> bool:
        """Read the new bytes of the newest binlog; whether to look again at once."""
        tail = self._tail
        if tail is None:
            return False
        binlog = tail.binlog
        readable = self._catalog.binlog(binlog.lineage, binlog.name)
        tail.readable, tail.is_archived = readable, readable.state == "archived"
        before = tail.read
        if before < readable.size:
            try:
                for data in self._new_bytes(tail, readable):
                    begin = tail.read
                    tail.take(data)
                    self._recent.add(binlog, begin, data)
                    self._show_tail(tail)
            except ArchiveError:
                self._recent.clear()
                raise
            self._stuck = 0
            if tail.read > before and self._view.problem:  # all of it was read: it was repaired
                self._show(self._view.binlogs, only_last=True)
        if not tail.is_complete:
            return False
        return self._go_on(tail)

    def _new_bytes(self, tail: Tail, readable: Readable) -> Iterator[bytes]:
        """The bytes that the tail has not read. The tail checks them itself if it can.

        It cannot if events have no checksums, and as long as it is not known whether they have.
        """
        if tail.has_checksums:
            yield from readable.blocks(tail.read, readable.size)
            return
        yield from readable.proved_blocks(tail.read, tail.reading.digest.crc64)

    def _show_tail(self, tail: Tail) -> None:
        before = tail.scanner.previous_gtids
        if before is not None and tail.binlog.before is None:
            broken = tail.binlog.broken or self._break_before(tail, before)
            tail.binlog = replace(tail.binlog, before=before, broken=broken)
        view = self._view
        if view.whole == tail.whole and view.binlogs[-1] is tail.binlog:
            return  # a problem that is shown stays until all was read
        self._show((*self._view.binlogs[:-1], tail.binlog), only_last=True)

    def _break_before(self, tail: Tail, before: Gtids) -> str:
        """Why the binlog before does not lead up to this one."""
        binlogs = self._view.binlogs
        if len(binlogs) < 2 or binlogs[-2].lineage.id != tail.binlog.lineage.id:
            return ""
        end = self.known(binlogs[-2]).gtids_after
        return gtids_break(binlogs[-2].name, end, tail.binlog.name, before)

    def _go_on(self, tail: Tail) -> bool:
        """Go from a complete binlog to the next one; False if that is not there."""
        binlog = tail.binlog
        following = binlog.name.next()
        try:
            self._catalog.binlog(binlog.lineage, following)
        except NoBinlogError:
            self._check_gap(binlog, following)
            return False
        done = replace(binlog, is_open=False, end=tail.whole)
        new = Tail(ServedBinlog(lineage=binlog.lineage, name=following, is_open=True))
        added = tail.scanner.gtids
        self._added = added if self._added is None else either(self._added, added)
        self._closed[binlog.binlog_id] = tail
        tail.binlog, self._tail = done, new
        for old in list(self._closed.values())[:-1]:  # once its entry says the same
            if self._binlogs.by_entry(old.binlog) is not None:
                del self._closed[old.binlog.binlog_id]
        self._show((*self._view.binlogs[:-1], done, new.binlog))
        return True

    def _check_gap(self, binlog: ServedBinlog, following: BinlogName) -> None:
        """Raise ArchiveError if later binlogs are there, and this one will never come."""
        later = [n for n in self._catalog.chunked(binlog.lineage).chunks if n > following]
        later += self._catalog.archived_behind(binlog.lineage, following)
        if not later:
            return
        writer = self._catalog.last_writer()
        beat = writer.beat if writer is not None else None
        for gap in missing_binlogs(
            binlog.lineage, [binlog.name, min(later)], beat, from_start=False
        ):
            if not gap.under_way:
                raise ArchiveError(f"the binlogs {gap.first} to {gap.last} are missing")

    def _show(
        self, binlogs: tuple[ServedBinlog, ...], *, problem: str = "", only_last: bool = False
    ) -> None:
        """Set the view. `only_last`: no binlog but the last one has changed."""
        with self._changed:
            whole = self._tail.whole if self._tail is not None else 0
            version = self._view.version + 1
            if only_last:
                self._view = replace(
                    self._view, version=version, binlogs=binlogs, whole=whole, problem=problem
                )
            else:
                self._view = view_of(version, binlogs, whole, problem, self._elsewhere)
            self._changed.notify_all()


def added_by(scanner: Scanner) -> AddedGtids:
    """What is known of the GTIDs of a binlog that was read up to now."""
    count, back = scanner.transactions - scanner.anonymous, scanner.gtids_go_back
    return AddedGtids.of(scanner.previous_gtids, scanner.gtids, count, back=back)


class _ViewLine:
    """The binlogs of a view as a `executed.GtidLine`: a route, and those that were followed since.

    For one thread, while the history is not looked at.
    """

    def __init__(self, history: ArchiveHistory) -> None:
        self._history = history
        self._route = history._route  # noqa: SLF001 - it is a part of it
        self._binlogs = history.view().binlogs
        self._archived = len(self._route) if self._route is not None else 0

    def added_gtids(self) -> Sequence[AddedGtids]:
        found = list(self._route.added_gtids()) if self._route is not None else []
        for binlog in self._binlogs[self._archived :]:
            tail = self._history._read_here(binlog)  # noqa: SLF001
            known = self._history._find(binlog) if tail is None else None  # noqa: SLF001
            if tail is not None:
                found.append(added_by(tail.scanner))
            elif known is not None:
                found.append(added_gtids(known))
            else:
                found.append(AddedGtids.of(None, None, 0))
        return found

    def leads_up(self, number: int) -> bool:
        if self._route is not None and number < self._archived:
            return self._route.leads_up(number)
        return number > 0 and not self._binlogs[number].broken

    def gtid_list(self, number: int) -> MariadbGtidList | None:
        if self._route is not None and number < self._archived:
            return self._route.gtid_list(number)
        tail = self._history._read_here(self._binlogs[number])  # noqa: SLF001
        before = tail.scanner.previous_gtids if tail is not None else self._binlogs[number].before
        return before if isinstance(before, MariadbGtidList) else None

    def gtid_transactions(
        self, number: int, gtids: Collection[str], near: str = ""
    ) -> Iterator[Transaction]:
        if self._route is not None and number < self._archived:
            yield from self._route.gtid_transactions(number, gtids, near)
            return
        binlog = self._binlogs[number]
        before: MariadbGtidList | None = None  # what it repeats of it is no shared bytes
        if number and not binlog.begin and isinstance(binlog.joined, MariadbGtidList):
            before = binlog.joined
            gtids = {*gtids, *map(gtid_text, before.gtids())}
        found = self._searched(binlog, WithGtids(frozenset(gtids)))
        repeated = repeated_upto(found, before) if before is not None else {}
        for transaction in found:
            if transaction.gtid is None or transaction.end > repeated.get(
                domain_of(transaction.gtid), binlog.begin
            ):
                yield transaction

    def _searched(self, binlog: ServedBinlog, search: Search[Result]) -> Result:
        """What a search finds in a binlog; in one that grows, when a question first needs it."""
        catalog = self._history._catalog  # noqa: SLF001

        def transactions() -> Iterator[Transaction]:
            readable, scanner = catalog.binlog(binlog.lineage, binlog.name), Scanner()
            for data in readable.blocks(0, readable.size):
                yield from scanner.feed(data)

        key = (binlog.binlog_id, binlog.end, search)  # it has an end as soon as another one follows
        found = self._history._read_whole.search(key, lambda: search(transactions()))  # noqa: SLF001
        return cast("Result", found)

    def position_text(self, number: int, offset: int) -> str:
        return f"{self._binlogs[number].name}:{offset}" if offset < 1 << 62 else "the archive"


def _moving(binlog: ServedBinlog) -> StoreError:
    """The error for bytes that nothing proves at the moment."""
    return StoreError(
        f"{binlog.name} was archived and has no entry yet, which has its checksums",
        hint="the streamer writes the entry; `binlog2s3 verify --repair` makes one that is missing",
        transient=True,
    )
