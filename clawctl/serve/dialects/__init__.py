"""The dialect seam: a dialect reads the body of its API into a `GenerationRequest`, and writes events in the format of that API."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from clawctl.run.rows import Message
from clawctl.serve.sampling import Settings
from clawctl.serve.text import Event


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
    overridden: dict[str, Any] = field(
        default_factory=dict
    )  # settings that the recipe changed, with the client's values; None: not sent
    sampling_from: dict[str, str] = field(default_factory=dict)  # see `Exchange.sampling_from`
    key: str = ""  # name of the client's API key
    size: int = 0  # bytes of the request's body
    prompts: tuple[Prompt, ...] = ()  # of plain completions: they replace the messages
    score_from: int | None = None  # the first token of `prompts` whose logprob is requested; None: no logprobs
    add_special_tokens: bool = True  # to a text prompt, if the tokenizer is configured to
    fields: tuple[str, ...] = ()  # names of the body's fields that change the answer; not every engine supports all of them
    unknown: tuple[str, ...] = ()  # unknown parts of the body: accepted, and reported to the client
    continues: bool = False  # the answer continues the last message, which is an assistant message
    prompted: bool = True  # the prompt ends with the header of an answer
    return_ids: bool = False  # return token ids to the client
    answers: dict[int, list[EarlierAnswer]] | None = None  # candidates for each index of `messages`; None: nothing is put back

    @property
    def sampling(self) -> Settings:
        return Settings(self.temperature, self.top_p, self.top_k, self.engine_fields)

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


@dataclass(slots=True)
class Choice:
    """One answer to a request, while it grows."""

    index: int
    exchange_id: str
    shown: list[Shown] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0  # included in completion_tokens
    stop_sequence: str | None = None  # the stop string of the request that ended the answer
    prompt_ids: list[int] | None = None  # if the engine returns them; the list grows
    completion_ids: list[int] | None = None
    cached_tokens: int | None = None  # None: the engine does not return it
    usage: dict[str, Any] | None = None  # from an upstream, unchanged
    extras: Extras | None = None


class Dialect(Protocol):
    """The response format of one API, for one request."""

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
        """The stream data for one piece."""
        ...

    def finish(self, choice: Choice) -> bytes:
        """The stream data that completes one answer."""
        ...

    def end(self, choices: list[Choice]) -> bytes:
        """The end of a stream."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """The stream data after a failure."""
        ...
