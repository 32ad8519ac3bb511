"""The parts of `restore` that need no server: refusals, the marker, where files go, settings."""

import json
import os
import pwd
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.archive.codec import as_fields
from binlog2s3.binlog.statements import Writing, statement_of
from binlog2s3.config.given import Given
from binlog2s3.config.restore import RESTORE, WORK
from binlog2s3.errors import ConfigError, RecoveryError
from binlog2s3.recover.events import Event, Status, Statuses
from binlog2s3.restore.by_stream import Past, _without_sandbox_line, client_argv, programs_for
from binlog2s3.restore.directory import MARKER, DataDirectory, Marker, Reached, held
from binlog2s3.restore.engine import pitr_named
from binlog2s3.restore.scratch import socket_of, version_of
from binlog2s3.restore.settings import settings_of, settings_of_backup, unusual
from binlog2s3.restore.workspace import Workspace
from tests.documents import TIME

MARK = Marker(
    id="20260102T031244Z-5a6b7c8d", source="orders", goal="to now", stage="restore", started_at=TIME
)

DONE = replace(
    MARK,
    stage="place",
    reached=Reached(
        backup=MARK.id,
        label="",
        restored="its GTIDs",
        server_version="9.7.4",
        flavour="mysql",
        lineage=MARK.id,
        binlog="mysql-bin.000001",
        position=4,
        transactions=0,
        is_proved=True,
        proof=(),
    ),
)


# Options


def problems_of(folder: Path, **values: object) -> str:
    """Why these options are refused."""
    needed = {"source": "orders", "s3-url": "s3://bucket/pre", "latest": True}
    given = {**needed, "mysqld": Path("/bin/true"), "data-dir": folder}
    more = {name.replace("_", "-"): value for name, value in values.items()}
    _, problems = RESTORE.build(Given({**given, **more}))
    return "\n".join(problems)


def test_a_directory_with_something_in_it_is_a_wrong_option(tmp_path: Path) -> None:
    """A mount's own directory, and what a restore has left, are nothing."""
    assert problems_of(tmp_path) == ""
    assert problems_of(tmp_path / "new") == ""
    assert "no such directory" in problems_of(tmp_path / "none" / "new")
    (tmp_path / "lost+found").mkdir()
    assert problems_of(tmp_path) == ""
    (tmp_path / "ibdata1").touch()
    assert "is not empty: 'ibdata1' is in it" in problems_of(tmp_path)
    (tmp_path / WORK).mkdir()
    assert problems_of(tmp_path) == ""
    assert "ot a directory" in problems_of(tmp_path / "ibdata1")


