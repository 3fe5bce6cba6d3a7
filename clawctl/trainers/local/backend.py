"""The backend `local`: the trainer on this machine, and how its processes are started. Importing this module imports no torch."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Literal, NoReturn

from clawctl.config import Recipe
from clawctl.config.environment import Nodes, environment_with, is_rank, nodes, place_among_ranks
from clawctl.errors import ClawError
from clawctl.memory import Needs
from clawctl.process import die_with_parent
from clawctl.trainers import Trainer

Gpus = Sequence[int] | Literal["all"]


def become_torchrun(gpus: Gpus | None, processes: int | None, argv: Sequence[str], check_world: Callable[[int], None]) -> NoReturn:
    """Replace this process by torchrun. `argv` are its own arguments, which every rank parses again. With `processes` the ranks
    compute on the CPU. Raises ClawError (exit code 2) if the GPUs or nodes do not match, or if `check_world` refuses the number of
    ranks."""
    # Otherwise restarted ranks connect to addresses of dead ones.
    where, changes = nodes(), {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    changes["PYTHONSAFEPATH"] = "1"  # users who can write to the ranks' start folder must not be able to run code
    if processes:
        changes["OMP_NUM_THREADS"] = "1"
    if processes is not None:
        changes["CUDA_VISIBLE_DEVICES"] = ""
        count = processes
    else:
        names = chosen(gpus or "all", visible_gpus(), where.gpus)
        changes["CUDA_VISIBLE_DEVICES"] = ",".join(names)
        count = len(names)
    check_world(count * where.count)
    command = [
        sys.executable, "-P", "-m", "clawctl.trainers.local.quiet_torchrun", *rendezvous_options(where), "--nproc-per-node",
        str(count),
    ]  # fmt: skip
    os.execve(sys.executable, [*command, "-m", "clawctl", *torchrun_words(argv)], environment_with(changes))


def parse_gpus(text: str) -> Gpus:
    """Parse `2,3` or `all`. Raises ClawError (exit code 2)."""
    if text == "all":
        return "all"
    try:
        ids = [int(part) for part in text.split(",")]
    except ValueError:
        ids = []
    if not ids or min(ids) < 0 or len(set(ids)) < len(ids):
        raise ClawError(f"--gpus {text!r} is not a list of GPUs", "write GPU numbers, as in --gpus 2,3, or --gpus all", 2)
    return ids


def visible_gpus() -> list[str]:
    """The GPUs that CUDA shows, by their names in CUDA_VISIBLE_DEVICES."""
    import torch

    named = [name for name in (environment_with({}).get("CUDA_VISIBLE_DEVICES") or "").split(",") if name]
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count else [str(i) for i in range(count)]


def chosen(gpus: Gpus, visible: Sequence[str], a_node: int | None) -> list[str]:
    """The names of the selected GPUs. `a_node` is the number that the scheduler assigned to each node. Raises ClawError (exit code
    2)."""
    if not visible:
        raise ClawError("--gpus needs GPUs, but CUDA shows none", "use --processes N to train in N processes on the CPU", 2)
    ids = list(range(a_node or len(visible))) if gpus == "all" else list(gpus)
    missing = [i for i in ids if i >= len(visible)]
    if missing:
        named = ", no GPU ".join(map(str, missing))
        raise ClawError(f"there is no GPU {named}: this machine has {len(visible)}", f"choose from 0 to {len(visible) - 1}", 2)
    if a_node is not None and len(ids) != a_node:
        raise ClawError(f"GPUS_PER_NODE is {a_node}, but --gpus names {len(ids)}", "use the same number, or --gpus all", 2)
    return [visible[i] for i in ids]


def rendezvous_options(where: Nodes) -> list[str]:
    """The options with which the nodes find each other."""
    if where.count == 1:
        return ["--standalone"]
    if where.address is None:
        raise ClawError(f"NNODES is {where.count}, but MASTER_ADDR is not set", "set it to the address of the first node", 2)
    result = ["--nnodes", str(where.count), "--node-rank", str(where.rank)]
    return [*result, "--master-addr", where.address, "--master-port", str(where.port)]


def torchrun_words(argv: Sequence[str]) -> list[str]:
    """The arguments with `--run-dir` instead of `--run`, because torchrun reads `--run` as an abbreviation of its own option."""
    return ["--run-dir" + word.removeprefix("--run") if word == "--run" or word.startswith("--run=") else word for word in argv]


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

        from clawctl.trainers.local.estimate import check_memory, longest_turn
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
            longest_tokens = ranks.run_on_leader(lambda: longest_turn(recipe, ranks))
            trainer = LocalTrainer(recipe, ranks, between_layers if ranks.is_leader else None, longest_tokens)
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
