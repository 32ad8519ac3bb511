"""What nothing else would miss if it were taken out: see tests/mutants."""

import gc
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from botocore.exceptions import ClientError

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.outside import DEFAULT
from binlog2s3.config.stream import MysqlConfig, SpoolLimits
from binlog2s3.errors import (
    ArchiveError,
    ElsewhereError,
    FloorError,
    ForkError,
    PreconditionError,
    SourceError,
    SpoolError,
    StoreError,
)
from binlog2s3.server.connection import Server, ServerBinlog, ServerFacts
from binlog2s3.server.dump import MOST_BYTES
from binlog2s3.server.mysqlbinlog import Child, Tool
from binlog2s3.store.requests import Download, Requests
from binlog2s3.store.s3 import Body, ObjectInfo, PartInfo, RetryPolicy, StoreConfig
from binlog2s3.stream.continuation import Begin, GoOn, KnownEnd, known_end_of, unservable
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.job import Action, Complete, CopyPart, PutEntry, PutWhole
from binlog2s3.stream.remote import sweep
from binlog2s3.stream.resume import Doubt, NextRun
from binlog2s3.stream.run import Event, Memory, Run, Runs, State
from binlog2s3.stream.spool import PROBE, Spool, SpoolRun
from binlog2s3.stream.start import Startup, find
from binlog2s3.stream.tail import Overlap, Tailer, Track, TrackState, overlap_of
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.waiting import Stop, delay
from binlog2s3.stream.writer import Writer
from tests.binlog_writer import NOW, UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.documents import BEAT
from tests.login import ROOT
from tests.memory_store import MemoryStore
from tests.process import Clock, Process, Shown
from tests.streamer import FIRST, HISTORY, LAYOUT, LINEAGE, Source, Streamer, World
from tests.unit.stream import builders
from tests.unit.stream.builders import spool_in
from tests.waiting import wait_until

KEY, ENTRY = LAYOUT.binlog(LINEAGE, FIRST), LAYOUT.entry(LINEAGE, FIRST)
CHUNKS = LAYOUT.chunks(LINEAGE, FIRST)
SECOND = FIRST.next()
RUN = replace(builders.RUN, binlog=str(FIRST))


# What is read


class Late(SpoolRun):
    """A run that goes on to the next file just when somebody looks for it."""

    def files(self) -> dict[BinlogName, Path]:
        """The binlogs there; what `rest` holds is written first, with the next file."""
        rest = self.directory / "rest"
        if rest.exists():
            with (self.directory / str(FIRST)).open("ab") as file:
                file.write(rest.read_bytes())
            rest.unlink()
            (self.directory / str(SECOND)).write_bytes(b"")
        return super().files()


def test_what_comes_while_the_next_file_appears_is_read(tmp_path: Path) -> None:
    """A file has ended only after it was read once more behind the next one's coming.

    Else its last events, whole as they are, would be left out and nothing would show it.
    """
    source = Source()
    source.write(10)
    begun = source.size(FIRST)
    source.write(10)
    source.rotate()
    (tmp_path / str(FIRST)).write_bytes(source.data(FIRST)[:begun])
    with closing(Tailer(Late(tmp_path, RUN), Grid(1000))) as tailer:
        assert tailer.pump() == 0
        assert tailer.pump() == begun
        (tmp_path / "rest").write_bytes(source.data(FIRST)[begun:])
        for _ in range(5):
            tailer.pump()
        (first, _) = tailer.take_new()
    assert first.size == source.size(FIRST)


def test_a_torn_end_is_not_closed(tmp_path: Path) -> None:
    """Whatever the server lists: what came last of this binlog is not all of it."""
    writer = BinlogWriter()
    writer.previous_gtids(GtidSet.parse(""))
    whole = len(writer.data)
    writer.transaction([statement("insert")], gtid=(UUID_A, "", 1))
    track = Track(FIRST, tmp_path, Grid(1000))
    track.feed(memoryview(bytes(writer.data[: whole + 5])))
    assert track.size == whole
    listed = {
        name: ServerBinlog(name=name, size=whole, encrypted=False) for name in (FIRST, SECOND)
    }
    assert not track.judge(listed)


def test_bytes_of_an_event_that_is_not_whole_stay_in_the_spool(world: World) -> None:
    """Many parts of it are there; none is put before its end has come and its CRC is right."""
    streamer = world.start()
    before = world.source.size(FIRST)
    world.source.write(3000)
    world.read(streamer, before + 2000)
    world.settle(streamer, rounds=10)
    checked = streamer.tracks[FIRST].scanner.event_end
    assert before <= checked < before + 2000
    assert world.chunks()
    assert max(chunk.end for chunk in world.chunks()) <= checked


# What the server says


