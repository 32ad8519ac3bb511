"""The page at /: what a command writes, made by another process, and nobody waits for it long."""

import io
import os
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse

import pytest

from binlog2s3.config.report import REPORT, ReportConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.status import page as page_module
from binlog2s3.status.page import AGE_SECONDS, ReportPage, report_command
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("log")
MADE = (200, "text/html; charset=utf-8")


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes


def asked(page: ReportPage) -> Answer:
    begun: list[tuple[str, list[tuple[str, str]]]] = []
    start: StartResponse = lambda code, headers, _=None: begun.append((code, headers))  # type: ignore[assignment,return-value,misc] # noqa: E731
    body = b"".join(page({}, start))
    ((code, headers),) = begun
    return Answer(int(code[:3]), dict(headers), body)


def of(script: str, *words: str, clock: Callable[[], float] = lambda: 0.0) -> ReportPage:
    """The page that a Python program writes."""
    return ReportPage([sys.executable, "-c", script, *words], clock)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks waits as long as a test may take."""
    monkeypatch.setattr(page_module, "_WAIT_SECONDS", 120.0)


@pytest.mark.usefixtures("patient")
def test_a_page_is_made_once_a_minute(tmp_path: Path) -> None:
    """Whoever asks within the minute gets the same; then there is another one."""
    runs, now = tmp_path / "runs", [0.0]
    script = "import sys; f = open(sys.argv[1], 'a'); f.write('x'); print('<p>', f.tell())"
    page = of(script, str(runs), clock=lambda: now[0])
    first = asked(page)
    assert (first.code, first.headers["Content-Type"], first.body) == (*MADE, b"<p> 1\n")
    now[0] = AGE_SECONDS - 1
    assert asked(page) == first
    now[0] = AGE_SECONDS
    assert asked(page).body == b"<p> 2\n"
    assert runs.read_text() == "xx"


def test_who_asks_does_not_wait_for_a_slow_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process, however many ask; then its page; an old page until the next one is made."""
    monkeypatch.setattr(page_module, "_WAIT_SECONDS", 0.05)
    runs, gate, now = tmp_path / "runs", tmp_path / "gate", [0.0]
    os.mkfifo(gate)
    script = "import sys; open(sys.argv[1], 'a').write('x'); print(open(sys.argv[2]).read())"
    page = of(script, str(runs), str(gate), clock=lambda: now[0])
    answers = list[Answer]()
    many = [threading.Thread(target=lambda: answers.append(asked(page))) for _ in range(8)]
    for one in many:
        one.start()
    for one in many:
        one.join()
    assert {(one.code, one.headers["Refresh"], one.headers["Retry-After"]) for one in answers} == {
        (503, "2", "2")
    }
    assert answers[0].body == b"the page is being made from the bucket, it will be here soon\n"
    gate.write_text("first")
    wait_until(lambda: asked(page).body == b"first\n", what="the page")
    now[0] = AGE_SECONDS
    assert asked(page).body == b"first\n"
    gate.write_text("second")
    wait_until(lambda: asked(page).body == b"second\n", what="the next page")
    assert runs.read_text() == "xx"


@pytest.mark.usefixtures("patient")
def test_why_there_is_no_page(log: io.StringIO) -> None:
    """What the command said, as one short line; a page from before is not shown instead of it."""
    now = [0.0]
    script = "import os, sys; sys.exit('error: acces\\x1b[31m denied\\nhint: ' + 'x' * 5000)"
    page = of(script, clock=lambda: now[0])
    answer = asked(page)
    assert (answer.code, answer.headers["Retry-After"]) == (503, "60")
    assert answer.body.startswith(b"the page could not be made: error: acces [31m denied hint: xxx")
    assert len(answer.body) < 1100
    assert '"event": "page_not_made"' in log.getvalue()
    page = ReportPage([sys.executable, "-c", "import os; os.abort()"])
    assert asked(page).body == b"the page could not be made: its process ended with -6\n"
    assert b"No such file" in asked(ReportPage(["/nowhere/python"])).body
    page = of("import sys; sys.stdout.write('x' * (9 << 20))")
    assert b"let `binlog2s3 report --html` write a file" in asked(page).body


@pytest.mark.usefixtures("patient")
def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its process is gone."""
    monkeypatch.setattr(page_module, "_MAKE_SECONDS", 0.5)
    pid = tmp_path / "pid"
    script = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(900)"
    answer = asked(of(script, str(pid)))
    assert answer.body == b"the page could not be made: it took longer than 0.5 seconds\n"
    assert not pid.exists() or not Path(f"/proc/{pid.read_text()}").exists()


@pytest.mark.usefixtures("patient")
def test_its_process_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least priority, killed before the streamer; it has the store's keys and no options."""
    monkeypatch.setenv("BINLOG2S3_MYSQL_HOST", "db1")
    monkeypatch.setenv("AWS_PROFILE", "prod")
    script = """
import os, time
adj = lambda: open("/proc/self/oom_score_adj").read().strip()
until = time.monotonic() + 60
while time.monotonic() < until and (os.nice(0), adj()) != (19, "1000"):
    time.sleep(0.01)
print(os.nice(0), adj(), os.environ.get("AWS_PROFILE"), os.environ.get("BINLOG2S3_MYSQL_HOST"))
"""
    assert asked(of(script)).body == b"19 1000 prod None\n"


FULL = S3Config(
    bucket="acme",
    prefix="a/b",
    endpoint_url="https://s3.example.com:9000",
    region="eu-central-1",
    addressing_style="path",
    profile="prod",
    expected_bucket_owner="123456789012",
    concurrency=7,
)


@pytest.mark.parametrize("s3", [FULL, S3Config(bucket="acme", prefix="")])
def test_the_command_says_what_the_config_says(s3: S3Config) -> None:
    """As `report` understands it."""
    words = report_command(s3, "orders")[4:]
    assert words[:3] == ["report", "--html", "-"]
    found = parsed(words[1:])
    assert (found.s3, found.source, str(found.html)) == (s3, "orders", "-")


def parsed(words: list[str]) -> ReportConfig:
    """The config that the command makes of these words."""
    import click  # noqa: PLC0415

    from binlog2s3.cli.options import config_of, declared  # noqa: PLC0415

    made: list[ReportConfig] = []

    @click.command()
    @declared(REPORT.options)
    @click.pass_context
    def command(ctx: click.Context, /, **given: Any) -> None:
        made.append(config_of(ctx, given, REPORT))

    command.main(words, standalone_mode=False)
    return made[0]
