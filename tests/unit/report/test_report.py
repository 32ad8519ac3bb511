"""`report`: the page of each golden bucket, as a parser sees it; the file that it is put into."""

import dataclasses
import os
import re
import resource
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from binlog2s3 import __version__
from binlog2s3.archive.backups import Backup
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.report import ReportConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import ConfigError
from binlog2s3.recover.model import Start
from binlog2s3.report.command import MOST_TEXT, render, replace_file
from binlog2s3.report.look import Looked, look_at
from binlog2s3.report.model import Page, page_of
from binlog2s3.retain import backup as listing
from binlog2s3.status.model import Gap, HistoryStatus
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers
from lab import report_page
from tests.golden.buckets import BUCKETS, Golden
from tests.golden.outputs import Called, called

SHOWN = [name for name in BUCKETS if name != "empty"]
VOID = {"meta", "br"}
PARTS = {"html", "head", "body", "meta", "title", "style", "header", "footer", "section", "h1",
         "h2", "h3", "p", "a", "b", "br", "code", "span", "ul", "li", "dl", "dt", "dd", "div",
         "figure", "figcaption", "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
         "svg", "rect", "path", "circle"}  # fmt: skip
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "class", "id", "href", "colspan",
              "data-name", "open", "role", "aria-label", "aria-hidden", "x", "y", "width", "height",
              "overflow", "d", "r", "cx", "cy"}  # fmt: skip
"""None that runs, styles or fetches anything."""
HOSTILE = "\"><script src=//x.y>alert(1)</script><img onerror='x'>&amp;{{ 7*7 }}\x1b[2J\u202e\n"


@dataclass(frozen=True, slots=True)
class Node:
    """An element; `text` is all text in it."""

    tag: str
    attributes: dict[str, str | None]
    children: list["Node"] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    @property
    def kind(self) -> str:
        return self.attributes.get("class") or ""

    def all(self, tag: str = "", kind: str = "") -> Iterator["Node"]:
        """The elements below it with this tag, and this class, in their order."""
        for child in self.children:
            if (not tag or child.tag == tag) and (not kind or kind in child.kind.split()):
                yield child
            yield from child.all(tag, kind)


class Parsed(HTMLParser):
    """A page as a tree. Fails if elements are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open = [Node("", {})]
        self.feed(page)
        self.close()
        assert [node.tag for node in self.open] == [""], "something is not closed"
        self.root = self.open[0]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, dict(attrs))
        assert len(attrs) == len(node.attributes), "an attribute twice"
        self.open[-1].children.append(node)
        if tag not in VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for node in self.open:
            node.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"an instruction: {data}")


def words_of(golden: Golden, *more: str) -> list[str]:
    source = [f"--source={golden.source}"] if golden.source else []
    return ["report", "--s3-url=s3://acme/pre", *source, *more]


@cache
def printed(bucket: str) -> Called:
    golden = BUCKETS[bucket]()
    return called(golden, words_of(golden, "--html=-"))


@cache
def page(bucket: str) -> Node:
    found = printed(bucket)
    assert found.code == 0, found.err
    return Parsed(found.out).root


def looked_at(golden: Golden) -> list[Looked]:
    config = ReportConfig(
        s3=S3Config(bucket="acme", prefix="pre"), source=golden.source or None, html=Path("-")
    )
    with opened(for_restoring(config.s3), session=golden.client.session) as store:
        return look_at(store, config, Workers(2), golden.now)


def test_a_document_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of base backups and drills, however many parts of the page say something of them."""
    golden = BUCKETS["backups-and-drills"]()
    asked = Counter[str]()
    read = golden.client.get_object

    def counted(Key: str, **more: Any) -> Any:  # noqa: N803 - as the SDK calls it
        asked[Key] += 1
        return read(Key, **more)

    monkeypatch.setattr(golden.client, "get_object", counted)
    looked_at(golden)
    documents = [key for key in asked if "/backups/" in key or "/drills/" in key]
    assert len(documents) > 2
    assert {key: asked[key] for key in documents} == dict.fromkeys(documents, 1)


