"""Executes an undo on the live server, as one transaction: compare, change, compare, commit.

Law: each row is compared before it is changed, byte by byte and under a lock, with what the
transaction left of it, and afterwards with what it was before; a difference rolls everything back.
Rows reach the server as rows events only, the expected ones in a scratch table that no binlog has.

Two connections: `scratch` writes no binlog and commits at once; `work` has the transaction, which
reads the scratch table without locks (READ COMMITTED, in a derived table), so that the other one
can fill it anew.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import compress, islice
from typing import Any, Self

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import RowsKind
from binlog2s3.binlog.undo import ChangedTable, EventMaker, Step, binlog_statement
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.output import clean
from binlog2s3.server.connection import Server
from binlog2s3.server.sql import quoted
from binlog2s3.undo.tables import Definition

DATABASE = "binlog2s3_undo"
"""The database of the scratch tables, and the name of the lock: one undo at a time."""
LOCK_WAIT = 10
"""Seconds that an undo waits for a row lock, or for a DDL on the table."""
IDLE_MOST = 600
"""Seconds after which the server ends a connection, and its locks, whose client is silent."""
SHOWN_CONFLICTS = 10
_ROUNDS = 20
"""So often rows are left out of a step, until the others are as the transaction left them."""
_BY_HAND = "`binlog2s3 rows` shows them; undo them by hand"
_AUTOCOMMIT = "SET SESSION autocommit = 1"
"""The connection's library believes a MySQL, which greets as if it were on."""
_SETTINGS = (
    _AUTOCOMMIT,
    "SET SESSION sql_mode = ''",
    "SET SESSION time_zone = '+00:00'",
    "SET SESSION sql_safe_updates = 0",
    "SET SESSION sql_big_selects = 1",
    "SET SESSION sql_select_limit = 18446744073709551615",
    "SET SESSION completion_type = 'NO_CHAIN'",
    "SET SESSION max_sort_length = 65536",
    "SET SESSION sort_buffer_size = 4194304",
    f"SET SESSION innodb_lock_wait_timeout = {LOCK_WAIT}",
    f"SET SESSION lock_wait_timeout = {LOCK_WAIT}",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE",
)
_OF_FLAVOUR: dict[Flavour, str] = {
    "mysql": (
        "SET SESSION max_execution_time = 0 "
        "/*!80030 , SESSION show_gipk_in_create_table_and_information_schema = 1 */"
    ),
    "mariadb": (
        "SET SESSION max_statement_time = 0 /*M!110602 , SESSION innodb_snapshot_isolation = 0 */"
    ),
}
"""No time limit. A primary key that the server has generated is shown, as the binlog has it. A row
that somebody changes while a statement runs is no error (1020, the default from MariaDB 11.6.2 on):
it is read as it is once it is locked, and compared."""
_UNLOGGED: dict[Flavour, str] = {
    "mysql": "SET SESSION sql_log_bin = 0 /*!80013 , SESSION sql_require_primary_key = 0 */",
    "mariadb": "SET SESSION sql_log_bin = 0",
}
"""Of the scratch tables: they have the keys of the table, which may be only unique ones."""
_KEY_MOST = 200
_SAFE_AGAIN = "running the same command again is safe: it refuses to undo twice"
_LOCKERS = (
    "SELECT trx_mysql_thread_id AS id FROM information_schema.innodb_trx WHERE trx_rows_locked > 0 "
    "AND trx_mysql_thread_id NOT IN (0, CONNECTION_ID(), %s) ORDER BY trx_started LIMIT 3"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A row that is not as the transaction left it.

    `key` has names and values, in words. `why`: "changed", "missing" or "there again". `image` is
    the row that was expected, as in the binlog.
    """

    table: str
    key: str
    why: str
    image: bytes = field(repr=False)

    @property
    def row(self) -> tuple[str, bytes]:
        """What tells the row from others: rows of two tables may look the same."""
        return self.table, self.image

    def __str__(self) -> str:
        return f"{self.table} ({self.key}) {self.why}"


class ConflictError(RecoveryError):
    """Rows are not as the transaction left them; nothing was changed.

    `undone`: they are as they were before it.
    """

    def __init__(self, message: str, conflicts: Sequence[Conflict], *, undone: bool) -> None:
        super().__init__(message)
        self.conflicts = tuple(conflicts)
        self.undone = undone


class LostCommitError(RecoveryError):
    """The answer to the COMMIT was lost. `committed` is None if it cannot be told what it did."""

    def __init__(self, message: str, *, hint: str, committed: bool | None) -> None:
        super().__init__(message, hint=hint)
        self.committed = committed


@dataclass(slots=True)
class Undone:
    """What was done: rows by table and kind of change that was undone, and the GTID ("": none)."""

    rows: Counter[tuple[str, RowsKind]] = field(default_factory=Counter)
    conflicts: list[Conflict] = field(default_factory=list)
    skipped: int = 0
    gtid: str = ""


class Execution:
    """One undo on one server. Use it as a context manager: it removes its scratch tables.

    Nothing is kept unless `commit` returns, or raises LostCommitError. `committed`: the server has
    said that it is.
    """

    def __init__(
        self,
        scratch: Server,
        work: Server,
        *,
        flavour: Flavour,
        form: bytes,
        definitions: Callable[[ChangedTable], Definition],
        skip_conflicts: bool,
    ) -> None:
        """`form`: a format event that says that events have checksums.

        `definitions` asks the server again, and raises RecoveryError if one is not as planned.
        """
        self._scratch = scratch
        self._work = work
        self._flavour: Flavour = flavour
        self._form = form
        self._ask = definitions
        self._skips = skip_conflicts
        self._definitions: dict[int, Definition] = {}
        self._loaded: tuple[int, Sequence[bytes]] | None = None
        self._left_out: dict[str, str] = {}
        self._last: Step | None = None
        self._session = 0
        self.committed = False
        self._maker = EventMaker(flavour=flavour, timestamp=0)
        self.done = Undone()

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Roll back what is open; drop the scratch tables, if the server still answers.

        A server does not see that a connection was closed while that waits for a row's lock, and it
        keeps its own locks meanwhile: it is killed. The tables may be another undo's, if this one
        has no lock, or has lost it with its connection.
        """
        try:
            with suppress(SourceError):
                if self._session and not self.committed and self._has_lock():
                    self._scratch.rows("KILL %s", (self._session,))
            self._work.close()
            with suppress(SourceError):
                if self._session and self._owns(LOCK_WAIT):
                    self._scratch.rows(f"DROP DATABASE IF EXISTS {quoted(DATABASE)}")
        except KeyboardInterrupt:
            if not self.committed:  # else what was done has to be told
                raise
        self._scratch.close()

    def _has_lock(self) -> bool:
        """Whether it still does: the connection is the one of before, so the server is."""
        rows = self._scratch.rows("SELECT IS_USED_LOCK(%s) = CONNECTION_ID() AS it", (DATABASE,))
        return bool(rows[0]["it"] == 1)

    def _owns(self, wait: int) -> bool:
        """Whether, within so many seconds, the scratch tables are this undo's.

        What is done to them from now on is in no binlog.
        """
        self._scratch.rows(_AUTOCOMMIT)
        self._scratch.rows(_UNLOGGED[self._flavour])
        self._scratch.rows(f"SET SESSION lock_wait_timeout = {LOCK_WAIT}")
        rows = self._scratch.rows("SELECT GET_LOCK(%s, %s) AS it", (DATABASE, wait))
        return bool(rows[0]["it"] == 1)

    def _begin(self) -> None:
        if not self._owns(0):
            raise RecoveryError(
                "another undo is running on this server",
                hint="one that was killed ends once the server notices: SHOW PROCESSLIST",
            )
        self._session = self._session_of_work()
        for server in (self._scratch, self._work):
            prepare(server, self._flavour)
            server.rows(f"SET SESSION wait_timeout = {IDLE_MOST}")
        self._scratch.rows(f"DROP DATABASE IF EXISTS {quoted(DATABASE)}")
        self._scratch.rows(f"CREATE DATABASE {quoted(DATABASE)}")
        self._scratch.rows(f"USE {quoted(DATABASE)}")
        now = int(self._scratch.rows("SELECT UNIX_TIMESTAMP() AS it")[0]["it"])
        self._maker = EventMaker(flavour=self._flavour, timestamp=now)
        for server in (self._scratch, self._work):
            server.rows(binlog_statement(self._form))
            if self._flavour == "mysql":
                server.rows(
                    "SET gtid_next = 'AUTOMATIC'"
                )  # the format event leaves it undetermined
        if self._flavour == "mysql":
            self._work.rows("SET SESSION session_track_gtids = 'OWN_GTID'")
        if not int(self._work.rows("SELECT @@session.sql_log_bin AS it")[0]["it"]):
            raise RecoveryError(
                "the account's sessions write no binlog (sql_log_bin is 0, by init_connect?)",
                hint="an undo that is in no binlog would reach neither replicas nor the archive",
            )
        self._work.rows("BEGIN")

    def _session_of_work(self) -> int:
        """The id of the connection with the transaction: a new one would have lost it."""
        return int(self._work.rows("SELECT CONNECTION_ID() AS it")[0]["it"])

    def _definition(self, table: ChangedTable) -> Definition:
        """A table's definition, which cannot change any more; its scratch table is there."""
        definition = self._definitions.get(table.number)
        if definition is None:
            name = f"{quoted(table.body.database)}.{quoted(table.body.table)}"
            self._work.rows(f"SELECT 1 FROM {name} LIMIT 0")  # noqa: S608 - takes the metadata lock
            definition = self._ask(table)
            self._scratch.rows(f"CREATE TABLE {self._copy(table)} LIKE {definition.quoted}")
            for column in definition.columns:
                if column.plain:  # it gets the binlog's value, and not one of this session
                    self._scratch.rows(
                        f"ALTER TABLE {self._copy(table)} "
                        f"MODIFY COLUMN {quoted(column.name)} {column.plain}"
                    )
            self._definitions[table.number] = definition
        return definition

    def _copy(self, table: ChangedTable) -> str:
        return f"{quoted(DATABASE)}.{quoted(f't{table.number}')}"

    # Steps

    def undo(self, step: Step) -> None:
        """Undo a step. Raises ConflictError unless conflicts are skipped, RecoveryError."""
        with self._locks_told(step):
            self._undo(step)

    def rows_as_left(self, step: Step) -> int:
        """How many rows of a step are as the change left them. Raises RecoveryError."""
        with self._locks_told(step):
            return self._as_left(step)

    @contextmanager
    def _locks_told(self, step: Step) -> Iterator[None]:
        """Raise RecoveryError if somebody else locks what is asked for."""
        try:
            yield
        except SourceError as error:
            if not error.locked:
                raise
            raise RecoveryError(
                f"nothing was changed: a row of {step.table.name}, or its definition, is locked by "
                f"{self._lockers()} ({error})",
                hint="wait until that transaction has ended, or end it, and run the same command "
                "again",
            ) from error

    def _lockers(self) -> str:
        """Who may hold the lock, in words: the oldest open transactions."""
        rows: list[dict[str, Any]] = []
        with suppress(SourceError):
            rows = self._scratch.rows(_LOCKERS, (self._session,))
        names = [str(int(row["id"])) for row in rows]
        return (
            f"another transaction, perhaps of connection {' or '.join(names)}"
            if names
            else "another transaction"
        )

    def _undo(self, step: Step) -> None:
        for _ in range(_ROUNDS):
            if self._is_as_left(step) and not self._with_keys_left_out(step):
                self._apply(step)
                return
            conflicts = self._conflicts(step)
            if not self._skips:
                raise ConflictError(
                    f"rows of {step.table.name} are not as the transaction left them",
                    tuple(conflicts.values())[:SHOWN_CONFLICTS],
                    undone=self._is_before(step),
                )
            if not conflicts:
                continue  # another transaction has set them right meanwhile
            self._leave_out(step.part(conflicts), conflicts.values())
            if len(conflicts) == step.count:
                return
            step = step.part(set(range(step.count)) - conflicts.keys())
        raise RecoveryError(
            f"rows of {step.table.name} that are in conflict have had the keys of others, which "
            "have had those of others again: they cannot be left out, and nothing was changed",
            hint=_BY_HAND,
        )

    def _leave_out(self, step: Step, conflicts: Iterable[Conflict]) -> None:
        """Leave out the rows of a step, and remember their keys.

        What the transaction did to them before must not be undone either: a row would become what
        it never was since, though it may look as that earlier change left it.
        """
        self.done.skipped += step.count
        shown = SHOWN_CONFLICTS - len(self.done.conflicts)
        self.done.conflicts += islice(conflicts, shown)
        table = step.table
        definition = self._definition(table)
        copy = self._left_out.setdefault(table.name, f"x{len(self._left_out)}")
        named = f"{quoted(DATABASE)}.{quoted(copy)}"
        self._scratch.rows(f"CREATE TABLE IF NOT EXISTS {named} LIKE {definition.quoted}")
        for images in filter(None, (step.before, step.after)):
            self._load(table, images)
            same_key = _joined(definition, "x", "s")
            self._scratch.rows(f"DELETE x FROM {named} x JOIN {self._copy(table)} s ON {same_key}")
            events = _split(self._maker.inserting(table, images, (DATABASE, copy)))
            self._scratch.rows("BEGIN")
            try:
                self._scratch.rows(binlog_statement(*events))
            except SourceError as error:
                if not error.answered or error.locked:
                    raise
                raise RecoveryError(
                    f"rows of {table.name} that are in conflict have had each other's unique keys: "
                    f"they cannot be left out, and nothing was changed ({error})",
                    hint=_BY_HAND,
                ) from error
            self._scratch.rows("COMMIT")

    def _with_keys_left_out(self, step: Step) -> set[int]:
        """Which rows of a step have a key of one that was left out: their numbers."""
        copy = self._left_out.get(step.table.name)
        left_out = set[int]()
        if copy is None:
            return left_out
        for images in filter(None, (step.before, step.after)):
            self._load(step.table, images)
            in_order = self._that_are_in(step.table, copy)
            if any(in_order):
                numbers = self._numbers(step.table, images)
                left_out.update(compress(numbers, in_order))
        return left_out

    def _that_are_in(self, table: ChangedTable, copy: str) -> list[bool]:
        """For each row of the scratch table, by key: whether another table has its key."""
        definition = self._definition(table)
        rows = self._scratch.rows(
            f"SELECT STRAIGHT_JOIN x.{quoted(definition.key[0])} IS NOT NULL AS it "  # noqa: S608 - quoted names
            f"FROM {self._copy(table)} s LEFT JOIN {quoted(DATABASE)}.{quoted(copy)} x "
            f"FORCE INDEX ({quoted(definition.index)}) ON {_joined(definition, 'x', 's')} "
            f"ORDER BY {_key_of(definition)}"
        )
        return [bool(row["it"]) for row in rows]

    def _numbers(self, table: ChangedTable, images: Sequence[bytes]) -> list[int]:
        """The numbers of the rows in the scratch table, which are these, by key.

        Only the server knows the order of keys. It is asked which rows have the first bit set in
        their number, then the second, and so on: so few questions, whatever the number of rows.
        """
        copy = f"n{table.number}"
        named = f"{quoted(DATABASE)}.{quoted(copy)}"
        self._scratch.rows(f"CREATE TABLE IF NOT EXISTS {named} LIKE {self._copy(table)}")
        numbers = [0] * len(images)
        for bit in range((len(images) - 1).bit_length()):
            having = [image for number, image in enumerate(images) if number >> bit & 1]
            self._fill(table, copy, having)
            for at, it in enumerate(self._that_are_in(table, copy)):
                numbers[at] |= it << bit
        if sorted(numbers) != list(range(len(images))):
            raise RecoveryError(f"rows of {table.name} could not be told apart by their key")
        return numbers

    def _conflicts(self, step: Step) -> dict[int, Conflict]:
        """The rows of a step that are in conflict, by number. There may be none any more."""
        table, images = step.table, step.after or step.before
        definition = self._definition(table)
        others = self._with_keys_left_out(step)
        self._load(table, images)
        rows = self._work.rows(differences(definition, self._copy(table)))
        numbers = self._numbers(table, images)
        conflicts: dict[int, Conflict] = {}
        for number, row in sorted(zip(numbers, rows, strict=True), key=lambda pair: pair[0]):
            there = bool(row["there"])
            if number not in others and (not there if step.kind == "delete" else row["same"]):
                continue
            why = "there again" if step.kind == "delete" else "changed" if there else "missing"
            values = (row[f"k{at}"] for at in range(len(definition.key)))
            key = ", ".join(
                f"{name}={_shown(value)}"
                for name, value in zip(definition.key, values, strict=True)
            )
            conflicts[number] = Conflict(table=table.name, key=key, why=why, image=images[number])
        return conflicts

    def _as_left(self, step: Step) -> int:
        """How many rows of a step are as the change left them. They are locked."""
        self._load(step.table, step.after or step.before)
        same, there = self._compared(step.table)
        return step.count - there if step.kind == "delete" else same

    def _is_as_left(self, step: Step) -> bool:
        return self._as_left(step) == step.count

    def _is_before(self, step: Step) -> bool:
        """Whether the rows of a step are as they were before the change."""
        rows = step.before if step.kind != "insert" else step.after
        self._load(step.table, rows)
        same, there = self._compared(step.table)
        return not there if step.kind == "insert" else same == len(rows)

    def _apply(self, step: Step) -> None:
        try:
            self._work.rows(binlog_statement(*_split(self._maker.undoing(step))))
        except SourceError as error:
            if not error.answered or error.locked:
                raise
            raise ConflictError(
                f"the server refuses to undo rows of {step.table.name}: {error}; another row may "
                "have a unique key of theirs, a row that a foreign key needs may be gone, or the "
                "account may not insert, update or delete there (the server's error log tells)",
                (),
                undone=False,
            ) from error
        if not self._is_before(step):
            hint = "please report this with the table's definition"
            if any(column.plain for column in self._definition(step.table).columns):
                hint = (
                    "a generated column may depend on settings of the session that wrote the rows "
                    "(its language, the current date): restore the table to another server "
                    f"(docs/guides/one-table.md); if none does, {hint}"
                )
            raise RecoveryError(
                f"after the change, rows of {step.table.name} are not as they were before the "
                "transaction: everything was rolled back",
                hint=hint,
            )
        self._last = step
        self.done.rows[step.table.name, step.kind] += step.count

    def _load(self, table: ChangedTable, rows: Sequence[bytes]) -> None:
        """Fill the scratch table of a table with these rows."""
        self._definition(table)
        if self._loaded == (table.number, rows):
            return
        self._loaded = None
        self._fill(table, f"t{table.number}", rows)
        count = self._scratch.rows(f"SELECT COUNT(*) AS it FROM {self._copy(table)}")  # noqa: S608 - our own table
        if int(count[0]["it"]) != len(rows):
            raise RecoveryError(f"rows of {table.name} could not be prepared for a comparison")
        self._loaded = (table.number, rows)

    def _fill(self, table: ChangedTable, copy: str, rows: Sequence[bytes]) -> None:
        """Fill one of our own tables, with the definition of this one, with these rows only."""
        events = _split(self._maker.inserting(table, rows, (DATABASE, copy)))
        self._scratch.rows("BEGIN")
        self._scratch.rows(f"DELETE FROM {quoted(DATABASE)}.{quoted(copy)}")  # noqa: S608 - our own table
        self._scratch.rows(binlog_statement(*events))
        self._scratch.rows("COMMIT")

    def _compared(self, table: ChangedTable) -> tuple[int, int]:
        """How many rows of the scratch table the table has, and how many with the same keys.

        The latter are locked. The select list, and not WHERE, compares: InnoDB would unlock rows
        that WHERE leaves out.
        """
        row = self._work.rows(comparison(self._definition(table), self._copy(table)))[0]
        return int(row["same"] or 0), int(row["there"] or 0)

    # The end

    def commit(self) -> Undone:
        """Commit. Raises LostCommitError if the server's answer was lost, RecoveryError."""
        if self._session_of_work() != self._session:
            raise RecoveryError(
                "the connection was lost: everything was rolled back", hint="run it again"
            )
        try:
            self.done.gtid = self._work.commit()
            self.committed = True
            return self.done  # noqa: TRY300 - inside, so that an interruption is told
        except SourceError as error:
            raise self._lost(error) from error
        except KeyboardInterrupt as error:
            raise LostCommitError(
                "interrupted during COMMIT: whether it was committed is not known",
                hint=_SAFE_AGAIN,
                committed=None,
            ) from error

    def _lost(self, error: SourceError) -> RecoveryError:
        """What is known after a COMMIT that failed, or whose answer was lost."""
        committed: bool | None = None
        with suppress(SourceError, KeyboardInterrupt):
            committed = self._has_committed()
        if error.answered and committed is False:
            return RecoveryError(
                f"the server refused to commit: {error}", hint="everything was rolled back"
            )
        outcome = {
            True: "the rows are as they were before the transaction: it was committed",
            False: "the rows are still as the transaction left them: it was not committed",
            None: "whether it was committed is not known",
        }[committed]
        return LostCommitError(
            f"the answer to COMMIT was lost ({error}); {outcome}",
            hint=_SAFE_AGAIN,
            committed=committed,
        )

    def _has_committed(self) -> bool | None:
        """By the rows of the last step, once the connection with the transaction is gone."""
        step = self._last
        if step is None:
            return None
        for _ in range(LOCK_WAIT):
            rows = self._scratch.rows(
                "SELECT SLEEP(1), COUNT(*) AS it FROM information_schema.processlist WHERE id = %s",
                (self._session,),
            )
            if not int(rows[0]["it"]):
                break
        else:
            return None
        if self._is_before(step):
            return True
        return False if self._is_as_left(step) else None


def prepare(server: Server, flavour: Flavour) -> None:
    """Make a connection one whose answers do not depend on the server's defaults for sessions.

    What SHOW CREATE TABLE prints does, for example.
    """
    for statement in (*_SETTINGS, _OF_FLAVOUR[flavour]):
        server.rows(statement)


def comparison(definition: Definition, copy: str) -> str:
    """SELECT that compares a table with its copy by key: `same` and `there` are numbers of rows."""
    there, same = _compared_by(definition)
    what = f"SUM({there} AND {same}) AS same, SUM({there}) AS there"
    return f"SELECT STRAIGHT_JOIN {what} {_beside(definition, copy)} FOR UPDATE"


def differences(definition: Definition, copy: str) -> str:
    """SELECT that compares each row, by key: `same`, `there`, its key's values as k0, k1, ..."""
    there, same = _compared_by(definition)
    key = (f"s.{quoted(name)} AS k{at}" for at, name in enumerate(definition.key))
    what = ", ".join((*key, f"{there} AND {same} AS same", f"{there} AS there"))
    order = f"ORDER BY {_key_of(definition)}"
    return f"SELECT STRAIGHT_JOIN {what} {_beside(definition, copy)} {order} FOR UPDATE"


def _compared_by(definition: Definition) -> tuple[str, str]:
    """Whether the table has a row with the key of the copy's, and whether it is the same."""
    same = " AND ".join(
        f"({column.same.format(t=f't.{quoted(column.name)}', s=f's.{quoted(column.name)}')})"
        for column in definition.columns
        if column.same
    )
    return f"t.{quoted(definition.key[0])} IS NOT NULL", same


def _beside(definition: Definition, copy: str) -> str:
    """The rows `s` of the copy, which are not locked, and beside each that of the table, `t`."""
    columns = ", ".join(quoted(column.name) for column in definition.columns)
    return (
        f"FROM (SELECT {columns} FROM {copy}) s LEFT JOIN {definition.quoted} t "  # noqa: S608 - quoted names
        f"FORCE INDEX ({quoted(definition.index)}) ON {_joined(definition, 't', 's')}"
    )


def _key_of(definition: Definition) -> str:
    """The key of the scratch table's rows, by which they have one order."""
    return ", ".join(f"s.{quoted(name)}" for name in definition.key)


def _joined(definition: Definition, one: str, other: str) -> str:
    """Whether two rows have the same key, as the server compares it."""
    return " AND ".join(f"{one}.{quoted(k)} = {other}.{quoted(k)}" for k in definition.key)


def _shown(value: Any) -> str:
    text = value.hex() if isinstance(value, bytes) else str(value)
    return clean(text if len(text) <= _KEY_MOST else f"{text[:_KEY_MOST]}...")


def _split(events: bytes) -> Iterator[bytes]:
    """Events that stand one after the other."""
    at = 0
    while at < len(events):
        size = int.from_bytes(events[at + 9 : at + 13], "little")
        yield events[at : at + size]
        at += size
