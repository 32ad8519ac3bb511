"""`store_requests`: times in listings, by the thousand, as botocore reads them."""

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.store.requests import _moment, any_session


@given(
    st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)),  # noqa: DTZ001 - made aware below
    st.sampled_from(["seconds", "milliseconds", "microseconds"]),
)
def test_times_of_listings(moment: datetime, precision: str) -> None:
    """All that stores write: the same moment, and it knows its zone."""
    text = moment.isoformat(timespec=precision) + "Z"
    found = _moment(text)
    assert found == parse_timestamp(text)
    assert found.utcoffset() == UTC.utcoffset(None)


@pytest.mark.parametrize(
    "value",
    [
        "Sun, 22 Nov 2026 20:10:00 GMT",
        "2026-11-22T20:10:00+02:00",
        "2026-11-22T20:10:00.123456789Z",
        "20261122T201000Z",
        1795378200,
        1795378200.5,
        "1795378200",
    ],
)
def test_other_forms_are_left_to_botocore(value: Any) -> None:
    """Headers, numbers, forms of other stores."""
    assert _moment(value) == parse_timestamp(value)


@pytest.mark.parametrize("value", ["2026-13-45T99:99:99Z", "", "soon"])
def test_what_is_no_time(value: str) -> None:
    """It is botocore's error, which the requests know."""
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        _moment(value)


def test_the_sessions_read_so() -> None:
    """Each session that is made here, whatever others do."""
    factory = any_session()._session.get_component("response_parser_factory")
    parser = factory.create_parser("rest-xml")
    assert parser._timestamp_parser is _moment
