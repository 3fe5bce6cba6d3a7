"""The pictures of a run: eval results and how far notes are followed, by policy version, and the numbers of each training step."""

from pathlib import Path
from typing import Any

from clawctl.inspect.policies import headings, metrics_of
from clawctl.run.notes import Note

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6b6b6b"  # from the palette of Okabe and Ito, suitable for colour-blind readers

_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7")
_MAX_PANELS = 4
_LINE_FROM = 3  # points; a line between two suggests a course that nobody has measured


def draw(policies: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG with a panel for each of the first metrics. `policies`: measured ones from `describe_policies`, at least one."""
    metrics = metrics_of(policies)[:_MAX_PANELS]
    figure, panels = _figure(len(metrics), 4.4)
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
    """Write a PNG with two panels: the mean reward of each step's turns, or the loss if none of them has a reward, and the
    difference between trainer and sampler logprobs.

    `steps` are rows of `steps.jsonl` in order, at least one.
    """
    figure, panels = _figure(2)
    if rewards := _values(steps, "reward_mean"):
        _line(panels[0], rewards, "Reward of the turns per step", "mean, -1 to 1", BLUE)
        panels[0].set_ylim(-1.05, 1.05)
    else:
        _line(panels[0], _values(steps, "loss"), "Loss per step", "mean", BLUE)
    unit = "mean |difference| of log-probabilities"
    _line(panels[1], _values(steps, "mismatch_mean"), "Trainer compared with sampler", unit, ORANGE)
    panels[1].set_ylim(bottom=0)
    figure.supxlabel("training step", fontsize=9)
    figure.savefig(path, format="png")


def draw_notes(notes: list[Note], path: Path) -> None:
    """Write a PNG with a panel for each of the last notes: how far each version follows it without a reminder.

    Its text is not written: the picture can be shared, and outlives a note that is forgotten.
    """
    shown = notes[-_MAX_PANELS:]
    figure, panels = _figure(len(shown))
    for number, (axes, note, colour) in enumerate(zip(panels, shown, _COLOURS, strict=False), len(notes) - len(shown) + 1):
        _line(axes, [(0, 0.0), *note.followed], f"Note {number}", "followed without a reminder", colour)
        axes.set_ylim(min(-0.05, *(share for _, share in note.followed)), max(1.05, *(share for _, share in note.followed)))
    figure.supxlabel("policy version\n0: as before any learning; 1: as when the note is in the prompt", fontsize=9)
    figure.savefig(path, format="png")


def _figure(count: int, height: float = 3.6) -> tuple[Any, list[Any]]:
    """A figure with `count` panels side by side; `height` in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import; pyplot is avoided: it needs state and a display
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * max(count, 2), height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _values(steps: list[dict[str, Any]], key: str) -> list[tuple[int, float]]:
    return [(row["step"], row[key]) for row in steps if isinstance(row.get(key), int | float) and "step" in row]


def _line(axes: Any, points: list[tuple[int, float]], title: str, unit: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    x, y = [x for x, _ in points], [y for _, y in points]
    axes.plot(x, y, "o-" if len(points) >= _LINE_FROM else "o", color=colour, linewidth=2, markersize=4)
    axes.set_title(title, loc="left", fontsize=12)
    axes.set_ylabel(unit, color=GREY)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain_axes(axes)


def _refused(row: dict[str, Any]) -> bool:
    return (row["decision"] or {}).get("promote") is False
