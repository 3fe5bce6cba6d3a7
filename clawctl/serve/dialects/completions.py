"""OpenAI's plain completions, https://platform.openai.com/docs/api-reference/completions, with vLLM's token ids.

A prompt is text or token ids and enters the engine unchanged: no template is applied, and control tokens stay control tokens.
With `echo` and `logprobs`, the tokens of the prompt are scored.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import orjson

from clawctl.engines.requests import GenerationRequest, Prompt, Refusal, Shown, ShownToken, TextDelta
from clawctl.run.rows import plain_prompt
from clawctl.serve.dialects import Choice, fields
from clawctl.serve.dialects.api import known_fields
from clawctl.serve.dialects.fields import Object, wrong
from clawctl.serve.dialects.writing import ChunkDialect, chunk_frame
from clawctl.serve.hints import read_claims
from clawctl.serve.sampling import engine_fields

DEFAULT_TOKENS = 16  # maximum tokens of an answer; the default of OpenAI and vLLM
MAX_ANSWERS = 128  # per request: prompts times `n`
_MAX_TOP = 20
_MAX_ID = 1 << 31
_CHAT_ONLY = ("chat_template_kwargs", "reasoning_effort", "parallel_tool_calls")


def read(body: dict[str, Any], live_name: str) -> GenerationRequest:
    """A single request for all prompts; `each_prompt` splits it. Raises Refusal for invalid or unsupported requests."""
    return read_known(*known_fields("completions", body), live_name)


def read_known(body: dict[str, Any], unknown: tuple[str, ...], live_name: str) -> GenerationRequest:
    """Like `read`, but for a body that contains only fields in the table."""
    prompts = _prompts(body.get("prompt"))
    n = fields.whole_number(body, "n", 1, MAX_ANSWERS) or 1
    if n * len(prompts) > MAX_ANSWERS:
        raise Refusal(400, f"the number of prompts times 'n' may be at most {MAX_ANSWERS}", "prompt")
    best_of = fields.whole_number(body, "best_of", 1, MAX_ANSWERS)
    if best_of not in (None, n):
        raise Refusal(400, "'best_of' is not supported: remove it, and choose among the 'n' answers", "best_of")
    echo, top = bool(fields.flag(body, "echo")), fields.whole_number(body, "logprobs", 0, _MAX_TOP)
    scores, samples = echo and top is not None, body.get("max_tokens") != 0 or body.get("max_tokens") is False
    if scores and body.get("stream"):
        raise Refusal(400, "a scored prompt cannot be streamed: remove 'stream'", "stream")
    first = fields.whole_number(body, "logprob_start_len", 0, _MAX_ID) or 0
    common = fields.common(body if samples or not scores else {**body, "max_tokens": 1}, live_name)
    if scores and not samples:
        common["max_tokens"] = 0
    if "max_tokens" not in body:  # null: the rest of the context
        common["max_tokens"] = DEFAULT_TOKENS
    special = fields.flag(body, "add_special_tokens")
    passed = {name: value for name, value in engine_fields(body).items() if name not in _CHAT_ONLY}
    messages = [plain_prompt(prompt if isinstance(prompt, str) else _shown(prompt)) for prompt in prompts]
    return GenerationRequest(
        api="completions",
        **common,
        messages=messages,
        sent_messages=messages,
        tools=None,
        tool_choice=None,
        include_usage=bool(fields.flag(fields.object_or_none(body, "stream_options"), "include_usage")),
        continuous_usage=bool(fields.flag(fields.object_or_none(body, "stream_options"), "continuous_usage_stats")),
        n=n,
        stop=fields.stops(body.get("stop"), "stop"),
        logprobs=top is not None,
        top_logprobs=top or 0,
        engine_fields=passed,
        claims=read_claims(body, messages),
        echo={"echo": echo, "return_token_ids": bool(fields.flag(body, "return_token_ids"))},
        prompts=tuple(prompts),
        score_from=max(1, first) if scores else None,
        add_special_tokens=special is not False,
        unknown=unknown,
    )


async def each_prompt(
    request: GenerationRequest, text_of: Callable[[str, tuple[int, ...]], Awaitable[str]]
) -> list[GenerationRequest]:
    """One request per prompt. `text_of` returns the text of a key's token ids, or "" without a tokenizer. Raises Refusal."""
    requests = []
    for prompt, message in zip(request.prompts, request.messages, strict=True):
        text = "" if isinstance(prompt, str) else await text_of(request.key, prompt)
        if not isinstance(prompt, str) and not text and request.echo["echo"] and request.score_from is None:
            raise Refusal(400, "'echo' is not supported: this server has no tokenizer for token ids", "echo")
        messages = [plain_prompt(text) if text else message]
        requests.append(replace(request, prompts=(prompt,), messages=messages, sent_messages=messages))
    return requests


