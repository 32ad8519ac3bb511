"""What a write demands of the store, and what the store must confirm: encryption and checksums.

Law: encryption that the store did not confirm, and a checksum that it had to confirm and did not,
are errors.
"""

import base64
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from binlog2s3.binlog.checksum import crc64_base64, crc64_from_base64
from binlog2s3.errors import SpoolError, StoreError, StoreSettingError, UnsupportedError
from binlog2s3.store.contract import Body, StoreConfig
from binlog2s3.store.errors import RefusedError, SignatureError
from binlog2s3.store.requests import Answer, Final, crc64_of, digests_of

_SURE = 2
"""So many refused signatures, and the header is the reason: one may be a secret being mended."""


@dataclass(slots=True)
class Integrity:
    """The demands of a configuration, and whether the store has refused CRC64NVME."""

    config: StoreConfig
    refuses_crc64: bool = False
    _accepted: set[str] = field(default_factory=set)  # operations that have had a CRC64NVME
    _refused_signatures: Counter[str] = field(default_factory=Counter)

    def storage_class(self) -> dict[str, str]:
        """The parameter for the storage class of archived binlogs, if one is configured."""
        chosen = self.config.storage_class
        return {"StorageClass": chosen} if chosen else {}

    def retention(self) -> dict[str, Any]:
        """The parameters for Object Lock from now on, if it is configured."""
        lock = self.config.object_lock
        if lock is None:
            return {}
        until = datetime.now(UTC) + timedelta(days=lock.days)
        return {"ObjectLockMode": lock.mode, "ObjectLockRetainUntilDate": until}

    def encryption(self) -> dict[str, str]:
        """The parameters for server-side encryption, if it is configured."""
        asked = {
            "ServerSideEncryption": self.config.sse,
            "SSEKMSKeyId": self.config.sse_kms_key_id,
        }
        return {name: value for name, value in asked.items() if value}

    def confirm_encryption(self, answer: Mapping[str, Any], key: str) -> None:
        """Raise if the answer does not confirm it: some stores accept the header and ignore it."""
        asked, got = self.config.sse, answer.get("ServerSideEncryption")
        if asked and got != asked:
            raise StoreError(
                f"the store did not confirm encryption {asked} of {key!r}, it answered"
                f" {got or 'nothing'}: the bytes may not be encrypted",
                hint="this store does not encrypt as requested; set up its keys, or remove sse",
            )
        want, used = self.config.sse_kms_key_id, answer.get("SSEKMSKeyId", "")
        if asked and want and not _same_kms_key(want, used):
            raise StoreError(
                f"the store encrypted {key!r} with KMS key {used or 'unknown'}, not with {want}",
                hint="set sse_kms_key_id to the key's id or ARN",
            )

    def digest(self, body: Body | bytes, crc64: int | None, *, crc64_on: bool) -> dict[str, str]:
        """The parameter with which the store can refuse bytes that changed on the way."""
        if self.config.checksum == "none":
            return {}
        if crc64_on:
            known = crc64 if crc64 is not None else crc64_of(body)
            return {"ChecksumCRC64NVME": crc64_base64(known)}
        known, md5 = digests_of(body)
        if crc64 is not None and crc64 != known:
            raise SpoolError(
                "the bytes to send are not the bytes that were read and checked",
                hint="they changed on disk; check the host's disk and memory",
            )
        return {"ContentMD5": base64.b64encode(md5).decode("ascii")}

    def with_crc64(self, operation: str, write: Callable[[bool, Final], Answer]) -> Answer:
        """Write with CRC64NVME if the mode wants it; in mode auto without, if it is refused.

        That is remembered only if the same write succeeds without: then the checksum was the
        reason. A refused signature counts, too, until one such request has passed: some proxies
        change the header that is signed. `write` gets whether to send it, and the error that is
        not to be repeated. Raises what it raises, with the bytes of both attempts.
        """
        if not self.wants_crc64:
            return write(False, None)
        doubtful = self.is_doubtful(operation)
        try:
            answer = write(True, SignatureError if doubtful else None)
        except (UnsupportedError, RefusedError, SignatureError) as exc:
            is_signature = isinstance(exc, SignatureError)
            if self.config.checksum != "auto" or (is_signature and not doubtful):
                raise
            refused = exc
        else:
            self.accepts(operation)
            return answer
        try:
            answer = write(False, None)
        except StoreError as exc:
            exc.sent_bytes += refused.sent_bytes
            raise
        self._refused_signatures[operation] += is_signature
        self.refuses_crc64 = not is_signature or self._refused_signatures[operation] >= _SURE
        return answer

    def is_doubtful(self, operation: str) -> bool:
        """Whether this request may be refused for its CRC64NVME, and may go without."""
        return self.config.checksum == "auto" and operation not in self._accepted

    def accepts(self, operation: str) -> None:
        """Note that the store took a CRC64NVME with this request."""
        self._accepted.add(operation)

    @property
    def wants_crc64(self) -> bool:
        """Whether the next body is sent with a CRC64NVME."""
        return self.config.checksum in ("auto", "crc64nvme") and not self.refuses_crc64

    def confirm_crc64(self, answer: Mapping[str, Any], key: str, sent: int | None) -> int | None:
        """The CRC64NVME that the store has; raise if it is not that of the bytes sent."""
        kept = crc64_in(answer)
        if kept is None and self.config.checksum == "crc64nvme":
            raise no_crc64(key)
        if kept is not None and sent is not None and kept != sent:
            raise StoreError(f"the store's CRC64NVME of {key!r} is not that of the bytes sent")
        return kept


def crc64_in(answer: Mapping[str, Any]) -> int | None:
    """The CRC64NVME in an answer; None if it has none."""
    try:
        return crc64_from_base64(answer["ChecksumCRC64NVME"])
    except (KeyError, ValueError):
        return None


def no_crc64(key: str) -> StoreError:
    """The error for a store that must confirm a CRC64NVME and did not."""
    return StoreSettingError(
        f"the store did not confirm the CRC64NVME of {key!r}",
        hint="this store does not support this checksum; set checksum to auto or md5",
    )


def _same_kms_key(want: str, used: str) -> bool:
    """Stores answer with an ARN. What an alias means only the store knows."""
    if "alias/" in want:
        return bool(used)
    return used == want or used.endswith((f"/{want}", f":{want}"))
