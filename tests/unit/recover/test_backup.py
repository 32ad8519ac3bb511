"""Where a base backup stands, as its files say: each fixture names who documents its format."""

import bz2
import gzip
import json
import lzma
import os
import re
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from binlog2s3.errors import RecoveryError
from binlog2s3.recover import backup
from binlog2s3.recover.backup import LIMIT, BackupPoint, read_backup
from binlog2s3.recover.dump_content import CUT_OFF
from tests.golden.buckets import BUCKETS
from tests.golden.outputs import called
from tests.sampling import examples

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4f22fb58-71ca-11e1-9e33-c80aa9429563"

# https://github.com/mysql/mysql-server/blob/trunk/client/mysqldump.cc: write_header,
# add_set_gtid_purged, do_show_binary_log_status
MYSQLDUMP = f"""\
-- MySQL dump 10.13  Distrib 9.7.0, for Linux (x86_64)
--
-- Host: localhost    Database: \n\
-- ------------------------------------------------------
-- Server version	9.7.0

/*!40101 SET @OLD_CHARACTER_SET_CLIENT=@@CHARACTER_SET_CLIENT */;
/*!50503 SET NAMES utf8mb4 */;
/*!40103 SET TIME_ZONE='+00:00' */;
SET @MYSQLDUMP_TEMP_LOG_BIN = @@SESSION.SQL_LOG_BIN;
SET @@SESSION.SQL_LOG_BIN= 0;

--
-- GTID state at the beginning of the backup \n\
--

SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '{OTHER}:1-5:7,
{UUID}:1-20:blue:3';

--
-- Position to start replication or point-in-time recovery from
--

-- CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='mysql-bin.000042', SOURCE_LOG_POS=1104;

--
-- Current Database: `mysql`
--

CREATE DATABASE /*!32312 IF NOT EXISTS*/ `mysql`;

USE `mysql`;

--
-- Table structure for table `t`
--

DROP TABLE IF EXISTS `t`;
CREATE TABLE `t` (
  `a` int NOT NULL
) ENGINE=InnoDB;
LOCK TABLES `t` WRITE;
INSERT INTO `t` VALUES (1);
UNLOCK TABLES;
SET @@SESSION.SQL_LOG_BIN = @MYSQLDUMP_TEMP_LOG_BIN;
/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;

-- Dump completed on 2026-11-22  2:56:46
"""
GTIDS = f"{UUID}:1-20:blue:3,{OTHER}:1-5:7"
CHANGE = (
    "-- CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='mysql-bin.000042', SOURCE_LOG_POS=1104;\n"
)
PURGED = MYSQLDUMP[MYSQLDUMP.index("SET @@GLOBAL") : MYSQLDUMP.index(":blue:3';\n") + 10]
HEADER_END = MYSQLDUMP.index("--\n-- Current Database")
HEADER, DATA = MYSQLDUMP[:HEADER_END], MYSQLDUMP[HEADER_END:]

# https://github.com/MariaDB/server/blob/main/client/mysqldump.cc: do_show_master_status, and
# do_print_gtid_set, which puts the GTIDs behind all tables
MARIADB_DUMP = """\
/*M!999999\\- enable the sandbox mode */ \n\
-- MariaDB dump 10.19  Distrib 10.11.18-MariaDB, for debian-linux-gnu (x86_64)
--
-- Host: localhost    Database: \n\
-- ------------------------------------------------------
-- Server version	10.11.18-MariaDB-0+deb12u1-log

/*!40101 SET NAMES utf8mb4 */;
/*!40103 SET TIME_ZONE='+00:00' */;
CHANGE MASTER TO MASTER_USE_GTID=slave_pos;

-- A corresponding to the above master-data CHANGE-MASTER settings to the slave gtid state is \
printed later in the file.

--
-- Alternately, following is the position of the binary logging from SHOW MASTER STATUS at point \
of backup.
-- Use this when creating a replica of the primary server where the backup was made.
--

-- CHANGE MASTER TO MASTER_LOG_FILE='mysql-bin.000001', MASTER_LOG_POS=785;

USE `shop`;
CREATE TABLE `t` (`a` int);
DELIMITER ;;
CREATE PROCEDURE `p`()
BEGIN
SET GLOBAL gtid_slave_pos='0-9-999';
END ;;
DELIMITER ;

-- The deferred gtid setting for slave corresponding to the master-data CHANGE-MASTER follows

-- Preferably use GTID to start replication from GTID position:

SET GLOBAL gtid_slave_pos='1-2-7,0-1-5';
/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;

-- Dump completed on 2026-11-22  2:56:48
"""


def written(directory: Path, text: str | bytes, name: str = "backup") -> Path:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(directory: Path, text: str | bytes, name: str = "backup") -> BackupPoint:
    return read_backup(written(directory, text, name))


def stands(point: BackupPoint) -> tuple[str | None, int | None, str | None]:
    binlog, offset = point.ends_at or (None, None)
    return str(binlog) if binlog else None, offset, point.gtid_set


def refused(path: Path) -> RecoveryError:
    with pytest.raises(RecoveryError) as caught:
        read_backup(path)
    assert str(path) in str(caught.value)
    assert "--from-gtid-set" in caught.value.hint
    assert "--from-position" in caught.value.hint
    assert caught.value.exit_code == 8
    assert not caught.value.transient
    return caught.value


def compressed(how: str, data: bytes) -> bytes:
    if how == "zst":
        return zstandard.ZstdCompressor().compress(data)
    if how == "pzstd":  # it begins with a skippable frame, and has many frames
        half = len(data) // 2
        parts = (zstandard.ZstdCompressor().compress(part) for part in (data[:half], data[half:]))
        return b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + b"".join(parts)
    if how == "gz":
        # pigz and bgzip write several
        return gzip.compress(data[:100]) + gzip.compress(data[100:], 1)
    return data


Place = tuple[str | None, int | None, str | None]
COMPRESSIONS = ["plain", "gz", "zst", "pzstd"]


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.parametrize(
    ("text", "tool", "flavour", "place"),
    [
        (MYSQLDUMP, "mysqldump", "mysql", ("mysql-bin.000042", 1104, GTIDS)),
        (MARIADB_DUMP, "mariadb-dump", "mariadb", ("mysql-bin.000001", 785, "0-1-5,1-2-7")),
    ],
    ids=["mysqldump", "mariadb-dump"],
)
def test_a_dump(how: str, text: str, tool: str, flavour: str, place: Place, tmp_path: Path) -> None:
    """Everything in its header, or MariaDB's GTIDs behind all tables, whatever the file's name."""
    point = read(tmp_path, compressed(how, text.encode()), "backup.txt")
    assert stands(point) == place
    assert (point.tool, point.flavour) == (tool, flavour)
    assert point.server_uuid is None
    assert point.warnings == ()


