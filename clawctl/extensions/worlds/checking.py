"""Checks other people's tasks: each is set up and graded without a model, after doing nothing and after its own solution."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from clawctl.at_once import at_once
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import SandboxFailed
from clawctl.extensions.worlds.verdicts import TRUSTED, Graded

Spec = TypeVar("Spec")
_AT_ONCE = 2
_MISSING = re.compile(r"No module named '([\w.]+)'")


class NeedsImage(ClawError):
    """The task needs an image, because a sandbox without images cannot provide its initial state."""


def left_out(name: str, error: ClawError) -> CheckedTask:
    return CheckedTask(
        name, "needs an image" if isinstance(error, NeedsImage) else "not playable", f"{error.problem} -> {error.fix}"
    )


def check_each(
    tasks: Sequence[Spec],
    name: Callable[[Spec], str],
    has_solution: Callable[[Spec], bool],
    solve: Callable[[Spec, str | None], Awaitable[Graded]],
) -> list[CheckedTask]:
    """Check each task. `solve` grades a task after commands ("": none) or after its solution (None)."""

    async def check(task: Spec) -> CheckedTask:
        return await _check(task, name(task), has_solution(task), solve)

    return asyncio.run(at_once(_AT_ONCE, check, tasks))


async def _check(task: Spec, name: str, has_solution: bool, solve: Callable[[Spec, str | None], Awaitable[Graded]]) -> CheckedTask:
    try:
        without = await solve(task, "")
        if without.value > 0 and without.verdict == TRUSTED:
            return CheckedTask(name, "no-op passes", f"the reward is {without.value:g} although nothing was done")
        if not has_solution:
            return CheckedTask(name, "playable", "it has no solution to try")
    except ClawError as error:
        return left_out(name, error)
    except SandboxFailed as error:
        return CheckedTask(name, "not playable", str(error))
    try:
        solved = await solve(task, None)
    except (ClawError, SandboxFailed) as error:
        return CheckedTask(name, "oracle fails", str(error))
    if solved.value < 1 and (module := _missing_module(task, solved.log)) is not None:
        reason = f"its tests need the module {module}, which the sandbox does not have"
        return CheckedTask(name, "needs an image", f"{reason} -> name an image that has it in the option sandbox")
    if solved.value < 1:
        return CheckedTask(name, "oracle fails", f"the reward is {solved.value:g}: {solved.log.strip()[-300:]}")
    if solved.verdict != TRUSTED:
        return CheckedTask(name, "verdict cannot be trusted", solved.log.strip().splitlines()[0][:300])
    return CheckedTask(name, "playable")


def _missing_module(task: object, log: str) -> str | None:
    """The module that the tests of a solved task could not import, if it is none of the task's own."""
    files = {**getattr(task, "files", {}), **getattr(task, "seed", {}), **getattr(task, "solution", {})}
    parts = {part for path in files for part in (*Path(path).parts[:-1], Path(path).stem)}
    missing = (match[1].split(".")[0] for match in _MISSING.finditer(log))
    return next((name for name in missing if name not in parts), None)
