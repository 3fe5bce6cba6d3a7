"""Suites of a recipe, ready to run."""

import inspect
import math
from collections.abc import Awaitable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from clawctl.asking import Refused
from clawctl.config import HARNESS_PREFIXES, EvalConfig, Recipe, SuiteConfig
from clawctl.environments import ENVIRONMENTS, Environment, create, is_environment
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.eval.suites import SUITES, CannotMeasure, ComparingSuite, Measured, Suite, SuiteSettings, unanswered
from clawctl.eval.suites.installed import harness_suite
from clawctl.eval.suites.tasks import measure_tasks
from clawctl.intervals import estimate
from clawctl.plugins import takes
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import QUIET, Endpoint

Result = TypeVar("Result")


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
        result = await self._guarded(self.suite(self._quiet(endpoint), self.settings), endpoint)
        try:
            measured = result if isinstance(result, Measured) else Measured({name: estimate(result[name]) for name in result})
        except Exception as error:  # values of the user's own code
            raise CannotMeasure(f"suite {self.name} failed: {error!r}") from error
        if wrong := [name for name, value in measured.metrics.items() if not math.isfinite(value.mean)]:
            raise CannotMeasure(f"suite {self.name} reports no number for {', '.join(wrong)}")
        return measured

    async def measure_more(self, endpoint: Endpoint, count: int, excluded: Collection[str]) -> Measured:
        """Measure an environment's first `count` tasks, except those in `excluded`. Raises the same errors as `measure`."""
        if self.environment is None:
            return Measured({})
        more = replace(self.settings, problems=count)
        return await self._guarded(measure_tasks(self.environment, self._quiet(endpoint), more, excluded), endpoint)

    async def compare(self, candidate: Endpoint, reference: Endpoint, begin: int, count: int) -> list[Comparison]:
        """Compare two versions on `count` tasks. Raises the same errors as `measure`."""
        if self.comparing is None:
            return []
        comparing = self.comparing.compare(self._quiet(candidate), self._quiet(reference), self.settings, begin, count)
        return list(await self._guarded(comparing, candidate))

    def _quiet(self, endpoint: Endpoint) -> Endpoint:
        sampling = {"temperature": self.settings.temperature, "max_tokens": self.settings.max_tokens}
        return Endpoint(endpoint.url, endpoint.api_key, endpoint.model, QUIET, sampling)

    async def _guarded(self, work: Awaitable[Result], endpoint: Endpoint) -> Result:
        """Run the suite's code, and convert its exceptions to CannotMeasure or ClawError."""
        try:
            return await work
        except (ClawError, CannotMeasure):
            raise
        except Refused as refused:
            raise unanswered(refused, endpoint) from refused
        except Exception as error:  # the user's own code
            raise CannotMeasure(f"suite {self.name} failed: {error!r}") from error


def load_suites(config: EvalConfig, run: RunDir | None = None, recipe: Recipe | None = None) -> list[LoadedSuite]:
    """The suites of the recipe. Raises ClawError (exit code 2) if one does not exist or cannot be called."""
    return [_loaded(suite, config, run, recipe) for suite in config.suites]


def _loaded(suite: SuiteConfig, config: EvalConfig, run: RunDir | None, recipe: Recipe | None) -> LoadedSuite:
    name, option = suite.name, "eval.suites"
    if name.startswith(HARNESS_PREFIXES):
        return LoadedSuite(name, harness_suite(name), _settings(suite, config, run, recipe), None)
    registry = ENVIRONMENTS if name in ENVIRONMENTS.names() and name not in SUITES.names() else SUITES
    loaded = registry.load(name, option)
    declared = getattr(loaded, "metrics", None)
    metrics = None if declared is None else tuple(declared)
    settings = _settings(suite, config, run, recipe)
    if is_environment(loaded):
        environment = create(loaded, name, option, suite.options)
        return LoadedSuite(name, partial(measure_tasks, environment), settings, metrics, environment=environment)
    compares = callable(getattr(loaded, "compare", None))
    if compares or inspect.isclass(loaded):
        made = _made(loaded, name, option) if inspect.isclass(loaded) else loaded
        measures = made if inspect.iscoroutinefunction(getattr(made, "__call__", None)) else None  # noqa: B004 - it must be async
        if compares or measures is not None:
            return LoadedSuite(name, measures, settings, metrics, comparing=made if compares else None)
    if not inspect.iscoroutinefunction(loaded) or not takes(loaded, 2):
        cure = "write `async def NAME(endpoint, settings)`, or an environment; `clawctl docs environments` has both"
        raise ClawError(f"{option}: {name} is not a suite", cure, 2)
    return LoadedSuite(name, loaded, settings, metrics)


def _made(cls: type, name: str, option: str) -> Any:
    try:
        return cls()
    except Exception as error:  # the user's own code
        raise ClawError(f"{option}: {name} cannot be created: {error!r}", "write a class without arguments", 2) from error


def _settings(suite: SuiteConfig, config: EvalConfig, run: RunDir | None, recipe: Recipe | None) -> SuiteSettings:
    shared = ("problems", "seed", "temperature", "max_tokens", "concurrency")
    specific = {name: value for name in shared if (value := getattr(suite, name)) is not None}
    every = {name: getattr(config, name) for name in shared} | specific
    return SuiteSettings(**every, options=suite.options, run=run, recipe=recipe)
