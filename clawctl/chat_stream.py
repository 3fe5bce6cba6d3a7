"""Reads a streamed chat completion as it arrives, for clawctl's own chat windows."""

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(slots=True, kw_only=True)
class ChatStream(ABC):
    """Receives the stream (`ResponseReceiver`). A subclass shows each piece of the answer."""

    text: str = ""
    completion: str | None = None  # id of the completion
    problem: str | None = None  # why there is no whole answer
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    rest: bytes = b""  # of a line that has not ended

    @abstractmethod
    def show(self, piece: str) -> None: ...

    def feed(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                self._take(orjson.loads(line[6:]))

    def _take(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.problem = str(chunk["error"].get("message"))
        self.completion = chunk.get("id") or self.completion
        for choice in chunk.get("choices") or ():
            if piece := choice["delta"].get("content"):
                self.text += piece
                self.show(piece)

    def ended(self, error: str | None) -> None:
        self.problem = self.problem or error
        self.is_over.set()
