"""One world that chaos reigns in: MySQL under load, MinIO, doors between, streamers.

What is done at the moment a trap springs happens in the proxy's thread (`strike`), what takes time
or starts a process in the test's own (`follow`): the kernel ends a child with the thread that
started it.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event, Lock
from typing import Self

from bench.processes import children
from lab import get
from lab.fault import Action, Answer, Delay, Drop, DropAnswer, Request
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from lab.toxiproxy import Toxiproxy
from tests.chaos.audit import Audit
from tests.chaos.fault import PART, Kind
from tests.chaos.writes import Writes
from tests.integration.bucket import CHUNK
from tests.integration.stream_process import StreamProcess, Value

MIB = 1 << 20
LIMIT = 24 * MIB
EXIT_TAKEN_OVER = 9
SPOOL_NAMES = ("run-", "lock", "reserve", "claim.json", "status.sock")


class Spoiler:
    """A rule that answers the next few requests with what `choose` says, or none."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._actions: list[Action] = []
        self.no_binlogs = False

    def next(self, actions: list[Action]) -> None:
        with self._lock:
            self._actions = actions

    def __call__(self, request: Request) -> Action | None:
        is_binlog = "/binlogs/" in request.path or CHUNK.search(request.path)
        if self.no_binlogs and is_binlog and request.method in ("PUT", "POST"):
            return error(503, "SlowDown")
        with self._lock:
            return self._actions.pop() if self._actions else None


def error(status: int, code: str) -> Answer:
    """A store's own error."""
    body = f"<Error><Code>{code}</Code><Message>chaos</Message></Error>"
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())


