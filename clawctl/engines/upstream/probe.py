"""Finds the features of an upstream by calling it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from clawctl.engines import Capabilities, Unanswered
from clawctl.engines.upstream.tokens import IDS_WANTED
from clawctl.engines.vllm.control import Control
from clawctl.errors import ClawError

Answer = TypeVar("Answer")
WAITS_S = (0.5, 1.0, 2.0)  # delays between repeated attempts at the same call


@dataclass(frozen=True, slots=True)
class ProbeResult:
    model: str  # the model name to request
    max_context: int | None
    capabilities: Capabilities
    warnings: list[str]
    unprobed: list[str]  # why a feature could not be checked; None in `capabilities` may become known at the next probe


@dataclass(slots=True)
class _Retries:
    """Retries unanswered calls a few times, then continues without the answer and records the reason."""

    waits_s: Sequence[float]
    unprobed: list[str] = field(default_factory=list)

    def call(self, request: Callable[[], Answer]) -> Answer | None:
        """The answer; None if there was none."""
        for wait_s in (*self.waits_s, None):
            try:
                return request()
            except Unanswered as error:
                if wait_s is None:
                    self.unprobed.append(error.problem)
                else:
                    time.sleep(wait_s)
        return None


def probe(control: Control, kind: str, model: str | None, waits_s: Sequence[float] = WAITS_S) -> ProbeResult:
    """Probe a server. Blocks. Raises ClawError while the server does not list its models."""
    listed = control.models()
    chosen = next((listed_model for listed_model in listed if model is None or listed_model.get("id") == model), {})
    name = model or chosen.get("id")
    if not isinstance(name, str):
        raise ClawError("the upstream lists no model", "set one with serve.upstream.model")
    longest = chosen.get("max_model_len")
    retries = _Retries(waits_s)
    warm = retries.call(lambda: control.chat(_probe_request(name, kind, 1.0)))
    hot = None if warm is None else retries.call(lambda: control.chat(_probe_request(name, kind, 2.0)))
    capabilities = Capabilities(
        ids=None if warm is None else _has_ids(warm),
        logprobs=None if warm is None else _likeliest(warm) is not None,
        processed=None if warm is None or hot is None else _likeliest(warm) is not None and _likeliest(warm) != _likeliest(hot),
        adapters=kind != "openai" and retries.call(control.takes_adapters),
        weights=kind != "openai" and retries.call(control.takes_weights),
    )
    warnings = retries.call(control.warnings) or []
    return ProbeResult(name, longest if isinstance(longest, int) else None, capabilities, warnings, retries.unprobed)


def missing(can: Capabilities) -> list[str]:
    """The missing features, as phrases for the log, without those that could not be checked."""
    lacks = []
    if can.ids is False:
        lacks.append("no token ids: turns are kept, but none can be trained")
    elif can.logprobs is False:
        lacks.append("no logprobs: turns are kept, but none can be trained")
    elif can.processed is False:
        lacks.append("logprobs before temperature: only turns at temperature 1 can be trained")
    if can.adapters is False and can.weights is False:
        lacks.append("neither adapters nor weights can be swapped: it keeps its current weights")
    elif can.adapters is False:
        lacks.append("adapters cannot be swapped")
    elif can.weights is False:
        lacks.append("full weights cannot be swapped")
    return lacks


def _probe_request(model: str, kind: str, temperature: float) -> dict[str, Any]:
    """A request for an answer of one token that asks for all useful fields."""
    request = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": temperature}
    if kind != "openai":
        request |= {"top_k": -1, "top_p": 1.0}  # SGLang refuses its own default where the model's files say `"top_k": 0`
    return {**request, "logprobs": True, "top_logprobs": 1, **IDS_WANTED[kind]}


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _has_ids(answer: dict[str, Any]) -> bool:
    extra = answer.get("sglext")
    if isinstance(extra, dict):
        return isinstance(extra.get("input_ids"), list) and isinstance(extra.get("output_ids"), list)
    return isinstance(answer.get("prompt_token_ids"), list) and isinstance(_choice(answer).get("token_ids"), list)


def _likeliest(answer: dict[str, Any]) -> float | None:
    """The logprob of the most likely first token. It differs between two temperatures if it belongs to the sampled distribution."""
    try:
        return float(_choice(answer)["logprobs"]["content"][0]["top_logprobs"][0]["logprob"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
