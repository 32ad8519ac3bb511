"""The command `check`: tests everything that a streamer needs, before it is needed.

Law: every part is tested; a failure in one part does not stop the others. What the check puts into
the bucket is deleted, also after a signal: while something may be there, a signal waits for the
running request.
"""

import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from types import FrameType
from typing import Any, Self

from binlog2s3.archive.backups import last_failure, look_up, runs_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.config.bucket import for_streaming
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.stream import Config, S3Config
from binlog2s3.errors import Binlog2s3Error, ConfigError, StoreError, UncomparedError
from binlog2s3.formatting import count_text, duration_text
from binlog2s3.inspect.check.bucket import UNREACHED, BucketCheck, permission
from binlog2s3.inspect.check.probes import ARCHIVE_NAMES, NAMES, ArchiveProbes, LiveProbes
from binlog2s3.inspect.check.report import (
    EXIT_CODES,
    Part,
    Row,
    RowPrinter,
    exit_code,
    failed,
    ok,
    skipped,
    warn,
)
from binlog2s3.inspect.check.source import SourceCheck, login_rows
from binlog2s3.inspect.check.spool import spool_rows
from binlog2s3.output import say
from binlog2s3.progress import ProgressDisplay
from binlog2s3.server.connection import Server
from binlog2s3.server.login import resolve
from binlog2s3.status.writer_state import LifeSign, life_sign
from binlog2s3.store.contract import StoreConfig
from binlog2s3.store.s3 import RetryPolicy, S3Store, opened
from binlog2s3.stream.continuation import Begin, GoOn
from binlog2s3.stream.spool import holder, runs_in
from binlog2s3.stream.start import rehearse
from binlog2s3.stream.telling import read_url

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ROWS = 64
"""About how many rows there are, for the progress."""
_NO_CONFIG = "the configuration is not valid"


def run(config: Config, *, as_json: bool, all_rows: bool, outside: Outside = OUTSIDE) -> int:
    """Check everything and show it; returns the exit code."""
    printer = RowPrinter(sys.stdout, as_json=as_json, all_rows=all_rows)
    with (
        _Interrupts() as interrupts,
        closing(look(config, interrupts.held, outside)) as rows,
        ProgressDisplay(sys.stderr, line_seconds=math.inf) as progress,
    ):
        for row in rows:
            printer.show(row)
            if not all_rows:
                done = len(printer.rows)
                words = f"{row.part} {row.name}"
                progress.show(lambda words=words: words, done, max(done + 1, _ROWS))  # type: ignore[misc]
            interrupts.check()
    printer.finish()
    return exit_code(printer.rows)


def refuse(error: ConfigError, *, as_json: bool, all_rows: bool) -> int:
    """Show what is wrong with the configuration, and that nothing else was checked."""
    printer = RowPrinter(sys.stdout, as_json=as_json, all_rows=all_rows)
    for problem in error.problems:
        printer.show(Row(part="configuration", name="options", result="fail", found=problem,
                       hint=error.hint))  # fmt: skip
    for part in EXIT_CODES:
        if part != "configuration":
            printer.show(skipped(part, "", _NO_CONFIG))
    printer.finish()
    return error.exit_code


def look(
    config: Config, held: Callable[[], AbstractContextManager[None]], outside: Outside
) -> Generator[Row]:
    """All rows, in order. While `held` is entered, no signal ends the process."""
    yield from _configuration_rows(config)
    failing: set[Part] = set()
    with opened(_store_config(config.s3), policy=_TWICE, session=outside.session) as store:
        with closing(_part_rows(config, store, held, outside)) as rows:
            for row in rows:
                if row.result == "fail":
                    failing.add(row.part)
                yield row
        yield from _start_rows(config, store, failing)


