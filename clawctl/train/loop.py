"""The training loop: wait for a batch, make the step, commit it, publish the new version.

Before each step, and before a step is committed, rank 0 checks whether training still continues from these weights. After a refusal
or a rollback it does not. Then all ranks restart, exactly as after a kill, at the version that `lineage.py` names.
"""

import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, changes
from clawctl.run.disk import when_there_is_room
from clawctl.run.lineage import Lineage, read_lineage
from clawctl.run.model_files import origin_of
from clawctl.run.rows import Policy
from clawctl.train.advantages.binary import Baselines
from clawctl.train.feed import Feed
from clawctl.train.going_back import LineageWatch, Pause, note_start
from clawctl.train.ledger import by_stem, given_back, read_ledger, write_skipped
from clawctl.train.records import NAME as RECORD
from clawctl.train.records import Told, write_records
from clawctl.train.sample import Batch
from clawctl.train.setback import Start, find_start
from clawctl.train.trackers import Tracker, metrics_of, open_trackers
from clawctl.trainers.local.agreement import watch_of
from clawctl.trainers.local.checkpoints import (
    check_published,
    check_resumable,
    commit,
    identity,
    read_optimizer,
    read_state,
    settle,
)
from clawctl.trainers.local.custom_loss import load_custom_loss
from clawctl.trainers.local.ema import Average
from clawctl.trainers.local.flops import cost_of
from clawctl.trainers.local.imported import scored
from clawctl.trainers.local.loading import load_config
from clawctl.trainers.local.measures import Measures, policy_metrics
from clawctl.trainers.local.model import load_policy, load_reference
from clawctl.trainers.local.ranks import Ranks
from clawctl.trainers.local.remote_teacher import RemoteTeacher, open_remote_teacher, taught
from clawctl.trainers.local.sharded_checkpoints import move_into, read_parts, write_parts
from clawctl.trainers.local.sharding import part_of
from clawctl.trainers.local.step import Outcome, Training, make_optimizer, train_step

log = logging.getLogger("clawctl.train")


def run_training(run: RunDir, recipe: Recipe, ranks: Ranks, stop: threading.Event, once: bool) -> None:
    """Train until `stop`, `train.max_steps` or, with `once`, until no batch is full."""
    trackers: list[Tracker] = []  # rank 0's
    with ExitStack() as leaving:
        while _train_on(run, recipe, ranks, stop, once, trackers, leaving):
            gc.collect()  # the weights that are left: there may be no room for two models


def _train_on(
    run: RunDir, recipe: Recipe, ranks: Ranks, stop: threading.Event, once: bool, trackers: list[Tracker], leaving: ExitStack
) -> bool:
    """Train on one lineage. True if training now continues from another version."""
    training = resume(run, recipe, ranks)
    feed = open_feed(run, recipe, training) if ranks.leads else None
    if not trackers:
        ranks.led(lambda: _open_trackers(run, recipe, trackers, leaving))
    watch = watch_of(training.policy)
    skipped = 0  # in a row
    try:
        for batch in batches(run, recipe, feed, training, stop, once):
            outcome = train_step(training, batch)
            skipped = skipped + 1 if outcome.row is None else 0
            if outcome.wrong_model:
                ranks.led(partial(refuse_model, recipe, feed, batch, outcome))
            if feed is not None and outcome.row is None:
                when_there_is_room(partial(skip, run, feed, batch, outcome), "the ledger", stop)
            if ranks.led(partial(_has_moved, run, batch)):  # the computation is discarded: no turn is used up
                training.moved = True
                break
            has_part = outcome.row is not None and (feed is not None or training.policy.across is not None)
            made = keep(run, training, batch) if has_part else None
            if feed is not None and made is not None and outcome.row is not None:
                seconds = publish_step(run, recipe, training, batch, outcome, made, stop)
                feed.done([sample.turn_id for sample in batch.samples], "trained")
                _tell_step(outcome.row, seconds, trackers)
                watch.look(outcome.row)
            if skipped >= recipe.train.max_skipped_steps:
                ranks.led(partial(give_up, outcome, skipped))
    finally:
        if training.remote is not None:
            training.remote.close()
    if feed is not None:
        log.info("%s", feed.summary())
    ranks.led(partial(_say_paused, training))
    return bool(ranks.broadcast(training.moved and not stop.is_set()))


def _say_paused(training: Training) -> None:
    if training.paused is not None:
        raise training.paused


def _open_trackers(run: RunDir, recipe: Recipe, trackers: list[Tracker], leaving: ExitStack) -> None:
    for tracker in open_trackers(run, recipe.train, read_lineage(run).newest):
        leaving.callback(tracker.close)
        trackers.append(tracker)


def _has_moved(run: RunDir, batch: Batch) -> bool:
    return read_lineage(run).tip != batch.version


