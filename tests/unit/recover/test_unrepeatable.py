"""Statements that make other rows where they are executed again."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from binlog2s3.recover.extract import walked
from binlog2s3.recover.model import Checked, PlanPiece
from binlog2s3.recover.plan_source import OpenStream
from binlog2s3.recover.unrepeatable import Unrepeatable
from lab import pitr_examples
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.unit.binlog.test_content import compressed


def seen(*texts: str, packed: bool = False) -> Unrepeatable:
    made = BinlogWriter()
    inside = [statement("BEGIN"), *map(statement, texts), XID]
    made.transaction([compressed(inside)] if packed else inside, gtid=(UUID_A, "", 1))
    head = made.ends[1]

    def opened(pieces: Sequence[PlanPiece]) -> Iterator[Any]:
        data = bytes(made.data)
        yield pieces[0], iter([Checked(data=data[:head]), Checked(data=data[head:])])

    found = Unrepeatable()
    stream: Iterator[Any] = walked(cast("OpenStream", opened), [found])(
        pitr_examples.PLAN.pieces[:1]
    )
    assert sum(len(one.data) for _, parts in stream for one in parts) == len(made.data)
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE shop.t ADD id INT AUTO_INCREMENT PRIMARY KEY",
        "alter table t add column (a int, id int(11) unsigned not null auto_increment unique)",
        "ALTER ONLINE TABLE t MODIFY a INT, ADD COLUMN `id` BIGINT COMMENT 'a, b' AUTO_INCREMENT",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT = 5, ADD b INT AUTO_INCREMENT",
        "ALTER TABLE t ADD serial SERIAL",
        "ALTER TABLE t ADD (a INT, b BIGINT SERIAL DEFAULT VALUE)",
        "ALTER TABLE t ADD u CHAR(36) DEFAULT (UUID())",
        "ALTER TABLE t ADD r DOUBLE DEFAULT (rand ())",
        "INSERT INTO t VALUES (1, uuid())",
        "INSERT INTO t SELECT CURRENT_USER",
        "REPLACE t SELECT a FROM s LIMIT 3",
        "UPDATE t SET a = SYSDATE(6)",
        "DELETE FROM t WHERE a = 1 LIMIT 1",
        "WITH w AS (SELECT VERSION() AS v) UPDATE t, w SET t.a = w.v",
        "LOAD DATA INFILE 'x' INTO TABLE t (a) SET b = USER()",
        "CREATE TABLE t AS SELECT * FROM s LIMIT 1",
    ],
)
def test_what_makes_other_rows(text: str, packed: bool) -> None:
    """Numbers by the order of the rows in the server, and values of this server and this moment."""
    found = seen(text, packed=packed)
    assert found.number == 1
    assert text[:20] in found.doubt


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t AUTO_INCREMENT = 5",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT=5",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT 5",
        "ALTER TABLE t ADD a INT, MODIFY id INT AUTO_INCREMENT",
        "ALTER TABLE t ADD a INT, CHANGE id id INT AUTO_INCREMENT",
        "ALTER TABLE t ADD `auto_increment` INT",
        "ALTER TABLE t ADD a INT COMMENT 'no AUTO_INCREMENT'",
        "ALTER TABLE t ALTER u SET DEFAULT (UUID())",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, u CHAR(36) DEFAULT (UUID()))",
        "CREATE VIEW v AS SELECT UUID() FROM t LIMIT 1",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.u = UUID()",
        "CREATE PROCEDURE p() INSERT INTO t SELECT UUID() FROM s LIMIT 1",
        "INSERT INTO t VALUES ('uuid() LIMIT 1', \"user()\")",
        "INSERT INTO t (`user`, version) VALUES (1, 2)",
        "INSERT INTO user (a) VALUES (1)",
        "REPLACE shop.user(a) VALUES (1)",
        "INSERT IGNORE version (a) VALUES (1)",
        "ALTER TABLE t ADD serial INT, ADD COLUMN (serial INT)",
        "INSERT INTO t VALUES (RAND(), CONNECTION_ID(), NOW(6))",
        "DELETE FROM t ORDER BY id LIMIT 1",
        "GRANT ALL ON shop.* TO CURRENT_USER()",
    ],
)
def test_what_makes_the_same(text: str) -> None:
    """Or makes no rows."""
    assert seen(text).doubt == ""


def test_several_without_their_passwords() -> None:
    """The first one is named."""
    doubt = seen("INSERT INTO t VALUES (UUID(), PASSWORD('secret'))", "DELETE FROM t LIMIT 1").doubt
    assert "this statement and 1 more" in doubt
    assert "INSERT INTO t" in doubt
    assert "secret" not in doubt
