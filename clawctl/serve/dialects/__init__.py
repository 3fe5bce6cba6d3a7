"""The dialect seam: an API's words become an `Ask`, and events become that API's words. Nothing else knows an API."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from clawctl.serve.engines import Token
from clawctl.serve.text import Event
from clawctl.types import Message


class Refusal(Exception):
    """A request that cannot be answered; the message is for the client."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, whatever API it came through."""

    api: str  # "chat"
    model: str
    messages: list[Message]  # for the template: text content, known roles
    sent_messages: list[Message]  # as the client sent them
    tools: list[dict[str, Any]] | None  # as the client sent them
    use_tools: bool
    stream: bool
    include_usage: bool
    n: int
    stop: list[str]
    temperature: float | None
    top_p: float | None
    top_k: int
    max_tokens: int | None
    logprobs: bool
    template_settings: dict[str, Any]
    claims: dict[str, Any] = field(default_factory=dict)  # session_id and the like, from the body


@dataclass(frozen=True, slots=True)
class Shown:
    """A piece of one answer: events, and the visible tokens that made them (with logprobs only)."""

    events: list[Event]
    tokens: list[tuple[Token, str]]


@dataclass(slots=True)
class Choice:
    """One answer to an ask, growing."""

    index: int
    exchange_id: str
    shown: list[Shown] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Dialect(Protocol):
    """One API's way of answering one ask."""

    def message(self, choice: Choice) -> Message:
        """The answer as an OpenAI chat message, as the client received it: what is captured."""
        ...

    def whole(self, choices: list[Choice]) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def begin(self, choice: Choice) -> bytes:
        """What a stream begins with."""
        ...

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        """What a stream says of one piece."""
        ...

    def finish(self, choice: Choice) -> bytes:
        """What a stream says when one answer is complete."""
        ...

    def end(self, choices: list[Choice]) -> bytes:
        """What a stream ends with."""
        ...

    def failed(self, refusal: Refusal) -> bytes:
        """What a stream says when it cannot go on."""
        ...
