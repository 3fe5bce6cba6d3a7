"""Returns one log-probability per token from vLLM 0.32 with less work and the same result.

vLLM uses general code for it: a compiled kernel for a few numbers, decoded text for each token, and a field-by-field check of each
object. This module handles `logprobs` without `top_logprobs`, and passes everything else to vLLM's own code. It replaces a function
only if its source is exactly the expected one; any other vLLM version stays unchanged.
"""

import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

_FEW_NUMBERS = 1 << 15  # of log-probabilities: a call of the compiled kernel costs some 60 µs, which pays off with more of them
_MOST_TEXTS = 1 << 18  # a vocabulary
_UNFINISHED = "\ufffd"  # for a token with part of a character, whose text depends on the tokens before it
_LOWEST = -9999.0  # that vLLM tells

Own = Callable[..., Any]


def in_worker() -> None:
    """Apply the replacements in a worker on a CPU, where these calls delay a small model's step."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        replace("vllm.v1.sample.sampler", "Sampler", "gather_logprobs", gathering, "ca39ba3c4e61572e")


def in_server() -> None:
    replace("vllm.v1.engine.logprobs", "LogprobsProcessor", "_update_sample_logprobs", updating, "acd9081bb7c5ced1")
    serving = "vllm.entrypoints.openai.chat_completion.serving"
    replace(serving, "OpenAIServingChat", "_create_chat_logprobs", telling, "cb7b7ad3766cc77c")


def replace(module: str, owner: str, name: str, ours: Callable[[Own], Own], written_beside: str) -> None:
    """Replace a method by `ours`, which gets vLLM's own method. Nothing happens if the method is missing or different, or if the
    recipe turned it off (`serve.patches`)."""
    if os.environ.get("CLAWCTL_PATCHES") == "0":
        return
    try:
        holder = getattr(import_module(module), owner)
        own = getattr(holder, name)
    except (ImportError, AttributeError):
        return
    if digest(own) == written_beside:
        static = isinstance(inspect.getattr_static(holder, name), staticmethod)
        setattr(holder, name, staticmethod(ours(own)) if static else ours(own))


def digest(function: Own) -> str | None:
    """16 hexadecimal digits of its source; None if the source cannot be read."""
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()[:16]
    except (OSError, TypeError):
        return None


def gathering(own: Own) -> Own:
    """`Sampler.gather_logprobs`: `logprobs` [rows, vocabulary], `token_ids` [rows] → ids, logprobs [rows, 1] and ranks [rows]."""
    from vllm.v1.outputs import LogprobsTensors

    def gather_logprobs(logprobs: Any, num_logprobs: int, token_ids: Any) -> Any:
        if num_logprobs != 0 or logprobs.numel() > _FEW_NUMBERS:
            return own(logprobs, num_logprobs, token_ids)
        chosen = token_ids.unsqueeze(-1)
        values = logprobs.gather(-1, chosen)
        return LogprobsTensors(chosen.int(), values, (logprobs >= values).sum(-1))

    return gather_logprobs


def updating(own: Own) -> Own:
    """`LogprobsProcessor._update_sample_logprobs`: of each position, the token that was sampled is the first."""
    from vllm.logprobs import Logprob
    from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens

    @functools.lru_cache(_MOST_TEXTS)
    def text_of(tokenizer: Any, token: int) -> str:
        text: str = convert_ids_list_to_tokens(tokenizer, [token])[0]
        return text

    def _update_sample_logprobs(self: Any, lists: Any) -> None:
        if self.num_logprobs != 0 or self.tokenizer is None or type(self.logprobs) is not list:
            own(self, lists)
            return
        tokens, logprobs = lists.logprob_token_ids[:, 0].tolist(), lists.logprobs[:, 0].tolist()
        texts = [text_of(self.tokenizer, token) for token in tokens]
        if any(text.endswith(_UNFINISHED) for text in texts):
            own(self, lists)
            return
        for token, logprob, rank, text in zip(tokens, logprobs, lists.sampled_token_ranks.tolist(), texts, strict=True):
            self.cumulative_logprob += logprob
            self.logprobs.append({token: Logprob(logprob, rank, text)})

    return _update_sample_logprobs


def telling(own: Own) -> Own:
    """`OpenAIServingChat._create_chat_logprobs`."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionLogProbs, ChatCompletionLogProbsContent

    def _create_chat_logprobs(
        self: Any,
        token_ids: Sequence[int],
        top_logprobs: Sequence[Any],
        tokenizer: Any,
        num_output_top_logprobs: int | None = None,
        logprob_token_ids: list[int] | None = None,
        return_as_token_id: bool | None = None,
    ) -> Any:
        as_ids = self.return_tokens_as_token_ids if return_as_token_id is None else return_as_token_id
        entries: list[Any] = [(told or {}).get(token) for token, told in zip(token_ids, top_logprobs, strict=False)]
        plain = not (num_output_top_logprobs or logprob_token_ids or as_ids) and len(entries) == len(token_ids)
        if not plain or any(entry is None or entry.decoded_token is None for entry in entries):
            return own(self, token_ids, top_logprobs, tokenizer, num_output_top_logprobs, logprob_token_ids, return_as_token_id)
        content = [
            _unchecked(
                ChatCompletionLogProbsContent,
                {
                    "token": entry.decoded_token,
                    "logprob": max(entry.logprob, _LOWEST),
                    "bytes": list(entry.decoded_token.encode("utf-8", errors="replace")),
                    "top_logprobs": [],
                },
            )
            for entry in entries
        ]
        return _unchecked(ChatCompletionLogProbs, {"content": content})

    return _create_chat_logprobs


def _unchecked(model: Any, fields: dict[str, Any]) -> Any:
    """The result of pydantic's `model_construct` with all fields of a model, without a check of each."""
    made = model.__new__(model)
    object.__setattr__(made, "__dict__", fields)
    object.__setattr__(made, "__pydantic_fields_set__", set(fields))
    object.__setattr__(made, "__pydantic_extra__", {})
    object.__setattr__(made, "__pydantic_private__", None)
    return made
