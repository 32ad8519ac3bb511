"""A report of `verify` with every field filled, and one with as few as there can be."""

from binlog2s3.binlog.names import BinlogName
from binlog2s3.inspect.verify.report import (
    BackupAnswer,
    ComparedBinlogs,
    Defect,
    Interval,
    LineageReport,
    RecordedGap,
    Repaired,
    Report,
    SourceReport,
)
from lab.pitr_examples import PLAN
from tests.documents import ID, LINEAGE, NAME, UUID

US = 1_795_253_309_000_001
DEFECT = Defect(
    kind="size", lineage=ID, binlog=NAME, key="archive/x", text="it has 1 bytes, its entry says 2"
)
BARE_DEFECT = Defect(kind="foreign", key="archive/notes.txt", text="it is of no kind")
INTERVAL = Interval(
    lineage=ID,
    first=BinlogName.parse("mysql-bin.000001"),
    last_lineage=ID,
    last=NAME,
    last_offset=1234,
    from_us=US,
    to_us=US + 1,
    gtids_before=f"{UUID}:1-5",
    gtids_after=f"{UUID}:1-7",
    binlogs=2,
    size=2468,
    transactions=2,
    why="mysql-bin.000003 is not there",
)
BARE_INTERVAL = Interval(
    lineage=ID,
    first=NAME,
    last_lineage=ID,
    last=NAME,
    last_offset=1234,
    from_us=None,
    to_us=None,
    gtids_before=None,
    gtids_after=None,
    binlogs=1,
    size=1234,
    transactions=0,
)
COMPARED = ComparedBinlogs(
    address="127.0.0.1:3306",
    server_uuid=UUID,
    listed=3,
    compared=2,
    first="mysql-bin.000001",
    last="mysql-bin.000003",
    lag=157,
    lagging=("mysql-bin.000003",),
    not_archived=("mysql-bin.000001",),
)
YES = BackupAnswer(
    start="--from-gtid-set",
    plan=PLAN,
    warnings=("the history begins after it",),
)
NO = BackupAnswer(start="the backup /b", why="a gap", hint="a later backup")
SOURCE = SourceReport(
    name="orders",
    tip=ID,
    writer="streaming on db1",
    lineages=[
        LineageReport(
            lineage=LINEAGE,
            current=True,
            binlogs=3,
            open=1,
            looked_at=2,
            size=2468,
            transactions=2,
            intervals=[INTERVAL],
        )
    ],
    history=[INTERVAL, BARE_INTERVAL],
    gaps=[
        RecordedGap(kind="gap", lineage=ID, text="between a and b", missing=f"{UUID}:8"),
        RecordedGap(kind="damaged", lineage=ID, text="bytes 1 to 2"),
    ],
    defects=[DEFECT, BARE_DEFECT],
    notes=["mysql-bin.000003 is being archived"],
    compared=COMPARED,
    answer=YES,
    repaired=[
        Repaired(lineage=ID, binlog=NAME, key="archive/e.json"),
        Repaired(lineage=ID, binlog=NAME, key="archive/f.json", why="its bytes are damaged"),
    ],
)
REPORT = Report(
    target="s3://bucket/pre",
    deep=True,
    since_us=US,
    last=2,
    lineage=ID,
    sources=[SOURCE, SourceReport(name="empty", answer=NO)],
    foreign=[BARE_DEFECT],
    seconds=1.5,
)
