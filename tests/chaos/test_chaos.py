"""A few rounds of chaos; `make chaos ROUNDS=200` has the many."""

import os
import random

import pytest

from tests.chaos.run import run, summary

ROUNDS = 2
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


@pytest.mark.usefixtures("mysql_binaries", "minio_binary", "toxiproxy_binary")
def test_some_rounds() -> None:
    """Whatever strikes, in the end the bucket has the server's bytes, and nothing is left over."""
    lines: list[str] = []
    totals = run(ROUNDS, SEED, say=lines.append)
    assert not totals.differences, "\n".join([f"seed {SEED}", *lines])
    assert totals.rounds == ROUNDS
    assert totals.faults + totals.missed >= ROUNDS, summary(totals)
    assert totals.faults > 0, "nothing has struck: this proves nothing"
    assert totals.binlogs >= ROUNDS
    assert totals.looks > ROUNDS
