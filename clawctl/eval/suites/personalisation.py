"""Students and teachers ask; how pleased they are with the first reply, and whether it is right.

The tasks are of the split that simulated people never ask, and the same for each version: only the weights differ.
"""

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

import httpx

from clawctl.config import EvalConfig
from clawctl.environments.homework.chat import Refused, ask
from clawctl.environments.homework.people import Person
from clawctl.environments.homework.problems import Role, Task, is_correct, make_tasks
from clawctl.environments.homework.satisfaction import satisfaction
from clawctl.errors import ClawError
from clawctl.eval.intervals import Estimate, mean, proportion
from clawctl.eval.results import CannotMeasure, Finding
from clawctl.run.endpoint import Endpoint

_ROLES: tuple[Role, Role] = ("student", "teacher")
_SHOWN = 3  # examples of each role that are kept
_TIMEOUT_S = 300.0
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Answered:
    task_id: str
    role: Role
    prompt: str  # as it was asked, greeting included
    reply: str
    satisfaction: float
    correct: bool


async def measure(endpoint: Endpoint, config: EvalConfig) -> Finding:
    """Ask every task once and score the replies. Nothing is captured. Raises CannotMeasure."""
    places = asyncio.Semaphore(config.concurrency)

    async def one(task: Task, number: int) -> Answered:
        async with places:
            return await _answer(client, endpoint, config, task, number)

    async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
        try:
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(one(task, number)) for number, task in enumerate(tasks(config))]
        except ExceptionGroup as failed:  # the first failure has cancelled the others
            raise failed.exceptions[0] from None
    return summarise([found.result() for found in asked])


def tasks(config: EvalConfig) -> list[Task]:
    """The tasks: half for students, half for teachers. With an odd number, students get one more."""
    half = config.problems // 2
    return make_tasks("student", config.problems - half, config.seed, "eval") + make_tasks("teacher", half, config.seed, "eval")


def summarise(answered: list[Answered]) -> Finding:
    of_role = {role: [a for a in answered if a.role == role] for role in _ROLES}
    shown = [asdict(a) for found in of_role.values() for a in found[:_SHOWN]]
    return Finding(_metrics(answered), {role: _metrics(found) for role, found in of_role.items() if found}, shown)


def _metrics(answered: list[Answered]) -> dict[str, Estimate]:
    return {
        "satisfaction": mean([a.satisfaction for a in answered]),
        "correctness": proportion([a.correct for a in answered]),
    }


async def _answer(client: httpx.AsyncClient, endpoint: Endpoint, config: EvalConfig, task: Task, number: int) -> Answered:
    prompt = Person(task.role, config.seed * 1_000_003 + number).open(task)
    messages = [{"role": "user", "content": prompt}]
    for attempt in range(1, _TRIES + 1):
        try:
            sampling: dict[str, Any] = {"temperature": config.temperature, "max_tokens": config.max_tokens}
            reply = await ask(client, endpoint, messages, {"X-Capture": "off"}, **sampling)
            return Answered(task.task_id, task.role, prompt, reply, satisfaction(task, reply), is_correct(task, reply))
        except Refused as refused:
            problem = f"{endpoint.model} at {endpoint.url}: {refused}"
            if refused.status in (401, 403):
                raise ClawError(problem, "set the key of that server for eval (serve.api_key or CLAWCTL_API_KEY)") from refused
            if attempt == _TRIES or refused.status == 404:
                raise CannotMeasure(problem, gone=refused.status in (None, 502, 503, 504)) from refused
            await asyncio.sleep(0.3 * attempt)
    raise AssertionError("the last attempt returns or raises")
