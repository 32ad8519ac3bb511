"""Requests to one bucket: the S3 client, bodies, and the retries of what failed (503, timeouts).

Law: no foreign exception leaves. botocore's own retries are off, so that only `retry` repeats a
request. Each attempt opens the body again.
"""

import base64
import gzip
import hashlib
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http.client import BadStatusLine, RemoteDisconnected
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar, cast

import botocore.loaders
import botocore.session
import tenacity
from botocore.awsrequest import AWSPreparedRequest
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError
from botocore.model import OperationModel
from botocore.utils import parse_timestamp

from binlog2s3 import __version__
from binlog2s3.binlog.checksum import crc64_of_blocks, crc64nvme
from binlog2s3.errors import ObjectTooLargeError, StoreError, UnsupportedError
from binlog2s3.store.bandwidth import BLOCK_BYTES as BODY_BLOCK
from binlog2s3.store.bandwidth import Bandwidth
from binlog2s3.store.contract import (
    Body,
    OnError,
    OnOver,
    OnRequest,
    Reader,
    RetryPolicy,
    StoreConfig,
)
from binlog2s3.store.errors import (
    Failure,
    MendableError,
    RefusedError,
    UploadDeniedError,
    is_web_page,
    knows,
    translate,
)

T = TypeVar("T")
Answer = dict[str, Any]
Final = type[StoreError] | None
"""What is not repeated, though the policy would: the caller has another way."""


class MakesClients(Protocol):
    """A session of botocore with a client of S3; boto3 would load much that is not needed."""

    def client(self, service_name: str, **settings: Any) -> Any:
        """A client of this service."""


MakeSession = Callable[..., MakesClients]

BLOCK_BYTES = 1 << 20
_OF_EVERY_ANSWER = frozenset({"ResponseMetadata", "RequestCharged"})
_BULK = 5 << 20
"""Bodies from this size on are parts and full chunks: what is smaller is newer."""
_WITHOUT_KEY = frozenset(
    {
        "list_objects_v2",
        "delete_objects",
        "list_multipart_uploads",
        "get_bucket_versioning",
        "get_bucket_lifecycle_configuration",
        "get_object_lock_configuration",
        "list_object_versions",
    }
)


_ASKED = frozenset({"s3", "sts", "oidc", "portal.sso", "signin"})
"""The services whose endpoints are needed: the store's, and those that give credentials."""
_LISTED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z")


class _JsonFiles(botocore.loaders.JSONFileLoader):
    """Data models in half the memory: plain dicts, without documentation and other services."""

    def load_file(self, file_path: str) -> Any:
        """The data of a file, whose path is without its ending; None if there is none."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            text = plain.read_bytes()
        elif packed.is_file():
            text = gzip.decompress(packed.read_bytes())
        else:
            return None
        found = json.loads(text, object_hook=_undocumented)
        for partition in found.get("partitions", ()):
            services = partition.get("services", {})
            partition["services"] = {name: services[name] for name in _ASKED & services.keys()}
        return found


def _undocumented(model: dict[str, Any]) -> dict[str, Any]:
    """The same without its documentation. A member of that name is no text, and stays."""
    if isinstance(model.get("documentation"), str):
        model["documentation"] = ""
    return model


class _Loader(botocore.loaders.Loader):
    """Finds data models without a look into the directories of all services there are."""

    FILE_LOADER_CLASS = _JsonFiles

    def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - as its base
        """The names of all services, also of those without a model of this type."""
        paths = [Path(path) for path in self.search_paths]
        return [found.name for path in paths if path.is_dir() for found in path.iterdir()]


_LOADER = _Loader()


@dataclass(frozen=True, slots=True)
class Session:
    """A session of botocore."""

    core: botocore.session.Session

    def client(self, service_name: str, **settings: Any) -> Any:
        return self.core.create_client(service_name, **settings)


def any_session(profile_name: str | None = None) -> Session:
    """A session that reads the credentials again, but not S3's data model, which is slow."""
    core = botocore.session.Session(profile=profile_name)
    core.register_component("data_loader", _LOADER)
    parsers = core.get_component("response_parser_factory")
    parsers.set_parser_defaults(timestamp_parser=_moment)
    return Session(core)


def _moment(value: Any) -> datetime:
    """A time in an answer; fast for the form that listings have, else as botocore does."""
    if isinstance(value, str) and _LISTED.fullmatch(value):
        with suppress(ValueError):
            return datetime.fromisoformat(value)
    found: datetime = parse_timestamp(value)
    return found


