"""The spool: locked, made durable, and never emptied of what the archive lacks."""

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog import BinlogName
from binlog2s3.errors import SpoolError
from binlog2s3.spool import RunFacts, Spool, Superseder

FACTS = RunFacts(
    source="orders",
    target="s3://bucket/p",
    server_uuid="3e11fa47-71ca-11e1-9e33-c80aa9429562",
    binlog="b.000001",
    position=4,
    lineage="L",
)
ONE, TWO = BinlogName.parse("b.000001"), BinlogName.parse("b.000002")


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    """A spool that is not there yet."""
    spool = Spool(tmp_path / "new" / "spool")
    yield spool
    spool.close()


def test_it_is_made_for_its_user_alone(spool: Spool) -> None:
    """Binlogs hold the data of the database."""
    assert spool.directory.stat().st_mode & 0o777 == 0o700
    assert spool.begin(FACTS).directory.stat().st_mode & 0o777 == 0o700
    assert spool.runs()[0].facts == FACTS


def test_one_streamer_holds_it(spool: Spool) -> None:
    """A second one is told which process has it, until that one lets go."""
    with pytest.raises(SpoolError, match=rf"in use by another streamer \(process {os.getpid()}\)"):
        Spool(spool.directory)
    spool.close()
    again = Spool(spool.directory)
    again.close()
    again._lock = spool._lock = os.open(spool.directory, os.O_RDONLY)  # for the fixture's close


def test_a_lock_file_that_is_left_holds_nothing(tmp_path: Path) -> None:
    """The lock ends with its process, not with the file."""
    (tmp_path / "lock").write_text("999999999999999\n")
    Spool(tmp_path).close()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_spool_that_cannot_be_made(tmp_path: Path) -> None:
    """The path and the reason are in the message, what to do in the hint."""
    (tmp_path / "file").touch()
    with pytest.raises(SpoolError, match="file/spool: not a directory") as caught:
        Spool(tmp_path / "file" / "spool")
    assert caught.value.hint
    assert caught.value.exit_code == 5


def test_runs_come_oldest_first(spool: Spool) -> None:
    """Each with what it was begun for, each in a directory of its own."""
    begun = [spool.begin(replace(FACTS, position=position)) for position in (4, 5, 6)]
    assert spool.runs() == begun
    assert len({run.directory for run in begun}) == 3
    assert all(run.files() == {} for run in begun)


def test_a_run_lists_its_binlogs(spool: Spool) -> None:
    """And nothing else that lies there."""
    run = spool.begin(FACTS)
    for name in ("b.000001", "b.000002", "b.index", "notes"):
        (run.directory / name).write_bytes(b"x")
    assert run.files() == {ONE: run.directory / "b.000001", TWO: run.directory / "b.000002"}


def test_a_note_replaces_what_is_known_of_a_run(spool: Spool) -> None:
    """Whole or not at all: by a rename."""
    run = spool.begin(replace(FACTS, lineage=None))
    noted = replace(run, facts=FACTS)
    spool.note(noted)
    assert spool.runs() == [noted]
    assert [path.name for path in run.directory.iterdir()] == ["run.json"]
    assert json.loads((run.directory / "run.json").read_text())["format"] == 1


def test_a_half_made_run_is_removed(spool: Spool) -> None:
    """It died before its run.json, so mysqlbinlog was never started."""
    run = spool.begin(FACTS)
    (run.directory / "run.json").rename(run.directory / "run.json.new")
    assert spool.runs() == []
    assert not run.directory.exists()


def test_a_half_written_note_does_not_count(spool: Spool) -> None:
    """What was there before holds."""
    run = spool.begin(FACTS)
    (run.directory / "run.json.new").write_text('{"sou')
    assert spool.runs() == [run]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '"x"', "null", "\0"])
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


def test_release_deletes_every_runs_copy_of_this_lineage_alone(spool: Spool) -> None:
    """Two runs may have the same binlog; another lineage's one of that name stays."""
    runs = [spool.begin(FACTS), spool.begin(replace(FACTS, lineage="other")), spool.begin(FACTS)]
    for run in runs:
        (run.directory / "b.000001").write_bytes(b"12345")
        (run.directory / "b.000002").write_bytes(b"123")
    assert spool.used_bytes() == 24
    assert spool.release(ONE, "L") == 10
    assert [sorted(map(str, run.files())) for run in runs] == [
        ["b.000002"],
        ["b.000001", "b.000002"],
        ["b.000002"],
    ]
    assert spool.used_bytes() == 14
    assert spool.release(ONE, "L") == 0


