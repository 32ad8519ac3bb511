"""Does what a streamer does, once, for `check`, with objects of its own, and leaves nothing.

Law: objects are put only below `live/<source>/check-<random>/`, which every reader skips.
Everything that was put is deleted again, whatever happens. Nothing is put if it could not be
deleted, or if Object Lock would keep it. No upload is begun that could neither be aborted nor
completed and deleted. A permission that is missing stops only what cannot do without it.

Below `archive/` no object is ever made, because nobody could delete it, or a lock would keep it for
years. One upload is begun, for a key that is no binlog, and aborted. An object of each kind, and a
writer's object, is put only with a wrong checksum, and only if the store was just seen to refuse a
wrong checksum below `live/`.
"""

import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.checksum import crc64nvme, md5
from binlog2s3.config.stream import Config
from binlog2s3.errors import (
    PreconditionError,
    SpoolError,
    StoreError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.formatting import size_text
from binlog2s3.inspect.check.bucket import NO_STORE, ending_rule, is_denied, tried_there
from binlog2s3.inspect.check.report import Row, fail, ok, skipped, warn
from binlog2s3.store.contract import FileRange, PartInfo, Store
from binlog2s3.store.settings import BucketSettings

_SIZE = 1000
LEFT_SECONDS = 3600.0
"""Leftovers of other checks are deleted once they are this old; no check takes that long."""
_MOST_LEFT = 100
NO_UPLOAD = "bm8tc3VjaC11cGxvYWQ"
"""The id of an upload that does not exist."""
_CONDITIONS = (
    "two streamers of one source could replace each other's objects: make sure that only one runs"
)
_BLOCK = 1 << 16


class LiveProbes:
    """Tries every request; `clean` deletes what was put, and must be called."""

    def __init__(self, config: Config, store: Store, settings: BucketSettings) -> None:
        self._config = config
        self._store = store
        self._settings = settings
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self.prefix = self._layout.probes(secrets.token_hex(4))
        self._object, self._key = f"{self.prefix}object", f"{self.prefix}upload"
        self._copy = f"{self.prefix}copy"
        self._body = secrets.token_bytes(_SIZE)
        self._etag = ""
        self._parts: list[PartInfo] = []
        self._part_crc64 = 0
        self._works: set[str] = set()  # of `_NEEDS`
        self._keys: set[str] = set()  # objects that may have been put
        self._begun: set[str] = set()  # keys of which an upload may have been begun
        self._uploads: list[tuple[str, str]] = []  # key and id of uploads that were begun
        self._versioned: bool | None = None
        self._writer = self._layout.writer(0, secrets.token_hex(8))  # writers start at number 1
        self.refusal = ""  # the store's error for a wrong checksum; "": it may accept one

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of NAMES."""
        if not self._is_locked():  # a lock keeps no delete marker; an upload leaves nothing
            self._works.add("no lock")
        self._sweep()
        for name, (needs, act) in _LIVE.items():
            why = next((_NEEDS[need] for need in needs if need not in self._works), "")
            row = skipped("store", name, why) if why else self._tried(name, partial(act, self))
            if name == "delete" and row.result == "fail" and row.hint:
                row = replace(row, hint=f"{row.hint}; {_UNTRIED}")
            if row.result in ("ok", "warn"):
                self._works.add(name)
            if {"delete", "no lock"} <= self._works or "abort an upload" in self._works:
                self._works.add("end")
            yield row

    def _tried(self, name: str, act: Callable[[], Row | str]) -> Row:
        return tried_there(name, self._config.s3.bucket, self._layout.live, act)

    def _is_locked(self) -> bool:
        """Whether the bucket locks each new object; also records whether it keeps old versions."""
        with suppress(StoreError):
            self._versioned = bool(self._settings.versioning())
        try:
            return bool(self._settings.default_retention())
        except UnsupportedError:
            return False
        except StoreError:
            return bool(self._versioned)  # Object Lock needs versioning

    def delete_nothing(self) -> str:
        """Delete an object that does not exist."""
        key = f"{self.prefix}none"
        self._keys.add(key)  # on a versioned bucket this leaves a marker
        try:
            self._store.delete([key])
        except StoreError as error:
            if is_denied(error):
                self._keys.discard(key)
            raise
        return f"below {self.prefix}"

    def delete_writer(self) -> str:
        """Delete a writer's object that is not there: successors delete those of old writers."""
        self._store.delete([self._writer])
        return "allowed"

    def put(self) -> str:
        self._keys.add(self._object)
        info = self._store.put(self._object, self._body, crc64=crc64nvme(self._body))
        self._etag = info.etag
        self._works.add("object")
        return f"{info.size} bytes"

    def put_again(self) -> Row | str:
        """Put it again, if absent."""
        again = partial(self._store.put, self._object, self._body, if_absent=True)
        return self._refused("put if absent", again)

    def _refused(self, name: str, act: Callable[[], object]) -> Row | str:
        """The row of a write that must be refused, because the key exists."""
        try:
            act()
        except PreconditionError:
            return "an existing object is not replaced (412)"
        except UnsupportedError as error:
            return warn("store", name, str(error), _CONDITIONS)
        return warn(
            "store", name, "the store ignores If-None-Match and replaces the object", _CONDITIONS
        )

    def head(self) -> Row | str:
        """Ask for its size."""
        info = self._store.head(self._object)
        if info is None or info.size != _SIZE:
            shown = "nothing" if info is None else f"{info.size} bytes"
            hint = "the store is not read-after-write consistent and cannot be used for an archive"
            return fail("store", "head", f"it shows {shown}, {_SIZE} bytes were put", hint)
        return f"{info.size} bytes"

    def get(self) -> Row | str:
        if self._store.get(self._object, 100, 200) != self._body[100:200]:
            hint = "a recovery reads ranges"
            return fail("store", "get a range", "the bytes differ from those put", hint)
        return "the bytes that were put"

    def crc64(self) -> Row | str:
        """Put an object with a wrong checksum, which must be refused."""
        name, mode = "CRC64NVME", self._config.s3.checksum
        if mode in ("md5", "none"):
            return f"not sent, for --checksum {mode}"
        key = f"{self.prefix}wrong"
        self._keys.add(key)
        try:
            self._store.put(key, self._body, crc64=crc64nvme(self._body) ^ 1)
        except StoreError as error:
            if error.transient or is_denied(error):
                raise
            refusal = short(error)
        except SpoolError:
            refusal = ""  # without checksums, bytes are compared before they are sent
        else:
            hint = "bytes that change on the way to the store are not detected"
            return warn("store", name, "the store accepts a wrong checksum", hint)
        info = self._store.head(self._object)
        if info is None or info.crc64 is None:
            hint = "archived binlogs are compared by their ETags, or read back"
            return warn("store", name, "the store does not keep it", hint)
        self.refusal = refusal
        return "kept, and a wrong checksum is refused"

    def abort_nothing(self) -> str:
        """Abort an upload that does not exist."""
        self._store.abort_upload(self._key, NO_UPLOAD)
        return "allowed"

    def begin(self) -> str:
        self._create(self._key, crc64=True)
        return f"of {self._key}"

    def _create(self, key: str, *, crc64: bool) -> str:
        self._begun.add(key)
        self._uploads.append((key, self._store.create_upload(key, crc64=crc64)))
        return self._uploads[-1][1]

    def list_uploads(self) -> Row | str:
        hint = "an interrupted upload starts again, and its parts stay until the store removes them"
        try:
            listed = {(self._key, info.upload_id) for info in self._store.list_uploads(self._key)}
        except UnsupportedError as error:
            return warn("store", "list uploads", str(error), hint)
        if listed.isdisjoint(self._uploads):
            return warn("store", "list uploads", "the new upload is not listed", hint)
        return "the new upload is listed"

    def upload_part(self) -> Row | str:
        """Send one part of the configured size: empty, but for the last bytes.

        A store may refuse its checksum: then it is sent without, in a new upload, as the streamer
        does.
        """
        size, told = self._config.s3.part_size, ""
        with os.fdopen(os.memfd_create("part"), "wb") as file:  # a hole takes no memory
            file.truncate(size - _SIZE)
            file.seek(0, os.SEEK_END)
            file.write(self._body)
            file.flush()
            part = FileRange(Path(f"/proc/self/fd/{file.fileno()}"), 0, size)
            with closing(part.open()) as reader:
                for data in iter(partial(reader.read, _BLOCK), b""):
                    self._part_crc64 = crc64nvme(data, self._part_crc64)
            try:
                self._send(part)
            except UploadMissingError as error:
                told = str(error)
                self._uploads.pop()
                self._create(self._key, crc64=False)
                self._send(part)
        if told:
            hint = "archived binlogs are compared by their ETags, or read back"
            return warn("store", "upload a part", told, hint)
        return f"{size_text(size)}, as --part-size says"

    def _send(self, part: FileRange) -> None:
        upload_id, crc64 = self._uploads[-1][1], self._part_crc64
        self._parts.append(self._store.upload_part(self._key, upload_id, 1, part, crc64))

    def list_parts(self) -> str:
        listed = self._store.list_parts(self._key, self._uploads[-1][1])
        return f"{len(listed)} listed"

    def complete(self) -> Row | str:
        """Complete the upload of that part."""
        size = self._config.s3.part_size
        self._completed(self._key, self._uploads[-1][1], self._parts, size, self._part_crc64)
        self._works.add("completed")
        info = self._store.head(self._key)
        is_whole = info is not None and info.size == size
        if not is_whole or self._store.get(self._key, size - _SIZE, size) != self._body:
            return fail("store", "complete an upload", "the object differs from its part", NO_STORE)
        return "the object has the part's bytes"

    def copy(self) -> Row | str:
        """Copy into an upload with a checksum, as the streamer does; else into one without.

        The first one, if the store refuses the copy, could not be completed: it must be aborted.
        """
        told = ""
        for crc64 in (True, False) if "abort an upload" in self._works else (False,):
            upload_id = self._create(self._copy, crc64=crc64)
            try:
                part = self._store.copy_part(self._copy, upload_id, 1, self._object, size=_SIZE)
            except StoreError as error:
                if error.transient or is_denied(error):
                    raise
                told = told or short(error)
                continue
            if self._etag == md5(self._body).hex() != part.etag:  # with KMS, an ETag is not an MD5
                told = "the copy has other bytes"
                break
            self._completed(self._copy, upload_id, [part], _SIZE, crc64nvme(self._body))
            if self._store.get(self._copy) != self._body:
                text = "the object differs from the part that was copied"
                return fail("store", "copy a part", text, NO_STORE)
            without = f" ({told})" if told else ""
            return "done" if crc64 else f"only into an upload without a checksum{without}"
        hint = "full chunks are uploaded again when a binlog is closed"
        return warn("store", "copy a part", f"the store refuses: {told}", hint)

    def complete_again(self) -> Row | str:
        """Complete another upload, of a few bytes, when the object exists."""
        crc64 = crc64nvme(self._body)
        upload_id = self._create(self._key, crc64=True)
        part = self._store.upload_part(self._key, upload_id, 1, self._body, crc64=crc64)
        again = partial(self._completed, self._key, upload_id, [part], _SIZE, crc64)
        return self._refused("complete if absent", again)

    def _completed(
        self, key: str, upload_id: str, parts: Sequence[PartInfo], size: int, crc64: int
    ) -> None:
        self._keys.add(key)
        self._store.complete_upload(key, upload_id, parts, size=size, crc64=crc64)
        self._uploads.remove((key, upload_id))

    def _sweep(self) -> None:
        """Delete old leftovers of checks that were killed."""
        before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
        with suppress(StoreError):
            old = [
                info.key
                for info in self._store.list(f"{self._layout.live}check-")
                if self._layout.is_of("probe", info.key) and info.last_modified < before
            ]
            self._store.delete(old[:_MOST_LEFT])
            is_ours = partial(self._layout.is_of, "probe")
            _abort_old(self._store, f"{self._layout.live}check-", is_ours)

    def clean(self) -> Row | None:
        """Delete everything that was put, whatever happened before; None if nothing was."""
        if not self._keys | self._begun:
            return None
        troubles = [str(error) for error in self._abort_all()]
        try:
            if self._keys:
                self._store.delete(sorted(self._keys))
        except StoreError as error:
            troubles.append(str(error))
        try:
            troubles += [f"{info.key} is still there" for info in self._store.list(self.prefix)]
        except StoreError as error:
            troubles.append(f"leftovers could not be listed ({error})")
        if troubles:
            where = f"s3://{self._config.s3.bucket}/{self.prefix}"
            hint = f"delete everything there: {aws(self._config)} s3 rm --recursive {where}"
            return fail("store", "clean-up", "; ".join(dict.fromkeys(troubles)), hint)
        return self._clean_versions()

    def _abort_all(self) -> Iterator[StoreError]:
        """Abort uploads, including those whose answer was lost."""
        for key in self._begun:
            with suppress(StoreError):
                self._uploads += [(key, info.upload_id) for info in self._store.list_uploads(key)]
        for key, upload_id in dict.fromkeys(self._uploads):
            try:
                self._store.abort_upload(key, upload_id)
            except StoreError as error:
                yield error

    def _clean_versions(self) -> Row:
        clean = f"nothing is left below {self.prefix}"
        if self._versioned is not False:
            try:
                left = [v for k in (self.prefix, self._writer) for v in self._settings.versions(k)]
                self._settings.delete_versions(left)
            except StoreError as error:
                if self._versioned:
                    return self._old_versions(f"{clean} except old versions ({error})")
                clean += "; listing old versions is denied"
        return ok("store", "clean-up", clean)

    def _old_versions(self, left: str) -> Row:
        """Old versions stay: fine if a rule deletes them, as it does for the streamer's."""
        rules, unknown = "no rule deletes them", ""
        try:
            if rule := ending_rule(self._settings.lifecycle(), self._layout.live):
                return ok("store", "clean-up", f"{left}; {rule}")
        except StoreError as error:
            rules, unknown = "the lifecycle rules could not be read", f" ({error})"
        bucket = f"arn:aws:s3:::{self._config.s3.bucket}"
        hint = (
            "add the rule shown at `old versions`, which the streamer needs as well; or allow, "
            f"only for checks, s3:ListBucketVersions on {bucket} and s3:DeleteObjectVersion on "
            f"{bucket}/{self._layout.live}*"
        )
        return warn("store", "clean-up", f"{left}; {rules}{unknown}", hint)


def aws(config: Config) -> str:
    """The beginning of an AWS CLI command for this store."""
    endpoint = config.s3.endpoint_url
    return f"aws --endpoint-url {endpoint}" if endpoint else "aws"


_UNTRIED = (
    "without that, nothing is put, so that s3:PutObject and more are not tried: what a streamer "
    "needs in all is in docs/policies/streamer.json"
)
_NEEDS = {
    "delete": "an object could not be deleted",
    "no lock": "an object could not be deleted, because of Object Lock's default retention",
    "put": "no object could be put",
    "abort an upload": "an upload could not be aborted",
    "end": "an upload could neither be aborted nor completed and deleted",
    "begin an upload": "no upload could be begun",
    "upload a part": "no part could be uploaded",
    "completed": "no upload could be completed",
    "object": "there is no object to copy",
}
"""What other probes need, and why they are skipped without it."""
_OBJECT = ("delete", "no lock", "put")
_BEGUN = ("end", "begin an upload")
_PART = ("delete", "no lock", *_BEGUN, "upload a part")
_LIVE: Mapping[str, tuple[Sequence[str], Callable[[LiveProbes], Row | str]]] = {
    "delete": ((), LiveProbes.delete_nothing),
    "delete a writer": (("delete",), LiveProbes.delete_writer),
    "put": (("delete", "no lock"), LiveProbes.put),
    "put if absent": (_OBJECT, LiveProbes.put_again),
    "head": (_OBJECT, LiveProbes.head),
    "get a range": (_OBJECT, LiveProbes.get),
    "CRC64NVME": (_OBJECT, LiveProbes.crc64),
    "abort an upload": ((), LiveProbes.abort_nothing),
    "begin an upload": (("end",), LiveProbes.begin),
    "list uploads": (_BEGUN, LiveProbes.list_uploads),
    "upload a part": (_BEGUN, LiveProbes.upload_part),
    "list parts": (_BEGUN, LiveProbes.list_parts),
    "complete an upload": (_PART, LiveProbes.complete),
    "copy a part": (("delete", "no lock", *_BEGUN, "object"), LiveProbes.copy),
    "complete if absent": (
        (*_PART, "completed", "abort an upload"),
        LiveProbes.complete_again,
    ),
}
"""The probes in their order: what each one needs, and what it does."""
NAMES = tuple(_LIVE)
"""The names of the rows, in order, without the clean-up."""


def _abort_old(store: Store, prefix: str, is_ours: Callable[[str], bool]) -> None:
    """Abort old uploads of checks that were killed."""
    before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
    for upload in store.uploads_below(prefix):
        if is_ours(upload.key) and upload.initiated < before:
            store.abort_upload(upload.key, upload.upload_id)


def skip(names: Sequence[str], why: str) -> Iterator[Row]:
    """Rows for what was not tried."""
    for name in names:
        yield skipped("store", name, why)


def short(error: StoreError) -> str:
    """The store's error code, or the whole message if it has none."""
    code = re.search(r"\((\w+)", str(error))
    return code[1] if code else str(error)


ARCHIVE_NAMES = (
    "abort in archive/",
    "write archive/",
    "list parts in archive/",
    "put a lineage",
    "put a turn",
    "put a binlog",
    "put an entry",
    "put a writer",
)
"""The names of the rows, in order, without the clean-up."""
_BODY = b"{}"


class ArchiveProbes:
    """Tries requests below `archive/`, with an upload that never becomes an object.

    `refusal` is the store's error code for a wrong checksum, "" if it was not seen to refuse one.
    `clean` aborts the upload, and must be called. The upload's key is of no lineage: no reader
    takes it for a binlog, and the streamer aborts only uploads of its own binlogs.
    """

    def __init__(self, config: Config, store: Store, refusal: str = "") -> None:
        self._config = config
        self._store = store
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self._refusal = refusal
        token = secrets.token_hex(4)
        self.key = self._layout.probe_upload(token)
        self._objects = self._layout.probe_objects(token).values()
        self._uploads: list[str] = []
        self._is_begun = False  # also if the answer was lost

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of ARCHIVE_NAMES, then the clean-up."""
        aborts = self._tried(ARCHIVE_NAMES[0], self._abort_nothing)
        yield aborts
        with suppress(StoreError):
            below = f"{self._layout.archive}check-"
            _abort_old(self._store, below, self._layout.is_probe_upload)
        # all at once, even if the rows are shown slowly
        yield from self._upload_rows(aborts=aborts.result == "ok")

    def _tried(self, name: str, act: Callable[[], Row | str], key: str = "") -> Row:
        below = self._layout.live if key.startswith(self._layout.live) else self._layout.archive
        return tried_there(name, self._config.s3.bucket, below, act)

    def _abort_nothing(self) -> str:
        self._store.abort_upload(self.key, NO_UPLOAD)
        return "allowed"

    def _upload_rows(self, *, aborts: bool) -> Sequence[Row]:
        rows = list[Row]()
        if aborts:
            rows.append(self._tried(ARCHIVE_NAMES[1], self._begin))
        else:
            rows += skip(ARCHIVE_NAMES[1:2], "an upload could not be aborted")
        if rows[0].result != "ok":
            rows += skip(ARCHIVE_NAMES[2:3], "no upload could be begun")
        else:
            rows.append(self._tried(ARCHIVE_NAMES[2], self._list_parts))
        if self._refusal:
            for name, key in zip(ARCHIVE_NAMES[3:], self._objects, strict=True):
                rows.append(self._tried(name, partial(self._put, name, key), key))
        else:
            why = "the store might keep the object, and nobody could delete it"
            rows += skip(ARCHIVE_NAMES[3:], why)
        cleaned = self.clean()
        return rows if cleaned is None else [*rows, cleaned]

    def _begin(self) -> str:
        self._is_begun = True
        try:
            self._uploads.append(self._store.create_upload(self.key))
        except StoreError as error:
            self._is_begun = not is_denied(error)
            raise
        return (
            "an upload was begun and aborted; no object was put, because it could not be deleted: "
            "putting and completing need the same s3:PutObject"
        )

    def _list_parts(self) -> str:
        self._store.list_parts(self.key, self._uploads[-1])
        return "allowed"

    def _put(self, name: str, key: str) -> Row | str:
        """Put like the streamer, with a wrong checksum: S3 checks permissions before checksums."""
        try:
            self._store.put(key, _BODY, crc64=crc64nvme(_BODY) ^ 1, if_absent=True)
        except SpoolError:  # without checksums, bytes are compared before they are sent
            return skipped("store", name, "this store gets no checksums of parts")
        except StoreError as error:
            if error.transient or short(error) != self._refusal:
                raise
            return f"allowed; no object was made, because the checksum was wrong ({self._refusal})"
        with suppress(StoreError):
            self._store.delete([key])
        where = f"s3://{self._config.s3.bucket}/{key}"
        hint = f"the object may still be there; delete it: {aws(self._config)} s3 rm {where}"
        return fail("store", name, "the store accepted a wrong checksum", hint)

    def clean(self) -> Row | None:
        """Abort the upload; None if none was begun, or it was aborted already."""
        if not self._is_begun:
            return None
        troubles, left = [], ""
        try:
            self._uploads += [info.upload_id for info in self._store.list_uploads(self.key)]
        except StoreError as error:
            if not self._uploads:
                troubles.append(f"an upload of {self.key} may have been begun ({error})")
        for upload_id in dict.fromkeys(self._uploads):
            try:
                self._store.abort_upload(self.key, upload_id)
            except StoreError as error:
                troubles.append(f"upload {upload_id} of {self.key} is still there ({error})")
                left = left or upload_id
        self._is_begun = False
        if not troubles:
            return ok("store", "clean-up archive/", f"no upload of {self.key} is left")
        which = f"--bucket {self._config.s3.bucket} --key {self.key} --upload-id {left or 'ID'}"
        hint = (
            f"{aws(self._config)} s3api abort-multipart-upload {which}; list-multipart-uploads "
            "shows the uploads"
        )
        return fail("store", "clean-up archive/", "; ".join(troubles), hint)
