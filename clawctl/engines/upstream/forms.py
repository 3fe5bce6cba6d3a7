"""Requested forms of answers at vLLM: clawctl writes the grammar, and computes the tokens that it allowed after the answer.

vLLM 0.32 masks the logits before its sampler, so its logprobs are of the masked distribution, but it does not return the masks. Its
`guidance` backend is the same llguidance, which gives the same masks for the same grammar.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from clawctl.engines import CannotFollow, Sampled
from clawctl.engines.requests import GenerationRequest
from clawctl.engines.structured.grammars import Grammars
from clawctl.run.allowed_tokens import Allowed
from clawctl.serve.prompt import Rendered
from clawctl.serve.structured import is_requested, specification, unenforceable
from clawctl.serve.switches import switches
from clawctl.serve.text import END_THINK
from clawctl.serve.work_queues import KeyedLock

STRICT = "tools[].strict"  # as the client is told
UNKNOWN = "structured output: its sets of tokens are not known"
_OTHERS = "structured output: the engine allowed other tokens than clawctl"
_ROUNDING = 1e-3  # of a logprob
_TAIL = 8  # tokens of a prompt


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The form of one request's answers."""

    grammar: str
    allowed: Callable[[list[int]], Awaitable[Allowed]]  # the sets that the ids of an answer were sampled from

    async def keep_sets(self, sampled: Sampled) -> None:
        """Store the allowed tokens at each position of a complete answer, which the trainer needs."""
        ids, logprobs = sampled.completion_ids, sampled.logprobs
        if sampled.untrainable != UNKNOWN or not ids or logprobs is None:
            return
        with suppress(CannotFollow):
            allowed = await self.allowed(ids)
            forced = (logprob for logprob, index in zip(logprobs, allowed.which, strict=True) if allowed.is_single(index))
            agree = allowed.admits(ids) and all(logprob > -_ROUNDING for logprob in forced)
            sampled.allowed = allowed.packed() if agree else None
            sampled.untrainable = None if sampled.allowed else UNKNOWN if agree else _OTHERS


def parsed_by_engine(request: GenerationRequest, form: AnswerForm | None) -> tuple[Any, dict[str, Any]]:
    """The tool choice and the fields of a request, without those that became its form."""
    if form is None:
        return request.tool_choice if request.use_tools else None, request.engine_fields
    return None, {name: value for name, value in request.engine_fields.items() if name != "response_format"}


def without_strict(request: GenerationRequest) -> GenerationRequest:
    """The request with tools that are not strict, unless a call is forced, which is masked anyway. vLLM and SGLang mask every call
    of a strict tool, so its logprobs are not the model's."""
    if request.tool_choice not in (None, "auto") or not any(tool["function"].get("strict") is True for tool in request.functions):
        return request
    functions = ({name: value for name, value in tool["function"].items() if name != "strict"} for tool in request.functions)
    return replace(request, tools=[{"type": "function", "function": function} for function in functions])


class AnswerForms:
    """Grammars for one vLLM. `reasons`: vLLM has a reasoning parser, so it follows a grammar only after the reasoning."""

    def __init__(self, model: str, tokenizer: Any, reasons: bool) -> None:
        config = orjson.loads((Path(model) / "config.json").read_bytes())
        vocabulary = int(config.get("text_config", config)["vocab_size"])
        end = tokenizer.backend_tokenizer.token_to_id(tokenizer.special_tokens_map.get("eos_token", ""))  # vLLM allows no other
        self._grammars, self._tokenizer, self._reasons = Grammars(tokenizer, vocabulary, [end]), tokenizer, reasons
        self._switches, self._turns = switches(tokenizer.chat_template), KeyedLock()

    def follows(self, request: GenerationRequest) -> bool:
        """Whether the answer gets a grammar of clawctl's. A form in vLLM's own fields is passed on."""
        form = request.engine_fields.get("response_format")
        passed_on = any(name.startswith(("structured_", "guided_")) for name in request.engine_fields)
        tagged = isinstance(form, dict) and form.get("type") == "structural_tag"
        return is_requested(request) and not passed_on and not tagged

    async def open(self, request: GenerationRequest, prompt: Rendered) -> AnswerForm | None:
        """The form of the answers; None if they may begin with reasoning that vLLM does not mask. Raises Refusal."""
        if self._reasons and not self._tokenizer.decode(prompt.ids[-_TAIL:]).rstrip().endswith(END_THINK):
            return None
        packed = specification(request, self._tokenizer, prompt.thinking, self._switches)
        try:
            grammar = await self._in_turn(request.key, self._grammars.text, packed)
        except CannotFollow as problem:
            raise unenforceable(request, problem) from problem
        return AnswerForm(grammar, partial(self._in_turn, request.key, self._grammars.allowed, packed))

    async def _in_turn(self, key: str, work: Callable[..., Any], *arguments: Any) -> Any:
        """Call it in a thread. Keys take turns."""
        async with self._turns.of(key):
            return await asyncio.to_thread(work, *arguments)

    def stop(self) -> None:
        self._grammars.stop()
