"""Code that a recipe names runs only if the person who starts the stage named it: on the command line or in a recipe of theirs.

`RUN/recipe.yaml` lies where others may write. What it names runs if the same user named the same for this run before on this
machine; that is kept in the user's own folder. Code that lies in the run directory itself never runs.
"""

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson

from clawctl.config import Recipe
from clawctl.errors import ClawError

_FILES = ("train.custom_loss", "judge.custom_rm")  # file.py:name
_COMMANDS = ("serve.engine_python", "serve.engine_args")  # a program, and what it may be told to import


def check_named_code(stage: str, root: Path, resolved: Recipe, recipe: Path | None, settings: dict[str, Any]) -> None:
    """`resolved`: what `load_recipe` made of the recipe and of `settings`, which the command line gave. Raises ClawError (exit code
    2) where it names code for this stage that its user did not name."""
    root = root.resolve()
    given = {key for key, value in settings.items() if value is not None}
    own = recipe is not None and not recipe.resolve().is_relative_to(root)
    for key in (*_FILES, *_COMMANDS):
        value = _value(resolved, key)
        if not value:
            continue
        runs_it = stage in (key.split(".")[0], "up")
        if runs_it and isinstance(value, str) and _path(key, value).is_relative_to(root):
            raise ClawError(f"{key} names {value}, which lies in the run directory", "keep code outside: others may write there", 2)
        mark = _folder() / hashlib.sha256(orjson.dumps([str(root), key, value])).hexdigest()
        if own or key in given:
            _keep(mark)
        elif runs_it and not mark.exists():
            raise ClawError(
                f"{root / 'recipe.yaml'} names code, {key}: {value}, and you have not named it for this run on this machine",
                "if you want it to run, give it in a recipe outside the run (--recipe FILE) or as an option; else delete the line",
                2,
            )


def _value(recipe: Recipe, key: str) -> Any:
    section, name = key.split(".")
    return getattr(getattr(recipe, section), name)


def _path(key: str, value: str) -> Path:
    """The file: `file.py:name`, or the file alone, which has one of the usual names."""
    return Path((value.rpartition(":")[0] or value) if key in _FILES else value).resolve()


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "clawctl" / "named-code"


def _keep(mark: Path) -> None:
    """Where it cannot be kept, the stages that are started without the recipe ask for it."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.touch(mode=0o600)
    except OSError:
        return
