"""Real servers as fixtures.

Law: where a service cannot be had, the test is skipped on a laptop and fails where CI is set, so
that a green build has really tested it; only s3s-fs, for which Rust is needed, may lack there too.
Tests that ask for `store` run on the one that `--store` names. What such a test needs and a store
lacks stands in its marker `needs`, never in a list of tests.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from lab import get, systemd
from lab.cache import Unavailable
from lab.disk import on_disk, temporary_directory
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer, MotoServer, NanioServer, S3sFsServer, Store, VersitygwServer
from tests import tiers
from tests.pool import Pool, SharedMysql, shared
from tests.sampling import crash_seed

T = TypeVar("T")

# A shell that starts the tests in the background has SIGINT ignored, and every child inherits it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each process of the tests would compile the package again; make takes it away for all its targets.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shared machine is slow at times, and that says nothing about the program.
_SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("gate", _SLOW, max_examples=100)
settings.register_profile("full", _SLOW)

NEEDS_MYSQL = {"mysql_binaries", "mariadb_binaries", "mysql", "mysql_shared", "mariadb"}
NEEDS_MINIO = {"minio_binary", "minio", "bucket"}
STORES = {"minio": "minio", "versitygw": "versitygw", "nanio": "nanio", "s3s-fs": "s3s_fs"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --tier, --sixth and --store."""
    parser.addoption(
        "--tier",
        choices=["gate", "full"],
        default="gate",
        help="which tests: those that every change passes, or all; a test that is named by its "
        "node id always runs",
    )
    parser.addoption(
        "--sixth",
        type=int,
        metavar="N",
        help="with --tier full: of what it has more than the gate, sixth N modulo 6",
    )
    parser.addoption("--store", choices=[*STORES], help="run the tests of streaming on this store")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers that go with --store; load the tier's profile of hypothesis."""
    if config.getoption("--sixth") is not None and config.getoption("--tier") != "full":
        raise pytest.UsageError("--sixth is a part of --tier full")
    settings.load_profile(config.getoption("--tier"))
    crash_seed()  # a wrong one is told before anything runs
    for line in (
        "needs(*features): the test is skipped on a `store` that lacks one, see lab/s3.py",
        "stores(*names): the `store`s for this test where --store names none",
        "own_server(why): the test kills, freezes or configures its MySQL or MariaDB",
    ):
        config.addinivalue_line("markers", line)


def pytest_report_header(config: pytest.Config) -> str:
    """Say what the gate's crash points are drawn with."""
    tier, number = config.getoption("--tier"), config.getoption("--sixth")
    if tier == "gate":
        return f"tier: {tier}, CRASH_SEED={crash_seed()}"
    part = "" if number is None else f", sixth {number % tiers.SIXTHS} of 0 to {tiers.SIXTHS - 1}"
    return f"tier: {tier}{part}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each store of its marker, or on the one of --store."""
    marker = metafunc.definition.get_closest_marker("stores")
    if marker is not None:
        chosen = metafunc.config.getoption("--store")
        metafunc.parametrize("store", [chosen] if chosen else marker.args, indirect=True)


