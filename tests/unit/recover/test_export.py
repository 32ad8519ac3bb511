"""A recovery as files: byte-exact, whole or not there, never over something else."""

import io
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.output import page_on
from binlog2s3.recover import export
from binlog2s3.recover.export import README, SKIPPED, prepare
from binlog2s3.recover.manifest import MANIFEST, Manifest
from binlog2s3.recover.model import Checked, Plan, PlanPiece, ProgressReport, Stream
from binlog2s3.recover.view import print_result
from lab.pitr_examples import ABOUT, LINEAGE, PLAN, UUID
from tests.binlog_writer import BinlogWriter

OTHER = "20260102T120000Z-9d11fa47-0001"
HEAD = bytes(BinlogWriter(server_version="9.7.4").data)
FIRST, SECOND = BinlogName.parse("b.000001"), BinlogName.parse("b.000002")


def transaction(gtid: str | None, begin: int, end: int) -> Transaction:
    return Transaction(
        begin=begin, end=end, gtid=gtid, commit_us=1, commit_exact=True, original_commit_us=None
    )


def piece(binlog: BinlogName, gtids: str, lineage: str = LINEAGE, size: int = 100) -> PlanPiece:
    found = GtidSet.parse(gtids)
    return PlanPiece(
        lineage=lineage,
        binlog=binlog,
        begin=197,
        end=197 + size,
        transactions=found.count,
        gtids=found,
        greatest_commit_us=1,
    )


TWO = (piece(FIRST, f"{UUID}:6-7"), piece(SECOND, f"{UUID}:8:blue:1", OTHER))
PARTS = {
    FIRST: [
        Checked(data=HEAD),
        Checked(data=b"a" * 30),
        Checked(data=b"b" * 30, done=(transaction(f"{UUID}:6", 197, 257),)),
        Checked(data=b"c" * 40, done=(transaction(f"{UUID}:7", 257, 297),)),
    ],
    SECOND: [
        Checked(data=HEAD),
        Checked(
            data=b"d" * 100,
            done=(transaction(f"{UUID}:8", 197, 257), transaction(f"{UUID}:blue:1", 257, 297)),
        ),
    ],
}
PLANNED = replace(
    PLAN,
    pieces=TWO,
    before=GtidSet.parse(f"{UUID}:1-5"),
    adds=GtidSet.parse(f"{UUID}:6-8:blue:1"),
)
to_directory = partial(export.to_directory, before=PLANNED.before)


def stream(
    plan: Plan = PLANNED,
    *,
    of: Callable[[PlanPiece], Iterable[Checked]] = lambda p: PARTS[p.binlog],
) -> Stream:
    """As `extract` gives it."""
    for one in plan.pieces:
        yield one, iter(of(one))


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


# Files


def test_each_binlog_becomes_a_file_byte_for_byte(tmp_path: Path) -> None:
    """Under its lineage, whose binlogs may have the same names; nothing else is left."""
    directory = tmp_path / "a" / "b"
    result = to_directory(PLANNED, ABOUT, stream(), directory)
    found = files(directory)
    readme = found.pop(README).decode()
    found.pop(MANIFEST)
    assert found == {
        f"{LINEAGE}/b.000001": HEAD + b"a" * 30 + b"b" * 30 + b"c" * 40,
        f"{OTHER}/b.000002": HEAD + b"d" * 100,
    }
    assert (result.how, result.where) == ("output-dir", str(directory))
    assert (result.transactions, result.size) == (4, 200)
    assert result.files == tuple(found)
    assert result.proved
    for words in (
        f"lineage      {LINEAGE}",
        "from         b.000001:197 (what the target has executed)",
        f"goal         to just before {UUID}:48213",
        "transactions 4 in 200 bytes",
        f"GTIDs        {UUID}:6-8:blue:1",
        f"needs        {UUID}:1-5",
    ):
        assert words in readme.splitlines()


def command_of(readme: str) -> list[str]:
    """The words of the command in a README."""
    found = re.search(r"^    (TZ=UTC .*?--binary-mode[^\n]*)$", readme, re.DOTALL | re.MULTILINE)
    assert found
    return shlex.split(found[1].replace("\\\n", " "))


def test_the_readme_has_the_command(tmp_path: Path) -> None:
    """All files in one run, in order, from where they lie; failures of both ends count."""
    directory = tmp_path / "it's here"
    to_directory(PLANNED, ABOUT, stream(), directory)
    readme = (directory / README).read_text()
    paths = f"{LINEAGE}/b.000001 {OTHER}/b.000002"
    command = f"TZ=UTC mysqlbinlog --no-defaults {paths} | mysql --binary-mode"
    assert command_of(readme) == [*command.split(), "--max-allowed-packet=1G"]
    lines = [line.strip() for line in readme.splitlines()]
    assert f"cd {shlex.quote(str(directory))}" in lines
    assert "set -o pipefail" in lines
    mariadb = replace(PLANNED, flavour="mariadb", pieces=(), adds=None, before=None)
    assert to_directory(mariadb, ABOUT, iter(()), tmp_path / "empty").files == ()
    assert "nothing to apply" in (tmp_path / "empty" / README).read_text()
    assert "DANGER" not in (tmp_path / "empty" / README).read_text()


