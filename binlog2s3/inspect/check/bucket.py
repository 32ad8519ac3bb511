"""Looks at the bucket for `check`: whether it can be reached and read, and its settings.

Place in the flow: under `command`, over the store; `rules` judges the settings, the probes do what
writes.

Law: nothing is written here.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from binlog2s3.archive.layout import Layout
from binlog2s3.config.values import Config
from binlog2s3.errors import ObjectMissingError, StoreError, UnsupportedError
from binlog2s3.inspect.check.report import Row, clock_row, fail, failed, ok, skipped, tried, warn
from binlog2s3.inspect.check.rules import retention_row, rule_rows, versioning_rows
from binlog2s3.store.contract import Store

UNREACHED = "the bucket was not reached"
_READING = ("list live/", "list archive/", "read archive/")
_NO_RULES = (
    "every deleted chunk stays as an old version: delete old versions below live/ by other means"
)
_NO_STORE = "this store cannot be used for an archive"
_SETTINGS = ("Object Lock", "lifecycle rules", "versioning")


class Settings(Protocol):
    """Questions about the bucket itself, as `store.settings` answers them. All raise StoreError."""

    def clock(self, prefix: str) -> datetime | None:
        """The store's clock, in whole seconds; None if it does not show one."""

    def versioning(self) -> str:
        """Enabled, Suspended, or ""."""

    def lifecycle(self) -> Sequence[Mapping[str, Any]]:
        """The lifecycle rules."""

    def default_retention(self) -> str:
        """The default retention of Object Lock, in words."""

    def versions(self, prefix: str) -> list[tuple[str, str]]:
        """Key and version id of every object version below a prefix."""

    def delete_versions(self, versions: Iterable[tuple[str, str]]) -> None:
        """Delete these versions permanently."""


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    """The store's first answer: its clock, read between two times of ours, or the error."""

    before: datetime
    after: datetime
    clock: datetime | None
    error: StoreError | None

    @property
    def reached(self) -> bool:
        """Whether the bucket was reached; it may have denied access."""
        return self.error is None or is_denied(self.error)


def is_denied(error: StoreError) -> bool:
    """Whether the store denied access to these credentials."""
    return str(error).startswith("access denied")


def permission(hint: str, bucket: str, keys: str) -> str:
    """A denial's hint with the resources that a policy must name.

    Actions on objects are for everything below the prefix `keys`, the others for the bucket itself.
    """
    found = re.match(r"allow (s3:\S+(?: and s3:\S+)*) on it(?= )", hint)
    if found is None:
        return hint
    whole = f"arn:aws:s3:::{bucket}"
    wanted = [
        f"{action} on {whole if _OF_BUCKET.match(action) else f'{whole}/{keys}*'}"
        for action in found[1].split(" and ")
    ]
    return f"allow {' and '.join(wanted)}{hint[found.end() :]}"


_OF_BUCKET = re.compile("s3:((List|Get)Bucket|GetLifecycleConfiguration)")


def tried_there(name: str, bucket: str, keys: str, act: Callable[[], Row | str]) -> Row:
    """The row of a request about `keys`; if access is denied, the hint says what to allow."""
    row = tried("store", name, act)
    return replace(row, hint=permission(row.hint, bucket, keys)) if row.result == "fail" else row


