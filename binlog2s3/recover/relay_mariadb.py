"""Brings a stream into a MariaDB by its own applier: binlogs as relay logs of a replica channel.

Place in the flow: `relay` comes here where the target is a MariaDB, see there for what is promised.
`relay_cut` makes relay logs of the stream, `mariadb_channel` is the channel, `relay_ledger` tells
from the target's GTIDs how far it is.

Law: in the relay logs lie only bytes of the plan, so the applier cannot pass the goal; and a batch
counts as applied when the applier waits behind it and the target's GTIDs are those of its end.

The applier runs all the time. It waits in a relay log of the server's own; a batch is put behind
that one into the index, and the server begins another one of its own behind the batch. So the
source's temporary tables, which live in the applier, outlive a batch.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError, SourceError, StoreError
from binlog2s3.recover.hints import advised, clean, look
from binlog2s3.recover.mariadb_channel import Channel, Index, Reach, State
from binlog2s3.recover.model import OnProgress, Piece, Place, Progress, Stream
from binlog2s3.recover.relay_cut import Ends, Part, cut
from binlog2s3.recover.relay_files import Beside
from binlog2s3.recover.relay_ledger import Ledger, gtid_slave_pos
from binlog2s3.recover.target import CHANNEL, TargetFacts, refuse_full_disk
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login

_LOOK_SECONDS = 0.2
_WAIT_SECONDS = 0.02
_TIDY_SECONDS = 60.0
_FULL_SECONDS = 15.0
"""It has stood still for so long that its disk is looked at."""
_AGAIN = "run the same command again: it goes on from there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a run that was cut off left at the target, see `relay.LeftOver`."""

    running: bool
    place: Place | None


def left_over(server: Server, found: TargetFacts) -> Left | None:
    """See `relay.left_over`."""
    del found
    state, ledger = Channel(server).state(), Ledger(server)
    if (state is None or not state.ours) and not ledger.exists():
        return None
    running = state is not None and state.ours and state.running
    return Left(running=running, place=None if running else ledger.place())


def halt(server: Server, found: TargetFacts) -> Left | None:
    """See `relay.halt`."""
    channel = Channel(server)
    state = channel.state()
    if state is not None and state.ours and state.running:
        channel.stop()
    return left_over(server, found)


def settle(server: Server, found: TargetFacts, *, directory: Path | None) -> None:
    """See `relay.settle`."""
    channel = Channel(server)
    state = channel.state()
    if state is not None and not state.ours:
        return
    halt(server, found)
    reach = Reach.of(server, directory)
    if state is not None:
        reach.hide()
        channel.remove()
    reach.clear()
    Ledger(server).remove()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """A relay log that is whole. `before`: bytes and transactions of the stream before it."""

    path: Path
    piece: Piece
    head: int
    ends: Ends
    before: tuple[int, int]
    size: int


