"""What a statement does, by its text: insert, update, delete or DDL, and to which tables. No I/O.

Law: a table is named only if the text can mean no other table; otherwise it is "". No other SQL is
parsed, and no text is refused. Where strings end depends on the sql_mode in the event. If the end
of a string is not certain, the text after it is ignored.
"""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

from binlog2s3.binlog.events import status_settings
from binlog2s3.binlog.tables import database_name, table_name

StatementKind = Literal["insert", "update", "delete", "ddl", "other"]
Effect = Literal["insert", "update", "delete", "ddl", "other", "drop"]

NO_BACKSLASH_ESCAPES, ANSI_QUOTES, ONLY_FULL_GROUP_BY = 1 << 20, 1 << 2, 1 << 5
"""Bits of sql_mode."""
UTF8 = frozenset(
    {
        *(33, 83, *range(192, 224), *range(2048, 2304)),  # utf8mb3
        *(45, 46, *range(224, 248), *range(255, 331), *range(2304, 2560)),  # utf8mb4
    }
)
"""Ids of charsets that are UTF-8."""
CHARSETS = UTF8 | frozenset(
    {
        *(5, 8, 15, 31, 47, 48, 49, 94),  # latin1
        *(11, 65, 63),  # ascii, binary
        *(2, 9, 21, 27, 77, 26, 34, 44, 66, 99, 30, 78, 20, 41, 42, 79),  # of one byte
        *(7, 74, 14, 23, 50, 51, 52, 4, 80, 40, 81, 36, 68, 57, 67, 29, 58, 59, 25, 70, 16, 71),
    }
)
"""Ids of charsets in which only ASCII characters have bytes below 0x80."""

_ESCAPED, _PLAIN = r"(?:[^{0}\\]++|{0}{0}|\\.)*+", r"(?:[^{0}]++|{0}{0})*+"


def _token(single: str, double: str, *, executed: str = "M?!") -> "re.Pattern[str]":
    """A pattern of tokens, from those of the content of strings in single and double quotes.

    `executed`: what a comment begins with whose content the server executes.
    """
    parts = (
        rf"(?P<space>\s++|/\*{executed}\d*|\*/|/\*.*?(?:\*/|\Z)|\#[^\n]*+|--(?=[\x00-\x20\x7f]|\Z)[^\n]*+)",
        rf'(?P<quoted>`(?:[^`]++|``)*+(?:`|\Z)|"{double.format(chr(34))}(?:"|\Z))',
        rf"(?P<text>'{single.format(chr(39))}(?:'|\Z))",
        r"(?P<word>[\w$]++)",
        r"(?P<mark>.)",
    )
    return re.compile("|".join(parts), re.DOTALL)


_TOKENS = {
    (escapes, ansi, mysql): _token(
        _ESCAPED if escapes else _PLAIN,
        _ESCAPED if escapes and not ansi else _PLAIN,
        executed="!" if mysql else "M?!",
    )
    for escapes in (True, False)
    for ansi in (True, False)
    for mysql in (True, False)
}
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


@dataclass(frozen=True, slots=True)
class Writing:
    """How a statement is written: its sql_mode, None if unknown.

    Not `apart`: in its charset, a byte of a character may look like a quote or a backslash. Not
    `is_utf8`: its letters, except those of ASCII, may be other ones than they look like. `mysql`:
    a MySQL wrote it, for which what MariaDB executes in /*M! */ is a comment.
    """

    sql_mode: int | None = None
    apart: bool = True
    is_utf8: bool = True
    mysql: bool = False

    @property
    def tokens(self) -> "re.Pattern[str]":
        mode = self.sql_mode or 0
        return _TOKENS[not mode & NO_BACKSLASH_ESCAPES, bool(mode & ANSI_QUOTES), self.mysql]

    def clear(self, text: str, *, cut: bool) -> "StatementHead":
        """The beginning of a text, as far as it is certain; `cut`: the text continues after it."""
        size = len(text)
        if self.sql_mode is None:
            text = text.partition("\\")[0]
        if not self.apart and (found := _NOT_ASCII.search(text)):
            text = text[: found.start()]
        is_cut = cut or len(text) < size
        return StatementHead(text=text, cut=is_cut, tokens=self.tokens, is_utf8=self.is_utf8)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementHead:
    """The beginning of a statement, in which names and quoted texts can be told apart.

    `cut`: the statement continues after it. `is_utf8`: see `Writing`.
    """

    text: str
    cut: bool
    tokens: "re.Pattern[str]"
    is_utf8: bool

    def names(self) -> Iterator[str]:
        """Everything that may be a name, and the marks; without strings."""
        for match in self.tokens.finditer(self.text):
            kind, found = match.lastgroup, match[0]
            if kind == "quoted":
                yield found[1:-1].replace(found[0] * 2, found[0])
            elif kind in ("word", "mark"):
                yield found

    def keywords(self) -> list[str]:
        """Its words in capitals, without quoted ones."""
        tokens = self.tokens.finditer(self.text)
        return [match[0].upper() for match in tokens if match.lastgroup == "word"]


