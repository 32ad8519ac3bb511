"""What tests of the write path do with a streamer: write, wait, look, and compare.

`bucket.Bucket` reads as a stranger does; here are the questions that many tests ask.
"""

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from binlog2s3.binlog.events import MADE_UP_BYTES, made_up_size
from lab.fault import Action, Answer, Record, Request
from lab.load import Shape
from lab.mysql import MysqlServer
from lab.s3 import Store
from lab.verify import closed_binlogs, compare
from tests.integration.bucket import CHUNK, Bucket, again
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

MIXED = Shape(row_bytes=(1, 3000), many_rows_chance=0.2, large_chance=0.01)
PART = 5 << 20
MB = 1_000_000
Start = Callable[..., StreamProcess]

# The bucket


def objects(store: Store, bucket: str, prefix: str = "") -> dict[str, Any]:
    return {row["Key"]: row for row in Bucket(store, bucket).rows(prefix)}


def written(store: Store, bucket: str, part: str) -> dict[str, tuple[object, object]]:
    """What lies below pre/archive or pre/live, as it was written."""
    found = objects(store, bucket, f"pre/{part}/")
    return {key: (row.get("ETag"), row["LastModified"]) for key, row in found.items()}


def bodies(store: Store, bucket: str, pattern: str) -> dict[str, bytes]:
    """The objects with such keys; one that goes between listing and reading is not there."""

    def read() -> dict[str, bytes]:
        found, there = {}, Bucket(store, bucket)
        for key in (row["Key"] for row in there.rows()):
            if re.search(pattern, key):
                with suppress(store.asking.exceptions.NoSuchKey):
                    found[key] = there.get(key)
        return found

    return again(read)


def documents(store: Store, bucket: str, pattern: str) -> dict[str, dict[str, Any]]:
    return {key: json.loads(body) for key, body in bodies(store, bucket, pattern).items()}


def uploads(store: Store, bucket: str) -> list[str]:
    """The keys of unfinished uploads, as far as the store can tell."""
    if "upload listing" in store.lacks:
        return []
    found = store.asking.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    return [upload["Key"] for upload in found]


def parts_there(store: Store, bucket: str) -> int:
    """How many parts unfinished uploads have."""
    found = 0
    for upload in store.asking.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        where = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        found += len(store.asking.list_parts(**where).get("Parts", []))
    return found


def full_chunks(store: Store, bucket: str) -> list[str]:
    found = [match for key in objects(store, bucket) if (match := CHUNK.search(key))]
    return [m.string for m in found if int(m["end"]) - int(m["begin"]) == PART]


def leftovers(store: Store, bucket: str) -> list[str]:
    """Chunks of archived binlogs, and unfinished uploads under their keys."""
    keys = objects(store, bucket)
    archived = {Path(key).name: key for key in keys if "/binlogs/" in key}
    chunks = [key for key in keys if (m := CHUNK.search(key)) and m["name"] in archived]
    return chunks + [key for key in uploads(store, bucket) if key in archived.values()]


def no_litter(store: Store, bucket: str) -> None:
    """Wait until the chunks and uploads of what is archived are gone."""
    wait_until(lambda: not leftovers(store, bucket), 300, "no litter", interval=0.2)


def reach(there: Bucket, name: str) -> int:
    """How far a binlog lies in chunks, by their names."""
    end = 0
    for chunk in sorted(there.chunks(name), key=lambda chunk: chunk.begin):
        end = max(end, chunk.end) if chunk.begin <= end else end
    return end


def is_binlog(request: Request) -> bool:
    """Whether it is about a binlog, whole, in parts, or a chunk of it."""
    return "/binlogs/" in request.path or CHUNK.search(request.path) is not None


def sent(records: list[Record]) -> int:
    """Bytes of binlogs that went to the store."""
    return sum(
        r.request_bytes for r in records if r.request.method == "PUT" and is_binlog(r.request)
    )


def no_archive(request: Request) -> Action | None:
    """A store that takes no archived binlogs: 503 for every write of one."""
    refused = "/binlogs/" in request.path and request.method in ("PUT", "POST")
    return Answer(503, body=b"") if refused else None


def no_binlogs(request: Request) -> Action | None:
    """A store that takes no binlogs, neither whole nor in chunks."""
    return Answer(503) if is_binlog(request) and request.method in ("PUT", "POST") else None


# The spool


def spooled(stream: StreamProcess) -> list[str]:
    return sorted(path.name for path in stream.spool.glob("run-*/*") if path.name != "run.json")