@dataclass(slots=True)
class Link:
    """The client, made when first needed, and shared by all requests to this bucket.

    If the store refuses the credentials, the client is dropped, so that the next attempt reads them
    again: an operator fixes ~/.aws/credentials and the streamer continues. `has_answered`: with
    HTTP, at least once.
    """

    config: StoreConfig
    session: MakeSession
    bandwidth: Bandwidth | None = None
    on_request: OnRequest | None = None
    has_answered: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _client: BaseClient | None = None

    def get(self) -> BaseClient:
        """The client; a new one if there is none."""
        with self._lock:
            if self._client is None:
                self._client = _connect(self.config, self.session)
            return self._client

    def forget(self, client: BaseClient | None) -> None:
        """Drop this client, unless another thread has already replaced it."""
        with self._lock:
            if self._client is client:
                self._client = None

    @property
    def endpoint(self) -> str:
        """The endpoint for messages, also if AWS_ENDPOINT_URL or a profile sets it."""
        with self._lock:
            found = self._client.meta.endpoint_url if self._client is not None else ""
        if self.config.endpoint_url or (found and ".amazonaws.com" not in found):
            return self.config.endpoint_url or found
        return f"AWS S3 ({self.config.region or 'default region'})"

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None


def _connect(config: StoreConfig, session: MakeSession) -> BaseClient:
    s3: dict[str, Any] = {"addressing_style": config.addressing_style}
    if config.checksum != "none":
        # Every body has a digest in a signed header, so the body itself is not hashed with SHA-256,
        # too. Without a digest it must be: when a connection breaks, versitygw would otherwise
        # store the part of the body that it has received.
        s3["payload_signing_enabled"] = False
    client: BaseClient = session(profile_name=config.profile).client(
        "s3",
        endpoint_url=config.endpoint_url,
        region_name=config.region,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=config.connect_timeout_seconds,
            read_timeout=config.read_timeout_seconds,
            max_pool_connections=config.concurrency + 4,
            tcp_keepalive=True,
            s3=cast("Any", s3),
            user_agent_extra=f"binlog2s3/{__version__}",
        ),
    )
    if config.expected_bucket_owner:
        names_owner = partial(_name_owner, config.expected_bucket_owner)
        client.meta.events.register("provide-client-params.s3", names_owner)
    client.meta.events.register("before-call.s3.DeleteObjects", _md5_instead_of_crc32)
    # botocore adds the header at "before-call.s3", after the handlers of a single operation
    client.meta.events.register_last("before-call.s3", _without_waiting)
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.register(f"before-send.s3.{operation}", _sends)
    client.meta.events.register_first("needs-retry.s3", _follow_only_s3)
    return client


def _name_owner(owner: str, params: dict[str, Any], model: OperationModel, **_: Any) -> None:
    """Name the owner of the bucket, and of the one that is copied from, which is the same."""
    known = model.input_shape.members if model.input_shape is not None else {}
    for name in {"ExpectedBucketOwner", "ExpectedSourceBucketOwner"}.intersection(known):
        params[name] = owner


def _md5_instead_of_crc32(params: dict[str, Any], **_: Any) -> None:
    """DeleteObjects needs a digest; every store supports Content-MD5."""
    md5 = digests_of(params["body"])[1]
    params["headers"]["Content-MD5"] = base64.b64encode(md5).decode("ascii")
    params["context"].get("checksum", {}).pop("request_algorithm", None)


def _without_waiting(params: dict[str, Any], **_: Any) -> None:
    """Send the body at once. To wait for "100 Continue" costs a round trip for each part."""
    params["headers"].pop("Expect", None)


def _sends(request: AWSPreparedRequest, **_: Any) -> None:
    """Tell a body that it is sent now. What reads it before computes the signature."""
    body: object = request.body
    if isinstance(body, _Witness):
        body.sends = True


