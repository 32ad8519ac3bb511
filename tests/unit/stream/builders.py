"""Names, lists and bytes that several tests of the stream begin with."""

from contextlib import closing
from pathlib import Path

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.stream import SpoolLimits
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.contract import Body
from binlog2s3.stream.spool import RunFacts, Spool
from tests.binlog_writer import UUID_A, BinlogWriter

RUN = RunFacts(
    source="orders", target="s3://b/p", server_uuid=UUID_A, binlog="b.000001", position=4
)
"""A run of mysqlbinlog that begins with the first binlog."""
ALL_OF_IT = SpoolLimits(min_free_bytes=0)


def spool_in(directory: Path, limits: SpoolLimits = ALL_OF_IT) -> Spool:
    """The spool of those runs."""
    return Spool(directory, limits, source=RUN.source, target=RUN.target)


def name(number: int) -> BinlogName:
    """b.000001 and so on."""
    return BinlogName("b", number)


def rows(*numbers: int, size: int = 100) -> tuple[ServerBinlog, ...]:
    """What a server lists, all of this size."""
    return tuple(ServerBinlog(name=name(n), size=size, encrypted=False) for n in numbers)


def ends_of(writer: BinlogWriter) -> list[int]:
    """Where its transactions end."""
    return [transaction.end for transaction in writer.transactions]


def bytes_of(body: Body) -> bytes:
    """All of a small body."""
    with closing(body.open()) as reader:
        return reader.read(1 << 20)
