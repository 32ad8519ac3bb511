"""Giving the beginning of a file back: no byte behind it changes, and what fails says so."""

import errno
import os
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.errors import SpoolError
from binlog2s3.stream.punch import PunchUnsupportedError, _refused, allocated, punch

MIB = 1 << 20


def open_files() -> int:
    """How many descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def written(path: Path, data: bytes) -> Path:
    """A file whose blocks are on the disk, so that they are counted as they are."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


@given(st.integers(-1, 5 << 14))
def test_only_whole_blocks_before_the_end_go(
    tmp_path_factory: pytest.TempPathFactory, end: int
) -> None:
    """They read as zeros; all that is at the end or behind it, or shares a block with it, stays."""
    data = Random(end).randbytes(1 << 16)
    path = written(tmp_path_factory.getbasetemp() / "punched", data)
    block = path.stat().st_blksize
    kept = max(0, end - end % block)
    freed = punch(path, end)
    after = path.read_bytes()
    assert after[kept:] == data[kept:]
    assert after[:kept] == bytes(min(kept, len(data)))
    assert path.stat().st_size == len(data)
    assert (freed > 0) == (kept > 0)


def test_the_disk_gets_them_back(tmp_path: Path) -> None:
    """As many bytes as it says; a second time there is nothing to give."""
    path = written(tmp_path / "file", os.urandom(MIB))
    before = allocated(path)
    assert before >= MIB
    freed = punch(path, MIB - 1)
    assert freed == before - allocated(path)
    assert freed >= MIB // 2
    assert punch(path, MIB - 1) == 0


def test_a_writer_goes_on_behind_it(tmp_path: Path) -> None:
    """mysqlbinlog has the file open and appends; neither its place nor its bytes are moved."""
    path = written(tmp_path / "file", b"")
    first, second = os.urandom(MIB), os.urandom(MIB)
    with path.open("wb") as file:
        file.write(first)
        file.flush()
        assert punch(path, MIB // 2) >= 0
        file.write(second)
    assert path.read_bytes() == bytes(MIB // 2) + first[MIB // 2 :] + second


def test_a_file_system_that_cannot() -> None:
    """/proc is one; that is an error of its own, which a caller can live with."""
    with pytest.raises(PunchUnsupportedError, match=r"comm: its file system cannot free") as caught:
        punch(Path("/proc/self/comm"), MIB)
    assert caught.value.hint
    assert caught.value.exit_code == 5


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EIO])
def test_what_cannot_be_is_not_what_failed(number: int) -> None:
    """Only a missing operation is one that a spool can do without."""
    error = _refused(Path("/spool/b.000001"), number)
    unsupported = number in (errno.EOPNOTSUPP, errno.ENOSYS)
    assert isinstance(error, PunchUnsupportedError) is unsupported
    assert str(error).startswith("/spool/b.000001: its ")
    assert os.strerror(number).lower() in str(error)
    assert error.hint


def test_what_is_no_file(tmp_path: Path) -> None:
    """One that is gone, a directory: the path and the reason."""
    for path, reason in ((tmp_path / "gone", "no such file"), (tmp_path, "is a directory")):
        with pytest.raises(SpoolError, match=f"{path}: .*{reason}") as caught:
            punch(path, MIB)
        assert not isinstance(caught.value, PunchUnsupportedError)


def test_it_holds_no_descriptor(tmp_path: Path) -> None:
    """Neither when it did it nor when it could not."""
    path = written(tmp_path / "file", bytes(MIB))
    before = open_files()
    punch(path, MIB)
    punch(path, 0)
    with pytest.raises(SpoolError):
        punch(Path("/proc/self/comm"), MIB)
    assert open_files() == before
