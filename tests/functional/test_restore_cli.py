"""`restore` before it has made anything: what it says that it will do, and what it refuses."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.config.restore import WORK
from binlog2s3.restore.directory import MARKER, DataDirectory, Stage
from lab.disk import temporary_directory
from tests.documents import BACKUP
from tests.golden.buckets import CHANGES, LAYOUT, Golden, Source, golden, query
from tests.golden.outputs import Called, called
from tests.unit.restore.test_restore import DONE, REACHED

ORDERS = "--table=shop.orders"
MARK = replace(
    DONE,
    goal="to the newest that is in the bucket",
    reached=replace(REACHED, backup=BACKUP.id),
)


def bucket(*statements: str) -> Golden:
    """One of a source that has run these after its base backup."""
    source = Source()
    source.closes()
    backup = replace(BACKUP, binlog=None, position=None, lineage=None, gtid_set=source.executed)
    source.put(LAYOUT.backup(backup.id), backup.to_json())
    source.closes(1, [*CHANGES, *([query(text)] for text in statements)])
    source.grows()
    source.beats()
    return golden(source)


@pytest.fixture
def mysqld() -> Iterator[Path]:
    """A program that only says its version; the path of a socket beside it is short enough."""
    with temporary_directory() as folder:
        yield program_in(folder)


def program_in(folder: Path) -> Path:
    path = folder / "mysqld"
    said = ("mysqld  Ver 9.7.4 for Linux on x86_64", "Starts the MySQL database server.")
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in said))
    path.chmod(0o755)
    return path


def restored(
    mysqld: Path,
    *more: str,
    of: Golden | None = None,
    by: str = "/bin/false",
    goal: str = "--latest",
) -> Called:
    """What the command does, with a restore command that fails."""
    words = ["restore", "--source=orders", "--s3-url=s3://bucket/pre", f"--mysqld={mysqld}"]
    words += [f"--data-dir={mysqld.parent / 'data'}", goal, f"--restore-command={by}"]
    words += ["--mysqld-option=--user=root"] if os.geteuid() == 0 else []
    return called(of or bucket(), [*words, *more])


def left(mysqld: Path, stage: Stage, tables: tuple[str, ...] = ("shop.orders",)) -> None:
    """The data directory of a restore that was killed at this stage."""
    data = mysqld.parent / "data"
    data.mkdir()
    DataDirectory(data, None).begin(replace(MARK, stage=stage, tables=tables))


# Interrupted


def test_an_interrupted_one_says_that_the_same_command_continues(mysqld: Path) -> None:
    """By SIGTERM, as by Ctrl-C; nothing that it started is left."""
    script = mysqld.parent / "restore.sh"
    script.write_text("echo $$ > pid\nkill -TERM $PPID\nexec sleep 600\n")
    done = restored(mysqld, "--yes", by=f"/bin/sh {script}")
    assert done.code == 130
    *_, last = filter(None, done.err.splitlines())
    assert last == "interrupted; run the same command again: it continues"
    pid = int((mysqld.parent / "data" / WORK / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert restored(mysqld, "--yes").code == 8  # it goes on, with a command that fails


def test_one_that_was_interrupted_before_it_began_says_nothing(mysqld: Path) -> None:
    """There is nothing to continue: nobody answered the question, for example."""
    done = restored(mysqld)
    assert done.code != 0
    assert "continues" not in done.err
    assert not (mysqld.parent / "data").exists()


def test_what_an_earlier_version_has_begun_begins_again(mysqld: Path) -> None:
    """Its marker does not say what it has restored, in words that this one knows."""
    left(mysqld, "apply", tables=())
    marker = mysqld.parent / "data" / WORK / MARKER
    said = json.loads(marker.read_text())
    old = {"backup": BACKUP.id, "made_by": "9.7.4", "said": "its GTIDs", "has_past": True}
    marker.write_text(json.dumps({**said, **old, "reached": None}))
    done = restored(mysqld, "--yes")
    assert done.code == 8
    assert "warning: another version of binlog2s3 has begun it: it begins again\n" in done.err
    assert json.loads(marker.read_text())["stage"] == "restore"


# Refused


@pytest.mark.parametrize(
    ("goal", "what"),
    [
        ("--to-gtid=3e11fa47-71ca-11e1-9e33-c80aa9429562:9999", "c80aa9429562:9999"),
        ("--before-gtid=3e11fa47-71ca-11e1-9e33-c80aa9429562:9999", "c80aa9429562:9999"),
        ("--to-position=mysql-bin.000099:4", "mysql-bin.000099"),
    ],
)
def test_a_goal_that_is_nowhere_is_not_the_backups_fault(
    mysqld: Path, goal: str, what: str
) -> None:
    """It says so, and what can be reached."""
    done = restored(mysqld, "--dry-run", goal=goal)
    assert done.code == 8
    assert done.err.startswith("error: ")
    assert f"{what} is not in the archive\nhint: within reach: " in done.err, done.err


def test_the_client_in_the_place_of_the_server_is_refused(mysqld: Path) -> None:
    """Before anything is made: MySQL's says the same version as the server."""
    mysqld.write_text("#!/bin/sh\necho 'mysql  Ver 9.7.4 for Linux on x86_64'\n")
    done = restored(mysqld, "--dry-run")
    assert (done.code, "its --help does not say that it starts" in done.err) == (8, True), done.err
    assert "--mysqld names mysqld or mariadbd" in done.err


