"""What uploads have done, and how many full chunks to send at a time.

Place in the flow: the uploader counts, the reporter reads. Pure.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class Counts:
    """Since an uploader began: what it sent, made durable and archived, requests that failed.

    `acts`: requests that brought bytes, or an entry, into the bucket.
    """

    sent_bytes: int = 0
    durable_bytes: int = 0
    archived_binlogs: int = 0
    acts: int = 0
    failures: int = 0
    last_error: tuple[datetime, str] | None = None


class ChunkPace:
    """How many full chunks are sent at a time: over a slow link few, so that each arrives soon.

    Seven that share a link arrive together, and until then none of them is durable.
    """

    def __init__(self, workers: int, flush_interval: float) -> None:
        self._greatest = max(1, workers - 1)
        self._least = min(2, self._greatest)
        self._soon = 2 * flush_interval
        self.most = self._greatest

    def took(self, seconds: float) -> None:
        """Learn from one that has arrived."""
        if seconds > self._soon:
            self.most = max(self._least, self.most - 1)
        elif seconds < self._soon / 2:
            self.most = min(self._greatest, self.most + 1)
