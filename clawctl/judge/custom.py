"""A reward model of the user's own: `judge --custom-rm file.py:name`.

`name` is a class, a function that makes one (`get_reward_model(config)`), or a ready object; what it gives has
`score(prompt, response, next_state)`, plain or async. Or it is that function itself. `config` is the recipe's judge section. Its
scale is declared (`judge.custom_rm_range`, or `reward_range` on it) or found out (`reward_range.py`).
"""

import asyncio
import inspect
import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, SupportsFloat, runtime_checkable

from clawctl.config import JudgeConfig
from clawctl.errors import ClawError
from clawctl.judge.evidence import Evidence
from clawctl.judge.opinion import Opinion
from clawctl.judge.reward_range import OUTSIDE, RewardRange
from clawctl.judge.view import view_turn
from clawctl.plugins import load_object, takes, with_name
from clawctl.run_dir import RunDir

log = logging.getLogger(__name__)

_CURE = "name a function (prompt, response, next_state), or what has it as its score, or a maker of that: get_reward_model(config)"


@runtime_checkable
class RewardModel(Protocol):
    """What a custom reward model has."""

    def score(self, prompt: str, response: str, next_state: str | None) -> float | Awaitable[float | None] | None:
        """The reward, on the model's scale; None abstains. `prompt` is the request behind as much history as the recipe shows."""
        ...


@dataclass(frozen=True, slots=True)
class _Function:
    """A plain function as a reward model."""

    score: Callable[..., Any]
    reward_range: Any = None


class CustomJudge:
    """Asks `score`; one that is not async runs in a thread. What it raises leaves the one turn without a verdict, and is told once:
    where, but not with what message, for that may quote the conversation, and logs hold no word of one."""

    def __init__(self, spec: str, settings: JudgeConfig, run: RunDir | None = None) -> None:
        """Raises ClawError (exit code 2) where `spec` cannot be loaded, or has no such score or no right range. `run` keeps what is
        found out of its range."""
        spec = with_name(spec, "--custom-rm")
        self.name = f"custom {Path(spec.rpartition(':')[0]).name}:{spec.rpartition(':')[2]}"
        self._settings = settings
        self._model = load_reward_model(spec, settings)
        self._told: set[str] = set()
        declared = settings.custom_rm_range or getattr(self._model, "reward_range", None)
        self._range = RewardRange(self.name, Path(spec.rpartition(":")[0]), declared, run)

    def doubt(self) -> ClawError | None:
        return self._range.doubt()

    async def judge(self, turn: Evidence) -> Opinion:
        """Raises ClawError where a reward proves that the model's range must be declared."""
        seen = view_turn(turn, self._settings.history_chars)
        prompt = f"{seen.earlier}\n\n{seen.request}" if seen.earlier else seen.request
        score: Any
        try:
            if inspect.iscoroutinefunction(self._model.score):
                score = await self._model.score(prompt, seen.answer, seen.next_state)
            else:
                score = await asyncio.to_thread(self._model.score, prompt, seen.answer, seen.next_state)
                if inspect.isawaitable(score):  # of a decorated or partial one
                    score = await score
        except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's code: its bug costs this turn, and is told
            return self._nothing(f"{self.name} raised {type(error).__name__}", "".join(traceback.format_tb(error.__traceback__)))
        if score is None:
            return Opinion(self.name, None, reason="abstains")
        reward = _number(score)
        if reward is None:
            return self._nothing(f"{self.name} gave {type(score).__name__} instead of a number")
        if not math.isfinite(reward):
            return self._nothing(f"{self.name} gave {reward} instead of a finite number")
        worth = self._range.reward(reward)
        return self._nothing(f"{self.name} gave a {OUTSIDE}") if worth is None else Opinion(self.name, worth)

    def _nothing(self, problem: str, where: str = "") -> Opinion:
        if problem not in self._told:
            self._told.add(problem)
            log.warning("%s: such turns have no reward; how many is counted below%s", problem, f"\n{where}" if where else "")
        return Opinion(self.name, None, reason=problem)

    async def close(self) -> None:
        pass


def _number(score: Any) -> float | None:
    """A number of Python, numpy or torch; a text or a truth value is none."""
    if isinstance(score, bool) or not isinstance(score, SupportsFloat):
        return None
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of many numbers
        return None


def load_reward_model(spec: str, settings: JudgeConfig) -> RewardModel:
    """What `file.py:name` names, made if it is a class or a function, its `score` checked. Raises ClawError (exit code 2)."""
    found = load_object(spec, "--custom-rm")
    if callable(found) and not inspect.isclass(found) and takes(found, 3) and not takes(found, 1) and not takes(found, 0):
        found = _Function(found, getattr(found, "reward_range", None))
    elif inspect.isclass(found) or (callable(found) and not hasattr(found, "score")):
        found = _made(found, spec, settings)
    found = _scoring(found)
    if not isinstance(found, RewardModel) or not takes(found.score, 3):
        raise ClawError(f"custom reward model {spec} has no score that takes prompt, response and next_state", _CURE, 2)
    return found


def _scoring(found: Any) -> Any:
    """`found` by the name that we call: other systems call its method otherwise."""
    other = next((name for name in ("compute_reward", "get_reward", "reward") if callable(getattr(found, name, None))), None)
    if hasattr(found, "score") or other is None:
        return found
    return _Function(getattr(found, other), getattr(found, "reward_range", None))


def _made(maker: Any, spec: str, settings: JudgeConfig) -> Any:
    """An instance: the maker is given the judge's settings if it takes an argument."""
    try:
        return maker(settings) if takes(maker, 1) else maker()
    except Exception as error:
        raise ClawError(f"custom reward model {spec} cannot be made: {error!r}", _CURE, 2) from error
