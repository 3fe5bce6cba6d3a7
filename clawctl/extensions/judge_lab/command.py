"""`clawctl calibrate`."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.judge import Concurrency, CustomRm, Endpoint, Model, Prm, Threshold, Votes, judge_settings
from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, RecipeOption, RunOption
from clawctl.errors import ClawError
from clawctl.shipped import find_file


def calibrate(
    file: Annotated[Path | None, typer.Argument(help="Labelled turns (JSONL); docs/labelled-turns.jsonl is an example.")] = None,
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    ratings: Annotated[bool, typer.Option("--ratings", help="Judge the turns of this run that people rated.")] = False,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="Try 60 turns that attack the judge and report how many change its verdict.")
    ] = False,
    endpoint: Endpoint = None,
    model: Model = None,
    votes: Votes = None,
    threshold: Threshold = None,
    concurrency: Concurrency = None,
    prm: Prm = None,
    custom_rm: CustomRm = None,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Measure the judge on turns with a known verdict. It reports the accuracy, the cost, and how many attacks change the verdict.
    It writes no verdicts.

    Example: `clawctl calibrate --ratings --run runs/mine`
    """
    if file is None and not ratings and not attacks:
        raise ClawError("calibrate needs turns whose verdict is known", "name a FILE of labelled turns, --ratings or --attacks", 2)
    settings = judge_settings(endpoint, model, votes, threshold, concurrency, prm, custom_rm)
    opened, resolved = open_stage("judge", run, recipe, settings, log_level)
    from clawctl.extensions.judge_lab.calibrate import calibrate as measure

    measure(opened, resolved, file and find_file(file), ratings, attacks, as_json)