def test_what_a_base_backup_reaches_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the list of base backups and for the recovery window."""
    planned = Counter[str]()
    start = listing.start_of_registered

    def counted(one: Backup, flavour: Flavour) -> Start:
        planned[one.id] += 1
        return start(one, flavour)

    monkeypatch.setattr(listing, "start_of_registered", counted)
    (found,) = looked_at(BUCKETS["backups-and-drills"]())
    assert found.status.backups is not None
    assert found.status.backups.window_known
    assert planned == dict.fromkeys([one.id for one, _ in found.backups], 1)


def model_of(bucket: str) -> Page:
    golden = BUCKETS[bucket]()
    return page_of(looked_at(golden), "s3://acme/pre", now=golden.now)


def track(bucket: str, name: str) -> Node:
    """The track of the first timeline whose name begins so."""
    return next(one for one in page(bucket).all("svg", "track")
                if (one.attributes["aria-label"] or "").startswith(name))  # fmt: skip


def kinds(node: Node) -> list[str]:
    """The bars and marks on a track, but for the rail."""
    return [one.kind for one in node.all() if one.tag in ("rect", "path", "circle")][1:]


# The page


@pytest.mark.parametrize("bucket", SHOWN)
def test_a_page_has_nothing_from_elsewhere(bucket: str) -> None:
    """No script, no font, no picture, no address; and the browser is told to fetch nothing."""
    root = page(bucket)
    nodes = [*root.all()]
    assert {node.tag for node in nodes} <= PARTS
    assert {name for node in nodes for name in node.attributes} <= ATTRIBUTES
    links = {node.attributes["href"] or "" for node in nodes if "href" in node.attributes}
    ids = {f"#{node.attributes['id']}" for node in nodes if "id" in node.attributes}
    assert links <= ids
    (style,) = root.all("style")
    assert not re.search(r"url|import|http|//", style.text)
    said = {node.attributes.get("http-equiv"): node.attributes["content"]
            for node in root.all("meta") if "content" in node.attributes}  # fmt: skip
    policy = said["Content-Security-Policy"] or ""
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


@pytest.mark.parametrize("bucket", SHOWN)
def test_a_page_says_when_and_by_what_it_was_made(bucket: str) -> None:
    """And that it is in both colours, and for a narrow screen."""
    golden, root = BUCKETS[bucket](), page(bucket)
    (header,) = root.all("header")
    assert f"Generated {golden.now:%Y-%m-%dT%H:%M:%SZ} by binlog2s3 {__version__}" in header.text
    assert "prefers-color-scheme: dark" in next(root.all("style")).text
    names = {node.attributes.get("name") for node in root.all("meta")}
    assert {"viewport", "color-scheme"} <= names


@pytest.mark.parametrize("bucket", SHOWN)
def test_what_is_drawn_is_within_the_timeline_and_has_a_colour(bucket: str) -> None:
    """Every bar and mark, from 0 to 100 percent; no bar is too narrow to be seen."""
    root = page(bucket)
    style = next(root.all("style")).text
    for one in [node for svg in root.all("svg", "track") for node in svg.all()]:
        if one.tag in ("rect", "path", "circle"):
            assert re.search(rf"\.{one.kind}\b[^{{}}]*{{[^}}]*fill", style), one.kind
        places = [one.attributes.get(name) or "" for name in ("x", "width")]
        begin, width = (float(text.removesuffix("%")) if text.endswith("%") else 0.0
                        for text in places)  # fmt: skip
        assert 0 <= begin <= begin + width <= 100.001
        assert one.tag != "rect" or width > 0.3


def with_texts(value: Any, text: str) -> Any:
    """The same with another text in place of each one that is not a word of the page's own."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {"kind", "severity", "level"}
        new = {one.name: with_texts(getattr(value, one.name), text)
               for one in dataclasses.fields(value) if one.name not in own}  # fmt: skip
        return dataclasses.replace(value, **new)
    if isinstance(value, tuple):
        return tuple(with_texts(one, text) for one in value)
    return text if isinstance(value, str) and value else value


