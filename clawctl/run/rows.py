"""The rows that stages exchange. A row checks itself once, at creation. Missing is None, and None is not trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec

T = TypeVar("T")

DEFAULT_POLICY = "default"  # the policy that all users share

SCHEMA_VERSION = 1  # version of a line of `captures/` and `feedback/`, and of `collect.json`
SHARD_VERSIONS = {"turns": 3, "verdicts": 1}  # version of a shard, by kind; older ones go through `shards.MIGRATIONS`
# Version of the run directory: raised with any of the others, so that an older clawctl refuses the run as a whole
RUN_VERSION = 3

TEXT_ONLY = "text only"  # an imported turn that lacks only token ids, see Turn.judged
NO_NEXT_STATE = "no next state"  # a turn that lacks only a reaction, see lacks_reaction
REGENERATED = "regenerated"  # a turn that lacks only a reaction because the same request was sent again

HintPlace = Literal["block", "line", "below", "above"]  # where a hint stands in a prompt, see `hint_places.py`

# {"role": "user", "content": "…"} in OpenAI chat format, including tool calls and tool results
Message = dict[str, Any]


class PromptImage(TypedDict):
    """An image in the prompt ids: from `start` on, `tokens` ids are placeholders of the image in `images/<sha256>`."""

    sha256: str
    start: int
    tokens: int


class NotesShown(TypedDict):
    """The notes that held for a request. Those in its prompt stand in its last user message, which is captured without them."""

    ids: list[str]
    text: str  # the sentences in the prompt, one a line; "": none
    place: HintPlace
    learned: NotRequired[list[str]]  # sentences that the version follows without a reminder


def are_images(images: Any, prompt: int) -> bool:
    """Whether `images` is a list of images in order, within a prompt of `prompt` ids."""
    end = 0
    for image in images if isinstance(images, list) else [None]:
        if not isinstance(image, dict) or not isinstance(image.get("sha256"), str):
            return False
        start, tokens = image.get("start"), image.get("tokens")
        if type(start) is not int or type(tokens) is not int or start < end or tokens < 1:
            return False
        end = start + tokens
    return end <= prompt


def plain_prompt(text: str) -> Message:
    """Return a prompt without a chat template as the only message of its conversation."""
    return {"role": "user", "content": text, "plain": True}


def is_plain(messages: Sequence[Message]) -> bool:
    """Whether a conversation is such a prompt. A template would not render it as the model read it."""
    return len(messages) == 1 and messages[0].get("plain") is True


def newer(version: object, newest: int = SCHEMA_VERSION) -> str:
    """Return the message for a row whose schema version this clawctl does not support. Unknown fields alone do not make a row
    unreadable.
    """
    return f"schema version {version}, written by a newer clawctl; this clawctl reads version {newest}, so update it"


def from_json(kind: type[T], value: Any) -> T:
    """Create a record from the JSON object of its fields. Unknown fields from a newer clawctl are ignored. Raises ValueError."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


