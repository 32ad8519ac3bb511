"""The checks of a drill: CHECK TABLE of everything, or the operator's statements."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import some
from binlog2s3.server.connection import Server
from binlog2s3.server.sql import HAS_ROWS, quoted

_TABLES = f"""\
SELECT table_schema AS db, table_name AS name FROM information_schema.tables
WHERE {HAS_ROWS}
AND table_schema NOT IN ('information_schema', 'performance_schema', 'sys')
ORDER BY table_schema, table_name"""  # noqa: S608 - a constant
_NO_CHECK = "doesn't support check"
_GOOD = ("OK", "Table is already up to date")
_MOST_SHOWN = 5
_COMMENT = re.compile(r"/\*(?!!|M!).*?\*/", re.DOTALL)


def check_tables(server: Server) -> int:
    """CHECK TABLE of every table; how many. Raises RecoveryError with those that fail."""
    tables = server.rows(_TABLES)
    bad = [text for row in tables for text in _problems(server, str(row["db"]), str(row["name"]))]
    if bad:
        raise RecoveryError(
            f"CHECK TABLE found {some(bad, _MOST_SHOWN)}",
            hint="the base backup is damaged, or was not made consistently: test an older one",
        )
    return len(tables)


def _problems(server: Server, database: str, table: str) -> Iterator[str]:
    name = f"{quoted(database)}.{quoted(table)}"
    try:
        rows = server.rows(f"CHECK TABLE {name}")
    except SourceError as error:
        yield f"{name}: {error}"
        return
    texts = [(str(row["Msg_type"]).lower(), str(row["Msg_text"])) for row in rows]
    if any(_NO_CHECK in text for _, text in texts):
        return
    wrong = [text for kind, text in texts if kind == "error"]
    wrong += [text for kind, text in texts if kind == "status" and text not in _GOOD]
    if wrong or not any(kind == "status" for kind, _ in texts):
        yield f"{name}: {wrong[0] if wrong else 'no status'}"


def statements_in(path: Path) -> list[str]:
    """The statements of the file --check-sql. Raises RecoveryError if it cannot be used."""
    try:
        statements = statements_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecoveryError(
            f"--check-sql {path} cannot be read: {error}", hint="it must be a text file in UTF-8"
        ) from error
    if not statements:
        raise RecoveryError(
            f"--check-sql {path} has no statement", hint="one ends with ; and a line end"
        )
    return statements


def statements_of(text: str) -> list[str]:
    """The statements of --check-sql: each ends with ; at the end of a line. Comments stay."""
    statements, lines = [], list[str]()
    for line in [*text.splitlines(), ";"]:
        lines.append(line)
        if line.rstrip().endswith(";"):
            statement = "\n".join(lines).strip().rstrip(";").strip()
            if _says_something(statement):
                statements.append(statement)
            lines = []
    return statements


def _says_something(statement: str) -> bool:
    return any(
        line.strip() and not line.lstrip().startswith(("--", "#"))
        for line in _COMMENT.sub("", statement).splitlines()
    )


def check_statements(server: Server, statements: Sequence[str]) -> int:
    """Run the operator's statements; how many. Raises RecoveryError for the first that fails."""
    server.rows("SET SESSION sql_select_limit = 1")  # the others would only take memory
    for number, statement in enumerate(statements, 1):
        try:
            rows = server.rows(statement)
        except SourceError as error:
            raise RecoveryError(f"statement {number} of --check-sql failed: {error}") from error
        first = next(iter(rows[0].values()), None) if rows else None
        if not rows or is_false(first):
            shown = "no row" if not rows else f"{first!r:.60}"
            raise RecoveryError(
                f"statement {number} of --check-sql returned {shown}: {statement!r:.200}",
                hint="a statement must return a first column that is neither 0 nor NULL",
            )
    return len(statements)


def is_false(value: object) -> bool:
    """Whether a value is NULL or 0; a BIT and a binary string come as bytes."""
    if isinstance(value, bytes):
        return value == b"0" or (value != b"" and not value.strip(b"\0"))
    return value in (None, 0, "0")
