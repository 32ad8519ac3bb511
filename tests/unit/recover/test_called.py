"""Statements that use what calls UUID() or the like, and do not say so themselves."""

from typing import cast

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.errors import SourceError
from binlog2s3.recover.called import Called, Definition, definitions
from binlog2s3.recover.target import Target
from tests.binlog_writer import statement
from tests.unit.recover.watched import saw

FUNCTION = "CREATE DEFINER=`root`@`localhost` FUNCTION `f`() RETURNS char(36)\nNO SQL RETURN UUID()"
TABLE = "CREATE TABLE IF NOT EXISTS `shop`.`t` (id INT, u CHAR(36) DEFAULT (uuid()))"


def seen(*texts: str, there: tuple[Definition, ...] | None = (), packed: bool = False) -> Called:
    watcher = Called()
    watcher.know(there)
    return saw(watcher, *map(statement, texts), packed=packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "texts",
    [
        (FUNCTION, "INSERT INTO a VALUES (F())"),
        (FUNCTION, f"INSERT INTO a VALUES ('{'x' * 40_000}', shop.`f`())"),
        (FUNCTION, "DROP FUNCTION g", "DO f()"),
        (FUNCTION, "DROP FUNCTION f", "SELECT shop.f()"),
        (FUNCTION, "CREATE FUNCTION `g h`() RETURNS INT RETURN f()", "UPDATE a SET b = `g h`()"),
        (FUNCTION, "CREATE TABLE a AS SELECT f()"),
        ("CREATE OR REPLACE VIEW v AS SELECT @@port AS p", "DELETE FROM a WHERE p = (TABLE v)"),
        ("ALTER VIEW v AS SELECT current_user AS u", "INSERT INTO a SELECT u FROM v"),
        (
            "CREATE TRIGGER `on` BEFORE INSERT ON shop.`a b` FOR EACH ROW SET NEW.u = user()",
            "INSERT INTO `a b` VALUES (1)",
        ),
        (
            "CREATE PROCEDURE p(OUT x INT) SET x = UUID_SHORT()",
            "CREATE TRIGGER r BEFORE DELETE ON a FOR EACH ROW CALL p(@x)",
            "DELETE FROM a",
        ),
        (TABLE, "INSERT INTO t (id) VALUES (1)"),
        (TABLE, "REPLACE t SET id = 1"),
        (TABLE, "UPDATE t SET u = DEFAULT"),
        (TABLE, "SET STATEMENT max_statement_time=1 FOR INSERT INTO t (id) VALUES (1)"),
        (TABLE, "RENAME TABLE t TO old, s TO t", "INSERT INTO old (id) VALUES (1)"),
        (TABLE, "ALTER TABLE t RENAME AS u", "INSERT INTO u (id) VALUES (1)"),
        (TABLE, "ALTER TABLE t RENAME u", "CREATE TABLE w LIKE u", "INSERT w () VALUES ()"),
        ("ALTER TABLE t ALTER u SET DEFAULT (NEXT VALUE FOR s)", "INSERT INTO t (id) VALUES (1)"),
    ],
)  # fmt: skip
def test_what_is_used_by_name(texts: tuple[str, ...], packed: bool) -> None:
    """The last of the statements makes other rows where it is executed again."""
    found = seen(*texts, packed=packed)
    assert found.number == 1
    assert texts[-1][:30] in found.doubt


@pytest.mark.parametrize(
    "texts",
    [
        (FUNCTION, "INSERT INTO a VALUES (ff(), f1, $f)"),
        (FUNCTION, "DROP FUNCTION f", "GRANT EXECUTE ON FUNCTION f TO a", "FLUSH TABLES f"),
        ("CREATE FUNCTION f() RETURNS INT RETURN 1", "INSERT INTO a VALUES (f())"),
        (TABLE, "UPDATE t SET id = 2", "DELETE FROM t", "TRUNCATE TABLE t", "DROP TABLE t"),
        (TABLE, "CREATE TABLE s AS SELECT * FROM t"),
        ("CREATE VIEW v AS SELECT NOW(), CONNECTION_ID()", "INSERT INTO a SELECT * FROM v"),
        ("CREATE TABLE t (user INT, uuid INT)", "INSERT INTO t (user, uuid) VALUES (1, 2)"),
        (
            "CREATE EVENT `e` ON SCHEDULE EVERY 1 DAY DO UPDATE a SET b = uuid(), c = (SELECT 1)",
            "ALTER EVENT `e` RENAME TO `f` DO DELETE FROM a WHERE b = user()",
            "UPDATE a SET b = 1 WHERE e = 2",
        ),
        ("CREATE USER u@localhost COMMENT 'SELECT, and UUID()'", "UPDATE a SET b = 1 WHERE u = 2"),
    ],
)
def test_what_is_not(texts: tuple[str, ...]) -> None:
    """Other names, statements that change no row, and what the binlog has the value of."""
    assert seen(*texts).doubt == ""


