"""Digests: known values, running digests, and their spellings back and forth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.checksum import (
    composite_etag,
    crc64_base64,
    crc64_from_base64,
    crc64_from_hex,
    crc64_hex,
    crc64nvme,
    md5,
)

CRCS = st.integers(min_value=0, max_value=2**64 - 1)


def bit_by_bit(data: bytes) -> int:
    """CRC64NVME as its parameters define it: reflected polynomial, all ones in and out."""
    crc = 2**64 - 1
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x9A6C9329AC4BC9B5 if crc & 1 else 0)
    return crc ^ 2**64 - 1


def test_the_published_check_value() -> None:
    """The catalogue of CRCs gives AE8B14860A799888 for the nine digits."""
    assert crc64_hex(crc64nvme(b"123456789")) == "ae8b14860a799888"


@given(st.binary(max_size=300))
def test_it_is_the_crc_it_says(data: bytes) -> None:
    """For any bytes it equals the definition, computed bit by bit."""
    assert crc64nvme(data) == bit_by_bit(data)


@given(st.lists(st.binary(max_size=100)))
def test_a_digest_goes_on_where_it_stopped(pieces: list[bytes]) -> None:
    """Piece by piece, of any buffer, it is the digest of the whole."""
    crc = 0
    for piece in pieces:
        crc = crc64nvme(memoryview(bytearray(piece)), crc)
    assert crc == crc64nvme(b"".join(pieces))


@given(CRCS)
def test_spellings_come_back(crc: int) -> None:
    """Hex and base64 both give the number back; hex has 16 lower-case digits and sorts."""
    assert crc64_from_hex(crc64_hex(crc)) == crc
    assert crc64_from_base64(crc64_base64(crc)) == crc
    assert len(crc64_hex(crc)) == 16
    assert crc64_hex(crc) == crc64_hex(crc).lower()


@given(CRCS, CRCS)
def test_hex_sorts_as_the_numbers(one: int, other: int) -> None:
    """Keys that carry it sort as the digests do."""
    assert (crc64_hex(one) < crc64_hex(other)) == (one < other)


def test_base64_as_s3_writes_it() -> None:
    """Big-endian, 8 bytes: what MinIO answers for a hundred times `x`."""
    assert crc64_base64(crc64nvme(b"x" * 100)) == "EYfZ6+g5kmA="


@pytest.mark.parametrize(
    "text", ["", "0", "AE8B14860A799888", "ae8b14860a79988", "0xae8b14860a7998", "ae8b14860a79988_"]
)
def test_what_is_no_hex_digest(text: str) -> None:
    """Only 16 lower-case digits are one, whatever Python's int would take."""
    with pytest.raises(ValueError, match="hex"):
        crc64_from_hex(text)


@pytest.mark.parametrize("text", ["", "AAAA", "not base64!!", "EYfZ6+g5kmA", "EYfZ6+g5kmA=-2"])
def test_what_is_no_base64_digest(text: str) -> None:
    """Only 8 bytes are one; a composite checksum with its count is not."""
    with pytest.raises(ValueError, match="base64"):
        crc64_from_base64(text)


def test_a_composite_etag() -> None:
    """MD5 of the parts' MD5s, and their number, as MinIO and moto answer for 100 times `x`."""
    assert md5(b"x" * 100).hex() == "aed563ecafb4bcc5654c597a421547b2"
    assert composite_etag([md5(b"x" * 100)]) == "bccb8986cc6b395e4f045d410c776698-1"
    assert composite_etag(iter([md5(b"one"), md5(b"two")])).endswith("-2")


@pytest.mark.parametrize("text", ["0123456789abcdef", "fedcba9876543210", "0" * 16, "f" * 16])
def test_every_digit_is_one(text: str) -> None:
    """Also where all sixteen are there."""
    assert crc64_hex(crc64_from_hex(text)) == text
