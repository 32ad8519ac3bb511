"""A MariaDB replica begins behind the place of its GTIDs, whatever the numbers after it."""

import struct
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import RecoveryError, StoreError
from binlog2s3.replication.feed import NotServedError
from binlog2s3.replication.protocol import DumpByPosition
from binlog2s3.serve.directory import of_server
from binlog2s3.serve.history import ArchiveHistory
from binlog2s3.serve.model import Beginning
from binlog2s3.workers import Workers
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import BEAT, ID, LINEAGE, NAME, TIME, like, parent_of
from tests.got import Got
from tests.snapshots import LAYOUT, MARIADB, Bucket, written
from tests.unit.serve.test_dump import OTHER_ID, everything, history_of, sending
from tests.waiting import wait_until

VERSION = "11.4.2-MariaDB-log"
NAMES = [NAME, NAME.next(), NAME.next().next()]
FIRST, LOWER, LAST = (
    [f"0-1-{n}" for n in range(1, 6)],
    ["0-9-3", "1-1-1"],
    ["0-1-6", "0-1-7", "1-1-2"],
)
EVERYTHING = [*FIRST, *LOWER, *LAST]


def binlog_of(
    before: str, gtids: Sequence[str], *, newest: str = "", rotate: str = ""
) -> BinlogWriter:
    """A binlog with these transactions; `newest`: the GTID that its list has last."""
    binlog = BinlogWriter(server_version=VERSION)
    binlog.event(EventType.GTID_LIST, list_body(before, newest))
    for gtid in gtids:
        domain, server, number = map(int, gtid.split("-"))
        binlog.server_id = server
        binlog.mariadb_transaction([statement(f"INSERT {gtid}"), XID], gtid=(domain, number))
    if rotate:
        binlog.rotate(rotate)
    return binlog


def list_body(before: str, newest: str) -> bytes:
    """As the server writes it: the newest of a domain comes last."""
    gtids = sorted(
        (one for one in before.split(",") if one), key=lambda one: (one[0], one == newest)
    )
    body = struct.pack("<I", len(gtids))
    for gtid in gtids:
        body += struct.pack("<IIQ", *map(int, gtid.split("-")))
    return body


def three() -> list[BinlogWriter]:
    """Two whole binlogs and one that grows; the second begins with a lower number."""
    return [
        binlog_of("", FIRST, rotate=str(NAMES[1])),
        binlog_of("0-1-5", LOWER, rotate=str(NAMES[2])),
        binlog_of("0-1-5,0-9-3,1-1-1", LAST, newest="0-9-3"),
    ]


def streamed(binlogs: Sequence[BinlogWriter], archived: int) -> Bucket:
    """A bucket that has the first ones archived, and the others as chunks."""
    bucket = Bucket(replace(MARIADB, first_binlog=NAME))
    bucket.beat(replace(BEAT, lineage=ID, durable=None, covered_until=None))
    for number, (name, binlog) in enumerate(zip(NAMES, binlogs, strict=False)):
        if number < archived:
            bucket.archive(binlog.data, name)
        else:
            bucket.chunks(binlog.data, 0, len(binlog.data), name=name)
    return bucket


def dump(state: str) -> DumpByPosition:
    return DumpByPosition(
        server_id=9, uuid="", name="", position=4, state=MariadbGtidList.parse(state),
        heartbeat=0.0, heartbeat_v2=False, ends=True, registered=True,
    )  # fmt: skip


def gtids_in(got: Got) -> list[str]:
    found = []
    for event in got.of(EventType.MARIADB_GTID):
        (server_id,) = struct.unpack_from("<I", event, 5)
        number, domain = struct.unpack_from("<QI", event, 19)
        found.append(f"{domain}-{server_id}-{number}")
    return found


def state_of(gtids: Sequence[str]) -> str:
    return ",".join({one.partition("-")[0]: one for one in gtids}.values())


