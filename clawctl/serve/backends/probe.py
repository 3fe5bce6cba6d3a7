"""What an upstream can give, found out by asking it."""

from dataclasses import dataclass
from typing import Any

from clawctl.errors import ClawError
from clawctl.serve.backends import Capabilities
from clawctl.serve.backends.control import Control
from clawctl.serve.backends.tokens import IDS_WANTED


@dataclass(frozen=True, slots=True)
class Found:
    model: str  # the name to ask for
    max_context: int | None
    capabilities: Capabilities
    warnings: list[str]


def probe(control: Control, kind: str, model: str | None) -> Found:
    """Blocking. Raises ClawError while the server cannot be asked."""
    listed = control.models()
    chosen = next((each for each in listed if model is None or each.get("id") == model), {})
    name = model or chosen.get("id")
    if not isinstance(name, str):
        raise ClawError("the upstream names no model", "name one with serve.upstream_model")
    longest = chosen.get("max_model_len")
    warm, hot = control.chat(_question(name, kind, 1.0)), control.chat(_question(name, kind, 2.0))
    logprobs = _likeliest(warm)
    capabilities = Capabilities(
        ids=_has_ids(warm),
        logprobs=logprobs is not None,
        processed=logprobs is not None and logprobs != _likeliest(hot),
        adapters=kind != "openai" and control.takes_adapters(),
        weights=kind != "openai" and control.takes_weights(),
    )
    return Found(name, longest if isinstance(longest, int) else None, capabilities, control.warnings())


def missing(can: Capabilities) -> list[str]:
    """What it cannot give, in words for people."""
    lacks = []
    if not can.ids:
        lacks.append("no token ids: turns are kept, none can be trained")
    elif not can.logprobs:
        lacks.append("no logprobs: turns are kept, none can be trained")
    elif not can.processed:
        lacks.append("logprobs before temperature: only turns at temperature 1 can be trained")
    if not can.adapters and not can.weights:
        lacks.append("neither adapters nor weights can be swapped: it goes on with what it has")
    elif not can.adapters:
        lacks.append("adapters cannot be swapped")
    elif not can.weights:
        lacks.append("full weights cannot be swapped")
    return lacks


def _question(model: str, kind: str, temperature: float) -> dict[str, Any]:
    """One token of an answer, with all that we would like to know of it."""
    question = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, "temperature": temperature}
    return {**question, "logprobs": True, "top_logprobs": 1, **IDS_WANTED[kind]}


def _choice(answer: dict[str, Any]) -> dict[str, Any]:
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _has_ids(answer: dict[str, Any]) -> bool:
    extra = answer.get("sglext")
    if isinstance(extra, dict):
        return isinstance(extra.get("input_ids"), list) and isinstance(extra.get("output_ids"), list)
    return isinstance(answer.get("prompt_token_ids"), list) and isinstance(_choice(answer).get("token_ids"), list)


def _likeliest(answer: dict[str, Any]) -> float | None:
    """The logprob of the likeliest first token: at two temperatures it differs where it is of what was sampled from."""
    try:
        return float(_choice(answer)["logprobs"]["content"][0]["top_logprobs"][0]["logprob"])
    except (KeyError, IndexError, TypeError, ValueError):
        return None
