"""`store_quick`: what it answers is what the store says; all else is asked in the old way."""

import http.server
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import boto3
import botocore
import botocore.session
import pytest
from botocore.config import Config
from cryptography import x509

from binlog2s3.errors import ObjectMissingError, StoreError
from binlog2s3.store.contract import RetryPolicy
from binlog2s3.store.quick import QuickStore
from binlog2s3.store.s3 import S3Store, StoreConfig
from lab.fault import Action, Answer, Drop, DropAnswer, Record, Rewrite, on
from lab.proxy import RecordingProxy
from lab.s3 import REGION, MinioServer, MotoServer, VersitygwServer, allow
from tests.integration.certificates import Authority, Pair

Server = MinioServer | MotoServer | VersitygwServer
POLICY = RetryPolicy(attempts=3, first_delay_seconds=0.01, max_delay_seconds=0.05)
KEYS = ["p/plain", "p/with blank", "p/ä+&<>'%2F.x", "p/deep/er/~x"]


@contextmanager
def stores(
    server: Server, bucket: str, url: str = "", other: boto3.Session | None = None
) -> Iterator[tuple[S3Store, QuickStore]]:
    """The usual one, right at the store, and the quick one, by way of `url`."""
    session = session_of(server)
    direct, through = (
        StoreConfig(bucket=bucket, endpoint_url=one, addressing_style="path", region=REGION)
        for one in (server.endpoint_url, url or server.endpoint_url)
    )
    stop, chosen = threading.Event(), other or session
    with (
        closing(S3Store(direct, stop=stop, session=lambda **_: session)) as store,
        closing(QuickStore(through, stop=stop, policy=POLICY, session=lambda **_: chosen)) as quick,
    ):
        yield store, quick


def session_of(server: Server) -> boto3.Session:
    return boto3.Session(server.access_key, server.secret_key, region_name=REGION)


def temporary(keys: dict[str, str]) -> boto3.Session:
    return boto3.Session(
        keys["access_key"], keys["secret_key"], keys["session_token"], region_name=REGION
    )


def same(store: S3Store, quick: QuickStore) -> None:
    for key in KEYS:
        store.put(key, key.encode() * 100)
    for _ in range(2):
        for key in KEYS:
            assert quick.get(key) == store.get(key) == key.encode() * 100
            assert quick.head(key) == store.head(key)
            assert quick.get(key, 3, 9) == store.get(key, 3, 9)
        listed = list(store.list("p/"))
        assert [one.key for one in listed] == sorted(KEYS, key=str.encode)
        assert list(quick.list("p/")) == listed
        assert list(quick.list("p/", start_after=KEYS[1])) == list(
            store.list("p/", start_after=KEYS[1])
        )
        assert list(quick.list("none/")) == []
        assert quick.head("none") is None
        with pytest.raises(ObjectMissingError):
            quick.get("none")


@pytest.mark.parametrize("name", ["minio", "moto", "versitygw"])
def test_it_answers_as_the_store_does(name: str, request: pytest.FixtureRequest) -> None:
    """Odd keys, checksums, missing objects, ranges, listings: on each store the same answers."""
    server: Server = request.getfixturevalue(name)
    with stores(server, server.make_bucket()) as (store, quick):
        same(store, quick)


def quick_ones(proxy: RecordingProxy, path: str = "") -> list[Record]:
    """The requests that are not boto3's own: those have an id."""
    return [
        one
        for one in proxy.matching(path=path)
        if "amz-sdk-invocation-id" not in one.request.headers
    ]


def test_it_is_quick(minio: MinioServer, bucket: str) -> None:
    """Of many requests only the first is boto3's; all say who they are, in the same words."""
    with RecordingProxy(minio.endpoint_url) as proxy:
        with stores(minio, bucket, proxy.url) as (store, quick):
            store.put("k", b"data")
            for _ in range(5):
                assert quick.get("k") == b"data"
                assert quick.head("k") == store.head("k")
        agents = {one.request.headers["user-agent"].split()[0] for one in proxy.records}
        assert len(proxy.records) == 10
        assert len(quick_ones(proxy)) == 9
        assert len(agents) == 1


def test_temporary_credentials(minio: MinioServer, bucket: str) -> None:
    """A session token goes along; what a policy refuses is refused, and said as always."""
    may = minio.restricted(allow("s3:GetObject", resource=f"{bucket}/p/*"))
    with stores(minio, bucket, other=temporary(may)) as (store, quick):
        store.put("p/k", b"data")
        store.put("q/k", b"data")
        for _ in range(3):
            assert quick.get("p/k") == b"data"
            with pytest.raises(StoreError, match="access denied"):
                quick.get("q/k")
        with pytest.raises(StoreError, match="access denied"):
            list(quick.list("p/"))


