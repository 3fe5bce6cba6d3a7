"""Answers the requests of a key by the policy that the key has (`policies.per: key`), in the version that its LIVE names."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

from clawctl.engines import Engine, Reply
from clawctl.engines.requests import GenerationRequest, Refusal
from clawctl.errors import ClawError
from clawctl.run.directory import RunDir
from clawctl.run.policies import PolicyId, live_version
from clawctl.run.rows import DEFAULT_POLICY
from clawctl.serve.canary import CanaryFailure
from clawctl.serve.live import move_live_back

_log = logging.getLogger("clawctl.serve")


class People:
    """Used on the event loop."""

    def __init__(self, run: RunDir, policy_of: Callable[[str], str], engine: Engine) -> None:
        """`policy_of`: the name of the policy of a key."""
        self._run, self.policy_of, self._engine = run, policy_of, engine
        self._served: dict[str, int] = {}  # by policy: the version that answered last
        self._problems: dict[str, tuple[int | None, str]] = {}  # by policy: a version that cannot be served, and why

    async def begin(self, request: GenerationRequest, stack: AsyncExitStack) -> list[Reply] | None:
        """Start the replies to a request. If the live version of the key's policy cannot be loaded, the one before it answers. None
        if the shared policy is to answer. Raises Refusal."""
        name = self.policy_of(request.key)
        for version in () if name == DEFAULT_POLICY else self._candidates(name):
            try:
                async with AsyncExitStack() as inner:
                    replies = await self._engine.begin(request, PolicyId(name, version), inner)
                    stack.push_async_exit(inner.pop_all())
            except Refusal as refusal:
                if refusal.code != "model_not_found":  # it concerns the request, not the version
                    raise
                self._note_problem(name, version, refusal)
                continue
            self._served[name] = version
            if self._problems.get(name, (None,))[0] == version:
                del self._problems[name]
            for reply in replies:
                reply.sampled.policy = name
            return replies
        return None

    def _candidates(self, name: str) -> Iterator[int]:
        """The versions to try, each once: the live one, unless it was refused before, and the one that answered last."""
        try:
            live = live_version(self._run.of(name))
        except (ClawError, OSError) as error:
            live = None
            self._note_problem(name, None, error)
        refused = self._problems.get(name, (None,))[0]
        yield from dict.fromkeys(v for v in (live, self._served.get(name)) if v is not None and v != refused)

    def _note_problem(self, name: str, version: int | None, error: Exception) -> None:
        """Record why a version does not answer, and point LIVE back if train or eval moved it there."""
        cause = error.__cause__ if isinstance(error, Refusal) and error.__cause__ is not None else error
        problem = cause.problem if isinstance(cause, ClawError) else str(cause)
        if self._problems.get(name) != (version, problem):
            _log.error("policy %s: %s", name if version is None else PolicyId(name, version), problem)
        self._problems[name] = version, problem
        if version is not None and isinstance(cause, CanaryFailure):
            move_live_back(self._run.of(name), self._served.get(name), version, cause)

    def status(self, key: str | None) -> dict[str, Any]:
        """For /health: the version of each policy that answered last, and what prevents its live version. `key`: of
        its policy alone."""
        return {
            name: {"served": self._served.get(name), "problem": self._problems.get(name, (None, None))[1]}
            for name in sorted({*self._served, *self._problems})
            if key is None or name == self.policy_of(key)
        }
