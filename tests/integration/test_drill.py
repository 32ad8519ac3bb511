"""`drill` at real servers: each flavour, from a dump and from a copy; what fails, and `kill -9`."""

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.restore.watchdog import LEAST_FREE
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.s3 import MinioServer, environment_for
from tests import command
from tests.integration.small_disk import mount_small
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import their_server
from tests.world.servers import dump_of
from tests.world.streamed import Streamed, streamed

ROOT = Path(__file__).parents[2]
TRACES = {"mariadb": ["--master-data=1"]}
"""Options of a dump whose load sets what shows that it is this one; MySQL's sets GTIDs anyway."""


@dataclass(kw_only=True)
class Nights(Streamed):
    """Its archive is to be proved: a dump and a copy, and a bucket with all after it."""

    work: Path = Path()
    dump: Path = Path()
    copy: Path = Path()

    def register(self, path: Path | str, *more: str) -> str:
        added = self.document("backup", "add", f"--location={path}", *more)
        return str(added["backups"][0]["id"])

    def argv(self, restore: str, *more: str) -> list[str]:
        words = [f"--mysqld={self.binaries.server}", f"--work-dir={self.work}"]
        words += [*their_server(), "--json"]
        words += ["--nice=0", "--ionice=none"]  # or it would wait for all other tests
        return ["drill", *self.where, *words, f"--restore-command={restore}", *more]

    def drill(self, restore: str, *more: str) -> "subprocess.CompletedProcess[str]":
        return command.run(*self.argv(restore, *more), **self.minio.env())

    def load(self, path: Path | None = None) -> str:
        """A restore command: the dump of the location, or another one."""
        client = shlex.quote(str(self.binaries.client))
        given = shlex.quote(str(path)) if path is not None else '"$DRILL_LOCATION"'
        to = f'-u root -S "$DRILL_SOCKET" < {given}'
        pipe = f"{client} --no-defaults --binary-mode {to}"
        return f"sh -c {shlex.quote(pipe)}"

    def insert(self, number: int) -> None:
        """A row more, in the archive too."""
        self.commit(f"INSERT INTO shop.t VALUES ({number})")

    def results(self) -> list[dict[str, Any]]:
        keys = self.there.keys("pre/archive/test/drills/")
        return [json.loads(self.there.get(key)) for key in keys]

    def left(self) -> list[str]:
        """What is in the work directory, but the lock and the logs of failures."""
        names = [path.name for path in self.work.iterdir()]
        return [name for name in names if name != "lock" and not name.startswith("failed-")]


