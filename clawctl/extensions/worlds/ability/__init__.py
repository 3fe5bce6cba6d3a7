"""The suite `ability`: skills that a version must not lose, tested by short tasks whose answers a function checks.

The tasks are in the files next to this one, one task per line. Raise VERSION with every change of a task or a check, because
numbers of different tasks cannot be compared. `options: {categories: [code, tools]}` selects categories.
"""

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from clawctl.asking import Refused
from clawctl.at_once import at_once
from clawctl.errors import ClawError
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings
from clawctl.eval.suites.answers import ChatReply, client_of, is_refusal, reply
from clawctl.extensions.worlds.ability.checks import code_in, follows, is_number, is_said_in, makes_call
from clawctl.extensions.worlds.sandbox import Limits, SandboxFailed, open_sandbox
from clawctl.extensions.worlds.sandbox.tars import tar_of
from clawctl.extensions.worlds.verdicts.python_code import run_calls
from clawctl.http_client import Client
from clawctl.intervals import estimate
from clawctl.run.endpoint import Endpoint

log = logging.getLogger("eval")

VERSION = 2
CATEGORIES = ("instructions", "arithmetic", "code", "tools", "refusal", "languages")
_CODE_S = 10.0  # the time limit for the calls to one answer
_TRIES = 3

AbilityTask = Mapping[str, Any]


class Ability:
    """Measures one version. `correct` is the share of correct answers over all tasks. Each category is also a metric."""

    metrics = ("correct", *CATEGORIES)

    async def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Measured:
        tasks = ability_tasks(settings)
        async with client_of(endpoint) as client:
            if any(task["category"] == "code" for task in tasks) and not await _has_sandbox():
                tasks = [task for task in tasks if task["category"] != "code"]

            async def answer(task: AbilityTask) -> tuple[AbilityTask, ChatReply, bool]:
                reply = await _reply(client, endpoint, settings, task)
                return task, reply, await is_right(task, reply)

            return _measured(await at_once(settings.concurrency, answer, tasks))


def _measured(results: Sequence[tuple[AbilityTask, ChatReply, bool]]) -> Measured:
    values: dict[str, dict[str, float]] = {}
    for task, _, right in results:
        for metric in ("correct", task["category"]):
            values.setdefault(metric, {})[task["id"]] = float(right)
    metrics = {metric: estimate([bool(value) for value in of_tasks.values()]) for metric, of_tasks in values.items()}
    wrong = [(task, reply) for task, reply, right in results if not right][:3]
    shown = [{"task_id": task["id"], "prompt": task["prompt"], "reply": reply.text, "correct": False} for task, reply in wrong]
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
        raise ClawError(f"the suite ability has no category {unknown[0]!r}", f"choose from {', '.join(CATEGORIES)}", 2)

    def rank(task: AbilityTask) -> bytes:
        return hashlib.sha256(f"{settings.seed}/{task['id']}".encode()).digest()

    columns = [sorted(all_tasks()[name], key=rank) for name in dict.fromkeys(wanted)]
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


async def is_right(task: AbilityTask, reply: ChatReply) -> bool:
    """Whether a reply solves its task. Reasoning before the reply is ignored."""
    match task["category"]:
        case "instructions":
            return follows(reply.text, task["checks"])
        case "arithmetic":
            return is_number(reply.text, task["number"])
        case "languages":
            return is_said_in(reply.text, task["language"], task["any_of"])
        case "tools":
            return makes_call(reply.calls, task["call"])
        case "refusal" if task["refuse"]:
            return is_refusal(reply.text)
        case "refusal":
            text = reply.text.lower()
            return bool(text) and not is_refusal(text) and any(word in text for word in task["any_of"])
        case _:
            return await passes(code_in(reply.text), task["calls"])


# ---- code ------------------------------------------------------------------------------------------------------------------


async def _has_sandbox() -> bool:
    """Whether this machine can run answers with code in a sandbox. Logs a warning if it cannot."""
    try:
        async with open_sandbox():
            return True
    except (ClawError, SandboxFailed) as error:
        log.warning("suite ability: the category code is left out, because code cannot run in a sandbox here: %s", error)
        return False


async def passes(code: str, calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether each call returns the expected value: {"call": "answer.add", "args": [2, 3], "want": 5}. Raises CannotMeasure.

    The code runs in a sandbox of its own, which never contains the expected values. Code that ends the process, prints what it
    finds there or returns an object that equals everything does not pass.
    """
    module = tar_of({"answer.py": code.encode(errors="replace")})
    try:
        return (await run_calls(module, calls, "/app", Limits(), _CODE_S)).value == 1
    except SandboxFailed as error:
        raise CannotMeasure(f"the sandbox for code failed: {error}") from error
