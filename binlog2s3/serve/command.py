"""`binlog2s3 serve`: serves the archive's binlogs to replicas and other clients.

Law: it only reads the bucket. It runs until a signal ends it; an error of one client, or of the
store, ends neither the others nor the process.
"""

import hashlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.options import split_listen
from binlog2s3.config.serve import ServeConfig, is_loopback
from binlog2s3.errors import Binlog2s3Error, ConfigError
from binlog2s3.log import Log
from binlog2s3.replication.endpoint import Endpoint, tls_of
from binlog2s3.replication.login import Account
from binlog2s3.replication.protocol import Dump, DumpByGtid
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.source import Client, ConnectionLimits, Source
from binlog2s3.serve.directory import of_server, recovered
from binlog2s3.serve.dump import ServedDump, SharedBlocks
from binlog2s3.serve.history import ArchiveHistory
from binlog2s3.serve.model import ServedHistory
from binlog2s3.serve.status import ClientStatus, ServeStatus, applications
from binlog2s3.server.version import ServerVersion
from binlog2s3.status.http import Listener
from binlog2s3.status.page import ReportPage, report_command
from binlog2s3.store.s3 import S3Store
from binlog2s3.workers import Workers

_PASSWORD_MOST = 1 << 10
_GTID_SECONDS = 10.0
_SIGNAL_SECONDS = 1.0
_log = Log("serve")


def run(config: ServeConfig) -> int:
    """Serve until a signal comes; the exit code. Raises errors, each with its own exit code."""
    accounts = [
        Account(user, _password(path))
        for user, path in zip(config.users, config.password_files, strict=True)
    ]
    at = _endpoint(config)
    with _signals() as stop, ExitStack() as stack:
        try:
            history = stack.enter_context(_history(config, stop))
        except Binlog2s3Error:
            if stop.number:  # it was ended while it started
                return stop.exit_code
            raise
        serving = Serving(config, history)
        stack.callback(serving.close)
        source = Source(
            serving.identity,
            accounts,
            serving.answer,
            one_of=_one_of,
            at=at,
            limits=ConnectionLimits(
                connections=config.max_connections,
                per_user=config.max_user_connections,
                bandwidth=config.max_user_bandwidth,
            ),
        )
        stack.enter_context(source)
        serving.source = source
        if config.status_listen is not None:
            listener = Listener(
                applications(serving.status, _page(config)), option="--status-listen"
            )
            stack.callback(listener.close)
            listener.listen_tcp(*split_listen(config.status_listen))
        _log.info("serving", host=source.address[0], port=source.address[1], what=history.name)
        while not stop.wait(_SIGNAL_SECONDS):
            pass  # a signal that came just before the wait is heard after it
    return stop.exit_code


def _page(config: ServeConfig) -> ReportPage | None:
    """What answers /; None if a directory is served."""
    if config.s3 is None or config.source is None:
        return None
    return ReportPage(report_command(config.s3, config.source))


class Serving:
    """What is served, to the clients of one source."""

    def __init__(self, config: ServeConfig, history: ServedHistory) -> None:
        self._config = config
        self._history = history
        self._workers = Workers(_threads(config))
        self._cache = SharedBlocks(self._workers)
        self._dumps: dict[int, ServedDump] = {}
        self._lock = threading.Lock()
        self._sent_before = 0
        self.source: Source | None = None
        self._uuid = _uuid_of(config)

    def close(self) -> None:
        """Stop fetching."""
        self._workers.close()

    def identity(self) -> Identity:
        """What clients are told; the version may change while the archive grows."""
        history = self._history
        newest, gtids = history.newest_position()
        mode = self._gtid_mode() if history.flavour == "mysql" else ""
        version = ServerVersion(history.server_version)
        return Identity(
            newest=newest,
            gtids=gtids,
            version=version.for_replicas,
            flavour=history.flavour,
            server_id=self._config.serve_id,
            server_uuid=self._uuid,
            gtid_mode=mode,
            plugin=version.plugin,
        )

    def _gtid_mode(self) -> str:
        """What of MySQL's GTIDs is known in a few seconds."""
        history = self._history
        until = time.monotonic() + _GTID_SECONDS
        while (keeps := history.keeps_gtids) is None and time.monotonic() < until:
            version = history.view().version
            if not history.view().binlogs or history.wait(version, 0.5).version == version:
                break
        return {True: "ON", False: "OFF", None: "ON_PERMISSIVE"}[keeps]

    def answer(self, client: Client, dump: Dump) -> None:
        """Send one dump until the client leaves."""
        source = self.source
        assert source is not None  # noqa: S101 - it calls this
        served = ServedDump(
            client,
            dump,
            self._history,
            self._cache,
            self.identity(),
            ended=source.ended.wait,
            dumps=lambda: len(self._dumps),
        )
        with self._lock:
            self._dumps[client.number] = served
        asked = "GTIDs" if isinstance(dump, DumpByGtid) or dump.state is not None else "position"
        _log.info("dump begins", number=client.number, user=client.user, host=client.host, by=asked)
        try:
            served.run()
        finally:
            with self._lock:
                del self._dumps[client.number]
                self._sent_before += client.sent
            _log.info("dump ended", number=client.number, sent=client.sent)

    def status(self) -> ServeStatus:
        """The clients, and what is served."""
        history, source = self._history, self.source
        view = history.view()
        clients = [] if source is None else source.clients
        with self._lock:
            dumps = dict(self._dumps)
            sent = self._sent_before + sum(
                client.sent for client in clients if client.number in dumps
            )
        error = history.error or (source.defect if source is not None else None)
        return ServeStatus(
            source=history.name,
            flavour=history.flavour,
            server_version=history.server_version,
            first=view.served_name(view.binlogs[0]) if view.binlogs else "",
            last=view.served_name(view.binlogs[-1]) if view.binlogs else "",
            whole=view.whole,
            problem=view.problem,
            error=str(error) if error is not None else "",
            clients=tuple(_client(client, dumps.get(client.number)) for client in clients),
            refused=dict(source.refused) if source is not None else {},
            sent_bytes=sent,
            fetched_bytes=self._cache.fetched,
        )