@pytest.fixture
def nights(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Nights]:
    """The source is gone; the streamer has brought everything into the bucket."""
    table = ("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    with (
        temporary_directory() as work,  # its path is short: a socket is in it
        streamed(binaries, minio, bucket, disk_tmp_path, *table, kind=Nights) as found,
    ):
        source = found.source
        found.work = work
        found.dump, found.copy = disk_tmp_path / "dump.sql", disk_tmp_path / "copy"
        source.query("INSERT INTO shop.t VALUES (1), (2)")
        dump_of(source, found.dump, *TRACES.get(binaries.flavour, []))
        source.stop()
        subprocess.run(["cp", "-a", str(source.datadir), str(found.copy)], check=True)
        source.start()
        source.query("CREATE USER visitor IDENTIFIED BY 'x'", "FLUSH BINARY LOGS")
        for n in range(3, 23):
            source.query(f"INSERT INTO shop.t VALUES ({n})")
        source.query("FLUSH BINARY LOGS", "INSERT INTO shop.t VALUES (99)")
        found.wait_archived(3)
        found.wait()
        yield found


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_a_dump_is_proved(nights: Nights) -> None:
    """To now, with CHECK TABLE; the rights of docs/policies/drill.json are enough.

    The result is in the archive, which has nothing else that is new, and nothing else is left.
    """
    id_ = nights.register(nights.dump, f"--from-backup={nights.dump}")
    text = (ROOT / "docs/policies/drill.json").read_text(encoding="utf-8")
    for ours, theirs in (("acme-binlogs", nights.bucket), ("prod/", "pre/"),
                         ("orders-primary", "test")):  # fmt: skip
        text = text.replace(ours, theirs)
    rights = environment_for(**nights.minio.restricted(json.loads(text)))
    there = nights.there
    before = {key: there.get(key) for key in there.keys("pre/archive")}
    done = command.run(*nights.argv(nights.load()), **rights)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["backup"], said["step"]) == ("proved", id_, None)
    assert said["transactions"] >= 22
    assert said["tables"] > 1
    assert nights.results() == [{"format": 1, **said}]
    after = {key: there.get(key) for key in there.keys("pre/archive")}
    assert len(after) == len(before) + 1
    assert {key: after[key] for key in before} == before
    assert nights.left() == []


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_copy_is_proved(nights: Nights, tmp_path: Path) -> None:
    """A cold copy of the data directory, checked by the operator's statements."""
    checks = tmp_path / "checks.sql"
    many = "SELECT a.id FROM shop.t a, shop.t b, shop.t c, shop.t d, shop.t e, shop.t f;\n"
    text = "-- all\nSELECT COUNT(*) = 23 FROM shop.t;\nSELECT MAX(id) FROM shop.t;\n"
    checks.write_text(text + many)  # only the first of 148 million rows is read
    register_copy(nights)
    other = []
    if nights.binaries.flavour == "mariadb":  # it lets itself be called another series
        other = ["--mysqld-option=--version=11.99.1-MariaDB"]
    done = nights.drill("cp -a {location}/. {datadir}", f"--check-sql={checks}", *other)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["statements"]) == ("proved", 3)
    told = re.search(r"is of version 11\.99\.1-MariaDB\S*, the source of \d+\.", done.stderr)
    assert bool(told) == bool(other)
    assert ("another series" in done.stderr) == bool(other)
    assert "replicas do not get it" not in done.stderr
    assert nights.left() == []
    checks.write_text("SELECT COUNT(*) = 24 FROM shop.t;\n")
    done = nights.drill("cp -a {location}/. {datadir}", f"--check-sql={checks}")
    assert done.returncode == 8
    assert "failed at the step 'check': statement 1 of --check-sql returned 0" in done.stderr
    assert "another series" not in done.stderr
    assert "replicas do not get it" not in done.stderr
    assert [one["outcome"] for one in nights.results()] == ["proved", "failed"]


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_what_pitr_does_not_call_proved_is_told(nights: Nights) -> None:
    """A statement that another server executes otherwise: in the result, and in the status."""
    nights.register(nights.dump, f"--from-backup={nights.dump}")
    statement = "CREATE TABLE shop.u SELECT id, UUID() AS at FROM shop.t"
    nights.commit("SET SESSION binlog_format = STATEMENT", statement)
    done = nights.drill(nights.load())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], statement in said["doubts"][0]) == ("proved", True)
    assert nights.document("status")["drill"]["doubts"] == said["doubts"]


