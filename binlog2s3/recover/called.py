"""Statements that make other rows where they are executed again, by what they use.

A function, a trigger, a view or the DEFAULT of a column calls UUID(), USER() or the like, or reads
a system variable: what counts in a statement's own text (`unrepeatable`) counts in theirs. With
binlog_format = STATEMENT the source logs a statement that uses it as it is, and the server that
applies it gets other values, with the same GTIDs (seen on MySQL 9.7.4 and MariaDB 11.8). With MIXED
it logs rows. A view, a function or a trigger may take rows in the order of the server, as a GROUP
BY or a cursor does. And what a function or a trigger reads and changes differs from row to row, and
statements go through their rows in that order (seen on both, with MIXED, too).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.content import StatementText
from binlog2s3.binlog.events import QUERIES, EventType, query_layout
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import StatementHead, Writing
from binlog2s3.binlog.walk import wanted_types
from binlog2s3.errors import SourceError
from binlog2s3.recover.extract import TextWatcher
from binlog2s3.recover.target import Target
from binlog2s3.recover.unrepeatable import INSERT_ID, ROWS_OF_SERVER, VALUE_OF_SERVER
from binlog2s3.server.connection import Server

_KINDS = frozenset({"EVENT", "FUNCTION", "PACKAGE", "PROCEDURE", "TABLE", "TRIGGER", "VIEW"})
_BEFORE_NAME = frozenset({"BODY", "EXISTS", "IF", "NOT"})
_NOT_NAMES = frozenset({"COLUMN", "INDEX", "KEY", "TABLE", "TO"})
_DEFINE, _RENAME = frozenset({"CREATE", "ALTER"}), "RENAME"
_FILL = frozenset({"INSERT", "REPLACE", "LOAD", "SET", "ANALYZE"})
_CHANGE = _FILL | {"UPDATE", "DELETE", "WITH", "SELECT", "DO", "CALL"}
"""First words of statements that are logged because they change rows: MariaDB's SET STATEMENT ...
FOR and ANALYZE before them, and a SELECT or DO that calls a function which does."""
_NUMBERS = "AUTO_INCREMENT"
"""Stands, among first words, for a statement that gives numbers to rows."""
_BY_ROWS = frozenset({"UPDATE", "DELETE", "WITH", "SELECT", "SET", "ANALYZE"})
"""First words of those that may go through rows in the order of the server; SELECT in it, too."""
_VALUES = ((VALUE_OF_SERVER, _CHANGE), (ROWS_OF_SERVER, _CHANGE))
_OF_TABLE = ((VALUE_OF_SERVER, _FILL),)
_OF_VIEW = (
    *_VALUES,
    (re.compile(rb"\bRAND\s*\(", re.IGNORECASE), _BY_ROWS),
    (
        re.compile(rb"\bJOIN\b|\bFROM\b.*,", re.IGNORECASE | re.DOTALL),
        frozenset({"UPDATE", "WITH", "SET", "ANALYZE"}),
    ),
)
_OF_CODE = (
    *_VALUES,
    (
        re.compile(
            rb"\b(?:SELECT\b|(?:UPDATE|DELETE)\b(?!\s+O[NRF]\b)|RAND\s*\()|@[\w`'\"]+\s*:?=",
            re.IGNORECASE,
        ),
        _BY_ROWS,
    ),
    (
        re.compile(rb"\b(?:INSERT\b(?!\s+O[NR]\b)|(?<!OR\s)REPLACE\b)(?!\s*\()", re.IGNORECASE),
        _BY_ROWS | {_NUMBERS},
    ),
)
_USES = {"TABLE": _OF_TABLE, "VIEW": _OF_VIEW}
"""By the kind of a definition, what in its text makes it count, and for which statements."""
_PATTERNS = dict.fromkeys(one for uses in (_OF_CODE, _OF_VIEW, _OF_TABLE) for one, _ in uses)
_SELECT = re.compile(rb"\bSELECT\b", re.IGNORECASE)
_NAMES_MOST, _ODD_MOST = 100_000, 1000
_WORD = re.compile(rb"[\w$\x80-\xff]+")
_OVERLAP = 512
_TEXT_MOST = 65_536
"""Characters of a definition that are asked for; a longer one counts as one that calls."""
_FIRST = re.compile(rb"\s*(" + "|".join(sorted(_CHANGE)).encode() + rb")\b", re.IGNORECASE)
_CHANGE_BYTES = frozenset(word.encode() for word in _CHANGE)
_MAY = re.compile("|".join((*sorted(_DEFINE | _CHANGE), _RENAME)).encode(), re.IGNORECASE)
_NOT_USERS = frozenset({"information_schema", "mysql", "performance_schema", "sys"})
_QUESTIONS = {
    "SELECT routine_schema AS db, routine_name AS name, LEFT(routine_definition, 65536) AS text "
    "FROM information_schema.routines": "FUNCTION",
    "SELECT trigger_schema AS db, event_object_table AS name, LEFT(action_statement, 65536) AS "
    "text FROM information_schema.triggers": "TRIGGER",
    "SELECT table_schema AS db, table_name AS name, LEFT(view_definition, 65536) AS text "
    "FROM information_schema.views": "VIEW",
    "SELECT table_schema AS db, table_name AS name, column_default AS text "
    "FROM information_schema.columns WHERE LOCATE('(', column_default) > 0": "TABLE",
}
"""What asks for definitions, and their kind."""
_SEES_ALL = frozenset({"SELECT", "SHOW VIEW", "TRIGGER"})
_GLOBAL = re.compile(r"GRANT (.+?) ON \*\.\* TO ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What a statement may use by this name without calling it: `text` is what is executed then.

    `kind`: of _KINDS; of a trigger or a DEFAULT (TABLE), `name` is that of its table.
    """

    name: str
    text: str
    kind: str = "FUNCTION"

    @property
    def uses(self) -> frozenset[str]:
        """The statements for which it counts by its own text, by their first words."""
        if len(self.text) >= _TEXT_MOST:
            return _CHANGE
        return _used_by(self.kind, {*_matching(self.text.encode())})