def test_the_files_are_of_this_user_alone(tmp_path: Path) -> None:
    """They have what was written on the source."""
    to_directory(PLANNED, ABOUT, stream(), tmp_path / "d")
    for path in (tmp_path / "d", *(tmp_path / "d").rglob("*")):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)


def test_the_danger_is_told_before_the_command(tmp_path: Path) -> None:
    """Why it is one, and what to do instead: where there is a command, and in the result."""
    result = to_directory(PLANNED, ABOUT, stream(), tmp_path / "d")
    readme = (tmp_path / "d" / README).read_text()
    for words in (
        "They do not agree on where each string and comment ends",
        "binlog2s3 pitr --target-socket",
        "binlog2s3 serve --dir",
    ):
        assert 0 < readme.index(words) < readme.index("TZ=UTC mysqlbinlog")
    out = io.StringIO()
    print_result(result, page_on(out))
    assert "warning: mysqlbinlog | mysql is dangerous: README.txt" in out.getvalue()


def test_mariadb_has_its_own_programs(tmp_path: Path) -> None:
    """And its own GTIDs: the last one of each server counts."""
    gtids = MariadbGtidList.parse("0-1-7")
    one = replace(TWO[0], gtids=gtids)
    plan = replace(
        PLANNED, flavour="mariadb", pieces=(one,), before=None, adds=gtids, skipped=gtids
    )
    head, begin, *both = PARTS[FIRST]
    parts = [head, begin, *(
        replace(part, done=(replace(part.done[0], gtid=gtid),))
        for part, gtid in zip(both, ("0-1-6", "0-1-7"), strict=True)
    )]  # fmt: skip
    result = to_directory(plan, ABOUT, stream(plan, of=lambda _: parts), tmp_path / "d")
    assert result.files == (f"{LINEAGE}/b.000001",)
    readme = (tmp_path / "d" / README).read_text()
    words = command_of(readme)
    assert (words[1], words[5]) == ("mariadb-binlog", "mariadb")
    assert "gtid_mode" not in readme
    assert "If it stops half-way: restore the base backup" in readme


def test_skipped_transactions_are_committed_empty_by_a_file_of_its_own(tmp_path: Path) -> None:
    """One statement each, the session's own GTIDs again at its end; the README says to run it."""
    plan = replace(PLANNED, skipped=GtidSet.parse(f"{UUID}:9-10:tag:4"))
    result = to_directory(plan, ABOUT, stream(plan), tmp_path / "d")
    assert result.files[-1] == SKIPPED
    assert (tmp_path / "d" / SKIPPED).read_text().splitlines() == [
        f"SET GTID_NEXT = '{UUID}:9'; BEGIN; COMMIT;",
        f"SET GTID_NEXT = '{UUID}:10'; BEGIN; COMMIT;",
        f"SET GTID_NEXT = '{UUID}:tag:4'; BEGIN; COMMIT;",
        "SET GTID_NEXT = 'AUTOMATIC';",
    ]
    readme = (tmp_path / "d" / README).read_text()
    assert f"    mysql < {SKIPPED}\n" in readme
    assert SKIPPED not in " ".join(command_of(readme))
    hole = to_directory(plan, replace(ABOUT, leaves_hole=True), stream(plan), tmp_path / "e")
    assert SKIPPED not in hole.files
    assert "stay unused" in (tmp_path / "e" / README).read_text()


def test_the_manifest_is_last_and_says_what_is_there(tmp_path: Path) -> None:
    """The plan's order, sizes and sums of what is on the disk, GTIDs; it comes after all else."""
    seen: list[set[str]] = []

    def looked(one: PlanPiece) -> Iterator[Checked]:
        for part in PARTS[one.binlog]:
            seen.append(set(files(tmp_path / "d")))
            yield part

    plan = replace(PLANNED, skipped=GtidSet.parse(f"{UUID}:9"))
    to_directory(plan, ABOUT, stream(plan, of=looked), tmp_path / "d")
    assert not any(name.startswith(MANIFEST) for names in seen for name in names)
    found = Manifest.read((tmp_path / "d" / MANIFEST).read_bytes(), MANIFEST)
    assert [one.name for one in found.files] == [f"{LINEAGE}/b.000001", f"{OTHER}/b.000002"]
    assert tuple(piece for piece, _ in found.pieces()) == TWO
    for one in found.files:
        data = (tmp_path / "d" / one.name).read_bytes()
        assert (one.size, one.crc64nvme) == (len(data), crc64nvme(data))
    told = (found.gtids_before, found.gtids_added, found.gtids_skipped)
    assert told == (str(plan.before), str(plan.adds), f"{UUID}:9")
    assert (found.source, found.lineage) == (ABOUT.source, plan.lineage)


