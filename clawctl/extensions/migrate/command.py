"""`clawctl recipe convert`."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from clawctl.errors import ClawError
from clawctl.printing import Column, counted, fitting, one_line

_COLUMNS = (Column("foreign key"), Column("value"), Column("result"), Column("clawctl"))
_STYLES = {"converted": "green", "same default": "green", "dropped": "yellow", "unknown": "red"}


def convert_recipe(
    old: Annotated[Path, typer.Argument(help="A recipe (YAML) of OpenClaw-RL, slime, verl, TRL or a similar system.")],
    out: Annotated[Path | None, typer.Option("--out", help="Output file. Unset: write to stdout.")] = None,
) -> None:
    """Convert another system's recipe. A table shows the result for every key. If a key is unknown, nothing is written.

    Example: `clawctl recipe convert theirs.yaml`
    """
    from clawctl.extensions.migrate.convert import NotConverted, convert
    from clawctl.run.directory import publish_bytes

    if out is not None and out.exists():
        raise ClawError(f"{out} already exists", "choose another file with --out, or remove it", 2)
    if out is not None and not out.parent.is_dir():
        raise ClawError(f"{out.parent} is no folder", "create it, or choose another file with --out", 2)
    page = Console(stderr=True, highlight=False, markup=False, emoji=False, width=None if sys.stderr.isatty() else 200)
    try:
        _, text, lines = convert(old)
    except NotConverted as refused:
        page.print(_table(str(old), refused.lines, page.width))
        raise
    page.print(_table(str(old), lines, page.width))
    if out is None:
        typer.echo(text, nl=False)
        return
    publish_bytes(out, text.encode())
    typer.echo(f"{out} is written; check it, then run: clawctl up {out}")


def _table(title: str, lines: list, width: int):  # type: ignore[no-untyped-def]
    rows = [
        (one_line(line.old, 60), one_line(str(line.value), 40), Text(line.fate, style=_STYLES[line.fate]), one_line(line.new, 110))
        for line in lines
    ]
    return fitting(f"{title}: {counted(len(lines), 'key')}", _COLUMNS, rows, width)
