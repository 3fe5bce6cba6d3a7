"""The dialect seam: a dialect reads the body of its API into a `GenerationRequest` (`clawctl.engines.requests`), and writes
events in the format of that API."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from clawctl.engines.requests import Extras, Refusal, Shown
from clawctl.run.rows import Message


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
