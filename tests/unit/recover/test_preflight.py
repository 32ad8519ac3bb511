"""Why a target is refused, and what to warn of; each is named with what to do."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.config.goal import Latest
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.config.stream import MysqlConfig, S3Config
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Plan, PlanPiece
from binlog2s3.recover.preflight import obstacles, problems, warnings
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.login import Login
from lab import pitr_examples
from tests.login import ROOT
from tests.unit.recover.fake_server import target_of
from tests.unit.recover.test_target import FACTS, UUID_A

LOGIN = replace(ROOT, port=3307, user="me", connect_timeout=5.0, prefix="target")
MARIADB = replace(FACTS, flavour="mariadb", version="10.11.6-MariaDB", executed=None)
FINE = {"gtid_mode": "ON", "innodb_flush_log_at_trx_commit": "1"}


def plan_of(gtids: str, transactions: int, flavour: str = "mysql") -> Plan:
    parsed = GtidSet.parse(gtids) if flavour == "mysql" else MariadbGtidList.parse(gtids)
    piece: PlanPiece = replace(
        pitr_examples.PLAN.pieces[0], gtids=parsed, transactions=transactions
    )
    return replace(pitr_examples.PLAN, pieces=(piece,))


PLAN = plan_of(f"{UUID_A}:1-5", 5)
TAGGED, MARIADB_PLAN = plan_of(f"{UUID_A}:tag:1-5", 5), plan_of("0-1-5", 5, "mariadb")


def found(
    settings: Mapping[str, str] = FINE,
    facts: TargetFacts = FACTS,
    plan: Plan = PLAN,
    *,
    state: str | None = None,
    **answers: list[dict[str, object]],
) -> list[RecoveryError]:
    rows = [{"Variable_name": name, "Value": value} for name, value in settings.items()]
    said = {**answers, "SHOW GLOBAL VARIABLES LIKE": [], "SHOW GLOBAL VARIABLES": rows}
    begins = MariadbGtidList.parse(state) if state is not None else None
    plan = replace(plan, begins_behind=begins)
    return list(obstacles(target_of(facts, said), plan, server_ids={1}))


def test_nothing_stands_against_it() -> None:
    """As servers are set by themselves."""
    assert found() == []
    assert found({}, MARIADB, MARIADB_PLAN) == []
    assert refusals() == []
    assert warnings(FACTS, server_version="9.7.4") == []


@pytest.mark.parametrize(
    ("name", "value", "version", "named", "todo"),
    [
        ("innodb_flush_log_at_trx_commit", "0", "9.7.4", "innodb_flush_log_at_trx_commit", ""),
        ("relay_log_info_repository", "FILE", "9.7.4", "relay_log_info_repository", ""),
        ("master_info_repository", "FILE", "5.7.44", "master_info_repository",
         "SET GLOBAL master_info_repository = 'TABLE'"),
        ("replicate_do_db", "shop", "9.7.4", "replicate_do_db", ""),
        ("replica_checkpoint_period", "5000", "9.7.4", "5000 ms", ""),
        ("gtid_mode", "OFF", "9.7.4", "gtid_mode is OFF", ""),
        ("replica_exec_mode", "IDEMPOTENT", "9.7.4", "exec_mode",
         "SET GLOBAL replica_exec_mode = 'STRICT'"),
        ("slave_exec_mode", "IDEMPOTENT", "8.0.25", "exec_mode",
         "SET GLOBAL slave_exec_mode = 'STRICT'"),
        ("sql_replica_skip_counter", "1", "9.7.4", "skip_counter",
         "SET GLOBAL sql_replica_skip_counter = 0"),
        ("init_replica", "DO 1", "9.7.4", "init_replica", "SET GLOBAL init_replica = ''"),
        ("slave_skip_errors", "all", "5.7.44", "skip_errors",
         "remove slave_skip_errors from the server's conf"),
        ("replica_skip_errors", "1062", "9.7.4", "skip_errors",
         "remove replica_skip_errors from the server's "),
    ],
)  # fmt: skip
def test_a_setting(name: str, value: str, version: str, named: str, todo: str) -> None:
    """Named, and nothing besides; with the statement of this version, or that it needs more."""
    plan = replace(PLAN, server_version=version)
    said = found({**FINE, name: value}, replace(FACTS, version=version), plan)
    assert said
    assert all(named in str(one) and one.hint for one in said)
    assert not todo or any(one.hint.startswith(todo) for one in said)


ANONYMOUS = plan_of("", 3)


@pytest.mark.parametrize(
    ("settings", "facts", "plan", "words"),
    [
        (FINE, replace(FACTS, server_id=1), PLAN, "server_id, 1,"),
        (FINE, FACTS, ANONYMOUS, "cannot be a replica: 3 of the transactions have no GTID"),
        ({**FINE, "gtid_mode": "ON_PERMISSIVE"}, FACTS, ANONYMOUS, ""),
    ],
)
def test_a_server_id_of_the_history(
    settings: Mapping[str, str], facts: TargetFacts, plan: Plan, words: str
) -> None:
    """A replica passes over its own events; gtid_mode=ON takes no transaction without a GTID."""
    said = found(settings, facts, plan)
    assert [words in str(one) for one in said] == [True] * bool(words)


@pytest.mark.parametrize(
    ("target", "source", "plan", "words"),
    [
        ("8.0.36", "8.0.36", TAGGED, "tags"),  # from 8.3 on
        ("26.7.0", "26.7.0", TAGGED, ""),
        ("5.6.51", "9.7.0", PLAN, "5.6.51"),  # no channels before 5.7
        ("8.0.36", "9.7.4", PLAN, "9.7.4"),  # no older series is supported
        ("9.7.1", "9.7.4", PLAN, ""),
        ("9.7.1", "8.0.36", PLAN, ""),
        ("26.7.0", "9.7.4", PLAN, ""),
        ("9.7.4", "26.7.0", PLAN, "26.7.0"),
        ("26.7.2", "26.7.0", PLAN, ""),
        ("26.10.0", "26.7.0", PLAN, ""),
        ("26.7.0", "26.10.0", PLAN, "26.10.0"),
    ],
)
def test_a_version_that_cannot_read_it(target: str, source: str, plan: Plan, words: str) -> None:
    """It is named, and what can be had instead."""
    said = found(facts=replace(FACTS, version=target), plan=replace(plan, server_version=source))
    assert [words in str(one) for one in said] == [True] * bool(words)
    assert all(target in str(one) or words == "tags" for one in said)
    assert words != "9.7.4" or "--output-dir" in said[0].hint


@pytest.mark.parametrize(
    ("facts", "plan"), [(FACTS, PLAN), (MARIADB, MARIADB_PLAN)], ids=["XtraDB Cluster", "MariaDB"]
)
@pytest.mark.parametrize(
    ("switch", "connected", "refused"),
    [("ON", "ON", True), ("OFF", "ON", True), ("ON", "OFF", True), ("OFF", "OFF", False)],
)
def test_a_node_of_galera(
    facts: TargetFacts, plan: Plan, switch: str, connected: str, refused: bool
) -> None:
    """Also after SET GLOBAL wsrep_on = OFF, which leaves it in the cluster; of both flavours."""
    settings = {**(FINE if facts is FACTS else {}), "wsrep_on": switch}
    answers: dict[str, list[dict[str, object]]] = {
        "LIKE 'wsrep_on'": [{"Value": switch}],
        "LIKE 'wsrep_connected'": [{"Value": connected}],
    }
    said = found(settings, facts, plan, **answers)
    assert ["in a Galera cluster" in str(one) for one in said] == [True] * refused


def test_a_member_of_a_group() -> None:
    """Group Replication would have it somewhere else."""
    (said,) = found(replication_group_members=[{"1": 1}])
    assert "group" in str(said)


@pytest.mark.parametrize(
    ("own", "begins", "is_ahead"),
    [("0-2-9", "0-1-4", True), ("0-2-4", "0-1-4", False), ("1-2-9", "0-1-4", False),
     ("0-2-1", None, True)],
)  # fmt: skip
def test_mariadb_strict_mode(own: str, begins: str | None, is_ahead: bool) -> None:
    """It refuses a number that is not greater than its own last one in that domain."""
    settings = {"gtid_strict_mode": "ON", "gtid_binlog_pos": own}
    said = found(settings, MARIADB, plan_of("0-1-9", 5, "mariadb"), state=begins)
    assert bool(said) is is_ahead
    assert all(f"its own binary log ends with {own}: it refuses" in str(one) for one in said)
    assert found({**settings, "gtid_strict_mode": "OFF"}, MARIADB, state=begins) == []


@pytest.mark.parametrize("strict", ["ON", "OFF"])
def test_mariadb_applies_nothing_twice(strict: str) -> None:
    """An earlier run came to its end: the same command would begin again at the base backup."""
    settings = {"gtid_strict_mode": strict, "gtid_binlog_pos": "0-1-9"}
    plan = plan_of("0-1-9", 5, "mariadb")
    (said,) = found(settings, MARIADB, plan, state="0-1-4")
    assert "0-1-9 already" in str(said)
    assert said.hint.startswith("restore the base backup again")
    assert found(settings, MARIADB, plan, state="0-1-9") == []


def test_mariadb_keeps_its_place_with_the_rows() -> None:
    """In InnoDB, or a crash tears them apart."""
    answers = {"gtid": [{"name": "gtid_slave_pos", "engine": "Aria"}]}
    (said,) = found({}, MARIADB, MARIADB_PLAN, **answers)
    assert "Aria" in str(said)
    assert "ENGINE=InnoDB" in said.hint


# What a target is, whatever is planned


NO_START = {"from_gtid_set": None}


def refusals(found: TargetFacts = FACTS, login: Login = LOGIN, **more: Any) -> list[RecoveryError]:
    usual = {"flavour": "mysql", "server_uuids": [UUID_A]}
    own = {name: more.pop(name) for name in ("flavour", "is_scratch") if name in more}
    config = PitrConfig(
        s3=S3Config(bucket="b", prefix="p"), source="orders", goal=Latest(),
        **{"from_gtid_set": "0-1-5", **more},
    )  # fmt: skip
    return list(problems(found, login, config, **{**usual, **own}))


@pytest.mark.parametrize(
    ("changes", "more", "words", "hint"),
    [
        ({"read_only": True}, {}, ["(read_only is ON)"], ""),
        ({"super_read_only": True}, {}, ["(super_read_only is ON)"], ""),
        # another setting than read_only: nothing could be written, and the first one would fail
        ({"transaction_read_only": True}, {}, ["(transaction_read_only is ON)"],
         "SET GLOBAL transaction_read_only = OFF"),
        ({"flavour": "mariadb", "version": "10.11.2-MariaDB", "transaction_read_only": True},
         {"flavour": "mariadb"}, ["(tx_read_only is ON)"], "SET GLOBAL tx_read_only = OFF"),
        # events and replica threads come in between, unless they may be stopped
        ({"event_scheduler": True, "channels": ("", "other")}, {},
         ["event scheduler", "channel: the default one, 'other'"], "--stop-target-threads"),
        ({"event_scheduler": True, "channels": ("", "other")}, {"stop_target_threads": True}, [],
         ""),
        ({"flavour": "mariadb", "version": "10.11.2-MariaDB"}, {},
         ["is MariaDB 10.11.2-MariaDB; the binlogs are MySQL's"], ""),
        ({"missing_privileges": ("REPLICATION CLIENT",)}, {},
         ["'me' at the target is missing the privilege REPLICATION CLIENT"],
         "GRANT REPLICATION CLIENT, "),
        # a flush would put accounts in force, and without one statements are refused there
        ({"checks_accounts": False}, {}, ["--skip-grant-tables"], "--init-file"),
        # functions that are not loaded; a scratch server may not have their libraries
        ({"unloaded": ("f", "g")}, {}, ["mysql.func: f, g;"], "restart it"),
        ({"unloaded": ("f", "g")}, {"is_scratch": True}, [], ""),
        # unless the operator said where the base backup ends, or no GTIDs are kept
        ({"tables": 3}, NO_START,
         ["has 3 tables but no GTIDs: was --from-backup forgotten?"], ""),
        ({"tables": 3}, {}, [], ""),
        ({"tables": 0}, NO_START, [], ""),
        ({"tables": 3, "executed": GtidSet.parse(f"{UUID_A}:1")}, NO_START, [], ""),
        ({"tables": 3, "executed": None}, NO_START, [], ""),
    ],
)  # fmt: skip
def test_what_a_target_may_not_be(
    changes: dict[str, Any], more: dict[str, Any], words: list[str], hint: str
) -> None:
    """Each is named, with what to do."""
    said = refusals(replace(FACTS, **changes), **more)
    assert len(said) == len(words)
    assert all(word in str(one) for word, one in zip(words, said, strict=True))
    assert not said or hint in said[0].hint


def test_the_source_or_a_copy_of_it() -> None:
    """Its uuid is that of a server in the bucket; the hint says what to do with a copy."""
    (error,) = refusals(replace(FACTS, uuid=UUID_A.upper()))
    assert "is the source, or a copy of its data directory" in str(error)
    assert "auto.cnf" in error.hint
    assert error.exit_code == 8
    assert refusals(replace(FACTS, uuid=UUID_A), allow_source=True) == []


SOCKET = MysqlConfig(socket=Path("/run/a.sock"))


def at(host: str | None, port: int | None) -> MysqlConfig:
    return MysqlConfig(host=host, port=port)


@pytest.mark.parametrize(
    ("login", "address", "same"),
    [
        ({}, at("127.0.0.1", 3307), True),
        ({}, at("localhost", 3307), True),
        ({"host": "localhost"}, at(None, 3307), True),
        ({"host": "::1"}, at("localhost", 3307), True),
        ({}, at("127.0.0.1", 3306), False),
        ({}, at("127.0.0.2", 3307), False),
        ({"port": 3306}, at("127.0.0.1", None), True),
        ({"host": "no-such-host.invalid"}, at("NO-such-host.invalid", 3307), True),
        ({"socket": "/run/a.sock"}, SOCKET, True),
        ({"socket": "/run/x/../a.sock"}, SOCKET, True),
        ({"socket": "/run/b.sock"}, SOCKET, False),
        ({"socket": "/run/b.sock"}, at("127.0.0.1", 3307), False),
        ({}, SOCKET, False),
    ],
)
def test_the_sources_own_address(login: dict[str, Any], address: MysqlConfig, same: bool) -> None:
    """Where the streamer's configuration has the source, whatever name it is called by."""
    given, said = replace(LOGIN, **login), "is the source of the streamer's configuration"
    found = refusals(login=given, source_address=address)
    assert [said in str(one) for one in found] == [True] * same
    assert refusals(login=given, source_address=address, allow_source=True) == []