@pytest.mark.parametrize("archived", [0, 1, 2, 3])
@pytest.mark.parametrize("upto", range(len(EVERYTHING) + 1))
def test_from_every_place(archived: int, upto: int) -> None:
    """What follows, in archived binlogs, in those that were followed, and in the one that grows."""
    bucket = streamed(three(), archived)
    assert gtids_in(everything(bucket, dump(state_of(EVERYTHING[:upto])))) == EVERYTHING[upto:]


def test_domains_at_different_places() -> None:
    """Parallel replicas: what a domain has is left out, and the order stays."""
    bucket = streamed(three(), 2)
    assert gtids_in(everything(bucket, dump("0-1-4,1-1-2"))) == ["0-1-5", "0-9-3", "0-1-6", "0-1-7"]
    assert gtids_in(everything(bucket, dump("0-1-7,1-1-1"))) == ["1-1-2"]
    assert gtids_in(everything(bucket, dump("0-9-3"))) == ["1-1-1", *LAST]


def test_all_servers_of_a_domain() -> None:
    """gtid_binlog_state: the later one is the place."""
    bucket = streamed(three(), 2)
    assert gtids_in(everything(bucket, dump("0-1-5,0-9-3,1-1-1"))) == LAST


@pytest.mark.parametrize("archived", [1, 3])
@pytest.mark.parametrize("state", ["0-9-2", "0-5-3", "0-1-900"])
def test_what_is_not_there(archived: int, state: str) -> None:
    """Error 1236, also for a number between those that are there."""
    with pytest.raises(NotServedError, match="not in this archive") as caught:
        everything(streamed(three(), archived), dump(state))
    assert caught.value.code == 1236


@pytest.mark.parametrize("archived", [0, 2, 3])
def test_what_was_used_twice(archived: int) -> None:
    """Error 1236 that names both places; a GTID after them is a place again."""
    binlogs = three()[:2]
    again = [*LAST, "0-1-3", "0-1-8"]
    binlogs.append(binlog_of("0-1-5,0-9-3,1-1-1", again, newest="0-9-3"))
    bucket = streamed(binlogs, archived)
    with pytest.raises(NotServedError, match="at 2 places") as caught:
        everything(bucket, dump("0-1-3"))
    assert str(NAMES[0]) in str(caught.value)
    assert str(NAMES[2]) in str(caught.value)
    assert gtids_in(everything(bucket, dump("0-1-8,1-1-2"))) == []
    assert gtids_in(everything(bucket, dump("0-1-7,1-1-2"))) == ["0-1-3", "0-1-8"]


def test_what_comes_before_the_archive() -> None:
    """The binlog's own list knows which of two servers was the last one."""
    bucket = Bucket(replace(MARIADB, first_binlog=NAME))
    bucket.beat(replace(BEAT, lineage=ID, durable=None, covered_until=None))
    bucket.archive(binlog_of("0-1-5,0-9-3", LAST, newest="0-9-3").data)
    assert gtids_in(everything(bucket, dump("0-9-3"))) == LAST
    with pytest.raises(NotServedError, match="missing GTIDs"):
        everything(bucket, dump("0-1-5"))


def test_a_replica_that_is_a_little_ahead() -> None:
    """It waits until the archive has its GTID, and gets what comes after it."""
    binlogs = three()
    bucket = streamed(binlogs[:2], 2)
    got = Got()
    waiting = replace(dump("0-1-6,1-1-1"), ends=False)
    with history_of(bucket) as history, sending(history, waiting, got) as raised:
        data = binlogs[2].data
        bucket.chunks(data, 0, len(data), name=NAMES[2])
        wait_until(lambda: gtids_in(got) == LAST[1:] or raised, what="the rest")
        assert not raised


