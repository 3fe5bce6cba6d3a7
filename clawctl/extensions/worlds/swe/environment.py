"""`swe`: the agent repairs a repository in a sandbox. Tests that it has not seen decide whether it succeeded."""

import re
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
from clawctl.extensions.worlds.checking import check_each, check_task, left_out
from clawctl.extensions.worlds.harness import ShellEnvironment
from clawctl.extensions.worlds.sandbox import SPARE_S, Sandbox, SandboxOver, open_sandbox
from clawctl.extensions.worlds.sandbox.kinds import read_kind
from clawctl.extensions.worlds.sandbox.probe import verify_sandbox
from clawctl.extensions.worlds.sandbox.tars import tar_of, without
from clawctl.extensions.worlds.splits import SHOWN, rows_of, task_numbers
from clawctl.extensions.worlds.swe.families import draw_task
from clawctl.extensions.worlds.swe.rows import SweTask, file_rows, is_row, patched, read_rows, with_fault
from clawctl.extensions.worlds.verdicts import Graded, grade_files
from clawctl.extensions.worlds.verdicts.python_code import clean, run_calls, run_pytest
from clawctl.extensions.worlds.wording import wording_of
from clawctl.run.endpoint import Endpoint

_FOLDER = "/app"
_CHANGE = re.compile(r"^\+\+\+ b/(\S+)$(?s:.*?)^ def (\w+)\(.*\n-.*\n\+    return (.*)$", re.MULTILINE)  # file, function, body


@dataclass(kw_only=True, eq=False, repr=False)
class Swe(ShellEnvironment):
    """`path` is a file of rows in the format of SWE-bench, and `repositories` the folder of their repositories. A verdict is
    unverified if it rests on what the graded code says of its own objects. The other options are those of `ShellEnvironment`."""

    repositories: str | None = None
    max_turns: int = 30
    command_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        folder = None if self.repositories is None else Path(self.repositories).expanduser()
        self._read = [] if self.path is None else read_rows(Path(self.path).expanduser(), folder)
        self.episode_s = max((task.agent_s + 3 * task.verdict_s for task in self._read), default=EPISODE_S)
        if self.examples and self._read:
            raise ClawError(
                "examples are for drawn repositories: a row has a patch, and no commands", "leave out examples or path", 2
            )
        self.show(self.tasks("train", self.examples, SHOWN), _solved)

    @staticmethod
    def check_place(place: str, options: Mapping[str, Any]) -> list[CheckedTask] | None:
        """Check a file of rows. `options` may name `repositories`."""
        path, bad = Path(place).expanduser(), list[tuple[dict[str, Any], ClawError]]()
        if path.suffix not in (".json", ".jsonl", ".parquet") or not path.is_file() or not any(map(is_row, file_rows(path))):
            return None
        kind, repositories = read_kind(options.get("sandbox")), options.get("repositories")
        read = read_rows(path, None if repositories is None else Path(str(repositories)).expanduser(), bad)
        read = [replace(task, limits=replace(task.limits, kind=kind)) for task in read]
        refused = [
            left_out(str(row.get("instance_id") or row.get("docker_image") or "without a name"), error) for row, error in bad
        ]
        return refused + check_each(read, lambda task: task.name, lambda task: bool(task.patch), solve)

    async def check(self, task: SweTask) -> CheckedTask:
        task = replace(task, limits=replace(task.limits, kind=self.kind))
        await verify_sandbox(task.limits)
        return await check_task(task, task.name, bool(task.patch), solve)

    def tasks(self, split: Split, count: int, seed: int) -> Sequence[Task]:
        if self._read:
            rows = rows_of(self._read, lambda task: int(task.digest, 16), split, count, seed)
        else:
            wording = wording_of(split, self.held_out)
            rows = [draw_task(number, wording) for number in task_numbers(split, count, seed)]
        return [Task(task.name, task, split) for task in rows]

    async def play(self, task: Task, endpoint: Endpoint) -> Outcome:
        spec = replace(task.spec, limits=replace(task.spec.limits, kind=self.kind))
        await verify_sandbox(spec.limits)
        spec = await with_fault(spec)
        limits = replace(spec.limits, seconds=spec.agent_s + SPARE_S)
        async with self.agent.room(endpoint, _FOLDER, limits, {}) as (sandbox, work):
            await sandbox.put(tar_of(spec.files))
            worked = await work(spec.statement, spec.agent_s)
            score = await finish(sandbox, spec)
        return outcome_of(spec.statement, worked, score, self.steps, self.unverified)


def _solved(task: SweTask) -> list[dict[str, Any]]:
    """The messages of an episode that reads the file of a drawn repository and mends it."""
    change = _CHANGE.search(task.patch)
    assert change is not None
    file, name, right = change.groups()
    mend = f'sed -i "/def {name}(/{{n;s|return.*|return {right}|}}" {file}'
    return solved(task.statement, {f"cat {file}": task.files[file].decode(), mend: ""})


async def finish(sandbox: Sandbox, task: SweTask) -> Graded:
    """Grade the current state of the sandbox. Ends the sandbox's processes."""
    return await grade_files(sandbox, partial(grade, task))


async def grade(task: SweTask, snapshot: bytes) -> Graded:
    """Grade a snapshot by its calls, if the task has any, and by its tests. Both must succeed.

    Raises SandboxFailed, and ClawError if a patch does not apply.
    """
    tests = {**task.test_files}
    if task.test_patch:
        after = await patched(task.files, task.test_patch, task.limits)
        tests |= {name: text for name, text in after.items() if task.files.get(name) != text}
    tests |= {name: task.files[name] for test in task.tests if (name := test.split("::")[0]) in task.files and name not in tests}
    code, not_its_own = clean(snapshot, task.files, tests)
    if task.calls:
        verdict = await run_calls(without(code, not_its_own), task.calls, _FOLDER, task.limits, task.verdict_s)
        if verdict.value < 1:
            return verdict

    return await run_pytest(code, not_its_own, task.tests, _FOLDER, task.limits, task.verdict_s)


async def solve(task: SweTask, commands: str | None = None) -> Graded:
    """Grade without a model: after the task's patch, or after `commands` ("": no commands). Raises ClawError, SandboxFailed."""
    task = await with_fault(task)
    if commands is None:
        if not task.patch and not task.solved:
            raise ClawError(f"the task {task.name} has no solution", "add its patch to the row", 2)
        return await grade(task, tar_of(task.solved or await patched(task.files, task.patch, task.limits)))
    async with open_sandbox(_FOLDER, replace(task.limits, seconds=task.agent_s + SPARE_S)) as sandbox:
        await sandbox.put(tar_of(task.files))
        with suppress(SandboxOver):  # a command ended the sandbox, so there is nothing to grade
            if commands:
                await sandbox.run(commands, timeout=task.agent_s)
        return await finish(sandbox, task)
