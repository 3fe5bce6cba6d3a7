"""What a chat-completions server tells of the tokens of an answer, kept exactly as it is told, or said to be incomplete."""

from typing import Any

from clawctl.serve.backends import Sampled

_UNKNOWN_LOGPROB = -9999.0  # vLLM writes it where JSON has no number
_FINISHES = ("stop", "length", "tool_calls")

# What has a server of this kind tell the ids of prompt and answer: vLLM in each chunk, SGLang 0.5.23 once, at the end, under
# "sglext". SGLang knows `return_token_ids` too, but refuses streams with it (entrypoints/openai/serving_chat.py).
IDS_WANTED: dict[str, dict[str, bool]] = {
    "vllm": {"return_token_ids": True},
    "sglang": {"return_input_ids_in_sglext": True, "return_output_ids_in_sglext": True},
    "openai": {},
}


class Clock:
    """The version whose weights compute just now, where they change under running requests."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.refused: set[int] = set()  # versions that were taken back: what they sampled is not trained


class Tokens:
    """Gathers one answer's tokens into its `Sampled`."""

    def __init__(self, sampled: Sampled, clock: Clock, expect_ids: bool) -> None:
        self._sampled, self._clock, self._expect_ids = sampled, clock, expect_ids
        self._ids: list[int] = []
        self._logprobs: list[float] = []
        self._versions: set[int] = set()
        self._trouble: str | None = None  # why ids and logprobs cannot be what was sampled
        self._told_completion: int | None = None

    def take(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        """A completion, or a chunk of one; its choices."""
        prompt_ids = told.get("prompt_token_ids")
        if prompt_ids is not None:
            self._sampled.prompt_ids, self._sampled.prompt_tokens = prompt_ids, len(prompt_ids)
        choices: list[dict[str, Any]] = told.get("choices") or []
        for choice in choices:
            self._take_choice(choice)
        if "sglext" in told:
            self._take_at_end(told["sglext"] or {})
        if usage := told.get("usage"):
            self._take_usage(usage)
        return choices

    def _take_choice(self, choice: dict[str, Any]) -> None:
        ids = choice.get("token_ids") or ()
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") or () if logprobs else ()
        if ids or entries or not self._expect_ids:
            self._date()
            self._ids += ids
            self._sampled.completion_tokens = len(self._ids)
        for entry in entries:
            logprob = entry.get("logprob")
            if isinstance(logprob, int | float) and logprob > _UNKNOWN_LOGPROB:
                self._logprobs.append(logprob)
            else:
                self._trouble = "a logprob is missing"
        if ids and len(ids) != len(entries) and self._expect_ids:
            self._trouble = self._trouble or "ids and logprobs differ in number"
        if reason := choice.get("finish_reason"):
            self._sampled.finish_reason = reason if reason in _FINISHES else "stop"
            if reason == "abort":
                self._trouble = "the engine broke it off"
            stop = choice.get("stop_reason", choice.get("matched_stop"))  # vLLM's word, and SGLang's
            self._sampled.stop_sequence = stop if isinstance(stop, str) else None

    def _take_at_end(self, told: dict[str, Any]) -> None:
        """SGLang's ids, of the whole prompt and the whole answer; `output_ids` has a list for each choice, and we ask for one."""
        sampled = self._sampled
        if (prompt_ids := told.get("input_ids")) is not None:
            sampled.prompt_ids, sampled.prompt_tokens = prompt_ids, len(prompt_ids)
        if (outputs := told.get("output_ids")) is not None:
            self._ids = outputs[0]
            sampled.completion_tokens = len(self._ids)

    def _date(self) -> None:
        """What has just come was sampled by the version of this moment."""
        sampled, version = self._sampled, self._clock.version
        if version != sampled.version_end:
            sampled.version_end = version
            sampled.version = version if sampled.version is None else sampled.version
            self._versions.add(version)

    def _take_usage(self, usage: dict[str, Any]) -> None:
        sampled = self._sampled
        sampled.prompt_tokens = usage.get("prompt_tokens") or sampled.prompt_tokens
        self._told_completion = usage.get("completion_tokens")
        sampled.completion_tokens = self._told_completion or sampled.completion_tokens
        sampled.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        sampled.reasoning_tokens = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0

    def settle(self) -> None:
        """What was sampled is complete, or it is said why it is not for training."""
        sampled = self._sampled
        trouble = self._found_trouble()
        if self._versions & self._clock.refused:
            trouble = trouble or "sampled by a version that was refused"
        sampled.completion_ids = self._ids if self._ids else None
        sampled.logprobs = self._logprobs if len(self._logprobs) == len(self._ids) and self._ids else None
        sampled.untrainable = trouble or sampled.untrainable

    def _found_trouble(self) -> str | None:
        sampled = self._sampled
        if sampled.prompt_ids is None or (not self._ids and sampled.completion_tokens):
            return "no token ids"
        if not self._logprobs and self._ids:
            return "no logprobs"
        if len(self._ids) != len(self._logprobs):
            return self._trouble or "ids and logprobs differ in number"
        if sampled.finish_reason is not None and self._told_completion not in (None, len(self._ids)):
            return "the engine counts other tokens than it told"
        return self._trouble
