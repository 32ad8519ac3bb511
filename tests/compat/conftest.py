"""The places of the compatibility matrix: each version of the lab, or a server of one's own.

Law: COMPAT_MYSQL, COMPAT_S3 and COMPAT_DEFAULTS name the latter; no password is in any of them.
Without COMPAT_ALL only the oldest and the newest version are tried, which no other test runs on.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from lab import get
from lab.cache import Unavailable
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.compat.place import DATABASE, Lab, OwnServer, Place
from tests.pool import Pool, shared

OWN = "own"
ENDS = ("mysql-5.7.22", "mariadb-11.8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each cell on each version, or on the one server that is named."""
    if "version" not in metafunc.fixturenames:
        return
    versions = [*get.VERSIONS]
    if os.environ.get("COMPAT_MYSQL"):
        versions = [OWN]
    elif not os.environ.get("COMPAT_ALL"):
        versions = [*ENDS]
    metafunc.parametrize("version", versions, scope="session")


@pytest.fixture(scope="session")
def servers(version: str) -> Iterator[Sequence[Pool]]:
    """A source and a target of this version, which each cell gets as if just started."""
    if version == OWN:
        yield ()
        return
    binaries = binaries_of(version)
    pools = [
        Pool(partial(shared, binaries, server_id=1)),
        Pool(partial(shared, binaries, server_id=2)),
    ]
    yield pools
    for pool in pools:
        pool.close()


@pytest.fixture
def place(
    servers: Sequence[Pool],
    request: pytest.FixtureRequest,
    disk_tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> Iterator[Place]:
    """A server of this version with a bucket, or one's own."""
    if servers:
        minio: MinioServer = request.getfixturevalue("minio")
        found = of_lab(servers[0].take(), minio, disk_tmp_path)
        record_property("server", found.title)
        yield found
        return
    with _own(disk_tmp_path) as found:
        record_property("server", found.title)
        yield found


@pytest.fixture
def another(servers: Sequence[Pool]) -> MysqlServer:
    """A second, empty server of the same version."""
    if not servers:
        pytest.skip("it needs a second server of this version")
    return servers[1].take()


def binaries_of(version: str) -> get.ServerBinaries:
    """The programs of a version, or the cell is not run."""
    try:
        return get.VERSIONS[version]()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


def of_lab(server: MysqlServer, minio: MinioServer, directory: Path) -> Place:
    """One of the lab's servers with a bucket of its own."""
    bucket = minio.make_bucket()
    options = {
        "source": "test",
        "mysql-host": "127.0.0.1",
        "mysql-port": str(server.port),
        "mysql-user": server.repl_user,
        "mysql-password-file": str(server.password_file),
        "mysqlbinlog": str(server.binaries.binlog),
        "s3-url": f"s3://{bucket}/pre",
        "endpoint-url": minio.endpoint_url,
        "addressing-style": "path",
        "region": "us-east-1",
    }
    return Place(
        server=server,
        lab=Lab(server=server, store=minio, bucket=bucket),
        directory=directory,
        options=options,
        environment=minio.env(),
    )


@contextmanager
def _own(directory: Path) -> Iterator[Place]:
    defaults = Path(os.environ.get("COMPAT_DEFAULTS") or "~/.my.cnf").expanduser()
    server = OwnServer(os.environ["COMPAT_MYSQL"], defaults)
    prefix = f"{os.environ['COMPAT_S3'].rstrip('/')}/binlog2s3-compat-{secrets.token_hex(4)}"
    environment = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    with ExitStack() as stack:
        stack.callback(server.query, f"DROP DATABASE IF EXISTS {DATABASE}")
        yield Place(
            server=server,
            directory=directory,
            options={"source": "test", **server.options, "s3-url": prefix},
            environment=environment,
        )
