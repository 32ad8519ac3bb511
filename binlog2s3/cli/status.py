"""The commands `status` and `health`: ask the streamer, or else read the bucket, and print.

They change nothing and take no lock. The output says so if it is not from the streamer. What only
some calls need is imported by those calls, because health checks run often.
"""

import json
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Self

from binlog2s3.archive.codec import printed
from binlog2s3.cli.status_watch import LookSchedule, Observation, watch
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.status import StatusConfig, Thresholds
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import ArchiveError, ConfigError
from binlog2s3.output import clean, page_on, say
from binlog2s3.status.ask import Unanswered, ask, ask_health
from binlog2s3.status.model import PrintedStatuses, Status, document
from binlog2s3.status.text import print_status, print_table
from binlog2s3.workers import Workers

if TYPE_CHECKING:
    from binlog2s3.retain.window import Proofs
    from binlog2s3.status.from_bucket import Expected
    from binlog2s3.store.s3 import S3Store

_PROOFS_SECONDS = 60.0


def show(config: StatusConfig, outside: Outside = OUTSIDE) -> int:
    """Print the status in the form that was asked for; returns the exit code.

    Raises ConfigError, StoreError, and ArchiveError if there is nothing to show.
    """
    if config.serve_url is not None:
        from binlog2s3.serve.ask import show_clients

        show_clients(config.serve_url, sys.stdout, as_json=config.as_json)
        return 0
    with StatusSource(config, outside) as looks:
        if config.output == "watch":
            pace = LookSchedule(interval_seconds=config.interval, count=config.count)
            watch(looks.look, pace, sys.stdout)
            return 0
        seen, notes = looks.look(), looks.notes()
    if config.output == "check":
        return _check(seen, config.thresholds)
    for text in notes:
        say("warning", text)
    _print(seen, outside.now(), as_json=config.output == "json")
    return 0


def _print(seen: Observation, now: datetime, *, as_json: bool) -> None:
    if as_json:
        if seen.why:
            say("warning", f"this is from the bucket alone: {seen.why}")
        if seen.many:
            print(printed(PrintedStatuses, seen))  # noqa: T201
        else:
            print(json.dumps(document(seen.statuses[0]), indent=1))  # noqa: T201
    elif seen.many:
        print_table(seen.statuses, page_on(sys.stdout), target=seen.target, now=now)
    else:
        print_status(seen.statuses[0], page_on(sys.stdout), now=now, why=seen.why)


def _check(seen: Observation, thresholds: Thresholds) -> int:
    """Print a line for a monitor; returns its exit code."""
    from binlog2s3.status.nagios import verdict, verdict_of_all

    if seen.many:
        judged = verdict_of_all(seen.statuses, thresholds)
    else:
        judged = verdict(seen.statuses[0], thresholds)
    print(judged.line)  # noqa: T201 - the program's output
    return judged.code


def health(config: StatusConfig) -> int:
    """Print whether the streamer of this spool is healthy; returns 0 if it is, otherwise 1."""
    well, text = ask_health(config.spool)
    print(f"{'healthy' if well else 'unhealthy'}: {clean(text)}")  # noqa: T201
    return 0 if well else 1


