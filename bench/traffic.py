"""What requests were sent, by kind, and how many bytes. Pure."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qs

from lab.fault import Record

FULL_CHUNK_BYTES = 5 * 1024 * 1024
FREE = {"DELETE", "abort"}
CHEAP = {"GET", "HEAD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """`head_bytes` are request lines and headers, `body_bytes` bodies as they stand on the wire."""

    kinds: dict[str, int]
    head_bytes: int
    body_bytes: int


def traffic_of(records: Iterable[Record]) -> Traffic:
    """Add up requests."""
    kinds: Counter[str] = Counter()
    head = body = 0
    for record in records:
        kinds[kind_of(record)] += 1
        head += _head_bytes(record)
        body += record.request_bytes
    return Traffic(kinds=dict(sorted(kinds.items())), head_bytes=head, body_bytes=body)


def kind_of(record: Record) -> str:
    """What a request is for, in words of the format and of S3's price list."""
    request = record.request
    query = parse_qs(request.query, keep_blank_values=True)
    match request.method:
        case "GET":
            return _kind_of_get(query)
        case "PUT":
            return _kind_of_put(record, query)
        case "POST":
            if "delete" in query:
                return "DELETE"
            return "POST create upload" if "uploads" in query else "POST complete upload"
        case "DELETE":
            return "abort" if "uploadId" in query else "DELETE"
    return request.method


def _kind_of_get(query: dict[str, list[str]]) -> str:
    for name, kind in {"list-type": "objects", "uploads": "uploads", "uploadId": "parts"}.items():
        if name in query:
            return f"LIST {kind}"
    return "GET"


def _kind_of_put(record: Record, query: dict[str, list[str]]) -> str:
    path = record.request.path
    if "x-amz-copy-source" in record.request.headers:
        return "COPY part"
    if "partNumber" in query:
        return "PUT part"
    if "/writers/" in path:
        return "PUT heartbeat"
    if "/live/" in path:
        full = record.request_bytes >= FULL_CHUNK_BYTES
        return "PUT full chunk" if full else "PUT small chunk"
    if path.endswith(".json"):
        return "PUT entry" if "/entries/" in path else "PUT lineage"
    return "PUT binlog"


def _head_bytes(record: Record) -> int:
    request = record.request
    query = f"?{request.query}" if request.query else ""
    line = f"{request.method} {request.path}{query} HTTP/1.1\r\n\r\n"
    fields = (len(name) + len(value) + 4 for name, value in request.headers.items())
    return len(line) + sum(fields)
