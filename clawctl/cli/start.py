"""`clawctl start`."""

import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from clawctl.cli.options import DEFAULT_RUN, LogLevel, RunOption
from clawctl.cli.up import run_stages
from clawctl.config import Recipe, load_recipe
from clawctl.config.model import ModelConfig
from clawctl.errors import ClawError
from clawctl.launch import PAGE_PORT
from clawctl.printing import busy
from clawctl.run.directory import RunDir

_NO_CLIENT = ("none yet", "other")
_AGENTS = ("none yet", "openclaw", "codex", "claude-code", "other")
_JUDGES = [
    ("no server", "ratings and your words teach; on a GPU version 0 of the model judges as well, if it can"),
    ("http://127.0.0.1:8000/v1", "or the URL of another server with a large model"),
]


def start(
    run: RunOption = DEFAULT_RUN,
    model: Annotated[
        str | None, typer.Option("--model", help="A Hugging Face name, a folder with the weights, or smollm2. Unset: it is asked.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", help="The agent that is shown how to connect: openclaw, codex, … or none. Unset: it is asked."),
    ] = None,
    judge: Annotated[
        str | None, typer.Option("--judge", help="URL of a server that judges. Unset: version 0 of the model.")
    ] = None,
    write: Annotated[Path | None, typer.Option("--write", help="Write the recipe into this file, and start nothing.")] = None,
    card: Annotated[
        str | None, typer.Option("--card", help="With --write: plan for an empty card of this size, such as 24gb.")
    ] = None,
    page_port: Annotated[
        int, typer.Option("--page-port", min=0, max=65535, help="Port of the run's pages. If it is taken, another one.")
    ] = PAGE_PORT,
    opens: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the pages in a browser, at a terminal with a screen.")
    ] = True,
    plain: Annotated[bool, typer.Option("--plain", help="Print the merged log even on a terminal.")] = False,
    log_level: LogLevel = "info",
) -> None:
    """Serve and train a model that fits this machine. On a terminal it asks for the model, the judge and the agent. The run is
    shown as pages. Its recipe is RUN/recipe.yaml, and the same command goes on with it. Ctrl-C or the end of the terminal ends
    everything.

    Example: `clawctl start --model smollm2 --agent codex`
    """
    parent, asks = os.getppid(), sys.stdin.isatty() and sys.stdout.isatty()
    if card is not None and write is None:
        raise ClawError("--card plans for another machine", "add --write NAME.yaml", 2)
    if agent not in (None, "none", *_NO_CLIENT):
        from clawctl.launch.connecting import client_named

        agent = client_named(agent)
    opened = RunDir(run.resolve())
    goes_on = write is None and _goes_on(opened, model, judge)
    if not goes_on:
        _make_recipe(write or opened.recipe, write is None, model, judge, card, asks)
    if agent is None and asks and not goes_on:
        agent = _chosen("Which agent will use it?", [(name, "") for name in _AGENTS])
    if write is not None:
        return typer.echo(_next_commands(write, agent))
    with busy("starting …"):
        import clawctl.serve.gateway  # noqa: F401 (what takes seconds)
        from clawctl.launch.connecting import greeting
        from clawctl.launch.up import Company

    def greet(link: str | None) -> str:
        if link is not None and opens and _has_screen():
            _open_page(opened, link)
        return greeting(opened, agent, link, str(run))

    company = Company(page_port, greet, parent)
    try:
        run_stages(None, run, log_level, plain, company)
    finally:
        if not isinstance(sys.exception(), ClawError):  # which names another cure
            typer.echo(f"Nothing is lost. To go on: clawctl start --run {shlex.quote(str(run))}", err=True)


def _next_commands(recipe: Path, agent: str | None) -> str:
    """What to do with a recipe that was written."""
    run, named = shlex.quote(f"runs/{recipe.stem}"), agent if agent not in (None, "none", *_NO_CLIENT) else "AGENT"
    file = shlex.quote(str(recipe))
    return f"""
clawctl doctor --recipe {file}                 # whether this machine will do
clawctl up {file} --run {run}
clawctl connect {named} --run {run} --write    # in another terminal
clawctl inspect web --run {run}                # what it learns"""


def _has_screen() -> bool:
    """Whether a browser that this terminal opens is seen by its person."""
    if not sys.stdout.isatty() or ("SSH_CONNECTION" in os.environ and "BROWSER" not in os.environ):
        return False
    return sys.platform == "darwin" or any(name in os.environ for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))


def _open_page(run: RunDir, link: str) -> None:
    """Open the pages. The browser gets the name of a file, because other users of this machine can read its arguments."""
    import webbrowser

    from clawctl.run.directory import publish_bytes

    publish_bytes(
        run.page_link, f'<!doctype html><meta http-equiv="refresh" content="0; url={link}"><a href="{link}">pages</a>\n'.encode()
    )
    with suppress(webbrowser.Error, OSError):
        webbrowser.open(run.page_link.as_uri())


def _goes_on(run: RunDir, model: str | None, judge: str | None) -> bool:
    """Whether the run has its recipe already. Raises ClawError (exit code 2) if it has begun and something else was chosen."""
    if not run.recipe.exists():
        return False
    if model is judge is None:
        return True
    from clawctl.run.model_binding import is_bound

    if not is_bound(run):
        return False
    recipe = load_recipe(run.recipe)
    if model in (None, recipe.model.path) and judge in (None, recipe.judge.endpoint):
        return True
    raise ClawError(f"{run.root} has begun with the recipe in it", "leave out --model and --judge, or name another --run", 2)


def _make_recipe(path: Path, starts: bool, model: str | None, judge: str | None, card: str | None, asks: bool) -> None:
    """Write the recipe for the chosen model, which is downloaded if the run `starts` now."""
    with busy("looking at this machine …"):
        from clawctl.launch.beginning import download, fitting_models, recipe_for, this_box, write_recipe

        box = this_box(card)
        models = fitting_models(box) if model is None else []
    if model is None:
        model = _chosen("Which model? These fit; any other name or a folder is tried.", models) if asks else models[0][0]
        judge = _chosen("Who judges the answers?", _JUDGES) if judge is None and asks else judge
        judge = None if judge == _JUDGES[0][0] else judge
    with busy(f"planning memory for {model} …"):
        if starts:
            from clawctl.serve.gateway import check_model

            check_model(Recipe(model=ModelConfig(path=model)))  # where there is no such model, planning takes long to say so
        written = recipe_for(model, judge, box, path.parent.name if starts else path.stem, 30000 if starts else None)
    if starts:
        download(written.recipe())
    write_recipe(path, written.text, anew=starts)
    typer.echo("\n".join([f"wrote {path}", *written.lines()]))


def _chosen(question: str, options: list[tuple[str, str]]) -> str:
    """The answer: one of the options by its number, or any other text."""
    typer.echo(question)
    for number, (name, note) in enumerate(options, 1):
        typer.echo(f"  {number}  {name:<32}{note}".rstrip())
    answer = str(typer.prompt("number or name", default="1")).strip()
    return options[int(answer) - 1][0] if answer.isdigit() and 0 < int(answer) <= len(options) else answer
