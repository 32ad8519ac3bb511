"""The protocol of a replication source: what replicas say and get, and what nobody gets through."""

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.replication.events import heartbeat_event, rotate_event
from binlog2s3.replication.login import (
    NONCE_SIZE,
    Account,
    Ended,
    LoggedIn,
    TlsWanted,
    native_answer,
    sha2_answer,
)
from binlog2s3.replication.packets import PACKET_MOST
from binlog2s3.replication.protocol import (
    Conversation,
    DumpByGtid,
    DumpByPosition,
    Event,
    ProtocolError,
)
from binlog2s3.replication.queries import Identity
from tests.binlog_writer import previous_gtids_body
from tests.sampling import examples

NONCE = bytes(range(40, 40 + NONCE_SIZE))
ACCOUNT = Account("binlog2s3", "a secret")
UUID = "5e5e5e5e-0000-11f1-8000-000000000001"
MYSQL = Identity(version="9.7.4-binlog2s3", flavour="mysql", server_id=4242, server_uuid=UUID)
MARIADB = Identity(
    version="5.5.5-10.11.18-MariaDB-binlog2s3", flavour="mariadb", server_id=4242,
    server_uuid=UUID, plugin="mysql_native_password",
)  # fmt: skip
CAPABILITIES = 0x1 | 0x4 | 0x8 | 0x200 | 0x8000 | 1 << 19 | 1 << 21
SHA2, NATIVE = b"caching_sha2_password", b"mysql_native_password"
NOW = 1_800_000_000
TLS_REQUEST = struct.pack("<IIB", CAPABILITIES | 0x800, 1 << 30, 45) + bytes(23)


def framed(payload: bytes, sequence: int) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([sequence]) + payload


def login(
    answer: bytes, *, user: bytes = b"binlog2s3", plugin: bytes = SHA2, flags: int = CAPABILITIES
) -> bytes:
    """Protocol::HandshakeResponse41."""
    return (
        struct.pack("<IIB", flags, 1 << 30, 45) + bytes(23) + user + b"\0"
        + bytes([len(answer)]) + answer + (b"mysql\0" if flags & 0x8 else b"") + plugin + b"\0"
    )  # fmt: skip


IN = LoggedIn(ACCOUNT.user)
DENIED = Ended("access denied", is_denied=True)


def packets(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:3], "little")
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


class Client:
    """Talks to a conversation, and keeps what it says."""

    def __init__(self, identity: Identity = MYSQL, **more: bool) -> None:
        self.source = Conversation(identity, [ACCOUNT], nonce=NONCE, connection_id=7, **more)
        self.greeting = packets(self.source.greeting())[0]
        self.sequence = 1

    def say(self, payload: bytes) -> tuple[list[Event], list[bytes]]:
        events = self.source.receive(framed(payload, self.sequence), now=NOW)
        said = packets(self.source.to_send())
        self.sequence += 1 + len(said)
        return events, said

    def log_in(self) -> "Client":
        assert self.say(login(sha2_answer(b"a secret", NONCE)))[0] == [IN]
        return self

    def command(self, payload: bytes) -> tuple[list[Event], list[bytes]]:
        self.sequence = 0
        return self.say(payload)

    def query(self, text: str) -> list[bytes]:
        events, said = self.command(b"\x03" + text.encode())
        assert events == []
        return said


def is_ok(said: list[bytes]) -> bool:
    return len(said) == 1 and said[0][0] == 0


def code(said: list[bytes]) -> int:
    assert said[-1][0] == 0xFF
    return int.from_bytes(said[-1][1:3], "little")


def value(said: list[bytes]) -> list[str | None]:
    """The one row's values."""
    row, found = said[1 + said[0][0] + 1], list[str | None]()
    at = 0
    while at < len(row):
        if row[at] == 0xFB:
            found.append(None)
            at += 1
        else:
            found.append(row[at + 1 : at + 1 + row[at]].decode())
            at += 1 + row[at]
    return found


# login


def test_the_greeting_is_of_protocol_10() -> None:
    """Version, nonce in two parts, the plugin's name; TLS is offered only where there is some."""
    greeting = Client().greeting
    assert greeting.startswith(b"\x0a9.7.4-binlog2s3\0\x07\0\0\0" + NONCE[:8] + b"\0")
    assert greeting.endswith(bytes(10) + NONCE[8:] + b"\0" + SHA2 + b"\0")
    at = greeting.index(NONCE[:8]) + 9
    assert not greeting[at + 1] & 0x08, "CLIENT_SSL is 0x800"
    assert Client(has_tls=True).greeting[at + 1] & 0x08


