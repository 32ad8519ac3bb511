"""Small buckets, each with one thing that commands must tell: the input of the golden files.

They are built in code, with times of their own, and the same on every machine. `BUCKETS` has them
by name, with what the commands are called with.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Position, Retired
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType
from binlog2s3.status.model import Purge, SpoolStatus, document
from tests import damage
from tests.binlog_writer import UUID_A, UUID_B, XID, BinlogWriter, query_body
from tests.documents import (
    BACKUP,
    BACKUP_RUN,
    BEAT,
    DRILL,
    FLOOR,
    LINEAGE,
    TIME,
    like,
    parent_of,
    stored_as,
)
from tests.memory_client import MemoryClient
from tests.snapshots import LAYOUT, MARIADB, Bucket
from tests.unit.binlog.test_content import inside, payload, rows, table_map
from tests.unit.status.test_from_bucket import SAID

MINUTE = timedelta(minutes=1)
HOUR, DAY = 60 * MINUTE, 24 * 60 * MINUTE
EVERY_SOURCE = "without --source"
"""In a call: for commands that need no source."""
TOKENS = ("a1b2", "b2c3", "c3d4")
Events = Sequence[tuple[int, bytes]]


def name(number: int) -> BinlogName:
    return BinlogName("mysql-bin", number)


def query(text: str, db: str = "shop") -> tuple[int, bytes]:
    return EventType.QUERY, query_body(text, db=db)


CHANGES: Sequence[Events] = (
    [query("BEGIN"), table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1), XID],
    [query("BEGIN"), table_map(8, "stock"), rows(EventType.UPDATE_ROWS, 8, 2), XID],
    [query("BEGIN"), table_map(7, "orders"), rows(EventType.DELETE_ROWS, 7, 3), XID],
)
"""What a source commits, one after the other, a minute each."""
DROP: Events = [query("DROP TABLE `orders` /* by hand */")]


SPOOL = SpoolStatus(
    directory="/var/lib/binlog2s3/orders", bytes=4096, free_bytes=40 << 30, min_free_bytes=2 << 30
)


class Source(Bucket):
    """The source `orders`: what it commits, and what its streamer has put into the bucket.

    `at` is the time; it goes on with each transaction. `executed` are the GTIDs so far.
    """

    def __init__(
        self, first: Lineage = LINEAGE, *, step: timedelta = MINUTE, begin: datetime = TIME
    ) -> None:
        self.at = begin
        self.step = step
        self.number, self.gno, self.uuid, self.before = 1, 0, UUID_A, ""
        lineage = like(
            first,
            id=f"{begin:%Y%m%dT%H%M%SZ}-{self.uuid[:8]}-{TOKENS[0]}",
            first_binlog=name(1),
            first_binlog_time=begin,
            gtid_set="",
        )
        super().__init__(lineage, now=lambda: self.at)

    @property
    def executed(self) -> str:
        own = f"{self.uuid}:1-{self.gno}" if self.gno else ""
        return str(GtidSet.parse(",".join(filter(None, (self.before, own)))))

    def binlog(self, changes: Sequence[Events], *, ends: bool) -> BinlogWriter:
        """The next binlog."""
        made = BinlogWriter(
            server_version=self.lineage.server_version,
            timestamp=int(self.at.timestamp()),
            in_use=not ends,
        )
        made.previous_gtids(GtidSet.parse(self.executed))
        for events in changes:
            self.at += self.step
            self.gno += 1
            made.timestamp = int(self.at.timestamp())
            commit_us = made.timestamp * 1_000_000 + 250_000
            made.transaction([*events], gtid=(self.uuid, "", self.gno), commit_us=commit_us)
        if ends:
            made.rotate(str(name(self.number + 1)))
        return made

    def closes(self, count: int = 1, changes: Sequence[Events] = CHANGES) -> None:
        """So many binlogs are archived."""
        for _ in range(count):
            made = self.binlog(changes, ends=True)
            self.archived_at = self.at
            self.archive(made.data, name(self.number))
            self.number += 1

    def grows(self, changes: Sequence[Events] = CHANGES) -> BinlogWriter:
        """The open binlog is durable, in two chunks."""
        made = self.binlog(changes, ends=False)
        middle = made.transactions[0].end
        self.chunks(made.data, 0, middle, len(made.data), name=name(self.number))
        self.open = made
        return made

    def ends(self) -> dict[str, Any]:
        """The open binlog is the last one of its lineage; where it ends, as a parent names it."""
        size = len(self.grows().data)
        return {"binlog": str(name(self.number)), "offset": size, "gtid_set": self.executed}

    def continues(
        self, at: int, *, uuid: str = "", join: str = "exact", missing: str = "", **of: Any
    ) -> None:
        """Another lineage begins, with the binlog of this number."""
        parent = parent_of(self.lineage.id, join=join, missing=missing, **of)
        self.uuid, self.number = uuid or self.uuid, at
        self.at += self.step
        token = TOKENS[1 + (self.lineage.parent is not None)]
        self.lineage = like(
            self.lineage,
            id=f"{self.at:%Y%m%dT%H%M%SZ}-{self.uuid[:8]}-{token}",
            server_uuid=self.uuid,
            first_binlog=name(at),
            first_binlog_time=self.at,
            gtid_set=self.executed,
            parent=parent,
        )
        self.put(LAYOUT.lineage(self.lineage.id), self.lineage.to_json())

    def _purge(self) -> Purge:
        """What the source may delete: all that is archived."""
        before = name(self.number - 1) if self.number > self.lineage.first_binlog.number else None
        to = str(name(self.number)) if before is not None else None
        newest = str(before) if before is not None else None
        return Purge(expires=True, expire_seconds=30 * 86400.0, newest_safe=newest, to=to)

    def beats(self, *, behind: int = 0, **fields: Any) -> None:
        """Its streamer says how it is; the source is so many bytes ahead of it."""
        size = len(self.open.data)
        self.at += timedelta(seconds=1)
        here = Position(binlog=name(self.number), offset=size, gtid_set=self.executed)
        server = replace(here, offset=size + behind)
        said = replace(
            SAID,
            at=self.at,
            durable=here,
            covered_until=self.at,
            server=replace(
                SAID.server, uuid=self.uuid, position=replace(server, gtid_set=""), asked_at=self.at
            ),
            spool=SPOOL,
            purge=self._purge(),
            lag=replace(SAID.lag, bytes=behind, transactions=int(behind > 0), seconds=0.4),
        )
        beat = replace(
            BEAT,
            generation=1 + (self.lineage.parent is not None),
            since=TIME,
            at=self.at,
            lineage=self.lineage.id,
            server_uuid=self.uuid,
            durable=here,
            server=server,
            covered_until=self.at,
            status=json.loads(json.dumps(document(said))),
        )
        self.beat(replace(beat, **fields))


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    """A bucket, the time at which commands look at it, and what they get beside the usual words.

    `calls`: for a command, in place of its usual call, the words of each call.
    """

    client: MemoryClient
    now: datetime
    source: str = "orders"
    calls: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)


def golden(source: Source, **more: Any) -> Golden:
    """20 s after the last that has happened there."""
    now = source.at + timedelta(seconds=20)
    return Golden(client=MemoryClient(source, lambda: now), now=now, **more)


def pitr(*goals: Sequence[str], start: str = "") -> dict[str, list[list[str]]]:
    """Plans to these goals, from a restored backup that has these GTIDs."""
    return {"pitr": [[*goal, f"--from-gtid-set={start}", "--dry-run"] for goal in goals]}


NONSENSE = ("--table=orders", "--type=drip", "--between=2026-01-02", "--gtid=x", "--min-rows=0",
            "--limit=-1", "--order=random")  # fmt: skip
NEVER = ("--since=2026-01-02 03:04:05", "--last=0", f"--from-gtid-set={UUID_A}:1",
         "--from-backup=/dev/null/none", "--against-source")  # fmt: skip
CONTRADICTIONS = ("--all", "--spool=/x", "--interval=soon", "--count=0")
TOO_MUCH = ("--all", "--source=x", "--from=daemon", "--watch", "--check", "--lag-warning=5",
            "--lag-critical=4", "--purge-warning=60", "--spool-critical=10")  # fmt: skip
TOO_LITTLE = (EVERY_SOURCE, "--from=bucket", "--interval=3", "--count=3", "--lag-critical=3",
              "--expect=/x")  # fmt: skip
UNUSABLE = ("--part-size=3", "--mysql-password-file=/nowhere", "--concurrency=many")
"""What cannot be asked for: all of it is said at once."""


def empty() -> Golden:
    """Nothing was ever put."""
    client = MemoryClient(Bucket(now=lambda: TIME), lambda: TIME)
    client.store.objects.clear()
    return Golden(
        client=client,
        now=TIME,
        calls={
            "list": [[], [EVERY_SOURCE]],
            "status": [["--from=bucket"], ["--all"], CONTRADICTIONS, TOO_MUCH, TOO_LITTLE,
                       ["--watch", "--json"], ["--from=bucket", "--check"]],
            "find": [[], NONSENSE, [f"--gtid={UUID_A}:1", "--gtid=0-1-5"]],
            "verify": [["--deep"], NEVER],
            "check": [[], UNUSABLE, (*UNUSABLE, "--all")],
            **pitr(["--latest"], start=f"{UUID_A}:1-2"),
        },
    )  # fmt: skip


NOWHERE = (
    f"--to-gtid={UUID_A}:99",
    "--to-time=2001-01-01T00:00:00Z",
    "--to-position=mysql-bin.000009:4",
    "--to-position=mysql-bin.000001:300",
)
"""Goals that `one_open` does not have."""


def one_open() -> Golden:
    """A streamer that runs since a few minutes; nothing is closed yet."""
    source, start = Source(), [f"--from-gtid-set={UUID_A}:1"]
    source.grows([*CHANGES, DROP])
    source.beats(behind=900)
    return golden(
        source,
        calls={
            "list": [[], ["--lineage=x"], ["--source=order"], ["--lineage=x", EVERY_SOURCE]],
            "status": [
                ["--from=bucket"],
                ["--spool=/dev/null/spool"],
                ["--all"],
                ["--from=bucket", "--check"],
                ["--from=bucket", "--check", "--lag-warning=20s"],
                ["--from=bucket", "--check", "--lag-warning=10s", "--lag-critical=0.3m"],
                ["--from=bucket", "--check", "--purge-warning=50h", "--purge-critical=49h"],
            ],
            "find": [
                [],
                ["--table=a.b", "--table=c.*", "--type=insert", "--type=delete", "--min-rows=2",
                 "--between=2026-01-01T00:00Z/2026-01-02T00:00Z"],
                ["--table=shop.orders", "--type=ddl"],
                ["--table=shop.order"],
                ["--between=/2001-01-01T00:00Z"],
                ["--table=shop.orders", "--type=drop", "--limit=1", "--print=gtid"],
                ["--table=shop.order", "--type=drop", "--limit=1", "--print=gtid"],
                ["--source=order"],
                ["--lineage=nope"],
                ["--gtid=0-1-5"],
            ],
            "check": [["--all"]],
            "pitr": [
                ["--latest", *start, "--dry-run"],
                [f"--before-gtid={UUID_A}:4", *start, "--dry-run"],
                ["--latest", f"--from-gtid-set={UUID_A}:1-4", "--dry-run"],
                *([one, *start, "--dry-run"] for one in NOWHERE),
                ["--to-gtid=0-1-5", "--output-dir=/dev/null/out", "--dry-run"],
                ["--latest", "--lineage=nope", *start, "--dry-run"],
                ["--latest", "--source=order", *start, "--dry-run"],
            ],
        },
    )  # fmt: skip


def forty() -> Golden:
    """Forty binlogs, one an hour: 39 are archived."""
    source = Source(step=20 * MINUTE)
    source.closes(39)
    source.grows()
    source.beats()
    return golden(
        source,
        calls={
            "find": [["--limit=3"], ["--between=2026-01-02T10:00Z/2026-01-02T11:00Z"]],
            **pitr(
                ["--latest"],
                ["--to-time=2026-01-03T01:00:00+01:00"],
                [f"--to-gtid={UUID_A}:60"],
                ["--to-position=mysql-bin.000007:4"],
                start=f"{UUID_A}:1-10",
            ),
            "prune": [["--keep-binlogs-for=1d", "--allow-empty", "--dry-run"]],
        },
    )


def fork() -> Golden:
    """A fail-over: the new server does not have the last transaction of the old one."""
    source = Source()
    source.closes(2)
    old = source.grows()
    cut, source.gno = old.transactions[-2].end, source.gno - 1
    source.before, at_cut = source.executed, source.executed
    source.gno = 0
    source.continues(1, uuid=UUID_B, binlog=str(name(3)), offset=cut, gtid_set=at_cut)
    source.closes()
    source.grows()
    source.beats()
    dead = f"{UUID_A}:9"
    return golden(
        source,
        calls={
            "find": [[], ["--lineage=all", f"--gtid={dead}"]],
            "rows": [[f"--gtid={dead}"], [f"--gtid={dead}", "--lineage=all"]],
            "verify": [
                ["--deep"],
                [f"--from-gtid-set={UUID_A}:1-4"],
                ["--source=other"],
                ["--lineage=20200101T000000Z-3e11fa47-ffff"],
            ],
            **pitr(
                ["--latest"],
                ["--latest", f"--skip-gtid={UUID_B}:2"],
                ["--latest", f"--skip-gtid={UUID_B}:2", "--skip-leaves-hole"],
                [f"--before-gtid={dead}"],
                start=f"{UUID_A}:1-4",
            ),
        },
    )


def gap() -> Golden:
    """The source purged what the streamer, which did not run, had not read yet."""
    source = Source()
    source.closes(2)
    end = source.ends()
    source.gno += 5
    source.at += 5 * HOUR
    source.continues(5, join="gap", missing=f"{UUID_A}:10-14", **end)
    source.closes()
    source.grows()
    source.beats()
    return golden(
        source,
        calls={
            "list": [[], [f"--lineage={source.lineage.id}"]],
            "verify": [["--deep"], [f"--from-gtid-set={UUID_A}:1-4"]],
            **pitr(["--latest"], ["--latest", "--allow-gap"], start=f"{UUID_A}:1-4"),
        },
    )


def unknown() -> Golden:
    """RESET BINARY LOGS AND GTIDS: the same names and GTIDs again, and nothing joins the two."""
    source = Source()
    source.closes(2)
    end = source.ends()
    source.gno = 0
    source.continues(1, join="unknown", **end)
    source.closes()
    source.grows()
    source.beats()
    return golden(
        source,
        calls={
            "find": [[], ["--order=oldest"], [f"--gtid={UUID_A}:2", "--lineage=all"]],
            **pitr(["--latest"], start=f"{UUID_A}:1-4"),
        },
    )


def damaged_by(*damages: str, **calls: Sequence[Sequence[str]]) -> Golden:
    """The archive of tests/damage.py, 20 s after its streamer was stopped."""
    at = datetime.fromtimestamp(damage.NOW, TIME.tzinfo) + 11 * HOUR
    store = Bucket(now=lambda: at)
    store.objects.clear()
    archive = damage.fill(store, at=at)
    for what in damages:
        (damage.DAMAGES.get(what) or damage.BYTES[what]).act(archive)
    now = at + timedelta(seconds=20)
    client = MemoryClient(store, lambda: now)
    return Golden(client=client, now=now, source="test", calls=calls)


def damaged() -> Golden:
    """A fail-over's archive, in which bytes, entries and chunks were changed or are gone."""
    start = f"--from-gtid-set={UUID_A}:1-2"
    goals = ("--latest", "--to-position=mysql-bin.000002:4", f"--to-gtid={UUID_A}:5")
    return damaged_by(
        "a missing entry",
        "foreign in the archive",
        "foreign among the chunks",
        "a rotten chunk",
        "a missing last object",
        verify=[
            ["--deep"],
            [],
            ["--last=1"],
            ["--since=2026-11-21T09:58:30Z"],
            [f"--lineage={damage.OLD}"],
            ["--last=1", "--since=2026-11-21T09:58:30Z"],
        ],
        find=[["--between=2026-11-21T09:38:31Z/"]],
        pitr=[[goal, start, "--dry-run"] for goal in goals],
    )