def _part_rows(
    config: Config,
    store: S3Store,
    held: Callable[[], AbstractContextManager[None]],
    outside: Outside,
) -> Generator[Row]:
    """The rows of each part by itself."""
    with closing(SourceCheck(config)) as source:
        bucket = BucketCheck(config, store, store.settings, now=outside.now)
        yield from _source_rows(config, source)
        yield source.clock_row()
        yield bucket.clock_row()
        yield from _guarded("store", bucket.reading_rows())
        if bucket.first_answer().reached:
            with held():
                probes = LiveProbes(config, store, store.settings)
                yield from _probe_rows(probes)
                yield from _probe_rows(ArchiveProbes(config, store, probes.refusal))
        else:
            yield from (skipped("store", name, UNREACHED) for name in (*NAMES, *ARCHIVE_NAMES))
        yield from _guarded("bucket", bucket.setting_rows())
        reached = bucket.first_answer().reached
        yield from _guarded("bucket", _backup_rows(config, store, outside, reached=reached))
        yield from _guarded("spool", spool_rows(config))
        streamer = _streamer_rows(config, store, outside, reached=reached)
        yield from _guarded("streamer", streamer)


def _probe_rows(probes: LiveProbes | ArchiveProbes) -> Iterator[Row]:
    """The rows of requests that write; cleans up even if nobody asks for the next row."""
    try:
        yield from probes.rows()
    except BaseException:
        left = probes.clean()
        if left is not None and left.result == "fail":
            say("error", left.found)
            say("hint", left.hint)
        raise
    left = probes.clean()
    if left is not None:
        yield left


_TWICE = RetryPolicy(attempts=2)


def _store_config(s3: S3Config) -> StoreConfig:
    """The streamer's own, with short timeouts, so that an unreachable store is reported soon."""
    return replace(for_streaming(s3), connect_timeout_seconds=5.0, read_timeout_seconds=10.0)


def _configuration_rows(config: Config) -> Iterator[Row]:
    stream = config.stream
    yield ok("configuration", "options", f"source {stream.source} to {config.target}")
    if stream.heartbeat_url_file is not None:
        try:
            read_url(stream.heartbeat_url_file)
        except ConfigError as error:
            yield failed("configuration", "heartbeat URL", error)
        else:
            yield ok("configuration", "heartbeat URL", f"in {stream.heartbeat_url_file}")


def _source_rows(config: Config, source: SourceCheck) -> Iterator[Row]:
    yield from login_rows(config)
    yield from _guarded("server", source.server_rows())
    yield from _guarded("settings", source.setting_rows())
    yield from _guarded("mysqlbinlog", source.binlog_rows())


