"""Draws the matrix (p50, p99 and max over the rate, one panel a way) and the backlogs' speeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

from bench.report import CATCHUP_WAYS, Results, matrix_results, megabytes_per_second, size

_MARKERS = {100: ("o", "tab:blue"), 1_000_000: ("s", "tab:orange")}


def draw(results: Results, into: Path) -> None:
    """Write the picture."""
    mpl.use("Agg")
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5), sharey=True)
    for panel, slow_link in zip(panels, (False, True), strict=True):
        found = [r for r in matrix_results(results) if r["slow_link"] == slow_link]
        for row_bytes, (marker, colour) in _MARKERS.items():
            chosen = [r for r in found if r["plan"]["row_bytes"] == row_bytes]
            _draw_line(panel, chosen, marker, colour, size(row_bytes))
        panel.axhline(2, color="grey", linewidth=0.8, linestyle=":")
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100])
        panel.get_yaxis().set_major_formatter("{x:g}")
        panel.get_xaxis().set_major_formatter("{x:g}")
        panel.set_xlabel("transactions committed a second")
        panel.set_title("link of 90 ms and 2 MB/s" if slow_link else "direct")
        panel.grid(which="both", alpha=0.2)
    panels[0].set_ylabel("seconds from commit to restorable")
    if panels[0].get_legend_handles_labels()[0]:
        panels[0].legend(fontsize="small")
    figure.suptitle("solid: p99, bars: p50 to max, dotted: 2 s")
    figure.tight_layout()
    figure.savefig(into, dpi=110, metadata={"Software": None})
    plt.close(figure)


def draw_catchup(found: Sequence[Mapping[str, Any]], into: Path) -> None:
    """Write the picture of the backlogs: a bar for each way, a panel for each link."""
    mpl.use("Agg")
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.5))
    width = 0.8 / len(CATCHUP_WAYS)
    for panel, link in zip(panels, ("near", "far"), strict=True):
        chosen = [result for result in found if result["link"] == link]
        for number, (way, title) in enumerate(CATCHUP_WAYS.items()):
            if not any(way in result["ways"] for result in found):
                continue  # its program could not be had
            here = {g: result for g, result in enumerate(chosen) if way in result["ways"]}
            places = [group + (number - 1) * width for group in here]
            speeds = [megabytes_per_second(result, way) for result in here.values()]
            panel.bar(places, speeds, width, label=title.replace("`", ""))
        panel.set_xticks(range(len(chosen)), [f"rows of {size(r['row_bytes'])}" for r in chosen])
        panel.set_title("near: loopback" if link == "near" else "far: 90 ms, 10 MB/s a connection")
        panel.grid(axis="y", alpha=0.2)
    panels[0].set_ylabel("MB/s of binlog into the store")
    panels[0].legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(into, dpi=110, metadata={"Software": None})
    plt.close(figure)


def _draw_line(
    panel: Any, chosen: list[Mapping[str, Any]], marker: str, colour: str, label: str
) -> None:
    if not chosen:
        return
    rates = [r["commits"] / r["seconds"] for r in chosen]
    p99 = [r["p99"] for r in chosen]
    below = [r["p99"] - r["p50"] for r in chosen]
    above = [r["max"] - r["p99"] for r in chosen]
    panel.errorbar(
        rates, p99, yerr=[below, above], marker=marker, color=colour, capsize=3,
        linewidth=1.2, elinewidth=0.8, label=f"rows of {label}",
    )  # fmt: skip
