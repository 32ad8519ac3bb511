"""Many small objects, one after the other, without most of what boto3 does around a request.

Place: over `s3`, for commands that read an entry of each binlog: what boto3 does around a small
GET or HEAD takes longer than all the rest. So it asks for one object, and the next ones are asked
for as it did: at the same address, with the credentials of that moment, over connections that its
own pool opens; so with its TLS and timeouts. Behind a proxy they go through boto3's own sender.

Law: it answers only what is beyond doubt: 200, with as many bytes as announced, as an S3 store
answers. Everything else (an error, a redirect, a broken connection, a signature of another kind)
is left to `store`, which asks again in its own way; after a few such it is not tried any more.
"""

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import SplitResult, quote, urlsplit

from botocore.awsrequest import AWSRequest

from binlog2s3.binlog.checksum import crc64_from_base64
from binlog2s3.store.contract import ObjectInfo, StoreConfig
from binlog2s3.store.errors import is_web_page
from binlog2s3.store.http import Answer, UnansweredError, exchange, request
from binlog2s3.store.requests import _FOREIGN, Link, MakeSession, any_session
from binlog2s3.store.s3 import S3Store
from binlog2s3.store.signature import signed

T = TypeVar("T")
Headers = Mapping[str, str]

_MOST_DOUBTS = 3
_DOUBTS = (
    *_FOREIGN,
    LookupError,
    AttributeError,  # another botocore than known
    TypeError,  # the same
)


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

    def close(self) -> None:
        """See Store."""
        self._shortcut.close()
        super().close()

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

    def send(self, client: Any, method: str, key: str, headers: Headers, idle: "_Idle") -> Any:
        """The answer with its whole body: status_code, headers, content."""
        url, agent = self.url + _quoted(key), {"User-Agent": client.meta.config.user_agent}
        session = client._endpoint.http_session  # noqa: SLF001 - no other way to its connections
        by = self.signer.get_auth_instance(self.service, self.region, "s3v4")
        if session._proxy_config.proxy_url_for(url) is not None:  # noqa: SLF001
            asked = AWSRequest(method, url, headers={**agent, **headers})
            by.add_auth(asked)
            return session.send(asked.prepare())
        place = _place(self.url)
        path = place.path + _quoted(key)
        names = signed(
            method,
            path,
            {"Host": place.netloc, **headers},
            access_key=by.credentials.access_key,
            secret_key=by.credentials.secret_key,
            token=by.credentials.token,
            region=self.region,
            service=self.service,
            now=datetime.now(UTC),
        )
        return idle.ask(session, self.url, request(method, path, {**names, **agent}))


class _Idle:
    """Connections to the store that wait for the next request.

    They are opened by boto3's own pool, so with its checks of certificates, and never by others.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[object, socket.socket]] = deque()

    def ask(self, session: Any, url: str, asked: bytes) -> Answer:
        """Ask once; once more on a new connection where one that waited was closed meanwhile."""
        waiting = self._taken(session, url)
        if waiting is not None:
            with suppress(UnansweredError):
                return self._asked(session, url, waiting, asked)
        return self._asked(session, url, _opened(session, url), asked)

    def close(self) -> None:
        """Close those that wait."""
        with suppress(IndexError):
            while True:
                self._waiting.pop()[1].close()

    def _taken(self, session: object, url: str) -> socket.socket | None:
        with suppress(IndexError):
            while True:
                whose, connection = self._waiting.pop()
                if whose == (id(session), url):
                    return connection
                connection.close()  # of a client that was dropped with its credentials
        return None

    def _asked(self, session: object, url: str, connection: socket.socket, asked: bytes) -> Answer:
        last = True
        try:
            answer = exchange(connection, asked)
            last = answer.last
        finally:
            if last:
                connection.close()
            else:
                self._waiting.append(((id(session), url), connection))
        return answer


def _opened(session: Any, url: str) -> socket.socket:
    """A connection as boto3 opens it: its timeouts, its TLS with the certificates it trusts."""
    pool = session._manager.connection_from_url(url)  # noqa: SLF001
    session._setup_ssl_cert(pool, url, session._verify)  # noqa: SLF001 - before the first one
    opened = pool._new_conn()  # noqa: SLF001
    opened.connect()
    connection: socket.socket = opened.sock
    opened.sock = None
    connection.settimeout(pool.timeout.read_timeout)
    return connection


@dataclass(slots=True)
class _Shortcut:
    """The way that boto3 took last, and whether it is worth to be taken."""

    _asked: threading.local = field(default_factory=threading.local)
    _idle: _Idle = field(default_factory=_Idle)
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

    def close(self) -> None:
        """Close the connections that are idle."""
        self._idle.close()

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
            answer = way.send(link.get(), method, key, headers or {}, self._idle)
            if answer.status_code == HTTPStatus.NOT_FOUND:  # no reason to give up
                return None
            found = read(_good(answer), answer.content)
        except _DOUBTS:
            self._doubts += 1
            return None
        self._doubts = 0
        return found


@lru_cache(maxsize=8)
def _place(url: str) -> SplitResult:
    return urlsplit(url)


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
