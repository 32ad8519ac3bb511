"""Two streamers of one source by mistake: the last to start is the writer, the archive is right.

Both run on one machine, each with a spool of its own, so the second one's mysqlbinlog evicts the
first one's, and the bucket decides between them.
"""

import contextlib
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.fault import Gate
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from lab.verify import closed_binlogs
from tests.integration.bucket import CHUNK
from tests.integration.stream_process import Line, StreamProcess, run_to_end
from tests.integration.test_stream import wait_until_archived, write
from tests.timed import PATIENT_END
from tests.waiting import wait_until

# What a writer is frozen in the middle of: method and path of the request, megabytes to write. Of
# all but "body" the request has left its writer, and the store hears it while the writer is frozen.
REQUESTS = {
    "put": ("PUT", r"archive/.*/binlogs/", 0),
    "body": ("PUT", r"archive/.*/binlogs/", 4),
    "complete": ("POST", r"archive/.*/binlogs/", 12),
    "entry": ("PUT", r"archive/.*/entries/", 2),
}
BOTH = pytest.mark.stores("minio", "nanio")  # with conditional writes, and without
BUSY = 10  # seconds between heartbeats: a busy machine manages one in time


def objects(store: Store, bucket: str, part: str) -> dict[str, Any]:
    """What lies below pre/archive or pre/live, by key; `bytes` are the object's."""
    with closing(store.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=f"pre/{part}/"
        )
        found = {row["Key"]: row for page in pages for row in page.get("Contents", [])}
    return {key: (row.get("ETag"), row["LastModified"]) for key, row in found.items()}


def writers(store: Store, bucket: str) -> dict[int, dict[str, Any]]:
    """The writers' objects by generation; one that goes meanwhile is not there."""
    found = {}
    with closing(store.client()) as client:
        for key in objects(store, bucket, "live"):
            if "/writers/" in key:
                with suppress(client.exceptions.NoSuchKey):
                    body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
                    found[int(Path(key).name.partition("-")[0])] = json.loads(body)
    return found


def write_binlog(server: MysqlServer, megabytes: int) -> None:
    """Write so many megabytes in transactions of one, and close the binlog."""
    write(server, megabytes)
    server.query("FLUSH BINARY LOGS")


def wait_until_proved(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str
) -> None:
    """As `wait_until_archived`; and all is of one lineage."""
    wait_until_archived(stream, server, store, bucket)
    assert sum("lineage.json" in key for key in objects(store, bucket, "archive")) == 1


def child_of(stream: StreamProcess) -> int:
    """The process id of its mysqlbinlog, which it started once."""
    (line,) = stream.events("streaming")
    return int(line["pid"])


def freeze(stream: StreamProcess) -> list[int]:
    """SIGSTOP, as of a paused machine: the streamer and its mysqlbinlog; what to thaw."""
    pids = [stream.pid, child_of(stream)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def thaw(pids: list[int]) -> None:
    """Let them go on, the streamer last."""
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)


def heard_late(proxy: RecordingProxy, method: str, path: str) -> None:
    """Wait until the store has answered what was held."""
    wait_until(lambda: proxy.matching(method=method, path=path), what="the late request's answer")


def started(stream: StreamProcess) -> None:
    """Wait until it has claimed and reads."""
    stream.wait_for_event("streaming")


def ended_by_another(stream: StreamProcess) -> Line:
    """Wait for its end with exit 9; what it said, which names the other's host and the way out."""
    assert stream.wait() == 9, stream.stderr()
    line = stream.events("ended")[-1]
    assert "taken over" in line["error"]
    assert socket.gethostname() in line["error"]
    assert "--take-over" in line["hint"]
    assert "Traceback" not in stream.stderr()
    return line


def undisturbed(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str, child: int
) -> None:
    """It is the only writer, its mysqlbinlog is the one that it started, and it goes on."""
    (generation,) = [line["generation"] for line in stream.events("writer")]
    wait_until(lambda: set(writers(store, bucket)) == {generation}, what="one writer's object")
    assert child_of(stream) == child
    assert Path(f"/proc/{child}").exists()
    assert not stream.events("mysqlbinlog says")
    write_binlog(server, 1)
    wait_until_proved(stream, server, store, bucket)


def note_of(stream: StreamProcess) -> Path:
    """Where its spool says who took over."""
    return stream.spool / "superseded.json"


