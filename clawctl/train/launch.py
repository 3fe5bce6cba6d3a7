"""Entry points of the train stage: selects the recipe's backend and runs the loop with it."""

from collections.abc import Sequence
from contextlib import ExitStack

from clawctl.config import Recipe
from clawctl.config.environment import place_among_ranks
from clawctl.process import stop_on_signals
from clawctl.run.directory import RunDir, sole_worker
from clawctl.run.policies import ensure_base_policy
from clawctl.train.in_turns import train_in_turns
from clawctl.train.loop import run_training
from clawctl.train.pauses import Pauses
from clawctl.trainers import TRAINERS, TrainingBackend


def backend_of(recipe: Recipe) -> TrainingBackend:
    """Return the implementation that `train.backend` names. Raises ClawError."""
    return TRAINERS.load(recipe.train.backend.kind, "train.backend")


def spread_out(recipe: Recipe, gpus: str | None, processes: int | None, arguments: Sequence[str]) -> None:
    """Replace this process by several if the backend or the user requires it. Raises ClawError."""
    backend_of(recipe).spread(recipe, gpus, processes, arguments)


def show_estimate(recipe: Recipe, gpus: str | None, processes: int | None) -> None:
    """Print the memory and time that a step of the recipe needs. Raises ClawError."""
    for line in backend_of(recipe).estimate(recipe, gpus, processes):
        print(line)


def train(run: RunDir, recipe: Recipe, once: bool) -> None:
    """Train the policy on the judged turns of `run`. Raises ClawError.

    Ends on SIGINT or SIGTERM, after `train.max_steps` or, with `once`, when no full batch is left. A trainer with several processes
    calls this in each of them; only one runs the loop.
    """
    stop = stop_on_signals()
    with ExitStack() as exits:

        def prepare() -> None:
            exits.enter_context(sole_worker(run, "train"))
            ensure_base_policy(run, recipe.model.path)

        pauses = Pauses(run, recipe.train, stop, place_among_ranks()[1])
        between_layers = pauses.between_layers if pauses.may_rest else None
        trainer = exits.enter_context(backend_of(recipe).open(recipe, prepare, between_layers))
        if trainer is not None:
            work = train_in_turns if recipe.policies.per_person else run_training
            work(run, recipe, trainer, stop, once, pauses)