def _follow_only_s3(request_dict: dict[str, Any], response: Any, **_: Any) -> None:
    """Follow a redirect only if the answer names the region.

    Otherwise botocore sends HEAD bucket to find the region. If that is redirected, too, as by the
    login page of a web server, botocore repeats it until the stack overflows.
    """
    if response is None or response[0] is None or response[0].status_code not in (301, 302, 307):
        return
    parsed = response[1]
    error, headers = parsed.get("Error", {}), parsed["ResponseMetadata"]["HTTPHeaders"]
    if not (error.get("Region") or "x-amz-bucket-region" in headers):
        request_dict["context"].setdefault("s3_redirect", {})["redirected"] = True


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests to one bucket: attempts, translation of errors, and the only place that retries."""

    link: Link
    stop: threading.Event
    policy: RetryPolicy
    on_error: OnError | None
    on_over: OnOver | None = None

    def send(
        self, operation: str, key: str, body: Body | bytes, *, final: Final = None, **params: Any
    ) -> Answer:
        """A request with a body; each attempt opens the body again."""
        first = size_of(body) < _BULK
        in_vain = 0

        def attempt() -> Answer:
            nonlocal in_vain
            with closing(_Witness(_open(body), self.link.bandwidth, first, self.stop)) as reader:
                try:
                    return self.once(
                        operation, key, Body=reader, ContentLength=size_of(body), **params
                    )
                except Exception:
                    in_vain += reader.sent_bytes
                    if reader.failure is not None:
                        raise reader.failure from reader.failure.__cause__
                    raise

        try:
            return self.retry(attempt, final=final)
        except StoreError as exc:
            exc.sent_bytes = in_vain
            raise

    def retry(self, act: Callable[[], T], *, final: Final = None) -> T:
        """Repeat transient failures; the stop event ends the waiting with the last error."""
        last: StoreError | None = None

        def attempt() -> T:
            nonlocal last
            if last is not None and self.stop.is_set():
                raise last
            try:
                return act()
            except StoreError as exc:
                last = exc
                raise

        def worth_repeating(exc: BaseException) -> bool:
            return not (final and isinstance(exc, final)) and self._worth_repeating(exc)

        def report(state: tenacity.RetryCallState) -> None:
            if self.on_error is not None and last is not None and state.next_action is not None:
                self.on_error(last, state.attempt_number, state.next_action.sleep)

        end: list[tenacity.stop.stop_base] = [tenacity.stop_when_event_set(self.stop)]
        if self.policy.attempts is not None:
            end.append(tenacity.stop_after_attempt(self.policy.attempts))
        succeeded = False
        try:
            answer = tenacity.Retrying(
                retry=tenacity.retry_if_exception(worth_repeating),
                stop=tenacity.stop_any(*end),
                wait=tenacity.wait_random_exponential(
                    multiplier=self.policy.first_delay_seconds, max=self.policy.max_delay_seconds
                ),
                sleep=tenacity.sleep_using_event(self.stop),
                before_sleep=report,
                reraise=True,
            )(attempt)
            succeeded = True
            return answer
        finally:
            if self.on_over is not None and (succeeded or last is not None):
                self.on_over(succeeded)

    def once(self, operation: str, key: str, **params: Any) -> Answer:
        """One request: returns its answer, or raises a StoreError."""
        where = {} if operation in _WITHOUT_KEY else {"Key": key}
        client = None
        try:
            client = self.link.get()
            act = getattr(client, operation)
            bucket = self.link.config.bucket
            answer = self._timed(client, operation, partial(act, Bucket=bucket, **where, **params))
        except Exception as exc:  # botocore raises RuntimeError for expired credentials, too
            error = self.translate(exc, operation, key)
            if isinstance(error, MendableError):
                self.link.forget(client)
            raise error from exc
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        if is_web_page(headers):
            if "Body" in answer:
                answer["Body"].close()
            raise translate(self._failure("NotS3", operation, key, status=200, headers=headers))
        if operation.startswith("list_") and answer.keys() <= _OF_EVERY_ANSWER:
            said = f"{operation} got an empty answer, which would be an empty bucket"
            raise translate(self._failure("NotS3", operation, key, message=said))
        return answer

    def _timed(self, client: BaseClient, operation: str, act: Callable[[], Answer]) -> Answer:
        """The answer of a request; tells how long it took, and what came of it."""
        code, begun = None, time.monotonic()
        try:
            answer = dict(act())
            code = answer["ResponseMetadata"].get("HTTPStatusCode")
        except ClientError as exc:
            code = exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            raise
        finally:
            if code is not None:
                self.link.has_answered = True
            if self.link.on_request is not None:
                name = client.meta.method_to_api_mapping[operation]
                self.link.on_request(name, str(code or "none"), time.monotonic() - begun)
        return answer

    def delete_objects(self, keys: Sequence[str]) -> bool:
        """Delete one batch; False if this store refuses the request, or does not answer it.

        The answer is 200, and names each key as deleted or not deleted. Raises for the latter.
        """
        try:
            listed = {"Objects": [{"Key": key} for key in keys]}
            answer = self.once("delete_objects", "", Delete=listed)
        except (UnsupportedError, RefusedError, MendableError):
            return False
        errors = answer.get("Errors", ())
        refused = [error for error in errors if error.get("Code") != "NoSuchKey"]
        if refused:
            first = refused[0]
            says = f"{first.get('Message', '')} (the first of {len(refused)} of {len(keys)} keys)"
            code, key = first.get("Code", ""), first.get("Key", "")
            raise translate(self._failure(code, "delete_objects", key, message=says))
        named = {item.get("Key") for item in (*answer.get("Deleted", ()), *errors)}
        return named.issuperset(keys)

    def translate(self, exc: Exception, operation: str, key: str) -> StoreError:
        """The error for an exception of a library."""
        if isinstance(exc, ClientError):
            said, meta = exc.response.get("Error", {}), exc.response.get("ResponseMetadata", {})
            failure = self._failure(
                said.get("Code", ""),
                operation,
                key,
                message=said.get("Message", ""),
                status=meta.get("HTTPStatusCode"),
                headers=meta.get("HTTPHeaders", {}),
                region=str(said.get("Region", "")),
                at=datetime.now(UTC),
            )
        else:
            answer = "" if self.link.has_answered else _other_protocol(exc)
            code, says = ("NotHTTP", answer) if answer else (_kind(exc), _says(exc))
            failure = self._failure(code, operation, key, message=says)
        return translate(failure)

    def _failure(self, code: str, operation: str, key: str, **more: Any) -> Failure:
        return Failure(
            code=code,
            operation=operation,
            bucket=self.link.config.bucket,
            endpoint=self.link.endpoint,
            key=key,
            **more,
        )

    def _worth_repeating(self, exc: BaseException) -> bool:
        if isinstance(exc, MendableError) and not isinstance(exc, UploadDeniedError):
            return self.policy.attempts is None
        return isinstance(exc, StoreError) and exc.transient


class Download:
    """A GET in blocks; after an error, the next block continues at the same offset."""

    def __init__(
        self,
        requests: Requests,
        key: str,
        begin: int,
        end: int | None,
        *,
        most: int | None = None,
        version: Mapping[str, str] | None = None,
    ) -> None:
        self._version = version or {}
        self._requests = requests
        self._key = key
        self._end = end
        self._most = most
        self._body: Any = None
        self._left = 0
        self.at = begin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def block(self) -> bytes:
        """The next block; b"" at the end."""
        try:
            if self._body is None:
                self._open()
            data: bytes = self._body.read(min(BLOCK_BYTES, self._left)) if self._left else b""
        except StoreError:
            self._drop()
            raise
        except Exception as exc:
            self._drop()
            raise self._requests.translate(exc, "get_object", self._key) from exc
        if self._left and not data:
            self._drop()
            missing = ConnectionError(f"{self._left} bytes are missing")
            raise self._requests.translate(missing, "get_object", self._key)
        self.at += len(data)
        self._left -= len(data)
        return data

    def _open(self) -> None:
        whole = self.at == 0 and self._end is None
        last = "" if self._end is None else self._end - 1
        span = {} if whole else {"Range": f"bytes={self.at}-{last}"}
        answer = self._requests.once("get_object", self._key, **span, **self._version)
        self._body, self._left = answer["Body"], needed(answer, "ContentLength")
        needed(answer, "ETag")
        if not whole and not answer.get("ContentRange", "").startswith(f"bytes {self.at}-"):
            raise StoreError(f"the store sent all of {self._key!r} instead of the requested range")
        if self._end is not None and self._left != self._end - self.at:
            raise StoreError(f"{self._key!r} ends at {self.at + self._left}, before {self._end}")
        if self._most is not None and self._left > self._most:
            raise ObjectTooLargeError(
                f"{self._key!r} has {self._left} bytes, more than {self._most}"
            )

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
        self._body = None


class _Witness:
    """A body's reader that keeps its exception, because botocore and awscrt wrap or lose it.

    While the body is sent, it returns larger blocks than urllib3 asks for, which sends blocks of
    any size: for each block of 16 KiB the thread would have to wait for the GIL. And it keeps to
    the bandwidth.
    """

    def __init__(
        self, reader: Reader, bandwidth: Bandwidth | None, first: bool, stop: threading.Event
    ) -> None:
        self._reader = reader
        self._bandwidth = bandwidth
        self._first = first
        self._stop = stop
        self._block = BODY_BLOCK if bandwidth is None else bandwidth.block
        self.sends = False
        self.sent_bytes = 0
        self.failure: Exception | None = None
        self.tell = reader.tell
        self.close = reader.close

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Begin again: what reads next may compute a signature, as after a redirect."""
        self.sends = False
        return self._reader.seek(offset, whence)

    def read(self, size: int = -1, /) -> bytes:
        try:
            data = self._reader.read(max(size, self._block) if self.sends and size >= 0 else size)
        except Exception as exc:
            self.failure = exc
            raise
        if self.sends:
            self.sent_bytes += len(data)
            if self._bandwidth is not None:
                self._bandwidth.take(len(data), first=self._first, stop=self._stop)
        return data


