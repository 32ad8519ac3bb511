"""A client of a replication source that keeps what it is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from binlog2s3.binlog.events import Buffer

KIND = 4


@dataclass
class Got:
    """The events that came, whole. `many`: how many of them came together with others."""

    number: int = 1
    sent: int = 0
    events: list[bytearray] = field(default_factory=list)
    many: int = 0
    left: bool = False
    finished: bool = False

    def send_event(self, data: Buffer, size: int | None = None) -> None:
        if size is None or size:
            self.events.append(bytearray())
        self.events[-1] += data
        self.sent += len(data)

    def send_events(self, data: memoryview, sizes: Sequence[int]) -> None:
        self.many += len(sizes)
        for size in sizes:
            self.send_event(data[:size], size)
            data = data[size:]
        assert not data

    def flush(self) -> None:
        """All is sent at once."""

    def has_left(self) -> bool:
        return self.left

    def finish(self) -> None:
        self.finished = True

    def of(self, kind: int) -> list[bytes]:
        return [bytes(one) for one in self.events if one[KIND] == kind]

    def own(self) -> bytes:
        """The events that are in a binlog, as they are there: those with a time."""
        return b"".join(bytes(one) for one in self.events if one[:4] != bytes(4))
