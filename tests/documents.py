"""One document of each kind that lies in a bucket, with every field filled."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from binlog2s3.archive.backups import Backup, BackupRun
from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.documents import Entry, Lineage, LineageFloor, Parent, SourceServer
from binlog2s3.archive.drills import DrillResult
from binlog2s3.archive.parts import Block, Grid
from binlog2s3.archive.stored import PART_SIZE, Compression, Stored, StoredObject
from binlog2s3.archive.writers import Heartbeat, Position, Turn
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.names import BinlogName

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
ID = "20260102T030405Z-3e11fa47-a1b2"
TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NAME = BinlogName.parse("mysql-bin.000002")

LINEAGE = Lineage(
    lineage=ID,
    source="orders",
    server=SourceServer(uuid=UUID, flavour="mysql", version="9.7.0"),
    first_binlog=BinlogName.parse("mysql-bin.000001"),
    first_binlog_time=TIME,
    gtid_set=f"{UUID}:1-5",
    parent=None,
)
ENTRY = Entry(
    name=NAME,
    size=1234,
    crc64nvme=Crc64(0xAE8B14860A799888),
    format_event_time=TIME,
    server_id=7,
    least_commit_us=1_795_253_309_000_001,
    greatest_commit_us=1_795_253_309_000_002,
    reached_us=1_795_253_309_000_002,
    commit_times="exact",
    gtid_set_before=f"{UUID}:1-5",
    gtid_set_added=f"{UUID}:6-7",
    transactions=2,
    anonymous_transactions=0,
    events=9,
    formats=({"offset": 4, "server_version": "9.7.0", "checksum": "crc32"},),
    blocks=(
        Block(
            offset=0,
            size=1234,
            crc64=Crc64(0x0A),
            first_offset=197,
            first_commit_us=1_795_253_309_000_001,
            first_gtid=f"{UUID}:6",
        ),
    ),
    damaged=(),
    end="rotate",
    next_binlog=BinlogName.parse("mysql-bin.000003"),
    archived_at=TIME,
)
FLOOR = LineageFloor(
    source="orders",
    lineage=ID,
    binlog=NAME,
    gtid_set=f"{UUID}:1-5",
    raised_at=TIME,
)
BACKUP = Backup(
    id="20260102T030405Z-1f2e3d4c",
    source="orders",
    label="monday",
    location="s3://backups/monday",
    tool="xtrabackup",
    flavour="mysql",
    server_uuid=UUID,
    gtid_set=f"{UUID}:1-5",
    binlog=NAME,
    position=157,
    lineage=ID,
    taken_at=TIME,
    registered_at=TIME + timedelta(minutes=4),
)
STORED = Stored(
    compression="zstd",
    size=123_456_789,
    crc64=Crc64(0xAE8B14860A799888),
    stored_size=9,
    began_at=TIME,
    ended_at=TIME + timedelta(minutes=4),
    part_size=PART_SIZE,
    objects=(StoredObject.of(9, [0xAE8B14860A799888], Grid(PART_SIZE)),),
)
BACKUP_RUN = BackupRun(
    id=BACKUP.id,
    source="orders",
    host="db1",
    pid=4711,
    version="0.1.0",
    tool="mysqldump",
    since=TIME,
    at=TIME + timedelta(minutes=4),
    state="failed",
    read_bytes=123_456_789,
    error="mysqldump ended with status 2: Access denied",
)
DRILL = DrillResult(
    id="20260102T031244Z-5a6b7c8d",
    source="orders",
    outcome="proved",
    step=None,
    error="",
    backup=BACKUP.id,
    label="monday",
    goal="now",
    lineage=ID,
    binlog=NAME,
    position=157,
    proven_until=TIME,
    transactions=48_213,
    tables=312,
    statements=0,
    restored="its GTIDs",
    server_version="9.7.4",
    host="restore1",
    version="0.1.0",
    started_at=TIME,
    finished_at=TIME + timedelta(minutes=41),
)
BEAT = Heartbeat(
    generation=7,
    token="19b7ca9945841aa9",
    source="orders",
    host="db1",
    pid=4711,
    version="0.1.0",
    since=TIME,
    at=TIME + timedelta(microseconds=1),
    interval_seconds=30.0,
    state="streaming",
    lineage=ID,
    server_uuid=UUID,
    durable=Position(
        binlog=BinlogName.parse("mysql-bin.000001"), offset=157, gtid_set=f"{UUID}:1-5"
    ),
    server=Position(
        binlog=BinlogName.parse("mysql-bin.000002"), offset=900, gtid_set=f"{UUID}:1-6"
    ),
    covered_until=TIME,
    status={"format": 1, "state": "streaming"},
)


def stored_as(data: bytes, compression: Compression = "none") -> Stored:
    """These bytes in the bucket, as one part; what the program wrote, if not compressed."""
    crc64 = Crc64(crc64nvme(data))
    return replace(
        STORED,
        compression=compression,
        size=len(data),
        crc64=crc64,
        stored_size=len(data),
        objects=(StoredObject.of(len(data), [crc64], STORED.grid),),
    )


def parent_of(lineage: str, **fields: Any) -> Parent:
    """That a lineage continues from the first binlog of this one, unless the fields say else."""
    usual = {"binlog": "mysql-bin.000001", "offset": 157, "gtid_set": "", "missing": ""}
    given = {"lineage": lineage, "join": "exact", **usual, **fields}
    if isinstance(given["binlog"], str):
        given["binlog"] = BinlogName.parse(given["binlog"])
    return Parent(**given)


def turn_of(beat: Heartbeat, number: int | None = None) -> Turn:
    """What a writer has said of the lineage that it writes, before its first byte."""
    assert beat.lineage is not None
    return Turn(
        number=beat.generation if number is None else number,
        lineage=beat.lineage,
        generation=beat.generation,
        token=beat.token,
    )


def like(lineage: Lineage, **changes: Any) -> Lineage:
    """The lineage with other fields: those of its server by their names there, `id` for its id."""
    server = {"server_uuid": "uuid", "flavour": "flavour", "server_version": "version"}
    given = {server[name]: changes.pop(name) for name in list(changes) if name in server}
    if "id" in changes:
        changes["lineage"] = changes.pop("id")
    return replace(lineage, server=replace(lineage.server, **given), **changes)
