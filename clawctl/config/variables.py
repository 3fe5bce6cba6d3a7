"""Environment variables: the ones that each command uses, and the equivalents of the others."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from clawctl.errors import ClawError

_ALL = ("serve", "collect", "judge", "train", "eval", "up")


@dataclass(frozen=True, slots=True)
class Variable:
    """One line of `variables.txt`, which explains the fields."""

    effect: str
    meaning: str  # what it sets, or what to set instead
    commands: tuple[str, ...] = _ALL
    option: str | None = None  # the variable stands for this option with its value; "": its value is a text with options


def _read_variables(table: Path) -> dict[str, Variable]:
    variables = {}
    for line in table.read_text("utf-8").splitlines():
        if not line.startswith("#"):
            name, effect, commands, option, meaning = (part.strip() for part in line.split("|"))
            used_by = _ALL if commands == "all" else tuple(commands.split())
            variables[name] = Variable(effect, meaning, used_by, option.replace("*", "") if option else None)
    return variables


_ON = ("1", "true", "yes", "on")
_BY_NUMBER = "give GPU numbers, as in 2,3 (a single GPU with a comma: 2,)"
VARIABLES = _read_variables(Path(__file__).parent / "variables.txt")

# Set by clawctl's processes, scripts and examples, or read by OpenClaw itself, so there is no warning.
_QUIET = frozenset([
    "CLAWCTL_UP", "CLAWCTL_NAMED_CODE", "CLAWCTL_LAUNCH", "CLAWCTL_MULTIPLEX_FD", "CLAWCTL_VLLM_PYTHON", "CLAWCTL_URL",
    "CLAWCTL_KEY", "OPENCLAW_PROFILE",
])  # fmt: skip
_OPENCLAWS_OWN = ("OPENCLAW_GATEWAY_", "OPENCLAW_DISABLE_", "OPENCLAW_NO_", "OPENCLAW_SKIP_")

# The first variable that is set takes precedence. All but the first are names from other systems.
SAME = {
    "MODEL": ("CLAWCTL_MODEL", "OPENCLAW_MODEL", "MODEL_PATH", "BASE_MODEL_PATH"),
    "HOST": ("CLAWCTL_HOST", "OPENCLAW_HOST"),
    "PORT": ("CLAWCTL_PORT", "OPENCLAW_PORT"),
    "API_KEY": ("CLAWCTL_API_KEY", "OPENCLAW_API_KEY"),
    "UPSTREAM_KEY": ("CLAWCTL_UPSTREAM_KEY", "OPENCLAW_UPSTREAM_KEY"),
    "RUN_CACHE": ("CLAWCTL_RUN_CACHE",),
    "MODEL_CACHE": ("CLAWCTL_MODEL_CACHE",),
    "TRAIN_GPUS": ("TRAIN_GPUS",),
    "ROLLOUT_GPUS": ("ROLLOUT_GPUS",),
}


def first_set(name: str, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the variable that sets `name` and its value, or None. Raises ClawError (exit code 2) if names from other systems
    disagree.
    """
    values = {variable: environment[variable] for variable in SAME[name] if environment.get(variable)}
    foreign = [variable for variable in values if not variable.startswith("CLAWCTL_")]
    if len(foreign) == len(values) and len({values[variable] for variable in foreign}) > 1:
        raise ClawError(
            f"{' and '.join(foreign)} differ in the environment", f"unset all but one, or set {SAME[name][0]} instead", 2
        )
    return next(iter(values.items()), None)


def check_variables(command: str, environment: Mapping[str, str], refused: Mapping[str, str] = MappingProxyType({})) -> str | None:
    """Return a one-line warning about variables that clawctl ignores, or None. `refused`: further variables that are refused.

    Raises ClawError (exit code 2) if `command` must not ignore a variable.
    """
    command = "up" if command == "start" else command
    ours = {name: _instead(name, variable, command) for name, variable in VARIABLES.items() if environment.get(name)}
    refused = {name: instead for name, instead in ours.items() if instead and not _is_off(name, environment)} | {**refused}
    warnings = [*_warned(command, environment), *_unknown(environment), *_overruled(command, environment)]
    ignored = f"the environment sets variables that clawctl ignores: {'; '.join(warnings)}" if warnings else None
    if refused:
        names = ", ".join(refused)
        are, them = ("is", "it") if len(refused) == 1 else ("are", "them")
        instead = "; ".join(refused.values() if len(refused) == 1 else (f"{name}: {fix}" for name, fix in refused.items()))
        fix = f"in clawctl: {instead}; then unset {names}"
        raise ClawError(f"{names} {are} set, but clawctl does not use {them}", f"{fix}; {ignored}" if ignored else fix, 2)
    return ignored


