"""The parts of `drill` that need no server: words, statements, limits, what is removed."""

import errno
import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import DrillResult, latest, newest
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.drill import DRILL
from binlog2s3.config.given import Given
from binlog2s3.drill.checks import check_statements, is_false, statements_in, statements_of
from binlog2s3.drill.workspace import DrillMarker, DrillWorkspace, clean_up, locked
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.formatting import one_line
from binlog2s3.restore.by_command import (
    argv_of,
    environment_of,
    goes_into_server,
    refuse_links,
    refuse_values,
    values_of,
)
from binlog2s3.restore.children import MARK, end_of, started, undisturbed
from binlog2s3.restore.engine import version_of_source
from binlog2s3.restore.scratch import (
    ScratchServer,
    ScratchSettings,
    account_sql,
    scratch_options,
    user_of,
    version_of,
)
from binlog2s3.restore.watchdog import LEAST_FREE, Watchdog, explained
from lab.disk import temporary_directory
from lab.pitr_examples import PLAN
from tests.documents import BACKUP, TIME
from tests.documents import DRILL as RESULT
from tests.memory_store import MemoryStore
from tests.unit.recover.test_snapshot import bucket_with

ID = "20260102T031244Z-5a6b7c8d"
LATER = "20260103T031244Z-5a6b7c8d"
OWN = f"{ID}-{os.getpid()}"
"""The mark of what this process starts: a test beside it ends all that has the mark `ID`."""
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
VALUES = values_of(BACKUP, Path("/w/data"), Path("/w/mysql.sock"))


def made(work: Path, id_: str = ID, source: str = "orders") -> DrillWorkspace:
    """The directory of a drill that has begun."""
    found = DrillWorkspace(work, DrillMarker(id=id_, source=source, started_at=TIME))
    found.make()
    found.at("apply", BACKUP.id)
    found.data.mkdir()
    (found.data / "ibdata1").write_bytes(b"x" * 8192)
    found.server_log.write_text("it was killed\n")
    return found


def sleeping(id_: str) -> "subprocess.Popen[bytes]":
    """A process of a drill."""
    return subprocess.Popen(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
        env={**os.environ, MARK: id_},
        stdout=subprocess.PIPE,
    )


# The restore command


def test_the_restore_command_is_no_shell() -> None:
    """Values are parts of one word, whatever they contain, and are not replaced again."""
    odd = {**VALUES, "datadir": "/my drills/{label} $HOME"}
    words = argv_of("cp -a {location}/. '{datadir}' {other} {", odd)
    location = f"{BACKUP.location}/."
    assert words == ["cp", "-a", location, "/my drills/{label} $HOME", "{other}", "{"]
    assert environment_of(VALUES)["DRILL_LOCATION"] == BACKUP.location
    assert environment_of(VALUES)["DRILL_SOCKET"] == "/w/mysql.sock"


def test_a_backup_without_a_location_is_not_restored_from_the_root_directory() -> None:
    """`cp -a {location}/. {datadir}` would copy the whole machine."""
    nowhere = replace(BACKUP, location="")
    values = {**VALUES, "location": ""}
    with pytest.raises(RecoveryError, match="has no location"):
        refuse_values("cp -a {location}/. {datadir}", nowhere, values)
    refuse_values("/usr/local/bin/restore {id}", nowhere, values)
    refuse_values("cp -a {location}/. {datadir}", BACKUP, VALUES)


