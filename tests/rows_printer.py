"""Stands in for mysqlbinlog: prints the rows of tables with an INT and a LONGBLOB.

It takes from standard input what the real one would get: a binlog without checksums.
"""

import struct
import sys
from pathlib import Path

VERBS = {0: "INSERT INTO", 1: "UPDATE", 2: "DELETE FROM"}
TYPES = {30: 0, 31: 1, 32: 2, 23: 0, 24: 1, 25: 2}


def install(directory: Path, *, version: str = "9.7.4", mariadb: bool = False) -> Path:
    """A program that does this, and says that it is of MySQL, or of MariaDB."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / ("mariadb-binlog" if mariadb else "mysqlbinlog")
    says = "MariaDB --stop-never" if mariadb else "--stop-never"
    path.write_text(
        f'#!/bin/sh\ncase "$2" in --version) echo "mysqlbinlog Ver {version} "; exit;;\n'
        f'--help) echo "{says}"; exit;; esac\nexec {sys.executable} {__file__} "$@"\n'
    )
    path.chmod(0o755)
    return path


def main() -> None:
    assert sys.argv[1:] == ["--no-defaults", "-v", "-v", "--base64-output=decode-rows", "-"]
    stdin, out, name = sys.stdin.buffer, sys.stdout.buffer, b""
    assert stdin.read(4) == b"\xfebin"
    while head := stdin.read(19):
        kind, size = struct.unpack("<4xB4xI6x", head)
        body = stdin.read(size - 19)
        if len(body) < size - 19:
            sys.exit("ERROR: Event truncated")
        if kind == 19:
            database, at = body[9 : 9 + body[8]], 10 + body[8]
            name = b"`%b`.`%b`" % (database, body[at + 1 : at + 1 + body[at]])
            out.write(b"# Table_map\n")
        elif kind != 15:
            out.write(rows(TYPES[kind], name, body))
            out.flush()
    out.write(b"ROLLBACK /* added by mysqlbinlog */ /*!*/;\n")


def rows(kind: int, name: bytes, body: bytes) -> bytes:
    at, images = 8 + struct.unpack_from("<H", body, 8)[0] + 1, 1 + (kind == 1)
    at += images
    text = b""
    while at < len(body):
        text += b"### %b %b\n" % (VERBS[kind].encode(), name)
        for image in range(images):
            text += b"### SET\n" if kind == 0 or image else b"### WHERE\n"
            number, size = struct.unpack_from("<II", body, at + 1)
            value = body[at + 9 : at + 9 + size]
            at += 9 + size
            text += b"###   @1=%d /* INT meta=0 nullable=0 is_null=0 */\n" % number
            text += b"###   @2='%b' /* LONGBLOB meta=4 nullable=1 is_null=0 */\n" % value
    return text


if __name__ == "__main__":
    main()
