"""The training loop: waits for a batch, makes the step, commits it, and publishes the new version.

Before each step, and before a step is committed, the loop checks whether training still continues from these weights. After a
refusal or a rollback it does not. Then the trainer resumes, exactly as after a kill, at the version that `lineage.py` determines.
"""

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from clawctl.config import Recipe
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir, changes
from clawctl.run.disk import retry_while_full
from clawctl.run.lineage import Lineage, read_lineage
from clawctl.run.policies import read_policy
from clawctl.run.progress import StepReport
from clawctl.train import checkpoints, ledger
from clawctl.train.advantages.baselines import Baselines
from clawctl.train.agreement import Watch
from clawctl.train.feed import Feed, open_feed
from clawctl.train.going_back import LineageWatch, Pause, note_start
from clawctl.train.measures import Measures, StepResult
from clawctl.train.pauses import Pauses
from clawctl.train.remote_teacher import RemoteTeacher, open_remote_teacher, with_teacher_logprobs
from clawctl.train.sample import Batch
from clawctl.train.setback import Start, start_of
from clawctl.train.spending import Spending
from clawctl.train.trackers import Tracker, open_trackers, track
from clawctl.trainers import Model, Trainer

log = logging.getLogger("clawctl.train")
_LOOK_S = 0.1


def run_training(
    run: RunDir, recipe: Recipe, trainer: Trainer, stop: threading.Event, once: bool, pauses: Pauses | None = None
) -> None:
    """Train until `stop`, `train.max_steps` or, with `once`, until no full batch is left. `pauses`: when steps are made."""
    with ExitStack() as leaving:
        teacher = open_remote_teacher(recipe.train)
        session = resume(run, recipe, trainer, teacher, pauses)
        trackers = open_trackers(run, recipe.train, read_lineage(run).newest)
        for tracker in trackers:
            leaving.callback(tracker.finish)
        while session.train(trackers, stop, once):
            session = resume(run, recipe, trainer, teacher, pauses)


def resume(
    run: RunDir, recipe: Recipe, trainer: Trainer, teacher: RemoteTeacher | None = None, pauses: Pauses | None = None
) -> "Session":
    """Load the version from which training continues."""
    start = start_of(run, recipe)
    note_start(run, start)
    model = trainer.resume(start.version, start.checkpoint, start.weights)
    return open_session(run, recipe, trainer, start, model, teacher, pauses)


def open_session(
    run: RunDir,
    recipe: Recipe,
    trainer: Trainer,
    start: Start,
    model: Model,
    teacher: RemoteTeacher | None,
    pauses: Pauses | None = None,
) -> "Session":
    """Open the feed of a policy, and restore what training needs in addition to the trainer's state."""
    baselines = checkpoints.read_state(start.checkpoint)["baselines"] if start.checkpoint is not None else {}
    feed = open_feed(run, recipe, model)
    return Session(run, recipe, trainer, model, start.version, Baselines(baselines), feed, teacher, pauses)


