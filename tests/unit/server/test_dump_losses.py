"""What a dump would lose: the rules over a server's answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.errors import SourceError
from binlog2s3.server import dump_losses
from binlog2s3.server.dump_losses import Loss, losses_of
from tests.unit.recover.fake_server import Rows, fake

T = {"db": "d", "tab": "t"}
TOKYO, UTC = [{"at1": 32400, "at2": 32400}], [{"at1": 0, "at2": 0}]
LONDON = [{"at1": 3600, "at2": 0}]


def column(name: str, expression: str | None = "", *, type_: str = "date", extra: str = "") -> Any:
    return {**T, "name": name, "type": type_, "expression": expression, "extra": extra}


def stored(name: str, expression: str, type_: str = "date") -> Any:
    return column(name, expression, type_=type_, extra="STORED GENERATED")


def virtual(name: str, expression: str, type_: str = "date") -> Any:
    return column(name, expression, type_=type_, extra="VIRTUAL GENERATED")


def key(name: str, part: str | None, *, non_unique: int = 0, nullable: str = "") -> Any:
    return {**T, "name": name, "part": part, "non_unique": non_unique, "nullable": nullable}


def of(name: str, expression: str) -> Any:
    return {**T, "name": name, "expression": expression}


def losses(answers: Mapping[str, Rows | Exception], flavour: Flavour = "mysql") -> tuple[Loss, ...]:
    return losses_of(fake(answers), flavour)


FLOAT = column("f", type_="float")
DAY = stored("day", "cast(`ts` as date)")
TS = {**T, "name": "ts"}


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_database_that_the_program_takes_for_the_servers_own_is_refused(flavour: Flavour) -> None:
    """In any case of its letters; the server's own are no loss, and a longer name is none."""
    names = ("SYS", "Performance_Schema", "sys", "mysql", "MYSQL", "information_schema", "sys_2")
    (found,) = losses({dump_losses.DATABASES: [{"db": name} for name in names]}, flavour)
    assert found.refused
    assert "database SYS, Performance_Schema: " in found.text


@pytest.mark.parametrize(("tables", "is_lost"), [(["sys_config"], False), (["mine"], True)])
def test_a_users_table_in_sys_is_refused(tables: list[str], *, is_lost: bool) -> None:
    """The server's own table is made by every server. MariaDB's answer has those of `SYS`, too."""
    rows = [{"db": "sys", "tab": name} for name in tables] + [{"db": "SYS", "tab": "other"}]
    found = losses({dump_losses.IN_SYS: rows})
    assert [(one.refused, "sys.mine" in one.text) for one in found] == [(True, True)] * is_lost


@pytest.mark.parametrize(
    ("keys", "is_found"),
    [
        ([key("PRIMARY", "id")], True),
        ([key("u", "id")], True),
        ([], False),
        ([key("k", "id", non_unique=1)], False),
        ([key("u", "id", nullable="YES")], False),
        ([key("u", None)], False),
        ([key("PRIMARY", "id"), key("PRIMARY", "f")], False),
        ([key("u", "id"), key("u", "f"), key("v", "id")], True),
    ],
)
def test_float_is_a_warning_that_says_whether_later_binlogs_find_the_row(
    keys: list[Any], *, is_found: bool
) -> None:
    """They find it by a key that was not rounded."""
    (found,) = losses({dump_losses.COLUMNS: [FLOAT], dump_losses.KEYS: keys})
    assert not found.refused
    assert "d.t" in found.text
    assert ("1032" in found.text) == (not is_found)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_memory_table_is_a_warning(flavour: Flavour) -> None:
    """On MySQL, what it has lost ends the roll-forward. Those of the server are not named."""
    rows = [{"db": "information_schema", "tab": "TABLES"}, {"db": "d", "tab": "t"}]
    (found,) = losses({dump_losses.FLEETING: rows}, flavour)
    assert not found.refused
    assert "not restored: d.t. " in found.text
    assert ("1032" in found.text) == (flavour == "mysql")


def test_a_computed_float_is_exact() -> None:
    """It is computed of what is exact."""
    assert losses({dump_losses.COLUMNS: [column("f", "`a` / 3", type_="float")]}) == ()


