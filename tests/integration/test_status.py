"""What a streamer says of itself, in each way in which it says it, is one value, and true."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from time import monotonic

import pytest

from lab.fault import Answer, Gate, on
from lab.get import ServerBinaries
from lab.load import Load
from lab.mysql import MariadbServer, MysqlServer, faketime, server_of
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from lab.verify import closed_binlogs
from tests.beside import Beside
from tests.integration.asking import Commits, Document, Monitor, commit, marks_in, prepare, told
from tests.integration.bucket import Bucket
from tests.integration.streaming import MIXED, Start, documents, reach
from tests.unit.stream.test_ping import Answers
from tests.waiting import wait_until
from tests.world.servers import reset

BINLOGS = r"/live/test/\d|/archive/.*/(binlogs|entries)/"


@pytest.fixture(params=["mysql_without_gtids", "mariadb"])
def any_server(request: pytest.FixtureRequest) -> MysqlServer:
    """Each kind of source in turn, fresh."""
    made: MysqlServer = request.getfixturevalue(request.param)
    return made


# One value


class Collecting(Beside):
    """Each document of /status in a `with` block, by the moment at which it was made."""

    def __init__(self, monitor: Monitor) -> None:
        super().__init__()
        self._monitor = monitor
        self.found: dict[str, Document] = {}

    def run(self) -> None:
        while not self.over.wait(0.1):
            document = self._monitor.status()
            assert self.found.setdefault(document["at"], document) == document

    def same(self, document: Document) -> Document:
        """The document of the same moment; it may come a little later."""
        at = document["at"]
        return wait_until(lambda: self.found.get(at), what=f"the status of {at}")


def without_gtids(document: Document) -> Document:
    """As it lies in the bucket: GTID sets may be long, and stand beside it there."""
    server = document["server"]
    short = {**document, "server": dict(server)}
    if document["durable"]:
        short["durable"] = {**document["durable"], "gtid_set": ""}
    if server["position"]:
        short["server"]["position"] = {**server["position"], "gtid_set": ""}
    return short


@pytest.mark.gate
def test_all_that_it_says_is_one_value(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Under load: HTTP on both ways, health, metrics, command and bucket agree in each number.

    tests/unit/status/test_metrics.py has each metric of a status.
    """
    monitor, there = Monitor(), Bucket(minio, bucket)
    with (
        start(mysql, **monitor.options) as stream,
        Load(mysql, threads=1, seconds=150, flush_seconds=2, pause_seconds=0.02, shape=MIXED),
    ):
        local = Monitor(stream.spool / "status.sock")
        monitor.wait_until_well()
        with Collecting(monitor) as collecting:
            wait_until(
                lambda: there.heartbeat()["status"]["at"] in collecting.found,
                what="a heartbeat of after the first look",
            )
            until, compared = monotonic() + 140, 0

            def moved() -> set[int]:
                return {found["totals"]["read_bytes"] for found in list(collecting.found.values())}

            while (len(moved()) <= 5 or compared < 5) and monotonic() < until:
                for voice in (monitor, local):
                    document = voice.status()
                    assert collecting.same(document) == document
                    health = voice.health()
                    whole = collecting.same(health.document)
                    assert health.code == (200 if whole["healthy"] else 503)
                    same = ("healthy", "severity", "state", "source", "at", "troubles")
                    assert health.document == {
                        **{name: whole[name] for name in same},
                        "lag_seconds": whole["lag"]["seconds"],
                    }
                    compared += metrics_agree(voice, collecting)
                beat = there.heartbeat()
                assert beat["status"] == without_gtids(collecting.same(beat["status"]))
                assert beat["status"]["format"] == 1
                by_command = told(stream)
                # the command looks by itself how far the backups reach
                own = {**by_command, "backups": collecting.same(by_command)["backups"]}
                assert collecting.same(by_command) == own
            assert len(moved()) > 5, "nothing was going on"
            assert compared >= 5, "they were hardly ever of one moment"
        _, metrics = monitor.get("/metrics")
        counted = re.findall(rb"(?m)^(binlog2s3_\w+)_count\{([^}]*)\} (\S+)$", metrics)
        seconds = {(name, labels): float(count) for name, labels, count in counted}
        assert seconds[b"binlog2s3_commit_to_durable_seconds", b'source="test"'] > 5
        assert any(b'code="200",operation="PutObject"' in labels for _, labels in seconds)
        assert stream.terminate() == 0


