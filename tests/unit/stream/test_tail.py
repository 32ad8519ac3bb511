"""The tailer: what it reads, when it goes on to the next file, what it refuses."""

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.parts import Digest, Grid
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, EventType
from binlog2s3.errors import DamageError, ForkError
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.spool import SpoolFile, SpoolRun
from binlog2s3.stream.tail import Overlap, Tailer, Track, TrackState, overlap_of
from tests.binlog_writer import NOW, UUID_A, XID, BinlogWriter, statement
from tests.unit.stream.builders import RUN, bytes_of, ends_of, name

GRID = Grid(1000)
ONE, TWO = "mysql-bin.000001", "mysql-bin.000002"


def run_in(directory: Path, position: int = 4) -> SpoolRun:
    return SpoolRun(directory, replace(RUN, binlog=ONE, position=position))


def binlog(first: int = 1, count: int = 3, *, gtids: bool = True, rotate: bool = True) -> bytes:
    writer = BinlogWriter()
    writer.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{first - 1}" if first > 1 else ""))
    for number in range(first, first + count):
        gtid = (UUID_A, "", number) if gtids else None
        writer.transaction([statement("insert into t values (1)")], gtid=gtid)
    if rotate:
        writer.rotate(TWO)
    return bytes(writer.data)


def pump_all(tailer: Tailer) -> list[Track]:
    found: list[Track] = []
    for _ in range(20):
        tailer.pump()
        found += tailer.take_new()
    return found


def test_what_passed_before_damage_in_the_same_slice_is_noted() -> None:
    """The transactions before it are in the bucket, so their blocks and commit times say so."""
    data, whole = binlog(), Track(BinlogName.parse(ONE), Path(ONE), GRID)
    whole.feed(memoryview(data))
    track = Track(BinlogName.parse(ONE), Path(ONE), GRID)
    damaged = bytearray(data)
    damaged[-100] ^= 1  # in the last transaction
    with pytest.raises(DamageError):
        track.feed(memoryview(damaged))
    assert track.scanner.transactions == 2
    assert track.commits.oldest_us == whole.commits.oldest_us
    assert overlap_of(track) is not None  # a new run brings the rest
    track.feed(memoryview(data)[track.size :])
    assert track.digest.blocks() == whole.digest.blocks()


def test_the_next_file_follows_only_after_the_end_of_this_one(tmp_path: Path) -> None:
    """A file that ends in the middle of an event while the next is there is damage."""
    data = binlog()
    (tmp_path / ONE).write_bytes(data[:-5])
    (tmp_path / TWO).write_bytes(binlog(4, rotate=False))
    tailer = Tailer(run_in(tmp_path), GRID)
    with pytest.raises(DamageError) as caught:
        pump_all(tailer)
    assert caught.value.offset == len(data) - 47
    tailer.close()


def test_a_binlog_without_rotate_is_closed_by_what_follows(tmp_path: Path) -> None:
    """A crashed binlog is closed when the next file's previous GTIDs are those at its end."""
    (tmp_path / ONE).write_bytes(binlog(rotate=False))
    tailer = Tailer(run_in(tmp_path), GRID)
    (first,) = pump_all(tailer)
    assert not first.judge({})
    (tmp_path / TWO).write_bytes(binlog(4, rotate=False))
    (second,) = pump_all(tailer)
    assert first.judge({})
    assert not second.judge({})
    tailer.close()


def test_anonymous_transactions_prove_nothing(tmp_path: Path) -> None:
    """Without GTIDs a crashed binlog waits for the server's own list, and its exact size."""
    (tmp_path / ONE).write_bytes(binlog(rotate=False, gtids=False))
    (tmp_path / TWO).write_bytes(binlog(1, rotate=False, gtids=False))
    tailer = Tailer(run_in(tmp_path), GRID)
    first, _ = pump_all(tailer)
    one, two = BinlogName.parse(ONE), BinlogName.parse(TWO)

    def listed(size: int, *names: BinlogName) -> dict[BinlogName, ServerBinlog]:
        return {name: ServerBinlog(name=name, size=size, encrypted=False) for name in names}

    assert not first.judge({})
    assert not first.judge(listed(first.size, one))
    assert not first.judge(listed(first.size + 1, one, two))
    assert first.judge(listed(first.size, one, two))
    tailer.close()


