"""What is known of one binlog in the bucket. Values only."""

from dataclasses import dataclass
from typing import Literal

from binlog2s3.archive.parts import Block
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.names import BinlogName


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of one binlog in the bucket: from its entry, or by reading all of it.

    `size` bytes of it can be read, up to `transaction_end` they are whole transactions. `ended`:
    the server has finished it, and all of it is here.
    Commit times in microseconds, UTC; not `commit_exact`: at least one is in whole seconds.
    `gtids_before` is None where the binlog does not say. `damaged` are ranges in bytes, also what
    should be there behind `size` and cannot be read. `server_id`: of the server that wrote it; what
    it had from other servers has theirs.
    """

    name: BinlogName
    size: int
    state: Literal["archived", "open"]
    ended: bool
    first_us: int
    transaction_end: int
    least_commit_us: int | None
    greatest_commit_us: int | None
    commit_exact: bool
    gtids_before: Gtids | None
    gtids_added: Gtids
    transactions: int
    anonymous: int
    blocks: tuple[Block, ...]
    damaged: tuple[tuple[int, int], ...] = ()
    server_id: int | None = None