class Answers(Server):
    """A server that answers from a table, by the beginning of the statement."""

    def __init__(self, answers: Mapping[str, Callable[[], list[dict[str, Any]]]]) -> None:
        super().__init__(lambda: pytest.fail("nobody connects"))
        self._answers = answers

    def rows(self, statement: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        assert arguments == ()
        (answer,) = (a for begin, a in self._answers.items() if statement.startswith(begin))
        return answer()


def test_the_size_of_an_encrypted_binlog_is_that_of_its_stream() -> None:
    """Its file is 512 bytes longer; with those no binlog would ever have just its size."""
    rows = [
        {"Log_name": "b.000001", "File_size": 1000, "Encrypted": "Yes"},
        {"Log_name": "b.000002", "File_size": 1000, "Encrypted": "No"},
    ]
    server = Answers({"SHOW BINARY LOGS": lambda: rows})
    assert [row.size for row in server.binlogs()] == [488, 1000]


@pytest.mark.parametrize("version", ["9.7.4", "8.0.40", "10.11.6-MariaDB"])
def test_the_clock_is_asked_before_the_position(version: str) -> None:
    """A commit between the two must not be claimed: its time is later than the one told."""
    commits = 0
    begun = datetime(2026, 1, 1)  # noqa: DTZ001 - as pymysql gives it

    def status() -> list[dict[str, Any]]:
        return [{"File": "b.000001", "Position": commits, "Executed_Gtid_Set": ""}]

    def clock() -> list[dict[str, Any]]:
        nonlocal commits
        told = begun + timedelta(seconds=commits)
        commits += 1  # just after the answer was made
        seconds = 0 if "MariaDB" in version else None
        return [{"now": told, "uuid": UUID_A, "seconds": seconds, "read_only": 0}]

    server = Answers(
        {
            "SELECT @@version AS version": lambda: [{"version": version, "id": 1, "log_bin": 1}],
            "SELECT UTC_TIMESTAMP(6)": clock,
            "SHOW BINARY LOG STATUS": status,
            "SHOW MASTER STATUS": status,
            "SHOW SESSION STATUS": lambda: [{"Value": ""}],
            "SELECT @@gtid_domain_id": lambda: [{"domain": 0}],
            "SELECT @@gtid_binlog_pos": lambda: [{"pos": ""}],
        }
    )
    position = server.position()
    asked_at = (position.asked_at - begun.replace(tzinfo=UTC)).total_seconds()
    assert position.place.offset > asked_at
    assert (position.settled_at < position.asked_at) is ("MariaDB" in version)


# What lies in the bucket


class Careless(MemoryStore):
    """A store that takes whatever it is sent; `then` is called when it has begun to read."""

    def __init__(self, *, compares: bool, then: Callable[[], object] = lambda: None) -> None:
        super().__init__(min_part_bytes=1)
        self._compares = compares
        self._then = then

    def put(
        self, key: str, body: Body | bytes, *, crc64: int | None = None, **more: Any
    ) -> ObjectInfo:
        """With the checksum or without."""
        sent = crc64 if self._compares else None
        return super().put(key, self._read(body), crc64=sent, **more)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        """With the checksum or without."""
        sent = crc64 if self._compares else None
        return super().upload_part(key, upload_id, number, self._read(body), sent)

    def _read(self, body: Body | bytes) -> bytes:
        if isinstance(body, bytes):
            return body
        with closing(body.open()) as reader:
            self._then()
            return b"".join(iter(lambda: reader.read(1 << 20), b""))


WAYS = pytest.mark.parametrize(
    ("flush_interval", "length", "closed"),
    [(1.0, 20, False), (1.0, 900, False), (0.0, 900, False), (1.0, 10, True)],
    ids=["small-chunk", "full-chunk", "part", "whole"],
)


def spooled(world: World, flush_interval: float, length: int, *, closed: bool) -> Streamer:
    """The first binlog is in the spool, and nothing of it in the bucket."""
    streamer = world.start(part=500, flush_interval=flush_interval)
    world.source.write(length)
    if closed:
        world.source.rotate()
    world.read(streamer)
    return streamer


def rot(path: Path) -> None:
    """A byte of the first part changes, once."""
    data = bytearray(path.read_bytes())
    data[60] = 0x3F
    path.write_bytes(bytes(data))


def is_told_and_not_sent(world: World, streamer: Streamer) -> None:
    with pytest.raises(SpoolError, match="changed after it was read"):
        world.work(streamer, 6)
    assert all(chunk.begin > 60 for chunk in world.chunks())
    assert KEY not in world.store.objects
    assert not any(1 in upload.parts for upload in world.store.uploads.values())


@WAYS
def test_a_spool_that_changed_after_it_was_read_is_not_sent(
    world: World, flush_interval: float, length: int, *, closed: bool
) -> None:
    """Whatever the store thinks of it: some compare nothing."""
    world.store = Careless(compares=False)
    streamer = spooled(world, flush_interval, length, closed=closed)
    rot(streamer.files(FIRST)[0])
    is_told_and_not_sent(world, streamer)


@WAYS
def test_a_spool_that_changes_while_it_is_sent_is_refused_and_told(
    world: World, flush_interval: float, length: int, *, closed: bool
) -> None:
    """The store has the checksum of what was read; that it refuses is not taken for its mood."""
    world.store = Careless(compares=True, then=lambda: rot(streamer.files(FIRST)[0]))
    streamer = spooled(world, flush_interval, length, closed=closed)
    is_told_and_not_sent(world, streamer)


class Sealing(MemoryStore):
    """A store that seals objects with a key of its own: their ETags are no MD5."""

    def _keep(self, key: str, data: bytes, etag: str, *more: Any) -> ObjectInfo:
        return super()._keep(key, data, f"5ea1ed{etag[6:]}", *more)


def closed_binlog(world: World, length: int) -> Streamer:
    """A binlog of one object, or of parts, has been read and is closed."""
    streamer = world.start(part=500)
    world.source.write(length)
    world.source.rotate()
    return streamer


@pytest.mark.parametrize("length", [10, 900])
def test_an_etag_that_is_no_md5_is_no_proof_of_other_bytes(world: World, length: int) -> None:
    """The object is read back; it is ours."""
    world.store = Sealing(min_part_bytes=1, crc64=False)
    world.work(closed_binlog(world, length))
    assert world.archived() == world.source.data(FIRST)


@pytest.mark.parametrize("refuses", [False, True])
@pytest.mark.parametrize(("length", "step"), [(10, PutWhole), (900, Complete)])
def test_what_appears_under_the_key_meanwhile_is_not_replaced(
    world: World, length: int, step: type[Action], refuses: bool
) -> None:
    """Between the look and the write somebody was quicker: his bytes stay, and so do ours."""
    world.store.refuses_replacing = refuses
    streamer = closed_binlog(world, length)
    foreign = b"of somebody else"

    def before(action: Action) -> None:
        if isinstance(action, step):
            world.store.put(KEY, foreign)

    with pytest.raises(ArchiveError, match="holds other bytes"):
        world.work(streamer, before=before)
    assert world.store.get(KEY) == foreign
    assert ENTRY not in world.store.objects
    assert streamer.files(FIRST)


@pytest.mark.parametrize(
    ("length", "step", "operation"),
    [(10, PutWhole, "put"), (900, Complete, "complete_upload")],
)
def test_our_own_object_whose_reply_was_lost_is_found(
    world: World, length: int, step: type[Action], operation: str
) -> None:
    """The write was done, its answer lost, and its repetition told that something is there."""
    streamer = closed_binlog(world, length)

    def before(action: Action) -> None:
        if isinstance(action, step) and KEY not in world.store.objects:
            world.store.fail_next(operation, "after", PreconditionError("it exists"))

    world.work(streamer, before=before)
    assert world.archived() == world.source.data(FIRST)
    assert not streamer.files(FIRST)


@pytest.mark.parametrize("refuses", [False, True])
def test_the_first_entry_stands(world: World, refuses: bool) -> None:
    """Another writer was quicker by a moment: its entry, which says the same, is not replaced."""
    world.store.refuses_replacing = refuses
    streamer = closed_binlog(world, 10)
    theirs: list[bytes] = []

    def before(action: Action) -> None:
        if isinstance(action, PutEntry) and not theirs:
            track = streamer.tracks[FIRST]
            theirs.append(track.entry(datetime(2026, 1, 1, tzinfo=UTC)).to_json())

            def quicker(operation: str) -> None:
                if operation == "put":
                    world.store.on_call = lambda _: None
                    world.store.put(ENTRY, theirs[0])

            world.store.on_call = quicker

    world.work(streamer, before=before)
    assert [world.store.objects[ENTRY].data] == theirs
    assert not streamer.files(FIRST), "it is archived all the same"


@pytest.mark.parametrize("field", ["size", "crc64nvme"])
def test_an_entry_of_another_binlog_is_not_taken_for_ours(world: World, field: str) -> None:
    """Nothing is deleted because of it: neither chunks nor the local copy."""
    streamer = world.start(part=200)
    world.source.write(10)
    world.work(streamer, 3)
    world.source.rotate()
    whole = BinlogReading(FIRST)
    whole.feed(memoryview(world.source.data(FIRST)))
    entry = whole.entry(datetime(2026, 1, 1, tzinfo=UTC))
    value = getattr(entry, field)
    changed: dict[str, Any] = {field: type(value)(value + 1)}
    theirs = replace(entry, **changed).to_json()
    world.store.put(ENTRY, theirs)
    with pytest.raises(ArchiveError, match="describes another binlog"):
        world.work(streamer)
    assert world.store.objects[ENTRY].data == theirs
    assert world.chunks()
    assert streamer.files(FIRST)


@pytest.mark.parametrize("there", [True, False])
def test_a_chunk_that_reaches_beyond_the_archived_binlog_stays(*, there: bool) -> None:
    """What the object does not hold is not taken away; nothing is where there is no object."""
    store = MemoryStore()
    data = bytes(range(150))
    if there:
        store.put(KEY, data[:100])
    inside, beyond = (Chunk(b, e, crc64nvme(data[b:e])) for b, e in ((0, 50), (40, 150)))
    for chunk in (inside, beyond):
        store.put(f"{CHUNKS}{chunk}", data[chunk.begin : chunk.end])
    sweep(Catalog(store, LAYOUT), LINEAGE, FIRST)
    left = [key for key in store.objects if key.startswith(CHUNKS)]
    assert left == [f"{CHUNKS}{chunk}" for chunk in ((beyond,) if there else (inside, beyond))]


def test_the_audit_leaves_alone_what_is_not_archived_by_our_knowledge(world: World) -> None:
    """Another writer is further: its object is there and its entry not yet, so its chunks stay."""
    streamer = world.start(part=200)
    world.source.write(10)
    data = b"x" * 50
    world.store.put(LAYOUT.binlog(LINEAGE, SECOND), data)
    theirs = LAYOUT.chunk(LINEAGE, SECOND, Chunk(0, 50, crc64nvme(data)))
    world.store.put(theirs, data)
    for _ in range(2):
        world.audit(streamer)
        world.work(streamer, 3)
    assert theirs in world.store.objects


@pytest.mark.parametrize("crc64", [True, False])
def test_a_part_of_other_bytes_is_not_taken_up(world: World, *, crc64: bool) -> None:
    """An unfinished upload has a part of the right number and size: only the right bytes count."""
    world.store = MemoryStore(min_part_bytes=1, crc64=crc64)
    world.source.write(900)
    world.source.rotate()
    upload_id = world.store.create_upload(KEY)
    data = world.source.data(FIRST)
    world.store.upload_part(KEY, upload_id, 1, b"?" * 200)
    world.store.upload_part(KEY, upload_id, 2, data[200:400])
    world.work(world.start(part=200, flush_interval=0.0))
    assert world.archived() == data
    assert world.store.calls["upload_part"] == 2 + -(-len(data) // 200) - 1


def test_a_chunk_that_was_written_over_does_not_become_a_part(world: World) -> None:
    """What is in the archive stays for ever: its bytes are sent from the spool instead."""
    streamer = world.start(part=200)
    world.source.write(900)
    world.work(streamer, 10)
    full = next(chunk for chunk in world.chunks() if chunk.size == 200)
    copied: list[int] = []

    def before(action: Action) -> None:
        if isinstance(action, CopyPart):
            copied.append(action.part.number)
            world.store.put(f"{CHUNKS}{full}", b"?" * 200)

    world.source.rotate()
    world.work(streamer, before=before)
    assert copied
    assert world.archived() == world.source.data(FIRST)


# The spool


def test_a_note_that_fails_half_way_leaves_the_one_before(spool: Spool) -> None:
    """Of a run that cannot be read nothing could be taken: what was noted holds."""
    run = spool.begin(RUN)
    unwritable: Any = {"a"}
    with pytest.raises(TypeError, match="not JSON serializable"):
        spool.note(replace(run, facts=replace(RUN, lineage=unwritable)))
    assert [run.facts for run in spool.runs()] == [RUN]


def test_what_is_not_in_the_bucket_yet_stays_in_a_full_spool(world: World) -> None:
    """All but the last bytes have arrived: the file stays as it is."""
    streamer = world.start(workers=1)
    world.source.write(2000)
    world.read(streamer)
    size, paths = world.source.size(FIRST), streamer.files(FIRST)
    for _ in range(100):
        streamer.press(pressed=True)
        if world.chunks() and world.chunks()[-1].end == size:
            break
        assert streamer.files(FIRST) == paths
        assert streamer.tracks[FIRST].floor == 0
        world.now += 1
        streamer.uploader.start()
        world.answer(streamer)
    streamer.press(pressed=True)
    assert streamer.files(FIRST) == []
    assert world.readable() == world.source.data(FIRST)


def test_a_body_from_the_bucket_never_comes_whole_if_it_is_wrong(world: World) -> None:
    """The last block is kept back until all bytes are those that the scanner saw."""
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    streamer.press(pressed=True)
    track, part = streamer.tracks[FIRST], streamer.grid.at(200)
    place = streamer.uploader.jobs[0].remote
    right = place._checked(part.begin, part.end, track.digest.part_crc64(part))
    data = world.source.data(FIRST)[part.begin : part.end]
    with closing(right.open()) as reader:
        assert (right.size, reader.read(30), reader.tell()) == (100, data[:30], 30)
        assert (reader.seek(10), reader.read(20), reader.seek(-1, 2)) == (10, data[10:30], 99)
        assert (reader.read(), reader.seek(0), reader.read()) == (data[-1:], 0, data)
    wrong = place._checked(part.begin, part.end, track.digest.part_crc64(part) ^ 1)
    with closing(wrong.open()) as reader, pytest.raises(FloorError, match="is needed again"):
        reader.read()


def test_what_lies_below_the_floor_is_not_taken_for_ours(world: World) -> None:
    """A longer chunk of another history: ours are not deleted for it, and it is called a fork."""
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    streamer.press(pressed=True)
    place, ours = streamer.uploader.jobs[0].remote, world.chunks()
    assert streamer.tracks[FIRST].floor > 330
    for begin, end in ((0, 300), (50, 330)):  # ends that are known, and others
        data = bytearray(world.source.data(FIRST)[begin:end])
        right = Chunk(begin, end, crc64nvme(data))
        assert place.compare([right]).same == {right}
        data[60] ^= 1
        other = Chunk(begin, end, crc64nvme(data))
        world.store.put(f"{CHUNKS}{other}", bytes(data))
        with pytest.raises((ForkError, FloorError)):
            place.compare([other])
        world.store.delete([f"{CHUNKS}{other}"])
    assert world.chunks() == ours


def test_a_chunk_that_came_wrong_once_is_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The network's fault is not the store's, and nobody else may have the bytes."""
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    place = streamer.uploader.jobs[0].remote
    data = b"of another history" * 20
    other = Chunk(0, len(data), crc64nvme(data))
    world.store.put(f"{CHUNKS}{other}", data)
    answers = [iter([b"x" * len(data)]), iter([data])]
    monkeypatch.setattr(world.store, "open", lambda *_: answers.pop(0))
    with pytest.raises(ForkError):
        place.compare([other])
    assert other in world.chunks()


class Draining(MemoryStore):
    """Gives and takes block by block, as a connection does, and keeps nothing of a part."""

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        """See Store."""
        data = memoryview(self.objects[key].data)
        for at in range(begin, end, 1 << 20):
            yield bytes(data[at : min(at + (1 << 20), end)])

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        """See Store."""
        assert not isinstance(body, bytes)
        size = 0
        with closing(body.open()) as reader:
            while data := reader.read(1 << 16):
                size += len(data)
        return PartInfo(number=number, size=size, etag="x", crc64=crc64)


def test_a_part_that_is_read_back_is_never_in_memory_as_a_whole(world: World) -> None:
    """It may have gigabytes, and several are sent at a time."""
    world.store = Draining(min_part_bytes=1)
    streamer = world.start(part=16 << 20)
    world.source.write(17 << 20)
    world.work(streamer)
    streamer.press(pressed=True)
    track, part = streamer.tracks[FIRST], streamer.grid.at(0)
    assert track.floor >= part.end
    crc64 = track.digest.part_crc64(part)
    tracemalloc.start()
    sent = streamer.uploader.jobs[0].remote.put_part("an upload", part, crc64)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sent.size == 16 << 20
    assert most < 6 << 20


# The child


LOGIN = replace(ROOT, host="db1", port=3306, user="repl", password="secret")


def program(directory: Path, script: str) -> Tool:
    """A program in mysqlbinlog's place."""
    path = directory / "child"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return Tool(path=str(path), flavour="mysql", version="9", connection_server_id=True)


def start(tool: Tool, directory: Path) -> Child:
    return Child(
        tool,
        LOGIN,
        server_id=1,
        directory=directory,
        binlog=FIRST,
        on_line=lambda _: None,
    )


def test_what_a_child_prints_does_not_hold_it_up(tmp_path: Path) -> None:
    """Nobody reads its standard output: a pipe there would be full after 64 KiB, for ever."""
    tool = program(tmp_path, "i=0; while [ $i -lt 20000 ]; do echo line-$i; i=$((i+1)); done")
    child = start(tool, tmp_path)
    try:
        wait_until(lambda: child.poll() is not None, what="the child's end")
        assert child.poll() == 0
    finally:
        child.stop(0.1)


PARENT = """\
import pathlib, sys
from tests.unit.stream import test_safeguards as ours
tool = ours.Tool(path=sys.argv[1], flavour="mysql", version="9", connection_server_id=True)
child = ours.start(tool, pathlib.Path(sys.argv[1]).parent)
print(child.pid, flush=True)
child._process.wait()
"""


def is_alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_the_child_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """kill -9 runs no `finally`: the kernel ends the child, else two would write."""
    tool = program(tmp_path, f"touch {tmp_path}/runs; exec sleep 600")
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, tool.path],
        stdout=subprocess.PIPE,
        cwd=root,
        env=environment,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            wait_until((tmp_path / "runs").exists, what="the child runs")
            parent.kill()
            parent.wait()
            wait_until(lambda: not is_alive(pid), what="the child's end")
        finally:
            parent.kill()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


# The writer


def test_a_new_writer_carries_on_what_was_proved(spool: Spool) -> None:
    """The greatest covered-until and the durable place do not fall back to what it knows itself."""
    layout, store = Layout("p", "orders"), MemoryStore()
    assert BEAT.durable is not None
    assert BEAT.covered_until is not None
    earlier = replace(BEAT, generation=1, covered_until=BEAT.covered_until - timedelta(hours=1))
    for beat in (earlier, BEAT):
        store.put(layout.writer(*beat.rank), beat.to_json())
    known = replace(BEAT.durable, offset=4)
    writer = Writer(
        catalog=Catalog(store, layout),
        spool=spool,
        interval_seconds=30.0,
        progress=lambda beat: replace(
            beat, lineage=BEAT.lineage, server_uuid=UUID_A, durable=known, covered_until=None
        ),
        uploads=SimpleNamespace(),  # type: ignore[arg-type]
        stop=Stop(),
    )
    writer.claim(Catalog(store, layout))
    assert writer.me.generation == BEAT.generation + 1
    assert writer.me.durable == BEAT.durable
    later = BEAT.covered_until + timedelta(seconds=1)
    here = BEAT.lineage
    assert writer.furthest_covered(here, later) == later
    assert writer.furthest_covered(here, earlier.covered_until) == earlier.covered_until
    assert writer.furthest_covered("20270101T000000Z-3e11fa47-0001", None) is None
    writer.told_time(BEAT.covered_until)
    assert writer.furthest_covered(here, None) == BEAT.covered_until
    writer.told_time(BEAT.covered_until - timedelta(seconds=1))  # it was set back
    assert writer.furthest_covered(here, None) is None


# Requests to the store


class Client:
    """A client whose first answer breaks off."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def get_object(self, *, Range: str = "bytes=0-", **_: object) -> dict[str, Any]:  # noqa: N803
        """A body that ends without a word after its first three bytes, the first time."""
        at, data = int(Range[6:-1]), b"the body"
        self.read.append(data[at:] if self.read else data[:3])
        return {
            "Body": io.BytesIO(self.read[-1]),
            "ContentLength": len(data) - at,
            "ContentRange": f"bytes {at}-7/8",
            "ETag": "e",
            "ResponseMetadata": {"HTTPHeaders": {}},
        }


def requests(stop: threading.Event, policy: RetryPolicy, client: Client) -> Requests:
    """To a client of our own."""
    link: Any = SimpleNamespace(
        has_answered=True,
        bandwidth=None,
        on_request=None,
        get=lambda: client,
        forget=pytest.fail,
        config=StoreConfig(bucket="b", endpoint_url="http://s"),
        endpoint="http://s",
    )
    return Requests(link, stop, policy, lambda *_: None)


def test_a_body_that_ends_too_early_is_not_all() -> None:
    """Whatever the library makes of it: as many bytes are missing as the store has announced."""
    client = Client()
    policy = RetryPolicy(attempts=2, first_delay_seconds=0.001)
    made = requests(threading.Event(), policy, client)
    with Download(made, "key", 0, None) as download:
        assert b"".join(iter(lambda: made.retry(download.block), b"")) == b"the body"
    assert client.read == [b"the", b" body"]


def test_a_web_page_is_no_answer_though_it_says_200() -> None:
    """A proxy's login page has taken the body: nothing is stored."""
    page = {"ResponseMetadata": {"HTTPHeaders": {"content-type": "text/html; charset=utf-8"}}}
    client: Any = SimpleNamespace(put_object=lambda **_: page)
    made = requests(threading.Event(), RetryPolicy(attempts=1), client)
    with pytest.raises(StoreError, match="answers, but not like an S3 store"):
        made.send("put_object", "key", b"the body")


def test_a_client_whose_credentials_were_refused_is_dropped() -> None:
    """The next attempt makes another one, which reads them again: somebody may have mended them."""

    def refuse(**_: object) -> None:
        error = {"Code": "InvalidAccessKeyId", "Message": "unknown"}
        raise ClientError(
            {"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}},  # type: ignore[typeddict-item]
            "PutObject",
        )

    client: Any = SimpleNamespace(put_object=refuse)
    made = requests(threading.Event(), RetryPolicy(attempts=1), client)
    dropped: list[object] = []
    made.link.forget = dropped.append  # type: ignore[method-assign, assignment]
    with pytest.raises(StoreError, match="does not know this access key id"):
        made.send("put_object", "key", b"the body")
    assert dropped == [client]


# The start


def test_a_start_that_fails_has_written_nothing(tmp_path: Path) -> None:
    """Nobody listens at the source's address: whoever writes there is not disturbed."""
    store, spool = Together(), spool_in(tmp_path)
    plain: dict[str, Any] = dict.fromkeys(MysqlConfig.__slots__)
    given = {"host": "127.0.0.1", "port": 1, "user": "repl", "connect_timeout": 10}
    mysql = MysqlConfig(**{**plain, **given})
    config: Any = SimpleNamespace(
        mysql=mysql,
        s3=SimpleNamespace(bucket="b", prefix="p", part_size=1000),
        target="s3://b/p",
        stream=SimpleNamespace(
            source="orders", heartbeat_interval=30.0, exit_on_other_writer=False
        ),
        spool_limits=SpoolLimits(),
        timing=DEFAULT,
    )
    stop: Any = SimpleNamespace(event=threading.Event(), signal=0)
    stop.event.set()  # else it would wait for the source
    with pytest.raises(SourceError, match=r"127\.0\.0\.1"):
        Startup(config, store, spool, stop).begin()
    assert store.objects == {}
    assert store.first == set(), "one round trip shows that there is no writer and no archive"
    assert store.calls["list_names"] == 1, "it has come as far as the bucket"
    assert not {name for name in store.calls if name.startswith(("put", "delete", "create"))}
    spool.close()


class Together(MemoryStore):
    """One in which the first looks for writers, lineages and turns wait for each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = {"p/live/orders/writers/", "p/archive/orders/", "p/archive/orders/turns/"}
        self.meeting = threading.Barrier(len(self.first))

    def _meet(self, prefix: str) -> None:
        if prefix in self.first:
            self.meeting.wait(30)
            self.first.discard(prefix)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        self._meet(prefix)
        return super().list(prefix, start_after=start_after)

    def list_names(self, prefix: str) -> Iterator[str]:
        self._meet(prefix)
        return super().list_names(prefix)


class Refusing(Startup):
    """One whose source is another server than that of the archive."""

    def _resumption(self) -> Any:
        def next_run(*_: object) -> NextRun:
            raise SourceError("not the archive's server", refused=True)

        return SimpleNamespace(next_run=next_run)


@pytest.mark.parametrize("spooled", [False, True])
def test_a_refused_start_claims_only_for_what_its_spool_alone_has(
    world: World, *, spooled: bool
) -> None:
    """What was read back from the bucket is there already: whoever writes is not disturbed."""
    world.store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())
    before = world.start()
    world.source.write(300)
    world.work(before)
    world.stop(before)
    spool = Spool(world.directory / "new", source=LAYOUT.source, target=RUN.target)
    if spooled:
        facts = replace(RUN, source=LAYOUT.source, lineage=LINEAGE)
        world.source.write(300)
        (spool.begin(facts).directory / str(FIRST)).write_bytes(world.source.data(FIRST))
    found = find(Catalog(world.store, LAYOUT), spool.runs(), Grid(100))
    assert [track.name for track in found.tracks] == [FIRST]
    config: Any = SimpleNamespace(
        s3=SimpleNamespace(prefix=LAYOUT.prefix, part_size=100),
        stream=SimpleNamespace(source=LAYOUT.source, heartbeat_interval=30.0),
        timing=DEFAULT,
    )
    start = Refusing(config, world.store, spool, SimpleNamespace(), takes_over=True)  # type: ignore[arg-type]
    server: Any = SimpleNamespace()
    if spooled:
        assert start._begin(server, found, None).refusal is not None
    else:
        with pytest.raises(SourceError, match="not the archive's server"):
            start._begin(server, found, None)
    spool.close()


def test_a_start_clears_what_it_writes_the_entry_of(tmp_path: Path) -> None:
    """At once: if the server is reset, nobody comes back to that history."""
    source = Source()
    source.write(300)
    source.rotate()
    source.write(40)
    shown = Shown(source, Clock())
    shown.show_all()
    store, data = MemoryStore(min_part_bytes=1), source.data(FIRST)
    store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())
    store.put(f"{CHUNKS}{Chunk(0, len(data), crc64nvme(data))}", data)
    store.put(KEY, data)

    def life(process: Process) -> Iterator[None]:
        for _ in range(3):
            process.child.fetch()
            yield

    process = Process(
        store=store, shown=shown, directory=tmp_path, part=100, token="77777777", life=life
    )
    assert process.run() == 0
    process.close()
    assert ENTRY in store.objects
    assert not [key for key in store.objects if key.startswith(CHUNKS)]


# The runs


FACTS = ServerFacts(
    uuid=UUID_A, flavour="mysql", version="9.7.4", server_id=7, gtid_mode=True, tls=False
)


class Asked:
    """A connection that is kept: what it leads to is seen when it is made anew."""

    address = "db1:3306"

    def __init__(self, then: ServerFacts, data: bytes) -> None:
        self.facts_now, self._then = FACTS, then
        self._data = data

    def close(self) -> None:
        self.facts_now = self._then

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def facts(self) -> ServerFacts:
        return self.facts_now

    def beginning(self, name: BinlogName, most: int) -> bytes:
        assert name == FIRST
        return self._data[:most]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Any]:
    """One that neither runs nor asks by itself; `watch` is what the watch says."""
    spool = spool_in(tmp_path)
    watch = SimpleNamespace(
        source_state=SimpleNamespace(stranger="", behind=0, position=None, error=None),
        heard_at=time.monotonic() + 1000,
        streams=lambda _: False,
    )
    config = SimpleNamespace(
        spool_limits=SpoolLimits(),
        stream=SimpleNamespace(stall_timeout=60.0),
    )
    nothing: Any = SimpleNamespace(coverage=None)
    tracking = Tracking(catalog=nothing, spool=spool, writer=nothing, uploads=nothing)
    tracking.judge = lambda *_, **__: False  # type: ignore[method-assign]
    yield Runs(
        config,  # type: ignore[arg-type]
        spool=spool,
        tracking=tracking,
        uploads=SimpleNamespace(step=lambda _: None, grid=Grid(1000)),  # type: ignore[arg-type]
        writer=SimpleNamespace(blame=lambda: None),  # type: ignore[arg-type]
        resumption=SimpleNamespace(),  # type: ignore[arg-type]
        watch=watch,  # type: ignore[arg-type]
        connect=lambda: pytest.fail("nobody asks"),
        stop=threading.Event(),
        next_run=None,
    )
    spool.close()


def reading(offset: int) -> Any:
    """A tailer that has read so far of the first binlog."""
    scanner = SimpleNamespace(position=offset)
    return SimpleNamespace(settled=True, current=SimpleNamespace(name=FIRST, scanner=scanner))


def look_after(*, silent_seconds: float = 0, patience: int = 1, at: int = 100, **seen: Any) -> bool:
    """Whether a run that has read 100 bytes and then stood still is behind the server.

    Raises if it must end. `at`: where the server writes; `heard_at`: when it last said anything.
    """
    heard_at = seen.pop("heard_at", time.monotonic() + 1000)
    position = SimpleNamespace(place=FilePosition(FIRST, at))
    source_state = {"stranger": "", "behind": 0, "position": position, "error": None, **seen}
    watch: Any = SimpleNamespace(source_state=SimpleNamespace(**source_state), heard_at=heard_at)
    next_run = NextRun(facts=FACTS, tool=program_of_nobody(), listed=(), course=Begin(begin=FIRST))
    run = Run(SimpleNamespace(), next_run, SimpleNamespace(), reading(100))  # type: ignore[arg-type]
    run.started = run.moved = run.ahead = time.monotonic() - silent_seconds
    run.look_after(watch, 60.0, patience)
    return run.ahead is not None


def test_a_run_of_months_keeps_nothing_of_what_has_left_the_spool(tmp_path: Path) -> None:
    """mysqlbinlog runs on and on: a binlog that is archived and deleted takes no memory."""
    next_run = NextRun(facts=FACTS, tool=program_of_nobody(), listed=(), course=Begin(begin=FIRST))
    tailer: Any = SimpleNamespace(take_new=list)
    proved = SimpleNamespace(facts=SimpleNamespace(is_proved=True))
    run = Run(proved, next_run, SimpleNamespace(), tailer)  # type: ignore[arg-type]
    known: list[weakref.ref[Track]] = []
    for number in range(1, 20):
        path = tmp_path / str(number)
        path.touch()
        tailer.take_new = lambda path=path: [Track(FIRST, path, Grid(1000))]
        (track,) = run.take_new()
        known.append(weakref.ref(track))
        if number != 3:  # which is not archived yet
            path.unlink()
    del track
    gc.collect()
    assert [known.index(one) + 1 for one in known if one() is not None] == [3, 17, 18, 19]


def test_a_stream_that_stands_still_is_ended_and_given_twice_the_time() -> None:
    """A large event comes when it is whole: each time from the same place it has longer."""
    memory = Memory().asked_at(FilePosition(FIRST, 100))
    for limit in (60, 120):
        patience = memory.patience
        assert look_after(silent_seconds=limit - 1, patience=patience, at=200)
        with pytest.raises(SourceError, match="although the server writes") as ended:
            look_after(silent_seconds=limit + 1, patience=patience, at=200)
        memory = memory.learned(ended.value, None)
        assert look_after(silent_seconds=limit + 1, patience=memory.patience, at=200)
    assert memory.asked_at(FilePosition(FIRST, 100)).patience == 4
    assert memory.asked_at(FilePosition(FIRST, 101)).patience == 1


@pytest.mark.parametrize(
    ("seen", "kind", "words"),
    [
        ({"silent_seconds": 1000}, None, ""),  # while there are answers, an idle stream is kept
        ({"silent_seconds": 10, "heard_at": 0.0}, None, ""),
        ({"silent_seconds": 61, "heard_at": 0.0}, SourceError, "no answer from the server"),
        # questions go to another server by now: what the stream brings may be anybody's
        ({"stranger": UUID_B}, SourceError, f"another server answers .*: {UUID_B}"),
        # twice in a row: it was reset or rolled back, and mysqlbinlog does not notice
        ({"at": 50, "behind": 1}, None, ""),
        ({"at": 50, "behind": 2}, ElsewhereError, "position is before what was read"),
    ],
)
def test_what_ends_a_run(seen: dict[str, Any], kind: type[Exception] | None, words: str) -> None:
    """A server that says nothing at all, a stranger, one that stands behind us."""
    if kind is None:
        look_after(**seen)
        return
    with pytest.raises(kind, match=words):
        look_after(**seen)


def two_of_a_server(timestamp: int) -> tuple[BinlogWriter, BinlogWriter]:
    """Two binlogs under one name, by servers with one id; the second has this time."""
    made = (
        BinlogWriter(server_id=7, timestamp=NOW),
        BinlogWriter(server_id=7, timestamp=timestamp),
    )
    for one in made:
        for _ in range(3):
            one.transaction([statement("insert"), XID])
    return made


def begun(directory: Path, sent: BinlogWriter, overlap: Overlap | None) -> Run:
    """A run that has brought this binlog, or what comes from the overlap on."""
    course: GoOn | Begin = Begin(begin=FIRST)
    if overlap is not None:
        course = GoOn(known_end=KnownEnd(lineage=HISTORY, last=FIRST, overlap=overlap), again=True)
    next_run = NextRun(facts=FACTS, tool=program_of_nobody(), listed=(), course=course)
    run = SpoolRun(directory, replace(RUN, position=next_run.position, lineage=PROBE))
    data = sent.from_position(overlap.begin) if overlap else bytes(sent.data)
    (directory / str(FIRST)).write_bytes(data)
    track = begun_track(sent, overlap.end) if overlap else None
    tailer = Tailer(run, Grid(5 << 20), overlap=overlap, track=track)
    return Run(run, next_run, SimpleNamespace(), tailer)  # type: ignore[arg-type]


def begun_track(made: BinlogWriter, end: int) -> Track:
    """What is known of a binlog: its first bytes, which are in the bucket."""
    track = Track(FIRST, None, Grid(5 << 20))
    for begin, at in itertools.pairwise([0, *made.ends[1:]]):
        if at <= end:
            track.feed(memoryview(bytes(made.data[begin:at])))
    track.raise_floor()
    return track


@pytest.mark.parametrize(
    ("then", "timestamp", "words"),
    [
        (replace(FACTS, uuid=UUID_B), NOW, f"another server answers .*: {UUID_B}, not {UUID_A}"),
        (FACTS, NOW + 1, f"at db1:3306 {UUID_A} answers, .* with server_id 7, created at 2026"),
    ],
    ids=["another-uuid", "another-binlog"],
)
@pytest.mark.parametrize("short", [False, True], ids=["no-overlap", "short-overlap"])
def test_what_a_run_begins_with_is_confirmed_on_a_new_connection(
    runs: Any, tmp_path: Path, then: ServerFacts, timestamp: int, words: str, *, short: bool
) -> None:
    """The one that is kept still leads to the server that was asked; mysqlbinlog's does not.

    Its server may have the same server id. Histories that begin alike have a short overlap in
    common.
    """
    ours, theirs = two_of_a_server(timestamp)
    run = begun(tmp_path, ours, overlap_of(begun_track(ours, ours.ends[3])) if short else None)
    while run.read(lambda _: ()):
        assert run.take_new() == []
    assert (run.shown, run.can_be_confirmed) == (Event.SAME_BEGINNING if short else None, True)
    runs._connect = lambda: Asked(FACTS, bytes(ours.data) + b"and more")
    runs._confirm(run)
    runs._connect = lambda: Asked(then, bytes(theirs.data))
    if short:  # its file begins with an event that mysqlbinlog made up
        words = words.partition(", .*")[0]
    with pytest.raises(SourceError, match=words) as refused:
        runs._confirm(run)
    assert refused.value.transient
    assert refused.value.hint


def test_a_long_overlap_proves_a_run_by_itself(tmp_path: Path) -> None:
    """It is of no two histories that are not one up to there."""
    ours, _ = two_of_a_server(NOW)
    ours.transaction([statement("x" * MOST_BYTES), XID])
    ours.transaction([statement("x" * (1 << 20)), XID])
    ours.transaction([statement("more"), XID])
    overlap = overlap_of(begun_track(ours, len(ours.data)))
    assert overlap is not None
    assert overlap.begin > MOST_BYTES
    run = begun(tmp_path, ours, overlap)
    while run.read(lambda _: ()):
        pass
    assert run.shown is Event.SAME


def test_a_run_that_cannot_be_noted_is_not_read_on(runs: Any, tmp_path: Path) -> None:
    """The disk is full: a start would discard what came, so nothing of it is taken in."""
    ours, _ = two_of_a_server(NOW)
    track = begun_track(ours, ours.ends[3])
    run = begun(tmp_path, ours, overlap_of(track))
    runs.memory = Memory(state=State.COMPARING)
    runs.run, runs._connect = run, lambda: Asked(FACTS, bytes(ours.data))

    def rounds() -> None:
        for _ in range(9):
            runs.round(0.0)

    room = tmp_path / "run.json.new"
    room.mkdir()  # no note can be written
    for _ in range(3):
        with pytest.raises(SpoolError):
            rounds()
    current = run.tailer.current
    assert current is not None
    assert current.size == ours.ends[3]
    room.rmdir()
    assert runs.round(0.0)
    assert json.loads((tmp_path / "run.json").read_text())["lineage"] == LINEAGE
    assert current.size == len(ours.data)


def test_a_run_begins_with_a_question_on_a_new_connection(runs: Any) -> None:
    """After a fail-over by DNS the old primary may live on, and keep the connection open."""
    new = replace(FACTS, uuid=UUID_B)
    connections = [Asked(FACTS, b""), Asked(new, b"")]
    connections[1].close()  # it is made anew
    runs._connect = lambda: connections.pop(0)
    runs._tracking._uploads.coverage = None
    runs._resumption.next_run = lambda server, *_: server.facts()
    assert [runs._ask(), runs._ask()] == [FACTS, new]


@pytest.mark.parametrize("failures", [0, 1, 10, 1023, 1024, 10**6])
def test_a_source_or_a_store_may_be_away_for_days(failures: int) -> None:
    """After an hour there have been more failures than a number can be doubled.

    Each wait is twice as long as the one before, until it is the longest.
    """
    most = DEFAULT.first_delay_seconds * 2 ** min(failures, 64)
    most = min(most, DEFAULT.longest_delay_seconds)
    assert most / 2 <= delay(failures, DEFAULT) <= most


def test_the_loop_goes_on_while_the_source_is_asked(runs: Any) -> None:
    """Whole binlogs may be compared for the answer: uploads and watchdog do not wait for it."""
    stepped = threading.Event()
    runs._uploads.step = lambda _: stepped.set()
    runs._connect = lambda: Asked(FACTS, b"")
    runs._tracking._uploads.coverage = None

    def next_run(*_: object) -> str:
        for _ in range(3):
            stepped.clear()
            assert stepped.wait(20), "nobody works meanwhile"
        return "there"

    runs._resumption.next_run = next_run
    assert runs._ask() == "there"


@pytest.mark.parametrize("closed", [False, True])
def test_what_is_read_again_does_not_shorten_what_is_known(runs: Any, *, closed: bool) -> None:
    """A lineage that begins when the source gives no more of it follows all that the bucket has.

    A run continues where the reading has come to. One that has ended there is that long.
    """
    made = two_of_a_server(NOW)[0]
    known = begun_track(made, len(made.data))
    known_end = known_end_of(HISTORY, known, closed=False)
    again = Track(FIRST, None, Grid(5 << 20))
    again.feed(memoryview(bytes(made.data[: made.ends[3]])))
    again.state = TrackState.CLOSED if closed else again.state
    assert again.size < known.size
    runs._tracking.known = known_end
    runs._tracking._uploads.coverage = Coverage(HISTORY, None, FIRST)
    runs._tracking._handed = again
    runs._connect = lambda: Asked(FACTS, b"")
    runs._resumption.next_run = lambda _, known_end, __: known_end
    asked = runs._ask()
    assert runs.memory.at == (FIRST, again.size)
    assert asked.overlap.end == again.size
    if closed:
        assert (asked.size, asked.gtids) == (again.size, again.gtids_after())
    else:
        assert (asked.size, asked.gtids) == (known.size, known.gtids_after())
        given_up = unservable(
            asked, [ServerBinlog(name=SECOND, size=9, encrypted=False)], lambda _: None
        )
        assert given_up is not None
        assert given_up.parent is not None
        assert given_up.parent.offset == known.size


def test_refusals_are_counted_where_the_source_was_asked(runs: Any) -> None:
    """Not where it is known to end: what was read meanwhile is brought in before it is asked again.

    Else the third refusal, after which the history goes on behind a gap, would come one sooner.
    """
    made = two_of_a_server(NOW)[0]
    coverage = Coverage(HISTORY, None, FIRST)
    runs._tracking._handed = begun_track(made, len(made.data))
    runs._tracking._uploads = SimpleNamespace(done=True, coverage=coverage)
    runs._connect = lambda: Asked(FACTS, b"")
    runs._resumption.next_run = lambda *_: "there"
    runs.memory = Memory().asked_at(FilePosition(FIRST, 4))
    refused = SourceError("it cannot be sent", unservable=True)
    for refusals in (1, 2):
        runs.memory = runs.memory.learned(refused, None)
        assert runs.memory.refusals == refusals
    assert runs._before_asking() is Event.DONE
    runs._ask()
    assert runs.memory.refusals == 0
    for is_left in (False, False, True):
        runs.memory = runs.memory.learned(refused, None)
        doubt = runs.memory.doubt
        assert (doubt is not None and doubt.kind == "refused") is is_left
        runs._ask()


def test_a_first_binlog_of_which_no_more_comes_is_not_waited_for(runs: Any) -> None:
    """The source was refused twice, and is asked again."""
    made = two_of_a_server(NOW)[0]
    torn = begun_track(made, made.ends[0])
    assert not torn.begun
    runs._tracking._uploads = SimpleNamespace(
        done=True, coverage=None, abandon=lambda _: None, drop=lambda _: None
    )
    runs._tracking.admit(torn)
    rounds = iter(range(100))
    runs._uploads.step = lambda _: next(rounds)
    runs.memory = Memory(doubt=Doubt(why="it cannot be sent"))
    assert runs._before_asking() is Event.DONE
    assert runs._tracking.last is None


def test_what_is_learned_while_the_source_is_asked_is_not_forgotten(runs: Any) -> None:
    """The answer is out of date: it was given to another question."""
    asked = threading.Event()
    doubts: list[Any] = []

    def next_run(_: object, __: object, doubt: Any) -> str:
        doubts.append(doubt)
        if len(doubts) == 1:
            asked.set()
            assert learned.wait(20)
        return "there"

    learned = threading.Event()

    def step(_: float) -> None:
        if asked.is_set() and not learned.is_set():
            learned.set()
            raise ForkError("two histories")

    runs._uploads.step = step
    runs._connect = lambda: Asked(FACTS, b"")
    runs._tracking._uploads.coverage = None
    runs._resumption.next_run = next_run
    with pytest.raises(SourceError, match="the histories part"):
        runs._ask()
    assert runs._ask() == "there"
    assert [doubt and doubt.why for doubt in doubts] == [None, "two histories"]


def program_of_nobody() -> Tool:
    return Tool(path="", flavour="mysql", version="9", connection_server_id=True)
