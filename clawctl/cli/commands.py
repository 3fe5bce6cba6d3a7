"""Commands: they are imported when they are run, extensions add some, and an unknown option is translated or refused."""

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from clawctl.errors import ClawError
from clawctl.registry import Registry, points

if TYPE_CHECKING:
    from clawctl.config.explaining import Option

SECTIONS = {  # of `clawctl --help`: each command with its function or typer app, below `clawctl.cli`
    "Begin": {
        "start": "start:start", "chat": "chat:chat", "connect": "connect:connect", "docs": "docs:docs", "doctor": "doctor:doctor",
    },
    "Stages": {
        "serve": "serve:serve", "collect": "collect:collect", "play": "play:play", "judge": "judge:judge", "train": "train:train",
        "eval": "eval:evaluate", "practice": "practice:practice", "up": "up:up",
    },
    "Look and decide": {"inspect": "inspect:app", "policies": "policies:app", "notes": "notes:app"},
    "Data": {
        "import": "data:import_turns", "export": "data:export_turns", "forget": "privacy:forget", "retention": "privacy:retention",
    },
    "Settings": {"keys": "keys:app", "recipe": "recipe:app"},
}  # fmt: skip
# A function with typer's annotations, or a typer app. The name `recipe.convert` adds `clawctl recipe convert`.
COMMANDS: Registry[Callable[..., Any] | typer.Typer] = Registry(
    "command",
    "clawctl.commands",
    {name: f"clawctl.cli.{target}" for section in SECTIONS.values() for name, target in section.items()},
)


ELSEWHERE = {
    "init": "clawctl start --write mine.yaml writes a recipe that fits, and starts nothing"
}  # commands that people look for


class Group(TyperGroup):
    """A group that also has the commands of the registry. They are imported when they are run."""

    def list_commands(self, ctx: Any) -> list[str]:
        prefix = _prefix(ctx)
        added = [name.removeprefix(prefix) for name in COMMANDS.names() if name.startswith(prefix)]
        return [*super().list_commands(ctx), *(name for name in added if "." not in name and name not in self.commands)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is None and (name := _prefix(ctx) + cmd_name) in COMMANDS.names():
            return _made(cmd_name, COMMANDS.load(name, "clawctl"))
        if command is None and ctx.parent is None:
            near = [f"did you mean {name}?" for name in get_close_matches(cmd_name, self.list_commands(ctx), n=1)]
            for fix in [ELSEWHERE[cmd_name]] if cmd_name in ELSEWHERE else near:
                raise ClawError(f"clawctl has no command {cmd_name}", fix, 2)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The root's commands in sections, each with its first sentence, which is read from the source: nothing is imported."""
        if ctx.parent is not None:
            return super().format_commands(ctx, formatter)
        installed = {name: point.value for name, point in points(COMMANDS.group).items() if "." not in name}
        other = {name: target for name, target in installed.items() if name not in COMMANDS.built_in}
        for title, names in (*SECTIONS.items(), ("Other", other)):
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, _summary(COMMANDS.built_in.get(name, target))) for name, target in names.items()])
        return None


def _summary(target: str) -> str:
    """The first sentence of the help of `module:function` or `module:app`; "" if it cannot be read."""
    module, _, attribute = target.partition(":")
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.FunctionDef) and node.name == attribute:
            text = " ".join((ast.get_docstring(node) or "").split())
            return text.partition(". ")[0].removesuffix(".") + "."
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == attribute:
            options = {option.arg: option.value for option in node.value.keywords} if isinstance(node.value, ast.Call) else {}
            return str(ast.literal_eval(options["help"])) if "help" in options else ""
    return ""


def _prefix(ctx: Any) -> str:
    return "" if ctx.parent is None else f"{_called(ctx).replace(' ', '.')}."


