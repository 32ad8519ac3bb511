"""Where an interrupted run left a target: what it had applied, and what it left there.

Place in the flow: `apply` asks here before it begins, and notes here how far it gets. The note is a
row in a database of its own in the target, which no binlog has; it is removed at the end.

Law: the target itself says how far it is, by its GTIDs, by its channel's position, or by a note
made before the channel was removed. What may have been applied already is not applied again. A note
is data: anybody who can write to the target can write one, so nothing in it is executed.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta

from binlog2s3.binlog.gtid import Gtids, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.output import clean
from binlog2s3.recover import replicate, target
from binlog2s3.recover.applier_error import place_of
from binlog2s3.recover.channel import channel_of
from binlog2s3.recover.model import BinlogPosition, Plan, Start
from binlog2s3.recover.target import DATABASE, TargetFacts
from binlog2s3.server.connection import Server

_BY_GTIDS = "its GTIDs"
"""In a note, instead of a position: the target's GTIDs tell what was applied, in this lineage."""
_TRIES = 10
_UNREADABLE = frozenset({"a table that its mark does not name"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a run says of itself while it works.

    `asked`: what the operator said about the start. `started`: when the server was started.
    Everything before `reached` was applied and nothing after it, except what a channel of that run
    has applied since. `settings`: the server's settings that the run has changed, as they were.
    """

    asked: str
    reached: str
    started: str
    begun: str
    settings: str

    @property
    def before(self) -> dict[str, str]:
        """The settings by name."""
        pairs = (one.partition("=") for one in self.settings.split(",") if one)
        return {name: value for name, _, value in pairs}

    @property
    def is_by_gtids(self) -> bool:
        """Whether the target's GTIDs tell what was applied."""
        return self.reached.startswith(_BY_GTIDS)

    @property
    def follows(self) -> str | None:
        """The lineage that a run by GTIDs followed; None if the note does not name it."""
        return self.reached.removeprefix(_BY_GTIDS).removeprefix(" of ") or None


class Notes:
    """The note at one target.

    If the target keeps no GTIDs it says how far the run got: a second run from the same place would
    apply transactions twice.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def find(self) -> Note | None:
        """The note that is there; None if there is none."""
        if not self._has("run"):
            return None
        rows = self._server.rows(f"SELECT * FROM {DATABASE}.run LIMIT 1")  # noqa: S608 - a constant
        if not rows:
            return None
        return Note(**{name: str(rows[0][name]) for name in Note.__slots__})

    def write(self, *, asked: str, reached: str, started: str) -> None:
        """Write it before the first byte is applied. The settings of an older note stay in it."""
        self._unlogged(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self._unlogged(
            f"CREATE TABLE IF NOT EXISTS {DATABASE}.run (id INT PRIMARY KEY, asked VARCHAR(500) "
            "CHARACTER SET utf8mb4, reached VARCHAR(500) CHARACTER SET utf8mb4, "
            "started VARCHAR(40), begun VARCHAR(40), settings VARCHAR(500)) ENGINE=InnoDB"
        )
        self._unlogged(
            f"INSERT INTO {DATABASE}.run VALUES "  # noqa: S608 - a constant
            "(1, %s, %s, %s, CONCAT(UTC_TIMESTAMP(), ' UTC'), '') ON DUPLICATE KEY UPDATE "
            "asked = VALUES(asked), reached = VALUES(reached), started = VALUES(started), "
            "begun = VALUES(begun)",
            (asked[:500], reached[:500], started),
        )

    def reach(self, reached: str) -> None:
        """Note how far the run is, before the channel is removed, which knows it too."""
        self._unlogged(
            f"UPDATE {DATABASE}.run SET reached = %s",  # noqa: S608 - a constant
            (reached[:500],),
        )

    def keep(self, before: Mapping[str, object]) -> None:
        """Note the settings that the run changes now, as they are; none once they are restored."""
        self._unlogged(
            f"UPDATE {DATABASE}.run SET settings = %s",  # noqa: S608 - a constant
            (",".join(f"{name}={value}" for name, value in before.items()),),
        )

    def remove(self) -> None:
        """Remove it: everything is done. A mark stays."""
        if self.mark() is None:
            self._unlogged(f"DROP DATABASE IF EXISTS {DATABASE}")
        else:
            self._unlogged(f"DROP TABLE IF EXISTS {DATABASE}.run")

    def mark(self) -> frozenset[str] | None:
        """The only tables that were ever applied here; None if the server has no such mark.

        A mark that cannot be read names no table that exists: then no run continues.
        """
        if not self._has("only_tables"):
            return None
        rows = self._server.rows(f"SELECT names FROM {DATABASE}.only_tables")  # noqa: S608 - a constant
        if not rows:  # a run ended between the table and its row: nothing was applied
            return None
        with suppress(ValueError):
            found = json.loads(str(rows[0]["names"]))
            if isinstance(found, list) and found and all(isinstance(one, str) for one in found):
                return frozenset(found)
        return _UNREADABLE

    def set_mark(self, tables: Collection[str]) -> None:
        """Mark the server, before the first byte is applied: only these tables are applied."""
        self._unlogged(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self._unlogged(
            f"CREATE TABLE IF NOT EXISTS {DATABASE}.only_tables (id INT PRIMARY KEY, "
            "names MEDIUMTEXT CHARACTER SET utf8mb4, marked VARCHAR(40)) ENGINE=InnoDB"
        )
        self._unlogged(
            f"INSERT INTO {DATABASE}.only_tables VALUES "  # noqa: S608 - a constant
            "(1, %s, CONCAT(UTC_TIMESTAMP(), ' UTC'))",
            (json.dumps(sorted(tables)),),
        )

    def remove_all(self) -> None:
        """Remove it, and the mark: nothing was applied."""
        self._unlogged(f"DROP DATABASE IF EXISTS {DATABASE}")

    def _has(self, table: str) -> bool:
        rows = self._server.rows(
            "SELECT COUNT(*) AS it FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s",
            (DATABASE, table),
        )
        return bool(int(rows[0]["it"]))

    def _unlogged(self, statement: str, values: tuple[str, ...] = ()) -> None:
        """Over a new connection: the old one may have been idle for hours."""
        self._server.close()
        self._server.rows("SET SESSION sql_log_bin = 0")
        self._server.rows(statement, values)
        self._server.close()


class Standing:
    """How far one target is. Questions change nothing."""

    def __init__(self, server: Server, facts: TargetFacts) -> None:
        self._server = server
        self._facts = facts
        self._notes = Notes(server)
        self._follows = ""

    def start(self, asked: str) -> Start | None:
        """Where an interrupted run left the target, if it was started like this one.

        None as well if gtid_executed tells it. `asked` is what the operator said about the start,
        then and now.
        """
        note = None if self._facts.keeps_gtids else self._notes.find()
        if note is None or note.asked != asked:
            return None
        if note.is_by_gtids:
            return Start(gtids=self._slave_pos(), lineage=note.follows)
        reached = self._reached(note)
        if reached is None:
            return None
        return Start(place=(reached.binlog, reached.offset), lineage=reached.lineage)

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

    def refusal(self, tables: Collection[str]) -> RecoveryError | None:
        """Why a run of only these tables (none: all) cannot continue here; None if it can.

        A server that was marked claims GTIDs, or a place, that its other tables do not have.
        """
        mark = self._notes.mark()
        if mark is None or mark == frozenset(tables):
            return None
        names = ", ".join(clean(one) for one in sorted(mark))
        wanted = "all tables" if not tables else f"only {', '.join(sorted(tables))}"
        return RecoveryError(
            f"the target, {self._facts.address}, is a scratch server to which only {names} was "
            f"applied (pitr --table): its other tables are as in the base backup, so this run, "
            f"with {wanted}, would be wrong",
            hint="restore the base backup into an empty server; if it was restored again here "
            f"since: DROP DATABASE {DATABASE}",
        )

    def _refuse_restarted(self, note: Note) -> None:
        if note.started != (started := self._server_start()):
            raise RecoveryError(
                f"a run that began at {note.begun} was interrupted, the target was restarted since "
                f"({started} UTC), and it has tables without transactions: "
                f"{target.some(self._facts.not_transactional)}; it is unknown what reached them",
                hint=f"restore the base backup again and DROP DATABASE {DATABASE}, or "
                "--allow-non-transactional if their rows do not matter",
            )

    def _server_start(self) -> str:
        """When the server was started, in UTC, by its own clock; the same second every time."""
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

    def _reached(self, note: Note) -> BinlogPosition | None:
        left = replicate.left_over(self._server, self._facts)
        return (left.reached() if left is not None else None) or _place(note.reached)

    def is_under_way(self) -> bool:
        """Whether an interrupted run has begun to apply here."""
        return self._notes.find() is not None

    def goes_on(self) -> bool:
        """Whether this run continues an interrupted one from where the target's GTIDs say."""
        note = self._notes.find()
        return note is not None and note.is_by_gtids

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
        self._follows = f"{_BY_GTIDS} of {plan.lineage}"
        by_gtids = self._facts.keeps_gtids or self.goes_on()
        self._notes.write(
            asked=asked,
            started=self._server_start(),
            reached=self._follows if by_gtids else _text(plan.begin),
        )
        try:
            self._settle()  # the note says how far the earlier run came
            if tables and mark is None:
                self._notes.set_mark(tables)
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

    def reach(self, place: BinlogPosition) -> None:
        """Note that everything before it was applied, and nothing after: the channel goes now."""
        self._notes.reach(_text(place))

    def keep(self, before: Mapping[str, object]) -> None:
        """Note the settings of the server that are changed now, as they are."""
        self._notes.keep(before)

    def _settle(self) -> None:
        """Remove the channel of an interrupted run, and restore the settings that it changed."""
        replicate.settle(self._server, self._facts)
        note = self._notes.find()
        if note is not None and note.before:
            channel_of(self._server, self._facts).restore(note.before)
            self._notes.keep({})

    def put_away(self) -> None:
        """Remove what an interrupted run left, when everything it had to do is done."""
        note = self._notes.find()
        if note is not None and not note.is_by_gtids:
            reached = self._reached(note)
            if reached is not None:
                self.reach(reached)
        self._settle()
        if note is not None:
            self._notes.remove()


def _stands_elsewhere(note: Note, where: str, other: str) -> RecoveryError:
    return RecoveryError(
        f"the target is at {where}, where a run that began at {note.begun} was interrupted; "
        "this run would begin elsewhere",
        hint=f"run the same command as then: it continues from there{other}; if the base backup "
        f"was restored again since: DROP DATABASE {DATABASE}",
    )


def _text(place: BinlogPosition) -> str:
    """A position, for a note."""
    return f"{place.lineage}.{place}"


def _place(text: str) -> BinlogPosition | None:
    """The position that a note names; None if it names none."""
    name, _, offset = text.rpartition(":")
    return place_of(name, int(offset)) if offset.isdigit() else None
