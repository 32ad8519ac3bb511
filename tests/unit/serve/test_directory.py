"""What `serve --dir` and `--binlog-dir` send, and which directories they refuse."""

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.export import to_directory
from binlog2s3.recover.manifest import MANIFEST, Manifest
from binlog2s3.recover.model import Plan, PlanPiece
from binlog2s3.replication.feed import NotServedError
from binlog2s3.replication.protocol import Dump
from binlog2s3.serve.directory import Directory, of_server, recovered
from lab.pitr_examples import ABOUT, PLAN
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import ID, NAME
from tests.got import Got
from tests.snapshots import checked_of, piece_of, scanned, written
from tests.unit.serve.test_dump import OTHER_ID, at, by_gtid, sending
from tests.unit.serve.test_places import binlog_of, dump, gtids_in
from tests.waiting import wait_until

EARLIER_ID = "20240101T000000Z-9d11fa47-0001"
"""Of the later lineage: a replica that took over may have the older first binlog."""
NUMBER = slice(19 + 1 + 16, 19 + 1 + 16 + 8)
NEVER = threading.Event()


def plan_of(pieces: Sequence[PlanPiece], before: Gtids | None) -> Plan:
    flavour = "mariadb" if isinstance(pieces[0].gtids, MariadbGtidList) else "mysql"
    return replace(
        PLAN, flavour=flavour, lineage=pieces[-1].lineage, pieces=tuple(pieces), before=before,
        adds=None,
    )  # fmt: skip


def exported(
    place: Path, pieces: Sequence[tuple[PlanPiece, BinlogWriter]], before: Gtids | None
) -> Path:
    """What `pitr --output-dir` writes of these pieces."""
    plan = plan_of([piece for piece, _ in pieces], before)

    stream = ((piece, checked_of(binlog, piece)) for piece, binlog in pieces)
    to_directory(plan, ABOUT, stream, place, before=before)
    return place


def two_lineages(place: Path, *, first: int = 3, without: Sequence[int] = ()) -> Path:
    """Transactions 4 to 12, and 13 to 17 of a lineage with a smaller id."""
    old, new = written(12), written(5, first=13)
    pieces = [
        (piece_of(scanned(old.data), first, 12, without=without), old),
        (piece_of(scanned(new.data), 0, 5, lineage=EARLIER_ID), new),
    ]
    return exported(place, pieces, GtidSet.parse(f"{UUID_A}:1-{first}"))


def sent(served: Directory, asked: Dump) -> Got:
    """All that a client is sent that asks for what there is."""
    got = Got()
    with sending(served, replace(asked, ends=True), got) as raised:
        wait_until(lambda: got.finished or raised, what="the end")
        if raised:
            raise raised[0]
    return got


def numbers(got: Got) -> list[int]:
    """Of the transactions, in the order in which they came."""
    return [int.from_bytes(one[NUMBER], "little") for one in got.of(EventType.GTID)]


# What is sent


def test_the_order_is_that_of_the_plan(tmp_path: Path) -> None:
    """Not that of the lineages' ids, which prove nothing."""
    served = recovered(two_lineages(tmp_path / "d"), NEVER)
    assert [one.lineage.id for one in served.view().binlogs] == [ID, EARLIER_ID]
    for upto in range(3, 18):
        got = sent(served, by_gtid(f"{UUID_A}:1-{upto}"))
        assert numbers(got) == list(range(upto + 1, 18))
    assert numbers(sent(served, by_gtid(f"{UUID_A}:1-3:7:14"))) == [
        n for n in range(4, 18) if n not in (7, 14)
    ]


@pytest.mark.parametrize("have", ["", f"{UUID_A}:1-2", f"{UUID_A}:1-2:4-17"])
def test_what_comes_before_the_files_must_be_there(tmp_path: Path, have: str) -> None:
    """A file that begins in the middle of its binlog does not say it, the manifest does."""
    served = recovered(two_lineages(tmp_path / "d"), NEVER)
    with pytest.raises(NotServedError, match=r"missing GTIDs .*[:-]3") as caught:
        sent(served, by_gtid(have))
    assert caught.value.code == 1236


