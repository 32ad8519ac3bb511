"""The note that a run keeps in the target, and the mark of a server that has only some tables.

The note is one row, in a database of its own whose name nobody can know before: a statement of the
history that is replayed cannot name it. Each run makes it anew under another name. It goes into no
binlog. A dump of the target may contain it, and so may a base backup: so it names the server that
it was made on, and when its table was made. Loaded from a dump, the table is a newer one. The end
of the database's name is a digest of its beginning and that server, so one that a run was killed
in, before the row was there, is known as this server's as well.

Law: a note is data, and anybody who can write to the target can write one. Nothing in it is
executed. One that was not made on this server is believed in nothing: it is an error that names it.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.target import DATABASE, Target
from binlog2s3.server.sql import quoted

_BY_GTIDS = "its GTIDs"
"""In a note, instead of a position: the target's GTIDs tell what was applied, in this lineage."""
_NAME = re.compile(rf"{DATABASE}_[0-9a-f]{{16}}")
_LIKE = DATABASE.replace("_", "\\_") + "%"
_TABLE = "note"
_OLD_TABLES = ("run", "only_tables")
"""In the database DATABASE itself, until version 0.2.0."""
_COLUMNS = {
    "server": "VARCHAR(600)",
    "made": "BIGINT",
    "asked": "VARCHAR(64)",
    "reached": "VARCHAR(500)",
    "started": "VARCHAR(40)",
    "begun": "VARCHAR(40)",
    "since": "VARCHAR(500)",
    "settings": "VARCHAR(500)",
    "only_tables": "MEDIUMTEXT",
}
"""Of a note's table, besides its number."""
_MOST = 1 << 20
"""So many characters of each are read: anybody may have made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a run says of itself while it works, and the mark of a server that has only some tables.

    `number` grows with each note; `database`: the one that it is in. `server`: on which it was
    made, and `made`: when its table was. `asked`: a digest of what the operator said about the
    start. `started`: when the server was started. Everything before `reached` was applied and
    nothing after it, except what a channel of that run has applied since. `since`: where the first
    of the runs that continue each other began. `settings`: the server's settings that the run has
    changed, as they were. `begun`, and all that a run says, is "" once it has ended; `only_tables`
    stays: the mark, as JSON.
    """

    number: int
    database: str
    server: str
    made: str
    asked: str
    reached: str
    started: str
    begun: str
    since: str
    settings: str
    only_tables: str

    @property
    def before(self) -> dict[str, str]:
        """The settings by name."""
        pairs = (setting.partition("=") for setting in self.settings.split(",") if setting)
        return {name: value for name, _, value in pairs}

    @property
    def is_by_gtids(self) -> bool:
        """Whether the target's GTIDs tell what was applied."""
        return self.reached.startswith(_BY_GTIDS)

    @property
    def follows(self) -> str | None:
        """The lineage that a run by GTIDs followed; None if the note does not name it."""
        return self.reached.removeprefix(_BY_GTIDS).removeprefix(" of ") or None

    def is_of(self, asked: str) -> bool:
        """Whether the operator said the same about the start then."""
        return self.asked == _digest(asked)


def by_gtids(lineage: str) -> str:
    """For `reached`: the target's GTIDs tell, in this lineage."""
    return f"{_BY_GTIDS} of {lineage}"