def test_release_removes_runs_that_are_empty_but_for_the_newest(spool: Spool) -> None:
    """The newest is where mysqlbinlog writes."""
    old, new = spool.begin(FACTS), spool.begin(FACTS)
    for run in (old, new):
        (run.directory / "b.000001").write_bytes(b"x")
    spool.release(ONE, "L")
    assert spool.runs() == [new]


def test_a_run_whose_lineage_is_not_known_is_not_released(spool: Spool) -> None:
    """Nobody has shown that its binlog is the archived one."""
    run = spool.begin(replace(FACTS, lineage=None))
    (run.directory / "b.000001").write_bytes(b"x")
    assert spool.release(ONE, "L") == 0
    assert ONE in run.files()


def test_sweep_removes_only_what_holds_no_binlog(spool: Spool) -> None:
    """Of the runs it is given."""
    empty, full, not_given = (spool.begin(FACTS) for _ in range(3))
    (full.directory / "b.000001").write_bytes(b"x")
    spool.sweep([empty, full])
    assert spool.runs() == [full, not_given]


def test_sync_and_use_of_an_empty_spool(spool: Spool) -> None:
    """Nothing there is no error."""
    spool.sync()
    assert (spool.runs(), spool.used_bytes()) == ([], 0)
    run = spool.begin(FACTS)
    (run.directory / "b.000001").write_bytes(b"x")
    spool.sync()
    assert spool.used_bytes() == 1


def test_a_spool_that_vanishes_is_an_error(spool: Spool) -> None:
    """Not an empty one."""
    run = spool.begin(FACTS)
    (run.directory / "run.json").unlink()
    run.directory.rmdir()
    with pytest.raises(SpoolError, match="no such file or directory"):
        run.files()


def test_foreign_files_are_left_alone(spool: Spool) -> None:
    """Whatever lies beside the runs: it is no run and stays."""
    (spool.directory / "notes").touch()
    (spool.directory / "run-notes").touch()
    run = spool.begin(FACTS)
    assert spool.runs() == [run]
    spool.release(ONE, "L")
    assert (spool.directory / "notes").exists()
    assert (spool.directory / "run-notes").exists()


def test_foreign_directories_are_left_alone(spool: Spool) -> None:
    """A directory that binlog2s3 did not make is never deleted."""
    (spool.directory / "run-backup").mkdir()
    (spool.directory / "run-backup" / "b.000001").write_bytes(b"x")
    assert spool.runs() == []
    assert (spool.directory / "run-backup" / "b.000001").exists()


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


BY = Superseder(source="orders", target="s3://bucket/p", generation=8, token="9c2d41aa", host="db2")


def test_who_took_over_is_noted_and_forgotten(spool: Spool) -> None:
    """What is noted is read again, by the next start too; after it is forgotten nobody is noted."""
    assert spool.superseded_by() is None
    spool.forget_superseder()
    spool.note_superseded(replace(BY, generation=7))
    spool.note_superseded(BY)
    assert spool.superseded_by() == BY
    assert BY.rank == (8, "9c2d41aa")
    assert sorted(path.name for path in spool.directory.iterdir()) == ["lock", "superseded.json"]
    assert spool.runs() == []
    spool.forget_superseder()
    assert spool.superseded_by() is None


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"generation": "x"}', b"[" * 100_000],
)
def test_a_damaged_note_is_of_somebody(spool: Spool, text: bytes) -> None:
    """It is below every writer, and about every source: so that any writer is looked for."""
    (spool.directory / "superseded.json").write_bytes(text)
    found = spool.superseded_by()
    assert found == Superseder()
    assert found.rank < (1, "00000000")
    assert found.concerns("anything", "s3://anywhere")


def test_a_note_is_about_one_source_in_one_archive() -> None:
    """A spool that is given to another one does not wait for the first one's writer."""
    assert BY.concerns("orders", "s3://bucket/p")
    assert not BY.concerns("other", "s3://bucket/p")
    assert not BY.concerns("orders", "s3://bucket/q")


def test_a_note_that_cannot_be_written_is_a_spool_error(spool: Spool) -> None:
    """What is in its place is named."""
    (spool.directory / "superseded.json").mkdir()
    for act in (lambda: spool.note_superseded(BY), spool.superseded_by, spool.forget_superseder):
        with pytest.raises(SpoolError, match=r"superseded\.json: is a directory"):
            act()