class World:
    """`with` starts it all; `streams` are the two that may work, by their spool's name.

    It has a method for each fault.
    """

    def __init__(self, directory: Path, seed: str) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self._seed = seed
        self._stack = ExitStack()
        self.spoiler = Spoiler()
        self.streams: dict[str, StreamProcess] = {}
        self.active = "a"
        self.stopped: list[int] = []
        self.starts = 0
        self.wiped = False
        self.pause = Event()
        self.options: dict[str, Value] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            enter = stack.enter_context
            self.server = enter(MysqlServer(get.mysql(), self.directory / "server"))
            self.store = enter(MinioServer(get.minio(), self.directory / "minio"))
            self.bucket = self.store.make_bucket()
            doors = enter(Toxiproxy(get.toxiproxy(), self.directory))
            self.store_door = doors.door("store", self.store.port)
            self.server_door = doors.door("server", self.server.port)
            self.proxy = enter(RecordingProxy(self.store_door.url, ahead_bytes=2 * PART))
            self.proxy.rules.append(self.spoiler)
            self.writes = enter(Writes(self.server, self._seed))
            self.audit = enter(Audit(self.server, self.store, self.bucket, self.proxy))
            stack.callback(self._end_streams)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.calm()
        self._stack.close()

    def _end_streams(self) -> None:
        for stream in self.streams.values():
            if stream.process.poll() is None:
                stream.kill()

    # streamers

    @property
    def stream(self) -> StreamProcess:
        """The one that is to be the writer."""
        return self.streams[self.active]

    @property
    def alive(self) -> bool:
        return self.active in self.streams and self.stream.process.poll() is None

    def start(self, slot: str | None = None) -> None:
        """Start a streamer on a spool, the active one's unless another is named."""
        self.active = slot or self.active
        place = self.directory / self.active
        chosen: dict[str, Value] = {
            "endpoint-url": self.proxy.url,
            "mysql-port": self.server_door.port,
            "stall-timeout": 5,
            "spool-min-free-bytes": 0,
            "mysql-connect-timeout": 5,
            **self.options,
        }
        stream = StreamProcess(
            place,
            self.server,
            self.store,
            self.bucket,
            options=chosen,
            arguments=["--take-over", "--exit-on-other-writer"],
        )
        self.streams[self.active] = stream.__enter__()
        self.starts += 1

    def stop(self) -> None:
        """As a service manager does it."""
        self._thaw()
        if self.alive:
            status = self.stream.terminate()
            if status != 0:
                self.differs(f"SIGTERM: the streamer ended with {status}")

    def ensure(self) -> None:
        """A streamer works. One that ended by itself has failed us, at a start too."""
        for slot, stream in self.streams.items():
            status = stream.process.poll()
            if status is not None and status >= 0 and not getattr(stream, "told", False):
                stream.told = True  # type: ignore[attr-defined]
                if slot == self.active or status != EXIT_TAKEN_OVER:
                    self.differs(f"{slot} ended with {status}: {stream.stderr()[-1500:]}")
        if not self.alive:
            self.start()

    def child(self) -> int | None:
        """The active streamer's mysqlbinlog."""
        return next(iter(self._children(self.stream)), None) if self.alive else None

    def differs(self, what: str) -> None:
        """A difference between what is and what should be."""
        self.audit.differences.append(what)

    # faults

    def strike(self, kind: Kind) -> Action | None:
        """The part of a fault that happens at this very moment."""
        match kind:
            case Kind.KILL | Kind.WIPE:
                self._kill()
                return Drop()
            case Kind.KILL_AFTER:
                return DropAnswer(done=self._kill)
            case Kind.KILL_LATE:
                self._kill()
                return Delay(self.chance.uniform(2, 5), DropAnswer())
            case Kind.KILL_CHILD:
                self._signal(self.child(), signal.SIGKILL)
            case Kind.KILL_SERVER:
                self.server.kill()
            case Kind.STOP | Kind.FROZEN:
                self._freeze(self.stream.pid if self.alive else None)
                return Delay(self.chance.uniform(3, 6)) if kind is Kind.FROZEN else None
            case Kind.STOP_CHILD:
                self._freeze(self.child())
            case Kind.STOP_SERVER:
                self._freeze(self.server.pid)
            case Kind.CUT_STORE:
                self.store_door.shut()
            case Kind.SWALLOW_STORE:
                self.store_door.swallow()
            case Kind.CUT_SERVER:
                self.server_door.shut()
            case Kind.LATENCY:
                self.store_door.slow(milliseconds=self.chance.choice((100, 500, 1500)), jitter=50)
            case Kind.ERRORS:
                answers = [error(500, "InternalError"), error(503, "SlowDown"), Answer(502)]
                self.spoiler.next(self.chance.choices(answers, k=self.chance.randint(2, 12)))
                return error(503, "SlowDown")
            case Kind.LOST:
                self.spoiler.next([DropAnswer()] * self.chance.randint(0, 4))
                return DropAnswer()
            case Kind.DISK:
                self.spoiler.no_binlogs = True
            case Kind.UPLOADS:
                self._abort_uploads()
            case Kind.SECOND | Kind.RESET | Kind.ROTATIONS:
                pass
        return None

    def follow(self, kind: Kind) -> None:
        """The rest of a fault, until it is over."""
        match kind:
            case Kind.KILL | Kind.KILL_AFTER | Kind.KILL_LATE | Kind.WIPE:
                self.stream.process.wait(60)
                if kind is Kind.WIPE:
                    self.wiped = True
                    shutil.rmtree(self.directory / self.active / "spool", ignore_errors=True)
                self.pause.wait(self.chance.choice((0.0, 0.0, 1.0)))
                self.ensure()
            case Kind.KILL_SERVER:
                self.pause.wait(self.chance.uniform(0, 3))
                self.server.start()
            case Kind.STOP | Kind.STOP_CHILD | Kind.STOP_SERVER:
                self.pause.wait(self.chance.uniform(1, 9))
                self._thaw()
            case Kind.CUT_STORE | Kind.CUT_SERVER | Kind.LATENCY | Kind.SWALLOW_STORE:
                self.pause.wait(self.chance.uniform(0.2, 6))
                self.calm()
            case Kind.DISK:
                self.pause.wait(self.chance.uniform(4, 8))
                self.calm()
            case Kind.SECOND | Kind.FROZEN:
                self._second(frozen=kind is Kind.FROZEN)
            case Kind.RESET:
                self._reset()
            case Kind.ROTATIONS:
                for _ in range(self.chance.randint(3, 8)):
                    self.server.query("FLUSH BINARY LOGS")
                    self.pause.wait(self.chance.choice((0.0, 0.05, 0.3)))
            case _:
                self.pause.wait(self.chance.uniform(0, 1))

    def calm(self) -> None:
        """All that spoils is taken away; processes that stand go on; the server runs."""
        self.spoiler.next([])
        self.spoiler.no_binlogs = False
        self.store_door.mend()
        self._thaw()

    def _second(self, *, frozen: bool) -> None:
        old = self.active
        other = "b" if old == "a" else "a"
        self.start(other)
        self.pause.wait(self.chance.uniform(0, 6) if frozen else self.chance.uniform(0, 2))
        self._thaw()
        both = [self.streams[old], self.streams[other]]
        deadline = time.monotonic() + 60
        while all(each.process.poll() is None for each in both) and time.monotonic() < deadline:
            self.pause.wait(0.2)
        if all(each.process.poll() is None for each in both):
            self.differs(f"{old} still works 60 s after {other} was started")
            both[0].kill()
        # of two claims that crossed each other either may be the greater one
        self.active = old if both[1].process.poll() == EXIT_TAKEN_OVER else other
        lost = both[self.active == old]
        if lost.process.poll() not in (EXIT_TAKEN_OVER, -signal.SIGKILL):
            self.differs(f"it ended with {lost.process.poll()}: {lost.stderr()[-1500:]}")
        lost.told = True  # type: ignore[attr-defined]

    def _reset(self) -> None:
        self.writes.hold()
        self.audit.keep()
        self.server.query("RESET BINARY LOGS AND GTIDS")

    def _kill(self) -> None:
        if self.alive:
            self.stream.process.send_signal(signal.SIGKILL)
            self.stream.process.wait(60)

    def _freeze(self, pid: int | None) -> None:
        if pid is not None:
            self.stopped.append(pid)
            self._signal(pid, signal.SIGSTOP)

    def _thaw(self) -> None:
        while self.stopped:
            self._signal(self.stopped.pop(), signal.SIGCONT)

    def _signal(self, pid: int | None, number: signal.Signals) -> None:
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _abort_uploads(self) -> None:
        with closing(self.store.client()) as client:
            for upload in client.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []):
                with contextlib.suppress(client.exceptions.NoSuchUpload):
                    client.abort_multipart_upload(
                        Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    )

    # what must not be left

    def leftovers(self) -> Iterator[str]:
        """Processes and files that nobody needs any more."""
        working = [each for each in self.streams.values() if each.process.poll() is None]
        ours = {each.pid for each in working}
        ours |= {pid for each in working for pid in self._children(each)}
        for pid, words in processes():
            if str(self.directory / self.active / "spool") in words and pid not in ours:
                yield f"process {pid} of nobody: {words[:200]}"
        count = len(self._children(self.stream)) if self.alive else 0
        if count != 1:
            yield f"the streamer has {count} children"
        spool = self.directory / self.active / "spool"
        open_one = self.server.binlogs()[-1][0]
        for path in sorted(spool.iterdir()):
            if not path.name.startswith(SPOOL_NAMES):
                yield f"a strange file in the spool: {path.name}"
        for path in sorted(spool.glob("run-*/*")):
            if path.name not in ("run.json", open_one):
                yield f"left in the spool: {path.parent.name}/{path.name}"
        for slot in self.streams:
            if "Traceback" in self.streams[slot].stderr():
                yield f"a traceback of {slot}"

    def _children(self, stream: StreamProcess) -> list[int]:
        with contextlib.suppress(OSError):  # it ends meanwhile
            return children(stream.pid)
        return []

    def size(self) -> int:
        """Bytes of the server's open binlog."""
        return self.server.binlogs()[-1][1]

    def full_chunks(self) -> int:
        """How many full chunks the store has acknowledged of the binlog it got one of last."""
        last, count = "", 0
        for record in self.proxy.records:
            chunk = CHUNK.search(record.request.path)
            whole = chunk and int(chunk["end"]) - int(chunk["begin"]) == PART
            if chunk and whole and record.request.method == "PUT" and record.status == 200:
                place = f"{chunk['lineage']}/{chunk['name']}"
                last, count = place, count + 1 if place == last else 1
        return count


def processes() -> Iterator[tuple[int, str]]:
    """Process ids and command lines of all that run."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield (
                int(path.parent.name),
                path.read_bytes().replace(b"\0", b" ").decode(errors="replace"),
            )
