"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from clawctl.config.environment import default_log_level


def _level(ctx: typer.Context, value: str) -> str:
    source = ctx.get_parameter_source("log_level")
    return default_log_level(value) if source is not None and source.name == "DEFAULT" else value


def _run_folder(text: str | Path) -> Path:
    from clawctl.run.mounts import run_folder

    return run_folder(text)


def _recipe_file(text: str | Path) -> Path:
    from clawctl.shipped import find_recipe

    return find_recipe(Path(text))


# `--run-dir` is an alias because torchrun takes `--run` after its module for an abbreviation of its own `--run-path`.
RunOption = Annotated[
    Path,
    typer.Option(
        "--run", "--run-dir", envvar="CLAWCTL_RUN", parser=_run_folder, metavar="PATH",
        help="Run directory, shared by all stages; or s3://BUCKET/PREFIX, gs:// or az://.",
    ),
]  # fmt: skip
RecipeOption = Annotated[
    Path | None,
    typer.Option(
        "--recipe", parser=_recipe_file, metavar="PATH",
        help="Settings: a YAML file, or a name such as smollm2. Unset: RUN/recipe.yaml if it exists, else the defaults.",
    ),
]  # fmt: skip
LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level",
        envvar=["CLAWCTL_LOG_LEVEL", "OPENCLAW_LOG_LEVEL", "ROLLOUT_LOG_LEVEL"],
        callback=_level,
        help="debug, info, warning or error.",
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Process the available data, then exit (for cron). Unset: keep running.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="Name of a policy, as in `clawctl keys add --policy`. Unset: the shared one.")
]
TeachesShared = Annotated[
    bool, typer.Option("--teaches-shared", help="Turns of the key also train the shared policy, with `shared+` in policies.per.")
]
NumSamples = Annotated[int, typer.Option(min=0, help="With --dry-run: number of turns to show.")]
DEFAULT_RUN = Path("run")
