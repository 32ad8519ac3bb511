"""How far two histories are the same: only equal bytes are proof."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import ServerFacts
from binlog2s3.stream.compare import Common, Finder, another_beginning, cut
from binlog2s3.stream.spool import SpoolRun
from tests import documents
from tests.binlog_writer import (
    NOW,
    ROWS,
    TABLE_MAP,
    UUID_A,
    UUID_B,
    XID,
    BinlogWriter,
    statement,
)
from tests.documents import like
from tests.memory_store import MemoryStore
from tests.unit.binlog.test_content import rows, table_map
from tests.unit.stream.builders import RUN, name

TIME = datetime(2026, 1, 2, tzinfo=UTC)
LAYOUT = Layout("p", "orders")
LINEAGE = replace(
    documents.LINEAGE, first_binlog=BinlogName("b", 1), first_binlog_time=TIME, gtid_set=""
)
MOST = 8
_, INSERT = statement("insert 000000053")
SERVER = BinlogWriter().server_id
FACTS = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.0", server_id=1, gtid_mode=True)


def binlog(
    number: int, *, forked_at: int = 99, time: int = NOW, last: bool = False, gtids: bool = True
) -> BinlogWriter:
    """Number n has the transactions 10 n to 10 n + 9; from one number on those of another history.

    The last one is open.
    """
    forked = number * 10 > forked_at
    made = BinlogWriter(timestamp=time + 1 if forked else time)
    first = number * 10
    made.previous_gtids(GtidSet.parse(f"{UUID_A}:10-{first - 1}" if number > 1 else ""))
    for gno in range(first, first + 10):
        text = f"insert {gno:09}" if gno <= forked_at else f"others {gno:09}"
        made.transaction([statement(text)], gtid=(UUID_A, "", gno) if gtids else None)
    if not last:
        made.rotate(str(name(number + 1)))
    return made


def archive(
    store: MemoryStore,
    *binlogs: BinlogWriter,
    size: int | None = None,
    damaged_at: int | None = None,
) -> Catalog:
    """All of these are archived but the last, which lies in chunks, its first `size` bytes.

    The fifth as a source has served it, with a flipped byte.
    """
    store.put(LAYOUT.lineage(LINEAGE.id), LINEAGE.to_json())
    for number, made in enumerate(binlogs, start=1):
        data = bytes(made.data)
        if made is not binlogs[-1]:
            reading = BinlogReading(name(number))
            if number == 5 and damaged_at is not None:
                data = data[:damaged_at] + bytes([data[damaged_at] ^ 1]) + data[damaged_at + 1 :]
                reading.scanner.accept(made.transactions[3].end - made.size_of(INSERT))
            reading.feed(memoryview(data))
            store.put(LAYOUT.binlog(LINEAGE.id, name(number)), data)
            document = reading.entry(TIME).to_json()
            store.put(LAYOUT.entry(LINEAGE.id, name(number)), document)
            continue
        data = data[:size]
        for begin in range(0, len(data), 300):
            piece = data[begin : begin + 300]
            chunk = Chunk(begin, begin + len(piece), crc64nvme(piece))
            store.put(LAYOUT.chunk(LINEAGE.id, name(number), chunk), piece)
    return Catalog(store, LAYOUT)


class Child:
    """A mysqlbinlog that has written what there is, and ended."""

    def __init__(self, status: int | None = 0) -> None:
        self.status = status
        self.stopped = False

    def poll(self) -> int | None:
        return self.status

    def stop(self) -> None:
        self.stopped = True

    def failure(self) -> SourceError:
        return SourceError("mysqlbinlog ended", unservable=True)


class Source:
    """What probes see of a server; `probed` are the binlogs that were asked for, in order."""

    def __init__(self, directory: Path, binlogs: dict[BinlogName, bytes]) -> None:
        self._directory = directory
        self._binlogs = binlogs
        self.known = set(binlogs)
        self.probed: list[BinlogName] = []
        self.children: list[Child] = []
        self.discarded: list[SpoolRun] = []
        self.status: int | None = 0
        self.own = dict(binlogs)  # what it sends on the connection for questions

    # as `Spool`

    def started(
        self, server_uuid: str, binlog_name: BinlogName, position: int, start: object
    ) -> tuple[SpoolRun, Child]:
        assert (server_uuid, position) == (FACTS.uuid, 4)
        directory = self._directory / str(len(self.probed))
        directory.mkdir(parents=True)
        self.probed.append(binlog_name)
        (directory / str(binlog_name)).write_bytes(self._binlogs[binlog_name])
        self.children.append(Child(self.status))
        return SpoolRun(directory, replace(RUN, binlog=str(binlog_name))), self.children[-1]

    def discard(self, run: SpoolRun) -> None:
        self.discarded.append(run)

    # as `Server`

    address = "db1:3306"

    def close(self) -> None:
        """It is asked on a new connection."""

    def facts(self) -> ServerFacts:
        return FACTS

    def beginning(self, binlog_name: BinlogName, most: int) -> bytes:
        return self.own[binlog_name][:most]

    def finder(self, catalog: Catalog, stop: threading.Event, **more: int) -> Finder:
        itself: Any = self
        tool: Any = None
        return Finder(
            catalog, LINEAGE, server=itself, facts=FACTS, tool=tool, spool=itself, stop=stop, **more
        )

    def find(
        self,
        catalog: Catalog,
        stop: threading.Event | None = None,
        beginning: int = 64 << 10,
    ) -> Common | None:
        """The last common place, everything put away again."""
        finder = self.finder(catalog, stop or threading.Event(), beginning=beginning)
        try:
            return finder.last_common(sorted(self._binlogs))
        finally:
            assert all(child.stopped for child in self.children)
            assert len(self.discarded) == len(self.probed)


def source(directory: Path, *binlogs: BinlogWriter, first: int = 1) -> Source:
    made = enumerate(binlogs, start=first)
    return Source(directory, {name(number): bytes(one.data) for number, one in made})


def shared(found: Common | None) -> Common:
    assert found is not None
    return found


def history(forked_at: int = 99) -> list[BinlogWriter]:
    """Eight binlogs, the last one open."""
    numbers = range(1, MOST + 1)
    return [binlog(n, forked_at=forked_at, last=n == MOST) for n in numbers]


def test_the_same_history(store: MemoryStore, tmp_path: Path) -> None:
    """All that the bucket has is the source's, up to where the bucket ends."""
    ours = history()
    size = ours[-1].transactions[4].end
    catalog = archive(store, *ours, size=size)
    server = source(tmp_path, *ours)
    assert server.find(catalog) == Common(
        position=Position(binlog=name(MOST), offset=size, gtid_set=f"{UUID_A}:10-84"),
        whole=True,
        transactions=5,
    )
    assert name(MOST) in server.probed
    assert server.probed == [name(MOST)] * 2  # whether it begins alike, then all of it


