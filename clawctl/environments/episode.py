"""Plays one episode, and names how it ended."""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from clawctl.asking import Refused
from clawctl.environments import WORST, Environment, EpisodeFailed, Outcome, Task
from clawctl.run.endings import ENDINGS
from clawctl.run.endpoint import Endpoint

log = logging.getLogger("play")

_GRACE_S = 60.0  # the time that `play` has to return after the deadline; it may have to compute a verdict


async def play_task(environment: Environment, task: Task, endpoint: Endpoint) -> Outcome:
    """Play one episode. If a call is refused because the policy used up its time or context, the outcome is the worst one.

    Raises every other exception of `play`, and TypeError if `play` returns no Outcome.
    """
    try:
        if inspect.iscoroutinefunction(environment.play):
            outcome = await environment.play(task, endpoint)
        else:
            outcome = await _in_thread(partial(environment.play, task, endpoint))
    except Refused as refused:
        if refused.used_up is None:
            raise
        return _worst(environment, task, refused.used_up, refused)
    if not isinstance(outcome, Outcome):
        raise TypeError(f"play returned {type(outcome).__name__}, not an Outcome")
    return outcome


async def refusal_of(environment: Environment, task: Task) -> str | None:
    """Why the environment leaves out the task. None if it plays it."""
    refusal: Callable[[Task], Awaitable[str | None]] | None = getattr(environment, "refusal", None)
    return None if refusal is None else await refusal(task)


def _worst(environment: Environment, task: Task, ending: str, refused: Refused) -> Outcome:
    """The outcome of an episode that ended before `play` could grade it: each declared metric is 0, and the reward is `worst`.

    In a suite, an environment that declares no metric `reward` gets none here either.
    """
    metrics = getattr(environment, "metrics", None)
    has_reward = task.split == "train" or metrics is None or "reward" in metrics
    reward = float(getattr(environment, "worst", WORST)) if has_reward else None
    parts = dict.fromkeys((name for name in metrics or () if name != "reward"), 0.0)
    return Outcome(reward, parts, ending=ending, log=str(refused))


async def _in_thread(call: Callable[[], Any]) -> Any:
    """The result of `call`, which runs in its own thread.

    asyncio's pool is too small: it has six threads on two cores, whatever the number of concurrent episodes. The process would also
    wait for the pool's threads when it ends.
    """
    result: Future[Any] = Future()
    result.set_running_or_notify_cancel()  # a waiting task may be cancelled, the thread may not

    def work() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return await asyncio.wrap_future(result)


async def graded(environment: Environment, task: Task, endpoint: Endpoint, limit_s: float) -> Outcome:
    """The outcome of one episode, including failures and time limits. The table in `clawctl.run.endings` lists the endings."""
    try:
        async with asyncio.timeout(limit_s + _GRACE_S) as clock:
            outcome = await play_task(environment, task, endpoint)
        return outcome if outcome.ending else replace(outcome, ending="done" if outcome.status == "done" else "environment")
    except EpisodeFailed as failed:
        return _failed(task, failed.ending, failed)
    except Refused as refused:
        return _failed(task, "server", refused)
    except TimeoutError as error:
        cause = RuntimeError(f"play did not return within {limit_s + _GRACE_S:g} s") if clock.expired() else error
        return _failed(task, "environment", cause)
    except Exception as error:  # noqa: BLE001 - the user's own code
        ending = getattr(error, "ending", "")  # an environment's own exceptions may name an ending
        return _failed(task, ending if ending in ENDINGS and ENDINGS[ending].kind == "other" else "environment", error)


def _failed(task: Task, ending: str, error: Exception) -> Outcome:
    reason = str(error) if isinstance(error, EpisodeFailed) else f"{type(error).__name__}: {error}"
    log.warning("an episode of task %s failed (%s): %s", task.id, ending, reason)
    log.debug("%s", task.id, exc_info=error)
    return Outcome(status="failed", ending=ending, log=f"{type(error).__name__}: {error}")
