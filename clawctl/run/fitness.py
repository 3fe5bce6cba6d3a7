"""`verdicts/fitness.json`: the judge's result on the planted turns. Judge publishes it; serve, inspect and doctor show it."""

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from clawctl.errors import Damaged
from clawctl.run.checksums import read_sealed, sealed
from clawctl.run.directory import RunDir, publish_bytes
from clawctl.run.rows import from_json

UNFIT = "unfit judge"  # why a turn has no reward: the judge failed the planted turns, so it was not asked
NEEDED = 10  # valid and right answers of a judge that is used
CURE = (
    "set judge.endpoint to a model that can judge, or teach with thumbs, ratings, your own words as the comment of a bad rating, "
    "or rules"
)


@dataclass(frozen=True, slots=True)
class JudgeIdentity:
    """What the planted turns were asked of. A judge with another identity is asked again."""

    backend: str  # "http://127.0.0.1:8000/v1", or "this run's server: demo"
    model: str  # "crafts@0"
    prompt: str  # the prompt's version
    temperature: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Fitness:
    """The result of one check."""

    judge: JudgeIdentity
    of: int  # planted turns
    right: int
    without_vote: int  # without a valid vote
    checked_at: float  # unix seconds

    @property
    def fit(self) -> bool:
        return self.right >= NEEDED

    @property
    def line(self) -> str:
        """The result, and what to do instead of an unfit judge."""
        result = f"{self.right} of {self.of} planted turns right"
        result += f", {self.without_vote} without a valid vote" if self.without_vote else ""
        if self.fit:
            return f"{self.judge.model} judges: {result}"
        return f"{self.judge.model} is not used as the judge: {result}; {CURE}"

    def shown(self) -> dict[str, Any]:
        """The result for people and scripts. It leaves out the address, which may contain a key."""
        counts = {"right": self.right, "of": self.of, "without_vote": self.without_vote, "checked_at": self.checked_at}
        return {"used": self.fit, "model": self.judge.model, **counts, "line": self.line}


def read_fitness(run: RunDir) -> Fitness | None:
    """Return the recorded result, or None if no judge was checked."""
    try:
        return from_json(Fitness, read_sealed(run.fitness.read_bytes()))
    except (OSError, Damaged, ValueError):
        return None


def publish_fitness(run: RunDir, fitness: Fitness) -> None:
    """Record the result. Raises OSError."""
    publish_bytes(run.fitness, sealed(orjson.dumps(asdict(fitness))))
