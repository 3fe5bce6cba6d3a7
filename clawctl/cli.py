"""The doors: parse, import late, call one function. `clawctl --help` never imports torch."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from clawctl.config import Recipe, from_environment, load_recipe, show_gpus
from clawctl.errors import ClawError
from clawctl.run_dir import RunDir, open_run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
inspect_app = typer.Typer(no_args_is_help=True, help="Look at a run: tables, or --json for scripts.")
app.add_typer(inspect_app, name="inspect")

# `--run-dir` as well: torchrun takes a `--run` behind its module for an abbreviation of its own `--run-path`
RunOption = Annotated[Path, typer.Option("--run", "--run-dir", envvar="CLAWCTL_RUN", help="The run directory all stages share.")]
RecipeOption = Annotated[
    Path | None, typer.Option("--recipe", help="Settings (YAML). Unset: RUN/recipe.yaml if it is there, else the defaults.")
]
LogLevel = Annotated[str, typer.Option("--log-level", envvar="CLAWCTL_LOG_LEVEL", help="debug, info, warning or error.")]
Once = Annotated[bool, typer.Option("--once", help="Do what is there, then end (for cron). Unset: keep following.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_RUN = Path("run")


@app.callback()
def about() -> None:
    """A self-hosted agent that gets better from being used: serve, collect, judge, train, eval, and serve again."""


@app.command()
def serve(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    intercept: Annotated[bool, typer.Option("--intercept", help="Capture conversations. Without it none is written.")] = False,
    model: Annotated[str | None, typer.Option(help="Hugging Face model directory, or `demo`.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (default 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on (default 30000; 0: a free one).")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve the model behind the OpenAI API, follow policies/LIVE, and capture conversations."""
    settings = {
        "model.path": model or from_environment("MODEL"),
        "serve.host": host or from_environment("HOST"),
        "serve.port": port if port is not None else from_environment("PORT"),
    }
    opened, resolved = _open("serve", run, recipe, settings, log_level, create=True)
    if resolved.serve.gpus is not None:
        show_gpus(resolved.serve.gpus)
    from clawctl.serve.gateway import serve as work

    work(opened, resolved, intercept)


@app.command()
def collect(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    once: Once = False,
    custom_rollout: Annotated[
        str | None,
        typer.Option(
            "--custom-rollout", "--rollout-function-path", help="Play episodes with your own code, then end: file.py:name."
        ),
    ] = None,
    custom_generate: Annotated[
        str | None,
        typer.Option("--custom-generate", "--custom-generate-function-path", help="What samples for it: file.py:name."),
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="With --custom-rollout: how many to play.")] = 1,
    log_level: LogLevel = "info",
) -> None:
    """Stitch captures into sessions, attach what came back after each turn, publish trajectories."""
    opened, resolved = _open("collect", run, recipe, {}, log_level, create=True)
    if custom_rollout is not None:
        from clawctl.collect.custom_rollout import collect_custom

        collect_custom(opened, resolved, custom_rollout, custom_generate, episodes)
        return
    from clawctl.collect.worker import collect as work

    work(opened, resolved, once)


