"""The words in which a target of each version is spoken to."""

from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.recover.channel import channel_of
from binlog2s3.recover.listen import Certificate, Listen
from binlog2s3.recover.model import BinlogPosition
from binlog2s3.recover.target import TargetFacts
from binlog2s3.replication.login import Account
from binlog2s3.server.version import ServerVersion
from tests.unit.recover.fake_server import FakeServer, target_of
from tests.unit.recover.test_preflight import MARIADB, PLAN, plan_of
from tests.unit.recover.test_target import FACTS

TABLES = [("shop", "orders"), ("SOURCE_shop", "REPLICA%s{}`")]
"""Names may be words of a statement, or of its form."""


@pytest.mark.parametrize("version", ["5.7.22-log", "8.0.15", "8.0.25", "8.0.26", "9.7.4", "26.7.0"])
def test_a_filter_has_the_names_as_they_are(version: str) -> None:
    """Words of the version are never looked for in a name; the filter's own are the same in all."""
    server = FakeServer({})
    channel_of(target_of(replace(FACTS, version=version), server)).filter(TABLES)
    names = "`shop`.`orders`, `SOURCE_shop`.`REPLICA%s{}```"
    said = f"CHANGE REPLICATION FILTER REPLICATE_DO_TABLE = ({names}) FOR CHANNEL 'binlog2s3'"
    assert server.asked == [said]
    assert server.values == [()]  # so a % in a name is no place for a value


@pytest.mark.parametrize("version", ["5.7.22-log", "8.0.15", "8.0.25", "8.0.26", "9.7.4", "26.7.0"])
def test_the_words_of_each_version(version: str) -> None:
    """Before 8.0.26 MASTER and SLAVE, afterwards SOURCE and REPLICA; never both."""
    server = FakeServer({"global": [{"it": 1}]})
    channel = channel_of(target_of(replace(FACTS, version=version), server))
    begin = BinlogPosition(lineage="l", binlog=BinlogName.parse("b.000001"), offset=4)
    for place in (None, begin):
        channel.create(("127.0.0.1", 1), Account("u", "p"), place, Listen())
    by_gtid, by_position = server.values
    assert by_gtid == ("127.0.0.1", 1, 0, 1, 1, 1)
    assert by_position == ("127.0.0.1", 1, 0, 1, 1, 0, "l.b.000001", 4)
    for only in (False, True):
        channel.start(Account("u", "p"), receive_only=only)
    channel.keeps_order(PLAN)
    channel.set_global(channel.workers, 4)
    channel.remove()
    said = " ".join(server.asked).upper()
    is_old = ServerVersion(version).numbers < (8, 0, 26)
    assert [word in said for word in ("MASTER", "SLAVE", "SOURCE", "REPLICA")] == [
        *[is_old] * 2,
        *[not is_old] * 2,
    ]


CERTIFICATE = Certificate(
    name="archive.example.com", cert=Path("/c"), key=Path("/k"), ca="/etc/mysql/pitr.pem"
)


@pytest.mark.parametrize(
    "facts",
    [replace(FACTS, version="5.7.22-log"), replace(FACTS, version="9.7.4"), MARIADB],
    ids=["5.7", "9.7", "mariadb"],
)
@pytest.mark.parametrize("shown", [None, CERTIFICATE])
def test_the_target_verifies_what_it_can(facts: TargetFacts, shown: Certificate | None) -> None:
    """Whom it replicates from, by the name in the certificate; without one, nothing."""
    server = FakeServer({"global": [{"it": 1}]})
    channel = channel_of(target_of(facts, server))
    listen = Listen(host="192.0.2.7", port=3307, certificate=shown)
    channel.create(("192.0.2.7", 3307), Account("u", "p"), None, listen)
    values = server.values[0]
    said = server.asked[0] % values
    assert "_SSL = 1" in said
    assert ("_SSL_VERIFY_SERVER_CERT = 1" in said) is (shown is not None)
    assert (CERTIFICATE.ca in values) is (shown is not None)
    assert values[0] == ("archive.example.com" if shown else "192.0.2.7")


PARENT, CHILD = "20260102T030405Z-4e11fa47-ffff", "20260102T030405Z-3e11fa47-0001"
"""A server may be older than the one that it replaced: ids are in no order of the history."""
STATUS = {
    "Channel_Name": "binlog2s3", "Connect_Retry": 1, "Source_Retry_Count": 1, "Source_User": "",
    "Replica_IO_Running": "No", "Replica_SQL_Running": "No", "Replica_SQL_Running_State": "",
    "Relay_Source_Log_File": f"{PARENT}.b.000009", "Exec_Source_Log_Pos": 9000,
    "Last_IO_Errno": 0, "Last_IO_Error": "", "Last_SQL_Errno": 0, "Last_SQL_Error": "",
    "Skip_Counter": 0,
}  # fmt: skip


