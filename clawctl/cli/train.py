"""`clawctl train`."""

import sys
from typing import Annotated

import typer

from clawctl.cli.opening import of_policy, open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, Once, PolicyOption, RecipeOption, RunOption
from clawctl.config import load_recipe
from clawctl.config.environment import gpus_from_environment, place_among_ranks
from clawctl.errors import ClawError
from clawctl.run.directory import recipe_file
from clawctl.run.rows import DEFAULT_POLICY


def train(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    backend: Annotated[
        str | None, typer.Option(help="Training backend: local (default), tinker, fireworks, or your own as file.py:name.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="binary, grpo, opd, opd_topk, combine or hybrid (default combine).")] = None,
    lr: Annotated[str | None, typer.Option(help="Learning rate, or auto: steps of equal movement.")] = None,
    batch_turns: Annotated[int | None, typer.Option(help="Usable turns per step.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Total number of steps after which training ends.")] = None,
    custom_loss: Annotated[
        str | None,
        typer.Option(
            "--custom-loss", "--custom-loss-function-path", help="Your own loss instead of the policy loss: file.py:name."
        ),
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="GPUs of this machine to train on, such as 2,3 or all.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Number of processes for training on the CPU.")] = None,
    from_version: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            help="First go back to this version and continue training from it. If LIVE is on a newer version, it goes back too.",
        ),
    ] = None,
    policy: PolicyOption = DEFAULT_POLICY,
    estimate: Annotated[bool, typer.Option("--estimate", help="Show how much memory a step needs, then exit.")] = False,
    ignore_estimate: Annotated[
        bool, typer.Option("--ignore-estimate", help="Train even if the weights and the optimizer alone do not fit into memory.")
    ] = False,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Train on judged turns and publish each version. It runs in one process, or in several under torchrun, which
    --gpus and --processes start.

    Example: `clawctl train --max-steps 10 --run runs/mine`
    """
    settings = {
        "train.backend": backend,
        "train.method": method,
        "train.lr": lr,
        "train.batch_turns": batch_turns,
        "train.lora.rank": lora_rank,
        "train.max_steps": max_steps,
        "train.custom_loss": custom_loss,
        "train.ignore_estimate": ignore_estimate or None,
        "train.gpus": gpus_from_environment("TRAIN_GPUS") if gpus is None and processes is None else None,
    }
    from clawctl.train.launch import show_estimate, spread_out
    from clawctl.train.launch import train as work

    if estimate:  # needs no run
        show_estimate(load_recipe(recipe_file(run, recipe), settings), gpus, processes)
        return
    if from_version is None and policy != DEFAULT_POLICY:
        raise ClawError("--policy names the policy that goes back", "add --from VERSION; without it every policy is trained", 2)
    opened, resolved = open_stage("train", run, recipe, settings, log_level)
    arguments = sys.argv[1:]
    if from_version is not None and place_among_ranks()[0] == 0:
        from clawctl.train.by_hand import go_back_to, without_from

        typer.echo(go_back_to(of_policy(opened, policy), from_version))
        arguments = without_from(arguments)
    spread_out(resolved, gpus, processes, arguments)
    work(opened, resolved, once)
