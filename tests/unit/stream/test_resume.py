"""`Resumption`: what it asks, what it refuses, where it says that a run begins."""

import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Parent
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.config.stream import Config, MysqlConfig
from binlog2s3.errors import Binlog2s3Error, GapError, SourceError, UncomparedError, UnloggedError
from binlog2s3.server.connection import ServerBinlog, ServerFacts
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.version import ServerVersion
from binlog2s3.stream.compare import Common
from binlog2s3.stream.continuation import Begin, GoOn, KnownEnd
from binlog2s3.stream.resume import Continuation, Doubt, NextRun, Resumption
from binlog2s3.stream.tail import Overlap
from tests import documents
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import like, parent_of
from tests.memory_store import MemoryStore
from tests.streamer import config
from tests.unit.stream.builders import name, rows

LAYOUT = Layout("p", "orders")
LINEAGE = replace(
    documents.LINEAGE,
    first_binlog=BinlogName("b", 2),
    first_binlog_time=datetime(2026, 1, 2, tzinfo=UTC),
    gtid_set="",
)
FACTS = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.0", server_id=1, gtid_mode=True)


def asked_for(program: Path, **changes: Any) -> Config:
    """What was asked for, with that mysqlbinlog."""
    made = config(Path("unused"), 1000)
    mysql = replace(made.mysql, mysqlbinlog=program)
    return replace(made, mysql=mysql, stream=replace(made.stream, **changes))


