"""Asks a `serve` for its status, over the HTTP of its --status-listen, and prints its clients.

An answer has one deadline as a whole, and a limit of its size. What answers and is not a `serve` is
never taken for one.
"""

import json
import socket
import time
from http import HTTPStatus
from typing import Any, TextIO
from urllib.parse import urlsplit

from binlog2s3.archive.codec import converted
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import one_line, size_text
from binlog2s3.output import Column, Plain, Table, page_on
from binlog2s3.serve.status import ClientStatus, ServeStatus
from binlog2s3.status.ask import Unanswered, exchange, limit_to, parsed

_HTTP_PORT = 80
_COLUMNS = (
    Column(name="kind"),
    Column(name="user"),
    Column(name="host"),
    Column(name="server id", right=True),
    Column(name="state"),
    Column(name="position"),
    Column(name="behind", right=True),
    Column(name="sent", right=True),
)
_MOST_TEXT = 400
_EXPECTED = "`binlog2s3 serve`"
_HINT = "--serve-url is the --status-listen of a running `binlog2s3 serve`, not its --listen"


def show_clients(url: str, out: TextIO, *, as_json: bool, timeout_seconds: float = 5.0) -> None:
    """Print the clients of this `serve`, or its document. Raises ArchiveError without an answer."""
    try:
        document, status = ask_serve(url, timeout_seconds=timeout_seconds)
    except Unanswered as error:
        transient = error.kind in ("hangs", "refused")
        raise ArchiveError(str(error), hint=_HINT, transient=transient) from error
    if as_json:
        print(json.dumps(document, indent=1), file=out)
    else:
        print_clients(status, page_on(out))


def ask_serve(url: str, *, timeout_seconds: float = 5.0) -> tuple[dict[str, Any], ServeStatus]:
    """The document of /status, and what it says. Raises Unanswered."""
    code, body = _get(url, timeout_seconds)
    if code != HTTPStatus.OK:
        said = one_line(body[:200].decode("utf-8", "replace")) if code >= 500 else ""
        raise Unanswered(f"{url} answers {code}{f': {said}' if said else ''}", "unclear")
    try:
        document = json.loads(body)
        return document, converted(document, ServeStatus)
    except (ValueError, RecursionError) as error:
        text = f"what answers on {url} is not {_EXPECTED} of this version: {error}"
        raise Unanswered(one_line(text)[:_MOST_TEXT], "unclear") from None


def print_clients(status: ServeStatus, page: Plain) -> None:
    """What is served, what is wrong, and a row for each client."""
    end = f":{status.whole}" if status.whole else ""
    span = f"{status.first} to {status.last}{end}" if status.first else "nothing yet"
    page.line(f"{status.source}  {status.flavour} {status.server_version}  {span}")
    for text in (status.problem, status.error):
        if text:
            page.line(f"critical: {text}", "bold red")
    refused = ", ".join(f"{number:,} ({why})" for why, number in sorted(status.refused.items()))
    if refused:
        page.line(f"refused connections: {refused}")
    page.line("")
    if not status.clients:
        page.line("no clients")
        return
    rows = [_cells_of(client) for client in status.clients]
    table = Table(page, _COLUMNS, rows, head=3)
    for cells in rows:
        table.row(cells)


def _cells_of(client: ClientStatus) -> tuple[str, ...]:
    return (
        client.kind,
        client.user,
        client.host,
        str(client.server_id) if client.server_id else "-",
        client.state,
        f"{client.binlog}:{client.position}" if client.binlog else "-",
        size_text(client.behind_bytes) if client.binlog else "-",
        size_text(client.sent_bytes),
    )


def _get(url: str, timeout_seconds: float) -> tuple[int, bytes]:
    """The status code and the body of a GET of /status below this URL. Raises Unanswered."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/status")
    request = f"GET {path}/status HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n"
    deadline = time.monotonic() + timeout_seconds
    try:
        with _connected(parts.hostname or "", parts.port or _HTTP_PORT, deadline) as client:
            # a MySQL server greets, and then waits for the rest of a packet
            answer = exchange(client, request, deadline, begins=b"HTTP/1.")
    except TimeoutError:
        raise Unanswered(f"no answer within {timeout_seconds:g} s from {url}", "hangs") from None
    except ConnectionError as error:
        raise Unanswered(f"{url}: {_why(error)}", "refused") from None
    except OSError as error:
        raise Unanswered(f"{url}: {_why(error)}", "unclear") from None
    return parsed(answer, url, _EXPECTED)


def _connected(host: str, port: int, deadline: float) -> socket.socket:
    """Connect to the first address of the host that answers. Raises OSError."""
    failed = OSError("no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        client = socket.socket(family, kind, protocol)
        try:
            limit_to(deadline, client)
            client.connect(address)
        except OSError as error:
            client.close()
            failed = error
        else:
            return client
    raise failed


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()