def test_by_position(tmp_path: Path) -> None:
    """Positions are those of the server's binlog, also in a file that begins in its middle."""
    binlog = written(12)
    ends = [one.end for one in scanned(binlog.data)]
    served = recovered(two_lineages(tmp_path / "d", without=[5]), NEVER)
    name = f"{ID}.{NAME}"
    for upto in (3, 4, 6, 9, 11):
        got = sent(served, at(name, ends[upto - 1]))
        assert numbers(got) == [n for n in range(upto + 1, 18) if n != 6]
    assert numbers(sent(served, at(name, ends[11]))) == list(range(13, 18))
    assert numbers(sent(served, at(f"{EARLIER_ID}.{NAME}"))) == list(range(13, 18))
    with pytest.raises(NotServedError, match=f"is here from byte {ends[2]} on"):
        sent(served, at(name))
    with pytest.raises(NotServedError, match="is here from byte"):
        sent(served, at(name, ends[1]))
    assert numbers(sent(served, at(name, registered=False)))[:3] == [4, 5, 7]
    for inside in (ends[3] + 1, ends[4] + 1, ends[11] + 1):
        with pytest.raises(NotServedError, match=r"not between two events|has no byte"):
            sent(served, at(name, inside))


def test_without_gtids(tmp_path: Path) -> None:
    """A replica that asks by GTIDs would miss what has none."""
    binlog = BinlogWriter()
    begin = len(binlog.data)
    binlog.plain_transaction([statement("BEGIN"), statement("INSERT 1"), XID])
    binlog.plain_transaction([statement("BEGIN"), statement("INSERT 2"), XID])
    (first, _) = scanned(binlog.data)
    piece = PlanPiece(
        lineage=ID, binlog=NAME, begin=first.begin, end=len(binlog.data), transactions=2,
        gtids=GtidSet(),
    )  # fmt: skip
    assert begin == first.begin
    served = recovered(exported(tmp_path / "d", [(piece, binlog)], GtidSet()), NEVER)
    assert served.keeps_gtids is False
    assert len(sent(served, at(NAME, first.begin)).of(EventType.QUERY)) >= 2
    with pytest.raises(NotServedError, match="ask by file and position"):
        sent(served, by_gtid(f"{UUID_A}:1"))


def test_a_history_that_does_not_tell_what_comes_before(tmp_path: Path) -> None:
    """By GTIDs it is refused, by position it is served."""
    binlog = written(3)
    one = piece_of(scanned(binlog.data), 1, 3)
    served = recovered(exported(tmp_path / "d", [(one, binlog)], None), NEVER)
    with pytest.raises(NotServedError, match="nothing tells which GTIDs were executed before"):
        sent(served, by_gtid(f"{UUID_A}:1"))
    assert numbers(sent(served, at(NAME, one.begin))) == [2, 3]


def test_mariadb_begins_behind_its_gtid(tmp_path: Path) -> None:
    """The base backup's, or one in the files; numbers that go back are no order."""
    gtids = ["0-1-4", "0-1-5", "0-9-2", "0-1-6"]
    first, second = binlog_of("", gtids), binlog_of("", ["0-2-7", "1-1-1"])
    pieces = [
        (piece_of(scanned(first.data), 0, 4), first),
        (piece_of(scanned(second.data), 0, 2, lineage=EARLIER_ID), second),
    ]
    before = MariadbGtidList.parse("0-7-3")
    served = recovered(exported(tmp_path / "d", pieces, before), NEVER)
    everything = ["0-7-3", *gtids, "0-2-7", "1-1-1"]
    for upto in range(1, len(everything)):
        state = everything[upto - 1]
        assert gtids_in(sent(served, dump(state))) == everything[upto:]
    for state in ("0-7-2", "0-7-6", "0-1-3", "0-1-900", "1-1-1"):
        with pytest.raises(NotServedError, match=r"not in this archive|missing GTIDs"):
            sent(served, dump(state))


# A client that has everything


@dataclass
class Counting(Got):
    """A client that counts how often it is looked after."""

    looks: int = 0

    def has_left(self) -> bool:
        self.looks += 1
        return self.left


