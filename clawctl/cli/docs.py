"""`clawctl docs`."""

import sys
from typing import Annotated

import typer

from clawctl.errors import ClawError
from clawctl.shipped import names_in, shipped


def docs(topic: Annotated[str | None, typer.Argument(help="A page, such as engines. Unset: list the pages.")] = None) -> None:
    """Print a page of the documentation.

    Example: `clawctl docs clients`
    """
    from rich.console import Console
    from rich.markdown import Markdown

    pages = names_in(shipped("docs"), ".md")
    if topic is None:
        typer.echo("\n".join(pages))
        return
    by_name = {page.rpartition("/")[2]: page for page in pages} | {page: page for page in pages}
    name = by_name.get(topic.removeprefix("docs/").removesuffix(".md"))
    if name is None:
        raise ClawError(f"there is no page {topic}", f"clawctl docs PAGE, with one of {', '.join(pages)}", 2)
    text = (shipped("docs") / f"{name}.md").read_text()
    if sys.stdout.isatty():
        Console(width=min(100, Console().width)).print(Markdown(text))
    else:
        typer.echo(text)