def resume(run: RunDir, recipe: Recipe, ranks: Ranks) -> Training:
    """The version that training continues from, after everything that follows from the newest checkpoint is done."""

    def started() -> Start:
        def finish(checkpoint: Path) -> None:
            when_there_is_room(lambda: settle(run, checkpoint, recipe), f"version {checkpoint.name}")

        start = find_start(run, finish)
        check_resumable(start.checkpoint, recipe)
        if start.weights is not None:
            check_published(start.weights, recipe)
        note_start(run, start)
        return start

    start = ranks.led(started)
    checkpoint = start.checkpoint
    state: dict[str, Any] = read_state(checkpoint) if checkpoint is not None else {"baselines": {}}
    config, vocabulary = recipe.train, load_config(recipe.model_path).get_text_config().vocab_size
    ranks.led(lambda: load_custom_loss(config, vocabulary) and None)  # a problem is reported before weights are loaded
    custom = load_custom_loss(config, vocabulary)
    policy = load_policy(recipe, ranks, checkpoint / "policy" if checkpoint is not None else start.weights)
    optimizer = make_optimizer(policy, config)
    if checkpoint is not None and not read_parts(checkpoint, policy, optimizer):
        lay_over(optimizer, read_optimizer(checkpoint))
    reference = load_reference(recipe, policy, ranks) if config.needs_second_model else None
    asked: list[RemoteTeacher | None] = []  # rank 0's
    ranks.led(lambda: asked.append(open_remote_teacher(config)))
    remote = asked[0] if asked else None
    average = Average(policy.trained(), config.teacher_decay) if config.teacher == "ema" and config.uses_hints else None
    if average is not None and checkpoint is not None:
        average.load(checkpoint)
    if ranks.leads:
        log.info("training %s from version %d with %s", recipe.model.path, start.version, config.method)
    baselines = Baselines(state["baselines"])
    cost = cost_of(policy.causal)
    return Training(policy, optimizer, baselines, config, ranks, reference, start.version, cost, custom, average, remote)