COMMANDS = (
    "cp -a {location}/. {datadir}",
    "rsync -a backup:{location}/ {datadir}",
    "scp -r backup:{location} {datadir}",
    "/usr/bin/ssh host cat {location}",
    "/usr/local/bin/restore --from={location}",
    *(
        f"/bin/sh -c {shlex.quote(script)}"
        for script in (
            "printf '<%s>' {location}/x",
            "rsync -a backup:{location}/ x",
            'printf %s "{location}"',
            "eval printf %s {location}",
            "cat <<X\n{location}\nX",
            "echo $(printf %s {location})",
            """# don't\nprintf %s "it's {location}\"""",
        )
    ),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_archive_says_is_no_code(command: str) -> None:
    """Whatever runs it in the end, here or on another machine, a shell interprets nothing in it."""
    plain = "s3://backups/mon-day_1/a.b:c@d%2B+e=f,g"
    for name in ("location", "label", "tool"):
        own = command.replace("{location}", f"{{{name}}}")
        refuse_values(own, BACKUP, {**VALUES, name: plain})
        for sign in "$`'\"\\;|&<>()*?[]{}~#! \n\t\0\u00e9":
            with pytest.raises(RecoveryError, match=f"the {name} of .* has signs") as raised:
                refuse_values(own, BACKUP, {**VALUES, name: f"a{sign}b"})
            assert repr(sign) in str(raised.value)
            assert f'"$DRILL_{name.upper()}"' in raised.value.hint
        if name != "tool":  # nor an option; the operator's own options stay
            with pytest.raises(RecoveryError, match="as an option"):
                refuse_values(own, BACKUP, {**VALUES, name: "--use-askpass=/bin/x"})
    refuse_values("restore --id={id} -{id}", BACKUP, VALUES)


@pytest.mark.parametrize(
    "command",
    [
        "{location} x",
        "{location}/restore x",
        "sh -c {location}",
        "nice /bin/bash -ec '{location}/restore x'",
    ],
)
def test_what_the_archive_says_is_no_program(command: str) -> None:
    """However plain it is."""
    with pytest.raises(RecoveryError, match="would run the location") as raised:
        refuse_values(command, BACKUP, VALUES)
    assert '"$DRILL_LOCATION"' in raised.value.hint


def test_a_command_that_names_nothing_of_the_archive_takes_all_of_it() -> None:
    """A script reads it from its environment, where it is as the document has it."""
    values = {**VALUES, "location": "a b$(touch x)", "label": "-x"}
    refuse_values("/usr/local/bin/restore {datadir}", BACKUP, values)
    refuse_values("""sh -c 'tar -C {datadir} -xf "$DRILL_LOCATION"'""", BACKUP, values)


def test_a_data_directory_with_links_to_the_backup_is_refused(tmp_path: Path) -> None:
    """The scratch server would change the backup; links within the drill's directory are good."""
    backup, data = tmp_path / "backup", tmp_path / "drill" / "data"
    for path in (backup, data / "shop"):
        path.mkdir(parents=True)
    (backup / "ibdata1").write_bytes(b"x")
    (data / "ibdata1").write_bytes(b"x")
    (data / "log").symlink_to(data / "ibdata1")
    refuse_links(data)
    (data / "shop" / "t.ibd").symlink_to(backup / "ibdata1")
    with pytest.raises(RecoveryError, match=r"t\.ibd is a link"):
        refuse_links(data)
    (data / "shop" / "t.ibd").unlink()
    (data / "shop" / "u.ibd").hardlink_to(backup / "ibdata1")
    with pytest.raises(RecoveryError, match=r"u\.ibd is a link"):
        refuse_links(data)
    (data / "shop" / "u.ibd").unlink()
    (data / "shop" / "v.isl").write_text("/fast/shop/v.ibd")
    with pytest.raises(RecoveryError, match=r"v\.isl is a link"):
        refuse_links(data)
    whole = data.with_name("whole")
    whole.symlink_to(backup)
    with pytest.raises(RecoveryError, match="whole is a link"):
        refuse_links(whole)


def test_a_dump_goes_into_a_server() -> None:
    """By the tool, unless the operator says otherwise."""
    dump = replace(BACKUP, tool="mysqldump")
    assert goes_into_server("auto", dump)
    assert not goes_into_server("auto", BACKUP)
    assert not goes_into_server("directory", dump)
    assert goes_into_server("server", BACKUP)


# The scratch server


def test_the_scratch_server_is_private() -> None:
    """No port, no events, no replication; the operator's options come last."""
    settings = ScratchSettings(
        flavour="mysql", has_gtids=True, log_bin="mysql-bin", more=("--gtid-mode=OFF",)
    )
    with temporary_directory() as directory:  # its path is short: a socket is in it
        workspace = DrillWorkspace(directory, DrillMarker(id=ID, source="orders", started_at=TIME))
        found = scratch_options(settings, workspace)
        for option in ("--skip-networking", "--event-scheduler=OFF", "--loose-skip-replica-start"):
            assert option in found
        assert found[-1] == "--gtid-mode=OFF"
        assert "--secure-file-priv=NULL" in found
        found = scratch_options(replace(settings, flavour="mariadb"), workspace)
        assert "--skip-slave-start" in found
        assert "--log-slave-updates" in found
        assert f"--secure-file-priv={workspace.directory / 'tmp'}" in found


def test_the_scratch_server_has_the_sources_time_zone() -> None:
    """By TZ; without one it has drill's own."""
    with temporary_directory() as directory:  # its path is short: a socket is in it
        program = directory / "mysqld"
        program.write_text(f'#!/bin/sh\nprintf "%s" "$TZ" > {directory}/zone\nexit 1\n')
        program.chmod(0o755)
        workspace = DrillWorkspace(directory, DrillMarker(id=ID, source="orders", started_at=TIME))
        workspace.make()
        settings = ScratchSettings(flavour="mysql", has_gtids=True, log_bin="b")
        own = os.environ.get("TZ", "")
        for tz, found in (("<+0900>-09:00", "<+0900>-09:00"), (None, own)):
            server = ScratchServer(program, replace(settings, tz=tz), workspace, OWN)
            with pytest.raises(RecoveryError):
                server.initialise()
            assert (directory / "zone").read_text() == found


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_temporary_files_are_in_its_own_directory(flavour: Flavour) -> None:
    """Also while its data directory is made: a MariaDB that starts deletes those of all others."""
    with temporary_directory() as directory:  # its path is short: a socket is in it
        program, said = directory / "mysqld", directory / "said"
        (directory / "fill_help_tables.sql").touch()
        program.write_text(
            f"#!/bin/sh\ncase $* in *--help*) echo lc-messages-dir {directory};; *) "
            f'echo "$@" >> {said}; exit 1;; esac\n'
        )
        program.chmod(0o755)
        workspace = DrillWorkspace(directory, DrillMarker(id=ID, source="orders", started_at=TIME))
        workspace.make()
        settings = ScratchSettings(flavour=flavour, has_gtids=True, log_bin="b")
        server = ScratchServer(program, settings, workspace, OWN)
        for step in (server.initialise, server.start):
            with pytest.raises(RecoveryError):
                step()
        lines = said.read_text().splitlines()
        assert len(lines) == 2
        assert all(f" --tmpdir={workspace.directory / 'tmp'} " in f"{line} " for line in lines)


def test_its_account_leaves_no_trace_in_the_binary_log() -> None:
    """One statement on each line; the log is off before the first."""
    lines = account_sql("me", "pw").splitlines()
    assert lines[0] == "SET SESSION sql_log_bin = 0;"
    assert all(line.endswith(";") for line in lines)


@pytest.mark.parametrize("state", ["archived", "open"])
def test_the_version_of_the_source_is_that_of_the_last_binlog(state: str) -> None:
    """A lineage continues after an upgrade, and says the version with which it began."""
    bucket = bucket_with("5.5", state)
    snapshot = bucket.snapshot()
    (name,) = snapshot.names(bucket.lineage.id)
    stop = replace(PLAN.stop, lineage=bucket.lineage.id, binlog=name)
    assert version_of_source(replace(PLAN, stop=stop), snapshot) == "5.5.6"
    assert bucket.lineage.server_version != "5.5.6"


# Checks


def test_the_statements_of_a_check() -> None:
    """Of several lines, too; comments alone are none, one for the server is."""
    text = "-- a comment;\nSELECT 1\n  FROM t; \n\nSELECT ';' ;\n# x\nSELECT 3"
    assert statements_of(text) == ["SELECT 1\n  FROM t", "SELECT ';'", "# x\nSELECT 3"]
    assert statements_of("/* a\n b */\nSELECT 1;\n/* end */") == ["/* a\n b */\nSELECT 1"]
    assert statements_of("/*!80000 SELECT 1 */;") == ["/*!80000 SELECT 1 */"]


def test_a_file_of_statements_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """In another encoding, without a statement, or gone; a byte order mark is ignored."""
    path = tmp_path / "checks.sql"
    path.write_bytes(b"\xef\xbb\xbfSELECT 1;\n")
    assert statements_in(path) == ["SELECT 1"]
    for data, text in ((b"SELECT '\xe9';\n", "cannot be read"), (b"-- later\n", "no statement")):
        path.write_bytes(data)
        with pytest.raises(RecoveryError, match=text):
            statements_in(path)
    with pytest.raises(RecoveryError, match="cannot be read"):
        statements_in(tmp_path)


@pytest.mark.parametrize("rows", [[{"ok": b"\0"}], [{"ok": 0}], [{"ok": None}], []])
def test_a_statement_that_answers_no_proves_nothing(rows: list[dict[str, object]]) -> None:
    """It is named, with what it returned."""
    answers = {"SELECT ok;": rows}
    server: Any = SimpleNamespace(rows=lambda statement: answers.get(statement, [{"ok": 1}]))
    assert check_statements(server, ["SELECT 1;"]) == 1
    with pytest.raises(RecoveryError, match=r"statement 2 of --check-sql returned .*SELECT ok"):
        check_statements(server, ["SELECT 1;", "SELECT ok;"])


def test_zero_is_false_in_each_type() -> None:
    """A BIT and a binary string are bytes."""
    for value in (None, 0, Decimal("0.00"), 0.0, "0", b"0", b"\0", b"\0\0"):
        assert is_false(value), value
    for other in (1, -1, "x", b"1", b"\0\1", Decimal("0.5"), datetime.now(UTC)):
        assert not is_false(other), other


# What is left


def test_a_killed_drill_is_removed_with_its_processes(tmp_path: Path) -> None:
    """Its logs are kept; what drill did not make stays, whatever it is called."""
    made(tmp_path)
    strangers = [tmp_path / "drill-mine", tmp_path / f"drill-{LATER}", tmp_path / "data"]
    for path in strangers:
        path.mkdir()
        (path / "precious").write_text("x")
    marker = json.loads((tmp_path / f"drill-{ID}" / "drill.json").read_text())
    (strangers[1] / "drill.json").write_text(json.dumps({**marker, "id": "another"}))
    with sleeping(ID) as ours, sleeping(LATER) as other:
        for one in (ours, other):
            assert one.stdout is not None
            one.stdout.readline()
        found: list[DrillMarker] = []
        assert clean_up(tmp_path, found.append) == [tmp_path / f"drill-{LATER}"]
        (left,) = found
        assert (left.id, left.step, left.backup) == (ID, "apply", BACKUP.id)
        assert ours.wait(30) < 0
        assert other.poll() is None
        other.kill()
    assert all((path / "precious").is_file() for path in strangers)
    assert not (tmp_path / f"drill-{ID}").exists()
    assert (tmp_path / f"failed-{ID}" / "server.log").read_text() == "it was killed\n"


def test_a_directory_without_a_marker_goes_only_if_it_is_empty(tmp_path: Path) -> None:
    """That is what a drill leaves that was killed before its first word."""
    empty = tmp_path / f"drill-{ID}"
    empty.mkdir()
    (empty / "drill.json.new").write_text("{")
    link = tmp_path / f"drill-{LATER}"
    link.symlink_to(tmp_path.parent)
    found: list[DrillMarker] = []
    assert clean_up(tmp_path, found.append) == []
    assert found == []
    assert not empty.exists()
    assert link.is_symlink()


def test_a_killed_drill_that_could_not_be_reported_is_reported_by_the_next(tmp_path: Path) -> None:
    """Its data are gone at once, whatever the store says."""
    made(tmp_path)

    def refused(_: DrillMarker) -> None:
        raise StoreError("access denied")

    with pytest.raises(StoreError):
        clean_up(tmp_path, refused)
    assert [path.name for path in (tmp_path / f"drill-{ID}").iterdir()] == ["drill.json"]
    found: list[DrillMarker] = []
    clean_up(tmp_path, found.append)
    assert [left.step for left in found] == ["apply"]
    assert [path.name for path in tmp_path.iterdir()] == [f"failed-{ID}"]


def test_an_interrupt_does_not_stop_the_removal(tmp_path: Path) -> None:
    """A SIGTERM that comes when the drill has just ended leaves nothing."""
    workspace, most = made(tmp_path), 5000
    for number in range(most):
        (workspace.data / f"{number}.ibd").touch()

    def interrupt() -> None:
        with suppress(FileNotFoundError):
            while sum(1 for _ in workspace.data.iterdir()) >= most:
                pass
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - it may come at any time
        workspace.remove(failed=False)
        thread.join(60)
    thread.join(60)
    assert not workspace.directory.exists()


def test_the_logs_of_three_failures_are_kept(tmp_path: Path) -> None:
    """The newest."""
    for day in range(1, 6):
        made(tmp_path, f"2026010{day}T031244Z-00000000").remove(failed=True)
    assert sorted(path.name[7:15] for path in tmp_path.iterdir()) == [
        "20260103",
        "20260104",
        "20260105",
    ]


def test_a_work_directory_has_one_drill(tmp_path: Path) -> None:
    """The second one is refused; a directory that is missing, too."""
    with locked(tmp_path), pytest.raises(RecoveryError, match="another drill"), locked(tmp_path):
        pass
    with pytest.raises(RecoveryError, match="cannot be used"), locked(tmp_path / "none"):
        pass


# Limits


def caused(cause: Exception) -> RecoveryError:
    """An error whose message does not say what its cause says."""
    error = RecoveryError("it failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("timeout", "max_disk", "text"),
    [(0.1, None, "was not done after"), (600.0, 4096, "more than --max-disk")],
)
def test_a_limit_interrupts(
    timeout: float, max_disk: int | None, text: str, tmp_path: Path
) -> None:
    """A child that sleeps is waited for no longer, and the reason is the limit."""
    script = (
        "import signal, sys, time\n"
        "from pathlib import Path\n"
        "from binlog2s3.restore.watchdog import Watchdog\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        f"folder, limits = Path({str(tmp_path)!r}), dict(timeout={timeout}, max_disk={max_disk})\n"
        "with Watchdog(folder, **limits, larger=''):\n"
        "    time.sleep(600)\n"
    )
    (tmp_path / "data").write_bytes(b"x" * 65_536)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert time.monotonic() - began < 300
    assert "RecoveryError: it" in done.stderr
    assert text in done.stderr


def test_within_the_limits_nothing_happens(tmp_path: Path) -> None:
    """The body's own error is raised as it is."""
    with Watchdog(tmp_path, timeout=600, max_disk=1 << 40, larger=""):
        pass
    with pytest.raises(KeyError), Watchdog(tmp_path, timeout=600, max_disk=None, larger=""):
        raise KeyError


ENOSPC = OSError(errno.ENOSPC, "x")
FULL = "there was no space left: "


@pytest.mark.parametrize(
    ("error", "output", "free", "starts", "hint"),
    [
        (ENOSPC, "", 0, FULL, "larger disk"),
        (OSError(errno.EDQUOT, "x"), "", 1 << 40, FULL, "larger disk"),
        (caused(ENOSPC), "", None, FULL, "larger disk"),
        (RecoveryError("cp: No space left on device"), "", 0, FULL, "larger disk"),
        (RecoveryError("x"), "Error writing file 't' (Errcode: 28)", 0, FULL, "larger disk"),
        (RecoveryError("x"), "(OS errno 28 - No space left ...)", 0, FULL, "larger disk"),
        (RecoveryError("x"), "Operating system error number 28", 0, FULL, "larger disk"),
        (RecoveryError("x"), "Disk full (/w/t); waiting", 0, FULL, "larger disk"),
        (RecoveryError("x"), "preallocating file ./x failed with error 28", 0, FULL, "larger disk"),
        (RecoveryError("x"), "Probably out of disk space", 0, FULL, "larger disk"),
        (RecoveryError("x"), "", 4096, FULL, "larger disk"),
        (RecoveryError("code 28", hint="do"), "28 rows, errno: 280", 1 << 16, "code 28; the", "do"),
        (OSError(errno.EIO, "x"), "error 28", LEAST_FREE - 1, "[Errno 5] x; the", "larger disk"),
    ],
)
def test_a_full_disk_is_told_only_if_something_says_so(
    error: RecoveryError | OSError, output: str, free: int | None, starts: str, hint: str
) -> None:
    """The error, or what was started; the error itself is in the message, and the free space."""
    found = explained(error, output, Path("/work"), free, "larger disk")
    assert found is not None
    assert str(found).startswith(starts)
    assert str(error) in str(found)
    said = "the free space of /work is unknown" if free is None else "the disk of /work has "
    assert said in str(found)
    assert hint in found.hint


@pytest.mark.parametrize("free", [None, LEAST_FREE, 1 << 40])
def test_an_error_that_has_nothing_to_do_with_the_disk_stays(free: int | None) -> None:
    """Its own words and its own hint, where there is space."""
    assert explained(RecoveryError("status 28"), "28 rows\nerror: 28", Path("/w"), free, "") is None


def test_what_the_logs_say_of_the_disk_is_told(tmp_path: Path) -> None:
    """The end of each log is read, and a log that is not there is none."""
    logs = (tmp_path / "absent", tmp_path / "log")
    logs[1].write_text("x" * 100_000 + "\ncp: No space left on device\n")
    error = RecoveryError("status 1")
    for given, expected in ((logs, "there was no space left: status 1; now"), ((), "status 1")):
        with (
            pytest.raises(RecoveryError, match=f"^{expected}") as raised,
            Watchdog(tmp_path, timeout=600, max_disk=None, logs=given, larger=""),
        ):
            raise error
        assert (raised.value is error) == (given == ())


# Children


def test_a_server_of_the_other_flavour_is_told(tmp_path: Path) -> None:
    """Before anything is restored; so is a program that is no server."""
    program = tmp_path / "mariadb" / "server"
    program.parent.mkdir()
    mysql, mariadb = "Ver 9.7.4-2 for Linux", "Ver 10.11.18-MariaDB-0+deb12u1 for Linux"
    for says, flavour, refusal in (
        (mysql, "mysql", ""),
        (mariadb, "mariadb", ""),
        (mariadb, "mysql", "as the source is"),
        (mysql, "mariadb", "as the source is"),
        ("cat: unrecognized option", "mysql", "as the source is"),
        (f"{mysql}\nUsage: mysql [OPTIONS]", "mysql", "is another program of Ver 9.7.4"),
    ):
        starts = "" if "Usage" in says else "echo Starts the MySQL database server."
        program.write_text(f"#!/bin/sh\necho $0  '{says}'\n{starts}\n")
        program.chmod(0o755)
        with pytest.raises(RecoveryError, match=refusal) if refusal else nullcontext():
            version_of(program, "mysql" if flavour == "mysql" else "mariadb")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_starts_a_program_is_interrupted_once_it_knows_it(number: signal.Signals) -> None:
    """Else nobody could end that program; a handler of the caller is in force again then."""
    done = []

    def start() -> None:
        with undisturbed():
            os.kill(os.getpid(), number)
            done.append("known")

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            start()
        assert done == ["known"]
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    """In its log; its end is an error."""
    log = tmp_path / "log"
    process = started(OWN, ["/no/such/program"], log, directory=tmp_path, environment={})
    assert process.wait(60) != 0
    assert "cannot run /no/such/program: No such file" in end_of(log)


def test_of_a_servers_log_its_errors_are_shown(tmp_path: Path) -> None:
    """What comes after them is not the reason."""
    log = tmp_path / "log"
    log.write_text("a [Note] begin\nb [ERROR] unknown option\nc [Note] end\n")
    assert end_of(log) == "b [ERROR] unknown option"
    log.write_text("a [Note] begin\nERROR: 1030  Got error 28\n[ERROR] Aborting\n")
    assert end_of(log) == "ERROR: 1030  Got error 28; [ERROR] Aborting"
    assert end_of(tmp_path / "none") == ""


# Results


def test_the_newest_result_and_the_newest_proof() -> None:
    """What has another key is ignored; what breaks the format may be a failure, and is told."""
    store, layout = MemoryStore(), Layout("pre", "orders")
    catalog = Catalog(store, layout)
    assert newest(latest(catalog)) == (None, None, None)
    store.put(layout.drill(RESULT.id), RESULT.to_json())
    assert newest(latest(catalog)) == (RESULT, RESULT, None)
    failed = replace(RESULT, id=LATER, outcome="failed", step="restore", error="status 3")
    store.put(layout.drill(LATER), failed.to_json())
    store.put(f"{layout.drills}note.txt", b"x")
    assert newest(latest(catalog)) == (failed, RESULT, None)
    broken = layout.drill("20260104T031244Z-5a6b7c8d")
    store.put(broken, b"{}")
    last, proof, unread = newest(latest(catalog))
    assert (last, proof, unread and unread.key) == (failed, RESULT, broken)
    store.put(layout.drill("20260101T031244Z-5a6b7c8d"), b"{}")
    assert newest(latest(catalog))[2] == unread, "not one from before the proof"
    for change in ({"outcome": "maybe"}, {"step": "sleep"}, {"id": LATER}):
        data = json.dumps({**json.loads(RESULT.to_json()), **change}).encode()
        with pytest.raises(ArchiveError):
            DrillResult.from_json(data, layout.drill(RESULT.id))


def test_any_error_can_be_written() -> None:
    """A result has one line of printable text."""
    text = one_line("a\nb\x1b[31m\x00")
    assert text.isprintable()
    result = replace(RESULT, error=text, finished_at=datetime.now(UTC))
    assert DrillResult.from_json(result.to_json(), Layout("", "orders").drill(result.id)) == result


# Options


def test_wrong_options_are_all_reported(tmp_path: Path) -> None:
    """Together."""
    given = Given(
        {
            "mysqld": tmp_path / "none",
            "work-dir": tmp_path,
            "mysqld-option": ("port=3",),
        }
    )
    config, problems = DRILL.build(given)
    assert config is None
    assert any("no such file" in text for text in problems)
    assert any("must begin with --" in text for text in problems)


def problems_of(folder: Path, **values: object) -> str:
    """Why these options of a drill are refused, as far as the program or its options are."""
    needed = {"source": "orders", "s3-url": "s3://bucket/pre", "restore-command": "restore"}
    given = {**needed, "mysqld": Path("/bin/true"), "work-dir": folder}
    more = {name.replace("_", "-"): value for name, value in values.items()}
    _, problems = DRILL.build(Given({**given, **more}))
    return "\n".join(text for text in problems if "mysqld" in text)


@pytest.mark.parametrize("option", [
    "--socket=/x", "--sock=/x", "--datadir=/x", "--port=3306", "--pid_file=/x",
    "--loose-pid-file=/x", "--loose_skip_networking=0", "--skip-networking", "--server-id=1",
    "--event_scheduler=ON", "--init-file=/x",
])  # fmt: skip
def test_an_option_that_drill_sets_is_refused(option: str, tmp_path: Path) -> None:
    """The scratch server would be elsewhere, and the drill would wait for it until --timeout."""
    said = problems_of(tmp_path, mysqld_option=(option,))
    assert f"--mysqld-option {option}: drill sets this itself" in said


@pytest.mark.parametrize("option", [
    "--basedir=/usr", "--user=mysql", "--tmpdir=/tmp", "--gtid-mode=OFF", "--port-open-timeout=3",
    "--lower_case_table_names=1", "--loose-skip-name-resolve", "--plugin-load-add=x.so",
    "--init-connect=socket",
])  # fmt: skip
def test_other_options_of_the_server_are_taken(option: str, tmp_path: Path) -> None:
    """Those that say how the data are kept, and those that look alike."""
    assert problems_of(tmp_path, mysqld_option=(option,)) == ""


def test_a_server_program_that_cannot_be_run_is_a_wrong_option(tmp_path: Path) -> None:
    """Before anything is asked or written, as one that is not there."""
    assert problems_of(tmp_path) == ""
    assert f"{tmp_path} is a directory" in problems_of(tmp_path, mysqld=tmp_path)
    program = tmp_path / "mysqld"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o644)
    assert f"{program} cannot be executed" in problems_of(tmp_path, mysqld=program)
    program.chmod(0o755)
    assert problems_of(tmp_path, mysqld=program) == ""


