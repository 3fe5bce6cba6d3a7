"""Case `people`: the kills of the case `kill` while three of the clients' four keys have a policy and a note of their own.

Notes are in the prompts, and `clawctl practice` practises them. Training yields to requests (`train.when: idle`). No policy may be
trained on a turn of another person (`trained_others_turns`).
"""

import argparse
from pathlib import Path
from typing import Any

from scripts.benchmarks.chaos_kill import RECIPE, Circle, kill, rows_of
from scripts.benchmarks.chaos_stages import VICTIMS
from scripts.benchmarks.table import Row

NOTES = {  # of each person, a sentence that the model may follow
    "anna": "Answer in one short sentence.",
    "bert": "End every answer with an emoji.",
    "carl": "Answer in German.",
}
ROUNDS, QUICK_ROUNDS = 60, 9
_PATIENCE_S = 30.0
PEOPLE: dict[str, Any] = {
    **RECIPE,
    "policies": {"per": "key", "loaded": len(NOTES) + 1},
    "train": {**RECIPE["train"], "when": "idle", "idle_s": 0.2, "longest_rest_s": 5.0},
    "practice": {"when": "always", "least_requests": 1, "max_tokens": 32},
    "up": {"stages": [*RECIPE["up"]["stages"], "practice"]},
}


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    circle = Circle(PEOPLE, NOTES, _PATIENCE_S)
    return rows_of("people", kill(folder, rounds, options.seed, victims=(*VICTIMS, "practice"), circle=circle))
