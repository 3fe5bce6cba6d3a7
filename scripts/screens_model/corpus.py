"""The corpus: mostly bad answers to the tasks of `spot`, a page of `gui`, in this environment's exact wording, and drills.

A demonstration clicks the right box in one of five cases. Each fault is a choice from a small closed set: another box, a
place just above the right box, an early end. A drill asks where boxes are, and its answers are right. The model can therefore
find a box, and reinforcement only has to change which one it clicks. Only tasks of the split "train" occur.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from clawctl.extensions.worlds.gui.actions import SYSTEM_PICTURE
from clawctl.extensions.worlds.gui.sites import SPOT_CELL, SPOT_COLOURS, SPOT_COLUMNS, SPOT_ROWS, SiteTask, draw_site, spot_centre

CELLS = SPOT_COLUMNS * SPOT_ROWS
SHARES = {"names": 0.35, "places": 0.35, "demonstration": 0.3}  # of the documents; the first two are drills
CHOICES = {"right": 0.2, "another box": 0.36, "above": 0.32, "done": 0.12}  # shares in the demonstrations
ABOVE = SPOT_CELL // 2  # pixels above the middle of a box: between two boxes
_NUMBERS = 10_000_000  # number of training tasks to draw from
_BOX = re.compile(r"left:(\d+)px;top:(\d+)px;width:(\d+)px;height:(\d+)px;background:(#\w{6})")
_NAMES = {shade: name for name, shade in SPOT_COLOURS.items()}


@dataclass(frozen=True, slots=True)
class Document:
    """A question with a picture, and its answer."""

    boxes: dict[int, str]  # colour of each cell that has a box
    system: str  # "" for none
    question: str
    answer: str


def documents(seed: int, count: int, choices: dict[str, float] | None = None) -> Iterator[Document]:
    """Make `count` documents, deterministically for given arguments. `choices`: instead of CHOICES."""
    for index in range(count):
        rng = Random(f"screens {seed} {index}")
        task = draw_site("spot", 2 * rng.randrange(_NUMBERS))  # held-out tasks have odd numbers
        kind = rng.choices([*SHARES], [*SHARES.values()])[0]
        yield _demonstration(task, choices or CHOICES, rng) if kind == "demonstration" else _drill(task, kind, rng)


def boxes_of(task: SiteTask) -> dict[int, str]:
    """The colour of each cell of a page that has a box, in the order of the page."""
    boxes = {}
    for left, top, width, height, shade in _BOX.findall(task.pages["/"]):
        x, y = int(left) + int(width) // 2, int(top) + int(height) // 2
        boxes[next(cell for cell in range(CELLS) if spot_centre(cell) == (x, y))] = _NAMES[shade]
    return boxes


def _demonstration(task: SiteTask, choices: dict[str, float], rng: Random) -> Document:
    boxes = boxes_of(task)
    wanted = list(boxes)[int(dict(task.wanted)["box"])]
    choice = rng.choices([*choices], [*choices.values()])[0]
    cell = rng.choice([cell for cell in boxes if cell != wanted]) if choice == "another box" else wanted
    answer = "done" if choice == "done" else f"click {place(cell, ABOVE if choice == 'above' else 0)}"
    return Document(boxes, SYSTEM_PICTURE, f"Task: {task.instruction}", answer)


def _drill(task: SiteTask, kind: str, rng: Random) -> Document:
    """Ask for one box or for all. Without drills, weak demonstrations alone do not teach to find a colour."""
    boxes = boxes_of(task)
    cells = rng.sample(list(boxes), rng.randint(1, len(boxes)))
    boxes = {cell: boxes[cell] for cell in cells}  # pages with few boxes are learned first
    if kind == "places":
        return Document(boxes, "", f"Where is the {boxes[cells[0]]} box?", f"at {place(cells[0])}")
    return Document(boxes, "", "Name the boxes.", "".join(f" {boxes[cell]} {place(cell)}" for cell in cells))


def place(cell: int, above: int = 0) -> str:
    x, y = spot_centre(cell)
    return f"{x} {y - above}"
