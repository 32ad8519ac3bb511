"""Where a target finds a recovery, and when it has to be by TLS."""

import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.config.goal import Latest
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.config.stream import MysqlConfig, S3Config
from binlog2s3.errors import ConfigError, RecoveryError
from binlog2s3.recover.listen import Certificate, Listen, listen
from binlog2s3.recover.plan_source import PlanSource
from binlog2s3.replication.endpoint import Endpoint, tls_for, tls_of
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
    config = PitrConfig(s3=s3, source="orders", goal=Latest(), serve_address=wanted, **given)
    return listen(login, config)


NO_ADDRESS = "is not an address that the target can connect to"


@pytest.mark.parametrize(
    ("login", "wanted", "given", "expected"),
    [
        # a target on this machine needs no word, and no TLS; one behind a socket is on it
        *((replace(LOCAL, host=host), None, {}, ("127.0.0.1", 0, False))
          for host in ("127.0.0.1", "127.4.5.6", "localhost", "::1")),
        (replace(AWAY, socket="/run/mysqld.sock"), None, {}, ("127.0.0.1", 0, False)),
        # an address that others reach is taken, and nothing goes there without TLS
        (AWAY, "192.0.2.1", VERIFIED, ("192.0.2.1", 0, True)),
        (AWAY, "192.0.2.1:3307", VERIFIED, ("192.0.2.1", 3307, True)),
        (AWAY, "[2001:db8::1]:3307", VERIFIED, ("2001:db8::1", 3307, True)),
        (AWAY, "2001:db8::1", VERIFIED, ("2001:db8::1", 0, True)),
        (AWAY, "::1", {}, ("::1", 0, False)),  # does not leave the machine
        # a certificate that is given is used: a loopback address may be the end of a tunnel
        (AWAY, "127.0.0.1:3307", VERIFIED, ("127.0.0.1", 3307, True)),
        (AWAY, None, {}, "not on this machine"),
        (AWAY, "0.0.0.0", {}, NO_ADDRESS),
        (AWAY, "[::]:3307", {}, NO_ADDRESS),
        (AWAY, "no-such-host.invalid", {}, "--serve-address"),
    ],
)  # fmt: skip
def test_where_a_target_finds_it(
    login: Login, wanted: str | None, given: dict[str, Any], expected: tuple[str, int, bool] | str
) -> None:
    """Host, port, and whether it has to be by TLS; what is no address for the target is refused."""
    if isinstance(expected, str):
        with pytest.raises(RecoveryError, match=expected) as caught:
            found(login, wanted, **given)
        assert "--serve-address" in f"{caught.value} {caught.value.hint}"
        return
    there = found(login, wanted, **given)
    assert (there.host, there.port, there.needs_tls) == expected


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


def test_a_certificate_that_is_not_usable(tmp_path: Path) -> None:
    """The options that name it and its key are named."""
    with pytest.raises(ConfigError, match=r"--serve-tls-cert /c.pem"):
        found(AWAY, "127.0.0.1:3307", **VERIFIED).endpoint()
    with pytest.raises(ConfigError, match=r"--serve-tls-cert .*c.pem and --serve-tls-key") as no:
        tls_of(tmp_path / "c.pem", tmp_path / "k.pem", options="--serve-")
    assert "PEM" in no.value.hint


def test_tls_that_begins_in_the_same_segment() -> None:
    """A client does not wait between its request and its first TLS record."""
    identity = Identity(
        version="9.7.0", flavour="mysql", server_id=7, server_uuid="u", gtid_mode="ON"
    )
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(into, out, server_hostname="127.0.0.1")
    request = (0x0A00).to_bytes(4, "little") + (1 << 24).to_bytes(4, "little") + bytes(24)
    with (
        PlanSource(
            identity,
            Account("u", "p"),
            (),
            lambda _: iter(()),
            at=Endpoint(tls=tls_for("127.0.0.1"), needs_tls=True),
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
    certificate = client.getpeercert(binary_form=True)
    assert certificate is not None
    assert socket.inet_aton("127.0.0.1") in certificate  # it is for this address