def test_other_gtids_do_not_close(tmp_path: Path) -> None:
    """A next file with other previous GTIDs is another history: the binlog is not called closed."""
    (tmp_path / ONE).write_bytes(binlog(rotate=False))
    (tmp_path / TWO).write_bytes(binlog(9, rotate=False))
    tailer = Tailer(run_in(tmp_path), GRID)
    first, _ = pump_all(tailer)
    assert not first.judge({})
    tailer.close()


def test_a_name_that_is_not_the_next_is_refused(tmp_path: Path) -> None:
    """A jump in the names is never joined."""
    (tmp_path / ONE).write_bytes(binlog(rotate=False))
    (tmp_path / "mysql-bin.000003").write_bytes(binlog(4))
    tailer = Tailer(run_in(tmp_path), GRID)
    with pytest.raises(ForkError, match=r"continues with mysql-bin\.000003"):
        pump_all(tailer)
    tailer.close()


@pytest.mark.parametrize("step", [1, 37, 200, 5000])
def test_the_mark_is_the_last_event_end(step: int) -> None:
    """However the bytes come: its checksum is of what passed of its part, up to there."""
    data, grid = binlog(count=12), Grid(350)
    track = Track(BinlogName.parse(ONE), Path(), grid)
    for begin in range(0, len(data), step):
        track.feed(memoryview(data)[begin : begin + step])
        mark = track.digest.mark
        assert mark.offset == track.size
        part = grid.at(mark.offset)
        assert mark.crc64 == crc64nvme(data[part.begin : mark.offset])
    assert track.digest.mark.offset == track.digest.size == len(data)
    assert track.digest.crc64 == crc64nvme(data)