OLD_WORDS = {
    "Channel_Name": "Connection_name", "Source_User": "Master_User",
    "Replica_IO_Running": "Slave_IO_Running", "Replica_SQL_Running": "Slave_SQL_Running",
    "Replica_SQL_Running_State": "Slave_SQL_Running_State",
    "Relay_Source_Log_File": "Relay_Master_Log_File", "Exec_Source_Log_Pos": "Exec_Master_Log_Pos",
    "Source_Retry_Count": "Master_Retry_Count",
}  # fmt: skip


@pytest.mark.parametrize("running", ["No", "Connecting", "Yes"])
@pytest.mark.parametrize("name", ["binlog2s3", "Binlog2S3", "theirs"])
def test_all_servers_tell_the_same_state(name: str, running: str) -> None:
    """MariaDB and old versions of MySQL have other words; no server tells names' cases apart."""
    row = STATUS | {
        "Channel_Name": name, "Replica_IO_Running": running, "Source_User": "binlog2s3",
        "Replica_SQL_Running_State": "Slave has read all relay log; waiting for more updates",
        "Last_SQL_Errno": 1062, "Last_SQL_Error": "a row is there", "Replicate_Do_DB": "shop",
        "Skip_Counter": 1,
    }  # fmt: skip
    old = {OLD_WORDS.get(column, column): value for column, value in row.items()}
    mariadb = {column: value for column, value in old.items() if column != "Master_Retry_Count"}
    old["Channel_Name"] = old.pop("Connection_name")
    states = [
        channel_of(target_of(facts, FakeServer({statement: [row]}))).state()
        for statement, row, facts in (
            ("SHOW REPLICA STATUS", row, FACTS),
            ("SHOW SLAVE STATUS", old, replace(FACTS, version="5.7.44")),
            ("SHOW ALL SLAVES STATUS", mariadb, MARIADB),
        )
    ]
    assert states[0] == states[1] == states[2]
    state = states[0]
    if name == "theirs":
        assert state is None
        return
    assert state is not None
    assert (state.ours, state.receives, state.applies) == (True, running != "No", False)
    assert (state.waits, state.log, state.offset) == (True, f"{PARENT}.b.000009", 9000)
    assert state.apply_error == (1062, "a row is there")
    assert state.filters == ("Replicate_Do_DB shop", "a skip counter of 1")


@pytest.mark.parametrize(
    "change", [{"Source_User": "theirs"}, {"Connect_Retry": 60}, {"Source_Retry_Count": 10}]
)
def test_a_channel_of_that_name_may_be_somebody_elses(change: dict[str, object]) -> None:
    """Whoever made it has another user, or would connect again by itself."""
    server = FakeServer({"SHOW REPLICA STATUS": [STATUS | change]})
    state = channel_of(target_of(FACTS, server)).state()
    assert state is not None
    assert not state.ours


def left_behind(*workers: tuple[str, int]) -> FakeServer:
    """A target whose stopped channel recorded a place in the parent, and its workers these."""
    rows = [{"name": name.encode(), "at": at} for name, at in workers]
    return FakeServer({"SHOW REPLICA STATUS": [STATUS], "slave_worker_info": rows})


def test_the_order_of_the_history_tells_how_far_workers_came() -> None:
    """Not that of the lineages' ids, nor that of the binlogs' names."""
    server = left_behind((f"{PARENT}.b.000009", 9500), (f"{CHILD}.b.000001", 400))
    channel = channel_of(target_of(FACTS, server))
    there = channel.reached([PARENT, CHILD])
    assert there is not None
    assert (there.lineage, str(there)) == (CHILD, "b.000001:400")
    back = channel.reached([CHILD, PARENT])
    assert back is not None
    assert (back.lineage, str(back)) == (PARENT, "b.000009:9500")


def test_a_place_of_an_unknown_lineage_is_not_passed_over() -> None:
    """What may have been applied there is not applied again."""
    server = left_behind((f"{PARENT}.b.000009", 9500), (f"{CHILD}.b.000001", 400))
    there = channel_of(target_of(FACTS, server)).reached([PARENT])
    assert there is not None
    assert there.lineage == CHILD


def test_workers_of_a_mariadb_keep_the_order_of_one_domain() -> None:
    """Where the plan has several domains, one transaction comes after the other."""
    channel = channel_of(target_of(MARIADB, FakeServer({})))
    assert channel.keeps_order(plan_of("0-1-5,0-2-7", 5, "mariadb"))
    assert not channel.keeps_order(plan_of("0-1-5,3-1-7", 5, "mariadb"))
    assert channel.one_by_one == 0
