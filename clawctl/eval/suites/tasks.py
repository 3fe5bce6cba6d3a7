"""An environment as a suite: each held-out task is played once. The metrics are the reward and its parts.

As in training, each episode has its own address, so any agent can be measured. Its calls are not captured, whatever headers it
sends.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from clawctl.asking import Refused
from clawctl.at_once import at_once
from clawctl.environments import Environment, EpisodeFailed, Outcome, Task
from clawctl.environments.episode import play_task, refusal_of
from clawctl.errors import ClawError
from clawctl.eval.suites import CannotMeasure, Measured, SuiteSettings, unanswered
from clawctl.intervals import Estimate, estimate
from clawctl.run.capabilities import Capability, Measurement, episode_secret, sign
from clawctl.run.endpoint import Endpoint
from clawctl.run.keys import OWN

log = logging.getLogger("eval")

_SHOWN = 3  # the number of examples kept for each kind of task
_TRIES = 3
_OPEN_S = 86400.0  # the validity of an episode's address in seconds; long, because a slow machine must not fail the policy

Played = tuple[Task, Outcome]


async def measure_tasks(
    environment: Environment, endpoint: Endpoint, settings: SuiteSettings, excluded: Collection[str] = ()
) -> Measured:
    """Play all tasks except those in `excluded`. Each version gets the same tasks. Raises CannotMeasure and ClawError."""
    if settings.run is not None and (prepare := getattr(environment, "prepare", None)) is not None:
        prepare(settings.run, settings.recipe, endpoint)
    tasks = [task for task in environment.tasks("eval", settings.problems, settings.seed) if task.id not in excluded]
    if not tasks and not excluded:
        cure = "return some from tasks('eval', count, seed); a file or folder of tasks needs at least five"
        raise ClawError("the environment has no held-out tasks", cure)
    tasks = await _not_refused(environment, tasks, settings.concurrency)

    async def play(task: Task) -> Played:
        return task, await _play(environment, task, endpoint, settings)

    return summarise(await at_once(settings.concurrency, play, tasks))


async def _not_refused(environment: Environment, tasks: Sequence[Task], at_a_time: int) -> list[Task]:
    """The tasks that the environment plays. Raises ClawError if it refuses all of them."""
    refusals = await at_once(at_a_time, partial(refusal_of, environment), tasks)
    refused = [(task, reason) for task, reason in zip(tasks, refusals, strict=True) if reason is not None]
    for task, reason in refused:
        log.warning("the task %s is left out: %s", task.id, reason)
    if tasks and len(refused) == len(tasks):
        task, reason = refused[0]
        raise ClawError(f"no held-out task can be played; {task.id}: {reason}", "`clawctl play --check` shows the reason of each")
    return [task for task, reason in zip(tasks, refusals, strict=True) if reason is None]


async def _play(environment: Environment, task: Task, endpoint: Endpoint, settings: SuiteSettings) -> Outcome:
    """Play one task. If the episode fails or is refused, play it again, at most _TRIES times in all."""
    for attempt in range(1, _TRIES + 1):
        try:
            outcome = await play_task(environment, task, _of_episode(endpoint, settings))
            if outcome.status == "done":
                return outcome
            if outcome.ending == "unverified":
                return replace(outcome, status="done", ending="done", reward=0.0)
            cause: Exception = CannotMeasure(f"task {task.id} failed {attempt} times: {outcome.log or outcome.ending}")
        except EpisodeFailed as failed:
            cause = CannotMeasure(f"task {task.id} failed {attempt} times: {failed}", unreachable=failed.ending == "server")
        except Refused as refused:
            cause = unanswered(refused, endpoint)
            if refused.status in (401, 403, 404):
                break
        if attempt < _TRIES:
            await asyncio.sleep(0.3 * attempt)
    raise cause


def _of_episode(endpoint: Endpoint, settings: SuiteSettings) -> Endpoint:
    """The endpoint at the address of an episode, which accepts calls of the measured version only.

    A server outside of this run (`eval.endpoint`) has no such addresses; its endpoint is returned unchanged.
    """
    if settings.run is None or settings.recipe is None or settings.recipe.eval.endpoint is not None:
        return endpoint
    measurement = Measurement(endpoint.model, settings.temperature, settings.max_tokens)
    name, expires_at = f"measured-{secrets.token_hex(8)}", time.time() + _OPEN_S
    capability = sign(episode_secret(settings.run), Capability(name, "", "", 0, expires_at, OWN, measurement))
    return replace(endpoint, url=f"{endpoint.url.removesuffix('/v1')}/e/{capability}/v1", api_key=capability)


def summarise(played: Sequence[Played]) -> Measured:
    kinds = dict.fromkeys(task.kind for task, _ in played)
    of_kind = {kind: [result for result in played if result[0].kind == kind] for kind in kinds}
    shown = [_example(*result) for some in of_kind.values() for result in some[:_SHOWN]]
    parts = {kind: _metrics(some) for kind, some in of_kind.items()} if len(kinds) > 1 else {}
    return Measured(_metrics(played), parts, shown, _values(played))


def _values(played: Sequence[Played]) -> dict[str, dict[str, float]]:
    """Values by metric and task, ordered by a hash of the task id so that the kinds of tasks are mixed."""
    values: dict[str, dict[str, float]] = {}
    for task, outcome in sorted(played, key=lambda result: hashlib.sha256(result[0].id.encode()).digest()):
        reward = {} if outcome.reward is None else {"reward": outcome.reward}
        for name, value in (*outcome.parts.items(), *reward.items()):
            values.setdefault(name, {})[task.id] = value
    return values


def _metrics(played: Sequence[Played]) -> dict[str, Estimate]:
    return {name: estimate(list(by_task.values())) for name, by_task in _values(played).items()}


def _example(task: Task, outcome: Outcome) -> dict[str, Any]:
    shown = outcome.example or {"prompt": str(task.spec), "reply": "", **outcome.parts}
    return {"task_id": task.id, **shown}
