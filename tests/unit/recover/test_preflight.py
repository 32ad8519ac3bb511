"""Why a target is refused, and what to warn of; each is named with what to do."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList
from binlog2s3.config.pitr import Address
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Plan, PlanPiece
from binlog2s3.recover.preflight import obstacles, problems, warnings
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.login import Login
from lab import pitr_examples
from tests.login import ROOT
from tests.unit.recover.fake_server import fake
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


def found(
    settings: Mapping[str, str] = FINE,
    facts: TargetFacts = FACTS,
    plan: Plan = PLAN,
    *,
    state: str | None = None,
    **answers: list[dict[str, object]],
) -> list[RecoveryError]:
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
    assert len({str(one) for one in said}) >= 1
    assert all(named in str(one) for one in said)
    assert all(one.hint for one in said)


@pytest.mark.parametrize(
    ("name", "value", "version", "todo"),
    [
        ("replica_exec_mode", "IDEMPOTENT", "9.7.4", "SET GLOBAL replica_exec_mode = 'STRICT'"),
        ("slave_exec_mode", "IDEMPOTENT", "8.0.25", "SET GLOBAL slave_exec_mode = 'STRICT'"),
        ("sql_replica_skip_counter", "1", "9.7.4", "SET GLOBAL sql_replica_skip_counter = 0"),
        ("init_replica", "DO 1", "9.7.4", "SET GLOBAL init_replica = ''"),
        ("slave_skip_errors", "all", "5.7.44", "remove slave_skip_errors from the server's conf"),
        ("replica_skip_errors", "all", "9.7.4", "remove replica_skip_errors from the server's "),
    ],
)
def test_what_to_do_about_a_setting(name: str, value: str, version: str, todo: str) -> None:
    """The statement that this version takes, or a restart, if that is what it needs."""
    facts = replace(FACTS, version=version)
    plan = replace(PLAN, server_version=version)
    said = [one for one in found({**FINE, name: value}, facts, plan) if name in str(one.hint)]
    assert said
    assert all(str(one.hint).startswith(todo) for one in said)


def test_a_server_id_of_the_history() -> None:
    """A replica passes over its own events."""
    (said,) = found(facts=replace(FACTS, server_id=1))
    assert "server_id, 1," in str(said)


def test_transactions_without_gtids() -> None:
    """gtid_mode=ON takes none."""
    (said,) = found(plan=plan_of("", 3))
    assert "cannot be a replica: 3 of the transactions have no GTID" in str(said)
    assert found({**FINE, "gtid_mode": "ON_PERMISSIVE"}, plan=plan_of("", 3)) == []


def test_a_version_that_cannot_read_it() -> None:
    """Tags are from 8.3 on; before 5.7 there are no channels; no older series is supported."""
    tagged = replace(plan_of(f"{UUID_A}:tag:1-5", 5), server_version="8.0.36")
    (said,) = found(facts=replace(FACTS, version="8.0.36"), plan=tagged)
    assert "tags" in str(said)
    (said,) = found(facts=replace(FACTS, version="5.6.51"))
    assert "5.6.51" in str(said)
    newer = replace(PLAN, server_version="9.7.4")
    (said,) = found(facts=replace(FACTS, version="8.0.36"), plan=newer)
    assert "8.0.36" in str(said)
    assert "9.7.4" in str(said)
    assert "--output-dir" in said.hint
    assert found(facts=replace(FACTS, version="9.7.1"), plan=newer) == []
    older = replace(PLAN, server_version="8.0.36")
    assert found(facts=replace(FACTS, version="9.7.1"), plan=older) == []
    for target, source, fits in (
        ("26.7.0", "9.7.4", True), ("9.7.4", "26.7.0", False), ("26.7.2", "26.7.0", True),
        ("26.10.0", "26.7.0", True), ("26.7.0", "26.10.0", False),
    ):  # fmt: skip
        calendar = replace(PLAN, server_version=source)
        assert (found(facts=replace(FACTS, version=target), plan=calendar) == []) is fits
    tagged = replace(tagged, server_version="26.7.0")
    assert found(facts=replace(FACTS, version="26.7.0"), plan=tagged) == []


def test_a_member_of_a_group() -> None:
    """Group Replication would have it somewhere else."""
    (said,) = found(replication_group_members=[{"1": 1}])
    assert "group" in str(said)


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
    (said,) = found({}, MARIADB, plan_of("0-1-5", 5, "mariadb"), **answers)
    assert "Aria" in str(said)
    assert "ENGINE=InnoDB" in said.hint


# What a target is, whatever is planned


def refusals(
    found: TargetFacts = FACTS,
    login: Login = LOGIN,
    *,
    address: Address | None = None,
    allow_source: bool = False,
    stop_threads: bool = False,
    start_is_told: bool = True,
    is_scratch: bool = False,
) -> list[RecoveryError]:
    return list(
        problems(
            found,
            login,
            flavour="mysql",
            server_uuids=[UUID_A],
            source_address=address,
            allow_source=allow_source,
            stop_threads=stop_threads,
            start_is_told=start_is_told,
            is_scratch=is_scratch,
        )
    )


def test_a_target_that_may_be_written_to() -> None:
    """No reason to refuse it, and nothing to warn of."""
    assert refusals() == []
    assert warnings(FACTS, server_version="9.7.4") == []


def test_the_source_or_a_copy_of_it() -> None:
    """Its uuid is that of a server in the bucket; the hint says what to do with a copy."""
    (error,) = refusals(replace(FACTS, uuid=UUID_A.upper()))
    assert "is the source, or a copy of its data directory" in str(error)
    assert "auto.cnf" in error.hint
    assert error.exit_code == 8
    assert refusals(replace(FACTS, uuid=UUID_A), allow_source=True) == []


@pytest.mark.parametrize(
    ("login", "address", "same"),
    [
        ({}, Address(host="127.0.0.1", port=3307, socket=None), True),
        ({}, Address(host="localhost", port=3307, socket=None), True),
        ({"host": "localhost"}, Address(host=None, port=3307, socket=None), True),
        ({"host": "::1"}, Address(host="localhost", port=3307, socket=None), True),
        ({}, Address(host="127.0.0.1", port=3306, socket=None), False),
        ({}, Address(host="127.0.0.2", port=3307, socket=None), False),
        ({"port": 3306}, Address(host="127.0.0.1", port=None, socket=None), True),
        ({"host": "no-such-host.invalid"}, Address(host="NO-such-host.invalid", port=3307,
                                                   socket=None), True),
        ({"socket": "/run/a.sock"}, Address(host=None, port=None, socket=Path("/run/a.sock")),
         True),
        ({"socket": "/run/x/../a.sock"}, Address(host=None, port=None, socket=Path("/run/a.sock")),
         True),
        ({"socket": "/run/b.sock"}, Address(host=None, port=None, socket=Path("/run/a.sock")),
         False),
        ({"socket": "/run/b.sock"}, Address(host="127.0.0.1", port=3307, socket=None), False),
        ({}, Address(host=None, port=None, socket=Path("/run/a.sock")), False),
    ],
)  # fmt: skip
def test_the_sources_own_address(login: dict[str, object], address: Address, same: bool) -> None:
    """Where the streamer's configuration has the source, whatever name it is called by."""
    given = replace(LOGIN, **login)  # type: ignore[arg-type]
    found = refusals(login=given, address=address)
    assert [("is the source of the streamer's configuration" in str(one)) for one in found] == [
        True
    ] * same
    assert refusals(login=given, address=address, allow_source=True) == []


