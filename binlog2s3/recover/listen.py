"""Where a recovery's target finds this process.

Law: nothing leaves this machine's loopback without TLS, and there the target verifies whom it
replicates from, unless the operator accepts that it does not. A certificate that is given is used.
"""

import ipaddress
import socket
import ssl
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.config.options import split_serve_address
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.errors import RecoveryError
from binlog2s3.replication.endpoint import Endpoint, tls_for, tls_of
from binlog2s3.server.login import Login

_OPTION = "--serve-address"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What the target verifies: a certificate with this host name or IP address.

    `ca`: the file with which it does, by its path there.
    """

    name: str
    cert: Path
    key: Path
    ca: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen: an IP address of this machine; port 0 takes a free one."""

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Certificate | None = None
    """None: the target verifies nothing."""

    @property
    def needs_tls(self) -> bool:
        """Whether others could listen in; a loopback address may be the end of a tunnel."""
        return self.certificate is not None or not ipaddress.ip_address(self.host).is_loopback

    def endpoint(self) -> Endpoint:
        """The same for a source, with its TLS if it needs any. Raises ConfigError."""
        return Endpoint(host=self.host, port=self.port, tls=self._tls(), needs_tls=self.needs_tls)

    def _tls(self) -> ssl.SSLContext | None:
        if not self.needs_tls:
            return None
        if self.certificate is None:
            return tls_for(self.host)
        return tls_of(self.certificate.cert, self.certificate.key, options="--serve-")


def listen(login: Login, config: PitrConfig) -> Listen:
    """Where the target of this login finds this process.

    Raises RecoveryError if the target is not on this machine and `--serve-address` is not given, or
    nothing proves to the target that it replicates from this process.
    """
    if config.serve_address is not None:
        name, port = split_serve_address(config.serve_address)
        chosen = Listen(host=_own(name), port=port or 0, certificate=_certificate(name, config))
        accepts = config.target is not None and config.target.accept_unverified_server
        if chosen.needs_tls and chosen.certificate is None and not accepts:
            raise _unverified(login, name)
        return chosen
    if login.socket or _is_loopback(login.host):
        return Listen()
    own = _towards(login.host, login.port)
    raise RecoveryError(
        f"the target, {login.address}, is not on this machine and must be able to connect to it",
        hint=f"pass an address of this machine that the target reaches: {_OPTION} HOST[:PORT]"
        + (f", perhaps {_OPTION} {own}" if own else ""),
    )


def _certificate(name: str, config: PitrConfig) -> Certificate | None:
    cert, key, ca = config.serve_tls_cert, config.serve_tls_key, config.serve_tls_ca
    if cert is None or key is None or ca is None:
        return None
    return Certificate(name=name, cert=cert, key=key, ca=ca)


def _unverified(login: Login, name: str) -> RecoveryError:
    return RecoveryError(
        f"nothing proves to the target, {login.address}, that it replicates from this process: "
        "another one on the way could read and change what it applies",
        hint=f"make a certificate for {name}, copy it to the target's machine, and pass "
        "--serve-tls-cert FILE --serve-tls-key FILE --serve-tls-ca PATH, its path there "
        "(docs/guides/pitr.md has the commands); or accept this risk: "
        "--target-accept-unverified-server",
    )


def _own(host: str) -> str:
    """The IP address of a name. Raises RecoveryError."""
    try:
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a host name"
        raise RecoveryError(
            f"{_OPTION} {host}: {why}", hint="pass an IP address of this machine"
        ) from error
    first = str(addresses[0][4][0])
    if ipaddress.ip_address(first).is_unspecified:
        raise RecoveryError(
            f"{_OPTION} {host} is not an address that the target can connect to",
            hint="pass an address of this machine that the target reaches",
        )
    return first


def _is_loopback(host: str) -> bool:
    with suppress(OSError, UnicodeError, ValueError):
        addresses = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ipaddress.ip_address(str(entry[4][0])).is_loopback for entry in addresses)
    return False


def _towards(host: str, port: int) -> str:
    """The address of this machine that it would connect from; "" if unknown. Sends nothing."""
    with suppress(OSError, UnicodeError):
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, kind, number)) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    return ""
