"""A server's system time zone, as its offsets from UTC show it. Pure.

Statements whose result depends on the time zone carry the name of the session's. `SYSTEM` is that
of the server's process (its variable TZ, or /etc/localtime): another server takes its own. Names do
not tell whether two are the same: `@@system_time_zone` is an abbreviation, and CST means several
zones, while one host is CET in winter and CEST in summer. Offsets tell.

Law: a zone is what was asked of a server, on each `sampled_days` of one year. Nothing is guessed
from a name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Self

NAME_MOST = 1024
OFFSET_MOST = 26 * 3600
"""No zone is further from UTC, in seconds."""
YEARS = range(1970, 2038)
"""Of these years, all servers know the offsets: a TIMESTAMP of 32 bits ends early in 2038."""


def sampled_days(year: int) -> tuple[date, ...]:
    """The days of a year, at whose beginning in UTC an offset is asked: 24, in order.

    Zones of the same offsets that change on other days (Athens and Cairo) differ on one of them.
    """
    return tuple(date(year, month, day) for month in range(1, 13) for day in (1, 15))


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemZone:
    """A server's system time zone in one year.

    `name` is `@@global.time_zone`: what its sessions begin with, `SYSTEM` or another zone.
    `offsets`: from each of these `sampled_days` on, the zone is so many seconds ahead of UTC; the
    first is January 1st.
    """

    name: str
    offsets: Mapping[date, int] = field(hash=False)

    @classmethod
    def of(cls, name: str, year: int, offsets: Sequence[int]) -> Self:
        """The zone with these offsets on the `sampled_days`. Raises ValueError."""
        days = sampled_days(year)
        pairs = list(zip(days, offsets, strict=True))
        before = [None, *offsets[:-1]]
        changes = (pair for pair, last in zip(pairs, before, strict=True) if pair[1] != last)
        return cls(name=name, offsets=dict(changes))

    def __post_init__(self) -> None:
        days = list(self.offsets)
        if len(self.name) > NAME_MOST:
            raise ValueError("a time zone's name is too long")
        if not days or days[0] != date(days[0].year, 1, 1) or days[0].year not in YEARS:
            raise ValueError("a time zone's offsets do not begin on a January 1st")
        if days != sorted(set(days)) or not set(days) <= set(sampled_days(self.year)):
            raise ValueError("a time zone's offsets are not of the 1st and 15th days of a year")
        if any(abs(offset) > OFFSET_MOST for offset in self.offsets.values()):
            raise ValueError("a time zone's offset is none")

    @property
    def year(self) -> int:
        """The year that it was asked for."""
        return next(iter(self.offsets)).year

    @property
    def sampled(self) -> tuple[int, ...]:
        """The offset on each of the year's `sampled_days`, in seconds."""
        found, offset = [], 0
        for day in sampled_days(self.year):
            offset = self.offsets.get(day, offset)
            found.append(offset)
        return tuple(found)

    def __str__(self) -> str:
        """`UTC+09:00`, or `UTC+01:00, from 2026-04-01 on UTC+02:00, ...`."""
        first, *later = [(day, offset_text(offset)) for day, offset in self.offsets.items()]
        return ", ".join([first[1], *(f"from {day} on {text}" for day, text in later)])


def offset_text(seconds: int) -> str:
    """`UTC+09:00`, with seconds only if there are any."""
    sign = "-" if seconds < 0 else "+"
    minutes, rest = divmod(abs(seconds), 60)
    return f"UTC{sign}{minutes // 60:02d}:{minutes % 60:02d}" + (f":{rest:02d}" if rest else "")


def differs(one: SystemZone, other: SystemZone) -> str:
    """The first day on which two zones of one year differ, and how; "" if they do not."""
    for day, a, b in zip(sampled_days(one.year), one.sampled, other.sampled, strict=True):
        if a != b:
            return f"{offset_text(a)} and {offset_text(b)} on {day}"
    return ""


def fixed_tz(offset: int) -> str:
    """The value of TZ for a zone that is always so many seconds ahead of UTC, as POSIX has it.

    `<+0900>-09:00`: a name in brackets, then what is added to local time to get UTC. It is made of
    numbers only, so it is safe as the value of an environment variable.
    """
    name = offset_text(offset).removeprefix("UTC").replace(":", "")
    behind = offset_text(-offset).removeprefix("UTC").removeprefix("+")
    return f"<{name}>{behind}"
