"""What a dump by mysqldump or mariadb-dump puts into a server: tables, rows, accounts. No I/O.

Law: a dump is read in blocks of any size and never held: only names stay, and their number has a
limit. What is not understood is left out: it is not checked, and it is never guessed. Nothing of a
dump is executed.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_NAMES = 1 << 20
"""So many tables and accounts are remembered; the rest is not checked."""
MOST_STATEMENT = 8 << 20
"""The most bytes of the statement with the accounts."""
_LOOK_AHEAD = 4096
"""What is looked for in a line ends before: two names of 64 characters are shorter."""

_NAME = rb"(?:`(?:[^`\n]|``)+`|\"(?:[^\"\n]|\"\")+\"|[\w$\x80-\xff]+)"
_LINE = re.compile(
    rb"\n(?:"
    rb"DELIMITER (?P<with>\S+)"
    rb"|USE (?P<use>" + _NAME + rb");"
    rb"|CREATE TABLE (?:IF NOT EXISTS )?(?P<table>" + _NAME + rb") ?\("
    rb"|(?:INSERT|REPLACE) +(?:(?:IGNORE|DELAYED) +)?INTO (?P<into>" + _NAME + rb") "
    rb"|CREATE USER (?:IF NOT EXISTS )?"
    rb"(?P<user>[`'\"][^\n@]*[`'\"])@(?P<host>[`'\"][^\n`'\"]*[`'\"])"
    rb"|-- Host: .*    Database: (?P<database>\S[^\n]*)"
    rb"|(?P<title>-- (?:MySQL|MariaDB) dump \d)"
    rb"|(?P<completed>-- Dump completed)"
    rb")"
)
_ACCOUNTS = {("mysql", "user"), ("mysql", "global_priv")}
_TOKEN = re.compile(rb"'(?:[^'\\]|\\.|'')*'|[(),]|[^'(),]+", re.DOTALL)
_COLUMNS = re.compile(rb"\s*\((?P<names>[^()]*)\)\s*VALUES")
_ESCAPED = re.compile(rb"\\(.)|''", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpContent:
    """What a dump has: of each table (schema, name) whether it has rows; the accounts.

    `accounts` (user, host) is None if the dump has none that could be read. `ends`: whether its
    last line says that it is complete; None if it has no comments that could say so. `is_whole`:
    whether all names could be read, and were not too many.
    """

    tables: Mapping[tuple[str, str], bool]
    accounts: frozenset[tuple[str, str]] | None
    ends: bool | None
    is_whole: bool


class DumpReader:
    """Reads a dump block by block: `feed` each, then `end`."""

    def __init__(self) -> None:
        self._buffer = b"\n"
        self._database: str | None = None
        self._in_body = False
        self._tables: dict[tuple[str, str], bool] = {}
        self._accounts: set[tuple[str, str]] = set()
        self._statement: bytearray | None = None
        self._titles = self._completed = 0
        self._is_whole = True
        self._knows_accounts = True

    def feed(self, block: bytes) -> None:
        """Read on."""
        self._buffer += block
        self._read(len(self._buffer) - _LOOK_AHEAD)

    def end(self) -> DumpContent:
        """What it had."""
        self._buffer += b"\n"
        self._read(len(self._buffer))
        self._knows_accounts &= self._statement is None
        ends = self._completed == self._titles if self._titles else None
        if self._completed and ends is None:
            ends = True
        return DumpContent(
            tables=self._tables,
            accounts=frozenset(self._accounts) if self._accounts and self._knows_accounts else None,
            ends=ends,
            is_whole=self._is_whole,
        )

    def _read(self, until: int) -> None:
        """Handle the lines that begin before this; keep the rest."""
        at = 0
        while at < until:
            if self._statement is not None:
                at = self._collect(at, until)
                continue
            found = _LINE.search(self._buffer, at)
            if found is None or found.start() >= until:
                break
            # the accounts' statement begins in its own line; a line feed belongs to the next one
            at = found.end()
            self._line(found)
        self._buffer = self._buffer[max(at, until, 0) :]

    def _line(self, found: "re.Match[bytes]") -> None:
        kind = found.lastgroup
        if found["with"]:
            self._in_body = found["with"] != b";"
        elif self._in_body:
            return
        elif kind == "use":
            self._database = self._named(found["use"])
        elif kind == "database" and self._database is None:
            self._database = _text(found["database"].strip())
        elif kind in ("table", "into"):
            self._table(found[kind], has_rows=kind == "into")
        elif kind == "host":
            self._account(self._named(found["user"]), self._named(found["host"]))
        elif kind == "title":
            self._titles += 1
            self._database = None
        elif kind == "completed":
            self._completed += 1

    def _named(self, quoted: bytes) -> str | None:
        """A name without its quotes; None if it is not UTF-8."""
        quote = quoted[:1]
        if quote in (b"`", b'"', b"'"):
            quoted = quoted[1:-1].replace(quote * 2, quote)
        found = _text(quoted)
        self._is_whole &= found is not None
        return found

    def _table(self, quoted: bytes, *, has_rows: bool) -> None:
        name = self._named(quoted)
        if name is None or self._database is None:
            self._is_whole = False
            return
        key = (self._database, name)
        if key in self._tables or len(self._tables) < MOST_NAMES:
            self._tables[key] = has_rows or self._tables.get(key, False)
        else:
            self._is_whole = False
        if has_rows and (self._database.lower(), name) in _ACCOUNTS:
            self._statement = bytearray()

    def _account(self, user: str | None, host: str | None) -> None:
        if user is None or host is None or len(self._accounts) >= MOST_NAMES:
            self._knows_accounts = False
        else:
            self._accounts.add((user, host))

    def _collect(self, at: int, until: int) -> int:
        """Gather the accounts' statement, which ends with the first ; at a line's end."""
        assert self._statement is not None  # noqa: S101 - the caller looks
        end = self._buffer.find(b";\n", at)
        upto = end if end >= 0 else until
        self._statement += self._buffer[at:upto]
        if len(self._statement) > MOST_STATEMENT:
            self._knows_accounts = False
            self._statement.clear()
        if end >= 0:
            for user, host in _rows_of(bytes(self._statement)):
                self._account(user, host)
            self._statement = None
            return end + 1  # the line feed begins the next line
        return upto


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _rows_of(statement: bytes) -> Sequence[tuple[str | None, str | None]]:
    """User and host of each row of mysql.user or mysql.global_priv; None where it is no text."""
    places = {"host": 0, "user": 1}
    columns = _COLUMNS.match(statement)
    if columns is not None:
        names = [
            one.strip(b' `"').decode(errors="replace").lower()
            for one in columns["names"].split(b",")
        ]
        if not {"host", "user"} <= set(names):
            return [(None, None)]
        places = {name: names.index(name) for name in places}
        statement = statement[columns.end() :]
    found, depth, row, value = [], 0, list[bytes](), b""
    for match in _TOKEN.finditer(statement):
        token = match[0]
        if token == b"(":
            depth += 1
            if depth == 1:
                row, value = [], b""
                continue
        elif token == b")":
            depth -= 1
            if depth == 0:
                row.append(value)
                found.append((_value(row, places["user"]), _value(row, places["host"])))
                continue
        elif token == b"," and depth == 1:
            row.append(value)
            value = b""
            continue
        if depth and len(row) <= max(places.values()):
            value += token
    return found


def _value(row: "list[bytes]", at: int) -> str | None:
    """A string of a row, without its quotes; None if it is none."""
    value = row[at].strip().removeprefix(b"_binary ") if at < len(row) else b""
    if len(value) < 2 or value[:1] != b"'" or value[-1:] != b"'":
        return None
    plain = _ESCAPED.sub(lambda match: match[1] or b"'", value[1:-1])
    return _text(plain)