PAGE = Answer(200, headers={"Content-Type": "text/html", "ETag": '"x"'}, body=b"<html>hello</html>")
DOUBTS: dict[str, Callable[[], Action]] = {
    "an error": lambda: Answer(500),
    "an error with all that a good answer has": lambda: Answer(500, headers={"ETag": '"x"'}),
    "a web page": lambda: PAGE,
    "a redirect": lambda: Answer(307, headers={"Location": "http://127.0.0.1:1/"}),
    "no ETag": lambda: Rewrite(strip=("etag",)),
    "a body that ends too soon": lambda: Rewrite(
        headers={"Content-Length": "9", "Connection": "close"}
    ),
    "a connection that is closed": Drop,
    "an answer that is lost": DropAnswer,
}


@pytest.mark.parametrize("what", DOUBTS)
def test_what_is_in_doubt_is_asked_again(what: str, minio: MinioServer, bucket: str) -> None:
    """Once, by boto3, and what comes then is right; the next one is quick again, each time.

    A connection that ends without a byte may have been idle for too long: there it asks itself.
    """
    with RecordingProxy(minio.endpoint_url) as proxy:
        with stores(minio, bucket, proxy.url) as (store, quick):
            store.put("k", b"data")
            assert [quick.get("k"), quick.get("k")] == [b"data"] * 2
            for _ in range(4):
                proxy.rules.append(on(DOUBTS[what](), path="/k$", times=1))
                assert [quick.get("k"), quick.get("k")] == [b"data"] * 2
        kinds = [one in quick_ones(proxy) for one in proxy.matching(path="/k$")]
    again = DOUBTS[what] in (Drop, DropAnswer)
    assert kinds == [False, True, *[True, again, True] * 4]


def test_only_its_own_requests_show_the_way(minio: MinioServer, bucket: str) -> None:
    """A range of another object, whose name ends in the same way, does not lead it astray."""
    with stores(minio, bucket) as (store, quick):
        store.put("k", b"data")
        store.put("p/k", b"other")
        assert quick.get("k") == b"data"
        assert quick.get("p/k", 0, 2) == b"ot"
        assert quick.get("k") == b"data"


def test_it_gives_up_where_nothing_comes_of_it(minio: MinioServer, bucket: str) -> None:
    """After a few doubtful answers in a row boto3 is asked at once; errors are its own."""
    with RecordingProxy(minio.endpoint_url, [on(Rewrite(strip=("etag",)), path="/k$")]) as proxy:
        with stores(minio, bucket, proxy.url) as (store, quick):
            store.put("k", b"data")
            for _ in range(6):
                with pytest.raises(StoreError, match="ETag"):
                    quick.get("k")
        assert len(quick_ones(proxy, "/k$")) == 3


def test_missing_objects_are_no_reason_to_give_up(minio: MinioServer, bucket: str) -> None:
    """However many are missing, the one that is there is read quickly."""
    with RecordingProxy(minio.endpoint_url) as proxy:
        with stores(minio, bucket, proxy.url) as (store, quick):
            store.put("k", b"data")
            for _ in range(5):
                assert quick.head("none") is None
            assert quick.get("k") == b"data"
        assert len(quick_ones(proxy, "/k$")) == 1


def test_an_idle_connection_that_was_closed(minio: MinioServer, bucket: str) -> None:
    """The next request takes a new one, and that is no reason to give up."""
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        stores(minio, bucket, proxy.url) as (store, quick),
    ):
        store.put("k", b"data")
        for _ in range(6):
            assert quick.get("k") == b"data"
            for idle in tuple(proxy._sockets):
                with suppress(OSError):  # one that ended just now
                    idle.shutdown(socket.SHUT_RDWR)
        assert quick._shortcut._doubts == 0
        assert len(quick_ones(proxy, "/k$")) == 5


def test_credentials_are_those_of_the_moment(minio: MinioServer, bucket: str) -> None:
    """They change while it runs, as those of a role do: the next request has the new ones."""
    first, second = (
        minio.restricted(allow("s3:GetObject", resource=f"{bucket}/*")) for _ in range(2)
    )
    session = temporary(first)
    with RecordingProxy(minio.endpoint_url) as proxy:
        with stores(minio, bucket, proxy.url, session) as (store, quick):
            store.put("k", b"data")
            assert [quick.get("k"), quick.get("k")] == [b"data", b"data"]
            known = session.get_credentials()
            assert known is not None
            known.access_key, known.secret_key = second["access_key"], second["secret_key"]
            known.token = second["session_token"]
            assert quick.get("k") == b"data"
        used = [
            (one.request.headers["authorization"].split("=")[1].split("/")[0], one.status)
            for one in quick_ones(proxy)
        ]
    assert used == [(first["access_key"], 200), (second["access_key"], 200)]


