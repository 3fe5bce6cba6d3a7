"""Plays tasks of an environment: one at a time for a suite, or many for training, whose outcomes the server is told."""

import asyncio
import inspect

from clawctl.environments import Environment, Outcome, Task
from clawctl.run.endpoint import Endpoint


async def play_task(environment: Environment, task: Task, endpoint: Endpoint) -> Outcome:
    """One episode. Raises whatever `play` raises, and TypeError if that returns no outcome."""
    if inspect.iscoroutinefunction(environment.play):
        found = await environment.play(task, endpoint)
    else:
        found = await asyncio.to_thread(environment.play, task, endpoint)
    if not isinstance(found, Outcome):
        raise TypeError(f"play returned {type(found).__name__}, not an Outcome")
    return found
