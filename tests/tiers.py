"""The two tiers of the tests, and the sixths of what only the full run has.

The gate is what each change passes, the full run is everything.

Law: what needs no real server is in the gate, unless it is marked `full`. What runs against real
servers (tests/integration, tests/chaos, tests/compat), or needs a tool that the gate does not get,
is in the full run alone, unless it is marked `gate`. Both markers may name cases by their ids:
`gate("gtid")`.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby, islice
from pathlib import Path
from zlib import crc32

import pytest

from tests import sampling

WITH_SERVERS = ("integration", "chaos", "compat")
# Fixtures for which something is downloaded or built that the gate does without.
TOOLS = frozenset(
    {
        "aws_command",
        "faketime_library",
        "galera",
        "make_machine",
        "mandoc",
        "mariadb_backup",
        "mariadb_encryption",
        "promtool",
        "s3s_fs",
        "systemd_analyze",
        "toxiproxy_binary",
        "versitygw",
    }
)
STORES_OF_FULL = frozenset({"versitygw", "s3s-fs", "s3s_fs"})
SIXTHS = 6


def is_full(item: pytest.Item) -> bool:
    """Whether only the full run has this test."""
    if _named(item, "full"):
        return True
    if _named(item, "gate"):
        return False
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    needs = set(getattr(item, "fixturenames", ())) & TOOLS
    spec = getattr(item, "callspec", None)
    values = spec.params.values() if spec is not None else ()
    stores = {value for value in values if isinstance(value, str)} & STORES_OF_FULL
    return folder in WITH_SERVERS or bool(needs or stores)


def is_more_in_full(item: pytest.Item) -> bool:
    """Whether the full run has this test alone, or may try more in it than the gate does."""
    module = getattr(item, "module", None)
    names = ("examples", "all_of_it")
    draws = any(getattr(module, name, None) is getattr(sampling, name) for name in names)
    return draws or is_full(item)


def is_in_sixth(item: pytest.Item, number: int) -> bool:
    """Whether sixth `number` modulo 6 has this test: each that the full run has more of, has one.

    A hash of the node id decides, which is the same in each process and on each machine. Not of the
    file: the largest files would make one sixth three times as long as another, and a server that
    a module shares is started by each worker anyway.
    """
    return is_more_in_full(item) and crc32(item.nodeid.encode()) % SIXTHS == number % SIXTHS


def _named(item: pytest.Item, name: str) -> bool:
    """Whether a marker of this name is on the test, for all cases or for this one."""
    spec = getattr(item, "callspec", None)
    case = spec.id if spec is not None else ""
    return any(not mark.args or case in mark.args for mark in item.iter_markers(name))


def dealt(items: Sequence[pytest.Item], count: int) -> list[pytest.Item]:
    """The tests in an order in which `count` workers, which get equal runs, do equal work.

    The tests of one file stay together, and each worker begins with files that need servers: these
    wait a lot, and what needs no server fills the gaps at the end.
    """
    files = [list(group) for _, group in groupby(items, key=lambda item: item.path)]
    with_servers = [file for file in files if _waits(file[0])]
    others = [item for file in files if not _waits(file[0]) for item in file]
    hands: list[list[pytest.Item]] = [[] for _ in range(count)]
    for file in sorted(with_servers, key=len, reverse=True):
        min(hands, key=len).extend(file)
    size = -(-len(items) // count)
    rest = iter(others)
    for hand in hands:
        hand.extend(islice(rest, max(0, size - len(hand))))
    return [item for hand in hands for item in hand] + list(rest)


def _waits(item: pytest.Item) -> bool:
    return any(part in WITH_SERVERS for part in item.path.parts)


def unknown_cases(items: Iterable[pytest.Item]) -> list[str]:
    """Ids in a marker `gate` or `full` of which the test has no case."""
    cases: dict[str, set[str]] = {}
    named: dict[str, set[str]] = {}
    for item in items:
        test = item.nodeid.partition("[")[0]
        spec = getattr(item, "callspec", None)
        cases.setdefault(test, set()).add(spec.id if spec is not None else "")
        for name in ("gate", "full"):
            for mark in item.iter_markers(name):
                named.setdefault(test, set()).update(mark.args)
    return sorted(
        f"{test}[{case}]" for test, wanted in named.items() for case in wanted - cases[test]
    )
