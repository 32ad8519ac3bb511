"""Where a target finds a recovery, and when it has to be by TLS."""

import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.config.pitr import PitrConfig
from binlog2s3.config.values import MysqlConfig, S3Config
from binlog2s3.errors import ConfigError, RecoveryError
from binlog2s3.recover.channel import name_of
from binlog2s3.recover.listen import Certificate, Listen, listen
from binlog2s3.recover.plan_source import PlanSource, Served
from binlog2s3.replication.listen import tls_for, tls_of
from binlog2s3.replication.login import Account
from binlog2s3.replication.queries import Identity
from binlog2s3.server.login import Login
from tests.login import ROOT

LOCAL = replace(ROOT, host="127.0.0.1", port=3307, socket=None, prefix="target")
AWAY = replace(LOCAL, host="192.0.2.7")
VERIFIED = {
    "serve_tls_cert": Path("/c.pem"),
    "serve_tls_key": Path("/k.pem"),
    "serve_tls_ca": "/etc/mysql/pitr.pem",
}


def found(login: Login, wanted: str | None, **given: Any) -> Listen:
    """Where the target of this login finds a recovery that is told this."""
    s3 = S3Config(bucket="b", prefix="p")
    return listen(login, PitrConfig(s3=s3, source="orders", serve_address=wanted, **given))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.4.5.6", "localhost", "::1"])
def test_a_target_on_this_machine(host: str) -> None:
    """Needs no word, and no TLS."""
    there = found(replace(LOCAL, host=host), None)
    assert there == Listen(host="127.0.0.1", port=0)
    assert not there.needs_tls


def test_a_target_behind_a_socket() -> None:
    """Is on this machine, whatever its host is called."""
    assert found(replace(AWAY, socket="/run/mysqld.sock"), None) == Listen()


@pytest.mark.parametrize(
    ("wanted", "host", "port"),
    [
        ("192.0.2.1", "192.0.2.1", 0),
        ("192.0.2.1:3307", "192.0.2.1", 3307),
        ("[2001:db8::1]:3307", "2001:db8::1", 3307),
        ("2001:db8::1", "2001:db8::1", 0),
    ],
)
def test_an_address_that_others_reach(wanted: str, host: str, port: int) -> None:
    """Is taken, and nothing goes there without TLS."""
    there = found(AWAY, wanted, **VERIFIED)
    assert (there.host, there.port) == (host, port)
    assert there.needs_tls


@pytest.mark.parametrize("login", [AWAY, replace(LOCAL, socket="/run/mysqld.sock")])
def test_a_target_verifies_whom_it_replicates_from(login: Login) -> None:
    """Or it is refused, unless the operator accepts that it does not."""
    with pytest.raises(RecoveryError, match="nothing proves to the target") as caught:
        found(login, "192.0.2.1")
    for option in ("--serve-tls-cert", "--serve-tls-ca", "--target-accept-unverified-server"):
        assert option in caught.value.hint
    accepts = MysqlConfig(prefix="target", accept_unverified_server=True)
    assert found(login, "192.0.2.1", target=accepts).certificate is None
    shown = found(login, "192.0.2.1", **VERIFIED).certificate
    assert shown == Certificate(
        name="192.0.2.1", cert=Path("/c.pem"), key=Path("/k.pem"), ca="/etc/mysql/pitr.pem"
    )


def test_loopback_of_ipv6_needs_no_tls() -> None:
    """It does not leave the machine, as far as is known here."""
    there = found(AWAY, "::1")
    assert (there.host, there.needs_tls) == ("::1", False)


def test_a_certificate_that_is_given_is_used() -> None:
    """At a loopback address, too, which may be the end of a tunnel to the target."""
    there = found(AWAY, "127.0.0.1:3307", **VERIFIED)
    assert there.needs_tls
    assert there.certificate is not None
    assert there.certificate.name == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"--serve-tls-cert /c.pem"):
        there.tls()


@pytest.mark.parametrize("wanted", ["0.0.0.0", "[::]:3307"])
def test_no_address_to_connect_to(wanted: str) -> None:
    """One that means all of this machine's is none for the target."""
    with pytest.raises(RecoveryError, match="is not an address that the target can connect to"):
        found(AWAY, wanted)


def test_a_name_that_is_none() -> None:
    """It is said so."""
    with pytest.raises(RecoveryError, match="--serve-address"):
        found(AWAY, "no-such-host.invalid")


def test_a_target_elsewhere_needs_a_word() -> None:
    """With the option that says it."""
    with pytest.raises(RecoveryError, match="not on this machine") as caught:
        found(AWAY, None)
    assert "--serve-address" in caught.value.hint


def test_the_certificate_is_for_the_address() -> None:
    """A client that trusts it accepts it for that address; the key is new each time."""
    ours, theirs = socket.socketpair()
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    server = tls_for("192.0.2.7")

    def serve() -> None:
        with ours, server.wrap_socket(ours, server_side=True) as wrapped:
            wrapped.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with theirs, context.wrap_socket(theirs, server_hostname="192.0.2.7") as client:
        first = client.getpeercert(binary_form=True)
        client.sendall(b"x")
    thread.join(10)
    assert first is not None
    assert bytes([192, 0, 2, 7]) in first


def test_a_certificate_that_is_not_usable(tmp_path: Path) -> None:
    """The options that name it and its key are named."""
    with pytest.raises(ConfigError, match=r"--serve-tls-cert .*c.pem and --serve-tls-key") as no:
        tls_of(tmp_path / "c.pem", tmp_path / "k.pem", options="--serve-")
    assert "PEM" in no.value.hint


def test_tls_that_begins_in_the_same_segment() -> None:
    """A client does not wait between its request and its first TLS record."""
    identity = Identity(
        version="9.7.0", flavour="mysql", server_id=7, server_uuid="u", gtid_mode="ON"
    )
    served = Served(pieces=(), name_of=name_of, open=lambda _: iter(()))
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(into, out, server_hostname="127.0.0.1")
    request = (0x0A00).to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes(24)
    with (
        PlanSource(
            identity, Account("u", "p"), served, tls=tls_for("127.0.0.1"), needs_tls=True
        ) as source,
        socket.create_connection(source.address, timeout=60) as raw,
    ):
        assert raw.recv(1 << 16)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        raw.sendall(b"\x20\x00\x00\x01" + request + out.read())
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                raw.sendall(out.read())
                data = raw.recv(1 << 16)
                assert data, "the server has closed it"
                into.write(data)
    assert client.version() in {"TLSv1.2", "TLSv1.3"}