def test_all_problems_of_a_target_at_once() -> None:
    """One look shows everything."""
    worst = replace(
        FACTS, uuid=UUID_A, read_only=True, event_scheduler=True, missing_privileges=("X",)
    )
    assert len(refusals(worst)) == 4


MYISAM = tuple(f"a.t\x1b{number} (MyISAM)" for number in range(5))
STATEMENTS = {"binlog_format": "STATEMENT"}
UNLOGGED = {"logs_replicated": False}


@pytest.mark.parametrize(
    ("facts", "changes", "source", "words"),
    [
        (MARIADB, {}, "11.4.5-MariaDB",
         "10.11.6-MariaDB, older than the binlogs' 11.4.5-MariaDB"),
        (MARIADB, {}, "10.11.2-MariaDB", ""),
        (FACTS, {"not_transactional": MYISAM}, "9",
         "5 tables without transactions: a.t\x1b0 (MyISAM), "),
        (FACTS, {"not_transactional": MYISAM}, "9", " and 2 more;"),
        (FACTS, {"not_transactional": MYISAM[:1]}, "9",
         "the target has 1 table without transactions: a.t"),
        (FACTS, UNLOGGED, "9", "log_replica_updates is OFF"),
        (FACTS, {**UNLOGGED, "log_bin": False}, "9", ""),
        # row events stop it, at the first one; binlogs of statements do not
        (FACTS, STATEMENTS, "9", "SET GLOBAL binlog_format = ROW"),
        (FACTS, {**STATEMENTS, "log_bin": False}, "9", ""),
        (FACTS, {"unloaded": ("f", "g")}, "9.7.4", ""),
    ],
)  # fmt: skip
def test_what_the_operator_should_know(
    facts: TargetFacts, changes: dict[str, Any], source: str, words: str
) -> None:
    """An older server; tables without transactions; a binlog that will not have it."""
    said = warnings(replace(facts, **changes), server_version=source)
    assert [words in one for one in said] == [True] * bool(words)


def test_a_scratch_server_has_no_replicas() -> None:
    """And nobody keeps its tables; what may stop the apply is told there, too."""
    scratch = replace(FACTS, **UNLOGGED, **STATEMENTS, not_transactional=("a.t",))
    assert len(warnings(scratch, server_version="9")) == 3
    (said,) = warnings(scratch, server_version="9", is_scratch=True)
    assert "binlog_format" in said
    facts = replace(FACTS, unloaded=("f", "g"))
    (error,) = refusals(facts)
    assert warnings(facts, server_version="9.7.4", is_scratch=True) == [str(error)]
