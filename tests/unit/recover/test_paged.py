"""What pages say is believed about where to look, and about nothing else."""

import json

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.index import Index
from binlog2s3.archive.pages import name_at
from binlog2s3.config.goal import Latest, ToTime
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.recover.snapshot import Snapshot
from tests.documents import ID
from tests.property.test_paged_plan import HISTORY, SPAN, T0, lived, put_pages, without_pages
from tests.snapshots import LAYOUT, Bucket, workers

ALL = (True,) * 5


def snapshot(bucket: Bucket) -> Snapshot:
    return Snapshot(Catalog(bucket, LAYOUT), workers(), span=SPAN)


def steady(count: int) -> Bucket:
    history = lived([[at * 10, at * 10 + 5] for at in range(count)], is_open=False)
    put_pages(history, ALL)
    return history.bucket


def test_a_binlog_that_a_page_says_is_there_is_looked_for() -> None:
    """It is a gap, as without the page, and the page is named."""
    bucket = steady(13)
    name = name_at(HISTORY, 4)
    bucket.delete([LAYOUT.binlog(ID, name), LAYOUT.entry(ID, name)])
    seen = snapshot(bucket)
    with pytest.raises(
        RecoveryError, match=r"binlogs between mysql-bin.000003 and .*5 are missing"
    ):
        make(Request(goal=Latest(), start=Start()), seen)
    assert "mysql-bin.000004" in str(seen.problems[0])
    assert "its page says otherwise" in str(seen.problems[0])


def test_an_entry_wins_over_its_page() -> None:
    """A page with other times leads to the same plan, and is named."""
    bucket = steady(13)
    key = LAYOUT.page(ID, SPAN, SPAN)
    document = json.loads(bucket.get(key))
    for entry in document["entries"]:
        entry["least_commit_us"] = entry["greatest_commit_us"] = T0 - 7
    document["after"]["greatest_commit_us"] = document["before"]["greatest_commit_us"]
    bucket.put(key, json.dumps(document).encode())
    request = Request(goal=ToTime(T0 + 42, "then"), start=Start())
    seen = snapshot(bucket)
    plan = make(request, seen)
    assert plan == make(request, snapshot(without_pages(bucket)))
    assert str(plan.stop) == f"mysql-bin.000005:{plan.stop.offset}"
    assert any("has another entry" in str(one) for one in seen.problems)


def test_little_is_read_for_a_short_way() -> None:
    """The entries on the way, and one page or two, however much comes before and after."""
    history = lived([[at * 10, at * 10 + 5] for at in range(60)], is_open=False)
    put_pages(history, (True,) * 20)
    read: list[str] = []
    history.bucket.on_act = lambda operation, keys, _: read.extend(
        key for key in keys if operation == "get"
    )
    gtids = without_pages(history.bucket).snapshot().known(ID, name_at(HISTORY, 30)).gtids_before
    request = Request(goal=ToTime(T0 + 315, "then"), start=Start(gtids=gtids))
    plan = make(request, snapshot(history.bucket))
    assert [piece.binlog.number for piece in plan.pieces] == [30, 31, 32]
    assert sum("/entries/" in key for key in read) < 20
    assert sum("/pages/" in key for key in read) < 15


def test_times_that_come_again_are_found() -> None:
    """The clock was set back after the goal: the binlogs that have such times again are named."""
    times = [[at * 10] for at in range(6)] + [[25], [60], [70], [35], [80], [90]]
    history = lived(times, is_open=False)
    put_pages(history, ALL)
    index = Index(Catalog(history.bucket, LAYOUT), HISTORY, span=SPAN)
    assert list(index.not_later(T0 + 40, 6)) == [7, 10]
    assert list(index.not_later(T0 + 30, 6)) == [7]
    assert index.first_later(T0 + 40, 1) == 6
    with pytest.raises(RecoveryError, match="is ambiguous"):
        make(Request(goal=ToTime(T0 + 27, "then"), start=Start()), snapshot(history.bucket))
