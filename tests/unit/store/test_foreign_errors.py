"""No exception of a library leaves the store, whatever it is and whichever request it ends."""

import contextlib
import socket
import string
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import awscrt.exceptions
import botocore.exceptions
import pytest
import urllib3
import urllib3.exceptions

from binlog2s3.errors import StoreError
from binlog2s3.store.requests import any_session
from binlog2s3.store.s3 import RetryPolicy, S3Store, StoreConfig

OPERATIONS: dict[str, Callable[[S3Store], object]] = {
    "check_access": lambda store: store.check_access(),
    "put": lambda store: store.put("a", b"x"),
    "get": lambda store: store.get("a"),
    "open": lambda store: [*store.open("a", 0, 1)],
    "head": lambda store: store.head("a"),
    "list": lambda store: [*store.list("")],
    "list_names": lambda store: [*store.list_names("")],
    "delete": lambda store: store.delete(["a"]),
    "create_upload": lambda store: store.create_upload("a"),
    "list_uploads": lambda store: store.list_uploads("a"),
    "uploads_below": lambda store: store.uploads_below("a"),
    "list_parts": lambda store: store.list_parts("a", "1"),
    "upload_part": lambda store: store.upload_part("a", "1", 1, b"x"),
    "copy_part": lambda store: store.copy_part("a", "1", 1, "b", size=1),
    "complete_upload": lambda store: store.complete_upload("a", "1", [], size=1, crc64=None),
    "abort_upload": lambda store: store.abort_upload("a", "1"),
    "has_object_lock": lambda store: store.settings.has_object_lock(),
}


def exceptions() -> Iterator[Exception]:
    """One of each class of botocore, urllib3 and awscrt, and of Python's own roots."""
    yield RuntimeError(
        "Credentials were refreshed, but the refreshed credentials are still expired."
    )
    yield from (KeyError("a"), TypeError("b"), AttributeError("c"), RecursionError("d"))
    for module in (botocore.exceptions, urllib3.exceptions, awscrt.exceptions):
        for found in vars(module).values():
            if isinstance(found, type) and issubclass(found, Exception):
                yield made(found)


def made(kind: type[Exception]) -> Exception:
    """An instance of this class, whatever its constructor asks for."""
    if kind is botocore.exceptions.WaiterError:
        return botocore.exceptions.WaiterError("words", "words", {})
    if issubclass(kind, botocore.exceptions.BotoCoreError):
        names = [name for _, name, *_ in string.Formatter().parse(kind.fmt) if name]
        return kind(**{**dict.fromkeys((*names, "provider"), "words"), "error": "words"})
    if issubclass(kind, botocore.exceptions.ClientError):
        return kind({"Error": {"Code": "Odd"}}, "PutObject")
    pool = urllib3.HTTPConnectionPool("127.0.0.1")
    answer = SimpleNamespace(tell=lambda: 7, length_remaining=7)
    few: tuple[tuple[Any, ...], ...] = (("words",), (b"words", 7), (7, 9), (answer, b"7"))
    for values in (*few, (pool, "words"), (pool, "/", "words"), (1, "A", "b")):
        with contextlib.suppress(TypeError, AttributeError):
            made = kind(*values)
            assert str(made) is not None
            return made
    return kind(service_name="words")


class Session:
    """A session of boto3 with one client, whose requests end with the exception that is next."""

    def __init__(self, exc: Exception) -> None:
        self.exc = exc
        self._client: Any = None

    def __call__(self, profile_name: str | None = None) -> Any:
        return self

    def client(self, *args: Any, **options: Any) -> Any:
        if self._client is None:
            self._client = any_session().client(*args, **options)
            self._client.meta.events.register("before-send.s3", self._end)
        return self._client

    def _end(self, **_: Any) -> None:
        raise self.exc


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials that nothing uses."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_exception_of_a_library_leaves(operation: str) -> None:
    """Each becomes a StoreError with one line and something to do, or to wait for."""
    once = RetryPolicy(attempts=1)
    config = StoreConfig(bucket="binlogs", endpoint_url="http://127.0.0.1:9", region="here")
    session = Session(RuntimeError())
    store = S3Store(config, stop=threading.Event(), policy=once, session=session)
    for session.exc in exceptions():
        exc = session.exc
        with pytest.raises(StoreError) as caught:
            OPERATIONS[operation](store)
        assert "\n" not in str(caught.value)
        assert caught.value.hint or caught.value.transient, repr(exc)


@pytest.mark.usefixtures("keys")
def test_expired_credentials_have_their_hint() -> None:
    """botocore raises RuntimeError for credentials that are expired after they were renewed."""
    expired = next(exceptions())
    config = StoreConfig(bucket="binlogs", endpoint_url="http://127.0.0.1:9", region="here")
    store = S3Store(config, stop=threading.Event(), session=Session(expired))
    with pytest.raises(StoreError, match="have expired") as caught:
        store.get("a")
    assert "renew them" in caught.value.hint


OK = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextlib.contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A port that gives each connection one of these, whatever it is asked, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"\x15\x03\x01\x00\x02\x02\x46", "does not speak plain HTTP: it answers with TLS"),
        (b"SSH-2.0-OpenSSH_9\r\n", r"plain HTTP: it answers 'SSH-2\.0-OpenSSH_9"),
        (b"HTTP", "broke during"),
        (b"HTTP/", "broke during"),
        (b"", "broke during"),
    ],
)
def test_a_port_that_does_not_speak_http(answer: bytes, says: str) -> None:
    """It is no outage that passes, unless it has answered with HTTP before, or only began to."""
    once = RetryPolicy(attempts=1)
    with answering(answer, OK, answer) as endpoint:
        config = StoreConfig(bucket="shop", region="us-east-1", endpoint_url=endpoint)
        store = S3Store(config, stop=threading.Event(), policy=once)
        with contextlib.closing(store):
            with pytest.raises(StoreError, match=says) as first:
                store.check_access("x/")
            assert first.value.transient == (says == "broke during")
            assert "https://" in first.value.hint
            for _ in range(2):
                with pytest.raises(StoreError) as later:
                    store.check_access("x/")
                assert later.value.transient
