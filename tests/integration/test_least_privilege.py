"""The very policies and GRANTs of the guides: enough for all commands, and no more."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from lab.child import free_port
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import REGION, MinioServer, VersitygwServer, client_for
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.least_privilege import (
    BLOCK,
    BUCKET,
    FIRST,
    PASSWORD,
    ROOT,
    SOURCE,
    Policy,
    World,
    account,
    as_root,
    bucket_as_advised,
    clients_of,
    denied,
    empty,
    grants,
    looked_at,
    make_world,
    policy,
    privileges,
    recovered,
    served,
    without,
)
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def mysql_world(mysql_binaries: ServerBinaries, minio: MinioServer) -> Iterator[World]:
    yield from make_world(mysql_binaries, minio)


@pytest.fixture(scope="module")
def mariadb_world(mariadb_binaries: ServerBinaries, minio: MinioServer) -> Iterator[World]:
    yield from make_world(mariadb_binaries, minio)


@pytest.fixture(params=["mysql", "mariadb"])
def world(request: pytest.FixtureRequest) -> World:
    """Each flavour in turn."""
    made: World = request.getfixturevalue(f"{request.param}_world")
    return made


# Enough


def test_check_finds_nothing_that_lacks(world: World, disk_tmp_path: Path) -> None:
    """With the streamer's own rights: no privilege and no permission, and no bucket's setting."""
    done = world.run(
        policy("streamer", world.bucket),
        *("check", "--json", f"--source={SOURCE}", f"--spool={disk_tmp_path / 'spool'}"),
        *world.login,
        f"--mysqlbinlog={world.server.binaries.binlog}",
    )
    rows = json.loads(done.stdout)["parts"]
    ill = {row["part"] for row in rows if row["result"] != "ok"}
    assert done.status == 0, done.stdout
    assert ill <= ({"settings"} if world.server.binaries.flavour == "mariadb" else set())


@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_the_readers_commands(world: World) -> None:
    """The bucket alone, with the reader's rights: status, list, find, verify to the last byte."""
    assert json.loads(world.status)["writer"]["host"]  # while it streamed, from the bucket
    assert SOURCE in world.read("status", f"--source={SOURCE}")
    assert SOURCE in world.read("status", "--all")
    assert FIRST in world.read("list")
    assert "no defects" in world.read("verify", "--deep")
    assert "no defects" in world.read("verify", *world.login, "--against-source")
    found = json.loads(world.read("find", f"--source={SOURCE}", "--table=shop.orders", "--json"))
    assert len(found["transactions"]) >= 5


