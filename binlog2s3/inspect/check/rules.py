"""A bucket's versioning and lifecycle rules, judged against what a streamer does there.

Place in the flow: `bucket` asks, this judges, for `check`.

Law: pure. Under `live/` objects come and go, under `archive/` they stay: no rule may delete what is
current, and where deleted objects stay as old versions, one rule must end those of `live/`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from binlog2s3.inspect.check.report import Row, fail, ok, warn

SLOW_CLASSES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
Rule = Mapping[str, Any]


def prefix_of(rule: Rule) -> str | None:
    """The keys that an enabled rule is about; None where it is not about ours.

    Ours have no tags: a rule for some tag is not about them.
    """
    if rule.get("Status") != "Enabled":
        return None
    chosen = rule.get("Filter") or {}
    both = chosen.get("And") or {}
    if chosen.get("Tag") or both.get("Tags"):
        return None
    return str(rule.get("Prefix") or chosen.get("Prefix") or both.get("Prefix") or "")


def _by_size(rule: Rule) -> bool:
    """Whether it leaves out objects for their size: ours have every size."""
    chosen = rule.get("Filter") or {}
    sizes = ("ObjectSizeGreaterThan", "ObjectSizeLessThan")
    return any(name in one for one in (chosen, chosen.get("And") or {}) for name in sizes)


def meets(prefix: str, ours: str) -> bool:
    """Whether some key can begin with both."""
    return prefix.startswith(ours) or ours.startswith(prefix)


def retention_row(retention: str) -> Row:
    """Object Lock that keeps every new object. A delete without a version only hides it."""
    if not retention:
        return ok("bucket", "Object Lock", "no default retention")
    return warn(
        "bucket",
        "Object Lock",
        f"each new object is kept: {retention}; so is every chunk and heartbeat, as an old version",
        "a stream works there, and the archive is locked; the versions below live/ are paid for "
        "until their retention ends, and no rule ends them sooner: keep it short, or take the "
        "default away and lock the objects below archive/ one by one",
    )


def rule_rows(rules: Sequence[Rule], *, archive: str, live: str) -> Iterator[Row]:
    """What the rules do to what is current."""
    found = [*_expiring(rules, archive=archive, live=live), *_moving(rules, archive, live)]
    if found:
        yield from found
    else:
        count = f"{len(rules)} rules" if len(rules) != 1 else "1 rule"
        yield ok("bucket", "lifecycle rules", f"{count}; none deletes what is current")


def _expiring(rules: Sequence[Rule], *, archive: str, live: str) -> Iterator[Row]:
    for rule in rules:
        prefix, expiry = prefix_of(rule), rule.get("Expiration") or {}
        if prefix is None or not (expiry.get("Days") or expiry.get("Date")):
            continue
        when = f"after {expiry['Days']} days" if expiry.get("Days") else f"on {expiry['Date']}"
        said = f"rule {_name(rule)} deletes what begins with {prefix!r} {when}"
        if meets(prefix, live):
            hint = f"except {live} from it: what is there is the only durable copy of open binlogs"
            yield fail("bucket", "lifecycle rules", said, hint)
        elif meets(prefix, archive):
            hint = (
                "the archive ends with what it deletes: a recovery from an older backup is refused,"
                " and a lineage whose lineage.json is gone cannot be read; except the archive"
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
                hint = "a recovery would wait for hours: GLACIER_IR is cheap, and read at once"
                yield warn("bucket", "lifecycle rules", said, hint)


def versioning_rows(
    status: str, rules: Sequence[Rule], *, bucket: str, whole_live: str, live: str
) -> Iterator[Row]:
    """Versioning, and the one rule that it makes necessary.

    `whole_live` is the prefix of `live/` of all sources, for which the rule is; `live` is ours.
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
        f"no rule ends old versions below {whole_live}: every chunk that was deleted stays, paid",
        f"aws s3api put-bucket-lifecycle-configuration --bucket {bucket} --lifecycle-configuration "
        "file://rules.json, which replaces all rules: these are the present ones and the new one",
        paste=json.dumps(whole, indent=1, default=_plain),
    )


def ending_rule(rules: Iterable[Rule], live: str) -> str:
    """The rule that ends old versions of all below `live`, in words; "" if there is none."""
    for rule in rules:
        prefix, ending = prefix_of(rule), rule.get("NoncurrentVersionExpiration") or {}
        days = ending.get("NoncurrentDays")
        if prefix is None or not days or ending.get("NewerNoncurrentVersions") or _by_size(rule):
            continue
        if live.startswith(prefix):
            return f"rule {_name(rule)} ends old versions below {prefix!r} after {days} days"
    return ""


def wanted_rule(whole_live: str) -> dict[str, Any]:
    """What ends deleted objects of `live/` on a versioned bucket, and uploads left there."""
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
    """A date, as the AWS CLI takes it."""
    iso = getattr(value, "isoformat", None)
    return str(iso()) if iso else str(value)
