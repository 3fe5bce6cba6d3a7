"""Draws docs/wishes.png: the share of met wishes before and after 8 updates, from the finished runs of `scripts/bench wishes`.

python -m scripts.wishes_picture [--runs runs/wishes.json] [--out docs/wishes.png]
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import matplotlib

from scripts.benchmarks.wishes_circle import ROOT

Shares = dict[str, tuple[float, float]]
"""By axis: the share of first answers that meet the wish, before and after."""


def shares_of(runs: dict[str, dict[str, dict[str, float]]], case: str) -> Shares:
    """Return the means over the seeds of a case."""
    by_axis: defaultdict[str, list[dict[str, float]]] = defaultdict(list)
    for key, metrics in runs.items():
        name, axis, *_ = json.loads(key)
        if name == case:
            by_axis[axis].append(metrics["8"])
    return {axis: (mean(m["start"] for m in some), mean(m["satisfaction"] for m in some)) for axis, some in by_axis.items()}


def draw(chosen: Shares, held_out: Shares, path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [(axis, values, "#0f766e") for axis, values in sorted(chosen.items(), key=lambda item: item[1][1])]
    rows = [(axis, values, "#b45309") for axis, values in sorted(held_out.items(), key=lambda item: item[1][1])] + rows
    figure, axes = plt.subplots(figsize=(7.2, 0.3 * len(rows) + 1.1), dpi=110)
    for row, (_, (before, after), color) in enumerate(rows):
        axes.plot([before, after], [row, row], color=color, linewidth=2, alpha=0.35)
        axes.plot(before, row, "o", color="white", markeredgecolor=color, markersize=7)
        axes.plot(after, row, "o", color=color, markersize=8)
    axes.set_yticks(range(len(rows)), [axis for axis, _, _ in rows])
    axes.set_xlim(0, 1.02)
    axes.set_xlabel("share of first answers that meet the wish: before (white) and after 8 updates")
    axes.set_title("One wish at a time. Settings were chosen without the axes in brown.", fontsize=10)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, action="append", help="may be repeated (default runs/wishes.json)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "wishes.png")
    options = parser.parse_args()
    runs: dict[str, dict[str, dict[str, float]]] = {}
    for file in options.runs or [ROOT / "runs" / "wishes.json"]:
        runs |= json.loads(file.read_text())
    draw(shares_of(runs, "alone"), shares_of(runs, "held-out"), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
