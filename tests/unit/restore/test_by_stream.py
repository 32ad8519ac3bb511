"""What is said when a client does not load a dump."""

import pytest

from binlog2s3.restore.by_stream import _advice


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("ERROR 3510 (HY000) at line 1105: Tablespace ts1 doesn't exist.", "physical backup"),
        ("ERROR 3548 (SR001) at line 1105: There's no spatial reference system", "physical backup"),
        ("ERROR 6125 (HY000) at line 1128: Failed to add", "restrict-fk-on-non-standard-key=OFF"),
        ("ERROR 1064 (42000) at line 3510: You have an error", "of the source's version"),
    ],
)
def test_the_hint_is_of_what_the_client_said(said: str, hint: str) -> None:
    """Another server program does not load what no dump has."""
    assert hint in _advice(said)