def _client(client: Client, served: ServedDump | None) -> ClientStatus:
    dump = client.dump
    name, position = served.position if served is not None else ("", 0)
    state = "connected" if served is None else "sending" if served.behind else "waiting"
    kind = "client"
    if dump is not None:
        kind = "replica" if dump.registered else "reader"
    return ClientStatus(
        number=client.number,
        user=client.user,
        host=client.host,
        kind=kind,
        server_id=dump.server_id if dump is not None else 0,
        uuid=dump.uuid[:64] if dump is not None else "",
        state=state,
        binlog=name,
        position=position,
        behind_bytes=served.behind if served is not None else 0,
        sent_bytes=client.sent,
        since=client.since,
    )


def _one_of(dump: Dump) -> str | None:
    """The replica's UUID: a new connection of it ends the account's older one with that UUID.

    That one may be half open.
    """
    return dump.uuid or None


def _threads(config: ServeConfig) -> int:
    return config.s3.threads if config.s3 is not None else 4


@contextmanager
def _history(config: ServeConfig, stop: "_Stop") -> Iterator[ServedHistory]:
    if config.directory is not None:
        yield recovered(config.directory, stop)
        return
    if config.binlog_dir is not None:
        yield of_server(config.binlog_dir, stop)
        return
    assert config.s3 is not None  # noqa: S101 - `SERVE` makes no other config
    assert config.source is not None  # noqa: S101
    settings = replace(for_restoring(config.s3), read_timeout_seconds=15.0)
    store = S3Store(settings, stop=stop, evidence=Evidence)
    with ExitStack() as stack:
        stack.callback(store.close)
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        history = ArchiveHistory(
            catalog,
            Workers(_threads(config)),
            lineage=config.lineage,
            poll_seconds=config.poll_interval,
        )
        stack.callback(history.close)
        history.start()
        yield history


class _Stop(threading.Event):
    """An event that a signal sets; `number` is the signal's."""

    number = 0

    @property
    def exit_code(self) -> int:
        """That of a process which this signal has ended."""
        return 130 if self.number == signal.SIGINT else 0


@contextmanager
def _signals() -> Iterator[_Stop]:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stop, heard_of = _Stop(), SimpleQueue[int]()

    def obey() -> None:
        """Set it in a thread: a wait that the handler has interrupted may hold its lock.

        The thread is there from the beginning: later the system may start no more.
        """
        heard_of.get()
        stop.set()

    def heard(number: int, _frame: object) -> None:
        if stop.number:
            os._exit(128 + number)
        stop.number = number
        heard_of.put(number)

    threading.Thread(target=obey, name="signals", daemon=True).start()
    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _password(path: Path) -> str:
    """The password in a file, without the newline at its end. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(_PASSWORD_MOST + 1)
        found = data.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeError) as error:
        why = os.strerror(error.errno or 0) if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError([f"--password-file: {path}: {why.lower()}"]) from error
    if not found or len(data) > _PASSWORD_MOST or "\0" in found:
        raise ConfigError(
            [f"--password-file: {path}: a password has 1 to {_PASSWORD_MOST} bytes"],
            hint="every account needs a password",
        )
    return found


def _endpoint(config: ServeConfig) -> Endpoint:
    """Where it listens. Raises ConfigError for its certificate."""
    host, port = split_listen(config.listen)
    tls = None
    if config.tls_cert is not None and config.tls_key is not None:
        tls = tls_of(config.tls_cert, config.tls_key)
    return Endpoint(
        host=host, port=port, tls=tls, needs_tls=not is_loopback(host), option="--listen"
    )


def _uuid_of(config: ServeConfig) -> str:
    """The server_uuid that replicas see: always the same for one archive."""
    where = config.s3.url if config.s3 is not None else config.directory or config.binlog_dir
    digest = hashlib.sha256(f"binlog2s3 serve\0{where}\0{config.source}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))
