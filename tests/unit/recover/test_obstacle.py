"""What keeps a target from replicating a plan exactly; each is named with what to do."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.recover.model import Piece, Plan
from binlog2s3.recover.obstacle import Obstacle, obstacles
from binlog2s3.recover.target import TargetFacts
from lab import pitr_examples
from tests.unit.recover.fake_server import fake
from tests.unit.recover.test_target import FACTS, UUID_A

MARIADB = replace(FACTS, flavour="mariadb", version="10.11.6-MariaDB", executed=None)
FINE = {"gtid_mode": "ON", "innodb_flush_log_at_trx_commit": "1"}


def plan_of(gtids: str, transactions: int, flavour: str = "mysql") -> Plan:
    parsed = GtidSet.parse(gtids) if flavour == "mysql" else MariadbGtidList.parse(gtids)
    piece: Piece = replace(pitr_examples.PLAN.pieces[0], gtids=parsed, transactions=transactions)
    return replace(pitr_examples.PLAN, pieces=(piece,))


PLAN = plan_of(f"{UUID_A}:1-5", 5)


def found(
    settings: Mapping[str, str] = FINE,
    facts: TargetFacts = FACTS,
    plan: Plan = PLAN,
    *,
    state: str | None = None,
    **answers: list[dict[str, object]],
) -> list[Obstacle]:
    rows = [{"Variable_name": name, "Value": value} for name, value in settings.items()]
    server = fake({"SHOW GLOBAL VARIABLES": rows, **answers})
    begins = MariadbGtidList.parse(state) if state is not None else None
    return list(obstacles(server, facts, plan, server_ids={1}, state=begins))


def test_nothing_stands_against_it() -> None:
    """As servers are set by themselves."""
    assert found() == []
    assert found({}, MARIADB, plan_of("0-1-5", 5, "mariadb")) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"innodb_flush_log_at_trx_commit": "0"}, "innodb_flush_log_at_trx_commit"),
        ({"replica_skip_errors": "1062"}, "replica_skip_errors"),
        ({"slave_skip_errors": "1062"}, "skip_errors"),
        ({"replica_exec_mode": "IDEMPOTENT"}, "exec_mode"),
        ({"sql_replica_skip_counter": "1"}, "skip_counter"),
        ({"relay_log_info_repository": "FILE"}, "relay_log_info_repository"),
        ({"init_replica": "SET @a = 1"}, "init_replica"),
        ({"replicate_do_db": "shop"}, "replicate_do_db"),
        ({"replica_checkpoint_period": "5000"}, "5000 ms"),
        ({"gtid_mode": "OFF"}, "gtid_mode is OFF"),
    ],
)
def test_a_setting(settings: dict[str, str], named: str) -> None:
    """Named, and nothing besides."""
    said = found({**FINE, **settings})
    assert len({one.why for one in said}) >= 1
    assert all(named in one.why for one in said)
    assert all(one.hint for one in said)


def test_a_server_id_of_the_history() -> None:
    """A replica passes over its own events."""
    (said,) = found(facts=replace(FACTS, server_id=1))
    assert "server_id, 1," in said.why


def test_transactions_without_gtids() -> None:
    """gtid_mode=ON takes none."""
    (said,) = found(plan=plan_of("", 3))
    assert said.why.startswith("3 of the transactions have no GTID")
    assert found({**FINE, "gtid_mode": "ON_PERMISSIVE"}, plan=plan_of("", 3)) == []


def test_a_version_that_cannot_read_it() -> None:
    """Tags are from 8.3 on; before 5.7 there are no channels."""
    tagged = plan_of(f"{UUID_A}:tag:1-5", 5)
    (said,) = found(facts=replace(FACTS, version="8.0.36"), plan=tagged)
    assert "tags" in said.why
    (said,) = found(facts=replace(FACTS, version="5.6.51"))
    assert "5.6.51" in said.why


def test_a_member_of_a_group() -> None:
    """Group Replication would have it somewhere else."""
    (said,) = found(replication_group_members=[{"1": 1}])
    assert "group" in said.why


@pytest.mark.parametrize(
    ("own", "begins", "is_ahead"),
    [
        ("0-2-9", "0-1-4", True),
        ("0-2-4", "0-1-4", False),
        ("1-2-9", "0-1-4", False),
        ("0-2-1", None, True),
    ],
)
def test_mariadb_strict_mode(own: str, begins: str | None, is_ahead: bool) -> None:
    """It refuses a number that is not greater than its own last one in that domain."""
    settings = {"gtid_strict_mode": "ON", "gtid_binlog_pos": own}
    said = found(settings, MARIADB, plan_of("0-1-9", 5, "mariadb"), state=begins)
    assert bool(said) is is_ahead
    assert found({**settings, "gtid_strict_mode": "OFF"}, MARIADB, state=begins) == []


@pytest.mark.parametrize("strict", ["ON", "OFF"])
def test_mariadb_applies_nothing_twice(strict: str) -> None:
    """An earlier run came to its end: the same command would begin again at the base backup."""
    settings = {"gtid_strict_mode": strict, "gtid_binlog_pos": "0-1-9"}
    plan = plan_of("0-1-9", 5, "mariadb")
    (said,) = found(settings, MARIADB, plan, state="0-1-4")
    assert "0-1-9 already" in said.why
    assert said.hint.startswith("restore the base backup again")
    assert found(settings, MARIADB, plan, state="0-1-9") == []


def test_mariadb_keeps_its_place_with_the_rows() -> None:
    """In InnoDB, or a crash tears them apart."""
    answers = {"gtid": [{"name": "gtid_slave_pos", "engine": "Aria"}]}
    (said,) = found({}, MARIADB, plan_of("0-1-5", 5, "mariadb"), **answers)
    assert "Aria" in said.why
    assert "ENGINE=InnoDB" in said.hint
