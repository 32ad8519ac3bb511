"""Statements that make other rows where they are executed again.

An `ALTER TABLE ... ADD id INT AUTO_INCREMENT` numbers the rows in the order in which the server has
them; a `MODIFY` or `CHANGE` numbers those that have 0 or NULL. Without a primary key that is the
order in which they were inserted, and a server that applies the binlog inserts them in the order of
the commits: the same numbers are of other rows then, and later changes of one row are applied to
another (seen on MySQL 9.7.4 and MariaDB 10.11, also of their own replicas). A statement that is
logged as such may call what has another value elsewhere, as UUID() or @@server_id; so may the
DEFAULT of a column that a MariaDB adds, for example the next value of a sequence (seen on MariaDB
11.8: the binlog has it advanced by its whole cache before). And it may take its rows in the order
in which the server has them, or in which its plan has them: GROUP_CONCAT(), ROW_NUMBER(), variables
that count on, columns that are not in the GROUP BY, the row of several by which a join updates
another (seen on MySQL 9.7.4 and MariaDB 11.8, with binlog_format = MIXED, too), LIMIT,
AUTO_INCREMENT, RAND(), and which of two rows with one key an IGNORE or REPLACE keeps (STATEMENT
alone). An ORDER BY does not help: rows may be equal in it, or in its collation.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import dropwhile

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.content import StatementText
from binlog2s3.binlog.events import QUERIES, EventType
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import ANSI_QUOTES, ONLY_FULL_GROUP_BY, TokenStream, Writing
from binlog2s3.binlog.walk import wanted_types
from binlog2s3.recover.any_row import AGGREGATES, is_updated_by_any, takes_any_of_group
from binlog2s3.recover.extract import TextWatcher

# https://dev.mysql.com/doc/refman/9.7/en/replication-rbr-safe-unsafe.html; the server logs rows for
# them with binlog_format = MIXED
_CALLS = frozenset(
    {
        *("AES_DECRYPT", "AES_ENCRYPT", "CURRENT_USER", "FOUND_ROWS", "GET_LOCK", "IS_FREE_LOCK"),
        *("IS_USED_LOCK", "LASTVAL", "LOAD_FILE", "MASTER_POS_WAIT", "NEXTVAL", "RANDOM_BYTES"),
        *("PS_CURRENT_THREAD_ID", "RELEASE_ALL_LOCKS", "RELEASE_LOCK", "ROW_COUNT", "SESSION_USER"),
        *("CURRENT_ROLE", "DES_DECRYPT", "DES_ENCRYPT", "ENCRYPT", "ICU_VERSION", "PS_THREAD_ID"),
        *("ROWNUM", "SLEEP", "SOURCE_POS_WAIT", "SYSDATE"),
        *("SYSTEM_USER", "SYS_GUID", "USER", "UUID", "UUID_SHORT", "UUID_V4", "UUID_V7", "VERSION"),
    }
)
_SEEDED = frozenset({"RAND"})
"""Has the same values if it is called by a statement that changes rows: its seeds are logged."""
_LIMIT, _SKIP = "LIMIT", "SKIP"
_OF_ORDER = frozenset(
    {
        *("ANY_VALUE", "FIRST_VALUE", "GROUP_CONCAT", "JSON_ARRAYAGG", "JSON_OBJECTAGG", "LAG"),
        *("LAST_VALUE", "LEAD", "NTH_VALUE", "NTILE", "ROW_NUMBER"),
    }
)
"""What these functions have follows from the order of the rows."""
INSERT_ID = 2
"""The kind of an INTVAR that has the first number which a statement gives to its rows."""
_BEFORE_VALUE = frozenset({"NEXT", "PREVIOUS"})
"""MariaDB's NEXT VALUE FOR a sequence, which another server has got further with."""
_OF_SESSION = frozenset({"SESSION", "LOCAL"})
_SCHEMAS = frozenset({"INFORMATION_SCHEMA", "PERFORMANCE_SCHEMA"})
"""Their tables have what the server does at the moment."""
_LOGGED = frozenset(
    {
        *("AUTO_INCREMENT_INCREMENT", "AUTO_INCREMENT_OFFSET", "CHARACTER_SET_CLIENT"),
        *("CHARACTER_SET_CONNECTION", "CHARACTER_SET_DATABASE", "CHARACTER_SET_SERVER"),
        *("COLLATION_CONNECTION", "COLLATION_DATABASE", "COLLATION_SERVER", "FOREIGN_KEY_CHECKS"),
        *("IDENTITY", "LASTINSERT_ID", "LC_TIME_NAMES", "PSEUDO_THREAD_ID", "SQL_AUTO_IS_NULL"),
        *("SQL_MODE", "TIME_ZONE", "TIMESTAMP", "UNIQUE_CHECKS"),
    }
)
"""System variables of a session that the binlog has: who applies it has the same."""
_MAY = re.compile(
    rb"(?<!DUPLICATE\s)(?<!KEY\s)\b(?:AUTO_INCREMENT|SERIAL|NEXT|PREVIOUS|KEY|INDEX|UNIQUE|"
    rb"UPDATE|DELETE|TABLE|"
    + "|".join((*_CALLS, *_SEEDED, *_OF_ORDER, _LIMIT, "SELECT")).encode()
    + rb")\b|@@|:=",
    re.IGNORECASE,
)
_UNCERTAIN = re.compile(
    rb"\b(?:(?:" + "|".join((*_CALLS, *_SEEDED, *_OF_ORDER)).encode() + rb")\s*\("
    rb"|CURRENT_USER\b|LIMIT\s+\d|FETCH\s+(?:FIRST|NEXT)\b|@[\w$.]+\s*:="
    rb"|(?:NEXT|PREVIOUS)\s+VALUE\s+FOR\b"
    rb"|(?:AUTO_INCREMENT|SERIAL)\b(?!\s*=?\s*\d))",
    re.IGNORECASE,
)
"""What may be such a call, where strings cannot be told apart."""
VALUE_OF_SERVER = re.compile(
    rb"\b(?:" + "|".join(_CALLS).encode() + rb")\s*\(|\bCURRENT_USER\b|@@"
    rb"|\b(?:NEXT|PREVIOUS)\s+VALUE\s+FOR\b",
    re.IGNORECASE,
)
"""What calls something in a definition that has another value elsewhere."""
ROWS_OF_SERVER = re.compile(
    rb"\b(?:GROUP\s+BY|LIMIT|FETCH\s+(?:FIRST|NEXT)|OVER|CURSOR|SKIP\s+LOCKED)\b"
    rb"|\b(?:" + "|".join(_OF_ORDER).encode() + rb")\s*\(",
    re.IGNORECASE,
)
"""What takes rows in a definition in the order of the server."""
_UNCERTAIN_MOST = 64
_SELECT = re.compile(rb"\bSELECT\b", re.IGNORECASE)
_GROUP = re.compile(
    rb"\b(?:GROUP\s+BY\b|(?:" + "|".join(AGGREGATES).encode() + rb")\s*\()", re.IGNORECASE
)
_CHANGES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "LOAD", "WITH"})
_READ_ROWS = frozenset({"UPDATE", "DELETE", "WITH"})
_BEFORE_NUMBER = {
    "FETCH": frozenset({"FIRST", "NEXT"}),
    "OFFSET": frozenset[str](),
    "ROWS": frozenset({"BETWEEN", "CURRENT", "UNBOUNDED"}),
}
"""What takes rows by their number in the order, before that or one of these words."""
_ACTIONS = frozenset({"ADD", "ALTER", "CHANGE", "DROP", "MODIFY", "RENAME"})
_KEYS = frozenset({"INDEX", "KEY", "PRIMARY", "UNIQUE"})
_BEFORE_NAME = frozenset({"ADD", "CHANGE", "COLUMN", "EXISTS", "MODIFY", "(", ","})
_BEFORE_TABLE = frozenset(
    {*(".", "INTO", "TABLE", "EXISTS", "INSERT", "REPLACE"), *("DELAYED", "IGNORE", "LOW_PRIORITY")}
)
"""After these, `user (` is a table with its columns."""


