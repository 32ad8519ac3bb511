"""The document that says that a source has ended, so that it raises no more alarms. Pure.

`prune --retire` writes it. A writer that was alive later overrides it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Self

from binlog2s3.archive.fields import (
    FORMAT,
    check_place,
    moment,
    parse,
    reading,
    render,
    source_name,
)
from binlog2s3.formatting import iso_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A source that has ended, as its operator said then."""

    source: str
    retired_at: datetime

    MOST: ClassVar[int] = 1 << 20

    def to_json(self) -> bytes:
        """The document retired.json."""
        at = iso_text(self.retired_at)
        return render({"format": FORMAT, "source": self.source, "retired_at": at})

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                source=source_name(document["source"]),
                retired_at=moment(document["retired_at"]),
            )
        check_place(key, "archive", found.source, "retired.json")
        return found
