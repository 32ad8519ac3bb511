"""The tailer: what it reads, when it goes on to the next file, what it refuses."""

from pathlib import Path

import pytest

from binlog2s3.binlog import BinlogName
from binlog2s3.checksum import crc64nvme
from binlog2s3.errors import ArchiveError, DamageError
from binlog2s3.grid import Grid
from binlog2s3.gtid import GtidSet
from binlog2s3.server import ServerBinlog
from binlog2s3.spool import Run, RunFacts
from binlog2s3.tailer import Tailer, Track
from tests.binlog_writer import UUID_A, BinlogWriter, statement

GRID = Grid(1000)
ONE, TWO = "mysql-bin.000001", "mysql-bin.000002"


def run_in(directory: Path) -> Run:
    facts = RunFacts(source="s", target="t", server_uuid=UUID_A, binlog=ONE, position=4)
    return Run(directory, facts)


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


def test_a_file_is_read_as_it_grows(tmp_path: Path) -> None:
    """What is checked is a whole number of events, however the file grows."""
    data = binlog()
    tailer = Tailer(run_in(tmp_path), GRID)
    assert tailer.pump() == 0
    assert tailer.current is None
    with (tmp_path / ONE).open("wb") as file:
        for cut in range(0, len(data), 37):
            file.write(data[cut : cut + 37])
            file.flush()
            tailer.pump()
            tailer.pump()
    (track,) = tailer.take_new()
    assert track.size == len(data)
    assert track.digest.size == len(data)
    assert track.scanner.transactions == 3
    assert track.judge({})
    tailer.close()


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
    with pytest.raises(ArchiveError, match=r"goes on with mysql-bin\.000003"):
        pump_all(tailer)
    tailer.close()


def test_a_hole_never_passes(tmp_path: Path) -> None:
    """Zeros in the middle, as a full disk leaves them, are damage at their first event."""
    data = bytearray(binlog(count=20))
    data[900:1400] = bytes(500)
    (tmp_path / ONE).write_bytes(data)
    tailer = Tailer(run_in(tmp_path), GRID)
    with pytest.raises(DamageError) as caught:
        pump_all(tailer)
    assert caught.value.offset <= 900
    assert tailer.current is not None
    assert 0 < tailer.current.size <= 900
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
    with pytest.raises(ValueError, match="has not passed whole"):
        track.digest.part_crc64(Grid(350).at(track.size))
