"""Base backups that are none: dumps by the real programs that do not have the whole server.

None is registered unless its operator accepts that, and then it counts nowhere: nothing is kept for
it, nothing is given up for it, and nothing chooses it.
"""

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.get import ServerBinaries
from lab.s3 import MinioServer
from tests.world.servers import dump_of, load, position_of
from tests.world.streamed import Streamed, streamed


class Dumped(Streamed):
    """With two databases."""

    def dump(self, name: str, *options: str) -> Path:
        """What the server's own program writes with these options."""
        path = self.folder / name
        dump_of(self.source, path, "--single-transaction", *options, of=())
        return path


@pytest.fixture
def archive(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Dumped]:
    with streamed(
        binaries,
        minio,
        bucket,
        disk_tmp_path,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY) ENGINE=InnoDB",
        "INSERT INTO shop.t VALUES (1), (2)",
        "CREATE DATABASE crm",
        "CREATE TABLE crm.t (id INT) ENGINE=InnoDB",
        kind=Dumped,
    ) as found:
        found.wait()
        yield found


def cut_off(path: Path, place: Path, *, zipped: bool = False) -> Path:
    """The first two thirds of a dump, as a full disk or a lost connection leave it."""
    data = path.read_bytes()
    data = data[: len(data) * 2 // 3]
    place.write_bytes(gzip.compress(data) if zipped else data)
    return place


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_each_dump_that_is_none_is_refused(archive: Dumped) -> None:
    """By backup add, verify and prune, with what is wrong; nothing of it is registered."""
    whole = archive.dump("whole.sql", "--all-databases")
    folder = archive.folder
    none = {
        "it is cut off": [
            cut_off(whole, folder / "cut.sql"),
            cut_off(whole, folder / "cut.sql.gz", zipped=True),
            cut_off(
                archive.dump("plain.sql", "--all-databases", "--skip-comments"),
                folder / "cut-plain.sql",
            ),
        ],
        "no rows (--no-data)": [archive.dump("schema.sql", "--all-databases", "--no-data")],
        "not the definitions": [archive.dump("rows.sql", "--all-databases", "--no-create-info")],
        "rows of a condition": [archive.dump("some.sql", "--all-databases", "--where=1=1")],
        "of a single database, 'shop'": [
            archive.dump("shop.sql", "shop"),
            archive.dump("database.sql", "--databases", "shop"),
            archive.dump("bare.sql", "--databases", "shop", "--skip-comments"),
            archive.dump("table.sql", "shop", "t"),
        ],
    }
    for text, paths in none.items():
        for path in paths:
            added = archive.run("backup", "add", f"--from-backup={path}")
            assert added.returncode == 8, (path, added.stdout)
            assert "is no base backup of the whole server: " in added.stderr
            assert text in added.stderr, (path, added.stderr)
        asked = archive.run("verify", f"--from-backup={paths[0]}")
        assert asked.returncode == 7, (paths[0], asked.stdout)
        assert "NO: " in asked.stdout
        assert text in " ".join(asked.stdout.split()), asked.stdout
    for path in (folder / "cut.sql.gz", folder / "shop.sql"):
        kept = archive.run("prune", f"--keep-from-backup={path}", "--dry-run")
        assert kept.returncode == 8, (path, kept.stdout)
        assert "is no base backup of the whole server: " in kept.stderr
    assert archive.document("backup", "list")["backups"] == []
    pages = folder / "pages.sql"  # as docs/recovery has it
    dump_of(archive.source, pages)
    (one,) = archive.document("backup", "add", f"--from-backup={pages}")["backups"]
    assert (one["checked"], one["defects"], one["accepted"]) == (True, [], "")
    for name, options in {
        "whole.sql": ["--all-databases"],
        "plain.sql": ["--all-databases", "--skip-comments"],
        "two.sql": ["--databases", "shop", "crm"],
    }.items():
        path = archive.dump(name, *options)
        (one,) = archive.document("backup", "add", f"--from-backup={path}")["backups"]
        assert one["defects"] == []
        assert one["checked"] is (name != "two.sql"), name
        assert archive.run("verify", f"--from-backup={path}").returncode == 0


@pytest.mark.gate
@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_the_prune_of_a_good_backup_waits_for_one_that_was_checked(archive: Dumped) -> None:
    """A snapshot that nobody has looked into does not displace a dump that was read."""
    good = archive.dump("good.sql", "--all-databases")
    archive.document("backup", "add", f"--from-backup={good}", "--label=good")
    archive.commit("INSERT INTO shop.t VALUES (3)", "FLUSH BINARY LOGS")
    name, position = position_of(archive.source)
    archive.document(
        "backup", "add", f"--binlog={name}", f"--position={position}", "--label=snapshot"
    )
    archive.commit("INSERT INTO shop.t VALUES (4)", "FLUSH BINARY LOGS")
    archive.wait_archived(2)
    plan = archive.document("prune", "--keep=0s", "--grace=0s", "--yes")
    assert plan["given_up"] == []
    assert len(plan["kept"]) == 2
    said = archive.run("prune", "--keep=0s", "--grace=0s", "--dry-run").stdout
    assert "before a drill has proved that one" in said.replace("\n", " ")


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_recovery_of_half_a_dump_is_refused(archive: Dumped) -> None:
    """The half that was loaded is all that the dump has; --accept-backup goes on and says so."""
    whole = archive.dump("whole.sql", "--all-databases")
    text = whole.read_bytes()
    half = archive.folder / "half.sql"
    half.write_bytes(text[: text.rindex(b"-- Dump completed")])
    archive.commit("INSERT INTO shop.t VALUES (3)")
    recovery, target = archive.recovery, archive.another()
    load(target, half, "--init-command=SET sql_log_bin = 0")
    zipped = archive.folder / "half.sql.gz"
    zipped.write_bytes(gzip.compress(half.read_bytes()))
    for path in (half, zipped):
        said = recovery.refused(target, f"--from-backup={path}", "--latest")
        assert "is no base backup of the whole server: it is cut off" in said
    assert [*target.query("SELECT COUNT(*) FROM shop.t")] == [(2,)]
    done = recovery.to(target, f"--from-backup={half}", "--latest", "--accept-backup")
    assert done["result"]["base_backup"]["checked"] == "no"
    assert [*target.query("SELECT COUNT(*) FROM shop.t")] == [(3,)]


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_a_physical_backup_whose_positions_differ(
    archive: Dumped, mariadb_backup: Path, disk_tmp_path: Path
) -> None:
    """By what lies in between: transactions of InnoDB would be missing, the rest is in no data.

    mariabackup's --no-lock, and a directory whose position file was exchanged for a later one, as
    --no-lock under load leaves it. Its own option is in xtrabackup_info, so that goes first.
    """
    source = archive.source
    source.query("CREATE TABLE shop.m (id INT) ENGINE=MyISAM")

    def made(name: str, *options: str) -> Path:
        path = disk_tmp_path / name
        argv = [mariadb_backup / "mariabackup", "--no-defaults", f"--target-dir={path}"]
        where = [f"--socket={source.socket}", "--user=root", f"--datadir={source.datadir}"]
        for step in (["--backup", *where, *options], ["--prepare"]):
            subprocess.run([*argv, *step], check=True, capture_output=True)
        return path

    def says(path: Path) -> str:
        done = archive.run("backup", "add", f"--from-backup={path}")
        assert (done.returncode == 8) == ("no base backup" in done.stderr), done.stderr
        return done.stderr if done.returncode else ""

    archive.commit("INSERT INTO shop.t VALUES (3)")
    assert says(made("innodb")) == ""
    archive.commit("INSERT INTO shop.m VALUES (1)", "CREATE TABLE shop.later (id INT)")
    assert says(made("others")) == ""
    archive.commit("FLUSH BINARY LOGS")
    assert says(made("rotated")) == ""
    assert "made with --no-lock" in says(made("no-lock", "--no-lock"))
    good = made("good")
    archive.commit("INSERT INTO shop.t VALUES (4)", "INSERT INTO shop.t VALUES (5)")
    later = made("later")
    for name in ("xtrabackup_binlog_info", "xtrabackup_info"):
        (good / name).write_bytes((later / name).read_bytes())
    told = says(good)
    assert "2 transactions in between would be missing" in told
    assert archive.run("verify", f"--from-backup={good}").returncode == 7
    earlier = made("earlier")
    pos = earlier / "xtrabackup_binlog_pos_innodb"
    pos.write_text(pos.read_text().replace("\t", "\t9"))
    assert "behind its position" in says(earlier)