# What others put into the work directory


@pytest.mark.parametrize("name", ["lock", "failed"])
def test_a_link_in_the_work_directory_is_not_followed(tmp_path: Path, name: str) -> None:
    """What it names stays as it was."""
    work, other = tmp_path / "work", tmp_path / "other"
    work.mkdir()
    other.mkdir()
    if name == "lock":
        (work / "lock").symlink_to(other / "new")
        with pytest.raises(RecoveryError, match="lock: a link is in its place"), locked(work):
            pass
    else:
        made(work)
        (work / f"failed-{ID}").symlink_to(other)
        with pytest.raises(RecoveryError, match="a link is in its place"):
            clean_up(work, lambda _: None)
    assert list(other.iterdir()) == []


@pytest.mark.parametrize("by", ["name", "number"])
@AS_ROOT
def test_a_killed_drill_that_gave_its_directory_to_the_server(tmp_path: Path, by: str) -> None:
    """The user of the scratch server is the only other one whose directory is a drill's."""
    user = pwd.getpwnam("nobody")
    workspace, strangers = made(tmp_path), made(tmp_path, LATER)
    for path in (workspace.directory, *workspace.directory.rglob("*")):
        os.chown(path, user.pw_uid, user.pw_gid)
    os.chown(strangers.directory, user.pw_uid + 1, user.pw_gid)
    found: list[DrillMarker] = []
    options = ("--skip-log-bin", f"--user={user.pw_name if by == 'name' else user.pw_uid}")
    unknown = clean_up(tmp_path, found.append, server_user=user_of(options))
    assert unknown == [strangers.directory]
    assert [one.id for one in found] == [ID]
    assert not workspace.directory.exists()
    assert strangers.data.is_dir()


