"""A custom reward model: `judge --custom-rm file.py:name`.

`name` is a class, a function that returns an object (`get_reward_model(config)`), or an object. The object has the method
`score(prompt, response, next_state)`, plain or async. `name` may also be that function itself. `config` is the recipe's section
`judge`. The scale is declared (`judge.custom_rm_range`, or `reward_range` on the object) or inferred (`reward_range.py`).
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
from clawctl.judge.protocol import Evidence, Opinion
from clawctl.judge.reward_range import OUTSIDE, RewardRange
from clawctl.judge.view import view_turn
from clawctl.plugins import load_object, takes, with_name
from clawctl.run.directory import RunDir

log = logging.getLogger(__name__)

_CURE = "pass a function (prompt, response, next_state), an object with such a score method, or get_reward_model(config)"


@runtime_checkable
class RewardModel(Protocol):
    """The interface of a custom reward model."""

    def score(self, prompt: str, response: str, next_state: str | None) -> float | Awaitable[float | None] | None:
        """The reward on the model's scale. None abstains. `prompt` is the request, preceded by the configured amount of history."""
        ...


@dataclass(frozen=True, slots=True)
class _Function:
    """A plain function as a reward model."""

    score: Callable[..., Any]
    reward_range: Any = None


class CustomJudge:
    """Calls `score`, in a thread if it is not async.

    If `score` raises an exception, the turn gets no verdict. The location of each problem is logged once. The exception's message
    is not logged, because it may quote the conversation.
    """

    def __init__(self, spec: str, settings: JudgeConfig, run: RunDir | None = None) -> None:
        """`run` stores the inferred range.

        Raises ClawError (exit code 2) if `spec` cannot be loaded, or has no valid score method or range.
        """
        spec = with_name(spec, "--custom-rm")
        self.name = f"custom {Path(spec.rpartition(':')[0]).name}:{spec.rpartition(':')[2]}"
        self._settings = settings
        self._model = load_reward_model(spec, settings)
        self._logged: set[str] = set()
        declared = settings.custom_rm_range or getattr(self._model, "reward_range", None)
        self._range = RewardRange(self.name, Path(spec.rpartition(":")[0]), declared, run)

    def doubt(self) -> ClawError | None:
        return self._range.doubt()

    async def judge(self, turn: Evidence) -> Opinion:
        """Judge one turn. Raises ClawError if a reward shows that the model's range must be declared."""
        view = view_turn(turn, self._settings.history_chars)
        prompt = f"{view.earlier}\n\n{view.request}" if view.earlier else view.request
        score: Any
        try:
            if inspect.iscoroutinefunction(self._model.score):
                score = await self._model.score(prompt, view.answer, view.next_state)
            else:
                score = await asyncio.to_thread(self._model.score, prompt, view.answer, view.next_state)
                if inspect.isawaitable(score):  # returned by a decorated or partial function
                    score = await score
        except (Exception, SystemExit) as error:  # noqa: BLE001 - user code: its bug costs only this turn, and is logged
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
        if problem not in self._logged:
            self._logged.add(problem)
            log.warning(
                "%s: such turns have no reward; a later line reports their number%s", problem, f"\n{where}" if where else ""
            )
        return Opinion(self.name, None, reason=problem)

    async def close(self) -> None:
        pass


def _number(score: Any) -> float | None:
    """A Python, numpy or torch number as a float. None for other values, including texts and booleans."""
    if isinstance(score, bool) or not isinstance(score, SupportsFloat):
        return None
    try:
        return float(score)
    except (TypeError, ValueError, RuntimeError, OverflowError):  # an array of many numbers
        return None


def load_reward_model(spec: str, settings: JudgeConfig) -> RewardModel:
    """The object `file.py:name`, with a valid `score`. Classes and functions are called first.

    Raises ClawError (exit code 2).
    """
    model = load_object(spec, "--custom-rm")
    if callable(model) and not inspect.isclass(model) and takes(model, 3) and not takes(model, 1) and not takes(model, 0):
        model = _Function(model, getattr(model, "reward_range", None))
    elif inspect.isclass(model) or (callable(model) and not hasattr(model, "score")):
        model = _made(model, spec, settings)
    model = _scoring(model)
    if not isinstance(model, RewardModel) or not takes(model.score, 3):
        raise ClawError(f"custom reward model {spec} has no score(prompt, response, next_state)", _CURE, 2)
    return model


def _scoring(model: Any) -> Any:
    """`model` with a method `score`. Other systems use other names for it."""
    other = next((name for name in ("compute_reward", "get_reward", "reward") if callable(getattr(model, name, None))), None)
    if hasattr(model, "score") or other is None:
        return model
    return _Function(getattr(model, other), getattr(model, "reward_range", None))


def _made(maker: Any, spec: str, settings: JudgeConfig) -> Any:
    """Call the class or function, with the judge's settings if it takes an argument, or with the model's path if that is a path."""
    try:
        if not takes(maker, 1):
            return maker()
        parameter = next(iter(inspect.signature(maker).parameters.values()))
        is_path = parameter.annotation in (str, "str", Path) or parameter.name.endswith(("path", "checkpoint", "dir", "model_name"))
        return maker(settings["prm_model_path"] if is_path else settings)
    except KeyError as error:  # a setting without a value
        cure = "name its model with --prm PATH, PRM_MODEL_PATH or judge.prm" if "judge.prm " in str(error) else _CURE
        raise ClawError(f"custom reward model {spec} cannot be created: {error.args[0]}", cure, 2) from error
    except Exception as error:
        raise ClawError(f"custom reward model {spec} cannot be created: {error!r}", _cure_of(error, spec, settings), 2) from error


def _cure_of(error: Exception, spec: str, settings: JudgeConfig) -> str:
    """What to do about an error in the user's own code."""
    if settings.prm is not None and Path(settings.prm).is_absolute() and not Path(settings.prm).exists():
        return f"there is no {settings.prm}: name its model with --prm PATH, PRM_MODEL_PATH or judge.prm"
    return _CURE if isinstance(error, TypeError) else f"correct {spec.rpartition(':')[0]}"