TITLE_OF_MARIADB = "-- MariaDB dump 10.19  Distrib 11\n\nCREATE TABLE t(a int);"
BARE = "\n".join(line for line in HEADER.splitlines() if not line.startswith("--"))
# https://dev.mysql.com/doc/refman/8.4/en/mysqldump.html#option_mysqldump_source-data, and
# https://dev.mysql.com/doc/refman/8.0/en/mysqldump.html#option_mysqldump_output-as-version
MASTER = "CHANGE MASTER TO MASTER_LOG_FILE='mysql-bin.000042', MASTER_LOG_POS=1104;\n"
# https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/
# MySQL.Procedural.Importing.External.Repl.html
AMAZON = "-- CHANGE SOURCE TO SOURCE_LOG_FILE='mysql-bin.000042', SOURCE_LOG_POS=1104;\n"
# https://dev.mysql.com/doc/refman/8.4/en/mysqldump.html#option_mysqldump_set-gtid-purged
COMMENTED = f"/* SET @@GLOBAL.GTID_PURGED='+{UUID}:1-7';*/\n"
# https://dev.mysql.com/doc/refman/8.4/en/mysqldump.html#option_mysqldump_dump-replica; the words
# above it are those of client/mysqldump.cc, 8.0 and 9.x, and of MariaDB's client/mysqldump.c
OF_SOURCE = [
    "-- Position to start replication or point-in-time recovery from (the master of this slave)",
    "-- Position to start replication or point-in-time recovery from (the source for this replica)",
    "-- The following is the SQL position of the replication taken from SHOW SLAVE STATUS",
]
ITS_CHANGE = "CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='up.000009', SOURCE_LOG_POS=900;\n"
CHANNELS = "".join(
    f"CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='up.{n}', SOURCE_LOG_POS=9 FOR CHANNEL '{n}';\n"
    for n in (1, 2)
)
OWN_AT = HEADER.index("--\n-- Position to start")
# what is in a row, or in a procedure that is indented, begins no other dump
IN_THE_DATA = (
    "INSERT INTO `t` VALUES ('\\n-- MySQL dump 10.13\\n','x');\n"
    "CREATE PROCEDURE p()\nBEGIN\n  -- MySQL dump 10.13\n  SELECT 1;\nEND ;;\n"
    "CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='mysql-bin.000042', SOURCE_LOG_POS=4;\n"
)
# https://bugs.mysql.com/bug.php?id=105761: some versions read them when the dump had ended
LATE = MYSQLDUMP.replace(PURGED, "").replace(
    "\n-- Dump completed",
    "\n--\n-- GTID state at the end of the backup \n--\n\n"
    f"SET @@GLOBAL.GTID_PURGED='{UUID}:1';\n\n-- Dump completed",
)
# https://mariadb.com/kb/en/mariadb-dump/#option-gtid, the file of 10.1 to 10.5
OLDER_MARIADB = [
    "-- MySQL dump 10.16  Distrib 10.1.17-MariaDB, for Linux (x86_64)\n--\n"
    "-- Host: localhost    Database: \n-- Server version\t10.1.17-MariaDB\n\n"
    "/*!40103 SET TIME_ZONE='+00:00' */;\n"
    "--\n-- Position to start replication or point-in-time recovery from\n--\n\n"
    "-- CHANGE MASTER TO MASTER_LOG_FILE='bin.000002', MASTER_LOG_POS=3732;\n\n"
    "--\n-- GTID to start replication from\n--\n\n"
    f"{comment}CHANGE MASTER TO MASTER_USE_GTID=slave_pos;\n"
    f"{comment}SET GLOBAL gtid_slave_pos='0-1-770';\n\n"
    "--\n-- Current Database: `a`\n--\n\nCREATE DATABASE a;\n-- Dump completed\n"
    for comment in ("", "-- ")
]
ZONE = "/*!40103 SET TIME_ZONE='+00:00' */;\n"
NO_ZONE = "it does not set a time zone (--skip-tz-utc, --compact)"
BOTH, ALONE, GTIDS_ALONE = (
    ("mysql-bin.000042", 1104, GTIDS),
    ("mysql-bin.000042", 1104, None),
    (None, None, GTIDS),
)
DUMPS: list[tuple[str, Place, str]] = [
    *((MYSQLDUMP.replace(CHANGE, change), BOTH, "")
      for change in (CHANGE, CHANGE.removeprefix("-- "), MASTER, f"-- {MASTER}", AMAZON)),
    (MYSQLDUMP.replace(PURGED, f"SET @@GLOBAL.GTID_PURGED='{UUID}:1-7';\n"),  # 5.6 and 5.7
     (*BOTH[:2], f"{UUID}:1-7"), ""),
    (MYSQLDUMP.replace(PURGED, COMMENTED), (*BOTH[:2], f"{UUID}:1-7"), "GTIDs are in a comment"),
    # --set-gtid-purged=OFF, or a server without GTIDs; an empty set is none
    *((MYSQLDUMP.replace(PURGED, purged), ALONE, "")
      for purged in ("", "SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '';\n")),
    # nothing says that its rows are of the moment of its GTIDs
    (MYSQLDUMP.replace(CHANGE, ""), GTIDS_ALONE, "--single-transaction"),
    (f"{BARE}\n{CHANGE}CREATE TABLE t (a int);\n", BOTH, ""),  # --skip-comments
    (MYSQLDUMP.replace("LOCK TABLES", f"{IN_THE_DATA}LOCK TABLES"), BOTH, ""),
    (MYSQLDUMP.replace("Database: \n", "Database: shop\n"), BOTH, "'shop'"),
    *((f"{HEADER[:OWN_AT]}--\n{heading}\n--\n\n{ITS_CHANGE}\n{DATA}",
       ("up.000009", 900, GTIDS), "source of the server that was dumped") for heading in OF_SOURCE),
    *((f"{HEADER[:at]}--\n{heading}\n--\n\n{ITS_CHANGE}\n{HEADER[at:]}{DATA}", BOTH, "are not used")
      for heading in OF_SOURCE for at in (OWN_AT, HEADER_END)),
    (MYSQLDUMP.replace(CHANGE, CHANNELS), GTIDS_ALONE, "several sources"),
    (LATE, ALONE, "after the last table"),
    *((older, ("bin.000002", 3732, "0-1-770"), "") for older in OLDER_MARIADB),
    (MYSQLDUMP.replace(ZONE, ""), BOTH, NO_ZONE),
    (MARIADB_DUMP.replace(ZONE, ""), ("mysql-bin.000001", 785, "0-1-5,1-2-7"), NO_ZONE),
]  # fmt: skip