@app.command()
def judge(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    endpoint: Annotated[str | None, typer.Option(help="OpenAI-compatible base URL of the judge. Unset: this run's server.")] = None,
    model: Annotated[str | None, typer.Option(help="Model to ask. Unset: version 0 of the policy.")] = None,
    votes: Annotated[int | None, typer.Option("--votes", "--majority-vote-n", help="Answers per turn (default 3).")] = None,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Judge each turn from what came back: k votes, the majority decides; hints where hindsight gives one."""
    settings = {"judge.endpoint": endpoint, "judge.model": model, "judge.votes": votes}
    opened, resolved = _open("judge", run, recipe, settings, log_level)
    from clawctl.judge.worker import judge as work

    work(opened, resolved, once)


@app.command()
def train(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    method: Annotated[str | None, typer.Option(help="binary, grpo, opd, opd_topk, combine or hybrid (default combine).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch_turns: Annotated[int | None, typer.Option(help="Usable turns per step.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps in all.")] = None,
    custom_loss: Annotated[
        str | None,
        typer.Option(
            "--custom-loss", "--custom-loss-function-path", help="Your own loss instead of the policy loss: file.py:name."
        ),
    ] = None,
    gpus: Annotated[str | None, typer.Option(help="Train on these GPUs of this machine, as in 2,3, or on all.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Train in so many processes on the CPU.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Tell how much memory a step takes, and end.")] = False,
    ignore_estimate: Annotated[
        bool, typer.Option("--ignore-estimate", help="Try it even where weights and optimizer alone do not fit.")
    ] = False,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Train the policy on judged turns and publish each new version. Runs alone or under torchrun, which --gpus starts."""
    settings = {
        "train.method": method,
        "train.lr": lr,
        "train.batch_turns": batch_turns,
        "train.lora.rank": lora_rank,
        "train.max_steps": max_steps,
        "train.custom_loss": custom_loss,
        "train.ignore_estimate": ignore_estimate or None,
    }
    from clawctl.train.launch import show_estimate, spread_out
    from clawctl.train.launch import train as work

    if estimate:  # for which there need be no run
        show_estimate(load_recipe(_source(run, recipe), settings), gpus, processes)
        return
    opened, resolved = _open("train", run, recipe, settings, log_level)
    spread_out(resolved, gpus, processes, sys.argv[1:])
    work(opened, resolved, once)


@app.command(name="eval")
def evaluate(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    version: Annotated[int | None, typer.Option(help="Measure this version and end. Unset: follow the trainer.")] = None,
    once: Once = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Measure policy versions and, where the recipe has a gate, decide whether they go live."""
    opened, resolved = _open("eval", run, recipe, {}, log_level)
    from clawctl.eval.worker import evaluate as work

    work(opened, resolved, version, once, as_json)


@app.command()
def up(
    recipe: Annotated[Path, typer.Argument(help="Recipe (YAML) whose `up.stages` are started.")],
    run: RunOption = _RUN,
    log_level: LogLevel = "info",
) -> None:
    """Start all stages under one parent: restarted if they die, one merged log, Ctrl-C stops them cleanly."""
    opened, resolved = _open("up", run, recipe, {}, log_level, create=True)
    from clawctl.up import up as work

    work(opened, resolved, recipe, log_level)


@inspect_app.command()
def sessions(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """One line a session: turns, main and side, trainable, judged, trained, mean reward."""
    from clawctl.inspect.sessions import show_sessions

    show_sessions(open_run(run, create=False), as_json)


@inspect_app.command()
def turns(
    run: RunOption = _RUN,
    session: Annotated[str | None, typer.Option(help="Only this session, with its words.")] = None,
    as_json: AsJson = False,
) -> None:
    """One line a turn: what was asked, answered, came back, the verdict, the hint, and why it is not trained if it is not."""
    from clawctl.inspect.turns import show_turns

    show_turns(open_run(run, create=False), session, as_json)


@inspect_app.command()
def why(
    turn: Annotated[str, typer.Argument(help="The turn's id, or the beginning of it.")],
    run: RunOption = _RUN,
    tokens: Annotated[bool, typer.Option("--tokens", help="Each token with its text, logprobs, ratio and advantages.")] = False,
    as_json: AsJson = False,
) -> None:
    """Every number between one turn and its gradient: verdict, credit, versions, ratio, mask, advantages and weights."""
    from clawctl.inspect.why import show_why

    show_why(open_run(run, create=False), turn, tokens, as_json)


@inspect_app.command()
def policies(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """One line a policy version: step, method, turns, loss, what eval measured and decided; which one is live."""
    from clawctl.inspect.policies import show_policies

    show_policies(open_run(run, create=False), as_json)


@inspect_app.command()
def health(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """What runs, what waits, what was lost or put aside, and why turns are not trained."""
    from clawctl.inspect.health import show_health

    show_health(open_run(run, create=False), as_json)


def _open(
    stage: str, root: Path, recipe: Path | None, settings: dict[str, Any], log_level: str, create: bool = False
) -> tuple[RunDir, Recipe]:
    from clawctl.process import log_to
    from clawctl.run_dir import publish_bytes

    kept = root / "recipe.yaml"
    resolved = load_recipe(_source(root, recipe), settings)
    run = open_run(root, create=create)
    if recipe is not None or not kept.exists():
        publish_bytes(kept, dump_recipe(resolved).encode())
    log_to(run.logs / f"{stage}.log", log_level)
    return run, resolved


def _source(root: Path, recipe: Path | None) -> Path | None:
    """The file that settings come from: the one that is named, else the run's own."""
    kept = root / "recipe.yaml"
    return recipe if recipe is not None else kept if kept.exists() else None


def dump_recipe(recipe: Recipe) -> str:
    import yaml

    return str(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))


def main() -> None:
    """Run the command; a ClawError is printed once, in one line, and becomes the exit code. A bug keeps its traceback."""
    try:
        app(standalone_mode=True)
    except ClawError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] {escape(error.problem)}\n  {escape(error.fix)}")
        sys.exit(error.exit_code)