def test_what_was_checked_before_damage_is_marked() -> None:
    """A chunk may end there, and nothing behind it is digested."""
    data = bytearray(binlog(count=12))
    data[900:1000] = bytes(100)
    track = Track(BinlogName.parse(ONE), Path(), Grid(350))
    track.feed(memoryview(data)[:300])
    with pytest.raises(DamageError):
        track.feed(memoryview(data)[300:])
    assert 300 < track.size <= 900
    assert track.digest.mark.offset == track.size
    assert track.digest.mark.crc64 == crc64nvme(data[track.size // 350 * 350 : track.size])
    with pytest.raises(ValueError, match="not all bytes of part"):
        track.digest.part_crc64(Grid(350).at(track.size))


# A run that goes on in the middle of a binlog

GoesOn = Callable[..., Tailer]


def a_binlog(count: int = 9, timestamp: int = NOW) -> BinlogWriter:
    writer = BinlogWriter(timestamp=timestamp)
    writer.previous_gtids(GtidSet())
    for number in range(1, count + 1):
        writer.transaction([statement(f"insert {number:09}")], gtid=(UUID_A, "", number))
    return writer


def track_of(directory: Path, data: bytes, *cuts: int, grid: Grid = GRID) -> Track:
    """What one run brought, read in pieces that end at these cuts."""
    directory.mkdir()
    path = directory / ONE
    path.write_bytes(data)
    track = Track(BinlogName.parse(ONE), path, grid)
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        track.feed(memoryview(data)[begin:end])
    return track


def next_run(directory: Path, position: int, *files: bytes) -> SpoolRun:
    """Another run, which begins in the first binlog."""
    directory.mkdir()
    for number, data in enumerate(files, start=1):
        (directory / f"mysql-bin.{number:06}").write_bytes(data)
    return run_in(directory, position)


@pytest.fixture
def go_on(tmp_path: Path) -> Iterator[GoesOn]:
    """Makes the tailer of a run that goes on, which is closed in the end."""
    made: list[Tailer] = []

    def make(overlap: Overlap, track: Track | None, *files: bytes) -> Tailer:
        run = next_run(tmp_path / f"run-{len(made)}", overlap.position, *files)
        made.append(Tailer(run, GRID, overlap=overlap, track=track))
        return made[-1]

    yield make
    for tailer in made:
        tailer.close()


def certain_overlap(track: Track) -> Overlap:
    overlap = overlap_of(track)
    assert overlap is not None
    return overlap


def is_whole(track: Track, writer: BinlogWriter) -> None:
    """The track is just as if one run had brought all of it."""
    data = bytes(writer.data)
    assert (track.size, track.digest.size) == (len(data), len(data))
    assert track.digest.crc64 == crc64nvme(data)
    for part in GRID.parts(len(data)):
        assert track.digest.part_crc64(part) == crc64nvme(data[part.begin : part.end])
    assert bytes_of(track.body(0, len(data))) == data
    assert track.scanner.transactions == len(writer.transactions)
    assert track.digest.blocks()[0].first_offset == writer.transactions[0].begin


@pytest.mark.parametrize("torn", [0, 1, 18, 40])
@pytest.mark.parametrize("cuts", [0, 1, 4])
def test_a_run_goes_on_from_an_overlap(go_on: GoesOn, tmp_path: Path, cuts: int, torn: int) -> None:
    """What comes again is compared and dropped; a torn tail is forgotten; no byte is lost."""
    writer = a_binlog()
    ends = ends_of(writer)
    data = bytes(writer.data[: ends[4] + torn])
    track = track_of(tmp_path / "one", data, *ends[4 - cuts : 4])
    overlap = certain_overlap(track)
    assert (overlap.end, track.size) == (ends[4], ends[4])
    assert overlap.begin == (ends[4 - cuts] if cuts else 0)
    whole = writer.from_position(overlap.begin) if overlap.begin else bytes(writer.data)
    tailer = go_on(overlap, track, whole)
    assert not tailer.settled
    assert pump_all(tailer) == []
    assert tailer.settled
    is_whole(track, writer)
    assert len(track.segments) == 2
    for begin, end in ((0, 9), (ends[4] - 3, ends[4] + 3), (ends[4], ends[5]), (ends[6], ends[8])):
        assert bytes_of(track.body(begin, end)) == bytes(writer.data[begin:end])


@pytest.mark.parametrize("how", ["flipped", "another"])
def test_other_bytes_in_the_overlap_are_another_history(
    go_on: GoesOn, tmp_path: Path, how: str
) -> None:
    """The track stays as it was, and another run can still go on with it."""
    writer, other = a_binlog(), a_binlog(timestamp=NOW + 1)
    ends = ends_of(writer)
    track = track_of(tmp_path / "one", bytes(writer.data[: ends[4]]), ends[3])
    overlap = certain_overlap(track)
    data = bytearray((other if how == "another" else writer).from_position(overlap.begin))
    if how == "flipped":
        data[len(data) - (len(writer.data) - ends[4]) - 10] ^= 1
    tailer = go_on(overlap, track, bytes(data))
    with pytest.raises(ForkError, match=rf"has other bytes from {ends[3]} to {ends[4]}"):
        pump_all(tailer)
    assert not tailer.settled
    assert (track.size, len(track.segments)) == (ends[4], 1)
    pump_all(go_on(overlap, track, writer.from_position(overlap.begin)))
    is_whole(track, writer)


def test_a_run_that_ends_before_the_overlap_does(go_on: GoesOn, tmp_path: Path) -> None:
    """The server's binlog is shorter than ours, and it has gone on to the next one."""
    writer = a_binlog()
    ends = ends_of(writer)
    track = track_of(tmp_path / "one", bytes(writer.data[: ends[4]]), ends[2])
    overlap = certain_overlap(track)
    short = writer.from_position(overlap.begin)[: -(len(writer.data) - ends[3])]
    waits = go_on(overlap, track, short)
    assert pump_all(waits) == []
    assert not waits.settled
    with pytest.raises(ForkError, match=rf"ends before {ends[4]}"):
        pump_all(go_on(overlap, track, short, binlog(10)))


def test_a_run_goes_on_behind_a_whole_binlog(go_on: GoesOn) -> None:
    """Of the archived one only the overlap may come, then the next one."""
    writer = a_binlog()
    ends = ends_of(writer)
    data = bytes(writer.data)
    overlap = Overlap(
        binlog=BinlogName.parse(ONE), begin=ends[6], end=len(data), crc64=crc64nvme(data[ends[6] :])
    )
    tailer = go_on(overlap, None, writer.from_position(ends[6]), binlog(10, rotate=False))
    (following,) = pump_all(tailer)
    assert (following.name, following.size) == (
        BinlogName.parse(TWO),
        len(binlog(10, rotate=False)),
    )
    more = a_binlog(10)
    with pytest.raises(ForkError, match="continues after the end of the archived one"):
        pump_all(go_on(overlap, None, more.from_position(ends[6])))


def test_what_is_no_event_yet_cannot_be_gone_on_with(tmp_path: Path) -> None:
    """The magic alone, or half a format event: the binlog is read anew."""
    data = bytes(a_binlog().data)
    for size in (0, 3, 4, 60):
        assert overlap_of(track_of(tmp_path / f"at-{size}", data[:size])) is None


def test_damage_is_forgotten_with_an_overlap(go_on: GoesOn, tmp_path: Path) -> None:
    """It is fetched anew from the last good event on."""
    writer = a_binlog()
    ends = ends_of(writer)
    data = bytearray(writer.data)
    data[ends[5] - 6] ^= 1
    track = track_of(tmp_path / "one", bytes(data[: ends[1]]))
    track.path.write_bytes(data)
    with pytest.raises(DamageError):
        track.feed(memoryview(data)[ends[1] :])
    overlap = certain_overlap(track)
    assert ends[4] <= overlap.end == track.size < ends[5]
    pump_all(go_on(overlap, track, writer.from_position(overlap.begin)))
    is_whole(track, writer)


def mariadb_binlog() -> BinlogWriter:
    writer = BinlogWriter(server_version="11.4.5-MariaDB-log")
    writer.gtid_list(MariadbGtidList())
    for number in range(1, 10):
        events = [statement(f"insert {number:09}"), statement("more"), XID]
        writer.mariadb_transaction(events, gtid=(0, number), deferred=True)
    return writer


def start_encryption() -> bytes:
    """As MariaDB makes it up behind the format event: end_log_pos 0, ignorable."""
    body = b"\1" + struct.pack("<I", 1) + bytes(12)
    event = struct.pack("<IBIIIH", NOW, EventType.START_ENCRYPTION, 7, 19 + 17 + 4, 0, 0x80) + body
    return event + struct.pack("<I", zlib.crc32(event))


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("cut", [1, 400, -1])
def test_mariadbs_made_up_events_are_dropped(
    go_on: GoesOn, tmp_path: Path, cut: int, *, encrypted: bool
) -> None:
    """The format event, and the one that began the encryption; positions that are left out too."""
    writer = mariadb_binlog()
    ends = ends_of(writer)
    torn = bytes(writer.data[: ends[4] + 42 + 10])  # behind its GTID event
    track = track_of(tmp_path / "one", torn, ends[3], ends[4])
    overlap = certain_overlap(track)
    assert (overlap.begin, overlap.end) == (ends[3], ends[4] + 42)
    data = writer.from_position(overlap.begin)
    if encrypted:
        at = len(data) - (len(writer.data) - overlap.begin)
        data = data[:at] + start_encryption() + data[at:]
    tailer = go_on(overlap, track, data[:cut])
    pump_all(tailer)
    (tmp_path / "run-0" / ONE).write_bytes(data)
    pump_all(tailer)
    assert track.size == len(writer.data)
    assert bytes_of(track.body(0, track.size)) == bytes(writer.data)


def test_behind_events_that_have_no_position_a_binlog_is_read_anew(tmp_path: Path) -> None:
    """They have passed, and cannot be told from what comes again."""
    writer = mariadb_binlog()
    data = bytes(writer.data[: ends_of(writer)[5] - 40])
    track = track_of(tmp_path / "one", data, ends_of(writer)[4])
    assert overlap_of(track) is None
    assert track.size == ends_of(writer)[4] + 42


def test_a_run_that_begins_elsewhere_is_damage(go_on: GoesOn, tmp_path: Path) -> None:
    """Its first event does not begin at the position that was asked for."""
    writer = a_binlog()
    ends = ends_of(writer)
    track = track_of(tmp_path / "one", bytes(writer.data[: ends[4]]), ends[3])
    overlap = certain_overlap(track)
    with pytest.raises(DamageError, match=rf"does not begin at {ends[3]}"):
        pump_all(go_on(overlap, track, writer.from_position(ends[2])))
    with pytest.raises(DamageError, match="a binlog begins with"):
        pump_all(go_on(overlap, track, b"x" * 300))
    made_up = writer.from_position(ends[3])[: -(len(writer.data) - ends[3])]
    endless = go_on(overlap, track, MAGIC + made_up.removeprefix(MAGIC) * 80)
    with pytest.raises(DamageError, match="no event within"):
        pump_all(endless)


def test_behind_4_gib_a_run_begins_below(tmp_path: Path) -> None:
    """mysqlbinlog takes no greater position: all from the last place below comes again."""
    far, chance = 1 << 32, bytes(range(256)) * 2048
    digest = Digest(Grid(1 << 33))
    digest._blocks = [0] * 1023  # as if so much had passed
    digest.size = far - 1000
    for length in (0, 500, 499):
        digest.feed(memoryview(chance)[:length])
        digest.set_mark()
    for _ in range(4):
        digest.feed(memoryview(chance))
        digest.set_mark()
    assert digest.marks[0].offset > far
    assert digest.low_mark.offset == far - 1
    track = track_of(tmp_path / "one", bytes(a_binlog().data))
    track.digest = digest
    overlap = certain_overlap(track)
    assert (overlap.begin, overlap.end) == (far - 1, far - 1 + 4 * len(chance))
    assert overlap.crc64 == crc64nvme(chance * 4)


def test_a_track_whose_files_are_gone(tmp_path: Path) -> None:
    """Its overlap is known without them, and the bytes from there on are in the next file."""
    data = bytes(a_binlog().data)
    track = track_of(tmp_path / "one", data)
    before = certain_overlap(track)
    grid = track.digest._grid
    track.raise_floor()
    (tmp_path / "one" / ONE).unlink()
    assert (track.floor, track.segments, track.path) == (track.size, (), None)
    assert overlap_of(track) == before
    assert track.overlap_at(before.begin) is None, "where that is, nothing is known"
    assert set(track.sums) == {0, track.size, *(part.end for part in grid.parts(track.size))}
    for at, crc64 in track.sums.items():
        assert crc64 == crc64nvme(data[:at])
        if 4 < at < track.size:
            found = track.overlap_at(at)
            assert found is not None
            assert found.crc64 == crc64nvme(data[at : track.size])


class Meanwhile(Track):
    """Whenever somebody has looked where its bytes are, the loop notes the file of a new run."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "segments":
            more = SpoolFile(found[-1].path, found[-1].begin + 100, 0)
            super().__setattr__(name, type(found)([*found, more]))
        return found


def test_a_body_is_read_while_a_run_goes_on(tmp_path: Path) -> None:
    """A worker takes the files as they are at one moment."""
    track = Meanwhile(BinlogName.parse(ONE), tmp_path / "one", Grid(1000))
    (tmp_path / "one").write_bytes(bytes(range(100)))
    assert bytes_of(track.body(10, 90)) == bytes(range(10, 90))


@pytest.mark.parametrize(
    ("ended", "state", "newer", "size_on_server"),
    list(product([False, True], list(TrackState)[:3], [False, True], [None, 99, 100, 101])),
)
def test_what_closes_a_binlog(
    *, ended: bool, state: TrackState, newer: bool, size_on_server: int | None
) -> None:
    """Its own end; or the same run's next file with our GTIDs; or a newer one and the size."""
    scanner = SimpleNamespace(position=100, ended=ended)
    track: Any = SimpleNamespace(name=name(1), size=100, state=state, scanner=scanner, closed=None)
    sizes = {name(1): size_on_server, name(2): 4 if newer else None}
    Track.judge(track, {
        of: ServerBinlog(name=of, size=size, encrypted=False)
        for of, size in sizes.items() if size is not None
    })  # fmt: skip
    closes = any([ended, state is TrackState.FOLLOWED, newer and size_on_server == 100])
    assert track.state is (TrackState.CLOSED if closes else state)
