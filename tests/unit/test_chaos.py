"""The pure parts of chaos: what is planned, when a trap springs, what counts as readable."""

import random

import pytest

from lab.fault import Drop, Request
from tests.chaos.audit import reach
from tests.chaos.fault import PART, Fault, Kind, Phase, Trap, fits, moment, plan
from tests.promises import missing

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
def test_a_trap_springs_once_at_its_moment(phase: Phase) -> None:
    """Armed before, it lets all others by; sprung, it lets all by."""
    assert moment(MOMENTS[phase]) == {phase, Phase.START}
    if phase in (Phase.ENTERED, Phase.CLAIM, Phase.START):
        return  # these depend on what came before
    trap = Trap(Fault(phase, Kind.KILL, skip=1), lambda _: Drop())
    trap.arm()
    others = [request for other, request in MOMENTS.items() if phase not in (other, Phase.START)]
    assert [trap(request) for request in (MOMENTS[phase], *others)] == [None] * (1 + len(others))
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
    """Ranges may overlap and lie inside each other; one missing byte is enough."""
    assert reach([(10, 20)]) == 0
    assert reach([(5, 20), (0, 10), (21, 30), (2, 3)]) == 20
    assert missing([(0, 5), (5, 10)], 2, 9) is None
    assert missing([(0, 5), (6, 10)], 2, 9) == 5
