"""The tokens of an answer from a chat-completions server, kept exactly as received or marked as incomplete."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from clawctl.engines import THERE_AND_BACK, Sampled
from clawctl.engines.upstream.wire import Chunk, ChunkChoice, Entry

_UNKNOWN_LOGPROB = -9999.0  # vLLM's value for numbers that JSON cannot represent
_POLL_S, _MAX_POLLS = 0.01, 1000  # a canary check takes about 50 ms; after ten seconds it is no longer waited for
_FINISHES = ("stop", "length", "tool_calls")

# Fields that make a server of this kind return the ids of prompt and answer. vLLM returns them in each chunk, SGLang 0.5.23 once,
# at the end, under "sglext". SGLang also has `return_token_ids`, but refuses streams with it (entrypoints/openai/serving_chat.py).
IDS_WANTED: dict[str, dict[str, bool]] = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
    "openai": {},
}


class Clock:
    """The version whose weights compute at present, if weights change under running requests."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.refused: set[int] = set()  # refused versions; turns that they sampled are not trained
        self.unverified: int | None = None  # the version whose canary check is running
        self.doubt: str | None = None  # why the current weights belong to no version; turns that they sample are not trained


class Tokens:
    """Collects one answer's tokens in its `Sampled`."""

    def __init__(self, sampled: Sampled, clock: Clock, expect_ids: bool) -> None:
        self._sampled, self._clock, self._expect_ids = sampled, clock, expect_ids
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: set[int] = set()
        self._problem: str | None = None  # why ids and logprobs cannot belong to the sampled tokens
        self._reported_count: int | None = None

    @property
    def received(self) -> bool:
        return bool(self._ids)

    def add_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Add everything that has just arrived."""
        old_count, has_choice = len(self._ids) + len(self._logprobs), False
        for chunk in chunks:
            if chunk.prompt_token_ids is not None:
                self._sampled.prompt_ids, self._sampled.prompt_tokens = chunk.prompt_token_ids, len(chunk.prompt_token_ids)
            for choice in chunk.choices or ():
                self._take_choice(choice)
                has_choice = True
            if chunk.sglext is not None:
                self._take_at_end(chunk.sglext)
            if chunk.usage:
                self._take_usage(chunk.usage)
        if len(self._ids) + len(self._logprobs) > old_count or (has_choice and not self._expect_ids):
            self._set_version()
            self._sampled.completion_tokens = self._reported_count or len(self._ids)

    def _take_choice(self, choice: ChunkChoice) -> None:
        ids = choice.token_ids or ()
        entries: Sequence[Entry] = (choice.logprobs.content or ()) if choice.logprobs is not None else ()
        self._ids += ids
        for entry in entries:
            logprob = entry.logprob
            if logprob is not None and logprob > _UNKNOWN_LOGPROB:
                self._logprobs.append(logprob)
            else:
                self._problem = "a logprob is missing"
        if ids and len(ids) != len(entries) and self._expect_ids:
            self._problem = self._problem or "ids and logprobs differ in number"
        if choice.finish_reason:
            self._sampled.finish_reason = choice.finish_reason if choice.finish_reason in _FINISHES else "stop"
            if choice.finish_reason not in _FINISHES:  # "abort", "content_filter", "repetition", …
                self._problem = "the engine ended it early"

    def _take_at_end(self, sglext: dict[str, Any]) -> None:
        """SGLang's ids of the complete prompt and answer. `output_ids` has a list for each choice, and clawctl requests one."""
        sampled = self._sampled
        if (prompt_ids := sglext.get("input_ids")) is not None:
            sampled.prompt_ids, sampled.prompt_tokens = prompt_ids, len(prompt_ids)
        if (outputs := sglext.get("output_ids")) is not None:
            self._ids = outputs[0]
            sampled.completion_tokens = len(self._ids)

    def _set_version(self) -> None:
        """Assign the current version to the tokens that have just arrived."""
        sampled, version = self._sampled, self._clock.version
        self._problem = self._problem or self._clock.doubt
        if version != sampled.version_end:
            sampled.version_end = version
            sampled.version = version if sampled.version is None else sampled.version
            self._versions.add(version)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        sampled = self._sampled
        sampled.usage = usage
        sampled.prompt_tokens = usage.get("prompt_tokens") or sampled.prompt_tokens
        self._reported_count = usage.get("completion_tokens")
        sampled.completion_tokens = self._reported_count or sampled.completion_tokens
        sampled.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        sampled.reasoning_tokens = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0

    async def canary_checked(self) -> None:
        """Wait for the canary check of the versions that sampled. Its result decides whether the answer may be trained."""
        for _ in range(_MAX_POLLS):
            if self._clock.unverified not in self._versions:
                return
            await asyncio.sleep(_POLL_S)

    def finish(self) -> None:
        """Mark the sampled data as complete, or record why it is not trainable."""
        sampled = self._sampled
        problem = self._find_problem()
        if self._versions & self._clock.refused:
            problem = problem or "sampled by a version that was refused"
        if self._clock.unverified in self._versions:
            problem = problem or "sampled before the version passed its canary check"
        if len(self._versions) > 1 and sampled.version == sampled.version_end:
            problem = problem or THERE_AND_BACK
        sampled.completion_ids = self._ids if self._ids else None
        sampled.logprobs = self._logprobs if len(self._logprobs) == len(self._ids) and self._ids else None
        sampled.untrainable = problem or sampled.untrainable

    def _find_problem(self) -> str | None:
        sampled = self._sampled
        if sampled.prompt_ids is None or (not self._ids and sampled.completion_tokens):
            return "no token ids"
        if not self._logprobs and self._ids:
            return "no logprobs"
        if len(self._ids) != len(self._logprobs):
            return self._problem or "ids and logprobs differ in number"
        if sampled.finish_reason is not None and self._reported_count not in (None, len(self._ids)):
            return "the engine's token count differs from its ids"
        return self._problem
