"""What `backup add` and `status` are asked about base backups, judged as a whole."""

from typing import Any

import pytest

from binlog2s3.archive.codec import Text, converted
from binlog2s3.config.backup import BACKUP, MOST_CHARACTERS
from binlog2s3.config.given import Given
from binlog2s3.config.status import STATUS

WHERE = {"source": "orders", "s3-url": "s3://bucket/pre", "gtid-set": "x"}


@pytest.mark.parametrize("name", ["label", "location"])
def test_a_text_that_the_format_has_no_room_for_is_refused(name: str) -> None:
    """Before anything is asked of the bucket."""
    _, problems = BACKUP["add"].build(Given(WHERE | {name: "x" * (MOST_CHARACTERS + 1)}))
    assert problems == [f"--{name} has more than 1024 characters"]
    assert converted("x" * MOST_CHARACTERS, Text)
    with pytest.raises(ValueError, match="length <= 1024"):
        converted("x" * (MOST_CHARACTERS + 1), Text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"all": True}, ""),
        ({"watch": True}, ""),
        ({"from": "daemon"}, "contradict each other"),
        ({"s3-url": None}, "needs --s3-url"),
    ],
)
@pytest.mark.parametrize("age", ["backup-max-age", "drill-max-age"])
def test_an_age_needs_the_bucket(age: str, given: dict[str, Any], problem: str) -> None:
    """With every form of the output; an alarm that cannot work is refused."""
    _, problems = STATUS.build(Given({"s3-url": "s3://bucket/pre", age: 86_400.0, **given}))
    assert bool(problems) == bool(problem), problems
    assert all(problem in one for one in problems)


PLACE = {"source": "orders", "s3-url": "s3://bucket/pre"}
TOOL = PLACE | {"tool": "mysqldump", "mysql-user": "backup"}
COMMAND = PLACE | {"command": "dump it", "position-from": "dump-header"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (TOOL, ""),
        (TOOL | {"tool-option": ("--hex-blob",), "label": "x", "wait": 1.0, "json": True}, ""),
        (COMMAND, ""),
        (COMMAND | {"no-compress": True}, ""),
        (PLACE, "is missing"),
        (TOOL | COMMAND, "contradict each other"),
        (PLACE | {"tool": "mysqldump"}, "--mysql-user is missing"),
        (COMMAND | {"position-from": None}, "needs --position-from"),
        (TOOL | {"position-from": "dump-header"}, "needs --command"),
        (COMMAND | {"tool-option": ("--x",)}, "needs --tool"),
        (TOOL | {"tool-option": ("x",)}, "must begin with -"),
        (TOOL | {"tool-option": ("--password=secret",)}, "seen by all users"),
        *[
            (TOOL | {"tool-option": (option,)}, "seen by all users")
            for option in ("-psecret", "-qpsecret", "--pas=secret", "--loose-password=secret")
        ],
        *[
            (TOOL | {"tool-option": (option,)}, "is no base backup of the whole server")
            for option in (
                "--ignore-table=shop.a",
                "--loose-ignore_table=shop.a",
                "--ignore-t=shop.a",
                "--where=1=0",
                "-w1=0",
                "--no-data",
                "-d",
                "-qd",
                "--skip-triggers",
                "--skip_events",
                "--disable-routines",
                "--triggers=0",
                "--routines=OFF",
                "--databases-exclude=shop",
                "--incremental-lsn=1",
                "--single-transaction=false",
                "--result-file=x",
                "--tab=/tmp",
                "--compact",
                "--skip-comments",
                "--force",
                "--xml",
            )
        ],
        *[
            (TOOL | {"tool-option": (option,)}, "")
            for option in (
                "--no-tablespaces",
                "--triggers=1",
                "--max-allowed-packet=1G",
                "--parallel=4",
                "--tables-compatibility-check=OFF",
                "--skip-tz-utc",
                "--set-gtid-purged=OFF",
                "--column-statistics=0",
                "-qQ",
                "-S/tmp/mysqld.sock",
            )
        ],
        (TOOL | {"gtid-set": "x"}, "is for `backup add`"),
        (TOOL | {"yes": True}, "is for `backup add`"),
        (TOOL | {"label": "x" * 2000}, "more than 1024"),
    ],
)
def test_what_run_is_asked_is_judged_as_a_whole(given: dict[str, Any], problem: str) -> None:
    """A tool with a login, or a command that says where its position is; never a password."""
    config, problems = BACKUP["run"].build(Given(given))
    assert bool(problems) == bool(problem), problems
    assert all(problem in one for one in problems)
    assert (config is None) == bool(problem)
    assert "secret" not in "".join(problems)


@pytest.mark.parametrize("action", ["add", "list", "get", "remove"])
def test_options_of_run_are_for_run_alone(action: Any) -> None:
    """The others refuse them by name."""
    given = (WHERE if action == "add" else PLACE) | {"tool": "mysqldump", "no-compress": True}
    _, problems = BACKUP[action].build(Given(given))
    assert problems == ["--tool is for `backup run`", "--no-compress is for `backup run`"]
