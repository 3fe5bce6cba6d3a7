"""Sends prompts as token ids to the upstream's plain completions; clawctl parses the answers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import msgspec

from clawctl.engines import Sampled
from clawctl.engines.upstream.chunks import ChatConverter
from clawctl.engines.upstream.wire import Chunk, Entry
from clawctl.serve.answer_decoder import AnswerDecoder
from clawctl.serve.dialects import GenerationRequest, Prompt, Shown

if TYPE_CHECKING:
    from clawctl.serve.prompt import Rendered  # transformers is needed only for splicing

PATH = "/v1/completions"
_TEMPLATE_ONLY = ("messages", "tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs")
_COMPLETION_ONLY = ("text", "prompt_logprobs")
_ID = "token_id:"
_NO_ENTRY = Entry()


@dataclass(frozen=True, slots=True)
class CallPlan:
    """How a request is sent to an upstream."""

    prompt: "Rendered | None" = None  # the prompt to send as ids; None: send the messages
    spliced: int | None = None  # see `Sampled`
    unspliced: str | None = None


def as_completion(chat: dict[str, Any], prompt_ids: list[int]) -> dict[str, Any]:
    """The body of a plain completion that is equivalent to a chat completion's body."""
    body = {name: value for name, value in chat.items() if name not in _TEMPLATE_ONLY}
    top = body.pop("top_logprobs", 0)
    body["max_tokens"] = body.get("max_tokens")  # without a limit, completions have 16 tokens
    return {**body, "prompt": prompt_ids, "logprobs": top, "return_tokens_as_token_ids": True}


def as_plain(chat: dict[str, Any], prompt: Prompt, add_special_tokens: bool) -> dict[str, Any]:
    """The body of a client's plain completion, made from a chat completion's body."""
    asks_logprobs = chat.get("logprobs") is True
    body = as_completion(chat, [])
    del body["return_tokens_as_token_ids"]
    if not asks_logprobs:
        del body["logprobs"]
    if not add_special_tokens:
        body["add_special_tokens"] = False
    return {**body, "prompt": prompt}


class PlainConverter(ChatConverter):
    """See `clawctl.engines.upstream.chunks.Saying`: for a plain completion whose text the upstream returns."""

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
    """See `clawctl.engines.upstream.chunks.Saying`: for a plain completion that is decoded from its ids."""

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