@dataclass(frozen=True, slots=True)
class Exchange:
    """One model call as it was sent and answered: one line of `captures/`."""

    exchange_id: str  # "x4Jd…", 24 alphanumeric characters: the handle that clients echo; becomes the turn_id
    created_at: float  # unix seconds when the request arrived
    finished_at: float  # unix seconds when the last token was sent
    api: str  # "chat", "responses", "messages", "completions"
    key: str  # name of the API key of the request: "default"
    status: Literal["ok", "cancelled", "error"]
    model: str  # the requested name: "crafts"
    messages: list[Message]  # as the client sent them
    tools: list[dict[str, Any]] | None
    response: Message | None  # {"role": "assistant", "content": "…"}: as the client received it; None after an error
    finish_reason: str | None  # "stop", "length", "tool_calls"
    prompt_ids: Sequence[int] | None  # prompt ids in the engine; None if the engine does not return them
    completion_ids: Sequence[int] | None  # sampled ids, including the end token
    logprobs: Sequence[float] | None  # one per id in completion_ids, from the distribution that was sampled
    policy_version: int | None  # at the first sampled token
    policy_version_end: int | None  # at the last sampled token
    temperature: float  # as applied
    top_p: float
    top_k: int  # 0: off
    # The client's claims: {"session_id": "s1", "turn_type": "main", "session_done": False, "task_id": …}
    hints: dict[str, Any]
    untrainable_reason: str | None  # a reason known to serve: "greedy", "no token ids"
    ttft_s: float | None = None
    spliced: int | None = None  # number of earlier answers in the prompt as sampled, not as rendered; None: not requested
    unspliced: str | None = None  # why earlier answers are not included as sampled: "the engine renders these messages differently"
    redacted_by: str | None = None  # the rule and the place: "a key with a known format, in the tool descriptions"
    adapted: str | None = None  # changes to the prompt: "later system messages as user"
    allowed: str | None = None  # allowed tokens at each position (`allowed_tokens.py`); None: any, the answer was unconstrained
    asked: dict[str, Any] | None = None  # the client's sampling settings that the recipe changed: {"temperature": 0.0}
    # Who set temperature, top_p and top_k, each "request", "recipe", "model" or "default"; None: written by an older clawctl
    sampling_from: dict[str, str] | None = None
    policy_name: str = DEFAULT_POLICY  # the policy that `policy_version` refers to
    # Images in `prompt_ids`, in order; None: none, or the engine does not report their positions
    images: list[PromptImage] | None = None
    notes: NotesShown | None = None  # the notes in `prompt_ids` that `messages` lack; None: none

    def __post_init__(self) -> None:
        if self.completion_ids is not None and self.logprobs is not None and len(self.completion_ids) != len(self.logprobs):
            raise ValueError(f"{len(self.completion_ids)} completion ids but {len(self.logprobs)} logprobs")
        if self.images is not None and not are_images(self.images, len(self.prompt_ids or ())):
            raise ValueError("images are not in the prompt")


