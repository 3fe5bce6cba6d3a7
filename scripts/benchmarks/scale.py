"""Estimates the capacity of 1 to 1,000 boxes by a model of the stages with measured constants, and checks the model here.

Case `model` computes the turns per second and conversations that each number of boxes supports, the stage that saturates first, and
the cost. A queue simulation just below and just above that load confirms the result. Constants of the software are measured
(NOTES.md). Constants of a GPU are assumed, because none was available. `scripts/benchmarks/scale_model.py` has all of
them.

Case `wish` estimates how long a person waits for a wish: until it is in the prompt and in the weights, and by reactions alone, for
40 turns a day on one card of 24 GB with a model of 4 B weights.

Case `points` measures the processor time of a turn in each stage separately. From that it predicts the processor time of two real
arrangements, and measures them: one box with all stages, and two nodes of one core each, with serve on one and the other stages on
the other. `model_error_two_points` is the larger relative error of the predicted load of the busiest node. The bar is 0.2.
"""

import importlib
import random
import tempfile
from pathlib import Path
from typing import Any

from scripts.benchmarks.scale_model import (
    ASSUMED,
    CARD_24GB,
    CARDS,
    MEASURED,
    Wish,
    Workload,
    capacity,
    collect_memory_gb,
    practice_minutes,
    reaction_days,
    runs_needed,
    simulate,
    stages,
)
from scripts.benchmarks.table import Row, make_parser, report

BOXES = (1, 10, 100, 1_000)
MAX_ERROR = 0.2


def main() -> None:
    parser = make_parser(__doc__ or "")
    parser.add_argument("--case", action="append", choices=("model", "wish", "points"), help="this one only; may be repeated")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    parser.add_argument("--turns", type=int, help="turns of each part of `points`, instead of 240")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the runs of `points` here")
    options = parser.parse_args()
    rows: list[Row] = []
    if "model" in (options.case or ("model",)):
        rows += model(options.seed, 20_000 if options.quick else 100_000)
    if "wish" in (options.case or ("wish",)):
        rows += wish_rows()
    if "points" in (options.case or ("points",)):
        points: Any = importlib.import_module("scripts.benchmarks.scale_points")
        with tempfile.TemporaryDirectory(prefix="clawctl-scale-") as temporary:
            rows += points.rows(options, options.keep or Path(temporary))
    report("scale", rows, options.json)
    if missed := [row for row in rows if row.metric == "model_error_two_points" and (row.value or 0) > MAX_ERROR]:
        raise SystemExit(f"the model is off by {missed[0].value:.0%}, more than {MAX_ERROR:.0%}")


def model(seed: int, turns: int) -> list[Row]:
    for name, constant in (*MEASURED.items(), *ASSUMED.items()):
        kind = "assumed" if name in ASSUMED else "measured"
        print(f"{name} = {constant.value:g} {constant.unit} ({kind}: {constant.source})")
    work, rows = Workload(), []
    for boxes in BOXES:
        costs = stages(boxes, work)
        most, first = capacity(costs)
        below, above = simulate(costs, 0.9 * most, turns, seed), simulate(costs, 1.2 * most, turns, seed)
        conversations = most * work.seconds_between_turns
        case, cost = f"{boxes} boxes", boxes * ASSUMED["box_cost_per_hour"].value
        print(f"{case}: {first} saturates first, at {most:.1f} turns a second; at 0.9 of it a turn waits "
              f"{below[first]:.2f} s there, at 1.2 of it {above[first]:.1f} s and rising")  # fmt: skip
        rows += [
            Row(case, "turns_per_s", most, f"until the {first} saturates"),
            Row(case, "conversations", conversations, "at once, a turn a minute each"),
            Row(case, "boxes_busy", min(boxes, most * sum(c.seconds for c in costs if c.stage in CARDS)), "boxes"),
            Row(case, "usd_per_1000_turns", cost / 3.6 / most, "if all boxes are paid"),
            Row(case, "runs_needed", runs_needed(costs), "runs, to keep all boxes busy"),
            Row(case, "collect_memory_gb", collect_memory_gb(conversations), "GB"),
            Row(case, "wait_s_at_0.9", below[first], f"at the {first}"),
            Row(case, "wait_s_at_1.2", above[first], f"at the {first}"),
        ]
    return rows


def wish_rows() -> list[Row]:
    for name, constant in CARD_24GB.items():
        print(f"{name} = {constant.value:g} {constant.unit} (assumed: {constant.source})")
    wish = Wish()
    return [
        Row("wish", "prompted_requests", 1, "request: the next one"),
        Row("wish", "learned_minutes", practice_minutes(wish), "min without a request"),
        Row("wish", "by_reactions_days", reaction_days(wish), "days, if every turn says it"),
        Row("wish", "by_complaints_days", reaction_days(wish, wish.complaints), "days, if the complaints say it"),
    ]


if __name__ == "__main__":
    main()
