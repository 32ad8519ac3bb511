"""The spool: locked, made durable, and never emptied of what the archive lacks."""

import json
import os
import shutil
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.stream import SpoolLimits
from binlog2s3.errors import SourceError, SpoolError
from binlog2s3.stream.spool import Room, Spool, SpoolRun, default_min_free, room_of
from tests.binlog_writer import BinlogWriter
from tests.unit.stream.builders import RUN, spool_in

FACTS = replace(RUN, lineage="L")
ONE, TWO = BinlogName.parse("b.000001"), BinlogName.parse("b.000002")


def test_it_is_made_for_its_user_alone(spool: Spool) -> None:
    """Binlogs hold the data of the database."""
    assert spool.directory.stat().st_mode & 0o777 == 0o700
    assert spool.begin(FACTS).directory.stat().st_mode & 0o777 == 0o700
    assert spool.runs()[0].facts == FACTS


def test_one_streamer_holds_it(spool: Spool) -> None:
    """A second one is told which process has it, until that one lets go."""
    with pytest.raises(SpoolError, match=rf"in use by another streamer \(process {os.getpid()}\)"):
        spool_in(spool.directory)
    spool.close()
    again = spool_in(spool.directory)
    again.close()
    again._lock = spool._lock = os.open(spool.directory, os.O_RDONLY)  # for the fixture's close


def test_a_lock_file_that_is_left_holds_nothing(tmp_path: Path) -> None:
    """The lock ends with its process, not with the file."""
    (tmp_path / "lock").write_text("999999999999999\n")
    spool_in(tmp_path).close()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_spool_that_cannot_be_made(tmp_path: Path) -> None:
    """The path and the reason are in the message, what to do in the hint."""
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="file/spool: not a directory") as caught:
        spool_in(tmp_path / "file" / "spool")
    assert caught.value.hint
    assert caught.value.exit_code == 5


def test_a_run_lists_its_binlogs(spool: Spool) -> None:
    """And nothing else that lies there."""
    run = spool.begin(FACTS)
    for name in ("b.000001", "b.000002", "b.index", "notes"):
        (run.directory / name).write_bytes(b"x")
    assert run.files() == {ONE: run.directory / "b.000001", TWO: run.directory / "b.000002"}


def test_a_note_replaces_what_is_known_of_a_run(spool: Spool) -> None:
    """Whole or not at all, by a rename: one that is half written does not count."""
    run = spool.begin(replace(FACTS, lineage=None))
    noted = replace(run, facts=FACTS)
    spool.note(noted)
    assert spool.runs() == [noted]
    assert [path.name for path in run.directory.iterdir()] == ["run.json"]
    assert json.loads((run.directory / "run.json").read_text())["format"] == 1
    (run.directory / "run.json.new").write_text('{"sou')
    assert spool.runs() == [noted]


def test_a_run_of_an_older_program_may_have_floors(spool: Spool) -> None:
    """What is below one reads as zeros: it is no byte of the binlog, and no copy goes for it."""
    runs = [spool.begin(FACTS) for _ in range(3)]
    path = runs[0].directory / "run.json"
    document = json.loads(path.read_text())
    floors = {"b.000001": {"offset": 30, "at": 3}}
    path.write_text(json.dumps(document | {"floors": floors}))
    found = spool.runs()
    assert found == [replace(runs[0], freed={"b.000001": (30, 3)}), *runs[1:]]
    for run, body in zip(found, (b"\0\0\0def", b"\0\0", b"x" * 30 + b"def"), strict=True):
        (run.directory / "b.000001").write_bytes(body)
    files = [file for run in found if (file := run.file_of(ONE)) is not None]
    assert [(file.begin, file.at, file.end) for file in files] == [
        (30, 3, 33),
        (0, 0, 2),
        (0, 0, 33),
    ]
    assert found[0].start_of(TWO) == 0
    assert spool.drop_prefixes() == 6
    assert [list(run.files()) for run in found] == [[], [ONE], [ONE]]


WRONG = (None, -1, "5", 1.5, True, [], "x" * 1000)


