"""`binlog2s3 backup run`: makes a base backup, and stores it in the bucket while it is made.

Law: the document is written last, and only if the program ended well, its stream says where it ends
and has no defect, the archive has that place, and the objects have the bytes that were sent. Until
then there is nothing that a recovery could choose. A death leaves unfinished uploads, which the
next run aborts, and the run's object, by which `status` tells of it.
"""

import os
import shlex
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from binlog2s3 import __version__
from binlog2s3.archive.backups import INTERVAL_SECONDS, Backup, BackupRun, lost_of, new_id, runs_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.stored import PART_SIZE, Stored
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.compression import ZstdStream
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.backup import BackupConfig, PositionFrom
from binlog2s3.config.bucket import for_storing
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.stream import MysqlConfig
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError, SourceError, StoreError
from binlog2s3.formatting import cut, duration_text, one_line, size_text, some
from binlog2s3.output import page_on, say
from binlog2s3.progress import ProgressDisplay
from binlog2s3.recover.backup import StreamedDump
from binlog2s3.recover.backup_format import BackupPoint, parse_xtrabackup_log
from binlog2s3.recover.reach import BackupReach
from binlog2s3.recover.route import history_flavour
from binlog2s3.recover.snapshot import Snapshot, snapshot_of
from binlog2s3.retain.backup import backup_at, print_json, print_rows, reachable
from binlog2s3.retain.leftovers import Bucket, Leftovers, clear, leftovers_of
from binlog2s3.retain.stream_upload import StreamUpload
from binlog2s3.server.applied import applied_settings
from binlog2s3.server.backup_program import (
    BackupProgram,
    RunningBackup,
    command_of,
    flavour_of,
    position_of,
    program_of,
)
from binlog2s3.server.connection import Server
from binlog2s3.server.dump_losses import Loss, losses_of
from binlog2s3.server.login import resolve
from binlog2s3.server.versioned import Versioned, versioned_tables
from binlog2s3.status.writer_state import last_report, life_sign
from binlog2s3.store.contract import RetryPolicy
from binlog2s3.store.errors import MendableError
from binlog2s3.store.s3 import S3Store, opened
from binlog2s3.store.versions import Hold
from binlog2s3.stream.remote import put_once
from binlog2s3.workers import Workers

_WAIT_SECONDS = 600.0
_SENDERS = 3
"""So many parts are sent at a time: what is in memory is these, and the one that is gathered."""
_LINE_SECONDS = 60.0
_POLICY = RetryPolicy(attempts=12)
"""A store may be away for some minutes; the server ends a dump that waits for longer."""


class _Reader(Protocol):
    """Reads a stream as it goes by, and then says where its backup ends."""

    def feed(self, block: bytes) -> None:
        """Take the next bytes of the program's output."""

    def end(self, log: str) -> BackupPoint:
        """Where the backup ends; `log` is the end of the program's standard error."""


@dataclass(slots=True)
class _DumpHeader:
    name: str
    dump: StreamedDump

    def feed(self, block: bytes) -> None:
        self.dump.feed(block)

    def end(self, log: str) -> BackupPoint:
        del log
        return self.dump.end(f"the output of {self.name}")


@dataclass(slots=True)
class _XtrabackupLog:
    name: str
    of_mariadb: bool

    def feed(self, block: bytes) -> None:
        """The position is not in there."""

    def end(self, log: str) -> BackupPoint:
        return parse_xtrabackup_log(f"the log of {self.name}", log, of_mariadb=self.of_mariadb)


def reader_of(position_from: PositionFrom, name: str, flavour: Flavour) -> _Reader:
    """What reads the output of a program of this name."""
    if position_from == "dump-header":
        return _DumpHeader(name, StreamedDump())
    return _XtrabackupLog(name, flavour == "mariadb")