@contextlib.contextmanager
def superseded(
    place: Path,
    server: MysqlServer,
    store: Store,
    bucket: str,
    *,
    heartbeat: int = 1,
) -> Iterator[tuple[Path, StreamProcess]]:
    """A streamer that was ended by another one: its spool, and the other one, which works.

    The other one counts as dead a few seconds after a heartbeat that did not come: `heartbeat` is
    BUSY where it must not.
    """
    with StreamProcess(place / "a", server, store, bucket) as a:
        a.wait_for_event("new lineage")
        options = {"heartbeat-interval": heartbeat}
        with StreamProcess(
            place / "b", server, store, bucket, options=options, timing=PATIENT_END
        ) as b:
            started(b)
            ended_by_another(a)
            yield a.spool, b


@pytest.mark.gate("minio")
@BOTH
def test_the_first_one_ends_and_stays_ended(
    mysql: MysqlServer, store: Store, disk_tmp_path: Path
) -> None:
    """Exit 9, and again at each start on its spool, without a trace in the bucket.

    The other one does not notice; when that one has stopped, the first may start again.
    """
    bucket = store.make_bucket()
    with superseded(disk_tmp_path, mysql, store, bucket, heartbeat=BUSY) as (spool, b):
        child = child_of(b)
        note = json.loads((spool / "superseded.json").read_text())
        (line,) = b.events("writer")
        assert (note["generation"], note["token"]) == (line["generation"], line["token"])
        assert note["host"] == socket.gethostname()
        for attempt in range(3):
            place = disk_tmp_path / f"again-{attempt}"
            options = {"spool": spool}
            with StreamProcess(place, mysql, store, bucket, options=options) as again:
                ended_by_another(again)
                assert again.events("watching the other writer")
                assert not again.events("writer")
                assert not again.events("streaming")
        undisturbed(b, mysql, store, bucket, child)
        assert b.terminate() == 0
        options = {"spool": spool}
        with StreamProcess(disk_tmp_path / "a2", mysql, store, bucket, options=options) as a:
            a.wait_for_event("the other writer is gone", why="it has stopped")
            started_again = a.wait_for_event("writer")
            assert started_again["generation"] == b.events("writer")[-1]["generation"] + 1
            started(a)
            assert not (spool / "superseded.json").exists()
            wait_until_proved(a, mysql, store, bucket)
            assert a.terminate() == 0


