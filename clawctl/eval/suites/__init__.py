"""Suites, which measure a policy version.

A suite takes one of three forms:

- a function that asks an endpoint and returns metrics;
- an environment, whose held-out tasks are played (`tasks.py`);
- a class with `compare`, which lets two versions answer the same tasks.

It is built in, `file.py:name`, or the entry point `clawctl.suites` or `clawctl.environments` of an installed package.

To add a built-in suite, add a file and a line in SUITES. `docs/environments.md` shows a suite of ten lines.
"""

import hashlib
import inspect
import math
from collections.abc import Awaitable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from clawctl.config import HARNESS_PREFIXES, EvalConfig, Recipe, SuiteConfig
from clawctl.environments import ENVIRONMENTS, Environment, create, is_environment
from clawctl.environments.asking import Refused
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.eval.intervals import Estimate, estimate
from clawctl.plugins import takes
from clawctl.registry import Registry
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint

Found = TypeVar("Found")


class CannotMeasure(Exception):
    """There is no measurement. `gone`: the server could not be reached, so the failure does not count against the policy."""

    def __init__(self, problem: str, unreachable: bool = False):
        super().__init__(problem)
        self.unreachable = unreachable


@dataclass(frozen=True, slots=True)
class SuiteSettings:
    """The settings of one suite. Settings that the suite does not set come from `eval`."""

    problems: int
    seed: int
    temperature: float
    max_tokens: int
    concurrency: int
    options: Mapping[str, Any] = field(default_factory=dict)  # `options` in the recipe
    run: RunDir | None = None  # the run whose conversations a suite may read; None outside of a run
    recipe: Recipe | None = None  # that run's recipe


@dataclass(frozen=True, slots=True)
class Measured:
    """One suite's numbers on one policy version."""

    metrics: Mapping[str, Estimate]  # "satisfaction", "correctness"
    parts: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)  # metrics by kind of task: "student"
    examples: Sequence[Mapping[str, Any]] = ()  # {"task_id", "prompt", "reply", …}; the same tasks for each version
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # {metric: {task id: value}}; the gate pairs them

    def as_json(self) -> dict[str, Any]:
        parts = {part: {name: value.as_json() for name, value in values.items()} for part, values in self.parts.items()}
        return {**{name: value.as_json() for name, value in self.metrics.items()}, "by_role": parts}


class Suite(Protocol):
    """`async def my_suite(endpoint, settings)`. With an attribute `metrics` (a tuple of names), the gate is checked at startup."""

    def __call__(self, endpoint: Endpoint, settings: SuiteSettings) -> Awaitable[Measured | Mapping[str, Sequence[float]]]:
        """Measure the model at `endpoint`. Its calls are not captured.

        Returns the measurement, or the values of all tasks by metric: {"correct": [True, False, …]}. Higher values are better.
        Raises Refused or CannotMeasure if the server does not answer.
        """
        ...


class ComparingSuite(Protocol):
    """A suite that compares two versions, on as many tasks as the gate needs.

    The user names the class, which is created without arguments. It may also have `__call__`; it then reports metrics of one
    version like any other suite.
    """

    def compare(
        self, candidate: Endpoint, reference: Endpoint, settings: SuiteSettings, begin: int, count: int
    ) -> Awaitable[Sequence[Comparison]]:
        """Compare on the tasks `begin` … `begin + count` of a fixed, seeded order. Fewer are returned if no more tasks exist.

        The calls are not captured. Raises Refused or CannotMeasure if the server does not answer.
        """
        ...


SUITES: Registry[Any] = Registry(
    "suite",
    "clawctl.suites",
    {
        "personalisation": "clawctl.environments.homework.environment:Homework",
        "wishes": "clawctl.environments.wishes.environment:Wishes",
        "own": "clawctl.eval.suites.own:Own",
        "replay": "clawctl.eval.suites.replay:ReplaySuite",
        "ability": "clawctl.eval.suites.ability:Ability",
        "bfcl": "clawctl.environments.toolcall.bfcl:Bfcl",
    },
)