@pytest.mark.parametrize(("text", "place", "said"), DUMPS, ids=range(len(DUMPS)))
def test_each_form_of_a_dump(text: str, place: Place, said: str, tmp_path: Path) -> None:
    """Where it stands, and what is doubtful about it, of which nothing is passed over."""
    point = read(tmp_path, text)
    assert stands(point) == place
    assert any(said in warning for warning in point.warnings) == bool(said)
    assert said or point.warnings == ()
    is_mariadb = "MariaDB" in text
    assert (point.tool, point.flavour) == (
        ("mariadb-dump", "mariadb") if is_mariadb else ("mysqldump", "mysql")
    )


@pytest.mark.parametrize(
    ("made_by", "is_early"),
    [
        ("Distrib 8.0.31-23, for Linux (x86_64)", False),
        ("Distrib 5.7.44, for Linux (x86_64)", False),
        ("Distrib of somebody", False),
        ("Distrib 8.0.32, for Linux (x86_64)", True),
        ("Distrib 26.7.0, for Linux (x86_64)", True),
        ("Distrib 8.4.0, for Linux (x86_64)", True),
    ],
)
def test_gtids_that_may_be_later_than_the_rows(
    made_by: str, *, is_early: bool, tmp_path: Path
) -> None:
    """Of mysqldump up to 8.0.31, by its version; a newer one reads them under a lock."""
    text = MYSQLDUMP.replace(CHANGE, "").replace("Distrib 9.7.0, for Linux (x86_64)", made_by)
    (warning,) = read(tmp_path, text).warnings
    assert ("its GTIDs may be later than its rows" in warning) is not is_early
    assert "its rows are later than its GTIDs" in warning
    assert ("IS MISSING" in warning) is not is_early


COMPACT = f"{CHANGE.removeprefix('-- ')}CREATE TABLE `t` (`a` int);\nINSERT INTO `t` VALUES (1);\n"
WITHOUT_TITLE = "\n".join(line for line in MYSQLDUMP.splitlines() if not line.startswith("--")) + (
    "\n"
)
SEVERAL = {
    "mysqldump": (MYSQLDUMP.replace(PURGED, ""), "LOG_POS=1104", "LOG_POS=1105"),
    "GTIDs": (MYSQLDUMP, ":1-5:7", ":1-5:7-8"),
    "without comments": (
        WITHOUT_TITLE.replace(PURGED, f"{PURGED}{CHANGE.removeprefix('-- ')}"), "1104", "1105"
    ),
    "compact": (COMPACT, "LOG_POS=1104", "LOG_POS=1105"),
    "mariadb-dump": (MARIADB_DUMP, "LOG_POS=785", "LOG_POS=786"),
    "MariaDB's GTIDs": (MARIADB_DUMP, "0-1-5'", "0-1-6'"),
}  # fmt: skip