@pytest.mark.parametrize("bucket", ["backups-and-drills", "gap", "hostile-names", "many-sources"])
def test_no_text_becomes_an_element_or_an_attribute(bucket: str) -> None:
    """Whatever all names, labels, errors and words are: the page has the same elements."""
    model = model_of(bucket)
    plain, hostile = (
        Parsed(render(with_texts(model, text)).decode()).root for text in ("x", HOSTILE)
    )

    def shape(root: Node) -> list[tuple[str, list[str]]]:
        return [(node.tag, [*node.attributes]) for node in root.all()]

    assert shape(hostile) == shape(plain)
    values = [value for node in hostile.all() for name, value in node.attributes.items()
              if name != "aria-label"]  # fmt: skip
    assert not [value for value in values if value and "script" in value]
    text = next(hostile.all("body")).text
    assert {one for one in ("<script src=//x.y>", "{{ 7*7 }}") if one not in text} == set()
    assert {"\x1b", "\u202e"} & {*text} == set()


def test_a_long_text_is_cut() -> None:
    """A GTID set may have millions of characters, and is on the page several times."""
    model = model_of("one-open")
    short = len(render(with_texts(model, "x")))
    long = len(render(with_texts(model, "x" * 100_000)))
    texts = len(re.findall(r">x|\"x\"", render(with_texts(model, "x")).decode()))
    assert long < short + 2 * texts * MOST_TEXT


# What it says is what the commands say