def test_a_directory_in_a_servers_or_a_restores_is_a_wrong_option(tmp_path: Path) -> None:
    """A server would take it for a database; a restore that begins again empties its own one."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ibdata1").touch()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    (tmp_path / "new" / WORK / "tmp").mkdir(parents=True)
    for inside in ("data/new", "link/new", "data/../data/new", f"new/{WORK}/tmp"):
        assert f"{tmp_path / inside} is in " in problems_of(tmp_path / inside)


def test_one_goal_is_needed(tmp_path: Path) -> None:
    """And a command and a program of ours exclude each other."""
    assert "where to stop is missing" in problems_of(tmp_path, latest=False)
    assert "contradict" in problems_of(tmp_path, to_gtid="0-1-5")
    both = problems_of(tmp_path, restore_command="cp x y", program=Path("/bin/true"))
    assert "contradict" in both
    assert "needs --restore-command" in problems_of(tmp_path, trust_restore_command=True)
    assert "takes single tables" in problems_of(tmp_path, table=(("shop", "*"),))
    assert "a replication filter cannot" in problems_of(tmp_path, table=(("shop", "a`b"),))


@pytest.mark.parametrize("text", ["no program", "#!/bin/sh\necho no version\n"])
def test_a_program_that_is_no_server_is_told(tmp_path: Path, text: str) -> None:
    """Also one that the system cannot run."""
    program = tmp_path / "mysqld"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(RecoveryError, match=r"version"):
        version_of(program, "mysql")


@pytest.mark.parametrize(
    ("hint", "added"),
    [
        (
            "stop before there, or leave it out with --skip-gtid",
            " (--skip-gtid: of `binlog2s3 pitr`",
        ),
        ("--to-gtid, or mysqlbinlog -v --start-position=4", ""),
    ],
)
def test_hints_of_pitr_that_restore_cannot_follow_say_whose_they_are(hint: str, added: str) -> None:
    """`restore` has no such option; its own are for everybody."""
    with pytest.raises(RecoveryError) as caught, pitr_named():
        raise RecoveryError("damaged", hint=hint)
    assert caught.value.hint.startswith(hint + added)
    assert bool(added) == ("binlog2s3 pitr" in caught.value.hint)


def test_the_path_of_a_socket_is_measured_in_bytes() -> None:
    """As the system does."""
    long = Path("/" + "é" * 50)
    with pytest.raises(RecoveryError, match="is too long"):
        socket_of(Workspace(long, MARKER))
    assert socket_of(Workspace(Path("/" + "e" * 90), MARKER))


# The directory


def begun(path: Path) -> DataDirectory:
    """A data directory in which a restore has begun."""
    found = DataDirectory(path, None)
    found.begin(MARK)
    found.workspace.make_data()
    return found


def test_what_was_left_is_known_again(tmp_path: Path) -> None:
    """All of the marker."""
    events = (Event("shop", "e", "root@localhost", "disabled"),)
    there = begun(tmp_path)
    assert there.left() == MARK
    there.note(replace(MARK, stage="apply", events=events))
    assert there.left() == replace(MARK, stage="apply", events=events)
    with pytest.raises(RecoveryError, match="another restore runs"), (
        held(tmp_path, server_user=None, dry_run=False)
    ), held(tmp_path, server_user=None, dry_run=False):  # fmt: skip
        pass


def test_one_that_begins_again_has_nothing_of_the_first(tmp_path: Path) -> None:
    """But its logs."""
    there = begun(tmp_path)
    (there.workspace.data / "ibdata1").write_text("x")
    there.workspace.server_log.write_text("why")
    there.begin(MARK)
    names = sorted(path.name for path in there.workspace.directory.iterdir())
    assert names == [MARKER, "server.log", "tmp"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"id": 1}',
        json.dumps({"stage": "gone"}),
        json.dumps(as_fields(replace(DONE, reached=None))),
        json.dumps(as_fields(replace(MARK, id="x' IDENTIFIED BY 'known"))),
    ],
)
def test_a_marker_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing of it is deleted."""
    there = begun(tmp_path)
    (there.workspace.directory / MARKER).write_text(text)
    with pytest.raises(RecoveryError, match="is not what a restore of this user left"):
        there.left()
    assert there.workspace.data.is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_restores_into_no_other_users_directory(tmp_path: Path) -> None:
    """Who could put another thing in the place of each file; the server's user is no stranger."""
    user, data = pwd.getpwnam("nobody").pw_uid, tmp_path / "data"
    data.mkdir()
    os.chown(data, user, -1)
    with (
        pytest.raises(RecoveryError, match=f"it belongs to user {user}"),
        held(data, server_user=None, dry_run=False),
    ):
        pass
    with held(data, server_user=user, dry_run=False) as there:
        assert there.left() is None


def test_one_that_was_killed_before_its_marker_is_nothing(tmp_path: Path) -> None:
    """Its directory is empty."""
    there = DataDirectory(tmp_path, None)
    there.workspace.directory.mkdir()
    (there.workspace.directory / f"{MARKER}.new").write_text("{")
    assert there.left() is None
    assert list(tmp_path.iterdir()) == []
    there = begun(tmp_path)
    (there.workspace.directory / MARKER).unlink()
    with pytest.raises(RecoveryError, match=f"it has no {MARKER}"):
        there.left()