COUNTER = "CREATE TRIGGER g AFTER INSERT ON t FOR EACH ROW {}"
JOINED = "CREATE VIEW v AS SELECT t.n, x.name FROM t {} x"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "texts",
    [
        ("CREATE VIEW v AS SELECT name FROM x GROUP BY g", "INSERT INTO t SELECT name FROM v"),
        ("CREATE VIEW v AS SELECT name FROM x limit 1", "UPDATE t SET a = (SELECT name FROM v)"),
        ("CREATE VIEW v AS SELECT RAND() FROM x", "INSERT INTO t SELECT * FROM v"),
        (JOINED.format("JOIN"), "UPDATE v SET n = name"),
        (JOINED.format(","), "WITH w AS (SELECT 1) UPDATE v SET n = name"),
        (
            "CREATE FUNCTION f() RETURNS INT RETURN (SELECT GROUP_CONCAT(a) FROM s)",
            "INSERT INTO t VALUES (f())",
        ),
        (
            "CREATE FUNCTION f() RETURNS INT BEGIN DECLARE c CURSOR FOR SELECT a FROM s; END",
            "SELECT f()",
        ),
        ("CREATE FUNCTION f(a INT) RETURNS INT RETURN a * RAND()", "UPDATE t SET a = f(a)"),
        ("CREATE FUNCTION f() RETURNS INT RETURN (SELECT COUNT(*) FROM s)", "UPDATE t SET a=f()"),
        (COUNTER.format("UPDATE s SET n = CONCAT(n, NEW.a)"), "INSERT INTO t SELECT a FROM x"),
        (COUNTER.format("SET @n = @n + 1"), "WITH w AS (SELECT 1) UPDATE t SET a = 1"),
        (COUNTER.format("INSERT INTO s VALUES (1)"), "DELETE FROM t"),
        (COUNTER.format("REPLACE s SET a = 1"), "SELECT a FROM t"),
        (
            "CREATE PROCEDURE p() DELETE FROM s",
            "CREATE TRIGGER g AFTER UPDATE ON t FOR EACH ROW CALL p()",
            "UPDATE t SET a = 1",
        ),
        (
            "CREATE TABLE t (u CHAR(36) DEFAULT (UUID())) AS SELECT 1",
            "INSERT INTO t (id) VALUES (1)",
        ),
    ],
)
def test_what_follows_from_the_order_of_rows(texts: tuple[str, ...], packed: bool) -> None:
    """What is used has them in that of the server, or goes with each of those that change."""
    found = seen(*texts, packed=packed)
    assert found.number == 1
    assert texts[-1][:30] in found.doubt


@pytest.mark.parametrize(
    "texts",
    [
        (COUNTER.format("SET NEW.a = UPPER(NEW.a)"), "INSERT INTO t SELECT 1", "UPDATE t SET a=1"),
        (COUNTER.format("SET NEW.a = REPLACE(INSERT(a, 1, 2, 'x'), 'y', 'z')"), "DELETE FROM t"),
        ("CREATE TRIGGER g AFTER UPDATE ON t FOR EACH ROW SET NEW.a = 1", "UPDATE t SET a = 1"),
        ("CREATE TRIGGER g AFTER INSERT OR DELETE ON t FOR EACH ROW SET NEW.a=1", "DELETE FROM t"),
        (COUNTER.format("UPDATE s SET n = n + 1"), "INSERT INTO t VALUES (1), (2)"),
        (COUNTER.format("INSERT INTO s SELECT 1"), "INSERT INTO t VALUES (1, 2)"),
        ("CREATE FUNCTION f() RETURNS INT RETURN (SELECT MAX(a) FROM s)", "INSERT t VALUES (f())"),
        (JOINED.format("JOIN"), "INSERT INTO t SELECT name FROM v", "DELETE FROM v"),
        ("CREATE VIEW v AS SELECT a, b FROM t", "UPDATE v SET a = 1", "INSERT INTO s TABLE v"),
    ],
)
def test_what_does_not(texts: tuple[str, ...]) -> None:
    """Nothing is read or changed, rows come in the order of the text, or one at a time."""
    assert seen(*texts).doubt == ""