_TELLING = frozenset(
    {
        *(_CALLS | _SEEDED | _OF_ORDER | _ACTIONS | _KEYS | _SCHEMAS),
        *(
            _SKIP,
            _LIMIT,
            "AUTO_INCREMENT",
            "DUPLICATE",
            "FETCH",
            "FOR",
            "FROM",
            "IGNORE",
            "OFFSET",
            "REPLACE",
            "ROWS",
            "SELECT",
            "SERIAL",
            "SET",
            "TABLE",
            "VALUE",
            "VALUES",
            "(",
            ")",
            "@",
            ":",
            ".",
        ),
    }
)
_WORDS = frozenset(word for word in _TELLING if word[0].isalpha())
_BEFORE_CHANGE = frozenset({"SET", "ANALYZE"})
"""MariaDB's SET STATEMENT ... FOR, and ANALYZE, come before a statement."""
_FIRST_WORDS = 5
_HELD_MOST = 1 << 20
_NAMES_MOST = 1000
_WORDS_MOST = 100_000
_AUTO = "auto_increment"


class Unrepeatable(TextWatcher):
    """Such statements in a stream of events, as far as their own text shows it.

    Which tables have a primary key is not known: those count, too. A key that a statement before
    has made is known by the names of its table and column.
    """

    wanted = wanted_types(EventType.INTVAR, *QUERIES)
    may = _MAY

    def __init__(self, *, most_keys: int = 100_000) -> None:
        super().__init__()
        self._most_keys = most_keys
        self._numbers = False  # whether the next statement gives numbers to rows
        self._keyed: set[Column] | None = set()  # None: it may be any

    def keyed_before(self, made: "_Columns") -> bool:
        """Whether a column that this numbers had a key of a statement before; note its own keys."""
        before = self._keyed
        if before is not None:
            is_known = not made.is_cut and len(before) + len(made.keyed) <= self._most_keys
            self._keyed = before | made.keyed if is_known else None
        return bool(made.numbered if before is None else made.numbered & before)

    @property
    def why(self) -> str:
        """See `TextWatcher`."""
        return (
            f"the binlog does not tell what this statement{self.and_more} made of the rows "
            "(what follows from the order of the rows in the server, or values that another server "
            f"does not have), and they may be others here: {self.first}"
        )

    def see(
        self, event_type: int, head: bytes, size: int, flavour: Flavour, flags: int, /
    ) -> Sink | None:
        """See `Watcher`."""
        if event_type == EventType.INTVAR:
            self._numbers |= head[0] == INSERT_ID
            return None
        sink = super().see(event_type, head, size, flavour, flags)
        self._numbers = False
        return sink

    def look(self, begun: StatementText, writing: Writing, /) -> Sink | None:
        """See `TextWatcher`."""
        return _Look(self, begun, writing, numbers=self._numbers)


