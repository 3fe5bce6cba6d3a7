"""The command line. Each command parses its arguments, imports late and calls one function. `clawctl --help` never imports torch.

Each command and its arguments are in the file of the command's stage. `commands.SECTIONS` lists them in the order of `--help`."""

import errno
import sys
from typing import Annotated, NoReturn

import typer

from clawctl.cli.commands import Group
from clawctl.cli.heartbeat import heartbeat
from clawctl.errors import ClawError

_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_PATH = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR, errno.EEXIST)

app = typer.Typer(
    cls=Group,
    no_args_is_help=True,
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


def main() -> None:
    """Run the command and exit."""
    from clawctl.process import leave

    try:
        with heartbeat(next((word for word in sys.argv[1:] if not word.startswith("-")), "clawctl")):
            _run()
    except SystemExit as end:
        leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    leave(0)


def _run() -> None:
    """Run the command. A ClawError is printed once and sets the exit code. A bug keeps its traceback."""
    try:
        app(standalone_mode=True)
    except ClawError as error:
        _end(error.problem, error.fix, error.exit_code)
    except (OSError, NotImplementedError) as error:
        from filelock import Timeout

        from clawctl.run.disk import MAKE_ROOM, is_full
        from clawctl.run.storage import StorageUnreachable

        if isinstance(error, NotImplementedError) or error.errno == errno.ENOLCK:  # NotImplementedError: filelock, on ENOSYS
            if isinstance(error, NotImplementedError) and "flock" not in str(error):
                raise
            _end(f"a file cannot be locked: {error}", "put the run on a filesystem with locks: a local disk or NFSv4", 2)
        if isinstance(error, Timeout):
            _end(f"another process holds {error.lock_file}", "wait until it has finished, or end it, and try again")
        if error.errno in _NO_PATH:
            _end(f"a path cannot be used: {error}", "name another file or folder", 2)
        if error.errno in _FORBIDDEN:
            _end(f"you do not have permission: {error}", "run as the owner of the run directory, or choose another --run")
        if is_full(error):
            _end(f"the disk is full: {error}", MAKE_ROOM)
        if isinstance(error, StorageUnreachable):
            _end(f"the bucket of the run cannot be used: {error}", "check the network and the credentials, then start again")
        raise


def _end(problem: str, fix: str, code: int = 1) -> NoReturn:
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True, soft_wrap=True).print(f"[red]clawctl:[/red] {escape(problem)}\n  {escape(fix)}")
    sys.exit(code)
