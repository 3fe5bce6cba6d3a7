"""The command line. Each command parses its arguments, imports late and calls one function. `clawctl --help` never imports torch.

Each command and its arguments are in the file of the command's stage. This module lists the commands in the order of `--help`."""

import errno
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from clawctl.cli import (
    chat,
    collect,
    connect,
    data,
    docs,
    doctor,
    inspect,
    judge,
    keys,
    notes,
    play,
    policies,
    practice,
    privacy,
    recipe,
    serve,
    start,
    train,
    up,
)
from clawctl.cli import eval as evaluation
from clawctl.cli.commands import Command, Group
from clawctl.errors import ClawError
from clawctl.run.disk import MAKE_ROOM, is_full
from clawctl.run.storage import StorageUnreachable

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(value: bool) -> None:
    if value:
        from clawctl import __version__

        typer.echo(f"clawctl {__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Improve a self-hosted agent through use: serve, collect, judge, train, eval, and serve again."""


app.command()(start.start)
app.command()(chat.chat)
app.command()(connect.connect)
app.command()(serve.serve)
app.command()(collect.collect)
app.command(name="import")(data.import_turns)
app.command(name="export")(data.export_turns)
app.command()(play.play)
app.command()(judge.judge)
app.command()(practice.practice)
app.command()(train.train)
app.command(name="eval")(evaluation.evaluate)
app.command()(up.up)
app.command()(doctor.doctor)
app.command()(docs.docs)
app.command()(privacy.forget)
app.command()(privacy.retention)
app.add_typer(inspect.app, name="inspect")
app.add_typer(policies.app, name="policies")
app.add_typer(keys.app, name="keys")
app.add_typer(notes.app, name="notes")
app.add_typer(recipe.app, name="recipe")
for part in (app, inspect.app, policies.app, keys.app, notes.app, recipe.app):
    for registered in part.registered_commands:
        registered.cls = Command


def main() -> None:
    """Run the command and exit."""
    from clawctl.process import leave

    try:
        _run()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    leave(0)


def _run() -> None:
    """Run the command. A ClawError is printed once and sets the exit code. A bug keeps its traceback."""
    try:
        app(standalone_mode=True)
    except ClawError as error:
        Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] {escape(error.problem)}\n  {escape(error.fix)}")
        sys.exit(error.exit_code)
    except (OSError, NotImplementedError) as error:
        if isinstance(error, NotImplementedError) or error.errno == errno.ENOLCK:  # NotImplementedError: filelock, on ENOSYS
            if isinstance(error, NotImplementedError) and "flock" not in str(error):
                raise
            problem, fix = "a file cannot be locked", "put the run on a filesystem with locks: a local disk or NFSv4"
            Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] {problem}: {escape(str(error))}\n  {escape(fix)}")
            sys.exit(2)
        if error.errno in _FORBIDDEN:
            problem, fix = "you do not have permission", "run as the owner of the run directory, or choose another --run"
        elif is_full(error):
            problem, fix = "the disk is full", MAKE_ROOM
        elif isinstance(error, StorageUnreachable):
            problem, fix = "the bucket of the run cannot be used", "check the network and the credentials, then start again"
        else:
            raise
        Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] {problem}: {escape(str(error))}\n  {escape(fix)}")
        sys.exit(1)
