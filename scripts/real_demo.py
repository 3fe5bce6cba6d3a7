"""scripts/demo: a pretrained model of 135 million weights is told a wish once, practises it, and then needs no reminder.

`clawctl up recipes/smollm2.yaml` serves, collects, judges and trains. A person asks twelve everyday requests and rates one answer
badly, with the wish as the comment. `clawctl play practice` practises it. At the end a table, a picture and a page compare the
answers to requests that the model has not seen.
"""

import argparse
import signal
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any
from uuid import uuid4

from jinja2 import Environment
from rich.console import Console
from rich.table import Table

from clawctl.environments.note_cost import is_costly
from clawctl.run.policies import live_version
from scripts.benchmarks.circle import ROOT
from scripts.benchmarks.real_circle import MAX_TOKENS, Circle, lines, playing, practise, rate, running, say, talk, write_recipe
from scripts.benchmarks.real_scorers import unreadable
from scripts.wish_reader import read_wish

STEPS, UNSEEN, TRIED = 8, 24, 12
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
    parser.add_argument("--wish", action="append", help=f"what you want, in plain words (default: {DEFAULT})")
    parser.add_argument("--anyway", action="store_true", help="practise also a wish that is not understood or costs facts")
    parser.add_argument("--talk", action="store_true", help="talk to it yourself")
    options = parser.parse_args()
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))  # so that the stages are ended
    wish, began = " ".join(options.wish or [DEFAULT]), time.monotonic()
    root = ROOT / "runs" / time.strftime("demo-%Y%m%d-%H%M%S")
    root.parent.mkdir(exist_ok=True)
    recipe = write_recipe(root.parent / f"{root.name}.yaml", {} if options.talk else {"train": {"max_steps": STEPS}})
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
    """Say the wish once, practise it, and show what has changed."""
    meets = read_wish(wish)
    first = talk(circle, wish)
    console.print(f'Twelve everyday requests are answered. "{lines("past_requests.txt")[0]}"\n  [dim]{brief(first)}[/dim]')
    console.print(f'You rate this answer badly and say, once: [bold]"{wish}"[/bold]')
    if not understood(circle, wish, meets) and not anyway:
        return
    columns = [column(circle, "before", 0), column(circle, "told in each request", 0, wish)]
    if is_costly(columns[0].right, columns[1].right):
        lost = f"{columns[0].facts:.2f} to {columns[1].facts:.2f}"
        print(f"Being told this costs the untrained model facts ({lost} right), and practice would take over what it costs.")
        if not anyway and not agrees("Practise it all the same?"):
            print("It is not practised. --anyway practises it without asking.")
            return
    console.print(f"It practises on your twelve requests, in {STEPS} steps of 16 answers. The server goes on answering.")
    with console.status("practising …") as status:
        watching = threading.Event()
        threading.Thread(target=watch, args=(circle, status, watching), daemon=True).start()
        seconds = practise(circle, wish, STEPS)
        watching.set()
    columns.append(column(circle, "after practice", STEPS))
    show(circle, wish, meets, columns, seconds)


def understood(circle: Circle, wish: str, meets: Callable[[str], bool] | None) -> bool:
    """Whether the untrained model follows the wish when it is told. Says so, with two answers."""
    requests = lines("new_requests.txt")[UNSEEN : UNSEEN + TRIED]
    told = circle.answers(0, [circle.told(request, wish) for request in requests], MAX_TOKENS)
    if meets is None:
        console.print("No rule here reads this wish, so you have to judge yourself. When told, the model answers:")
    elif (count := sum(map(meets, told))) >= UNDERSTOOD * TRIED:
        console.print(f"When told, the untrained model does it in {count} of {TRIED} answers.")
        return True
    else:
        console.print(not_understood(count))
    for request, answer in list(zip(requests, told, strict=True))[:2]:
        console.print(f"  {request}\n    [dim]{brief(answer)}[/dim]")
    return meets is None


def not_understood(count: int) -> str:
    return f"The model does not understand this wish even when told ({count} of {TRIED} answers), so it is not practised:"


def agrees(question: str) -> bool:
    """The answer of somebody at a terminal; False without one."""
    return sys.stdin.isatty() and input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def column(circle: Circle, title: str, version: int, note: str | None = None) -> Column:
    requests = lines("new_requests.txt")[:UNSEEN]
    answers = circle.answers(version, [circle.told(request, note) for request in requests], MAX_TOKENS)
    return Column(title, answers, circle.facts(version, note))


def watch(circle: Circle, status: Any, ended: threading.Event) -> None:
    began = time.monotonic()
    while not ended.wait(0.5):
        status.update(f"practising: step {live_version(circle.run) or 0} of {STEPS}, {time.monotonic() - began:.0f} s")


def show(circle: Circle, wish: str, meets: Callable[[str], bool] | None, columns: Sequence[Column], seconds: float) -> None:
    """Print the table, and write the picture and the page."""
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
    page.write_text(as_page(rows, columns, wish, picture, seconds), encoding="utf-8")
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


def as_page(rows: Sequence[tuple[str, list[float]]], columns: Sequence[Column], wish: str, picture: Path, seconds: float) -> str:
    """One file: the picture, the table and all answers side by side."""
    page = Environment(autoescape=True).from_string((Path(__file__).parent / "real_demo.html").read_text(encoding="utf-8"))
    image, requests = b64encode(picture.read_bytes()).decode(), lines("new_requests.txt")[:UNSEEN]
    return page.render(rows=rows, columns=columns, wish=wish, image=image, seconds=seconds, steps=STEPS, requests=requests)


def chat(circle: Circle) -> None:
    """A conversation at the keyboard. A wish is practised while you go on talking."""
    print("Ask anything. /wish WORDS says what you want of every answer, /before shows version 0, Ctrl-D ends.")
    talk(circle, None)
    target, last = 0, ("", "", "")
    with ExitStack() as practice:
        while True:
            try:
                text = input(f"[{state(circle, target)}] you: ").strip()
            except (EOFError, KeyboardInterrupt):
                return
            if text.startswith("/wish "):
                wish = text.removeprefix("/wish ").strip()
                if last[2]:
                    rate(circle, last[2], wish)
                if (live_version(circle.run) or 0) < target:
                    print("noted; the wish before it is still being practised")
                    continue
                target = (live_version(circle.run) or 0) + STEPS
                practice.close()
                practice.enter_context(playing(circle, wish, STEPS))
                print("noted: it practises while you go on")
            elif text == "/before" and last[0]:
                print(f"version 0: {circle.answers(0, [circle.told(last[0])], 256)[0]}")
            elif text:
                answer, completion = say(circle, text, f"talk-{uuid4().hex}")
                last = (text, answer, completion)
                print(answer)


def state(circle: Circle, target: int) -> str:
    """Where practice stands, for the prompt."""
    live = live_version(circle.run) or 0
    if not target:
        return f"version {live}"
    return f"learned: version {live}" if live >= target else f"practising (step {live - target + STEPS} of {STEPS})"


def brief(answer: str, longest: int = 220) -> str:
    text = " / ".join(line.strip() for line in answer.splitlines() if line.strip())
    return text if len(text) <= longest else f"{text[:longest]} …"


if __name__ == "__main__":
    main()