class TokenStream:
    """The tokens of a statement that comes in pieces, cut anywhere; memory is bounded.

    Each is (kind, text), without spaces and comments; of a long one, the beginning. Rows after the
    first one of an INSERT are left out if they have none of the words `telling`. Not `is_certain`:
    what comes now is ignored, because the end of a string is not certain.
    """

    def __init__(self, writing: Writing, telling: frozenset[str] = frozenset()) -> None:
        self.is_certain = True
        self._pattern = _with_rows(writing.tokens, telling) if telling else writing.tokens
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        doubtful = ("" if writing.apart else r"|[^\x00-\x7f]") + (
            r"|\\" if writing.sql_mode is None else ""
        )
        self._doubtful = re.compile(doubtful[1:]) if doubtful else None
        self._held = ""  # the last token, which may go on

    def feed(self, data: bytes) -> Iterator[tuple[str, str]]:
        """Take the next bytes; the tokens that end in them."""
        return self._split(self._held + self._decode(data), last=False)

    def end(self) -> Iterator[tuple[str, str]]:
        """No more bytes follow; the last tokens."""
        return self._split(self._held + self._decode(b"", final=True), last=True)

    def _split(self, text: str, *, last: bool) -> Iterator[tuple[str, str]]:
        if not self.is_certain:
            return
        self._held = ""
        if self._doubtful is not None and (found := self._doubtful.search(text)):
            text, last, self.is_certain = text[: found.start()], True, False
        # of a pair of backslashes, the first one alone ends no string
        odd = 0 if last else (len(text) - len(text.rstrip("\\"))) % 2
        before: tuple[str, str] | None = None
        for match in self._pattern.finditer(text, 0, len(text) - odd):
            if before is not None:
                yield before
            kind = match.lastgroup or ""
            before = None if kind in ("space", "rows") else (kind, match[0][:_TOKEN_MOST])
            at = match.start()
        if last:
            if before is not None:
                yield before
        elif text:
            begun = self._shortened(text[at : len(text) - odd]) if len(text) > odd else ""
            self._held = begun + text[len(text) - odd :]

    def _shortened(self, token: str) -> str:
        """A token of a bounded size that what follows continues in the same way."""
        if len(token) <= _TOKEN_MOST:
            return token
        first = token[0]
        if first in "'\"`":
            is_closed = self._ends_within(token + " ") == len(token)
            return first * 2 if is_closed else first
        if token.startswith("/*"):
            return " " if token.endswith("*/") else "/* " + "*" * token.endswith("*")
        if first == "-":
            return "-- "
        return token[0] if first == "#" or first.isspace() else token[:_TOKEN_MOST]

    def _ends_within(self, text: str) -> int:
        match = self._pattern.match(text)
        return match.end() if match else 0


@cache
def _with_rows(tokens: "re.Pattern[str]", telling: frozenset[str]) -> "re.Pattern[str]":
    """The same tokens; `rows` are many at once, of plain values, which end before a comma."""
    escapes = _ESCAPED if _ESCAPED.format("'") in tokens.pattern else _PLAIN
    value = (
        rf"'{escapes.format(chr(39))}'|[^'\"`()/#@\-\w$]++|-(?!-)|@(?!@)|[0-9][\w$]*+|NULL\b"
        rf"|(?!(?i:{'|'.join(map(re.escape, sorted(telling)))})\b)[\w$]++"
    )
    rows = rf"(?P<rows>(?:,\s*+\((?:{value})*+\)\s*+(?=,))++)"
    return re.compile(f"{rows}|{tokens.pattern}", re.DOTALL)


_TOKEN_MOST = 100
PLAIN = Writing(sql_mode=0)
"""Written as most servers do."""


def writing_of(status: bytes, *, mysql: bool = False) -> Writing:
    """How a statement is written, by the status variables of its QUERY event."""
    sql_mode, charset = status_settings(status)
    return Writing(
        sql_mode=sql_mode, apart=charset in CHARSETS, is_utf8=charset in UTF8, mysql=mysql
    )