def rotten() -> Golden:
    """A byte of an archived binlog was flipped."""
    return damaged_by(
        "a flipped byte",
        verify=[["--deep"], []],
        find=[["--limit=3"]],
        pitr=[["--latest", f"--from-gtid-set={UUID_A}:1-2", "--dry-run"]],
    )


def lost_end() -> Golden:
    """The last bytes of the open binlog were durable, and are gone."""
    return damaged_by(
        "a missing last chunk",
        find=[["--limit=3"]],
        pitr=[["--latest", f"--from-gtid-set={UUID_A}:1-2", "--dry-run"]],
    )


PLACE = ("--from-binlog=mysql-bin.000001", "--from-position=452")


def mariadb() -> Golden:
    """Without gtid_strict_mode: the second binlog uses numbers of domain 0 again."""
    source = Source(like(MARIADB, server_version="11.4.2-MariaDB-log"))
    body = rows(EventType.WRITE_ROWS, 7, 1)[1]
    inserted = EventType.WRITE_ROWS_V1, body[:8] + body[10:]  # the first version has no extra data
    change = [table_map(7, "orders"), inserted, XID]
    for state, numbers in (({}, (1, 2, 3)), ({(0, 7): 3}, (2, 3, 4)), ({(0, 7): 4}, (5, 6))):
        made = BinlogWriter(
            server_version="11.4.2-MariaDB-log", timestamp=int(source.at.timestamp())
        )
        made.gtid_list(MariadbGtidList(state))
        for number in numbers:
            source.at += MINUTE
            made.timestamp = int(source.at.timestamp())
            made.mariadb_transaction(change, gtid=(0, number))
        if numbers[-1] == 6:
            source.open = made
            source.chunks(made.data, 0, len(made.data), name=name(3))
            break
        made.rotate(str(name(source.number + 1)))
        source.archived_at = source.at
        source.archive(made.data, name(source.number))
        source.number += 1
    durable = Position(binlog=name(3), offset=len(source.open.data), gtid_set="0-7-6")
    source.beats(durable=durable, server=durable, status=None)
    return golden(
        source,
        calls={
            "find": [[], ["--gtid=0-7-3"]],
            "pitr": [
                ["--latest", "--from-gtid-set=0-7-3", "--dry-run"],
                ["--latest", *PLACE, "--dry-run"],
                ["--latest", *PLACE, "--skip-gtid=0-7-5", "--dry-run"],
                ["--before-gtid=0-7-3", *PLACE, "--dry-run"],
            ],
        },
    )