def test_the_password_is_proved_without_being_sent() -> None:
    """caching_sha2_password, fast path."""
    events, said = Client().say(login(sha2_answer(b"a secret", NONCE)))
    assert events == [IN]
    assert said[0] == b"\x01\x03"
    assert is_ok(said[1:])


def test_mariadb_uses_its_own_plugin() -> None:
    """A client that begins with another plugin is asked to switch."""
    events, said = Client(MARIADB).say(login(native_answer(b"a secret", NONCE), plugin=NATIVE))
    assert (events, is_ok(said)) == ([IN], True)
    client = Client(MARIADB)
    events, said = client.say(login(b"", plugin=SHA2))
    assert (events, said) == ([], [b"\xfe" + NATIVE + b"\0" + NONCE + b"\0"])
    events, said = client.say(native_answer(b"a secret", NONCE))
    assert (events, is_ok(said)) == ([IN], True)


@pytest.mark.parametrize("identity", [MYSQL, MARIADB])
@pytest.mark.parametrize(
    ("user", "password"),
    [(b"binlog2s3", b"another"), (b"binlog2s3", b""), (b"root", b"a secret"), (b"", b""),
     (b"root", b""), ("binlog2s3é".encode("latin-1"), b"a secret")],
)  # fmt: skip
def test_who_is_not_the_account_is_refused(
    identity: Identity, user: bytes, password: bytes
) -> None:
    """A wrong password and a wrong name look the same."""
    make, plugin = (sha2_answer, SHA2) if identity is MYSQL else (native_answer, NATIVE)
    client = Client(identity)
    events, said = client.say(login(make(password, NONCE), user=user, plugin=plugin))
    assert events == [DENIED]
    assert code(said) == 1045
    assert said[-1].endswith(b"Access denied: wrong user or password")
    assert client.source.receive(framed(b"\x03SELECT VERSION()", 0), now=NOW) == []
    assert client.source.to_send() == b""


def test_no_account_without_a_password() -> None:
    """An empty one lets nobody in."""
    for identity, plugin in ((MYSQL, SHA2), (MARIADB, NATIVE)):
        source = Conversation(identity, [Account("u", "")], nonce=NONCE, connection_id=1)
        source.greeting()
        events = source.receive(framed(login(b"", user=b"u", plugin=plugin), 1), now=NOW)
        assert events == [DENIED]


def secured(**more: bool) -> Client:
    client = Client(has_tls=True, **more)
    assert client.say(TLS_REQUEST) == ([TlsWanted()], [])
    client.source.secured()
    return client


def test_tls_comes_before_the_login() -> None:
    """SSLRequest, then the same login as without; also where nothing else is let in."""
    client = secured(needs_tls=True)
    answer = login(sha2_answer(b"a secret", NONCE), flags=CAPABILITIES | 0x800)
    assert client.say(answer)[0] == [IN]
    events, said = Client(has_tls=True, needs_tls=True).say(login(b"x" * 32))
    assert (events, code(said)) == ([Ended("no TLS")], 3159)


def test_under_tls_the_password_itself_may_be_asked_for() -> None:
    """Full authentication, for a client whose first answer was none."""
    for password, found in ((b"a secret\0", IN), (b"another\0", DENIED)):
        client = secured()
        events, said = client.say(login(b"x" * 32, flags=CAPABILITIES | 0x800))
        assert (events, said) == ([], [b"\x01\x04"])
        assert client.say(password)[0] == [found]


def test_bytes_before_tls_are_refused() -> None:
    """Whoever sits between could have put them there, to be taken for the client's own."""
    client = Client(has_tls=True)
    early = framed(login(sha2_answer(b"a secret", NONCE)), 2)
    with pytest.raises(ProtocolError, match="before TLS"):
        client.source.receive(framed(TLS_REQUEST, 1) + early, now=NOW)
    with pytest.raises(ValueError, match="has not asked"):
        client.source.secured()


def test_secrets_are_not_shown() -> None:
    """In what is printed of an account, or said of an error."""
    assert "secret" not in repr(ACCOUNT)
    assert "secret" not in repr(Client().log_in().source)


# queries


