"""A store that fails in every way a store can: all closed binlogs arrive whole, and no litter.

Each test ends alike: every closed binlog's object is the server's file byte for byte, no upload of
it is unfinished, no chunk of it is left.
"""

import contextlib
import itertools
import re
import signal
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import pytest

from bench.link import SlowLink
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from lab.disk import temporary_directory
from lab.fault import Action, Answer, Drop, DropAnswer, Gate, Request
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, NanioServer, Store
from tests.integration.bucket import CHUNK
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.test_stream import (
    objects,
    parts_there,
    spooled,
    wait_until_archived,
    write,
)
from tests.relay import Relay
from tests.waiting import wait_until

PART = 5 << 20
PAGE = 1000  # keys, the most that a store lists at once
XML = {"Content-Type": "application/xml"}
READS = frozenset({"list", "list uploads", "head", "get"})
WRITES = frozenset(
    {"heartbeat", "lineage", "chunk", "create", "part", "copy", "complete", "whole", "entry"}
    | {"delete objects"}
)


def kind(request: Request) -> str:
    """What a request is for, by its method, key and query."""
    asked = parse_qs(request.query, keep_blank_values=True)
    by_query = {
        "GET": {"list-type": "list", "uploads": "list uploads", "uploadId": "list parts"},
        "POST": {"uploads": "create", "delete": "delete objects", "uploadId": "complete"},
        "PUT": {"partNumber": "copy" if "x-amz-copy-source" in request.headers else "part"},
        "DELETE": {"uploadId": "abort"},
    }
    for name, what in by_query.get(request.method, {}).items():
        if name in asked:
            return what
    if request.method != "PUT":
        return request.method.lower()
    if CHUNK.search(request.path):
        return "chunk"
    places = {"binlogs": "whole", "entries": "entry", "writers": "heartbeat"}
    return places.get(Path(request.path).parent.name, "lineage")


def says(status: int, code: str) -> Answer:
    """A store's own error."""
    body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>"
    return Answer(status, XML, body.encode())


class FirstOf:
    """A rule that spoils the first requests of each of these kinds, in turn, and counts them."""

    def __init__(self, kinds: Collection[str], *actions: Action) -> None:
        self._kinds = kinds
        self._actions = actions
        self._lock = threading.Lock()
        self.hits: Counter[str] = Counter()

    @property
    def spent(self) -> bool:
        """Whether each kind has met each action."""
        return self.hits == dict.fromkeys(self._kinds, len(self._actions))

    def __call__(self, request: Request) -> Action | None:
        what = kind(request)
        with self._lock:
            if what not in self._kinds or self.hits[what] == len(self._actions):
                return None
            self.hits[what] += 1
            return self._actions[self.hits[what] - 1]


class HoldFirst(Gate):
    """A gate that holds one request of a kind, the first; `number` is that of a part."""

    def __init__(self, what: str, number: int | None = None) -> None:
        super().__init__(longest_seconds=600)
        self._what = what
        self._number = "" if number is None else f"partNumber={number}(&|$)"
        self._lock = threading.Lock()
        self._taken = False

    def __call__(self, request: Request) -> Action | None:
        if kind(request) == self._what and re.search(self._number, request.query):
            with self._lock:
                mine, self._taken = not self._taken, True
            if mine:
                return super().__call__(request)
        return None


class Outage:
    """A rule that spoils everything while `action` is not None."""

    def __init__(self) -> None:
        self.action: Action | None = None

    def __call__(self, request: Request) -> Action | None:
        return self.action


