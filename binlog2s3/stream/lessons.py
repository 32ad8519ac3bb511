"""What the end of a run of mysqlbinlog means for the next run: begin where, doubt what. Pure.

| a run ends with | what it means | what was read |
|---|---|---|
| `LeftOutError` | rows before the next binlog are in none: a new lineage begins there | `GO_BACK` |
| `ElsewhereError` | the server's history continues elsewhere: compare the bytes | `GO_BACK` |
| `TakenError` | the history goes on in a lineage beside this one | `KEEP` |
| `ForkError` | the server sends another history: compare the bytes | `FORGET_RUN` |
| damage before the known bytes came again | a refusal | `KEEP` |
| damage for the first time | perhaps the spool's disk: the event is fetched again | `READ_AGAIN` |
| the same again, in a binlog's first event | the source cannot give this binlog | `READ_AGAIN` |
| the same again, in another event | the source's own file is damaged | `ACCEPT` |
| damage in an accepted event, or too many accepted | a refusal | `READ_AGAIN` |
| an error that says that the source cannot send it | a refusal | `KEEP` |
| `StalledError` | wait twice as long at this place | `KEEP` |
| anything else | nothing: the next run tries again | `KEEP` |

The second refusal in a row at one place means: compare the bytes. The third means: the source does
not give this place, and the history may have to continue after it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MOST_ACCEPTED
from binlog2s3.errors import (
    DamageError,
    ElsewhereError,
    ForkError,
    LeftOutError,
    SourceError,
    TakenError,
)
from binlog2s3.stream.resume import Doubt

_REFUSALS = 3
_MOST_STALLS = 6


class StalledError(SourceError):
    """The server writes more, and nothing arrives."""


class EndAction(Enum):
    """What to do with what a run has read: see the table above."""

    KEEP = auto()
    READ_AGAIN = auto()
    """The binlog is read again, from its beginning if no run can continue it."""
    ACCEPT = auto()
    """As READ_AGAIN, and the damaged event is archived as the source has it."""
    FORGET_RUN = auto()
    """What the run read is neither uploaded nor kept."""
    GO_BACK = auto()
    """What was read and is proved is uploaded. What waits for proof is forgotten."""


@dataclass(frozen=True, slots=True)
class BeingRead:
    """The binlog that a run was reading. `is_readable`: its format event could be read."""

    binlog: BinlogName
    is_readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """What is remembered between two runs.

    `failures`: runs in a row that brought nothing new. `refusals` and `stalls` are counted at the
    place `at`, where the known history ends. `doubt`: why the next run does not simply continue.
    `damage`: the last damaged event. `accepted`: offsets of events, by binlog, that are archived
    although they are damaged.
    """

    failures: int = 0
    at: FilePosition | None = None
    refusals: int = 0
    stalls: int = 0
    doubt: Doubt | None = None
    damage: tuple[FilePosition, str] | None = None
    accepted: Mapping[BinlogName, frozenset[int]] = field(default_factory=dict)

    @property
    def patience(self) -> int:
        """How many times --stall-timeout to wait: after each stall at one place twice as long."""
        return 1 << min(self.stalls, _MOST_STALLS)

    def accepted_in(self, binlog: BinlogName) -> frozenset[int]:
        """The offsets of this binlog's damaged events that are archived as they are."""
        return self.accepted.get(binlog, frozenset())

    def asked_at(self, place: FilePosition | None) -> "Lessons":
        """The source was asked how to continue here. The doubt is answered."""
        if place is None or place == self.at:
            return replace(self, doubt=None)
        return replace(self, doubt=None, at=place, refusals=0, stalls=0)

    def refused(self, why: str) -> "Lessons":
        """The source did not give what comes next."""
        refusals = self.refusals + 1
        doubt = Doubt(why=why, refused=refusals >= _REFUSALS) if refusals > 1 else self.doubt
        return replace(self, refusals=refusals, doubt=doubt)


def judge(lessons: Lessons, error: Exception, seen: BeingRead | None) -> tuple[Lessons, EndAction]:
    """What the end of a run teaches, and what to do with what it read: see the table above.

    `seen` is None if the run had not shown yet that it continues what is known.
    """
    match error:
        case LeftOutError():
            return replace(lessons, doubt=Doubt(why=str(error), left_out=True)), EndAction.GO_BACK
        case ElsewhereError():
            return replace(lessons, doubt=Doubt(why=str(error))), EndAction.GO_BACK
        case TakenError():
            return replace(lessons, doubt=Doubt(why=str(error), taken=True)), EndAction.KEEP
        case ForkError():
            return replace(lessons, doubt=Doubt(why=str(error))), EndAction.FORGET_RUN
        case DamageError() if seen is not None:
            return _judge_damage(lessons, error, seen)
        case StalledError():
            return replace(lessons, stalls=lessons.stalls + 1), EndAction.KEEP
        case DamageError() | SourceError(unservable=True):
            return lessons.refused(str(error)), EndAction.KEEP
    return lessons, EndAction.KEEP


def _judge_damage(
    lessons: Lessons, error: DamageError, seen: BeingRead
) -> tuple[Lessons, EndAction]:
    name, accepted = seen.binlog, lessons.accepted_in(seen.binlog)
    damage = (FilePosition(name, error.offset), str(error).rpartition(": ")[2])
    again, verdict = damage == lessons.damage, EndAction.READ_AGAIN
    if not seen.is_readable:
        if again:
            doubt = Doubt(why=str(error), refused=True, unreadable=name)
            lessons = replace(lessons, doubt=doubt)
    elif error.offset in accepted or len(accepted) >= MOST_ACCEPTED:
        lessons = lessons.refused(str(error))
    elif again:
        more = {**lessons.accepted, name: accepted | {error.offset}}
        lessons, verdict = replace(lessons, accepted=more), EndAction.ACCEPT
    return replace(lessons, damage=damage), verdict