@dataclass(frozen=True, slots=True)
class LoadedSuite:
    """A suite of the recipe, ready to run."""

    name: str  # as written in the recipe
    suite: Suite | None  # None: the suite only compares
    settings: SuiteSettings
    metrics: tuple[str, ...] | None  # the names of its metrics, if it declares them
    comparing: ComparingSuite | None = None
    environment: Environment | None = None

    async def measure(self, endpoint: Endpoint) -> Measured:
        """The metrics of one version. A suite that only compares returns none.

        Raises CannotMeasure, also if the suite itself fails, and ClawError if the settings are wrong.
        """
        if self.suite is None:
            return Measured({})
        result = await self._guarded(self.suite(self._place(endpoint), self.settings), endpoint)
        try:
            measured = result if isinstance(result, Measured) else Measured({name: estimate(result[name]) for name in result})
        except Exception as error:  # values of the user's own code
            raise CannotMeasure(f"suite {self.name} failed: {error!r}") from error
        if wrong := [name for name, value in measured.metrics.items() if not math.isfinite(value.mean)]:
            raise CannotMeasure(f"suite {self.name} reports no number for {', '.join(wrong)}")
        return measured

    async def measure_more(self, endpoint: Endpoint, count: int, known: Collection[str]) -> Measured:
        """Measure an environment's first `count` tasks, except those in `known`. Raises the same errors as `measure`."""
        from clawctl.eval.suites.tasks import measure_tasks

        if self.environment is None:
            return Measured({})
        more = replace(self.settings, problems=count)
        return await self._guarded(measure_tasks(self.environment, self._place(endpoint), more, known), endpoint)

    async def compare(self, candidate: Endpoint, reference: Endpoint, begin: int, count: int) -> list[Comparison]:
        """Compare two versions on `count` tasks. Raises the same errors as `measure`."""
        if self.comparing is None:
            return []
        comparing = self.comparing.compare(self._place(candidate), self._place(reference), self.settings, begin, count)
        return list(await self._guarded(comparing, candidate))

    def _place(self, endpoint: Endpoint) -> Endpoint:
        sampling = {"temperature": self.settings.temperature, "max_tokens": self.settings.max_tokens}
        return Endpoint(endpoint.url, endpoint.api_key, endpoint.model, {"X-Capture": "off"}, sampling)

    async def _guarded(self, work: Awaitable[Found], endpoint: Endpoint) -> Found:
        """Run the suite's code, and convert its exceptions to CannotMeasure or ClawError."""
        try:
            return await work
        except (ClawError, CannotMeasure):
            raise
        except Refused as refused:
            raise unanswered(refused, endpoint) from refused
        except Exception as error:  # the user's own code
            raise CannotMeasure(f"suite {self.name} failed: {error!r}") from error


def unanswered(refused: Refused, endpoint: Endpoint) -> ClawError | CannotMeasure:
    """The error for a task that the server did not answer. A wrong key is a ClawError; otherwise it is CannotMeasure."""
    problem = f"{endpoint.model} at {endpoint.url}: {refused}"
    if refused.status in (401, 403):
        return ClawError(problem, "set the key of that server for eval (serve.api_key or CLAWCTL_API_KEY)")
    return CannotMeasure(problem, unreachable=refused.status in (None, 502, 503, 504))


def load_suites(config: EvalConfig, run: RunDir | None = None, recipe: Recipe | None = None) -> list[LoadedSuite]:
    """The suites of the recipe. Raises ClawError (exit code 2) if one does not exist or cannot be called."""
    return [_loaded(suite, config, run, recipe) for suite in config.suites]


def _loaded(suite: SuiteConfig, config: EvalConfig, run: RunDir | None, recipe: Recipe | None) -> LoadedSuite:
    name, option = suite.name, "eval.suites"
    if name.startswith(HARNESS_PREFIXES):
        from clawctl.eval.suites.installed import harness_suite

        return LoadedSuite(name, harness_suite(name), _settings(suite, config, run, recipe), None)
    known = ENVIRONMENTS if name in ENVIRONMENTS.names() and name not in SUITES.names() else SUITES
    loaded = known.load(name, option)
    declared = getattr(loaded, "metrics", None)
    metrics = None if declared is None else tuple(declared)
    settings = _settings(suite, config, run, recipe)
    if is_environment(loaded):
        from clawctl.eval.suites.tasks import measure_tasks

        environment = create(loaded, name, option, suite.options)
        return LoadedSuite(name, partial(measure_tasks, environment), settings, metrics, environment=environment)
    compares = callable(getattr(loaded, "compare", None))
    if compares or inspect.isclass(loaded):
        made = _made(loaded, name, option) if inspect.isclass(loaded) else loaded
        measures = made if inspect.iscoroutinefunction(getattr(made, "__call__", None)) else None  # noqa: B004 - it must be async
        if compares or measures is not None:
            return LoadedSuite(name, measures, settings, metrics, comparing=made if compares else None)
    if not inspect.iscoroutinefunction(loaded) or not takes(loaded, 2):
        cure = "write `async def NAME(endpoint, settings)`, or an environment; docs/environments.md has both"
        raise ClawError(f"{option}: {name} is not a suite", cure, 2)
    return LoadedSuite(name, loaded, settings, metrics)


def _made(cls: type, name: str, option: str) -> Any:
    try:
        return cls()
    except Exception as error:  # the user's own code
        raise ClawError(f"{option}: {name} cannot be created: {error!r}", "write a class without arguments", 2) from error


def _settings(suite: SuiteConfig, config: EvalConfig, run: RunDir | None, recipe: Recipe | None) -> SuiteSettings:
    shared = ("problems", "seed", "temperature", "max_tokens", "concurrency")
    own = {name: value for name in shared if (value := getattr(suite, name)) is not None}
    every = {name: getattr(config, name) for name in shared} | own
    return SuiteSettings(**every, options=suite.options, run=run, recipe=recipe)


@cache  # the code at the time when this process loaded it
def digest_of(name: str) -> str | None:
    """A hash of the code of `file.py:name`, because changed code measures something else. None for other suites."""
    file = Path(name.rpartition(":")[0] or name)
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16] if file.suffix == ".py" and file.is_file() else None
