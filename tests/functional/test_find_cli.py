"""`find` as a user meets it: real processes, a bucket of moto's, what is printed and exit codes."""

import os
import pty
import re
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from lab.s3 import REGION, MotoServer
from tests import command
from tests.binlog_writer import UUID_A
from tests.command import argv, environment
from tests.functional.open_archive import OpenArchive


def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    return command.run("find", *arguments, **more)


class Archive(OpenArchive):
    """A source with one open binlog of DDL, one statement a second; the fourth is a DROP."""

    def __init__(self, moto: MotoServer, count: int = 6, padding: int = 0) -> None:
        comment = f" /* {'x' * padding} */" if padding else ""
        tables = [f"CREATE TABLE shop.x{number} (a int)" for number in range(1, count)]
        tables[3] = "DROP TABLE orders"
        super().__init__(moto, [text + comment for text in tables], db="shop")

    def find(self, *arguments: str, source: str = "orders") -> "subprocess.CompletedProcess[str]":
        return self.run("find", *arguments, source=source)


@pytest.fixture
def archive(moto: MotoServer) -> Archive:
    return Archive(moto)


def test_the_command_names_the_file_that_was_named(archive: Archive, tmp_path: Path) -> None:
    """What stands in it, or in the environment, need not be said again."""
    file = tmp_path / "my orders.toml"
    file.write_text(
        f'[stream]\nsource = "orders"\n[s3]\nurl = "{archive.url}"\naddressing_style = "path"\n'
        f'endpoint_url = "{archive.moto.endpoint_url}"\n'
    )
    done = run(
        f"--config={file}",
        f"--gtid={UUID_A}:4",
        **archive.moto.env(),
        BINLOG2S3_REGION=REGION,
    )
    assert done.returncode == 0, done.stderr
    words = shlex.split(done.stdout.splitlines()[-1])
    assert words == [
        *("binlog2s3", "restore", "--config", str(file), "--before-gtid", f"{UUID_A}:4"),
    ]


def test_a_bar_on_a_terminal(moto: MotoServer) -> None:
    """On standard error, out of the way of what is printed on the same terminal."""
    archive = Archive(moto, count=40, padding=1_000_000)
    master, slave = pty.openpty()
    seen = bytearray()

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(master, 65536):
                seen.extend(data)

    thread = Thread(target=read)
    thread.start()
    try:
        done = subprocess.run(
            argv("find", *archive.where(), "--table=shop.orders"),
            env=environment(**moto.env(), TERM="xterm-256color", COLUMNS="120", LINES="40"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=slave,
            check=False,
            timeout=120,
        )
    finally:
        os.close(slave)
        thread.join(60)
        os.close(master)
    assert done.returncode == 0
    assert f"{UUID_A}:4" in done.stdout.decode()
    shown = seen.decode()
    assert re.search(r"MiB of 3\d\.\d MiB, \d found", shown)
    assert UUID_A not in shown
    assert "\x1b" not in done.stdout.decode()
