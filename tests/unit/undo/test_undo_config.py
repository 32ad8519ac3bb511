"""What the operator asks of `undo` is judged as a whole before anything is opened."""

from pathlib import Path

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.cli import commands as cli
from binlog2s3.cli.options import config_of
from binlog2s3.config.undo import UNDO, UndoConfig
from binlog2s3.errors import ConfigError
from tests.binlog_writer import UUID_A

NEEDED = ("--source=orders", "--s3-url=s3://bucket/pre")
TARGET = ("--target-socket=/run/x.sock", "--target-user=undo")
GTID = f"--gtid={UUID_A}:1-5"
FROM, TO = f"--from-gtid={UUID_A}:1", f"--to-gtid={UUID_A}:5"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in UNDO.options:
        monkeypatch.delenv(option.environment, raising=False)
    monkeypatch.delenv("BINLOG2S3_CONFIG", raising=False)


def configured(*arguments: str) -> UndoConfig:
    """The config of a command line, or ConfigError."""
    with cli.undo.make_context("binlog2s3 undo", list(arguments)) as ctx:
        return config_of(ctx, ctx.params, UNDO)


def test_every_value_reaches_its_place() -> None:
    """Each option has its place."""
    config = configured(
        *NEEDED, *TARGET, GTID, "--table=shop.orders", "--table=old.*", "--skip-conflicts",
        "--dry-run", "--json", "--yes",
    )  # fmt: skip
    assert (config.gtids, config.at) == ((f"{UUID_A}:1-5",), None)
    assert config.tables == (("shop", "orders"), ("old", "*"))
    assert (config.skip_conflicts, config.dry_run, config.as_json, config.yes) == (True,) * 4
    assert config.target.user == "undo"
    config = configured(*NEEDED, *TARGET, "--at=mysql-bin.000042:1234", "--output=undo.binlog")
    assert config.at == (BinlogName.parse("mysql-bin.000042"), 1234)
    assert config.output == Path("undo.binlog")
    config = configured(*NEEDED, *TARGET, FROM, TO, "--table=a.b", "--mysqlbinlog=/x/mysqlbinlog")
    assert (config.from_gtid, config.to_gtid) == (f"{UUID_A}:1", f"{UUID_A}:5")
    assert config.mysqlbinlog == Path("/x/mysqlbinlog")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*NEEDED, *TARGET), "which transaction"),
        ((*NEEDED, *TARGET, GTID, "--at=mysql-bin.000042:1234"), "contradict"),
        ((*NEEDED, *TARGET, GTID, "--gtid=0-1-5"), "MySQL and of MariaDB"),
        ((*NEEDED, *TARGET, FROM, "--table=a.b"), "needs --to-gtid"),
        ((*NEEDED, *TARGET, TO, "--table=a.b"), "needs --from-gtid"),
        ((*NEEDED, *TARGET, FROM, TO), "a stretch needs --table"),
        ((*NEEDED, *TARGET, GTID, FROM, TO, "--table=a.b"), "contradict"),
        ((*NEEDED, *TARGET, "--at=b.000001:4", FROM, TO, "--table=a.b"), "contradict"),
        ((*NEEDED, *TARGET, FROM, "--to-gtid=0-1-5", "--table=a.b"), "--to-gtid MariaDB's"),
        ((*NEEDED, GTID), "no server"),
        ((*NEEDED, GTID, "--target-host=db1"), "--target-user is missing"),
        ((*NEEDED, *TARGET, GTID, "--output=x", "--yes"), "no server is changed"),
        ((*NEEDED, *TARGET, GTID, "--output=x", "--dry-run"), "no server is changed"),
        ((*NEEDED, *TARGET, GTID, "--output=x", "--skip-conflicts"), "no server is changed"),
        ((*TARGET, GTID, "--s3-url=s3://bucket/pre"), "--source is missing"),
    ],
)
def test_what_cannot_be_meant_is_refused(words: tuple[str, ...], why: str) -> None:
    """There is no default server: one that nobody named is never changed."""
    with pytest.raises(ConfigError, match=why):
        configured(*words)
