"""The sockets of a replication source: what one client can do to the others."""

import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.replication.endpoint import Endpoint, tls_for
from binlog2s3.replication.login import Account, native_answer
from binlog2s3.replication.protocol import GTIDS_MOST, Dump, DumpByGtid
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.source import Client, ConnectionLimits, Source
from tests.binlog_writer import UUID_A
from tests.unit.replication.test_protocol import CAPABILITIES, NATIVE, TLS_REQUEST, framed, login
from tests.waiting import PATIENCE, wait_until

WHO = Identity(
    version="9.7.4", flavour="mysql", server_id=4242, server_uuid=UUID_A,
    plugin="mysql_native_password",
)  # fmt: skip
ACCOUNTS = (Account("one", "a secret"), Account("other", "a secret"))
BROKEN = b"\xff"


class Wire:
    """A connection to a source, and what comes from it."""

    def __init__(self, source: Source, address: str = "127.0.0.1") -> None:
        self.socket: socket.socket = socket.create_connection(
            source.address, PATIENCE, source_address=(address, 0)
        )
        self.sequence = 0

    def packet(self) -> bytes:
        """The next payload; b"" if the connection has ended."""
        head = self._read(4)
        if not head:
            return b""
        assert head[3] == self.sequence & 0xFF, "a client takes no other"
        self.sequence = head[3] + 1
        return self._read(int.from_bytes(head[:3], "little"))

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = self.socket.recv(size - len(data))
            except ConnectionError:
                return b""
            if not more:
                return b""
            data += more
        return data

    def say(self, payload: bytes) -> bytes:
        self.socket.sendall(framed(payload, self.sequence))
        self.sequence += 1
        return self.packet()

    def greeted(self) -> bytes:
        """The nonce of the greeting."""
        greeting = self.packet()
        assert greeting[:1] == b"\x0a", greeting
        at = greeting.index(b"\0") + 5
        return greeting[at : at + 8] + greeting[-len(NATIVE) - 14 : -len(NATIVE) - 2]

    def log_in(self, user: str = "one", password: bytes = b"a secret") -> bytes:
        answer = native_answer(password, self.greeted())
        return self.say(login(answer, user=user.encode(), plugin=NATIVE, flags=CAPABILITIES))

    def command(self, payload: bytes) -> bytes:
        self.sequence = 0
        return self.say(payload)

    def dump(self, *, uuid: str = "", gtids: bytes = b"") -> None:
        """Ask for everything that is not in a set, as it is encoded."""
        if uuid:
            assert self.command(b"\x03SET @slave_uuid = '%s'" % uuid.encode())[:1] == b"\0"
        self.command(b"\x03SET @master_binlog_checksum = @@global.binlog_checksum")
        ask = struct.pack("<HIIQI", 0, 9, 0, 4, len(gtids)) + gtids
        self.socket.sendall(framed(b"\x1e" + ask, 0))
        self.sequence = 1

    def is_open(self) -> bool:
        """Whether the other side has not ended it; what it has said is lost."""
        self.socket.settimeout(0)
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return True
        except OSError:
            pass
        finally:
            self.socket.settimeout(PATIENCE)
        return False


def code(packet: bytes) -> int:
    assert packet[:1] == BROKEN, packet
    return int.from_bytes(packet[1:3], "little")


