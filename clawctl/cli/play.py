"""`clawctl play`."""

from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, RecipeOption, RunOption


def play(
    rollout: Annotated[str, typer.Argument(help="An environment: built in, file.py:name, or of an installed package.")],
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    generate: Annotated[
        str | None, typer.Option(help="Your own sampler: file.py:name. Then ROLLOUT is a function that plays an episode with it.")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="Number of tasks, or with --generate of episodes.")] = 1,
    attempts: Annotated[int, typer.Option(min=1, help="Episodes of each task. Several are a group.")] = 1,
    parallel: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed that selects the tasks.")] = 0,
    log_level: LogLevel = "info",
) -> None:
    """Play an environment against this run's server. The server captures the episodes and is sent their outcomes."""
    opened, resolved = open_stage("collect", run, recipe, {}, log_level, create=True)
    from clawctl.environments import ENVIRONMENTS, create, is_environment

    found = ENVIRONMENTS.load(rollout, "play") if generate is None else None
    if not is_environment(found):
        from clawctl.collect.custom_rollout import collect_custom

        collect_custom(opened, resolved, rollout, generate, episodes)
        return
    import asyncio

    from clawctl.environments.player import play_episodes
    from clawctl.printing import answers
    from clawctl.process import stop_on_signals
    from clawctl.run.endpoint import own_endpoint

    environment = create(found, rollout, "play")
    tasks = environment.tasks("train", episodes, seed)
    summary = asyncio.run(play_episodes(environment, tasks, own_endpoint(opened, resolved), attempts, parallel, stop_on_signals()))
    answers().print(summary.words)
