"""The names of binlogs. Pure."""

import re
from dataclasses import dataclass
from typing import Self

_MOST_BYTES = 200
"""Room for a suffix within the 255 bytes of a file's name."""
_NAME = re.compile(r"(?P<prefix>[^/-][^/]*)\.(?P<number>[0-9]{1,18})")


@dataclass(frozen=True, slots=True, order=True)
class BinlogName:
    """The name of a binlog, `mysql-bin.000001`; ordered by prefix and number, not as text."""

    prefix: str
    number: int
    width: int = 6

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a name. Raises ValueError if no server can have given it.

        Names with control characters, "/" or a leading "-", and very long ones, are refused,
        because names become paths, keys and arguments.
        """
        match = _NAME.fullmatch(text)
        if not match or not text.isprintable() or len(text.encode()) > _MOST_BYTES:
            raise ValueError(f"not the name of a binlog: {text!r:.{_MOST_BYTES}}")
        digits = match["number"]
        return cls(match["prefix"], int(digits), len(digits))

    def __str__(self) -> str:
        return f"{self.prefix}.{self.number:0{self.width}d}"

    def next(self) -> Self:
        """The name that the server gives to the binlog after this one."""
        number = self.number + 1
        return type(self)(self.prefix, number, max(self.width, len(str(number))))
