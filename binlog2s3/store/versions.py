"""Which version of each object counts, and how long it is kept, where a bucket has Object Lock.

What is below `archive/` is written once. Object Lock keeps it, even if somebody overwrites or
deletes it later; it also keeps what somebody put there before it was written. So of versions
that differ, the oldest is not right as such: `Evidence` decides, or the operator.

Law: of versions that differ, none is read unless the others are shown to be wrong. An object that
is hidden by a delete marker, and that no lock keeps any more, was deleted. One that a lock keeps is
read, and `replaced` names it. A bucket without Object Lock costs one request.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Literal, Protocol

from binlog2s3.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
    UnsupportedError,
    VersionConflictError,
)
from binlog2s3.formatting import count_text, some
from binlog2s3.store.contract import NO_VERSION, ObjectInfo, ObjectVersion, Picks
from binlog2s3.store.errors import UnsetError
from binlog2s3.store.requests import Answer, needed, onward

Ask = Callable[..., Answer]
"""Makes one request, with retries: the operation, the key, and its parameters."""


_MOST_NAMED = 3
_MOST_SHOWN = 5
_MOST_COMPARED = 64
_DEEPEST = 32

Rule = Literal["document", "binlog", "cache", "rewritten", "foreign"]
"""How a key is written: a document or a binlog once; a cache, which nobody has to read; a document
that may be put again; or by somebody else."""


class Evidence(Protocol):
    """What the archive's format says of its keys. The methods may read other keys of the store."""

    def rule(self, key: str) -> Rule:
        """How the objects of this key are written."""

    def most(self, key: str) -> int:
        """How many bytes a document under this key has at most."""

    def meaning(self, key: str, data: bytes) -> object | None:
        """What a document says, without what may differ if it is written again.

        None if it is no document of this key.
        """

    def describes(self, key: str, data: bytes) -> Mapping[str, tuple[int, int]]:
        """Size and CRC64NVME of each object that a document describes, by key."""

    def described_by(self, key: str) -> str | None:
        """The key of the document that describes the object of this key."""

    def before(self, key: str) -> str | None:
        """The key that is always written before this one; None if there is none."""

    def is_growing(self, key: str) -> bool:
        """Whether the bucket has chunks of the binlog that the object of this key is of."""


class Contents(Protocol):
    """Reads one version of an object."""

    def read(self, key: str, version: str, most: int) -> bytes:
        """All of it. Raises ObjectTooLargeError."""

    def crc64(self, key: str, version: str, size: int) -> int:
        """Its CRC64NVME: the store's, or of the bytes."""


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


