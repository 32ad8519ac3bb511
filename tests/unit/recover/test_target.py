"""The proof at the end: what a target has, compared with what it should have."""

from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.target import TargetFacts, prove

ROOT = Path(__file__).parents[3]
UUID_A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
UUID_B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"
FACTS = TargetFacts(
    address="127.0.0.1:3307",
    uuid=UUID_B,
    flavour="mysql",
    version="9.7.4-2",
    server_id=2,
    executed=GtidSet(),
    log_bin=True,
    read_only=False,
    super_read_only=False,
    event_scheduler=False,
    channels=(),
)


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_the_grants_of_the_page(flavour: Flavour) -> None:
    """What an error or a dry run prints is what the guide says, to this account."""
    version = "9.7.4" if flavour == "mysql" else "10.11.6-MariaDB"
    found = replace(FACTS, flavour=flavour, version=version, account="'pitr'@'localhost'")
    page = (ROOT / "docs" / "guides" / "permissions.md").read_text(encoding="utf-8")
    before, _, behind = page.partition(f"<!-- grants: {flavour} target -->")
    block = behind.split("```")[1]
    documented = [line.rstrip(";") for line in block.splitlines() if line.startswith("GRANT ")]
    *needed, more = found.grants.split("; ")
    assert needed == documented
    when, _, privilege = more.partition(" also GRANT ")
    name, _, rest = privilege.partition(" ")
    assert "--stop-target-threads" in when
    assert rest == "ON *.* TO 'pitr'@'localhost'"
    assert f"(also `{name}` for " in before[-300:]
    assert "SUPER" in replace(FACTS, version="5.7.44-log").grants


# The proof


def test_the_gtids_are_those_of_the_plan() -> None:
    """However they are written."""
    prove(GtidSet.parse(f"{UUID_A}:1-3:5"), GtidSet.parse(f"{UUID_A}:5:1:2:3"))


def test_what_differs_is_named() -> None:
    """What is missing, what is there besides, and whose that is."""
    expected = GtidSet.parse(f"{UUID_A}:1-10:blue:1-2")
    with pytest.raises(RecoveryError, match=f"it is missing {UUID_A}:9-10:blue:2$") as caught:
        prove(GtidSet.parse(f"{UUID_A}:1-8:blue:1"), expected)
    assert "the same command again" in caught.value.hint
    found = GtidSet.parse(f"{UUID_A}:1-11:blue:1-2,{UUID_B}:1")
    with pytest.raises(RecoveryError, match=f"it has {UUID_A}:11,{UUID_B}:1 in addition") as caught:
        prove(found, expected, own_uuid=UUID_B.upper())
    assert "its own transactions" in caught.value.hint
    with pytest.raises(RecoveryError, match=r"it is missing .* and it has .* in addition"):
        prove(GtidSet.parse(f"{UUID_B}:1"), expected)


def test_gtids_of_the_other_flavour_prove_nothing() -> None:
    """They are never equal."""
    with pytest.raises(RecoveryError, match="0-1-5"):
        prove(MariadbGtidList.parse("0-1-5"), GtidSet.parse(f"{UUID_A}:1"))