def lay_over(optimizer: torch.optim.Optimizer, state: dict[int, dict[str, torch.Tensor]]) -> None:
    """Load the state of a checkpoint, sharded like the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {i: {key: part_of(value, parameters[i]) for key, value in kept.items()} for i, kept in state.items()}
    optimizer.load_state_dict({**optimizer.state_dict(), "state": own})


def open_feed(run: RunDir, recipe: Recipe, training: Training) -> Feed:
    policy, own = training.policy, origin_of(recipe.model.path, recipe.model_path)
    lineage = read_lineage(run)
    used, again = read_ledger(run, lineage), given_back(run, lineage)
    return Feed(run, training.config, policy.tokenizer, policy.vocabulary, policy.context, used, own, given_back=again)


def batches(
    run: RunDir, recipe: Recipe, feed: Feed | None, training: Training, stop: threading.Event, once: bool
) -> Iterator[Batch]:
    """Batches as they fill. Rank 0 reads and sends the other ranks a batch, nothing yet (to keep them from timing out), or the end.

    A step is always finished; a stop takes effect between steps. Ends with `training.moved` if training continues from another
    version. While training is paused there are no batches; with `once` the reason is in `training.paused`.
    """
    ranks = training.ranks
    if feed is None:
        while (message := ranks.broadcast(None)) != "end":
            if message is not None:
                yield message
        return
    tree, pause = LineageWatch(run), Pause(run, recipe)
    paused: ClawError | None = None
    for _ in changes([run.trajectories, run.verdicts, run.feedback, run.policies, run.eval], stop):
        while not stop.is_set():
            lineage = tree.look()
            training.moved = lineage.tip != training.step
            paused = None if training.moved else pause.look(lineage)
            if training.moved or paused or _is_last(training, lineage) or (batch := _take(feed, lineage)) is None:
                break
            if training.remote is not None:
                batch, lost = taught(batch, training.remote.ask(batch))
                feed.lose_hints(lost, [sample.turn_id for sample in batch.samples])
                if not batch.samples:
                    continue
            batch = scored(training.policy, batch, training.config.tokens_per_microbatch)
            ranks.broadcast(batch)
            yield batch
        if once or stop.is_set() or training.moved or _is_last(training, tree.look()):
            break
        ranks.broadcast(None)
    ranks.broadcast("end")
    training.paused = paused if once else None


def _take(feed: Feed, lineage: Lineage) -> Batch | None:
    """The next batch, for the tip."""
    batch = feed.take(lineage.tip, updates=lineage.updates_from(lineage.tip))
    depth = lineage.depth(lineage.tip) + 1
    return batch and replace(batch, step=lineage.newest + 1, parent=lineage.tip, depth=depth)


def _is_last(training: Training, lineage: Lineage) -> bool:
    return training.config.max_steps is not None and lineage.newest >= training.config.max_steps


@dataclass(frozen=True, slots=True)
class Made:
    """The results of a step, for rank 0 to save."""

    canary: dict[str, Any]
    weights: dict[str, torch.Tensor]
    parts: Path | None  # parts that sharded ranks wrote; None: rank 0 writes masters and optimizer
    seconds: float


def keep(run: RunDir, training: Training, batch: Batch) -> Made:
    """Collect the results of the step. With sharded weights all ranks must call it."""
    timing, policy = Measures(), training.policy
    with timing.clock("keep"):
        canary, weights = policy.canary(), policy.published()
        sharded = policy.across is not None
        parts = write_parts(run, training.ranks, policy, training.optimizer, batch.step) if sharded else None
    return Made(canary, weights, parts, timing.seconds["keep"])


def publish_step(
    run: RunDir, recipe: Recipe, training: Training, batch: Batch, outcome: Outcome, made: Made, stop: threading.Event
) -> dict[str, float]:
    """Commit the step and make its version known, as soon as the disk takes it; the seconds that took, by phase."""
    assert outcome.row is not None
    timing = Measures(seconds={"checkpoint": made.seconds})
    with timing.clock("checkpoint"):
        state = _state(recipe, training, batch, outcome.row, made)
        optimizer = training.optimizer.state_dict() if made.parts is None else None
        write = partial(commit, run, state, optimizer, _save(training, batch, outcome.told, made))
        # the parts of a sharded trainer are moved, and cannot be twice: it makes the step again
        checkpoint = when_there_is_room(write, f"checkpoint {batch.step}", stop) if made.parts is None else write()
    with timing.clock("publish"):
        seconds = dict(timing.seconds)
        when_there_is_room(lambda: settle(run, checkpoint, recipe, seconds), f"version {batch.step}", stop)
    return timing.seconds


def _state(recipe: Recipe, training: Training, batch: Batch, row: dict[str, Any], made: Made) -> dict[str, Any]:
    policy = Policy(
        version=batch.step,
        parent=batch.version,
        step=batch.step,
        method=recipe.train.method,
        kind="adapter" if training.policy.adapter else "full",
        base_model=recipe.model.path,
        turns=[sample.turn_id for sample in batch.samples],
        canary=made.canary,
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


def _save(training: Training, batch: Batch, told: Told | None, made: Made) -> Callable[[Path], None]:
    def save(checkpoint: Path) -> None:
        training.policy.save(checkpoint / "policy", made.weights)
        if made.parts is not None:
            move_into(checkpoint, made.parts)
        training.policy.save_master(checkpoint)
        if training.average is not None:
            training.average.save(checkpoint)
        if told is not None and training.config.keep_turn_records:
            write_records(checkpoint / RECORD, batch, told)

    return save


def skip(run: RunDir, feed: Feed, batch: Batch, outcome: Outcome) -> None:
    """Name the turns that broke the step and never try them again; the others of the batch wait for the next one."""
    blamed = [sample for sample in batch.samples if sample.turn_id in outcome.broken] or batch.samples
    ids = [sample.turn_id for sample in blamed]
    log.error("step %d skipped: %s; turns %s are not retried", batch.step, outcome.problem, ", ".join(ids))
    write_skipped(run, batch.step, blamed, outcome.problem or "")
    feed.done(ids, "skipped")


def refuse_model(recipe: Recipe, feed: Feed | None, batch: Batch, outcome: Outcome) -> None:
    """Raises ClawError: another model sampled the turns. They all stay available."""
    assert feed is not None
    origins = {feed.origins[sample.stem].base_model for sample in batch.samples if sample.turn_id in outcome.broken}
    named = ", ".join(sorted(name or "a model that is not named" for name in origins))
    count, ours = f"{len(outcome.broken)} of {len(batch.samples)} turns", f"{recipe.model.path} (version {batch.version})"
    raise ClawError(
        f"{count} have logprobs that do not agree with {ours}; their shards name {named}",
        f"train the model that served them, or start a new run; train.max_mismatch is {recipe.train.max_mismatch:g}",
        2,
    )


def give_up(outcome: Outcome, skipped: int) -> None:
    """Raises ClawError: too many steps in a row failed."""
    turns = ", ".join(outcome.broken) or "no single one"
    raise ClawError(
        f"{skipped} steps in a row failed, the last one because {outcome.problem} (turns: {turns})",
        "check train/ledger/skipped-*.json; a lower train.lr or a new run usually helps",
    )


def _tell_step(row: dict[str, Any], seconds: dict[str, float], trackers: Sequence[Tracker]) -> None:
    for tracker in trackers:
        try:
            tracker.log(metrics_of(row), row["step"])
        except OSError as error:
            log.error("step %d is missing in %s: %s", row["step"], type(tracker).__name__, error)
    log.info(
        "step %d: loss %.4f, %d turns (+%d -%d, %d hints), grad %.3g, %.1f s and %.2f s to publish",
        row["step"], row["loss"], row["turns"], row["positive"], row["negative"], row["hints"], row["grad_norm"],
        sum(row["seconds"].values()), sum(seconds.values()),
    )  # fmt: skip
