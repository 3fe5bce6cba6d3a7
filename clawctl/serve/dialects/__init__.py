"""The dialect seam: a dialect reads the body of its API into a `GenerationRequest`, and writes events in the form of that API."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from clawctl.run.rows import Message
from clawctl.serve.sampling import Settings
from clawctl.serve.text import Event


class Refusal(Exception):
    """A request that cannot be answered; the message is for the client."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}  # headers for this status


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An earlier answer, for putting it back as it was sampled."""

    completion_ids: tuple[int, ...]
    prompt: bytes  # digest of the prompt's ids, see `clawctl.serve.recent_answers`


Prompt = str | tuple[int, ...]  # text, or token ids


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request, whatever its API."""

    api: Literal["chat", "responses", "messages", "completions"]
    model: str
    messages: list[Message]  # in OpenAI chat form, known roles; content is text, or parts with images
    sent_messages: list[Message]  # in OpenAI chat form, as the client sent them; these are captured
    tools: list[dict[str, Any]] | None  # in OpenAI chat form; tools that are no functions as the client sent them
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
    parent: str | None = None  # handle of the turn that the request names (previous_response_id)
    claims: dict[str, Any] = field(default_factory=dict)  # session_id and the like, from the body
    max_tokens_may_shrink: bool = False  # to the rest of the context; else a request for more is refused
    echo: dict[str, Any] = field(default_factory=dict)  # fields of the body that the answer repeats or is written by
    overridden: dict[str, Any] = field(
        default_factory=dict
    )  # settings that the recipe changed, as the client sent them; None: unsent
    key: str = ""  # name of the API key that asks
    size: int = 0  # bytes of the request's body
    prompts: tuple[Prompt, ...] = ()  # of plain completions: they enter the engine instead of the messages
    score_from: int | None = None  # the first token of `prompts` whose logprob is wanted; None: of none
    add_special_tokens: bool = True  # to a text prompt, as the tokenizer is configured
    fields: tuple[str, ...] = ()  # names of the body's fields that change the answer, for engines that do not support all
    unknown: tuple[str, ...] = ()  # unknown parts of the body: accepted, and named to the client
    continues: bool = False  # the answer continues the last message, which is the assistant's
    prompted: bool = True  # the prompt ends with the header of an answer
    return_ids: bool = False  # the client gets the token ids
    answers: dict[int, list[EarlierAnswer]] | None = None  # which of `messages` we may have given; None: nothing is put back

    @property
    def sampling(self) -> Settings:
        return Settings(self.temperature, self.top_p, self.top_k, self.engine_fields)

    @property
    def use_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def bars_calls(self) -> bool:
        """Whether there are functions that the model must not call."""
        return self.tool_choice == "none" and bool(self.functions)

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The tools that can be called."""
        return [tool for tool in self.tools or () if tool.get("type") == "function" and isinstance(tool.get("function"), dict)]

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The functions that the model sees: none if it must not call any."""
        return [] if self.tool_choice == "none" else self.functions


class ShownToken(NamedTuple):
    """A visible token, for clients that asked for logprobs."""

    text: str
    logprob: float | None  # None: of a prompt's token that nothing precedes, or that was not asked about
    top: list[dict[str, Any]]  # the likeliest ones, in OpenAI's form; empty if the engine does not return them
    bytes: list[int] | None = None  # None: those of its text


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of one answer: events, and their visible tokens (if the client requested logprobs)."""

    events: list[Event]
    tokens: list[ShownToken]


@dataclass(slots=True)
class Extras:
    """Unknown fields from an upstream, unchanged: of the answer, of this choice, or of the choice's message."""

    answer: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    message: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Choice:
    """One answer to a request, growing."""

    index: int
    exchange_id: str
    shown: list[Shown] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # of the completion's
    stop_sequence: str | None = None  # the one of the request's stops that ended the answer
    prompt_ids: list[int] | None = None  # as far as the engine returns them; they grow
    completion_ids: list[int] | None = None
    cached_tokens: int | None = None  # cached tokens of the prompt; None: the engine does not return it
    usage: dict[str, Any] | None = None  # from an upstream, unchanged
    extras: Extras | None = None


class Dialect(Protocol):
    """One API's way of answering one request."""

    def message(self, choice: Choice) -> Message:
        """The answer as an OpenAI chat message, as the client received it. This is captured."""
        ...

    def whole(self, choices: list[Choice]) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def begin(self, choice: Choice) -> bytes:
        """The beginning of a stream."""
        ...

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        """The part of a stream for one piece."""
        ...

    def finish(self, choice: Choice) -> bytes:
        """The part of a stream that completes one answer."""
        ...

    def end(self, choices: list[Choice]) -> bytes:
        """The end of a stream."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """The part of a stream after a failure."""
        ...
