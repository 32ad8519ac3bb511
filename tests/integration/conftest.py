"""Servers with certificates and accounts of all kinds, for the tests of logging in."""

import ipaddress
from collections.abc import Iterator

import pytest
from cryptography import x509

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.integration.certificates import Authority
from tests.world.logins import ACCOUNTS, Keys

ZONE = "--default-time-zone=+05:00"  # a server's zone must never get into our times


@pytest.fixture(scope="module")
def keys() -> Iterator[Keys]:
    """An authority, another one, and what the first one signed."""
    with temporary_directory() as directory:
        authority = Authority(directory, "authority")
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        yield Keys(
            ca=authority.ca,
            wrong_ca=Authority(directory, "stranger").ca,
            server=authority.sign("server", x509.DNSName("localhost")),
            client=authority.sign("client"),
            address=authority.sign("address", address),
        )


def _options(keys: Keys) -> list[str]:
    return [
        ZONE,
        f"--ssl-ca={keys.ca}",
        f"--ssl-cert={keys.server.cert}",
        f"--ssl-key={keys.server.key}",
    ]


def _create_accounts(server: MysqlServer) -> None:
    for user, how in ACCOUNTS.items():
        server.query(
            "SET sql_log_bin = 0",
            f"CREATE USER {user}@'%' {how}",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
        )


@pytest.fixture(scope="module")
def mysql_tls(mysql_binaries: ServerBinaries, keys: Keys) -> Iterator[MysqlServer]:
    """A MySQL with our certificate and accounts of all kinds."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, options=_options(keys), server_id=7) as server,
    ):
        _create_accounts(server)
        yield server


@pytest.fixture(scope="module")
def mariadb_tls(mariadb_binaries: ServerBinaries, keys: Keys) -> Iterator[MariadbServer]:
    """A MariaDB with our certificate and accounts of all kinds."""
    with (
        temporary_directory() as directory,
        MariadbServer(mariadb_binaries, directory, options=_options(keys), server_id=7) as server,
    ):
        _create_accounts(server)
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def binaries(request: pytest.FixtureRequest) -> ServerBinaries:
    """The programs of each flavour in turn."""
    found: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    return found


@pytest.fixture(params=["mysql", "mariadb"])
def either_tls(
    request: pytest.FixtureRequest, mysql_tls: MysqlServer, mariadb_tls: MariadbServer
) -> MysqlServer:
    """Each flavour in turn."""
    return mysql_tls if request.param == "mysql" else mariadb_tls
