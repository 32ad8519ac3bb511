"""What somebody put under keys of the archive before the streamer writes there.

Law: under a key where a reader could not tell what the streamer writes from what was there before,
nothing is written. A bucket without Object Lock keeps nothing that was deleted, and costs one
request.
"""

from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.errors import StoreError
from binlog2s3.log import Log
from binlog2s3.store.contract import ObjectVersion, Store
from binlog2s3.stream.upload_counts import Counts

_log = Log("plants")
_MOST_SHOWN = 5


class Plants:
    """Looks for versions under keys that are not written yet. `counts` gets those that have some.

    Any thread may call the methods.
    """

    def __init__(self, store: Store, layout: Layout, counts: Counts) -> None:
        self._store = store
        self._layout = layout
        self._counts = counts
        self._is_denied = False

    def in_lineage(self, lineage: str) -> bool:
        """Whether there was anything of a lineage that is to be new."""
        found = self._kept(f"{self._layout.archive}{lineage}/")
        return self._told(found)

    def turns(self, after: int) -> frozenset[int]:
        """The numbers of turns after this one that were used before."""
        found = {one: self._layout.turn_number(one.key) for one in self._kept(self._layout.turns)}
        numbers = {one: number for one, number in found.items() if number and number > after}
        self._told([*numbers])
        return frozenset(numbers.values())

    def hide_entry(self, key: str) -> bool:
        """Whether an entry under this key could be taken for one that was there before it.

        What is older than the document that is always written before it is not in question.
        """
        found = [one for one in self._of(key) if one.size is not None]
        if not self._told(found):
            return False
        before = Evidence(self._store, self._layout.sources).before(key)
        put = [one.at for one in self._of(before) if one.size is not None] if before else []
        return not put or any(one.at >= min(put) for one in found)

    def _of(self, key: str) -> list[ObjectVersion]:
        return [one for one in self._kept(key) if one.key == key]

    def _kept(self, prefix: str) -> list[ObjectVersion]:
        try:
            return [*self._store.kept(prefix)]
        except StoreError as error:
            if error.transient:
                raise
            if not self._is_denied:
                self._is_denied = True
                _log.warning(
                    "not looked for what somebody put there before",
                    prefix=prefix,
                    error=error,
                    hint="the bucket has Object Lock: allow s3:ListBucketVersions",
                )
            return []

    def _told(self, found: list[ObjectVersion]) -> bool:
        """Log each of these keys once; whether there are any."""
        for key in sorted({one.key for one in found} - self._counts.planted)[:_MOST_SHOWN]:
            versions = [str(one) for one in found if one.key == key]
            _log.warning(
                "somebody wrote under this key before the streamer did",
                key=key,
                versions=", ".join(versions[:_MOST_SHOWN]),
                hint="who has keys of this bucket? docs/guides/bucket.md",
            )
        self._counts.planted |= {one.key for one in found}
        return bool(found)