def _matching(text: bytes) -> Iterator[re.Pattern[bytes]]:
    """What of all kinds of definitions is in this text."""
    return (one for one in _PATTERNS if one.search(text) is not None)


def _used_by(kind: str, patterns: set[re.Pattern[bytes]]) -> frozenset[str]:
    uses = _USES.get(kind, _OF_CODE)
    return frozenset[str]().union(*(words for one, words in uses if one in patterns))


def definitions(target: Target) -> tuple[Definition, ...] | None:
    """Those of the users' schemas; None if the account may not see all of them.

    Raises SourceError.
    """
    if target.facts.checks_accounts and not _sees_all(target.server):
        return None
    return tuple(
        Definition(name=str(row["name"]), text=str(row["text"] or ""), kind=kind)
        for question, kind in _QUESTIONS.items()
        for row in target.server.rows(question)
        if str(row["db"]).lower() not in _NOT_USERS
    )


def _sees_all(server: Server) -> bool:
    """Whether the account may see every definition. Privileges of roles do not count."""
    try:
        grants = [str(next(iter(row.values()))) for row in server.rows("SHOW GRANTS")]
    except SourceError as error:
        if not error.answered:
            raise
        return False
    if any(one.startswith("REVOKE") for one in grants):  # in some databases it sees nothing
        return False
    parts = [part for one in grants for part in _GLOBAL.findall(one)]
    words = {word.strip() for part in parts for word in part.split(",")}
    return "ALL PRIVILEGES" in words or words >= _SEES_ALL


class Called(TextWatcher):
    """Such statements in a stream of events: those whose text has the name of such a definition.

    It may be another one of that name, or in a string: that counts, too.
    """

    wanted = wanted_types(EventType.INTVAR, *QUERIES)
    may = _MAY

    def __init__(self) -> None:
        super().__init__()
        # by name, with ASCII in small letters: first words of the statements for which it counts
        self._names = dict[bytes, frozenset[str]]()
        self._odd = list[bytes]()  # those that are not one word
        self._odd_ones: re.Pattern[bytes] | None = None
        self._knows_all = True
        self._has_changes = self._numbers = False

    def know(self, there: Iterable[Definition] | None) -> None:
        """Take what is at the target before anything is applied; None: it cannot be seen."""
        if there is None:
            self._knows_all = False
            return
        known, is_growing = [(one, one.uses) for one in there], True
        while is_growing:  # what uses one of them is one of them
            found = [self.add(one.name, uses | self._inherited(one)) for one, uses in known]
            is_growing = any(found)

    def _inherited(self, one: Definition) -> frozenset[str]:
        uses = self.named(one.text.encode())
        return uses & _FILL if one.kind == "TABLE" else uses

    @property
    def why(self) -> str:
        """See `StatementWatcher`."""
        return (
            f"this statement{self.and_more} used a function, trigger, view or DEFAULT that calls "
            "UUID(), USER() or the like, or follows from the order of the rows in the server, and "
            f"what the binlog does not have may be other here: {self.first}"
        )

    @property
    def doubt(self) -> str:
        """See `StatementWatcher`."""
        if not self.number and self._has_changes and not self._knows_all:
            return (
                "rows were changed by statements in statement format, and what the target's "
                "functions, triggers, views and DEFAULTs that they use call is not known (GRANT "
                "SELECT, SHOW VIEW, TRIGGER ON *.* shows it)"
            )
        return super().doubt

    def see(
        self, event_type: int, head: bytes, size: int, flavour: Flavour, flags: int, /
    ) -> Sink | None:
        """See `Watcher`. Most statements are told by their first word."""
        if event_type == EventType.INTVAR:
            self._numbers |= head[0] == INSERT_ID
            return None
        sink = self._see_statement(event_type, head, size, flavour, flags)
        self._numbers = False
        return sink

    def _see_statement(
        self, event_type: int, head: bytes, size: int, flavour: Flavour, flags: int
    ) -> Sink | None:
        text = head[query_layout(event_type, head, 0)[2] :]
        first = _FIRST.match(text) if event_type != EventType.QUERY_COMPRESSED else None
        if first is not None and first[1].upper() in _CHANGE_BYTES:
            self._has_changes = True
            if not self._names or (size == len(head) and not self.named(text)):
                return None
        return super().see(event_type, head, size, flavour, flags)

    def look(self, begun: StatementText, writing: Writing, /) -> Sink | None:
        """See `TextWatcher`."""
        head = writing.clear(begun.text, cut=begun.cut)
        words = head.keywords()
        if not words or words[0] not in _DEFINE | _CHANGE | {_RENAME}:
            return None
        self._has_changes |= words[0] in _CHANGE
        if not self._names and words[0] in _CHANGE:
            return None
        return _Text(self, begun, writing, head, words, numbers=self._numbers)

    def named(self, data: bytes) -> frozenset[str]:
        """The statements for which one of the names in a text counts."""
        if not self._names:
            return frozenset()
        found = {word.lower() for word in _WORD.findall(data)} & self._names.keys()
        if self._odd:
            if self._odd_ones is None:
                self._odd_ones = re.compile(b"|".join(map(re.escape, self._odd)), re.IGNORECASE)
            found |= {word.lower() for word in self._odd_ones.findall(data)} & self._names.keys()
        return frozenset[str]().union(*(self._names[name] for name in found))

    def add(self, name: str, uses: frozenset[str]) -> bool:
        """From here on, what has this name counts for these statements; whether that is new."""
        key = name.encode().lower()
        before = self._names.get(key, frozenset())
        if uses <= before:
            return False
        if key not in self._names and len(self._names) >= _NAMES_MOST:
            self._knows_all = False
            return False
        self._names[key] = before | uses
        if _WORD.fullmatch(key) is None and key not in self._odd:
            if len(self._odd) < _ODD_MOST:
                self._odd.append(key)
                self._odd_ones = None
            else:
                self._knows_all = False
        return True