@pytest.mark.parametrize("moved", range(4))
def test_the_files_are_moved_though_it_was_killed(tmp_path: Path, moved: int) -> None:
    """After any of them; the marker goes last."""
    there, names = begun(tmp_path), ["ibdata1", "mysql", "undo_001"]
    for name in names:
        (there.workspace.data / name).write_text(name)
    for name in names[:moved]:
        (there.workspace.data / name).rename(tmp_path / name)
    there.note(DONE)
    assert there.left() is not None
    there.place()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {n: n for n in names}


def test_no_file_is_moved_over_another_one(tmp_path: Path) -> None:
    """What somebody has put there meanwhile stays."""
    there = begun(tmp_path)
    (there.workspace.data / "ibdata1").write_text("restored")
    (tmp_path / "ibdata1").write_text("precious")
    with pytest.raises(RecoveryError, match="is there already"):
        there.place()
    assert (tmp_path / "ibdata1").read_text() == "precious"
    with pytest.raises(RecoveryError, match="is not empty: 'ibdata1'"):  # or before it begins
        there.left()


def test_one_that_was_killed_at_its_very_end_is_not_begun_again(tmp_path: Path) -> None:
    """The marker is gone, and the data are in their place."""
    there = DataDirectory(tmp_path, None)
    there.workspace.directory.mkdir()
    (tmp_path / "ibdata1").touch()
    with pytest.raises(RecoveryError, match="is not empty") as raised:
        there.left()
    assert "is whole" in raised.value.hint
    assert not there.workspace.directory.exists()


def test_a_dry_run_makes_no_directory(tmp_path: Path) -> None:
    """Another run does; with something in it, neither does anything."""
    with held(tmp_path / "d", server_user=None, dry_run=True):
        assert not (tmp_path / "d").exists()
    with held(tmp_path / "d", server_user=None, dry_run=False):
        assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "d").exists()  # nothing was made in it: it was refused
    with held(tmp_path / "d", server_user=None, dry_run=False):
        (tmp_path / "d" / "x").touch()
    for dry_run in (True, False):
        with (
            pytest.raises(ConfigError, match="is not empty"),
            held(tmp_path / "d", server_user=None, dry_run=dry_run),
        ):
            pass


# Settings, programs, the dump


def test_settings_that_say_how_data_are_kept_are_used(tmp_path: Path) -> None:
    """Of the server's groups, with included files; files elsewhere are named."""
    file, more = tmp_path / "my.cnf", tmp_path / "more.cnf"
    file.write_text(
        "[client]\ninnodb_page_size=4k\n[mysqld]\nlower_case_table_names = 1  # as ever\n"
        "loose-innodb_page_size='32k'\nsql_mode=ANSI\ninnodb_undo_directory=/fast/undo\n"
        f"innodb_data_home_dir=\n!include {more}\n[mysqld-9.7]\nplugin-load-add=a.so\n"
    )
    more.write_text("[server]\nplugin_load_add=b.so\ninnodb_data_file_path=/x/ibdata1:12M\n")
    found = settings_of(file, tmp_path / "data")
    assert found.options == (
        "--lower-case-table-names=1",
        "--innodb-page-size=32k",
        "--plugin-load-add=b.so",
        "--plugin-load-add=a.so",
    )
    assert [text.partition(" = ")[0] for text in found.unused] == [
        "innodb_undo_directory",
        "innodb_data_file_path",
    ]
    with pytest.raises(RecoveryError, match="cannot be read"):
        settings_of(tmp_path / "none", tmp_path)