def floors() -> Golden:
    """Pruned twice: the floor was raised a week ago and again now; nothing was deleted since."""
    source = Source(step=8 * HOUR)
    source.closes(12)
    source.grows()
    floor = replace(FLOOR, lineage=source.lineage.id)
    for number, days, deleted in ((4, 7, True), (6, 0, False)):
        last = f"{UUID_A}:1-{3 * (number - 1)}"
        now, source.at = source.at, source.at - days * DAY
        made = replace(floor, binlog=name(number), gtid_set=last, raised_at=source.at)
        source.put(LAYOUT.floor(made.lineage, number), made.to_json())
        source.at = now
        for old in range(1, number) if deleted else ():
            source.delete([LAYOUT.binlog(made.lineage, name(old))])
            source.delete([LAYOUT.entry(made.lineage, name(old))])
    source.beats()
    return golden(
        source,
        calls={
            "prune": [
                ["--keep-binlogs-for=2d", "--allow-empty", "--dry-run"],
                ["--keep-binlogs-for=2d", "--allow-empty", "--grace=0s", "--dry-run"],
                [f"--keep-from-gtid-set={UUID_A}:1-30", "--dry-run"],
            ],
            "find": [["--order=oldest", "--limit=3"]],
            **pitr(["--latest"], start=f"{UUID_A}:1-4"),
        },
    )


