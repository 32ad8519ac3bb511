"""Compares what lies in the bucket with the server's own files.

Law: the server's file is the truth. One bit may differ on MariaDB: the in-use flag (byte 21, bit
0), which stays set for ever in a binlog that ended in a crash.
"""

import hashlib
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.mysql import MysqlServer

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PIECE_BYTES = 1024 * 1024
FLAG_OFFSET = 21  # magic 4, then the flags at byte 17 of the format event's header


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlog:
    """One closed binlog of the server; `path` holds its plain bytes."""

    name: str
    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The names of closed binlogs: equal in the bucket, not there, or there with other bytes."""

    equal: tuple[str, ...]
    missing: tuple[str, ...]
    different: tuple[str, ...]
    equal_bytes: int

    @property
    def ok(self) -> bool:
        """Every closed binlog is there with the server's bytes."""
        return not self.missing and not self.different


def digest(pieces: Iterable[bytes], *, masked: bool = False) -> str:
    """SHA-256 of a binlog that comes in pieces; `masked` leaves the in-use flag out."""
    sha = hashlib.sha256()
    offset = 0
    for piece in pieces:
        if masked and offset <= FLAG_OFFSET < offset + len(piece):
            changed = bytearray(piece)
            changed[FLAG_OFFSET - offset] &= 0xFE
            sha.update(changed)
        else:
            sha.update(piece)
        offset += len(piece)
    return sha.hexdigest()


def file_pieces(path: Path) -> Iterator[bytes]:
    """A file's bytes, a piece at a time."""
    with path.open("rb") as file:
        yield from iter(lambda: file.read(PIECE_BYTES), b"")


def closed_binlogs(server: MysqlServer, *, flush: bool = True) -> list[Binlog]:
    """All binlogs that are closed, oldest first; `flush` closes the open one before.

    An encrypted server's files are fetched in plain with its own mysqlbinlog.
    """
    masked = server.binaries.flavour == "mariadb"
    if flush:
        server.query("FLUSH BINARY LOGS")
    names = [name for name, _size in server.binlogs()][:-1]
    folder = _plain_copies(server, names) if server.encrypted else server.datadir
    return [
        Binlog(
            name=name,
            path=folder / name,
            size=(folder / name).stat().st_size,
            sha256=digest(file_pieces(folder / name), masked=masked),
        )
        for name in names
    ]


def _plain_copies(server: MysqlServer, names: list[str]) -> Path:
    folder = server.directory / "plain"
    folder.mkdir(exist_ok=True)
    login = ["--no-defaults", f"--socket={server.socket}", "--user=root"]
    what = ["--read-from-remote-server", "--raw", f"--result-file={folder}/", *names]
    subprocess.run([str(server.binaries.binlog), *login, *what], check=True, timeout=600)
    return folder


def archived_keys(
    client: "S3Client", bucket: str, prefix: str, source: str, *, folder: str = "binlogs"
) -> dict[str, list[str]]:
    """The keys of the source's archived binlogs (or `folder="entries"`) by file name.

    One name may lie in several lineages.
    """
    root = "/".join(filter(None, (prefix.strip("/"), "archive", source))) + "/"
    found: dict[str, list[str]] = {}
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=root):
        for item in page.get("Contents", []):
            _lineage, _, rest = item["Key"].removeprefix(root).partition("/")
            place, _, name = rest.partition("/")
            if place == folder:
                found.setdefault(name, []).append(item["Key"])
    return found


def object_digest(client: "S3Client", bucket: str, key: str, *, masked: bool = False) -> str:
    """SHA-256 of an object."""
    body = client.get_object(Bucket=bucket, Key=key)["Body"]
    with body:
        return digest(body.iter_chunks(PIECE_BYTES), masked=masked)


def compare(
    server: MysqlServer,
    client: "S3Client",
    bucket: str,
    prefix: str,
    source: str,
    *,
    binlogs: Iterable[Binlog] | None = None,
) -> Comparison:
    """Compare every closed binlog of the server with the bucket.

    `binlogs` are what `closed_binlogs` said before; without them it is asked now, which flushes.
    """
    masked = server.binaries.flavour == "mariadb"
    keys = archived_keys(client, bucket, prefix, source)
    equal: list[str] = []
    missing: list[str] = []
    different: list[str] = []
    equal_bytes = 0
    for binlog in closed_binlogs(server) if binlogs is None else binlogs:
        digests = [
            object_digest(client, bucket, key, masked=masked) for key in keys.get(binlog.name, [])
        ]
        if binlog.sha256 in digests:
            equal.append(binlog.name)
            equal_bytes += binlog.size
        else:
            (different if digests else missing).append(binlog.name)
    return Comparison(
        equal=tuple(equal),
        missing=tuple(missing),
        different=tuple(different),
        equal_bytes=equal_bytes,
    )
