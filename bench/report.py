"""The tables of docs/benchmarks.md, from the results. Pure, but for `write`.

Each table stands between two comments that name it; everything else in the document stays as it is.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.cost import Load, dear, dollars_per_month, requests_for

Results = Mapping[str, Mapping[str, Any]]
INTERVALS = (1.0, 5.0, 30.0)
FLEET = 300
EVENT_BYTES = 290
"""What the binlog has of a small transaction beside its row."""
CATCHUP_WAYS = {
    "stream": "binlog2s3",
    "kms": "binlog2s3 with SSE-KMS",
    "aws": "`mysqlbinlog --raw`, then `aws s3 cp`",
    "s5cmd": "`mysqlbinlog --raw`, then `s5cmd cp -c 16 -p 10`",
}
_CATCHUP = """## Catching up

![MB/s of a backlog, by way, row size and link](benchmarks-catchup.png)

A server has {binlogs} closed binlogs of about {megabytes:.0f} MB in all, in transactions of one row
each, and an empty bucket.

- One machine with {cores} cores runs everything: MySQL, the way into the bucket, MinIO.
- `near` is MinIO on the loopback interface. `far` adds toxiproxy before it: each answer comes 90 ms
  later, and each connection carries 10 MB/s towards the store.
- The streamer runs with its default options. Its time is from its start until every binlog has its
  entry. The other ways fetch all binlogs, which is local in both cases, and then upload the files.
  Their programs have default options but for what the table says.
- A round runs all ways one after the other, each with a new store. The figures are medians of
  {rounds} rounds. After each run every object was equal to the server's own file.
- "binlog2s3, times as fast" divides the seconds of the way by those of binlog2s3.
- CPU and peak memory are those of the streamer or of the upload program. The columns with
  mysqlbinlog are the streamer's child or the fetch. Requests are those that the store counted.

"""
_SERVE = """## Serving replicas

`binlog2s3 serve` sends {binlogs} closed binlogs, {megabytes:.0f} MB of rows of {row}, from a local
MinIO. Source, MinIO, `serve` and its clients share one machine with {cores} cores.

- A *client* speaks as a replica does, with GTIDs, and drops what it gets, so that only the sender
  is measured, from the connection to the last byte. Ten of them start at the same moment.
- "fetched / block" is how often `serve` read a block from MinIO for all clients together.
- `mysqlbinlog --read-from-remote-server --raw --to-last-log` gets the same binlogs from the server
  itself and from `serve`, in turn. Its seconds are those of the whole program, and its files were
  equal to the server's own.
- The figures are medians of {rounds} rounds.

"""
_SERVE_DELAY = """

A replica's delay: the time from the moment at which the client has the source's answer to its
commit until the row can be read at the replica. Between the two are a streamer with its default
options, MinIO and `serve` with its default options. Rows have {row} and {rotations} rotations are
in each run.