class BucketCheck:
    """Looks at the bucket, part by part; `target` is the archive's address."""

    def __init__(self, config: Config, store: Store, settings: Settings, target: str) -> None:
        self._config = config
        self._store = store
        self._settings = settings
        self._target = target
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self._first_answer: FirstAnswer | None = None

    def first_answer(self) -> FirstAnswer:
        """The store's first answer; asked for once."""
        if self._first_answer is None:
            before, clock, error = datetime.now(UTC), None, None
            try:
                clock = self._settings.clock(self._layout.live)
            except StoreError as failure:
                error = failure
            self._first_answer = FirstAnswer(before, datetime.now(UTC), clock, error)
        return self._first_answer

    def clock_row(self) -> Row:
        """The store's clock compared with ours."""
        first_answer = self.first_answer()
        if first_answer.clock is None:
            why = "the store does not show its clock" if first_answer.reached else UNREACHED
            return skipped("clock", "store", why)
        return clock_row(
            "store", first_answer.before, first_answer.clock, first_answer.after, grain_seconds=1.0
        )

    def reading_rows(self) -> Iterator[Row]:
        """Whether the bucket can be reached and read."""
        first_answer, endpoint = self.first_answer(), self._config.s3.endpoint_url
        if not first_answer.reached and first_answer.error is not None:
            yield failed("store", "reachable", first_answer.error)
            for name in _READING:
                yield skipped("store", name, UNREACHED)
            return
        yield ok("store", "reachable", f"{self._target}{f' at {endpoint}' if endpoint else ''}")
        live, archive = self._layout.live, self._layout.archive
        yield self._tried("list live/", live, lambda: self._listed(live))
        listed = self._tried("list archive/", archive, lambda: self._listed(archive))
        yield listed
        if listed.result == "ok":
            yield self._tried("read archive/", archive, self._read_archive)
        else:
            yield skipped("store", "read archive/", "archive/ could not be listed")

    def _tried(self, name: str, keys: str, act: Callable[[], Row | str]) -> Row:
        return tried_there(name, self._config.s3.bucket, keys, act)

    def _listed(self, prefix: str) -> str:
        self._store.check_access(prefix)
        return prefix

    def _read_archive(self) -> Row | str:
        """Read an object, if there is one, and absent keys of each kind, as the streamer does.

        S3 answers "not found" for an absent key only if the credentials may both read it and list
        the bucket. Otherwise it denies access.
        """
        first = next(self._store.list(self._layout.archive), None)
        if first is not None:
            self._store.get(first.key, 0, min(1, first.size))
        for key in self._layout.probe_objects(secrets.token_hex(4)).values():
            try:
                self._store.get(key)
            except ObjectMissingError:
                continue
            except StoreError as error:
                if not is_denied(error):
                    raise
                hint = (
                    f"{error.hint}, and s3:ListBucket without a condition on s3:prefix: otherwise "
                    "S3 denies access to objects that do not exist"
                )
                return fail("store", "read archive/", str(error), hint)
            return fail(
                "store", "read archive/", "it returns an object that does not exist", _NO_STORE
            )
        return "allowed; archive/ is empty" if first is None else first.key

    # The bucket's settings

    def setting_rows(self) -> Iterator[Row]:
        """Object Lock, lifecycle rules, versioning."""
        if not self.first_answer().reached:
            for name in _SETTINGS:
                yield skipped("bucket", name, UNREACHED)
            return
        settings, layout = self._settings, self._layout
        yield from self._asked("Object Lock", lambda: [retention_row(settings.default_retention())])
        yield from self._asked(
            "lifecycle rules",
            lambda: rule_rows(settings.lifecycle(), archive=layout.archive, live=layout.live),
        )
        yield from self._asked("versioning", self._versioning)

    def _versioning(self) -> Iterable[Row]:
        status, layout = self._settings.versioning(), self._layout
        try:
            rules = self._settings.lifecycle() if status else ()
        except StoreError as error:
            hint = permission(error.hint, self._config.s3.bucket, layout.live) or _NO_RULES
            unseen = f"the lifecycle rules could not be read: {error}"
            return [
                ok("bucket", "versioning", status),
                warn("bucket", "old versions", unseen, hint),
            ]
        return versioning_rows(
            status,
            rules,
            bucket=self._config.s3.bucket,
            whole_live=layout.live.removesuffix(f"{layout.source}/"),
            live=layout.live,
        )

    def _asked(self, name: str, act: Callable[[], Iterable[Row]]) -> list[Row]:
        """The rows of a question; if it cannot be asked, a row that says so."""
        try:
            return list(act())
        except UnsupportedError:
            return [ok("bucket", name, "not supported by the store")]
        except StoreError as error:
            hint = permission(error.hint, self._config.s3.bucket, self._layout.live)
            return [warn("bucket", name, f"could not be read: {error}", hint)]
