"""`clawctl judge`."""

from typing import Annotated, Any

import typer

from clawctl.cli.opening import open_stage
from clawctl.cli.options import DEFAULT_RUN, LogLevel, Once, RecipeOption, RunOption

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
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Judge each turn by its next state. The majority of several votes decides. If the next state suggests a hint, the
    verdict includes it.

    Example: `clawctl judge --endpoint http://127.0.0.1:8000/v1 --once --run runs/mine`
    """
    settings = judge_settings(endpoint, model, votes, threshold, concurrency, prm, custom_rm)
    opened, resolved = open_stage("judge", run, recipe, settings, log_level)
    from clawctl.judge.worker import judge as work

    work(opened, resolved, once)


def judge_settings(
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
