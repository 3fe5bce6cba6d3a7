"""Writes docs/labelled-turns.jsonl: turns of homework help whose verdict is known, for `clawctl calibrate`.

.venv/bin/python -m scripts.labelled_turns [FILE] [--count N]
"""

import argparse
import itertools
import json
from pathlib import Path
from random import Random

from clawctl.extensions.demos.grammar import Phrasings
from scripts.demo_model import judgements

EXAMPLE = Path(__file__).resolve().parent.parent / "docs" / "labelled-turns.jsonl"


def labelled(count: int) -> list[str]:
    """Make one JSON object per line. Half of them use phrasings from the demo model's training, half use held-out phrasings."""
    rng, lines = Random("labelled turns"), []
    for number in range(count):
        words: Phrasings = "held_out" if number % 2 else "trained"
        wanted = (1, -1, 0)[number % 3]
        draws = (judgements.draw(rng, words, "eval") for _ in itertools.count())
        made = next(made for made in draws if made.score == wanted)
        row = {"id": f"{made.kind}-{number}", "request": made.request, "answer": made.answer, "next_state": made.next_state}
        speaker = {} if made.speaker == "user" else {"role": made.speaker}
        rating = {"rating": made.score} if made.score and number % 4 == 0 else {}  # some people also rated the answer
        lines.append(json.dumps({**row, **speaker, "label": made.score, **rating}))
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, nargs="?", default=EXAMPLE)
    parser.add_argument("--count", type=int, default=36)
    given = parser.parse_args()
    given.file.write_text("\n".join(labelled(given.count)) + "\n")
