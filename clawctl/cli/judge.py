"""`clawctl judge` and `clawctl calibrate`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, AsJson, LogLevel, Once, RecipeOption, RunOption, warn_of_old_spelling
from clawctl.errors import ClawError

Endpoint = Annotated[str | None, typer.Option(help="Base URL of the judge (OpenAI-compatible). Unset: this run's server.")]
Model = Annotated[str | None, typer.Option(help="Judge model. Unset: version 0 of the policy.")]
Votes = Annotated[int | None, typer.Option("--votes", "--majority-vote-n", help="Votes per turn (default 3).")]
Threshold = Annotated[
    float | None,
    typer.Option("--threshold", "--majority-vote-threshold", help="Share of the votes that a majority needs (default 0.5)."),
]
Concurrency = Annotated[
    int | None, typer.Option("--concurrency", "--num-judge-workers", help="Maximum number of calls in flight (default 16).")
]
Prm = Annotated[str | None, typer.Option(help="Judge with this sequence-classification model.")]
CustomRm = Annotated[
    str | None, typer.Option("--custom-rm", "--custom-rm-path", help="Judge with your own reward model: file.py:name.")
]


def judge(
    run: RunOption = DEFAULT_RUN,
    recipe: RecipeOption = None,
    endpoint: Endpoint = None,
    model: Model = None,
    votes: Votes = None,
    threshold: Threshold = None,
    concurrency: Concurrency = None,
    prm: Prm = None,
    custom_rm: CustomRm = None,
    calibrate_file: Annotated[Path | None, typer.Option("--calibrate", hidden=True)] = None,
    calibrate_ratings: Annotated[bool, typer.Option("--calibrate-ratings", hidden=True)] = False,
    attacks: Annotated[bool, typer.Option("--attacks", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", hidden=True)] = False,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Judge each turn by its next state. The majority of several votes decides. If the next state suggests a hint, the
    verdict includes it."""
    if calibrate_file is not None or calibrate_ratings or attacks:
        words = [str(calibrate_file or ""), "--ratings" * calibrate_ratings, "--attacks" * attacks]
        warn_of_old_spelling("judge --calibrate, --calibrate-ratings or --attacks", " ".join(["calibrate", *filter(None, words)]))
        return calibrate(
            calibrate_file, run, recipe, calibrate_ratings, attacks, endpoint, model, votes, threshold, concurrency, prm, custom_rm,
            as_json, log_level,
        )  # fmt: skip
    settings = _settings(endpoint, model, votes, threshold, concurrency, prm, custom_rm)
    opened, resolved = open_stage("judge", run, recipe, settings, log_level)
    from clawctl.judge.worker import judge as work

    work(opened, resolved, once)


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
    It writes no verdicts."""
    if file is None and not ratings and not attacks:
        raise ClawError("calibrate needs turns whose verdict is known", "name a FILE of labelled turns, --ratings or --attacks", 2)
    settings = _settings(endpoint, model, votes, threshold, concurrency, prm, custom_rm)
    opened, resolved = open_stage("judge", run, recipe, settings, log_level)
    from clawctl.judge.laboratory.calibrate import calibrate as measure

    measure(opened, resolved, file, ratings, attacks, as_json)


def _settings(
    endpoint: str | None,
    model: str | None,
    votes: int | None,
    threshold: float | None,
    concurrency: int | None,
    prm: str | None,
    custom_rm: str | None,
) -> dict[str, Any]:
    """The recipe keys that these options set."""
    return {
        "judge.endpoint": endpoint,
        "judge.model": model,
        "judge.votes": votes,
        "judge.threshold": threshold,
        "judge.concurrency": concurrency,
        "judge.prm": prm,
        "judge.custom_rm": custom_rm,
    }