def test_what_a_mysql_replica_asks() -> None:
    """9.7, in its order (measured)."""
    client = Client().log_in()
    assert value(client.query("SELECT UNIX_TIMESTAMP()")) == [str(NOW)]
    assert value(client.query("SELECT @@GLOBAL.SERVER_ID")) == ["4242"]
    period = "SET @master_heartbeat_period = 30000000000, @source_heartbeat_period = 30000000000"
    assert is_ok(client.query(period))
    assert is_ok(client.query(
        "SET @master_binlog_checksum = @@global.binlog_checksum, "
        "@source_binlog_checksum = @@global.binlog_checksum"
    ))  # fmt: skip
    assert value(client.query("SELECT @source_binlog_checksum")) == ["CRC32"]
    assert value(client.query("SELECT @@GLOBAL.GTID_MODE")) == ["ON"]
    assert value(client.query("SELECT @@GLOBAL.SERVER_UUID")) == [UUID]
    assert is_ok(client.query("SET @slave_uuid = 'a-b', @replica_uuid = 'a-b'"))
    host = b"\x04db-1\x00\x00" + struct.pack("<HII", 3306, 0, 0)
    assert client.command(b"\x15" + struct.pack("<I", 99) + host) == ([], [b"\0\0\0\x02\0\0\0"])
    gtids = GtidSet.parse(f"{UUID}:1-5:blue:7")
    body = previous_gtids_body(gtids)
    dump = struct.pack("<HII", 2, 99, 0) + struct.pack("<QI", 4, len(body)) + body
    events, said = client.command(b"\x1e" + dump)
    assert said == []
    assert events == [
        DumpByGtid(
            server_id=99,
            uuid="a-b",
            name="",
            gtids=gtids,
            heartbeat=30.0,
            heartbeat_v2=True,
            registered=True,
        )
    ]


@pytest.mark.parametrize("old", ["SET @master_binlog_checksum= @@global.binlog_checksum"])
def test_what_an_older_replica_asks(old: str) -> None:
    """5.7 to 8.0.25: the old names alone."""
    client = Client().log_in()
    assert is_ok(client.query("SET @master_heartbeat_period= 1000000000"))
    assert is_ok(client.query(old))
    assert value(client.query("SELECT @master_binlog_checksum")) == ["CRC32"]
    assert is_ok(client.query(f"SET @slave_uuid= '{UUID}'"))
    events, _ = client.command(b"\x12" + struct.pack("<IHI", 1234, 0, 9) + b"binlog.000007")
    assert events == [
        DumpByPosition(
            server_id=9, uuid=UUID, name="binlog.000007", position=1234, state=None, heartbeat=1.0,
            heartbeat_v2=False,
        )
    ]  # fmt: skip


def test_what_a_mariadb_replica_asks() -> None:
    """10.11, in its order (measured); `binlog_gtid_pos` may fail, as on a source without it."""
    client = Client(MARIADB)
    assert client.say(login(native_answer(b"a secret", NONCE), plugin=NATIVE))[0] == [IN]
    assert value(client.query("SHOW VARIABLES LIKE 'SERVER_ID'")) == ["server_id", "4242"]
    assert is_ok(client.query("SET @master_heartbeat_period= 5000000000"))
    assert is_ok(client.query("SET @master_binlog_checksum= @@global.binlog_checksum"))
    assert value(client.query("SELECT @master_binlog_checksum")) == ["CRC32"]
    assert is_ok(client.query("SET @mariadb_slave_capability=4"))
    assert value(client.query("SELECT @@GLOBAL.gtid_domain_id")) == ["0"]
    assert is_ok(client.query("SET @slave_connect_state='0-11-16002,1-2-3'"))
    assert is_ok(client.query("SET @slave_gtid_strict_mode=0"))
    assert is_ok(client.query("SET @slave_gtid_ignore_duplicates=0"))
    assert code(client.query("SELECT binlog_gtid_pos('mysql-bin.000001',4)")) == 1235
    events, _ = client.command(b"\x12" + struct.pack("<IHI", 4, 0, 9))
    (dump,) = events
    assert isinstance(dump, DumpByPosition)
    assert dump.state == MariadbGtidList.parse("0-11-16002,1-2-3")


def test_semi_sync_is_off() -> None:
    """By its old name and its new one; what the replica then sets does no harm."""
    client = Client().log_in()
    for name in ("master", "source"):
        assert value(client.query(f"SELECT @@global.rpl_semi_sync_{name}_enabled")) == ["0"]
    assert is_ok(client.query("SET @rpl_semi_sync_replica = 1"))