@pytest.mark.parametrize("kind", ["recovered", "of_server"])
def test_a_client_that_has_everything_costs_nothing(tmp_path: Path, kind: str) -> None:
    """It gets heartbeats, and between two of them it is looked after a few times."""
    if kind == "recovered":
        served = recovered(two_lineages(tmp_path / "d"), NEVER)
    else:
        served = of_server(own_files(tmp_path / "d"), NEVER)
    got = Counting()
    asked = by_gtid(f"{UUID_A}:1-17", heartbeat=0.5)
    with sending(served, asked, got) as raised:
        wait_until(lambda: len(got.of(EventType.HEARTBEAT)) >= 1 or raised, what="a heartbeat")
        begun, beats = got.looks, len(got.of(EventType.HEARTBEAT))
        wait_until(lambda: len(got.of(EventType.HEARTBEAT)) >= beats + 3 or raised, what="more")
        looks = got.looks - begun
    assert not raised
    assert looks <= 30


def test_a_wait_ends_with_the_process(tmp_path: Path) -> None:
    """However long it would be."""
    stop = threading.Event()
    served = recovered(two_lineages(tmp_path / "d"), stop)
    waiting = threading.Thread(target=served.wait, args=(1, 3600.0), daemon=True)
    waiting.start()
    stop.set()
    waiting.join(60)
    assert not waiting.is_alive()


# What is refused


def refused(served: Callable[[Path, threading.Event], Directory], place: Path, words: str) -> str:
    """Exit 8, a hint, a printable line with these words; the hint."""
    with pytest.raises(RecoveryError, match=words) as caught:
        served(place, NEVER)
    assert caught.value.exit_code == 8
    assert str(caught.value).isprintable()
    return caught.value.hint


def test_a_directory_without_a_manifest(tmp_path: Path) -> None:
    """What a run left that was stopped, an empty one, one of a server: each with what to do."""
    place = two_lineages(tmp_path / "d")
    (place / MANIFEST).unlink()
    for one in (place, own_files(tmp_path / "e"), tmp_path):
        hint = refused(recovered, one, f"is not complete: it has no {MANIFEST}")
        assert "pitr --output-dir" in hint
        assert "--binlog-dir" in hint


def test_files_that_are_not_in_the_manifest_are_not_served(tmp_path: Path) -> None:
    """Whatever their names are."""
    place = two_lineages(tmp_path / "d")
    shutil.copy(place / ID / str(NAME), place / ID / str(NAME.next()))
    shutil.copytree(place / ID, place / OTHER_ID)
    assert len(recovered(place, NEVER).view().binlogs) == 2


def lacking(file: Path) -> None:
    file.unlink()


def shorter(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def longer(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b"x")


def other(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def linked(file: Path) -> None:
    file.rename(file.with_name("aside"))
    file.symlink_to("aside")


def linked_folder(file: Path) -> None:
    folder = file.parent
    folder.rename(folder.with_name("aside"))
    folder.symlink_to("aside")


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lacking, "no such file"),
        (shorter, "bytes, manifest.json says"),
        (longer, "bytes, manifest.json says"),
        (other, "checksum differs"),
        (linked, "cannot be read"),
        (linked_folder, "cannot be read"),
        (piped, "no regular file"),
        (a_folder, "no regular file"),
    ],
)
@pytest.mark.parametrize("which", [ID, EARLIER_ID])
def test_a_file_that_is_not_as_it_was_written(
    tmp_path: Path, harm: Callable[[Path], None], words: str, which: str
) -> None:
    """Before anything is served, and without waiting for a pipe."""
    place = two_lineages(tmp_path / "d")
    harm(place / which / str(NAME))
    refused(recovered, place, words)


