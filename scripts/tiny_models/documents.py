"""A document of a tiny model's corpus: a conversation, and which of its messages are learned."""

from dataclasses import dataclass

Message = dict[str, object]


@dataclass(frozen=True, slots=True)
class Document:
    """A conversation. `learn` contains the indices of the assistant messages that are trained. All other text is context."""

    messages: list[Message]
    learn: frozenset[int]
    tools: tuple[dict[str, object], ...] = ()
