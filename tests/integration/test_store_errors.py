"""What goes wrong with a store, made for real: the error, its hint, its exit code.

Real servers refuse real keys; ports are really closed, silent, or somebody else's.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import boto3
import pytest

from binlog2s3.errors import StoreError, UnsupportedError
from binlog2s3.store.s3 import MendableError, RetryPolicy, S3Store, StoreConfig
from lab.disk import temporary_directory
from lab.fault import Rewrite, on
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, allow

ONCE = RetryPolicy(attempts=1)


def open_store(
    bucket: str,
    endpoint_url: str,
    *,
    access_key: str = "somebody",
    secret_key: str = "something",
    session_token: str | None = None,
    policy: RetryPolicy = ONCE,
    **config: Any,
) -> S3Store:
    """A store with these keys, whatever the environment has."""
    settings = {"region": "us-east-1", "connect_timeout_seconds": 60, "read_timeout_seconds": 60}
    session = boto3.Session(
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        aws_session_token=session_token,
    )
    return S3Store(
        StoreConfig(bucket=bucket, endpoint_url=endpoint_url, **{**settings, **config}),
        stop=threading.Event(),
        policy=policy,
        session=lambda **_: session,
    )


def root(minio: MinioServer, bucket: str, **more: Any) -> S3Store:
    """A store with all rights on MinIO."""
    keys = {"access_key": minio.access_key, "secret_key": minio.secret_key}
    settings: dict[str, Any] = {**keys, **more}
    return open_store(bucket, settings.pop("endpoint_url", minio.endpoint_url), **settings)


def refusal(store: S3Store) -> StoreError:
    """How the first look at the bucket fails."""
    with contextlib.closing(store), pytest.raises(StoreError) as caught:
        store.check_access()
    assert caught.value.exit_code == 6
    return caught.value


def test_a_session_that_expired(minio: MinioServer, bucket: str) -> None:
    """A session token that the store no longer takes asks for new credentials."""
    keys: dict[str, Any] = minio.restricted(allow("s3:*"))
    keys["session_token"] = keys["session_token"][:-6] + "AAAAAA"
    error = refusal(open_store(bucket, minio.endpoint_url, **keys))
    assert isinstance(error, MendableError)
    assert not error.transient
    assert "session" in str(error)
    assert "renew" in error.hint


CHILD = """
import sys, threading
from binlog2s3.store.s3 import RetryPolicy, S3Store, StoreConfig

config = StoreConfig(bucket=sys.argv[1], endpoint_url=sys.argv[2], region="us-east-1")
store = S3Store(config, stop=threading.Event(), policy=RetryPolicy(attempts=1))
try:
    store.check_access()
except Exception as exc:
    print(type(exc).__name__, exc, exc.hint, exc.exit_code, sep=chr(10))
"""


def in_a_child(environment: dict[str, str], bucket: str, endpoint_url: str) -> list[str]:
    """What a process with this environment says of the bucket: class, message, hint, exit code."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, bucket, endpoint_url],
        env={"PATH": os.defpath, "AWS_EC2_METADATA_DISABLED": "true", **environment},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout.splitlines()


def test_there_are_no_credentials(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """Nothing in the environment, no files, no role: the hint says where boto3 looks."""
    kind, message, hint, code = in_a_child({"HOME": str(tmp_path)}, bucket, minio.endpoint_url)
    assert (kind, code) == ("MendableError", "6")
    assert "no usable AWS credentials" in message
    assert "~/.aws/credentials" in hint


def test_a_credential_process_that_fails(minio: MinioServer, bucket: str, tmp_path: Path) -> None:
    """What it prints may be secret: botocore would repeat it."""
    profile = tmp_path / "config"
    profile.write_text("[default]\ncredential_process = sh -c 'echo s3cr3t >&2; exit 1'\n")
    given = {"HOME": str(tmp_path), "AWS_CONFIG_FILE": str(profile)}
    kind, message, hint, code = in_a_child(given, bucket, minio.endpoint_url)
    assert (kind, code) == ("MendableError", "6")
    assert "credential_process failed" in message
    assert "s3cr3t" not in message + hint


def test_tls_to_a_plain_port(minio: MinioServer, bucket: str) -> None:
    """https:// to a port that speaks plain HTTP: the hint names both ways out."""
    url = minio.endpoint_url.replace("http://", "https://")
    error = refusal(root(minio, bucket, endpoint_url=url))
    assert isinstance(error, MendableError)
    assert f"cannot set up TLS with {url}" in str(error)
    assert "http://" in error.hint
    assert "AWS_CA_BUNDLE" in error.hint


# Encryption


def test_another_key_encrypted_it(minio: MinioServer, bucket: str) -> None:
    """Encrypted, but with another KMS key than the one named: an error that names both."""
    other = Rewrite(headers={"x-amz-server-side-encryption-aws-kms-key-id": "arn:aws:kms:other"})
    with RecordingProxy(minio.endpoint_url, [on(other)]) as proxy:
        settings = {"sse": "aws:kms", "sse_kms_key_id": minio.kms_key_id}
        store = root(minio, bucket, endpoint_url=proxy.url, **settings)
        with pytest.raises(StoreError, match=f"arn:aws:kms:other, not with {minio.kms_key_id}"):
            store.put("a", b"secret")


def test_a_store_without_keys(minio_binary: Path) -> None:
    """MinIO without a KMS refuses encryption outright: unsupported, and nothing is stored."""
    with (
        temporary_directory() as directory,
        MinioServer(minio_binary, directory, kms=False) as server,
    ):
        bucket = server.make_bucket()
        for sse in ("AES256", "aws:kms"):
            store = root(server, bucket, sse=sse, sse_kms_key_id=None)
            with pytest.raises(UnsupportedError):
                store.put("a", b"x")
            with pytest.raises(UnsupportedError) as caught:
                store.create_upload("a")
            assert not caught.value.transient
        assert list(root(server, bucket).list("")) == []