@pytest.mark.parametrize(
    "text",
    ["SET NAMES utf8mb4", "set names 'utf8mb4' collate 'utf8mb4_general_ci'", "SET AUTOCOMMIT = 0",
     "SET SESSION sql_mode='STRICT_ALL_TABLES,NO_ZERO_DATE'", "SET @@session.wait_timeout=28800",
     "SET time_zone = '+00:00'", "COMMIT", "ROLLBACK;"],
)  # fmt: skip
def test_what_has_no_effect_is_answered(text: str) -> None:
    """A replica that connects again, and libraries, send these first."""
    assert is_ok(Client().log_in().query(text))


def test_what_tools_show() -> None:
    """Where the newest binlog ends, and variables; of an unknown one there is no row."""
    who = replace(MYSQL, newest=("binlog.000007", 1234), gtids=f"{UUID}:1-5")
    client = Client(who).log_in()
    for text in ("SHOW MASTER STATUS", "SHOW BINARY LOG STATUS"):
        assert value(client.query(text)) == ["binlog.000007", "1234", "", "", f"{UUID}:1-5"]
    assert value(client.query("SHOW GLOBAL VARIABLES LIKE 'BINLOG_CHECKSUM'")) == [
        "binlog_checksum", "CRC32",
    ]  # fmt: skip
    assert value(client.query('SHOW GLOBAL VARIABLES LIKE "binlog_format";')) == [
        "binlog_format", "ROW",
    ]  # fmt: skip
    for empty in ("SHOW VARIABLES LIKE 'rpl_semi_sync_master_enabled'", "SHOW WARNINGS"):
        said = client.query(empty)
        assert said[-2:] == [said[-1], said[-1]]  # two EOF packets and no row between them
        assert said[-1][0] == 0xFE
    assert len(Client().log_in().query("SHOW MASTER STATUS")) == 8


@pytest.mark.parametrize(
    "text",
    ["SELECT 1", "DROP TABLE a", "SELECT @@version_comment LIMIT 1", "", "SET",
     "SET NAMES (SELECT 1)", "SELECT @@GLOBAL.SERVER_ID, 1", "SELECT @@secure_file_priv",
     "SET @slave_uuid = 'a' + 1",
     "SET @slave_uuid = 'a',", "SET @slave_uuid = 'a''b'", "SET @slave_until_gtid='0-1-5'",
     "SET GLOBAL x = 1", "SET @slave_uuid", "SELECT @secret", "/*!SELECT*/ UNIX_TIMESTAMP()",
     "SELECT @@GLOBAL.GTID_DOMAIN_ID", "SELECT UNIX_TIMESTAMP(); DROP TABLE a"],
)  # fmt: skip
def test_all_else_gets_a_clean_error(text: str) -> None:
    """And the conversation goes on."""
    client = Client().log_in()
    assert code(client.query(text)) in (1193, 1235)
    assert is_ok(client.command(b"\x0e")[1])


def test_other_commands_get_a_clean_error() -> None:
    """COM_INIT_DB, COM_STMT_PREPARE, ... none is known here; COM_QUIT ends it."""
    client = Client().log_in()
    for command in set(range(256)) - {0x01, 0x03, 0x0E, 0x12, 0x15, 0x1E}:
        assert code(client.command(bytes([command]) + b"x")[1]) == 1047
    assert client.command(b"\x01") == ([Ended()], [])


def test_who_knows_no_checksums_gets_no_events() -> None:
    """Events are served as they lie in the archive."""
    client = Client().log_in()
    events, said = client.command(b"\x12" + struct.pack("<IHI", 4, 0, 9))
    assert (events, code(said)) == ([Ended("a replica without checksums")], 1236)


@pytest.mark.parametrize("state", ["0-1", "x", "0-1-5,", "4294967296-1-1"])
def test_a_state_that_is_none_is_malformed(state: str) -> None:
    """The replica is told, and the conversation is over."""
    client = Client(MARIADB)
    client.say(login(native_answer(b"a secret", NONCE), plugin=NATIVE))
    client.query("SET @master_binlog_checksum= @@global.binlog_checksum")
    assert is_ok(client.query(f"SET @slave_connect_state='{state}'"))
    if state.endswith(","):
        assert client.command(b"\x12" + struct.pack("<IHI", 4, 0, 9))[0]
        return
    with pytest.raises(ProtocolError) as raised:
        client.command(b"\x12" + struct.pack("<IHI", 4, 0, 9))
    assert raised.value.code == 1835
    assert code(packets(client.source.to_send())) == 1835


