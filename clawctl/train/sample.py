"""A turn as the trainer uses it, in memory only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from clawctl.run.allowed_tokens import Allowed
from clawctl.run.rows import PromptImage


@dataclass(frozen=True, slots=True)
class Sample:
    """One usable turn. Ids and logprobs are the sampler's own; nothing was re-tokenised or padded.

    An imported text has no sampler. Its ids come from the template, and the model that is about to be trained scores them
    (`imported.py`), so the ratio in its only step is 1.
    """

    turn_id: str
    stem: str  # the shard it came from: the ledger is kept by shard
    kind: str  # kind of task, the key of its baseline: "homework" of task_id "homework-17", "anna/homework" of a key with a name
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float] | None  # the sampler's, one for each completion token; None: imported and not scored yet
    temperature: float  # of the sampler; every logprob of this turn is compared at this temperature
    policy_version: int  # that sampled the first token
    reward: float | None  # None: the judge had no opinion, so there is no reward term
    teacher_prompt_ids: list[int] | None  # the prompt with the hint; None: no hint, so there is no distillation term
    policy_version_end: int | None = None  # that sampled the last token; None: the same
    credit: float | None = None  # advantage within its group or session; None: the recipe compares a turn with neither
    other_prompts: tuple[tuple[int, ...], ...] = ()  # with the other hints, for a method that chooses among them
    session_id: str = ""  # turns of a session share prefixes
    teacher_logprobs: tuple[float, ...] | None = None  # of the completion, from a teacher behind a URL; None: not requested
    allowed: Allowed | None = None  # which tokens could be drawn in each place: all logprobs of the turn are over these; None: any
    worth: str = ""  # the sum that gives `reward`, in words
    imported: bool = False  # off-policy: text from elsewhere, scored by the trainer
    images: tuple[PromptImage, ...] = ()  # in all prompts of the turn, at the same places

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


@dataclass(frozen=True, slots=True)
class Batch:
    """The turns of one optimizer step."""

    step: int  # the step they make, which is also the version it publishes
    samples: list[Sample]
    parent: int | None = None  # the version whose weights the step changes; None: step - 1
    depth: int | None = None  # steps between the base model and the version they make, with this one; None: `step` of them
    updates: Mapping[int, int] = field(default_factory=dict)  # from each version to the parent; missing: parent - version
    baselines: Mapping[str, float] = field(default_factory=dict)  # by turn id: what its reward is compared with; missing: 0
    images: Mapping[str, bytes] = field(default_factory=dict)  # the files of all images of the samples, by SHA-256

    @property
    def version(self) -> int:
        """That the step is built on."""
        return self.step - 1 if self.parent is None else self.parent

    def advantage(self, sample: Sample) -> float:
        """Of each token of a turn with a reward: its credit, or its reward minus the baseline."""
        assert sample.reward is not None
        return sample.reward - self.baselines.get(sample.turn_id, 0.0) if sample.credit is None else sample.credit

    def staleness(self, sample: Sample) -> int:
        """Updates between the version that sampled a turn and the one that trains it."""
        return self.updates.get(sample.policy_version, self.version - sample.policy_version)
