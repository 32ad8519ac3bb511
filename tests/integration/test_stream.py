"""The main job: a real server's binlogs reach a real store, whole, and are proved to be there."""

import hashlib
import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.fault import Action, Answer, Delay, DropAnswer, Gate, Request, in_flight, on
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MotoServer, Store
from lab.verify import closed_binlogs, compare
from tests.integration.bucket import again, of_its_bytes
from tests.integration.small_disk import mount_small
from tests.integration.stream_process import StreamProcess, proxied
from tests.relay import Relay
from tests.timed import PATIENT_END
from tests.waiting import wait_until

MIXED = Shape(row_bytes=(1, 3000), many_rows_chance=0.2, large_chance=0.01)
PART = 5 << 20


def objects(store: Store, bucket: str) -> dict[str, Any]:
    with closing(store.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {row["Key"]: row for page in pages for row in page.get("Contents", [])}


def bodies(store: Store, bucket: str, pattern: str) -> dict[str, bytes]:
    """The objects with such keys; one that goes between listing and reading is not there."""

    def read() -> dict[str, bytes]:
        found = {}
        with closing(store.client()) as client:
            for key in objects(store, bucket):
                if re.search(pattern, key):
                    with suppress(client.exceptions.NoSuchKey):
                        found[key] = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return found

    return again(read)


def documents(store: Store, bucket: str, pattern: str) -> dict[str, dict[str, Any]]:
    return {key: json.loads(body) for key, body in bodies(store, bucket, pattern).items()}


def uploads(store: Store, bucket: str) -> list[str]:
    """The keys of unfinished uploads, as far as the store can tell."""
    if "upload listing" in store.lacks:
        return []
    with closing(store.client()) as client:
        found = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in found]


def spooled(stream: StreamProcess) -> list[str]:
    return sorted(path.name for path in stream.spool.glob("run-*/*") if path.name != "run.json")


def wait_until_archived(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str, timeout: float = 600
) -> None:
    """Close the open binlog, wait until all closed ones have their entry, compare every byte."""
    closed = closed_binlogs(server)
    names = [binlog.name for binlog in closed]

    def done() -> bool:
        assert stream.process.poll() is None, stream.stderr()
        keys = objects(store, bucket)
        entries = {Path(key).name.removesuffix(".json") for key in keys if "/entries/" in key}
        return set(names) <= entries

    wait_until(done, timeout, f"entries of {len(names)} binlogs", interval=0.2)
    with closing(store.client()) as client:
        result = compare(server, client, bucket, "pre", "test", binlogs=closed)
    assert result.ok, result


def write(server: MysqlServer, megabytes: int) -> None:
    """Write about so many megabytes of binlog, in transactions of 1 MB."""
    server.query("CREATE DATABASE IF NOT EXISTS bulk")
    server.query(
        "CREATE TABLE IF NOT EXISTS bulk.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)"
    )
    with server.connect() as connection, connection.cursor() as cursor:
        for _ in range(megabytes):
            cursor.execute("INSERT INTO bulk.t (v) VALUES (REPEAT(%s, 1000000))", ("x",))
            connection.commit()
        cursor.execute("TRUNCATE bulk.t")


