"""The store's own logic: the table of failures, bodies, retries, what needs no server."""

import hashlib
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.errors import (
    ObjectMissingError,
    PreconditionError,
    SpoolError,
    StoreError,
    StoreSettingError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.store.errors import Failure, FullError, SignatureError, UploadDeniedError, translate
from binlog2s3.store.s3 import (
    IMMEDIATE_STORAGE_CLASSES,
    FileSlice,
    MendableError,
    PartInfo,
    RefusedError,
    RetryPolicy,
    S3Store,
    StoreConfig,
)
from tests.memory_store import MemoryStore

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
    ("PermanentRedirect", "put_object", 301, MendableError, False, "region", "--region"),
    ("EndpointConnectionError", "put_object", None, StoreError, True, "reach", "--endpoint-url"),
    ("ProxyConnectionError", "put_object", None, StoreError, True, "proxy", "HTTPS_PROXY"),
    ("ConnectTimeoutError", "put_object", None, StoreError, True, "in time", "firewall"),
    ("ReadTimeoutError", "put_object", None, StoreError, True, "in time", "firewall"),
    ("ConnectionClosedError", "put_object", None, StoreError, True, "broke", ""),
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
    ("InternalError", "put_object", 500, StoreError, True, "InternalError", ""),
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
    (
        "InvalidStorageClass",
        "put_object",
        400,
        StoreSettingError,
        False,
        "storage class",
        "storage",
    ),
    ("kms:KeyNotFound", "put_object", 400, MendableError, False, "KMS", "sse_kms_key_id"),
    (
        "InvalidPart",
        "complete_multipart_upload",
        400,
        RefusedError,
        False,
        "InvalidPart",
        "--part-size",
    ),
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


@pytest.mark.parametrize("status", [200, 301, 403, 404])
def test_a_web_page_is_no_answer_of_a_store(status: int) -> None:
    """HTML with any status below 500 names the endpoint as the fault."""
    error = translate(failure(str(status), "list_objects_v2", status=status, headers=HTML))
    assert type(error) is MendableError
    assert "answers, but not like an S3 store" in str(error)
    assert f"status {status}" in str(error)
    assert "http://store:9000" in str(error)
    assert "--endpoint-url" in error.hint


def test_what_a_store_says_is_shown_up_to_a_limit() -> None:
    """A message of megabytes does not become a line of megabytes."""
    error = translate(failure("AccessDenied", "get_object", status=403, message="x" * 5_000_000))
    assert 400 < len(str(error)) < 1000


class _Endless(BaseHTTPRequestHandler):
    """A store whose listings continue where they began, up to the tenth answer."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        more = "true" if type(self).asked < 10 else "false"
        body = (
            f"<X><IsTruncated>{more}</IsTruncated><NextContinuationToken>a</NextContinuationToken>"
            "<NextKeyMarker>a</NextKeyMarker><NextPartNumberMarker>1</NextPartNumberMarker></X>"
        ).encode()
        self.send_response(200)
        self.send_header("content-type", "application/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


class _Puts(BaseHTTPRequestHandler):
    """A store that takes every body, and keeps what each request said of it."""

    protocol_version = "HTTP/1.1"
    said: ClassVar[list[tuple[str | None, int]]] = []

    def do_GET(self) -> None:
        body = b"<ListPartsResult><IsTruncated>false</IsTruncated></ListPartsResult>"
        self.send_response(200)
        self.send_header("content-type", "application/xml")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.said.append((self.headers["expect"], len(body)))
        self.send_response(200)
        self.send_header("etag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_body_is_sent_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To wait for "100 Continue" would cost a round trip for each chunk and each part."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    _Puts.said.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Puts) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = S3Store(
            StoreConfig(bucket="bbb", endpoint_url=endpoint, region="r", addressing_style="path"),
            stop=threading.Event(),
        )
        store.put("a", b"x" * 10)
        store.upload_part("a", "1", 1, b"x" * 300_000)
        server.shutdown()
    assert _Puts.said == [(None, 10), (None, 300_000)]


@pytest.mark.parametrize("what", ["list", "list_names", "list_uploads", "list_parts"])
def test_a_listing_that_leads_back_to_itself_ends(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an error of the store, and not a loop."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a")
    _Endless.asked = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), _Endless) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = S3Store(
            StoreConfig(bucket="bbb", endpoint_url=endpoint, region="r", addressing_style="path"),
            stop=threading.Event(),
        )
        ask: dict[str, Callable[[], object]] = {
            "list": lambda: list(store.list("a")),
            "list_names": lambda: list(store.list_names("a")),
            "list_uploads": lambda: store.list_uploads("a"),
            "list_parts": lambda: store.list_parts("a", "1"),
        }
        with pytest.raises(MendableError, match="does not end"):
            ask[what]()
        server.shutdown()
    assert _Endless.asked == 2


def test_a_bare_status_is_no_answer_of_a_store() -> None:
    """S3 names its errors in a body; `404 page not found` comes from something else."""
    plain = {"content-type": "text/plain"}
    error = translate(failure("404", "get_object", status=404, headers=plain))
    assert type(error) is MendableError
    assert "text/plain" in str(error)


def test_a_load_balancers_page_may_pass() -> None:
    """502 in HTML comes from a proxy before the store: it is tried again."""
    error = translate(failure("502", status=502, headers=HTML))
    assert error.transient


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


@given(st.data())
def test_a_slice_reads_as_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any sequence of reads and seeks gives what the same ones give on the bytes in memory."""
    whole = data.draw(st.binary(max_size=60))
    begin = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(begin, len(whole)))
    path = tmp_path_factory.getbasetemp() / "slice"
    path.write_bytes(whole)
    piece = FileSlice(path, begin, end)
    assert piece.size == end - begin
    reader, model = piece.open(), io.BytesIO(whole[begin:end])
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(-1, 70))
            assert reader.read(size) == model.read(size)
        else:
            where = data.draw(st.integers(0, 70))
            assert reader.seek(where) == model.seek(where)
        assert reader.tell() == model.tell()
    reader.close()
    reader.close()


