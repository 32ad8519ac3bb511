"""`config`, `completion` and `man`, as a user meets them."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from binlog2s3.config import file as sample
from tests import command

SECRET = "hunter2-not-to-be-seen"


def test_the_example() -> None:
    """It is printed whatever is configured, and nothing else."""
    done = command.start("config", "--example", BINLOG2S3_CONFIG="/no/such.toml")
    assert (done.returncode, done.stdout, done.stderr) == (0, sample.example(), "")


def test_what_is_in_force(tmp_path: Path) -> None:
    """Command line over environment over file over default, each with its place; no secrets."""
    password = tmp_path / "password"
    password.write_text(SECRET)
    file = tmp_path / "orders.toml"
    file.write_text(
        f'[stream]\nsource = "orders"\n[s3]\nurl = "s3://bucket"\nregion = "a"\n'
        f'[mysql]\nuser = "u"\nhost = "h"\npassword_file = "{password}"\n'
        '[target]\nhost = "t"\n'
    )
    environment = {"BINLOG2S3_REGION": "b", "BINLOG2S3_MYSQL_HOST": "i"}
    shown = ("config", "--show", "--config", str(file), "--mysql-host=j")
    done = command.start(*shown, AWS_SECRET_ACCESS_KEY=SECRET, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    found = tomllib.loads(done.stdout)
    assert found["mysql"]["host"] == "j"
    assert found["s3"] == {
        "url": "s3://bucket",
        "region": "b",
        "addressing_style": "auto",
        "checksum": "auto",
        "part_size": 5 << 20,
        "concurrency": 32,
    }
    assert found["target"] == {"host": "t", "connect_timeout": 10}
    for line in (
        'host = "j"  # --mysql-host\n',
        'region = "b"  # BINLOG2S3_REGION\n',
        f'user = "u"  # [mysql] user of {file}\n',
        "concurrency = 32  # default\n",
    ):
        assert line in done.stdout
    assert SECRET not in done.stdout


def test_what_is_shown_is_judged() -> None:
    """What `stream` would refuse is refused, with the same words."""
    done = command.start("config", "--show", "--source=a", "--s3-url=s3://bucket")
    assert done.returncode == 3
    assert done.stdout == ""
    assert "error: --mysql-user is missing" in done.stderr


@pytest.mark.parametrize("given", [(), ("--example", "--show")])
def test_one_of_the_two(given: tuple[str, ...]) -> None:
    """`config` alone, or with both, is a usage error."""
    done = command.start("config", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert "give --example or --show" in done.stderr


@pytest.fixture
def on_path(tmp_path: Path) -> Path:
    """A folder with `binlog2s3` in it, as an installation puts it on PATH."""
    script = tmp_path / "bin" / "binlog2s3"
    script.parent.mkdir()
    script.write_text(f"#!{command.argv()[0]}\nfrom binlog2s3.cli.main import main\nmain()\n")
    script.chmod(0o755)
    return script.parent


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("binlog2s3 str", ["stream"]),
        ("binlog2s3 ma", []),
        ("binlog2s3 pitr --to-p", ["--to-position"]),
        ("binlog2s3 pitr --target-ssl-mode req", ["REQUIRED"]),
        ("binlog2s3 stream --mysql-ssl-mode ver", ["VERIFY_CA", "VERIFY_IDENTITY"]),
        ("binlog2s3 stream --config no-such.toml --on-gap s", ["stop"]),
        ("binlog2s3 status --from b", ["bucket"]),
        ("binlog2s3 health --sp", ["--spool"]),
        ("binlog2s3 completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(line: str, offered: list[str], on_path: Path) -> None:
    """Commands, options and their words, with the script that `completion bash` prints."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = command.start("completion", "bash")
    assert (script.returncode, script.stderr) == (0, "")
    words = line.split(" ")
    ask = (
        f"{script.stdout}\ncompopt() {{ :; }}\n"
        f"COMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        "_binlog2s3_completion binlog2s3; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    path = f"{on_path}:{command.environment()['PATH']}"
    done = subprocess.run(
        [bash, "--norc", "-c", ask],
        capture_output=True,
        check=True,
        env=command.environment(PATH=path),
        text=True,
        timeout=60,
    )
    assert done.stdout.split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_scripts(shell: str) -> None:
    """Each asks the command itself what fits, so it never grows old."""
    done = command.start("completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"_BINLOG2S3_COMPLETE={shell}_complete" in done.stdout


def test_manual_pages(tmp_path: Path) -> None:
    """One is printed, or all are written."""
    one = command.start("man", "pitr")
    assert one.stdout.startswith('.TH "BINLOG2S3\\-PITR" 1')
    assert command.start("man", "--output-dir", str(tmp_path)).returncode == 0
    assert (tmp_path / "binlog2s3-pitr.1").read_text() == one.stdout
    assert (tmp_path / "binlog2s3.1").read_text() == command.start("man").stdout
    assert command.start("man", "nothing").returncode == 2


def test_a_variable_that_is_misspelt() -> None:
    """It would not be looked at: it is named; what others call like us is left alone."""
    names = {"BINLOG2S3_MYSQL_SSL_MOD": "REQUIRED", "BINLOG2S3_PORT": "tcp://10.0.0.1:80"}
    done = command.start(
        "config", "--show", BINLOG2S3_VERSION="1", BINLOG2S3_SOURCE="shop", **names
    )
    assert (
        "warning: unknown option BINLOG2S3_MYSQL_SSL_MOD; did you mean BINLOG2S3_MYSQL_SSL_MODE?"
        in done.stderr.splitlines()
    )
    assert done.stderr.count("warning:") == 1
    assert "REQUIRED" not in done.stdout