class Searched:
    """A question whose binlog is being searched, until it is `free`."""

    def __init__(self, bucket: Bucket, history: ArchiveHistory, state: Gtids) -> None:
        self.begun, self.free = threading.Event(), threading.Event()
        self.found: list[Beginning] = []

        def hold(key: str, _: int) -> None:
            if str(NAMES[1]) in key and threading.current_thread().name in ("asks", "ahead-0"):
                self.begun.set()
                self.free.wait(60)

        def ask() -> None:
            self.found.append(history.first_for(state))

        bucket.before_open = hold
        self._thread = threading.Thread(target=ask, name="asks", daemon=True)
        self._thread.start()
        wait_until(self.begun.is_set, what="the binlog is searched")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free.set()
        self._thread.join(60)


@pytest.mark.parametrize(("binlogs", "archived"), [(2, 1), (2, 2), (3, 0), (3, 1), (3, 3)])
def test_a_search_for_a_gtid_blocks_nobody(binlogs: int, archived: int) -> None:
    """Two servers of one domain wrote in the binlog, so it is read to find a place in it."""
    bucket = streamed(three()[:binlogs], archived)
    with history_of(bucket) as history:
        wait_until(lambda: len(history.view().binlogs) == binlogs, what="all is there")
        wait_until(lambda: history.newest_position()[0][1] > 4 or archived == binlogs, what="read")
        answered = threading.Event()

        def ask() -> None:
            assert history.first_for(MariadbGtidList.parse("0-1-4")).binlog.name == NAMES[0]
            assert history.elsewhere(NAMES[1], 4, is_here=True) == []
            answered.set()

        with Searched(bucket, history, MariadbGtidList.parse("0-9-3")) as search:
            other = threading.Thread(target=ask, daemon=True)
            other.start()
            wait_until(answered.is_set, what="another client is answered")
            assert not search.found
        assert [one.binlog.name for one in search.found] == [NAMES[1]]


def test_a_binlog_that_ends_while_it_is_searched() -> None:
    """What it got meanwhile is not passed over."""
    more = binlog_of("0-1-5", [*LOWER, "1-1-2"], rotate=str(NAMES[2]))
    last = binlog_of("0-1-5,0-9-3,1-1-2", ["1-1-3"], newest="0-9-3")
    upto = more.transactions[1].end
    bucket = streamed([three()[0]], 1)
    bucket.chunks(more.data, 0, upto, name=NAMES[1])
    with history_of(bucket) as history:
        wait_until(lambda: history.view().whole == upto, what="all is there")
        state = MariadbGtidList.parse("0-9-3,1-1-1")
        with Searched(bucket, history, state) as search:
            bucket.chunks(more.data, upto, len(more.data), name=NAMES[1])
            bucket.chunks(last.data, 0, len(last.data), name=NAMES[2])

            def has_gone_on() -> bool:
                history.look(0.05)
                view = history.view()
                return len(view.binlogs) == 3 and view.whole == last.transactions[-1].end

            wait_until(has_gone_on, what="the next one is followed")
        assert [one.binlog.name for one in search.found] == [NAMES[1]]


def test_a_search_for_transactions_without_gtids_blocks_nobody() -> None:
    """A binlog that has both is read, to see which come last of those that a replica has."""
    bucket = Bucket(replace(LINEAGE, first_binlog=NAME))
    bucket.beat(replace(BEAT, lineage=ID))
    mixed = written(1, first=4, rotate=False)
    mixed.transaction([statement("BEGIN"), statement("INSERT"), XID])
    mixed.transaction([statement("BEGIN"), XID], gtid=(UUID_A, "", 5))
    mixed.rotate(str(NAMES[2]))
    binlogs = (written(3), mixed, written(2, first=6))
    for name, binlog in zip(NAMES, binlogs, strict=True):
        bucket.archive(binlog.data, name)
    with history_of(bucket) as history:
        answered = threading.Event()

        def ask() -> None:
            assert history.first_for(GtidSet.parse(f"{UUID_A}:1-3")).binlog.name == NAMES[1]
            answered.set()

        with Searched(bucket, history, GtidSet.parse(f"{UUID_A}:1-5")) as search:
            threading.Thread(target=ask, daemon=True).start()
            wait_until(answered.is_set, what="another client is answered")
            assert not search.found
        assert [one.binlog.name for one in search.found] == [NAMES[2]]


