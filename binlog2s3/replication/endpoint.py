"""Where a replication source listens, and its TLS.

A key that is made here is only in memory, except while the TLS library reads it from a file that
only this user can read.
"""

import ipaddress
import os
import socket
import ssl
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from binlog2s3.errors import ConfigError, RecoveryError

_VALID = timedelta(days=400)  # clocks differ, and a recovery may take days


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a source listens: an IP address of this machine; port 0 takes a free one.

    `tls`: clients may use it, and must if `needs_tls`. `option`: the one that says where.
    """

    host: str = "127.0.0.1"
    port: int = 0
    tls: ssl.SSLContext | None = None
    needs_tls: bool = False
    option: str = "--serve-address"

    def bound(self) -> socket.socket:
        """A listening socket. Raises RecoveryError, naming the option, if it cannot be opened."""
        try:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family, backlog=16)
        except OSError as error:
            raise RecoveryError(
                f"cannot listen on {self.host}:{self.port}: {os.strerror(error.errno or 0)}",
                hint=f"pass another address with {self.option}",
            ) from error


LOOPBACK = Endpoint()
"""A free port for this machine alone, without TLS."""


def tls_of(cert: Path, key: Path, *, options: str = "--") -> ssl.SSLContext:
    """TLS with a certificate and its key. `options`: how the names of their options begin.

    Raises ConfigError if they are not usable.
    """
    context = _context()
    try:
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(
            [f"{options}tls-cert {cert} and {options}tls-key {key}: {error}"],
            hint="both are PEM files, and the key is that of the certificate and not encrypted",
        ) from error
    return context


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


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
    context = _context()
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