@pytest.mark.parametrize("bucket", SHOWN)
def test_the_page_says_what_status_says(bucket: str) -> None:
    """The judgement, all troubles, and the first and the last moment that can be reached."""
    golden = BUCKETS[bucket]()
    where = ["--s3-url=s3://acme/pre", "--from=bucket", "--json"]
    for section in page(bucket).all("section"):
        if "id" not in section.attributes:
            continue
        (title,) = section.all("h2")
        source, *badge = title.text.split()
        if "is not looked at" in section.text:
            assert source == "stock"
            continue
        said = called(golden, ["status", f"--source={source}", *where]).document()["stdout"]
        assert isinstance(said, dict)
        assert badge == [said["severity"]]
        lists = [*section.all("ul", "troubles")]
        items = [item.text for one in lists for item in one.all("li")]
        assert len(items) == len(said["troubles"])
        for item, trouble in zip(items, said["troubles"], strict=True):
            assert item.startswith(f"{trouble['level']}: {' '.join(trouble['text'].split())}")
        tile = next(one for one in section.all("div", "wide"))
        shown = re.findall(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", next(tile.all("dd")).text)
        first, last = said["backups"]["window_from"], said["covered_until"] or said["latest"]
        if first is None:
            assert not next(tile.all("dd")).text.startswith("from")
        else:
            assert shown == [first[:19], last[:19]]


def test_backups_are_said_to_reach_what_backup_list_says() -> None:
    """Each in its words; with whether it reaches now."""
    golden = BUCKETS["backups-and-drills"]()
    where = [f"--source={golden.source}", "--s3-url=s3://acme/pre", "--json"]
    said = called(golden, ["backup", "list", *where]).document()["stdout"]
    assert isinstance(said, dict)
    table = next(one for one in page("backups-and-drills").all("table") if "taken" in one.text)
    rows = [*next(table.all("tbody")).all("tr")]
    assert len(rows) == len(said["backups"]) > 4
    for row, backup in zip(rows, reversed(said["backups"]), strict=True):
        assert backup["id"] in row.text
        reaches = next(one for one in row.all("td") if one.attributes.get("data-name") == "reaches")
        counts = not backup["defects"]
        assert ("good" in reaches.kind) == (backup["reach"]["complete"] and counts)
        assert (backup["reach"]["why"] or "") in reaches.text or not counts


def test_the_recovery_window_is_where_it_should_be() -> None:
    """Its bar, in percent of the time from the first binlog to now."""
    golden = BUCKETS["backups-and-drills"]()
    (section,) = model_of("backups-and-drills").sections
    whole = section.timelines[0]
    bar = whole.tracks[0].bars[-1]
    first = golden.now.fromisoformat(section.window.first)
    last = golden.now.fromisoformat(section.window.last)
    begin = golden.now.fromisoformat("2026-01-02T03:04:05Z")
    assert bar.kind == "window"
    length = golden.now - begin
    assert bar.begin == pytest.approx(100 * ((first - begin) / length), abs=0.001)
    assert bar.begin + bar.width == pytest.approx(100 * ((last - begin) / length), abs=0.001)


@pytest.mark.parametrize(
    ("bucket", "name", "drawn"),
    [
        ("one-open", "Recovery window", []),
        ("one-open", "Lineage", ["kept"]),
        ("floors", "Lineage", ["pruned", "kept", "floor"]),
        ("fork", "Lineage 20260102T031405Z", ["kept", "join"]),
        ("gap", "Lineage 20260102T030405Z", ["kept"]),
        ("gap", "Lineage 20260102T081405Z", ["kept", "gap", "unknown"]),
        ("unknown-join", "Lineage 20260102T030405Z", ["left"]),
        ("damage", "Lineage 20261121T192829Z", ["kept", "gap", "kept", "join"]),
        ("backups-and-drills", "Base backups", ["backup", "backup", "unusable", "unusable",
                                                "backup", "backup"]),
        ("backups-and-drills", "Drills", ["failed", "proved", "proved"]),
    ],
)  # fmt: skip
def test_what_is_on_the_timeline(bucket: str, name: str, drawn: list[str]) -> None:
    """Lineages, joins, gaps, floors, base backups and drills."""
    assert sorted(kinds(track(bucket, name))) == sorted(drawn)


@pytest.mark.parametrize("bucket", ["damage", "gap", "fork", "lost-end", "floors"])
def test_all_that_list_calls_missing_or_damaged_is_on_the_page(bucket: str) -> None:
    """In its words, and not only where a reader has to unfold it."""
    golden = BUCKETS[bucket]()
    said = called(golden, ["list", f"--source={golden.source}", "--s3-url=s3://acme/pre"])
    alarms = [" ".join(line.split()) for line in said.out.splitlines()
              if line.startswith(("GAP", "DAMAGED"))]  # fmt: skip
    shown = [item.text for item in page(bucket).all("li", "warn")]
    assert [one for one in shown if one.startswith(("GAP", "DAMAGED"))] == alarms
    assert bool(alarms) == (bucket in ("damage", "gap"))


def test_what_was_archived_each_day() -> None:
    """As `list --json` says: so many bytes, binlogs and transactions; not before it began."""
    golden = BUCKETS["forty"]()
    where = [f"--source={golden.source}", "--s3-url=s3://acme/pre", "--json"]
    said = called(golden, ["list", *where]).document()["stdout"]
    assert isinstance(said, dict)
    binlogs = [one for one in said["sources"][0]["lineages"][0]["binlogs"] if one["archived_at"]]
    (section,) = model_of("forty").sections
    counted = {day: [one for one in binlogs if one["archived_at"].startswith(day)]
               for day in ("2026-01-03", "2026-01-02")}  # fmt: skip
    assert [(one.day, int(one.binlogs), int(one.transactions)) for one in section.days] == [
        (day, len(ones), sum(one["transactions"] for one in ones)) for day, ones in counted.items()
    ]
    assert max(one.share for one in section.days) == 100


def test_what_is_not_shown_is_counted() -> None:
    """Of very many lineages, backups and gaps the newest are shown, with how many are not."""
    golden = BUCKETS["backups-and-drills"]()
    (looked,) = looked_at(golden)
    gaps = (Gap(lineage="x", join="gap", text="y"),) * 100
    history = HistoryStatus(lineages=200, gaps=gaps, earliest=looked.status.latest)
    many = dataclasses.replace(
        looked,
        status=dataclasses.replace(looked.status, history=history),
        lineages=[*looked.lineages] * 200,
        backups=[*looked.backups] * 20,
    )
    found = page_of([many], "s3://acme/pre", now=golden.now)
    text = next(Parsed(render(found).decode()).root.all("body")).text
    older = re.findall(r"(\d+) older ones: `binlog2s3 ([a-z -]+)`", text)
    assert set(older) == {("188", "list"), ("140", "list"), ("60", "status --json"),
                          ("60", "backup list")}  # fmt: skip
    assert "only the newest binlogs were looked for" in text


def test_the_page_of_the_documents_has_all_that_they_say(tmp_path: Path) -> None:
    """A gap, joins, base backups and drills; the pictures are of it."""
    report_page.main(tmp_path / "x.html")
    (section, *_) = Parsed((tmp_path / "x.html").read_text()).root.all("section")
    drawn = {one.kind for svg in section.all("svg", "track") for one in svg.all()}
    assert drawn >= {"window", "archive", "kept", "gap", "join", "unknown", "backup", "proved"}
    assert next(next(section.all("div", "wide")).all("dd")).text.startswith("from 2026-10-")


# The command


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 3, "--html is missing"),
        (["--html=-", "--source=orders"], 7, "there is nothing of source orders"),
        (["--html=-"], 7, "there is nothing below"),
        (["--html=/nowhere/x.html"], 3, "there is no directory /nowhere"),
        (["--html=/dev/null"], 3, "/dev/null is there, and no regular file"),
        (["--html=-", "--source=x", "--expect=f"], 3, "contradict each other"),
    ],
)
def test_why_no_page_is_written(words: list[str], code: int, text: str) -> None:
    """With the exit code of its kind, and nothing on standard output."""
    found = called(BUCKETS["empty"](), ["report", "--s3-url=s3://acme/pre", *words])
    assert (found.code, found.out) == (code, "")
    assert text in found.err


