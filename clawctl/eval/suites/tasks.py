"""An environment as a suite: its held-out tasks, each played once. Its metrics are the reward and its parts."""

import asyncio
import hashlib
from collections.abc import Collection, Sequence
from typing import Any

from clawctl.environments import Environment, Outcome, Task
from clawctl.environments.asking import Refused
from clawctl.environments.player import play_task
from clawctl.errors import ClawError
from clawctl.eval.intervals import Estimate, estimate
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings, unanswered
from clawctl.run.endpoint import Endpoint

_SHOWN = 3  # examples of each kind of task that are kept
_TRIES = 3

Played = tuple[Task, Outcome]


async def measure_tasks(
    environment: Environment, endpoint: Endpoint, settings: SuiteSettings, known: Collection[str] = ()
) -> Measured:
    """Play all tasks but the `known` ones, the same for each version. Raises CannotMeasure and ClawError."""
    tasks = [task for task in environment.tasks("eval", settings.problems, settings.seed) if task.id not in known]
    if not tasks and not known:
        raise ClawError("the environment has no held-out tasks", "return some from tasks('eval', count, seed)")
    places = asyncio.Semaphore(settings.concurrency)

    async def one(task: Task) -> Played:
        async with places:
            return task, await _play(environment, task, endpoint)

    try:
        async with asyncio.TaskGroup() as group:
            playing = [group.create_task(one(task)) for task in tasks]
    except ExceptionGroup as failed:  # the first failure has cancelled the others
        raise failed.exceptions[0] from None
    return summarise([one.result() for one in playing])


async def _play(environment: Environment, task: Task, endpoint: Endpoint) -> Outcome:
    """The outcome of a task, after another attempt where an episode failed or was refused."""
    for attempt in range(1, _TRIES + 1):
        try:
            outcome = await play_task(environment, task, endpoint)
            if outcome.status == "done":
                return outcome
            trouble: Exception = CannotMeasure(f"task {task.id} failed {attempt} times")
        except Refused as refused:
            trouble = unanswered(refused, endpoint)
            if refused.status in (401, 403, 404):
                break
        if attempt < _TRIES:
            await asyncio.sleep(0.3 * attempt)
    raise trouble


def summarise(played: Sequence[Played]) -> Measured:
    kinds = dict.fromkeys(task.kind for task, _ in played)
    of_kind = {kind: [one for one in played if one[0].kind == kind] for kind in kinds}
    shown = [_example(*one) for some in of_kind.values() for one in some[:_SHOWN]]
    parts = {kind: _metrics(some) for kind, some in of_kind.items()} if len(kinds) > 1 else {}
    return Measured(_metrics(played), parts, shown, _values(played))


def _values(played: Sequence[Played]) -> dict[str, dict[str, float]]:
    """By metric and task, in an order that has nothing to do with their kinds."""
    values: dict[str, dict[str, float]] = {}
    for task, outcome in sorted(played, key=lambda one: hashlib.sha256(one[0].id.encode()).digest()):
        reward = {} if outcome.reward is None else {"reward": outcome.reward}
        for name, value in (*outcome.parts.items(), *reward.items()):
            values.setdefault(name, {})[task.id] = value
    return values


def _metrics(played: Sequence[Played]) -> dict[str, Estimate]:
    values: dict[str, list[float]] = {}
    for _, outcome in played:
        reward = {} if outcome.reward is None else {"reward": outcome.reward}
        for name, value in (*outcome.parts.items(), *reward.items()):
            values.setdefault(name, []).append(value)
    return {name: estimate(numbers) for name, numbers in values.items()}


def _example(task: Task, outcome: Outcome) -> dict[str, Any]:
    shown = outcome.example or {"prompt": str(task.spec), "reply": "", **outcome.parts}
    return {"task_id": task.id, **shown}