@pytest.mark.parametrize(
    "changed",
    [
        *({"position": one} for one in WRONG),
        *({"floors": {"b.000001": {"offset": one, "at": 3}}} for one in WRONG),
        *({"floors": {"b.000001": {"offset": 3, "at": one}}} for one in WRONG),
        *({"floors": one} for one in (None, 5, [], "x", {"b.000001": 5})),
    ],
)
def test_a_place_that_is_no_number_is_damage(spool: Spool, changed: dict[str, object]) -> None:
    """It says what may be read of the file, so it is not guessed."""
    run = spool.begin(FACTS)
    document = json.loads((run.directory / "run.json").read_text())
    (run.directory / "run.json").write_text(json.dumps(document | changed))
    with pytest.raises(SpoolError, match=r"run\.json is damaged") as caught:
        spool.runs()
    assert len(str(caught.value)) < 80 + len(str(run.directory))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '"x"', "null", "\0", "[" * 100_000]
)
def test_a_damaged_run_is_an_error_that_names_it(spool: Spool, content: str) -> None:
    """What is in it is not thrown away for that."""
    run = spool.begin(FACTS)
    (run.directory / "b.000001").write_bytes(b"x")
    (run.directory / "run.json").write_text(content)
    with pytest.raises(SpoolError, match=r"run\.json is damaged") as caught:
        spool.runs()
    assert str(run.directory) in str(caught.value)
    assert caught.value.hint
    assert (run.directory / "b.000001").exists()


def on_disk(*paths: Path) -> int:
    """What these files take on their disk, as du counts."""
    return sum(path.stat().st_blocks * 512 for path in paths)


def test_release_deletes_every_runs_copy_of_this_lineage_alone(spool: Spool) -> None:
    """Two runs may have the same binlog; another lineage's one of that name stays."""
    runs = [spool.begin(FACTS), spool.begin(replace(FACTS, lineage="other")), spool.begin(FACTS)]
    for run in runs:
        (run.directory / "b.000001").write_bytes(b"12345")
        (run.directory / "b.000002").write_bytes(b"123")
    assert spool.used_bytes() == on_disk(*(p for run in runs for p in run.files().values()))
    assert spool.release(ONE, "L") == 10
    assert [sorted(map(str, run.files())) for run in runs] == [
        ["b.000002"],
        ["b.000001", "b.000002"],
        ["b.000002"],
    ]
    assert spool.used_bytes() == on_disk(*(p for run in runs for p in run.files().values()))
    assert spool.release(ONE, "L") == 0


def test_a_copy_that_is_being_compared_is_not_released(spool: Spool) -> None:
    """What a run brings again of an archived binlog is read to its end before it goes."""
    old, new = spool.begin(FACTS), spool.begin(FACTS)
    spool.end(old)
    for run in (old, new):
        (run.directory / "b.000001").write_bytes(b"12345")
    spool.reading = new.directory / "b.000001"
    assert spool.release(ONE, "L") == 5
    assert (spool.runs(), list(new.files())) == ([new], [ONE])


def test_release_removes_runs_that_are_empty_once_they_have_ended(spool: Spool) -> None:
    """Into the others mysqlbinlog writes, whichever is the newest."""
    old, live, probe = spool.begin(FACTS), spool.begin(FACTS), spool.begin(FACTS)
    spool.end(old)
    for run in (old, live, probe):
        (run.directory / "b.000001").write_bytes(b"x")
    spool.release(ONE, "L")
    assert spool.runs() == [live, probe]
    spool.end(live)
    spool.delete([])
    assert spool.runs() == [probe]


def test_a_run_whose_mysqlbinlog_cannot_be_started_is_none(spool: Spool) -> None:
    """Else each attempt would leave a directory, until a binlog is archived."""

    def start(run: SpoolRun) -> None:
        (run.directory / "plugins").mkdir()
        raise SourceError("no such program")

    for _ in range(2):
        with pytest.raises(SourceError):
            spool.started(FACTS.server_uuid, ONE, 4, start)
    assert spool.runs() == []
    assert not list(spool.directory.glob("run-*"))


def test_runs_are_ordered_though_the_clock_was_set_back(spool: Spool) -> None:
    """One that begins now comes after one that began in what was the future then."""
    first = spool.begin(FACTS)
    future = spool.directory / "run-29991231T235959999999Z-ffff"
    first.directory.rename(future)
    runs = [spool.begin(FACTS) for _ in range(3)]
    assert [run.directory for run in spool.runs()] == [future, *(run.directory for run in runs)]