def test_the_file_has_what_standard_output_has(tmp_path: Path) -> None:
    """And nothing is printed then."""
    golden, path = BUCKETS["fork"](), tmp_path / "x.html"
    found = called(golden, words_of(golden, f"--html={path}"))
    assert (found.code, found.out, found.err) == (0, "", "")
    assert path.read_text() == printed("fork").out
    assert [*tmp_path.iterdir()] == [path]


def test_a_source_that_must_exist_and_does_not_is_on_the_page(tmp_path: Path) -> None:
    """As for `status --all`; those to be ignored are not judged."""
    expect = tmp_path / "expected"
    expect.write_text("gone\nignore billing\n")
    golden = BUCKETS["many-sources"]()
    found = called(golden, words_of(golden, "--html=-", f"--expect={expect}"))
    assert found.code == 0
    sections = [one for one in Parsed(found.out).root.all("section") if "id" in one.attributes]
    titles = [next(one.all("h2")).text for one in sections]
    assert titles == ["gone critical", "crm critical", "orders ok", "billing", "stock"]
    assert "source gone is expected" in sections[0].text


def test_old_proofs_are_wrong_if_asked_for() -> None:
    """As for `status`: in the words of its --backup-max-age and --drill-max-age."""
    golden = BUCKETS["backups-and-drills"]()
    ages = ["--backup-max-age=2d", "--drill-max-age=7d"]
    found = called(golden, words_of(golden, "--html=-", *ages))
    (troubles,) = Parsed(found.out).root.all("ul", "troubles")
    assert "the newest base backup is" in troubles.text


# The file


def test_a_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    """A web server that could read the last page can read this one."""
    path = tmp_path / "x.html"
    path.write_bytes(b"old")
    path.chmod(0o640)
    replace_file(path, b"new")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o640)


def test_a_new_file_is_as_the_umask_says(tmp_path: Path) -> None:
    """Like those of a shell."""
    before = os.umask(0o027)
    try:
        replace_file(tmp_path / "x.html", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "x.html").stat().st_mode & 0o777 == 0o640


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """The disk takes no more in the middle of it: no part of it stays, under any name."""
    path = tmp_path / "x.html"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"cannot write .*x\.html: file too large"):
            replace_file(path, b"n" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """As root, a device would be gone; and a link may lead to anybody's file."""
    path, other = tmp_path / "x.html", tmp_path / "other"
    other.write_bytes(b"other")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "directory":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(ConfigError, match="no regular file"):
        replace_file(path, b"new")
    assert path.lstat() == before
    assert other.read_bytes() == b"other"
