"""Draws docs/weeks.png: satisfaction, ability and KL through 200 updates, from the files of `scripts/bench weeks --series`.

python -m scripts.weeks_picture --series FILE [--without FILE] [--out docs/weeks.png]
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib

from scripts.benchmarks.wishes_circle import ROOT

Points = list[dict[str, Any]]
"""The measurements of one run: [{"update": 0, "phase": "first wish", "ability": 0.95, …}, …]."""

_ROWS = {
    "satisfaction": "share of answers that meet\nthe current wish (worse group)",
    "ability": "share of correct answers\nunder another wish",
    "kl_from_base": "KL from version 0,\nnats an answer",
}


def runs_in(files: Sequence[Path]) -> list[Points]:
    return [run["points"] for file in files for run in json.loads(file.read_text())["runs"].values()]


def draw(with_pull: list[Points], without: list[Points], path: Path) -> None:
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(len(_ROWS), 1, figsize=(8.2, 7.4), dpi=110, sharex=True)
    ends = {point["phase"]: point["update"] for point in with_pull[0] if point["update"]}
    for axes, (name, label) in zip(rows, _ROWS.items(), strict=True):
        for runs, color, title in ((without, "#b45309", "base_pull: 0"), (with_pull, "#0f766e", "base_pull: 0.02")):
            for points in runs:
                axes.plot([p["update"] for p in points], [p[name] for p in points], color=color, alpha=0.25, linewidth=1)
            if runs:
                updates = [point["update"] for point in runs[0]]
                means = [mean(points[i][name] for points in runs) for i in range(len(updates))]
                axes.plot(updates, means, color=color, linewidth=2, label=title)
        begin = 0
        for number, (phase, end) in enumerate(ends.items()):
            axes.axvspan(begin, end, color="black", alpha=0.05 if number % 2 else 0.0, linewidth=0)
            if axes is rows[0]:
                axes.text((begin + end) / 2, 1.06, phase, ha="center", fontsize=8)
            begin = end
        axes.set_ylabel(label, fontsize=8)
        axes.grid(axis="y", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    rows[0].set_ylim(0, 1.03)
    rows[1].set_ylim(0.8, 1.01)
    rows[-1].set_xlabel("updates (thin: one run; thick: mean)")
    rows[1].legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=Path, action="append", required=True, help="may be repeated")
    parser.add_argument("--without", type=Path, action="append", default=[], help="runs with base_pull=0; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "weeks.png")
    options = parser.parse_args()
    draw(runs_in(options.series), runs_in(options.without), options.out)
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