class Answers:
    """What a source answers to a dump: nothing, until it ends; the clients that asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Dump]] = []
        self.raises: Exception | None = None

    def __call__(self, client: Client, dump: Dump) -> None:
        self.asked.append((client.user, dump))
        if self.raises is not None:
            raise self.raises
        while not client.has_left() and not client.ended.wait(0.01):
            pass


@contextmanager
def source_of(answers: Answers | None = None, **more: Any) -> Iterator[Source]:
    with Source(lambda: WHO, ACCOUNTS, answers or Answers(), **more) as source:
        yield source


def opened(ends: ExitStack, source: Source, address: str = "127.0.0.1") -> Wire:
    wire = Wire(source, address)
    ends.callback(wire.socket.close)
    return wire


def asking(ends: ExitStack, source: Source, user: str = "one", **dump: Any) -> Wire:
    """A client that has logged in and asked for a dump."""
    wire = opened(ends, source)
    wire.log_in(user)
    wire.dump(**dump)
    return wire


def test_a_thread_that_cannot_be_started_ends_one_connection() -> None:
    """The client is told so, and the next one is served: the system may start threads again."""
    with source_of() as source, ExitStack() as ends:
        assert opened(ends, source).log_in()[:1] == b"\0"
        before = threading.stack_size(1 << 46)  # more than there is: no thread can start
        try:
            assert code(opened(ends, source).packet()) == 1040
        finally:
            threading.stack_size(before)
        assert opened(ends, source).log_in()[:1] == b"\0"
        assert source.refused["connections"] == 1
        assert source.failure is None


def test_who_does_not_log_in_takes_no_place_from_who_does() -> None:
    """However many connections wait for a login, and whatever the limit of connections."""
    limits = ConnectionLimits(connections=2, logging_in=4)
    with source_of(limits=limits) as source, ExitStack() as ends:
        idle = [opened(ends, source) for _ in range(20)]
        wait_until(lambda: sum(one.is_open() for one in idle) <= 4, what="the oldest were ended")
        first, second = opened(ends, source), opened(ends, source)
        assert first.log_in()[:1] == b"\0"
        assert second.log_in()[:1] == b"\0"
        assert code(opened(ends, source).packet()) == 1040, "the limit of those that are logged in"
        assert len(source.clients) == 2
        assert first.command(b"\x0e")[:1] == b"\0", "those that are in stay in"


def test_the_address_with_most_logins_loses_one() -> None:
    """A flood from one address ends no login from another one."""
    with source_of(limits=ConnectionLimits(logging_in=4)) as source, ExitStack() as ends:
        lonely = opened(ends, source, "127.0.0.2")
        nonce = lonely.greeted()
        flood = [opened(ends, source) for _ in range(20)]
        wait_until(lambda: sum(one.is_open() for one in flood) <= 3, what="the oldest were ended")
        answer = native_answer(b"a secret", nonce)
        assert lonely.say(login(answer, user=b"one", plugin=NATIVE))[:1] == b"\0"


def test_a_wrong_password_is_answered_late() -> None:
    """Later after each one from an address; and counted."""
    with source_of() as source, ExitStack() as ends:
        began = time.monotonic()
        for number in (1, 2):
            assert code(opened(ends, source).log_in(password=b"wrong")) == 1045
            assert source.refused["password"] == number
        assert time.monotonic() - began >= 1.4


def test_a_login_that_was_ended_waits_no_longer_for_its_refusal() -> None:
    """A wrong password is answered late, but a flood of them takes no more threads than its share.

    The wait of one that has to go is over at once.
    """
    limits = ConnectionLimits(logging_in=3)
    with source_of(limits=limits) as source, ExitStack() as ends:
        for _ in range(12):
            wire = opened(ends, source)
            answer = native_answer(b"wrong", wire.greeted())
            wire.socket.sendall(framed(login(answer, user=b"one", plugin=NATIVE), 1))
            wait_until(
                lambda: sum(one.name.startswith("serve-") for one in threading.enumerate()) <= 4,
                what="no more threads than the share, and the newest",
            )


def test_the_limit_of_a_user_holds_for_logins_at_the_same_moment() -> None:
    """Only as many of them are let in."""
    limits = ConnectionLimits(connections=50, per_user=3)
    with source_of(limits=limits) as source, ExitStack() as ends:
        wires = [opened(ends, source) for _ in range(12)]
        answers = [native_answer(b"a secret", wire.greeted()) for wire in wires]
        for wire, answer in zip(wires, answers, strict=True):
            wire.socket.sendall(framed(login(answer, user=b"one", plugin=NATIVE), 1))
            wire.sequence = 2
        said = [wire.packet() for wire in wires]
        assert sum(one[:1] == b"\0" for one in said) == 3
        assert {code(one) for one in said if one[:1] != b"\0"} == {1226}


def test_a_tls_handshake_that_stands_still_can_be_ended() -> None:
    """It is a login like others: the next one takes its place."""
    limits = ConnectionLimits(logging_in=1)
    with (
        source_of(at=Endpoint(tls=tls_for("127.0.0.1")), limits=limits) as source,
        ExitStack() as ends,
    ):
        wire = opened(ends, source)
        wire.packet()
        wire.socket.sendall(framed(TLS_REQUEST, 1))
        answer = native_answer(b"a secret", opened(ends, source).greeted())
        assert answer
        wait_until(lambda: not wire.is_open(), what="the handshake was ended")
        wait_until(
            lambda: sum(one.name.startswith("serve-") for one in threading.enumerate()) == 1,
            what="its thread has ended",
        )
        assert source.defect is None


def test_a_tls_handshake_has_the_limit_of_the_login() -> None:
    """A client that begins one and says nothing more is gone when the time for the login is up."""
    tls = tls_for("127.0.0.1")
    with source_of(at=Endpoint(tls=tls), limits=ConnectionLimits(login_seconds=0.3)) as source:
        wire = Wire(source)
        with closing(wire.socket):
            wire.packet()
            wire.socket.sendall(framed(TLS_REQUEST, 1))
            wait_until(lambda: not wire.is_open(), what="it was ended")


def test_tls_works() -> None:
    """A whole login through it."""
    with (
        source_of(at=Endpoint(tls=tls_for("127.0.0.1"), needs_tls=True)) as source,
        ExitStack() as ends,
    ):
        wire = opened(ends, source)
        nonce = wire.greeted()
        wire.socket.sendall(framed(TLS_REQUEST, 1))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        wire.socket = context.wrap_socket(wire.socket)
        ends.callback(wire.socket.close)
        wire.sequence = 2
        answer = native_answer(b"a secret", nonce)
        flags = CAPABILITIES | 0x800
        assert wire.say(login(answer, user=b"one", plugin=NATIVE, flags=flags))[:1] == b"\0"


def test_an_account_ends_only_its_own_dumps() -> None:
    """With a UUID that another account's replica has, too, both are served."""
    answers = Answers()
    with source_of(answers, one_of=lambda dump: dump.uuid) as source, ExitStack() as ends:
        wires = []
        for user in ("one", "other"):
            wires.append(asking(ends, source, user, uuid=UUID_A))
            wait_until(lambda: len(answers.asked) == len(wires), what="it is served")
        assert [wire.is_open() for wire in wires] == [True, True]
        asking(ends, source, "one", uuid=UUID_A)
        wait_until(lambda: not wires[0].is_open(), what="its older connection was ended")
        assert wires[1].is_open()