_Token = tuple[str, str]
"""Its kind, and its text as written."""
_END: _Token = ("end", "")

_NOTHING = frozenset(
    {"", "BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA", "START", "END"}
)
"""Statements that only begin or end something in a transaction."""
_BEFORE_TABLE = frozenset({"IF", "NOT", "EXISTS"})
_BEFORE_KIND = frozenset({"OR", "REPLACE", "TEMPORARY", "ONLINE", "OFFLINE", "IGNORE"})
_BEFORE_INDEX = frozenset({"UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR"})
_OF_DATABASE = frozenset(
    {"", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "DEFAULT", "ENCRYPTION", "READ"}
)
"""What follows ALTER DATABASE if it names none."""
_TABLES = frozenset({"TABLE", "TABLES", "SEQUENCE"})
_BEHIND_DELETE = frozenset({"", ";", "WHERE", "ORDER", "LIMIT", "RETURNING", "FOR", "BEFORE"})
_BEHIND_ANALYZE = frozenset({"", "TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"})
_BEHIND_LIST = frozenset({"", ";", "RESTRICT", "CASCADE"})
UPKEEP = frozenset(
    {"FLUSH", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "CHECKSUM", "CACHE", "RESET", "KILL"}
)
"""First words of statements that change no rows and define nothing."""


class _Tokens:
    """The tokens of a text, in order."""

    def __init__(self, clear: StatementHead) -> None:
        self._matches = clear.tokens.finditer(clear.text)
        self._end = len(clear.text) + (not clear.cut)
        self._now: _Token | None = None

    def peek(self) -> _Token:
        """The next token, without taking it."""
        if self._now is None:
            self._now = next(self._read(), _END)
        return self._now

    def _read(self) -> Iterator[_Token]:
        for match in self._matches:
            kind = match.lastgroup or ""
            if match.end() == self._end:
                return  # it may continue after the cut
            if kind != "space":
                yield kind, match[0]

    def take(self) -> _Token:
        token, self._now = self.peek(), None
        return token

    def keyword(self) -> str:
        """The next token in capitals, without taking it; a space if it is quoted."""
        kind, text = self.peek()
        return " " if kind in ("quoted", "text") else text.upper()

    def skip(self, words: frozenset[str] | set[str]) -> None:
        while self.peek() != _END and self.keyword() in words:
            self.take()

    def find(self, *words: str) -> bool:
        """Skip everything up to these words, and them too; returns whether they were found."""
        at = 0
        while at < len(words) and self.peek() != _END:
            at = at + 1 if self.keyword() == words[at] else int(self.keyword() == words[0])
            self.take()
        return at == len(words)

    def skip_with(self) -> bool:
        """Skip the common table expressions after WITH; whether they could be told apart."""
        self.skip({"RECURSIVE"})
        while self.take()[0] in ("word", "quoted"):
            if self.keyword() == "(" and not self._skip_group():
                return False
            if self.take()[1].upper() != "AS" or not self._skip_group():
                return False
            if self.keyword() != ",":
                return True
            self.take()
        return False

    def _skip_group(self) -> bool:
        """Skip what is in parentheses, and them; whether it is complete."""
        depth = 0
        while (found := self.take()) != _END:
            depth += (found == ("mark", "(")) - (found == ("mark", ")"))
            if depth <= 0:
                return found == ("mark", ")")
        return False

    def name(self, db: str) -> str:
        """Take the next table, in the form of `table_name`; "" if there is none."""
        database, table = self._pair(db)
        return table_name(database, table) if database else ""

    def database(self) -> str:
        """Take the next database, in the form of `database_name`; "" if there is none."""
        given, name = self._pair(" ")
        return database_name(name) if given == " " else ""

    def _pair(self, db: str) -> tuple[str, str]:
        """Take the next database and table; ("", "") if there are none."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A statement: its first word in capitals, its kind, its tables.

    `also`: what else it may do, to these or to other tables; every DROP but that of an index has
    "drop". `whole`: it has no other tables. `db` is the database that it was run in.
    """

    word: str
    kind: StatementKind
    tables: tuple[str, ...]
    also: frozenset[Effect]
    whole: bool
    db: str
    clear: StatementHead


