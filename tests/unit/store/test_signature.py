"""`signature`: what it signs, botocore signs in the same way, for every key and credential."""

from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.store.signature import signed

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)


def by_botocore(
    method: str, url: str, headers: dict[str, str], keys: tuple[str, str, str | None], region: str
) -> dict[str, str]:
    """Its own signer in Python, at this moment."""
    asked = AWSRequest(method, url, headers=headers)
    asked.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials(*keys), "s3", region).add_auth(asked)
    return {name.lower(): value for name, value in asked.headers.items()}


@given(
    method=st.sampled_from(["GET", "HEAD"]),
    key=st.text(min_size=1, max_size=60).filter(lambda text: text.isprintable()),
    keys=st.tuples(WORDS, WORDS, st.none() | WORDS),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
    more=st.sampled_from([{}, {"x-amz-checksum-mode": "ENABLED"}]),
)
def test_it_is_botocores(
    method: str,
    key: str,
    keys: tuple[str, str, str | None],
    region: str,
    more: dict[str, str],
) -> None:
    """Keys of all kinds, with a session token and without, with a header more and without."""
    target = "/bucket/" + quote(key, safe="/~")
    theirs = by_botocore(method, f"http://store.test:9000{target}", more, keys, region)
    moment = datetime.strptime(theirs["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = signed(
        method,
        target,
        {"Host": "store.test:9000", **more},
        access_key=keys[0],
        secret_key=keys[1],
        token=keys[2],
        region=region,
        service="s3",
        now=moment,
    )
    found = {name.lower(): value for name, value in ours.items()}
    assert found.pop("host") == "store.test:9000"
    assert found == theirs


@pytest.mark.parametrize("changed", ["secret_key", "token", "region", "target", "method", "now"])
def test_everything_counts(changed: str) -> None:
    """Another secret, token, region, path, method or moment is another signature."""
    known = {
        "method": "GET",
        "target": "/b/k",
        "access_key": "key",
        "secret_key": "secret",
        "token": "token",
        "region": "r",
        "now": NOW,
    }
    other = known | {changed: NOW.replace(second=1) if changed == "now" else "HEAD"}

    def signature(words: dict[str, object]) -> str:
        rest = {name: words[name] for name in words if name not in ("method", "target")}
        place = {"headers": {"Host": "h"}, "service": "s3"}
        found = signed(words["method"], words["target"], **place, **rest)  # type: ignore[arg-type]
        return found["Authorization"].rpartition("Signature=")[2]

    assert signature(known) != signature(other)
    assert signature(known) == signature(dict(known))
