"""A store that refuses what one binlog needs, and takes all else: said, bounded, and mended."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.fault import Action, Answer, Request
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.asking import Monitor
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.streaming import no_litter, objects, settle, wait_until_archived, write
from tests.integration.test_late import critical
from tests.integration.test_store_faults import says
from tests.waiting import wait_until

HTML = {"Content-Type": "text/html"}
LIMIT = 1_000_000
MEGABYTES = 19
TOO_LARGE = Answer(413, HTML, b"<html>Request Entity Too Large</html>")


class Large:
    """A rule that refuses bodies above a limit, as a proxy before a store does, while it is on."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.on = True

    def __call__(self, request: Request) -> Action | None:
        size = int(request.headers.get("content-length", 0))
        return self._answer if self.on and request.method == "PUT" and size > LIMIT else None


@contextmanager
def small_rows(mysql: MysqlServer) -> Iterator[None]:
    """A server that goes on: one small row after the other, whose chunks pass."""
    over = threading.Event()

    def insert() -> None:
        while not over.wait(0.2):
            mysql.query("INSERT INTO bulk.t (v) VALUES ('small')")

    thread = threading.Thread(target=insert)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_binlog_that_is_refused_is_no_secret(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A critical trouble with what to do, /health 503, and at most three times the bytes."""
    write(mysql, MEGABYTES)
    mysql.query("FLUSH BINARY LOGS")
    monitor, rule = Monitor(), Large(TOO_LARGE)
    with proxied(disk_tmp_path / "one", mysql, minio, bucket, [rule], options=monitor.options) as (
        stream,
        proxy,
    ):
        stream.wait_for_event("streaming")
        with small_rows(mysql):
            monitor.wait_for(lambda told: "store" in critical(told), what="it is critical")
            told = monitor.status()
            (trouble,) = (one for one in told["troubles"] if one["code"] == "store")
            assert "--part-size" in trouble["hint"]
            assert told["state"] != "store unreachable", "chunks pass all the time"
            assert monitor.health().code == 503
            taken = len(objects(minio, bucket))
            wait_until(lambda: len(objects(minio, bucket)) != taken, what="chunks go on")
        refused = [r for r in proxy.records if r.status not in (200, 204, 404)]
        assert sum(record.request_bytes for record in refused) <= 3 * MEGABYTES * 1_100_000
        assert "Traceback" not in stream.stderr()
        assert stream.terminate() == 0
    with StreamProcess(disk_tmp_path / "one", mysql, minio, bucket) as stream:
        settle(stream, mysql, minio, bucket)


def test_deletes_that_are_denied_keep_nothing_up(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """More binlogs than workers: all are archived; status says what stays; later it goes, too."""
    denied = says(403, "AccessDenied")
    away = threading.Event()
    away.set()

    def rule(request: Request) -> Action | None:
        deletes = request.method == "DELETE" or "delete" in request.query.split("&")[0]
        return denied if away.is_set() and deletes else None

    monitor = Monitor()
    options = {**monitor.options, "concurrency": "2", "flush-interval": "100ms"}
    with proxied(disk_tmp_path, mysql, minio, bucket, [rule], options=options) as (stream, _):
        stream.wait_for_event("streaming")
        for _ in range(5):
            write(mysql, 1)
            wait_until(lambda: monitor.status()["lag"]["bytes"] == 0, what="all is durable")
            mysql.query("FLUSH BINARY LOGS")
        wait_until_archived(stream, mysql, minio, bucket)
        told = monitor.wait_for(
            lambda told: "clean-up" in {one["code"] for one in told["troubles"]}, what="it is said"
        )
        assert told is None or "store" not in critical(told)
        assert stream.terminate() == 0
    away.clear()
    with StreamProcess(disk_tmp_path, mysql, minio, bucket) as stream:
        stream.wait_for_event("streaming")
        no_litter(minio, bucket)
        assert stream.terminate() == 0
