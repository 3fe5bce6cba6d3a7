"""The backend `local`: the trainer on this machine, and how its processes are started. Importing this module imports no torch."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from clawctl.config import Recipe, is_rank, nodes, place_among_ranks
from clawctl.errors import ClawError
from clawctl.memory import Needs
from clawctl.process import die_with_parent
from clawctl.trainers import Trainer
from clawctl.trainers.local.torchrun import Gpus, become_torchrun, parse_gpus


class LocalBackend:
    """A `TrainingBackend` with one process, or with one for each GPU, started by torchrun."""

    def estimate(self, recipe: Recipe, gpus: str | None, processes: int | None) -> list[str]:
        import torch

        from clawctl.trainers.local.estimate import forecast
        from clawctl.trainers.local.ranks import Ranks

        requested = _requested_gpus(recipe, gpus, processes)
        local_processes = processes or (
            len(requested) if isinstance(requested, list) else torch.cuda.device_count() if requested == "all" else 1
        )
        if recipe.train.local.threads is not None:
            torch.set_num_threads(recipe.train.local.threads)
        cuda = processes is None and (
            torch.cuda.is_available() or recipe.train.local.device_memory_gb is not None or requested is not None
        )
        device = torch.device("cuda" if cuda else "cpu")
        return forecast(recipe, Ranks(0, max(1, local_processes) * nodes().count, device)).lines()

    def needs(self, recipe: Recipe, gpus: int) -> Needs:
        import torch

        from clawctl.trainers.local.estimate import needs_of
        from clawctl.trainers.local.ranks import Ranks

        return needs_of(recipe, Ranks(0, max(1, gpus), torch.device("cuda" if gpus else "cpu")))

    def spread(self, recipe: Recipe, gpus: str | None, processes: int | None, arguments: Sequence[str]) -> None:
        """Replace this process by torchrun if several processes or certain GPUs are requested and torchrun did not start it. Raises
        ClawError."""
        requested = _requested_gpus(recipe, gpus, processes)
        if is_rank():
            return
        if requested is None and processes is None:
            check_alone()
            return
        become_torchrun(requested, processes, arguments, partial(check_world, batch_turns=recipe.train.batch_turns))

    @contextmanager
    def open(
        self, recipe: Recipe, prepare: Callable[[], None], between_layers: Callable[[], None] | None = None
    ) -> Iterator[Trainer | None]:
        """Under torchrun each process calls this method; rank 0 runs the loop."""
        rank, world, local_rank = place_among_ranks()

        def check() -> None:
            check_world(world, recipe.train.batch_turns)
            prepare()

        if world == 1:
            check()  # before importing torch, so that a refused worker fails quickly
        import torch
        from transformers.utils import logging as transformers_logging

        from clawctl.trainers.local.estimate import check_memory
        from clawctl.trainers.local.ranks import abort_on_lost_rank, join_ranks, leave_ranks
        from clawctl.trainers.local.trainer import LocalTrainer

        if is_rank() and (request := die_with_parent(os.getppid())) is not None:
            request()  # without torchrun the ranks would go on, and keep the lock of the trainer that follows them
        transformers_logging.disable_progress_bar()
        if recipe.train.local.threads is not None:
            torch.set_num_threads(recipe.train.local.threads)
        with ExitStack() as leaving:
            ranks = join_ranks(rank, world, local_rank)
            leaving.callback(leave_ranks)
            leaving.enter_context(abort_on_lost_rank())
            if world > 1:
                ranks.run_on_leader(check)
            ranks.run_on_leader(lambda: check_memory(recipe, ranks))
            trainer = LocalTrainer(recipe, ranks, between_layers if ranks.is_leader else None)
            if ranks.is_leader:
                with trainer.as_leader():
                    yield trainer
            else:
                trainer.follow()
                yield None


BACKEND = LocalBackend()


def check_world(world: int, batch_turns: int) -> None:
    """Raises ClawError if there are more ranks than turns per step, because some ranks could never get a turn. No divisibility is
    needed: turns are distributed as they come, and a rank without any adds zeros."""
    if world > batch_turns:
        problem = f"{world} trainers share {batch_turns} turns per step, so some would never get one"
        raise ClawError(problem, "start fewer trainers, or raise train.batch_turns", 2)


def check_alone() -> None:
    """Raises ClawError (exit code 2) if the environment names several nodes or GPUs but this process would train alone."""
    where = nodes()
    named = [f"NNODES is {where.count}"] * (where.count > 1) + [f"GPUS_PER_NODE is {where.gpus}"] * ((where.gpus or 1) > 1)
    if named:
        problem = f"{' and '.join(named)} in the environment, but this command names no GPU"
        raise ClawError(problem, "add --gpus all, which uses them, or unset them", 2)


def _requested_gpus(recipe: Recipe, gpus: str | None, processes: int | None) -> Gpus | None:
    if gpus is not None and processes is not None:
        raise ClawError("--gpus and --processes exclude one another", "--processes is for training on the CPU", 2)
    if processes is not None:
        return None
    return recipe.train.gpus if gpus is None else parse_gpus(gpus)
