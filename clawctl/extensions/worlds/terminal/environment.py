"""`terminal`: the agent works in a shell in a sandbox, and the task's tests decide whether it succeeded."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from clawctl.environments import EPISODE_S, Outcome, Split, Task
from clawctl.environments.checking import CheckedTask
from clawctl.errors import ClawError
from clawctl.extensions.worlds.agent import outcome_of, solved
from clawctl.extensions.worlds.checking import NeedsImage, check_each, check_task, left_out
from clawctl.extensions.worlds.harness import ShellEnvironment
from clawctl.extensions.worlds.sandbox import SPARE_S, Sandbox, SandboxKind, SandboxOver, kind_of, open_sandbox
from clawctl.extensions.worlds.sandbox.containers import Container
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.sandbox.probe import verify_sandbox
from clawctl.extensions.worlds.sandbox.tars import files_of, tar_of
from clawctl.extensions.worlds.splits import SHOWN, rows_of
from clawctl.extensions.worlds.terminal.dockerfile import SHARED
from clawctl.extensions.worlds.terminal.families import draw_tasks
from clawctl.extensions.worlds.terminal.harbor import HarborTask, read_tasks
from clawctl.extensions.worlds.verdicts import Graded, grade_files
from clawctl.extensions.worlds.verdicts.test_script import programs, run_script
from clawctl.run.endpoint import Endpoint


@dataclass(kw_only=True, eq=False, repr=False)
class Terminal(ShellEnvironment):
    """`path` is a folder of tasks in Harbor's format. A verdict is unverified if the tests ran text of the graded code beside
    themselves. The other options are those of `ShellEnvironment`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kind.has_own_files:
            cure = "use another kind of sandbox, or the environment swe or toolcall"
            raise ClawError(f"sandbox {self.kind.name}: tasks of `terminal` need /app and /tests, which it cannot provide", cure, 2)
        self._read = [] if self.path is None else read_tasks(Path(self.path).expanduser(), isinstance(self.kind, Container))
        self.episode_s = max((task.agent_s + 2 * task.verdict_s for task in self._read), default=EPISODE_S)
        self.show(self.tasks("train", self.examples, SHOWN), _solved)

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Check a folder of tasks in Harbor's format, or in that of terminal-bench before Harbor."""
        folder, bad = Path(place).expanduser(), list[tuple[Path, ClawError]]()
        if not place or not folder.is_dir():
            return None
        kind = read_kind(options.get("sandbox"))
        try:
            read = read_tasks(folder, isinstance(kind, Container), bad)
        except ClawError:
            return None
        return [left_out(path.name, error) for path, error in bad] + check_each(
            read, lambda task: task.name, lambda task: "solve.sh" in task.solution, partial(_solve_in, kind)
        )

    async def check(self, task: HarborTask) -> CheckedTask:
        await verify_sandbox(replace(task.limits, kind=self.kind))
        return await check_task(task, task.name, "solve.sh" in task.solution, partial(_solve_in, self.kind))

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        read = rows_of(self._read, lambda task: int(task.digest, 16), split, count, seed)
        return [Task(task.name, task, split) for task in (read if self._read else draw_tasks(split, count, seed, self.held_out))]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        spec = await in_image(task.spec, self.kind)
        await verify_sandbox(spec.limits)
        limits = replace(spec.limits, seconds=spec.agent_s + SPARE_S)
        async with self.agent.room(endpoint, spec.folder, limits, _fixed(spec)) as (sandbox, work):
            await prepare(sandbox, spec)
            worked = await work(spec.instruction, spec.agent_s)
            score = await finish(sandbox, spec)
        return outcome_of(spec.instruction, worked, score, self.steps, self.unverified)


def _solved(task: HarborTask) -> list[dict[str, Any]]:
    """The messages of an episode that runs the task's solution. A task without one has none."""
    lines = [line for line in task.solution.get("solve.sh", b"").decode().splitlines() if not line.startswith(("#!", "set -e"))]
    return solved(task.instruction, {"\n".join(lines): ""}) if lines else []


async def _solve_in(kind: SandboxKind, task: HarborTask, commands: str | None) -> Graded:
    return await solve(await in_image(task, kind), commands)


async def in_image(task: HarborTask, kind: SandboxKind) -> HarborTask:
    """The task, adapted to this kind of sandbox.

    If the task needs an image, its files and its folder come from the image. The image is built or pulled at the first episode.
    Raises ClawError.
    """
    if not isinstance(kind, Container) or (task.image, task.build, kind.image) == (None, None, None):
        return replace(task, limits=replace(task.limits, kind=kind))
    task_kind = kind.of_task(task.image, task.build)
    image = await asyncio.to_thread(task_kind.inspect)
    folder = task.folder or (image.folder if image is not None else None) or "/app"
    if folder in SHARED:
        problem = f"the task {task.name} works in {folder}, which cannot be its own"
        raise ClawError(problem, "set WORKDIR in its Dockerfile, or workdir in [environment], to a folder such as /app", 2)
    seed = task.seed or files_of(await asyncio.to_thread(task_kind.files, folder))
    return replace(task, folder=folder, seed=seed, limits=replace(task.limits, kind=task_kind))


async def prepare(sandbox: Sandbox, task: HarborTask) -> None:
    """Put the task's files into the sandbox and run its setup. Raises ClawError if a command of its Dockerfile fails."""
    await sandbox.put(tar_of(task.seed))
    sandbox.define(task.variables)
    for command in task.setup:
        ran = await sandbox.run(command, timeout=60)
        if ran.code != 0:
            problem = f"the task {task.name} cannot be set up: {command[:80]!r} ended with code {ran.code}: {ran.output[-200:]}"
            raise NeedsImage(problem, "install what it needs on this machine, or play it in a container (--option sandbox=podman)")


async def finish(sandbox: Sandbox, task: HarborTask) -> Graded:
    """Grade the current state of the sandbox. Ends the sandbox's processes."""
    variables = {**task.variables, **task.test_variables}
    return await grade_files(
        sandbox, lambda files: run_script(task.tests, files, task.folder, task.limits, task.verdict_s, variables, task.seed)
    )


async def solve(task: HarborTask, commands: str | None = None) -> Graded:
    """Grade without a model: after the task's solution, or after `commands` ("": no commands). Raises ClawError, SandboxFailed."""
    if commands is None and "solve.sh" not in task.solution:
        raise ClawError(f"the task {task.name} has no solution", "add solution/solve.sh", 2)
    solution = {f"/solution/{name}": content for name, content in task.solution.items()}
    async with open_sandbox(
        task.folder, replace(task.limits, seconds=task.agent_s + SPARE_S), {**_fixed(task), **solution}
    ) as sandbox:
        await prepare(sandbox, task)
        with suppress(SandboxOver):  # a command ended the sandbox, so there is nothing to grade
            if commands != "":
                ran = await sandbox.run("bash /solution/solve.sh" if commands is None else commands, timeout=task.agent_s)
                if commands is None and ran.code != 0:
                    problem = f"the solution of {task.name} ended with code {ran.code}: {' '.join(ran.output[-300:].split())}"
                    raise ClawError(problem, "correct solution/solve.sh, or install what it needs")
        return await finish(sandbox, task)


def _fixed(task: HarborTask) -> dict[str, bytes]:
    """Replacements for installers that work without network. Needed if the task runs commands of an image."""
    return (
        {path: text for path, text in programs(kind_of(task.limits)).items() if path.endswith(("/apt-get", "/apt", "/sudo"))}
        if task.setup
        else {}
    )
