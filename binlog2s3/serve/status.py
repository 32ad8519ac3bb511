"""The status of `serve`: its clients, how far they are, and whether the bucket answers."""

from dataclasses import asdict, dataclass
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from binlog2s3.status.http import Answer, json_answer, text


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


def answer(path: str, status: ServeStatus) -> Answer:
    """The answer to a GET of this path."""
    if path == "/metrics":
        return Answer(HTTPStatus.OK, CONTENT_TYPE_LATEST, _metrics(status))
    if path == "/live":
        return text(HTTPStatus.OK, "the process is running")
    document = {"healthy": status.healthy, **asdict(status)}
    code = HTTPStatus.OK if status.healthy else HTTPStatus.SERVICE_UNAVAILABLE
    if path == "/status":
        return json_answer(HTTPStatus.OK, document)
    short = {name: document[name] for name in ("healthy", "source", "problem", "error")}
    return json_answer(code, short | {"clients": len(status.clients)})


def _metrics(status: ServeStatus) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collector(status))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, status: ServeStatus) -> None:
        self._status = status

    def collect(self) -> list[Metric]:
        """All metrics, with the source as a label."""
        status, labels = self._status, ["source"]
        up = GaugeMetricFamily(
            "binlog2s3_serve_up", "1 if clients get what there is, else 0.", labels=labels
        )
        up.add_metric([status.source], float(status.healthy))
        clients = GaugeMetricFamily(
            "binlog2s3_serve_clients", "Clients that get events.", labels=[*labels, "user"]
        )
        for user in sorted({one.user for one in status.clients}):
            count = sum(one.user == user and one.state != "connected" for one in status.clients)
            clients.add_metric([status.source, user], count)
        behind = GaugeMetricFamily(
            "binlog2s3_serve_behind_bytes",
            "Bytes of its present binlog that a client has not got yet.",
            labels=[*labels, "user", "server_id", "host"],
        )
        seen = set()
        for one in status.clients:
            key = (status.source, one.user, str(one.server_id), one.host)
            if one.state != "connected" and key not in seen:
                seen.add(key)
                behind.add_metric(list(key), one.behind_bytes)
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
