"""The checksums of S3: CRC64NVME of bytes and objects, ETags of multipart uploads. Pure.

A checksum is an int in memory, hex in keys and entries (it sorts, and has no slashes), and base64
in requests.
"""

import base64
import binascii
import hashlib
from collections.abc import Iterable

from awscrt import checksums  # type: ignore[import-untyped]  # ships no types

_BYTES = 8


def crc64nvme(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """CRC64NVME of `data`, continued from `crc`, the checksum of the bytes before it.

    >>> crc64_hex(crc64nvme(b"789", crc64nvme(b"123456")))
    'ae8b14860a799888'
    """
    return int(checksums.crc64nvme(data, crc))


def crc64_of_blocks(blocks: Iterable[bytes]) -> int:
    """CRC64NVME of blocks, one after the other."""
    crc64 = 0
    for block in blocks:
        crc64 = crc64nvme(block, crc64)
    return crc64


def crc64_of_rest(before: int, whole: int, size: int) -> int:
    """CRC64NVME of the last `size` bytes, from the checksums of the bytes before them and of all.

    >>> crc64_hex(crc64_of_rest(crc64nvme(b"xyz"), crc64nvme(b"xyz123456789"), 9))
    'ae8b14860a799888'
    """
    return int(checksums.combine_crc64nvme(before, 0, size)) ^ whole


def crc64_of_both(before: int, after: int, size: int) -> int:
    """CRC64NVME of bytes, from those of the bytes before and of the last `size` bytes.

    >>> crc64_hex(crc64_of_both(crc64nvme(b"123456"), crc64nvme(b"789"), 3))
    'ae8b14860a799888'
    """
    return int(checksums.combine_crc64nvme(before, after, size))


def crc64_base64(crc: int) -> str:
    """The checksum in the form of S3's headers and listings: base64 of 8 bytes, big-endian."""
    return base64.b64encode(crc.to_bytes(_BYTES, "big")).decode("ascii")


def crc64_from_base64(text: str) -> int:
    """Inverse of `crc64_base64`. Raises ValueError if it is not base64 of 8 bytes."""
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not a base64 CRC64: {text!r}") from exc
    if len(raw) != _BYTES:
        raise ValueError(f"not a base64 CRC64: {text!r}")
    return int.from_bytes(raw, "big")


def crc64_hex(crc: int) -> str:
    """The checksum in the form of keys and entries: 16 hex digits, lower case."""
    return f"{crc:016x}"


def crc64_from_hex(text: str) -> int:
    """Inverse of `crc64_hex`. Raises ValueError if it is not 16 lower-case hex digits."""
    if len(text) != 2 * _BYTES or not set(text) <= set("0123456789abcdef"):
        raise ValueError(f"not a hex CRC64: {text!r}")
    return int(text, 16)


def md5(data: bytes | bytearray | memoryview) -> bytes:
    """MD5 of `data`, which is the ETag of a part. It does not protect against attackers."""
    return hashlib.md5(data, usedforsecurity=False).digest()


def composite_etag(md5s: Iterable[bytes]) -> str:
    """The ETag of an object made of parts with these MD5s, in this order.

    Stores compute it as the MD5 of the MD5s, except for objects encrypted with KMS or customer
    keys. So an equal ETag proves equal bytes, but a different one proves nothing.

    >>> composite_etag([md5(b"one"), md5(b"two")])
    '1397b7ee3222e3980d0d20f23a871b02-2'
    """
    parts = tuple(md5s)
    return f"{md5(b''.join(parts)).hex()}-{len(parts)}"
