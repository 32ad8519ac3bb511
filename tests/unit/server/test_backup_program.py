"""The program of a base backup: whether it is the right one, and what it is given."""

import os
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.config.backup import BackupTool
from binlog2s3.config.stream import MysqlConfig
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.server.backup_program import (
    BackupProgram,
    RunningBackup,
    command_of,
    program_of,
)
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.versioned import Versioned, versioned_tables
from tests.unit.recover.fake_server import fake

PASSWORD = "horse # battery"
SAYS = {
    "mysqldump": "mysqldump  Ver 9.7.4-2 for Linux on x86_64 ((Debian))",
    "mysqldump of 5.7": "mysqldump  Ver 10.13 Distrib 5.7.44, for linux-glibc2.12 (x86_64)",
    "mariadb-dump": "mariadb-dump  Ver 10.19 Distrib 10.11.18-MariaDB, for debian-linux-gnu",
    "mariadb-dump 11": "/opt/root/bin/mariadb-dump from 11.4.5-MariaDB, client 10.19 for linux",
    "mysqldump of MariaDB": "mysqldump  Ver 10.19 Distrib 10.6.5-MariaDB, for Linux (x86_64)",
    "mariabackup": "/usr/bin/mariabackup based on MariaDB server 10.11.18-MariaDB debian-linux",
    "xtrabackup": "xtrabackup version 8.0.35-30 based on MySQL server 8.0.35 Linux (x86_64)",
    "mysql": "mysql  Ver 9.7.4-2 for Linux on x86_64 ((Debian))",
    "mysqlpump": "mysqlpump  Ver 8.0.15 for linux-glibc2.12 on x86_64",
    "nothing": "",
}
GOOD = {
    "mysqldump": ("mysqldump", "mysqldump of 5.7"),
    "mariadb-dump": ("mariadb-dump", "mariadb-dump 11", "mysqldump of MariaDB"),
    "mariabackup": ("mariabackup",),
    "xtrabackup": ("xtrabackup",),
}


def program(folder: Path, says: str, help_: str = "--source-data") -> Path:
    """A program that says this of itself."""
    path = folder / "program"
    path.write_text(
        f'#!/bin/sh\ncase "$2" in --version) echo "{says}";; *) echo "{help_}";; esac\n'
    )
    path.chmod(0o755)
    return path


@pytest.fixture
def login(tmp_path: Path) -> Login:
    (tmp_path / "password").write_text(PASSWORD)
    return resolve(
        MysqlConfig(
            socket=Path("/run/mysqld.sock"), user="backup", password_file=tmp_path / "password"
        )
    )


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("tool", GOOD)
def test_only_the_tool_itself_is_taken(
    tool: BackupTool, says: str, tmp_path: Path, login: Login
) -> None:
    """By what it says of itself, whatever its file is called."""
    path = program(tmp_path, SAYS[says])
    if says in GOOD[tool]:
        assert program_of(tool, login, path, ()).arguments[0] == str(path)
        return
    with pytest.raises(SourceError, match=f"is not {tool}"):
        program_of(tool, login, path, ())


def test_an_older_mysqldump_gets_its_own_option(tmp_path: Path, login: Login) -> None:
    """Before 8.0.26 there was no --source-data; the operator's options come last."""
    path = program(tmp_path, SAYS["mysqldump"], "--master-data")
    arguments = program_of("mysqldump", login, path, ("--hex-blob",)).arguments
    assert "--master-data=2" in arguments
    assert "--source-data=2" not in arguments
    assert arguments[-1] == "--hex-blob"


@pytest.mark.parametrize(
    ("help_", "options", "has_history"),
    [
        ("--dump-history", (), True),
        ("--dump-history", ("--skip-dump-history",), False),
        ("--hex-blob", (), False),
        ("--hex-blob", ("-H",), True),
    ],
)
def test_the_history_of_versioned_tables_is_dumped(
    help_: str, options: tuple[str, ...], has_history: bool, tmp_path: Path, login: Login
) -> None:
    """By a program that has the option, if it is asked for; the operator's options come last."""
    path = program(tmp_path, SAYS["mariadb-dump"], help_)
    made = program_of("mariadb-dump", login, path, options, history=True)
    assert made.has_history == has_history
    without = program_of("mariadb-dump", login, path, options)
    assert without.has_history == (options == ("-H",))


@pytest.mark.parametrize(
    ("version", "by_transaction", "obstacle"),
    [
        ("10.11.18-MariaDB", [], "$"),
        ("11.8.2-MariaDB", [{"db": "shop", "name": "b"}], "--dump-history refuses .*: shop.b"),
        ("10.6.5-MariaDB", [], "a server of 10.6.5-MariaDB cannot load it"),
    ],
)
def test_why_no_dump_has_the_history_of_a_server(
    version: str, by_transaction: list[dict[str, str]], obstacle: str
) -> None:
    """An older server takes no rows of the past; the option refuses tables with transaction ids."""
    tables = [{"db": "shop", "name": "a"}, {"db": "shop", "name": "b"}]
    answers = {
        "SYSTEM VERSIONED": tables,
        "@@version": [{"it": version}],
        "ROW START": by_transaction,
    }
    found = versioned_tables(fake(answers))
    assert found.tables == ("shop.a", "shop.b")
    assert re.match(obstacle, found.obstacle)
    assert versioned_tables(fake({})) == Versioned()