def test_a_target_that_is_read_only() -> None:
    """Either way."""
    assert "(read_only is ON)" in str(refusals(replace(FACTS, read_only=True))[0])
    assert "(super_read_only is ON)" in str(refusals(replace(FACTS, super_read_only=True))[0])


@pytest.mark.parametrize(
    ("flavour", "name"), [("mysql", "transaction_read_only"), ("mariadb", "tx_read_only")]
)
def test_a_target_whose_transactions_are_read_only(flavour: Flavour, name: str) -> None:
    """Another setting than read_only: nothing could be written, and the first one would fail."""
    version = "9.7.4" if flavour == "mysql" else "10.11.2-MariaDB"
    found = replace(FACTS, flavour=flavour, version=version, transaction_read_only=True)
    (error,) = problems(found, LOGIN, flavour=flavour, server_uuids=[])
    assert f"({name} is ON)" in str(error)
    assert error.hint.endswith(f"SET GLOBAL {name} = OFF")


def test_a_target_that_writes_statements_only() -> None:
    """Row events stop it, at the first one; binlogs of statements do not."""
    (warning,) = warnings(replace(FACTS, binlog_format="STATEMENT"), server_version="9")
    assert "SET GLOBAL binlog_format = ROW" in warning
    silent = replace(FACTS, binlog_format="STATEMENT", log_bin=False)
    assert not warnings(silent, server_version="9")