def came(spool: Path, name: str) -> int:
    """How far the copies of a binlog reach that the spool has, and that a start takes from it.

    That is none of a run that is not proved yet. The bucket may have the beginning of a copy.
    """
    found = spool.glob(f"run-*/{name}")
    return max((end_of(path) for path in found if is_proved(path.parent)), default=0)


def end_of(path: Path) -> int:
    """The offset in its binlog at which a file of the spool ends."""
    facts = json.loads((path.parent / "run.json").read_text())
    position, size = facts["position"], path.stat().st_size
    if path.name != facts["binlog"] or position <= 4:
        return size
    with path.open("rb") as file:
        made_up = made_up_size(file.read(MADE_UP_BYTES), position)
    return position if made_up is None else position + size - made_up


def is_proved(run: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(json.loads((run / "run.json").read_bytes())["lineage"] != "probe")
    return False


def all_came(stream: StreamProcess, server: MysqlServer) -> tuple[str, int]:
    """Wait until the spool has all of the open binlog; its name, and its size in the stream."""
    name, size = server.binlogs()[-1]
    size -= 512 if server.encrypted else 0  # a header that is not streamed
    wait_until(lambda: came(stream.spool, name) >= size, what=f"{name} in the spool")
    return name, size


def the_large_one(stream: StreamProcess) -> Path:
    (path,) = [p for p in stream.spool.glob("run-*/*.0*") if p.stat().st_size > 1 << 20]
    return path


# mysqlbinlog


def alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def child_of(stream: StreamProcess, least: int = 1) -> int:
    """The process id of its newest mysqlbinlog, once so many have been started."""
    wait_until(lambda: len(stream.events("streaming")) >= least, what=f"{least} runs")
    return int(stream.events("streaming")[-1]["pid"])


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


def kill_connections(server: MysqlServer) -> None:
    """KILL what the streamer has open there."""
    ours = f"FROM information_schema.processlist WHERE user = '{server.repl_user}'"
    for (number,) in server.query(f"SELECT id {ours}"):
        server.query(f"KILL {number}")


# The server


def write(server: MysqlServer, megabytes: int) -> None:
    """Write about so many megabytes of binlog, in transactions of 1 MB."""
    server.query("CREATE DATABASE IF NOT EXISTS bulk")
    server.query(
        "CREATE TABLE IF NOT EXISTS bulk.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)"
    )
    with server.connect() as connection, connection.cursor() as cursor:
        for _ in range(megabytes):
            cursor.execute("INSERT INTO bulk.t (v) VALUES (REPEAT(%s, 1000000))", ("x",))
            connection.commit()
        cursor.execute("TRUNCATE bulk.t")


def write_binlog(server: MysqlServer, megabytes: int) -> None:
    """Write so many megabytes, and close the binlog."""
    write(server, megabytes)
    server.query("FLUSH BINARY LOGS")


def write_for_all(server: MysqlServer, store: Store, bucket: str) -> None:
    """One binlog that is archived by parts and copies, and one that will be as a whole."""
    write(server, 7)
    wait_until(lambda: full_chunks(store, bucket), what="a full chunk")
    server.query("FLUSH BINARY LOGS")


# How it ends


def wait_until_archived(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str, timeout: float = 600
) -> None:
    """Close the open binlog, wait until all closed ones have their entry, compare every byte."""
    closed = closed_binlogs(server)
    names = [binlog.name for binlog in closed]

    def done() -> bool:
        assert stream.process.poll() is None, stream.stderr()
        keys = objects(store, bucket)
        entries = {Path(key).name.removesuffix(".json") for key in keys if "/entries/" in key}
        return set(names) <= entries

    wait_until(done, timeout, f"entries of {len(names)} binlogs", interval=0.2)
    with closing(store.client()) as client:
        result = compare(server, client, bucket, "pre", "test", binlogs=closed)
    assert result.ok, result


def wait_until_proved(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str
) -> None:
    """As `wait_until_archived`; and all is of one lineage."""
    wait_until_archived(stream, server, store, bucket)
    assert len(documents(store, bucket, "lineage.json")) == 1


def finish(stream: StreamProcess, server: MysqlServer, store: Store, bucket: str) -> None:
    """What is written still arrives, all is there, in one lineage, and it ends in order."""
    write(server, 1)
    wait_until_proved(stream, server, store, bucket)
    assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()


def settle(stream: StreamProcess, server: MysqlServer, store: Store, bucket: str) -> None:
    """All is archived, equal, and cleared away; the streamer works still, and ends in order."""
    wait_until_archived(stream, server, store, bucket)
    no_litter(store, bucket)
    assert "Traceback" not in stream.stderr()
    assert stream.terminate() == 0