def test_nothing_is_seen_half_done_by_another_thread(spool: Spool) -> None:
    """Runs are begun and discarded to compare binlogs, while the loop releases and counts."""
    errors: list[BaseException] = []
    over = threading.Event()

    def probe() -> None:
        try:
            while not over.is_set():
                run = spool.begin(FACTS)
                (run.directory / "b.000001").write_bytes(b"x")
                (run.directory / "b.000002").write_bytes(b"x")
                spool.discard(run)
        except SpoolError as error:
            errors.append(error)

    threads = [threading.Thread(target=probe) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(150):
            spool.release(ONE, "other")
            spool.used_bytes()
            spool.sync()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not errors
    assert spool.runs() == []


def test_a_spool_that_was_given_up_is_left_alone(tmp_path: Path) -> None:
    """A thread that outlives its stream changes nothing: the next streamer may hold it."""
    spool = spool_in(tmp_path)
    run = spool.begin(FACTS)
    spool.close()
    with closing(spool_in(tmp_path)) as other:
        for late in (lambda: spool.discard(run), lambda: spool.begin(FACTS)):
            with pytest.raises(SpoolError, match="is closed"):
                late()
        assert other.runs() == [run]


def test_a_run_whose_lineage_is_not_known_is_not_released(spool: Spool) -> None:
    """Nobody has shown that its binlog is the archived one."""
    run = spool.begin(replace(FACTS, lineage=None))
    (run.directory / "b.000001").write_bytes(b"x")
    assert spool.release(ONE, "L") == 0
    assert ONE in run.files()


def test_sweep_removes_only_what_holds_no_binlog(spool: Spool) -> None:
    """Of the runs that have ended."""
    empty, full, live = (spool.begin(FACTS) for _ in range(3))
    (full.directory / "b.000001").write_bytes(b"x")
    spool.end(empty)
    spool.end(full)
    spool.sweep()
    assert spool.runs() == [full, live]


def test_a_spool_that_vanishes_is_an_error(spool: Spool) -> None:
    """Not an empty one, nor one that is as good as any."""
    run = spool.begin(FACTS)
    (run.directory / "run.json").unlink()
    run.directory.rmdir()
    with pytest.raises(SpoolError, match="no such file or directory"):
        run.files()
    shutil.rmtree(spool.directory)
    with pytest.raises(SpoolError, match="no such file or directory"):
        spool.room()


def test_what_is_foreign_is_left_alone(spool: Spool) -> None:
    """Whatever lies beside the runs is no run and stays, with what is in it."""
    foreign = [spool.directory / one for one in ("notes", "run-notes", "run-backup/b.000001")]
    (spool.directory / "run-backup").mkdir()
    for path in foreign:
        path.touch()
    run = spool.begin(FACTS)
    assert spool.runs() == [run]
    spool.release(ONE, "L")
    assert all(path.exists() for path in foreign)


def test_binlogs_are_not_deleted_with_a_run_that_lost_its_description(spool: Spool) -> None:
    """Only what holds nothing is a half-made run."""
    run = spool.begin(FACTS)
    (run.directory / "b.000001").write_bytes(b"x")
    (run.directory / "run.json").unlink()
    with pytest.raises(SpoolError, match=r"run\.json"):
        spool.runs()
    assert (run.directory / "b.000001").exists()


def test_a_copy_that_is_the_beginning_of_another_goes(spool: Spool) -> None:
    """Of several copies of a binlog only what no other holds is kept."""
    bodies = [b"abcdef", b"abc", b"abcdef", b"abX", b""]
    paths = []
    for body in bodies:
        run = spool.begin(FACTS)
        paths.append(run.directory / "mysql-bin.000001")
        paths[-1].write_bytes(body)
    assert spool.drop_prefixes() == 9
    assert sorted(path.read_bytes() for path in paths if path.exists()) == [b"abX", b"abcdef"]
    assert spool.drop_prefixes() == 0


@pytest.mark.parametrize("body", [b"abc", b"abcdef", b"abcdefghi"])
def test_a_copy_that_does_not_begin_at_the_beginning_is_not_compared(
    spool: Spool, body: bytes
) -> None:
    """It stays, and no other goes because of it; what its run brought after it is as any other."""
    runs = [spool.begin(FACTS), spool.begin(replace(FACTS, position=5))]
    for run, own in zip(runs, (b"abcdef", body), strict=True):
        (run.directory / "b.000001").write_bytes(own)
        (run.directory / "b.000002").write_bytes(own)
    assert spool.drop_prefixes() == min(6, len(body))
    assert [len(run.files()) for run in runs].count(1) == 1
    assert [(run.directory / "b.000001").read_bytes() for run in runs] == [b"abcdef", body]


def test_a_copy_that_is_the_end_of_another_goes(spool: Spool) -> None:
    """Of runs that began in the middle only what no other copy holds is kept.

    The events that mysqlbinlog made up before the binlog's own do not count.
    """
    writer = BinlogWriter()
    for text in ("BEGIN", "COMMIT", "BEGIN"):
        writer.query(text)
    whole, position = bytes(writer.data), writer.ends[2]
    tail = writer.from_position(position)
    made_up = len(tail) - (len(whole) - position)
    other = tail[:made_up] + bytes(len(tail) - made_up - 1)
    in_the_middle = replace(FACTS, position=position)
    for facts, body in (
        (FACTS, whole[:-1]),
        (in_the_middle, tail),  # has a byte more than the first one
        (in_the_middle, tail),
        (in_the_middle, tail[:-1]),  # the first one has it, and so do others
        (in_the_middle, tail[: made_up - 1]),  # not even all that was made up
        (in_the_middle, other),  # other bytes
    ):
        (spool.begin(facts).directory / FACTS.binlog).write_bytes(body)
    assert spool.drop_prefixes() == len(tail) + len(tail) - 1
    left = [path.read_bytes() for run in spool.runs() for path in run.files().values()]
    assert left == [whole[:-1], tail, tail[: made_up - 1], other]
    assert spool.drop_prefixes() == 0


def test_a_run_of_another_history_is_discarded(spool: Spool) -> None:
    """With all that is in it; the other runs stay."""
    kept, discarded = spool.begin(FACTS), spool.begin(FACTS)
    for run in (kept, discarded):
        for name in ("b.000001", "b.000002", "notes"):
            (run.directory / name).write_bytes(b"x")
    spool.discard(discarded)
    assert not discarded.directory.exists()
    assert spool.runs() == [kept]
    assert list(kept.files()) != []
    with pytest.raises(SpoolError, match="no such file or directory"):
        spool.discard(discarded)


def test_a_discard_that_fails_leaves_a_run_that_was_there_before(spool: Spool) -> None:
    """What is left is what an earlier end of mysqlbinlog would have left, with its description."""
    run = spool.begin(FACTS)
    (run.directory / "b.000001").mkdir()  # stands for a file that cannot be deleted
    for name in ("b.000002", "b.000010"):
        (run.directory / name).write_bytes(b"x")
    with pytest.raises(SpoolError, match=r"b\.000001: is a directory"):
        spool.discard(run)
    assert spool.runs() == [run]
    assert sorted(path.name for path in run.directory.iterdir()) == ["b.000001", "run.json"]


def test_room_of_a_spool(spool: Spool) -> None:
    """What it takes and what is free, with the limits that were given or the spool's own."""
    run = spool.begin(FACTS)
    (run.directory / "b.000001").write_bytes(bytes(100_000))
    (run.directory / "b.000002").write_bytes(bytes(200_000))
    spool.sync()
    space = os.statvfs(spool.directory)
    size = space.f_blocks * space.f_frsize
    room = room_of(spool.directory, SpoolLimits(max_bytes=300_001, min_free_bytes=2 << 20))
    assert room.used == on_disk(*run.files().values())
    assert 0 < room.free <= size
    assert (room.max_bytes, room.min_free) == (300_001, 2 << 20)
    room = room_of(spool.directory, SpoolLimits())
    assert (room.max_bytes, room.min_free) == (None, default_min_free(size))
    spool.discard(run)
    assert spool.room().used == 0


@pytest.mark.parametrize("asked", [0, 100])
def test_some_room_is_kept_whatever_was_asked_for(spool: Spool, asked: int) -> None:
    """On a full disk mysqlbinlog leaves holes in its file."""
    assert room_of(spool.directory, SpoolLimits(min_free_bytes=asked)).min_free == 1 << 20


GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "left"), [(0, GIB), (20 * GIB, GIB), (21 * GIB, 21 * GIB // 20), (200 * GIB, 10 * GIB)]
)
def test_what_is_left_free_where_nothing_is_asked_for(size: int, left: int) -> None:
    """5 % of the file system, at least 1 GiB."""
    assert default_min_free(size) == left


LIMITED = Room(used=100, free=40, max_bytes=100, min_free=40)
FULL = "the spool takes 101 bytes, above 100 (max_bytes)"
TIGHT = "the spool's file system has 39 bytes left, below 40 (min_free_bytes)"


@pytest.mark.parametrize(
    ("room", "short"),
    [
        (LIMITED, ""),
        (replace(LIMITED, used=101), FULL),
        (replace(LIMITED, used=101, max_bytes=None), ""),
        (replace(LIMITED, free=39), TIGHT),
        (replace(LIMITED, free=0, min_free=0), ""),
        (replace(LIMITED, used=101, free=39), f"{FULL}; {TIGHT}"),
    ],
)
def test_what_there_is_not_enough_of(room: Room, short: str) -> None:
    """Each limit by its name, with the values; at the limit nothing is wrong."""
    assert room.short_of() == short


@pytest.mark.parametrize(
    ("room", "again"),
    [
        (LIMITED, False),
        (replace(LIMITED, used=75, free=50), True),
        (replace(LIMITED, used=76, free=50), False),
        (replace(LIMITED, used=75, free=49), False),
        (replace(LIMITED, used=10**9, free=50, max_bytes=None), True),
        (replace(LIMITED, used=0, free=0, min_free=0), True),
        (replace(LIMITED, used=0, free=4 * GIB + (256 << 20), min_free=4 * GIB), True),
        (replace(LIMITED, used=0, free=4 * GIB + (256 << 20) - 1, min_free=4 * GIB), False),
    ],
)
def test_when_there_is_room_again(room: Room, again: bool) -> None:
    """Well below the greatest use, well above the least that is free; then neither is short."""
    assert room.has_room_again() is again
    assert not (again and room.short_of())


def test_the_last_claim_is_recorded(spool: Spool) -> None:
    """A later start reads it; another source or another archive has none."""
    assert spool.last_claim() is None
    spool.note_claim((7, "00000007"))
    spool.note_claim((8, "9c2d41aa"))
    assert spool.last_claim() == (8, "9c2d41aa")
    spool.source = "other"
    assert spool.last_claim() is None
    spool.source, spool.target = "orders", "s3://bucket/q"
    assert spool.last_claim() is None
    assert sorted(path.name for path in spool.directory.iterdir()) == ["claim.json", "lock"]
    assert spool.runs() == []


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"generation": "x"}', b"[" * 100_000],
)
def test_a_damaged_record_of_a_claim_is_none(spool: Spool, text: bytes) -> None:
    """The start waits for that writer, as for any other."""
    (spool.directory / "claim.json").write_bytes(text)
    assert spool.last_claim() is None


