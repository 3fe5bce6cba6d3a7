"""Suites, which measure a policy version.

A suite takes one of three forms:

- a function that asks an endpoint and returns metrics;
- an environment, whose held-out tasks are played (`tasks.py`);
- a class with `compare`, which lets two versions answer the same tasks.

It is built in, `file.py:name`, or an entry point (`clawctl.suites` or `clawctl.environments`) of an extension or installed package.

To add a built-in suite, add a file and a line in SUITES. `docs/environments.md` shows a suite of ten lines.
"""

import hashlib
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from clawctl.asking import Refused
from clawctl.config import Recipe
from clawctl.environments.code_version import source_files
from clawctl.errors import ClawError
from clawctl.eval.comparisons import Comparison
from clawctl.intervals import Estimate
from clawctl.registry import Registry
from clawctl.run.directory import RunDir
from clawctl.run.endpoint import Endpoint


class CannotMeasure(Exception):
    """There is no measurement. `gone`: the server could not be reached, so the failure does not count against the policy."""

    def __init__(self, problem: str, unreachable: bool = False, fix: str = "start `clawctl serve --intercept` on this run first"):
        super().__init__(problem)
        self.unreachable = unreachable
        self.fix = fix


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

    metrics: Mapping[str, Estimate]  # "correct", "guards"
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
    "suite", "clawctl.suites", {"own": "clawctl.eval.suites.own:Own", "replay": "clawctl.eval.suites.replay:ReplaySuite"}
)


def unanswered(refused: Refused, endpoint: Endpoint) -> ClawError | CannotMeasure:
    """The error for a task that the server did not answer. A wrong key is a ClawError; otherwise it is CannotMeasure."""
    problem = f"{endpoint.model} at {endpoint.url}: {refused}"
    if refused.status in (401, 403):
        return ClawError(problem, "set the key of that server for eval (serve.api_key or CLAWCTL_API_KEY)")
    return CannotMeasure(problem, unreachable=refused.status in (None, 502, 503, 504))


@cache  # the code at the time when this process loaded it
def digest_of(name: str) -> str | None:
    """A hash of the code of `file.py:name` and of what it imports from its folder, because changed code measures something else.

    None for other suites.
    """
    file = Path(name.rpartition(":")[0] or name).resolve()
    if file.suffix != ".py" or not file.is_file():
        return None
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in source_files(file))).hexdigest()[:16]