def _node_ids(config: pytest.Config) -> Iterator[str]:
    """The node ids that the command line names, as pytest writes them."""
    for word in config.args:
        path, mark, rest = word.partition("::")
        place = (config.invocation_params.dir / path).resolve()
        if mark and place.is_relative_to(config.rootpath):
            yield f"{place.relative_to(config.rootpath).as_posix()}::{rest}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they ask for and by their tier; leave out those of the other."""
    named = tuple(_node_ids(config))
    chosen = any(
        (named, config.option.keyword, config.option.deselect, config.getoption("--store"))
    )
    if config.option.collectonly and not chosen:  # as tests/unit/test_tiers.py does
        unknown = tiers.unknown_cases(items)
        if unknown:
            raise pytest.UsageError(f"markers name cases that are not there: {', '.join(unknown)}")
    for item in items:
        if tiers.is_full(item):
            item.add_marker(pytest.mark.full)
        asked = set(getattr(item, "fixturenames", ()))
        if asked & NEEDS_MYSQL:
            item.add_marker(pytest.mark.mysql)
        if asked & NEEDS_MINIO:
            item.add_marker(pytest.mark.minio)
    number = config.getoption("--sixth")
    left_out: dict[pytest.Item, None] = {}
    if config.getoption("--tier") == "gate":
        left_out = {
            item: None
            for item in items
            if item.get_closest_marker("full") and not item.nodeid.startswith(named or ("::",))
        }
    elif number is not None:
        left_out = {item: None for item in items if not tiers.is_in_sixth(item, number)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    items[:] = tiers.dealt(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _missing(error: Unavailable, *, promised: bool) -> NoReturn:
    if promised and os.environ.get("CI"):
        pytest.fail(str(error), pytrace=False)
    pytest.skip(str(error))


def _had(obtain: Callable[[], T], *, promised: bool = True) -> T:
    try:
        return obtain()
    except Unavailable as error:
        _missing(error, promised=promised)


@pytest.fixture(scope="session")
def mysql_binaries() -> get.ServerBinaries:
    """A real MySQL's programs."""
    return _had(get.mysql)


@pytest.fixture(scope="session")
def mariadb_binaries() -> get.ServerBinaries:
    """A real MariaDB's programs."""
    return _had(get.mariadb)


@pytest.fixture(scope="session")
def faketime_library() -> Path:
    """libfaketime, for a server whose clock is wrong (`lab.mysql.faketime`)."""
    return _had(get.faketime)


@pytest.fixture(scope="session")
def aws_command() -> Path:
    return _had(get.aws)


@pytest.fixture(scope="session")
def mariadb_encryption() -> Path:
    """A folder with the plugin that encrypts MariaDB's files."""
    return _had(get.mariadb_encryption)


@pytest.fixture(scope="session")
def galera() -> Path:
    """Galera's library."""
    return _had(get.galera)


@pytest.fixture(scope="session")
def mariadb_backup() -> Path:
    """A folder with mariabackup and mbstream, for the lab's MariaDB."""
    return _had(get.mariadb_backup)


@pytest.fixture(scope="session")
def toxiproxy_binary() -> Path:
    """toxiproxy's program."""
    return _had(get.toxiproxy)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' tool that checks rules and metrics."""
    return _had(get.promtool)


@pytest.fixture(scope="session")
def actionlint() -> Path:
    """The checker of workflows."""
    return _had(get.actionlint)


@pytest.fixture(scope="session")
def mandoc() -> Path:
    """mandoc, which shows and checks manual pages."""
    return _had(get.mandoc)


@pytest.fixture(scope="session")
def systemd_analyze() -> list[str]:
    """The words that start systemd-analyze."""
    return _had(systemd.analyze)


@pytest.fixture
def make_machine() -> Iterator[Callable[..., systemd.Machine]]:
    """Makes a machine with a systemd of its own, switched off; arguments as for Machine."""
    with ExitStack() as stack:

        def make(**more: Any) -> systemd.Machine:
            directory = stack.enter_context(temporary_directory())
            machine = systemd.Machine(directory / "machine", **more)
            return _had(lambda: stack.enter_context(machine))

        yield make


@pytest.fixture
def disk_tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A fresh directory that is certainly on disk, for what may grow large."""
    if on_disk(tmp_path):
        yield tmp_path
    else:
        with temporary_directory() as directory:
            yield directory


@pytest.fixture(scope="session")
def minio_binary() -> Path:
    """MinIO's program."""
    return _had(get.minio)


@pytest.fixture(scope="session")
def minio(minio_binary: Path) -> Iterator[MinioServer]:
    """One MinIO for the whole session; take a `bucket` of your own in it."""
    with temporary_directory() as directory, MinioServer(minio_binary, directory) as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    """One moto server for the whole session: never for integrity, races or access rights."""
    with temporary_directory() as directory, MotoServer(directory) as server:
        yield server


@pytest.fixture(scope="session")
def versitygw() -> Iterator[VersitygwServer]:
    """One versitygw for the whole session."""
    binary = _had(get.versitygw)
    with temporary_directory() as directory, VersitygwServer(binary, directory) as server:
        yield server


@pytest.fixture(scope="session")
def nanio() -> Iterator[NanioServer]:
    """One nanio for the whole session: it overwrites whatever `If-None-Match` says."""
    with temporary_directory() as directory, NanioServer(directory) as server:
        yield server


@pytest.fixture(scope="session")
def s3s_fs() -> Iterator[S3sFsServer]:
    """One s3s-fs for the whole session: it cannot list unfinished uploads."""
    binary = _had(get.s3s_fs, promised=False)
    with temporary_directory() as directory, S3sFsServer(binary, directory) as server:
        yield server


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """The store that --store names, or the test's marker; else MinIO."""
    name = getattr(request, "param", None) or request.config.getoption("--store") or "minio"
    found: Store = request.getfixturevalue(STORES[name])
    marker = request.node.get_closest_marker("needs")
    for feature in marker.args if marker else ():
        if feature in found.lacks:
            pytest.skip(f"{found.name} {found.lacks[feature]}")
    return found


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str:
    """A fresh bucket: on MinIO where the test asks for that, else on its `store`."""
    on = "minio" if "minio" in request.fixturenames else "store"
    made: str = request.getfixturevalue(on).make_bucket()
    return made


@pytest.fixture(scope="session")
def _mysql_pool(mysql_binaries: get.ServerBinaries) -> Iterator[Pool]:
    pool = Pool(lambda directory: shared(mysql_binaries, directory))
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def _mariadb_pool(mariadb_binaries: get.ServerBinaries) -> Iterator[Pool]:
    pool = Pool(lambda directory: shared(mariadb_binaries, directory))
    yield pool
    pool.close()


def _wants_its_own(request: pytest.FixtureRequest) -> bool:
    marker = request.node.get_closest_marker("own_server")
    if marker is not None and not any(marker.args):
        pytest.fail("own_server says why", pytrace=False)
    return marker is not None


@pytest.fixture
def mysql(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """A MySQL with GTIDs, as if just started: the worker's, or one of its own (`own_server`)."""
    if not _wants_its_own(request):
        yield request.getfixturevalue("_mysql_pool").take()
        return
    binaries = request.getfixturevalue("mysql_binaries")
    with temporary_directory() as directory, MysqlServer(binaries, directory) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_shared(mysql_binaries: get.ServerBinaries) -> Iterator[MysqlServer]:
    """Another MySQL for the whole session: only for questions that change nothing."""
    with temporary_directory() as directory, SharedMysql(mysql_binaries, directory) as server:
        yield server


@pytest.fixture
def mysql_without_gtids(mysql_binaries: get.ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL of the test's own, for its gtid_mode is OFF."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, gtid=False) as server,
    ):
        yield server


@pytest.fixture
def mariadb(request: pytest.FixtureRequest) -> Iterator[MariadbServer]:
    """A MariaDB, as if just started: the worker's, or one of its own (`own_server`)."""
    if not _wants_its_own(request):
        yield request.getfixturevalue("_mariadb_pool").take()
        return
    binaries = request.getfixturevalue("mariadb_binaries")
    with temporary_directory() as directory, MariadbServer(binaries, directory) as server:
        yield server