@pytest.mark.parametrize("size", [0, LIMIT])
@pytest.mark.parametrize("what", SEVERAL)
def test_several_dumps_in_one_file(what: str, size: int, tmp_path: Path) -> None:
    """Of different places they are refused, as far as they are seen; of the same they have one."""
    one, old, new = SEVERAL[what]
    assert old in one
    at = one.index("CREATE TABLE")
    rows = "INSERT INTO `x` VALUES (1);\n"
    large = one[:at] + rows * (size // len(rows)) + one[at:]
    if what != "compact" or not size:
        error = refused(written(tmp_path, large + one.replace(old, new)))
        assert "2 dumps that end at different places" in str(error)
    assert stands(read(tmp_path, large + one)) == stands(read(tmp_path, one))


def test_a_dump_that_was_cut_off_has_a_defect(tmp_path: Path) -> None:
    """It has no last line; compressed too, where it is cut in the middle of a block."""
    for cut in (
        MYSQLDUMP[:-50].encode(),
        compressed("gz", MYSQLDUMP.encode())[:-60],
        compressed("zst", MYSQLDUMP[:-50].encode()),
    ):
        point = read(tmp_path, cut)
        assert stands(point) == ("mysql-bin.000042", 1104, GTIDS)
        assert (point.defects, point.warnings) == ((CUT_OFF,), ())


def long_dump(dump: str) -> bytes:
    """The same dump with more rows than are read of it."""
    rows = "INSERT INTO `t` VALUES " + ",".join(f"({n},'{n * n}')" for n in range(50_000)) + ";\n"
    at = dump.index("DELIMITER ;;") if "DELIMITER ;;" in dump else dump.index("UNLOCK TABLES")
    times = (backup.LIMIT + backup.TAIL) // len(rows) + 2
    return (dump[:at] + rows * times + dump[at:]).encode()


def test_the_end_of_a_long_dump_is_read_where_that_is_cheap(tmp_path: Path) -> None:
    """MariaDB's GTIDs are found behind 9 MiB of rows; in a compressed dump they are not sought."""
    dump = long_dump(MARIADB_DUMP)
    plain = read(tmp_path, dump)
    assert stands(plain) == ("mysql-bin.000001", 785, "0-1-5,1-2-7")
    assert plain.warnings == ()
    for how in ("gz", "zst"):
        point = read(tmp_path, compressed(how, dump))
        assert stands(point) == ("mysql-bin.000001", 785, None)
        (warning,) = point.warnings
        assert "at the end of a dump" in warning


@pytest.mark.parametrize("dump", [MYSQLDUMP, MARIADB_DUMP], ids=["mysqldump", "mariadb-dump"])
def test_a_dump_that_ends_with_a_large_row(dump: str, tmp_path: Path) -> None:
    """Its last line of data begins before what is read of its end; it is cut off only if it is."""
    end = "UNLOCK TABLES" if "UNLOCK TABLES" in dump else "\n-- The deferred gtid"
    at = dump.rindex(end)
    row = b"INSERT INTO `t` VALUES (1,'" + b"x" * (backup.LIMIT + 3 * backup.TAIL) + b"');\n"
    data = dump[:at].encode() + row + dump[at:].encode()
    for text, defects in ((data, 0), (data[: -len("2026-01-02  3:04:05\n") - 20], 1)):
        path = written(tmp_path, text)
        examined = backup.examined(path)[0]
        streamed = backup.StreamedDump()
        for begin in range(0, len(text), 1 << 20):
            streamed.feed(text[begin : begin + (1 << 20)])
        assert len(examined.defects) == defects, examined.defects
        assert replace(streamed.end("x"), warnings=()) == replace(examined, warnings=())


def test_a_long_dump_by_mysqldump(tmp_path: Path) -> None:
    """Its header is all that is needed; of a compressed one nothing is said about its end."""
    for how in COMPRESSIONS:
        point = read(tmp_path, compressed(how, long_dump(MYSQLDUMP)))
        assert stands(point) == ("mysql-bin.000042", 1104, GTIDS)
        assert point.warnings == ()
    point = read(tmp_path, long_dump(MYSQLDUMP)[:-50])
    assert point.defects == (CUT_OFF,)


def test_a_dry_run_ends_as_the_apply_would(tmp_path: Path) -> None:
    """With its plan, and then the refusal: here of a dump that is cut off and not accepted."""
    dump = tmp_path / "half.sql"
    text = MYSQLDUMP.replace(PURGED, f"SET @@GLOBAL.GTID_PURGED='{UUID}:1';\n")
    dump.write_text(re.sub(r"-- CHANGE .*\n", "", text)[:-50])
    words = ["pitr", "--s3-url=s3://acme/pre", "--source=orders", "--latest", "--dry-run"]
    done = called(BUCKETS["one-open"](), [*words, f"--from-backup={dump}"])
    assert (done.code, "dry run: nothing was changed" in done.out) == (8, True), done.err
    assert "error: without --dry-run this is refused: " in done.err
    assert "cut off" in done.err
    accepted = called(BUCKETS["one-open"](), [*words, f"--from-backup={dump}", "--accept-backup"])
    assert (accepted.code, accepted.err) == (0, "")


def test_every_beginning_of_a_dump(tmp_path: Path) -> None:
    """Where it was cut off within its header it is refused, or tells less; never something else."""
    seen = set()
    for end in range(len(HEADER) + 1):
        try:
            seen.add(stands(read(tmp_path, HEADER[:end])))
        except RecoveryError:
            seen.add((None, None, None))
    whole = ("mysql-bin.000042", 1104, GTIDS)
    assert seen == {whole, (None, None, GTIDS), (None, None, None)}


def test_a_header_without_an_end(tmp_path: Path) -> None:
    """Where nothing stands in the first 8 MiB, and no table begins there, that is said."""
    path = written(tmp_path, "-- MySQL dump 10.13  Distrib 9\n" + "-- x\n" * (backup.LIMIT // 4))
    assert "neither a table nor a position" in str(refused(path))


# https://docs.percona.com/percona-xtrabackup/8.0/xtrabackup-files.html, and write_binlog_info,
# write_xtrabackup_info and write_backup_config_file in
# https://github.com/percona/percona-xtrabackup storage/innobase/xtrabackup/src/backup_mysql.cc
BINLOG_INFO = f"mysql-bin.000003\t1781\t{UUID}:1-20,\n{OTHER}:1-5:7\n"
INFO = """\
uuid = 11111111-2222-3333-4444-555555555555
name = \n\
tool_name = xtrabackup
tool_command = --backup --password=... --target-dir=/backup
tool_version = 8.0.35-31
ibbackup_version = 8.0.35-31
server_version = 8.0.36
start_time = 2026-11-22 01:02:03
end_time = 2026-11-22 01:12:13
lock_time = 0
binlog_pos = filename 'mysql-bin.000003', position '1781', GTID of the last change 'x:1-20,
y:1-5:7'
innodb_from_lsn = 0
innodb_to_lsn = 26304911
partial = N
incremental = N
format = file
compressed = N
encrypted = N
"""
MY_CNF = (
    f"[mysqld]\ninnodb_page_size=16384\nserver_id=1\nserver_uuid={UUID.upper()}\nmaster_key_id=1\n"
)
XTRABACKUP = ("mysql-bin.000003", 1781, f"{UUID}:1-20,{OTHER}:1-5:7")


def xtrabackup(directory: Path, how: str = "plain", **changed: str | None) -> Path:
    """A backup's directory; `changed` by the end of a file's name, None leaves it out."""
    files = {"binlog_info": BINLOG_INFO, "info": INFO, "checkpoints": "backup_type = full\n"}
    made = directory / "xtrabackup"
    made.mkdir()
    end = "" if how == "plain" else f".{how}"
    for name, text in (files | changed).items():
        if text is not None:
            written(made, compressed(how, text.encode()), f"xtrabackup_{name}{end}")
    written(made, MY_CNF, "backup-my.cnf")
    return made


@pytest.mark.parametrize("how", ["plain", "zst", "gz"])
def test_a_backup_by_xtrabackup(how: str, tmp_path: Path) -> None:
    """The directory, or the file in it; the uuid is the server's, not that of the backup."""
    directory = xtrabackup(tmp_path, how)
    point = read_backup(directory)
    assert stands(point) == XTRABACKUP
    assert (point.tool, point.flavour, point.server_uuid) == ("xtrabackup", "mysql", UUID)
    assert point.warnings == ()
    (file,) = directory.glob("xtrabackup_binlog_info*")
    assert read_backup(file) == point


def test_the_position_file_alone(tmp_path: Path) -> None:
    """Under its name or another one; whose server it was is then not told."""
    for name in ("xtrabackup_binlog_info", "xtrabackup_binlog_info.gz", "saved.txt"):
        point = read(tmp_path, BINLOG_INFO, name)
        assert stands(point) == XTRABACKUP
        assert (point.tool, point.flavour, point.server_uuid) == ("xtrabackup", "mysql", None)
    point = read(tmp_path, "mysql-bin.000003\t1781\n", "saved.txt")
    assert (*stands(point), point.flavour) == ("mysql-bin.000003", 1781, None, None)


@pytest.mark.parametrize("prefix", ["xtrabackup_", "mariadb_backup_"])
def test_a_backup_by_mariabackup(prefix: str, tmp_path: Path) -> None:
    """Under its older and its newer names."""
    # https://mariadb.com/kb/en/files-created-by-mariabackup/
    written(tmp_path, "mariadb-bin.000096\t568\t0-1-2\n", f"{prefix}binlog_info")
    info = INFO.replace("tool_name = xtrabackup", "tool_name = mariabackup")
    info = info.replace("8.0.36", "10.11.6-MariaDB-log").replace("1781", "568")
    written(tmp_path, info.replace("mysql-bin.000003", "mariadb-bin.000096"), f"{prefix}info")
    point = read_backup(tmp_path)
    assert stands(point) == ("mariadb-bin.000096", 568, "0-1-2")
    assert (point.tool, point.flavour, point.warnings) == ("mariabackup", "mariadb", ())
    assert read_backup(tmp_path / f"{prefix}binlog_info") == point


def test_xtrabackup_of_a_replica(tmp_path: Path) -> None:
    """The replica's own binlog counts, its source's place does not; and that is said."""
    slave_info = "CHANGE MASTER TO MASTER_LOG_FILE='up.000009', MASTER_LOG_POS=900;\n"
    point = read_backup(xtrabackup(tmp_path, slave_info=slave_info))
    assert stands(point) == XTRABACKUP
    (warning,) = point.warnings
    assert "slave_info" in warning


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("--backup ", "--backup --no-lock ", "--no-lock"),
        ("partial = N", "partial = Y", "only some tables"),
    ],
)
def test_the_defects_of_an_xtrabackup(old: str, new: str, words: str, tmp_path: Path) -> None:
    """Each is said, and the point is told all the same."""
    point = read_backup(xtrabackup(tmp_path, info=INFO.replace(old, new)))
    assert stands(point) == XTRABACKUP
    (defect,) = point.defects
    assert words in defect
    assert point.warnings == ()


def test_an_xtrabackup_that_is_incremental_is_doubted(tmp_path: Path) -> None:
    """Alone it restores nothing; with the one before it, it does."""
    directory = xtrabackup(tmp_path)
    written(directory, "backup_type = incremental\nfrom_lsn = 9\n", "xtrabackup_checkpoints")
    (warning,) = read_backup(directory).warnings
    assert "incremental" in warning
    written(directory, "backup_type = full-prepared\n", "xtrabackup_checkpoints")
    assert read_backup(directory).warnings == ()


def test_where_the_data_of_innodb_end(tmp_path: Path) -> None:
    """As --prepare writes it, with a path; nothing else is taken for a place."""
    directory = xtrabackup(tmp_path)
    assert read_backup(directory).innodb is None
    for text, place in (
        ("./mysql-bin.000003\t1700\n", ("mysql-bin.000003", 1700)),
        ("/var/log/mysql-bin.000002\t9\n", ("mysql-bin.000002", 9)),
        ("x\n", None),
        ("", None),
    ):
        written(directory, text, "xtrabackup_binlog_pos_innodb")
        found = read_backup(directory).innodb
        assert (found and (str(found[0]), found[1])) == place, text


@pytest.mark.parametrize(
    ("binlog_info", "words"),
    [
        ("", "empty"),
        ("mysql-bin.000003\n", "not a binlog's name and a position"),
        ("mysql-bin.000003\tx\n", "not a binlog's name and a position"),
        (BINLOG_INFO.replace("1781", "1782"), "the backup's info"),
        (BINLOG_INFO.replace("000003", "000004"), "the backup's info"),
        (BINLOG_INFO[:-30], "GTIDs of mysql"),
        (BINLOG_INFO.replace(UUID, "0-1-2"), "GTIDs of mysql"),
    ],
)
def test_an_xtrabackup_that_is_wrong(binlog_info: str, words: str, tmp_path: Path) -> None:
    """Empty, cut off, or with two positions."""
    with pytest.raises(RecoveryError, match=words):
        read_backup(xtrabackup(tmp_path, binlog_info=binlog_info))


def test_a_position_file_that_may_be_cut_off(tmp_path: Path) -> None:
    """Its last number could have gone on."""
    point = read(tmp_path, BINLOG_INFO[:-1], "xtrabackup_binlog_info")
    (defect,) = point.defects
    assert "cut off" in defect


def test_an_xtrabackup_without_position(tmp_path: Path) -> None:
    """A server without a binlog; or a compression that only xtrabackup itself undoes."""
    directory = xtrabackup(tmp_path, binlog_info=None)
    assert "no binary log" in str(refused(directory))
    written(directory, b"qpress10....", "xtrabackup_binlog_info.qp")
    assert "decompress or decrypt" in str(refused(directory))


def test_two_position_files_that_differ(tmp_path: Path) -> None:
    """The same twice is no matter, two places are."""
    directory = xtrabackup(tmp_path, info=None)
    written(directory, BINLOG_INFO, "mariadb_backup_binlog_info")
    assert stands(read_backup(directory)) == XTRABACKUP
    written(directory, BINLOG_INFO.replace("1781", "9999"), "mariadb_backup_binlog_info")
    assert "contradicts itself" in str(refused(directory))


# https://mydumper.github.io/mydumper/docs/html/files.html ("for older versions"), with the GTIDs
# and the replica's part of https://github.com/mydumper/mydumper/blob/v0.10.7/mydumper.c
MYDUMPER_OLD = f"""\
Started dump at: 2011-05-05 13:57:17
SHOW MASTER STATUS:
	Log: linuxjedi-laptop-bin.000001
	Pos: 106
	GTID:{OTHER}:1-5:7,
{UUID}:1-20

SHOW SLAVE STATUS:
	Host: 192.0.2.7
	Log: up.000009
	Pos: 900
	GTID:{UUID}:1-3

Finished dump at: 2011-05-05 13:58:18
"""
# https://mydumper.github.io/mydumper/docs/html/files.html ("Since version 0.14.1-1")
MYDUMPER_MASTER = f"""\
# Started dump at: 2023-06-09 11:47:18
[master]
# Channel_Name = '' # It can be use to setup replication FOR CHANNEL
File = mydumper1-bin.000017
Position = 241149225
Executed_Gtid_Set = {UUID}:1-147115,{OTHER}:1-61558

[`sakila`.`store`]
Rows = 2
data_checksum = 3119812626
# Finished dump at: 2023-06-09 11:48:19
"""
# https://github.com/mydumper/mydumper/blob/v0.19.1-3/src/mydumper/mydumper_working_thread.c:
# write_snapshot_info and write_replica_info
MYDUMPER_SOURCE = f"""\
# Started dump at: 2025-06-09 11:47:18
[config]
quote-character = BACKTICK

[myloader_session_variables]
SQL_MODE='NO_AUTO_VALUE_ON_ZERO' /*!40101

[source]
# Channel_Name = '' # It can be use to setup replication FOR CHANNEL
#SOURCE_HOST = "192.0.2.1"
#SOURCE_PORT = \n\
#SOURCE_USER = ""
#SOURCE_PASSWORD = ""
#SOURCE_SSL = {{0|1}}
executed_gtid_set = "{UUID}:1-20,{OTHER}:1-5:7"
SOURCE_LOG_FILE = "mysql-bin.000003"
SOURCE_LOG_POS = 1781
#SOURCE_AUTO_POSITION = {{0|1}}
myloader_exec_reset_replica = 0

[replication.east]
Executed_Gtid_Set = "{UUID}:1-20"
SOURCE_LOG_FILE = "up.000009"
SOURCE_LOG_POS = 900
#SOURCE_AUTO_POSITION = {{0|1}}
# Source_Host = '192.0.2.7'
# Relay_Source_Log_File = 'up.000009'

[`shop`.`t`]
real_table_name=t
rows = 2
# Finished dump at: 2025-06-09 11:48:19
"""


@pytest.mark.parametrize(
    ("text", "expected", "replica"),
    [
        (MYDUMPER_OLD, ("linuxjedi-laptop-bin.000001", 106, XTRABACKUP[2]), True),
        (
            MYDUMPER_MASTER,
            ("mydumper1-bin.000017", 241149225, f"{UUID}:1-147115,{OTHER}:1-61558"),
            False,
        ),
        (MYDUMPER_SOURCE, XTRABACKUP, True),
        (  # --source-data with auto position: the coordinates are in comments
            MYDUMPER_SOURCE.replace("SOURCE_LOG", "#SOURCE_LOG").replace("##", "#"),
            XTRABACKUP,
            True,
        ),
    ],
    ids=["old", "master", "source", "auto-position"],
)
def test_a_dump_by_mydumper(
    text: str, expected: tuple[str, int, str], *, replica: bool, tmp_path: Path
) -> None:
    """Each style; the directory, the file, under another name; the dumped server's own place."""
    point = read(tmp_path, text, "saved")
    assert stands(point) == expected
    assert (point.tool, point.flavour) == ("mydumper", "mysql")
    assert ["are not used" in warning for warning in point.warnings] == [True] * replica
    path = written(tmp_path, text, "metadata")
    assert read_backup(path) == read_backup(tmp_path) == point


def test_a_dump_of_a_mariadb_by_mydumper(tmp_path: Path) -> None:
    """Its flavour is told by its GTIDs."""
    text = MYDUMPER_MASTER.replace(f"{UUID}:1-147115,{OTHER}:1-61558", "1-2-7,0-1-5")
    point = read(tmp_path, text)
    assert (point.flavour, point.gtid_set) == ("mariadb", "0-1-5,1-2-7")


def test_a_dump_by_mydumper_with_the_source_alone(tmp_path: Path) -> None:
    """A replica without a binlog of its own: its source's place, with a warning."""
    begin, end = MYDUMPER_SOURCE.index("[source]"), MYDUMPER_SOURCE.index("[replication.east]")
    text = MYDUMPER_SOURCE[:begin] + MYDUMPER_SOURCE[end:]
    point = read(tmp_path, text)
    assert stands(point) == ("up.000009", 900, f"{UUID}:1-20")
    (warning,) = point.warnings
    assert "source of the server that was dumped" in warning
    # with auto position, comments repeat SHOW REPLICA STATUS, with the place of another thread
    comments = text.replace("SOURCE_LOG", "# Source_Log")
    assert stands(read(tmp_path, comments)) == (None, None, f"{UUID}:1-20")
    more = text.replace(
        "[`shop`", "[replication.west]\nSOURCE_LOG_FILE = a.1\nSOURCE_LOG_POS = 4\n[`"
    )
    assert "contradicts itself" in str(refused(written(tmp_path, more)))


def test_a_dump_by_mydumper_that_did_not_finish(tmp_path: Path) -> None:
    """As mydumper leaves it: refused; without its last line: a defect."""
    written(tmp_path, MYDUMPER_SOURCE, "metadata.partial")
    assert "did not finish" in str(refused(tmp_path))
    point = read(tmp_path, MYDUMPER_MASTER.replace("# Finished", "# x"))
    assert point.defects == ("the dump did not finish: it does not say when",)


# https://github.com/mysql/mysql-shell/blob/master/modules/util/dump/dumper.cc:
# write_dump_started_metadata and write_dump_finished_metadata
SHELL = {
    "dumper": "mysqlsh Ver 8.0.41 for Linux on x86_64 - for MySQL 8.0.41",
    "version": "2.0.1",
    "origin": "dumpInstance",
    "schemas": ["shop"],
    "serverVersion": "8.0.41",
    "binlogFile": "mysql-bin.000003",
    "binlogPosition": 1781,
    "gtidExecuted": f"{UUID}:1-20,\n{OTHER}:1-5:7",
    "gtidExecutedInconsistent": False,
    "consistent": True,
    "begin": "2025-03-12 05:01:55",
}
# https://github.com/mysql/mysql-shell/blob/master/modules/util/common/dump/server_info.cc:
# serialize; dump_info.cc reads both
SHELL_SOURCE = {
    key: value for key, value in SHELL.items() if not key.startswith(("binlog", "server", "gtidE"))
} | {
    "source": {
        "binlog": {
            "file": "mysql-bin.000003",
            "position": 1781,
            "gtidExecuted": f"{UUID}:1-20,\n{OTHER}:1-5:7",
        },
        "version": "9.3.0",
        "hostname": "db1",
        "port": 3306,
        "serverUuid": UUID,
        "topology": {"canonicalAddress": "db1:3306"},
    }
}
SHELL_DONE = {"end": "2025-03-12 05:02:56", "dataBytes": 7}


@pytest.mark.parametrize(("document", "uuid"), [(SHELL, None), (SHELL_SOURCE, UUID)])
def test_a_dump_by_mysql_shell(
    document: dict[str, object], uuid: str | None, tmp_path: Path
) -> None:
    """Older and newer; the directory, the file, under another name."""
    written(tmp_path, json.dumps(SHELL_DONE), "@.done.json")
    path = written(tmp_path, json.dumps(document, indent=4), "@.json")
    point = read_backup(tmp_path)
    assert stands(point) == XTRABACKUP
    assert (point.tool, point.flavour, point.server_uuid) == ("mysqlsh", "mysql", uuid)
    assert point.warnings == ()
    assert read_backup(path) == read(tmp_path, path.read_text(), "saved.json") == point


def test_a_dump_of_a_mariadb_by_mysql_shell(tmp_path: Path) -> None:
    """It has no GTIDs in it."""
    changed = {"serverVersion": "5.6.0-10.2.32-MariaDB-log", "gtidExecuted": ""}
    point = read(tmp_path, json.dumps(SHELL | changed))
    assert (*stands(point), point.flavour) == ("mysql-bin.000003", 1781, None, "mariadb")


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"consistent": False}, "consistent: false"),
        ({"gtidExecutedInconsistent": True}, "may not be that of its data"),
        ({"origin": "dumpSchemas", "schemas": ["shop"]}, "of a single database"),
        ({"origin": "dumpTables"}, "only some tables"),
        ({"options": {"ddlOnly": True, "threads": 4}}, "made with ddlOnly"),
        ({"options": {"where": {"shop.t": "id < 9"}}}, "made with where"),
    ],
)
def test_the_defects_of_a_dump_by_mysql_shell(
    changed: dict[str, object], words: str, tmp_path: Path
) -> None:
    """Each is said, and that the dump did not finish."""
    written(tmp_path, json.dumps(SHELL_DONE), "@.done.json")
    written(tmp_path, json.dumps(SHELL | changed), "@.json")
    (defect,) = read_backup(tmp_path).defects
    assert words in defect
    (tmp_path / "@.done.json").unlink()
    assert "did not finish" in read_backup(tmp_path).defects[-1]


