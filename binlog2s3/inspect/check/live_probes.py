"""What a streamer does in a bucket, done once for `check` with objects of its own.

Place in the flow: under `command`, beside `bucket`, over the store.

Law: objects are put only below `live/<source>/check-<random>/`, which every reader passes over.
What was put is taken away again, whatever happens: nothing is put where it could not be deleted, or
where Object Lock would keep it; no upload is begun that could not be aborted.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from binlog2s3.archive.catalog import Layout
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
"""The rows, in their order, but for what became of the cleaning up."""
_SIZE = 1000
LEFT_SECONDS = 3600.0
"""What an earlier check left is deleted once it is so old: none takes that long."""
_MOST_LEFT = 100
NO_UPLOAD = "bm8tc3VjaC11cGxvYWQ"
"""The id of an upload that does not exist."""
_STAYS = "what is put could not be deleted again"
_CONDITIONS = (
    "two streamers of one source at once could replace each other's objects: take care that there "
    "is only one"
)


class LiveProbes:
    """Tries it all; `clean` takes away what was put, and must be called."""

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
        self._keys: set[str] = set()  # what may have been put
        self._uploads: list[str] = []  # what was begun, of `_key`
        self._versioned: bool | None = None
        self._writer = self._layout.writer(0, secrets.token_hex(8))  # the first one has number 1
        self.refusal = ""  # how the store calls bytes of another checksum; "": it may take them

    def rows(self) -> Iterator[Row]:
        """Everything, in the order of NAMES."""
        is_locked = self._is_locked()
        self._sweep()
        deletes = self._tried("delete", self._delete_nothing)
        yield deletes
        if deletes.result == "fail":
            yield from skip(NAMES[1:], _STAYS)
            return
        yield self._tried(_WRITER, self._delete_writer)
        if is_locked:  # of a delete a marker stays, which no lock keeps; of an upload nothing
            yield from skip(_OBJECT, f"{_STAYS}, for Object Lock's default retention")
        else:
            yield from self._object_rows()
        aborts = self._tried("abort an upload", self._abort_nothing)
        yield aborts
        if aborts.result == "fail":
            yield from skip(_UPLOAD, "an upload could not be aborted again")
            return
        yield from self._upload_rows()

    def _tried(self, name: str, act: Callable[[], Row | str]) -> Row:
        return tried_there(name, self._config.s3.bucket, self._layout.live, act)

    def _is_locked(self) -> bool:
        """Whether the bucket keeps each new object; also, whether it keeps old versions."""
        with suppress(StoreError):
            self._versioned = bool(self._settings.versioning())
        try:
            return bool(self._settings.default_retention())
        except UnsupportedError:
            return False
        except StoreError:
            return bool(self._versioned)  # without versions there is no lock

    # Objects

    def _object_rows(self) -> Iterator[Row]:
        put = self._tried("put", self._put)
        yield put
        if put.result == "fail":
            yield from skip(_OBJECT[1:], "nothing could be put")
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
        """One that is not there: a successor deletes those of writers that are gone."""
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
        """What comes of a write that must be refused, as the key is there."""
        try:
            act()
        except PreconditionError:
            return "what is there already is not replaced (412)"
        except UnsupportedError as error:
            return warn("store", name, str(error), _CONDITIONS)
        return warn("store", name, "the store ignores If-None-Match, and replaces", _CONDITIONS)

    def _head(self) -> Row | str:
        info = self._store.head(self._object)
        if info is None or info.size != _SIZE:
            printer = "nothing" if info is None else f"{info.size} bytes"
            hint = "a store that does not show at once what was put cannot hold an archive"
            return fail("store", "head", f"it shows {printer}, where {_SIZE} were put", hint)
        return f"{info.size} bytes"

    def _get(self) -> Row | str:
        if self._store.get(self._object, 100, 200) != self._body[100:200]:
            hint = "ranges are how a recovery reads"
            return fail("store", "get a range", "other bytes came than were put", hint)
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
            refusal = ""  # a store without it: what was read is compared before it is sent
        else:
            hint = "bytes that change on the way to it would not be noticed"
            return warn("store", name, "a wrong one is accepted", hint)
        info = self._store.head(self._object)
        if info is None or info.crc64 is None:
            hint = "archived binlogs are compared by their ETags, or read back"
            return warn("store", name, "the store keeps none", hint)
        self.refusal = refusal
        return "kept, and a wrong one is refused"

    # Uploads

    def _upload_rows(self) -> Iterator[Row]:
        begun = self._tried(_UPLOAD[0], self._begin)
        yield begun
        if begun.result == "fail":
            yield from skip(_UPLOAD[1:], "no upload could be begun")
            return
        yield self._tried("list uploads", self._list_uploads)
        if not self._is_put:
            yield from skip(_UPLOAD[2:], "there is no object to copy from")  # so none is made
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
        hint = "an interrupted upload is begun anew, and its parts stay until the store ends them"
        try:
            listed = {info.upload_id for info in self._store.list_uploads(self._key)}
        except UnsupportedError as error:
            return warn("store", "list uploads", str(error), hint)
        if listed.isdisjoint(self._uploads):
            return warn("store", "list uploads", "the one that was begun is not shown", hint)
        return "the one that was begun is shown"

    def _copy(self, parts: list[PartInfo]) -> Row | str:
        """Into an upload as the streamer begins it; else into one without a checksum."""
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
            if self._etag == md5(self._body).hex() != part.etag:  # of KMS no ETag is an MD5
                told = "the copy has other bytes"
                break
            parts.append(part)
            return "done" if crc64 else f"into an upload without a checksum only ({told})"
        hint = "the bytes of full chunks are sent again when a binlog is closed"
        return warn("store", "copy a part", f"the store cannot: {told}", hint)

    def _copied(self, upload_id: str) -> PartInfo:
        return self._store.copy_part(
            self._key, upload_id, 1, self._object, begin=0, end=_SIZE, whole=True
        )

    def _list_parts(self) -> str:
        listed = self._store.list_parts(self._key, self._uploads[-1])
        return f"{len(listed)} shown"

    def _complete(self, parts: Sequence[PartInfo]) -> Row | str:
        """Once where nothing is, then where that is."""
        name = "complete if absent"
        self._completed(self._uploads[-1], parts)
        if self._store.get(self._key) != self._body:
            hint = "an archive cannot be kept there"
            return fail("store", name, "the object is not what its parts were", hint)
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
        """Delete what checks left that were killed, once it is old."""
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
        """Take away all that was put, whatever came of it; None if nothing was."""
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
            troubles.append(f"what is left could not be listed ({error})")
        if troubles:
            where = f"s3://{self._config.s3.bucket}/{self.prefix}"
            hint = f"all that is left there may go: {aws(self._config)} s3 rm --recursive {where}"
            return fail("store", "clean-up", "; ".join(dict.fromkeys(troubles)), hint)
        return self._clean_versions()

    def _abort_all(self) -> Iterator[StoreError]:
        """Uploads that were begun, also those whose answer was lost."""
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
                    return self._old_versions(f"{clean} but old versions ({error})")
                clean += "; whether it has old versions, nobody may see"
        return ok("store", "clean-up", clean)

    def _old_versions(self, left: str) -> Row:
        """They stay: well if a rule ends them, as it will end the streamer's."""
        rules, unknown = "no rule ends them", ""
        try:
            if rule := ending_rule(self._settings.lifecycle(), self._layout.live):
                return ok("store", "clean-up", f"{left}; {rule}")
        except StoreError as error:
            rules, unknown = "whether a rule ends them is not known", f" ({error})"
        bucket = f"arn:aws:s3:::{self._config.s3.bucket}"
        hint = (
            "make the rule that `old versions` wants, which the streamer's need as well; or allow, "
            f"for checks alone, s3:ListBucketVersions on {bucket} and s3:DeleteObjectVersion on "
            f"{bucket}/{self._layout.live}*"
        )
        return warn("store", "clean-up", f"{left}; {rules}{unknown}", hint)


def aws(config: Config) -> str:
    """How a command of the AWS CLI begins for this store."""
    endpoint = config.s3.endpoint_url
    return f"aws --endpoint-url {endpoint}" if endpoint else "aws"


def skip(names: Sequence[str], why: str) -> Iterator[Row]:
    """Rows of what was not tried."""
    for name in names:
        yield skipped("store", name, why)


def short(error: StoreError) -> str:
    """What the store called it, without what it tells besides."""
    code = re.search(r"\((\w+)", str(error))
    return code[1] if code else str(error)