def with_backups() -> Golden:
    """Some that reach now, one of another server, one that counts nowhere; and three drills.

    The bucket itself has one, and what a run left that failed.
    """
    source = Source(step=8 * HOUR)
    run = replace(BACKUP_RUN, id="20260103T000000Z-1f2e3d4c")
    source.put(LAYOUT.backup_run(run.id), run.to_json())
    source.put(LAYOUT.stored(run.id, 1), b"all but registered")
    source.create_upload(LAYOUT.stored(run.id, 2))
    source.closes(20)
    source.grows()
    source.beats()
    id_ = "202601{:02}T000000Z-1f2e3d4c"
    monday = replace(
        BACKUP,
        binlog=None,
        position=None,
        lineage=None,
        id=id_.format(5),
        label="monday",
        gtid_set=f"{UUID_A}:1-8",
        checked=True,
        taken_at=TIME + 3 * DAY,
        registered_at=TIME + 3 * DAY + HOUR,
    )
    friday = replace(
        monday,
        id=id_.format(9),
        label="friday",
        location="s3://backups/friday",
        gtid_set=f"{UUID_A}:1-20",
        taken_at=TIME + 7 * DAY,
        registered_at=TIME + 7 * DAY + HOUR,
    )
    stranger = replace(
        monday, id=id_.format(10), label="of another server", gtid_set=f"{UUID_B}:1-20"
    )
    broken = replace(
        monday,
        id=id_.format(11),
        label="without the table stock",
        tool="mysqldump",
        gtid_set=f"{UUID_A}:1-25",
        checked=False,
        defects=("it has not all tables: --ignore-table=shop.stock",),
        accepted="stock is filled by a job",
    )
    placed = replace(
        BACKUP,
        gtid_set=None,
        lineage=None,
        id=id_.format(12),
        label="by position",
        location="",
        tool="other",
        binlog=name(10),
        position=4,
        taken_at=TIME + 9 * DAY,
        registered_at=TIME + 9 * DAY,
    )
    dump = b"-- the dump of this source --"
    stored = replace(
        monday,
        id=id_.format(4),
        label="stored",
        location=f"s3://acme/pre/archive/orders/base/{id_.format(4)}/",
        gtid_set=f"{UUID_A}:1-4",
        taken_at=TIME + 2 * DAY,
        registered_at=TIME + 2 * DAY + HOUR,
        stored=stored_as(dump),
    )
    source.put(LAYOUT.stored(stored.id, 1), dump)
    for one in (stored, monday, friday, stranger, broken, placed):
        source.put(LAYOUT.backup(one.id), one.to_json())
    for number, what in enumerate(
        (
            {"backup": monday.id},
            {"backup": friday.id, "label": "friday"},
            {
                "backup": friday.id,
                "label": "friday",
                "outcome": "failed",
                "step": "restore",
                "error": "the restore command ended with exit code 1",
                "restored": "",
                "proven_until": None,
            },
        )
    ):
        at = TIME + (10 + 2 * number) * DAY
        drill = replace(
            DRILL,
            id=f"{at:%Y%m%dT%H%M%SZ}-5a6b7c8d",
            started_at=at,
            finished_at=at + 41 * MINUTE,
            lineage=source.lineage.id,
            **({"proven_until": at} | what),
        )
        source.put(LAYOUT.drill(drill.id), drill.to_json())
    return golden(
        source,
        calls={
            "status": [
                ["--from=bucket"],
                ["--from=bucket", "--backup-max-age=2d", "--drill-max-age=7d"],
            ],
            "pitr": [
                ["--latest"],
                ["--to-time=2026-01-08T00:00:00Z"],
                ["--latest", "--from-backup-id=monday", "--dry-run"],
                ["--latest", "--from-backup-id=stranger", "--dry-run"],
            ],
            "prune": [
                ["--keep=7d", "--dry-run"],
                ["--keep=7d", "--grace=0s", "--dry-run"],
                ["--keep=365d", "--dry-run"],
            ],
        },
    )


