"""A few rounds of chaos; `make chaos ROUNDS=200` has the many."""

import os
import random

import pytest

from tests.chaos.run import Totals, run, summary

ROUNDS = 2
SEED = int(os.environ.get("SEED", "0")) or random.SystemRandom().randrange(1, 1 << 31)


@pytest.mark.usefixtures("mysql_binaries", "minio_binary", "toxiproxy_binary")
def test_some_rounds() -> None:
    """Whatever strikes, in the end the bucket has the server's bytes, and nothing is left over.

    Where a busy machine lets every fault miss its moment, there are more rounds.
    """
    lines: list[str] = []
    totals, times = Totals(), 0
    while totals.faults == 0 and times < 5:
        totals.add(run(ROUNDS, SEED + times, say=lines.append))
        times += 1
        assert not totals.differences, "\n".join([f"seed {SEED}", *lines])
    assert totals.rounds == ROUNDS * times
    assert totals.faults + totals.missed >= ROUNDS * times, summary(totals)
    assert totals.faults > 0, "nothing has struck: this proves nothing"
    assert totals.binlogs >= ROUNDS
    assert totals.looks > ROUNDS
