"""The manifest of a directory of binlogs: what is written is read, and nothing else is believed."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from binlog2s3.errors import RecoveryError
from binlog2s3.recover.manifest import MANIFEST, Manifest, WrittenFile
from lab.pitr_examples import LINEAGE, PLAN, UUID

FILES = (
    WrittenFile.of(replace(PLAN.pieces[0], left_out=((73400200, 73400300),)), 9, 1),
    WrittenFile.of(PLAN.pieces[1], 1234567, 2**64 - 1),
)
FOUND = Manifest(
    source="orders-primary",
    flavour="mysql",
    server_version="9.7.0",
    lineage=LINEAGE,
    written_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    gtids_before=f"{UUID}:1-15201",
    gtids_added=f"{UUID}:15202-48212",
    gtids_skipped=None,
    files=FILES,
)
MARIADB = replace(
    FOUND,
    flavour="mariadb",
    gtids_before="0-1-5,1-1-7",
    gtids_added=None,
    gtids_skipped="0-1-6,0-1-8",
    files=(replace(FILES[1], gtids=None),),
)


@pytest.mark.parametrize("one", [FOUND, MARIADB, replace(FOUND, gtids_before=None, files=())])
def test_what_is_written_is_read(one: Manifest) -> None:
    """All of it."""
    assert Manifest.read(one.to_json(), MANIFEST) == one
    assert [WrittenFile.of(piece, 9, 1).name for piece, _ in one.pieces()] == [
        file.name for file in one.files
    ]


def test_the_gtids_before_each_file() -> None:
    """Those before the first one, and what the files before it add."""
    befores = [str(before) for _, before in FOUND.pieces()]
    assert befores == [f"{UUID}:1-15201", f"{UUID}:1-46208"]
    assert [before for _, before in replace(FOUND, gtids_before=None).pieces()] == [None, None]


def changed(*where: str | int, to: Any) -> Callable[[dict[str, Any]], None]:
    """What puts another value there."""

    def change(document: Any) -> None:
        for key in where[:-1]:
            document = document[key]
        if to is ...:
            del document[where[-1]]
        else:
            document[where[-1]] = to

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(changed(key, to=...) for key in json.loads(FOUND.to_json())),
        *(changed("files", 0, key, to=...) for key in json.loads(FOUND.to_json())["files"][0]),
        changed("format", to=2),
        changed("flavour", to="postgres"),
        changed("source", to="../x"),
        changed("lineage", to=".."),
        changed("server_version", to="9.7\x1b[31m"),
        changed("gtids_before", to="; DROP"),
        changed("gtids_before", to="0-1-5"),
        changed("gtids_added", to="0-1-5"),
        changed("gtids_skipped", to="a\nb"),
        changed("files", to={}),
        changed("files", 0, to="x"),
        *(changed("files", 0, "lineage", to=to)
          for to in ("..", "/etc", "", f"{LINEAGE}/..", f"../{LINEAGE}", None, 7, "a\0")),
        *(changed("files", 0, "binlog", to=to)
          for to in ("../b.000001", "/b.000001", "..", "passwd", "b\x1b.000001", "b.1\n",
                     f"{'b' * 300}.000001", None, ["b.000001"])),
        changed("files", 0, "size", to=-1),
        changed("files", 0, "size", to=1.5),
        changed("files", 0, "size", to=True),
        changed("files", 0, "size", to=10**19),
        changed("files", 1, "size", to=1234568),
        changed("files", 0, "begin", to=2**40),
        changed("files", 0, "left_out", to=[[1]]),
        changed("files", 0, "left_out", to=[[2**40, 2**41]]),
        changed("files", 0, "left_out", to=[[73400300, 73400200]]),
        changed("files", 0, "crc64nvme", to="xyz"),
        changed("files", 0, "crc64nvme", to=5),
        changed("files", 0, "greatest_commit", to="yesterday"),
        changed("files", 1, to=json.loads(FOUND.to_json())["files"][0]),
    ],
)  # fmt: skip
def test_what_is_not_as_the_format_says_is_refused(
    change: Callable[[dict[str, Any]], None],
) -> None:
    """A missing field, a path for a name, a number out of bounds: exit 8, one printable line."""
    document = json.loads(FOUND.to_json())
    change(document)
    refuses(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\0" * 9, b"\xff\xfe", b"[]", b"{}", b'"x"', b'{"name": "left-pad", "version": 1}',
        b'{"format": 1}', b"[" * 100_000, b'{"format": 1, "format": 1}', b"x" * (Manifest.MOST + 1),
        b'{"format": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_refused(data: bytes) -> None:
    """JSON of something else, no JSON, too much of it."""
    refuses(data)


def refuses(data: bytes) -> None:
    with pytest.raises(RecoveryError, match=MANIFEST) as caught:
        Manifest.read(data, MANIFEST)
    assert caught.value.exit_code == 8
    assert "pitr --output-dir" in caught.value.hint
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000
