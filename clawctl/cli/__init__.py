"""The doors: parse, import late, call one function. `clawctl --help` never imports torch.

A command stands in the file of its stage, with its arguments; here is only which commands there are, in the order of `--help`."""

import sys

import typer
from rich.console import Console
from rich.markup import escape

from clawctl.cli import collect, inspect, judge, keys, openclaw, policies, privacy, serve, train, up
from clawctl.cli import eval as evaluation
from clawctl.disk import MAKE_ROOM, is_full
from clawctl.errors import ClawError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def about() -> None:
    """A self-hosted agent that gets better from being used: serve, collect, judge, train, eval, and serve again."""


app.command()(serve.serve)
app.command()(collect.collect)
app.command()(judge.judge)
app.command()(train.train)
app.command(name="eval")(evaluation.evaluate)
app.command()(up.up)
app.command()(privacy.forget)
app.command()(privacy.retention)
app.command(name="openclaw-setup")(openclaw.openclaw_setup)
app.add_typer(inspect.app, name="inspect")
app.add_typer(policies.app, name="policies")
app.add_typer(keys.app, name="keys")


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