def open_files() -> int:
    """How many descriptors this process holds."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_slice_closes_what_it_opened(tmp_path: Path) -> None:
    """Each reader has a descriptor of its own, and gives it back."""
    path = tmp_path / "spooled"
    path.write_bytes(b"0123456789")
    before = open_files()
    readers = [FileSlice(path, 0, 10).open() for _ in range(5)]
    assert open_files() == before + 5
    for reader in readers:
        reader.close()
    assert open_files() == before


def test_a_slice_of_a_file_that_shrank(tmp_path: Path) -> None:
    """What is there is read; where bytes are missing it raises instead of ending."""
    path = tmp_path / "spooled"
    path.write_bytes(b"0123456789")
    reader = FileSlice(path, 2, 12).open()
    with pytest.raises(SpoolError, match="ends at 10, before 12") as caught:
        reader.read(100)
    assert reader.read(8) == b"23456789"
    with pytest.raises(SpoolError, match="ends at 10, before 12"):
        reader.read(1)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    reader.close()


def test_a_slice_of_no_file(tmp_path: Path) -> None:
    """A file that is gone is the spool's error, with its path."""
    with pytest.raises(SpoolError, match="nothing"):
        FileSlice(tmp_path / "nothing", 0, 1).open()
    with pytest.raises(SpoolError, match="directory"):
        FileSlice(tmp_path, 0, 1).open().read(1)


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


# The store in memory, as property machines use it


def test_memory_fails_before_it_acts() -> None:
    """The next call raises what it was given, once, and nothing happened."""
    store = MemoryStore()
    store.fail_next("put", "before", StoreError("lost", transient=True))
    with pytest.raises(StoreError, match="lost"):
        store.put("a", b"x")
    assert store.head("a") is None
    store.put("a", b"x")
    assert store.calls["put"] == 2


def test_memory_fails_after_it_acted() -> None:
    """As if the reply was lost: the call raises, and the object is there."""
    store = MemoryStore(min_part_bytes=1)
    store.fail_next("put", "after", StoreError("lost"))
    store.fail_next("put", "before", StoreError("lost again"))
    with pytest.raises(StoreError, match=r"lost$"):
        store.put("a", b"x")
    with pytest.raises(StoreError, match="lost again"):
        store.put("a", b"y")
    assert store.get("a") == b"x"
    upload_id = store.create_upload("b")
    parts = [store.upload_part("b", upload_id, n, b"p") for n in (1, 2)]
    store.fail_next("complete_upload", "after", StoreError("lost"))
    with pytest.raises(StoreError, match="lost"):
        store.complete_upload("b", upload_id, parts, size=2, crc64=None)
    assert store.get("b") == b"pp"
    with pytest.raises(UploadMissingError):
        store.complete_upload("b", upload_id, parts, size=2, crc64=None)


def test_memory_can_be_a_lesser_store() -> None:
    """One that lists no uploads, copies no parts, keeps no checksums."""
    store = MemoryStore(lists_uploads=False, copies_parts=False, crc64=False)
    upload_id = store.create_upload("a")
    with pytest.raises(UnsupportedError):
        store.list_uploads("a")
    with pytest.raises(UnsupportedError):
        store.copy_part("a", upload_id, 1, "b", begin=0, end=1)
    assert store.upload_part("a", upload_id, 1, b"x") == PartInfo(
        number=1, size=1, etag="9dd4e461268c8034f5c8564e155c67a6", crc64=None
    )
    assert store.put("b", b"x").crc64 is None
