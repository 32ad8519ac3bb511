"""A table as the server has it now, and whether rows of a binlog can be undone in it.

Law: what is not known to be exact is refused: a type that is not in the list below, a definition
that is not the one of the table map, a foreign key that changes other rows, an engine that cannot
roll back. Asking needs SELECT, and PROCESS for the foreign keys of tables that the account may not
see.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import RowsKind, table_name
from binlog2s3.binlog.undo import ChangedTable
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.expressions import depends_on_zone, mentions
from binlog2s3.server.foreign_keys import foreign_keys
from binlog2s3.server.sql import quoted

ENGINE = "InnoDB"
_COLUMNS = (
    "column_name AS name, data_type AS kind, column_type AS type, is_nullable AS nullable, "
    "character_octet_length AS octets, numeric_precision AS digits, numeric_scale AS scale, "
    "datetime_precision AS decimals, generation_expression AS expression, "
    "character_set_name AS charset, collation_name AS collation, "
    "extra AS extra, ordinal_position AS number"
)
_DDL = (
    "its definition was changed since: restore the table to another server "
    "(docs/guides/one-table.md)"
)
_OF_ZONES = re.compile(r"convert_tz", re.IGNORECASE)
"""Its value depends on the server's time zones."""
_OF_SESSION = re.compile(
    r"(?:day|month)name|date_format|str_to_date|\bformat\b|\bweek\b|aes_(?:en|de)crypt|uncompress"
    r"|\bas\s+datetime\b|\btimestamp\(",
    re.IGNORECASE,
)
"""What depends on lc_time_names, default_week_format, block_encryption_mode, or on the time zone,
where a string with an offset becomes a DATETIME."""
_OF_MODE = ("PAD_CHAR_TO_FULL_LENGTH", "TIME_TRUNCATE_FRACTIONAL", "NO_UNSIGNED_SUBTRACTION")
"""SQL modes that change values of expressions."""
_WORD = re.compile(r"[0-9A-Za-z_]+")
_COUNTER = re.compile(r" AUTO_INCREMENT=\d+")


# Types


@dataclass(frozen=True, slots=True)
class _Type:
    """What a type is in a table map, and how two values are compared, byte by byte.

    `same` has "{t}" and "{s}" for the two columns.
    """

    codes: frozenset[int]
    same: str
    fits: Callable[[int, Mapping[str, Any]], bool] = lambda _meta, _row: True


_PLAIN = "{t} <=> {s}"
_BYTES = (
    "CAST({t} AS BINARY) <=> CAST({s} AS BINARY) AND LENGTH({t}) <=> LENGTH({s}) "
    "AND (CAST({t} AS BINARY) IS NULL) = ({t} IS NULL)"  # not because it is too large to be cast
)
_FLOAT = "{t} <=> {s} AND CAST(CAST({t} AS CHAR) AS BINARY) <=> CAST(CAST({s} AS CHAR) AS BINARY)"
# in MySQL 5.7, CAST AS UNSIGNED of a derived table's column has the number of its text, not its own
_MEMBERS = "({t} | 0) <=> ({s} | 0) AND " + _BYTES


def _of(*codes: int, same: str = _PLAIN, fits: Callable[..., bool] | None = None) -> _Type:
    return _Type(frozenset(codes), same, fits or (lambda _meta, _row: True))


def _decimals(meta: int, row: Mapping[str, Any]) -> bool:
    return meta == int(row["decimals"] or 0)


def _length(meta: int, row: Mapping[str, Any]) -> bool:
    return meta == int(row["octets"] or 0)


def _char(meta: int, row: Mapping[str, Any]) -> bool:
    real, length = meta & 0xFF, meta >> 8
    return real | 0x30 == 254 and length | ((real & 0x30) ^ 0x30) << 4 == int(row["octets"] or 0)


def _member(real: int) -> Callable[[int, Mapping[str, Any]], bool]:
    return lambda meta, _row: meta & 0xFF == real


def _number(meta: int, row: Mapping[str, Any]) -> bool:
    return (meta & 0xFF, meta >> 8) == (int(row["digits"] or 0), int(row["scale"] or 0))


def _bits(meta: int, row: Mapping[str, Any]) -> bool:
    return (meta >> 8) * 8 + (meta & 0xFF) == int(row["digits"] or 0)


def _packs(size: int) -> Callable[[int, Mapping[str, Any]], bool]:
    return lambda meta, _row: meta == size