@pytest.mark.parametrize("forked_at", [10, 14, 19, 20, 29, 34, 55, 79, 80, 88])
def test_the_last_common_transaction(store: MemoryStore, tmp_path: Path, forked_at: int) -> None:
    """Wherever the histories part: its end, exactly, with few binlogs looked at."""
    ours, theirs = history(), history(forked_at)
    catalog = archive(store, *ours)
    server = source(tmp_path, *theirs)
    found = shared(server.find(catalog))
    number = forked_at // 10
    transaction = ours[number - 1].transactions[forked_at % 10]
    assert (found.position.binlog, found.position.gtid_set) == (
        name(number),
        str(GtidSet.parse(f"{UUID_A}:10-{forked_at}")),
    )
    whole = forked_at % 10 == 9
    assert found.whole is whole
    assert found.position.offset == (len(ours[number - 1].data) if whole else transaction.end)
    assert len(server.probed) <= 8


class Counting(MemoryStore):
    """Counts the bytes that are asked for."""

    asked = 0

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        self.asked += end - begin
        return super().open(key, begin, end)


@pytest.mark.parametrize("received", ["another-history", "damage", "no-binlog"])
def test_a_probe_that_reads_from_another_server_says_nothing(
    store: MemoryStore, tmp_path: Path, received: str
) -> None:
    """mysqlbinlog alone was led there: it would end our history, and join the next one to none."""
    catalog, there = archive(store, *history()), source(tmp_path, *history())
    for number, other in enumerate(history(forked_at=0), start=1):
        data = bytes(other.data)
        if received != "another-history":
            data = data[:300] + b"?" * 300 if received == "damage" else b"?" * 300
        there._binlogs[name(number)] = data
    with pytest.raises(SourceError, match="its own has other bytes"):
        there.find(catalog)


