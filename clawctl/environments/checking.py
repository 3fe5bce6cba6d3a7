"""`clawctl play --check`: which tasks of a folder or package can be played here, and whether their verdicts hold."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from clawctl.environments import ENVIRONMENTS, create
from clawctl.errors import ClawError
from clawctl.printing import answers, print_json
from clawctl.registry import is_file

Found = Literal["playable", "needs an image", "verdict cannot be trusted", "oracle fails", "no-op passes", "not playable"]
_OPTION = "play --check"


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
    is_named = place in ENVIRONMENTS.names() or is_file(place)
    for name in [place] if is_named else ENVIRONMENTS.names():
        made = ENVIRONMENTS.load(name, _OPTION)
        read = getattr(made, "check_place", None)
        checked = read(str(options.get("path", "")) if is_named else place, options) if read is not None else None
        if checked is not None:
            return list(checked)
    if is_named:
        return [check_environment(place, made, options)]
    cure = "name a folder of Harbor tasks, a file of rows as in SWE-bench, a taskset of verifiers, or a server of OpenEnv"
    raise ClawError(f"{_OPTION}: there are no tasks in {place}", cure, 2)


def check_environment(name: str, made: Any, options: Mapping[str, Any]) -> CheckedTask:
    """Create the environment and draw a task."""
    try:
        tasks = create(made, name, _OPTION, options).tasks("train", 1, 0)
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