@pytest.mark.parametrize("world", ["mysql"], indirect=True)
def test_serve_sends_the_archives_bytes(world: World, disk_tmp_path: Path) -> None:
    """With its own policy `mysqlbinlog --raw` gets each closed binlog as it is in the archive.

    It asks by LIST, HEAD and GET alone, and nothing is denied.
    """
    into = disk_tmp_path / "raw"
    into.mkdir()
    with served(world, policy("serve", world.bucket), disk_tmp_path) as (port, status, records):
        wait_until(lambda: clients_of(status).status == 0, what="serve answers")
        fetch = [str(world.server.binaries.binlog), "--no-defaults", "--read-from-remote-server"]
        fetch += ["--host=127.0.0.1", f"--port={port}", "--user=replica", f"--password={PASSWORD}"]
        fetch += ["--ssl-mode=DISABLED"]
        fetch += ["--raw", "--to-last-log", f"--result-file={into}/", FIRST]
        done = subprocess.run(fetch, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        document = json.loads(clients_of(status).stdout)
    assert document["healthy"] is True
    there = Bucket(world.minio, world.bucket)
    assert len(there.archived()) == 2
    for name in there.archived():
        assert (into / name).read_bytes() == there.binlogs()[name], name
    assert {one.request.method for one in records} <= {"GET", "HEAD"}
    assert {one.status for one in records} <= {200, 206, 404, None}


@pytest.fixture(scope="module")
def targets() -> Iterator[Callable[[World], MysqlServer]]:
    """An empty server for recoveries, one of each flavour; as new each time it is asked for."""
    made: dict[str, MysqlServer] = {}
    with ExitStack() as stack:

        def fresh(world: World) -> MysqlServer:
            binaries = world.server.binaries
            if binaries.flavour not in made:
                options = ["--event-scheduler=OFF", "--log-slave-updates=ON"]
                directory = stack.enter_context(temporary_directory())
                made[binaries.flavour] = stack.enter_context(
                    server_of(binaries, directory, server_id=2, options=options)
                )
            empty(made[binaries.flavour])
            return made[binaries.flavour]

        yield fresh


def test_a_recovery(world: World, targets: Callable[[World], MysqlServer]) -> None:
    """`pitr` with the target's account as the page makes it: all rows are there."""
    target = targets(world)
    done = recovered(world, target, account(world))
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["result"]["how"] == "replication"
    rows = "SELECT id, SHA2(text, 256) FROM shop.orders ORDER BY id"
    assert target.query(rows) == world.server.query(rows)


# No more


def test_nothing_archived_is_deleted_or_lost(mysql_world: World) -> None:
    """With the streamer's keys: no delete, no overwrite with If-None-Match.

    MinIO has no permission that demands the condition: there the bucket's versions still have the
    binlog after an overwrite without it, and the streamer cannot delete those either.
    """
    minio, bucket = mysql_world.minio, mysql_world.bucket
    (key,) = (key for key in Bucket(minio, bucket).keys("prod/archive") if key.endswith(FIRST))
    keys = minio.restricted(policy("streamer", bucket))
    with (
        closing(client_for(minio.endpoint_url, **keys)) as client,
        closing(minio.client()) as root,
    ):
        before = client.get_object(Bucket=bucket, Key=key)
        version, data = before["VersionId"], before["Body"].read()
        assert denied(lambda: client.delete_object(Bucket=bucket, Key=key))
        assert denied(lambda: client.delete_object(Bucket=bucket, Key=key, VersionId=version))
        several: Any = {"Objects": [{"Key": key}]}
        (error,) = client.delete_objects(Bucket=bucket, Delete=several)["Errors"]
        assert error["Code"] == "AccessDenied"
        with pytest.raises(ClientError, match="PreconditionFailed"):
            client.put_object(Bucket=bucket, Key=key, Body=b"other", IfNoneMatch="*")
        other = client.put_object(Bucket=bucket, Key=key, Body=b"other")["VersionId"]
        try:
            assert denied(lambda: client.delete_object(Bucket=bucket, Key=key, VersionId=version))
            kept = root.get_object(Bucket=bucket, Key=key, VersionId=version)["Body"].read()
            assert kept == data
            found = mysql_world.run(policy("reader", bucket), "verify", "--json")
            (source,) = json.loads(found.stdout)["sources"]
            assert found.status == 7
            assert {one["kind"] for one in source["defects"]} & {"size", "checksum"}
        finally:
            root.delete_object(Bucket=bucket, Key=key, VersionId=other)
    assert "no defects" in mysql_world.read("verify")


def test_the_streamer_stays_in_its_own_place(mysql_world: World) -> None:
    """Neither another source's keys nor the bucket's settings are within its reach."""
    minio, bucket = mysql_world.minio, mysql_world.bucket
    keys = minio.restricted(policy("streamer", bucket))
    with closing(client_for(minio.endpoint_url, **keys)) as client:
        for key in ("prod/archive/other/x", "prod/live/other/x", "prod/x", "x"):
            assert denied(lambda key=key: client.put_object(Bucket=bucket, Key=key, Body=b"x"))
            assert denied(lambda key=key: client.get_object(Bucket=bucket, Key=key))
            assert denied(lambda key=key: client.delete_object(Bucket=bucket, Key=key))
        suspended: Any = {"Status": "Suspended"}
        for act in (
            lambda: client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration=suspended),
            lambda: client.delete_bucket_lifecycle(Bucket=bucket),
            lambda: client.put_bucket_policy(Bucket=bucket, Policy="{}"),
            lambda: client.delete_bucket(Bucket=bucket),
        ):
            assert denied(act)


