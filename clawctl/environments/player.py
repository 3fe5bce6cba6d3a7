"""Plays tasks: one at a time for a suite, or many episodes for training, whose outcomes the server is told."""

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import quote
from uuid import uuid4

import httpx

from clawctl.environments import Environment, Outcome, Task
from clawctl.environments.asking import new_client
from clawctl.errors import ClawError
from clawctl.run.endpoint import Endpoint

log = logging.getLogger("play")

_TRIES = 5  # for an outcome that the server cannot take just now
_PLAIN = "!#$&'()*+,/:;=?@[] "  # of a task's name, other characters cannot be in a header
_NOT_NOW = (408, 429, 500, 502, 503, 504)


@dataclass(slots=True)
class Summary:
    """What was played."""

    endings: Counter[str] = field(default_factory=Counter)  # {"done": 14, "failed": 2}
    rewards: list[float] = field(default_factory=list)

    @property
    def words(self) -> str:
        """ "16 episodes: 14 done, 2 failed; mean reward 0.25"."""
        endings = ", ".join(f"{count} {status}" for status, count in sorted(self.endings.items()))
        reward = f"; mean reward {sum(self.rewards) / len(self.rewards):.2f}" if self.rewards else ""
        return f"{sum(self.endings.values())} episodes: {endings or 'none'}{reward}"


async def play_task(environment: Environment, task: Task, endpoint: Endpoint) -> Outcome:
    """One episode. Raises whatever `play` raises, and TypeError if that returns no outcome."""
    if inspect.iscoroutinefunction(environment.play):
        found = await environment.play(task, endpoint)
    else:
        found = await asyncio.to_thread(environment.play, task, endpoint)
    if not isinstance(found, Outcome):
        raise TypeError(f"play returned {type(found).__name__}, not an Outcome")
    return found


async def play_episodes(
    environment: Environment, tasks: Sequence[Task], endpoint: Endpoint, attempts: int, parallel: int, stop: threading.Event
) -> Summary:
    """Play each task `attempts` times, `parallel` episodes at a time, until done or stopped. Each episode is a session of its own.
    The attempts at a task are a group. Raises ClawError if the server does not take an outcome."""
    visit = uuid4().hex[:8]  # the same tasks may be played again: those episodes are in other groups
    waiting = [(number, task, attempt) for number, task in enumerate(tasks) for attempt in range(attempts)]
    waiting.reverse()
    summary = Summary()

    async def work(client: httpx.AsyncClient) -> None:
        while waiting and not stop.is_set():
            number, task, attempt = waiting.pop()
            group = task.group or (f"{visit}-{number}" if attempts > 1 else "")
            await _play_episode(environment, task, endpoint, f"{visit}-{number}-{attempt}", group, client, summary)

    async with new_client(endpoint) as client:
        try:
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(parallel, len(waiting))):
                    workers.create_task(work(client))
        except ExceptionGroup as failed:  # the first one has stopped the others
            raise failed.exceptions[0] from None
    return summary


async def _play_episode(
    environment: Environment, task: Task, endpoint: Endpoint, session: str, group: str, client: httpx.AsyncClient, summary: Summary
) -> None:
    names = {"X-Session-Id": session, "X-Task-Id": task.id, "X-Group-Id": group}
    headers = {name: quote(value, safe=_PLAIN) for name, value in names.items() if value}
    try:
        outcome = await play_task(environment, task, replace(endpoint, headers={**endpoint.headers, **headers}))
    except Exception as error:  # the user's own code, or the server: in neither case the policy
        log.error("episode %s failed: %r", session, error, exc_info=error)
        outcome = Outcome(status="failed")
    await tell_outcome(endpoint, session, outcome, client)
    summary.endings[outcome.status] += 1
    if outcome.reward is not None:
        summary.rewards.append(outcome.reward)
    log.info("episode %s: %s, reward %s", session, outcome.status, outcome.reward)


async def tell_outcome(endpoint: Endpoint, session: str, outcome: Outcome, client: httpx.AsyncClient) -> None:
    """`POST /v1/outcome`. An episode that made no call has no session, and so no outcome. Raises ClawError."""
    body = {
        "session_id": session,
        "reward": None if outcome.reward is None else float(outcome.reward),
        "status": outcome.status,
        "parts": {name: float(value) for name, value in outcome.parts.items()},
        "steps": {turn_id: float(value) for turn_id, value in outcome.steps.items()},
    }
    problem = ""
    for attempt in range(_TRIES):
        try:
            answer = await client.post(
                f"{endpoint.url}/outcome", json=body, headers={"Authorization": f"Bearer {endpoint.api_key}"}
            )
        except httpx.HTTPError as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if answer.status_code == 200:
                return
            if answer.status_code == 404 and outcome.status == "failed":
                return  # it failed before its first call
            problem = f"status {answer.status_code}: {answer.text[:200]}"
            if answer.status_code not in _NOT_NOW:
                break
        await asyncio.sleep(0.5 * 2**attempt)
    raise ClawError(f"the server did not take the outcome of episode {session}: {problem}", "check that it runs with --intercept")
