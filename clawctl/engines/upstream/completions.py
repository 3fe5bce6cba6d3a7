"""Converts the answers of plain completions: their text, or their ids, which clawctl parses."""

from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from typing import Any

import msgspec

from clawctl.engines import Sampled
from clawctl.engines.requests import GenerationRequest, Shown
from clawctl.engines.upstream.chunks import ChatConverter
from clawctl.engines.upstream.wire import Chunk, Entry
from clawctl.serve.answer_decoder import AnswerDecoder

_COMPLETION_ONLY = ("text", "prompt_logprobs")
_ID = "token_id:"
_NO_ENTRY = Entry()


class PlainConverter(ChatConverter):
    """See `clawctl.engines.upstream.chunks.ChunkConverter`: for a plain completion whose text the upstream returns."""

    def to_chat_chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        for choice in chunk.get("choices") or ():
            choice["delta"] = {"content": choice.pop("text", None)}
            choice.pop("prompt_logprobs", None)
            if (prompt_ids := choice.pop("prompt_token_ids", None)) is not None:
                chunk["prompt_token_ids"] = prompt_ids
            if logprobs := choice.get("logprobs"):
                choice["logprobs"] = {"content": _chat_logprobs(logprobs)}
        return chunk


def _chat_logprobs(logprobs: dict[str, Any]) -> list[dict[str, Any]]:
    texts, tops = logprobs.get("tokens") or repeat(""), logprobs.get("top_logprobs") or repeat(None)
    return [
        {
            "token": text, "logprob": logprob, "bytes": None,
            "top_logprobs": [{"token": token, "logprob": value, "bytes": None} for token, value in (top or {}).items()],
        }
        for text, logprob, top in zip(texts, logprobs.get("token_logprobs") or (), tops, strict=False)
    ]  # fmt: skip


class CompletionConverter:
    """See `clawctl.engines.upstream.chunks.ChunkConverter`: for a plain completion that is decoded from its ids."""

    def __init__(self, tokenizer: Any, request: GenerationRequest, thinking: bool) -> None:
        self._decoder, self._top_logprobs = AnswerDecoder(tokenizer, request, thinking), request.top_logprobs
        self.pending = False

    def to_chat_chunk(self, chunk: dict[str, Any]) -> dict[str, Any]:
        for choice in chunk.get("choices") or ():
            for name in _COMPLETION_ONLY:
                choice.pop(name, None)
            if (prompt_ids := choice.pop("prompt_token_ids", None)) is not None:
                chunk["prompt_token_ids"] = prompt_ids
            if logprobs := choice.get("logprobs"):
                choice["logprobs"] = {"content": self._entries(logprobs)}
        return chunk

    def _entries(self, logprobs: dict[str, Any]) -> list[dict[str, Any]]:
        tops = logprobs.get("top_logprobs") or repeat(None)
        return [
            {"logprob": logprob, "top_logprobs": _likeliest(top, self._top_logprobs)}
            for logprob, top in zip(logprobs.get("token_logprobs") or (), tops, strict=False)
        ]

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        for choice in (choice for chunk in chunks for choice in chunk.choices or ()):
            entries = choice.logprobs.content or () if choice.logprobs is not None else ()
            for token, entry in zip(choice.token_ids or (), chain(entries, repeat(_NO_ENTRY)), strict=False):
                self._decoder.add(token, entry.logprob, msgspec.json.decode(entry.top_logprobs) or ())
                self.pending = True

    def shown(self) -> Shown | None:
        self.pending = False
        return self._decoder.shown()

    def end(self, sampled: Sampled) -> Shown | None:
        shown = self._decoder.end()
        sampled.reasoning_tokens = self._decoder.reasoning_tokens
        sampled.cut_call = self._decoder.ended_in_call and not self._decoder.ended_by_token
        if sampled.finish_reason == "stop" and self._decoder.called:
            sampled.finish_reason = "tool_calls"
        return shown


def _likeliest(top: dict[str, float] | None, count: int) -> Sequence[tuple[int, float]]:
    if not top or not count:
        return ()
    pairs = [(int(name.removeprefix(_ID)), logprob) for name, logprob in top.items() if name.startswith(_ID)]
    return sorted(pairs, key=lambda pair: -pair[1])[:count]