def locked(*, conflict: bool = False) -> Golden:
    """Object Lock keeps versions: one was overwritten, one deleted, and one was put before."""
    source = Source()
    client = MemoryClient(source, lambda: source.at, locked=TIME.replace(year=2100))
    of = source.lineage.id
    source.put(LAYOUT.binlog(of, name(4)), b"put before it was archived")
    source.closes(5)
    source.grows()
    source.beats()
    source.at += timedelta(seconds=10)
    source.put(LAYOUT.binlog(of, name(1)), b"put after it was archived")
    source.delete([LAYOUT.binlog(of, name(2)), LAYOUT.entry(of, name(2))])
    if conflict:
        key = LAYOUT.entry(of, name(3))
        forged = json.loads(source.objects[key].data) | {"transactions": 99}
        source.put(key, json.dumps(forged).encode())
    source.at += timedelta(seconds=10)
    return Golden(
        client=client,
        now=source.at,
        calls={
            **pitr(["--latest"], start=f"{UUID_A}:1-2"),
            "prune": [["--keep-binlogs-for=5m", "--grace=0s", "--allow-empty", "--dry-run"]],
        },
    )


def conflict() -> Golden:
    """The same, and of one entry two versions differ, of which nothing shows which is right."""
    return locked(conflict=True)


