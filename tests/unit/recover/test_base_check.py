"""What is said of a base backup, and what is compared of a dump; the target is made up."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from binlog2s3.archive.drills import UnreadDrill
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.base_check import by_drill, by_dump, unchecked
from binlog2s3.recover.dump_content import CUT_OFF
from binlog2s3.server.connection import Server
from tests.documents import DRILL
from tests.unit.recover.fake_server import FakeServer, Rows
from tests.unit.recover.test_dump_content import BODY, END, HEAD

ACCOUNTS: Rows = [
    {"u": "app", "h": "%"},
    {"u": b"it's 'me'", "h": b"localhost"},
    {"u": "", "h": ""},
    {"u": "more", "h": "%"},
]


def target(
    fails: Mapping[str, SourceError] | None = None,
    *,
    empty: str = "?",
    accounts: Rows = ACCOUNTS,
    **more: Rows,
) -> FakeServer:
    """A target that fails, or finds no rows, where the statement has these words."""
    first: dict[str, Rows | Exception] = {**(fails or {}), empty: [], **more}
    usual = {"information_schema": [], "mysql.user": accounts, "": [{"it": 1}]}
    return FakeServer(first | {words: usual[words] for words in usual if words not in first})


def server(answers: FakeServer) -> Server:
    return cast("Server", answers)


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "dump.sql"
    path.write_text(HEAD + BODY + END)
    return path


def test_all_of_it_is_there(dump: Path) -> None:
    """Names are quoted; only tables of users are asked for, and rows only where there are some."""
    answers = target()
    found = by_dump(server(answers), dump)
    assert [one for one in answers.asked if "information_schema" not in one] == [
        "SELECT 1 AS it FROM `odd ``schema`.`full` LIMIT 1",
        "SHOW COLUMNS FROM `odd ``schema`.`empty ``one`",
        "SELECT 1 AS it FROM `last`.`ignored` LIMIT 1",
        "SELECT user AS u, host AS h FROM mysql.user",
    ]
    assert (found.checked, found.tables, found.accounts) == ("dump", 3, 3)
    assert found.words == (
        f"{dump} was checked: its 3 tables exist, and none that has rows in the dump is empty; its "
        "3 accounts exist"
    )


def test_what_is_missing_is_named(dump: Path) -> None:
    """A table, rows, an account; and how to go on."""
    gone = SourceError("no such table (1146)", answered=True)
    answers = target({"`full`": gone}, empty="ignored", accounts=ACCOUNTS[1:])
    with pytest.raises(RecoveryError) as caught:
        by_dump(server(answers), dump)
    assert str(caught.value).endswith(
        "missing table odd `schema.full, no rows in last.ignored, missing account app@%"
    )
    assert "load the dump again" in caught.value.hint


def test_one_table_alone(dump: Path) -> None:
    """With --table only those are compared, and no accounts."""
    answers = target(empty="ignored")
    found = by_dump(server(answers), dump, [("odd `schema", "full")])
    assert len([one for one in answers.asked if "information_schema" not in one]) == 1
    assert (found.checked, found.tables, found.accounts) == ("dump", 1, None)
    assert "its 1 table exists" in found.words
    assert "accounts were not compared" in found.words


def test_what_may_not_be_asked_was_not_checked(dump: Path) -> None:
    """Of the accounts alone the rest is still said; what else fails is an error."""
    denied = SourceError("denied (1142)", answered=True, needs_privilege=True)
    found = by_dump(server(target({"LIMIT 1": denied})), dump)
    assert found.checked == "no"
    assert "denied (1142)" in found.words
    found = by_dump(server(target({"mysql.user": denied})), dump)
    assert (found.checked, found.accounts) == ("dump", None)
    lost = SourceError("lost (2013)", transient=True)
    for words in ("LIMIT 1", "mysql.user"):
        with pytest.raises(SourceError, match="lost"):
            by_dump(server(target({words: lost})), dump)


def test_a_dump_that_was_cut_off_was_not_checked(dump: Path) -> None:
    """It is refused; if that is accepted, what it has must be there all the same."""
    dump.write_text(HEAD + BODY)
    with pytest.raises(RecoveryError, match="is no base backup of the whole server: it is cut off"):
        by_dump(server(target()), dump)
    found = by_dump(server(target()), dump, accepts=True)
    assert found.words.endswith(CUT_OFF)
    assert found.checked == "no"
    with pytest.raises(RecoveryError, match="no rows in"):
        by_dump(server(target(empty="full")), dump, accepts=True)


def test_a_dump_of_one_database_is_enough_for_a_table_of_it(dump: Path) -> None:
    """With --table; but not for the whole server."""
    dump.write_text(f"{HEAD}CREATE TABLE `t` (\n);\nINSERT INTO `t` VALUES (1);\n{END}")
    assert by_dump(server(target()), dump, [("shop", "t")]).checked == "no"
    with pytest.raises(RecoveryError, match="of a single database, 'shop'"):
        by_dump(server(target()), dump)


def test_what_is_said_of_others(tmp_path: Path) -> None:
    """Nothing, or the drill; that says nothing of this target."""
    assert unchecked().words == "was not checked"
    assert by_drill("backup x", None).words == "was not checked: no drill has proved backup x"
    found = by_drill("backup x", DRILL)
    assert (found.checked, found.drilled_at) == ("drill", DRILL.finished_at)
    assert found.words.startswith("was checked by the drill of ")  # "the base backup" is before it
    assert found.words.endswith("(backup x); whether this target has all of it was not checked")
    failed = replace(DRILL, outcome="failed", step="check", error="table d.t is corrupt")
    found = by_drill("backup x", failed)
    assert (found.checked, found.drilled_at) == ("no", None)
    assert found.words.endswith("FAILED at the step 'check'")
    found = by_drill("backup x", UnreadDrill("drills/y.json", DRILL.finished_at))
    assert (found.checked, found.drilled_at) == ("no", None)
    assert "may have failed with backup x: drills/y.json cannot be read" in found.words
    (tmp_path / "xtrabackup_binlog_info").write_text("mysql-bin.000001\t157\n")
    assert by_dump(server(target()), tmp_path).checked == "no"


MARIADB, MYSQL = "11.8.9-MariaDB-log", "9.7.4"


@pytest.mark.parametrize(
    ("version", "there", "is_older"),
    [
        (MARIADB, 80, True),
        (MYSQL, 80, True),
        (MARIADB, 81, False),
        (MYSQL, 90, False),
        ("5.7.22-log", 80, False),  # a restart forgot it
        ("10.1.48-MariaDB", 80, False),
    ],
)
def test_a_target_from_an_older_backup_is_told_by_its_numbers(
    tmp_path: Path, version: str, there: int, *, is_older: bool
) -> None:
    """The load of the dump that is named would have set a greater AUTO_INCREMENT."""
    path = tmp_path / "tuesday.sql"
    table = "CREATE TABLE `%s` (\n  `n` int\n) ENGINE=%s%s;\nINSERT INTO `%s` VALUES (1);\n"
    tables = [
        table % (name, engine, f" AUTO_INCREMENT={number} DEFAULT CHARSET=utf8mb4", name)
        for name, engine, number in (("t", "InnoDB", 81), ("u", "InnoDB", 7), ("m", "MyISAM", 99))
    ]
    head = HEAD.replace("Database: shop", "Database: ")
    path.write_text(f"{head}USE `odd`;\n{''.join(tables)}{END}")
    numbers = [{"db": "odd", "name": t, "it": n} for t, n in (("t", there), ("u", 7), ("m", 1))]
    answers = target(**{"auto_increment": numbers, "@@version": [{"version": version}]})
    if not is_older:
        assert by_dump(server(answers), path).checked == "dump"
        return
    with pytest.raises(
        RecoveryError, match=r"odd\.t goes on with number 80, and in the dump with 81"
    ):
        by_dump(server(answers), path)
    assert by_dump(server(answers), path, [("odd", "u")]).checked == "dump"
