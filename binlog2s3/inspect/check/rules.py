"""Judges a bucket's Object Lock, lifecycle rules and versioning.

Place in the flow: `bucket` asks, this module judges, for `check`.

Law: pure. Objects below `live/` come and go, objects below `archive/` stay: no rule may delete a
current object. If deleted objects stay as old versions, a rule must delete those below `live/`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from binlog2s3.inspect.check.report import Row, fail, ok, warn

SLOW_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
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
    return any(name in one for one in (chosen, chosen.get("And") or {}) for name in sizes)


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
        count = f"{len(rules)} rules" if len(rules) != 1 else "1 rule"
        yield ok("bucket", "lifecycle rules", f"{count}; none deletes current objects")


def _expiring(rules: Sequence[Rule], *, archive: str, live: str) -> Iterator[Row]:
    for rule in rules:
        prefix, expiry = prefix_of(rule), rule.get("Expiration") or {}
        if prefix is None or not (expiry.get("Days") or expiry.get("Date")):
            continue
        when = f"after {expiry['Days']} days" if expiry.get("Days") else f"on {expiry['Date']}"
        said = f"rule {_name(rule)} deletes objects below {prefix!r} {when}"
        if meets(prefix, live):
            hint = f"exclude {live} from it: it has the only durable copy of open binlogs"
            yield fail("bucket", "lifecycle rules", said, hint)
        elif meets(prefix, archive):
            hint = (
                "a recovery from a backup older than the deleted binlogs is refused, and a lineage"
                " without its lineage.json cannot be read; exclude the archive from the rule"
            )
            yield warn("bucket", "lifecycle rules", said, hint)


def _moving(rules: Iterable[Rule], archive: str, live: str) -> Iterator[Row]:
    for rule in rules:
        prefix = prefix_of(rule)
        if prefix is None or not (meets(prefix, archive) or meets(prefix, live)):
            continue
        for move in rule.get("Transitions") or ():
            if move.get("StorageClass") in SLOW_CLASSES:
                said = f"rule {_name(rule)} moves objects to {move['StorageClass']}"
                hint = "a recovery would wait for hours: use GLACIER_IR, which can be read at once"
                yield warn("bucket", "lifecycle rules", said, hint)


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
    if said := ending_rule(rules, live):
        yield ok("bucket", "old versions", said)
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