class Relay:
    """See `relay.Relay`."""

    def __init__(
        self,
        server: Server,
        login: Login,
        found: TargetFacts,
        *,
        directory: Path | None,
        size: int,
        transactions: int,
        batch_bytes: int = 256 << 20,
        on_place: Callable[[Place], None] = lambda _place: None,
    ) -> None:
        self._server = server
        self._login = login
        self._found = found
        self._directory = directory
        self._of = (size, transactions)
        self._on_place = on_place
        self._most = max(batch_bytes // 2, 1)
        self._channel = Channel(server)
        self._ledger = Ledger(server)
        self._reach: Reach
        self._index: Index
        self._on_progress: OnProgress = lambda _progress: None
        self._given: list[_Log] = []  # the applier has these
        self._ready: list[_Log] = []  # these come next
        self._number = 0
        self._done = (0, 0)  # bytes and transactions in logs that are whole
        self._own = ""  # the server's own relay log, before all that was given
        self._looked = 0.0
        self._seen = ("", 0)  # where the applier was, and since when
        self._moved = 0.0
        self._done_at: float | None = None  # since when the applier is behind all, untidied
        self._commit_us: int | None = None
        self.touched = False

    def apply(self, stream: Stream, on_progress: OnProgress) -> None:
        """See `relay.Relay`."""
        self._on_progress = on_progress
        with self._at_work():
            broken: ArchiveError | StoreError | None = None
            try:
                for _ in self._written(stream):
                    self._look()
                    if not self._given and self._ready:
                        self._give()
                    while self._waiting_bytes() >= self._most:
                        self._wait()
                        self._give()
            except (ArchiveError, StoreError) as error:
                broken = error  # what comes before it is whole, and can be had
            while self._given or self._ready:
                self._wait()
                self._give()
            if broken is not None:
                raise broken

    # The channel

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The channel is there, and gone in the end, whatever happens."""
        self._reach = Reach.of(self._server, self._directory)
        if self._channel.state() is not None:
            raise RecoveryError(
                f"the target, {self._login.address}, has a replica channel {CHANNEL!r} already",
                hint="does another recovery run there? Else the same command again removes it",
            )
        self._reach.clear()
        try:
            self._index = self._reach.found(self._channel.create(self._reach))
            self._reach.hide()
            self._channel.start()
            yield
        except BaseException as error:
            self._give_up(error)
            raise
        self._end(failed=False)

    def _give_up(self, error: BaseException) -> None:
        """Put all away; what cannot be put away now the next run does."""
        try:
            self._end(failed=True)
        except Binlog2s3Error as other:
            if isinstance(error, Binlog2s3Error):
                stays = f"the channel {CHANNEL!r} stays until the next run ({other})"
                error.hint = f"{error.hint}; {stays}" if error.hint else stays

    def _end(self, *, failed: bool) -> None:
        self._server.close()  # an error may have left it in the middle of an answer
        left = halt(self._server, self._found)
        if failed and left is not None and left.place is not None:
            self._on_place(left.place)
        settle(self._server, self._found, directory=self._directory)

    # Writing

    def _written(self, stream: Stream) -> Iterator[None]:
        """Write the stream into relay logs; they are ready one by one."""
        out: Beside | None = None
        head = 0
        try:
            for part in cut(stream, server_id=self._found.server_id):
                if out is None:
                    self._number += 1
                    out, head = self._reach.begin(self._number), len(part.head)
                    out.write(part.head)
                out.write(part.data)
                if part.ends is not None:
                    out.done()
                    self._ready.append(self._log(part, part.ends, out, head))
                    out = None
                yield
        finally:
            if out is not None:
                out.drop()

    def _log(self, part: Part, ends: Ends, out: Beside, head: int) -> _Log:
        before = self._done
        self._done = (before[0] + out.size - head, before[1] + len(ends.gtids))
        return _Log(
            path=out.path, piece=part.piece, head=head, ends=ends, before=before, size=out.size
        )

    def _waiting_bytes(self) -> int:
        return sum(log.size for log in self._ready)

    # Applying

    def _give(self) -> None:
        """Hand what is ready to the applier, which waits."""
        if not self._ready:
            return
        self._ledger.note([(log.piece, log.ends) for log in self._ready])
        self._own = self._state().log
        self._index.append([log.path for log in self._ready])
        self.touched = True
        self._channel.rotate()
        self._given, self._ready = self._ready, []

    def _wait(self) -> None:
        """Until the applier has done all that it was given."""
        while self._given:
            self._look(always=True)
            if self._given:
                time.sleep(_WAIT_SECONDS)

    def _look(self, *, always: bool = False) -> None:
        """See how far the applier is, and whether it has failed."""
        now = time.monotonic()
        if not self._given or (not always and now - self._looked < _LOOK_SECONDS):
            return
        try:
            state = self._state()
        except SourceError as error:
            raise RecoveryError(
                f"the target, {self._login.address}, went away while it applied: {error}",
                hint=f"is the server up? {_AGAIN}",
                transient=True,
            ) from error
        is_done = state.log != self._own and self._log_at(state) is None
        if is_done or now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self._tell(state, is_done=is_done)
        if (state.log, state.offset) != self._seen:
            self._seen, self._moved = (state.log, state.offset), now
        elif now - self._moved > _FULL_SECONDS:
            refuse_full_disk(self._server, self._login.address)
        if state.code or not state.running:
            raise self._explained(state)
        if is_done and self._index.has_only(state.log):
            self._prove()
            self._given, self._done_at = [], None
        elif is_done:
            self._done_at = self._done_at or now
            if now - self._done_at > _TIDY_SECONDS:
                raise RecoveryError(
                    "the target has not removed relay logs from its index that it is done with",
                    hint=f"is relay_log_purge ON? {_AGAIN}",
                )

    def _state(self) -> State:
        state = self._channel.state()
        if state is None or not state.ours:
            raise RecoveryError(
                f"somebody removed the replica channel {CHANNEL!r} at the target meanwhile",
                hint=_AGAIN,
            )
        return state

    def _prove(self) -> None:
        """All of the batch was applied: the target has the last GTID of each domain in it."""
        last = {gtid.split("-")[0]: gtid for log in self._given for gtid in log.ends.gtids}
        found = set(gtid_slave_pos(self._server).values())
        if missing := sorted(set(last.values()) - found):
            raise RecoveryError(
                f"the target's applier has passed over transactions: {', '.join(missing)} are not "
                "in its gtid_slave_pos",
                hint="does something there leave out events? --apply pipe does without the applier",
            )
        for log in reversed(self._given):
            if log.ends.in_binlog:
                self._on_place(_place(log.piece, log.ends.in_binlog[-1]))
                return

    def _log_at(self, state: State) -> _Log | None:
        return next((log for log in self._given if log.path.name == state.log), None)

    def _tell(self, state: State, *, is_done: bool) -> None:
        log = self._given[-1] if is_done else self._log_at(state)
        if log is None:
            return
        offset = log.size if is_done else state.offset
        number = log.ends.before(offset)
        size, count = log.before[0] + max(offset - log.head, 0), log.before[1]
        if number:
            self._commit_us = log.ends.commit_us[number - 1]
        self._on_progress(
            Progress(
                size=min(size, self._of[0]),
                of_size=self._of[0],
                transactions=count + number,
                of_transactions=self._of[1],
                commit_us=self._commit_us,
            )
        )

    # What went wrong

    def _explained(self, state: State) -> RecoveryError:
        """Which transaction failed, and what to do."""
        if not state.code:
            return RecoveryError("somebody stopped the target's applier meanwhile", hint=_AGAIN)
        log = self._log_at(state)
        number = log.ends.before(state.offset) if log is not None else 0
        gtid, where, seen = None, "what comes behind the last transaction", ""
        if log is not None and number < len(log.ends.gtids):
            gtid, begin = log.ends.gtids[number], log.ends.begins[number]
            where = (
                f"transaction {gtid} at {log.piece.binlog}:{begin} (lineage {log.piece.lineage})"
            )
            seen = look(str(log.piece.binlog), begin, log.ends.in_binlog[number])
        return RecoveryError(
            f"the target, {self._login.address}, refused {where}: {clean(state.text)}; all before "
            "it was applied",
            hint=advised(state.code, "mariadb", look=seen, gtid=gtid, again=_AGAIN),
        )


def _place(piece: Piece, offset: int) -> Place:
    return Place(lineage=piece.lineage, binlog=piece.binlog, offset=offset)
