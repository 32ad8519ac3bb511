"""What a dump puts into a server, read in blocks; its data are not taken for statements."""

import gzip
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.recover import dump_content
from binlog2s3.recover.backup import examined
from binlog2s3.recover.dump_content import CUT_OFF, DumpContent, DumpReader

HEAD = """\
-- MySQL dump 10.13  Distrib 9.7.4, for Linux (x86_64)
--
-- Host: localhost    Database: shop
-- ------------------------------------------------------
-- Server version	9.7.4
/*!40103 SET TIME_ZONE='+00:00' */;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5';
-- CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='mysql-bin.000001', SOURCE_LOG_POS=157;
"""
END = "-- Dump completed on 2026-11-25 21:42:31\n"
BODY = r"""
CREATE DATABASE /*!32312 IF NOT EXISTS*/ `mysql`;

USE `mysql`;
CREATE TABLE `user` (
  `Host` char(255)
);
INSERT INTO `user` VALUES ('%','app','Y'),('localhost','it''s \'me\'','N (''x'',)'),('','',NULL);
CREATE TABLE IF NOT EXISTS `general_log` (
);
USE `odd ``schema`;
DROP TABLE IF EXISTS `full`;
CREATE TABLE `full` (
  `id` int COMMENT 'USE `x`;'
);
INSERT INTO `full` VALUES (1,'\nCREATE TABLE `forged` (\n');
CREATE TABLE `empty ``one` (
  `id` int
);
/*!50001 CREATE VIEW `seen` AS SELECT 1 AS `id`*/;
DELIMITER ;;
CREATE PROCEDURE `p`()
BEGIN
CREATE TABLE `in a body` (
  `id` int
);
END ;;
DELIMITER ;
USE `last`;
CREATE TABLE `ignored` (
);
INSERT  IGNORE INTO `ignored` VALUES
(1),
(2);
"""
TABLES = {
    ("mysql", "user"): True,
    ("mysql", "general_log"): False,
    ("odd `schema", "full"): True,
    ("odd `schema", "empty `one"): False,
    ("last", "ignored"): True,
}
ACCOUNTS = {("app", "%"), ("it's 'me'", "localhost"), ("", "")}


def read(text: str | bytes, size: int = 1 << 20) -> DumpContent:
    data = text.encode() if isinstance(text, str) else text
    reader = DumpReader()
    for at in range(0, len(data), size):
        reader.feed(data[at : at + size])
    return reader.end()


@given(st.integers(1, 9000))
def test_blocks_of_any_size_say_the_same(size: int) -> None:
    """Tables with and without rows, accounts, the end; nothing of data, views and bodies."""
    found = read(HEAD + BODY + END, size)
    assert found.tables == TABLES
    assert found.accounts == ACCOUNTS
    assert (found.ends, found.is_whole) == (True, True)


@pytest.mark.parametrize("rows", [1, 400])
def test_the_accounts_of_mariadb(rows: int) -> None:
    """A row a line, of another table, and with names of columns, also longer than a block."""
    values = ",\n".join(f"('h{n}','u{n}','{{\"a\": \"(\\'),;\\\\n\"}}')" for n in range(rows))
    expected = {(f"u{n}", f"h{n}") for n in range(rows)}
    text = f"USE `mysql`;\nINSERT INTO `global_priv` VALUES\n{values};\nCREATE TABLE `t` (\n);\n"
    found = read(text, 4096)
    assert (found.accounts, found.tables) == (
        expected,
        {("mysql", "global_priv"): True, ("mysql", "t"): False},
    )
    named = "INSERT INTO `user` (`User`, `x`, `Host`) VALUES ('me',(1,2),'here');\n"
    assert read(f"USE `mysql`;\n{named}").accounts == {("me", "here")}
    created = "CREATE USER `me`@`here` IDENTIFIED VIA x;\nCREATE USER IF NOT EXISTS 'a'@'b';\n"
    assert read(created).accounts == {("me", "here"), ("a", "b")}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO `user` (`User`) VALUES ('me');\n",
        "INSERT INTO `user` VALUES (NULL,'me');\n",
        "INSERT INTO `user` VALUES ('here','me')",
        f"INSERT INTO `user` VALUES ('here','{'x' * dump_content.MOST_STATEMENT}'),('a','b');\n",
    ],
)
def test_accounts_that_cannot_be_read_are_unknown(statement: str) -> None:
    """Never a part of them."""
    assert read(f"USE `mysql`;\n{statement}").accounts is None


def test_a_dump_of_one_database_names_it_in_its_head() -> None:
    """There is no USE in it."""
    assert read(f"{HEAD}CREATE TABLE `t` (\n);\n{END}").tables == {("shop", "t"): False}


def test_what_is_not_known_is_said() -> None:
    """A table without a schema, a name that is not UTF-8; an end that is missing, or cannot be."""
    assert not read("CREATE TABLE `t` (\n);\n").is_whole
    assert not read(b"USE `\xff`;\nCREATE TABLE `t` (\n);\n").is_whole
    assert read(HEAD + BODY).ends is False
    assert read(HEAD + BODY + END + HEAD).ends is False
    assert read(BODY).ends is None


