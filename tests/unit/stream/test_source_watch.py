"""The watch: whose answer it is, whether it is one, and whether the server stands behind us."""

import math
import threading
from datetime import UTC, datetime
from time import monotonic

import pytest

from binlog2s3.binlog.names import FilePosition
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import ServerBinlog, ServerPosition
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.waiting import Periodic, Stop
from tests.binlog_writer import UUID_A, UUID_B
from tests.unit.stream.builders import name, rows
from tests.waiting import wait_until


class Server:
    """Answers what it is told to; `lists` counts how often its list was asked for."""

    def __init__(self) -> None:
        self.uuid = UUID_A
        self.at = (3, 500)
        self.error: SourceError | None = None
        self.is_read_only = False
        self.heard_at = 0.0
        self.lists = 0
        self.host = "db1"
        self.closed = threading.Event()

    def position(self) -> ServerPosition:
        if self.error is not None:
            raise self.error
        number, offset = self.at
        return ServerPosition(
            asked_at=datetime(2026, 1, 1, tzinfo=UTC),
            settled_at=datetime(2026, 1, 1, tzinfo=UTC),
            uuid=self.uuid,
            place=FilePosition(name(number), offset),
            gtid_set="",
            read_only=self.is_read_only,
        )

    def binlogs(self) -> tuple[ServerBinlog, ...]:
        self.lists += 1
        return rows(1, 2, self.at[0])

    def expiry(self) -> float | None:
        return 3600.0

    def close(self) -> None:
        self.closed.set()


class Watched:
    """A watch that asks when it is told to, and what came of it."""

    def __init__(self) -> None:
        self.server = Server()
        self.reached: FilePosition | None = None
        self.seen: list[ServerPosition] = []
        self.stop = Stop()
        self.watch = Watch(self.server)  # type: ignore[arg-type]
        self.watch.follow(UUID_A, rows(1, 2))

    def ask(self, *, with_list: bool = False) -> bool:
        """Once, for the list only if it is said; whether the server answered."""
        self.watch._list_at = math.inf
        if with_list:
            self.watch.list_again()
        before = self.watch.source_state
        self.step()
        return self.watch.source_state.position is not before.position

    def step(self) -> float:
        """As the thread does; again very soon."""
        if (position := self.watch.look(self.reached)) is not None:
            self.seen.append(position)
        return 0.001

    def start(self) -> None:
        Periodic(
            "watch", self.step, self.stop.event, failed=self.stop.fail, end=self.watch.close
        ).start()


@pytest.fixture
def watched() -> Watched:
    """Follows the server of UUID_A."""
    return Watched()


def test_an_answer_of_the_server_that_is_streamed(watched: Watched) -> None:
    """Its position is passed on; its list is kept until it is asked for again."""
    assert watched.ask()
    source_state = watched.watch.source_state
    assert source_state.position is not None
    assert source_state.position.place == (name(3), 500)
    assert watched.seen == [source_state.position]
    assert set(watched.watch.listed()) == {name(1), name(2), name(3)}
    assert watched.server.lists == 1  # for it was not known that there is a third
    assert watched.ask()
    assert watched.server.lists == 1
    assert watched.ask(with_list=True)
    assert watched.server.lists == 2
    assert watched.watch.source_state.expire_seconds == 3600


def test_the_list_is_asked_for_at_a_rotation(watched: Watched) -> None:
    """Else the sizes by which a lag is counted are those of before."""
    watched.ask()
    watched.server.at = (4, 200)
    watched.ask()
    watched.ask()
    assert watched.server.lists == 2
    assert name(4) in watched.watch.listed()