_SIZES = {"tiny": 1, "": 2, "medium": 3, "long": 4}
_TYPES: dict[str, _Type] = {
    "tinyint": _of(1),
    "smallint": _of(2),
    "mediumint": _of(9),
    "int": _of(3),
    "bigint": _of(8),
    "float": _of(4, same=_FLOAT),
    "double": _of(5, same=_FLOAT),
    "decimal": _of(246, fits=_number),
    "bit": _of(16, fits=_bits),
    "year": _of(13),
    "date": _of(10),
    "time": _of(19, fits=_decimals),
    "datetime": _of(18, fits=_decimals),
    "timestamp": _of(17, fits=_decimals),
    "char": _of(254, same=_BYTES, fits=_char),
    "binary": _of(254, same=_BYTES, fits=_char),
    "varchar": _of(15, same=_BYTES, fits=_length),
    "varbinary": _of(15, same=_BYTES, fits=_length),
    **{f"{size}text": _of(252, same=_BYTES, fits=_packs(n)) for size, n in _SIZES.items()},
    **{f"{size}blob": _of(252, same=_BYTES, fits=_packs(n)) for size, n in _SIZES.items()},
    "enum": _of(254, same=_MEMBERS, fits=_member(247)),
    "set": _of(254, same=_MEMBERS, fits=_member(248)),
}
"""By the name of information_schema: types of both servers."""
_GEOMETRIES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geometrycollection", "geomcollection",
)  # fmt: skip
_JSON = "{t} <=> {s} AND CAST(CAST({t} AS CHAR) AS BINARY) <=> CAST(CAST({s} AS CHAR) AS BINARY)"
_MORE: dict[Flavour, dict[str, _Type]] = {
    "mysql": {
        "json": _of(245, same=_JSON),
        "vector": _of(242, same=_BYTES),
        **dict.fromkeys(_GEOMETRIES, _of(255, same=_BYTES)),
    },
    "mariadb": {
        **dict.fromkeys(_GEOMETRIES, _of(255, same=_BYTES)),
        **{name: _of(254) for name in ("uuid", "inet4", "inet6")},
        "vector": _of(15, same=_BYTES, fits=_length),
    },
}


# Definitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: its name, and how it is compared.

    `same` is "" if it is generated, unless it is stored and the binlog has its values: then it is
    compared, too, with what the binlog has. For that `plain` is the definition of a column of its
    type that is not generated.
    """

    name: str
    same: str
    plain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A table that can take back rows.

    `key`: the columns of the key that tells its rows apart, and `index` its name. `text` is the
    whole definition, as SHOW CREATE TABLE prints it.
    """

    database: str
    table: str
    columns: tuple[Column, ...]
    index: str
    key: tuple[str, ...]
    text: str

    @property
    def name(self) -> str:
        """Its name in the form of `table_name`."""
        return table_name(self.database, self.table)

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return f"{quoted(self.database)}.{quoted(self.table)}"


def definition_of(
    server: Server, flavour: Flavour, changed: ChangedTable, kinds: Collection[RowsKind]
) -> Definition:
    """The definition of a table of which changes of these kinds are to be undone.

    Raises RecoveryError if they cannot be, SourceError if the server does not answer.
    """
    asking = _Asking(server, flavour, changed)
    refusal = next(asking.problems(kinds), None)
    if refusal is not None:
        raise refusal
    return asking.definition()