def test_the_reader_writes_nothing(mysql_world: World) -> None:
    """No object is put, replaced or deleted, no upload begun; not even `verify --repair` may."""
    minio, bucket = mysql_world.minio, mysql_world.bucket
    before = Bucket(minio, bucket).keys()
    keys = minio.restricted(policy("reader", bucket))
    with closing(client_for(minio.endpoint_url, **keys)) as client:
        for key in ("prod/live/x", "prod/archive/x", before[0], before[-1]):
            copy = {"Bucket": bucket, "Key": before[0]}
            for act in (
                lambda key=key: client.put_object(Bucket=bucket, Key=key, Body=b"x"),
                lambda key=key: client.put_object(
                    Bucket=bucket, Key=key, Body=b"x", IfNoneMatch="*"
                ),
                lambda key=key: client.create_multipart_upload(Bucket=bucket, Key=key),
                lambda key=key: client.delete_object(Bucket=bucket, Key=key),
                lambda key=key, copy=copy: client.copy_object(
                    Bucket=bucket, Key=key, CopySource=copy
                ),
            ):
                assert denied(act)
        assert denied(lambda: client.get_object(Bucket=bucket, Key="other/x"))
    assert Bucket(minio, bucket).keys() == before


def test_what_is_archived_is_put_as_the_bucket_policy_demands(world: World) -> None:
    """Each request that would make an object where write-once.json speaks has If-None-Match.

    So the policy, of which AWS alone has the conditions, denies nothing of what was sent here.
    """
    (statement,) = policy("write-once", world.bucket)["Statement"]
    assert statement["Condition"] == {
        "Null": {"s3:if-none-match": "true"},
        "Bool": {"s3:ObjectCreationOperation": "true"},
    }
    patterns = [arn.removeprefix("arn:aws:s3:::") for arn in statement["Resource"]]
    made = [
        one.request
        for one in world.records
        if any(fnmatchcase(one.request.path.lstrip("/"), pattern) for pattern in patterns)
        and (
            (one.request.method == "PUT" and "partNumber=" not in one.request.query)
            or (one.request.method == "POST" and one.request.query.startswith("uploadId="))
        )
    ]
    # one of parts, one in a piece, an entry of each, the lineage, and its turn
    assert sorted(request.method for request in made) == ["POST", *["PUT"] * 5]
    assert {request.headers.get("if-none-match") for request in made} == {"*"}


@pytest.mark.parametrize("fixture", ["minio", "versitygw"])
def test_who_does_not_know_the_condition_refuses_the_policy(
    request: pytest.FixtureRequest, fixture: str
) -> None:
    """Neither MinIO nor versitygw takes write-once.json, and neither takes it without effect."""
    store: MinioServer | VersitygwServer = request.getfixturevalue(fixture)
    bucket = store.make_bucket()
    document = json.dumps(policy("write-once", bucket))
    with closing(store.client()) as client, pytest.raises(ClientError, match="condition key"):
        client.put_bucket_policy(Bucket=bucket, Policy=document)


def test_the_buckets_commands(
    minio: MinioServer, bucket: str, aws_command: Path, tmp_path: Path
) -> None:
    """They make of a plain bucket one in which `check` finds nothing to mend."""
    page = (ROOT / "docs/guides/bucket.md").read_text(encoding="utf-8")
    found = re.search(r"^<!-- commands: bucket -->\n\n```sh\n(.*?)^```", page, BLOCK)
    assert found
    env = command.environment(**minio.env())
    env |= {"AWS_ENDPOINT_URL": minio.endpoint_url, "AWS_DEFAULT_REGION": REGION}
    env["PATH"] = f"{aws_command.parent}:{env['PATH']}"
    script = found[1].replace(BUCKET, bucket)
    rights = policy("streamer", bucket)
    subprocess.run(["bash", "-e", "-c", script], check=True, cwd=tmp_path, env=env, timeout=120)
    assert looked_at(minio, bucket, rights) == {}


@pytest.mark.parametrize("name", ["streamer", "serve", "reader"])
def test_who_makes_the_page_may(mysql_world: World, name: str) -> None:
    """The streamer's keys, and those of `serve`, are enough for the page that they show at /."""
    rights = policy(name, mysql_world.bucket)
    done = mysql_world.run(rights, "report", "--html=-", f"--source={SOURCE}")
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout.startswith("<!doctype html>")


# Each statement is needed


