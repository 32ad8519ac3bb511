"""`requests`: times in listings as botocore reads them, and data models that are found fast."""

import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import botocore.loaders
import pytest
from botocore.exceptions import DataNotFoundError, UnknownServiceError
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.store.requests import _Loader, _moment, any_session


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
    factory = any_session().core.get_component("response_parser_factory")
    parser = factory.create_parser("rest-xml")
    assert parser._timestamp_parser is _moment


LOOKS = """
import sys
looks = []
sys.addaudithook(lambda name, given: looks.append(given) if name == "os.listdir" else None)
from binlog2s3.store.requests import any_session
keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
looks.clear()
any_session().client("s3", **keys)
print(len(looks))
"""


def test_a_client_is_made_without_a_look_at_all_services() -> None:
    """Of the directories with data models, it lists those of S3: botocore has hundreds."""
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], check=True, capture_output=True, text=True, timeout=60
    )
    assert int(done.stdout) < 20


@pytest.mark.parametrize("name", ["s3", "sts", "sso", "sso-oidc"])
def test_the_models_of_credentials_are_found(name: str) -> None:
    """As botocore's own loader finds them."""
    own = botocore.loaders.create_loader()
    model = own.load_service_model(name, "service-2")
    assert _Loader().load_service_model(name, "service-2")["metadata"] == model["metadata"]


def test_an_unknown_service_is_botocores_error() -> None:
    """Also one that has a directory but no model of this type."""
    with pytest.raises(UnknownServiceError):
        _Loader().load_service_model("no-such-service", "service-2")
    with pytest.raises(DataNotFoundError):
        _Loader().load_service_model("s3", "no-such-type")