def test_the_manifest_of_a_mariadb_has_the_last_gtid_of_each_domain(tmp_path: Path) -> None:
    """As a replica's gtid_slave_pos; a text alone does not tell which server's was the last."""
    before = MariadbGtidList.parse("0-1-7,1-1-2").then(MariadbGtidList.parse("0-2-8"))
    plan = replace(PLANNED, flavour="mariadb", pieces=(), adds=None, before=None)
    export.to_directory(plan, ABOUT, iter(()), tmp_path, before=before)
    assert json.loads((tmp_path / MANIFEST).read_text())["gtids_before"] == "0-2-8,1-1-2"


def test_a_manifest_that_nobody_could_read_is_refused_at_once(tmp_path: Path) -> None:
    """Before the first byte is written, not after the last one."""
    many = tuple(replace(TWO[0], binlog=BinlogName("b" * 150, number)) for number in range(40_000))
    plan = replace(PLANNED, pieces=many)
    with pytest.raises(RecoveryError, match="the manifest of 40000 binlogs has") as caught:
        to_directory(plan, ABOUT, stream(plan), tmp_path / "d")
    assert caught.value.hint
    assert not (tmp_path / "d").exists()


def test_what_a_killed_run_left_is_named(tmp_path: Path) -> None:
    """The next run says what it is, and what to do; what is whole is named by its manifest."""

    def killed(one: PlanPiece) -> Iterator[Checked]:
        yield PARTS[one.binlog][0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        to_directory(PLANNED, ABOUT, stream(of=killed), tmp_path / "d")
    with pytest.raises(RecoveryError, match=r"a run .* left that did not end") as caught:
        prepare(tmp_path / "d")
    assert caught.value.hint.startswith("remove it")
    to_directory(PLANNED, ABOUT, stream(), tmp_path / "e")
    with pytest.raises(RecoveryError, match=f"is not empty: {MANIFEST} is in it") as caught:
        prepare(tmp_path / "e")
    assert "remove it" not in caught.value.hint
    (tmp_path / "d" / "mine\x1b[31m").touch()
    with pytest.raises(RecoveryError, match="is not empty") as caught:
        prepare(tmp_path / "d")
    assert "remove it" not in caught.value.hint
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("name", ["x", ".hidden", "README.txt", "b.000001.partial"])
def test_a_directory_with_something_in_it_is_refused(tmp_path: Path, name: str) -> None:
    """Whatever it is; nothing is written, nothing is read from the stream."""
    (tmp_path / name).write_text("mine")
    never = stream(of=lambda _: pytest.fail("it was read"))
    with pytest.raises(RecoveryError, match="is not empty") as caught:
        to_directory(PLANNED, ABOUT, never, tmp_path)
    assert "nothing is overwritten" in caught.value.hint
    assert files(tmp_path) == {name: b"mine"}


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A file, or below a file; one that is empty will do, and so does one that is not there."""
    for path in (tmp_path, tmp_path / "a" / "b"):
        prepare(path)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RecoveryError, match="cannot write") as caught:
            prepare(path)
        assert caught.value.exit_code == 8
        assert caught.value.hint


@pytest.mark.parametrize("lineage", ["/tmp/x", "..", "../../x", "", "x", f"{LINEAGE}/.."])
def test_no_name_leads_out_of_the_directory(lineage: str, tmp_path: Path) -> None:
    """Whatever the plan was made of: what is no lineage's id becomes no path."""
    plan = replace(PLANNED, pieces=(TWO[0], replace(TWO[1], lineage=lineage)))
    with pytest.raises(RecoveryError, match="invalid name"):
        to_directory(plan, ABOUT, stream(plan), tmp_path / "d")
    outside = replace(TWO[0], binlog=BinlogName("../../x", 1))
    plan = replace(PLANNED, pieces=(outside,))
    with pytest.raises(RecoveryError, match="invalid name"):
        to_directory(plan, ABOUT, stream(plan, of=lambda _: PARTS[FIRST]), tmp_path / "e")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d", "e"]


@pytest.mark.parametrize("link", [OTHER, README, f"{README}.partial", MANIFEST])
def test_no_link_in_the_directory_is_followed(link: str, tmp_path: Path) -> None:
    """Somebody else may write there, and puts links in while the first binlog is written."""
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("mine")
    to = target if link == OTHER else target / "mine"

    def planted(one: PlanPiece) -> Iterator[Checked]:
        if one is TWO[0]:
            (tmp_path / "d" / link).symlink_to(to)
        yield from PARTS[one.binlog]

    with pytest.raises(RecoveryError, match="file exists"):
        to_directory(PLANNED, ABOUT, stream(of=planted), tmp_path / "d")
    assert files(target) == {"mine": b"mine"}


def put_under(partial: Path, descriptor: int) -> None:
    """Make what is open as this file write into something else."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if path.readlink() == partial:
                os.dup2(descriptor, int(path.name))


@pytest.mark.parametrize(
    ("device", "words"), [("/dev/full", "no space left on device"), ("", "invalid argument")]
)
def test_a_full_disk_leaves_no_half_file(device: str, words: str, tmp_path: Path) -> None:
    """Neither where a write fails nor where only the sync does; the kernel's own words."""

    def failing(one: PlanPiece) -> Iterator[Checked]:
        partial = tmp_path / "d" / one.lineage / f"{one.binlog}.partial"
        yield PARTS[one.binlog][0]
        put_under(partial, descriptor)
        yield from PARTS[one.binlog][1:]

    reader, writer = os.pipe()
    descriptor = os.open(device, os.O_WRONLY) if device else os.dup(writer)
    try:
        with pytest.raises(RecoveryError, match=words) as caught:
            to_directory(PLANNED, ABOUT, stream(of=failing), tmp_path / "d")
    finally:
        for one in (reader, writer, descriptor):
            os.close(one)
    assert f"{LINEAGE}/b.000001.partial: " in str(caught.value)
    assert caught.value.exit_code == 8
    assert ("free some space" in caught.value.hint) == bool(device)
    assert files(tmp_path / "d") == {}


@pytest.mark.parametrize("error", [ArchiveError("not what they were"), KeyboardInterrupt()])
def test_an_error_of_the_stream_comes_out_as_it_is(tmp_path: Path, error: BaseException) -> None:
    """Ctrl-C as well: the file it was at is not there, not even as a partial one."""

    def damaged(one: PlanPiece) -> Iterator[Checked]:
        yield from PARTS[one.binlog][:2]
        raise error

    with pytest.raises(type(error)):
        to_directory(PLANNED, ABOUT, stream(of=damaged), tmp_path / "d")
    assert files(tmp_path / "d") == {}


def less(one: PlanPiece) -> list[Checked]:
    return PARTS[one.binlog][:-1]


def uncounted(one: PlanPiece) -> list[Checked]:
    return [replace(part, done=part.done[:1]) for part in PARTS[one.binlog]]


def twice(one: PlanPiece) -> list[Checked]:
    return [*PARTS[one.binlog], PARTS[one.binlog][-1]]


@pytest.mark.parametrize("wrong", [less, uncounted, twice])
def test_what_is_not_as_planned_is_an_error(
    wrong: Callable[[PlanPiece], list[Checked]], tmp_path: Path
) -> None:
    """Fewer or more bytes or transactions: exit 8, and no file that looks whole."""
    with pytest.raises(RecoveryError, match="is not as planned") as caught:
        to_directory(PLANNED, ABOUT, stream(of=wrong), tmp_path / "d")
    assert caught.value.exit_code == 8
    assert not (tmp_path / "d" / MANIFEST).exists()
    assert not [path for path in files(tmp_path / "d") if path.endswith(".partial")]


@pytest.mark.parametrize("pieces", [TWO[:1], TWO[::-1], (TWO[0], TWO[0]), (*TWO, TWO[1])])
def test_other_pieces_than_planned_are_an_error(
    pieces: tuple[PlanPiece, ...], tmp_path: Path
) -> None:
    """One that does not come, one that comes twice, another order."""
    wrong = replace(PLANNED, pieces=pieces)
    with pytest.raises(RecoveryError, match=r"not those of the plan|file exists"):
        to_directory(PLANNED, ABOUT, stream(wrong), tmp_path / "d")
    assert not (tmp_path / "d" / MANIFEST).exists()


def test_progress_is_told(tmp_path: Path) -> None:
    """Bytes without the heads, of the whole plan; at last as many as planned, if told at all."""
    seen: list[ProgressReport] = []

    def slowly(one: PlanPiece) -> list[Checked]:
        done = tuple(t for part in PARTS[one.binlog] for t in part.done)
        many = [Checked(data=b"x") for _ in range(50)]
        return [PARTS[one.binlog][0], *many, Checked(data=b"y" * 50, done=done)]

    to_directory(PLANNED, ABOUT, stream(of=slowly), tmp_path / "d", on_progress=seen.append)
    assert all(one.of_size == 200 and one.of_transactions == 4 for one in seen)
    assert [one.size for one in seen] == sorted(one.size for one in seen)