class Notes:
    """The note at one target.

    If the target keeps no GTIDs it says how far the run got: a second run from the same position
    would apply transactions twice. Each question raises RecoveryError if there is only one that was
    not made on this server.
    """

    def __init__(self, target: Target) -> None:
        self._server = target.server
        self._facts = target.facts

    def find(self) -> Note | None:
        """The note of a run that has not ended; None if there is none."""
        kept = self._kept()
        return kept if kept is not None and kept.begun else None

    def mark(self) -> frozenset[str] | None:
        """The only tables that were ever applied here; None if the server has no such mark."""
        kept = self._kept()
        return _names(kept.only_tables) if kept is not None else None

    @property
    def database(self) -> str:
        """The database that it is in; "" if there is none."""
        kept = self._kept()
        return kept.database if kept is not None else ""

    def write(
        self,
        *,
        asked: str,
        reached: str,
        started: str,
        since: str,
        tables: frozenset[str] | None = None,
    ) -> None:
        """Write it before the first byte is applied, under a new name; an older one is removed.

        `tables` mark the server: only these are applied. The settings and the mark of an older note
        stay in it, and `since` if its run has not ended.
        """
        old = self._kept()
        if old is not None and old.begun:
            since = old.since
        settings = old.settings if old is not None else ""
        only = old.only_tables if old is not None else ""
        name = _name_for(self._identity(), secrets.token_hex(4))
        self._unlogged(f"CREATE DATABASE {name}")
        columns = ", ".join(f"{column} {kind}" for column, kind in _COLUMNS.items())
        self._unlogged(
            f"CREATE TABLE {name}.{_TABLE} (id INT PRIMARY KEY, {columns}) "
            "ENGINE=InnoDB CHARACTER SET utf8mb4"
        )
        self._unlogged(
            f"INSERT INTO {name}.{_TABLE} SELECT %s, %s, UNIX_TIMESTAMP(create_time), %s, %s, %s, "  # noqa: S608 - a name of ours
            "CONCAT(UTC_TIMESTAMP(), ' UTC'), %s, %s, %s FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = %s",
            (
                old.number + 1 if old is not None else 1,
                self._identity(),
                _digest(asked),
                reached[:500],
                started,
                since[:500],
                settings,
                only or (json.dumps(sorted(tables)) if tables else ""),
                name,
                _TABLE,
            ),
        )
        self._drop(but=name)

    def reach(self, reached: str) -> None:
        """Note how far the run is, before the channel is removed, which knows it too."""
        self._update("reached = %s", reached[:500])

    def keep(self, before: Mapping[str, object]) -> None:
        """Note the settings that the run changes now, as they are; none once they are restored."""
        self._update("settings = %s", ",".join(f"{name}={value}" for name, value in before.items()))

    def remove(self) -> None:
        """Remove it: everything is done. A mark stays."""
        kept = self._kept()
        if kept is not None and kept.only_tables:
            self._drop(but=kept.database)
            self._update("asked = '', reached = '', started = '', since = '', begun = %s", "")
        else:
            self._drop()

    def remove_all(self) -> None:
        """Remove it, and the mark: nothing was applied."""
        self._drop()

    def _drop(self, but: str = "") -> None:
        """Remove the notes that were made on this server, the newest last: an older one is wrong.

        A run that was killed while it wrote its own has left the one before, and one without a row.
        """
        kept = [note.database for note in sorted(self._all(), key=lambda note: note.number)]
        for database in (*(name for name in self._without_row() if name not in kept), *kept):
            if database != but:
                self._unlogged(f"DROP DATABASE {database}")

    def _without_row(self) -> list[str]:
        """Databases that were made for a note on this server, and have at most its empty table."""
        identity = self._identity()
        rows = self._server.rows(
            "SELECT schema_name AS db FROM information_schema.schemata WHERE schema_name LIKE %s",
            (_LIKE,),
        )
        names = (str(row["db"]) for row in rows)
        return [
            name
            for name in names
            if _NAME.fullmatch(name)
            and name == _name_for(identity, name.removeprefix(f"{DATABASE}_")[:8])
            and self._is_empty(name)
        ]

    def _is_empty(self, database: str) -> bool:
        """Whether nothing is in it but a note's table without a row."""
        (counts,) = self._server.rows(
            "SELECT (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = %s AND "
            "table_name <> %s) + (SELECT COUNT(*) FROM information_schema.routines WHERE "
            "routine_schema = %s) + (SELECT COUNT(*) FROM information_schema.events WHERE "
            "event_schema = %s) AS others, (SELECT COUNT(*) FROM information_schema.tables WHERE "
            "table_schema = %s AND table_name = %s) AS notes",
            (database, _TABLE, database, database, database, _TABLE),
        )
        if counts["others"] or not counts["notes"]:
            return not counts["others"]
        return not self._server.rows(f"SELECT 1 FROM {database}.{_TABLE} LIMIT 1")  # noqa: S608 - a name of ours

    def _update(self, what: str, value: str) -> None:
        kept = self._kept()
        if kept is None:
            raise RecoveryError(
                f"the note of this run is gone from the target, {self._facts.address}: somebody "
                f"dropped its database ({DATABASE}_...) meanwhile",
                hint="how far the target came is not known any more: restore the base backup again",
            )
        self._unlogged(f"UPDATE {kept.database}.{_TABLE} SET {what}", (value,))  # noqa: S608 - constants

    def _unlogged(self, statement: str, values: tuple[object, ...] = ()) -> None:
        """Over a new connection: the old one may have been idle for hours."""
        self._server.close()
        self._server.rows("SET SESSION sql_log_bin = 0, time_zone = '+00:00'")
        self._server.rows(statement, values)
        self._server.close()

    def _kept(self) -> Note | None:
        """The newest one that was made on this server. A run that was killed may leave two."""
        return max(self._all(), key=lambda note: note.number, default=None)

    def _all(self) -> list[Note]:
        """Those that were made on this server."""
        self._server.close()  # the old connection may have been idle for hours
        self._server.rows("SET SESSION time_zone = '+00:00'")  # for the time of a table
        try:
            return self._made_here()
        finally:
            self._server.close()

    def _made_here(self) -> list[Note]:
        ours: list[Note] = []
        others: list[str] = []
        rows = self._server.rows(
            "SELECT table_schema AS db, table_name AS name, UNIX_TIMESTAMP(create_time) AS made "
            "FROM information_schema.tables WHERE table_schema LIKE %s AND table_name IN "
            "(%s, %s, %s) AND table_type = 'BASE TABLE' AND engine = 'InnoDB' ORDER BY 1, 2",
            (_LIKE, _TABLE, *_OLD_TABLES),
        )
        identity = self._identity() if rows else ""
        for row in rows:
            database, name, made = str(row["db"]), str(row["name"]), row["made"]
            if database == DATABASE and name in _OLD_TABLES:
                if self._server.rows(f"SELECT 1 FROM {database}.{name} LIMIT 1"):  # noqa: S608 - constants
                    others.append(f"{database}.{name}")
            elif _NAME.fullmatch(database) and name == _TABLE:
                for note in self._rows_of(database):
                    is_ours = note is not None and (note.server, note.made) == (
                        identity,
                        str(int(made or 0)),
                    )
                    if note is not None and is_ours and _is_readable(note.only_tables):
                        ours.append(note)
                    else:
                        others.append(f"{database}.{name}")
        if others and not ours:
            raise self._foreign(others)
        return ours

    def _rows_of(self, database: str) -> Iterator[Note | None]:
        """Its rows, at most two; None for one that has another shape."""
        columns = ", ".join(f"LEFT({column}, {_MOST}) AS {column}" for column in _COLUMNS)
        try:
            rows: list[dict[str, Any]] = self._server.rows(
                f"SELECT id, {columns} FROM {quoted(database)}.{_TABLE} LIMIT 2"  # noqa: S608 - constants
            )
        except SourceError as error:
            if not error.answered:
                raise
            rows = [{}]
        for row in rows:
            texts = {column: row.get(column) for column in _COLUMNS}
            number = row.get("id")
            if len(rows) > 1 or not isinstance(number, int) or None in texts.values():
                yield None
            else:
                values = {column: str(value) for column, value in texts.items()}
                yield Note(number=number, database=database, **values)

    def _identity(self) -> str:
        """What tells this server from one that a copy of its data was brought to."""
        if self._facts.flavour == "mysql":
            return self._facts.uuid
        return str(self._server.rows("SELECT @@datadir AS it")[0]["it"])[:600]

    def _foreign(self, names: list[str]) -> RecoveryError:
        first = names[0]
        return self._facts.refusal(
            f"has a note of a recovery that this version did not write on this server: {first}",
            "if it came with the base backup, or with what was applied since: SET sql_log_bin "
            f"= 0; DROP TABLE {first}. If a recovery of version 0.2.0 worked on this server, or "
            "its data directory was moved, the note says what is missing here: restore the base "
            "backup into an empty server",
        )


def _name_for(identity: str, random: str) -> str:
    """A name that nobody knows before; of a name, `random` is 8 hexadecimal digits of it."""
    return f"{DATABASE}_{random}{_digest(f'{random} {identity}')[:8]}"


def _digest(asked: str) -> str:
    return hashlib.sha256(asked.encode()).hexdigest()


def _is_readable(only_tables: str) -> bool:
    return not only_tables or _names(only_tables) is not None


def _names(only_tables: str) -> frozenset[str] | None:
    """The tables of a mark; None if there is none, or it cannot be read."""
    try:
        names = json.loads(only_tables or "null")
    except (ValueError, RecursionError):
        return None
    if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
        return frozenset(names)
    return None
