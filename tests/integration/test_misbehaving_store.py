"""Each way in which a store misbehaves, at each kind of request, with one oracle.

While it lasts, all is durable and archived all the same, or `/health` says that it is not; what is
sent for nothing is bounded; nothing ends in a traceback. Afterwards all is archived, byte for byte.
A command ends with 0 and the right result, or with an error; what it calls deleted is gone.
"""

import io
import json
from collections import Counter
from contextlib import closing, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.cli.main import main
from lab.fault import Action, Answer, DropAnswer, Request
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import REGION, MinioServer
from lab.verify import closed_binlogs
from tests.binlog_writer import UUID_A
from tests.documents import ID
from tests.integration.asking import Monitor
from tests.integration.stream_process import proxied
from tests.integration.streaming import objects, settle, write
from tests.integration.test_store_faults import kind, mysql, says, server
from tests.snapshots import LAYOUT
from tests.unit.retain.test_prune import COUNT, filled, name_of
from tests.waiting import wait_until

__all__ = ["mysql", "server"]

HTML = {"Content-Type": "text/html"}
FAULTS: dict[str, Action] = {
    "denied": says(403, "AccessDenied"),
    "500": says(500, "InternalError"),
    "web page": Answer(200, HTML, b"<html>Welcome</html>"),
    "lost": DropAnswer(),
}
KINDS = ("chunk", "create", "part", "copy", "complete", "whole", "entry", "delete objects", "list")


class Spoiled:
    """A rule that spoils every request of one kind, while `what` names it."""

    def __init__(self, action: Action) -> None:
        self._action = action
        self.what = ""
        self.hits: Counter[str] = Counter()

    def __call__(self, request: Request) -> Action | None:
        if kind(request) != self.what:
            return None
        self.hits[self.what] += 1
        return self._action


OF_STREAMER = ("denied", "web page", "lost")
"""One of each class that a streamer handles otherwise: each takes a minute or two."""
OF_COMMANDS = ("denied", "500", "web page", "lost")
"""For good, for now, and two that are no answer; of which class a code is, test_s3.py says."""


@pytest.mark.parametrize("fault", OF_STREAMER)
def test_a_streamer(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, fault: str
) -> None:
    """One kind of request after the other is spoiled, each until it is overcome or said."""
    monitor, rule, written = Monitor(), Spoiled(FAULTS[fault]), 0
    with proxied(disk_tmp_path, mysql, minio, bucket, options=monitor.options) as (stream, proxy):
        monitor.wait_until_well()
        proxy.rules.append(rule)

        def is_overcome() -> bool:
            keys = objects(minio, bucket)
            entries = {Path(key).stem for key in keys if "/entries/" in key}
            archived = {binlog.name for binlog in closed_binlogs(mysql, flush=False)} <= entries
            return archived and monitor.status()["lag"]["bytes"] == 0

        for what in KINDS:
            rule.what = what
            megabytes = 1 if what in ("whole", "entry", "chunk") else 7
            written += megabytes * 1_000_000
            write(mysql, megabytes)
            mysql.query("FLUSH BINARY LOGS", "CREATE DATABASE IF NOT EXISTS more")
            wait_until(
                lambda: is_overcome() or monitor.health().code != 200,
                120,
                f"{what} is overcome, or said",
                interval=0.2,
            )
            assert stream.process.poll() is None, stream.stderr()
        rule.what = ""
        settle(stream, mysql, minio, bucket)
        in_vain = [r for r in proxy.records if r.status not in (200, 204, 206, 404, 412)]
    assert rule.hits["chunk"] + rule.hits["part"] > 0
    assert sum(record.request_bytes for record in in_vain) <= 3 * written
    assert len(in_vain) < 2000


# Commands

NEEDED = 35
"""The first binlog that is needed behind these GTIDs."""
COMMANDS = {
    "prune": ["--keep-from-gtid-set", f"{UUID_A}:1-{3 * NEEDED + 1}", "--grace=0",
              "--allow-empty", "--yes"],
    "verify": [],
    "list": [],
    "backup list": [],
}  # fmt: skip
REQUESTS = ("list", "get", "head", "delete objects", "lineage")
"""What they ask; the last one is the put of a floor."""


class Here:
    """An archive of forty binlogs, behind a proxy with a rule, and commands in this process."""

    def __init__(self, minio: MinioServer, bucket: str, proxy: RecordingProxy) -> None:
        self._minio = minio
        self._bucket = bucket
        self._proxy = proxy

    def fill(self) -> None:
        """Make the bucket what it was before all commands."""
        there, wanted = self.keys, filled().objects
        with closing(self._minio.client()) as client:
            for key in wanted.keys() - there:
                client.put_object(Bucket=self._bucket, Key=key, Body=wanted[key].data)
            for key in there - wanted.keys():
                client.delete_object(Bucket=self._bucket, Key=key)

    @property
    def keys(self) -> set[str]:
        return {*objects(self._minio, self._bucket)}

    def run(self, name: str) -> tuple[int, Any]:
        """The exit code, and the document; None if there is none. No other exception is raised."""
        words = [
            *name.split(), *COMMANDS[name], "--json", "--source=orders",
            f"--s3-url=s3://{self._bucket}/pre", f"--endpoint-url={self._proxy.url}",
            "--addressing-style=path", f"--region={REGION}",
        ]  # fmt: skip
        with redirect_stdout(io.StringIO()) as out, pytest.raises(SystemExit) as ended:
            main(words)
        return int(ended.value.code or 0), json.loads(out.getvalue() or "null")


@pytest.mark.parametrize("fault", OF_COMMANDS)
def test_commands(
    minio: MinioServer, bucket: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """0 and the same document as without the fault, or an error; nothing that is needed goes."""
    for name, value in minio.env().items():
        monkeypatch.setenv(name, value)
    needed = {LAYOUT.binlog(ID, name_of(number)) for number in range(NEEDED, COUNT + 1)}
    with RecordingProxy(minio.endpoint_url) as proxy:
        here = Here(minio, bucket, proxy)
        for name in COMMANDS:
            here.fill()
            before = here.keys
            good, after = here.run(name), here.keys
            assert good[0] == (7 if name == "verify" else 0)  # that archive tells lies
            for what in REQUESTS:
                here.fill()
                rule = Spoiled(FAULTS[fault])
                rule.what = what
                proxy.rules[:] = [rule]
                code, document = here.run(name)
                proxy.rules.clear()
                told = (name, what, code, document)
                assert needed <= here.keys, told
                if (code, document) != good or here.keys != after:
                    assert code == 6 or (name, code) == ("verify", 7), told
                deleted = document["deleted"] if name == "prune" and document else []
                gone = len(before - here.keys)
                assert gone >= sum(one["objects"] for one in deleted), told
