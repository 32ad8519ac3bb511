"""`check` as a user meets it: real processes, what is printed, exit codes; no server answers."""

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.archive.layout import Layout
from lab.s3 import REGION, MotoServer
from tests.documents import BEAT, LINEAGE

NOWHERE = "http://127.0.0.1:1"


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
    done = subprocess.run(
        [sys.executable, "-m", "binlog2s3", *arguments],
        capture_output=True,
        check=False,
        env=given | environment,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def options(spool: Path, endpoint: str, bucket: str) -> list[str]:
    return [
        "--source=orders",
        "--mysql-host=127.0.0.1",
        "--mysql-port=1",
        "--mysql-user=repl",
        f"--spool={spool}",
        f"--s3-url=s3://{bucket}/pre",
        f"--endpoint-url={endpoint}",
        "--addressing-style=path",
        f"--region={REGION}",
    ]


def test_help_says_what_it_does() -> None:
    """With an example for people and one for programs, and the exit codes."""
    done = run("check", "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert "binlog2s3 check --config /etc/binlog2s3/orders-primary.toml" in done.stdout
    assert "--json" in done.stdout
    assert "Exit codes" in done.stdout
    assert re.search(r"^  check +Check everything", run("-h").stdout, re.MULTILINE)


def test_a_configuration_that_is_wrong() -> None:
    """Exit 3: each problem is a row that fails, and nothing else was looked at."""
    done = run("check", "--source=orders", "--part-size=3", "--mysql-password-file=/nowhere")
    assert (done.returncode, done.stderr) == (3, "")
    failing = re.findall(r"^  FAIL +configuration +options +(.*)$", done.stdout, re.MULTILINE)
    assert failing == [
        "--part-size: '3' is below the minimum, 5 MiB",
        "--s3-url is missing",
        "--mysql-user is missing (or a --mysql-defaults-file that names it)",
        "--mysql-password-file: /nowhere: no such file or directory",
    ]
    assert done.stdout.splitlines()[-1] == (
        "4 FAIL, 0 WARN, 0 OK, 9 not checked: exit code 3 (--all shows each row)"
    )
    assert "not checked:" not in "".join(done.stdout.splitlines(keepends=True)[:-1])
    assert done.stdout.count("hint: see ") == 1
    done = run("check", "--source=orders", "--all")
    assert done.stdout.count("not checked: the configuration is not valid") == 9
    document = json.loads(run("check", "--source=orders", "--json").stdout)
    assert document["exit_code"] == 3
    assert {row["result"] for row in document["parts"]} == {"fail", "skipped"}


def test_a_file_serves_as_for_stream(tmp_path: Path) -> None:
    """Its options count; what is wrong in it is named as the file has it."""
    file = tmp_path / "x.toml"
    file.write_text('[stream]\nsource = "orders"\n[spool]\nmax_bytes = "little"\n')
    done = run("check", "--config", str(file))
    assert done.returncode == 3
    assert f"[spool] max_bytes of {file}" in done.stdout


def test_everything_is_tried(tmp_path: Path) -> None:
    """Neither server nor store answer: the first that fails gives the code, the spool is told."""
    done = run("check", *options(tmp_path / "spool", NOWHERE, "binlogs"), "--json", **keys())
    document = json.loads(done.stdout)
    assert (done.returncode, document["format"], document["exit_code"]) == (4, 1, 4)
    failing = [(row["part"], row["name"]) for row in document["parts"] if row["result"] == "fail"]
    assert failing == [("server", "reachable"), ("store", "reachable")]
    rows = {(row["part"], row["name"]): row for row in document["parts"]}
    assert rows["spool", "directory"]["result"] == "ok"
    assert all(row["hint"] for row in document["parts"] if row["result"] in ("warn", "fail"))
    assert not (tmp_path / "spool").exists()


def keys() -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}


@pytest.mark.parametrize("readable", [True, False])
def test_a_password_file_without_a_password_in_it(tmp_path: Path, *, readable: bool) -> None:
    """What the option file says wrongly is the login's failure, as `stream`'s: 4, and only that."""
    file = tmp_path / "my.cnf"
    file.write_text("[client]\npassword=secret-1\n" if readable else "[client]\nport=none\n")
    file.chmod(0o600)
    given = [*options(tmp_path / "spool", NOWHERE, "binlogs"), f"--mysql-defaults-file={file}"]
    given.remove("--mysql-port=1")
    done = run("check", *given, "--json", **keys())
    rows = {(row["part"], row["name"]): row for row in json.loads(done.stdout)["parts"]}
    assert "secret-1" not in done.stdout + done.stderr
    assert rows["server", "login"]["result"] == ("ok" if readable else "fail")
    assert done.returncode == 4
    assert rows["spool", "directory"]["result"] == "ok"


def test_readers_do_not_mind_what_a_killed_check_left(moto: MotoServer, tmp_path: Path) -> None:
    """`list`, `status` and `verify` of that source say what they would say without."""
    bucket, layout = moto.make_bucket(), Layout("pre", "orders")
    lineage = replace(LINEAGE, source="orders", gtid_set="")
    # so long an interval that the writer is not dead in the middle of the test
    beat = replace(
        BEAT, source="orders", lineage=lineage.id, covered_until=None, interval_seconds=3600.0
    )
    where = [f"--s3-url=s3://{bucket}/pre", f"--endpoint-url={moto.endpoint_url}",
             "--addressing-style=path", f"--region={REGION}", "--source=orders"]  # fmt: skip
    commands = (
        ["status", "--from=bucket", "--json", *where],
        ["list", *where],
        ["verify", *where],
    )

    def said() -> list[tuple[int, str, str]]:
        done = [run(*words, **moto.env()) for words in commands]
        times = re.compile(
            r"[0-9]+(\.[0-9]+)?( s| min| h| d)?|\d{4}-[-0-9T:.]+Z|\"at_least\": (true|false)"
        )  # the lag is a lower bound once the heartbeat is old
        return [(one.returncode, times.sub("", one.stdout), one.stderr) for one in done]

    with closing(moto.client()) as client:
        for key, body in (
            (layout.lineage(lineage.id), lineage.to_json()),
            (layout.writer(beat.generation, beat.token), beat.to_json()),
        ):
            client.put_object(Bucket=bucket, Key=key, Body=body)
        before = said()
        assert [code for code, _, _ in before] == [0, 0, 7]  # verify misses the binlogs
        client.put_object(Bucket=bucket, Key=f"{layout.probes('0123abcd')}object", Body=b"x")
        for key in (f"{layout.probes('0123abcd')}upload", f"{layout.archive}check-0123abcd/upload"):
            client.create_multipart_upload(Bucket=bucket, Key=key)
        writer = layout.writer(beat.generation, beat.token)
        client.put_object(Bucket=bucket, Key=writer, Body=beat.to_json())  # as young as before
    assert said() == before
    done = run("check", *options(tmp_path, moto.endpoint_url, bucket), "--all", **moto.env())
    assert done.returncode == 4
    assert re.search(r"^  OK +store +clean-up", done.stdout, re.MULTILINE)