@dataclass(slots=True)
class Session:
    """Training from one version until it ends, or until training continues from another version."""

    run: RunDir
    recipe: Recipe
    trainer: Trainer
    model: Model
    version: int  # version of the weights
    baselines: Baselines
    feed: Feed
    teacher: RemoteTeacher | None  # a teacher behind a URL
    pauses: Pauses | None = None  # None: steps are made as batches fill
    moved: bool = False  # whether training continues from another version
    paused: ClawError | None = None  # why no step is made
    batches: int = 0  # how many were tried
    shared: int | None = None  # the shared version that the trained policy stands on, with `shared+` in `policies.per`

    def train(self, trackers: Sequence[Tracker], stop: threading.Event, once: bool, most: int | None = None) -> bool:
        """Make steps, at most `most`. Returns True if training now continues from another version."""
        run, config, watch = self.run, self.recipe.train, Watch.of(self.model.exact, self.recipe.train)
        spending, progress = Spending(run, config), StepReport(run)
        failed = 0  # consecutive failed steps
        for batch in itertools.islice(self._batches(stop, once), most):
            self.batches += 1
            cost = spending.pay(batch)
            with progress.of_step(batch.step):
                result = self.trainer.step(batch)
            if result.refused:
                batch = retry_while_full(partial(self._without_refused, batch, result), "the ledger", stop)
            if not batch.samples:
                continue
            if result.row is not None and cost is not None:
                result.row["cost"] = cost
            if result.row is not None and self.pauses is not None and self.pauses.may_rest:
                result.row["rest_s"] = round(self.pauses.rested_s, 3)
            failed = failed + 1 if result.row is None else 0
            if result.wrong_model:
                self._refuse_model(batch, result)
            if result.row is None:
                retry_while_full(partial(self._skip, batch, result), "the ledger", stop)
            if read_lineage(run).tip != batch.version:  # the computation is discarded, so no turn is used up
                self.moved = True
                break
            if result.row is not None:
                self._publish(batch, result, stop)
                self.feed.mark_done([sample.turn_id for sample in batch.samples], "trained")
                track(trackers, result.row, run)
                watch.check(result.row)
            if failed >= config.max_skipped_steps:
                raise _too_many_failures(result, failed)
        if most is None:
            log.info("%s", self.feed.summary())
        if self.paused is not None:
            raise self.paused
        return self.moved and not stop.is_set()

    def is_due(self) -> bool:
        """Whether there is a batch for a step now."""
        lineage = read_lineage(self.run)
        if Pause(self.run, self.recipe).check(lineage) is not None or self._is_last(lineage):
            return False
        return self.feed.next_batch(lineage.tip, updates=lineage.updates_from(lineage.tip)) is not None

    def _batches(self, stop: threading.Event, once: bool) -> Iterator[Batch]:
        """Yield batches as they fill.

        A step is always finished; a stop takes effect between steps. The iteration ends with `moved` if training continues from
        another version. While training is paused there are no batches; with `once`, `paused` then holds the reason.
        """
        run, lineages, pause = self.run, LineageWatch(self.run), Pause(self.run, self.recipe)
        paused: ClawError | None = None
        for _ in changes([run.trajectories, run.verdicts, run.feedback, run.policies, run.eval], stop):
            while not stop.is_set():
                lineage = lineages.read()
                self.moved = lineage.tip != self.version
                paused = None if self.moved else pause.check(lineage)
                if self.moved or paused or self._is_last(lineage) or (batch := self._next_batch(lineage)) is None:
                    break
                if batch.samples and self._wait_for_gap(batch, stop):
                    yield batch
            if once or stop.is_set() or self.moved or self._is_last(lineages.read()):
                break
            self.trainer.idle()
        self.paused = paused if once else None

    def _wait_for_gap(self, batch: Batch, stop: threading.Event) -> bool:
        """Wait until the step may begin (`train.when`). False: it does not begin, because of a stop, or because training now
        continues from another version."""
        logged = False
        while self.pauses is not None and (why := self.pauses.why_not()) is not None:
            if not logged:
                log.info("step %d is waiting for a gap: %s", batch.step, why)
            logged = True
            self.trainer.idle()
            if stop.wait(_LOOK_S) or read_lineage(self.run).tip != batch.version:
                return False
        return True

    def _next_batch(self, lineage: Lineage) -> Batch | None:
        """Return the next batch for the tip, or None. It has the baselines of its turns and the answers of a teacher behind a
        URL.
        """
        batch = self.feed.next_batch(lineage.tip, updates=lineage.updates_from(lineage.tip))
        if batch is None:
            return None
        baselines = {sample.turn_id: self.baselines.of(sample.kind) for sample in batch.samples}
        depth = lineage.depth(lineage.tip) + 1
        batch = replace(batch, step=lineage.newest + 1, parent=lineage.tip, depth=depth, baselines=baselines)
        if self.shared is not None and read_policy(self.run, lineage.tip).shared != self.shared:  # other weights than the sampler's
            batch = replace(batch, samples=[replace(sample, by_another=True) for sample in batch.samples])
        if self.teacher is not None:
            batch, missing = with_teacher_logprobs(batch, self.teacher.ask(batch))
            self.feed.drop_hints(missing, [sample.turn_id for sample in batch.samples])
        return batch

    def _is_last(self, lineage: Lineage) -> bool:
        return self.recipe.train.max_steps is not None and lineage.newest >= self.recipe.train.max_steps

    def _publish(self, batch: Batch, result: StepResult, stop: threading.Event) -> None:
        """Commit the step and publish its version, as soon as the disk has space."""
        run, recipe, row, timing = self.run, self.recipe, result.row, Measures()
        assert row is not None
        with timing.clock("checkpoint"):
            snapshot = self.trainer.publish(batch.step, run.beside_checkpoints(batch.step, "sharded"))
            if recipe.train.rewards.baseline == "mean":
                self.baselines.update(batch.samples)
            self.version = batch.step
            about = {"baselines": self.baselines.means, "shared": self.shared}
            commit = partial(checkpoints.commit_step, run, recipe, batch, result, snapshot, about)
            # If a snapshot cannot be saved twice, a failure makes the trainer repeat the step
            path = retry_while_full(commit, f"checkpoint {batch.step}", stop) if snapshot.repeatable else commit()
        with timing.clock("publish"):
            seconds = dict(timing.seconds)
            retry_while_full(lambda: checkpoints.complete_step(run, path, recipe, seconds), f"version {batch.step}", stop)
        log.info(
            "step %d: loss %.4f, %d turns (+%d -%d, %d hints), grad %s, %.1f s and %.2f s to publish",
            row["step"], row["loss"], row["turns"], row["positive"], row["negative"], row["hints"],
            "unknown" if row["grad_norm"] is None else f"{row['grad_norm']:.3g}",
            sum(row["seconds"].values()), sum(timing.seconds.values()),
        )  # fmt: skip

    def _without_refused(self, batch: Batch, result: StepResult) -> Batch:
        """Enter the turns that the trainer refused in the ledger, with their reasons. Returns the batch without them."""
        for sample in batch.samples:
            if (reason := result.refused.get(sample.turn_id)) is not None:
                ledger.write_skipped(self.run, batch.step, [sample], reason)
        self.feed.mark_done(list(result.refused), "skipped")
        return replace(batch, samples=[sample for sample in batch.samples if sample.turn_id not in result.refused])

    def _skip(self, batch: Batch, result: StepResult) -> None:
        """Log the turns that broke the step and never try them again. The other turns of the batch wait for the next one."""
        broken = [sample for sample in batch.samples if sample.turn_id in result.broken] or batch.samples
        ids = [sample.turn_id for sample in broken]
        log.error("step %d skipped: %s; turns %s are not retried", batch.step, result.problem, ", ".join(ids))
        ledger.write_skipped(self.run, batch.step, broken, result.problem or "")
        self.feed.mark_done(ids, "skipped")

    def _refuse_model(self, batch: Batch, result: StepResult) -> None:
        """Raise ClawError because another model sampled the turns. All turns stay available."""
        origins = {self.feed.origins[sample.stem].base_model for sample in batch.samples if sample.turn_id in result.broken}
        named = ", ".join(sorted(name or "a model that is not named" for name in origins))
        count, model = f"{len(result.broken)} of {len(batch.samples)} turns", f"{self.recipe.model.path} (version {batch.version})"
        raise ClawError(
            f"{count} have logprobs that do not agree with {model}; their shards name {named}",
            f"train the model that served them, or start a new run; train.max_mismatch is {self.recipe.train.max_mismatch:g}",
            2,
        )


def _too_many_failures(result: StepResult, failed: int) -> ClawError:
    turns = ", ".join(result.broken) or "no single one"
    return ClawError(
        f"{failed} steps in a row failed, the last one because {result.problem} (turns: {turns})",
        "check train/ledger/skipped-*.json; a lower train.lr or a new run usually helps",
    )
