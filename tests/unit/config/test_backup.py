"""What `backup add` and `status` are asked about base backups, judged as a whole."""

from typing import Any

import pytest

from binlog2s3.archive.codec import Text, converted
from binlog2s3.config.backup import BACKUP, MOST_CHARACTERS
from binlog2s3.config.given import Given
from binlog2s3.config.status import STATUS

WHERE = {"source": "orders", "s3-url": "s3://bucket/pre", "gtid-set": "x"}


@pytest.mark.parametrize("name", ["label", "location"])
def test_a_text_that_the_format_has_no_room_for_is_refused(name: str) -> None:
    """Before anything is asked of the bucket."""
    _, problems = BACKUP["add"].build(Given(WHERE | {name: "x" * (MOST_CHARACTERS + 1)}))
    assert problems == [f"--{name} has more than 1024 characters"]
    assert converted("x" * MOST_CHARACTERS, Text)
    with pytest.raises(ValueError, match="length <= 1024"):
        converted("x" * (MOST_CHARACTERS + 1), Text)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"all": True}, ""),
        ({"watch": True}, ""),
        ({"from": "daemon"}, "contradict each other"),
        ({"s3-url": None}, "needs --s3-url"),
    ],
)
@pytest.mark.parametrize("age", ["backup-max-age", "drill-max-age"])
def test_an_age_needs_the_bucket(age: str, given: dict[str, Any], problem: str) -> None:
    """With every form of the output; an alarm that cannot work is refused."""
    _, problems = STATUS.build(Given({"s3-url": "s3://bucket/pre", age: 86_400.0, **given}))
    assert bool(problems) == bool(problem), problems
    assert all(problem in one for one in problems)
