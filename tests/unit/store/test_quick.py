"""`store_quick`: where it would ask, for buckets that only AWS has."""

import io
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from binlog2s3.store.contract import StoreConfig
from binlog2s3.store.quick import QuickStore

ACCESS_POINT = "arn:aws:s3:eu-west-1:123456789012:accesspoint/ap"


class _Body(io.BytesIO):
    def stream(self) -> Iterator[bytes]:
        yield self.read()


def answered(request: Any, **_: Any) -> AWSResponse:
    """Botocore takes this for the store's answer, and sends nothing."""
    headers = {"ETag": '"x"', "Content-Length": "4"}
    return AWSResponse(request.url, 200, headers, _Body(b"data"))


@pytest.mark.parametrize(
    ("bucket", "url", "region"),
    [
        ("bucket", "https://bucket.s3.eu-central-1.amazonaws.com", "eu-central-1"),
        ("a.b", "https://s3.eu-central-1.amazonaws.com/a.b", "eu-central-1"),
        (
            ACCESS_POINT,
            "https://ap-123456789012.s3-accesspoint.eu-west-1.amazonaws.com",
            "eu-west-1",
        ),
    ],
)
def test_address_and_region_are_those_of_boto3(bucket: str, url: str, region: str) -> None:
    """A virtual host, a name that TLS does not allow there, an access point of another region."""
    session = boto3.Session("key", "secret", region_name="eu-central-1")
    session.events.register("before-send.s3", answered)
    config = StoreConfig(bucket=bucket, region="eu-central-1")
    with closing(QuickStore(config, stop=threading.Event(), session=lambda **_: session)) as quick:
        assert quick.get("p/ä+&<>'%2F.~ x/") == b"data"
        way = quick._shortcut._way
    assert way is not None
    assert (way.url, way.region, way.service) == (url, region, "s3")