def hostile() -> Golden:
    """Names, statements and texts that would command a terminal, a shell, or a reader's eye."""
    source = Source()
    escape, forged = "\x1b[2J\x1b]0;owned\x07", "x\nerror: forged"
    events: list[Events] = [
        [query("BEGIN"), table_map(7, escape, db=forged), rows(EventType.WRITE_ROWS, 7, 1), XID],
        [query("BEGIN"), table_map(7, "a`b'c\"d", db="--yes"),
         rows(EventType.WRITE_ROWS, 7, 1), XID],
        [query("BEGIN"), table_map(7, "\u202egnp.exe", db="s\u00fc\u00df"),
         rows(EventType.DELETE_ROWS, 7, 1), XID],
        [query(f"DROP TABLE `{escape}` -- {forged}\r\n$(reboot)", db=forged)],
        [query("DROP TABLE t" + " /* long */" * 40)],
    ]  # fmt: skip
    source.lineage = like(source.lineage, server_version="9.7.0 <b>; rm -rf / $(reboot)")
    source.put(LAYOUT.lineage(source.lineage.id), source.lineage.to_json())
    source.lineage = like(source.lineage, server_version="9.7.0")
    source.closes(1, events)
    source.grows()
    source.beats(host="db1; $(reboot) error: forged" + " and so on" * 20, state="fine, really")
    backup = replace(
        BACKUP,
        label="error: forged; $(reboot)",
        location="s3://backups/--yes `reboot`",
        tool="tool' OR 1=1",
        gtid_set=f"{UUID_A}:1-2",
        binlog=None,
        position=None,
        lineage=None,
    )
    source.put(LAYOUT.backup(backup.id), backup.to_json())
    forged_label = backup.to_json().replace(b"$(reboot)", rb"\u001b[2J\nforged")
    other = backup.id.replace("T03", "T04")
    source.put(LAYOUT.backup(other), forged_label.replace(backup.id.encode(), other.encode()))
    run = replace(BACKUP_RUN, host="db1; $(reboot)", error="\u00fc error: forged `reboot`")
    source.put(LAYOUT.backup_run(run.id), run.to_json())
    for key in (
        f"pre/archive/orders/{escape}/x",
        f"{LAYOUT.stored_backups}{escape}/0001",
        f"{LAYOUT.backup_runs}{forged}.json",
        f"{LAYOUT.archive}{source.lineage.id}/binlogs/{forged}",
        f"pre/archive/{escape}/x",
        "pre/archive/../../etc/passwd",
        f"{LAYOUT.live}{source.lineage.id}/{name(2)}/{escape}",
        f"{LAYOUT.writers}{forged}.json",
    ):
        source.put(key, b"x")
    return golden(
        source,
        calls={
            "list": [[], [EVERY_SOURCE]],
            "verify": [["--deep", EVERY_SOURCE]],
            "pitr": [["--latest", "--dry-run"], ["--latest", f"--from-gtid-set={UUID_A}:1",
                                                 "--dry-run"]],
        },
    )  # fmt: skip


