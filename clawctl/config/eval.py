"""Settings of `eval:`, how a policy is measured, and `gate:`, which policy may go live."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Section

HARNESS_PREFIXES = ("lm-eval:", "inspect:")  # prefixes of suites that another program runs


class SuiteConfig(Section):
    """A suite with settings of its own. A name alone is the short form."""

    name: str = Field(min_length=1)
    """A built-in suite (`own`, `replay`, `ability`), `file.py:name`, the suite of an installed package, or a
    task of another program: `lm-eval:TASK`, `inspect:TASK`. An environment is a suite as well."""
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
    """Settings that only this suite has."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, data: Any) -> Any:
        return {"name": data} if isinstance(data, str) else data

    @model_serializer(mode="plain")
    def short(self) -> str | dict[str, Any]:
        """Return the name, or a mapping if other settings are set."""
        values = {name: value for name in type(self).model_fields if (value := getattr(self, name)) not in (None, {})}
        return self.name if values.keys() == {"name"} else values

    def __str__(self) -> str:
        return self.name


class EvalBudget(Section):
    """The most that the gate spends on one candidate. It stops as soon as the evidence is enough."""

    comparisons: int | None = Field(None, gt=0)
    """Comparisons of a metric with one reference version. Unset: the tasks of `eval.problems`, and no more."""
    seconds: float | None = Field(None, gt=0)
    """Time spent on measuring."""
    calls: int | None = Field(None, gt=0)
    """Model calls."""
    tokens: int | None = Field(None, gt=0)
    """Prompt and answer tokens of these calls."""


class EvalConfig(Section):
    suites: list[SuiteConfig] = [SuiteConfig(name="own")]
    """Suites to run: names, or mappings with settings of their own. `own` compares versions on held-out turns of this run's
    conversations. `docs/environments.md` shows how to write one."""
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
    budget: EvalBudget = EvalBudget()
    """The most that the gate spends on one candidate. Each record shows what was spent."""
    watch: bool = True
    """Whether a live version is rolled back when its users complain more often than under its predecessor. It needs no gate."""
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
    """The margin: a candidate that is worse by this much is not promoted."""


class GateConfig(Section):
    limits: list[GateLimit] = []
    """The compared metrics. A candidate is refused if it is worse by a margin than the live version, the base version or the best
    version so far. Unset: `preferred` and `guards` of the suite `own`, with a margin of 0.10 (`accepted` in place of `preferred`
    with `when: after`). The short form is a list: `gate: [{suite: …, metric: …, max_drop: …}]`."""
    when: Literal["before", "after"] = "before"
    """`before`: a version goes live if the gate promotes it. `after`: each version goes live at once, and the gate rolls it back if
    it is worse than earlier versions were while they were live. For servers that hold one version at a time, such as vLLM with
    all weights."""
    error: float = Field(0.05, gt=0, lt=0.5)
    """Highest probability of promoting a candidate that is worse by the margin, and of refusing one that is no worse."""
    undecided: Literal["keep", "promote", "estimate"] = "keep"
    """What happens when `eval.budget` is spent and the evidence is not enough. `keep` refuses the candidate, `promote` promotes it,
    `estimate` promotes it if no mean is lower by more than its margin. When a suite has no more tasks, the estimate decides."""
    share: float = Field(0.0, ge=0, le=0.5)
    """Share of the new sessions that a candidate answers before it goes live: 0.1 is a tenth. All turns of a session have the same
    version. 0: none."""
    share_wait_s: float = Field(86400.0, gt=0)
    """Longest time that sessions are shared. After it the measurement decides."""

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        return {"limits": data} if isinstance(data, list) else data

    @model_validator(mode="after")
    def _one_form(self) -> "GateConfig":
        if "limits" in self.model_fields_set and not self.limits:
            raise PydanticCustomError("no_limits", "a gate without rows refuses nothing: name a metric, or leave the gate out")
        if self.when == "after" and self.share:
            raise PydanticCustomError(
                "share_after", "share has no effect with when: after, because every version goes live at once"
            )
        if self.when == "after" and any((row.suite, row.metric) == ("own", "preferred") for row in self.limits):
            raise PydanticCustomError(
                "preferred_after",
                "own preferred compares two versions at the same time, and with when: after the server holds one; use own accepted",
            )
        return self

    @model_serializer(mode="plain")
    def short(self) -> Any:
        """Return only the rows if nothing else was set."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name != "limits"}
        values = {name: value for name, value in values.items() if value != type(self).model_fields[name].default}
        rows = [limit.model_dump() for limit in self.limits]
        return {"limits": rows, **values} if rows and values else rows or values

    @property
    def rows(self) -> list[GateLimit]:
        """The metrics that the gate compares."""
        metrics = ("accepted" if self.when == "after" else "preferred", "guards")
        return self.limits or [GateLimit(suite="own", metric=metric, max_drop=0.10) for metric in metrics]
