"""scripts/demo: a pretrained model of 135 million weights is told a wish once, practises it, and then needs no reminder.

`clawctl up recipes/smollm2.yaml` serves, collects, judges, trains and practises. A person asks twelve everyday requests and rates
one answer badly, with the wish as the comment and "remember". The next prompts have it as a note. `clawctl practice`
practises it while nobody asks anything, until the model follows it without. At the end a table, a picture and a page compare the
answers to requests that the model has not seen.
"""

import argparse
import signal
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal
from uuid import uuid4

from jinja2 import Environment
from rich.console import Console
from rich.table import Table

from clawctl.run.feedback import LONGEST_HINT
from clawctl.run.notes import Note, change_note, read_notes
from clawctl.run.policies import live_version
from scripts.benchmarks.circle import ROOT, wait_until
from scripts.benchmarks.real_circle import (
    LONGEST_S,
    MAX_TOKENS,
    Circle,
    is_over,
    last_note,
    lines,
    running,
    say,
    talk,
    write_recipe,
)
from scripts.benchmarks.real_scorers import unreadable
from scripts.wish_reader import read_wish

STEPS, UNSEEN = 8, 24
UNDERSTOOD = 0.25  # share of told answers that meet a wish; below it, the wish is not practised
DEFAULT = "Answer in one short sentence."

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Column:
    """What one version answers: to requests that it has not seen, and to questions of fact."""

    title: str
    answers: list[str]
    right: list[bool]  # by question

    @property
    def facts(self) -> float:
        return fmean(self.right)

    def share(self, meets: Callable[[str], bool]) -> float:
        return sum(map(meets, self.answers)) / len(self.answers)

    @property
    def unreadable(self) -> float:
        return self.share(lambda answer: unreadable(answer, False))


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wish", "--once", action="append", help=f"what you want, in plain words (default: {DEFAULT})")
    parser.add_argument("--anyway", action="store_true", help="practise also a wish that is not understood or costs facts")
    parser.add_argument("--talk", action="store_true", help="talk to it yourself")
    options = parser.parse_args()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that the stages are ended
    wish, began = " ".join(options.wish or [DEFAULT]).strip(), time.monotonic()
    if not 0 < len(wish) <= LONGEST_HINT:
        parser.error(f'--wish: a wish has 1 to {LONGEST_HINT} characters, such as "{DEFAULT}"; this has {len(wish)}')
    root = ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    root.parent.mkdir(exist_ok=True)
    recipe = write_recipe(root.parent / f"{root.name}.yaml", {"practice": {"idle_s": 1, "steps": STEPS}})
    console.print("SmolLM2, 135 million weights, starts on this machine …")
    with running(root, recipe):
        circle = Circle(root)
        if options.talk:
            chat(circle)
        else:
            learn(circle, wish, options.anyway)
    print(f"Run      {root}   ({(time.monotonic() - began) / 60:.1f} minutes)")
    print(f"\nLook closer:\n  .venv/bin/clawctl inspect turns --run {root}\n  .venv/bin/clawctl inspect web --run {root}")


def learn(circle: Circle, wish: str, anyway: bool) -> None:
    """Say the wish once, wait until it is learned, and show what has changed."""
    meets = read_wish(wish)
    with console.status("finding out where this model reads a note best …"):
        wait_until(circle.run.hint_place.exists, LONGEST_S, "no place of notes was chosen")
    columns = [column(circle, "before", "off")]
    first = talk(circle, wish, remember=True)
    console.print(f'Twelve everyday requests are answered. "{lines("past_requests.txt")[0]}"\n  [dim]{brief(first)}[/dim]')
    console.print(f'You rate this answer badly and say, once: [bold]"{wish}"[/bold] It is a note from the next request on.')
    columns.append(column(circle, "next answers, with the note", "on"))
    if not understood(columns[1].answers, meets):
        note = change_note(
            circle.run, "default", last_note(circle).id, practise=anyway, state="new" if anyway else "not understood"
        )
        if not note.practise:
            return
    began = time.monotonic()
    console.print("Now nobody asks anything, so clawctl practises the note on the twelve requests. The server goes on answering.")
    with console.status("practising …") as status:
        while not is_over(note := last_note(circle), STEPS):
            status.update(f"{progress(note)}, {time.monotonic() - began:.0f} s")
            time.sleep(0.5)
            if not note.practise and (anyway or agrees(f"{note.reason}. Practise it all the same?")):
                change_note(circle.run, "default", note.id, practise=True)
            elif not note.practise:
                print(f"It stays in the prompt and is not practised: {note.reason}. --anyway practises it without asking.")
                return
    columns.append(column(circle, "after practice, without the note", "off"))
    show(circle, note, meets, columns, time.monotonic() - began)


def understood(answers: Sequence[str], meets: Callable[[str], bool] | None) -> bool:
    """Whether the untrained model follows the wish when it is told. Says so, with two answers."""
    requests = lines("new_requests.txt")
    if meets is None:
        console.print("No rule here reads this wish, so you have to judge yourself. With the note, the model answers:")
    elif (count := sum(map(meets, answers))) >= UNDERSTOOD * len(answers):
        console.print(f"With the note, the untrained model does it in {count} of {len(answers)} answers.")
        return True
    else:
        console.print(not_understood(count, len(answers)))
    for request, answer in list(zip(requests, answers, strict=False))[:2]:
        console.print(f"  {request}\n    [dim]{brief(answer)}[/dim]")
    return meets is None