def test_a_target_that_others_write_to() -> None:
    """Events and replica threads come in between, unless they may be stopped."""
    busy = replace(FACTS, event_scheduler=True, channels=("", "other"))
    first, second = refusals(busy)
    assert "event scheduler" in str(first)
    assert "channel: the default one, 'other'" in str(second)
    assert "--stop-target-threads" in first.hint
    assert refusals(busy, stop_threads=True) == []


def test_a_target_of_the_other_flavour() -> None:
    """Binlogs do not go from one to the other."""
    (error,) = refusals(replace(FACTS, flavour="mariadb", version="10.11.2-MariaDB"))
    assert "is MariaDB 10.11.2-MariaDB; the binlogs are MySQL's" in str(error)


def test_an_account_that_could_not_do_it() -> None:
    """What it lacks is named."""
    (error,) = refusals(replace(FACTS, missing_privileges=("REPLICATION CLIENT",)))
    assert "'me' at the target is missing the privilege REPLICATION CLIENT" in str(error)
    assert "GRANT REPLICATION CLIENT, " in error.hint


def test_all_problems_of_a_target_at_once() -> None:
    """One look shows everything."""
    worst = replace(
        FACTS, uuid=UUID_A, read_only=True, event_scheduler=True, missing_privileges=("X",)
    )
    assert len(refusals(worst)) == 4


def test_what_the_operator_should_know() -> None:
    """An older server; tables without transactions; a binlog that will not have it."""
    old = warnings(MARIADB, server_version="11.4.5-MariaDB")
    assert "10.11.6-MariaDB, older than the binlogs' 11.4.5-MariaDB" in old[0]
    assert not warnings(MARIADB, server_version="10.11.2-MariaDB")
    several = tuple(f"a.t\x1b{number} (MyISAM)" for number in range(5))
    (said,) = warnings(replace(FACTS, not_transactional=several), server_version="9")
    assert "5 tables without transactions: a.t\\x1b0 (MyISAM), " in said
    assert " and 2 more;" in said
    (said,) = warnings(replace(FACTS, not_transactional=several[:1]), server_version="9")
    assert said.startswith("the target has 1 table without transactions: a.t")
    quiet = replace(FACTS, logs_replicated=False)
    assert "log_replica_updates is OFF" in warnings(quiet, server_version="9")[0]
    assert not warnings(replace(quiet, log_bin=False), server_version="9")


def test_a_scratch_server_has_no_replicas() -> None:
    """And nobody keeps its tables; what may stop the apply is told there, too."""
    scratch = replace(
        FACTS, logs_replicated=False, not_transactional=("a.t",), binlog_format="STATEMENT"
    )
    assert len(warnings(scratch, server_version="9")) == 3
    (said,) = warnings(scratch, server_version="9", is_scratch=True)
    assert "binlog_format" in said


def test_a_server_that_checks_no_accounts() -> None:
    """A flush would put them in force, and without one account statements are refused there."""
    (error,) = refusals(replace(FACTS, checks_accounts=False))
    assert "--skip-grant-tables" in str(error)
    assert "--init-file" in error.hint


def test_functions_that_are_not_loaded() -> None:
    """Refused by name; for a scratch server it is a warning, as it may not have the libraries."""
    facts = replace(FACTS, unloaded=("f", "g"))
    (error,) = refusals(facts)
    assert "mysql.func: f, g;" in str(error)
    assert "restart it" in error.hint
    assert refusals(facts, is_scratch=True) == []
    assert warnings(facts, server_version="9.7.4") == []
    (told,) = warnings(facts, server_version="9.7.4", is_scratch=True)
    assert told == str(error)


def test_tables_without_gtids() -> None:
    """Asked about, unless the operator said where the base backup ends, or no GTIDs are kept."""
    facts = replace(FACTS, tables=3)
    (error,) = refusals(facts, start_is_told=False)
    assert "has 3 tables but no GTIDs: was --from-backup forgotten?" in str(error)
    assert refusals(facts) == []
    assert refusals(replace(facts, tables=0), start_is_told=False) == []
    has = replace(facts, executed=GtidSet.parse(f"{UUID_A}:1"))
    assert refusals(has, start_is_told=False) == []
    assert refusals(replace(facts, executed=None), start_is_told=False) == []