def test_credentials_that_were_refused_are_read_again(minio: MinioServer, bucket: str) -> None:
    """Once they are right, boto3 is asked once, and then it is quick again."""
    wrong = boto3.Session(minio.access_key, "wrong", region_name=REGION)
    sessions = [session_of(minio), wrong]
    with RecordingProxy(minio.endpoint_url) as proxy:
        config = StoreConfig(bucket=bucket, endpoint_url=proxy.url, addressing_style="path")
        with (
            stores(minio, bucket) as (store, _),
            closing(
                QuickStore(config, stop=threading.Event(), session=lambda **_: sessions.pop())
            ) as quick,
        ):
            store.put("k", b"data")
            with pytest.raises(StoreError, match="signature"):
                quick.get("k")
            for _ in range(3):
                assert quick.get("k") == b"data"
        assert [one.status for one in quick_ones(proxy)] == [403, 200, 200]


@pytest.mark.parametrize("kind", ["s3", botocore.UNSIGNED], ids=["version 2", "none"])
def test_a_signature_of_another_kind_is_left_to_boto3(kind: Any, minio: MinioServer) -> None:
    """An old one, or none as for a bucket that all may read: no request but boto3's own."""
    core = botocore.session.get_session()
    core.set_default_client_config(Config(signature_version=kind))
    session = boto3.Session("key", "secret", botocore_session=core)
    answer = Answer(200, headers={"ETag": '"x"'}, body=b"data")
    with RecordingProxy(minio.endpoint_url, [on(answer)]) as proxy:
        with stores(minio, "bucket", proxy.url, session) as (_, quick):
            assert [quick.get("k") for _ in range(3)] == [b"data"] * 3
        signatures = [one.request.headers.get("authorization", "")[:5] for one in proxy.records]
        assert signatures == ["AWS k" if kind == "s3" else ""] * 3
        assert quick_ones(proxy) == []


@pytest.mark.parametrize(
    ("style", "host"), [("path", "store.test:9000"), ("virtual", "bucket.store.test:9000")]
)
def test_it_goes_where_boto3_goes(
    style: Literal["path", "virtual"],
    host: str,
    minio: MinioServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Path or virtual host, a proxy from the environment, the region: as in boto3's requests."""
    answer = Answer(200, headers={"ETag": '"x"'}, body=b"data")
    with RecordingProxy(minio.endpoint_url, [on(answer)]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        config = StoreConfig(
            bucket="bucket",
            endpoint_url="http://store.test:9000/below",
            addressing_style=style,
            region="eu-central-1",
        )
        asked = []
        for kind in (S3Store, QuickStore):
            proxy.clear()
            with closing(
                kind(config, stop=threading.Event(), session=lambda **_: session_of(minio))
            ) as store:
                assert [store.get(key) for key in KEYS] == [b"data"] * len(KEYS)
            asked.append([place_of(one) for one in proxy.records])
        assert len(quick_ones(proxy)) == len(KEYS) - 1
    assert asked[0] == asked[1]
    assert {one[0] for one in asked[0]} == {host}
    assert {one[2] for one in asked[0]} == {"eu-central-1/s3/aws4_request"}


def place_of(record: Record) -> tuple[str, str, str]:
    headers = record.request.headers
    credential = headers["authorization"].partition(",")[0]
    return headers["host"], record.request.path, "/".join(credential.split("/")[2:])


@pytest.fixture
def https(tmp_path: Path) -> Iterator["_Https"]:
    """A server with a certificate of an own authority, that answers everything with 200."""
    authority = Authority(tmp_path, "authority")
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    server = _Https(authority, authority.sign("server", address))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class _Https(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, authority: Authority, pair: Pair) -> None:
        self.ca = authority.ca
        self.quick: list[str] = []
        super().__init__(("127.0.0.1", 0), _Page)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Page(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Https

    def do_GET(self) -> None:
        if "amz-sdk-invocation-id" not in self.headers:
            self.server.quick.append(self.path)
        self.send_response(200)
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize("named", ["environment", "profile"])
def test_an_authority_of_ones_own(
    named: str, https: _Https, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is trusted where boto3 would trust it: AWS_CA_BUNDLE, or ca_bundle of the profile."""
    lines = ["[profile p]", "aws_access_key_id = k", "aws_secret_access_key = s"]
    monkeypatch.setenv("AWS_CA_BUNDLE", str(https.ca))
    if named == "profile":
        monkeypatch.delenv("AWS_CA_BUNDLE")
        lines.append(f"ca_bundle = {https.ca}")
    (tmp_path / "config").write_text("\n".join(lines), encoding="ascii")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    config = StoreConfig(
        bucket="b",
        endpoint_url=f"https://127.0.0.1:{https.server_port}",
        region=REGION,
        profile="p",
    )
    with closing(QuickStore(config, stop=threading.Event(), policy=POLICY)) as quick:
        for _ in range(3):
            assert quick.get("k") == b"data"
    assert https.quick == ["/b/k"] * 2
