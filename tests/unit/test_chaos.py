"""The pure parts of chaos: what is planned, when a trap springs, what counts as readable."""

import random

import pytest

from lab.fault import Drop, Request
from tests.chaos.audit import covers, masked, reach
from tests.chaos.fault import PART, Fault, Kind, Phase, Trap, fits, moment, plan

LIVE = "/b/pre/live/s/20260101T000000Z-3e11fa47-0000/mysql-bin.000001"
ARCHIVE = "/b/pre/archive/s/20260101T000000Z-3e11fa47-0000"


def ask(method: str, path: str, query: str = "", **headers: str) -> Request:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return Request(method=method, path=path, query=query, headers=names)


def chunk(begin: int, end: int) -> Request:
    return ask("PUT", f"{LIVE}/{begin:016}-{end:016}-{'0' * 16}")


MOMENTS = {
    Phase.FLUSH: chunk(0, 100),
    Phase.FULL_CHUNK: chunk(PART, 2 * PART),
    Phase.PART: ask("PUT", f"{ARCHIVE}/binlogs/mysql-bin.000001", "partNumber=1&uploadId=u"),
    Phase.COPY: ask(
        "PUT",
        f"{ARCHIVE}/binlogs/mysql-bin.000001",
        "partNumber=1&uploadId=u",
        x_amz_copy_source="b/k",
    ),
    Phase.COMPLETE: ask("POST", f"{ARCHIVE}/binlogs/mysql-bin.000001", "uploadId=u"),
    Phase.COMPLETED: ask("PUT", f"{ARCHIVE}/entries/mysql-bin.000001.json"),
    Phase.ENTERED: ask("POST", "/b", "delete"),
    Phase.CLAIM: ask("PUT", "/b/pre/live/s/writers/000001-00000000.json"),
    Phase.START: ask("GET", "/b", "list-type=2"),
}


@pytest.mark.parametrize("phase", MOMENTS)
def test_a_request_is_a_moment_of_its_phase_and_of_a_start(phase: Phase) -> None:
    """And of no other."""
    assert moment(MOMENTS[phase]) == {phase, Phase.START}


@pytest.mark.parametrize("phase", [phase for phase in MOMENTS if phase is not Phase.ENTERED])
def test_a_trap_springs_once_when_as_many_moments_have_passed(phase: Phase) -> None:
    """Armed before, it lets the others by; sprung, it lets all by."""
    trap = Trap(Fault(phase, Kind.KILL, skip=1), lambda _: Drop())
    others = [request for other, request in MOMENTS.items() if phase not in (other, Phase.START)]
    if phase is Phase.CLAIM:
        trap = Trap(Fault(phase, Kind.KILL), lambda _: Drop())
    else:
        assert trap(MOMENTS[phase]) is None
        trap.arm()
        assert trap(MOMENTS[phase]) is None
    trap.arm()
    assert [trap(request) for request in others] == [None] * len(others)
    assert not trap.sprung.is_set()
    assert trap(MOMENTS[phase]) == Drop()
    assert trap.sprung.is_set()
    assert trap(MOMENTS[phase]) is None


def test_a_claim_is_the_first_request_for_a_writers_object() -> None:
    """The heartbeats that follow are none."""
    trap = Trap(Fault(Phase.CLAIM, Kind.KILL), lambda _: Drop())
    assert trap(MOMENTS[Phase.CLAIM]) is None, "not armed"
    trap.arm()
    assert trap(MOMENTS[Phase.CLAIM]) is None, "a heartbeat of one that was known"
    assert trap(ask("PUT", "/b/pre/live/s/writers/000002-00000000.json")) == Drop()


def test_between_entry_and_delete_is_the_first_deletion_behind_an_entry() -> None:
    """Other deletions are of small chunks."""
    trap = Trap(Fault(Phase.ENTERED, Kind.KILL), lambda _: Drop())
    trap.arm()
    assert trap(MOMENTS[Phase.ENTERED]) is None
    assert trap(MOMENTS[Phase.COMPLETED]) is None
    assert trap(MOMENTS[Phase.ENTERED]) == Drop()


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_has_all_phases_and_kinds_about_equally_often(seed: int) -> None:
    """200 rounds hit each phase 20 times, and each kind; nothing where it cannot happen."""
    faults = plan(200, random.Random(seed))
    assert len(faults) == 200
    phases = [phase for phase in Phase if phase is not Phase.ANY]
    for phase in phases:
        assert sum(first.phase is phase for first, *_ in faults) == 200 // len(phases)
    for kind in Kind:
        assert sum(fault.kind is kind for each in faults for fault in each) >= 4
    assert all(fits(fault.phase, fault.kind) for each in faults for fault in each)
    assert sum(len(each) == 2 for each in faults) > 20
    assert faults == plan(200, random.Random(seed)), "the same again from the same seed"


def test_what_is_readable_ends_at_the_first_hole() -> None:
    """Ranges may overlap and lie inside each other."""
    assert reach([]) == 0
    assert reach([(10, 20)]) == 0
    assert reach([(5, 20), (0, 10), (21, 30), (2, 3)]) == 20


def test_a_range_is_covered_by_a_union_only() -> None:
    """One missing byte is enough."""
    assert covers([(0, 5), (5, 10)], (2, 9))
    assert not covers([(0, 5), (6, 10)], (2, 9))
    assert not covers([(0, 5)], (2, 9))
    assert not covers([(3, 9)], (2, 9))


def test_the_in_use_flag_alone_is_masked() -> None:
    """One bit of byte 21."""
    data = bytes(range(1, 41))
    assert masked(data[:21] + bytes([data[21] | 1]) + data[22:]) == masked(data)
    assert masked(data[:21] + bytes([data[21] ^ 2]) + data[22:]) != masked(data)
    assert masked(data[:20]) == data[:20]