def test_a_strangers_answer_is_never_compared(watched: Watched) -> None:
    """Something on the way leads elsewhere: its uuid is told, its position is not passed on."""
    watched.ask()
    watched.server.uuid, watched.server.at = UUID_B, (9, 9)
    assert not watched.ask(with_list=True)
    source_state = watched.watch.source_state
    assert source_state.stranger == UUID_B
    assert source_state.position is not None
    assert source_state.position.uuid == UUID_A
    assert name(9) not in watched.watch.listed()
    assert len(watched.seen) == 1
    assert not watched.watch.streams(UUID_A)
    watched.server.uuid = UUID_A
    assert watched.ask()
    assert watched.watch.source_state.stranger == ""
    assert watched.watch.streams(UUID_A)
    assert not watched.watch.streams(UUID_B)


def test_a_stranger_is_asked_on_a_new_connection(watched: Watched) -> None:
    """The name may lead back, while the stranger keeps its connections open."""
    watched.ask()
    assert not watched.server.closed.is_set()
    watched.server.uuid = UUID_B
    watched.ask()
    assert watched.server.closed.is_set()


def leads(watched: Watched, *addresses: str) -> bool:
    """The name leads to these addresses now; whether the next look opens a new connection."""
    watched.server.closed.clear()
    watched.watch.look_up(lambda host: frozenset(addresses if host == "db1" else ()))
    assert not watched.server.closed.is_set(), "the connection is the other thread's"
    watched.ask()
    return watched.server.closed.is_set()


ONE, TWO = "192.0.2.1", "192.0.2.2"


