"""Applies what was extracted by a MySQL's own applier: as relay logs of a channel of ours.

Place in the flow: `relay` hands in the stream of checked bytes; `relay_batch` makes relay log files
of them, `relay_channel` speaks to the server, which reads them.

Law: only bytes of the plan ever lie in these files, so that an applier which runs on alone can
never pass the goal; a batch's files are whole on disk before the server knows of them, and no
transaction counts before the server says that it was applied. What the channel says of its place,
and the server's tables keep through a crash, names lineage, binlog and offset.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.errors import Binlog2s3Error, RecoveryError, SourceError
from binlog2s3.recover import relay_obstacle
from binlog2s3.recover.hints import advised, clean, look
from binlog2s3.recover.model import OnProgress, Place, Progress, Stream
from binlog2s3.recover.relay_batch import Batch, Batches, RelayLog
from binlog2s3.recover.relay_channel import NAME, Channel, Failure, State
from binlog2s3.recover.relay_obstacle import put_away
from binlog2s3.recover.target import TargetFacts, refuse_full_disk
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login

BATCH_BYTES = 128 << 20
"""So much lies in relay logs that are applied; as much again is written meanwhile."""

_EVERY_SECONDS = 0.2
_SOON_SECONDS = 0.02
_STILL_SECONDS = 10.0
_FULL_SECONDS = 15.0
"""It has stood still for so long that its disk is looked at."""
_AGAIN = "run the same command again: it goes on from there"

OnPlace = Callable[[Place], None]
"""Keeps, durably, that all before this place was applied (see `Relay`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOver:
    """What a run that was cut off has left: its channel.

    `running`: its applier is at work still. `place`: all before it is applied, nothing behind it;
    None where nothing was begun, or where GTIDs tell. As long as it is `running`, it moves.
    """

    running: bool
    place: Place | None


def left_over(server: Server, found: TargetFacts) -> LeftOver | None:
    """As `relay.left_over`."""
    channel = Channel(server)
    state = channel.state()
    if state is None or not state.ours:
        return None
    place = None if found.gtid_mode else channel.reached()
    return LeftOver(running=state.running, place=place)


def halt(server: Server, found: TargetFacts) -> LeftOver | None:
    """As `relay.halt`."""
    left = left_over(server, found)
    if left is None or not left.running:
        return left
    server.close()
    Channel(server).stop()
    return left_over(server, found)


def settle(server: Server, found: TargetFacts, *, directory: Path | None) -> None:
    """As `relay.settle`."""
    server.close()
    channel = Channel(server)
    state = channel.state()
    if state is not None and not state.ours:
        return
    halt(server, found)
    files = relay_obstacle.files_of(relay_obstacle.settings(server), directory)
    if files.path.is_dir():
        put_away(channel, files)
    else:
        channel.remove()


class Relay:
    """One apply to one target, as `pipe.Pipe` is.

    Without GTIDs at the target the place is in the channel while there is one: `on_place` is called
    before the channel is made (with the first piece's begin) and before it is removed, also after
    an error (with the place that was reached). So at any moment: the place in the channel counts,
    where there is a channel that has one, else the one that was noted last.

    `touched` is False as long as nothing of the stream was given to the server.
    """

    def __init__(
        self,
        server: Server,
        login: Login,
        found: TargetFacts,
        *,
        directory: Path | None,
        size: int,
        transactions: int,
        batch_bytes: int = BATCH_BYTES,
        on_place: OnPlace = lambda _place: None,
    ) -> None:
        self._server = server
        self._where = login.address
        self._facts = found
        self._of = (size, transactions)
        self._on_place = on_place
        settings = relay_obstacle.settings(server)
        self._files = relay_obstacle.files_of(settings, directory)
        self._one_worker = relay_obstacle.several_workers(settings)
        self._purges = settings.get("relay_log_purge", "ON").upper() in ("ON", "1")
        self._gtid_mode = settings.get("gtid_mode", "OFF").upper()
        self._channel = Channel(server)
        self._batches = Batches(
            self._files,
            size=batch_bytes,
            server_id=int(settings["server_id"]),
            tick=self._tick,
        )
        self._made = False
        self._written: list[Path] = []  # what the server was given, and may be there still
        self._batch: Batch | None = None  # the last that was handed over
        self._applies = False  # it is not known to be applied yet
        self._commit_us: int | None = None
        self._looked = 0.0
        self._seen: Place | None = None
        self._moved = 0.0  # when its place was seen to be another one
        self._still_since = 0.0  # when it was seen to move, or to be at work
        self._report: OnProgress = lambda _progress: None
        self.touched = False  # whether the target was given anything of the stream

    def apply(self, stream: Stream, on_progress: OnProgress) -> None:
        """Have all applied that the stream brings, in its order; the channel is gone afterwards.

        Raises RecoveryError that says at which transaction it stopped and what to do.
        """
        self._report = on_progress
        try:
            self._apply(stream)
        except SourceError as error:
            raise RecoveryError(
                f"the target, {self._where}, went away while it applied: {error}"
                if error.transient
                else f"the target, {self._where}, does not apply relay logs: {error}",
                hint=f"is the server up? {_AGAIN}" if error.transient else error.hint,
                transient=error.transient,
            ) from error
        size, transactions = self._of
        self._tell(size, transactions)

    def _apply(self, stream: Stream) -> None:
        self._files.remove(numbered=False)
        try:
            with closing(self._batches.run(stream)) as batches:
                for batch in batches:
                    if self._made:
                        self._finish()
                    else:
                        self._make(batch.files[0])
                    self._begin(batch)
            if self._made:
                self._finish()
        except BaseException as error:
            self._put_away(error)
            raise
        self._put_away(self._batches.broken)
        if self._batches.broken is not None:
            raise self._batches.broken

    # Begin and end

    def _make(self, first: RelayLog) -> None:
        """The channel, which stands where the first file begins."""
        if self._gtid_mode == "OFF" and first.piece.gtids:
            raise RecoveryError(
                "the transactions have GTIDs, and the target takes none (gtid_mode is OFF)",
                hint="SET GLOBAL gtid_mode = OFF_PERMISSIVE there, or --apply pipe",
            )
        if self._channel.state() is not None:
            raise RecoveryError(
                f"the target, {self._where}, has a channel {NAME!r} already",
                hint="does another recovery run there? Else the same command again removes it",
            )
        ident = first.ident.before
        self._on_place(ident.place(ident.position))
        before = self._files.numbered()
        self._made = True  # also where it breaks off in the middle of that
        self._channel.create(str(ident), ident.position, workers=self._one_worker)
        if not self._files.appeared(before) or len(self._files.numbered()) != 1:
            raise RecoveryError(
                f"{self._files.path} is not the relay log directory of the target, {self._where}",
                hint="--target-relay-log-dir names the directory as it is seen from here",
            )

    def _put_away(self, error: BaseException | None) -> None:
        """The channel goes; where it cannot, the error says that it stays."""
        try:
            if self._made:
                self._server.close()
                self._channel.stop()
                if not self._facts.gtid_mode and (place := self._channel.reached()) is not None:
                    self._on_place(place)
                put_away(self._channel, self._files)
            else:
                self._files.remove(numbered=False)
        except Binlog2s3Error as other:
            if error is None:
                raise
            if isinstance(error, Binlog2s3Error):
                stays = f"the channel {NAME!r} stays until the next run ({other})"
                error.hint = f"{error.hint}; {stays}" if error.hint else stays

    # Batch after batch

    def _begin(self, batch: Batch) -> None:
        """Hand it over; the applier is stopped."""
        self._written += self._files.move_in([one.path for one in batch.files])
        self._channel.rotate()
        self.touched = True
        self._batch, self._applies = batch, True
        self._moved = self._still_since = time.monotonic()
        self._channel.start(one_worker=self._one_worker)

    def _finish(self) -> None:
        """Wait until the batch is applied, all of it, and stop the applier."""
        pause = _SOON_SECONDS
        while self._applies and not self._look():
            time.sleep(pause)
            pause = min(2 * pause, _EVERY_SECONDS)
        if self._batch is not None and self._applies:
            self._channel.stop()
            self._prove(self._batch)
            self._applies = False
            if not self._purges:  # the last one is where the applier stands
                self._files.unlink(self._written[:-1])
                del self._written[:-1]

    def _tick(self) -> None:
        """Between two writes: tell how far it is, see whether it goes on."""
        if self._applies and time.monotonic() - self._looked >= _EVERY_SECONDS:
            self._look()

    def _look(self) -> bool:
        """Whether all of the batch is applied. Raises RecoveryError where the applier stopped."""
        self._looked = time.monotonic()
        state = self._channel.state()
        assert self._batch is not None  # noqa: S101 - nothing is looked at before
        if state is None or not state.ours:
            raise RecoveryError(
                f"the channel {NAME!r} of the target, {self._where}, was removed by somebody else",
                hint=_AGAIN,
            )
        file = self._batch.file(state.number)
        if file is not None and state.place is not None:
            size, transactions, commit_us = file.upto(state.place.offset)
            self._commit_us = commit_us or self._commit_us
            self._tell(size, transactions)
        last = self._batch.files[-1]
        if state.number == last.ident.number and state.place == last.end:
            return True
        if not state.running:
            raise self._explained()
        self._see_it_go_on(state)
        return False

    def _see_it_go_on(self, state: State) -> None:
        """An applier that passes over events reads them all, and does not come to their end."""
        moved, self._seen = state.place != self._seen, state.place
        if moved:
            self._moved = self._looked
        elif self._looked - self._moved > _FULL_SECONDS:
            refuse_full_disk(self._server, self._where)
        if moved or not state.has_read_all or self._channel.is_busy():
            self._still_since = self._looked
        elif self._looked - self._still_since > _STILL_SECONDS:
            raise RecoveryError(
                f"the applier of the target, {self._where}, has read all, and says that it stands "
                f"at {state.place}: it has passed over what lies behind",
                hint="was its server_id or a filter changed meanwhile? Restore the base backup, or "
                "look at what it lacks, before anything else is applied",
            )

    def _tell(self, size: int, transactions: int) -> None:
        of_size, of_transactions = self._of
        self._report(
            Progress(
                size=size,
                of_size=of_size,
                transactions=transactions,
                of_transactions=of_transactions,
                commit_us=self._commit_us,
            )
        )

    def _prove(self, batch: Batch) -> None:
        """The server has its GTIDs: nothing was passed over, whatever it says of its place."""
        if self._gtid_mode != "ON":
            return
        row = self._server.rows(
            "SELECT GTID_SUBTRACT(%s, @@global.gtid_executed) AS lacks", (str(batch.gtids),)
        )[0]
        if lacks := str(row["lacks"] or "").replace("\n", ""):
            raise RecoveryError(
                f"the applier of the target, {self._where}, says that it has applied all up to "
                f"{batch.files[-1].end}, and lacks {clean(lacks)}",
                hint="what keeps it from them? --apply pipe goes another way",
            )

    # What stopped it

    def _explained(self) -> RecoveryError:
        """Which transaction failed, and what to do."""
        failure = self._channel.failure()
        if failure is None:
            return RecoveryError(
                f"the applier of the target, {self._where}, was stopped by somebody else",
                hint=f"nothing was lost; {_AGAIN}",
                transient=True,
            )
        reached = self._reached_place()
        file, bounds = self._found(failure, reached)
        named = f"transaction {failure.gtid}" if failure.gtid else "a transaction"
        hint = ""
        if file is not None and bounds is not None:
            named += f" at {file.ident.binlog}:{bounds[0]}"
            if failure.place is not None and failure.place.offset not in bounds:
                named += f", event before {failure.place.offset}"
            named += f" (lineage {file.ident.lineage})"
            hint = look(str(file.ident.binlog), *bounds)
        before = "all before it was applied"
        if reached is not None and (bounds is None or reached.offset != bounds[0]):
            before = f"all before {reached} was applied"
        code = "" if f"code: {failure.code}" in failure.text else f" ({failure.code})"
        return RecoveryError(
            f"the target, {self._where}, refused {named}: {clean(failure.text)}{code}; {before}",
            hint=self._hint(failure, hint),
        )

    def _hint(self, failure: Failure, look_at_it: str) -> str:
        if "max_allowed_packet" in failure.text:
            return f"SET GLOBAL replica_max_allowed_packet = 1073741824 there; {_AGAIN}"
        return advised(failure.code, "mysql", look=look_at_it, gtid=failure.gtid, again=_AGAIN)

    def _reached_place(self) -> Place | None:
        """Where it stands, if the account may see it."""
        try:
            return self._channel.reached()
        except SourceError:
            return None

    def _found(
        self, failure: Failure, reached: Place | None
    ) -> tuple[RelayLog | None, tuple[int, int] | None]:
        """The file and the bounds of the transaction that failed, as far as the server says so."""
        batch = self._batch
        if batch is None:
            return None, None
        file = batch.file(failure.number)
        if file is not None and failure.place is not None:
            return file, file.around(failure.place.offset)
        for one in batch.files:
            place = one.ident.place(one.ident.position)
            if reached is not None and (place.lineage, place.binlog) == (
                reached.lineage,
                reached.binlog,
            ):
                return one, one.around(reached.offset + 1)
        return None, None
