"""Settings of `judge:`, how turns are judged."""

import math
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from clawctl.config.section import HttpUrl, Section

# Names of the judge's settings in other systems.
_JUDGE_ELSEWHERE = {
    "majority_vote_n": "votes", "num_judges": "votes", "majority_vote_threshold": "threshold", "consensus_threshold": "threshold",
    "judge_model": "model", "hint_extraction_model": "hint_model", "num_judge_workers": "concurrency", "prm_path": "prm",
    "custom_rm_path": "custom_rm",
}  # fmt: skip

_OF_ENDPOINTS = (
    "endpoints", "model", "api_key", "votes", "threshold", "temperature", "max_tokens", "view_chars", "requests_per_s", "timeout_s",
)  # fmt: skip

Kind = Literal["endpoint", "prm", "custom_rm"]
# The settings of `judge.by` for each kind of judge, and the equivalent keys of `judge`.
SETTINGS_BY_KIND: dict[str, dict[str, str]] = {
    "endpoint": {"url": "endpoint", **{name: name for name in _OF_ENDPOINTS}},
    "prm": {"model": "prm", "threshold": "prm_threshold", "range": "prm_range", "batch": "prm_batch"},
    "custom_rm": {"path": "custom_rm", "range": "custom_rm_range"},
}
_VOTES = ("votes", "threshold")  # the other settings of an endpoint also serve `judge.hints: apart`