def test_every_closed_binlog_is_archived_under_load(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """20 rotations under 4 writers: every object is the server's file, the spool keeps one file."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        with Load(mysql, threads=4, flush_seconds=0.4, seconds=600, shape=MIXED) as load:
            wait_until(lambda: load.flushes >= 20, 300, "20 rotations")
            load.stop()
        wait_until_archived(stream, mysql, store, bucket)
        open_binlog = mysql.binlogs()[-1][0]
        wait_until(lambda: spooled(stream) == [open_binlog], what="only the open binlog is left")
        assert stream.terminate() == 0
    assert spooled(stream) == [open_binlog]
    assert "Traceback" not in stream.stderr()


def test_what_the_entry_says_is_true(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """GTIDs, sizes, times and checksums of the entries agree with the server and the objects."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        with Load(mysql, threads=2, flush_seconds=0.5, transactions_each=300, shape=MIXED) as load:
            load.join()
        write(mysql, 12)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    executed = mysql.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
    entries = documents(store, bucket, "/entries/")
    binlogs = bodies(store, bucket, "/binlogs/")
    before = ""
    for key, entry in sorted(entries.items()):
        body = binlogs[key.replace("/entries/", "/binlogs/").removesuffix(".json")]
        assert entry["size"] == len(body)
        assert entry["gtid_set_before"] == before
        assert sum(block["size"] for block in entry["blocks"]) == len(body)
        assert entry["end"] == "rotate"
        assert entry["transactions"] == 0 or entry["least_commit_us"] <= entry["greatest_commit_us"]
        joined = "SELECT GTID_SUBTRACT(GTID_SUBTRACT(%s, %s), %s), GTID_SUBSET(%s, %s)"
        with mysql.connect() as connection, connection.cursor() as cursor:
            added = entry["gtid_set_added"]
            cursor.execute(joined, (executed, before, added, added, executed))
            rest, subset = cursor.fetchone() or ("", 0)
            assert subset == 1
            cursor.execute("SELECT GTID_SUBTRACT(%s, %s)", (executed, rest))
            before = (cursor.fetchone() or ("",))[0].replace("\n", "")
    assert before == executed


def test_rotations_in_a_tight_loop(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Hundreds of empty binlogs, faster than they can be sent, all arrive."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        stream.wait_for_event("new lineage")
        for _ in range(200):
            mysql.query("FLUSH BINARY LOGS")
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    assert len(documents(store, bucket, "/entries/")) > 200


def test_a_backlog_is_sent_in_parallel_and_within_bounded_memory(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """300 MB that wait at the start: parts overlap, and memory does not grow with the backlog.

    The first parts are held until four are on their way at once.
    """
    for _ in range(3):
        write(mysql, 100)
        mysql.query("FLUSH BINARY LOGS")
    gate = UntilSoMany(4)
    with RecordingProxy(store.endpoint_url, [gate]) as proxy:
        options = {"endpoint-url": proxy.url}
        with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
            wait_until_archived(stream, mysql, store, bucket)
            status = Path(f"/proc/{stream.pid}/status").read_text()
            peak_kib = int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]
            assert stream.terminate() == 0
        parts = proxy.matching(method="PUT", query="partNumber=")
    assert len(parts) >= 60
    assert in_flight(parts) >= 4
    assert peak_kib < 200 * 1024


class UntilSoMany(Gate):
    """A gate for parts, which opens by itself once so many are held."""

    def __init__(self, least: int) -> None:
        super().__init__(method="PUT", longest_seconds=120)
        self._least = least
        self._arrived = 0
        self._counting = threading.Lock()

    def __call__(self, request: Request) -> Action | None:
        if "partNumber=" not in request.query:
            return None
        with self._counting:
            self._arrived += 1
            if self._arrived >= self._least:
                self.open()
        return super().__call__(request)


@pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
def test_a_crashed_server_and_a_second_start(
    mysql_binaries: Any, store: Store, bucket: str, disk_tmp_path: Path, gtid: bool
) -> None:
    """The stream goes on by itself after kill -9 of the server, a clean end, and on a new spool."""
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", gtid=gtid) as server:
        with StreamProcess(disk_tmp_path / "one", server, store, bucket) as stream:
            with Load(server, threads=4, transactions_each=100, shape=MIXED) as load:
                load.join()
            wait_until_archived(stream, server, store, bucket)
            write(server, 8)
            newest = server.datadir / server.binlogs()[-1][0]
            wait_until(lambda: reads_to_the_end(stream.spool, newest), what="all of it is read")
            with Load(server, threads=2, transactions_each=50, shape=MIXED) as load:
                load.join()
            server.kill()
            stream.wait_for_event("mysqlbinlog ended")
            server.start()
            write(server, 8)
            wait_until_archived(stream, server, store, bucket)
            assert [line for line in stream.events("streaming") if line["position"] > 4]
            server.stop()  # cleanly: the stop event is never streamed
            wait_until(lambda: len(stream.events("mysqlbinlog ended")) >= 2, what="its end")
            server.start()
            write(server, 1)
            wait_until_archived(stream, server, store, bucket)
            assert stream.terminate() == 0
        with StreamProcess(disk_tmp_path / "elsewhere", server, store, bucket) as stream:
            wait_until_archived(stream, server, store, bucket)
            assert stream.terminate() == 0
    ends = [entry["end"] for _, entry in sorted(documents(store, bucket, "/entries/").items())]
    assert "crash" in ends
    assert "stop" in ends
    assert len(documents(store, bucket, "lineage.json")) == 1


def wait_for_new_object(store: Store, bucket: str) -> None:
    seen = len(objects(store, bucket))
    wait_until(lambda: len(objects(store, bucket)) > seen, what="something new in the bucket")


def test_kill_9_at_a_random_moment_loses_nothing(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """kill -9 again and again under load, on the same spool and on an empty one: all bytes arrive.

    What the bucket holds already is taken up again.
    """
    taken_up = 0
    with Load(mysql, threads=3, flush_seconds=3, seconds=1200, shape=MIXED, pause_seconds=0.005):
        for round_ in range(8):
            place = disk_tmp_path / ("same" if round_ % 3 else f"empty-{round_}")
            with StreamProcess(place, mysql, store, bucket) as stream:
                stream.wait_for_event("streaming")
                wait_for_new_object(store, bucket)
                stream.kill()
                taken_up += len(stream.events("continuing with the chunks in the bucket"))
    write(mysql, 30)
    open_binlog = mysql.binlogs()[-1][0]
    with StreamProcess(disk_tmp_path / "same", mysql, store, bucket) as stream:
        wait_until(
            lambda: sum(f"/{open_binlog}/" in key for key in objects(store, bucket)) >= 3,
            300,
            "three chunks of the open binlog",
        )
        stream.kill()
    with StreamProcess(disk_tmp_path / "last", mysql, store, bucket) as stream:
        wait_until_archived(stream, mysql, store, bucket)
        taken_up += len(stream.events("continuing with the chunks in the bucket"))
        open_binlog = mysql.binlogs()[-1][0]
        wait_until(
            lambda: all(key.endswith(open_binlog) for key in uploads(store, bucket)),
            what="no upload is left of what is archived",
        )
        assert stream.terminate() == 0
    assert taken_up >= 1
    assert len(documents(store, bucket, "lineage.json")) == 1


def test_the_spool_is_the_last_copy_and_is_used(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Closed binlogs that wait in the spool are archived at the next start though purged since."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
        for _ in range(3):
            write(mysql, 2)
            mysql.query("FLUSH BINARY LOGS")
        files = [binlog.name for binlog in closed_binlogs(mysql)]
        shas = {binlog.name: binlog.sha256 for binlog in closed_binlogs(mysql)}
        last = mysql.binlogs()[-1][0]
        wait_until(lambda: last in spooled(stream), what="all binlogs in the spool")
        stream.kill()
    mysql.query(f"PURGE BINARY LOGS TO '{last}'")
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        wait_until(
            lambda: len(documents(store, bucket, "/entries/")) >= len(files), what="the entries"
        )
        assert stream.terminate() == 0
        assert stream.events("taken from the spool")
    for key, body in bodies(store, bucket, "/binlogs/").items():
        assert hashlib.sha256(body).hexdigest() == shas[Path(key).name]


def on_binlogs(path: str, method: str) -> Any:
    """A store that takes no archived binlogs: 503 for every write of one."""
    return Answer(503, body=b"") if "/binlogs/" in path and method in ("PUT", "POST") else None


def test_a_reset_behind_a_full_spool_is_not_spliced(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Closed binlogs in the spool, then a reset: the new history is not put behind the old one."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        last = mysql.binlogs()[-1][0]
        wait_until(lambda: last in spooled(stream), what="the closed binlog in the spool")
        stream.kill()
    before = spooled(stream)
    reset(mysql)
    write(mysql, 1)
    mysql.query("FLUSH BINARY LOGS")  # so that the next number exists, in another history
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        wait_until(lambda: len(documents(store, bucket, "lineage.json")) == 2, what="two lineages")
        write(mysql, 1)
        names = {binlog.name for binlog in closed_binlogs(mysql)}
        wait_until(lambda: len(documents(store, bucket, "/entries/")) > len(names), what="all")
        assert stream.terminate() == 0
    old, new = sorted(documents(store, bucket, "lineage.json").values(), key=has_parent)
    assert new["parent"]["lineage"] == old["lineage"]
    assert new["parent"]["join"] == "unknown"
    for lineage, those in ((old, before), (new, names)):
        got = bodies(store, bucket, f"/{lineage['lineage']}/binlogs/")
        assert got
        assert {Path(key).name for key in got} <= set(those)
    with closing(store.client()) as client:
        result = compare_lineage(mysql, client, bucket, new["lineage"])
    assert result == []


def has_parent(lineage: dict[str, Any]) -> bool:
    return lineage["parent"] is not None


def compare_lineage(server: MysqlServer, client: Any, bucket: str, lineage: str) -> list[str]:
    """The closed binlogs of the server that this lineage does not have byte for byte."""
    wrong = []
    for binlog in closed_binlogs(server, flush=False):
        key = f"pre/archive/test/{lineage}/binlogs/{binlog.name}"
        try:
            body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except client.exceptions.NoSuchKey:
            body = b""
        if hashlib.sha256(body).hexdigest() != binlog.sha256:
            wrong.append(binlog.name)
    return wrong


def test_a_spool_without_event_checksums_is_not_trusted(
    mysql_binaries: Any, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Zeros that a power cut left in a spool without CRC32 never reach the bucket."""
    options = ["--binlog-checksum=NONE"]
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server:
        with proxied(disk_tmp_path, server, store, bucket) as (stream, proxy):
            stream.wait_for_event("new lineage")
            proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
            write(server, 2)
            server.query("FLUSH BINARY LOGS")
            last = server.binlogs()[-1][0]
            wait_until(lambda: last in spooled(stream), what="the closed binlog in the spool")
            stream.kill()
        path = the_large_one(stream)
        with path.open("r+b") as file:
            file.seek(600_000)
            file.write(bytes(4096))
        with StreamProcess(disk_tmp_path, server, store, bucket) as stream:
            wait_until_archived(stream, server, store, bucket)
            assert stream.terminate() == 0
            assert not stream.events("taken from the spool")


def the_large_one(stream: StreamProcess) -> Path:
    (path,) = [p for p in stream.spool.glob("run-*/*.0*") if p.stat().st_size > 1 << 20]
    return path


@pytest.mark.gate
def test_a_spool_that_changes_is_noticed(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """A byte that flips between reading and sending ends it with exit 5; the next start mends."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        stream.wait_for_event("looking again at the store")
        with the_large_one(stream).open("r+b") as file:
            file.seek(600_000)
            file.write(b"?")
        proxy.rules.clear()
        assert stream.wait() == 5
        assert "changed" in stream.events("ended")[0]["error"]
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0


@pytest.mark.gate
@pytest.mark.needs("conditions")
def test_foreign_bytes_under_a_binlogs_key_are_never_overwritten(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Something else lies where the next binlog belongs: exit 7, both copies are kept."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        lineage = stream.wait_for_event("new lineage")["lineage"]
        key = f"pre/archive/test/{lineage}/binlogs/{mysql.binlogs()[-1][0]}"
        with closing(store.client()) as client:
            client.put_object(Bucket=bucket, Key=key, Body=b"foreign")
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        assert stream.wait() == 7
        assert key in stream.events("ended")[0]["error"]
    assert bodies(store, bucket, key) == {key: b"foreign"}
    assert spooled(stream) != []


def reads_to_the_end(spool: Path, binlog: Path) -> Path | None:
    """The newest run, once it has the last bytes of the server's own file."""
    run = max(spool.glob("run-*"))
    copy = run / binlog.name
    end = binlog.read_bytes()[-100:]
    return run if copy.exists() and copy.read_bytes().endswith(end) else None


def test_runs_do_not_pile_up_in_the_spool(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Each start reads the open binlog's end anew; not more than one older run of it is kept."""
    write(mysql, 2)
    spool, binlog = disk_tmp_path / "spool", mysql.datadir / mysql.binlogs()[-1][0]
    runs = set()
    for start in range(4):
        place = disk_tmp_path / str(start)
        with StreamProcess(place, mysql, store, bucket, options={"spool": spool}) as stream:
            stream.wait_for_event("streaming")
            what = "the end of the open binlog"
            runs.add(wait_until(lambda: reads_to_the_end(spool, binlog), what=what))
            assert stream.terminate() == 0
    assert len(runs) == 4
    assert len(list(spool.glob("run-*"))) <= 2


def test_another_binlogs_bytes_in_the_spool_are_not_archived(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """A spool file that holds another, whole binlog is left; the source is asked again."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        write(mysql, 1)
        mysql.query("FLUSH BINARY LOGS")
        last = mysql.binlogs()[-1][0]
        wait_until(lambda: last in spooled(stream), what="the closed binlogs in the spool")
        stream.kill()
    (run,) = stream.spool.glob("run-*")
    names = [name for name, _ in mysql.binlogs()[:-1]]
    (run / names[-1]).write_bytes((run / names[-2]).read_bytes())
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
        assert stream.events("left in the spool, to be fetched again")


@pytest.fixture
def small_disk(disk_tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    place = disk_tmp_path / "small"
    mount_small(place, 16 << 20)
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_full_spool_is_survived(
    mysql: MysqlServer, store: Store, bucket: str, small_disk: Path, disk_tmp_path: Path
) -> None:
    """While the store is away the disk fills: the reading pauses; when it is back it goes on.

    No byte of the hole that mysqlbinlog may have left reaches the bucket.
    """
    spool = {"spool": small_disk / "spool", "spool-min-free-bytes": 0}
    with RecordingProxy(store.endpoint_url) as proxy:
        options = {"endpoint-url": proxy.url, **spool}
        place = disk_tmp_path / "one"
        with StreamProcess(place, mysql, store, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
            shape = Shape(row_bytes=(1, 20_000))
            load = Load(
                mysql, threads=2, flush_seconds=0.3, seconds=600, pause_seconds=0.002, shape=shape
            )
            with load:
                stream.wait_for_event("paused: the spool has no room", 300)
                load.stop()
            proxy.rules.clear()
            wait_until_archived(stream, mysql, store, bucket)
            assert stream.terminate() == 0


@pytest.mark.parametrize("purged", [False, True])
def test_a_foreign_object_at_the_next_key_is_refused(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path, purged: bool
) -> None:
    """A whole binlog, but not the next one, put there while nobody streams: exit 7, no entry."""
    with StreamProcess(disk_tmp_path / "one", mysql, store, bucket) as stream:
        write(mysql, 2)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    names = [name for name, _ in mysql.binlogs()]
    (key, body), *_ = bodies(store, bucket, f"/binlogs/{names[-2]}").items()
    foreign = key.replace(names[-2], names[-1])
    with closing(store.client()) as client:
        client.put_object(Bucket=bucket, Key=foreign, Body=body)
    before = set(documents(store, bucket, "/entries/"))
    write(mysql, 1)
    mysql.query("FLUSH BINARY LOGS")
    if purged:
        mysql.query(f"PURGE BINARY LOGS TO '{mysql.binlogs()[-1][0]}'")
    with StreamProcess(disk_tmp_path / "two", mysql, store, bucket) as stream:
        assert stream.wait() == 7
        assert foreign in stream.events("ended")[0]["error"]
    assert set(documents(store, bucket, "/entries/")) == before
    assert bodies(store, bucket, f"/binlogs/{names[-1]}") == {foreign: body}


def test_a_foreign_entry_is_not_taken_for_ours(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Garbage where the next entry belongs: exit 7 before the local copy is deleted."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        lineage = stream.wait_for_event("new lineage")["lineage"]
        name = mysql.binlogs()[-1][0]
        key = f"pre/archive/test/{lineage}/entries/{name}.json"
        with closing(store.client()) as client:
            client.put_object(Bucket=bucket, Key=key, Body=b"{}")
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        assert stream.wait() == 7
        assert key in stream.events("ended")[0]["error"]
    assert name in spooled(stream)


@pytest.mark.needs("upload listing")
def test_parts_of_an_open_binlog_are_taken_up_as_it_comes_again(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Without chunks too only what the bucket lacks is sent after a restart."""
    options = {"flush-interval": 0}
    with StreamProcess(disk_tmp_path / "one", mysql, store, bucket, options=options) as stream:
        write(mysql, 43)
        wait_until(lambda: parts_there(store, bucket) >= 8, what="eight parts")
        assert stream.terminate() == 0
    there = parts_there(store, bucket)
    with StreamProcess(disk_tmp_path / "two", mysql, store, bucket, options=options) as stream:
        wait_until_archived(stream, mysql, store, bucket)
        line = next(line for line in stream.events("binlog archived") if line["parts"] > 1)
        assert stream.terminate() == 0
    assert line["taken_up"] == there
    assert line["sent"] == line["size"] - there * PART


def parts_there(store: Store, bucket: str) -> int:
    with closing(store.client()) as client:
        pending = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        found = 0
        for upload in pending:
            where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
            found += len(client.list_parts(**where).get("Parts", []))
        return found


@pytest.mark.gate("complete")
@pytest.mark.parametrize(
    ("method", "query"),
    [("PUT", "partNumber=2"), ("POST", "uploads"), ("POST", "uploadId="), ("PUT", "^$")],
    ids=["part", "create", "complete", "put"],
)
def test_a_lost_reply_does_no_harm(
    mysql: MysqlServer,
    store: Store,
    bucket: str,
    disk_tmp_path: Path,
    method: str,
    query: str,
) -> None:
    """The store did it and the answer was lost: it is found out, nothing is lost or doubled."""
    rule = on(DropAnswer(), method=method, path="/binlogs/|/entries/", query=query, times=3)
    with RecordingProxy(store.endpoint_url, [rule]) as proxy:
        options = {"endpoint-url": proxy.url}
        with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
            write(mysql, 12)
            mysql.query("FLUSH BINARY LOGS")
            wait_until_archived(stream, mysql, store, bucket)
            wait_until(lambda: not uploads(store, bucket), what="no upload is left")
            assert stream.terminate() == 0
        assert [record for record in proxy.records if record.status is None]


def test_an_object_without_its_entry_gets_it(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """A writer that died between the object and its entry: the next one makes the same entry."""
    with StreamProcess(disk_tmp_path / "one", mysql, store, bucket) as stream:
        write(mysql, 7)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    entries = documents(store, bucket, "/entries/")
    with closing(store.client()) as client:
        for key in entries:
            client.delete_object(Bucket=bucket, Key=key)
    mysql.query(f"PURGE BINARY LOGS TO '{mysql.binlogs()[-1][0]}'")
    with StreamProcess(disk_tmp_path / "two", mysql, store, bucket) as stream:
        stream.wait_for_event("streaming")
        assert stream.terminate() == 0
    made = documents(store, bucket, "/entries/")
    assert {k: of_its_bytes(v) for k, v in made.items()} == {
        k: of_its_bytes(v) for k, v in entries.items()
    }


def test_the_last_to_start_is_the_writer(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """With --take-over; the first ends with exit 9, as asked, and names it; nothing is harmed."""
    ends, takes = ["--exit-on-other-writer"], ["--take-over"]
    with StreamProcess(disk_tmp_path / "one", mysql, store, bucket, arguments=ends) as first:
        first.wait_for_event("new lineage")
        with StreamProcess(
            disk_tmp_path / "two", mysql, store, bucket, arguments=takes, timing=PATIENT_END
        ) as second:
            second.wait_for_event("streaming")
            write(mysql, 8)
            assert first.wait() == 9
            ended = first.wait_for_event("ended")
            assert str(second.pid) in ended["error"]
            wait_until_archived(second, mysql, store, bucket)
            wait_until(
                lambda: sum("/writers/" in key for key in objects(store, bucket)) == 1,
                what="one writer's object",
            )
            assert second.terminate() == 0
    generations = [line["writer"] for line in second.events("this process is the writer")]
    assert generations[0] == 2
    writers = documents(store, bucket, "/writers/")
    assert [(w["generation"], w["state"]) for w in writers.values()] == [
        (generations[-1], "stopped")
    ]


@pytest.mark.parametrize("flush_interval", [0, 1])
def test_the_heartbeat_says_what_is_durable(
    mysql: MysqlServer,
    store: Store,
    bucket: str,
    disk_tmp_path: Path,
    flush_interval: int,
) -> None:
    """The writer's object follows what can be read: the open binlog, without chunks the archive."""
    options = {"flush-interval": flush_interval}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write(mysql, 3)
        wait_until_archived(stream, mysql, store, bucket)
        expected = mysql.binlogs()[-1 if flush_interval else -2]

        def durable() -> Any:
            (beat,) = documents(store, bucket, "/writers/").values()
            found = beat["durable"]
            return found if found and (found["binlog"], found["offset"]) == expected else None

        found = wait_until(durable, what="the heartbeat shows all of the last binlog")
        executed = mysql.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
        assert found["gtid_set"] == executed
        assert stream.terminate() == 0


def test_a_start_between_binlogs(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """--start-binlog and --start-at now choose the first binlog of an empty archive."""
    for _ in range(4):
        mysql.query("FLUSH BINARY LOGS")
    names = [name for name, _ in mysql.binlogs()]
    options = {"start-binlog": names[2]}
    with StreamProcess(disk_tmp_path / "a", mysql, store, bucket, options=options) as stream:
        mysql.query("FLUSH BINARY LOGS")
        wait_until(lambda: len(documents(store, bucket, "/entries/")) == 3, what="three entries")
        assert stream.terminate() == 0
    assert {Path(k).stem for k in documents(store, bucket, "/entries/")} == set(names[2:])
    options = {"start-at": "now", "source": "other"}
    with StreamProcess(disk_tmp_path / "b", mysql, store, bucket, options=options) as stream:
        assert stream.wait_for_event("streaming")["binlog"] == mysql.binlogs()[-1][0]
        assert stream.terminate() == 0


def reset(server: MysqlServer) -> None:
    server.query("RESET BINARY LOGS AND GTIDS")


def test_another_server_under_the_same_source_is_refused(
    mysql: MysqlServer, mysql_shared: MysqlServer, store: Store, bucket: str,
    disk_tmp_path: Path,
) -> None:  # fmt: skip
    """A --source copied from another machine: exit 4, both named, the writer undisturbed.

    So also with --take-over, without which it would stand by.
    """
    with StreamProcess(disk_tmp_path / "one", mysql, store, bucket) as first:
        first.wait_for_event("new lineage")
        with StreamProcess(
            disk_tmp_path / "two", mysql_shared, store, bucket, arguments=["--take-over"]
        ) as second:
            assert second.wait() == 4
            uuid = mysql_shared.query("SELECT @@server_uuid")[0][0]
            assert uuid in second.events("ended")[0]["error"]
        write(mysql, 2)
        wait_until_archived(first, mysql, store, bucket)
        assert first.terminate() == 0


def test_another_server_behind_a_used_spool_is_refused(
    mysql: MysqlServer, mysql_shared: MysqlServer, store: Store, bucket: str,
    disk_tmp_path: Path,
) -> None:  # fmt: skip
    """Exit 4, after what the spool has was brought in; with the right server it goes on."""
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options={"flush-interval": 0}) as first:
        first.wait_for_event("new lineage")
        write(mysql, 1)
        newest = mysql.datadir / mysql.binlogs()[-1][0]
        wait_until(lambda: reads_to_the_end(first.spool, newest), what="all of it is read")
        assert first.terminate() == 0
    with StreamProcess(disk_tmp_path, mysql_shared, store, bucket) as second:
        assert second.wait() == 4
        uuid = mysql_shared.query("SELECT @@server_uuid")[0][0]
        assert uuid in second.events("ended")[0]["error"]
        assert second.events("kept as chunks")
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as third:
        write(mysql, 1)
        wait_until_archived(third, mysql, store, bucket)
        assert third.terminate() == 0
    assert len(documents(store, bucket, "lineage.json")) == 1


@pytest.mark.gate
@pytest.mark.own_server("it is killed")
def test_mariadb(mariadb: MariadbServer, store: Store, bucket: str, disk_tmp_path: Path) -> None:
    """The same job from MariaDB, over a crash and a clean restart."""
    with StreamProcess(disk_tmp_path, mariadb, store, bucket) as stream:
        with Load(
            mariadb, threads=3, flush_seconds=0.5, transactions_each=300, shape=MIXED
        ) as load:
            load.join()
        wait_until_archived(stream, mariadb, store, bucket)
        mariadb.kill()
        mariadb.start()
        write(mariadb, 8)
        wait_until_archived(stream, mariadb, store, bucket)
        mariadb.restart()
        write(mariadb, 1)
        wait_until_archived(stream, mariadb, store, bucket)
        assert stream.terminate() == 0
    with StreamProcess(disk_tmp_path, mariadb, store, bucket) as stream:
        wait_until_archived(stream, mariadb, store, bucket)
        assert stream.terminate() == 0
    assert len(documents(store, bucket, "lineage.json")) == 1


def test_an_encrypted_server(
    mysql_binaries: Any, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """binlog_encryption=ON: the archive has the plain binlogs, which any mysqlbinlog reads."""
    place = disk_tmp_path / "server"
    with (
        MysqlServer(mysql_binaries, place, encrypted=True) as server,
        StreamProcess(disk_tmp_path, server, store, bucket) as stream,
    ):
        write(server, 7)
        wait_until_archived(stream, server, store, bucket)
        server.kill()
        server.start()
        write(server, 1)
        wait_until_archived(stream, server, store, bucket)
        assert stream.terminate() == 0


def test_one_transaction_larger_than_many_parts(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """A transaction of 100 MB, rows of 16 MB, goes in parts, and mysqlbinlog reads it."""
    mysql.query("CREATE DATABASE big", "CREATE TABLE big.t (id INT PRIMARY KEY, v LONGBLOB)")
    mysql.query("SET GLOBAL max_allowed_packet = 64 << 20")
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        with mysql.connect() as connection, connection.cursor() as cursor:
            cursor.execute("BEGIN")
            for number in range(7):
                cursor.execute("INSERT INTO big.t VALUES (%s, REPEAT('y', 16 << 20))", (number,))
            connection.commit()
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    (key,) = [k for k, row in objects(store, bucket).items() if row["Size"] > 100 << 20]
    copy = disk_tmp_path / "copy"
    with closing(store.client()) as client:
        client.download_file(bucket, key, str(copy))
    done = subprocess.run(
        [mysql.binaries.binlog, "--no-defaults", "--base64-output=decode-rows", copy],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.needs("storage classes", "encryption")
def test_storage_class_and_encryption_are_for_the_binlogs(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """--storage-class applies to archived binlogs alone, --sse to everything, confirmed."""
    options = {"storage-class": "REDUCED_REDUNDANCY", "sse": "AES256"}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write(mysql, 12)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    keys = objects(store, bucket)
    with closing(store.client()) as client:
        heads = {key: client.head_object(Bucket=bucket, Key=key) for key in keys}
    assert heads
    for key, head in heads.items():
        assert head["ServerSideEncryption"] == "AES256"
        class_ = head.get("StorageClass", "STANDARD")
        assert class_ == ("REDUCED_REDUNDANCY" if "/binlogs/" in key else "STANDARD")


@pytest.mark.needs("storage classes")
def test_a_storage_class_that_the_store_lacks_ends_it(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """No waiting mends it: exit 6 with the class's option in the hint, the spool is kept."""
    options = {"storage-class": "STANDARD_IA"}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write(mysql, 2)
        mysql.query("FLUSH BINARY LOGS")
        assert stream.wait() == 6
        assert "storage class" in stream.events("ended")[0]["error"]
    assert spooled(stream) != []


STRICT = pytest.param("crc64nvme", marks=pytest.mark.needs("checksums"))


@pytest.mark.parametrize("checksum", [STRICT, "md5", "none"])
def test_checksum_modes(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path, checksum: str
) -> None:
    """Every checksum mode archives the same bytes."""
    options = {"checksum": checksum}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write(mysql, 12)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0


def test_moto_takes_the_same_stream(
    mysql: MysqlServer, moto: MotoServer, disk_tmp_path: Path
) -> None:
    """The demo's fallback store gets the same objects."""
    bucket = moto.make_bucket()
    with StreamProcess(disk_tmp_path, mysql, moto, bucket) as stream:
        write(mysql, 12)
        wait_until_archived(stream, mysql, moto, bucket)
        assert stream.terminate() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_in_time_while_the_store_is_silent(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path, number: int
) -> None:
    """Every request hangs for many minutes: a signal still ends it, with the spool kept."""
    with Relay(store.endpoint_url) as relay:
        options = {"endpoint-url": relay.url}
        with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            relay.drips = True
            write(mysql, 12)
            wait_until(lambda: len(spooled(stream)) == 1, what="a spooled binlog")
            wait_until(lambda: relay.dripping, what="a request that hangs")
            stream.process.send_signal(number)
            assert stream.wait() == (130 if number == signal.SIGINT else 0)
    assert spooled(stream) != []


@pytest.mark.gate
def test_signals_end_it_in_time(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Ctrl-C is 130; an outage of the store that has no end is not waited for."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(lambda request: on_binlogs(request.path, request.method))
        write(mysql, 12)
        mysql.query("FLUSH BINARY LOGS")
        stream.wait_for_event("the store failed, trying again")
        stream.process.send_signal(signal.SIGINT)
        assert stream.wait() == 130
    assert spooled(stream) != []


def test_a_signal_during_the_start_is_no_error(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """SIGTERM while the start waits for a silent store: it ends with 0, and nothing was claimed."""
    with proxied(disk_tmp_path, mysql, store, bucket, [on(Delay(3600))]) as (stream, _):
        lock = stream.spool / "lock"
        wait_until(lock.exists, what="the start has begun")
        stream.process.send_signal(signal.SIGTERM)
        assert stream.wait() == 0
    assert objects(store, bucket) == {}
