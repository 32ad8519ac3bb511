"""Does what a streamer does below `live/`, once, for `check`, with objects of its own.

Place in the flow: under `command`, beside `bucket`, over the store.

Law: objects are put only below `live/<source>/check-<random>/`, which every reader skips.
Everything that was put is deleted again, whatever happens. Nothing is put if it could not be
deleted, or if Object Lock would keep it. No upload is begun that could not be aborted.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.checksum import crc64nvme, md5
from binlog2s3.config.values import Config
from binlog2s3.errors import PreconditionError, SpoolError, StoreError, UnsupportedError
from binlog2s3.inspect.check.bucket import Settings, is_denied, tried_there
from binlog2s3.inspect.check.report import Row, fail, ok, skipped, warn
from binlog2s3.inspect.check.rules import ending_rule
from binlog2s3.store.contract import PartInfo, Store

_OBJECT = ("put", "put if absent", "head", "get a range", "CRC64NVME")
_UPLOAD = ("begin an upload", "list uploads", "copy a part", "list parts", "complete if absent")
_WRITER = "delete a writer"
NAMES = ("delete", _WRITER, *_OBJECT, "abort an upload", *_UPLOAD)
"""The names of the rows, in order, without the clean-up."""
_SIZE = 1000
LEFT_SECONDS = 3600.0
"""Leftovers of other checks are deleted once they are this old; no check takes that long."""
_MOST_LEFT = 100
NO_UPLOAD = "bm8tc3VjaC11cGxvYWQ"
"""The id of an upload that does not exist."""
_STAYS = "an object could not be deleted"
_CONDITIONS = (
    "two streamers of one source could replace each other's objects: make sure that only one runs"
)


class LiveProbes:
    """Tries every request; `clean` deletes what was put, and must be called."""

    def __init__(self, config: Config, store: Store, settings: Settings) -> None:
        self._config = config
        self._store = store
        self._settings = settings
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self.prefix = self._layout.probes(secrets.token_hex(4))
        self._object, self._key = f"{self.prefix}object", f"{self.prefix}upload"
        self._body = secrets.token_bytes(_SIZE)
        self._etag = ""
        self._is_put = False
        self._keys: set[str] = set()  # objects that may have been put
        self._uploads: list[str] = []  # uploads of `_key` that were begun
        self._versioned: bool | None = None
        self._writer = self._layout.writer(0, secrets.token_hex(8))  # writers start at number 1
        self.refusal = ""  # the store's error for a wrong checksum; "": it may accept one

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of NAMES."""
        is_locked = self._is_locked()
        self._sweep()
        deletes = self._tried("delete", self._delete_nothing)
        yield deletes
        if deletes.result == "fail":
            yield from skip(NAMES[1:], _STAYS)
            return
        yield self._tried(_WRITER, self._delete_writer)
        if is_locked:  # a delete leaves a marker, which no lock keeps; an upload leaves nothing
            yield from skip(_OBJECT, f"{_STAYS}, because of Object Lock's default retention")
        else:
            yield from self._object_rows()
        aborts = self._tried("abort an upload", self._abort_nothing)
        yield aborts
        if aborts.result == "fail":
            yield from skip(_UPLOAD, "an upload could not be aborted")
            return
        yield from self._upload_rows()

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

    # Objects

    def _object_rows(self) -> Iterator[Row]:
        put = self._tried("put", self._put)
        yield put
        if put.result == "fail":
            yield from skip(_OBJECT[1:], "no object could be put")
            return
        yield self._tried("put if absent", self._put_again)
        yield self._tried("head", self._head)
        yield self._tried("get a range", self._get)
        yield self._tried("CRC64NVME", self._crc64)

    def _delete_nothing(self) -> str:
        key = f"{self.prefix}none"
        self._keys.add(key)  # on a versioned bucket this leaves a marker
        try:
            self._store.delete([key])
        except StoreError as error:
            if is_denied(error):
                self._keys.discard(key)
            raise
        return f"below {self.prefix}"

    def _delete_writer(self) -> str:
        """Delete a writer's object that is not there: successors delete those of old writers."""
        self._store.delete([self._writer])
        return "allowed"

    def _put(self) -> str:
        self._keys.add(self._object)
        info = self._store.put(self._object, self._body, crc64=crc64nvme(self._body))
        self._etag, self._is_put = info.etag, True
        return f"{info.size} bytes"

    def _put_again(self) -> Row | str:
        return self._refused(
            "put if absent",
            lambda: self._store.put(self._object, self._body, if_absent=True),
        )

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

    def _head(self) -> Row | str:
        info = self._store.head(self._object)
        if info is None or info.size != _SIZE:
            shown = "nothing" if info is None else f"{info.size} bytes"
            hint = "the store is not read-after-write consistent and cannot be used for an archive"
            return fail("store", "head", f"it shows {shown}, {_SIZE} bytes were put", hint)
        return f"{info.size} bytes"

    def _get(self) -> Row | str:
        if self._store.get(self._object, 100, 200) != self._body[100:200]:
            hint = "a recovery reads ranges"
            return fail("store", "get a range", "the bytes differ from those put", hint)
        return "the bytes that were put"

    def _crc64(self) -> Row | str:
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

    # Uploads

    def _upload_rows(self) -> Iterator[Row]:
        begun = self._tried(_UPLOAD[0], self._begin)
        yield begun
        if begun.result == "fail":
            yield from skip(_UPLOAD[1:], "no upload could be begun")
            return
        yield self._tried("list uploads", self._list_uploads)
        if not self._is_put:
            yield from skip(_UPLOAD[2:], "there is no object to copy")  # so no object is made
            return
        parts: list[PartInfo] = []
        yield self._tried("copy a part", lambda: self._copy(parts))
        yield self._tried("list parts", self._list_parts)
        if parts:
            yield self._tried("complete if absent", lambda: self._complete(parts))
        else:
            yield from skip(_UPLOAD[4:], "there is no part")

    def _abort_nothing(self) -> str:
        self._store.abort_upload(self._key, NO_UPLOAD)
        return "allowed"

    def _begin(self) -> str:
        self._create(crc64=True)
        return f"of {self._key}"

    def _create(self, *, crc64: bool) -> str:
        self._keys.add(self._key)
        self._uploads.append(self._store.create_upload(self._key, crc64=crc64))
        return self._uploads[-1]

    def _list_uploads(self) -> Row | str:
        hint = "an interrupted upload starts again, and its parts stay until the store removes them"
        try:
            listed = {info.upload_id for info in self._store.list_uploads(self._key)}
        except UnsupportedError as error:
            return warn("store", "list uploads", str(error), hint)
        if listed.isdisjoint(self._uploads):
            return warn("store", "list uploads", "the new upload is not listed", hint)
        return "the new upload is listed"

    def _copy(self, parts: list[PartInfo]) -> Row | str:
        """Copy into an upload with a checksum, as the streamer does; else into one without."""
        told = ""
        for crc64 in (True, False):
            upload_id = self._uploads[-1] if crc64 else self._create(crc64=False)
            try:
                part = self._copied(upload_id)
            except StoreError as error:
                if error.transient or is_denied(error):
                    raise
                told = told or short(error)
                continue
            if self._etag == md5(self._body).hex() != part.etag:  # with KMS, an ETag is not an MD5
                told = "the copy has other bytes"
                break
            parts.append(part)
            return "done" if crc64 else f"only into an upload without a checksum ({told})"
        hint = "full chunks are uploaded again when a binlog is closed"
        return warn("store", "copy a part", f"the store refuses: {told}", hint)

    def _copied(self, upload_id: str) -> PartInfo:
        return self._store.copy_part(
            self._key, upload_id, 1, self._object, begin=0, end=_SIZE, whole=True
        )

    def _list_parts(self) -> str:
        listed = self._store.list_parts(self._key, self._uploads[-1])
        return f"{len(listed)} listed"

    def _complete(self, parts: Sequence[PartInfo]) -> Row | str:
        """Complete an upload when the key is free, then again when it exists."""
        name = "complete if absent"
        self._completed(self._uploads[-1], parts)
        if self._store.get(self._key) != self._body:
            hint = "this store cannot be used for an archive"
            return fail("store", name, "the object differs from its parts", hint)
        again = self._create(crc64=False)
        part = self._copied(again)
        return self._refused(name, lambda: self._completed(again, [part]))

    def _completed(self, upload_id: str, parts: Sequence[PartInfo]) -> None:
        self._store.complete_upload(
            self._key, upload_id, parts, size=_SIZE, crc64=crc64nvme(self._body)
        )
        self._uploads.remove(upload_id)

    # Cleaning up

    def _sweep(self) -> None:
        """Delete old leftovers of checks that were killed."""
        before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
        with suppress(StoreError):
            old = [
                info.key
                for info in self._store.list(f"{self._layout.live}check-")
                if self._layout.is_probe(info.key) and info.last_modified < before
            ]
            self._store.delete(old[:_MOST_LEFT])
            for upload in self._store.uploads_below(f"{self._layout.live}check-"):
                if self._layout.is_probe(upload.key) and upload.initiated < before:
                    self._store.abort_upload(upload.key, upload.upload_id)

    def clean(self) -> Row | None:
        """Delete everything that was put, whatever happened before; None if nothing was."""
        if not self._keys:
            return None
        troubles = [str(error) for error in self._abort_all()]
        try:
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
        with suppress(StoreError):
            if self._key in self._keys:
                self._uploads += [info.upload_id for info in self._store.list_uploads(self._key)]
        for upload_id in dict.fromkeys(self._uploads):
            try:
                self._store.abort_upload(self._key, upload_id)
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


def skip(names: Sequence[str], why: str) -> Iterator[Row]:
    """Rows for what was not tried."""
    for name in names:
        yield skipped("store", name, why)


def short(error: StoreError) -> str:
    """The store's error code, or the whole message if it has none."""
    code = re.search(r"\((\w+)", str(error))
    return code[1] if code else str(error)