def run(config: BackupConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises StoreError, ArchiveError, RecoveryError."""
    s3 = for_storing(config.s3)
    with opened(
        s3, sigterm_interrupts=True, evidence=Evidence, session=outside.session
    ) as impatient:
        layout = Layout(config.s3.prefix, config.source)
        impatient.check_access(layout.archive)  # who waits at the terminal learns of it soon
        store = impatient.with_policy(_POLICY)
        catalog = Catalog(store, layout)
        workers = Workers(config.s3.threads)
        bucket = Bucket(
            catalog,
            now=lambda: store.settings.now(outside.now(), catalog.layout.archive),
            hold_on=_holds(store),
        )
        look = partial(snapshot_of, catalog, workers, config.s3.url)
        backup, reaches = BackupStorer(config, bucket, look, outside).run()
        for text in store.version_notes():
            say("warning", text)
    rows = [(backup, reaches)]
    if config.as_json:
        print_json(config.source, rows)
    else:
        print_rows(config.source, rows, is_new=True, is_one=True)
    return 0


def _holds(store: S3Store) -> Callable[[str], Hold] | None:
    """How Object Lock keeps a key; None if the bucket has none, or may not be asked."""
    with suppress(StoreError):
        return store.settings.holds()
    return None


def connected(config: MysqlConfig) -> Server:
    """The server that answers there."""
    return Server(lambda: resolve(config))


class BackupStorer:
    """One run of the command. `look` takes a snapshot of the bucket.

    `connect` gives the server that answers a login; `part_size` is that of the first parts.
    """

    def __init__(
        self,
        config: BackupConfig,
        bucket: Bucket,
        look: Callable[[], Snapshot],
        outside: Outside,
        *,
        connect: Callable[[MysqlConfig], Server] = connected,
        part_size: int = PART_SIZE,
    ) -> None:
        self._config = config
        self._bucket = bucket
        self._look = look
        self._catalog = bucket.catalog
        self._outside = outside
        self._connect = connect
        self._part_size = part_size
        self._read = 0
        self._sent: Callable[[], int] = lambda: 0

    def run(self) -> tuple[Backup, list[BackupReach]]:
        """Make it, store it, register it."""
        snapshot = self._look()
        flavour = history_flavour(snapshot, None)
        program, server_uuid = self._program(flavour), self._server_uuid(flavour)
        settings = self._settings()
        position_from = self._config.position_from
        if self._config.tool is not None:
            position_from = position_of(self._config.tool)
        assert position_from is not None  # noqa: S101 - the options were checked
        reader = reader_of(position_from, program.name, flavour)
        self._prepare()
        self._warn_of_dead_streamer()
        with self._reporting(program.name) as id_:
            workers = Workers(_SENDERS)
            store, layout = self._catalog.store, self._catalog.layout
            upload = StreamUpload(
                store,
                lambda number: layout.stored(id_, number),
                workers,
                part_size=self._part_size,
            )
            what_is = "nothing was registered"
            try:
                stored, point = self._store(program, reader, upload)
                self._check_server(point, server_uuid, flavour)
                backup = replace(
                    self._backup(id_, point, stored, server_uuid, flavour), settings=settings
                )
                backup, reaches = self._reachable(backup)
                upload.complete()
                what_is = "`binlog2s3 backup list` shows whether it was registered"
                put_once(store, layout.backup(backup.id), backup)
                self._check_there(backup)
            except BaseException as error:
                self._abort(upload)
                if isinstance(error, KeyboardInterrupt):  # SIGTERM, too
                    page_on(sys.stderr).line(f"interrupted: {what_is}")
                raise
            finally:
                workers.close()
        self._forget_runs(id_)
        return backup, reaches

    # Before it

    def _program(self, flavour: Flavour) -> BackupProgram:
        config = self._config
        login = resolve(config.server) if config.server is not None else None
        if config.command is not None:
            return command_of(shlex.split(config.command), login, flavour)
        assert config.tool is not None  # noqa: S101 - the options were checked
        assert login is not None  # noqa: S101 - so were these
        if flavour_of(config.tool) != flavour:
            raise SourceError(
                f"the history of {config.source} is {flavour}'s, and {config.tool} is for "
                f"{flavour_of(config.tool)}",
                hint="choose the --tool of the server's flavour",
            )
        assert config.server is not None  # noqa: S101 - so were these
        keeps = Versioned()
        if position_of(config.tool) == "dump-header":
            with self._connect(config.server) as server:
                keeps = versioned_tables(server) if flavour == "mariadb" else keeps
                refuse_losses(losses_of(server, flavour), config.tool)
        history = bool(keeps.tables) and not keeps.obstacle
        program = program_of(
            config.tool, login, config.program, config.tool_option, history=history
        )
        if keeps.tables and not program.has_history:
            why = keeps.obstacle or "it is not given --dump-history, or does not have it (10.11)"
            say(
                "warning",
                "the dump leaves out the history of the system-versioned tables "
                f"{some(keeps.tables)}: {why}. What is restored from it has their current rows "
                "only; --tool mariabackup keeps it",
            )
        return program

    def _server_uuid(self, flavour: Flavour) -> str:
        """The uuid of the server that answers the login; "" without one, and of a MariaDB."""
        config = self._config
        if config.server is None:
            return ""
        with self._connect(config.server) as server:
            facts = server.facts()
        if facts.flavour != flavour:
            raise SourceError(
                f"the server is {facts.flavour}, the history of {config.source} is {flavour}'s",
                hint="is --source the right one?",
            )
        return facts.uuid if flavour == "mysql" else ""

    def _settings(self) -> tuple[str, ...]:
        """Those that a server needs to which the backup is restored. Raises SourceError."""
        if self._config.server is None:
            return ()
        with self._connect(self._config.server) as server:
            return applied_settings(server)

    def _prepare(self) -> None:
        """Refuse to run beside another run; clear what killed ones have left."""
        left = leftovers_of(self._bucket)
        if (other := left.working) is not None:
            raise RecoveryError(
                f"another `backup run` of {self._config.source} works on {other.host} (pid "
                f"{other.pid}) since {other.since:%Y-%m-%dT%H:%M:%SZ}",
                hint="wait for its end; if it was killed, that shows five minutes after its last "
                "report",
            )
        say_leftovers(left)
        try:
            clear(self._catalog, left)
        except MendableError as error:  # the objects are prune's to delete
            say("warning", f"what earlier runs left stays: {error}")
            say("hint", error.hint)

    def _warn_of_dead_streamer(self) -> None:
        sign = life_sign(self._catalog, self._outside.now())
        if not sign.alive:
            say(
                "warning",
                f"no streamer works: {last_report(sign)}. Nothing is registered before the archive "
                "has all that the backup contains",
            )

    # Doing it

    def _store(
        self, program: BackupProgram, reader: _Reader, upload: StreamUpload
    ) -> tuple[Stored, BackupPoint]:
        """Run the program, and send what it writes; what was sent, and where it ends."""
        config, zstd = self._config, None if self._config.no_compress else ZstdStream()
        began, crc64 = self._bucket.now(), 0
        self._sent = lambda: upload.size
        with (
            tempfile.TemporaryDirectory(prefix="binlog2s3-backup-") as directory,
            ProgressDisplay(sys.stderr, line_seconds=_LINE_SECONDS) as display,
            RunningBackup(program, Path(directory)) as running,
        ):
            for block in running.output():
                self._read, crc64 = self._read + len(block), crc64nvme(block, crc64)
                reader.feed(block)
                upload.write(zstd.feed(block) if zstd is not None else block)
                display.show(lambda: self._progress(display.seconds), 0, 0)
            running.check_end()
            log = running.log()
        if not self._read:
            raise RecoveryError(
                f"{program.name} wrote nothing to its standard output",
                hint="--command must write the backup there",
            )
        if zstd is not None:
            upload.write(zstd.end())
        ended = self._bucket.now()
        point = reader.end(log)
        for warning in point.warnings:
            say("warning", f"{program.name}: {warning}")
        if point.defects:
            raise RecoveryError(
                f"what {program.name} wrote is no base backup of the whole server: "
                f"{'; '.join(point.defects)}",
                hint="check its options; nothing was stored",
            )
        upload.end()
        stored = Stored(
            compression="none" if config.no_compress else "zstd",
            size=self._read,
            crc64=Crc64(crc64),
            stored_size=upload.size,
            began_at=began,
            ended_at=max(ended, began),
            part_size=self._part_size,
            objects=upload.stored,
        )
        return stored, point

    def _check_server(self, point: BackupPoint, uuid: str, flavour: Flavour) -> None:
        """Where a position is all, raise RecoveryError unless the same server still answers.

        GTIDs mean the same transactions on every server.
        """
        if point.gtid_set is None and self._server_uuid(flavour) != uuid:
            raise RecoveryError(
                "another server answers there now: the backup's position is of one of them",
                hint="run it again, when no fail-over comes between",
            )

    def _backup(
        self, id_: str, point: BackupPoint, stored: Stored, server_uuid: str, flavour: Flavour
    ) -> Backup:
        config, folder = self._config, self._catalog.layout.stored_folder(id_)
        backup = backup_at(
            point,
            config,
            flavour,
            id_=id_,
            location=f"s3://{config.s3.bucket}/{folder}",
            taken_at=stored.began_at,
            registered_at=stored.ended_at,
        )
        return replace(
            backup,
            tool=config.tool or backup.tool,
            server_uuid=backup.server_uuid or server_uuid,
            stored=stored,
        )

    def _reachable(self, backup: Backup) -> tuple[Backup, list[BackupReach]]:
        """The backup once the archive has its place. Raises RecoveryError as `backup add` does."""
        wait = _WAIT_SECONDS if self._config.wait is None else self._config.wait
        try:
            found, reaches, _ = reachable(
                backup,
                self._look(),
                self._look,
                wait=wait,
                sleep=self._outside.sleep,
            )
        except RecoveryError as error:
            sign = life_sign(self._catalog, self._outside.now())
            if not sign.alive:
                raise RecoveryError(
                    f"{error}; no streamer works: {last_report(sign)}", hint=error.hint
                ) from error
            raise
        return replace(found, registered_at=self._bucket.now()), reaches

    def _check_there(self, backup: Backup) -> None:
        """Raise ArchiveError unless the objects are there, now that the document is.

        Nobody deletes what a document names. Before it was there, they looked like leftovers to
        others, if this run has reported nothing for long: its host stood still.
        """
        lost = lost_of(self._catalog, [backup]).get(backup.id)
        if lost is None:
            return
        key = self._catalog.layout.backup(backup.id)
        with suppress(StoreError):  # its rights may not suffice: then it counts nowhere
            self._catalog.store.delete([key])
        raise ArchiveError(
            lost, hint=f"run it again; if `backup list` has {backup.id}, `backup remove` forgets it"
        )

    def _abort(self, upload: StreamUpload) -> None:
        try:
            upload.abort()
        except StoreError as error:
            say("warning", f"an unfinished upload stays: {error}; the next run aborts it")

    def _progress(self, seconds: float) -> str:
        rate = self._read / seconds if seconds > 0 else 0.0
        return (
            f"{size_text(self._read)} read, {size_text(self._sent())} to store, "
            f"{size_text(rate)}/s, {duration_text(seconds)}"
        )

    # What is told of it

    @contextmanager
    def _reporting(self, tool: str) -> Iterator[str]:
        """Put the run's object, and renew it, while the block runs; after an error, say that."""
        now = self._bucket.now()
        run = BackupRun(
            id=new_id(now),
            source=self._config.source,
            host=cut(one_line(socket.gethostname()), 200),
            pid=os.getpid(),
            version=__version__,
            tool=cut(one_line(tool), 200),
            since=now,
            at=now,
        )
        key, stop = self._catalog.layout.backup_run(run.id), threading.Event()
        self._catalog.store.put(key, run.to_json())

        def renew() -> None:
            while not stop.wait(INTERVAL_SECONDS):
                with suppress(StoreError):
                    now = replace(run, at=self._bucket.now(), read_bytes=self._read)
                    self._catalog.store.put(key, now.to_json())

        renewer = threading.Thread(target=renew, name="backup-run", daemon=True)
        renewer.start()
        try:
            yield run.id
        except BaseException as error:
            stop.set()
            renewer.join(INTERVAL_SECONDS)
            why = str(error) if isinstance(error, Binlog2s3Error) else "it was interrupted"
            with suppress(StoreError):
                failed = replace(
                    run,
                    state="failed",
                    at=self._bucket.now(),
                    read_bytes=self._read,
                    error=cut(one_line(why), 1000) or type(error).__name__,
                )
                self._catalog.store.put(key, failed.to_json())
            raise
        finally:
            stop.set()
            renewer.join(INTERVAL_SECONDS)  # a late renewal would look like a run that was killed

    def _forget_runs(self, id_: str) -> None:
        """Delete this run's object, and those of runs that failed before."""
        catalog = self._catalog
        runs = runs_of(catalog, self._bucket.now())
        ids = {id_, *(run.id for run in runs if run.state == "failed")}
        try:
            catalog.store.delete([catalog.layout.backup_run(id_) for id_ in sorted(ids)])
        except StoreError as error:
            say("warning", f"the object of this run stays: {error}")


def refuse_losses(losses: Sequence[Loss], tool: str) -> None:
    """Warn of what a dump changes. Raises RecoveryError for what it would lose or make wrong."""
    for loss in losses:
        if not loss.refused:
            say("warning", loss.text)
            say("hint", loss.hint)
    refused = [loss for loss in losses if loss.refused]
    if refused:
        raise RecoveryError(
            f"{tool} is not run: {'; '.join(loss.text for loss in refused)}",
            hint="; ".join(dict.fromkeys(loss.hint for loss in refused)),
        )


def say_leftovers(left: Leftovers) -> None:
    """Name what failed runs left."""
    if left.uploads:
        keys = ", ".join(sorted({upload.key for upload in left.uploads})[:3])
        say("warning", f"unfinished uploads of earlier runs are aborted: {keys}")
    if left.objects:
        say("warning", f"objects of earlier runs are deleted: {size_text(left.size)}")
    for key, why in sorted(left.kept.items())[:3]:
        say("warning", f"{key} is of a run that registered nothing, and stays: {why}")