@pytest.mark.parametrize(
    ("columns", "others", "names"),
    [
        ([DAY], [], ["day"]),
        ([stored("day", "cast(`TS` as date)")], [], ["day"]),
        ([virtual("day", "cast(`ts` as date)")], [], []),
        ([virtual("seen", "cast(`ts` as date)")], [], ["seen"]),
        ([virtual("x", "cast(`ts` as date)"), stored("y", "year(`x`)")], [], ["y"]),
        ([stored("y", "year(`x`)"), virtual("x", "cast(`ts` as date)")], [], ["y"]),
        ([stored("a", "`dt` + 1")], [], []),
        ([stored("a", "from_unixtime(`n`)")], [], ["a"]),
        ([stored("a", "unix_timestamp(`ts`)")], [], []),
        ([stored("a", "unix_timestamp(`dt`)")], [], ["a"]),
        ([stored("a", "unix_timestamp(`ts`) + hour(`ts`)")], [], ["a"]),
        ([stored("made", "`dt`"), stored("a", "unix_timestamp(`made`)")], [], ["made", "a"]),
        ([stored("made", "`dt`", "timestamp")], [], ["made"]),
        ([virtual("made", "`dt`", "timestamp")], [], []),
        ([virtual("moment", "`dt`", "timestamp")], [], ["moment"]),
        ([virtual("made", "`dt`", "timestamp"), stored("y", "year(`made`)")], [], ["y"]),
        ([virtual("made", "`dt`", "timestamp")], [of("k", "year(`made`)")], ["k"]),
        ([stored("b", "`a``b`")], [], ["b"]),
        ([stored("b", "concat(_utf8mb4\\'`\\',`ts`)")], [], ["b"]),
        ([stored("rs", "ROW START", "timestamp"), stored("re", "ROW END", "timestamp")], [], []),
        ([], [of("k", "hour(`ts`)")], ["k"]),
        ([], [of("k", "(`n` * 2)")], []),
        ([virtual("x", "cast(`ts` as date)")], [of("k", "year(`x`)")], ["k"]),
    ],
)
@pytest.mark.parametrize("asked", [dump_losses.EXPRESSIONS, dump_losses.CHECKS["mysql"]])
def test_what_depends_on_the_time_zone_is_found(
    columns: list[Any], others: list[Any], names: list[str], asked: str
) -> None:
    """Columns, also through others; indexes of expressions; CHECKs."""
    timestamps = [{**T, "name": name} for name in ("ts", "made", "moment", "a`b", "rs", "re")]
    answers = {
        dump_losses.COLUMNS: columns,
        asked: others,
        dump_losses.KEYS: [key("k", part, non_unique=1) for part in ("seen", "moment")],
        dump_losses.TIMESTAMPS: timestamps,
        dump_losses.ZONE: TOKYO,
    }
    found = losses(answers)
    is_refused = asked == dump_losses.EXPRESSIONS or not others  # a CHECK fails, or does nothing
    assert [one.refused for one in found] == [is_refused] * bool(names)
    if names:
        assert ": " + ", ".join(f"d.t: {name}" for name in names) + ". " in found[0].text


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ([stored("g", "convert_tz(`dt`,'MET','+00:00')")], "d.t: g"),
        ([virtual("g", "convert_tz(`dt`,'MET','+00:00')")], ""),
        ([virtual("seen", "convert_tz(`dt`,'MET','+00:00')")], "d.t: seen"),
        ([virtual("g", "convert_tz(`dt`,'MET','+00:00')"), stored("y", "year(`g`)")], "d.t: y"),
        ([stored("g", "convert_tz(`dt`,'+01:00','+00:00')")], ""),
        ([{**stored("g", "convert_tz(`dt`,'MET','+00:00')"), "db": "shop"}], ""),
    ],
)
def test_what_a_mariadb_dump_has_before_the_time_zones_is_refused(
    columns: list[Any], names: str
) -> None:
    """It would be NULL. mysqldump has the database mysql first."""
    answers = {dump_losses.COLUMNS: columns, dump_losses.KEYS: [key("k", "seen", non_unique=1)]}
    found = losses(answers, "mariadb")
    assert [(one.refused, f": {names}. " in one.text) for one in found] == [(True, True)] * bool(
        names
    )
    assert losses(answers) == ()


