"""The names of binlogs. Pure."""

import re
from functools import total_ordering
from typing import TYPE_CHECKING, Self

_MOST_BYTES = 200
"""Room for a suffix within the 255 bytes of a file's name."""
_NAME = re.compile(r"(?P<prefix>[^/-][^/]*)\.(?P<number>[0-9]{1,18})")


@total_ordering
class BinlogName:
    """The name of a binlog, `mysql-bin.000001`; ordered by prefix and number, not as text.

    It is one text in documents, so it is no dataclass. It never changes.
    """

    __slots__ = ("number", "prefix", "width")

    def __init__(self, prefix: str, number: int, width: int = 6) -> None:
        self.prefix = prefix
        self.number = number
        self.width = width

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

    if not TYPE_CHECKING:  # so that it is an error of types to compare a name with its text

        def __eq__(self, other: object) -> bool:
            return isinstance(other, BinlogName) and self._key() == other._key()

    def __lt__(self, other: "BinlogName") -> bool:
        return self._key() < other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"BinlogName({str(self)!r})"

    def _key(self) -> tuple[str, int, int]:
        return (self.prefix, self.number, self.width)

    def __str__(self) -> str:
        return f"{self.prefix}.{self.number:0{self.width}d}"

    def next(self) -> Self:
        """The name that the server gives to the binlog after this one."""
        number = self.number + 1
        return type(self)(self.prefix, number, max(self.width, len(str(number))))