@pytest.mark.parametrize(
    ("steps", "opens"),
    [
        ([(ONE,), (TWO,), (ONE,), (TWO,), (TWO, ONE), (ONE, TWO)], [1, 1, 1, 1, 0]),
        ([(ONE,), (ONE, TWO), (TWO,), (TWO,)], [1, 1, 0]),  # "add, then remove"
        ([(ONE,), (), (ONE,)], [0, 0]),  # the name service is down
    ],
)
def test_a_name_that_leads_elsewhere(
    watched: Watched,
    steps: list[tuple[str, ...]],
    opens: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A fail-over may leave the old connections open: a new address needs a new connection."""
    leads(watched, *steps[0])
    assert not leads(watched, *steps[0])
    assert [leads(watched, *addresses) for addresses in steps[1:]] == opens
    assert ("the server's name leads to another address" in caplog.text) is any(opens)


def test_a_name_that_moves_before_it_is_looked_up_first(watched: Watched) -> None:
    """The connection may be older than the first answer of the resolver."""
    watched.ask()
    assert leads(watched, TWO)


def test_an_address_is_no_name(watched: Watched) -> None:
    """It leads nowhere else, so a connection to it is not made twice."""
    watched.server.host = "192.0.2.1"
    watched.watch.look_up(lambda host: frozenset({host}))
    watched.ask()
    assert not watched.server.closed.is_set()


def test_following_another_server_forgets_what_was_seen(watched: Watched) -> None:
    """Its position and its doubts were the other one's."""
    watched.reached = FilePosition(name(4), 4)
    watched.ask()
    watched.server.uuid = UUID_B
    watched.ask()
    watched.watch.follow(UUID_B, rows(7))
    source_state = watched.watch.source_state
    assert (source_state.position, source_state.stranger, source_state.behind) == (None, "", 0)
    assert set(watched.watch.listed()) == {name(7)}
    assert watched.watch.streams(UUID_B)


def test_following_the_same_server_again_keeps_its_position(watched: Watched) -> None:
    """A new run of mysqlbinlog: the doubts are gone, the answers stay."""
    watched.reached = FilePosition(name(4), 4)
    watched.ask()
    assert watched.watch.source_state.behind == 1
    watched.watch.follow(UUID_A, rows(7))
    assert watched.watch.source_state.position is not None
    assert watched.watch.source_state.behind == 0


def test_an_answer_that_comes_late_is_not_of_the_server_that_is_followed_now(
    watched: Watched,
) -> None:
    """The question was asked before the change: neither its list nor its position counts."""
    position = watched.server.position

    def change() -> ServerPosition:
        watched.watch.follow(UUID_B, rows(7))
        return position()

    watched.server.position = change  # type: ignore[method-assign]
    watched.ask(with_list=True)
    assert watched.seen == []
    assert watched.watch.source_state.position is None
    assert set(watched.watch.listed()) == {name(7)}


@pytest.mark.parametrize(
    ("reached", "behind"),
    [
        (None, 0),
        ((name(3), 499), 0),
        ((name(3), 500), 0),
        ((name(3), 501), 1),
        ((name(4), 4), 1),
        ((name(2), 900), 0),
    ],
)
def test_a_server_that_stands_behind_what_was_read(
    watched: Watched, reached: FilePosition | None, behind: int
) -> None:
    """It was reset or rolled back: counted, since one answer may be old, and not passed on."""
    watched.reached = reached
    watched.ask()
    assert watched.watch.source_state.behind == behind
    assert len(watched.seen) == 1 - behind
    watched.ask()
    assert watched.watch.source_state.behind == 2 * behind
    watched.server.at = (5, 4)
    watched.ask()
    assert watched.watch.source_state.behind == 0


def test_a_refusal_is_an_answer(watched: Watched) -> None:
    """Too many connections: the server lives, and its stream is kept."""
    watched.ask()
    watched.server.error = SourceError("too many connections", transient=True, answered=True)
    before = monotonic()
    assert not watched.ask()
    assert watched.watch.source_state.error is watched.server.error
    assert watched.watch.heard_at >= before
    assert watched.watch.source_state.position is not None, "what was seen still holds"


def test_no_answer_is_none(watched: Watched) -> None:
    """Nothing has been heard since the last one."""
    watched.ask()
    heard = watched.watch.heard_at
    watched.server.error = SourceError("timed out", transient=True)
    for _ in range(2):
        assert not watched.ask()
        assert watched.watch.heard_at == heard
    watched.server.error = None
    assert watched.ask()
    assert watched.watch.source_state.error is None
    assert watched.watch.heard_at >= heard


def test_a_part_of_an_answer_counts_as_heard(watched: Watched) -> None:
    """A server that is slow to answer all is there: its connection says when it last spoke."""
    watched.server.heard_at = monotonic() + 50
    watched.server.error = SourceError("timed out", transient=True)
    watched.ask()
    assert watched.watch.heard_at == watched.server.heard_at


def test_a_server_that_becomes_read_only_is_told_of(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, when it changes: a replica that always was is none of our business."""
    watched.server.is_read_only = True
    watched.ask()
    assert "read_only" not in caplog.text
    watched.server.is_read_only = False
    watched.ask()
    watched.server.is_read_only = True
    watched.ask()
    watched.ask()
    assert caplog.text.count("the server has become read_only") == 1


def test_the_list_is_asked_for_at_first_and_when_it_is_wanted() -> None:
    """It takes a lock on the server; a question that failed is asked again."""
    watched = Watched()
    watched.server.error = SourceError("down", transient=True)
    watched.start()
    try:
        wait_until(lambda: watched.watch.source_state.error, what="a failed question")
        watched.server.error = None
        wait_until(lambda: watched.server.lists == 1, what="the first list")
        seen = len(watched.seen)
        wait_until(lambda: len(watched.seen) > seen + 5, what="more positions")
        assert watched.server.lists == 1
        watched.watch.list_again()
        wait_until(lambda: watched.server.lists == 2, what="the list that was wanted")
    finally:
        watched.stop.event.set()
    assert watched.server.closed.wait(60)
    assert watched.stop.error is None


def test_a_defect_of_the_watch_ends_the_process() -> None:
    """It is not left to die silently."""
    watched = Watched()
    defect = RuntimeError("a defect")
    watched.server.error = defect  # type: ignore[assignment]
    watched.start()
    assert watched.stop.event.wait(60)
    assert watched.stop.error is defect
