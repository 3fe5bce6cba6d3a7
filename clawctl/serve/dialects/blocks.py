"""An answer's events as blocks: a stretch of reasoning, a stretch of text, one tool call. Each API names them in its own way."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from clawctl.run.rows import Message
from clawctl.serve.dialects import Choice, Shown, ShownToken
from clawctl.serve.dialects.handles import call_id
from clawctl.serve.text import CallBegun, Event, Said, Thought


@dataclass(slots=True)
class Block:
    """`number` counts all blocks from 0, `call` counts calls only."""

    kind: Literal["thought", "said", "call"]
    number: int = 0
    name: str = ""
    call: int = 0
    pieces: list[str] = field(default_factory=list)
    tokens: list[ShownToken] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Blocks:
    """Blocks as they grow."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self._calls = 0

    def take(self, event: Event) -> tuple[Block, bool]:
        """The block that an event belongs to, and whether it begins with it."""
        if isinstance(event, CallBegun):
            self._calls += 1
            return self._begin(Block("call", len(self.all), event.name, self._calls - 1)), True
        kind: Literal["thought", "said", "call"]
        kind = "said" if isinstance(event, Said) else "thought" if isinstance(event, Thought) else "call"
        begins = not self.all or self.all[-1].kind != kind
        block = self._begin(Block(kind, len(self.all))) if begins else self.all[-1]
        block.pieces.append(event.text)
        return block, begins

    def take_all(self, shown: Iterable[Shown]) -> None:
        for piece in shown:
            block = None
            for event in piece.events:
                block, _ = self.take(event)
            if block is not None:
                block.tokens += piece.tokens

    def or_empty(self) -> list[Block]:
        """All blocks; for an empty answer one empty block, because clients expect one."""
        return self.all or [self._begin(Block("said"))]

    def _begin(self, block: Block) -> Block:
        self.all.append(block)
        return block


def chat_message(choice: Choice) -> Message:
    """The answer as an OpenAI chat message, which is captured for all APIs."""
    blocks = Blocks()
    blocks.take_all(choice.shown)
    said, thought = ("".join(b.text for b in blocks.all if b.kind == kind) for kind in ("said", "thought"))
    calls: list[dict[str, Any]] = [
        {"id": call_id(choice.exchange_id, b.call), "type": "function", "function": {"name": b.name, "arguments": b.text}}
        for b in blocks.all
        if b.kind == "call"
    ]
    message: Message = {"role": "assistant", "content": said if said or not calls else None}
    if thought:
        message["reasoning_content"] = thought
    return {**message, "tool_calls": calls} if calls else message