def test_an_error_that_nobody_expected_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """In the log with its place, and to whoever asks the source."""
    answers = Answers()
    answers.raises = KeyError("begin")
    with source_of(answers) as source, ExitStack() as ends:
        wire = asking(ends, source)
        wait_until(lambda: source.defect is not None, what="it is noted")
        wait_until(lambda: not wire.is_open(), what="the client has ended")
        assert "KeyError: 'begin' (at test_source.py:" in str(source.defect)
        assert source.failure is source.defect
        assert [one for one in caplog.records if "internal error" in one.getMessage()]
        answers.raises = None
        other = opened(ends, source)
        assert other.log_in()[:1] == b"\0"


def test_a_client_that_takes_more_memory_than_there_is_is_lost() -> None:
    """That is no defect: others are served, and the source stays well."""
    answers = Answers()
    answers.raises = MemoryError()
    with source_of(answers) as source, ExitStack() as ends:
        wire = asking(ends, source)
        wait_until(lambda: not wire.is_open(), what="the client has ended")
        assert source.defect is None
        assert source.failure is None
        answers.raises = None
        asking(ends, source)
        wait_until(lambda: len(answers.asked) == 2, what="the next one is served")


# GTID sets


def intervals(count: int) -> bytes:
    """A set of every second transaction, as a replica sends it."""
    body = struct.pack("<Q", 1) + bytes(16) + struct.pack("<Q", count)
    return body + b"".join(struct.pack("<QQ", n, n + 1) for n in range(1, 2 * count, 2))


def test_a_gtid_set_has_at_most_a_mebibyte() -> None:
    """One more interval is refused by a text that says so; nothing of it is decoded."""
    most = (GTIDS_MOST - 32) // 16
    answers = Answers()
    with source_of(answers) as source, ExitStack() as ends:
        wire = asking(ends, source, gtids=intervals(most))
        wait_until(lambda: answers.asked, what="it is taken")
        (_, dump) = answers.asked[0]
        assert isinstance(dump, DumpByGtid)
        assert dump.gtids.count == most
        for more in (most + 1, 8 * most):
            wire = asking(ends, source, gtids=intervals(more))
            said = wire.packet()
            assert code(said) == 1153
            assert str(GTIDS_MOST).encode() in said or b"of at most" in said
        assert len(answers.asked) == 1


def test_a_users_gtid_sets_are_limited_together() -> None:
    """What one account sends takes no memory from the others; what has left does not count."""
    answers = Answers()
    large = intervals(1000)
    limits = ConnectionLimits(gtids=2 * len(large) + 200)
    with source_of(answers, limits=limits) as source, ExitStack() as ends:
        wires = []
        for number in range(2):
            wires.append(asking(ends, source, gtids=large))
            wait_until(lambda n=number: len(answers.asked) == n + 1, what="it is served")
        refused = asking(ends, source, gtids=large)
        assert code(refused.packet()) == 1226
        asking(ends, source, "other", gtids=large)
        wait_until(lambda: len(answers.asked) == 3, what="another account is served")
        wires[0].socket.close()
        wait_until(lambda: len(source.clients) == 2, what="it has left")
        asking(ends, source, gtids=large)
        wait_until(lambda: len(answers.asked) == 4, what="there is room again")
        assert GtidSet() != answers.asked[-1][1]
