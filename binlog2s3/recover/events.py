"""Which events of the source were enabled: a replica disables those whose definition it receives.

Law: a status is known only if the base backup or a statement of the source itself says it, and
every statement on that event since was understood. What is unknown stays disabled.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal, TypeAlias

from binlog2s3.binlog.content import statement_in
from binlog2s3.binlog.events import HEADER_SIZE, EventType
from binlog2s3.binlog.statements import Statement
from binlog2s3.binlog.tables import database_name
from binlog2s3.binlog.walk import HEAD_MOST, UNDECODABLE, EventSplitter, wanted_types
from binlog2s3.recover.extract import headed
from binlog2s3.recover.model import Checked, Stream
from binlog2s3.server.connection import Server
from binlog2s3.server.sql import quoted

Status = Literal["enabled", "disabled", "replica", "unknown"]
"""`replica`: as a replica disables it."""
Name: TypeAlias = tuple[str, str]
"""Database and event; the event's name folded, as servers compare it."""
_STATUS: Mapping[str, Status] = {"ENABLED": "enabled", "DISABLED": "disabled"}
_WORDS: Mapping[str, Status] = {"ENABLE": "enabled", "DISABLE": "disabled"}
_WANTED = wanted_types(EventType.QUERY, EventType.QUERY_COMPRESSED)
_HEAD = Struct("<4xBI")
_MENTIONS = re.compile(rb"event|drop", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Event:
    """An event of a server, and its status."""

    database: str
    name: str
    definer: str
    status: Status

    @property
    def key(self) -> Name:
        return self.database, self.name.casefold()

    def statement(self, status: Status) -> str:
        """The statement that gives it this status, and leaves it its definer."""
        user, _, host = self.definer.rpartition("@")
        word = "ENABLE" if status == "enabled" else "DISABLE"
        return (
            f"ALTER DEFINER={quoted(user)}@{quoted(host)} EVENT {quoted(self.database)}."
            f"{quoted(self.name)} {word}"
        )


def events_of(server: Server) -> tuple[Event, ...]:
    """The events of a server. Raises SourceError."""
    rows = server.rows(
        "SELECT event_schema AS db, event_name AS name, definer AS definer, status AS status "
        "FROM information_schema.events ORDER BY 1, 2"
    )
    return tuple(
        Event(
            str(row["db"]),
            str(row["name"]),
            str(row["definer"]),
            _STATUS.get(str(row["status"]), "replica"),
        )
        for row in rows
    )


def disabled(server: Server) -> tuple[str, ...]:
    """Statements that enable the events that a replica disables. Raises SourceError."""
    events = (event for event in events_of(server) if event.status == "replica")
    return tuple(f"{event.statement('enabled')};" for event in events)


def give(server: Server, event: Event, status: Status) -> None:
    """Give an event this status, and leave it what its names and texts mean. Raises SourceError.

    ALTER EVENT gives it the character set and the collation of the session. They are set before it
    if the statement has only ASCII characters, which are the same in each of them.
    """
    statement = event.statement(status)
    if not statement.isascii():
        server.rows(statement)
        return
    for row in server.rows(
        "SELECT event_schema AS db, event_name AS name, character_set_client AS client, "
        "collation_connection AS collation FROM information_schema.events"
    ):
        if (row["db"], row["name"]) == (event.database, event.name):
            client, collation = quoted(str(row["client"])), quoted(str(row["collation"]))
            server.rows(f"SET character_set_client = {client}, collation_connection = {collation}")
    try:
        server.rows(statement)
    finally:
        server.rows("SET NAMES utf8mb4")


class Statuses:
    """The status of each event on the source, from those of the base backup on."""

    def __init__(self, before: Iterable[Event]) -> None:
        self._known: dict[Name, Status] = {event.key: event.status for event in before}
        self._is_lost = False

    def of(self, event: Event) -> Status:
        """The status that the source had given it."""
        return "unknown" if self._is_lost else self._known.get(event.key, "unknown")

    def look(self, stream: Stream, server_id_of: Mapping[tuple[str, str], int | None]) -> None:
        """Take in all statements of a history; `server_id_of`: the source's own, by binlog.

        Raises what reading raises.
        """
        for piece, data in stream:
            own = server_id_of.get((piece.lineage, str(piece.binlog)))
            for server_id, statement in _statements(data):
                if statement is None:
                    self._is_lost = True
                else:
                    self.take(statement, is_own=own is None or server_id == own)

    def take(self, statement: Statement, *, is_own: bool) -> None:
        """Take in one statement; not `is_own`: the source, as a replica, had received it."""
        if statement.word == "DROP" and statement.tables[0].endswith(".*"):
            gone = statement.tables[0]
            self._known = {
                k: status for k, status in self._known.items() if database_name(k[0]) != gone
            }
            return
        if statement.word not in ("CREATE", "ALTER", "DROP"):
            return
        said = _said(statement)
        if said is None:
            return
        if said.name is None:
            self._is_lost = True
            return
        if statement.word == "DROP":
            self._known.pop(said.name, None)
        elif statement.word == "CREATE":
            if not (said.if_not_exists and said.name in self._known):
                status = said.status or "enabled"
                self._known[said.name] = status if is_own or status == "unknown" else "replica"
        else:
            status = said.status or self._known.get(said.name, "unknown")
            self._known.pop(said.name, None)
            is_known = is_own or status == "unknown"
            self._known[said.renamed or said.name] = status if is_known else "replica"


@dataclass(frozen=True, slots=True)
class _Said:
    """What a statement says of an event; `name` is None if it cannot be told apart."""

    name: Name | None
    renamed: Name | None = None
    status: Status | None = None
    if_not_exists: bool = False


def _said(statement: Statement) -> _Said | None:
    """What a CREATE, ALTER or DROP says of an event; None if it is on something else."""
    clear = statement.clear
    tokens = [
        (match.lastgroup or "", match[0])
        for match in clear.tokens.finditer(clear.text)
        if match.lastgroup != "space"
    ]
    words = [text.upper() if kind == "word" else " " for kind, text in tokens]
    at = _kind_at(words)
    if at is None:
        return None if not clear.cut or len(words) > _BEFORE_KIND else _Said(None)
    if words[at] != "EVENT":
        return None
    at += 1
    if_not_exists = words[at : at + 3] == ["IF", "NOT", "EXISTS"]
    while words[at : at + 1] and words[at] in ("IF", "NOT", "EXISTS"):
        at += 1
    name, at = _name_at(tokens, at, statement.db)
    if name is None or statement.word == "DROP":
        return _Said(name)
    renamed, status = None, None
    is_whole = not clear.cut
    while at < len(words):
        word = words[at]
        if word == "DO":
            is_whole = True
            break
        if word == "RENAME" and words[at + 1 : at + 2] == ["TO"]:
            renamed, at = _name_at(tokens, at + 2, statement.db)
            if renamed is None:
                return _Said(None)
            continue
        if word in _WORDS:
            is_replica = words[at + 1 : at + 2] == ["ON"]  # DISABLE ON SLAVE, ON REPLICA
            status = "replica" if is_replica else _WORDS[word]
        at += 1
    return _Said(name, renamed, status if is_whole else "unknown", if_not_exists)


_BEFORE_KIND = 40
"""The kind of what a statement defines comes within so many tokens."""
_KINDS = frozenset({"EVENT", "PROCEDURE", "FUNCTION", "TRIGGER", "VIEW", "TABLE", "USER", "ROLE",
                    "INDEX", "DATABASE", "SCHEMA", "SERVER", "SEQUENCE", "PACKAGE", "TABLESPACE",
                    "INSTANCE", "LOGFILE", "SPATIAL", "UNDO", "RESOURCE", "AGGREGATE"})  # fmt: skip


def _kind_at(words: Sequence[str]) -> int | None:
    """Where the kind of the thing is: after DEFINER = user, and the like."""
    return next((at for at, word in enumerate(words[1:_BEFORE_KIND], 1) if word in _KINDS), None)


def _name_at(tokens: Sequence[tuple[str, str]], at: int, db: str) -> tuple[Name | None, int]:
    """The name at this token, and where it ends; None if there is none."""
    parts = list[str]()
    while at < len(tokens) and len(parts) < 2:
        kind, text = tokens[at]
        if kind == "word":
            parts.append(text)
        elif kind == "quoted" and len(text) > 2 and text[-1] == text[0]:
            parts.append(text[1:-1].replace(text[0] * 2, text[0]))
        else:
            return None, at
        at += 1
        if tokens[at : at + 1] != [("mark", ".")] or len(parts) == 2:
            break
        at += 1
    if not parts or (at >= len(tokens) and len(parts) == 1 and not db):
        return None, at
    database, name = (db, *parts)[-2:]
    return ((database, name.casefold()) if database else None), at


def _statements(data: Iterator[Checked]) -> Iterator[tuple[int, Statement | None]]:
    """The statements of a binlog that may be on events, with their server's id.

    None: one that mentions an event and cannot be parsed.
    """
    _, form = headed(data)
    splitter = EventSplitter(most=HEADER_SIZE + HEAD_MOST, wanted=_WANTED)
    for checked in data:
        for part in splitter.feed(checked.data):
            if not part.size:
                continue
            event_type, server_id = _HEAD.unpack_from(part.data)
            body = bytes(part.data[HEADER_SIZE : part.size - form.trailer])
            is_compressed = event_type == EventType.QUERY_COMPRESSED
            if not is_compressed and _MENTIONS.search(body) is None:
                continue
            try:
                statement = statement_in(event_type, body, form.flavour)
            except UNDECODABLE:
                yield server_id, None
                continue
            if statement is not None:
                yield server_id, statement
