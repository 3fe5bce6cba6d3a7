"""Suites: what a policy version is measured with.

A suite is a function that asks an endpoint and returns metrics, or an environment, whose held-out tasks are then played
(`tasks.py`). It is built in, `file.py:name`, or the entry point `clawctl.suites` or `clawctl.environments` of an installed package.
To add a built-in one, add a file and a line to SUITES. `docs/environments.md` shows one of ten lines.
"""

import hashlib
import inspect
import math
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

from clawctl.config import EvalConfig, SuiteConfig
from clawctl.environments import ENVIRONMENTS, create, is_environment
from clawctl.environments.asking import Refused
from clawctl.errors import ClawError
from clawctl.eval.intervals import Estimate, estimate
from clawctl.plugins import takes
from clawctl.registry import Registry
from clawctl.run.endpoint import Endpoint


class CannotMeasure(Exception):
    """There is no measurement. `gone`: the server could not be reached at all, so this is not a result for the policy."""

    def __init__(self, problem: str, gone: bool = False):
        super().__init__(problem)
        self.gone = gone


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """The settings of one suite: its own, and those of `eval` where it has none."""

    problems: int
    seed: int
    temperature: float
    max_tokens: int
    concurrency: int
    options: Mapping[str, Any] = field(default_factory=dict)  # `options` in the recipe


@dataclass(frozen=True, slots=True)
class Measured:
    """One suite's numbers on one policy version."""

    metrics: Mapping[str, Estimate]  # "satisfaction", "correctness"
    parts: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)  # "student": the same metrics of these tasks alone
    examples: Sequence[Mapping[str, Any]] = ()  # {"task_id", "prompt", "reply", …}: the same tasks for each version

    def as_json(self) -> dict[str, Any]:
        parts = {part: {name: value.as_json() for name, value in found.items()} for part, found in self.parts.items()}
        return {**{name: value.as_json() for name, value in self.metrics.items()}, "by_role": parts}


class Suite(Protocol):
    """`async def my_suite(endpoint, settings)`. An attribute `metrics`, a tuple of names, lets the gate be checked at the start."""

    def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Awaitable[Measured | Mapping[str, Sequence[float]]]:
        """Measure the model at `endpoint`, whose calls are not captured.

        Returns the numbers, or for each metric the values of all tasks: {"correct": [True, False, …]}. More is better. Raises
        Refused or CannotMeasure if the server does not answer.
        """
        ...


SUITES: Registry[Any] = Registry(
    "suite",
    "clawctl.suites",
    {
        "personalisation": "clawctl.environments.homework.environment:Homework",
        "wishes": "clawctl.environments.wishes.environment:Wishes",
    },
)


@dataclass(frozen=True, slots=True)
class LoadedSuite:
    """A suite of the recipe, ready to run."""

    name: str  # as the recipe has it
    suite: Suite
    settings: SuiteSettings
    metrics: tuple[str, ...] | None  # those that it will report, if it says so beforehand

    async def measure(self, endpoint: Endpoint) -> Measured:
        """Raises CannotMeasure, also if the suite fails, and ClawError if the settings are at fault."""
        sampling = {"temperature": self.settings.temperature, "max_tokens": self.settings.max_tokens}
        place = Endpoint(endpoint.url, endpoint.api_key, endpoint.model, {"X-Capture": "off"}, sampling)
        try:
            found = await self.suite(place, self.settings)
            measured = found if isinstance(found, Measured) else Measured({name: estimate(found[name]) for name in found})
            if wrong := [name for name, value in measured.metrics.items() if not math.isfinite(value.mean)]:
                raise CannotMeasure(f"suite {self.name} reports no number for {', '.join(wrong)}")
            return measured
        except (ClawError, CannotMeasure):
            raise
        except Refused as refused:
            raise unanswered(refused, endpoint) from refused
        except Exception as error:  # code of the user's own
            raise CannotMeasure(f"suite {self.name} failed: {error!r}") from error


def unanswered(refused: Refused, endpoint: Endpoint) -> ClawError | CannotMeasure:
    """What it means that the server did not answer a task."""
    problem = f"{endpoint.model} at {endpoint.url}: {refused}"
    if refused.status in (401, 403):
        return ClawError(problem, "set the key of that server for eval (serve.api_key or CLAWCTL_API_KEY)")
    return CannotMeasure(problem, gone=refused.status in (None, 502, 503, 504))


def load_suites(config: EvalConfig) -> list[LoadedSuite]:
    """The suites of the recipe. Raises ClawError (exit code 2) for one that does not exist or cannot be called."""
    return [_loaded(suite, config) for suite in config.suites]


def _loaded(suite: SuiteConfig, config: EvalConfig) -> LoadedSuite:
    name, option = suite.name, "eval.suites"
    known = ENVIRONMENTS if name in ENVIRONMENTS.names() and name not in SUITES.names() else SUITES
    found = known.load(name, option)
    metrics = getattr(found, "metrics", None)
    if is_environment(found):
        from clawctl.eval.suites.tasks import measure_tasks

        found = partial(measure_tasks, create(found, name, option))
    elif not inspect.iscoroutinefunction(found) or not takes(found, 2):
        cure = "write `async def NAME(endpoint, settings)`, or an environment; docs/environments.md has both"
        raise ClawError(f"{option}: {name} is not a suite", cure, 2)
    return LoadedSuite(name, found, _settings(suite, config), None if metrics is None else tuple(metrics))


def _settings(suite: SuiteConfig, config: EvalConfig) -> SuiteSettings:
    shared = ("problems", "seed", "temperature", "max_tokens", "concurrency")
    own = {name: value for name in shared if (value := getattr(suite, name)) is not None}
    return SuiteSettings(**{name: getattr(config, name) for name in shared} | own, options=suite.options)


@cache  # as it was when this process loaded it
def digest_of(name: str) -> str | None:
    """A hash of the code of `file.py:name`: other code measures something else. None for other suites."""
    file = Path(name.rpartition(":")[0] or name)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.suffix == ".py" and file.is_file() else None
