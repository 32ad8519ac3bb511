"""docs/recovery/, word for word: each of its commands is run at an accident that has happened.

Law: no block of a page is left out; what it shows is what comes; and what the tables hold in the
end is what the servers themselves said before they were lost.
"""

import re
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pymysql
import pytest

from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from lab.accident import accident, install_db
from lab.company import BUCKET, Checksums, CompanyFailedError, Site
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from tests.integration.bucket import Bucket
from tests.integration.recovery_page import (
    PAGES,
    START,
    VARIABLES,
    Block,
    Shell,
    programs,
    read_pages,
)
from tests.waiting import wait_until
from tests.world.servers import PREFIX, on_disk
from tests.world.servers import masked as masked_bytes

ROOT = START.parents[1]
SETTINGS, DUMP = "second-server: Its settings", "second-server: The dump"
STREAM = "stream-the-new-server"


class Second:
    """The second server, asked by hand."""

    def __init__(self, site: Site) -> None:
        self._socket = Path(site.variables["WORK"]) / "mysql.sock"
        self._is_mariadb = site.is_mariadb

    def query(self, statement: str) -> list[tuple[object, ...]]:
        with (
            pymysql.connect(
                unix_socket=str(self._socket), user="root", autocommit=True
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def checksums(self) -> Checksums:
        rows = self.query("CHECKSUM TABLE shop.orders, shop.stock, shop.audit")
        return {str(name): None if found is None else int(str(found)) for name, found in rows}

    def gtids(self) -> str:
        return str(self.query("SELECT @@gtid_executed")[0][0]).replace("\n", "")


# What must be so in the end


def check_keys(site: Site) -> None:
    """Foreign keys of the table that is back, and to it, are in force."""
    orders = "INSERT INTO shop.orders (id, customer) VALUES"
    parcels = "INSERT INTO shop.parcels VALUES"
    site.source.query(f"{orders} (5001, 1)", f"{parcels} (1, 5001)")
    for refused in (f"{orders} (5002, 77)", f"{parcels} (2, 5002)"):
        with pytest.raises(pymysql.err.IntegrityError, match="foreign key constraint fails"):
            site.source.query(refused)


def check_one_table(site: Site, second: Second) -> None:
    """The table is back; the scratch server is marked, and its GTIDs are those of the goal."""
    before = site.held["before the mistake"]["shop.orders"]
    assert before is not None
    assert second.checksums()["shop.orders"] == before
    ((noted,),) = second.query("SHOW DATABASES LIKE 'binlog2s3_recovery%'")
    assert second.query(f"SELECT only_tables FROM {noted}.note") == [('["shop.orders"]',)]
    ((_name, live),) = site.source.query("CHECKSUM TABLE shop.orders")
    assert live == before
    check_keys(site)


def check_dropped_table(site: Site, second: Second) -> None:
    before, end = site.held["before the mistake"], site.held["at the end"]
    assert before["shop.orders"] is not None
    assert end["shop.orders"] is None
    assert second.checksums() == {**end, "shop.orders": before["shop.orders"]}
    ((_name, live),) = site.source.query("CHECKSUM TABLE shop.orders")
    assert live == before["shop.orders"]
    ((count,),) = site.source.query("SELECT COUNT(*) FROM shop.orders")
    assert count == 80
    check_keys(site)


def check_at_the_end(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["at the end"]
    assert second.gtids() == site.gtids["at the end"]


def check_streamed_again(site: Site, second: Second) -> None:
    check_at_the_end(site, second)
    second.query("INSERT INTO shop.audit (what) VALUES ('we are back')")
    ((uuid,),) = second.query("SELECT @@server_uuid")
    (place,) = second.query("SHOW BINARY LOG STATUS")
    site.arrives(str(uuid), str(place[0]), int(str(place[1])))
    old = site.streamers[-1]

    def gives_way() -> bool:
        try:
            old.check()
        except CompanyFailedError:
            return old.wait() != 0
        return "standing by" in old.log.read_text()

    wait_until(gives_way, what="the old streamer has ended, or stands by")


def check_gap(site: Site, second: Second) -> None:
    held = second.checksums()
    end, before = site.held["at the end"], site.held["before the gap"]
    assert held["shop.orders"] == end["shop.orders"]
    assert held["shop.audit"] == before["shop.audit"] != end["shop.audit"]


def check_fail_over(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["on the old source"]
    assert second.checksums() != site.held["at the end"]


def check_reset(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["before the reset"]
    assert second.checksums() != site.held["at the end"]
    assert second.gtids() == site.gtids["before the reset"]


def check_without_gtids(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["at the end"]


def check_only_aws(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["before the mistake"]
    assert second.gtids() == site.gtids["before the mistake"]
    fetched = sorted((Path(site.variables["WORK"]) / "binlogs").glob(f"{PREFIX}*"))
    assert {path.name: masked_bytes(path.read_bytes()) for path in fetched} == on_disk(site.source)


def check_mariadb(site: Site, second: Second) -> None:
    assert second.checksums() == site.held["before the mistake"]
    ((_name, live),) = site.source.query("CHECKSUM TABLE shop.orders")
    assert live == site.held["before the mistake"]["shop.orders"]
    check_keys(site)


def overlap(site: Site) -> None:
    """The open binlog in chunks that overlap, as they may; one has nothing of its own."""
    site.streamers[-1].stop()
    bucket = Bucket(site.store, BUCKET)
    before = bucket.chunks()
    (name,) = {chunk.binlog for chunk in before}
    body = bucket.binlogs()[name]
    size = len(body)
    folder = before[0].key.rpartition("/")[0]
    with closing(site.store.client()) as client:
        for chunk in before:
            client.delete_object(Bucket=BUCKET, Key=chunk.key)
        for begin, end in ((0, size // 2), (0, 99), (size // 4, size // 3), (size // 3, size)):
            data = body[begin:end]
            key = f"{folder}/{begin:016}-{end:016}-{crc64_hex(crc64nvme(data))}"
            client.put_object(Bucket=BUCKET, Key=key, Body=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An accident, the pages' sections to follow, and what must be so in the end.

    `prepare` does something to what the accident has left, before.
    """

    accident: str
    sections: tuple[str, ...]
    check: Callable[[Site, Second], None]
    prepare: Callable[[Site], None] | None = None
    flavour: str = "mysql"
    gtid: bool = True


CASES = {
    "dropped table": Case(
        accident="dropped-table",
        sections=(
            "prepare: Three facts",
            SETTINGS,
            DUMP,
            "dropped-table: Which transaction was it?",
            "dropped-table: Roll the second server forward",
            "without-one-transaction",
            "dropped-table: The table goes back",
        ),
        check=check_dropped_table,
    ),
    "one table back": Case(
        accident="dropped-table",
        sections=(SETTINGS, DUMP, "one-table"),
        check=check_one_table,
    ),
    "lost host": Case(
        accident="lost-host",
        sections=(SETTINGS, DUMP, "lost-host", "lost-host: Its own settings", STREAM),
        check=check_streamed_again,
    ),
    "only the bucket": Case(
        accident="lost-all",
        sections=(SETTINGS, DUMP, "only-the-bucket"),
        check=check_at_the_end,
    ),
    "gap": Case(
        accident="gap",
        sections=(SETTINGS, DUMP, "gap"),
        check=check_gap,
    ),
    "fail-over": Case(
        accident="fail-over",
        sections=(SETTINGS, DUMP, "fail-over"),
        check=check_fail_over,
    ),
    "reset": Case(
        accident="reset",
        sections=(SETTINGS, DUMP, "reset"),
        check=check_reset,
    ),
    "snapshot": Case(
        accident="snapshot",
        sections=(SETTINGS, "snapshot"),
        check=check_at_the_end,
    ),
    "without GTIDs": Case(
        accident="snapshot",
        sections=(SETTINGS, "snapshot-without-gtids"),
        check=check_without_gtids,
        gtid=False,
    ),
    "only aws": Case(
        accident="dropped-table",
        sections=(SETTINGS, DUMP, "only-aws"),
        check=check_only_aws,
        prepare=overlap,
    ),
    "mariadb": Case(
        accident="dropped-table",
        sections=("mariadb: A second server", "mariadb: A table was dropped"),
        check=check_mariadb,
        flavour="mariadb",
    ),
}
END = "second-server: Put it away"


def _blocks(pages: list[Block], section: str) -> list[Block]:
    return [block for block in pages if block.section == section and not block.not_run]


@pytest.fixture
def follow(
    request: pytest.FixtureRequest, minio_binary: Path, aws_command: Path
) -> Callable[[Case], None]:
    """Let the accident of a case happen, and do what the pages say."""

    def run(case: Case) -> None:
        binaries: ServerBinaries = request.getfixturevalue(f"{case.flavour}_binaries")
        pages = read_pages()
        with (
            temporary_directory("b2s-") as folder,
            accident(
                case.accident, folder / "site", binaries, minio_binary, gtid=case.gtid
            ) as site,
        ):
            path = programs(folder / "programs", binaries, aws_command)
            if case.flavour == "mariadb":
                install_db(path[0], binaries)
            if case.prepare is not None:
                case.prepare(site)
            variables = {**site.variables, "DB": "shop", "TABLE": "orders"}
            with Shell(folder / "shell", path, variables, site.environment) as shell:
                for section in case.sections:
                    for block in _blocks(pages, section):
                        shell.run(block)
                case.check(site, Second(site))
                if case.flavour == "mysql":
                    for block in _blocks(pages, END):
                        shell.run(block)
                assert not shell.problems, "\n".join(shell.problems)

    return run


@pytest.mark.parametrize("name", [*CASES])
def test_the_page_word_for_word(follow: Callable[[Case], None], name: str) -> None:
    """Pasted block by block, it brings back what was lost, and prints what it shows."""
    follow(CASES[name])


def test_no_block_is_left_out() -> None:
    """Each one is run at some accident, or says why not; few do."""
    pages = read_pages()
    followed = {VARIABLES, END}.union(*(case.sections for case in CASES.values()))
    assert {block.section for block in pages} == followed
    assert len([block for block in pages if block.not_run]) <= 2
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    fences = re.findall(r"(?m)^```(\w*)$", text)
    assert len(fences) == 2 * len(pages) + 2 * len([b for b in pages if b.shown is not None])
    assert len([fence for fence in fences if fence == "sh"]) == len(pages)


def test_the_variables_are_those_that_the_accidents_have() -> None:
    """All that prepare.md has, and no other; the blocks of the pages use each."""
    pages = read_pages()
    (block,) = (block for block in pages if block.section == VARIABLES)
    names = re.findall(r"(?m)^(?:export )?([A-Z0-9_]+)=", block.text)
    assert set(names) == {
        "AWS_DEFAULT_REGION",
        "S3URL",
        "SOURCE",
        "BACKUP",
        "LATER",
        "SNAPSHOT",
        "WORK",
        "PORT",
        "LIVE",
        "PASSWORD_FILE",
        "DB",
        "TABLE",
        "WHEN",
    }
    rest = "".join(one.text for one in pages if one is not block)
    assert [name for name in names if f"${name}" not in rest] == ["AWS_DEFAULT_REGION"]


def test_every_page_is_a_case_of_the_start_page() -> None:
    """Or one that the cases lead to; a link that leads nowhere fails tests/unit/test_links.py."""
    linked: set[str] = set()
    for page in PAGES:
        linked |= {
            Path(link).stem
            for link in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8"))
        }
        if page == START:
            cases = set(linked)
    pages = {page.stem for page in PAGES if page != START}
    assert pages <= linked
    assert len(pages & cases) > 10


def test_the_messages_that_are_named_are_there() -> None:
    """Each that the table has as a program's words is one of ours, exit code and all."""
    text = (ROOT / "docs/reference/messages.md").read_text(encoding="utf-8")
    sources = "".join(
        path.read_text(encoding="utf-8") for path in sorted((ROOT / "binlog2s3").rglob("*.py"))
    )
    sources = re.sub(r'"\n\s*f?"', "", sources)
    rows = re.findall(r"(?m)^\| (\d+) \| `([^`]+)`", text)
    assert len(rows) > 8
    missing = [words for _code, words in rows if words not in sources]
    assert missing == []