def test_a_dump_by_mysql_shell_of_several_schemas_is_doubted(tmp_path: Path) -> None:
    """They may be all that there are."""
    written(tmp_path, json.dumps(SHELL_DONE), "@.done.json")
    changed = {"origin": "dumpSchemas", "schemas": ["shop", "crm"], "options": {"ddlOnly": False}}
    written(tmp_path, json.dumps(SHELL | changed), "@.json")
    point = read_backup(tmp_path)
    assert point.defects == ()
    assert "dumpSchemas" in point.warnings[0]


NO_KIND = "not a known kind of base backup"
WRONG: list[tuple[str, str | bytes, str]] = [
    *(("backup", MYSQLDUMP.replace(old, new), words) for old, new, words in (
        (CHANGE, CHANGE + CHANGE.replace("1104", "1105"), "contradicts itself"),
        (PURGED, PURGED + f"SET @@GLOBAL.GTID_PURGED='{UUID}:1-9';\n", "contradicts itself"),
        (PURGED, "SET GLOBAL gtid_slave_pos='0-1-5';\n", "contradicts itself"),
        (PURGED, PURGED + "SET GLOBAL gtid_slave_pos='0-1-5';\n", "contradicts itself"),
        ("1104;", "1104", "cut off"),
        (":blue:3';", ":blue:3", "cut off"),
        ("1-20:blue", "20-1:blue", "GTIDs of mysql"),
        (f"{UUID}:1", "0-1-5:1", "GTIDs of mysql"),
        ("POS=1104", "POS=3", "not a position"),
        ("POS=1104", f"POS={2**63}", "not a position"),
        ("POS=1104", "POS=" + "9" * 5000, "not a position"),
        (", SOURCE_LOG_POS=1104", "", "half a position"),
        ("mysql-bin.000042", "../../etc/passwd", "not the name of a binlog"),
        ("-- MySQL dump 10", "-- Dump created by MySQL pump utility, version: 8\n", "mysqlpump"))),
    ("backup", MYSQLDUMP.encode().replace(b"bin.000042", b"bin\xff.000042"), "not the name of a"),
    ("backup", MYSQLDUMP.replace(CHANGE, "").replace(PURGED, ""),
     "--source-data=2 --single-transaction"),
    ("backup", TITLE_OF_MARIADB, "--master-data=2 --single-transaction"),
    ("backup", MYSQLDUMP + MYSQLDUMP.replace(PURGED, "").replace(CHANGE, ""),
     "has neither binlog nor GTIDs"),  # nobody knows of which moment the second one is
    ("backup", MYSQLDUMP.replace(CHANGE, CHANNELS).replace(PURGED, ""), "several sources"),
    ("backup", LATE.replace(CHANGE, ""), "after the last table"),
    # mydumper: without a place, with half of one, with two
    ("backup", "# Started dump at: 2025-06-09 11:47:18\n[source]\n# Channel_Name = ''\n",
     "--source-data"),
    ("backup", MYDUMPER_MASTER.replace("Position = 241149225\n", ""), "half a position"),
    ("backup", MYDUMPER_MASTER.replace("241149225", "-5"), "not a position"),
    ("backup", MYDUMPER_MASTER.replace(":1-147115", ":x"), "GTIDs of mysql"),
    # https://github.com/pingcap/dumpling, --consistency=none
    ("backup", MYDUMPER_OLD.replace(
        "SHOW SLAVE STATUS:", "SHOW MASTER STATUS: /* AFTER CONNECTION POOL ESTABLISHED */"),
     "contradicts itself"),
    # MySQL Shell: cut off, of something else, or with values that cannot be
    ("@.json", json.dumps(SHELL)[:-20], "cut off"),
    ("@.json", "[" * 100_000, "not JSON"),
    ("@.json", "7", "not a JSON object"),
    ("@.json", '{"a": ' + "9" * 5000 + "}", "not JSON"),
    ("@.json", json.dumps({"some": "thing"}), "not MySQL Shell's"),
    *(("@.json", json.dumps(SHELL | changed), words) for changed, words in (
        ({"binlogFile": "", "gtidExecuted": ""}, "neither binlog nor GTIDs"),
        ({"binlogPosition": True}, "not a valid binlogPosition"),
        ({"binlogPosition": None}, "not a position"),
        ({"gtidExecuted": 7}, "not a valid gtidExecuted"),
        ({"gtidExecuted": "x"}, "GTIDs of mysql"))),
    # no backup: what it is instead, where that can be told
    ("backup", b"", NO_KIND),
    ("backup", b"CREATE TABLE t (a int);\n", NO_KIND),
    ("backup", bz2.compress(MYSQLDUMP.encode()), "bzip2"),
    ("backup", lzma.compress(MYSQLDUMP.encode()), "xz"),
    ("backup", b"XBSTCK01" + bytes(100), "xbstream"),
    ("backup", b"\xfebin" + bytes(100), "a binlog"),
    ("backup", ("\ufeff" + MYSQLDUMP).encode("utf-16-le"), "UTF-16"),
    ("backup", b'<?xml version="1.0"?>\n<mysqldump>', "XML"),
    ("backup", gzip.compress(MYSQLDUMP.encode())[:200] + b"\xff" * 500, "decompressed"),
    ("backup", b"\x28\xb5\x2f\xfd" + b"\xff" * 500, "decompressed"),
    ("backup", b"\x1f\x8b\x08", NO_KIND),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "words"), WRONG, ids=range(len(WRONG)))
