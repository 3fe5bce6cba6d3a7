"""`eval:`, how a policy is measured, and `gate:`, which policy may go live."""

from typing import Any

from pydantic import Field, field_validator, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Section


class SuiteConfig(Section):
    """A suite with settings of its own. A name alone is the short form."""

    name: str = Field(min_length=1)
    """A built-in suite, `file.py:name`, or the suite of an installed package. An environment is a suite as well."""
    problems: int | None = Field(None, gt=0)
    """Unset: `eval.problems`."""
    seed: int | None = None
    """Unset: `eval.seed`."""
    temperature: float | None = Field(None, ge=0)
    """Unset: `eval.temperature`."""
    max_tokens: int | None = Field(None, gt=0)
    """Unset: `eval.max_tokens`."""
    concurrency: int | None = Field(None, gt=0)
    """Unset: `eval.concurrency`."""
    options: dict[str, Any] = {}
    """Settings that only this suite knows."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_serializer(mode="plain")
    def short(self) -> str | dict[str, Any]:
        """The name, or with other settings a mapping."""
        own = {name: value for name in type(self).model_fields if (value := getattr(self, name)) not in (None, {})}
        return self.name if own.keys() == {"name"} else own

    def __str__(self) -> str:
        return self.name


class EvalConfig(Section):
    suites: list[SuiteConfig] = [SuiteConfig(name="personalisation")]
    """Suites to run: names, or mappings with settings of their own. `personalisation` simulates students and teachers. It measures
    satisfaction and the correctness of first replies. `docs/environments.md` shows how to write one."""
    holdout: float = Field(0.1, ge=0, lt=1)
    """Share of the sessions that are never trained, so that versions can be measured on them (suites `own` and `replay`). The key
    and the session id decide. Episodes and imported texts are not held out. A change counts for sessions that begin after it."""
    problems: int = Field(36, gt=0)
    """Tasks in a suite."""
    seed: int = 0
    """Seed that selects the tasks. The tasks never overlap with those that are played for training."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature of the measured answers."""
    max_tokens: int = Field(1024, gt=0)
    """Maximum number of tokens in an answer. The limit also bounds the time for a version that does not stop by itself."""
    concurrency: int = Field(16, gt=0)
    """Maximum number of tasks in work at a time."""
    endpoint: HttpUrl | None = None
    """Server to measure. Unset: the server of this run."""

    @field_validator("suites")
    @classmethod
    def _each_once(cls, suites: list[SuiteConfig]) -> list[SuiteConfig]:
        names = [suite.name for suite in suites]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise PydanticCustomError("suite_twice", "the suite {name} is named twice", {"name": twice})
        return suites


class GateLimit(Section):
    """One row of the gate."""

    suite: str
    """A suite of `eval.suites`."""
    metric: str
    """A metric that it reports. More is better."""
    max_drop: float = Field(ge=0)
    """Largest allowed drop of the metric."""


class GateConfig(Section):
    max_correctness_drop: float = Field(0.10, ge=0, le=1)
    """Largest allowed drop in the share of correct answers of `personalisation`. A candidate is refused if it falls further below
    the live version, the base version or the best version so far."""
    max_satisfaction_drop: float = Field(0.10, ge=0, le=1)
    """Largest allowed drop in satisfaction, by the same comparison."""
    limits: list[GateLimit] = []
    """Metrics of any suites, instead of these two. The short form is a list: `gate: [{suite: …, metric: …, max_drop: …}]`."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        return {"limits": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _one_form(self) -> "GateConfig":
        if "limits" in self.model_fields_set:
            if not self.limits:
                raise PydanticCustomError("no_limits", "a gate without rows refuses nothing: name a metric, or leave the gate out")
            if ignored := self.model_fields_set - {"limits"}:
                raise PydanticCustomError("both_forms", "{name} has no effect beside rows", {"name": min(ignored)})
        return self

    @model_serializer(mode="plain")
    def short(self) -> Any:
        if self.limits:
            return [limit.model_dump() for limit in self.limits]
        return {"max_correctness_drop": self.max_correctness_drop, "max_satisfaction_drop": self.max_satisfaction_drop}

    @property
    def rows(self) -> list[GateLimit]:
        """What the gate compares, whichever form the recipe has."""
        return self.limits or [
            GateLimit(suite="personalisation", metric="correctness", max_drop=self.max_correctness_drop),
            GateLimit(suite="personalisation", metric="satisfaction", max_drop=self.max_satisfaction_drop),
        ]