@dataclass(slots=True, kw_only=True)
class ChosenVersions:
    """Chooses the version of each object that counts, below a prefix.

    `replaced`: keys whose current state is another version. `preceded`: keys that had another
    version before the chosen one. `is_locked` says whether the bucket has Object Lock; it is asked
    once. Keys that were listed are not asked for again.
    """

    below: str
    ask: Ask
    is_locked: Callable[[], bool]
    contents: Contents
    evidence: Evidence | None = None
    picks: Picks = field(default_factory=Picks)
    replaced: set[str] = field(default_factory=set)
    preceded: set[str] = field(default_factory=set)
    _known: dict[str, ObjectVersion] = field(default_factory=dict)
    _decided: dict[str, tuple[tuple[str, ...], ObjectVersion]] = field(default_factory=dict)
    _locked: bool | None = None

    def apply_to(self, key: str) -> bool:
        """Whether versions count under this key or prefix."""
        if not key.startswith(self.below):
            return False
        if self._locked is None:
            try:
                self._locked = self.is_locked()
            except StoreError:  # it may not be asked: then nothing is known of versions
                self._locked = False
        return self._locked

    def of(self, key: str) -> str:
        """The version to read.

        Raises ObjectMissingError if there is no object, VersionConflictError if nothing decides.
        """
        if key not in self._known:
            found = self._find(key, 0)
            if found is None:
                raise ObjectMissingError(f"there is no object {key!r}")
            self._known[key] = found
        return self._known[key].version

    def objects(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """The chosen versions below a prefix, in key order, after `start_after`.

        Where nothing decides, there is an object: the oldest version, which cannot be read.
        """
        for key, group in groupby(versions_below(self.ask, prefix, start_after), _key):
            versions = list(group)
            self._known.pop(key, None)
            try:
                found = self._choose(key, versions, 0)
            except VersionConflictError:  # raised again where the object is needed
                found = [version for version in versions if version.size is not None][-1]
            else:
                if found is not None:
                    self._known[key] = found
            if found is None or found.size is None:
                continue
            if key.encode() > start_after.encode():
                yield ObjectInfo(
                    key=key,
                    size=found.size,
                    etag=found.etag,
                    crc64=None,
                    storage_class=found.storage_class,
                    last_modified=found.at,
                )

    def names(self, prefix: str) -> Iterator[str]:
        """The next level of the keys below `prefix`, in order."""
        found: set[str] = set()
        for page in _pages(self.ask, Prefix=prefix, Delimiter="/"):
            found |= {str(item["Key"]) for item in page.get("Versions", ())}
            found |= {str(item["Prefix"]) for item in page.get("CommonPrefixes", ())}
        yield from sorted(name.removeprefix(prefix) for name in found)

    def _find(self, key: str, depth: int) -> ObjectVersion | None:
        """The version of this key that counts; None if there is no object."""
        if key in self._known:
            return self._known[key]
        return self._choose(key, versions_of(self.ask, key), depth)

    def _choose(
        self, key: str, versions: Sequence[ObjectVersion], depth: int
    ) -> ObjectVersion | None:
        """Of all versions of a key, newest first; None if the object was deleted.

        `depth`: how many keys that come after it in order wait for this answer.
        """
        objects = [version for version in versions if version.size is not None]
        picked = self.picks.versions.get(key)
        if not objects or picked == NO_VERSION:
            return None
        if picked is not None:
            return _picked(key, picked, objects)
        rule = self.evidence.rule(key) if self.evidence is not None else "document"
        is_hidden = versions[0].size is None
        if rule == "rewritten":
            return None if is_hidden else objects[0]
        if is_hidden and not any(map(self._is_kept, reversed(objects))):
            return None
        if rule == "foreign" or len({_content(version) for version in objects}) == 1:
            chosen = objects[-1]
        elif rule == "cache":
            return None
        else:
            chosen = self._one_of(key, objects, rule, depth)
        if is_hidden and not self._is_kept(chosen):
            return None
        if is_hidden and self.evidence is not None and self.evidence.is_growing(key):
            raise _conflict(
                f"{key!r} was put and deleted, a lock keeps it, and the bucket has chunks of its "
                "binlog, which is not archived then",
                key,
                objects,
            )
        if _content(chosen) != _content(objects[-1]):
            self.preceded.add(key)
        elif chosen is not versions[0]:
            self.replaced.add(key)
        return chosen

    def _one_of(
        self, key: str, objects: Sequence[ObjectVersion], rule: Rule, depth: int
    ) -> ObjectVersion:
        """The version that counts, of several that may differ. Raises VersionConflictError."""
        ids = tuple(version.version for version in objects)
        before = self._decided.get(key)
        if before is None or before[0] != ids:
            decide = self._decide_binlog if rule == "binlog" else self._decide_document
            before = self._decided[key] = (ids, decide(key, objects, depth))
        return before[1]

    def _decide_binlog(
        self, key: str, objects: Sequence[ObjectVersion], depth: int
    ) -> ObjectVersion:
        """The binlog that its entry describes."""
        evidence = self.evidence
        entry = evidence.described_by(key) if evidence is not None else None
        found = self._find(entry, depth) if entry is not None else None
        if evidence is None or entry is None or found is None:
            raise _conflict(f"versions of {key!r} differ, and it has no entry", key, objects)
        data = self.contents.read(entry, found.version, evidence.most(entry))
        described = evidence.describes(entry, data).get(key)
        for version in reversed(objects):
            if self._is(version, described):
                return version
        raise _conflict(
            f"versions of {key!r} differ, and none is the one that its entry describes",
            key,
            objects,
        )

    def _is(self, version: ObjectVersion, described: tuple[int, int] | None) -> bool:
        """Whether a version has the size and the CRC64NVME that a document says."""
        if described is None or version.size is None or version.size != described[0]:
            return False
        return self.contents.crc64(version.key, version.version, version.size) == described[1]

    def _decide_document(
        self, key: str, objects: Sequence[ObjectVersion], depth: int
    ) -> ObjectVersion:
        """The only document that can be the one that was written once.

        1. Where the operator says so, what was put later does not count.
        2. What is no document of this key does not count. Of those that say the same, the oldest.
        3. What describes a binlog that is not there does not count.
        4. What is older than the document that is always written before it does not count.
        """
        left = [version for version in objects if self._is_before(version)]
        documents = self._documents(key, left)
        if left and not documents:
            return objects[-1]
        if len(documents) == 1:
            return documents[0]
        documents = self._described(key, documents) or documents
        if len(documents) > 1 and (least := self._put_before(key, depth)) is not None:
            documents = [version for version in documents if version.at >= least]
        if len(documents) == 1:
            return documents[0]
        raise _conflict(
            f"versions of {key!r} differ, and nothing shows which one is right", key, objects
        )

    def _is_before(self, version: ObjectVersion) -> bool:
        return self.picks.before is None or version.at < self.picks.before

    def _documents(self, key: str, versions: Sequence[ObjectVersion]) -> list[ObjectVersion]:
        """The documents, oldest first; of those that say the same, the oldest one."""
        oldest = [*{_content(version): version for version in versions}.values()]
        oldest.sort(key=versions.index, reverse=True)
        evidence = self.evidence
        if evidence is None or len(oldest) > _MOST_COMPARED:
            return oldest
        found: list[tuple[object, ObjectVersion]] = []
        for version in oldest:
            with suppress(ObjectTooLargeError):
                data = self.contents.read(key, version.version, evidence.most(key))
                meaning = evidence.meaning(key, data)
                if meaning is not None and all(meaning != other for other, _ in found):
                    found.append((meaning, version))
        return [version for _, version in found]

    def _described(self, key: str, versions: Sequence[ObjectVersion]) -> list[ObjectVersion]:
        """Those that describe a version of an object that is there; all if they describe none."""
        evidence = self.evidence
        if evidence is None:
            return [*versions]
        found = []
        for version in versions:
            described = evidence.describes(
                key, self.contents.read(key, version.version, evidence.most(key))
            )
            if not described:
                return [*versions]
            is_there = all(
                any(
                    self._is(other, size_and_crc64)
                    for other in versions_of(self.ask, described_key)
                )
                for described_key, size_and_crc64 in described.items()
            )
            found += [version] if is_there else []
        return found

    def _put_before(self, key: str, depth: int) -> datetime | None:
        """When the document was put that is always written before this one; None if unknown."""
        before = self.evidence.before(key) if self.evidence is not None else None
        if before is None or depth >= _DEEPEST:
            return None
        found = self._find(before, depth + 1)
        return found.at if found is not None else None

    def _is_kept(self, version: ObjectVersion) -> bool:
        """Whether Object Lock keeps a version now. If that may not be asked, it counts as kept."""
        try:
            hold = hold_on(self.ask, version.key, VersionId=version.version)
        except StoreError:
            return True
        return hold.keeps(datetime.now(UTC))


def versions_below(ask: Ask, prefix: str, start_after: str = "") -> Iterator[ObjectVersion]:
    """All versions and delete markers, by key, the newest of each key first."""
    params = {"KeyMarker": start_after} if start_after else {}
    for page in _pages(ask, Prefix=prefix, **params):
        found = [*_objects(page.get("Versions", ())), *_markers(page.get("DeleteMarkers", ()))]
        found.sort(key=lambda version: (version.latest, version.at), reverse=True)
        found.sort(key=lambda version: version.key.encode())
        yield from found


def versions_of(ask: Ask, key: str) -> list[ObjectVersion]:
    """All versions and delete markers of one key, the newest first."""
    for found, group in groupby(versions_below(ask, key), _key):
        return list(group) if found == key else []
    return []


def _pages(ask: Ask, **params: Any) -> Iterator[Answer]:
    while True:
        page = ask("list_object_versions", "", **params)
        yield page
        if not page.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": needed(page, "NextKeyMarker"),
            "VersionIdMarker": page.get("NextVersionIdMarker", ""),
        }
        params |= onward(params, marker)


