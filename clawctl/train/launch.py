"""The door of the stage: one process, or one of several that torchrun started."""

from contextlib import ExitStack

from clawctl.config import Recipe, place_among_ranks
from clawctl.errors import ClawError
from clawctl.policies import ensure_base_policy
from clawctl.process import stop_on_signals
from clawctl.run_dir import RunDir, sole_worker


def check_world(world: int, batch_turns: int) -> None:
    """Nothing must divide anything: turns are dealt out as they come, and a rank without any adds zeros. But a rank that can never
    have a turn is a mistake. Raises ClawError."""
    if world > batch_turns:
        problem = f"{world} trainers share {batch_turns} turns a step: some would never have one"
        raise ClawError(problem, "start fewer, or raise train.batch_turns", 2)


def train(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Train the policy on the judged turns of `run` until SIGINT or SIGTERM, `train.max_steps` or, with `once`, until no batch
    is full.

    Under torchrun each process calls this; rank 0 alone reads and writes the run. Raises ClawError.
    """
    stop = stop_on_signals()
    rank, world, local_rank = place_among_ranks()
    with ExitStack() as leaving:

        def take_place() -> None:
            check_world(world, recipe.train.batch_turns)
            leaving.enter_context(sole_worker(run, "train"))
            ensure_base_policy(run, recipe.model.path)

        if world == 1:
            take_place()
        import torch  # only now: whoever may not work need not wait for it
        from transformers.utils import logging as transformers_logging

        from clawctl.train.loop import run_training
        from clawctl.train.ranks import join_ranks, leave_ranks

        transformers_logging.disable_progress_bar()
        if recipe.train.threads is not None:
            torch.set_num_threads(recipe.train.threads)
        ranks = join_ranks(rank, world, local_rank)
        leaving.callback(leave_ranks, ranks)
        if world > 1:
            ranks.led(take_place)
        run_training(run, recipe, ranks, stop, once)
