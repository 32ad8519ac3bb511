"""Where an interrupted run left a target: what it had applied, and what it left there.

`apply` asks here before it begins, and notes here how far it gets, by `notes`. `seam` knows whether
the transaction that is next was executed all the same.

Law: the target itself says how far it is, by its GTIDs, by its channel's position, or by a note
made before the channel was removed. What may have been applied already is not applied again.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.history import parents_first
from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.formatting import some
from binlog2s3.recover import target
from binlog2s3.recover.channel import channel_of, left_over, settle
from binlog2s3.recover.model import BinlogPosition, Plan, Start
from binlog2s3.recover.notes import Note, Notes, by_gtids
from binlog2s3.recover.seam import Next, after, is_executed
from binlog2s3.recover.target import Target
from binlog2s3.server.connection import started_at


class Standing:
    """How far one target is. Questions change nothing.

    `half_way`: the GTID of the transaction where the target has crashed, if it is not known to have
    executed it.
    """

    def __init__(self, at: Target) -> None:
        self._target = at
        self._facts = at.facts
        self._notes = Notes(at)
        self._follows = ""
        self._order: Sequence[str] = ()
        self._executed: MariadbGtidList | None = None
        self.half_way: str | None = None

    def start(self, asked: str, lineages: Sequence[Lineage]) -> Start | None:
        """Where an interrupted run left the target, if it was started like this one.

        None as well if gtid_executed tells it. `asked` is what the operator said about the start,
        then and now. `lineages`: all of the source's.
        """
        self._order = [lineage.id for lineage in parents_first(lineages)]
        note = None if self._facts.keeps_gtids else self._notes.find()
        if note is None or not note.is_of(asked):
            return None
        if note.is_by_gtids:
            return Start(gtids=self._slave_pos(), lineage=note.follows)
        reached = self._reached(note)
        if reached is None:
            return None
        return Start(position=reached.file_position, lineage=reached.lineage)

    def after(self, upcoming: Next) -> Gtids | None:
        """What the target has executed, if that is one transaction more than its position says.

        `upcoming`: the one that a plan from its position would begin with. None if it has not
        executed it. Raises RecoveryError if that cannot be known.
        """
        note = self._notes.find()
        is_mariadb = self._facts.flavour == "mariadb"
        if note is None or (is_mariadb and not note.is_by_gtids):
            return None
        replicated = self._slave_pos() if is_mariadb else None
        crashed = note.started != self._server_start()
        if is_executed(self._target, upcoming, replicated, crashed=crashed):
            assert replicated is not None and upcoming.gtid is not None  # noqa: S101, PT018 - only then
            self._executed = after(replicated, upcoming.gtid)
        elif crashed and is_mariadb:
            self.half_way = upcoming.gtid
        return self._executed

    def was_interrupted(self) -> bool:
        """Whether a run has begun here and not ended."""
        return self._notes.find() is not None

    def since(self) -> BinlogPosition | None:
        """Where the interrupted run, and those it continued, began; None if that is not known."""
        note = self._notes.find()
        return _position(note.since) if note is not None else None

    @property
    def database(self) -> str:
        """The database that the note is in; "" if there is none."""
        return self._notes.database

    def check(self, plan: Plan, asked: Start, *, allow_non_transactional: bool) -> None:
        """Refuse what an interrupted run may have applied already. Raises RecoveryError.

        Tables that a crash may have damaged are refused even if nothing is left to apply: after a
        crash the target continues by itself with what it had received.
        """
        note = self._notes.find()
        if note is None:
            return
        if self._facts.not_transactional and not allow_non_transactional:
            self._refuse_restarted(note)
        if self._facts.keeps_gtids or not plan.pieces:
            return
        if note.is_by_gtids:
            stands = self._executed or self._slave_pos()
            if asked.gtids != stands or asked.position is not None:
                raise self._stands_elsewhere(note, f"gtid_slave_pos {stands}", "")
            return
        reached = self._reached(note)
        if reached is not None and asked.position != reached.file_position:
            raise self._stands_elsewhere(
                note,
                _text(reached),
                f", or --from-lineage {reached.lineage}, --from-binlog {reached.binlog} and "
                f"--from-position {reached.offset}",
            )

    def refusal(self, tables: Collection[str]) -> RecoveryError | None:
        """Why a run of only these tables (none: all) cannot continue here; None if it can.

        A server that was marked claims GTIDs, or a position, that its other tables do not have.
        """
        try:
            mark = self._notes.mark()
        except RecoveryError as error:
            return error
        if mark is None or mark == frozenset(tables):
            return None
        names = ", ".join(sorted(mark))
        wanted = "all tables" if not tables else f"only {', '.join(sorted(tables))}"
        return self._facts.refusal(
            f"is a scratch server to which only {names} was "
            f"applied (pitr --table): its other tables are as in the base backup, so this run, "
            f"with {wanted}, would be wrong",
            "restore the base backup into an empty server; if it was restored again here "
            f"since: DROP DATABASE {self._notes.database}",
        )

    def _stands_elsewhere(self, note: Note, where: str, other: str) -> RecoveryError:
        return RecoveryError(
            f"the target is at {where}, where a run that began at {note.begun} was "
            "interrupted; this run would begin elsewhere",
            hint=f"run the same command as then: it continues from there{other}; if the base "
            f"backup was restored again since: DROP DATABASE {self._notes.database}",
        )

    def _refuse_restarted(self, note: Note) -> None:
        if note.started != (started := self._server_start()):
            raise RecoveryError(
                f"a run that began at {note.begun} was interrupted, the target was "
                f"restarted since ({started} UTC), and it has tables without transactions: "
                f"{some(self._facts.not_transactional)}; it is unknown what reached them",
                hint=f"restore the base backup again and DROP DATABASE {self._notes.database}, or "
                "--allow-non-transactional if their rows do not matter",
            )

    def _server_start(self) -> str:
        """When the server was started, in UTC, for a note."""
        return str(started_at(self._target.server).replace(tzinfo=None))

    def _slave_pos(self) -> MariadbGtidList:
        return target.replicated(self._target.server)

    def _reached(self, note: Note) -> BinlogPosition | None:
        left = left_over(self._target)
        position = left.reached(self._order) if left is not None else None
        return position or _position(note.reached)

    @contextmanager
    def noted(
        self,
        plan: Plan,
        asked: str,
        tables: Collection[str] = (),
        *,
        is_untouched: Callable[[], bool],
    ) -> Iterator[None]:
        """Note that a run works here, until it ends well.

        An earlier run's leftovers are removed first. After an error the note stays, unless
        `is_untouched()`: then the target is as before the run. If only some `tables` are applied,
        the target is marked, and the mark stays.
        """
        before, mark = self._notes.find(), self._notes.mark()
        self._follows = by_gtids(plan.lineage)
        tells = self._facts.keeps_gtids or (before is not None and before.is_by_gtids)
        self._notes.write(
            asked=asked,
            started=self._server_start(),
            reached=self._follows if tells else _text(plan.begin),
            since=_text(plan.begin),
            tables=frozenset(tables),
        )
        try:
            self._settle()  # the note says how far the earlier run came
            yield
        except BaseException:
            if before is None and is_untouched():
                with suppress(Binlog2s3Error):
                    (self._notes.remove_all if mark is None else self._notes.remove)()
            raise
        self._notes.remove()

    def follow_gtids(self) -> None:
        """Note that from now on gtid_slave_pos tells what was applied."""
        self._notes.reach(self._follows)

    def reach(self, position: BinlogPosition) -> None:
        """Note that everything before it was applied, and nothing after: the channel goes now."""
        self._notes.reach(_text(position))

    def keep(self, before: Mapping[str, object]) -> None:
        """Note the settings of the server that are changed now, as they are."""
        self._notes.keep(before)

    def _settle(self) -> None:
        """Remove the channel of an interrupted run, and restore the settings that it changed."""
        settle(self._target)
        note = self._notes.find()
        if note is not None and note.before:
            channel_of(self._target).restore(note.before)
            self._notes.keep({})

    def put_away(self) -> None:
        """Remove what an interrupted run left, when everything it had to do is done."""
        note = self._notes.find()
        if note is not None and not note.is_by_gtids:
            reached = self._reached(note)
            if reached is not None:
                self.reach(reached)
        self._settle()
        if self._executed is not None:
            self._target.server.rows("SET GLOBAL gtid_slave_pos = %s", (str(self._executed),))
        if note is not None:
            self._notes.remove()


def _text(position: BinlogPosition) -> str:
    """A position, for a note."""
    return f"{position.served_name}:{position.offset}"


def _position(text: str) -> BinlogPosition | None:
    """The position that a note names; None if it names none."""
    name, _, offset = text.rpartition(":")
    return BinlogPosition.served(name, int(offset)) if offset.isdigit() else None