"""
LOADS = {
    "idle": Load(0, 0),
    "1 tx/s of 300 bytes": Load(1, 300 + EVENT_BYTES),
    "10 tx/s of 300 bytes": Load(10, 300 + EVENT_BYTES),
    "100 tx/s of 300 bytes": Load(100, 300 + EVENT_BYTES),
    "10 MB/s": Load(1000, 10_000),
}


def write(results: Results, docs: Path) -> None:
    """Put the tables into the document, and draw the plot where matplotlib is installed."""
    document = docs / "benchmarks.md"
    text = document.read_text()
    for name, table in tables(results).items():
        block = f"<!-- begin {name} -->\n\n{table}\n\n<!-- end {name} -->"
        pattern = f"<!-- begin {name} -->.*?<!-- end {name} -->"
        # a backslash would mean something in what replaces
        text, count = re.subn(pattern, block.replace("\\", r"\\"), text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"{document}: {count} places for the table {name!r}")
    document.write_text(text)
    if importlib.util.find_spec("matplotlib") is None:
        print("matplotlib is not installed (pip install --group bench): no plot")
        return
    from bench.plot import draw, draw_catchup  # noqa: PLC0415 - only where matplotlib is

    draw(results, docs / "benchmarks-rpo.png")
    if found := catchup_results(results):
        draw_catchup(found, docs / "benchmarks-catchup.png")


def tables(results: Results) -> dict[str, str]:
    """Every table by its name."""
    return {
        "rpo": rpo_table(results),
        "requests": requests_table(results),
        "peers": peers_table(results),
        "cost": cost_table(),
        "model": model_table(results),
        "restore": restore_table(results),
        "catchup": catchup_section(results),
        "serve": serve_section(results),
    }


def matrix_results(results: Results) -> list[Mapping[str, Any]]:
    """The matrix in order: without the link first, small rows first, low rates first."""
    found = [result for name, result in results.items() if re.match(r"(\d+|max)-\d+-", name)]
    return sorted(
        found,
        key=lambda r: (r["slow_link"], r["plan"]["row_bytes"], r["plan"]["rate"] or float("inf")),
    )


def rpo_table(results: Results) -> str:
    """Time from commit to restorable."""
    head = (
        "way", "row", "tx/s wanted", "tx/s done", "p50 s", "p99 s", "max s", "binlog MB",
        "sent / binlog", "requests/min", "behind at the end",
    )  # fmt: skip
    rows = []
    for result in matrix_results(results):
        plan = result["plan"]
        rows.append(
            (
                "link" if result["slow_link"] else "direct",
                size(plan["row_bytes"]),
                f"{plan['rate']:g}" if plan["rate"] else "max",
                f"{result['commits'] / result['seconds']:,.0f}",
                *times(result),
                f"{result['binlog_bytes'] / 1e6:.1f}",
                f"{result['sent_ratio']:.2f}",
                f"{per_minute(result):.0f}",
                f"{result['lag_bytes'] / 1e6:.1f} MB" if result["behind"] else "-",
            )
        )
    return markdown(head, rows)


def peers_table(results: Results) -> str:
    """The same load, other ways."""
    titles = {
        "peer-stream": "binlog2s3, flush interval 1 s",
        "peer-rotated": "binlog2s3, flush interval 0, 2 rotations in the run",
        "peer-plain": "`FLUSH BINARY LOGS` each second, upload of the closed file",
        "peer-wal-g": "`FLUSH BINARY LOGS` each second, `wal-g binlog-push`",
    }
    head = ("way", "p50 s", "p99 s", "max s", "sent / binlog", "requests/min", "binlogs")
    rows = [
        (
            title,
            *times(results[name]),
            f"{results[name]['sent_ratio']:.2f}",
            f"{per_minute(results[name]):.0f}",
            str(results[name]["binlogs"]),
        )
        for name, title in titles.items()
        if name in results
    ]
    return markdown(head, rows)


def requests_table(results: Results) -> str:
    """Requests a minute by kind."""
    names = [name for name in ("idle", "long") if name in results]
    names += [r["name"] for r in matrix_results(results) if not r["slow_link"]]
    kinds = sorted({kind for name in names for kind in results[name]["requests"]})
    rows = [(kind, *(_rate(results[name], kind) for name in names)) for kind in kinds]
    return markdown(("requests/min", *names), rows)


def cost_table() -> str:
    """Dollars a month."""
    head = ("source", *(f"{interval:g} s" for interval in INTERVALS))
    head = (*head, *(f"{FLEET} of them, {interval:g} s" for interval in INTERVALS))
    rows = []
    for title, load in LOADS.items():
        costs = [dollars_per_month(load, interval) for interval in INTERVALS]
        rows.append((title, *(f"{c:.2f}" for c in costs), *(f"{c * FLEET:,.0f}" for c in costs)))
    return markdown(head, rows)


def model_table(results: Results) -> str:
    """Dear requests a minute: what the formula says, and what was counted."""
    rows = []
    for name in ("idle", "long", *(r["name"] for r in matrix_results(results))):
        if name not in results:
            continue
        result = results[name]
        seconds = result["observed_seconds"]
        rate = result["commits"] / seconds
        load = Load(rate, result["binlog_bytes"] / result["commits"] if rate else 0)
        said = requests_for(
            load, result["flush_interval"], seconds=seconds, binlogs=result["binlogs"] - 1
        )
        minutes = seconds / 60
        counted = dear(result["requests"])
        rows.append((name, f"{dear(said) / minutes:.1f}", f"{counted / minutes:.1f}"))
    return markdown(("run", "formula", "counted"), rows)


def restore_table(results: Results) -> str:
    """A recovery by both ways of applying."""
    head = (
        "server", "transactions", "MB", "way", "s", "tx/s", "MB/s", "times as fast",
    )  # fmt: skip
    rows = []
    for name in ("restore-mysql", "restore-mariadb"):
        if name not in results:
            continue
        result = results[name]
        server = f"{name.partition('-')[2]} {result['server']}"
        for way, done in result["ways"].items():
            rows.append(
                (
                    server,
                    f"{result['transactions']:,}",
                    f"{result['size'] / 1e6:.0f}",
                    way,
                    f"{done['seconds']:.1f}",
                    f"{done['transactions_per_second']:,}",
                    f"{done['bytes_per_second'] / 1e6:.2f}",
                    f"{result['ratio']:.1f}" if way == "pitr" else "1",
                )
            )
    return markdown(head, rows)


def catchup_results(results: Results) -> list[Mapping[str, Any]]:
    """The backlogs in order: near first, small rows first."""
    found = [result for name, result in results.items() if name.startswith("catchup-")]
    return sorted(found, key=lambda r: (r["link"] != "near", r["row_bytes"]))


def catchup_section(results: Results) -> str:
    """What the document says about backlogs: nothing until one was measured."""
    found = catchup_results(results)
    if not found:
        return ""
    first = found[0]
    text = _CATCHUP.format(
        binlogs=first["binlogs"],
        megabytes=first["size"] / 1e6,
        cores=first["cores"],
        rounds=len(first["ways"]["stream"]["seconds_each"]),
    )
    return text + catchup_table(found)


def catchup_table(found: Iterable[Mapping[str, Any]]) -> str:
    """How fast a backlog gets into the bucket, and what that takes."""
    head = (
        "link", "row", "way", "MB/s", "binlog2s3, times as fast", "CPU s/GB",
        "mysqlbinlog CPU s/GB", "peak MiB", "mysqlbinlog peak MiB", "requests",
    )  # fmt: skip
    rows = []
    for result in found:
        gigabytes = result["size"] / 1e9
        ours = result["ways"]["stream"]["seconds"]
        for way, done in result["ways"].items():
            main, child = done["main"], done["child"]
            rows.append(
                (
                    result["link"],
                    size(result["row_bytes"]),
                    CATCHUP_WAYS[way],
                    f"{megabytes_per_second(result, way):.0f}",
                    f"{done['seconds'] / ours:.2f}",
                    f"{main['cpu_seconds'] / gigabytes:.1f}",
                    f"{child['cpu_seconds'] / gigabytes:.1f}",
                    f"{main['peak_bytes'] / (1 << 20):.0f}",
                    f"{child['peak_bytes'] / (1 << 20):.0f}",
                    f"{sum(done['requests'].values()):.0f}",
                )
            )
    return markdown(head, rows)


def serve_section(results: Results) -> str:
    """What the document says about `serve`: nothing until it was measured."""
    found = [result for name, result in results.items() if name.startswith("serve-")]
    if not found:
        return ""
    found.sort(key=lambda result: str(result["name"]), reverse=True)
    first = found[0]
    text = _SERVE.format(
        binlogs=first["binlogs"],
        megabytes=first["size"] / 1e6,
        row=size(first["row_bytes"]),
        cores=first["cores"],
        rounds=first["rounds"],
    )
    delay = _SERVE_DELAY.format(
        row=size(first["delay"]["row_bytes"]), rotations=first["delay"]["rotations"]
    )
    return text + serve_table(found) + delay + serve_delay_table(found)


def serve_table(found: Iterable[Mapping[str, Any]]) -> str:
    """How fast closed binlogs are sent."""
    head = ("server", "to", "MB/s", "serve CPU s/GB", "fetched / block", "times as fast")
    rows = []
    for result in found:
        server = result["name"].partition("-")[2]
        for clients, one in result["clients"].items():
            rows.append(
                (
                    server,
                    f"{clients} client{'s, in all' if clients != '1' else ''}",
                    f"{one['bytes_per_second'] / 1e6:.0f}",
                    f"{one['cpu_seconds_per_gb']:.1f}",
                    f"{one['fetched_per_block']:.2f}",
                    "",
                )
            )
        theirs, ours = (result["mysqlbinlog"][name] for name in ("server", "serve"))
        for title, one in (("from the server", theirs), ("from `serve`", ours)):
            ratio = f"{theirs['seconds'] / one['seconds']:.2f}"
            rate = f"{one['bytes_per_second'] / 1e6:.0f}"
            rows.append((server, f"mysqlbinlog, {title}", rate, "", "", ratio))
    return markdown(head, rows)


def serve_delay_table(found: Iterable[Mapping[str, Any]]) -> str:
    """How far a replica of `serve` is after the source."""
    head = ("server", "tx/s", "transactions", "p50 s", "p99 s", "max s")
    rows = []
    for result in found:
        delay = result["delay"]
        times_of = (f"{delay[name]:.2f}" for name in ("p50", "p99", "max"))
        server = result["name"].partition("-")[2]
        rows.append((server, str(delay["rate"]), f"{delay['commits']:,}", *times_of))
    return markdown(head, rows)


def megabytes_per_second(result: Mapping[str, Any], way: str) -> float:
    """Bytes of binlog over the seconds of the whole way."""
    return float(result["size"] / 1e6 / result["ways"][way]["seconds"])


def times(result: Mapping[str, Any]) -> tuple[str, str, str]:
    """p50, p99, max; at least that, where some were not seen in the bucket."""
    behind = result["behind"] / result["commits"] if result["commits"] else 0
    return tuple(  # type: ignore[return-value]
        ("≥ " if behind > 1 - share else "") + f"{result[name]:.2f}"
        for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    )


def per_minute(result: Mapping[str, Any]) -> float:
    """All requests."""
    return float(sum(result["requests"].values()) / result["observed_seconds"] * 60)


def size(count: int) -> str:
    """Bytes for a reader."""
    for unit, name in ((1_000_000, "MB"), (1000, "kB")):
        if count >= unit:
            return f"{count // unit} {name}"
    return f"{count} B"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rate(result: Mapping[str, Any], kind: str) -> str:
    count = result["requests"].get(kind, 0)
    return f"{count / result['observed_seconds'] * 60:.1f}" if count else ""
