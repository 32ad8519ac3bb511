"""The settings of a bucket: versioning, lifecycle rules, retention, clock, old versions.

No foreign exception leaves. The settings of a bucket are never changed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from binlog2s3.errors import ObjectMissingError, UnsupportedError
from binlog2s3.store.errors import UnsetError
from binlog2s3.store.requests import Answer, date_in
from binlog2s3.store.versions import Ask, Hold, hold_on


class BucketSettings:
    """Questions about a bucket's settings. Each raises StoreError, also if it is denied.

    `ask` makes a request. `version`: which version of an object is read, as a parameter of
    requests; none: the newest.
    """

    def __init__(self, ask: Ask, version: Callable[[str], dict[str, str]]) -> None:
        self._ask_of = ask
        self._version = version

    def clock(self, prefix: str) -> datetime | None:
        """The store's clock in whole seconds, from the answer to a listing; None if it has none."""
        return date_in(self._ask("list_objects_v2", Prefix=prefix, MaxKeys=1))

    def versioning(self) -> str:
        """Enabled, Suspended, or "" if it was never enabled."""
        return str(self._ask("get_bucket_versioning").get("Status") or "")

    def lifecycle(self) -> Sequence[Mapping[str, Any]]:
        """The lifecycle rules in S3's form; none if there is no configuration."""
        try:
            return list(self._ask("get_bucket_lifecycle_configuration").get("Rules") or ())
        except UnsetError:
            return ()

    def default_retention(self) -> str:
        """How long Object Lock keeps new objects, in words; "" if it does not."""
        try:
            answer = self._ask("get_object_lock_configuration")
        except UnsetError:
            return ""
        rule = (answer.get("ObjectLockConfiguration") or {}).get("Rule") or {}
        kept = rule.get("DefaultRetention") or {}
        units = (("Days", "days"), ("Years", "years"))
        spans = [f"{kept[name]} {unit}" for name, unit in units if kept.get(name)]
        return " ".join([str(kept.get("Mode") or ""), *spans]).strip()

    def has_object_lock(self) -> bool:
        """Whether the bucket has Object Lock: then it can keep objects, whatever is deleted."""
        try:
            answer = self._ask("get_object_lock_configuration")
        except (UnsetError, UnsupportedError):
            return False
        found = answer.get("ObjectLockConfiguration") or {}
        return found.get("ObjectLockEnabled") == "Enabled"

    def now(self, here: datetime, prefix: str) -> datetime:
        """The earlier of this machine's time and the store's: nothing looks older than it is."""
        return min(here, self.clock(prefix) or here)

    def holds(self) -> Callable[[str], Hold] | None:
        """How Object Lock keeps a key; None if the bucket has none."""
        return self.hold_on if self.has_object_lock() else None

    def hold_on(self, key: str) -> Hold:
        """How Object Lock keeps the version of an object that is read."""
        try:
            version = self._version(key)
        except ObjectMissingError:
            return Hold()
        return hold_on(self._ask_of, key, **version)

    def versions(self, prefix: str) -> list[tuple[str, str]]:
        """Key and version id of all versions and delete markers below a prefix (one page)."""
        answer = self._ask("list_object_versions", Prefix=prefix)
        return [
            (str(item["Key"]), str(item["VersionId"]))
            for kind in ("Versions", "DeleteMarkers")
            for item in answer.get(kind) or ()
            if item.get("Key") and item.get("VersionId")
        ]

    def delete_versions(self, versions: Iterable[tuple[str, str]]) -> None:
        """Delete these versions permanently; raise at the first failure."""
        for key, version in versions:
            self._ask_of("delete_object", key, VersionId=version)

    def _ask(self, operation: str, **params: Any) -> Answer:
        return self._ask_of(operation, "", **params)
