"""Tries what a streamer does below `archive/`, for `check`, and leaves nothing there.

Place in the flow: beside `live_probes`, which tries what is done below `live/`.

Law: it never makes an object, because nobody could delete it, or a lock would keep it for years. It
begins one upload for a key that is no binlog, and aborts it; it begins none that could not be
aborted. An object of each kind, and a writer's object, is put only with a wrong checksum, and only
if the store was just seen to refuse a wrong checksum below `live/`.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.config.values import Config
from binlog2s3.errors import StoreError
from binlog2s3.inspect.check.bucket import is_denied, tried_there
from binlog2s3.inspect.check.live_probes import LEFT_SECONDS, NO_UPLOAD, aws, short, skip
from binlog2s3.inspect.check.report import Row, fail, ok
from binlog2s3.store.contract import Store

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
_BODY = b"{}"
"""The names of the rows, in order, without the clean-up."""


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
        if aborts.result == "fail":
            yield from skip(ARCHIVE_NAMES[1:], "an upload could not be aborted")
            return
        self._sweep()
        yield from self._upload_rows()  # all at once, even if the rows are shown slowly

    def _tried(self, name: str, act: Callable[[], Row | str], key: str = "") -> Row:
        below = self._layout.live if key.startswith(self._layout.live) else self._layout.archive
        return tried_there(name, self._config.s3.bucket, below, act)

    def _abort_nothing(self) -> str:
        self._store.abort_upload(self.key, NO_UPLOAD)
        return "allowed"

    def _upload_rows(self) -> Sequence[Row]:
        rows = [self._tried(ARCHIVE_NAMES[1], self._begin)]
        if rows[0].result == "fail":
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
        except StoreError as error:
            if error.transient or short(error) != self._refusal:
                raise
            return f"allowed; no object was made, because the checksum was wrong ({self._refusal})"
        with suppress(StoreError):
            self._store.delete([key])
        where = f"s3://{self._config.s3.bucket}/{key}"
        hint = f"the object may still be there; delete it: {aws(self._config)} s3 rm {where}"
        return fail("store", name, "the store accepted a wrong checksum", hint)

    def _sweep(self) -> None:
        """Abort old uploads of checks that were killed."""
        before = datetime.now(UTC) - timedelta(seconds=LEFT_SECONDS)
        with suppress(StoreError):
            for upload in self._store.uploads_below(f"{self._layout.archive}check-"):
                if self._layout.is_probe_upload(upload.key) and upload.initiated < before:
                    self._store.abort_upload(upload.key, upload.upload_id)

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
