"""A run as a picture and a page that can be shared. The page loads no external resource."""

import base64
import html
import shlex
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clawctl.errors import ClawError
from clawctl.inspect.picture import draw, draw_notes, draw_training
from clawctl.inspect.policies import describe_policies, estimate, headings, metrics_of, read_eval
from clawctl.inspect.rows import read_lines
from clawctl.printing import answers, plain, print_json
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.notes import keys_with_notes, read_notes

_LONGEST = 2000  # characters shown of an example


def write_report(run: RunDir, folder: Path) -> tuple[Path, Path]:
    """Write `report.png` and `report.html` into `folder` and return both paths.

    The picture shows eval results; if there are none, notes that were practised; if there are none, training steps. Raises
    ClawError if there is nothing of these.
    """
    problems: list[str] = []
    policies = describe_policies(run, problems)
    measured = [row for row in policies if any(row["metrics"].values())]
    steps = list(read_lines(run.steps, problems))
    notes = [note for key in keys_with_notes(run) for note in read_notes(run, key, problems)]
    notes = [note for note in notes if note.followed and note.policy == run.policy]
    if not measured and not steps:
        problem = f"{run.root} has no measured policy and no training step"
        raise ClawError(
            problem, "run `clawctl eval --version 0` to measure the first policy; `clawctl inspect health` shows what is waiting"
        )
    folder.mkdir(parents=True, exist_ok=True)
    png, page = folder / "report.png", folder / "report.html"
    with TemporaryDirectory() as scratch:
        pictures, drawn = {}, Path(scratch) / "drawn.png"
        for description, rows, picture in (
            (_in_words(measured), measured, partial(draw, measured)),
            ("How far each version follows a note without a reminder", notes, partial(draw_notes, notes)),
            ("Reward or loss of each step, and the difference between trainer and sampler", steps, partial(draw_training, steps)),
        ):
            if rows:
                picture(drawn)
                pictures[description] = drawn.read_bytes()
        publish_bytes(png, next(iter(pictures.values())))
        publish_bytes(page, _page(run, policies, measured, pictures, problems).encode())
    return png, page


def show_report(run: RunDir, folder: Path | None, as_json: bool) -> None:
    """Write the report into `folder` (default: the run directory), and print the paths."""
    png, page = write_report(run, folder or run.root)
    if as_json:
        print_json({"page": str(page), "picture": str(png)})
    else:
        answers().print(str(page), str(png), sep="\n", soft_wrap=True)


def _page(
    run: RunDir, policies: list[dict[str, Any]], measured_policies: list[dict[str, Any]], pictures: dict[str, bytes],
    problems: list[str],
) -> str:  # fmt: skip
    parts = [
        _text("p", f"{sum(row['turns'] for row in policies)} turns trained in {len(policies) - 1} updates; {_live(policies)}."),
        *(
            f'<img alt="{_escape(description)}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
            for description, picture in pictures.items()
        ),
        _text("h2", "Versions"),
        _versions(policies),
        _examples(run, measured_policies[0]["version"], _shown_version(measured_policies), problems) if measured_policies else "",
        _text("h2", "Look closer"),
        _text("p", f"The run is in {run.root}. Further commands:"),
        _text(
            "pre",
            "\n".join(f"clawctl inspect {what} --run {shlex.quote(str(run.root))}" for what in ("policies", "turns", "health")),
        ),
        *(_text("p", f"problem: {problem}", "problem") for problem in problems),
        _text("p", time.strftime("%Y-%m-%d %H:%M"), "small"),
    ]
    title = f"clawctl: {run.root.name}"
    style = Path(__file__).with_name("report.css").read_text("utf-8")
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">{_text("title", title)}<style>{style}</style>'
    body = "\n".join([_text("h1", title), *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def _live(policies: list[dict[str, Any]]) -> str:
    live = [row["version"] for row in policies if row["live"]]
    return f"policy {live[0]} is live" if live else "no policy is live"


def _in_words(measured: list[dict[str, Any]]) -> str:
    if not measured:
        return ""
    first, last = measured[0], measured[-1]
    both = metrics_of([{"metrics": {suite: first["metrics"].get(suite, {}) for suite in last["metrics"]}}])
    changes = [
        f"{heading} from {first['metrics'][suite][name]['mean']:.2f} to {last['metrics'][suite][name]['mean']:.2f}"
        for (suite, name), heading in zip(both, headings(both), strict=True)
        if name in last["metrics"][suite]
    ]
    return f"From policy {first['version']} to policy {last['version']}: {', '.join(changes)}"


def _shown_version(measured: list[dict[str, Any]]) -> int:
    """The live version if it was measured, otherwise the newest measured version."""
    return int(next((row["version"] for row in measured if row["live"]), measured[-1]["version"]))


def _versions(policies: list[dict[str, Any]]) -> str:
    metrics = metrics_of(policies)
    heads = ("version", "method", "turns", "loss", *headings(metrics), "gate")
    rows = [_row("th", heads)]
    for row in policies:
        decision = row["decision"] or {}
        promote = decision.get("promote")
        gate = "" if promote is None else "accepted" if promote else f"not live: {decision.get('reason')}"
        loss = "" if row["loss"] is None else f"{row['loss']:.3g}"
        version = f"{row['version']} (live)" if row["live"] else row["version"]
        measured = (estimate(row, metric) for metric in metrics)
        rows.append(_row("td", (version, row["method"] or "", row["turns"], loss, *measured, gate)))
    return f"<table>{''.join(rows)}</table>"


def _examples(run: RunDir, before: int, after: int, problems: list[str]) -> str:
    """The same held-out problems, answered by the first measured version and by the shown one."""
    old, new = (examples_of(read_eval(run, version, problems)) for version in (before, after))
    both = [task for task in old if task in new]
    if before == after or not both:
        return ""
    rows = [_row("th", ("asked", f"policy {before}", f"policy {after}"))]
    for task in both:
        cells = "".join(f"<td>{_reply(example)}</td>" for example in (old[task], new[task]))
        rows.append(f"<tr>{_text('td', str(old[task].get('prompt', task)))}{cells}</tr>")
    return f'{_text("h2", "Before and after")}<table class="words">{"".join(rows)}</table>'


def examples_of(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The examples in an eval record, by task."""
    return {str(row["task_id"]): row for row in record["examples"] if isinstance(row, dict) and "task_id" in row}


def _reply(example: dict[str, Any]) -> str:
    return _text("div", str(example.get("reply", ""))) + _text("div", ", ".join(scores_of(example)), "small")


def scores_of(example: dict[str, Any]) -> list[str]:
    """The numbers and booleans of an example as text: "satisfaction 1", "correct", "not concise"."""
    marks = [name if value else f"not {name}" for name, value in example.items() if isinstance(value, bool)]
    numbers = [
        f"{name} {value:g}" for name, value in example.items() if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    return numbers + marks


def _row(cell: str, values: tuple[Any, ...]) -> str:
    return f"<tr>{''.join(_text(cell, str(value)) for value in values)}</tr>"


def _text(tag: str, text: str, kind: str | None = None) -> str:
    opening = f'{tag} class="{kind}"' if kind else tag
    return f"<{opening}>{_escape(text)}</{tag}>"


def _escape(text: str) -> str:
    return html.escape(plain(text, _LONGEST))