def test_a_writer_that_was_killed_is_not_waited_for_longer_than_its_heartbeats(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """kill -9 of the newer one: the first one's next start sees that nothing moves, and goes on.

    Then the newer one is started again: the last to start is the writer once more.
    """
    with superseded(disk_tmp_path, mysql, store, bucket) as (spool, b):
        b.kill()
        options = {"spool": spool}
        with StreamProcess(disk_tmp_path / "a2", mysql, store, bucket, options=options) as a:
            a.wait_for_event("the other writer is gone", why="it renews its object no more")
            started(a)
            write_binlog(mysql, 1)
            wait_until_proved(a, mysql, store, bucket)
            options = {"spool": b.spool}
            with StreamProcess(disk_tmp_path / "b2", mysql, store, bucket, options=options) as b2:
                started(b2)
                ended_by_another(a)
                undisturbed(b2, mysql, store, bucket, child_of(b2))
                assert b2.terminate() == 0


def test_the_claim_of_a_killed_one_arrives_late(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Killed while its claim was on the way: the store hears it when the next one has claimed.

    Both have the same generation. The dead one's claim ends nobody, each time, and is removed.
    """
    spool = disk_tmp_path / "spool"
    for attempt in range(4):
        claims = re.compile(r"live/.*/writers/")
        with RecordingProxy(store.endpoint_url) as proxy, contextlib.ExitStack() as stack:
            gate = Gate(method="PUT", path=claims.pattern)
            stack.callback(gate.open)
            proxy.rules.append(gate)
            options: dict[str, Any] = {"endpoint-url": proxy.url, "spool": spool}
            place = disk_tmp_path / f"dead-{attempt}"
            with StreamProcess(place, mysql, store, bucket, options=options) as dead:
                assert gate.held.wait(60)
                dead.kill()
            options = {"spool": spool, "heartbeat-interval": 1}
            place = disk_tmp_path / f"next-{attempt}"
            with StreamProcess(place, mysql, store, bucket, options=options) as after:
                started(after)
                gate.open()
                heard_late(proxy, "PUT", claims.pattern)
                undisturbed(after, mysql, store, bucket, child_of(after))
                assert after.terminate() == 0
                (line,) = after.events("writer")
                late = [one.request.path for one in proxy.matching(method="PUT", path="/writers/")]
                assert late
                assert all(f"/{line['generation']:06d}-" in path for path in late)


def test_take_over_does_not_wait(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """--take-over makes the first one the writer at once; now the other one ends and stays so."""
    with superseded(disk_tmp_path, mysql, store, bucket) as (spool, b):
        options: dict[str, Any] = {"spool": spool, "heartbeat-interval": BUSY}
        with StreamProcess(
            disk_tmp_path / "a2", mysql, store, bucket, options=options, arguments=["--take-over"]
        ) as a:
            started(a)
            assert not a.events("watching the other writer")
            assert not (spool / "superseded.json").exists()
            ended_by_another(b)
            options = {"spool": b.spool}
            status, log, text = run_to_end(
                disk_tmp_path / "b2", mysql, store, bucket, options=options
            )
            assert (status, [line["event"] for line in log][-1]) == (9, "ended"), text
            undisturbed(a, mysql, store, bucket, child_of(a))
            assert a.terminate() == 0


def test_a_damaged_note_does_not_end_the_other_one(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Whoever is meant in a note that cannot be read: a writer that works is left alone."""
    with superseded(disk_tmp_path, mysql, store, bucket, heartbeat=BUSY) as (spool, b):
        (spool / "superseded.json").write_text('{"format": 1, "gen')
        options = {"spool": spool}
        with StreamProcess(disk_tmp_path / "a2", mysql, store, bucket, options=options) as a:
            ended_by_another(a)
            assert a.events("the note of who took over is damaged")
        undisturbed(b, mysql, store, bucket, child_of(b))
        assert b.terminate() == 0


def test_sigterm_ends_the_watch(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """The other one's heartbeats are far apart; a stop is obeyed at once, with exit 0, no claim."""
    with superseded(disk_tmp_path, mysql, store, bucket, heartbeat=600) as (spool, b):
        name, size = mysql.binlogs()[-1]

        def at_rest() -> bool:
            """Its first heartbeat has cleared away the other, and one chunk has all there is."""
            keys = list(objects(store, bucket, "live"))
            chunks = [m for key in keys if (m := CHUNK.search(key)) and m["name"] == name]
            spans = [(int(m["begin"]), int(m["end"])) for m in chunks]
            return sum("/writers/" in key for key in keys) == 1 and spans == [(0, size)]

        wait_until(at_rest, what="nothing more to be written")
        before = objects(store, bucket, "live")
        options = {"spool": spool}
        with StreamProcess(disk_tmp_path / "a2", mysql, store, bucket, options=options) as a:
            line = a.wait_for_event("watching the other writer")
            assert line["seconds"] > 1000
            assert a.terminate() == 0
            assert not a.events("writer")
        assert objects(store, bucket, "live") == before
        assert (spool / "superseded.json").exists()
        assert b.terminate() == 0


@BOTH
@pytest.mark.parametrize("held", REQUESTS)
def test_the_older_one_is_frozen_in_the_middle_of_a_request(
    mysql: MysqlServer, store: Store, disk_tmp_path: Path, held: str
) -> None:
    """Frozen, overtaken, thawed: it ends with exit 9, and no byte of the archive is another one.

    Its request is heard late. Where the store has conditional writes, no object is written anew.
    """
    bucket = store.make_bucket()
    method, path, megabytes = REQUESTS[held]
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(store.endpoint_url))
        gate = Gate(method=method, path=path)
        stack.callback(gate.open)
        options = {"endpoint-url": proxy.url}
        a = stack.enter_context(
            StreamProcess(disk_tmp_path / "a", mysql, store, bucket, options=options)
        )
        a.wait_for_event("new lineage")
        proxy.clear()
        proxy.rules.append(gate)
        write_binlog(mysql, megabytes)
        wait_until(gate.held.is_set, what="a request that is held")
        frozen = freeze(a)
        b = stack.enter_context(StreamProcess(disk_tmp_path / "b", mysql, store, bucket))
        started(b)
        write_binlog(mysql, 1)
        wait_until_proved(b, mysql, store, bucket)
        before = objects(store, bucket, "archive")
        gate.open()
        if held != "body":
            heard_late(proxy, method, path)
        thaw(frozen)
        ended_by_another(a)
        assert note_of(a).exists()
        after = objects(store, bucket, "archive")
        assert set(after) == set(before)
        if "conditions" not in store.lacks:
            assert after == before
        undisturbed(b, mysql, store, bucket, child_of(b))
        assert b.terminate() == 0


@BOTH
@pytest.mark.parametrize("held", ["put", "complete"])
def test_the_newer_one_is_frozen_in_the_middle_of_a_request(
    mysql: MysqlServer, store: Store, disk_tmp_path: Path, held: str
) -> None:
    """The first one, started again, sees no heartbeat and goes on; the thawed one ends with 9."""
    bucket = store.make_bucket()
    method, path, megabytes = REQUESTS[held]
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(store.endpoint_url))
        gate = Gate(method=method, path=path)
        stack.callback(gate.open)
        a = stack.enter_context(StreamProcess(disk_tmp_path / "a", mysql, store, bucket))
        a.wait_for_event("new lineage")
        options: dict[str, Any] = {"endpoint-url": proxy.url}
        b = stack.enter_context(
            StreamProcess(disk_tmp_path / "b", mysql, store, bucket, options=options)
        )
        started(b)
        ended_by_another(a)
        proxy.clear()
        proxy.rules.append(gate)
        write_binlog(mysql, megabytes)
        wait_until(gate.held.is_set, what="a request that is held")
        frozen = freeze(b)
        options = {"spool": a.spool}
        again = stack.enter_context(
            StreamProcess(disk_tmp_path / "a2", mysql, store, bucket, options=options)
        )
        again.wait_for_event("the other writer is gone", why="it renews its object no more")
        started(again)
        write_binlog(mysql, 1)
        wait_until_proved(again, mysql, store, bucket)
        before = objects(store, bucket, "archive")
        gate.open()
        heard_late(proxy, method, path)
        thaw(frozen)
        ended_by_another(b)
        after = objects(store, bucket, "archive")
        assert set(after) == set(before)
        if "conditions" not in store.lacks:
            assert after == before
        undisturbed(again, mysql, store, bucket, child_of(again))
        assert again.terminate() == 0


@BOTH
def test_both_start_at_once(mysql: MysqlServer, store: Store, disk_tmp_path: Path) -> None:
    """Whoever comes first, one of them goes on and the other one ends with 9; one history.

    The one that goes on may be evicted at the server by the other's last mysqlbinlog: it reads
    again, and it is the writer still.
    """
    bucket = store.make_bucket()
    with contextlib.ExitStack() as stack:

        def start(name: str, attempt: int) -> StreamProcess:
            options = {"spool": disk_tmp_path / name}
            place = disk_tmp_path / f"{name}-{attempt}"
            return stack.enter_context(StreamProcess(place, mysql, store, bucket, options=options))

        running = {name: start(name, 0) for name in ("a", "b")}
        write_binlog(mysql, 2)
        ended = settled(running, mysql, store, bucket)
        assert ended is not None
        ended_by_another(running.pop(ended))
        (other,) = running.values()
        assert settled(running, mysql, store, bucket) is None
        assert other.terminate() == 0


def settled(
    running: dict[str, StreamProcess], server: MysqlServer, store: Store, bucket: str
) -> str | None:
    """Wait until one of them ends, and return its name; None when a single one archives all."""
    names = {binlog.name for binlog in closed_binlogs(server)}

    def ended() -> str | None:
        return next((n for n, one in running.items() if one.process.poll() is not None), None)

    def archived() -> bool:
        keys = objects(store, bucket, "archive")
        return names <= {Path(key).name.removesuffix(".json") for key in keys if "/entries/" in key}

    wait_until(lambda: ended() or (len(running) == 1 and archived()), 90, "an end, or an archive")
    return ended()


@pytest.mark.parametrize("mistake", ["password", "server"])
def test_a_start_that_fails_does_not_disturb_the_writer(
    mysql: MysqlServer,
    mysql_binaries: ServerBinaries,
    store: Store,
    bucket: str,
    disk_tmp_path: Path,
    mistake: str,
) -> None:
    """A wrong password, or another server's address under the same --source: exit 4, no claim."""
    options: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(StreamProcess(disk_tmp_path / "a", mysql, store, bucket))
        a.wait_for_event("new lineage")
        child = child_of(a)
        if mistake == "password":
            wrong = disk_tmp_path / "wrong"
            wrong.write_text("wrong")
            options["mysql-password-file"] = wrong
        else:
            other = stack.enter_context(MysqlServer(mysql_binaries, disk_tmp_path / "other"))
            options["mysql-port"] = other.port
            options["mysql-password-file"] = other.password_file
        status, log, text = run_to_end(disk_tmp_path / "b", mysql, store, bucket, options=options)
        assert status == 4, text
        assert not [line for line in log if line["event"] == "writer"]
        assert re.search("denied|copied from another machine", text)
        undisturbed(a, mysql, store, bucket, child)
        assert a.terminate() == 0
