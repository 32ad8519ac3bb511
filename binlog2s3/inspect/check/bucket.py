"""Looks at the bucket for `check`: whether it can be reached and read, and its settings.

Nothing is written here; `probes` does that. Objects below `live/` come and go, objects below
`archive/` stay: no lifecycle rule may delete a current object. If deleted objects stay as old
versions, a rule must delete those below `live/`.
"""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from binlog2s3.archive.layout import Layout
from binlog2s3.config.options import SLOW_STORAGE_CLASSES
from binlog2s3.config.outside import OUTSIDE
from binlog2s3.config.stream import Config
from binlog2s3.errors import ObjectMissingError, StoreError, UnsupportedError
from binlog2s3.formatting import count_text
from binlog2s3.inspect.check.report import Row, clock_row, fail, failed, ok, skipped, tried, warn
from binlog2s3.store.contract import Store
from binlog2s3.store.settings import BucketSettings

UNREACHED = "the bucket was not reached"
_READING = ("list live/", "list archive/", "read archive/")
_NO_RULES = (
    "every deleted chunk stays as an old version: delete old versions below live/ by other means"
)
NO_STORE = "this store cannot be used for an archive"
_SETTINGS = ("Object Lock", "lifecycle rules", "versioning")


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
    """Looks at the bucket, part by part."""

    def __init__(
        self,
        config: Config,
        store: Store,
        settings: BucketSettings,
        *,
        now: Callable[[], datetime] = OUTSIDE.now,
    ) -> None:
        self._config = config
        self._now = now
        self._store = store
        self._settings = settings
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self._first_answer: FirstAnswer | None = None

    def first_answer(self) -> FirstAnswer:
        """The store's first answer; asked for once."""
        if self._first_answer is None:
            before, clock, error = self._now(), None, None
            try:
                clock = self._settings.clock(self._layout.live)
            except StoreError as failure:
                error = failure
            self._first_answer = FirstAnswer(before, self._now(), clock, error)
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
        at = f" at {endpoint}" if endpoint else ""
        yield ok("store", "reachable", f"{self._config.target}{at}")
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
                "store", "read archive/", "it returns an object that does not exist", NO_STORE
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


Rule = Mapping[str, Any]


def prefix_of(rule: Rule) -> str | None:
    """The prefix of an enabled rule; None if it does not apply to our objects.

    Our objects have no tags, so a rule for a tag does not apply.
    """
    if rule.get("Status") != "Enabled":
        return None
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    if chosen.get("Tag") or both.get("Tags"):
        return None
    return str(rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or "")


def _by_size(rule: Rule) -> bool:
    """Whether it skips objects by size: ours have every size."""
    chosen = rule.get("Filter") or {}
    sizes = ("ObjectSizeGreaterThan", "ObjectSizeLessThan")
    return any(
        name in conditions for conditions in (chosen, chosen.get("And") or {}) for name in sizes
    )


def meets(prefix: str, ours: str) -> bool:
    """Whether a key can begin with both."""
    return prefix.startswith(ours) or ours.startswith(prefix)


def retention_row(retention: str) -> Row:
    """Object Lock's default retention. A delete without a version only hides the object."""
    if not retention:
        return ok("bucket", "Object Lock", "no default retention")
    return warn(
        "bucket",
        "Object Lock",
        f"each new object is kept: {retention}; every chunk and heartbeat stays as an old version",
        "streaming works, and the archive is locked; old versions below live/ cost money until "
        "their retention ends, and no rule deletes them earlier: use a short retention, or remove "
        "the default and lock the objects below archive/ one by one",
    )


def rule_rows(rules: Sequence[Rule], *, archive: str, live: str) -> Iterator[Row]:
    """What the rules do to current objects."""
    found = [*_expiring(rules, archive=archive, live=live), *_moving(rules, archive, live)]
    if found:
        yield from found
    else:
        yield ok(
            "bucket",
            "lifecycle rules",
            f"{count_text(len(rules), 'rule')}; none deletes current objects",
        )


def _expiring(rules: Sequence[Rule], *, archive: str, live: str) -> Iterator[Row]:
    for rule in rules:
        prefix, expiry = prefix_of(rule), rule.get("Expiration") or {}
        if prefix is None or not (expiry.get("Days") or expiry.get("Date")):
            continue
        when = f"after {expiry['Days']} days" if expiry.get("Days") else f"on {expiry['Date']}"
        text = f"rule {_name(rule)} deletes objects below {prefix!r} {when}"
        if meets(prefix, live):
            hint = f"exclude {live} from it: it has the only durable copy of open binlogs"
            yield fail("bucket", "lifecycle rules", text, hint)
        elif meets(prefix, archive):
            hint = (
                "a recovery from a backup older than the deleted binlogs is refused, and a lineage"
                " without its lineage.json cannot be read; exclude the archive from the rule"
            )
            yield warn("bucket", "lifecycle rules", text, hint)


def _moving(rules: Iterable[Rule], archive: str, live: str) -> Iterator[Row]:
    for rule in rules:
        prefix = prefix_of(rule)
        if prefix is None or not (meets(prefix, archive) or meets(prefix, live)):
            continue
        for move in rule.get("Transitions") or ():
            if move.get("StorageClass") in SLOW_STORAGE_CLASSES:
                text = f"rule {_name(rule)} moves objects to {move['StorageClass']}"
                hint = "a recovery would wait for hours: use GLACIER_IR, which can be read at once"
                yield warn("bucket", "lifecycle rules", text, hint)


def versioning_rows(
    status: str, rules: Sequence[Rule], *, bucket: str, whole_live: str, live: str
) -> Iterator[Row]:
    """Versioning, and the one rule that it makes necessary.

    The rule is for `whole_live`, the prefix of `live/` of all sources; `live` is this source's.
    """
    if not status:
        yield ok("bucket", "versioning", "off")
        return
    yield ok("bucket", "versioning", status)
    if text := ending_rule(rules, live):
        yield ok("bucket", "old versions", text)
        return
    whole = {"Rules": [*(dict(rule) for rule in rules), wanted_rule(whole_live)]}
    yield warn(
        "bucket",
        "old versions",
        f"no rule deletes old versions below {whole_live}: deleted chunks stay and cost money",
        f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket} --lifecycle-configuration "
        "file://rules.json, which replaces all rules: it has the present ones and the new one",
        paste=json.dumps(whole, indent=1, default=_plain),
    )


def ending_rule(rules: Iterable[Rule], live: str) -> str:
    """The rule that deletes all old versions below `live`, in words; "" if there is none."""
    for rule in rules:
        prefix, ending = prefix_of(rule), rule.get("NoncurrentVersionExpiration") or {}
        days = ending.get("NoncurrentDays")
        if prefix is None or not days or ending.get("NewerNoncurrentVersions") or _by_size(rule):
            continue
        if live.startswith(prefix):
            return f"rule {_name(rule)} deletes old versions below {prefix!r} after {days} days"
    return ""


def wanted_rule(whole_live: str) -> dict[str, Any]:
    """A rule that deletes old versions and unfinished uploads of `live/` on a versioned bucket."""
    return {
        "ID": "binlog2s3-live",
        "Status": "Enabled",
        "Filter": {"Prefix": whole_live},
        "Expiration": {"ExpiredObjectDeleteMarker": True},
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }


def _name(rule: Rule) -> str:
    return repr(str(rule.get("ID") or "without an ID"))


def _plain(value: object) -> str:
    """A date in the form that the AWS CLI takes."""
    iso = getattr(value, "isoformat", None)
    return str(iso()) if iso else str(value)