def _prompts(given: Any) -> list[Prompt]:
    if isinstance(given, str):
        return [_text(given)]
    if not isinstance(given, list) or not given:
        raise wrong("prompt", "a string, a list of strings, a list of token ids, or a list of such lists")
    if all(type(token) is int for token in given):
        return [_ids(given, "prompt")]
    if len(given) > MAX_ANSWERS:
        raise Refusal(400, f"'prompt' may contain at most {MAX_ANSWERS} prompts", "prompt")
    prompts: list[Prompt] = []
    for i, prompt in enumerate(given):
        if isinstance(prompt, str):
            prompts.append(_text(prompt))
        elif isinstance(prompt, list) and prompt and all(type(number) is int for number in prompt):
            prompts.append(_ids(prompt, f"prompt[{i}]"))
        else:
            raise wrong(f"prompt[{i}]", "a string or a list of token ids")
    return prompts


def _text(text: str) -> str:
    if not text:
        raise wrong("prompt", "a text of at least one character")
    return text


def _ids(numbers: list[int], where: str) -> tuple[int, ...]:
    if min(numbers) < 0 or max(numbers) >= _MAX_ID:
        raise wrong(where, "a list of token ids, none of them negative")
    return tuple(numbers)


def _shown(ids: tuple[int, ...]) -> str:
    """The displayed form of a prompt of ids that no tokenizer can decode."""
    return f"[{len(ids)} token ids: {' '.join(map(str, ids[-32:]))}]"


class Completions(ChunkDialect):
    """Plain completions. Choices are numbered across all prompts, starting with those of the first prompt."""

    prefix = "cmpl"

    def __init__(
        self, request: GenerationRequest, exchange_id: str, prompts: Iterable[str] = (), scored: Sequence[list[ShownToken]] = ()
    ) -> None:
        """`prompts`: the prompts' texts, if they are echoed. `scored`: the prompts' tokens with logprobs, if these are
        requested."""
        super().__init__(request, exchange_id)
        self._prompts, self._scored = list(prompts), scored
        self._offsets: dict[int, int] = {}  # characters streamed so far, per choice

    def whole(self, choices: list[Choice]) -> bytes:
        answers = []
        for choice in choices:
            text = "".join(event.text for shown in choice.shown for event in shown.events if isinstance(event, TextDelta))
            tokens = [token for shown in choice.shown for token in shown.tokens]
            if self._scored:  # one entry per token, including an end token, which is not shown
                unseen = len(choice.completion_ids or tokens) - len(tokens)
                tokens = [*self._scored[choice.index // self._request.n], *tokens, *[ShownToken("", None, [])] * unseen]
            logprobs = plain_logprobs(tokens, 0) if self._request.logprobs else None
            answers.append({**self._answer(choice, self._echoed(choice) + text, logprobs), **self._end_of(choice)})
        return orjson.dumps({**self._head("text_completion"), "choices": answers, "usage": _usage(choices, self._request.n)})

    def begin(self, choice: Choice) -> bytes:
        echoed = self._echoed(choice)
        return self._chunk(choice, self._answer(choice, echoed, None)) if echoed else b""

    def piece(self, choice: Choice, shown: Shown) -> bytes:
        text = "".join(event.text for event in shown.events if isinstance(event, TextDelta))
        before = self._offsets.get(choice.index, 0)
        self._offsets[choice.index] = before + len(text)
        logprobs = plain_logprobs(shown.tokens, before) if self._request.logprobs else None
        return self._chunk(choice, self._answer(choice, text, logprobs))

    def finish(self, choice: Choice) -> bytes:
        return self._chunk(choice, {**self._answer(choice, "", None), **self._end_of(choice)})

    def _usage_chunk(self, choices: list[Choice]) -> Object:
        return {**self._head("text_completion"), "choices": [], "usage": _usage(choices, self._request.n)}

    def _echoed(self, choice: Choice) -> str:
        return self._prompts[choice.index // self._request.n] if self._request.echo["echo"] else ""

    def _answer(self, choice: Choice, text: str, logprobs: Object | None) -> Object:
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": None}

    def _end_of(self, choice: Choice) -> Object:
        ending: Object = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_sequence}
        if self._request.echo["return_token_ids"]:
            ending |= {"prompt_token_ids": choice.prompt_ids, "token_ids": choice.completion_ids}
        return ending

    def _chunk(self, choice: Choice, answer: Object) -> bytes:
        return chunk_frame({**self._head("text_completion"), "choices": [answer], **self._usage_so_far(choice)})


def plain_logprobs(tokens: list[ShownToken], offset: int) -> Object:
    """Logprobs in the format of this API. `offset`: number of the answer's characters before the first token."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    tops = [
        None
        if token.logprob is None
        else {**{likely["token"]: likely["logprob"] for likely in reversed(token.top)}, token.text: token.logprob}
        for token in tokens
    ]
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _usage(choices: list[Choice], n: int) -> Object:
    prompt_tokens = sum(choice.prompt_tokens for choice in choices[::n])
    completion_tokens = sum(choice.completion_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def scored_only(handle: str, scored: Sequence[Sequence[ShownToken]]) -> list[Choice]:
    """The choices of a request that only scores its prompts."""
    return [
        Choice(i, handle, finish_reason="length", prompt_tokens=len(tokens), completion_ids=[]) for i, tokens in enumerate(scored)
    ]