def _open(body: Body | bytes) -> Reader:
    return io.BytesIO(body) if isinstance(body, bytes) else body.open()


def needed(answer: Mapping[str, Any], name: str) -> Any:
    """A field that every S3 store has in its answer; without it, this is not an S3 store."""
    value = answer.get(name)
    if value is None or value == "":
        raise MendableError(
            f"the store's answer has no {name}: this is not an S3 store",
            hint="--endpoint-url must be the store's S3 address and port",
        )
    return value


def date_in(answer: Mapping[str, Any]) -> datetime | None:
    """The time of an answer by the store's clock, in whole seconds; None if it does not say it."""
    try:
        text = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return parsedate_to_datetime(text).astimezone(UTC)
    except (KeyError, ValueError):
        return None


def onward(before: Mapping[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Where a listing continues; an answer that leads back to its own place would never end."""
    if all(before.get(name) == value for name, value in after.items()):
        raise MendableError(
            f"the store's listing does not end: it continues where it began, at {after!r:.100}",
            hint="--endpoint-url must be the store's S3 address and port",
        )
    return after


def size_of(body: Body | bytes) -> int:
    """How many bytes the body has."""
    return len(body) if isinstance(body, bytes) else body.size


def blocks_of(body: Body | bytes) -> Iterator[bytes]:
    """Its bytes, in blocks."""
    with closing(_open(body)) as reader:
        yield from iter(lambda: reader.read(BODY_BLOCK), b"")


def crc64_of(body: Body | bytes) -> int:
    """Its CRC64NVME, read in blocks."""
    return crc64_of_blocks(blocks_of(body))


def digests_of(body: Body | bytes) -> tuple[int, bytes]:
    """Its CRC64NVME and its MD5, read in blocks."""
    crc, md5 = 0, hashlib.md5(usedforsecurity=False)
    for block in blocks_of(body):
        crc = crc64nvme(block, crc)
        md5.update(block)
    return crc, md5.digest()


def _kind(exc: Exception) -> str:
    """The name of the nearest class of the exception that `errors` has in its table."""
    names = [cls.__name__ for cls in type(exc).__mro__]
    return next((name for name in names if knows(name)), names[0])


def _other_protocol(exc: Exception) -> str:
    """What was answered that is no HTTP; "" if it may be, for example its cut beginning."""
    inner = exc.kwargs.get("error") if isinstance(exc, BotoCoreError) else None
    causes = [
        argument for argument in getattr(inner, "args", ()) if isinstance(argument, BadStatusLine)
    ]
    if not causes or isinstance(causes[0], RemoteDisconnected):
        return ""
    line = str(getattr(causes[0], "line", ""))
    if "HTTP/".startswith(line[:5].strip()):
        return ""
    if line.startswith(_TLS_ALERT):
        return "it answers with TLS"
    return f"it answers {line[:_MOST_LINE]!r}"


_TLS_ALERT = "\x15\x03"
_MOST_LINE = 40


def _says(exc: Exception) -> str:
    """The innermost reason, in the words of the operating system or of TLS."""
    if isinstance(exc, CredentialRetrievalError) and exc.kwargs["provider"] == "custom-process":
        return "credential_process failed; what it printed may be secret, and is not shown"
    said = str(exc.kwargs.get("error", exc) if isinstance(exc, BotoCoreError) else exc)
    return re.sub(r"^AWSHTTPS?Connection(Pool)?\(.*?\): ", "", said)
