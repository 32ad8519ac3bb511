"""What a run that was cut off has left, and what must not be done twice."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.model import Start
from binlog2s3.recover.target import TargetFacts
from lab import pitr_examples
from tests import documents
from tests.documents import like
from tests.unit.recover.fake_server import FakeServer, note_of, target_of
from tests.unit.recover.test_channel import CHILD, PARENT, left_behind
from tests.unit.recover.test_target import FACTS

LINEAGE = "20260102T030405Z-3e11fa47-a1b2"
ANONYMOUS = replace(FACTS, executed=None)
MARIADB = replace(FACTS, flavour="mariadb", version="10.11.6-MariaDB", executed=None)
MYISAM = ("shop.old (MyISAM)",)
MARK: dict[str, Any] = {
    "asked": "x", "reached": f"{LINEAGE}.b.000002:400", "begun": "2026-01-02 03:00:00 UTC",
    "started": "2026-01-01 04:00:00", "since": f"{LINEAGE}.b.000001:4", "settings": "",
}  # fmt: skip


def standing(
    facts: TargetFacts, mark: dict[str, Any] | None, *, up_seconds: int = 86400, position: str = ""
) -> Standing:
    answers: dict[str, list[dict[str, Any]]] = {
        **note_of(facts, mark),
        "UTC_TIMESTAMP": [{"it": datetime(2026, 1, 2, 4, 0, 0)}],  # noqa: DTZ001 - as the driver has it
        "Uptime": [{"Value": str(up_seconds)}],
        "gtid_slave_pos": [{"it": position}],
    }
    return Standing(target_of(facts, answers))


def test_where_the_note_says() -> None:
    """A place, in its lineage; of another command, or with GTIDs, the note says nothing."""
    wanted = Start(position=FilePosition(BinlogName.parse("b.000002"), 400), lineage=LINEAGE)
    assert standing(ANONYMOUS, MARK).start("x", ()) == wanted
    assert standing(ANONYMOUS, MARK).start("y", ()) is None
    assert standing(ANONYMOUS, None).start("x", ()) is None
    assert standing(FACTS, MARK).start("x", ()) is None
    assert standing(ANONYMOUS, {**MARK, "reached": "nonsense"}).start("x", ()) is None


def test_an_interrupted_run_goes_on_in_the_lineage_that_comes_last() -> None:
    """After a fail-over to an older server the child's id is the smaller one."""
    server = left_behind((f"{PARENT}.b.000009", 9500), (f"{CHILD}.b.000001", 400))
    server.answers = {**note_of(ANONYMOUS, MARK), **server.answers}
    parent = like(documents.LINEAGE, id=PARENT)
    child = like(documents.LINEAGE, id=CHILD, parent=documents.parent_of(PARENT))
    found = Standing(target_of(ANONYMOUS, server)).start("x", [child, parent])
    assert found == Start(position=FilePosition(BinlogName.parse("b.000001"), 400), lineage=CHILD)


def test_where_a_mariadb_says() -> None:
    """Once it is told its position, that counts, and not the note."""
    mark = {**MARK, "reached": "its GTIDs"}
    found = standing(MARIADB, mark, position="0-1-7").start("x", ())
    assert found == Start(gtids=MariadbGtidList.parse("0-1-7"))
    mark = {**MARK, "reached": f"its GTIDs of {LINEAGE}"}
    found = standing(MARIADB, mark, position="0-1-7").start("x", ())
    assert found == Start(gtids=MariadbGtidList.parse("0-1-7"), lineage=LINEAGE)


def test_nothing_is_applied_twice() -> None:
    """Another beginning than where it stands is refused, and the right one is named."""
    one = standing(ANONYMOUS, MARK)
    asked = Start(position=FilePosition(BinlogName.parse("b.000002"), 4))
    with pytest.raises(RecoveryError, match=r"is at .*b\.000002:400") as caught:
        one.check(pitr_examples.PLAN, asked, allow_non_transactional=False)
    assert "--from-position 400" in caught.value.hint
    same = Start(position=FilePosition(BinlogName.parse("b.000002"), 400))
    one.check(pitr_examples.PLAN, same, allow_non_transactional=False)


@pytest.mark.parametrize("facts", [FACTS, ANONYMOUS])
def test_tables_that_a_crash_tears(facts: TargetFacts) -> None:
    """Refused where the target was started again since; not where it ran on, nor by permission."""
    torn = replace(facts, not_transactional=MYISAM)
    start = Start(position=FilePosition(BinlogName.parse("b.000002"), 400))
    with pytest.raises(RecoveryError, match=r"restarted since.*shop\.old") as caught:
        standing(torn, MARK, up_seconds=60).check(
            pitr_examples.PLAN, start, allow_non_transactional=False
        )
    assert "--allow-non-transactional" in caught.value.hint
    done = replace(pitr_examples.PLAN, pieces=())  # the target went on by itself
    with pytest.raises(RecoveryError, match=r"restarted since.*shop\.old"):
        standing(torn, MARK, up_seconds=60).check(done, start, allow_non_transactional=False)
    standing(torn, MARK, up_seconds=60).check(
        pitr_examples.PLAN, start, allow_non_transactional=True
    )
    standing(torn, MARK).check(pitr_examples.PLAN, start, allow_non_transactional=False)
    standing(torn, None, up_seconds=60).check(
        pitr_examples.PLAN, start, allow_non_transactional=False
    )


def test_settings_that_a_killed_run_changed_are_restored() -> None:
    """Those of the note that have changed; a name that no run changes is ignored."""
    note = "slave_parallel_threads=0,slave_ddl_exec_mode=IDEMPOTENT,general_log=ON"
    server = FakeServer(
        {
            **note_of(MARIADB, {**MARK, "settings": note}),
            "@@global.slave_parallel_threads AS": [{"it": 0}],
            "@@global.slave_ddl_exec_mode AS": [{"it": "STRICT"}],
        }
    )
    Standing(target_of(MARIADB, server)).put_away()
    assert [one for one in server.asked if one.startswith("SET @@global")] == [
        "SET @@global.slave_ddl_exec_mode = %s"
    ]