def test_a_question_for_which_no_thread_starts() -> None:
    """As if the store did not answer: the same one is answered later."""
    bucket = streamed(three(), 3)
    history = ArchiveHistory(Catalog(bucket, LAYOUT), Workers(4), lineage=None, poll_seconds=0.01)
    history.start()
    with closing(history):
        before = threading.stack_size(1 << 46)  # more than there is
        try:
            with pytest.raises(StoreError, match="can't start new thread") as caught:
                history.first_for(MariadbGtidList.parse("0-1-4"))
        finally:
            threading.stack_size(before)
        assert caught.value.transient
        assert history.first_for(MariadbGtidList.parse("0-1-4")).binlog.name == NAMES[0]


@pytest.mark.parametrize("upto", range(7))
def test_what_a_fail_over_repeats(upto: int) -> None:
    """The new primary's first binlog has the old one's last two again: they are sent once."""
    old, new = ["0-1-1", "0-1-5", "0-2-2", "0-1-6"], ["0-3-4", "0-3-5"]
    bucket = Bucket(replace(MARIADB, first_binlog=NAME))
    first = binlog_of("", old)
    bucket.archive(first.data)
    parent = parent_of(
        ID, binlog=str(NAME), offset=len(first.data), gtid_set="0-1-6,0-2-2", join="exact"
    )
    lineage = like(
        MARIADB, id=OTHER_ID, server_uuid=OTHER_ID[17:25], first_binlog=BinlogName("mysql-bin", 7),
        gtid_set="0-1-5", parent=parent,
    )  # fmt: skip
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    second = binlog_of("0-1-5", ["0-2-2", "0-1-6", *new])
    reading = BinlogReading(BinlogName("mysql-bin", 7))
    reading.feed(memoryview(bytes(second.data)))
    bucket.put(LAYOUT.binlog(OTHER_ID, BinlogName("mysql-bin", 7)), bytes(second.data))
    entry = reading.entry(TIME).to_json()
    bucket.put(LAYOUT.entry(OTHER_ID, BinlogName("mysql-bin", 7)), entry)
    bucket.beat(replace(BEAT, lineage=OTHER_ID, generation=BEAT.generation + 1))
    all_of_it = [*old, *new]
    got = everything(bucket, dump(state_of(all_of_it[:upto])))
    assert gtids_in(got) == all_of_it[upto:]


@pytest.mark.parametrize("archived", [True, False])
def test_what_a_fail_over_lost(archived: bool) -> None:
    """A replica that has it is refused, also if it has all of it; one that does not goes on."""
    common, lost, new = FIRST[:3], FIRST[3:], ["0-2-4", "0-2-5", "0-2-6"]
    bucket = Bucket(replace(MARIADB, first_binlog=NAME))
    bucket.archive(binlog_of("", [*common, *lost]).data)
    cut = len(binlog_of("", common).data)
    parent = parent_of(ID, binlog=str(NAME), offset=cut, gtid_set="0-1-3", join="exact")
    bucket.lineage = like(
        MARIADB, id=OTHER_ID, server_uuid=OTHER_ID[17:25], first_binlog=NAME, gtid_set="",
        parent=parent,
    )  # fmt: skip
    bucket.put(LAYOUT.lineage(OTHER_ID), bucket.lineage.to_json())
    second = binlog_of("", [*common, *new], rotate=str(NAMES[1]) if archived else "")
    if archived:
        bucket.archive(second.data)
    else:
        bucket.chunks(second.data, 0, len(second.data))
    bucket.beat(replace(BEAT, lineage=OTHER_ID, generation=8, durable=None, covered_until=None))
    for gtid in reversed(lost):
        with pytest.raises(NotServedError, match=f"dead branch.*{gtid}"):
            everything(bucket, dump(gtid))
    line = [*common, *new]
    for upto in range(len(line) + 1):
        assert gtids_in(everything(bucket, dump(state_of(line[:upto])))) == line[upto:]


