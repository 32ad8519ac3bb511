"""What people and programs see of `prune`: what is given up, the question, what was done.

What becomes unreachable is said before it does. Texts from the bucket cannot break lines or control
a terminal.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any

from binlog2s3.archive.codec import Many, Named, Printed, PrintedDocument, When, of
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.prune import PruneConfig
from binlog2s3.formatting import count_text, iso_text, moment_text, size_text
from binlog2s3.output import Field, Plain
from binlog2s3.retain.backup import reach_text
from binlog2s3.retain.choose import Below, Choice, GivenUp, PruneOutcome, Spent
from binlog2s3.retain.leftovers import Leftovers

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
    for backup in found.spent:
        if backup.kept:
            yield "locked", f"{backup.name}, {size_text(backup.size)}: {backup.kept}", ""
        else:
            yield "delete now", f"{backup.name}, {size_text(backup.size)}", "yellow"
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
    for given in choice.given_up:
        new = "" if given.is_new else " (given up already)"
        yield "give up", f"{_given_up_text(given)}{new}", "yellow" if given.is_new else ""
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


def _given_up_text(given: GivenUp) -> str:
    what = f"{count_text(given.binlogs, 'binlog')}, {size_text(given.size)}"
    return f"{what} before {given.floor} of {given.lineage.id}"


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
    for backup in outcome.backups:
        page.line(f"deleted: {backup.name}, {size_text(backup.size)}", "bold green")
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


class PrintedGivenUp(Printed):
    lineage: str = of("lineage.id")
    floor: BinlogName
    gtid_set: str
    binlogs: int
    bytes: int = of("size")
    new: bool = of("is_new")


class PrintedBelow(Printed):
    lineage: str
    binlogs: int
    bytes: int = of("size")
    objects: Many = of("keys")
    locked: int
    held: int
    locked_until: When | None


class PrintedSpent(Printed):
    id: str
    bytes: int = of("size")
    kept: str


class PrintedLeftovers(Printed):
    uploads: Many
    objects: Many
    bytes: int = of("size")
    kept: Many


class PrintedPrune(PrintedDocument):
    source: str = of("config.source")
    dry_run: bool = of("config.dry_run")
    given_up: tuple[PrintedGivenUp, ...] = of("choice.given_up")
    below: tuple[PrintedBelow, ...] = of("found.below")
    deleted: tuple[PrintedBelow, ...] = of("outcome.deleted")
    spent: tuple[PrintedSpent, ...] = of("found.spent")
    deleted_backups: tuple[Annotated[str, attrgetter("id")], ...] = of("outcome.backups")
    leftovers: PrintedLeftovers = of("found.left")
    turns: int = of("outcome.turns")
    kept: tuple[Named, ...] = of("choice.kept")
    lost: tuple[Named, ...] = of("choice.lost")
    ignored: tuple[str, ...] = of("choice.ignored")
    unreached: tuple[Named, ...] = of("choice.unreached")
