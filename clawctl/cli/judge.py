"""`clawctl judge`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, Once, RecipeOption, RunOption


def judge(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Base URL of the judge (OpenAI-compatible). Unset: this run's server.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Judge model. Unset: version 0 of the policy.")] = None,
    votes: Annotated[int | None, typer.Option("--votes", "--majority-vote-n", help="Votes per turn (default 3).")] = None,
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", "--majority-vote-threshold", help="Share of the votes that a majority needs (default 0.5)."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option("--concurrency", "--num-judge-workers", help="Maximum number of calls in flight (default 16).")
    ] = None,
    prm: Annotated[str | None, typer.Option(help="Judge with this sequence-classification model.")] = None,
    custom_rm: Annotated[
        str | None,
        typer.Option("--custom-rm", "--custom-rm-path", help="Judge with your own reward model: file.py:name."),
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Judge these labelled turns (JSONL) instead and report the judge's accuracy.")
    ] = None,
    calibrate_ratings: Annotated[
        bool, typer.Option("--calibrate-ratings", help="The same with this run's turns that people rated.")
    ] = False,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="Try 60 turns that attack the judge and report how many change its verdict.")
    ] = False,
    once: Once = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Judge each turn by its next state. Several votes with a majority; hints where the next state suggests one."""
    settings = {
        "judge.endpoint": endpoint,
        "judge.model": model,
        "judge.votes": votes,
        "judge.threshold": threshold,
        "judge.concurrency": concurrency,
        "judge.prm": prm,
        "judge.custom_rm": custom_rm,
    }
    opened, resolved = open_stage("judge", run, recipe, settings, log_level)
    if calibrate is not None or calibrate_ratings or attacks:
        from clawctl.judge.calibrate import calibrate as measure

        return measure(opened, resolved, calibrate, calibrate_ratings, attacks, as_json)
    from clawctl.judge.worker import judge as work

    work(opened, resolved, once)