def _made(name: str, added: Callable[..., Any] | typer.Typer) -> Any:
    """The command of a registered function or app."""
    app = added
    if not isinstance(app, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name=name)(added)
    app.rich_markup_mode = None
    for registered in app.registered_commands:
        registered.cls = Command
    is_group = isinstance(added, typer.Typer) and (name in COMMANDS.built_in or len(app.registered_commands) > 1)
    command: Any = typer.main.get_group(app) if is_group else typer.main.get_command(app)
    command.name = name
    return command


class Command(TyperCommand):
    """A command that translates options of other systems, and checks the environment before it starts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        from clawctl.config.environment import is_rank, options_from_environment, warning_of_variables

        command = _called(ctx)
        ours = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        ours |= set(self.get_help_option_names(ctx))
        takes_value = {name for parameter in self.params for name in parameter.opts if not getattr(parameter, "is_flag", False)}
        if ctx.resilient_parsing or {*args} & {*self.get_help_option_names(ctx)}:
            return super().parse_args(ctx, args)
        given, settings, refused = understand(command, args, ours, takes_value, _homes), dict[str, list[str]](), dict[str, str]()
        for name, options in options_from_environment(command).items():
            try:
                settings[name] = understand(command, options, ours, takes_value, _homes)
            except ClawError as error:
                refused[name] = error.fix
        warning = warning_of_variables(command, refused)
        left = super().parse_args(ctx, [*itertools.chain(*settings.values()), *given])  # an option of the command line is the last
        followed = "; ".join(f"{name} ({' '.join(options)})" for name, options in settings.items())
        if not (followed or warning) or is_rank():
            return left
        from rich.console import Console
        from rich.markup import escape

        for line in (followed and f"these variables set options: {followed}", warning):
            if line:
                Console(stderr=True, soft_wrap=True).print(f"[yellow]clawctl:[/yellow] {escape(line)}")
        return left


def _homes() -> dict[str, list[str]]:
    """The commands that have each option, by the option's name."""
    homes: dict[str, list[str]] = {}
    for name in COMMANDS.built_in:
        for parameter in _made(name, COMMANDS.load(name, "clawctl")).params:
            for option in {*parameter.opts, *parameter.secondary_opts}:
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
    command: str,
    arguments: Sequence[str],
    ours: set[str],
    takes_value: set[str],
    homes: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> list[str]:
    """`arguments` with foreign options translated. `homes` gives the commands that have each option.

    Raises ClawError (exit code 2) for a refused or unknown option.
    """
    translated, rest, foreign = list[str](), list(arguments), None
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*translated, word, *rest]
        if name in ours or not name.startswith("--"):
            translated.append(word)
            if name in takes_value and not equals and rest:
                translated.append(rest.pop(0))
            continue
        if foreign is None:
            from clawctl.config.explaining import options_elsewhere

            foreign = options_elsewhere(command)
        option = foreign.get(name.replace("_", "-"))
        if option is None:
            raise _unknown(command, name, ours, homes, foreign)
        if option.takes_value and not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        now = option.is_now(value)
        if now is None:
            raise ClawError(f"clawctl {command} has no option {name}", option.instead, 2)
        translated += () if any(given.partition("=")[0] in option.unless for given in arguments) else now
    return translated


def _unknown(
    command: str, name: str, ours: set[str], homes: Callable[[], Mapping[str, Sequence[str]]], foreign: "Mapping[str, Option]"
) -> ClawError:
    """The error for an unknown option. It suggests a similar option, the recipe key, or the command that has the option."""
    from clawctl.config import Recipe, known_keys
    from clawctl.config.explaining import equivalent

    problem, options = f"clawctl {command} has no option {name}", [option for option in ours if option.startswith("--")]
    home = next(iter(homes().get(name, ())), None)  # if a command has exactly this option, no similar one is suggested
    if home is None and (near := get_close_matches(name, [*options, *foreign], n=1, cutoff=0.75)):
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
    if near := get_close_matches(name, options, n=1):
        return ClawError(problem, f"did you mean {near[0]}?", 2)
    return ClawError(problem, f"clawctl {command} --help lists all options", 2)
