"""Durable in a second: what was committed can be read from the bucket, whatever dies then."""

import hashlib
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from lab.fault import Answer, Request, on
from lab.load import Load
from lab.mysql import MysqlServer, server_of
from lab.proxy import RecordingProxy
from lab.s3 import Store
from lab.verify import closed_binlogs
from tests.integration.asking import Commits, marks_in
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.streaming import MIXED, PART, all_came, sent, uploads, wait_until_archived
from tests.timed import PATIENT_END
from tests.waiting import wait_until

ROUNDS = int(os.environ.get("DURABLE_ROUNDS", "1"))
SECONDS = float(os.environ.get("DURABLE_SECONDS", "inf"))
"""What was committed so long ago is durable: to be asked for only where nothing else runs."""


@pytest.mark.gate("mysql-0")
@pytest.mark.mysql
@pytest.mark.parametrize("number", range(ROUNDS))
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_both_machines_gone(
    flavour: str,
    number: int,
    request: pytest.FixtureRequest,
    store: Store,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """Server and streamer die together, disks and all: all that was said to be durable is there.

    And the streamer says so of all that is committed, a little later.
    """
    seed = random.Random()
    reported: list[dict[str, Any]] = []
    there = Bucket(store, bucket)
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    with server_of(binaries, disk_tmp_path / "server") as server:
        with (
            suppress(RuntimeError),  # the load's, as the server dies under it
            StreamProcess(disk_tmp_path / "one", server, store, bucket) as stream,
            Load(server, threads=2, flush_seconds=3, seconds=3600, shape=MIXED),
            Commits(server, pause=0.002, large=20) as commits,
        ):
            stream.wait_for_event("new lineage")
            for _ in range(seed.randint(2, 6)):
                old = said_to_be_durable(there, server, commits, reported)
            threading.Event().wait(seed.random())  # any moment will do
            stream.kill()
            killed = time.monotonic()
            server.kill()
        old |= commits.before(killed - SECONDS)
        found = there.binlogs()
        assert old
        assert old <= marks_in(found), sorted(old - marks_in(found))[:5]
        kept = set(there.archived()) | {c.binlog for c in there.chunks()}
        for beat in reported:
            if (durable := beat["durable"]) is not None:
                assert len(found[durable["binlog"]]) >= durable["offset"], durable
                before = [name for name in found if name < durable["binlog"]]
                assert set(before) <= kept
        if number % 2 or flavour == "mariadb":  # MariaDB leaves torn events behind, and serves none
            return
        # The other variant: the server's disk survives, a new streamer has an empty one.
        server.start()
        with StreamProcess(disk_tmp_path / "two", server, store, bucket) as stream:
            wait_until_archived(stream, server, store, bucket)
            closed = {binlog.name for binlog in closed_binlogs(server, flush=False)}
            wait_until(lambda: no_chunks_of(there, closed), what="their chunks are gone")
            assert stream.terminate() == 0
        assert marks_in(there.binlogs()) >= commits.before(killed)
        assert closed <= set(there.archived())
        assert no_chunks_of(there, closed)


def no_chunks_of(there: Bucket, names: Collection[str]) -> bool:
    return not [chunk for chunk in there.chunks() if chunk.binlog in names]


def said_to_be_durable(
    there: Bucket, server: MysqlServer, commits: Commits, reported: list[dict[str, Any]]
) -> set[int]:
    """What is committed by now, once the writer's object says that it is durable.

    All that this object says meanwhile is `reported`.
    """
    before = len(commits.done)
    wait_until(lambda: len(commits.done) > before, what="a commit")
    numbers, place = commits.before(time.monotonic()), server.binlogs()[-1]

    def said() -> bool:
        reported.append(there.heartbeat())
        durable = reported[-1]["durable"]
        return durable is not None and (durable["binlog"], durable["offset"]) >= place

    wait_until(said, what=f"{place} is durable", interval=0.2)
    return numbers


def write_parts(server: MysqlServer, parts: float) -> None:
    """About so many parts of binlog, in transactions of half a megabyte."""
    server.query(
        "CREATE DATABASE IF NOT EXISTS bulk",
        "CREATE TABLE IF NOT EXISTS bulk.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGTEXT)",
    )
    for _ in range(int(parts * 10)):
        server.query("INSERT INTO bulk.t (v) VALUES (REPEAT('b', 524000))")


def all_durable(there: Bucket, server: MysqlServer, full: int = 0) -> Callable[[], bool]:
    """Whether the bucket can be read up to where the server stands, and has so many full chunks.

    A full one may come behind small ones that have the same bytes.
    """

    def check() -> bool:
        name, size = server.binlogs()[-1]
        chunks = there.chunks(name)
        last = [c for c in chunks if c.end == size]
        enough = sum(c.end - c.begin == PART for c in chunks) >= full
        return bool(last) and enough and len(there.binlogs()[name]) == size

    return check


@pytest.mark.gate("False")
@pytest.mark.needs("part copies")
@pytest.mark.parametrize("empty_spool", [False, True])
def test_little_is_sent_again(
    mysql: MysqlServer,
    store: Store,
    bucket: str,
    disk_tmp_path: Path,
    empty_spool: bool,
) -> None:
    """After kill -9, on the same spool or on none, only what no chunk holds is sent."""
    there = Bucket(store, bucket)
    with RecordingProxy(store.endpoint_url) as proxy:
        options = {"endpoint-url": proxy.url}
        with StreamProcess(disk_tmp_path / "one", mysql, store, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            write_parts(mysql, 4.5)
            wait_until(all_durable(there, mysql, full=4), what="all is durable")
            stream.kill()
        if empty_spool:
            shutil.rmtree(stream.spool)
        proxy.clear()
        with StreamProcess(disk_tmp_path / "one", mysql, store, bucket, options=options) as stream:
            stream.wait_for_event("continuing with the chunks in the bucket")
            mysql.query("INSERT INTO bulk.t (v) VALUES ('small')")
            wait_until(all_durable(there, mysql), what="what is new is durable")
            assert sent(proxy.records) < PART + 100_000, "more than the small chunks held"
            wait_until_archived(stream, mysql, store, bucket)
            archived = stream.wait_for_event("binlog archived")
            assert archived["copied"] >= 4
            wait_until(lambda: uploads(store, bucket) == [], what="no upload is left")
            assert stream.terminate() == 0
        assert sent(proxy.records) < 3 * PART
    assert uploads(store, bucket) == []


def test_what_only_the_spool_has_is_brought_in_before_a_gap_ends_it(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Hours without the store, and the source purged even the binlog that was open.

    The closed ones are archived, byte for byte, and the open one's bytes are kept.
    """
    there = Bucket(store, bucket)
    place = disk_tmp_path / "one"
    rules = [on(Answer(503, body=b""), path="/binlogs/|/live/test/2")]
    with proxied(place, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        proxy.rules += rules
        for _ in range(4):
            write_parts(mysql, 1.2)
            mysql.query("FLUSH BINARY LOGS")
        closed = {binlog.name: binlog.sha256 for binlog in closed_binlogs(mysql, flush=False)}
        write_parts(mysql, 1.3)
        name, _ = all_came(stream, mysql)
        stream.kill()
    (path,) = stream.spool.glob(f"run-*/{name}")
    expected = path.read_bytes()
    mysql.query("FLUSH BINARY LOGS")
    write_parts(mysql, 0.1)
    mysql.query("FLUSH BINARY LOGS")
    mysql.query(f"PURGE BINARY LOGS TO '{mysql.binlogs()[-1][0]}'")
    for _ in range(2):
        options = {"on-gap": "stop"}
        with StreamProcess(place, mysql, store, bucket, options=options) as stream:
            assert stream.wait() == 7, stream.stderr()
        assert stream.events("ended")[-1]["error"].startswith("gap: ")
        found = there.binlogs()
        assert there.archived() == [*closed]
        assert {one: hashlib.sha256(found[one]).hexdigest() for one in closed} == closed
        assert found[name] == expected


@pytest.mark.gate
def test_the_last_bytes_go_along_at_the_end(
    mysql: MysqlServer, store: Store, disk_tmp_path: Path
) -> None:
    """A commit, then SIGTERM at once, with a flush far away: the bucket has the commit."""
    bucket = store.make_bucket()
    there = Bucket(store, bucket)
    options = {"flush-interval": 3600}
    with StreamProcess(
        disk_tmp_path, mysql, store, bucket, options=options, timing=PATIENT_END
    ) as stream:
        stream.wait_for_event("new lineage")
        wait_until(there.chunks, what="the first flush")
        write_parts(mysql, 0.1)
        name, size = mysql.binlogs()[-1]
        path = next(stream.spool.glob(f"run-*/{name}"))
        wait_until(lambda: path.stat().st_size >= size, what="it has come")
        assert len(there.binlogs()[name]) < size
        assert stream.terminate() == 0
    assert len(there.binlogs()[name]) == size
    assert there.heartbeat()["durable"]["offset"] == size
    assert there.heartbeat()["state"] == "stopped"


def test_an_idle_source_costs_a_heartbeat(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Nothing is committed: a put and two listings for each heartbeat, and nothing else.

    One listing is of the writers, one of the standbys.
    """
    there = Bucket(store, bucket)
    with proxied(disk_tmp_path, mysql, store, bucket) as (stream, proxy):
        stream.wait_for_event("new lineage")
        wait_until(all_durable(there, mysql), what="all is durable")
        wait_until(lambda: there.heartbeat()["state"] == "idle", what="it is idle")
        # beside the stream it looks at the lineages, once
        looks = {"method": "GET", "path": "/lineage.json"}
        wait_until(lambda: proxy.matching(**looks), what="it has seen the lineages")
        before = there.heartbeat()["covered_until"]
        proxy.clear()
        wait_until(lambda: len(proxy.matching(method="PUT")) >= 12, 600, "12 heartbeats")
        records = proxy.records
        assert stream.terminate() == 0
    kinds = Counter(_kind_at_rest(record.request) for record in records)
    assert kinds.keys() == {"put", "list writers", "list standbys"}
    # recording began and ended somewhere between two heartbeats
    assert max(kinds.values()) - min(kinds.values()) <= 1, kinds
    assert there.heartbeat()["covered_until"] > before


def _kind_at_rest(request: Request) -> str:
    """What a heartbeat asks of the store, in a word; all of anything else."""
    listed = {
        "pre/live/test/": "list writers",  # every tenth time with all chunks, for the audit
        "pre/live/test/writers/": "list writers",
        "pre/live/test/standbys/": "list standbys",
    }
    (prefix,) = parse_qs(request.query).get("prefix", [""])
    if request.method == "GET" and prefix in listed:
        return listed[prefix]
    if request.method == "PUT" and "/pre/live/test/writers/" in request.path:
        return "put"
    return str(request)