def test_what_a_physical_backup_says_of_its_files_is_used(tmp_path: Path) -> None:
    """And no other setting of that file, which comes from the bucket, and no odd value."""
    file = tmp_path / "backup-my.cnf"
    assert settings_of_backup(tmp_path) == ()
    file.write_text(
        "[mysqld]\ninnodb_page_size=8192\ninnodb_data_file_path = ibdata1:12M:autoextend\n"
        "innodb_undo_tablespaces=3 --init-file=/x\nplugin_load=evil.so\ninit_file=/tmp/x\n"
        "!include /etc/passwd\n[client]\ninnodb_checksum_algorithm=crc32\n"
    )
    page, path = (
        "--loose-innodb-page-size=8192",
        "--loose-innodb-data-file-path=ibdata1:12M:autoextend",
    )
    assert settings_of_backup(tmp_path) == (page, path)
    assert unusual((page, path)) == ("innodb_page_size = 8192",)
    for value in ("../x:1M", "/x:1M", "a b", ""):
        file.write_text(f"[mysqld]\ninnodb_data_file_path={value}\n")
        assert settings_of_backup(tmp_path) == ()
    file.write_text("[mysqld]\ninnodb_page_size=8192\n" + "#" * 70_000)
    assert settings_of_backup(tmp_path) == ()
    file.unlink()
    (tmp_path / "other").write_text("[mysqld]\ninnodb_page_size=8192\n")
    file.symlink_to(tmp_path / "other")
    assert settings_of_backup(tmp_path) == ()


def test_a_message_quotes_no_log_of_an_earlier_run(tmp_path: Path) -> None:
    """It is kept beside the new one."""
    workspace = Workspace(tmp_path / "w", MARKER)
    workspace.make_with(as_fields(MARK))
    workspace.set_logs_aside()
    workspace.server_log.write_text("old")
    workspace.set_logs_aside()
    assert not workspace.server_log.exists()
    assert (tmp_path / "w/server.log.before").read_text() == "old"


