"""How fast the scanner checks events: events, bytes and CPU time, on binlogs made in memory.

`python -m bench.scanner` prints a table. It counts the CPU time of this process, because other
processes may share the machine; the best of several rounds counts. `track` is all that the
streamer does with the bytes of its spool: scanner, checksums, commit times.
"""

import argparse
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import process_time

from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.stream.tail import Track
from tests.binlog_writer import BEGIN, NOW_US, TABLE_MAP, UUID_A, XID, BinlogWriter

SLICE = 4 << 20
ROUNDS = 5
PART_SIZE = 5 << 20


def binlog(event_bytes: int, *, rows: int, size: int, flavour: str) -> BinlogWriter:
    """A binlog of `size` bytes: transactions of `rows` events of rows, their mean as given.

    `flavour` is mysql, mariadb, or anonymous (MySQL without GTIDs).
    """
    log = BinlogWriter(server_version="10.11.18-MariaDB-log" if flavour == "mariadb" else "9.7.4")
    framing = [] if flavour == "mariadb" else [BEGIN]
    pad = 0
    while True:
        begin, before = len(log.data), len(log.ends)
        events: list[tuple[int, bytes]] = [*framing]
        for _ in range(rows):
            events += [TABLE_MAP] if rows == 1 else []
            events.append((EventType.WRITE_ROWS, bytes(pad)))
        events.append(XID)
        number = len(log.transactions) + 1
        if flavour == "mariadb":
            log.mariadb_transaction(events, gtid=(0, number))
        else:
            gtid = (UUID_A, "", number) if flavour == "mysql" else None
            log.transaction(events, gtid=gtid, commit_us=NOW_US + 1000 * number)
        if not pad:  # the first transaction tells how large the rows must be
            missing = event_bytes * (len(log.ends) - before) - (len(log.data) - begin)
            pad = max(1, missing // rows)
        if len(log.data) >= size:
            return log


def slices(data: bytearray) -> Iterator[memoryview]:
    """What the tailer reads: slices of one buffer, which it uses again."""
    buffer = memoryview(bytearray(SLICE))
    for at in range(0, len(data), SLICE):
        piece = memoryview(data)[at : at + SLICE]
        buffer[: len(piece)] = piece
        yield buffer[: len(piece)]


def every(data: bytearray) -> None:
    """What a search or a recovery does: the scanner makes an object for each transaction."""
    scanner = Scanner()
    for piece in slices(data):
        scanner.feed(piece)
    assert scanner.event_end == len(data)


def track(data: bytearray) -> None:
    """What the streamer does."""
    one = Track(BinlogName.parse("mysql-bin.000001"), Path("none"), Grid(PART_SIZE))
    for piece in slices(data):
        one.feed(piece)
    assert one.size == len(data)


def headers(data: bytearray) -> None:
    """A bound: unpack each header, do nothing else."""
    unpack = struct.Struct("<4xB4xI").unpack_from
    at, end = 4, len(data)
    while at < end:
        at += unpack(data, at)[1]


WAYS: dict[str, Callable[[bytearray], None]] = {"headers": headers, "every": every, "track": track}


def best(way: Callable[[bytearray], None], data: bytearray, rounds: int = ROUNDS) -> float:
    """The least CPU seconds of a few rounds."""
    spent = []
    for _ in range(rounds):
        begun = process_time()
        way(data)
        spent.append(process_time() - begun)
    return min(spent)


SHAPES = (
    ("mysql", 119, 1),
    ("anonymous", 119, 1),
    ("mariadb", 119, 1),
    ("mysql", 300, 1),
    ("mysql", 8 << 10, 100),
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure each shape in each way, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=32, help="size of each binlog")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the best one counts")
    asked = parser.parse_args(arguments)
    print("binlog      bytes/event  way       events/s     MB/s  CPU s/GB")
    for flavour, event_bytes, rows in SHAPES:
        log = binlog(event_bytes, rows=rows, size=asked.megabytes << 20, flavour=flavour)
        size, events = len(log.data), len(log.ends) - 1
        for name, way in WAYS.items():
            seconds = best(way, log.data, asked.rounds)
            print(
                f"{flavour:10}  {size / events:11.0f}  {name:8}  {events / seconds / 1e6:6.2f} M  "
                f"{size / seconds / 1e6:7.0f}  {seconds / size * 1e9:8.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
