"""`requests`: times in listings as botocore reads them, and data models that are found fast."""

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import botocore.loaders
import botocore.session
import pytest
from botocore.exceptions import DataNotFoundError, UnknownServiceError
from botocore.utils import parse_timestamp
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.store.requests import _Loader, _moment, any_session

SERVICES = ["s3", "sts", "sso", "sso-oidc"]
"""Those that are asked: the store, and what gives credentials."""
REGIONS = ["us-east-1", "eu-central-1", "us-gov-west-1", "cn-north-1", "us-iso-east-1", "xx-new-9"]


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


def silent(model: object) -> object:
    """Without the text of any documentation, as plain dicts and lists."""
    if isinstance(model, dict):
        hidden = isinstance(model.get("documentation"), str)
        return {
            name: "" if hidden and name == "documentation" else silent(part)
            for name, part in model.items()
        }
    return [silent(part) for part in model] if isinstance(model, list) else model


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("kind", ["service-2", "endpoint-rule-set-1"])
def test_data_models_are_botocores_own_without_documentation(name: str, kind: str) -> None:
    """Those of S3 and of the services that give credentials."""
    own = botocore.loaders.create_loader().load_service_model(name, kind)
    found = _Loader().load_service_model(name, kind)
    assert found == silent(own)
    assert "<p>" not in json.dumps(found)


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("region", REGIONS)
def test_endpoints_are_botocores_own(name: str, region: str) -> None:
    """In each partition, and in a region that nobody knows yet."""
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}

    def made(session: botocore.session.Session) -> tuple[str, ...]:
        meta = session.create_client(name, region_name=region, **keys).meta
        return meta.endpoint_url, meta.region_name, meta.partition, meta.config.signature_version

    assert made(any_session().core) == made(botocore.session.Session())


def test_an_unknown_service_is_botocores_error() -> None:
    """Also one that has a directory but no model of this type."""
    with pytest.raises(UnknownServiceError):
        _Loader().load_service_model("no-such-service", "service-2")
    with pytest.raises(DataNotFoundError):
        _Loader().load_service_model("s3", "no-such-type")
