"""`check` as a user meets it: real processes, what is printed, exit codes; no server answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.s3 import REGION

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