@pytest.mark.parametrize("harm", [linked, piped, a_folder])
def test_a_manifest_that_is_no_file(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    """Not followed, not waited for."""
    place = two_lineages(tmp_path / "d")
    harm(place / MANIFEST)
    refused(recovered, place, MANIFEST)


@pytest.mark.parametrize("data", [b"{}", b" " * (Manifest.MOST + 9)])
def test_a_manifest_that_is_none(tmp_path: Path, data: bytes) -> None:
    """Of something else, or too large to be read; more: tests/unit/recover/test_manifest.py."""
    place = two_lineages(tmp_path / "d")
    (place / MANIFEST).write_bytes(data)
    assert "pitr --output-dir" in refused(recovered, place, MANIFEST)


def test_a_file_that_changes_while_it_is_served(tmp_path: Path) -> None:
    """What is sent is what was checked, or it is an error."""
    place = two_lineages(tmp_path / "d")
    served = recovered(place, NEVER)
    other(place / EARLIER_ID / str(NAME))
    with pytest.raises(RecoveryError, match="has changed since it was opened"):
        sent(served, by_gtid(f"{UUID_A}:1-3"))


def test_nothing_to_serve(tmp_path: Path) -> None:
    """A recovery that had nothing to write."""
    plan = replace(plan_of([piece_of(scanned(written(1).data), 0, 1)], None), pieces=())
    to_directory(plan, ABOUT, iter(()), tmp_path / "d", before=GtidSet())
    refused(recovered, tmp_path / "d", "there was nothing to recover")


def test_the_check_ends_with_the_process(tmp_path: Path) -> None:
    """A signal while files are read."""
    stop = threading.Event()
    stop.set()
    with pytest.raises(RecoveryError, match="stopped before all"):
        recovered(two_lineages(tmp_path / "d"), stop)


# A server's own files


def own_files(place: Path, count: int = 3) -> Path:
    """Binlogs of five transactions each, and what else is in a data directory."""
    place.mkdir()
    name = NAME
    for number in range(count):
        binlog = written(5, first=1 + 5 * number, rotate=number + 1 < count)
        (place / str(name)).write_bytes(binlog.data)
        name = name.next()
    (place / "aria_log.00000001").write_bytes(b"\0" * 99)
    (place / "mysql-bin.index").write_text("./mysql-bin.000041\n")
    (place / "mysql").mkdir()
    return place


def test_a_servers_own_files(tmp_path: Path) -> None:
    """By GTIDs and by position."""
    served = of_server(own_files(tmp_path / "d"), NEVER)
    for upto in (0, 3, 5, 12, 15):
        have = f"{UUID_A}:1-{upto}" if upto else ""
        assert numbers(sent(served, by_gtid(have))) == list(range(upto + 1, 16))
    assert numbers(sent(served, at(NAME.next()))) == list(range(6, 16))


def test_a_missing_file_of_a_server(tmp_path: Path) -> None:
    """What follows it would be sent behind a gap."""
    place = own_files(tmp_path / "d")
    (place / str(NAME.next())).unlink()
    refused(of_server, place, f"has {NAME} and {NAME.next().next()}, and not what is between")


def test_two_servers_in_one_directory(tmp_path: Path) -> None:
    """Or its relay logs beside its binlogs."""
    place = own_files(tmp_path / "d")
    shutil.copy(place / str(NAME), place / "relay-bin.000001")
    assert "relay logs" in refused(of_server, place, "mysql-bin and relay-bin")


def test_a_directory_without_binlogs(tmp_path: Path) -> None:
    """What `pitr --output-dir` wrote is no server's."""
    for place in (tmp_path, two_lineages(tmp_path / "d")):
        assert "--dir" in refused(of_server, place, "no binlog in")


@pytest.mark.parametrize(
    ("first", "created", "said"), [(8, 0, "history is broken"), (6, 1, "without a binlog")]
)
def test_a_next_file_that_does_not_follow(
    tmp_path: Path, first: int, created: int, said: str
) -> None:
    """Of another time; or begun by a start, so the server went on without one: the dump ends."""
    place = own_files(tmp_path / "d")
    (place / str(NAME.next())).write_bytes(written(5, first=first, created=created).data)
    got = Got()
    with sending(of_server(place, NEVER), by_gtid(), got) as raised:
        wait_until(lambda: raised, what="an error")
    assert said in str(raised[0])
    assert numbers(got) == [1, 2, 3, 4, 5]


def test_a_file_that_was_copied_in_half(tmp_path: Path) -> None:
    """The last one may end within a transaction, of which nothing is sent; no other one may."""
    place = own_files(tmp_path / "d")
    shorter(place / str(NAME.next().next()))
    got = sent(of_server(place, NEVER), by_gtid())
    assert numbers(got) == list(range(1, 15))
    os.truncate(place / str(NAME.next()), 900)
    with pytest.raises(RecoveryError, match="is not complete"):
        sent(of_server(place, NEVER), by_gtid())


def test_a_damaged_file_of_a_server(tmp_path: Path) -> None:
    """Nothing of it is sent."""
    place = own_files(tmp_path / "d")
    data = bytearray((place / str(NAME.next())).read_bytes())
    data[len(data) // 2] ^= 1
    (place / str(NAME.next())).write_bytes(data)
    with pytest.raises(RecoveryError, match="is damaged"):
        sent(of_server(place, NEVER), by_gtid())
