"""A reward model of the user's own: `judge --custom-rm file.py:name`.

`name` is a class, a function that makes one (`get_reward_model(config)`), or a ready object; what it gives has
`score(prompt, response, next_state)`, plain or async. `config` is the recipe's judge section.
"""

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from clawctl.config import JudgeConfig
from clawctl.errors import ClawError
from clawctl.judge.evidence import Evidence
from clawctl.judge.opinion import Opinion
from clawctl.judge.view import view_turn
from clawctl.plugins import load_object, takes

log = logging.getLogger(__name__)

_CURE = "it needs score(prompt, response, next_state), or a maker of that such as get_reward_model(config)"


@runtime_checkable
class RewardModel(Protocol):
    """What a custom reward model has."""

    def score(self, prompt: str, response: str, next_state: str | None) -> float | Awaitable[float | None] | None:
        """The reward, usually from -1 to 1; None abstains. `prompt` is the request behind as much history as the recipe shows."""
        ...


class CustomJudge:
    """Asks `score`; one that is not async runs in a thread. What it raises leaves the one turn without a verdict, and is told."""

    def __init__(self, spec: str, settings: JudgeConfig) -> None:
        """Raises ClawError (exit code 2) where `spec` cannot be loaded or has no such score."""
        self.name = f"custom {Path(spec.rpartition(':')[0]).name}:{spec.rpartition(':')[2]}"
        self._settings = settings
        self._model = load_reward_model(spec, settings)
        self._told: set[str] = set()

    async def judge(self, turn: Evidence) -> Opinion:
        seen = view_turn(turn, self._settings.history_chars)
        prompt = f"{seen.earlier}\n\n{seen.request}" if seen.earlier else seen.request
        score: Any
        try:
            if inspect.iscoroutinefunction(self._model.score):
                score = await self._model.score(prompt, seen.answer, seen.next_state)
            else:
                score = await asyncio.to_thread(self._model.score, prompt, seen.answer, seen.next_state)
        except Exception as error:  # somebody else's code: its bug costs this turn, and is told once with its traceback
            problem = f"{self.name} raised {type(error).__name__}"
            log.warning("%s", problem, exc_info=None if problem in self._told else error)
            self._told.add(problem)
            return Opinion(self.name, None, reason=problem)
        if score is None:
            return Opinion(self.name, None, reason="abstains")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            return Opinion(self.name, None, reason=f"{self.name} gave {type(score).__name__} instead of a finite number")
        return Opinion(self.name, float(score))

    async def close(self) -> None:
        pass


def load_reward_model(spec: str, settings: JudgeConfig) -> RewardModel:
    """What `file.py:name` names, made if it is a class or a function, its `score` checked. Raises ClawError (exit code 2)."""
    found = load_object(spec, "--custom-rm")
    if inspect.isclass(found) or (callable(found) and not hasattr(found, "score")):
        found = _made(found, spec, settings)
    if not isinstance(found, RewardModel) or not takes(found.score, 3):
        raise ClawError(f"custom reward model {spec} has no score that takes prompt, response and next_state", _CURE, 2)
    return found


def _made(maker: Any, spec: str, settings: JudgeConfig) -> Any:
    """An instance: the maker is given the judge's settings if it takes an argument."""
    try:
        return maker(settings) if takes(maker, 1) else maker()
    except Exception as error:
        raise ClawError(f"custom reward model {spec} cannot be made: {error!r}", _CURE, 2) from error
