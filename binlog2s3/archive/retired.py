"""The document that says that a source has ended, so that it raises no more alarms. Pure.

`prune --retire` writes it. A writer that was alive later overrides it.
"""

from dataclasses import dataclass
from typing import ClassVar

from binlog2s3.archive.codec import Document, Moment, SourceName


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired(Document):
    """A source that has ended, as its operator said then: retired.json in the bucket."""

    source: SourceName
    retired_at: Moment

    MOST: ClassVar[int] = 1 << 20

    @property
    def place(self) -> tuple[str, ...]:
        return ("archive", self.source, "retired.json")