def test_a_record_that_cannot_be_written_is_a_spool_error(spool: Spool) -> None:
    """What is in its place is named."""
    (spool.directory / "claim.json").mkdir()
    for act in (
        lambda: spool.note_claim((1, "00000000")),
        spool.last_claim,
    ):
        with pytest.raises(SpoolError, match=r"claim\.json: is a directory"):
            act()


@pytest.mark.parametrize(("end", "left"), [(0, b""), (3, b"abc"), (6, b"abcdef"), (9, b"abcdef")])
def test_a_torn_end_is_forgotten(spool: Spool, end: int, left: bytes) -> None:
    """What lies behind it comes again; a file that is shorter, or gone, is left alone."""
    run = spool.begin(FACTS)
    path = run.directory / "b.000001"
    path.write_bytes(b"abcdef")
    spool.cut(path, end)
    assert path.read_bytes() == left
    spool.cut(run.directory / "b.000002", end)
    assert list(run.files().values()) == [path]


@pytest.mark.parametrize("name", ["lock", "claim.json"])
def test_a_link_in_a_spool_is_refused(tmp_path: Path, name: str) -> None:
    """Somebody may have made it: what it names is neither read nor written."""
    secret = tmp_path / "secret"
    secret.write_text('{"source": "orders", "target": "s3://b/p", "generation": 9, "token": "t"}')
    before = secret.read_text()
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / name).symlink_to(secret)
    with (
        pytest.raises(SpoolError, match=f"{name}: a link is in its place") as raised,
        closing(spool_in(directory)) as spool,
    ):
        spool.last_claim()
    assert "remove it" in raised.value.hint
    assert secret.read_text() == before


