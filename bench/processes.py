"""What the kernel knows about a running process: its children, CPU time and peak memory."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The process ids of its running children."""
    found = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in file.read_text(encoding="utf-8").split()]
    return found


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU seconds of the process itself, and of its children that have ended."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system, ended_user, ended_system = map(int, stat[11:15])
    return (user + system) / _TICKS, (ended_user + ended_system) / _TICKS


def peak_bytes(pid: int) -> int:
    """Its greatest resident memory so far; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(found[0]) << 10 if found else 0