def test_what_is_wrong(name: str, data: str | bytes, words: str, tmp_path: Path) -> None:
    """What contradicts itself, was cut off or cannot be is refused, with the value."""
    assert words in str(refused(written(tmp_path, data, name)))


def test_a_directory_with_two_backups(tmp_path: Path) -> None:
    """It is not guessed which one was meant."""
    written(tmp_path, MYDUMPER_SOURCE, "metadata")
    written(tmp_path, json.dumps(SHELL), "@.json")
    assert "name the file" in str(refused(tmp_path))


def test_what_cannot_be_read(tmp_path: Path) -> None:
    """No file, no directory, a pipe that would wait for ever, a name that cannot be."""
    assert "no such file" in str(refused(tmp_path / "none"))
    assert "not a known kind of backup" in str(refused(tmp_path))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert "neither a file nor a directory" in str(refused(pipe))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert "cannot be read" in str(refused(tmp_path / "loop"))
    (tmp_path / "metadata").mkdir()
    assert "neither a file" in str(refused_within(tmp_path))
    with pytest.raises(RecoveryError):
        read_backup(Path("a\0b"))
    with pytest.raises(RecoveryError):
        read_backup(Path("n" * 5000))


def refused_within(path: Path) -> RecoveryError:
    with pytest.raises(RecoveryError) as caught:
        read_backup(path)
    return caught.value


