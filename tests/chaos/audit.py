"""What must be true of the bucket when chaos has ended, and at every moment before.

Law: the truth is the server's own files, kept by hard links when a RESET takes them away; entries
are compared with what the stock mysqlbinlog says of those files; what was promised is what the
writers' objects said, and what the store acknowledged.
"""

import contextlib
import hashlib
import json
import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from tests.integration.bucket import CHUNK
from tests.promises import Span, missing
from tests.witness import Witness
from tests.world.servers import masked

MIB = 1 << 20
OBJECT = re.compile(
    r"archive/[^/]+/(?P<lineage>[^/]+)/(?P<kind>binlogs|entries)/(?P<name>[^/]+?)(\.json)?$"
)
TURN = re.compile(r"archive/[^/]+/turns/\d{8}\.json$")
WRITER = re.compile(r"live/[^/]+/writers/\d+-[0-9a-f]+\.json$")

Place = tuple[str, str]  # lineage, binlog


def reach(spans: Sequence[Span]) -> int:
    """How far these ranges reach from 0 on without a hole."""
    end = missing(spans, 0, sys.maxsize)
    assert end is not None
    return end


@dataclass(slots=True)
class Listing:
    """What lies in the bucket; `live` was listed before `archive`."""

    chunks: dict[Place, dict[str, Span]] = field(default_factory=lambda: defaultdict(dict))
    archived: dict[Place, tuple[str, int]] = field(default_factory=dict)
    entries: dict[Place, str] = field(default_factory=dict)
    writers: list[str] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)

    def there(self, place: Place) -> list[Span]:
        """The ranges of a binlog that can be read."""
        spans = list(self.chunks.get(place, {}).values())
        if place in self.archived:
            spans.append((0, self.archived[place][1]))
        return spans


