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
from contextlib import closing
from functools import partial
from pathlib import Path
from time import monotonic
from urllib.parse import parse_qs

import pytest

from bench.link import SlowLink
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from lab.disk import temporary_directory
from lab.fault import Action, Answer, Drop, DropAnswer, Gate, Request
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, Store
from tests.integration.bucket import CHUNK
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.streaming import (
    PART,
    full_chunks,
    leftovers,
    no_litter,
    objects,
    settle,
    spooled,
    wait_until_archived,
    write,
    write_for_all,
    written,
)
from tests.relay import Relay
from tests.waiting import wait_until

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
            before = written(minio, bucket, "archive")
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
    after = written(minio, bucket, "archive")
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


def test_what_is_foreign_is_left_alone(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A stranger's objects and uploads between ours stay; each is named in one line of the log.

    Over two audits and several rotations. Uploads cost money, and are in no listing of objects.
    """
    with StreamProcess(disk_tmp_path / "one", mysql, minio, bucket) as stream:
        lineage = stream.wait_for_event("new lineage")["lineage"]
        settle(stream, mysql, minio, bucket)
    names = [name for name, _ in mysql.binlogs()]
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
    begun = [f"{ours}/binlogs/upload-0.txt", "pre/live/test/upload-1.txt"]
    with closing(minio.client()) as client:
        for key in keys:
            client.put_object(Bucket=bucket, Key=key, Body=b"a stranger's")
        for key in begun:
            client.create_multipart_upload(Bucket=bucket, Key=key)
    before = strange(minio, bucket)
    assert (len(before[0]), len(before[1])) == (7, 2)
    with proxied(disk_tmp_path / "two", mysql, minio, bucket) as (stream, proxy):
        stream.wait_for_event("streaming")
        write(mysql, 7)
        mysql.query("FLUSH BINARY LOGS")
        beats = {"method": "PUT", "path": "/writers/"}
        wait_until(lambda: len(proxy.matching(**beats)) >= 13, 300, "two audits")
        settle(stream, mysql, minio, bucket)
        log = stream.stderr().splitlines()
    assert strange(minio, bucket) == before
    times = {key: sum(key in line for line in log) for key in keys + begun}
    assert times == dict.fromkeys(keys + begun, 1)


def strange(store: Store, bucket: str) -> tuple[dict[str, tuple[object, object]], frozenset[str]]:
    """The stranger's objects, as they were written, and his unfinished uploads."""
    found = objects(store, bucket)
    with closing(store.client()) as client:
        uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return (
        {k: (v["ETag"], v["LastModified"]) for k, v in found.items() if k.endswith(".txt")},
        frozenset(upload["Key"] for upload in uploads),
    )


@contextlib.contextmanager
def sending(
    mysql: MysqlServer, minio: MinioServer, bucket: str, place: Path
) -> Iterator[StreamProcess]:
    """A streamer in the middle of a full chunk that takes minutes over its link."""
    under_way = threading.Event()

    def watch(request: Request) -> None:
        size = int(request.headers.get("content-length", "0"))
        if kind(request) == "chunk" and size >= PART:
            under_way.set()

    with (
        RecordingProxy(minio.endpoint_url, [watch]) as proxy,
        SlowLink(proxy.url, round_trip_seconds=0.02, bytes_per_second=PART / 180) as link,
        StreamProcess(place, mysql, minio, bucket, options={"endpoint-url": link.url}) as stream,
    ):
        stream.wait_for_event("new lineage")
        write(mysql, 7)
        wait_until(under_way.is_set, what="a chunk on its way")
        yield stream


def child_is_gone(stream: StreamProcess) -> bool:
    (line,) = stream.events("streaming")
    return not Path(f"/proc/{line['pid']}").exists()


def test_a_signal_in_the_middle_of_a_body(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A slow link is not waited for; no child stays, and the next start on the spool goes on."""
    place = disk_tmp_path / "one"
    with sending(mysql, minio, bucket, place) as stream:
        assert stream.terminate() == 0
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
        with sending(mysql, minio, bucket, place) as stream:
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
