"""`clawctl init`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def init(
    path: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path("mine.yaml"),
    agent: Annotated[str | None, typer.Option(help="The agent that talks to the model: openclaw, or any name.")] = None,
    model: Annotated[str | None, typer.Option(help="A Hugging Face name, or a folder with the weights.")] = None,
    judge: Annotated[str | None, typer.Option(help="URL of the server that judges, or self: version 0 of the model.")] = None,
    card: Annotated[str | None, typer.Option("--card", help="Plan for an empty card of this size, such as 24gb.")] = None,
) -> None:
    """Write a recipe that fits this machine. It takes three answers, asks for those that no option gives, and prints the next
    commands."""
    from clawctl.launch.beginning import Answers, write_recipe

    def answer(given: str | None, question: str, default: str) -> str:
        if given is not None or not sys.stdin.isatty():
            return given or default
        return str(typer.prompt(question, default=default))

    chosen = answer(agent, "Which agent will talk to it", "openclaw")
    named = answer(model, "Which model", "Qwen/Qwen3-4B-Instruct-2507")
    by = answer(judge, "Who judges: a server's URL, or self", "self")
    print("\n".join(write_recipe(path, Answers(chosen, named, None if by == "self" else by), card)))
