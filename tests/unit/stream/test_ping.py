"""The dead-man switch: when it asks, and what it never shows."""

import json
import logging
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from binlog2s3.errors import ConfigError
from binlog2s3.status.model import Lag, Status, Totals
from binlog2s3.stream.telling import DeadMan, fetch, read_url
from tests.documents import TIME
from tests.waiting import wait_until

SECRET = "https://hc.example/ping/0123-secret"


def status(*, lag: float | None = None, durable: int = 0) -> Status:
    return Status(
        source="s",
        target="t",
        seen_from="daemon",
        at=TIME,
        state="streaming",
        lag=Lag(seconds=lag),
        totals=Totals(durable_bytes=durable),
    )


class Asked:
    """Counts GETs, and fails while it is told to."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self.error: Exception | None = None
        self.tried = 0

    def __call__(self, url: str) -> None:
        self.tried += 1
        if self.error is not None:
            raise self.error
        self.urls.append(url)


@contextmanager
def deadman(path: Path, asked: Asked, interval: float = 0.01) -> Iterator[DeadMan]:
    path.write_text(f"{SECRET}\n")
    made = DeadMan(path, interval, asked)
    made.start()
    try:
        yield made
    finally:
        made.close()


def test_it_asks_for_what_became_durable_and_for_idleness(tmp_path: Path) -> None:
    """Not at the start, not while nothing moves; again and again while the source is idle."""
    asked = Asked()
    with deadman(tmp_path / "url", asked) as made:
        made.tell(status(lag=5.0))
        made.tell(status(lag=None))
        assert not made._wanted
        made.tell(status(lag=5.0, durable=10))
        wait_until(lambda: made._asked_for == 10, what="the first")
        assert len(asked.urls) == 1
        made.tell(status(lag=6.0, durable=10))
        assert not made._wanted
        made.tell(status(lag=6.0, durable=11))
        wait_until(lambda: made._asked_for == 11, what="more is durable")
        assert len(asked.urls) == 2
        for count in (3, 4):
            made.tell(status(lag=0.0, durable=11))
            wait_until(lambda count=count: len(asked.urls) == count, what="it is idle")
    assert set(asked.urls) == {SECRET}


def test_it_asks_no_more_often_than_the_interval(tmp_path: Path) -> None:
    """However much becomes durable."""
    asked = Asked()
    with deadman(tmp_path / "url", asked, interval=3600) as made:
        made.tell(status(durable=1))
        wait_until(lambda: asked.tried, what="the first")
        for durable in range(2, 50):
            made.tell(status(lag=0.0, durable=durable))
        assert made._wanted
        assert asked.tried == 1


def test_a_failure_is_told_once_without_the_url(tmp_path: Path) -> None:
    """And asked again; what was not told stays to be told."""
    logger, told = logging.getLogger("binlog2s3.telling"), list[logging.LogRecord]()
    handler = logging.Handler()  # whatever other tests have made of the loggers above it
    handler.emit = told.append  # type: ignore[method-assign]
    before = logger.level
    asked = Asked()
    asked.error = urllib.error.HTTPError(SECRET, 404, "gone", {}, None)  # type: ignore[arg-type]
    try:
        logger.addHandler(handler)
        logger.setLevel("INFO")
        with deadman(tmp_path / "url", asked) as made:
            for tries in (1, 2, 3):
                made.tell(status(durable=7))
                wait_until(lambda tries=tries: asked.tried >= tries, what="tried again")
            asked.error = None
            made.tell(status(durable=7))
            wait_until(lambda: asked.urls, what="it answers again")
            wait_until(lambda: len(told) == 2, what="and that is told")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert [record.getMessage() for record in told] == [
        "the heartbeat URL does not answer",
        "the heartbeat URL answers again",
    ]
    fields = json.dumps([record.fields for record in told])  # type: ignore[attr-defined]
    assert "it answers 404" in fields
    assert "hc.example" in fields
    assert "secret" not in fields


@pytest.mark.parametrize(
    "text",
    ["", "file:///etc/passwd", "ftp://host/x", "https://", "http://host:0/",
     "https://me:pw@host/x", "http://h/a b", "http://h/\nhttp://i/",
     "http://h/" + "x" * 5000, "http://[::1/", "h\xff"],
)  # fmt: skip
def test_what_is_no_url_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    """It may be a secret with a slip in it."""
    path = tmp_path / "url"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError) as caught:
        read_url(path)
    assert str(path) in str(caught.value)
    assert text in ("", "https://") or text not in str(caught.value)
    with pytest.raises(ConfigError, match="no such file"):
        read_url(tmp_path / "none")


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.seen.append(self.path)  # type: ignore[attr-defined]
        self.send_response(500 if "bad" in self.path else 200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_one_get_is_made() -> None:
    """To the path that is asked for; an answer other than 2xx is a failure."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            fetch(f"http://127.0.0.1:{server.server_port}/ping?x=1")
            with pytest.raises(urllib.error.HTTPError) as caught:
                fetch(f"http://127.0.0.1:{server.server_port}/bad")
            caught.value.close()
        finally:
            server.shutdown()
            thread.join()
        assert server.seen == ["/ping?x=1", "/bad"]  # type: ignore[attr-defined]
