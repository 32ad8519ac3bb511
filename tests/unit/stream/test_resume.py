"""The pilot: what it asks, what it refuses, where it says that a run begins."""

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Parent
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.config.values import MysqlConfig, StreamConfig
from binlog2s3.errors import GapError, SourceError, UnloggedError
from binlog2s3.server.connection import ServerBinlog, ServerFacts
from binlog2s3.server.version import ServerVersion
from binlog2s3.stream.compare import Common
from binlog2s3.stream.continuation import Tip
from binlog2s3.stream.resume import Doubt, Heading, Pilot, first_binlog
from binlog2s3.stream.tail import Overlap
from tests import documents
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import like, parent_of
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "orders")
LINEAGE = replace(
    documents.LINEAGE,
    first_binlog=BinlogName("b", 2),
    first_binlog_time=datetime(2026, 1, 2, tzinfo=UTC),
    gtid_set="",
)
FACTS = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.0", server_id=1, gtid_mode=True)


def name(number: int) -> BinlogName:
    return BinlogName("b", number)


def rows(*numbers: int, size: int = 100) -> tuple[ServerBinlog, ...]:
    return tuple(ServerBinlog(name=name(n), size=size, encrypted=False) for n in numbers)


def stream_config(**changes: Any) -> StreamConfig:
    """What was asked for."""
    made = StreamConfig(
        source="orders", start_binlog=None, start_at="oldest", flush_interval=0,
        heartbeat_interval=30,
    )  # fmt: skip
    return replace(made, **changes)


OVERLAP = Overlap(binlog=name(4), begin=60, end=100, crc64=5)
TIP = Tip(
    lineage=LINEAGE,
    last=name(4),
    size=100,
    closed=False,
    gtids=GtidSet.parse(f"{UUID_A}:1-9"),
    gtids_before=GtidSet.parse(f"{UUID_A}:1-7"),
    overlap=OVERLAP,
)


class Server:
    """Answers as it is told; a uuid for each time that it is asked who it is."""

    def __init__(self, listed: tuple[ServerBinlog, ...], *uuids: str, executed: str = "") -> None:
        self._listed = listed
        self._uuids = list(uuids) or [UUID_A]
        self._executed = executed
        self.before: dict[int, str | None] = {}
        self.checked: list[BinlogName] = []
        self.zone: SystemZone | SourceError | None = None
        self.outside = ""

    def facts(self) -> ServerFacts:
        uuid = self._uuids.pop(0) if len(self._uuids) > 1 else self._uuids[0]
        return replace(FACTS, uuid=uuid)

    statements = ServerVersion("9.7.4")

    def rows(self, statement: str) -> list[dict[str, Any]]:
        """It leaves something out, and was started a minute ago."""
        answers: dict[str, list[dict[str, Any]]] = {
            "SHOW BINARY LOG STATUS": [{"Binlog_Do_DB": "shop"}],
            "SELECT UTC_TIMESTAMP() AS it": [{"it": datetime(2026, 1, 1, 0, 1)}],  # noqa: DTZ001 - as the driver has it
            "SHOW GLOBAL STATUS LIKE 'Uptime'": [{"Value": "60"}],
        }
        return answers.get(statement, [])

    def binlogs(self) -> tuple[ServerBinlog, ...]:
        return self._listed

    def check_privileges(self, binlog: BinlogName) -> None:
        self.checked.append(binlog)

    def gtids_outside(self, oldest: BinlogName) -> str:
        self.oldest = oldest
        return self.outside

    def time_zone(self, year: int) -> SystemZone | None:
        if isinstance(self.zone, SourceError):
            raise self.zone
        return self.zone

    def gtids_before(self, binlog: BinlogName) -> str | None:
        return self.before.get(binlog.number)

    def executed(self) -> Gtids | None:
        return GtidSet.parse(self._executed)


class Finder:
    """Has compared, or could not."""

    def __init__(self, answer: Common | SourceError | None) -> None:
        self._answer = answer

    is_same_end = False

    def has_end(self, *_: object) -> bool:
        return self.is_same_end

    def last_common(self, source_has: list[BinlogName]) -> Common | None:
        assert source_has
        if isinstance(self._answer, SourceError):
            raise self._answer
        return self._answer


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """One that says it is MySQL's mysqlbinlog."""
    path = tmp_path / "mysqlbinlog"
    path.write_text(
        "#!/bin/sh\ncase \"$2\" in --version) echo 'mysqlbinlog  Ver 9.7.4 for Linux on x86_64';;\n"
        "--help) echo '  --stop-never'; echo '  --connection-server-id=#';; esac\n"
    )
    path.chmod(0o755)
    return path