class StatusSource:
    """Asks the streamer or the bucket; keeps the store's connections between two looks."""

    def __init__(self, config: StatusConfig, outside: Outside = OUTSIDE) -> None:
        self._config = config
        self._outside = outside
        self._expected: Expected | None = None
        if config.expect:
            from binlog2s3.status.from_bucket import read_expected

            self._expected = read_expected(config.expect)
        self._stop = threading.Event()
        self._store: S3Store | None = None
        self._workers: Workers | None = None
        self._proofs: dict[str, tuple[float, Proofs]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._store is not None:
            self._store.close()

    def look(self) -> Observation:
        return self._with_proofs(self._look())

    def notes(self) -> Sequence[str]:
        """What to say of objects that somebody replaced or deleted, and that Object Lock keeps."""
        return self._store.version_notes() if self._store is not None else ()

    def _look(self) -> Observation:
        if self._config.whole:
            return self._look_at_all()
        silent = None
        if self._config.look_at != "bucket":
            answer = self._ask()
            if isinstance(answer, Status):
                return Observation(statuses=(answer,), target=answer.target)
            silent = self._silent(answer)
        return self._look_at_one(silent)

    def _with_proofs(self, seen: Observation) -> Observation:
        """The same with the registered base backups and the drills, if the bucket is known.

        Those of many sources only if it matters how old they are, and without recovery windows.
        """
        config = self._config
        max_age, drill_max_age = config.backup_max_age, config.drill_max_age
        matters = max_age is not None or drill_max_age is not None
        if config.s3 is None or config.look_at == "daemon" or (seen.many and not matters):
            return seen
        from binlog2s3.errors import StoreError
        from binlog2s3.retain.window import with_proofs

        statuses = list(seen.statuses)
        for number, status in enumerate(statuses):
            if status.ignored:
                continue
            try:
                proofs = self._proofs_of(config.s3, status.source, many=seen.many)
            except StoreError as error:
                if matters:
                    raise
                if status.backups is not None:  # the streamer's, up to ten minutes old
                    unseen = replace(status.backups, window_why=str(error))
                    statuses[number] = replace(status, backups=unseen)
                continue
            statuses[number] = with_proofs(
                status, proofs, max_age=max_age, drill_max_age=drill_max_age
            )
        return replace(seen, statuses=tuple(statuses))

    def _proofs_of(self, s3: S3Config, source: str, *, many: bool) -> "Proofs":
        """What backups and drills there are, at most a minute ago."""
        from binlog2s3.archive.catalog import Catalog
        from binlog2s3.archive.layout import Layout
        from binlog2s3.recover.snapshot import Snapshot
        from binlog2s3.retain.window import proofs_of

        now = self._outside.monotonic()
        at, proofs = self._proofs.get(source, (now, None))
        if proofs is None or now - at > _PROOFS_SECONDS:
            catalog = Catalog(self._opened(s3), Layout(s3.prefix, source))
            snapshot = None if many else Snapshot(catalog, self._threads(s3))
            proofs = proofs_of(catalog, snapshot)
            self._proofs[source] = now, proofs
        return proofs

    def _threads(self, s3: S3Config) -> Workers:
        if self._workers is None:
            self._workers = Workers(s3.threads)
        return self._workers

    def _silent(self, why: Unanswered) -> Unanswered:
        spool = self._config.spool
        is_expected = self._config.spool_given and spool.is_dir()
        # without a socket this may be any machine that only reads the bucket
        kind = "expected" if why.kind == "absent" and is_expected else why.kind
        return Unanswered(str(why), kind, spool=spool, host=socket.gethostname())

    def _ask(self) -> Status | Unanswered:
        """The streamer's own status, or why it is not known.

        Raises ConfigError if another streamer answers, and ArchiveError if none does and the
        bucket cannot be read instead.
        """
        config = self._config
        answer = ask(config.spool)
        must = config.look_at == "daemon"
        if isinstance(answer, Status):
            if not (stranger := self._stranger(answer)):
                return answer
            if must or config.spool_given:
                raise ConfigError(
                    [stranger], hint="pass the spool of the streamer that you mean: --spool"
                )
            answer = Unanswered(stranger, "unclear")
        elif must:
            hint = "does it run, and is this its --spool?"
            raise ArchiveError(str(answer), hint=hint, transient=True)
        if config.s3 is None or config.source is None:
            missing = "--s3-url" if config.s3 is None else "--source"
            hint = (
                f"does it run, and is this its --spool? with {missing} the bucket is read instead"
            )
            raise ArchiveError(str(answer), hint=hint, transient=True)
        return answer

    def _stranger(self, status: Status) -> str:
        """Why the streamer that answers is not the one that was asked for; "" if it is."""
        config = self._config
        if config.source is not None and status.source != config.source:
            return f"{config.spool} is the spool of source {status.source}, not {config.source}"
        if config.s3 is not None and status.target != config.s3.url:
            return f"{config.spool} is streamed to {status.target}, not to {config.s3.url}"
        return ""

    def _look_at_one(self, silent: Unanswered | None) -> Observation:
        from binlog2s3.status.from_bucket import look

        config = self._config
        assert config.s3 is not None  # noqa: S101 - `STATUS` or _ask has checked it
        assert config.source is not None  # noqa: S101
        store, where = self._opened(config.s3), config.s3.url
        now = self._outside.now()
        status = look(store, config.s3.prefix, config.source, where, now=now, silent=silent)
        return Observation(statuses=(status,), target=where, why=str(silent or ""))

    def _look_at_all(self) -> Observation:
        from binlog2s3.status.from_bucket import look_all

        config = self._config
        assert config.s3 is not None  # noqa: S101 - `STATUS` has checked it
        store, where = self._opened(config.s3), config.s3.url
        now = self._outside.now()
        prefix, workers = config.s3.prefix, self._threads(config.s3)
        statuses = look_all(store, prefix, where, workers, now=now, expect=self._expected)
        if not statuses:
            raise ArchiveError(
                f"there is nothing below {where}",
                hint="check that --s3-url names the streamer's bucket and prefix, and that it runs",
            )
        return Observation(statuses=tuple(statuses), target=where, many=True)

    def _opened(self, s3: S3Config) -> "S3Store":
        from binlog2s3.archive.evidence import Evidence
        from binlog2s3.store.s3 import RetryPolicy, S3Store

        if self._store is None:
            # a store that hangs must not keep what the streamer has said already from being shown
            settings = replace(for_restoring(s3), read_timeout_seconds=10.0)
            policy = RetryPolicy(attempts=2)
            self._store = S3Store(
                settings,
                stop=self._stop,
                policy=policy,
                session=self._outside.session,
                evidence=Evidence,
            )
        return self._store
