"""The whole job on each other store: what goes wrong on MinIO alone must not be all that is mended.

Law: the end is the same on each: every closed binlog's object is the server's file, its entry is
there, and nothing of its growing is left, as far as the store can tell.
"""

import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from botocore.exceptions import ClientError

from lab.fault import DropAnswer
from lab.load import Load
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import (
    MIXED,
    documents,
    no_litter,
    wait_until_archived,
    write,
    write_for_all,
)
from tests.integration.test_store_faults import WRITES, FirstOf, HoldFirst, says
from tests.integration.test_stream import wait_for_new_object
from tests.waiting import wait_until


def take_away_the_upload(proxy: RecordingProxy, store: Store, bucket: str, name: str) -> None:
    """Abort the upload of a binlog when it has parts, as a lifecycle rule does it.

    Found by what went over the wire: not every store lists its uploads.
    """

    def sent() -> tuple[str, str] | None:
        for record in proxy.matching(method="PUT", path=f"/{name}$", query="partNumber="):
            if record.status == 200:
                asked = parse_qs(record.request.query)
                return record.request.path.removeprefix(f"/{bucket}/"), asked["uploadId"][0]
        return None

    found = wait_until(sent, what="a part that was sent")
    assert found is not None
    key, upload_id = found

    def aborted() -> bool:
        try:
            client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        except ClientError as error:
            # versitygw fails where the next part is being written into the folder that it removes
            if error.response["Error"]["Code"] == "InternalError":
                return False
            if error.response["Error"]["Code"] != "NoSuchUpload":
                raise
        return True

    with closing(store.client()) as client:
        wait_until(aborted, what="the upload is gone")


@pytest.mark.stores("versitygw", "nanio")
def test_everything_happens_to_one_stream(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """All bytes arrive though each kind of write loses an answer, then fails.

    Killed while its Complete is on the way, which is performed when the next process works; killed
    again, and its spool is lost; without chunks, its upload vanishes; another one takes over.
    """
    held = HoldFirst("complete")
    faults = FirstOf(WRITES - {"heartbeat"}, DropAnswer(), says(503, "SlowDown"))
    with ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(store.endpoint_url, [held, faults]))
        stack.callback(held.open)
        options = {"endpoint-url": proxy.url}
        one, two = disk_tmp_path / "one", disk_tmp_path / "two"
        with StreamProcess(one, mysql, store, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            with Load(mysql, threads=2, transactions_each=50, shape=MIXED) as load:
                load.join()
            write_for_all(mysql, store, bucket)
            wait_until(held.held.is_set, what="a Complete on its way")
            stream.kill()
        runs = len(stream.events("streaming"))
        more = {"flush_seconds": 0.5, "pause_seconds": 0.01, "seconds": 1200}
        with (
            Load(mysql, threads=2, shape=MIXED, **more),
            StreamProcess(one, mysql, store, bucket, options=options) as stream,
        ):
            wait_until(lambda: len(stream.events("streaming")) > runs, what="it reads again")
            held.open()
            wait_for_new_object(store, bucket)
            stream.kill()
        shutil.rmtree(stream.spool)
        proxy.clear()
        chunkless = {**options, "flush-interval": 0}
        exits = ["--exit-on-other-writer"]  # the default is to stand by
        with StreamProcess(one, mysql, store, bucket, options=chunkless, arguments=exits) as stream:
            mysql.query("FLUSH BINARY LOGS")
            write(mysql, 12)
            take_away_the_upload(proxy, store, bucket, mysql.binlogs()[-1][0])
            wait_until_archived(stream, mysql, store, bucket)
            with StreamProcess(
                two, mysql, store, bucket, options=options, arguments=["--take-over"]
            ) as other:
                assert stream.wait() == 9
                write_for_all(mysql, store, bucket)
                wait_until_archived(other, mysql, store, bucket)
                wait_until(lambda: faults.spent, what="each kind of write was spoiled")
                no_litter(store, bucket)
                assert other.terminate() == 0
            assert "Traceback" not in stream.stderr() + other.stderr()
    assert len(documents(store, bucket, "lineage.json")) == 1
