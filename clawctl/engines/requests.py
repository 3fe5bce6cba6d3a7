"""What an engine receives and returns: requests, independent of their API, and the events of their answers."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from clawctl.run.rows import Message, NotesShown


class Refusal(Exception):
    """A request that cannot be answered. The message is sent to the client."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}  # additional response headers


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An earlier answer, kept so that a later prompt contains its sampled tokens."""

    completion_ids: tuple[int, ...]
    prompt: bytes  # digest of the prompt's ids, see `clawctl.serve.recent_answers`


Prompt = str | tuple[int, ...]  # text, or token ids


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, independent of its API."""

    api: Literal["chat", "responses", "messages", "completions"]
    model: str
    messages: list[Message]  # in OpenAI chat form, known roles; content is text, or parts with images
    sent_messages: list[Message]  # in OpenAI chat form, as the client sent them; these are captured
    tools: list[dict[str, Any]] | None  # in OpenAI chat form; tools that are not functions stay as the client sent them
    tool_choice: Any  # "auto", "none", "required", {"type": "function", "function": {"name": "f"}}; None: not set
    stream: bool
    include_usage: bool
    n: int
    stop: list[str]
    temperature: float | None
    top_p: float | None
    top_k: int  # 0: off
    max_tokens: int | None
    logprobs: bool
    top_logprobs: int = 0
    template_settings: dict[str, Any] = field(default_factory=dict)
    engine_fields: dict[str, Any] = field(default_factory=dict)  # see `clawctl.serve.sampling`
    parent: str | None = None  # handle of the turn that the request continues (previous_response_id)
    claims: dict[str, Any] = field(default_factory=dict)  # session_id and similar fields of the body
    max_tokens_may_shrink: bool = False  # reduce max_tokens to the rest of the context; otherwise a larger value is refused
    echo: dict[str, Any] = field(default_factory=dict)  # fields of the body that the answer repeats or depends on
    # Settings that the recipe changed, with the client's values; None: not sent.
    overridden: dict[str, Any] = field(default_factory=dict)
    sampling_from: dict[str, str] = field(default_factory=dict)  # see `Exchange.sampling_from`
    key: str = ""  # name of the client's API key
    session: str | None = None  # as the client names it
    size: int = 0  # bytes of the request's body
    prompts: tuple[Prompt, ...] = ()  # of plain completions: they replace the messages
    score_from: int | None = None  # the first token of `prompts` whose logprob is requested; None: no logprobs
    add_special_tokens: bool = True  # to a text prompt, if the tokenizer is configured to
    fields: tuple[str, ...] = ()  # names of the body's fields that change the answer; not every engine supports all of them
    unknown: tuple[str, ...] = ()  # unknown parts of the body: accepted, and reported to the client
    continues: bool = False  # the answer continues the last message, which is an assistant message
    prompted: bool = True  # the prompt ends with the header of an answer
    return_ids: bool = False  # return token ids to the client
    continuous_usage: bool = False  # each chunk of a stream has the usage so far
    notes: NotesShown | None = None  # what `messages` have in addition to `sent_messages`
    answers: dict[int, list[EarlierAnswer]] | None = None  # candidates for each index of `messages`; None: nothing is put back

    @property
    def conversation(self) -> str:
        """The session that the client names, else the messages up to the first of the user; of this key."""
        opening = []
        for message in () if self.session else self.messages:
            opening.append(message)
            if message.get("role") == "user":
                break
        sent = orjson.dumps(opening, option=orjson.OPT_SORT_KEYS)
        return f"{self.key} {self.session or hashlib.sha256(sent).hexdigest()}"

    @property
    def use_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forbids_calls(self) -> bool:
        """Whether there are functions that the model must not call."""
        return self.tool_choice == "none" and bool(self.functions)

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools that can be called."""
        return [tool for tool in self.tools or () if tool.get("type") == "function" and isinstance(tool.get("function"), dict)]

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The functions that the model sees; empty if it must not call any."""
        return [] if self.tool_choice == "none" else self.functions


class ShownToken(NamedTuple):
    """A visible token, for clients that requested logprobs."""

    text: str
    logprob: float | None  # None: the first token of a prompt, or a token whose logprob was not requested
    top: list[dict[str, Any]]  # the most likely tokens, in OpenAI's format; empty if the engine does not return them
    bytes: list[int] | None = None  # None: the bytes of `text`


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Answer text for the client."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Reasoning text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a tool call; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of the arguments (JSON text) of the most recent call."""

    text: str


Event = TextDelta | ReasoningDelta | CallStart | CallDelta


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of one answer: events, and their visible tokens (if the client requested logprobs)."""

    events: list[Event]
    tokens: list[ShownToken]


@dataclass(slots=True)
class Extras:
    """Unknown fields of an upstream's response, unchanged: of the answer, of this choice, or of the choice's message."""

    answer: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)
