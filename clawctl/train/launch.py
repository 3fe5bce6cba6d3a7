"""The door of the stage: one process, or one of several that torchrun started."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from clawctl.config import Recipe, is_rank, nodes, place_among_ranks
from clawctl.errors import ClawError
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, sole_worker
from clawctl.run.policies import ensure_base_policy

if TYPE_CHECKING:
    from clawctl.trainers.local.torchrun import Gpus


def check_world(world: int, batch_turns: int) -> None:
    """Raises ClawError if there are more ranks than turns per step, because some could never get a turn. No divisibility is needed:
    turns are distributed as they come, and a rank without any adds zeros."""
    if world > batch_turns:
        problem = f"{world} trainers share {batch_turns} turns per step, so some would never get one"
        raise ClawError(problem, "start fewer trainers, or raise train.batch_turns", 2)


def spread_out(recipe: Recipe, gpus: str | None, processes: int | None, words: Sequence[str]) -> None:
    """Replace this process by torchrun if several processes or certain GPUs are requested and torchrun did not start it. Raises
    ClawError."""
    asked = _asked_gpus(recipe, gpus, processes)
    if is_rank():
        return
    if asked is None and processes is None:
        check_alone()
        return
    from clawctl.trainers.local.torchrun import become_torchrun

    become_torchrun(asked, processes, words, partial(check_world, batch_turns=recipe.train.batch_turns))


def check_alone() -> None:
    """Raises ClawError (exit code 2) if the environment names several nodes or GPUs but this process would train alone."""
    where = nodes()
    named = [f"NNODES is {where.count}"] * (where.count > 1) + [f"GPUS_PER_NODE is {where.gpus}"] * (where.gpus is not None)
    if named:
        problem = f"{' and '.join(named)} in the environment, but this command names no GPU"
        raise ClawError(problem, "add --gpus all, which uses them, or unset them", 2)


def _asked_gpus(recipe: Recipe, gpus: str | None, processes: int | None) -> "Gpus | None":
    from clawctl.trainers.local.torchrun import parse_gpus

    if gpus is not None and processes is not None:
        raise ClawError("--gpus and --processes exclude one another", "--processes is for training on the CPU", 2)
    if processes is not None:
        return None
    return recipe.train.gpus if gpus is None else parse_gpus(gpus)


def show_estimate(recipe: Recipe, gpus: str | None, processes: int | None) -> None:
    """Print the memory and time that a step of the recipe needs on a device. Raises ClawError."""
    import torch

    from clawctl.trainers.local.estimate import forecast
    from clawctl.trainers.local.ranks import Ranks

    asked = _asked_gpus(recipe, gpus, processes)
    here = processes or (len(asked) if isinstance(asked, list) else torch.cuda.device_count() if asked == "all" else 1)
    if recipe.train.threads is not None:
        torch.set_num_threads(recipe.train.threads)
    cuda = processes is None and (torch.cuda.is_available() or recipe.train.device_memory_gb is not None or asked is not None)
    for line in forecast(recipe, Ranks(0, max(1, here) * nodes().count, torch.device("cuda" if cuda else "cpu"))).lines():
        print(line)


def train(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Train the policy on the judged turns of `run` until SIGINT or SIGTERM, `train.max_steps` or, with `once`, until no batch is
    full.

    Under torchrun each process calls this; only rank 0 reads and writes the run. Raises ClawError.
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
        import torch  # imported late: a worker that is refused need not wait for it
        from transformers.utils import logging as transformers_logging

        from clawctl.train.loop import run_training
        from clawctl.trainers.local.estimate import check_room
        from clawctl.trainers.local.ranks import join_ranks, leave_ranks, together

        transformers_logging.disable_progress_bar()
        if recipe.train.threads is not None:
            torch.set_num_threads(recipe.train.threads)
        ranks = join_ranks(rank, world, local_rank)
        leaving.callback(leave_ranks)
        leaving.enter_context(together())
        if world > 1:
            ranks.led(take_place)
        ranks.led(lambda: check_room(recipe, ranks))
        run_training(run, recipe, ranks, stop, once)
