"""The binlogs that one client is sent: from where it asks for, and then all that follows.

Law: only whole transactions are given to the `Sender`. While the store does not answer, the client
waits and gets heartbeats. At a gap, damage, or a dead branch, the dump ends with an error that
names it, and nothing after it is sent.
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from binlog2s3.archive.ahead import Fetch, Kept
from binlog2s3.archive.facts import BinlogId
from binlog2s3.archive.history import break_between, is_within
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.executed import Gtid, gtid_text
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.errors import StoreError
from binlog2s3.log import Log
from binlog2s3.replication.feed import Feed, MariadbHad, MysqlHad, NotServedError
from binlog2s3.replication.protocol import Dump, DumpByGtid
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.send import ClientLeftError, Sender, SentBinlog
from binlog2s3.replication.source import Client
from binlog2s3.serve.model import (
    AskedName,
    Beginning,
    NotThereError,
    ServedBinlog,
    ServedHistory,
    View,
)
from binlog2s3.workers import Workers

Result = TypeVar("Result")
MOST_BLOCKS = 20
"""Blocks of 4 MiB that stay in memory."""
_AHEAD_MOST = 6
_AHEAD_SHARED = 16
_START_SECONDS = 45.0  # a replica waits for 60 s
_STORE_SECONDS = 2.0
_log = Log("serve")


class SharedBlocks:
    """Blocks that several dumps read at the same time, each fetched once. Thread-safe.

    It holds at most `MOST_BLOCKS` blocks that no dump waits for.
    """

    def __init__(self, workers: Workers) -> None:
        self._kept = Kept[memoryview](MOST_BLOCKS, workers.start)
        self.fetched = 0
        """Bytes that were read."""

    def get(self, key: Hashable, fetch: Callable[[], memoryview]) -> Fetch[memoryview]:
        """The block of this key; `fetch` is called if it is neither there nor on its way."""
        return self._kept.get(key, partial(self._counted, fetch))

    def _counted(self, fetch: Callable[[], memoryview]) -> memoryview:
        data = fetch()
        self.fetched += len(data)
        return data


class ServedDump:
    """One dump of a history. `run` returns when the client has left, or has all that it asked for.

    `dumps` says how many there are now: the more, the fewer blocks each one fetches ahead.
    """

    def __init__(
        self,
        client: Client,
        dump: Dump,
        served: ServedHistory,
        cache: SharedBlocks,
        identity: Identity,
        *,
        ended: Callable[[float], bool],
        dumps: Callable[[], int],
    ) -> None:
        self._number = client.number
        self._dump = dump
        self._served = served
        self._cache = cache
        self._dumps = dumps
        self._feed = Feed(server_id=identity.server_id, checksum=dump.checksum, verbatim=True)
        self._sender = Sender(client, dump, self._feed, ended=ended)
        self._is_store_silent = False
        self._offset = 0
        self._asked_for: BinlogId | None = None
        self._due: dict[BinlogId, tuple[Gtid, ...]] = {}
        self._following: ServedBinlog | None = None
        self.behind = 0
        """Bytes of the binlog that this client has not got yet."""
        self.position: tuple[str, int] = ("", 0)

    def run(self) -> None:
        """Send. Raises NotServedError and ArchiveError, which the client is told; OSError."""
        with suppress(ClientLeftError):
            self._sender.send(self._binlogs())
            self._sender.finish()

    # Where it begins

    def _begin(self) -> ServedBinlog | None:
        """The first binlog to send, and prepare the feed for it; None if there is none yet."""
        dump = self._dump
        have: Gtids | None = dump.gtids if isinstance(dump, DumpByGtid) else dump.state
        is_mariadb = self._served.flavour == "mariadb"
        if have is not None and isinstance(have, MariadbGtidList) != is_mariadb:
            raise NotServedError(f"this archive is {self._served.flavour}'s")
        if dump.ends and not self._served.look(_START_SECONDS):
            raise OSError("the store does not answer")
        view = self._served.view()
        while not view.binlogs:  # nothing was streamed yet
            if dump.ends:
                return None
            view = self._later(view)
        by_name = dump.name if have is None or not is_mariadb else ""  # MariaDB ignores it, too
        if have is not None and not by_name:
            begins = self._first_for(have)
            self._feed.has, self._due, self._offset = begins.had, dict(begins.due), begins.offset
            return begins.binlog
        if isinstance(have, GtidSet):
            self._feed.has = MysqlHad(have)
        return self._by_position(view, by_name)

    def _first_for(self, have: Gtids) -> Beginning:
        """Where a client with these GTIDs begins.

        A replica of the source itself may be a little ahead of the archive.
        """
        until = time.monotonic() + _START_SECONDS
        while True:
            view = self._served.view()
            try:
                return self._asked(lambda: self._served.first_for(have))
            except NotThereError:
                if self._dump.ends or time.monotonic() > until:
                    raise
            self._later(view, until)

    def _by_position(self, view: View, name: str) -> ServedBinlog:
        dump = self._dump
        offset = max(len(MAGIC), 4 if isinstance(dump, DumpByGtid) else dump.position)
        number = self._number_of(view, name, offset) if name else 0
        if number is None:
            return self._wait_for(name)
        binlog = view.binlogs[number]
        self._asked(lambda: self._served.check_begin(binlog, offset, is_replica=dump.registered))
        self._asked_for = binlog.binlog_id if name else None
        if offset > len(MAGIC):
            self._offset = self._asked(lambda: self._served.boundary(binlog, offset))
            self._feed.at = (self._name_of(view, binlog), offset)
        return replace(binlog, begin=0)  # the client may lack what the lineage before has, too

    def _number_of(self, view: View, name: str, offset: int) -> int | None:
        """The number of the binlog with the place that the client asks for.

        None: the archive does not have that binlog yet. Raises NotServedError if it has no such
        place, or if the client may have followed another history up to there.
        """
        asked = _asked_name(name)
        found = [n for n in view.named(asked) if self._has_offset(view, n, offset)] if asked else []
        others = self._others(asked, offset, is_here=bool(found)) if asked else ()
        if asked is not None and (others or len(found) > 1):
            raise NotServedError(_ambiguous(view, asked, offset, found, others))
        if found:
            return found[0]
        if self._is_next(view, asked) and not self._dump.ends:
            return None
        raise NotServedError(self._no_such_place(view, name, offset))

    def _others(self, asked: AskedName, offset: int, *, is_here: bool) -> Sequence[str]:
        """The other lineages that the client can mean.

        One that does not register and asks for a binlog from its beginning has no place yet: it
        gets the history that is served.
        """
        is_fresh = not self._dump.registered and offset <= len(MAGIC)
        if is_here and (asked.lineage or is_fresh):
            return ()
        found = self._asked(lambda: self._served.elsewhere(asked.binlog, offset, is_here=is_here))
        return [lineage for lineage in found if asked.lineage in (None, lineage)]

    def _is_next(self, view: View, asked: AskedName | None) -> bool:
        """Whether this is the binlog after the newest one, which the archive does not have yet."""
        last = view.binlogs[-1]
        return (
            asked is not None
            and asked.binlog == last.name.next()
            and asked.lineage in (None, last.lineage.id)
            and not any(True for _ in view.named(asked))
        )

    def _wait_for(self, name: str) -> ServedBinlog:
        """Wait until the archive has this binlog.

        No heartbeat can be sent before the first event, so it does not wait for long: the client
        connects again. Raises OSError then.
        """
        until = time.monotonic() + _START_SECONDS
        while (view := self._served.view()) and self._is_next(view, _asked_name(name)):
            if time.monotonic() > until:
                raise OSError("the archive does not have that binlog yet")
            self._later(view, until)
        return self._by_position(view, name)

    def _no_such_place(self, view: View, name: str, offset: int) -> str:
        asked = _asked_name(name)
        if asked is not None and any(True for _ in view.named(asked)):
            return f"{name[:64]} has no byte {offset} in this archive"
        first, last = view.binlogs[0], view.binlogs[-1]
        return (
            f"{name[:64]} is not in this archive, which has {view.served_name(first)} to "
            f"{view.served_name(last)}"
        )

    def _has_offset(self, view: View, number: int, offset: int) -> bool:
        binlog = view.binlogs[number]
        end = binlog.end
        if binlog.is_open:  # the archive may get it soon
            end = max(view.whole, len(MAGIC)) if self._dump.ends else offset
        elif end is None:
            end = self._asked(lambda: self._served.known(binlog)).transaction_end
        return is_within(offset, 0, end)

    def _name_of(self, view: View, binlog: ServedBinlog) -> str:
        """A binlog's name at the client. mysqlbinlog compares it with the one that it asked for."""
        dump = self._dump
        if not dump.registered and binlog.binlog_id == self._asked_for:
            return dump.name
        asked = _asked_name(dump.name)
        resumes = dump.registered or (asked is not None and asked.lineage is not None)
        return view.served_name(binlog, resumes=resumes)

    # What is sent

    def _binlogs(self) -> Iterator[SentBinlog]:
        """The binlogs one after the other, however long each one grows."""
        binlog = self._begin()
        while binlog is not None:
            view, number = self._numbered(self._served.view(), binlog)
            begin, head = self._enter(binlog)
            name, self._following = self._name_of(view, binlog), None
            keeps_place = self._dump.registered and not self._dump.ends
            yield SentBinlog(
                name=name,
                begin=begin,
                head=head,
                blocks=self._through(view, number),
                successor=name if keeps_place else str(binlog.name),
            )
            binlog = self._following

    def _enter(self, binlog: ServedBinlog) -> tuple[int, bytes]:
        """Where it begins, 0 for its own head, and the format event that applies there."""
        begin = self._offset
        if begin < max(binlog.begin, len(MAGIC)):
            begin = binlog.begin if binlog.begin > len(MAGIC) else 0
        head = self._asked(lambda: self._served.head(binlog, begin))
        self._offset = begin or len(MAGIC) + len(head)
        return begin, head

    def _through(self, view: View, number: int) -> Iterator[memoryview]:
        """The bytes of a binlog to its end, then `_following` is set.

        There is none if the client wanted only what there is.
        """
        while True:
            binlog = view.binlogs[number]
            end, problem = self._end_of(view, number)
            if self._offset > end and not binlog.is_open:
                raise NotServedError(_left(view, binlog.binlog_id, self._offset))
            yield from self._upto(binlog, end)
            if problem:
                raise NotServedError(problem)
            if not binlog.is_open and number + 1 < len(view.binlogs):
                self._leave(view, binlog, view.binlogs[number + 1])
                return
            if view.problem:
                raise NotServedError(view.problem)
            if self._dump.ends:
                return
            view, number = self._numbered(self._later(view), binlog)

    def _end_of(self, view: View, number: int) -> tuple[int, str]:
        """Up to where this binlog can be sent now, and why no more of it can be sent."""
        binlog = view.binlogs[number]
        if binlog.is_open:
            return view.whole, ""
        known = self._asked(lambda: self._served.known(binlog))
        end = known.transaction_end
        if binlog.end is not None:
            end = min(binlog.end, end)
        for low, high in known.damaged:
            if high > self._offset and low < end:
                name = view.served_name(binlog)
                return max(low, self._offset), (
                    f"bytes {low} to {high} of {name} are damaged: the source already sent them so"
                )
        return end, ""

    def _upto(self, binlog: ServedBinlog, end: int) -> Iterator[memoryview]:
        """The bytes up to `end`."""
        while self._offset < end:
            newest = self._served.newest(binlog, self._offset, end) if binlog.is_open else None
            parts: Sequence[bytes | memoryview] = newest or [self._block(binlog, end)]
            for data in parts:
                yield memoryview(data)
                self._offset += len(data)
                self.position = (self._feed.name, self._offset)
                self.behind = max(0, end - self._offset)

    def _block(self, binlog: ServedBinlog, end: int) -> memoryview:
        """The next bytes before `end`, of one block."""
        number = self._offset // BLOCK_SIZE
        data = self._asked(lambda: self._awaited(binlog, number, end))
        self._is_store_silent = False
        return data[self._offset - number * BLOCK_SIZE : end - number * BLOCK_SIZE]

    def _awaited(self, binlog: ServedBinlog, number: int, end: int) -> memoryview:
        """A block up to `end`; those after it are fetched ahead. Raises what the fetch raised."""
        ahead = max(1, min(_AHEAD_MOST, _AHEAD_SHARED // max(1, self._dumps())))
        numbers = range(number, min(number + 1 + ahead, -(-end // BLOCK_SIZE)))
        fetches = [self._fetch(binlog, each, end) for each in numbers]
        self._sender.wait(fetches[0].is_done)
        return fetches[0].result()

    def _fetch(self, binlog: ServedBinlog, number: int, end: int) -> Fetch[memoryview]:
        upto = min(end, (number + 1) * BLOCK_SIZE)
        key = (*binlog.binlog_id, number, upto)
        return self._cache.get(key, lambda: self._served.block(binlog, number, upto))

    # Between two binlogs

    def _later(self, view: View, until: float = math.inf) -> View:
        """Wait for another view, up to a time on the monotonic clock."""

        def is_other(seconds: float) -> bool:
            now = self._served.wait(view.version, seconds) if seconds else self._served.view()
            return now.version != view.version or time.monotonic() > until

        self._sender.wait(is_other)
        return self._served.view()

    def _numbered(self, view: View, binlog: ServedBinlog) -> tuple[View, int]:
        """The view and the binlog's number in it, which may differ from that in an earlier view."""
        number = view.numbers.get(binlog.binlog_id)
        if number is None:
            raise NotServedError(_left(view, binlog.binlog_id, len(MAGIC)))
        return view, number

    def _leave(self, view: View, binlog: ServedBinlog, following: ServedBinlog) -> None:
        """Check that the next binlog follows, and prepare the feed for it."""
        name = self._name_of(view, following)
        if following.broken:
            raise NotServedError(f"history is broken before {name}: {following.broken}")
        if following.lineage.id == binlog.lineage.id and not following.is_open:
            before = self._asked(lambda: self._served.known(binlog))
            other = self._asked(lambda: self._served.known(following))
            if why := break_between(before, other):
                raise NotServedError(f"history is broken before {name}: {why.text}")
        self._check_seen(binlog)
        if following.joined is not None:
            self._leave_out(following, following.joined)
        self._offset = 0
        self._following = following

    def _leave_out(self, following: ServedBinlog, before: Gtids) -> None:
        """Leave out what a lineage's first binlog repeats: `before` was executed before it."""
        has = self._feed.has
        if isinstance(before, GtidSet):
            more = before | has.gtids if isinstance(has, MysqlHad) else before
            self._feed.has = MysqlHad(more)
        elif not following.begin:
            has = has if isinstance(has, MariadbHad) else MariadbHad(())
            has.await_also(before.gtids())
            self._due[following.binlog_id] = tuple(before.gtids())
            self._feed.has = has

    def _check_seen(self, binlog: ServedBinlog) -> None:
        """See that a binlog had the GTIDs behind which more of their domains is sent."""
        has = self._feed.has
        if not isinstance(has, MariadbHad):
            return
        missing = [gtid for gtid in self._due.get(binlog.binlog_id, ()) if has.awaits(gtid)]
        if missing:
            raise NotServedError(
                f"{', '.join(map(gtid_text, missing))} is not in {binlog.name}, where the archive "
                "says it is: nothing tells what comes after it"
            )

    # Waiting

    def _asked(self, ask: Callable[[], Result]) -> Result:
        """Ask the bucket, again and again while the store does not answer; the answer.

        Raises OSError if the client has left, or before the first event, when no heartbeat can be
        sent, after a while.
        """
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                return ask()
            except StoreError as error:
                if not self._is_store_silent:
                    self._is_store_silent = True
                    _log.warning("a dump waits for the store", number=self._number, error=error)
                if not self._feed.name and time.monotonic() > until:
                    raise OSError("the store does not answer") from error
                self._sender.pause(_STORE_SECONDS)


def _asked_name(name: str) -> AskedName | None:
    """The name by which a client asks; None if no binlog has such a name."""
    try:
        return AskedName.parse(name)
    except ValueError:
        return None


def _ambiguous(
    view: View, asked: AskedName, offset: int, found: Sequence[int], others: Sequence[str]
) -> str:
    """Why a place is not served that other histories have, too, or that only others have."""
    if not found:
        return _left(view, (others[0], asked.binlog), offset)
    text = f"{asked.binlog}:{offset} is in several histories: ask for " + " or ".join(
        view.binlogs[number].full_name for number in found
    )
    if not others:
        return text
    end = _last_of(view, others[0])
    of = f", a dead branch, which the history left at {end}" if end else ""
    return f"{text}, unless the client has followed lineage {others[0]}{of}"


def _left(view: View, binlog_id: BinlogId, offset: int) -> str:
    """Why an offset of a binlog of a lineage is not, or no longer, part of the history."""
    lineage, name = binlog_id
    if end := _last_of(view, lineage):
        return (
            f"the history that is written now left lineage {lineage} at {end}, before "
            f"{name}:{offset}: what this replica got after that is a dead branch"
        )
    last = view.binlogs[-1].lineage.id if view.binlogs else "another one"
    return (
        f"lineage {lineage} has ended, and nothing proves that {last}, which is written now, "
        "continues from it"
    )


def _last_of(view: View, lineage: str) -> str:
    """Where the history leaves a lineage; "" if it has nothing of it."""
    ours = [binlog for binlog in view.binlogs if binlog.lineage.id == lineage]
    if not ours:
        return ""
    return f"{ours[-1].name}:{ours[-1].end}" if ours[-1].end is not None else str(ours[-1].name)