def test_line_ends_and_byte_order_marks_of_windows(tmp_path: Path) -> None:
    """They change nothing."""
    for text in (MYSQLDUMP, BINLOG_INFO, MYDUMPER_SOURCE, MYDUMPER_OLD, MARIADB_DUMP):
        expected = stands(read(tmp_path, text))
        windows = b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()
        assert stands(read(tmp_path, windows)) == expected


def bombs() -> dict[str, Callable[[], bytes]]:
    huge = backup.LIMIT * 16

    def of(piece: bytes, how: str = "zst") -> Callable[[], bytes]:
        return lambda: compressed(how, piece * (huge // len(piece)))

    return {
        "zeros-gz": of(b"\0", "gz"),
        "zeros": of(b"\0"),
        "spaces": of(b" "),
        "lines": of(b"\n"),
        "comments": of(b"-- \n"),
        "headings": of(b"-- SHOW MASTER STATUS\n"),
        "changes": of(b"CHANGE MASTER TO\n"),
        "quotes": of(b"CHANGE MASTER TO '"),
        "gtids": of(b"SET @@GLOBAL.GTID_PURGED='" + b"a" * 50_000),
        "title": of(b"-- Host:     Database: "),
        "sections": of(b"[source]\nFile = a,\n"),
        "continued": lambda: compressed("zst", b"[source]\nGTID = x,\n" + b"a,\n" * (huge // 3)),
        "nested": of(b'{"a":'),
        "skippable": lambda: b"\x50\x2a\x4d\x18" + (huge).to_bytes(4, "little") + bytes(huge),
        # a frame of one raw block that asks for 1 GiB to decompress 4 bytes
        "window": lambda: b"\x28\xb5\x2f\xfd\x00\xa0" + b"\x21\x00\x00" + b"text",
        "gzip-name": lambda: b"\x1f\x8b\x08\x08\0\0\0\0\0\xff" + b"n" * huge,
    }


MANY_LINES = {"lines", "comments", "continued"}  # tracing them takes half a minute


@contextmanager
def no_more_than(size: int) -> Iterator[None]:
    """Who wants more memory than that gets a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", bombs())
def test_a_bomb_is_not_set_off(name: str, tmp_path: Path) -> None:
    """128 MiB that are a few KiB in the file are refused, and not all of them ever in memory."""
    path = written(tmp_path, bombs()[name]())
    most = 12 * backup.LIMIT
    if name in MANY_LINES:
        with no_more_than(most):
            refused(path)
        return
    tracemalloc.start()
    try:
        refused(path)
        _, had = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert had < most


FILES = ("backup", "xtrabackup_binlog_info", "metadata", "@.json")
SAMPLES = [
    text.encode()
    for text in (
        MYSQLDUMP,
        MARIADB_DUMP,
        BINLOG_INFO,
        MYDUMPER_OLD,
        MYDUMPER_SOURCE,
        json.dumps(SHELL),
        json.dumps(SHELL_SOURCE),
    )
]
SAMPLES += [compressed(how, SAMPLES[0]) for how in ("gz", "zst", "pzstd")]


def judged(directory: Path, data: bytes, name: str) -> BackupPoint | None:
    """The point, or None where it is refused as it should be; anything else is a defect."""
    try:
        return read(directory, data, name)
    except RecoveryError as error:
        if not str(error).startswith(str(directory)) or "--from-gtid-set" not in error.hint:
            raise
        return None


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(max_size=300),
        st.text(max_size=300).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from([b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"]).flatmap(
            lambda magic: st.binary(max_size=200).map(lambda rest: magic + rest)
        ),
    ),
    st.sampled_from(FILES),
)
def test_random_bytes_are_refused(tmp_path: Path, data: bytes, name: str) -> None:
    """Never a traceback, and never a place."""
    point = judged(tmp_path, data, name)
    if point is not None:  # a name and a number are a position file, by chance too
        assert point.tool in ("xtrabackup", "mariabackup")


MUTATION = st.tuples(st.integers(0, 5000), st.integers(0, 40), st.binary(max_size=8))


@settings(max_examples=examples(600), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SAMPLES), st.lists(MUTATION, max_size=4), st.sampled_from(FILES))
@example(SAMPLES[0], [], FILES[0])
def test_mutated_backups(
    tmp_path: Path, sample: bytes, mutations: list[tuple[int, int, bytes]], name: str
) -> None:
    """Some bytes replaced, left out or put in: refused, or a place in canonical words."""
    data = bytearray(sample)
    for at, size, new in mutations:
        begin = at % (len(data) + 1)
        data[begin : begin + size] = new
    point = judged(tmp_path, bytes(data), name)
    if point is not None:
        assert point.ends_at is not None or point.gtid_set
        assert str(point.ends_at).isprintable()
        assert all(warning.isprintable() for warning in point.warnings)
