"""What would let the suite lie: a store's lacks, a missing tool; and the demo."""

import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from lab.get import ServerBinaries
from lab.s3 import Store

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.stores("minio", "versitygw", "nanio", "s3s-fs")
def test_a_store_lacks_what_it_says_and_nothing_else(store: Store, bucket: str) -> None:
    """Tests that need a feature are skipped on a store without it: so that must be true."""
    lacking = set()
    with closing(store.client()) as client:
        client.put_object(Bucket=bucket, Key="a", Body=b"1", StorageClass="REDUCED_REDUNDANCY")
        if client.head_object(Bucket=bucket, Key="a").get("StorageClass") != "REDUCED_REDUNDANCY":
            lacking.add("storage classes")
        with suppress(ClientError):
            client.put_object(Bucket=bucket, Key="a", Body=b"2", IfNoneMatch="*")
            lacking.add("conditions")
        answer = client.put_object(Bucket=bucket, Key="b", Body=b"1", ServerSideEncryption="AES256")
        if answer.get("ServerSideEncryption") != "AES256":
            lacking.add("encryption")
        with suppress(ClientError):
            client.put_object(
                Bucket=bucket, Key="rotten", Body=b"1", ChecksumCRC64NVME="AAAAAAAAAAA="
            )
        with suppress(ClientError):
            client.head_object(Bucket=bucket, Key="rotten")
            lacking.add("checksums")
        upload_id = client.create_multipart_upload(Bucket=bucket, Key="c")["UploadId"]
        copied = client.upload_part_copy(
            Bucket=bucket, Key="c", UploadId=upload_id, PartNumber=1, CopySource=f"{bucket}/b"
        )
        if "ETag" not in copied["CopyPartResult"]:
            lacking.add("part copies")
        try:
            (found,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
        except ClientError:
            lacking.add("upload listing")
        else:
            assert found["UploadId"] == upload_id
    assert lacking == set(store.lacks)


def test_the_demo_falls_back_to_moto(tmp_path: Path) -> None:
    """Where MinIO cannot be had, it says so; tests/contract has what moto does."""
    script = (
        "from contextlib import ExitStack\nfrom pathlib import Path\nfrom lab.demo import _store\n"
        "with ExitStack() as stack:\n"
        f"  print(_store(stack, Path({str(tmp_path)!r})).make_bucket('demo'))\n"
    )
    environment = {**os.environ, "PATH": str(tmp_path), "BINLOG2S3_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (done.returncode, done.stdout) == (0, "demo\n"), done.stderr
    assert "falling back to moto" in done.stderr


def test_the_demo_ends_in_one_clear_line(
    mysql_binaries: ServerBinaries, minio_binary: Path
) -> None:
    """`make demo` compares every object, recovers from a DELETE and a DROP."""
    done = subprocess.run(
        [sys.executable, "-m", "lab.demo", "--seconds", "5"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    last = done.stdout.splitlines()[-1]
    assert (done.returncode, last[:3]) == (0, "OK:"), done.stdout + done.stderr
    assert "every object equals the server's file (SHA-256)" in last
    assert last.endswith("holds what the source held then (CHECKSUM TABLE)")
    assert "a DELETE without WHERE was undone on the live server" in last
    assert "as before the DELETE; others have committed" in done.stdout
    assert "DROP TABLE `demo`.`orders`" in done.stdout
    assert "falling back to moto" not in done.stderr
    assert mysql_binaries.server.is_file()
    assert minio_binary.is_file()
