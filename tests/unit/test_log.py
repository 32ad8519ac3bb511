"""The log: one line an event, for people or for programs, with the hint and without secrets."""

import contextlib
import fcntl
import gc
import io
import json
import logging
import os
import pty
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import pytest

from binlog2s3.errors import SpoolError
from binlog2s3.log import Log, Thinning, configure
from binlog2s3.output import say
from tests.login import ROOT
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.usefixtures("log_settings")
PART = Log("test")
RFC_3339_UTC = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def logged(style: str = "json", level: str = "debug") -> io.StringIO:
    """A log in this form, without colours."""
    stream = io.StringIO()
    configure(style, level, stream)
    return stream


def test_json_lines() -> None:
    """Time in UTC, level, part, id and message first, then the fields as they are."""
    stream = logged()
    PART.info("binlog archived", size=1234, binlog=Path("b.000001"), gtid_set="ä:1", none=None)
    (line,) = stream.getvalue().splitlines()
    document = json.loads(line)
    assert re.fullmatch(RFC_3339_UTC, document.pop("time"))
    assert document == {
        "level": "info",
        "part": "test",
        "event": "binlog_archived",
        "message": "binlog archived",
        "size": 1234,
        "binlog": "b.000001",
        "gtid_set": "ä:1",
        "none": None,
    }
    assert line.startswith('{"time": ')


def test_ecs_lines() -> None:
    """Elastic's names for what every line has and for an error; the rest is in our own object."""
    stream = logged("ecs")
    PART.warning("the store failed, trying again", error=SpoolError("away", hint="wait"), attempt=2)
    PART.info("stopped", message="m")
    document, least = map(json.loads, stream.getvalue().splitlines())
    assert next(iter(document)) == "@timestamp"
    assert re.fullmatch(RFC_3339_UTC, document.pop("@timestamp"))
    assert document == {
        "log.level": "warning",
        "message": "the store failed, trying again",
        "ecs.version": "8.11.0",
        "service.name": "binlog2s3",
        "event.dataset": "binlog2s3.log",
        "event.action": "store_failed_trying_again",
        "log.logger": "binlog2s3.test",
        "process.pid": os.getpid(),
        "error.message": "away",
        "binlog2s3": {"attempt": 2, "hint": "wait"},
    }
    assert least["message"] == "stopped"
    assert least["binlog2s3"] == {"message": "m"}


