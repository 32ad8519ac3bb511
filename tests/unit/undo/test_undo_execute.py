"""What is told when an undo is interrupted, or waits for others, with a script for a server."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import pymysql
import pytest

from binlog2s3.binlog.undo import Step, steps
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.errors import translate
from binlog2s3.undo.execute import ConflictError, Execution, LostCommitError
from binlog2s3.undo.tables import Column, Definition
from tests.binlog_writer import BEGIN, XID
from tests.login import ROOT
from tests.unit.binlog.test_content import table_map
from tests.unit.binlog.test_undo import WRITE, event, image, taken

COLUMNS = [Column(name=name, same="{t} <=> {s}") for name in ("id", "b")]
TABLE = Definition(database="shop", table="a", columns=tuple(COLUMNS), index="PRIMARY",
                   key=("id",), text="")  # fmt: skip


class Scripted:
    """Answers by the first words that a statement contains; `asked` are all statements."""

    def __init__(self, **answers: Any) -> None:
        self.answers: dict[str, Any] = {
            "GET_LOCK": 1, "CONNECTION_ID() AS it": 7, "UNIX_TIMESTAMP": 9, "sql_log_bin AS it": 1,
            "COUNT(*) AS it FROM": 1, **answers,
        }  # fmt: skip
        self.asked: list[str] = []

    def rows(self, statement: str, _: Sequence[object] = ()) -> list[dict[str, Any]]:
        self.asked.append(statement)
        for words, answer in self.answers.items():
            if words in statement:
                found = answer() if callable(answer) else answer
                return found if isinstance(found, list) else [{"it": found}]
        return []

    def commit(self) -> str:
        self.rows("COMMIT!")
        return "uuid:8"

    def close(self) -> None:
        self.asked.append("close")


SAME: dict[str, Any] = {"STRAIGHT_JOIN": [{"same": 1, "there": 1}]}


def execution(scratch: Scripted, work: Scripted, *, skips: bool = False) -> Execution:
    return Execution(
        cast("Server", scratch),
        cast("Server", work),
        flavour="mysql",
        form=bytes(30),
        definitions=lambda _: TABLE,
        skip_conflicts=skips,
    )


def step(rows: int = 1) -> Step:
    images = [image(number) for number in range(1, rows + 1)]
    (found,) = steps(taken([BEGIN, table_map(7, "a"), event(WRITE, 7, images), XID]))
    return found


def raising(code: int, text: str = "x") -> Callable[[], Any]:
    """What the library raises for an error of the server, as it is translated."""

    def answer() -> Any:
        raise translate(pymysql.OperationalError(code, text), ROOT)

    return answer


def interrupted() -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize("code", [1205, 1213])
@pytest.mark.parametrize("where", ["STRAIGHT_JOIN", "BINLOG", "LIMIT 0"])
def test_a_row_that_another_transaction_locks_is_told(code: int, where: str) -> None:
    """While rows are compared, while they are changed, and while the table is locked: and whose."""
    binlogs: list[int] = []

    def late() -> Any:  # the first BINLOG is the format event
        binlogs.append(1)
        return raising(code)() if where != "BINLOG" or len(binlogs) > 1 else []

    scratch = Scripted(innodb_trx=[{"id": 12}, {"id": 15}])
    work = Scripted(**{**SAME, where: late})
    with (
        pytest.raises(RecoveryError, match="nothing was changed: a row of") as error,
        execution(scratch, work) as one,
    ):
        one.undo(step())
    assert not isinstance(error.value, ConflictError)
    assert "perhaps of connection 12 or 15" in str(error.value)
    assert "COMMIT!" not in work.asked


def test_another_error_of_the_server_is_no_lock() -> None:
    """It is what it was: the server's, or a conflict while rows are changed."""
    with pytest.raises(SourceError), execution(
        Scripted(), Scripted(STRAIGHT_JOIN=raising(1146))
    ) as one:  # fmt: skip
        one.undo(step())


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"AS k0": [{"k0": 1, "same": 1, "there": 1}] * 2}, "cannot be left out"),
        ({"AS k0": [{"k0": 1, "same": 0, "there": 1}] * 2, "LEFT JOIN": [{"it": 1}] * 2},
         "could not be told apart"),
    ],
)  # fmt: skip
def test_only_rows_that_are_compared_equal_are_undone(more: dict[str, Any], why: str) -> None:
    """Whatever the server says about which rows are in conflict: all others are compared again."""
    scratch = Scripted(**{"COUNT(*) AS it FROM": 2, "LEFT JOIN": [{"it": 0}, {"it": 1}], **more})
    work = Scripted(**{"AS k0": more["AS k0"], "STRAIGHT_JOIN": [{"same": 1, "there": 2}]})
    with pytest.raises(RecoveryError, match=why), execution(scratch, work, skips=True) as one:
        one.undo(step(2))
    assert sum("BINLOG" in statement for statement in work.asked) == 1  # the format event
    assert "COMMIT!" not in work.asked


def test_an_interruption_during_commit_is_told_as_unknown() -> None:
    """Neither that nothing was changed nor that it was done; and the server is asked nothing."""
    scratch, work = Scripted(), Scripted(**{"COMMIT!": interrupted})
    with (
        pytest.raises(LostCommitError, match="whether it was committed is not known") as error,
        execution(scratch, work) as one,
    ):
        one.commit()
    assert error.value.committed is None
    assert "safe" in error.value.hint


def test_an_interruption_while_a_lost_commit_is_looked_for_is_told_as_unknown() -> None:
    """Nor may it be taken for one before the COMMIT, which has changed nothing."""
    rows = iter([[{"same": 1, "there": 1}], [{"same": 0, "there": 0}]])
    work = Scripted(**{"STRAIGHT_JOIN": lambda: next(rows), "COMMIT!": raising(2013)})
    with execution(Scripted(SLEEP=interrupted), work) as one:
        one.undo(step())
        with pytest.raises(LostCommitError, match="whether it was committed is not known"):
            one.commit()
        assert not one.committed


def test_an_interruption_after_commit_does_not_hide_what_was_done() -> None:
    """What is left of the scratch tables, the next undo drops."""
    dropped: list[int] = []

    def second() -> Any:
        dropped.append(1)
        return interrupted() if len(dropped) > 1 else []

    with execution(Scripted(**{"DROP DATABASE": second}), Scripted()) as one:
        assert one.commit().gtid == "uuid:8"
    dropped.clear()
    with (
        pytest.raises(KeyboardInterrupt),
        execution(Scripted(**{"DROP DATABASE": second}), Scripted()),
    ):
        pass