def _key(version: ObjectVersion) -> str:
    return version.key


def _content(version: ObjectVersion) -> tuple[int | None, str]:
    """The same for versions of the same bytes, for which an ETag is enough to know it."""
    return version.size, version.etag


def _picked(key: str, picked: str, objects: Sequence[ObjectVersion]) -> ObjectVersion:
    for version in objects:
        if version.version == picked:
            return version
    raise _conflict(f"{key!r} has no version {picked!r:.100}", key, objects)


def _conflict(what: str, key: str, objects: Sequence[ObjectVersion]) -> VersionConflictError:
    return VersionConflictError(
        f"{what}: {some(objects[::-1], _MOST_SHOWN)}",
        hint="somebody else has written below archive/: look at each version, then choose with "
        f"--object-version {key}=ID; {NO_VERSION} in place of the id: none of them counts; "
        "--versions-before TIME: where versions differ, none counts that was put later",
    )


def version_notes(replaced: Collection[str], preceded: Collection[str]) -> list[str]:
    """What to say of objects that are not read in their newest, or in their oldest version."""
    found = []
    if replaced:
        found.append(
            f"somebody replaced or deleted {count_text(len(replaced), 'object')}; Object Lock "
            f"keeps their oldest versions, which are used: {some(sorted(replaced), _MOST_NAMED)}"
        )
    if preceded:
        found.append(
            f"somebody put other versions of {count_text(len(preceded), 'object')} before they "
            f"were written; those do not count: {some(sorted(preceded), _MOST_NAMED)}"
        )
    return found


def _objects(items: Iterable[Mapping[str, Any]]) -> Iterator[ObjectVersion]:
    for item in items:
        yield ObjectVersion(
            key=str(needed(item, "Key")),
            version=str(needed(item, "VersionId")),
            at=needed(item, "LastModified").astimezone(UTC),
            latest=bool(item.get("IsLatest")),
            size=int(needed(item, "Size")),
            etag=str(item.get("ETag") or "").strip('"'),
            storage_class=item.get("StorageClass") or "STANDARD",
        )


def _markers(items: Iterable[Mapping[str, Any]]) -> Iterator[ObjectVersion]:
    for item in items:
        yield ObjectVersion(
            key=str(needed(item, "Key")),
            version=str(needed(item, "VersionId")),
            at=needed(item, "LastModified").astimezone(UTC),
            latest=bool(item.get("IsLatest")),
        )
