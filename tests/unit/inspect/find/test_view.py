"""What is shown of a search: to people, to programs, and the command that goes back."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from binlog2s3.archive.facts import Facts
from binlog2s3.binlog.content import AlterName, Change, Content, TwoPhase, Xid
from binlog2s3.binlog.events import Phase
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.match import (
    Criteria,
    FoundPhase,
    Hit,
    Match,
    PhaseLink,
    SearchQuery,
    SearchStats,
    Tables,
)
from binlog2s3.inspect.find.view import (
    GtidOutput,
    JsonOutput,
    SearchContext,
    TextOutput,
    before_words,
    undo_words,
    words_of,
)
from binlog2s3.output import Plain
from binlog2s3.progress import ProgressDisplay
from tests.unit.test_docs import page

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
LINEAGE = "20260102T030405Z-3e11fa47-a1b2"
SECOND = 1_000_000
NOW_US = 1_767_366_000_123_456  # 2026-01-02T15:00:00.123456Z
DROP = Change(kind="ddl", table="shop.orders")
HIT = Hit(
    lineage=LINEAGE,
    binlog=BinlogName.parse("mysql-bin.000042"),
    transaction=Transaction(
        begin=1234,
        end=1400,
        gtid=f"{UUID}:48213",
        commit_us=NOW_US,
        commit_exact=True,
        original_commit_us=NOW_US,
    ),
    content=Content(changes=(DROP,), statements=("DROP TABLE `orders`\n/* by hand */",)),
    match=Match(found=True, matched=(DROP,)),
)
ANONYMOUS = replace(
    HIT,
    transaction=replace(
        HIT.transaction, gtid=None, commit_us=NOW_US - 123_456, commit_exact=False,
        original_commit_us=None,
    ),
    content=Content(
        changes=(
            Change(kind="update", table="", rows=None),
            Change(kind="insert", table="shop.a", rows=1),
        )
    ),
    match=Match(found=True, certain=False),
)  # fmt: skip
SOUGHT = SearchQuery(
    wanted=Criteria(tables=Tables((("shop", "orders"),)), kinds=frozenset({"ddl"}))
)
ABOUT = SearchContext(source="orders-primary", archive="s3://acme/prod", tip=LINEAGE)
TALLY = SearchStats(binlogs=3, size=5 << 20, left_out=39, of_size=10 << 20, lineages=(LINEAGE,))


def printed(*hits: Hit, query: SearchQuery = SOUGHT, warnings: tuple[str, ...] = ()) -> list[str]:
    out = StringIO()
    view = TextOutput(Plain(out), ABOUT, query)
    view.begin()
    for hit in hits:
        view.hit(hit)
    view.end(TALLY, warnings)
    return out.getvalue().splitlines()


def document(
    *hits: Hit, query: SearchQuery = SOUGHT, context: SearchContext = ABOUT
) -> dict[str, Any]:
    out = StringIO()
    view = JsonOutput(out, context, query)
    view.begin()
    for hit in hits:
        view.hit(hit)
    view.end(TALLY, ("lost: x",))
    found = json.loads(out.getvalue())
    assert isinstance(found, dict)
    return found


def test_what_is_uncertain_is_marked() -> None:
    """And a time in whole seconds has no more digits."""
    lines = printed(ANONYMOUS)
    assert lines[2:5] == [
        "2026-01-02T15:00:00Z  no GTID  mysql-bin.000042:1234",
        "    not certain: what it does is not fully known",
        "    update, insert shop.a (1 row)",
    ]


XID, ALTER = Xid(1, b"a", b""), AlterName(0, 5)
OTHER = f"{UUID}:9"


@pytest.mark.parametrize(
    ("name", "phase", "state", "other", "words"),
    [
        (XID, "prepare", "committed", OTHER, f"prepared, and committed by {OTHER} at 2026"),
        (XID, "prepare", "rolled back", OTHER, f"prepared, and rolled back by {OTHER} at 2026"),
        (XID, "prepare", "prepared", "", "prepared: neither its XA COMMIT nor its XA ROLLBACK was"),
        (XID, "commit", "committed", OTHER, f"commits what {OTHER} at 2026"),
        (XID, "commit", "committed", "", "commits a transaction whose XA PREPARE was not found"),
        (XID, "rollback", "rolled back", OTHER, f"rolls back what {OTHER} at 2026"),
        (ALTER, "prepare", "committed", "0-1-9", "begins an ALTER, committed by 0-1-9 at 2026"),
        (ALTER, "prepare", "rolled back", "0-1-9", "begins an ALTER, rolled back by 0-1-9 at 2026"),
        (ALTER, "prepare", "prepared", "", "begins an ALTER whose COMMIT or ROLLBACK was not"),
        (ALTER, "commit", "committed", "0-1-5", "commits the ALTER that 0-1-5 at 2026"),
        (ALTER, "commit", "committed", "", "commits the ALTER that the GTID 0-...-5 began"),
        (ALTER, "rollback", "rolled back", "0-1-5", "rolls back the ALTER that 0-1-5 at 2026"),
    ],
)
def test_what_became_of_the_phases(
    name: Xid | AlterName,
    phase: Phase,
    state: Literal["prepared", "committed", "rolled back"],
    other: str,
    words: str,
) -> None:
    """Each with the other one, in a field of its own; an XA COMMIT has no changes to be named."""
    two_phase = TwoPhase(phase, name)
    known = cast("Facts", SimpleNamespace(name=HIT.binlog))
    at = replace(HIT.transaction, gtid=other)
    link = PhaseLink(two_phase, state, FoundPhase(known, at, two_phase) if other else None)
    match = Match(found=True, certain=bool(other) and state == "committed")
    hit = replace(HIT, content=Content(two_phase=two_phase), match=match, link=link)
    lines = printed(hit)
    assert lines[3].strip().startswith(words)
    if name is XID:
        assert ("    no changes" in lines) == (phase != "commit" or bool(other))
    field, none = ("xa", "alter") if name is XID else ("alter", "xa")
    found = document(hit)["transactions"][0]
    assert found[none] is None
    said = found[field]
    assert (said["phase"], said["state"], said["gtid"]) == (phase, state, other or None)
    (row,) = (row for row in page("find").splitlines() if row.startswith(f"| `{field}` |"))
    assert all(f"`{key}`" in row for key in said)


def test_the_command_reaches_the_same_bucket() -> None:
    """With the words that were given, quoted for a shell; the lineage where that is needed."""
    context = replace(ABOUT, given=("--config", "/etc/my file.toml", "--source", "a"))
    gtid = ["--before-gtid", f"{UUID}:48213"]
    own = ["binlog2s3", "pitr", *context.given]
    assert before_words("pitr", HIT, context, SOUGHT) == [*own, *gtid]
    assert shlex.split(shlex.join(before_words("pitr", HIT, context, SOUGHT))) == [*own, *gtid]
    chosen = replace(SOUGHT, lineage="x")
    assert before_words("pitr", HIT, context, chosen) == [*own, "--lineage", "x", *gtid]
    everywhere = replace(SOUGHT, everywhere=True)
    assert before_words("pitr", HIT, context, everywhere) == [*own, *gtid]
    dead = replace(HIT, lineage="dead")
    assert before_words("pitr", dead, context, everywhere) == [*own, "--lineage", "dead", *gtid]
    place = ["--to-position", "mysql-bin.000042:1234"]
    assert before_words("pitr", ANONYMOUS, context, SOUGHT) == [*own, *place]
    several = replace(context, several=True)
    assert before_words("pitr", ANONYMOUS, several, SOUGHT) == [*own, "--lineage", LINEAGE, *place]
    assert before_words("pitr", HIT, several, SOUGHT) == [*own, *gtid]
    mariadb = replace(HIT, transaction=replace(HIT.transaction, gtid="0-7-3"))
    assert before_words("pitr", mariadb, several, SOUGHT) == [*own, "--lineage", LINEAGE, *place]


ROWS = replace(HIT, content=Content(changes=(Change(kind="delete", table="shop.a", rows=3),)))


def test_rows_can_be_undone_and_nothing_else() -> None:
    """On the live server, so not what is in the past of another one."""
    given = replace(ABOUT, given=("--config", "/etc/my file.toml"))
    own = ["binlog2s3", "undo", *given.given]
    assert undo_words(ROWS, given, SOUGHT) == [*own, "--gtid", f"{UUID}:48213"]
    nameless = replace(ROWS, transaction=replace(ROWS.transaction, gtid=None))
    assert undo_words(nameless, given, SOUGHT) == [*own, "--at", "mysql-bin.000042:1234"]
    everywhere = replace(SOUGHT, everywhere=True)
    assert undo_words(ROWS, given, everywhere)
    assert not undo_words(replace(ROWS, lineage="dead"), given, everywhere)
    assert not undo_words(ROWS, given, replace(SOUGHT, lineage="x"))
    phase = replace(ROWS.content, two_phase=TwoPhase("prepare", XID))
    for hit in (HIT, ANONYMOUS, replace(HIT, content=Content()), replace(ROWS, content=phase)):
        assert not undo_words(hit, given, SOUGHT)


def test_what_may_not_be_in_the_bucket_yet_is_said() -> None:
    """Where the time that is asked for goes on behind what is there."""
    stats = replace(TALLY, covered_us=1_767_366_000_000_000)
    words = "the bucket has everything committed until 2026-01-02T15:00:00.000000Z"
    for until_us, is_said in ((None, True), (NOW_US, True), (NOW_US - SECOND, False)):
        out = StringIO()
        view = TextOutput(Plain(out), ABOUT, replace(SOUGHT, until_us=until_us))
        view.end(stats, ())
        assert (words in out.getvalue()) == is_said


def test_progress_is_told_now_and_then() -> None:
    """Where there is no terminal: a line each ten seconds, with the rate."""
    out, now = StringIO(), [0.0]
    with ProgressDisplay(out, clock=lambda: now[0]) as display:
        for now[0] in (1.0, 9.0, 10.0, 11.0, 20.5):
            display.show(lambda: words_of(TALLY, 0, display.seconds), TALLY.size, TALLY.of_size)
    lines = out.getvalue().splitlines()
    assert lines == [
        "progress: 5.0 MiB of 10.0 MiB, 0 found, 512 KiB/s",
        "progress: 5.0 MiB of 10.0 MiB, 0 found, 250 KiB/s",
    ]
    assert words_of(TALLY, 3, 0.1) == "5.0 MiB of 10.0 MiB, 3 found"


def gtids(*hits: Hit, stats: SearchStats = TALLY, warnings: Sequence[str] = ()) -> str:
    out = StringIO()
    view = GtidOutput(out, SOUGHT)
    view.begin()
    for hit in hits:
        view.hit(hit)
    view.end(stats, warnings)
    return out.getvalue()


def test_a_script_never_gets_what_may_be_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Not certain, or the newest of what could be read; that the streamer is silent is said."""
    silent = replace(TALLY, streamer="the streamer last reported at noon", is_silent=True)
    assert gtids(HIT, stats=silent) == f"{UUID}:48213\n"
    assert capsys.readouterr().err == "warning: the streamer last reported at noon\n"
    assert gtids(HIT, warnings=["earlier history is not searched"]) == f"{UUID}:48213\n"
    with pytest.raises(ArchiveError, match=f"^{UUID}:48213: not certain"):
        gtids(replace(HIT, match=Match(found=True, certain=False)))
    with pytest.raises(ArchiveError, match="the newest one may be another"):
        gtids(HIT, stats=replace(TALLY, ended_early=True), warnings=["not searched: b.000009"])
    assert capsys.readouterr().err == ""


def test_a_script_never_gets_an_empty_word() -> None:
    """Nothing found, or no GTID: an error, and not `--before-gtid ""`."""
    with pytest.raises(ArchiveError, match="no such transaction was found"):
        gtids()
    with pytest.raises(ArchiveError, match=r"mysql-bin.000042:1234 has no GTID") as caught:
        gtids(ANONYMOUS)
    assert caught.value.hint == "--to-position mysql-bin.000042:1234 of `pitr` is just before it"
