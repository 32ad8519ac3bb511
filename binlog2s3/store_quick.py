"""Many small objects, one after the other, without most of what boto3 does around a request.

Place: over `store`, for commands that read an entry of each binlog: what boto3 does around a small
GET or HEAD takes longer than all the rest. So it asks for one object, and the next ones are asked
for as it did: at the same address, signed by its signer, with the credentials of that moment, over
its own connections; so with its TLS, proxies and timeouts.

Law: it answers only what is beyond doubt: 200, with as many bytes as announced, as an S3 store
answers. Everything else (an error, a redirect, a broken connection, a signature of another kind)
is left to `store`, which asks again in its own way; after a few such it is not tried any more.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from botocore.awsrequest import AWSRequest

from binlog2s3.checksum import crc64_from_base64
from binlog2s3.store import S3Store
from binlog2s3.store_contract import ObjectInfo, StoreConfig
from binlog2s3.store_errors import is_web_page
from binlog2s3.store_requests import _FOREIGN, Link, MakeSession, any_session

T = TypeVar("T")
Headers = Mapping[str, str]

_MOST_DOUBTS = 3
_DOUBTS = (*_FOREIGN, LookupError, AttributeError)  # AttributeError: another botocore than known


class QuickStore(S3Store):
    """An S3Store whose `get` of whole objects and whose `head` are quick where they can be."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        stop: threading.Event,
        session: MakeSession = any_session,
        **more: Any,
    ) -> None:
        self._shortcut = shortcut = _Shortcut()

        def watched(**which: Any) -> Any:
            made = session(**which)
            made.events.register("before-sign.s3", shortcut.watch)
            return made

        super().__init__(config, stop=stop, session=watched, **more)

    def get(self, key: str, begin: int = 0, end: int | None = None) -> bytes:
        """See Store."""
        if begin != 0 or end is not None:
            return super().get(key, begin, end)
        found = self._shortcut.ask(self._requests.link, "GET", key, _whole)
        if found is not None:
            return found
        with self._shortcut.learning(key):
            return super().get(key)

    def head(self, key: str) -> ObjectInfo | None:
        """See Store."""
        more = {"x-amz-checksum-mode": "ENABLED"} if self._wants_crc64() else {}

        def read(headers: Headers, _: bytes) -> ObjectInfo:
            return _info(key, headers)

        found = self._shortcut.ask(self._requests.link, "HEAD", key, read, more)
        if found is not None:
            return found
        with self._shortcut.learning(key):
            return super().head(key)


@dataclass(frozen=True, slots=True)
class _Way:
    """How boto3 asked for an object: the key follows `url`, the signer knows the credentials."""

    url: str
    region: str
    service: str
    signer: Any

    def send(self, client: Any, method: str, key: str, headers: Headers) -> Any:
        """The answer, an AWSResponse with its whole body."""
        named = {"User-Agent": client.meta.config.user_agent, **headers}
        request = AWSRequest(method, self.url + _quoted(key), headers=named)
        self.signer.get_auth_instance(self.service, self.region, "s3v4").add_auth(request)
        connections = client._endpoint.http_session  # noqa: SLF001 - no other way to them
        return connections.send(request.prepare())


@dataclass(slots=True)
class _Shortcut:
    """The way that boto3 took last, and whether it is worth to be taken."""

    _asked: threading.local = field(default_factory=threading.local)
    _way: _Way | None = None
    _doubts: int = 0

    @contextmanager
    def learning(self, key: str) -> Iterator[None]:
        """In this block boto3 is asked for this key, by this thread: watch how."""
        self._asked.key = key
        try:
            yield
        finally:
            self._asked.key = None

    def watch(self, request: AWSRequest, operation_name: str, **how: Any) -> None:
        """Botocore calls this before it signs a request; only version 4 is learned."""
        key: str | None = getattr(self._asked, "key", None)
        if key is None or operation_name not in ("GetObject", "HeadObject"):
            return
        url, path, signing = str(request.url), _quoted(key), request.context.get("signing", {})
        if url.endswith(path) and how["signature_version"] == "s3v4":
            self._way = _Way(
                url=url.removesuffix(path),
                region=signing.get("region") or how["region_name"],
                service=signing.get("signing_name") or how["signing_name"],
                signer=how["request_signer"],
            )

    def ask(
        self,
        link: Link,
        method: str,
        key: str,
        read: Callable[[Headers, bytes], T],
        headers: Headers | None = None,
    ) -> T | None:
        """What `read` makes of the answer, if it is one; None: ask in the other way."""
        way = self._way
        if way is None or self._doubts >= _MOST_DOUBTS:
            return None
        try:
            answer = way.send(link.get(), method, key, headers or {})
            if answer.status_code == HTTPStatus.NOT_FOUND:  # no reason to give up
                return None
            found = read(_good(answer), answer.content)
        except _DOUBTS:
            self._doubts += 1
            return None
        self._doubts = 0
        return found


def _quoted(key: str) -> str:
    return "/" + quote(key, safe="/~")


def _good(answer: Any) -> Headers:
    """Its headers, their names in lower case; ValueError where it is not as a store answers."""
    headers = {name.lower(): value for name, value in answer.headers.items()}
    if answer.status_code != HTTPStatus.OK or is_web_page(headers) or not headers.get("etag"):
        raise ValueError(f"{answer.status_code} is not for this module to judge")
    return headers


def _whole(headers: Headers, body: bytes) -> bytes:
    if len(body) != int(headers["content-length"]):
        raise ValueError(f"{len(body)} bytes of {headers['content-length']}")
    return body


def _info(key: str, headers: Headers) -> ObjectInfo:
    """What HEAD says; LookupError or ValueError where that is not all that an S3 store says."""
    checksum = headers.get("x-amz-checksum-crc64nvme")
    return ObjectInfo(
        key=key,
        size=int(headers["content-length"]),
        etag=headers["etag"].strip('"'),
        crc64=None if checksum is None else crc64_from_base64(checksum),
        storage_class=headers.get("x-amz-storage-class") or "STANDARD",
        last_modified=parsedate_to_datetime(headers["last-modified"]).astimezone(UTC),
    )
