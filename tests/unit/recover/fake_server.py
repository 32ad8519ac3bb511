"""A target that answers what it was told to: no server is asked."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from binlog2s3.recover.target import Target, TargetFacts
from binlog2s3.server.connection import Server

Rows = Sequence[Mapping[str, Any]]


class FakeServer:
    """Answers by the first key that is part of a statement, or raises that; keeps what it heard."""

    def __init__(self, answers: Mapping[str, Rows | Exception]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []
        self.values: list[Sequence[object]] = []

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        self.asked.append(statement)
        self.values.append(values)
        for part, rows in self.answers.items():
            if part in statement:
                if isinstance(rows, Exception):
                    raise rows
                return [dict(row) for row in rows]
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """There is no connection."""

    def close(self) -> None:
        """There is no connection."""


def fake(answers: Mapping[str, Rows | Exception]) -> Server:
    """As a server, for those who ask one."""
    return cast("Server", FakeServer(answers))


def target_of(facts: TargetFacts, answers: Mapping[str, Rows | Exception] | FakeServer) -> Target:
    """A target that is so, and answers so."""
    server = answers if isinstance(answers, FakeServer) else FakeServer(answers)
    return Target(cast("Server", server), facts)


NOTE_DATABASE = "binlog2s3_recovery_0123456789abcdef"
_NO_RUN = {"asked": "", "reached": "", "started": "", "begun": "", "since": "", "settings": ""}


def note_of(
    facts: TargetFacts, run: Mapping[str, Any] | None, *, only_tables: str = "", **changes: Any
) -> dict[str, Rows]:
    """The answers of a target that has a note: of this run, with this mark; neither: none."""
    if run is None and not only_tables:
        return {"table_name IN": []}
    server = facts.uuid if facts.flavour == "mysql" else "/var/lib/mysql/"
    row = {"id": 1, "server": server, "made": 1767225600, "only_tables": only_tables}
    row |= {**_NO_RUN, **(run or {}), **changes}
    row["asked"] = hashlib.sha256(row["asked"].encode()).hexdigest() if row["asked"] else ""
    return {
        "table_name IN": [{"db": NOTE_DATABASE, "name": "note", "made": 1767225600}],
        f"`{NOTE_DATABASE}`.note LIMIT": [row],
        "@@datadir": [{"it": "/var/lib/mysql/"}],
    }