def test_the_timestamp_of_another_table_is_no_reason() -> None:
    """Nor one of the same name."""
    elsewhere = {**TS, "tab": "other"}
    answers = {dump_losses.COLUMNS: [DAY], dump_losses.TIMESTAMPS: [elsewhere]}
    assert losses({**answers, dump_losses.ZONE: TOKYO}) == ()


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    ("zone", "refused"),
    [
        (TOKYO, True),
        (LONDON, True),
        (UTC, False),
        ([{"at1": None, "at2": 0}], True),
        ([], True),
        (SourceError("no"), True),
    ],
)
def test_a_server_in_utc_is_warned_of(
    flavour: Flavour, zone: Rows | Exception, *, refused: bool
) -> None:
    """Another, and one whose zone is not known, is refused: the values would be others."""
    answers: dict[str, Rows | Exception] = {
        dump_losses.COLUMNS: [DAY],
        dump_losses.TIMESTAMPS: [TS],
        dump_losses.ZONE: zone,
    }
    (found,) = losses(answers, flavour)
    assert found.refused == refused


def test_what_mysqldump_does_not_write_is_refused() -> None:
    """Of a MariaDB nobody asks: it has none."""
    answers = {dump_losses.TABLESPACES: [{"name": "ts1"}], dump_losses.SPATIAL: [{"name": 990001}]}
    found = losses(answers)
    assert [one.refused for one in found] == [True, True]
    assert "ts1" in found[0].text
    assert "990001" in found[1].text
    assert losses(answers, "mariadb") == ()


def test_a_foreign_key_to_no_unique_key_needs_an_option_at_the_load() -> None:
    """Only where the server restricts it, so of its version."""
    keys = {dump_losses.FOREIGN_KEYS: [{**T, "name": "c"}]}
    (found,) = losses({**keys, dump_losses.RESTRICTS: [{"Variable_name": "x", "Value": "OFF"}]})
    assert not found.refused
    assert "d.t: c" in found.text
    assert losses(keys) == ()


@pytest.mark.parametrize(
    ("charset", "body", "is_told"),
    [
        ("gbk", "SET NEW.c = '\u8aa0'", True),  # D5 5C
        ("gbk", "SET NEW.c = '\u4e2d'", False),
        ("sjis", "SET NEW.c = '\u8868'", True),  # 95 5C
        ("big5", "SET NEW.c = '\u529f'", True),  # A5 5C
        ("gbk", None, False),
        ("gbk", "SET NEW.c = '\\\\'", False),
    ],
)
def test_letters_that_a_client_takes_for_marks(
    charset: str, body: str | None, *, is_told: bool
) -> None:
    """A dump with these ended with "Unknown command" at a real client."""
    row = {**T, "charset": charset, "body": body}
    found = losses({dump_losses.BODIES[0]: [row]})
    assert [one.refused for one in found] == [False] * is_told
    assert all("d.t" in one.text for one in found)


def test_names_are_data() -> None:
    """None of their characters reaches a terminal, five are printed, and the rest is counted."""
    names = ["sys", "SYS", "Sys", "sYs", "syS", "SYs", "SyS", "sYS"]
    (found,) = losses({dump_losses.DATABASES: [{"db": name} for name in names]})
    assert "SYS, Sys, sYs, syS, SYs and 2 more" in found.text
    (found,) = losses({dump_losses.TABLESPACES: [{"name": "a\x1b[31m\nb" + "c" * 900}]})
    assert found.text.isprintable()
    assert len(found.text) < 500


def test_what_the_account_may_not_see_is_no_reason_to_make_no_backup() -> None:
    """A server that is away is one."""
    assert losses({"": SourceError("denied", needs_privilege=True)}) == ()
    with pytest.raises(SourceError):
        losses({"": SourceError("away", transient=True)})