def test_numbers_that_a_trigger_gives() -> None:
    """Of several tables that number their rows, the binlog has the first number of one alone."""
    trigger = statement(COUNTER.format("INSERT INTO s (a) VALUES (1)"))
    insert, other = map(statement, ("INSERT INTO t (a) VALUES (1)", "INSERT INTO x VALUES (1)"))
    insert_id, last_insert_id = ((EventType.INTVAR, bytes([kind]) + bytes(8)) for kind in (2, 1))
    assert saw(Called(), trigger, insert_id, insert).number == 1
    assert saw(Called(), trigger, last_insert_id, insert).doubt == ""
    assert saw(Called(), trigger, insert_id, other, insert).doubt == ""


def test_what_was_there_before_the_plan() -> None:
    """What uses one of them is one of them, in whatever order they come."""
    there = (
        Definition(name="g", text="BEGIN RETURN shop.F(); END"),
        Definition(name="f", text="RETURN uuid()"),
        Definition(name="T", text="user()", kind="TABLE"),
        Definition(name="h", text="RETURN 1"),
        Definition(name="long", text="-" * 65_536),  # all that was asked for
    )
    change = "INSERT INTO a VALUES ({}())"
    assert seen(change.format("g"), there=there).number == 1
    assert seen(change.format("h"), there=there).doubt == ""
    assert seen(change.format("long"), there=there).number == 1
    assert seen("INSERT INTO t (a) VALUES (1)", there=there).number == 1
    assert seen("UPDATE t SET a = 1", there=there).doubt == ""


def test_an_account_that_does_not_see_them() -> None:
    """It is a doubt only if there are statements that may use them."""
    assert seen("CREATE TABLE a (b INT)", "DROP TABLE a", there=None).doubt == ""
    found = seen("CREATE TABLE a (b INT)", "INSERT INTO a VALUES (1)", there=None)
    assert "is not known (GRANT SELECT, SHOW VIEW, TRIGGER ON *.* shows it)" in found.doubt
    assert "used a function" in seen(FUNCTION, "INSERT INTO a VALUES (f())", there=None).doubt


@pytest.mark.parametrize("name", ["f{}", "f {}"])
def test_too_many_names_are_not_taken_for_none(name: str) -> None:
    most = 100_000 if name == "f{}" else 1000
    there = tuple(
        Definition(name=name.format(number), text="RETURN uuid()") for number in range(most + 1)
    )
    assert seen("DROP TABLE a", there=there).doubt == ""
    assert "is not known" in seen("INSERT INTO a VALUES (1)", there=there).doubt
    assert seen("INSERT INTO a VALUES (1)", there=there[1:]).doubt == ""


class _Server:
    """Answers what an account may ask."""

    def __init__(self, *grants: str) -> None:
        self._grants = grants

    def rows(self, question: str) -> list[dict[str, object]]:
        if question == "SHOW GRANTS":
            if not self._grants:
                raise SourceError("(1141) no such grant", answered=True)
            return [{"Grants for a@b": one} for one in self._grants]
        name = question.partition("information_schema.")[2].split()[0]
        return [
            {"db": "shop", "name": name, "text": b"uuid()".decode()},
            {"db": "sys", "name": "no", "text": "uuid()"},
            {"db": "shop", "name": "hidden", "text": None},
        ]


class _Facts:
    def __init__(self, checks_accounts: bool) -> None:
        self.checks_accounts = checks_accounts


@pytest.mark.parametrize(
    ("grants", "checks", "sees"),
    [
        (("GRANT ALL PRIVILEGES ON *.* TO `a`@`b` WITH GRANT OPTION",), True, True),
        (("GRANT USAGE ON *.* TO a", "GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO a"), True, True),
        (("GRANT SELECT, TRIGGER ON *.* TO a", "GRANT SHOW VIEW ON `b`.* TO a"), True, False),
        (
            ("GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO a", "REVOKE SELECT ON `b`.* FROM a"),
            True,
            False,
        ),
        ((), True, False),
        ((), False, True),
    ],
)
def test_what_an_account_sees(grants: tuple[str, ...], checks: bool, sees: bool) -> None:
    """Everything, or nothing is known. A server without accounts shows all."""
    target = cast("Target", type("T", (), {"server": _Server(*grants), "facts": _Facts(checks)}))
    found = definitions(target)
    assert (found is not None) == sees
    if found is not None:
        assert {(one.name, one.kind) for one in found if one.text} == {
            ("routines", "FUNCTION"),
            ("triggers", "TRIGGER"),
            ("views", "VIEW"),
            ("columns", "TABLE"),
        }
