"""Which host boto3's settings lead to; nothing is sent."""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest

from binlog2s3.store.contract import StoreConfig
from binlog2s3.store.requests import _connect, any_session

REGION = "eu-central-1"


class Sent(Exception):  # noqa: N818 - it says what would be sent
    """Stops a request before it is sent."""


def host(monkeypatch: pytest.MonkeyPatch, path: Path, bucket: str = "bucket", **given: str) -> str:
    """The host to which a request would go."""
    path.write_text("")
    own = {"AWS_CONFIG_FILE": str(path), "AWS_SHARED_CREDENTIALS_FILE": str(path)}
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    for name, value in {**own, **keys, **given}.items():
        monkeypatch.setenv(name, value)

    def stop(request: AWSPreparedRequest, **_: object) -> None:
        raise Sent(request.url)

    client: Any = _connect(StoreConfig(bucket=bucket, region=REGION), any_session)
    client.meta.events.register_first("before-send.s3", stop)
    with pytest.raises(Sent) as caught:
        client.get_object(Bucket=bucket, Key="k")
    client.close()
    return str(urlsplit(str(caught.value)).hostname)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "bucket.s3.eu-central-1.amazonaws.com"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, "bucket.s3-fips.eu-central-1.amazonaws.com"),
        (
            {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "bucket.s3.dualstack.eu-central-1.amazonaws.com",
        ),
        (
            {"AWS_USE_FIPS_ENDPOINT": "true", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "bucket.s3-fips.dualstack.eu-central-1.amazonaws.com",
        ),
        ({"AWS_ENDPOINT_URL_S3": "https://s3.example"}, "s3.example"),
    ],
)
def test_settings_of_boto3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], expected: str
) -> None:
    """FIPS, dual stack, and an endpoint from the environment."""
    assert host(monkeypatch, tmp_path / "none", **given) == expected


def test_an_access_point_by_its_alias(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An alias is used as a bucket's name."""
    alias = "binlogs-1a2b3c4d5e6f7g8h9i0jklmnopqrseuc1a-s3alias"
    expected = f"{alias}.s3.eu-central-1.amazonaws.com"
    assert host(monkeypatch, tmp_path / "none", alias) == expected