@pytest.mark.parametrize("traced", [True, False])
def test_another_backup_than_the_registered_one_proves_nothing(
    traced: bool,
    mariadb_binaries: ServerBinaries,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """An older or a newer dump is restored; what leaves no trace is proved on trust alone."""
    dumps = [disk_tmp_path / f"{number}.sql" for number in range(3)]
    table = ("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY, n INT)")
    with (
        temporary_directory() as work,
        streamed(mariadb_binaries, minio, bucket, disk_tmp_path, *table, kind=Nights) as nights,
    ):
        nights.work = work
        for number, dump in enumerate(dumps):
            nights.source.query(f"REPLACE INTO shop.t VALUES (1, {number})")
            dump_of(nights.source, dump, *(TRACES["mariadb"] if traced else ()))
        nights.commit("FLUSH BINARY LOGS", "REPLACE INTO shop.t VALUES (1, 9)")
        nights.wait_archived(1)
        older, registered, newer = dumps
        id_ = nights.register("/no/such/place", f"--from-backup={registered}")
        for wrong in (older, newer) if traced else (registered,):
            done = nights.drill(nights.load(wrong))
            assert done.returncode == 8, done.stdout
            text = "is not backup" if traced else "nothing in the restored server says"
            assert text in done.stderr, done.stderr
        trust = () if traced else ("--trust-restore-command",)
        done = nights.drill(nights.load(registered), *trust)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert (said["backup"], said["restored"] == "on trust") == (id_, not traced)
        assert said["restored"]


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_another_copy_than_the_registered_one_proves_nothing(
    nights: Nights, mariadb_backup: Path, disk_tmp_path: Path
) -> None:
    """By the binlogs that came along, and by mariabackup's own file, without which none knows."""
    register_copy(nights)
    nights.source.stop()
    newer = disk_tmp_path / "newer"
    subprocess.run(["cp", "-a", str(nights.source.datadir), str(newer)], check=True)
    nights.source.start()
    done = nights.drill(f"cp -a {newer}/. {{datadir}}")
    assert done.returncode == 8, done.stdout
    assert "nothing in the restored server says" in done.stderr, done.stderr
    nights.insert(101)
    backups = [disk_tmp_path / name for name in ("first", "second")]
    program = mariadb_backup / "mariabackup"
    for number, path in enumerate(backups):
        nights.insert(110 + number)
        where = [f"--socket={nights.source.socket}", "--user=root"]
        for step in (["--backup", *where], ["--prepare"]):
            argv = [program, "--no-defaults", f"--target-dir={path}", *step]
            subprocess.run(argv, check=True, capture_output=True)
    nights.register(backups[0], f"--from-backup={backups[0]}")
    done = nights.drill(f"cp -a {backups[1]}/. {{datadir}}")
    assert done.returncode == 8, done.stdout
    assert "its own position file says" in done.stderr, done.stderr
    done = nights.drill(f"cp -a {backups[0]}/. {{datadir}}")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["restored"] == "the position file of mariabackup"
    bare = f'cp -a {backups[0]}/. "$DRILL_DATADIR" && rm "$DRILL_DATADIR"/*_binlog_info'
    done = nights.drill(f"sh -c {shlex.quote(bare)}")
    assert done.returncode == 8, done.stdout
    assert "nothing in the restored server says" in done.stderr, done.stderr


def prove_example(
    nights: Nights, program: Path, backup: Path, made: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """Upload the backup that was `made`, register it, and prove it by the program: the result."""
    location = f"s3://{nights.bucket}/backups/{made.name}"
    with closing(nights.minio.client()) as client:
        client.upload_file(str(made), nights.bucket, f"backups/{made.name}")
    id_ = nights.register(location, f"--from-backup={backup}")
    done = command.run(*nights.argv(str(program)), **environment)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["backup"]) == ("proved", id_)
    assert said["tables"] > 1
    assert nights.left() == []
    return dict(said)


def example(name: str, folder: Path) -> Path:
    """The restore command of this name as docs/drill.md has it, as a program."""
    page = (ROOT / "docs/drill.md").read_text(encoding="utf-8")
    (text,) = re.findall(rf"```sh\n(#!/bin/bash\n# /usr/local/bin/{name}\n.*?)```", page, re.DOTALL)
    program = folder / name
    program.write_text(text)
    program.chmod(0o755)
    return program


def on_path(nights: Nights, *folders: Path) -> dict[str, str]:
    """The environment in which the examples run: the programs, and the store that is S3."""
    path = ":".join([*map(str, folders), os.environ["PATH"]])
    return {**nights.minio.env(), "PATH": path, "AWS_ENDPOINT_URL": nights.minio.endpoint_url}


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_the_example_of_mysqldump_is_proved(
    nights: Nights, aws_command: Path, tmp_path: Path
) -> None:
    """The documented restore command, word by word, with a compressed dump in the bucket."""
    environment = on_path(nights, aws_command.parent, nights.binaries.client.parent)
    dump = tmp_path / "dump.sql.zst"
    subprocess.run(["zstd", "-q", nights.dump, "-o", dump], check=True)
    program = example("restore-dump", tmp_path)
    assert prove_example(nights, program, dump, dump, environment)["transactions"] >= 21
    with closing(nights.minio.client()) as client:  # mysql itself is content with nothing
        client.delete_object(Bucket=nights.bucket, Key=f"backups/{dump.name}")
    done = command.run(*nights.argv(str(program)), **environment)
    assert done.returncode == 8
    assert "failed at the step 'restore'" in done.stderr, done.stderr


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_the_example_of_mariabackup_is_proved(
    nights: Nights, aws_command: Path, mariadb_backup: Path, tmp_path: Path
) -> None:
    """The documented restore command, word by word, with a stream in the bucket."""
    environment = on_path(nights, aws_command.parent, mariadb_backup)
    stream, unpacked = tmp_path / "backup.xb", tmp_path / "unpacked"
    unpacked.mkdir()
    with stream.open("wb") as out:
        argv = ["mariabackup", "--no-defaults", "--backup", "--stream=mbstream"]
        argv += [
            "--user=root",
            f"--socket={nights.source.socket}",
            f"--target-dir={tmp_path / 'x'}",
        ]
        subprocess.run(argv, check=True, stdout=out, env={**os.environ, **environment})
    argv = [mariadb_backup / "mbstream", "-x", "-C", unpacked]
    with stream.open("rb") as given:
        subprocess.run(argv, check=True, stdin=given)
    nights.insert(100)
    program = example("restore-mariabackup", tmp_path)
    assert prove_example(nights, program, unpacked, stream, environment)["transactions"] == 1


def register_copy(nights: Nights) -> str:
    """The copy was made when the source had what the dump has, and one more binlog."""
    newest = (nights.copy / "mysql-bin.index").read_text().split()[-1]
    path = nights.copy / newest.removeprefix("./")
    where = [f"--binlog={path.name}", f"--position={path.stat().st_size}"]
    return nights.register(nights.copy, *where)


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_wrong_restore_command_is_told(nights: Nights) -> None:
    """The step, the end of its output, the logs; an exit code; a result; and nothing is left."""
    register_copy(nights)
    for restore, text, *more in (
        ("sh -c 'echo no such backup; nice; exit 3'", "no such backup; 19", "--nice=19"),
        ("/no/such/program", "cannot run /no/such/program"),
        ("true", "the data directory is empty"),
        ("sh -c 'rmdir {datadir} && ln -s {location} {datadir}'", "is a link to something else"),
    ):
        fails_in_restore(nights, restore, text, *more)
    assert len(nights.results()) == 4
    assert len(list(nights.work.glob("failed-*"))) == 3


def fails_in_restore(nights: Nights, restore: str, text: str, *more: str) -> None:
    """The drill fails at that step, says so everywhere, and leaves nothing but logs."""
    done = nights.drill(restore, *more)
    assert done.returncode == 8, (restore, done.stderr)
    assert "failed at the step 'restore'" in done.stderr, done.stderr
    assert text in done.stderr, done.stderr
    last = nights.results()[-1]
    assert (last["outcome"], last["step"]) == ("failed", "restore")
    assert nights.left() == []


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_full_disk_is_told(nights: Nights) -> None:
    """Of the work directory: the drill ends before the server waits for space; nothing is left."""
    id_ = register_copy(nights)
    small = nights.work / "small"
    mount_small(small, LEAST_FREE + (1 << 17))  # it goes on until it has written something
    try:
        full = replace(nights, work=small)
        fill = "head -c 64M /dev/zero > {datadir}/fill"
        done = full.drill(f"sh -c 'cp -a {{location}}/. {{datadir}} && {fill} && sleep 600'")
        assert done.returncode == 8, done.stderr
        # what was started fails, unless the drill notices first that little is left
        left = rf"the disk of {small} has .* free"
        said = rf"there was no space left: .*; now {left}|{left}: too little"
        assert re.search(said, done.stderr), done.stderr
        assert (full.results()[-1]["outcome"], full.results()[-1]["backup"]) == ("failed", id_)
        assert full.left() == []
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_result_that_cannot_be_written_is_told(nights: Nights) -> None:
    """With what the drill has shown; that of a killed drill is written by a later one."""
    register_copy(nights)
    read = {"Effect": "Allow", "Action": ["s3:List*", "s3:Get*"], "Resource": ["arn:aws:s3:::*"]}
    rights = environment_for(**nights.minio.restricted({"Statement": [read]}))
    done = command.run(*nights.argv("sh -c 'echo no such backup; exit 3'"), **rights)
    assert done.returncode == 6, done.stderr
    assert "ended with status 3: no such backup" in done.stderr
    assert "the result cannot be written" in done.stderr
    assert "put_object" in done.stderr
    assert nights.left() == []
    environment = command.environment(**nights.minio.env())
    argv = command.argv(*nights.argv("sleep 600"))
    with subprocess.Popen(argv, env=environment, stderr=subprocess.DEVNULL) as process:
        wait_until(partial(is_at, nights.work, "restore"), PATIENCE, "step restore")
        process.kill()
    assert command.run(*nights.argv("false"), **rights).returncode == 6
    assert nights.results() == []
    assert nights.drill("false").returncode == 8
    first, second = sorted(nights.results(), key=lambda one: str(one["started_at"]))
    assert first["error"] == "it was killed during the step 'restore'"
    assert "ended with status 1" in second["error"]


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_damage_and_a_missing_binlog_are_told(nights: Nights) -> None:
    """The drill fails and names what is wrong; it never proves less than the goal."""
    nights.register(nights.dump, f"--from-backup={nights.dump}")
    there = nights.there
    [key] = [key for key in there.keys("pre") if key.endswith("/binlogs/mysql-bin.000003")]
    data = bytearray(there.get(key))
    data[len(data) // 2] ^= 0xFF
    with closing(nights.minio.client()) as client:
        client.put_object(Bucket=nights.bucket, Key=key, Body=bytes(data))
    done = nights.drill(nights.load())
    assert done.returncode == 8
    assert "mysql-bin.000003" in done.stderr
    with closing(nights.minio.client()) as client:
        for one in (key, key.replace("/binlogs/", "/entries/") + ".json"):
            client.delete_object(Bucket=nights.bucket, Key=one)
    done = nights.drill(nights.load())
    assert done.returncode == 8
    assert "failed at the step 'choose'" in done.stderr
    assert "between mysql-bin.000002 and mysql-bin.000004 are missing" in done.stderr
    assert [one["outcome"] for one in nights.results()] == ["failed", "failed"]
    assert nights.left() == []


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_the_next_drill_removes_what_a_killed_one_left(nights: Nights, tmp_path: Path) -> None:
    """At each step: data and processes go, and a result says in which step it was killed."""
    nights.register(nights.dump, f"--from-backup={nights.dump}")
    checks = tmp_path / "checks.sql"
    checks.write_text("SELECT COUNT(*) = 23 FROM shop.t;\nSELECT SLEEP(600) + 1;\n")
    killed: list[str] = []
    for step in ("restore", "start", "apply", "check"):
        slow = "sh -c 'sleep 600 & sleep 600'" if step == "restore" else nights.load()
        for _ in range(10):  # on a busy machine it may pass a step before it is stopped there
            killed.append(killed_at(nights, step, slow, f"--check-sql={checks}"))
            assert len(nights.left()) == 1
            if killed[-1] == step:
                break
        assert killed[-1] == step
    done = nights.drill("false", "--restore-into=directory")
    assert done.returncode == 8
    assert "it was killed during the step 'check'" in done.stderr
    assert nights.left() == []
    found = sorted(nights.results(), key=lambda one: str(one["started_at"]))
    said = [one["step"] for one in found if one["error"].startswith("it was killed")]
    assert said == killed


def killed_at(nights: Nights, step: str, restore: str, *more: str) -> str:
    """Kill a drill that has come to this step, or past it; the step that it was killed in."""
    with subprocess.Popen(
        command.argv(*nights.argv(restore, *more)),
        env=command.environment(**nights.minio.env()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            reached = partial(is_at, nights.work, {step, "check"})
            wait_until(reached, 3 * PATIENCE, f"step {step}", interval=0.001)
            process.send_signal(signal.SIGSTOP)
            (stopped,) = steps_of(nights.work)
        finally:
            process.send_signal(signal.SIGKILL)
    return stopped


def steps_of(work: Path) -> list[str]:
    """The steps that the drills in this directory have noted last."""
    found = []
    for path in work.glob("drill-*/drill.json"):
        with suppress(FileNotFoundError):  # the next drill removes what a killed one has left
            found.append(json.loads(path.read_text())["step"])
    return found


def is_at(work: Path, steps: set[str]) -> bool:
    """Whether the running drill has noted one of these, and nothing is left of an earlier one."""
    found = steps_of(work)
    return len(found) == 1 and found[0] in steps
