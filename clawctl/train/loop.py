"""The training loop: wait for a batch, make the step, commit it, publish the new version."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from clawctl.config import Recipe
from clawctl.run_dir import RunDir, changes
from clawctl.train.advantages.binary import Baselines
from clawctl.train.checkpoints import check_resumable, commit, identity, newest_checkpoint, read_optimizer, read_state, settle
from clawctl.train.feed import Feed
from clawctl.train.ledger import by_stem, read_ledger, write_skipped
from clawctl.train.measures import Measures, policy_metrics
from clawctl.train.model import load_causal, load_policy
from clawctl.train.ranks import Ranks
from clawctl.train.sample import Batch
from clawctl.train.step import Outcome, Training, make_optimizer, train_step
from clawctl.types import Policy

log = logging.getLogger("clawctl.train")


def run_training(run: RunDir, recipe: Recipe, ranks: Ranks, stop: threading.Event, once: bool) -> None:
    """Train until `stop`, `train.max_steps` or, with `once`, until no batch is full."""
    training = resume(run, recipe, ranks)
    feed = open_feed(run, training) if ranks.leads else None
    for batch in batches(run, feed, training, stop, once):
        outcome = train_step(training, batch)
        if feed is not None:
            if outcome.row is None:
                skip(run, feed, batch, outcome)
            else:
                seconds = publish_step(run, recipe, training, batch, outcome.row)
                feed.done([sample.turn_id for sample in batch.samples], "trained")
                _log_step(outcome.row, seconds)


def resume(run: RunDir, recipe: Recipe, ranks: Ranks) -> Training:
    """Where the newest checkpoint stands, after making true what follows from it; or the base model."""

    def settled() -> Path | None:
        checkpoint = newest_checkpoint(run)
        check_resumable(run, checkpoint, recipe)
        if checkpoint is not None:
            settle(run, checkpoint, recipe)
        return checkpoint

    checkpoint = ranks.led(settled)
    state: dict[str, Any] = read_state(checkpoint) if checkpoint is not None else {"step": 0, "baselines": {}}
    config = recipe.train
    policy = load_policy(recipe, ranks.device, checkpoint / "policy" if checkpoint is not None else None)
    optimizer = make_optimizer(policy, config)
    if checkpoint is not None:
        optimizer.load_state_dict({**optimizer.state_dict(), "state": read_optimizer(checkpoint)})
    needs_copy = config.teacher == "base" and config.lora is None and config.method != "binary"
    reference = load_causal(recipe.model_path, ranks.device, torch.float32) if needs_copy else None
    if reference is not None:
        reference.set_attn_implementation(policy.attention)
    log.info("training %s from version %d with %s", recipe.model.path, state["step"], config.method)
    return Training(policy, optimizer, Baselines(state["baselines"]), config, ranks, reference, state["step"])


def open_feed(run: RunDir, training: Training) -> Feed:
    policy = training.policy
    return Feed(run, training.config, policy.tokenizer, policy.vocabulary, policy.context, read_ledger(run))


def batches(run: RunDir, feed: Feed | None, training: Training, stop: threading.Event, once: bool) -> Iterator[Batch]:
    """Batches as they fill. Rank 0 looks and tells the others: a batch, nothing yet (which keeps them from timing out), or the end.

    A step that has begun is finished: a stop is heard between steps.
    """
    ranks, last = training.ranks, training.config.max_steps
    if feed is None:
        while (message := ranks.broadcast(None)) != "end":
            if message is not None:
                yield message
        return
    for _ in changes([run.trajectories, run.verdicts], stop):
        while not stop.is_set() and (last is None or training.step < last) and (batch := feed.take(training.step)):
            ranks.broadcast(batch)
            yield batch
        if once or stop.is_set() or (last is not None and training.step >= last):
            break
        ranks.broadcast(None)
    ranks.broadcast("end")


def publish_step(run: RunDir, recipe: Recipe, training: Training, batch: Batch, row: dict[str, Any]) -> dict[str, float]:
    """Commit the step and make its version known; the seconds that took, by phase."""
    timing = Measures()
    with timing.clock("checkpoint"):
        checkpoint = commit(run, _state(recipe, training, batch, row), training.optimizer.state_dict(), _save_weights(training))
    with timing.clock("publish"):
        settle(run, checkpoint, recipe, timing.seconds)
    return timing.seconds


def _state(recipe: Recipe, training: Training, batch: Batch, row: dict[str, Any]) -> dict[str, Any]:
    policy = Policy(
        version=batch.step,
        parent=batch.step - 1,
        step=batch.step,
        method=recipe.train.method,
        kind="adapter" if training.policy.adapter else "full",
        base_model=recipe.model.path,
        turns=[sample.turn_id for sample in batch.samples],
        canary=training.policy.canary(),
        metrics=policy_metrics(row),
        created_at=row["time"],
    )
    return {
        "step": batch.step,
        "identity": identity(recipe),
        "baselines": training.baselines.kept,
        "turns": by_stem(batch.samples),
        "row": row,
        "policy": asdict(policy),
    }


def _save_weights(training: Training) -> Any:
    def save(checkpoint: Path) -> None:
        training.policy.save(checkpoint / "policy")
        training.policy.save_master(checkpoint)

    return save


def skip(run: RunDir, feed: Feed, batch: Batch, outcome: Outcome) -> None:
    """Name the turns that broke the step and never try them again; the others of the batch wait for the next one."""
    blamed = [sample for sample in batch.samples if sample.turn_id in outcome.broken] or batch.samples
    ids = [sample.turn_id for sample in blamed]
    log.error("step %d skipped: %s; turns %s are not tried again", batch.step, outcome.problem, ", ".join(ids))
    write_skipped(run, batch.step, blamed, outcome.problem or "")
    feed.done(ids, "skipped")


def _log_step(row: dict[str, Any], seconds: dict[str, float]) -> None:
    log.info(
        "step %d: loss %.4f, %d turns (+%d -%d, %d hints), grad %.3g, %.1f s and %.2f s to publish",
        row["step"], row["loss"], row["turns"], row["positive"], row["negative"], row["hints"], row["grad_norm"],
        sum(row["seconds"].values()), sum(seconds.values()),
    )  # fmt: skip
