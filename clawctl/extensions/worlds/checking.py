"""Checks other people's tasks: each is set up and graded without a model, after doing nothing and after its own solution."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from clawctl.at_once import at_once
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.sandbox import SandboxFailed
from clawctl.extensions.worlds.verdicts import TRUSTED, Graded
from clawctl.run.directory import publish_bytes

Spec = TypeVar("Spec")
_AT_ONCE = 2
_MISSING = re.compile(r"No module named '([\w.]+)'")


class NeedsImage(ClawError):
    """The task needs an image, because a sandbox without images cannot provide its initial state."""


def left_out(name: str, error: ClawError) -> CheckedTask:
    return CheckedTask(
        name, "needs an image" if isinstance(error, NeedsImage) else "not playable", f"{error.problem} -> {error.fix}"
    )


class Findings:
    """What was found about the tasks of others, each checked once: kept in memory and, once `folder` is set, in files."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._found = dict[str, CheckedTask]()
        self._checking = dict[str, asyncio.Task[CheckedTask | None]]()

    async def of(self, key: str, check: Callable[[], Awaitable[CheckedTask]]) -> CheckedTask | None:
        """What was found about the task of this key. None if the machine has no sandbox; then the next call checks again."""
        key = sha256(key.encode()).hexdigest()[:16]
        if key not in self._found and self.folder is not None:
            with suppress(OSError, ValueError, TypeError):  # missing, or damaged: it is checked again
                self._found[key] = CheckedTask(**json.loads((self.folder / f"{key}.json").read_bytes()))
        if key not in self._found:
            if key not in self._checking:
                self._checking[key] = asyncio.create_task(self._check(key, check))
            return await asyncio.shield(self._checking[key])
        return self._found[key]

    async def _check(self, key: str, check: Callable[[], Awaitable[CheckedTask]]) -> CheckedTask | None:
        try:
            finding = await check()
        except (SandboxFailed, ClawError):
            return None
        finally:
            del self._checking[key]
        self._found[key] = finding
        if self.folder is not None:
            self.folder.mkdir(exist_ok=True)
            publish_bytes(self.folder / f"{key}.json", json.dumps(asdict(finding)).encode())
        return finding


def check_each(
    tasks: Sequence[Spec],
    name: Callable[[Spec], str],
    has_solution: Callable[[Spec], bool],
    solve: Callable[[Spec, str | None], Awaitable[Graded]],
) -> list[CheckedTask]:
    """Check each task. `solve` grades a task after commands ("": none) or after its solution (None)."""

    async def check(task: Spec) -> CheckedTask:
        try:
            return await check_task(task, name(task), has_solution(task), solve)
        except SandboxFailed as error:
            return CheckedTask(name(task), "not playable", f"{error} -> run `clawctl doctor`")

    return asyncio.run(at_once(_AT_ONCE, check, tasks))


async def check_task(
    task: Spec, name: str, has_solution: bool, solve: Callable[[Spec, str | None], Awaitable[Graded]]
) -> CheckedTask:
    """Grade a task after nothing was done, and after its solution. Raises SandboxFailed."""
    finding = partial(CheckedTask, name)
    try:
        without = await solve(task, "")
    except ClawError as error:
        return left_out(name, error)
    if without.value > 0 and without.verdict == TRUSTED:
        reason = f"the reward is {without.value:g} although nothing was done"
        return finding("no-op passes", f"{reason} -> let its tests fail before the task is solved")
    if not has_solution and without.cure:
        reason = f"{_shown(without)}, although nothing was done, and it has no solution that shows a verdict"
        return finding("not playable", f"{reason} -> {without.cure}")
    if not has_solution:
        return finding("playable", "it has no solution to try")
    try:
        solved = await solve(task, None)
    except ClawError as error:
        return finding("oracle fails", f"{error.problem} -> {error.fix}")
    if solved.value < 1 and (module := _missing_module(task, solved.log)) is not None:
        reason = f"its tests need the module {module}, which the sandbox does not have"
        return finding("needs an image", f"{reason} -> name an image that has it in the option sandbox")
    if solved.cure:
        is_always = "with and without its solution" if without.cure else "after its solution"
        return finding("not playable" if without.cure else "oracle fails", f"{_shown(solved)}, {is_always} -> {solved.cure}")
    if solved.value < 1:
        reason = f"the reward is {solved.value:g} after its solution: {_shown(solved)}"
        return finding("oracle fails", f"{reason} -> correct its solution or its tests, or what they need of this machine")
    if solved.verdict != TRUSTED:
        cure = "change its tests, or set accept_unverified to reward such verdicts"
        return finding("verdict cannot be trusted", f"{solved.log.strip().splitlines()[0][:300]} -> {cure}")
    return finding("playable")


def _shown(graded: Graded) -> str:
    """The log of a verdict in one line: its first line, and its last."""
    lines = [line.strip()[:200] for line in graded.log.splitlines() if line.strip()] or ["the tests printed nothing"]
    return f"{lines[0]} ({lines[-1]})" if len(lines) > 1 else lines[0]


def _missing_module(task: object, log: str) -> str | None:
    """The module that the tests of a solved task could not import, if it is none of the task's own."""
    files = {**getattr(task, "files", {}), **getattr(task, "seed", {}), **getattr(task, "solution", {})}
    parts = {part for path in files for part in (*Path(path).parts[:-1], Path(path).stem)}
    missing = (match[1].split(".")[0] for match in _MISSING.finditer(log))
    return next((name for name in missing if name not in parts), None)
