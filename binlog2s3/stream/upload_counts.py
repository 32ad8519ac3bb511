"""What uploads have done, what is on its way, and how many full chunks to send at a time.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTally:
    """What is on its way, counted at one moment; see `status.model.UploadStatus`.

    `failing_since`: when the request failed that is longest without success, by the uploader's
    clock. `oldest_commit_us`: of the oldest transaction that is not durable; `newest_commit_us`: of
    the newest that is.
    """

    binlogs: int = 0
    closed_binlogs: int = 0
    open_uploads: int = 0
    chunks: int = 0
    parts_in_flight: int = 0
    unsaved_bytes: int = 0
    failing_since: float | None = None
    oldest_commit_us: int | None = None
    newest_commit_us: int | None = None


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
