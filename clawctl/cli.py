"""The doors: parse, import late, call one function. `clawctl --help` never imports torch."""

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from clawctl.config import Recipe, from_environment, load_recipe, show_gpus
from clawctl.disk import MAKE_ROOM, is_full
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
    if resolved.serve.gpus is not None:
        show_gpus(resolved.serve.gpus)
    from clawctl.serve.gateway import serve as work

    work(opened, resolved, intercept, pin)


@app.command()
def collect(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    once: Once = False,
    import_from: Annotated[Path | None, typer.Option("--import", help="Publish the turns of this file (JSONL) and end.")] = None,
    rating: Annotated[float | None, typer.Option(help="With --import: rating (-1 to 1) of turns that have none.")] = None,
    export_to: Annotated[Path | None, typer.Option("--export", help="Write all published turns to this file and end.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be trained and why not; write nothing.")] = False,
    num_samples: Annotated[int, typer.Option(min=0, help="With --dry-run: how many turns to show.")] = 10,
    as_json: AsJson = False,
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
    if rating is not None and import_from is None:
        raise ClawError("--rating is for the turns of a file", "name it with --import; served turns are rated over HTTP", 2)
    if dry_run:
        from clawctl.collect.dry_run import dry_run as show

        settings = load_recipe(recipe or (run / "recipe.yaml" if (run / "recipe.yaml").exists() else None)).collect
        show(None if import_from else open_run(run, create=False), settings, import_from, rating, num_samples, as_json)
        return
    opened, resolved = _open("collect", run, recipe, {}, log_level, create=import_from is not None or export_to is None)
    if import_from or export_to:
        from clawctl.collect.text_files import exchange_text

        exchange_text(opened, import_from, export_to, rating, as_json)
        return
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
    threshold: Annotated[
        float | None,
        typer.Option("--threshold", "--majority-vote-threshold", help="Share of the votes the majority needs (default 0.5)."),
    ] = None,
    prm: Annotated[str | None, typer.Option(help="Judge with this sequence-classification model.")] = None,
    custom_rm: Annotated[
        str | None,
        typer.Option("--custom-rm", "--custom-rm-path", help="Judge with your own reward model: file.py:name."),
    ] = None,
    calibrate: Annotated[
        Path | None, typer.Option(help="Judge these labelled turns (JSONL) instead and say how right the judge is.")
    ] = None,
    calibrate_ratings: Annotated[
        bool, typer.Option("--calibrate-ratings", help="Likewise with the turns of this run that people rated.")
    ] = False,
    attacks: Annotated[
        bool, typer.Option("--attacks", help="Try 60 turns that address the judge and say how many change its mind.")
    ] = False,
    once: Once = False,
    as_json: AsJson = False,
    log_level: LogLevel = "info",
) -> None:
    """Judge each turn from what came back: k votes, the majority decides; hints where hindsight gives one."""
    settings = {
        "judge.endpoint": endpoint,
        "judge.model": model,
        "judge.votes": votes,
        "judge.threshold": threshold,
        "judge.prm": prm,
        "judge.custom_rm": custom_rm,
    }
    opened, resolved = _open("judge", run, recipe, settings, log_level)
    if calibrate is not None or calibrate_ratings or attacks:
        from clawctl.judge.calibrate import calibrate as measure

        return measure(opened, resolved, calibrate, calibrate_ratings, attacks, as_json)
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


@app.command()
def forget(
    run: RunOption = _RUN,
    session: Annotated[str | None, typer.Option(help="This session, as `inspect sessions` names it.")] = None,
    user: Annotated[str | None, typer.Option(help="Everything asked with the API key of this name.")] = None,
    before: Annotated[
        str | None, typer.Option(help="Sessions that began before this day or time (2026-11-30, 2026-11-30T12:00).")
    ] = None,
    retrain: Annotated[bool, typer.Option("--retrain", help="Go back to the last policy that learned nothing of it.")] = False,
    stop_workers: Annotated[
        bool, typer.Option("--stop-workers", help="End collect and train of this machine first; `clawctl up` starts them again.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take a session, a user or a time out of every file of the run, and name the policies that learned from it."""
    from clawctl.privacy.door import forget as work

    work(open_run(run, create=False), session, user, before, retrain, stop_workers, dry_run, yes, as_json)


@app.command()
def retention(
    run: RunOption = _RUN,
    recipe: RecipeOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, delete nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the conversations that `privacy.max_age_days` and `privacy.max_gb` no longer allow."""
    from clawctl.privacy.door import expire as work

    work(open_run(run, create=False), recipe, dry_run, as_json)


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


@inspect_app.command()
def data(run: RunOption = _RUN, as_json: AsJson = False) -> None:
    """What is stored where, how much of it, since when, and about whom: one line a folder, one a user."""
    from clawctl.inspect.data import show_data

    show_data(open_run(run, create=False), as_json)


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
    from clawctl.checksums import sealed_yaml
    from clawctl.process import log_to
    from clawctl.run_dir import publish_bytes

    kept = root / "recipe.yaml"
    resolved = load_recipe(_source(root, recipe), settings)
    run = open_run(root, create=create)
    if recipe is not None or not kept.exists():
        text = sealed_yaml(dump_recipe(resolved).encode())
        if not kept.exists() or kept.read_bytes() != text:  # a stage that starts again needs no room on the disk
            publish_bytes(kept, text)
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
    except OSError as error:
        if not is_full(error):
            raise
        Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] the disk is full: {escape(str(error))}\n  {MAKE_ROOM}")
        sys.exit(1)