@pytest.mark.parametrize("forked_at", [14, 55, 75])
def test_one_or_two_binlogs_are_compared_whole(tmp_path: Path, forked_at: int) -> None:
    """Of the others a beginning is enough: binlogs are large."""
    store, ours = Counting(), history()
    found = shared(source(tmp_path, *history(forked_at)).find(archive(store, *ours), beginning=150))
    assert found.position.gtid_set == f"{UUID_A}:10-{forked_at}"
    assert 0 < store.asked < 150 * MOST + 2 * len(ours[0].data)


def test_a_later_binlog_that_only_begins_alike(store: MemoryStore, tmp_path: Path) -> None:
    """Where an earlier one differs, nothing behind it is common."""
    ours = [binlog(1), binlog(2, last=True)]
    theirs = [binlog(1, forked_at=15), binlog(2, last=True, forked_at=19, time=NOW - 1)]
    assert theirs[1].data[:100] == ours[1].data[:100]
    found = shared(source(tmp_path, *theirs).find(archive(store, *ours)))
    assert (found.position.binlog, found.position.gtid_set) == (name(1), f"{UUID_A}:10-15")


def test_damage_that_both_have_is_equal(store: MemoryStore, tmp_path: Path) -> None:
    """An event that the source served damaged is archived so; histories part elsewhere."""
    ours, theirs = history(), history(forked_at=65)
    catalog = archive(store, *ours, damaged_at=ours[4].transactions[3].end - 3)
    key = LAYOUT.binlog(LINEAGE.id, name(5))
    theirs[4].data[:] = store.get(key)
    found = shared(source(tmp_path, *theirs).find(catalog))
    assert (found.position.binlog, found.position.gtid_set) == (name(6), f"{UUID_A}:10-65")
    found = shared(source(tmp_path / "again", *theirs[:5]).find(catalog))
    assert (found.position.binlog, found.whole, found.position.offset) == (
        name(5),
        True,
        len(ours[4].data),
    )


def test_the_same_beginning_without_a_transaction_proves_nothing(
    store: MemoryStore, tmp_path: Path
) -> None:
    """A reset within the second: format event and previous GTIDs are the same bytes."""
    ours, theirs = binlog(1, last=True), binlog(1, time=NOW - 1, forked_at=9, last=True)
    assert ours.data[: ours.transactions[0].begin] == theirs.data[: theirs.transactions[0].begin]
    server = source(tmp_path, theirs)
    assert server.find(archive(store, ours)) is None
    assert set(server.probed) == {name(1)}


def test_a_source_that_has_none_of_our_binlogs(store: MemoryStore, tmp_path: Path) -> None:
    """Nothing can be compared."""
    catalog = archive(store, *history()[:3])
    server = source(tmp_path, *history()[5:], first=6)
    assert server.find(catalog) is None
    assert server.probed == []


def test_a_source_that_has_purged_the_first_ones(store: MemoryStore, tmp_path: Path) -> None:
    """The common ones are enough, if they share a transaction."""
    catalog = archive(store, *history())
    found = shared(source(tmp_path, *history(forked_at=64)[4:], first=5).find(catalog))
    assert found.position.gtid_set == f"{UUID_A}:10-64"


def test_a_shorter_binlog_there(store: MemoryStore, tmp_path: Path) -> None:
    """It lost its last transactions in a crash: common is up to its end."""
    ours, theirs = history(), history()
    end = theirs[-1].transactions[3].end
    del theirs[-1].data[end:]
    found = shared(source(tmp_path, *theirs).find(archive(store, *ours)))
    assert (found.position.file_position, found.whole) == ((name(MOST), end), False)


def test_common_ends_with_a_transaction(store: MemoryStore, tmp_path: Path) -> None:
    """The bucket has the beginning of another one: that is not part of it."""
    ours = history()
    transaction = ours[-1].transactions[6]
    catalog = archive(store, *ours, size=transaction.end - 45)  # its GTID event is there
    found = shared(source(tmp_path, *ours).find(catalog))
    assert found.whole
    assert found.position.offset == transaction.begin