def statement_of(
    text: str, db: str, *, cut: bool = False, writing: Writing = PLAIN
) -> Statement | None:
    """Parse a statement; None if it changes nothing.

    `db` is the database that it was run in. `cut`: the text continues after its end here. A
    database that is created or dropped is the table "db.*".
    """
    clear = writing.clear(text, cut=cut)
    tokens = _Tokens(clear)
    word = _first_word(tokens)
    if word in _NOTHING and not (word == "BEGIN" and tokens.keyword() == "NOT"):
        return None
    kind, tables_of = _KINDS.get(word, ("other", None))
    tables = (tables_of(tokens, word, db) if tables_of else ()) or ("",)
    whole = all(tables)
    if word in ("DROP", "RENAME"):
        whole = whole and not clear.cut and tokens.keyword() in _BEHIND_LIST
    elif word == "ALTER":  # it may exchange partitions with another one, or become one
        whole = whole and tables[0].endswith(".*")
    return Statement(
        word=word,
        kind=kind,
        tables=tables,
        also=_also(word, tables, clear),
        whole=whole,
        db=db,
        clear=clear,
    )


def _first_word(tokens: _Tokens) -> str:
    """The first word; that of the statement after WITH, or in MariaDB's SET STATEMENT, ANALYZE."""
    while True:
        word = tokens.keyword()
        tokens.take()
        behind = tokens.keyword()
        if word == "SET" and behind == "STATEMENT":
            if not tokens.find("FOR"):
                return "SET STATEMENT"
        elif word == "ANALYZE" and behind not in _BEHIND_ANALYZE:
            tokens.skip({"FORMAT", "=", "JSON", "TRADITIONAL"})
        elif word == "WITH":
            if not tokens.skip_with() or tokens.peek() == _END:
                return word
        else:
            return word


_NOTHING_ELSE: frozenset[Effect] = frozenset()
_MAY_BE: dict[str, tuple[str, frozenset[Effect]]] = {
    "INSERT": ("DUPLICATE", frozenset({"update"})),  # ON DUPLICATE KEY UPDATE
    "REPLACE": ("", frozenset({"delete"})),
    "LOAD": ("REPLACE", frozenset({"delete"})),
    "UPDATE": ("PORTION", frozenset({"insert"})),  # MariaDB's FOR PORTION OF splits rows
    "DELETE": ("PORTION", frozenset({"insert", "update"})),
    "TRUNCATE": ("", frozenset({"delete"})),
    "ALTER": ("PARTITION", frozenset({"insert", "delete"})),  # dropped, truncated, exchanged
    "DROP": ("", frozenset({"drop"})),
}
"""By first word: what else a statement may do if another word is in it."""


def _also(word: str, tables: tuple[str, ...], clear: StatementHead) -> frozenset[Effect]:
    """What else a statement may do, by the words in it; a cut text may have any word."""
    if word == "CREATE":
        words = [*clear.keywords(), ""]
        found: set[Effect] = {"drop"} if "REPLACE" in words else set()
        if all(tables) and (clear.cut or _is_filled(words)):
            found.add("insert")
        return frozenset(found)
    if word == "DROP" and "INDEX" in clear.keywords()[1:3]:
        return _NOTHING_ELSE  # its table is still there
    other, effects = _MAY_BE.get(word, ("", _NOTHING_ELSE))
    if not other or clear.cut:
        return effects
    return effects if other in clear.text.upper() and other in clear.keywords() else _NOTHING_ELSE


def _is_filled(words: list[str]) -> bool:
    """Whether a CREATE TABLE of these words may put rows into the table."""
    return (
        "SELECT" in words
        or words.count("TABLE") > 1
        or any(a == "VALUES" and b not in ("LESS", "IN") for a, b in pairwise(words))
    )


_SECRET = re.compile(r"\b(?:IDENTIFIED|PASSWORD)\b", re.IGNORECASE)
_HEX = re.compile(r"0x[0-9a-f]++\Z", re.IGNORECASE)


def without_secrets(text: str, writing: Writing = PLAIN) -> str:
    """A DDL or account statement without the literals after IDENTIFIED or PASSWORD.

    The text ends where it is no longer certain what is a literal.
    """
    found = _SECRET.search(text)
    if found is None:
        return text
    clear = writing.clear(text, cut=False)
    shown = []
    for match in clear.tokens.finditer(clear.text):
        is_literal = match[0][0] in "'\"" or _HEX.match(match[0])
        shown.append("'...'" if is_literal and match.end() > found.end() else match[0])
    return "".join(shown) + ("..." if clear.cut else "")


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
    tokens.skip({"LOW_PRIORITY", "QUICK", "IGNORE", "HISTORY"})
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
    """One table, or all tables of a DROP or a RENAME."""
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
