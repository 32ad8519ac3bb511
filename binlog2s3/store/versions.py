"""The oldest version of each object, and how long it is kept, where a bucket has Object Lock.

What is below `archive/` is written once, so of several versions the oldest is right: Object Lock
keeps it, even if the object is overwritten or deleted later.

Law: an object that is hidden by a delete marker, and that no lock keeps any more, was deleted. One
that a lock keeps is read, and `replaced` names it. A bucket without Object Lock costs one request.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from binlog2s3.errors import ObjectMissingError, StoreError, UnsupportedError
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.store.errors import UnsetError
from binlog2s3.store.requests import Answer, needed, onward

Ask = Callable[..., Answer]
"""Makes one request, with retries: the operation, the key, and its parameters."""


_MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class Hold:
    """How Object Lock keeps an object: until a time, or while it has a legal hold; or neither."""

    until: datetime | None = None
    is_legal: bool = False

    def keeps(self, now: datetime) -> bool:
        """Whether the object cannot be deleted now: a plain DELETE would only hide it."""
        return self.is_legal or (self.until is not None and self.until > now)


def hold_on(ask: Ask, key: str, **version: str) -> Hold:
    """How Object Lock keeps a version of an object. Two requests; StoreError if one is denied."""
    until, is_legal = None, False
    unset = (ObjectMissingError, UnsetError, UnsupportedError)
    with suppress(*unset):
        kept = ask("get_object_retention", key, **version).get("Retention") or {}
        found = kept.get("RetainUntilDate")
        until = found.astimezone(UTC) if isinstance(found, datetime) else None
    with suppress(*unset):
        hold = ask("get_object_legal_hold", key, **version).get("LegalHold") or {}
        is_legal = hold.get("Status") == "ON"
    return Hold(until, is_legal)


@dataclass(frozen=True, slots=True)
class _ObjectVersion:
    """A version of an object, or a delete marker, which has no size."""

    key: str
    version: str
    at: datetime
    size: int | None = None
    etag: str = ""
    storage_class: str = "STANDARD"


@dataclass(slots=True)
class OldestVersions:
    """Finds the oldest versions below a prefix. `replaced`: keys whose current state is another.

    `is_locked` says whether the bucket has Object Lock; it is asked once. Keys that were listed are
    not asked for again.
    """

    below: str
    ask: Ask
    is_locked: Callable[[], bool]
    replaced: set[str] = field(default_factory=set)
    _known: dict[str, str] = field(default_factory=dict)
    _locked: bool | None = None

    def apply_to(self, key: str) -> bool:
        """Whether the oldest version counts under this key or prefix."""
        if not key.startswith(self.below):
            return False
        if self._locked is None:
            try:
                self._locked = self.is_locked()
            except StoreError:  # it may not be asked: then nothing is known of versions
                self._locked = False
        return self._locked

    def of(self, key: str) -> str:
        """The version to read. Raises ObjectMissingError if there is no object."""
        if key not in self._known:
            for _ in self.objects(key):
                pass
        if key not in self._known:
            raise ObjectMissingError(f"there is no object {key!r}")
        return self._known[key]

    def objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """The oldest versions below a prefix, in key order, after `start_after`."""
        for key, group in groupby(self._versions(prefix, start_after), key=lambda one: one.key):
            found = self._oldest(list(group))
            if found is None or found.size is None:
                continue
            self._known[key] = found.version
            if key.encode() > start_after.encode():
                yield ObjectInfo(
                    key=key,
                    size=found.size,
                    etag=found.etag,
                    crc64=None,
                    storage_class=found.storage_class,
                    last_modified=found.at,
                )

    def names(self, prefix: str, delimiter: str) -> Iterator[str]:
        """The next level of the keys below `prefix`, in order."""
        found: set[str] = set()
        for page in self._pages(Prefix=prefix, Delimiter=delimiter):
            found |= {str(item["Key"]) for item in page.get("Versions", ())}
            found |= {str(item["Prefix"]) for item in page.get("CommonPrefixes", ())}
        yield from sorted(name.removeprefix(prefix) for name in found)

    def _oldest(self, versions: Sequence[_ObjectVersion]) -> _ObjectVersion | None:
        """Of all versions of a key, newest first; None if the object was deleted."""
        objects = [one for one in versions if one.size is not None]
        if not objects:
            return None
        oldest = objects[-1]
        if versions[0] is not oldest:
            is_hidden = versions[0].size is None
            if is_hidden and not self._is_kept(oldest):
                return None
            self.replaced.add(oldest.key)
        return oldest

    def _is_kept(self, version: _ObjectVersion) -> bool:
        """Whether Object Lock keeps a version now. If that may not be asked, it counts as kept."""
        try:
            hold = hold_on(self.ask, version.key, VersionId=version.version)
        except StoreError:
            return True
        return hold.keeps(datetime.now(UTC))

    def _versions(self, prefix: str, start_after: str) -> Iterator[_ObjectVersion]:
        """All versions and delete markers, by key, the newest of each key first."""
        params = {"KeyMarker": start_after} if start_after else {}
        for page in self._pages(Prefix=prefix, **params):
            found = [*_objects(page.get("Versions", ())), *_markers(page.get("DeleteMarkers", ()))]
            found.sort(key=lambda one: one.at, reverse=True)
            found.sort(key=lambda one: one.key.encode())
            yield from found

    def _pages(self, **params: Any) -> Iterator[Answer]:
        while True:
            page = self.ask("list_object_versions", "", **params)
            yield page
            if not page.get("IsTruncated"):
                return
            marker = {
                "KeyMarker": needed(page, "NextKeyMarker"),
                "VersionIdMarker": page.get("NextVersionIdMarker", ""),
            }
            params |= onward(params, marker)


def replaced_texts(keys: Iterable[str]) -> list[str]:
    """What to say of objects of which the oldest version was read; none if there are none."""
    found = sorted(keys)
    if not found:
        return []
    shown = ", ".join(found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    text = f"somebody replaced or deleted {len(found)} objects; Object Lock keeps their oldest "
    return [f"{text}versions, which are used: {shown}{more}"]


def _objects(items: Iterable[Mapping[str, Any]]) -> Iterator[_ObjectVersion]:
    for item in items:
        yield _ObjectVersion(
            key=str(needed(item, "Key")),
            version=str(needed(item, "VersionId")),
            at=needed(item, "LastModified").astimezone(UTC),
            size=int(needed(item, "Size")),
            etag=str(item.get("ETag") or "").strip('"'),
            storage_class=item.get("StorageClass") or "STANDARD",
        )


def _markers(items: Iterable[Mapping[str, Any]]) -> Iterator[_ObjectVersion]:
    for item in items:
        yield _ObjectVersion(
            key=str(needed(item, "Key")),
            version=str(needed(item, "VersionId")),
            at=needed(item, "LastModified").astimezone(UTC),
        )
