"""Streamers, small disks, and servers with certificates and accounts of all kinds."""

import ipaddress
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests.integration.certificates import Authority
from tests.integration.small_disk import mount_small
from tests.integration.stream_process import StreamProcess
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


@pytest.fixture(params=["mysql", "mariadb"])
def either(request: pytest.FixtureRequest) -> MysqlServer:
    """Each flavour in turn, fresh."""
    server: MysqlServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def start(minio: MinioServer, bucket: str, disk_tmp_path: Path) -> Callable[..., StreamProcess]:
    """Makes a streamer into `bucket`, in a place of its own; use the answer in a `with`.

    Its options by name, with _ for -.
    """

    def make(
        server: MysqlServer,
        place: str = "one",
        environment: Mapping[str, str | None] | None = None,
        **options: Any,
    ) -> StreamProcess:
        chosen = {name.replace("_", "-"): value for name, value in options.items()}
        return StreamProcess(
            disk_tmp_path / place, server, minio, bucket, options=chosen, environment=environment
        )

    return make


@pytest.fixture
def disk(disk_tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts file systems of so many bytes; they are taken away in the end."""
    with ExitStack() as stack:

        def make(size: int) -> Path:
            place = disk_tmp_path / f"disk-{size}"
            mount_small(place, size)
            stack.callback(lambda: subprocess.run(["umount", place], check=False))
            return place

        yield make