@pytest.fixture(scope="module")
def server(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """One MySQL for the module; its history begins anew for each test, see `mysql`."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        yield server


@pytest.fixture
def mysql(server: MysqlServer) -> MysqlServer:
    """The module's MySQL, with one binlog that has nothing in it yet."""
    server.query("RESET BINARY LOGS AND GTIDS")
    return server


@pytest.fixture
def mortal_minio(minio_binary: Path, disk_tmp_path: Path) -> Iterator[MinioServer]:
    """A MinIO for this test alone, which may stop it."""
    with MinioServer(minio_binary, disk_tmp_path / "minio") as server:
        yield server


def leftovers(store: Store, bucket: str) -> list[str]:
    """Chunks of archived binlogs, and unfinished uploads under their keys."""
    keys = objects(store, bucket)
    archived = {Path(key).name: key for key in keys if "/binlogs/" in key}
    chunks = [key for key in keys if (m := CHUNK.search(key)) and m["name"] in archived]
    with closing(store.client()) as client:
        uploads = [
            f"upload of {key}"
            for key in archived.values()
            if client.list_multipart_uploads(Bucket=bucket, Prefix=key).get("Uploads", [])
        ]
    return chunks + uploads


def settle(stream: StreamProcess, server: MysqlServer, store: Store, bucket: str) -> None:
    """The end of each test: all is archived, equal, and cleared away; the streamer works still."""
    wait_until_archived(stream, server, store, bucket)
    no_litter(store, bucket)
    assert "Traceback" not in stream.stderr()
    assert stream.terminate() == 0


def no_litter(store: Store, bucket: str) -> None:
    """Wait until the chunks and uploads of what is archived are gone."""
    wait_until(lambda: not leftovers(store, bucket), 300, "no litter", interval=0.2)


def full_chunks(store: Store, bucket: str) -> list[str]:
    found = [match for key in objects(store, bucket) if (match := CHUNK.search(key))]
    return [m.string for m in found if int(m["end"]) - int(m["begin"]) == PART]


def archive(store: Store, bucket: str) -> dict[str, Any]:
    """What lies under archive/, as it was written."""
    found = objects(store, bucket)
    return {k: (v["ETag"], v["LastModified"]) for k, v in found.items() if "/archive/" in k}


def write_for_all(server: MysqlServer, store: Store, bucket: str) -> None:
    """One binlog that is archived by parts and copies, and one that will be as a whole."""
    write(server, 7)
    wait_until(lambda: full_chunks(store, bucket), what="a full chunk")
    server.query("FLUSH BINARY LOGS")


ERRORS = (says(500, "InternalError"), says(503, "SlowDown"), says(429, "TooManyRequests"))
FAULTS: dict[str, tuple[Action, ...]] = {"errors": ERRORS, "resets": (Drop(), DropAnswer())}


@pytest.mark.gate("resets")
@pytest.mark.parametrize("fault", FAULTS)
def test_each_kind_of_request_fails(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, fault: str
) -> None:
    """Each kind of write gets 500, 503 and 429; or is reset before the act, then loses its answer.

    Reads and heartbeats fail once. All from the start on. What is sent again is sent whole.
    """
    writes = FirstOf(WRITES - {"heartbeat"}, *FAULTS[fault])
    reads = FirstOf(READS | {"heartbeat"}, FAULTS[fault][0])
    with RecordingProxy(minio.endpoint_url, [writes, reads]) as proxy:
        options = {"endpoint-url": proxy.url}
        with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            write_for_all(mysql, minio, bucket)
            wait_until_archived(stream, mysql, minio, bucket)
            wait_until(lambda: writes.spent and reads.spent, what="each kind was spoiled")
            settle(stream, mysql, minio, bucket)
        sent = [record for record in proxy.records if kind(record.request) == "part"]
    if fault == "errors":
        assert [record.status for record in sent] == [500, 503, 429, 200]
        assert len({record.request_bytes for record in sent}) == 1
    assert sent[-1].request_bytes > 1_000_000


WITH_BODY = READS - {"head"} | {"create", "copy", "complete", "delete objects"}


def test_a_connection_is_cut_in_an_answer(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """The act is done, and half of the answer's body comes: once for each kind, from the start on.

    Half a listing is no listing, half an entry no entry.
    """
    rule = FirstOf(WITH_BODY, Drop())
    with Relay(minio.endpoint_url, spoils=lambda head: rule(parsed(head)) is not None) as relay:
        options = {"endpoint-url": relay.url}
        with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            write_for_all(mysql, minio, bucket)
            wait_until_archived(stream, mysql, minio, bucket)
            wait_until(lambda: rule.spent, what="each kind was spoiled")
            settle(stream, mysql, minio, bucket)


def parsed(head: bytes) -> Request:
    """A request's head, as it stands on the wire."""
    first, *lines = head.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    path, _, query = target.partition("?")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    return Request(method=method, path=path, query=query, headers=headers)


def test_a_connection_is_cut_in_a_body(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A reset in the middle of chunks and parts, five times: each is sent again from its start."""
    with Relay(minio.endpoint_url, cut_up=3 << 20, times=0) as relay:
        options = {"endpoint-url": relay.url}
        with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            relay.times = 3
            write(mysql, 12)
            wait_until(lambda: len(full_chunks(minio, bucket)) >= 2, what="two full chunks")
            relay.times = 5
            write(mysql, 9)
            settle(stream, mysql, minio, bucket)
        assert relay.cuts == 5


LATE = ("part", "whole", "chunk", "create", "copy", "complete", "entry", "delete objects")


def write_just_over_a_part(server: MysqlServer) -> None:
    """A binlog of one part and less than 64 KiB, which a proxy holds as a whole."""
    server.query("CREATE DATABASE IF NOT EXISTS bulk")
    server.query(
        "CREATE TABLE IF NOT EXISTS bulk.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)"
    )
    while (size := server.binlogs()[-1][1]) <= PART:
        row = min(1_000_000, max(PART - size - 1_000, 2_000))
        server.query(f"INSERT INTO bulk.t (v) VALUES (REPEAT('x', {row}))")
    assert size < PART + 60_000
    server.query("TRUNCATE bulk.t", "FLUSH BINARY LOGS")


def test_requests_are_performed_long_after_they_were_made(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Requests of every kind, given up by the streamer, are performed when all is archived.

    Nothing under archive/ is written anew; the chunk and the upload that they leave are swept by
    the audit, or by the next start if they come when nobody streams.
    """
    write_just_over_a_part(mysql)
    mysql.query("FLUSH BINARY LOGS")
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        Relay(proxy.url) as relay,
        contextlib.ExitStack() as stack,
    ):
        gates = {what: HoldFirst(what, 2 if what == "part" else None) for what in LATE}

        def hold(*kinds: str) -> None:
            for what in kinds:
                stack.callback(gates[what].open)
                proxy.rules.append(gates[what])

        def give_up(*kinds: str) -> None:
            for what in kinds:
                wait_until(gates[what].held.is_set, what=f"a {what} that is held")
                relay.cut()

        hold("part", "whole", "chunk")
        options = {"endpoint-url": relay.url}
        with StreamProcess(disk_tmp_path / "one", mysql, minio, bucket, options=options) as stream:
            give_up("part", "whole", "chunk")
            mysql.query("FLUSH BINARY LOGS")  # the late chunk and the late upload: of two binlogs
            write(mysql, 7)
            wait_until(lambda: full_chunks(minio, bucket), what="a full chunk")
            hold("create", "copy", "complete", "entry", "delete objects")
            mysql.query("FLUSH BINARY LOGS")
            give_up("create", "copy", "complete", "entry", "delete objects")
            wait_until_archived(stream, mysql, minio, bucket)
            no_litter(minio, bucket)
            before = archive(minio, bucket)
            # the delete first: it may name the chunk that is put late
            late = perform_late(proxy, {"delete objects": gates.pop("delete objects")})
            late |= perform_late(proxy, gates)
            settle(stream, mysql, minio, bucket)
    assert late["chunk"] == late["create"] == late["delete objects"] == 200
    assert late["part"] == late["copy"] == 404
    assert late["whole"] == late["entry"] == late["complete"] == 412
    leave_by_hand(mysql, minio, bucket)
    assert len(leftovers(minio, bucket)) == 2
    with StreamProcess(disk_tmp_path / "two", mysql, minio, bucket) as stream:
        settle(stream, mysql, minio, bucket)
    after = archive(minio, bucket)
    assert {key: after[key] for key in before} == before


def leave_by_hand(server: MysqlServer, store: Store, bucket: str) -> None:
    """What a late put and a late create leave of an archived binlog: a chunk, an empty upload."""
    key = next(k for k, row in objects(store, bucket).items() if row["Size"] > 6_000_000)
    name, live = Path(key).name, str(Path(key).parents[1]).replace("/archive/", "/live/")
    body = (server.datadir / name).read_bytes()[:1000]
    chunk = f"{live}/{name}/{0:016}-{len(body):016}-{crc64_hex(crc64nvme(body))}"
    with closing(store.client()) as client:
        client.put_object(Bucket=bucket, Key=chunk, Body=body)
        client.create_multipart_upload(Bucket=bucket, Key=key)


def perform_late(proxy: RecordingProxy, gates: Mapping[str, HoldFirst]) -> dict[str, int | None]:
    """Let go what is held; what the store answered, though nobody listens."""
    opened_at = monotonic()
    known = len(proxy.records)
    for gate in gates.values():
        gate.open()

    def answers() -> dict[str, int | None] | None:
        held = [record for record in proxy.records[known:] if record.begin < opened_at]
        found = {kind(record.request): record.status for record in held}
        return found if found.keys() >= gates.keys() else None

    found = wait_until(answers, what="the late requests' answers")
    assert found is not None
    return found


WRONG = {
    "expired credentials": ("ExpiredToken", "have expired"),
    "clock skew": ("RequestTimeTooSkewed", "differ too much"),
}


def test_what_is_mended_while_it_streams(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """403 for expired credentials, then for a clock that is off: named, waited for, gone on."""
    outage = Outage()
    with proxied(disk_tmp_path, mysql, minio, bucket, [outage]) as (stream, _):
        stream.wait_for_event("new lineage")
        for code, words in WRONG.values():
            write(mysql, 6)
            outage.action = says(403, code)
            mysql.query("FLUSH BINARY LOGS")
            wait_until(partial(named, stream, words, 2), what=f"{words}, twice")
            outage.action = None
            wait_until_archived(stream, mysql, minio, bucket)
        settle(stream, mysql, minio, bucket)


def named(stream: StreamProcess, words: str, times: int) -> bool:
    """Whether the streamer has said this of the store so often, with what to do."""
    lines = stream.events("the store failed, trying again")
    return sum(words in line["error"] and bool(line["hint"]) for line in lines) >= times


@pytest.mark.gate
def test_the_upload_is_aborted_by_hand(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """NoSuchUpload for a part, then a copy, then at the end: each time it is begun anew."""
    with RecordingProxy(minio.endpoint_url) as proxy, contextlib.ExitStack() as stack:
        options = {"endpoint-url": proxy.url}
        with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            write(mysql, 7)
            wait_until(lambda: full_chunks(minio, bucket), what="a full chunk")
            gates = [HoldFirst(what) for what in ("part", "copy", "complete")]
            beside = ("copy", "part", "")  # that comes to its end while the other one is held
            proxy.rules.append(gates[0])
            mysql.query("FLUSH BINARY LOGS")
            for gate, other, following in zip(gates, beside, [*gates[1:], None], strict=True):
                stack.callback(gate.open)
                wait_until(gate.held.is_set, what="a request that is held")
                wait_until(partial(done, proxy, other), what=f"a {other} beside it")
                assert abort_all(minio, bucket) == 1
                if following:
                    proxy.rules.append(following)
                gate.open()
            settle(stream, mysql, minio, bucket)
            gone = [line["after"] for line in stream.events("looking again at the store")]
        assert list(dict.fromkeys(gone)) == ["PutPart", "CopyPart", "Complete"]
        creates = [record for record in proxy.records if kind(record.request) == "create"]
        assert len(creates) == 4


def done(proxy: RecordingProxy, what: str) -> bool:
    """Whether a request of this kind, if it is one, has been answered with 200."""
    ends = {kind(record.request) for record in proxy.records if record.status == 200}
    return not what or what in ends


def abort_all(store: Store, bucket: str) -> int:
    """Abort every unfinished upload of the bucket; how many there were."""
    with closing(store.client()) as client:
        found = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        for upload in found:
            client.abort_multipart_upload(
                Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
    return len(found)


def test_more_leftovers_than_a_page_lists(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Over 1,000 chunks of an archived binlog: all are deleted, what is listed behind them is seen.

    The open binlog's chunks are on the second page: they have not vanished.
    """
    with StreamProcess(disk_tmp_path / "one", mysql, minio, bucket) as stream:
        lineage = stream.wait_for_event("new lineage")["lineage"]
        settle(stream, mysql, minio, bucket)
    first = mysql.binlogs()[0][0]
    body = (mysql.datadir / first).read_bytes()
    spans = [(at, end) for at in range(40) for end in range(at + 1, at + 27)]
    assert len(spans) > PAGE
    with closing(minio.client(max_pool_connections=8)) as client, ThreadPoolExecutor(8) as pool:

        def put(span: tuple[int, int]) -> None:
            data = body[slice(*span)]
            name = f"{span[0]:016}-{span[1]:016}-{crc64_hex(crc64nvme(data))}"
            key = f"pre/live/test/{lineage}/{first}/{name}"
            client.put_object(Bucket=bucket, Key=key, Body=data)

        list(pool.map(put, spans))
    assert len(leftovers(minio, bucket)) == len(spans)
    with StreamProcess(disk_tmp_path / "two", mysql, minio, bucket) as stream:
        stream.wait_for_event("streaming")
        write(mysql, 6)
        wait_until(lambda: full_chunks(minio, bucket), what="a full chunk")
        no_litter(minio, bucket)
        settle(stream, mysql, minio, bucket)
        assert not stream.events("chunk vanished, putting it again")


class OneAPage:
    """A rule that answers listings of uploads and parts as a store that shows one at a time."""

    def __init__(self, store: Store, bucket: str) -> None:
        self._client = store.client()
        self._bucket = bucket
        self.asked: Counter[str] = Counter()
        self.close = self._client.close

    def __call__(self, request: Request) -> Action | None:
        asked = {k: v[0] for k, v in parse_qs(request.query, keep_blank_values=True).items()}
        what = kind(request)
        if what == "list uploads":
            name, rows = "ListMultipartUploadsResult", self._uploads(asked)
        elif what == "list parts":
            name, rows = "ListPartsResult", self._parts(request, asked)
        else:
            return None
        if not rows:
            return None
        self.asked[what] += 1
        page = {"IsTruncated": str(len(rows) > 1).lower(), **rows[0]}
        return Answer(200, XML, as_xml(name, page).encode())

    def _uploads(self, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        found = self._client.list_multipart_uploads(Bucket=self._bucket, Prefix=asked["prefix"])
        rows = sorted(found.get("Uploads", []), key=lambda row: row["UploadId"])
        return [
            {
                "Upload": {**row, "Initiated": f"{row['Initiated']:%Y-%m-%dT%H:%M:%S.000Z}"},
                "NextKeyMarker": row["Key"],
                "NextUploadIdMarker": row["UploadId"],
            }
            for row in rows
            if row["UploadId"] > asked.get("upload-id-marker", "")
        ]

    def _parts(self, request: Request, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        key = request.path.removeprefix(f"/{self._bucket}/")
        found = self._client.list_parts(Bucket=self._bucket, Key=key, UploadId=asked["uploadId"])
        return [
            {
                "Part": {name: value for name, value in row.items() if name != "LastModified"},
                "NextPartNumberMarker": row["PartNumber"],
                "ChecksumAlgorithm": found.get("ChecksumAlgorithm", ""),
            }
            for row in found.get("Parts", [])
            if row["PartNumber"] > int(asked.get("part-number-marker", "0"))
        ]


def as_xml(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        return f"<{name}>{''.join(as_xml(k, v) for k, v in value.items())}</{name}>"
    return f"<{name}>{escape(str(value))}</{name}>"


def test_uploads_and_parts_on_several_pages(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """One upload, one part a page: all parts of the right one are taken up, the others aborted."""
    options: dict[str, Any] = {"flush-interval": 0}
    with StreamProcess(disk_tmp_path / "one", mysql, minio, bucket, options=options) as stream:
        stream.wait_for_event("new lineage")
        write(mysql, 16)
        wait_until(lambda: parts_there(minio, bucket) == 3, what="three parts")
        assert stream.terminate() == 0
    with closing(minio.client()) as client:
        (key,) = [
            row["Key"] for row in client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        ]
        for _ in range(2):
            client.create_multipart_upload(Bucket=bucket, Key=key)
    with (
        closing(OneAPage(minio, bucket)) as paged,
        RecordingProxy(minio.endpoint_url, [paged]) as proxy,
    ):
        options["endpoint-url"] = proxy.url
        with StreamProcess(disk_tmp_path / "two", mysql, minio, bucket, options=options) as stream:
            settle(stream, mysql, minio, bucket)
            assert stream.wait_for_event("binlog archived")["taken_up"] == 3
        assert paged.asked["list uploads"] >= 3
        assert paged.asked["list parts"] >= 3


def test_the_store_is_gone_for_hours(
    mysql: MysqlServer, mortal_minio: MinioServer, disk_tmp_path: Path
) -> None:
    """Nobody listens at the endpoint while six binlogs close: one process waits, and goes on."""
    bucket = mortal_minio.make_bucket()
    with StreamProcess(disk_tmp_path / "one", mysql, mortal_minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        write(mysql, 3)
        mortal_minio.kill()
        for _ in range(6):
            mysql.query("FLUSH BINARY LOGS")
            write(mysql, 3)
        names = {name for name, _ in mysql.binlogs()}
        wait_until(lambda: names <= set(spooled(stream)), what="all binlogs in the spool")

        def longest_wait() -> bool:
            return any(
                line["attempt"] >= 3 for line in stream.events("the store failed, trying again")
            )

        wait_until(longest_wait, what="three attempts")
        mortal_minio.start()
        settle(stream, mysql, mortal_minio, bucket)


CRC64_HEADERS = {"x-amz-checksum-crc64nvme", "x-amz-checksum-algorithm", "x-amz-checksum-type"}


class Without:
    """A store that lacks these features, and says so; counts how often it was asked for each."""

    def __init__(self, *features: str, crc64: Answer | None = None) -> None:
        self._features = features
        self._crc64 = crc64
        self.hits: Counter[str] = Counter()

    def __call__(self, request: Request) -> Action | None:
        if self._crc64 is not None and CRC64_HEADERS & request.headers.keys():
            self.hits["crc64nvme"] += 1
            return self._crc64
        asked = {kind(request), "condition" if "if-none-match" in request.headers else ""}
        for feature in asked.intersection(self._features):
            self.hits[feature] += 1
            return says(501, "NotImplemented")
        return None


def test_a_store_that_has_the_least(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """No conditions, list of uploads, DeleteObjects (501), CRC64NVME (400): all arrives."""
    refused = says(400, "InvalidRequest")
    bare = Without("condition", "list uploads", "delete objects", crc64=refused)
    with proxied(disk_tmp_path, mysql, minio, bucket, [bare]) as (stream, _):
        stream.wait_for_event("new lineage")
        write_for_all(mysql, minio, bucket)
        settle(stream, mysql, minio, bucket)
    assert bare.hits.keys() == {"crc64nvme", "condition", "list uploads", "delete objects"}


def test_an_upload_that_cannot_be_listed_is_not_left(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """No UploadPartCopy, no list of uploads: the one made for copies is used, or aborted."""
    bare = Without("copy", "list uploads")
    with proxied(disk_tmp_path, mysql, minio, bucket, [bare]) as (stream, _):
        stream.wait_for_event("new lineage")
        write_for_all(mysql, minio, bucket)
        wait_until_archived(stream, mysql, minio, bucket)
        stream.wait_for_event("binlog archived", copied=0)
        no_litter(minio, bucket)
        assert stream.terminate() == 0
    assert bare.hits.keys() == {"copy", "list uploads"}
    assert leftovers(minio, bucket) == []


def test_lost_answers_of_a_store_without_conditions(
    mysql: MysqlServer, nanio: NanioServer, disk_tmp_path: Path
) -> None:
    """Where a write that is repeated replaces the first one, it replaces it with the same bytes."""
    bucket = nanio.make_bucket()
    rule = FirstOf(WRITES, DropAnswer())
    with proxied(disk_tmp_path, mysql, nanio, bucket, [rule]) as (stream, _):
        stream.wait_for_event("new lineage")
        write_for_all(mysql, nanio, bucket)
        settle(stream, mysql, nanio, bucket)
    assert rule.spent, rule.hits


@dataclass(frozen=True)
class Foreign:
    """What a stranger put under the prefix, and what the streamer said while it worked there."""

    objects: Mapping[str, tuple[object, object]]
    uploads: frozenset[str]
    objects_after: Mapping[str, tuple[object, object]]
    uploads_after: frozenset[str]
    log: str


@pytest.fixture(scope="module")
def foreign(server: MysqlServer, minio: MinioServer) -> Foreign:
    """A stranger's objects and uploads between ours, over two audits and several rotations."""
    server.query("RESET BINARY LOGS AND GTIDS")
    bucket = minio.make_bucket()
    with temporary_directory() as place:
        with StreamProcess(place / "one", server, minio, bucket) as stream:
            lineage = stream.wait_for_event("new lineage")["lineage"]
            settle(stream, server, minio, bucket)
        names = [name for name, _ in server.binlogs()]
        ours, live = f"pre/archive/test/{lineage}", f"pre/live/test/{lineage}"
        keys = [
            "pre/archive/test/notes-0.txt",
            f"{ours}/binlogs/notes-1.txt",
            f"{ours}/entries/notes-2.txt",
            "pre/live/test/writers/notes-3.txt",
            f"{live}/notes-4.txt",
            f"{live}/{names[0]}/notes-5.txt",
            f"{live}/{names[-1]}/notes-6.txt",
        ]
        uploads = [f"{ours}/binlogs/upload-0.txt", "pre/live/test/upload-1.txt"]
        with closing(minio.client()) as client:
            for key in keys:
                client.put_object(Bucket=bucket, Key=key, Body=b"a stranger's")
            for key in uploads:
                client.create_multipart_upload(Bucket=bucket, Key=key)
        before = strange(minio, bucket)
        with proxied(place / "two", server, minio, bucket) as (stream, proxy):
            stream.wait_for_event("streaming")
            write(server, 7)
            server.query("FLUSH BINARY LOGS")
            beats = {"method": "PUT", "path": "/writers/"}
            wait_until(lambda: len(proxy.matching(**beats)) >= 13, 300, "two audits")
            settle(stream, server, minio, bucket)
            log = stream.stderr()
        after = strange(minio, bucket)
    return Foreign(before[0], before[1], after[0], after[1], log)


def strange(store: Store, bucket: str) -> tuple[dict[str, tuple[object, object]], frozenset[str]]:
    """The stranger's objects, as they were written, and his unfinished uploads."""
    found = objects(store, bucket)
    with closing(store.client()) as client:
        uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return (
        {k: (v["ETag"], v["LastModified"]) for k, v in found.items() if k.endswith(".txt")},
        frozenset(upload["Key"] for upload in uploads),
    )


def times_named(log: str, keys: Collection[str]) -> dict[str, int]:
    """In how many of the log's lines each key stands."""
    return {key: sum(key in line for line in log.splitlines()) for key in keys}


def test_what_is_foreign_is_left_alone(foreign: Foreign) -> None:
    """Objects and unfinished uploads of a stranger, anywhere under the prefix, stay as they are."""
    assert (len(foreign.objects), len(foreign.uploads)) == (7, 2)
    assert foreign.objects_after == foreign.objects
    assert foreign.uploads_after == foreign.uploads


@pytest.mark.parametrize("part", ["archive", "live"])
def test_foreign_objects_are_named_once(foreign: Foreign, part: str) -> None:
    """Each stands in one line of the log, however many heartbeats, audits and rotations follow."""
    keys = [key for key in foreign.objects if key.startswith(f"pre/{part}/")]
    assert times_named(foreign.log, keys) == dict.fromkeys(keys, 1)


def test_foreign_uploads_are_named_once(foreign: Foreign) -> None:
    """They cost money and are in no listing of objects: each stands in one line of the log."""
    assert times_named(foreign.log, foreign.uploads) == dict.fromkeys(foreign.uploads, 1)


@contextlib.contextmanager
def sending(
    what: str, mysql: MysqlServer, minio: MinioServer, bucket: str, place: Path
) -> Iterator[StreamProcess]:
    """A streamer in the middle of a full chunk, or a part, that takes minutes over its link."""
    under_way = threading.Event()

    def watch(request: Request) -> None:
        size = int(request.headers.get("content-length", "0"))
        if kind(request) == what and size >= PART:
            under_way.set()

    with (
        RecordingProxy(minio.endpoint_url, [watch]) as proxy,
        SlowLink(proxy.url, round_trip_seconds=0.02, bytes_per_second=PART / 180) as link,
    ):
        options: dict[str, Any] = {"endpoint-url": link.url}
        if what == "part":
            options["flush-interval"] = 0
        with StreamProcess(place, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            write(mysql, 7)
            wait_until(under_way.is_set, what=f"a {what} on its way")
            yield stream


def child_is_gone(stream: StreamProcess) -> bool:
    (line,) = stream.events("streaming")
    return not Path(f"/proc/{line['pid']}").exists()


@pytest.mark.parametrize(
    ("number", "what", "status"),
    [(signal.SIGTERM, "chunk", 0), (signal.SIGINT, "part", 130)],
    ids=["SIGTERM-chunk", "SIGINT-part"],
)
def test_a_signal_in_the_middle_of_a_body(
    mysql: MysqlServer,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
    number: signal.Signals,
    what: str,
    status: int,
) -> None:
    """A slow link is not waited for; no child stays, and the next start on the spool goes on."""
    place = disk_tmp_path / "one"
    with sending(what, mysql, minio, bucket, place) as stream:
        stream.process.send_signal(number)
        assert stream.wait() == status
        assert child_is_gone(stream)
        assert stream.events("stopped")
        assert spooled(stream) == [mysql.binlogs()[-1][0]]
        assert full_chunks(minio, bucket) == []
    goes_on(place, mysql, minio, bucket)


def test_a_second_signal_ends_it_at_once(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """While the first one waits for what is on its way: no farewell, no child, nothing lost.

    It waits a few seconds: where the second signal came too late, all is done once more.
    """
    attempts = itertools.count()

    def in_time() -> bool:
        place, bucket = disk_tmp_path / str(next(attempts)), minio.make_bucket()
        with sending("chunk", mysql, minio, bucket, place) as stream:
            stream.process.send_signal(signal.SIGTERM)
            wait_until(lambda: child_is_gone(stream), what="the end has begun")
            stream.process.send_signal(signal.SIGTERM)
            status = stream.wait()
        if status == 0 and stream.events("stopped"):
            return False
        assert status == 128 + signal.SIGTERM
        assert not stream.events("stopped")
        goes_on(place, mysql, minio, bucket)
        return True

    wait_until(in_time, what="the second signal in time")


def goes_on(place: Path, mysql: MysqlServer, minio: MinioServer, bucket: str) -> None:
    """The next start, on the same spool and over a good link, archives all."""
    with StreamProcess(place, mysql, minio, bucket) as stream:
        settle(stream, mysql, minio, bucket)