@pytest.mark.parametrize("how", ["plain", "gz", "zst"])
def test_a_file_is_read_as_it_is_compressed(how: str, tmp_path: Path) -> None:
    """All of it, in blocks; of one that was cut off what is there."""
    filler = "".join(f"-- {n} filler\n" for n in range(200_000))
    data = (HEAD + filler + BODY + END).replace("\n", "\r\n").encode()
    if how == "gz":
        data = gzip.compress(data)
    elif how == "zst":
        data = zstandard.compress(data)
    path = tmp_path / "dump"
    path.write_bytes(data)
    told: list[tuple[int, int]] = []
    point, found = examined(path, lambda done, total: told.append((done, total)))
    assert found is not None
    assert (found.tables, found.accounts, found.ends) == (TABLES, ACCOUNTS, True)
    assert (point.defects, point.ends_at is None) == ((), False)
    assert told[-1] == (len(data), len(data))
    path.write_bytes(data[: len(data) // 2])
    point, found = examined(path)
    assert found is not None
    assert found.ends is False
    assert point.defects[0] == CUT_OFF


def test_another_backup_has_no_such_content(tmp_path: Path) -> None:
    """A directory, and a file of xtrabackup."""
    (tmp_path / "xtrabackup_binlog_info").write_text("mysql-bin.000001\t157\n")
    for path in (tmp_path, tmp_path / "xtrabackup_binlog_info"):
        point, content = examined(path)
        assert content is None
        assert (point.defects, point.checked) == ((), False)


ALL = HEAD.replace("Database: shop", "Database: ")
NOTES = "/*!40111 SET @OLD_SQL_NOTES=@@SQL_NOTES, SQL_NOTES=0 */;\n"
RESTORED = "/*!40111 SET SQL_NOTES=@OLD_SQL_NOTES */;\n"
EMPTY = "CREATE TABLE `t` (\n);\n"
FULL = f"{EMPTY}INSERT INTO `t` VALUES (1);\n"
WHOLE = f"USE `mysql`;\n{FULL}USE `shop`;\n{FULL}"


@pytest.mark.parametrize(
    ("text", "defect"),
    [
        (f"{ALL}{WHOLE}{END}", ""),
        (f"{HEAD}{WHOLE}{END}", ""),  # --databases mysql shop
        (f"{HEAD}{FULL}USE `other`;\n{EMPTY}{END}", ""),  # of several: a doubt, and no defect
        (f"{NOTES}{WHOLE}{RESTORED}", ""),  # --skip-comments
        (WHOLE, ""),  # --compact: unknown
        (f"{ALL}{WHOLE}", "cut off"),
        (f"{ALL}{WHOLE}{END}{ALL}{WHOLE}", "cut off"),
        (f"{NOTES}{WHOLE}", "cut off"),
        (f"{ALL}USE `shop`;\n{EMPTY}{END}", "--no-data"),
        (f"{ALL}USE `shop`;\nINSERT INTO `t` VALUES (1);\n{END}", "--no-create-info"),
        (f"{ALL}USE `shop`;\n{EMPTY}-- WHERE:  id < 9\n{FULL}{END}", "--where"),
        (f"{HEAD}{FULL}{END}", "single database, 'shop'"),
        (f"{NOTES}USE `a`;\n{FULL}{RESTORED}", "single database, 'a'"),
        (f"{ALL}{END}", "no tables"),
    ],
)
def test_a_dump_that_does_not_have_the_whole_server_says_so(text: str, defect: str) -> None:
    """Whatever the blocks that it is read in."""
    for size in (1 << 20, 7):
        said = read(text, size).defects
        assert (len(said), defect in "".join(said)) == (bool(defect), True), said


def test_what_only_looks_like_a_defect_is_none() -> None:
    """In a body and in data: nothing of them counts."""
    body = "DELIMITER ;;\nCREATE PROCEDURE `p`()\nBEGIN\n-- WHERE:  x\nEND ;;\nDELIMITER ;\n"
    data = "INSERT INTO `t` VALUES ('\\n-- WHERE:  1');\n"
    assert read(f"{ALL}{WHOLE}{body}{data}{END}").defects == ()


def test_a_dump_is_checked_only_if_it_says_enough(tmp_path: Path) -> None:
    """Its end, the whole server, and rows of one moment; otherwise it is not called checked."""
    path = tmp_path / "dump.sql"
    for text, is_checked in (
        (f"{ALL}{WHOLE}{END}", True),
        (f"{ALL.replace('-- CHANGE', '-- change')}{WHOLE}{END}", False),  # no coordinates
        (f"{HEAD}{FULL}USE `other`;\n{EMPTY}{END}", False),
        (f"{ALL}{WHOLE}", False),
        (ALL.partition("SET")[1] + ALL.partition("SET")[2] + WHOLE, False),  # --compact
    ):
        path.write_text(text)
        point, _ = examined(path)
        assert point.checked is is_checked, (text, point)


ENGINES = """
USE `%s`;
CREATE TABLE `a` (
  `n` int COMMENT ') ENGINE=MyISAM'
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4;
INSERT INTO `a` VALUES (1),
(2);
CREATE TABLE `log` (
  `n` int
) ENGINE=%s DEFAULT CHARSET=utf8mb4 PAGE_CHECKSUM=1;
"""
FILLED = "INSERT INTO `log` VALUES (1);\n"


@pytest.mark.parametrize(
    ("database", "engine", "rows", "doubtful"),
    [
        ("shop", "Aria", FILLED, True),
        ("shop", "MyISAM", FILLED, True),
        ("shop", "InnoDB", FILLED, False),
        ("shop", "Aria", "", False),
        ("mysql", "Aria", FILLED, False),
    ],
)
def test_rows_of_tables_without_transactions_may_be_later(
    tmp_path: Path, database: str, engine: str, rows: str, *, doubtful: bool
) -> None:
    """No dump says whether it locked them; the server's own tables always are such."""
    path = tmp_path / "dump.sql"
    head = HEAD.replace("Database: shop", "Database: ")
    path.write_text(f"{head}{ENGINES % (database, engine)}{rows}{END}")
    point, content = examined(path)
    assert content is not None
    said = [one for one in point.warnings if "without transactions, such as 'shop.log'" in one]
    assert (len(said), len(content.doubts)) == ((1, 1) if doubtful else (0, 0))
    assert point.checked is not doubtful
