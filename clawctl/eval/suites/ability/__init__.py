"""The suite `ability`: skills that a version must not lose, tested by short tasks whose answers a function checks.

The tasks are in the files next to this one, one task per line. Raise VERSION with every change of a task or a check, because
numbers of different tasks cannot be compared. `options: {categories: [code, tools]}` selects categories.
"""

import asyncio
import hashlib
import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clawctl.environments.asking import Refused
from clawctl.environments.sandbox import Limits, Sandbox, SandboxFailed, SandboxOver, open_sandbox
from clawctl.errors import ClawError
from clawctl.eval.intervals import estimate
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings
from clawctl.eval.suites.ability.checks import code_in, follows, is_number, is_said_in, makes_call
from clawctl.eval.suites.answers import ChatReply, client_of, is_refusal, reply
from clawctl.http_client import Client
from clawctl.run.endpoint import Endpoint

log = logging.getLogger("eval")

VERSION = 1
CATEGORIES = ("instructions", "arithmetic", "code", "tools", "refusal", "languages")
_CODE_S = 10.0  # the time limit for the tests of one answer
_TRIES = 3

AbilityTask = Mapping[str, Any]


class Ability:
    """Measures one version. `correct` is the share of correct answers over all tasks. Each category is also a metric."""

    metrics = ("correct", *CATEGORIES)

    async def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Measured:
        tasks = ability_tasks(settings)
        places = asyncio.Semaphore(settings.concurrency)
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(client_of(endpoint))
            sandbox = await _sandbox(stack) if any(task["category"] == "code" for task in tasks) else None
            tasks = [task for task in tasks if task["category"] != "code" or sandbox is not None]

            async def one(task: AbilityTask) -> tuple[AbilityTask, ChatReply, bool]:
                async with places:
                    said = await _reply(client, endpoint, settings, task)
                    return task, said, await is_right(task, said, sandbox)

            try:
                async with asyncio.TaskGroup() as group:
                    asked = [group.create_task(one(task)) for task in tasks]
            except ExceptionGroup as failed:
                raise failed.exceptions[0] from None
        return _measured([each.result() for each in asked])


def _measured(results: Sequence[tuple[AbilityTask, ChatReply, bool]]) -> Measured:
    values: dict[str, dict[str, float]] = {}
    for task, _, right in results:
        for metric in ("correct", task["category"]):
            values.setdefault(metric, {})[task["id"]] = float(right)
    metrics = {metric: estimate([bool(value) for value in of_tasks.values()]) for metric, of_tasks in values.items()}
    wrong = [(task, said) for task, said, right in results if not right][:3]
    shown = [{"task_id": task["id"], "prompt": task["prompt"], "reply": said.text, "correct": False} for task, said in wrong]
    return Measured(metrics, examples=shown, values=values)


@cache
def all_tasks() -> Mapping[str, tuple[AbilityTask, ...]]:
    """The tasks of each category, in the order of the files."""
    tasks = {}
    for category in CATEGORIES:
        lines = (Path(__file__).parent / f"{category}.jsonl").read_text(encoding="utf-8").splitlines()
        tasks[category] = tuple({"category": category, **json.loads(line)} for line in lines)
    return tasks


def ability_tasks(settings: SuiteSettings) -> list[AbilityTask]:
    """At most `settings.problems` tasks, taken evenly from the categories in an order fixed by the seed. Raises ClawError."""
    wanted = settings.options.get("categories", CATEGORIES)
    wanted = [wanted] if isinstance(wanted, str) else list(wanted)
    if unknown := [name for name in wanted if name not in CATEGORIES]:
        raise ClawError(f"the suite ability has no category {unknown[0]!r}", f"use some of {', '.join(CATEGORIES)}", 2)

    def place(task: AbilityTask) -> bytes:
        return hashlib.sha256(f"{settings.seed}/{task['id']}".encode()).digest()

    columns = [sorted(all_tasks()[name], key=place) for name in dict.fromkeys(wanted)]
    in_turn = [task for row in zip_longest(*columns) for task in row if task is not None]
    return in_turn[: settings.problems]


async def _reply(client: Client, endpoint: Endpoint, settings: SuiteSettings, task: AbilityTask) -> ChatReply:
    """The reply to a task. Both versions use the same seed. Network failures and server errors are retried. Raises Refused."""
    seed = int.from_bytes(hashlib.sha256(f"{settings.seed}/{task['id']}".encode()).digest()[:4]) >> 1
    tools = {"tools": task["tools"]} if task.get("tools") else {}
    for attempt in range(1, _TRIES + 1):
        try:
            return await reply(client, endpoint, [{"role": "user", "content": task["prompt"]}], seed=seed, **tools)
        except Refused as refused:
            if attempt == _TRIES or (refused.status is not None and refused.status < 500):
                raise
            await asyncio.sleep(0.3 * attempt)
    raise AssertionError("unreachable")


async def is_right(task: AbilityTask, said: ChatReply, sandbox: Sandbox | None) -> bool:
    """Whether a reply solves its task. Reasoning before the reply is ignored."""
    match task["category"]:
        case "instructions":
            return follows(said.text, task["checks"])
        case "arithmetic":
            return is_number(said.text, task["number"])
        case "languages":
            return is_said_in(said.text, task["language"], task["any_of"])
        case "tools":
            return makes_call(said.calls, task["call"])
        case "refusal" if task["refuse"]:
            return is_refusal(said.text)
        case "refusal":
            words = said.text.lower()
            return bool(words) and not is_refusal(words) and any(word in words for word in task["any_of"])
        case _:
            return sandbox is not None and await passes(sandbox, code_in(said.text), task["tests"])


# ---- code ------------------------------------------------------------------------------------------------------------------


async def _sandbox(stack: AsyncExitStack) -> Sandbox | None:
    """The sandbox that runs answers with code. On a machine that cannot make one, logs a warning and returns None."""
    try:
        return await stack.enter_async_context(open_sandbox(limits=Limits(seconds=1800.0)))
    except (ClawError, SandboxFailed) as error:
        log.warning("suite ability: the category code is left out, because code cannot run in a sandbox here: %s", error)
        return None


async def passes(sandbox: Sandbox, code: str, tests: Sequence[str]) -> bool:
    """Whether code passes all tests. Each test is an expression. Runs in a new process in the sandbox. Raises CannotMeasure."""
    mark = secrets.token_hex(8)  # printed at the end, so that code which exits early does not pass
    script = "\n".join([code, *(f"assert {test}" for test in tests), f"print({mark!r})"])
    try:
        ran = await sandbox.run(["python3", "-I", "-"], timeout=_CODE_S, given=script.encode(errors="replace"))
    except (SandboxFailed, SandboxOver) as error:
        raise CannotMeasure(f"the sandbox for code failed: {error}") from error
    return ran.code == 0 and ran.output.rstrip().endswith(mark)
