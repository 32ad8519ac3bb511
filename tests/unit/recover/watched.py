"""A stream of events that watchers see."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from binlog2s3.recover.extract import Watcher, walked
from binlog2s3.recover.model import Checked, OpenStream, PlanPiece
from lab import pitr_examples
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.unit.binlog.test_content import Event, compressed

W = TypeVar("W", bound=Watcher)


def saw(watcher: W, *events: Event, packed: bool = False, without: int = 0, flags: int = 0) -> W:
    """The watcher, after it has seen a transaction of these events, without its last bytes.

    `packed`: in one of MySQL's compressed transactions. `flags`: of each of the events.
    """
    made = BinlogWriter()
    inside = [statement("BEGIN"), *events, XID]
    made.transaction([compressed(inside)] if packed else inside, gtid=(UUID_A, "", 1))
    data, head = bytearray(made.data)[: len(made.data) - without], made.ends[1]
    for _, body in events if flags else ():
        at = data.index(body)
        data[at - 2 : at] = flags.to_bytes(2, "little")

    def opened(pieces: Sequence[PlanPiece]) -> Iterator[Any]:
        yield pieces[0], iter([Checked(data=bytes(data[:head])), Checked(data=bytes(data[head:]))])

    stream: Iterator[Any] = walked(cast("OpenStream", opened), [watcher])(
        pitr_examples.PLAN.pieces[:1]
    )
    assert sum(len(one.data) for _, parts in stream for one in parts) == len(data)
    return watcher
