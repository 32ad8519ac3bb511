"""Names and values in SQL: as a statement has them, and as a server answers them. Pure."""

HAS_ROWS = "table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'SEQUENCE')"
"""What information_schema.tables says of a table with rows; two of these types are MariaDB's."""
SYSTEM = ("mysql", "sys", "performance_schema", "information_schema")
"""The databases of the server itself."""


def quoted(name: str) -> str:
    """A name in backquotes, for a statement."""
    return f"`{name.replace('`', '``')}`"


def text_of(value: object) -> str:
    """A value as text: names in the tables of some versions are bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