def not_understood(count: int, total: int) -> str:
    return f"The model does not understand this wish even when told ({count} of {total} answers), so it is not practised:"


def agrees(question: str) -> bool:
    """The answer of somebody at a terminal; False without one."""
    return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def column(circle: Circle, title: str, notes: Literal["on", "off"]) -> Column:
    """What the live version answers, with the person's notes or without them."""
    at, requests = circle.quiet(notes), lines("new_requests.txt")[:UNSEEN]
    with ThreadPoolExecutor() as threads:  # together they share the engine's steps
        answers = threads.submit(circle.answers_at, at, [circle.told(request) for request in requests], MAX_TOKENS)
        return Column(title, right=circle.facts_at(at), answers=answers.result())


def progress(note: Note) -> str:
    """Where a note is on its way."""
    followed = f", followed to {note.followed[-1][1]:.2f} without a reminder" if note.followed else ""
    return f"“{note.text}” is {'being tried' if note.state == 'new' else note.state}: {note.steps} steps{followed}"


def show(circle: Circle, note: Note, meets: Callable[[str], bool] | None, columns: Sequence[Column], seconds: float) -> None:
    """Print the table, and write the picture and the page."""
    wish = note.text
    print(f"{progress(note)}." if note.state == "learned" else f"{progress(note)}: {note.reason}.")
    rows = [("facts right", [column.facts for column in columns]), ("unreadable", [column.unreadable for column in columns])]
    if meets is not None:
        rows.insert(0, ("wish met", [column.share(meets) for column in columns]))
    table = Table("share", *(column.title for column in columns), title=f'"{wish}": {UNSEEN} new requests, 20 facts')
    for name, values in rows:
        table.add_row(name, *(f"{value:.2f}" for value in values))
    Console().print(table)
    requests = lines("new_requests.txt")
    for number in (0, 1):
        print(f"\n{requests[number]}\n  before: {brief(columns[0].answers[number])}\n  after:  {brief(columns[2].answers[number])}")
    picture, page = circle.run.root / "demo.png", circle.run.root / "demo.html"
    draw(rows, columns, wish, picture)
    page.write_text(as_page(rows, columns, note, picture, seconds), encoding="utf-8")
    print(f"\nPractice {seconds:.0f} s\nPicture  {picture}\nPage     {page}")


def draw(rows: Sequence[tuple[str, list[float]]], columns: Sequence[Column], wish: str, path: Path) -> None:
    """Bars of each share, by column."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for index, (column, colour) in enumerate(zip(columns, ("#6b6b6b", "#0072B2", "#D55E00"), strict=True)):
        places, values = [at + 0.27 * (index - 1) for at in range(len(rows))], [shares[index] for _, shares in rows]
        bars = axes.bar(places, values, 0.25, color=colour, label=column.title)
        axes.bar_label(bars, fmt="%.2f", fontsize=9, padding=2)
    axes.set_xticks(range(len(rows)), [name for name, _ in rows])
    axes.set_ylim(0, 1.12)
    axes.set_ylabel("share of answers")
    axes.set_title(f'Said once: "{wish}"', loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.1))
    figure.savefig(path)


def as_page(rows: Sequence[tuple[str, list[float]]], columns: Sequence[Column], note: Note, picture: Path, seconds: float) -> str:
    """One file: the picture, the table and all answers side by side."""
    page = Environment(autoescape=True).from_string((Path(__file__).parent / "real_demo.html").read_text(encoding="utf-8"))
    image, requests = b64encode(picture.read_bytes()).decode(), lines("new_requests.txt")[:UNSEEN]
    return page.render(rows=rows, columns=columns, note=note, image=image, seconds=seconds, requests=requests)


def chat(circle: Circle) -> None:
    """A conversation at the keyboard. A wish holds from the next answer, and is practised while you rest."""
    print("Ask anything. `/remember WORDS` says what you want of every answer, /before shows version 0, Ctrl-D ends.")
    talk(circle, None)
    prompt = ""
    while True:
        try:
            text = input(f"[{state(circle)}] you: ").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if text == "/before" and prompt:
            print(f"version 0: {circle.answers(0, [circle.told(prompt)], 256)[0]}")
        elif text:
            prompt = text
            print(say(circle, text, f"talk-{uuid4().hex}")[0])


def state(circle: Circle) -> str:
    """The live version and the newest note, for the prompt."""
    notes = read_notes(circle.run, "default")
    return f"version {live_version(circle.run) or 0}" + (f"; {progress(notes[-1])}" if notes else "")


def brief(answer: str, longest: int = 220) -> str:
    text = " / ".join(line.strip() for line in answer.splitlines() if line.strip())
    return text if len(text) <= longest else f"{text[:longest]} …"


if __name__ == "__main__":
    main()
