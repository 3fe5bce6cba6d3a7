"""Draws the axes and phrasings that are held out from the choice of settings, and writes them into a separate folder.

    python -m scripts.wishes_model.split --seed 20

`words/` keeps the axes and phrasings for choices. `words/held_out/` gets the others: a third of the axes, and at most a fifth of
the alternatives of each rule with five or more. The model cannot follow words that it was not taught. Names ("n-…", "x-…") are
therefore not held out, and neither are phrasings with a word that no other phrasing of their rule has. A second run with the same
seed changes nothing. If phrasings are added for a new model, all phrasings are drawn again. The axes are drawn once, because
settings were chosen with the others.
"""

import argparse
import re
from pathlib import Path
from random import Random

from scripts.wishes.axes import AXES

WORDS = Path(__file__).parents[1] / "wishes" / "words"
HELD_OUT_AXES = 6


def rules_of(file: Path) -> dict[str, list[str]]:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")] if file.exists() else []
    return {name: text.split(" | ") for name, text in (line.split(": ", 1) for line in lines)}


def words(alternatives: list[str]) -> set[str]:
    return set(re.findall(r"[\w']+|\{\w+\}", " ".join(alternatives).lower()))


def split(seed: int) -> None:
    rng = Random(f"split {seed}")
    kept, away = rules_of(WORDS / "phrasings.txt"), rules_of(WORDS / "held_out" / "phrasings.txt")
    chosen, others = [], []
    frames = words([a for rules in (kept, away) for name in ("on", "off", "use") for a in rules.get(name, [])])
    for name, alternatives in kept.items():
        every = sorted({*alternatives, *away.get(name, [])})
        whole = name.startswith(("n-", "x-", "welcome")) or len(every) < 5
        out = [] if whole else rng.sample(every, max(1, len(every) // 5))
        taught = words([a for a in every if a not in out]) | frames
        out = [a for a in out if words([a]) <= taught]
        chosen.append(f"{name}: " + " | ".join(a for a in every if a not in out))
        if out:
            others.append(f"{name}: " + " | ".join(out))
    axes, drawn = sorted(AXES), WORDS / "held_out" / "axes.txt"
    out_axes = drawn.read_text().split() if drawn.exists() else sorted(Random(f"axes {seed}").sample(axes, HELD_OUT_AXES))
    (WORDS / "phrasings.txt").write_text("\n".join(chosen) + "\n")
    (WORDS / "axes.txt").write_text("\n".join(axis for axis in axes if axis not in out_axes) + "\n")
    (WORDS / "held_out" / "phrasings.txt").write_text("\n".join(others) + "\n")
    drawn.write_text("\n".join(out_axes) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=20)
    split(parser.parse_args().seed)


if __name__ == "__main__":
    main()
