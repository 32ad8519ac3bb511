"""A target that answers what it was told to: no server is asked."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from binlog2s3.server.connection import Server

Rows = Sequence[Mapping[str, Any]]


class FakeServer:
    """Answers a statement by the first key that is part of it; keeps what it was asked."""

    def __init__(self, answers: Mapping[str, Rows]) -> None:
        self.answers = dict(answers)
        self.asked: list[str] = []

    def rows(self, statement: str, values: Sequence[object] = ()) -> list[dict[str, Any]]:
        del values
        self.asked.append(statement)
        for part, rows in self.answers.items():
            if part in statement:
                return [dict(row) for row in rows]
        return []

    def close(self) -> None:
        """There is no connection."""


def fake(answers: Mapping[str, Rows]) -> Server:
    """As a server, for those who ask one."""
    return cast("Server", FakeServer(answers))
