"""Looking at the bucket for `check`: reaching it, reading it, how it is set up.

Place in the flow: under `preflight_run`, over the store; `preflight_rules` judges the settings,
`preflight_probes` does what writes.

Law: nothing is written here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from binlog2s3.catalog import Layout
from binlog2s3.config import Config
from binlog2s3.errors import StoreError, UnsupportedError
from binlog2s3.preflight import Row, clock_row, failed, ok, skipped, tried, warn
from binlog2s3.preflight_rules import retention_row, rule_rows, versioning_rows
from binlog2s3.store_contract import Store

UNREACHED = "the bucket was not reached"
_READING = ("list live/", "list archive/", "read archive/", "write archive/")
_SETTINGS = ("Object Lock", "lifecycle rules", "versioning")


class Settings(Protocol):
    """What is asked of the bucket itself; `store_settings` keeps it. All raise StoreError."""

    def clock(self, prefix: str) -> datetime | None:
        """The store's clock, in whole seconds; None where it shows none."""

    def versioning(self) -> str:
        """Enabled, Suspended, or nothing."""

    def lifecycle(self) -> Sequence[Mapping[str, Any]]:
        """The lifecycle rules."""

    def default_retention(self) -> str:
        """What Object Lock keeps new objects for, in words."""

    def versions(self, prefix: str) -> list[tuple[str, str]]:
        """Key and version id of what lies or lay below a prefix."""

    def delete_versions(self, versions: Iterable[tuple[str, str]]) -> None:
        """Delete these for good."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The store's first answer: its clock between two times of ours, or why there is none."""

    before: datetime
    after: datetime
    clock: datetime | None
    error: StoreError | None

    @property
    def reached(self) -> bool:
        """Whether the bucket is there: it may have answered, and only said no."""
        return self.error is None or is_denied(self.error)


def is_denied(error: StoreError) -> bool:
    """Whether these credentials may not."""
    return str(error).startswith("access denied")


class BucketCheck:
    """Looks at the bucket, part after part; `target` is the archive's address."""

    def __init__(self, config: Config, store: Store, settings: Settings, target: str) -> None:
        self._config = config
        self._store = store
        self._settings = settings
        self._target = target
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self._heard: Heard | None = None

    def heard(self) -> Heard:
        """The first answer; asked for once."""
        if self._heard is None:
            before, clock, error = datetime.now(UTC), None, None
            try:
                clock = self._settings.clock(self._layout.live)
            except StoreError as failure:
                error = failure
            self._heard = Heard(before, datetime.now(UTC), clock, error)
        return self._heard

    def clock_row(self) -> Row:
        """The store's clock beside ours."""
        heard = self.heard()
        if heard.clock is None:
            why = "it does not show its own" if heard.reached else UNREACHED
            return skipped("clock", "store", why)
        return clock_row("store", heard.before, heard.clock, heard.after, grain_seconds=1.0)

    def reading_rows(self) -> Iterator[Row]:
        """Reaching it, and reading."""
        heard, endpoint = self.heard(), self._config.s3.endpoint_url
        if not heard.reached and heard.error is not None:
            yield failed("store", "reachable", heard.error)
            for name in _READING:
                yield skipped("store", name, UNREACHED)
            return
        yield ok("store", "reachable", f"{self._target}{f' at {endpoint}' if endpoint else ''}")
        live, archive = self._layout.live, self._layout.archive
        yield tried("store", "list live/", lambda: self._listed(live))
        listed = tried("store", "list archive/", lambda: self._listed(archive))
        yield listed
        if listed.result == "ok":
            yield tried("store", "read archive/", self._read_archive)
        else:
            yield skipped("store", "read archive/", "what is there could not be listed")
        why = "nothing is written there; the policy must allow s3:PutObject there as below live/"
        yield skipped("store", "write archive/", why)

    def _listed(self, prefix: str) -> str:
        self._store.check_access(prefix)
        return prefix

    def _read_archive(self) -> str:
        first = next(self._store.list(self._layout.archive), None)
        if first is None:
            return "nothing is there yet"
        self._store.get(first.key, 0, min(1, first.size))
        return first.key

    # How it is set up

    def setting_rows(self) -> Iterator[Row]:
        """Object Lock, lifecycle rules, versioning."""
        if not self.heard().reached:
            for name in _SETTINGS:
                yield skipped("bucket", name, UNREACHED)
            return
        settings, layout = self._settings, self._layout
        yield from _asked("Object Lock", lambda: [retention_row(settings.default_retention())])
        yield from _asked(
            "lifecycle rules",
            lambda: rule_rows(settings.lifecycle(), archive=layout.archive, live=layout.live),
        )
        yield from _asked("versioning", self._versioning)

    def _versioning(self) -> Iterable[Row]:
        status, layout = self._settings.versioning(), self._layout
        return versioning_rows(
            status,
            self._settings.lifecycle() if status else (),
            bucket=self._config.s3.bucket,
            whole_live=layout.live.removesuffix(f"{layout.source}/"),
            live=layout.live,
        )


def _asked(name: str, act: Callable[[], Iterable[Row]]) -> list[Row]:
    """The rows that come of a question; where it may not be asked, that."""
    try:
        return list(act())
    except UnsupportedError:
        return [ok("bucket", name, "the store does not have it")]
    except StoreError as error:
        return [warn("bucket", name, f"could not be looked at: {error}", error.hint)]