def test_each_permission_of_the_streamer_is_needed(minio: MinioServer) -> None:
    """Without any one of them, at any of its resources, `check` names it; with all, nothing.

    But s3:ListBucketVersions, which MinIO, unlike AWS, takes for allowed with s3:ListBucket.
    """
    bucket = bucket_as_advised(minio)
    whole = policy("streamer", bucket)
    assert looked_at(minio, bucket, whole) == {}
    optional = set()
    for statement in whole["Statement"]:
        for action in sorted({*statement["Action"]} - {"s3:ListBucketVersions"}):
            for resource in statement["Resource"]:
                optional_only = statement["Sid"] == "LookAtTheBucket"
                where = resource if "/" in resource else "" if optional_only else "/live/"
                ill = looked_at(minio, bucket, without(whole, action, resource), where)
                named = [row for row in ill.values() if action in row.hint]
                assert named, (action, resource, ill)
                if {row.result for row in ill.values()} == {"warn"}:
                    optional.add(statement["Sid"])
    assert optional == {"LookAtTheBucket"}
    with closing(minio.client()) as client:  # what could not be deleted was not put
        assert "Contents" not in client.list_objects_v2(Bucket=bucket)


def without_versions(document: Policy) -> Policy:
    """A policy without s3:GetObjectVersion, which MinIO, unlike AWS, takes for s3:GetObject."""
    for resource in [r for one in document["Statement"] for r in one["Resource"]]:
        document = without(document, "s3:GetObjectVersion", resource)
    return document


@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:GetObject"])
def test_each_permission_of_the_reader_is_needed(mysql_world: World, action: str) -> None:
    """Without it nothing can be listed, and the error names it."""
    whole = without_versions(policy("reader", mysql_world.bucket))
    (resource,) = (
        r for one in whole["Statement"] if action in one["Action"] for r in one["Resource"]
    )
    done = mysql_world.run(without(whole, action, resource), "list", f"--source={SOURCE}")
    assert done.status == 6
    assert action in done.stderr


@pytest.mark.parametrize("action", ["s3:ListBucket", "s3:GetObject"])
def test_each_permission_of_serve_is_needed(mysql_world: World, action: str) -> None:
    """Without it `serve` ends at its start, and the error names it."""
    left = without_versions(policy("serve", mysql_world.bucket))
    for resource in [r for one in left["Statement"] for r in one["Resource"]]:
        left = without(left, action, resource)
    words = [f"--source={SOURCE}", "--user=replica", f"--listen=127.0.0.1:{free_port()}"]
    words += [f"--password-file={mysql_world.password_file}"]
    done = mysql_world.run(left, "serve", *words)
    assert done.status == 6
    assert action in done.stderr


def test_each_privilege_at_the_source_is_needed(world: World, disk_tmp_path: Path) -> None:
    """Without it `check` fails, or warns if the stream works without it, and names the GRANT."""
    flavour = world.server.binaries.flavour
    statements = [one.replace("'binlog2s3'", "'lesser'") for one in grants(f"{flavour} source")]
    for privilege, left in privileges(statements):
        as_root(world.server, "DROP USER IF EXISTS 'lesser'@'%'", *left)
        done = world.run(
            policy("streamer", world.bucket),
            *("check", "--json", f"--source={SOURCE}", f"--spool={disk_tmp_path / 'spool'}"),
            *world.login,
            "--mysql-user=lesser",
            f"--mysqlbinlog={world.server.binaries.binlog}",
        )
        name = privilege.partition(" ON ")[0]
        (row,) = (row for row in json.loads(done.stdout)["parts"] if row["name"] == name)
        does_without = name == "PROCESS"
        assert (done.status, row["result"]) == ((0, "warn") if does_without else (4, "fail"))
        assert row["hint"].startswith(f"GRANT {name} ON *.* TO 'lesser'@'%'")
    as_root(world.server, "DROP USER 'lesser'@'%'")


def test_each_privilege_at_the_target_is_needed(
    world: World, targets: Callable[[World], MysqlServer]
) -> None:
    """Without it the recovery ends with an error and the GRANTs, never with less than all.

    A dry run tries none: it says so, with the statements of the page.
    """
    done = recovered(world, targets(world), account(world), "--dry-run")
    assert done.status == 0, done.stderr
    (said,) = (one for one in json.loads(done.stdout)["plan"]["warnings"] if "not tried" in one)
    for statement in account(world):
        assert not statement.startswith("GRANT ") or statement in said
    for privilege, left in privileges(account(world)):
        done = recovered(world, targets(world), left)
        assert done.status in (4, 8), privilege
        assert "Traceback" not in done.stderr
        assert "GRANT " in done.stderr, (privilege, done.stderr)
