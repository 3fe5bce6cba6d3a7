"""`judge:`, verdicts from what came back."""

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Section

# What people who come from elsewhere call the judge's settings
_JUDGE_ELSEWHERE = {
    "majority_vote_n": "votes",
    "num_judges": "votes",
    "majority_vote_threshold": "threshold",
    "consensus_threshold": "threshold",
    "judge_model": "model",
    "hint_extraction_model": "hint_model",
    "num_judge_workers": "concurrency",
    "prm_path": "prm",
    "custom_rm_path": "custom_rm",
}


class JudgeConfig(Section):
    endpoint: HttpUrl | None = None
    """Base URL of an OpenAI-compatible server (`http://host:port/v1`). Unset: the server of this run."""
    endpoints: list[HttpUrl] = []
    """More of them, all with the same `model` and `api_key`: the one with the fewest calls in flight is asked next, one that fails
    rests and is tried again."""
    model: str | None = None
    """Model to ask (elsewhere `judge_model`). Unset: version 0 of the policy (`NAME@0`), which is never the one being trained."""
    api_key: str | None = None
    """Key of `endpoint`. Unset: this run's key, if `endpoint` is this run's server."""
    prm: str | None = None
    """A sequence-classification model (directory or name) that judges instead of an endpoint (elsewhere `prm_path`). Its labels go
    from worst to best; one label is a logit."""
    prm_threshold: float = Field(0.5, gt=0, le=1)
    """Its score lies between -1 and 1: so far from 0 it is a 1 or a -1, else 0."""
    prm_range: tuple[float, float] | None = None
    """Of a model with one label that gives a score instead of a logit (`problem_type: regression`): its worst and best score."""
    prm_batch: int = Field(16, gt=0)
    """Turns it scores at a time."""
    custom_rm: str | None = None
    """`file.py:name` of a reward model of yours that judges instead of an endpoint (elsewhere `custom_rm_path`)."""
    custom_rm_range: tuple[float, float] | None = None
    """The scale of its rewards, worst and best: `[0, 1]` for probabilities. They are mapped to -1 … 1. Unset: the model's own
    `reward_range`. Without one, rewards count once some were -0.1 or less and some 0.1 or more, and none beyond -1 and 1."""
    rules: bool = True
    """Test runs and thumbs decide where they are plain; only the rest is asked about."""
    execution_tools: dict[str, Literal["codex", "codex_shell", "claude", "copilot", "qwen", "json", "tags"]] = {}
    """Further tools that execute commands, by name, with the format in which their client tells the exit code: `{run: json}`.
    Those of known clients need not be named. One whose calls name no command is itself the check: its exit code decides."""
    outcome: Literal["decides", "apart"] = "decides"
    """Where an environment scored the whole episode: that score is the reward, or the judge scores the turn all the same."""
    votes: int = Field(3, gt=0, le=99)
    """Answers asked per turn (elsewhere `majority_vote_n`, `num_judges`); the majority decides, in a tie the judge abstains."""
    threshold: float = Field(0.5, ge=0, le=1)
    """Share of the valid votes that the majority needs, else the judge abstains (elsewhere `majority_vote_threshold`,
    `consensus_threshold`)."""
    hints: Literal["with_vote", "apart", "off"] = "with_vote"
    """Hints come with the votes that agree with the verdict, from one further call per turn that has a reward (also where a rule
    or a person decided), or not at all."""
    hint_model: str | None = None
    """Model that is asked for hints `apart` (elsewhere `hint_extraction_model`). Unset: `model`."""
    temperature: float = Field(0.6, ge=0)
    """Of the judge: 0 makes all votes the same."""
    max_tokens: int = Field(4096, gt=0)
    """Longest answer of the judge."""
    concurrency: int = Field(16, gt=0)
    """Calls in flight at a time, over all endpoints (elsewhere `num_judge_workers`)."""
    requests_per_s: float | None = Field(None, gt=0)
    """Most calls a second that each endpoint is sent; unset: no limit."""
    timeout_s: float = Field(120.0, gt=0)
    """A call without an answer for so long is tried again, then counted as a failed vote."""
    history_chars: int = Field(4000, ge=0)
    """How much of the conversation before the request the judge sees, from its end; 0: none."""
    view_chars: int | None = Field(None, ge=240)
    """How many characters of a turn the judge is shown, history included; longer texts are compressed, then cut. Unset: 24,000, for
    the demo model 600. Fewer after the server refused a prompt as too long."""
    min_hint_chars: int = Field(10, ge=0)
    """A shorter hint is no hint."""
    max_hint_chars: int = Field(600, gt=0)
    """Nor is a longer one."""

    @field_validator("custom_rm_range", "prm_range")
    @classmethod
    def _is_range(cls, given: tuple[float, float] | None) -> tuple[float, float] | None:
        if given is not None and not (math.isfinite(given[0]) and math.isfinite(given[1]) and given[0] < given[1]):
            raise PydanticCustomError("range", "it is two numbers, the lower one first, such as [0, 1]")
        return given

    @model_validator(mode="before")
    @classmethod
    def _elsewhere(cls, given: Any) -> Any:
        """Accept the names that other systems use; our own name wins."""
        if not isinstance(given, dict):
            return given
        ours = {_JUDGE_ELSEWHERE[key]: value for key, value in given.items() if key in _JUDGE_ELSEWHERE}
        return {**ours, **{key: value for key, value in given.items() if key not in _JUDGE_ELSEWHERE}}
