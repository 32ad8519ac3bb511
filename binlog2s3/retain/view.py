"""What people and programs see of `prune`: what is given up, the question, what was done.

What becomes unreachable is said before it does. Texts from the bucket cannot break lines or control
a terminal.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from binlog2s3.archive.layout import Layout
from binlog2s3.config.prune import PruneConfig
from binlog2s3.formatting import count_text, iso_text, moment_text, size_text
from binlog2s3.output import Field, Plain
from binlog2s3.retain.backup import reach_text
from binlog2s3.retain.choose import Below, Choice, GivenUp, PruneOutcome, Spent
from binlog2s3.retain.leftovers import Leftovers

FORMAT = 1
_ROOM = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletable:
    """What may be deleted now: binlogs, stored backups, what failed runs left, old turns."""

    below: Sequence[Below]
    spent: Sequence[Spent]
    left: Leftovers
    turns: int


def print_choice(config: PruneConfig, choice: Choice, found: Deletable, page: Plain) -> None:
    """Print what is given up, and what can be reached afterwards."""
    page.line(f"{config.source}  prune", "bold")
    page.line("")
    page.fields(_choice_fields(choice, found.below), _ROOM)
    page.fields(_stored_fields(found), _ROOM)
    if found.turns:
        page.field("delete now", count_text(found.turns, "old turn"), _ROOM, "yellow")
    page.line("")


def _stored_fields(found: Deletable) -> Iterator[Field]:
    """Stored backups that no window needs, and what failed runs left."""
    for one in found.spent:
        if one.kept:
            yield "locked", f"{one.name}, {size_text(one.size)}: {one.kept}", ""
        else:
            yield "delete now", f"{one.name}, {size_text(one.size)}", "yellow"
    left = found.left
    if left.uploads:
        what = count_text(len(left.uploads), "unfinished upload")
        yield "delete now", f"{what} of a `backup run` that failed", "yellow"
    if left.objects:
        what = f"{count_text(len(left.objects), 'object')}, {size_text(left.size)}"
        yield "delete now", f"{what}, of a `backup run` that registered nothing", "yellow"
    for key, why in sorted(left.kept.items()):
        yield "stays", f"{key}, of a `backup run` that registered nothing: {why}", ""


def _choice_fields(choice: Choice, below: Sequence[Below]) -> Iterator[Field]:
    if not choice.given_up:
        yield "give up", "nothing: every binlog is needed, or not old enough", "green"
    for one in choice.given_up:
        new = "" if one.is_new else " (given up already)"
        yield "give up", f"{_given_up_text(one)}{new}", "yellow" if one.is_new else ""
    for now in below:
        if now.keys or not now.locked:
            yield "delete now", f"{_below_text(now)} of {now.lineage}", "yellow" if now.keys else ""
        if now.locked:
            yield "locked", _lock_text(now), ""
    for backup in choice.kept:
        since = backup.reach.from_us
        at = f"from {iso_text(since)} on, " if since is not None else ""
        yield "kept", f"{backup.name}: {at}{reach_text(backup.reach)}", "green"
        if backup.name in choice.held:
            yield "", "no newer one replaces it before a drill has proved that one", "yellow"
    for name in choice.ignored:
        yield "not kept", f"{name}: it is no base backup of the whole server", "yellow"
    for backup in choice.unreached:
        why = backup.reach.why.replace(backup.name, "it")
        yield (
            "not kept",
            f"{backup.name}: nothing in the bucket can be applied to it: {why}",
            "yellow",
        )
    for backup in choice.lost:
        since = backup.reach.from_us
        lost = f"{iso_text(since)} and what follows it" if since is not None else "nothing"
        can = "cannot" if since is not None else "can"
        yield "unusable", f"{backup.name}: {lost} {can} be reached from it any more", "bold red"


def _given_up_text(one: GivenUp) -> str:
    what = f"{count_text(one.binlogs, 'binlog')}, {size_text(one.size)}"
    return f"{what} before {one.floor} of {one.lineage.id}"


def _below_text(below: Below) -> str:
    if not below.keys:
        return "nothing"
    return f"{count_text(below.binlogs, 'binlog')}, {size_text(below.size)}"


def _lock_text(below: Below) -> str:
    """What Object Lock keeps, and until when."""
    until = f" until {moment_text(below.locked_until)}" if below.locked_until is not None else ""
    held = f", {below.held} of them with a legal hold" if below.held else ""
    what = f"{count_text(below.locked, 'object')} of {below.lineage}"
    return f"{what}, by Object Lock{until}{held}"


def lifecycle_rule(layout: Layout) -> dict[str, Any]:
    """The lifecycle rule that frees the space of what was deleted in a versioned bucket."""
    return {
        "Rules": [
            {
                "ID": f"binlog2s3-pruned-{layout.source}",
                "Status": "Enabled",
                "Filter": {"Prefix": layout.archive},
                "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
                "Expiration": {"ExpiredObjectDeleteMarker": True},
            }
        ]
    }


def print_outcome(
    config: PruneConfig, outcome: PruneOutcome, is_versioned: bool, page: Plain
) -> None:
    """Print what was done."""
    for lineage, binlog in outcome.floors.items():
        page.line(f"given up: the binlogs before {binlog} of {lineage}", "bold green")
    for below in outcome.deleted:
        if below.keys:
            page.line(f"deleted: {_below_text(below)} of {below.lineage}", "bold green")
        if below.locked:
            page.line(f"kept: {_lock_text(below)}")
    for one in outcome.backups:
        page.line(f"deleted: {one.name}, {size_text(one.size)}", "bold green")
    if outcome.turns:
        page.line(f"deleted: {count_text(outcome.turns, 'old turn')}", "bold green")
    deleted = any(below.keys or below.locked for below in outcome.deleted)
    if outcome.floors and config.grace and not deleted:
        page.line("nothing was deleted yet: a later run deletes it, after --grace")
    if is_versioned and any(below.keys for below in outcome.deleted):
        page.line("")
        page.line(
            "the bucket keeps old versions, so this frees no space by itself; this lifecycle rule "
            "does, after 30 days in which an accident can be undone. Add it to those that the "
            "bucket has:",
            "yellow",
        )
        layout = Layout(config.s3.prefix, config.source)
        for line in json.dumps(lifecycle_rule(layout), indent=1).splitlines():
            page.line(line)


def document(
    config: PruneConfig, choice: Choice, found: Deletable, outcome: PruneOutcome
) -> dict[str, Any]:
    """The JSON document of --json, which docs/reference/prune.md describes."""
    return {
        "format": FORMAT,
        "source": config.source,
        "dry_run": config.dry_run,
        "given_up": [
            {
                "lineage": one.lineage.id,
                "floor": str(one.floor),
                "gtid_set": one.gtid_set,
                "binlogs": one.binlogs,
                "bytes": one.size,
                "new": one.is_new,
            }
            for one in choice.given_up
        ],
        "below": [_below_document(one) for one in found.below],
        "deleted": [_below_document(one) for one in outcome.deleted],
        "spent": [{"id": one.id, "bytes": one.size, "kept": one.kept} for one in found.spent],
        "deleted_backups": [one.id for one in outcome.backups],
        "leftovers": {
            "uploads": len(found.left.uploads),
            "objects": len(found.left.objects),
            "bytes": found.left.size,
            "kept": len(found.left.kept),
        },
        "turns": outcome.turns,
        "kept": [backup.name for backup in choice.kept],
        "lost": [backup.name for backup in choice.lost],
        "ignored": list(choice.ignored),
        "unreached": [backup.name for backup in choice.unreached],
    }


def _below_document(below: Below) -> dict[str, Any]:
    return {
        "lineage": below.lineage,
        "binlogs": below.binlogs,
        "bytes": below.size,
        "objects": len(below.keys),
        "locked": below.locked,
        "held": below.held,
        "locked_until": iso_text(below.locked_until) if below.locked_until is not None else None,
    }
