"""Where a recovery's target finds this process: the address, and TLS if others could listen in.

Place in the flow: `apply` asks for the address, `replicate` listens there.

Law: nothing leaves this machine's loopback without TLS. The key is made for one run and is only in
memory, except while the TLS library reads it from a file that only this user can read.
"""

import ipaddress
import os
import socket
import ssl
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from binlog2s3.config.options import split_serve_address
from binlog2s3.errors import RecoveryError
from binlog2s3.server.login import Login

_OPTION = "--serve-address"
_VALID = timedelta(days=400)  # clocks differ, and a recovery may take days


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen: an IP address of this machine; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0

    @property
    def needs_tls(self) -> bool:
        """Whether others could listen in."""
        return not ipaddress.ip_address(self.host).is_loopback


def listen(login: Login, wanted: str | None) -> Listen:
    """Where the target of this login finds this process; `wanted` is `--serve-address`.

    Raises RecoveryError if that is None and the target is not on this machine.
    """
    if wanted is not None:
        host, port = split_serve_address(wanted)
        return Listen(host=_own(host), port=port or 0)
    if login.socket or _is_loopback(login.host):
        return Listen()
    own = _towards(login.host, login.port)
    raise RecoveryError(
        f"the target, {login.address}, is not on this machine and must be able to connect to it",
        hint=f"pass an address of this machine that the target reaches: {_OPTION} HOST[:PORT]"
        + (f", perhaps {_OPTION} {own}" if own else ""),
    )


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises RecoveryError if it cannot be opened."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=4)
    except OSError as error:
        raise RecoveryError(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}",
            hint=f"pass another address with {_OPTION}",
        ) from error


def _own(host: str) -> str:
    """The IP address of a name. Raises RecoveryError."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise RecoveryError(
            f"{_OPTION} {host}: {why}", hint="pass an IP address of this machine"
        ) from error
    first = str(found[0][4][0])
    if ipaddress.ip_address(first).is_unspecified:
        raise RecoveryError(
            f"{_OPTION} {host} is not an address that the target can connect to",
            hint="pass an address of this machine that the target reaches",
        )
    return first


def _is_loopback(host: str) -> bool:
    with suppress(OSError, UnicodeError, ValueError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in found)
    return False


def _towards(host: str, port: int) -> str:
    """The address of this machine that it would connect from; "" if unknown. Sends nothing."""
    with suppress(OSError, UnicodeError):
        family, kind, number, _, there = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind, number)) as probe:
            probe.connect(there)
            return str(probe.getsockname()[0])
    return ""


def tls_for(host: str) -> ssl.SSLContext:
    """TLS with a new key and a self-signed certificate for this address."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "binlog2s3")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    with tempfile.TemporaryDirectory(prefix="binlog2s3-tls-") as directory:  # mode 0700
        path = Path(directory) / "pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(path)
    return context