class Asked(Pilot):
    """A pilot that has compared, and knows the server's other lineages."""

    def __init__(
        self, config: Any, found: Common | SourceError | None, others: Sequence[Tip]
    ) -> None:
        nothing: Any = None
        super().__init__(
            config, Catalog(MemoryStore(), LAYOUT), nothing, threading.Event(), nothing
        )
        self.compared = self.cuts = 0
        self.is_same_end = False
        self._found = found
        self._tips = others

    def _finder(self, *_: object) -> Any:
        self.compared += 1
        finder = Finder(self._found)
        finder.is_same_end = self.is_same_end
        return finder

    def _others(self, uuid: str) -> Sequence[Tip]:
        return self._tips

    def _cut(self, tip: Tip, executed: Gtids) -> Parent | None:
        self.cuts += 1
        return super()._cut(tip, executed)


class Asks:
    """Makes pilots and asks them."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self.compared = self.cuts = 0
        self.is_same_end = False

    def __call__(
        self,
        server: Server,
        tip: Tip | None = TIP,
        doubt: Doubt | None = None,
        *,
        found: Common | SourceError | None = None,
        others: Sequence[Tip] = (),
        **config: Any,
    ) -> Heading:
        made = SimpleNamespace(
            stream=stream_config(**config),
            mysql=MysqlConfig(user="u", mysqlbinlog=self._program),
        )
        pilot = Asked(made, found, others)
        pilot.is_same_end = self.is_same_end
        try:
            return pilot.heading(server, tip, doubt)  # type: ignore[arg-type]
        finally:
            self.compared += pilot.compared
            self.cuts += pilot.cuts


@pytest.fixture
def ask(program: Path) -> Asks:
    """Asks a pilot."""
    return Asks(program)


def test_a_new_source_begins_where_it_was_asked_for(ask: Asks) -> None:
    """And its privileges are checked first."""
    server = Server(rows(3, 4, 5))
    heading = ask(server, None)
    assert (heading.begin, heading.position, heading.tip, heading.parent) == (
        name(3), 4, None, None,
    )  # fmt: skip
    assert server.checked == [name(3)]
    assert ask(Server(rows(3, 4, 5)), None, start_at="now").begin == name(5)


@pytest.mark.parametrize(
    ("at", "binlog", "expected"), [("oldest", None, 3), ("now", None, 5), ("oldest", 4, 4)]
)
def test_the_first_binlog(at: Literal["oldest", "now"], binlog: int | None, expected: int) -> None:
    """The oldest, the one that is open now, or the one that was asked for."""
    config = stream_config(start_at=at, start_binlog=name(binlog) if binlog else None)
    assert first_binlog(config, rows(3, 4, 5)) == name(expected)


def test_a_first_binlog_that_the_server_lacks(ask: Asks) -> None:
    """It is named, with those that the server has; and a server must have some."""
    with pytest.raises(SourceError, match=r"no binlog b\.000009: it has b\.000003 to b\.000005"):
        first_binlog(stream_config(start_binlog=name(9)), rows(3, 4, 5))
    with pytest.raises(SourceError, match="lists no binary logs"):
        ask(Server(()), None)


def test_a_history_goes_on_from_its_overlap(ask: Asks) -> None:
    """The bytes of the run itself are the proof; nothing else is compared."""
    heading = ask(Server(rows(3, 4, 5)))
    assert (heading.begin, heading.position, heading.overlap) == (name(4), 60, OVERLAP)
    assert heading.tip == TIP
    assert ask.compared == 0


def test_without_an_overlap_the_open_binlog_is_read_anew(ask: Asks) -> None:
    """From its first byte: that is what is known only from the bucket."""
    heading = ask(Server(rows(4)), replace(TIP, overlap=None))
    assert (heading.begin, heading.position, heading.overlap) == (name(4), 4, None)


def test_another_server_is_refused(ask: Asks) -> None:
    """Both are named: a copied --source is the commonest mistake of a fleet."""
    with pytest.raises(SourceError) as caught:
        ask(Server(rows(4), UUID_B, executed=f"{UUID_B}:1-50"))
    assert caught.value.refused
    assert not caught.value.transient
    assert all(word in str(caught.value) for word in ("orders", UUID_A, UUID_B))
    assert "--source" in caught.value.hint
    assert f"--accept-new-server {UUID_B}" in caught.value.hint


def test_another_server_is_let_in_by_hand(ask: Asks) -> None:
    """Its join is unknown where nothing is shared; no other one is let in by that."""
    server = Server(rows(4), UUID_B, executed=f"{UUID_B}:1-50")
    heading = ask(server, accept_new_server=UUID_B.upper())
    assert heading.tip is None
    assert heading.parent is not None
    assert (heading.parent.lineage, heading.parent.join) == (LINEAGE.id, "unknown")
    with pytest.raises(SourceError, match="does not have the archive's transactions"):
        ask(server, accept_new_server=UUID_A)


def test_a_successor_is_let_in(ask: Asks) -> None:
    """It has everything: a new lineage, whose parent is our end."""
    server = Server(rows(6, 7), UUID_B, executed=f"{UUID_A}:1-9,{UUID_B}:1-2")
    server.before = {6: f"{UUID_A}:1-8", 7: f"{UUID_A}:1-9,{UUID_B}:1"}
    heading = ask(server)
    assert heading.begin == name(6)
    assert heading.parent is not None
    assert (heading.parent.join, heading.parent.offset) == ("exact", 100)


def test_a_server_that_comes_back_goes_on_with_its_own_lineage(ask: Asks) -> None:
    """The latest that its binlogs still follow."""
    server = Server(rows(6, 7), UUID_B, executed=f"{UUID_A}:1-9,{UUID_B}:1-2")
    own = like(LINEAGE, id="20250101T000000Z-b4308ccf-0000", server_uuid=UUID_B)
    overlap = replace(OVERLAP, binlog=name(7))
    lost = Tip(lineage=own, last=name(40), size=100)
    here = Tip(lineage=own, last=name(7), size=90, overlap=overlap)
    heading = ask(server, others=[lost, here])
    assert (heading.tip, heading.begin, heading.overlap) == (here, name(7), overlap)


def test_two_servers_that_answer_in_turn_are_not_believed(ask: Asks) -> None:
    """Something on the way led the questions to both: it is asked again."""
    with pytest.raises(SourceError, match="changed while it was asked") as caught:
        ask(Server(rows(4), UUID_A, UUID_B))
    assert caught.value.transient


def test_another_flavour_is_refused(ask: Asks) -> None:
    """A source that moved from one to the other needs a name of its own."""
    mariadb = replace(TIP, lineage=like(LINEAGE, flavour="mariadb"))
    with pytest.raises(SourceError, match="another flavour") as caught:
        ask(Server(rows(4)), mariadb)
    assert caught.value.refused


def test_a_gap_begins_a_lineage_or_stops_everything(ask: Asks) -> None:
    """As the operator wants it; what is missing is named in both."""
    server = Server(rows(6, 7))
    server.before = {6: f"{UUID_A}:1-20"}
    heading = ask(server, on_gap="continue")
    assert heading.begin == name(6)
    assert heading.parent is not None
    assert (heading.parent.join, heading.parent.missing) == ("gap", f"{UUID_A}:10-20")
    with pytest.raises(GapError, match=rf"no longer has {UUID_A}:10-20") as caught:
        ask(server, on_gap="stop")
    assert caught.value.exit_code == 7


def test_rows_that_are_in_no_binlog_begin_a_lineage_or_stop_everything(ask: Asks) -> None:
    """As a gap, of which nothing but the cause is known."""
    server = Server(rows(4, 5))
    server.before = {5: f"{UUID_A}:1-9"}
    doubt, known = Doubt(why="seen", left_out=True), replace(TIP, closed=True)
    heading = ask(server, tip=known, doubt=doubt, on_gap="continue")
    assert (heading.begin, heading.tip) == (name(5), None)
    assert heading.parent is not None
    assert (heading.parent.join, heading.parent.unlogged) == ("gap", True)
    with pytest.raises(GapError, match="gap: the source went on without a binlog"):
        ask(server, tip=known, doubt=doubt, on_gap="stop")
    assert ask.compared == 0


def test_a_heading_has_what_the_source_leaves_out(ask: Asks) -> None:
    """It becomes part of the entries and the heartbeat."""
    assert ask(Server(rows(4, 5))).leaves_out == ("binlog_do_db=shop",)


def test_a_source_without_a_binlog_is_named(ask: Asks) -> None:
    """Its answer says which server it is: that one leaves rows out now."""

    class Silent(Server):
        def binlogs(self) -> tuple[ServerBinlog, ...]:
            raise UnloggedError("it writes no binlog", hint="restart it")

    with pytest.raises(UnloggedError) as caught:
        ask(Silent(()))
    assert caught.value.uuid == UUID_A


def common(binlog: int, offset: int, *, whole: bool = True) -> Common:
    return Common(
        binlog=name(binlog),
        offset=offset,
        gtids=GtidSet.parse(f"{UUID_A}:1-8"),
        whole=whole,
        transactions=3,
    )


def test_a_server_that_was_rolled_back(ask: Asks) -> None:
    """The bytes tell where: a new lineage begins in that very binlog, behind the common part."""
    heading = ask(Server(rows(3, 4, size=90)), found=common(4, 80, whole=False))
    assert ask.compared == 1
    assert (heading.begin, heading.tip, heading.position) == (name(4), None, 4)
    assert heading.parent == parent_of(
        LINEAGE.id, binlog="b.000004", offset=80, gtid_set=f"{UUID_A}:1-8"
    )


def test_a_server_that_was_reset(ask: Asks) -> None:
    """Nothing is shared: nobody knows how the two are joined."""
    heading = ask(Server(rows(1)), found=None)
    assert (heading.begin, heading.tip) == (name(1), None)
    assert heading.parent is not None
    assert heading.parent.join == "unknown"


OWN = "00000001-00000000"
"""Server id 1, domain 0: what the nodes of a Galera cluster have if nobody sets them."""


class Node(Server):
    """Another node of a cluster, with the ids of the one that was streamed."""

    statements = ServerVersion("10.11.8-MariaDB")

    def facts(self) -> ServerFacts:
        return replace(FACTS, uuid=OWN, flavour="mariadb", version="10.11.8-MariaDB")

    def executed(self) -> Gtids | None:
        return MariadbGtidList.parse(self._executed)


@pytest.fixture
def at_mariadb(program: Path) -> Tip:
    """Where the archive of a MariaDB ends; the program is MariaDB's."""
    said = program.read_text().replace("mysqlbinlog  Ver 9.7.4 for", "mysqlbinlog  Ver 3.5 MariaDB")
    program.write_text(said)
    return replace(
        TIP,
        lineage=like(LINEAGE, server_uuid=OWN, flavour="mariadb"),
        gtids=MariadbGtidList.parse("7-1-42"),
        gtids_before=MariadbGtidList.parse("7-1-20"),
    )