def _guarded(part: Part, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of a part; an error that the part does not expect becomes a row."""
    try:
        yield from rows
    except Binlog2s3Error as error:
        yield failed(part, "", error)


def _backup_rows(
    config: Config, store: S3Store, outside: Outside, *, reached: bool
) -> Iterator[Row]:
    """How old the newest base backup is, and whether the last `backup run` failed."""
    name = "base backups"
    if not reached:
        yield skipped("bucket", name, UNREACHED)
        return
    catalog = Catalog(store, Layout(config.s3.prefix, config.stream.source))
    try:
        now = store.settings.clock(catalog.layout.archive) or outside.now()
        backups = look_up(catalog).restorable
        failure = last_failure(runs_of(catalog, now), backups)
    except StoreError as error:
        hint = permission(error.hint, config.s3.bucket, catalog.layout.archive)
        yield warn("bucket", name, f"could not be read: {error}", hint)
        return
    taken = [backup.taken_at for backup in backups]
    age = duration_text((now - max(taken)).total_seconds()) if taken else ""
    found = f"{count_text(len(taken), 'base backup')}, the newest {age} old" if taken else "none"
    if failure is None:
        hint = "" if taken else "without one, no recovery can begin: `binlog2s3 backup run`"
        yield ok("bucket", name, found, hint)
        return
    what = f"{found}; the last `backup run`, on {failure.host}, failed: {failure.error}"
    yield warn("bucket", name, what, "nothing was registered: run it again, and look at its output")


def _streamer_rows(
    config: Config, store: S3Store, outside: Outside, *, reached: bool
) -> Iterator[Row]:
    """Which streamer already streams this source."""
    if not reached:
        yield skipped("streamer", "heartbeat", UNREACHED)
        return
    layout = Layout(config.s3.prefix, config.stream.source)
    try:
        clock = store.settings.clock(layout.live) or outside.now()
        sign = life_sign(Catalog(store, layout), clock)
    except StoreError as error:
        hint = permission(error.hint, config.s3.bucket, layout.live)
        yield warn("streamer", "heartbeat", f"could not be read: {error}", hint)
        return
    yield _heartbeat_row(config, sign)


def _heartbeat_row(config: Config, sign: LifeSign) -> Row:
    beat = sign.beat
    if beat is None:
        if not sign.exists:
            return ok(
                "streamer", "heartbeat", "no streamer has written to this bucket for this source"
            )
        text = "; ".join(trouble.text for trouble in sign.troubles)
        return warn("streamer", "heartbeat", text, "was the object changed by hand?")
    where = f"on {beat.host} (process {beat.pid})"
    age = duration_text((sign.clock - sign.renewed_at).total_seconds()) if sign.renewed_at else "?"
    if not sign.alive:
        return ok(
            "streamer", "heartbeat", f"no streamer runs; the last one, {where}, is {sign.state}"
        )
    found = f"a streamer runs {where}: {sign.state}, last heartbeat {age} ago"
    if beat.host == socket.gethostname() and _holds(config, beat.pid):
        return ok("streamer", "heartbeat", found)
    hint = "another streamer started here stands by, and takes over if this one stops or fails"
    return ok("streamer", "heartbeat", found, hint)


def _holds(config: Config, pid: int) -> bool:
    """Whether this process is the streamer of our spool."""
    try:
        return holder(config.spool) == pid
    except OSError:
        return False


def _start_rows(config: Config, store: S3Store, failing: Collection[Part]) -> Iterator[Row]:
    """Whether a streamer would refuse this source at its start, by the streamer's own start."""
    name = "history"
    for part in _BEFORE_START:
        if part in failing:
            yield skipped("start", name, f"{part} fails")
            return
    if config.spool.exists() and holder(config.spool) is not None:
        yield skipped("start", name, "a streamer runs on this spool")
        return
    catalog = Catalog(store, Layout(config.s3.prefix, config.stream.source))
    with Server(lambda: resolve(config.mysql)) as server:
        try:
            course = rehearse(config, catalog, runs_in(config.spool), server).course
        except UncomparedError as error:
            yield warn("start", name, str(error), _CONTRADICTED)
            return
        except Binlog2s3Error as error:
            yield failed("start", name, error)
            return
    yield course_row(course)


_BEFORE_START: Sequence[Part] = (
    *("server", "settings", "privileges", "mysqlbinlog", "store", "spool"),
)
"""Without these no streamer comes as far as the history."""
_CONTRADICTED = (
    "was it reset, or restored? a streamer compares their bytes, and begins a new lineage where "
    "they differ: then take a new base backup"
)


def course_row(course: GoOn | Begin) -> Row:
    """Where a streamer would go on."""
    if isinstance(course, GoOn):
        known_end = course.known_end
        return ok("start", "history", f"it goes on with {course.begin} in lineage "
                  f"{known_end.lineage.id}")  # fmt: skip
    if course.parent is None:
        return ok("start", "history", f"the archive begins with {course.begin}")
    found = f"a new lineage begins with {course.begin}, after lineage {course.parent.lineage}"
    if course.parent.join == "exact":
        return ok("start", "history", found)
    why = f"; missing: {course.parent.missing}" if course.parent.missing else ""
    return warn("start", "history", f"{found}; join: {course.parent.join}{why}", _NEW_BACKUP)


_NEW_BACKUP = "no recovery crosses that: take a new base backup once it streams"


class _Interrupts:
    """Signals end the process at once; while held, when `check` is called.

    A second signal always ends it at once.
    """

    def __init__(self) -> None:
        self._held = False
        self._signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile, signals are only recorded."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def check(self) -> None:
        """Exit if a signal was received."""
        if self._signal:
            raise SystemExit(128 + self._signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._signal:
            os._exit(128 + number)
        self._signal = number
        if not self._held:
            raise SystemExit(128 + number)
