"""Notices that a server which clawctl did not start has restarted, by the models that it has lost."""

import asyncio
from contextlib import suppress

import orjson

from clawctl.engines.upstream.targets import Targets
from clawctl.engines.vllm.control import Control
from clawctl.errors import ClawError
from clawctl.http_client import Client, RequestFailed

LOOK_S = 1.0  # between looks at what a server has loaded
_TIMEOUT_S = 10.0
_MODELS = "/v1/models"


class RestartWatch:
    """Used on the event loop. A server is asked only while it has something to lose."""

    def __init__(self, client: Client, control: Control, targets: Targets) -> None:
        self._client, self._control, self._targets = client, control, targets
        self._seen = set[str]()  # names that it has listed: not every server lists its adapters

    async def restarted(self) -> str:
        """Returns what was lost, once the server has restarted."""
        while (lost := await self._lost_adapters() or await self._lost_weights()) is None:
            await asyncio.sleep(LOOK_S)
        return lost

    async def _lost_adapters(self) -> str | None:
        before = self._targets.adapters
        listed = (await self.listed())[0] if before else None
        if listed is None:
            return None
        loaded, gone = self._targets.adapters, self._seen - listed
        self._seen |= listed
        lost = [target.name for version, target in before.items() if target.name in gone and loaded.get(version) is target]
        return ", ".join(lost) or None

    async def _lost_weights(self) -> str | None:
        version, actual = self._targets.weights, None
        if version:
            with suppress(ClawError):
                actual = await asyncio.to_thread(self._control.weight_version)
        lost = actual not in (None, str(version)) and self._targets.weights == version  # not replaced meanwhile
        return f"the weights of version {version}" if lost else None

    async def listed(self) -> tuple[set[str] | None, str | None]:
        """The names of its models, or why it does not list them."""
        try:
            answer = await self._client.request(_MODELS, b"", _TIMEOUT_S, "GET")
            if answer.status != 200:
                return None, f"{_MODELS} answers {answer.status}"
            return {model["id"] for model in orjson.loads(answer.body)["data"]}, None
        except (RequestFailed, ValueError, KeyError, TypeError) as error:
            return None, f"{_MODELS} cannot be read: {error}"
