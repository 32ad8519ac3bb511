"""The limits of the streamer's account, judged.

Place in the flow: `source` asks for them, this judges, for `check`.

Law: pure. They are read and not tried: what a check used up, a streamer that runs would not have.
"""

import re
from collections.abc import Mapping

from binlog2s3.inspect.check.row import Row, fail, ok, skipped, warn

NAME = "account limits"
CONNECTIONS = 3
"""What a streamer holds at once: mysqlbinlog's connection, that of the stream and of its watch."""
QUERIES_PER_HOUR = 7200
"""It asks every two seconds: where the server stands, and whether it is read-only."""

_AMPLE = {"MAX_USER_CONNECTIONS": 2 * CONNECTIONS, "MAX_CONNECTIONS_PER_HOUR": 1200,
          "MAX_QUERIES_PER_HOUR": 2 * QUERIES_PER_HOUR}  # fmt: skip
_LEAST = {"MAX_USER_CONNECTIONS": CONNECTIONS, "MAX_CONNECTIONS_PER_HOUR": CONNECTIONS,
          "MAX_QUERIES_PER_HOUR": QUERIES_PER_HOUR}  # fmt: skip
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`[^`]*`|\"[^\"]*\"", re.DOTALL)
_LIMIT = re.compile(rf"\b({'|'.join(_LEAST)}) ([0-9]{{1,10}})\b")


def limits_of(statement: str) -> dict[str, int]:
    """The limits in what SHOW CREATE USER or SHOW GRANTS answers; 0 is none.

    What is quoted there is the account's name, its password's hash or a comment.
    """
    found = _LIMIT.findall(_QUOTED.sub("''", statement))
    return {name: int(number) for name, number in found if int(number)}


def limits_row(limits: Mapping[str, int] | None, account: str) -> Row:
    """Whether a stream can live within these; None: they may not be asked for."""
    if limits is None:
        return skipped("privileges", NAME, "SHOW CREATE USER is denied")
    found = ", ".join(f"{name} {number}" for name, number in limits.items())
    lift = f"ALTER USER {account} WITH {' '.join(f'{name} 0' for name in limits)};"
    if too_low := [name for name, number in limits.items() if number < _LEAST[name]]:
        wants = ", ".join(f"{name} {_LEAST[name]}" for name in too_low)
        return fail("privileges", NAME, f"{found}; a streamer needs at least {wants}", lift)
    if any(number < _AMPLE[name] for name, number in limits.items()):
        hint = (
            "after a broken network the server counts dead connections beside the new ones, and "
            f"each attempt to connect: {lift}"
        )
        return warn("privileges", NAME, f"{found}; enough as long as nothing breaks", hint)
    return ok("privileges", NAME, found or "none")
