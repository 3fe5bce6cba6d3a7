"""`clawctl play --check`: which tasks of a folder or package can be played here, and whether their verdicts hold."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from clawctl.environments import ENVIRONMENTS, create, draw_tasks
from clawctl.errors import ClawError
from clawctl.printing import answers, print_json
from clawctl.registry import is_file

Found = Literal["playable", "needs an image", "verdict cannot be trusted", "oracle fails", "no-op passes", "not playable"]
_OPTION = "play --check"
_CURE = "name a folder of Harbor tasks, a file of rows as in SWE-bench, a taskset of verifiers, or a server of OpenEnv"
_FILES = (".json", ".jsonl", ".parquet", ".csv", ".txt", ".toml", ".yaml")


@dataclass(frozen=True, slots=True)
class CheckedTask:
    """What was found about one task."""

    task: str
    found: Found
    reason: str = ""  # why it is not playable, or what its verdict does


def check(place: str, options: Mapping[str, Any]) -> list[CheckedTask]:
    """Check the tasks of a folder, file, package, server or environment. Raises ClawError (exit code 2) if nothing reads it.

    An environment that reads other people's tasks has a function `check_place(place, options)`, which returns None for a place that
    is not in its format. With the name of an environment, the place is its option `path`.
    """
    is_named, path = place in ENVIRONMENTS.names() or is_file(place), Path(place).expanduser()
    if not is_named and not path.exists() and (place.startswith(("/", ".", "~")) or path.suffix in _FILES):
        raise ClawError(f"{_OPTION}: there is no file or folder {place}", _CURE, 2)
    if path.exists() and not os.access(path, os.R_OK | os.X_OK if path.is_dir() else os.R_OK):
        raise ClawError(f"{_OPTION}: {place} may not be read by this user", f"run `chmod -R u+rX {place}` as its owner", 2)
    for name in [place] if is_named else ENVIRONMENTS.names():
        made = ENVIRONMENTS.load(name, _OPTION)
        read = getattr(made, "check_place", None)
        checked = read(str(options.get("path", "")) if is_named else place, options) if read is not None else None
        if checked:
            return list(checked)
        if checked is not None:
            raise ClawError(f"{_OPTION}: {place} is empty: it has no row and no task", _CURE, 2)
    if is_named:
        return [check_environment(place, made, options)]
    raise ClawError(f"{_OPTION}: there are no tasks in {place}", _CURE, 2)


def check_environment(name: str, made: Any, options: Mapping[str, Any]) -> CheckedTask:
    """Create the environment and draw a task."""
    try:
        tasks = draw_tasks(create(made, name, _OPTION, options), name, "train", 1)
    except ClawError as error:
        return CheckedTask(name, "not playable", f"{error.problem} -> {error.fix}")
    return CheckedTask(name, "playable") if tasks else CheckedTask(name, "not playable", "it has no tasks")


def show(checked: Sequence[CheckedTask], as_json: bool) -> None:
    sums = Counter(task.found for task in checked)
    if as_json:
        print_json({"tasks": [asdict(task) for task in checked], "sums": dict(sums)})
        return
    table = Table()
    for name in ("task", "found", "reason"):
        table.add_column(name, overflow="fold")
    for task in checked:
        table.add_row(Text(task.task), Text(task.found), Text(task.reason))
    answers().print(table, Text(", ".join(f"{count} {verdict}" for verdict, count in sums.most_common())), sep="\n")
