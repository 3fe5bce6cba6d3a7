"""The trainer without its model: reads turns like `clawctl train` and enters each batch in the ledger immediately.

    python -m scripts.benchmarks.chaos_intake RUN RECIPE

It omits the work of the GPU. No version is published, so the policy stays at version 0 and no turn becomes stale.
"""

import sys
from itertools import count
from pathlib import Path

from clawctl.config import load_recipe
from clawctl.process import stop_on_signals
from clawctl.run.directory import changes, open_run, published
from clawctl.train.feed import Feed
from clawctl.train.ledger import by_stem, read_ledger, write_trained
from clawctl.train.turn_queue import TurnQueue
from clawctl.trainers import Model
from clawctl.trainers.texts import TokenizerTexts

VOCABULARY = 150_000  # of the generated turns


def main(root: Path, recipe_path: Path) -> None:
    stop, run, config = stop_on_signals(), open_run(root), load_recipe(recipe_path).train
    feed = Feed(TurnQueue(run, config, Model(TokenizerTexts(None, VOCABULARY), adapter=True, exact=True), read_ledger(run)))
    ledger = run.train / "ledger"
    steps = count(len(published(ledger, ".json")) + 1 if ledger.exists() else 1)
    for _ in changes([run.trajectories, run.verdicts, run.feedback], stop):
        while not stop.is_set() and (batch := feed.next_batch(0)):
            step = next(steps)
            write_trained(run, step, by_stem(batch.samples), step - 1)
            feed.mark_done([sample.turn_id for sample in batch.samples], "trained")
        if stop.is_set():
            break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