@pytest.mark.parametrize("style", ["text", "json", "ecs"])
@pytest.mark.parametrize("journal", [True, False])
def test_the_journal_gets_priorities(
    style: str, journal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So `journalctl -p warning` shows warnings; any other file gets lines without them."""
    with (tmp_path / "err").open("w+", encoding="utf-8") as stream:
        found = os.fstat(stream.fileno())
        inode = found.st_ino + (not journal)  # a child whose stream was sent elsewhere
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{inode}")
        configure(style, "debug", stream)
        for level in LEVELS:
            getattr(PART, level)(level)
        say("error", "no b", stream)
        stream.seek(0)
        lines = stream.read().splitlines()
    begins = [line[:3] for line in lines]
    assert (begins == ["<7>", "<6>", "<4>", "<3>", "<3>"]) is journal
    assert any(line.startswith("<") for line in lines) is journal
    if journal and style != "text":
        assert [json.loads(line[3:])["message"] for line in lines[:4]] == LEVELS


@pytest.fixture(params=["pipe", "terminal"])
def reader_and_stream(request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
    """The end that is read, which does not block, and the stream of the other one."""
    if request.param == "pipe":
        reads, writes = os.pipe()
        fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 1 << 16)
    else:
        reads, writes = pty.openpty()
    os.set_blocking(reads, False)
    with os.fdopen(writes, "w", encoding="utf-8") as stream:
        yield reads, stream
        os.close(reads)  # before the stream: who still writes to it gets an error


def read_from(descriptor: int) -> bytes:
    """What is there to be read."""
    found = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 20):
            found += piece
    return found


def whole(lines: bytes | bytearray) -> list[dict[str, Any]]:
    """Those of the lines that were not only begun."""
    found = []
    for line in lines.decode().splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def test_a_reader_that_stands_still_holds_nobody(
    reader_and_stream: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody reads is dropped, and counted once somebody reads; every line is whole."""
    monkeypatch.setattr("binlog2s3.log._PATIENCE_SECONDS", 0.01)
    reads, stream = reader_and_stream
    configure("json", "debug", stream)

    def say_much() -> None:
        for number in range(40):
            PART.info("said", number=number, text="x" * 9000)

    speaker = threading.Thread(target=say_much, daemon=True)
    speaker.start()
    speaker.join(PATIENCE)
    assert not speaker.is_alive()
    found, asked = bytearray(), 0

    def is_heard() -> bool:
        nonlocal asked
        asked += 1
        found.extend(read_from(reads))
        PART.info("heard", asked=asked)
        found.extend(read_from(reads))
        return any(line["event"] == "heard" for line in whole(found))

    wait_until(is_heard)
    lines = whole(found)
    said = [line["number"] for line in lines if line["event"] == "said"]
    assert said == list(range(len(said)))
    assert 0 < len(said) < 40
    told, heard = lines[len(said) : len(said) + 2]
    assert told["event"] == "log_lines_were_dropped"
    assert told["lines"] == 40 - len(said) + heard["asked"] - 1


def test_a_reader_that_is_slow_misses_nothing(
    reader_and_stream: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of a line that does not fit waits until it does."""
    monkeypatch.setattr("binlog2s3.log._PATIENCE_SECONDS", PATIENCE)
    reads, stream = reader_and_stream
    configure("json", "debug", stream)

    def say_much() -> None:
        for number in range(100):
            PART.info("said", number=number, text="x" * 9000)

    speaker = threading.Thread(target=say_much, daemon=True)
    speaker.start()
    found = bytearray()

    def is_all() -> bool:
        found.extend(read_from(reads))
        return not speaker.is_alive() and found.count(b"\n") == 100

    wait_until(is_all, interval=0.01)
    assert [line["number"] for line in whole(found)] == list(range(100))


def test_a_line_that_is_refused_though_there_is_room(
    reader_and_stream: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While another process writes to the terminal; it is tried again, and not for ever."""
    write, refusals = os.write, [1]

    def refused(descriptor: int, data: bytes) -> int:
        if data.startswith(b'{"time": ') and refusals[0]:
            refusals[0] -= 1
            raise BlockingIOError
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", refused)
    reads, stream = reader_and_stream
    configure("json", "debug", stream)
    PART.info("one")
    monkeypatch.setattr("binlog2s3.log._PATIENCE_SECONDS", 0)
    refusals[0] = 3
    PART.info("two")
    PART.info("three")  # and what says that one was dropped
    PART.info("four")
    found = bytearray()

    def is_all() -> bool:
        found.extend(read_from(reads))
        return found.count(b"\n") == 3

    wait_until(is_all)
    assert [(line["message"], line.get("lines")) for line in whole(found)] == [
        ("one", None), ("log lines were dropped", 2), ("four", None),
    ]  # fmt: skip


def test_a_terminal_is_left_as_it_is() -> None:
    """Other processes have it, too; and what was opened beside it is closed again."""
    reads, writes = pty.openpty()

    def opened() -> int:
        """How many descriptors of the terminal there are."""
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [path.readlink() for path in links].count(Path(os.ttyname(writes)))

    try:
        with os.fdopen(writes, "w", encoding="utf-8") as stream:
            configure("json", "debug", stream)
            PART.info("said")
            assert (opened(), os.get_blocking(writes)) == (2, True)
            configure("json", "debug", io.StringIO())
            gc.collect()
            assert opened() == 1
    finally:
        os.close(reads)


def test_text() -> None:
    """Time, level, event, fields; values with spaces in quotes."""
    stream = logged("text")
    PART.warning("look here", size=1, text="two words", empty="", quote='a"b', pair="a=b")
    time, _, line = stream.getvalue().partition(" ")
    at = datetime.fromisoformat(time)
    assert at.utcoffset() is not None
    assert abs(at - datetime.now(UTC)) < timedelta(hours=1)
    assert line == (
        'WARNING look here  size=1  text="two words"  empty=""  quote="a\\"b"  pair="a=b"\n'
    )


@pytest.mark.parametrize("style", ["text", "json", "ecs"])
def test_one_event_is_one_line(style: str) -> None:
    """Whatever a server says: it breaks no line, formats nothing, and commands no terminal.

    Neither by C1 controls, which JSON leaves as they are, nor by text that goes backwards.
    """
    stream = logged(style)
    PART.info("100% %s", text="a\nb\r\x1b[2J\x9b31m\u202eb\u2028c\udcff\ud800", plain="büro")
    line = stream.getvalue().removesuffix("\n")
    assert line.isprintable()
    assert line.encode()
    assert "100% %s" in line


def test_fields_do_not_replace_what_every_line_has() -> None:
    """A field called as one of these is the one that is lost."""
    stream = logged()
    PART.info("x", event="y", message="y", time="z", level="error", part="p", other=1)
    document = json.loads(stream.getvalue())
    assert document["message"] == "x"
    assert (document["event"], document["level"], document["part"]) == ("x", "info", "test")
    assert document["time"] != "z"
    assert document["other"] == 1


@pytest.mark.parametrize("level", ["debug", "info", "warning"])
def test_an_error_brings_its_hint(level: str) -> None:
    """At any level; an empty hint is left out, one that is given wins."""
    stream = logged()
    write = getattr(PART, level)
    write("a", error=SpoolError("no space", hint="free some"))
    write("b", error=SpoolError("no space"), hint="")
    write("c", error=SpoolError("no space", hint="free some"), hint="now")
    write("d", error=ValueError("x"))
    first, second, third, fourth = map(json.loads, stream.getvalue().splitlines())
    assert (first["error"], first["hint"]) == ("no space", "free some")
    assert "hint" not in second
    assert third["hint"] == "now"
    assert "hint" not in fourth


def test_what_stops_something() -> None:
    """`error` takes the exception, and shows message and hint."""
    stream = logged("text")
    PART.error("ended", SpoolError("no space", hint="free some"), exit_code=5)
    PART.error("ended")
    first, second = stream.getvalue().splitlines()
    assert (
        first.partition(" ")[2] == 'ERROR   ended  exit_code=5  error="no space"  hint="free some"'
    )
    assert second.partition(" ")[2] == "ERROR   ended"


LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize("level", LEVELS)
def test_levels(level: str) -> None:
    """From the chosen one on."""
    stream = logged(level=level)
    for name in LEVELS:
        getattr(PART, name)(name)
    written = [json.loads(line)["level"] for line in stream.getvalue().splitlines()]
    assert written == LEVELS[LEVELS.index(level) :]


def test_auto_is_text_on_a_terminal_and_json_elsewhere() -> None:
    """And only a terminal gets colours."""
    terminal, file = Terminal(), io.StringIO()
    configure("auto", "info", terminal)
    PART.error("x")
    PART.info("y")
    configure("auto", "info", file)
    PART.error("z")
    red, plain = terminal.getvalue().splitlines()
    assert red.startswith("\x1b[31m")
    assert red.endswith("\x1b[0m")
    assert "\x1b" not in plain
    assert json.loads(file.getvalue())["event"] == "z"


def test_to_configure_again_replaces_what_was() -> None:
    """No line is written twice."""
    first, second = logged(), logged()
    PART.info("x")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


@pytest.mark.parametrize("style", ["text", "json", "ecs"])
def test_a_login_does_not_show_its_password(style: str) -> None:
    """Even if it is logged as a whole."""
    login = replace(ROOT, host="db1", port=3306, user="repl", password="hunter2")
    stream = logged(style)
    PART.info("x", login=login)
    assert "repl" in stream.getvalue()
    assert "hunter2" not in stream.getvalue()


def thinned() -> tuple[Thinning, list[float]]:
    """The filter, and the clock that it looks at."""
    now = [0.0]
    return Thinning(lambda: now[0]), now


def recurring(event: str = "the store failed", **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("binlog2s3.test", logging.WARNING, "", 0, event, (), None)
    record.fields, record.recurs = fields, True
    return record


def test_what_recurs_is_logged_once_a_minute() -> None:
    """The first at once, then each minute one with how many were left out."""
    thinning, now = thinned()
    logged = []
    for second in range(0, 181, 3):
        now[0] = float(second)
        record = recurring(error=SpoolError("away"))
        if thinning.filter(record):
            logged.append((second, getattr(record, "fields").get("left_out")))  # noqa: B009
    assert logged == [(0, None), (60, 19), (120, 19), (180, 19)]


def test_another_outage_is_logged_at_once() -> None:
    """So is another event, an error of another kind, and what does not recur."""
    thinning, now = thinned()
    assert thinning.filter(recurring(error=SpoolError("away")))
    assert thinning.filter(recurring(error=OSError("away")))
    assert thinning.filter(recurring("heartbeat not written", error=SpoolError("away")))
    assert not thinning.filter(recurring(error=SpoolError("still away")))
    other = recurring(error=SpoolError("away"))
    other.recurs = False
    assert thinning.filter(other)
    now[0] = 20.0
    assert thinning.filter(recurring(error=SpoolError("away again")))


def test_who_saw_the_outage_sees_its_end() -> None:
    """However short it was; the end of what was left out is not logged."""
    thinning, now = thinned()
    end = recurring("it answers again")
    setattr(end, "ends", ("the store failed",))  # noqa: B010
    assert not thinning.filter(end)
    assert thinning.filter(recurring(error=SpoolError("away")))
    assert not thinning.filter(recurring(error=SpoolError("away")))
    assert thinning.filter(end)
    now[0] = 1.0
    assert not thinning.filter(recurring(error=SpoolError("away")))
    assert not thinning.filter(end)
    now[0] = 61.0
    assert thinning.filter(recurring(error=SpoolError("away")))
    assert thinning.filter(end)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_end_of_an_outage_is_one_line(level: str) -> None:
    """At each level, with people's units in text."""
    stream = logged("text", level)
    PART.over("back", "away", after_seconds=1)
    PART.recurring("away", error=SpoolError("503"), again_in_seconds=90.0)
    PART.over("back", "away", after_seconds=0.25)
    PART.over("back", "away", after_seconds=2)
    assert [line.partition(" ")[2] for line in stream.getvalue().splitlines()] == [
        'WARNING away  error=503  again_in="90 s"',
        'INFO    back  after="0.3 s"',
    ]


@pytest.mark.parametrize(("level", "lines"), [("info", 1), ("debug", 3)])
def test_debug_shows_each(level: str, lines: int) -> None:
    """At level debug nothing is left out."""
    stream = logged(level=level)
    for _ in range(3):
        PART.recurring("the store failed", error=SpoolError("away"))
    assert len(stream.getvalue().splitlines()) == lines