@AS_ROOT
def test_a_marker_that_the_scratch_server_has_put_there(tmp_path: Path) -> None:
    """A link is not followed, though the directory is its user's."""
    workspace, other = made(tmp_path), tmp_path / "other.json"
    (workspace.directory / "drill.json").rename(other)
    (workspace.directory / "drill.json").symlink_to(other)
    os.chown(workspace.directory, 65_534, 65_534)
    assert clean_up(tmp_path, lambda _: None, server_user=65_534) == [workspace.directory]
    assert workspace.data.is_dir()


@pytest.mark.parametrize(
    ("options", "user"),
    [
        (("--user=nobody",), 65_534),
        (("--port=1", "--user=7", "--user=8"), 7),
        ((), None),
        (("--user=",), None),
        (("--user=no-such-user",), None),
        (("--userstat=1",), None),
    ],
)
@AS_ROOT
def test_the_user_of_the_scratch_server(options: tuple[str, ...], user: int | None) -> None:
    """The server takes the first."""
    assert user_of(options) == user


@AS_ROOT
def test_the_scratch_server_of_root_can_reach_its_directory(tmp_path: Path) -> None:
    """It runs as another user, and everything that it needs is given to that one."""
    workspace = DrillWorkspace(
        tmp_path, DrillMarker(id=ID, source="orders", started_at=TIME), server_user=65_534
    )
    workspace.make()
    workspace.make_data()
    for path in (workspace.directory, workspace.data, workspace.directory / "tmp"):
        assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (65_534, 0o700)


@pytest.mark.parametrize("name", ["restore.log", "server.log"])
def test_a_link_in_the_place_of_a_log_is_not_followed(tmp_path: Path, name: str) -> None:
    """The scratch server, whose directory it is, could else have it written or shown by root."""
    secret, log = tmp_path / "secret", tmp_path / name
    secret.write_text("kept")
    log.symlink_to(secret)
    with pytest.raises(RecoveryError, match="cannot be started"):
        started(OWN, ["/bin/echo", "x"], log, directory=tmp_path, environment={})
    assert end_of(log) == ""
    assert secret.read_text() == "kept"


@AS_ROOT
def test_the_work_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """Also by root; and what another user has put into ours is not taken for a drill's."""
    workspace = made(tmp_path)
    os.chown(workspace.directory, 65_534, 65_534)
    assert clean_up(tmp_path, lambda _: None) == [workspace.directory]
    assert workspace.data.is_dir()
    os.chown(tmp_path, 65_534, 65_534)
    with pytest.raises(RecoveryError, match="belongs to user 65534"), locked(tmp_path):
        pass
