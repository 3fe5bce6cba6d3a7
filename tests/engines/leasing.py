"""Targets on a separate event loop."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from clawctl.engines.upstream.targets import Targets


def on_a_loop(targets: Targets, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def all() -> None:
        targets.start(asyncio.get_running_loop())
        await main()

    asyncio.run(all())


async def use(targets: Targets, version: int) -> str:
    async with targets.lease(version) as target:
        return target.name