OVERLAP = Overlap(binlog=name(4), begin=60, end=100, crc64=5)
KNOWN_END = KnownEnd(
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

    def __init__(
        self,
        listed: tuple[ServerBinlog, ...],
        *uuids: str,
        executed: str = "",
        before: Mapping[int, str] | None = None,
    ) -> None:
        self._listed = listed
        self._uuids = list(uuids) or [UUID_A]
        self._executed = executed
        self.before: dict[int, str | None] = {**(before or {})}
        self.checked: list[BinlogName] = []
        self.zone: SystemZone | SourceError | None = None
        self.outside = ""

    def facts(self) -> ServerFacts:
        uuid = self._uuids.pop(0) if len(self._uuids) > 1 else self._uuids[0]
        return replace(FACTS, uuid=uuid)

    version = ServerVersion("9.7.4")

    def login(self) -> Login:
        return resolve(MysqlConfig(user="u"))

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


class Asked(Resumption):
    """A resumption that has compared, and knows the server's other lineages."""

    def __init__(
        self,
        config: Config,
        found: Common | SourceError | None,
        others: Sequence[KnownEnd],
    ) -> None:
        spool: Any = "not used: see Finder"
        catalog = Catalog(MemoryStore(), LAYOUT)
        super().__init__(config, catalog, spool, threading.Event())
        self.compared = self.cuts = 0
        self.is_same_end = False
        self.found = found
        self.known_ends = others

    def _continuation(self, *asked: Any) -> Continuation:
        made = super()._continuation(*asked)
        return Continued(**{one.name: getattr(made, one.name) for one in fields(made)})


@dataclass(frozen=True, kw_only=True)
class Continued(Continuation):
    """As `Asked` says."""

    resumption: Asked

    def _finder(self, spool: Any) -> Any:
        self.resumption.compared += 1
        finder = Finder(self.resumption.found)
        finder.is_same_end = self.resumption.is_same_end
        return finder

    def _others(self, uuid: str) -> Sequence[KnownEnd]:
        return self.resumption.known_ends

    def _cut(self, executed: Gtids) -> Parent | None:
        self.resumption.cuts += 1
        return super()._cut(executed)


class Asks:
    """Makes resumptions and asks them."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self.compared = self.cuts = 0
        self.is_same_end = False

    def __call__(
        self,
        server: Server,
        known_end: KnownEnd | None = KNOWN_END,
        doubt: Doubt | None = None,
        *,
        found: Common | SourceError | None = None,
        others: Sequence[KnownEnd] = (),
        **config: Any,
    ) -> NextRun:
        resumption = Asked(asked_for(self._program, **config), found, others)
        resumption.is_same_end = self.is_same_end
        try:
            return resumption.next_run(server, known_end, doubt)  # type: ignore[arg-type]
        finally:
            self.compared += resumption.compared
            self.cuts += resumption.cuts


@pytest.fixture
def ask(program: Path) -> Asks:
    """Asks a resumption."""
    return Asks(program)


def common(binlog: int, offset: int, *, whole: bool = True) -> Common:
    return Common(
        position=Position(binlog=name(binlog), offset=offset, gtid_set=f"{UUID_A}:1-8"),
        whole=whole,
        transactions=3,
    )


B_TOO = f"{UUID_A}:1-9,{UUID_B}:1-2"
OTHER = {"executed": f"{UUID_B}:1-50"}
CLOSED = replace(KNOWN_END, closed=True)
OWN_LINEAGE = like(LINEAGE, id="20250101T000000Z-b4308ccf-0000", server_uuid=UUID_B)
LOST = KnownEnd(lineage=OWN_LINEAGE, last=name(40), size=100)
HERE = KnownEnd(
    lineage=OWN_LINEAGE, last=name(7), size=90, overlap=replace(OVERLAP, binlog=name(7))
)
REFUSED = Doubt(why="position refused", kind="refused")
UNREADABLE = Doubt(why="no format event", kind="refused", unreadable=name(5))
NO_FIRST = Doubt(why="no format event", kind="refused", unreadable=name(3))
LEFT_OUT = Doubt(why="seen", kind="left out")
DAMAGED = SourceError("damaged there", unservable=True)
AFTER_9 = {5: f"{UUID_A}:1-9"}
AFTER_12 = {5: f"{UUID_A}:1-12", 6: f"{UUID_A}:1-12"}
ROLLED_BACK = parent_of(LINEAGE.id, binlog="b.000004", offset=80, gtid_set=f"{UUID_A}:1-8")

NEXT_RUNS: Mapping[str, tuple[Server, Mapping[str, Any], Mapping[str, Any]]] = {
    "a new source begins with the oldest": (
        Server(rows(3, 4, 5)), {"known_end": None},
        {"begin": 3, "position": 4, "known_end": None, "parent": None}),
    "or with what is open now": (
        Server(rows(3, 4, 5)), {"known_end": None, "start_at": "now"}, {"begin": 5}),
    "or with the one that was asked for": (
        Server(rows(3, 4, 5)), {"known_end": None, "start_binlog": name(4)}, {"begin": 4}),
    "a history goes on from its overlap, whose bytes are the proof": (
        Server(rows(3, 4, 5)), {},
        {"begin": 4, "position": 60, "overlap": OVERLAP, "known_end": KNOWN_END, "compared": 0}),
    "what is known from the bucket alone is read from its first byte": (
        Server(rows(4)), {"known_end": replace(KNOWN_END, overlap=None)},
        {"begin": 4, "position": 4, "overlap": None}),
    "another server is let in by hand": (
        Server(rows(4), UUID_B, **OTHER), {"accept_new_server": UUID_B.upper()},
        {"known_end": None, "join": "unknown"}),
    "a successor has everything": (
        Server(rows(6, 7), UUID_B, executed=B_TOO,
               before={6: f"{UUID_A}:1-8", 7: f"{UUID_A}:1-9,{UUID_B}:1"}), {},
        {"begin": 6, "join": "exact", "offset": 100}),
    "a server that comes back goes on with the latest lineage that its binlogs follow": (
        Server(rows(6, 7), UUID_B, executed=B_TOO), {"others": [LOST, HERE]},
        {"known_end": HERE, "begin": 7, "overlap": HERE.overlap}),
    "a gap begins a lineage": (
        Server(rows(6, 7), before={6: f"{UUID_A}:1-20"}), {"on_gap": "continue"},
        {"begin": 6, "join": "gap", "missing": f"{UUID_A}:10-20"}),
    "so do rows that are in no binlog": (
        Server(rows(4, 5), before=AFTER_9),
        {"known_end": CLOSED, "doubt": LEFT_OUT, "on_gap": "continue"},
        {"begin": 5, "known_end": None, "join": "gap", "unlogged": True, "compared": 0}),
    "but a server that ended itself there has left nothing out": (
        Server(rows(4, 5), before=AFTER_9),
        {"known_end": CLOSED, "doubt": replace(LEFT_OUT, kind="aborted"), "on_gap": "stop"},
        {"begin": 5, "known_end": None, "join": "exact", "unlogged": False, "compared": 0}),
    "what a server leaves out becomes part of the entries": (
        Server(rows(4, 5)), {}, {"leaves_out": ("binlog_do_db=shop",)}),
    "a server that was rolled back: the bytes tell where": (
        Server(rows(3, 4, size=90)), {"found": common(4, 80, whole=False)},
        {"begin": 4, "known_end": None, "position": 4, "parent": ROLLED_BACK, "compared": 1}),
    "a server that was reset: nothing is shared": (
        Server(rows(1)), {}, {"begin": 1, "known_end": None, "join": "unknown"}),
    "a doubt that the bytes do not bear out: the open binlog is read anew": (
        Server(rows(4, 5)), {"doubt": Doubt(why="other bytes"), "found": common(4, 100)},
        {"begin": 4, "known_end": replace(KNOWN_END, overlap=None), "overlap": None}),
    "what the source refuses again and again is a gap": (
        Server(rows(4, 5), before=AFTER_12), {"doubt": REFUSED, "found": common(4, 100)},
        {"begin": 5, "missing": f"{UUID_A}:10-12"}),
    "unless there is no next binlog yet": (
        Server(rows(4)), {"doubt": REFUSED, "found": common(4, 100)},
        {"known_end": replace(KNOWN_END, overlap=None)}),
    "what cannot be given to be compared is passed": (
        Server(rows(4, 5), before=AFTER_12), {"doubt": Doubt(why="damage"), "found": DAMAGED},
        {"begin": 5}),
    "a binlog that is none from its first event on is passed": (
        Server(rows(4, 5, 6), before=AFTER_12), {"known_end": CLOSED, "doubt": UNREADABLE},
        {"begin": 6, "join": "gap", "missing": f"{UUID_A}:10-12"}),
    "so is the first binlog of all": (
        Server(rows(3, 4, 5)), {"known_end": None, "doubt": NO_FIRST},
        {"begin": 4, "known_end": None, "parent": None}),
    "or it was purged meanwhile": (
        Server(rows(4, 5)), {"known_end": None, "doubt": NO_FIRST}, {"begin": 4}),
}  # fmt: skip
"""Who is asked, and what is known; where the run begins, and what it says of the join."""


def parent_in(next_run: NextRun) -> Parent | None:
    """The parent of the lineage that begins; a lineage that goes on has none to begin after."""
    assert isinstance(next_run.course, Begin)
    return next_run.course.parent


@pytest.mark.parametrize("why", NEXT_RUNS)
def test_where_a_run_begins(ask: Asks, why: str) -> None:
    """The first binlog, the end that is known, or behind what is missing: a new lineage."""
    made, asked, expected = NEXT_RUNS[why]
    server = deepcopy(made)
    next_run = ask(server, **asked)
    for key, value in expected.items():
        if key == "compared":
            assert ask.compared == value
        elif key == "begin":
            assert next_run.begin == name(value)
        elif key == "known_end":
            assert (
                next_run.course.known_end if isinstance(next_run.course, GoOn) else None
            ) == value
        elif key == "parent":
            assert parent_in(next_run) == value
        else:
            of = next_run if hasattr(next_run, key) else parent_in(next_run)
            assert getattr(of, key) == value, key
    assert server.checked, "its privileges come first"


REFUSALS: Mapping[str, tuple[Server, Mapping[str, Any], type[Binlog2s3Error], str]] = {
    "two servers answer in turn": (
        Server(rows(4), UUID_A, UUID_B), {}, SourceError, "changed while it was asked"),
    "another server than the one that may be let in": (
        Server(rows(4), UUID_B, **OTHER), {"accept_new_server": UUID_A},
        SourceError, "does not have the archive's transactions"),
    "another flavour": (
        Server(rows(4)),
        {"known_end": replace(KNOWN_END, lineage=like(LINEAGE, flavour="mariadb"))},
        SourceError, "another flavour"),
    "no binlogs": (Server(()), {"known_end": None}, SourceError, "lists no binary logs"),
    "a first binlog that it lacks": (
        Server(rows(3, 4, 5)), {"known_end": None, "start_binlog": name(9)},
        SourceError, r"no binlog b\.000009: it has b\.000003 to b\.000005"),
    "a gap": (
        Server(rows(6, 7), before={6: f"{UUID_A}:1-20"}), {"on_gap": "stop"},
        GapError, rf"no longer has {UUID_A}:10-20"),
    "rows that are in no binlog": (
        Server(rows(4, 5), before=AFTER_9),
        {"known_end": CLOSED, "doubt": LEFT_OUT, "on_gap": "stop"},
        GapError, "gap: the source went on without a binlog"),
    "the first binlog of all is none": (
        Server(rows(3, 4, 5)), {"known_end": None, "doubt": NO_FIRST, "on_gap": "stop"},
        GapError, r"cannot give b\.000003: no format event"),
    "and the newest": (
        Server(rows(3)), {"known_end": None, "doubt": NO_FIRST}, SourceError, "is the newest"),
    "what is newest is none": (
        Server(rows(4, 5)), {"known_end": CLOSED, "doubt": UNREADABLE},
        SourceError, "is the newest"),
    "the newest cannot be compared": (
        Server(rows(4)), {"doubt": Doubt(why="damage"), "found": DAMAGED},
        SourceError, "damaged there"),
    "the network broke": (
        Server(rows(4, 5), before=AFTER_12),
        {"doubt": Doubt(why="damage"), "found": SourceError("lost connection", transient=True)},
        SourceError, "lost connection"),
}  # fmt: skip
PASSES = {"two servers answer in turn", "and the newest", "what is newest is none",
          "the network broke"}  # fmt: skip

FOR_EVER = {"another flavour", "another server than the one that may be let in"}


@pytest.mark.parametrize("why", REFUSALS)
def test_what_is_refused(ask: Asks, why: str) -> None:
    """By name, and asked again only where that helps."""
    server, asked, kind, words = REFUSALS[why]
    with pytest.raises(kind, match=words) as caught:
        ask(deepcopy(server), **asked)
    assert caught.value.transient is (why in PASSES)
    assert getattr(caught.value, "refused", False) is (why in FOR_EVER)
    assert (caught.value.exit_code == 7) is (kind is GapError)


def test_another_server_is_refused(ask: Asks) -> None:
    """Both are named: a copied --source is the commonest mistake of a fleet."""
    with pytest.raises(SourceError) as caught:
        ask(Server(rows(4), UUID_B, executed=f"{UUID_B}:1-50"))
    assert caught.value.refused
    assert not caught.value.transient
    assert all(word in str(caught.value) for word in ("orders", UUID_A, UUID_B))
    assert "--source" in caught.value.hint
    assert f"--accept-new-server {UUID_B}" in caught.value.hint


def test_a_source_without_a_binlog_is_named(ask: Asks) -> None:
    """Its answer says which server it is: that one leaves rows out now."""

    class Silent(Server):
        def binlogs(self) -> tuple[ServerBinlog, ...]:
            raise UnloggedError("it writes no binlog", hint="restart it")

    with pytest.raises(UnloggedError) as caught:
        ask(Silent(()))
    assert caught.value.uuid == UUID_A


OWN = "00000001-00000000"
"""Server id 1, domain 0: what the nodes of a Galera cluster have if nobody sets them."""


class Node(Server):
    """Another node of a cluster, with the ids of the one that was streamed."""

    version = ServerVersion("10.11.8-MariaDB")

    def facts(self) -> ServerFacts:
        return replace(FACTS, uuid=OWN, flavour="mariadb", version="10.11.8-MariaDB")

    def executed(self) -> Gtids | None:
        return MariadbGtidList.parse(self._executed)


@pytest.fixture
def at_mariadb(program: Path) -> KnownEnd:
    """Where the archive of a MariaDB ends; the program is MariaDB's."""
    said = program.read_text().replace("mysqlbinlog  Ver 9.7.4 for", "mysqlbinlog  Ver 3.5 MariaDB")
    program.write_text(said)
    return replace(
        KNOWN_END,
        lineage=like(LINEAGE, server_uuid=OWN, flavour="mariadb"),
        gtids=MariadbGtidList.parse("7-1-42"),
        gtids_before=MariadbGtidList.parse("7-1-20"),
    )


def test_no_archive_is_read_for_a_mariadb_that_was_reset(ask: Asks, at_mariadb: KnownEnd) -> None:
    """Its GTIDs show at once that it is no other node with the archive's transactions."""
    other = Node(rows(1), executed="7-1-3")
    other.before = {1: ""}
    next_run = ask(other, at_mariadb)
    found = parent_in(next_run)
    assert found is not None
    assert (next_run.begin, found.join, ask.cuts) == (name(1), "unknown", 0)


@pytest.mark.parametrize("is_same_end", [True, False])
def test_another_node_of_a_cluster(ask: Asks, at_mariadb: KnownEnd, is_same_end: bool) -> None:
    """It has the archive's transactions at other offsets: an exact join, if that is proved."""
    known_end = at_mariadb
    ask.is_same_end = is_same_end
    other = Node(rows(1, 2, 3), executed="7-1-62")
    other.before = {1: "", 2: "7-1-14", 3: "7-1-50"}
    next_run = ask(other, known_end)
    assert ask.compared == 1
    found = parent_in(next_run)
    assert found is not None
    if is_same_end:
        assert (next_run.begin, found.join) == (name(2), "exact")
        assert (found.offset, found.gtid_set) == (KNOWN_END.size, "7-1-42")
    else:
        assert (next_run.begin, found.join) == (name(1), "unknown")


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
    assert ask(server, KnownEnd(lineage=there, last=name(5), size=100)).leaves_out == (
        "binlog_do_db=shop",
        f"gtid_purged={UUID_B}:8-9",
    )
    there = replace(LINEAGE, gtids_outside=f"{UUID_B}:1-9")
    said = ask(server, KnownEnd(lineage=there, last=name(5), size=100)).leaves_out
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


def test_without_a_spool_nothing_is_compared(program: Path) -> None:
    """A preflight says that the server contradicts the archive; it reads no binlog for that."""
    catalog = Catalog(MemoryStore(), LAYOUT)
    resumption = Resumption(asked_for(program), catalog, None, threading.Event())
    with pytest.raises(UncomparedError, match=r"contradicts the archive: its b\.000004 has 50"):
        resumption.next_run(Server(rows(4, size=50)), KNOWN_END)  # type: ignore[arg-type]