def many_sources() -> Golden:
    """Four sources below one prefix: well, silent for a day, stopped, and retired."""
    source = Source()
    source.closes()
    source.grows()
    source.beats()
    now = source.at
    for other, state, begin in (
        ("billing", "streaming", TIME - DAY),
        ("crm", "stopped", TIME),
        ("stock", "stopped", TIME),
    ):
        copy = Source(begin=begin)
        copy.closes()
        copy.grows()
        copy.beats(state=state)
        for key, found in copy.objects.items():
            data = found.data.replace(b'"orders"', f'"{other}"'.encode())
            is_document = key.endswith(".json")
            source.at = found.info.last_modified
            source.put(key.replace("/orders/", f"/{other}/"), data if is_document else found.data)
    source.at = now
    retired = Retired(source="stock", retired_at=source.at)
    source.put("pre/archive/stock/retired.json", retired.to_json())
    found = golden(
        source,
        calls={
            "status": [["--all"], ["--all", "--check"], ["--from=bucket", "--source=billing"]],
            "verify": [["--deep"], [f"--from-gtid-set={UUID_A}:1"]],
            "pitr": [["--latest", f"--from-gtid-set={UUID_A}:1", "--dry-run", "--source=stock"]],
        },
    )
    return replace(found, source="")


HOSTILE = b"a\x1b[31m\xff' /* x */"
BIG: Events = [
    query("BEGIN"),
    table_map(7, "orders"),
    table_map(8, "sto\x1bck"),
    rows(EventType.WRITE_ROWS, 7, 2, flags=0),
    rows(EventType.UPDATE_ROWS, 8, 1, value=HOSTILE, flags=0),
    rows(EventType.DELETE_ROWS, 7, 3),
    query("UPDATE stock SET a = 1"),
    XID,
]
"""Rows of two tables and three kinds, one of which would command a terminal, and a statement."""


