"""What stands against a target, and the proof at the end."""

from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList
from binlog2s3.config.pitr import Address
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.target import TargetFacts, problems, prove, warnings
from binlog2s3.server.login import Login
from tests.login import ROOT

UUID_A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
UUID_B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
LOGIN = replace(ROOT, port=3307, user="me", connect_timeout=5.0, prefix="target")
FACTS = TargetFacts(
    address="127.0.0.1:3307",
    uuid=UUID_B,
    flavour="mysql",
    version="9.7.4-2",
    server_id=2,
    gtid_mode=True,
    executed=GtidSet(),
    log_bin=True,
    read_only=False,
    super_read_only=False,
    event_scheduler=False,
    channels=(),
)


def refusals(
    found: TargetFacts = FACTS,
    login: Login = LOGIN,
    *,
    address: Address | None = None,
    allow_source: bool = False,
    stop_threads: bool = False,
) -> list[RecoveryError]:
    return problems(
        found,
        login,
        flavour="mysql",
        server_uuids=[UUID_A],
        source_address=address,
        allow_source=allow_source,
        stop_threads=stop_threads,
    )


def test_a_target_that_may_be_written_to() -> None:
    """Nothing stands against it, and nothing is to be said."""
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
    assert [("where the streamer's configuration has" in str(one)) for one in found] == [
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
    (error,) = refusals(replace(FACTS, lacks=("REPLICATION CLIENT",)))
    assert "'me' at the target lacks REPLICATION CLIENT" in str(error)
    assert "GRANT REPLICATION CLIENT, " in error.hint


def test_all_that_stands_against_it_at_once() -> None:
    """One look shows everything."""
    worst = replace(FACTS, uuid=UUID_A, read_only=True, event_scheduler=True, lacks=("X",))
    assert len(refusals(worst)) == 4


def test_what_the_operator_should_know() -> None:
    """An older server; tables without transactions; a binlog that will not have it."""
    old = warnings(replace(FACTS, version="8.0.36"), server_version="9.7.4-2")
    assert "8.0.36, older than the binlogs' 9.7.4-2" in old[0]
    assert not warnings(replace(FACTS, version="9.7.1"), server_version="9.7.4")
    several = tuple(f"a.t\x1b{number} (MyISAM)" for number in range(5))
    (said,) = warnings(replace(FACTS, not_transactional=several), server_version="9")
    assert "5 tables without transactions: a.t\\x1b0 (MyISAM), " in said
    assert " and 2 more;" in said
    quiet = replace(FACTS, logs_replicated=False)
    assert "log_replica_updates is OFF" in warnings(quiet, server_version="9")[0]
    assert not warnings(replace(quiet, log_bin=False), server_version="9")


# The proof


def test_the_gtids_are_those_of_the_plan() -> None:
    """However they are written."""
    prove(GtidSet.parse(f"{UUID_A}:1-3:5"), GtidSet.parse(f"{UUID_A}:5:1:2:3"))


def test_what_differs_is_named() -> None:
    """What is missing, what is there besides, and whose that is."""
    expected = GtidSet.parse(f"{UUID_A}:1-10:blue:1-2")
    with pytest.raises(RecoveryError, match=f"it lacks {UUID_A}:9-10:blue:2$") as caught:
        prove(GtidSet.parse(f"{UUID_A}:1-8:blue:1"), expected)
    assert "the same command again" in caught.value.hint
    found = GtidSet.parse(f"{UUID_A}:1-11:blue:1-2,{UUID_B}:1")
    with pytest.raises(RecoveryError, match=f"it has {UUID_A}:11,{UUID_B}:1 besides") as caught:
        prove(found, expected, own_uuid=UUID_B.upper())
    assert "its own transactions" in caught.value.hint
    with pytest.raises(RecoveryError, match=r"it lacks .* and it has .* besides"):
        prove(GtidSet.parse(f"{UUID_B}:1"), expected)


def test_gtids_of_the_other_flavour_prove_nothing() -> None:
    """They are never equal."""
    with pytest.raises(RecoveryError, match="0-1-5"):
        prove(MariadbGtidList.parse("0-1-5"), GtidSet.parse(f"{UUID_A}:1"))
