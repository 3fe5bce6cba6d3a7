"""Recent answers of the server, so that a prompt can contain the sampled ids of answers that a client sends back.

They are kept in memory, bounded, and visible only to the key of the request. An answer is recognised by its handle or, without one,
by its content. `clawctl.serve.splicing` puts its ids in place of the template's rendering.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import orjson

from clawctl.engines.requests import EarlierAnswer, GenerationRequest
from clawctl.run.handles import exchange_of
from clawctl.run.rows import Message

_MAX_TOKENS = 4_000_000  # per key; the answer that was least recently given or matched is dropped first
_ANSWER_TOKENS = 32  # overhead per answer, in tokens, because many short answers need memory too
_MAX_HISTORY = 512  # newest answers of a history that are looked up
_MAX_CANDIDATES = 4096  # limit for the candidates of one history
_MAX_ALIKE = 1024  # answers of one key with the same content; all are checked when such an answer returns without a handle


class RecentAnswers:
    """Recent answers, found by exchange or by content."""

    def __init__(self, max_tokens: int = _MAX_TOKENS) -> None:
        self._max_tokens = max_tokens
        self._of_key: dict[str, _Answers] = {}

    def store(self, key: str, exchange_id: str, message: Message, prompt_ids: Sequence[int], completion_ids: Sequence[int]) -> None:
        if completion_ids:
            answers = self._of_key.setdefault(key, _Answers())
            answers.add(exchange_id, digest(message), EarlierAnswer(tuple(completion_ids), prompt_digest(prompt_ids)))
            answers.shrink(self._max_tokens)

    def drop(self, key: str) -> None:
        """Remove all answers of a key."""
        self._of_key.pop(key, None)

    def with_answers(self, key: str, request: GenerationRequest) -> GenerationRequest:
        """The request, with the stored data of each known answer in its history."""
        answers = self._of_key.get(key)
        sent = [message for message in request.sent_messages if message.get("role") == "assistant"]
        indices = [i for i, message in enumerate(request.messages) if message["role"] == "assistant"]
        if answers is None or len(sent) != len(indices):
            return request
        newest = list(zip(indices, sent, strict=True))[-_MAX_HISTORY:]
        limit = max(1, _MAX_CANDIDATES // max(1, len(newest)))
        candidates_of = {i: candidates for i, message in newest if (candidates := answers.find(message, limit))}
        return replace(request, answers=candidates_of) if candidates_of else request


@dataclass(slots=True)
class _StoredAnswer:
    answer: EarlierAnswer
    digest: bytes | None


class _Answers:
    """The answers of one key."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[str, _StoredAnswer] = OrderedDict()
        self._by_digest: dict[bytes, list[str]] = {}
        self._tokens = 0

    def add(self, exchange_id: str, digest: bytes | None, answer: EarlierAnswer) -> None:
        self._by_id[exchange_id] = _StoredAnswer(answer, digest)
        self._tokens += _ANSWER_TOKENS + len(answer.completion_ids)
        if digest is not None:
            alike = self._by_digest.setdefault(digest, [])
            alike.append(exchange_id)
            if len(alike) > _MAX_ALIKE:
                self._forget(alike[0])

    def shrink(self, max_tokens: int) -> None:
        while self._tokens > max_tokens:
            self._forget(next(iter(self._by_id)))

    def _forget(self, exchange_id: str) -> None:
        removed = self._by_id.pop(exchange_id)
        self._tokens -= _ANSWER_TOKENS + len(removed.answer.completion_ids)
        if removed.digest is not None:
            self._by_digest[removed.digest].remove(exchange_id)
            if not self._by_digest[removed.digest]:
                del self._by_digest[removed.digest]

    def find(self, message: Message, limit: int = _MAX_ALIKE) -> list[EarlierAnswer]:
        """At most `limit` answers: with a handle, the answer that it names if its content is unchanged; without one, all answers
        with the same content."""
        content = digest(message)
        handles = _handles(message)
        if len(handles) > 1:  # the client merged several answers
            return []
        named = [handle for handle in handles if handle in self._by_id and self._by_id[handle].digest == content]
        matches = (named if handles else self._by_digest.get(content, []) if content is not None else [])[-limit:]
        for exchange_id in matches:
            self._by_id.move_to_end(exchange_id)
        return [self._by_id[exchange_id].answer for exchange_id in matches]


def _handles(message: Message) -> set[str]:
    calls = message.get("tool_calls")
    ids = [call.get("id") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    handles = {exchange for named_id in ids if (exchange := exchange_of(named_id))}
    return handles | {message["handle"]} if isinstance(message.get("handle"), str) else handles


def digest(message: Message) -> bytes | None:
    """A digest of an answer's content, independent of notation: text without surrounding whitespace, and calls with parsed
    arguments. Reasoning is excluded, because clients omit it. None if there is no content to recognise."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str))
    text = content.strip() if isinstance(content, str) else ""
    given = message.get("tool_calls")
    calls = [_call(call) for call in given] if isinstance(given, list) else []
    if not text and not calls:
        return None
    return blake2b(orjson.dumps([text, calls], option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = arguments.strip()
    return [function.get("name"), arguments]


def prompt_digest(prompt_ids: Sequence[int]) -> bytes:
    return blake2b(orjson.dumps(list(prompt_ids)), digest_size=16).digest()
