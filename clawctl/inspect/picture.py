"""The pictures of a run: eval results per policy version, and the numbers of each training step."""

from pathlib import Path
from typing import Any

from clawctl.inspect.policies import headings, metrics_of

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"  # from the palette of Okabe and Ito, suitable for colour-blind readers

_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7")
_MAX_PANELS = 4
_LINE_FROM = 3  # points; a line between two suggests a course that nobody has measured


def draw(policies: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG with a panel for each of the first metrics. `policies`: measured ones from `describe_policies`, at least one."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import; pyplot is avoided: it needs state and a display
    from matplotlib.figure import Figure

    metrics = metrics_of(policies)[:_MAX_PANELS]
    figure = Figure(figsize=(5 * max(2, len(metrics)), 4.4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for axes, (suite, name), heading, colour in zip(panels, metrics, headings(metrics), _COLOURS, strict=False):
        measured = [(row, row["metrics"][suite][name]) for row in policies if name in row["metrics"].get(suite, {})]
        _panel(axes, measured, heading[:1].upper() + heading[1:], colour)
    count = max(value["n"] for row in policies for numbers in row["metrics"].values() for value in numbers.values())
    refused = "; × refused by the gate" if any(_refused(row) for row in policies) else ""
    figure.supxlabel(
        f"policy version (0: before any learning)\nband or bar: 95 % interval of up to {count} tasks per version{refused}",
        fontsize=9,
    )
    figure.savefig(path, format="png")


def _panel(axes: Any, measured: list[tuple[dict[str, Any], dict[str, Any]]], title: str, colour: str) -> None:
    """One metric: its estimate for each version that has one."""
    from matplotlib.ticker import MaxNLocator

    rows = [row for row, _ in measured]
    versions = [row["version"] for row in rows]
    means = [value["mean"] for _, value in measured]
    lows, highs = zip(*(value["ci95"] for _, value in measured), strict=True)
    if len(rows) < _LINE_FROM:
        below, above = ([abs(end - mean) for end, mean in zip(ends, means, strict=True)] for ends in (lows, highs))
        axes.errorbar(versions, means, yerr=[below, above], color=colour, capsize=4, linestyle="none")
    else:
        axes.fill_between(versions, lows, highs, color=colour, alpha=0.18, linewidth=0)
        axes.plot(versions, means, color=colour, linewidth=2)
    for row, mean in zip(rows, means, strict=True):
        axes.plot(
            row["version"], mean, "x" if _refused(row) else "o", color=colour, markersize=7 if _refused(row) else 5, clip_on=False
        )
    for at, shift, side in ((0, -9, "right"), (-1, 9, "left"))[-len(rows) :]:
        axes.annotate(
            f"{means[at]:.2f}", (versions[at], means[at]), xytext=(shift, 0), textcoords="offset points",
            ha=side, va="center", color=colour, fontsize=12, fontweight="bold", annotation_clip=False,
        )  # fmt: skip
    axes.set_title(title, loc="left", fontsize=12)
    axes.set_ylabel("mean", color=GREY)
    if min(lows) >= 0 and max(highs) <= 1:
        axes.set_ylim(0, 1.02)
    room = 0.2 * max(1, versions[-1] - versions[0])  # space for the numbers at both ends
    axes.set_xlim(versions[0] - room, versions[-1] + room)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain_axes(axes)


def _plain_axes(axes: Any) -> None:
    axes.tick_params(colors=GREY, labelleft=True)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color("#b0b0b0")


def draw_training(steps: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG with two panels: the mean reward of each step's turns, and the difference between trainer and sampler logprobs.

    `steps` are rows of `steps.jsonl` in order, at least one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 2)
    _steps(panels[0], steps, "reward_mean", "Reward of the turns per step", "mean, -1 to 1", BLUE)
    _steps(panels[1], steps, "mismatch_mean", "Trainer compared with sampler", "mean |difference| of log-probabilities", ORANGE)
    panels[0].set_ylim(-1.05, 1.05)
    figure.supxlabel("training step", fontsize=9)
    figure.savefig(path, format="png")


def _steps(axes: Any, steps: list[dict[str, Any]], key: str, title: str, unit: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    points = [(row["step"], row[key]) for row in steps if isinstance(row.get(key), int | float) and "step" in row]
    axes.plot(
        [step for step, _ in points],
        [value for _, value in points],
        "o-" if len(points) >= _LINE_FROM else "o",
        color=colour,
        linewidth=2,
        markersize=4,
    )
    axes.set_title(title, loc="left", fontsize=12)
    axes.set_ylabel(unit, color=GREY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain_axes(axes)


def _refused(row: dict[str, Any]) -> bool:
    return (row["decision"] or {}).get("promote") is False
