"""A body of several ranges: what it holds open, and how it fails."""

import os
from pathlib import Path

import pytest

from binlog2s3.errors import SpoolError
from binlog2s3.store.contract import FileRange, FileRanges


def files(directory: Path, count: int) -> tuple[FileRange, ...]:
    """Ranges "1234" of files that hold "01234567"."""
    ranges = []
    for number in range(count):
        path = directory / str(number)
        path.write_bytes(b"01234567")
        ranges.append(FileRange(path, 1, 5))
    return tuple(ranges)


def open_files() -> int:
    """How many descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_hundred_ranges_hold_one_descriptor_at_most(tmp_path: Path) -> None:
    """None before the first read, and none after the end."""
    before = open_files()
    body = FileRanges(files(tmp_path, 100))
    reader = body.open()
    assert open_files() == before
    for _ in range(100):
        assert reader.read(4) == b"1234"
        assert open_files() == before + 1
    assert reader.read(1) == b""
    reader.seek(0)
    assert reader.read(-1) == b"1234" * 100
    reader.close()
    assert open_files() == before
    reader.close()


def test_each_reader_has_a_place_of_its_own(tmp_path: Path) -> None:
    """Two attempts at once, or one after the other, read the same bytes."""
    body = FileRanges(files(tmp_path, 3))
    one, other = body.open(), body.open()
    assert one.read(6) == b"123412"
    assert other.read(12) == b"1234" * 3
    assert one.read(12) == b"341234"
    one.close()
    other.close()


def test_a_closed_reader_opens_nothing(tmp_path: Path) -> None:
    """What would read on after the end of an attempt is told so."""
    reader = FileRanges(files(tmp_path, 2)).open()
    reader.close()
    before = open_files()
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)
    assert open_files() == before


def test_a_file_that_shrank(tmp_path: Path) -> None:
    """Raised where its bytes are missing, never an end before the end."""
    ranges = files(tmp_path, 3)
    os.truncate(ranges[1].path, 3)
    reader = FileRanges(ranges).open()
    assert reader.read(6) == b"123412"
    with pytest.raises(SpoolError, match="1 ends at 3, before 5: it was truncated") as caught:
        reader.read(1)
    assert caught.value.hint
    reader.seek(0)
    with pytest.raises(SpoolError, match="was truncated"):
        reader.read(-1)
    reader.close()


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    """Nothing is skipped; when it is back the same read succeeds."""
    ranges = files(tmp_path, 3)
    ranges[1].path.rename(tmp_path / "aside")
    before = open_files()
    reader = FileRanges(ranges).open()
    assert reader.read(4) == b"1234"
    for _ in range(2):
        with pytest.raises(SpoolError, match=r"cannot read .*1: No such file"):
            reader.read(5)
        assert reader.tell() == 4
    (tmp_path / "aside").rename(ranges[1].path)
    assert reader.read(5) == b"12341"
    reader.close()
    assert open_files() == before


def test_a_range_of_what_is_no_file(tmp_path: Path) -> None:
    """What cannot be read is the spool's error, with its path."""
    with pytest.raises(SpoolError, match="directory"):
        FileRange(tmp_path, 0, 1).open().read(1)
