"""What a statement does, by its text: insert, update, delete or DDL, and to which tables. No I/O.

Place: `content` asks for each QUERY event.

Law: a table is named only where the text can mean no other; all else is "". No SQL is understood
beyond that, and no text is refused.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from binlog2s3.binlog.tables import database_name, table_name

StatementKind = Literal["insert", "update", "delete", "ddl", "other"]

_TOKEN = re.compile(
    r"""(?P<space>\s++|/\*M?!\d*|\*/|/\*.*?(?:\*/|\Z)|\#[^\n]*+|--(?=\s|\Z)[^\n]*+)
    |(?P<quoted>`(?:[^`]++|``)*+(?:`|\Z)|"(?:[^"\\]++|""|\\.)*+(?:"|\Z))
    |(?P<text>'(?:[^'\\]++|''|\\.)*+(?:'|\Z))
    |(?P<word>[\w$]++)
    |(?P<mark>.)""",
    re.DOTALL | re.VERBOSE,
)

_Token = tuple[str, str]
"""Kind and text, as it stands there."""
_END: _Token = ("end", "")

_NOTHING = frozenset(
    {"", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "START", "END"}
)
"""What only frames a transaction."""
_BEFORE_TABLE = frozenset({"IF", "NOT", "EXISTS"})
_BEFORE_KIND = frozenset({"OR", "REPLACE", "TEMPORARY", "ONLINE", "OFFLINE", "IGNORE"})
_BEFORE_INDEX = frozenset({"UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
_OF_DATABASE = frozenset(
    {"", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "DEFAULT", "ENCRYPTION", "READ"}
)
"""What follows ALTER DATABASE where it names none."""
_TABLES = frozenset({"TABLE", "TABLES", "SEQUENCE"})
_BEHIND_DELETE = frozenset({"", ";", "WHERE", "ORDER", "LIMIT", "RETURNING", "FOR"})
_BEHIND_LIST = frozenset({"", ";", "RESTRICT", "CASCADE"})


class _Tokens:
    """The tokens of a text, one after the other."""

    def __init__(self, text: str, *, cut: bool) -> None:
        self._matches = _TOKEN.finditer(text)
        self._end = len(text) if cut else len(text) + 1
        self._now: _Token | None = None

    def peek(self) -> _Token:
        """The next one, which stays."""
        if self._now is None:
            self._now = next(self._read(), _END)
        return self._now

    def _read(self) -> Iterator[_Token]:
        for match in self._matches:
            kind = match.lastgroup or ""
            if match.end() == self._end:
                return  # nobody knows how it goes on
            if kind != "space":
                yield kind, match[0]

    def take(self) -> _Token:
        """The next one."""
        token, self._now = self.peek(), None
        return token

    def keyword(self) -> str:
        """The next one in capitals if it is a word or a mark, which stays; else a space."""
        kind, text = self.peek()
        return " " if kind in ("quoted", "text") else text.upper()

    def skip(self, words: frozenset[str] | set[str]) -> None:
        """Pass over these, however often."""
        while self.peek() != _END and self.keyword() in words:
            self.take()

    def find(self, *words: str) -> bool:
        """Pass over everything up to and with these words."""
        at = 0
        while at < len(words) and self.peek() != _END:
            at = at + 1 if self.keyword() == words[at] else int(self.keyword() == words[0])
            self.take()
        return at == len(words)

    def name(self, db: str) -> str:
        """The table that comes next, as `table_name` has it; "" if there is none."""
        database, table = self._pair(db)
        return table_name(database, table) if database else ""

    def database(self) -> str:
        """All tables of the database that comes next, as `database_name` has it; or ""."""
        given, name = self._pair(" ")
        return database_name(name) if given == " " else ""

    def _pair(self, db: str) -> tuple[str, str]:
        """Database and table that come next; ("", "") if there are none."""
        parts: list[str] = []
        while len(parts) < 2:
            kind, text = self.peek()
            if kind == "word":
                parts.append(text)
            elif kind == "quoted" and len(text) > 2 and text[-1] == text[0]:
                parts.append(text[1:-1].replace(text[0] * 2, text[0]))
            else:
                return "", ""
            self.take()
            if self.keyword() != "." or len(parts) == 2:
                break
            self.take()
        if len(parts) == 1:
            parts.insert(0, db)
        return (parts[0], parts[1]) if parts[0] and self.keyword() != "." else ("", "")


@dataclass(frozen=True, slots=True)
class Statement:
    """What a statement is: its first word in capitals, its kind, the tables that it is about.

    `whole`: it is about no others.
    """

    word: str
    kind: StatementKind
    tables: tuple[str, ...]
    whole: bool


def statement_of(text: str, db: str, *, cut: bool = False) -> Statement | None:
    """What a statement is, and the tables (`table_name`) it is about; None: it changes nothing.

    `db` is the database it was run in. `cut`: the text goes on where it ends here. A database that
    is created or dropped is "db.*".
    """
    tokens = _Tokens(text, cut=cut)
    word = tokens.keyword()
    tokens.take()
    if word in _NOTHING:
        return None
    kind, tables_of = _KINDS.get(word, ("other", None))
    tables = (tables_of(tokens, word, db) if tables_of else ()) or ("",)
    whole = all(tables)
    if word in ("DROP", "RENAME"):
        whole = whole and not cut and tokens.keyword() in _BEHIND_LIST
    elif word == "ALTER":  # it may exchange partitions with another one, or become one
        whole = whole and tables[0].endswith(".*")
    return Statement(word, kind, tables, whole)


def read_statement(
    text: str, db: str, *, cut: bool = False
) -> tuple[StatementKind, tuple[str, ...]] | None:
    """Kind and tables of `statement_of`."""
    found = statement_of(text, db, cut=cut)
    return None if found is None else (found.kind, found.tables)


def names_in(text: str) -> Iterator[str]:
    """All that may be a name in a statement, and the marks; texts in quotes are None of it."""
    for match in _TOKEN.finditer(text):
        kind, found = match.lastgroup, match[0]
        if kind == "quoted":
            yield found[1:-1].replace(found[0] * 2, found[0])
        elif kind in ("word", "mark"):
            yield found


_SECRET = re.compile(r"\b(?:IDENTIFIED|PASSWORD)\b", re.IGNORECASE)
_LITERAL = re.compile(
    r"""'(?:[^'\\]++|''|\\.)*+(?:'|\Z)|"(?:[^"\\]++|""|\\.)*+(?:"|\Z)|\b0x[0-9a-f]++""",
    re.DOTALL | re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A DDL or account statement whose literals behind IDENTIFIED or PASSWORD are not shown."""
    found = _SECRET.search(text)
    if found is None:
        return text
    return text[: found.end()] + _LITERAL.sub("'...'", text[found.end() :])


def _inserted(tokens: _Tokens, _word: str, db: str) -> tuple[str, ...]:
    """The table of an INSERT or a REPLACE."""
    tokens.skip({"LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "IGNORE", "INTO"})
    return (tokens.name(db),)


def _loaded(tokens: _Tokens, _word: str, db: str) -> tuple[str, ...]:
    """The table of a LOAD DATA or LOAD XML."""
    return (tokens.name(db),) if tokens.find("INTO", "TABLE") else ()


def _updated(tokens: _Tokens, _word: str, db: str) -> tuple[str, ...]:
    """The table of an UPDATE of one table."""
    tokens.skip({"LOW_PRIORITY", "IGNORE"})
    name = tokens.name(db)
    if tokens.keyword() == "AS":
        tokens.take()
    if tokens.keyword() != "SET" and tokens.peek()[0] in ("word", "quoted"):
        tokens.take()  # an alias
    return (name,) if tokens.keyword() == "SET" else ()


def _deleted(tokens: _Tokens, _word: str, db: str) -> tuple[str, ...]:
    """The table of a DELETE from one table."""
    tokens.skip({"LOW_PRIORITY", "QUICK", "IGNORE"})
    if tokens.keyword() != "FROM":
        return ()
    tokens.take()
    name = tokens.name(db)
    return (name,) if tokens.keyword() in _BEHIND_DELETE else ()


def _defined(tokens: _Tokens, word: str, db: str) -> tuple[str, ...]:
    """The tables of a DDL statement."""
    tokens.skip(_BEFORE_KIND)
    what = tokens.keyword()
    if word == "TRUNCATE" and what != "TABLE":
        return (tokens.name(db),)
    if what in ("DATABASE", "SCHEMA"):
        tokens.take()
        tokens.skip(_BEFORE_TABLE)
        if tokens.keyword() in _OF_DATABASE:
            return (database_name(db) if db else "",)
        return (tokens.database(),)
    if what in _TABLES:
        tokens.take()
        tokens.skip(_BEFORE_TABLE)
        return _listed(tokens, word, db)
    tokens.skip(_BEFORE_INDEX)
    if tokens.keyword() == "INDEX":
        tokens.take()
        tokens.skip(_BEFORE_TABLE)
        tokens.take()  # its name, which may be ON
        return (tokens.name(db) if tokens.find("ON") else "",)
    return ()


def _listed(tokens: _Tokens, word: str, db: str) -> tuple[str, ...]:
    """One table, or all that a DROP or a RENAME names."""
    names = [tokens.name(db)]
    following = {"DROP": {","}, "RENAME": {",", "TO"}}.get(word, set())
    while tokens.keyword() in following and names[-1]:
        tokens.take()
        names.append(tokens.name(db))
    return tuple(dict.fromkeys(filter(None, names)))


_KINDS: dict[str, tuple[StatementKind, Callable[[_Tokens, str, str], tuple[str, ...]] | None]] = {
    "INSERT": ("insert", _inserted),
    "REPLACE": ("insert", _inserted),
    "LOAD": ("insert", _loaded),
    "UPDATE": ("update", _updated),
    "DELETE": ("delete", _deleted),
    **dict.fromkeys(("CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME"), ("ddl", _defined)),
    **dict.fromkeys(("GRANT", "REVOKE", "SET", "INSTALL", "UNINSTALL", "IMPORT"), ("ddl", None)),
}