@dataclass(frozen=True, slots=True)
class Feedback:
    """An explicit rating: one line of `feedback/`."""

    feedback_id: str
    created_at: float  # unix seconds when it was given; the newest rating of a turn counts
    key: str  # name of the API key that gave it; only a rating by the turn's own user counts
    turn_id: str
    rating: float  # -1..1
    comment: str | None

    def __post_init__(self) -> None:
        if not (self.feedback_id and self.key and self.turn_id):
            raise ValueError("a rating needs an id, a key and a turn")
        if not -1 <= self.rating <= 1:
            raise ValueError(f"rating {self.rating} is not between -1 and 1")


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call with its next state: one row of `trajectories/`."""

    turn_id: str  # = exchange_id
    session_id: str  # "s1" ("anna/s1" for a named key) or, without a header, an id that collect created
    parent_turn_id: str | None  # the turn that this request continues
    turn_index: int  # depth in its session, 0 for a root
    kind: Literal["main", "side"]
    source: str  # "serve", or the name of an import or environment
    task_id: str | None
    group_id: str | None  # turns that answer the same task and share a baseline
    user: str  # name of the API key
    created_at: float
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    response: Message | None
    next_state: list[Message] | None  # everything that came back: all tool results, the user's message; None: nothing came
    prompt_ids: Sequence[int] | None
    completion_ids: Sequence[int] | None
    logprobs: Sequence[float] | None
    policy_version: int | None
    policy_version_end: int | None
    temperature: float
    top_p: float
    top_k: int
    finish_reason: str | None
    outcome_reward: float | None  # an environment's score of the whole episode
    feedback: float | None  # the user's explicit rating, -1..1
    trainable: bool
    untrainable_reason: str | None  # "side turn", "no next state", "regenerated", "truncated", …; None exactly if trainable
    allowed: str | None = None  # for a structured answer: the allowed tokens (`allowed_tokens.py`); None: any
    redacted_by: str | None = None  # the rule that found a secret and the place, if serve knew them
    parent_evidence: str | None = None  # how its parent was found: "handle", "conversation", "prefix", …; see collect/parents.py
    policy_name: str = DEFAULT_POLICY  # the policy that `policy_version` refers to
    step_reward: float | None = None  # the environment's score of this turn alone
    episode: dict[str, Any] | None = None  # the turn's episode: its spec and its outcome, the same in each of its rows
    images: list[PromptImage] | None = None  # images in `prompt_ids`, in order; None: none
    notes: NotesShown | None = None  # the notes in `prompt_ids` that `messages` lack; None: none

    @property
    def hides_secrets(self) -> bool:
        """Whether placeholders stand for secrets in `prompt_ids`, so that `logprobs` are those of another prompt."""
        return self.redacted_by is not None and self.prompt_ids is not None

    @property
    def judged(self) -> bool:
        """Whether a verdict on this turn is useful: it is trainable, or it lacks only token ids.

        The latter is `source="import"` with `untrainable_reason=TEXT_ONLY`. Its ids and logprobs are null and stay null. A trainer
        that uses such turns renders the text with its own template, computes the logprobs with its current weights, and marks the
        sample as off-policy. It refuses text that it cannot render exactly. Nothing is padded or written back.
        """
        return is_judged(self.trainable, self.source, self.untrainable_reason)

    def __post_init__(self) -> None:
        if self.trainable == (self.untrainable_reason is not None):
            raise ValueError(f"turn {self.turn_id}: trainable={self.trainable} with reason {self.untrainable_reason!r}")
        if self.trainable and not (self.prompt_ids and self.completion_ids and self.logprobs and self.policy_version is not None):
            raise ValueError(f"turn {self.turn_id}: trainable without exact ids, logprobs and policy version")
        if self.trainable and len(self.completion_ids or []) != len(self.logprobs or []):
            raise ValueError(f"turn {self.turn_id}: logprobs do not match completion ids")


def is_judged(trainable: bool, source: str, untrainable_reason: str | None) -> bool:
    """Return `Turn.judged` for readers of a few columns."""
    return trainable or (source == "import" and untrainable_reason == TEXT_ONLY)


def is_by_teacher(episode: Mapping[str, Any] | None) -> bool:
    """Whether the teacher sampled a turn of this episode: its prompt has the hint, or there is no hint to read ("").

    The trainer computes the policy's logprobs itself, as for imported text, so such a turn does not become stale.
    """
    return episode is not None and (episode.get("hint_place") is not None or episode.get("hint") == "")


def lacks_reaction(source: str, untrainable_reason: str | None) -> bool:
    """Whether a turn is exact and lacks only a next state. A rating makes it trainable, however late it comes."""
    return source != "import" and untrainable_reason in (NO_NEXT_STATE, REGENERATED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judge's result for one turn: one row of `verdicts/`, in the shard with the same stem."""

    turn_id: str
    reward: float | None  # 1.0, -1.0, 0.0 (neutral or a tie); None: no valid vote, or the turn was not judged
    votes: list[int | None]  # [1, -1, None]; None: an answer without a valid score
    hint: str | None  # the hint that the teacher receives
    hints: list[str]  # every acceptable candidate
    judge: str  # "crafts@0 prompt 1"
    reason: str | None  # why reward is None: "not trainable: side turn", "no valid vote"
    latency_s: float | None


@dataclass(frozen=True, slots=True)
class Policy:
    """`policies/<version>/policy.json`, or `policies/<name>/<version>/policy.json` for a policy other than the default."""

    version: int  # 0 is the base model
    parent: int | None
    step: int  # the optimizer step that produced these weights
    method: str | None  # "combine"
    kind: Literal["base", "full", "adapter"]
    base_model: str  # as the recipe names it: "crafts" or a path
    turns: list[str]  # ids of the turns that this step trained on
    # {"prompt_ids": [[…]], "logprobs": [[…]]}: the trainer's values, to compare with the engine's
    canary: dict[str, Any] | None
    metrics: dict[str, float]
    created_at: float
    name: str = DEFAULT_POLICY
    hint_place: HintPlace | None = None  # where the teacher read its hints; None: the method has none
    # The shared version that a person's policy stands on or, without `shared+` in `policies.per`, began with
    shared: int | None = None
