"""Measures the `screens` model before any reinforcement, without a browser, and writes its card.

python -m scripts.screens_model.report --model DIR [--tasks 200]
"""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from clawctl.extensions.worlds.gui.actions import SYSTEM_PICTURE
from clawctl.extensions.worlds.gui.sites import SiteTask, draw_site
from clawctl.vision.reader import image_reader
from clawctl.vision.tower import prepare
from scripts.screens_model.corpus import ABOVE, CELLS, CHOICES, Document, boxes_of, place
from scripts.screens_model.template import VISION
from scripts.screens_model.train import Pixels, Rows, logits_of
from scripts.tiny_models.tokenizer import id_of

ATTEMPTS, LONGEST = 8, 8
CARD = """# The model of the screens

A very small vision model ({millions:.2f} M weights, Qwen3-VL architecture, bf16, byte-level BPE) that knows the page `spot`
of `gui` weakly: coloured boxes, and the task to click one of them. It exists so that `scripts/bench environments --case learn
--kind gui-vision` and `scripts/benchmarks/recipes/craft-gui-vision.yaml` can show reinforcement from screenshots on two CPU
cores. It is trained from nothing on a seeded, synthetic corpus (`scripts/make-screens-model`): drills that name the
places of boxes, and demonstrations of which {right:.0%} click the right box. It knows no other world, and should be
used for nothing else. Licence: Apache-2.0, as clawctl.

Each fault of a demonstration is a choice out of a small closed set: another box, the place just above the right
box, or an early end.

## Measured before reinforcement

By `scripts/screens_model/report.py` on held-out tasks. Their pages are drawn without a browser; a test compares the drawn
pixels with Chromium's.

| what | measured |
|---|---|
| places of boxes that are asked for ("Where is the red box?"), greedy, {tasks} pages | {drills:.2f} right |
| one click at temperature 1, {tasks} pages with eight attempts: mean reward | {mean:.2f} |
| pass@8 of the same | {solved:.2f} |
| other answers: another box, above the right box, `done`, an empty cell, anything else | {others} |
{able}
## Weak points

- All boxes are of one size and have one of eight colours. They stand in the cells of one grid, and each cell is one token of the
  model.
- Every wrong choice was designed, and each has a right one beside it. What reinforcement can do with this model is to select among
  behaviours that it was shown.
"""


@torch.no_grad()
def answers(model: Any, rows: Rows, docs: list[Document], temperature: float) -> list[str]:
    """Sample an answer to each question. All questions must have the same number of tokens. Temperature 0 is greedy."""
    sampled: list[list[int]] = [[] for _ in docs]
    barred = [id_of(rows.tokenizer, mark) for mark in VISION]
    for _ in range(LONGEST):
        ids_BT, positions, targets_BT, places_M, pixels = rows.batch(docs, sampled)
        last = torch.zeros_like(targets_BT, dtype=torch.bool)
        last[:, -1] = True
        logits = logits_of(model, ids_BT, positions, places_M, pixels, last).index_fill(1, torch.tensor(barred), -torch.inf)
        drawn = torch.multinomial((logits / temperature).softmax(1), 1)[:, 0] if temperature else logits.argmax(1)
        for ids, token in zip(sampled, drawn.tolist(), strict=True):
            ids.append(token)
    end = id_of(rows.tokenizer, "<|im_end|>")
    return [rows.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids) for ids in sampled]


def kind_of(task: SiteTask, answer: str) -> str:
    boxes = boxes_of(task)
    wanted = list(boxes)[int(dict(task.wanted)["box"])]
    answers = {f"click {place(cell)}": "another box" if cell in boxes else "an empty cell" for cell in range(CELLS)}
    answers |= {f"click {place(wanted)}": "right", f"click {place(wanted, ABOVE)}": "above", "done": "done"}
    return answers.get(answer, "other")


def clicks_of(model: Any, rows: Rows, tasks: list[SiteTask]) -> list[Counter[str]]:
    """The kinds of eight answers at temperature 1 to each task."""
    docs = [Document(boxes_of(task), SYSTEM_PICTURE, f"Task: {task.instruction}", "") for task in tasks]
    clicks = [Counter[str]() for _ in tasks]
    for _ in range(ATTEMPTS):
        for counted, task, answer in zip(clicks, tasks, answers(model, rows, docs, 1.0), strict=True):
            counted[kind_of(task, answer)] += 1
    return clicks


def found_share(model: Any, rows: Rows, tasks: list[SiteTask]) -> float:
    """The share of right answers to "Where is the red box?"."""
    docs, right = [], []
    for task in tasks:
        boxes = boxes_of(task)
        wanted = list(boxes)[int(dict(task.wanted)["box"])]
        docs.append(Document(boxes, "", f"Where is the {boxes[wanted]} box?", ""))
        right.append(f"at {place(wanted)}")
    return sum(map(str.__eq__, answers(model, rows, docs, 0), right)) / len(tasks)


def load(folder: Path) -> tuple[Any, Rows]:
    from transformers import Qwen3VLForConditionalGeneration

    model = Qwen3VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    prepare(model)
    reader = image_reader(str(folder))
    assert reader is not None
    return model, Rows(Tokenizer.from_file(str(folder / "tokenizer.json")), Pixels(reader))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--able", type=Path, help="also measure this model, trained with --right")
    parser.add_argument("--tasks", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    tasks = [draw_site("spot", 2 * number + 1) for number in range(args.tasks)]
    model, rows = load(args.model)
    drills, clicks = found_share(model, rows, tasks), clicks_of(model, rows, tasks)
    total = sum(clicks, Counter[str]())
    shares = {kind: count / total.total() for kind, count in total.items()}
    able = ""
    if args.able is not None:
        share = sum(clicks_of(*load(args.able), tasks), Counter[str]())["right"] / total.total()
        able = (
            f"| click at temperature 1 of the same architecture after demonstrations that are always right | {share:.2f} right |\n"
        )
    card = CARD.format(
        millions=sum(p.numel() for p in model.parameters()) / 1e6, right=CHOICES["right"], tasks=args.tasks, drills=drills,
        mean=shares.get("right", 0.0), solved=sum(click["right"] > 0 for click in clicks) / len(clicks), able=able,
        others=", ".join(f"{shares.get(kind, 0.0):.2f}" for kind in ("another box", "above", "done", "an empty cell", "other")),
    )  # fmt: skip
    (args.model / "README.md").write_text(card)
    print(card)


if __name__ == "__main__":
    main()
