"""The uploader against a store that fails before and after the act, and a process that forgets.

Whatever happens, the object ends as the server's bytes, the entry describes it, the local copy goes
only after both, nothing under the archive changes once it is there, and no upload is left.
"""

import json
import random
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlog2s3.grid import (Grid)
from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Layout
from binlog2s3.checksum import crc64nvme
from binlog2s3.errors import StoreError
from binlog2s3.spool import Run, RunFacts, Spool
from binlog2s3.tailer import Tailer, Track
from binlog2s3.uploader import Uploader
from binlog2s3.workers import Outcome
from tests.binlog_writer import UUID_A, BinlogWriter, statement
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "s")
LINEAGE = "20260101T000000Z-3e11fa47-0000"
NAME = BinlogName.parse("mysql-bin.000001")
KEY = LAYOUT.binlog(LINEAGE, NAME)
ENTRY = LAYOUT.entry(LINEAGE, NAME)
OPERATIONS = ["put", "create_upload", "upload_part", "complete_upload", "head", "list_uploads"]


class InlineWorkers:
    """Workers without threads: a task is done when its outcome is taken, in any order."""

    def __init__(self, count: int, order: random.Random) -> None:
        self.count = count
        self.busy = 0
        self._order = order
        self._tasks: deque[tuple[object, Callable[[], object]]] = deque()

    def submit(self, token: object, work: Callable[[], object]) -> None:
        self.busy += 1
        self._tasks.append((token, work))

    def take(self, timeout_seconds: float) -> Outcome | None:  # noqa: ARG002
        if not self._tasks:
            return None
        self._tasks.rotate(-self._order.randrange(len(self._tasks)))
        token, work = self._tasks.popleft()
        self.busy -= 1
        try:
            return Outcome(token, value=work())
        except StoreError as error:
            return Outcome(token, error=error)


def a_binlog(transactions: int) -> bytes:
    writer = BinlogWriter()
    for number in range(1, transactions + 1):
        writer.transaction([statement("x" * 40)], gtid=(UUID_A, "", number))
    writer.rotate()
    return bytes(writer.data)


@contextmanager
def a_spool(data: bytes) -> Iterator[tuple[Spool, Run]]:
    with tempfile.TemporaryDirectory() as place:
        spool = Spool(Path(place) / "spool")
        run = spool.begin(
            RunFacts(
                source="s", target="t", server_uuid=UUID_A, binlog=str(NAME), position=4,
                lineage=LINEAGE,
            )
        )  # fmt: skip
        (run.directory / str(NAME)).write_bytes(data)
        try:
            yield spool, run
        finally:
            spool.close()


class Writer:
    """One streamer's uploader over a spool of its own; `track` is its view of the binlog."""

    def __init__(
        self, store: MemoryStore, spool: Spool, run: Run, part: int, order: random.Random
    ) -> None:
        self.path = run.directory / str(NAME)
        self.archived: list[Track] = []
        self.workers = InlineWorkers(3, order)
        tailer = Tailer(run, Grid(part))
        while not tailer.pump() and not (found := tailer.take_new()):
            pass
        while tailer.pump():
            pass
        tailer.close()
        self.track = found[0]
        self.track.judge({})
        self.uploader = Uploader(
            store=store,
            layout=LAYOUT,
            lineage=LINEAGE,
            grid=Grid(part),
            spool=spool,
            workers=self.workers,  # type: ignore[arg-type]
            on_archived=self.archived.append,
            backoff=lambda failures: 0.0,  # noqa: ARG005
        )
        self.uploader.add(self.track)

    def step(self) -> None:
        self.uploader.step()
        if (outcome := self.workers.take(0)) is not None:
            self.uploader.take(outcome)


FAULTS = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.sampled_from(["die", "switch", *OPERATIONS]),
        st.sampled_from(["before", "after"]),
    ),
    max_size=12,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    transactions=st.integers(1, 12),
    part=st.integers(100, 900),
    other_part=st.integers(100, 900),
    faults=FAULTS,
    seed=st.integers(0, 2**32),
    lists_uploads=st.booleans(),
    crc64=st.booleans(),
    interleaved=st.booleans(),
)
def test_a_binlog_ends_archived_whatever_fails(
    transactions: int,
    part: int,
    other_part: int,
    faults: list[tuple[int, str, str]],
    seed: int,
    lists_uploads: bool,
    crc64: bool,
    interleaved: bool,
) -> None:
    """Failures, deaths and a second writer of another part size: the archive is right."""
    data = a_binlog(transactions)
    store = MemoryStore(min_part_bytes=1, crc64=crc64, lists_uploads=lists_uploads)
    order = random.Random(seed)
    at: dict[int, list[tuple[str, str]]] = {}
    for step, what, when in faults:
        at.setdefault(step, []).append((what, when))
    with a_spool(data) as (spool, run), a_spool(data) as (spool2, run2):
        places = [(spool, run, part), (spool2, run2, other_part)]
        writers = [Writer(store, *place, order) for place in places]
        active = 0
        first: object = None
        first_entry: object = None
        for step in range(2000):
            for what, when in at.get(step, []):
                if what == "die" and writers[active].path.exists():
                    writers[active] = Writer(store, *places[active], order)
                elif what == "switch":
                    active = 1 - active
                elif what in OPERATIONS:
                    store.fail_next(what, when, StoreError("fault", transient=True))  # type: ignore[arg-type]
            if interleaved:
                active = order.randrange(2)
            writers[active].step()
            if KEY in store.objects:
                first = first or store.objects[KEY]
                assert store.objects[KEY] is first  # written once
                assert store.objects[KEY].data == data
            if ENTRY in store.objects:
                first_entry = first_entry or store.objects[ENTRY]
                assert store.objects[ENTRY] is first_entry
                assert KEY in store.objects
            for writer in writers:
                assert writer.path.exists() or ENTRY in store.objects
            if writers[0].archived and writers[1].archived:
                break
            if writers[active].archived and step > 60:
                active = 1 - active
        assert writers[0].archived
        assert writers[1].archived
        assert not writers[0].path.exists()
        entry = json.loads(store.objects[ENTRY].data)
        assert entry["size"] == len(data)
        assert int(entry["crc64nvme"], 16) == crc64nvme(data)
        assert entry["transactions"] == transactions
        if lists_uploads:
            assert not store.uploads


@settings(max_examples=30, deadline=None)
@given(part=st.integers(100, 400), seed=st.integers(0, 2**32))
def test_parts_that_are_there_are_not_sent_again(part: int, seed: int) -> None:
    """After a death in the middle of an upload only what is missing is sent."""
    data = a_binlog(20)
    store = MemoryStore(min_part_bytes=1)
    order = random.Random(seed)
    with a_spool(data) as (spool, run):
        writer = Writer(store, spool, run, part, order)
        while store.calls["upload_part"] < 3:
            writer.step()
        there = {p.info.number for u in store.uploads.values() for p in u.parts.values()}
        sent = store.calls["upload_part"]
        assert len(there) == sent
        writer = Writer(store, spool, run, part, order)
        for _ in range(500):
            writer.step()
            if writer.archived:
                break
        parts = len(list(Grid(part).parts(len(data))))
        assert store.calls["upload_part"] == parts
        assert store.calls["create_upload"] == 1
