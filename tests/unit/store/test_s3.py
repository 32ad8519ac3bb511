"""The store's own logic: the table of failures, bodies, retries, what needs no server."""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest
from botocore.model import ListShape, Shape, StructureShape

import binlog2s3.store
from binlog2s3 import __version__
from binlog2s3.errors import (
    ObjectMissingError,
    PreconditionError,
    StoreError,
    StoreSettingError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.store.errors import Failure, FullError, SignatureError, UploadDeniedError, translate
from binlog2s3.store.requests import Link, any_session
from binlog2s3.store.s3 import (
    IMMEDIATE_STORAGE_CLASSES,
    MendableError,
    RefusedError,
    RetryPolicy,
    S3Store,
    StoreConfig,
)

XML = {"content-type": "application/xml", "x-amz-request-id": "1"}
HTML = {"content-type": "text/html; charset=utf-8"}


def failure(code: str, operation: str = "put_object", **more: object) -> Failure:
    """A failure of a write to binlogs/a/log; `more` says what is different."""
    values: dict[str, object] = {"status": 400, "headers": XML, "key": "a/log", **more}
    return Failure(
        code=code,
        operation=operation,
        bucket="binlogs",
        endpoint="http://store:9000",
        **values,  # type: ignore[arg-type]  # a test names what it wants
    )


MEANINGS = [
    # code, operation, status, class, transient, in the message, in the hint
    ("NoSuchBucket", "put_object", 404, MendableError, False, "'binlogs'", "--s3-url"),
    ("AccessDenied", "put_object", 403, MendableError, False, "binlogs/a/log", "s3:PutObject"),
    ("AccessDenied", "list_objects_v2", 403, MendableError, False, "", "s3:ListBucket"),
    ("AccessDenied", "upload_part_copy", 403, UploadDeniedError, False, "", "s3:GetObject and"),
    ("AccessDenied", "list_parts", 403, UploadDeniedError, False, "", "s3:ListMultipart"),
    ("403", "head_object", 403, MendableError, False, "access denied", "s3:GetObject"),
    ("InvalidAccessKeyId", "put_object", 403, MendableError, False, "access key", "AWS_PROFILE"),
    ("SignatureDoesNotMatch", "put_object", 403, SignatureError, False, "signature", "secret"),
    ("SignatureDoesNotMatch", "put_object", 403, SignatureError, False, "", "--checksum md5"),
    ("ExpiredToken", "put_object", 400, MendableError, False, "expired", "renew"),
    ("NoCredentialsError", "put_object", None, MendableError, False, "credentials", "~/.aws"),
    ("ProfileNotFound", "put_object", None, MendableError, False, "credentials", "AWS_PROFILE"),
    ("InvalidConfigError", "put_object", None, MendableError, False, "credentials", "AWS_PROFILE"),
    ("RequestTimeTooSkewed", "put_object", 403, MendableError, False, "clock", "timedatectl"),
    ("InvalidObjectState", "get_object", 403, RefusedError, False, "class", "restore-object"),
    ("PermanentRedirect", "put_object", 301, MendableError, False, "region", "--region"),
    ("EndpointConnectionError", "put_object", None, StoreError, True, "reach", "--endpoint-url"),
    ("ProxyConnectionError", "put_object", None, StoreError, True, "proxy", "HTTPS_PROXY"),
    ("ConnectTimeoutError", "put_object", None, StoreError, True, "in time", "firewall"),
    ("ReadTimeoutError", "put_object", None, StoreError, True, "in time", "firewall"),
    (
        "ConnectionClosedError",
        "put_object",
        None,
        StoreError,
        True,
        "broke",
        "https:// if it uses TLS",
    ),
    ("ResponseStreamingError", "get_object", None, StoreError, True, "broke", ""),
    ("IncompleteReadError", "get_object", None, StoreError, True, "broke", ""),
    ("SSLError", "put_object", None, MendableError, False, "TLS", "AWS_CA_BUNDLE"),
    ("ResponseParserError", "put_object", None, MendableError, False, "not like an S3", "console"),
    ("PreconditionFailed", "put_object", 412, PreconditionError, False, "exists already", ""),
    ("412", "complete_multipart_upload", 412, PreconditionError, False, "exists already", ""),
    ("ConditionalRequestConflict", "put_object", 409, PreconditionError, False, "exists", ""),
    ("NoSuchKey", "get_object", 404, ObjectMissingError, False, "'a/log'", ""),
    ("404", "head_object", 404, ObjectMissingError, False, "'a/log'", ""),
    ("NoSuchUpload", "upload_part", 404, UploadMissingError, False, "'a/log'", ""),
    ("NotImplemented", "list_multipart_uploads", 501, UnsupportedError, False, "", ""),
    ("501", "list_multipart_uploads", 501, UnsupportedError, False, "", ""),
    ("MethodNotAllowed", "delete_objects", 405, UnsupportedError, False, "", ""),
    ("InternalError", "put_object", 500, StoreError, True, "InternalError", "own logs"),
    ("SlowDown", "put_object", 503, StoreError, True, "SlowDown", ""),
    ("502", "put_object", 502, StoreError, True, "502", ""),
    ("XMinioStorageFull", "put_object", 507, FullError, False, "no space", "prune"),
    ("QuotaExceeded", "upload_part", 403, FullError, False, "no space", "quota"),
    ("EntityTooLarge", "upload_part", 400, StoreError, False, "refuses the size", "--part-size"),
    ("413", "upload_part", 413, StoreError, False, "refuses the size", "client_max_body_size"),
    ("429", "put_object", 429, StoreError, True, "429", ""),
    ("RequestTimeout", "upload_part", 400, StoreError, True, "RequestTimeout", ""),
    ("BadDigest", "upload_part", 400, StoreError, False, "checksum", "disk"),
    ("XAmzContentChecksumMismatch", "put_object", 400, StoreError, False, "checksum", "disk"),
    ("InvalidStorageClass", "put_object", 400, StoreSettingError, False, "storage class", ""),
    ("kms:KeyNotFound", "put_object", 400, MendableError, False, "KMS", "sse_kms_key_id"),
    ("InvalidPart", "complete_multipart_upload", 400, RefusedError, False, "", "--part-size"),
    ("EntityTooSmall", "complete_multipart_upload", 400, RefusedError, False, "", ""),
    ("SomethingNew", "put_object", 400, RefusedError, False, "SomethingNew", "binlog2s3 check"),
]


@pytest.mark.parametrize("row", MEANINGS, ids=lambda row: f"{row[0]}-{row[1]}")
def test_what_a_failure_means(row: tuple[str, str, int, type[StoreError], bool, str, str]) -> None:
    """Each answer has its class, its patience, a message with the values, and a hint to act on."""
    code, operation, status, kind, transient, says, hint = row
    error = translate(failure(code, operation, status=status))
    assert type(error) is kind
    assert error.transient is transient
    assert error.exit_code == 6
    assert says in str(error)
    assert hint in error.hint


@pytest.mark.parametrize("words", ["ObjectLockConfiguration", "Object Lock Configuration"])
def test_a_bucket_without_object_lock(words: str) -> None:
    """The code is InvalidRequest, so the text must say it: the operator has to change something."""
    said = failure(
        "InvalidRequest", "create_multipart_upload", message=f"Bucket is missing {words}"
    )
    error = translate(said)
    assert type(error) is MendableError
    assert "'binlogs' has no Object Lock" in str(error)
    assert "object_lock" in error.hint


@pytest.mark.parametrize(("code", "operation"), [(row[0], row[1]) for row in MEANINGS])
def test_every_message_is_one_sentence(code: str, operation: str) -> None:
    """Lower case, no loose braces, no full stop, not empty: it fits behind a program's name."""
    error = translate(failure(code, operation, message="The store said so."))
    text = str(error)
    assert text
    assert text[0].islower() or text.startswith(("'", "http"))
    assert not text.endswith(".")
    assert "{" not in text + error.hint


def test_what_a_store_says_is_shown_up_to_a_limit() -> None:
    """A message of megabytes does not become a line of megabytes."""
    error = translate(failure("AccessDenied", "get_object", status=403, message="x" * 5_000_000))
    assert 400 < len(str(error)) < 1000


class Answers(BaseHTTPRequestHandler):
    """A store that takes bodies; its listings continue where they began, `more` times.

    `said` has what each request with a body said of it, `asked` the number of the others.
    """

    protocol_version = "HTTP/1.1"
    said: ClassVar[list[tuple[str | None, int]]] = []
    owners: ClassVar[list[str | None]] = []
    asked: ClassVar[int] = 0
    fails: ClassVar[int] = 0
    more: ClassVar[int] = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        more = "true" if self.asked < self.more else "false"
        self._answer(
            f"<X><IsTruncated>{more}</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
            "<NextKeyMarker>a</NextKeyMarker><NextPartNumberMarker>1</NextPartNumberMarker></X>"
        )

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.said.append((self.headers["expect"], len(body)))
        self.owners.append(self.headers["x-amz-expected-bucket-owner"])
        if self.fails:
            type(self).fails -= 1
            self.send_error(503)
            return
        self._answer("", etag=f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')

    def _answer(self, body: str, **headers: str) -> None:
        self.send_response(200)
        headers |= {"content-type": "application/xml", "content-length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Store]:
    """Of a server that answers so."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    Answers.said.clear()
    Answers.owners.clear()
    Answers.asked = Answers.more = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        config = StoreConfig(
            bucket="bbb", endpoint_url=endpoint, region="r", addressing_style="path"
        )
        store = S3Store(config, stop=threading.Event())
        yield store
        store.close()
        server.shutdown()


def test_each_attempt_is_timed(monkeypatch: pytest.MonkeyPatch, store: S3Store) -> None:
    """By S3's name of the operation and the status of the answer, over all policies."""
    timed: list[tuple[str, str]] = []

    def note(operation: str, code: str, seconds: float) -> None:
        assert seconds > 0
        timed.append((operation, code))

    monkeypatch.setattr(Answers, "fails", 1)
    with closing(S3Store(store._config, stop=threading.Event(), on_request=note)) as noted:
        noted.with_policy(RetryPolicy(attempts=2, first_delay_seconds=0)).put("a", b"x")
        list(noted.list("a"))
    away = replace(store._config, endpoint_url="http://127.0.0.1:1")
    once = RetryPolicy(attempts=1)
    with (
        closing(S3Store(away, stop=threading.Event(), policy=once, on_request=note)) as noted,
        pytest.raises(StoreError),
    ):
        noted.put("a", b"x")
    assert timed == [
        ("PutObject", "503"),
        ("PutObject", "200"),
        ("ListObjectsV2", "200"),
        ("PutObject", "none"),
    ]


def test_a_body_is_sent_at_once(store: S3Store) -> None:
    """To wait for "100 Continue" would cost a round trip for each chunk and each part."""
    store.put("a", b"x" * 10)
    store.upload_part("a", "1", 1, b"x" * 300_000)
    assert Answers.said == [(None, 10), (None, 300_000)]


class SentError(Exception):
    """Instead of the answer to a request."""


def least(shape: Shape) -> Any:
    """The least that botocore sends as a value of this shape."""
    if isinstance(shape, StructureShape):
        some = list(shape.members)[: shape.is_tagged_union]
        required = [*shape.required_members, *some]
        return {name: least(shape.members[name]) for name in required}
    if isinstance(shape, ListShape):
        return [least(shape.member)]
    plain = {"integer": 1, "long": 1, "boolean": True, "timestamp": datetime.now(UTC), "blob": b"x"}
    text = shape.enum[0] if shape.type_name == "string" and shape.enum else "x" * 20
    return plain.get(shape.type_name, text)


def test_every_request_names_the_owner_of_the_bucket_and_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of all operations of S3 that take an owner, not only of those that are used today."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    sent: dict[str, Mapping[str, str]] = {}

    def note(request: AWSPreparedRequest, event_name: str, **_: object) -> None:
        sent[event_name.rpartition(".")[2]] = {
            name.lower(): value.decode() if isinstance(value, bytes) else str(value)
            for name, value in request.headers.items()
        }
        raise SentError

    config = StoreConfig(bucket="bbb", region="us-east-1", expected_bucket_owner="012345678901")
    client = Link(config, any_session).get()
    client.meta.events.register("before-send.s3", note)
    model, takes = client.meta.service_model, set()
    for name in model.operation_names:
        shape = model.operation_model(name).input_shape
        if shape is None or "ExpectedBucketOwner" not in shape.members:
            continue
        takes.add(name)
        given = least(shape) | {"Bucket": "bbb"}
        if "CopySource" in given:
            given["CopySource"] = "bbb/a"
        with pytest.raises(SentError):
            getattr(client, xform_name(name))(**given)
    code = "".join(path.read_text() for path in Path(binlog2s3.store.__file__).parent.glob("*.py"))
    used = {name for name in model.operation_names if f'"{xform_name(name)}"' in code}
    assert {"PutObject", "ListObjectsV2", "UploadPartCopy", "DeleteObjects"} <= used <= takes
    assert set(sent) == takes
    for name, headers in sent.items():
        assert headers["x-amz-expected-bucket-owner"] == "012345678901", name
        assert f" binlog2s3/{__version__}" in headers["user-agent"], name
    for name in ("CopyObject", "UploadPartCopy"):
        assert sent[name]["x-amz-source-expected-bucket-owner"] == "012345678901"


def test_no_owner_is_named_unless_asked_for(store: S3Store) -> None:
    """Stores other than AWS may not know the header."""
    store.put("a", b"x")
    assert Answers.owners == [None]


LISTINGS: dict[str, Callable[[S3Store], object]] = {
    "list": lambda store: list(store.list("a")),
    "list_names": lambda store: list(store.list_names("a")),
    "list_uploads": lambda store: store.list_uploads("a"),
    "list_parts": lambda store: store.list_parts("a", "1"),
}


@pytest.mark.parametrize("what", LISTINGS)
def test_a_listing_that_leads_back_to_itself_ends(what: str, store: S3Store) -> None:
    """It is an error of the store, and not a loop."""
    Answers.more = 10
    with pytest.raises(MendableError, match="does not end"):
        LISTINGS[what](store)
    assert Answers.asked == 2


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        *((status, HTML, f"status {status}") for status in (200, 301, 403, 404)),
        (404, {"content-type": "text/plain"}, "text/plain"),
    ],
)
def test_a_web_page_is_no_answer_of_a_store(
    status: int, headers: dict[str, str], says: str
) -> None:
    """HTML, or a bare status, names the endpoint as the fault; a balancer's 502 may pass."""
    error = translate(failure(str(status), "list_objects_v2", status=status, headers=headers))
    assert type(error) is MendableError
    assert "answers, but not like an S3 store" in str(error)
    assert says in str(error)
    assert "http://store:9000" in str(error)
    assert "--endpoint-url" in error.hint
    assert translate(failure("502", status=502, headers=HTML)).transient


def test_a_header_that_is_not_implemented() -> None:
    """The sentence with which stores refuse a header is Unsupported, whatever its code."""
    says = "A header you provided implies functionality that is not implemented"
    assert type(translate(failure("InvalidRequest", message=says))) is UnsupportedError


def test_a_precondition_is_only_what_we_set() -> None:
    """A 409 of an operation without conditions is a refusal, not `exists already`."""
    assert type(translate(failure("OperationAborted", "delete_object"))) is RefusedError


@pytest.mark.parametrize("zone", ["GMT", "-0000"])
@pytest.mark.parametrize(
    ("ours", "says"),
    [
        (datetime(2026, 1, 2, 3, 19, 5, tzinfo=UTC), "ours is 900 s ahead"),
        (datetime(2026, 1, 2, 2, 4, 5, tzinfo=UTC), "ours is 3600 s behind"),
    ],
)
def test_a_wrong_clock_is_measured(ours: datetime, says: str, zone: str) -> None:
    """The store's Date header against our clock: by how much, and which way."""
    headers = {**XML, "date": f"Fri, 02 Jan 2026 03:04:05 {zone}"}
    error = translate(failure("RequestTimeTooSkewed", status=403, headers=headers, at=ours))
    assert says in str(error)


def test_a_clock_that_agrees_is_not_to_blame() -> None:
    """S3 compares the time of the signature: a body that takes 15 minutes is late."""
    ours = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    headers = {**XML, "date": "Fri, 02 Jan 2026 03:04:09 GMT"}
    late = failure("RequestTimeTooSkewed", "upload_part", status=403, headers=headers, at=ours)
    error = translate(late)
    assert error.transient
    assert "--part-size" in error.hint
    unknown = translate(replace(late, headers=XML))  # small requests pass with the same clock
    assert "--part-size" in unknown.hint
    assert "timedatectl" in unknown.hint
    looking = replace(late, operation="get_object")
    assert "timedatectl" in translate(looking).hint


def test_parts_beyond_what_the_store_counts() -> None:
    """Its own words have the number; the hint has the option."""
    words = "Part number must be an integer between 1 and 20, inclusive"
    error = translate(failure("InvalidArgument", "upload_part", message=words))
    assert isinstance(error, RefusedError)
    assert "--part-size" in error.hint
    assert "20" in str(error)


def test_the_region_a_bucket_is_in() -> None:
    """Named by header or body, it stands in the message."""
    headers = {**XML, "x-amz-bucket-region": "eu-central-1"}
    for region in (
        failure("PermanentRedirect", status=301, headers=headers),
        failure("AuthorizationHeaderMalformed", region="eu-central-1"),
    ):
        assert "eu-central-1" in str(translate(region))


def test_storage_classes_that_answer_at_once() -> None:
    """The archive classes that need a restore request are not among them."""
    assert {"STANDARD", "STANDARD_IA", "GLACIER_IR"} <= IMMEDIATE_STORAGE_CLASSES
    assert not {"GLACIER", "DEEP_ARCHIVE"} & IMMEDIATE_STORAGE_CLASSES


# Slices


# Clients without a store


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"endpoint_url": "no url at all"}, "settings"),
        ({"endpoint_url": "http://127.0.0.1:1", "region": "not a region!"}, "settings"),
        ({"profile": "no-such-profile"}, "no-such-profile"),
    ],
)
def test_settings_that_make_no_client(config: dict[str, str], says: str) -> None:
    """What boto3 refuses before any request is an error of ours as well, with a hint."""
    store = S3Store(
        StoreConfig(bucket="binlogs", **config),  # type: ignore[arg-type]
        stop=threading.Event(),
        policy=RetryPolicy(attempts=1),
    )
    with pytest.raises(MendableError, match=says) as caught:
        store.check_access()
    assert caught.value.hint