Column = tuple[str, str]
"""The names of a table, without its database, and of a column, in small letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """What a DDL does to columns: `keyed` come first in a key that is not the primary key.

    `numbered` become AUTO_INCREMENT. `is_cut`: there may be more.
    """

    keyed: frozenset[Column] = frozenset()
    numbered: frozenset[Column] = frozenset()
    is_cut: bool = False


def _columns(words: Sequence[str]) -> _Columns:
    """What a CREATE TABLE, an ALTER TABLE or a CREATE INDEX with these words does."""
    before = "table" if "table" in words[:_FIRST_WORDS] else "on"
    at = words.index(before) + 1 if before in words else len(words)
    while at < len(words) and words[at] in ("if", "not", "exists"):
        at += 1
    if words[at + 1 : at + 2] == ["."]:
        at += 2
    table, rest = "".join(words[at : at + 1]).removeprefix("`"), words[at + 1 :]
    if before == "on":
        return _Columns(keyed=frozenset({(table, _first_of(rest))}))
    keyed, numbered = set[Column](), set[Column]()
    for words_of in _parts(rest):
        action = words_of[0] if words_of[0] in ("add", "modify", "change") else ""
        part = [*dropwhile((action, "column", "if", "not", "exists").__contains__, words_of)]
        if part[:1] == ["constraint"]:
            del part[: 1 if part[1:2] and part[1] in ("unique", "primary", "foreign") else 2]
        column = (table, "".join(part[:1]).removeprefix("`"))
        if action in ("modify", "change"):
            if _AUTO in part:
                numbered.add(column)
        elif part[:1] and part[0] in ("unique", "key", "index"):
            keyed.add((table, _first_of(part)))
        elif "unique" in part:
            keyed.add(column)
    return _Columns(keyed=frozenset(keyed), numbered=frozenset(numbered))


def _first_of(words: Sequence[str]) -> str:
    """The first name in parentheses."""
    at = words.index("(") + 1 if "(" in words else len(words)
    return "".join(words[at : at + 1]).removeprefix("`")


def _parts(words: Sequence[str]) -> Iterator[list[str]]:
    """The actions of an ALTER TABLE, or the definitions of a CREATE TABLE or an ADD (...)."""
    part, depth = list[str](), 0
    for word in words:
        if not depth and word == "(" and {*part} <= {"add", "column", "if", "not", "exists"}:
            part = []
            continue
        if not depth and word in (",", ")"):
            if part:
                yield part
            part = []
            continue
        depth += (word == "(") - (word == ")")
        part.append(word)
    if part:
        yield part


class _Look:
    """Looks at the words of a statement. It holds at most 1 MiB of it."""

    def __init__(
        self, watcher: Unrepeatable, begun: StatementText, writing: Writing, *, numbers: bool
    ) -> None:
        self._watcher, self._begun, self._writing = watcher, begun, writing
        self._tokens = TokenStream(writing, _WORDS)
        self._may_group = not (writing.sql_mode or 0) & ONLY_FULL_GROUP_BY
        has_strings = not (writing.sql_mode or 0) & ANSI_QUOTES
        self._words = _Words(numbers=numbers, has_strings=has_strings)
        self._numbers = numbers
        self._held = bytearray()
        self._is_long = self._may_be = False
        self._last = b""

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._words.is_other:
            return
        self._held += data
        if len(self._held) > _HELD_MOST:
            self._is_long = True
            self._take()

    def close(self, *, whole: bool) -> None:
        """No more bytes follow."""
        if not whole and not self._words.is_other:
            self._watcher.lose()
        if not self._is_long and _MAY.search(self._held) is None:
            return
        self._take()
        self._words.take(self._tokens.end())
        is_whole = whole and self._tokens.is_certain
        had_key = self._watcher.keyed_before(self._words.columns(is_whole=is_whole))
        may_be = self._may_be or had_key
        if self._words.is_unrepeatable(may_be=may_be) or (
            self._words.takes_any(may_group=self._may_group, is_whole=is_whole)
        ):
            self._watcher.note(self._begun, self._writing)

    def _take(self) -> None:
        data = bytes(self._held)
        self._held.clear()
        self._words.take(self._tokens.feed(data))
        if not self._tokens.is_certain:
            doubtful = self._last + data
            self._may_be = self._may_be or _UNCERTAIN.search(doubtful) is not None
            self._may_be |= self._numbers and _SELECT.search(doubtful) is not None
            self._may_be |= self._may_group and _GROUP.search(doubtful) is not None
        self._last = data[-_UNCERTAIN_MOST:]


class _Words:
    """What the words of a statement say, in capitals; what is quoted is a space."""

    def __init__(self, *, numbers: bool, has_strings: bool) -> None:
        self._numbers_rows = numbers
        self._strings = '"' if has_strings else ""
        self._before = self._word = ""
        self._names = list[str]()  # all words of it, in small letters; a quoted one has its quote
        self._begin()

    def _begin(self, *, known: int = 0) -> None:
        """Begin with a statement, of which so many words are known."""
        self._names = self._names[len(self._names) - known :]
        self._first = list[str]()
        self._tables = self._depth = 0
        self._has_values = self._selects = self._is_seeded = self._keeps_first = False
        self._select_at = -1  # the depth of its first query
        self._variables, self._again, self._assigned = set[str](), set[str](), set[str]()
        self._action = ""  # of an ALTER, which the words are of
        self._numbers = self._makes_key = False
        self._fills = self._takes_any = self._calls = self._adds = False
        self._has_scope = False  # whether a word is the SESSION of @@SESSION.x

    @property
    def is_other(self) -> bool:
        """Whether its first words say that it changes no rows."""
        first = self._first
        return len(first) == _FIRST_WORDS and not (
            first[0] in _CHANGES or first[0] in _BEFORE_CHANGE or self._defines
        )

    @property
    def _defines(self) -> bool:
        """Whether it may make a key."""
        return self._is_of_table or (self._first[:1] == ["CREATE"] and "INDEX" in self._first)

    @property
    def _is_of_table(self) -> bool:
        first = self._first
        return first[:1] in (["ALTER"], ["CREATE"]) and "TABLE" in first and "VIEW" not in first

    def columns(self, *, is_whole: bool) -> "_Columns":
        """What it does to columns, at its end."""
        if not self._defines:
            return _Columns()
        found = _columns(self._names) if len(self._names) <= _WORDS_MOST else _Columns(is_cut=True)
        return found if is_whole else replace(found, is_cut=True)

    def is_unrepeatable(self, *, may_be: bool) -> bool:
        """At its end. `may_be`: it may be by the words that could not be told apart."""
        self._see("")
        if self._is_of_table and self._first[0] == "ALTER":
            is_numbered = self._adds or (self._numbers and self._makes_key)
            return is_numbered or self._keeps_first or may_be
        if self._is_of_table and not (self._fills or may_be):
            return False
        if not self._is_of_table and self._first[:1] and self._first[0] not in _CHANGES:
            return False
        return self._takes_any or self._calls or self._counts or may_be

    @property
    def _counts(self) -> bool:
        """Whether what a row gets follows from those before it, in the order of the server."""
        if self._first[0] == "LOAD":
            return self._numbers_rows
        if not (self._selects or self._first[0] in _READ_ROWS):
            return False
        keeps_first = self._keeps_first or self._first[0] == "REPLACE"
        is_counted = bool(self._assigned & self._again)
        return self._numbers_rows or keeps_first or self._is_seeded or is_counted

    def takes_any(self, *, may_group: bool, is_whole: bool) -> bool:
        """Whether it takes the values of any one of several rows, at its end.

        `may_group`: its sql_mode allows columns that are not in the GROUP BY.
        """
        is_filled = self._fills and self._is_of_table
        if not (is_filled or (self._first[:1] and self._first[0] in _CHANGES)):
            return False
        words, is_cut = self._names, len(self._names) > _WORDS_MOST
        is_update = self._first[0] in ("UPDATE", "WITH")
        if is_update and is_updated_by_any(words, is_whole=is_whole and not is_cut):
            return True
        return may_group and "select" in words and (is_cut or takes_any_of_group(words))

    def take(self, tokens: Iterator[tuple[str, str]]) -> None:
        """Take the next tokens."""
        for kind, text in tokens:
            if len(self._names) <= _WORDS_MOST:
                is_quoted = kind == "quoted" and len(text) > 2 and text[0] != self._strings
                plain = text[1:-1].replace(text[0] * 2, text[0]) if is_quoted else text
                self._names.append(f"`{plain.lower()}" if is_quoted else text.lower())
            self._see(text.upper() if kind in ("word", "mark") else " ")

    def _see(self, behind: str) -> None:
        """Judge the last word, now that the one behind it is known."""
        before, word = self._before, self._word
        self._before, self._word = word, behind
        is_first = len(self._first) < _FIRST_WORDS
        if not word or not (is_first or word in _TELLING):
            return
        if word == "FOR" and self._first[:2] == ["SET", "STATEMENT"]:
            self._begin(known=1)
            return
        if is_first:
            if word in _CHANGES and self._first[:1] == ["ANALYZE"]:
                self._begin(known=2)
            self._first.append(word)
        self._judge_rows(before, word, behind)
        self._judge_variable(before, word, behind)
        self._judge_action(before, word, behind)
        is_call = behind == "(" or word == "CURRENT_USER"
        if is_call and word in _CALLS | _SEEDED and before not in _BEFORE_TABLE:
            self._calls |= word in _CALLS
            self._is_seeded |= word in _SEEDED
            self._adds |= self._action == "ADD"
        if self._is_of_server(before, word, behind):
            self._calls = True
            self._adds |= self._action == "ADD"

    def _is_of_server(self, before: str, word: str, behind: str) -> bool:
        """Whether it is a value that is not logged: of a sequence, a variable, the server."""
        if word == "VALUE":
            return before in _BEFORE_VALUE and behind == "FOR"
        if word in _SCHEMAS:
            return behind == "."
        is_variable = (word == "@" and before == "@") or (word == "." and self._has_scope)
        self._has_scope = word == "@" and is_variable and behind in _OF_SESSION
        return is_variable and not self._has_scope and behind not in _LOGGED

    def _judge_rows(self, before: str, word: str, behind: str) -> None:
        """Whether it has rows of a query, and takes any of them, or all in any order."""
        if word in ("(", ")"):
            self._depth += 1 if word == "(" else -1
        elif word in _OF_ORDER:
            self._takes_any |= behind == "("
        elif word == _LIMIT or (word == _SKIP and behind == "LOCKED"):
            self._takes_any = True
        elif word in _BEFORE_NUMBER:
            self._takes_any |= behind in _BEFORE_NUMBER[word] or behind[:1].isdigit()
        elif word == "SELECT":
            self._fills = True
            if not self._has_values and self._select_at < 0:
                self._select_at = self._depth
        elif word == "FROM":
            self._selects |= self._depth == self._select_at and behind != "DUAL"
        elif word == "DUPLICATE":
            self._keeps_first = True
        elif word in ("IGNORE", "REPLACE"):
            is_hint = behind in ("INDEX", "KEY")
            is_of_rows = word == "IGNORE" or (self._first[0] == "CREATE" and before != "OR")
            self._keeps_first |= is_of_rows and not (self._fills or is_hint)
        elif word == "SET":
            self._has_values |= self._depth == 0
        elif word in ("VALUE", "VALUES") and behind not in ("FOR", "LESS", "IN"):
            self._fills |= word == "VALUES"
            self._has_values |= self._depth == 0
        elif word == "TABLE":
            self._tables += 1
            is_query = self._tables > 1 or self._first[0] in ("INSERT", "REPLACE")
            self._fills |= is_query
            self._selects |= is_query and not self._has_values

    def _judge_variable(self, before: str, word: str, behind: str) -> None:
        """Whether it names a variable of users once more, or assigns one."""
        if word == ":" and behind == "=":
            self._assigned.add(before)
        elif word == "@" and "@" not in (before, behind) and len(self._variables) < _NAMES_MOST:
            (self._again if behind in self._variables else self._variables).add(behind)

    def _judge_action(self, before: str, word: str, behind: str) -> None:
        """Whether a column that is added numbers the rows, or another that gets its key by that.

        A column that had a key before is likely to be numbered already: its type is changed. As an
        option of the table, AUTO_INCREMENT has a number.
        """
        if word in _ACTIONS:
            self._action = word
        if word == "AUTO_INCREMENT":
            is_column = not (behind == "=" or behind[:1].isdigit())
        else:
            is_column = word == "SERIAL" and before not in _BEFORE_NAME
        is_key = (word in _KEYS and before != "FOREIGN") or (is_column and word == "SERIAL")
        self._numbers_rows |= is_column and self._first[:1] == ["CREATE"]
        self._makes_key |= is_key and self._action in ("ADD", "CHANGE", "MODIFY")
        self._adds |= is_column and self._action == "ADD"
        self._numbers |= is_column and self._action in ("CHANGE", "MODIFY")
