"""How soon a streamer complains, and how long it waits before it tries again. Values only.

Place in the flow: a part of `Config` that no option sets. Tests pass shorter times, so that what
takes minutes in production takes seconds there, in the same code.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long each thing may last; in seconds.

    Up to `heartbeat_slack_seconds`: until what may pass by itself is critical, and turns /health to
    503. Together with the pause between two looks that is well below 90. `fresh_seconds`: an older
    position does not prove that a source is idle. `soon_seconds`: what lasts so long is a warning,
    and gives the state its name. `first_delay_seconds`, doubled with each failure up to
    `longest_delay_seconds`, is the wait before the next request to the store or the next run of
    mysqlbinlog. At the end `drain_seconds` are left for what is on its way to the bucket, and
    `farewell_seconds` for the last heartbeat.
    """

    start_seconds: float = 60.0
    source_seconds: float = 30.0
    stall_seconds: float = 30.0
    store_failing_seconds: float = 30.0
    store_silent_seconds: float = 60.0
    paused_seconds: float = 60.0
    loop_seconds: float = 30.0
    heartbeat_slack_seconds: float = 15.0
    fresh_seconds: float = 6.0
    soon_seconds: float = 5.0
    first_delay_seconds: float = 0.5
    longest_delay_seconds: float = 5.0
    drain_seconds: float = 3.0
    farewell_seconds: float = 2.0


DEFAULT = Timing()