def test_no_archive_is_read_for_a_mariadb_that_was_reset(ask: Asks, at_mariadb: Tip) -> None:
    """Its GTIDs show at once that it is no other node with the archive's transactions."""
    other = Node(rows(1), executed="7-1-3")
    other.before = {1: ""}
    heading = ask(other, at_mariadb)
    assert heading.parent is not None
    assert (heading.begin, heading.parent.join, ask.cuts) == (name(1), "unknown", 0)


@pytest.mark.parametrize("is_same_end", [True, False])
def test_another_node_of_a_cluster(ask: Asks, at_mariadb: Tip, is_same_end: bool) -> None:
    """It has the archive's transactions at other offsets: an exact join, if that is proved."""
    tip = at_mariadb
    ask.is_same_end = is_same_end
    other = Node(rows(1, 2, 3), executed="7-1-62")
    other.before = {1: "", 2: "7-1-14", 3: "7-1-50"}
    heading = ask(other, tip)
    assert ask.compared == 1
    assert heading.parent is not None
    assert heading.tip is None
    if is_same_end:
        assert (heading.begin, heading.parent.join) == (name(2), "exact")
        assert (heading.parent.offset, heading.parent.gtid_set) == (TIP.size, "7-1-42")
    else:
        assert (heading.begin, heading.parent.join) == (name(1), "unknown")