# --table


def test_what_only_some_tables_cannot_do_is_said_before_it_begins(mysqld: Path) -> None:
    """In the plan and with --json, as `pitr --table` says it."""
    written = bucket("INSERT INTO orders SELECT * FROM stock")
    shown = restored(mysqld, "--dry-run", ORDERS, of=written)
    assert (shown.code, shown.err) == (0, "")
    assert "\nonly       shop.orders\n" in shown.out
    assert "cannot be filtered safely\n  1 statement in statement format" in shown.out
    printed = restored(mysqld, "--dry-run", ORDERS, "--json", of=written)
    only = json.loads(printed.out)["plan"]["only_tables"]
    unsafe = only.pop("unsafe")
    assert only == {"tables": ["shop.orders"], "looked": True}
    assert "1 statement in statement format" in unsafe[0]
    assert "cannot be filtered safely: 1 statement in statement format" in printed.err
    assert json.loads(restored(mysqld, "--dry-run", "--json").out)["plan"]["only_tables"] is None


def test_tables_that_exchange_rows_are_refused_before_the_backup_is_restored(mysqld: Path) -> None:
    """Not hours later; the tables to add are named."""
    exchanged = bucket("RENAME TABLE shop.orders TO shop.old, shop.stock TO shop.orders")
    refused = restored(mysqld, "--yes", ORDERS, of=exchanged)
    assert refused.code == 8
    assert "--table cannot be applied safely" in refused.err
    assert "add --table 'shop.old' --table 'shop.stock'" in refused.err
    assert not (mysqld.parent / "data").exists()


@pytest.mark.parametrize("stage", ["restore", "start", "apply", "finish", "place"])
def test_one_that_has_only_some_tables_goes_on_with_those(mysqld: Path, stage: Stage) -> None:
    """With others it would be wrong; while it is applied, the mark in the server says which."""
    left(mysqld, stage)
    assert restored(mysqld, "--dry-run", ORDERS).code == 0
    for more in ((), ("--table=shop.stock",), (ORDERS, "--table=shop.stock")):
        other = restored(mysqld, "--dry-run", *more)
        if stage in ("restore", "start", "apply"):
            assert other.code == 0, other.err
        else:
            assert other.code == 8
            assert "has an unfinished restore of only shop.orders" in other.err


def test_what_all_was_applied_to_does_not_go_on_with_some_tables(mysqld: Path) -> None:
    """Its other tables would be neither as in the base backup nor as at the goal."""
    left(mysqld, "apply", tables=())
    assert restored(mysqld, "--dry-run").code == 0
    refused = restored(mysqld, "--dry-run", ORDERS)
    assert refused.code == 8
    assert "has an unfinished restore of all tables" in refused.err
