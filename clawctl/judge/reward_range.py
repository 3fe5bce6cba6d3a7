"""Finds the scale of a custom reward model, and maps its rewards to -1 (bad) … 1 (good).

The scale is declared by `judge.custom_rm_range`, or by `reward_range = (low, high)` on the model. Otherwise it is inferred. The
scale is -1 to 1 if the model has returned rewards of -0.1 or less, rewards of 0.1 or more, and none outside of -1 … 1. Other
rewards are ambiguous: 0.1 is bad for a probability, 1 is bad for stars, and -0.1 is good for a logprob. Until the scale is known,
none of these verdicts is published. `verdicts/custom-range.json` stores the result for other workers.
"""

import hashlib
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from clawctl.errors import ClawError, Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes

log = logging.getLogger(__name__)

FILE = "custom-range.json"  # in the folder verdicts/
OUTSIDE = "reward outside its declared range"
_ROUNDING = 1e-6  # as a share of the range; float32 values may exceed its ends by this much
_CLEAR = 0.1  # estimates of a probability are never this far below 0
_DECLARE = "set its scale, then the turns are judged: judge.custom_rm_range: [0, 1] for probabilities, [-1, 1] if 0 is neutral"


class RewardRange:
    """The scale of one reward model."""

    def __init__(self, name: str, code: Path, declared: Sequence[float] | None, run: RunDir | None) -> None:
        """`code` is the model's file. A stored result is valid only for the same content of this file.

        Raises ClawError (exit code 2) if `declared` is not a range.
        """
        self._name, self._run = name, run
        self._declared = None if declared is None else checked(declared, f"the range of {name}")
        self._key = {"model": name, "code": hashlib.sha256(code.read_bytes()).hexdigest()} if code.is_file() else {"model": name}
        self._lowest, self._highest = math.inf, -math.inf  # the rewards so far, if no range is declared
        self._is_known = declared is not None

    def reward(self, given: float) -> float | None:
        """The model's reward, mapped to -1 … 1. None if it is outside of the declared range.

        Raises ClawError if the reward shows that an undeclared range is not -1 to 1.
        """
        low, high = self._declared or (-1.0, 1.0)
        slack = _ROUNDING * (high - low)
        if not low - slack <= given <= high + slack:
            if self._declared is not None:
                return None
            raise ClawError(f"{self._name} returned {given:g}, so its rewards are not on a scale from -1 to 1", _DECLARE)
        if self._declared is None:
            self._observe(given)
        given = min(max(given, low), high)
        return given if (low, high) == (-1.0, 1.0) else 2 * (given - low) / (high - low) - 1

    def doubt(self) -> ClawError | None:
        """Why the model's rewards are not reliable yet, or None if they are."""
        if self._is_known or self._load():
            self._is_known = True
            return None
        gave = f"only rewards from {self._lowest:g} to {self._highest:g}" if self._lowest <= self._highest else "no reward"
        return ClawError(f"{self._name} returned {gave} so far; their meaning depends on the scale, which is not known", _DECLARE)

    def _observe(self, given: float) -> None:
        self._lowest, self._highest = min(self._lowest, given), max(self._highest, given)
        if not self._is_known and self._lowest <= -_CLEAR and self._highest >= _CLEAR:
            self._is_known = True
            self._save()

    def _save(self) -> None:
        if self._run is None:
            return
        record = {**self._key, "lowest": self._lowest, "highest": self._highest}
        with suppress(OSError):  # if the disk is full, a later worker infers it again
            publish_bytes(self._run.reward_range, sealed(orjson.dumps(record)))

    def _load(self) -> bool:
        """Whether this or another worker has already inferred the range for this version of the model."""
        if self._run is None:
            return False
        try:
            record: Any = read_sealed(self._run.reward_range.read_bytes())
        except (OSError, Damaged):
            return False
        return isinstance(record, dict) and all(record.get(key) == value for key, value in self._key.items())


def checked(given: Any, what: str) -> tuple[float, float]:
    """A range as two finite numbers, the lower one first. Raises ClawError (exit code 2) if `given` is not a range."""
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError) as error:
        raise ClawError(f"{what} is {given!r}", "set two numbers, such as [0, 1]", 2) from error
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ClawError(f"{what} is {given!r}", "set two numbers, the lower one first, such as [0, 1]", 2)
    return low, high
