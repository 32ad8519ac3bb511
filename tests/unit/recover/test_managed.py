"""The commands for a managed server: they name the plan's stop, and no password."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.cli import commands as cli
from binlog2s3.cli.options import config_of
from binlog2s3.config.pitr import PITR
from binlog2s3.config.serve import SERVE
from binlog2s3.config.values import S3Config
from binlog2s3.errors import ConfigError, RecoveryError
from binlog2s3.recover.managed import commands
from binlog2s3.recover.model import Goal, Latest, Plan, ToGtid, ToPosition, ToTime
from lab.pitr_examples import LINEAGE, PLAN, UUID

S3 = S3Config(bucket="bucket", prefix="a/b", endpoint_url="https://s3.example", profile="it's")


def told(plan: Plan = PLAN, address: str | None = "192.0.2.7:3310") -> list[str]:
    return commands(plan, s3=S3, source="orders", serve_address=address).splitlines()


def test_it_stops_after_the_last_transaction_that_is_kept() -> None:
    """`serve` sends on to the newest, so the managed server must stop by itself."""
    lines = told()
    assert f"CALL mysql.rds_start_replication_until_gtid('{UUID}:48212');" in lines
    where = "'192.0.2.7', 3310, 'replica', 'PASSWORD', 1, 0"
    assert f"CALL mysql.rds_set_external_source_with_auto_position({where});" in lines
    assert "CALL mysql.rds_start_replication;" not in lines


@pytest.mark.parametrize(
    "goal",
    [
        ToGtid(f"{UUID}:48212"),
        ToTime(at_us=0, text="2026-01-02T12:00:00Z"),
        ToPosition(binlog=PLAN.stop.binlog, offset=PLAN.stop.offset),
    ],
)
def test_it_stops_at_the_newest_transaction(goal: Goal) -> None:
    """The source may commit more, the accident say, before the commands are run."""
    lines = told(replace(PLAN, goal=goal, left_out=()))
    assert f"CALL mysql.rds_start_replication_until_gtid('{UUID}:48212');" in lines
    assert "CALL mysql.rds_start_replication;" not in lines


@pytest.mark.parametrize(
    ("address", "listen", "host"),
    [("fd00::1", "[::]:3307", "fd00::1"), ("[fd00::1]:3310", "[::]:3310", "fd00::1")],
)
def test_ipv6(address: str, listen: str, host: str) -> None:
    """A server that is told an IPv6 address reaches `serve` there."""
    lines = told(address=address)
    (line,) = (line for line in lines if line.startswith("binlog2s3 serve"))
    assert shlex.split(line)[shlex.split(line).index("--listen") + 1] == listen
    assert any(f"auto_position('{host}', " in line for line in lines)


def test_all_of_it() -> None:
    """With --latest it follows until it is stopped."""
    lines = told(replace(PLAN, goal=Latest(), left_out=()), None)
    assert "CALL mysql.rds_start_replication;" in lines
    assert not any("until_gtid" in line for line in lines)
    assert any("'THIS_MACHINE', 3307," in line for line in lines)


def test_what_is_served_is_the_plans_history(tmp_path: Path) -> None:
    """The command is one that `serve` takes, quoted for a shell."""
    file = tmp_path / "file"
    file.write_text("pw")
    (line,) = (line for line in told() if line.startswith("binlog2s3 serve"))
    words = shlex.split(line)
    assert words[words.index("--profile") + 1] == "it's"
    words = [str(file) if word in ("PASSWORD_FILE", "CERT", "KEY") else word for word in words]
    with cli.serve.make_context("binlog2s3 serve", words[2:]) as ctx:
        config = config_of(ctx, ctx.params, SERVE)
    assert (config.lineage, config.source, config.listen) == (LINEAGE, "orders", "0.0.0.0:3310")
    assert config.s3 == replace(S3, concurrency=config.s3.concurrency)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (replace(PLAN, before=None), "needs MySQL's GTIDs"),
        (replace(PLAN, flavour="mariadb"), "needs MySQL's GTIDs"),
        (replace(PLAN, skipped=GtidSet.parse(f"{UUID}:48000")), "cannot skip"),
        (replace(PLAN, kept=()), "no transaction before the stop"),
    ],
)
def test_what_it_cannot_do(plan: Plan, says: str) -> None:
    """It says so, with another way."""
    with pytest.raises(RecoveryError, match=says) as caught:
        told(plan)
    assert caught.value.hint


def test_no_target_is_needed() -> None:
    """Where the base backup ends is enough, and nothing is applied to a target that is named."""
    least = ["--source=o", "--s3-url=s3://bucket/p", "--latest", "--print-commands"]

    def configured(*more: str) -> object:
        with cli.pitr.make_context("binlog2s3 pitr", [*least, *more]) as ctx:
            return config_of(ctx, ctx.params, PITR)

    configured(f"--from-gtid-set={UUID}:1-5")
    assert configured("--target-host=db", "--target-user=u").applies is False  # type: ignore[attr-defined]
    for other in ("--json", "--output-dir=/nowhere/x", "--table=a.b"):
        with pytest.raises(ConfigError, match="contradict"):
            configured(f"--from-gtid-set={UUID}:1-5", other)