def test_the_programs_are_beside_the_server_or_named(tmp_path: Path) -> None:
    """The one that unpacks is beside the one that is named."""
    (tmp_path / "sbin").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("sbin/mariadbd", "bin/mariadb", "bin/mbstream", "bin/mariabackup"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    server, bin_ = tmp_path / "sbin" / "mariadbd", tmp_path / "bin"
    assert programs_for("mariadb-dump", server, None) == (bin_ / "mariadb",)
    both = (bin_ / "mbstream", bin_ / "mariabackup")
    assert programs_for("mariabackup", server, None) == both
    assert programs_for("mariabackup", Path("/bin/true"), bin_ / "mariabackup") == both
    with pytest.raises(RecoveryError, match="no xbstream beside --mysqld"):
        programs_for("xtrabackup", server, None)
    with pytest.raises(RecoveryError, match="is not an executable program"):
        programs_for("mysqldump", server, tmp_path / "none")


@pytest.mark.parametrize("size", [1, 20, 1000])
def test_the_sandbox_line_of_mariadb_is_left_to_the_clients_option(size: int) -> None:
    """Only as the first line, however the stream is cut; every other byte stays."""
    body = b"-- MariaDB dump\n/*M!999999\\- enable the sandbox mode */ \nSELECT '\0\r\n';\n" * 9
    for mark in (b"!", b"M!"):
        line = b"/*" + mark + b"999999\\- enable the sandbox mode */ \n"
        whole = line + body
        blocks = (whole[at : at + size] for at in range(0, len(whole), size))
        assert b"".join(_without_sandbox_line(blocks)) == body
    assert b"".join(_without_sandbox_line(iter([body[:10], body[10:]]))) == body


@pytest.mark.parametrize("size", [1, 7, 79, 81, 1000])
def test_whether_a_dump_has_the_past_is_seen_in_it(size: int) -> None:
    """However it is cut, and not in a value."""
    line = b"/*M!101100 SET @old_system_versioning_insert_history=@@session.x=1 */;\n"
    value = b"INSERT INTO t VALUES ('" + line[:-1] + b"');\n"
    for text, is_there in ((line, True), (value * 9 + line, True), (value * 9, False)):
        past = Past()
        blocks = (text[at : at + size] for at in range(0, len(text), size))
        assert b"".join(past.seen_in(blocks)) == text
        assert past.is_there == is_there


def test_a_dump_is_loaded_at_the_time_that_it_was_made() -> None:
    """Else a server disables, or leaves out, an event that has expired since."""
    made = client_argv(Path("/bin/mysql"), Path("/w/mysql.sock"), "mysql", TIME)
    at = int(TIME.timestamp())
    assert f"--init-command=SET SESSION sql_log_bin=0, SESSION timestamp={at}" in made
    assert made[1] == "--no-defaults"


# Events


BEFORE = (
    Event("shop", "Old", "root@localhost", "enabled"),
    Event("shop", "off", "root@localhost", "disabled"),
    Event("shop", "theirs", "root@localhost", "replica"),
)
WHEN = "ON SCHEDULE EVERY 1 DAY"


def status_after(name: str, *statements: str, is_own: bool = True, cut: bool = False) -> Status:
    """The status of an event of the database shop, after these were run in it."""
    found = Statuses(BEFORE)
    for text in statements:
        statement = statement_of(text, "shop", cut=cut, writing=Writing(sql_mode=0))
        if statement is not None:
            found.take(statement, is_own=is_own)
    return found.of(Event("shop", name, "root@localhost", "replica"))


@pytest.mark.parametrize(
    ("name", "statements", "status"),
    [
        ("old", (), "enabled"),
        ("new", (), "unknown"),
        ("theirs", ("ALTER EVENT theirs COMMENT 'x'",), "replica"),
        ("new", (f"CREATE EVENT new {WHEN} DO SET @a = 'DISABLE'",), "enabled"),
        ("new", (f"CREATE DEFINER=`a`@`b` EVENT `shop`.`NEW` {WHEN} DISABLE COMMENT 'DO' DO x",),
         "disabled"),
        ("new", (f"CREATE EVENT new {WHEN} DISABLE ON SLAVE DO SELECT 1",), "replica"),
        ("off", (f"CREATE EVENT IF NOT EXISTS off {WHEN} DO SELECT 1",), "disabled"),
        ("off", (f"CREATE OR REPLACE EVENT off {WHEN} DO SELECT 1",), "enabled"),
        ("off", ("ALTER EVENT off COMMENT 'x'",), "disabled"),
        ("off", ("ALTER EVENT shop.off ENABLE",), "enabled"),
        ("old", ("ALTER DEFINER=`a`@`b` EVENT old DISABLE",), "disabled"),
        ("moved", ("ALTER EVENT off RENAME TO shop.Moved",), "disabled"),
        ("off", ("ALTER EVENT off RENAME TO moved",), "unknown"),
        ("off", ("DROP EVENT off", "ALTER EVENT off COMMENT 'x'"), "unknown"),
        ("off", ("DROP EVENT IF EXISTS off", f"CREATE EVENT off {WHEN} DO SELECT 1"), "enabled"),
        ("old", ("DROP DATABASE shop",), "unknown"),
        ("old", ("DROP DATABASE shops", "DROP TABLE event", "CREATE TABLE event (a INT)"),
         "enabled"),
        ("old", ("CREATE PROCEDURE p() BEGIN ALTER EVENT old DISABLE; END",), "enabled"),
        ("old", ("ALTER EVENT ; DISABLE",), "unknown"),
        ("old", ("ALTER EVENT enable DISABLE", "ALTER EVENT `do` DISABLE"), "enabled"),
    ],
)  # fmt: skip
def test_the_status_of_an_event_is_the_sources(
    name: str, statements: tuple[str, ...], status: Status
) -> None:
    """By its statements, which a replica takes otherwise."""
    assert status_after(name, *statements) == status


def test_what_the_source_itself_had_received_was_disabled_there() -> None:
    """A statement that is cut before its status says nothing."""
    create = f"CREATE EVENT new {WHEN} DO SELECT 1"
    assert status_after("new", create, is_own=False) == "replica"
    assert status_after("new", create, cut=True) == "enabled"
    assert status_after("new", f"CREATE EVENT new {WHEN} COMMENT 'x", cut=True) == "unknown"
    assert status_after("old", "ALTER EVENT old COMMENT 'x", cut=True) == "unknown"