# events


def crc_is_right(event: bytes) -> bool:
    return zlib.crc32(event[:-4]) == int.from_bytes(event[-4:], "little")


def test_a_rotate_names_a_place() -> None:
    """Artificial: no time, no position of its own; with or without a checksum."""
    event = rotate_event("binlog.000002", 5 << 32, server_id=4242, checksum=True)
    assert crc_is_right(event)
    assert struct.unpack_from("<IBIIIH", event) == (0, 4, 4242, len(event), 0, 0x20)
    assert event[19:-4] == struct.pack("<Q", 5 << 32) + b"binlog.000002"
    plain = rotate_event("binlog.000002", 4, server_id=1, checksum=False)
    assert plain[19:] == struct.pack("<Q", 4) + b"binlog.000002"


def test_a_heartbeat_names_the_place_too() -> None:
    """From 4 GiB on a replica that can read it gets version 2, as the header has 32 bits."""
    event = heartbeat_event("b.000002", 1234, server_id=1, checksum=True, version_2=True)
    assert (event[4], event[13:17], event[19:-4]) == (27, struct.pack("<I", 1234), b"b.000002")
    large = heartbeat_event("b.000002", 5 << 32, server_id=1, checksum=True, version_2=True)
    assert large[4] == 41
    place = b"\xfe" + struct.pack("<Q", 5 << 32)
    assert large[19:-4] == b"\x01\x08b.000002\x02\x09" + place + b"\0"
    assert heartbeat_event("b", 5 << 32, server_id=1, checksum=True)[4] == 27


@pytest.mark.parametrize("size", [19, PACKET_MOST - 2, PACKET_MOST - 1, PACKET_MOST,
                                  2 * PACKET_MOST - 1, 2 * PACKET_MOST + 5])  # fmt: skip
def test_a_large_event_goes_in_several_packets(size: int) -> None:
    """A full packet says that another one follows, if need be an empty one."""
    client = Client().log_in()
    event = random.Random(size).randbytes(size)
    data = b""
    for begin, end in pairwise(sorted({0, 7, min(PACKET_MOST, size), size})):
        parts = client.source.event_packets(event[begin:end], size=0 if begin else size)
        data += b"".join(bytes(part) for part in parts)
    found, sizes, at = b"", list[int](), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "little")
        found += data[at + 4 : at + 4 + length]
        sizes.append(length)
        at += 4 + length
    assert found == b"\0" + event
    assert sizes[:-1] == [PACKET_MOST] * (len(sizes) - 1)
    assert sizes[-1] < PACKET_MOST


# what nobody gets through


def replica(identity: Identity) -> Iterator[bytes]:
    """What a replica says from its login to its dump, packet by packet."""
    if identity is MYSQL:
        yield framed(login(sha2_answer(b"a secret", NONCE)), 1)
    else:
        yield framed(login(native_answer(b"a secret", NONCE), plugin=NATIVE), 1)
    for text in (
        "SELECT UNIX_TIMESTAMP()",
        "SET @master_heartbeat_period= 1000000000",
        "SET @master_binlog_checksum= @@global.binlog_checksum",
        "SET @slave_connect_state='0-11-16002'",
    ):
        yield framed(b"\x03" + text.encode(), 0)
    yield framed(b"\x15" + struct.pack("<I", 99) + bytes(13), 0)
    body = previous_gtids_body(GtidSet.parse(f"{UUID}:1-5:blue:7"))
    dump = struct.pack("<HII", 0, 99, 3) + b"abc" + struct.pack("<QI", 4, len(body)) + body
    if identity is MYSQL:
        yield framed(b"\x1e" + dump, 0)
    else:
        yield framed(b"\x12" + struct.pack("<IHI", 4, 0, 9), 0)
    yield framed(b"\x01", 0)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, cut out, put in, doubled."""
    found = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(found) + 1)
        how = chance.randrange(5)
        if how == 0 and at < len(found):
            found[at] = chance.choice((0, 1, 0xFB, 0xFC, 0xFF, chance.randrange(256)))
        elif how == 1:
            del found[at : at + chance.randrange(1, 20)]
        elif how == 2:
            found[at:at] = chance.randbytes(chance.randrange(1, 20))
        elif how == 3:
            found[at:at] = found[: chance.randrange(1, 50)]
        else:
            found[at : at + 8] = b"\xff" * 8
    return bytes(found)


def talk(
    identity: Identity, said: list[bytes], *, chance: random.Random, knows_password: bool
) -> None:
    """Whatever is said: no error but the protocol's, little memory, no answer before the login."""
    source = Conversation(identity, [ACCOUNT], nonce=NONCE, connection_id=1, has_tls=True)
    source.greeting()
    is_in = False
    data = b"".join(said)
    while data:
        size = chance.choice((1, 3, 40, len(data))) if is_in else 1
        part, data = data[:size], data[size:]
        try:
            events = source.receive(part, now=NOW)
        except ProtocolError:
            data = b""
            events = []
        is_in = is_in or IN in events
        answer = source.to_send()
        assert len(answer) < 4096 + 600 * len(part)
        if not is_in:
            assert not answer or answer[4] in (0xFE, 0x01, 0xFF)
            assert knows_password or not any(isinstance(event, LoggedIn) for event in events)
        if any(isinstance(event, TlsWanted) for event in events):
            source.secured()
        if any(isinstance(event, Ended) for event in events):
            data = b""