def test_anonymous_transactions_are_compared_as_well(store: MemoryStore, tmp_path: Path) -> None:
    """Bytes prove the place; which GTIDs were executed there is not known."""
    ours, theirs = (
        binlog(1, gtids=False, last=True),
        binlog(1, forked_at=13, gtids=False, last=True),
    )
    found = shared(source(tmp_path, theirs).find(archive(store, ours)))
    assert (found.position.offset, found.position.gtid_set) == (ours.transactions[3].end, "")


def test_a_source_that_cannot_be_read(store: MemoryStore, tmp_path: Path) -> None:
    """Nothing is concluded; what mysqlbinlog said is passed on."""
    server = Source(tmp_path, {name(n): bytes(history()[n - 1].data[:500]) for n in range(1, 9)})
    server.status = 1
    with pytest.raises(SourceError) as caught:
        server.find(archive(store, *history()))
    assert caught.value.unservable


def test_a_stop_ends_the_comparison(store: MemoryStore, tmp_path: Path) -> None:
    """A child that never ends does not hold it up."""
    server = source(tmp_path, *history())
    server.status = None
    stop = threading.Event()
    stop.set()
    assert server.find(archive(store, *history()), stop) is None


# The cut, by GTIDs alone: what another server has executed


@pytest.mark.parametrize(
    ("last", "end"),
    [
        *((last, last) for last in (10, 15, 20, 47, 80, 84)),
        (79, None),  # between two binlogs: the newer one is cut at its very begin
        (500, 84),  # it has everything: the end of the last one that the bucket has whole
    ],
)
def test_the_cut_is_where_the_first_missing_transaction_begins(
    store: MemoryStore, last: int, end: int | None
) -> None:
    """The server's own transactions do not count."""
    ours = history()
    catalog = archive(store, *ours, size=ours[-1].transactions[4].end + 30)
    found = cut(catalog, LINEAGE, GtidSet.parse(f"{UUID_A}:10-{last},{UUID_B}:1-7"))
    if end is None:
        place, end = (name(MOST), ours[-1].transactions[0].begin), last
    else:
        place = (name(end // 10), ours[end // 10 - 1].transactions[end % 10].end)
    assert found == Position.of(FilePosition(*place), GtidSet.parse(f"{UUID_A}:10-{end}"))


@pytest.mark.parametrize("executed", ["", f"{UUID_B}:1-9", f"{UUID_A}:11-90"])
def test_a_server_that_lacks_the_first_transaction(store: MemoryStore, executed: str) -> None:
    """The lineage begins with nothing before it: that much everybody has, and it proves nothing."""
    found = cut(archive(store, *history()), LINEAGE, GtidSet.parse(executed))
    assert found is None or (found.binlog, found.gtid_set) == (name(1), "")


def test_anonymous_transactions_cannot_be_cut(store: MemoryStore) -> None:
    """Whether a server has them cannot be told."""
    catalog = archive(store, binlog(1, gtids=False, last=True))
    assert cut(catalog, LINEAGE, GtidSet.parse(f"{UUID_A}:10-90")) is None


STEADY = [(0, (1, 2, 3, 4)), (4, (5, 6, 7, 8)), (8, (9, 10, 11, 12))]
BACK_BEFORE = [STEADY[0], (4, (5, 6, 4, 8)), STEADY[2]]
BACK_THERE = [*STEADY[:2], (8, (9, 10, 8, 12))]
BACK_IN_AN_OLDER_ONE = [(0, (*range(1, 21), 8)), (8, (21, 22, 23))]


@pytest.mark.parametrize(
    ("binlogs", "executed", "at"),
    [
        (STEADY, 10, (3, 2)),
        (BACK_BEFORE, 10, (3, 2)),  # those before the cut do not matter
        (BACK_THERE, 10, None),  # a server with a greater number may lack them
        # what it lacks has greater numbers than the next one begins with, or the same
        (BACK_IN_AN_OLDER_ONE, 8, None),
        (BACK_IN_AN_OLDER_ONE, 15, None),
        (BACK_IN_AN_OLDER_ONE, 21, (2, 1)),
        (BACK_IN_AN_OLDER_ONE, 22, (2, 2)),
    ],
)
def test_numbers_that_go_back_cut_nothing(
    store: MemoryStore,
    binlogs: list[tuple[int, tuple[int, ...]]],
    executed: int,
    at: tuple[int, int] | None,
) -> None:
    """MariaDB's binlogs: the number that each begins after, and those of its transactions."""
    lineage = like(LINEAGE, flavour="mariadb", server_uuid="00000007-00000000")
    made = []
    for before, numbers in binlogs:
        writer = BinlogWriter(server_version="11.8.2-MariaDB-log")
        writer.gtid_list(MariadbGtidList.parse(f"0-{SERVER}-{before}" if before else ""))
        for number in numbers:
            writer.mariadb_transaction([TABLE_MAP, ROWS, XID], gtid=(0, number))
        writer.rotate()
        made.append(writer)
    found = cut(archive(store, *made), lineage, MariadbGtidList.parse(f"0-{SERVER}-{executed}"))
    if at is None:
        assert found is None
        return
    number, transaction = at
    assert found is not None
    assert found.file_position == (name(number), made[number - 1].transactions[transaction].begin)


def test_a_binlog_that_cannot_be_read_is_passed_over(store: MemoryStore) -> None:
    """The cut is then further back, never further on."""
    ours = history()
    catalog = archive(store, *ours)
    key = LAYOUT.binlog(LINEAGE.id, name(6))
    data = bytearray(store.get(key))
    data[400] ^= 1
    del store.objects[key]
    store.put(key, bytes(data))
    found = cut(catalog, LINEAGE, GtidSet.parse(f"{UUID_A}:10-65"))
    assert found is not None
    assert found.binlog == name(5)
    assert found.gtid_set == f"{UUID_A}:10-59"


# Another server with the same ids

ROWS_FLAGS, RELAXED = 6, 0x04
"""Where a rows event has its flags; what a node that applies sets there."""


def node(
    first: int,
    count: int,
    *,
    table: int,
    time: int = NOW,
    relaxed: bool = False,
    other: int = 0,
    before: int = 0,
    hole: int = 0,
    own: str = "",
) -> BinlogWriter:
    """Transactions of rows, as one node writes them: ids of tables and flags are its own.

    `other`: this number has another value in its row. `hole`: this one it does not have. `own`: it
    has written this to itself, under a number that each node has: 0-s-1.
    """
    made = BinlogWriter(server_version="10.11.8-MariaDB", timestamp=time)
    made.gtid_list(MariadbGtidList({(7, made.server_id): before} if before else {}))
    if own:
        made.mariadb_transaction([statement(f"insert {own}"), XID], gtid=(0, 1))
    for number in range(first, first + count):
        if number == hole:
            continue
        kind, body = rows(EventType.WRITE_ROWS_V1, table, 1, value=b"%09d" % number)
        if number == other:
            body = body.replace(b"%09d" % number, b"other    ")
        if relaxed:
            at = ROWS_FLAGS
            body = body[:at] + bytes([body[at] | RELAXED]) + body[at + 1 :]
        events = [table_map(table, "orders"), (kind, body), (EventType.XID, bytes([number] * 8))]
        made.mariadb_transaction(events, gtid=(7, number))
    made.rotate(str(name(2)))
    return made


def has_end(
    catalog: Catalog, there: Source, end: int, newest: int, gtids: str = f"7-{SERVER}-20"
) -> bool:
    finder = there.finder(catalog, threading.Event())
    names = [name(number) for number in range(1, newest + 2)]
    place = documents.parent_of(LINEAGE.id, binlog=str(name(1)), offset=end, gtid_set=gtids)
    return finder.has_end(place, [one for one in names if one in there.known], name(newest))


OURS = node(1, 20, table=30)
LAST = OURS.transactions[-1].end


@pytest.mark.parametrize(
    ("theirs", "equal"),
    [
        ((node(1, 25, table=9, relaxed=True),), True),
        (
            (node(1, 10, table=9, relaxed=True), node(11, 12, table=9, relaxed=True, before=10)),
            True,
        ),
        ((node(1, 20, table=9), node(21, 3, table=9, before=20)), True),  # just before its newest
        ((node(1, 25, table=9, time=NOW + 1),), False),  # as after a RESET: the same, but later
        ((node(1, 25, table=9, other=20),), False),
        ((node(1, 25, table=9, other=15),), False),  # the last one alone is not enough
        ((node(1, 19, table=9),), False),
        ((node(1, 25, table=9, hole=15),), False),
        (  # all that differs is in the binlog before
            (node(1, 19, table=9, time=NOW + 1), node(20, 5, table=9, before=19)),
            False,
        ),
        ((node(21, 5, table=9, before=20),), False),  # it has purged all that could be compared
    ],
)
def test_the_end_of_a_history_at_another_node(
    store: MemoryStore, tmp_path: Path, theirs: tuple[BinlogWriter, ...], equal: bool
) -> None:
    """Equal GTIDs with equal rows and times prove it, wherever they are; GTIDs alone do not."""
    there = source(tmp_path, *theirs)
    catalog = archive(store, OURS, node(21, 1, table=30, before=20))
    assert has_end(catalog, there, LAST, len(theirs)) is equal


@pytest.mark.parametrize(
    ("theirs", "equal"),
    [
        ((node(1, 25, table=9, own="one"),), True),
        ((node(1, 25, table=9, own="two"),), False),
        ((node(1, 20, table=9), node(21, 3, table=9, before=20, own="two")), False),
        ((node(1, 25, table=9),), False),
        ((node(12, 13, table=9, before=11),), False),  # purged: it may have had another one
    ],
)
def test_each_domain_and_server_is_compared(
    store: MemoryStore, tmp_path: Path, theirs: tuple[BinlogWriter, ...], equal: bool
) -> None:
    """What a node writes without the cluster has numbers that another node may have, too."""
    ours = node(1, 20, table=30, own="one")
    catalog = archive(store, ours, node(21, 1, table=30, before=20))
    end = ours.transactions[-1].end
    there = source(tmp_path, *theirs)
    assert has_end(catalog, there, end, len(theirs), f"0-{SERVER}-1,7-{SERVER}-20") is equal


def test_what_is_not_in_the_bucket_is_not_compared_yet(store: MemoryStore, tmp_path: Path) -> None:
    """The spool may have it: it is waited for, and no unknown join is recorded meanwhile."""
    there = source(tmp_path, node(1, 25, table=9))
    for size in (LAST - 1, 0):
        store.objects.clear()
        catalog = archive(store, OURS, size=size)
        with pytest.raises(SourceError, match="once all of them are there") as caught:
            has_end(catalog, there, LAST, 1)
        assert caught.value.transient


def test_only_the_last_hundred_are_compared(store: MemoryStore, tmp_path: Path) -> None:
    """Memory does not grow with the binlog."""
    long, theirs = node(1, 250, table=30), node(1, 250, table=9, other=100)
    catalog = archive(store, long, node(251, 1, table=30, before=250))
    assert has_end(
        catalog, source(tmp_path, theirs), long.transactions[-1].end, 1, f"7-{SERVER}-250"
    )


WHOLE = bytes(binlog(1).data)
HEAD = 4 + 19 + 57
"""Somewhere in the format event, behind the time of its header."""


@pytest.mark.parametrize(
    ("received", "there", "why"),
    [
        (WHOLE, WHOLE, ""),
        (WHOLE[:HEAD], WHOLE[:HEAD], ""),
        (WHOLE[:HEAD], WHOLE, ""),
        (WHOLE, WHOLE[:HEAD], f"equal up to {HEAD}: its own ends there"),
        (WHOLE, b"", "equal up to 0: its own ends there"),
        (WHOLE, bytes(binlog(1, time=NOW + 1).data), "equal up to 4: its own has other bytes"),
        (WHOLE, bytes(binlog(1, forked_at=14).data), "its own has other bytes"),
        (WHOLE, bytes(binlog(1, gtids=False).data), "its own has other bytes"),
        (WHOLE, WHOLE[:-1] + b"?", f"equal up to {len(WHOLE) - 1}: its own has other bytes"),
    ],
)
def test_the_beginning_of_another_server(received: bytes, there: bytes, why: str) -> None:
    """Every byte that came is compared; that the server has more by now says nothing."""
    found = another_beginning(name(1), received, there)
    assert why in found
    assert bool(why) == bool(found)