SHOW = """
import os, sys
print(sys.argv[1:])
print(dict(os.environ))
print(open(sys.argv[1].partition("=")[2]).read())
"""


def shown(made: BackupProgram, folder: Path) -> list[str]:
    """What such a program gets: its arguments, its environment, its option file."""
    (folder / "empty").mkdir()
    with RunningBackup(made, folder / "empty") as running:
        text = b"".join(running.output()).decode()
        running.check_end()
    return text.split("\n", 2)


@pytest.mark.parametrize("group", ["client", "xtrabackup"])
def test_the_password_is_in_a_file_in_memory_alone(
    group: str, tmp_path: Path, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in the arguments, not in the environment; nor does a tool get our keys."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a key")
    (tmp_path / "show.py").write_text(SHOW)
    made = command_of([sys.executable, str(tmp_path / "show.py")], login, "mysql")
    made = BackupProgram(
        name="show",
        arguments=(*made.arguments, "--defaults-file={defaults_file}"),
        tool=made.tool,
        login=login,
        group=group,
        temporary=group != "client",
    )
    arguments, environment, file = shown(made, tmp_path)
    assert "--defaults-file=/dev/fd/" in arguments
    assert ("--target-dir=" in arguments) == (group == "xtrabackup")
    assert PASSWORD not in arguments + environment
    assert "a key" not in environment
    assert file.startswith(f"[{group}]\n")
    assert f'password="{PASSWORD}"' in file


def test_an_operators_command_has_the_operators_environment(
    tmp_path: Path, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may need what is set there; the login only if it asks for it."""
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    (tmp_path / "show.py").write_text(SHOW)
    words = [sys.executable, str(tmp_path / "show.py"), f"x={os.devnull}"]
    _, environment, file = shown(command_of(words, login, "mysql"), tmp_path)
    assert "/run/agent" in environment
    assert file.strip() == ""
    asking = command_of([*words[:2], "{defaults_file}"], None, "mysql")
    with pytest.raises(SourceError, match="no login is given"):
        RunningBackup(asking, tmp_path)


def test_a_program_that_fails_says_why(tmp_path: Path) -> None:
    """Its last lines, and a hint; a GRANT that is missing is named as such."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys; sys.stderr.write('one\\ntwo\\nthree\\nAccess denied; you need the RELOAD')\n"
        "sys.exit(2)"
    )
    made = command_of([sys.executable, str(script)], None, "mysql")
    with RunningBackup(made, tmp_path) as running:
        assert b"".join(running.output()) == b""
        with pytest.raises(RecoveryError, match="status 2: two; three; Access denied") as failed:
            running.check_end()
    assert "GRANT" in failed.value.hint


def test_a_view_that_ends_a_dump_is_named(tmp_path: Path) -> None:
    """With what to do: the program says only what its server said."""
    script = tmp_path / "fails.py"
    script.write_text(
        "import sys; sys.stderr.write(\"mysqldump: Couldn't execute 'SHOW FIELDS FROM `v`': \"\n"
        "\"View 'shop.v' references invalid table(s) or column(s) (1356)\")\nsys.exit(2)"
    )
    made = command_of([sys.executable, str(script)], None, "mysql")
    with RunningBackup(made, tmp_path) as running:
        assert b"".join(running.output()) == b""
        with pytest.raises(RecoveryError, match="1356") as failed:
            running.check_end()
    assert failed.value.hint.startswith("a view shop.v is not valid, and ends the dump")


def test_a_program_that_is_left_is_ended(tmp_path: Path) -> None:
    """At the end of the block, whatever it does."""
    script = tmp_path / "waits.py"
    script.write_text("import time; print('begun', flush=True); time.sleep(600)")
    with RunningBackup(command_of([sys.executable, str(script)], None, "mysql"), tmp_path) as one:
        pid = one.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_log_without_a_line_end_is_not_held(tmp_path: Path) -> None:
    """Only its end is kept in memory, however long a line is."""
    script = tmp_path / "noisy.py"
    script.write_text(
        "import sys\nfor _ in range(48): sys.stderr.write('x' * (1 << 20))\nsys.stderr.write('end')"
    )
    made = command_of([sys.executable, str(script)], None, "mysql")
    tracemalloc.start()
    try:
        with RunningBackup(made, tmp_path) as running:
            assert b"".join(running.output()) == b""
            running.check_end()
            assert running.log().endswith("xend")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_an_operators_command_gets_no_password_that_it_would_not_guard(login: Login) -> None:
    """A MariaDB client goes on without TLS where it does not check the name; only if it gets it."""
    far = replace(login, socket=None, host="db1", ssl_mode="VERIFY_CA")
    command_of([sys.executable, "-c", "0"], far, "mariadb")
    with pytest.raises(SourceError, match="without TLS"):
        command_of([sys.executable, "--defaults-file={defaults_file}"], far, "mariadb")