def test_a_doubt_that_the_bytes_do_not_bear_out(ask: Asks) -> None:
    """All of ours is there: the lineage goes on, and the open binlog is read anew."""
    heading = ask(Server(rows(4, 5)), TIP, Doubt(why="other bytes"), found=common(4, 100))
    assert (heading.begin, heading.tip, heading.overlap) == (name(4), TIP, None)


def test_what_the_source_refuses_again_and_again_is_a_gap(ask: Asks) -> None:
    """All of ours is there, and the next place cannot be had: on with the next binlog."""
    doubt = Doubt(why="position refused", refused=True)
    server = Server(rows(4, 5))
    server.before = {5: f"{UUID_A}:1-12"}
    heading = ask(server, TIP, doubt, found=common(4, 100))
    assert heading.begin == name(5)
    assert heading.parent is not None
    assert heading.parent.missing == f"{UUID_A}:10-12"
    last = ask(Server(rows(4)), TIP, doubt, found=common(4, 100))
    assert last.tip == TIP, "there is no next one yet"


def test_a_source_that_cannot_give_what_is_to_be_compared(ask: Asks) -> None:
    """On with the next binlog, if there is one; what only the network did is raised."""
    doubt = Doubt(why="damage")
    damaged = SourceError("damaged there", unservable=True)
    server = Server(rows(4, 5))
    server.before = {5: f"{UUID_A}:1-12"}
    assert ask(server, TIP, doubt, found=damaged).begin == name(5)
    with pytest.raises(SourceError, match="damaged there"):
        ask(Server(rows(4)), TIP, doubt, found=damaged)
    with pytest.raises(SourceError, match="lost connection"):
        ask(server, TIP, doubt, found=SourceError("lost connection", transient=True))


