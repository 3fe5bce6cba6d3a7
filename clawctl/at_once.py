"""Works on many items at once, on one event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


async def at_once(most: int, work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    """The results of `work`, in the order of `items`, of which at most `most` are worked on at a time. The first failure cancels
    the rest, and is raised."""
    slots = asyncio.Semaphore(most)

    async def result(item: Item) -> Result:
        async with slots:
            return await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(result(item)) for item in items]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
