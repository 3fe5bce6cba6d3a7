"""Options of other systems, which are translated, or refused with a hint at clawctl's equivalent."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rich.console import Console
from rich.markup import escape
from typer.core import TyperCommand

from clawctl.config import Recipe, known_keys, warning_of_variables
from clawctl.config.foreign_keys import find_elsewhere
from clawctl.errors import ClawError


@dataclass(frozen=True, slots=True)
class Option:
    """An option of another system.

    `is_now` returns the equivalent command-line words for its value. If it returns None, the option is refused, and `instead` is
    the fix.
    """

    is_now: Callable[[str], Sequence[str] | None]
    instead: str
    takes_value: bool = True


def _name(own: str) -> Option:
    """An option that differs in its name only."""
    return Option(lambda value: (own, value), f"use {own}")


def _option(name: str) -> Option:
    """An option that clawctl passes to the environment."""
    return Option(lambda value: ("--option", f"{name}={value}"), f"use --option {name}=VALUE")


def _recipe(key: str) -> Option:
    return _refused(f"set {key} in the recipe")


def _refused(instead: str, takes_value: bool = True) -> Option:
    return Option(lambda value: None, instead, takes_value)


def _flag(instead: str, *words: str) -> Option:
    """A switch that is always on, or that is equivalent to `words`."""
    return Option(lambda value: words, instead, takes_value=False)


def _engine(value: str) -> Sequence[str] | None:
    engines = {"vllm": "vllm", "hf": "transformers", "transformers": "transformers"}
    return ("--engine", engines[value]) if value in engines else None


def _no_resume(value: str) -> Sequence[str] | None:
    return () if value in ("", "auto", "latest", "checkpoint-latest", "true") else None


_RUN = _refused("all stages share one run directory: --run FOLDER")
_MODEL_OF_RUN = _refused("the run sets the model: use serve --model, or model.path in the recipe")
_ENVIRONMENT = _refused("environments are played by `clawctl collect --env NAME`")
_SCREENSHOTS = Option(
    lambda value: ("--option", "screenshots=true") if value == "playwright" else None,
    "screenshots are made by Playwright: use --option screenshots=true",
)
_NO_ENDPOINT = _refused("collect reads the captures of clawctl serve --intercept: --run FOLDER")
_ALWAYS = _flag("it is always on")
_ENGINES = "--engine vllm starts vLLM; for SGLang, start it yourself and pass --upstream URL --upstream-kind sglang"
_GOES_ON = "training always resumes from the newest checkpoint of --run; clawctl policies rollback goes back"

_PLAYING = {
    "--parallel-envs": _name("--parallel"),
    "--num-envs": _name("--parallel"),
    "--num-parallel-envs": _name("--parallel"),
    "--num-tasks": _name("--tasks"),
    "--num-rollouts-per-prompt": _name("--attempts"),
    "--n-samples-per-prompt": _name("--attempts"),
    "--max-steps": _option("max_turns"),
    "--max-turns": _option("max_turns"),
    "--tools-config": _option("tools"),
    "--swe-bench-path": _option("path"),
    "--screenshot-backend": _SCREENSHOTS,
    "--use-screenshots": _flag("use --option screenshots=true", "--option", "screenshots=true"),
}
_FOLDERS = {f"--{name}": _RUN for name in ("rl-buffer-dir", "output-dir", "record-dir", "data-dir", "input-dir", "rollout-dir")}

OPTIONS: dict[str, dict[str, Option]] = {
    "serve": {
        "--backend": Option(_engine, _ENGINES),
        "--gpu-ids": _name("--gpus"),
        "--rollout-gpus": _name("--gpus"),
        "--proxy-host": _name("--host"),
        "--proxy-port": _name("--port"),
        "--model-name": _name("--model"),
        "--api-key": _refused("other users can see a key on the command line: set CLAWCTL_API_KEY, or serve.api_key in the recipe"),
        "--served-model-name": _recipe("model.name"),
        "--max-concurrent-sessions": _refused("the number of sessions is not limited; serve.limits in the recipe limits requests"),
        "--lora": _refused("train --lora creates an adapter, and serve loads it automatically", takes_value=False),
        "--env": _ENVIRONMENT,
    },
    "collect": {
        "--api-endpoint": _NO_ENDPOINT,
        "--endpoint": _NO_ENDPOINT,
        "--session-aware": _ALWAYS,
        "--multi-turn": _ALWAYS,
        "--max-concurrent-sessions": _refused("the number of sessions is not limited; serve.limits in the recipe limits requests"),
        "--session-timeout": _recipe("collect.session_timeout_s"),
        "--task-type": _name("--env"),
        **_PLAYING,
    },
    "play": {**_PLAYING},
    "judge": {
        "--judge-model": _name("--model"),
        "--judge-endpoint": _name("--endpoint"),
        "--api-endpoint": _name("--endpoint"),
        "--num-judges": _name("--votes"),
        "--prm-m": _name("--votes"),
        "--consensus-threshold": _name("--threshold"),
        "--prm-path": _name("--prm"),
        "--prm-model-path": _name("--prm"),
        "--hint-extraction-model": _recipe("judge.hint_model"),
        "--prm-temperature": _recipe("judge.temperature"),
        "--prm-max-tokens": _recipe("judge.max_tokens"),
        "--api-key": _refused("other users can see a key on the command line: set judge.api_key in the recipe"),
        "--env": _ENVIRONMENT,
    },
    "train": {
        "--lora": _flag("--lora-rank N sets the rank", "--lora"),
        "--lora-r": _name("--lora-rank"),
        "--gpu-ids": _name("--gpus"),
        "--train-gpus": _name("--gpus"),
        "--learning-rate": _name("--lr"),
        "--resume": Option(_no_resume, _GOES_ON),
        "--resume-from-checkpoint": Option(_no_resume, _GOES_ON),
        "--batch-size": _name("--batch-turns"),
        "--rollout-batch-size": _name("--batch-turns"),
        "--global-batch-size": _name("--batch-turns"),
        "--model-path": _MODEL_OF_RUN,
        "--model": _MODEL_OF_RUN,
        "--model-name": _MODEL_OF_RUN,
        "--nproc-per-node": _refused("use --gpus 2,3 or --processes N, or torchrun --nproc-per-node N -m clawctl train"),
        "--num-gpus": _refused("use --gpus with GPU numbers, as in 0,1, or with all"),
        "--env": _ENVIRONMENT,
    },
    "eval": {
        "--model-path": _refused(
            "use --version N to measure a version of the run, or eval.endpoint in the recipe for another server"
        ),
        "--env": _ENVIRONMENT,
    },
    "up": {"--recipe": _refused("pass the recipe as an argument: clawctl up RECIPE"), "--env": _ENVIRONMENT},
    "inspect sessions": {"--dir": _name("--run")},
}
for _command in ("serve", "collect", "judge", "train", "eval", "up"):
    OPTIONS[_command] = {**_FOLDERS, **OPTIONS[_command]}


class Command(TyperCommand):
    """A command that translates options of other systems, and checks the environment before it starts."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        command = _called(ctx)
        own = {name for parameter in self.params for name in (*parameter.opts, *parameter.secondary_opts)}
        own |= set(self.get_help_option_names(ctx))
        takes_value = {name for parameter in self.params for name in parameter.opts if not getattr(parameter, "is_flag", False)}
        left = super().parse_args(ctx, understand(command, args, own, takes_value, _homes(ctx)))
        if warning := warning_of_variables(command):
            Console(stderr=True, soft_wrap=True).print(f"[yellow]clawctl:[/yellow] {escape(warning)}")
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
    known, rest = list[str](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word == "--":
            return [*known, word, *rest]
        if name in own or not name.startswith("--"):
            known.append(word)
            if name in takes_value and not equals and rest:
                known.append(rest.pop(0))
            continue
        option = OPTIONS.get(command, {}).get(name.replace("_", "-"))
        if option is None:
            raise _unknown(command, name, own, homes)
        if option.takes_value and not equals and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        now = option.is_now(value)
        if now is None:
            raise ClawError(f"clawctl {command} has no option {name}", option.instead, 2)
        if now == ("--lora",):
            now = () if any(one.partition("=")[0] in ("--lora-rank", "--lora-r") for one in words) else ("--lora-rank", _rank())
        known += now
    return known


def _rank() -> str:
    from clawctl.config import LoraConfig

    return str(LoraConfig().rank)


def _unknown(command: str, name: str, own: set[str], homes: Mapping[str, Sequence[str]] | None) -> ClawError:
    """The error for an unknown option. It suggests a similar option, the recipe key, or the command that has the option."""
    problem, known = f"clawctl {command} has no option {name}", [option for option in own if option.startswith("--")]
    foreign = OPTIONS.get(command, {})
    home = next(iter((homes or {}).get(name, ())), None)  # if a command has exactly this option, no similar one is suggested
    if home is None and (near := get_close_matches(name, [*known, *foreign], n=1, cutoff=0.75)):
        return ClawError(problem, f"did you mean {near[0]}?", 2)
    key = name.removeprefix("--").replace("-", "_")
    here = find_elsewhere([key])
    if here is not None and here.dropped is not None:
        return ClawError(problem, here.dropped.replace("`", ""), 2)
    if here is not None and here.key is not None:
        return ClawError(problem, f"set {here.key} in the recipe: docs/recipes.md", 2)
    if keys := [one for one in known_keys(Recipe) if one.rpartition(".")[2] == key]:
        of_command = [one for one in keys if one.startswith(f"{command}.")]
        return ClawError(problem, f"set {(of_command or keys)[0]} in the recipe: docs/recipes.md", 2)
    if home is not None:
        return ClawError(problem, f"clawctl {home} has it: clawctl {home} --help", 2)
    if near := get_close_matches(name, known, n=1):
        return ClawError(problem, f"did you mean {near[0]}?", 2)
    return ClawError(problem, f"clawctl {command} --help lists all options", 2)
