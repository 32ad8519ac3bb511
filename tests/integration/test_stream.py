"""The main job: a real server's binlogs reach a real store, whole, and are proved to be there."""

import re
import signal
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lab.fault import Action, Gate, Request, in_flight
from lab.load import Load
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.streaming import (
    MIXED,
    PART,
    bodies,
    documents,
    no_archive,
    objects,
    parts_there,
    spooled,
    the_large_one,
    uploads,
    wait_until_archived,
    write,
    write_binlog,
)
from tests.waiting import wait_until


def test_every_closed_binlog_is_archived_under_load(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Every object is the server's file, every entry is true, and the spool keeps one file.

    20 rotations under 4 writers, a binlog of several parts, and 200 rotations in a tight loop.
    """
    with StreamProcess(disk_tmp_path, mysql, store, bucket) as stream:
        with Load(mysql, threads=4, flush_seconds=0.4, seconds=600, shape=MIXED) as load:
            wait_until(lambda: load.flushes >= 20, 300, "20 rotations")
            load.stop()
        write(mysql, 12)
        for _ in range(200):
            mysql.query("FLUSH BINARY LOGS")
        wait_until_archived(stream, mysql, store, bucket)
        open_binlog = mysql.binlogs()[-1][0]
        wait_until(lambda: spooled(stream) == [open_binlog], what="only the open binlog is left")
        assert stream.terminate() == 0
    assert spooled(stream) == [open_binlog]
    assert "Traceback" not in stream.stderr()
    entries = documents(store, bucket, "/entries/")
    assert len(entries) > 220
    what_the_entries_say_is_true(mysql, entries, bodies(store, bucket, "/binlogs/"))


def what_the_entries_say_is_true(
    server: MysqlServer, entries: dict[str, dict[str, Any]], binlogs: dict[str, bytes]
) -> None:
    """Their GTIDs, sizes and times agree with the server and the objects."""
    executed = server.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
    before = ""
    joined = "SELECT GTID_SUBTRACT(GTID_SUBTRACT(%s, %s), %s), GTID_SUBSET(%s, %s)"
    with server.connect() as connection, connection.cursor() as cursor:
        for key, entry in sorted(entries.items()):
            body = binlogs[key.replace("/entries/", "/binlogs/").removesuffix(".json")]
            assert entry["size"] == len(body)
            assert entry["gtid_set_before"] == before
            assert sum(block["size"] for block in entry["blocks"]) == len(body)
            assert entry["end"] == "rotate"
            if entry["transactions"]:
                assert entry["least_commit_us"] <= entry["greatest_commit_us"]
            added = entry["gtid_set_added"]
            cursor.execute(joined, (executed, before, added, added, executed))
            rest, subset = cursor.fetchone() or ("", 0)
            assert subset == 1
            cursor.execute("SELECT GTID_SUBTRACT(%s, %s)", (executed, rest))
            before = (cursor.fetchone() or ("",))[0].replace("\n", "")
    assert before == executed


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
        for round_ in range(6):
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


@pytest.mark.gate
def test_a_spool_that_changes_is_noticed(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """A byte that flips between reading and sending ends it with exit 5; the next start mends."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(no_archive)
        write_binlog(mysql, 2)
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
        write_binlog(mysql, 2)
        assert stream.wait() == 7
        assert key in stream.events("ended")[0]["error"]
    assert bodies(store, bucket, key) == {key: b"foreign"}
    assert spooled(stream) != []


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


@pytest.mark.needs("storage classes", "encryption")
def test_storage_class_and_encryption_are_for_the_binlogs(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """--storage-class applies to archived binlogs alone, --sse to everything, confirmed.

    A class that the store lacks ends it with exit 6: no waiting mends it, and the spool is kept.
    """
    options = {"storage-class": "REDUCED_REDUNDANCY", "sse": "AES256"}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write(mysql, 12)
        wait_until_archived(stream, mysql, store, bucket)
        assert stream.terminate() == 0
    with closing(store.client()) as client:
        heads = {k: client.head_object(Bucket=bucket, Key=k) for k in objects(store, bucket)}
    assert heads
    for key, head in heads.items():
        assert head["ServerSideEncryption"] == "AES256"
        class_ = head.get("StorageClass", "STANDARD")
        assert class_ == ("REDUCED_REDUNDANCY" if "/binlogs/" in key else "STANDARD")
    options = {"storage-class": "STANDARD_IA"}
    with StreamProcess(disk_tmp_path, mysql, store, bucket, options=options) as stream:
        write_binlog(mysql, 2)
        assert stream.wait() == 6
        assert "storage class" in stream.events("ended")[-1]["error"]
    assert spooled(stream) != []


@pytest.mark.gate
def test_signals_end_it_in_time(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Ctrl-C is 130; an outage of the store that has no end is not waited for."""
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules.append(no_archive)
        write_binlog(mysql, 12)
        stream.wait_for_event("the store failed, trying again")
        stream.process.send_signal(signal.SIGINT)
        assert stream.wait() == 130
    assert spooled(stream) != []
