"""Slices that are read as one body are their bytes, one after the other."""

import io
import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.store.contract import FileRange, FileRanges
from tests.sampling import examples

MOST = 80


@st.composite
def cut(draw: st.DrawFn) -> list[tuple[bytes, int, int]]:
    """Files, and of each a range, which may be empty."""
    found = []
    for whole in draw(st.lists(st.binary(max_size=20), max_size=6)):
        begin, end = sorted(draw(st.tuples(*[st.integers(0, len(whole))] * 2)))
        found.append((whole, begin, end))
    return found


def body_of(directory: Path, files: list[tuple[bytes, int, int]]) -> FileRanges:
    """The same as files on disk."""
    ranges = []
    for number, (whole, begin, end) in enumerate(files):
        path = directory / f"piece-{number}"
        path.write_bytes(whole)
        ranges.append(FileRange(path, begin, end))
    return FileRanges(tuple(ranges))


@settings(max_examples=examples(300))
@given(cut(), st.data())
def test_ranges_read_as_their_bytes(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[bytes, int, int]],
    data: st.DataObject,
) -> None:
    """Any sequence of reads and seeks gives what the same ones give on the bytes in memory."""
    pieces = body_of(tmp_path_factory.getbasetemp(), files)
    whole = b"".join(content[begin:end] for content, begin, end in files)
    assert pieces.size == len(whole)
    with closing(pieces.open()) as reader:  # a body is read anew at each attempt
        assert reader.read() == whole
    reader, model = pieces.open(), io.BytesIO(whole)
    for _ in range(data.draw(st.integers(0, 12))):
        match data.draw(st.sampled_from(["read", "readinto", "seek", "from end", "on"])):
            case "read":
                size = data.draw(st.integers(-1, MOST) | st.none())
                assert reader.read(size) == model.read(size)
            case "readinto":
                ours, theirs = bytearray(b"#" * 7), bytearray(b"#" * 7)
                assert reader.readinto(ours) == model.readinto(theirs)
                assert ours == theirs
            case "seek":
                where = data.draw(st.integers(0, MOST))
                assert reader.seek(where) == model.seek(where)
            case "from end":
                back = data.draw(st.integers(-MOST, MOST))
                assert reader.seek(back, os.SEEK_END) == model.seek(back, os.SEEK_END)
            case _:
                step = data.draw(st.integers(-MOST, MOST))
                assert reader.seek(step, os.SEEK_CUR) == model.seek(step, os.SEEK_CUR)
        assert reader.tell() == model.tell()
    reader.close()