class Audit:
    """The promises of all writers of one bucket, and the look whether they are kept.

    `differences` are what was found broken, as texts; nothing is raised. It has a method for each
    promise.
    """

    def __init__(
        self, server: MysqlServer, store: Store, bucket: str, proxy: RecordingProxy
    ) -> None:
        self._server = server
        self._bucket = bucket
        self._proxy = proxy
        self._keep = server.directory / "truth"
        self._keep.mkdir(exist_ok=True)
        self._epoch = 0
        self._kept: dict[int, dict[str, Path]] = {}
        self._lineage_of: dict[int, str] = {}
        self._epoch_of: dict[str, int] = {}
        self._verified: set[Place] = set()
        self._promised: dict[Place, int] = {}
        self._acknowledged: dict[Place, set[Span]] = defaultdict(set)
        self._seen_records = 0
        self._durable: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="audit")
        self._client = store.client()
        self._witnesses: dict[tuple[Path, int], Witness] = {}
        self.differences: list[str] = []
        self._taken = 0
        self.sent_bytes = 0
        self.binlog_bytes = 0
        self.binlogs = 0
        self.looks = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.close()

    def close(self) -> None:
        """Give back what was opened."""
        self._client.close()

    def take(self) -> list[str]:
        """The differences that were found since the last time."""
        taken = len(self.differences)
        new = self.differences[self._taken : taken]
        self._taken = taken
        return new

    # while chaos reigns

    def _watch(self) -> None:
        while not self._over.wait(0.4):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a defect of the watch must be seen
                self.differences.append(f"the watch failed: {error!r}")
                return

    def look(self) -> Listing:
        """Note what is promised now, then see whether all that ever was can be read."""
        with self._lock:
            self._take_records()
            for key in self._list().writers:
                with contextlib.suppress(self._client.exceptions.NoSuchKey):
                    self._heard(json.loads(self._get(key)))
            for _ in range(3):  # chunks go while their binlog's object comes
                listing = self._list()
                broken = list(self._broken(listing))
                if not broken:
                    break
            self.differences += broken
            self.looks += 1
            return listing

    def _take_records(self) -> None:
        records = self._proxy.records
        for record in records[self._seen_records :]:
            if record.request.method != "PUT":
                continue
            chunk = CHUNK.search(record.request.path)
            if chunk or "/binlogs/" in record.request.path:
                self.sent_bytes += record.request_bytes
            if chunk and record.status == 200:
                span = int(chunk["begin"]), int(chunk["end"])
                self._acknowledged[chunk["lineage"], chunk["name"]].add(span)
        self._seen_records = len(records)

    def _heard(self, writer: Mapping[str, Any]) -> None:
        durable, lineage = writer["durable"], writer["lineage"]
        if durable and lineage:
            place = lineage, durable["binlog"]
            self._promised[place] = max(self._promised.get(place, 0), durable["offset"])
            self._durable[lineage] = durable

    def _broken(self, listing: Listing) -> Iterator[str]:
        for place, offset in self._promised.items():
            if (end := reach(listing.there(place))) < offset:
                yield f"{place} was durable up to {offset}, readable up to {end}"
        for place, spans in self._acknowledged.items():
            there = listing.there(place)
            for span in spans:
                if missing(there, *span) is not None:
                    yield f"{place}: the acknowledged bytes {span} are gone"
        yield from (f"a strange object: {key}" for key in listing.strange)

    def _list(self) -> Listing:
        found = Listing()
        for folder in ("pre/live/", "pre/archive/"):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=folder
            )
            for row in (row for page in pages for row in page.get("Contents", [])):
                self._sort(found, row["Key"], row["Size"])
        return found

    def _sort(self, found: Listing, key: str, size: int) -> None:
        if (match := CHUNK.search(key)) is not None:
            span = int(match["begin"]), int(match["end"])
            found.chunks[match["lineage"], match["name"]][key] = span
            if size != span[1] - span[0]:
                found.strange.append(key)
        elif (match := OBJECT.search(key)) is not None:
            place = match["lineage"], match["name"]
            if match["kind"] == "entries":
                found.entries[place] = key
            else:
                found.archived[place] = key, size
        elif WRITER.search(key):
            found.writers.append(key)
        elif not (key.endswith("/lineage.json") or TURN.search(key)):
            found.strange.append(key)

    def _get(self, key: str) -> bytes:
        return self._client.get_object(Bucket=self._bucket, Key=key)["Body"].read()

    # the server's own files

    def keep(self) -> None:
        """Before a RESET: link the files that it will take away. Nobody may write meanwhile."""
        with self._lock:
            folder = self._keep / str(self._epoch)
            folder.mkdir()
            kept = {}
            for name, _ in self._server.binlogs():
                os.link(self._server.datadir / name, folder / name)
                kept[name] = folder / name
            self._kept[self._epoch] = kept
            self._epoch += 1

    def _files(self, epoch: int) -> dict[str, Path]:
        if epoch == self._epoch:
            return {name: self._server.datadir / name for name, _ in self._server.binlogs()}
        return self._kept.get(epoch, {})

    # when all is quiet

    def settled(self, *, chunked: bool) -> str:
        """Why the bucket is not yet as it is to be in the end; empty if it is.

        `chunked`: what is open is durable too, so with a flush interval other than 0.
        """
        return next(self._unsettled(chunked=chunked), "")

    def _unsettled(self, *, chunked: bool) -> Iterator[str]:
        binlogs = self._server.binlogs()
        listing = self._list()
        if len(listing.writers) != 1:
            yield f"writers: {listing.writers}"
        try:
            writer = json.loads(self._get(listing.writers[0]))
        except self._client.exceptions.NoSuchKey:
            yield "the writer changes"
        lineage = writer["lineage"]
        for name, size in binlogs[:-1]:
            if (lineage, name) not in listing.entries:
                yield f"not archived in {lineage}: {name}"
            if listing.archived[lineage, name][1] != size:
                yield f"of another size in {lineage}: {name}"
        durable = writer["durable"] or {}
        last, size = binlogs[-1]
        if chunked and (durable.get("binlog"), durable.get("offset")) != (last, size):
            yield f"durable is {durable}, the server stands at {last} {size}"
        if writer["state"] not in ("idle", "streaming"):
            yield f"the state is {writer['state']!r}"
        if left := [str(place) for place in listing.chunks if place in listing.archived]:
            yield f"chunks are left of {left}"
        uploads = self._client.list_multipart_uploads(Bucket=self._bucket).get("Uploads", [])
        over = [u["Key"] for u in uploads if not u["Key"].endswith(f"{lineage}/binlogs/{last}")]
        if over:
            yield f"uploads are left: {over}"

    def compare(self) -> None:
        """Each binlog that came since the last time, byte for byte; entries; what is left open."""
        listing = self.look()
        with self._lock:
            for place, (key, _) in sorted(listing.archived.items()):
                if place not in self._verified:
                    self._verify(place, key, listing)
            for place, chunks in sorted(listing.chunks.items()):
                self._verify_open(place, chunks)
            for lineage, durable in self._durable.items():
                self._verify_gtids(lineage, durable)
            self._durable.clear()

    def forget(self) -> None:
        """The server's closed binlogs were compared and may be purged; old files go."""
        open_one = self._server.binlogs()[-1][0]
        self._server.query(f"PURGE BINARY LOGS TO '{open_one}'")
        with self._lock:
            for kept in self._kept.values():
                for path in kept.values():
                    path.unlink()
            self._kept.clear()
            self._witnesses.clear()
            self._proxy.clear()
            self._seen_records = 0

    def _verify(self, place: Place, key: str, listing: Listing) -> None:
        lineage, name = place
        path = self._place_of(lineage, name, key)
        if path is None:
            self.differences.append(f"{place} is not the server's file of any time")
            return
        self._verified.add(place)
        self.binlogs += 1
        self.binlog_bytes += path.stat().st_size
        if place in listing.entries:
            entry = json.loads(self._get(listing.entries[place]))
            self.differences += [f"entry of {place}: {what}" for what in self._wrong(entry, path)]
        elif self._epoch_of[lineage] == self._epoch:
            self.differences.append(f"{place} has no entry")

    def _place_of(self, lineage: str, name: str, key: str) -> Path | None:
        """The server's file that this object equals; a lineage is of one time between RESETs."""
        known = self._epoch_of.get(lineage)
        epochs = [*self._kept, self._epoch] if known is None else [known]
        data = masked(self._get(key))
        digest = hashlib.sha256(data).digest()
        for epoch in epochs:
            path = self._files(epoch).get(name)
            if path is None or path.stat().st_size != len(data):
                continue
            if hashlib.sha256(masked(path.read_bytes())).digest() == digest:
                return path if self._assign(lineage, epoch) else None
        return None

    def _assign(self, lineage: str, epoch: int) -> bool:
        other = self._lineage_of.setdefault(epoch, lineage)
        if other != lineage:
            self.differences.append(f"{lineage} and {other} are of one history")
        self._epoch_of[lineage] = epoch
        return other == lineage

    def _verify_open(self, place: Place, chunks: Mapping[str, Span]) -> None:
        """The chunks of a binlog that is in no archive, joined as docs/format.md tells it."""
        lineage, name = place
        known = self._epoch_of.get(lineage)
        data = b""
        for key, (begin, end) in sorted(chunks.items(), key=lambda item: (item[1][0], -item[1][1])):
            body = self._get(key)
            if crc64_hex(crc64nvme(body)) != key[-16:]:
                self.differences.append(f"{key} has other bytes than its name says")
            if begin > len(data):
                break
            both = data[begin:end]
            if not body.startswith(both):
                self.differences.append(f"{key} disagrees with what lies beside it")
            data += body[len(both) :]
        if known is not None and known != self._epoch and known not in self._kept:
            return  # compared before; nothing can have come
        for epoch in [*self._kept, self._epoch] if known is None else [known]:
            path = self._files(epoch).get(name)
            if path is not None and masked(path.read_bytes()[: len(data)]) == masked(data):
                self._assign(lineage, epoch)
                return
        self.differences.append(f"the chunks of {place} are of no file of the server")

    def _verify_gtids(self, lineage: str, durable: Mapping[str, Any]) -> None:
        """What was reported to be durable is what the server's own files have up to there."""
        epoch = self._epoch_of.get(lineage)
        path = None if epoch is None else self._files(epoch).get(durable["binlog"])
        if path is None:
            return
        witness = self._witness(path)
        held = GtidSet.parse(_previous(witness.text))
        for done in witness.mysql_transactions():
            if done.end <= durable["offset"] and done.gtid is not None:
                held = held | GtidSet.parse(done.gtid)
        if held != GtidSet.parse(durable["gtid_set"]):
            self.differences.append(f"{lineage}: durable GTIDs {durable['gtid_set']} are {held}")

    def _witness(self, path: Path) -> Witness:
        key = path, path.stat().st_size
        if key not in self._witnesses:
            self._witnesses[key] = Witness.of(self._server.binaries.binlog, path)
        return self._witnesses[key]

    def _wrong(self, entry: Mapping[str, Any], path: Path) -> Iterator[str]:
        """In what an entry differs from the stock client's reading of the server's file."""
        data = masked(path.read_bytes())
        witness = self._witness(path)
        found = witness.mysql_transactions()
        times = [each.commit_us for each in found]
        added = GtidSet.parse(",".join(each.gtid for each in found if each.gtid))
        last = witness.headers[-1][2]
        end = (
            "rotate"
            if last.startswith("Rotate")
            else "stop"
            if last.startswith("Stop")
            else "crash"
        )
        expected = {
            "format": 1,
            "name": path.name,
            "size": len(data),
            "crc64nvme": crc64_hex(crc64nvme(data)),
            "transactions": len(found),
            "anonymous_transactions": sum(each.gtid is None for each in found),
            "least_commit_us": min(times, default=None),
            "greatest_commit_us": max(times, default=None),
            "commit_times": "exact",
            "events": len(witness.headers),
            "end": end,
            "damaged": [],
            "encoding": "none",
            "encryption": "none",
        }
        for word, value in expected.items():
            if entry[word] != value:
                yield f"{word} is {entry[word]!r} and should be {value!r}"
        if GtidSet.parse(entry["gtid_set_added"]) != added:
            yield f"gtid_set_added is {entry['gtid_set_added']!r} and should be {added}"
        if GtidSet.parse(entry["gtid_set_before"]) != GtidSet.parse(_previous(witness.text)):
            yield f"gtid_set_before is {entry['gtid_set_before']!r}"
        begins = range(0, len(data), 4 * MIB)
        if [block["offset"] for block in entry["blocks"]] != list(begins):
            yield "the blocks are not at each 4 MiB"
            return
        for begin, block in zip(begins, entry["blocks"], strict=True):
            piece = data[begin : begin + 4 * MIB]
            first = next((each for each in found if begin <= each.begin < begin + len(piece)), None)
            right = {
                "offset": begin,
                "size": len(piece),
                "crc64": crc64_hex(crc64nvme(piece)),
                "first_offset": first.begin if first else None,
                "first_commit_us": first.commit_us if first else None,
                "first_gtid": first.gtid if first else None,
            }
            if block != right:
                yield f"block {block} should be {right}"


def _previous(text: str) -> str:
    """The set that the PREVIOUS_GTIDS event is printed with."""
    found = re.search(r"\tPrevious-GTIDs\n((?:# .*\n)+)", text)
    if found is None:
        return ""
    lines = [line.removeprefix("# ").strip() for line in found[1].splitlines()]
    return "".join(line for line in lines if line != "[empty]" and not line.startswith("at "))
