"""On what the expression of a generated column, of an index or of a CHECK depends. Pure.

Law: nothing that an expression uses is missed. A string in it that looks like a name counts as one.
"""

import re
from collections.abc import Collection

from binlog2s3.server.sql import quoted

_OF_ZONE = re.compile(r"\b(?:from_unixtime|unix_timestamp)\b", re.IGNORECASE)
_CONVERTS = re.compile(r"\bconvert_tz\(", re.IGNORECASE)
_OFFSET = "'(?:SYSTEM|[+-][0-9]{1,2}:[0-9]{2})'"
_BY_OFFSETS = re.compile(rf",{_OFFSET},{_OFFSET}\)", re.IGNORECASE)
_BYTES = re.compile(r"[\x80-\xff]+")


def mentions(expression: str, columns: Collection[str]) -> bool:
    """Whether an expression, as information_schema has it, uses one of these columns.

    Names are in backquotes, in any case of their letters. In MySQL's answer each byte of a
    character that is not ASCII is a character of Latin-1.
    """
    texts = (expression.lower(), _BYTES.sub(_decoded, expression).lower())
    return any(quoted(name).lower() in text for name in columns for text in texts)


def depends_on_zone(
    expression: str, shown: Collection[str], stored: Collection[str] = frozenset()
) -> bool:
    """Whether the value of an expression depends on the session's time zone.

    `shown`: the columns whose values do, as those of each TIMESTAMP. The seconds of those that are
    `stored` are the same in every zone.
    """
    for name in stored:
        seconds = rf"\bunix_timestamp\({re.escape(quoted(name))}\)"
        expression = re.sub(seconds, "0", expression, flags=re.IGNORECASE)
    return bool(_OF_ZONE.search(expression)) or mentions(expression, shown)


def needs_zone_tables(expression: str) -> bool:
    """Whether the value of an expression of MariaDB may come from its tables of time zones.

    CONVERT_TZ looks in them for all zones but offsets and SYSTEM, and is NULL if they are empty.
    """
    return len(_CONVERTS.findall(expression)) > len(_BY_OFFSETS.findall(expression))


def _decoded(match: re.Match[str]) -> str:
    return match[0].encode("latin-1").decode(errors="replace")
