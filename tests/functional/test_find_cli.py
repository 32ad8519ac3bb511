"""`find` as a user meets it: the command that it names, and its bar on a terminal."""

import os
import pty
import re
import shlex
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Thread

from lab.s3 import MotoServer
from tests.binlog_writer import UUID_A
from tests.command import argv, environment
from tests.functional.open_archive import OpenArchive
from tests.golden.buckets import DROP, Source, golden
from tests.golden.outputs import called


def test_the_command_names_the_file_that_was_named(tmp_path: Path) -> None:
    """What stands in it, or in the environment, need not be said again."""
    source = Source()
    source.grows([DROP])
    source.beats()
    file = tmp_path / "my orders.toml"
    file.write_text('[stream]\nsource = "orders"\n[s3]\nurl = "s3://acme/pre"\n')
    asked = ["find", f"--config={file}", f"--gtid={UUID_A}:1"]
    done = called(golden(source), asked, BINLOG2S3_REGION="eu-central-1")
    assert done.code == 0, done.err
    assert shlex.split(done.out.splitlines()[-1]) == [
        *("binlog2s3", "restore", "--config", str(file), "--before-gtid", f"{UUID_A}:1"),
    ]


def test_a_bar_on_a_terminal(moto: MotoServer) -> None:
    """On standard error, out of the way of what is printed on the same terminal."""
    texts = [f"CREATE TABLE x{number} (a int) /* {'x' * 1_000_000} */" for number in range(39)]
    texts[3] = "DROP TABLE orders"
    archive = OpenArchive(moto, texts)
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