class _Text:
    """One statement's text, as it comes."""

    def __init__(
        self,
        watcher: Called,
        begun: StatementText,
        writing: Writing,
        head: StatementHead,
        words: list[str],
        *,
        numbers: bool,
    ) -> None:
        self._watcher, self._begun, self._writing = watcher, begun, writing
        self._head, self._words = head, words
        self._last = b""
        self._patterns = set[re.Pattern[bytes]]()
        self._named = frozenset[str]()
        self._is = {words[0]} | ({_NUMBERS} if numbers else set())

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        text = self._last + data
        if self._words[0] not in _CHANGE:
            self._patterns |= {*_matching(text)}
        if _SELECT.search(text) is not None:
            self._is.add("SELECT")
        self._named |= self._watcher.named(text)
        self._last = text[-_OVERLAP:]

    def close(self, *, whole: bool) -> None:
        """No more bytes follow."""
        watcher, words = self._watcher, self._words
        if not whole:
            watcher.lose()
        if words[0] in _CHANGE:
            is_fill = "DEFAULT" in words
            if self._named & (self._is | ({"INSERT"} if is_fill else set())):
                watcher.note(self._begun, self._writing)
            return
        kind, names = _defined(self._head)
        if kind == "EVENT" or not (kind or self._head.cut):
            return  # no statement uses it: what an event executes is logged by itself
        if words[0] == "CREATE" and kind == "TABLE" and "SELECT" in words:
            if "SELECT" in self._named:
                watcher.note(self._begun, self._writing)
            if "DEFAULT" not in words:
                return
        uses = _used_by(kind, self._patterns) | (
            self._named & _FILL if kind == "TABLE" else self._named
        )
        if uses and not names:
            watcher.lose()
        for name in names:
            watcher.add(name, uses)


def _defined(head: StatementHead) -> tuple[str, list[str]]:
    """The kind of what a definition defines, and the names that it has then.

    For a trigger that is its table.
    """
    tokens = list(_tokens(head))
    kind, begins = "", list[int]()
    for at, (word, _) in enumerate(tokens):
        before = tokens[at - 1][0] if at else ""
        if not kind and word in _KINDS:
            kind = word
            begins += [at + 1] if kind != "TRIGGER" else []
        elif kind == "TRIGGER":
            begins += [at + 1] if word == "ON" and not begins else []
        elif kind == "TABLE" and (word == "TO" or (before == _RENAME and word not in _NOT_NAMES)):
            begins += [at + 1 if word in ("TO", "AS") else at]
    return kind, list(filter(None, (_name(tokens, at) for at in begins)))


def _tokens(head: StatementHead) -> Iterator[tuple[str, str]]:
    """Each word in capitals, "" for what is quoted, and what it is as a name."""
    for match in head.tokens.finditer(head.text):
        kind, found = match.lastgroup, match[0]
        if kind == "quoted":
            yield "", found[1:-1].replace(found[0] * 2, found[0])
        elif kind in ("word", "mark"):
            yield found.upper(), found


def _name(tokens: list[tuple[str, str]], at: int) -> str:
    """The last part of the name that begins here; "" if there is none."""
    while at < len(tokens) and tokens[at][0] in _BEFORE_NAME:
        at += 1
    if tokens[at + 1 : at + 2] and tokens[at + 1][0] == ".":
        at += 2
    return tokens[at][1] if at < len(tokens) else ""