def test_what_a_spool_writes_replaces_a_link(tmp_path: Path) -> None:
    """What it names stays as it was."""
    secret = tmp_path / "secret"
    secret.write_text("kept")
    directory = tmp_path / "spool"
    directory.mkdir()
    (directory / "claim.json.new").symlink_to(secret)
    with closing(spool_in(directory)) as spool:
        spool.note_claim((1, "t"))
        spool.begin(FACTS)
        assert spool.last_claim() == (1, "t")
    assert secret.read_text() == "kept"


def test_a_run_that_is_a_link_is_refused(spool: Spool) -> None:
    """Its binlogs would be uploaded, and then deleted."""
    run = spool.begin(FACTS)
    elsewhere = run.directory.rename(spool.directory.parent / "elsewhere")
    run.directory.symlink_to(elsewhere)
    with pytest.raises(SpoolError, match="a link is in its place"):
        spool.runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_spool_of_another_user_is_refused(tmp_path: Path) -> None:
    """Also by root, before anything in it is touched."""
    os.chown(tmp_path, 65_534, 65_534)
    with pytest.raises(SpoolError, match="belongs to user 65534") as raised:
        spool_in(tmp_path)
    assert "must belong to the user that streams" in raised.value.hint
    assert list(tmp_path.iterdir()) == []
