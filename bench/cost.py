"""What a source costs in requests. Pure; the report compares it with what was measured.

S3 Standard in us-east-1: PUT, COPY, POST and LIST 0.005 dollars a thousand, GET and HEAD 0.0004,
deletes and aborts nothing. Bytes stored and bytes out of the region are not in it; bytes into S3
cost nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bench.traffic import CHEAP, FREE, FULL_CHUNK_BYTES

DOLLARS_DEAR = 0.005 / 1000
DOLLARS_CHEAP = 0.0004 / 1000
HOURS_OF_MONTH = 730
HEARTBEAT_SECONDS = 30.0
LISTINGS_OF_HEARTBEAT = 2.0
"""One of the writers, one of the standbys."""
STANDBY_LOOK_SECONDS = 10.0
"""A third of a heartbeat interval: a standby lists the writers, and once more at its own beat."""
BINLOG_BYTES = 1 << 30
"""max_binlog_size as the server has it."""
PER_BINLOG = {
    "LIST objects": 2.0,
    "LIST uploads": 3.0,
    "HEAD": 4.0,
    "GET": 1.0,
    "POST create upload": 1.0,
    "POST complete upload": 1.0,
    "PUT part": 1.0,
    "PUT entry": 1.0,
    "DELETE": 1.0,
}


@dataclass(frozen=True, slots=True)
class Load:
    """Transactions a second, and bytes of binlog each."""

    rate: float
    bytes_each: float

    @property
    def bytes_per_second(self) -> float:
        """Bytes of binlog."""
        return self.rate * self.bytes_each


def requests_for(
    load: Load, flush_interval: float, *, seconds: float, binlogs: float
) -> dict[str, float]:
    """By kind, in a time in which this many binlogs are closed.

    A flush a transaction or a flush an interval, whichever is less. Sixteen are put again as one,
    and so on up. Those sixteen are deleted then, and all of a part once its full chunk is there.
    """
    heartbeats = seconds / HEARTBEAT_SECONDS
    flushes = seconds * min(load.rate, 1 / flush_interval)
    full = load.bytes_per_second * seconds / FULL_CHUNK_BYTES
    requests = {name: count * binlogs for name, count in PER_BINLOG.items()}
    requests["LIST objects"] += LISTINGS_OF_HEARTBEAT * heartbeats
    requests["PUT heartbeat"] = heartbeats
    requests["PUT small chunk"] = flushes * 16 / 15
    requests["PUT full chunk"] = full
    requests["COPY part"] = full
    requests["DELETE"] += flushes / 16 + full
    return requests


def requests_of_standby(seconds: float) -> dict[str, float]:
    """By kind: what a standby sends, whatever the source writes."""
    heartbeats = seconds / HEARTBEAT_SECONDS
    return {
        "LIST objects": seconds / STANDBY_LOOK_SECONDS + heartbeats,
        "PUT heartbeat": heartbeats,
    }


def dear(requests: Mapping[str, float]) -> float:
    """How many are of the kinds that cost most."""
    return sum(count for kind, count in requests.items() if kind not in CHEAP | FREE)


def dollars(requests: Mapping[str, float]) -> float:
    cheap = sum(count for kind, count in requests.items() if kind in CHEAP)
    return dear(requests) * DOLLARS_DEAR + cheap * DOLLARS_CHEAP


def dollars_per_month(load: Load, flush_interval: float) -> float:
    """What a source costs a month. A binlog ends when it is full, and at least once a day."""
    seconds = HOURS_OF_MONTH * 3600.0
    binlogs = max(load.bytes_per_second * seconds / BINLOG_BYTES, HOURS_OF_MONTH / 24)
    return dollars(requests_for(load, flush_interval, seconds=seconds, binlogs=binlogs))
