"""How much the gate tries of what the full run tries whole.

hypothesis' profile is the tier (tests/conftest.py); it is loaded before a test module is imported.
"""

import os
import random

import pytest
from hypothesis import settings

GATE_EXAMPLES = 100
_SEED = "CRASH_SEED"


def all_of_it() -> bool:
    """Whether this is the full run."""
    return settings.get_current_profile_name().startswith("full")  # hypothesis may append to it


def examples(count: int, *, gate: int = GATE_EXAMPLES) -> int:
    """So many examples in the full run, and no more than `gate` in the gate."""
    return count if all_of_it() else min(count, gate)


def crash_seed() -> int:
    """What the gate's crash points are drawn with: CRASH_SEED, if not given a new one each run.

    Workers that are started later have the same.
    """
    given = os.environ.setdefault(_SEED, str(random.SystemRandom().randrange(1_000_000)))
    if not given.isdecimal():
        raise pytest.UsageError(f"{_SEED} must be a whole number, not {given!r}")
    return int(given)
