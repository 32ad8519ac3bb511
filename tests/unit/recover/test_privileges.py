"""What the account at a target is missing, by SHOW GRANTS."""

from dataclasses import replace

import pytest

from binlog2s3.recover.privileges import has, missing_privileges, needed
from binlog2s3.recover.target import TargetFacts
from tests.unit.recover.fake_server import fake
from tests.unit.recover.test_preflight import MARIADB
from tests.unit.recover.test_target import FACTS

TO = "TO `pitr`@`localhost`"
NOTES = ("binlog2s3_recovery%", "*")
EVERYWHERE = ("*", "*")
ALL = [f"GRANT ALL PRIVILEGES ON *.* {TO} IDENTIFIED VIA mysql_native_password WITH GRANT OPTION"]


def missing(facts: TargetFacts, *lines: str) -> list[str]:
    """The message and the hint, if there is one."""
    rows = [{"Grants for pitr@localhost": line} for line in lines]
    account = [{"it": "pi'tr@localhost"}]
    server = fake({"SHOW GRANTS": rows, "CURRENT_USER": account})
    return [text for one in missing_privileges(server, facts) for text in (str(one), str(one.hint))]


@pytest.mark.parametrize("facts", [FACTS, MARIADB, replace(FACTS, version="5.7.44-log")])
def test_who_has_all_of_it(facts: TargetFacts) -> None:
    """Nothing is said."""
    assert missing(facts, *ALL) == []


def test_what_is_missing_is_told_with_its_grants() -> None:
    """All of it at once, by the account's own name."""
    said, hint = missing(
        MARIADB,
        f"GRANT RELOAD, REPLICATION SLAVE ADMIN, SLAVE MONITOR ON *.* {TO}",
        f"GRANT SELECT, INSERT ON `binlog2s3\\_recovery%`.* {TO}",
    )
    assert "is missing the privilege BINLOG ADMIN, PROCESS on *.*; CREATE, DROP, UPDATE on " in said
    assert hint == (
        "GRANT BINLOG ADMIN, PROCESS ON *.* TO 'pi''tr'@'localhost'; "
        "GRANT ALL ON `binlog2s3\\_recovery%`.* TO 'pi''tr'@'localhost'"
    )


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("GRANT ALL PRIVILEGES ON `binlog2s3_recovery%`.* TO", True),
        ('GRANT INSERT ON "binlog2s3\\_recovery%".* TO', True),
        ("GRANT ALL PRIVILEGES ON `binlog2s3_recovery`.* TO", False),
        ("GRANT INSERT ON `binlog2s3%`.* TO", True),
        ("GRANT SELECT, INSERT, UPDATE ON *.* TO", True),
        ("GRANT INSERT ON `binlog2s3\\%`.* TO", False),
        ("GRANT INSERT ON `binlog2s3_recovery`.`run` TO", False),
        ("GRANT INSERT (`a`, `b`), SELECT ON *.* TO", False),
        ("GRANT SELECT ON *.* TO", False),
        ("GRANT INSERT ON `a``.* TO `.* TO", False),
        ("GRANT `INSERT`@`%` TO", False),
        ("GRANT PROXY ON ''@'' TO", False),
    ],
)
def test_a_grant_in_a_database(line: str, given: bool) -> None:
    """By pattern, as the servers read it; a column or a role is not enough."""
    assert has([f"{line} `pitr`@`localhost`"], FACTS, "INSERT", NOTES) is given


def test_what_is_taken_back() -> None:
    """MySQL's partial revokes."""
    lines = [f"GRANT SELECT ON *.* {TO}", "REVOKE SELECT ON `mysql`.* FROM `pitr`@`localhost`"]
    assert not has(lines, FACTS, "SELECT", ("mysql", "slave_worker_info"))
    assert has(lines, FACTS, "SELECT", NOTES)


@pytest.mark.parametrize(
    ("facts", "privilege", "given"),
    [
        (FACTS, "REPLICATION_SLAVE_ADMIN", True),
        (FACTS, "RELOAD", False),
        (replace(MARIADB, version="10.11.6-MariaDB"), "BINLOG ADMIN", True),
        (replace(MARIADB, version="10.11.6-MariaDB"), "PROCESS", False),
        (replace(MARIADB, version="11.4.5-MariaDB"), "BINLOG ADMIN", False),
    ],
)
def test_super(facts: TargetFacts, privilege: str, given: bool) -> None:
    """It has what was split off from it, until MariaDB 11."""
    assert has([f"GRANT SUPER ON *.* {TO}"], facts, privilege, EVERYWHERE) is given


def test_an_old_mysql() -> None:
    """It has SUPER instead of the later ones."""
    names = [name for name, where in needed(replace(FACTS, version="5.7.44")) if where[0] == "*"]
    assert names == ["REPLICATION CLIENT", "SUPER", "RELOAD"]