def metrics_agree(voice: Monitor, collecting: Collecting) -> bool:
    """Whether /metrics is of the moment of a status that was seen; then it has its numbers."""
    code, text = voice.get("/metrics")
    assert code == 200
    found = dict(re.findall(r"(?m)^(binlog2s3_\w+)\{[^}]*\} (\S+)$", text.decode()))
    at = float(found["binlog2s3_status_timestamp_seconds"])
    for one in list(collecting.found.values()):
        if datetime.fromisoformat(one["at"]).timestamp() == at:
            assert float(found["binlog2s3_read_bytes_total"]) == one["totals"]["read_bytes"]
            return True
    return False


# It is true


def test_covered_until_is_true(
    mysql_binaries: ServerBinaries,
    faketime_library: Path,
    start: Start,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """Each commit before that moment, by the source's clock, can be read from the bucket."""
    monitor, there = Monitor(), Bucket(minio, bucket)
    clock = faketime(faketime_library, "-2h")
    place = disk_tmp_path / "server"
    with (
        MysqlServer(mysql_binaries, place, environment=clock) as server,
        start(server, **monitor.options) as stream,
        Commits(server, pause=0.01, size=3000) as commits,
    ):
        monitor.wait_until_well()
        seen = [datetime.min.replace(tzinfo=UTC)]
        for number in range(10):
            found = monitor.wait_for(lambda status: covered(status) > seen[-1])
            seen.append(covered(found))
            done = list(commits.done)
            due = {n for n, moment in done if moment.replace(tzinfo=UTC) <= seen[-1]}
            assert due <= marks_in(there.binlogs()), "not all of it is there"
            assert found["lag"]["seconds"] < 3600
            if number % 3 == 2:
                server.query("FLUSH BINARY LOGS")
        assert seen == sorted(seen)
        assert due
        commits.stop()
        last = commits.done[-1][1].replace(tzinfo=UTC)
        monitor.wait_for(lambda status: covered(status) >= last)
        monitor.wait_for_lag(is_zero)
        assert stream.terminate() == 0


def covered(document: Document) -> datetime:
    return datetime.fromisoformat(document["covered_until"])


@contextmanager
def opened(gate: Gate) -> Iterator[None]:
    """The gate is open in the end, so that nothing waits for it."""
    try:
        yield
    finally:
        gate.open()


def is_idle(document: Document) -> bool:
    return bool(document["state"] == "idle")


def is_zero(seconds: float) -> bool:
    return seconds == 0


def wait_for_place(monitor: Monitor, server: MysqlServer) -> Document:
    """The status once it has heard where the server stands, and has read up to there."""
    name, size = server.binlogs()[-1]

    def heard(document: Document) -> bool:
        position = document["server"]["position"] or {}
        here = (position.get("binlog"), position.get("offset")) == (name, size)
        return here and document["state"] != "catching up"

    return monitor.wait_for(heard, what="the source's place")


def test_the_lag_is_what_the_bucket_lacks(
    any_server: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """The store is held: bytes, transactions and seconds are what source and bucket say."""
    server, monitor, there = any_server, Monitor(), Bucket(minio, bucket)
    prepare(server)
    commit(server, 3)
    mariadb = isinstance(server, MariadbServer)
    gtids = mariadb or server.query("SELECT @@gtid_mode")[0][0] == "ON"
    none = {"bytes": 0, "transactions": 0, "seconds": 0, "at_least": False}
    gate = Gate(method="PUT", path=BINLOGS)
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        start(server, **monitor.options, endpoint_url=proxy.url) as stream,
        opened(gate),
    ):
        monitor.wait_for(is_idle)
        before = monitor.wait_for(lambda status: status["lag"] == none)
        first, size = server.binlogs()[-1]
        assert (before["durable"]["binlog"], before["durable"]["offset"]) == (first, size)
        durable = reach(there, first)
        assert durable == size
        proxy.rules.append(gate)
        commit(server, 25)
        committed = datetime.now(UTC)
        heard = wait_for_place(monitor, server)
        assert heard["state"] != "idle", "all of it is read, and nothing of it is durable"
        assert heard["durable"] == before["durable"]
        assert heard["lag"]["bytes"] == server.binlogs()[-1][1] - durable
        assert heard["lag"]["transactions"] == (25 if gtids else None)
        found = monitor.status()
        old = found["lag"]["seconds"]
        age = (datetime.fromisoformat(found["at"]) - committed).total_seconds()
        assert old >= age - 1, "it may be computed a second before it is told"
        read = before["totals"]["transactions"] + 25
        monitor.wait_for(lambda status: status["totals"]["transactions"] == read)
        monitor.wait_for_lag(lambda seconds: seconds > old + 2)

        server.query("FLUSH BINARY LOGS")
        commit(server, 5)
        wait_for_place(monitor, server)
        sizes = dict(server.binlogs())
        behind = sizes.pop(first) - durable + sum(sizes.values())
        found = monitor.status()
        assert found["lag"]["bytes"] in (None, behind), "it is not told what is not known"
        found = monitor.wait_for(
            lambda status: status["lag"]["bytes"] == behind, what=f"a lag of {behind} bytes"
        )
        assert found["lag"]["transactions"] == (30 if gtids else None)
        assert found["uploads"]["closed_binlogs"] == 1
        assert found["uploads"]["unsaved_bytes"] > 0

        gate.open()
        monitor.wait_for(lambda status: status["lag"] == none)
        monitor.wait_for(lambda status: status["totals"]["archived_binlogs"] >= 1)
        assert stream.terminate() == 0


# What the source deletes, and may


@pytest.mark.parametrize(
    ("flavour", "settings"),
    [
        (
            "mysql",
            [
                (None, 2592000),
                ("binlog_expire_logs_seconds = 7200", 7200),
                ("binlog_expire_logs_auto_purge = OFF", None),
                (
                    "binlog_expire_logs_auto_purge = ON, GLOBAL binlog_expire_logs_seconds = 0",
                    None,
                ),
            ],
        ),
        ("mariadb", [(None, None), ("expire_logs_days = 2", 172800)]),
    ],
    ids=["mysql", "mariadb"],
)
def test_the_expiry_is_the_servers(
    request: pytest.FixtureRequest,
    start: Start,
    disk_tmp_path: Path,
    flavour: str,
    settings: list[tuple[str | None, int | None]],
) -> None:
    """As its variables say; where it keeps binlogs for ever nothing counts down."""
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    monitor = Monitor()
    with server_of(binaries, disk_tmp_path / "server") as server:
        prepare(server)
        for number, (setting, seconds) in enumerate(settings):
            if setting is not None:
                server.query(f"SET GLOBAL {setting}")
            with start(server, str(number), source=f"s{number}", **monitor.options) as stream:
                monitor.wait_for(is_idle)
                monitor.wait_for_lag(is_zero)
                found = monitor.status()["purge"]
                assert (found["expire_seconds"], found["seconds"]) == (seconds, seconds)
                assert stream.terminate() == 0


def test_the_hours_of_rds(mysql: MysqlServer, start: Start) -> None:
    """What mysql.rds_configuration says goes before the variables; NULL is no time at all."""
    monitor = Monitor()
    mysql.query(
        "SET sql_log_bin = 0",
        "CREATE TABLE mysql.rds_configuration"
        " (name VARCHAR(100) PRIMARY KEY, value VARCHAR(100), description TEXT)",
        "INSERT INTO mysql.rds_configuration VALUES ('binlog retention hours', '24', ''),"
        " ('source delay', '0', '')",
        f"GRANT SELECT ON mysql.rds_configuration TO {mysql.repl_user}@'%'",
    )
    with start(mysql, **monitor.options) as stream:
        monitor.wait_for(lambda status: status["purge"]["expire_seconds"] == 86400)
        monitor.wait_for(lambda status: status["purge"]["seconds"] == 86400)
        mysql.query("SET sql_log_bin = 0", "UPDATE mysql.rds_configuration SET value = NULL")
        assert stream.terminate() == 0
    with start(mysql, **monitor.options) as stream:
        found = monitor.wait_for(lambda status: status["purge"]["expire_seconds"] == 0)
        assert found["purge"]["seconds"] in (None, 0)
        monitor.wait_for(lambda status: status["purge"]["seconds"] == 0)
        assert stream.terminate() == 0


def test_purge_counts_down_and_its_statement_is_safe(
    mysql_binaries: ServerBinaries,
    start: Start,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """While the store is held what is not durable comes nearer to its end; then PURGE works."""
    monitor, there = Monitor(), Bucket(minio, bucket)
    gate = Gate(method="PUT", path=BINLOGS)
    options = ["--binlog-expire-logs-seconds=7200"]
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server,
        RecordingProxy(minio.endpoint_url) as proxy,
        start(server, **monitor.options, endpoint_url=proxy.url) as stream,
        opened(gate),
    ):
        prepare(server)
        monitor.wait_for(lambda status: status["purge"]["seconds"] == 7200)
        proxy.rules.append(gate)
        commit(server, 1)
        found = monitor.wait_for(lambda status: (status["purge"]["seconds"] or 7200) < 7196)
        assert found["purge"]["seconds"] == pytest.approx(7200 - found["lag"]["seconds"])
        assert found["purge"]["statement"] is None
        gate.open()
        for _ in range(3):
            commit(server, 3)
            server.query("FLUSH BINARY LOGS")
        names = [binlog.name for binlog in closed_binlogs(server, flush=False)]
        bodies = {name: (server.datadir / name).read_bytes() for name in names}
        last = server.binlogs()[-1][0]
        statement = f"PURGE BINARY LOGS TO '{last}'"
        found = monitor.wait_for(lambda status: status["purge"]["statement"] == statement)
        assert (found["purge"]["newest_safe"], found["purge"]["to"]) == (names[-1], last)
        assert set(names) <= set(there.archived())
        server.query(statement)
        assert [name for name, _ in server.binlogs()] == [last]
        commit(server, 3)
        server.query("FLUSH BINARY LOGS")
        wait_until(lambda: last in there.archived(), 60, "the next one")
        found = monitor.wait_for(lambda status: status["purge"]["newest_safe"] == last)
        assert found["healthy"]
        monitor.wait_for_lag(is_zero)
        assert stream.terminate() == 0
        found_there = there.binlogs()
        assert {name: found_there[name] for name in names} == bodies
    assert len(documents(minio, bucket, "lineage.json")) == 1


def test_no_purge_is_advised_of_binlogs_that_only_have_the_names(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """A RESET while the store refuses: what was read is brought in first, however long it takes."""
    monitor, there = Monitor(), Bucket(minio, bucket)

    def go_on(count: int) -> str:
        for _ in range(count):
            commit(mysql, 3)
            mysql.query("FLUSH BINARY LOGS")
        return mysql.binlogs()[-1][0]

    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        start(mysql, **monitor.options, endpoint_url=proxy.url) as stream,
    ):
        prepare(mysql)
        last = go_on(2)
        monitor.wait_for(lambda status: status["purge"]["to"] == last)
        proxy.rules.append(on(Answer(503), method="PUT|POST"))
        commit(mysql, 3)
        monitor.wait_for(lambda status: status["uploads"]["unsaved_bytes"] > 0)
        reset(mysql)
        last = go_on(4)
        found = monitor.wait_for(
            lambda status: (
                (status["server"]["position"]["binlog"], status["child"]["pid"]) == (last, None)
            )
        )
        assert found["purge"]["statement"] is None
        proxy.rules.clear()
        found = monitor.wait_for(lambda status: status["purge"]["to"] == last)
        safe = f"/{found['lineage']}/binlogs/{found['purge']['newest_safe']}"
        assert [key for key in there.keys("pre/archive/") if key.endswith(safe)]
        assert stream.terminate() == 0


def test_a_source_that_was_reset_to_the_same_place_is_not_covered(
    mysql: MysqlServer, start: Start, minio: MinioServer
) -> None:
    """Each binlog is as long as another one that has no transactions yet; the store is away."""
    monitor = Monitor()
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        start(mysql, **monitor.options, endpoint_url=proxy.url) as stream,
    ):
        prepare(mysql)
        mysql.query("FLUSH BINARY LOGS")
        here = mysql.binlogs()[-1]
        monitor.wait_for(
            lambda status: status["purge"]["to"] == here[0] and status["lag"]["seconds"] == 0
        )
        proxy.rules.append(on(Answer(503)))
        reset(mysql)
        commit(mysql, 1)
        mysql.query("FLUSH BINARY LOGS")
        assert mysql.binlogs()[-1] == here
        found = monitor.wait_for(lambda status: status["child"]["pid"] is None)
        later = monitor.wait_for(lambda status: status["lag"]["seconds"] > 5)
        assert later["covered_until"] == found["covered_until"]
        proxy.rules.clear()
        monitor.wait_for(lambda status: status["lineage"] not in (None, found["lineage"]))
        assert stream.terminate() == 0


# The dead man's switch


def test_the_dead_mans_switch(mysql: MysqlServer, start: Start, disk_tmp_path: Path) -> None:
    """GETs come where they are wanted; the URL is in no log.

    tests/unit/stream/test_ping.py has when they come, and when none does.
    """
    secret = "ping/4f0c2f1e-secret"
    monitor = Monitor()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as service:
        service.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=service.serve_forever)
        thread.start()
        try:
            url = disk_tmp_path / "url"
            url.write_text(f"http://127.0.0.1:{service.server_port}/{secret}\n")
            options = {"heartbeat_url_file": url, "heartbeat_interval": 1}
            with start(mysql, **monitor.options, **options) as stream:
                prepare(mysql)
                monitor.wait_for(is_idle)
                wait_until(lambda: len(service.seen) >= 3, what="GETs")  # type: ignore[attr-defined]
                assert stream.terminate() == 0
        finally:
            service.shutdown()
            thread.join()
        assert set(service.seen) == {f"/{secret}"}  # type: ignore[attr-defined]
    assert secret not in stream.stderr()
    assert f"127.0.0.1:{service.server_port}" not in stream.stderr()