class JudgeConfig(Section):
    by: dict[str, str] | None = Field(None, exclude=True)
    """The judge that decides, as a group with its settings: `{kind: endpoint, url: …, votes: 3}`, `{kind: prm, model: …}` or
    `{kind: custom_rm, path: …}`. The keys below mean the same: `prm`, `prm_threshold` and so on."""
    endpoint: HttpUrl | None = None
    """Base URL of an OpenAI-compatible server (`http://host:port/v1`). Unset: the server of this run."""
    endpoints: list[HttpUrl] = []
    """Further base URLs, all with the same `model` and `api_key`. Each call goes to the endpoint with the fewest calls in flight. A
    failing endpoint is skipped for a while and then tried again."""
    model: str | None = None
    """Name of the judge model (in other systems `judge_model`). Unset: version 0 of the policy (`NAME@0`), which is never the
    version being trained."""
    api_key: str | None = None
    """API key of `endpoint`. Unset: this run's key, if `endpoint` is this run's server."""
    prm: str | None = None
    """Sequence-classification model (directory or name) that judges instead of an endpoint (in other systems `prm_path`). Its
    labels are ordered from worst to best. A single label is a logit. With `custom_rm`, your reward model judges and gets this path
    as `config["prm_model_path"]`."""
    prm_threshold: float = Field(0.5, gt=0, le=1)
    """Threshold for the model's score, which lies between -1 and 1. From this value up the reward is 1, from its negative down it
    is -1, otherwise 0."""
    prm_range: tuple[float, float] | None = None
    """Worst and best score of a model with a single label that returns a score instead of a logit (`problem_type: regression`)."""
    prm_batch: int = Field(16, gt=0)
    """Turns that the model scores in one batch."""
    custom_rm: str | None = None
    """Your own reward model, as `file.py:name`, which judges instead of an endpoint (in other systems `custom_rm_path`)."""
    custom_rm_range: tuple[float, float] | None = None
    """Worst and best reward of your model: `[0, 1]` for probabilities. Rewards are mapped to -1 … 1. Unset: the model's own
    `reward_range`. Without either, rewards count only after the model gave one of -0.1 or less and one of 0.1 or more. A reward
    beyond -1 and 1 is then an error."""
    ask: bool = True
    """Whether a judge is asked about turns that neither a rating, nor an outcome, nor a rule decides. `false`: such turns get no
    reward. The circle then learns from ratings with their comments, outcomes, rules and practice."""
    fitness: Literal["check", "skip"] = "check"
    """Whether a chat model is checked before it judges. `check`: it is asked twelve planted turns, and with fewer than ten right
    answers it is not used. `skip`: for a judge that reads only the language of its own world. Reward models are not checked."""
    rules: bool = True
    """Let rules decide where test runs or thumbs-up and thumbs-down are unambiguous. Only the other turns are sent to the judge."""
    execution_tools: dict[str, Literal["codex", "codex_shell", "claude", "copilot", "qwen", "json", "tags"]] = {}
    """Further tools that execute commands, by name, with the format of the client's exit code: `{run: json}`. Tools of known
    clients are built in. If a tool's calls contain no command, the tool itself is the check and its exit code decides."""
    outcome: Literal["decides", "apart"] = "decides"
    """Handling of turns whose episode was scored by an environment. `decides`: that score is the reward. `apart`: the turn gets a
    step reward as well."""
    steps: Literal["judge", "rules"] = "judge"
    """Source of step rewards with `outcome: apart`. `judge`: rules, and the judge where they do not decide. `rules`: rules alone;
    where they do not decide, there is no step reward."""
    votes: int = Field(3, gt=0, le=99)
    """Votes per turn (in other systems `majority_vote_n`, `num_judges`). The majority decides. In a tie the judge abstains. One
    call is enough if the judge's answers begin with the score and its endpoint gives log-probabilities."""
    threshold: float = Field(0.5, ge=0, le=1)
    """Share of the valid votes that a majority needs, otherwise the judge abstains (in other systems `majority_vote_threshold`,
    `consensus_threshold`)."""
    hints: Literal["with_vote", "apart", "off"] = "with_vote"
    """Source of the judge's hints. `with_vote`: the votes that agree with the verdict. `apart`: one further call per turn that has
    a reward, even if a rule or a person decided. `off`: none. The comment of a bad rating is always a hint."""
    hint_model: str | None = None
    """Model for hints with `hints: apart` (in other systems `hint_extraction_model`). Unset: `model`."""
    notes: bool = True
    """Whether a judge that has a hint is also asked what the person's reply means for later requests. Wishes that hold from now on
    and facts about the person become notes. It needs a chat model that passes its check."""
    temperature: float = Field(0.6, ge=0)
    """Sampling temperature of the judge. With 0, all votes are the same."""
    max_tokens: int = Field(4096, gt=0)
    """Maximum number of tokens in an answer of the judge."""
    concurrency: int = Field(16, gt=0)
    """Maximum number of calls in flight, over all endpoints (in other systems `num_judge_workers`)."""
    requests_per_s: float | None = Field(None, gt=0)
    """Maximum number of calls per second to each endpoint. Unset: no limit."""
    timeout_s: float = Field(120.0, gt=0)
    """Seconds after which an unanswered call is retried. After the last retry it counts as a failed vote."""
    history_chars: int = Field(4000, ge=0)
    """Maximum number of characters of the conversation before the request that the judge sees, taken from its end. 0: none."""
    view_chars: int | None = Field(None, ge=240)
    """Maximum number of characters of a turn that the judge sees, including history. Longer texts are compressed, then cut. Unset:
    24,000. The limit is lowered after the server refuses a prompt as too long."""

    @field_validator("custom_rm_range", "prm_range")
    @classmethod
    def _is_range(cls, data: tuple[float, float] | None) -> tuple[float, float] | None:
        if data is not None and not (math.isfinite(data[0]) and math.isfinite(data[1]) and data[0] < data[1]):
            raise PydanticCustomError("range", "expected two numbers, the lower one first, such as [0, 1]")
        return data

    @property
    def kind(self) -> Kind:
        """The judge that decides turns that no person, environment or rule decides."""
        return "custom_rm" if self.custom_rm is not None else "prm" if self.prm is not None else "endpoint"

    @model_validator(mode="before")
    @classmethod
    def _elsewhere(cls, data: Any) -> Any:
        """Accept `by`, and the names that other systems use. clawctl's own name takes precedence."""
        if not isinstance(data, dict):
            return data
        ours = {_JUDGE_ELSEWHERE[key]: value for key, value in data.items() if key in _JUDGE_ELSEWHERE}
        named = {key: value for key, value in data.items() if key not in _JUDGE_ELSEWHERE and key != "by"}
        return {**ours, **(_flat(data["by"]) if "by" in data else {}), **named}

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> Self:
        """Reject a setting of a judge other than the chosen one, unless it has its default value: saved recipes contain all
        keys.
        """
        for kind, names in SETTINGS_BY_KIND.items():
            for key in names.values() if kind != self.kind else ():
                if key == "prm" and self.custom_rm is not None:
                    continue  # the classifier that the reward model loads
                serves_hints = kind == "endpoint" and self.hints == "apart" and key not in _VOTES
                if not serves_hints and getattr(self, key) != type(self).model_fields[key].default:
                    values = {"key": key, "kind": kind, "chosen": self.kind}
                    raise PydanticCustomError(
                        "judge",
                        "{key} belongs to the judge `{kind}`, but this recipe chooses `{chosen}`; remove one of them",
                        values,
                    )
        return self


def _flat(by: Any) -> dict[str, Any]:
    """Return the keys of `judge` that correspond to `judge.by`."""
    kind = by.get("kind") if isinstance(by, dict) else None
    if kind not in SETTINGS_BY_KIND:
        raise PydanticCustomError("judge", "by needs a kind: {kinds}", {"kinds": ", ".join(SETTINGS_BY_KIND)})
    names, settings = SETTINGS_BY_KIND[kind], {key: value for key, value in by.items() if key != "kind"}
    unknown = sorted(settings.keys() - names.keys())
    if unknown:
        values = {"key": unknown[0], "kind": kind, "names": ", ".join(names)}
        raise PydanticCustomError("judge", "by.{key} is not a setting of the judge `{kind}`, which has {names}", values)
    needed = {"prm": "model", "custom_rm": "path"}.get(kind)
    if needed is not None and settings.get(needed) is None:
        raise PydanticCustomError("judge", "by.{key} is missing", {"key": needed})
    return {names[key]: value for key, value in settings.items()}