class _Asking:
    """Asks about one table."""

    def __init__(self, server: Server, flavour: Flavour, changed: ChangedTable) -> None:
        self._server = server
        self._flavour = flavour
        self._changed = changed
        self._name = (changed.body.database, changed.body.table)
        rows = self._asked("columns", _COLUMNS)
        self._rows = sorted(rows, key=lambda row: int(row["number"]))
        self._index, self._key = "", tuple[str, ...]()
        self._parts: list[dict[str, Any]] = []

    def _asked(self, table: str, columns: str) -> list[dict[str, Any]]:
        """Rows of information_schema about this table; names there may ignore case."""
        rows = self._server.rows(
            f"SELECT {columns}, table_schema AS its_schema, table_name AS its_table "  # noqa: S608 - constants
            f"FROM information_schema.{table} WHERE table_schema = %s AND table_name = %s",
            self._name,
        )
        return [row for row in rows if (row["its_schema"], row["its_table"]) == self._name]

    def _refusal(self, why: str, hint: str = "") -> RecoveryError:
        return RecoveryError(f"{self._changed.name} cannot be undone: {why}", hint=hint)

    def problems(self, kinds: Collection[RowsKind]) -> Iterator[RecoveryError]:
        """Why rows cannot be undone in it."""
        yield from self._of_table()
        yield from self._of_columns()
        yield from self._of_keys()
        yield from self._of_generated()
        yield from self._of_foreign_keys(kinds)

    def _of_table(self) -> Iterator[RecoveryError]:
        rows = self._asked(
            "tables", "table_type AS kind, engine AS engine, create_options AS options"
        )
        if not rows:
            yield self._refusal(
                "the server has no such table, or the account may not see it",
                "GRANT SELECT on it (docs/guides/undo.md has all of the account); a table that was "
                "dropped needs a restore",
            )
            return
        kind, engine = str(rows[0]["kind"]), str(rows[0]["engine"])
        if kind != "BASE TABLE":
            yield self._refusal(f"it is a {kind} there: that is not supported")
        elif engine != ENGINE:
            yield self._refusal(
                f"its engine is {engine}, and what fails in the middle must be rolled back: only "
                f"{ENGINE} is supported"
            )

    def _of_columns(self) -> Iterator[RecoveryError]:
        changed, body = self._changed, self._changed.body
        if len(self._rows) != len(body.types):
            indexes = self._asked("statistics", "index_type AS kind")
            if any(row["kind"] == "HASH" for row in indexes):
                yield self._refusal(
                    "MariaDB has a hidden column for its unique key of long values (USING HASH): "
                    "that is not supported"
                )
                return
            yield self._refusal(
                f"it has {len(self._rows)} columns now, and {len(body.types)} in the binlog", _DDL
            )
            return
        names = tuple(str(row["name"]) for row in self._rows)
        if body.columns and body.columns != names:
            yield self._refusal(
                f"its columns are {', '.join(names)} now, which they were not", _DDL
            )
        bits = int.from_bytes(body.nullable, "little")
        for at, (row, (code, meta)) in enumerate(zip(self._rows, body.type_metadata, strict=True)):
            name, kind = str(row["name"]), self._type(row)
            if kind is None:
                yield self._refusal(f"column {name} is of type {row['type']}: not supported")
                return
            was_nullable = bool(bits >> at & 1)
            fits = code in kind.codes and kind.fits(meta, row)
            if not fits or was_nullable != (str(row["nullable"]).upper() == "YES"):
                yield self._refusal(
                    f"column {name} is {row['type']} now, and was of another type", _DDL
                )
            if at in changed.missing and not _is_generated(row):
                yield self._refusal(
                    f"the binlog does not have column {name} (binlog_row_image is not FULL)"
                )

    def _type(self, row: Mapping[str, Any]) -> _Type | None:
        """The type of a column; None if it is not supported."""
        name = str(row["kind"]).lower()
        type_ = _TYPES.get(name) or _MORE[self._flavour].get(name)
        if type_ is not None and "COMPRESSED" in str(row["type"]).upper():
            code = 140 if name.endswith(("text", "blob")) else 141
            return _Type(frozenset({code}), type_.same)
        return type_

    def _of_keys(self) -> Iterator[RecoveryError]:
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in self._asked("statistics", "statistics.*"):
            made = {key.lower(): value for key, value in row.items()}
            self._parts.append(made)
            by_name.setdefault(str(made["index_name"]), []).append(made)
        nullable = {str(row["name"]) for row in self._rows if str(row["nullable"]) == "YES"}
        for name in sorted(by_name, key=lambda name: (name != "PRIMARY", name)):
            parts = sorted(by_name[name], key=lambda part: int(part["seq_in_index"]))
            columns = tuple(str(part["column_name"]) for part in parts)
            hidden = any(
                str(part.get("is_visible") or "YES") != "YES"
                or str(part.get("ignored") or "NO") != "NO"
                for part in parts
            )
            if (
                not any(int(part["non_unique"]) for part in parts)
                and not hidden
                and all(part["column_name"] and part["sub_part"] is None for part in parts)
                and nullable.isdisjoint(columns)
            ):
                self._index, self._key = name, columns
                return
        yield self._refusal(
            "it has no primary key (or unique key of whole columns that are NOT NULL), so rows "
            "that were changed since cannot be told from others"
        )

    def _of_generated(self) -> Iterator[RecoveryError]:
        """The server computes values that it stores anew, in the session of the undo.

        Those of columns that the binlog has are compared afterwards. All others are only in
        indexes, where an entry that the server computes otherwise is not found.
        """
        indexed = {str(part["column_name"]) for part in self._parts}
        generated = [row for row in self._rows if _is_generated(row)]
        stored = [row for row in generated if _is_stored(row) or str(row["name"]) in indexed]
        functional = [str(part["expression"]) for part in self._parts if part.get("expression")]
        if not stored and not functional:
            return
        expressions = [*functional, *(str(row["expression"]) for row in generated)]
        unseen = [*functional]
        if functional or not all(map(self._is_in_binlog, stored)):
            unseen += [str(row["expression"]) for row in generated if not self._is_in_binlog(row)]
        clocks = [str(row["name"]) for row in self._rows if str(row["kind"]) == "time"]
        if any(
            _OF_SESSION.search(expression) or _may_mention(expression, clocks)
            for expression in unseen
        ):
            yield self._refusal(
                "a generated column or index of it may depend on settings of the session that "
                "wrote the row (its language, its time zone, the current date), which are not known"
            )
        zoned = [str(row["name"]) for row in self._rows if str(row["kind"]) == "timestamp"]
        # one that is itself a TIMESTAMP is made of what its expression gives in some time zone
        if any(str(row["name"]) in zoned for row in stored) or any(
            _OF_ZONES.search(expression)
            or depends_on_zone(expression, zoned)
            or _may_mention(expression, zoned)
            for expression in expressions
        ):
            yield self._refusal(
                "a generated column or index of it depends on a TIMESTAMP, and so on the time zone "
                "of the session that wrote the row, which is not known"
            )
        modes = str(self._server.rows("SELECT @@global.sql_mode AS it")[0]["it"]).split(",")
        for mode in _OF_MODE:
            if mode in modes:
                yield self._refusal(
                    f"it has generated columns or indexes, and the server's sql_mode has {mode}, "
                    "which changes their values"
                )

    def _of_foreign_keys(self, kinds: Collection[RowsKind]) -> Iterator[RecoveryError]:
        try:
            keys = foreign_keys(self._server)
        except SourceError as error:
            if not error.needs_privilege:
                raise
            yield self._refusal(
                "which foreign keys refer to it is not known: the account is missing the "
                "privilege PROCESS",
                "GRANT PROCESS ON *.* to it",
            )
            return
        for key in keys:
            changes = (key.on_delete and {"insert", "delete"} & {*kinds}) or (
                key.on_update and "update" in kinds
            )
            if changes and key.may_refer_to(*self._name):
                yield self._refusal(
                    f"a foreign key of {key.child} refers to it, and changes that table's rows "
                    "with it (CASCADE or SET NULL): rows written since would change, or those that "
                    "the transaction changed are in no binlog"
                )
                return

    def _is_in_binlog(self, row: Mapping[str, Any]) -> bool:
        """Whether the row images have the value that the table stores of this generated column."""
        return _is_stored(row) and int(row["number"]) - 1 not in self._changed.missing

    def definition(self) -> Definition:
        """The definition, once there are no problems."""
        database, table = self._name
        named = f"{quoted(database)}.{quoted(table)}"
        (created,) = self._server.rows(f"SHOW CREATE TABLE {named}")
        columns = []
        for row in self._rows:
            kind = self._type(row)
            assert kind is not None  # noqa: S101 - a problem otherwise
            generated = _is_generated(row)
            in_binlog = generated and self._is_in_binlog(row)
            columns.append(
                Column(
                    name=str(row["name"]),
                    same=kind.same if in_binlog or not generated else "",
                    plain=_plain(row) if in_binlog else "",
                )
            )
        return Definition(
            database=database,
            table=table,
            columns=tuple(columns),
            index=self._index,
            key=self._key,
            text=_COUNTER.sub("", str(created["Create Table"])),
        )


def _is_generated(row: Mapping[str, Any]) -> bool:
    return bool(row["expression"])


def _is_stored(row: Mapping[str, Any]) -> bool:
    return _is_generated(row) and "VIRTUAL" not in str(row["extra"]).upper()


def _plain(row: Mapping[str, Any]) -> str:
    """The definition of a column of the same type that is not generated."""
    words = [str(row["type"])]
    if row["charset"]:
        words.append(f"CHARACTER SET {row['charset']} COLLATE {row['collation']}")
    words.append("NULL" if str(row["nullable"]).upper() == "YES" else "NOT NULL")
    return " ".join(words)


def _may_mention(expression: str, columns: Sequence[str]) -> bool:
    """Whether an expression may use one of these columns: any with an unusual name may be in it."""
    return mentions(expression, columns) or not all(map(_WORD.fullmatch, columns))