def test_a_binlog_that_is_none_from_its_first_event_on_is_passed(ask: Asks) -> None:
    """Nothing of it is known: the next one begins a lineage, whose parent says what is missing."""
    tip = replace(TIP, closed=True)
    doubt = Doubt(why="no format event", refused=True, unreadable=name(5))
    server = Server(rows(4, 5, 6))
    server.before = {6: f"{UUID_A}:1-12"}
    heading = ask(server, tip, doubt)
    assert heading.begin == name(6)
    assert heading.parent is not None
    assert (heading.parent.join, heading.parent.missing) == ("gap", f"{UUID_A}:10-12")
    with pytest.raises(SourceError, match="is the newest") as caught:
        ask(Server(rows(4, 5)), tip, doubt)
    assert caught.value.transient


def test_the_first_binlog_of_all_is_none(ask: Asks) -> None:
    """An empty archive begins behind it, unless a gap is to stop everything."""
    doubt = Doubt(why="no format event", refused=True, unreadable=name(3))
    heading = ask(Server(rows(3, 4, 5)), None, doubt)
    assert (heading.begin, heading.tip, heading.parent) == (name(4), None, None)
    with pytest.raises(GapError, match=r"cannot give b\.000003: no format event"):
        ask(Server(rows(3, 4, 5)), None, doubt, on_gap="stop")
    with pytest.raises(SourceError, match="is the newest") as caught:
        ask(Server(rows(3)), None, doubt)
    assert caught.value.transient
    assert ask(Server(rows(4, 5)), None, doubt).begin == name(4)  # it was purged meanwhile


def test_what_is_in_no_binlog_is_asked_of_the_oldest_one(ask: Asks) -> None:
    """A server's GTIDs before its oldest binlog are purged, or were never in one."""
    server = Server(rows(3, 4, 5))
    server.outside = f"{UUID_B}:1-9"
    assert ask(server).gtids_outside == f"{UUID_B}:1-9"
    assert server.oldest == name(3)


def test_what_came_in_without_a_binlog_since_the_lineage_began_is_left_out(ask: Asks) -> None:
    """A dump was loaded, and gtid_purged set, on a source that is streamed."""
    server = Server(rows(4, 5))
    server.outside = f"{UUID_B}:1-9"
    there = replace(LINEAGE, gtids_outside=f"{UUID_B}:1-7")
    assert ask(server, Tip(lineage=there, last=name(5), size=100)).leaves_out == (
        "binlog_do_db=shop",
        f"gtid_purged={UUID_B}:8-9",
    )
    there = replace(LINEAGE, gtids_outside=f"{UUID_B}:1-9")
    said = ask(server, Tip(lineage=there, last=name(5), size=100)).leaves_out
    assert said == ("binlog_do_db=shop",)


def test_the_servers_time_zone_is_asked_before_each_run(ask: Asks) -> None:
    """A proxy that refuses the question does not end the run; a server that is gone does."""
    server = Server(rows(3, 4, 5))
    server.zone = SystemZone.of("SYSTEM", 2026, [3600] * 24)
    assert ask(server).time_zone == server.zone
    assert ask(server).started_at == datetime(2026, 1, 1, tzinfo=UTC)
    server.zone = SourceError("refused", answered=True)
    assert ask(server).time_zone is None
    server.zone = SourceError("gone")
    with pytest.raises(SourceError, match="gone"):
        ask(server)
