"""Case `answers`: pairs of answers that mean the same, in LaTeX and in words, and pairs that do not.

The lines 201 to 278 were written before their author had read the code: 5 of the equivalent ones were not found, and 8 of the
different ones accepted. Another author wrote the lines 362 to 502 in the same way: 18 and 3. A third wrote the lines 577 to 635: 5
and 0, and "no solution" for the empty set, which is left out. `equivalent_found` is the share of the equivalent ones that are
right, and `different_accepted` the number of the others that are.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from clawctl.extensions.worlds.toolcall.questions import Question, is_right
from scripts.benchmarks.table import Row


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    wrong, accepted = wrong_pairs()
    for pair in (*wrong, *accepted):
        print(f"wrong: {pair}", flush=True)
    count = sum(pair["same"] for pair in read_pairs())
    return [
        Row("answers", "equivalent_found", 1 - len(wrong) / count, "share"),
        Row("answers", "different_accepted", float(len(accepted)), "answers"),
    ]


def read_pairs() -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]


def wrong_pairs() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The equivalent pairs that are not right, and the different ones that are."""
    wrong = [pair for pair in read_pairs() if is_right(pair["reply"], Question("pair", "", pair["wanted"])) != pair["same"]]
    return [pair for pair in wrong if pair["same"]], [pair for pair in wrong if not pair["same"]]