def _instead(name: str, variable: Variable, command: str) -> str | None:
    """What to write instead of a variable that `command` refuses, or None."""
    if variable.effect == "refused" and command in variable.commands:
        return variable.meaning
    if command == "up" and variable.option is not None:  # its stages have their settings from the recipe
        return f"{variable.meaning} is a setting of the recipe"
    return None


def _is_off(name: str, environment: Mapping[str, str]) -> bool:
    """Whether the variable is a switch that is off, which is clawctl's default."""
    switches = ("USE_LORA", "USE_GRADIENT_CHECKPOINTING", "VALUE_CLIP")
    switch = "USE_LORA" if name in ("LORA_RANK", "LORA_ALPHA", "LORA_DROPOUT") else name
    return switch in switches and environment.get(switch, "").lower() in ("0", "false", "no", "off")


def options_of_variables(command: str, environment: Mapping[str, str]) -> dict[str, list[str]]:
    """The options that variables of other systems set for `command`, by the variable's name. Raises ClawError (exit code 2)."""
    if command == "train" and environment.get("GRAD_ACCUM_STEPS") and not environment.get("BATCH_SIZE"):
        raise ClawError("GRAD_ACCUM_STEPS is set without BATCH_SIZE", "`train --batch-turns` is the whole step; unset it", 2)
    options: dict[str, list[str]] = {}
    for name, variable in VARIABLES.items():
        value = environment.get(name, "").strip()
        if not value or variable.option is None or command not in variable.commands or _is_off(name, environment):
            continue
        if not variable.option:
            try:
                options[name] = shlex.split(value)
            except ValueError as error:
                raise ClawError(f"{name} is {value!r}, which is not a list of options", f"correct or unset {name}", 2) from error
        elif name == "USE_LORA":
            if value.lower() not in _ON:
                raise ClawError(f"{name} is {value!r}, which is neither true nor false", f"set {name}=true, or unset it", 2)
            options[name] = [variable.option]
        else:
            options[name] = [variable.option, _step_size(value, environment) if name == "BATCH_SIZE" else value]
    return options


def _step_size(size: str, environment: Mapping[str, str]) -> str:
    """The turns of a whole step. Raises ClawError (exit code 2)."""
    times = environment.get("GRAD_ACCUM_STEPS") or "1"
    if not (size.isdigit() and times.isdigit()):
        raise ClawError(f"BATCH_SIZE is {size!r} and GRAD_ACCUM_STEPS {times!r}", "set both to whole numbers, or unset them", 2)
    return str(int(size) * int(times))


def _warned(command: str, environment: Mapping[str, str]) -> Iterator[str]:
    for name, variable in VARIABLES.items():
        if environment.get(name) and variable.effect == "warned" and command in variable.commands:
            yield f"{name} (in clawctl: {variable.meaning})"


def _unknown(environment: Mapping[str, str]) -> Iterator[str]:
    ours = [name for name in VARIABLES if name.startswith(("OPENCLAW_", "CLAWCTL_"))]
    for name in sorted(environment):
        is_known = name in VARIABLES or name in _QUIET or name.startswith(_OPENCLAWS_OWN)
        if name.startswith(("OPENCLAW_", "CLAWCTL_")) and environment[name] and not is_known:
            matches = get_close_matches(name, ours, n=1)
            yield f"{name} (did you mean {matches[0]}?)" if matches else f"{name} (unknown: see `clawctl docs coming-from`)"


def _overruled(command: str, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield variables of other systems that differ from clawctl's own."""
    for names in SAME.values():
        value = environment.get(names[0])
        for name in names[1:]:
            if value and environment.get(name) not in (None, "", value) and command in VARIABLES[name].commands:
                yield f"{name} ({names[0]} is set as well)"


def asks_for_debug(environment: Mapping[str, str]) -> bool:
    """Whether OPENCLAW_DEBUG is on."""
    return environment.get("OPENCLAW_DEBUG", "").lower() in _ON


def gpu_numbers(name: str, text: str) -> list[int]:
    """Parse `2,3` as numbers. A single number could be a count and is rejected. Raises ClawError (exit code 2)."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if "," not in text or not parts or not all(part.isdigit() for part in parts):
        raise ClawError(f"{name} is {text!r}, which is not a list of GPUs", _BY_NUMBER, 2)
    return [int(part) for part in parts]
