"""Where a run that was cut off left a target: what it had applied by then, and what it left there.

Place in the flow: `apply` asks here before it begins, and notes here how far it comes.

Law: the target says itself how far it is, by its GTIDs, by its channel's position, or by a note
that was made before the channel went; what may have been applied already is not applied again.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.recover import replicate, target
from binlog2s3.recover.channel import channel_of, place_of
from binlog2s3.recover.model import Place, Plan, Start
from binlog2s3.recover.note import Note, Notes
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.connection import Server

_BY_GTIDS = "its GTIDs"
"""In place of a place: the target's GTIDs tell what was applied. The lineage stands behind it."""
_TRIES = 10


class Standing:
    """Of one target. Nothing is changed by questions."""

    def __init__(self, server: Server, facts: TargetFacts) -> None:
        self._server = server
        self._facts = facts
        self._notes = Notes(server)
        self._follows = ""

    def start(self, asked: str) -> Start | None:
        """Where a run that was cut off left the target, if it was the same one.

        None as well where gtid_executed tells it. `asked` is what the operator said of the
        beginning, then and now.
        """
        note = None if self._facts.keeps_gtids else self._notes.find()
        if note is None or note.asked != asked:
            return None
        if _is_by_gtids(note):
            follows = note.reached.removeprefix(_BY_GTIDS).removeprefix(" of ")
            return Start(gtids=self._slave_pos(), lineage=follows or None)
        reached = self._reached(note)
        if reached is None:
            return None
        return Start(place=(reached.binlog, reached.offset), lineage=reached.lineage)

    def check(self, plan: Plan, asked: Start, *, allow_non_transactional: bool) -> None:
        """Refuse what a run that was cut off may have applied already. Raises RecoveryError.

        Torn tables are refused even where nothing is left to apply: after a crash the target goes
        on by itself with what it had received.
        """
        note = self._notes.find()
        if note is None:
            return
        if self._facts.not_transactional and not allow_non_transactional:
            self._refuse_restarted(note)
        if self._facts.keeps_gtids or not plan.pieces:
            return
        if _is_by_gtids(note):
            if asked.gtids != self._slave_pos() or asked.place is not None:
                raise _stands_elsewhere(note, f"gtid_slave_pos {self._slave_pos()}", "")
            return
        reached = self._reached(note)
        if reached is not None and asked.place != (reached.binlog, reached.offset):
            raise _stands_elsewhere(
                note,
                _text(reached),
                f", or --from-lineage {reached.lineage}, --from-binlog {reached.binlog} and "
                f"--from-position {reached.offset}",
            )

    def _refuse_restarted(self, note: Note) -> None:
        if note.started != (started := self._server_start()):
            raise RecoveryError(
                f"a run that began at {note.begun} was cut off, the target was started again since "
                f"({started} UTC), and has tables without transactions: "
                f"{target.some(self._facts.not_transactional)}; what of it reached these nobody "
                "knows",
                hint="restore the base backup again and DROP DATABASE "
                f"{target.DATABASE}, or --allow-non-transactional if their rows do not matter",
            )

    def _server_start(self) -> str:
        """When the server was started, in UTC, by its own clock: to the second, always the same."""
        for _ in range(_TRIES):  # both must be of one second
            before = self._server.rows("SELECT UTC_TIMESTAMP() AS it")[0]["it"]
            up = int(self._server.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0]["Value"])
            after = self._server.rows("SELECT UTC_TIMESTAMP() AS it")[0]["it"]
            if before == after:
                break
        assert isinstance(after, datetime)  # noqa: S101 - the driver makes it
        return str(after - timedelta(seconds=up))

    def _slave_pos(self) -> Gtids:
        row = self._server.rows("SELECT @@global.gtid_slave_pos AS it")[0]
        return MariadbGtidList.parse(str(row["it"]))

    def _reached(self, note: Note) -> Place | None:
        left = replicate.left_over(self._server, self._facts)
        return (left.reached() if left is not None else None) or _place(note.reached)

    def goes_on(self) -> bool:
        """Whether its GTIDs tell where a run was cut off."""
        note = self._notes.find()
        return note is not None and _is_by_gtids(note)

    @contextmanager
    def noted(self, plan: Plan, asked: str, *, is_untouched: Callable[[], bool]) -> Iterator[None]:
        """As long as this lasts a note in the target says that somebody is at work on it.

        What an earlier run left is put away first. After an error it stays, unless
        `is_untouched()`: then it is as if this had never begun.
        """
        before = self._notes.find()
        self._follows = f"{_BY_GTIDS} of {plan.lineage}"
        by_gtids = self._facts.keeps_gtids or self.goes_on()
        self._notes.write(
            asked=asked,
            started=self._server_start(),
            reached=self._follows if by_gtids else _text(plan.begin),
        )
        try:
            self._settle()  # the note says how far it came
            yield
        except BaseException:
            if before is None and is_untouched():
                with suppress(Binlog2s3Error):
                    self._notes.remove()
            raise
        self._notes.remove()

    def follow_gtids(self) -> None:
        """Note that from now on gtid_slave_pos tells what was applied."""
        self._notes.reach(self._follows)

    def reach(self, place: Place) -> None:
        """Note that all before it was applied, and nothing behind: the channel goes now."""
        self._notes.reach(_text(place))

    def keep(self, before: Mapping[str, object]) -> None:
        """Note the settings of the server that are changed now, as they are before."""
        self._notes.keep(before)

    def _settle(self) -> None:
        """Remove the channel, and restore the settings, that a run which was cut off has left."""
        replicate.settle(self._server, self._facts)
        note = self._notes.find()
        if note is not None and note.before:
            channel_of(self._server, self._facts).restore(note.before)
            self._notes.keep({})

    def put_away(self) -> None:
        """What a run left that was cut off, where all that it had to do is done."""
        note = self._notes.find()
        if note is not None and not _is_by_gtids(note):
            reached = self._reached(note)
            if reached is not None:
                self.reach(reached)
        self._settle()
        if note is not None:
            self._notes.remove()


def _stands_elsewhere(note: Note, where: str, other: str) -> RecoveryError:
    return RecoveryError(
        f"the target stands at {where}, where a run that began at {note.begun} was cut off, and "
        "not where this one is to begin",
        hint=f"the same command as then goes on from there{other}; if the base backup was restored "
        f"again since: DROP DATABASE {target.DATABASE}",
    )


def _is_by_gtids(note: Note) -> bool:
    return note.reached.startswith(_BY_GTIDS)


def _text(place: Place) -> str:
    """A place, for a marker in the target."""
    return f"{place.lineage}.{place}"


def _place(text: str) -> Place | None:
    """The place that a marker names; None where it names none."""
    name, _, offset = text.rpartition(":")
    return place_of(name, int(offset)) if offset.isdigit() else None
