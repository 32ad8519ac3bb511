"""Seconds from commit to restorable: `python -m bench.rpo`.

    python -m bench.rpo matrix      # rates x rows x links; goes on where it was ended
    python -m bench.rpo long        # 20 minutes at 1 tx/s of 300 bytes
    python -m bench.rpo idle        # 5 minutes of nothing
    python -m bench.rpo peers       # side by side with what uploads closed binlogs
    python -m bench.rpo report      # tables and plot in docs/

Each measurement is added to the results file at its end; one that is there already is measured
again only with --again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fcntl import LOCK_EX, LOCK_SH, flock
from pathlib import Path
from typing import Any

from bench.load import Plan
from bench.measure import Setting, measure
from bench.ways import wal_g
from lab.cache import Unavailable
from lab.child import ServerFailedError

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "benchmarks.json"
RATES: tuple[float, ...] = (1, 10, 100, 0)
ROWS = (100, 1_000_000)
LINK_TAKES = 2_000_000
PART_ENDS = 3
ROTATIONS = 2
MAX_CONNECTIONS = 8


def plan_for(rate: float, row_bytes: int, seconds: float) -> Plan:
    """A load with its rotations, and with fillers where it would not end parts by itself."""
    expected = (rate or 300) * (row_bytes + 300) * seconds
    enough = expected > (ROTATIONS + 1) * 2 * 5 * 1024 * 1024
    return Plan(
        rate=rate,
        row_bytes=row_bytes,
        seconds=seconds,
        connections=1 if 0 < rate <= 10 else MAX_CONNECTIONS,
        fillers=0 if enough else PART_ENDS,
        rotations=ROTATIONS,
    )


def matrix(rates: Sequence[float], rows: Sequence[int], seconds: float) -> Iterable[Setting]:
    """Every combination but those that only fill the link once more."""
    for slow_link in (False, True):
        for row_bytes in rows:
            for rate in rates:
                offered = (rate or 100) * row_bytes
                if slow_link and offered > 10 * LINK_TAKES:
                    continue
                speed = f"{rate:g}" if rate else "max"
                name = f"{speed}-{row_bytes}-{'link' if slow_link else 'direct'}"
                plan = plan_for(rate, row_bytes, seconds)
                overload = slow_link and offered > LINK_TAKES
                yield Setting(
                    name=name,
                    plan=plan,
                    slow_link=slow_link,
                    drain_seconds=5 if overload else 60,
                )


def peers(seconds: float) -> list[Setting]:
    """The same load at the same time, each with a server and a store of its own."""
    plan = Plan(rate=10, row_bytes=100, seconds=seconds, connections=1, rotations=ROTATIONS)
    others = replace(plan, rotations=0)  # they rotate each second themselves
    found = [
        Setting(name="peer-stream", plan=plan),
        Setting(name="peer-rotated", plan=plan, way="rotated", flush_interval=0),
        Setting(name="peer-plain", plan=others, way="plain", flush_interval=0),
    ]
    if wal_g() is not None:
        found.append(Setting(name="peer-wal-g", plan=others, way="wal-g", flush_interval=0))
    return found


def long(seconds: float) -> Setting:
    """A small load for a long time, in one binlog."""
    return Setting(name="long", plan=Plan(rate=1, row_bytes=300, seconds=seconds, connections=1))


def idle(seconds: float) -> Setting:
    """Nothing at all."""
    return Setting(name="idle", plan=Plan(rate=None, row_bytes=0, seconds=seconds, connections=0))


def load_results(path: Path) -> dict[str, dict[str, Any]]:
    """Results by name."""
    if not path.is_file():
        return {}
    with path.open() as file:
        flock(file, LOCK_SH)
        found: dict[str, dict[str, Any]] = json.load(file)
    return found


def keep(path: Path, result: dict[str, Any]) -> None:
    """Add a result; the others stay, also what runs at the same time adds."""
    with path.open("a+") as file:
        flock(file, LOCK_EX)
        file.seek(0)
        results = json.loads(file.read() or "{}") | {result["name"]: result}
        lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in results.items())
        file.truncate(0)
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when all was measured."""
    given = _arguments(arguments)
    if given.command == "report":
        from bench.report import write  # noqa: PLC0415 - matplotlib is not needed to measure

        write(load_results(given.results), ROOT / "docs")
        return 0
    try:
        if given.command == "peers" and given.only is None:
            return _side_by_side(given)
        for setting in _settings(given):
            _measure(setting, given)
    except (Unavailable, ServerFailedError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _settings(given: argparse.Namespace) -> list[Setting]:
    seconds = given.seconds
    match given.command:
        case "matrix":
            found = list(matrix(given.rates, given.rows, seconds or 120))
        case "peers":
            found = peers(seconds or 120)
        case "long":
            found = [long(seconds or 1200)]
        case _:
            found = [idle(seconds or 300)]
    return [setting for setting in found if given.only in {None, setting.name}]


def _measure(setting: Setting, given: argparse.Namespace) -> None:
    if setting.name in load_results(given.results) and not given.again:
        print(f"{setting.name}: is there")
        return
    kept = given.log_dir / f"{setting.name}.log" if given.log_dir else None
    if setting.way not in {"stream", "rotated"}:
        kept = None
    print(f"{setting.name}: {setting.plan.seconds:.0f} s", flush=True)
    result = measure(replace(setting, keep_log=kept))
    keep(given.results, result)
    shown = {k: result[k] for k in ("commits", "behind", "missing", "p50", "p99", "max")}
    print(f"{setting.name}: {shown} {result['sent_ratio']} {result['requests']}", flush=True)


def _side_by_side(given: argparse.Namespace) -> int:
    """Each peer in a process of its own, all at once."""
    common = ["--results", str(given.results)]
    common += ["--seconds", str(given.seconds)] if given.seconds else []
    common += ["--again"] if given.again else []
    if wal_g() is None:
        print("wal-g is not on PATH: not measured")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.rpo", "peers", "--only", setting.name, *common], cwd=ROOT
        )
        for setting in peers(1)
    ]
    return max(process.wait() for process in running)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.rpo",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["matrix", "peers", "long", "idle", "report"])
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--seconds", type=float, help="of each measurement")
    parser.add_argument("--only", metavar="NAME", help="this one alone, such as 10-100-direct")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="0: as many as go")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="bytes")
    parser.add_argument("--log-dir", type=Path, help="keep the streamer's log, at debug level")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
