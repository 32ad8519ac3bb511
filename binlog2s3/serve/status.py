"""The status of `serve`: its clients, how far they are, and whether the bucket answers."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from binlog2s3.status.http import send_json, send_line

_NO_PAGE = "a directory has no page: the paths are /health, /live, /metrics and /status"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientStatus:
    """One client that has logged in.

    `state`: sending, waiting, or connected (it has not asked for events). `behind_bytes`: the bytes
    of its current binlog that it has not got yet; later binlogs are not counted.
    `since`: Unix time.
    """

    number: int
    user: str
    host: str
    kind: str
    server_id: int
    uuid: str
    state: str
    binlog: str
    position: int
    behind_bytes: int
    sent_bytes: int
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeStatus:
    """What is served, and to which clients. `whole`: where whole transactions end in `last`.

    `error`: why the bucket does not answer, or an internal error, "" if there is none. `problem`:
    why nothing comes after the newest binlog, "" if more may come.
    """

    source: str
    flavour: str
    server_version: str
    first: str
    last: str
    whole: int
    problem: str
    error: str
    clients: tuple[ClientStatus, ...]
    refused: dict[str, int]
    sent_bytes: int
    fetched_bytes: int

    @property
    def healthy(self) -> bool:
        """Whether clients get everything that is in the bucket."""
        return not (self.problem or self.error)


def applications(
    current: Callable[[], ServeStatus], page: WSGIApplication | None
) -> Mapping[str, WSGIApplication]:
    """What answers on --status-listen; `page` at /, None: there is no bucket that it could show."""

    def found(status: ServeStatus) -> tuple[HTTPStatus, dict[str, Any]]:
        code = HTTPStatus.OK if status.healthy else HTTPStatus.SERVICE_UNAVAILABLE
        return code, {"healthy": status.healthy, **asdict(status)}

    def health(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        code, document = found(status := current())
        short = {name: document[name] for name in ("healthy", "source", "problem", "error")}
        return send_json(start, code, short | {"clients": len(status.clients)})

    def live(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return send_line(start, HTTPStatus.OK, "the process is running")

    def whole(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return send_json(start, HTTPStatus.OK, found(current())[1])

    def no_page(_: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        return send_line(start, HTTPStatus.NOT_FOUND, _NO_PAGE)

    registry = CollectorRegistry()
    registry.register(_Collector(current))
    return {
        "/": page or no_page,
        "/health": health,
        "/live": live,
        "/metrics": make_wsgi_app(registry),
        "/status": whole,
    }


class _Collector(Collector):
    def __init__(self, current: Callable[[], ServeStatus]) -> None:
        self._current = current

    def collect(self) -> list[Metric]:
        """All metrics, with the source as a label."""
        status, labels = self._current(), ["source"]
        up = GaugeMetricFamily(
            "binlog2s3_serve_up", "1 if clients get what there is, else 0.", labels=labels
        )
        up.add_metric([status.source], float(status.healthy))
        clients = GaugeMetricFamily(
            "binlog2s3_serve_clients", "Clients that get events.", labels=[*labels, "user"]
        )
        for user in sorted({client.user for client in status.clients}):
            count = sum(
                client.user == user and client.state != "connected" for client in status.clients
            )
            clients.add_metric([status.source, user], count)
        behind = GaugeMetricFamily(
            "binlog2s3_serve_behind_bytes",
            "Bytes of its present binlog that a client has not got yet.",
            labels=[*labels, "user", "server_id", "host"],
        )
        seen = set()
        for client in status.clients:
            key = (status.source, client.user, str(client.server_id), client.host)
            if client.state != "connected" and key not in seen:
                seen.add(key)
                behind.add_metric(list(key), client.behind_bytes)
        sent = CounterMetricFamily(
            "binlog2s3_serve_sent_bytes", "Bytes of events that were sent.", labels=labels
        )
        sent.add_metric([status.source], status.sent_bytes)
        fetched = CounterMetricFamily(
            "binlog2s3_serve_fetched_bytes", "Bytes that were read for them.", labels=labels
        )
        fetched.add_metric([status.source], status.fetched_bytes)
        refused = CounterMetricFamily(
            "binlog2s3_serve_refused", "Connections that were refused.", labels=[*labels, "reason"]
        )
        for reason in ("connections", "password", "protocol"):
            refused.add_metric([status.source, reason], status.refused.get(reason, 0))
        return [up, clients, behind, sent, fetched, refused]
