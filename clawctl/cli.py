"""The doors: parse, import late, call one function. `clawctl --help` never imports torch."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from clawctl.config import Recipe, from_environment, load_recipe
from clawctl.errors import ClawError
from clawctl.run_dir import RunDir, open_run

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
inspect_app = typer.Typer(no_args_is_help=True, help="Look at a run: tables, or --json for scripts.")
app.add_typer(inspect_app, name="inspect")
policies_app = typer.Typer(no_args_is_help=True, help="Which policy version serves: look, go forward, go back.")
app.add_typer(policies_app, name="policies")
keys_app = typer.Typer(no_args_is_help=True, help="Named API keys of a run: whose turns are whose.")
app.add_typer(keys_app, name="keys")

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
    pin: Annotated[int | None, typer.Option(help="Serve this policy version and do not follow policies/LIVE.")] = None,
    engine: Annotated[str | None, typer.Option(help="transformers (embedded, default) or vllm (started as a child).")] = None,
    engine_args: Annotated[str | None, typer.Option(help="More arguments for vLLM's server, in one string.")] = None,
    upstream: Annotated[str | None, typer.Option(help="Base URL of a server that runs already, instead of an engine.")] = None,
    upstream_kind: Annotated[str | None, typer.Option(help="What that server is: vllm, sglang or openai.")] = None,
    upstream_key: Annotated[str | None, typer.Option(envvar="CLAWCTL_UPSTREAM_KEY", help="That server's key.")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Serve the model behind the OpenAI API, follow policies/LIVE, and capture conversations."""
    settings = {
        "model.path": model or from_environment("MODEL"),
        "serve.host": host or from_environment("HOST"),
        "serve.port": port if port is not None else from_environment("PORT"),
        "serve.engine": engine,
        "serve.engine_args": shlex.split(engine_args) if engine_args is not None else None,
        "serve.upstream.url": upstream,
        "serve.upstream.kind": upstream_kind,
        "serve.upstream.api_key": upstream_key if upstream else None,
    }
    opened, resolved = _open("serve", run, recipe, settings, log_level, create=True)
    from clawctl.serve.gateway import serve as work

    work(opened, resolved, intercept, pin)


@app.command()
def collect(run: RunOption = _RUN, recipe: RecipeOption = None, once: Once = False, log_level: LogLevel = "info") -> None:
    """Stitch captures into sessions, attach what came back after each turn, publish trajectories."""
    opened, resolved = _open("collect", run, recipe, {}, log_level, create=True)
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
    method: Annotated[str | None, typer.Option(help="binary, opd or combine (default combine).")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    batch_turns: Annotated[int | None, typer.Option(help="Usable turns per step.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train an adapter of this rank instead of all weights.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Stop after so many steps in all.")] = None,
    once: Once = False,
    log_level: LogLevel = "info",
) -> None:
    """Train the policy on judged turns and publish each new version. Runs alone or under torchrun."""
    settings = {
        "train.method": method,
        "train.lr": lr,
        "train.batch_turns": batch_turns,
        "train.lora.rank": lora_rank,
        "train.max_steps": max_steps,
    }
    opened, resolved = _open("train", run, recipe, settings, log_level)
    from clawctl.train.launch import train as work

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
def policies(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """One line a policy version: step, method, turns, loss, what eval measured and decided; which one is live."""
    from clawctl.inspect.policies import show_policies

    show_policies(open_run(run, create=False), as_json)


@inspect_app.command()
def health(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """What runs, what waits, what was lost or put aside, and why turns are not trained."""
    from clawctl.inspect.health import show_health

    show_health(open_run(run, create=False), as_json)


@app.command(name="openclaw-setup")
def openclaw_setup(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    openclaw: Annotated[str, typer.Option("--openclaw", help="OpenClaw's command.")] = "openclaw",
    way: Annotated[str | None, typer.Option(help="plugin, responses or plain. Unset: the best for the OpenClaw found.")] = None,
    key: Annotated[str, typer.Option("--key", help="Name of the API key that is made for it.")] = "openclaw",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be written.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write OpenClaw's configuration for this run's server, as the version of OpenClaw found understands it; keeps a copy."""
    opened = open_run(run, create=False)
    kept = opened.root / "recipe.yaml"
    resolved = load_recipe(recipe if recipe is not None else kept if kept.exists() else None)
    from clawctl.openclaw import show_setup

    show_setup(opened, resolved, openclaw, way, key, dry_run, as_json)


@policies_app.command(name="list")
def list_policies(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """The same as `clawctl inspect policies`: each version, which one is live, and who moved LIVE last."""
    from clawctl.inspect.policies import show_policies

    show_policies(open_run(run, create=False), as_json)


@policies_app.command()
def promote(version: Annotated[int, typer.Argument(help="A published version.")], run: RunOption = _RUN) -> None:
    """Make a published version live. Running requests finish, new ones take it; the move is written down with your name."""
    from clawctl.promotion import promote as work

    typer.echo(work(open_run(run, create=False), version))


@policies_app.command()
def rollback(
    version: Annotated[int | None, typer.Argument(help="An older version. Unset: what served before the live one.")] = None,
    run: RunOption = _RUN,
) -> None:
    """Make an older version live again: one pointer moves, nothing is deleted; the move is written down with your name."""
    from clawctl.promotion import rollback as work

    typer.echo(work(open_run(run, create=False), version))


@keys_app.command(name="add")
def add_key(
    name: Annotated[str, typer.Argument(help="Whose key it is; turns asked with it carry the name.")], run: RunOption = _RUN
) -> None:
    """Make a key and show it, once: only a salted hash is kept. A running server takes it within a second."""
    from clawctl.keys import add_key as work

    typer.echo(work(open_run(run), name))
    typer.echo(f"This is the only time the key of {name} is shown.", err=True)


@keys_app.command(name="list")
def list_keys(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """The names of the keys and when each was made; never a key. The run's own key, `default`, is not among them."""
    from clawctl.keys import show_keys

    show_keys(open_run(run, create=False), as_json)


@keys_app.command(name="remove")
def remove_key(name: Annotated[str, typer.Argument(help="Whose key it is.")], run: RunOption = _RUN) -> None:
    """Take a key away. A running server refuses it within a second; requests that run already finish."""
    from clawctl.keys import remove_key as work

    work(open_run(run, create=False), name)
    typer.echo(f"the key of {name} opens nothing any more")


def _open(
    stage: str, root: Path, recipe: Path | None, settings: dict[str, Any], log_level: str, create: bool = False
) -> tuple[RunDir, Recipe]:
    from clawctl.process import log_to
    from clawctl.run_dir import publish_bytes

    kept = root / "recipe.yaml"
    source = recipe if recipe is not None else kept if kept.exists() else None
    resolved = load_recipe(source, settings)
    run = open_run(root, create=create)
    if recipe is not None or not kept.exists():
        publish_bytes(kept, dump_recipe(resolved).encode())
    log_to(run.logs / f"{stage}.log", log_level)
    return run, resolved


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