def put_back(*, archived: bool, pruned: bool) -> Bucket:
    """Two lineages of one server: the second one's first binlog has three transactions of both."""
    common, dead, ours = FIRST[:3], FIRST[3:], ["0-1-4", "1-1-1", "0-1-5"]
    cut = len(binlog_of("", common).data)
    bucket = Bucket(replace(MARIADB, first_binlog=NAME))
    if not pruned:
        bucket.archive(binlog_of("", [*common, *dead]).data)
    parent = parent_of(ID, binlog=str(NAME), offset=cut, gtid_set="0-1-3", join="exact")
    bucket.lineage = like(MARIADB, id=OTHER_ID, first_binlog=NAME, gtid_set="", parent=parent)
    bucket.put(LAYOUT.lineage(OTHER_ID), bucket.lineage.to_json())
    second = binlog_of("", [*common, *ours], rotate=str(NAMES[1]) if archived else "")
    if archived:
        bucket.archive(second.data)
    else:
        bucket.chunks(second.data, 0, len(second.data))
    bucket.beat(replace(BEAT, lineage=OTHER_ID, generation=8, durable=None, covered_until=None))
    return bucket


@pytest.mark.parametrize("archived", [True, False])
@pytest.mark.parametrize("pruned", [True, False])
def test_from_every_place_of_a_server_that_was_put_back(archived: bool, pruned: bool) -> None:
    """What both lineages have is sent once, also if only the second one still has it.

    A GTID that the dead branch gave to another transaction does not tell which one the replica has.
    """
    line = [*FIRST[:3], "0-1-4", "1-1-1", "0-1-5"]
    bucket = put_back(archived=archived, pruned=pruned)
    for upto in range(len(line) + 1):
        state = dump(state_of(line[:upto]))
        if upto > 3 and not pruned:
            with pytest.raises(NotServedError, match="two different histories"):
                everything(bucket, state)
        else:
            assert gtids_in(everything(bucket, state)) == line[upto:], upto


@pytest.mark.parametrize("upto", range(len(EVERYTHING) + 1))
def test_a_directory(tmp_path: Path, upto: int) -> None:
    """`serve --binlog-dir` asks the same."""
    for name, binlog in zip(NAMES, three(), strict=True):
        (tmp_path / str(name)).write_bytes(binlog.data)
    served = of_server(tmp_path, threading.Event())
    begins = served.first_for(MariadbGtidList.parse(state_of(EVERYTHING[:upto])))
    first = [one.binlog_id for one in served.view().binlogs].index(begins.binlog.binlog_id)
    sent = []
    for gtid in [*FIRST, *LOWER, *LAST][[0, 5, 7][first] :]:
        if begins.had.has(gtid):
            begins.had.passed(gtid)
        else:
            sent.append(gtid)
    assert sent == EVERYTHING[upto:]


@pytest.mark.parametrize("state", ["0-9-2", "0-1-900", "0-1-3"])
def test_a_directory_that_does_not_tell(tmp_path: Path, state: str) -> None:
    """What is not in its files, or is twice, is an error."""
    binlogs = [*three()[:2], binlog_of("0-1-5,0-9-3", [*LAST, "0-1-3"], newest="0-9-3")]
    for name, binlog in zip(NAMES, binlogs, strict=True):
        (tmp_path / str(name)).write_bytes(binlog.data)
    with pytest.raises(RecoveryError, match=r"not in this archive|places"):
        of_server(tmp_path, threading.Event()).first_for(MariadbGtidList.parse(state))
