"""Where a recovery's target finds this process.

Law: nothing leaves this machine's loopback without TLS.
"""

import ipaddress
import socket
from contextlib import closing, suppress
from dataclasses import dataclass

from binlog2s3.config.options import split_serve_address
from binlog2s3.errors import RecoveryError
from binlog2s3.server.login import Login

_OPTION = "--serve-address"


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