def in_a_frame(events: Events) -> Events:
    """A compressed transaction of these; no release of a library makes other bytes of it."""
    data = inside([*events])
    block = (1 | len(data) << 3).to_bytes(3, "little")
    return [payload(b"\x28\xb5\x2f\xfd\xe0" + len(data).to_bytes(8, "little") + block + data), XID]


def row_by_row() -> Golden:
    """Transactions with values, tables and kinds of all sorts; the last one is compressed."""
    source = Source()
    source.grows([BIG, *CHANGES, DROP, in_a_frame(BIG)])
    source.beats()
    found = source.open.transactions
    places = [one.begin + more for one in (found[0], found[1], found[4]) for more in (0, 60)]
    big = [f"--gtid={UUID_A}:1"]
    which = (["--limit=0"], ["--limit=1"], ["--table=shop.orders", "--limit=5"],
             ["--table=shop.*"], ["--table=other.*"])  # fmt: skip
    return golden(
        source,
        calls={
            "rows": [
                *(
                    [f"--gtid={UUID_A}:{number}", *more]
                    for number in (1, 6)
                    for more in ([], *which)
                ),
                [f"--gtid={UUID_A}:2"],
                *([f"--at=mysql-bin.000001:{place}"] for place in (*places, 4, 999999999)),
                [f"--at=mysql-bin.000007:{places[0]}"],
                [],
                [*big, "--at=mysql-bin.000001:4"],
                [f"--gtid={UUID_A}:99"],
                [*big, "--lineage=nope"],
                ["--gtid=0-1-5"],
                [*big, "--mysqlbinlog=/dev/null/no"],
            ],
        },
    )


BUCKETS: Mapping[str, Callable[[], Golden]] = {
    "empty": empty,
    "one-open": one_open,
    "forty": forty,
    "fork": fork,
    "gap": gap,
    "unknown-join": unknown,
    "damage": damaged,
    "rotten-byte": rotten,
    "lost-end": lost_end,
    "mariadb-goes-back": mariadb,
    "floors": floors,
    "backups-and-drills": with_backups,
    "object-lock": locked,
    "object-lock-conflict": conflict,
    "hostile-names": hostile,
    "many-sources": many_sources,
    "row-by-row": row_by_row,
}
