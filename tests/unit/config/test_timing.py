"""The times that no option sets keep what the documents promise."""

from dataclasses import asdict

from binlog2s3.config.outside import DEFAULT
from tests.timed import hurried

LOOKS = 30.0
"""Until a look sees it: the source is asked each 2 s, a status is made each second, and a request
that was silent may begin to count only when the next one is due."""


def test_what_lasts_is_told_within_90_seconds() -> None:
    """Each threshold of /health leaves time for the looks (tests/integration/test_truth.py)."""
    thresholds = [name for name in asdict(DEFAULT) if name.endswith("_seconds")]
    thresholds = thresholds[: thresholds.index("fresh_seconds")]
    assert len(thresholds) == 8
    for name in thresholds:
        assert 0 < getattr(DEFAULT, name) + LOOKS <= 90, name
    assert DEFAULT.store_failing_seconds <= DEFAULT.store_silent_seconds


def test_an_end_is_over_within_10_seconds() -> None:
    """What is on its way gets some of them, the last heartbeat some, and half of them are left."""
    assert DEFAULT.drain_seconds + DEFAULT.farewell_seconds <= 5


def test_less_time_is_less_of_each_but_of_a_positions_age() -> None:
    """So that tests of what takes minutes run the same code in the same order."""
    whole, tenth = asdict(DEFAULT), asdict(hurried(10))
    assert tenth.pop("fresh_seconds") == whole.pop("fresh_seconds")
    assert tenth == {name: seconds / 10 for name, seconds in whole.items()}
