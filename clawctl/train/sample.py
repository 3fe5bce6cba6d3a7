"""A turn in the form that the trainer uses, in memory only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import sub

from clawctl.run.allowed_tokens import Allowed
from clawctl.run.rows import PromptImage


@dataclass(frozen=True, slots=True)
class Sample:
    """One usable turn. Ids and logprobs are the sampler's own; nothing was re-tokenised or padded.

    An imported text has no sampler. Its ids come from the template, and the model that is about to be trained scores them
    (`scores.py`), so the ratio in its only step is 1.
    """

    turn_id: str
    stem: str  # the shard that it came from, because the ledger is kept by shard
    # Kind of task, the key of its baseline: "homework" for task_id "homework-17", "anna/homework" for a named key
    kind: str
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] | None  # [T] the sampler's, one per completion token; None: imported and not scored yet
    temperature: float  # the sampler's temperature; every logprob of this turn is compared at this temperature
    policy_version: int  # the version that sampled the first token
    reward: float | None  # None: the judge had no opinion, so there is no reward term
    teacher_prompt_ids: list[int] | None  # the prompt with the hint; None: no hint, so there is no distillation term
    policy_version_end: int | None = None  # the version that sampled the last token; None: the same
    credit: float | None = None  # advantage within its group or session; None: the recipe uses neither
    other_prompts: tuple[tuple[int, ...], ...] = ()  # prompts with the other hints, for a method that selects among them
    session_id: str = ""  # turns of a session share prefixes
    teacher_logprobs: tuple[float, ...] | None = None  # [T] of the completion, from a teacher behind a URL; None: not requested
    # Allowed tokens at each position: all logprobs of the turn are over these; None: any
    allowed: Allowed | None = None
    worth: str = ""  # the sum that gives `reward`, as text
    imported: bool = False  # off-policy: text from another source, scored by the trainer
    # Placeholders stand for secrets in the prompt. `logprobs` are the sampler's after the real prompt, until the trainer scores the
    # answer after this one.
    rescored: bool = False
    rescored_by: float | None = None  # the largest difference between both, once the trainer has scored it
    # Other weights than those of `policy_version` sampled it: a person's, or a person's that stood on an older shared version
    by_another: bool = False
    images: tuple[PromptImage, ...] = ()  # images in all prompts of the turn, at the same positions

    def __post_init__(self) -> None:
        if not (self.prompt_ids and self.completion_ids):
            raise ValueError(f"turn {self.turn_id}: an empty prompt or completion cannot be trained")
        if self.logprobs is None and not self.imported:
            raise ValueError(f"turn {self.turn_id}: sampled turn without logprobs")
        if self.logprobs is not None and len(self.completion_ids) != len(self.logprobs):
            raise ValueError(f"turn {self.turn_id}: {len(self.completion_ids)} ids but {len(self.logprobs)} logprobs")
        if self.teacher_logprobs is not None and len(self.teacher_logprobs) != len(self.completion_ids):
            raise ValueError(f"turn {self.turn_id}: the teacher has {len(self.teacher_logprobs)} logprobs")
        if self.allowed is not None and not self.allowed.admits(self.completion_ids):
            raise ValueError(f"turn {self.turn_id}: a sampled token is not among the allowed ones")
        if self.temperature <= 0:
            raise ValueError(f"turn {self.turn_id}: sampled at temperature {self.temperature}")
        if self.reward is None and self.teacher_prompt_ids is None:
            raise ValueError(f"turn {self.turn_id}: neither a reward nor a hint")

    @property
    def longest(self) -> int:
        """Number of tokens of the longest sequence: the completion after the prompt, or after a prompt with a hint."""
        return max(map(len, [self.prompt_ids, self.teacher_prompt_ids or [], *self.other_prompts])) + len(self.completion_ids)

    def scored(self, logprobs: Sequence[float]) -> "Sample":
        """Return the turn with the trainer's logprobs of its answer."""
        largest = max(map(abs, map(sub, logprobs, self.logprobs or ())), default=0.0) if self.rescored else None
        return replace(self, logprobs=list(logprobs), rescored_by=largest)


@dataclass(frozen=True, slots=True)
class Batch:
    """The turns of one optimizer step."""

    step: int  # the step, which is also the version that it publishes
    samples: list[Sample]
    parent: int | None = None  # the version that the step updates; None: step - 1
    depth: int | None = None  # number of steps from the base model to the new version; None: `step`
    updates: Mapping[int, int] = field(default_factory=dict)  # from each version to the parent; missing: parent - version
    baselines: Mapping[str, float] = field(default_factory=dict)  # by turn id: the baseline of its reward; missing: 0
    images: Mapping[str, bytes] = field(default_factory=dict)  # the files of all images of the samples, by SHA-256

    @property
    def version(self) -> int:
        """The version that the step updates."""
        return self.step - 1 if self.parent is None else self.parent

    def advantage(self, sample: Sample) -> float:
        """Return the advantage of each token of a turn with a reward: its credit, or its reward minus the baseline."""
        assert sample.reward is not None
        return sample.reward - self.baselines.get(sample.turn_id, 0.0) if sample.credit is None else sample.credit

    def staleness(self, sample: Sample) -> int:
        """Return the number of updates between the version that sampled a turn and the version that is updated."""
        return self.updates.get(sample.policy_version, self.version - sample.policy_version)
