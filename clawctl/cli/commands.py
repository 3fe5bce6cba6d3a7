"""Commands: an unknown option is translated or refused with a suggestion, and extensions and installed packages add commands."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from clawctl.config import Recipe, is_rank, known_keys, options_from_environment, warning_of_variables
from clawctl.config.explaining import Option, equivalent, options_elsewhere
from clawctl.errors import ClawError
from clawctl.registry import Registry

# A function with typer's annotations, or a typer app. The name `recipe.convert` adds `clawctl recipe convert`.
COMMANDS: Registry[Callable[..., Any] | typer.Typer] = Registry("command", "clawctl.commands", {})


class Group(TyperGroup):
    """A group that also has the commands of the registry. They are imported when they are run or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        prefix = _prefix(ctx)
        added = [name.removeprefix(prefix) for name in COMMANDS.names() if name.startswith(prefix)]
        return [*super().list_commands(ctx), *(name for name in added if "." not in name and name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and (name := _prefix(ctx) + cmd_name) in COMMANDS.names():
            return _made(cmd_name, COMMANDS.load(name, "clawctl"))
        return command


def _prefix(ctx: Any) -> str:
    return "" if ctx.parent is None else f"{_called(ctx).replace(' ', '.')}."


def _made(name: str, added: Callable[..., Any] | typer.Typer) -> Any:
    """The command of a registered function or app."""
    app = added
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name=name)(added)
    for registered in app.registered_commands:
        registered.cls = Command
    command = typer.main.get_command(app)
    command.name = name
    return command


class Command(TyperCommand):
    """A command that translates options of other systems, and checks the environment before it starts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command = _called(ctx)
        ours = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        ours |= set(self.get_help_option_names(ctx))
        takes_value = {name for parameter in self.params for name in parameter.opts if not getattr(parameter, "is_flag", False)}
        homes = _homes(ctx)
        if {*args} & {*self.get_help_option_names(ctx)}:
            return super().parse_args(ctx, args)
        words, settings, refused = understand(command, args, ours, takes_value, homes), dict[str, list[str]](), dict[str, str]()
        for name, options in options_from_environment(command).items():
            try:
                settings[name] = understand(command, options, ours, takes_value, homes)
            except ClawError as error:
                refused[name] = error.fix
        warning = warning_of_variables(command, refused)
        left = super().parse_args(ctx, [*itertools.chain(*settings.values()), *words])  # an option of the command line is the last
        followed = "; ".join(f"{name} ({' '.join(options)})" for name, options in settings.items())
        for line in (followed and f"these variables set options: {followed}", warning):
            if line and not is_rank():
                Console(stderr=True, soft_wrap=True).print(f"[yellow]clawctl:[/yellow] {escape(line)}")
        return left


def _homes(ctx: Any) -> dict[str, list[str]]:
    """The commands that have each option, by the option's name."""
    homes: dict[str, list[str]] = {}
    for name, command in getattr(ctx.find_root().command, "commands", {}).items():
        for option in {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}:
            homes.setdefault(option, []).append(name)
    return homes


def _called(ctx: Any) -> str:
    """The command without the program's name: "serve", "inspect sessions"."""
    names = []
    while ctx.parent is not None:
        names.append(ctx.info_name)
        ctx = ctx.parent
    return " ".join(reversed(names))


def understand(
    command: str, words: Sequence[str], own: set[str], takes_value: set[str], homes: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """`words` with foreign options translated. `homes` maps options to the commands that have them.

    Raises ClawError (exit code 2) for a refused or unknown option.
    """
    translated, rest, foreign = list[str](), list(words), None
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*translated, word, *rest]
        if name in own or not name.startswith("--"):
            translated.append(word)
            if name in takes_value and not equals and rest:
                translated.append(rest.pop(0))
            continue
        foreign = options_elsewhere(command) if foreign is None else foreign
        option = foreign.get(name.replace("_", "-"))
        if option is None:
            raise _unknown(command, name, own, homes, foreign)
        if option.takes_value and not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        now = option.is_now(value)
        if now is None:
            raise ClawError(f"clawctl {command} has no option {name}", option.instead, 2)
        translated += () if any(given.partition("=")[0] in option.unless for given in words) else now
    return translated


def _unknown(
    command: str, name: str, own: set[str], homes: Mapping[str, Sequence[str]] | None, foreign: Mapping[str, Option]
) -> ClawError:
    """The error for an unknown option. It suggests a similar option, the recipe key, or the command that has the option."""
    problem, known = f"clawctl {command} has no option {name}", [option for option in own if option.startswith("--")]
    home = next(iter((homes or {}).get(name, ())), None)  # if a command has exactly this option, no similar one is suggested
    if home is None and (near := get_close_matches(name, [*known, *foreign], n=1, cutoff=0.75)):
        return ClawError(problem, f"did you mean {near[0]}?", 2)
    key = name.removeprefix("--").replace("-", "_")
    here = equivalent([key])
    if here is not None and here.dropped is not None:
        return ClawError(problem, here.dropped.replace("`", ""), 2)
    if here is not None and here.key is not None:
        return ClawError(problem, f"set {here.key} in the recipe: docs/reference/recipes.md", 2)
    if keys := [candidate for candidate in known_keys(Recipe) if candidate.rpartition(".")[2] == key]:
        of_command = [candidate for candidate in keys if candidate.startswith(f"{command}.")]
        return ClawError(problem, f"set {(of_command or keys)[0]} in the recipe: docs/reference/recipes.md", 2)
    if home is not None:
        return ClawError(problem, f"clawctl {home} has it: clawctl {home} --help", 2)
    if near := get_close_matches(name, known, n=1):
        return ClawError(problem, f"did you mean {near[0]}?", 2)
    return ClawError(problem, f"clawctl {command} --help lists all options", 2)
