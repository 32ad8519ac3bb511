"""Real servers as fixtures.

Law: where a service cannot be had, the test is skipped on a laptop and fails where CI is set, so
that a green build has really tested it; only s3s-fs, for which Rust is needed, may lack there too.
Tests that ask for `store` run on the one that `--store` names. What such a test needs and a store
lacks stands in its marker `needs`, never in a list of tests.
"""

import os
import re
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

T = TypeVar("T")

# A shell that starts the tests in the background has SIGINT ignored, and every child inherits it.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine is slow at times, and that says nothing about the program.
settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

# Further combinations of what other cases show already: `make wide` runs them too.
WIDE = re.compile(
    r"test_lineages\.py::test_("
    r"a_server_that_is_rolled_back\[(gtid-crash-down|gtid-snapshot-running|no-gtid-crash-running"
    r"|no-gtid-snapshot-down|mariadb-(crash-down|snapshot-running|snapshot-down))\]"
    r"|a_server_restored_from_a_backup\[(gtid-down|no-gtid-running)\]"
    r"|mysqlbinlog_alone_is_led_to_another_server_for_a_while\[(gtid-new|no-gtid-known)\]"
    r"|mysqlbinlog_alone_is_led_to_another_server_once\[(gtid-other-id|no-gtid-same-id)\]"
    r"|a_reset_while_nobody_streams\[(no-gtid|mariadb)-shorter\]"
    r"|the_source_of_another_live_server\[(gtid-unrelated|no-gtid-golden-image)\]"
    r"|what_is_archived_is_purged\[(gtid|mariadb)-open-known\]"
    r"|what_is_archived_is_purged\[no-gtid-open-unknown\]"
    r"|a_reset_that_uses_the_same_gtids_again(_behind_a_kill_9)?\[(no-)?gtid-longer\]"
    r"|a_gap_that_is_to_stop_it\[mariadb\]"
    r"|(a_lost_stop_event_is_no_gap|a_clean_restart_goes_on_in_the_middle"
    r"|another_server_under_the_same_address|mysqlbinlog_is_kept_on_the_old_primary"
    r"|a_crash_under_load_goes_on)\[no-gtid\])"
    r"|test_stream\.py::test_a_crashed_server_and_a_second_start\[gtid\]"
    r"|test_truth\.py::test_("
    r"a_fault_is_told\[(full file system|everything denied|MySQL crashed|password rotated"
    r"|black hole before MySQL)\]"
    r"|an_open_binlog_without_flushes_is_well\[0\]"
    r"|a_catch_up_is_well\[slow store\])"
    r"|test_status\.py::test_covered_until_is_true\[\]"
    r"|test_pitr_positions\.py::test_ten_places_and_a_killed_run\[mariadb\]"
    r"|test_find\.py::test_rows_are_found_as_they_were_written\[mariadb(-compressed)?\]"
    r"|test_two_writers\.py::test_the_("
    r"newer_one_is_frozen_in_the_middle_of_a_request\[(nanio-put|minio-complete)\]"
    r"|older_one_is_frozen_in_the_middle_of_a_request\[(nanio-body|nanio-complete|minio-entry"
    r"|minio-put)\])"
    r"|test_disk\.py::test_("
    r"zeros_that_a_power_cut_left\[(begin-CRC32|middle-NONE|end-CRC32)\]"
    r"|damage_that_the_source_serves_is_archived\[(gtid|type)\]"
    r"|a_disk_that_is_full_leaves_no_hole\[(small-rotates|large-one-binlog)\]"
    r"|a_transaction_larger_than_the_spool\[0\])"
    r"|test_supervision\.py::test_("
    r"a_server_at_a_limit_keeps_its_stream\[(1203|1226)\]"
    r"|(a_frozen_server_is_noticed|a_network_that_is_cut_without_a_word_is_noticed"
    r"|a_restart_while_the_server_is_down_waits|an_idle_server_keeps_its_child)\[mariadb.*\])"
)
NEEDS_MYSQL = {"mysql_binaries", "mariadb_binaries", "mysql", "mysql_shared", "mariadb"}
NEEDS_MINIO = {"minio_binary", "minio", "bucket"}
STORES = {"minio": "minio", "versitygw": "versitygw", "nanio": "nanio", "s3s-fs": "s3s_fs"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --store."""
    parser.addoption("--store", choices=[*STORES], help="run the tests of streaming on this store")


def pytest_configure(config: pytest.Config) -> None:
    """Add the markers that go with --store."""
    for line in (
        "needs(*features): the test is skipped on a `store` that lacks one, see lab/s3.py",
        "stores(*names): the `store`s for this test where --store names none",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on each store of its marker, or on the one of --store."""
    marker = metafunc.definition.get_closest_marker("stores")
    if marker is not None:
        chosen = metafunc.config.getoption("--store")
        metafunc.parametrize("store", [chosen] if chosen else marker.args, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by the fixtures they ask for, so that `-m "not mysql"` selects rightly."""
    for item in items:
        if WIDE.search(item.nodeid):
            item.add_marker(pytest.mark.wide)
        asked = set(getattr(item, "fixturenames", ()))
        if asked & NEEDS_MYSQL:
            item.add_marker(pytest.mark.mysql)
        if asked & NEEDS_MINIO:
            item.add_marker(pytest.mark.minio)


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
    """The `aws` command."""
    return _had(get.aws)


@pytest.fixture(scope="session")
def toxiproxy_binary() -> Path:
    """toxiproxy's program."""
    return _had(get.toxiproxy)


@pytest.fixture(scope="session")
def promtool() -> Path:
    """Prometheus' tool that checks rules and metrics."""
    return _had(get.promtool)


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


@pytest.fixture
def mysql(mysql_binaries: get.ServerBinaries) -> Iterator[MysqlServer]:
    """A fresh MySQL with GTIDs, for this test alone."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_shared(mysql_binaries: get.ServerBinaries) -> Iterator[MysqlServer]:
    """One MySQL with GTIDs for the whole session: only for questions that change nothing."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        yield server


@pytest.fixture
def mariadb(mariadb_binaries: get.ServerBinaries) -> Iterator[MariadbServer]:
    """A fresh MariaDB, for this test alone."""
    with temporary_directory() as directory, MariadbServer(mariadb_binaries, directory) as server:
        yield server
