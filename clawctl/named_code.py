"""Runs code from a recipe only if the user who starts the stage named it, as an option or in a recipe outside the run.

Other users may be able to write `RUN/recipe.yaml`. Code that it names runs only if the same user named it before, for this run on
this machine. The record is in the user's own folder. Code inside the run directory never runs.
"""

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import HARNESS_PREFIXES, Recipe, SuiteConfig
from clawctl.config.environment import name_code_for_stages, names_code_from_up, state_folder
from clawctl.errors import ClawError
from clawctl.registry import is_file

# file.py:name, or the name of an implementation, which is not code
_SEAMS = ("train.backend", "eval.suites", "serve.engine", "play.env", "privacy.finders")
_FILES = (*_SEAMS, "train.custom_loss", "judge.custom_rm")  # file.py:name
_COMMANDS = ("serve.engine_python", "serve.engine_args")  # a program, and arguments that may import code
_ALSO_RUN_BY = {"judge.custom_rm": ("eval",), "privacy.finders": ("serve", "collect", "play")}  # the suite `own` calls the judge
# Options of environments that name a program or code, set the files it may read, or confine it.
_OPTIONS = ("browser", "code", "command", "defines", "harness", "python", "sandbox", "see", "taskset", "variables")


def check_named_code(stage: str, root: Path, resolved: Recipe, recipe: Path | None, settings: dict[str, Any]) -> None:
    """Check the code that the recipe names for this stage. `resolved` is the result of `load_recipe` for the recipe and the
    `settings` from the command line. Raises ClawError (exit code 2) if the user has not named that code."""
    root = root.resolve()
    given = {key for key, value in settings.items() if value is not None}
    is_outside = recipe is not None and not recipe.resolve().is_relative_to(root)
    for key in (*_FILES, *_COMMANDS):
        for value in _values(resolved, key):
            _check(stage, root, key, value, is_outside or key in given)
    typed = _code_in(settings.get("play.options") or {})
    for value in _code_in(resolved.play.options):
        _check(stage, root, "play.options", value, is_outside or value in typed)


def _check(stage: str, root: Path, key: str, value: Any, is_named: bool) -> None:
    """`is_named`: the user who starts this stage named the code. It is then recorded."""
    runs_it = stage in (key.split(".")[0], "up", *_ALSO_RUN_BY.get(key, ()))
    if runs_it and isinstance(value, str) and _path(key, value).is_relative_to(root):
        raise ClawError(
            f"{key} names {value}, which is inside the run directory", "move the code out of it, because others may write there", 2
        )
    mark = hashlib.sha256(orjson.dumps([str(root), key, value])).hexdigest()
    if is_named:
        _record_mark(mark)
        if stage == "up":
            name_code_for_stages(mark)
    elif runs_it and not names_code_from_up(mark) and not _is_kept(mark):
        raise ClawError(
            f"{root / 'recipe.yaml'} names code, {key}: {value}, but you have not allowed it for this run on this machine "
            f"({_folder() or 'the home folder'} has no record of it)",
            "to allow it, pass it as an option or in a recipe outside the run (--recipe FILE); a job with another home folder "
            "must do so each time or set XDG_STATE_HOME; otherwise delete the line",
            2,
        )


def _values(recipe: Recipe, key: str) -> list[Any]:
    """The code that a key names: one value, or each file in a list. The name of an engine is not code."""
    section, name = key.split(".")
    value = getattr(recipe, section)[name]
    if key == "eval.suites":
        return [code for suite in value for code in _code_of(suite)]
    values = value if key == "privacy.finders" else [value]
    return [code for code in values if code and (key not in _SEAMS or is_file(code))]


def _code_of(suite: SuiteConfig) -> list[str]:
    """The code that a suite names: its own file, an option of an environment, a task of another program, or a folder of tasks."""
    prefix = next((prefix for prefix in HARNESS_PREFIXES if suite.name.startswith(prefix)), None)
    if prefix is None:
        return [suite.name] * is_file(suite.name) + _code_in(suite.options)
    task, folder = suite.name.removeprefix(prefix), suite.options.get("include_path")
    return [task.split("@")[0]] * (".py" in task or os.sep in task) + [str(folder)] * (folder is not None)


def _code_in(options: Mapping[str, Any]) -> list[str]:
    """Values of environment options that name code to run or decide what a program can reach."""
    given = [options[name] for name in _OPTIONS if options.get(name)]
    return [value if isinstance(value, str) else orjson.dumps(value, default=str).decode() for value in given]


def _path(key: str, value: str) -> Path:
    """The file part of `file.py:name`, or of a file without a name."""
    return Path((value.rpartition(":")[0] or value) if key in _FILES else value).resolve()


def _folder() -> Path | None:
    """The folder of these records; None if this user has no home folder."""
    folder = state_folder()
    return None if folder is None else folder / "named-code"


def _is_kept(mark: str) -> bool:
    folder = _folder()
    return folder is not None and os.path.isfile(folder / mark)  # also False if the file cannot be accessed


def _record_mark(mark: str) -> None:
    """Record the code. If recording fails, stages that are started later without the recipe refuse the code; stages of `up` do
    not."""
    folder = _folder()
    if folder is not None:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            (folder / mark).touch(mode=0o600)