@pytest.mark.parametrize("identity", [MYSQL, MARIADB], ids=["mysql", "mariadb"])
def test_ten_thousand_wrong_packets(identity: Identity) -> None:
    """Mutations of what replicas say, and bytes by chance."""
    for seed in range(examples(10_000, gate=1000)):
        chance = random.Random(seed)
        said = list(replica(identity))
        if seed % 3 == 0:
            at = chance.randrange(len(said))
            said[at] = mutated(said[at], chance)
        elif seed % 3 == 1:
            at = chance.randrange(1, len(said))
            payload = chance.randbytes(chance.randrange(200))
            said[at] = framed(bytes([chance.randrange(32)]) + payload, 0)
        else:
            said = [mutated(one, chance) for one in said]
        talk(identity, said, chance=chance, knows_password=True)


@settings(max_examples=examples(2000), deadline=None)
@given(data=st.binary(max_size=300), seed=st.integers(0, 1 << 32))
def test_bytes_that_are_no_login(data: bytes, seed: int) -> None:
    """Nobody is let in by them, and nothing is answered."""
    for frame in (lambda raw: raw, lambda raw: framed(raw, 1)):
        talk(MYSQL, [frame(data)], chance=random.Random(seed), knows_password=False)


def test_a_packet_that_is_too_large_is_not_waited_for() -> None:
    """Before the login 4 KiB are room enough, after it a GTID set's 8 MiB."""
    for client, size, told in ((Client(), 1 << 13, 0), (Client().log_in(), 9 << 20, 1153)):
        head = size.to_bytes(3, "little") + bytes([client.sequence if told == 0 else 0])
        with pytest.raises(ProtocolError) as raised:
            client.source.receive(head, now=NOW)
        assert raised.value.code == told
        assert bool(client.source.to_send()) == bool(told)


def test_a_long_query_is_refused() -> None:
    """Nothing that replicas ask is."""
    client = Client().log_in()
    assert code(client.query("SET @slave_uuid = '" + "a" * (1 << 17) + "'")) == 1153


def test_a_count_of_gtids_that_cannot_be_is_no_loop() -> None:
    """The set's head names 2**48 servers; the packet has one."""
    client = Client().log_in()
    client.query("SET @master_binlog_checksum= @@global.binlog_checksum")
    body = (b"\x01" + ((1 << 48) - 1).to_bytes(6, "little") + b"\x01") + bytes(25)
    dump = struct.pack("<HII", 0, 99, 0) + struct.pack("<QI", 4, len(body)) + body
    with pytest.raises(ProtocolError):
        client.command(b"\x1e" + dump)


@pytest.mark.parametrize("nonce", [b"", bytes(20), b"a" * 21])
def test_a_nonce_is_20_bytes_without_zeros(nonce: bytes) -> None:
    """A zero would end it on the way."""
    make: Callable[[], Conversation] = lambda: Conversation(  # noqa: E731
        MYSQL, [ACCOUNT], nonce=nonce, connection_id=1
    )
    with pytest.raises(ValueError, match="nonce"):
        make()
